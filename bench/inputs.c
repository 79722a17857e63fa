/* SPDX-License-Identifier: Apache-2.0 */
/* Layer inputs for rig.h: random, the same in every run, in the ranges that models produce. */
#include "numbers.h"
#include "random.h"
#include "rig.h"

#include <string.h>

typedef struct tensor {
    void **data;
    int64_t width; /* values of a token */
    float low, high;
    int32_t io;
} tensor;

static size_t value_bytes(int32_t io) {
    return io == RSSM_DTYPE_BF16 ? sizeof(uint16_t) : sizeof(float);
}

static void fill(void *data, int64_t n, int32_t io, float low, float high, uint64_t *random) {
    for (int64_t i = 0; i < n; i++) {
        float x = bench_uniform(random, low, high);
        if (io == RSSM_DTYPE_BF16) {
            ((uint16_t *)data)[i] = rssm_bf16_of_f32(x);
        } else {
            ((float *)data)[i] = x;
        }
    }
}

rse_status bench_inputs_create(const bench_shape *shape, int32_t io, int64_t tokens, int32_t sets,
                               uint64_t seed, bench_inputs *inputs, rse_error *err) {
    *inputs = (bench_inputs){.shape = shape, .io = io, .tokens = tokens, .sets = sets};
    int64_t hk = shape->key_heads, hv = shape->value_heads;
    int64_t decays = hv * (shape->kind == RSSM_KDA ? shape->d_k : 1);
    const tensor tensors[] = {
        {&inputs->q, hk * shape->d_k, -1, 1, io},
        {&inputs->k, hk * shape->d_k, -1, 1, io},
        {&inputs->v, hv * shape->d_v, -1, 1, io},
        {(void **)&inputs->decay, decays, -0.1f, 0, RSSM_DTYPE_F32},
        {(void **)&inputs->beta, hv, 0.1f, 0.9f, RSSM_DTYPE_F32},
    };
    enum { TENSORS = sizeof tensors / sizeof *tensors };
    size_t at[TENSORS], bytes = 0;
    for (int i = 0; i < TENSORS; i++) {
        at[i] = bytes;
        bytes += ((size_t)(tensors[i].width * tokens * sets) * value_bytes(tensors[i].io) + 63) / 64 * 64;
    }
    RSE_TRY(bench_arena_reserve(&inputs->arena, bytes, err));
    for (int i = 0; i < TENSORS; i++) {
        *tensors[i].data = inputs->arena.base + at[i];
        fill(*tensors[i].data, tensors[i].width * tokens * sets, tensors[i].io, tensors[i].low, tensors[i].high,
             &seed);
    }
    return RSE_OK;
}

void bench_inputs_destroy(bench_inputs *inputs) {
    bench_arena_free(&inputs->arena);
    *inputs = (bench_inputs){0};
}

static rssm_view view(const void *data, int32_t io, int64_t heads, int64_t d, int64_t first, int64_t every) {
    return (rssm_view){.data = (const unsigned char *)data + (size_t)(first * heads * d) * value_bytes(io),
                       .token_stride = every * heads * d};
}

rssm_layer_inputs bench_inputs_view(const bench_inputs *in, int32_t set, int64_t first, int64_t every) {
    const bench_shape *s = in->shape;
    int64_t at = set * in->tokens + first;
    int64_t decay_d = s->kind == RSSM_KDA ? s->d_k : 1;
    return (rssm_layer_inputs){.struct_size = sizeof(rssm_layer_inputs),
                               .q = view(in->q, in->io, s->key_heads, s->d_k, at, every),
                               .k = view(in->k, in->io, s->key_heads, s->d_k, at, every),
                               .v = view(in->v, in->io, s->value_heads, s->d_v, at, every),
                               .decay = view(in->decay, RSSM_DTYPE_F32, s->value_heads, decay_d, at, every),
                               .beta = view(in->beta, RSSM_DTYPE_F32, s->value_heads, 1, at, every),
                               .gate_dtype = RSSM_DTYPE_F32};
}
