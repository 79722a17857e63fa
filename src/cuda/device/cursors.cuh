/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cursors on the device: a warp works on one slot. Its cursor is copied to shared memory, one lane applies the rules of
 * step_rules.h to it, and the warp copies it back.
 */
#ifndef RSSM_CUDA_CURSORS_CUH
#define RSSM_CUDA_CURSORS_CUH

#include "cuda/device/block.cuh"
#include "step_rules.h"

enum { CURSOR_WARPS = 4, CURSOR_WORDS = sizeof(rssm_cursor) / 4 };
static_assert(sizeof(rssm_cursor) % 4 == 0, "cursors are copied in words");

static __device__ __forceinline__ int lane_of() {
    return (int)(threadIdx.x & 31);
}

static __device__ __forceinline__ void copy_cursor(rssm_cursor *to, const rssm_cursor *from) {
    __syncwarp();
    for (int i = lane_of(); i < CURSOR_WORDS; i += 32) {
        ((uint32_t *)to)[i] = ((const uint32_t *)from)[i];
    }
    __syncwarp();
}

static __device__ __forceinline__ rssm_cursor *cursor_at(const rssm_cuda_cache &c, int64_t slot) {
    return part_at<rssm_cursor>(c.parts, RSSM_PART_CURSOR, slot);
}

static __device__ __forceinline__ rssm_layer_cursor *layer_cursor_at(const rssm_cuda_cache &c, int layer,
                                int64_t slot) {
    return part_at<rssm_layer_cursor>(c.parts + (int64_t)layer * RSSM_PARTS, RSSM_PART_LAYER_CURSOR, slot);
}

static __device__ __forceinline__ int64_t warp_least(int64_t x) {
    for (int apart = 16; apart > 0; apart /= 2) {
        int64_t other = __shfl_xor_sync(0xffffffffu, x, apart);
        x = other < x ? other : x;
    }
    return x;
}

/* How far the layers got with the step of this serial. Every lane gets it. */
static __device__ __forceinline__ rssm_progress warp_progress(const rssm_cuda_cache &c, int64_t slot, uint64_t serial) {
    rssm_progress p = {c.layers, 0, 0, -1, INT64_MAX, -INT64_MAX}; /* which can be negated */
    for (int layer = lane_of(); layer < c.layers; layer += 32) {
        const rssm_layer_cursor *lc = layer_cursor_at(c, layer, slot);
        int64_t checkpoint = lc->checkpoint;
        p.done += lc->serial == serial;
        p.least = checkpoint < p.least ? checkpoint : p.least;
        p.most = checkpoint > p.most ? checkpoint : p.most;
    }
    p.done = (int)__reduce_add_sync(0xffffffffu, (unsigned)p.done);
    p.least = warp_least(p.least);
    p.most = -warp_least(-p.most);
    return p;
}

/* Takes a slot for the call with this serial; false if another entry of the call has it. */
static __device__ __forceinline__ bool claim(rssm_cursor *cursor, unsigned long long serial) {
    unsigned int old = 0;
    if (lane_of() == 0) {
        old = atomicExch(&cursor->mark, (unsigned int)serial);
    }
    return __shfl_sync(0xffffffffu, old, 0) != (unsigned int)serial;
}

/* The last block of a launch to end counts the serial up; all have read it by then. */
static __device__ __forceinline__ void end_call(rssm_cuda_words *words, unsigned long long serial, bool step) {
    __syncthreads();
    if (threadIdx.x != 0) {
        return;
    }
    __threadfence();
    if (atomicAdd(&words->ticket, 1u) + 1 == gridDim.x) {
        words->ticket = 0;
        words->serial = serial;
        words->steps += step;
    }
}

#endif
