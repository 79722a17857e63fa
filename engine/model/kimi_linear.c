/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kimi-Linear: every layer is Kimi Delta Attention, or attention over latent rows without positions, and then a
 * SwiGLU MLP or a mixture of experts. Decay and output gate of KDA are low-rank projections.
 */
#include "model/family.h"

#include <stdio.h>

static const rse_moe_names moe_names = {.router = "gate",
                                        .gate = "w1",
                                        .up = "w3",
                                        .down = "w2",
                                        .fused = "experts.gate_up_proj",
                                        .stacked_down = "experts.down_proj",
                                        .shared = "shared_experts"};

/* q | k | v | z | decay | beta side by side; each of q, k, v has a convolution of its own. */
static rse_status build_kda(rse_builder *builder, rse_mixer *mixer, int32_t layer, rse_error *err) {
    const rse_config *config = &builder->model->config;
    const rse_config_ssm *ssm = &config->ssm;
    int64_t hidden = config->hidden;
    int64_t heads = ssm->value_heads;
    int64_t rank = ssm->d_k;
    int64_t width = heads * ssm->d_k;
    static const struct {
        const char *low, *name;
    } in[RSE_MIXER_INPUTS] = {{NULL, "q_proj"},         {NULL, "k_proj"},         {NULL, "v_proj"},
                              {"g_a_proj", "g_b_proj"}, {"f_a_proj", "f_b_proj"}, {NULL, "b_proj"}};
    mixer->inputs = RSE_MIXER_INPUTS;
    for (int32_t i = 0; i < RSE_MIXER_INPUTS; i++) {
        rse_projection *p = &mixer->in[i];
        int64_t cols = in[i].low != NULL ? rank : hidden;
        p->to = i * width;
        if (in[i].low != NULL) {
            RSE_TRY(rse_build_linear(builder, rank, hidden, false, &p->low, err, "layers.%d.self_attn.%s",
                                     layer, in[i].low));
        }
        RSE_TRY(rse_build_linear(builder, i == RSE_MIXER_INPUTS - 1 ? heads : width, cols, false, &p->w, err,
                                 "layers.%d.self_attn.%s", layer, in[i].name));
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
                                 "layers.%d.self_attn.%c_conv1d.weight", layer, "qkv"[i]));
    }
    char at[64];
    snprintf(at, sizeof at, "layers.%d.self_attn", layer);
    RSE_TRY(rse_build_decay(builder, heads, constants, err, at));
    RSE_TRY(rse_build_vector(builder, rse_shape1(width), &constants->dt_bias, err, "%s.dt_bias", at));
    RSE_TRY(rse_build_vector(builder, rse_shape1(ssm->d_v), &constants->out_norm, err, "%s.o_norm.weight", at));
    return rse_build_linear(builder, hidden, width, false, &mixer->out, err, "%s.o_proj", at);
}

static rse_status build_layer(rse_builder *builder, int32_t layer, rse_error *err) {
    const rse_config *config = &builder->model->config;
    bool recurrent = config->layer[layer] == RSE_LAYER_KDA;
    bool experts = config->ffn[layer] == RSE_LAYER_MOE;
    rse_block *block = rse_build_block(builder, recurrent ? RSE_BLOCK_MIXER : RSE_BLOCK_MLA, layer);
    RSE_TRY(
        rse_build_norm(builder, config->hidden, &block->norm, err, "layers.%d.input_layernorm.weight", layer));
    if (recurrent) {
        RSE_TRY(build_kda(builder, &block->mixer, layer, err));
    } else {
        RSE_TRY(rse_build_mla(builder, &block->mla, err, "layers.%d.self_attn", layer));
    }
    block = rse_build_block(builder, experts ? RSE_BLOCK_MOE : RSE_BLOCK_MLP, layer);
    RSE_TRY(rse_build_norm(builder, config->hidden, &block->norm, err,
                           "layers.%d.post_attention_layernorm.weight", layer));
    return experts ? rse_build_moe(builder, &moe_names, &block->moe, err, "layers.%d.block_sparse_moe", layer)
                   : rse_build_mlp(builder, config->mlp_width, true, &block->mlp, err, "layers.%d.mlp", layer);
}

static rse_status build(rse_builder *builder, rse_error *err) {
    rse_model *model = builder->model;
    const rse_config_ssm *ssm = &model->config.ssm;
    if (rse_config_count(&model->config, RSE_LAYER_KDA) > 0) {
        model->spec = (rssm_layer_spec){
            .struct_size = sizeof model->spec,
            .kind = RSSM_KDA,
            .key_heads = ssm->key_heads,
            .value_heads = ssm->value_heads,
            .d_k = ssm->d_k,
            .d_v = ssm->d_v,
            .conv_width = ssm->conv_width,
            .out_norm = RSSM_OUT_NORM_HEAD_SIGMOID,
            .out_norm_eps = model->config.norm_eps,
        };
    }
    RSE_TRY(rse_build_ends(builder, "embed_tokens.weight", err));
    for (int32_t layer = 0; layer < model->config.layers; layer++) {
        RSE_TRY(build_layer(builder, layer, err));
    }
    return rse_build_norm(builder, model->config.hidden, &model->norm, err, "norm.weight");
}

const rse_family rse_family_kimi_linear = {RSE_FAMILY_KIMI_LINEAR, build, NULL};
