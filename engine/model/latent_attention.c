/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over latent rows in the absorbed form: queries are turned into the latent space, the paged cache
 * holds one row per token that is key and value at once, and results are turned back. The cache's value half
 * repeats the key half: pages keep the two in different orders.
 */
#include "model/forward_parts.h"

#include <math.h>
#include <string.h>

void rse_latent_measure(const rse_config *config, rse_scratch *scratch) {
    const rse_config_attention *a = &config->attention;
    scratch->wide = rse_larger(scratch->wide, (int64_t)a->q_heads * rse_larger(a->nope + a->shared, a->v_dim));
    scratch->inner = rse_larger(scratch->inner, (int64_t)a->q_heads * a->v_dim);
    scratch->keys = rse_larger(scratch->keys, a->head_dim);
    scratch->low = rse_larger(scratch->low, a->q_latent);
    scratch->gathered = rse_larger(scratch->gathered, (int64_t)a->q_heads * a->head_dim);
    scratch->given = rse_larger(scratch->given, (int64_t)a->q_heads * a->head_dim);
}

/* f->gathered [tokens][heads][latent | shared] */
static void make_queries(rse_forward *f, int64_t tokens, const rse_mla *mla) {
    const rse_config_attention *a = &f->desc.model->config.attention;
    const rse_math *math = f->desc.math;
    int64_t head = a->nope + a->shared;
    int64_t stride = head * a->q_heads;
    int64_t wide = (int64_t)a->head_dim * a->q_heads;
    const float *x = f->normed;
    if (mla->q_low.w.data != NULL) {
        rse_forward_linear(f, &mla->q_low, tokens, x, mla->q_low.w.cols, f->low, a->q_latent);
        rse_rms_norm(math, tokens, a->q_latent, f->low, a->q_latent, mla->q_norm, a->latent_eps, f->low,
                     a->q_latent);
        rse_forward_store(f, tokens, a->q_latent, f->low, a->q_latent);
        x = f->low;
    }
    rse_forward_linear(f, &mla->q, tokens, x, mla->q.w.cols, f->wide, stride);
    for (int32_t h = 0; h < a->q_heads; h++) {
        rse_matrix key_t = rse_matrix_rows(&mla->key_t, (int64_t)h * a->kv_latent, a->kv_latent);
        float *to = f->gathered + (int64_t)h * a->head_dim;
        rse_matmul(math, &key_t, NULL, tokens, f->wide + h * head, stride, to, wide);
        for (int64_t t = 0; t < tokens; t++) {
            memcpy(to + t * wide + a->kv_latent, f->wide + t * stride + h * head + a->nope,
                   (size_t)a->shared * sizeof *to);
        }
    }
}

void rse_latent_run(rse_forward *f, const rse_step *step, const rse_mla *mla) {
    const rse_config_attention *a = &f->desc.model->config.attention;
    const rse_math *math = f->desc.math;
    int64_t tokens = step->tokens;
    int64_t hidden = f->desc.model->config.hidden;
    int64_t row = a->head_dim;
    int64_t wide = row * a->q_heads;
    int64_t values = (int64_t)a->v_dim * a->q_heads;
    make_queries(f, tokens, mla);
    rse_forward_linear(f, &mla->kv, tokens, f->normed, hidden, f->keys, row);
    rse_rms_norm(math, tokens, a->kv_latent, f->keys, row, mla->kv_norm, a->latent_eps, f->keys, row);
    rse_forward_store(f, tokens, a->kv_latent, f->keys, row);
    rse_forward_keep(f, step, mla->index, row, f->keys, f->keys);
    rse_attention_args args = {
        .pool = f->desc.kv,
        .layer = mla->index,
        .heads = a->q_heads,
        .scale = 1.0f / sqrtf((float)(a->nope + a->shared)),
        .row_count = step->attends,
        .rows = step->attend,
        .q = f->gathered,
        .q_stride = wide,
        .q_head_stride = row,
        .out = f->given,
        .out_stride = wide,
    };
    rse_attention(math, &args);
    for (int32_t h = 0; h < a->q_heads; h++) {
        rse_matmul(math, &mla->val[h], NULL, tokens, f->given + h * row, wide, f->inner + (int64_t)h * a->v_dim,
                   values);
    }
    rse_forward_store(f, tokens, values, f->inner, values);
    if (mla->gate.w.data != NULL) { /* queries are done with: their place is free */
        rse_forward_linear(f, &mla->gate, tokens, f->normed, hidden, f->wide, values);
        rse_sigmoid_mul(math, tokens, values, f->wide, values, f->inner, values, f->inner, values);
        rse_forward_store(f, tokens, values, f->inner, values);
    }
    rse_forward_linear(f, &mla->out, tokens, f->inner, values, f->delta, hidden);
}
