/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every model family against its golden: a tiny random checkpoint run by transformers; of those that hold packed
 * weights, goldens are of what these stand for. Logits of prompts and of decoding by every method, the recurrent
 * state at the end, what sessions can do, narrow formats and drafting: all of it for all families alike.
 */
#include "family_list.h"
#include "model_fixture.h"
#include "sched/internal.h"
#include "sched/sched.h"

#include <unistd.h>

enum { LENGTH = 130, LOGIT_ROWS = 6, STEP = 5 };
static const double limit = 2e-4; /* f32 against the golden */

typedef struct family_golden {
    rse_safetensors *files;
    const int32_t *tokens; /* [LENGTH] */
    const int32_t *at;     /* [LOGIT_ROWS] */
    const float *logits;   /* [LOGIT_ROWS][vocab] */
    const rse_tensor *state;
} family_golden;

static family_golden load_golden(const char *family) {
    family_golden g;
    char path[512];
    path_of(family, "golden.safetensors", path);
    OK(rse_safetensors_open(path, &g.files, &err));
    g.tokens = rse_safetensors_find(g.files, "tokens")->data;
    g.at = rse_safetensors_find(g.files, "logits_at")->data;
    g.logits = rse_safetensors_find(g.files, "logits")->data;
    g.state = rse_safetensors_find(g.files, "state");
    return g;
}

static rse_engine *open_family(const char *family, rse_engine_options options) {
    char path[512];
    rse_engine *engine = NULL;
    path_of(family, "", path);
    options.threads = 1;
    OK(rse_engine_open(path, &options, &engine, &err));
    return engine;
}

/* The largest difference from the golden of logits [LENGTH][vocab]. */
static double compare(const family_golden *g, const float *logits, int32_t vocab) {
    double most = 0.0;
    for (int32_t i = 0; i < LOGIT_ROWS; i++) {
        double difference =
            largest_difference(logits + (int64_t)g->at[i] * vocab, g->logits + (int64_t)i * vocab, vocab);
        most = difference > most || isnan(difference) ? difference : most;
    }
    return most;
}

/* Logits of all tokens: a prompt in pieces of `cut`, or steps of `cut` tokens. */
static void run_all(rse_session *session, const family_golden *g, bool prompt, int32_t cut, int32_t vocab,
                    float *logits) {
    for (int32_t at = 0; at < LENGTH; at += cut) {
        int32_t count = cut < LENGTH - at ? cut : LENGTH - at;
        run_row(session, session->engine, g->tokens + at, count, prompt, RSE_ACCEPT_ALL, count,
                logits + (int64_t)at * vocab);
    }
}

static void check_logits(const char *family, rse_engine_options options, bool prompt, int32_t cut,
                         const char *way) {
    family_golden g = load_golden(family);
    rse_engine *engine = open_family(family, options);
    rse_session *session = session_open(engine, 3);
    int32_t vocab = vocab_of(engine);
    float *logits = malloc((size_t)LENGTH * (size_t)vocab * sizeof *logits);
    run_all(session, &g, prompt, cut, vocab, logits);
    double most = compare(&g, logits, vocab);
    print_message("%s, %s: logits within %.2g\n", family, way, most);
    assert_within(most, limit, "logits");
    if (options.check) {
        OK(rse_session_commit(session, RSE_ACCEPT_ALL, &err));
        OK(rse_session_check(session, &err));
        assert_true(rse_engine_checked(engine) > 0);
        double state = largest_difference(rse_shadow_checkpoint(engine->shadow, 0, session->slot),
                                          g.state->data, rse_tensor_elements(g.state));
        assert_within(state, limit, "state");
    }
    free(logits);
    rse_engine_close(engine);
    rse_safetensors_close(g.files);
}

static void test_goldens(void **state) {
    (void)state;
    for (int32_t i = 0; i < FAMILIES; i++) {
        check_logits(families[i], (rse_engine_options){0}, true, LENGTH, "one prompt");
        check_logits(families[i], (rse_engine_options){.isa_mask = RSSM_ISA_NONE}, true, 64,
                     "prompts of 64, portable");
        check_logits(families[i], (rse_engine_options){.check = true}, false, 1, "replay");
        check_logits(families[i], (rse_engine_options){.step_tokens = STEP, .window = 7, .check = true}, false,
                     STEP, "steps of 5");
        check_logits(families[i], (rse_engine_options){.method = RSSM_METHOD_CONVENTIONAL}, false, 1,
                     "conventional");
    }
}

/* Rows of a batch, drafts that are dropped, copies and files: none of them changes a bit of what follows. */
static void check_sessions(const char *family) {
    family_golden g = load_golden(family);
    rse_engine *engine =
        open_family(family, (rse_engine_options){.sessions = 3, .step_tokens = STEP, .window = 8, .reach = 4});
    int32_t vocab = vocab_of(engine);
    float *logits = malloc(4 * (size_t)vocab * sizeof *logits);
    float *plain = logits + vocab;
    char path[] = "/tmp/replayssm-families-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    rse_session *a = session_open(engine, 1);
    prompt_row(a, engine, g.tokens, 20, NULL);
    decode_row(a, engine, g.tokens[20], NULL);
    decode_row(a, engine, g.tokens[21], plain);

    rse_session *b = session_open(engine, 1);
    prompt_row(b, engine, g.tokens, 20, NULL);
    run_row(b, engine, g.tokens + 50, STEP, false, RSE_ACCEPT_ALL, 0, NULL);
    run_row(b, engine, g.tokens + 20, 1, false, 0, 0, NULL); /* the drafts are dropped */
    rse_session *c = session_open(engine, 9);
    OK(rse_session_commit(b, RSE_ACCEPT_ALL, &err));
    OK(rse_session_save(b, &(rse_session_tail){0}, path, &err));
    rse_session_tail tail = {0};
    OK(rse_session_load(c, path, &tail, &err));
    free(tail.ids);
    rse_row rows[2] = {{b, g.tokens + 21, 1, RSE_ACCEPT_ALL, false, 1, NULL},
                       {c, g.tokens + 21, 1, RSE_ACCEPT_ALL, false, 1, NULL}};
    OK(rse_engine_step(engine, rows, 2, logits + 2 * vocab, NULL, &err));
    assert_memory_equal(plain, logits + 2 * vocab, (size_t)vocab * sizeof *logits);
    assert_memory_equal(plain, logits + 3 * vocab, (size_t)vocab * sizeof *logits);

    OK(rse_session_commit(a, RSE_ACCEPT_ALL, &err));
    OK(rse_session_copy(c, a, 1, &err));
    decode_row(a, engine, g.tokens[22], plain);
    decode_row(c, engine, g.tokens[22], logits);
    assert_within(largest_difference(plain, logits, vocab), limit, "a copy");
    OK(rse_session_commit(a, RSE_ACCEPT_ALL, &err));
    OK(rse_session_rollback(a, 22, &err));
    decode_row(a, engine, g.tokens[22], logits);
    assert_within(largest_difference(plain, logits, vocab), limit, "after going back");
    unlink(path);
    free(logits);
    rse_engine_close(engine);
    rse_safetensors_close(g.files);
}

static void test_sessions(void **state) {
    (void)state;
    for (int32_t i = 0; i < FAMILIES; i++) {
        check_sessions(families[i]);
    }
}

/* ---- Narrow formats ---- */

/* What a format may cost, in logits of size 1 to 4; and that it is in use at all. */
static void check_formats(const char *family) {
    static const struct {
        int32_t checkpoint, rounding, read_copy;
        double limit;
    } formats[] = {{RSSM_DTYPE_F16, RSSM_ROUND_STOCHASTIC, 0, 0.05},
                   {RSSM_DTYPE_BF16, 0, 0, 0.3},
                   {0, 0, RSSM_DTYPE_INT8, 0.3},
                   {RSSM_DTYPE_F16, 0, RSSM_DTYPE_NVFP4, 1.5}};
    family_golden g = load_golden(family);
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        bool check = formats[i].checkpoint == 0; /* a narrow checkpoint is no conventional state */
        rse_engine_options options = {.method = RSSM_METHOD_REPLAY, .window = 5, .check = check};
        options.state = (rse_state_options){.checkpoint_dtype = formats[i].checkpoint,
                                            .checkpoint_rounding = formats[i].rounding,
                                            .read_copy_dtype = formats[i].read_copy};
        rse_engine *engine = open_family(family, options);
        rse_session *session = session_open(engine, 3);
        int32_t vocab = vocab_of(engine);
        float *logits = malloc((size_t)LENGTH * (size_t)vocab * sizeof *logits);
        run_all(session, &g, false, 1, vocab, logits);
        double most = compare(&g, logits, vocab);
        if (check) {
            OK(rse_session_commit(session, RSE_ACCEPT_ALL, &err));
            OK(rse_session_check(session, &err));
            assert_true(rse_engine_checked(engine) > 0);
        }
        print_message("%s, format %zu: logits within %.2g\n", family, i, most);
        assert_within(most, formats[i].limit, "logits");
        assert_true(most > 1e-6);
        free(logits);
        rse_engine_close(engine);
    }
    rse_safetensors_close(g.files);
}

static void test_formats(void **state) {
    (void)state;
    for (int32_t i = 0; i < FAMILIES; i++) {
        check_formats(families[i]);
    }
}

/* ---- Drafting ---- */

enum { TEXT = 40, DRAFTS = 3 };

/* Sees the drafts of the first round of a real drafter, or drafts by itself, from the text that is known to come. */
typedef struct spy {
    rse_drafter base;
    rse_drafter *real;
    const int32_t *text; /* [TEXT] */
    int32_t prompt;      /* tokens before it */
    rse_tree first;
} spy;

/* Right, but for every third token of the text; beside each draft a wrong one. */
static void draft_known(const spy *s, rse_draft_row *row) {
    int64_t length = rse_session_position(row->session) + rse_session_pending(row->session);
    int32_t node = 0;
    for (int32_t d = 1; d <= row->depth; d++) {
        int64_t at = length + d - s->prompt;
        int32_t token = at < TEXT ? s->text[at] : 0;
        if (row->width > 1) {
            (void)rse_tree_add(&row->tree, node, (token + 2) % 100);
        }
        node = rse_tree_add(&row->tree, node, at % 3 == 2 ? (token + 1) % 100 : token);
    }
}

static rse_status spy_propose(rse_drafter *drafter, rse_draft_row *rows, int32_t count, rse_error *err) {
    spy *s = (spy *)drafter;
    for (int32_t i = 0; s->real == NULL && i < count; i++) {
        draft_known(s, &rows[i]);
    }
    rse_status status = s->real != NULL ? s->real->propose(s->real, rows, count, err) : RSE_OK;
    if (s->first.count == 0 && count > 0) {
        s->first = rows[0].tree;
    }
    return status;
}

static rse_status spy_observe(rse_drafter *drafter, const rse_session *session, const float *const *hidden,
                              int32_t count, rse_error *err) {
    rse_drafter *real = ((spy *)drafter)->real;
    return real != NULL ? real->observe(real, session, hidden, count, err) : RSE_OK;
}

enum { PLAIN, KNOWN, BLOCK, KINDS };
static const char *const kinds[] = {"plain", "known text", "the model's block"};

/* Generates `tokens` after a prompt; KNOWN drafts what stands in `out`. The drafts of the first round to *first, if
 * it is not NULL. */
static rse_sched_figures generate(const char *family, int32_t kind, int32_t width, const int32_t *prompt,
                                  int32_t count, int32_t tokens, int32_t *out, rse_tree *first) {
    int32_t known[TEXT];
    memcpy(known, out, (size_t)tokens * sizeof *out);
    rse_engine *engine = open_family(family, (rse_engine_options){.step_tokens = DRAFTS * width + 1,
                                                                  .window = 7,
                                                                  .check = true,
                                                                  .method = RSSM_METHOD_REPLAY});
    rse_sched *sched;
    spy s = {.base = {.name = "spy", .propose = spy_propose, .observe = spy_observe}, .text = known, .prompt = count};
    rse_speculation how = {.drafts = DRAFTS, .width = width};
    OK(rse_sched_create(engine, &sched, &err));
    if (kind == BLOCK) {
        OK(rse_drafter_mtp(engine, &s.real, &err));
        s.base.hidden = s.real->hidden;
    }
    how.drafter = kind != PLAIN ? &s.base : NULL;
    OK(rse_sched_speculate(sched, &how, &err));
    rse_request *request;
    rse_request_desc desc = {.id = 3,
                             .prompt = prompt,
                             .count = count,
                             .max_tokens = tokens,
                             .ignore_end = true,
                             .sampling = {.top_p = 1.0f}};
    OK(rse_sched_add(sched, &desc, &request, &err));
    for (int32_t running = 1; running > 0;) {
        OK(rse_sched_step(sched, &running, &err));
    }
    int64_t made;
    const int32_t *ids = rse_request_tokens(request, &made);
    assert_int_equal(rse_request_state(request), RSE_FINISH_LENGTH);
    assert_int_equal(made, tokens);
    memcpy(out, ids, (size_t)made * sizeof *ids);
    if (first != NULL) {
        *first = s.first;
    }
    rse_sched_figures figures = rse_sched_count(sched);
    rse_request_free(request);
    rse_sched_destroy(sched);
    rse_drafter_destroy(s.real);
    rse_engine_close(engine);
    return figures;
}

/* A draft changes no token, whoever made it and whether or not drafts fork. */
static void test_drafting(void **state) {
    (void)state;
    for (int32_t i = 0; i < FAMILIES; i++) {
        family_golden g = load_golden(families[i]);
        int32_t plain[TEXT] = {0}, drafted[TEXT];
        bool block = rse_safetensors_find(g.files, "mtp_at") != NULL;
        (void)generate(families[i], PLAIN, 1, g.tokens, 20, TEXT, plain, NULL);
        for (int32_t width = 1; width <= 2; width++) {
            for (int32_t kind = KNOWN; kind < (block ? KINDS : BLOCK); kind++) {
                memcpy(drafted, plain, sizeof plain);
                rse_sched_figures f = generate(families[i], kind, width, g.tokens, 20, TEXT, drafted, NULL);
                print_message("%s, %s, width %d: %lld of %lld drafts right\n", families[i], kinds[kind], width,
                              (long long)f.accepted, (long long)f.drafted);
                assert_memory_equal(plain, drafted, sizeof plain);
                assert_true(f.drafted > f.accepted && (kind != KNOWN || f.accepted >= TEXT / 3));
            }
        }
        rse_safetensors_close(g.files);
    }
}

/* The prediction blocks draft what their description says: prompts of many lengths, three drafts after each. */
static void test_prediction(void **state) {
    (void)state;
    int32_t models = 0;
    for (int32_t i = 0; i < FAMILIES; i++) {
        family_golden g = load_golden(families[i]);
        const rse_tensor *at = rse_safetensors_find(g.files, "mtp_at");
        for (int64_t k = 0; at != NULL && k < at->shape[0]; k++) {
            const int32_t *wanted = rse_safetensors_find(g.files, "mtp_drafts")->data;
            wanted += k * (DRAFTS + 1);
            int32_t count = ((const int32_t *)at->data)[k], ids[TEXT] = {0};
            rse_tree tree;
            (void)generate(families[i], BLOCK, 1, g.tokens, count, DRAFTS + 2, ids, &tree);
            assert_int_equal(tree.count, DRAFTS + 1);
            assert_memory_equal(tree.tokens, wanted, (DRAFTS + 1) * sizeof *wanted);
        }
        models += at != NULL;
        rse_safetensors_close(g.files);
    }
    assert_int_equal(models, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_sessions),
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_drafting),
        cmocka_unit_test(test_prediction),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
