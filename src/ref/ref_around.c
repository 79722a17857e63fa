/* SPDX-License-Identifier: Apache-2.0 */
/* What surrounds the recurrence: short convolution, norms, gates, and the gated norms of the output. */
#include <math.h>

#include "ref/ref.h"

double rssm_ref_convolve(int32_t width, const float *taps, double bias, const double *window, bool silu) {
    double sum = bias;
    for (int32_t i = 0; i < width; i++) {
        sum += (double)taps[i] * window[i];
    }
    return silu ? rssm_ref_silu(sum) : sum;
}

double rssm_ref_inverse_norm(int32_t n, const double *x, double eps) {
    double sum = eps;
    for (int32_t i = 0; i < n; i++) {
        sum += x[i] * x[i];
    }
    return 1.0 / sqrt(sum);
}

/* The layer's A <= 0 of a head. */
static double rate_of_head(const rssm_layer_weights *weights, int32_t head) {
    if (weights->A_log) {
        return -exp((double)weights->A_log[head]);
    }
    return weights->A ? (double)weights->A[head] : -1.0;
}

/* log alpha = A softplus(f + bias), or b sigmoid(-A (f + bias)) with a lower bound b. */
static double log_decay(double A, double bound, double f, double bias) {
    return bound < 0.0 ? bound * rssm_ref_sigmoid(-A * (f + bias)) : A * rssm_ref_softplus(f + bias);
}

static double clamped_dt(const rssm_layer_spec *spec, double dt) {
    if (spec->dt_min > 0.0f) {
        dt = fmax(dt, (double)spec->dt_min);
    }
    if (spec->dt_max > 0.0f) {
        dt = fmin(dt, (double)spec->dt_max);
    }
    return dt;
}

void rssm_ref_gates(const rssm_layer_spec *spec, const rssm_layer_weights *weights, int32_t value_head,
                    const double *decay, double beta_input, double *alpha, double *beta) {
    const int32_t n = spec->d_k;
    const bool vector = spec->kind == RSSM_KDA;
    if (spec->gate == RSSM_GATE_LOG) {
        for (int32_t i = 0; i < n; i++) {
            alpha[i] = exp(decay[vector ? i : 0]);
        }
        *beta = beta_input;
        return;
    }
    const double A = rate_of_head(weights, value_head);
    const float *dt_bias = weights->dt_bias;
    if (spec->kind == RSSM_MAMBA2) {
        double dt = decay[0];
        if (spec->gate == RSSM_GATE_RAW) {
            dt = clamped_dt(spec, rssm_ref_softplus(dt + (dt_bias ? (double)dt_bias[value_head] : 0.0)));
        }
        for (int32_t i = 0; i < n; i++) {
            alpha[i] = exp(dt * A);
        }
        *beta = dt;
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        const int64_t at = vector ? (int64_t)value_head * n + i : value_head;
        const double bias = dt_bias ? (double)dt_bias[at] : 0.0;
        alpha[i] = exp(log_decay(A, (double)spec->gate_lower_bound, decay[vector ? i : 0], bias));
    }
    *beta = (double)spec->beta_scale * rssm_ref_sigmoid(beta_input);
}

/* RMS norm of n values in place, times weight (NULL: 1). An error of size scale in every value moves the mean
   square too, hence the second term of the new scale. */
static void rms_norm(int64_t n, const float *weight, double eps, double *u, double *scale) {
    double squares = 0.0, scale_squares = 0.0;
    for (int64_t i = 0; i < n; i++) {
        squares += u[i] * u[i];
        scale_squares += scale ? scale[i] * scale[i] : 0.0;
    }
    const double inverse = 1.0 / sqrt(squares / (double)n + eps);
    const double spread = sqrt(scale_squares / (double)n) * inverse;
    for (int64_t i = 0; i < n; i++) {
        const double factor = inverse * (weight ? (double)weight[i] : 1.0);
        if (scale) {
            scale[i] = fabs(factor) * (scale[i] + fabs(u[i]) * spread);
        }
        u[i] *= factor;
    }
}

void rssm_ref_out_norm(const rssm_layer_spec *spec, const float *weight, const double *z, double *y,
                       double *scale) {
    const int64_t channels = (int64_t)spec->value_heads * spec->d_v;
    const int32_t form = spec->out_norm;
    const double eps = (double)spec->out_norm_eps;
    if (form == RSSM_OUT_NORM_HEAD_SILU || form == RSSM_OUT_NORM_HEAD_SIGMOID) {
        for (int64_t first = 0; first < channels; first += spec->d_v) {
            rms_norm(spec->d_v, weight, eps, y + first, scale ? scale + first : NULL);
        }
    }
    if (form != RSSM_OUT_NORM_NONE) {
        for (int64_t i = 0; i < channels; i++) {
            const double gate =
                form == RSSM_OUT_NORM_HEAD_SIGMOID ? rssm_ref_sigmoid(z[i]) : rssm_ref_silu(z[i]);
            y[i] *= gate;
            if (scale) {
                scale[i] *= fabs(gate);
            }
        }
    }
    if (form == RSSM_OUT_NORM_GROUP) {
        const int64_t n = channels / spec->out_norm_groups;
        for (int64_t first = 0; first < channels; first += n) {
            rms_norm(n, weight ? weight + first : NULL, eps, y + first, scale ? scale + first : NULL);
        }
    }
}
