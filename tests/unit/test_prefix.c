/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The prefix cache and parking: what begins with recalled tokens, or comes back from memory, goes on bit for bit as
 * what ran them, in every format of states; budgets hold, the least recently used goes first, pages are given back.
 */
#include "model_fixture.h"
#include "sched/prefix.h"

enum { VOCAB = 4096, BEFORE = 45, AFTER = 20, BUDGET = 64 << 20 };

static const rse_engine_options formats[] = {
    {.io_dtype = RSSM_DTYPE_F32},
    {.io_dtype = RSSM_DTYPE_BF16, .step_tokens = 4},
    {.state = {.checkpoint_dtype = RSSM_DTYPE_F16, .read_copy_dtype = RSSM_DTYPE_NVFP4}},
    {.state = {.checkpoint_dtype = RSSM_DTYPE_BF16}, .window = 5},
    {.method = RSSM_METHOD_CONVENTIONAL},
    {.check = true},
};

static rse_engine *open_one(const char *model, const rse_engine_options *format, int64_t budget) {
    rse_engine_options options = *format;
    options.sessions = 3;
    options.prefix_bytes = budget;
    return engine_open(model, options);
}

/* Some tokens as a prompt, then some one by one. */
static void feed(rse_session *session, rse_engine *engine, const int32_t *tokens) {
    prompt_row(session, engine, tokens, BEFORE - 7, NULL);
    for (int32_t i = BEFORE - 7; i < BEFORE; i++) {
        decode_row(session, engine, tokens[i], NULL);
    }
}

static void go_on(rse_session *session, rse_engine *engine, const int32_t *tokens, float *logits) {
    for (int32_t i = 0; i < AFTER; i++) {
        decode_row(session, engine, tokens[BEFORE + i], logits + (size_t)i * VOCAB);
    }
}

static void recalled_and_parked_go_on_bit_for_bit(void **state) {
    (void)state;
    float *expected = malloc(sizeof(float) * AFTER * VOCAB), *logits = malloc(sizeof(float) * AFTER * VOCAB);
    for (size_t f = 0; f < MODELS * sizeof formats / sizeof formats[0]; f++) {
        const char *model = model_names[f % MODELS];
        golden g = golden_open(model);
        rse_engine *engine = open_one(model, &formats[f / MODELS], BUDGET);
        rse_session *a = session_open(engine, 3), *b = session_open(engine, 3), *c = session_open(engine, 5);
        feed(a, engine, g.tokens);
        OK(rse_session_store(a, &err));
        assert_int_equal(rse_session_position(a), BEFORE);
        OK(rse_session_recall(b, g.tokens, BEFORE - 1, &err)); /* the entry is longer */
        assert_int_equal(rse_session_position(b), 0);
        OK(rse_session_recall(b, g.tokens, 200, &err));
        assert_int_equal(rse_session_position(b), BEFORE);
        go_on(a, engine, g.tokens, expected);
        go_on(b, engine, g.tokens, logits);
        assert_memory_equal(logits, expected, sizeof(float) * AFTER * VOCAB);
        OK(rse_session_recall(c, g.tokens, 200, &err)); /* another id: its flushes are at other places, no more */
        go_on(c, engine, g.tokens, logits);
        assert_within(largest_difference(logits, expected, (int64_t)AFTER * VOCAB),
                      f / MODELS == 1 || f / MODELS == 2 || f / MODELS == 3 ? 1.0 : 1e-4, "logits under another id");
        OK(rse_session_reset(b, 3, &err));
        feed(b, engine, g.tokens);
        OK(rse_session_park(b, &err));
        rse_session *d = session_open(engine, 9); /* takes its slot */
        prompt_row(d, engine, g.tokens + 100, 50, NULL);
        rse_session_close(c);
        OK(rse_session_unpark(b, &err));
        go_on(b, engine, g.tokens, logits);
        assert_memory_equal(logits, expected, sizeof(float) * AFTER * VOCAB);
        rse_engine_close(engine);
        rse_safetensors_close(g.files);
    }
    free(expected);
    free(logits);
}

static void the_budget_holds(void **state) {
    (void)state;
    golden g = golden_open("tiny-gdn");
    rse_engine *engine = open_one("tiny-gdn", &formats[0], BUDGET);
    rse_session *a = session_open(engine, 0);
    prompt_row(a, engine, g.tokens, 16, NULL);
    OK(rse_session_store(a, &err));
    int64_t one = rse_engine_prefixes(engine).bytes;
    rse_engine_close(engine);
    engine = open_one("tiny-gdn", &formats[0], 2 * one + one / 2);
    a = session_open(engine, 0);
    int64_t pages = rse_kv_pool_free_pages(engine->kv);
    for (int32_t i = 0; i < 3; i++) { /* the second entry is the one that was not used since */
        OK(rse_session_reset(a, 0, &err));
        prompt_row(a, engine, g.tokens + 50 * i, 16, NULL);
        OK(rse_session_store(a, &err));
        assert_int_equal(rse_prefixes_match(engine->prefixes, g.tokens, 100), 16);
        rse_prefix_figures figures = rse_engine_prefixes(engine);
        assert_true(figures.bytes <= 2 * one + one / 2);
        assert_int_equal(figures.entries, i == 0 ? 1 : 2);
    }
    assert_int_equal(rse_prefixes_match(engine->prefixes, g.tokens + 50, 100), 0);
    assert_int_equal(rse_prefixes_match(engine->prefixes, g.tokens + 100, 100), 16);
    rse_session_close(a);
    assert_int_equal(rse_kv_pool_free_pages(engine->kv), pages - 2);
    rse_prefixes_reclaim(engine->prefixes, pages);
    assert_int_equal(rse_kv_pool_free_pages(engine->kv), pages);
    assert_int_equal(rse_engine_prefixes(engine).bytes, 0);
    rse_engine_close(engine);
    engine = open_one("tiny-gdn", &formats[0], one - 1); /* it is beyond the whole budget */
    a = session_open(engine, 0);
    prompt_row(a, engine, g.tokens, 16, NULL);
    OK(rse_session_store(a, &err));
    assert_int_equal(rse_engine_prefixes(engine).stored, 0);
    rse_engine_close(engine);
    rse_safetensors_close(g.files);
}

static void refusals(void **state) {
    (void)state;
    golden g = golden_open("tiny-gdn");
    rse_engine *engine = NULL;
    REFUSED(RSE_ERROR_USAGE, "prefix_block is 40; it must be a multiple of 16",
            rse_engine_open(MODEL_DIR("tiny-gdn"), &(rse_engine_options){.prefix_block = 40}, &engine, &err));
    REFUSED(RSE_ERROR_USAGE, "snapshot",
            rse_engine_open(MODEL_DIR("tiny-gdn"),
                            &(rse_engine_options){.prefix_bytes = 9, .method = RSE_METHOD_SNAPSHOT}, &engine, &err));
    engine = engine_open("tiny-gdn", (rse_engine_options){.sessions = 1, .prefix_bytes = BUDGET});
    rse_session *a = session_open(engine, 0), *b;
    REFUSED(RSE_ERROR_USAGE, "not parked", rse_session_unpark(a, &err));
    prompt_row(a, engine, g.tokens, 20, NULL);
    REFUSED(RSE_ERROR_USAGE, "20 tokens", rse_session_recall(a, g.tokens, 100, &err));
    OK(rse_session_park(a, &err));
    assert_int_equal(rse_session_position(a), 20);
    rse_row row = {.session = a, .tokens = g.tokens, .count = 1};
    REFUSED(RSE_ERROR_USAGE, "parked at position 20", rse_engine_step(engine, &row, 1, NULL, NULL, &err));
    REFUSED(RSE_ERROR_USAGE, "parked", rse_session_park(a, &err));
    REFUSED(RSE_ERROR_USAGE, "parked", rse_session_store(a, &err));
    REFUSED(RSE_ERROR_USAGE, "parked", rse_session_rollback(a, 3, &err));
    REFUSED(RSE_ERROR_USAGE, "parked", rse_session_save(a, &(rse_session_tail){0}, "/tmp/never", &err));
    b = session_open(engine, 0);
    REFUSED(RSE_ERROR_MEMORY, "all 1 sessions", rse_session_unpark(a, &err));
    REFUSED(RSE_ERROR_MEMORY, "all 1 sessions", rse_session_reset(a, 0, &err));
    assert_true(rse_session_parked(a));
    rse_session_close(b);
    OK(rse_session_reset(a, 0, &err)); /* what was parked is gone */
    assert_int_equal(rse_session_position(a), 0);
    rse_engine_close(engine);
    engine = engine_open("tiny-gdn", (rse_engine_options){.method = RSE_METHOD_SNAPSHOT});
    REFUSED(RSE_ERROR_UNSUPPORTED, "snapshot", rse_session_park(session_open(engine, 0), &err));
    rse_engine_close(engine);
    rse_safetensors_close(g.files);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recalled_and_parked_go_on_bit_for_bit),
        cmocka_unit_test(the_budget_holds),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
