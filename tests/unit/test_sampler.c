/* SPDX-License-Identifier: Apache-2.0 */
/* The sampler: which tokens each filter leaves and with what probability, that draws follow them, and
 * determinism. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "math/sampler.h"

static uint32_t seed = 3;

static float random_value(void) {
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) * 0x1p-23f - 1.0f;
}

static rse_sampler *sampler_of(int64_t vocab) {
    rse_sampler *s;
    assert_int_equal(rse_sampler_create(vocab, &s, NULL), RSE_OK);
    return s;
}

static rse_sampling sampling_of(float temperature, int32_t top_k, float top_p, float min_p) {
    return (rse_sampling){
        .temperature = temperature, .top_k = top_k, .top_p = top_p, .min_p = min_p, .seed = 42};
}

/* The filters by their definition: everything sorted, everything in double. prob [vocab], 0 for what is left
 * out. */
static void reference(const rse_sampling *p, const float *logits, int64_t vocab, double *prob) {
    int64_t *order = malloc((size_t)vocab * sizeof *order), n = vocab, kept = 0;
    assert_non_null(order);
    for (int64_t i = 0; i < vocab; i++) { /* insertion keeps equal logits in order of id */
        int64_t at = i;
        for (; at > 0 && logits[order[at - 1]] < logits[i]; at--) {
            order[at] = order[at - 1];
        }
        order[at] = i;
    }
    double max = (double)logits[order[0]], total = 0.0, sum = 0.0;
    n = p->top_k > 0 && p->top_k < vocab ? p->top_k : vocab;
    for (int64_t i = 0; i < vocab; i++) {
        prob[order[i]] = i < n ? exp(((double)logits[order[i]] - max) / (double)p->temperature) : 0.0;
        total += prob[order[i]];
    }
    for (; p->top_p < 1.0f && kept < n && sum < (double)p->top_p * total; kept++) {
        sum += prob[order[kept]];
    }
    for (int64_t i = p->top_p < 1.0f ? kept : n; i < vocab; i++) {
        prob[order[i]] = 0.0;
    }
    total = 0.0;
    for (int64_t i = 0; i < vocab; i++) {
        prob[i] = prob[i] >= (double)p->min_p ? prob[i] : 0.0;
        total += prob[i];
    }
    for (int64_t i = 0; i < vocab; i++) {
        prob[i] /= total;
    }
    free(order);
}

static void check_distribution(rse_sampler *s, const rse_sampling *p, const float *logits, int64_t vocab) {
    double *expected = malloc((size_t)vocab * sizeof *expected), total = 0.0;
    const rse_token_prob *list;
    int64_t count, support = 0;
    assert_non_null(expected);
    reference(p, logits, vocab, expected);
    assert_int_equal(rse_sampler_distribution(s, p, logits, &list, &count, NULL), RSE_OK);
    for (int64_t i = 0; i < count; i++) {
        assert_in_range(list[i].id, 0, vocab - 1);
        assert_true(fabs((double)list[i].prob - expected[list[i].id]) <= 1e-7 * expected[list[i].id] + 1e-44);
        total += (double)list[i].prob;
        if (i > 0 && (p->top_k > 0 || p->top_p < 1.0f) && p->top_k < vocab) {
            float a = logits[list[i - 1].id], b = logits[list[i].id];
            assert_true(a > b || (!(a < b) && list[i - 1].id < list[i].id));
        }
    }
    for (int64_t i = 0; i < vocab; i++) {
        support += (float)expected[i] > 0.0f;
    }
    assert_int_equal(count, support);
    assert_true(fabs(total - 1.0) < 1e-6);
    free(expected);
}

static void test_filters(void **state) {
    (void)state;
    static const int64_t vocabs[] = {1, 2, 17, 300, 3000};
    static const rse_sampling settings[] = {
        {1.0f, 0, 1.0f, 0.0f, 0},  {0.7f, 5, 1.0f, 0.0f, 0},      {1.3f, 0, 0.9f, 0.0f, 0},
        {1.0f, 0, 1.0f, 0.2f, 0},  {0.8f, 40, 0.95f, 0.05f, 0},   {5.0f, 0, 0.999f, 0.0f, 0},
        {0.01f, 0, 0.5f, 0.0f, 0}, {2.0f, 1, 1.0f, 0.0f, 0},      {1.0f, 0, 1e-6f, 0.0f, 0},
        {1.0f, 0, 1.0f, 1.0f, 0},  {100.0f, 2999, 1.0f, 0.0f, 0},
    };
    for (size_t v = 0; v < sizeof vocabs / sizeof vocabs[0]; v++) {
        int64_t vocab = vocabs[v];
        rse_sampler *s = sampler_of(vocab);
        float *logits = malloc((size_t)vocab * sizeof *logits);
        assert_non_null(logits);
        for (int ties = 0; ties < 2; ties++) {
            for (int64_t i = 0; i < vocab; i++) {
                float x = 6.0f * random_value();
                logits[i] = ties ? roundf(x) : x;
            }
            logits[vocab / 2] = vocab > 1 ? -INFINITY : 0.0f;
            for (size_t p = 0; p < sizeof settings / sizeof settings[0]; p++) {
                check_distribution(s, &settings[p], logits, vocab);
            }
        }
        free(logits);
        rse_sampler_destroy(s);
    }
}

/* Equal logits: filters keep the lowest ids, greedy takes the first. */
static void test_ties(void **state) {
    (void)state;
    float logits[50];
    for (int i = 0; i < 50; i++) {
        logits[i] = i == 7 ? 0.0f : 1.0f;
    }
    rse_sampler *s = sampler_of(50);
    const rse_token_prob *list;
    int64_t count;
    rse_sampling p = sampling_of(1.0f, 9, 1.0f, 0.0f);
    assert_int_equal(rse_sampler_distribution(s, &p, logits, &list, &count, NULL), RSE_OK);
    assert_int_equal(count, 9);
    for (int i = 0; i < 9; i++) {
        assert_int_equal(list[i].id, i < 7 ? i : i + 1);
    }
    p = RSE_SAMPLING_GREEDY;
    int32_t id = -1;
    logits[0] = 0.0f;
    assert_int_equal(rse_sampler_next(s, &p, logits, 5, &id, NULL), RSE_OK);
    assert_int_equal(id, 1);
    rse_sampler_destroy(s);
}

/* Draws at successive positions follow the distribution: chi-square with 9 degrees of freedom, 0.1 % at 27.9.
 */
static void test_statistics(void **state) {
    (void)state;
    enum { VOCAB = 10, DRAWS = 20000 };
    static const float logits[VOCAB] = {0.0f, 1.0f, -1.0f, 2.0f, 0.5f, 0.1f, -2.0f, 1.5f, 0.7f, -0.3f};
    rse_sampler *s = sampler_of(VOCAB);
    for (uint64_t key = 1; key <= 2; key++) {
        rse_sampling p = sampling_of(1.0f, key == 1 ? 0 : VOCAB - 1, 1.0f, 0.0f);
        p.seed = key * 1000003;
        double expected[VOCAB], chi = 0.0;
        int counts[VOCAB] = {0};
        reference(&p, logits, VOCAB, expected);
        for (int64_t i = 0; i < DRAWS; i++) {
            int32_t id = -1;
            assert_int_equal(rse_sampler_next(s, &p, logits, i, &id, NULL), RSE_OK);
            counts[id]++;
        }
        for (int i = 0; i < VOCAB; i++) {
            double e = expected[i] * DRAWS;
            if (e > 0.0) {
                chi += (counts[i] - e) * (counts[i] - e) / e;
            } else {
                assert_int_equal(counts[i], 0);
            }
        }
        assert_true(chi < 27.9);
    }
    rse_sampler_destroy(s);
}

/* A token depends on seed, position and logits alone; purposes and seeds give other numbers. */
static void test_determinism(void **state) {
    (void)state;
    enum { VOCAB = 100 };
    float logits[VOCAB];
    for (int i = 0; i < VOCAB; i++) {
        logits[i] = random_value();
    }
    rse_sampler *a = sampler_of(VOCAB), *b = sampler_of(VOCAB);
    rse_sampling p = sampling_of(0.9f, 50, 0.95f, 0.0f);
    int32_t forward[64], id;
    int different = 0;
    for (int i = 0; i < 64; i++) {
        assert_int_equal(rse_sampler_next(a, &p, logits, i, &forward[i], NULL), RSE_OK);
    }
    for (int i = 63; i >= 0; i--) {
        assert_int_equal(rse_sampler_next(b, &p, logits, i, &id, NULL), RSE_OK);
        assert_int_equal(id, forward[i]);
        rse_sampling q = p;
        q.seed++;
        assert_int_equal(rse_sampler_next(b, &q, logits, i, &id, NULL), RSE_OK);
        different += id != forward[i];
    }
    assert_true(different > 32);
    double mean = 0.0;
    for (int64_t i = 0; i < 4096; i++) {
        double number = rse_sampling_number(7, i << 20, (int32_t)i);
        assert_true(number > 0.0 && number != rse_sampling_number(7, i << 20, (int32_t)i ^ 1));
        mean += number / 4096.0;
    }
    assert_true(fabs(mean - 1.0) < 0.05);
    /* the generator's published answer for a zero key and counter: 6627e8d5 e169c58d bc57ac4c 9b00dbd8 */
    static const uint64_t published[2] = {UINT64_C(0x6627e8d5e169c58d), UINT64_C(0xbc57ac4c9b00dbd8)};
    for (int32_t token = 0; token < 2; token++) {
        double u = ((double)(published[token] >> 11) + 0.5) * 0x1p-53;
        assert_true(rse_sampling_number(0, 0, token) == -log(u));
    }
    rse_sampler_destroy(a);
    rse_sampler_destroy(b);
}

/* The least number over probability wins, in whatever order the list is, and is the same for a list that lost
 * others. */
static void test_pick(void **state) {
    (void)state;
    static const rse_token_prob list[4] = {{7, 0.25f}, {2, 0.5f}, {9, 0.15f}, {6, 0.1f}};
    static const rse_token_prob turned[4] = {{6, 0.1f}, {9, 0.15f}, {2, 0.5f}, {7, 0.25f}};
    int wins[10] = {0};
    for (int64_t position = 0; position < 2000; position++) {
        int32_t expected = -1;
        double least = HUGE_VAL;
        for (int i = 0; i < 4; i++) {
            double time = rse_sampling_number(3, position, list[i].id) / (double)list[i].prob;
            expected = time < least ? list[i].id : expected;
            least = time < least ? time : least;
        }
        int32_t id = rse_sampling_pick(list, 4, 3, position);
        assert_int_equal(id, expected);
        assert_int_equal(rse_sampling_pick(turned, 4, 3, position), id);
        assert_true(id == 6 || rse_sampling_pick(list, 3, 3, position) == id);
        wins[id]++;
    }
    assert_true(abs(wins[2] - 1000) < 120 && abs(wins[6] - 200) < 70);
    assert_int_equal(rse_sampling_pick(list, 1, 5, 5), 7);
}

static void test_bad_input(void **state) {
    (void)state;
    static const struct {
        rse_sampling p;
        const char *word;
    } bad[] = {
        {{-0.1f, 0, 1.0f, 0.0f, 0}, "temperature is -0.1"}, {{NAN, 0, 1.0f, 0.0f, 0}, "temperature"},
        {{101.0f, 0, 1.0f, 0.0f, 0}, "temperature is 101"}, {{1.0f, -1, 1.0f, 0.0f, 0}, "top-k is -1"},
        {{1.0f, 0, 0.0f, 0.0f, 0}, "top-p is 0"},           {{1.0f, 0, 1.5f, 0.0f, 0}, "top-p is 1.5"},
        {{1.0f, 0, 1.0f, -0.5f, 0}, "min-p is -0.5"},       {{1.0f, 0, 1.0f, 2.0f, 0}, "min-p is 2"},
    };
    rse_error err;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(rse_sampling_check(&bad[i].p, &err), RSE_ERROR_USAGE);
        assert_non_null(strstr(err.text, bad[i].word));
    }
    rse_sampler *s = NULL;
    assert_int_equal(rse_sampler_create(0, &s, &err), RSE_ERROR_USAGE);
    assert_null(s);
    s = sampler_of(4);
    rse_sampling p = sampling_of(1.0f, 0, 1.0f, 0.0f);
    float logits[4] = {0.0f, 1.0f, NAN, 0.0f};
    int32_t id;
    assert_int_equal(rse_sampler_next(s, &p, logits, 0, &id, &err), RSE_ERROR_LIBRARY);
    assert_non_null(strstr(err.text, "token 2"));
    logits[2] = INFINITY;
    assert_int_equal(rse_sampler_next(s, &p, logits, 0, &id, &err), RSE_ERROR_LIBRARY);
    for (int i = 0; i < 4; i++) {
        logits[i] = -INFINITY;
    }
    assert_int_equal(rse_sampler_next(s, &p, logits, 0, &id, &err), RSE_ERROR_LIBRARY);
    logits[3] = -1e30f;
    assert_int_equal(rse_sampler_next(s, &p, logits, 0, &id, &err), RSE_OK);
    assert_int_equal(id, 3);
    rse_sampler_destroy(s);
    rse_sampler_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_filters),     cmocka_unit_test(test_ties), cmocka_unit_test(test_statistics),
        cmocka_unit_test(test_determinism), cmocka_unit_test(test_pick), cmocka_unit_test(test_bad_input),
    };
    return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
