/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds of drafts as they come: numbers of drafts that change from round to round, none, everything dropped,
 * right after a prompt, right after a flush, twice in a row, rows in any order and company. What a session gets
 * depends on its own rounds alone, bit for bit, and steps that end at flush boundaries give what steps of one
 * token give.
 */
#include "model_fixture.h"
#include "sched/internal.h"

enum { SESSIONS = 5, ROUNDS = 200, STEP = 6, PROMPT_MAX = 40 };

/* RSSM_TEST_LONG=1 plays all rounds. */
static int32_t rounds_played(void) {
    return getenv("RSSM_TEST_LONG") != NULL ? ROUNDS : 40;
}

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static int32_t below(uint64_t *state, int32_t n) {
    return (int32_t)(next_random(state) % (uint64_t)n);
}

/* What happens to one session. */
typedef struct turn {
    int32_t count; /* 0: sits out */
    int32_t tokens[STEP], parents[STEP], path[STEP], kept;
} turn;

typedef struct script {
    int32_t prompt;
    turn rounds[ROUNDS];
} script;

static void draw(script *s, uint64_t seed, const golden *g) {
    uint64_t state = seed;
    s->prompt = 1 + below(&state, PROMPT_MAX);
    for (int32_t i = 0; i < ROUNDS; i++) {
        turn *r = &s->rounds[i];
        bool tree = below(&state, 3) == 0;
        r->count = below(&state, 5) == 0 ? below(&state, 2) : 1 + below(&state, STEP);
        for (int32_t t = 0; t < r->count; t++) {
            r->tokens[t] = g->tokens[below(&state, 4000)];
            r->parents[t] = tree ? below(&state, t + 1) - 1 : t - 1;
        }
        int32_t node =
            below(&state, 3) == 0 ? r->count - 1 : below(&state, r->count + 1) - 1; /* -1: all dropped */
        r->kept = node < 0 ? 0 : path_to(r->parents, node, r->path);
    }
}

/* Logits of everything that a session ran, one after another. */
typedef struct record {
    float *logits;
    int64_t count;
} record;

static void play_round(rse_engine *engine, rse_session *const *sessions, const script *scripts, record *records,
                       const int32_t *who, int32_t n, int32_t i) {
    rse_row rows[SESSIONS];
    int32_t rows_of[SESSIONS], count = 0, outputs = 0;
    size_t vocab = (size_t)vocab_of(engine);
    for (int32_t j = 0; j < n; j++) {
        const turn *r = &scripts[who[j]].rounds[i];
        if (r->count > 0) {
            rows[count] = (rse_row){.session = sessions[who[j]],
                                    .tokens = r->tokens,
                                    .count = r->count,
                                    .accepted = RSE_ACCEPT_ALL,
                                    .outputs = r->count,
                                    .parents = r->parents};
            rows_of[count++] = who[j];
            outputs += r->count;
        }
    }
    if (count == 0) {
        return;
    }
    float *logits = malloc((size_t)outputs * vocab * sizeof *logits);
    OK(rse_engine_step(engine, rows, count, logits, NULL, &err));
    const float *at = logits;
    for (int32_t j = 0; j < count; j++) {
        const turn *r = &scripts[rows_of[j]].rounds[i];
        record *to = &records[rows_of[j]];
        memcpy(to->logits + (size_t)to->count * vocab, at, (size_t)r->count * vocab * sizeof *at);
        to->count += r->count;
        at += (size_t)r->count * vocab;
        OK(rse_session_choose(sessions[rows_of[j]], r->path, r->kept, &err));
    }
    free(logits);
}

static void play(const char *model, const golden *g, const script *scripts, int32_t first, int32_t n,
                 uint64_t seed, record *records) {
    rse_engine *engine = engine_open(
        model,
        (rse_engine_options){
            .sessions = SESSIONS, .step_tokens = STEP, .window = 7, .check = true, .threads = n > 1 ? 2 : 1});
    rse_session *sessions[SESSIONS] = {0};
    int32_t who[SESSIONS];
    for (int32_t i = 0; i < n; i++) {
        who[i] = first + i;
        sessions[first + i] = session_open(engine, (uint64_t)(first + i));
        prompt_row(sessions[first + i], engine, g->tokens + 100 * (first + i), scripts[first + i].prompt, NULL);
    }
    for (int32_t i = 0; i < rounds_played(); i++) {
        for (int32_t j = n - 1; j > 0; j--) { /* rows in another order each round */
            int32_t other = below(&seed, j + 1), was = who[j];
            who[j] = who[other];
            who[other] = was;
        }
        play_round(engine, sessions, scripts, records, who, n, i);
    }
    for (int32_t i = 0; i < n; i++) {
        OK(rse_session_commit(sessions[first + i], RSE_ACCEPT_ALL, &err));
        OK(rse_session_check(sessions[first + i], &err));
    }
    assert_true(rse_engine_checked(engine) > 0);
    rse_engine_close(engine);
}

static void rounds_are_a_sessions_own(void **state) {
    (void)state;
    static script scripts[SESSIONS];
    for (int32_t m = 0; m < MODELS; m++) {
        golden g = golden_open(model_names[m]);
        record alone[SESSIONS], together[SESSIONS];
        size_t bytes = (size_t)rounds_played() * STEP * 4096 * sizeof(float);
        for (int32_t i = 0; i < SESSIONS; i++) {
            draw(&scripts[i], (uint64_t)(i + 10 * m + 1), &g);
            alone[i] = (record){malloc(bytes), 0};
            together[i] = (record){malloc(bytes), 0};
            play(model_names[m], &g, scripts, i, 1, 1, alone);
        }
        play(model_names[m], &g, scripts, 0, SESSIONS, 99, together);
        for (int32_t i = 0; i < SESSIONS; i++) {
            assert_int_equal(alone[i].count, together[i].count);
            assert_memory_equal(alone[i].logits, together[i].logits,
                                (size_t)alone[i].count * 4096 * sizeof(float));
            free(alone[i].logits);
            free(together[i].logits);
        }
        rse_safetensors_close(g.files);
    }
}

/* Logits of tokens in steps that end at flush boundaries are those of steps of one token: the same bits. */
static void exact_steps_are_single_steps(void **state) {
    (void)state;
    enum { LENGTH = 90, PROMPT = 13 };
    for (int32_t m = 0; m < 2 * MODELS; m++) {
        golden g = golden_open(model_names[m % MODELS]);
        int32_t io = m < MODELS ? RSSM_DTYPE_F32 : RSSM_DTYPE_BF16;
        rse_engine *engine =
            engine_open(model_names[m % MODELS],
                        (rse_engine_options){
                            .sessions = 2, .step_tokens = STEP, .window = 8, .io_dtype = io, .check = true});
        size_t vocab = (size_t)vocab_of(engine);
        float *single = malloc(LENGTH * vocab * sizeof *single),
              *logits = malloc(STEP * vocab * sizeof *logits);
        rse_session *s[2] = {session_open(engine, 3), session_open(engine, 3)};
        prompt_row(s[0], engine, g.tokens, PROMPT, NULL);
        prompt_row(s[1], engine, g.tokens, PROMPT, NULL);
        for (int32_t t = 0; t < LENGTH; t++) {
            decode_row(s[0], engine, g.tokens[PROMPT + t], single + (size_t)t * vocab);
        }
        uint64_t random = 5;
        for (int32_t at = 0, wide = 0; at < LENGTH; wide++) {
            int32_t room = rse_session_room(s[1]), most = room < STEP ? room : STEP, tokens[STEP],
                    parents[STEP], path[STEP];
            most = most < LENGTH - at ? most : LENGTH - at;
            int32_t right = 1 + below(&random, most), count = 0, last = -1;
            for (int32_t i = 0; i < right; i++) { /* the right path, and wrong drafts beside it */
                if (i > 0 && count + right - i < STEP && below(&random, 2) == 0) {
                    tokens[count] = 17;
                    parents[count++] = last;
                }
                path[i] = count;
                tokens[count] = g.tokens[PROMPT + at + i];
                parents[count] = last;
                last = count++;
            }
            rse_row row = {.session = s[1],
                           .tokens = tokens,
                           .count = count,
                           .accepted = RSE_ACCEPT_ALL,
                           .outputs = count,
                           .parents = parents};
            OK(rse_engine_step(engine, &row, 1, logits, NULL, &err));
            for (int32_t i = 0; i < right; i++) {
                assert_memory_equal(single + (size_t)(at + i) * vocab, logits + (size_t)path[i] * vocab,
                                    vocab * sizeof *single);
            }
            OK(rse_session_choose(s[1], path, right, &err));
            at += right;
        }
        free(single);
        free(logits);
        rse_safetensors_close(g.files);
        rse_engine_close(engine);
    }
}

/* A copy made between a step and its commit has kept tokens only, whether the step's were chosen from or not.
 */
static void copies_have_kept_tokens_only(void **state) {
    (void)state;
    static const int32_t parents[STEP] = {-1, 0, 0, 1, 2, 2};
    golden g = golden_open("tiny-gdn");
    rse_engine *engine = engine_open("tiny-gdn", (rse_engine_options){.sessions = 3, .step_tokens = STEP});
    size_t vocab = (size_t)vocab_of(engine);
    float *a = malloc(2 * vocab * sizeof *a), *b = a + vocab;
    rse_session *s[3];
    for (int32_t i = 0; i < 3; i++) {
        s[i] = session_open(engine, 1);
    }
    prompt_row(s[0], engine, g.tokens, 20, NULL);
    prompt_row(s[2], engine, g.tokens, 20, NULL);
    rse_row row = {.session = s[0],
                   .tokens = g.tokens + 40,
                   .count = STEP,
                   .accepted = RSE_ACCEPT_ALL,
                   .parents = parents};
    OK(rse_engine_step(engine, &row, 1, NULL, NULL, &err));
    for (int32_t chosen = 0; chosen < 2; chosen++) {
        if (chosen != 0) {
            OK(rse_session_choose(s[0], (const int32_t[]){0, 2, 4}, 3, &err));
        }
        OK(rse_session_copy(s[1], s[0], 1, &err));
        assert_int_equal(rse_session_position(s[1]), 20);
        assert_int_equal(rse_session_pending(s[1]), 0);
        decode_row(s[1], engine, g.tokens[20], a);
        OK(rse_session_copy(s[1], s[2], 1, &err));
        if (chosen == 0) {
            OK(rse_session_commit(s[2], RSE_ACCEPT_ALL, &err));
        }
        OK(rse_session_copy(s[1], s[2], 1, &err));
        decode_row(s[1], engine, g.tokens[20], b);
        assert_memory_equal(a, b, vocab * sizeof *a);
        REFUSED(RSE_ERROR_USAGE, "pending",
                rse_session_save(s[0], &(rse_session_tail){0}, "/tmp/replayssm-never-written", &err));
    }
    free(a);
    rse_safetensors_close(g.files);
    rse_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_are_a_sessions_own),
        cmocka_unit_test(exact_steps_are_single_steps),
        cmocka_unit_test(copies_have_kept_tokens_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
