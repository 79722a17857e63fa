/* SPDX-License-Identifier: Apache-2.0 */
/* The vector vocabulary on AVX2 with FMA and F16C, two registers to a vector; vec.h says what each operation means. */
#ifndef RSSM_VEC_AVX2_H
#define RSSM_VEC_AVX2_H

#include <immintrin.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "../numbers.h"
#include "vec_x86.h"

#define V16_UNROLL 1

typedef struct {
    __m256 lo, hi; /* lanes 0..7, 8..15 */
} v16;
typedef v16 m16; /* all bits of a lane or none */

static inline v16 v16_of_(__m256 lo, __m256 hi) { return (v16){lo, hi}; }

/* Eight lanes from here on are set for n = 8 and more, none for 0 and less. */
static inline __m256i v16_first8_(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline m16 v16_first(int n) {
    return v16_of_(_mm256_castsi256_ps(v16_first8_(n)), _mm256_castsi256_ps(v16_first8_(n - 8)));
}

static inline v16 v16_zero(void) { return v16_of_(_mm256_setzero_ps(), _mm256_setzero_ps()); }
static inline v16 v16_set1(float x) { return v16_of_(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
static inline v16 v16_load(const float *p) { return v16_of_(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
/* Masked loads and stores touch no byte of a lane that is off, wherever it would be. */
static inline v16 v16_load_n(const float *p, int n) {
    return v16_of_(_mm256_maskload_ps(p, v16_first8_(n)), _mm256_maskload_ps(p + 8, v16_first8_(n - 8)));
}
static inline void v16_store(float *p, v16 a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
static inline void v16_store8(float *p, v16 a) { _mm256_storeu_ps(p, a.lo); }
static inline void v16_store_n(float *p, v16 a, int n) {
    _mm256_maskstore_ps(p, v16_first8_(n), a.lo);
    _mm256_maskstore_ps(p + 8, v16_first8_(n - 8), a.hi);
}

/* Narrow lanes have no masks: the first n are copied, 16-bit ones or bytes. */
static inline __m256i v16_part16_(const void *p, int n) {
    uint16_t h[16] = {0};
    memcpy(h, p, (size_t)n * sizeof h[0]);
    return _mm256_loadu_si256((const void *)h);
}
static inline __m128i v16_part8_(const void *p, int n) {
    uint8_t h[16] = {0};
    memcpy(h, p, (size_t)n);
    return _mm_loadu_si128((const void *)h);
}

static inline __m256 v16_of_bf16_8_(__m128i h) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
static inline v16 v16_of_bf16_(__m256i h) {
    return v16_of_(v16_of_bf16_8_(_mm256_castsi256_si128(h)), v16_of_bf16_8_(_mm256_extracti128_si256(h, 1)));
}
static inline v16 v16_load_bf16(const uint16_t *p) { return v16_of_bf16_(_mm256_loadu_si256((const void *)p)); }
static inline v16 v16_load_bf16_n(const uint16_t *p, int n) { return v16_of_bf16_(v16_part16_(p, n)); }
static inline __m256i v16_to_bf16_8_(__m256 a) {
    __m256i u = _mm256_castps_si256(a), high = _mm256_srli_epi32(u, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i rounded =
        _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd), 16);
    __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
}
static inline __m256i v16_to_bf16_(v16 a) {
    __m256i mixed = _mm256_packus_epi32(v16_to_bf16_8_(a.lo), v16_to_bf16_8_(a.hi));
    return _mm256_permute4x64_epi64(mixed, 0xd8); /* the packing keeps to halves */
}
static inline void v16_store_bf16(uint16_t *p, v16 a) { _mm256_storeu_si256((void *)p, v16_to_bf16_(a)); }
static inline void v16_store_bf16_n(uint16_t *p, v16 a, int n) {
    uint16_t h[16];
    v16_store_bf16(h, a);
    memcpy(p, h, (size_t)n * sizeof h[0]);
}

static inline v16 v16_of_f16_(__m256i h) {
    return v16_of_(_mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)));
}
static inline v16 v16_load_f16(const uint16_t *p) { return v16_of_f16_(_mm256_loadu_si256((const void *)p)); }
static inline v16 v16_load_f16_n(const uint16_t *p, int n) { return v16_of_f16_(v16_part16_(p, n)); }
static inline v16 v16_of_i8_(__m128i h) {
    return v16_of_(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(h)),
                   _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(h, 8))));
}
static inline __m256i v16_to_f16_(v16 a) {
    return _mm256_set_m128i(_mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT), _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
}
static inline void v16_store_f16(uint16_t *p, v16 a) { _mm256_storeu_si256((void *)p, v16_to_f16_(a)); }
static inline void v16_store_f16_n(uint16_t *p, v16 a, int n) {
    uint16_t h[16];
    v16_store_f16(h, a);
    memcpy(p, h, (size_t)n * sizeof *p);
}
static inline void v16_store_i8_n(int8_t *p, v16 a, int n) {
    int32_t x[16];
    _mm256_storeu_si256((void *)x, _mm256_cvtps_epi32(a.lo));
    _mm256_storeu_si256((void *)(x + 8), _mm256_cvtps_epi32(a.hi));
    for (int i = 0; i < n; i++) {
        p[i] = (int8_t)x[i];
    }
}
static inline v16 v16_load_i8(const int8_t *p) { return v16_of_i8_(_mm_loadu_si128((const void *)p)); }
static inline v16 v16_load_i8_n(const int8_t *p, int n) { return v16_of_i8_(v16_part8_(p, n)); }
/* Seven bits to the left an E4M3 code is the f16 of a 256th, and the conversion of f16 takes subnormals as they are. */
static inline v16 v16_of_e4m3_(__m128i h) {
    __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(h), 7);
    return v16_of_f16_(_mm256_and_si256(wide, _mm256_set1_epi16((short)0xbf80)));
}
static inline v16 v16_load_e4m3_256th(const uint8_t *p) { return v16_of_e4m3_(_mm_loadu_si128((const void *)p)); }
static inline v16 v16_load_e4m3_256th_n(const uint8_t *p, int n) { return v16_of_e4m3_(v16_part8_(p, n)); }
/* A table of magnitudes by the low three bits, the sign from the fourth. */
static inline __m256 v16_of_e2m1_8_(__m256i code) {
    const __m256 table = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    __m256i sign = _mm256_slli_epi32(_mm256_and_si256(code, _mm256_set1_epi32(8)), 28);
    return _mm256_xor_ps(_mm256_permutevar8x32_ps(table, code), _mm256_castsi256_ps(sign));
}
static inline v16 v16_load_e2m1(const uint8_t *p, int high) {
    __m128i bytes = _mm_loadu_si128((const void *)p);
    bytes = high ? _mm_and_si128(_mm_srli_epi16(bytes, 4), _mm_set1_epi8(15)) : bytes;
    return v16_of_(v16_of_e2m1_8_(_mm256_cvtepu8_epi32(bytes)),
                   v16_of_e2m1_8_(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))));
}

static inline v16 v16_add(v16 a, v16 b) { return v16_of_(_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)); }
static inline v16 v16_sub(v16 a, v16 b) { return v16_of_(_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)); }
static inline v16 v16_mul(v16 a, v16 b) { return v16_of_(_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)); }
static inline v16 v16_div(v16 a, v16 b) { return v16_of_(_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)); }
static inline v16 v16_fma(v16 a, v16 b, v16 c) {
    return v16_of_(_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi));
}
static inline v16 v16_max(v16 a, v16 b) { return v16_of_(_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)); }
static inline v16 v16_min(v16 a, v16 b) { return v16_of_(_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)); }
static inline v16 v16_sqrt(v16 a) { return v16_of_(_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)); }
static inline v16 v16_abs(v16 a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return v16_of_(_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi));
}
static inline v16 v16_neg(v16 a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return v16_of_(_mm256_xor_ps(a.lo, sign), _mm256_xor_ps(a.hi, sign));
}
static inline v16 v16_round(v16 a) {
    enum { NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };
    return v16_of_(_mm256_round_ps(a.lo, NEAREST), _mm256_round_ps(a.hi, NEAREST));
}
/* 2^n for integral n from -126 to 127 */
static inline __m256 v16_exp2i_8_(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
/* By two products, of which the first is exact for |x| from 1/2 to 2 and wherever the result is normal. */
static inline __m256 v16_ldexp8_(__m256 x, __m256 n) {
    const __m256 least = _mm256_set1_ps(-250.0f), most = _mm256_set1_ps(254.0f);
    __m256i whole = _mm256_cvtps_epi32(_mm256_max_ps(least, _mm256_min_ps(most, n)));
    __m256i half = _mm256_srai_epi32(whole, 1);
    return _mm256_mul_ps(_mm256_mul_ps(x, v16_exp2i_8_(half)), v16_exp2i_8_(_mm256_sub_epi32(whole, half)));
}
static inline v16 v16_ldexp(v16 a, v16 n) { return v16_of_(v16_ldexp8_(a.lo, n.lo), v16_ldexp8_(a.hi, n.hi)); }

static inline m16 v16_lt(v16 a, v16 b) {
    return v16_of_(_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ));
}
static inline v16 v16_select(m16 m, v16 a, v16 b) {
    return v16_of_(_mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi));
}

static inline float v16_sum(v16 a) {
    __m256 h = _mm256_add_ps(a.lo, a.hi);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    q = _mm_add_ss(q, _mm_movehdup_ps(q));
    return _mm_cvtss_f32(q);
}

/* Eight rows: lanes 8 apart are added first, then each step adds lanes half as far apart of two rows, or pairs of them,
   and packs the results. */
static inline __m256 v16_sum8_(const v16 p[8]) {
    __m256 a[4], b[2];
    for (int i = 0; i < 4; i++) { /* halves: rows i and i + 4, after adding lanes 4 apart */
        __m256 x = _mm256_add_ps(p[i].lo, p[i].hi), y = _mm256_add_ps(p[i + 4].lo, p[i + 4].hi);
        a[i] = _mm256_add_ps(_mm256_permute2f128_ps(x, y, 0x20), _mm256_permute2f128_ps(x, y, 0x31));
    }
    for (int i = 0; i < 2; i++) { /* add lanes 2 apart: two of row 2i, two of row 2i + 1, in each half */
        __m256d x = _mm256_castps_pd(a[2 * i]), y = _mm256_castps_pd(a[2 * i + 1]);
        b[i] = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
    }
    return _mm256_add_ps(_mm256_shuffle_ps(b[0], b[1], 0x88), _mm256_shuffle_ps(b[0], b[1], 0xdd));
}
static inline v16 v16_sum8(const v16 p[8]) { return v16_of_(v16_sum8_(p), _mm256_setzero_ps()); }
static inline v16 v16_sum16(const v16 p[16]) { return v16_of_(v16_sum8_(p), v16_sum8_(p + 8)); }

/* Columns j .. j + 7 of rows i .. i + 7. */
static inline void v16_transpose8_(float *to, ptrdiff_t to_stride, const float *from, ptrdiff_t from_stride) {
    __m256 x[8], y[8];
    for (int i = 0; i < 4; i++) { /* halves: columns 0..3 of rows i and i + 4, then columns 4..7 */
        __m256 a = _mm256_loadu_ps(from + i * from_stride), b = _mm256_loadu_ps(from + (i + 4) * from_stride);
        x[i] = _mm256_permute2f128_ps(a, b, 0x20);
        x[i + 4] = _mm256_permute2f128_ps(a, b, 0x31);
    }
    for (int i = 0; i < 8; i += 4) {
        __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(x[i], x[i + 1]));
        __m256d b = _mm256_castps_pd(_mm256_unpackhi_ps(x[i], x[i + 1]));
        __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(x[i + 2], x[i + 3]));
        __m256d d = _mm256_castps_pd(_mm256_unpackhi_ps(x[i + 2], x[i + 3]));
        y[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
        y[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
        y[i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
        y[i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
    }
    for (int j = 0; j < 8; j++) {
        _mm256_storeu_ps(to + j * to_stride, y[j]);
    }
}
static inline void v16_transpose(float *to, ptrdiff_t to_stride, const float *from, ptrdiff_t from_stride) {
    for (int j = 0; j < 16; j += 8) {
        for (int i = 0; i < 16; i += 8) {
            v16_transpose8_(to + j * to_stride + i, to_stride, from + i * from_stride + j, from_stride);
        }
    }
}

#endif
