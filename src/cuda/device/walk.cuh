/* SPDX-License-Identifier: Apache-2.0 */
/* Walking queries back through the records of working memory: r and the coefficients of the values. */
#ifndef RSSM_CUDA_WALK_CUH
#define RSSM_CUDA_WALK_CUH

#include "cuda/device/block.cuh"

/* Lane l of a warp holds the columns l, l + 32, ... of a vector; dots by one chain in that order and warp_sum(). */
template <int BLOCKS> static __device__ __forceinline__ float warp_dot(const float (&r)[BLOCKS], const float *key, int blocks) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
        if (i < blocks) {
            sum = __fmaf_rn(key[32 * i], r[i], sum);
        }
    }
    return warp_sum(sum);
}

/* r = q; from the newest record the query sees to the oldest: c = beta (k . r), r = alpha (r - delta c k). A warp for each
   of n queries; query t sees the records first .. newest + t. */
template <int BLOCKS, bool DELTA, bool VECTOR>
static __device__ void walk_vector(const rssm_cuda_layout &l, const memory &m, int n, int first, int newest) {
    const int lane = threadIdx.x & 31, warps = blockDim.x / 32, blocks = l.width / 32;
    for (int t = threadIdx.x / 32; t < n; t += warps) {
        float r[BLOCKS], *q = m.query + t * l.width + lane;
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) {
            r[i] = i < blocks ? q[32 * i] : 0.0f;
        }
        for (int j = newest + t; j >= first; j--) {
            const float *key = m.key + j * l.width + lane, *alpha = m.alpha + (VECTOR ? j * l.width + lane : j);
            float c = __fmul_rn(m.beta[j], warp_dot<BLOCKS>(r, key, blocks));
            if (lane == 0) {
                m.coefficient[t * l.records + j] = c;
            }
#pragma unroll
            for (int i = 0; i < BLOCKS; i++) {
                if (i < blocks) {
                    float x = DELTA ? __fmaf_rn(-c, key[32 * i], r[i]) : r[i];
                    r[i] = __fmul_rn(VECTOR ? alpha[32 * i] : alpha[0], x);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) {
            if (i < blocks) {
                q[32 * i] = r[i];
            }
        }
    }
}

/* Without the delta rule and with a scalar decay r stays parallel to q: the products k . q do not wait for each other,
   and only a scalar is walked. */
template <int BLOCKS> static __device__ void walk_scalar(const rssm_cuda_layout &l, const memory &m, int n, int first, int newest) {
    const int lane = threadIdx.x & 31, warps = blockDim.x / 32, blocks = l.width / 32, span = newest + n - first;
    for (int i = threadIdx.x / 32; i < n * span; i += warps) {
        int t = i / span, j = first + i % span;
        if (j > newest + t) {
            continue;
        }
        float q[BLOCKS];
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            q[b] = b < blocks ? m.query[t * l.width + lane + 32 * b] : 0.0f;
        }
        float dot = warp_dot<BLOCKS>(q, m.key + j * l.width + lane, blocks);
        if (lane == 0) {
            m.coefficient[t * l.records + j] = dot;
        }
    }
    __syncthreads();
    for (int t = threadIdx.x / 32; t < n; t += warps) { /* every lane of the warp walks the same scalar */
        float product = 1.0f;
        for (int j = newest + t; j >= first; j--) {
            float dot = m.coefficient[t * l.records + j];
            __syncwarp();
            if (lane == 0) {
                m.coefficient[t * l.records + j] = __fmul_rn(m.beta[j], __fmul_rn(product, dot));
            }
            product = __fmul_rn(product, m.alpha[j]);
        }
        for (int column = lane; column < l.width; column += 32) {
            m.query[t * l.width + column] = __fmul_rn(product, m.query[t * l.width + column]);
        }
    }
}

#endif
