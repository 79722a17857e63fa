/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scalar conversions between number formats. 16-bit formats are carried as uint16_t: neither compiler we
 * support has both types everywhere. Static inline only, so that every variant may include it.
 */
#ifndef RSSM_NUMBERS_H
#define RSSM_NUMBERS_H

#include <stdint.h>
#include <string.h>

static inline uint32_t rssm_bits_of_f32(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float rssm_f32_of_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float rssm_f32_of_bf16(uint16_t h) {
    return rssm_f32_of_bits((uint32_t)h << 16);
}

/* Nearest, ties to even; infinity stays, NaN stays a (quiet) NaN. */
static inline uint16_t rssm_bf16_of_f32(float x) {
    uint32_t u = rssm_bits_of_f32(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((u >> 16) | 0x40u);
    }
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline float rssm_f32_of_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 0x1fu;
    uint32_t mantissa = h & 0x3ffu;
    if (exponent == 0x1fu) {
        return rssm_f32_of_bits(sign | 0x7f800000u | (mantissa << 13));
    }
    if (exponent == 0) { /* subnormal: mantissa * 2^-24, exact in f32 */
        float x = (float)mantissa * 0x1p-24f;
        return rssm_f32_of_bits(sign | rssm_bits_of_f32(x));
    }
    return rssm_f32_of_bits(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

#endif
