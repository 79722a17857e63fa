/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the wrapped tests cannot see: device memory proper, between sentinels; captured graphs replayed with other slots
 * and counts; what the host refuses, and what becomes of bad values that only the device sees.
 */
#include <replayssm/replayssm.h>

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, SLOTS = 12, ROWS = 6, TOKENS = 3, HEADS = 4, KEYS = 2, DK = 128, DV = 64, MARGIN = 4096, STEPS = 40 };

static int failures;

#define CHECK(condition, ...)                                                                                \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "FAIL %s:%d: %s: ", __func__, __LINE__, #condition);                             \
            fprintf(stderr, __VA_ARGS__);                                                                    \
            fputc('\n', stderr);                                                                             \
            failures++;                                                                                      \
        }                                                                                                    \
    } while (0)
#define CUDA(call)                                                                                           \
    do {                                                                                                     \
        cudaError_t error_ = (call);                                                                         \
        if (error_ != cudaSuccess) {                                                                         \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error_));                                  \
            exit(2);                                                                                         \
        }                                                                                                    \
    } while (0)

static uint64_t state = 1;

static uint32_t draw(uint32_t below) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 33) % below;
}

static float number(float low, float high) {
    return low + (high - low) * (float)draw(1 << 20) / (float)(1 << 20);
}

/* ---- Memory with sentinels ---------------------------------------------------------------------------- */

typedef struct guarded {
    unsigned char *base; /* MARGIN bytes, the block, MARGIN bytes */
    size_t bytes;
} guarded;

static guarded blocks[64];
static int block_count;

static void *device_block(size_t bytes) {
    guarded *b = &blocks[block_count++];
    bytes = (bytes + 15) / 16 * 16;
    CUDA(cudaMalloc((void **)&b->base, bytes + 2 * MARGIN));
    CUDA(cudaMemset(b->base, 0xa5, bytes + 2 * MARGIN));
    b->bytes = bytes;
    return b->base + MARGIN;
}

static void check_sentinels(void) {
    static unsigned char margin[MARGIN];
    for (int i = 0; i < block_count; i++) {
        for (int side = 0; side < 2; side++) {
            CUDA(cudaMemcpy(margin, blocks[i].base + (side ? MARGIN + blocks[i].bytes : 0), MARGIN, cudaMemcpyDeviceToHost));
            size_t bad = 0;
            while (bad < MARGIN && margin[bad] == 0xa5) {
                bad++;
            }
            CHECK(bad == MARGIN, "block %d, side %d, byte %zu", i, side, bad);
        }
    }
}

static void release_blocks(void) {
    while (block_count > 0) {
        CUDA(cudaFree(blocks[--block_count].base));
    }
}

/* ---- A cache on device memory ------------------------------------------------------------------------- */

/* What a step reads: host copies, and where the device reads them. */
typedef struct feed {
    int32_t slots[ROWS], offsets[ROWS + 1], accepted[ROWS];
    int32_t *device_slots, *device_offsets, *device_accepted;
    float *q, *k, *v, *decay, *beta, *z, *out; /* for ROWS * TOKENS tokens, shared by the layers */
    rssm_batch batch;
    rssm_layer_inputs inputs;
    rssm_output output;
} feed;

static rssm_context *context;

static void ok(rssm_status status, const char *what) {
    if (status != RSSM_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, rssm_status_string(status), rssm_context_message(context));
        exit(2);
    }
}

static rssm_cache *make_cache(int32_t method) {
    static float taps[KEYS * DK * 4], value_taps[HEADS * DV * 4], zeros[HEADS];
    rssm_layer_spec spec = {.struct_size = sizeof spec, .kind = RSSM_GDN, .key_heads = KEYS, .value_heads = HEADS, .d_k = DK,
                            .d_v = DV, .conv_width = 4, .out_norm = RSSM_OUT_NORM_GROUP};
    rssm_cache_desc desc = {.struct_size = sizeof desc, .spec = &spec, .layers = LAYERS, .slots = SLOTS, .window = 5,
                            .reserved_slots = 1, .step_tokens = method == RSSM_METHOD_CONVENTIONAL ? 1 : TOKENS, .method = method};
    rssm_layer_weights weights = {.struct_size = sizeof weights, .conv_q = taps, .conv_k = taps, .conv_v = value_taps,
                                  .A_log = zeros};
    rssm_cache *cache;
    for (size_t i = 0; i < sizeof taps / sizeof *taps; i++) {
        taps[i] = (float)(i % 7) * 0.1f - 0.2f;
    }
    for (size_t i = 0; i < sizeof value_taps / sizeof *value_taps; i++) {
        value_taps[i] = (float)(i % 5) * 0.15f - 0.2f;
    }
    ok(rssm_cache_create(context, &desc, &cache), "create");
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        for (int32_t part = 0; part < RSSM_PARTS; part++) {
            rssm_part_info info;
            ok(rssm_cache_layout(cache, part, &info), "layout");
            if (info.rank > 0 && (info.per_layer || layer == 0)) {
                int64_t stride = info.bytes + 16 * (part % 3);
                ok(rssm_cache_bind(cache, layer, part, device_block((size_t)(stride * SLOTS)), stride), "bind");
            }
        }
        ok(rssm_cache_set_weights(cache, layer, &weights), "weights");
    }
    ok(rssm_cache_prepare(cache, ROWS, ROWS * TOKENS), "prepare");
    return cache;
}

static feed make_feed(void) {
    const size_t n = ROWS * TOKENS;
    feed f = {.device_slots = device_block(ROWS * 4), .device_offsets = device_block((ROWS + 1) * 4),
              .device_accepted = device_block(ROWS * 4), .q = device_block(n * KEYS * DK * 4),
              .k = device_block(n * KEYS * DK * 4), .v = device_block(n * HEADS * DV * 4),
              .decay = device_block(n * HEADS * 4), .beta = device_block(n * HEADS * 4), .z = device_block(n * HEADS * DV * 4),
              .out = device_block(n * HEADS * DV * 4)};
    f.batch = (rssm_batch){.struct_size = sizeof f.batch, .rows = ROWS, .slots = f.device_slots, .offsets = f.device_offsets};
    f.inputs = (rssm_layer_inputs){.struct_size = sizeof f.inputs, .q = {.data = f.q}, .k = {.data = f.k}, .v = {.data = f.v},
                                   .decay = {.data = f.decay}, .beta = {.data = f.beta}, .z = {.data = f.z}};
    f.output = (rssm_output){.struct_size = sizeof f.output, .data = f.out};
    return f;
}

static void fill(float *device, size_t count, float low, float high) {
    static float host[ROWS * TOKENS * HEADS * DV];
    for (size_t i = 0; i < count; i++) {
        host[i] = number(low, high);
    }
    CUDA(cudaMemcpy(device, host, count * sizeof *host, cudaMemcpyHostToDevice));
}

static void upload(const feed *f) {
    CUDA(cudaMemcpy(f->device_slots, f->slots, sizeof f->slots, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(f->device_offsets, f->offsets, sizeof f->offsets, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(f->device_accepted, f->accepted, sizeof f->accepted, cudaMemcpyHostToDevice));
}

/* Fresh numbers for all tensors; rows of random slots, 0 to TOKENS tokens, padding among them. pending [SLOTS]. */
static void draw_step(feed *f, int32_t *pending) {
    int32_t order[SLOTS - 1];
    for (int32_t i = 0; i < SLOTS - 1; i++) {
        int32_t j = (int32_t)draw((uint32_t)i + 1);
        order[i] = order[j];
        order[j] = i + 1; /* slot 0 is reserved */
    }
    for (int32_t row = 0; row < ROWS; row++) {
        int32_t slot = draw(5) == 0 ? -1 - (int32_t)draw(3) : order[row], tokens = (int32_t)draw(TOKENS + 1);
        f->slots[row] = slot;
        f->offsets[row + 1] = f->offsets[row] + tokens;
        f->accepted[row] = slot < 0 ? 99 : (int32_t)draw((uint32_t)pending[slot] + 1);
        if (slot >= 0) {
            pending[slot] = tokens;
        }
    }
    const size_t n = ROWS * TOKENS;
    fill(f->q, n * KEYS * DK, -1, 1);
    fill(f->k, n * KEYS * DK, -1, 1);
    fill(f->v, n * HEADS * DV, -1, 1);
    fill(f->decay, n * HEADS, -2, 1);
    fill(f->beta, n * HEADS, -2, 2);
    fill(f->z, n * HEADS * DV, -1, 1);
    upload(f);
}

static void run_step(rssm_cache *cache, const feed *f, void *stream) {
    ok(rssm_cache_begin(cache, &f->batch, f->device_accepted, NULL, stream), "begin");
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        ok(rssm_cache_decode(cache, layer, &f->batch, &f->inputs, &f->output, stream), "decode");
    }
}

static void reset_all(rssm_cache *cache) {
    int32_t slots[SLOTS - 1], *device = device_block(sizeof slots);
    for (int32_t i = 0; i < SLOTS - 1; i++) {
        slots[i] = i + 1;
    }
    CUDA(cudaMemcpy(device, slots, sizeof slots, cudaMemcpyHostToDevice));
    ok(rssm_cache_reset(cache, SLOTS - 1, device, NULL, NULL, NULL), "reset");
    CUDA(cudaDeviceSynchronize());
}

static uint64_t faults(const rssm_cache *cache) {
    rssm_cache_info info = {.struct_size = sizeof info};
    ok(rssm_cache_status(cache, &info), "status");
    return info.error;
}

static void *saved(rssm_cache *cache, int32_t slot, int64_t *bytes) {
    *bytes = rssm_cache_export_bytes(cache, slot, 0);
    void *file = malloc((size_t)(*bytes > 0 ? *bytes : 1));
    ok(rssm_cache_export(cache, slot, 0, file, *bytes, bytes), "export");
    return file;
}

/* ---- Graphs ------------------------------------------------------------------------------------------- */

/* A captured step replayed with other contents of its arrays equals eager steps, bit for bit. */
static void test_graph(void) {
    static float eager[ROWS * TOKENS * HEADS * DV], replayed[ROWS * TOKENS * HEADS * DV];
    rssm_cache *a = make_cache(RSSM_METHOD_REPLAY), *b = make_cache(RSSM_METHOD_REPLAY);
    feed f = make_feed();
    int32_t pending[SLOTS] = {0};
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t step;
    reset_all(a);
    reset_all(b);
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    run_step(b, &f, stream);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&step, graph, 0));
    for (int i = 0; i < STEPS; i++) {
        draw_step(&f, pending);
        const size_t bytes = (size_t)f.offsets[ROWS] * HEADS * DV * 4;
        CUDA(cudaMemset(f.out, 0xff, sizeof eager));
        run_step(a, &f, NULL);
        CUDA(cudaMemcpy(eager, f.out, bytes, cudaMemcpyDeviceToHost));
        CUDA(cudaMemset(f.out, 0xff, sizeof eager));
        CUDA(cudaDeviceSynchronize());
        CUDA(cudaGraphLaunch(step, stream));
        CUDA(cudaStreamSynchronize(stream));
        CUDA(cudaMemcpy(replayed, f.out, bytes, cudaMemcpyDeviceToHost));
        CHECK(memcmp(eager, replayed, bytes) == 0, "outputs of step %d", i);
        for (int32_t row = 0; row < ROWS; row++) {
            for (int32_t at = f.offsets[row] * HEADS * DV; f.slots[row] < 0 && at < f.offsets[row + 1] * HEADS * DV; at++) {
                CHECK(eager[at] == 0.0f, "padding row %d of step %d", row, i);
            }
        }
    }
    CHECK(faults(a) == 0 && faults(b) == 0, "faults");
    for (int32_t slot = 1; slot < SLOTS; slot++) {
        int64_t na, nb;
        void *x = saved(a, slot, &na), *y = saved(b, slot, &nb);
        CHECK(na == nb && memcmp(x, y, (size_t)na) == 0, "slot %d", slot);
        free(x);
        free(y);
    }
    check_sentinels();
    CUDA(cudaGraphExecDestroy(step));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaStreamDestroy(stream));
    rssm_cache_destroy(a);
    rssm_cache_destroy(b);
    release_blocks();
}

/* ---- Faults ------------------------------------------------------------------------------------------- */

/* Bad values in device memory: the row is padding, its slot stays as it was, and the others go on. */
static void test_faults(void) {
    static const struct {
        uint64_t expected;
        int32_t slot, other, tokens, accepted;
    } cases[] = {
        {RSSM_FAULT_SLOT, SLOTS, 2, 1, 0},      {RSSM_FAULT_SLOT, 1 << 30, 2, 1, 0}, {RSSM_FAULT_TWICE, 3, 3, 1, 0},
        {RSSM_FAULT_TOKENS, 3, 2, TOKENS + 1, 0}, {RSSM_FAULT_ACCEPTED, 3, 2, 1, 4},  {RSSM_FAULT_ACCEPTED, 3, 2, 1, -1},
        {RSSM_FAULT_TOKENS, 3, 2, -1, 0},       {0, -1, 2, 1, 0},
    };
    rssm_cache *cache = make_cache(RSSM_METHOD_REPLAY);
    feed f = make_feed();
    f.batch.rows = 2;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t pending[SLOTS] = {0};
        int64_t before, after;
        reset_all(cache);
        draw_step(&f, pending); /* a step to be pending, of slots 3 and 2 */
        f.slots[0] = 3;
        f.slots[1] = 2;
        f.offsets[0] = 0;
        f.offsets[1] = 2;
        f.offsets[2] = 3;
        upload(&f);
        run_step(cache, &f, NULL);
        CHECK(faults(cache) == 0, "case %zu, first step", i);
        f.slots[0] = cases[i].slot;
        f.slots[1] = cases[i].other;
        f.accepted[0] = cases[i].accepted;
        f.accepted[1] = cases[i].other == 3 ? 0 : 1;
        f.offsets[0] = 1;
        f.offsets[1] = 1 + cases[i].tokens;
        f.offsets[2] = f.offsets[1] + 1;
        upload(&f);
        void *x = cases[i].expected != 0 && cases[i].expected != RSSM_FAULT_TWICE ? saved(cache, 3, &before) : NULL;
        ok(rssm_cache_begin(cache, &f.batch, f.device_accepted, NULL, NULL), "begin");
        CHECK(faults(cache) == cases[i].expected, "case %zu", i);
        for (int32_t layer = 0; layer < LAYERS; layer++) {
            ok(rssm_cache_decode(cache, layer, &f.batch, &f.inputs, &f.output, NULL), "decode");
        }
        const uint64_t later = faults(cache); /* a layer finds a live slot whose row begin did not open */
        CHECK((later & ~(uint64_t)RSSM_FAULT_STEP) == 0, "case %zu: 0x%x", i, (unsigned)later);
        if (x != NULL && cases[i].slot >= 0) {
            void *y = saved(cache, 3, &after);
            CHECK(before == after && memcmp(x, y, (size_t)after) == 0, "case %zu changed slot 3", i);
            free(y);
        }
        free(x);
    }
    check_sentinels();
    rssm_cache_destroy(cache);
    release_blocks();
}

/* ---- Refusals ----------------------------------------------------------------------------------------- */

static void refused(rssm_status status, rssm_status expected, const char *word, int line) {
    const char *said = rssm_context_message(context);
    if (status != expected || strstr(said, word) == NULL) {
        fprintf(stderr, "FAIL line %d: %s, '%s'; expected %s and '%s'\n", line, rssm_status_string(status), said,
                rssm_status_string(expected), word);
        failures++;
    }
}

static void test_refusals(void) {
    rssm_cache *cache = make_cache(RSSM_METHOD_REPLAY), *unbound;
    feed f = make_feed();
    int32_t pending[SLOTS] = {0}, host_slots[ROWS] = {1, 2, 3, 4, 5, 6};
    reset_all(cache);
    draw_step(&f, pending);
    rssm_batch b = f.batch;
    b.slots = host_slots;
    refused(rssm_cache_begin(cache, &b, NULL, NULL, NULL), RSSM_ERROR_ARGUMENT, "batch.slots", __LINE__);
    b = f.batch;
    b.rows = ROWS + 1;
    refused(rssm_cache_begin(cache, &b, NULL, NULL, NULL), RSSM_ERROR_ARGUMENT, "batch.rows is 7; the limit is 6", __LINE__);
    b = f.batch;
    b.parents = f.device_slots;
    refused(rssm_cache_begin(cache, &b, NULL, NULL, NULL), RSSM_ERROR_UNSUPPORTED, "batch.parents", __LINE__);
    refused(rssm_cache_reset(cache, 2, host_slots, NULL, NULL, NULL), RSSM_ERROR_ARGUMENT, "slots", __LINE__);
    refused(rssm_cache_reset(cache, SLOTS + 1, f.device_slots, NULL, NULL, NULL), RSSM_ERROR_ARGUMENT, "count is 13", __LINE__);
    refused(rssm_cache_decode_part(cache, 0, &f.batch, &f.inputs, &f.output, 0, 1), RSSM_ERROR_UNSUPPORTED, "CUDA", __LINE__);
    rssm_layer_inputs in = f.inputs;
    float on_host[4] = {0};
    in.v.data = on_host;
    refused(rssm_cache_decode(cache, 0, &f.batch, &in, &f.output, NULL), RSSM_ERROR_ARGUMENT, "inputs.v", __LINE__);
    rssm_layer_spec spec = {.struct_size = sizeof spec, .kind = RSSM_MAMBA2, .key_heads = 1, .value_heads = 1, .d_k = 16,
                            .d_v = 16, .gate = RSSM_GATE_LOG};
    rssm_cache_desc desc = {.struct_size = sizeof desc, .spec = &spec, .layers = 1, .slots = 2};
    ok(rssm_cache_create(context, &desc, &unbound), "create");
    static _Alignas(16) unsigned char host_memory[1 << 16];
    ok(rssm_cache_bind(unbound, 0, RSSM_PART_CURSOR, host_memory, 4096), "bind");
    refused(rssm_cache_reset(unbound, 1, f.device_slots, NULL, NULL, NULL), RSSM_ERROR_STATE, "bound to no memory", __LINE__);
    rssm_cache_destroy(unbound);
    desc.slots = 1 << 30; /* more than any device has */
    ok(rssm_cache_create(context, &desc, &unbound), "create");
    refused(rssm_cache_allocate(unbound), RSSM_ERROR_MEMORY, "memory", __LINE__);
    rssm_cache_destroy(unbound);
    run_step(cache, &f, NULL); /* the context is as usable as before */
    CHECK(faults(cache) == 0, "after refusals");
    rssm_context *none;
    rssm_context_desc d = {.struct_size = sizeof d, .device = RSSM_DEVICE_CUDA, .device_index = 99};
    CHECK(rssm_context_create(&d, &none) == RSSM_ERROR_ARGUMENT && none == NULL, "device 99");
    CHECK(strstr(rssm_context_message(NULL), "device_index is 99") != NULL, "%s", rssm_context_message(NULL));
    rssm_cache_destroy(cache);
    release_blocks();
}

int main(void) {
    rssm_context_desc desc = {.struct_size = sizeof desc, .device = RSSM_DEVICE_CUDA};
    if (rssm_context_create(&desc, &context) != RSSM_OK) {
        fprintf(stderr, "%s\n", rssm_context_message(NULL));
        return 2;
    }
    test_graph();
    test_faults();
    test_refusals();
    rssm_context_destroy(context);
    printf("%d failures in graphs, faults and refusals\n", failures);
    return failures != 0;
}
