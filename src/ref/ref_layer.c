/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole layer of one sequence in double: convolution with its context, gates, norms, recurrence, output. It
 * is fed the same views as the library, one token after another, and always steps forwards; it knows no
 * windows, records or drafts. What a test wants to return to it copies before.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ref/ref.h"

struct rssm_ref_layer {
    rssm_layer_spec spec; /* resolved */
    const rssm_layer_weights *weights;
    int32_t io_dtype;
    int64_t q_channels, v_channels, channels; /* of the convolution: q | k | v, q and k alike */
    size_t memory_count;
    double *state, *context; /* what copy and reset are about; context is NULL without convolution */
    double *wander;          /* [value_heads][d_v]: see follow_errors() */
    double *qkv;             /* [channels] of the token at hand, after convolution and rounding */
    double *size;            /* [channels] of the terms they were made of, for head_scale() */
    double *decay, *alpha, *z, *window;
    double memory[];
};

static int32_t or_default(int32_t value, int32_t fallback) {
    return value ? value : fallback;
}

static float or_default_f(float value, float fallback) {
    return value != 0.0f ? value : fallback;
}

rssm_layer_spec rssm_ref_resolve(const rssm_layer_spec *spec) {
    rssm_layer_spec s = *spec;
    const bool mamba = s.kind == RSSM_MAMBA2;
    s.total_key_heads = or_default(s.total_key_heads, s.key_heads);
    s.total_value_heads = or_default(s.total_value_heads, s.value_heads);
    s.beta_scale = or_default_f(s.beta_scale, 1.0f);
    s.qk_norm = or_default(s.qk_norm, mamba ? RSSM_QK_NORM_NONE : RSSM_QK_NORM_L2);
    s.qk_norm_eps = or_default_f(s.qk_norm_eps, 1e-6f);
    s.q_scale = or_default_f(s.q_scale, mamba ? 1.0f : (float)(1.0 / sqrt((double)s.d_k)));
    s.out_norm_groups = or_default(s.out_norm_groups, s.key_heads);
    s.out_norm_eps = or_default_f(s.out_norm_eps, 1e-6f);
    return s;
}

int32_t rssm_ref_key_head(const rssm_layer_spec *spec, int32_t value_head) {
    if (spec->head_map == RSSM_HEAD_MAP_MODULO) {
        return value_head % spec->key_heads;
    }
    return value_head / (spec->value_heads / spec->key_heads);
}

rssm_ref_layer *rssm_ref_layer_create(const rssm_layer_spec *spec, const rssm_layer_weights *weights,
                                      int32_t io_dtype) {
    const rssm_layer_spec s = rssm_ref_resolve(spec);
    const int64_t q_channels = (int64_t)s.key_heads * s.d_k;
    const int64_t v_channels = (int64_t)s.value_heads * s.d_v;
    const int64_t channels = 2 * q_channels + v_channels;
    const int64_t state = v_channels * s.d_k;
    const int64_t context = s.conv_width ? (s.conv_width - 1) * channels : 0;
    const int64_t count =
        state + context + 2 * channels + 2 * (int64_t)s.d_k + 2 * v_channels + RSSM_CONV_WIDTH_MAX;
    rssm_ref_layer *layer = calloc(1, sizeof *layer + (size_t)count * sizeof(double));
    if (!layer) {
        return NULL;
    }
    layer->spec = s;
    layer->weights = weights;
    layer->io_dtype = io_dtype;
    layer->q_channels = q_channels;
    layer->v_channels = v_channels;
    layer->channels = channels;
    layer->memory_count = (size_t)count;
    layer->state = layer->memory;
    layer->context = context ? layer->memory + state : NULL;
    layer->qkv = layer->memory + state + context;
    layer->size = layer->qkv + channels;
    layer->decay = layer->size + channels;
    layer->alpha = layer->decay + s.d_k;
    layer->z = layer->alpha + s.d_k;
    layer->wander = layer->z + v_channels;
    layer->window = layer->wander + v_channels;
    return layer;
}

void rssm_ref_layer_destroy(rssm_ref_layer *layer) {
    free(layer);
}

void rssm_ref_layer_copy(rssm_ref_layer *dst, const rssm_ref_layer *src) {
    memcpy(dst->memory, src->memory, src->memory_count * sizeof(double));
}

void rssm_ref_layer_reset(rssm_ref_layer *layer) {
    memset(layer->memory, 0, layer->memory_count * sizeof(double));
}

double *rssm_ref_layer_state(rssm_ref_layer *layer) {
    return layer->state;
}

double *rssm_ref_layer_context(rssm_ref_layer *layer) {
    return layer->context;
}

/* Element (token, head, i) of a view [tokens][heads][d] with its default strides. */
static double view_load(const rssm_view *view, int32_t dtype, int64_t heads, int64_t d, int64_t token,
                        int64_t head, int64_t i) {
    const int64_t head_stride = view->head_stride ? view->head_stride : d;
    const int64_t token_stride = view->token_stride ? view->token_stride : heads * d;
    return rssm_ref_load(view->data, dtype, token * token_stride + head * head_stride + i);
}

/* What the caller handed in for one channel of q | k | v. */
static double raw_channel(const rssm_ref_layer *layer, const rssm_layer_inputs *inputs, int64_t token,
                          int64_t channel) {
    const rssm_layer_spec *s = &layer->spec;
    const int64_t nq = layer->q_channels;
    if (channel < 2 * nq) {
        const rssm_view *view = channel < nq ? &inputs->q : &inputs->k;
        const int64_t at = channel % nq;
        return view_load(view, layer->io_dtype, s->key_heads, s->d_k, token, at / s->d_k, at % s->d_k);
    }
    const int64_t at = channel - 2 * nq;
    return view_load(&inputs->v, layer->io_dtype, s->value_heads, s->d_v, token, at / s->d_v, at % s->d_v);
}

/* Taps and bias of one channel of q | k | v. */
static const float *channel_taps(const rssm_ref_layer *layer, int64_t channel, double *bias) {
    const rssm_layer_weights *w = layer->weights;
    const int64_t nq = layer->q_channels, width = layer->spec.conv_width;
    const float *taps = channel < nq ? w->conv_q : channel < 2 * nq ? w->conv_k : w->conv_v;
    const float *biases = channel < nq ? w->conv_bias_q : channel < 2 * nq ? w->conv_bias_k : w->conv_bias_v;
    const int64_t at = channel < 2 * nq ? channel % nq : channel - 2 * nq;
    *bias = biases ? (double)biases[at] : 0.0;
    return taps + at * width;
}

/* The last conv_width raw values of a channel, oldest first, the token's own one last. */
static void channel_window(const rssm_ref_layer *layer, const rssm_layer_inputs *inputs, int64_t token,
                           int64_t channel, double *window) {
    const int32_t held = layer->spec.conv_width - 1;
    for (int32_t i = 0; i < held; i++) {
        window[i] = layer->context[i * layer->channels + channel];
    }
    window[held] = raw_channel(layer, inputs, token, channel);
}

static double terms_of(int32_t width, const float *taps, double bias, const double *window) {
    double terms = fabs(bias);
    for (int32_t i = 0; i < width; i++) {
        terms += fabs((double)taps[i] * window[i]);
    }
    return terms;
}

/* q, k and v of the token as every method uses them; the context moves on by one row. */
static void take_qkv(rssm_ref_layer *layer, const rssm_layer_inputs *inputs, int64_t token) {
    const int32_t width = layer->spec.conv_width;
    for (int64_t c = 0; c < layer->channels; c++) {
        if (!width) {
            layer->qkv[c] = raw_channel(layer, inputs, token, c);
            layer->size[c] = fabs(layer->qkv[c]);
            continue;
        }
        double bias;
        const float *taps = channel_taps(layer, c, &bias);
        channel_window(layer, inputs, token, c, layer->window);
        const double x = rssm_ref_convolve(width, taps, bias, layer->window, !layer->spec.conv_linear);
        layer->qkv[c] = rssm_ref_round(x, layer->io_dtype);
        /* rounding to a narrow format hides what errors the sum had */
        layer->size[c] = fabs(layer->qkv[c]);
        if (layer->io_dtype == RSSM_DTYPE_F32) {
            layer->size[c] = fmax(layer->size[c], terms_of(width, taps, bias, layer->window));
        }
        for (int32_t i = 0; i + 1 < width; i++) {
            layer->context[i * layer->channels + c] = layer->window[i + 1];
        }
    }
}

/* In place: norms of q and k, then the factor on q; sizes keep pace. */
static void normalise(rssm_ref_layer *layer) {
    const rssm_layer_spec *s = &layer->spec;
    for (int32_t head = 0; head < 2 * s->key_heads; head++) { /* those of q, then those of k */
        const int64_t at = (int64_t)head * s->d_k;
        double factor = head < s->key_heads ? (double)s->q_scale : 1.0;
        if (s->qk_norm == RSSM_QK_NORM_L2) {
            factor *= rssm_ref_inverse_norm(s->d_k, layer->qkv + at, (double)s->qk_norm_eps);
        }
        for (int32_t i = 0; i < s->d_k; i++) {
            layer->qkv[at + i] *= factor;
            layer->size[at + i] *= fabs(factor);
        }
    }
}

/* alpha (into layer->alpha) and the returned beta of one head. */
static double take_gates(rssm_ref_layer *layer, const rssm_layer_inputs *inputs, int64_t token, int32_t head) {
    const rssm_layer_spec *s = &layer->spec;
    const int32_t dtype = or_default(inputs->gate_dtype, layer->io_dtype);
    const int32_t n = s->kind == RSSM_KDA ? s->d_k : 1;
    for (int32_t i = 0; i < n; i++) {
        layer->decay[i] = view_load(&inputs->decay, dtype, s->value_heads, n, token, head, i);
    }
    double beta_input = 0.0, beta;
    if (inputs->beta.data) {
        beta_input = view_load(&inputs->beta, dtype, s->value_heads, 1, token, head, 0);
    }
    rssm_ref_gates(s, layer->weights, head, layer->decay, beta_input, layer->alpha, &beta);
    return beta;
}

/* y = S q + D v of one head. */
static void head_output(const rssm_ref_layer *layer, int32_t head, const double *q, const double *v,
                        double *y) {
    const rssm_layer_spec *s = &layer->spec;
    const double D = layer->weights->D ? (double)layer->weights->D[head] : 0.0;
    rssm_ref_read(s->d_k, s->d_v, layer->state + (int64_t)head * s->d_v * s->d_k, q, y);
    for (int32_t row = 0; row < s->d_v; row++) {
        y[row] += D * v[row];
    }
}

static double square_norm(int32_t n, const double *x) {
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++) {
        sum += x[i] * x[i];
    }
    return sum;
}

/*
 * How large the rounding errors of a row of the state have become, as a mean square and up to a factor: each
 * token adds errors in proportion to the row and to what is written into it, and what there was decays. A large
 * value leaves its error behind when the delta rule has taken the value itself away again. key and value:
 * channels of k and v.
 */
static void follow_errors(rssm_ref_layer *layer, int32_t head, int64_t key, int64_t value, double beta) {
    const rssm_layer_spec *s = &layer->spec;
    double keeps = 0.0;
    for (int32_t c = 0; c < s->d_k; c++) {
        keeps = fmax(keeps, layer->alpha[c] * layer->alpha[c]);
    }
    const double written = beta * beta * square_norm(s->d_k, layer->size + key);
    for (int32_t row = 0; row < s->d_v; row++) {
        const int64_t at = (int64_t)head * s->d_v + row;
        const double held = square_norm(s->d_k, layer->state + at * s->d_k), v = layer->size[value + row];
        layer->wander[at] = keeps * layer->wander[at] + held + written * v * v;
        if (s->kind != RSSM_MAMBA2) {
            layer->wander[at] += held * written * square_norm(s->d_k, layer->qkv + key);
        }
    }
}

/* The size of the sums that y is made of: the terms' absolute values, or what errors of the state make of q. */
static void head_scale(const rssm_ref_layer *layer, int32_t head, int64_t query, int64_t value, double *scale) {
    const rssm_layer_spec *s = &layer->spec;
    const double *q = layer->size + query, q_norm = square_norm(s->d_k, q);
    const double D = layer->weights->D ? (double)layer->weights->D[head] : 0.0;
    for (int32_t row = 0; row < s->d_v; row++) {
        const int64_t at = (int64_t)head * s->d_v + row;
        double terms = 0.0;
        for (int32_t c = 0; c < s->d_k; c++) {
            terms += fabs(layer->state[at * s->d_k + c] * q[c]);
        }
        scale[row] = fmax(terms, sqrt(layer->wander[at] * q_norm)) + fabs(D * layer->size[value + row]);
    }
}

void rssm_ref_layer_token(rssm_ref_layer *layer, const rssm_layer_inputs *inputs, int64_t token, double *y,
                          double *scale) {
    const rssm_layer_spec *s = &layer->spec;
    take_qkv(layer, inputs, token);
    normalise(layer);
    for (int32_t head = 0; head < s->value_heads; head++) {
        const int64_t at = (int64_t)head * s->d_v;
        const int64_t query = (int64_t)rssm_ref_key_head(s, head) * s->d_k, key = layer->q_channels + query;
        const int64_t value = 2 * layer->q_channels + at;
        const double *x = layer->qkv, beta = take_gates(layer, inputs, token, head);
        rssm_ref_update(s->d_k, s->d_v, s->kind != RSSM_MAMBA2, layer->state + at * s->d_k, x + key, x + value,
                        layer->alpha, beta);
        head_output(layer, head, x + query, x + value, y + at);
        follow_errors(layer, head, key, value, beta);
        if (scale) {
            head_scale(layer, head, query, value, scale + at);
        }
    }
    if (s->out_norm != RSSM_OUT_NORM_NONE) {
        for (int64_t c = 0; c < layer->v_channels; c++) {
            layer->z[c] =
                view_load(&inputs->z, layer->io_dtype, s->value_heads, s->d_v, token, c / s->d_v, c % s->d_v);
        }
        rssm_ref_out_norm(s, layer->weights->out_norm, layer->z, y, scale);
    }
}

int64_t rssm_ref_layer_channels(const rssm_ref_layer *layer) {
    return layer->spec.conv_width ? layer->channels : 0;
}

/* Half way between x's neighbours in bf16 is where rounding turns; a careful f32 evaluation errs by a few units
   of 2^-24 of the terms it adds up, and as much again in the activation. */
double rssm_ref_layer_tie_margin(const rssm_ref_layer *layer, const rssm_layer_inputs *inputs, int64_t token,
                                 int64_t channel) {
    const int32_t width = layer->spec.conv_width;
    double window[RSSM_CONV_WIDTH_MAX], bias;
    const float *taps = channel_taps(layer, channel, &bias);
    channel_window(layer, inputs, token, channel, window);
    const double terms = terms_of(width, taps, bias, window);
    const double x = rssm_ref_convolve(width, taps, bias, window, !layer->spec.conv_linear);
    if (!isfinite(x)) {
        return HUGE_VAL;
    }
    int exponent;
    frexp(x, &exponent);
    const double quantum = ldexp(1.0, x != 0.0 && exponent - 8 > -133 ? exponent - 8 : -133);
    const double steps = fabs(x) / quantum;
    const double distance = fabs(steps - floor(steps) - 0.5) * quantum;
    return distance / (2.0 * (width + 2) * 0x1p-24 * terms + 16.0 * 0x1p-24 * fabs(x) + 0x1p-147);
}
