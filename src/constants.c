/* SPDX-License-Identifier: Apache-2.0 */
/* The library's copy of a layer's constants: one block, padded, taps and heads in the order the kernels read them. */
#include "cache.h"
#include "device_ops.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A spec whose layers can run with default constants: no convolution, and gates that need no A. */
static bool needs_none(const rssm_cache *cache) {
    const rssm_geometry *g = &cache->geometry;
    return g->conv_width == 0 && (g->gate == RSSM_GATE_LOG || g->gate_lower_bound < 0.0f);
}

static rssm_status check_present(rssm_cache *cache, int32_t layer, const rssm_layer_weights *w) {
    const rssm_geometry *g = &cache->geometry;
    const char *missing = NULL;
    if (g->conv_width > 0) {
        missing = w->conv_q == NULL ? "conv_q" : w->conv_k == NULL ? "conv_k" : w->conv_v == NULL ? "conv_v" : NULL;
    }
    if (g->gate != RSSM_GATE_LOG && g->gate_lower_bound == 0.0f && w->A_log == NULL && w->A == NULL) {
        missing = "A_log (or A)";
    }
    if (missing != NULL) {
        return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "weights of layer %d: %s is NULL, and the spec needs it",
                         (int)layer, missing);
    }
    for (int32_t h = 0; w->A_log == NULL && w->A != NULL && h < g->value_heads; h++) {
        if (!(w->A[h] <= 0.0f)) {
            return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "weights of layer %d: A of head %d is %g; the limit is 0",
                             (int)layer, (int)h, (double)w->A[h]);
        }
    }
    return RSSM_OK;
}

/* Copies [channels][width] as [width][all channels], at a channel offset. */
static void copy_taps(float *to, int64_t all, int64_t offset, const float *from, int64_t channels, int32_t width) {
    for (int64_t c = 0; c < channels; c++) {
        for (int32_t j = 0; j < width; j++) {
            to[j * all + offset + c] = from[c * width + j];
        }
    }
}

static void copy_bias(float *to, const float *from, int64_t channels) {
    for (int64_t c = 0; from != NULL && c < channels; c++) {
        to[c] = from[c];
    }
}

static int32_t head_in_unit_order(const rssm_geometry *g, int32_t h) {
    int32_t key = h / g->ratio, i = h % g->ratio;
    return g->modulo ? key + i * g->key_heads : h;
}

/* A of a head: finite, so that exp(dt A) is 0 and never exp(0 * -inf). A_log = -inf gives 0: no decay at all. */
static float decay_rate(const rssm_layer_weights *w, int32_t hv) {
    float A = w->A_log != NULL ? -expf(w->A_log[hv]) : w->A != NULL ? w->A[hv] : -1.0f;
    return A < -FLT_MAX ? -FLT_MAX : A;
}

static void copy_heads(const rssm_geometry *g, const rssm_layer_weights *w, float *A, float *dt_bias, float *D,
                       float *norm) {
    for (int32_t h = 0; h < g->value_heads; h++) {
        int32_t hv = head_in_unit_order(g, h);
        A[h] = decay_rate(w, hv);
        if (D != NULL) {
            D[h] = w->D[hv];
        }
        if (g->vector_decay) {
            for (int32_t c = 0; c < g->d_k && w->dt_bias != NULL; c++) {
                dt_bias[(int64_t)h * g->padded_k + c] = w->dt_bias[(int64_t)hv * g->d_k + c];
            }
        } else if (w->dt_bias != NULL) {
            dt_bias[h] = w->dt_bias[hv];
        }
        for (int32_t c = 0; c < g->d_v; c++) {
            int64_t at = g->out_norm == RSSM_OUT_NORM_GROUP ? (int64_t)hv * g->d_v + c : c;
            norm[(int64_t)h * g->padded_v + c] = w->out_norm != NULL ? w->out_norm[at] : 1.0f;
        }
    }
}

static rssm_status copy_weights(rssm_cache *cache, int32_t layer, const rssm_layer_weights *w) {
    const rssm_geometry *g = &cache->geometry;
    const int64_t channels = g->conv_width > 0 ? g->conv_channels : 0, heads = g->value_heads;
    const int64_t bias = heads * (g->vector_decay ? g->padded_k : 1), norm = heads * g->padded_v;
    const int64_t slack = 16; /* kernels load whole vectors of per-head values */
    int64_t total = channels * (g->conv_width + 1) + heads + bias + heads + norm + 5 * slack;
    float *block = calloc((size_t)total, sizeof *block);
    if (block == NULL) {
        return rssm_fail(cache->context, RSSM_ERROR_MEMORY, "no memory for the weights of layer %d, %lld bytes",
                         (int)layer, (long long)total * 4);
    }
    float *conv = block, *conv_bias = conv + channels * g->conv_width, *A = conv_bias + channels + slack;
    float *dt_bias = A + heads + slack, *D = dt_bias + bias + slack, *out_norm = D + heads + slack;
    const int64_t keys = (int64_t)g->key_heads * g->d_k, values = (int64_t)g->value_heads * g->d_v;
    if (g->conv_width > 0) {
        copy_taps(conv, channels, 0, w->conv_q, keys, g->conv_width);
        copy_taps(conv, channels, g->conv_k, w->conv_k, keys, g->conv_width);
        copy_taps(conv, channels, g->conv_v, w->conv_v, values, g->conv_width);
        copy_bias(conv_bias, w->conv_bias_q, keys);
        copy_bias(conv_bias + g->conv_k, w->conv_bias_k, keys);
        copy_bias(conv_bias + g->conv_v, w->conv_bias_v, values);
    }
    copy_heads(g, w, A, dt_bias, w->D != NULL ? D : NULL, out_norm);
    rssm_constants *constants = &cache->constants[layer];
    const rssm_calibration read = constants->read;
    const rssm_read_statistics watched = constants->watched;
    free(constants->memory);
    *constants = (rssm_constants){.memory = block,
                                  .conv_weight = conv,
                                  .conv_bias = conv_bias,
                                  .A = A,
                                  .dt_bias = dt_bias,
                                  .D = w->D != NULL ? D : NULL,
                                  .out_norm = out_norm,
                                  .read = read,
                                  .watched = watched,
                                  .layer = cache->desc.first_layer + layer,
                                  .ready = 1};
    return cache->context->ops != NULL ? cache->context->ops->weights(cache, layer, total) : RSSM_OK;
}

rssm_status rssm_cache_set_weights(rssm_cache *cache, int32_t layer, const rssm_layer_weights *weights) {
    if (layer < 0 || layer >= cache->desc.layers) {
        return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "layer is %d; the limits are 0 and %d", (int)layer,
                         (int)cache->desc.layers - 1);
    }
    if (weights == NULL) {
        return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "weights of layer %d are NULL", (int)layer);
    }
    rssm_layer_weights w;
    RSSM_TRY(rssm_copy_desc(cache->context, "weights", &w, sizeof w, weights));
    RSSM_TRY(check_present(cache, layer, &w));
    return copy_weights(cache, layer, &w);
}

rssm_status rssm_default_weights(rssm_cache *cache) {
    const rssm_layer_weights none = {0};
    for (int32_t layer = 0; needs_none(cache) && layer < cache->desc.layers; layer++) {
        RSSM_TRY(copy_weights(cache, layer, &none));
    }
    return RSSM_OK;
}
