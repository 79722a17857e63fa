/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Granite 4.0-H: every layer is a Mamba-2 mixer or attention without positions, then a SwiGLU MLP, which is the
 * shared part of a mixture of experts where there is one. Embeddings, queries, residual branches and logits are
 * scaled by constants of the configuration. Gate and up projections are fused, gate rows first.
 */
#include "model/family.h"

static const rse_moe_names moe_names = {.router = "router.layer",
                                        .fused = "input_linear.weight",
                                        .stacked_down = "output_linear.weight",
                                        .shared = ""};
/* Files of llama.cpp stack the experts' matrices one by one. */
static const rse_moe_names split_names = {.router = "router.layer", .shared = ""};

static rse_status build_shared(rse_builder *builder, int64_t width, rse_mlp *mlp, int32_t layer,
                               rse_error *err) {
    int64_t hidden = builder->model->config.hidden;
    if (rse_build_has(builder, "layers.%d.shared_mlp.up_proj.weight", layer)) {
        return rse_build_mlp(builder, width, true, mlp, err, "layers.%d.shared_mlp", layer);
    }
    rse_matrix both;
    RSE_TRY(rse_build_matrix(builder, rse_shape2(2 * width, hidden), &both, err,
                             "layers.%d.shared_mlp.input_linear.weight", layer));
    mlp->gate = (rse_linear){.w = rse_matrix_rows(&both, 0, width)};
    mlp->up = (rse_linear){.w = rse_matrix_rows(&both, width, width)};
    return rse_build_linear(builder, hidden, width, false, &mlp->down, err,
                            "layers.%d.shared_mlp.output_linear", layer);
}

static rse_status build_layer(rse_builder *builder, int32_t layer, rse_error *err) {
    const rse_config *config = &builder->model->config;
    const rse_config_moe *moe = &config->moe;
    bool recurrent = config->layer[layer] == RSE_LAYER_MAMBA2;
    rse_block *block = rse_build_block(builder, recurrent ? RSE_BLOCK_MIXER : RSE_BLOCK_ATTENTION, layer);
    RSE_TRY(
        rse_build_norm(builder, config->hidden, &block->norm, err, "layers.%d.input_layernorm.weight", layer));
    if (recurrent) {
        RSE_TRY(rse_build_mamba2(builder, &block->mixer, err, "layers.%d.mamba", layer));
    } else {
        RSE_TRY(rse_build_attention(builder, &block->attn, err, "layers.%d.self_attn", layer));
    }
    block = rse_build_block(builder, moe->experts > 0 ? RSE_BLOCK_MOE : RSE_BLOCK_MLP, layer);
    RSE_TRY(rse_build_norm(builder, config->hidden, &block->norm, err,
                           "layers.%d.post_attention_layernorm.weight", layer));
    if (moe->experts == 0) {
        return build_shared(builder, config->mlp_width, &block->mlp, layer, err);
    }
    bool split = rse_build_has(builder, "layers.%d.block_sparse_moe.experts.up_proj", layer);
    RSE_TRY(rse_build_moe(builder, split ? &split_names : &moe_names, &block->moe, err,
                          "layers.%d.block_sparse_moe", layer));
    return moe->shared_width > 0 ? build_shared(builder, moe->shared_width, &block->moe.shared, layer, err)
                                 : RSE_OK;
}

static rse_status build(rse_builder *builder, rse_error *err) {
    rse_model *model = builder->model;
    rse_build_mamba2_spec(model);
    RSE_TRY(rse_build_ends(builder, "embed_tokens.weight", err));
    for (int32_t layer = 0; layer < model->config.layers; layer++) {
        RSE_TRY(build_layer(builder, layer, err));
    }
    return rse_build_norm(builder, model->config.hidden, &model->norm, err, "norm.weight");
}

const rse_family rse_family_granite_hybrid = {RSE_FAMILY_GRANITE_HYBRID, build, NULL};
