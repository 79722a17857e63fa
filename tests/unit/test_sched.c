/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scheduler: what a request generates depends on its session, prompt and seed, not on who comes and goes
 * beside it; ends for each reason; gives everything back.
 */
#include "model_fixture.h"
#include "sched/sched.h"

enum { REQUESTS = 6, TOKENS = 30 };

typedef struct plan {
    int32_t prompt; /* length */
    int32_t joins;  /* after so many steps */
    int32_t aborts; /* after so many of its tokens; 0: never */
} plan;

static const plan plans[REQUESTS] = {{70, 0, 0}, {5, 0, 0}, {1, 2, 0}, {33, 7, 9}, {90, 8, 0}, {12, 40, 0}};

static rse_sampling sampling_of(int32_t request) {
    return (rse_sampling){.temperature = request % 2 == 0 ? 0.9f : 0.0f,
                          .top_k = 50,
                          .top_p = 0.95f,
                          .min_p = 0.01f,
                          .seed = (uint64_t)request};
}

static rse_request *add(rse_sched *sched, const golden *g, rse_session *session, int32_t i, rse_token_fn token,
                        void *user) {
    rse_request *request;
    rse_request_desc desc = {
        .session = session,
        .prompt = g->tokens + 300 * i,
        .count = plans[i].prompt,
        .max_tokens = TOKENS,
        .sampling = sampling_of(i),
        .token = token,
        .user = user,
    };
    OK(rse_sched_add(sched, &desc, &request, &err));
    return request;
}

static void take(const rse_request *request, int32_t *ids, int64_t *count) {
    const int32_t *tokens = rse_request_tokens(request, count);
    memcpy(ids, tokens, (size_t)*count * sizeof *ids);
}

static void run_alone(const char *model, const golden *g, int32_t i, int32_t *ids) {
    rse_engine *engine = engine_open(model, (rse_engine_options){.batch_tokens = 24});
    rse_sched *sched;
    OK(rse_sched_create(engine, &sched, &err));
    rse_request *request = add(sched, g, session_open(engine, (uint64_t)i), i, NULL, NULL);
    int32_t running = 1;
    while (running > 0) {
        OK(rse_sched_step(sched, &running, &err));
    }
    int64_t count;
    take(request, ids, &count);
    assert_int_equal(count, TOKENS);
    assert_int_equal(rse_request_state(request), RSE_FINISH_LENGTH);
    rse_sched_destroy(sched);
    rse_engine_close(engine);
}

static void abort_at(void *user, rse_request *request, int32_t token) {
    (void)token;
    int64_t count;
    (void)rse_request_tokens(request, &count);
    if (count == *(const int32_t *)user) {
        rse_request_abort(request);
    }
}

/* Six requests over four slots, as slots come free; steps of 24 tokens cut the prompts. */
static void run_together(const char *model, const golden *g, int32_t ids[REQUESTS][TOKENS],
                         int64_t counts[REQUESTS]) {
    rse_engine *engine =
        engine_open(model, (rse_engine_options){.sessions = 4, .batch_tokens = 24, .threads = 2});
    rse_sched *sched;
    OK(rse_sched_create(engine, &sched, &err));
    rse_session *sessions[REQUESTS] = {0};
    rse_request *requests[REQUESTS] = {0};
    int32_t aborts[REQUESTS];
    int32_t started = 0;
    int32_t finished = 0;
    for (int32_t step = 0; finished < REQUESTS; step++) {
        rse_error full = {0};
        while (started < REQUESTS && plans[started].joins <= step &&
               rse_session_open(engine, (uint64_t)started, &sessions[started], &full) == RSE_OK) {
            int32_t *limit = &aborts[started];
            *limit = plans[started].aborts;
            requests[started] = add(sched, g, sessions[started], started, *limit > 0 ? abort_at : NULL, limit);
            started++;
        }
        int32_t running;
        OK(rse_sched_step(sched, &running, &err));
        for (int32_t i = 0; i < started; i++) {
            if (requests[i] != NULL && rse_request_state(requests[i]) != RSE_RUNNING) {
                take(requests[i], ids[i], &counts[i]);
                assert_int_equal(rse_request_state(requests[i]),
                                 plans[i].aborts > 0 ? RSE_FINISH_ABORT : RSE_FINISH_LENGTH);
                rse_request_free(requests[i]);
                rse_session_close(sessions[i]);
                requests[i] = NULL;
                finished++;
            }
        }
        assert_true(step < 500);
    }
    rse_sched_figures figures = rse_sched_count(sched);
    assert_int_equal(figures.prompt_tokens, 70 + 5 + 33 + 90 + 12);
    assert_true(figures.decode_tokens > 0 && figures.bytes_read > 0 && figures.bytes_written > 0);
    for (int32_t i = 0; i < 4; i++) { /* every slot is back */
        (void)session_open(engine, 0);
    }
    rse_sched_destroy(sched);
    rse_engine_close(engine);
}

static void test_together(void **state) {
    (void)state;
    for (int32_t m = 0; m < MODELS; m++) {
        golden g = golden_open(model_names[m]);
        int32_t together[REQUESTS][TOKENS];
        int64_t counts[REQUESTS];
        run_together(model_names[m], &g, together, counts);
        for (int32_t i = 0; i < REQUESTS; i++) {
            int32_t alone[TOKENS];
            run_alone(model_names[m], &g, i, alone);
            assert_int_equal(counts[i], plans[i].aborts > 0 ? plans[i].aborts : TOKENS);
            assert_memory_equal(together[i], alone, (size_t)counts[i] * sizeof alone[0]);
        }
        rse_safetensors_close(g.files);
    }
}

/* The fifth greedy token is made the end token. */
static void test_end(void **state) {
    (void)state;
    golden g = golden_open("tiny-gdn");
    char variant[64];
    char line[64];
    snprintf(line, sizeof line, "\"eos_token_id\": %d", g.greedy[64 + 4]);
    variant_make("tiny-gdn", "\"eos_token_id\": 2", line, variant);
    rse_engine *engine;
    OK(rse_engine_open(variant, &(rse_engine_options){.sessions = 2, .threads = 1}, &engine, &err));
    rse_sched *sched;
    OK(rse_sched_create(engine, &sched, &err));
    rse_request *requests[2];
    for (int32_t i = 0; i < 2; i++) {
        rse_request_desc desc = {.session = session_open(engine, 0),
                                 .prompt = g.greedy,
                                 .count = 64,
                                 .max_tokens = 9,
                                 .ignore_end = i == 1,
                                 .sampling = RSE_SAMPLING_GREEDY};
        OK(rse_sched_add(sched, &desc, &requests[i], &err));
    }
    int32_t running = 1;
    while (running > 0) {
        OK(rse_sched_step(sched, &running, &err));
    }
    int64_t count;
    const int32_t *tokens = rse_request_tokens(requests[0], &count);
    assert_int_equal(rse_request_state(requests[0]), RSE_FINISH_END);
    int64_t first = 0;
    while (g.greedy[64 + first] != g.greedy[64 + 4]) {
        first++;
    }
    assert_int_equal(count, first + 1);
    assert_memory_equal(tokens, g.greedy + 64, (size_t)count * sizeof *tokens);
    tokens = rse_request_tokens(requests[1], &count);
    assert_int_equal(rse_request_state(requests[1]), RSE_FINISH_LENGTH);
    assert_int_equal(count, 9);
    assert_memory_equal(tokens, g.greedy + 64, 9 * sizeof *tokens);
    rse_sched_destroy(sched);
    rse_engine_close(engine);
    variant_remove(variant);
    rse_safetensors_close(g.files);
}

static void test_refused(void **state) {
    (void)state;
    golden g = golden_open("tiny-gdn");
    rse_engine *engine = engine_open("tiny-gdn", (rse_engine_options){0});
    rse_sched *sched;
    OK(rse_sched_create(engine, &sched, &err));
    rse_request_desc good = {.session = session_open(engine, 0),
                             .prompt = g.tokens,
                             .count = 3,
                             .max_tokens = 2,
                             .sampling = RSE_SAMPLING_GREEDY};
    rse_request *request;
    rse_request_desc bad = good;
    bad.count = 0;
    REFUSED(RSE_ERROR_USAGE, "empty", rse_sched_add(sched, &bad, &request, &err));
    bad = good;
    bad.prompt = (const int32_t[]){1, 4096, 1};
    REFUSED(RSE_ERROR_USAGE, "4096", rse_sched_add(sched, &bad, &request, &err));
    bad = good;
    bad.max_tokens = -1;
    REFUSED(RSE_ERROR_USAGE, "-1", rse_sched_add(sched, &bad, &request, &err));
    bad = good;
    bad.logprobs = 21;
    REFUSED(RSE_ERROR_USAGE, "21", rse_sched_add(sched, &bad, &request, &err));
    bad = good;
    bad.penalties.repetition = -1.0f;
    REFUSED(RSE_ERROR_USAGE, "repetition penalty is -1", rse_sched_add(sched, &bad, &request, &err));
    bad.penalties = (rse_penalties){.presence = 2.5f};
    REFUSED(RSE_ERROR_USAGE, "presence penalty is 2.5", rse_sched_add(sched, &bad, &request, &err));
    bad = good;
    bad.sampling.top_p = 0.0f;
    REFUSED(RSE_ERROR_USAGE, "top-p", rse_sched_add(sched, &bad, &request, &err));
    OK(rse_sched_add(sched, &good, &request, &err));
    rse_request *second;
    REFUSED(RSE_ERROR_USAGE, "running", rse_sched_add(sched, &good, &second, &err));
    assert_null(second);
    rse_request_abort(request);
    rse_request_free(request);
    good.max_tokens = 0; /* only reads the prompt */
    OK(rse_sched_add(sched, &good, &request, &err));
    int32_t running;
    OK(rse_sched_step(sched, &running, &err));
    assert_int_equal(running, 0);
    assert_int_equal(rse_request_state(request), RSE_FINISH_LENGTH);
    rse_sched_destroy(sched);
    rse_engine_close(engine);
    rse_safetensors_close(g.files);
}

/* Three pages of 16 tokens: the younger request is parked while the older one needs them all, and goes on after it;
   one that needs more than there are ends with an error of its own. */
static void test_no_pages(void **state) {
    (void)state;
    golden g = golden_open("tiny-gdn");
    rse_engine *engine =
        engine_open("tiny-gdn", (rse_engine_options){.sessions = 2, .kv_bytes = 3 * 16 * 2048});
    rse_sched *sched;
    OK(rse_sched_create(engine, &sched, &err));
    rse_request *requests[3];
    static const int32_t prompts[3] = {31, 40, 10};
    for (int32_t i = 0; i < 3; i++) {
        rse_request_desc desc = {.prompt = g.greedy,
                                 .count = prompts[i],
                                 .max_tokens = i == 1 ? 20 : 6,
                                 .ignore_end = true,
                                 .sampling = RSE_SAMPLING_GREEDY};
        OK(rse_sched_add(sched, &desc, &requests[i], &err));
    }
    int32_t running = 1;
    while (running > 0) {
        OK(rse_sched_step(sched, &running, &err));
    }
    int64_t count;
    assert_int_equal(rse_request_state(requests[0]), RSE_FINISH_LENGTH);
    (void)rse_request_tokens(requests[1], &count);
    assert_int_equal(rse_request_state(requests[1]), RSE_FINISH_ERROR);
    assert_int_equal(rse_request_error(requests[1])->status, RSE_ERROR_MEMORY);
    assert_int_equal(count, 9);
    assert_int_equal(rse_request_state(requests[2]), RSE_FINISH_LENGTH);
    rse_request_desc large = {.prompt = g.tokens, .count = 49, .sampling = RSE_SAMPLING_GREEDY};
    rse_request *refused;
    REFUSED(RSE_ERROR_USAGE, "take 4 pages of keys and values; there are 3",
            rse_sched_add(sched, &large, &refused, &err));
    rse_sched_destroy(sched);
    rse_engine_close(engine);
    rse_safetensors_close(g.files);
}

/* More requests than a step has tokens, and one long prompt: each gets on within a few steps, however small a step. */
static void test_fair(void **state) {
    (void)state;
    enum { MANY = 7 };
    static const int32_t budgets[] = {1, 3, 20};
    golden g = golden_open("tiny-gdn");
    for (size_t b = 0; b < sizeof budgets / sizeof budgets[0]; b++) {
        rse_engine *engine = engine_open("tiny-gdn", (rse_engine_options){.sessions = MANY, .batch_tokens = budgets[b]});
        rse_sched *sched;
        OK(rse_sched_create(engine, &sched, &err));
        rse_request *requests[MANY];
        for (int32_t i = 0; i < MANY; i++) {
            rse_request_desc desc = {.prompt = g.tokens + i,
                                     .count = i == 2 ? 60 : 2,
                                     .max_tokens = 200,
                                     .ignore_end = true,
                                     .sampling = RSE_SAMPLING_GREEDY};
            OK(rse_sched_add(sched, &desc, &requests[i], &err));
        }
        int64_t before[MANY] = {0}, gap[MANY] = {0};
        for (int32_t step = 0, running; step < 90; step++) {
            OK(rse_sched_step(sched, &running, &err));
            for (int32_t i = 0; i < MANY; i++) {
                int64_t count;
                (void)rse_request_tokens(requests[i], &count);
                count += 60 - rse_request_prompt_left(requests[i]);
                gap[i] = count > before[i] ? 0 : gap[i] + 1;
                before[i] = count;
                assert_true(gap[i] <= 2 * MANY);
            }
        }
        rse_sched_destroy(sched);
        rse_engine_close(engine);
    }
    rse_safetensors_close(g.files);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fair),
        cmocka_unit_test(test_together),
        cmocka_unit_test(test_end),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_no_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
