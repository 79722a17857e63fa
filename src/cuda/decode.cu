/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layer of a decode step: append the step's records, fold what begin planned, walk the queries back, read the
 * checkpoint once for all of them. A block is a value head of a row, or a slice of its rows. The first part of the state is
 * asked for before anything else, to registers and shared memory, and flies while the block walks. The conventional method
 * is the same code with the new token among the records to fold and nothing to walk.
 */
#include "cuda/device/head.cuh"

enum { THREADS = 128 };

template <class S, bool DELTA, bool VECTOR>
static __device__ __forceinline__ void decode_head(const rssm_cuda_step &c, const step_row &row, const slot_parts &slot, const head_place &p,
                                   const slot_maps &maps, const memory &m, tile<S> &x) {
    const rssm_cuda_layout &l = c.layout;
    const tile_place at = place_of<THREADS>(c.geometry.d_k, p.rows);
    float *state = slot.checkpoint + ((int64_t)p.hv * c.geometry.d_v + p.first) * c.geometry.d_k;
    const int n = row.history - row.first, step = S::ROWS * at.groups;
    const int fold = row.fold + (c.conventional ? row.tokens : 0), newest = c.conventional ? -1 : n;
    const stretch s = {row.token, 0, row.tokens, row.held, maps.record + row.history, maps.conv, !c.conventional, true};
    gather_records(c.geometry, c.constants, slot, p, maps.record + row.first, n, l.width, l.slice, m);
    take_tokens<(S::BLOCKS + 3) / 4>(c, slot, p, s, n, m);
    __syncthreads();
    if (!c.conventional) {
        if (DELTA || VECTOR) {
            walk_vector<S, DELTA, VECTOR>(l, m, at, row.tokens, fold, newest);
        } else {
            walk_scalar<S>(l, m, at, row.tokens, fold, newest);
        }
        __syncthreads();
    }
    for (int first = 0; first < p.rows; first += step) {
        if (first > 0 && S::EXACT && c.memory == nullptr) {
            __pipeline_wait_prior(0);
            load_staged<S>(x, at, m.state, first);
        } else if (first > 0) {
            load_tile<S>(x, at, state, first);
        }
        for (int j = 0; j < fold; j++) {
            apply_record<S, DELTA, VECTOR>(x, at, l, m, first, j);
        }
        if (fold > 0) {
            store_tile<S>(x, at, state, first);
        }
        for (int t = 0; t < row.tokens; t++) {
            columns<S> query;
            load_columns<S>(query, at, m.query + t * l.width);
            read_tile<S>(x, at, query, first, m.y + t * l.slice);
        }
    }
    __syncthreads();
    add_values(c, p, m, row.tokens, fold, newest, n);
    __syncthreads();
    write_outputs(c, p, row.token, row.tokens, m.y);
}

template <class S, bool DELTA, bool VECTOR>
static __global__ void __launch_bounds__(THREADS, 4) decode(const __grid_constant__ rssm_cuda_step c) {
    extern __shared__ float4 shared[];
    __shared__ slot_maps maps;
    const head_place p = place_in_head(c.geometry, c.slices, c.layout.slice);
    slot_parts slot = {};
    const step_row row = find_row(c, p.row, false, &slot);
    if (!row.work) {
        return;
    }
    if (!row.live) {
        write_zeros(c, p, row);
        return;
    }
    const memory m = memory_at(c.memory != nullptr ? spilled(c.memory, c.layout.total) : (float *)shared, c.layout);
    const tile_place at = place_of<THREADS>(c.geometry.d_k, p.rows);
    const float *state = slot.checkpoint + ((int64_t)p.hv * c.geometry.d_v + p.first) * c.geometry.d_k;
    tile<S> x;
    load_tile<S>(x, at, state, 0);
    if (c.memory == nullptr) {
        stage_rows<S>(at, state, S::ROWS * at.groups, m.state);
    }
    load_maps(maps, slot.cursor, c.geometry.rows);
    count_block(c, row, slot, row.fold + (c.conventional ? row.tokens : 0)); /* a barrier, for the maps too */
    decode_head<S, DELTA, VECTOR>(c, row, slot, p, maps, m, x);
}

/* ---- Norms that blocks share -------------------------------------------------------------------------- */

static __device__ float block_sum(float x) {
    __shared__ float parts[THREADS / 32];
    x = warp_sum(x);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) {
        parts[threadIdx.x / 32] = x;
    }
    __syncthreads();
    return (parts[0] + parts[1]) + (parts[2] + parts[3]);
}

/* Block (group, row, z): the tokens z, z + gridDim.z, ... of a row, the heads of one norm group. */
static __global__ void __launch_bounds__(THREADS) shared_norm(const __grid_constant__ rssm_cuda_step c) {
    const rssm_geometry &g = c.geometry;
    const int heads = g.value_heads / (int)gridDim.x, h0 = blockIdx.x * heads, norm = g.out_norm;
    const bool gate_first = norm == RSSM_OUT_NORM_GROUP || norm == RSSM_OUT_NORM_GATE_SILU;
    const bool norms = norm != RSSM_OUT_NORM_NONE && norm != RSSM_OUT_NORM_GATE_SILU;
    for (int index = blockIdx.y; index < c.batch.rows; index += gridDim.y) {
        slot_parts slot = {};
        const step_row row = find_row(c, index, true, &slot);
        for (int t = blockIdx.z; row.live && t < row.tokens; t += gridDim.z) {
            const int64_t token = row.token + t;
            float *y = c.y + token * g.value_heads * g.d_v, sum = 0.0f;
            for (int i = threadIdx.x; i < heads * g.d_v; i += THREADS) {
                int h = h0 + i / g.d_v, key = h / g.ratio, at = i % g.d_v;
                int hv = g.modulo ? key + h % g.ratio * g.key_heads : h;
                float u = y[hv * g.d_v + at];
                if (gate_first) {
                    u *= output_gate(c, token, hv, at);
                    y[hv * g.d_v + at] = u;
                }
                sum = __fmaf_rn(u, u, sum);
            }
            float scale = norms ? 1.0f / sqrtf(block_sum(sum) / (float)(heads * g.d_v) + g.out_eps) : 1.0f;
            for (int i = threadIdx.x; i < heads * g.d_v; i += THREADS) {
                int h = h0 + i / g.d_v, key = h / g.ratio, at = i % g.d_v;
                int hv = g.modulo ? key + h % g.ratio * g.key_heads : h;
                float u = y[hv * g.d_v + at];
                if (norms) {
                    u = u * scale * c.constants.out_norm[(int64_t)h * g.padded_v + at];
                }
                if (norms && !gate_first) {
                    u *= output_gate(c, token, hv, at);
                }
                store_output(c, token, hv, at, u);
            }
        }
    }
}

extern "C" int rssm_launch_shared_norm(const rssm_cuda_step *call, void *stream) {
    const rssm_geometry &g = call->geometry;
    const int z = call->prefill ? 64 : g.step_tokens;
    dim3 grid((unsigned)(g.units * g.unit_norms), (unsigned)(call->batch.rows < 65535 ? call->batch.rows : 65535), (unsigned)z);
    shared_norm<<<grid, THREADS, 0, (cudaStream_t)stream>>>(*call);
    return (int)cudaGetLastError();
}

/* ---- Launching ---------------------------------------------------------------------------------------- */

typedef void (*decode_kernel)(rssm_cuda_step);

/* The variants, by shape and kind: Mamba-2, GDN, KDA. */
static const decode_kernel kernels[3][3] = {
    {decode<shape_any, false, false>, decode<shape_any, true, false>, decode<shape_any, true, true>},
    {decode<shape_64, false, false>, decode<shape_64, true, false>, decode<shape_64, true, true>},
    {decode<shape_128, false, false>, decode<shape_128, true, false>, decode<shape_128, true, true>},
};

static int variant_of(int d_k) {
    return d_k == 128 ? 2 : d_k == 64 ? 1 : 0;
}

extern "C" int rssm_launch_decode(const rssm_cuda_step *call, void *stream) {
    const rssm_geometry &g = call->geometry;
    const dim3 blocks((unsigned)(g.value_heads * call->slices), (unsigned)call->batch.rows);
    const size_t bytes = call->memory != nullptr ? 0 : (size_t)call->layout.total * 4;
    if (call->batch.rows == 0) {
        return 0;
    }
    kernels[variant_of(g.d_k)][g.kind - RSSM_MAMBA2]<<<blocks, THREADS, bytes, (cudaStream_t)stream>>>(*call);
    int error = (int)cudaGetLastError();
    return error == 0 && call->y != nullptr ? rssm_launch_shared_norm(call, stream) : error;
}

extern "C" int rssm_load_decode(int shared_bytes) {
    for (int v = 0; v < 3; v++) {
        for (int kind = 0; kind < 3; kind++) {
            cudaError_t error =
                cudaFuncSetAttribute((const void *)kernels[v][kind], cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
            if (error != cudaSuccess) {
                return (int)error;
            }
        }
    }
    cudaFuncAttributes unused;
    return (int)cudaFuncGetAttributes(&unused, (const void *)shared_norm);
}
