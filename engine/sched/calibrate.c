/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/calibrate.h"
#include "base/file.h"
#include "load/safetensors.h"
#include "sched/internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIRECTIONS = 4, TENSORS = 3, NAME_SIZE = 64, POWER_STEPS = 200 };
static const char *const tensor_names[TENSORS] = {"column_scale", "column_weight", "directions"};
static const char model_name[] = "model"; /* the fingerprint of the model that the file is for */

struct rse_calibration {
    rse_safetensors *file;
    rssm_read_calibration *layer; /* [recurrent] views into the file */
};

/* ---- Reading ------------------------------------------------------------------------------------------- */

void rse_calibration_close(rse_calibration *c) {
    if (c == NULL) {
        return;
    }
    rse_safetensors_close(c->file);
    free(c->layer);
    free(c);
}

static void name_tensor(char name[NAME_SIZE], int32_t layer, int i) {
    snprintf(name, NAME_SIZE, "layers.%d.%s", layer, tensor_names[i]);
}

static rse_status check_model(const rse_model *model, const rse_calibration *c, const char *path, rse_error *err) {
    const rse_tensor *tensor = rse_safetensors_find(c->file, model_name);
    uint64_t fingerprint;
    if (tensor == NULL || tensor->dtype != RSE_DTYPE_U64 || rse_tensor_elements(tensor) != 1) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: no calibration: it has no tensor '%s' with one U64", path, model_name);
    }
    memcpy(&fingerprint, tensor->data, sizeof fingerprint);
    if (fingerprint != model->fingerprint) {
        return rse_fail(err, RSE_ERROR_MISMATCH,
                        "%s: calibration of another model (fingerprint %016" PRIx64 "; this one's is %016" PRIx64 ")", path,
                        fingerprint, model->fingerprint);
    }
    return RSE_OK;
}

/* Fills in the views of one layer. The values are the library's to judge. */
static rse_status view_layer(const rse_model *model, rse_calibration *c, int32_t layer, const char *path, rse_error *err) {
    const rssm_layer_spec *spec = &model->spec;
    const float *data[TENSORS];
    int64_t directions = 0;
    for (int i = 0; i < TENSORS; i++) {
        char name[NAME_SIZE];
        name_tensor(name, layer, i);
        const rse_tensor *t = rse_safetensors_find(c->file, name);
        const int last = i < 2 ? 1 : 2;
        if (t == NULL || t->dtype != RSE_DTYPE_F32 || t->rank != last + 1 || t->shape[0] != spec->value_heads ||
            t->shape[last] != spec->d_k || (uintptr_t)t->data % sizeof(float) != 0 || (i == 2 && t->shape[1] > 8)) {
            return rse_fail(err, RSE_ERROR_FORMAT, "%s: tensor '%s' is %s; expected F32 of shape [%d]%s[%d]", path, name,
                            t == NULL ? "missing" : "of another format or shape", spec->value_heads,
                            i == 2 ? "[at most 8]" : "", spec->d_k);
        }
        data[i] = t->data;
        directions = i == 2 ? t->shape[1] : directions;
    }
    c->layer[layer] = (rssm_read_calibration){.struct_size = sizeof *c->layer,
                                              .column_scale = data[0],
                                              .column_weight = data[1],
                                              .directions = data[2],
                                              .directions_count = (int32_t)directions};
    return RSE_OK;
}

static rse_status open_file(const rse_model *model, const char *path, rse_calibration *c, rse_error *err) {
    RSE_TRY(rse_safetensors_open(path, &c->file, err));
    RSE_TRY(check_model(model, c, path, err));
    c->layer = calloc((size_t)model->recurrent, sizeof *c->layer);
    if (c->layer == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for a calibration");
    }
    for (int32_t i = 0; i < model->recurrent; i++) {
        RSE_TRY(view_layer(model, c, i, path, err));
    }
    return RSE_OK;
}

rse_status rse_calibration_find(const rse_engine *engine, const char *directory, rse_calibration **calibration,
                                rse_error *err) {
    const rse_state_options *state = &engine->options.state;
    *calibration = NULL;
    const bool scheme = state->read_copy_dtype == RSSM_DTYPE_NVFP4 && !state->read_custom;
    if (engine->model->recurrent == 0 || !(scheme || state->read_calibrated) ||
        (state->calibration != NULL && state->calibration[0] == '\0')) {
        return RSE_OK;
    }
    char *own = state->calibration == NULL ? rse_path_join(directory, RSE_CALIBRATION_NAME) : NULL;
    const char *path = own != NULL ? own : state->calibration;
    if (path == NULL || (own != NULL && !rse_file_exists(own))) {
        free(own);
        return path != NULL ? RSE_OK : rse_fail(err, RSE_ERROR_MEMORY, "no memory for a path");
    }
    rse_calibration *c = calloc(1, sizeof *c);
    rse_status status = c != NULL ? open_file(engine->model, path, c, err)
                                  : rse_fail(err, RSE_ERROR_MEMORY, "no memory for a calibration");
    free(own);
    if (status != RSE_OK) {
        rse_calibration_close(c);
        return status;
    }
    *calibration = c;
    return RSE_OK;
}

/* ---- Using --------------------------------------------------------------------------------------------- */

/* The schemes that pay most at 4.65 bits and less; docs/quality.md. Columns that are scaled lie together well along d_k, and
   their errors can answer each other; without scales the delta rule's columns are too unlike to share a block. */
static void default_scheme(bool calibrated, rssm_cache_desc *desc) {
    const bool values = !calibrated && desc->spec->kind != RSSM_MAMBA2;
    desc->read_rank = values ? 1 : 2;
    desc->read_scale_search = values;
    desc->read_diffusion = calibrated;
    desc->read_block_axis = values ? RSSM_BLOCK_VALUES : RSSM_BLOCK_KEYS;
    desc->read_block = values ? 16 : 32;
}

void rse_calibration_scheme(bool calibrated, const rse_state_options *state, rssm_cache_desc *desc) {
    desc->checkpoint_dtype = state->checkpoint_dtype;
    desc->checkpoint_rounding = state->checkpoint_rounding;
    desc->read_copy_dtype = state->read_copy_dtype;
    desc->read_copy_shared = state->read_copy_shared;
    desc->seed = state->seed;
    if (state->read_custom) {
        desc->read_block_axis = state->read_block_axis;
        desc->read_block = state->read_block;
        desc->read_scale_search = state->read_scale_search;
        desc->read_rank = state->read_rank;
        desc->read_diffusion = state->read_diffusion;
    } else if (state->read_copy_dtype == RSSM_DTYPE_NVFP4) {
        default_scheme(calibrated, desc);
    }
}

rse_status rse_calibration_apply(const rse_engine *engine, const rse_state_options *state, rssm_cache *cache, int32_t first,
                                 int32_t layers, rse_error *err) {
    const bool used = engine->calibration != NULL && state->read_copy_dtype == RSSM_DTYPE_NVFP4;
    for (int32_t i = 0; used && i < layers; i++) {
        rssm_status status = rssm_cache_set_read_calibration(cache, i, &engine->calibration->layer[first + i]);
        RSE_TRY(rse_library(engine->context, status, err));
    }
    return RSE_OK;
}

/* ---- Making -------------------------------------------------------------------------------------------- */

struct rse_calibrator {
    rse_engine *engine;
    int32_t layers, heads, d_k, d_v;
    rssm_read_statistics *sums; /* [layers], arrays in `memory` */
    double *memory;
    int64_t *counts; /* [layers][2][heads] */
};

rse_status rse_calibrator_open(rse_engine *engine, rse_calibrator **calibrator, rse_error *err) {
    const rse_model *model = engine->model;
    *calibrator = NULL;
    if (model->recurrent == 0 || engine->cache == NULL) {
        return rse_fail(err, RSE_ERROR_USAGE, "the model has no recurrent layers to be calibrated");
    }
    rse_calibrator *c = calloc(1, sizeof *c);
    if (c != NULL) {
        *c = (rse_calibrator){engine, model->recurrent, model->spec.value_heads, model->spec.d_k, model->spec.d_v, 0, 0, 0};
        const size_t layers = (size_t)c->layers, heads = (size_t)c->heads, d_k = (size_t)c->d_k;
        c->sums = calloc(layers, sizeof *c->sums);
        c->memory = calloc(layers * heads * d_k * (d_k + 1), sizeof *c->memory);
        c->counts = calloc(layers * heads * 2, sizeof *c->counts);
    }
    if (c == NULL || c->sums == NULL || c->memory == NULL || c->counts == NULL) {
        rse_calibrator_close(c);
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for the statistics of %d layers", model->recurrent);
    }
    const int64_t moments = (int64_t)c->heads * c->d_k * c->d_k, columns = (int64_t)c->heads * c->d_k;
    for (int32_t i = 0; i < c->layers; i++) {
        double *base = c->memory + i * (moments + columns);
        int64_t *counts = c->counts + (int64_t)i * 2 * c->heads;
        c->sums[i] = (rssm_read_statistics){.struct_size = sizeof *c->sums,
                                            .second_moment = base,
                                            .column_squares = base + moments,
                                            .reads = counts,
                                            .states = counts + c->heads};
        rssm_status status = rssm_cache_watch_reads(engine->cache, i, &c->sums[i]);
        if (status != RSSM_OK) {
            rse_calibrator_close(c);
            return rse_library(engine->context, status, err);
        }
    }
    *calibrator = c;
    return RSE_OK;
}

void rse_calibrator_close(rse_calibrator *c) {
    if (c == NULL) {
        return;
    }
    for (int32_t i = 0; c->sums != NULL && i < c->layers; i++) {
        rssm_status ended = rssm_cache_watch_reads(c->engine->cache, i, NULL); /* cannot fail: it had begun */
        (void)ended;
    }
    free(c->sums);
    free(c->memory);
    free(c->counts);
    free(c);
}

/* The leading eigenvector of the symmetric [n][n] matrix M, of length the root of its value; M loses it. The start is the
   column with the largest diagonal, so that equal matrices give equal vectors. */
static void take_direction(double *M, int64_t n, double *v) {
    double next[1024], length = 0.0;
    int64_t largest = 0;
    for (int64_t i = 1; i < n; i++) {
        largest = M[i * n + i] > M[largest * n + largest] ? i : largest;
    }
    memcpy(v, M + largest * n, (size_t)n * sizeof *v);
    for (int step = 0; step <= POWER_STEPS; step++) {
        length = 0.0;
        for (int64_t i = 0; i < n; i++) {
            length += v[i] * v[i];
        }
        length = sqrt(length);
        for (int64_t i = 0; i < n; i++) {
            v[i] = length > 0.0 ? v[i] / length : 0.0;
        }
        for (int64_t i = 0; i < n && step < POWER_STEPS; i++) {
            next[i] = 0.0;
            for (int64_t c = 0; c < n; c++) {
                next[i] += M[i * n + c] * v[c];
            }
        }
        memcpy(v, step < POWER_STEPS ? next : v, (size_t)n * sizeof *v);
    }
    /* the length before the last normalisation is the eigenvalue */
    for (int64_t i = 0; i < n; i++) {
        v[i] *= sqrt(length);
    }
    for (int64_t i = 0; i < n * n; i++) {
        M[i] -= v[i / n] * v[i % n];
    }
}

/* Floors keep columns that were never read, or never written, at scales that do no harm. */
static void calibrate_head(const rse_calibrator *c, const rssm_read_statistics *sums, int32_t head, float *scale,
                           float *weight, float *directions, double *M, double *v) {
    const int64_t n = c->d_k;
    const double reads = (double)sums->reads[head], states = (double)sums->states[head] * c->d_v;
    double mean_m = 0.0, mean_s = 0.0;
    for (int64_t i = 0; i < n * n; i++) {
        M[i] = sums->second_moment[head * n * n + i] / reads;
    }
    for (int64_t i = 0; i < n; i++) {
        mean_m += M[i * n + i] / (double)n;
        mean_s += sums->column_squares[head * n + i] / states / (double)n;
    }
    for (int64_t i = 0; i < n; i++) {
        const double m = fmax(M[i * n + i], 1e-8 * mean_m), s = fmax(sums->column_squares[head * n + i] / states, 1e-8 * mean_s);
        scale[i] = mean_m > 0.0 && mean_s > 0.0 ? (float)pow((m / mean_m) / (s / mean_s), 0.25) : 1.0f;
        weight[i] = mean_m > 0.0 ? (float)(m / mean_m) : 1.0f;
    }
    for (int64_t i = 0; i < n * n; i++) {
        M[i] /= (mean_m > 0.0 ? mean_m : 1.0) * (double)scale[i / n] * (double)scale[i % n];
    }
    for (int d = 0; d < DIRECTIONS; d++) {
        take_direction(M, n, v);
        for (int64_t i = 0; i < n; i++) {
            directions[d * n + i] = (float)(v[i] * (double)scale[i]);
        }
    }
}

static void calibrate_layer(const rse_calibrator *c, int32_t layer, float *const *data, double *M, double *v) {
    for (int32_t h = 0; h < c->heads; h++) {
        const int64_t at = (int64_t)h * c->d_k;
        calibrate_head(c, &c->sums[layer], h, data[0] + at, data[1] + at, data[2] + at * DIRECTIONS, M, v);
    }
}

static rse_status write_file(const rse_calibrator *c, float *values, rse_tensor *tensors, char (*names)[NAME_SIZE],
                             double *M, const char *path, rse_error *err) {
    const int64_t columns = (int64_t)c->heads * c->d_k;
    size_t count = 0;
    for (int32_t layer = 0; layer < c->layers; layer++) {
        float *base = values + layer * columns * (2 + DIRECTIONS), *data[TENSORS] = {base, base + columns, base + 2 * columns};
        calibrate_layer(c, layer, data, M, M + (int64_t)c->d_k * c->d_k);
        for (int i = 0; i < TENSORS; i++, count++) {
            name_tensor(names[count], layer, i);
            tensors[count] = (rse_tensor){.name = names[count],
                                          .dtype = RSE_DTYPE_F32,
                                          .rank = i < 2 ? 2 : 3,
                                          .shape = {c->heads, i < 2 ? c->d_k : DIRECTIONS, c->d_k},
                                          .data = data[i]};
        }
    }
    tensors[count++] = (rse_tensor){
        .name = model_name, .dtype = RSE_DTYPE_U64, .rank = 1, .shape = {1}, .data = &c->engine->model->fingerprint};
    return rse_safetensors_write(path, tensors, count, NULL, NULL, err);
}

rse_status rse_calibrator_write(const rse_calibrator *c, const char *path, rse_error *err) {
    for (int64_t i = 0; i < (int64_t)c->layers * 2 * c->heads; i++) {
        if (c->counts[i] == 0) {
            return rse_fail(err, RSE_ERROR_USAGE, "nothing was read, so there is nothing to calibrate by");
        }
    }
    const size_t d_k = (size_t)c->d_k, tensors = (size_t)c->layers * TENSORS + 1;
    float *values = calloc((size_t)c->layers * (size_t)c->heads * d_k * (2 + DIRECTIONS), sizeof *values);
    double *M = calloc(d_k * (d_k + 1), sizeof *M);
    rse_tensor *list = calloc(tensors, sizeof *list);
    char(*names)[NAME_SIZE] = calloc(tensors, sizeof *names);
    rse_status status = values != NULL && M != NULL && list != NULL && names != NULL
                            ? write_file(c, values, list, names, M, path, err)
                            : rse_fail(err, RSE_ERROR_MEMORY, "no memory for a calibration");
    free(values);
    free(M);
    free(list);
    free(names);
    return status;
}
