/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Causal attention of a few queries over the pages of one sequence and kv head, with a running softmax. The
 * sequence is taken in chunks of CHUNK_PAGES pages at fixed positions: scores of a chunk, then the new maximum,
 * then the exponentials, then the weighted values. A query's operations are the same whether it is alone or in
 * a block: it sees its full pages in order, then its own partial page, and nothing beyond its position, which
 * may hold anything.
 *
 * A score is two chains of multiply-adds over the even and the odd dimensions, sixteen keys to a vector; a
 * value is one chain over the positions of the chunk.
 */
#ifndef RSE_ATTENTION_INL_H
#define RSE_ATTENTION_INL_H

#include <stdbool.h>
#include <string.h>

#include "cpu/vec.h"
#include "math/kvcache.h"
#include "math/math_ops.h"
#include "math/rows.inl.h"

enum {
    CHUNK_PAGES = 16,
    QUERY_BLOCK = 8, /* queries in registers together */
    QUERY_SLICE = 32 /* queries that pass over a chunk while it is in the cache */
};

typedef struct query_state {
    const float *q;
    float *out;   /* running weighted sum of values, [head_dim] */
    float max;    /* running maximum of scores */
    float sum;    /* running sum of exponentials */
    int64_t last; /* position */
} query_state;

/* A query's scores with the keys of a chunk, then its weights for their values. */
typedef struct chunk_weights {
    _Alignas(64) float of[CHUNK_PAGES * RSE_KV_PAGE];
} chunk_weights;

RSSM_INLINE v16 load_kv(const void *p, int64_t i, bool bf16) {
    return bf16 ? v16_load_bf16((const uint16_t *)p + i) : v16_load((const float *)p + i);
}

static inline const void *page_of(const rse_attend_args *a, const void *base, int64_t page) {
    return (const char *)base + a->pages[page] * a->page_stride * (a->dtype == RSSM_DTYPE_BF16 ? 2 : 4);
}

/* Scores of `count` queries with page `page`, the chunk's p-th. count and bf16 are constants, here and below.
 */
RSSM_INLINE void score_page(const rse_attend_args *a, int count, bool bf16, const query_state *qs, int64_t page,
                            int p, chunk_weights *scores) {
    const void *keys = page_of(a, a->keys, page);
    v16 even[QUERY_BLOCK], odd[QUERY_BLOCK];
    for (int i = 0; i < count; i++) {
        even[i] = odd[i] = v16_zero();
    }
    int d = 0;
    for (; d + 2 <= a->head_dim; d += 2) {
        v16 k0 = load_kv(keys, (int64_t)d * 16, bf16), k1 = load_kv(keys, (int64_t)d * 16 + 16, bf16);
        for (int i = 0; i < count; i++) {
            even[i] = v16_fma(v16_set1(qs[i].q[d]), k0, even[i]);
            odd[i] = v16_fma(v16_set1(qs[i].q[d + 1]), k1, odd[i]);
        }
    }
    for (int i = 0; i < count; i++) {
        if (d < a->head_dim) {
            even[i] = v16_fma(v16_set1(qs[i].q[d]), load_kv(keys, (int64_t)d * 16, bf16), even[i]);
        }
        v16_store(scores[i].of + p * RSE_KV_PAGE, v16_mul(v16_add(even[i], odd[i]), v16_set1(a->scale)));
    }
}

/* out of `count` queries += weights x values of n positions in each of the chunk's pages from..to-1. */
RSSM_INLINE void weigh_pages(const rse_attend_args *a, int count, bool bf16, const query_state *qs,
                             int64_t chunk, int from, int to, int n, const chunk_weights *weights) {
    for (int64_t d = 0; d < a->head_dim; d += 32) {
        int n0 = lanes_at(a->head_dim, d), n1 = a->head_dim - d > 16 ? lanes_at(a->head_dim, d + 16) : 0;
        int64_t d1 = n1 > 0 ? d + 16 : d; /* with nothing left, the first vector again, stored nowhere */
        v16 sum0[QUERY_BLOCK], sum1[QUERY_BLOCK];
        for (int i = 0; i < count; i++) {
            sum0[i] = v16_load_n(qs[i].out + d, n0);
            sum1[i] = v16_load_n(qs[i].out + d1, n1);
        }
        for (int p = from; p < to; p++) {
            const void *values = page_of(a, a->values, chunk + p);
            for (int j = 0; j < n; j++) {
                v16 v0 = load_kv(values, (d + j) * 16, bf16);
                v16 v1 = load_kv(values, (d1 + j) * 16, bf16);
                for (int i = 0; i < count; i++) {
                    v16 w = v16_set1(weights[i].of[p * RSE_KV_PAGE + j]);
                    sum0[i] = v16_fma(w, v0, sum0[i]);
                    sum1[i] = v16_fma(w, v1, sum1[i]);
                }
            }
        }
        for (int i = 0; i < count; i++) {
            v16_store_n(qs[i].out + d, sum0[i], n0);
            v16_store_n(qs[i].out + d1, sum1[i], n1);
        }
    }
}

/* Turns the scores of the chunk's first `pages` pages into weights under the new maximum. */
static void absorb_scores(const rse_attend_args *a, query_state *st, int pages, int last_lanes,
                          chunk_weights *w) {
    v16 best = v16_set1(-INFINITY);
    for (int p = 0; p < pages; p++) {
        v16 s = mask_lanes(v16_load(w->of + p * RSE_KV_PAGE), p == pages - 1 ? last_lanes : RSE_KV_PAGE);
        v16_store(w->of + p * RSE_KV_PAGE, s);
        best = v16_max(s, best);
    }
    float max = max_lane(best), lanes[16];
    if (max > st->max) {
        v16 factor = v16_exp(v16_set1(st->max - max));
        v16_store(lanes, factor);
        st->sum *= lanes[0];
        for (int d = 0; d < a->head_dim; d += 16) {
            int n = lanes_at(a->head_dim, d);
            v16_store_n(st->out + d, v16_mul(v16_load_n(st->out + d, n), factor), n);
        }
        st->max = max;
    }
    v16 sum = v16_zero();
    for (int p = 0; p < pages; p++) {
        v16 e = v16_exp(v16_sub(v16_load(w->of + p * RSE_KV_PAGE), v16_set1(st->max)));
        v16_store(w->of + p * RSE_KV_PAGE, e);
        sum = v16_add(sum, e);
    }
    st->sum += v16_sum(sum);
}

static inline int clamp_pages(int64_t n) {
    return n < 0 ? 0 : n > CHUNK_PAGES ? CHUNK_PAGES : (int)n;
}

/* Positions up to `last` in the page. */
static inline int page_lanes(int64_t last, int64_t page) {
    int64_t n = last + 1 - page * RSE_KV_PAGE;
    return n > RSE_KV_PAGE ? RSE_KV_PAGE : (int)n;
}

typedef void score_fn(const rse_attend_args *a, const query_state *qs, int64_t page, int p,
                      chunk_weights *scores);
typedef void weigh_fn(const rse_attend_args *a, const query_state *qs, int64_t chunk, int from, int to, int n,
                      const chunk_weights *weights);

/* The two products for blocks of some number of queries. */
typedef struct block_fns {
    int count;
    score_fn *score;
    weigh_fn *weigh;
} block_fns;

#define BLOCK_FNS(count, type, bf16)                                                                           \
    static __attribute__((noinline)) void score_##type##_##count(                                              \
        const rse_attend_args *a, const query_state *qs, int64_t page, int p, chunk_weights *scores) {         \
        score_page(a, count, bf16, qs, page, p, scores);                                                       \
    }                                                                                                          \
    static __attribute__((noinline)) void weigh_##type##_##count(                                              \
        const rse_attend_args *a, const query_state *qs, int64_t chunk, int from, int to, int n,               \
        const chunk_weights *weights) {                                                                        \
        weigh_pages(a, count, bf16, qs, chunk, from, to, n, weights);                                          \
    }
BLOCK_FNS(8, f32, false)
BLOCK_FNS(4, f32, false)
BLOCK_FNS(1, f32, false)
BLOCK_FNS(8, bf16, true)
BLOCK_FNS(4, bf16, true)
BLOCK_FNS(1, bf16, true)

enum { BLOCK_SIZES = 3 };
static const block_fns blocks_f32[BLOCK_SIZES] = {
    {8, score_f32_8, weigh_f32_8}, {4, score_f32_4, weigh_f32_4}, {1, score_f32_1, weigh_f32_1}};
static const block_fns blocks_bf16[BLOCK_SIZES] = {
    {8, score_bf16_8, weigh_bf16_8}, {4, score_bf16_4, weigh_bf16_4}, {1, score_bf16_1, weigh_bf16_1}};

/* A block of queries, in order of position, with the chunk that begins at page `chunk`. */
static void attend_chunk(const rse_attend_args *a, const block_fns *block, const block_fns *single,
                         query_state *qs, int64_t chunk) {
    chunk_weights w[QUERY_BLOCK];
    int full = clamp_pages((qs[0].last + 1) / RSE_KV_PAGE - chunk); /* pages that all queries see whole */
    for (int p = 0; p < full; p++) {
        block->score(a, qs, chunk + p, p, w);
    }
    for (int i = 0; i < block->count; i++) {
        int pages = clamp_pages(qs[i].last / RSE_KV_PAGE + 1 - chunk);
        for (int p = full; p < pages; p++) {
            single->score(a, qs + i, chunk + p, p, w + i);
        }
        if (pages > 0) {
            absorb_scores(a, qs + i, pages, page_lanes(qs[i].last, chunk + pages - 1), w + i);
        }
    }
    block->weigh(a, qs, chunk, 0, full, RSE_KV_PAGE, w);
    for (int i = 0; i < block->count; i++) {
        int pages = clamp_pages(qs[i].last / RSE_KV_PAGE + 1 - chunk);
        for (int p = full; p < pages; p++) {
            single->weigh(a, qs + i, chunk, p, p + 1, page_lanes(qs[i].last, chunk + p), w + i);
        }
    }
}

/* Queries first .. first + count - 1, at most QUERY_SLICE. */
static void attend_slice(const rse_attend_args *a, int64_t first, int64_t count) {
    const block_fns *blocks = a->dtype == RSSM_DTYPE_BF16 ? blocks_bf16 : blocks_f32;
    query_state qs[QUERY_SLICE];
    for (int64_t i = 0; i < count; i++) {
        int64_t token = (first + i) / a->group, head = (first + i) % a->group;
        float *out = a->out + token * a->out_stride + head * a->head_dim;
        qs[i] = (query_state){
            .q = a->q + token * a->q_stride + head * a->q_head_stride, .out = out, .max = -INFINITY};
        qs[i].last = a->start + token;
        memset(out, 0, (size_t)a->head_dim * sizeof *out);
    }
    for (int64_t chunk = 0; chunk * RSE_KV_PAGE <= qs[count - 1].last; chunk += CHUNK_PAGES) {
        for (int64_t i = 0, size = 0; i < count; i += blocks[size].count) {
            for (; blocks[size].count > count - i; size++) {
            }
            attend_chunk(a, &blocks[size], &blocks[BLOCK_SIZES - 1], qs + i, chunk);
        }
    }
    for (int64_t i = 0; i < count; i++) {
        v16 sum = v16_set1(qs[i].sum);
        for (int d = 0; d < a->head_dim; d += 16) {
            int n = lanes_at(a->head_dim, d);
            v16_store_n(qs[i].out + d, v16_div(v16_load_n(qs[i].out + d, n), sum), n);
        }
    }
}

static void attend(const rse_attend_args *a) {
    for (int64_t i = 0; i < a->queries; i += QUERY_SLICE) {
        attend_slice(a, i, a->queries - i < QUERY_SLICE ? a->queries - i : QUERY_SLICE);
    }
}

#endif
