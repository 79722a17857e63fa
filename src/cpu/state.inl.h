/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints narrower than f32. A tile of rows becomes f32, takes all the records of a fold, and is rounded once.
 * Encoders are loops over the scalar conversions of numbers.h, or vector operations that are equal to them code for code,
 * so that every variant stores the same bits for the same f32 state.
 */
#ifndef RSSM_STATE_INL_H
#define RSSM_STATE_INL_H

#include "cpu/output.inl.h"
#include "cpu/tile.inl.h"

static inline int state_bytes(int32_t dtype) {
    return dtype == RSSM_DTYPE_F32 ? 4 : dtype == RSSM_DTYPE_F8 || dtype == RSSM_DTYPE_INT8 ? 1 : 2;
}

/* Formats of codes beyond RSSM_DTYPE_*: nvfp4 with one scale for 16 or 32 columns of a row, or for 16 rows of a column. */
enum { CODE_NVFP4_16 = 100, CODE_NVFP4_32, CODE_NVFP4_VALUES };

/* Block b of a row of codes, without what scales the row as a whole. scale: of nvfp4's blocks, the row's or the tile's.
   Formats, nb and tail are constants where they matter. */
RSSM_INLINE v16 code_block(int format, const char *row, const float *scale, int b, int nb, int tail) {
    const bool whole = b + 1 < nb || tail == 16;
    const uint16_t *half = (const uint16_t *)(const void *)row + 16 * b;
    const uint8_t *byte = (const uint8_t *)row + 16 * b;
    switch (format) {
    case RSSM_DTYPE_F16:
        return whole ? v16_load_f16(half) : v16_load_f16_n(half, tail);
    case RSSM_DTYPE_BF16:
        return whole ? v16_load_bf16(half) : v16_load_bf16_n(half, tail);
    case RSSM_DTYPE_F8:
        return whole ? v16_load_e4m3_256th(byte) : v16_load_e4m3_256th_n(byte, tail);
    case RSSM_DTYPE_INT8:
        return whole ? v16_load_i8((const int8_t *)byte) : v16_load_i8_n((const int8_t *)byte, tail);
    case CODE_NVFP4_16:
        return v16_mul(v16_load_e2m1((const uint8_t *)row + 16 * (b >> 1), b & 1), v16_set1(scale[b]));
    case CODE_NVFP4_32:
        return v16_mul(v16_load_e2m1((const uint8_t *)row + 16 * (b >> 1), b & 1), v16_set1(scale[b >> 1]));
    case CODE_NVFP4_VALUES:
        return v16_mul(v16_load_e2m1((const uint8_t *)row + 16 * (b >> 1), b & 1), v16_load(scale + 16 * b));
    default:
        return load_block((const float *)(const void *)row, b, nb, tail);
    }
}

/* ---- From the checkpoint ------------------------------------------------------------------------------ */

static inline char *checkpoint_row(const rssm_geometry *geo, const rssm_state *state, int32_t hv, int32_t row) {
    return state->checkpoint + ((int64_t)hv * geo->d_v + row) * geo->d_k * state_bytes(geo->formats.checkpoint);
}

RSSM_INLINE void load_format(int format, const rssm_geometry *geo, const rssm_state *state, int32_t hv, int32_t first,
                             int32_t rows, float *to, int64_t ld) {
    const int nb = geo->padded_k / 16, tail = geo->d_k - 16 * (nb - 1);
    for (int32_t i = 0; i < rows; i++, to += ld) {
        const char *row = checkpoint_row(geo, state, hv, first + i);
        v16 scale = v16_zero();
        if (format == RSSM_DTYPE_F8) {
            scale = v16_set1(rssm_f32_of_e8m0(state->exponent[(int64_t)hv * geo->d_v + first + i]));
        }
        for (int b = 0; b < nb; b++) {
            v16 x = code_block(format, row, NULL, b, nb, tail);
            if (format == RSSM_DTYPE_F8) { /* in two steps: 256 times the scale may be beyond f32 */
                x = v16_mul(v16_mul(x, v16_set1(256.0f)), scale);
            }
            v16_store_n(to + 16 * b, x, b + 1 == nb && ld < geo->padded_k ? tail : 16);
        }
    }
}

/* Rows of a head as f32, `ld` apart; where that leaves room, they are padded with zeros to whole vectors. */
static void load_rows(const rssm_geometry *geo, const rssm_state *state, int32_t hv, int32_t first, int32_t rows,
                      float *to, int64_t ld) {
    switch (geo->formats.checkpoint) {
    case RSSM_DTYPE_F16:
        load_format(RSSM_DTYPE_F16, geo, state, hv, first, rows, to, ld);
        break;
    case RSSM_DTYPE_BF16:
        load_format(RSSM_DTYPE_BF16, geo, state, hv, first, rows, to, ld);
        break;
    case RSSM_DTYPE_F8:
        load_format(RSSM_DTYPE_F8, geo, state, hv, first, rows, to, ld);
        break;
    default:
        load_format(RSSM_DTYPE_F32, geo, state, hv, first, rows, to, ld);
    }
}

/* ---- To the checkpoint -------------------------------------------------------------------------------- */

/* The random bits of a row, 128 columns at a time. */
static void draw_row(const rssm_stream *stream, uint32_t row, int32_t d_k, uint16_t *bits) {
    for (int32_t first = 0; first < d_k; first += 128) {
        uint32_t x[4][16];
        RSSM_LANES
        for (uint32_t lane = 0; lane < 16; lane++) {
            const rssm_philox c = rssm_stream_call(*stream, row, (uint32_t)first / 128, lane);
            x[0][lane] = c.x[0];
            x[1][lane] = c.x[1];
            x[2][lane] = c.x[2];
            x[3][lane] = c.x[3];
        }
        for (int b = 0; b < 8; b++) {
            RSSM_LANES
            for (int lane = 0; lane < 16; lane++) {
                bits[first + 16 * b + lane] = (uint16_t)(x[b >> 1][lane] >> (16 * (b & 1)));
            }
        }
    }
}

static float largest_lane(v16 x) {
    float lanes[16], largest = 0.0f;
    v16_store(lanes, x);
    for (int l = 0; l < 16; l++) {
        largest = lanes[l] > largest ? lanes[l] : largest;
    }
    return largest;
}

/* Largest finite magnitude of a row; *special: it holds an infinity or a NaN. */
static float row_largest(const float *x, int32_t n, int *special) {
    const v16 beyond = v16_set1(rssm_f32_of_bits(0x7f800000u));
    const v16 one = v16_set1(1.0f), zero = v16_zero();
    v16 most = zero, unlike = zero;
    for (int32_t c = 0; c < n; c += 16) {
        const v16 a = v16_abs(v16_load_n(x + c, n - c < 16 ? n - c : 16));
        const m16 ok = v16_lt(a, beyond);
        most = v16_max(v16_select(ok, a, zero), most);
        unlike = v16_select(ok, unlike, one);
    }
    *special = v16_sum(unlike) > 0.0f;
    return largest_lane(most);
}

/* An element as formats with scales see it: subnormal numbers are zero whatever the processor's mode is. */
static inline float scaled(float x, float factor) {
    const uint32_t u = rssm_bits_of_f32(x);
    return rssm_f32_of_bits((u & 0x7f800000u) == 0 ? u & 0x80000000u : u) * factor;
}

/* 1 in the lanes whose finite elements are beyond f16, once they are rounded to nearest. */
static inline v16 beyond_f16(v16 x) {
    const v16 a = v16_abs(x), finite = v16_select(v16_lt(a, v16_set1(rssm_f32_of_bits(0x7f800000u))), v16_set1(1.0f), v16_zero());
    return v16_select(v16_lt(v16_set1(0x1.ffdffep15f), a), finite, v16_zero());
}

/* How many finite elements became infinite. */
static int64_t encode_f16(const float *x, int32_t n, const uint16_t *bits, uint16_t *to) {
    int64_t overflows = 0;
    v16 beyond = v16_zero();
    for (int32_t c = 0; c < n && bits == NULL; c += 16) {
        const int left = n - c < 16 ? n - c : 16;
        const v16 y = v16_load_n(x + c, left);
        v16_store_f16_n(to + c, y, left);
        beyond = v16_add(beyond_f16(y), beyond);
    }
    overflows += (int64_t)v16_sum(beyond);
    for (int32_t c = 0; c < n && bits != NULL; c++) {
        to[c] = rssm_f16_stochastic(x[c], bits[c]);
    }
    for (int32_t c = 0; c < n && bits != NULL; c++) {
        overflows += (to[c] & 0x7fffu) == 0x7c00u && (rssm_bits_of_f32(x[c]) & 0x7fffffffu) < 0x7f800000u;
    }
    return overflows;
}

static int64_t encode_bf16(const float *x, int32_t n, const uint16_t *bits, uint16_t *to) {
    int64_t overflows = 0;
    if (bits == NULL) {
        for (int32_t c = 0; c < n; c++) {
            to[c] = rssm_bf16_of_f32(x[c]);
        }
    } else {
        for (int32_t c = 0; c < n; c++) {
            to[c] = rssm_bf16_stochastic(x[c], bits[c]);
        }
    }
    for (int32_t c = 0; c < n; c++) {
        overflows += (to[c] & 0x7fffu) == 0x7f80u && (rssm_bits_of_f32(x[c]) & 0x7fffffffu) < 0x7f800000u;
    }
    return overflows;
}

static uint8_t encode_f8(const float *x, int32_t n, const uint16_t *bits, uint8_t *to) {
    int special;
    const float largest = row_largest(x, n, &special);
    const uint8_t exponent = rssm_row_exponent(largest, special);
    const float factor = rssm_row_factor(exponent);
    if (factor == 0.0f) {
        memset(to, 0, (size_t)n);
    } else if (bits == NULL) {
        for (int32_t c = 0; c < n; c++) {
            to[c] = rssm_e4m3_of_f32(scaled(x[c], factor));
        }
    } else {
        for (int32_t c = 0; c < n; c++) {
            to[c] = rssm_e4m3_stochastic(scaled(x[c], factor), bits[c]);
        }
    }
    return exponent;
}

/* What a head's state is rounded with at a position. */
static rssm_stream head_stream(const rssm_geometry *geo, const rssm_constants *constants, const rssm_state *state,
                               int32_t hv, int64_t position) {
    return rssm_stream_make(geo->formats.seed, (uint32_t)constants->layer, (uint32_t)(geo->first_value_head + hv),
                            state->id, position);
}

/* Rounds rows of a head, `ld` apart, into the checkpoint. */
static void store_rows(const rssm_geometry *geo, const rssm_stream *stream, const rssm_state *state, int32_t hv,
                       int32_t first, int32_t rows, const float *from, int64_t ld) {
    uint16_t drawn[RSSM_HEAD_DIM_MAX];
    const uint16_t *bits = geo->formats.stochastic ? drawn : NULL;
    int64_t overflows = 0;
    for (int32_t i = 0; i < rows; i++, from += ld) {
        char *row = checkpoint_row(geo, state, hv, first + i);
        if (bits != NULL) {
            draw_row(stream, (uint32_t)(first + i), geo->d_k, drawn);
        }
        switch (geo->formats.checkpoint) {
        case RSSM_DTYPE_F16:
            overflows += encode_f16(from, geo->d_k, bits, (uint16_t *)(void *)row);
            break;
        case RSSM_DTYPE_BF16:
            overflows += encode_bf16(from, geo->d_k, bits, (uint16_t *)(void *)row);
            break;
        case RSSM_DTYPE_F8:
            state->exponent[(int64_t)hv * geo->d_v + first + i] = encode_f8(from, geo->d_k, bits, (uint8_t *)row);
            break;
        default:
            memcpy(row, from, (size_t)geo->d_k * sizeof(float));
        }
    }
    if (overflows > 0 && state->overflows != NULL) {
        *state->overflows += overflows;
    }
}

#endif
