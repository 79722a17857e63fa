/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a family's file is written with: the table it is registered in, and helpers that take tensors by name.
 * docs/adding-a-family.md goes through one.
 */
#ifndef RSE_FAMILY_H
#define RSE_FAMILY_H

#include "model/model.h"

#include <stdarg.h>
#include <stdio.h>

enum { RSE_NAME_SIZE = 192 };

/* The name that a helper's last named argument is the format of; families use short ones, so nothing is ever cut. */
#define RSE_FORMAT_NAME(buffer, format)                                                                        \
    do {                                                                                                       \
        va_list args_;                                                                                         \
        va_start(args_, format);                                                                               \
        vsnprintf(buffer, sizeof buffer, format, args_);                                                       \
        va_end(args_);                                                                                         \
    } while (0)

/* A model being built. Names given to the helpers are printf formats for the names of tensors. */
typedef struct rse_builder {
    rse_model *model;
    struct XXH3_state_s *hash; /* of the fingerprint */
    int64_t *parameters;       /* where elements are counted: of the model, or of its MTP blocks */
} rse_builder;

typedef struct rse_family {
    int32_t family; /* RSE_FAMILY_*, to which load/hfconfig.c maps model_type */
    /* Fills blocks, spec, embedding, norm and output of builder->model, whose config is read. */
    rse_status (*build)(rse_builder *builder, rse_error *err);
    const char *const *ignored; /* prefixes of tensors that may be there and are not used; ends with NULL */
} rse_family;

extern const rse_family rse_family_qwen3_5;
extern const rse_family rse_family_nemotron_h;
extern const rse_family rse_family_mamba2;
extern const rse_family rse_family_granite_hybrid;
extern const rse_family rse_family_kimi_linear;
extern const rse_family rse_family_glm5_next;

/* The next block of the model. There is room for two per layer. */
rse_block *rse_build_block(rse_builder *builder, int32_t kind, int32_t layer);

/* Memory, zeroed, that is freed with the model. */
rse_status rse_build_own(rse_builder *builder, size_t bytes, void **memory, rse_error *err);
/* The two ways in which tensors are taken: as stored, with the scales of packed ones, or as f32. */
rse_status rse_take_matrix(rse_builder *builder, const char *name, rse_shape shape, rse_matrix *matrix,
                           rse_error *err);
rse_status rse_take_vector(rse_builder *builder, const char *name, rse_shape shape, float **vector,
                           rse_error *err);

/* Whether the checkpoint has a tensor of this full name. */
bool rse_build_has(const rse_builder *builder, const char *name, ...) __attribute__((format(printf, 2, 3)));
/* Matrix of this full name; of a shape of three sizes the first two are rows. */
rse_status rse_build_matrix(rse_builder *builder, rse_shape shape, rse_matrix *matrix, rse_error *err,
                            const char *name, ...) __attribute__((format(printf, 5, 6)));
/* Matrix [rows][cols] "<name>.weight", and the bias "<name>.bias" [rows] if asked for. */
rse_status rse_build_linear(rse_builder *builder, int64_t rows, int64_t cols, bool bias, rse_linear *linear,
                            rse_error *err, const char *name, ...) __attribute__((format(printf, 7, 8)));
/* Tensor of this full name as f32. */
rse_status rse_build_vector(rse_builder *builder, rse_shape shape, const float **vector, rse_error *err,
                            const char *name, ...) __attribute__((format(printf, 5, 6)));
/* A layer, q or k norm [cols], with the 1 of the (1 + w) form added where the family has it. */
rse_status rse_build_norm(rse_builder *builder, int64_t cols, const float **norm, rse_error *err,
                          const char *name, ...) __attribute__((format(printf, 5, 6)));

/* "<stem>.q_proj" and so on: projections, output gate, biases and head norms as the configuration has them. */
rse_status rse_build_attention(rse_builder *builder, rse_attn *attn, rse_error *err, const char *stem, ...)
    __attribute__((format(printf, 4, 5)));

/* "<stem>.q_proj", or q_a_proj, q_a_layernorm and q_b_proj; "<stem>.kv_a_proj_with_mqa" and so on. */
rse_status rse_build_mla(rse_builder *builder, rse_mla *mla, rse_error *err, const char *stem, ...)
    __attribute__((format(printf, 4, 5)));

/* "<stem>.gate_proj" if gated, "<stem>.up_proj", "<stem>.down_proj", with biases as the configuration says. */
rse_status rse_build_mlp(rse_builder *builder, int64_t width, bool gated, rse_mlp *mlp, rse_error *err,
                         const char *stem, ...) __attribute__((format(printf, 6, 7)));

/* How a family calls the parts of its mixtures, behind "<stem>."; NULL is the usual name, given in brackets. */
typedef struct rse_moe_names {
    const char *router; /* of a matrix ["gate"] */
    const char *gate, *up, *down; /* of a matrix per expert, "<stem>.experts.0.<up>" ["gate_proj" and so on] */
    const char *fused; /* full name of gate and up of all experts ["experts.gate_up_proj"] */
    const char *stacked_down; /* full name of all experts' down projections ["experts.down_proj"] */
    const char *shared;       /* stem of the shared expert ["shared_experts"]; "": the family builds it */
    const char *latent_in, *latent_out, *latent_norm; /* of experts on a latent row; the last a full name */
} rse_moe_names;
/* Router, correction, latent projections, experts and shared expert, as the configuration has them. */
rse_status rse_build_moe(rse_builder *builder, const rse_moe_names *names, rse_moe *moe, rse_error *err,
                         const char *stem, ...) __attribute__((format(printf, 5, 6)));

/* "<stem>.in_proj", conv1d, A_log, dt_bias, D, norm, out_proj of a Mamba-2 mixer; and the spec of its layers.
 */
rse_status rse_build_mamba2(rse_builder *builder, rse_mixer *mixer, rse_error *err, const char *stem, ...)
    __attribute__((format(printf, 4, 5)));
void rse_build_mamba2_spec(rse_model *model);
/* "<stem>.q_proj", q_conv1d, f_a_proj, b_proj, g_a_proj and so on of a KDA mixer; and the spec of its layers.
 */
rse_status rse_build_kda(rse_builder *builder, rse_mixer *mixer, rse_error *err, const char *stem, ...)
    __attribute__((format(printf, 4, 5)));
void rse_build_kda_spec(rse_model *model);
/* "<at>.A_log", or "<at>.A" where the file holds -exp(A_log). */
rse_status rse_build_decay(rse_builder *builder, int64_t heads, rssm_layer_weights *constants, rse_error *err,
                           const char *at);

/* The model's prediction block, to be filled; what is taken from here on counts as its. NULL: the weights have none. It is
 * kept for drafting; the model itself runs without it. */
rse_status rse_build_mtp(rse_builder *builder, rse_mtp **mtp, rse_error *err);

/* Embedding and output matrix, the latter the embedding where they are tied. */
rse_status rse_build_ends(rse_builder *builder, const char *embedding, rse_error *err);

#endif
