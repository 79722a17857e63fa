/* SPDX-License-Identifier: Apache-2.0 */
/* config.json of the Mamba-2 families: Nemotron-H, pure Mamba-2, Granite 4.0-H. */
#include "load/config_read.h"

#include <math.h>
#include <string.h>

static const char where[] = RSE_CONFIG_WHERE;

/* ---- Nemotron-H --------------------------------------------------------------------------------------- */

/* The list and the pattern are two spellings of one thing; num_hidden_layers may disagree with them and is not
 * read. */
static rse_status read_nemotron_layers(const rse_source *s, rse_config *config, rse_error *err) {
    const rse_json *list = NULL;
    const char *pattern = NULL;
    rse_config other = {0};
    RSE_TRY(rse_json_get(s->text, where, "layers_block_type", RSE_JSON_ARRAY, &list, err));
    RSE_TRY(rse_json_get_string(s->text, where, "hybrid_override_pattern", &pattern, err));
    if (list != NULL) {
        RSE_TRY(rse_read_layer_list(config, "layers_block_type", list, RSE_LAYER_MAMBA2, err));
    }
    if (pattern != NULL) {
        rse_config *to = list != NULL ? &other : config;
        RSE_TRY(rse_read_layer_pattern(to, "hybrid_override_pattern", pattern, RSE_LAYER_MAMBA2, err));
    }
    if (list != NULL && pattern != NULL && memcmp(config->layer, other.layer, sizeof other.layer) != 0) {
        return rse_fail(err, RSE_ERROR_FORMAT,
                        "%s: layers_block_type and hybrid_override_pattern list different layers", where);
    }
    return config->layers > 0
               ? RSE_OK
               : rse_fail(err, RSE_ERROR_FORMAT,
                          "%s: neither layers_block_type nor hybrid_override_pattern lists a layer", where);
}

/* Only time_step_limit bounds dt at run time, and without it nothing does. */
static rse_status read_time_step(const rse_source *s, rse_config_ssm *ssm, rse_error *err) {
    const rse_json *limit = NULL;
    RSE_TRY(rse_json_get(s->text, where, "time_step_limit", RSE_JSON_ARRAY, &limit, err));
    double low = 0;
    double high = HUGE_VAL;
    if (limit != NULL) {
        for (size_t i = 0; i < 2; ++i) {
            int32_t kind = rse_json_kind(rse_json_item(limit, i));
            if (rse_json_count(limit) != 2 || (kind != RSE_JSON_INTEGER && kind != RSE_JSON_NUMBER)) {
                return rse_fail(err, RSE_ERROR_FORMAT, "%s: time_step_limit is not two numbers", where);
            }
        }
        low = rse_json_number(rse_json_item(limit, 0));
        high = rse_json_number(rse_json_item(limit, 1));
    }
    if (!(low >= 0 && low < high)) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: time_step_limit is [%g, %g], not 0 <= low < high", where,
                        low, high);
    }
    ssm->dt_min = (float)low;
    ssm->dt_max = (float)high;
    return RSE_OK;
}

/* The keys of a Mamba-2 mixer, which every family spells in its own way. */
typedef struct mixer_keys {
    const char *groups, *heads, *head_dim, *state, *conv, *conv_bias, *proj_bias, *act;
} mixer_keys;

static rse_status read_mixer(const rse_source *s, const mixer_keys *keys, rse_config_ssm *ssm, rse_error *err) {
    bool use_bias = false;
    bool proj_bias = false;
    ssm->conv_bias = true;
    ssm->gate_act = RSE_ACT_SILU;
    RSE_TRY(rse_read_count(s, keys->groups, NULL, RSE_HEADS_MAX, &ssm->key_heads, err));
    RSE_TRY(rse_read_count(s, keys->heads, NULL, RSE_HEADS_MAX, &ssm->value_heads, err));
    RSE_TRY(rse_read_count(s, keys->state, NULL, RSE_HEAD_DIM_MAX, &ssm->d_k, err));
    RSE_TRY(rse_read_count(s, keys->head_dim, NULL, RSE_HEAD_DIM_MAX, &ssm->d_v, err));
    RSE_TRY(rse_read_multiple(keys->heads, ssm->value_heads, keys->groups, ssm->key_heads, err));
    RSE_TRY(rse_read_conv(s, keys->conv, ssm, err));
    RSE_TRY(rse_json_get_bool(s->text, where, keys->conv_bias, &ssm->conv_bias, err));
    RSE_TRY(rse_json_get_bool(s->text, where, "use_bias", &use_bias, err));
    RSE_TRY(rse_json_get_bool(s->text, where, keys->proj_bias, &proj_bias, err));
    ssm->proj_bias = use_bias || proj_bias;
    RSE_TRY(rse_read_act(s, keys->act, 1 << RSE_ACT_SILU, &ssm->gate_act, err));
    return read_time_step(s, ssm, err);
}

/* Experts of the DeepSeek kind: sigmoid scores, a correction that only selects, a factor on the sum. */
static rse_status read_nemotron_experts(const rse_source *s, rse_config_moe *moe, rse_error *err) {
    int32_t shared = 1;
    RSE_TRY(rse_read_experts(s, "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", moe, err));
    RSE_TRY(rse_read_count_or(s, "n_shared_experts", NULL, 0, 64, &shared, err));
    if (shared > 0) {
        RSE_TRY(rse_read_count(s, "moe_shared_expert_intermediate_size", NULL, RSE_WIDTH_MAX,
                               &moe->shared_width, err));
    }
    RSE_TRY(rse_read_count_or(s, "moe_latent_size", NULL, 1, RSE_WIDTH_MAX, &moe->latent, err));
    moe->sigmoid = moe->correction = moe->normalise = true;
    moe->scale = 1.0f;
    RSE_TRY(rse_json_get_bool(s->text, where, "norm_topk_prob", &moe->normalise, err));
    RSE_TRY(rse_read_real(s, "routed_scaling_factor", 1e-6, 1e6, &moe->scale, err));
    return rse_read_one_group(s, "n_group", err);
}

rse_status rse_read_nemotron_h(const rse_source *s, rse_config *config, rse_error *err) {
    static const mixer_keys keys = {"n_groups",    "mamba_num_heads", "mamba_head_dim",  "ssm_state_size",
                                    "conv_kernel", "use_conv_bias",   "mamba_proj_bias", "mamba_hidden_act"};
    RSE_TRY(rse_read_off(s, "block_configs", err));
    RSE_TRY(read_nemotron_layers(s, config, err));
    if (rse_config_count(config, RSE_LAYER_MLP) > 0) {
        RSE_TRY(rse_read_count(s, "intermediate_size", NULL, RSE_WIDTH_MAX, &config->mlp_width, err));
    }
    if (rse_config_count(config, RSE_LAYER_MOE) > 0) {
        RSE_TRY(read_nemotron_experts(s, &config->moe, err));
    }
    config->mlp_act = RSE_ACT_RELU2;
    RSE_TRY(rse_read_act(s, "mlp_hidden_act", 1 << RSE_ACT_RELU2, &config->mlp_act, err));
    RSE_TRY(rse_read_eps(s, (const char *const[]){"layer_norm_epsilon", "norm_eps", "rms_norm_eps", NULL},
                         &config->norm_eps, err));
    RSE_TRY(read_mixer(s, &keys, &config->ssm, err));
    RSE_TRY(
        rse_read_heads(s, &config->attention, err)); /* no positional encoding, whatever rope keys there are */
    return rse_read_mtp(s, "num_nextn_predict_layers", config, err);
}

/* ---- Pure Mamba-2 ------------------------------------------------------------------------------------- */

rse_status rse_read_mamba2(const rse_source *s, rse_config *config, rse_error *err) {
    static const mixer_keys keys = {"n_groups",    "num_heads",     "head_dim", "state_size",
                                    "conv_kernel", "use_conv_bias", "use_bias", "hidden_act"};
    int32_t layers = 0;
    RSE_TRY(rse_read_count(s, "num_hidden_layers", NULL, RSE_CONFIG_LAYERS, &layers, err));
    for (int32_t i = 0; i < layers; i++) {
        RSE_TRY(rse_read_layer(config, "num_hidden_layers", RSE_LAYER_MAMBA2, "", RSE_LAYER_MAMBA2, err));
    }
    if (config->max_positions ==
        0) { /* nothing limits the length of such a model but the engine's own counts */
        config->max_positions = 1 << 20;
    }
    RSE_TRY(rse_read_eps(s, (const char *const[]){"layer_norm_epsilon", NULL}, &config->norm_eps, err));
    return read_mixer(s, &keys, &config->ssm, err);
}

/* ---- Granite 4.0-H ------------------------------------------------------------------------------------ */

static rse_status read_granite_layers(const rse_source *s, rse_config *config, rse_error *err) {
    int32_t layers = 0;
    const rse_json *types = NULL;
    RSE_TRY(rse_read_count(s, "num_hidden_layers", NULL, RSE_CONFIG_LAYERS, &layers, err));
    RSE_TRY(rse_json_get(s->text, where, "layers_block_type", RSE_JSON_ARRAY, &types, err));
    RSE_TRY(rse_json_get(s->text, where, "layer_types", RSE_JSON_ARRAY, &types, err));
    for (int32_t i = 0; types == NULL && i < layers; i++) {
        RSE_TRY(rse_read_layer(config, "num_hidden_layers", RSE_LAYER_MAMBA2, "", RSE_LAYER_MAMBA2, err));
    }
    RSE_TRY(rse_read_layer_list(config, "layer_types", types, RSE_LAYER_MAMBA2, err));
    int32_t others = rse_config_count(config, RSE_LAYER_MLP) + rse_config_count(config, RSE_LAYER_MOE);
    return config->layers == layers && others == 0
               ? RSE_OK
               : rse_fail(err, RSE_ERROR_FORMAT,
                          "%s: layer_types does not list %d layers of mamba or attention", where, (int)layers);
}

static rse_status read_granite_attention(const rse_source *s, rse_config *config, rse_error *err) {
    rse_config_attention *a = &config->attention;
    const char *positions = "nope";
    RSE_TRY(rse_read_count(s, "num_attention_heads", NULL, RSE_HEADS_MAX, &a->q_heads, err));
    a->kv_heads = a->q_heads;
    RSE_TRY(rse_read_count_or(s, "num_key_value_heads", NULL, 1, RSE_HEADS_MAX, &a->kv_heads, err));
    RSE_TRY(rse_read_multiple("num_attention_heads", a->q_heads, "num_key_value_heads", a->kv_heads, err));
    RSE_TRY(rse_read_multiple("hidden_size", config->hidden, "num_attention_heads", a->q_heads, err));
    a->head_dim = config->hidden / a->q_heads;
    RSE_TRY(rse_read_count_or(s, "head_dim", NULL, 1, RSE_HEAD_DIM_MAX, &a->head_dim, err));
    RSE_TRY(rse_json_get_bool(s->text, where, "attention_bias", &a->bias, err));
    RSE_TRY(rse_read_real(s, "attention_multiplier", 1e-9, 1e9, &a->scale, err));
    RSE_TRY(rse_json_get_string(s->text, where, "position_embedding_type", &positions, err));
    if (strcmp(positions, "rope") == 0) {
        return rse_read_rope(s, 1.0, a, err);
    }
    return strcmp(positions, "nope") == 0
               ? RSE_OK
               : rse_fail(err, RSE_ERROR_UNSUPPORTED,
                          "%s: position_embedding_type is %.32s, supported: nope, rope", where, positions);
}

rse_status rse_read_granite(const rse_source *s, rse_config *config, rse_error *err) {
    static const mixer_keys keys = {"mamba_n_groups", "mamba_n_heads",   "mamba_d_head",    "mamba_d_state",
                                    "mamba_d_conv",   "mamba_conv_bias", "mamba_proj_bias", "hidden_act"};
    rse_config_moe *moe = &config->moe;
    RSE_TRY(read_granite_layers(s, config, err));
    RSE_TRY(rse_read_count_or(s, "num_local_experts", NULL, 0, RSE_EXPERTS_MAX, &moe->experts, err));
    if (moe->experts > 0) {
        RSE_TRY(rse_read_experts(s, "num_local_experts", "num_experts_per_tok", "intermediate_size", moe, err));
        RSE_TRY(
            rse_read_count_or(s, "shared_intermediate_size", NULL, 0, RSE_WIDTH_MAX, &moe->shared_width, err));
        moe->normalise = true; /* a softmax over the chosen ones */
        moe->scale = 1.0f;
    } else {
        RSE_TRY(rse_read_count(s, "shared_intermediate_size", NULL, RSE_WIDTH_MAX, &config->mlp_width, err));
    }
    memset(config->ffn, moe->experts > 0 ? RSE_LAYER_MOE : RSE_LAYER_MLP, (size_t)config->layers);
    config->mlp_act = RSE_ACT_SILU;
    RSE_TRY(rse_read_act(s, "hidden_act", 1 << RSE_ACT_SILU, &config->mlp_act, err));
    RSE_TRY(rse_read_eps(s, (const char *const[]){"rms_norm_eps", NULL}, &config->norm_eps, err));
    RSE_TRY(read_mixer(s, &keys, &config->ssm, err));
    RSE_TRY(rse_read_real(s, "embedding_multiplier", 1e-9, 1e9, &config->embedding_scale, err));
    RSE_TRY(rse_read_real(s, "residual_multiplier", 1e-9, 1e9, &config->residual_scale, err));
    RSE_TRY(rse_read_real(s, "logits_scaling", 1e-9, 1e9, &config->logit_divisor, err));
    return read_granite_attention(s, config, err);
}
