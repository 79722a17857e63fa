/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nemotron-H, dense: every layer is one residual block, a Mamba-2 mixer, attention without positions, or an MLP
 * with relu^2. The mixer's gate comes before its norm, which runs over groups of heads.
 */
#include "model/family.h"

#include <math.h>

/* One projection gives z | x | B | C | dt; the convolution runs over x, B, C, which are v, k, q of the
 * recurrence. */
static rse_status build_mamba2(rse_builder *builder, rse_mixer *mixer, int32_t layer, rse_error *err) {
    const rse_config *config = &builder->model->config;
    const rse_config_ssm *ssm = &config->ssm;
    int64_t keys = (int64_t)ssm->key_heads * ssm->d_k;
    int64_t values = (int64_t)ssm->value_heads * ssm->d_v;
    int64_t channels = values + 2 * keys;
    int64_t heads = ssm->value_heads;
    mixer->inputs = 1;
    mixer->z = 0;
    mixer->v = values;
    mixer->k = 2 * values;
    mixer->q = mixer->k + keys;
    mixer->decay = mixer->q + keys;
    mixer->beta = -1;
    mixer->width = mixer->decay + heads;
    RSE_TRY(rse_build_linear(builder, mixer->width, config->hidden, ssm->proj_bias, &mixer->in[0], err,
                             "layers.%d.mixer.in_proj", layer));

    const float *conv;
    const float *bias = NULL;
    rssm_layer_weights *constants = &mixer->constants;
    constants->struct_size = sizeof *constants;
    RSE_TRY(rse_build_vector(builder, rse_shape2(channels, ssm->conv_width), &conv, err,
                             "layers.%d.mixer.conv1d.weight", layer));
    constants->conv_v = conv;
    constants->conv_k = conv + values * ssm->conv_width;
    constants->conv_q = conv + (values + keys) * ssm->conv_width;
    if (ssm->conv_bias) {
        RSE_TRY(
            rse_build_vector(builder, rse_shape1(channels), &bias, err, "layers.%d.mixer.conv1d.bias", layer));
        constants->conv_bias_v = bias;
        constants->conv_bias_k = bias + values;
        constants->conv_bias_q = bias + values + keys;
    }
    RSE_TRY(
        rse_build_vector(builder, rse_shape1(heads), &constants->A_log, err, "layers.%d.mixer.A_log", layer));
    RSE_TRY(rse_build_vector(builder, rse_shape1(heads), &constants->dt_bias, err, "layers.%d.mixer.dt_bias",
                             layer));
    RSE_TRY(rse_build_vector(builder, rse_shape1(heads), &constants->D, err, "layers.%d.mixer.D", layer));
    RSE_TRY(rse_build_vector(builder, rse_shape1(values), &constants->out_norm, err,
                             "layers.%d.mixer.norm.weight", layer));
    return rse_build_linear(builder, config->hidden, values, ssm->proj_bias, &mixer->out, err,
                            "layers.%d.mixer.out_proj", layer);
}

static rse_status build_layer(rse_builder *builder, int32_t layer, rse_error *err) {
    const rse_config *config = &builder->model->config;
    int32_t kind = config->layer[layer] == RSE_LAYER_MAMBA2      ? RSE_BLOCK_MIXER
                   : config->layer[layer] == RSE_LAYER_ATTENTION ? RSE_BLOCK_ATTENTION
                                                                 : RSE_BLOCK_MLP;
    rse_block *block = rse_build_block(builder, kind, layer);
    RSE_TRY(rse_build_norm(builder, config->hidden, &block->norm, err, "layers.%d.norm.weight", layer));
    if (kind == RSE_BLOCK_MIXER) {
        return build_mamba2(builder, &block->mixer, layer, err);
    }
    if (kind == RSE_BLOCK_ATTENTION) {
        return rse_build_attention(builder, &block->attn, err, "layers.%d.mixer", layer);
    }
    RSE_TRY(rse_build_linear(builder, config->mlp_width, config->hidden, config->mlp_bias, &block->mlp.up, err,
                             "layers.%d.mixer.up_proj", layer));
    return rse_build_linear(builder, config->hidden, config->mlp_width, config->mlp_bias, &block->mlp.down, err,
                            "layers.%d.mixer.down_proj", layer);
}

static rse_status build(rse_builder *builder, rse_error *err) {
    rse_model *model = builder->model;
    const rse_config_ssm *ssm = &model->config.ssm;
    if (rse_config_count(&model->config, RSE_LAYER_MAMBA2) > 0) {
        model->spec = (rssm_layer_spec){
            .struct_size = sizeof model->spec,
            .kind = RSSM_MAMBA2,
            .key_heads = ssm->key_heads,
            .value_heads = ssm->value_heads,
            .d_k = ssm->d_k,
            .d_v = ssm->d_v,
            .conv_width = ssm->conv_width,
            .dt_min = ssm->dt_min,
            .dt_max = isfinite(ssm->dt_max) ? ssm->dt_max : 0.0f,
            .out_norm = RSSM_OUT_NORM_GROUP,
            .out_norm_groups = ssm->key_heads,
            .out_norm_eps = model->config.norm_eps,
        };
    }
    bool old_name = rse_weights_has(model->weights, "embedding.weight");
    RSE_TRY(rse_build_ends(builder, old_name ? "embedding.weight" : "embeddings.weight", err));
    for (int32_t layer = 0; layer < model->config.layers; layer++) {
        RSE_TRY(build_layer(builder, layer, err));
    }
    return rse_build_norm(builder, model->config.hidden, &model->norm, err, "norm_f.weight");
}

const rse_family rse_family_nemotron_h = {RSE_FAMILY_NEMOTRON_H, build, rse_weights_vision};
