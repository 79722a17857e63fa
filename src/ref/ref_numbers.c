/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of the oracle: formats read as doubles, rounding to a format, and the scalar functions. */
#include <math.h>
#include <string.h>

#include "ref/ref.h"

double rssm_ref_load(const void *data, int32_t dtype, int64_t i) {
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
double rssm_ref_round(double x, int32_t dtype) {
    const int bits = dtype == RSSM_DTYPE_BF16 ? 8 : 24;
    const int low = dtype == RSSM_DTYPE_BF16 ? -133 : -149;
    if (x == 0.0 || !isfinite(x)) {
        return x;
    }
    int exponent; /* |x| in [2^(exponent-1), 2^exponent) */
    frexp(x, &exponent);
    const double quantum = ldexp(1.0, exponent - bits > low ? exponent - bits : low);
    const double rounded = nearbyint(x / quantum) * quantum;
    return fabs(rounded) >= 0x1p128 ? copysign(HUGE_VAL, x) : rounded;
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
