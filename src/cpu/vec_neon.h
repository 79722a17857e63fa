/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The vector vocabulary on NEON of 64-bit Arm, four registers to a vector; vec.h says what each operation means. What
 * every processor of the architecture has is enough: bf16 is converted by integer arithmetic.
 */
#ifndef RSSM_VEC_NEON_H
#define RSSM_VEC_NEON_H

#include <arm_neon.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "../numbers.h"

#define V16_UNROLL 1

typedef struct {
    float32x4_t q[4]; /* lanes 4i .. 4i + 3 */
} v16;
typedef struct {
    uint32x4_t q[4]; /* all bits of a lane or none */
} m16;

/* An operation on each register i of the vectors. */
#define V16_QUADS_(expr)                                                                                       \
    v16 r;                                                                                                     \
    for (int i = 0; i < 4; i++) {                                                                              \
        r.q[i] = (expr);                                                                                       \
    }                                                                                                          \
    return r

static inline m16 v16_first(int n) {
    static const uint32_t lanes[4] = {0, 1, 2, 3};
    m16 m;
    for (int i = 0; i < 4; i++) {
        m.q[i] = vcltq_s32(vreinterpretq_s32_u32(vld1q_u32(lanes)), vdupq_n_s32(n - 4 * i));
    }
    return m;
}

static inline v16 v16_zero(void) { V16_QUADS_(vdupq_n_f32(0.0f)); }
static inline v16 v16_set1(float x) { V16_QUADS_(vdupq_n_f32(x)); }
static inline v16 v16_load(const float *p) { V16_QUADS_(vld1q_f32(p + 4 * i)); }
static inline void v16_store(float *p, v16 a) {
    for (int i = 0; i < 4; i++) {
        vst1q_f32(p + 4 * i, a.q[i]);
    }
}
static inline void v16_store8(float *p, v16 a) {
    vst1q_f32(p, a.q[0]);
    vst1q_f32(p + 4, a.q[1]);
}
/* There are no masks: the first n lanes are copied. */
static inline v16 v16_load_n(const float *p, int n) {
    float lanes[16] = {0};
    memcpy(lanes, p, (size_t)n * sizeof lanes[0]);
    return v16_load(lanes);
}
static inline void v16_store_n(float *p, v16 a, int n) {
    float lanes[16];
    v16_store(lanes, a);
    memcpy(p, lanes, (size_t)n * sizeof lanes[0]);
}

static inline v16 v16_load_bf16(const uint16_t *p) {
    V16_QUADS_(vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)));
}
static inline v16 v16_load_bf16_n(const uint16_t *p, int n) {
    uint16_t h[16] = {0};
    memcpy(h, p, (size_t)n * sizeof h[0]);
    return v16_load_bf16(h);
}
static inline uint16x4_t v16_to_bf16_4_(float32x4_t a) {
    uint32x4_t u = vreinterpretq_u32_f32(a), high = vshrq_n_u32(u, 16);
    uint32x4_t odd = vandq_u32(high, vdupq_n_u32(1));
    uint32x4_t rounded = vshrq_n_u32(vaddq_u32(vaddq_u32(u, vdupq_n_u32(0x7fff)), odd), 16);
    uint32x4_t number = vceqq_f32(a, a);
    return vmovn_u32(vbslq_u32(number, rounded, vorrq_u32(high, vdupq_n_u32(0x40))));
}
static inline void v16_store_bf16(uint16_t *p, v16 a) {
    for (int i = 0; i < 4; i++) {
        vst1_u16(p + 4 * i, v16_to_bf16_4_(a.q[i]));
    }
}
static inline void v16_store_bf16_n(uint16_t *p, v16 a, int n) {
    uint16_t h[16];
    v16_store_bf16(h, a);
    memcpy(p, h, (size_t)n * sizeof h[0]);
}

static inline v16 v16_load_f16(const uint16_t *p) {
    V16_QUADS_(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))));
}
static inline v16 v16_load_f16_n(const uint16_t *p, int n) {
    uint16_t h[16] = {0};
    memcpy(h, p, (size_t)n * sizeof h[0]);
    return v16_load_f16(h);
}
static inline v16 v16_of_i8_(int8x16_t b) {
    int16x8_t low = vmovl_s8(vget_low_s8(b)), high = vmovl_s8(vget_high_s8(b));
    return (v16){{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
                  vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
}
static inline void v16_store_f16_n(uint16_t *p, v16 a, int n) {
    float x[16];
    v16_store(x, a);
    for (int i = 0; i < n; i++) {
        p[i] = rssm_f16_of_f32(x[i]);
    }
}
static inline void v16_store_f16(uint16_t *p, v16 a) { v16_store_f16_n(p, a, 16); }
static inline void v16_store_i8_n(int8_t *p, v16 a, int n) {
    float x[16];
    v16_store(x, a);
    for (int i = 0; i < n; i++) {
        p[i] = (int8_t)(int32_t)nearbyintf(x[i]);
    }
}
static inline v16 v16_load_i8(const int8_t *p) { return v16_of_i8_(vld1q_s8(p)); }
static inline v16 v16_load_i8_n(const int8_t *p, int n) {
    int8_t b[16] = {0};
    memcpy(b, p, (size_t)n);
    return v16_load_i8(b);
}
/* Seven bits to the left an E4M3 code is the f16 of a 256th. */
static inline v16 v16_load_e4m3_256th(const uint8_t *p) {
    uint16_t h[16];
    int8x16_t b = vreinterpretq_s8_u8(vld1q_u8(p));
    uint16x8_t kept = vdupq_n_u16(0xbf80);
    vst1q_u16(h, vandq_u16(vshlq_n_u16(vreinterpretq_u16_s16(vmovl_s8(vget_low_s8(b))), 7), kept));
    vst1q_u16(h + 8, vandq_u16(vshlq_n_u16(vreinterpretq_u16_s16(vmovl_s8(vget_high_s8(b))), 7), kept));
    return v16_load_f16(h);
}
static inline v16 v16_load_e4m3_256th_n(const uint8_t *p, int n) {
    uint8_t b[16] = {0};
    memcpy(b, p, (size_t)n);
    return v16_load_e4m3_256th(b);
}
/* Twice an E2M1 number is an integer. */
static inline v16 v16_load_e2m1(const uint8_t *p, int high) {
    static const int8_t twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    uint8x16_t code = vld1q_u8(p);
    code = high ? vshrq_n_u8(code, 4) : vandq_u8(code, vdupq_n_u8(15));
    v16 x = v16_of_i8_(vqtbl1q_s8(vld1q_s8(twice), code));
    uint8_t sign[16]; /* the code of -0 has one, too */
    vst1q_u8(sign, vshlq_n_u8(vshrq_n_u8(code, 3), 7));
    for (int i = 0; i < 4; i++) {
        uint32_t bits;
        memcpy(&bits, sign + 4 * i, sizeof bits);
        uint16x8_t wide = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(bits)));
        uint32x4_t top = vshlq_n_u32(vmovl_u16(vget_low_u16(wide)), 24);
        float32x4_t half = vmulq_n_f32(x.q[i], 0.5f);
        x.q[i] = vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(half), top));
    }
    return x;
}

static inline v16 v16_add(v16 a, v16 b) { V16_QUADS_(vaddq_f32(a.q[i], b.q[i])); }
static inline v16 v16_sub(v16 a, v16 b) { V16_QUADS_(vsubq_f32(a.q[i], b.q[i])); }
static inline v16 v16_mul(v16 a, v16 b) { V16_QUADS_(vmulq_f32(a.q[i], b.q[i])); }
static inline v16 v16_div(v16 a, v16 b) { V16_QUADS_(vdivq_f32(a.q[i], b.q[i])); }
static inline v16 v16_fma(v16 a, v16 b, v16 c) { V16_QUADS_(vfmaq_f32(c.q[i], a.q[i], b.q[i])); }
/* By comparison, for of a NaN and a number the instructions return the NaN. */
static inline v16 v16_max(v16 a, v16 b) { V16_QUADS_(vbslq_f32(vcgtq_f32(a.q[i], b.q[i]), a.q[i], b.q[i])); }
static inline v16 v16_min(v16 a, v16 b) { V16_QUADS_(vbslq_f32(vcltq_f32(a.q[i], b.q[i]), a.q[i], b.q[i])); }
static inline v16 v16_sqrt(v16 a) { V16_QUADS_(vsqrtq_f32(a.q[i])); }
static inline v16 v16_abs(v16 a) { V16_QUADS_(vabsq_f32(a.q[i])); }
static inline v16 v16_neg(v16 a) { V16_QUADS_(vnegq_f32(a.q[i])); }
static inline v16 v16_round(v16 a) { V16_QUADS_(vrndnq_f32(a.q[i])); }
/* 2^n for integral n from -126 to 127 */
static inline float32x4_t v16_exp2i_4_(int32x4_t n) {
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23));
}
/* By two products, of which the first is exact for |x| from 1/2 to 2 and wherever the result is normal. */
static inline float32x4_t v16_ldexp4_(float32x4_t x, float32x4_t n) {
    int32x4_t whole = vcvtnq_s32_f32(n);
    whole = vmaxq_s32(vdupq_n_s32(-250), vminq_s32(vdupq_n_s32(254), whole));
    int32x4_t half = vshrq_n_s32(whole, 1);
    return vmulq_f32(vmulq_f32(x, v16_exp2i_4_(half)), v16_exp2i_4_(vsubq_s32(whole, half)));
}
static inline v16 v16_ldexp(v16 a, v16 n) { V16_QUADS_(v16_ldexp4_(a.q[i], n.q[i])); }

static inline m16 v16_lt(v16 a, v16 b) {
    m16 m;
    for (int i = 0; i < 4; i++) {
        m.q[i] = vcltq_f32(a.q[i], b.q[i]);
    }
    return m;
}
static inline v16 v16_select(m16 m, v16 a, v16 b) { V16_QUADS_(vbslq_f32(m.q[i], a.q[i], b.q[i])); }

/* Lanes 8 apart, then 4 apart: four partial sums are left. */
static inline float32x4_t v16_quarter_(v16 a) {
    return vaddq_f32(vaddq_f32(a.q[0], a.q[2]), vaddq_f32(a.q[1], a.q[3]));
}
static inline float v16_sum(v16 a) {
    float32x4_t q = v16_quarter_(a);
    float32x2_t h = vadd_f32(vget_low_f32(q), vget_high_f32(q));
    return vget_lane_f32(h, 0) + vget_lane_f32(h, 1);
}
/* The sums of four rows: their partial sums, transposed, are added in the order of the tree. */
static inline float32x4_t v16_sum4_(const v16 *p) {
    float32x4_t a = v16_quarter_(p[0]), b = v16_quarter_(p[1]), c = v16_quarter_(p[2]), d = v16_quarter_(p[3]);
    float32x4_t ab = vaddq_f32(vcombine_f32(vget_low_f32(a), vget_low_f32(b)),
                               vcombine_f32(vget_high_f32(a), vget_high_f32(b))); /* two lanes of a, two of b */
    float32x4_t cd = vaddq_f32(vcombine_f32(vget_low_f32(c), vget_low_f32(d)),
                               vcombine_f32(vget_high_f32(c), vget_high_f32(d)));
    return vaddq_f32(vuzp1q_f32(ab, cd), vuzp2q_f32(ab, cd));
}
static inline v16 v16_sum8(const v16 p[8]) {
    return (v16){{v16_sum4_(p), v16_sum4_(p + 4), vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)}};
}
static inline v16 v16_sum16(const v16 p[16]) { V16_QUADS_(v16_sum4_(p + 4 * i)); }

static inline void v16_transpose(float *to, ptrdiff_t to_stride, const float *from, ptrdiff_t from_stride) {
    for (int j = 0; j < 16; j += 4) {
        for (int i = 0; i < 16; i += 4) { /* columns j .. j + 3 of rows i .. i + 3 */
            const float *p = from + i * from_stride + j;
            float32x4_t a = vld1q_f32(p), b = vld1q_f32(p + from_stride), c = vld1q_f32(p + 2 * from_stride),
                        d = vld1q_f32(p + 3 * from_stride);
            float64x2_t ab = vreinterpretq_f64_f32(vtrn1q_f32(a, b)), cd = vreinterpretq_f64_f32(vtrn1q_f32(c, d));
            float64x2_t ba = vreinterpretq_f64_f32(vtrn2q_f32(a, b)), dc = vreinterpretq_f64_f32(vtrn2q_f32(c, d));
            float *out = to + j * to_stride + i;
            vst1q_f32(out, vreinterpretq_f32_f64(vtrn1q_f64(ab, cd)));
            vst1q_f32(out + to_stride, vreinterpretq_f32_f64(vtrn1q_f64(ba, dc)));
            vst1q_f32(out + 2 * to_stride, vreinterpretq_f32_f64(vtrn2q_f64(ab, cd)));
            vst1q_f32(out + 3 * to_stride, vreinterpretq_f32_f64(vtrn2q_f64(ba, dc)));
        }
    }
}

static inline unsigned v16_flush_subnormals(void) {
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    __asm__ volatile("msr fpcr, %0" : : "r"(mode | UINT64_C(1) << 24)); /* FZ: results and operands */
    return (unsigned)mode;
}
static inline void v16_restore_subnormals(unsigned mode) {
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)mode));
}

static inline __attribute__((always_inline)) void v16_prefetch(const void *p) {
    __asm__ volatile("prfm pldl2keep, [%0]" : : "r"(p));
}

#undef V16_QUADS_
#endif
