/* SPDX-License-Identifier: Apache-2.0 */
/* The host's side of the CUDA device: what a context and a cache keep there, and how calls of the runtime fail. */
#ifndef RSSM_CUDA_HOST_H
#define RSSM_CUDA_HOST_H

#include <cuda_runtime_api.h>

#include "cuda/cuda_call.h"
#include "device_ops.h"

/* A context's device. */
typedef struct rssm_cuda {
    int32_t index;
    int32_t major, minor;
    int32_t processors;
    int32_t stream_units; /* decode_stream.cu serves steps with so many units for each of them */
    int32_t shared_bytes; /* of a block's working memory */
    char name[64];
} rssm_cuda;

/* What a cache keeps on the device. */
typedef struct rssm_cuda_state {
    rssm_cuda_words *words;
    rssm_part *parts;          /* [layers][RSSM_PARTS], a copy of the cache's */
    rssm_constants *constants; /* [layers] on the host, pointers to device memory in each */
    int64_t *plan;             /* [slots] */
    int32_t rows;              /* prepared */
    int64_t tokens;
    float *memory, *y;         /* scratch of steps; NULL where none is needed */
    float *fold_memory;
    int64_t fold_jobs;         /* a launch may have, where folds need scratch */
} rssm_cuda_state;

static inline const rssm_cuda *rssm_cuda_of(const rssm_cache *cache) {
    return cache->context->device;
}
static inline rssm_cuda_state *rssm_cuda_state_of(const rssm_cache *cache) {
    return cache->device;
}

/* Makes the context's device the thread's, and puts the caller's back. */
typedef struct rssm_cuda_scope {
    int before;
} rssm_cuda_scope;
rssm_status rssm_cuda_enter(rssm_context *context, rssm_cuda_scope *scope);
void rssm_cuda_leave(rssm_cuda_scope scope);

/* OK, or a sentence: what failed and why. */
rssm_status rssm_cuda_check(rssm_context *context, int error, const char *what);
#define RSSM_CUDA_TRY(context, call, what) RSSM_TRY(rssm_cuda_check((context), (int)(call), (what)))

/* The stream belongs to the context's device. */
rssm_status rssm_cuda_check_stream(rssm_cache *cache, void *stream);
/* The device can read what a pointer names; NULL is fine. */
rssm_status rssm_cuda_check_pointer(rssm_cache *cache, const char *name, const void *pointer);

/* Working memory of a block that has `records` rows of a window and `tokens` tokens at a time, `slice` rows of the state;
   threads: of a block of a decode, which walks queries and streams the state through; 0: none, < 0: it walks, with the
   stages elsewhere. heads: of a unit. */
rssm_cuda_layout rssm_cuda_layout_of(const rssm_geometry *g, int32_t records, int32_t tokens, int32_t slice, int32_t threads,
                                     int32_t heads);
/* Rows of the state that one block of a scan holds, if its working memory spills or not. */
int32_t rssm_cuda_scan_slice(const rssm_geometry *g, bool spills);
/* Whether a layout must lie in device memory. */
bool rssm_cuda_spills(const rssm_cache *cache, const rssm_cuda_layout *layout);

rssm_cuda_cache rssm_cuda_shared(const rssm_cache *cache);

/* The operations of rssm_device_ops, by file. */
rssm_status rssm_cuda_prepare(rssm_cache *cache, int32_t rows, int32_t tokens);
rssm_status rssm_cuda_begin_step(rssm_cache *cache, const rssm_batch *batch, const int32_t *accepted, void *stream);
rssm_status rssm_cuda_layer(rssm_cache *cache, int32_t layer, const rssm_batch *batch, const rssm_layer_inputs *inputs,
                            const rssm_output *out, bool prefill, void *stream);
rssm_status rssm_cuda_start(rssm_cache *cache, int64_t count, const int32_t *slots, const uint64_t *ids,
                            const int64_t *positions, bool zero, void *stream);
rssm_status rssm_cuda_flush(rssm_cache *cache, int64_t count, const int32_t *slots, const int64_t *positions, void *stream);
rssm_status rssm_cuda_rollback(rssm_cache *cache, int64_t count, const int32_t *slots, const int64_t *positions,
                               void *stream);
rssm_status rssm_cuda_materialize(rssm_cache *cache, int64_t count, const int32_t *src, const int32_t *dst,
                                  const int64_t *positions, const uint64_t *ids, void *stream);
rssm_status rssm_cuda_copy_slots(rssm_cache *cache, int64_t count, const int32_t *src, const int32_t *dst,
                                 const uint64_t *ids, void *stream);
rssm_status rssm_cuda_fold_host(rssm_cache *cache, const rssm_fold *fold);
rssm_status rssm_cuda_mirror_open(rssm_cache *cache, int64_t slot, bool states, bool fresh, rssm_cache **mirror);
rssm_status rssm_cuda_mirror_write(rssm_cache *cache, int64_t slot, const rssm_cache *mirror, bool states);
void rssm_cuda_mirror_close(rssm_cache *mirror);

/* Kernels are loaded before a step, which may be captured, needs them. */
int rssm_load_begin(void);
int rssm_load_lists(void);
int rssm_load_decode(int shared_bytes);
int rssm_load_decode_stream(int shared_bytes);
int rssm_load_scan(int shared_bytes);
int rssm_load_fold(int shared_bytes);

#endif
