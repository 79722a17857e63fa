/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.json of the text part of GLM-5.3-Flash. Its attention is sparse: an indexer selects index_topk
 * positions. Up to that length it selects all, and that is how far such a model is run here.
 */
#include "load/config_read.h"

#include <string.h>

static const char where[] = RSE_CONFIG_WHERE;

static rse_status read_layers(const rse_source *s, rse_config *config, rse_error *err) {
    int32_t layers = 0;
    const rse_json *types = NULL;
    RSE_TRY(rse_read_count(s, "num_hidden_layers", NULL, RSE_CONFIG_LAYERS, &layers, err));
    RSE_TRY(rse_json_get(s->text, where, "layer_types", RSE_JSON_ARRAY, &types, err));
    if (types != NULL && rse_json_count(types) != (size_t)layers) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: layer_types lists %zu of %d layers", where,
                        rse_json_count(types), (int)layers);
    }
    for (int32_t i = 0; i < layers; i++) {
        const char *type = rse_json_string(rse_json_item(types, (size_t)i), NULL);
        bool linear = types == NULL ? i % 4 != 3 : type != NULL && strcmp(type, "linear_attention") == 0;
        bool known = types == NULL || linear ||
                     (type != NULL &&
                      (strcmp(type, "deepseek_sparse_attention") == 0 || strcmp(type, "full_attention") == 0));
        int32_t kind = !known ? 0 : linear ? RSE_LAYER_KDA : RSE_LAYER_MLA;
        RSE_TRY(rse_read_layer(config, "layer_types", kind, type != NULL ? type : "", 0, err));
    }
    return RSE_OK;
}

static rse_status read_kda(const rse_source *s, rse_config_ssm *ssm, rse_error *err) {
    const rse_json *linear = NULL;
    RSE_TRY(rse_json_get(s->text, where, "linear_attn_config", RSE_JSON_OBJECT, &linear, err));
    rse_source at = {s->root, linear != NULL ? linear : s->text};
    bool own = linear != NULL;
    RSE_TRY(rse_read_count(&at, own ? "num_heads" : "linear_num_heads", NULL, RSE_HEADS_MAX, &ssm->value_heads,
                           err));
    RSE_TRY(rse_read_count(&at, own ? "head_dim" : "linear_head_dim", NULL, RSE_HEAD_DIM_MAX, &ssm->d_k, err));
    ssm->key_heads = ssm->value_heads;
    ssm->d_v = ssm->d_k;
    ssm->gate_act = RSE_ACT_SIGMOID;
    ssm->gate_lower_bound = -5.0f;
    RSE_TRY(rse_read_real(&at, own ? "gate_lower_bound" : "linear_lower_bound", -1e3, -1e-3,
                          &ssm->gate_lower_bound, err));
    return rse_read_conv(&at, own ? "short_conv_kernel_size" : "linear_conv_kernel_dim", ssm, err);
}

static rse_status read_router(const rse_source *s, rse_config_moe *moe, rse_error *err) {
    int32_t shared = 1;
    RSE_TRY(rse_read_experts(s, "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", moe, err));
    RSE_TRY(rse_read_count_or(s, "n_shared_experts", NULL, 0, 64, &shared, err));
    moe->shared_width = shared * moe->width;
    moe->sigmoid = moe->correction = moe->normalise = true;
    moe->scale = 1.0f;
    RSE_TRY(rse_json_get_bool(s->text, where, "norm_topk_prob", &moe->normalise, err));
    RSE_TRY(rse_read_real(s, "routed_scaling_factor", 1e-6, 1e6, &moe->scale, err));
    return rse_read_one_group(s, "n_group", err);
}

rse_status rse_read_glm5_next(const rse_source *s, rse_config *config, rse_error *err) {
    int32_t selected = 2048;
    RSE_TRY(read_layers(s, config, err));
    RSE_TRY(read_kda(s, &config->ssm, err));
    RSE_TRY(rse_read_eps(s, (const char *const[]){"rms_norm_eps", NULL}, &config->norm_eps, err));
    RSE_TRY(rse_read_latent(s, &config->attention, err));
    config->attention.latent_eps = config->norm_eps;
    RSE_TRY(rse_read_ffn_layers(s, 3, config, err));
    if (memchr(config->ffn, RSE_LAYER_MOE, (size_t)config->layers) != NULL) {
        RSE_TRY(read_router(s, &config->moe, err));
    }
    config->mlp_act = RSE_ACT_SILU;
    config->act_limit = 10.0f;
    RSE_TRY(rse_read_act(s, "hidden_act", 1 << RSE_ACT_SILU, &config->mlp_act, err));
    RSE_TRY(rse_read_real(s, "swiglu_limit", 1e-3, 1e6, &config->act_limit, err));
    config->residual = RSE_RESIDUAL_STREAMS;
    config->streams = 4;
    config->stream_iterations = 20;
    config->stream_eps = 1e-6f;
    RSE_TRY(rse_read_count_or(s, "hc_mult", NULL, 1, RSE_STREAMS_MAX, &config->streams, err));
    RSE_TRY(rse_read_count_or(s, "hc_sinkhorn_iters", NULL, 1, 1000, &config->stream_iterations, err));
    RSE_TRY(rse_read_real(s, "hc_eps", 1e-12, 0.1, &config->stream_eps, err));
    RSE_TRY(rse_read_count_or(s, "index_topk", NULL, 1, INT32_MAX, &selected, err));
    bool longer = config->max_positions == 0 || config->max_positions > selected;
    config->max_positions = longer ? selected : config->max_positions;
    return RSE_OK;
}
