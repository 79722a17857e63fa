/* SPDX-License-Identifier: Apache-2.0 */
/* Walking queries back through the records of working memory: r and the coefficients of the values. */
#ifndef RSSM_CUDA_WALK_CUH
#define RSSM_CUDA_WALK_CUH

#include "cuda/device/block.cuh"
#include "cuda/device/tile.cuh"

/* r = q; from the newest record the query sees to the oldest: c = beta (k . r), r = alpha (r - delta c k). Eight lanes for
   each of n queries, with the columns of a row of the state, so four queries in a warp; query t sees the records
   first .. newest + t. */
template <class S, bool DELTA, bool VECTOR>
static __device__ __forceinline__ void walk_vector(const rssm_cuda_layout &l, const memory &m, const tile_place &at, int n, int first, int newest) {
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (int base = 4 * warp; base < n; base += 4 * warps) {
        const int t = base + (((int)threadIdx.x & 31) >> 3);
        const int last = newest + (base + 3 < n ? base + 3 : n - 1); /* newest record that a query of the warp sees */
        columns<S> r = {};
        if (t < n) {
            load_columns<S>(r, at, m.query + t * l.width);
        }
        for (int j = last; j >= first; j--) {
            columns<S> key, decay = {};
            load_columns<S>(key, at, m.key + j * l.width);
            if (VECTOR) {
                load_columns<S>(decay, at, m.alpha + j * l.width);
            }
            const float alpha = VECTOR ? 1.0f : m.alpha[j];
            const float c = __fmul_rn(m.beta[j], group_sum(dot_lane<S>(r.x, key)));
            if (t >= n || j > newest + t) {
                continue;
            }
            if (at.lane == 0) {
                m.coefficient[t * l.records + j] = c;
            }
#pragma unroll
            for (int i = 0; i < S::BLOCKS; i++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float x = DELTA ? __fmaf_rn(-c, key.x[i][e], r.x[i][e]) : r.x[i][e];
                    r.x[i][e] = __fmul_rn(VECTOR ? decay.x[i][e] : alpha, x);
                }
            }
        }
        if (t < n) {
            store_columns<S>(r, at, m.walked + t * l.width);
        }
    }
}

/* The products k . q, which the heads of a group share where r stays parallel to q: without the delta rule and with a
   scalar decay. They do not wait for each other: eight lanes for each. Query t needs the records first .. newest + t. */
template <class S>
static __device__ __forceinline__ void gram_products(const rssm_cuda_layout &l, const memory &m, const tile_place &at, int n, int first, int newest) {
    const int span = newest + n - first, groups = blockDim.x / 8;
    for (int base = 0; base < n * span; base += groups) {
        const int i = base + (int)threadIdx.x / 8, t = i / span, j = first + i - t * span;
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

/* There only a scalar is walked; every lane of a warp walks the same one. */
static __device__ __forceinline__ void walk_scalar(const rssm_cuda_layout &l, const memory &m, int n, int first, int newest) {
    const int lane = threadIdx.x & 31;
    for (int t = threadIdx.x / 32; t < n; t += blockDim.x / 32) {
        float product = 1.0f;
        for (int j = newest + t; j >= first; j--) {
            const float c = __fmul_rn(m.beta[j], __fmul_rn(product, m.gram[t * l.records + j]));
            if (lane == 0) {
                m.coefficient[t * l.records + j] = c;
            }
            product = __fmul_rn(product, m.alpha[j]);
        }
        for (int column = lane; column < l.width; column += 32) {
            m.walked[t * l.width + column] = __fmul_rn(product, m.query[t * l.width + column]);
        }
    }
}

#endif
