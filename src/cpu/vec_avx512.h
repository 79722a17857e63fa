/* SPDX-License-Identifier: Apache-2.0 */
/* The vector vocabulary on AVX-512 (F, BW, DQ, VL, BF16); vec.h says what each operation means. */
#ifndef RSSM_VEC_AVX512_H
#define RSSM_VEC_AVX512_H

#include <immintrin.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "../numbers.h"
#include "vec_x86.h"

#define V16_UNROLL 1

typedef __m512 v16;
typedef __mmask16 m16;

static inline m16 v16_first(int n) { return (m16)((1u << n) - 1u); }

static inline v16 v16_zero(void) { return _mm512_setzero_ps(); }
static inline v16 v16_set1(float x) { return _mm512_set1_ps(x); }
static inline v16 v16_load(const float *p) { return _mm512_loadu_ps(p); }
static inline v16 v16_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps(v16_first(n), p); }
static inline void v16_store(float *p, v16 a) { _mm512_storeu_ps(p, a); }
static inline void v16_store8(float *p, v16 a) { _mm256_storeu_ps(p, _mm512_castps512_ps256(a)); }
static inline void v16_store_n(float *p, v16 a, int n) { _mm512_mask_storeu_ps(p, v16_first(n), a); }

static inline v16 v16_of_bf16_(__m256i h) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
static inline v16 v16_load_bf16(const uint16_t *p) { return v16_of_bf16_(_mm256_loadu_si256((const void *)p)); }
static inline v16 v16_load_bf16_n(const uint16_t *p, int n) {
    return v16_of_bf16_(_mm256_maskz_loadu_epi16(v16_first(n), p));
}
/* By integer arithmetic rather than vcvtneps2bf16, which flushes subnormals to zero. */
static inline __m256i v16_to_bf16_(v16 a) {
    __m512i u = _mm512_castps_si512(a);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd), 16);
    __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nan, quiet));
}
static inline void v16_store_bf16(uint16_t *p, v16 a) { _mm256_storeu_si256((void *)p, v16_to_bf16_(a)); }
static inline void v16_store_bf16_n(uint16_t *p, v16 a, int n) {
    _mm256_mask_storeu_epi16(p, v16_first(n), v16_to_bf16_(a));
}

static inline v16 v16_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p)); }
static inline v16 v16_load_f16_n(const uint16_t *p, int n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(v16_first(n), p));
}
static inline void v16_store_f16(uint16_t *p, v16 a) {
    _mm256_storeu_si256((void *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline void v16_store_f16_n(uint16_t *p, v16 a, int n) {
    _mm256_mask_storeu_epi16(p, v16_first(n), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline void v16_store_i8_n(int8_t *p, v16 a, int n) {
    _mm_mask_storeu_epi8(p, v16_first(n), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a)));
}
static inline v16 v16_load_i8(const int8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
}
static inline v16 v16_load_i8_n(const int8_t *p, int n) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(v16_first(n), p)));
}
/* Seven bits to the left an E4M3 code is the f16 of a 256th, and the conversion of f16 takes subnormals as they are. */
static inline v16 v16_of_e4m3_(__m128i h) {
    __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(h), 7);
    return _mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16((short)0xbf80)));
}
static inline v16 v16_load_e4m3_256th(const uint8_t *p) { return v16_of_e4m3_(_mm_loadu_si128((const void *)p)); }
static inline v16 v16_load_e4m3_256th_n(const uint8_t *p, int n) {
    return v16_of_e4m3_(_mm_maskz_loadu_epi8(v16_first(n), p));
}
static inline v16 v16_load_e2m1(const uint8_t *p, int high) {
    const __m512 table = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f,
                                        -3.0f, -4.0f, -6.0f);
    __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
    return _mm512_permutexvar_ps(high ? _mm512_srli_epi32(code, 4) : code, table); /* by the low four bits */
}

static inline v16 v16_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
static inline v16 v16_sub(v16 a, v16 b) { return _mm512_sub_ps(a, b); }
static inline v16 v16_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
static inline v16 v16_div(v16 a, v16 b) { return _mm512_div_ps(a, b); }
static inline v16 v16_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
static inline v16 v16_max(v16 a, v16 b) { return _mm512_max_ps(a, b); }
static inline v16 v16_min(v16 a, v16 b) { return _mm512_min_ps(a, b); }
static inline v16 v16_sqrt(v16 a) { return _mm512_sqrt_ps(a); }
static inline v16 v16_abs(v16 a) { return _mm512_abs_ps(a); }
static inline v16 v16_neg(v16 a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
static inline v16 v16_round(v16 a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline v16 v16_ldexp(v16 a, v16 n) { return _mm512_scalef_ps(a, n); }

static inline m16 v16_lt(v16 a, v16 b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
static inline v16 v16_select(m16 m, v16 a, v16 b) { return _mm512_mask_blend_ps(m, b, a); }

static inline float v16_sum(v16 a) {
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    q = _mm_add_ss(q, _mm_movehdup_ps(q));
    return _mm_cvtss_f32(q);
}

/* a and b hold partial sums of two rows (or groups of rows); each step adds lanes that are `half` apart in both
   and packs the two results, so that four steps leave one finished sum in every lane. */
static inline v16 v16_sum16(const v16 p[16]) {
    v16 a[8], b[4], c[2];
    for (int i = 0; i < 8; i++) { /* rows i and i+8: lanes 0..7 of each, after adding lanes 8 apart */
        a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(p[i], p[i + 8], 0x44), _mm512_shuffle_f32x4(p[i], p[i + 8], 0xee));
    }
    for (int i = 0; i < 4; i++) { /* 128-bit lanes now: row i (0,1), row i+8 (2,3); add lanes 4 apart */
        b[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[i], a[i + 4], 0x88), _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd));
    } /* 128-bit lanes: rows i, i+8, i+4, i+12 */
    for (int i = 0; i < 2; i++) { /* add lanes 2 apart */
        __m512d x = _mm512_castps_pd(b[i]), y = _mm512_castps_pd(b[i + 2]);
        c[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    } /* in each 128-bit lane: two of row r, two of row r+2 */
    v16 d = _mm512_add_ps(_mm512_shuffle_ps(c[0], c[1], 0x88), _mm512_shuffle_ps(c[0], c[1], 0xdd));
    /* 128-bit lane j holds rows base_j + {0, 2, 1, 3} with base = 0, 8, 4, 12 */
    const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
    return _mm512_permutexvar_ps(order, d);
}

static inline v16 v16_sum8(const v16 p[8]) {
    v16 a[4], b[2];
    for (int i = 0; i < 4; i++) { /* rows i and i+4, lanes 8 apart added */
        a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(p[i], p[i + 4], 0x44), _mm512_shuffle_f32x4(p[i], p[i + 4], 0xee));
    }
    for (int i = 0; i < 2; i++) { /* 4 apart; 128-bit lanes: rows i, i+4, i+2, i+6 */
        b[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[i], a[i + 2], 0x88), _mm512_shuffle_f32x4(a[i], a[i + 2], 0xdd));
    }
    __m512d x = _mm512_castps_pd(b[0]), y = _mm512_castps_pd(b[1]);
    v16 c = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    v16 d = _mm512_add_ps(c, _mm512_permute_ps(c, 0xb1)); /* 128-bit lane j: rows base_j, base_j+1, each twice */
    const __m512i order = _mm512_setr_epi32(0, 2, 8, 10, 4, 6, 12, 14, 0, 2, 8, 10, 4, 6, 12, 14);
    return _mm512_permutexvar_ps(order, d);
}

static inline void v16_transpose(float *to, ptrdiff_t to_stride, const float *from, ptrdiff_t from_stride) {
    for (int j = 0; j < 16; j += 4) {
        __m512 x[4]; /* x[i]: columns j..j+3 of rows i, i+4, i+8, i+12 */
        for (int i = 0; i < 4; i++) {
            const float *p = from + i * from_stride + j;
            x[i] = _mm512_castps128_ps512(_mm_loadu_ps(p));
            x[i] = _mm512_insertf32x4(x[i], _mm_loadu_ps(p + 4 * from_stride), 1);
            x[i] = _mm512_insertf32x4(x[i], _mm_loadu_ps(p + 8 * from_stride), 2);
            x[i] = _mm512_insertf32x4(x[i], _mm_loadu_ps(p + 12 * from_stride), 3);
        }
        __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(x[0], x[1]));
        __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(x[0], x[1]));
        __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(x[2], x[3]));
        __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(x[2], x[3]));
        float *out = to + j * to_stride;
        v16_store(out, _mm512_castpd_ps(_mm512_unpacklo_pd(a, c)));
        v16_store(out + to_stride, _mm512_castpd_ps(_mm512_unpackhi_pd(a, c)));
        v16_store(out + 2 * to_stride, _mm512_castpd_ps(_mm512_unpacklo_pd(b, d)));
        v16_store(out + 3 * to_stride, _mm512_castpd_ps(_mm512_unpackhi_pd(b, d)));
    }
}

#endif
