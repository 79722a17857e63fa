/* SPDX-License-Identifier: Apache-2.0 */
/* Folds outside a step: forced flushes, materialised copies, and what export and import need. */
#include "cuda/device/head.cuh"

enum { THREADS = 128 };

template <class S, bool DELTA, bool VECTOR>
static __device__ __forceinline__ void fold_job(const rssm_cuda_fold &c, const head_place &p, int64_t job, slot_maps &maps, const memory &m) {
    const rssm_geometry &g = c.geometry;
    const rssm_cuda_layout &l = c.layout;
    const slot_parts slot = slot_at(c.parts, c.src[job]);
    const int64_t checkpoint = slot.layer->checkpoint, ahead = c.positions[job] - checkpoint;
    const int n = ahead > 0 ? (int)ahead : 0;
    if (n == 0 && !c.into_dst) {
        return;
    }
    const team w = whole_block();
    load_maps(w, maps, slot.cursor, g.rows);
    __syncthreads();
    const int first_record = (int)(checkpoint - rssm_cursor_base(slot.cursor));
    gather_keys<S>(w, g, slot, p, maps.record + first_record, n, l.width, m);
    gather_head<S, VECTOR>(w, g, c.constants, slot, p, maps.record + first_record, n, l.width, m);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    scale_keys<S>(w, g, n, l.width, m);
    __syncthreads();
    const tile_place at = place_of<THREADS>(w.thread, g.d_k, p.rows);
    const int64_t offset = ((int64_t)p.hv * g.d_v + p.first) * g.d_k;
    float *to = part_at<float>(c.parts, RSSM_PART_CHECKPOINT, c.dst[job]) + offset;
    for (int first = 0; first < p.rows; first += S::ROWS * at.groups) {
        tile<S> x;
        load_tile<S>(x, at, slot.checkpoint + offset, first);
        for (int j = 0; j < n; j++) {
            apply_record<S, DELTA, VECTOR>(x, at, l, m, g.bf16, first, j);
        }
        store_tile<S>(x, at, to, first);
    }
    if (threadIdx.x == 0 && blockIdx.x == 0 && n > 0) {
        atomicAdd(&c.words->flushes, 1ull);
    }
}

/* Block: a slice of a head of the jobs y, y + gridDim.y, ... */
template <class S, bool DELTA, bool VECTOR>
static __global__ void __launch_bounds__(THREADS) fold(const __grid_constant__ rssm_cuda_fold c) {
    extern __shared__ float4 shared[];
    __shared__ slot_maps maps;
    const head_place p = place_of_block(c.geometry, c.slices, c.layout.slice, 1);
    const memory m = memory_at(memory_base<S>(c.memory, c.layout.total, shared), c.layout);
    for (int64_t job = p.row; job < c.count; job += gridDim.y) {
        __syncthreads();
        if (c.positions[job] >= 0) {
            fold_job<S, DELTA, VECTOR>(c, p, job, maps, m);
        }
    }
}

typedef void (*fold_kernel)(rssm_cuda_fold);

static const fold_kernel kernels[3][3] = RSSM_KERNEL_TABLE(fold, shape_64, shape_128);

extern "C" int rssm_launch_fold(const rssm_cuda_fold *call, void *stream) {
    const rssm_geometry &g = call->geometry;
    const dim3 blocks((unsigned)(g.value_heads * call->slices), (unsigned)(call->count < 65535 ? call->count : 65535));
    const size_t bytes = call->memory != nullptr ? 0 : (size_t)call->layout.total * 4;
    if (call->count == 0) {
        return 0;
    }
    kernels[variant_of(g, call->memory)][g.kind - RSSM_MAMBA2]<<<blocks, THREADS, bytes, (cudaStream_t)stream>>>(*call);
    return (int)cudaGetLastError();
}

extern "C" int rssm_load_fold(int shared_bytes) {
    return load_table(&kernels[0][0], 9, shared_bytes);
}
