/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA context and what a cache keeps on its device. */
#include "cuda/cuda_host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEAST_MAJOR = 8,
    STATIC_SHARED = 5120, /* bytes of a block besides its working memory, and what the system takes */
    STREAM_UNITS = 12     /* so that its blocks end together */
};

/* ---- Failing ------------------------------------------------------------------------------------------ */

rssm_status rssm_cuda_check(rssm_context *context, int error, const char *what) {
    if (error == cudaSuccess) {
        return RSSM_OK;
    }
    (void)cudaGetLastError(); /* an error that does not stick is ours alone */
    return rssm_fail(context, error == cudaErrorMemoryAllocation ? RSSM_ERROR_MEMORY : RSSM_ERROR_DEVICE, "%s: %s", what,
                     cudaGetErrorString((cudaError_t)error));
}

rssm_status rssm_cuda_enter(rssm_context *context, rssm_cuda_scope *scope) {
    const rssm_cuda *cuda = context->device;
    RSSM_CUDA_TRY(context, cudaGetDevice(&scope->before), "asking for the current device");
    /* also where it is the current one: a thread's first call makes the device's context its own */
    return rssm_cuda_check(context, (int)cudaSetDevice(cuda->index), "choosing the device");
}

void rssm_cuda_leave(rssm_cuda_scope scope) {
    int now;
    if (cudaGetDevice(&now) == cudaSuccess && now != scope.before) {
        (void)cudaSetDevice(scope.before);
    }
}

rssm_status rssm_cuda_check_stream(rssm_cache *cache, void *stream) {
    int device = rssm_cuda_of(cache)->index;
    if (stream == NULL) {
        return RSSM_OK;
    }
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    RSSM_CUDA_TRY(cache->context, cudaStreamIsCapturing(stream, &capture), "stream");
    if (capture != cudaStreamCaptureStatusNone) {
        return RSSM_OK; /* the question would end the capture; a launch to the wrong device ends it too */
    }
    RSSM_CUDA_TRY(cache->context, cudaStreamGetDevice(stream, &device), "stream");
    if (device != rssm_cuda_of(cache)->index) {
        return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "stream is one of device %d; the context's device is %d", device,
                         (int)rssm_cuda_of(cache)->index);
    }
    return RSSM_OK;
}

rssm_status rssm_cuda_check_pointer(rssm_cache *cache, const char *name, const void *pointer) {
    struct cudaPointerAttributes a;
    if (pointer == NULL) {
        return RSSM_OK;
    }
    RSSM_CUDA_TRY(cache->context, cudaPointerGetAttributes(&a, pointer), name);
    if (a.type == cudaMemoryTypeUnregistered || a.devicePointer == NULL) {
        return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "%s is %p, memory of the host that the device cannot read", name,
                         pointer);
    }
    if (a.type == cudaMemoryTypeDevice && a.device != rssm_cuda_of(cache)->index) {
        return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "%s is memory of device %d; the context's device is %d", name,
                         a.device, (int)rssm_cuda_of(cache)->index);
    }
    return RSSM_OK;
}

/* ---- Caches ------------------------------------------------------------------------------------------- */

rssm_cuda_cache rssm_cuda_shared(const rssm_cache *cache) {
    const rssm_cuda_state *state = rssm_cuda_state_of(cache);
    return (rssm_cuda_cache){.rows = cache->geometry.rows,
                             .layers = cache->desc.layers,
                             .reserved = cache->desc.reserved_slots,
                             .slots = cache->desc.slots,
                             .parts = state->parts,
                             .words = state->words};
}

static void cache_close(rssm_cache *cache) {
    rssm_cuda_state *state = rssm_cuda_state_of(cache);
    rssm_cuda_scope scope;
    if (state == NULL || rssm_cuda_enter(cache->context, &scope) != RSSM_OK) {
        return;
    }
    for (int32_t layer = 0; state->constants != NULL && layer < cache->desc.layers; layer++) {
        (void)cudaFree(state->constants[layer].memory);
    }
    (void)cudaFree(state->words);
    (void)cudaFree(state->parts);
    (void)cudaFree(state->plan);
    (void)cudaFree(state->memory);
    (void)cudaFree(state->y);
    (void)cudaFree(state->fold_memory);
    free(state->constants);
    free(state);
    cache->device = NULL;
    rssm_cuda_leave(scope);
}

static rssm_status open_memory(rssm_cache *cache, rssm_cuda_state *state) {
    const size_t parts = (size_t)cache->desc.layers * RSSM_PARTS * sizeof(rssm_part);
    rssm_context *context = cache->context;
    RSSM_CUDA_TRY(context, cudaMalloc((void **)&state->words, sizeof *state->words), "memory of a cache");
    RSSM_CUDA_TRY(context, cudaMalloc((void **)&state->parts, parts), "memory of a cache");
    RSSM_CUDA_TRY(context, cudaMalloc((void **)&state->plan, (size_t)cache->desc.slots * sizeof *state->plan),
                  "memory of a cache");
    RSSM_CUDA_TRY(context, cudaMemset(state->words, 0, sizeof *state->words), "memory of a cache");
    RSSM_CUDA_TRY(context, cudaMemset(state->plan, 0, (size_t)cache->desc.slots * sizeof *state->plan), "memory of a cache");
    return rssm_cuda_check(context, (int)cudaDeviceSynchronize(), "memory of a cache");
}

static rssm_status cache_open(rssm_cache *cache) {
    if (cache->desc.checkpoint_dtype != RSSM_DTYPE_F32 || cache->desc.read_copy_dtype != RSSM_DTYPE_DEFAULT) {
        return rssm_fail(cache->context, RSSM_ERROR_UNSUPPORTED,
                         "checkpoint_dtype is %s and read_copy_dtype is %s; built for CUDA are f32 and none",
                         rssm_dtype_name(cache->desc.checkpoint_dtype), rssm_dtype_name(cache->desc.read_copy_dtype));
    }
    rssm_cuda_state *state = calloc(1, sizeof *state);
    rssm_cuda_scope scope;
    if (state != NULL) {
        state->constants = calloc((size_t)cache->desc.layers, sizeof *state->constants);
    }
    if (state == NULL || state->constants == NULL) {
        free(state);
        return rssm_fail(cache->context, RSSM_ERROR_MEMORY, "no memory for %d layers", (int)cache->desc.layers);
    }
    cache->device = state;
    RSSM_TRY(rssm_cuda_enter(cache->context, &scope));
    rssm_status status = open_memory(cache, state);
    rssm_cuda_leave(scope);
    return status; /* whoever created the cache destroys it */
}

static rssm_status allocate(rssm_cache *cache, int64_t bytes, char **memory) {
    rssm_cuda_scope scope;
    *memory = NULL;
    RSSM_TRY(rssm_cuda_enter(cache->context, &scope));
    int error = (int)cudaMalloc((void **)memory, (size_t)bytes);
    error = error == 0 ? (int)cudaMemset(*memory, 0, (size_t)bytes) : error;
    error = error == 0 ? (int)cudaDeviceSynchronize() : error;
    rssm_cuda_leave(scope);
    return rssm_cuda_check(cache->context, error, "memory of the slots");
}

static void release(rssm_cache *cache, char *memory) {
    rssm_cuda_scope scope;
    if (memory != NULL && rssm_cuda_enter(cache->context, &scope) == RSSM_OK) {
        (void)cudaFree(memory);
        rssm_cuda_leave(scope);
    }
}

static rssm_status seal_parts(rssm_cache *cache) {
    const int64_t count = (int64_t)cache->desc.layers * RSSM_PARTS;
    for (int64_t i = 0; i < count; i++) {
        RSSM_TRY(rssm_cuda_check_pointer(cache, "the base of a bound part", cache->parts[i].base));
    }
    return rssm_cuda_check(cache->context,
                           (int)cudaMemcpy(rssm_cuda_state_of(cache)->parts, cache->parts, (size_t)count * sizeof(rssm_part),
                                           cudaMemcpyHostToDevice),
                           "copying where the parts lie");
}

static rssm_status seal(rssm_cache *cache) {
    rssm_cuda_scope scope;
    RSSM_TRY(rssm_cuda_enter(cache->context, &scope));
    rssm_status status = seal_parts(cache);
    rssm_cuda_leave(scope);
    return status;
}

/* The device's copy of a block has the host's offsets. */
static const float *moved(const float *p, const rssm_constants *host, float *block) {
    return p == NULL ? NULL : block + (p - host->memory);
}

static rssm_status weights(rssm_cache *cache, int32_t layer, int64_t floats) {
    const rssm_constants *host = &cache->constants[layer];
    rssm_constants *device = &rssm_cuda_state_of(cache)->constants[layer];
    rssm_cuda_scope scope;
    float *block = NULL;
    RSSM_TRY(rssm_cuda_enter(cache->context, &scope));
    int error = device->memory != NULL ? (int)cudaDeviceSynchronize() : 0; /* a step may still read the old ones */
    error = error == 0 ? (int)cudaMalloc((void **)&block, (size_t)floats * 4) : error;
    error = error == 0 ? (int)cudaMemcpy(block, host->memory, (size_t)floats * 4, cudaMemcpyHostToDevice) : error;
    if (error == 0) {
        (void)cudaFree(device->memory);
        *device = (rssm_constants){.memory = block,
                                   .conv_weight = moved(host->conv_weight, host, block),
                                   .conv_bias = moved(host->conv_bias, host, block),
                                   .A = moved(host->A, host, block),
                                   .dt_bias = moved(host->dt_bias, host, block),
                                   .D = moved(host->D, host, block),
                                   .out_norm = moved(host->out_norm, host, block),
                                   .ready = 1};
    } else {
        (void)cudaFree(block);
    }
    rssm_cuda_leave(scope);
    return rssm_cuda_check(cache->context, error, "copying weights");
}

/* Faults are told once. Waits for the device. */
static rssm_status status_of(const rssm_cache *cache, rssm_cache_info *info) {
    rssm_cuda_words words, *home = rssm_cuda_state_of(cache)->words;
    const unsigned long long none = 0;
    rssm_cuda_scope scope;
    RSSM_TRY(rssm_cuda_enter(cache->context, &scope));
    int error = (int)cudaDeviceSynchronize();
    error = error == 0 ? (int)cudaMemcpy(&words, home, sizeof words, cudaMemcpyDeviceToHost) : error;
    error = error == 0 ? (int)cudaMemcpy(&home->error, &none, sizeof none, cudaMemcpyHostToDevice) : error;
    rssm_cuda_leave(scope);
    RSSM_TRY(rssm_cuda_check(cache->context, error, "reading counters"));
    info->error = words.error;
    info->steps = (int64_t)words.steps;
    info->row_steps = (int64_t)words.row_steps;
    info->flushes = (int64_t)words.flushes;
    info->bytes_read = (int64_t)words.bytes_read;
    info->bytes_written = (int64_t)words.bytes_written;
    info->failed_slots = (int64_t)words.failed_slots;
    return RSSM_OK;
}

/* ---- Contexts ----------------------------------------------------------------------------------------- */

static void close_context(rssm_context *context) {
    free(context->device);
}

/* One name for each of kinds, formats and architectures; they outlive every cache. */
static const char *kernel_name(const rssm_context *context, int32_t kind, int32_t io_dtype) {
    const rssm_cuda *cuda = context->device;
#define KIND_(arch, io_name, io_value)                                                                                        \
    if (io_dtype == (io_value)) {                                                                                             \
        return kind == RSSM_MAMBA2 ? "mamba2_decode_" arch "_f32_" io_name                                                    \
               : kind == RSSM_GDN  ? "gdn_decode_" arch "_f32_" io_name                                                       \
                                   : "kda_decode_" arch "_f32_" io_name;                                                      \
    }
#define RSSM_CUDA_ARCH(name, least)                                                                                           \
    if (cuda->major * 10 >= (least)) {                                                                                        \
        KIND_(#name, "f32", RSSM_DTYPE_F32)                                                                                   \
        KIND_(#name, "bf16", RSSM_DTYPE_BF16)                                                                                 \
    }
#include "kernels.def"
    return "unknown";
}

static const rssm_device_ops ops = {
    .kernel_name = kernel_name,
    .close = close_context,
    .cache_open = cache_open,
    .cache_close = cache_close,
    .prepare = rssm_cuda_prepare,
    .allocate = allocate,
    .release = release,
    .seal = seal,
    .weights = weights,
    .begin = rssm_cuda_begin_step,
    .layer = rssm_cuda_layer,
    .start = rssm_cuda_start,
    .flush = rssm_cuda_flush,
    .rollback = rssm_cuda_rollback,
    .materialize = rssm_cuda_materialize,
    .copy = rssm_cuda_copy_slots,
    .fold = rssm_cuda_fold_host,
    .mirror_open = rssm_cuda_mirror_open,
    .mirror_write = rssm_cuda_mirror_write,
    .mirror_close = rssm_cuda_mirror_close,
    .status = status_of,
};

static int load_kernels(int shared_bytes) {
    int error = rssm_load_begin();
    error = error == 0 ? rssm_load_lists() : error;
    error = error == 0 ? rssm_load_decode(shared_bytes) : error;
    error = error == 0 ? rssm_load_decode_stream(shared_bytes) : error;
    error = error == 0 ? rssm_load_scan(shared_bytes) : error;
    return error == 0 ? rssm_load_fold(shared_bytes) : error;
}

rssm_status rssm_cuda_open(rssm_context *context, char *message, size_t capacity) {
    const int index = context->desc.device_index;
    int count = 0, before = 0, shared = 0;
    struct cudaDeviceProp p;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        (void)cudaGetLastError();
        snprintf(message, capacity, "device is CUDA, and there is none: %s", cudaGetErrorString(error));
        return RSSM_ERROR_DEVICE;
    }
    if (index < 0 || index >= count) {
        snprintf(message, capacity, "device_index is %d; the limits are 0 and %d", index, count - 1);
        return RSSM_ERROR_ARGUMENT;
    }
    error = cudaGetDeviceProperties(&p, index);
    if (error == cudaSuccess && p.major < LEAST_MAJOR) {
        snprintf(message, capacity, "device %d has compute capability %d.%d; the least is %d.0", index, p.major, p.minor,
                 LEAST_MAJOR);
        return RSSM_ERROR_UNSUPPORTED;
    }
    rssm_cuda *cuda = calloc(1, sizeof *cuda);
    if (cuda == NULL) {
        snprintf(message, capacity, "no memory for a context of %zu bytes", sizeof *cuda);
        return RSSM_ERROR_MEMORY;
    }
    error = error == cudaSuccess ? cudaGetDevice(&before) : error;
    error = error == cudaSuccess ? cudaSetDevice(index) : error;
    error = error == cudaSuccess ? cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, index) : error;
    *cuda = (rssm_cuda){.index = index,
                        .major = p.major,
                        .minor = p.minor,
                        .processors = p.multiProcessorCount,
                        .stream_units = STREAM_UNITS,
                        .shared_bytes = shared - STATIC_SHARED};
    error = error == cudaSuccess ? (cudaError_t)load_kernels(cuda->shared_bytes) : error;
    rssm_cuda_leave((rssm_cuda_scope){before});
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        snprintf(message, capacity, "device %d cannot be used: %s", index, cudaGetErrorString(error));
        free(cuda);
        return error == cudaErrorNoKernelImageForDevice ? RSSM_ERROR_UNSUPPORTED : RSSM_ERROR_DEVICE;
    }
    snprintf(cuda->name, sizeof cuda->name, "%.63s", p.name);
    rssm_log(context, RSSM_LOG_INFO, "device %d: %s, compute capability %d.%d", index, cuda->name, p.major, p.minor);
    context->device = cuda;
    context->ops = &ops;
    return RSSM_OK;
}
