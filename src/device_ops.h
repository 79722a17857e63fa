/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a device other than the CPU does in the library's stead. The public functions check what the host can see and then
 * hand over to this table, which is NULL in a CPU context. Arrays that a batch or a list names lie in device memory, so
 * their contents are checked there.
 */
#ifndef RSSM_DEVICE_OPS_H
#define RSSM_DEVICE_OPS_H

#include "cache.h"

typedef struct rssm_device_ops {
    const char *(*kernel_name)(const rssm_context *context, int32_t kind, int32_t io_dtype);
    void (*close)(rssm_context *context);
    /* A cache's own things on the device: cache->device. */
    rssm_status (*cache_open)(rssm_cache *cache);
    void (*cache_close)(rssm_cache *cache);
    rssm_status (*prepare)(rssm_cache *cache, int32_t rows, int32_t tokens);
    /* Zeroed memory for the parts. */
    rssm_status (*allocate)(rssm_cache *cache, int64_t bytes, char **memory);
    void (*release)(rssm_cache *cache, char *memory);
    /* Takes note of where the parts lie; called after they were checked. */
    rssm_status (*seal)(rssm_cache *cache);
    /* Copies a layer's block of constants, `floats` of it. */
    rssm_status (*weights)(rssm_cache *cache, int32_t layer, int64_t floats);
    rssm_status (*begin)(rssm_cache *cache, const rssm_batch *batch, const int32_t *accepted, void *stream);
    rssm_status (*layer)(rssm_cache *cache, int32_t layer, const rssm_batch *batch, const rssm_layer_inputs *inputs,
                         const rssm_output *out, bool prefill, void *stream);
    rssm_status (*start)(rssm_cache *cache, int64_t count, const int32_t *slots, const uint64_t *ids,
                         const int64_t *positions, bool zero, void *stream);
    rssm_status (*flush)(rssm_cache *cache, int64_t count, const int32_t *slots, const int64_t *positions, void *stream);
    rssm_status (*rollback)(rssm_cache *cache, int64_t count, const int32_t *slots, const int64_t *positions, void *stream);
    rssm_status (*materialize)(rssm_cache *cache, int64_t count, const int32_t *src, const int32_t *dst,
                               const int64_t *positions, const uint64_t *ids, void *stream);
    rssm_status (*copy)(rssm_cache *cache, int64_t count, const int32_t *src, const int32_t *dst, const uint64_t *ids,
                        void *stream);
    /* A fold of host memory, on the device: its result has the device's bits. */
    rssm_status (*fold)(rssm_cache *cache, const rssm_fold *fold);
    /* A cache of host memory that holds one slot of this one, for whatever the host has to look at: all of the slot, or
       (states false) its cursors. fresh: nothing is read. Waits for the device. */
    rssm_status (*mirror_open)(rssm_cache *cache, int64_t slot, bool states, bool fresh, rssm_cache **mirror);
    /* states: all of the slot, else its cursors. */
    rssm_status (*mirror_write)(rssm_cache *cache, int64_t slot, const rssm_cache *mirror, bool states);
    void (*mirror_close)(rssm_cache *mirror);
    rssm_status (*status)(const rssm_cache *cache, rssm_cache_info *info);
} rssm_device_ops;

#ifdef RSSM_BUILD_CUDA
/* Opens the device of a CUDA context: context->ops, context->device. message: at least 256 bytes. */
rssm_status rssm_cuda_open(rssm_context *context, char *message, size_t capacity);
#endif

#endif
