/* SPDX-License-Identifier: Apache-2.0 */
/* The helpers that families are written with: blocks, and tensors by formatted names. */
#include "model/family.h"

rse_block *rse_build_block(rse_builder *builder, int32_t kind, int32_t layer) {
    rse_model *model = builder->model;
    rse_block *block = &model->block[model->blocks++];
    block->kind = kind;
    block->layer = layer;
    if (kind == RSE_BLOCK_MIXER) {
        block->mixer.index = model->recurrent++;
    } else if (kind == RSE_BLOCK_ATTENTION) {
        block->attn.index = model->attention++;
    } else if (kind == RSE_BLOCK_MLA) {
        block->mla.index = model->attention++;
    }
    return block;
}

bool rse_build_has(const rse_builder *builder, const char *name, ...) {
    char full[RSE_NAME_SIZE];
    RSE_FORMAT_NAME(full, name);
    return rse_weights_has(builder->model->weights, full);
}

rse_status rse_build_matrix(rse_builder *builder, rse_shape shape, rse_matrix *matrix, rse_error *err,
                            const char *name, ...) {
    char full[RSE_NAME_SIZE];
    RSE_FORMAT_NAME(full, name);
    return rse_take_matrix(builder, full, shape, matrix, err);
}

rse_status rse_build_linear(rse_builder *builder, int64_t rows, int64_t cols, bool bias, rse_linear *linear,
                            rse_error *err, const char *name, ...) {
    char stem[RSE_NAME_SIZE];
    char full[RSE_NAME_SIZE + 8];
    RSE_FORMAT_NAME(stem, name);
    snprintf(full, sizeof full, "%s.weight", stem);
    linear->bias = NULL;
    RSE_TRY(rse_take_matrix(builder, full, rse_shape2(rows, cols), &linear->w, err));
    if (bias) {
        float *values;
        snprintf(full, sizeof full, "%s.bias", stem);
        RSE_TRY(rse_take_vector(builder, full, rse_shape1(rows), &values, err));
        linear->bias = values;
    }
    return RSE_OK;
}

rse_status rse_build_vector(rse_builder *builder, rse_shape shape, const float **vector, rse_error *err,
                            const char *name, ...) {
    char full[RSE_NAME_SIZE];
    RSE_FORMAT_NAME(full, name);
    float *values;
    RSE_TRY(rse_take_vector(builder, full, shape, &values, err));
    *vector = values;
    return RSE_OK;
}

rse_status rse_build_norm(rse_builder *builder, int64_t cols, const float **norm, rse_error *err,
                          const char *name, ...) {
    char full[RSE_NAME_SIZE];
    RSE_FORMAT_NAME(full, name);
    float *values;
    RSE_TRY(rse_take_vector(builder, full, rse_shape1(cols), &values, err));
    for (int64_t i = 0; builder->model->config.norm_plus_one && i < cols; i++) {
        values[i] += 1.0f;
    }
    *norm = values;
    return RSE_OK;
}

rse_status rse_build_attention(rse_builder *builder, rse_attn *attn, rse_error *err, const char *stem, ...) {
    char at[RSE_NAME_SIZE];
    RSE_FORMAT_NAME(at, stem);
    const rse_config_attention *shape = &builder->model->config.attention;
    int64_t hidden = builder->model->config.hidden;
    int64_t queries = (int64_t)shape->q_heads * shape->head_dim;
    int64_t keys = (int64_t)shape->kv_heads * shape->head_dim;
    int64_t q_rows = shape->output_gate ? 2 * queries : queries;
    RSE_TRY(rse_build_linear(builder, q_rows, hidden, shape->bias, &attn->q, err, "%s.q_proj", at));
    RSE_TRY(rse_build_linear(builder, keys, hidden, shape->bias, &attn->k, err, "%s.k_proj", at));
    RSE_TRY(rse_build_linear(builder, keys, hidden, shape->bias, &attn->v, err, "%s.v_proj", at));
    RSE_TRY(rse_build_linear(builder, hidden, queries, shape->bias, &attn->out, err, "%s.o_proj", at));
    if (shape->qk_norm) {
        RSE_TRY(rse_build_norm(builder, shape->head_dim, &attn->q_norm, err, "%s.q_norm.weight", at));
        RSE_TRY(rse_build_norm(builder, shape->head_dim, &attn->k_norm, err, "%s.k_norm.weight", at));
    }
    return RSE_OK;
}

rse_status rse_build_mlp(rse_builder *builder, int64_t width, bool gated, rse_mlp *mlp, rse_error *err,
                         const char *stem, ...) {
    char at[RSE_NAME_SIZE];
    RSE_FORMAT_NAME(at, stem);
    int64_t hidden = builder->model->config.hidden;
    bool bias = builder->model->config.mlp_bias;
    if (gated) {
        RSE_TRY(rse_build_linear(builder, width, hidden, bias, &mlp->gate, err, "%s.gate_proj", at));
    }
    RSE_TRY(rse_build_linear(builder, width, hidden, bias, &mlp->up, err, "%s.up_proj", at));
    return rse_build_linear(builder, hidden, width, bias, &mlp->down, err, "%s.down_proj", at);
}

rse_status rse_build_mtp(rse_builder *builder, rse_mtp **mtp, rse_error *err) {
    void *memory;
    *mtp = NULL;
    if (!rse_weights_has_prefix(builder->model->weights, "mtp.")) {
        return RSE_OK;
    }
    RSE_TRY(rse_build_own(builder, sizeof **mtp, &memory, err));
    *mtp = builder->model->mtp = memory;
    builder->parameters = &builder->model->parameters_mtp;
    return RSE_OK;
}

rse_status rse_build_ends(rse_builder *builder, const char *embedding, rse_error *err) {
    rse_model *model = builder->model;
    int64_t vocab = model->config.vocab;
    int64_t hidden = model->config.hidden;
    RSE_TRY(rse_take_matrix(builder, embedding, rse_shape2(vocab, hidden), &model->embedding, err));
    if (!model->config.tied) {
        return rse_build_linear(builder, vocab, hidden, false, &model->output, err, "lm_head");
    }
    model->output = (rse_linear){.w = model->embedding};
    if (rse_weights_has(model->weights, "lm_head.weight")) { /* some files repeat the tied matrix */
        rse_tensor copy;
        return rse_weights_view(model->weights, "lm_head.weight", rse_shape2(vocab, hidden), &copy, err);
    }
    return RSE_OK;
}
