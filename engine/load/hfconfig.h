/* SPDX-License-Identifier: Apache-2.0 */
/*
 * config.json of a Hugging Face directory as one plain struct, with every number checked. A family is one row
 * of the table in hfconfig.c: its model_type names, its family, a function that reads its keys.
 *
 * What the engine cannot do is refused by name here (unknown model_type, other activations or rotary kinds,
 * routing within groups), never run approximately.
 */
#ifndef RSE_HFCONFIG_H
#define RSE_HFCONFIG_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    RSE_FAMILY_QWEN35 = 1, /* and Qwen3-Next */
    RSE_FAMILY_NEMOTRON_H,
    RSE_FAMILY_MAMBA2,
    RSE_FAMILY_GRANITE_HYBRID,
    RSE_FAMILY_KIMI_LINEAR, /* and the text part of Kimi-K3 */
    RSE_FAMILY_GLM5_NEXT
};
enum {
    RSE_LAYER_GDN = 1,
    RSE_LAYER_MAMBA2,
    RSE_LAYER_ATTENTION,
    RSE_LAYER_MLP,
    RSE_LAYER_KDA,
    RSE_LAYER_MLA, /* attention whose keys and values are projections of one latent row per token */
    RSE_LAYER_MOE
};
enum { RSE_ACT_NONE, RSE_ACT_SILU, RSE_ACT_SIGMOID, RSE_ACT_RELU2, RSE_ACT_SITU };
/* What a block's result is added to: the stream; several streams that are mixed before and after each block; or
 * the stream, which starts anew every few layers, while blocks read a mix of it and of what it was before. */
enum { RSE_RESIDUAL_ADD, RSE_RESIDUAL_STREAMS, RSE_RESIDUAL_BANK };
enum { RSE_STREAMS_MAX = 8 };
enum { RSE_CONFIG_LAYERS = 512, RSE_CONFIG_EOS = 16, RSE_EXPERTS_MAX = 4096 };

/* The recurrent layers of a model; for GDN and Mamba-2 alike. All zero in a model without one.
 * GDN: q and k are [key_heads][d_k], v and z [value_heads][d_v]; value head h reads key head
 * h / (value_heads / key_heads). Mamba-2: x and z are [value_heads][d_v], B and C [key_heads][d_k] with
 * key_heads = n_groups, d_v = mamba_head_dim, d_k = ssm_state_size. */
typedef struct rse_config_ssm {
    int32_t key_heads;
    int32_t value_heads;
    int32_t d_k;
    int32_t d_v;
    int32_t conv_width; /* taps, 2..5 */
    bool conv_bias;
    bool proj_bias;   /* in_proj and out_proj have biases */
    float dt_min;     /* time_step_limit, 0 and infinity by default; time_step_min, _max and _floor are only */
    float dt_max;     /* for initialisation and are not read */
    int32_t gate_act; /* of the output gate: RSE_ACT_SILU or RSE_ACT_SIGMOID */
    float gate_lower_bound; /* KDA: 0, or the bound of the bounded gate, e.g. -5 */
    bool full_gate;         /* KDA: the output gate is one projection, not a low-rank one */
    bool tiled;             /* value head h reads key head h mod key_heads (files of llama.cpp for Qwen3.5) */
} rse_config_ssm;

typedef struct rse_config_attention {
    int32_t q_heads;
    int32_t kv_heads; /* q head h reads kv head h / (q_heads / kv_heads) */
    int32_t head_dim;
    bool bias;        /* q, k, v, o have biases */
    bool qk_norm;     /* rms norm per head of q and k, before the rotation */
    bool output_gate; /* q_proj holds [q | gate] per head; the output is multiplied by sigmoid(gate) */
    int32_t rotary;   /* leading dimensions of a head that are rotated; 0: no positional encoding */
    double rope_theta;
    float scale; /* of the products of queries and keys; 0: 1/sqrt(width of a query head) */
    /* MLA, where kv_latent > 0: query heads are [nope | shared]; a token's keys are kv_b(latent), nope wide per
     * head, and one row of `shared` values for all heads; its values v_dim wide per head. Nothing is rotated.
     * kv_heads and head_dim are those of what is kept, one row [latent | shared]. */
    int32_t kv_latent;
    int32_t q_latent; /* 0: queries are projected directly */
    int32_t nope;
    int32_t shared;
    int32_t v_dim;
    float latent_eps; /* of the norms inside */
    bool latent_gate; /* the result is multiplied by sigmoid(g_proj x) before the output projection */
} rse_config_attention;

/* Mixtures of experts: of `experts` MLPs each token uses the `used` ones with the highest score. */
typedef struct rse_config_moe {
    int32_t experts; /* 0: the model has none */
    int32_t used;
    int32_t width;
    int32_t shared_width; /* of an MLP that every token uses; 0: none */
    int32_t latent;   /* width of the experts' inputs and outputs where it is not the hidden size; 0: it is */
    bool latent_norm; /* a norm on the sum of the experts, before it leaves the latent row */
    bool shared_gate; /* the shared expert is multiplied by sigmoid(shared_expert_gate x) */
    bool sigmoid;     /* scores are sigmoid(router x), not a softmax over all experts */
    bool correction;  /* a bias is added to scores where experts are chosen, and only there */
    bool normalise;   /* weights of the chosen ones are divided by their sum */
    float scale;      /* factor on the weights */
} rse_config_moe;

typedef struct rse_config {
    char model_type[64]; /* as written, of the text part */
    int32_t family;      /* RSE_FAMILY_* */
    int32_t vocab;
    int32_t hidden;
    int32_t layers;
    uint8_t layer[RSE_CONFIG_LAYERS]; /* RSE_LAYER_*, [layers] */
    uint8_t ffn[RSE_CONFIG_LAYERS];   /* RSE_LAYER_MLP or _MOE of layers that end with one; else 0, [layers] */
    rse_config_ssm ssm;
    rse_config_attention attention;
    rse_config_moe moe;
    int32_t mlp_width;
    int32_t mlp_act; /* RSE_ACT_SILU: down(silu(gate x) * up x); RSE_ACT_RELU2: down(relu(up x)^2);
                        RSE_ACT_SITU: silu and up with their linear parts bounded by tanh */
    float act_limit; /* SILU: gate is cut above, up on both sides; 0: neither. SITU: beta, the bound of gate's
                        part */
    float act_limit_up; /* SITU: bound of up; 0: none */
    int32_t residual;   /* RSE_RESIDUAL_* */
    int32_t streams;    /* of RSE_RESIDUAL_STREAMS */
    int32_t stream_iterations;
    float stream_eps;
    int32_t bank_layers; /* RSE_RESIDUAL_BANK: every so many layers the stream is kept and starts anew */
    bool mlp_bias;
    float norm_eps;
    bool norm_plus_one;    /* layer, q and k norms multiply by 1 + w, not by w (the gated norm of the ssm never
                              does) */
    float embedding_scale; /* factors on embeddings and on what each block adds, and a divisor of logits; 1 */
    float residual_scale;
    float logit_divisor;
    bool tied;             /* lm_head is the embedding matrix */
    int32_t max_positions; /* 0: not stated */
    int32_t mtp_blocks; /* as the config says; 0 if it is silent, the checkpoint may hold mtp.* nevertheless */
    int32_t bos;        /* -1: none */
    int32_t eos[RSE_CONFIG_EOS];
    int32_t eos_count; /* union of config.json and generation_config.json */
    float temperature; /* what the maker recommends (generation_config.json); negative: nothing */
    float top_p;
    float min_p;
    int32_t top_k;
    int32_t scale_block[2]; /* rows and columns of a matrix that share a scale, in FP8 files with blocks */
    char dtype[16];         /* "bfloat16"; "" if the config is silent. The tensors decide */
    int32_t state_dtype;    /* RSSM_DTYPE_* of the recurrent states, if the config says; RSSM_DTYPE_DEFAULT if not */
} rse_config;

/* Reads directory/config.json and, where it exists, generation_config.json (end tokens); or a GGUF file. */
rse_status rse_config_load(const char *directory, rse_config *config, rse_error *err);
/* The same from texts in memory; generation may be NULL. */
rse_status rse_config_parse(const char *text, size_t length, const char *generation, size_t generation_length,
                            rse_config *config, rse_error *err);

/* How many layers are of this kind. */
int32_t rse_config_count(const rse_config *config, int32_t kind);
bool rse_config_is_eos(const rse_config *config, int32_t id);
const char *rse_layer_name(int32_t kind); /* "gdn", "mamba2", "attention", "mlp", "kda", "mla", "moe" */

#endif
