/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replayssm inside an engine that owns its memory: a pool of pages, of which page 0 is reserved, a page being
 * one sequence's state on all layers next to bytes of the engine's own. Two sequences read a prompt and then
 * decode with three drafts a step; afterwards their states are compared, bit for bit, with those of
 * conventional decoding.
 */
#include <replayssm/replayssm.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, PAGES = 6, KEYS = 2, VALUES = 4, DIM = 64, TAPS = 4, DRAFTS = 3, PROMPT = 21, TOKENS = 100 };
enum { ENGINE_BYTES = 1024 /* of each page */ };
/* A token's projections as one GEMM leaves them: q | k | v | z | decay | beta. */
enum {
    Q = 0,
    K = Q + KEYS * DIM,
    V = K + KEYS * DIM,
    Z = V + VALUES * DIM,
    A = Z + VALUES * DIM,
    B = A + VALUES,
    WIDTH = B + VALUES
};

static float packed[2 * (PROMPT + DRAFTS + 1)][WIDTH], y[2 * (PROMPT + DRAFTS + 1)][VALUES * DIM];
static rssm_context *context;
static float conv[VALUES * DIM * TAPS], A_log[VALUES], dt_bias[VALUES];
static const rssm_layer_weights weights = {.struct_size = sizeof weights,
                                           .conv_q = conv,
                                           .conv_k = conv,
                                           .conv_v = conv,
                                           .A_log = A_log,
                                           .dt_bias = dt_bias};

static void check(rssm_status status) {
    if (status != RSSM_OK) {
        fprintf(stderr, "%s: %s\n", rssm_status_string(status), rssm_context_message(context));
        exit(1);
    }
}

/* Lays the parts one after another into each page of the pool; slot s of the cache is page s. */
static void bind_pages(rssm_cache *cache, char *pool, int64_t page_bytes) {
    for (int32_t part = 0; part < RSSM_PARTS; part++) {
        rssm_part_info info;
        check(rssm_cache_layout(cache, part, &info));
        if (info.rank == 0) {
            continue; /* this cache has no such part */
        }
        for (int32_t layer = 0; layer < (info.per_layer ? LAYERS : 1); layer++, pool += info.bytes) {
            check(rssm_cache_bind(cache, layer, part, pool, page_bytes));
        }
    }
}

/* A cache, its size asked for before there is any memory, and a pool of pages for it. */
static rssm_cache *make_cache(int32_t method, char **pool, int64_t *page_bytes) {
    rssm_layer_spec spec = {.struct_size = sizeof spec,
                            .kind = RSSM_GDN,
                            .key_heads = KEYS,
                            .value_heads = VALUES,
                            .d_k = DIM,
                            .d_v = DIM,
                            .conv_width = TAPS,
                            .out_norm = RSSM_OUT_NORM_HEAD_SILU};
    rssm_cache_desc desc = {.struct_size = sizeof desc,
                            .spec = &spec,
                            .layers = LAYERS,
                            .slots = PAGES,
                            .reserved_slots = 1,
                            .method = method,
                            .step_tokens = method == RSSM_METHOD_REPLAY ? DRAFTS + 1 : 1};
    rssm_cache *cache;
    check(rssm_cache_create(context, &desc, &cache));
    *page_bytes = rssm_cache_slot_bytes(cache) + ENGINE_BYTES;
    *pool = aligned_alloc(16, (size_t)(PAGES * *page_bytes));
    bind_pages(cache, *pool, *page_bytes);
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        check(rssm_cache_set_weights(cache, layer, &weights));
    }
    check(rssm_cache_prepare(cache, 2, 1)); /* steps of two rows allocate nothing from here on */
    return cache;
}

/* Stands for the model: what a token gives a layer depends on the token alone. */
static void project(float *row, int layer, int sequence, int position) {
    uint32_t x = (uint32_t)(position + 1000 * sequence + 100000 * layer);
    for (int i = 0; i < WIDTH; i++) {
        x = x * 1664525u + 1013904223u;
        row[i] = (float)(x >> 8) / 8388608.0f - 1.0f;
    }
}

/* Runs the layers of a step: rows of `count` tokens from `position`, the last `wrong` of them bad guesses. */
static void run_layers(rssm_cache *cache, const rssm_batch *batch, int position, int count, int wrong) {
    for (int32_t layer = 0; layer < LAYERS; layer++) {
        for (int row = 0; row < batch->rows; row++) {
            for (int t = 0; t < count; t++) {
                project(packed[row * count + t], layer, row, position + t + (t >= count - wrong ? 500 : 0));
            }
        }
        rssm_layer_inputs in = {.struct_size = sizeof in,
                                .q = {packed[0] + Q, WIDTH, 0},
                                .k = {packed[0] + K, WIDTH, 0},
                                .v = {packed[0] + V, WIDTH, 0},
                                .z = {packed[0] + Z, WIDTH, 0},
                                .decay = {packed[0] + A, WIDTH, 0},
                                .beta = {packed[0] + B, WIDTH, 0}};
        rssm_output out = {.struct_size = sizeof out, .data = y};
        check(batch->prefill != NULL ? rssm_cache_prefill(cache, layer, batch, &in, &out, NULL)
                                     : rssm_cache_decode(cache, layer, batch, &in, &out, NULL));
    }
}

/* Both sequences read their prompts and continue to TOKENS; in each step some of the drafts prove right. */
static void generate(rssm_cache *cache, const int32_t *pages, int drafts) {
    const uint64_t ids[] = {7, 8};
    const uint8_t prompt[] = {1, 1};
    check(rssm_cache_reset(cache, 2, pages, ids, NULL, NULL));
    rssm_batch batch = {
        .struct_size = sizeof batch, .rows = 2, .slots = pages, .uniform_tokens = PROMPT, .prefill = prompt};
    int32_t accepted[] = {PROMPT, PROMPT};
    check(rssm_cache_begin(cache, &batch, NULL, NULL, NULL));
    run_layers(cache, &batch, 0, PROMPT, 0);
    batch.prefill = NULL;
    batch.uniform_tokens = drafts + 1;
    for (int position = PROMPT, right; position < TOKENS; position += right) {
        check(rssm_cache_begin(cache, &batch, accepted, NULL, NULL));
        right = 1 + position % (drafts + 1);
        right = right < TOKENS - position ? right : TOKENS - position;
        run_layers(cache, &batch, position, drafts + 1, drafts + 1 - right);
        accepted[0] = accepted[1] = right;
    }
    batch.offsets = (const int32_t[]){0, 0, 0}; /* no tokens: commits the last step, plans nothing */
    check(rssm_cache_begin(cache, &batch, accepted, NULL, NULL));
    check(rssm_cache_flush(cache, 2, pages, NULL, NULL));
}

/* The checkpoint of layer 0 in a page; that of the next layer follows it. */
static const char *checkpoint(const rssm_cache *cache, const char *page) {
    rssm_part_info info;
    for (int32_t part = 0; part < RSSM_PART_CHECKPOINT; part++) {
        check(rssm_cache_layout(cache, part, &info));
        page += info.bytes * (info.per_layer ? LAYERS : 1);
    }
    return page;
}

int main(void) {
    char *pool, *other_pool;
    int64_t page_bytes, other_bytes;
    const int32_t pages[] = {4, 1}, other_pages[] = {2, 3};
    for (int i = 0; i < VALUES * DIM * TAPS; i++) {
        conv[i] = 0.5f - 0.1f * (float)(i % 7);
    }
    check(rssm_context_create(NULL, &context));
    rssm_cache *replay = make_cache(RSSM_METHOD_REPLAY, &pool, &page_bytes);
    rssm_cache *conventional = make_cache(RSSM_METHOD_CONVENTIONAL, &other_pool, &other_bytes);
    generate(replay, pages, DRAFTS);
    generate(conventional, other_pages, 0);
    int equal = 0;
    for (int i = 0; i < 2; i++) {
        equal += memcmp(checkpoint(replay, pool + pages[i] * page_bytes),
                        checkpoint(conventional, other_pool + other_pages[i] * other_bytes),
                        sizeof(float) * LAYERS * VALUES * DIM * DIM) == 0;
    }
    printf("pages of %lld bytes; %d of 2 states equal those of conventional decoding, bit for bit\n",
           (long long)page_bytes, equal);
    rssm_cache_destroy(replay);
    rssm_cache_destroy(conventional);
    rssm_context_destroy(context);
    free(pool);
    free(other_pool);
    return equal == 2 ? 0 : 1;
}
