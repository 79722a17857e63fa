/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replayssm eval kl: what other formats of the recurrent states do to a model's predictions. The text is fed as it is,
 * token by token in effect: steps of up to 16 tokens that begin at the flush boundaries, so that each token reads from
 * the checkpoint that plain decoding would have, while projections are products over several rows. After every
 * step each configuration's next-token distributions are compared with those of conventional decoding with fp32 states,
 * whose recurrent layers take the step's tokens one by one.
 */
#include "eval_kl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const option_row kl_options[] = {
    {"tokens", 0, OPTION_WHOLE, offsetof(settings, tokens), "N", "0", 0, INT32_MAX, NULL,
     "of the text, from its beginning; 0: all"},
    {"config", 0, OPTION_TEXTS, offsetof(settings, configs), "NAME=KEY:VALUE,...", NULL, 0, 0, NULL,
     "a configuration to compare, up to 16 times; keys: checkpoint\n"
     "f32|f16|bf16|f8, rounding nearest|stochastic, read none|f16|bf16|f8|\n"
     "int8|nvfp4, window, method replay|conventional, seed, shared 0|1\n"
     "(the recurrence too continues from the copy), control 0|1 (fp32 with\n"
     "noise of the size of the copy's error), and of nvfp4 axis dk|dv, block\n"
     "16|32, search 0|1, rank 0..4, diffusion 0|1, calibrated 0|1 (with\n"
     "one of these the others are 0, without the scheme is the model's)"},
    {"calibration", 0, OPTION_TEXT, offsetof(settings, calibration), "FILE", NULL, 0, 0, NULL,
     "of nvfp4 copies, as eval calibrate writes it; '' for none (default:\n"
     "the one beside the model's weights, if there is any)"},
    {"csv", 0, OPTION_TEXT, offsetof(settings, csv), "FILE", NULL, 0, 0, NULL,
     "write the buckets there too, every 1024 tokens as they are:\n"
     "name, first, tokens, kl, top1, output_error, state_error"},
    {"threads", 0, OPTION_WHOLE, offsetof(settings, threads), "N", "0", 0, 1024, NULL,
     "threads; 0: one for each usable core"},
    {"verbose", 'v', OPTION_FLAG, offsetof(settings, verbose), NULL, NULL, 0, 0, NULL, "say on stderr what was chosen"},
    {"help", 'h', OPTION_FLAG, offsetof(settings, help), NULL, NULL, 0, 0, NULL, "this text"},
    {0},
};

static const command_spec spec = {
    .usage = "replayssm eval kl [MODEL] {--file FILE | --ids FILE} --config ... [OPTION]...",
    .about = "Prints, as one JSON object, how far the next-token distributions of MODEL (default tiny-gdn) with\n"
             "states in other formats are from those of conventional decoding with fp32 states, over a text: mean\n"
             "KL divergence in nats, share of equal likeliest tokens, relative error of the hidden states that\n"
             "the logits are made of and of the recurrent states, mean negative log-likelihood; in all and by position.",
    .tables = {options_input, kl_options},
};

/* ---- Running ------------------------------------------------------------------------------------------- */

static rse_status open_subject(subject *s, const char *directory, rse_error *err) {
    const rse_state_options scheme = s->options.state;
    s->options.window = s->options.window == 0 ? STEP : s->options.window;
    /* a step never crosses a boundary: its tokens read what they would read one by one */
    s->step = s->options.window < STEP ? s->options.window : STEP;
    while (s->options.window % s->step != 0 || STEP % s->step != 0) {
        s->step--;
    }
    if (s->options.method == RSSM_METHOD_CONVENTIONAL) { /* its layers take a step's tokens one by one */
        s->options.method = RSE_METHOD_SNAPSHOT;
        s->step = STEP;
    }
    s->options.step_tokens = s->step;
    if (s->control) {
        s->options.state = (rse_state_options){
            .checkpoint_dtype = RSSM_DTYPE_F32,
            .calibration = scheme.calibration,
            .read_calibrated = scheme.read_copy_dtype == RSSM_DTYPE_NVFP4 && (!scheme.read_custom || scheme.read_calibrated)};
    }
    RSE_TRY(rse_engine_open(directory, &s->options, &s->engine, err));
    RSE_TRY(rse_session_open(s->engine, 0, &s->session, err));
    return s->control ? rse_control_create(s->engine, &scheme, &s->noise, err) : RSE_OK;
}

static void close_subject(subject *s) {
    rse_session_close(s->session);
    rse_control_destroy(s->noise);
    rse_engine_close(s->engine);
    *s = (subject){0};
}

/* What a model says of the tokens of a step. */
typedef struct answers {
    float *logits; /* [STEP][vocab] */
    float *hidden; /* [STEP][hidden] */
    float *states; /* the recurrent states before the step */
} answers;

static rse_status run(subject *s, const int32_t *ids, int32_t count, const rse_engine_info *info, const answers *to,
                      rse_error *err) {
    for (int32_t at = 0; at < count; at += s->step) {
        rse_row row = {.session = s->session,
                       .tokens = ids + at,
                       .count = count - at < s->step ? count - at : s->step,
                       .accepted = RSE_ACCEPT_ALL};
        row.outputs = row.count;
        RSE_TRY(s->noise != NULL ? rse_control_before(s->noise, s->session, err) : RSE_OK);
        RSE_TRY(rse_engine_step(s->engine, &row, 1, to->logits + (int64_t)at * info->vocab,
                                to->hidden + (int64_t)at * info->hidden, err));
    }
    return RSE_OK;
}

static int64_t likeliest(const float *x, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++) {
        best = x[i] > x[best] ? i : best;
    }
    return best;
}

/* log of the sum of exponentials. */
static double log_sum(const float *x, int64_t n) {
    double most = (double)x[likeliest(x, n)], total = 0.0;
    for (int64_t i = 0; i < n; i++) {
        total += exp((double)x[i] - most);
    }
    return most + log(total);
}

static void add_squares(const float *expected, const float *got, int64_t n, double *error, double *size) {
    for (int64_t i = 0; i < n; i++) {
        const double x = (double)expected[i], e = (double)got[i] - x;
        *error += e * e;
        *size += x * x;
    }
}

/* What is expected of one token: log probabilities and probabilities, computed once for all configurations. */
typedef struct expectation {
    double *log_p, *p; /* [vocab] */
    int64_t likeliest;
} expectation;

static void expect(expectation *e, const float *logits, int64_t vocab) {
    const double total = log_sum(logits, vocab);
    e->likeliest = likeliest(logits, vocab);
    for (int64_t i = 0; i < vocab; i++) {
        e->log_p[i] = (double)logits[i] - total;
        e->p[i] = exp(e->log_p[i]);
    }
}

static sum *bucket_of(subject *s, int64_t position) {
    int32_t b = 0;
    while (b + 1 < BUCKETS && position >= (int64_t)BUCKET_FIRST << b) {
        b++;
    }
    return &s->bucket[b];
}

static void compare(subject *s, int64_t position, const expectation *e, const float *got, int64_t n, int32_t next) {
    const double q = log_sum(got, n);
    double kl = 0.0;
    for (int64_t i = 0; i < n; i++) {
        kl += e->p[i] * (e->log_p[i] - ((double)got[i] - q));
    }
    sum *sums[] = {&s->all, bucket_of(s, position)};
    for (int i = 0; i < 2; i++) {
        sums[i]->kl += kl;
        sums[i]->nll += q - (double)got[next];
        sums[i]->same += e->likeliest == likeliest(got, n);
        sums[i]->tokens++;
    }
}

/* One pass over the text. */
typedef struct pass {
    subject *subjects;
    int32_t count;
    const rse_engine_info *info;
    const rse_ids *ids;
    answers *answer;      /* [count] */
    expectation expected[STEP];
    int64_t state_values;
} pass;

static void compare_step(pass *p, int32_t i, int64_t at, int32_t n) {
    const answers *expected = &p->answer[0], *got = &p->answer[i];
    subject *s = &p->subjects[i];
    sum *sums[] = {&s->all, bucket_of(s, at)};
    for (int32_t t = 0; t < n; t++) {
        compare(s, at + t, &p->expected[t], got->logits + (int64_t)t * p->info->vocab, p->info->vocab, p->ids->data[at + t + 1]);
    }
    for (int k = 0; k < 2; k++) {
        add_squares(expected->hidden, got->hidden, (int64_t)n * p->info->hidden, &sums[k]->output_error, &sums[k]->output_size);
    }
}

/* States are compared at the positions where a bucket's CSV rows are written. */
static rse_status compare_states(pass *p, int64_t at, rse_error *err) {
    for (int32_t i = 0; i < p->count; i++) {
        subject *s = &p->subjects[i];
        int64_t values;
        RSE_TRY(s->noise != NULL ? rse_control_before(s->noise, s->session, err) : RSE_OK);
        RSE_TRY(rse_states_read(s->engine, s->session, s->noise, p->answer[i].states, &values, err));
        sum *sums[] = {&s->all, bucket_of(s, at - 1)};
        for (int k = 0; k < 2 && i > 0; k++) {
            add_squares(p->answer[0].states, p->answer[i].states, values, &sums[k]->state_error, &sums[k]->state_size);
        }
    }
    return RSE_OK;
}

static rse_status run_text(pass *p, int64_t tokens, const char *csv, rse_error *err) {
    progress bar = {0};
    for (int64_t at = 0; at < tokens; at += STEP) {
        const int32_t n = tokens - at < STEP ? (int32_t)(tokens - at) : STEP;
        for (int32_t i = 0; i < p->count; i++) {
            RSE_TRY(run(&p->subjects[i], p->ids->data + at, n, p->info, &p->answer[i], err));
        }
        for (int32_t t = 0; t < n; t++) {
            expect(&p->expected[t], p->answer[0].logits + (int64_t)t * p->info->vocab, p->info->vocab);
        }
        for (int32_t i = 1; i < p->count; i++) {
            compare_step(p, i, at, n);
        }
        if ((at + n) % BUCKET_FIRST == 0) {
            RSE_TRY(compare_states(p, at + n, err));
            RSE_TRY(csv != NULL ? subjects_write_csv(p->subjects, p->count, csv, err) : RSE_OK);
        }
        progress_show(&bar, "comparing", at + n, tokens);
    }
    progress_clear(&bar);
    return csv != NULL ? subjects_write_csv(p->subjects, p->count, csv, err) : RSE_OK;
}

/* Memory for the answers of all subjects, and the expectations. */
static rse_status run_all(pass *p, int64_t tokens, const char *csv, rse_error *err) {
    const int64_t vocab = p->info->vocab, hidden = p->info->hidden;
    RSE_TRY(rse_states_read(p->subjects[0].engine, NULL, NULL, NULL, &p->state_values, err));
    const int64_t each = STEP * (vocab + hidden) + p->state_values;
    float *memory = malloc((size_t)(p->count * each) * sizeof *memory);
    double *expected = malloc((size_t)(2 * STEP * vocab) * sizeof *expected);
    p->answer = calloc((size_t)p->count, sizeof *p->answer);
    rse_status status = RSE_OK;
    if (memory == NULL || expected == NULL || p->answer == NULL) {
        status = rse_fail(err, RSE_ERROR_MEMORY, "no memory for the logits of %d tokens", STEP);
    }
    for (int32_t i = 0; i < p->count && status == RSE_OK; i++) {
        float *base = memory + i * each;
        p->answer[i] = (answers){base, base + STEP * vocab, base + STEP * (vocab + hidden)};
    }
    for (int32_t t = 0; t < STEP && status == RSE_OK; t++) {
        p->expected[t] = (expectation){.log_p = expected + 2 * t * vocab, .p = expected + (2 * t + 1) * vocab};
    }
    status = status == RSE_OK ? run_text(p, tokens, csv, err) : status;
    free(memory);
    free(expected);
    free(p->answer);
    return status;
}

static rse_status measure(const settings *set, workspace *work, subject *subjects, rse_ids *ids, rse_error *err) {
    const int32_t count = 1 + set->configs.count;
    for (int32_t i = 0; i < count; i++) {
        subjects[i].options = (rse_engine_options){
            .threads = (int32_t)set->threads, .log = set->verbose ? workspace_log : NULL};
        subjects[i].options.state.checkpoint_dtype = RSSM_DTYPE_F32;
        subjects[i].options.state.calibration = set->calibration;
        if (i == 0) {
            subjects[i].options.method = RSSM_METHOD_CONVENTIONAL;
        } else {
            RSE_TRY(subject_parse(&subjects[i], set->configs.at[i - 1], err));
        }
    }
    if (count == 1) {
        return rse_fail(err, RSE_ERROR_USAGE, "there is nothing to compare: give --config NAME=KEY:VALUE,...");
    }
    settings plain = *set;
    plain.method = RSSM_METHOD_REPLAY;
    RSE_TRY(workspace_open(&plain, 1, 1, work, err));
    bool given;
    RSE_TRY(read_input(work, set, ids, &given, err));
    if (!given || ids->count < 2) {
        return rse_fail(err, RSE_ERROR_USAGE, "the text has %zu tokens; comparing needs at least 2: give --file or --ids",
                        ids->count);
    }
    for (int32_t i = 0; i < count; i++) {
        RSE_TRY(open_subject(&subjects[i], work->directory, err));
    }
    int64_t tokens = (int64_t)ids->count - 1;
    tokens = set->tokens > 0 && set->tokens < tokens ? set->tokens : tokens;
    pass p = {.subjects = subjects, .count = count, .info = &work->info, .ids = ids};
    RSE_TRY(run_all(&p, tokens, set->csv, err));
    return subjects_print(subjects, count, err);
}

int eval_kl(int argc, char **argv) {
    settings set;
    int done = options_parse(&spec, argc, argv, &set);
    if (done != 0) {
        return done - 1;
    }
    static subject subjects[1 + TEXT_LIST_MAX];
    workspace work = {0};
    rse_ids ids = {0};
    rse_error err = {0};
    rse_status status = measure(&set, &work, subjects, &ids, &err);
    for (int32_t i = 0; i <= TEXT_LIST_MAX; i++) {
        close_subject(&subjects[i]);
    }
    rse_ids_free(&ids);
    workspace_close(&work);
    return status == RSE_OK ? EXIT_SUCCESS : report_error(&err);
}
