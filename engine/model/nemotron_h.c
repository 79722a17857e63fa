/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nemotron-H: every layer is one residual block, a Mamba-2 mixer, attention without positions, an MLP with
 * relu^2, or a mixture of such MLPs, which may work on a latent row narrower than the hidden size. The mixer's
 * gate comes before its norm, which runs over groups of heads. Checkpoints may hold one multi-token prediction
 * block, "mtp.*": attention and a mixture of experts, in two layers of their own.
 */
#include "model/family.h"

static const rse_moe_names moe_names = {.latent_in = "fc1_latent_proj", .latent_out = "fc2_latent_proj"};

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

static rse_status build_mtp(rse_builder *builder, rse_error *err) {
    rse_model *model = builder->model;
    int64_t hidden = model->config.hidden;
    rse_mtp *mtp;
    RSE_TRY(rse_build_mtp(builder, &mtp, err));
    if (mtp == NULL) {
        return RSE_OK;
    }
    RSE_TRY(rse_build_norm(builder, hidden, &mtp->norm_embedding, err, "mtp.layers.0.enorm.weight"));
    RSE_TRY(rse_build_norm(builder, hidden, &mtp->norm_hidden, err, "mtp.layers.0.hnorm.weight"));
    RSE_TRY(rse_build_linear(builder, hidden, 2 * hidden, false, &mtp->fc, err, "mtp.layers.0.eh_proj"));
    mtp->block[0] = (rse_block){.kind = RSE_BLOCK_ATTENTION};
    RSE_TRY(rse_build_norm(builder, hidden, &mtp->block[0].norm, err, "mtp.layers.0.norm.weight"));
    RSE_TRY(rse_build_attention(builder, &mtp->block[0].attn, err, "mtp.layers.0.mixer"));
    mtp->block[1] = (rse_block){.kind = RSE_BLOCK_MOE};
    RSE_TRY(rse_build_norm(builder, hidden, &mtp->block[1].norm, err, "mtp.layers.1.norm.weight"));
    RSE_TRY(rse_build_moe(builder, &moe_names, &mtp->block[1].moe, err, "mtp.layers.1.mixer"));
    return rse_build_norm(builder, hidden, &mtp->norm, err, "mtp.layers.1.final_layernorm.weight");
}

static rse_status build(rse_builder *builder, rse_error *err) {
    rse_model *model = builder->model;
    rse_build_mamba2_spec(model);
    bool old_name = rse_weights_has(model->weights, "embedding.weight");
    RSE_TRY(rse_build_ends(builder, old_name ? "embedding.weight" : "embeddings.weight", err));
    for (int32_t layer = 0; layer < model->config.layers; layer++) {
        RSE_TRY(build_layer(builder, layer, err));
    }
    RSE_TRY(rse_build_norm(builder, model->config.hidden, &model->norm, err, "norm_f.weight"));
    return build_mtp(builder, err);
}

const rse_family rse_family_nemotron_h = {RSE_FAMILY_NEMOTRON_H, build, rse_weights_vision};
