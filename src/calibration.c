/* SPDX-License-Identifier: Apache-2.0 */
/* What is known beforehand of a layer's reads, in the form in which the encoder of nvfp4 copies uses it. */
#include "cache.h"

#include <math.h>
#include <stdlib.h>

enum { DIRECTIONS = RSSM_DIRECTIONS_MAX };

static rssm_status check_values(rssm_cache *cache, int32_t layer, const char *name, const float *x, int64_t n, bool positive) {
    for (int64_t i = 0; x != NULL && i < n; i++) {
        if (!isfinite(x[i]) || (positive ? x[i] < 0x1p-60f || x[i] > 0x1p60f : x[i] < 0.0f)) {
            return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "calibration of layer %d: %s[%lld] is %g; %s", (int)layer,
                             name, (long long)i, (double)x[i],
                             positive ? "the limits are 2^-60 and 2^60" : "it must be finite and >= 0");
        }
    }
    return RSSM_OK;
}

/* x = G^-1 v for a symmetric positive definite G, by elimination. */
static void solve(int32_t n, double G[DIRECTIONS][DIRECTIONS], const double *v, double *x) {
    double A[DIRECTIONS][DIRECTIONS];
    for (int32_t i = 0; i < n; i++) {
        x[i] = v[i];
        for (int32_t j = 0; j < n; j++) {
            A[i][j] = G[i][j];
        }
    }
    for (int32_t k = 0; k < n; k++) {
        for (int32_t i = k + 1; i < n; i++) {
            const double f = A[i][k] / A[k][k];
            for (int32_t j = k; j < n; j++) {
                A[i][j] -= f * A[k][j];
            }
            x[i] -= f * x[k];
        }
    }
    for (int32_t i = n - 1; i >= 0; i--) {
        for (int32_t j = i + 1; j < n; j++) {
            x[i] -= A[i][j] * x[j];
        }
        x[i] /= A[i][i];
    }
}

/*
 * The importance of errors of scaled columns is diag(weight) off the directions' own part, plus sum v v^T. With the errors
 * of columns before c made and those from c on free, the least importance is reached by e_c = -pull_c . s,
 * s = sum of v e, pull_c = G_c^-1 v_c / rest_c, G_c = 1 + sum over d >= c of v_d v_d^T / rest_d.
 */
static void find_pulls(const rssm_geometry *g, int32_t n, const float *weight, const float *spread, float *pull) {
    double G[DIRECTIONS][DIRECTIONS] = {{0}}, mean = 0.0, x[DIRECTIONS], v[DIRECTIONS];
    for (int32_t c = 0; c < g->d_k; c++) {
        mean += (double)weight[c] / g->d_k;
    }
    for (int32_t i = 0; i < n; i++) {
        G[i][i] = 1.0;
    }
    for (int32_t c = g->d_k - 1; c >= 0; c--) {
        double rest = (double)weight[c];
        for (int32_t i = 0; i < n; i++) {
            v[i] = (double)spread[(int64_t)i * g->padded_k + c];
            rest -= v[i] * v[i];
        }
        rest = fmax(rest, 0.01 * (double)weight[c]) + 0.01 * mean + 1e-30;
        for (int32_t i = 0; i < n; i++) {
            for (int32_t j = 0; j < n; j++) {
                G[i][j] += v[i] * v[j] / rest;
            }
        }
        solve(n, G, v, x);
        for (int32_t i = 0; i < n; i++) {
            pull[(int64_t)i * g->padded_k + c] = (float)(x[i] / rest);
        }
    }
}

/* One head, in the padded form. */
static void fill_head(const rssm_geometry *g, const rssm_read_calibration *c, int32_t head, float *scale, float *inverse,
                      float *weight, float *spread, float *pull) {
    for (int32_t i = 0; i < g->padded_k; i++) {
        const int64_t at = (int64_t)head * g->d_k + i;
        scale[i] = i < g->d_k && c->column_scale != NULL ? c->column_scale[at] : 1.0f;
        inverse[i] = 1.0f / scale[i];
        weight[i] = i < g->d_k && c->column_weight != NULL ? c->column_weight[at] * inverse[i] * inverse[i] : i < g->d_k;
        for (int32_t j = 0; j < c->directions_count; j++) {
            const int64_t from = ((int64_t)head * c->directions_count + j) * g->d_k + i;
            spread[(int64_t)j * g->padded_k + i] = i < g->d_k ? c->directions[from] * inverse[i] : 0.0f;
        }
    }
    find_pulls(g, c->directions_count, weight, spread, pull);
}

rssm_status rssm_cache_set_read_calibration(rssm_cache *cache, int32_t layer, const rssm_read_calibration *calibration) {
    const rssm_geometry *g = &cache->geometry;
    const int64_t columns = (int64_t)g->value_heads * g->d_k, padded = g->padded_k, heads = g->value_heads;
    if (layer < 0 || layer >= cache->desc.layers) {
        return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "layer is %d; the limits are 0 and %d", (int)layer,
                         (int)cache->desc.layers - 1);
    }
    if (g->formats.copy != RSSM_DTYPE_NVFP4) {
        return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "read_copy_dtype is %s; a calibration is for nvfp4",
                         rssm_dtype_name(g->formats.copy));
    }
    rssm_read_calibration c = {0};
    RSSM_TRY(rssm_copy_desc(cache->context, "calibration", &c, sizeof c, calibration));
    if (c.directions_count < 0 || c.directions_count > RSSM_DIRECTIONS_MAX ||
        (c.directions_count > 0 && (c.directions == NULL || c.column_weight == NULL))) {
        return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT,
                         "calibration of layer %d: directions_count is %d, directions is %s, column_weight is %s; the limits "
                         "are 0 and %d, and directions need both",
                         (int)layer, (int)c.directions_count, c.directions != NULL ? "given" : "NULL",
                         c.column_weight != NULL ? "given" : "NULL", RSSM_DIRECTIONS_MAX);
    }
    RSSM_TRY(check_values(cache, layer, "column_scale", c.column_scale, columns, true));
    RSSM_TRY(check_values(cache, layer, "column_weight", c.column_weight, columns, false));
    for (int64_t i = 0; i < columns * c.directions_count; i++) {
        if (!isfinite(c.directions[i])) {
            return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "calibration of layer %d: directions[%lld] is %g", (int)layer,
                             (long long)i, (double)c.directions[i]);
        }
    }
    rssm_calibration *read = &cache->constants[layer].read;
    if (calibration == NULL) {
        free(read->memory);
        *read = (rssm_calibration){0};
        return RSSM_OK;
    }
    const int64_t block = heads * padded, total = block * (3 + 2 * (int64_t)c.directions_count);
    float *memory = calloc((size_t)total, sizeof *memory);
    if (memory == NULL) {
        return rssm_fail(cache->context, RSSM_ERROR_MEMORY, "no memory for the calibration of layer %d", (int)layer);
    }
    float *spread = memory + 3 * block, *pull = spread + block * c.directions_count;
    for (int32_t h = 0; h < g->value_heads; h++) {
        const int64_t many = (int64_t)h * c.directions_count * padded;
        fill_head(g, &c, h, memory + h * padded, memory + block + h * padded, memory + 2 * block + h * padded, spread + many,
                  pull + many);
    }
    free(read->memory);
    *read = (rssm_calibration){.memory = memory,
                               .scale = memory,
                               .inverse = memory + block,
                               .weight = memory + 2 * block,
                               .spread = spread,
                               .pull = pull,
                               .directions = c.directions_count};
    return RSSM_OK;
}

rssm_status rssm_cache_watch_reads(rssm_cache *cache, int32_t layer, const rssm_read_statistics *statistics) {
    const rssm_formats *f = &cache->geometry.formats;
    rssm_read_statistics s = {0};
    if (layer < 0 || layer >= cache->desc.layers) {
        return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "layer is %d; the limits are 0 and %d", (int)layer,
                         (int)cache->desc.layers - 1);
    }
    if (statistics != NULL) {
        RSSM_TRY(rssm_copy_desc(cache->context, "statistics", &s, sizeof s, statistics));
    }
    if (s.second_moment != NULL && (s.column_squares == NULL || s.reads == NULL || s.states == NULL)) {
        return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "%s is NULL, and second_moment is given",
                         s.column_squares == NULL ? "column_squares" : s.reads == NULL ? "reads" : "states");
    }
    if (cache->context->ops != NULL || f->checkpoint != RSSM_DTYPE_F32 || f->copy != RSSM_DTYPE_DEFAULT) {
        return rssm_fail(cache->context, RSSM_ERROR_UNSUPPORTED,
                         "checkpoint_dtype is %s and read_copy_dtype is %s; reads are watched on the CPU with f32 and none",
                         rssm_dtype_name(f->checkpoint), rssm_dtype_name(f->copy));
    }
    cache->constants[layer].watched = s;
    return RSSM_OK;
}
