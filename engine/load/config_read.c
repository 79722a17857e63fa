/* SPDX-License-Identifier: Apache-2.0 */
/* What the families' readers of config.json share. */
#include "load/config_read.h"

#include <replayssm/replayssm.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char where[] = RSE_CONFIG_WHERE;

/* ---- Helpers ------------------------------------------------------------------------------------------ */

/* A count in [1, high] that must be there; `other` is a second spelling of the key or NULL. */
rse_status rse_read_count(const rse_source *s, const char *key, const char *other, int64_t high, int32_t *out,
                          rse_error *err) {
    int64_t value = 0;
    if (other != NULL && rse_json_kind(rse_json_member(s->text, key)) == RSE_JSON_NULL &&
        rse_json_kind(rse_json_member(s->text, other)) != RSE_JSON_NULL) {
        key = other;
    }
    RSE_TRY(rse_json_need(s->text, where, key, err));
    RSE_TRY(rse_json_get_int(s->text, where, key, 1, high, &value, err));
    *out = (int32_t)value;
    return RSE_OK;
}

rse_status rse_read_count_or(const rse_source *s, const char *key, const char *other, int64_t low, int64_t high,
                             int32_t *out, rse_error *err) {
    int64_t value = *out;
    if (other != NULL) {
        RSE_TRY(rse_json_get_int(s->text, where, other, low, high, &value, err));
    }
    RSE_TRY(rse_json_get_int(s->text, where, key, low, high, &value, err));
    *out = (int32_t)value;
    return RSE_OK;
}

rse_status rse_read_real(const rse_source *s, const char *key, double low, double high, float *out,
                         rse_error *err) {
    double value = (double)*out;
    RSE_TRY(rse_json_get_number(s->text, where, key, low, high, &value, err));
    *out = (float)value;
    return RSE_OK;
}

rse_status rse_read_multiple(const char *what, int32_t value, const char *of, int32_t divisor, rse_error *err) {
    return value % divisor == 0
               ? RSE_OK
               : rse_fail(err, RSE_ERROR_FORMAT, "%s: %s is %d, not a multiple of %s, which is %d", where, what,
                          (int)value, of, (int)divisor);
}

/* An activation by any of its names; `allowed` is a mask of 1 << RSE_ACT_*. Absent: *out stays. */
rse_status rse_read_act(const rse_source *s, const char *key, int allowed, int32_t *out, rse_error *err) {
    static const struct {
        const char *name;
        int32_t act;
    } acts[] = {{"silu", RSE_ACT_SILU},
                {"swish", RSE_ACT_SILU},
                {"sigmoid", RSE_ACT_SIGMOID},
                {"relu2", RSE_ACT_RELU2},
                {"situ", RSE_ACT_SITU}};
    enum { ACTS = sizeof acts / sizeof acts[0] };
    const char *name = NULL;
    RSE_TRY(rse_json_get_string(s->text, where, key, &name, err));
    char known[64] = "";
    for (int i = 0; name != NULL && i < ACTS; ++i) {
        if ((allowed >> acts[i].act & 1) == 0) {
            continue;
        }
        if (strcmp(name, acts[i].name) == 0) {
            *out = acts[i].act;
            return RSE_OK;
        }
        size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s%s", n > 0 ? ", " : "", acts[i].name);
    }
    return name == NULL ? RSE_OK
                        : rse_fail(err, RSE_ERROR_UNSUPPORTED, "%s: %s is %.64s, supported: %s", where, key,
                                   name, known);
}

/* A feature this engine does not have must be off. */
rse_status rse_read_off(const rse_source *s, const char *key, rse_error *err) {
    const rse_json *value = rse_json_member(s->text, key);
    int32_t kind = rse_json_kind(value);
    bool off = kind == RSE_JSON_NULL || (kind == RSE_JSON_BOOL && !rse_json_bool(value)) ||
               (kind == RSE_JSON_INTEGER && rse_json_integer(value) == 0);
    return off ? RSE_OK
               : rse_fail(err, RSE_ERROR_UNSUPPORTED, "%s: %s is set, which is not supported", where, key);
}

static rse_status add_eos(const rse_json *value, const char *file, rse_config *config, rse_error *err) {
    int64_t id = rse_json_integer(value);
    if (rse_json_kind(value) != RSE_JSON_INTEGER || id < 0 || id >= config->vocab) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: an eos_token_id is no id in 0..%d", file,
                        (int)config->vocab - 1);
    }
    if (rse_config_is_eos(config, (int32_t)id)) {
        return RSE_OK;
    }
    if (config->eos_count == RSE_CONFIG_EOS) {
        return rse_fail(err, RSE_ERROR_UNSUPPORTED, "%s: more than %d end tokens", file, RSE_CONFIG_EOS);
    }
    config->eos[config->eos_count++] = (int32_t)id;
    return RSE_OK;
}

/* Adds the eos_token_id of an object, a number or a list, to what is known already: no file replaces another.
 */
rse_status rse_read_end_tokens(const rse_json *object, const char *file, rse_config *config, rse_error *err) {
    const rse_json *value = rse_json_member(object, "eos_token_id");
    if (rse_json_kind(value) != RSE_JSON_ARRAY) {
        return rse_json_kind(value) == RSE_JSON_NULL ? RSE_OK : add_eos(value, file, config, err);
    }
    for (size_t i = 0; i < rse_json_count(value); ++i) {
        RSE_TRY(add_eos(rse_json_item(value, i), file, config, err));
    }
    return RSE_OK;
}

/* ---- Layers ------------------------------------------------------------------------------------------- */

/* The kind of a layer by its letter or word; "recurrent" becomes the family's. 0 for an unknown one. */
enum { LAYER_RECURRENT = 100 };
static const struct {
    char letter;
    const char *words[2];
    int32_t kind;
} layer_names[] = {{'M', {"mamba", "linear_attention"}, LAYER_RECURRENT},
                   {'*', {"attention", "full_attention"}, RSE_LAYER_ATTENTION},
                   {'-', {"mlp", "mlp"}, RSE_LAYER_MLP},
                   {'E', {"moe", "moe"}, RSE_LAYER_MOE}};

rse_status rse_read_layer(rse_config *config, const char *key, int32_t kind, const char *name,
                          int32_t recurrent, rse_error *err) {
    if (kind == 0) {
        return rse_fail(err, RSE_ERROR_UNSUPPORTED, "%s: layer %d of %s is \"%.32s\", which is not known",
                        where, (int)config->layers, key, name);
    }
    if (config->layers == RSE_CONFIG_LAYERS) {
        return rse_fail(err, RSE_ERROR_UNSUPPORTED, "%s: %s has more than %d layers", where, key,
                        RSE_CONFIG_LAYERS);
    }
    config->layer[config->layers++] = (uint8_t)(kind == LAYER_RECURRENT ? recurrent : kind);
    return RSE_OK;
}

rse_status rse_read_layer_list(rse_config *config, const char *key, const rse_json *list, int32_t recurrent,
                               rse_error *err) {
    for (size_t i = 0; i < rse_json_count(list); ++i) {
        const char *word = rse_json_string(rse_json_item(list, i), NULL);
        int32_t kind = 0;
        for (size_t j = 0; word != NULL && j < sizeof layer_names / sizeof layer_names[0]; ++j) {
            bool same =
                strcmp(word, layer_names[j].words[0]) == 0 || strcmp(word, layer_names[j].words[1]) == 0;
            kind = same ? layer_names[j].kind : kind;
        }
        RSE_TRY(rse_read_layer(config, key, kind, word != NULL ? word : "", recurrent, err));
    }
    return RSE_OK;
}

rse_status rse_read_layer_pattern(rse_config *config, const char *key, const char *pattern, int32_t recurrent,
                                  rse_error *err) {
    for (; *pattern != '\0'; ++pattern) {
        int32_t kind = 0;
        for (size_t j = 0; j < sizeof layer_names / sizeof layer_names[0]; ++j) {
            kind = *pattern == layer_names[j].letter ? layer_names[j].kind : kind;
        }
        char name[2] = {*pattern, '\0'};
        RSE_TRY(rse_read_layer(config, key, kind, name, recurrent, err));
    }
    return RSE_OK;
}

/* ---- Parts that families share ------------------------------------------------------------------------ */

/* The maker's choice for the recurrent states, under either of its names. */
static rse_status read_state_dtype(const rse_source *s, rse_config *config, rse_error *err) {
    static const struct {
        const char *name;
        int32_t dtype;
    } known[] = {{"float32", RSSM_DTYPE_F32}, {"float16", RSSM_DTYPE_F16}, {"bfloat16", RSSM_DTYPE_BF16}, {"auto", RSSM_DTYPE_DEFAULT}};
    const char *dtype = "auto";
    RSE_TRY(rse_json_get_string(s->text, where, "mamba_ssm_dtype", &dtype, err));
    RSE_TRY(rse_json_get_string(s->text, where, "mamba_ssm_cache_dtype", &dtype, err));
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(dtype, known[i].name) == 0) {
            config->state_dtype = known[i].dtype;
            return RSE_OK;
        }
    }
    return rse_fail(err, RSE_ERROR_UNSUPPORTED,
                    "%s: the format of the recurrent states is '%.32s'; known are float32, float16, bfloat16 and auto", where,
                    dtype);
}

rse_status rse_read_common(const rse_source *s, rse_config *config, rse_error *err) {
    RSE_TRY(rse_read_count(s, "vocab_size", NULL, RSE_VOCABULARY_MAX, &config->vocab, err));
    RSE_TRY(rse_read_count(s, "hidden_size", NULL, RSE_WIDTH_MAX, &config->hidden, err));
    int64_t positions = 0;
    int64_t bos = -1;
    RSE_TRY(rse_json_get_int(s->text, where, "max_position_embeddings", 1, INT32_MAX, &positions, err));
    RSE_TRY(rse_json_get_int(s->text, where, "bos_token_id", 0, config->vocab - 1, &bos, err));
    config->max_positions = (int32_t)positions;
    config->bos = (int32_t)bos;
    RSE_TRY(rse_json_get_bool(s->root, where, "tie_word_embeddings", &config->tied, err));
    RSE_TRY(rse_json_get_bool(s->text, where, "tie_word_embeddings", &config->tied, err));
    RSE_TRY(rse_json_get_bool(s->text, where, "mlp_bias", &config->mlp_bias, err));
    const char *dtype = "";
    RSE_TRY(rse_json_get_string(s->root, where, "torch_dtype", &dtype, err));
    RSE_TRY(rse_json_get_string(s->text, where, "torch_dtype", &dtype, err));
    RSE_TRY(rse_json_get_string(s->root, where, "dtype", &dtype, err));
    RSE_TRY(rse_json_get_string(s->text, where, "dtype", &dtype, err));
    snprintf(config->dtype, sizeof config->dtype, "%s", dtype);
    RSE_TRY(read_state_dtype(s, config, err));
    RSE_TRY(rse_read_off(s, "use_sliding_window", err));
    const rse_json *window = rse_json_member(s->text, "use_sliding_window");
    if (rse_json_kind(window) == RSE_JSON_NULL) { /* an explicit false makes the width meaningless */
        RSE_TRY(rse_read_off(s, "sliding_window", err));
    }
    RSE_TRY(rse_read_end_tokens(s->root, where, config, err));
    return s->text == s->root ? RSE_OK : rse_read_end_tokens(s->text, where, config, err);
}

rse_status rse_read_heads(const rse_source *s, rse_config_attention *a, rse_error *err) {
    RSE_TRY(rse_read_count(s, "num_attention_heads", NULL, RSE_HEADS_MAX, &a->q_heads, err));
    int64_t kv_heads = a->q_heads;
    RSE_TRY(rse_json_get_int(s->text, where, "num_key_value_heads", 1, RSE_HEADS_MAX, &kv_heads, err));
    a->kv_heads = (int32_t)kv_heads;
    RSE_TRY(rse_read_count(s, "head_dim", "attention_head_dim", RSE_HEAD_DIM_MAX, &a->head_dim, err));
    RSE_TRY(rse_json_get_bool(s->text, where, "attention_bias", &a->bias, err));
    return rse_read_multiple("num_attention_heads", a->q_heads, "num_key_value_heads", a->kv_heads, err);
}

/* The first of several spellings that is there; its value must lie in (0, 0.1]. */
rse_status rse_read_eps(const rse_source *s, const char *const *keys, float *out, rse_error *err) {
    const char *key = keys[0];
    for (; *keys != NULL; ++keys) {
        if (rse_json_kind(rse_json_member(s->text, *keys)) != RSE_JSON_NULL) {
            key = *keys;
            break;
        }
    }
    double eps = 0;
    RSE_TRY(rse_json_need(s->text, where, key, err));
    RSE_TRY(rse_json_get_number(s->text, where, key, 1e-12, 0.1, &eps, err));
    *out = (float)eps;
    return RSE_OK;
}

/* Rotary keys from rope_parameters (transformers 5) or from the object itself (before). */
rse_status rse_read_rope(const rse_source *s, double factor, rse_config_attention *a, rse_error *err) {
    const rse_json *groups[3] = {s->text, NULL, NULL};
    RSE_TRY(rse_json_get(s->text, where, "rope_scaling", RSE_JSON_OBJECT, &groups[1], err));
    RSE_TRY(rse_json_get(s->text, where, "rope_parameters", RSE_JSON_OBJECT, &groups[2], err));
    double theta = 0;
    for (int i = 0; i < 3; ++i) { /* the later one wins */
        const char *type = "default";
        if (groups[i] == NULL) {
            continue;
        }
        RSE_TRY(rse_json_get_number(groups[i], where, "rope_theta", 1, 1e15, &theta, err));
        RSE_TRY(rse_json_get_number(groups[i], where, "partial_rotary_factor", 0, 1, &factor, err));
        if (i > 0) {
            RSE_TRY(rse_json_get_string(groups[i], where, "type", &type, err));
            RSE_TRY(rse_json_get_string(groups[i], where, "rope_type", &type, err));
        }
        if (strcmp(type, "default") != 0) {
            return rse_fail(err, RSE_ERROR_UNSUPPORTED, "%s: rope_type is %.32s, supported: default", where,
                            type);
        }
    }
    if (theta == 0) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: rope_theta is missing", where);
    }
    a->rope_theta = theta;
    a->rotary = (int32_t)(a->head_dim * factor);
    if (a->rotary < 2 || a->rotary % 2 != 0) {
        return rse_fail(err, RSE_ERROR_FORMAT,
                        "%s: partial_rotary_factor %g of head_dim %d gives %d, not an even number", where,
                        factor, (int)a->head_dim, (int)a->rotary);
    }
    return RSE_OK;
}

rse_status rse_read_conv(const rse_source *s, const char *key, rse_config_ssm *ssm, rse_error *err) {
    int64_t width = 0;
    RSE_TRY(rse_json_need(s->text, where, key, err));
    RSE_TRY(rse_json_get_int(s->text, where, key, 2, 5, &width, err));
    ssm->conv_width = (int32_t)width;
    return RSE_OK;
}

rse_status rse_read_mtp(const rse_source *s, const char *key, rse_config *config, rse_error *err) {
    int64_t blocks = 0;
    RSE_TRY(rse_json_get_int(s->text, where, key, 0, 8, &blocks, err));
    config->mtp_blocks = (int32_t)blocks;
    return RSE_OK;
}

rse_status rse_read_experts(const rse_source *s, const char *experts, const char *used, const char *width,
                            rse_config_moe *moe, rse_error *err) {
    RSE_TRY(rse_read_count(s, experts, "num_local_experts", RSE_EXPERTS_MAX, &moe->experts, err));
    RSE_TRY(rse_read_count(s, used, "num_experts_per_tok", moe->experts, &moe->used, err));
    return rse_read_count(s, width, NULL, RSE_WIDTH_MAX, &moe->width, err);
}

rse_status rse_read_one_group(const rse_source *s, const char *key, rse_error *err) {
    int64_t groups = 1;
    RSE_TRY(rse_json_get_int(s->text, where, key, 0, RSE_EXPERTS_MAX, &groups, err));
    return groups <= 1 ? RSE_OK
                       : rse_fail(err, RSE_ERROR_UNSUPPORTED, "%s: %s is %lld, supported: 1", where, key,
                                  (long long)groups);
}

rse_status rse_read_latent(const rse_source *s, rse_config_attention *a, rse_error *err) {
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
    a->latent_eps = 1e-6f;
    return RSE_OK;
}

rse_status rse_read_ffn_layers(const rse_source *s, int32_t dense, rse_config *config, rse_error *err) {
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
    return memchr(config->ffn, RSE_LAYER_MLP, (size_t)config->layers) == NULL
               ? RSE_OK
               : rse_read_count(s, "intermediate_size", NULL, RSE_WIDTH_MAX, &config->mlp_width, err);
}
