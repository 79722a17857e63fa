/* SPDX-License-Identifier: Apache-2.0 */
/* What happens after the recurrence: the D skip, the gated norms, and the store. */
#ifndef RSSM_OUTPUT_INL_H
#define RSSM_OUTPUT_INL_H

#include "cpu/unit.inl.h"

/* y += D v for one head (unit order h): y and v [n][padded_v]. */
static void add_skip(const rssm_geometry *geo, const rssm_constants *constants, int32_t h, int32_t n, const float *v,
                     float *y) {
    if (constants->D == NULL) {
        return;
    }
    v16 D = v16_set1(constants->D[h]);
    for (int64_t c = 0; c < (int64_t)n * geo->padded_v; c += 16) {
        v16_store(y + c, v16_fma(D, v16_load(v + c), v16_load(y + c)));
    }
}

static inline void *out_at(const rssm_call *call, int64_t token, int32_t hv) {
    return (char *)call->out->data +
           (token * call->out->token_stride + hv * call->out->head_stride) * io_bytes(call->out_bf16);
}

static inline v16 gate_of(const span *s, int64_t token, int32_t hv, int32_t c, int n, int sigmoid) {
    const rssm_geometry *geo = s->call->geometry;
    v16 z = load_io(view_at(&s->call->inputs->z, token, hv, geo->bf16), c, geo->bf16, n);
    return sigmoid ? v16_sigmoid(z) : v16_silu(z);
}

/* Value head j of a unit: its number in unit order and in the inputs' order. */
static inline int32_t unit_head(const rssm_geometry *geo, int32_t unit, int32_t j) {
    return unit * geo->unit_values + j;
}
static inline int32_t input_head(const rssm_geometry *geo, int32_t h) {
    return rssm_value_head(geo, h / geo->ratio, h % geo->ratio);
}

/* One token of `heads` heads from the unit's jth on, which share an RMS statistic. y of head j lies
   RSSM_SCAN_TOKENS * padded_v after that of head j - 1. */
static void norm_and_store(const span *s, int32_t unit, int32_t j, int32_t heads, int32_t t, float *y) {
    const rssm_geometry *geo = s->call->geometry;
    const int64_t token = s->row->token + s->offset + t, head_ld = (int64_t)RSSM_SCAN_TOKENS * geo->padded_v;
    const int gate_first = geo->out_norm == RSSM_OUT_NORM_GROUP || geo->out_norm == RSSM_OUT_NORM_GATE_SILU;
    const int gate_last = geo->out_norm == RSSM_OUT_NORM_HEAD_SILU || geo->out_norm == RSSM_OUT_NORM_HEAD_SIGMOID;
    const int norm = geo->out_norm != RSSM_OUT_NORM_NONE && geo->out_norm != RSSM_OUT_NORM_GATE_SILU;
    v16 squares = v16_zero();
    for (int32_t i = 0; i < heads; i++) {
        int32_t hv = input_head(geo, unit_head(geo, unit, j + i));
        float *x = y + (j + i) * head_ld + (int64_t)t * geo->padded_v;
        for (int32_t c = 0; c < geo->d_v; c += 16) {
            int n = lanes_left(geo->d_v, c / 16);
            v16 u = v16_load_n(x + c, n);
            if (gate_first) {
                u = v16_mul(u, gate_of(s, token, hv, c, n, 0));
                v16_store(x + c, u);
            }
            squares = v16_fma(u, u, squares);
        }
    }
    float mean = v16_sum(squares) / (float)(heads * geo->d_v);
    v16 scale = v16_set1(norm ? 1.0f / sqrtf(mean + geo->out_eps) : 1.0f);
    for (int32_t i = 0; i < heads; i++) {
        int32_t h = unit_head(geo, unit, j + i), hv = input_head(geo, h);
        const float *x = y + (j + i) * head_ld + (int64_t)t * geo->padded_v;
        const float *weight = s->call->constants->out_norm + (int64_t)h * geo->padded_v;
        for (int32_t c = 0; c < geo->d_v; c += 16) {
            int n = lanes_left(geo->d_v, c / 16);
            v16 u = v16_load_n(x + c, n);
            if (norm) {
                u = v16_mul(v16_mul(u, scale), v16_load(weight + c));
            }
            if (gate_last) {
                u = v16_mul(u, gate_of(s, token, hv, c, n, geo->out_norm == RSSM_OUT_NORM_HEAD_SIGMOID));
            }
            store_io(out_at(s->call, token, hv), c, u, s->call->out_bf16, n);
        }
    }
}

/* Stores the outputs of a unit; y [unit_values][RSSM_SCAN_TOKENS][padded_v]. */
static void write_outputs(const span *s, int32_t unit, float *y) {
    const rssm_geometry *geo = s->call->geometry;
    int32_t heads = geo->unit_values / geo->unit_norms;
    for (int32_t j = 0; j < geo->unit_values; j += heads) {
        for (int32_t t = 0; t < s->n; t++) {
            norm_and_store(s, unit, j, heads, t, y);
        }
    }
}

/* The outputs of a padding row. */
static void write_zeros(const span *s, int32_t unit) {
    const rssm_geometry *geo = s->call->geometry;
    for (int32_t t = 0; t < s->n; t++) {
        for (int32_t j = 0; j < geo->unit_values; j++) {
            int32_t hv = input_head(geo, unit_head(geo, unit, j));
            memset(out_at(s->call, s->row->token + s->offset + t, hv), 0, (size_t)(geo->d_v * io_bytes(s->call->out_bf16)));
        }
    }
}

#endif
