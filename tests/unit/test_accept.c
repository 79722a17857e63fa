/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Verifying keeps the target's distribution, although drafts are chosen with the target's own random numbers:
 * chi-square over many seeds, chains and trees, with filters. And the share of drafts that is right, under the
 * rule that is used and under others.
 */
#include "draft/draft.h"
#include "model_fixture.h"

enum { VOCAB = 8, DRAWS = 20000, DEPTH = 3 };

/* Logits of the target after every pair of tokens, and of a drafter that is somewhat off; "after" a token. */
static float target[VOCAB][VOCAB], drafter[VOCAB][VOCAB];

static void make_models(void) {
    for (int32_t after = 0; after < VOCAB; after++) {
        for (int32_t token = 0; token < VOCAB; token++) {
            target[after][token] = 1.6f * sinf((float)(3 * after + 5 * token * token + 1));
            drafter[after][token] = target[after][token] + 0.8f * cosf((float)(7 * after + 2 * token));
        }
    }
}

typedef struct emitted {
    rse_sampler *sampler;
    const rse_sampling *sampling;
    int32_t tokens[DEPTH + 1], count;
} emitted;

static rse_status take(void *user, const float *logits, int64_t position, int32_t *token, bool *more, rse_error *err) {
    emitted *e = user;
    rse_status status = rse_sampler_next(e->sampler, e->sampling, logits, position, token, err);
    e->tokens[e->count++] = *token;
    *more = true;
    return status;
}

/* A round after token 0: drafts by the drafter, verified by the target. */
static emitted play(rse_sampler *sampler, const rse_sampling *sampling, int32_t width, int32_t *right) {
    rse_tree tree = {.count = 1, .tokens = {0}, .parents = {-1}};
    float logits[RSSM_STEP_TOKENS_MAX][VOCAB];
    int32_t node = 0, path[RSSM_STEP_TOKENS_MAX], count;
    emitted e = {.sampler = sampler, .sampling = sampling};
    for (int32_t d = 0; d < DEPTH; d++) {
        float mine[VOCAB];
        memcpy(mine, drafter[tree.tokens[node]], sizeof mine);
        OK(rse_tree_grow(&tree, sampler, sampling, mine, 11 + d, width, &node, &err));
    }
    for (int32_t i = 0; i < tree.count; i++) {
        memcpy(logits[i], target[tree.tokens[i]], sizeof logits[i]);
    }
    OK(rse_tree_accept(&tree, logits[0], VOCAB, 11, take, &e, path, &count, &err));
    assert_int_equal(count, e.count);
    *right += count - 1;
    return e;
}

/* Chi-square of counts against a distribution; its degrees of freedom are at most VOCAB - 1, for which 45 has a
   chance below one in ten million. */
static void assert_distributed(const int64_t *counts, const rse_token_prob *list, int64_t n, int32_t step) {
    double total = 0.0, sum = 0.0;
    for (int32_t token = 0; token < VOCAB; token++) {
        total += (double)counts[token];
    }
    for (int64_t i = 0; i < n; i++) {
        double expected = total * (double)list[i].prob, off = (double)counts[list[i].id] - expected;
        sum += expected >= 5.0 ? off * off / expected : 0.0;
    }
    if (!(sum < 45.0)) {
        fail_msg("token %d of a round: chi-square %g over %g draws", step, sum, total);
    }
}

static void distribution_is_kept(void **state) {
    (void)state;
    static const rse_sampling samplings[] = {
        {1.0f, 0, 1.0f, 0.0f, 0}, {0.7f, 5, 1.0f, 0.0f, 0}, {1.3f, 0, 0.8f, 0.0f, 0}, {1.0f, 0, 1.0f, 0.1f, 0}};
    rse_sampler *sampler, *other;
    OK(rse_sampler_create(VOCAB, &sampler, &err));
    OK(rse_sampler_create(VOCAB, &other, &err));
    for (size_t s = 0; s < sizeof samplings / sizeof samplings[0]; s++) {
        for (int32_t width = 1; width <= 3; width++) {
            int64_t counts[DEPTH + 1][VOCAB][VOCAB] = {{{0}}}; /* [step][token before][token] */
            int32_t right = 0;
            for (uint64_t seed = 0; seed < DRAWS; seed++) {
                rse_sampling sampling = samplings[s];
                sampling.seed = seed;
                emitted e = play(sampler, &sampling, width, &right);
                for (int32_t i = 0, before = 0; i < e.count; before = e.tokens[i++]) {
                    counts[i][before][e.tokens[i]]++;
                }
            }
            for (int32_t i = 0; i <= DEPTH; i++) {
                for (int32_t before = 0; before < VOCAB; before++) {
                    const rse_token_prob *list;
                    int64_t n, seen = 0;
                    for (int32_t token = 0; token < VOCAB; token++) {
                        seen += counts[i][before][token];
                    }
                    OK(rse_sampler_distribution(other, &samplings[s], target[before], &list, &n, &err));
                    if (seen >=
                        200) { /* given what came before, which says nothing of this position's number */
                        assert_distributed(counts[i][before], list, n, i);
                    }
                }
            }
            printf("sampling %zu, width %d: %.2f of %d drafts along the path right\n", s, width,
                   (double)right / DRAWS, DEPTH);
        }
    }
    rse_sampler_destroy(sampler);
    rse_sampler_destroy(other);
}

/* ---- Rules ---------------------------------------------------------------------------------------------- */

static void probabilities(const float *logits, int32_t n, double temperature, double *p) {
    double max = (double)logits[argmax(logits, n)], sum = 0.0;
    for (int32_t i = 0; i < n; i++) {
        p[i] = exp(((double)logits[i] - max) / temperature);
        sum += p[i];
    }
    for (int32_t i = 0; i < n; i++) {
        p[i] /= sum;
    }
}

/* Chances that a draft is right: by the rule of ratios (accept with min(1, p/q), which no rule can pass), by a
   race under the same numbers, by one number for stretches laid side by side, and for the drafter's likeliest
   token. */
enum { RATIOS, RACE, STRETCHES, LIKELIEST, RULES, RACES = 40 };

static void add_chances(const double *p, const double *q, int32_t n, int64_t position, double chances[RULES]) {
    static rse_token_prob lists[2][4096];
    double p_before = 0.0, q_before = 0.0;
    int32_t best = 0;
    for (int32_t i = 0; i < n; i++) {
        double from = fmax(p_before, q_before), to = fmin(p_before + p[i], q_before + q[i]);
        chances[RATIOS] += fmin(p[i], q[i]);
        chances[STRETCHES] += fmax(0.0, to - from);
        best = q[i] > q[best] ? i : best;
        p_before += p[i];
        q_before += q[i];
        lists[0][i] = (rse_token_prob){i, (float)p[i]};
        lists[1][i] = (rse_token_prob){i, (float)q[i]};
    }
    chances[LIKELIEST] += p[best];
    for (uint64_t seed = 0; seed < RACES; seed++) {
        bool same =
            rse_sampling_pick(lists[0], n, seed, position) == rse_sampling_pick(lists[1], n, seed, position);
        chances[RACE] += same ? 1.0 / RACES : 0.0;
    }
}

/* tiny-mamba2 drafts for tiny-gdn over held-out text. */
static void rules_are_compared(void **state) {
    (void)state;
    enum { TEXT = 160, FROM = 64, N = 4096, TARGET = 0, DRAFTER = 1, BOTH = 2 };
    static const double temperatures[] = {0.5, 0.8, 1.0};
    golden g = golden_open("tiny-gdn");
    float *logits[BOTH];
    for (int32_t m = 0; m < BOTH; m++) {
        rse_engine *engine = engine_open(m == TARGET ? "tiny-gdn" : "tiny-mamba2", (rse_engine_options){0});
        rse_session *session = session_open(engine, 0);
        logits[m] = malloc((size_t)TEXT * N * sizeof(float));
        run_row(session, engine, g.tokens, TEXT, true, RSE_ACCEPT_ALL, TEXT, logits[m]);
        rse_engine_close(engine);
    }
    double *p = malloc(2 * N * sizeof *p), *q = p + N;
    for (size_t i = 0; i < sizeof temperatures / sizeof temperatures[0]; i++) {
        double chances[RULES] = {0.0};
        for (int32_t t = FROM; t < TEXT; t++) {
            probabilities(logits[TARGET] + (size_t)t * N, N, temperatures[i], p);
            probabilities(logits[DRAFTER] + (size_t)t * N, N, temperatures[i], q);
            add_chances(p, q, N, t, chances);
        }
        double n = TEXT - FROM;
        printf("temperature %g: ratios %.3f, race %.3f, stretches %.3f, likeliest %.3f\n", temperatures[i],
               chances[RATIOS] / n, chances[RACE] / n, chances[STRETCHES] / n, chances[LIKELIEST] / n);
        assert_true(chances[RACE] > chances[STRETCHES] && chances[RACE] <= 1.03 * chances[RATIOS]);
    }
    free(p);
    free(logits[TARGET]);
    free(logits[DRAFTER]);
    rse_safetensors_close(g.files);
}

int main(void) {
    make_models();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distribution_is_kept),
        cmocka_unit_test(rules_are_compared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
