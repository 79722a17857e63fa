/* SPDX-License-Identifier: Apache-2.0 */
/* The tiny checkpoints in tests/golden/families, one of each model family and of each way to pack weights. */
#ifndef RSE_FAMILY_LIST_H
#define RSE_FAMILY_LIST_H

#include <stdio.h>

static const char *const families[] = {
    "qwen3_5",         "qwen3_5_moe",        "qwen3_next",    "nemotron_h_moe", "nemotron_h_latent",
    "mamba2",          "granite_moe",        "granite_dense", "kimi_linear",    "nemotron_h_nvfp4",
    "qwen3_5_moe_fp8", "kimi_linear_packed", "glm5_next",     "kimi_k3"};
enum { FAMILIES = sizeof families / sizeof families[0] };

static inline void path_of(const char *family, const char *file, char path[512]) {
    snprintf(path, 512, RSSM_SOURCE_DIR "/tests/golden/families/%s/%s", family, file);
}

#endif
