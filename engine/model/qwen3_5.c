/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Qwen3.5 and Qwen3-Next: every layer is a mixer (Gated DeltaNet, or attention with an output gate in each
 * fourth layer) and a SwiGLU MLP or a mixture of experts, each behind its own norm. Layer, q and k norms are of
 * the (1 + w) form; the norm inside the GDN mixer is not. Checkpoints usually hold one multi-token prediction
 * block, "mtp.*".
 */
#include "model/family.h"

#include <stdio.h>

/* Segments that move columns of a projection whose rows are grouped by key head: of each head's group the
 * parts, `size` columns wide, go to columns `to` and on. */
static rse_status regroup(rse_builder *builder, rse_projection *p, int32_t parts, const int64_t *size,
                          const int64_t *to, rse_error *err) {
    int32_t heads = builder->model->config.ssm.key_heads;
    void *memory;
    RSE_TRY(rse_build_own(builder, (size_t)(heads * parts) * sizeof(rse_segment), &memory, err));
    rse_segment *segment = memory;
    int64_t from = 0;
    for (int32_t head = 0; head < heads; head++) {
        for (int32_t i = 0; i < parts; i++) {
            segment[head * parts + i] =
                (rse_segment){(int32_t)from, (int32_t)(to[i] + head * size[i]), (int32_t)size[i]};
            from += size[i];
        }
    }
    p->segment = segment;
    p->segments = heads * parts;
    return RSE_OK;
}

/* One more projection of `rows` rows, to column `to`. */
static rse_status add_input(rse_builder *builder, rse_mixer *mixer, int64_t rows, int64_t to, int32_t layer,
                            const char *name, rse_error *err) {
    rse_projection *p = &mixer->in[mixer->inputs++];
    p->to = to;
    return rse_build_linear(builder, rows, builder->model->config.hidden, false, &p->w, err,
                            "layers.%d.linear_attn.in_proj_%s", layer, name);
}

/* q | k | v | z | b | a side by side. Qwen3-Next fuses q, k, v, z and b, a, grouped by key head; its GGUF files
 * do the latter only. */
static rse_status build_inputs(rse_builder *builder, rse_mixer *mixer, int32_t layer, rse_error *err) {
    const rse_config_ssm *ssm = &builder->model->config.ssm;
    int64_t keys = (int64_t)ssm->key_heads * ssm->d_k;
    int64_t values = (int64_t)ssm->value_heads * ssm->d_v;
    int64_t share = ssm->value_heads / ssm->key_heads;
    mixer->q = 0;
    mixer->k = keys;
    mixer->v = 2 * keys;
    mixer->z = 2 * keys + values;
    mixer->beta = mixer->z + values;
    mixer->decay = mixer->beta + ssm->value_heads;
    mixer->width = mixer->decay + ssm->value_heads;
    if (rse_build_has(builder, "layers.%d.linear_attn.in_proj_qkvz.weight", layer)) {
        RSE_TRY(add_input(builder, mixer, mixer->beta, 0, layer, "qkvz", err));
        const int64_t size[] = {ssm->d_k, ssm->d_k, share * ssm->d_v, share * ssm->d_v};
        const int64_t to[] = {mixer->q, mixer->k, mixer->v, mixer->z};
        RSE_TRY(regroup(builder, &mixer->in[mixer->inputs - 1], 4, size, to, err));
    } else {
        RSE_TRY(add_input(builder, mixer, mixer->z, 0, layer, "qkv", err));
        RSE_TRY(add_input(builder, mixer, values, mixer->z, layer, "z", err));
    }
    if (rse_build_has(builder, "layers.%d.linear_attn.in_proj_ba.weight", layer)) {
        RSE_TRY(add_input(builder, mixer, 2 * ssm->value_heads, 0, layer, "ba", err));
        const int64_t size[] = {share, share};
        const int64_t to[] = {mixer->beta, mixer->decay};
        return regroup(builder, &mixer->in[mixer->inputs - 1], 2, size, to, err);
    }
    RSE_TRY(add_input(builder, mixer, ssm->value_heads, mixer->beta, layer, "b", err));
    return add_input(builder, mixer, ssm->value_heads, mixer->decay, layer, "a", err);
}

/* The convolution runs over q, k, v. */
static rse_status build_gdn(rse_builder *builder, rse_block *block, int32_t layer, rse_error *err) {
    const rse_config *config = &builder->model->config;
    const rse_config_ssm *ssm = &config->ssm;
    int64_t keys = (int64_t)ssm->key_heads * ssm->d_k;
    int64_t values = (int64_t)ssm->value_heads * ssm->d_v;
    int64_t channels = 2 * keys + values;
    rse_mixer *mixer = &block->mixer;
    RSE_TRY(build_inputs(builder, mixer, layer, err));

    const float *conv;
    rssm_layer_weights *constants = &mixer->constants;
    constants->struct_size = sizeof *constants;
    RSE_TRY(rse_build_vector(builder, rse_shape2(channels, ssm->conv_width), &conv, err,
                             "layers.%d.linear_attn.conv1d.weight", layer));
    constants->conv_q = conv;
    constants->conv_k = conv + keys * ssm->conv_width;
    constants->conv_v = conv + 2 * keys * ssm->conv_width;
    char at[64];
    snprintf(at, sizeof at, "layers.%d.linear_attn", layer);
    RSE_TRY(rse_build_decay(builder, ssm->value_heads, constants, err, at));
    RSE_TRY(rse_build_vector(builder, rse_shape1(ssm->value_heads), &constants->dt_bias, err,
                             "layers.%d.linear_attn.dt_bias", layer));
    RSE_TRY(rse_build_vector(builder, rse_shape1(ssm->d_v), &constants->out_norm, err,
                             "layers.%d.linear_attn.norm.weight", layer));
    return rse_build_linear(builder, config->hidden, values, false, &mixer->out, err, "%s.out_proj", at);
}

static const rse_moe_names moe_names = {.shared = "shared_expert"};

/* prefix is "" or "mtp."; kind is RSE_LAYER_MLP or RSE_LAYER_MOE. */
static rse_status build_feed_forward(rse_builder *builder, rse_block *block, int32_t kind, const char *prefix,
                                     int32_t layer, rse_error *err) {
    const rse_config *config = &builder->model->config;
    RSE_TRY(rse_build_norm(builder, config->hidden, &block->norm, err,
                           "%slayers.%d.post_attention_layernorm.weight", prefix, layer));
    return kind == RSE_LAYER_MOE
               ? rse_build_moe(builder, &moe_names, &block->moe, err, "%slayers.%d.mlp", prefix, layer)
               : rse_build_mlp(builder, config->mlp_width, true, &block->mlp, err, "%slayers.%d.mlp", prefix,
                               layer);
}

static int32_t block_of(int32_t kind) {
    return kind == RSE_LAYER_MOE ? RSE_BLOCK_MOE : RSE_BLOCK_MLP;
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
    int32_t kind = config->ffn[layer];
    return build_feed_forward(builder, rse_build_block(builder, block_of(kind), layer), kind, "", layer, err);
}

static rse_status build_mtp(rse_builder *builder, rse_error *err) {
    rse_model *model = builder->model;
    int64_t hidden = model->config.hidden;
    rse_mtp *mtp;
    RSE_TRY(rse_build_mtp(builder, &mtp, err));
    if (mtp == NULL) {
        return RSE_OK;
    }
    RSE_TRY(rse_build_norm(builder, hidden, &mtp->norm_embedding, err, "mtp.pre_fc_norm_embedding.weight"));
    RSE_TRY(rse_build_norm(builder, hidden, &mtp->norm_hidden, err, "mtp.pre_fc_norm_hidden.weight"));
    RSE_TRY(rse_build_linear(builder, hidden, 2 * hidden, false, &mtp->fc, err, "mtp.fc"));
    mtp->block[0] = (rse_block){.kind = RSE_BLOCK_ATTENTION};
    RSE_TRY(rse_build_norm(builder, hidden, &mtp->block[0].norm, err, "mtp.layers.0.input_layernorm.weight"));
    RSE_TRY(rse_build_attention(builder, &mtp->block[0].attn, err, "mtp.layers.0.self_attn"));
    int32_t kind = model->config.moe.experts > 0 ? RSE_LAYER_MOE : RSE_LAYER_MLP;
    mtp->block[1] = (rse_block){.kind = block_of(kind)};
    RSE_TRY(build_feed_forward(builder, &mtp->block[1], kind, "mtp.", 0, err));
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
            .head_map = ssm->tiled ? RSSM_HEAD_MAP_MODULO : RSSM_HEAD_MAP_BLOCKS,
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
