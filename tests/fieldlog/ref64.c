/* SPDX-License-Identifier: Apache-2.0 */
#include "fieldlog/ref64.h"

#include <math.h>
#include <string.h>

#include "numbers.h"

static double element(const void *data, int64_t offset, int32_t dtype, int64_t i) {
    const unsigned char *p = (const unsigned char *)data + offset;
    if (dtype == RSSM_DTYPE_BF16) {
        uint16_t h;
        memcpy(&h, p + 2 * i, sizeof h);
        return (double)rssm_f32_of_bf16(h);
    }
    float x;
    memcpy(&x, p + 4 * i, sizeof x);
    return (double)x;
}

static double sigmoid(double x) {
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}
static double softplus(double x) {
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

int64_t ref64_elements(const cb_problem *p) {
    return (int64_t)p->spec.value_heads * p->spec.d_v * p->spec.d_k;
}

static int64_t channels(const cb_problem *p) {
    return 2 * (int64_t)p->spec.key_heads * p->spec.d_k + (int64_t)p->spec.value_heads * p->spec.d_v;
}

ref64 *ref64_make(const cb_problem *problem, int32_t layer) {
    ref64 *r = chk_alloc(sizeof *r);
    r->problem = problem;
    r->layer = layer;
    r->state = chk_alloc((size_t)ref64_elements(problem) * sizeof *r->state);
    r->context = chk_alloc((size_t)(RSSM_CONV_WIDTH_MAX * channels(problem)) * sizeof *r->context);
    return r;
}

void ref64_copy(ref64 *to, const ref64 *from) {
    to->tokens = from->tokens;
    memcpy(to->state, from->state, (size_t)ref64_elements(from->problem) * sizeof *to->state);
    memcpy(to->context, from->context,
           (size_t)(RSSM_CONV_WIDTH_MAX * channels(from->problem)) * sizeof *to->context);
}

/* q, k and v of a token, [channels], through the convolution if there is one. */
static void convolve(ref64 *r, const void *token, double *x) {
    const cb_problem *p = r->problem;
    const rssm_layer_weights *w = &p->weights[r->layer];
    const int64_t keys = (int64_t)p->spec.key_heads * p->spec.d_k, all = channels(p);
    const int32_t width = p->spec.conv_width;
    for (int64_t c = 0; c < all; c++) {
        const int64_t part = c < keys ? 0 : c < 2 * keys ? 1 : 2, i = c - part * keys;
        const double in = element(token, part == 0 ? p->q : part == 1 ? p->k : p->v, p->desc.io_dtype, i);
        const float *taps = part == 0 ? w->conv_q : part == 1 ? w->conv_k : w->conv_v;
        const float *bias = part == 0 ? w->conv_bias_q : part == 1 ? w->conv_bias_k : w->conv_bias_v;
        x[c] = in;
        if (width == 0) {
            continue;
        }
        double sum = (bias != NULL ? (double)bias[i] : 0) + (double)taps[i * width + width - 1] * in;
        for (int32_t j = 0; j < width - 1; j++) {
            sum += (double)taps[i * width + j] * r->context[j * all + c];
        }
        for (int32_t j = 0; j + 1 < width - 1; j++) {
            r->context[j * all + c] = r->context[(j + 1) * all + c];
        }
        r->context[(width - 2) * all + c] = in;
        sum = p->spec.conv_linear ? sum : sum * sigmoid(sum);
        x[c] =
            p->desc.io_dtype == RSSM_DTYPE_BF16 ? (double)rssm_f32_of_bf16(rssm_bf16_of_f32((float)sum)) : sum;
    }
}

static void normalise(const cb_problem *p, double *x) {
    const double eps = p->spec.qk_norm_eps != 0 ? (double)p->spec.qk_norm_eps : 1e-6;
    double sum = eps;
    for (int32_t c = 0; c < p->spec.d_k; c++) {
        sum += x[c] * x[c];
    }
    for (int32_t c = 0; c < p->spec.d_k; c++) {
        x[c] /= sqrt(sum);
    }
}

/* alpha [d_k] and beta of value head h. */
static void gates(const ref64 *r, const void *token, int32_t h, double *alpha, double *beta) {
    const cb_problem *p = r->problem;
    const rssm_layer_spec *s = &p->spec;
    const rssm_layer_weights *w = &p->weights[r->layer];
    const bool kda = s->kind == RSSM_KDA;
    double A = w->A_log != NULL ? -exp((double)w->A_log[h]) : w->A != NULL ? (double)w->A[h] : -1;
    for (int32_t c = 0; c < s->d_k; c++) {
        const int64_t at = kda ? (int64_t)h * s->d_k + c : h;
        const double in = element(token, p->decay, p->gate_dtype, at);
        const double x = in + (w->dt_bias != NULL ? (double)w->dt_bias[at] : 0);
        if (s->gate == RSSM_GATE_LOG) {
            alpha[c] = exp(in);
        } else if (s->gate_lower_bound < 0) {
            alpha[c] = exp((double)s->gate_lower_bound * sigmoid(-A * x));
        } else {
            double dt = s->gate == RSSM_GATE_DT ? in : softplus(x);
            if (s->kind == RSSM_MAMBA2 && s->gate == RSSM_GATE_RAW) {
                dt = dt < (double)s->dt_min ? (double)s->dt_min : dt;
                dt = s->dt_max > 0 && dt > (double)s->dt_max ? (double)s->dt_max : dt;
            }
            alpha[c] = A == 0 || dt == 0 ? 1 : exp(dt * A);
            *beta = dt;
        }
    }
    if (p->has_beta) {
        const double b = element(token, p->beta, p->gate_dtype, h);
        *beta = s->gate == RSSM_GATE_LOG ? b : sigmoid(b) * (s->beta_scale != 0 ? (double)s->beta_scale : 1);
    }
}

/* One value head: the update, then y = S q. */
static void update(const cb_problem *p, double *S, const double *k, const double *v, const double *q,
                   const double *alpha, double beta, double *y) {
    const bool delta = p->spec.kind != RSSM_MAMBA2;
    for (int32_t i = 0; i < p->spec.d_v; i++) {
        double *row = S + (int64_t)i * p->spec.d_k, seen = 0, out = 0;
        for (int32_t c = 0; c < p->spec.d_k; c++) {
            row[c] *= alpha[c];
            seen += row[c] * k[c];
        }
        for (int32_t c = 0; c < p->spec.d_k; c++) {
            row[c] += beta * (v[i] - (delta ? seen : 0)) * k[c];
            out += row[c] * q[c];
        }
        y[i] = out;
    }
}

static void out_norm(const ref64 *r, const void *token, double *y) {
    const cb_problem *p = r->problem;
    const rssm_layer_spec *s = &p->spec;
    const float *weight = p->weights[r->layer].out_norm;
    const int64_t all = (int64_t)s->value_heads * s->d_v;
    const bool group = s->out_norm == RSSM_OUT_NORM_GROUP;
    const int64_t groups = s->out_norm_groups != 0 ? s->out_norm_groups : s->key_heads;
    const int64_t n = group ? all / groups : s->d_v;
    const double eps = s->out_norm_eps != 0 ? (double)s->out_norm_eps : 1e-6;
    for (int64_t first = 0; first < all && s->out_norm != RSSM_OUT_NORM_NONE; first += n) {
        double sum = 0;
        for (int64_t i = first; i < first + n; i++) {
            const double z = element(token, p->z, p->desc.io_dtype, i);
            y[i] *= group || s->out_norm == RSSM_OUT_NORM_GATE_SILU ? z * sigmoid(z) : 1;
            sum += y[i] * y[i];
        }
        for (int64_t i = first; i < first + n && s->out_norm != RSSM_OUT_NORM_GATE_SILU; i++) {
            const double z = element(token, p->z, p->desc.io_dtype, i);
            y[i] *= (weight == NULL ? 1 : (double)weight[group ? i : i % s->d_v]) / sqrt(sum / (double)n + eps);
            y[i] *= group ? 1 : s->out_norm == RSSM_OUT_NORM_HEAD_SILU ? z * sigmoid(z) : sigmoid(z);
        }
    }
}

void ref64_token(ref64 *r, const void *token, double *y) {
    const cb_problem *p = r->problem;
    const rssm_layer_spec *s = &p->spec;
    const rssm_layer_weights *w = &p->weights[r->layer];
    double x[8192], alpha[RSSM_HEAD_DIM_MAX], q[RSSM_HEAD_DIM_MAX], k[RSSM_HEAD_DIM_MAX], out[8192];
    const bool delta = s->kind != RSSM_MAMBA2;
    const bool l2 = s->qk_norm == RSSM_QK_NORM_L2 || (s->qk_norm == RSSM_QK_NORM_DEFAULT && delta);
    const double q_scale = s->q_scale != 0 ? (double)s->q_scale : delta ? 1 / sqrt((double)s->d_k) : 1;
    const int64_t keys = (int64_t)s->key_heads * s->d_k;
    const size_t bytes = (size_t)s->d_k * sizeof(double);
    convolve(r, token, x);
    for (int32_t h = 0; h < s->value_heads; h++) {
        const int32_t g =
            s->head_map == RSSM_HEAD_MAP_MODULO ? h % s->key_heads : h / (s->value_heads / s->key_heads);
        double *v = x + 2 * keys + (int64_t)h * s->d_v, *o = out + (int64_t)h * s->d_v, beta = 0;
        memcpy(q, x + (int64_t)g * s->d_k, bytes);
        memcpy(k, x + keys + (int64_t)g * s->d_k, bytes);
        if (l2) {
            normalise(p, q);
            normalise(p, k);
        }
        for (int32_t c = 0; c < s->d_k; c++) {
            q[c] *= q_scale;
        }
        gates(r, token, h, alpha, &beta);
        update(p, r->state + (int64_t)h * s->d_v * s->d_k, k, v, q, alpha, beta, o);
        for (int32_t i = 0; i < s->d_v; i++) {
            o[i] += w->D != NULL ? (double)w->D[h] * v[i] : 0;
        }
    }
    out_norm(r, token, out);
    r->tokens++;
    if (y != NULL) {
        memcpy(y, out, (size_t)s->value_heads * (size_t)s->d_v * sizeof *y);
    }
}
