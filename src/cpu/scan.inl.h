/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The chunked scan. The tokens of a call are cut into chunks, and the recurrence is written out over one chunk:
 * with S the state before it, a_t the product of its decays up to token t, and d_ts the product of those of
 * tokens s+1..t,
 *
 *     u_t = beta_t (v_t - delta (S (a_t k_t) + sum_{s<t} u_s (k_s . d_ts k_t)))      by forward substitution
 *     y_t = S (a_t q_t) + sum_{s<=t} u_s (k_s . d_ts q_t)
 *     S  <- S a_n + sum_s u_s (d_ns k_s)^T
 *
 * Rows of the state never meet. A tile of 16 m rows goes through all chunks while it lies in the first-level
 * cache, transposed: a vector holds one column of 16 rows, and each product takes its other factor as a
 * broadcast scalar from where it lies already, so that nothing but the tile is ever packed. The weights between
 * tokens are worked out first, once for all rows. Every decay is a product of decays along the walk (no
 * logarithm, no division): 0 and 1 are nothing special.
 *
 * A call of few tokens would not pay for the transposition: it walks the recurrence itself.
 */
#ifndef RSSM_SCAN_INL_H
#define RSSM_SCAN_INL_H

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "cpu/scan.h"
#include "cpu/vec.h"

enum {
    SCAN_CHUNK = 16,                             /* tokens: one vector of weights */
    SCAN_CHUNKS = RSSM_SCAN_TOKENS / SCAN_CHUNK, /* of a call */
    SCAN_VECTORS = 2,                            /* of a tile at most: 16 KB at d_k = 128 */
    SCAN_COLUMNS = 8,                            /* times SCAN_VECTORS: the accumulators of a block */
    SCAN_WALK_DELTA = 3,                         /* calls of at most so many tokens walk */
    SCAN_WALK_MAMBA2 = 6
};

/* One chunk of one head. Weights are [s][t], the entries that the formulas do not name being arbitrary. */
typedef struct scan_chunk {
    int32_t first, tokens;
    const float *k, *q; /* rows of padded d_k: a_t k_t and a_t q_t, without a_t for a scalar decay */
    const float *late;  /* d_ns k_s, without d_ns for a scalar decay */
    float *carry;       /* [t]: the a_t left out, or 1 */
    float *rest;        /* [s]: the d_ns left out, or 1 */
    float *minus;       /* -beta_t (k_s . d_ts k_t), s < t */
    float *mix;         /* k_s . d_ts q_t, s <= t */
    float *decay;       /* [padded d_k]: a_n */
    float *kk, *kq;     /* k_s . k_t and k_s . q_t of a scalar decay, shared by the heads */
} scan_chunk;

/* What is still to be asked for. */
typedef struct scan_asking {
    const rssm_wanted *at;
    int32_t count, row; /* lists from `at` on, rows of the first one asked for */
    int32_t each;       /* rows at a time */
} scan_asking;

typedef struct scan_work {
    const rssm_scan *scan;
    scan_asking *asking;
    int32_t row; /* padded d_k */
    int32_t chunks;
    float *tile;            /* [padded d_k][16 m] */
    float *read;            /* [2 SCAN_CHUNK][16 m]: S (a_t k_t) for the delta rule, then S (a_t q_t) */
    float *u;               /* [SCAN_CHUNK][16 m] */
    float *block;           /* [16][16] */
    float *fill_k, *fill_q; /* [SCAN_CHUNK][padded d_k]: rows of a chunk that has fewer */
    float *alpha;           /* [SCAN_CHUNK][padded d_k], vector decay only, as the next three */
    float *k, *q, *late;    /* [RSSM_SCAN_TOKENS][padded d_k] */
    scan_chunk chunk[SCAN_CHUNKS];
} scan_work;

static inline int32_t scan_min(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* ---- The state's tiles ------------------------------------------------------------------------------------
 */

/* Rows [row, row + 16 m) of the state into the tile; rows and columns that the state does not have become zero.
 */
static void scan_take(const scan_work *w, const float *state, int32_t row, int m) {
    int32_t d_k = w->scan->d_k, width = 16 * m;
    for (int32_t v = 0; v < m; v++) {
        int32_t first = row + 16 * v, rows = scan_min(16, w->scan->d_v - first);
        for (int32_t c = 0; c < w->row; c += 16) {
            const float *from = state + (ptrdiff_t)first * d_k + c;
            int32_t columns = scan_min(16, d_k - c);
            if (rows == 16 && columns == 16) {
                v16_transpose(w->tile + c * width + 16 * v, width, from, d_k);
                continue;
            }
            for (int32_t i = 0; i < 16; i++) {
                v16_store(w->block + 16 * i, i < rows ? v16_load_n(from + i * d_k, columns) : v16_zero());
            }
            v16_transpose(w->tile + c * width + 16 * v, width, w->block, 16);
        }
    }
}

static void scan_give(const scan_work *w, float *state, int32_t row, int m) {
    int32_t d_k = w->scan->d_k, width = 16 * m;
    for (int32_t v = 0; v < m; v++) {
        int32_t first = row + 16 * v, rows = scan_min(16, w->scan->d_v - first);
        for (int32_t c = 0; c < w->row; c += 16) {
            float *to = state + (ptrdiff_t)first * d_k + c;
            int32_t columns = scan_min(16, d_k - c);
            if (rows == 16 && columns == 16) {
                v16_transpose(to, d_k, w->tile + c * width + 16 * v, width);
                continue;
            }
            v16_transpose(w->block, 16, w->tile + c * width + 16 * v, width);
            for (int32_t i = 0; i < rows; i++) {
                v16_store_n(to + i * d_k, v16_load(w->block + 16 * i), columns);
            }
        }
    }
}

/* ---- Weights between tokens ----------------------------------------------------------------------------- */

/* The rows of a chunk, SCAN_CHUNK of them each, padded d_k apart. Past the chunk's end keys and queries are
   zero and decays 1. */
typedef struct scan_rows {
    const float *k, *q, *alpha;
} scan_rows;

/*
 * Products of the keys s, s+1 with the keys and queries t..t+3: kk[s][t] = k_s . d_ts k_t, kq[s][t] = k_s .
 * d_ts q_t. With `decays` the two keys walk along, in late [2][padded d_k]: they come decayed to t-1 and leave
 * decayed to t+3. `lead` is s - t where the walk starts among these tokens, else -2.
 */
RSSM_INLINE void scan_pairs(const int decays, const int lead, int32_t row, const scan_rows *rows, int32_t s,
                            int32_t t, float *late, float *kk, float *kq) {
    v16 p[16]; /* [k, q][s][t] */
    for (int i = 0; i < 16; i++) {
        p[i] = v16_zero();
    }
    const float *key = decays && lead < 0 ? late : rows->k + s * row;
    const float *keys = rows->k + t * row, *queries = rows->q + t * row,
                *alpha = decays ? rows->alpha + t * row : NULL;
    for (int32_t c = 0; c < row; c += 16) {
        v16 k0 = v16_load(key + c), k1 = v16_load(key + row + c);
        for (int i = 0; i < 4; i++) {
            if (decays) {
                v16 a = v16_load(alpha + i * row + c);
                k0 = i > lead ? v16_mul(k0, a) : k0;
                k1 = i > lead + 1 ? v16_mul(k1, a) : k1;
            }
            v16 k = v16_load(keys + i * row + c), q = v16_load(queries + i * row + c);
            p[i] = v16_fma(k0, k, p[i]);
            p[4 + i] = v16_fma(k1, k, p[4 + i]);
            p[8 + i] = v16_fma(k0, q, p[8 + i]);
            p[12 + i] = v16_fma(k1, q, p[12 + i]);
        }
        if (decays) {
            v16_store(late + c, k0);
            v16_store(late + row + c, k1);
        }
    }
    float sums[16];
    v16_store(sums, v16_sum16(p));
    for (int i = 0; i < 2; i++) {
        memcpy(kk + (s + i) * SCAN_CHUNK + t, sums + 4 * i, 4 * sizeof(float));
        memcpy(kq + (s + i) * SCAN_CHUNK + t, sums + 8 + 4 * i, 4 * sizeof(float));
    }
}

/* All pairs s <= t of a chunk. late [SCAN_CHUNK][padded d_k] is written where keys decay. */
RSSM_INLINE void scan_weigh(const int decays, int32_t row, const scan_rows *rows, int32_t tokens, float *late,
                            float *kk, float *kq) {
    for (int32_t s = 0; s < tokens; s += 2) {
        float *walk = decays ? late + s * row : NULL;
        int32_t t = s & ~3;
        if (s & 2) {
            scan_pairs(decays, 2, row, rows, s, t, walk, kk, kq);
        } else {
            scan_pairs(decays, 0, row, rows, s, t, walk, kk, kq);
        }
        for (t += 4; t < tokens; t += 4) {
            scan_pairs(decays, -2, row, rows, s, t, walk, kk, kq);
        }
    }
}

/* A chunk's rows of x: where they lie, or copied and filled up. */
static const float *scan_filled(const scan_work *w, const scan_chunk *chunk, const float *x, float *copy) {
    size_t floats = (size_t)chunk->tokens * (size_t)w->row;
    x += (ptrdiff_t)chunk->first * w->row;
    if (chunk->tokens == SCAN_CHUNK) {
        return x;
    }
    memcpy(copy, x, floats * sizeof *x);
    memset(copy + floats, 0, ((size_t)SCAN_CHUNK * (size_t)w->row - floats) * sizeof *x);
    return copy;
}

/* What the heads of a scalar decay share. */
static void scan_share(const scan_work *w) {
    for (int32_t i = 0; i < w->chunks; i++) {
        const scan_chunk *chunk = &w->chunk[i];
        scan_rows rows = {scan_filled(w, chunk, w->scan->k, w->fill_k),
                          scan_filled(w, chunk, w->scan->q, w->fill_q), NULL};
        scan_weigh(0, w->row, &rows, chunk->tokens, NULL, chunk->kk, chunk->kq);
    }
}

/* Row s of the decays d_ts over t follows from row s+1: times alpha_{s+1}, and a 1 at t = s. */
static void scan_scalar_decay(const scan_work *w, scan_chunk *chunk, const float *alpha, const float *beta) {
    static const float unit[31] = {[15] = 1.0f};
    int32_t n = chunk->tokens;
    v16 minus_beta = v16_neg(v16_load_n(beta, n)), row = v16_zero();
    float rest = 1.0f, carry = 1.0f;
    for (int32_t s = n - 1; s >= 0; s--) {
        row = v16_fma(row, v16_set1(s + 1 < n ? alpha[s + 1] : 1.0f), v16_load(unit + 15 - s));
        chunk->rest[s] = rest;
        rest *= alpha[s];
        v16 kk = v16_load(chunk->kk + s * SCAN_CHUNK), kq = v16_load(chunk->kq + s * SCAN_CHUNK);
        v16_store(chunk->minus + s * SCAN_CHUNK, v16_mul(v16_mul(row, kk), minus_beta));
        v16_store(chunk->mix + s * SCAN_CHUNK, v16_mul(row, kq));
    }
    for (int32_t t = 0; t < n; t++) {
        carry *= alpha[t];
        chunk->carry[t] = carry;
    }
    for (int32_t c = 0; c < w->row; c += 16) {
        v16_store(chunk->decay + c, v16_set1(carry));
    }
}

/* As scan_filled, for decays, whose padding may hold anything. */
static void scan_fill_alpha(const scan_work *w, const scan_chunk *chunk, const float *alpha) {
    for (int32_t t = 0; t < SCAN_CHUNK; t++) {
        for (int32_t c = 0; c < w->row; c += 16) {
            const float *from = alpha + t * w->row + c;
            int lanes = scan_min(16, w->scan->d_k - c);
            v16_store(w->alpha + t * w->row + c, t < chunk->tokens ? v16_load_n(from, lanes) : v16_set1(1.0f));
        }
    }
}

static void scan_vector_decay(const scan_work *w, scan_chunk *chunk, const float *alpha, const float *beta) {
    ptrdiff_t at = (ptrdiff_t)chunk->first * w->row;
    float *k = w->k + at, *q = w->q + at;
    scan_rows rows = {scan_filled(w, chunk, w->scan->k, w->fill_k),
                      scan_filled(w, chunk, w->scan->q, w->fill_q), alpha + at};
    if (chunk->tokens < SCAN_CHUNK || w->row > w->scan->d_k) {
        scan_fill_alpha(w, chunk, alpha + at);
        rows.alpha = w->alpha;
    }
    for (int32_t t = 0; t < chunk->tokens; t++) {
        for (int32_t c = 0; c < w->row; c += 16) {
            ptrdiff_t i = t * w->row + c;
            v16 product = v16_load(rows.alpha + i);
            product = t > 0 ? v16_mul(v16_load(chunk->decay + c), product) : product;
            v16_store(chunk->decay + c, product);
            v16_store(k + i, v16_mul(product, v16_load(rows.k + i)));
            v16_store(q + i, v16_mul(product, v16_load(rows.q + i)));
        }
    }
    scan_weigh(1, w->row, &rows, chunk->tokens, w->late + at, chunk->minus, chunk->mix);
    v16 minus_beta = v16_neg(v16_load_n(beta, chunk->tokens));
    for (int32_t s = 0; s < chunk->tokens; s++) {
        float *minus = chunk->minus + s * SCAN_CHUNK;
        v16_store(minus, v16_mul(v16_load(minus), minus_beta));
        chunk->carry[s] = 1.0f;
        chunk->rest[s] = 1.0f;
    }
}

/* ---- One tile through one chunk, m vectors wide ---------------------------------------------------------- */

/* out[j] = tile . x[j] for SCAN_COLUMNS vectors x[j] over d_k. */
RSSM_INLINE void scan_read(const int m, const scan_work *w, const float *const *x, float *out) {
    v16 sum[SCAN_COLUMNS][SCAN_VECTORS];
    for (int j = 0; j < SCAN_COLUMNS; j++) {
        for (int v = 0; v < m; v++) {
            sum[j][v] = v16_zero();
        }
    }
    const float *tile = w->tile;
    for (int32_t c = 0; c < w->scan->d_k; c++, tile += 16 * m) {
        v16 state[SCAN_VECTORS];
        for (int v = 0; v < m; v++) {
            state[v] = v16_load(tile + 16 * v);
        }
        for (int j = 0; j < SCAN_COLUMNS; j++) {
            v16 factor = v16_set1(x[j][c]);
            for (int v = 0; v < m; v++) {
                sum[j][v] = v16_fma(factor, state[v], sum[j][v]);
            }
        }
    }
    for (int j = 0; j < SCAN_COLUMNS; j++) {
        for (int v = 0; v < m; v++) {
            v16_store(out + 16 * (j * m + v), sum[j][v]);
        }
    }
}

/* S (a_t k_t) and S (a_t q_t) of a chunk. */
RSSM_INLINE void scan_read_all(const int m, const scan_work *w, const scan_chunk *chunk) {
    const float *x[2 * SCAN_CHUNK + SCAN_COLUMNS];
    int32_t n = 0;
    for (int32_t t = 0; t < chunk->tokens && w->scan->delta; t++) {
        x[n++] = chunk->k + t * w->row;
    }
    for (int32_t t = 0; t < chunk->tokens; t++) {
        x[n++] = chunk->q + t * w->row;
    }
    for (int32_t i = 0; i < SCAN_COLUMNS; i++) { /* the last block is always a whole one */
        x[n + i] = x[n - 1];
    }
    for (int32_t i = 0; i < n; i += SCAN_COLUMNS) {
        scan_read(m, w, x + i, w->read + i * 16 * m);
    }
}

/* Four tokens from t on: their u is final up to the part of their own four; token t + i becomes final, and its
   share is added to those after it and to the outputs. */
RSSM_INLINE void scan_settle(const int m, const int delta, const int i, const scan_chunk *chunk, int32_t t,
                             v16 (*u)[SCAN_VECTORS], v16 (*y)[SCAN_VECTORS]) {
    const float *minus = chunk->minus + (t + i) * SCAN_CHUNK + t, *mix = chunk->mix + (t + i) * SCAN_CHUNK + t;
    for (int j = i; j < 4; j++) {
        for (int v = 0; v < m; v++) {
            if (delta && j > i) {
                u[j][v] = v16_fma(v16_set1(minus[j]), u[i][v], u[j][v]);
            }
            y[j][v] = v16_fma(v16_set1(mix[j]), u[i][v], y[j][v]);
        }
    }
}

/* u and y of tokens t..t+3 of a chunk, for rows [row, row + 16 m) of the head. */
RSSM_INLINE void scan_four(const int m, const int delta, const scan_work *w, const scan_chunk *chunk, int32_t t,
                           int32_t head, int32_t row) {
    v16 u[4][SCAN_VECTORS], y[4][SCAN_VECTORS];
    int32_t d_v = rssm_padded(w->scan->d_v), width = 16 * m, last = chunk->tokens - 1;
    const float *value = w->scan->v[head] + (ptrdiff_t)chunk->first * d_v + row;
    const float *beta = w->scan->beta[head] + chunk->first;
    const float *read_q = w->read + (delta ? chunk->tokens * width : 0);
    for (int i = 0; i < 4; i++) {
        int32_t own = scan_min(t + i, last);
        v16 carry = v16_set1(chunk->carry[own]), strength = v16_set1(beta[own]);
        for (int v = 0; v < m; v++) {
            v16 x = v16_load(value + own * d_v + 16 * v);
            if (delta) {
                x = v16_fma(v16_neg(carry), v16_load(w->read + own * width + 16 * v), x);
            }
            u[i][v] = v16_mul(strength, x);
            y[i][v] = v16_mul(carry, v16_load(read_q + own * width + 16 * v));
        }
    }
    for (int32_t s = 0; s < t; s++) {
        const float *minus = chunk->minus + s * SCAN_CHUNK + t, *mix = chunk->mix + s * SCAN_CHUNK + t;
        for (int v = 0; v < m; v++) {
            v16 before = v16_load(w->u + s * width + 16 * v);
            for (int i = 0; i < 4; i++) {
                if (delta) {
                    u[i][v] = v16_fma(v16_set1(minus[i]), before, u[i][v]);
                }
                y[i][v] = v16_fma(v16_set1(mix[i]), before, y[i][v]);
            }
        }
    }
    scan_settle(m, delta, 0, chunk, t, u, y);
    scan_settle(m, delta, 1, chunk, t, u, y);
    scan_settle(m, delta, 2, chunk, t, u, y);
    scan_settle(m, delta, 3, chunk, t, u, y);
    float *out = w->scan->y[head] + (ptrdiff_t)chunk->first * d_v + row;
    for (int i = 0; i < 4; i++) {
        for (int v = 0; v < m; v++) {
            v16_store(w->u + (t + i) * width + 16 * v, u[i][v]);
            if (t + i <= last) {
                v16_store(out + (t + i) * d_v + 16 * v, y[i][v]);
            }
        }
    }
}

/* state[j] += key[j] u for SCAN_COLUMNS columns of the state. */
RSSM_INLINE void scan_add(const int m, const float *u, const float *key, v16 (*state)[SCAN_VECTORS]) {
    v16 x[SCAN_VECTORS];
    for (int v = 0; v < m; v++) {
        x[v] = v16_load(u + 16 * v);
    }
    for (int j = 0; j < SCAN_COLUMNS; j++) {
        v16 factor = v16_set1(key[j]);
        for (int v = 0; v < m; v++) {
            state[j][v] = v16_fma(factor, x[v], state[j][v]);
        }
    }
}

/* Tile <- tile a_n + sum_s u_s (d_ns k_s)^T. */
RSSM_INLINE void scan_update(const int m, const scan_work *w, const scan_chunk *chunk) {
    int32_t width = 16 * m, row = w->row, tokens = chunk->tokens;
    for (int32_t s = 0; s < tokens; s++) {
        for (int v = 0; v < m; v++) {
            float *u = w->u + s * width + 16 * v;
            v16_store(u, v16_mul(v16_set1(chunk->rest[s]), v16_load(u)));
        }
    }
    for (int32_t c = 0; c < row; c += SCAN_COLUMNS) {
        v16 state[SCAN_COLUMNS][SCAN_VECTORS];
        float *tile = w->tile + c * width;
        for (int j = 0; j < SCAN_COLUMNS; j++) {
            v16 decay = v16_set1(chunk->decay[c + j]);
            for (int v = 0; v < m; v++) {
                state[j][v] = v16_mul(decay, v16_load(tile + j * width + 16 * v));
            }
        }
        const float *u = w->u, *key = chunk->late + c;
        int32_t s = 0;
        for (; s < tokens; s++, u += width, key += row) {
            scan_add(m, u, key, state);
        }
        for (int j = 0; j < SCAN_COLUMNS; j++) {
            for (int v = 0; v < m; v++) {
                v16_store(tile + j * width + 16 * v, state[j][v]);
            }
        }
    }
}

/* Inputs and outputs of a head lie apart, token by token, where no hardware guesses what comes next. */
static void scan_ask(scan_asking *a) {
    for (int32_t i = 0; i < a->each && a->count > 0; i++) {
        const char *row = (const char *)a->at->at + a->row * a->at->stride;
        for (int32_t b = 0; b < a->at->bytes; b += 64) {
            v16_prefetch(row + b);
        }
        if (++a->row == a->at->n) {
            a->at++;
            a->count--;
            a->row = 0;
        }
    }
}

RSSM_INLINE void scan_tile(const int m, const scan_work *w, int32_t head, int32_t row) {
    scan_take(w, w->scan->state[head], row, m);
    for (int32_t i = 0; i < w->chunks; i++) {
        const scan_chunk *chunk = &w->chunk[i];
        scan_read_all(m, w, chunk);
        for (int32_t t = 0; t < chunk->tokens; t += 4) {
            scan_ask(w->asking);
            if (w->scan->delta) {
                scan_four(m, 1, w, chunk, t, head, row);
            } else {
                scan_four(m, 0, w, chunk, t, head, row);
            }
        }
        scan_update(m, w, chunk);
    }
    scan_give(w, w->scan->state[head], row, m);
}

static void scan_head(scan_work *w, int32_t head) {
    const rssm_scan *scan = w->scan;
    for (int32_t i = 0; i < w->chunks; i++) {
        scan_chunk *chunk = &w->chunk[i];
        const float *alpha = scan->alpha[head], *beta = scan->beta[head] + chunk->first;
        if (scan->vector_decay) {
            scan_vector_decay(w, chunk, alpha, beta);
        } else {
            scan_scalar_decay(w, chunk, alpha + chunk->first, beta);
        }
    }
    int32_t left = rssm_padded(scan->d_v) / 16, row = 0;
    for (int32_t tiles = (left + SCAN_VECTORS - 1) / SCAN_VECTORS; tiles > 0; tiles--) {
        int32_t m = (left + tiles - 1) / tiles;
        if (m == 1) {
            scan_tile(1, w, head, row);
        } else {
            scan_tile(2, w, head, row);
        }
        left -= m;
        row += 16 * m;
    }
}

/* ---- Token by token -------------------------------------------------------------------------------------- */

RSSM_INLINE v16 scan_alpha(const rssm_scan *scan, const float *alpha, int32_t t, int32_t c, int32_t lanes) {
    return scan->vector_decay ? v16_load_n(alpha + (ptrdiff_t)t * rssm_padded(scan->d_k) + c, lanes)
                              : v16_set1(alpha[t]);
}

/* One token on 16 rows of the state, whose u comes in as v. */
static v16 scan_step(const rssm_scan *scan, int32_t head, int32_t t, float *const rows[16], v16 u) {
    const float *k = scan->k + (ptrdiff_t)t * rssm_padded(scan->d_k), *q = scan->q + (k - scan->k);
    const float *alpha = scan->alpha[head];
    v16 p[16];
    for (int i = 0; i < 16; i++) {
        p[i] = v16_zero();
    }
    for (int32_t c = 0; c < scan->d_k && scan->delta; c += 16) {
        int32_t lanes = scan_min(16, scan->d_k - c);
        v16 key = v16_mul(scan_alpha(scan, alpha, t, c, lanes), v16_load(k + c));
        for (int i = 0; i < 16; i++) {
            p[i] = v16_fma(v16_load_n(rows[i] + c, lanes), key, p[i]);
        }
    }
    float strength[16];
    v16_store(strength, v16_mul(v16_set1(scan->beta[head][t]), scan->delta ? v16_sub(u, v16_sum16(p)) : u));
    for (int i = 0; i < 16; i++) {
        p[i] = v16_zero();
    }
    for (int32_t c = 0; c < scan->d_k; c += 16) {
        int32_t lanes = scan_min(16, scan->d_k - c);
        v16 decay = scan_alpha(scan, alpha, t, c, lanes), key = v16_load(k + c), query = v16_load(q + c);
        for (int i = 0; i < 16; i++) {
            v16 state = v16_mul(decay, v16_load_n(rows[i] + c, lanes));
            state = v16_fma(v16_set1(strength[i]), key, state);
            v16_store_n(rows[i] + c, state, lanes);
            p[i] = v16_fma(state, query, p[i]);
        }
    }
    return v16_sum16(p);
}

static void scan_walk(const rssm_scan *scan, int32_t head) {
    float *rows[16], *spare = scan->scratch; /* rows that the state does not have all lie there */
    int32_t d_v = rssm_padded(scan->d_v);
    memset(spare, 0, (size_t)scan->d_k * sizeof *spare);
    for (int32_t row = 0; row < scan->d_v; row += 16) {
        for (int32_t i = 0; i < 16; i++) {
            rows[i] = row + i < scan->d_v ? scan->state[head] + (ptrdiff_t)(row + i) * scan->d_k : spare;
        }
        for (int32_t t = 0; t < scan->tokens; t++) {
            v16 v = v16_load(scan->v[head] + (ptrdiff_t)t * d_v + row);
            v16_store(scan->y[head] + (ptrdiff_t)t * d_v + row, scan_step(scan, head, t, rows, v));
        }
    }
}

/* ---- The call -------------------------------------------------------------------------------------------- */

static inline float *scan_part(float **free, int32_t floats) {
    float *part = *free;
    *free += floats;
    return part;
}

static void scan_lay_out(scan_work *w) {
    const rssm_scan *scan = w->scan;
    float *free = scan->scratch;
    w->tile = scan_part(&free, w->row * 16 * SCAN_VECTORS);
    w->read = scan_part(&free, 2 * SCAN_CHUNK * 16 * SCAN_VECTORS);
    w->u = scan_part(&free, SCAN_CHUNK * 16 * SCAN_VECTORS);
    w->block = scan_part(&free, 16 * 16);
    w->fill_k = scan_part(&free, SCAN_CHUNK * w->row);
    w->fill_q = scan_part(&free, SCAN_CHUNK * w->row);
    if (scan->vector_decay) {
        w->alpha = scan_part(&free, SCAN_CHUNK * w->row);
        w->k = scan_part(&free, RSSM_SCAN_TOKENS * w->row);
        w->q = scan_part(&free, RSSM_SCAN_TOKENS * w->row);
        w->late = scan_part(&free, RSSM_SCAN_TOKENS * w->row);
    }
    for (int32_t i = 0; i < SCAN_CHUNKS; i++) {
        scan_chunk *chunk = &w->chunk[i];
        ptrdiff_t at = (ptrdiff_t)SCAN_CHUNK * i * w->row;
        chunk->first = SCAN_CHUNK * i;
        chunk->tokens = scan_min(SCAN_CHUNK, scan->tokens - SCAN_CHUNK * i);
        chunk->k = (scan->vector_decay ? w->k : scan->k) + at;
        chunk->q = (scan->vector_decay ? w->q : scan->q) + at;
        chunk->late = (scan->vector_decay ? w->late : scan->k) + at;
        chunk->carry = scan_part(&free, SCAN_CHUNK);
        chunk->rest = scan_part(&free, SCAN_CHUNK);
        chunk->minus = scan_part(&free, SCAN_CHUNK * SCAN_CHUNK);
        chunk->mix = scan_part(&free, SCAN_CHUNK * SCAN_CHUNK);
        chunk->kk = scan_part(&free, SCAN_CHUNK * SCAN_CHUNK);
        chunk->kq = scan_part(&free, SCAN_CHUNK * SCAN_CHUNK);
        chunk->decay = scan_part(&free, w->row);
    }
    assert((size_t)(free - scan->scratch) <=
           rssm_scan_scratch(scan->d_k, scan->d_v, scan->delta, scan->vector_decay));
}

/* Spreads what is wanted over the steps of scan_tile(). */
static scan_asking scan_spread(const rssm_scan *scan) {
    const int32_t tiles = (rssm_padded(scan->d_v) / 16 + SCAN_VECTORS - 1) / SCAN_VECTORS;
    const int32_t steps = scan->heads * tiles * ((scan->tokens + 3) / 4);
    int32_t rows = 0;
    for (int32_t i = 0; i < scan->wanted_count; i++) {
        rows += scan->wanted[i].n;
    }
    return (scan_asking){scan->wanted, scan->wanted_count, 0, (rows + steps - 1) / steps};
}

static void scan_chunked(const rssm_scan *scan) {
    scan_asking asking = scan_spread(scan);
    scan_work w = {.scan = scan, .asking = &asking, .row = rssm_padded(scan->d_k)};
    w.chunks = (scan->tokens + SCAN_CHUNK - 1) / SCAN_CHUNK;
    scan_lay_out(&w);
    if (!scan->vector_decay) {
        scan_share(&w);
    }
    for (int32_t head = 0; head < scan->heads; head++) {
        scan_head(&w, head);
    }
}

void RSSM_NAME(rssm_scan)(const rssm_scan *scan) {
    unsigned mode = v16_flush_subnormals();
    if (scan->tokens > (scan->delta ? SCAN_WALK_DELTA : SCAN_WALK_MAMBA2)) {
        scan_chunked(scan);
    } else {
        for (int32_t head = 0; head < scan->heads; head++) {
            scan_walk(scan, head);
        }
    }
    v16_restore_subnormals(mode);
}

#endif
