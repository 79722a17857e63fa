/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor names: a table per family of what stands behind "blk.N.". */
#include "load/gguf_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Names without their last word (weight, bias, scale); `whole` is a name with it, or one that has none. */
typedef struct rename_row {
    const char *from, *to;
} rename_row;

#define ATTENTION(stem)                                                                                        \
    {"attn_q", stem "q_proj"}, {"attn_k", stem "k_proj"}, {"attn_v", stem "v_proj"}, {                         \
        "attn_output", stem "o_proj"                                                                           \
    }
#define MAMBA2(stem)                                                                                           \
    {"ssm_in", stem "in_proj"}, {"ssm_conv1d", stem "conv1d"}, {"ssm_norm", stem "norm"},                      \
        {"ssm_out", stem "out_proj"}, {"ssm_dt.bias", stem "dt_bias"}, {"ssm_a", stem "A"}, {                  \
        "ssm_d", stem "D"                                                                                      \
    }
#define EXPERTS(stem)                                                                                          \
    {"ffn_gate_exps.weight", stem "experts.gate_proj"}, {"ffn_up_exps.weight", stem "experts.up_proj"},        \
        {"ffn_down_exps.weight", stem "experts.down_proj"},                                                    \
        {"ffn_gate_exps.scale", stem "experts.gate_proj.scale"},                                               \
        {"ffn_up_exps.scale", stem "experts.up_proj.scale"}, {                                                 \
        "ffn_down_exps.scale", stem "experts.down_proj.scale"                                                  \
    }
#define MLP(stem)                                                                                              \
    {"ffn_gate", stem "gate_proj"}, {"ffn_up", stem "up_proj"}, {                                              \
        "ffn_down", stem "down_proj"                                                                           \
    }
#define SHARED(stem)                                                                                           \
    {"ffn_gate_shexp", stem "gate_proj"}, {"ffn_up_shexp", stem "up_proj"}, {                                  \
        "ffn_down_shexp", stem "down_proj"                                                                     \
    }
/* Of Nemotron */
#define EXPERT_LAYER(stem)                                                                                     \
    {"ffn_gate_inp", stem "gate"}, {"exp_probs_b.bias", stem "gate.e_score_correction_bias"},                  \
        {"ffn_latent_down", stem "fc1_latent_proj"}, {"ffn_latent_up", stem "fc2_latent_proj"}, EXPERTS(stem), \
        SHARED(stem "shared_experts.")

static const rename_row qwen[] = {{"attn_norm", "input_layernorm"},
                                  {"post_attention_norm", "post_attention_layernorm"},
                                  ATTENTION("self_attn."),
                                  {"attn_q_norm", "self_attn.q_norm"},
                                  {"attn_k_norm", "self_attn.k_norm"},
                                  {"attn_qkv", "linear_attn.in_proj_qkv"},
                                  {"attn_gate", "linear_attn.in_proj_z"},
                                  {"ssm_in", "linear_attn.in_proj_qkvz"},
                                  {"ssm_ba", "linear_attn.in_proj_ba"},
                                  {"ssm_alpha", "linear_attn.in_proj_a"},
                                  {"ssm_beta", "linear_attn.in_proj_b"},
                                  {"ssm_conv1d", "linear_attn.conv1d"},
                                  {"ssm_norm", "linear_attn.norm"},
                                  {"ssm_out", "linear_attn.out_proj"},
                                  {"ssm_dt.bias", "linear_attn.dt_bias"},
                                  {"ssm_a", "linear_attn.A"},
                                  MLP("mlp."),
                                  {"ffn_gate_inp", "mlp.gate"},
                                  {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
                                  EXPERTS("mlp."),
                                  SHARED("mlp.shared_expert."),
                                  {NULL, NULL}};

static const rename_row nemotron[] = {{"attn_norm", "norm"},
                                      ATTENTION("mixer."),
                                      MAMBA2("mixer."),
                                      MLP("mixer."),
                                      EXPERT_LAYER("mixer."),
                                      {NULL, NULL}};

static const rename_row granite[] = {{"attn_norm", "input_layernorm"},
                                     {"ffn_norm", "post_attention_layernorm"},
                                     ATTENTION("self_attn."),
                                     MAMBA2("mamba."),
                                     MLP("shared_mlp."),
                                     {"ffn_gate_inp", "block_sparse_moe.router.layer"},
                                     EXPERTS("block_sparse_moe."),
                                     SHARED("shared_mlp."),
                                     {NULL, NULL}};

static const rename_row kimi[] = {{"attn_norm", "input_layernorm"},
                                  {"ffn_norm", "post_attention_layernorm"},
                                  ATTENTION("self_attn."),
                                  {"attn_q_a", "self_attn.q_a_proj"},
                                  {"attn_q_a_norm", "self_attn.q_a_layernorm"},
                                  {"attn_q_b", "self_attn.q_b_proj"},
                                  {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
                                  {"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
                                  {"attn_kv_b", "self_attn.kv_b_proj"},
                                  {"attn_k_b", "self_attn.k_b_proj"},
                                  {"attn_v_b", "self_attn.v_b_proj"},
                                  {"ssm_conv1d_q", "self_attn.q_conv1d"},
                                  {"ssm_conv1d_k", "self_attn.k_conv1d"},
                                  {"ssm_conv1d_v", "self_attn.v_conv1d"},
                                  {"ssm_f_a", "self_attn.f_a_proj"},
                                  {"ssm_f_b", "self_attn.f_b_proj"},
                                  {"ssm_g_a", "self_attn.g_a_proj"},
                                  {"ssm_g_b", "self_attn.g_b_proj"},
                                  {"ssm_beta", "self_attn.b_proj"},
                                  {"ssm_norm", "self_attn.o_norm"},
                                  {"ssm_dt.bias", "self_attn.dt_bias"},
                                  {"ssm_a", "self_attn.A"},
                                  MLP("mlp."),
                                  {"ffn_gate_inp", "block_sparse_moe.gate"},
                                  {"exp_probs_b.bias", "block_sparse_moe.gate.e_score_correction_bias"},
                                  EXPERTS("block_sparse_moe."),
                                  SHARED("block_sparse_moe.shared_experts."),
                                  {NULL, NULL}};

/* Of the prediction block, which is the one behind the last layer: names behind "mtp.". What a table lacks is named as
 * in a layer, behind "mtp.layers.0.". */
static const rename_row qwen_ahead[] = {{"nextn.eh_proj", "fc"},
                                        {"nextn.enorm", "pre_fc_norm_embedding"},
                                        {"nextn.hnorm", "pre_fc_norm_hidden"},
                                        {"nextn.shared_head_norm", "norm"},
                                        {NULL, NULL}};
static const rename_row nemotron_ahead[] = {{"nextn.eh_proj", "layers.0.eh_proj"},
                                            {"nextn.enorm", "layers.0.enorm"},
                                            {"nextn.hnorm", "layers.0.hnorm"},
                                            {"post_attention_norm", "layers.1.norm"},
                                            EXPERT_LAYER("layers.1.mixer."),
                                            {"nextn.shared_head_norm", "layers.1.final_layernorm"},
                                            {NULL, NULL}};
static const rename_row none_ahead[] = {{NULL, NULL}};

static const struct {
    const char *architecture;
    const rename_row *rows, *ahead;
    const char *embedding, *norm;
} families[] = {
    {"qwen35", qwen, qwen_ahead, "embed_tokens.weight", "norm.weight"},
    {"qwen35moe", qwen, qwen_ahead, "embed_tokens.weight", "norm.weight"},
    {"qwen3next", qwen, qwen_ahead, "embed_tokens.weight", "norm.weight"},
    {"nemotron_h", nemotron, nemotron_ahead, "embeddings.weight", "norm_f.weight"},
    {"nemotron_h_moe", nemotron, nemotron_ahead, "embeddings.weight", "norm_f.weight"},
    {"mamba2", nemotron, none_ahead, "embeddings.weight", "norm_f.weight"},
    {"granitehybrid", granite, none_ahead, "embed_tokens.weight", "norm.weight"},
    {"kimi-linear", kimi, none_ahead, "embed_tokens.weight", "norm.weight"},
};
enum { FAMILIES = sizeof families / sizeof families[0] };

void rse_gguf_text(const rse_gguf *file, const char *key, char *text, size_t size) {
    const rse_gguf_value *value = rse_gguf_get(file, key);
    size_t at = 0;
    rse_gguf_string s = {"", 0};
    if (value != NULL && !value->array) {
        s = rse_gguf_next(value, &at);
    }
    snprintf(text, size, "%.*s", (int)(s.length < size ? s.length : size - 1), s.text);
}

int32_t rse_gguf_layers(const rse_gguf *file) {
    char architecture[64], key[128];
    rse_gguf_text(file, "general.architecture", architecture, sizeof architecture);
    snprintf(key, sizeof key, "%s.block_count", architecture);
    const rse_gguf_value *blocks = rse_gguf_get(file, key);
    snprintf(key, sizeof key, "%s.nextn_predict_layers", architecture);
    const rse_gguf_value *more = rse_gguf_get(file, key);
    double layers = blocks != NULL ? rse_gguf_number(blocks, 0) : 0.0;
    layers -= more != NULL ? rse_gguf_number(more, 0) : 0.0;
    return layers > 0.0 && layers < 1e6 ? (int32_t)layers : 0;
}

/* Appends what a row makes of `name`, with the last word that the row does not cover; false if none does. */
static bool rename_by(const rename_row *rows, const char *name, char *out, size_t size) {
    const char *word = strrchr(name, '.');
    size_t stem = word != NULL ? (size_t)(word - name) : strlen(name);
    for (; rows->from != NULL; ++rows) {
        size_t n = strlen(rows->from);
        if (strcmp(rows->from, name) == 0) {
            snprintf(out, size, "%s", rows->to);
            return true;
        }
        if (n == stem && word != NULL && memcmp(rows->from, name, n) == 0) {
            snprintf(out, size, "%s%s", rows->to, word);
            return true;
        }
    }
    return false;
}

rse_status rse_gguf_canonical(const rse_gguf *file, const char *name, rse_text *out, rse_error *err) {
    char architecture[64], renamed[256];
    rse_gguf_text(file, "general.architecture", architecture, sizeof architecture);
    size_t f = 0;
    while (f < FAMILIES && strcmp(architecture, families[f].architecture) != 0) {
        ++f;
    }
    long block = -1;
    char *end = NULL;
    if (strncmp(name, "blk.", 4) == 0) {
        block = strtol(name + 4, &end, 10);
    }
    if (f == FAMILIES) {
        return rse_text_print(out, err, "%s", name);
    }
    if (strcmp(name, "token_embd.weight") == 0) {
        return rse_text_print(out, err, "%s", families[f].embedding);
    }
    if (strcmp(name, "output_norm.weight") == 0) {
        return rse_text_print(out, err, "%s", families[f].norm);
    }
    if (strcmp(name, "output.weight") == 0) {
        return rse_text_print(out, err, "lm_head.weight");
    }
    if (block < 0 || *end != '.') {
        return rse_text_print(out, err, "%s", name);
    }
    bool predicts = block >= rse_gguf_layers(file);
    if (predicts && rename_by(families[f].ahead, end + 1, renamed, sizeof renamed)) {
        return rse_text_print(out, err, "mtp.%s", renamed);
    }
    if (rename_by(families[f].rows, end + 1, renamed, sizeof renamed)) {
        return predicts ? rse_text_print(out, err, "mtp.layers.%ld.%s", block - rse_gguf_layers(file), renamed)
                        : rse_text_print(out, err, "layers.%ld.%s", block, renamed);
    }
    return rse_text_print(out, err, "%s", name);
}
