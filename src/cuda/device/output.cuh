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

/* n tokens of a unit's heads, m.y complete; m: of the first head. Where blocks share a norm, y goes to the call's memory
   for the kernel that follows; else a warp finishes a token of a head. */
static __device__ __forceinline__ void write_outputs(const team &w, const rssm_cuda_step &c, const head_place &first,
                                int64_t token, int n, int heads, const memory &m) {
    const rssm_geometry &g = c.geometry;
    const int lane = w.thread & 31, warps = w.threads / 32, norm = g.out_norm;
    const bool head_norm = norm == RSSM_OUT_NORM_HEAD_SILU || norm == RSSM_OUT_NORM_HEAD_SIGMOID;
    for (int k = w.thread / 32; k < n * heads; k += warps) {
        const int i = k / n, t = k - i * n;
        const head_place p = head_at(g, first, i);
        const float *from = m.y + i * c.layout.head + t * c.layout.slice;
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

/* What the records add to S q: those that a token sees. */
struct seen_records {
    int first, newest; /* token t sees the records first .. newest + t */
    int own;           /* its own value is that of record own + t */
};

/* y = (sum over the records a token sees, newest first, of c v) + D v, for n tokens of a unit's heads, four rows a thread.
   S r comes later. */
static __device__ __forceinline__ void sum_values(const team &w, const rssm_cuda_step &c, const head_place &p, const memory &m, int n, int heads,
                                  const seen_records &seen) {
    const int slice = c.layout.slice, records = c.layout.records, bf16 = c.geometry.bf16, fours = (p.rows + 3) / 4, per_head = fours * n;
    for (int k = w.thread; k < heads * per_head; k += w.threads) {
        const int i = k / per_head, t = (k - i * per_head) / fours, row = 4 * (k - i * per_head - t * fours), left = p.rows - row;
        const memory own = memory_of_head(m, c.layout, i);
        const float *coefficient = own.coefficient + t * records;
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
        for (int j = seen.newest + t; j >= seen.first; j--) {
            const float x = coefficient[j];
            sum = fma4(make_float4(x, x, x, x), held4(own.value, j * slice + row, left, bf16), sum);
        }
        if (c.constants.D != nullptr) {
            const float D = c.constants.D[p.h + i];
            sum = fma4(make_float4(D, D, D, D), held4(own.value, (seen.own + t) * slice + row, left, bf16), sum);
        }
        float *y = own.y + t * slice + row;
        y[0] = sum.x;
        if (left > 1) {
            y[1] = sum.y;
        }
        if (left > 2) {
            y[2] = sum.z;
        }
        if (left > 3) {
            y[3] = sum.w;
        }
    }
}

#endif
