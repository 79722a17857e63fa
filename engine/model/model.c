/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading a model: the table of families, the helpers their files are written with, and the fingerprint, which
 * is a hash over the configuration's numbers and, for every tensor taken, its name, shape and a few samples.
 */
#include "model/model.h"
#include "model/family.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static const rse_family *const families[] = {&rse_family_qwen3_5, &rse_family_nemotron_h};

enum { NAME_SIZE = 192, SAMPLES = 16, SAMPLE_BYTES = 64 };

/* Memory that is freed with the model. */
static rse_status own(rse_model *model, size_t bytes, void **memory, rse_error *err) {
    void **grown = realloc(model->owned, (size_t)(model->owned_count + 1) * sizeof *grown);
    if (grown != NULL) {
        model->owned = grown;
    }
    *memory = grown != NULL ? malloc(bytes > 0 ? bytes : 1) : NULL;
    if (*memory == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for %zu bytes of weights", bytes);
    }
    model->owned[model->owned_count++] = *memory;
    model->weight_bytes += (int64_t)bytes;
    return RSE_OK;
}

/* Counts a tensor and lets it into the fingerprint: equal names and shapes with other weights are another
 * model. */
static void note(rse_builder *builder, const rse_tensor *tensor) {
    XXH3_state_t *hash = builder->hash;
    (void)XXH3_64bits_update(hash, tensor->name, strlen(tensor->name) + 1);
    (void)XXH3_64bits_update(hash, &tensor->dtype, sizeof tensor->dtype);
    (void)XXH3_64bits_update(hash, tensor->shape, sizeof tensor->shape[0] * (size_t)tensor->rank);
    const char *data = tensor->data;
    if (tensor->bytes <= SAMPLES * SAMPLE_BYTES) {
        (void)XXH3_64bits_update(hash, data, tensor->bytes);
    } else {
        size_t step = (tensor->bytes - SAMPLE_BYTES) / (SAMPLES - 1);
        for (size_t i = 0; i < SAMPLES; i++) {
            (void)XXH3_64bits_update(hash, data + i * step, SAMPLE_BYTES);
        }
    }
    *builder->parameters += rse_tensor_elements(tensor);
}

static rse_status take_matrix(rse_builder *builder, const char *name, int64_t rows, int64_t cols,
                              rse_matrix *matrix, rse_error *err) {
    rse_tensor view;
    RSE_TRY(rse_weights_view(builder->model->weights, name, rse_shape2(rows, cols), &view, err));
    note(builder, &view);
    *matrix = (rse_matrix){.data = view.data, .rows = rows, .cols = cols};
    if (view.dtype != RSE_DTYPE_F16) {
        matrix->dtype = view.dtype == RSE_DTYPE_F32 ? RSSM_DTYPE_F32 : RSSM_DTYPE_BF16;
        builder->model->weight_bytes += (int64_t)view.bytes;
        return RSE_OK;
    }
    void *copy;
    RSE_TRY(own(builder->model, (size_t)(rows * cols) * sizeof(float), &copy, err));
    rse_convert_to_f32(view.dtype, view.data, rows * cols, copy);
    matrix->data = copy;
    matrix->dtype = RSSM_DTYPE_F32;
    return RSE_OK;
}

static rse_status take_vector(rse_builder *builder, const char *name, rse_shape shape, float **vector,
                              rse_error *err) {
    rse_tensor view;
    RSE_TRY(rse_weights_view(builder->model->weights, name, shape, &view, err));
    note(builder, &view);
    void *copy;
    int64_t elements = rse_tensor_elements(&view);
    RSE_TRY(own(builder->model, (size_t)elements * sizeof(float), &copy, err));
    rse_convert_to_f32(view.dtype, view.data, elements, copy);
    *vector = copy;
    return RSE_OK;
}

/* vsnprintf into a fixed name; families use short formats, so nothing is ever cut. */
#define FORMAT_NAME(buffer, last)                                                                              \
    do {                                                                                                       \
        va_list args_;                                                                                         \
        va_start(args_, last);                                                                                 \
        vsnprintf(buffer, sizeof buffer, last, args_);                                                         \
        va_end(args_);                                                                                         \
    } while (0)

rse_block *rse_build_block(rse_builder *builder, int32_t kind, int32_t layer) {
    rse_model *model = builder->model;
    rse_block *block = &model->block[model->blocks++];
    block->kind = kind;
    block->layer = layer;
    if (kind == RSE_BLOCK_MIXER) {
        block->mixer.index = model->recurrent++;
    } else if (kind == RSE_BLOCK_ATTENTION) {
        block->attn.index = model->attention++;
    }
    return block;
}

rse_status rse_build_linear(rse_builder *builder, int64_t rows, int64_t cols, bool bias, rse_linear *linear,
                            rse_error *err, const char *name, ...) {
    char stem[NAME_SIZE];
    char full[NAME_SIZE + 8];
    FORMAT_NAME(stem, name);
    snprintf(full, sizeof full, "%s.weight", stem);
    linear->bias = NULL;
    RSE_TRY(take_matrix(builder, full, rows, cols, &linear->w, err));
    if (bias) {
        float *values;
        snprintf(full, sizeof full, "%s.bias", stem);
        RSE_TRY(take_vector(builder, full, rse_shape1(rows), &values, err));
        linear->bias = values;
    }
    return RSE_OK;
}

rse_status rse_build_vector(rse_builder *builder, rse_shape shape, const float **vector, rse_error *err,
                            const char *name, ...) {
    char full[NAME_SIZE];
    FORMAT_NAME(full, name);
    float *values;
    RSE_TRY(take_vector(builder, full, shape, &values, err));
    *vector = values;
    return RSE_OK;
}

rse_status rse_build_norm(rse_builder *builder, int64_t cols, const float **norm, rse_error *err,
                          const char *name, ...) {
    char full[NAME_SIZE];
    FORMAT_NAME(full, name);
    float *values;
    RSE_TRY(take_vector(builder, full, rse_shape1(cols), &values, err));
    for (int64_t i = 0; builder->model->config.norm_plus_one && i < cols; i++) {
        values[i] += 1.0f;
    }
    *norm = values;
    return RSE_OK;
}

rse_status rse_build_attention(rse_builder *builder, rse_attn *attn, rse_error *err, const char *stem, ...) {
    char at[NAME_SIZE];
    FORMAT_NAME(at, stem);
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

rse_status rse_build_ends(rse_builder *builder, const char *embedding, rse_error *err) {
    rse_model *model = builder->model;
    int64_t vocab = model->config.vocab;
    int64_t hidden = model->config.hidden;
    RSE_TRY(take_matrix(builder, embedding, vocab, hidden, &model->embedding, err));
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

/* The numbers of the configuration that change what the weights compute. */
static void hash_config(XXH3_state_t *hash, const rse_config *config) {
    int32_t whole[] = {
        config->family,       config->vocab,   config->hidden,           config->layers,
        config->ssm.gate_act, config->tied,    config->attention.rotary, config->attention.q_heads,
        config->mlp_act,      config->ssm.d_k, config->ssm.key_heads};
    float real[] = {config->norm_eps, (float)config->attention.rope_theta, config->ssm.dt_min,
                    config->ssm.dt_max};
    (void)XXH3_64bits_update(hash, whole, sizeof whole);
    (void)XXH3_64bits_update(hash, real, sizeof real);
    (void)XXH3_64bits_update(hash, config->layer, (size_t)config->layers * sizeof config->layer[0]);
}

static rse_status build(rse_model *model, XXH3_state_t *hash, rse_error *err) {
    const rse_family *family = NULL;
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        if (families[i]->family == model->config.family) {
            family = families[i];
        }
    }
    if (family == NULL) {
        return rse_fail(err, RSE_ERROR_UNSUPPORTED, "model_type \"%s\" is known but cannot be run",
                        model->config.model_type);
    }
    model->block = calloc(2 * (size_t)model->config.layers, sizeof *model->block);
    if (model->block == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for %d layers", model->config.layers);
    }
    if (XXH3_64bits_reset(hash) != XXH_OK) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for a hash");
    }
    hash_config(hash, &model->config);
    rse_builder builder = {.model = model, .hash = hash, .parameters = &model->parameters};
    RSE_TRY(family->build(&builder, err));
    RSE_TRY(rse_weights_finish(model->weights, family->ignored, err));
    model->fingerprint = XXH3_64bits_digest(hash);
    return RSE_OK;
}

rse_status rse_model_open(const char *directory, rse_model **model, rse_error *err) {
    *model = NULL;
    rse_model *opened = calloc(1, sizeof *opened);
    XXH3_state_t *hash = XXH3_createState();
    rse_status status =
        opened != NULL && hash != NULL
            ? RSE_OK
            : rse_fail(err, RSE_ERROR_MEMORY, "no memory for a model of %zu bytes", sizeof *opened);
    if (status == RSE_OK) {
        status = rse_config_load(directory, &opened->config, err);
    }
    if (status == RSE_OK) {
        status = rse_weights_open(directory, &opened->weights, err);
    }
    if (status == RSE_OK) {
        status = build(opened, hash, err);
    }
    (void)XXH3_freeState(hash);
    if (status != RSE_OK) {
        rse_model_close(opened);
        return status;
    }
    *model = opened;
    return RSE_OK;
}

void rse_model_close(rse_model *model) {
    if (model == NULL) {
        return;
    }
    for (int64_t i = 0; i < model->owned_count; i++) {
        free(model->owned[i]);
    }
    free(model->owned);
    free(model->mtp);
    free(model->block);
    rse_weights_close(model->weights);
    free(model);
}
