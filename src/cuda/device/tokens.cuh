/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a layer's inputs and its records to working memory: convolution, norms, gates, and what a step leaves behind.
 * Every block of a group computes the keys and queries it needs by itself; only the owner writes them to the buffers, into
 * rows that no block of the launch reads. So blocks wait for nobody, and a head's numbers do not depend on who its
 * neighbours are.
 */
#ifndef RSSM_CUDA_TOKENS_CUH
#define RSSM_CUDA_TOKENS_CUH

#include "cuda/device/block.cuh"

static __device__ __forceinline__ int64_t record_at(const rssm_geometry &g, int head, int row, int d) {
    return ((int64_t)head * g.rows.records + row) * d;
}

/* ---- Gates -------------------------------------------------------------------------------------------- */

/* alpha of one channel of a KDA head from its decay input. */
static __device__ __forceinline__ float channel_decay(const rssm_geometry &g, float decay, float bias, float A) {
    if (g.gate == RSSM_GATE_LOG) {
        return expf(decay);
    }
    float x = decay + bias;
    if (g.gate_lower_bound < 0.0f) {
        return expf(g.gate_lower_bound * sigmoid(-A * x));
    }
    return expf(A * softplus(x));
}

/* alpha (scalar decays only) and beta of one token and head. */
static __device__ __forceinline__ void token_gates(const rssm_cuda_step &c, const head_place &p, int64_t token, float *alpha, float *beta) {
    const rssm_geometry &g = c.geometry;
    const rssm_layer_inputs &in = c.inputs;
    float b = in.beta.data != nullptr
                  ? load_io(in.beta.data, token * in.beta.token_stride + p.hv * in.beta.head_stride, c.gate_bf16)
                  : 0.0f;
    if (g.delta && g.gate != RSSM_GATE_LOG) {
        b = g.beta_scale * sigmoid(b);
    }
    *beta = b;
    if (g.vector_decay) {
        return;
    }
    float decay = load_io(in.decay.data, token * in.decay.token_stride + p.hv * in.decay.head_stride, c.gate_bf16);
    if (g.gate == RSSM_GATE_LOG) {
        *alpha = expf(decay);
        return;
    }
    float dt = g.gate == RSSM_GATE_DT ? decay : softplus(decay + c.constants.dt_bias[p.h]);
    if (g.kind == RSSM_MAMBA2 && g.gate == RSSM_GATE_RAW) {
        dt = g.dt_min > 0.0f && dt < g.dt_min ? g.dt_min : dt; /* NaN stays */
        dt = g.dt_max > 0.0f && dt > g.dt_max ? g.dt_max : dt;
    }
    *alpha = expf(dt * c.constants.A[p.h]);
    *beta = g.delta ? b : dt;
}

/* ---- History ------------------------------------------------------------------------------------------ */

/* n records from map entry `first` on, as rows 0.. of working memory. `constants` serve records of raw gates. */
static __device__ void gather_records(const rssm_geometry &g, const rssm_constants &constants, const slot_parts &slot, const head_place &p,
                               const uint8_t *map, int n, int width, int slice, const memory &m) {
    const int io = g.bf16;
    for (int i = threadIdx.x; i < n * width; i += blockDim.x) {
        int j = i / width, column = i % width, r = map[j];
        float key = 0.0f;
        if (column < g.d_k) {
            float norm = g.l2 ? slot.record_scalar[(int64_t)(g.channel_norm + p.key) * g.rows.records + r] : 1.0f;
            key = __fmul_rn(load_io(slot.record_k, record_at(g, p.key, r, g.d_k) + column, io), norm);
        }
        m.key[i] = key;
        if (!g.vector_decay) {
            continue;
        }
        float alpha = 1.0f;
        int64_t at = record_at(g, p.hv, r, g.d_k) + column;
        if (column < g.d_k && g.raw_records) {
            alpha = channel_decay(g, load_io(slot.record_decay, at, io), constants.dt_bias[(int64_t)p.h * g.padded_k + column],
                                  constants.A[p.h]);
        } else if (column < g.d_k) {
            alpha = ((const float *)slot.record_decay)[at];
        }
        m.alpha[i] = alpha;
    }
    for (int i = threadIdx.x; i < n * p.rows; i += blockDim.x) {
        int j = i / p.rows, row = i % p.rows;
        m.value[j * slice + row] = load_io(slot.record_v, record_at(g, p.hv, map[j], g.d_v) + p.first + row, io);
    }
    for (int j = threadIdx.x; j < n; j += blockDim.x) {
        m.beta[j] = slot.record_scalar[(int64_t)(g.channel_beta + p.hv) * g.rows.records + map[j]];
        if (!g.vector_decay) {
            m.alpha[j] = slot.record_scalar[(int64_t)(g.channel_decay + p.hv) * g.rows.records + map[j]];
        }
    }
}

/* ---- The step's own tokens ---------------------------------------------------------------------------- */

/* A stretch of a row's tokens. Record i of it goes to buffer row map[i] and convolution row conv_map[held + i]; maps are
   NULL where nothing is left behind. */
struct stretch {
    int token;  /* of the row's first token in the inputs */
    int offset; /* of the stretch in the row */
    int n;
    int held;
    const uint8_t *map, *conv_map;
    bool records, conv; /* append to the buffers, or to the convolution rows */
};

/* Which of q, k, v: its view, the head in it, and its channel in convolution rows and weights. */
struct tensor {
    const rssm_view *view;
    int head, channel;
};

/* One channel of one token after the convolution, rounded to the io format; *raw: before it. */
static __device__ __forceinline__ float token_channel(const rssm_cuda_step &c, const slot_parts &slot, const stretch &s, const tensor &x,
                                      int t, int column, float *raw) {
    const rssm_geometry &g = c.geometry;
    const int w = g.conv_width, io = g.bf16, at = s.offset + t;
    const int64_t base = x.head * x.view->head_stride + column;
    if (w == 0) {
        return load_io(x.view->data, (int64_t)(s.token + at) * x.view->token_stride + base, io);
    }
    const int channel = x.channel + column;
    float acc = c.constants.conv_bias[channel], value = 0.0f;
#pragma unroll
    for (int j = 0; j < RSSM_CONV_WIDTH_MAX; j++) {
        if (j >= w) {
            break;
        }
        int from = at + j - (w - 1); /* token of the row; negative: in the convolution rows */
        value = from >= 0 ? load_io(x.view->data, (int64_t)(s.token + from) * x.view->token_stride + base, io)
                          : load_io(slot.conv, (int64_t)s.conv_map[s.held + from] * g.conv_channels + channel, io);
        acc = __fmaf_rn(c.constants.conv_weight[(int64_t)j * g.conv_channels + channel], value, acc);
    }
    *raw = value;
    return round_io(g.conv_silu ? silu(acc) : acc, io);
}

/* One channel's place in the convolution rows. */
static __device__ __forceinline__ void leave_conv(const rssm_cuda_step &c, const slot_parts &slot, const stretch &s, int channel, int t,
                                  float raw) {
    if (s.conv && c.geometry.conv_width > 0) {
        store_io(slot.conv, (int64_t)s.conv_map[s.held + t] * c.geometry.conv_channels + channel, raw, c.geometry.bf16);
    }
}

/* Queries to m.query, keys (not yet normalised) and values to rows `at`.. of the window; the raw material to the buffers. */
static __device__ void take_tokens(const rssm_cuda_step &c, const slot_parts &slot, const head_place &p, const stretch &s, int at,
                            const memory &m) {
    const rssm_geometry &g = c.geometry;
    const int width = c.layout.width, slice = c.layout.slice, per_token = 2 * width + p.rows;
    const tensor q = {&c.inputs.q, p.key, p.key * g.d_k}, k = {&c.inputs.k, p.key, g.conv_k + p.key * g.d_k};
    const tensor v = {&c.inputs.v, p.hv, g.conv_v + p.hv * g.d_v};
    for (int i = threadIdx.x; i < s.n * per_token; i += blockDim.x) {
        int t = i / per_token, e = i % per_token;
        float raw = 0.0f;
        if (e < 2 * width) {
            bool query = e < width;
            int column = query ? e : e - width;
            const tensor x = query ? q : k;
            float value = 0.0f;
            if (column < g.d_k) {
                value = token_channel(c, slot, s, x, t, column, &raw);
                if (p.owner) {
                    leave_conv(c, slot, s, x.channel + column, t, raw);
                }
                if (p.owner && !query && s.records) {
                    store_io(slot.record_k, record_at(g, p.key, s.map[t], g.d_k) + column, value, g.bf16);
                }
            }
            (query ? m.query + t * width : m.key + (at + t) * width)[column] = value;
            continue;
        }
        int row = e - 2 * width;
        float value = token_channel(c, slot, s, v, t, p.first + row, &raw);
        leave_conv(c, slot, s, v.channel + p.first + row, t, raw);
        if (s.records) {
            store_io(slot.record_v, record_at(g, p.hv, s.map[t], g.d_v) + p.first + row, value, g.bf16);
        }
        m.value[(at + t) * slice + row] = value;
    }
}

/* Gates of the tokens to rows `at`.. of the window, and to the records. */
static __device__ void take_gates(const rssm_cuda_step &c, const slot_parts &slot, const head_place &p, const stretch &s, int at,
                           const memory &m) {
    const rssm_geometry &g = c.geometry;
    const int width = c.layout.width;
    const int64_t rows = g.rows.records;
    for (int t = threadIdx.x; t < s.n; t += blockDim.x) {
        float alpha = 1.0f, beta;
        token_gates(c, p, s.token + s.offset + t, &alpha, &beta);
        m.beta[at + t] = beta;
        if (!g.vector_decay) {
            m.alpha[at + t] = alpha;
        }
        if (s.records && p.first_slice) {
            slot.record_scalar[(g.channel_beta + p.hv) * rows + s.map[t]] = beta;
            if (!g.vector_decay) {
                slot.record_scalar[(g.channel_decay + p.hv) * rows + s.map[t]] = alpha;
            }
        }
    }
    for (int i = threadIdx.x; g.vector_decay && i < s.n * width; i += blockDim.x) {
        int t = i / width, column = i % width;
        float alpha = 1.0f;
        if (column < g.d_k) {
            const rssm_view &view = c.inputs.decay;
            int64_t from = (int64_t)(s.token + s.offset + t) * view.token_stride + p.hv * view.head_stride + column;
            float decay = load_io(view.data, from, c.gate_bf16);
            alpha = channel_decay(g, decay, c.constants.dt_bias[(int64_t)p.h * g.padded_k + column], c.constants.A[p.h]);
            if (s.records && p.first_slice) {
                int64_t to = record_at(g, p.hv, s.map[t], g.d_k) + column;
                if (g.raw_records) {
                    store_io(slot.record_decay, to, decay, g.bf16);
                } else {
                    ((float *)slot.record_decay)[to] = alpha;
                }
            }
        }
        m.alpha[(at + t) * width + column] = alpha;
    }
}

/* Norms of queries and keys, a warp for each; after take_tokens() and a barrier. */
static __device__ void take_norms(const rssm_cuda_step &c, const slot_parts &slot, const head_place &p, const stretch &s, int at,
                           const memory &m) {
    const rssm_geometry &g = c.geometry;
    const int width = c.layout.width, lane = threadIdx.x & 31, warps = blockDim.x / 32;
    for (int i = threadIdx.x / 32; i < 2 * s.n; i += warps) {
        int t = i / 2;
        bool query = i % 2 == 0;
        float *x = query ? m.query + t * width : m.key + (at + t) * width;
        float inverse = 1.0f;
        if (g.l2) {
            float sum = 0.0f;
            for (int column = lane; column < width; column += 32) {
                sum = __fmaf_rn(x[column], x[column], sum);
            }
            inverse = 1.0f / sqrtf(warp_sum(sum) + g.qk_eps);
        }
        for (int column = lane; column < width; column += 32) {
            float scaled = __fmul_rn(x[column], inverse);
            x[column] = query ? __fmul_rn(scaled, g.q_scale) : scaled;
        }
        if (!query && g.l2 && lane == 0 && p.owner && s.records) {
            slot.record_scalar[(int64_t)(g.channel_norm + p.key) * g.rows.records + s.map[t]] = inverse;
        }
    }
}

#endif
