/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a layer's inputs and its records to working memory: convolution, norms, gates, and what a step leaves behind.
 * Every block of a group computes the keys and queries it needs by itself; only the owner writes them to the buffers, into
 * rows that no block of the launch reads. So blocks wait for nobody, and a head's numbers do not depend on who its
 * neighbours are.
 */
#ifndef RSSM_CUDA_TOKENS_CUH
#define RSSM_CUDA_TOKENS_CUH

#include <cuda_pipeline.h>

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
static __device__ __forceinline__ void token_gates(const rssm_cuda_step &c, const head_place &p, int64_t token,
                                float *alpha, float *beta) {
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

/* A row of a head is taken by a warp, lane l with the columns 4 l .. 4 l + 3 of every stretch of 128. */
enum { STRETCH = 128 };

static __device__ __forceinline__ float4 decay4(const rssm_geometry &g, const rssm_constants &constants, int h,
                                int column, float4 decay) {
    const int left = g.d_k - column;
    const float4 bias = load4(constants.dt_bias, (int64_t)h * g.padded_k + column, left, 0);
    const float A = constants.A[h];
    return make_float4(left > 0 ? channel_decay(g, decay.x, bias.x, A) : 1.0f, left > 1 ? channel_decay(g, decay.y, bias.y, A) : 1.0f,
                       left > 2 ? channel_decay(g, decay.z, bias.z, A) : 1.0f, left > 3 ? channel_decay(g, decay.w, bias.w, A) : 1.0f);
}

/* Four elements of a record: in exact shapes rows are whole vectors at aligned addresses. */
template <class S> static __device__ __forceinline__ float4 record4(const void *p, int64_t at, int left, int bf16) {
    if constexpr (S::EXACT) {
        return left > 0 ? load4_whole(p, at, bf16) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    } else {
        return load4(p, at, left, bf16);
    }
}

/* To working memory, asynchronously where the shape is exact: `bytes` of a row, a multiple of 16 there, by `lanes` lanes... */
template <class S> static __device__ __forceinline__ void copy_row(void *to, const void *from, int bytes, int lane, int lanes) {
    if constexpr (S::EXACT) {
        for (int i = 16 * lane; i < bytes; i += 16 * lanes) {
            __pipeline_memcpy_async((char *)to + i, (const char *)from + i, 16);
        }
    } else {
        for (int i = lane; i < bytes / 2; i += lanes) {
            ((uint16_t *)to)[i] = ((const uint16_t *)from)[i];
        }
    }
}

/* ... and one number. */
template <class S> static __device__ __forceinline__ void copy_number(float *to, const float *from) {
    if constexpr (S::EXACT) {
        __pipeline_memcpy_async(to, from, 4);
    } else {
        *to = *from;
    }
}

/* The keys of n records, from map entry `map` on, as they are, in the last bytes of rows 0.. of working memory, and their
   norms. scale_keys() makes them the keys. */
template <class S>
static __device__ __forceinline__ void gather_keys(const team &w, const rssm_geometry &g, const slot_parts &slot, const head_place &p, const uint8_t *map, int n,
                                   int width, const memory &m) {
    const int element = g.bf16 ? 2 : 4, bytes = g.d_k * element, lanes = bytes <= 256 ? 16 : 32, lane = w.thread & (lanes - 1);
    const float *norms = slot.record_scalar + (int64_t)(g.channel_norm + p.key) * g.rows.records;
    for (int j = w.thread / lanes; j < n; j += w.threads / lanes) {
        copy_row<S>((char *)(m.key + (j + 1) * width) - width * element, slot.record_k + record_at(g, p.key, map[j], g.d_k) * element, bytes,
                    lane, lanes);
    }
    for (int j = w.thread; g.l2 && j < n; j += w.threads) {
        copy_number<S>(m.norm + j, norms + map[j]);
    }
}

/* A warp takes a row: it has all of it in registers before it writes any. */
template <class S> static __device__ __forceinline__ void scale_keys(const team &w, const rssm_geometry &g, int n, int width, const memory &m) {
    constexpr int STRETCHES = (S::BLOCKS + 3) / 4;
    const int element = g.bf16 ? 2 : 4, lane = w.thread & 31;
    for (int j = w.thread / 32; j < n; j += w.threads / 32) {
        float *row = m.key + j * width;
        const char *raw = (const char *)(row + width) - width * element;
        const float norm = g.l2 ? m.norm[j] : 1.0f;
        float4 x[STRETCHES];
#pragma unroll
        for (int k = 0; k < STRETCHES; k++) {
            const int column = STRETCH * k + 4 * lane;
            x[k] = held4(raw, column, g.d_k - column, g.bf16);
        }
        __syncwarp();
#pragma unroll
        for (int k = 0; k < STRETCHES; k++) {
            const int column = STRETCH * k + 4 * lane;
            if (column < width) {
                *(float4 *)(row + column) = scale4(x[k], norm);
            }
        }
    }
}

/* What differs between the heads of a group, of the same records: values, gates, vector decays. `constants` serve records
   of raw gates. */
template <class S, bool VECTOR>
static __device__ __forceinline__ void gather_head(const team &w, const rssm_geometry &g, const rssm_constants &constants, const slot_parts &slot,
                                   const head_place &p, const uint8_t *map, int n, int width, const memory &m) {
    const int64_t rows = g.rows.records;
    const int element = g.bf16 ? 2 : 4, bytes = p.rows * element, lanes = bytes <= 256 ? 16 : 32, lane = w.thread & (lanes - 1);
    for (int j = w.thread / lanes; j < n; j += w.threads / lanes) {
        copy_row<S>((char *)m.value + j * p.slice * element, slot.record_v + (record_at(g, p.hv, map[j], g.d_v) + p.first) * element, bytes,
                    lane, lanes);
    }
    for (int j = w.thread / 32; VECTOR && j < n; j += w.threads / 32) {
        const int64_t at = record_at(g, p.hv, map[j], g.d_k);
        if (S::EXACT && !g.raw_records) {
            copy_row<S>(m.alpha + j * width, (const float *)slot.record_decay + at, width * 4, w.thread & 31, 32);
            continue;
        }
        for (int column = 4 * (w.thread & 31); column < width; column += STRETCH) {
            const float4 x = record4<S>(slot.record_decay, at + column, g.d_k - column, g.raw_records && g.bf16);
            *(float4 *)(m.alpha + j * width + column) = g.raw_records ? decay4(g, constants, p.h, column, x) : x;
        }
    }
    for (int j = w.thread; j < n; j += w.threads) {
        copy_number<S>(m.beta + j, slot.record_scalar + (g.channel_beta + p.hv) * rows + map[j]);
        if (!VECTOR) {
            copy_number<S>(m.alpha + j, slot.record_scalar + (g.channel_decay + p.hv) * rows + map[j]);
        }
    }
}

/* ---- The step's own tokens ---------------------------------------------------------------------------- */

/* A stretch of a row's tokens. Record i of it goes to buffer row map[i] and convolution row conv_map[held + i]. */
struct stretch {
    int token;  /* of the row's first token in the inputs */
    int offset; /* of the stretch in the row */
    int n;
    int held;
    const uint8_t *map, *conv_map;
    bool records, conv; /* append to the buffers, or to the convolution rows */
};

/* Which of q, k, v: its view, the head in it, its channel in convolution rows and weights, its elements. */
struct tensor {
    const rssm_view *view;
    int head, channel, n;
};

/* Four channels of one token after the convolution, rounded to the io format; their inputs go to the convolution rows.
   Not inlined: it would take the registers of layers that have no convolution. */
static __device__ __noinline__ float4 convolved4(const rssm_cuda_step &c, char *conv, const stretch &s, const tensor &x, int t, int column,
                                 bool leaves) {
    const rssm_geometry &g = c.geometry;
    const int w = g.conv_width, io = g.bf16, at = s.offset + t, left = x.n - column, channel = x.channel + column;
    const int64_t base = x.head * x.view->head_stride + column;
    float4 taps[RSSM_CONV_WIDTH_MAX], weights[RSSM_CONV_WIDTH_MAX], acc = load4(c.constants.conv_bias, channel, left, 0);
#pragma unroll
    for (int j = 0; j < RSSM_CONV_WIDTH_MAX; j++) {
        if (j < w) {
            int from = at + j - (w - 1); /* token of the row; negative: in the convolution rows */
            taps[j] = from >= 0 ? load4(x.view->data, (int64_t)(s.token + from) * x.view->token_stride + base, left, io)
                                : load4(conv, (int64_t)s.conv_map[s.held + from] * g.conv_channels + channel, left, io);
            weights[j] = load4(c.constants.conv_weight, (int64_t)j * g.conv_channels + channel, left, 0);
        }
    }
    float4 own = taps[0];
#pragma unroll
    for (int j = 0; j < RSSM_CONV_WIDTH_MAX; j++) {
        if (j < w) {
            acc = fma4(weights[j], taps[j], acc);
            own = taps[j];
        }
    }
    if (leaves && s.conv) {
        store4(conv, (int64_t)s.conv_map[s.held + t] * g.conv_channels + channel, left, own, io);
    }
    if (g.conv_silu) {
        acc = make_float4(silu(acc.x), silu(acc.y), silu(acc.z), silu(acc.w));
    }
    return make_float4(round_io(acc.x, io), round_io(acc.y, io), round_io(acc.z, io), round_io(acc.w, io));
}

static __device__ __forceinline__ float4 token_channels(const rssm_cuda_step &c, const slot_parts &slot, const stretch &s, const tensor &x,
                                        int t, int column, bool leaves) {
    const int left = x.n - column;
    if (c.geometry.conv_width > 0 && left > 0) {
        return convolved4(c, slot.conv, s, x, t, column, leaves);
    }
    const int64_t at = (int64_t)(s.token + s.offset + t) * x.view->token_stride + x.head * x.view->head_stride + column;
    return load4(x.view->data, at, left, c.geometry.bf16);
}

/* 1 / sqrt(sum of squares + eps) of a row that a warp holds: per lane one chain over its columns in order, then warp_sum(). */
template <int STRETCHES> static __device__ __forceinline__ float inverse_norm(const float4 (&x)[STRETCHES], float eps) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < STRETCHES; i++) {
        sum = __fmaf_rn(x[i].x, x[i].x, sum);
        sum = __fmaf_rn(x[i].y, x[i].y, sum);
        sum = __fmaf_rn(x[i].z, x[i].z, sum);
        sum = __fmaf_rn(x[i].w, x[i].w, sum);
    }
    return 1.0f / sqrtf(warp_sum(sum) + eps);
}

/* A query to m.query or a key to row `at` + t of the window, normalised; a key's raw material to the buffers. */
template <int STRETCHES>
static __device__ __forceinline__ void take_key(const rssm_cuda_step &c, const slot_parts &slot, const head_place &p, const stretch &s, bool query,
                                int t, float *to) {
    const rssm_geometry &g = c.geometry;
    const int width = c.layout.width, lane = threadIdx.x & 31;
    const tensor q = {&c.inputs.q, p.key, p.key * g.d_k, g.d_k}, k = {&c.inputs.k, p.key, g.conv_k + p.key * g.d_k, g.d_k};
    float4 x[STRETCHES];
#pragma unroll
    for (int i = 0; i < STRETCHES; i++) {
        const int column = STRETCH * i + 4 * lane;
        x[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (column < g.d_k) {
            x[i] = token_channels(c, slot, s, query ? q : k, t, column, p.owner);
        }
        if (column < g.d_k && !query && p.owner && s.records) {
            store4(slot.record_k, record_at(g, p.key, s.map[t], g.d_k) + column, g.d_k - column, x[i], g.bf16);
        }
    }
    const float inverse = g.l2 ? inverse_norm(x, g.qk_eps) : 1.0f;
    if (!query && g.l2 && lane == 0 && p.owner && s.records) {
        slot.record_scalar[(int64_t)(g.channel_norm + p.key) * g.rows.records + s.map[t]] = inverse;
    }
#pragma unroll
    for (int i = 0; i < STRETCHES; i++) {
        const int column = STRETCH * i + 4 * lane;
        if (column < width) {
            const float4 scaled = scale4(x[i], inverse);
            *(float4 *)(to + column) = query ? scale4(scaled, g.q_scale) : scaled;
        }
    }
}

static __device__ __forceinline__ void take_value(const rssm_cuda_step &c, const slot_parts &slot, const head_place &p, const stretch &s, int t,
                                  void *to, int at) {
    const rssm_geometry &g = c.geometry;
    const tensor v = {&c.inputs.v, p.hv, g.conv_v + p.hv * g.d_v, g.d_v};
    for (int row = 4 * (threadIdx.x & 31); row < p.rows; row += STRETCH) {
        tensor part = v; /* the slice's rows */
        part.n = p.first + p.rows;
        const float4 x = token_channels(c, slot, s, part, t, p.first + row, true);
        if (s.records) {
            store4(slot.record_v, record_at(g, p.hv, s.map[t], g.d_v) + p.first + row, p.rows - row, x, g.bf16);
        }
        store4(to, (int64_t)at * p.slice + row, p.rows - row, x, g.bf16);
    }
}

/* Vector decay of a token to row `to`, and to the records. */
static __device__ __forceinline__ void take_decay(const rssm_cuda_step &c, const slot_parts &slot, const head_place &p, const stretch &s, int t,
                                  float *to) {
    const rssm_geometry &g = c.geometry;
    const rssm_view &view = c.inputs.decay;
    const int64_t from = (int64_t)(s.token + s.offset + t) * view.token_stride + p.hv * view.head_stride;
    for (int column = 4 * (threadIdx.x & 31); column < c.layout.width; column += STRETCH) {
        const int left = g.d_k - column;
        const float4 raw = load4(view.data, from + column, left, c.gate_bf16), alpha = decay4(g, c.constants, p.h, column, raw);
        if (s.records && p.first_slice) {
            store4(slot.record_decay, record_at(g, p.hv, s.map[t], g.d_k) + column, left, g.raw_records ? raw : alpha,
                   g.raw_records && g.bf16);
        }
        *(float4 *)(to + column) = alpha;
    }
}

/* Scalar gates of a token. */
static __device__ __forceinline__ void take_gates(const rssm_cuda_step &c, const slot_parts &slot, const head_place &p, const stretch &s, int t,
                                  float *alpha_to, float *beta_to) {
    const rssm_geometry &g = c.geometry;
    const int64_t rows = g.rows.records;
    float alpha = 1.0f, beta;
    token_gates(c, p, s.token + s.offset + t, &alpha, &beta);
    *beta_to = beta;
    if (!g.vector_decay) {
        *alpha_to = alpha;
    }
    if (s.records && p.first_slice) {
        slot.record_scalar[(g.channel_beta + p.hv) * rows + s.map[t]] = beta;
        if (!g.vector_decay) {
            slot.record_scalar[(g.channel_decay + p.hv) * rows + s.map[t]] = alpha;
        }
    }
}

/* Queries and keys of a stretch's tokens, keys to rows `at`.. of the window. A warp takes a row. */
template <int STRETCHES>
static __device__ __forceinline__ void take_keys(const team &w, const rssm_cuda_step &c, const slot_parts &slot, const head_place &p, const stretch &s, int at,
                                 const memory &m) {
    const int width = c.layout.width, warps = w.threads / 32;
    for (int i = w.thread / 32; i < 2 * s.n; i += warps) {
        const int t = i / 2;
        const bool query = i % 2 == 0;
        take_key<STRETCHES>(c, slot, p, s, query, t, query ? m.query + t * width : m.key + (at + t) * width);
    }
}

/* Values, gates and vector decays of the tokens for a block's heads; m: of the first. The last warps come first, as the
   first ones have the keys. */
static __device__ __forceinline__ void take_heads(const team &w, const rssm_cuda_step &c, const slot_parts &slot, const head_place &p, const stretch &s, int at,
                                  int heads, const memory &m) {
    const rssm_geometry &g = c.geometry;
    const int warps = w.threads / 32, rows = heads * s.n, items = rows * (g.vector_decay ? 2 : 1);
    for (int k = warps - 1 - w.thread / 32; k < items; k += warps) {
        const int r = k < rows ? k : k - rows, i = r / s.n, t = r - i * s.n;
        const head_place head = head_at(g, p, i);
        const memory there = memory_of_head(m, c.layout, i);
        if (k < rows) {
            take_value(c, slot, head, s, t, there.value, at + t);
        } else {
            take_decay(c, slot, head, s, t, there.alpha + (at + t) * c.layout.width);
        }
    }
    for (int r = w.thread; r < rows; r += w.threads) {
        const int i = r / s.n, t = r - i * s.n;
        const memory there = memory_of_head(m, c.layout, i);
        take_gates(c, slot, head_at(g, p, i), s, t, there.alpha + at + t, there.beta + at + t);
    }
}

#endif
