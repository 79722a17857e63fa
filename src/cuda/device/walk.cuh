/* SPDX-License-Identifier: Apache-2.0 */
/* Walking queries back through the records of working memory: r and the coefficients of the values. */
#ifndef RSSM_CUDA_WALK_CUH
#define RSSM_CUDA_WALK_CUH

#include "cuda/device/block.cuh"
#include "cuda/device/tile.cuh"

/* r = q; from the newest record the query sees to the oldest: c = beta (k . r), r = alpha (r - delta c k). Eight lanes for
   each of n queries of each head, with the columns of a row of the state, so four walks in a warp; query t sees the
   records first .. newest + t. m: of the block's first head. */
template <class S, bool DELTA, bool VECTOR>
static __device__ __forceinline__ void walk_vector(const team &w, const rssm_cuda_layout &l, const memory &m, const tile_place &at, int heads, int n, int first,
                                   int newest) {
    const int group = w.thread / 8, groups = w.threads / 8, walks = heads * n;
    for (int base = 0; base < walks; base += groups) {
        const int i = base + group;
        if (i - (group & 3) >= walks) {
            break; /* the whole warp */
        }
        const bool used = i < walks;
        const int head = used ? i / n : 0, t = used ? i - head * n : 0;
        const memory own = memory_of_head(m, l, head);
        columns<S> r;
        load_columns<S>(r, at, own.query + t * l.width);
        for (int j = newest + n - 1; j >= first; j--) { /* the warp's lanes stay together */
            columns<S> key, decay = {};
            load_columns<S>(key, at, own.key + j * l.width);
            if (VECTOR) {
                load_columns<S>(decay, at, own.alpha + j * l.width);
            }
            const float alpha = VECTOR ? 1.0f : own.alpha[j];
            const float c = __fmul_rn(own.beta[j], group_sum(dot_lane<S>(r.x, key)));
            if (!used || j > newest + t) {
                continue;
            }
            if (at.lane == 0) {
                own.coefficient[t * l.records + j] = c;
            }
#pragma unroll
            for (int k = 0; k < S::BLOCKS; k++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float x = DELTA ? __fmaf_rn(-c, key.x[k][e], r.x[k][e]) : r.x[k][e];
                    r.x[k][e] = __fmul_rn(VECTOR ? decay.x[k][e] : alpha, x);
                }
            }
        }
        if (used) {
            store_columns<S>(r, at, own.walked + t * l.width);
        }
    }
}

/* The products k . q, which the heads of a group share where r stays parallel to q: without the delta rule and with a
   scalar decay. They do not wait for each other: eight lanes for each. Query t needs the records first .. newest + t. */
template <class S>
static __device__ __forceinline__ void gram_products(const team &w, const rssm_cuda_layout &l, const memory &m,
                                const tile_place &at, int n, int first, int newest) {
    const int span = newest + n - first, groups = w.threads / 8;
    for (int base = 0; base < n * span; base += groups) {
        const int i = base + w.thread / 8, t = i / span, j = first + i - t * span;
        const bool used = i < n * span && j <= newest + t;
        columns<S> key = {}, query = {};
        if (used) {
            load_columns<S>(key, at, m.key + j * l.width);
            load_columns<S>(query, at, m.query + t * l.width);
        }
        const float dot = group_sum(dot_lane<S>(query.x, key));
        if (used && at.lane == 0) {
            m.gram[t * l.records + j] = dot;
        }
    }
}

/* There only a scalar is walked, by one thread for each head and query. What the query meets at the checkpoint is the
   product of the decays times itself: S r = product (S q). */
static __device__ __forceinline__ void walk_scalar(const team &w, const rssm_cuda_layout &l, const memory &m,
                                int heads, int n, int first, int newest) {
    for (int i = w.thread; i < heads * n; i += w.threads) {
        const int head = i / n, t = i - head * n;
        const memory own = memory_of_head(m, l, head);
        float product = 1.0f;
        for (int j = newest + t; j >= first; j--) {
            own.coefficient[t * l.records + j] = __fmul_rn(own.beta[j], __fmul_rn(product, own.gram[t * l.records + j]));
            product = __fmul_rn(product, own.alpha[j]);
        }
        own.product[t] = product;
    }
}

#endif
