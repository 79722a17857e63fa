/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What several families' recurrent layers have in common: the Mamba-2 and KDA mixers with their specs, and
 * decay rates.
 */
#include "model/family.h"

#include <math.h>

rse_status rse_build_decay(rse_builder *builder, int64_t heads, rssm_layer_weights *constants, rse_error *err,
                           const char *at) {
    if (!rse_build_has(builder, "%s.A", at)) {
        return rse_build_vector(builder, rse_shape1(heads), &constants->A_log, err, "%s.A_log", at);
    }
    RSE_TRY(rse_build_vector(builder, rse_shape1(heads), &constants->A, err, "%s.A", at));
    for (int64_t i = 0; i < heads; i++) {
        if (!(constants->A[i] <= 0.0f)) {
            return rse_fail(err, RSE_ERROR_FORMAT, "%s.A has %g at %lld, not a number below zero", at,
                            (double)constants->A[i], (long long)i);
        }
    }
    return RSE_OK;
}

/* One projection gives z | x | B | C | dt; the convolution runs over x, B, C, which are v, k, q of the
 * recurrence. */
rse_status rse_build_mamba2(rse_builder *builder, rse_mixer *mixer, rse_error *err, const char *stem, ...) {
    char at[RSE_NAME_SIZE];
    RSE_FORMAT_NAME(at, stem);
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
    RSE_TRY(rse_build_linear(builder, mixer->width, config->hidden, ssm->proj_bias, &mixer->in[0].w, err,
                             "%s.in_proj", at));

    const float *conv;
    const float *bias = NULL;
    rssm_layer_weights *constants = &mixer->constants;
    constants->struct_size = sizeof *constants;
    RSE_TRY(
        rse_build_vector(builder, rse_shape2(channels, ssm->conv_width), &conv, err, "%s.conv1d.weight", at));
    constants->conv_v = conv;
    constants->conv_k = conv + values * ssm->conv_width;
    constants->conv_q = conv + (values + keys) * ssm->conv_width;
    if (ssm->conv_bias) {
        RSE_TRY(rse_build_vector(builder, rse_shape1(channels), &bias, err, "%s.conv1d.bias", at));
        constants->conv_bias_v = bias;
        constants->conv_bias_k = bias + values;
        constants->conv_bias_q = bias + values + keys;
    }
    RSE_TRY(rse_build_decay(builder, heads, constants, err, at));
    RSE_TRY(rse_build_vector(builder, rse_shape1(heads), &constants->dt_bias, err, "%s.dt_bias", at));
    RSE_TRY(rse_build_vector(builder, rse_shape1(heads), &constants->D, err, "%s.D", at));
    RSE_TRY(rse_build_vector(builder, rse_shape1(values), &constants->out_norm, err, "%s.norm.weight", at));
    return rse_build_linear(builder, config->hidden, values, ssm->proj_bias, &mixer->out, err, "%s.out_proj",
                            at);
}

void rse_build_mamba2_spec(rse_model *model) {
    const rse_config_ssm *ssm = &model->config.ssm;
    if (rse_config_count(&model->config, RSE_LAYER_MAMBA2) == 0) {
        return;
    }
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

/* q | k | v | z | decay | beta side by side; each of q, k, v has a convolution of its own. */
rse_status rse_build_kda(rse_builder *builder, rse_mixer *mixer, rse_error *err, const char *stem, ...) {
    char at[RSE_NAME_SIZE];
    RSE_FORMAT_NAME(at, stem);
    const rse_config *config = &builder->model->config;
    const rse_config_ssm *ssm = &config->ssm;
    int64_t hidden = config->hidden;
    int64_t heads = ssm->value_heads;
    int64_t rank = ssm->d_k;
    int64_t width = heads * ssm->d_k;
    const struct {
        const char *low, *name;
    } in[RSE_MIXER_INPUTS] = {
        {NULL, "q_proj"},         {NULL, "k_proj"},
        {NULL, "v_proj"},         {ssm->full_gate ? NULL : "g_a_proj", ssm->full_gate ? "g_proj" : "g_b_proj"},
        {"f_a_proj", "f_b_proj"}, {NULL, "b_proj"}};
    mixer->inputs = RSE_MIXER_INPUTS;
    for (int32_t i = 0; i < RSE_MIXER_INPUTS; i++) {
        rse_projection *p = &mixer->in[i];
        int64_t cols = in[i].low != NULL ? rank : hidden;
        p->to = i * width;
        if (in[i].low != NULL) {
            RSE_TRY(rse_build_linear(builder, rank, hidden, false, &p->low, err, "%s.%s", at, in[i].low));
        }
        RSE_TRY(rse_build_linear(builder, i == RSE_MIXER_INPUTS - 1 ? heads : width, cols, false, &p->w, err,
                                 "%s.%s", at, in[i].name));
    }
    mixer->q = 0;
    mixer->k = width;
    mixer->v = 2 * width;
    mixer->z = 3 * width;
    mixer->decay = 4 * width;
    mixer->beta = 5 * width;
    mixer->width = 5 * width + heads;

    rssm_layer_weights *constants = &mixer->constants;
    constants->struct_size = sizeof *constants;
    const float **conv[] = {&constants->conv_q, &constants->conv_k, &constants->conv_v};
    for (int32_t i = 0; i < 3; i++) {
        RSE_TRY(rse_build_vector(builder, rse_shape2(width, ssm->conv_width), conv[i], err,
                                 "%s.%c_conv1d.weight", at, "qkv"[i]));
    }
    RSE_TRY(rse_build_decay(builder, heads, constants, err, at));
    RSE_TRY(rse_build_vector(builder, rse_shape1(width), &constants->dt_bias, err, "%s.dt_bias", at));
    RSE_TRY(rse_build_vector(builder, rse_shape1(ssm->d_v), &constants->out_norm, err, "%s.o_norm.weight", at));
    return rse_build_linear(builder, hidden, width, false, &mixer->out, err, "%s.o_proj", at);
}

void rse_build_kda_spec(rse_model *model) {
    const rse_config_ssm *ssm = &model->config.ssm;
    if (rse_config_count(&model->config, RSE_LAYER_KDA) == 0) {
        return;
    }
    model->spec = (rssm_layer_spec){
        .struct_size = sizeof model->spec,
        .kind = RSSM_KDA,
        .key_heads = ssm->key_heads,
        .value_heads = ssm->value_heads,
        .d_k = ssm->d_k,
        .d_v = ssm->d_v,
        .conv_width = ssm->conv_width,
        .gate_lower_bound = ssm->gate_lower_bound,
        .out_norm = RSSM_OUT_NORM_HEAD_SIGMOID,
        .out_norm_eps = model->config.norm_eps,
    };
}
