/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nemotron-H: every layer is one residual block, a Mamba-2 mixer, attention without positions, an MLP with
 * relu^2, or a mixture of such MLPs, which may work on a latent row narrower than the hidden size. The mixer's
 * gate comes before its norm, which runs over groups of heads. Checkpoints may hold prediction blocks, "mtp.*",
 * which are not used.
 */
#include "model/family.h"

static const rse_moe_names moe_names = {.router = "gate",
                                        .up = "up_proj",
                                        .down = "down_proj",
                                        .stacked_down = "experts.down_proj",
                                        .shared = "shared_experts",
                                        .latent_in = "fc1_latent_proj",
                                        .latent_out = "fc2_latent_proj"};

static rse_status build_layer(rse_builder *builder, int32_t layer, rse_error *err) {
    static const int32_t kinds[] = {[RSE_LAYER_MAMBA2] = RSE_BLOCK_MIXER,
                                    [RSE_LAYER_ATTENTION] = RSE_BLOCK_ATTENTION,
                                    [RSE_LAYER_MLP] = RSE_BLOCK_MLP,
                                    [RSE_LAYER_MOE] = RSE_BLOCK_MOE};
    const rse_config *config = &builder->model->config;
    rse_block *block = rse_build_block(builder, kinds[config->layer[layer]], layer);
    RSE_TRY(rse_build_norm(builder, config->hidden, &block->norm, err, "layers.%d.norm.weight", layer));
    switch (block->kind) {
    case RSE_BLOCK_MIXER:
        return rse_build_mamba2(builder, &block->mixer, err, "layers.%d.mixer", layer);
    case RSE_BLOCK_ATTENTION:
        return rse_build_attention(builder, &block->attn, err, "layers.%d.mixer", layer);
    case RSE_BLOCK_MOE:
        return rse_build_moe(builder, &moe_names, &block->moe, err, "layers.%d.mixer", layer);
    default:
        return rse_build_mlp(builder, config->mlp_width, false, &block->mlp, err, "layers.%d.mixer", layer);
    }
}

static rse_status build(rse_builder *builder, rse_error *err) {
    rse_model *model = builder->model;
    rse_build_mamba2_spec(model);
    bool old_name = rse_weights_has(model->weights, "embedding.weight");
    RSE_TRY(rse_build_ends(builder, old_name ? "embedding.weight" : "embeddings.weight", err));
    for (int32_t layer = 0; layer < model->config.layers; layer++) {
        RSE_TRY(build_layer(builder, layer, err));
    }
    return rse_build_norm(builder, model->config.hidden, &model->norm, err, "norm_f.weight");
}

static const char *const ignored[] = {
    "mtp.", "visual.", "vision_tower.", "vision_model.", "mm_projector.", "multi_modal_projector.", NULL};
const rse_family rse_family_nemotron_h = {RSE_FAMILY_NEMOTRON_H, build, ignored};
