/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drafting loses nothing: whatever a drafter says, however many drafts there are and who runs beside, a request
 * generates the tokens that it generates without drafts, greedily and at a temperature, and every flushed state
 * is the conventional one.
 *
 * `make test` runs a few prompts of each kind; RSSM_TEST_LONG=1 runs 64 prompts of 64 tokens.
 */
#include "model_fixture.h"
#include "sched/internal.h"
#include "sched/sched.h"

#ifdef __SANITIZE_ADDRESS__ /* every way to draft is run there, on fewer texts */
enum { PROMPTS = 2, TOKENS = 16 };
#else
enum { PROMPTS = 4, TOKENS = 16 };
#endif
enum { TOKENS_MAX = 64, PROMPTS_MAX = 64, BATCH = 4, STEP = 8, WINDOW = 12 };

static bool long_run(void) {
    return getenv("RSSM_TEST_LONG") != NULL;
}

/* ---- Drafters that are known to be wrong or right ------------------------------------------------------- */

/* Tokens that requests generate without drafts, by session id. */
typedef struct answers {
    int32_t prompt, tokens;
    int32_t ids[PROMPTS_MAX][TOKENS_MAX];
} answers;

typedef struct known {
    rse_drafter base;
    const answers *answers;
    int32_t shift; /* added to every token: 0 is always right */
} known;

static rse_status known_propose(rse_drafter *drafter, rse_draft_row *rows, int32_t count, rse_error *err) {
    const known *k = (const known *)drafter;
    (void)err;
    for (int32_t i = 0; i < count; i++) {
        int64_t length = rse_session_position(rows[i].session) + rse_session_pending(rows[i].session);
        const int32_t *ids = k->answers->ids[rows[i].session->id % PROMPTS_MAX];
        int32_t node = 0;
        for (int32_t d = 1; d <= rows[i].depth; d++) {
            int64_t at = length + d - k->answers->prompt;
            int32_t token = at < k->answers->tokens ? ids[at] + k->shift : -1;
            int32_t next = rse_tree_add(&rows[i].tree, node, token);
            for (int32_t w = 1; w < rows[i].width; w++) { /* twins and strangers */
                (void)rse_tree_add(&rows[i].tree, node, w == 1 ? token : token / 2);
            }
            node = next;
        }
    }
    return RSE_OK;
}

static void known_destroy(rse_drafter *drafter) {
    (void)drafter;
}

/* ---- Runs ----------------------------------------------------------------------------------------------- */

enum { NONE, NGRAM, MTP, MODEL, WRONG, RIGHT, DRAFTERS };
static const char *const names[DRAFTERS] = {"none", "ngram", "mtp", "model", "wrong", "right"};

typedef struct setting {
    const char *model;
    int32_t drafter, drafts, width;
    bool exact, check, bf16;
    int32_t method;
    float temperature;
    int32_t prompts, prompt, tokens, sessions;
} setting;

static rse_drafter *open_drafter(const setting *at, rse_engine *engine, known *k, const answers *plain) {
    rse_drafter *drafter = NULL;
    *k = (known){.base = {.name = names[at->drafter], .propose = known_propose, .destroy = known_destroy},
                 .answers = plain,
                 .shift = at->drafter == WRONG ? 1 : 0};
    switch (at->drafter) {
    case NGRAM:
        OK(rse_drafter_ngram(&drafter, &err));
        return drafter;
    case MTP:
        OK(rse_drafter_mtp(engine, &drafter, &err));
        return drafter;
    case MODEL:
        OK(rse_drafter_model(
            engine, strcmp(at->model, "tiny-gdn") == 0 ? MODEL_DIR("tiny-mamba2") : MODEL_DIR("tiny-gdn"),
            &drafter, &err));
        return drafter;
    default:
        return at->drafter == NONE ? NULL : &k->base;
    }
}

/* Requests come as others end, each with a session of its own for as long as it runs. */
static rse_sched_figures run(const setting *at, const golden *g, const answers *plain, answers *out) {
    rse_engine *engine =
        engine_open(at->model, (rse_engine_options){.sessions = at->sessions,
                                                    .step_tokens = STEP,
                                                    .check = at->check,
                                                    .method = at->method,
                                                    .window = at->exact ? WINDOW : 0,
                                                    .io_dtype = at->bf16 ? RSSM_DTYPE_BF16 : 0});
    rse_sched *sched;
    known k;
    rse_drafter *drafter = open_drafter(at, engine, &k, plain);
    OK(rse_sched_create(engine, &sched, &err));
    rse_speculation speculation = {
        .drafter = drafter, .drafts = at->drafts, .width = at->width, .exact = at->exact};
    OK(rse_sched_speculate(sched, &speculation, &err));
    rse_request *requests[PROMPTS_MAX] = {0};
    rse_session *sessions[PROMPTS_MAX] = {0};
    int32_t next = 0, ended = 0, open = 0, running;
    *out = (answers){.prompt = at->prompt, .tokens = at->tokens};
    while (ended < at->prompts) {
        if (next < at->prompts && open < at->sessions) {
            rse_request_desc desc = {
                .session = sessions[next] = session_open(engine, (uint64_t)next),
                .prompt = g->tokens + 61 * next,
                .count = at->prompt,
                .max_tokens = at->tokens,
                .ignore_end = true,
                .sampling = {.temperature = at->temperature, .top_p = 1.0f, .seed = (uint64_t)(next + 7)}};
            OK(rse_sched_add(sched, &desc, &requests[next++], &err));
            open++;
        }
        OK(rse_sched_step(sched, &running, &err));
        for (int32_t i = 0; i < next; i++) {
            if (requests[i] != NULL && rse_request_state(requests[i]) != RSE_RUNNING) {
                int64_t count;
                const int32_t *ids = rse_request_tokens(requests[i], &count);
                assert_int_equal(rse_request_state(requests[i]), RSE_FINISH_LENGTH);
                assert_int_equal(count, at->tokens);
                memcpy(out->ids[i], ids, (size_t)count * sizeof *ids);
                assert_int_equal(rse_session_position(sessions[i]) + rse_session_pending(sessions[i]),
                                 at->prompt + at->tokens - 1);
                OK(rse_session_check(sessions[i], &err));
                rse_request_free(requests[i]);
                rse_session_close(sessions[i]);
                requests[i] = NULL;
                ended++;
                open--;
            }
        }
    }
    rse_sched_figures figures = rse_sched_count(sched);
    assert_true(!at->check || rse_engine_checked(engine) > 0);
    rse_sched_destroy(sched);
    rse_drafter_destroy(drafter);
    rse_engine_close(engine);
    return figures;
}

/* Logits of the plain run of prompt i at its token t, alone. */
static void plain_logits(const setting *at, const golden *g, const answers *plain, int32_t i, int32_t t,
                         float *logits) {
    rse_engine *engine = engine_open(at->model, (rse_engine_options){.io_dtype = at->bf16 ? RSSM_DTYPE_BF16 : 0,
                                                                     .window = at->exact ? WINDOW : 0});
    rse_session *session = session_open(engine, (uint64_t)i);
    prompt_row(session, engine, g->tokens + 61 * i, at->prompt, logits);
    for (int32_t k = 0; k < t; k++) {
        decode_row(session, engine, plain->ids[i][k], logits);
    }
    rse_engine_close(engine);
}

/* What logits would have to change for the choice to fall on b instead of a. */
static double margin(const setting *at, const float *logits, int32_t i, int32_t t, int32_t a, int32_t b) {
    double logit = (double)logits[a] - (double)logits[b];
    uint64_t seed = (uint64_t)(i + 7);
    if (at->temperature == 0.0f) {
        return fabs(logit);
    }
    double race =
        log(rse_sampling_number(seed, at->prompt + t, a) / rse_sampling_number(seed, at->prompt + t, b));
    return fabs((double)at->temperature * race - logit);
}

/* Outputs of steps with drafts differ from plain ones in last bits, unless exact. So a text may part from the
   plain one where a choice hangs on last bits, and nowhere else; returns how many did. */
static int32_t compare(const setting *at, const golden *g, const answers *plain, const answers *drafted) {
    static float logits[4096];
    int32_t parted = 0;
    for (int32_t i = 0; i < at->prompts; i++) {
        int32_t t = 0;
        while (t < at->tokens && plain->ids[i][t] == drafted->ids[i][t]) {
            t++;
        }
        if (t < at->tokens) {
            int32_t a = plain->ids[i][t], b = drafted->ids[i][t];
            plain_logits(at, g, plain, i, t, logits);
            double by = margin(at, logits, i, t, a, b);
            printf("%s, %s, %d drafts of width %d, temperature %g, %d sessions: token %d of prompt %d is %d, "
                   "not %d, by a "
                   "margin of %g\n",
                   at->model, names[at->drafter], at->drafts, at->width, (double)at->temperature, at->sessions,
                   t, i, b, a, by);
            assert_false(at->exact);
            assert_within(by, at->bf16 ? 1e-2 : 1e-4, "margin where texts part");
            parted++;
        }
    }
    return parted;
}

static void report(const setting *at, const rse_sched_figures *f) {
    printf("%s %s drafts %d width %d temperature %g sessions %d: %.2f tokens a round, %.0f%% of %lld drafts "
           "right\n",
           at->model, names[at->drafter], at->drafts, at->width, (double)at->temperature, at->sessions,
           (double)(f->rounds + f->accepted) / (double)f->rounds,
           100.0 * (double)f->accepted / (double)(f->drafted + !f->drafted), (long long)f->drafted);
}

static setting base(int32_t model) {
    return (setting){.model = model_names[model],
                     .width = 1,
                     .check = true,
                     .prompts = long_run() ? 64 : PROMPTS,
                     .prompt = 24,
                     .tokens = long_run() ? 64 : TOKENS,
                     .sessions = 1};
}

static void text_is_that_of_plain_decoding(void **state) {
    (void)state;
    static const int32_t shapes[][2] = {{1, 1}, {3, 1}, {7, 1}, {RSE_DRAFTS_AUTO, 1}, {3, 2}, {2, 3}, {0, 1}};
    static answers plain[2], drafted; /* with the default window, and with that of exact runs */
    int32_t parted = 0, runs = 0;
    for (int32_t m = 0; m < MODELS; m++) {
        golden g = golden_open(model_names[m]);
        for (int32_t warm = 0; warm < 2; warm++) {
            setting at = base(m);
            at.temperature = warm != 0 ? 1.0f : 0.0f;
            for (int32_t exact = 0; exact < 2; exact++) {
                at.exact = exact != 0;
                run(&at, &g, NULL, &plain[exact]);
            }
            for (int32_t d = NGRAM; d < DRAFTERS; d++) {
                for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
                    at.drafter = d;
                    at.drafts = shapes[i][0];
                    at.width = shapes[i][1];
                    at.sessions = long_run() ? 1 + (int32_t)(5 * i) % 16 : 1 + (int32_t)(i + (size_t)d) % BATCH;
                    if ((d == MTP && m != 0) || (i + (size_t)d) % 2 == (size_t)warm) {
                        continue;
                    }
                    at.exact = i % 3 == 1;
                    const answers *expected = &plain[at.exact];
                    rse_sched_figures f = run(&at, &g, expected, &drafted);
                    int32_t some = compare(&at, &g, expected, &drafted);
                    assert_true(d != WRONG || f.accepted == 0);
                    assert_true(d != RIGHT || at.drafts < 1 || at.width > 1 || f.accepted == f.drafted ||
                                some > 0);
                    parted += some;
                    runs += at.prompts;
                    report(&at, &f);
                }
            }
        }
        rse_safetensors_close(g.files);
    }
    printf("%d of %d texts part at a near tie\n", parted, runs);
}

/* A state per draft gives the same text; and a session that is copied in the middle of it goes on as it should.
 */
static void snapshots_give_the_same_text(void **state) {
    (void)state;
    static answers plain, drafted;
    for (int32_t m = 0; m < MODELS; m++) {
        golden g = golden_open(model_names[m]);
        setting at = base(m);
        at.temperature = 0.8f;
        run(&at, &g, NULL, &plain);
        at.method = RSE_METHOD_SNAPSHOT;
        at.check = false;
        for (int32_t d = NONE; d < DRAFTERS; d++) {
            at.drafter = d == MTP && m != 0 ? NGRAM : d;
            at.drafts = 1 + d;
            at.sessions = 1 + d % 3;
            run(&at, &g, &plain, &drafted);
            (void)compare(&at, &g, &plain, &drafted);
        }
        rse_safetensors_close(g.files);
    }
    golden g = golden_open("tiny-gdn");
    rse_engine *engine = engine_open(
        "tiny-gdn", (rse_engine_options){.sessions = 3, .step_tokens = 4, .method = RSE_METHOD_SNAPSHOT});
    size_t vocab = (size_t)vocab_of(engine);
    float *a = malloc(2 * vocab * sizeof *a), *b = a + vocab;
    rse_session *s[3] = {session_open(engine, 1), session_open(engine, 1), session_open(engine, 1)};
    prompt_row(s[0], engine, g.tokens, 9, NULL);
    prompt_row(s[2], engine, g.tokens, 9, NULL);
    run_row(s[0], engine, g.tokens + 50, 4, false, RSE_ACCEPT_ALL, 0, NULL);
    OK(rse_session_copy(s[1], s[0], 1, &err));
    decode_row(s[1], engine, g.tokens[9], a);
    decode_row(s[2], engine, g.tokens[9], b);
    assert_memory_equal(a, b, vocab * sizeof *a);
    OK(rse_session_rollback(s[0], 9, &err)); /* what is pending is dropped */
    decode_row(s[0], engine, g.tokens[9], a);
    assert_memory_equal(a, b, vocab * sizeof *a);
    const int32_t fork[3] = {-1, 0, 0};
    rse_row row = {
        .session = s[0], .tokens = g.tokens, .count = 3, .accepted = RSE_ACCEPT_ALL, .parents = fork};
    REFUSED(RSE_ERROR_USAGE, "tree", rse_engine_step(engine, &row, 1, NULL, NULL, &err));
    REFUSED(RSE_ERROR_UNSUPPORTED, "position 4", rse_session_rollback(s[0], 4, &err));
    OK(rse_session_commit(s[0], RSE_ACCEPT_ALL, &err));
    REFUSED(RSE_ERROR_UNSUPPORTED, "snapshot",
            rse_session_save(s[0], &(rse_session_tail){0}, "/tmp/never-written", &err));
    free(a);
    rse_safetensors_close(g.files);
    rse_engine_close(engine);
}

/* With bf16 io the last bits of an output may round otherwise, and where two tokens are as good as equal that
   may turn the choice; never elsewhere. */
static void bf16_differs_at_near_ties_only(void **state) {
    (void)state;
    static answers plain, drafted;
    int32_t parted = 0, compared = 0;
    for (int32_t m = 0; m < MODELS; m++) {
        golden g = golden_open(model_names[m]);
        setting at = base(m);
        at.bf16 = true;
        at.prompts = long_run() ? 64 : 3 * PROMPTS;
        run(&at, &g, NULL, &plain);
        at.drafter = NGRAM + (m == 0);
        at.drafts = 4;
        at.sessions = 3;
        run(&at, &g, &plain, &drafted);
        parted += compare(&at, &g, &plain, &drafted);
        compared += at.prompts;
        rse_safetensors_close(g.files);
    }
    printf("bf16: %d of %d texts part at a near tie\n", parted, compared);
}

/* A slot's next sequence, and a sequence that was reset, draft as if they were the first. */
static void drafters_start_anew(void **state) {
    (void)state;
    golden g = golden_open("tiny-gdn");
    for (int32_t d = MTP; d <= MODEL; d++) {
        rse_engine *engine = engine_open("tiny-gdn", (rse_engine_options){.step_tokens = STEP});
        const setting at = {.model = "tiny-gdn", .drafter = d};
        known k;
        rse_drafter *drafter = open_drafter(&at, engine, &k, NULL);
        rse_session *session = session_open(engine, 1);
        int64_t accepted[4] = {0}, drafted[4] = {0};
        for (int32_t turn = 0; turn < 4;
             turn++) { /* a text, after a reset, after another text, in a new session */
            rse_sched *sched;
            rse_request *request;
            int32_t running = 1;
            const rse_speculation speculation = {.drafter = drafter, .drafts = 3, .width = 1};
            OK(rse_sched_create(engine, &sched, &err));
            OK(rse_sched_speculate(sched, &speculation, &err));
            rse_request_desc desc = {.session = session,
                                     .prompt = g.tokens + (turn == 2 ? 700 : 40),
                                     .count = 30,
                                     .max_tokens = 24,
                                     .ignore_end = true,
                                     .sampling = RSE_SAMPLING_GREEDY};
            OK(rse_sched_add(sched, &desc, &request, &err));
            while (running > 0) {
                OK(rse_sched_step(sched, &running, &err));
            }
            accepted[turn] = rse_sched_count(sched).accepted;
            drafted[turn] = rse_sched_count(sched).drafted;
            rse_sched_destroy(sched);
            if (turn < 2) {
                OK(rse_session_reset(session, 1, &err));
            } else {
                rse_session_close(session);
                session = session_open(engine, 1);
            }
        }
        assert_true(accepted[0] > 0);
        assert_int_equal(accepted[1], accepted[0]);
        assert_int_equal(drafted[1], drafted[0]);
        assert_int_equal(accepted[3], accepted[0]);
        assert_int_equal(drafted[3], drafted[0]);
        rse_drafter_destroy(drafter);
        rse_engine_close(engine);
    }
    rse_safetensors_close(g.files);
}

typedef struct end_watch {
    const rse_engine *engine;
    int32_t ids[STEP], count;
} end_watch;

static rse_status until_end(void *user, const float *logits, int64_t position, int32_t *token, bool *more,
                            rse_error *err) {
    (void)position;
    (void)err;
    end_watch *watch = user;
    *token = argmax(logits, 4096);
    watch->ids[watch->count++] = *token;
    *more = !rse_engine_is_end(watch->engine, *token);
    return RSE_OK;
}

/* Where an end token is accepted, text, state and counts end. */
static void nothing_is_kept_after_an_end_token(void **state) {
    (void)state;
    golden g = golden_open("tiny-mamba2");
    int32_t end = 0;
    rse_engine *engine = engine_open("tiny-mamba2", (rse_engine_options){.step_tokens = STEP});
    while (!rse_engine_is_end(engine, end)) {
        end++;
    }
    rse_session *s = session_open(engine, 0);
    rse_tree tree = {.count = 1, .tokens = {g.tokens[20]}, .parents = {-1}};
    int32_t node = rse_tree_add(&tree, 0, g.tokens[21]);
    node = rse_tree_add(&tree, node, end);
    (void)rse_tree_add(&tree, node, g.tokens[22]);
    /* the target is made to choose these: logits are given */
    float *logits = calloc((size_t)tree.count * 4096, sizeof *logits);
    for (int32_t i = 0; i + 1 < tree.count; i++) {
        logits[(size_t)i * 4096 + (size_t)tree.tokens[i + 1]] = 9.0f;
    }
    int32_t path[RSSM_STEP_TOKENS_MAX], count;
    end_watch watch = {engine, {0}, 0};
    prompt_row(s, engine, g.tokens, 20, NULL);
    rse_row row = {.session = s,
                   .tokens = tree.tokens,
                   .count = tree.count,
                   .accepted = RSE_ACCEPT_ALL,
                   .parents = tree.parents};
    OK(rse_engine_step(engine, &row, 1, NULL, NULL, &err));
    OK(rse_tree_accept(&tree, logits, 4096, 21, until_end, &watch, path, &count, &err));
    assert_int_equal(count, 2);
    assert_int_equal(watch.count, 2);
    assert_int_equal(watch.ids[1], end);
    OK(rse_session_choose(s, path, count, &err));
    assert_int_equal(rse_session_position(s) + rse_session_pending(s), 22);
    free(logits);
    rse_safetensors_close(g.files);
    rse_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_that_of_plain_decoding),     cmocka_unit_test(snapshots_give_the_same_text),
        cmocka_unit_test(bf16_differs_at_near_ties_only),     cmocka_unit_test(drafters_start_anew),
        cmocka_unit_test(nothing_is_kept_after_an_end_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
