/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a family's file is written with: the table it is registered in, and helpers that take tensors by name.
 * docs/adding-a-family.md goes through one.
 */
#ifndef RSE_FAMILY_H
#define RSE_FAMILY_H

#include "model/model.h"

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

/* The next block of the model. There is room for two per layer. */
rse_block *rse_build_block(rse_builder *builder, int32_t kind, int32_t layer);

/* Matrix [rows][cols] "<name>.weight", and the bias "<name>.bias" [rows] if asked for. F16 becomes f32. */
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

/* Embedding and output matrix, the latter the embedding where they are tied. */
rse_status rse_build_ends(rse_builder *builder, const char *embedding, rse_error *err);

#endif
