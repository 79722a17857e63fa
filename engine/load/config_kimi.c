/* SPDX-License-Identifier: Apache-2.0 */
/* config.json of Kimi-Linear: KDA, MLA without rotation, experts behind some dense layers. */
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

static rse_status read_mla(const rse_source *s, rse_config_attention *a, rse_error *err) {
    bool without = true;
    RSE_TRY(rse_json_get_bool(s->text, where, "mla_use_nope", &without, err));
    if (!without) {
        return rse_fail(err, RSE_ERROR_UNSUPPORTED, "%s: mla_use_nope is false, supported: true", where);
    }
    RSE_TRY(rse_read_off(s, "attention_bias", err));
    RSE_TRY(rse_read_count(s, "num_attention_heads", NULL, RSE_HEADS_MAX, &a->q_heads, err));
    RSE_TRY(rse_read_count(s, "kv_lora_rank", NULL, 4096, &a->kv_latent, err));
    RSE_TRY(rse_read_count_or(s, "q_lora_rank", NULL, 1, RSE_WIDTH_MAX, &a->q_latent, err));
    RSE_TRY(rse_read_count(s, "qk_nope_head_dim", NULL, RSE_HEAD_DIM_MAX, &a->nope, err));
    RSE_TRY(rse_read_count_or(s, "qk_rope_head_dim", NULL, 0, RSE_HEAD_DIM_MAX, &a->shared, err));
    RSE_TRY(rse_read_count(s, "v_head_dim", NULL, RSE_HEAD_DIM_MAX, &a->v_dim, err));
    a->kv_heads = 1;
    a->head_dim = a->kv_latent + a->shared;
    return RSE_OK;
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

/* Experts from layer first_k_dense_replace on, or as mlp_layer_types says. */
static rse_status read_feed_forward(const rse_source *s, rse_config *config, rse_error *err) {
    int32_t dense = 1;
    const rse_json *types = NULL;
    RSE_TRY(rse_read_count_or(s, "first_k_dense_replace", NULL, 0, RSE_CONFIG_LAYERS, &dense, err));
    RSE_TRY(rse_read_one_group(s, "moe_layer_freq", err));
    RSE_TRY(rse_json_get(s->text, where, "mlp_layer_types", RSE_JSON_ARRAY, &types, err));
    if (types != NULL && rse_json_count(types) != (size_t)config->layers) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: mlp_layer_types lists %zu of %d layers", where,
                        rse_json_count(types), (int)config->layers);
    }
    for (int32_t i = 0; i < config->layers; i++) {
        const char *type = rse_json_string(rse_json_item(types, (size_t)i), NULL);
        bool experts = types == NULL ? i >= dense : type != NULL && strcmp(type, "sparse") == 0;
        if (types != NULL && !experts && (type == NULL || strcmp(type, "dense") != 0)) {
            return rse_fail(err, RSE_ERROR_FORMAT, "%s: item %d of mlp_layer_types is neither dense nor sparse",
                            where, (int)i);
        }
        config->ffn[i] = experts ? RSE_LAYER_MOE : RSE_LAYER_MLP;
    }
    if (memchr(config->ffn, RSE_LAYER_MLP, (size_t)config->layers) != NULL) {
        RSE_TRY(rse_read_count(s, "intermediate_size", NULL, RSE_WIDTH_MAX, &config->mlp_width, err));
    }
    return memchr(config->ffn, RSE_LAYER_MOE, (size_t)config->layers) == NULL
               ? RSE_OK
               : read_router(s, &config->moe, err);
}

rse_status rse_read_kimi_linear(const rse_source *s, rse_config *config, rse_error *err) {
    const rse_json *linear = NULL;
    int64_t positions = 0;
    RSE_TRY(rse_json_get(s->text, where, "linear_attn_config", RSE_JSON_OBJECT, &linear, err));
    RSE_TRY(rse_json_get_int(s->text, where, "model_max_length", 1, INT32_MAX, &positions, err));
    config->max_positions = positions > 0 ? (int32_t)positions : config->max_positions;
    RSE_TRY(read_layers(s, linear, config, err));
    RSE_TRY(read_kda(s, linear, &config->ssm, err));
    RSE_TRY(read_mla(s, &config->attention, err));
    RSE_TRY(read_feed_forward(s, config, err));
    config->mlp_act = RSE_ACT_SILU;
    RSE_TRY(rse_read_act(s, "hidden_act", 1 << RSE_ACT_SILU, &config->mlp_act, err));
    RSE_TRY(rse_read_off(s, "num_nextn_predict_layers", err));
    return rse_read_eps(s, (const char *const[]){"rms_norm_eps", NULL}, &config->norm_eps, err);
}
