/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scheduler under load: ten thousand random operations on 64 slots and a pool of keys and values that holds
 * less than they want. Requests join, are aborted and stopped at every stage, wait, are parked and brought back,
 * begin with what the prefix cache has; each must generate what it generates alone, and everything must be given back.
 */
#include "model_fixture.h"
#include "sched/prefix.h"
#include "sched/sched.h"

enum { SLOTS = 64, REQUESTS = 200, PLANS = 150, PROMPT_MAX = 90, TOKENS_MAX = 24, BLOCK = 32, OWN_MAX = 6 };

#define FAMILY_DIR(name) RSSM_SOURCE_DIR "/tests/golden/families/" name

static uint64_t random_state;

static uint32_t draw(uint32_t below) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 33) % below;
}

/* What a request asks for, and what it generates alone. */
typedef struct request_plan {
    int32_t prompt[PROMPT_MAX], count, tokens;
    rse_sampling sampling;
    rse_penalties penalties;
    int32_t alone[TOKENS_MAX];
} request_plan;

typedef struct live {
    rse_request *request;
    rse_session *session; /* of its own; NULL: the scheduler's */
    const request_plan *plan;
    int32_t stops_at; /* tokens; 0: never */
} live;

static request_plan plans[PLANS];
static int32_t pages; /* of the pool */
static int32_t own; /* sessions that are not the scheduler's, which keep their pages when their requests have ended */

/* Prompts begin with one of three texts, so that they have prefixes in common. */
static void make_plans(int32_t vocab) {
    int32_t texts[3][PROMPT_MAX];
    for (int32_t i = 0; i < 3 * PROMPT_MAX; i++) {
        texts[i / PROMPT_MAX][i % PROMPT_MAX] = (int32_t)draw((uint32_t)vocab);
    }
    for (int32_t p = 0; p < PLANS; p++) {
        request_plan *plan = &plans[p];
        plan->count = 1 + (int32_t)draw(PROMPT_MAX);
        plan->tokens = 1 + (int32_t)draw(TOKENS_MAX);
        int32_t common = (int32_t)draw((uint32_t)plan->count + 1);
        const int32_t *text = texts[draw(3)];
        for (int32_t i = 0; i < plan->count; i++) {
            plan->prompt[i] = i < common ? text[i] : (int32_t)draw((uint32_t)vocab);
        }
        plan->sampling = (rse_sampling){.temperature = draw(4) == 0 ? 0.0f : 1.0f,
                                        .top_p = draw(2) == 0 ? 0.9f : 1.0f,
                                        .seed = (uint64_t)p};
        if (draw(3) == 0) {
            plan->penalties = (rse_penalties){.repetition = 1.3f, .presence = 0.4f, .frequency = 0.2f};
        }
    }
}

static rse_engine *open_family(rse_engine_options options) {
    rse_engine *engine = NULL;
    options.threads = 1;
    options.prefix_block = BLOCK;
    OK(rse_engine_open(FAMILY_DIR("qwen3_next"), &options, &engine, &err));
    return engine;
}

static rse_request *add(rse_sched *sched, const request_plan *plan, rse_session *session, rse_token_fn token, void *user) {
    rse_request_desc desc = {.session = session,
                             .id = plan->sampling.seed,
                             .prompt = plan->prompt,
                             .count = plan->count,
                             .max_tokens = plan->tokens,
                             .ignore_end = true,
                             .sampling = plan->sampling,
                             .penalties = plan->penalties,
                             .token = token,
                             .user = user};
    rse_request *request = NULL;
    OK(rse_sched_add(sched, &desc, &request, &err));
    return request;
}

/* One after another, in an engine whose prefix cache is too small to hold any. */
static void run_alone(void) {
    rse_engine *engine = open_family((rse_engine_options){.prefix_bytes = 1});
    rse_sched *sched;
    OK(rse_sched_create(engine, &sched, &err));
    for (int32_t p = 0; p < PLANS; p++) {
        rse_request *request = add(sched, &plans[p], NULL, NULL, NULL);
        for (int32_t running = 1; running > 0;) {
            OK(rse_sched_step(sched, &running, &err));
        }
        int64_t count;
        const int32_t *tokens = rse_request_tokens(request, &count);
        assert_int_equal(rse_request_state(request), RSE_FINISH_LENGTH);
        assert_int_equal(count, plans[p].tokens);
        memcpy(plans[p].alone, tokens, (size_t)count * sizeof *tokens);
        rse_request_free(request);
    }
    assert_int_equal(rse_engine_prefixes(engine).stored, 0);
    rse_sched_destroy(sched);
    rse_engine_close(engine);
}

static void stop_at(void *user, rse_request *request, int32_t token) {
    (void)token;
    const live *l = user;
    int64_t count;
    (void)rse_request_tokens(request, &count);
    if (count == l->stops_at) {
        rse_request_stop(request);
    }
}

/* Whatever was generated is the beginning of what is generated alone, and all of it if the request came to its end. */
static void check(const live *l) {
    int64_t count;
    const int32_t *tokens = rse_request_tokens(l->request, &count);
    int32_t state = rse_request_state(l->request);
    if (state == RSE_FINISH_ERROR) {
        fail_msg("%s", rse_request_error(l->request)->text);
    }
    assert_true(count <= l->plan->tokens);
    assert_memory_equal(tokens, l->plan->alone, (size_t)count * sizeof *tokens);
    if (state == RSE_FINISH_LENGTH) {
        assert_int_equal(count, l->plan->tokens);
    } else if (state == RSE_FINISH_STOP) {
        assert_int_equal(count, l->stops_at);
    }
}

static void let_go(live *l) {
    if (rse_request_state(l->request) == RSE_RUNNING) {
        rse_request_abort(l->request);
    }
    check(l);
    rse_request_free(l->request);
    own -= l->session != NULL;
    rse_session_close(l->session);
    *l = (live){0};
}

static void join(rse_engine *engine, rse_sched *sched, live *l) {
    *l = (live){.plan = &plans[draw(PLANS)]};
    l->stops_at = draw(6) == 0 ? 1 + (int32_t)draw(TOKENS_MAX) : 0;
    rse_error full = {0};
    if (own < OWN_MAX && draw(4) == 0 &&
        rse_session_open(engine, l->plan->sampling.seed, &l->session, &full) != RSE_OK) {
        assert_int_equal(full.status, RSE_ERROR_MEMORY);
    }
    own += l->session != NULL;
    l->request = add(sched, l->plan, l->session, l->stops_at > 0 ? stop_at : NULL, l);
}

/* Pages add up, and slots are who they say; the most slots in use so far. */
static int32_t check_pools(const rse_engine *engine, int32_t most) {
    int32_t used = 0;
    int64_t held = 0;
    for (int32_t page = 0; page < pages; page++) {
        held += rse_kv_page_holders(engine->kv, page) > 0;
    }
    assert_int_equal(held + rse_kv_pool_free_pages(engine->kv), pages);
    for (int32_t slot = 0; slot < SLOTS; slot++) {
        assert_true(engine->sessions[slot] == NULL || engine->sessions[slot]->slot == slot);
        used += engine->sessions[slot] != NULL;
    }
    return used > most ? used : most;
}

static void operate(rse_engine *engine, rse_sched *sched, int32_t operations) {
    static live lives[REQUESTS];
    int64_t finished = 0, waited = 0;
    int32_t most = 0; /* sessions at once */
    for (int32_t i = 0; i < operations; i++) {
        live *l = &lives[draw(REQUESTS)];
        uint32_t what = draw(20);
        if (what < 2) {
            int32_t running;
            OK(rse_sched_step(sched, &running, &err));
            most = check_pools(engine, most);
        } else if (l->request == NULL) {
            join(engine, sched, l);
        } else if (rse_request_state(l->request) != RSE_RUNNING) {
            finished += rse_request_state(l->request) == RSE_FINISH_LENGTH;
            let_go(l);
        } else if (what == 9) { /* at any stage: waiting, reading, generating, parked */
            waited += rse_request_waiting(l->request);
            let_go(l);
        }
    }
    for (int32_t running = 1; running > 0;) { /* all the others come to their ends */
        OK(rse_sched_step(sched, &running, &err));
    }
    for (int32_t i = 0; i < REQUESTS; i++) {
        if (lives[i].request != NULL) {
            assert_int_not_equal(rse_request_state(lives[i].request), RSE_RUNNING);
            finished++;
            let_go(&lives[i]);
        }
    }
    rse_sched_figures figures = rse_sched_count(sched);
    rse_prefix_figures prefixes = rse_engine_prefixes(engine);
    print_message("%lld finished, %d at once, %lld let go while waiting, parked %lld times, %lld stored, %lld recalled\n",
                  (long long)finished, most, (long long)waited, (long long)figures.parked, (long long)prefixes.stored,
                  (long long)prefixes.recalled);
    assert_true(finished > operations / 50 && figures.parked > 3 && prefixes.recalled > 50 && waited > 0);
    assert_true(most > SLOTS / 2);
    for (int32_t slot = 0; slot < SLOTS; slot++) {
        assert_null(engine->sessions[slot]);
    }
    rse_prefixes_reclaim(engine->prefixes, pages);
    assert_int_equal(rse_kv_pool_free_pages(engine->kv), pages);
    assert_null(engine->first);
}

static void run(rse_engine_options options, rse_drafter *drafter, int32_t operations) {
    rse_kv_desc kv = {.layers = 1, .kv_heads = 2, .head_dim = 16, .dtype = RSSM_DTYPE_F32};
    options.sessions = SLOTS;
    options.batch_tokens = 128;
    options.kv_bytes = pages * rse_kv_page_bytes(&kv);
    options.prefix_bytes = 1 << 20;
    rse_engine *engine = open_family(options);
    assert_int_equal(rse_kv_pool_free_pages(engine->kv), pages);
    rse_sched *sched;
    OK(rse_sched_create(engine, &sched, &err));
    rse_speculation speculation = {.drafter = drafter, .drafts = drafter != NULL ? 3 : 0};
    OK(rse_sched_speculate(sched, &speculation, &err));
    operate(engine, sched, operations);
    rse_sched_destroy(sched);
    rse_engine_close(engine);
}

static void everyone_gets_what_they_get_alone(void **state) {
    (void)state;
    random_state = 8;
    make_plans(139);
    run_alone();
    pages = 150;
    run((rse_engine_options){0}, NULL, 10000);
}

static void with_drafts(void **state) {
    (void)state;
    rse_drafter *drafter;
    OK(rse_drafter_ngram(&drafter, &err));
    pages = 100;
    run((rse_engine_options){.step_tokens = 4}, drafter, 3000);
    rse_drafter_destroy(drafter);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everyone_gets_what_they_get_alone),
        cmocka_unit_test(with_drafts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
