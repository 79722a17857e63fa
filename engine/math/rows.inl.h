/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations on single rows: norms, activations, rotary positions. Each handles its last, partial vector like
 * the others, through loads and stores of the first n lanes, so that no value depends on how long the row is
 * beyond it.
 */
#ifndef RSE_ROWS_INL_H
#define RSE_ROWS_INL_H

#include <math.h>
#include <stddef.h>

#include "cpu/vec.h"
#include "math/math_ops.h"

/* How many lanes of the vector at i lie in a row of n values. */
static inline int lanes_at(int64_t n, int64_t i) {
    return n - i < 16 ? (int)(n - i) : 16;
}

static void rms_norm(const rse_row_args *a, int64_t row) {
    const float *x = a->a + row * a->a_stride;
    float *y = a->y + row * a->y_stride;
    v16 squares = v16_zero();
    for (int64_t i = 0; i < a->cols; i += 16) {
        v16 v = v16_load_n(x + i, lanes_at(a->cols, i));
        squares = v16_fma(v, v, squares);
    }
    float mean = v16_sum(squares) / (float)a->cols;
    v16 inverse = v16_set1(1.0f / sqrtf(mean + a->eps));
    for (int64_t i = 0; i < a->cols; i += 16) {
        int n = lanes_at(a->cols, i);
        v16 v = v16_mul(v16_load_n(x + i, n), inverse);
        v16_store_n(y + i, v16_mul(v, v16_load_n(a->w + i, n)), n);
    }
}

/* y = f(a, b) value by value; b is read only where it is given. */
RSSM_INLINE void map_row(const rse_row_args *a, int64_t row, v16 (*f)(v16, v16)) {
    const float *x = a->a + row * a->a_stride;
    const float *b = a->b != NULL ? a->b + row * a->b_stride : x;
    float *y = a->y + row * a->y_stride;
    for (int64_t i = 0; i < a->cols; i += 16) {
        int n = lanes_at(a->cols, i);
        v16_store_n(y + i, f(v16_load_n(x + i, n), v16_load_n(b + i, n)), n);
    }
}

static inline v16 silu_mul_lanes(v16 a, v16 b) {
    return v16_mul(v16_silu(a), b);
}

static inline v16 sigmoid_mul_lanes(v16 a, v16 b) {
    return v16_mul(v16_sigmoid(a), b);
}

/* max(0, a)^2; of the two operands max returns the second if one is NaN. */
static inline v16 relu2_lanes(v16 a, v16 b) {
    (void)b;
    v16 positive = v16_max(v16_zero(), a);
    return v16_mul(positive, positive);
}

static inline v16 add_lanes(v16 a, v16 b) {
    return v16_add(a, b);
}

static inline v16 round_bf16_lanes(v16 a, v16 b) {
    (void)b;
    uint16_t h[16];
    v16_store_bf16(h, a);
    return v16_load_bf16(h);
}

static void silu_mul(const rse_row_args *a, int64_t row) {
    map_row(a, row, silu_mul_lanes);
}

static void sigmoid_mul(const rse_row_args *a, int64_t row) {
    map_row(a, row, sigmoid_mul_lanes);
}

static void relu2(const rse_row_args *a, int64_t row) {
    map_row(a, row, relu2_lanes);
}

static void add(const rse_row_args *a, int64_t row) {
    map_row(a, row, add_lanes);
}

static void round_bf16(const rse_row_args *a, int64_t row) {
    map_row(a, row, round_bf16_lanes);
}

static void clamp(const rse_row_args *a, int64_t row) {
    const float *x = a->a + row * a->a_stride;
    float *y = a->y + row * a->y_stride;
    for (int64_t i = 0; i < a->cols; i++) {
        y[i] = x[i] < a->factor ? a->factor : x[i] > a->other ? a->other : x[i];
    }
}

/* Of a model that no processor runs at speed: plain code, to the last bit of the library's tanh. */
static void situ_mul(const rse_row_args *a, int64_t row) {
    const float *gate = a->a + row * a->a_stride, *x = a->b + row * a->b_stride;
    float *y = a->y + row * a->y_stride;
    for (int64_t i = 0; i < a->cols; i++) {
        float g = a->factor * tanhf(gate[i] / a->factor) / (1.0f + expf(-gate[i]));
        y[i] = g * (a->other > 0.0f ? a->other * tanhf(x[i] / a->other) : x[i]);
    }
}

static void scale(const rse_row_args *a, int64_t row) {
    const float *x = a->a + row * a->a_stride;
    float *y = a->y + row * a->y_stride;
    v16 factor = v16_set1(a->factor);
    for (int64_t i = 0; i < a->cols; i += 16) {
        int n = lanes_at(a->cols, i);
        v16_store_n(y + i, v16_mul(factor, v16_load_n(x + i, n)), n);
    }
}

static void add_scaled(const rse_row_args *a, int64_t row) {
    const float *x = a->a + row * a->a_stride;
    float *y = a->y + (a->to != NULL ? a->to[row] : row) * a->y_stride;
    v16 factor = v16_set1(a->factors[row]);
    for (int64_t i = 0; i < a->cols; i += 16) {
        int n = lanes_at(a->cols, i);
        v16_store_n(y + i, v16_fma(factor, v16_load_n(x + i, n), v16_load_n(y + i, n)), n);
    }
}

static float max_lane(v16 v) {
    float lanes[16];
    v16_store(lanes, v);
    for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) {
            lanes[i] = lanes[i + half] > lanes[i] ? lanes[i + half] : lanes[i];
        }
    }
    return lanes[0];
}

static v16 mask_lanes(v16 v, int n) {
    static const float index[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return n == 16 ? v : v16_select(v16_lt(v16_load(index), v16_set1((float)n)), v, v16_set1(-INFINITY));
}

static float row_max(const float *x, int64_t n) {
    v16 best = v16_set1(-INFINITY);
    for (int64_t i = 0; i < n; i += 16) {
        int count = lanes_at(n, i);
        best = v16_max(mask_lanes(v16_load_n(x + i, count), count), best); /* NaN loses to the second operand */
    }
    return max_lane(best);
}

static void softmax(const rse_row_args *a, int64_t row) {
    const float *x = a->a + row * a->a_stride;
    float *y = a->y + row * a->y_stride;
    v16 max = v16_set1(row_max(x, a->cols)), sum = v16_zero();
    for (int64_t i = 0; i < a->cols; i += 16) {
        int n = lanes_at(a->cols, i);
        v16 e = v16_exp(v16_sub(mask_lanes(v16_load_n(x + i, n), n), max));
        v16_store_n(y + i, e, n);
        sum = v16_add(sum, e);
    }
    v16 total = v16_set1(v16_sum(sum));
    for (int64_t i = 0; i < a->cols; i += 16) {
        int n = lanes_at(a->cols, i);
        v16_store_n(y + i, v16_div(v16_load_n(y + i, n), total), n);
    }
}

/* Products are rounded before they are added, as the models' reference code does. */
static void rope(const rse_rope_args *a, int64_t token) {
    int64_t half = a->dims / 2;
    const float *cosine = a->table + token * a->dims, *sine = cosine + half;
    for (int64_t h = 0; h < a->heads; h++) {
        float *low = a->x + token * a->token_stride + h * a->head_stride, *high = low + half;
        for (int64_t i = 0; i < half; i += 16) {
            int n = lanes_at(half, i);
            v16 c = v16_load_n(cosine + i, n), s = v16_load_n(sine + i, n);
            v16 x = v16_load_n(low + i, n), y = v16_load_n(high + i, n);
            v16_store_n(low + i, v16_sub(v16_mul(x, c), v16_mul(y, s)), n);
            v16_store_n(high + i, v16_add(v16_mul(y, c), v16_mul(x, s)), n);
        }
    }
}

#endif
