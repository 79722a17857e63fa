/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on lists of slots between steps: what they do to cursors, and moving bytes from slot to slot. */
#include "cuda/device/cursors.cuh"

/* ---- Cursors ------------------------------------------------------------------------------------------ */

/* The slot of an entry, or -1 with a fault. */
static __device__ __forceinline__ int64_t listed_slot(const rssm_cuda_list &l, const int32_t *slots, int64_t i) {
    const int64_t slot = slots[i];
    if (slot < l.cache.reserved || slot >= l.cache.slots) {
        fault(l.cache.words, RSSM_FAULT_SLOT);
        return -1;
    }
    return slot;
}

/* Loads a slot's cursor as it stands when its last step is over; false with a fault if the slot is of no use. */
static __device__ bool settled(const rssm_cuda_list &l, int64_t slot, rssm_cursor *cursor, rssm_progress *p) {
    bool fine = false;
    copy_cursor(cursor, cursor_at(l.cache, slot));
    *p = warp_progress(l.cache, slot, cursor->serial);
    if (lane_of() == 0) {
        fine = cursor->state == RSSM_CURSOR_READY && rssm_step_settle(cursor, &l.cache.rows, p);
    }
    fine = __shfl_sync(0xffffffffu, fine, 0);
    __syncwarp();
    if (!fine) {
        fault(l.cache.words, cursor->state == RSSM_CURSOR_READY ? RSSM_FAULT_STEP : RSSM_FAULT_SLOT);
    }
    return fine;
}

/* The position that an entry asks for, -1 with a fault where it is out of reach. */
static __device__ int64_t asked_position(const rssm_cuda_list &l, int64_t i, const rssm_cursor *cursor, int64_t oldest) {
    const int64_t position = l.positions == nullptr || l.positions[i] == -1 ? cursor->position : l.positions[i];
    if (position < oldest || position > cursor->position) {
        fault(l.cache.words, RSSM_FAULT_POSITION);
        return -1;
    }
    return position;
}

static __device__ void start_slot(const rssm_cuda_list &l, int64_t slot, uint64_t id, int64_t position, uint64_t serial,
                           rssm_cursor *cursor) {
    if (lane_of() == 0) {
        rssm_cursor_start(cursor, &l.cache.rows, id, position);
        cursor->mark = (unsigned int)serial;
        cursor->row = -1;
    }
    copy_cursor(cursor_at(l.cache, slot), cursor);
    for (int layer = lane_of(); layer < l.cache.layers; layer += 32) {
        const rssm_layer_cursor fresh = {position, 0, 0, 0, 0};
        *layer_cursor_at(l.cache, layer, slot) = fresh;
    }
}

/* A slot that may be changed, once in this call. */
static __device__ int64_t listed_once(const rssm_cuda_list &l, int64_t i, unsigned long long serial) {
    const int64_t slot = listed_slot(l, l.dst, i);
    if (slot >= 0 && !claim(cursor_at(l.cache, slot), serial)) {
        fault(l.cache.words, RSSM_FAULT_TWICE);
        return -1;
    }
    return slot;
}

/* reset, adopt. */
static __device__ int64_t start(const rssm_cuda_list &l, int64_t i, unsigned long long serial, rssm_cursor *cursor) {
    const int64_t position = l.positions != nullptr ? l.positions[i] : 0;
    if (position < 0 || position > INT64_MAX / 2) {
        fault(l.cache.words, RSSM_FAULT_POSITION);
        return -1;
    }
    const int64_t slot = listed_once(l, i, serial);
    if (slot < 0) {
        return -1;
    }
    start_slot(l, slot, l.ids != nullptr ? l.ids[i] : 0, position, serial, cursor);
    return 0;
}

static __device__ int64_t plan_flush(const rssm_cuda_list &l, int64_t i, unsigned long long serial, rssm_cursor *cursor) {
    rssm_progress p;
    const int64_t slot = listed_once(l, i, serial);
    if (slot < 0 || !settled(l, slot, cursor, &p)) {
        return -1;
    }
    const int64_t position = asked_position(l, i, cursor, p.most);
    copy_cursor(cursor_at(l.cache, slot), cursor);
    return position;
}

static __device__ void flushed(const rssm_cuda_list &l, int64_t i, rssm_cursor *cursor) {
    const int64_t slot = l.dst[i], position = l.plan[i];
    rssm_cursor *home = cursor_at(l.cache, slot);
    for (int layer = lane_of(); layer < l.cache.layers; layer += 32) {
        rssm_layer_cursor *lc = layer_cursor_at(l.cache, layer, slot);
        lc->checkpoint = position > lc->checkpoint ? position : lc->checkpoint;
    }
    copy_cursor(cursor, home);
    if (lane_of() == 0) {
        rssm_cursor_retire(cursor, &l.cache.rows, position);
    }
    copy_cursor(home, cursor);
}

static __device__ int64_t roll_back(const rssm_cuda_list &l, int64_t i, unsigned long long serial, rssm_cursor *cursor) {
    rssm_progress p;
    const int64_t slot = listed_once(l, i, serial);
    if (slot < 0 || !settled(l, slot, cursor, &p)) {
        return -1;
    }
    const int64_t position = asked_position(l, i, cursor, rssm_step_oldest(cursor, &l.cache.rows, p.most));
    __syncwarp(); /* every lane has read the cursor that one of them changes now */
    if (lane_of() == 0 && position >= 0) {
        rssm_cursor_rollback(cursor, position);
    }
    copy_cursor(cursor_at(l.cache, slot), cursor);
    return position;
}

/* src[i] as it is read; it is not changed, as other entries may read it too. serial: of the claims. */
static __device__ int64_t plan_source(const rssm_cuda_list &l, int64_t i, bool fresh, unsigned long long serial, rssm_cursor *cursor) {
    const int64_t slot = listed_slot(l, l.src, i);
    rssm_progress p;
    if (slot < 0 || l.plan[i] < 0) {
        return -1;
    }
    if (fresh && cursor_at(l.cache, slot)->mark == (unsigned int)serial) {
        fault(l.cache.words, RSSM_FAULT_TWICE);
        return -1;
    }
    if (!settled(l, slot, cursor, &p)) {
        return -1;
    }
    return fresh ? asked_position(l, i, cursor, rssm_step_oldest(cursor, &l.cache.rows, p.most)) : 0;
}

/* dst[i] holds a copy of src[i]'s cursors. */
static __device__ void copied(const rssm_cuda_list &l, int64_t i, rssm_cursor *cursor) {
    const int64_t slot = l.dst[i];
    rssm_progress p;
    settled(l, slot, cursor, &p);
    if (lane_of() == 0) {
        if (slot != l.src[i]) {
            rssm_cursor_commit(cursor, &l.cache.rows, 0, nullptr); /* pending tokens stay behind */
            cursor->row = -1;
        }
        cursor->id = l.ids != nullptr ? l.ids[i] : cursor->id;
    }
    copy_cursor(cursor_at(l.cache, slot), cursor);
}

static __global__ void __launch_bounds__(CURSOR_WARPS * 32) list(const __grid_constant__ rssm_cuda_list l, int pass) {
    __shared__ rssm_cursor cursors[CURSOR_WARPS];
    const unsigned long long serial = *(volatile unsigned long long *)&l.cache.words->serial + 1;
    const int warp = threadIdx.x / 32;
    rssm_cursor *cursor = &cursors[warp];
    for (int64_t i = (int64_t)blockIdx.x * CURSOR_WARPS + warp; i < l.count; i += (int64_t)gridDim.x * CURSOR_WARPS) {
        int64_t plan = l.plan[i];
        switch (pass) {
        case RSSM_LIST_START: plan = start(l, i, serial, cursor); break;
        case RSSM_LIST_FLUSH: plan = plan_flush(l, i, serial, cursor); break;
        case RSSM_LIST_ROLLBACK: plan = roll_back(l, i, serial, cursor); break;
        case RSSM_LIST_CLAIM: plan = listed_once(l, i, serial) < 0 ? -1 : 0; break;
        case RSSM_LIST_MATERIALIZE: plan = plan_source(l, i, true, serial - 1, cursor); break;
        case RSSM_LIST_COPY: plan = plan_source(l, i, false, serial - 1, cursor); break;
        default:
            if (plan >= 0 && pass == RSSM_LIST_FLUSHED) {
                flushed(l, i, cursor);
            } else if (plan >= 0 && pass == RSSM_LIST_COPIED) {
                copied(l, i, cursor);
            } else if (plan >= 0 && pass == RSSM_LIST_MATERIALIZED) {
                start_slot(l, l.dst[i], l.ids != nullptr ? l.ids[i] : 0, plan, serial, cursor);
            }
        }
        __syncwarp();
        if (lane_of() == 0) {
            l.plan[i] = plan;
        }
    }
    end_call(l.cache.words, serial, false);
}

extern "C" int rssm_launch_list(const rssm_cuda_list *call, int pass, void *stream) {
    int64_t blocks = (call->count + CURSOR_WARPS - 1) / CURSOR_WARPS;
    list<<<(unsigned)(blocks < 1 ? 1 : blocks < 4096 ? blocks : 4096), CURSOR_WARPS * 32, 0, (cudaStream_t)stream>>>(*call, pass);
    return (int)cudaGetLastError();
}

/* ---- Bytes -------------------------------------------------------------------------------------------- */

enum { COPY_THREADS = 256, COPY_SHARED = 48 << 10 };

static __global__ void __launch_bounds__(COPY_THREADS) zero(const __grid_constant__ rssm_cuda_copy c) {
    for (int64_t i = blockIdx.y; i < c.count; i += gridDim.y) {
        if (c.plan[i] < 0) {
            continue;
        }
        float4 *to = (float4 *)(c.part.base + c.dst[i] * c.part.stride);
        for (int64_t at = (int64_t)blockIdx.x * COPY_THREADS + threadIdx.x; at < c.bytes / 16; at += (int64_t)gridDim.x * COPY_THREADS) {
            to[at] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    }
}

extern "C" int rssm_launch_zero(const rssm_cuda_copy *call, void *stream) {
    const int64_t pieces = (call->bytes / 16 + COPY_THREADS - 1) / COPY_THREADS;
    if (call->count == 0 || pieces == 0) {
        return 0;
    }
    dim3 grid((unsigned)(pieces < 64 ? pieces : 64), (unsigned)(call->count < 65535 ? call->count : 65535));
    zero<<<grid, COPY_THREADS, 0, (cudaStream_t)stream>>>(*call);
    return (int)cudaGetLastError();
}

/* A block takes the same `span` vectors of 16 bytes of every source before it writes any: chains, swaps and cycles need no
   memory of their own. */
static __global__ void __launch_bounds__(COPY_THREADS) copy(const __grid_constant__ rssm_cuda_copy c, int span) {
    extern __shared__ float4 aside[];
    const int64_t first = (int64_t)blockIdx.x * span, total = c.bytes / 16;
    const int n = total - first < span ? (int)(total - first) : span;
    for (int64_t i = threadIdx.x; i < c.count * n; i += COPY_THREADS) {
        int64_t entry = i / n;
        if (c.plan[entry] >= 0) {
            aside[i] = ((const float4 *)(c.part.base + c.src[entry] * c.part.stride))[first + i % n];
        }
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < c.count * n; i += COPY_THREADS) {
        int64_t entry = i / n;
        if (c.plan[entry] >= 0) {
            ((float4 *)(c.part.base + c.dst[entry] * c.part.stride))[first + i % n] = aside[i];
        }
    }
}

extern "C" int rssm_launch_copy(const rssm_cuda_copy *call, void *stream) {
    if (call->count == 0) {
        return 0;
    }
    int64_t span = COPY_SHARED / 16 / call->count, total = call->bytes / 16;
    span = span < total ? span : total;
    copy<<<(unsigned)((total + span - 1) / span), COPY_THREADS, (size_t)(span * call->count * 16), (cudaStream_t)stream>>>(*call, (int)span);
    return (int)cudaGetLastError();
}

/* Block (i): the convolution context of src[i] at plan[i], row by row, to rows 0, 1, ... of dst[i]. */
static __global__ void __launch_bounds__(COPY_THREADS) conv_rows(const __grid_constant__ rssm_cuda_list l, int layer, int64_t row_bytes) {
    __shared__ rssm_cursor cursor;
    const int64_t i = blockIdx.x;
    if (l.plan[i] < 0) {
        return;
    }
    if (threadIdx.x < 32) {
        rssm_progress p;
        settled(l, l.src[i], &cursor, &p);
    }
    __syncthreads();
    const rssm_part &part = l.cache.parts[(int64_t)layer * RSSM_PARTS + RSSM_PART_CONV];
    const int oldest = cursor.held - (int)(cursor.position - l.plan[i]) - l.cache.rows.conv_need;
    const int64_t words = row_bytes / 2;
    for (int r = 0; r < l.cache.rows.conv_need; r++) {
        const uint16_t *from = (const uint16_t *)(part.base + l.src[i] * part.stride + cursor.conv_map[oldest + r] * row_bytes);
        uint16_t *to = (uint16_t *)(part.base + l.dst[i] * part.stride + r * row_bytes);
        for (int64_t at = threadIdx.x; at < words; at += COPY_THREADS) {
            to[at] = from[at];
        }
    }
}

extern "C" int rssm_launch_conv_rows(const rssm_cuda_list *call, int32_t layer, int64_t row_bytes, void *stream) {
    if (call->count == 0) {
        return 0;
    }
    conv_rows<<<(unsigned)call->count, COPY_THREADS, 0, (cudaStream_t)stream>>>(*call, layer, row_bytes);
    return (int)cudaGetLastError();
}

extern "C" int rssm_load_lists(void) {
    cudaFuncAttributes unused;
    const void *kernels[] = {(const void *)list, (const void *)zero, (const void *)copy, (const void *)conv_rows};
    for (int i = 0; i < 4; i++) {
        cudaError_t error = cudaFuncGetAttributes(&unused, kernels[i]);
        if (error != cudaSuccess) {
            return (int)error;
        }
    }
    return 0;
}
