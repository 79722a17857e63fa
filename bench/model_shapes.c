/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Configurations as the models' own config.json state them, without keys that say nothing about a text model's
 * forward pass. Random weights are scaled so that activations keep the size of their inputs.
 */
#include "model_shapes.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QWEN35(hidden, layers, q_heads, kv_heads, head_dim, hk, hv, mlp, vocab)                                \
    "{\n  \"architectures\": [\"Qwen3_5ForCausalLM\"],\n  \"model_type\": \"qwen3_5_text\",\n"                 \
    "  \"dtype\": \"bfloat16\",\n  \"hidden_size\": " #hidden ",\n  \"num_hidden_layers\": " #layers ",\n"     \
    "  \"full_attention_interval\": 4,\n  \"num_attention_heads\": " #q_heads ",\n"                            \
    "  \"num_key_value_heads\": " #kv_heads ",\n  \"head_dim\": " #head_dim ",\n"                              \
    "  \"attn_output_gate\": true,\n  \"linear_num_key_heads\": " #hk ",\n"                                    \
    "  \"linear_num_value_heads\": " #hv ",\n  \"linear_key_head_dim\": 128,\n"                                \
    "  \"linear_value_head_dim\": 128,\n  \"linear_conv_kernel_dim\": 4,\n  \"intermediate_size\": " #mlp      \
    ",\n  \"hidden_act\": \"silu\",\n  \"rms_norm_eps\": 1e-06,\n  \"rope_parameters\": {\n"                   \
    "    \"rope_type\": \"default\",\n    \"rope_theta\": 10000000,\n    \"partial_rotary_factor\": 0.25\n"    \
    "  },\n  \"max_position_embeddings\": 262144,\n  \"mtp_num_hidden_layers\": 1,\n"                          \
    "  \"tie_word_embeddings\": true,\n  \"eos_token_id\": 2,\n  \"vocab_size\": " #vocab "\n}\n"

#define NEMOTRON_H(hidden, pattern, q_heads, kv_heads, head_dim, heads, p, groups, mlp, vocab)                 \
    "{\n  \"architectures\": [\"NemotronHForCausalLM\"],\n  \"model_type\": \"nemotron_h\",\n"                 \
    "  \"dtype\": \"bfloat16\",\n  \"hidden_size\": " #hidden ",\n"                                            \
    "  \"hybrid_override_pattern\": \"" pattern "\",\n  \"num_attention_heads\": " #q_heads ",\n"              \
    "  \"num_key_value_heads\": " #kv_heads ",\n  \"head_dim\": " #head_dim ",\n"                              \
    "  \"mamba_num_heads\": " #heads ",\n  \"mamba_head_dim\": " #p ",\n  \"ssm_state_size\": 128,\n"          \
    "  \"n_groups\": " #groups ",\n  \"conv_kernel\": 4,\n  \"use_conv_bias\": true,\n"                        \
    "  \"use_bias\": false,\n  \"mamba_hidden_act\": \"silu\",\n  \"intermediate_size\": " #mlp ",\n"          \
    "  \"mlp_hidden_act\": \"relu2\",\n  \"layer_norm_epsilon\": 1e-05,\n"                                     \
    "  \"max_position_embeddings\": 262144,\n  \"tie_word_embeddings\": false,\n  \"eos_token_id\": 2,\n"      \
    "  \"vocab_size\": " #vocab "\n}\n"

const bench_model bench_models[] = {
    {"qwen3.5-0.8b", QWEN35(1024, 24, 8, 2, 256, 16, 16, 3584, 248320)},
    {"nemotron-3-nano-4b",
     NEMOTRON_H(3136, "M-M-M-MM-M-M*-M-M*-M-M-M*-M-M-MM*-MMM-M-M-", 40, 8, 128, 96, 80, 8, 12544, 131072)},
    {"tiny-qwen3.5", QWEN35(64, 4, 2, 1, 32, 1, 2, 128, 4096)},
    {"tiny-nemotron-3", NEMOTRON_H(64, "M-M*-", 2, 1, 32, 4, 32, 2, 128, 4096)},
    {NULL, NULL},
};

const bench_model *bench_model_find(const char *name) {
    for (const bench_model *model = bench_models; model->name != NULL; model++) {
        if (strcmp(model->name, name) == 0) {
            return model;
        }
    }
    return NULL;
}

/* ---- Lists of tensors --------------------------------------------------------------------------------- */

static bench_tensor *add(bench_tensors *list) {
    static bench_tensor dropped;
    if (list->count == list->capacity) {
        size_t capacity = list->capacity == 0 ? 64 : 2 * list->capacity;
        bench_tensor *at = realloc(list->at, capacity * sizeof *at);
        if (at == NULL) {
            list->no_memory = true;
            return &dropped;
        }
        list->at = at;
        list->capacity = capacity;
    }
    return &list->at[list->count++];
}

#define NAME(tensor, format)                                                                                   \
    do {                                                                                                       \
        va_list args_;                                                                                         \
        va_start(args_, format);                                                                               \
        vsnprintf((tensor)->name, sizeof(tensor)->name, format, args_);                                        \
        va_end(args_);                                                                                         \
    } while (0)

/* Uniform with the variance that keeps the size of x in W x, times gain. */
static void linear(bench_tensors *list, int64_t rows, int64_t cols, double gain, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
static void linear(bench_tensors *list, int64_t rows, int64_t cols, double gain, const char *format, ...) {
    bench_tensor *t = add(list);
    *t = (bench_tensor){.dtype = RSE_DTYPE_BF16,
                        .rank = 2,
                        .shape = {rows, cols},
                        .draw = BENCH_DRAW_UNIFORM,
                        .scale = (float)(gain * sqrt(3.0 / (double)cols))};
    NAME(t, format);
}

static void vector(bench_tensors *list, int64_t n, int32_t dtype, int32_t draw, double scale,
                   const char *format, ...) __attribute__((format(printf, 6, 7)));
static void vector(bench_tensors *list, int64_t n, int32_t dtype, int32_t draw, double scale,
                   const char *format, ...) {
    bench_tensor *t = add(list);
    *t = (bench_tensor){.dtype = dtype, .rank = 1, .shape = {n}, .draw = draw, .scale = (float)scale};
    NAME(t, format);
}

static void norm(bench_tensors *list, int64_t n, double one, const char *stem, const char *name) {
    vector(list, n, RSE_DTYPE_BF16, BENCH_DRAW_CONSTANT, one, "%s%s.weight", stem, name);
}

/* Taps of a depthwise convolution, newest last. */
static void convolution(bench_tensors *list, int64_t channels, int32_t width, const char *stem) {
    bench_tensor *t = add(list);
    *t = (bench_tensor){.dtype = RSE_DTYPE_BF16,
                        .rank = 3,
                        .shape = {channels, 1, width},
                        .draw = BENCH_DRAW_UNIFORM,
                        .scale = 0.5f};
    snprintf(t->name, sizeof t->name, "%sconv1d.weight", stem);
}

/* What the layers of a model share: outputs of blocks are scaled so that the residual stream stays bounded. */
typedef struct lister {
    const rse_config *config;
    bench_tensors *list;
    double out; /* gain of a block's last projection */
    double one; /* the weight of a norm that multiplies by 1 */
} lister;

static void attention(const lister *l, const char *stem) {
    const rse_config_attention *a = &l->config->attention;
    int64_t hidden = l->config->hidden, queries = (int64_t)a->q_heads * a->head_dim;
    int64_t keys = (int64_t)a->kv_heads * a->head_dim;
    linear(l->list, a->output_gate ? 2 * queries : queries, hidden, 1, "%sq_proj.weight", stem);
    linear(l->list, keys, hidden, 1, "%sk_proj.weight", stem);
    linear(l->list, keys, hidden, 1, "%sv_proj.weight", stem);
    linear(l->list, hidden, queries, l->out, "%so_proj.weight", stem);
    if (a->qk_norm) {
        norm(l->list, a->head_dim, l->one, stem, "q_norm");
        norm(l->list, a->head_dim, l->one, stem, "k_norm");
    }
}

static void recurrence(const lister *l, int64_t channels, const char *stem) {
    const rse_config_ssm *s = &l->config->ssm;
    convolution(l->list, channels, s->conv_width, stem);
    vector(l->list, s->value_heads, RSE_DTYPE_F32, BENCH_DRAW_A_LOG, 0, "%sA_log", stem);
    vector(l->list, s->value_heads, RSE_DTYPE_F32, BENCH_DRAW_DT_BIAS, 0, "%sdt_bias", stem);
}

static void gdn(const lister *l, const char *stem) {
    const rse_config_ssm *s = &l->config->ssm;
    int64_t hidden = l->config->hidden, keys = (int64_t)s->key_heads * s->d_k;
    int64_t values = (int64_t)s->value_heads * s->d_v;
    linear(l->list, 2 * keys + values, hidden, 1, "%sin_proj_qkv.weight", stem);
    linear(l->list, values, hidden, 1, "%sin_proj_z.weight", stem);
    linear(l->list, s->value_heads, hidden, 1, "%sin_proj_b.weight", stem);
    linear(l->list, s->value_heads, hidden, 1, "%sin_proj_a.weight", stem);
    recurrence(l, 2 * keys + values, stem);
    norm(l->list, s->d_v, 1, stem, "norm");
    linear(l->list, hidden, values, l->out, "%sout_proj.weight", stem);
}

static void mamba2(const lister *l, const char *stem) {
    const rse_config_ssm *s = &l->config->ssm;
    int64_t hidden = l->config->hidden, keys = (int64_t)s->key_heads * s->d_k;
    int64_t values = (int64_t)s->value_heads * s->d_v, channels = values + 2 * keys;
    linear(l->list, values + channels + s->value_heads, hidden, 1, "%sin_proj.weight", stem);
    recurrence(l, channels, stem);
    if (s->conv_bias) {
        vector(l->list, channels, RSE_DTYPE_BF16, BENCH_DRAW_UNIFORM, 0.1, "%sconv1d.bias", stem);
    }
    vector(l->list, s->value_heads, RSE_DTYPE_F32, BENCH_DRAW_CONSTANT, 1, "%sD", stem);
    norm(l->list, values, 1, stem, "norm");
    linear(l->list, hidden, values, l->out, "%sout_proj.weight", stem);
}

static void mlp(const lister *l, const char *stem, bool gated) {
    int64_t hidden = l->config->hidden, width = l->config->mlp_width;
    if (gated) {
        linear(l->list, width, hidden, 1, "%sgate_proj.weight", stem);
    }
    linear(l->list, width, hidden, 1, "%sup_proj.weight", stem);
    linear(l->list, hidden, width, l->out, "%sdown_proj.weight", stem);
}

/* prefix: "model." or "mtp." */
static void qwen35_layer(const lister *l, const char *prefix, int32_t layer, bool recurrent) {
    char base[32], stem[64];
    snprintf(base, sizeof base, "%slayers.%d.", prefix, (int)layer);
    norm(l->list, l->config->hidden, l->one, base, "input_layernorm");
    snprintf(stem, sizeof stem, "%s%s.", base, recurrent ? "linear_attn" : "self_attn");
    (recurrent ? gdn : attention)(l, stem);
    norm(l->list, l->config->hidden, l->one, base, "post_attention_layernorm");
    snprintf(stem, sizeof stem, "%smlp.", base);
    mlp(l, stem, true);
}

static void qwen35(const lister *l) {
    int64_t hidden = l->config->hidden;
    linear(l->list, l->config->vocab, hidden, 1, "model.embed_tokens.weight");
    for (int32_t i = 0; i < l->config->layers; i++) {
        qwen35_layer(l, "model.", i, l->config->layer[i] == RSE_LAYER_GDN);
    }
    norm(l->list, hidden, l->one, "model.", "norm");
    if (!l->config->tied) {
        linear(l->list, l->config->vocab, hidden, 1, "lm_head.weight");
    }
    if (l->config->mtp_blocks > 0) {
        norm(l->list, hidden, l->one, "mtp.", "pre_fc_norm_embedding");
        norm(l->list, hidden, l->one, "mtp.", "pre_fc_norm_hidden");
        linear(l->list, hidden, 2 * hidden, 1, "mtp.fc.weight");
        qwen35_layer(l, "mtp.", 0, false);
        norm(l->list, hidden, l->one, "mtp.", "norm");
    }
}

static void nemotron_h(const lister *l) {
    int64_t hidden = l->config->hidden;
    linear(l->list, l->config->vocab, hidden, 1, "backbone.embeddings.weight");
    for (int32_t i = 0; i < l->config->layers; i++) {
        char base[48], stem[64];
        snprintf(base, sizeof base, "backbone.layers.%d.", (int)i);
        snprintf(stem, sizeof stem, "%smixer.", base);
        norm(l->list, hidden, l->one, base, "norm");
        switch (l->config->layer[i]) {
        case RSE_LAYER_MAMBA2:
            mamba2(l, stem);
            break;
        case RSE_LAYER_ATTENTION:
            attention(l, stem);
            break;
        default:
            mlp(l, stem, false);
        }
    }
    norm(l->list, hidden, l->one, "backbone.", "norm_f");
    linear(l->list, l->config->vocab, hidden, 1, "lm_head.weight");
}

rse_status bench_tensors_list(const rse_config *config, bench_tensors *tensors, rse_error *err) {
    *tensors = (bench_tensors){0};
    lister l = {config, tensors, 1 / sqrt(2.0 * config->layers), config->norm_plus_one ? 0 : 1};
    if (config->family == RSE_FAMILY_QWEN35) {
        qwen35(&l);
    } else {
        nemotron_h(&l);
    }
    return tensors->no_memory ? rse_fail(err, RSE_ERROR_MEMORY, "no memory for the list of tensors") : RSE_OK;
}

void bench_tensors_free(bench_tensors *tensors) {
    free(tensors->at);
    *tensors = (bench_tensors){0};
}
