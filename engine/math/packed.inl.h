/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed weights to f32, a stretch of a row at a time. Each format is a function over whole blocks; products
 * are rounded once, in the order in which the formats' own definitions multiply, so that expanding a matrix
 * first and using it packed give the same bits.
 *
 * Files align nothing: bytes are read as bytes.
 */
#ifndef RSE_PACKED_INL_H
#define RSE_PACKED_INL_H

#include <string.h>

#include "cpu/vec.h"
#include "math/math_ops.h"
#include "numbers.h"

static inline float f16_at(const uint8_t *p) {
    return rssm_f32_of_f16((uint16_t)(p[0] | p[1] << 8));
}

/* E8M0 as files have it: the library's, but for code 0, which is 2^-127 here. */
static inline float f32_of_e8m0(uint8_t code) {
    return code == 0 ? 0x1p-127f : rssm_f32_of_e8m0(code);
}

/* E4M3 without its sign, every code a number. */
static inline float magnitude_of_e4m3(uint8_t code) {
    return (code & 127) == 127 ? 480.0f : rssm_f32_of_e4m3(code & 127);
}

static const float e2m1_values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                      -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
/* Codes of IQ4_NL. */
static const float iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* ---- Codes and scales apart ---- */

static void expand_f8(const rse_matrix *w, int64_t row, int64_t col, int64_t n, float *y) {
    const uint8_t *codes = (const uint8_t *)w->data + row * w->cols + col;
    const float *scales = (const float *)w->scales + (row + w->first_row) / w->scale_rows * w->scale_stride;
    for (int64_t i = 0; i < n;) {
        int64_t at = (col + i) / w->scale_cols, end = (at + 1) * w->scale_cols - col;
        float scale = scales[at];
        end = end < n ? end : n;
        for (; i < end; i++) {
            y[i] = rssm_f32_of_e4m3(codes[i]) * scale;
        }
    }
}

/* Two weights a byte, the low half first; a byte of scale for each `block` of them. */
RSSM_INLINE void expand_pairs(const rse_matrix *w, int64_t row, int64_t col, int64_t n, int block,
                              float (*scale_of)(uint8_t), float *y) {
    const uint8_t *codes = (const uint8_t *)w->data + (row * w->cols + col) / 2;
    const uint8_t *scales = (const uint8_t *)w->scales + row * w->scale_stride + col / block;
    for (int64_t b = 0; b < n / block; b++) {
        float scale = scale_of(scales[b]) * w->factor;
        for (int i = 0; i < block / 2; i++) {
            uint8_t pair = codes[b * (block / 2) + i];
            y[b * block + 2 * i] = e2m1_values[pair & 15] * scale;
            y[b * block + 2 * i + 1] = e2m1_values[pair >> 4] * scale;
        }
    }
}

/* ---- Blocks with their scales ---- */

static void block_q8_0(const uint8_t *p, float *y) {
    float d = f16_at(p);
    for (int i = 0; i < 32; i++) {
        y[i] = d * (float)(int8_t)p[2 + i];
    }
}

/* Weight i in the low half of byte i, weight i + 16 in its high half. */
RSSM_INLINE void halves(const uint8_t *codes, const float *values, float d, int half, float *y) {
    for (int i = 0; i < half; i++) {
        y[i] = d * values[codes[i] & 15];
        y[i + half] = d * values[codes[i] >> 4];
    }
}

static void block_q4_0(const uint8_t *p, float *y) {
    static const float values[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
    halves(p + 2, values, f16_at(p), 16, y);
}

static void block_iq4_nl(const uint8_t *p, float *y) {
    halves(p + 2, iq4_values, f16_at(p), 16, y);
}

static void block_mxfp4(const uint8_t *p, float *y) {
    halves(p + 1, e2m1_values, f32_of_e8m0(p[0]), 16, y);
}

/* Four E4M3 scales without sign, of which 127 is zero, then four runs of 8 bytes. */
static void block_nvfp4(const uint8_t *p, float *y) {
    for (int i = 0; i < 4; i++) {
        halves(p + 4 + 8 * i, e2m1_values, p[i] == 127 ? 0.0f : magnitude_of_e4m3(p[i]), 8, y + 16 * i);
    }
}

/* The eight 6-bit scales and minima of a block of 256, packed into 12 bytes. */
static void unpack_scales(const uint8_t *p, uint8_t scale[8], uint8_t min[8]) {
    for (int i = 0; i < 4; i++) {
        scale[i] = p[i] & 63;
        min[i] = p[i + 4] & 63;
        scale[i + 4] = (uint8_t)((p[i + 8] & 15) | (p[i] >> 6) << 4);
        min[i + 4] = (uint8_t)(p[i + 8] >> 4 | (p[i + 4] >> 6) << 4);
    }
}

static void block_q4_k(const uint8_t *p, float *y) {
    float d = f16_at(p), m = f16_at(p + 2);
    uint8_t scale[8], min[8];
    unpack_scales(p + 4, scale, min);
    for (int g = 0; g < 8; g++) {
        const uint8_t *codes = p + 16 + 32 * (g / 2);
        float dg = d * scale[g], mg = m * min[g];
        int shift = 4 * (g % 2);
        for (int i = 0; i < 32; i++) {
            y[32 * g + i] = dg * (float)(codes[i] >> shift & 15) - mg;
        }
    }
}

static void block_q5_k(const uint8_t *p, float *y) {
    float d = f16_at(p), m = f16_at(p + 2);
    uint8_t scale[8], min[8];
    unpack_scales(p + 4, scale, min);
    const uint8_t *high = p + 16;
    for (int g = 0; g < 8; g++) {
        const uint8_t *codes = p + 48 + 32 * (g / 2);
        float dg = d * scale[g], mg = m * min[g];
        int shift = 4 * (g % 2);
        for (int i = 0; i < 32; i++) {
            y[32 * g + i] = dg * (float)((codes[i] >> shift & 15) | (high[i] >> g & 1) << 4) - mg;
        }
    }
}

/* Two halves of 128: 64 bytes of low nibbles and 32 bytes of high pairs each; sixteen signed scales. */
static void block_q6_k(const uint8_t *p, float *y) {
    float d = f16_at(p + 208);
    for (int h = 0; h < 2; h++) {
        const uint8_t *low = p + 64 * h, *high = p + 128 + 32 * h;
        const int8_t *scale = (const int8_t *)p + 192 + 8 * h;
        for (int g = 0; g < 4; g++) {
            for (int i = 0; i < 32; i++) {
                int nibble = low[i + 32 * (g % 2)] >> (4 * (g / 2)) & 15, pair = high[i] >> (2 * g) & 3;
                float dg = d * scale[2 * g + i / 16];
                y[128 * h + 32 * g + i] = dg * (float)((nibble | pair << 4) - 32);
            }
        }
    }
}

RSSM_INLINE void expand_blocks(const rse_matrix *w, int64_t row, int64_t col, int64_t n, int weights, int bytes,
                               void (*block)(const uint8_t *p, float *y), float *y) {
    const uint8_t *p = (const uint8_t *)w->data + (row * w->cols + col) / weights * bytes;
    for (int64_t i = 0; i < n; i += weights, p += bytes) {
        block(p, y + i);
    }
    for (int64_t i = 0; w->factor != 1.0f && i < n; i++) {
        y[i] *= w->factor;
    }
}

/* ---- Plain halves ---- */

static void expand_bf16(const uint16_t *x, float *y, int64_t n) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        v16_store(y + i, v16_load_bf16(x + i));
    }
    v16_store_n(y + i, v16_load_bf16_n(x + i, (int)(n - i)), (int)(n - i));
}

static void expand_f16(const uint16_t *x, float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        y[i] = rssm_f32_of_f16(x[i]);
    }
}

static void expand_row(const rse_matrix *w, int64_t row, int64_t col, int64_t n, float *y) {
    int64_t at = row * w->cols + col;
    switch (w->dtype) {
    case RSSM_DTYPE_BF16:
        expand_bf16((const uint16_t *)w->data + at, y, n);
        return;
    case RSSM_DTYPE_F16:
        expand_f16((const uint16_t *)w->data + at, y, n);
        return;
    case RSE_PACKED_F8:
        expand_f8(w, row, col, n, y);
        return;
    case RSE_PACKED_NVFP4:
        expand_pairs(w, row, col, n, 16, rssm_f32_of_e4m3, y);
        return;
    case RSE_PACKED_MXFP4:
        expand_pairs(w, row, col, n, 32, f32_of_e8m0, y);
        return;
    case RSE_PACKED_Q8_0:
        expand_blocks(w, row, col, n, 32, 34, block_q8_0, y);
        return;
    case RSE_PACKED_Q4_0:
        expand_blocks(w, row, col, n, 32, 18, block_q4_0, y);
        return;
    case RSE_PACKED_Q4_K:
        expand_blocks(w, row, col, n, 256, 144, block_q4_k, y);
        return;
    case RSE_PACKED_Q5_K:
        expand_blocks(w, row, col, n, 256, 176, block_q5_k, y);
        return;
    case RSE_PACKED_Q6_K:
        expand_blocks(w, row, col, n, 256, 210, block_q6_k, y);
        return;
    case RSE_PACKED_IQ4_NL:
        expand_blocks(w, row, col, n, 32, 18, block_iq4_nl, y);
        return;
    case RSE_PACKED_MXFP4_BLOCKS:
        expand_blocks(w, row, col, n, 32, 17, block_mxfp4, y);
        return;
    case RSE_PACKED_NVFP4_BLOCKS:
        expand_blocks(w, row, col, n, 64, 36, block_nvfp4, y);
        return;
    default:
        memcpy(y, (const float *)w->data + at, (size_t)n * sizeof *y);
    }
}

#endif
