/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens before the recurrence: convolution, gates and norms, from a layer's inputs (or its records) to float
 * vectors in scratch. Rows of scratch are padded to whole vectors; the padding of keys and queries is zero.
 */
#ifndef RSSM_UNIT_INL_H
#define RSSM_UNIT_INL_H

#include "cpu/kernels.h"

static inline int io_bytes(int bf16) { return bf16 ? 2 : 4; }

static inline int lanes_left(int d, int block) {
    int left = d - 16 * block;
    return left < 16 ? left : 16;
}

static inline v16 load_io(const void *p, int64_t i, int bf16, int n) {
    if (n == 16) {
        return bf16 ? v16_load_bf16((const uint16_t *)p + i) : v16_load((const float *)p + i);
    }
    return bf16 ? v16_load_bf16_n((const uint16_t *)p + i, n) : v16_load_n((const float *)p + i, n);
}

/* Whole vectors are told apart, as loads of what a masked store wrote wait until it has left the core. */
static inline void store_io(void *p, int64_t i, v16 x, int bf16, int n) {
    if (bf16 && n == 16) {
        v16_store_bf16((uint16_t *)p + i, x);
    } else if (n == 16) {
        v16_store((float *)p + i, x);
    } else if (bf16) {
        v16_store_bf16_n((uint16_t *)p + i, x, n);
    } else {
        v16_store_n((float *)p + i, x, n);
    }
}

static inline const void *at_io(const void *p, int64_t i, int bf16) {
    return (const char *)p + i * io_bytes(bf16);
}

static inline const void *view_at(const rssm_view *view, int64_t token, int64_t head, int bf16) {
    return at_io(view->data, token * view->token_stride + head * view->head_stride, bf16);
}

/* Sum of a[c] b[c] over the padded length, in four chains; zero padding in one of the two is enough. */
static inline float dot_padded(const float *a, const float *b, int padded) {
    v16 p[4] = {v16_zero(), v16_zero(), v16_zero(), v16_zero()};
    for (int c = 0, chain = 0; c < padded; c += 16, chain = (chain + 1) & 3) {
        p[chain] = v16_fma(v16_load(a + c), v16_load(b + c), p[chain]);
    }
    return v16_sum(v16_add(v16_add(p[0], p[1]), v16_add(p[2], p[3])));
}

/* ---- The tokens of a row, or a stretch of them -------------------------------------------------------- */

/* n tokens of a row from its `offset`th on. */
typedef struct span {
    const rssm_call *call;
    const rssm_row *row;
    int32_t offset, n;
} span;

/* Which of q, k, v: the view, and the channels of one head in convolution rows and weights. */
typedef struct tensor {
    const rssm_view *view;
    int32_t head, d, channel;
} tensor;

static inline tensor tensor_q(const rssm_call *call, int32_t g) {
    const rssm_geometry *geo = call->geometry;
    return (tensor){&call->inputs->q, g, geo->d_k, g * geo->d_k};
}
static inline tensor tensor_k(const rssm_call *call, int32_t g) {
    const rssm_geometry *geo = call->geometry;
    return (tensor){&call->inputs->k, g, geo->d_k, geo->conv_k + g * geo->d_k};
}
static inline tensor tensor_v(const rssm_call *call, int32_t hv) {
    const rssm_geometry *geo = call->geometry;
    return (tensor){&call->inputs->v, hv, geo->d_v, geo->conv_v + hv * geo->d_v};
}

/* Input of one token of the row, counted from the step's first; negative: committed before, in the convolution rows. */
static inline const void *tap(const span *s, const tensor *x, int32_t token) {
    const rssm_geometry *geo = s->call->geometry;
    if (token >= 0) {
        return view_at(x->view, s->row->token + token, x->head, geo->bf16);
    }
    int32_t row = s->row->cursor->conv_map[s->row->cursor->held + token];
    return at_io(s->row->conv, (int64_t)row * geo->conv_channels + x->channel, geo->bf16);
}

/* The token before token t of the row: its parent in a tree, else its neighbour; committed ones are numbered down
   from -1. */
static inline int32_t token_before(const rssm_row *row, int32_t t) {
    return row->parents != NULL && t >= 0 ? row->parents[t] : t - 1;
}

/* Rounds to the io format: what every method uses, and what a record holds. */
static inline v16 round_io(v16 x, int bf16) {
    if (!bf16) {
        return x;
    }
    uint16_t h[16];
    v16_store_bf16(h, x);
    return v16_load_bf16(h);
}

/* One head of q, k or v for the tokens of a span, after the convolution: out [n][padded d], padding zero. */
static void head_values(const span *s, tensor x, float *out) {
    const rssm_geometry *geo = s->call->geometry;
    const float *weight = s->call->constants->conv_weight + x.channel;
    const float *bias = s->call->constants->conv_bias + x.channel;
    int32_t w = geo->conv_width, padded = rssm_padded(x.d);
    const void *taps[RSSM_SCAN_TOKENS + RSSM_CONV_WIDTH_MAX];
    int32_t context = w > 0 ? w - 1 : 0;
    for (int32_t i = 0; i < s->n + context; i++) {
        taps[i] = tap(s, &x, s->offset + i - context);
    }
    for (int32_t t = 0; t < s->n; t++) {
        const void *path[RSSM_CONV_WIDTH_MAX]; /* the taps of this token, oldest first */
        for (int32_t j = w - 1, at = s->offset + t; j >= 0; j--, at = token_before(s->row, at)) {
            path[j] = taps[at - s->offset + context];
        }
        for (int32_t c = 0; c < padded; c += 16) {
            int n = lanes_left(x.d, c / 16);
            v16 acc;
            if (w == 0) {
                acc = load_io(taps[t], c, geo->bf16, n);
            } else {
                acc = v16_load_n(bias + c, n);
                for (int32_t j = 0; j < w; j++) {
                    acc = v16_fma(v16_load_n(weight + (int64_t)j * geo->conv_channels + c, n),
                                  load_io(path[j], c, geo->bf16, n), acc);
                }
                acc = round_io(geo->conv_silu ? v16_silu(acc) : acc, geo->bf16);
            }
            v16_store(out + (int64_t)t * padded + c, acc);
        }
    }
}

/* Keeps the inputs of the step's tokens as convolution rows; only decode steps, whose rows begin planned. */
static void append_conv(const span *s, tensor x) {
    const rssm_geometry *geo = s->call->geometry;
    for (int32_t t = 0; t < s->n; t++) {
        int32_t row = s->row->cursor->conv_map[s->row->cursor->held + t];
        char *to = (char *)s->row->conv + ((int64_t)row * geo->conv_channels + x.channel) * io_bytes(geo->bf16);
        memcpy(to, tap(s, &x, t), (size_t)(x.d * io_bytes(geo->bf16)));
    }
}

/* ---- Norms and gates ---------------------------------------------------------------------------------- */

static inline float inverse_norm(const rssm_geometry *geo, const float *x) {
    return 1.0f / sqrtf(dot_padded(x, x, geo->padded_k) + geo->qk_eps);
}

static inline void scale_padded(float *x, float factor, int padded) {
    for (int c = 0; c < padded; c += 16) {
        v16_store(x + c, v16_mul(v16_load(x + c), v16_set1(factor)));
    }
}

/* Queries of a span: q [n][padded_k], normalised and scaled. */
static void head_queries(const span *s, int32_t g, float *q) {
    const rssm_geometry *geo = s->call->geometry;
    head_values(s, tensor_q(s->call, g), q);
    for (int32_t t = 0; t < s->n; t++) {
        float *x = q + (int64_t)t * geo->padded_k;
        if (geo->l2) {
            scale_padded(x, inverse_norm(geo, x), geo->padded_k);
        }
        scale_padded(x, geo->q_scale, geo->padded_k);
    }
}

static inline float load_gate(const void *p, int bf16) {
    return bf16 ? rssm_f32_of_bf16(*(const uint16_t *)p) : *(const float *)p;
}

/* alpha and beta of up to 16 heads of Mamba-2 or GDN from their decay input. */
static inline void scalar_gates(const rssm_geometry *geo, v16 decay, v16 bias, v16 A, v16 *alpha, v16 *beta) {
    if (geo->gate == RSSM_GATE_LOG) {
        *alpha = v16_exp(decay);
        return;
    }
    v16 dt = geo->gate == RSSM_GATE_DT ? decay : v16_softplus(v16_add(decay, bias));
    if (geo->kind == RSSM_MAMBA2 && geo->gate == RSSM_GATE_RAW) {
        if (geo->dt_min > 0.0f) {
            dt = v16_max(v16_set1(geo->dt_min), dt);
        }
        if (geo->dt_max > 0.0f) {
            dt = v16_min(v16_set1(geo->dt_max), dt);
        }
    }
    *alpha = v16_exp(v16_mul(dt, A));
    *beta = dt;
}

/* alpha of 16 channels of a KDA head from its decay input. */
static inline v16 channel_decay(const rssm_geometry *geo, v16 decay, v16 bias, v16 A) {
    if (geo->gate == RSSM_GATE_LOG) {
        return v16_exp(decay);
    }
    v16 x = v16_add(decay, bias);
    if (geo->gate_lower_bound < 0.0f) {
        return v16_exp(v16_mul(v16_set1(geo->gate_lower_bound), v16_sigmoid(v16_mul(v16_neg(A), x))));
    }
    return v16_exp(v16_mul(A, v16_softplus(x)));
}

/* Gates of one token for the value heads of key head g: alpha [ratio] (scalar decay) and beta [ratio], both padded. */
static void token_gates(const span *s, int32_t g, int32_t t, float *alpha, float *beta) {
    const rssm_geometry *geo = s->call->geometry;
    const rssm_layer_inputs *in = s->call->inputs;
    const rssm_constants *constants = s->call->constants;
    int bf16 = s->call->gate_bf16;
    int64_t token = s->row->token + s->offset + t;
    for (int32_t first = 0; first < geo->ratio; first += 16) {
        int n = geo->ratio - first < 16 ? geo->ratio - first : 16;
        float decay[16] = {0}, b[16] = {0};
        for (int i = 0; i < n; i++) {
            int32_t hv = rssm_value_head(geo, g, first + i);
            if (!geo->vector_decay) {
                decay[i] = load_gate(view_at(&in->decay, token, hv, bf16), bf16);
            }
            if (in->beta.data != NULL) {
                b[i] = load_gate(view_at(&in->beta, token, hv, bf16), bf16);
            }
        }
        v16 a16 = v16_zero(), b16 = v16_load(b);
        if (geo->delta && geo->gate != RSSM_GATE_LOG) {
            b16 = v16_mul(v16_set1(geo->beta_scale), v16_sigmoid(b16));
        }
        if (!geo->vector_decay) {
            int64_t h = (int64_t)g * geo->ratio + first;
            v16 dt = b16;
            scalar_gates(geo, v16_load(decay), v16_load_n(constants->dt_bias + h, n),
                         v16_load_n(constants->A + h, n), &a16, &dt);
            b16 = geo->delta ? b16 : dt;
            v16_store(alpha + first, a16);
        }
        v16_store(beta + first, b16);
    }
}

/* alpha [padded_k] of a KDA head (in unit order h) from its decay input; padding is 1. */
static void decay_vector(const rssm_geometry *geo, const rssm_constants *constants, int32_t h, const void *decay,
                         int bf16, float *alpha) {
    v16 A = v16_set1(constants->A[h]);
    const float *bias = constants->dt_bias + (int64_t)h * geo->padded_k;
    for (int c = 0; c < geo->padded_k; c += 16) {
        int n = lanes_left(geo->d_k, c / 16);
        v16 a = channel_decay(geo, load_io(decay, c, bf16, n), v16_load(bias + c), A);
        v16_store(alpha + c, n == 16 ? a : v16_select(v16_first(n), a, v16_set1(1.0f)));
    }
}

#endif
