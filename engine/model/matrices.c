/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Taking tensors as the engine keeps them: matrices as they are stored, packed ones with their scales, vectors
 * as f32. How a matrix is packed is decided by what the file holds for it, tensor by tensor: lists of what is
 * quantised and what is not, in configurations, are not to be relied on.
 */
#include "model/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { NAME_SIZE = 224, SAMPLES = 16, SAMPLE_BYTES = 64 };

rse_status rse_build_own(rse_builder *builder, size_t bytes, void **memory, rse_error *err) {
    rse_model *model = builder->model;
    void **grown = realloc(model->owned, (size_t)(model->owned_count + 1) * sizeof *grown);
    if (grown != NULL) {
        model->owned = grown;
    }
    *memory = grown != NULL ? calloc(1, bytes > 0 ? bytes : 1) : NULL;
    if (*memory == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for %zu bytes of weights", bytes);
    }
    model->owned[model->owned_count++] = *memory;
    model->weight_bytes += (int64_t)bytes;
    return RSE_OK;
}

/* Lets a tensor into the fingerprint: equal names and shapes with other weights are another model. */
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
}

rse_status rse_take_vector(rse_builder *builder, const char *name, rse_shape shape, float **vector,
                           rse_error *err) {
    rse_tensor view;
    RSE_TRY(rse_weights_view(builder->model->weights, name, shape, &view, err));
    note(builder, &view);
    void *copy;
    int64_t elements = rse_tensor_elements(&view);
    *builder->parameters += elements;
    RSE_TRY(rse_build_own(builder, (size_t)elements * sizeof(float), &copy, err));
    rse_convert_to_f32(view.dtype, view.data, elements, copy);
    *vector = copy;
    return RSE_OK;
}

/* ---- Packed matrices ---------------------------------------------------------------------------------- */

/* The file's name for what belongs to a matrix "<stem>.weight". */
static const char *beside(const char *name, const char *suffix, char text[NAME_SIZE]) {
    size_t stem = strlen(name) - strlen("weight");
    snprintf(text, NAME_SIZE, "%.*s%s", (int)stem, name, suffix);
    return text;
}

static bool has_beside(const rse_builder *builder, const char *name, const char *suffix) {
    char text[NAME_SIZE];
    return rse_weights_has(builder->model->weights, beside(name, suffix, text));
}

/* Scales of activations: products here are made with activations as they are. */
static void skip_activation_scales(rse_builder *builder, const char *name) {
    static const char *const suffixes[] = {"input_scale", "input_global_scale", "k_scale", "v_scale"};
    char text[NAME_SIZE];
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        rse_weights_skip(builder->model->weights, beside(name, suffixes[i], text));
    }
}

static rse_status take_scalar(rse_builder *builder, const char *name, const char *suffix, float *value,
                              rse_error *err) {
    char text[NAME_SIZE];
    float *copy;
    RSE_TRY(rse_take_vector(builder, beside(name, suffix, text), rse_shape1(1), &copy, err));
    *value = *copy;
    *builder->parameters -= 1;
    return *value > 0.0f && *value <= 3e38f
               ? RSE_OK
               : rse_fail(err, RSE_ERROR_FORMAT, "tensor %.160s is %g, not a positive scale", text,
                          (double)*value);
}

/* One scale for the matrix, one per row, or one per block of the configured size. */
static rse_status take_f8_scales(rse_builder *builder, const char *name, rse_matrix *m, rse_error *err) {
    const rse_config *config = &builder->model->config;
    bool blocks = has_beside(builder, name, "weight_scale_inv");
    char text[NAME_SIZE];
    beside(name, blocks ? "weight_scale_inv" : "weight_scale", text);
    const rse_tensor *scale = rse_weights_peek(builder->model->weights, text);
    m->scale_rows = m->scale_cols = INT32_MAX;
    m->scale_stride = 1;
    if (blocks) {
        m->scale_rows = config->scale_block[0];
        m->scale_cols = config->scale_block[1];
        m->scale_stride = (m->cols + m->scale_cols - 1) / m->scale_cols;
    } else if (scale != NULL && rse_tensor_elements(scale) != 1) {
        m->scale_rows = 1;
    }
    int64_t grid = blocks ? (m->rows + m->scale_rows - 1) / m->scale_rows : m->scale_rows == 1 ? m->rows : 1;
    float *scales;
    int64_t before = *builder->parameters;
    RSE_TRY(rse_take_vector(builder, text, rse_shape2(grid, m->scale_stride), &scales, err));
    *builder->parameters = before;
    m->scales = scales;
    return RSE_OK;
}

/* Codes in "<stem>.weight" with weight_scale and weight_scale_2, a factor (ModelOpt); or in weight_packed with
 * weight_scale and weight_global_scale, a divisor (compressed-tensors), or with exponents alone (MXFP4). */
static rse_status take_fp4(rse_builder *builder, const char *name, bool packed, rse_matrix *m, rse_error *err) {
    char text[NAME_SIZE];
    rse_weights *weights = builder->model->weights;
    const rse_tensor *scale = rse_weights_peek(weights, beside(name, "weight_scale", text));
    bool exponents = scale != NULL && scale->dtype != RSE_DTYPE_F8_E4M3;
    m->dtype = exponents ? RSE_PACKED_MXFP4 : RSE_PACKED_NVFP4;
    int64_t block = exponents ? 32 : 16;
    if (m->cols % block != 0) {
        return rse_fail(err, RSE_ERROR_FORMAT, "tensor %.160s has %lld columns, not a multiple of %lld", name,
                        (long long)m->cols, (long long)block);
    }
    uint64_t kinds = exponents ? 1u << RSE_DTYPE_U8 | 1u << RSE_DTYPE_F8_E8M0 : 1u << RSE_DTYPE_F8_E4M3;
    rse_tensor view;
    RSE_TRY(rse_weights_take(weights, text, rse_shape2(m->rows, m->cols / block), kinds, &view, err));
    note(builder, &view);
    builder->model->weight_bytes += (int64_t)view.bytes;
    m->scales = view.data;
    m->scale_stride = m->cols / block;
    if (exponents) {
        return RSE_OK;
    }
    RSE_TRY(take_scalar(builder, name, packed ? "weight_global_scale" : "weight_scale_2", &m->factor, err));
    m->factor = packed ? 1.0f / m->factor : m->factor;
    return RSE_OK;
}

static int32_t packed_blocks(int32_t dtype) {
    static const int32_t formats[][2] = {
        {RSE_DTYPE_Q8_0, RSE_PACKED_Q8_0},          {RSE_DTYPE_Q4_0, RSE_PACKED_Q4_0},
        {RSE_DTYPE_Q4_K, RSE_PACKED_Q4_K},          {RSE_DTYPE_Q5_K, RSE_PACKED_Q5_K},
        {RSE_DTYPE_Q6_K, RSE_PACKED_Q6_K},          {RSE_DTYPE_IQ4_NL, RSE_PACKED_IQ4_NL},
        {RSE_DTYPE_MXFP4, RSE_PACKED_MXFP4_BLOCKS}, {RSE_DTYPE_NVFP4, RSE_PACKED_NVFP4_BLOCKS},
    };
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (formats[i][0] == dtype) {
            return formats[i][1];
        }
    }
    return 0;
}

static rse_status take_plain(rse_builder *builder, const char *name, rse_shape shape, rse_matrix *m,
                             rse_error *err) {
    rse_tensor view;
    RSE_TRY(rse_weights_take(builder->model->weights, name, shape, RSE_DTYPES_MATRIX, &view, err));
    note(builder, &view);
    builder->model->weight_bytes += (int64_t)view.bytes;
    m->data = view.data;
    m->dtype = view.dtype == RSE_DTYPE_F32    ? RSSM_DTYPE_F32
               : view.dtype == RSE_DTYPE_BF16 ? RSSM_DTYPE_BF16
               : view.dtype == RSE_DTYPE_F16  ? RSSM_DTYPE_F16
                                              : packed_blocks(view.dtype);
    return RSE_OK;
}

rse_status rse_take_matrix(rse_builder *builder, const char *name, rse_shape shape, rse_matrix *m,
                           rse_error *err) {
    char text[NAME_SIZE];
    rse_weights *weights = builder->model->weights;
    int64_t cols = shape.size[shape.rank - 1];
    int64_t rows = shape.rank == 3 ? shape.size[0] * shape.size[1] : shape.size[0];
    *m = (rse_matrix){.rows = rows, .cols = cols, .factor = 1.0f};
    *builder->parameters += rows * cols;
    bool weight = strlen(name) > 7 && strcmp(name + strlen(name) - 7, ".weight") == 0;
    const rse_tensor *found = rse_weights_peek(weights, name);
    bool packed = weight && found == NULL && has_beside(builder, name, "weight_packed");
    bool halves = packed || (weight && found != NULL && found->dtype == RSE_DTYPE_U8);
    bool f8 = weight && found != NULL && found->dtype == RSE_DTYPE_F8_E4M3;
    if (!halves && !f8) {
        if (weight && has_beside(builder, name, "scale")) { /* llama.cpp's factor of an NVFP4 matrix */
            RSE_TRY(take_scalar(builder, name, "scale", &m->factor, err));
        }
        if (weight) {
            skip_activation_scales(builder, name);
        }
        return take_plain(builder, name, shape, m, err);
    }
    rse_tensor view;
    RSE_TRY(rse_weights_take(weights, packed ? beside(name, "weight_packed", text) : name,
                             rse_shape2(rows, halves ? cols / 2 : cols),
                             halves ? 1u << RSE_DTYPE_U8 : 1u << RSE_DTYPE_F8_E4M3, &view, err));
    note(builder, &view);
    builder->model->weight_bytes += (int64_t)view.bytes;
    m->data = view.data;
    skip_activation_scales(builder, name);
    if (halves) {
        return take_fp4(builder, name, packed, m, err);
    }
    m->dtype = RSE_PACKED_F8;
    return take_f8_scales(builder, name, m, err);
}
