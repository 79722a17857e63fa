/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pure Mamba-2: every layer is one mixer. With several groups of B and C, the mixer's norm runs over each, as
 * in the original implementation (transformers takes one norm over all).
 */
#include "model/family.h"

static rse_status build(rse_builder *builder, rse_error *err) {
    rse_model *model = builder->model;
    int64_t hidden = model->config.hidden;
    rse_build_mamba2_spec(model);
    bool old_name = rse_weights_has(model->weights, "embedding.weight");
    RSE_TRY(rse_build_ends(builder, old_name ? "embedding.weight" : "embeddings.weight", err));
    for (int32_t layer = 0; layer < model->config.layers; layer++) {
        rse_block *block = rse_build_block(builder, RSE_BLOCK_MIXER, layer);
        RSE_TRY(rse_build_norm(builder, hidden, &block->norm, err, "layers.%d.norm.weight", layer));
        RSE_TRY(rse_build_mamba2(builder, &block->mixer, err, "layers.%d.mixer", layer));
    }
    return rse_build_norm(builder, hidden, &model->norm, err, "norm_f.weight");
}

const rse_family rse_family_mamba2 = {RSE_FAMILY_MAMBA2, build, NULL};
