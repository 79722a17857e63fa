/* SPDX-License-Identifier: Apache-2.0 */
#include "shapes.h"

const bench_shape bench_shapes[] = {
    {"nemotron-3-nano-4b", RSSM_MAMBA2, 8, 96, 128, 80},
    {"nemotron-3-super", RSSM_MAMBA2, 8, 128, 128, 64},
    {"qwen3.5-4b", RSSM_GDN, 16, 32, 128, 128},
    {"qwen3.5-122b", RSSM_GDN, 16, 64, 128, 128},
    {"kimi-linear", RSSM_KDA, 32, 32, 128, 128},
    {"kimi-k3-tp8", RSSM_KDA, 12, 12, 128, 128},
    {"tiny-mamba2", RSSM_MAMBA2, 2, 8, 128, 64},
    {"tiny-gdn", RSSM_GDN, 2, 4, 128, 128},
    {"tiny-kda", RSSM_KDA, 2, 2, 64, 64},
};
const size_t bench_shape_count = sizeof bench_shapes / sizeof *bench_shapes;

const char *bench_kind_name(int32_t kind) {
    return kind == RSSM_MAMBA2 ? "mamba2" : kind == RSSM_GDN ? "gdn" : "kda";
}

size_t bench_shape_state(const bench_shape *shape) {
    return sizeof(float) * (size_t)shape->value_heads * (size_t)shape->d_v * (size_t)shape->d_k;
}
