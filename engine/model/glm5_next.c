/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GLM-5.3-Flash, its text part: every layer is Kimi Delta Attention with a bounded decay, or attention over
 * latent rows, and then a clamped SwiGLU MLP or a mixture of experts; around each of them several residual
 * streams are mixed. The indexer of the sparse attention is not read: as far as the model is run, it would
 * select everything. The prediction block behind the last layer is not read either.
 */
#include "model/family.h"

#include <stdio.h>

static const rse_moe_names moe_names = {0};

static rse_status build_streams(rse_builder *builder, rse_residual *residual, const char *part, int32_t layer,
                                rse_error *err) {
    const rse_config *config = &builder->model->config;
    int64_t streams = config->streams;
    int64_t values = (2 + streams) * streams;
    RSE_TRY(rse_build_matrix(builder, rse_shape2(values, streams * config->hidden), &residual->fn.w, err,
                             "layers.%d.hc_%s_fn", layer, part));
    RSE_TRY(rse_build_vector(builder, rse_shape1(values), &residual->base, err, "layers.%d.hc_%s_base", layer,
                             part));
    return rse_build_vector(builder, rse_shape1(3), &residual->scale, err, "layers.%d.hc_%s_scale", layer,
                            part);
}

static rse_status build_layer(rse_builder *builder, int32_t layer, rse_error *err) {
    const rse_config *config = &builder->model->config;
    bool recurrent = config->layer[layer] == RSE_LAYER_KDA;
    bool experts = config->ffn[layer] == RSE_LAYER_MOE;
    rse_block *block = rse_build_block(builder, recurrent ? RSE_BLOCK_MIXER : RSE_BLOCK_MLA, layer);
    RSE_TRY(
        rse_build_norm(builder, config->hidden, &block->norm, err, "layers.%d.input_layernorm.weight", layer));
    RSE_TRY(build_streams(builder, &block->residual, "attn", layer, err));
    if (recurrent) {
        RSE_TRY(rse_build_kda(builder, &block->mixer, err, "layers.%d.self_attn", layer));
    } else {
        RSE_TRY(rse_build_mla(builder, &block->mla, err, "layers.%d.self_attn", layer));
    }
    block = rse_build_block(builder, experts ? RSE_BLOCK_MOE : RSE_BLOCK_MLP, layer);
    RSE_TRY(rse_build_norm(builder, config->hidden, &block->norm, err,
                           "layers.%d.post_attention_layernorm.weight", layer));
    RSE_TRY(build_streams(builder, &block->residual, "ffn", layer, err));
    return experts ? rse_build_moe(builder, &moe_names, &block->moe, err, "layers.%d.mlp", layer)
                   : rse_build_mlp(builder, config->mlp_width, true, &block->mlp, err, "layers.%d.mlp", layer);
}

static rse_status build(rse_builder *builder, rse_error *err) {
    rse_model *model = builder->model;
    char prediction[32];
    rse_build_kda_spec(model);
    RSE_TRY(rse_build_ends(builder, "embed_tokens.weight", err));
    for (int32_t layer = 0; layer < model->config.layers; layer++) {
        RSE_TRY(build_layer(builder, layer, err));
    }
    snprintf(prediction, sizeof prediction, "layers.%d.", model->config.layers);
    rse_weights_skip_part(model->weights, prediction);
    rse_weights_skip_part(model->weights, ".self_attn.indexer.");
    return rse_build_norm(builder, model->config.hidden, &model->norm, err, "norm.weight");
}

const rse_family rse_family_glm5_next = {RSE_FAMILY_GLM5_NEXT, build, rse_weights_vision};
