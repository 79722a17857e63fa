/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layer of a decode step. A block takes one or more value heads of a row that share a key head: a unit. The state streams
 * through stages of shared memory, asked for before anything else, across the unit's heads, while the block prepares it.
 * What decode_stream.cu does better goes there, with the same bits. Also the norms that heads share, after either.
 */
#include "cuda/device/unit.cuh"

enum { NORM_THREADS = 128, STAGES = RSSM_CUDA_STAGES };

/* The rows of the state of a block's heads, tile by tile. */
template <class S, int THREADS> struct stream {
    static constexpr int STEP = S::ROWS * (THREADS / 8), FLOATS = STEP * 32 * S::BLOCKS;
    tile_place at;
    const float *head; /* state of the slice in the head that is fetched from */
    int64_t next_head; /* floats to the next one */
    int first, left;   /* next row to fetch, heads yet to fetch from */
    int stage;         /* of the next tile to take; fetched to in the same order */
    float *memory;

    __device__ __forceinline__ void fetch(int to) {
        if (left > 0) {
            fetch_tile<S>(at, head, first, memory + to * FLOATS);
            first += STEP;
            if (first >= at.rows) {
                first = 0;
                head += next_head;
                left--;
            }
        }
        __pipeline_commit();
    }
    __device__ __forceinline__ void start() {
#pragma unroll
        for (int i = 0; i < STAGES; i++) {
            fetch(i);
        }
    }
    __device__ __forceinline__ void take(tile<S> &x, int row) {
        __pipeline_wait_prior(STAGES - 1);
        take_fetched<S>(x, at, row, memory + stage * FLOATS);
    }
    /* The tile taken last has been used: its stage is free. */
    __device__ __forceinline__ void go_on() {
        fetch(stage);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
};

/* Evaluates one head whose records lie in working memory. */
template <class S, bool DELTA, bool VECTOR, int THREADS>
static __device__ __forceinline__ void run_head(const rssm_cuda_step &c, const unit_work &work, const slot_parts &slot, const head_place &p,
                                const memory &m, stream<S, THREADS> &states) {
    const tile_place &at = states.at;
    float *state = slot.checkpoint + ((int64_t)p.hv * c.geometry.d_v + p.first) * c.geometry.d_k;
    for (int first = 0; first < p.rows; first += S::ROWS * at.groups) {
        tile<S> x;
        if constexpr (S::EXACT) {
            states.take(x, first);
        } else {
            load_tile<S>(x, at, state, first);
        }
        evaluate_tile<S, DELTA, VECTOR>(x, at, c, work, state, first, m);
        if constexpr (S::EXACT) {
            states.go_on();
        }
    }
}

template <class S, bool DELTA, bool VECTOR, int THREADS>
static __device__ __forceinline__ void decode_block(const rssm_cuda_step &c) {
    extern __shared__ float4 shared[];
    __shared__ slot_maps maps;
    const team w = {(int)threadIdx.x, THREADS, 0};
    const head_place p = place_of_block(c.geometry, c.slices, c.layout.slice, c.heads);
    slot_parts slot = {};
    const step_row row = find_row(c, p.row, false, &slot);
    if (!row.work) {
        return;
    }
    if (!row.live) {
        for (int i = 0; i < c.heads; i++) {
            write_zeros(w, c, head_at(c.geometry, p, i), row);
        }
        return;
    }
    float *base = memory_base<S>(c.memory, c.layout.total, shared);
    const memory m = memory_at(base, c.layout);
    const int64_t head = (int64_t)c.geometry.d_v * c.geometry.d_k;
    const unit_work work = work_of(c, row);
    stream<S, THREADS> states = {place_of<THREADS>(w.thread, c.geometry.d_k, p.rows),
                                slot.checkpoint + p.hv * head + p.first * c.geometry.d_k,
                                head * (c.geometry.modulo ? c.geometry.key_heads : 1),
                                0,
                                c.heads,
                                0,
                                base + c.layout.state};
    if constexpr (S::EXACT) {
        states.start();
    }
    load_maps(w, maps, slot.cursor, c.geometry.rows);
    __syncthreads();
    if (w.thread == 0) {
        count_unit(c, row, slot, work.fold, gridDim.x);
    }
    prepare_unit<S, DELTA, VECTOR, THREADS>(w, c, row, slot, p, maps.record, maps.conv, m);
    for (int i = 0; i < c.heads; i++) {
        run_head<S, DELTA, VECTOR, THREADS>(c, work, slot, head_at(c.geometry, p, i), memory_of_head(m, c.layout, i), states);
    }
    __syncthreads();
    write_outputs(w, c, p, row.token, row.tokens, c.heads, m);
}

/* Steps of one or two tokens take small blocks, of which a multiprocessor has many; for more tokens, which need more
   working memory and arithmetic, a block has twice the threads. */
template <class S, bool DELTA, bool VECTOR> static __global__ void __launch_bounds__(128, 4) decode(const __grid_constant__ rssm_cuda_step c) {
    decode_block<S, DELTA, VECTOR, 128>(c);
}
template <class S, bool DELTA, bool VECTOR> static __global__ void __launch_bounds__(256, 2) verify(const __grid_constant__ rssm_cuda_step c) {
    decode_block<S, DELTA, VECTOR, 256>(c);
}

/* ---- Norms that blocks share -------------------------------------------------------------------------- */

static __device__ float block_sum(float x) {
    __shared__ float parts[NORM_THREADS / 32];
    x = warp_sum(x);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) {
        parts[threadIdx.x / 32] = x;
    }
    __syncthreads();
    return (parts[0] + parts[1]) + (parts[2] + parts[3]);
}

/* Block (group, row, z): the tokens z, z + gridDim.z, ... of a row, the heads of one norm group. */
static __global__ void __launch_bounds__(NORM_THREADS) shared_norm(const __grid_constant__ rssm_cuda_step c) {
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
            for (int i = threadIdx.x; i < heads * g.d_v; i += NORM_THREADS) {
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
            for (int i = threadIdx.x; i < heads * g.d_v; i += NORM_THREADS) {
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
    shared_norm<<<grid, NORM_THREADS, 0, (cudaStream_t)stream>>>(*call);
    return (int)cudaGetLastError();
}

/* ---- Launching ---------------------------------------------------------------------------------------- */

typedef void (*decode_kernel)(rssm_cuda_step);

static const decode_kernel kernels[2][3][3] = {RSSM_KERNEL_TABLE(decode, stream_64, stream_128),
                                               RSSM_KERNEL_TABLE(verify, stream_64, stream_128)};

extern "C" int rssm_launch_decode(const rssm_cuda_step *call, void *stream) {
    const rssm_geometry &g = call->geometry;
    const dim3 blocks((unsigned)(g.value_heads / call->heads * call->slices), (unsigned)call->batch.rows);
    const size_t bytes = call->memory != nullptr ? 0 : (size_t)call->layout.total * 4;
    if (call->batch.rows == 0) {
        return 0;
    }
    int error = 0;
    if (call->streams) {
        error = rssm_launch_decode_stream(call, stream);
    } else {
        const decode_kernel kernel = kernels[call->threads == 256][variant_of(g, call->memory)][g.kind - RSSM_MAMBA2];
        kernel<<<blocks, (unsigned)call->threads, bytes, (cudaStream_t)stream>>>(*call);
        error = (int)cudaGetLastError();
    }
    return error == 0 && call->y != nullptr ? rssm_launch_shared_norm(call, stream) : error;
}

extern "C" int rssm_load_decode(int shared_bytes) {
    cudaFuncAttributes unused;
    int error = load_table(&kernels[0][0][0], 18, shared_bytes);
    return error == 0 ? (int)cudaFuncGetAttributes(&unused, (const void *)shared_norm) : error;
}
