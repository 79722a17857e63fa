/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Qwen3.5, dense: every layer is a mixer (Gated DeltaNet, or attention with an output gate in each fourth
 * layer) and a SwiGLU MLP, each behind its own norm. Layer, q and k norms are of the (1 + w) form; the norm
 * inside the GDN mixer is not. Checkpoints usually hold one multi-token prediction block, "mtp.*".
 */
#include "model/family.h"

#include <stdlib.h>

/* q | k | v | z | b | a side by side; the convolution runs over q, k, v. */
static rse_status build_gdn(rse_builder *builder, rse_block *block, int32_t layer, rse_error *err) {
    const rse_config *config = &builder->model->config;
    const rse_config_ssm *ssm = &config->ssm;
    int64_t hidden = config->hidden;
    int64_t keys = (int64_t)ssm->key_heads * ssm->d_k;
    int64_t values = (int64_t)ssm->value_heads * ssm->d_v;
    int64_t channels = 2 * keys + values;
    rse_mixer *mixer = &block->mixer;
    const struct {
        const char *name;
        int64_t rows;
    } in[RSE_MIXER_INPUTS] = {
        {"qkv", channels}, {"z", values}, {"b", ssm->value_heads}, {"a", ssm->value_heads}};
    mixer->inputs = RSE_MIXER_INPUTS;
    for (int32_t i = 0; i < RSE_MIXER_INPUTS; i++) {
        RSE_TRY(rse_build_linear(builder, in[i].rows, hidden, false, &mixer->in[i], err,
                                 "layers.%d.linear_attn.in_proj_%s", layer, in[i].name));
    }
    mixer->q = 0;
    mixer->k = keys;
    mixer->v = 2 * keys;
    mixer->z = channels;
    mixer->beta = channels + values;
    mixer->decay = mixer->beta + ssm->value_heads;
    mixer->width = mixer->decay + ssm->value_heads;

    const float *conv;
    rssm_layer_weights *constants = &mixer->constants;
    constants->struct_size = sizeof *constants;
    RSE_TRY(rse_build_vector(builder, rse_shape2(channels, ssm->conv_width), &conv, err,
                             "layers.%d.linear_attn.conv1d.weight", layer));
    constants->conv_q = conv;
    constants->conv_k = conv + keys * ssm->conv_width;
    constants->conv_v = conv + 2 * keys * ssm->conv_width;
    RSE_TRY(rse_build_vector(builder, rse_shape1(ssm->value_heads), &constants->A_log, err,
                             "layers.%d.linear_attn.A_log", layer));
    RSE_TRY(rse_build_vector(builder, rse_shape1(ssm->value_heads), &constants->dt_bias, err,
                             "layers.%d.linear_attn.dt_bias", layer));
    RSE_TRY(rse_build_vector(builder, rse_shape1(ssm->d_v), &constants->out_norm, err,
                             "layers.%d.linear_attn.norm.weight", layer));
    return rse_build_linear(builder, hidden, values, false, &mixer->out, err, "layers.%d.linear_attn.out_proj",
                            layer);
}

/* prefix is "" or "mtp.". */
static rse_status build_mlp(rse_builder *builder, rse_block *block, const char *prefix, int32_t layer,
                            rse_error *err) {
    int64_t hidden = builder->model->config.hidden;
    int64_t width = builder->model->config.mlp_width;
    RSE_TRY(rse_build_norm(builder, hidden, &block->norm, err, "%slayers.%d.post_attention_layernorm.weight",
                           prefix, layer));
    RSE_TRY(rse_build_linear(builder, width, hidden, false, &block->mlp.gate, err, "%slayers.%d.mlp.gate_proj",
                             prefix, layer));
    RSE_TRY(rse_build_linear(builder, width, hidden, false, &block->mlp.up, err, "%slayers.%d.mlp.up_proj",
                             prefix, layer));
    return rse_build_linear(builder, hidden, width, false, &block->mlp.down, err, "%slayers.%d.mlp.down_proj",
                            prefix, layer);
}

static rse_status build_layer(rse_builder *builder, int32_t layer, rse_error *err) {
    const rse_config *config = &builder->model->config;
    bool recurrent = config->layer[layer] == RSE_LAYER_GDN;
    rse_block *block = rse_build_block(builder, recurrent ? RSE_BLOCK_MIXER : RSE_BLOCK_ATTENTION, layer);
    RSE_TRY(
        rse_build_norm(builder, config->hidden, &block->norm, err, "layers.%d.input_layernorm.weight", layer));
    if (recurrent) {
        RSE_TRY(build_gdn(builder, block, layer, err));
    } else {
        RSE_TRY(rse_build_attention(builder, &block->attn, err, "layers.%d.self_attn", layer));
    }
    return build_mlp(builder, rse_build_block(builder, RSE_BLOCK_MLP, layer), "", layer, err);
}

/* Kept for drafting; the model itself runs without it, and files may lack it. */
static rse_status build_mtp(rse_builder *builder, rse_error *err) {
    rse_model *model = builder->model;
    int64_t hidden = model->config.hidden;
    if (!rse_weights_has_prefix(model->weights, "mtp.")) {
        return RSE_OK;
    }
    rse_mtp *mtp = model->mtp = calloc(1, sizeof *mtp);
    if (mtp == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for the prediction block");
    }
    builder->parameters = &model->parameters_mtp;
    RSE_TRY(rse_build_norm(builder, hidden, &mtp->norm_embedding, err, "mtp.pre_fc_norm_embedding.weight"));
    RSE_TRY(rse_build_norm(builder, hidden, &mtp->norm_hidden, err, "mtp.pre_fc_norm_hidden.weight"));
    RSE_TRY(rse_build_linear(builder, hidden, 2 * hidden, false, &mtp->fc, err, "mtp.fc"));
    mtp->block[0] = (rse_block){.kind = RSE_BLOCK_ATTENTION};
    RSE_TRY(rse_build_norm(builder, hidden, &mtp->block[0].norm, err, "mtp.layers.0.input_layernorm.weight"));
    RSE_TRY(rse_build_attention(builder, &mtp->block[0].attn, err, "mtp.layers.0.self_attn"));
    mtp->block[1] = (rse_block){.kind = RSE_BLOCK_MLP};
    RSE_TRY(build_mlp(builder, &mtp->block[1], "mtp.", 0, err));
    return rse_build_norm(builder, hidden, &mtp->norm, err, "mtp.norm.weight");
}

static rse_status build(rse_builder *builder, rse_error *err) {
    rse_model *model = builder->model;
    const rse_config_ssm *ssm = &model->config.ssm;
    if (rse_config_count(&model->config, RSE_LAYER_GDN) > 0) {
        model->spec = (rssm_layer_spec){
            .struct_size = sizeof model->spec,
            .kind = RSSM_GDN,
            .key_heads = ssm->key_heads,
            .value_heads = ssm->value_heads,
            .d_k = ssm->d_k,
            .d_v = ssm->d_v,
            .conv_width = ssm->conv_width,
            .out_norm = ssm->gate_act == RSE_ACT_SIGMOID ? RSSM_OUT_NORM_HEAD_SIGMOID : RSSM_OUT_NORM_HEAD_SILU,
            .out_norm_eps = model->config.norm_eps,
        };
    }
    RSE_TRY(rse_build_ends(builder, "embed_tokens.weight", err));
    for (int32_t layer = 0; layer < model->config.layers; layer++) {
        RSE_TRY(build_layer(builder, layer, err));
    }
    RSE_TRY(rse_build_norm(builder, model->config.hidden, &model->norm, err, "norm.weight"));
    return build_mtp(builder, err);
}

const rse_family rse_family_qwen3_5 = {RSE_FAMILY_QWEN35, build, rse_weights_vision};
