/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine against the goldens of the bundled models, and a model's outputs against themselves: however a
 * text is cut into prompts, steps and drafts, whoever else is in the batch.
 */
#include "model_fixture.h"

#ifdef __SANITIZE_ADDRESS__ /* everything is run there, but not all of a long text */
enum { SHARE = 64 };
#else
enum { SHARE = 512 };
#endif
enum { FORKS = 8, SCORED = FORKS * SHARE - 1 };
enum { GREEDY = 256, PROMPT = 64, DECODE_TOKENS = 16 };
static const double logit_limit = 2e-4; /* f32 against the golden */

/* ---- Goldens ---- */

typedef struct hidden_check {
    const golden *g;
    double most;
    int32_t layers;
} hidden_check;

static void see_hidden(void *user, int32_t layer, int64_t tokens, int64_t hidden, const float *x) {
    hidden_check *check = user;
    char name[32];
    snprintf(name, sizeof name, "hidden.%d", layer);
    const float *wanted = golden_data(check->g, name);
    if (wanted != NULL && tokens >= 24) {
        double difference = largest_difference(x, wanted, 24 * hidden);
        check->most = difference > check->most ? difference : check->most;
        check->layers++;
    }
}

static void golden_logits(const char *model, uint64_t isa_mask, int32_t tokens) {
    golden g = golden_open(model);
    hidden_check hidden = {.g = &g};
    rse_engine *engine = engine_open(
        model, (rse_engine_options){.isa_mask = isa_mask, .probe = see_hidden, .probe_user = &hidden});
    rse_session *session = session_open(engine, 0);
    int32_t vocab = vocab_of(engine);
    float *logits = malloc((size_t)tokens * (size_t)vocab * sizeof *logits);
    run_row(session, engine, g.tokens, tokens, true, 0, tokens, logits);
    int32_t compared = 0;
    double most = 0.0;
    for (int32_t i = 0; i < g.rows; i++) {
        if (g.at[i] < tokens) {
            double difference =
                largest_difference(logits + (int64_t)g.at[i] * vocab, g.logits + (int64_t)i * vocab, vocab);
            most = difference > most ? difference : most;
            compared++;
        }
    }
    print_message("%s, %d tokens: logits within %.2g, hidden states within %.2g\n", model, tokens, most,
                  hidden.most);
    assert_within(most, logit_limit, "logits");
    assert_within(hidden.most, logit_limit, "hidden states");
    assert_true(compared >= 6 && hidden.layers >= 5);
    free(logits);
    rse_engine_close(engine);
    rse_safetensors_close(g.files);
}

static void test_logits(void **state) {
    (void)state;
    for (int32_t i = 0; i < MODELS; i++) {
        golden_logits(model_names[i], 0, 512);
        golden_logits(model_names[i], RSSM_ISA_NONE, 64);
    }
}

/* Scores ids [first, first + count) of a sequence by the logits of the ids before each. */
static double score(const golden *g, const float *logits, int32_t vocab, int32_t first, int32_t count) {
    double sum = 0.0;
    for (int32_t i = 0; i < count; i++) {
        sum += rse_nll(logits + (int64_t)i * vocab, vocab, g->tokens[first + i]);
    }
    return sum;
}

/* Sum over the first `tokens`, `piece` at a time. */
static double sum_nll(const char *model, const golden *g, rse_engine_options options, bool prompt,
                      int32_t piece, int32_t tokens) {
    rse_engine *engine = engine_open(model, options);
    rse_session *session = session_open(engine, 0);
    int32_t vocab = vocab_of(engine);
    float *logits = malloc((size_t)piece * (size_t)vocab * sizeof *logits);
    double sum = 0.0;
    for (int32_t at = 0; at < tokens; at += piece) {
        int32_t count = tokens - at < piece ? tokens - at : piece;
        run_row(session, engine, g->tokens + at, count, prompt, RSE_ACCEPT_ALL, count, logits);
        sum += score(g, logits, vocab, at + 1, count);
    }
    free(logits);
    rse_engine_close(engine);
    return sum;
}

/* All tokens conventionally, a token a step, by eight sequences at once: each is forked from one that runs
 * the text as a prompt, where its eighth begins. *prompt is what that one says. */
static double conventional_nll(const char *model, const golden *g, double *prompt) {
    rse_engine *engine =
        engine_open(model, (rse_engine_options){.method = RSSM_METHOD_CONVENTIONAL, .sessions = FORKS + 1});
    int32_t vocab = vocab_of(engine);
    float *logits = malloc(SHARE * (size_t)vocab * sizeof *logits);
    rse_session *whole = session_open(engine, 0);
    rse_row rows[FORKS];
    *prompt = 0.0;
    for (int32_t i = 0; i < FORKS; i++) {
        rows[i] =
            (rse_row){.session = session_open(engine, 0), .count = 1, .accepted = RSE_ACCEPT_ALL, .outputs = 1};
        OK(rse_session_copy(rows[i].session, whole, (uint64_t)i, &err));
        int32_t count = i == FORKS - 1 ? SHARE - 1 : SHARE;
        run_row(whole, engine, g->tokens + SHARE * i, count, true, RSE_ACCEPT_ALL, count, logits);
        *prompt += score(g, logits, vocab, SHARE * i + 1, count);
    }
    double sum = 0.0;
    for (int32_t t = 0; t < SHARE; t++) {
        int32_t count = t == SHARE - 1 ? FORKS - 1 : FORKS; /* nothing follows the very last token */
        for (int32_t i = 0; i < count; i++) {
            rows[i].tokens = g->tokens + SHARE * i + t;
        }
        OK(rse_engine_step(engine, rows, count, logits, NULL, &err));
        for (int32_t i = 0; i < count; i++) {
            sum += score(g, logits + (int64_t)i * vocab, vocab, SHARE * i + t + 1, 1);
        }
    }
    free(logits);
    rse_engine_close(engine);
    return sum;
}

static void test_nll(void **state) {
    (void)state;
    for (int32_t i = 0; i < MODELS; i++) {
        golden g = golden_open(model_names[i]);
        double wanted = 0.0;
        for (int32_t t = 0; t < SCORED; t++) {
            wanted += (double)g.nll[t] / SCORED;
        }
        double prompt;
        double conventional = conventional_nll(model_names[i], &g, &prompt) / SCORED;
        double replay = sum_nll(model_names[i], &g, (rse_engine_options){.step_tokens = DECODE_TOKENS}, false,
                                DECODE_TOKENS, SCORED) /
                        SCORED;
        prompt /= SCORED;
        print_message("%s: nll %.7f; prompt %+.1e, replay %+.1e, conventional %+.1e\n", model_names[i], wanted,
                      prompt - wanted, replay - wanted, conventional - wanted);
        assert_within(fabs(prompt - wanted), 1e-4, "nll of a prompt");
        assert_within(fabs(replay - wanted), 1e-4, "nll of replay");
        assert_within(fabs(conventional - wanted), 1e-4, "nll of conventional decoding");
        rse_safetensors_close(g.files);
    }
}

static void test_greedy(void **state) {
    (void)state;
    static const rse_engine_options ways[] = {
        {.method = RSSM_METHOD_REPLAY, .check = true},
        {.method = RSSM_METHOD_CONVENTIONAL},
    };
    for (int32_t i = 0; i < MODELS; i++) {
        golden g = golden_open(model_names[i]);
        for (size_t way = 0; way < sizeof ways / sizeof ways[0]; way++) {
            rse_engine *engine = engine_open(model_names[i], ways[way]);
            rse_session *session = session_open(engine, 5);
            int32_t vocab = vocab_of(engine);
            float *logits = malloc((size_t)vocab * sizeof *logits);
            prompt_row(session, engine, g.greedy, PROMPT, logits);
            for (int32_t t = PROMPT; t < GREEDY; t++) {
                assert_int_equal(argmax(logits, vocab), g.greedy[t]);
                decode_row(session, engine, g.greedy[t], logits);
            }
            OK(rse_session_commit(session, RSE_ACCEPT_ALL, &err));
            OK(rse_session_check(session, &err));
            if (ways[way].check) {
                rse_engine_info info;
                rse_engine_describe(engine, &info);
                assert_true(rse_engine_checked(engine) >= info.layers_recurrent * (GREEDY - PROMPT) / 16);
            }
            assert_memory_equal(rse_session_ids(session), g.greedy, GREEDY * sizeof(int32_t));
            free(logits);
            rse_engine_close(engine);
        }
        rse_safetensors_close(g.files);
    }
}

/* bf16 has 8 bits: close on the average, and visibly different. */
static void test_bf16(void **state) {
    (void)state;
    enum { TOKENS = 256 };
    for (int32_t i = 0; i < MODELS; i++) {
        golden g = golden_open(model_names[i]);
        rse_engine_options bf16 = {.io_dtype = RSSM_DTYPE_BF16, .step_tokens = DECODE_TOKENS};
        double wanted = 0.0;
        for (int32_t t = 0; t < TOKENS; t++) {
            wanted += (double)g.nll[t] / TOKENS;
        }
        double prompt = sum_nll(model_names[i], &g, bf16, true, 128, TOKENS) / TOKENS;
        double replay = sum_nll(model_names[i], &g, bf16, false, DECODE_TOKENS, TOKENS) / TOKENS;
        print_message("%s: bf16 nll of a start %.5f; prompt %+.1e, replay %+.1e\n", model_names[i], wanted,
                      prompt - wanted, replay - wanted);
        assert_within(fabs(prompt - wanted), 0.02, "bf16 nll of a prompt");
        assert_within(fabs(replay - wanted), 0.02, "bf16 nll of replay");
        assert_true(fabs(prompt - wanted) > 1e-6);
        rse_safetensors_close(g.files);
    }
}

/* ---- Refusals ---- */

static void test_bad_rows(void **state) {
    (void)state;
    golden g = golden_open("tiny-gdn");
    rse_engine *engine =
        engine_open("tiny-gdn", (rse_engine_options){.sessions = 2, .step_tokens = 2, .batch_tokens = 8});
    int32_t vocab = vocab_of(engine);
    rse_session *s = session_open(engine, 0);
    float *logits = malloc(2 * (size_t)vocab * sizeof *logits);
    prompt_row(s, engine, g.tokens, 5, NULL);
    decode_row(s, engine, g.tokens[5], logits);
    int32_t beyond = vocab;
    int32_t negative = -1;
    const rse_row bad[] = {
        {s, &beyond, 1, 1, false, 1, NULL},   {s, &negative, 1, 1, false, 1, NULL},
        {s, g.tokens, 3, 1, false, 1, NULL},  {s, g.tokens, 1, 2, false, 1, NULL},
        {s, g.tokens, 1, -2, false, 1, NULL}, {s, g.tokens, 1, 1, false, 2, NULL},
        {s, g.tokens, -1, 1, false, 0, NULL}, {s, g.tokens, 9, 1, true, 0, NULL},
        {s, NULL, 1, 1, false, 0, NULL},      {NULL, g.tokens, 1, 1, false, 0, NULL},
    };
    static const char *const words[] = {"4096",           "-1",           "3 tokens",  "accepted is 2",
                                        "accepted is -2", "outputs is 2", "-1 tokens", "9 tokens",
                                        "no array",       "session"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        REFUSED(RSE_ERROR_USAGE, words[i], rse_engine_step(engine, &bad[i], 1, logits, NULL, &err));
    }
    rse_row twice[2] = {{s, g.tokens, 1, 1, false, 0, NULL}, {s, g.tokens, 1, 1, false, 0, NULL}};
    REFUSED(RSE_ERROR_USAGE, "same session", rse_engine_step(engine, twice, 2, logits, NULL, &err));
    REFUSED(RSE_ERROR_USAGE, "0 rows", rse_engine_step(engine, twice, 0, logits, NULL, &err));
    REFUSED(RSE_ERROR_USAGE, "3 rows", rse_engine_step(engine, twice, 3, logits, NULL, &err));
    /* None of that has changed anything. */
    assert_int_equal(rse_session_position(s), 5);
    assert_int_equal(rse_session_pending(s), 1);
    decode_row(s, engine, g.tokens[6], logits);
    rse_session *fresh = session_open(engine, 0);
    prompt_row(fresh, engine, g.tokens, 5, NULL);
    decode_row(fresh, engine, g.tokens[5], NULL);
    decode_row(fresh, engine, g.tokens[6], logits + vocab);
    assert_memory_equal(logits, logits + vocab, (size_t)vocab * sizeof *logits);
    free(logits);
    rse_engine_close(engine);
    rse_safetensors_close(g.files);
}

static void refused_options(const char *word, rse_engine_options options) {
    rse_engine *engine;
    REFUSED(RSE_ERROR_USAGE, word, rse_engine_open(MODEL_DIR("tiny-gdn"), &options, &engine, &err));
    assert_null(engine);
}

static void test_bad_options(void **state) {
    (void)state;
    refused_options("window is 65", (rse_engine_options){.window = 65});
    refused_options("window is -1", (rse_engine_options){.window = -1});
    refused_options("step_tokens is 17", (rse_engine_options){.step_tokens = 17});
    refused_options("conventional", (rse_engine_options){.step_tokens = 2, .method = RSSM_METHOD_CONVENTIONAL});
    refused_options("method is 9", (rse_engine_options){.method = 9});
    refused_options("threads is -1", (rse_engine_options){.threads = -1});
    refused_options("sessions is -1", (rse_engine_options){.sessions = -1});
    refused_options("io format", (rse_engine_options){.io_dtype = RSSM_DTYPE_F16});
    refused_options("kv_bytes is 10", (rse_engine_options){.kv_bytes = 10});
}

static void refused_variant(rse_status status, const char *model, const char *from, const char *to,
                            const char *word) {
    char path[64];
    rse_engine *engine;
    variant_make(model, from, to, path);
    REFUSED(status, word, rse_engine_open(path, NULL, &engine, &err));
    assert_null(engine);
    variant_remove(path);
}

static void test_bad_models(void **state) {
    (void)state;
    rse_engine *engine;
    REFUSED(RSE_ERROR_IO, "/nowhere", rse_engine_open("/nowhere", NULL, &engine, &err));
    refused_variant(RSE_ERROR_UNSUPPORTED, "tiny-gdn", "\"qwen3_5_text\"", "\"qwen9\"", "qwen9");
    refused_variant(RSE_ERROR_FORMAT, "tiny-gdn", "\"vocab_size\": 4096", "\"vocab_size\": 4000",
                    "embed_tokens");
    refused_variant(RSE_ERROR_FORMAT, "tiny-gdn", "\"intermediate_size\": 640", "\"intermediate_size\": 641",
                    "640");
    refused_variant(RSE_ERROR_FORMAT, "tiny-mamba2", "\"n_groups\": 2", "\"n_groups\": 4", "in_proj");
    refused_variant(RSE_ERROR_FORMAT, "tiny-mamba2", "\"tie_word_embeddings\": false",
                    "\"tie_word_embeddings\": 1", "tie_word_embeddings");
    /* One attention layer less: its tensors are left over, the recurrent ones are missing. */
    refused_variant(RSE_ERROR_FORMAT, "tiny-gdn", "\"full_attention\"", "\"linear_attention\"", "layers.3");
}

static void test_info(void **state) {
    (void)state;
    rse_engine *engine = engine_open("tiny-gdn", (rse_engine_options){0});
    rse_engine_info info;
    rse_engine_describe(engine, &info);
    assert_int_equal(info.layers, 8);
    assert_int_equal(info.layers_recurrent, 6);
    assert_int_equal(info.layers_attention, 2);
    assert_int_equal(info.mtp_blocks, 1);
    assert_int_equal(info.parameters / 100000, 86);
    assert_int_equal(info.checkpoint_bytes, 6 * 4 * 128 * 128 * 4);
    assert_string_equal(rse_engine_layer(engine, 3), "attention+mlp");
    assert_null(rse_engine_layer(engine, 8));
    assert_true(rse_engine_is_end(engine, 2));
    rse_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits), cmocka_unit_test(test_nll),        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_bf16),   cmocka_unit_test(test_bad_rows),   cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_info),   cmocka_unit_test(test_bad_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
