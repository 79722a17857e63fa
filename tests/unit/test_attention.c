/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over the paged cache: against a naive version in double, and bit for bit against itself for any cut
 * of the prompt, any batch and any number of threads. Unused cache memory holds NaN throughout.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "math/attention.h"
#include "numbers.h"

static uint32_t seed = 7;

static float random_value(void) {
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) * 0x1p-23f - 1.0f;
}

static float *random_row(int64_t n) {
    float *x = malloc((size_t)n * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) {
        x[i] = random_value();
    }
    return x;
}

typedef struct setup {
    int32_t kv_heads, group, head_dim, dtype;
} setup;

static const setup setups[] = {
    {1, 1, 64, RSSM_DTYPE_F32}, {2, 4, 32, RSSM_DTYPE_F32},  {2, 1, 20, RSSM_DTYPE_BF16},
    {1, 3, 33, RSSM_DTYPE_F32}, {1, 40, 16, RSSM_DTYPE_F32}, {2, 2, 128, RSSM_DTYPE_BF16},
};
enum { SETUPS = sizeof setups / sizeof setups[0], LAYERS = 2, LAYER = 1 };

static const uint64_t masks[] = {RSSM_ISA_NONE, 0};
enum { MASKS = 2 };

/* A pool whose memory is NaN and whose pages come out in no particular order. */
static rse_kv_pool *poisoned_pool(const setup *s, int64_t pages) {
    rse_kv_desc desc = {
        .layers = LAYERS, .kv_heads = s->kv_heads, .head_dim = s->head_dim, .dtype = s->dtype, .pages = pages};
    rse_kv_pool *pool;
    assert_int_equal(rse_kv_pool_create(&desc, &pool, NULL), RSE_OK);
    memset(rse_kv_keys(pool, 0, 0), 0xff, (size_t)(rse_kv_page_bytes(&desc) * pages));
    rse_kv_seq even = {0}, odd = {0};
    for (int64_t i = 1; i <= pages / 2; i++) {
        assert_int_equal(rse_kv_seq_reserve(pool, &even, 0, i * RSE_KV_PAGE, NULL), RSE_OK);
        assert_int_equal(rse_kv_seq_reserve(pool, &odd, 0, i * RSE_KV_PAGE, NULL), RSE_OK);
    }
    rse_kv_seq_free(pool, &odd);
    rse_kv_seq_free(pool, &even);
    assert_int_equal(rse_kv_pool_free_pages(pool), pages);
    return pool;
}

/* A sequence's inputs, [tokens][heads][head_dim] each. */
typedef struct inputs {
    int64_t tokens;
    float *q, *k, *v;
} inputs;

static inputs make_inputs(const setup *s, int64_t tokens) {
    int64_t kv = (int64_t)s->kv_heads * s->head_dim;
    inputs in = {tokens, random_row(tokens * kv * s->group), random_row(tokens * kv), random_row(tokens * kv)};
    for (int64_t i = 0; i < tokens * kv; i++) {
        in.k[i] *= 3.0f;
    }
    return in;
}

static void free_inputs(inputs *in) {
    free(in->q);
    free(in->k);
    free(in->v);
}

/* Appends tokens start.. of the inputs to the sequence. */
static void append(const setup *s, rse_kv_pool *pool, rse_kv_seq *seq, const inputs *in, int64_t start,
                   int64_t tokens) {
    int64_t kv = (int64_t)s->kv_heads * s->head_dim;
    assert_int_equal(rse_kv_seq_reserve(pool, seq, 0, start + tokens, NULL), RSE_OK);
    rse_kv_write(pool, seq, LAYER, start, tokens, in->k + start * kv, kv, in->v + start * kv, kv);
}

static void attend_rows(const setup *s, const rse_math *math, const rse_kv_pool *pool,
                        const rse_attention_row *rows, int64_t row_count, const float *q, float *out) {
    int64_t width = (int64_t)s->kv_heads * s->group * s->head_dim;
    rse_attention_args args = {
        .pool = pool,
        .layer = LAYER,
        .heads = s->kv_heads * s->group,
        .scale = 1.0f / sqrtf((float)s->head_dim),
        .row_count = row_count,
        .rows = rows,
        .q = q,
        .q_stride = width,
        .q_head_stride = s->head_dim,
        .out = out,
        .out_stride = width,
    };
    rse_attention(math, &args);
}

/* The whole sequence in pieces; out [tokens][heads][head_dim]. piece 1 is decoding. */
static void run_pieces(const setup *s, const rse_math *math, const inputs *in, int64_t piece, float *out) {
    int64_t width = (int64_t)s->kv_heads * s->group * s->head_dim;
    rse_kv_pool *pool = poisoned_pool(s, rse_kv_pages_of(in->tokens) + 3);
    rse_kv_seq seq = {0};
    for (int64_t start = 0; start < in->tokens; start += piece) {
        int64_t tokens = in->tokens - start < piece ? in->tokens - start : piece;
        append(s, pool, &seq, in, start, tokens);
        rse_attention_row row = {.seq = &seq, .start = start, .tokens = tokens};
        attend_rows(s, math, pool, &row, 1, in->q + start * width, out + start * width);
    }
    rse_kv_seq_free(pool, &seq);
    rse_kv_pool_destroy(pool);
}

static float stored(const setup *s, float x) {
    return s->dtype == RSSM_DTYPE_BF16 ? rssm_f32_of_bf16(rssm_bf16_of_f32(x)) : x;
}

/* Softmax attention of query head h of token t in double; out [head_dim]. */
static void naive(const setup *s, const inputs *in, int64_t t, int64_t h, double *out) {
    int64_t dim = s->head_dim, kv = (int64_t)s->kv_heads * dim, head = h / s->group;
    const float *q = in->q + (t * s->kv_heads * s->group + h) * dim;
    double *score = malloc((size_t)(t + 1) * sizeof *score), max = -HUGE_VAL, sum = 0.0;
    assert_non_null(score);
    for (int64_t j = 0; j <= t; j++) {
        score[j] = 0.0;
        for (int64_t d = 0; d < dim; d++) {
            score[j] += (double)q[d] * (double)stored(s, in->k[j * kv + head * dim + d]);
        }
        score[j] /= sqrt((double)dim);
        max = fmax(max, score[j]);
    }
    memset(out, 0, (size_t)dim * sizeof *out);
    for (int64_t j = 0; j <= t; j++) {
        double w = exp(score[j] - max);
        sum += w;
        for (int64_t d = 0; d < dim; d++) {
            out[d] += w * (double)stored(s, in->v[j * kv + head * dim + d]);
        }
    }
    for (int64_t d = 0; d < dim; d++) {
        out[d] /= sum;
    }
    free(score);
}

static void test_against_double(void **state) {
    (void)state;
    enum { TOKENS = 275 };
    for (int i = 0; i < SETUPS * MASKS; i++) {
        const setup *s = &setups[i / MASKS];
        int64_t heads = (int64_t)s->kv_heads * s->group;
        rse_math *math = NULL;
        assert_int_equal(rse_math_create(masks[i % MASKS], NULL, &math, NULL), RSE_OK);
        inputs in = make_inputs(s, TOKENS);
        float *out = random_row(TOKENS * heads * s->head_dim);
        run_pieces(s, math, &in, TOKENS, out);
        for (int64_t t = 0; t < TOKENS; t += t < 40 ? 1 : 31) {
            double expected[128];
            int64_t h = t % heads;
            naive(s, &in, t, h, expected);
            for (int64_t d = 0; d < s->head_dim; d++) {
                float got = out[(t * heads + h) * s->head_dim + d];
                if (!(fabs((double)got - expected[d]) <= 2e-6)) {
                    fail_msg("%s, setup %d, token %d, head %d, dim %d: %.9g, not %.9g", rse_math_isa(math),
                             i / MASKS, (int)t, (int)h, (int)d, (double)got, expected[d]);
                }
            }
        }
        free(out);
        free_inputs(&in);
        rse_math_destroy(math);
    }
}

/* Decoding token by token, and pieces of any length on any number of threads, have the bits of one prefill. */
static void test_any_cut(void **state) {
    (void)state;
    enum { TOKENS = 266 };
    static const int64_t pieces[] = {16, 33, 100, 7};
    rse_pool *threads;
    assert_int_equal(rse_pool_create(3, &threads, NULL), RSE_OK);
    for (int i = 0; i < SETUPS * MASKS; i++) {
        const setup *s = &setups[i / MASKS];
        size_t n = (size_t)(TOKENS * s->kv_heads * s->group * s->head_dim);
        rse_math *math = NULL, *alone = NULL;
        assert_int_equal(rse_math_create(masks[i % MASKS], threads, &math, NULL), RSE_OK);
        assert_int_equal(rse_math_create(masks[i % MASKS], NULL, &alone, NULL), RSE_OK);
        inputs in = make_inputs(s, TOKENS);
        float *whole = random_row((int64_t)n), *out = random_row((int64_t)n);
        run_pieces(s, alone, &in, TOKENS, whole);
        for (int p = 0; p < 2; p++) { /* token by token, and in pieces of another length for each setup */
            run_pieces(s, p == 0 ? math : alone, &in, p == 0 ? 1 : pieces[i / MASKS % 4], out);
            assert_memory_equal(out, whole, n * sizeof *out);
        }
        free(whole);
        free(out);
        free_inputs(&in);
        rse_math_destroy(math);
        rse_math_destroy(alone);
    }
    rse_pool_destroy(threads);
}

/* Rows of different sequences, lengths and starts in one call have the bits they have alone; a row may be
   empty. One row's NaN stays there. */
static void test_batch(void **state) {
    (void)state;
    enum { ROWS = 4 };
    static const int64_t starts[ROWS] = {0, 47, 16, 260}, tokens[ROWS] = {19, 1, 0, 2};
    const setup *s = &setups[1];
    int64_t width = (int64_t)s->kv_heads * s->group * s->head_dim;
    rse_pool *threads;
    rse_math *math;
    assert_int_equal(rse_pool_create(2, &threads, NULL), RSE_OK);
    assert_int_equal(rse_math_create(0, threads, &math, NULL), RSE_OK);
    rse_kv_pool *pool = poisoned_pool(s, 64);
    rse_kv_seq seqs[ROWS] = {{0}};
    rse_attention_row rows[ROWS];
    float *q = random_row(32 * width), *out = random_row(32 * width), *alone = random_row(32 * width);
    int64_t first = 3;
    for (int r = 0; r < ROWS; r++) {
        inputs in = make_inputs(s, starts[r] + tokens[r]);
        append(s, pool, &seqs[r], &in, 0, starts[r] + tokens[r]);
        free_inputs(&in);
        rows[r] = (rse_attention_row){&seqs[r], starts[r], tokens[r], first};
        first += tokens[r];
    }
    q[(rows[1].first) * width] = NAN;
    memset(out, 0xa5, (size_t)(32 * width) * sizeof *out);
    memset(alone, 0xa5, (size_t)(32 * width) * sizeof *alone);
    attend_rows(s, math, pool, rows, ROWS, q, out);
    for (int r = 0; r < ROWS; r++) {
        attend_rows(s, math, pool, &rows[r], 1, q, alone);
    }
    assert_memory_equal(out, alone, (size_t)(32 * width) * sizeof *out);
    for (int64_t i = 3 * width; i < first * width; i++) {
        int in_bad_head = i >= rows[1].first * width && i < rows[1].first * width + s->head_dim;
        assert_int_equal(isnan(out[i]) != 0, in_bad_head);
    }
    free(q);
    free(out);
    free(alone);
    for (int r = 0; r < ROWS; r++) {
        rse_kv_seq_free(pool, &seqs[r]);
    }
    rse_kv_pool_destroy(pool);
    rse_math_destroy(math);
    rse_pool_destroy(threads);
}

/* Queries that lie beside their gates, as one projection leaves them. */
static void test_strided_queries(void **state) {
    (void)state;
    const setup *s = &setups[1];
    enum { TOKENS = 21, HEADS = 8, DIM = 32 };
    rse_math *math;
    assert_int_equal(rse_math_create(0, NULL, &math, NULL), RSE_OK);
    inputs in = make_inputs(s, TOKENS);
    float *out = random_row(TOKENS * HEADS * DIM), *wide = random_row(TOKENS * HEADS * 2 * DIM);
    float *strided = random_row(TOKENS * (HEADS * DIM + 8));
    run_pieces(s, math, &in, TOKENS, out);
    for (int64_t i = 0; i < TOKENS * HEADS; i++) {
        memcpy(wide + i * 2 * DIM, in.q + i * DIM, DIM * sizeof *wide);
    }
    rse_kv_pool *pool = poisoned_pool(s, 4);
    rse_kv_seq seq = {0};
    append(s, pool, &seq, &in, 0, TOKENS);
    rse_attention_row row = {.seq = &seq, .tokens = TOKENS};
    rse_attention_args args = {
        .pool = pool,
        .layer = LAYER,
        .heads = HEADS,
        .scale = 1.0f / sqrtf((float)DIM),
        .row_count = 1,
        .rows = &row,
        .q = wide,
        .q_stride = 2 * HEADS * DIM,
        .q_head_stride = 2 * DIM,
        .out = strided,
        .out_stride = HEADS * DIM + 8,
    };
    rse_attention(math, &args);
    for (int64_t t = 0; t < TOKENS; t++) {
        assert_memory_equal(strided + t * (HEADS * DIM + 8), out + t * HEADS * DIM, HEADS * DIM * sizeof *out);
    }
    rse_kv_seq_free(pool, &seq);
    rse_kv_pool_destroy(pool);
    free(out);
    free(wide);
    free(strided);
    free_inputs(&in);
    rse_math_destroy(math);
}

static void test_pages(void **state) {
    (void)state;
    const setup *s = &setups[0];
    rse_kv_pool *pool = poisoned_pool(s, 8);
    rse_kv_seq a = {0}, b = {0};
    rse_error err;
    assert_int_equal(rse_kv_seq_reserve(pool, &a, 0, 0, &err), RSE_OK);
    assert_int_equal(a.count, 0);
    assert_int_equal(rse_kv_seq_reserve(pool, &a, 0, 17, &err), RSE_OK);
    assert_int_equal(a.count, 2);
    assert_int_equal(rse_kv_seq_reserve(pool, &a, 0, 32, &err), RSE_OK);
    assert_int_equal(a.count, 2);
    assert_int_equal(rse_kv_pool_free_pages(pool), 6);
    assert_int_equal(rse_kv_seq_reserve(pool, &b, 0, 7 * RSE_KV_PAGE, &err), RSE_ERROR_MEMORY);
    assert_non_null(strstr(err.text, "7 pages"));
    assert_non_null(strstr(err.text, "6 are free"));
    assert_int_equal(b.count, 0);
    assert_int_equal(rse_kv_pool_free_pages(pool), 6);
    assert_int_equal(rse_kv_seq_reserve(pool, &b, 0, 6 * RSE_KV_PAGE, &err), RSE_OK);
    int seen[8] = {0};
    for (int i = 0; i < 8; i++) {
        int32_t page = i < 2 ? a.pages[i] : b.pages[i - 2];
        assert_in_range(page, 0, 7);
        assert_int_equal(seen[page]++, 0);
    }
    rse_kv_seq_truncate(pool, &b, 16);
    assert_int_equal(b.count, 1);
    rse_kv_seq_truncate(pool, &b, 1);
    assert_int_equal(b.count, 1);
    rse_kv_seq_truncate(pool, &b, 100);
    assert_int_equal(b.count, 1);
    rse_kv_seq_truncate(pool, &b, 0);
    assert_int_equal(rse_kv_pool_free_pages(pool), 6);
    rse_kv_seq_free(pool, &a);
    rse_kv_seq_free(pool, &b);
    assert_null(a.pages);
    assert_int_equal(rse_kv_pool_free_pages(pool), 8);
    rse_kv_pool_destroy(pool);
    rse_kv_pool_destroy(NULL);
}

/* Two sequences that hold the same pages, until one of them writes; and a third by way of memory. */
static void test_share_and_read(void **state) {
    (void)state;
    enum { TOKENS = 37 };
    for (int i = 0; i < SETUPS; i++) {
        const setup *s = &setups[i];
        int64_t kv = (int64_t)s->kv_heads * s->head_dim;
        rse_kv_pool *pool = poisoned_pool(s, 8);
        rse_kv_seq a = {0}, b = {0};
        inputs in = make_inputs(s, TOKENS);
        append(s, pool, &a, &in, 0, TOKENS);
        assert_int_equal(rse_kv_seq_share(pool, &a, 20, &b, NULL), RSE_OK);
        assert_int_equal(b.count, 2);
        assert_memory_equal(a.pages, b.pages, 2 * sizeof *a.pages);
        assert_int_equal(rse_kv_pool_free_pages(pool), 5);
        assert_int_equal(rse_kv_seq_wants(pool, &a, 5, TOKENS), 2);
        assert_int_equal(rse_kv_seq_wants(pool, &a, 32, TOKENS), 0);
        assert_int_equal(rse_kv_seq_reserve(pool, &a, 5, TOKENS, NULL), RSE_OK);
        rse_kv_write(pool, &a, LAYER, 5, 1, in.v, kv, in.k, kv);
        char *packed = malloc((size_t)rse_kv_pack_bytes(pool, 20));
        rse_kv_pack(pool, &b, 20, packed);
        rse_kv_seq_free(pool, &b);
        assert_int_equal(rse_kv_pool_free_pages(pool), 5);
        assert_int_equal(rse_kv_seq_reserve(pool, &b, 0, 20, NULL), RSE_OK);
        rse_kv_unpack(pool, &b, 20, packed);
        free(packed);
        float *k = random_row(TOKENS * (kv + 1)), *v = random_row(TOKENS * (kv + 1));
        rse_kv_read(pool, &b, LAYER, 3, 17, k, kv + 1, v, kv + 1);
        for (int64_t t = 0; t < 17; t++) {
            for (int64_t d = 0; d < kv; d++) {
                assert_true(k[t * (kv + 1) + d] == stored(s, in.k[(t + 3) * kv + d]));
                assert_true(v[t * (kv + 1) + d] == stored(s, in.v[(t + 3) * kv + d]));
            }
        }
        free(k);
        free(v);
        free_inputs(&in);
        rse_kv_seq_free(pool, &a);
        rse_kv_seq_free(pool, &b);
        assert_int_equal(rse_kv_pool_free_pages(pool), 8);
        rse_kv_pool_destroy(pool);
    }
}

static void test_pool_limits(void **state) {
    (void)state;
    static const rse_kv_desc bad[] = {
        {-1, 1, 64, RSSM_DTYPE_F32, 1}, {1, 0, 64, RSSM_DTYPE_F32, 1},  {1, 1, 0, RSSM_DTYPE_F32, 1},
        {1, 1, 64, RSSM_DTYPE_F8, 1},   {1, 1, 64, RSSM_DTYPE_F32, -1}, {1, 1, 64, RSSM_DTYPE_F32, INT64_MAX},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        rse_kv_pool *pool = (rse_kv_pool *)&seed;
        assert_int_equal(rse_kv_pool_create(&bad[i], &pool, NULL), RSE_ERROR_USAGE);
        assert_null(pool);
    }
    rse_kv_desc huge = {65536, 65536, 65536, RSSM_DTYPE_F32, INT32_MAX};
    rse_kv_pool *pool;
    assert_int_equal(rse_kv_pool_create(&huge, &pool, NULL), RSE_ERROR_MEMORY);
    rse_kv_desc none = {0, 1, 64, RSSM_DTYPE_F32, 3}; /* a model without attention */
    assert_int_equal(rse_kv_pool_create(&none, &pool, NULL), RSE_OK);
    assert_int_equal(rse_kv_page_bytes(&none), 0);
    rse_kv_seq seq = {0};
    assert_int_equal(rse_kv_seq_reserve(pool, &seq, 0, 48, NULL), RSE_OK);
    rse_kv_seq_free(pool, &seq);
    rse_kv_pool_destroy(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_double), cmocka_unit_test(test_any_cut),
        cmocka_unit_test(test_batch),          cmocka_unit_test(test_strided_queries),
        cmocka_unit_test(test_pages),          cmocka_unit_test(test_share_and_read),
        cmocka_unit_test(test_pool_limits),
    };
    return cmocka_run_group_tests_name("attention", tests, NULL, NULL);
}
