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

enum { TOKENS_MAX = 64, PROMPTS_MAX = 64, BATCH = 4, STEP = 8 };

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
                                                    .window = at->exact ? 12 : 0,
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

static void compare(const setting *at, const answers *plain, const answers *drafted) {
    for (int32_t i = 0; i < at->prompts; i++) {
        for (int32_t t = 0; t < at->tokens; t++) {
            if (plain->ids[i][t] != drafted->ids[i][t]) {
                fail_msg("%s, %s, %d drafts of width %d, temperature %g, %d sessions: token %d of prompt %d is "
                         "%d, not %d",
                         at->model, names[at->drafter], at->drafts, at->width, (double)at->temperature,
                         at->sessions, t, i, drafted->ids[i][t], plain->ids[i][t]);
            }
        }
    }
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
                     .prompts = long_run() ? 64 : 6,
                     .prompt = 24,
                     .tokens = long_run() ? 64 : 20,
                     .sessions = 1};
}

static void text_is_that_of_plain_decoding(void **state) {
    (void)state;
    static const int32_t shapes[][2] = {{1, 1}, {3, 1}, {7, 1}, {RSE_DRAFTS_AUTO, 1}, {3, 2}, {2, 3}, {0, 1}};
    static answers plain, drafted;
    for (int32_t m = 0; m < MODELS; m++) {
        golden g = golden_open(model_names[m]);
        for (int32_t warm = 0; warm < 2; warm++) {
            setting at = base(m);
            at.temperature = warm != 0 ? 1.0f : 0.0f;
            run(&at, &g, NULL, &plain);
            for (int32_t d = NGRAM; d < DRAFTERS; d++) {
                for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
                    at.drafter = d;
                    at.drafts = shapes[i][0];
                    at.width = shapes[i][1];
                    at.sessions = long_run() ? 1 + (int32_t)(5 * i) % 16 : 1 + (int32_t)(i + (size_t)d) % BATCH;
                    if ((d == MTP && m != 0) || (!long_run() && (i + (size_t)d) % 2 == (size_t)warm)) {
                        continue;
                    }
                    rse_sched_figures f = run(&at, &g, &plain, &drafted);
                    compare(&at, &plain, &drafted);
                    assert_true(d != WRONG || f.accepted == 0);
                    assert_true(d != RIGHT || at.drafts < 1 || at.width > 1 || f.accepted == f.drafted);
                    report(&at, &f);
                }
            }
        }
        rse_safetensors_close(g.files);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_that_of_plain_decoding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
