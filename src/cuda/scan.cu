/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefill: the recurrence itself over all tokens of a row, a piece of RSSM_CUDA_SCAN_TOKENS at a
 * time. A block keeps a head's state, or a slice of it, in registers from the first token to the last: it is read and
 * written once. History is folded first.
 */
#include "cuda/device/head.cuh"

enum { THREADS = 256 };

template <class S, bool DELTA, bool VECTOR>
static __device__ void scan_head(const rssm_cuda_step &c, const step_row &row, const slot_parts &slot, const head_place &p,
                          const slot_maps &maps, const memory &m) {
    const rssm_cuda_layout &l = c.layout;
    const team w = whole_block();
    const tile_place at = place_of<THREADS>(w.thread, c.geometry.d_k, p.rows);
    float *state = slot.checkpoint + ((int64_t)p.hv * c.geometry.d_v + p.first) * c.geometry.d_k;
    tile<S> x;
    load_tile<S>(x, at, state, 0);
    if (row.fold > 0) {
        gather_keys<S>(w, c.geometry, slot, p, maps.record + row.first, row.fold, l.width, m);
        gather_head<S, VECTOR>(w, c.geometry, c.constants, slot, p, maps.record + row.first, row.fold, l.width, m);
        __pipeline_commit();
        __pipeline_wait_prior(0);
        __syncthreads();
        scale_keys<S>(w, c.geometry, row.fold, l.width, m);
        __syncthreads();
        for (int j = 0; j < row.fold; j++) {
            apply_record<S, DELTA, VECTOR>(x, at, l, m, c.geometry.bf16, 0, j);
        }
        __syncthreads();
    }
    for (int offset = 0; offset < row.tokens; offset += RSSM_CUDA_SCAN_TOKENS) {
        const int left = row.tokens - offset, n = left < RSSM_CUDA_SCAN_TOKENS ? left : RSSM_CUDA_SCAN_TOKENS;
        const stretch s = {row.token, offset, n, row.held, nullptr, maps.conv, false, false};
        take_keys<(S::BLOCKS + 3) / 4>(w, c, slot, p, s, 0, m);
        take_heads(w, c, slot, p, s, 0, 1, m);
        __syncthreads();
        sum_values(w, c, p, m, n, 1, seen_records{0, -1 - RSSM_CUDA_SCAN_TOKENS, 0}); /* the state holds the values */
        __syncthreads();
        for (int t = 0; t < n; t++) {
            columns<S> query;
            apply_record<S, DELTA, VECTOR>(x, at, l, m, c.geometry.bf16, 0, t);
            load_columns<S>(query, at, m.query + t * l.width);
            read_tile<S>(x, at, query, 1.0f, 0, m.y + t * l.slice);
        }
        __syncthreads();
        write_outputs(w, c, p, row.token + offset, n, 1, m);
        __syncthreads();
    }
    store_tile<S>(x, at, state, 0);
}

template <class S, bool DELTA, bool VECTOR>
static __global__ void __launch_bounds__(THREADS, 2) scan(const __grid_constant__ rssm_cuda_step c) {
    extern __shared__ float4 shared[];
    __shared__ slot_maps maps;
    const head_place p = place_of_block(c.geometry, c.slices, c.layout.slice, 1);
    slot_parts slot = {};
    const step_row row = find_row(c, p.row, false, &slot);
    if (!row.work) {
        return;
    }
    if (!row.live) {
        write_zeros(whole_block(), c, p, row);
        return;
    }
    load_maps(whole_block(), maps, slot.cursor, c.geometry.rows);
    __syncthreads();
    if (threadIdx.x == 0) {
        count_unit(c, row, slot, row.fold + row.tokens, gridDim.x);
    }
    scan_head<S, DELTA, VECTOR>(c, row, slot, p, maps, memory_at(memory_base<S>(c.memory, c.layout.total, shared), c.layout));
}

/* ---- A prompt's convolution rows ---------------------------------------------------------------------- */

enum { CHANNELS = 64 };

/* Where a channel of the inputs comes from. */
static __device__ __forceinline__ float input_channel(const rssm_cuda_step &c, int64_t token, int channel) {
    const rssm_geometry &g = c.geometry;
    const bool value = channel >= g.conv_v;
    const rssm_view &view = value ? c.inputs.v : channel >= g.conv_k ? c.inputs.k : c.inputs.q;
    const int from = value ? channel - g.conv_v : channel % g.conv_k, d = value ? g.d_v : g.d_k;
    return load_io(view.data, token * view.token_stride + from / d * view.head_stride + from % d, g.bf16);
}

/* Leaves the last inputs of a prompt as convolution rows 0, 1, ..., oldest first, a thread for each channel. The rows they
   come from may be the rows they go to, so they pass through shared memory. After the scan, whose blocks read them. */
static __global__ void __launch_bounds__(CHANNELS) leave_prompt(const __grid_constant__ rssm_cuda_step c) {
    extern __shared__ float held[];
    const rssm_geometry &g = c.geometry;
    slot_parts slot = {};
    const step_row row = find_row(c, blockIdx.y, true, &slot);
    if (!row.live || slot.layer->begun == 0) {
        return;
    }
    const int channel = blockIdx.x * CHANNELS + threadIdx.x;
    const int keep = rssm_cursor_conv_after(slot.cursor, &g.rows, row.tokens);
    for (int i = 0; channel < g.conv_channels && i < keep; i++) {
        int token = row.tokens - keep + i;
        held[i * CHANNELS + threadIdx.x] =
            token >= 0 ? input_channel(c, row.token + token, channel)
                       : load_io(slot.conv, (int64_t)slot.cursor->conv_map[row.held + token] * g.conv_channels + channel, g.bf16);
    }
    for (int i = 0; channel < g.conv_channels && i < keep; i++) {
        store_io(slot.conv, (int64_t)i * g.conv_channels + channel, held[i * CHANNELS + threadIdx.x], g.bf16);
    }
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd((unsigned int *)&slot.layer->ended, 1u) + 1 == gridDim.x) {
        slot.layer->ended = 0;
        slot.layer->begun = 0;
    }
}

/* ---- Launching ---------------------------------------------------------------------------------------- */

extern "C" int rssm_launch_shared_norm(const rssm_cuda_step *call, void *stream);

typedef void (*scan_kernel)(rssm_cuda_step);

static const scan_kernel kernels[3][3] = RSSM_KERNEL_TABLE(scan, shape_64, shape_128);

extern "C" int rssm_launch_scan(const rssm_cuda_step *call, void *stream) {
    const rssm_geometry &g = call->geometry;
    const dim3 blocks((unsigned)(g.value_heads * call->slices), (unsigned)call->batch.rows);
    const size_t bytes = call->memory != nullptr ? 0 : (size_t)call->layout.total * 4;
    if (call->batch.rows == 0) {
        return 0;
    }
    kernels[variant_of(g, call->memory)][g.kind - RSSM_MAMBA2]<<<blocks, THREADS, bytes, (cudaStream_t)stream>>>(*call);
    int error = (int)cudaGetLastError();
    if (error == 0 && call->y != nullptr) {
        error = rssm_launch_shared_norm(call, stream);
    }
    if (error == 0 && g.conv_width > 0) {
        dim3 grid((unsigned)((g.conv_channels + CHANNELS - 1) / CHANNELS), (unsigned)call->batch.rows);
        leave_prompt<<<grid, CHANNELS, (size_t)g.rows.conv_keep * CHANNELS * 4, (cudaStream_t)stream>>>(*call);
        error = (int)cudaGetLastError();
    }
    return error;
}

extern "C" int rssm_load_scan(int shared_bytes) {
    cudaFuncAttributes unused;
    int error = load_table(&kernels[0][0], 9, shared_bytes);
    return error == 0 ? (int)cudaFuncGetAttributes(&unused, (const void *)leave_prompt) : error;
}
