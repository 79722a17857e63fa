/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state, 16 rows at a time: the inline update that conventional decoding and the fold share, and the read.
 *
 * A tile is 16 rows of a head, one per lane. It stays in L1 (8 KB at d_k = 128) while all records are folded into it and
 * all queries read it, so the state moves once. Its rows come from up to 8 places of the head side by side, not from
 * one: a core that walks several pages at once keeps more lines in flight (measured: 19-20 GB/s against 14 from one
 * stream). Which rows share a tile changes no result, as rows do not depend on each other.
 *
 * Order of operations, the same wherever a state element is updated or read:
 *   x = alpha x;  dot = S' k;  u = beta (v - delta dot);  x = u k + x (one rounding)
 *   dot: 16 partial sums, lane l over columns l, l + 16, ... in that order, by fused multiply-add from zero; then the
 *   tree of v16_sum (lanes 8 apart, 4, 2, 1). v16_sum16 does it for 16 rows at once, bit for bit the same.
 */
#ifndef RSSM_TILE_INL_H
#define RSSM_TILE_INL_H

#include "cpu/unit.inl.h"

/* A stretch of one head's records in scratch, oldest first. */
typedef struct window {
    int32_t n;
    int32_t vector_decay, delta, bf16;
    int32_t padded_k;
    const float *key;   /* [n][padded_k] */
    const float *alpha; /* [n] or [n][padded_k] */
    const float *beta;  /* [n] */
    const void *const *value; /* [n] -> [d_v], io format */
    int32_t draft;            /* the first record of the open step, where parents are given */
    const int8_t *parents;    /* of the records from there on, as in rssm_row; NULL: a chain */
} window;

/* The record before record j on its path; below 0: the checkpoint. */
RSSM_INLINE int32_t record_before(const window *w, int32_t j) {
    return w->parents != NULL && j >= w->draft ? w->draft + w->parents[j - w->draft] : j - 1;
}

RSSM_INLINE v16 alpha_of(const window *w, int vector_decay, int32_t j, int b) {
    return vector_decay ? v16_load(w->alpha + (int64_t)j * w->padded_k + 16 * b) : v16_set1(w->alpha[j]);
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

/* nb whole blocks into registers; those beyond are not used. */
RSSM_INLINE void load_blocks(v16 *x, const float *from, int nb) {
    RSSM_UNROLL
    for (int b = 0; b < RSSM_HEAD_DIM_MAX / 16; b++) {
        x[b] = b < nb ? v16_load(from + 16 * b) : v16_zero();
    }
}

RSSM_INLINE v16 decayed(v16 x, v16 alpha) { return v16_mul(alpha, x); }
RSSM_INLINE v16 updated(v16 x, v16 u, v16 key) { return v16_fma(u, key, x); }

/* ---- Tiles -------------------------------------------------------------------------------------------- */

/* How a head's rows are dealt to tiles: `streams` places, 16 / streams neighbouring rows from each. */
typedef struct deal {
    int32_t streams, rows_each; /* rows of a stream in one tile */
    int32_t stream_rows;        /* rows of a stream in the head */
} deal;

static inline deal deal_rows(int32_t d_v) {
    int32_t streams = d_v % 16 != 0 ? 1 : d_v >= 64 ? 8 : d_v / 16 == 3 ? 1 : d_v / 16;
    return (deal){streams, 16 / streams, d_v / streams};
}

/* One tile: lane i is row (i / rows_each) * stream_rows + first + i % rows_each of the head. */
typedef struct tile {
    float *row[16]; /* [lanes] */
    int32_t index[16];
    int32_t lanes; /* 16, fewer in the last tile of a head whose rows are no multiple of 16 */
} tile;

static inline void make_tile(tile *t, float *state, int32_t d_k, int32_t d_v, const deal *d, int32_t number) {
    t->lanes = d->streams > 1 || d_v - 16 * number >= 16 ? 16 : d_v - 16 * number;
    for (int32_t i = 0; i < t->lanes; i++) {
        t->index[i] = i / d->rows_each * d->stream_rows + number * d->rows_each + i % d->rows_each;
        t->row[i] = state + (int64_t)t->index[i] * d_k;
    }
}

/* ---- Asking ahead ------------------------------------------------------------------------------------- */

/*
 * State that will be read soon, asked for a row at a time between other work: memory stays busy while records are
 * gathered, queries walked back and tiles folded. One burst would fill the core's miss buffers and stop the arithmetic
 * that it is meant to overlap. Rows are asked for in the order in which tiles take them.
 */
typedef struct ahead {
    const float *state; /* of the head being asked for */
    const float *then;  /* of the head after it; NULL: none */
    int32_t d_k, rows;
    int32_t row; /* asked for so far */
    deal d;
} ahead;

RSSM_INLINE void ask_row(ahead *a, int nb) {
    if (a->row >= a->rows) {
        if (a->then == NULL) {
            return;
        }
        a->state = a->then;
        a->then = NULL;
        a->row = 0;
    }
    const float *row = a->state + (int64_t)(a->row % a->d.streams * a->d.stream_rows + a->row / a->d.streams) * a->d_k;
    RSSM_UNROLL
    for (int b = 0; b < nb; b++) {
        v16_prefetch(row + 16 * b);
    }
    a->row++;
}

/* The values that a record holds for the rows of a tile. */
static inline v16 tile_values(const tile *t, const void *value, int bf16) {
    if (t->index[t->lanes - 1] - t->index[0] == t->lanes - 1) { /* neighbours */
        return load_io(value, t->index[0], bf16, t->lanes);
    }
    float v[16];
    for (int32_t i = 0; i < 16; i++) {
        v[i] = bf16 ? rssm_f32_of_bf16(((const uint16_t *)value)[t->index[i]]) : ((const float *)value)[t->index[i]];
    }
    return v16_load(v);
}

/* ---- Folding ------------------------------------------------------------------------------------------ */

/* A record's key and decay, held in registers over the rows of a tile; blocks beyond nb are not used. */
typedef struct record {
    v16 key[RSSM_HEAD_DIM_MAX / 16], alpha[RSSM_HEAD_DIM_MAX / 16];
} record;

RSSM_INLINE void load_record(record *r, const window *w, int vector_decay, int32_t j, int nb) {
    RSSM_UNROLL
    for (int b = 0; b < RSSM_HEAD_DIM_MAX / 16; b++) {
        r->key[b] = b < nb ? v16_load(w->key + (int64_t)j * w->padded_k + 16 * b) : v16_zero();
        r->alpha[b] = b < nb ? alpha_of(w, vector_decay, j, b) : v16_zero();
    }
}

/* One record's sweep over a row: finishes the record before (x += u k), decays by this one and takes its dot product.
   From `from` to `to`; before: NULL for the first record, as 0 * key + x would turn -0 into 0. */
RSSM_INLINE v16 sweep_row(const float *from, float *to, const record *now, const record *before, float u, int nb,
                          int tail) {
    v16 sum = v16_zero(), ui = v16_set1(u);
    RSSM_UNROLL
    for (int b = 0; b < nb; b++) {
        v16 x = load_block(from, b, nb, tail);
        x = before != NULL ? updated(x, ui, before->key[b]) : x;
        x = decayed(x, now->alpha[b]);
        v16_store(to + 16 * b, x);
        sum = v16_fma(x, now->key[b], sum);
    }
    return sum;
}

/* The delta rule over all records: per record one sweep over the tile, then u for all rows. The halves of the tile take
   turns, so that one is swept while the other waits for its sums and its u. Between the first sweep and the last, rows
   stay side by side in scratch: in the state they lie a multiple of 4 KiB apart, where loads wait for each other's
   stores. */
RSSM_INLINE void fold_delta(const tile *t, int nb, int tail, int vector_decay, const window *w, ahead *next) {
    _Alignas(64) float rows[16 * RSSM_HEAD_DIM_MAX], u[16] = {0}, v[16];
    const int ld = 16 * nb;
    record now, last;
    int32_t due = w->n; /* 16 rows are asked for per tile, spread over the records */
    load_record(&last, w, vector_decay, 0, nb);
    for (int32_t j = 0; j < w->n; j++) {
        v16 p[8];
        load_record(&now, w, vector_decay, j, nb);
        v16_store(v, tile_values(t, w->value[j], w->bf16));
        for (int half = 0; half < t->lanes; half += 8) {
            for (int i = 0; i < 8; i++) {
                const int row = half + i;
                if (--due == 0) {
                    due = w->n;
                    ask_row(next, nb);
                }
                if (row >= t->lanes) {
                    p[i] = v16_zero();
                } else if (j == 0) {
                    p[i] = sweep_row(t->row[row], rows + row * ld, &now, NULL, 0.0f, nb, tail);
                } else {
                    p[i] = sweep_row(rows + row * ld, rows + row * ld, &now, &last, u[row], nb, 16);
                }
            }
            v16 dot = v16_sum8(p);
            v16_store8(u + half, v16_mul(v16_set1(w->beta[j]), v16_sub(v16_load_n(v + half, 8), dot)));
        }
        last = now;
    }
    for (int i = 0; i < t->lanes; i++) {
        RSSM_UNROLL
        for (int b = 0; b < nb; b++) {
            v16 x = updated(v16_load(rows + i * ld + 16 * b), v16_set1(u[i]), last.key[b]);
            store_block(t->row[i], x, b, nb, tail);
        }
    }
}

/* Without the delta rule u is known beforehand, so rows stay in registers over all records, two at a time: a single one
   would wait for itself. */
RSSM_INLINE void fold_plain(const tile *t, int nb, int tail, int vector_decay, const window *w, ahead *next) {
    float u[RSSM_ROWS_MAX][16];
    for (int32_t j = 0; j < w->n; j++) {
        v16_store(u[j], v16_mul(v16_set1(w->beta[j]), tile_values(t, w->value[j], w->bf16)));
    }
    for (int i = 0; i < t->lanes; i += 2) {
        const int other = i + 1 < t->lanes ? i + 1 : i; /* a last row without a neighbour is done twice, from one load */
        float *row = t->row[i], *pair = t->row[other];
        v16 x[RSSM_HEAD_DIM_MAX / 16], y[RSSM_HEAD_DIM_MAX / 16];
        ask_row(next, nb);
        ask_row(next, nb);
        RSSM_UNROLL
        for (int b = 0; b < RSSM_HEAD_DIM_MAX / 16; b++) {
            x[b] = b < nb ? load_block(row, b, nb, tail) : v16_zero();
            y[b] = b < nb ? load_block(pair, b, nb, tail) : v16_zero();
        }
        for (int32_t j = 0; j < w->n; j++) {
            const float *key = w->key + (int64_t)j * w->padded_k;
            v16 ux = v16_set1(u[j][i]), uy = v16_set1(u[j][other]);
            RSSM_UNROLL
            for (int b = 0; b < nb; b++) {
                v16 alpha = alpha_of(w, vector_decay, j, b), k = v16_load(key + 16 * b);
                x[b] = updated(decayed(x[b], alpha), ux, k);
                y[b] = updated(decayed(y[b], alpha), uy, k);
            }
        }
        RSSM_UNROLL
        for (int b = 0; b < nb; b++) {
            store_block(row, x[b], b, nb, tail);
            store_block(pair, y[b], b, nb, tail);
        }
    }
}

/* ---- Reading ------------------------------------------------------------------------------------------ */

/* Queries that are read together at most. */
enum { READ_QUERIES = 8 };

/* Reads a tile with `nq` queries (1, 2, 4 or 8; a constant): out[q] lane i = row i . query q. The chain of a row and a
   query is the same for any number of queries. next: NULL, or where to ask for the rows of another tile. */
RSSM_INLINE void read_tile(const tile *t, int nb, int tail, const float *r, int padded_k, const int nq, v16 *out,
                           ahead *next) {
    v16 p[READ_QUERIES][16], one[RSSM_HEAD_DIM_MAX / 16]; /* a single query stays in registers */
    const int step = nq == 1 ? 1 : nq == 8 ? 2 : 4; /* rows at a time, so that a load of a query serves several */
    load_blocks(one, r, nq == 1 ? nb : 0);
    for (int i = 0; i < 16; i += step) {
        v16 acc[16];
        RSSM_UNROLL
        for (int a = 0; a < 16; a++) {
            acc[a] = v16_zero();
        }
        for (int s = 0; next != NULL && s < step; s++) {
            ask_row(next, nb);
        }
        if (i < t->lanes) {
            RSSM_UNROLL
            for (int b = 0; b < nb; b++) {
                v16 x[4];
                RSSM_UNROLL
                for (int s = 0; s < step; s++) {
                    x[s] = load_block(t->row[i + s < t->lanes ? i + s : t->lanes - 1], b, nb, tail);
                }
                RSSM_UNROLL
                for (int q = 0; q < nq; q++) {
                    v16 query = nq == 1 ? one[b] : v16_load(r + (int64_t)q * padded_k + 16 * b);
                    RSSM_UNROLL
                    for (int s = 0; s < step; s++) {
                        acc[s * nq + q] = v16_fma(x[s], query, acc[s * nq + q]);
                    }
                }
            }
        }
        RSSM_UNROLL
        for (int a = 0; a < step * nq; a++) {
            p[a % nq][i + a / nq] = acc[a];
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
    int32_t newest; /* query q sees record newest + q of eval and those before it; -1 - q: none */
    float *y;       /* [queries][padded_v] */
    int32_t padded_v;
    ahead *next;
} head_job;

RSSM_INLINE void read_queries(const head_job *job, const tile *t, int nb, int tail) {
    const int32_t padded_k = job->fold->padded_k;
    v16 dots[RSSM_STEP_TOKENS_MAX];
    ahead *next = job->fold->n == 0 ? job->next : NULL; /* a fold has asked for the next tile */
    int32_t q = 0;
    for (; q + 8 <= job->queries; q += 8) {
        read_tile(t, nb, tail, job->r + (int64_t)q * padded_k, padded_k, 8, dots + q, q == 0 ? next : NULL);
    }
    for (; q + 4 <= job->queries; q += 4) {
        read_tile(t, nb, tail, job->r + (int64_t)q * padded_k, padded_k, 4, dots + q, q == 0 ? next : NULL);
    }
    for (; q + 2 <= job->queries; q += 2) {
        read_tile(t, nb, tail, job->r + (int64_t)q * padded_k, padded_k, 2, dots + q, q == 0 ? next : NULL);
    }
    for (; q < job->queries; q++) {
        read_tile(t, nb, tail, job->r + (int64_t)q * padded_k, padded_k, 1, dots + q, q == 0 ? next : NULL);
    }
    for (q = 0; q < job->queries; q++) {
        float dot[16], *y = job->y + (int64_t)q * job->padded_v;
        v16_store(dot, dots[q]);
        if (t->lanes == 16 && t->index[1] == t->index[0] + 1) { /* rows come in pairs at least */
            for (int i = 0; i < 16; i += 2) {
                memcpy(y + t->index[i], dot + i, 2 * sizeof(float));
            }
            continue;
        }
        for (int i = 0; i < t->lanes; i++) {
            y[t->index[i]] = dot[i];
        }
    }
}

/* One query over a whole head without a fold, the most common case, with tiles of neighbouring rows: row 0 of each tile,
   row 1 of each, ... No tile has to stay anywhere, so there may be as many streams as tiles. */
RSSM_INLINE void read_head(const head_job *job, int nb, int tail) {
    v16 p[RSSM_HEAD_DIM_MAX / 16][16], query[RSSM_HEAD_DIM_MAX / 16];
    const int tiles = job->d_v / 16;
    load_blocks(query, job->r, nb);
    for (int i = 0; i < 16; i++) {
        const float *row = job->state + (int64_t)i * job->d_k;
        for (int t = 0; t < tiles; t++, row += 16 * (int64_t)job->d_k) {
            v16 sum = v16_zero();
            RSSM_UNROLL
            for (int b = 0; b < nb; b++) {
                sum = v16_fma(load_block(row, b, nb, tail), query[b], sum);
            }
            p[t][i] = sum;
        }
    }
    for (int t = 0; t < tiles; t++) {
        v16_store(job->y + 16 * t, v16_sum16(p[t]));
    }
}

/* y = (sum over the records a query sees, newest first, of c v) + its dot products, for 16 rows and `nq` queries from
   `first` on (a constant): each query's own path through the step, then the history, of which a value serves all. */
RSSM_INLINE void add_block(const head_job *job, int32_t first, const int nq, int32_t row) {
    const window *w = job->eval;
    const int rows = job->d_v - row < 16 ? job->d_v - row : 16;
    const float *c = job->c + (int64_t)first * job->ld_c;
    const int32_t own = job->newest < 0 ? 0 : job->newest; /* the step's first record */
    v16 sum[READ_QUERIES];
    RSSM_UNROLL
    for (int q = 0; q < nq; q++) {
        sum[q] = v16_zero();
        for (int32_t j = job->newest + first + q; j >= own; j = record_before(w, j)) {
            sum[q] = v16_fma(v16_set1(c[q * job->ld_c + j]), load_io(w->value[j], row, w->bf16, rows), sum[q]);
        }
    }
    for (int32_t j = job->newest - 1; j >= 0; j--) {
        v16 value = load_io(w->value[j], row, w->bf16, rows);
        RSSM_UNROLL
        for (int q = 0; q < nq; q++) {
            sum[q] = v16_fma(v16_set1(c[q * job->ld_c + j]), value, sum[q]);
        }
    }
    RSSM_UNROLL
    for (int q = 0; q < nq; q++) {
        float *y = job->y + (int64_t)(first + q) * job->padded_v + row;
        v16_store(y, v16_add(sum[q], v16_load(y)));
    }
}

static void add_values(const head_job *job) {
    for (int32_t row = 0; row < job->d_v; row += 16) {
        int32_t q = 0;
        for (; q + 8 <= job->queries; q += 8) {
            add_block(job, q, 8, row);
        }
        for (; q + 4 <= job->queries; q += 4) {
            add_block(job, q, 4, row);
        }
        for (; q < job->queries; q++) {
            add_block(job, q, 1, row);
        }
    }
}

RSSM_INLINE void head_tiles(const head_job *job, int nb, int tail, int vector_decay) {
    const deal d = deal_rows(job->d_v);
    const bool whole = job->fold->n == 0 && job->queries == 1 && job->d_v % 16 == 0;
    if (whole) {
        read_head(job, nb, tail);
    }
    /* The first tile, if walks have not asked for it; from there on one ahead. */
    for (int32_t i = job->next->state == job->state ? job->next->row : 16; i < 16 && !whole; i++) {
        ask_row(job->next, nb);
    }
    for (int32_t number = 0; !whole && 16 * number < job->d_v; number++) {
        tile t;
        make_tile(&t, job->state, job->d_k, job->d_v, &d, number);
        if (job->fold->n > 0 && job->fold->delta) {
            fold_delta(&t, nb, tail, vector_decay, job->fold, job->next);
        } else if (job->fold->n > 0) {
            fold_plain(&t, nb, tail, vector_decay, job->fold, job->next);
        }
        if (job->eval != NULL) {
            read_queries(job, &t, nb, tail);
        }
    }
    if (job->eval != NULL) {
        add_values(job);
    }
}

/* The usual key dimensions get code of their own, with all blocks unrolled. */
static void run_head(const head_job *job) {
    const int nb = (job->d_k + 15) / 16, tail = job->d_k - 16 * (nb - 1), vector_decay = job->fold->vector_decay;
    if (V16_UNROLL && job->d_k == 128 && !vector_decay) {
        head_tiles(job, 8, 16, 0);
    } else if (V16_UNROLL && job->d_k == 128) {
        head_tiles(job, 8, 16, 1);
    } else if (V16_UNROLL && job->d_k == 64 && !vector_decay) {
        head_tiles(job, 4, 16, 0);
    } else {
        head_tiles(job, nb, tail, vector_decay);
    }
}

#endif
