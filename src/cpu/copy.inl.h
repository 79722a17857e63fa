/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read copies: Q(stored checkpoint), made head by head after every write of the checkpoint. Nothing here is fused or
 * summed in an order of the processor's own, so all variants make the same copy of the same checkpoint.
 *
 * nvfp4, of a head X = S diag(column scale), less its low-rank part:
 *
 *     X[i][c] ~ g s[block] e2m1[i][c]        g = largest / (6 * 448), s E4M3
 *
 * Codes lie in rows; a byte has columns c (low half) and c + 16 (high half) of 32 neighbouring ones, so that 16 bytes
 * become two vectors. A block with an infinity or a NaN has a NaN scale.
 */
#ifndef RSSM_COPY_INL_H
#define RSSM_COPY_INL_H

#include "cpu/codes.inl.h"

static const float ones[RSSM_HEAD_DIM_MAX] = {
#define ONES_ 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f
    ONES_, ONES_, ONES_, ONES_, ONES_, ONES_, ONES_, ONES_, ONES_, ONES_, ONES_, ONES_, ONES_, ONES_, ONES_, ONES_};

/* ---- Formats of one row ------------------------------------------------------------------------------- */

static float encode_i8(const float *x, int32_t n, int8_t *to) {
    int special;
    const float largest = row_largest(x, n, &special);
    const bool zero = special || largest < RSSM_SCALED_LEAST;
    const float factor = zero ? 0.0f : 127.0f / largest;
    for (int32_t c = 0; c < n; c += 16) { /* with a factor of 0 subnormal numbers, and all of a special row, are zero */
        const int left = n - c < 16 ? n - c : 16;
        const v16 y = zero ? v16_zero() : v16_mul(v16_load_n(x + c, left), v16_set1(factor));
        v16_store_i8_n(to + c, y, left);
    }
    return special ? rssm_f32_of_bits(0x7fc00000u) : zero ? 0.0f : largest / 127.0f;
}

static void copy_row(const rssm_geometry *geo, const rssm_state *state, int64_t row, const float *x) {
    char *to = state->copy + row * geo->formats.copy_row;
    switch (geo->formats.copy) {
    case RSSM_DTYPE_F16:
        (void)encode_f16(x, geo->d_k, NULL, (uint16_t *)(void *)to);
        break;
    case RSSM_DTYPE_BF16:
        (void)encode_bf16(x, geo->d_k, NULL, (uint16_t *)(void *)to);
        break;
    case RSSM_DTYPE_F8:
        ((uint8_t *)state->copy_scale)[row] = encode_f8(x, geo->d_k, NULL, (uint8_t *)to);
        break;
    default:
        ((float *)(void *)state->copy_scale)[row] = encode_i8(x, geo->d_k, (int8_t *)to);
    }
}

/* ---- The low-rank part of a head ------------------------------------------------------------------------ */

/* The largest magnitude of n numbers, n a multiple of 16; none of them is a NaN. */
static float largest_of(const float *x, int64_t n) {
    v16 most = v16_zero();
    for (int64_t i = 0; i < n; i += 16) {
        most = v16_max(v16_abs(v16_load(x + i)), most);
    }
    return largest_lane(most);
}

/* The sum of the products of two padded rows, rounded after each operation. */
static float plain_dot(const float *x, const float *y, int32_t padded) {
    v16 sum = v16_zero();
    for (int32_t c = 0; c < padded; c += 16) {
        sum = v16_add(v16_mul(v16_load(x + c), v16_load(y + c)), sum);
    }
    return v16_sum(sum);
}

/* a[i] = X[i] . b for 16 rows. */
static v16 plain_dots(const float *X, const float *b, int32_t padded) {
    v16 sum[16];
    for (int i = 0; i < 16; i++) {
        sum[i] = v16_zero();
    }
    for (int32_t c = 0; c < padded; c += 16) {
        const v16 y = v16_load(b + c);
        RSSM_UNROLL
        for (int i = 0; i < 16; i++) {
            sum[i] = v16_add(v16_mul(v16_load(X + (int64_t)i * padded + c), y), sum[i]);
        }
    }
    return v16_sum16(sum);
}

/* Rounds x to E4M3 with one scale, which it returns, codes to `to`. */
static float round_factor(float *x, int32_t n, uint8_t *to) {
    const float largest = largest_of(x, n), scale = largest / 448.0f, inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
    for (int32_t i = 0; i < n; i++) {
        to[i] = rssm_e4m3_of_f32(x[i] * inverse);
        x[i] = rssm_f32_of_e4m3(to[i]) * scale;
    }
    return scale;
}

/* b = X^T X b, of 16 rows at a time; rows beyond the head's are zero. */
static void power_step(const float *X, int32_t rows, int32_t padded, float *b) {
    float next[RSSM_HEAD_DIM_MAX] = {0}, a[16];
    for (int32_t first = 0; first < rows; first += 16, X += (int64_t)16 * padded) {
        v16_store(a, plain_dots(X, b, padded));
        for (int32_t c = 0; c < padded; c += 16) {
            v16 sum = v16_load(next + c);
            RSSM_UNROLL
            for (int i = 0; i < 16; i++) {
                sum = v16_add(v16_mul(v16_set1(a[i]), v16_load(X + (int64_t)i * padded + c)), sum);
            }
            v16_store(next + c, sum);
        }
    }
    memcpy(b, next, (size_t)padded * sizeof *b);
}

/* The direction that a few power steps find, from the row with the largest element; its largest element is 1. */
static void power_steps(const float *X, int32_t rows, int32_t padded, float *b) {
    enum { STEPS = 4 };
    float most = -1.0f;
    for (int32_t i = 0; i < rows; i++) {
        const float largest = largest_of(X + (int64_t)i * padded, padded);
        if (largest > most) {
            most = largest;
            memcpy(b, X + (int64_t)i * padded, (size_t)padded * sizeof *b);
        }
    }
    for (int step = 0; step <= STEPS; step++) {
        const float largest = largest_of(b, padded);
        const v16 inverse = v16_set1(largest > 0.0f ? 1.0f / largest : 0.0f);
        for (int32_t c = 0; c < padded; c += 16) {
            v16_store(b + c, v16_mul(v16_load(b + c), inverse));
        }
        if (step < STEPS) {
            power_step(X, rows, padded, b);
        }
    }
}

/* Takes the best rank-1 part a b^T out of X; its factors to `to`: a [padded_v], b [padded_k], scales to scale[2]. A head
   near the ends of fp32's range has none: sums of its squares would leave it. */
static void take_rank(const rssm_geometry *geo, float *X, float largest, uint8_t *to, float *scale) {
    const int32_t rows = geo->d_v, padded = geo->padded_k;
    float a[RSSM_HEAD_DIM_MAX] = {0}, b[RSSM_HEAD_DIM_MAX];
    memset(to, 0, (size_t)geo->padded_v + (size_t)padded);
    scale[0] = scale[1] = 0.0f;
    if (!(largest > 0x1p-40f && largest < 0x1p40f)) {
        return;
    }
    power_steps(X, rows, padded, b);
    scale[1] = round_factor(b, padded, to + geo->padded_v);
    const float norm = plain_dot(b, b, padded);
    const v16 inverse = v16_set1(norm > 0.0f ? 1.0f / norm : 0.0f);
    for (int32_t first = 0; first < rows; first += 16) {
        v16_store(a + first, v16_mul(plain_dots(X + (int64_t)first * padded, b, padded), inverse));
    }
    scale[0] = round_factor(a, geo->padded_v, to);
    for (int32_t i = 0; i < rows; i++) {
        float *x = X + (int64_t)i * padded;
        for (int32_t c = 0; c < padded; c += 16) {
            v16_store(x + c, v16_sub(v16_load(x + c), v16_mul(v16_set1(a[i]), v16_load(b + c))));
        }
    }
}

/* ---- nvfp4 -------------------------------------------------------------------------------------------- */

/* What one of 16 lanes, each a block of n numbers lying ld apart, loses by the scale s: sum of w (x - s e2m1(x / s))^2. */
static void lane_errors(const float *x, int64_t ld, int32_t n, const float *w, const float *s, float *e) {
    float inverse[16];
    RSSM_LANES
    for (int l = 0; l < 16; l++) {
        inverse[l] = 1.0f / s[l];
        e[l] = 0.0f;
    }
    for (int32_t i = 0; i < n; i++, x += ld) {
        const float weight = w != NULL ? w[i] : 1.0f;
        RSSM_LANES
        for (int l = 0; l < 16; l++) {
            const float off = x[l] - rssm_f32_of_e2m1(rssm_e2m1_of_f32(x[l] * inverse[l])) * s[l];
            e[l] += weight * (off * off);
        }
    }
}

/* E4M3 scales, in units of g, of 16 blocks of n numbers. From the largest; or, searching, the one of the codes around it
   (0.7 to 1.5 times) that loses least. */
static void lane_scales(int search, const float *restrict x, int64_t ld, int32_t n, const float *w, float g, uint8_t *to) {
    float largest[16] = {0}, least[16], e[16], s[16];
    uint32_t first[16], code[16], candidate[16];
    for (int32_t i = 0; i < n; i++) {
        RSSM_LANES
        for (int l = 0; l < 16; l++) {
            const float a = rssm_f32_of_bits(rssm_bits_of_f32(x[i * ld + l]) & 0x7fffffffu);
            largest[l] = a > largest[l] ? a : largest[l];
        }
    }
    const float inverse = g > 0.0f ? 1.0f / (6.0f * g) : 0.0f;
    RSSM_LANES
    for (int l = 0; l < 16; l++) {
        code[l] = first[l] = rssm_e4m3_of_f32(largest[l] * inverse);
        least[l] = 0x1p127f;
    }
    for (int32_t step = -3; search && step <= 4; step++) {
        RSSM_LANES
        for (int l = 0; l < 16; l++) {
            const int32_t c = (int32_t)first[l] + step, low = c < 1 ? 1 : c;
            candidate[l] = (uint32_t)(low > 0x7e ? 0x7e : low);
            s[l] = rssm_f32_of_e4m3((uint8_t)candidate[l]) * g;
        }
        lane_errors(x, ld, n, w, s, e);
        RSSM_LANES
        for (int l = 0; l < 16; l++) {
            const uint32_t better = e[l] < least[l];
            code[l] = better ? candidate[l] : code[l];
            least[l] = better ? e[l] : least[l];
        }
    }
    for (int l = 0; l < 16; l++) {
        to[l] = (uint8_t)(first[l] == 0 ? 0 : code[l]);
    }
}

/* 16 rows of a head while they are encoded, columns first. */
typedef struct nvfp4_tile {
    const float *X; /* [16][padded_k], as in the head */
    const uint8_t *special; /* of the same shape, or NULL: there is none */
    float *x;       /* [padded_k][16] */
    float *scale;   /* [padded_k][16]: s g of each element */
    float *codes;   /* [padded_k][16], the bits of a float each: transposed as such */
    const uint16_t (*drawn)[RSSM_HEAD_DIM_MAX]; /* [16] random bits of a shared copy, or NULL: to nearest */
} nvfp4_tile;

/* Scales of the blocks of a tile: `width` columns of one row each; to scales [row][block]. */
static void scales_along_keys(const rssm_geometry *geo, const float *weight, const nvfp4_tile *t, float g, int32_t rows,
                              uint8_t *scales) {
    const int32_t width = geo->formats.block, blocks = geo->formats.blocks;
    for (int32_t b = 0; b < blocks; b++) {
        const int32_t left = geo->padded_k - b * width, n = left < width ? left : width;
        uint8_t code[16];
        lane_scales(geo->formats.search, t->x + (int64_t)b * width * 16, 16, n, weight + b * width, g, code);
        for (int32_t l = 0; l < rows; l++) {
            for (int32_t c = 0; t->special != NULL && c < n; c++) {
                code[l] = t->special[l * geo->padded_k + b * width + c] ? 0x7f : code[l];
            }
            scales[l * blocks + b] = code[l];
        }
        float s[16];
        for (int l = 0; l < 16; l++) {
            s[l] = code[l] == 0x7f ? 0.0f : rssm_f32_of_e4m3(code[l]) * g;
        }
        const v16 same = v16_load(s);
        for (int32_t c = b * width; c < b * width + n; c++) {
            v16_store(t->scale + c * 16, same);
        }
    }
}

/* The same with blocks of the tile's 16 rows, one for each column; to scales [padded_k]. */
static void scales_along_values(const rssm_geometry *geo, const nvfp4_tile *t, float g, int32_t rows, uint8_t *scales) {
    for (int32_t first = 0; first < geo->padded_k; first += 16) {
        uint8_t *code = scales + first;
        lane_scales(geo->formats.search, t->X + first, geo->padded_k, 16, NULL, g, code);
        for (int32_t c = 0; c < 16; c++) {
            for (int32_t l = 0; t->special != NULL && l < rows; l++) {
                code[c] = t->special[l * geo->padded_k + first + c] ? 0x7f : code[c];
            }
            const float s = code[c] == 0x7f ? 0.0f : rssm_f32_of_e4m3(code[c]) * g;
            v16_store(t->scale + (first + c) * 16, v16_set1(s));
        }
    }
}

/* Nearest codes; or, with directions, column after column, each with what the errors so far ask of it: with the importance
   of errors e^T (diag + sum v v^T) e, and all later columns free to answer, column c should err by -pull_c . s,
   s being the sum of v e so far. */
static void tile_codes(const rssm_geometry *geo, const rssm_calibration *cal, int32_t hv, const nvfp4_tile *t) {
    const int32_t padded = geo->padded_k, rank = geo->formats.diffusion ? cal->directions : 0;
    float s[RSSM_DIRECTIONS_MAX][16] = {{0}};
    for (int32_t c = 0; c < padded; c++) {
        const float *restrict scale = t->scale + (int64_t)c * 16, *restrict from = t->x + (int64_t)c * 16;
        float *restrict to = t->codes + (int64_t)c * 16;
        float wish[16], off[16];
        uint32_t code[16];
        RSSM_LANES
        for (int l = 0; l < 16; l++) {
            wish[l] = from[l];
        }
        for (int32_t r = 0; r < rank; r++) {
            const float pull = cal->pull[((int64_t)hv * rank + r) * padded + c];
            RSSM_LANES
            for (int l = 0; l < 16; l++) {
                wish[l] -= pull * s[r][l];
            }
        }
        RSSM_LANES
        for (int l = 0; l < 16; l++) {
            wish[l] *= scale[l] > 0.0f ? 1.0f / scale[l] : 0.0f;
            code[l] = rssm_e2m1_of_f32(wish[l]);
        }
        for (int l = 0; t->drawn != NULL && l < 16; l++) {
            code[l] = rssm_e2m1_stochastic(wish[l], t->drawn[l][c]);
        }
        RSSM_LANES
        for (int l = 0; l < 16; l++) {
            to[l] = rssm_f32_of_bits(code[l]);
            off[l] = rssm_f32_of_e2m1(code[l]) * scale[l] - from[l];
        }
        for (int32_t r = 0; r < rank; r++) {
            const float v = cal->spread[((int64_t)hv * rank + r) * padded + c];
            RSSM_LANES
            for (int l = 0; l < 16; l++) {
                s[r][l] += v * off[l];
            }
        }
    }
}

/* Columns c and c + 16 to a byte, rows `stride` apart. */
static void pack_tile(const rssm_geometry *geo, const float *from, int32_t rows, uint8_t *to, int64_t stride) {
    float both[16][16], turned[16][16];
    for (int32_t c = 0; c < geo->padded_k; c += 32) {
        const uint32_t mask = c + 16 < geo->padded_k ? 0xfu : 0; /* a last block by itself */
        for (int32_t k = 0; k < 16; k++) {
            const float *low = from + (int64_t)(c + k) * 16, *high = mask != 0 ? low + 256 : low;
            RSSM_LANES
            for (int l = 0; l < 16; l++) {
                both[k][l] = rssm_f32_of_bits(rssm_bits_of_f32(low[l]) | (rssm_bits_of_f32(high[l]) & mask) << 4);
            }
        }
        v16_transpose(turned[0], 16, both[0], 16);
        for (int32_t i = 0; i < rows; i++) {
            for (int l = 0; l < 16; l++) {
                to[i * stride + c / 2 + l] = (uint8_t)rssm_bits_of_f32(turned[i][l]);
            }
        }
    }
}

/* X = S diag(column scale), its rows beyond d_v zero, subnormal numbers zero; what is no number becomes 0 and is marked.
   Whether there is any. */
static bool scaled_head(const rssm_geometry *geo, const rssm_calibration *cal, const rssm_state *state, int32_t hv,
                        float *X, uint8_t *special) {
    const int32_t padded = geo->padded_k;
    load_rows(geo, state, hv, 0, geo->d_v, X, padded);
    memset(X + (int64_t)geo->d_v * padded, 0, (size_t)(geo->padded_v - geo->d_v) * (size_t)padded * sizeof *X);
    memset(special, 0, (size_t)geo->padded_v * (size_t)padded);
    const float *scale = cal->scale != NULL ? cal->scale + (int64_t)hv * padded : ones;
    uint32_t any = 0;
    for (int32_t i = 0; i < geo->d_v; i++) {
        float *x = X + (int64_t)i * padded;
        for (int32_t c = 0; c < padded; c++) {
            x[c] = scaled(scaled(x[c], scale[c]), 1.0f);
            any |= (rssm_bits_of_f32(x[c]) & 0x7fffffffu) >= 0x7f800000u;
        }
    }
    for (int64_t at = 0; any && at < (int64_t)geo->d_v * padded; at++) {
        special[at] = (rssm_bits_of_f32(X[at]) & 0x7fffffffu) >= 0x7f800000u;
        X[at] = special[at] ? 0.0f : X[at];
    }
    return any != 0;
}

static void encode_nvfp4(const rssm_geometry *geo, const rssm_constants *constants, const rssm_state *state, int32_t hv,
                         float *scratch) {
    const rssm_formats *f = &geo->formats;
    const rssm_calibration *cal = &constants->read;
    const int32_t padded = geo->padded_k;
    float *X = scratch + geo->scratch.head;
    uint8_t *special = (uint8_t *)(scratch + geo->scratch.special);
    uint8_t *scales = (uint8_t *)state->copy_scale + hv * f->scale_head;
    float *tail = (float *)(void *)(scales + f->scale_tail);
    const float *weight = cal->weight != NULL ? cal->weight + (int64_t)hv * padded : ones;
    memset(scales, 0, (size_t)f->scale_head); /* gaps too: equal states have equal bytes */
    const bool any = scaled_head(geo, cal, state, hv, X, special);
    for (int32_t r = 0; r < f->rank; r++) {
        take_rank(geo, X, largest_of(X, (int64_t)geo->d_v * padded),
                  scales + f->scale_factors + (int64_t)r * (geo->padded_v + padded), tail + 1 + 2 * r);
    }
    const float largest = largest_of(X, (int64_t)geo->d_v * padded);
    tail[0] = largest < RSSM_SCALED_LEAST ? 0.0f : largest / (6.0f * 448.0f);
    const rssm_stream stream = head_stream(geo, constants, state, hv, state->position);
    const bool draws = f->shared && f->stochastic;
    uint16_t drawn[16][RSSM_HEAD_DIM_MAX];
    for (int32_t first = 0; first < geo->d_v; first += 16) {
        const int32_t rows = geo->d_v - first < 16 ? geo->d_v - first : 16;
        for (int32_t i = 0; draws && i < 16; i++) {
            draw_row(&stream, (uint32_t)(first + i), padded, drawn[i]);
        }
        const nvfp4_tile t = {.X = X + (int64_t)first * padded,
                              .special = any ? special + (int64_t)first * padded : NULL,
                              .x = scratch + geo->scratch.tile,
                              .scale = scratch + geo->scratch.tile_scale,
                              .codes = scratch + geo->scratch.tile_codes,
                              .drawn = draws ? (const uint16_t (*)[RSSM_HEAD_DIM_MAX])drawn : NULL};
        for (int32_t c = 0; c < padded; c += 16) {
            v16_transpose(t.x + c * 16, 16, t.X + c, padded);
        }
        if (f->block_values) {
            scales_along_values(geo, &t, tail[0], rows, scales + (int64_t)first / 16 * padded);
        } else {
            scales_along_keys(geo, weight, &t, tail[0], rows, scales + (int64_t)first * f->blocks);
        }
        tile_codes(geo, cal, hv, &t);
        pack_tile(geo, t.codes, rows, (uint8_t *)state->copy + hv * f->copy_head + first * f->copy_row, f->copy_row);
    }
}

/* ---- A head's copy -------------------------------------------------------------------------------------- */

/* The checkpoint, f32, becomes what its copy holds. */
static void take_over_copy(const rssm_geometry *geo, const rssm_constants *constants, const rssm_state *state, int32_t hv,
                           float *scratch) {
    const float *inverse = constants->read.inverse != NULL ? constants->read.inverse + (int64_t)hv * geo->padded_k : NULL;
    const codes k = copy_codes(geo, state, hv, scratch);
    float *x = scratch + geo->scratch.tile;
    for (int32_t i = 0; i < geo->d_v; i++) {
        load_codes(geo, &k, inverse, i, x);
        memcpy(checkpoint_row(geo, state, hv, i), x, (size_t)geo->d_k * sizeof *x);
    }
}

/* Makes the read copy of a head's checkpoint, if the cache has one. */
static void build_copy(const rssm_geometry *geo, const rssm_constants *constants, const rssm_state *state, int32_t hv,
                       float *scratch) {
    if (state->copy == NULL) {
        return;
    }
    float *x = scratch + geo->scratch.tile;
    if (geo->formats.copy == RSSM_DTYPE_NVFP4) {
        encode_nvfp4(geo, constants, state, hv, scratch);
    }
    for (int32_t i = 0; geo->formats.copy != RSSM_DTYPE_NVFP4 && i < geo->d_v; i++) {
        load_rows(geo, state, hv, i, 1, x, geo->padded_k);
        copy_row(geo, state, (int64_t)hv * geo->d_v + i, x);
    }
    if (geo->formats.shared) {
        take_over_copy(geo, constants, state, hv, scratch);
    }
}

static void copy_unit(const rssm_move *move, int32_t unit, float *scratch) {
    for (int32_t j = 0; j < move->geometry->unit_values; j++) {
        const int32_t hv = input_head(move->geometry, unit_head(move->geometry, unit, j));
        build_copy(move->geometry, move->constants, move->state, hv, scratch);
    }
}

#endif
