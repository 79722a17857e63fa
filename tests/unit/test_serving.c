/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries of the field log that concern the prefix cache and the scheduler, each named by its ID: what is recalled is
 * what was stored, as much as can be, in every combination; ends, counts and queues are right. Others of these groups
 * stand in tests/fieldlog/, in test_stop.c (D14) and in test_load.c (C07, G03).
 */
#include "model_fixture.h"
#include "sched/prefix.h"
#include "sched/sched.h"

enum { VOCAB = 139, LENGTH = 480, BUDGET = 64 << 20 };

static int32_t text[LENGTH], other[LENGTH];

static rse_engine *open_family(rse_engine_options options) {
    rse_engine *engine = NULL;
    options.threads = 1;
    OK(rse_engine_open(RSSM_SOURCE_DIR "/tests/golden/families/qwen3_next", &options, &engine, &err));
    return engine;
}

static rse_sched *open_sched(rse_engine *engine, rse_drafter *drafter) {
    rse_sched *sched;
    OK(rse_sched_create(engine, &sched, &err));
    OK(rse_sched_speculate(sched, &(rse_speculation){.drafter = drafter, .drafts = drafter != NULL ? 3 : 0}, &err));
    return sched;
}

static rse_request *add(rse_sched *sched, const int32_t *prompt, int32_t count, int32_t tokens) {
    rse_request *request = NULL;
    rse_request_desc desc = {.prompt = prompt,
                             .count = count,
                             .max_tokens = tokens,
                             .ignore_end = true,
                             .sampling = {.temperature = 1.0f, .top_p = 1.0f, .seed = 11}};
    OK(rse_sched_add(sched, &desc, &request, &err));
    return request;
}

static void finish(rse_sched *sched) {
    for (int32_t running = 1; running > 0;) {
        OK(rse_sched_step(sched, &running, &err));
    }
}

/* The first `common` tokens of the text, and strangers after them. */
static const int32_t *mixed(int32_t common) {
    static int32_t tokens[LENGTH];
    memcpy(tokens, text, sizeof tokens);
    memcpy(tokens + common, other + common, (size_t)(LENGTH - common) * sizeof *tokens);
    return tokens;
}

/* What a prompt generates in an engine of its own, whose cache holds nothing. */
static void cold(const int32_t *prompt, int32_t count, int32_t tokens, rse_engine_options options, int32_t *out) {
    options.prefix_bytes = 1;
    rse_engine *engine = open_family(options);
    rse_sched *sched = open_sched(engine, NULL);
    const rse_request *request = add(sched, prompt, count, tokens);
    finish(sched);
    int64_t n;
    memcpy(out, rse_request_tokens(request, &n), (size_t)tokens * sizeof *out);
    assert_int_equal(n, tokens);
    rse_sched_destroy(sched);
    rse_engine_close(engine);
}

static void assert_tokens(const rse_request *request, const int32_t *expected, int32_t tokens) {
    int64_t count;
    const int32_t *got = rse_request_tokens(request, &count);
    assert_int_equal(rse_request_state(request), RSE_FINISH_LENGTH);
    assert_int_equal(count, tokens);
    assert_memory_equal(got, expected, (size_t)tokens * sizeof *got);
}

/* Blocks of the cache that are no pages of attention, hits at many of them: each restores its own state. */
static void D05_blocks_are_not_pages(void **state) {
    (void)state;
    static const int32_t blocks[] = {48, 64};
    for (int32_t b = 0; b < 2; b++) {
        rse_engine_options options = {.prefix_bytes = BUDGET, .prefix_block = blocks[b]};
        rse_engine *engine = open_family(options);
        rse_sched *sched = open_sched(engine, NULL);
        (void)add(sched, text, LENGTH - 20, 1);
        finish(sched);
        for (int32_t hits = 1; hits * blocks[b] < LENGTH - 40; hits++) {
            int32_t common = hits * blocks[b] + 5, expected[4];
            const int32_t *prompt = mixed(common);
            const rse_request *request = add(sched, prompt, common + 9, 4);
            finish(sched);
            assert_int_equal(rse_request_recalled(request), hits * blocks[b]);
            cold(prompt, common + 9, 4, options, expected);
            assert_tokens(request, expected, 4);
        }
        rse_sched_destroy(sched);
        rse_engine_close(engine);
    }
}

/* For every common prefix the newest state before its end is taken, and attention begins at the same token. */
static void D06_the_largest_checkpoint_is_reused(void **state) {
    (void)state;
    rse_engine *engine = open_family((rse_engine_options){.prefix_bytes = BUDGET, .prefix_block = 16});
    rse_session *stored = session_open(engine, 0);
    for (int32_t at = 0; at < 208; at += 16) {
        prompt_row(stored, engine, text + at, 16, NULL);
        OK(rse_session_store(stored, &err));
    }
    for (int32_t common = 1; common <= 200; common++) {
        rse_session_close(stored);
        stored = session_open(engine, 0);
        OK(rse_session_recall(stored, mixed(common), 220, &err));
        assert_int_equal(rse_session_position(stored), common / 16 * 16);
        assert_int_equal(stored->kv.count, common / 16);
        rssm_slot_info info = {.struct_size = sizeof info};
        assert_int_equal(rssm_cache_slot(engine->cache, stored->slot, &info), RSSM_OK);
        assert_int_equal(info.position, common / 16 * 16);
    }
    rse_engine_close(engine);
}

/* A, a longer B with the same head, A again, with drafts and the cache, four at once: as with all of it off. */
static void D07_drafts_and_hits(void **state) {
    (void)state;
    enum { TOKENS = 30 };
    static const int32_t counts[] = {63, 120, 63, 65};
    rse_drafter *drafter;
    OK(rse_drafter_ngram(&drafter, &err));
    rse_engine *engine =
        open_family((rse_engine_options){.sessions = 4, .step_tokens = 4, .prefix_bytes = BUDGET, .prefix_block = 64});
    rse_sched *sched = open_sched(engine, drafter);
    int32_t expected[4][TOKENS];
    for (int32_t i = 0; i < 4; i++) {
        cold(text, counts[i], TOKENS, (rse_engine_options){0}, expected[i]);
    }
    for (int32_t round = 0; round < 3; round++) {
        const rse_request *requests[4];
        for (int32_t i = 0; i < 4; i++) {
            requests[i] = add(sched, text, counts[i], TOKENS);
        }
        finish(sched);
        for (int32_t i = 0; i < 4; i++) {
            assert_tokens(requests[i], expected[i], TOKENS);
            assert_true(round == 0 || rse_request_recalled(requests[i]) > 0);
        }
    }
    rse_sched_destroy(sched);
    rse_drafter_destroy(drafter);
    rse_engine_close(engine);
}

/* An identical prompt of 300 tokens is recalled but for its last, whatever else is switched on. */
static void D09_identical_prompts_hit(void **state) {
    (void)state;
    const rse_engine_options all[] = {
        {.prefix_bytes = BUDGET},
        {.prefix_bytes = BUDGET, .step_tokens = 4},
        {.prefix_bytes = BUDGET, .state = {.read_copy_dtype = RSSM_DTYPE_NVFP4}},
        {.prefix_bytes = BUDGET, .state = {.checkpoint_dtype = RSSM_DTYPE_F16}, .io_dtype = RSSM_DTYPE_BF16},
        {.prefix_bytes = BUDGET, .method = RSSM_METHOD_CONVENTIONAL}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        rse_drafter *drafter = NULL;
        if (i == 1) {
            OK(rse_drafter_ngram(&drafter, &err));
        }
        rse_engine *engine = open_family(all[i]);
        rse_sched *sched = open_sched(engine, drafter);
        const rse_request *first = add(sched, text, 300, 8);
        finish(sched);
        const rse_request *second = add(sched, text, 300, 8);
        finish(sched);
        int64_t count;
        assert_int_equal(rse_request_recalled(first), 0);
        assert_int_equal(rse_request_recalled(second), 299);
        assert_tokens(second, rse_request_tokens(first, &count), 8);
        assert_int_equal(rse_engine_prefixes(engine).recalled, 1); /* and the counters say so: G09 */
        rse_sched_destroy(sched);
        rse_drafter_destroy(drafter);
        rse_engine_close(engine);
    }
}

/* A shared head with tails of its own: the second sighting reads the tail and a block at most. */
static void D10_the_second_sighting_hits(void **state) {
    (void)state;
    rse_engine *engine = open_family((rse_engine_options){.prefix_bytes = BUDGET, .prefix_block = 64});
    rse_sched *sched = open_sched(engine, NULL);
    for (int32_t i = 0; i < 3; i++) {
        int32_t prompt[400];
        memcpy(prompt, text, 330 * sizeof *prompt);
        for (int32_t t = 330; t < 400; t++) {
            prompt[t] = other[t - 330 + 80 * i];
        }
        const rse_request *request = add(sched, prompt, 400, 1);
        finish(sched);
        assert_true(i == 0 || 400 - rse_request_recalled(request) <= 70 + 64);
    }
    rse_sched_destroy(sched);
    rse_engine_close(engine);
}

/* Twenty turns: each reads what is new, and one token of its own last answer. Then an early word changes, and the newest
   state before it is taken. */
static void D12_turns_read_what_is_new(void **state) {
    (void)state;
    enum { TURNS = 20, NEW = 10, ANSWER = 8 };
    rse_engine *engine = open_family((rse_engine_options){.prefix_bytes = BUDGET, .prefix_block = 32});
    rse_sched *sched = open_sched(engine, NULL);
    int32_t history[LENGTH], length = 0;
    for (int32_t turn = 0; turn < TURNS; turn++) {
        memcpy(history + length, text + turn * NEW, NEW * sizeof *history);
        const rse_request *request = add(sched, history, length + NEW, ANSWER);
        finish(sched);
        assert_int_equal(rse_request_recalled(request), length > 0 ? length - 1 : 0);
        length += NEW;
        int64_t count;
        memcpy(history + length, rse_request_tokens(request, &count), ANSWER * sizeof *history);
        length += ANSWER;
    }
    history[200] = (history[200] + 1) % VOCAB;
    const rse_request *request = add(sched, history, length, 1);
    finish(sched);
    assert_true(rse_request_recalled(request) > 200 - 32 && rse_request_recalled(request) <= 200);
    rse_sched_destroy(sched);
    rse_engine_close(engine);
}

/* The budget is in bytes and holds at every moment, and is used: to within the largest entry. */
static void D18_the_budget_is_bytes(void **state) {
    (void)state;
    enum { BYTES = 400000 };
    rse_engine *engine = open_family((rse_engine_options){.prefix_bytes = BYTES, .prefix_block = 32, .sessions = 2});
    rse_sched *sched = open_sched(engine, NULL);
    int64_t most = 0;
    for (int32_t i = 0; i < 60; i++) {
        rse_request *request = add(sched, mixed(i * 7 % 200), 210 + i, 4);
        for (int32_t running = 1; running > 0;) {
            OK(rse_sched_step(sched, &running, &err));
            int64_t bytes = rse_engine_prefixes(engine).bytes;
            assert_true(bytes <= BYTES);
            most = bytes > most ? bytes : most;
        }
        rse_request_free(request);
    }
    assert_true(most > BYTES - 60000 && rse_engine_prefixes(engine).stored > 100);
    rse_sched_destroy(sched);
    rse_engine_close(engine);
}

/* Stores, recalls and reclaims in random order; the pages are counted from scratch. */
static void D20_counts_from_scratch(void **state) {
    (void)state;
    enum { OPERATIONS = 20000, PAGES = 120 };
    rse_kv_desc kv = {.layers = 1, .kv_heads = 2, .head_dim = 16, .dtype = RSSM_DTYPE_F32};
    rse_engine *engine = open_family((rse_engine_options){
        .sessions = 2, .prefix_bytes = 300000, .prefix_block = 16, .kv_bytes = PAGES * rse_kv_page_bytes(&kv)});
    rse_session *session = session_open(engine, 0);
    uint32_t seed = 3;
    for (int32_t i = 0; i < OPERATIONS; i++) {
        seed = seed * 1664525u + 1013904223u;
        int32_t what = (int32_t)(seed >> 24) % 8, common = (int32_t)(seed >> 12) % 100;
        if (what < 4) {
            OK(rse_session_reset(session, 0, &err));
            OK(rse_session_recall(session, mixed(common), 110, &err));
        } else if (what < 7 && rse_session_position(session) + rse_session_pending(session) < 100) {
            int32_t from = (int32_t)rse_session_position(session) + rse_session_pending(session);
            prompt_row(session, engine, mixed(common) + from, 1 + common % 9, NULL);
            OK(rse_session_store(session, &err));
        } else if (what == 7) {
            rse_prefixes_reclaim(engine->prefixes, rse_kv_pool_free_pages(engine->kv) + common % 5);
        }
        int64_t held = 0;
        for (int32_t page = 0; i % 100 == 0 && page < PAGES; page++) {
            held += rse_kv_page_holders(engine->kv, page) > 0;
        }
        assert_true(i % 100 != 0 || held + rse_kv_pool_free_pages(engine->kv) == PAGES);
    }
    rse_session_close(session);
    rse_prefixes_reclaim(engine->prefixes, PAGES);
    assert_int_equal(rse_kv_pool_free_pages(engine->kv), PAGES);
    assert_int_equal(rse_engine_prefixes(engine).entries, 0);
    rse_engine_close(engine);
}

/* ---- Ends, counts and queues -------------------------------------------------------------------------- */

/* Drafts what it was told comes next. */
typedef struct oracle {
    rse_drafter base;
    const int32_t *tokens;
    int64_t prompt, count;
} oracle;

static rse_status propose(rse_drafter *drafter, rse_draft_row *rows, int32_t count, rse_error *err) {
    (void)err;
    const oracle *o = (const oracle *)drafter;
    for (int32_t i = 0; i < count; i++) {
        int64_t at = rse_session_position(rows[i].session) + rse_session_pending(rows[i].session) + 1 - o->prompt;
        for (int32_t d = 0, node = 0; d < rows[i].depth && at + d < o->count; d++) {
            node = rse_tree_add(&rows[i].tree, node, o->tokens[at + d]);
        }
    }
    return RSE_OK;
}

static void destroy(rse_drafter *drafter) {
    (void)drafter;
}

static void stop_at(void *user, rse_request *request, int32_t token) {
    if (token == *(const int32_t *)user) {
        rse_request_stop(request);
    }
}

/* A stop inside an accepted run ends it there, and comes before the cap; beyond the cap the cap comes first. */
static void G01_a_stop_inside_a_run(void **state) {
    (void)state;
    int32_t tokens[8];
    cold(text, 20, 8, (rse_engine_options){0}, tokens);
    oracle o = {{"oracle", false, propose, NULL, destroy}, tokens, 20, 8};
    rse_engine *engine = open_family((rse_engine_options){.step_tokens = 8});
    for (int32_t stop = 2; stop < 7; stop += 4) {
        rse_sched *sched;
        OK(rse_sched_create(engine, &sched, &err));
        OK(rse_sched_speculate(sched, &(rse_speculation){.drafter = &o.base, .drafts = 6}, &err));
        rse_request_desc desc = {.prompt = text,
                                 .count = 20,
                                 .max_tokens = 5,
                                 .ignore_end = true,
                                 .sampling = {.temperature = 1.0f, .top_p = 1.0f, .seed = 11},
                                 .token = stop_at,
                                 .user = &tokens[stop]};
        rse_request *request;
        OK(rse_sched_add(sched, &desc, &request, &err));
        finish(sched);
        int64_t count;
        const int32_t *got = rse_request_tokens(request, &count);
        assert_int_equal(rse_request_state(request), stop == 2 ? RSE_FINISH_STOP : RSE_FINISH_LENGTH);
        assert_int_equal(count, stop == 2 ? 3 : 5);
        assert_memory_equal(got, tokens, (size_t)count * sizeof *got);
        rse_sched_destroy(sched);
    }
    rse_engine_close(engine);
}

/* Ten requests on two slots, with and without logprobs: they queue, in order, and nothing else happens. G13 is the same
   for two to eight that run at once. */
static void G06_more_requests_than_slots(void **state) {
    (void)state;
    for (int32_t slots = 1; slots <= 8; slots++) {
        rse_engine *engine = open_family((rse_engine_options){.sessions = slots});
        rse_sched *sched = open_sched(engine, NULL);
        rse_request *requests[10];
        for (int32_t i = 0; i < 10; i++) {
            rse_request_desc desc = {.prompt = text + i,
                                     .count = 5 + i,
                                     .max_tokens = 3 + i % 3,
                                     .ignore_end = true,
                                     .logprobs = i % 2,
                                     .sampling = RSE_SAMPLING_GREEDY};
            OK(rse_sched_add(sched, &desc, &requests[i], &err));
        }
        int32_t running;
        OK(rse_sched_step(sched, &running, &err));
        for (int32_t i = 0; i < 10; i++) {
            assert_int_equal(rse_request_waiting(requests[i]), i >= slots);
        }
        finish(sched);
        for (int32_t i = 0; i < 10; i++) {
            assert_int_equal(rse_request_state(requests[i]), RSE_FINISH_LENGTH);
        }
        rse_sched_destroy(sched);
        rse_engine_close(engine);
    }
}

/* A pool of exactly what n requests need serves n without parking one; a page fewer, and one has to wait. */
static void H09_exactly_enough(void **state) {
    (void)state;
    enum { N = 4, EACH = 3 }; /* 30 + 16 tokens, of which the last is not run: 3 pages */
    rse_kv_desc kv = {.layers = 1, .kv_heads = 2, .head_dim = 16, .dtype = RSSM_DTYPE_F32};
    for (int32_t fewer = 0; fewer < 2; fewer++) {
        rse_engine *engine = open_family(
            (rse_engine_options){.sessions = N, .kv_bytes = (N * EACH - fewer) * rse_kv_page_bytes(&kv)});
        rse_sched *sched = open_sched(engine, NULL);
        rse_session *sessions[N];
        rse_request *requests[N];
        for (int32_t i = 0; i < N; i++) {
            sessions[i] = session_open(engine, 0);
            rse_request_desc desc = {.session = sessions[i],
                                     .prompt = text,
                                     .count = 30,
                                     .max_tokens = 16,
                                     .ignore_end = true,
                                     .sampling = RSE_SAMPLING_GREEDY};
            OK(rse_sched_add(sched, &desc, &requests[i], &err));
        }
        assert_int_equal(rse_kv_pool_free_pages(engine->kv), N * EACH - fewer);
        for (int32_t running = 1; running > 0;) {
            OK(rse_sched_step(sched, &running, &err));
            for (int32_t i = 0; i < N; i++) { /* who has finished leaves */
                if (sessions[i] != NULL && rse_request_state(requests[i]) != RSE_RUNNING) {
                    assert_int_equal(rse_request_state(requests[i]), RSE_FINISH_LENGTH);
                    rse_session_close(sessions[i]);
                    sessions[i] = NULL;
                }
            }
        }
        assert_int_equal(rse_sched_count(sched).parked > 0, fewer > 0);
        rse_sched_destroy(sched);
        rse_engine_close(engine);
    }
}

int main(void) {
    for (int32_t i = 0; i < LENGTH; i++) {
        text[i] = (i * i + 3 * i) % VOCAB;
        other[i] = (i * i * 5 + 11 * i + 7) % VOCAB;
        other[i] = other[i] == text[i] ? (other[i] + 1) % VOCAB : other[i];
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(D05_blocks_are_not_pages),
        cmocka_unit_test(D06_the_largest_checkpoint_is_reused),
        cmocka_unit_test(D07_drafts_and_hits),
        cmocka_unit_test(D09_identical_prompts_hit),
        cmocka_unit_test(D10_the_second_sighting_hits),
        cmocka_unit_test(D12_turns_read_what_is_new),
        cmocka_unit_test(D18_the_budget_is_bytes),
        cmocka_unit_test(D20_counts_from_scratch),
        cmocka_unit_test(G01_a_stop_inside_a_run),
        cmocka_unit_test(G06_more_requests_than_slots),
        cmocka_unit_test(H09_exactly_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
