/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state, 16 rows at a time: the inline update that conventional decoding and the fold share, and the read.
 *
 * A tile of 16 rows (8 KB at d_k = 128) stays in L1 while all records are folded into it and all queries read it,
 * and the next tile is prefetched meanwhile, so the state moves once.
 *
 * Order of operations, the same wherever a state element is updated or read:
 *   x = alpha x;  dot = S' k;  u = beta (v - delta dot);  x = u k + x (one rounding)
 *   dot: 16 partial sums, lane l over columns l, l + 16, ... in that order, by fused multiply-add from zero; then the
 *   tree of v16_sum (lanes 8 apart, 4, 2, 1). v16_sum16 does it for 16 rows at once, bit for bit the same.
 */
#ifndef RSSM_TILE_INL_H
#define RSSM_TILE_INL_H

#include "cpu/unit.inl.h"

#define RSSM_INLINE static inline __attribute__((always_inline))

/* A stretch of one head's records in scratch, oldest first. */
typedef struct window {
    int32_t n;
    int32_t vector_decay, delta, bf16;
    int32_t padded_k;
    const float *key;   /* [n][padded_k] */
    const float *alpha; /* [n] or [n][padded_k] */
    const float *beta;  /* [n] */
    const void *const *value; /* [n] -> [d_v], io format */
} window;

RSSM_INLINE v16 alpha_of(const window *w, int32_t j, int b) {
    return w->vector_decay ? v16_load(w->alpha + (int64_t)j * w->padded_k + 16 * b) : v16_set1(w->alpha[j]);
}

/* nb blocks of 16 columns, the last of which has `tail` columns. Constants where they matter. */
RSSM_INLINE v16 load_block(const float *row, int b, int nb, int tail) {
    return b + 1 < nb || tail == 16 ? v16_load(row + 16 * b) : v16_load_n(row + 16 * b, tail);
}
RSSM_INLINE void store_block(float *row, v16 x, int b, int nb, int tail) {
    if (b + 1 < nb || tail == 16) {
        v16_store(row + 16 * b, x);
    } else {
        v16_store_n(row + 16 * b, x, tail);
    }
}

RSSM_INLINE v16 decayed(v16 x, v16 alpha) { return v16_mul(alpha, x); }
RSSM_INLINE v16 updated(v16 x, v16 u, v16 key) { return v16_fma(u, key, x); }

/* Finishes record j - 1 in a row (if j > 0), decays by record j and returns the partial sums of its dot product. */
RSSM_INLINE v16 row_decay_dot(float *row, int nb, int tail, const window *w, int32_t j, v16 u) {
    const float *key = w->key + (int64_t)j * w->padded_k;
    v16 p = v16_zero();
    for (int b = 0; b < nb; b++) {
        v16 x = load_block(row, b, nb, tail);
        if (j > 0) {
            x = updated(x, u, v16_load(key - w->padded_k + 16 * b));
        }
        x = decayed(x, alpha_of(w, j, b));
        store_block(row, x, b, nb, tail);
        p = v16_fma(x, v16_load(key + 16 * b), p);
    }
    return p;
}

/* The delta rule over all records: per record one sweep that finishes the one before, decays, and takes the dot. */
RSSM_INLINE void fold_delta(float *tile, int rows, int ld, int nb, int tail, const window *w, int32_t first_row) {
    float u[16] = {0};
    v16 p[16];
    for (int i = rows; i < 16; i++) {
        p[i] = v16_zero();
    }
    for (int32_t j = 0; j < w->n; j++) {
        for (int i = 0; i < rows; i++) {
            p[i] = row_decay_dot(tile + (int64_t)i * ld, nb, tail, w, j, v16_set1(u[i]));
        }
        v16 v = load_io(w->value[j], first_row, w->bf16, rows);
        v16_store(u, v16_mul(v16_set1(w->beta[j]), v16_sub(v, v16_sum16(p))));
    }
    const float *key = w->key + (int64_t)(w->n - 1) * w->padded_k;
    for (int i = 0; i < rows; i++) {
        float *row = tile + (int64_t)i * ld;
        for (int b = 0; b < nb; b++) {
            v16 x = updated(load_block(row, b, nb, tail), v16_set1(u[i]), v16_load(key + 16 * b));
            store_block(row, x, b, nb, tail);
        }
    }
}

/* Without the delta rule u is known beforehand, so a row stays in registers over all records. */
RSSM_INLINE void fold_plain(float *tile, int rows, int ld, int nb, int tail, const window *w, int32_t first_row) {
    float u[RSSM_ROWS_MAX][16];
    for (int32_t j = 0; j < w->n; j++) {
        v16 v = load_io(w->value[j], first_row, w->bf16, rows);
        v16_store(u[j], v16_mul(v16_set1(w->beta[j]), v));
    }
    for (int i = 0; i < rows; i++) {
        float *row = tile + (int64_t)i * ld;
        v16 x[RSSM_HEAD_DIM_MAX / 16];
        for (int b = 0; b < nb; b++) {
            x[b] = load_block(row, b, nb, tail);
        }
        for (int32_t j = 0; j < w->n; j++) {
            const float *key = w->key + (int64_t)j * w->padded_k;
            v16 uj = v16_set1(u[j][i]);
            for (int b = 0; b < nb; b++) {
                x[b] = updated(decayed(x[b], alpha_of(w, j, b)), uj, v16_load(key + 16 * b));
            }
        }
        for (int b = 0; b < nb; b++) {
            store_block(row, x[b], b, nb, tail);
        }
    }
}

/* Reads a tile with `nq` queries (1, 2 or 4; a constant): out[q] lane i = row i . query q. */
RSSM_INLINE void read_tile(const float *tile, int rows, int ld, int nb, int tail, const float *r, int padded_k,
                           const int nq, v16 *out) {
    v16 p[4][16];
    const int step = 4 / nq; /* rows at a time: 4 rows x 1, 2 x 2, 1 x 4 accumulators keep clear of latency */
    for (int i = 0; i < 16; i += step) {
        v16 acc[4];
        for (int a = 0; a < 4; a++) {
            acc[a] = v16_zero();
        }
        if (i < rows) {
            for (int b = 0; b < nb; b++) {
                for (int s = 0; s < step; s++) {
                    int row = i + s < rows ? i + s : rows - 1;
                    v16 x = load_block(tile + (int64_t)row * ld, b, nb, tail);
                    for (int q = 0; q < nq; q++) {
                        acc[s * nq + q] = v16_fma(x, v16_load(r + (int64_t)q * padded_k + 16 * b), acc[s * nq + q]);
                    }
                }
            }
        }
        for (int s = 0; s < step; s++) {
            for (int q = 0; q < nq; q++) {
                p[q][i + s] = acc[s * nq + q];
            }
        }
    }
    for (int q = 0; q < nq; q++) {
        out[q] = v16_sum16(p[q]);
    }
}

/* What is done to one head's state: fold a window, then read it with queries, adding the values of a second window. */
typedef struct head_job {
    float *state; /* [d_v][d_k] */
    int32_t d_k, d_v;
    const window *fold; /* n may be 0 */
    const window *eval; /* records after the fold, values only; NULL: no reads */
    int32_t queries;
    const float *r; /* [queries][padded_k] */
    const float *c; /* [queries][ld_c]: coefficient of each record of eval */
    int32_t ld_c;
    int32_t newest; /* query q sees the records 0 .. newest + q of eval; -1 - q: none */
    float *y;       /* [queries][padded_v] */
    int32_t padded_v;
} head_job;

RSSM_INLINE void prefetch_tile(const float *tile, int rows, int ld) {
    const char *p = (const char *)tile;
    for (int64_t at = 0; at < (int64_t)rows * ld * (int64_t)sizeof(float); at += 64) {
        v16_prefetch(p + at);
    }
}

RSSM_INLINE void head_tile(const head_job *job, float *tile, int32_t first_row, int rows, int nb, int tail) {
    if (job->fold->n > 0 && job->fold->delta) {
        fold_delta(tile, rows, job->d_k, nb, tail, job->fold, first_row);
    } else if (job->fold->n > 0) {
        fold_plain(tile, rows, job->d_k, nb, tail, job->fold, first_row);
    }
    if (job->eval == NULL) {
        return;
    }
    int32_t padded_k = job->fold->padded_k;
    v16 dots[RSSM_STEP_TOKENS_MAX];
    int32_t q = 0;
    for (; q + 4 <= job->queries; q += 4) {
        read_tile(tile, rows, job->d_k, nb, tail, job->r + (int64_t)q * padded_k, padded_k, 4, dots + q);
    }
    for (; q + 2 <= job->queries; q += 2) {
        read_tile(tile, rows, job->d_k, nb, tail, job->r + (int64_t)q * padded_k, padded_k, 2, dots + q);
    }
    for (; q < job->queries; q++) {
        read_tile(tile, rows, job->d_k, nb, tail, job->r + (int64_t)q * padded_k, padded_k, 1, dots + q);
    }
    for (q = 0; q < job->queries; q++) {
        v16 sum = v16_zero();
        const float *c = job->c + (int64_t)q * job->ld_c;
        for (int32_t j = job->newest + q; j >= 0; j--) {
            sum = v16_fma(v16_set1(c[j]), load_io(job->eval->value[j], first_row, job->eval->bf16, rows), sum);
        }
        v16_store(job->y + (int64_t)q * job->padded_v + first_row, v16_add(sum, dots[q]));
    }
}

RSSM_INLINE void head_tiles(const head_job *job, int nb, int tail) {
    for (int32_t row = 0; row < job->d_v; row += 16) {
        int rows = job->d_v - row < 16 ? job->d_v - row : 16;
        float *tile = job->state + (int64_t)row * job->d_k;
        prefetch_tile(tile + (int64_t)rows * job->d_k, 16, job->d_k);
        head_tile(job, tile, row, rows, nb, tail);
    }
}

/* The usual key dimensions get code of their own, with all blocks unrolled. */
static void run_head(const head_job *job) {
    if (job->d_k == 128) {
        head_tiles(job, 8, 16);
    } else if (job->d_k == 64) {
        head_tiles(job, 4, 16);
    } else {
        int nb = (job->d_k + 15) / 16;
        head_tiles(job, nb, job->d_k - 16 * (nb - 1));
    }
}

#endif
