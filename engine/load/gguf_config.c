/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metadata as the text of a config.json, which the family's own reader then checks. What is not in the metadata
 * is read off the tensors: the size of the vocabulary, tied embeddings, biases of convolutions, which layers
 * have experts.
 */
#include "load/config_read.h"
#include "load/gguf_model.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { PAIRS_MAX = 64 };

/* The configuration being written. The first failure stays. */
typedef struct writer {
    const rse_gguf *file;
    const char *architecture;
    int32_t layers;
    rse_text *out;
    rse_status status;
    rse_error *err;
    struct {
        const char *key, *name;
    } pair[PAIRS_MAX]; /* keys that were written, and the metadata that they came from, for messages */
    int32_t pairs;
} writer;

static void note(writer *w, const char *key, const char *name) {
    if (w->pairs < PAIRS_MAX) {
        w->pair[w->pairs].key = key;
        w->pair[w->pairs++].name = name;
    }
}

static const rse_gguf_value *value_of(const writer *w, const char *name) {
    char key[128];
    snprintf(key, sizeof key, "%s.%s", w->architecture, name);
    return rse_gguf_get(w->file, key);
}

static bool has(const writer *w, const char *name) {
    return value_of(w, name) != NULL;
}

/* Item `index` of a value, or the value where it is no array. */
static double item(const writer *w, const char *name, int32_t index, double otherwise) {
    const rse_gguf_value *value = value_of(w, name);
    return value == NULL ? otherwise : rse_gguf_number(value, value->array ? (uint64_t)index : 0);
}

static void put(writer *w, const char *key, double value) {
    if (w->status == RSE_OK) {
        w->status = rse_text_print(w->out, w->err, ",\"%s\":%.17g", key, value);
    }
}

static void put_text(writer *w, const char *key, const char *value) {
    if (w->status == RSE_OK) {
        w->status = rse_text_print(w->out, w->err, ",\"%s\":%s", key, value);
    }
}

/* A number under another key; one that is missing is named. */
static void need(writer *w, const char *key, const char *name) {
    note(w, key, name);
    const rse_gguf_value *value = value_of(w, name);
    if (w->status == RSE_OK && (value == NULL || value->array || value->type == RSE_GGUF_STRING)) {
        w->status = rse_fail(w->err, RSE_ERROR_FORMAT, "%s.%s is %s", w->architecture, name,
                             value == NULL ? "missing" : "no number");
    }
    put(w, key, item(w, name, 0, 0));
}

static void put_if(writer *w, const char *key, const char *name) {
    if (has(w, name)) {
        need(w, key, name);
    }
}

static bool has_tensor(const writer *w, int32_t block, const char *suffix) {
    char name[128];
    snprintf(name, sizeof name, "blk.%d.%s", block, suffix);
    return rse_gguf_find(w->file, name) != NULL;
}

static bool any_tensor(const writer *w, const char *suffix) {
    bool any = false;
    for (int32_t i = 0; i < w->layers && !any; ++i) {
        any = has_tensor(w, i, suffix);
    }
    return any;
}

/* ["a","b",...] of one word per layer */
static void put_layers(writer *w, const char *key, const char *(*word)(const writer *w, int32_t layer)) {
    if (w->status == RSE_OK) {
        w->status = rse_text_print(w->out, w->err, ",\"%s\":[", key);
    }
    for (int32_t i = 0; w->status == RSE_OK && i < w->layers; ++i) {
        w->status = rse_text_print(w->out, w->err, "%s\"%s\"", i > 0 ? "," : "", word(w, i));
    }
    if (w->status == RSE_OK) {
        w->status = rse_text_print(w->out, w->err, "]");
    }
}

static void put_common(writer *w, const char *model_type) {
    const rse_tensor *embedding = rse_gguf_find(w->file, "token_embd.weight");
    const rse_gguf_value *bos = rse_gguf_get(w->file, "tokenizer.ggml.bos_token_id");
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    w->status = rse_text_print(w->out, w->err, "{\"model_type\":\"%s\"", model_type);
    if (w->status == RSE_OK && (embedding == NULL || embedding->rank != 2)) {
        w->status = rse_fail(w->err, RSE_ERROR_FORMAT, "token_embd.weight is missing or no matrix");
    }
    put(w, "vocab_size", embedding != NULL ? (double)embedding->shape[0] : 0);
    need(w, "hidden_size", "embedding_length");
    put(w, "num_hidden_layers", w->layers);
    put_if(w, "max_position_embeddings", "context_length");
    put_text(w, "tie_word_embeddings", rse_gguf_find(w->file, "output.weight") == NULL ? "true" : "false");
    need(w, "rms_norm_eps", "attention.layer_norm_rms_epsilon");
    if (bos != NULL) {
        put(w, "bos_token_id", rse_gguf_number(bos, 0));
    }
    const char *comma = "";
    if (w->status == RSE_OK) {
        w->status = rse_text_print(w->out, w->err, ",\"eos_token_id\":[");
    }
    for (size_t i = 0; w->status == RSE_OK && i < sizeof ends / sizeof ends[0]; ++i) {
        const rse_gguf_value *end = rse_gguf_get(w->file, ends[i]);
        if (end != NULL) {
            w->status = rse_text_print(w->out, w->err, "%s%.17g", comma, rse_gguf_number(end, 0));
            comma = ",";
        }
    }
    if (w->status == RSE_OK) {
        w->status = rse_text_print(w->out, w->err, "]");
    }
}

/* Heads of layers that have attention: the largest of a list. */
static void put_heads(writer *w, const char *key, const char *name) {
    note(w, key, name);
    double most = 0;
    for (int32_t i = 0; i < w->layers; ++i) {
        double value = item(w, name, i, 0);
        most = value > most ? value : most;
    }
    if (most > 0) {
        put(w, key, most);
    }
}

/* ssm.* of Mamba-2: d_inner, heads, groups and d_state under the family's keys. */
static void put_mamba2(writer *w, const char *heads, const char *head_dim, const char *groups,
                       const char *state, const char *conv, const char *conv_bias) {
    double count = item(w, "ssm.time_step_rank", 0, 0);
    need(w, heads, "ssm.time_step_rank");
    put(w, head_dim, count > 0 ? item(w, "ssm.inner_size", 0, 0) / count : 0);
    need(w, groups, "ssm.group_count");
    need(w, state, "ssm.state_size");
    need(w, conv, "ssm.conv_kernel");
    put_text(w, conv_bias, any_tensor(w, "ssm_conv1d.bias") ? "true" : "false");
}

/* ---- Families ----------------------------------------------------------------------------------------- */

static const char *qwen_layer(const writer *w, int32_t layer) {
    return has_tensor(w, layer, "attn_output.weight") ? "full_attention" : "linear_attention";
}

/* [1,2] of the layers without a router */
static void put_dense_layers(writer *w, const char *key) {
    const char *comma = "";
    if (w->status == RSE_OK) {
        w->status = rse_text_print(w->out, w->err, ",\"%s\":[", key);
    }
    for (int32_t i = 0; w->status == RSE_OK && i < w->layers; ++i) {
        if (!has_tensor(w, i, "ffn_gate_inp.weight")) {
            w->status = rse_text_print(w->out, w->err, "%s%d", comma, i);
            comma = ",";
        }
    }
    if (w->status == RSE_OK) {
        w->status = rse_text_print(w->out, w->err, "]");
    }
}

static void write_qwen(writer *w) {
    bool next = strcmp(w->architecture, "qwen3next") == 0;
    bool experts = item(w, "expert_count", 0, 0) > 0;
    put_common(w, next ? "qwen3_next" : experts ? "qwen3_5_moe_text" : "qwen3_5_text");
    put_layers(w, "layer_types", qwen_layer);
    put_heads(w, "num_attention_heads", "attention.head_count");
    put_heads(w, "num_key_value_heads", "attention.head_count_kv");
    need(w, "head_dim", "attention.key_length");
    need(w, "linear_num_key_heads", "ssm.group_count");
    need(w, "linear_num_value_heads", "ssm.time_step_rank");
    need(w, "linear_key_head_dim", "ssm.state_size");
    double heads = item(w, "ssm.time_step_rank", 0, 0);
    put(w, "linear_value_head_dim", heads > 0 ? item(w, "ssm.inner_size", 0, 0) / heads : 0);
    need(w, "linear_conv_kernel_dim", "ssm.conv_kernel");
    need(w, "rope_theta", "rope.freq_base");
    double dim = item(w, "attention.key_length", 0, 0);
    double rotary = item(w, "rope.dimension_count", 0, dim / 4);
    put(w, "partial_rotary_factor", dim > 0 ? rotary / dim : 0);
    put_if(w, "intermediate_size", "feed_forward_length");
    if (experts) {
        put(w, "num_experts", item(w, "expert_count", 0, 0));
        need(w, "num_experts_per_tok", "expert_used_count");
        need(w, "moe_intermediate_size", "expert_feed_forward_length");
        put_if(w, "shared_expert_intermediate_size", "expert_shared_feed_forward_length");
        put_dense_layers(w, "mlp_only_layers");
    }
}

static const char *nemotron_layer(const writer *w, int32_t layer) {
    return item(w, "attention.head_count_kv", layer, 0) > 0 ? "attention"
           : has_tensor(w, layer, "ssm_in.weight")          ? "mamba"
           : has_tensor(w, layer, "ffn_gate_inp.weight")    ? "moe"
                                                            : "mlp";
}

static void write_nemotron(writer *w) {
    put_common(w, "nemotron_h");
    put_layers(w, "layers_block_type", nemotron_layer);
    put_heads(w, "num_attention_heads", "attention.head_count");
    put_heads(w, "num_key_value_heads", "attention.head_count_kv");
    need(w, "head_dim", "attention.key_length");
    put_mamba2(w, "mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel",
               "use_conv_bias");
    put_heads(w, "intermediate_size", "feed_forward_length");
    if (any_tensor(w, "ffn_gate_inp.weight")) {
        bool shared = any_tensor(w, "ffn_up_shexp.weight");
        need(w, "n_routed_experts", "expert_count");
        need(w, "num_experts_per_tok", "expert_used_count");
        need(w, "moe_intermediate_size", "expert_feed_forward_length");
        put(w, "n_shared_experts", shared);
        if (shared) {
            need(w, "moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length");
        }
        put_if(w, "moe_latent_size", "moe_latent_size");
        put_if(w, "routed_scaling_factor", "expert_weights_scale");
        put_text(w, "norm_topk_prob", item(w, "expert_weights_norm", 0, 1) != 0 ? "true" : "false");
        put_if(w, "n_group", "expert_group_count");
    }
}

static void write_mamba2(writer *w) {
    put_common(w, "mamba2");
    need(w, "layer_norm_epsilon", "attention.layer_norm_rms_epsilon");
    put_mamba2(w, "num_heads", "head_dim", "n_groups", "state_size", "conv_kernel", "use_conv_bias");
}

static const char *granite_layer(const writer *w, int32_t layer) {
    return item(w, "attention.head_count_kv", layer, 0) > 0 ? "attention" : "mamba";
}

static void write_granite(writer *w) {
    put_common(w, "granitemoehybrid");
    put_layers(w, "layer_types", granite_layer);
    put_heads(w, "num_attention_heads", "attention.head_count");
    put_heads(w, "num_key_value_heads", "attention.head_count_kv");
    put_if(w, "head_dim", "attention.key_length");
    put_mamba2(w, "mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_conv",
               "mamba_conv_bias");
    put_if(w, "embedding_multiplier", "embedding_scale");
    put_if(w, "residual_multiplier", "residual_scale");
    put_if(w, "attention_multiplier", "attention.scale");
    put_if(w, "logits_scaling", "logit_scale");
    bool rotates = item(w, "rope.scaling.finetuned", 0, 0) != 0;
    put_text(w, "position_embedding_type", rotates ? "\"rope\"" : "\"nope\"");
    put_if(w, "rope_theta", "rope.freq_base");
    if (item(w, "expert_count", 0, 0) > 0) {
        put(w, "num_local_experts", item(w, "expert_count", 0, 0));
        need(w, "num_experts_per_tok", "expert_used_count");
        put_heads(w, "intermediate_size", "feed_forward_length");
        put_if(w, "shared_intermediate_size", "expert_shared_feed_forward_length");
    } else {
        put(w, "num_local_experts", 0);
        put_heads(w, "shared_intermediate_size", "feed_forward_length");
    }
}

static const char *kimi_layer(const writer *w, int32_t layer) {
    return item(w, "attention.head_count_kv", layer, 0) > 0 ? "full_attention" : "linear_attention";
}

static const char *kimi_feed_forward(const writer *w, int32_t layer) {
    return has_tensor(w, layer, "ffn_gate_inp.weight") ? "sparse" : "dense";
}

static void write_kimi(writer *w) {
    put_common(w, "kimi_linear");
    put_layers(w, "layer_types", kimi_layer);
    put_layers(w, "mlp_layer_types", kimi_feed_forward);
    put_heads(w, "num_attention_heads", "attention.head_count");
    put_heads(w, "linear_num_heads", "attention.head_count");
    need(w, "linear_head_dim", "kda.head_dim");
    need(w, "linear_conv_kernel_dim", "ssm.conv_kernel");
    need(w, "kv_lora_rank", "attention.kv_lora_rank");
    put_if(w, "q_lora_rank", "attention.q_lora_rank");
    double shared = item(w, "rope.dimension_count", 0, 0);
    put(w, "qk_rope_head_dim", shared);
    put(w, "qk_nope_head_dim", item(w, "attention.key_length_mla", 0, 0) - shared);
    need(w, "v_head_dim", "attention.value_length_mla");
    put_heads(w, "intermediate_size", "feed_forward_length");
    put_if(w, "num_experts", "expert_count");
    put_if(w, "num_experts_per_token", "expert_used_count");
    put_if(w, "moe_intermediate_size", "expert_feed_forward_length");
    put_if(w, "num_shared_experts", "expert_shared_count");
    put_if(w, "routed_scaling_factor", "expert_weights_scale");
    put_if(w, "num_expert_group", "expert_group_count");
    put_text(w, "moe_renormalize", item(w, "expert_weights_norm", 0, 1) != 0 ? "true" : "false");
    put_text(w, "moe_router_activation_func",
             item(w, "expert_gating_func", 0, 2) == 1.0 ? "\"softmax\"" : "\"sigmoid\"");
}

static const struct {
    const char *architecture;
    void (*write)(writer *w);
    bool tiled;
} families[] = {
    {"qwen35", write_qwen, true},
    {"qwen35moe", write_qwen, true},
    {"qwen3next", write_qwen, false},
    {"nemotron_h", write_nemotron, false},
    {"nemotron_h_moe", write_nemotron, false},
    {"mamba2", write_mamba2, false},
    {"granitehybrid", write_granite, false},
    {"kimi-linear", write_kimi, false},
};
enum { FAMILIES = sizeof families / sizeof families[0] };

/* A recommendation for sampling within its range; anything else is none. */
static float recommended(const rse_gguf *file, const char *key, double low, double high) {
    const rse_gguf_value *value = rse_gguf_get(file, key);
    double x = value != NULL && !value->array ? rse_gguf_number(value, 0) : -1;
    return x >= low && x <= high ? (float)x : -1.0f;
}

static bool in_word(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '.';
}

/* Fails with a sentence about the text that was written, its keys replaced by those of the metadata. */
static rse_status retell(const writer *w, const rse_error *said) {
    char text[sizeof said->text] = "";
    const char *from = said->text;
    size_t prefix = strlen(RSE_CONFIG_WHERE ": "), length = 0;
    from += strncmp(from, RSE_CONFIG_WHERE ": ", prefix) == 0 ? prefix : 0;
    while (*from != '\0' && length < sizeof text - 1) {
        size_t word = 0;
        while (in_word(from[word])) {
            word++;
        }
        int32_t i = 0;
        while (i < w->pairs && (strlen(w->pair[i].key) != word || strncmp(w->pair[i].key, from, word) != 0)) {
            i++;
        }
        size_t room = sizeof text - length;
        int printed = i < w->pairs && word > 0
                          ? snprintf(text + length, room, "%s.%s", w->architecture, w->pair[i].name)
                          : snprintf(text + length, room, "%.*s", word > 0 ? (int)word : 1, from);
        length += (size_t)printed < room ? (size_t)printed : room - 1;
        from += word > 0 ? word : 1;
    }
    return rse_fail(w->err, said->status, "%s", text);
}

rse_status rse_gguf_config(const rse_gguf *file, rse_config *config, rse_error *err) {
    char architecture[64];
    char known[160] = "";
    rse_gguf_text(file, "general.architecture", architecture, sizeof architecture);
    size_t f = 0;
    for (; f < FAMILIES && strcmp(architecture, families[f].architecture) != 0; ++f) {
        size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s%s", f > 0 ? ", " : "", families[f].architecture);
    }
    if (f == FAMILIES) {
        return rse_fail(err, RSE_ERROR_UNSUPPORTED, "general.architecture is %.64s; known: %s",
                        architecture[0] != '\0' ? architecture : "missing", known);
    }
    rse_text text = {0};
    writer w = {.file = file,
                .architecture = architecture,
                .layers = rse_gguf_layers(file),
                .out = &text,
                .err = err};
    families[f].write(&w);
    if (w.status == RSE_OK) {
        w.status = rse_text_print(&text, err, "}");
    }
    if (w.status == RSE_OK) {
        rse_error said = {0};
        w.status = rse_config_parse(text.data, text.length, NULL, 0, config, &said);
        w.status = w.status == RSE_OK ? RSE_OK : retell(&w, &said);
    }
    rse_text_free(&text);
    config->temperature = recommended(file, "general.sampling.temp", 0, 100);
    config->top_p = recommended(file, "general.sampling.top_p", 1e-6, 1);
    config->min_p = recommended(file, "general.sampling.min_p", 0, 1);
    config->top_k = (int32_t)recommended(file, "general.sampling.top_k", 0, 1 << 20);
    config->norm_plus_one = false;
    config->ssm.tiled = families[f].tiled;
    return w.status;
}
