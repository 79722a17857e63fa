/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A unit of decode: append the step's records, gather the window, fold what begin planned, walk the queries back and
 * read the checkpoint. The conventional method is the same code with the new token among the records to fold and no
 * window left to walk.
 */
#ifndef RSSM_DECODE_INL_H
#define RSSM_DECODE_INL_H

#include "cpu/output.inl.h"
#include "cpu/read.inl.h"
#include "cpu/tile.inl.h"

/* ---- Records ------------------------------------------------------------------------------------------ */

static inline int64_t record_at(const rssm_geometry *geo, int32_t head, int32_t row, int32_t d) {
    return ((int64_t)head * geo->rows.records + row) * d;
}

static inline float *scalar_at(const rssm_geometry *geo, const rssm_row *row, int32_t channel, int32_t r) {
    return row->record_scalar + (int64_t)channel * geo->rows.records + r;
}

/* Computes and stores what key head g's tokens leave: keys, values, gates. key: scratch [tokens][padded_k]; v:
   [ratio][RSSM_SCAN_TOKENS][padded_v], kept for the D skip. */
static void append_records(const span *s, int32_t g, float *scratch) {
    const rssm_geometry *geo = s->call->geometry;
    const rssm_row *row = s->row;
    const uint8_t *map = row->cursor->row_map + row->cursor->history;
    const int padded_ratio = rssm_padded(geo->ratio);
    float *key = scratch + geo->scratch.key, *alpha = scratch + geo->scratch.alpha, *beta = scratch + geo->scratch.beta;
    head_values(s, tensor_k(s->call, g), key);
    for (int32_t t = 0; t < s->n; t++) {
        const float *x = key + (int64_t)t * geo->padded_k;
        for (int32_t c = 0; c < geo->d_k; c += 16) {
            store_io(row->record_k, record_at(geo, g, map[t], geo->d_k) + c, v16_load(x + c), geo->bf16,
                     lanes_left(geo->d_k, c / 16));
        }
        if (geo->l2) {
            *scalar_at(geo, row, geo->channel_norm + g, map[t]) = inverse_norm(geo, x);
        }
        token_gates(s, g, t, alpha + (int64_t)t * padded_ratio, beta + (int64_t)t * padded_ratio);
    }
    for (int32_t i = 0; i < geo->ratio; i++) {
        int32_t hv = rssm_value_head(geo, g, i);
        float *v = scratch + geo->scratch.v + (int64_t)i * RSSM_SCAN_TOKENS * geo->padded_v;
        head_values(s, tensor_v(s->call, hv), v);
        for (int32_t t = 0; t < s->n; t++) {
            for (int32_t c = 0; c < geo->d_v; c += 16) {
                store_io(row->record_v, record_at(geo, hv, map[t], geo->d_v) + c,
                         v16_load(v + (int64_t)t * geo->padded_v + c), geo->bf16, lanes_left(geo->d_v, c / 16));
            }
            *scalar_at(geo, row, geo->channel_beta + hv, map[t]) = beta[(int64_t)t * padded_ratio + i];
            if (!geo->vector_decay) {
                *scalar_at(geo, row, geo->channel_decay + hv, map[t]) = alpha[(int64_t)t * padded_ratio + i];
            }
        }
    }
}

/* The vector decay of one head's tokens: alpha in fp32, or the raw gate as it came. */
static void append_decay(const span *s, int32_t h, int32_t hv, float *scratch) {
    const rssm_geometry *geo = s->call->geometry;
    const rssm_row *row = s->row;
    const uint8_t *map = row->cursor->row_map + row->cursor->history;
    float *alpha = scratch + geo->scratch.window_alpha;
    for (int32_t t = 0; t < s->n; t++) {
        const void *decay = view_at(&s->call->inputs->decay, row->token + s->offset + t, hv, s->call->gate_bf16);
        int64_t at = record_at(geo, hv, map[t], geo->d_k);
        if (geo->raw_records) {
            memcpy((char *)row->record_decay + at * io_bytes(geo->bf16), decay, (size_t)(geo->d_k * io_bytes(geo->bf16)));
        } else {
            decay_vector(geo, s->call->constants, h, decay, s->call->gate_bf16, alpha);
            memcpy((float *)row->record_decay + at, alpha, (size_t)geo->d_k * sizeof(float));
        }
    }
}

/* Normalised keys of n records from map entry `first` on. */
static void gather_keys(const rssm_geometry *geo, const rssm_row *row, int32_t g, int32_t first, int32_t n, float *key,
                        ahead *next) {
    for (int32_t j = 0; j < n; j++) {
        ask_row(next, geo->padded_k / 16);
        int32_t r = row->cursor->row_map[first + j];
        v16 norm = v16_set1(geo->l2 ? *scalar_at(geo, row, geo->channel_norm + g, r) : 1.0f);
        int64_t at = record_at(geo, g, r, geo->d_k);
        float *x = key + (int64_t)j * geo->padded_k;
        for (int32_t c = 0; c < geo->d_k; c += 16) {
            v16_store(x + c, v16_mul(load_io(row->record_k, at + c, geo->bf16, lanes_left(geo->d_k, c / 16)), norm));
        }
    }
}

/* Gates and value rows of the same records for one value head: hv in the inputs' order, h in unit order. */
static void gather_head(const rssm_geometry *geo, const rssm_constants *constants, const rssm_row *row, int32_t h,
                        int32_t hv, int32_t first, int32_t n, float *alpha, float *beta, const void **value) {
    for (int32_t j = 0; j < n; j++) {
        int32_t r = row->cursor->row_map[first + j];
        beta[j] = *scalar_at(geo, row, geo->channel_beta + hv, r);
        value[j] = at_io(row->record_v, record_at(geo, hv, r, geo->d_v), geo->bf16);
        if (!geo->vector_decay) {
            alpha[j] = *scalar_at(geo, row, geo->channel_decay + hv, r);
            continue;
        }
        float *a = alpha + (int64_t)j * geo->padded_k;
        int64_t at = record_at(geo, hv, r, geo->d_k);
        if (geo->raw_records) {
            decay_vector(geo, constants, h, at_io(row->record_decay, at, geo->bf16), geo->bf16, a);
            continue;
        }
        for (int32_t c = 0; c < geo->d_k; c += 16) {
            v16_store(a + c, v16_load_n((const float *)row->record_decay + at + c, lanes_left(geo->d_k, c / 16)));
        }
    }
}

static window head_window(const rssm_geometry *geo, float *scratch, const void *const *value, int32_t n) {
    return (window){.n = n,
                    .vector_decay = geo->vector_decay,
                    .delta = geo->delta,
                    .bf16 = geo->bf16,
                    .padded_k = geo->padded_k,
                    .key = scratch + geo->scratch.window_key,
                    .alpha = scratch + geo->scratch.window_alpha,
                    .beta = scratch + geo->scratch.window_beta,
                    .value = value};
}

/* What the step's queries see: the records that are not folded, the last of which are those of its own tokens. */
static window seen_window(const span *s, window all) {
    window eval = window_after(all, s->row->fold);
    eval.draft = eval.n - s->n;
    eval.parents = s->row->parents;
    return eval;
}

/* ---- Walking the queries back ------------------------------------------------------------------------- */

/* One record of a query's walk: c = beta (k . r), r = alpha (r - delta c k). The dot product in four chains, as
   dot_padded has them; nb a constant where it matters. */
RSSM_INLINE v16 walk_dot(const record *now, const v16 *r, int nb) {
    v16 p[4] = {v16_zero(), v16_zero(), v16_zero(), v16_zero()};
    RSSM_UNROLL
    for (int b = 0; b < nb; b++) {
        p[b & 3] = v16_fma(now->key[b], r[b], p[b & 3]);
    }
    return v16_add(v16_add(p[0], p[1]), v16_add(p[2], p[3]));
}

RSSM_INLINE v16 walk_block(const window *w, const record *now, v16 r, float c, int b) {
    return v16_mul(now->alpha[b], w->delta ? v16_fma(v16_set1(-c), now->key[b], r) : r);
}

/* A single query's walk from record `newest`; r stays in registers. */
RSSM_INLINE void walk_alone(const window *w, int nb, int32_t newest, const float *q, float *r, float *c, ahead *next) {
    v16 x[RSSM_HEAD_DIM_MAX / 16];
    load_blocks(x, q, nb);
    for (int32_t j = newest; j >= 0; j--) {
        record now;
        ask_row(next, nb);
        load_record(&now, w, w->vector_decay, j, nb);
        c[j] = w->beta[j] * v16_sum(walk_dot(&now, x, nb));
        RSSM_UNROLL
        for (int b = 0; b < nb; b++) {
            x[b] = walk_block(w, &now, x[b], c[j], b);
        }
    }
    RSSM_UNROLL
    for (int b = 0; b < nb; b++) {
        v16_store(r + 16 * b, x[b]);
    }
}

enum { WALKS = 8 };

/* Record j in the walks of 8 queries, or those of them whose bits are set: a walk waits for its own sums, so all of them
   take their dot products first. who: a constant where all do. */
RSSM_INLINE void walk_together(const window *w, int nb, int32_t j, uint32_t who, float *r, float *c, int32_t ld) {
    record now;
    v16 p[WALKS], x[RSSM_HEAD_DIM_MAX / 16];
    float cj[WALKS];
    load_record(&now, w, w->vector_decay, j, nb);
    RSSM_UNROLL
    for (int t = 0; t < WALKS; t++) {
        p[t] = v16_zero();
        if (who >> t & 1) {
            load_blocks(x, r + (int64_t)t * w->padded_k, nb);
            p[t] = walk_dot(&now, x, nb);
        }
    }
    v16_store8(cj, v16_mul(v16_set1(w->beta[j]), v16_sum8(p)));
    RSSM_UNROLL
    for (int t = 0; t < WALKS; t++) {
        if (who >> t & 1) {
            float *rt = r + (int64_t)t * w->padded_k;
            c[(int64_t)t * ld + j] = cj[t];
            RSSM_UNROLL
            for (int b = 0; b < nb; b++) {
                v16_store(rt + 16 * b, walk_block(w, &now, v16_load(rt + 16 * b), cj[t], b));
            }
        }
    }
}

/* r = q for every query; then from the newest record it sees to the oldest: first its own path through the step's tokens,
   which begin at record `draft`, then the history. */
RSSM_INLINE void walk_queries(const window *w, int nb, int32_t queries, int32_t draft, const float *q, float *r, float *c,
                              int32_t ld, ahead *next) {
    if (queries == 1) {
        walk_alone(w, nb, draft, q, r, c, next);
        return;
    }
    uint32_t on_path[RSSM_STEP_TOKENS_MAX] = {0}; /* of token t: the queries that see it */
    for (int32_t t = 0; t < queries; t++) {
        for (int32_t j = draft + t; j >= draft && j >= 0; j = record_before(w, j)) {
            on_path[j - draft] |= 1u << t;
        }
    }
    memcpy(r, q, (size_t)queries * (size_t)w->padded_k * sizeof(float));
    for (int32_t j = draft + queries - 1; j >= 0; j--) {
        const uint32_t who = (j >= draft ? on_path[j - draft] : ~0u) & ((1u << queries) - 1);
        ask_row(next, nb);
        ask_row(next, nb);
        for (int32_t t = 0; t < queries; t += WALKS) {
            float *rt = r + (int64_t)t * w->padded_k, *ct = c + (int64_t)t * ld;
            if ((who >> t & 0xff) == 0xff) {
                walk_together(w, nb, j, 0xff, rt, ct, ld);
            } else if ((who >> t & 0xff) != 0) {
                walk_together(w, nb, j, who >> t & 0xff, rt, ct, ld);
            }
        }
    }
}

static void walk_vector(const window *w, int32_t queries, int32_t draft, const float *q, float *r, float *c, int32_t ld,
                        ahead *next) {
    if (V16_UNROLL && w->padded_k == 128) {
        walk_queries(w, 8, queries, draft, q, r, c, ld, next);
    } else {
        walk_queries(w, w->padded_k / 16, queries, draft, q, r, c, ld, next);
    }
}

/* Without the delta rule and with a scalar decay, r stays parallel to q: the products k . q are shared by the heads of
   a group and only a scalar is walked. */
static void walk_scalar(const window *w, const float *q, const float *gram, int32_t newest, float *r, float *c) {
    float product = 1.0f;
    for (int32_t j = newest; j >= 0; j = record_before(w, j)) {
        c[j] = w->beta[j] * (product * gram[j]);
        product *= w->alpha[j];
    }
    for (int b = 0; b < w->padded_k / 16; b++) {
        v16_store(r + 16 * b, v16_mul(v16_set1(product), v16_load(q + 16 * b)));
    }
}

static void gram_products(const window *w, const float *q, int32_t queries, int32_t newest, int32_t ld, float *gram) {
    for (int32_t t = 0; t < queries; t++) {
        for (int32_t j = newest + t; j >= 0; j = record_before(w, j)) {
            gram[(int64_t)t * ld + j] =
                dot_padded(w->key + (int64_t)j * w->padded_k, q + (int64_t)t * w->padded_k, w->padded_k);
        }
    }
}

/* ---- What reads come from ----------------------------------------------------------------------------- */

/* Bytes of one head of what is read: the read copy, or else the checkpoint. Block scales lie apart. */
static int64_t read_bytes(const rssm_geometry *geo) {
    const rssm_formats *f = &geo->formats;
    return f->copy != RSSM_DTYPE_DEFAULT ? f->copy_head : (int64_t)geo->d_v * geo->d_k * state_bytes(f->checkpoint);
}

/* A head of it; NULL without it. */
static const char *read_state(const rssm_geometry *geo, const char *base, int32_t hv) {
    return base == NULL ? NULL : base + hv * read_bytes(geo);
}

/* From here on value head i of key head g is asked for, then the head after it: `last` after the key head's last one. An
   fp32 state is asked for in the order in which tiles take its rows, codes in stretches as long as such a row. */
static void aim_ahead(ahead *a, const rssm_geometry *geo, const rssm_row *row, int32_t g, int32_t i, const char *last) {
    const bool plain = geo->formats.checkpoint == RSSM_DTYPE_F32 && geo->formats.copy == RSSM_DTYPE_DEFAULT;
    const char *base = row->state.copy != NULL ? row->state.copy : row->state.checkpoint;
    const float *state = (const float *)(const void *)read_state(geo, base, rssm_value_head(geo, g, i));
    const char *then = i + 1 < geo->ratio ? read_state(geo, base, rssm_value_head(geo, g, i + 1)) : last;
    const int64_t stretch = (int64_t)geo->padded_k * (int64_t)sizeof(float);
    const int32_t rows = plain ? geo->d_v : (int32_t)((read_bytes(geo) + stretch - 1) / stretch);
    *a = (ahead){.state = state,
                 .then = (const float *)(const void *)then,
                 .d_k = plain ? geo->d_k : geo->padded_k,
                 .row = a->state == state ? a->row : 0,
                 .rows = rows,
                 .d = plain ? deal_rows(geo->d_v) : (deal){1, 16, rows}};
}

/* ---- A unit ------------------------------------------------------------------------------------------- */

/* Adds a head's reads to what the caller watches. */
static void watch_reads(const rssm_geometry *geo, const rssm_constants *constants, int32_t hv, const head_job *job) {
    const rssm_read_statistics *sums = &constants->watched;
    const int64_t d_k = geo->d_k;
    if (sums->second_moment == NULL) {
        return;
    }
    for (int32_t t = 0; t < job->queries; t++) {
        const float *r = job->r + (int64_t)t * geo->padded_k;
        for (int64_t i = 0; i < d_k; i++) {
            for (int64_t c = 0; c < d_k; c++) {
                sums->second_moment[(hv * d_k + i) * d_k + c] += (double)r[i] * (double)r[c];
            }
        }
    }
    for (int64_t i = 0; i < geo->d_v; i++) {
        for (int64_t c = 0; c < d_k; c++) {
            const double x = (double)job->state[i * d_k + c];
            sums->column_squares[hv * d_k + c] += x * x;
        }
    }
    sums->reads[hv] += job->queries;
    sums->states[hv]++;
}

/* Folds and reads one value head. `n` records are in the window, the first row->fold of them to be folded. */
static void decode_head(const span *s, int32_t g, int32_t i, int32_t n, float *scratch, float *y, ahead *next) {
    const rssm_geometry *geo = s->call->geometry;
    const rssm_row *row = s->row;
    const int32_t hv = rssm_value_head(geo, g, i), ld = geo->rows.records;
    const void *value[RSSM_ROWS_MAX];
    float *r = scratch + geo->scratch.r, *c = scratch + geo->scratch.c;
    const float *q = scratch + geo->scratch.q, *gram = scratch + geo->scratch.gram;
    gather_head(geo, s->call->constants, row, g * geo->ratio + i, hv, row->first, n,
                scratch + geo->scratch.window_alpha, scratch + geo->scratch.window_beta, value);
    window all = head_window(geo, scratch, value, n);
    window fold = all, eval = seen_window(s, all);
    fold.n = row->fold;
    int32_t newest = eval.n - s->n; /* of query 0; the conventional method leaves none: -1 */
    if (geo->delta || geo->vector_decay) {
        walk_vector(&eval, s->n, newest, q, r, c, ld, next);
    }
    for (int32_t t = 0; t < s->n && !geo->delta && !geo->vector_decay; t++) {
        walk_scalar(&eval, q + (int64_t)t * geo->padded_k, gram + (int64_t)t * ld, newest + t,
                    r + (int64_t)t * geo->padded_k, c + (int64_t)t * ld);
    }
    head_job job = {.state = (float *)(void *)checkpoint_row(geo, &row->state, hv, 0),
                    .d_k = geo->d_k,
                    .d_v = geo->d_v,
                    .fold = &fold,
                    .eval = &eval,
                    .queries = s->n,
                    .r = r,
                    .c = c,
                    .ld_c = ld,
                    .newest = newest,
                    .y = y,
                    .padded_v = geo->padded_v,
                    .next = next};
    if (geo->formats.checkpoint == RSSM_DTYPE_F32 && geo->formats.copy == RSSM_DTYPE_DEFAULT) {
        run_head(&job);
        watch_reads(geo, s->call->constants, hv, &job);
    } else {
        run_narrow(geo, s->call->constants, &row->state, hv, &job, r, scratch);
    }
}

static void decode_group(const span *s, int32_t g, const char *last, float *scratch, float *y) {
    const rssm_geometry *geo = s->call->geometry;
    const rssm_row *row = s->row;
    int32_t n = row->cursor->history - row->first + s->n;
    ahead next = {0};
    aim_ahead(&next, geo, row, g, 0, last);
    append_records(s, g, scratch);
    if (geo->vector_decay) {
        for (int32_t i = 0; i < geo->ratio; i++) {
            append_decay(s, g * geo->ratio + i, rssm_value_head(geo, g, i), scratch);
        }
    }
    gather_keys(geo, row, g, row->first, n, scratch + geo->scratch.window_key, &next);
    head_queries(s, g, scratch + geo->scratch.q);
    if (!geo->delta && !geo->vector_decay) {
        window eval = seen_window(s, head_window(geo, scratch, NULL, n));
        gram_products(&eval, scratch + geo->scratch.q, s->n, eval.n - s->n, geo->rows.records,
                      scratch + geo->scratch.gram);
    }
    for (int32_t i = 0; i < geo->ratio; i++) {
        float *yi = y + (int64_t)i * RSSM_SCAN_TOKENS * geo->padded_v;
        aim_ahead(&next, geo, row, g, i, last);
        decode_head(s, g, i, n, scratch, yi, &next);
        add_skip(geo, s->call->constants, g * geo->ratio + i, s->n,
                 scratch + geo->scratch.v + (int64_t)i * RSSM_SCAN_TOKENS * geo->padded_v, yi);
    }
    if (geo->conv_width > 0) {
        append_conv(s, tensor_q(s->call, g));
        append_conv(s, tensor_k(s->call, g));
        for (int32_t i = 0; i < geo->ratio; i++) {
            append_conv(s, tensor_v(s->call, rssm_value_head(geo, g, i)));
        }
    }
}

static void decode_unit(const rssm_call *call, const rssm_row *row, int32_t unit, float *scratch) {
    const rssm_geometry *geo = call->geometry;
    span s = {call, row, 0, row->tokens};
    if (row->cursor == NULL) {
        write_zeros(&s, unit);
        return;
    }
    float *y = scratch + geo->scratch.y;
    for (int32_t i = 0; i < geo->unit_keys; i++) {
        int32_t g = unit * geo->unit_keys + i;
        const bool inside = i + 1 < geo->unit_keys;
        const char *base = row->state.copy != NULL ? row->state.copy : row->state.checkpoint;
        const int32_t after = inside ? g + 1 : row->ahead_unit * geo->unit_keys;
        const char *last = read_state(geo, inside ? base : row->ahead, rssm_value_head(geo, after, 0));
        decode_group(&s, g, last, scratch,
                     y + (int64_t)i * geo->ratio * RSSM_SCAN_TOKENS * geo->padded_v);
    }
    write_outputs(&s, unit, y);
}

/* A fold outside a step: the first `count` records after row->first, into fold->state. */
static void fold_unit(const rssm_fold *fold, int32_t unit, float *scratch) {
    const rssm_geometry *geo = fold->geometry;
    const void *value[RSSM_ROWS_MAX];
    ahead nothing = {0};
    for (int32_t key = 0; key < geo->unit_keys; key++) {
        int32_t g = unit * geo->unit_keys + key;
        gather_keys(geo, fold->row, g, fold->row->first, fold->count, scratch + geo->scratch.window_key, &nothing);
        for (int32_t i = 0; i < geo->ratio; i++) {
            int32_t hv = rssm_value_head(geo, g, i);
            gather_head(geo, fold->constants, fold->row, g * geo->ratio + i, hv, fold->row->first, fold->count,
                        scratch + geo->scratch.window_alpha, scratch + geo->scratch.window_beta, value);
            window w = head_window(geo, scratch, value, fold->count);
            fold_head(geo, fold->constants, fold->state, hv, &w, scratch);
        }
    }
}

#endif
