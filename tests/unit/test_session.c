/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions: a sequence says the same however it is cut into prompts, steps and drafts, whoever else is in the
 * batch, after going back, copied; and what happens when slots or pages run out, or a state is damaged.
 */
#include "model_fixture.h"
#include "sched/internal.h"

/* f32 against f32, with other orders of summation in the recurrence only. */
static const double split_limit = 5e-5;

/* Logits after `tokens` ids of which the first `prompt` are run in pieces of `piece` and the rest decoded. */
static void run_split(rse_engine *engine, const int32_t *ids, int32_t tokens, int32_t prompt, int32_t piece,
                      float *logits) {
    rse_session *session = session_open(engine, 3);
    for (int32_t at = 0; at < prompt; at += piece) {
        prompt_row(session, engine, ids + at, prompt - at < piece ? prompt - at : piece, logits);
    }
    for (int32_t at = prompt; at < tokens; at++) {
        decode_row(session, engine, ids[at], logits);
    }
    rse_session_close(session);
}

static void test_splits(void **state) {
    (void)state;
    static const int32_t splits[][2] = {{80, 1},  {80, 7}, {80, 33}, {79, 79},
                                        {64, 64}, {17, 5}, {1, 1},   {0, 1}};
    for (int32_t i = 0; i < MODELS; i++) {
        golden g = golden_open(model_names[i]);
        for (int32_t method = RSSM_METHOD_REPLAY; method <= RSSM_METHOD_CONVENTIONAL; method++) {
            rse_engine *engine = engine_open(model_names[i], (rse_engine_options){.method = method});
            int32_t vocab = vocab_of(engine);
            float *whole = malloc(2 * (size_t)vocab * sizeof *whole);
            float *parts = whole + vocab;
            run_split(engine, g.tokens, 80, 80, 80, whole);
            double most = 0.0;
            for (size_t s = 0; s < sizeof splits / sizeof splits[0]; s++) {
                run_split(engine, g.tokens, 80, splits[s][0], splits[s][1], parts);
                double difference = largest_difference(whole, parts, vocab);
                most = difference > most ? difference : most;
            }
            print_message("%s: splits within %.2g\n", model_names[i], most);
            assert_within(most, split_limit, "splits");
            free(whole);
            rse_engine_close(engine);
        }
        rse_safetensors_close(g.files);
    }
}

/* A row's outputs are the same bits alone and among seven others, whatever they do. */
static void test_batch(void **state) {
    (void)state;
    enum { ROWS = 8, STEPS = 24 };
    for (int32_t m = 0; m < MODELS; m++) {
        golden g = golden_open(model_names[m]);
        rse_engine *engine =
            engine_open(model_names[m], (rse_engine_options){.sessions = ROWS + 1, .threads = 2});
        int32_t vocab = vocab_of(engine);
        float *alone = malloc((1 + ROWS) * (size_t)vocab * sizeof *alone);
        float *together = alone + vocab;
        rse_session *solo = session_open(engine, 11);
        prompt_row(solo, engine, g.tokens, 20, alone);
        rse_row rows[ROWS];
        for (int32_t i = 0; i < ROWS; i++) { /* row 5 is the one that is watched */
            uint64_t id = i == 5 ? 11 : (uint64_t)i;
            rows[i] = (rse_row){session_open(engine, id),
                                g.tokens + (i == 5 ? 0 : 100 * i),
                                i == 5 ? 20 : 1 + 9 * i,
                                RSE_ACCEPT_ALL,
                                true,
                                1,
                                NULL};
        }
        OK(rse_engine_step(engine, rows, ROWS, together, NULL, &err));
        assert_memory_equal(together + 5 * vocab, alone, (size_t)vocab * sizeof *alone);
        for (int32_t t = 0; t < STEPS; t++) {
            decode_row(solo, engine, g.tokens[20 + t], alone);
            for (int32_t i = 0; i < ROWS; i++) { /* others: prompts now and then, and pauses */
                rows[i].prompt = i != 5 && (t + i) % 5 == 0;
                rows[i].tokens = i == 5 ? g.tokens + 20 + t : g.tokens + 1000 + 10 * t + i;
                rows[i].count = rows[i].prompt ? 3 : i == 2 && t % 3 == 0 ? 0 : 1;
                rows[i].outputs = rows[i].count > 0;
            }
            OK(rse_engine_step(engine, rows, ROWS, together, NULL, &err));
            int32_t index = 0;
            for (int32_t i = 0; i < 5; i++) {
                index += rows[i].outputs;
            }
            assert_memory_equal(together + index * vocab, alone, (size_t)vocab * sizeof *alone);
        }
        free(alone);
        rse_engine_close(engine);
        rse_safetensors_close(g.files);
    }
}

/* Drafts that are dropped leave no trace; drafts that are kept are worth what single steps are. */
static void test_drafts(void **state) {
    (void)state;
    for (int32_t m = 0; m < MODELS; m++) {
        golden g = golden_open(model_names[m]);
        rse_engine *engine =
            engine_open(model_names[m], (rse_engine_options){.sessions = 2, .step_tokens = 5, .check = true});
        int32_t vocab = vocab_of(engine);
        float *plain = malloc(6 * (size_t)vocab * sizeof *plain);
        float *drafted = plain + vocab;
        rse_session *a = session_open(engine, 2);
        rse_session *b = session_open(engine, 2);
        prompt_row(a, engine, g.tokens, 30, NULL);
        prompt_row(b, engine, g.tokens, 30, NULL);
        int32_t draft[5];
        int32_t accepted = RSE_ACCEPT_ALL; /* of the prompt */
        int32_t at = 30;
        for (int32_t step = 0; step < 20; step++) {
            int32_t keep = 1 + step % 4;
            for (int32_t i = 0; i < 5; i++) { /* the first `keep` are right, the others are not */
                draft[i] = i < keep ? g.tokens[at + i] : (g.tokens[at + i] + 1) % vocab;
            }
            run_row(b, engine, draft, 5, false, accepted, 5, drafted);
            accepted = keep;
            for (int32_t i = 0; i < keep; i++, at++) {
                decode_row(a, engine, g.tokens[at], plain);
                assert_within(largest_difference(plain, drafted + i * vocab, vocab), split_limit, "draft");
            }
        }
        OK(rse_session_commit(a, RSE_ACCEPT_ALL, &err));
        OK(rse_session_commit(b, accepted, &err));
        assert_int_equal(rse_session_position(a), at);
        assert_int_equal(rse_session_position(b), at);
        OK(rse_session_check(a, &err));
        OK(rse_session_check(b, &err));
        /* Both are flushed now, so what they say of the next token must be equal but for keys and values, which
         * are: every token's own. */
        decode_row(a, engine, g.tokens[at], plain);
        decode_row(b, engine, g.tokens[at], drafted);
        assert_within(largest_difference(plain, drafted, vocab), split_limit, "after drafts");
        free(plain);
        rse_engine_close(engine);
        rse_safetensors_close(g.files);
    }
}

static void test_dropped_drafts(void **state) {
    (void)state;
    golden g = golden_open("tiny-gdn");
    rse_engine *engine = engine_open("tiny-gdn", (rse_engine_options){.sessions = 2, .step_tokens = 4});
    int32_t vocab = vocab_of(engine);
    float *plain = malloc(2 * (size_t)vocab * sizeof *plain);
    float *other = plain + vocab;
    rse_session *a = session_open(engine, 0);
    rse_session *b = session_open(engine, 0);
    prompt_row(a, engine, g.tokens, 30, NULL);
    prompt_row(b, engine, g.tokens, 30, NULL);
    for (int32_t t = 30; t < 60; t++) {
        run_row(a, engine, g.tokens + t, 1, false, t == 30 ? RSE_ACCEPT_ALL : 1, 1, plain);
        run_row(b, engine, g.tokens + 500 + t, 4, false, t == 30 ? RSE_ACCEPT_ALL : 1, 0, NULL);
        run_row(b, engine, g.tokens + t, 1, false, 0, 1, other);
        assert_memory_equal(plain, other, (size_t)vocab * sizeof *plain);
    }
    free(plain);
    rse_engine_close(engine);
    rse_safetensors_close(g.files);
}

/* Going back over drafts, steps and a flush that was not one yet, and on again. */
static void test_rollback(void **state) {
    (void)state;
    golden g = golden_open("tiny-mamba2");
    rse_engine *engine =
        engine_open("tiny-mamba2", (rse_engine_options){.sessions = 2, .window = 32, .reach = 8});
    int32_t vocab = vocab_of(engine);
    float *logits = malloc(2 * (size_t)vocab * sizeof *logits);
    rse_session *a = session_open(engine, 0);
    rse_session *b = session_open(engine, 0);
    prompt_row(a, engine, g.tokens, 33, NULL);
    prompt_row(b, engine, g.tokens, 33, NULL);
    for (int32_t t = 33; t < 40; t++) {
        decode_row(a, engine, g.tokens[t], NULL);
        decode_row(b, engine, g.tokens[t], NULL);
    }
    for (int32_t t = 40; t < 45; t++) {
        decode_row(b, engine, g.tokens[500 + t], NULL); /* a wrong path */
    }
    REFUSED(RSE_ERROR_USAGE, "45", rse_session_rollback(b, 45, &err));
    REFUSED(RSE_ERROR_LIBRARY, "20", rse_session_rollback(b, 20, &err));
    assert_int_equal(rse_session_position(b), 44);
    OK(rse_session_rollback(b, 40, &err));
    assert_int_equal(rse_session_position(b), 40);
    for (int32_t t = 40; t < 70; t++) {
        decode_row(a, engine, g.tokens[t], logits);
        decode_row(b, engine, g.tokens[t], logits + vocab);
        assert_memory_equal(logits, logits + vocab, (size_t)vocab * sizeof *logits);
    }
    free(logits);
    rse_engine_close(engine);
    rse_safetensors_close(g.files);
}

/* A copy goes its own way; with the same tokens and id it is the same bits. */
static void test_copy(void **state) {
    (void)state;
    golden g = golden_open("tiny-gdn");
    rse_engine *engine = engine_open("tiny-gdn", (rse_engine_options){.sessions = 3, .check = true});
    int32_t vocab = vocab_of(engine);
    float *logits = malloc(3 * (size_t)vocab * sizeof *logits);
    rse_session *a = session_open(engine, 7);
    rse_session *same = session_open(engine, 1);
    rse_session *other = session_open(engine, 2);
    prompt_row(a, engine, g.tokens, 21, NULL);
    decode_row(a, engine, g.tokens[21], NULL);
    OK(rse_session_commit(a, RSE_ACCEPT_ALL, &err));
    prompt_row(other, engine, g.tokens + 200, 50, NULL); /* what a copy replaces */
    OK(rse_session_copy(same, a, 7, &err));
    OK(rse_session_copy(other, a, 9, &err));
    assert_int_equal(rse_session_position(other), 22);
    assert_memory_equal(rse_session_ids(other), g.tokens, 22 * sizeof(int32_t));
    for (int32_t t = 22; t < 50; t++) {
        decode_row(a, engine, g.tokens[t], logits);
        decode_row(same, engine, g.tokens[t], logits + vocab);
        decode_row(other, engine, g.tokens[300 + t], logits + 2 * vocab);
        assert_memory_equal(logits, logits + vocab, (size_t)vocab * sizeof *logits);
        assert_memory_not_equal(logits, logits + 2 * vocab, (size_t)vocab * sizeof *logits);
    }
    REFUSED(RSE_ERROR_USAGE, "another", rse_session_copy(a, a, 0, &err));
    free(logits);
    rse_engine_close(engine);
    rse_safetensors_close(g.files);
}

static void test_slots(void **state) {
    (void)state;
    golden g = golden_open("tiny-gdn");
    rse_engine *engine = engine_open("tiny-gdn", (rse_engine_options){.sessions = 2});
    int32_t vocab = vocab_of(engine);
    float *logits = malloc(2 * (size_t)vocab * sizeof *logits);
    rse_session *a = session_open(engine, 0);
    rse_session *b = session_open(engine, 1);
    rse_session *none;
    REFUSED(RSE_ERROR_MEMORY, "all 2 sessions", rse_session_open(engine, 2, &none, &err));
    assert_null(none);
    prompt_row(a, engine, g.tokens, 10, logits);
    prompt_row(b, engine, g.tokens + 50, 10, NULL);
    decode_row(b, engine, g.tokens[60], NULL); /* closed with a token pending */
    rse_session_close(b);
    b = session_open(engine, 0);
    assert_int_equal(rse_session_position(b), 0);
    prompt_row(b, engine, g.tokens, 10, logits + vocab); /* a used slot is as good as a fresh one */
    assert_memory_equal(logits, logits + vocab, (size_t)vocab * sizeof *logits);
    decode_row(b, engine, g.tokens[11], NULL);
    OK(rse_session_reset(b, 0, &err)); /* so is a reset one */
    assert_int_equal(rse_session_pending(b), 0);
    prompt_row(b, engine, g.tokens, 10, logits + vocab);
    assert_memory_equal(logits, logits + vocab, (size_t)vocab * sizeof *logits);
    free(logits);
    rse_engine_close(engine); /* closes both */
    rse_safetensors_close(g.files);
}

/* Six pages of 16 tokens, 2 KiB each token. */
static void test_pages(void **state) {
    (void)state;
    golden g = golden_open("tiny-gdn");
    rse_engine *engine =
        engine_open("tiny-gdn", (rse_engine_options){.sessions = 2, .kv_bytes = 6 * 16 * 2048});
    rse_session *a = session_open(engine, 0);
    rse_session *b = session_open(engine, 1);
    prompt_row(a, engine, g.tokens, 64, NULL);
    prompt_row(b, engine, g.tokens, 30, NULL);
    rse_row rows[2] = {{a, g.tokens, 1, RSE_ACCEPT_ALL, false, 0, NULL},
                       {b, g.tokens, 3, RSE_ACCEPT_ALL, true, 0, NULL}};
    REFUSED(RSE_ERROR_MEMORY, "page", rse_engine_step(engine, rows, 2, NULL, NULL, &err));
    REFUSED(RSE_ERROR_MEMORY, "page", rse_session_reserve(b, 3, &err));
    assert_int_equal(rse_session_pending(b), 30); /* nothing has changed */
    rows[1].count = 2;
    REFUSED(RSE_ERROR_MEMORY, "page", rse_engine_step(engine, rows, 2, NULL, NULL, &err));
    OK(rse_engine_step(engine, rows + 1, 1, NULL, NULL, &err));
    rse_session_close(b); /* makes room */
    OK(rse_engine_step(engine, rows, 1, NULL, NULL, &err));
    rse_engine_close(engine);
    rse_safetensors_close(g.files);
}

/* A damaged checkpoint: the check must find it at the next flush, and say where. (A single bit would not do: a
 * state forgets, and rounding may swallow what is left of it.) */
static void test_check_finds(void **state) {
    (void)state;
    for (int32_t m = 0; m < MODELS; m++) {
        golden g = golden_open(model_names[m]);
        rse_engine *engine = engine_open(model_names[m], (rse_engine_options){.sessions = 2, .check = true});
        rse_session *a = session_open(engine, 0);
        rse_session *b = session_open(engine, 1);
        prompt_row(a, engine, g.tokens, 20, NULL);
        prompt_row(b, engine, g.tokens, 20, NULL);
        decode_row(a, engine, g.tokens[20], NULL);
        decode_row(b, engine, g.tokens[20], NULL);
        const rssm_layer_spec *spec = &engine->model->spec;
        int32_t layer = engine->model->recurrent - 2;
        float *values = rse_shadow_checkpoint(engine->shadow, layer, 1);
        for (int32_t i = 0; i < spec->value_heads * spec->d_v * spec->d_k; i++) {
            values[i] = -values[i];
        }
        rse_error error = {0};
        rse_status status = RSE_OK;
        for (int32_t t = 21; t < 60 && status == RSE_OK; t++) {
            rse_row rows[2] = {{a, g.tokens + t, 1, RSE_ACCEPT_ALL, false, 0, NULL},
                               {b, g.tokens + t, 1, RSE_ACCEPT_ALL, false, 0, NULL}};
            status = rse_engine_step(engine, rows, 2, NULL, NULL, &error);
        }
        assert_int_equal(status, RSE_ERROR_MISMATCH);
        char place[64];
        snprintf(place, sizeof place, "layer %d of session 1 at position 33", layer);
        assert_non_null(strstr(error.text, place));
        rse_row row = {b, g.tokens, 1, RSE_ACCEPT_ALL, false, 0, NULL};
        REFUSED(RSE_ERROR_USAGE, "broken", rse_engine_step(engine, &row, 1, NULL, NULL, &err));
        OK(rse_session_reset(b, 0, &err));
        OK(rse_engine_step(engine, &row, 1, NULL, NULL, &err));
        rse_engine_close(engine);
        rse_safetensors_close(g.files);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_splits),      cmocka_unit_test(test_batch),
        cmocka_unit_test(test_drafts),      cmocka_unit_test(test_dropped_drafts),
        cmocka_unit_test(test_rollback),    cmocka_unit_test(test_copy),
        cmocka_unit_test(test_slots),       cmocka_unit_test(test_pages),
        cmocka_unit_test(test_check_finds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
