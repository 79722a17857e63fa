/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/on_device.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "cache.h"
#include "cuda/cuda_host.h"

enum { PAGE = 4096, PAGES = 1 << 18, STAGING = 1 << 20, TOKENS = 8192 };

/* ---- Memory ------------------------------------------------------------------------------------------- */

static unsigned char *pool; /* of PAGES pages */
static uint8_t used[PAGES];
static size_t next_page;

void *on_device_map(size_t bytes) {
    const size_t count = (bytes + PAGE - 1) / PAGE;
    if (pool == NULL && cudaHostAlloc((void **)&pool, (size_t)PAGE * PAGES, cudaHostAllocMapped) != cudaSuccess) {
        return NULL;
    }
    for (int round = 0; round < 2; round++) {
        for (size_t first = next_page, run = 0, at = first; at < PAGES; at++) {
            run = used[at] ? 0 : run + 1;
            if (run == count) {
                first = at + 1 - count;
                memset(used + first, 1, count);
                next_page = first + count;
                return pool + first * PAGE;
            }
        }
        next_page = 0;
    }
    return NULL;
}

void on_device_unmap(void *pages, size_t bytes) {
    memset(used + (size_t)((unsigned char *)pages - pool) / PAGE, 0, (bytes + PAGE - 1) / PAGE);
}

/* ---- Calls -------------------------------------------------------------------------------------------- */

static unsigned char *staging;
static size_t staged;

/* A copy of a small array where the device can read it, until the next call. */
static const void *stage(const void *data, size_t bytes) {
    if (data == NULL) {
        return NULL;
    }
    if (staging == NULL) {
        staging = on_device_map(STAGING);
    }
    if (staging == NULL || staged + bytes > STAGING) {
        return data; /* the library refuses it */
    }
    void *copy = staging + staged;
    memcpy(copy, data, bytes);
    staged += (bytes + 15) & ~(size_t)15;
    return copy;
}

static bool on_device(const rssm_cache *cache) {
    staged = 0;
    return cache->context->ops != NULL;
}

static rssm_batch stage_batch(const rssm_batch *batch) {
    rssm_batch b = *batch;
    const int64_t stride = b.slots_stride == 0 ? 1 : b.slots_stride;
    const size_t rows = b.rows > 0 ? (size_t)b.rows : 0;
    b.slots = stage(b.slots, rows > 0 ? ((rows - 1) * (size_t)stride + 1) * sizeof(int32_t) : 0);
    b.offsets = stage(b.offsets, (rows + 1) * sizeof(int32_t));
    b.prefill = stage(b.prefill, rows);
    b.parents = NULL; /* chains, the tests see to that: the device has no trees */
    return b;
}

rssm_status __real_rssm_cache_status(const rssm_cache *cache, rssm_cache_info *info);

/* Waits, and makes a status of what the device found. */
static rssm_status finish(const rssm_cache *cache, rssm_status status) {
    static const struct {
        uint64_t fault;
        rssm_status status;
    } statuses[] = {{RSSM_FAULT_FAILED, RSSM_ERROR_FAILED_SLOT}, {RSSM_FAULT_SLOT, RSSM_ERROR_STATE},
                    {RSSM_FAULT_STEP, RSSM_ERROR_STATE},         {RSSM_FAULT_TWICE, RSSM_ERROR_ARGUMENT},
                    {RSSM_FAULT_TOKENS, RSSM_ERROR_ARGUMENT},    {RSSM_FAULT_ACCEPTED, RSSM_ERROR_ARGUMENT},
                    {RSSM_FAULT_POSITION, RSSM_ERROR_ARGUMENT}};
    rssm_cache_info info = {.struct_size = sizeof info};
    rssm_status asked = __real_rssm_cache_status(cache, &info);
    if (status != RSSM_OK || asked != RSSM_OK) {
        return status != RSSM_OK ? status : asked;
    }
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++) {
        if ((info.error & statuses[i].fault) != 0) {
            return rssm_fail(cache->context, statuses[i].status, "the device found faults 0x%x", (unsigned)info.error);
        }
    }
    return RSSM_OK;
}

rssm_status __wrap_rssm_cache_status(const rssm_cache *cache, rssm_cache_info *info);
rssm_status __wrap_rssm_cache_status(const rssm_cache *cache, rssm_cache_info *info) {
    return __real_rssm_cache_status(cache, info);
}

rssm_status __real_rssm_context_create(const rssm_context_desc *desc, rssm_context **context);
rssm_status __wrap_rssm_context_create(const rssm_context_desc *desc, rssm_context **context);
rssm_status __wrap_rssm_context_create(const rssm_context_desc *desc, rssm_context **context) {
    rssm_context_desc d = {.struct_size = sizeof d};
    if (desc == NULL || (desc->isa_mask & ON_DEVICE_MASK) == 0 || desc->isa_mask == UINT64_MAX) {
        return __real_rssm_context_create(desc, context);
    }
    d.device = RSSM_DEVICE_CUDA;
    return __real_rssm_context_create(&d, context);
}

rssm_status __real_rssm_cache_prepare(rssm_cache *cache, int32_t rows, int32_t parts);
rssm_status __wrap_rssm_cache_prepare(rssm_cache *cache, int32_t rows, int32_t parts);
rssm_status __wrap_rssm_cache_prepare(rssm_cache *cache, int32_t rows, int32_t parts) {
    return __real_rssm_cache_prepare(cache, rows, cache->context->ops != NULL ? TOKENS : parts);
}

rssm_status __real_rssm_cache_begin(rssm_cache *cache, const rssm_batch *batch, const int32_t *accepted,
                                    const int32_t *paths, void *stream);
rssm_status __wrap_rssm_cache_begin(rssm_cache *cache, const rssm_batch *batch, const int32_t *accepted,
                                    const int32_t *paths, void *stream);
rssm_status __wrap_rssm_cache_begin(rssm_cache *cache, const rssm_batch *batch, const int32_t *accepted,
                                    const int32_t *paths, void *stream) {
    if (!on_device(cache) || batch == NULL) {
        return __real_rssm_cache_begin(cache, batch, accepted, paths, stream);
    }
    rssm_batch b = stage_batch(batch);
    accepted = stage(accepted, (size_t)b.rows * sizeof *accepted);
    return finish(cache, __real_rssm_cache_begin(cache, &b, accepted, NULL, stream));
}

typedef rssm_status layer_fn(rssm_cache *, int32_t, const rssm_batch *, const rssm_layer_inputs *, const rssm_output *,
                             void *);
layer_fn __real_rssm_cache_decode, __wrap_rssm_cache_decode, __real_rssm_cache_prefill, __wrap_rssm_cache_prefill;

static rssm_status run_layer(layer_fn *fn, rssm_cache *cache, int32_t layer, const rssm_batch *batch,
                             const rssm_layer_inputs *inputs, const rssm_output *out, void *stream) {
    if (!on_device(cache) || batch == NULL) {
        return fn(cache, layer, batch, inputs, out, stream);
    }
    rssm_batch b = stage_batch(batch);
    return finish(cache, fn(cache, layer, &b, inputs, out, stream));
}

/* Every second step streams, on one to three multiprocessors, as large steps do on all: the bits must not tell. */
static void vary_launches(rssm_cache *cache) {
    static uint32_t calls;
    static int32_t processors;
    rssm_cuda *cuda = cache->context->device;
    const uint32_t call = __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
    if (processors == 0) {
        processors = cuda->processors;
    }
    cuda->stream_units = call % 2 == 0 ? 0 : 12;
    cuda->processors = call % 2 == 0 ? 1 + (int32_t)(call / 2 % 3) : processors;
}

rssm_status __wrap_rssm_cache_decode(rssm_cache *cache, int32_t layer, const rssm_batch *batch,
                                     const rssm_layer_inputs *inputs, const rssm_output *out, void *stream) {
    if (on_device(cache)) {
        vary_launches(cache);
    }
    return run_layer(__real_rssm_cache_decode, cache, layer, batch, inputs, out, stream);
}

rssm_status __wrap_rssm_cache_prefill(rssm_cache *cache, int32_t layer, const rssm_batch *batch,
                                      const rssm_layer_inputs *inputs, const rssm_output *out, void *stream) {
    return run_layer(__real_rssm_cache_prefill, cache, layer, batch, inputs, out, stream);
}

/* Parts are the CPU's: the first one stands for all. */
rssm_status __real_rssm_cache_decode_part(rssm_cache *cache, int32_t layer, const rssm_batch *batch,
                                          const rssm_layer_inputs *inputs, const rssm_output *out, int32_t part,
                                          int32_t parts);
rssm_status __wrap_rssm_cache_decode_part(rssm_cache *cache, int32_t layer, const rssm_batch *batch,
                                          const rssm_layer_inputs *inputs, const rssm_output *out, int32_t part,
                                          int32_t parts);
rssm_status __wrap_rssm_cache_decode_part(rssm_cache *cache, int32_t layer, const rssm_batch *batch,
                                          const rssm_layer_inputs *inputs, const rssm_output *out, int32_t part,
                                          int32_t parts) {
    if (cache->context->ops == NULL) {
        return __real_rssm_cache_decode_part(cache, layer, batch, inputs, out, part, parts);
    }
    return part == 0 ? __wrap_rssm_cache_decode(cache, layer, batch, inputs, out, NULL) : RSSM_OK;
}

typedef rssm_status start_fn(rssm_cache *, int64_t, const int32_t *, const uint64_t *, const int64_t *, void *);
start_fn __real_rssm_cache_reset, __wrap_rssm_cache_reset, __real_rssm_cache_adopt, __wrap_rssm_cache_adopt;

static rssm_status run_start(start_fn *fn, rssm_cache *cache, int64_t count, const int32_t *slots, const uint64_t *ids,
                             const int64_t *positions, void *stream) {
    if (!on_device(cache) || count < 0) {
        return fn(cache, count, slots, ids, positions, stream);
    }
    const size_t n = (size_t)count;
    return finish(cache, fn(cache, count, stage(slots, n * sizeof *slots), stage(ids, n * sizeof *ids),
                            stage(positions, n * sizeof *positions), stream));
}

rssm_status __wrap_rssm_cache_reset(rssm_cache *cache, int64_t count, const int32_t *slots, const uint64_t *ids,
                                    const int64_t *positions, void *stream) {
    return run_start(__real_rssm_cache_reset, cache, count, slots, ids, positions, stream);
}

rssm_status __wrap_rssm_cache_adopt(rssm_cache *cache, int64_t count, const int32_t *slots, const uint64_t *ids,
                                    const int64_t *positions, void *stream) {
    return run_start(__real_rssm_cache_adopt, cache, count, slots, ids, positions, stream);
}

typedef rssm_status move_fn(rssm_cache *, int64_t, const int32_t *, const int64_t *, void *);
move_fn __real_rssm_cache_flush, __wrap_rssm_cache_flush, __real_rssm_cache_rollback, __wrap_rssm_cache_rollback;

static rssm_status run_move(move_fn *fn, rssm_cache *cache, int64_t count, const int32_t *slots, const int64_t *positions,
                            void *stream) {
    if (!on_device(cache) || count < 0) {
        return fn(cache, count, slots, positions, stream);
    }
    const size_t n = (size_t)count;
    return finish(cache,
                  fn(cache, count, stage(slots, n * sizeof *slots), stage(positions, n * sizeof *positions), stream));
}

rssm_status __wrap_rssm_cache_flush(rssm_cache *cache, int64_t count, const int32_t *slots, const int64_t *positions,
                                    void *stream) {
    return run_move(__real_rssm_cache_flush, cache, count, slots, positions, stream);
}

rssm_status __wrap_rssm_cache_rollback(rssm_cache *cache, int64_t count, const int32_t *slots, const int64_t *positions,
                                       void *stream) {
    return run_move(__real_rssm_cache_rollback, cache, count, slots, positions, stream);
}

rssm_status __real_rssm_cache_materialize(rssm_cache *cache, int64_t count, const int32_t *src, const int32_t *dst,
                                          const int64_t *positions, const uint64_t *ids, void *stream);
rssm_status __wrap_rssm_cache_materialize(rssm_cache *cache, int64_t count, const int32_t *src, const int32_t *dst,
                                          const int64_t *positions, const uint64_t *ids, void *stream);
rssm_status __wrap_rssm_cache_materialize(rssm_cache *cache, int64_t count, const int32_t *src, const int32_t *dst,
                                          const int64_t *positions, const uint64_t *ids, void *stream) {
    if (!on_device(cache) || count < 0) {
        return __real_rssm_cache_materialize(cache, count, src, dst, positions, ids, stream);
    }
    const size_t n = (size_t)count;
    return finish(cache, __real_rssm_cache_materialize(cache, count, stage(src, n * sizeof *src), stage(dst, n * sizeof *dst),
                                                       stage(positions, n * sizeof *positions),
                                                       stage(ids, n * sizeof *ids), stream));
}

rssm_status __real_rssm_cache_copy(rssm_cache *cache, int64_t count, const int32_t *src, const int32_t *dst,
                                   const uint64_t *ids, void *stream);
rssm_status __wrap_rssm_cache_copy(rssm_cache *cache, int64_t count, const int32_t *src, const int32_t *dst,
                                   const uint64_t *ids, void *stream);
rssm_status __wrap_rssm_cache_copy(rssm_cache *cache, int64_t count, const int32_t *src, const int32_t *dst,
                                   const uint64_t *ids, void *stream) {
    if (!on_device(cache) || count < 0) {
        return __real_rssm_cache_copy(cache, count, src, dst, ids, stream);
    }
    const size_t n = (size_t)count;
    return finish(cache, __real_rssm_cache_copy(cache, count, stage(src, n * sizeof *src), stage(dst, n * sizeof *dst),
                                                stage(ids, n * sizeof *ids), stream));
}
