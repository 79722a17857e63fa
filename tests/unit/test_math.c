/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic on every instruction set of the machine: against double, and against itself, since a row's
 * result must not depend on how many rows or threads there are.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "math/math.h"
#include "numbers.h"

static uint32_t seed = 1;

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

static rse_math *math_of(uint64_t mask, rse_pool *pool) {
    rse_math *math;
    assert_int_equal(rse_math_create(mask, pool, &math, NULL), RSE_OK);
    return math;
}

static rse_pool *pool_of(int32_t threads) {
    rse_pool *pool;
    assert_int_equal(rse_pool_create(threads, &pool, NULL), RSE_OK);
    return pool;
}

/* Masks of the variants to test; a machine without the second runs the first twice. */
static const uint64_t masks[] = {RSSM_ISA_NONE, 0};
enum { MASKS = 2 };

static rse_matrix random_matrix(int64_t rows, int64_t cols, int32_t dtype) {
    rse_matrix w = {.rows = rows, .cols = cols, .dtype = dtype};
    float *x = random_row(rows * cols);
    if (dtype == RSSM_DTYPE_BF16) {
        uint16_t *h = malloc((size_t)(rows * cols) * sizeof *h);
        assert_non_null(h);
        for (int64_t i = 0; i < rows * cols; i++) {
            h[i] = rssm_bf16_of_f32(x[i]);
        }
        free(x);
        w.data = h;
    } else {
        w.data = x;
    }
    return w;
}

static double weight_at(const rse_matrix *w, int64_t o, int64_t i) {
    int64_t at = o * w->cols + i;
    return w->dtype == RSSM_DTYPE_BF16 ? (double)rssm_f32_of_bf16(((const uint16_t *)w->data)[at])
                                       : (double)((const float *)w->data)[at];
}

typedef struct shape {
    int64_t out, in, rows;
} shape;

static const shape shapes[] = {
    {1, 1, 1},    {1, 16, 3},   {16, 16, 16},    {17, 15, 7},   {33, 100, 13},
    {64, 512, 6}, {5, 513, 50}, {130, 1040, 49}, {96, 1537, 8},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void check_product(const rse_math *math, const shape *s, int32_t dtype, int with_bias) {
    int64_t x_stride = s->in + 3, y_stride = s->out + 5;
    rse_matrix w = random_matrix(s->out, s->in, dtype);
    float *x = random_row(s->rows * x_stride), *bias = random_row(s->out), *y = random_row(s->rows * y_stride);
    float canary = y[s->out];
    rse_matmul(math, &w, with_bias ? bias : NULL, s->rows, x, x_stride, y, y_stride);
    assert_true(y[s->out] == canary);
    for (int64_t m = 0; m < s->rows; m++) {
        for (int64_t o = 0; o < s->out; o++) {
            double sum = with_bias ? (double)bias[o] : 0.0, size = fabs(sum);
            for (int64_t i = 0; i < s->in; i++) {
                double product = weight_at(&w, o, i) * (double)x[m * x_stride + i];
                sum += product;
                size += fabs(product);
            }
            double bound = 0x1p-24 * size * (6.0 + sqrt((double)s->in / 16.0));
            if (fabs((double)y[m * y_stride + o] - sum) > bound) {
                fail_msg("%s, out %d, in %d, rows %d: y[%d][%d] is %.9g, not %.9g", rse_math_isa(math),
                         (int)s->out, (int)s->in, (int)s->rows, (int)m, (int)o, (double)y[m * y_stride + o],
                         sum);
            }
        }
    }
    free((void *)(uintptr_t)w.data);
    free(x);
    free(bias);
    free(y);
}

static void test_product_against_double(void **state) {
    (void)state;
    for (int v = 0; v < MASKS; v++) {
        rse_math *math = math_of(masks[v], NULL);
        for (int s = 0; s < SHAPES; s++) {
            check_product(math, &shapes[s], RSSM_DTYPE_F32, s % 2);
            check_product(math, &shapes[s], RSSM_DTYPE_BF16, (s + 1) % 2);
        }
        rse_math_destroy(math);
    }
}

/* Row m of a product of many rows has the bits it has alone, whatever the threads. */
static void check_row_independence(rse_math *const maths[3], int64_t out, int64_t in, int32_t dtype) {
    static const int64_t counts[] = {1, 2, 5, 6, 7, 12, 16, 48, 49, 130};
    enum { MOST = 130 };
    rse_matrix w = random_matrix(out, in, dtype);
    float *x = random_row(MOST * in), *bias = random_row(out), *alone = random_row(MOST * out),
          *y = random_row(MOST * out);
    for (int64_t m = 0; m < MOST; m++) {
        rse_matmul(maths[0], &w, bias, 1, x + m * in, in, alone + m * out, out);
    }
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        int64_t first = MOST - counts[c];
        for (int t = 0; t < 3; t++) {
            memset(y, 0xff, (size_t)(MOST * out) * sizeof *y);
            rse_matmul(maths[t], &w, bias, counts[c], x + first * in, in, y, out);
            assert_memory_equal(y, alone + first * out, (size_t)(counts[c] * out) * sizeof *y);
        }
    }
    free((void *)(uintptr_t)w.data);
    free(x);
    free(bias);
    free(alone);
    free(y);
}

static void test_product_bits(void **state) {
    (void)state;
    for (int v = 0; v < MASKS; v++) {
        rse_pool *pools[3] = {NULL, pool_of(2), pool_of(3)};
        rse_math *maths[3];
        for (int t = 0; t < 3; t++) {
            maths[t] = math_of(masks[v], pools[t]);
        }
        static const shape odd[] = {{1, 17, 0}, {19, 1, 0}, {40, 530, 0}, {200, 48, 0}, {3, 2100, 0}};
        for (size_t s = 0; s < sizeof odd / sizeof odd[0]; s++) {
            check_row_independence(maths, odd[s].out, odd[s].in, RSSM_DTYPE_F32);
            check_row_independence(maths, odd[s].out, odd[s].in, RSSM_DTYPE_BF16);
        }
        for (int t = 0; t < 3; t++) {
            rse_math_destroy(maths[t]);
            rse_pool_destroy(pools[t]);
        }
    }
}

/* bf16 weights are their exact f32 values: both formats give the same bits. NaN and infinity stay in their row.
 */
static void test_product_formats(void **state) {
    (void)state;
    enum { OUT = 21, IN = 77, ROWS = 9 };
    for (int v = 0; v < MASKS; v++) {
        rse_math *math = math_of(masks[v], NULL);
        rse_matrix h = random_matrix(OUT, IN, RSSM_DTYPE_BF16), f = h;
        float wide[OUT * IN], *x = random_row(ROWS * IN), a[ROWS * OUT], b[ROWS * OUT], row[IN];
        for (int64_t o = 0; o < OUT; o++) {
            rse_matrix_row(math, &h, o, wide + o * IN);
        }
        f.data = wide;
        f.dtype = RSSM_DTYPE_F32;
        rse_matrix_row(math, &f, 20, row);
        assert_memory_equal(row, wide + 20 * IN, sizeof row);
        x[4 * IN + 76] = NAN;
        x[7 * IN] = INFINITY;
        rse_matmul(math, &h, NULL, ROWS, x, IN, a, OUT);
        rse_matmul(math, &f, NULL, ROWS, x, IN, b, OUT);
        assert_memory_equal(a, b, sizeof a);
        for (int m = 0; m < ROWS; m++) {
            assert_true((isnan(a[m * OUT + 3]) != 0) == (m == 4));
            assert_true((isinf(a[m * OUT + 3]) != 0) == (m == 7));
        }
        free((void *)(uintptr_t)h.data);
        free(x);
        rse_math_destroy(math);
    }
}

static double exact_sigmoid(double x) {
    return 1.0 / (1.0 + exp(-x));
}

static void check_close(float got, double exact, double relative, const char *what) {
    if (!(fabs((double)got - exact) <= relative * fabs(exact) + 1e-37)) {
        fail_msg("%s is %.9g, not %.9g", what, (double)got, exact);
    }
}

static void check_rows(const rse_math *math, int64_t rows, int64_t cols) {
    int64_t stride = cols + 2;
    float *x = random_row(rows * stride), *b = random_row(rows * stride), *w = random_row(cols);
    float *y = random_row(rows * stride), *z = random_row(rows * stride);
    for (int64_t i = 0; i < rows * stride; i++) {
        x[i] *= 8.0f;
    }
    rse_rms_norm(math, rows, cols, x, stride, w, 1e-5f, y, stride);
    for (int64_t r = 0; r < rows; r++) {
        double squares = 0.0;
        for (int64_t i = 0; i < cols; i++) {
            squares += (double)x[r * stride + i] * (double)x[r * stride + i];
        }
        double inverse = 1.0 / sqrt(squares / (double)cols + 1e-5);
        for (int64_t i = 0; i < cols; i++) {
            check_close(y[r * stride + i], (double)x[r * stride + i] * inverse * (double)w[i], 2e-6,
                        "rms norm");
        }
    }
    rse_silu_mul(math, rows, cols, x, stride, b, stride, y, stride);
    rse_sigmoid_mul(math, rows, cols, x, stride, b, stride, z, stride);
    for (int64_t i = 0; i < rows * stride; i++) {
        if (i % stride < cols) {
            double g = exact_sigmoid((double)x[i]);
            check_close(y[i], (double)x[i] * g * (double)b[i], 5e-7, "silu");
            check_close(z[i], g * (double)b[i], 5e-7, "sigmoid");
        }
    }
    rse_relu2(math, rows, cols, x, stride, y, stride);
    rse_add(math, rows, cols, x, stride, b, stride, z, stride);
    for (int64_t i = 0; i < rows * stride; i++) {
        if (i % stride < cols) {
            assert_true(y[i] == (x[i] > 0.0f ? x[i] * x[i] : 0.0f));
            assert_true(z[i] == x[i] + b[i]);
        }
    }
    rse_round_bf16(math, rows, cols, x, stride, x, stride); /* in place */
    rse_softmax(math, rows, cols, b, stride, y, stride);
    for (int64_t r = 0; r < rows; r++) {
        double sum = 0.0;
        for (int64_t i = 0; i < cols; i++) {
            assert_true(x[r * stride + i] == rssm_f32_of_bf16(rssm_bf16_of_f32(x[r * stride + i])));
            sum += exp((double)b[r * stride + i]);
        }
        for (int64_t i = 0; i < cols; i++) {
            check_close(y[r * stride + i], exp((double)b[r * stride + i]) / sum, 2e-6, "softmax");
        }
    }
    free(x);
    free(b);
    free(w);
    free(y);
    free(z);
}

static void test_rows(void **state) {
    (void)state;
    rse_pool *pool = pool_of(2);
    for (int v = 0; v < MASKS; v++) {
        rse_math *math = math_of(masks[v], v == 0 ? NULL : pool);
        static const int64_t cols[] = {1, 7, 16, 17, 128, 1000};
        for (size_t c = 0; c < sizeof cols / sizeof cols[0]; c++) {
            check_rows(math, 1, cols[c]);
            check_rows(math, 37, cols[c]);
        }
        rse_math_destroy(math);
    }
    rse_pool_destroy(pool);
}

/* A row of a call on many rows and threads has the bits it has alone. */
static void test_rows_bits(void **state) {
    (void)state;
    enum { ROWS = 64, COLS = 611 };
    rse_pool *pool = pool_of(3);
    float *x = random_row(ROWS * COLS), *w = random_row(COLS), *y = random_row(ROWS * COLS), alone[COLS];
    for (int v = 0; v < MASKS; v++) {
        rse_math *many = math_of(masks[v], pool), *one = math_of(masks[v], NULL);
        rse_rms_norm(many, ROWS, COLS, x, COLS, w, 1e-6f, y, COLS);
        for (int r = 0; r < ROWS; r++) {
            rse_rms_norm(one, 1, COLS, x + r * COLS, COLS, w, 1e-6f, alone, COLS);
            assert_memory_equal(alone, y + r * COLS, sizeof alone);
        }
        rse_silu_mul(many, ROWS, COLS, x, COLS, y, COLS, y, COLS);
        rse_math_destroy(many);
        rse_math_destroy(one);
    }
    free(x);
    free(w);
    free(y);
    rse_pool_destroy(pool);
}

/* Angles are exact to the last bit of f32 that double gives, up to a quarter of a million positions. */
static void test_rope(void **state) {
    (void)state;
    enum { DIMS = 64, HEADS = 3, STRIDE = 100, TOKENS = 6 };
    static const int64_t positions[TOKENS] = {0, 1, 777, 4095, 65537, 262143};
    static const double thetas[] = {1e4, 1e7};
    static float table[TOKENS * DIMS];
    for (int v = 0; v < 2 * MASKS; v++) {
        double theta = thetas[v / MASKS];
        rse_math *math = math_of(masks[v % MASKS], NULL);
        float *x = random_row(TOKENS * HEADS * STRIDE),
              *before = malloc(TOKENS * HEADS * STRIDE * sizeof *before);
        assert_non_null(before);
        memcpy(before, x, TOKENS * HEADS * STRIDE * sizeof *before);
        assert_int_equal(rse_rope_table(DIMS, theta, TOKENS, positions, table, NULL), RSE_OK);
        rse_rope(math, TOKENS, HEADS, DIMS, table, x, HEADS * STRIDE, STRIDE);
        for (int t = 0; t < TOKENS; t++) {
            for (int h = 0; h < HEADS; h++) {
                const float *a = before + (t * HEADS + h) * STRIDE, *b = x + (t * HEADS + h) * STRIDE;
                for (int i = 0; i < DIMS / 2; i++) {
                    double angle = (double)positions[t] * pow(theta, -2.0 * i / DIMS);
                    float c = (float)cos(angle), s = (float)sin(angle), low = a[i], high = a[i + DIMS / 2];
                    assert_true(b[i] == low * c - high * s);
                    assert_true(b[i + DIMS / 2] == high * c + low * s);
                }
                assert_memory_equal(a + DIMS, b + DIMS, (STRIDE - DIMS) * sizeof *a);
            }
        }
        free(x);
        free(before);
        rse_math_destroy(math);
    }
    rse_error err;
    assert_int_equal(rse_rope_table(63, 1e4, 0, NULL, NULL, &err), RSE_ERROR_USAGE);
    assert_non_null(strstr(err.text, "63"));
    assert_int_equal(rse_rope_table(64, 0.0, 0, NULL, NULL, &err), RSE_ERROR_USAGE);
    assert_int_equal(rse_rope_table(RSE_ROPE_MAX_DIMS + 2, 1e4, 0, NULL, NULL, &err), RSE_ERROR_USAGE);
}

static void test_argmax_and_nll(void **state) {
    (void)state;
    float x[100];
    for (int v = 0; v < MASKS; v++) {
        rse_math *math = math_of(masks[v], NULL);
        for (int64_t n = 1; n <= 100; n++) {
            for (int64_t i = 0; i < n; i++) {
                x[i] = -5.0f;
            }
            assert_int_equal(rse_argmax(math, x, n), 0);
            x[n - 1] = -4.0f;
            assert_int_equal(rse_argmax(math, x, n), n - 1);
            x[n / 2] = -4.0f;
            assert_int_equal(rse_argmax(math, x, n), n / 2);
            x[0] = NAN;
            assert_int_equal(rse_argmax(math, x, n), n / 2);
        }
        x[0] = x[1] = NAN;
        assert_int_equal(rse_argmax(math, x, 2), 0);
        rse_math_destroy(math);
    }
    const float logits[4] = {1000.0f, 1001.0f, 999.0f, -INFINITY};
    double sum = exp(-1.0) + 1.0 + exp(-2.0);
    assert_true(fabs(rse_nll(logits, 4, 0) - (log(sum) + 1.0)) < 1e-12);
    assert_true(fabs(rse_nll(logits, 4, 1) - log(sum)) < 1e-12);
    assert_true(isinf(rse_nll(logits, 4, 3)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_product_against_double),
        cmocka_unit_test(test_product_bits),
        cmocka_unit_test(test_product_formats),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_rows_bits),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_argmax_and_nll),
    };
    return cmocka_run_group_tests_name("math", tests, NULL, NULL);
}
