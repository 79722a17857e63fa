/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products in one order of summation. The unit is a tile: four rows of W against up to six rows of x,
 * sixteen partial sums for each product, so 24 accumulators that meet four loads of W and six of x per step. A
 * tile may be run over any stretch of the inner dimension and continued later: partial sums are kept as
 * vectors, and the tree over the lanes is climbed once, at the end. That is why few rows (W is streamed once,
 * from end to end) and many rows (blocks that stay in the caches, W expanded to f32 once per block) give the
 * same bits. Packed weights are always expanded by the block.
 */
#ifndef RSE_MATMUL_INL_H
#define RSE_MATMUL_INL_H

#include <stdbool.h>
#include <stddef.h>

#include "cpu/vec.h"
#include "math/math_ops.h"
#include "math/packed.inl.h"

enum {
    TILE_ROWS = 6,      /* rows of x in a tile */
    TILE_OUTPUTS = 4,   /* rows of W in a tile */
    BLOCK_DEPTH = 1024, /* inner dimension of a block: x of a tile takes 24 KB, an expanded group of W 64 KB */
    BLOCK_ROWS = 48,    /* rows of x in a block, whole tiles: 192 KB of x */
    FEW_ROWS = 24,      /* up to here W is streamed, and converted on the way */
    GROUP = RSE_MATMUL_GROUP,
    /* From one row of W in a tile to the next: the four rows that are read side by side, in one tile after the
       other, are four streams of addresses that only rise. Hardware prefetchers lose neighbouring rows that
       share a page. */
    APART = GROUP / TILE_OUTPUTS
};

/* Partial sums of one row of x with the outputs of a group. */
typedef struct group_sums {
    v16 of[GROUP];
} group_sums;

/* A stretch of the rows of one group of W, in the checkpoint's type or expanded. */
typedef struct weight_block {
    const void *data;
    int64_t stride; /* elements from row to row */
    int64_t rows;   /* 1..GROUP; a row beyond is taken to be the last one, and its sums are not used */
    bool bf16;
} weight_block;

/* One row of x with the outputs of a tile, or the weights of one step. Members, not an array: compilers keep an
   array in memory around the loop. */
typedef struct tile_row {
    v16 o0, o1, o2, o3;
} tile_row;

RSSM_INLINE void row_begin(tile_row *r, bool fresh, const v16 *sums) {
    r->o0 = fresh ? v16_zero() : sums[0];
    r->o1 = fresh ? v16_zero() : sums[APART];
    r->o2 = fresh ? v16_zero() : sums[2 * APART];
    r->o3 = fresh ? v16_zero() : sums[3 * APART];
}

RSSM_INLINE void row_step(tile_row *r, const tile_row *w, v16 x) {
    r->o0 = v16_fma(w->o0, x, r->o0);
    r->o1 = v16_fma(w->o1, x, r->o1);
    r->o2 = v16_fma(w->o2, x, r->o2);
    r->o3 = v16_fma(w->o3, x, r->o3);
}

RSSM_INLINE void row_end(const tile_row *r, v16 *sums) {
    sums[0] = r->o0;
    sums[APART] = r->o1;
    sums[2 * APART] = r->o2;
    sums[3 * APART] = r->o3;
}

RSSM_INLINE v16 load_weights(const void *w, int64_t i, bool bf16) {
    return bf16 ? v16_load_bf16((const uint16_t *)w + i) : v16_load((const float *)w + i);
}

static inline const void *weight_row(const weight_block *w, int64_t o) {
    int64_t row = o < w->rows ? o : w->rows - 1;
    return (const char *)w->data + row * w->stride * (w->bf16 ? 2 : 4);
}

/* Does f for each of a tile's rows; `size` is a constant. */
#define EACH_ROW(f)                                                                                            \
    do {                                                                                                       \
        f(0);                                                                                                  \
        if (size > 1) {                                                                                        \
            f(1);                                                                                              \
            f(2);                                                                                              \
        }                                                                                                      \
        if (size > 3) {                                                                                        \
            f(3);                                                                                              \
            f(4);                                                                                              \
            f(5);                                                                                              \
        }                                                                                                      \
    } while (0)
#define ROW_POINTER(m) x##m = x + ((m) < rows ? (m) : rows - 1) * x_stride
#define ROW_BEGIN(m) row_begin(&r##m, fresh, sums[m].of + first)
#define ROW_STEP(m) row_step(&r##m, &wv, v16_load(x##m + i))
#define ROW_END(m) row_end(&r##m, sums[m].of + first)

/* sums[m].of[first + APART * o] += partial sums of x row m with W row first + APART * o over `depth` values, a
   multiple of 16; = if fresh. The tile has `size` rows; of those from `rows` on x is not read and the sums are
   not used. size and bf16 are constants. */
RSSM_INLINE void tile(int size, bool bf16, const weight_block *w, int64_t first, const float *x,
                      int64_t x_stride, int64_t rows, int64_t depth, bool fresh, group_sums *sums) {
    const void *w0 = weight_row(w, first), *w1 = weight_row(w, first + APART);
    const void *w2 = weight_row(w, first + 2 * APART), *w3 = weight_row(w, first + 3 * APART);
    const float *x0, *x1, *x2, *x3, *x4, *x5;
    tile_row r0, r1, r2, r3, r4, r5;
    EACH_ROW(ROW_POINTER);
    EACH_ROW(ROW_BEGIN);
    for (int64_t i = 0; i < depth; i += 16) {
        tile_row wv = {load_weights(w0, i, bf16), load_weights(w1, i, bf16), load_weights(w2, i, bf16),
                       load_weights(w3, i, bf16)};
        EACH_ROW(ROW_STEP);
    }
    EACH_ROW(ROW_END);
}

typedef void tile_fn(const weight_block *w, int64_t first, const float *x, int64_t x_stride, int64_t rows,
                     int64_t depth, bool fresh, group_sums *sums);

/* Functions of their own, or the compiler merges what the tiles have in common and keeps the sums in memory. */
#define TILE_FN(size, type, bf16)                                                                              \
    static __attribute__((noinline)) void tile_##type##_##size(const weight_block *w, int64_t first,           \
                                                               const float *x, int64_t x_stride, int64_t rows, \
                                                               int64_t depth, bool fresh, group_sums *sums) {  \
        tile(size, bf16, w, first, x, x_stride, rows, depth, fresh, sums);                                     \
    }
TILE_FN(1, f32, false)
TILE_FN(3, f32, false)
TILE_FN(6, f32, false)
TILE_FN(1, bf16, true)
TILE_FN(3, bf16, true)
TILE_FN(6, bf16, true)

/* The last n values of the inner dimension, fewer than a vector, of which W and x hold no more. */
static void group_tail(const weight_block *w, int64_t rows, const float *x, int64_t x_stride, int64_t depth,
                       int n, group_sums *sums) {
    for (int64_t o = 0; o < w->rows; o++) {
        const void *p = weight_row(w, o);
        v16 wv =
            w->bf16 ? v16_load_bf16_n((const uint16_t *)p + depth, n) : v16_load_n((const float *)p + depth, n);
        for (int64_t m = 0; m < rows; m++) {
            sums[m].of[o] = v16_fma(wv, v16_load_n(x + m * x_stride + depth, n), sums[m].of[o]);
        }
    }
}

/* One group of outputs with `rows` rows of x. */
static void group_block(const weight_block *w, int64_t rows, const float *x, int64_t x_stride, int64_t depth,
                        bool fresh, group_sums *sums) {
    int64_t whole = depth / 16 * 16;
    for (int64_t m = 0; m < rows; m += TILE_ROWS) {
        int64_t count = rows - m < TILE_ROWS ? rows - m : TILE_ROWS;
        tile_fn *f32 = count > 3 ? tile_f32_6 : count > 1 ? tile_f32_3 : tile_f32_1;
        tile_fn *bf16 = count > 3 ? tile_bf16_6 : count > 1 ? tile_bf16_3 : tile_bf16_1;
        for (int64_t o = 0; o < APART; o++) {
            (w->bf16 ? bf16 : f32)(w, o, x + m * x_stride, x_stride, count, whole, fresh, sums + m);
        }
    }
    if (whole < depth) {
        group_tail(w, rows, x, x_stride, whole, (int)(depth - whole), sums);
    }
}

/* Climbs the tree over the lanes for outputs first.. of one group and writes them. */
static void group_finish(const rse_matmul_args *a, int64_t first, int64_t outputs, int64_t row, int64_t rows,
                         const group_sums *sums) {
    int n = (int)outputs;
    v16 bias = a->bias != NULL ? v16_load_n(a->bias + first, n) : v16_zero();
    for (int64_t m = 0; m < rows; m++) {
        v16 y = v16_sum16(sums[m].of);
        v16_store_n(a->y + (row + m) * a->y_stride + first, a->bias != NULL ? v16_add(y, bias) : y, n);
    }
}

/* Rows row.. of x against `count` groups of outputs from `group` on, the inner dimension in blocks. */
static void matmul_rows(const rse_matmul_args *a, int64_t group, int64_t count, int64_t row, int64_t rows) {
    const rse_matrix *w = a->w;
    group_sums sums[RSE_MATMUL_MAX_GROUPS][BLOCK_ROWS];
    _Alignas(64) float expanded[GROUP * BLOCK_DEPTH];
    bool bf16 = w->dtype == RSSM_DTYPE_BF16, few = rows <= FEW_ROWS;
    bool expand = w->dtype != RSSM_DTYPE_F32 && !(bf16 && few);
    int64_t block = few && !expand ? w->cols : BLOCK_DEPTH;
    for (int64_t k = 0; k < w->cols; k += block) {
        int64_t depth = w->cols - k < block ? w->cols - k : block;
        const float *x = a->x + row * a->x_stride + k;
        for (int64_t g = 0; g < count; g++) {
            int64_t first = (group + g) * GROUP;
            weight_block wb = {
                .stride = w->cols, .rows = w->rows - first < GROUP ? w->rows - first : GROUP, .bf16 = bf16};
            if (expand) {
                for (int64_t o = 0; o < wb.rows; o++) {
                    expand_row(w, first + o, k, depth, expanded + o * BLOCK_DEPTH);
                }
                wb = (weight_block){.data = expanded, .stride = BLOCK_DEPTH, .rows = wb.rows};
            } else {
                wb.data = (const char *)w->data + (first * w->cols + k) * (bf16 ? 2 : 4);
            }
            group_block(&wb, rows, x, a->x_stride, depth, k == 0, sums[g]);
        }
    }
    for (int64_t g = 0; g < count; g++) {
        int64_t first = (group + g) * GROUP;
        group_finish(a, first, w->rows - first < GROUP ? w->rows - first : GROUP, row, rows, sums[g]);
    }
}

static void matmul(const rse_matmul_args *a, int64_t task) {
    int64_t groups = (a->w->rows + GROUP - 1) / GROUP;
    int64_t group = task * a->groups, count = groups - group < a->groups ? groups - group : a->groups;
    for (int64_t m = 0; m < a->rows; m += BLOCK_ROWS) {
        matmul_rows(a, group, count, m, a->rows - m < BLOCK_ROWS ? a->rows - m : BLOCK_ROWS);
    }
}

#endif
