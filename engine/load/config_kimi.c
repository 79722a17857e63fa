/* SPDX-License-Identifier: Apache-2.0 */
/* config.json of Kimi-Linear and of the text part of Kimi-K3, which adds to it: a bounded decay gate, full-rank
 * and attention output gates, a bank of earlier residual streams, latent experts, another activation. */
#include "load/config_read.h"

#include <string.h>

static const char where[] = RSE_CONFIG_WHERE;

/* Lists of linear_attn_config count layers from 1; together they must name each layer once. */
static rse_status read_listed_layers(const rse_json *group, const char *key, int32_t kind, rse_config *config,
                                     rse_error *err) {
    const rse_json *list = NULL;
    RSE_TRY(rse_json_need(group, where, key, err));
    RSE_TRY(rse_json_get(group, where, key, RSE_JSON_ARRAY, &list, err));
    for (size_t i = 0; i < rse_json_count(list); i++) {
        const rse_json *item = rse_json_item(list, i);
        int64_t layer = rse_json_integer(item);
        if (rse_json_kind(item) != RSE_JSON_INTEGER || layer < 1 || layer > config->layers ||
            config->layer[layer - 1] != 0) {
            return rse_fail(err, RSE_ERROR_FORMAT,
                            "%s: item %zu of %s is no layer in 1..%d, or one named twice", where, i, key,
                            (int)config->layers);
        }
        config->layer[layer - 1] = (uint8_t)kind;
    }
    return RSE_OK;
}

static rse_status read_layers(const rse_source *s, const rse_json *linear, rse_config *config, rse_error *err) {
    int32_t layers = 0;
    const rse_json *types = NULL;
    RSE_TRY(rse_read_count(s, "num_hidden_layers", NULL, RSE_CONFIG_LAYERS, &layers, err));
    RSE_TRY(rse_json_get(s->text, where, "layer_types", RSE_JSON_ARRAY, &types, err));
    if (linear != NULL) {
        config->layers = layers;
        RSE_TRY(read_listed_layers(linear, "kda_layers", RSE_LAYER_KDA, config, err));
        RSE_TRY(read_listed_layers(linear, "full_attn_layers", RSE_LAYER_MLA, config, err));
    } else {
        RSE_TRY(rse_read_layer_list(config, "layer_types", types, RSE_LAYER_KDA, err));
        for (int32_t i = 0; i < config->layers; i++) {
            config->layer[i] = config->layer[i] == RSE_LAYER_ATTENTION ? RSE_LAYER_MLA : config->layer[i];
        }
    }
    int32_t known = rse_config_count(config, RSE_LAYER_KDA) + rse_config_count(config, RSE_LAYER_MLA);
    return config->layers == layers && known == layers
               ? RSE_OK
               : rse_fail(err, RSE_ERROR_FORMAT, "%s: %d of %d layers are named KDA or full attention", where,
                          (int)known, (int)layers);
}

static rse_status read_kda(const rse_source *s, const rse_json *linear, rse_config_ssm *ssm, rse_error *err) {
    rse_source at = {s->root, linear != NULL ? linear : s->text};
    RSE_TRY(rse_read_count(&at, "num_heads", "linear_num_heads", RSE_HEADS_MAX, &ssm->value_heads, err));
    RSE_TRY(rse_read_count(&at, linear != NULL ? "head_dim" : "linear_head_dim", NULL, RSE_HEAD_DIM_MAX,
                           &ssm->d_k, err));
    ssm->key_heads = ssm->value_heads;
    ssm->d_v = ssm->d_k;
    ssm->gate_act = RSE_ACT_SIGMOID;
    return rse_read_conv(&at, linear != NULL ? "short_conv_kernel_size" : "linear_conv_kernel_dim", ssm, err);
}

static rse_status read_router(const rse_source *s, rse_config_moe *moe, rse_error *err) {
    const char *act = "sigmoid";
    int32_t shared = 0;
    RSE_TRY(rse_read_experts(s, "num_experts", "num_experts_per_token", "moe_intermediate_size", moe, err));
    RSE_TRY(rse_read_count_or(s, "num_shared_experts", "n_shared_experts", 0, 64, &shared, err));
    moe->shared_width = shared * moe->width;
    RSE_TRY(rse_json_get_string(s->text, where, "moe_router_activation_func", &act, err));
    moe->sigmoid = strcmp(act, "sigmoid") == 0;
    if (!moe->sigmoid && strcmp(act, "softmax") != 0) {
        return rse_fail(err, RSE_ERROR_UNSUPPORTED,
                        "%s: moe_router_activation_func is %.32s, supported: sigmoid, softmax", where, act);
    }
    moe->correction = true;
    moe->normalise = true;
    moe->scale = 1.0f;
    RSE_TRY(rse_json_get_bool(s->text, where, "norm_topk_prob", &moe->normalise, err));
    RSE_TRY(rse_json_get_bool(s->text, where, "moe_renormalize", &moe->normalise, err));
    RSE_TRY(rse_read_real(s, "routed_scaling_factor", 1e-6, 1e6, &moe->scale, err));
    RSE_TRY(rse_read_one_group(s, "num_expert_group", err));
    return rse_read_one_group(s, "n_group", err);
}

/* What Kimi-K3 has beyond Kimi-Linear; all off by default. */
static rse_status read_k3(const rse_source *s, const rse_json *linear, rse_config *config, rse_error *err) {
    rse_config_moe *moe = &config->moe;
    RSE_TRY(rse_read_real(s, "gate_lower_bound", -1e3, -1e-3, &config->ssm.gate_lower_bound, err));
    rse_source at = {s->root, linear != NULL ? linear : s->text};
    RSE_TRY(rse_read_real(&at, "gate_lower_bound", -1e3, -1e-3, &config->ssm.gate_lower_bound, err));
    RSE_TRY(rse_json_get_bool(s->text, where, "use_full_rank_gate", &config->ssm.full_gate, err));
    RSE_TRY(rse_json_get_bool(s->text, where, "mla_use_output_gate", &config->attention.latent_gate, err));
    RSE_TRY(rse_read_count_or(s, "attn_res_block_size", NULL, 1, RSE_CONFIG_LAYERS, &config->bank_layers, err));
    config->residual = config->bank_layers > 0 ? RSE_RESIDUAL_BANK : RSE_RESIDUAL_ADD;
    RSE_TRY(rse_read_count_or(s, "routed_expert_hidden_size", NULL, 1, RSE_WIDTH_MAX, &moe->latent, err));
    RSE_TRY(rse_json_get_bool(s->text, where, "latent_moe_use_norm", &moe->latent_norm, err));
    if (config->mlp_act == RSE_ACT_SITU) {
        config->act_limit = 4.0f;
        config->act_limit_up = 25.0f;
        RSE_TRY(rse_read_real(s, "situ_beta", 1e-3, 1e3, &config->act_limit, err));
        RSE_TRY(rse_read_real(s, "situ_linear_beta", 0, 1e6, &config->act_limit_up, err));
    }
    return RSE_OK;
}

rse_status rse_read_kimi_linear(const rse_source *s, rse_config *config, rse_error *err) {
    const rse_json *linear = NULL;
    int64_t positions = 0;
    RSE_TRY(rse_json_get(s->text, where, "linear_attn_config", RSE_JSON_OBJECT, &linear, err));
    RSE_TRY(rse_json_get_int(s->text, where, "model_max_length", 1, INT32_MAX, &positions, err));
    config->max_positions = positions > 0 ? (int32_t)positions : config->max_positions;
    RSE_TRY(read_layers(s, linear, config, err));
    RSE_TRY(read_kda(s, linear, &config->ssm, err));
    RSE_TRY(rse_read_latent(s, &config->attention, err));
    RSE_TRY(rse_read_ffn_layers(s, 1, config, err));
    if (memchr(config->ffn, RSE_LAYER_MOE, (size_t)config->layers) != NULL) {
        RSE_TRY(read_router(s, &config->moe, err));
    }
    config->mlp_act = RSE_ACT_SILU;
    RSE_TRY(rse_read_act(s, "hidden_act", 1 << RSE_ACT_SILU | 1 << RSE_ACT_SITU, &config->mlp_act, err));
    RSE_TRY(read_k3(s, linear, config, err));
    RSE_TRY(rse_read_off(s, "num_nextn_predict_layers", err));
    return rse_read_eps(s, (const char *const[]){"rms_norm_eps", NULL}, &config->norm_eps, err);
}
