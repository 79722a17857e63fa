/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a narrow state: y = S r with the codes turned to f32 on the way, the row's scale applied to the finished sum.
 * Each format has code of its own. The chain of operations of a row and a query is that of tile.inl.h, the same for any
 * number of queries.
 */
#ifndef RSSM_READ_INL_H
#define RSSM_READ_INL_H

#include "cpu/fold.inl.h"

/* Rows first .. first + lanes - 1 with nq queries (1, 2 or 4; a constant): out[q] lane i = row . query q, unscaled. */
RSSM_INLINE void read_codes(const codes *k, int format, int nb, int tail, int32_t first, int lanes, const float *r,
                            int padded_k, const int nq, v16 *out) {
    v16 p[4][16];
    for (int i = 0; i < 16; i++) {
        const int32_t at = first + (i < lanes ? i : lanes - 1);
        const char *row = k->row + at * k->row_bytes;
        const float *scale = format >= CODE_NVFP4_16 ? block_scales(k, format, at) : NULL;
        v16 acc[4] = {v16_zero(), v16_zero(), v16_zero(), v16_zero()};
        RSSM_UNROLL
        for (int b = 0; b < nb; b++) {
            v16 x = code_block(format, row, scale, b, nb, tail);
            for (int q = 0; q < nq; q++) {
                acc[q] = v16_fma(x, v16_load(r + (int64_t)q * padded_k + 16 * b), acc[q]);
            }
        }
        for (int q = 0; q < nq; q++) {
            p[q][i] = acc[q];
        }
    }
    for (int q = 0; q < nq; q++) {
        out[q] = v16_sum16(p[q]);
    }
}

/* One query over a whole head of whole tiles, row i of each tile in turn: several pages of the state at once keep more
   lines in flight (tile.inl.h). */
RSSM_INLINE void read_codes_head(const codes *k, int format, int nb, int tail, const head_job *job) {
    v16 p[RSSM_HEAD_DIM_MAX / 16][16], query[RSSM_HEAD_DIM_MAX / 16];
    const int tiles = job->d_v / 16;
    const int32_t asks = (job->next->rows + 15) / 16; /* as much as is read: codes leave little other work to ask from */
    load_blocks(query, job->r, nb);
    for (int i = 0; i < 16; i++) {
        const char *row = k->row + i * k->row_bytes;
        for (int32_t a = 0; a < asks; a++) {
            ask_row(job->next, nb);
        }
        for (int t = 0; t < tiles; t++, row += 16 * k->row_bytes) {
            const float *scale = format >= CODE_NVFP4_16 ? block_scales(k, format, 16 * t + i) : NULL;
            v16 sum = v16_zero();
            RSSM_UNROLL
            for (int b = 0; b < nb; b++) {
                sum = v16_fma(code_block(format, row, scale, b, nb, tail), query[b], sum);
            }
            p[t][i] = sum;
        }
    }
    for (int t = 0; t < tiles; t++) {
        v16_store(job->y + 16 * t, v16_sum16(p[t]));
    }
}

RSSM_INLINE void read_queries_of(const codes *k, int format, int nb, int tail, const head_job *job) {
    const int32_t padded_k = job->fold->padded_k;
    if (job->queries == 1 && job->d_v % 16 == 0) {
        read_codes_head(k, format, nb, tail, job);
        return;
    }
    for (int32_t first = 0; first < job->d_v; first += 16) {
        const int lanes = job->d_v - first < 16 ? job->d_v - first : 16;
        v16 dots[RSSM_STEP_TOKENS_MAX];
        int32_t q = 0;
        for (; q + 4 <= job->queries; q += 4) {
            read_codes(k, format, nb, tail, first, lanes, job->r + (int64_t)q * padded_k, padded_k, 4, dots + q);
        }
        for (; q + 2 <= job->queries; q += 2) {
            read_codes(k, format, nb, tail, first, lanes, job->r + (int64_t)q * padded_k, padded_k, 2, dots + q);
        }
        for (; q < job->queries; q++) {
            read_codes(k, format, nb, tail, first, lanes, job->r + (int64_t)q * padded_k, padded_k, 1, dots + q);
        }
        for (q = 0; q < job->queries; q++) {
            v16_store(job->y + (int64_t)q * job->padded_v + first, dots[q]);
        }
    }
}

RSSM_INLINE void read_shape(const codes *k, int format, const head_job *job) {
    const int nb = (job->d_k + 15) / 16, tail = job->d_k - 16 * (nb - 1);
    if (V16_UNROLL && job->d_k == 128) {
        read_queries_of(k, format, 8, 16, job);
    } else {
        read_queries_of(k, format, nb, tail, job);
    }
}

/* y *= scale of the rows. */
static void scale_rows(const codes *k, const head_job *job) {
    float scale[RSSM_HEAD_DIM_MAX] = {0};
    const bool f8 = k->format == RSSM_DTYPE_F8;
    for (int32_t i = 0; i < job->d_v; i++) {
        scale[i] = f8 ? rssm_f32_of_e8m0(((const uint8_t *)k->row_scale)[i])
                      : ((const float *)(const void *)k->row_scale)[k->format == RSSM_DTYPE_INT8 ? i : 0];
    }
    const v16 unit = v16_set1(f8 ? 256.0f : 1.0f); /* apart: 256 times the scale may be beyond f32 */
    for (int32_t q = 0; q < job->queries; q++) {
        float *y = job->y + (int64_t)q * job->padded_v;
        for (int32_t i = 0; i < job->padded_v; i += 16) {
            v16_store(y + i, v16_mul(v16_mul(v16_load(y + i), unit), v16_load(scale + i)));
        }
    }
}

/* y += a (b . r) for each factor pair. */
static void add_factors(const codes *k, const head_job *job) {
    const int32_t padded_k = job->fold->padded_k;
    float b[RSSM_HEAD_DIM_MAX];
    for (int32_t i = 0; i < k->rank; i++) {
        const uint8_t *factor = k->factors + (int64_t)i * (job->padded_v + padded_k);
        const float scale = k->factor_scale[2 * i] * 256.0f * k->factor_scale[2 * i + 1] * 256.0f;
        for (int32_t c = 0; c < padded_k; c += 16) {
            v16_store(b + c, v16_load_e4m3_256th(factor + job->padded_v + c));
        }
        for (int32_t q = 0; q < job->queries; q++) {
            float *y = job->y + (int64_t)q * job->padded_v;
            const v16 dot = v16_set1(dot_padded(b, job->r + (int64_t)q * padded_k, padded_k) * scale);
            for (int32_t c = 0; c < job->padded_v; c += 16) {
                v16_store(y + c, v16_fma(v16_load_e4m3_256th(factor + c), dot, v16_load(y + c)));
            }
        }
    }
}

/* The read of a head_job whose state is codes: y = S r, then the values of its records. */
static void read_narrow(const codes *k, const head_job *job) {
#define READ_(name)                                                                                          \
    case name:                                                                                               \
        read_shape(k, name, job);                                                                            \
        break;
    switch (k->format) {
        READ_(RSSM_DTYPE_F16)
        READ_(RSSM_DTYPE_BF16)
        READ_(RSSM_DTYPE_F8)
        READ_(RSSM_DTYPE_INT8)
        READ_(CODE_NVFP4_16)
        READ_(CODE_NVFP4_32)
        READ_(CODE_NVFP4_VALUES)
    default:
        break;
    }
#undef READ_
    if (k->row_scale != NULL) {
        scale_rows(k, job);
    }
    add_factors(k, job);
    add_values(job);
}

/* Folds and reads a head whose state is narrow, or has a read copy. */
static void run_narrow(const rssm_geometry *geo, const rssm_constants *constants, const rssm_state *state, int32_t hv,
                       const head_job *job, float *r, float *scratch) {
    if (job->fold->n > 0) {
        fold_head(geo, constants, state, hv, job->fold, scratch);
    }
    if (state->copy == NULL) {
        const codes k = checkpoint_codes(geo, state, hv);
        read_narrow(&k, job);
        return;
    }
    if (constants->read.inverse != NULL) {
        const float *inverse = constants->read.inverse + (int64_t)hv * geo->padded_k;
        for (int32_t q = 0; q < job->queries; q++) {
            for (int32_t c = 0; c < geo->padded_k; c += 16) {
                float *x = r + (int64_t)q * geo->padded_k + c;
                v16_store(x, v16_mul(v16_load(x), v16_load(inverse + c)));
            }
        }
    }
    const codes k = copy_codes(geo, state, hv, scratch);
    read_narrow(&k, job);
}

#endif
