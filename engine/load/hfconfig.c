/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A new family adds one reader and its rows in `families`. What families share (end tokens, layer lists, rotary
 * keys, limits) is read by the helpers above them.
 */
#include "load/hfconfig.h"

#include "base/file.h"
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char where[] = "config.json";

/* Limits that keep every product of two sizes far from the end of int32 or, where it can be larger, of int64.
 */
enum { VOCAB_MAX = 1 << 24, WIDTH_MAX = 1 << 20, HEADS_MAX = 4096, HEAD_DIM_MAX = 1024, FILE_MAX = 1 << 24 };

typedef struct source {
    const rse_json *root;
    const rse_json *text; /* text_config, llm_config, or the root */
} source;

/* ---- Helpers ------------------------------------------------------------------------------------------ */

/* A count in [1, high] that must be there; `other` is a second spelling of the key or NULL. */
static rse_status need_count(const source *s, const char *key, const char *other, int64_t high, int32_t *out,
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

static rse_status need_multiple(const char *what, int32_t value, const char *of, int32_t divisor,
                                rse_error *err) {
    return value % divisor == 0
               ? RSE_OK
               : rse_fail(err, RSE_ERROR_FORMAT, "%s: %s is %d, not a multiple of %s, which is %d", where, what,
                          (int)value, of, (int)divisor);
}

/* An activation by any of its names; `allowed` is a mask of 1 << RSE_ACT_*. Absent: *out stays. */
static rse_status get_act(const source *s, const char *key, int allowed, int32_t *out, rse_error *err) {
    static const struct {
        const char *name;
        int32_t act;
    } acts[] = {{"silu", RSE_ACT_SILU},
                {"swish", RSE_ACT_SILU},
                {"sigmoid", RSE_ACT_SIGMOID},
                {"relu2", RSE_ACT_RELU2}};
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
static rse_status need_off(const source *s, const char *key, rse_error *err) {
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
static rse_status add_eos_of(const rse_json *object, const char *file, rse_config *config, rse_error *err) {
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
enum { LAYER_RECURRENT = 100, LAYER_MOE };
static const struct {
    char letter;
    const char *words[2];
    int32_t kind;
} layer_names[] = {{'M', {"mamba", "linear_attention"}, LAYER_RECURRENT},
                   {'*', {"attention", "full_attention"}, RSE_LAYER_ATTENTION},
                   {'-', {"mlp", "mlp"}, RSE_LAYER_MLP},
                   {'E', {"moe", "moe"}, LAYER_MOE}};

static rse_status add_layer(rse_config *config, const char *key, int32_t kind, const char *name,
                            int32_t recurrent, rse_error *err) {
    if (kind == LAYER_MOE) {
        return rse_fail(err, RSE_ERROR_UNSUPPORTED,
                        "%s: layer %d of %s is a mixture of experts, which is not supported", where,
                        (int)config->layers, key);
    }
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

static rse_status layers_from_list(rse_config *config, const char *key, const rse_json *list, int32_t recurrent,
                                   rse_error *err) {
    for (size_t i = 0; i < rse_json_count(list); ++i) {
        const char *word = rse_json_string(rse_json_item(list, i), NULL);
        int32_t kind = 0;
        for (size_t j = 0; word != NULL && j < sizeof layer_names / sizeof layer_names[0]; ++j) {
            bool same =
                strcmp(word, layer_names[j].words[0]) == 0 || strcmp(word, layer_names[j].words[1]) == 0;
            kind = same ? layer_names[j].kind : kind;
        }
        RSE_TRY(add_layer(config, key, kind, word != NULL ? word : "", recurrent, err));
    }
    return RSE_OK;
}

static rse_status layers_from_pattern(rse_config *config, const char *key, const char *pattern,
                                      int32_t recurrent, rse_error *err) {
    for (; *pattern != '\0'; ++pattern) {
        int32_t kind = 0;
        for (size_t j = 0; j < sizeof layer_names / sizeof layer_names[0]; ++j) {
            kind = *pattern == layer_names[j].letter ? layer_names[j].kind : kind;
        }
        char name[2] = {*pattern, '\0'};
        RSE_TRY(add_layer(config, key, kind, name, recurrent, err));
    }
    return RSE_OK;
}

/* ---- Parts that families share ------------------------------------------------------------------------ */

static rse_status read_common(const source *s, rse_config *config, rse_error *err) {
    RSE_TRY(need_count(s, "vocab_size", NULL, VOCAB_MAX, &config->vocab, err));
    RSE_TRY(need_count(s, "hidden_size", NULL, WIDTH_MAX, &config->hidden, err));
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
    RSE_TRY(need_off(s, "use_sliding_window", err));
    const rse_json *window = rse_json_member(s->text, "use_sliding_window");
    if (rse_json_kind(window) == RSE_JSON_NULL) { /* an explicit false makes the width meaningless */
        RSE_TRY(need_off(s, "sliding_window", err));
    }
    RSE_TRY(add_eos_of(s->root, where, config, err));
    return s->text == s->root ? RSE_OK : add_eos_of(s->text, where, config, err);
}

static rse_status read_heads(const source *s, rse_config_attention *a, rse_error *err) {
    RSE_TRY(need_count(s, "num_attention_heads", NULL, HEADS_MAX, &a->q_heads, err));
    int64_t kv_heads = a->q_heads;
    RSE_TRY(rse_json_get_int(s->text, where, "num_key_value_heads", 1, HEADS_MAX, &kv_heads, err));
    a->kv_heads = (int32_t)kv_heads;
    RSE_TRY(need_count(s, "head_dim", "attention_head_dim", HEAD_DIM_MAX, &a->head_dim, err));
    RSE_TRY(rse_json_get_bool(s->text, where, "attention_bias", &a->bias, err));
    return need_multiple("num_attention_heads", a->q_heads, "num_key_value_heads", a->kv_heads, err);
}

/* The first of several spellings that is there; its value must lie in (0, 0.1]. */
static rse_status read_eps(const source *s, const char *const *keys, float *out, rse_error *err) {
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
static rse_status read_rope(const source *s, double factor, rse_config_attention *a, rse_error *err) {
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

static rse_status read_conv(const source *s, const char *key, rse_config_ssm *ssm, rse_error *err) {
    int64_t width = 0;
    RSE_TRY(rse_json_need(s->text, where, key, err));
    RSE_TRY(rse_json_get_int(s->text, where, key, 2, 5, &width, err));
    ssm->conv_width = (int32_t)width;
    return RSE_OK;
}

static rse_status read_mtp(const source *s, const char *key, rse_config *config, rse_error *err) {
    int64_t blocks = 0;
    RSE_TRY(rse_json_get_int(s->text, where, key, 0, 8, &blocks, err));
    config->mtp_blocks = (int32_t)blocks;
    return RSE_OK;
}

/* ---- Qwen3.5 ------------------------------------------------------------------------------------------ */

static rse_status read_qwen35_layers(const source *s, rse_config *config, rse_error *err) {
    int32_t layers = 0;
    int64_t interval = 4;
    const rse_json *types = NULL;
    RSE_TRY(need_count(s, "num_hidden_layers", NULL, RSE_CONFIG_LAYERS, &layers, err));
    RSE_TRY(rse_json_get_int(s->text, where, "full_attention_interval", 1, RSE_CONFIG_LAYERS, &interval, err));
    RSE_TRY(rse_json_get(s->text, where, "layer_types", RSE_JSON_ARRAY, &types, err));
    if (types == NULL) {
        for (int32_t i = 0; i < layers; ++i) {
            int32_t kind = (i + 1) % interval == 0 ? RSE_LAYER_ATTENTION : RSE_LAYER_GDN;
            RSE_TRY(add_layer(config, "full_attention_interval", kind, "", 0, err));
        }
        return RSE_OK;
    }
    RSE_TRY(layers_from_list(config, "layer_types", types, RSE_LAYER_GDN, err));
    if (config->layers != layers || rse_config_count(config, RSE_LAYER_MLP) > 0) {
        return rse_fail(err, RSE_ERROR_FORMAT,
                        "%s: layer_types does not list %d layers of attention or linear_attention", where,
                        (int)layers);
    }
    return RSE_OK;
}

static rse_status read_qwen35(const source *s, rse_config *config, rse_error *err) {
    rse_config_ssm *ssm = &config->ssm;
    RSE_TRY(need_off(s, "num_experts", err));
    RSE_TRY(read_qwen35_layers(s, config, err));
    RSE_TRY(need_count(s, "intermediate_size", NULL, WIDTH_MAX, &config->mlp_width, err));
    config->mlp_act = RSE_ACT_SILU;
    RSE_TRY(get_act(s, "hidden_act", 1 << RSE_ACT_SILU, &config->mlp_act, err));
    RSE_TRY(read_eps(s, (const char *const[]){"rms_norm_eps", NULL}, &config->norm_eps, err));
    config->norm_plus_one = true;

    RSE_TRY(need_count(s, "linear_num_key_heads", NULL, HEADS_MAX, &ssm->key_heads, err));
    RSE_TRY(need_count(s, "linear_num_value_heads", NULL, HEADS_MAX, &ssm->value_heads, err));
    RSE_TRY(need_count(s, "linear_key_head_dim", NULL, HEAD_DIM_MAX, &ssm->d_k, err));
    RSE_TRY(need_count(s, "linear_value_head_dim", NULL, HEAD_DIM_MAX, &ssm->d_v, err));
    RSE_TRY(
        need_multiple("linear_num_value_heads", ssm->value_heads, "linear_num_key_heads", ssm->key_heads, err));
    RSE_TRY(read_conv(s, "linear_conv_kernel_dim", ssm, err));
    ssm->gate_act = RSE_ACT_SILU;
    RSE_TRY(get_act(s, "output_gate_type", 1 << RSE_ACT_SILU | 1 << RSE_ACT_SIGMOID, &ssm->gate_act, err));

    config->attention.qk_norm = true;
    config->attention.output_gate = true;
    RSE_TRY(rse_json_get_bool(s->text, where, "attn_output_gate", &config->attention.output_gate, err));
    RSE_TRY(read_heads(s, &config->attention, err));
    RSE_TRY(read_rope(s, 0.25, &config->attention, err));
    return read_mtp(s, "mtp_num_hidden_layers", config, err);
}

/* ---- Nemotron-H --------------------------------------------------------------------------------------- */

/* The list and the pattern are two spellings of one thing; num_hidden_layers may disagree with them and is not
 * read. */
static rse_status read_nemotron_layers(const source *s, rse_config *config, rse_error *err) {
    const rse_json *list = NULL;
    const char *pattern = NULL;
    rse_config other = {0};
    RSE_TRY(rse_json_get(s->text, where, "layers_block_type", RSE_JSON_ARRAY, &list, err));
    RSE_TRY(rse_json_get_string(s->text, where, "hybrid_override_pattern", &pattern, err));
    if (list != NULL) {
        RSE_TRY(layers_from_list(config, "layers_block_type", list, RSE_LAYER_MAMBA2, err));
    }
    if (pattern != NULL) {
        rse_config *to = list != NULL ? &other : config;
        RSE_TRY(layers_from_pattern(to, "hybrid_override_pattern", pattern, RSE_LAYER_MAMBA2, err));
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
static rse_status read_time_step(const source *s, rse_config_ssm *ssm, rse_error *err) {
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

static rse_status read_mamba2(const source *s, rse_config_ssm *ssm, rse_error *err) {
    bool use_bias = false;
    bool proj_bias = false;
    ssm->conv_bias = true;
    ssm->gate_act = RSE_ACT_SILU;
    RSE_TRY(need_count(s, "n_groups", NULL, HEADS_MAX, &ssm->key_heads, err));
    RSE_TRY(need_count(s, "mamba_num_heads", NULL, HEADS_MAX, &ssm->value_heads, err));
    RSE_TRY(need_count(s, "ssm_state_size", NULL, HEAD_DIM_MAX, &ssm->d_k, err));
    RSE_TRY(need_count(s, "mamba_head_dim", NULL, HEAD_DIM_MAX, &ssm->d_v, err));
    RSE_TRY(need_multiple("mamba_num_heads", ssm->value_heads, "n_groups", ssm->key_heads, err));
    RSE_TRY(read_conv(s, "conv_kernel", ssm, err));
    RSE_TRY(rse_json_get_bool(s->text, where, "use_conv_bias", &ssm->conv_bias, err));
    RSE_TRY(rse_json_get_bool(s->text, where, "use_bias", &use_bias, err));
    RSE_TRY(rse_json_get_bool(s->text, where, "mamba_proj_bias", &proj_bias, err));
    ssm->proj_bias = use_bias || proj_bias;
    RSE_TRY(get_act(s, "mamba_hidden_act", 1 << RSE_ACT_SILU, &ssm->gate_act, err));
    return read_time_step(s, ssm, err);
}

static rse_status read_nemotron_h(const source *s, rse_config *config, rse_error *err) {
    RSE_TRY(need_off(s, "block_configs", err));
    RSE_TRY(read_nemotron_layers(s, config, err));
    RSE_TRY(need_count(s, "intermediate_size", NULL, WIDTH_MAX, &config->mlp_width, err));
    config->mlp_act = RSE_ACT_RELU2;
    RSE_TRY(get_act(s, "mlp_hidden_act", 1 << RSE_ACT_RELU2, &config->mlp_act, err));
    RSE_TRY(read_eps(s, (const char *const[]){"layer_norm_epsilon", "norm_eps", "rms_norm_eps", NULL},
                     &config->norm_eps, err));
    RSE_TRY(read_mamba2(s, &config->ssm, err));
    RSE_TRY(read_heads(s, &config->attention, err)); /* no positional encoding, whatever rope keys there are */
    return read_mtp(s, "num_nextn_predict_layers", config, err);
}

/* ---- The table ---------------------------------------------------------------------------------------- */

static const struct family {
    const char *model_type;
    int32_t family;
    rse_status (*read)(const source *s, rse_config *config, rse_error *err);
} families[] = {
    {"qwen3_5", RSE_FAMILY_QWEN35, read_qwen35},
    {"qwen3_5_text", RSE_FAMILY_QWEN35, read_qwen35},
    {"nemotron_h", RSE_FAMILY_NEMOTRON_H, read_nemotron_h},
};
enum { FAMILIES = sizeof families / sizeof families[0] };

static rse_status find_family(const source *s, rse_config *config, const struct family **out, rse_error *err) {
    const char *type = NULL;
    RSE_TRY(rse_json_get_string(s->root, where, "model_type", &type, err));
    RSE_TRY(rse_json_get_string(s->text, where, "model_type", &type, err));
    char known[128] = "";
    for (int i = 0; i < FAMILIES; ++i) {
        if (type != NULL && strcmp(type, families[i].model_type) == 0) {
            snprintf(config->model_type, sizeof config->model_type, "%s", type);
            *out = &families[i];
            return RSE_OK;
        }
        size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s%s", n > 0 ? ", " : "", families[i].model_type);
    }
    return type == NULL ? rse_fail(err, RSE_ERROR_FORMAT, "%s: model_type is missing; known: %s", where, known)
                        : rse_fail(err, RSE_ERROR_UNSUPPORTED,
                                   "%s: model_type %.64s is not supported; known: %s", where, type, known);
}

static rse_status read_root(const rse_json *root, rse_config *config, rse_error *err) {
    if (rse_json_kind(root) != RSE_JSON_OBJECT) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: is no JSON object", where);
    }
    source s = {root, root};
    RSE_TRY(rse_json_get(root, where, "llm_config", RSE_JSON_OBJECT, &s.text, err));
    RSE_TRY(rse_json_get(root, where, "text_config", RSE_JSON_OBJECT, &s.text, err));
    const struct family *family = NULL;
    RSE_TRY(find_family(&s, config, &family, err));
    source top = {root, root};
    RSE_TRY(need_off(&top, "quantization_config", err));
    RSE_TRY(need_off(&s, "quantization_config", err));
    config->family = family->family;
    RSE_TRY(read_common(&s, config, err));
    return family->read(&s, config, err);
}

static rse_status add_generation(const char *text, size_t length, rse_config *config, rse_error *err) {
    static const char file[] = "generation_config.json";
    rse_json *root;
    RSE_TRY(rse_json_parse(text, length, file, &root, err));
    rse_status status = rse_json_kind(root) == RSE_JSON_OBJECT
                            ? add_eos_of(root, file, config, err)
                            : rse_fail(err, RSE_ERROR_FORMAT, "%s: is no JSON object", file);
    rse_json_free(root);
    return status;
}

rse_status rse_config_parse(const char *text, size_t length, const char *generation, size_t generation_length,
                            rse_config *config, rse_error *err) {
    *config = (rse_config){.bos = -1};
    rse_json *root;
    RSE_TRY(rse_json_parse(text, length, where, &root, err));
    rse_status status = read_root(root, config, err);
    rse_json_free(root);
    return status == RSE_OK && generation != NULL ? add_generation(generation, generation_length, config, err)
                                                  : status;
}

rse_status rse_config_load(const char *directory, rse_config *config, rse_error *err) {
    char *path = rse_path_join(directory, where);
    char *generation_path = rse_path_join(directory, "generation_config.json");
    char *text = NULL;
    char *generation = NULL;
    size_t length = 0;
    size_t generation_length = 0;
    rse_status status = path == NULL || generation_path == NULL
                            ? rse_fail(err, RSE_ERROR_MEMORY, "%s: no memory for its name", directory)
                            : rse_file_read(path, FILE_MAX, &text, &length, err);
    if (status == RSE_OK && rse_file_exists(generation_path)) {
        status = rse_file_read(generation_path, FILE_MAX, &generation, &generation_length, err);
    }
    if (status == RSE_OK) {
        status = rse_config_parse(text, length, generation, generation_length, config, err);
    }
    free(path);
    free(generation_path);
    free(text);
    free(generation);
    return status;
}

int32_t rse_config_count(const rse_config *config, int32_t kind) {
    int32_t n = 0;
    for (int32_t i = 0; i < config->layers; ++i) {
        n += config->layer[i] == kind;
    }
    return n;
}

bool rse_config_is_eos(const rse_config *config, int32_t id) {
    for (int32_t i = 0; i < config->eos_count; ++i) {
        if (config->eos[i] == id) {
            return true;
        }
    }
    return false;
}

const char *rse_layer_name(int32_t kind) {
    static const char *const names[] = {"?", "gdn", "mamba2", "attention", "mlp"};
    return kind >= 0 && kind <= RSE_LAYER_MLP ? names[kind] : "?";
}
