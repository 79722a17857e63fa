/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scalar conversions between number formats, for C and CUDA alike. Narrow formats are carried as unsigned integers:
 * neither compiler we support has the types everywhere. Static inline only, so that every variant may include it.
 *
 *            sign exponent mantissa  bias   largest   least > 0   infinity   NaN
 *   f16        1     5        10      15     65504      2^-24       yes      yes
 *   bf16       1     8         7     127     3.4e38     2^-133      yes      yes
 *   E5M2       1     5         2      15     57344      2^-16       yes      yes
 *   E4M3       1     4         3       7       448      2^-9        no       0x7f, 0xff
 *   E2M1       1     2         1       1         6      0.5         no       no
 *   E8M0       0     8         0     127     2^127      2^-126      no       0xff (a scale; 0 stands for zero)
 *
 * Encoders are free of branches, so that a loop over them becomes vector code, and all variants give the same bits.
 * Nearest rounds ties to even. Stochastic rounding takes 16 random bits and rounds up with the probability that is the
 * distance to the number below, as a multiple of 2^-16: unbiased, and exact for numbers the format has. Where
 * there is no infinity, finite numbers beyond the largest become the largest, and infinity becomes NaN.
 */
#ifndef RSSM_NUMBERS_H
#define RSSM_NUMBERS_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define RSSM_BOTH static inline __host__ __device__
#else
#define RSSM_BOTH static inline
#endif

RSSM_BOTH uint32_t rssm_bits_of_f32(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

RSSM_BOTH float rssm_f32_of_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* ---- The magnitude of a small float ------------------------------------------------------------------------ */

/* `a` is the magnitude's bits as f32, finite; the result is the code without sign, running on beyond the format's largest
   number. Below the least normal number the spacing is constant: adding a power of two whose own spacing that is
   rounds in one step. */
RSSM_BOTH uint32_t rssm_small_nearest(uint32_t a, uint32_t mantissa, uint32_t bias) {
    const uint32_t shift = 23 - mantissa, magic = (151 - bias - mantissa) << 23;
    const uint32_t normal = (a + ((1u << (shift - 1)) - 1) + ((a >> shift) & 1u) - ((127 - bias) << 23)) >> shift;
    const uint32_t below = rssm_bits_of_f32(rssm_f32_of_bits(a) + rssm_f32_of_bits(magic)) - magic;
    return a >= ((128 - bias) << 23) ? normal : below;
}

/* random: 16 bits. Below the least normal number, in units of 2^-16 of the spacing. */
RSSM_BOTH uint32_t rssm_small_stochastic(uint32_t a, uint32_t random, uint32_t mantissa, uint32_t bias) {
    const uint32_t shift = 23 - mantissa; /* bits that are dropped */
    const uint32_t noise = shift > 16 ? (random << (shift > 16 ? shift - 16 : 0)) + (1u << (shift > 16 ? shift - 17 : 0))
                                      : random >> (shift > 16 ? 0 : 16 - shift);
    const uint32_t normal = (a + noise - ((127 - bias) << 23)) >> shift;
    const uint32_t least = (128 - bias) << 23, small = a < least ? a : 0;
    const float units = rssm_f32_of_bits(small) * rssm_f32_of_bits((127 + bias - 1 + mantissa + 16) << 23);
    const uint32_t below = ((uint32_t)(int32_t)(units < 0x1p23f ? units + 0.5f : units) + random) >> 16;
    return a >= least ? normal : below;
}

RSSM_BOTH uint32_t rssm_min_u32(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

/* Finite ones below infinity's bits; others as themselves, so that arithmetic on them cannot wrap. */
#define RSSM_FINITE_(a) ((a) < 0x7f800000u ? (a) : 0u)
#define RSSM_IS_NAN_(a) ((a) > 0x7f800000u)

/* ---- bf16 -------------------------------------------------------------------------------------------------- */

RSSM_BOTH float rssm_f32_of_bf16(uint16_t h) {
    return rssm_f32_of_bits((uint32_t)h << 16);
}

/* Nearest, ties to even; infinity stays, NaN stays a (quiet) NaN. */
RSSM_BOTH uint16_t rssm_bf16_of_f32(float x) {
    const uint32_t u = rssm_bits_of_f32(x);
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, quiet = (u >> 16) | 0x40u;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

RSSM_BOTH uint16_t rssm_bf16_stochastic(float x, uint32_t random) {
    const uint32_t u = rssm_bits_of_f32(x), a = u & 0x7fffffffu;
    const uint32_t rounded = (u + (a < 0x7f800000u ? random : 0)) >> 16, quiet = (u >> 16) | 0x40u;
    return (uint16_t)(RSSM_IS_NAN_(a) ? quiet : rounded);
}

/* ---- f16 --------------------------------------------------------------------------------------------------- */

RSSM_BOTH float rssm_f32_of_f16(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 0x1fu, mantissa = h & 0x3ffu;
    if (exponent == 0x1fu) { /* a NaN becomes quiet */
        return rssm_f32_of_bits(sign | 0x7f800000u | (mantissa << 13) | (mantissa != 0 ? 0x400000u : 0));
    }
    if (exponent == 0) { /* subnormal: mantissa * 2^-24, exact in f32 */
        float x = (float)mantissa * 0x1p-24f;
        return rssm_f32_of_bits(sign | rssm_bits_of_f32(x));
    }
    return rssm_f32_of_bits(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

/* Puts sign, infinity and NaN to the code of a finite magnitude. */
RSSM_BOTH uint16_t rssm_f16_finish_(uint32_t u, uint32_t code) {
    const uint32_t a = u & 0x7fffffffu, nan = 0x7e00u | ((a >> 13) & 0x3ffu);
    const uint32_t finite = a == 0x7f800000u ? 0x7c00u : rssm_min_u32(code, 0x7c00u);
    return (uint16_t)(((u >> 16) & 0x8000u) | (RSSM_IS_NAN_(a) ? nan : finite));
}

RSSM_BOTH uint16_t rssm_f16_of_f32(float x) {
    const uint32_t u = rssm_bits_of_f32(x), a = u & 0x7fffffffu;
    return rssm_f16_finish_(u, rssm_small_nearest(RSSM_FINITE_(a), 10, 15));
}

RSSM_BOTH uint16_t rssm_f16_stochastic(float x, uint32_t random) {
    const uint32_t u = rssm_bits_of_f32(x), a = u & 0x7fffffffu;
    return rssm_f16_finish_(u, rssm_small_stochastic(RSSM_FINITE_(a), random, 10, 15));
}

/* ---- E4M3 -------------------------------------------------------------------------------------------------- */

RSSM_BOTH float rssm_f32_of_e4m3(uint8_t h) {
    const uint32_t sign = (uint32_t)(h & 0x80u) << 24, magnitude = h & 0x7fu;
    const uint32_t below = rssm_bits_of_f32((float)magnitude * 0x1p-9f), normal = (magnitude << 20) + (120u << 23);
    return rssm_f32_of_bits(sign | (magnitude == 0x7fu ? 0x7fc00000u : magnitude < 8 ? below : normal));
}

RSSM_BOTH uint8_t rssm_e4m3_finish_(uint32_t u, uint32_t code) {
    const uint32_t a = u & 0x7fffffffu;
    return (uint8_t)(((u >> 24) & 0x80u) | (a >= 0x7f800000u ? 0x7fu : rssm_min_u32(code, 0x7eu)));
}

RSSM_BOTH uint8_t rssm_e4m3_of_f32(float x) {
    const uint32_t u = rssm_bits_of_f32(x), a = u & 0x7fffffffu;
    return rssm_e4m3_finish_(u, rssm_small_nearest(RSSM_FINITE_(a), 3, 7));
}

RSSM_BOTH uint8_t rssm_e4m3_stochastic(float x, uint32_t random) {
    const uint32_t u = rssm_bits_of_f32(x), a = u & 0x7fffffffu;
    return rssm_e4m3_finish_(u, rssm_small_stochastic(RSSM_FINITE_(a), random, 3, 7));
}

/* ---- E5M2 -------------------------------------------------------------------------------------------------- */

RSSM_BOTH float rssm_f32_of_e5m2(uint8_t h) {
    return rssm_f32_of_f16((uint16_t)(h << 8)); /* the upper half of an f16 */
}

RSSM_BOTH uint8_t rssm_e5m2_finish_(uint32_t u, uint32_t code) {
    const uint32_t a = u & 0x7fffffffu, nan = 0x7eu | ((a >> 21) & 3u);
    const uint32_t finite = a == 0x7f800000u ? 0x7cu : rssm_min_u32(code, 0x7cu);
    return (uint8_t)(((u >> 24) & 0x80u) | (RSSM_IS_NAN_(a) ? nan : finite));
}

RSSM_BOTH uint8_t rssm_e5m2_of_f32(float x) {
    const uint32_t u = rssm_bits_of_f32(x), a = u & 0x7fffffffu;
    return rssm_e5m2_finish_(u, rssm_small_nearest(RSSM_FINITE_(a), 2, 15));
}

RSSM_BOTH uint8_t rssm_e5m2_stochastic(float x, uint32_t random) {
    const uint32_t u = rssm_bits_of_f32(x), a = u & 0x7fffffffu;
    return rssm_e5m2_finish_(u, rssm_small_stochastic(RSSM_FINITE_(a), random, 2, 15));
}

/* ---- E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 ------------------------------------------------------------------------- */

RSSM_BOTH float rssm_f32_of_e2m1(uint32_t h) {
    const uint32_t magnitude = h & 7u, below = magnitude == 0 ? 0 : 126u << 23;
    return rssm_f32_of_bits(((h & 8u) << 28) | (magnitude < 2 ? below : (magnitude << 22) + (126u << 23)));
}

/* Infinity becomes 6 and NaN too: who has them says so in the scale. */
RSSM_BOTH uint32_t rssm_e2m1_of_f32(float x) {
    const uint32_t u = rssm_bits_of_f32(x), a = u & 0x7fffffffu;
    const uint32_t code = rssm_min_u32(rssm_small_nearest(RSSM_FINITE_(a), 1, 1), 7u);
    return ((u >> 28) & 8u) | (a >= 0x7f800000u ? 7u : code);
}

RSSM_BOTH uint32_t rssm_e2m1_stochastic(float x, uint32_t random) {
    const uint32_t u = rssm_bits_of_f32(x), a = u & 0x7fffffffu;
    const uint32_t code = rssm_min_u32(rssm_small_stochastic(RSSM_FINITE_(a), random, 1, 1), 7u);
    return ((u >> 28) & 8u) | (a >= 0x7f800000u ? 7u : code);
}

/* ---- E8M0, a power of two as a scale ------------------------------------------------------------------------- */

/* 2^(code - 127); 0 for code 0, whose power is subnormal; NaN for 255. */
RSSM_BOTH float rssm_f32_of_e8m0(uint8_t code) {
    return rssm_f32_of_bits(code == 255 ? 0x7fc00000u : (uint32_t)code << 23);
}

/* ---- Scales of rows and blocks --------------------------------------------------------------------------------- */

/* Rows (and states) whose largest magnitude lies below this count as zero in the formats that have scales: their scales
   could leave the range of normal numbers. */
#define RSSM_SCALED_LEAST 0x1p-100f

/* The scale of an E4M3 row: brings its largest finite magnitude into [128, 256), where neither way of rounding leaves the
   format. NaN if the row holds an infinity or a NaN: E4M3 has no infinity, and a row is read as a whole. */
RSSM_BOTH uint8_t rssm_row_exponent(float largest, int any_special) {
    const uint32_t exponent = rssm_bits_of_f32(largest) >> 23;
    const uint32_t code = largest < RSSM_SCALED_LEAST ? 0 : exponent - 7;
    return (uint8_t)(any_special ? 255u : code);
}
/* What a row's elements are multiplied by before they are rounded: 1 / scale, or 0. */
RSSM_BOTH float rssm_row_factor(uint8_t code) {
    return rssm_f32_of_bits(code == 0 || code == 255 ? 0 : (254u - code) << 23);
}

#endif
