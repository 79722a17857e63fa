/* SPDX-License-Identifier: Apache-2.0 */
/* After the recurrence: the D skip, the gated norms, and the store. */
#ifndef RSSM_CUDA_OUTPUT_CUH
#define RSSM_CUDA_OUTPUT_CUH

#include "cuda/device/block.cuh"

static __device__ __forceinline__ float output_gate(const rssm_cuda_step &c, int64_t token, int hv, int row) {
    const rssm_view &z = c.inputs.z;
    float x = load_io(z.data, token * z.token_stride + hv * z.head_stride + row, c.geometry.bf16);
    return c.geometry.out_norm == RSSM_OUT_NORM_HEAD_SIGMOID ? sigmoid(x) : silu(x);
}

static __device__ __forceinline__ void store_output(const rssm_cuda_step &c, int64_t token, int hv, int row, float y) {
    store_io(c.out.data, token * c.out.token_stride + hv * c.out.head_stride + row, y, c.out_bf16);
}

/* n tokens of a slice: m.y [n][slice] is complete. Where blocks share a norm, y goes to the call's memory for the kernel
   that follows; else a warp finishes a token of the head. */
static __device__ void write_outputs(const rssm_cuda_step &c, const head_place &p, int64_t token, int n, const float *y) {
    const rssm_geometry &g = c.geometry;
    const int lane = threadIdx.x & 31, warps = blockDim.x / 32, norm = g.out_norm;
    const bool head_norm = norm == RSSM_OUT_NORM_HEAD_SILU || norm == RSSM_OUT_NORM_HEAD_SIGMOID;
    for (int t = threadIdx.x / 32; t < n; t += warps) {
        const float *from = y + t * c.layout.slice;
        if (c.y != nullptr) {
            float *to = c.y + ((token + t) * g.value_heads + p.hv) * g.d_v + p.first;
            for (int row = lane; row < p.rows; row += 32) {
                to[row] = from[row];
            }
            continue;
        }
        float scale = 1.0f;
        if (head_norm) {
            float sum = 0.0f;
            for (int row = lane; row < p.rows; row += 32) {
                sum = __fmaf_rn(from[row], from[row], sum);
            }
            scale = 1.0f / sqrtf(warp_sum(sum) / (float)g.d_v + g.out_eps);
        }
        for (int row = lane; row < p.rows; row += 32) {
            float u = from[row];
            if (head_norm) {
                u = u * scale * c.constants.out_norm[(int64_t)p.h * g.padded_v + row];
            }
            if (norm != RSSM_OUT_NORM_NONE) {
                u *= output_gate(c, token + t, p.hv, p.first + row);
            }
            store_output(c, token + t, p.hv, p.first + row, u);
        }
    }
}

/* y = (sum over the records a token sees, newest first, of c v) + S r + D v, in place. Token t sees the records
   [first, newest + t]; its own value is that of row `own` + t. */
static __device__ void add_values(const rssm_cuda_step &c, const head_place &p, const memory &m, int n, int first, int newest, int own) {
    const int slice = c.layout.slice, records = c.layout.records;
    const float D = c.constants.D != nullptr ? c.constants.D[p.h] : 0.0f;
    for (int i = threadIdx.x; i < n * p.rows; i += blockDim.x) {
        int t = i / p.rows, row = i % p.rows;
        float sum = 0.0f;
        for (int j = newest + t; j >= first; j--) {
            sum = __fmaf_rn(m.coefficient[t * records + j], m.value[j * slice + row], sum);
        }
        float y = __fadd_rn(sum, m.y[t * slice + row]);
        if (c.constants.D != nullptr) {
            y = __fmaf_rn(D, m.value[(own + t) * slice + row], y);
        }
        m.y[t * slice + row] = y;
    }
}

#endif
