/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#include "../random.h"
#include "../shapes.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 32, POOL_BYTES = 1 << 30, GROUPS_MAX = 256, COPY_BYTES = 1 << 30, STEPS_MAX = 16 };

#define CUDA(call)                                                                                           \
    do {                                                                                                     \
        cudaError_t error_ = (call);                                                                         \
        if (error_ != cudaSuccess) {                                                                         \
            fprintf(stderr, "replayssm: %s: %s\n", #call, cudaGetErrorString(error_));                       \
            exit(EXIT_FAILURE);                                                                              \
        }                                                                                                    \
    } while (0)

/* ---- What is measured --------------------------------------------------------------------------------- */

/* One cache, its slots cut into groups of a batch; a round steps every group once. */
typedef struct rig {
    rssm_context *context;
    rssm_cache *cache;
    const bench_shape *shape;
    int32_t io, batch, tokens, groups;
    bool conventional;
    int32_t *slots;    /* device [groups][batch] */
    int32_t *accepted; /* device [groups][batch] */
    int32_t *counts;   /* pinned, the same */
    float *out;        /* device [batch * tokens][heads][d_v] of the last group */
    rssm_layer_inputs inputs;
    cudaGraphExec_t layers; /* the round's layer calls */
    uint64_t random;
} rig;

static void check(const rig *r, rssm_status status) {
    if (status != RSSM_OK) {
        fprintf(stderr, "replayssm: %s: %s\n", rssm_status_string(status),
                r->context != NULL ? rssm_context_message(r->context) : rssm_context_message(NULL));
        exit(EXIT_FAILURE);
    }
}

static rssm_batch batch_of(const rig *r, int32_t group) {
    return (rssm_batch){.struct_size = sizeof(rssm_batch),
                        .rows = r->batch,
                        .uniform_tokens = r->tokens,
                        .slots = r->slots + (int64_t)group * r->batch};
}

static void begin_round(rig *r, cudaStream_t stream) {
    for (int32_t g = 0; g < r->groups; g++) {
        rssm_batch batch = batch_of(r, g);
        const int32_t *accepted = r->conventional ? NULL : r->accepted + (int64_t)g * r->batch;
        check(r, rssm_cache_begin(r->cache, &batch, accepted, NULL, stream));
    }
}

static void run_layers(rig *r, cudaStream_t stream) {
    rssm_output out = {.struct_size = sizeof out, .data = r->out, .dtype = RSSM_DTYPE_F32};
    for (int32_t g = 0; g < r->groups; g++) {
        rssm_batch batch = batch_of(r, g);
        check(r, rssm_cache_decode(r->cache, 0, &batch, &r->inputs, &out, stream));
    }
}

/* Keeps 1..T tokens of every sequence's last step. */
static void draw_counts(rig *r, bool first, cudaStream_t stream) {
    const size_t n = (size_t)r->groups * (size_t)r->batch;
    CUDA(cudaStreamSynchronize(stream));
    for (size_t i = 0; i < n; i++) {
        r->counts[i] = first ? 0 : 1 + (int32_t)(bench_random(&r->random) % (uint64_t)r->tokens);
    }
    CUDA(cudaMemcpyAsync(r->accepted, r->counts, n * sizeof *r->counts, cudaMemcpyHostToDevice, stream));
}

/* ---- Making ------------------------------------------------------------------------------------------- */

static void *device_memory(size_t bytes) {
    void *p;
    CUDA(cudaMalloc(&p, bytes));
    return p;
}

/* Random numbers in a format, from a block that repeats. */
static void *random_tensor(size_t count, int32_t dtype, float low, float high) {
    enum { BLOCK = 1 << 16 };
    const size_t width = dtype == RSSM_DTYPE_BF16 ? 2 : 4;
    static unsigned char block[BLOCK * 4];
    uint64_t state = count;
    for (size_t i = 0; i < BLOCK; i++) {
        float x = bench_uniform(&state, low, high);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        uint16_t half = (uint16_t)(bits >> 16);
        memcpy(block + i * width, width == 2 ? (const void *)&half : (const void *)&bits, width);
    }
    unsigned char *p = device_memory(count * width);
    for (size_t at = 0; at < count * width; at += BLOCK * width) {
        size_t left = count * width - at;
        CUDA(cudaMemcpy(p + at, block, left < BLOCK * width ? left : BLOCK * width, cudaMemcpyHostToDevice));
    }
    return p;
}

static void make_inputs(rig *r) {
    const bench_shape *s = r->shape;
    const size_t tokens = (size_t)r->batch * (size_t)r->tokens, keys = tokens * (size_t)(s->key_heads * s->d_k);
    const size_t heads = tokens * (size_t)s->value_heads, values = heads * (size_t)s->d_v;
    const float unit = s->kind == RSSM_MAMBA2 ? 0.3f : 1.0f;
    r->inputs = (rssm_layer_inputs){.struct_size = sizeof r->inputs, .gate_dtype = RSSM_DTYPE_F32};
    r->inputs.q.data = random_tensor(keys, r->io, -unit, unit);
    r->inputs.k.data = random_tensor(keys, r->io, -unit, unit);
    r->inputs.v.data = random_tensor(values, r->io, -1.0f, 1.0f);
    r->inputs.decay.data = random_tensor(s->kind == RSSM_KDA ? heads * (size_t)s->d_k : heads, RSSM_DTYPE_F32, -0.2f, 0.0f);
    r->inputs.beta.data = random_tensor(heads, RSSM_DTYPE_F32, 0.1f, 0.9f);
}

static void start_slots(rig *r, bool together) {
    const int64_t n = (int64_t)r->groups * r->batch;
    int32_t *slots = malloc((size_t)n * sizeof *slots);
    uint64_t *ids = malloc((size_t)n * sizeof *ids), state = 1;
    for (int64_t i = 0; i < n; i++) {
        int64_t j = (int64_t)(bench_random(&state) % (uint64_t)(i + 1));
        slots[i] = slots[j];
        slots[j] = (int32_t)i;
        ids[i] = together ? 0 : (uint64_t)i;
    }
    uint64_t *device_ids = device_memory((size_t)n * sizeof *ids);
    CUDA(cudaMemcpy(r->slots, slots, (size_t)n * sizeof *slots, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(device_ids, ids, (size_t)n * sizeof *ids, cudaMemcpyHostToDevice));
    check(r, rssm_cache_reset(r->cache, n, r->slots, device_ids, NULL, NULL));
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaFree(device_ids));
    free(slots);
    free(ids);
}

static void open_rig(rig *r, const bench_device_options *o, int32_t method) {
    const bench_shape *s = r->shape;
    rssm_layer_spec spec = {.struct_size = sizeof spec,
                            .kind = s->kind,
                            .key_heads = s->key_heads,
                            .value_heads = s->value_heads,
                            .d_k = s->d_k,
                            .d_v = s->d_v,
                            .gate = RSSM_GATE_LOG};
    size_t group = bench_shape_state(s) * (size_t)r->batch;
    r->groups = (int32_t)(POOL_BYTES / group + 1);
    r->groups = r->groups < 4 ? 4 : r->groups > GROUPS_MAX ? GROUPS_MAX : r->groups;
    r->conventional = method == RSSM_METHOD_CONVENTIONAL;
    r->random = 7;
    const size_t n = (size_t)r->groups * (size_t)r->batch;
    rssm_cache_desc desc = {.struct_size = sizeof desc,
                            .spec = &spec,
                            .layers = 1,
                            .slots = (int64_t)n,
                            .window = (int32_t)o->window,
                            .step_tokens = r->tokens,
                            .method = method,
                            .io_dtype = r->io};
    check(r, rssm_cache_create(r->context, &desc, &r->cache));
    check(r, rssm_cache_allocate(r->cache));
    check(r, rssm_cache_prepare(r->cache, r->batch, 0));
    r->slots = device_memory(n * sizeof *r->slots);
    r->accepted = device_memory(n * sizeof *r->accepted);
    CUDA(cudaMallocHost((void **)&r->counts, n * sizeof *r->counts));
    size_t row = (size_t)s->value_heads * (size_t)s->d_v;
    r->out = device_memory((size_t)r->batch * (size_t)r->tokens * row * sizeof *r->out);
    make_inputs(r);
    start_slots(r, o->together);
    cudaStream_t stream;
    cudaGraph_t graph;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    run_layers(r, stream);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&r->layers, graph, 0));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaStreamDestroy(stream));
}

static void close_rig(rig *r) {
    CUDA(cudaGraphExecDestroy(r->layers));
    rssm_cache_destroy(r->cache);
    const void *tensors[] = {r->inputs.q.data, r->inputs.k.data, r->inputs.v.data, r->inputs.decay.data,
                             r->inputs.beta.data, r->slots, r->accepted, r->out};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        CUDA(cudaFree((void *)tensors[i]));
    }
    CUDA(cudaFreeHost(r->counts));
}

/* ---- Measuring ---------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct times {
    double p50, p99, mean; /* seconds of one layer of one group */
    double bytes;
} times;

static double milliseconds(cudaEvent_t from, cudaEvent_t to) {
    float ms;
    CUDA(cudaEventSynchronize(to));
    CUDA(cudaEventElapsedTime(&ms, from, to));
    return (double)ms;
}

static void one_round(rig *r, bool first, cudaEvent_t from, cudaEvent_t to) {
    draw_counts(r, first, NULL);
    begin_round(r, NULL);
    CUDA(cudaEventRecord(from, NULL));
    CUDA(cudaGraphLaunch(r->layers, NULL));
    CUDA(cudaEventRecord(to, NULL));
}

static times measure(rig *r, int32_t window) {
    const bench_shape *s = r->shape;
    cudaEvent_t from, to;
    CUDA(cudaEventCreate(&from));
    CUDA(cudaEventCreate(&to));
    for (int32_t i = 0; i < window + 2; i++) { /* until every slot has the history it has in the long run */
        one_round(r, i == 0, from, to);
    }
    rssm_cache_info before = {.struct_size = sizeof before}, after = {.struct_size = sizeof after};
    check(r, rssm_cache_status(r->cache, &before));
    double sample[ROUNDS];
    times t = {0};
    for (int32_t i = 0; i < ROUNDS; i++) {
        one_round(r, false, from, to);
        sample[i] = milliseconds(from, to) * 1e-3 / r->groups;
        t.mean += sample[i] / ROUNDS;
    }
    check(r, rssm_cache_status(r->cache, &after));
    if (after.error != 0) {
        fprintf(stderr, "replayssm: the device found faults 0x%x\n", (unsigned)after.error);
        exit(EXIT_FAILURE);
    }
    qsort(sample, ROUNDS, sizeof *sample, by_value);
    t.p50 = sample[ROUNDS / 2];
    t.p99 = sample[ROUNDS - 1];
    double io = r->io == RSSM_DTYPE_BF16 ? 2 : 4, tokens = (double)r->batch * r->tokens;
    double token = io * (2.0 * s->key_heads * s->d_k + (double)s->value_heads * s->d_v) + 4.0 * s->value_heads * s->d_v;
    token += 4.0 * s->value_heads * (s->kind == RSSM_KDA ? s->d_k + 1 : 2);
    double moved = (double)(after.bytes_read + after.bytes_written - before.bytes_read - before.bytes_written);
    t.bytes = moved / ROUNDS / r->groups + token * tokens;
    CUDA(cudaEventDestroy(from));
    CUDA(cudaEventDestroy(to));
    return t;
}

/* Bytes read plus bytes written per second of a large copy. */
static double copy_bandwidth(void) {
    char *a = device_memory(COPY_BYTES), *b = device_memory(COPY_BYTES);
    cudaEvent_t from, to;
    double best[9];
    CUDA(cudaEventCreate(&from));
    CUDA(cudaEventCreate(&to));
    CUDA(cudaMemset(a, 1, COPY_BYTES));
    for (int i = 0; i < 9; i++) {
        CUDA(cudaEventRecord(from, NULL));
        CUDA(cudaMemcpyAsync(b, a, COPY_BYTES, cudaMemcpyDeviceToDevice, NULL));
        CUDA(cudaEventRecord(to, NULL));
        best[i] = 2.0 * COPY_BYTES / (milliseconds(from, to) * 1e-3);
    }
    qsort(best, 9, sizeof *best, by_value);
    CUDA(cudaFree(a));
    CUDA(cudaFree(b));
    return best[4];
}

/* Both methods see the same tokens from a zero state: their last outputs must agree. Returns the relative distance. */
static double compare(rig *a, rig *b) {
    const size_t n = (size_t)a->batch * (size_t)(a->shape->value_heads * a->shape->d_v);
    float *x = malloc(n * sizeof *x), *y = malloc(n * sizeof *y);
    double difference = 0.0, size = 0.0;
    CUDA(cudaMemcpy(x, a->out, n * sizeof *x, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(y, b->out, n * sizeof *y, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < n; i++) {
        difference += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        size += (double)y[i] * (double)y[i];
    }
    free(x);
    free(y);
    return sqrt(difference / size);
}

static void run_case(const bench_device_options *o, rssm_context *context, const bench_shape *shape, int32_t io,
                     int32_t batch, int32_t tokens, double copy) {
    rig replay = {.context = context, .shape = shape, .io = io, .batch = batch, .tokens = tokens};
    rig one = replay;
    one.tokens = 1;
    open_rig(&replay, o, RSSM_METHOD_REPLAY);
    open_rig(&one, o, RSSM_METHOD_CONVENTIONAL);
    times r = measure(&replay, (int32_t)o->window), c = measure(&one, 1 + (int32_t)o->window - 1);
    double distance = tokens == 1 ? compare(&replay, &one) : 0.0;
    if (!(distance < 1e-4)) {
        fprintf(stderr, "replayssm: outputs of replay and conventional differ by %g\n", distance);
        exit(EXIT_FAILURE);
    }
    printf("%-20s %-4s %4d %2d %3d %9.2f %9.2f %9.2f %8.1f %6.0f %5.2f %9.2f %6.0f %5.2f %6.2f %6.2f\n", shape->name,
           io == RSSM_DTYPE_BF16 ? "bf16" : "f32", batch, tokens, (int)o->window, r.p50 * 1e6, r.mean * 1e6, r.p99 * 1e6,
           r.bytes * 1e-6, r.bytes / r.p50 * 1e-9, r.p50 / (r.bytes / copy), c.p50 * 1e6, c.bytes / c.p50 * 1e-9,
           c.p50 / (c.bytes / copy), c.p50 / r.p50, c.bytes / r.bytes);
    fflush(stdout);
    close_rig(&replay);
    close_rig(&one);
}

int bench_device_kernels(const bench_device_options *o) {
    rssm_context_desc desc = {.struct_size = sizeof desc, .device = RSSM_DEVICE_CUDA};
    rig none = {0};
    rssm_context *context;
    check(&none, rssm_context_create(&desc, &context));
    struct cudaDeviceProp p;
    CUDA(cudaGetDeviceProperties(&p, 0));
    double copy = copy_bandwidth();
    printf("%s, copy %.0f GB/s read and written; times in us of one layer and step, amortised over the window; floor = bytes "
           "/ copy\n", p.name, copy * 1e-9);
    printf("%-20s %-4s %4s %2s %3s %9s %9s %9s %8s %6s %5s %9s %6s %5s %6s %6s\n", "model", "io", "B", "T", "L", "replay",
           "mean", "max", "MB", "GB/s", "floor", "convent.", "GB/s", "floor", "ratio", "bytes");
    for (size_t i = 0; i < bench_shape_count; i++) {
        const bench_shape *shape = &bench_shapes[i];
        if (o->only != NULL ? strncmp(shape->name, o->only, strlen(o->only)) != 0 : strncmp(shape->name, "tiny", 4) == 0) {
            continue;
        }
        for (int32_t f = 0; f < o->formats.count; f++) {
            for (int32_t t = 0; t < o->tokens.count; t++) {
                for (int32_t b = 0; b < o->batches.count; b++) {
                    run_case(o, context, shape, o->formats.at[f], o->batches.at[b], o->tokens.at[t], copy);
                }
            }
        }
    }
    rssm_context_destroy(context);
    return EXIT_SUCCESS;
}
