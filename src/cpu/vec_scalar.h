/* SPDX-License-Identifier: Apache-2.0 */
/* The vector vocabulary in plain C; vec.h says what each operation means. */
#ifndef RSSM_VEC_SCALAR_H
#define RSSM_VEC_SCALAR_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "../numbers.h"

#define V16_UNROLL 0

typedef struct {
    float f[16];
} v16;
typedef uint16_t m16;

#define RSSM_LANES_(expr)                                                                                    \
    v16 r;                                                                                                   \
    for (int i = 0; i < 16; i++) {                                                                           \
        r.f[i] = (expr);                                                                                     \
    }                                                                                                        \
    return r

static inline v16 v16_zero(void) { RSSM_LANES_(0.0f); }
static inline v16 v16_set1(float x) { RSSM_LANES_(x); }
static inline v16 v16_load(const float *p) { RSSM_LANES_(p[i]); }
static inline v16 v16_load_n(const float *p, int n) { RSSM_LANES_(i < n ? p[i] : 0.0f); }
static inline void v16_store(float *p, v16 a) { memcpy(p, a.f, sizeof a.f); }
static inline void v16_store8(float *p, v16 a) { memcpy(p, a.f, 8 * sizeof(float)); }
static inline void v16_store_n(float *p, v16 a, int n) { memcpy(p, a.f, (size_t)n * sizeof(float)); }
static inline v16 v16_load_bf16(const uint16_t *p) { RSSM_LANES_(rssm_f32_of_bf16(p[i])); }
static inline v16 v16_load_bf16_n(const uint16_t *p, int n) { RSSM_LANES_(i < n ? rssm_f32_of_bf16(p[i]) : 0.0f); }
static inline void v16_store_bf16_n(uint16_t *p, v16 a, int n) {
    for (int i = 0; i < n; i++) {
        p[i] = rssm_bf16_of_f32(a.f[i]);
    }
}
static inline void v16_store_bf16(uint16_t *p, v16 a) { v16_store_bf16_n(p, a, 16); }

static inline v16 v16_load_f16_n(const uint16_t *p, int n) { RSSM_LANES_(i < n ? rssm_f32_of_f16(p[i]) : 0.0f); }
static inline v16 v16_load_f16(const uint16_t *p) { return v16_load_f16_n(p, 16); }
static inline void v16_store_f16_n(uint16_t *p, v16 a, int n) {
    for (int i = 0; i < n; i++) {
        p[i] = rssm_f16_of_f32(a.f[i]);
    }
}
static inline void v16_store_f16(uint16_t *p, v16 a) { v16_store_f16_n(p, a, 16); }
static inline void v16_store_i8_n(int8_t *p, v16 a, int n) {
    for (int i = 0; i < n; i++) {
        p[i] = (int8_t)(int32_t)nearbyintf(a.f[i]);
    }
}
static inline v16 v16_load_i8_n(const int8_t *p, int n) { RSSM_LANES_(i < n ? (float)p[i] : 0.0f); }
static inline v16 v16_load_i8(const int8_t *p) { return v16_load_i8_n(p, 16); }
static inline float v16_of_e4m3_(uint8_t h) {
    float x = (h & 0x7f) == 0x7f ? 480.0f : rssm_f32_of_e4m3(h & 0x7f);
    return (h & 0x80 ? -x : x) * 0x1p-8f;
}
static inline v16 v16_load_e4m3_256th_n(const uint8_t *p, int n) { RSSM_LANES_(i < n ? v16_of_e4m3_(p[i]) : 0.0f); }
static inline v16 v16_load_e4m3_256th(const uint8_t *p) { return v16_load_e4m3_256th_n(p, 16); }
static inline v16 v16_load_e2m1(const uint8_t *p, int high) {
    RSSM_LANES_(rssm_f32_of_e2m1((uint32_t)p[i] >> (4 * high)));
}

static inline v16 v16_add(v16 a, v16 b) { RSSM_LANES_(a.f[i] + b.f[i]); }
static inline v16 v16_sub(v16 a, v16 b) { RSSM_LANES_(a.f[i] - b.f[i]); }
static inline v16 v16_mul(v16 a, v16 b) { RSSM_LANES_(a.f[i] * b.f[i]); }
static inline v16 v16_div(v16 a, v16 b) { RSSM_LANES_(a.f[i] / b.f[i]); }
static inline v16 v16_fma(v16 a, v16 b, v16 c) { RSSM_LANES_(a.f[i] * b.f[i] + c.f[i]); }
static inline v16 v16_max(v16 a, v16 b) { RSSM_LANES_(a.f[i] > b.f[i] ? a.f[i] : b.f[i]); }
static inline v16 v16_min(v16 a, v16 b) { RSSM_LANES_(a.f[i] < b.f[i] ? a.f[i] : b.f[i]); }
static inline v16 v16_sqrt(v16 a) { RSSM_LANES_(sqrtf(a.f[i])); }
static inline v16 v16_abs(v16 a) { RSSM_LANES_(fabsf(a.f[i])); }
static inline v16 v16_neg(v16 a) { RSSM_LANES_(-a.f[i]); }
static inline v16 v16_round(v16 a) { RSSM_LANES_(nearbyintf(a.f[i])); }
static inline v16 v16_ldexp(v16 a, v16 n) { RSSM_LANES_(ldexpf(a.f[i], (int)fmaxf(-400.0f, fminf(400.0f, n.f[i])))); }

static inline m16 v16_lt(v16 a, v16 b) {
    m16 m = 0;
    for (int i = 0; i < 16; i++) {
        m = (m16)(m | (a.f[i] < b.f[i] ? 1u << i : 0u));
    }
    return m;
}
static inline m16 v16_first(int n) { return (m16)((1u << n) - 1u); }
static inline v16 v16_select(m16 m, v16 a, v16 b) { RSSM_LANES_((m >> i) & 1 ? a.f[i] : b.f[i]); }

static inline float v16_sum(v16 a) {
    for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) {
            a.f[i] = a.f[i] + a.f[i + half];
        }
    }
    return a.f[0];
}
static inline v16 v16_sum16(const v16 p[16]) { RSSM_LANES_(v16_sum(p[i])); }
static inline v16 v16_sum8(const v16 p[8]) { RSSM_LANES_(v16_sum(p[i & 7])); }
static inline void v16_transpose(float *to, ptrdiff_t to_stride, const float *from, ptrdiff_t from_stride) {
    for (int j = 0; j < 16; j++) {
        for (int i = 0; i < 16; i++) {
            to[j * to_stride + i] = from[i * from_stride + j];
        }
    }
}

static inline unsigned v16_flush_subnormals(void) {
    return 0;
}
static inline void v16_restore_subnormals(unsigned mode) {
    (void)mode;
}

static inline __attribute__((always_inline)) void v16_prefetch(const void *p) { (void)p; }

#undef RSSM_LANES_
#endif
