/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kimi-Linear: every layer is Kimi Delta Attention, or attention over latent rows without positions, and then a
 * SwiGLU MLP or a mixture of experts. Decay and output gate of KDA are low-rank projections. Kimi-K3 adds what
 * its configuration says: blocks that read a mix of the residual and of its earlier values, experts on a latent
 * row, output gates of full rank.
 */
#include "model/family.h"

#include <stdio.h>

static const rse_moe_names moe_names = {.gate = "w1",
                                        .up = "w3",
                                        .down = "w2",
                                        .latent_in = "routed_expert_down_proj",
                                        .latent_out = "routed_expert_up_proj",
                                        .latent_norm = "routed_expert_norm.weight"};

/* What a block of Kimi-K3 mixes of the bank: norm and projection of the candidates' scores as one vector. */
static rse_status build_score(rse_builder *builder, const float **score, rse_error *err, const char *norm,
                              const char *projection) {
    int64_t hidden = builder->model->config.hidden;
    float *product;
    const float *factor;
    RSE_TRY(rse_take_vector(builder, norm, rse_shape1(hidden), &product, err));
    RSE_TRY(rse_build_vector(builder, rse_shape1(hidden), &factor, err, "%s", projection));
    for (int64_t i = 0; i < hidden; i++) {
        product[i] *= factor[i];
    }
    *score = product;
    return RSE_OK;
}

static rse_status build_bank(rse_builder *builder, rse_block *block, const char *part, int32_t layer,
                             rse_error *err) {
    char norm[96], projection[96];
    if (builder->model->config.residual != RSE_RESIDUAL_BANK) {
        return RSE_OK;
    }
    snprintf(norm, sizeof norm, "layers.%d.%s_norm.weight", layer, part);
    snprintf(projection, sizeof projection, "layers.%d.%s_proj.weight", layer, part);
    return build_score(builder, &block->residual.score, err, norm, projection);
}

static rse_status build_layer(rse_builder *builder, int32_t layer, rse_error *err) {
    const rse_config *config = &builder->model->config;
    bool recurrent = config->layer[layer] == RSE_LAYER_KDA;
    bool experts = config->ffn[layer] == RSE_LAYER_MOE;
    rse_block *block = rse_build_block(builder, recurrent ? RSE_BLOCK_MIXER : RSE_BLOCK_MLA, layer);
    RSE_TRY(
        rse_build_norm(builder, config->hidden, &block->norm, err, "layers.%d.input_layernorm.weight", layer));
    if (recurrent) {
        RSE_TRY(rse_build_kda(builder, &block->mixer, err, "layers.%d.self_attn", layer));
    } else {
        RSE_TRY(rse_build_mla(builder, &block->mla, err, "layers.%d.self_attn", layer));
    }
    RSE_TRY(build_bank(builder, block, "self_attention_res", layer, err));
    block = rse_build_block(builder, experts ? RSE_BLOCK_MOE : RSE_BLOCK_MLP, layer);
    RSE_TRY(rse_build_norm(builder, config->hidden, &block->norm, err,
                           "layers.%d.post_attention_layernorm.weight", layer));
    RSE_TRY(build_bank(builder, block, "mlp_res", layer, err));
    return experts ? rse_build_moe(builder, &moe_names, &block->moe, err, "layers.%d.block_sparse_moe", layer)
                   : rse_build_mlp(builder, config->mlp_width, true, &block->mlp, err, "layers.%d.mlp", layer);
}

static rse_status build(rse_builder *builder, rse_error *err) {
    rse_model *model = builder->model;
    rse_build_kda_spec(model);
    RSE_TRY(rse_build_ends(builder, "embed_tokens.weight", err));
    for (int32_t layer = 0; layer < model->config.layers; layer++) {
        RSE_TRY(build_layer(builder, layer, err));
    }
    if (model->config.residual == RSE_RESIDUAL_BANK) {
        RSE_TRY(build_score(builder, &model->output_score, err, "output_attn_res_norm.weight",
                            "output_attn_res_proj.weight"));
    }
    return rse_build_norm(builder, model->config.hidden, &model->norm, err, "norm.weight");
}

const rse_family rse_family_kimi_linear = {RSE_FAMILY_KIMI_LINEAR, build, rse_weights_vision};
