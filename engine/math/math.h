/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of a model outside the recurrence: matrix products, norms, activations, rotary positions, and
 * what is done to a row of logits. A result depends on its own inputs and on the instruction set only: not on
 * the number of rows in a call, on the row's place among them, or on the number of threads, bit for bit.
 *
 * Activations are rows of f32, `cols` contiguous values each, `stride` values from one row to the next. In bf16
 * io they still are, holding values that bf16 can express: round them with rse_round_bf16() where the model
 * would store them. Arrays should be aligned to 64 bytes, for speed alone. An output may be the very array of
 * an input (same address and stride) in everything but rse_matmul().
 *
 * These calls check nothing: shapes come from a checked model. Rows are spread over the pool's threads.
 */
#ifndef RSE_MATH_H
#define RSE_MATH_H

#include <stdint.h>

#include "base/error.h"
#include "base/pool.h"

typedef struct rse_math rse_math;

/*
 * isa_mask: as in rssm_context_desc (0: all that the machine has; RSSM_ISA_NONE: portable code alone).
 * pool: may be NULL (one thread); it must outlive the rse_math. RSE_ERROR_MEMORY; *math is NULL then.
 */
rse_status rse_math_create(uint64_t isa_mask, rse_pool *pool, rse_math **math, rse_error *err);
void rse_math_destroy(rse_math *math);
/* "scalar", "avx2", "avx512", "neon": the variant in use. Static storage. */
const char *rse_math_isa(const rse_math *math);
rse_pool *rse_math_pool(const rse_math *math);

/*
 * A weight matrix as checkpoints store it: W[rows][cols], row-major and contiguous. Borrows data and scales.
 * What is packed stays packed: products expand a block of it at a time, on the way.
 *
 * RSE_PACKED_F8: a byte E4M3 for each weight; the weight is code * scales[(row + first_row) / scale_rows][col /
 * scale_cols], f32 with scale_stride from row to row. RSE_PACKED_NVFP4, _MXFP4: half a byte E2M1, the low half
 * first; a byte of scale, E4M3 or E8M0, for each 16 or 32 weights of a row, scales [rows][cols / 16 or 32]. The
 * others are the blocks of llama.cpp's files, which hold their scales. All are multiplied by factor.
 */
enum {
    RSE_PACKED_F8 = 100,
    RSE_PACKED_NVFP4,
    RSE_PACKED_MXFP4,
    RSE_PACKED_Q8_0,
    RSE_PACKED_Q4_0,
    RSE_PACKED_Q4_K,
    RSE_PACKED_Q5_K,
    RSE_PACKED_Q6_K,
    RSE_PACKED_IQ4_NL,
    RSE_PACKED_MXFP4_BLOCKS,
    RSE_PACKED_NVFP4_BLOCKS
};

typedef struct rse_matrix {
    const void *data;
    int64_t rows;  /* outputs */
    int64_t cols;  /* inputs; of packed formats a multiple of rse_matrix_block() */
    int32_t dtype; /* RSSM_DTYPE_F32, _BF16 or _F16, or RSE_PACKED_* */
    float factor;  /* packed formats */
    const void *scales;
    int64_t scale_stride;
    int64_t first_row;
    int32_t scale_rows;
    int32_t scale_cols;
} rse_matrix;

/* Weights of a row that only make sense together: 1, or what a block has. 0 for an unknown dtype. */
int64_t rse_matrix_block(int32_t dtype);
/* Bytes of `cols` weights of a row, a multiple of the block. */
int64_t rse_matrix_bytes(int32_t dtype, int64_t cols);
/* Rows first .. first + count - 1 as a matrix of their own. */
rse_matrix rse_matrix_rows(const rse_matrix *w, int64_t first, int64_t count);

/* All rows of a matrix in f32, y [rows][cols], by portable code; for what is done once at loading. */
void rse_matrix_expand(const rse_matrix *w, float *y);

/*
 * y[m][o] = sum_i W[o][i] x[m][i] + bias[o] for m in [0, rows). bias [w->rows] may be NULL. y must not overlap
 * x. All arithmetic is f32. The order of summation, for any number of rows: sixteen partial sums, the one of
 * lane l over i = l, l + 16, l + 32, ... by multiply-add, then a fixed tree over the lanes, then the bias.
 */
void rse_matmul(const rse_math *math, const rse_matrix *w, const float *bias, int64_t rows, const float *x,
                int64_t x_stride, float *y, int64_t y_stride);

/* y[cols] = row `row` of w in f32: an embedding. */
void rse_matrix_row(const rse_math *math, const rse_matrix *w, int64_t row, float *y);

/* y = x * rsqrt(mean(x^2) + eps) * w over each row. w [cols]; the (1 + w) form is folded into w when it is
 * loaded. */
void rse_rms_norm(const rse_math *math, int64_t rows, int64_t cols, const float *x, int64_t x_stride,
                  const float *w, float eps, float *y, int64_t y_stride);
/* y = silu(gate) * x */
void rse_silu_mul(const rse_math *math, int64_t rows, int64_t cols, const float *gate, int64_t gate_stride,
                  const float *x, int64_t x_stride, float *y, int64_t y_stride);
/* y = sigmoid(gate) * x */
void rse_sigmoid_mul(const rse_math *math, int64_t rows, int64_t cols, const float *gate, int64_t gate_stride,
                     const float *x, int64_t x_stride, float *y, int64_t y_stride);
/* y = x, not below low and not above high; NaN stays NaN */
void rse_clamp(const rse_math *math, int64_t rows, int64_t cols, const float *x, int64_t x_stride, float low,
               float high, float *y, int64_t y_stride);
/* y = beta tanh(gate / beta) sigmoid(gate) * up tanh(x / up), the last factor x itself where up is 0 */
void rse_situ_mul(const rse_math *math, int64_t rows, int64_t cols, const float *gate, int64_t gate_stride,
                  const float *x, int64_t x_stride, float beta, float up, float *y, int64_t y_stride);
/* y = max(x, 0)^2 */
void rse_relu2(const rse_math *math, int64_t rows, int64_t cols, const float *x, int64_t x_stride, float *y,
               int64_t y_stride);
/* y = s x, one factor for all */
void rse_scale(const rse_math *math, int64_t rows, int64_t cols, const float *x, int64_t x_stride, float factor,
               float *y, int64_t y_stride);
/* y[to[m]] += factors[m] * x[m], for m in [0, rows); no row of y twice. to NULL: row m itself. */
void rse_add_scaled(const rse_math *math, int64_t rows, int64_t cols, const float *x, int64_t x_stride,
                    const float *factors, const int32_t *to, float *y, int64_t y_stride);
/* y = a + b */
void rse_add(const rse_math *math, int64_t rows, int64_t cols, const float *a, int64_t a_stride, const float *b,
             int64_t b_stride, float *y, int64_t y_stride);
/* y = x rounded to bf16, nearest even, kept as f32 */
void rse_round_bf16(const rse_math *math, int64_t rows, int64_t cols, const float *x, int64_t x_stride,
                    float *y, int64_t y_stride);
/* y = softmax(x) over each row; a maximum of infinity gives NaN as everywhere */
void rse_softmax(const rse_math *math, int64_t rows, int64_t cols, const float *x, int64_t x_stride, float *y,
                 int64_t y_stride);

/*
 * Rotary positions in the NeoX form: of the first `dims` values of a head, value i turns with value i + dims/2,
 * by the angle position * theta^(-2i/dims). Angles are computed in double and their sine and cosine rounded to
 * f32, once per token for all heads and layers.
 */
enum { RSE_ROPE_MAX_DIMS = 512 };
/*
 * table [tokens][dims]: dims/2 cosines, then dims/2 sines of every token's angles.
 * RSE_ERROR_USAGE if dims is odd or outside 2..RSE_ROPE_MAX_DIMS, or theta is not positive.
 */
rse_status rse_rope_table(int32_t dims, double theta, int64_t tokens, const int64_t *positions, float *table,
                          rse_error *err);
/* Turns heads in place: head h of token t is at x + t * token_stride + h * head_stride. */
void rse_rope(const rse_math *math, int64_t tokens, int64_t heads, int32_t dims, const float *table, float *x,
              int64_t token_stride, int64_t head_stride);

/* The index of the largest value, the lowest one among equals; NaN never wins. n >= 1; 0 if all are NaN. */
int64_t rse_argmax(const rse_math *math, const float *x, int64_t n);
/* -log softmax(logits)[target] in nats, exponentials and sum in double. 0 <= target < n */
double rse_nll(const float *logits, int64_t n, int64_t target);

#endif
