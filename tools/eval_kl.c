/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replayssm eval kl: what other formats of the recurrent states do to a model's predictions. The text is fed as it is,
 * token by token in effect: steps of up to 16 tokens that begin at the flush boundaries, so that each token reads from
 * the checkpoint that plain decoding would have, while projections are products over several rows. After every
 * step each configuration's next-token distributions are compared with those of fp32 states.
 */
#include "tool.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const option_row kl_options[] = {
    {"tokens", 0, OPTION_WHOLE, offsetof(settings, tokens), "N", "0", 0, INT32_MAX, NULL,
     "of the text, from its beginning; 0: all"},
    {"config", 0, OPTION_TEXTS, offsetof(settings, configs), "NAME=KEY:VALUE,...", NULL, 0, 0, NULL,
     "a configuration to compare, up to 16 times; keys: checkpoint\n"
     "f32|f16|bf16|f8, rounding nearest|stochastic, read none|f16|bf16|f8|\n"
     "int8|nvfp4, window, method replay|conventional, seed, and of nvfp4\n"
     "axis dk|dv, block 16|32, search 0|1, rank 0..4 (with one of these\n"
     "the others are 0, without the scheme is the model's)"},
    {"csv", 0, OPTION_TEXT, offsetof(settings, csv), "FILE", NULL, 0, 0, NULL,
     "write the buckets there too: name, first, tokens, kl, top1"},
    {"threads", 0, OPTION_WHOLE, offsetof(settings, threads), "N", "0", 0, 1024, NULL,
     "threads; 0: one for each usable core"},
    {"verbose", 'v', OPTION_FLAG, offsetof(settings, verbose), NULL, NULL, 0, 0, NULL, "say on stderr what was chosen"},
    {"help", 'h', OPTION_FLAG, offsetof(settings, help), NULL, NULL, 0, 0, NULL, "this text"},
    {0},
};

static const command_spec spec = {
    .usage = "replayssm eval kl [MODEL] {--file FILE | --ids FILE} --config ... [OPTION]...",
    .about = "Prints, as one JSON object, how far the next-token distributions of MODEL (default tiny-gdn) with\n"
             "states in other formats are from those with fp32 states, over a text: mean KL divergence in nats,\n"
             "share of equal likeliest tokens, mean negative log-likelihood; in all and by position.",
    .tables = {options_input, kl_options},
};

enum { BUCKETS = 16, BUCKET_FIRST = 1024, STEP = 16 };

typedef struct sum {
    double kl, nll;
    int64_t tokens, same;
} sum;

typedef struct subject {
    char name[64];
    rse_engine_options options;
    rse_engine *engine;
    rse_session *session;
    int32_t step; /* tokens of a step */
    sum all, bucket[BUCKETS];
} subject;

/* ---- Configurations ------------------------------------------------------------------------------------ */

typedef struct word {
    const char *text;
    int32_t value;
} word;

typedef struct key {
    const char *name;
    size_t at; /* offset of an int32_t in rse_engine_options */
    const word *words; /* NULL: a whole number up to `most` */
    int32_t least, most;
    bool custom; /* one of the nvfp4 options */
} key;

static const word checkpoints[] = {
    {"f32", RSSM_DTYPE_F32}, {"f16", RSSM_DTYPE_F16}, {"bf16", RSSM_DTYPE_BF16}, {"f8", RSSM_DTYPE_F8}, {NULL, 0}};
static const word roundings[] = {
    {"nearest", RSSM_ROUND_NEAREST}, {"stochastic", RSSM_ROUND_STOCHASTIC}, {NULL, 0}};
static const word copies[] = {{"none", RSSM_DTYPE_DEFAULT}, {"f16", RSSM_DTYPE_F16},   {"bf16", RSSM_DTYPE_BF16},
                              {"f8", RSSM_DTYPE_F8},        {"int8", RSSM_DTYPE_INT8}, {"nvfp4", RSSM_DTYPE_NVFP4},
                              {NULL, 0}};
static const word methods[] = {
    {"replay", RSSM_METHOD_REPLAY}, {"conventional", RSSM_METHOD_CONVENTIONAL}, {NULL, 0}};
static const word axes[] = {{"dk", RSSM_BLOCK_KEYS}, {"dv", RSSM_BLOCK_VALUES}, {NULL, 0}};

#define AT(field) offsetof(rse_engine_options, field)
static const key keys[] = {
    {"checkpoint", AT(state.checkpoint_dtype), checkpoints, 0, 0, false},
    {"rounding", AT(state.checkpoint_rounding), roundings, 0, 0, false},
    {"read", AT(state.read_copy_dtype), copies, 0, 0, false},
    {"window", AT(window), NULL, 1, RSSM_WINDOW_MAX, false},
    {"method", AT(method), methods, 0, 0, false},
    {"axis", AT(state.read_block_axis), axes, 0, 0, true},
    {"block", AT(state.read_block), NULL, 16, 32, true},
    {"search", AT(state.read_scale_search), NULL, 0, 1, true},
    {"rank", AT(state.read_rank), NULL, 0, RSSM_READ_RANK_MAX, true},
};
enum { KEYS = sizeof keys / sizeof keys[0] };

static rse_status set_value(const subject *s, const key *k, const char *value, void *at, rse_error *err) {
    char *end = NULL;
    long number = strtol(value, &end, 10);
    for (const word *w = k->words; w != NULL && w->text != NULL; w++) {
        if (strcmp(w->text, value) == 0) {
            *(int32_t *)at = w->value;
            return RSE_OK;
        }
    }
    if (k->words == NULL && end != value && *end == '\0' && number >= k->least && number <= k->most) {
        *(int32_t *)at = (int32_t)number;
        return RSE_OK;
    }
    char known[128] = "";
    size_t n = 0;
    for (const word *w = k->words; w != NULL && w->text != NULL; w++) {
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", n > 0 ? ", " : "", w->text);
    }
    if (k->words == NULL) {
        snprintf(known, sizeof known, "whole numbers from %d to %d", k->least, k->most);
    }
    return rse_fail(err, RSE_ERROR_USAGE, "configuration %s: %s is '%s'; known are %s", s->name, k->name, value, known);
}

static rse_status set_key(subject *s, char *item, rse_error *err) {
    char *value = strchr(item, ':');
    if (value != NULL) {
        *value++ = '\0';
    }
    for (size_t i = 0; value != NULL && i < KEYS; i++) {
        if (strcmp(keys[i].name, item) == 0) {
            s->options.state.read_custom = s->options.state.read_custom || keys[i].custom;
            return set_value(s, &keys[i], value, (char *)&s->options + keys[i].at, err);
        }
    }
    if (value != NULL && strcmp(item, "seed") == 0) {
        char *end = NULL;
        errno = 0;
        s->options.state.seed = strtoull(value, &end, 10);
        if (*value < '0' || *value > '9' || *end != '\0' || errno != 0) {
            return rse_fail(err, RSE_ERROR_USAGE, "configuration %s: seed is '%s'; it must be a whole number from 0 to 2^64 - 1",
                            s->name, value);
        }
        return RSE_OK;
    }
    return rse_fail(err, RSE_ERROR_USAGE,
                    "configuration %s has '%s'%s; known keys are checkpoint, rounding, read, window, method, seed, axis, "
                    "block, search and rank, each with a value after a colon",
                    s->name, item, value == NULL ? " without a value" : "");
}

/* Formats that do not go together, in the words of the configuration. */
static rse_status check_state(const subject *s, rse_error *err) {
    const rse_state_options *state = &s->options.state;
    if (state->checkpoint_rounding == RSSM_ROUND_STOCHASTIC && state->checkpoint_dtype <= RSSM_DTYPE_F32) {
        return rse_fail(err, RSE_ERROR_USAGE, "configuration %s: rounding is stochastic, and a checkpoint in f32 is not rounded",
                        s->name);
    }
    if (state->read_custom && state->read_copy_dtype != RSSM_DTYPE_NVFP4) {
        return rse_fail(err, RSE_ERROR_USAGE, "configuration %s: axis, block, search and rank are for read:nvfp4", s->name);
    }
    if (state->read_block != 0 && state->read_block != 16 &&
        !(state->read_block == 32 && state->read_block_axis == RSSM_BLOCK_KEYS)) {
        return rse_fail(err, RSE_ERROR_USAGE, "configuration %s: block is %d; known are 16, and along dk 32", s->name,
                        (int)state->read_block);
    }
    return RSE_OK;
}

static rse_status parse(subject *s, const char *text, rse_error *err) {
    char copy[256], *rest = NULL;
    const char *equals = strchr(text, '=');
    if (equals == NULL || equals == text || (size_t)(equals - text) >= sizeof s->name || strlen(equals) >= sizeof copy) {
        return rse_fail(err, RSE_ERROR_USAGE, "--config is '%.80s'; it must be a name, '=' and keys with values", text);
    }
    snprintf(s->name, sizeof s->name, "%.*s", (int)(equals - text), text);
    snprintf(copy, sizeof copy, "%s", equals + 1);
    for (char *item = strtok_r(copy, ",", &rest); item != NULL; item = strtok_r(NULL, ",", &rest)) {
        RSE_TRY(set_key(s, item, err));
    }
    return check_state(s, err);
}

/* ---- Running ------------------------------------------------------------------------------------------- */

static rse_status open_subject(subject *s, const char *directory, rse_error *err) {
    const bool conventional = s->options.method == RSSM_METHOD_CONVENTIONAL;
    s->options.window = s->options.window == 0 ? STEP : s->options.window;
    /* a step never crosses a boundary: its tokens read what they would read one by one */
    s->step = conventional ? 1 : s->options.window < STEP ? s->options.window : STEP;
    while (s->options.window % s->step != 0 || STEP % s->step != 0) {
        s->step--;
    }
    s->options.step_tokens = s->step;
    RSE_TRY(rse_engine_open(directory, &s->options, &s->engine, err));
    return rse_session_open(s->engine, 0, &s->session, err);
}

static rse_status run(subject *s, const int32_t *ids, int32_t count, int64_t vocab, float *logits, rse_error *err) {
    for (int32_t at = 0; at < count; at += s->step) {
        rse_row row = {.session = s->session,
                       .tokens = ids + at,
                       .count = count - at < s->step ? count - at : s->step,
                       .accepted = RSE_ACCEPT_ALL};
        row.outputs = row.count;
        RSE_TRY(rse_engine_step(s->engine, &row, 1, logits + at * vocab, NULL, err));
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

static void compare(subject *s, int64_t position, const float *expected, const float *got, int64_t n, int32_t next) {
    const double p = log_sum(expected, n), q = log_sum(got, n);
    double kl = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const double log_p = (double)expected[i] - p;
        kl += exp(log_p) * (log_p - ((double)got[i] - q));
    }
    int32_t b = 0;
    while (b + 1 < BUCKETS && position >= (int64_t)BUCKET_FIRST << b) {
        b++;
    }
    sum *sums[] = {&s->all, &s->bucket[b]};
    for (int i = 0; i < 2; i++) {
        sums[i]->kl += kl;
        sums[i]->nll += q - (double)got[next];
        sums[i]->same += likeliest(expected, n) == likeliest(got, n);
        sums[i]->tokens++;
    }
}

static rse_status run_all(subject *subjects, int32_t count, const rse_ids *ids, int64_t tokens, int64_t vocab,
                          rse_error *err) {
    float *expected = malloc((size_t)(2 * STEP * vocab) * sizeof *expected), *got = expected + STEP * vocab;
    if (expected == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for the logits of %d tokens", STEP);
    }
    rse_status status = RSE_OK;
    progress bar = {0};
    for (int64_t at = 0; at < tokens && status == RSE_OK; at += STEP) {
        const int32_t n = tokens - at < STEP ? (int32_t)(tokens - at) : STEP;
        status = run(&subjects[0], ids->data + at, n, vocab, expected, err);
        for (int32_t i = 1; i < count && status == RSE_OK; i++) {
            status = run(&subjects[i], ids->data + at, n, vocab, got, err);
            for (int32_t t = 0; t < n && status == RSE_OK; t++) {
                compare(&subjects[i], at + t, expected + t * vocab, got + t * vocab, vocab, ids->data[at + t + 1]);
            }
        }
        progress_show(&bar, "comparing", at + n, tokens);
    }
    progress_clear(&bar);
    free(expected);
    return status;
}

/* ---- Printing ------------------------------------------------------------------------------------------ */

static json_t *json_sum(const sum *s) {
    const double n = (double)s->tokens;
    json_t *object = json_object();
    json_object_set_new(object, "tokens", json_integer(s->tokens));
    json_object_set_new(object, "kl", isfinite(s->kl / n) ? json_real(s->kl / n) : json_null());
    json_object_set_new(object, "top1", json_real((double)s->same / n));
    json_object_set_new(object, "nll", isfinite(s->nll / n) ? json_real(s->nll / n) : json_null());
    return object;
}

static int64_t bucket_first(int32_t b) {
    return b == 0 ? 0 : (int64_t)BUCKET_FIRST << (b - 1);
}

static rse_status print(const subject *subjects, int32_t count, rse_error *err) {
    json_t *list = json_array();
    for (int32_t i = 1; i < count; i++) {
        const subject *s = &subjects[i];
        rse_engine_counters counters;
        RSE_TRY(rse_engine_count(s->engine, &counters, err));
        json_t *object = json_sum(&s->all), *buckets = json_array();
        for (int32_t b = 0; b < BUCKETS && s->bucket[b].tokens > 0; b++) {
            json_t *bucket = json_sum(&s->bucket[b]);
            json_object_set_new(bucket, "first", json_integer(bucket_first(b)));
            json_array_append_new(buckets, bucket);
        }
        json_object_set_new(object, "name", json_string(s->name));
        json_object_set_new(object, "kernel", json_string(counters.kernel));
        json_object_set_new(object, "flushes", json_integer(counters.flushes));
        json_object_set_new(object, "buckets", buckets);
        json_array_append_new(list, object);
    }
    json_t *all = json_object();
    json_object_set_new(all, "configs", list);
    json_dumpf(all, stdout, JSON_REAL_PRECISION(6) | JSON_INDENT(1));
    json_decref(all);
    putchar('\n');
    return RSE_OK;
}

static rse_status write_csv(const subject *subjects, int32_t count, const char *path, rse_error *err) {
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        return rse_fail(err, RSE_ERROR_IO, "%s: cannot be written", path);
    }
    fputs("name,first,tokens,kl,top1\n", file);
    for (int32_t i = 1; i < count; i++) {
        for (int32_t b = 0; b < BUCKETS && subjects[i].bucket[b].tokens > 0; b++) {
            const sum *s = &subjects[i].bucket[b];
            fprintf(file, "%s,%lld,%lld,%.6g,%.6g\n", subjects[i].name, (long long)bucket_first(b), (long long)s->tokens,
                    s->kl / (double)s->tokens, (double)s->same / (double)s->tokens);
        }
    }
    return fclose(file) == 0 ? RSE_OK : rse_fail(err, RSE_ERROR_IO, "%s: cannot be written", path);
}

static rse_status measure(const settings *set, workspace *work, subject *subjects, rse_ids *ids, rse_error *err) {
    const int32_t count = 1 + set->configs.count;
    for (int32_t i = 0; i < count; i++) {
        subjects[i].options = (rse_engine_options){
            .threads = (int32_t)set->threads, .log = set->verbose ? workspace_log : NULL};
        if (i > 0) {
            RSE_TRY(parse(&subjects[i], set->configs.at[i - 1], err));
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
    RSE_TRY(run_all(subjects, count, ids, tokens, work->info.vocab, err));
    RSE_TRY(set->csv != NULL ? write_csv(subjects, count, set->csv, err) : RSE_OK);
    return print(subjects, count, err);
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
        rse_session_close(subjects[i].session);
        rse_engine_close(subjects[i].engine);
    }
    rse_ids_free(&ids);
    workspace_close(&work);
    return status == RSE_OK ? EXIT_SUCCESS : report_error(&err);
}
