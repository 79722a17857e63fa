/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one instruction set provides: a table of functions, filled by math_variant.c once per ISA. Internal to
 * engine/math. Every function does one task of a parallel loop; how work is cut into tasks is decided above,
 * and changes no result.
 */
#ifndef RSE_MATH_OPS_H
#define RSE_MATH_OPS_H

#include <stdint.h>

#include "math/math.h"

/* Outputs that are worked on together: as many as lanes, so that their sums end in one vector. */
enum { RSE_MATMUL_GROUP = 16 };

typedef struct rse_matmul_args {
    const rse_matrix *w;
    const float *bias; /* or NULL */
    int64_t rows;
    const float *x;
    int64_t x_stride;
    float *y;
    int64_t y_stride;
    int64_t groups; /* of RSE_MATMUL_GROUP outputs, in one task; at most RSE_MATMUL_MAX_GROUPS */
} rse_matmul_args;

enum { RSE_MATMUL_MAX_GROUPS = 4 };

/* Operands of an operation on rows; each names what it uses. */
typedef struct rse_row_args {
    int64_t cols;
    const float *a;
    int64_t a_stride;
    const float *b;
    int64_t b_stride;
    const float *w;
    float eps;
    float *y;
    int64_t y_stride;
    float factor;
    float other; /* a second number */
    const float *factors;
    const int32_t *to;
} rse_row_args;

typedef void rse_row_fn(const rse_row_args *args, int64_t row);

typedef struct rse_rope_args {
    int64_t heads;
    int32_t dims;
    const float *table;
    float *x;
    int64_t token_stride;
    int64_t head_stride;
} rse_rope_args;

/* Queries of neighbouring tokens that read one kv head of one sequence. Strides are in elements. */
typedef struct rse_attend_args {
    const int32_t *pages; /* of the sequence */
    const void *keys;     /* of this layer and kv head in page 0 of the pool */
    const void *values;
    int64_t page_stride; /* from one page to the next */
    int32_t head_dim;
    int32_t dtype;
    float scale;
    int64_t start;   /* position of the first token */
    int64_t queries; /* tokens * group; query i is head i % group of token i / group */
    int32_t group;
    const float *q;
    int64_t q_stride;
    int64_t q_head_stride;
    float *out;
    int64_t out_stride;
} rse_attend_args;

typedef struct rse_math_ops {
    void (*matmul)(const rse_matmul_args *args, int64_t task);
    void (*attend)(const rse_attend_args *args);
    void (*rope)(const rse_rope_args *args, int64_t token);
    rse_row_fn *rms_norm; /* y = a * rsqrt(mean(a^2) + eps) * w */
    rse_row_fn *silu_mul; /* y = silu(a) * b */
    rse_row_fn *sigmoid_mul;
    rse_row_fn *relu2;
    rse_row_fn *add;
    rse_row_fn *round_bf16;
    rse_row_fn *clamp;      /* y = a within factor .. other */
    rse_row_fn *situ_mul;   /* y = factor tanh(a / factor) sigmoid(a) * other tanh(b / other) */
    rse_row_fn *scale;      /* y = factor a */
    rse_row_fn *add_scaled; /* row to[row] of y += factors[row] a */
    rse_row_fn *softmax;
    /* y[n] = weights col .. col + n - 1 of a row, both multiples of the matrix's block */
    void (*expand)(const rse_matrix *w, int64_t row, int64_t col, int64_t n, float *y);
    float (*max)(const float *x, int64_t n); /* NaN is passed over; -infinity if nothing else is there */
} rse_math_ops;

extern const rse_math_ops rse_math_ops_scalar;
extern const rse_math_ops rse_math_ops_avx2;
extern const rse_math_ops rse_math_ops_avx512;
extern const rse_math_ops rse_math_ops_neon;

const rse_math_ops *rse_math_table(const rse_math *math);

#endif
