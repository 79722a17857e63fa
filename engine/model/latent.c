/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over latent rows, from its tensors; rse_mla in model.h says what is made of them. */
#include "model/family.h"

#include <stdlib.h>
#include <string.h>

/* Per head [latent][nope] from kv_b's rows [nope | v_dim][latent]; two or four bytes an element stay so. Packed
 * matrices are expanded for it: a column of theirs is no stretch of bytes. */
static rse_status transpose_keys(rse_builder *builder, const rse_matrix *kv_b, rse_matrix *key_t,
                                 rse_error *err) {
    const rse_config_attention *a = &builder->model->config.attention;
    bool narrow = kv_b->dtype == RSSM_DTYPE_BF16 || kv_b->dtype == RSSM_DTYPE_F16;
    size_t size = narrow ? sizeof(uint16_t) : sizeof(float);
    void *memory;
    void *row = malloc((size_t)a->kv_latent * sizeof(float));
    rse_status status =
        row != NULL ? RSE_OK : rse_fail(err, RSE_ERROR_MEMORY, "no memory for a row of %d", a->kv_latent);
    if (status == RSE_OK) {
        status = rse_build_own(builder, (size_t)a->q_heads * a->kv_latent * a->nope * size, &memory, err);
    }
    for (int64_t i = 0; status == RSE_OK && i < (int64_t)a->q_heads * a->nope; i++) {
        int64_t head = i / a->nope;
        rse_matrix one = rse_matrix_rows(kv_b, head * (a->nope + a->v_dim) + i % a->nope, 1);
        char *to = (char *)memory + (head * a->kv_latent * a->nope + i % a->nope) * (int64_t)size;
        if (narrow) {
            memcpy(row, one.data, (size_t)a->kv_latent * size);
        } else {
            rse_matrix_expand(&one, row);
        }
        for (int64_t j = 0; j < a->kv_latent; j++) {
            memcpy(to + j * a->nope * (int64_t)size, (char *)row + j * (int64_t)size, size);
        }
    }
    free(row);
    *key_t = (rse_matrix){.data = memory,
                          .rows = (int64_t)a->q_heads * a->kv_latent,
                          .cols = a->nope,
                          .dtype = narrow ? kv_b->dtype : RSSM_DTYPE_F32,
                          .factor = 1.0f};
    return status;
}

/* The two halves of kv_b, from one tensor, or from two as llama.cpp's files have them, keys transposed. */
static rse_status take_halves(rse_builder *builder, rse_mla *mla, const char *at, rse_error *err) {
    const rse_config_attention *a = &builder->model->config.attention;
    void *memory;
    RSE_TRY(rse_build_own(builder, (size_t)a->q_heads * sizeof *mla->val, &memory, err));
    rse_matrix *val = memory;
    mla->val = val;
    rse_matrix all;
    if (rse_build_has(builder, "%s.k_b_proj.weight", at)) {
        RSE_TRY(rse_build_matrix(builder, rse_shape3(a->q_heads, a->kv_latent, a->nope), &mla->key_t, err,
                                 "%s.k_b_proj.weight", at));
        RSE_TRY(rse_build_matrix(builder, rse_shape3(a->q_heads, a->v_dim, a->kv_latent), &all, err,
                                 "%s.v_b_proj.weight", at));
        for (int32_t h = 0; h < a->q_heads; h++) {
            val[h] = rse_matrix_rows(&all, (int64_t)h * a->v_dim, a->v_dim);
        }
        return RSE_OK;
    }
    int64_t both = a->nope + a->v_dim;
    RSE_TRY(rse_build_matrix(builder, rse_shape2(a->q_heads * both, a->kv_latent), &all, err,
                             "%s.kv_b_proj.weight", at));
    for (int32_t h = 0; h < a->q_heads; h++) {
        val[h] = rse_matrix_rows(&all, h * both + a->nope, a->v_dim);
    }
    return transpose_keys(builder, &all, &mla->key_t, err);
}

rse_status rse_build_mla(rse_builder *builder, rse_mla *mla, rse_error *err, const char *stem, ...) {
    char at[RSE_NAME_SIZE];
    RSE_FORMAT_NAME(at, stem);
    const rse_config_attention *a = &builder->model->config.attention;
    int64_t hidden = builder->model->config.hidden;
    int64_t queries = (int64_t)a->q_heads * (a->nope + a->shared);
    if (a->q_latent > 0) {
        RSE_TRY(rse_build_linear(builder, a->q_latent, hidden, false, &mla->q_low, err, "%s.q_a_proj", at));
        RSE_TRY(rse_build_vector(builder, rse_shape1(a->q_latent), &mla->q_norm, err, "%s.q_a_layernorm.weight",
                                 at));
        RSE_TRY(rse_build_linear(builder, queries, a->q_latent, false, &mla->q, err, "%s.q_b_proj", at));
    } else {
        RSE_TRY(rse_build_linear(builder, queries, hidden, false, &mla->q, err, "%s.q_proj", at));
    }
    RSE_TRY(rse_build_linear(builder, a->kv_latent + a->shared, hidden, false, &mla->kv, err,
                             "%s.kv_a_proj_with_mqa", at));
    RSE_TRY(rse_build_vector(builder, rse_shape1(a->kv_latent), &mla->kv_norm, err, "%s.kv_a_layernorm.weight",
                             at));
    RSE_TRY(take_halves(builder, mla, at, err));
    if (a->latent_gate) {
        RSE_TRY(rse_build_linear(builder, (int64_t)a->q_heads * a->v_dim, hidden, false, &mla->gate, err,
                                 "%s.g_proj", at));
    }
    return rse_build_linear(builder, hidden, (int64_t)a->q_heads * a->v_dim, false, &mla->out, err, "%s.o_proj",
                            at);
}
