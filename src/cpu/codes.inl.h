/* SPDX-License-Identifier: Apache-2.0 */
/* A head's codes, of a narrow checkpoint or of a read copy: where they lie, and what they are as fp32. */
#ifndef RSSM_CODES_INL_H
#define RSSM_CODES_INL_H

#include "cpu/state.inl.h"

/* One head of codes. */
typedef struct codes {
    int32_t format; /* RSSM_DTYPE_*, CODE_* */
    const char *row;
    int64_t row_bytes;
    const char *row_scale; /* f8: E8M0 [d_v]; int8: f32 [d_v]; nvfp4: f32 [1] */
    const float *scale;    /* nvfp4: of blocks, [d_v][scale_row] or [tiles][scale_row] */
    int32_t scale_row;
    /* the low-rank part */
    int32_t rank;
    const float *factor_scale;
    const uint8_t *factors; /* [rank][padded_v + padded_k] */
} codes;

/* The scales of a row's blocks. */
RSSM_INLINE const float *block_scales(const codes *k, int format, int32_t row) {
    return k->scale + (int64_t)(format == CODE_NVFP4_VALUES ? row / 16 : row) * k->scale_row;
}

/* A head's checkpoint as codes. */
static codes checkpoint_codes(const rssm_geometry *geo, const rssm_state *state, int32_t hv) {
    const char *exponent = (const char *)state->exponent;
    return (codes){.format = geo->formats.checkpoint,
                   .row = checkpoint_row(geo, state, hv, 0),
                   .row_bytes = (int64_t)geo->d_k * state_bytes(geo->formats.checkpoint),
                   .row_scale = exponent == NULL ? NULL : exponent + (int64_t)hv * geo->d_v};
}

/* Block scales as fp32. */
static void decode_scales(const uint8_t *code, int32_t n, float *scale) {
    const v16 nan = v16_set1(rssm_f32_of_bits(0x7fc00000u)), most = v16_set1(470.0f);
    for (int32_t i = 0; i < n; i += 16) {
        v16 x = v16_mul(v16_load_e4m3_256th_n(code + i, n - i < 16 ? n - i : 16), v16_set1(256.0f));
        v16_store(scale + i, v16_select(v16_lt(most, x), nan, x));
    }
}

/* A head's read copy as codes; nvfp4's block scales go to scratch. */
static codes copy_codes(const rssm_geometry *geo, const rssm_state *state, int32_t hv, float *scratch) {
    const rssm_formats *f = &geo->formats;
    codes k = {.format = f->copy, .row = state->copy + hv * f->copy_head, .row_bytes = f->copy_row};
    if (f->copy == RSSM_DTYPE_F8 || f->copy == RSSM_DTYPE_INT8) {
        k.row_scale = state->copy_scale + (int64_t)hv * geo->d_v * (f->copy == RSSM_DTYPE_F8 ? 1 : 4);
    }
    if (f->copy == RSSM_DTYPE_NVFP4) {
        const char *scales = state->copy_scale + hv * f->scale_head;
        k.format = f->block_values ? CODE_NVFP4_VALUES : f->block == 32 ? CODE_NVFP4_32 : CODE_NVFP4_16;
        k.row_scale = scales + f->scale_tail;
        k.scale = scratch + geo->scratch.scales;
        k.scale_row = f->blocks;
        k.rank = f->rank;
        k.factor_scale = (const float *)(const void *)k.row_scale + 1;
        k.factors = (const uint8_t *)scales + f->scale_factors;
        decode_scales((const uint8_t *)scales, f->blocks * (f->block_values ? geo->padded_v / 16 : geo->d_v),
                      scratch + geo->scratch.scales);
    }
    return k;
}

/* Row i of a read copy as fp32. inverse: of the column scales, or NULL. */
static void load_codes(const rssm_geometry *geo, const codes *k, const float *inverse, int32_t i, float *to) {
    const int nb = geo->padded_k / 16, tail = geo->d_k - 16 * (nb - 1);
    const bool f8 = k->format == RSSM_DTYPE_F8;
    const float *block = k->format >= CODE_NVFP4_16 ? block_scales(k, k->format, i) : NULL;
    float scale = 1.0f;
    if (k->row_scale != NULL) {
        scale = f8 ? rssm_f32_of_e8m0(((const uint8_t *)k->row_scale)[i])
                   : ((const float *)(const void *)k->row_scale)[k->format == RSSM_DTYPE_INT8 ? i : 0];
    }
    for (int b = 0; b < nb; b++) {
        v16 x = v16_mul(code_block(k->format, k->row + i * k->row_bytes, block, b, nb, tail), v16_set1(f8 ? 256.0f : 1.0f));
        x = v16_mul(x, v16_set1(scale));
        for (int32_t r = 0; r < k->rank; r++) {
            const uint8_t *factor = k->factors + (int64_t)r * (geo->padded_v + geo->padded_k);
            const float a = rssm_f32_of_e4m3(factor[i]) * k->factor_scale[2 * r] * k->factor_scale[2 * r + 1];
            const v16 column = v16_mul(v16_load_e4m3_256th(factor + geo->padded_v + 16 * b), v16_set1(256.0f));
            x = v16_fma(v16_set1(a), column, x);
        }
        v16_store(to + 16 * b, inverse == NULL ? x : v16_mul(x, v16_load(inverse + 16 * b)));
    }
}

#endif
