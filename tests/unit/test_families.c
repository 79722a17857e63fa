/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every model family against its golden: a tiny random checkpoint run by transformers. Logits of prompts and of
 * decoding by every method, the recurrent state at the end, and what sessions can do: all of it for all
 * families alike.
 */
#include "model_fixture.h"
#include "sched/internal.h"

#include <unistd.h>

enum { LENGTH = 130, LOGIT_ROWS = 6, STEP = 5 };
static const double limit = 2e-4; /* f32 against the golden */

/* Three hold packed weights, and their goldens are of what those stand for. */
static const char *const families[] = {
    "qwen3_5_moe",        "qwen3_next",    "nemotron_h_moe", "nemotron_h_latent", "mamba2",
    "granite_moe",        "granite_dense", "kimi_linear",    "nemotron_h_nvfp4",  "qwen3_5_moe_fp8",
    "kimi_linear_packed", "glm5_next",     "kimi_k3"};
enum { FAMILIES = sizeof families / sizeof families[0] };

typedef struct family_golden {
    rse_safetensors *files;
    const int32_t *tokens; /* [LENGTH] */
    const int32_t *at;     /* [LOGIT_ROWS] */
    const float *logits;   /* [LOGIT_ROWS][vocab] */
    const rse_tensor *state;
} family_golden;

static void path_of(const char *family, const char *file, char path[512]) {
    snprintf(path, 512, RSSM_SOURCE_DIR "/tests/golden/families/%s/%s", family, file);
}

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_sessions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
