/* SPDX-License-Identifier: Apache-2.0 */
/* config.json of Qwen3.5 and Qwen3-Next, dense and with experts. */
#include "load/config_read.h"

#include <string.h>

static const char where[] = RSE_CONFIG_WHERE;

/* ---- Qwen3.5 ------------------------------------------------------------------------------------------ */

static rse_status read_qwen35_layers(const rse_source *s, rse_config *config, rse_error *err) {
    int32_t layers = 0;
    int64_t interval = 4;
    const rse_json *types = NULL;
    RSE_TRY(rse_read_count(s, "num_hidden_layers", NULL, RSE_CONFIG_LAYERS, &layers, err));
    RSE_TRY(rse_json_get_int(s->text, where, "full_attention_interval", 1, RSE_CONFIG_LAYERS, &interval, err));
    RSE_TRY(rse_json_get(s->text, where, "layer_types", RSE_JSON_ARRAY, &types, err));
    if (types == NULL) {
        for (int32_t i = 0; i < layers; ++i) {
            int32_t kind = (i + 1) % interval == 0 ? RSE_LAYER_ATTENTION : RSE_LAYER_GDN;
            RSE_TRY(rse_read_layer(config, "full_attention_interval", kind, "", 0, err));
        }
        return RSE_OK;
    }
    RSE_TRY(rse_read_layer_list(config, "layer_types", types, RSE_LAYER_GDN, err));
    if (config->layers != layers || rse_config_count(config, RSE_LAYER_MLP) > 0) {
        return rse_fail(err, RSE_ERROR_FORMAT,
                        "%s: layer_types does not list %d layers of attention or linear_attention", where,
                        (int)layers);
    }
    return RSE_OK;
}

/* Layers with experts: all, or with a list of exceptions and a step. */
static rse_status read_feed_forward(const rse_source *s, rse_config *config, rse_error *err) {
    rse_config_moe *moe = &config->moe;
    const rse_json *dense = NULL;
    int64_t step = 1;
    RSE_TRY(rse_read_count_or(s, "num_experts", NULL, 0, RSE_EXPERTS_MAX, &moe->experts, err));
    if (moe->experts == 0) {
        memset(config->ffn, RSE_LAYER_MLP, (size_t)config->layers);
        return rse_read_count(s, "intermediate_size", NULL, RSE_WIDTH_MAX, &config->mlp_width, err);
    }
    RSE_TRY(rse_read_experts(s, "num_experts", "num_experts_per_tok", "moe_intermediate_size", moe, err));
    RSE_TRY(rse_read_count_or(s, "shared_expert_intermediate_size", NULL, 0, RSE_WIDTH_MAX, &moe->shared_width,
                              err));
    moe->shared_gate = true;
    moe->normalise = true;
    moe->scale = 1.0f;
    RSE_TRY(rse_json_get_bool(s->text, where, "norm_topk_prob", &moe->normalise, err));
    RSE_TRY(rse_json_get_int(s->text, where, "decoder_sparse_step", 1, RSE_CONFIG_LAYERS, &step, err));
    RSE_TRY(rse_json_get(s->text, where, "mlp_only_layers", RSE_JSON_ARRAY, &dense, err));
    for (int32_t i = 0; i < config->layers; i++) {
        config->ffn[i] = (i + 1) % step == 0 ? RSE_LAYER_MOE : RSE_LAYER_MLP;
    }
    for (size_t i = 0; i < rse_json_count(dense); i++) {
        const rse_json *item = rse_json_item(dense, i);
        int64_t layer = rse_json_integer(item);
        if (rse_json_kind(item) != RSE_JSON_INTEGER || layer < 0 || layer >= config->layers) {
            return rse_fail(err, RSE_ERROR_FORMAT, "%s: mlp_only_layers has an item that is no layer in 0..%d",
                            where, config->layers - 1);
        }
        config->ffn[layer] = RSE_LAYER_MLP;
    }
    return memchr(config->ffn, RSE_LAYER_MLP, (size_t)config->layers) == NULL
               ? RSE_OK
               : rse_read_count(s, "intermediate_size", NULL, RSE_WIDTH_MAX, &config->mlp_width, err);
}

rse_status rse_read_qwen3_5(const rse_source *s, rse_config *config, rse_error *err) {
    rse_config_ssm *ssm = &config->ssm;
    RSE_TRY(read_qwen35_layers(s, config, err));
    RSE_TRY(read_feed_forward(s, config, err));
    config->mlp_act = RSE_ACT_SILU;
    RSE_TRY(rse_read_act(s, "hidden_act", 1 << RSE_ACT_SILU, &config->mlp_act, err));
    RSE_TRY(rse_read_eps(s, (const char *const[]){"rms_norm_eps", NULL}, &config->norm_eps, err));
    config->norm_plus_one = true;

    RSE_TRY(rse_read_count(s, "linear_num_key_heads", NULL, RSE_HEADS_MAX, &ssm->key_heads, err));
    RSE_TRY(rse_read_count(s, "linear_num_value_heads", NULL, RSE_HEADS_MAX, &ssm->value_heads, err));
    RSE_TRY(rse_read_count(s, "linear_key_head_dim", NULL, RSE_HEAD_DIM_MAX, &ssm->d_k, err));
    RSE_TRY(rse_read_count(s, "linear_value_head_dim", NULL, RSE_HEAD_DIM_MAX, &ssm->d_v, err));
    RSE_TRY(rse_read_multiple("linear_num_value_heads", ssm->value_heads, "linear_num_key_heads",
                              ssm->key_heads, err));
    RSE_TRY(rse_read_conv(s, "linear_conv_kernel_dim", ssm, err));
    ssm->gate_act = RSE_ACT_SILU;
    RSE_TRY(rse_read_act(s, "output_gate_type", 1 << RSE_ACT_SILU | 1 << RSE_ACT_SIGMOID, &ssm->gate_act, err));

    config->attention.qk_norm = true;
    config->attention.output_gate = true;
    RSE_TRY(rse_json_get_bool(s->text, where, "attn_output_gate", &config->attention.output_gate, err));
    RSE_TRY(rse_read_heads(s, &config->attention, err));
    RSE_TRY(rse_read_rope(s, 0.25, &config->attention, err));
    return rse_read_mtp(s, "mtp_num_hidden_layers", config, err);
}
