/* SPDX-License-Identifier: Apache-2.0 */
#include "model/forward_parts.h"
#include "numbers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

rse_status rse_library(const rssm_context *context, rssm_status status, rse_error *err) {
    if (status == RSSM_OK) {
        return RSE_OK;
    }
    rse_status mapped = status == RSSM_ERROR_MEMORY     ? RSE_ERROR_MEMORY
                        : status == RSSM_ERROR_CORRUPT  ? RSE_ERROR_FORMAT
                        : status == RSSM_ERROR_MISMATCH ? RSE_ERROR_MISMATCH
                                                        : RSE_ERROR_LIBRARY;
    const char *message = rssm_context_message(context);
    return rse_fail(err, mapped, "%s", message[0] != '\0' ? message : rssm_status_string(status));
}

static rse_scratch measure(const rse_model *model, bool bf16) {
    const rse_config *config = &model->config;
    rse_scratch w = {.hidden = config->hidden};
    for (int32_t i = 0; i < model->blocks; i++) {
        const rse_block *block = &model->block[i];
        if (block->kind == RSE_BLOCK_MIXER) {
            w.wide = rse_larger(w.wide, block->mixer.width);
            w.inner = rse_larger(w.inner, block->mixer.out.w.cols);
            w.packed = bf16 ? rse_larger(w.packed, (block->mixer.width + 1) / 2) : 0;
            for (int32_t j = 0; j < block->mixer.inputs; j++) {
                const rse_projection *in = &block->mixer.in[j];
                w.low = rse_larger(w.low, in->segment != NULL ? in->w.w.rows : in->low.w.rows);
            }
        } else if (block->kind == RSE_BLOCK_ATTENTION) {
            w.wide = rse_larger(w.wide, block->attn.q.w.rows);
            w.inner = rse_larger(w.inner, block->attn.out.w.cols);
            w.keys = block->attn.k.w.rows;
            w.rope = config->attention.rotary;
        } else if (block->kind == RSE_BLOCK_MLA) {
            rse_latent_measure(config, &w);
        } else if (block->kind == RSE_BLOCK_MOE) {
            rse_experts_measure(config, &w);
        } else {
            w.wide = rse_larger(w.wide, block->mlp.up.w.rows);
            w.inner = rse_larger(w.inner, block->mlp.up.w.rows);
        }
    }
    rse_residual_measure(config, &w);
    return w;
}

static float *carve(float **next, int64_t tokens, int64_t width) {
    float *at = *next;
    *next += (tokens * width + 15) / 16 * 16;
    return at;
}

static void lay_out(rse_forward *f, const rse_scratch *w, float **next) {
    int64_t tokens = f->desc.tokens;
    f->x = carve(next, tokens, w->hidden);
    f->normed = carve(next, tokens, w->hidden);
    f->delta = carve(next, tokens, w->hidden);
    f->wide = carve(next, tokens, w->wide);
    f->inner = carve(next, tokens, w->inner);
    f->keys = carve(next, tokens, w->keys);
    f->values = carve(next, tokens, w->keys);
    f->rope = carve(next, tokens, w->rope);
    f->packed = (uint16_t *)carve(next, tokens, w->packed);
    f->low = carve(next, tokens, w->low);
    f->score = carve(next, tokens, w->score);
    f->gathered = carve(next, tokens, w->gathered);
    f->given = carve(next, tokens, w->given);
    f->route = carve(next, tokens, w->route);
    f->streams = carve(next, tokens, w->streams);
    f->mix = carve(next, tokens, w->mix);
    f->mixed = carve(next, tokens, w->mixed);
}

rse_status rse_forward_create(const rse_forward_desc *desc, rse_forward **forward, rse_error *err) {
    *forward = NULL;
    rse_forward *f = calloc(1, sizeof *f);
    if (f == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for the scratch of a step");
    }
    f->desc = *desc;
    f->bf16 = desc->io_dtype == RSSM_DTYPE_BF16;
    rse_scratch w = measure(desc->model, f->bf16);
    float *next = NULL;
    int64_t per_token = 3 * w.hidden + w.wide + w.inner + 2 * w.keys + w.rope + w.packed + w.low + w.score +
                        w.gathered + w.given + w.route + w.streams + w.mix + w.mixed;
    f->bytes = (per_token * desc->tokens + 16 * 24) * (int64_t)sizeof(float);
    void *memory = NULL;
    if (posix_memalign(&memory, 64, (size_t)f->bytes) != 0) {
        rse_fail(err, RSE_ERROR_MEMORY, "no memory for the scratch of a step of %lld tokens: %lld bytes",
                 (long long)desc->tokens, (long long)f->bytes);
        free(f);
        return RSE_ERROR_MEMORY;
    }
    next = f->memory = memory;
    lay_out(f, &w, &next);
    *forward = f;
    return RSE_OK;
}

void rse_forward_destroy(rse_forward *forward) {
    if (forward != NULL) {
        free(forward->memory);
        free(forward);
    }
}

int64_t rse_forward_bytes(const rse_forward *forward) {
    return forward->bytes;
}

void rse_forward_store(const rse_forward *f, int64_t rows, int64_t cols, float *x, int64_t stride) {
    if (f->bf16) {
        rse_round_bf16(f->desc.math, rows, cols, x, stride, x, stride);
    }
}

void rse_forward_linear(const rse_forward *f, const rse_linear *w, int64_t tokens, const float *x,
                        int64_t x_stride, float *y, int64_t y_stride) {
    rse_matmul(f->desc.math, &w->w, w->bias, tokens, x, x_stride, y, y_stride);
    rse_forward_store(f, tokens, w->w.rows, y, y_stride);
}

/* The same for dense rows of x. */
static void linear(const rse_forward *f, const rse_linear *w, int64_t tokens, const float *x, float *y,
                   int64_t y_stride) {
    rse_forward_linear(f, w, tokens, x, w->w.cols, y, y_stride);
}

rssm_layer_inputs rse_mixer_inputs(const rse_mixer *mixer, const void *packed, int32_t io_dtype) {
    const char *base = packed;
    int64_t size = io_dtype == RSSM_DTYPE_BF16 ? 2 : 4;
    int64_t stride = mixer->width;
    rssm_layer_inputs inputs = {
        .struct_size = sizeof inputs,
        .q = {base + mixer->q * size, stride, 0},
        .k = {base + mixer->k * size, stride, 0},
        .v = {base + mixer->v * size, stride, 0},
        .z = {base + mixer->z * size, stride, 0},
        .decay = {base + mixer->decay * size, stride, 0},
    };
    if (mixer->beta >= 0) {
        inputs.beta = (rssm_view){base + mixer->beta * size, stride, 0};
    }
    return inputs;
}

/* One projection of a mixer into the packed rows. */
static void project(rse_forward *f, const rse_projection *in, int64_t tokens, float *packed, int64_t width) {
    const float *x = f->normed;
    if (in->low.w.data != NULL) {
        linear(f, &in->low, tokens, x, f->low, in->low.w.rows);
        x = f->low;
    }
    if (in->segment == NULL) {
        linear(f, &in->w, tokens, x, packed + in->to, width);
        return;
    }
    int64_t rows = in->w.w.rows;
    linear(f, &in->w, tokens, x, f->low, rows);
    for (int64_t t = 0; t < tokens; t++) {
        for (int32_t i = 0; i < in->segments; i++) {
            const rse_segment *s = &in->segment[i];
            memcpy(packed + t * width + s->to, f->low + t * rows + s->from, (size_t)s->count * sizeof *packed);
        }
    }
}

static rse_status run_mixer(rse_forward *f, const rse_step *step, const rse_mixer *mixer, rse_error *err) {
    int64_t tokens = step->tokens;
    for (int32_t i = 0; i < mixer->inputs; i++) {
        project(f, &mixer->in[i], tokens, f->wide, mixer->width);
    }
    const void *packed = f->wide;
    if (f->bf16) {
        for (int64_t i = 0; i < tokens * mixer->width; i++) {
            f->packed[i] = rssm_bf16_of_f32(f->wide[i]);
        }
        packed = f->packed;
    }
    if (step->inputs != NULL) {
        step->inputs(step->inputs_user, mixer->index, packed);
    }
    rssm_layer_inputs inputs = rse_mixer_inputs(mixer, packed, f->desc.io_dtype);
    rssm_output out = {.struct_size = sizeof out, .data = f->inner, .dtype = RSSM_DTYPE_F32};
    rssm_status status = RSSM_OK;
    if (f->desc.recurrence != NULL) {
        status = f->desc.recurrence(f->desc.recurrence_user, step, mixer->index, &inputs, &out);
    }
    if (step->decodes && f->desc.cache != NULL) {
        status = rssm_cache_decode(f->desc.cache, mixer->index, &step->batch, &inputs, &out, NULL);
    }
    if (step->prompts && f->desc.cache != NULL && status == RSSM_OK) {
        status = rssm_cache_prefill(f->desc.cache, mixer->index, &step->batch, &inputs, &out, NULL);
    }
    RSE_TRY(rse_library(f->desc.context, status, err));
    rse_forward_store(f, tokens, mixer->out.w.cols, f->inner, mixer->out.w.cols);
    linear(f, &mixer->out, tokens, f->inner, f->delta, f->desc.model->config.hidden);
    return RSE_OK;
}

/* Head norm and rotation of queries or keys: `heads` per token, `head_stride` apart. */
static void norm_and_turn(rse_forward *f, int64_t tokens, int64_t heads, const float *norm, float *x,
                          int64_t head_stride) {
    const rse_config *config = &f->desc.model->config;
    int64_t dim = config->attention.head_dim;
    if (norm != NULL) {
        rse_rms_norm(f->desc.math, tokens * heads, dim, x, head_stride, norm, config->norm_eps, x, head_stride);
        rse_forward_store(f, tokens * heads, dim, x, head_stride);
    }
    if (config->attention.rotary > 0) {
        rse_rope(f->desc.math, tokens, heads, config->attention.rotary, f->rope, x, heads * head_stride,
                 head_stride);
        rse_forward_store(f, tokens * heads, dim, x, head_stride);
    }
}

void rse_forward_keep(const rse_forward *f, const rse_step *step, int32_t layer, int64_t stride,
                      const float *keys, const float *values) {
    for (int32_t i = 0; i < step->batch.rows; i++) {
        const rse_attention_row *row = &step->kv_rows[i];
        rse_kv_write(f->desc.kv, row->seq, layer, row->start, row->tokens, keys + row->first * stride, stride,
                     values + row->first * stride, stride);
    }
    for (int32_t i = 0; i < step->branch_count; i++) {
        const rse_attention_branch *branch = &step->branches[i];
        rse_kv_branch_fill(f->desc.kv, branch->trunk, layer, branch->start, branch->path, branch->depth,
                           &branch->seq);
    }
}

static void run_attention(rse_forward *f, const rse_step *step, const rse_attn *attn) {
    const rse_config_attention *shape = &f->desc.model->config.attention;
    int64_t tokens = step->tokens;
    int64_t dim = shape->head_dim;
    int64_t q_head = shape->output_gate ? 2 * dim : dim;
    int64_t q_stride = q_head * shape->q_heads;
    int64_t k_stride = dim * shape->kv_heads;
    int64_t out_stride = dim * shape->q_heads;
    linear(f, &attn->q, tokens, f->normed, f->wide, q_stride);
    linear(f, &attn->k, tokens, f->normed, f->keys, k_stride);
    linear(f, &attn->v, tokens, f->normed, f->values, k_stride);
    norm_and_turn(f, tokens, shape->q_heads, attn->q_norm, f->wide, q_head);
    norm_and_turn(f, tokens, shape->kv_heads, attn->k_norm, f->keys, dim);
    rse_forward_keep(f, step, attn->index, k_stride, f->keys, f->values);
    rse_attention_args args = {
        .pool = f->desc.kv,
        .layer = attn->index,
        .heads = shape->q_heads,
        .scale = shape->scale != 0.0f ? shape->scale : 1.0f / sqrtf((float)dim),
        .row_count = step->attends,
        .rows = step->attend,
        .q = f->wide,
        .q_stride = q_stride,
        .q_head_stride = q_head,
        .out = f->inner,
        .out_stride = out_stride,
    };
    rse_attention(f->desc.math, &args);
    rse_forward_store(f, tokens, out_stride, f->inner, out_stride);
    if (shape->output_gate) {
        rse_sigmoid_mul(f->desc.math, tokens * shape->q_heads, dim, f->wide + dim, q_head, f->inner, dim,
                        f->inner, dim);
        rse_forward_store(f, tokens, out_stride, f->inner, out_stride);
    }
    linear(f, &attn->out, tokens, f->inner, f->delta, f->desc.model->config.hidden);
}

/* inner = the activation of wide, times inner. */
static void gate(const rse_forward *f, int64_t tokens, int64_t width) {
    const rse_config *config = &f->desc.model->config;
    const rse_math *math = f->desc.math;
    if (config->mlp_act == RSE_ACT_SITU) {
        rse_situ_mul(math, tokens, width, f->wide, width, f->inner, width, config->act_limit,
                     config->act_limit_up, f->inner, width);
        return;
    }
    if (config->act_limit > 0.0f) {
        rse_clamp(math, tokens, width, f->wide, width, -INFINITY, config->act_limit, f->wide, width);
        rse_clamp(math, tokens, width, f->inner, width, -config->act_limit, config->act_limit, f->inner, width);
    }
    rse_silu_mul(math, tokens, width, f->wide, width, f->inner, width, f->inner, width);
}

void rse_forward_mlp(const rse_forward *f, int64_t tokens, const rse_mlp *mlp, const float *x, float *y) {
    int64_t width = mlp->up.w.rows;
    linear(f, &mlp->up, tokens, x, f->inner, width);
    if (mlp->gate.w.data != NULL) {
        linear(f, &mlp->gate, tokens, x, f->wide, width);
        gate(f, tokens, width);
    } else {
        rse_relu2(f->desc.math, tokens, width, f->inner, width, f->inner, width);
    }
    rse_forward_store(f, tokens, width, f->inner, width);
    linear(f, &mlp->down, tokens, f->inner, y, mlp->down.w.rows);
}

/* delta = what the block makes of the normed rows. */
static rse_status run_kind(rse_forward *f, const rse_step *step, const rse_block *block, rse_error *err) {
    switch (block->kind) {
    case RSE_BLOCK_MIXER:
        return run_mixer(f, step, &block->mixer, err);
    case RSE_BLOCK_ATTENTION:
        run_attention(f, step, &block->attn);
        return RSE_OK;
    case RSE_BLOCK_MLA:
        rse_latent_run(f, step, &block->mla);
        return RSE_OK;
    case RSE_BLOCK_MOE:
        rse_experts_run(f, step->tokens, &block->moe);
        return RSE_OK;
    default:
        rse_forward_mlp(f, step->tokens, &block->mlp, f->normed, f->delta);
        return RSE_OK;
    }
}

static rse_status run_block(rse_forward *f, const rse_step *step, const rse_block *block, rse_error *err) {
    const rse_config *config = &f->desc.model->config;
    const rse_math *math = f->desc.math;
    int64_t hidden = config->hidden;
    int64_t tokens = step->tokens;
    rse_residual_enter(f, tokens, block);
    rse_rms_norm(math, tokens, hidden, f->entry, hidden, block->norm, config->norm_eps, f->normed, hidden);
    rse_forward_store(f, tokens, hidden, f->normed, hidden);
    RSE_TRY(run_kind(f, step, block, err));
    if (config->residual_scale != 1.0f) {
        rse_scale(math, tokens, hidden, f->delta, hidden, config->residual_scale, f->delta, hidden);
        rse_forward_store(f, tokens, hidden, f->delta, hidden);
    }
    rse_residual_leave(f, tokens, block);
    return RSE_OK;
}

/* The final norm of every token. */
static void finish_all(rse_forward *f, const rse_step *step) {
    int64_t hidden = f->desc.model->config.hidden;
    rse_rms_norm(f->desc.math, step->tokens, hidden, f->x, hidden, f->desc.model->norm,
                 f->desc.model->config.norm_eps, step->hidden, hidden);
    rse_forward_store(f, step->tokens, hidden, step->hidden, hidden);
}

/* Final norm and output matrix, for the tokens whose outputs are wanted. */
static void finish(rse_forward *f, const rse_step *step, float *logits, float *hidden_out) {
    const rse_model *model = f->desc.model;
    int64_t hidden = model->config.hidden;
    for (int64_t i = 0; i < step->outputs; i++) {
        memcpy(f->normed + i * hidden, f->x + step->output_tokens[i] * hidden, (size_t)hidden * sizeof *f->x);
    }
    rse_rms_norm(f->desc.math, step->outputs, hidden, f->normed, hidden, model->norm, model->config.norm_eps,
                 f->normed, hidden);
    rse_forward_store(f, step->outputs, hidden, f->normed, hidden);
    if (f->desc.probe != NULL) {
        f->desc.probe(f->desc.probe_user, model->config.layers, step->outputs, hidden, f->normed);
    }
    if (hidden_out != NULL) {
        memcpy(hidden_out, f->normed, (size_t)(step->outputs * hidden) * sizeof *hidden_out);
    }
    if (logits != NULL) {
        rse_matmul(f->desc.math, &model->output.w, model->output.bias, step->outputs, f->normed, hidden, logits,
                   model->config.vocab);
        if (model->config.logit_divisor != 1.0f) {
            int64_t vocab = model->config.vocab;
            rse_scale(f->desc.math, step->outputs, vocab, logits, vocab, 1.0f / model->config.logit_divisor,
                      logits, vocab);
        }
    }
}

rse_status rse_forward_run(rse_forward *f, const rse_step *step, float *logits, float *hidden, rse_error *err) {
    const rse_model *model = f->desc.model;
    int64_t size = model->config.hidden;
    if (step->x != NULL) {
        memcpy(f->x, step->x, (size_t)(step->tokens * size) * sizeof *f->x);
    }
    for (int64_t i = 0; step->x == NULL && i < step->tokens; i++) {
        rse_matrix_row(f->desc.math, &model->embedding, step->ids[i], f->x + i * size);
    }
    if (model->config.embedding_scale != 1.0f) {
        rse_scale(f->desc.math, step->tokens, size, f->x, size, model->config.embedding_scale, f->x, size);
    }
    rse_forward_store(f, step->tokens, size, f->x, size);
    rse_residual_start(f, step->tokens);
    if (model->attention > 0 && model->config.attention.rotary > 0) {
        RSE_TRY(rse_rope_table(model->config.attention.rotary, model->config.attention.rope_theta, step->tokens,
                               step->positions, f->rope, err));
    }
    int32_t layer = -1;
    for (int32_t i = 0; i < model->blocks; i++) {
        const rse_block *block = &model->block[i];
        if (f->desc.probe != NULL && block->layer != layer) {
            f->desc.probe(f->desc.probe_user, block->layer, step->tokens, size, f->x);
        }
        layer = block->layer;
        RSE_TRY(run_block(f, step, block, err));
    }
    rse_residual_finish(f, step->tokens);
    if (step->hidden != NULL) {
        finish_all(f, step);
    }
    if (step->outputs > 0) {
        finish(f, step, logits, hidden);
    }
    return RSE_OK;
}
