/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of the oracle: formats read as doubles, rounding to a format, and the scalar functions. */
#include <math.h>
#include <string.h>

#include "ref/ref.h"

/* A code of sign, exponent and mantissa; nothing of it is infinity or NaN. */
static double small_float(uint32_t code, int mantissa, int exponent, int bias) {
    const int e = (int)(code >> mantissa) & ((1 << exponent) - 1), m = (int)code & ((1 << mantissa) - 1);
    const double x = e == 0 ? ldexp(m, 1 - bias - mantissa) : ldexp((1 << mantissa) + m, e - bias - mantissa);
    return (code >> (mantissa + exponent)) & 1 ? -x : x;
}

static double load_f16(uint16_t code) {
    const double sign = code & 0x8000 ? -1.0 : 1.0;
    return (code & 0x7fff) > 0x7c00 ? (double)NAN : (code & 0x7fff) == 0x7c00 ? sign * HUGE_VAL : small_float(code, 10, 5, 15);
}

double rssm_ref_load(const void *data, int32_t dtype, int64_t i) {
    const unsigned char byte = dtype == RSSM_DTYPE_F8 || dtype == RSSM_DTYPE_INT8 ? ((const unsigned char *)data)[i] : 0;
    if (dtype == RSSM_DTYPE_F8) { /* E4M3 */
        return (byte & 0x7f) == 0x7f ? (double)NAN : small_float(byte, 3, 4, 7);
    }
    if (dtype == RSSM_DTYPE_INT8) {
        return byte < 128 ? byte : byte - 256.0;
    }
    if (dtype == RSSM_DTYPE_F16) {
        uint16_t half;
        memcpy(&half, (const char *)data + 2 * i, sizeof half);
        return load_f16(half);
    }
    if (dtype == RSSM_DTYPE_BF16) { /* the upper half of an f32 */
        uint16_t half;
        memcpy(&half, (const char *)data + 2 * i, sizeof half);
        uint32_t bits = (uint32_t)half << 16;
        float x;
        memcpy(&x, &bits, sizeof x);
        return (double)x;
    }
    float x;
    memcpy(&x, (const char *)data + 4 * i, sizeof x);
    return (double)x;
}

/*
 * A format with p significant bits, whose smallest positive number is 2^low: near x its numbers are the
 * multiples of one power of two, so rounding is rounding x / quantum to an integer.
 */
static double quantum_of(double x, int32_t dtype) {
    const int bits = dtype == RSSM_DTYPE_F16 ? 11 : dtype == RSSM_DTYPE_BF16 ? 8 : dtype == RSSM_DTYPE_F8 ? 4 : 24;
    const int low = dtype == RSSM_DTYPE_F16 ? -24 : dtype == RSSM_DTYPE_BF16 ? -133 : dtype == RSSM_DTYPE_F8 ? -9 : -149;
    int exponent; /* |x| in [2^(exponent-1), 2^exponent) */
    frexp(x, &exponent);
    return ldexp(1.0, exponent - bits > low ? exponent - bits : low);
}

/* What a number without limit becomes in a format. */
static double limited(double x, int32_t dtype) {
    if (dtype == RSSM_DTYPE_F8) {
        return fmax(-448.0, fmin(448.0, x));
    }
    return fabs(x) >= (dtype == RSSM_DTYPE_F16 ? 0x1p16 : 0x1p128) ? copysign(HUGE_VAL, x) : x;
}

double rssm_ref_round(double x, int32_t dtype) {
    if (x == 0.0 || !isfinite(x)) {
        return isinf(x) && dtype == RSSM_DTYPE_F8 ? (double)NAN : x;
    }
    const double quantum = quantum_of(x, dtype);
    return limited(nearbyint(x / quantum) * quantum, dtype);
}

double rssm_ref_round_stochastic(double x, int32_t dtype, uint32_t random) {
    if (x == 0.0 || !isfinite(x)) {
        return rssm_ref_round(x, dtype);
    }
    const double quantum = quantum_of(x, dtype), units = fabs(x) / quantum, below = floor(units);
    const bool up = floor((units - below) * 65536.0 + 0.5) + random >= 65536.0;
    return limited(copysign((below + (up ? 1.0 : 0.0)) * quantum, x), dtype);
}

double rssm_ref_row_scale(int32_t n, const float *x) {
    double largest = 0.0;
    for (int32_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) {
            return (double)NAN;
        }
        largest = fmax(largest, fabs((double)x[i]));
    }
    int exponent;
    frexp(largest, &exponent);
    return largest < 0x1p-100 ? 0.0 : ldexp(1.0, exponent - 8);
}

void rssm_ref_state_row(int32_t dtype, int32_t n, const float *x, const uint32_t *random, double *rounded) {
    const bool scaled = dtype == RSSM_DTYPE_F8;
    const double scale = scaled ? rssm_ref_row_scale(n, x) : 1.0;
    for (int32_t i = 0; i < n; i++) {
        double unit = (double)x[i] / scale;
        if (scale == 0.0 || isnan(scale)) {
            rounded[i] = scale;
            continue;
        }
        if (scaled && fabs((double)x[i]) < 0x1p-126) {
            unit = 0.0;
        }
        rounded[i] = scale * (random != NULL ? rssm_ref_round_stochastic(unit, dtype, random[i])
                                             : rssm_ref_round(unit, dtype));
    }
}

/* Largest magnitude, NaN if there is an infinity or a NaN. */
static float largest_number(int32_t n, const float *x) {
    float largest = 0.0f;
    for (int32_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) {
            return NAN;
        }
        largest = fmaxf(largest, fabsf(x[i]));
    }
    return largest;
}

void rssm_ref_int8_row(int32_t n, const float *x, double *rounded) {
    const float largest = largest_number(n, x);
    for (int32_t i = 0; i < n; i++) {
        const float factor = 127.0f / largest, unit = largest / 127.0f, small = fabsf(x[i]) < 0x1p-126f ? 0.0f : x[i];
        rounded[i] = isnan(largest) ? (double)NAN : largest < 0x1p-100f ? 0.0 : nearbyint((double)(small * factor)) * (double)unit;
    }
}

void rssm_ref_nvfp4_block(int32_t n, const float *x, float head_largest, double *rounded) {
    static const double numbers[] = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};
    const float g = head_largest < 0x1p-100f ? 0.0f : head_largest / 2688.0f, largest = largest_number(n, x);
    const float s = g > 0.0f ? (float)rssm_ref_round((double)(largest * (1.0f / (6.0f * g))), RSSM_DTYPE_F8) : 0.0f;
    for (int32_t i = 0; i < n; i++) {
        const double t = s > 0.0f ? fabs((double)(x[i] * (1.0f / (s * g)))) : 0.0;
        int32_t best = 0;
        for (int32_t c = 1; c < 8; c++) { /* of two as near, the one with the even code */
            const double now = fabs(t - numbers[c]), before = fabs(t - numbers[best]);
            best = now < before || (now == before && c % 2 == 0) ? c : best;
        }
        rounded[i] = isnan(largest) ? (double)NAN : copysign(numbers[best] * (double)s * (double)g, (double)x[i]);
    }
}

double rssm_ref_sigmoid(double x) {
    if (x >= 0.0) {
        return 1.0 / (1.0 + exp(-x));
    }
    const double e = exp(x);
    return e / (1.0 + e);
}

double rssm_ref_softplus(double x) {
    return fmax(x, 0.0) + log1p(exp(-fabs(x)));
}

double rssm_ref_silu(double x) {
    return isinf(x) && x < 0.0 ? 0.0 : x * rssm_ref_sigmoid(x);
}
