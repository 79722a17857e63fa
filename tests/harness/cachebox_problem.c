/* SPDX-License-Identifier: Apache-2.0 */
/* Problems: layer specs that look for trouble, cache descriptions, weights from the ranges of real models. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cachebox.h"

/* ---- Weights ------------------------------------------------------------------------------------------- */

static float *normals(chk_rng *rng, int64_t n, double mean, double deviation) {
    float *x = chk_alloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        x[i] = (float)(mean + deviation * chk_normal(rng));
    }
    return x;
}

static const float *maybe(chk_rng *rng, double probability, const float *x) {
    return chk_flip(rng, probability) ? x : NULL;
}

/* Keys that are not normalised have to be short: k k^T must not make the delta rule unstable. */
static double key_size(const rssm_layer_spec *full) {
    const bool wild = full->kind != RSSM_MAMBA2 && full->qk_norm == RSSM_QK_NORM_NONE;
    return wild ? 0.5 / sqrt((double)full->d_k) : 1.0;
}

static void draw_convolution(chk_rng *rng, const rssm_layer_spec *s, rssm_layer_weights *w) {
    const int64_t nk = (int64_t)s->key_heads * s->d_k, nv = (int64_t)s->value_heads * s->d_v;
    const double deviation = 1.0 / sqrt((double)s->conv_width), key = key_size(s);
    w->conv_q = normals(rng, nk * s->conv_width, 0.0, deviation);
    w->conv_k = normals(rng, nk * s->conv_width, 0.0, deviation);
    w->conv_v = normals(rng, nv * s->conv_width, 0.0, deviation);
    w->conv_bias_q = maybe(rng, 0.5, normals(rng, nk, 0.0, 0.3));
    w->conv_bias_k = maybe(rng, 0.5, normals(rng, nk, 0.0, 0.3 * key));
    w->conv_bias_v = maybe(rng, 0.5, normals(rng, nv, 0.0, 0.3));
}

static void draw_weights(chk_rng *rng, const rssm_layer_spec *s, rssm_layer_weights *w) {
    *w = (rssm_layer_weights){.struct_size = sizeof *w};
    if (s->conv_width) {
        draw_convolution(rng, s, w);
    }
    if (s->gate != RSSM_GATE_LOG) {
        const int64_t heads = s->value_heads;
        float *rate = chk_alloc((size_t)heads * sizeof *rate);
        const bool as_log = chk_flip(rng, 0.7);
        for (int64_t h = 0; h < heads; h++) {
            const double log_rate = chk_uniform(rng, -3.0, s->gate_lower_bound < 0.0f ? 1.0 : 2.8);
            rate[h] = (float)(as_log ? log_rate : -exp(log_rate));
        }
        *(as_log ? &w->A_log : &w->A) = rate;
        if (s->gate_lower_bound < 0.0f && chk_flip(rng, 0.3)) {
            w->A_log = NULL;
            w->A = NULL;
        }
        const int64_t biases = s->kind == RSSM_KDA ? heads * s->d_k : heads;
        const double mean = chk_flip(rng, 0.7) ? -4.0 : 0.0;
        w->dt_bias = maybe(rng, 0.8, normals(rng, biases, mean, 1.5));
    }
    if (s->kind == RSSM_MAMBA2) {
        w->D = maybe(rng, 0.7, normals(rng, s->value_heads, 0.5, 1.0));
    }
    if (s->out_norm == RSSM_OUT_NORM_GROUP) {
        w->out_norm = maybe(rng, 0.8, normals(rng, (int64_t)s->value_heads * s->d_v, 1.0, 0.3));
    } else if (s->out_norm == RSSM_OUT_NORM_HEAD_SILU || s->out_norm == RSSM_OUT_NORM_HEAD_SIGMOID) {
        w->out_norm = maybe(rng, 0.8, normals(rng, s->d_v, 1.0, 0.3));
    }
}

/* ---- Problems ------------------------------------------------------------------------------------------ */

static int64_t round_up(int64_t n, int64_t to) {
    return (n + to - 1) / to * to;
}

static int64_t dtype_bytes(int32_t dtype) {
    return dtype == RSSM_DTYPE_BF16 ? 2 : 4;
}

static void lay_out_token(cb_problem *p) {
    const rssm_layer_spec *s = &p->full;
    const int64_t io = dtype_bytes(p->desc.io_dtype), gate = dtype_bytes(p->gate_dtype);
    const int64_t nk = (int64_t)s->key_heads * s->d_k, nv = (int64_t)s->value_heads * s->d_v;
    p->decay_count = s->kind == RSSM_KDA ? s->d_k : 1;
    p->has_beta = s->kind != RSSM_MAMBA2 || s->gate == RSSM_GATE_LOG;
    p->has_z = s->out_norm != RSSM_OUT_NORM_NONE;
    int64_t at = 0;
    const struct {
        int64_t *offset, bytes;
    } fields[] = {{&p->q, nk * io},
                  {&p->k, nk * io},
                  {&p->v, nv * io},
                  {&p->decay, s->value_heads * p->decay_count * gate},
                  {&p->beta, p->has_beta ? s->value_heads * gate : 0},
                  {&p->z, p->has_z ? nv * io : 0}};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        *fields[i].offset = at;
        at = round_up(at + fields[i].bytes, 4);
    }
    p->token_bytes = at;
}

cb_problem *cb_problem_make(chk_rng *rng, const rssm_layer_spec *spec, const rssm_cache_desc *desc,
                            int32_t gate_dtype, int32_t out_dtype) {
    cb_problem *p = chk_alloc(sizeof *p);
    p->spec = *spec;
    p->spec.struct_size = sizeof p->spec;
    p->full = rssm_ref_resolve(&p->spec);
    p->desc = *desc;
    p->desc.struct_size = sizeof p->desc;
    p->desc.io_dtype = desc->io_dtype ? desc->io_dtype : RSSM_DTYPE_F32;
    p->desc.window = desc->window ? desc->window : 16;
    p->desc.step_tokens = desc->step_tokens ? desc->step_tokens : 1;
    p->gate_dtype = gate_dtype ? gate_dtype : p->desc.io_dtype;
    p->out_dtype = out_dtype ? out_dtype : p->desc.io_dtype;
    p->weights = chk_alloc((size_t)desc->layers * sizeof *p->weights);
    for (int32_t layer = 0; layer < desc->layers; layer++) {
        draw_weights(rng, &p->full, &p->weights[layer]);
    }
    lay_out_token(p);
    return p;
}

static const int32_t dimensions[] = {1,  1,  2,  3,  7,  11, 13, 15, 16, 16, 17,  23,  31,  32,
                                     33, 47, 48, 49, 63, 64, 64, 65, 80, 97, 128, 128, 129, 256};

static void draw_shape(chk_rng *rng, rssm_layer_spec *s, int64_t cost) {
    static const int32_t keys[] = {1, 1, 2, 2, 3, 4, 5, 8}, ratios[] = {1, 1, 2, 2, 3, 4, 6, 8, 17};
    do {
        s->key_heads = CHK_PICK(rng, keys);
        s->value_heads = s->key_heads * CHK_PICK(rng, ratios);
        s->d_k = CHK_PICK(rng, dimensions);
        s->d_v = CHK_PICK(rng, dimensions);
    } while ((int64_t)s->value_heads * s->d_k * s->d_v > cost ||
             s->value_heads * (s->d_v + (s->kind == RSSM_KDA ? s->d_k : 0)) + 2 * s->key_heads * s->d_k >
                 (cost > 9000 ? 2500 : 700));
    s->head_map = chk_flip(rng, 0.3) ? RSSM_HEAD_MAP_MODULO : RSSM_HEAD_MAP_BLOCKS;
}

static void draw_gates(chk_rng *rng, rssm_layer_spec *s) {
    static const int32_t mamba[] = {RSSM_GATE_RAW, RSSM_GATE_RAW, RSSM_GATE_DT, RSSM_GATE_LOG};
    s->gate = s->kind == RSSM_MAMBA2 ? CHK_PICK(rng, mamba)
              : chk_flip(rng, 0.7)   ? RSSM_GATE_RAW
                                     : RSSM_GATE_LOG;
    if (s->kind == RSSM_KDA && s->gate == RSSM_GATE_RAW && chk_flip(rng, 0.5)) {
        s->gate_lower_bound = chk_flip(rng, 0.7) ? -5.0f : -1.5f;
    }
    if (s->kind == RSSM_MAMBA2 && s->gate == RSSM_GATE_RAW && chk_flip(rng, 0.4)) {
        s->dt_min = chk_flip(rng, 0.6) ? 0.001f : 0.0f;
        s->dt_max = chk_flip(rng, 0.4) ? INFINITY : chk_flip(rng, 0.6) ? 0.1f : 0.0f;
    }
    if (s->kind != RSSM_MAMBA2 && chk_flip(rng, 0.3)) {
        s->beta_scale = chk_flip(rng, 0.7) ? 2.0f : 1.0f;
    }
}

static void draw_norms(chk_rng *rng, rssm_layer_spec *s) {
    if (chk_flip(rng, 0.3)) {
        s->qk_norm = chk_int(rng, RSSM_QK_NORM_NONE, RSSM_QK_NORM_L2);
    }
    s->qk_norm_eps = chk_flip(rng, 0.3) ? 1e-5f : 0.0f;
    s->q_scale = chk_flip(rng, 0.3) ? (float)chk_uniform(rng, 0.05, 2.0) : 0.0f;
    do {
        s->out_norm = chk_int(rng, RSSM_OUT_NORM_NONE, RSSM_OUT_NORM_GATE_SILU);
    } while (s->out_norm == RSSM_OUT_NORM_GROUP && s->head_map == RSSM_HEAD_MAP_MODULO && s->key_heads > 1);
    if (s->out_norm == RSSM_OUT_NORM_GROUP && chk_flip(rng, 0.6)) {
        int32_t groups;
        do {
            groups = chk_int(rng, 1, s->value_heads);
        } while (s->value_heads % groups || (groups % s->key_heads && s->key_heads % groups));
        s->out_norm_groups = groups;
    }
    s->out_norm_eps = chk_flip(rng, 0.3) ? 1e-5f : 0.0f;
}

cb_problem *cb_problem_draw(chk_rng *rng, int32_t kind, int32_t io_dtype, int64_t cost) {
    static const int32_t widths[] = {0, 0, 2, 3, 4, 4, 4, 5},
                         windows[] = {1, 2, 3, 5, 8, 15, 16, 16, 17, 31, 33, 64};
    static const int32_t steps[] = {1, 1, 2, 3, 4, 5, 8, 15, 16},
                         reaches[] = {0, 0, 0, 0, 1, 1, 7, 20, 20, 128};
    rssm_layer_spec s = {.struct_size = sizeof s, .kind = kind};
    draw_shape(rng, &s, cost);
    s.conv_width = CHK_PICK(rng, widths);
    s.conv_linear = s.conv_width && chk_flip(rng, 0.2);
    draw_gates(rng, &s);
    draw_norms(rng, &s);
    rssm_cache_desc d = {.struct_size = sizeof d, .io_dtype = io_dtype};
    d.layers = chk_flip(rng, 0.3) ? 2 : 1;
    d.reserved_slots = chk_int(rng, 0, 2);
    d.slots = d.reserved_slots + chk_int(rng, 4, 7);
    d.window = chk_flip(rng, 0.7) ? CHK_PICK(rng, windows) : chk_int(rng, 1, RSSM_WINDOW_MAX);
    d.step_tokens = chk_flip(rng, 0.7) ? CHK_PICK(rng, steps) : chk_int(rng, 1, RSSM_STEP_TOKENS_MAX);
    d.reach = CHK_PICK(rng, reaches);
    int32_t gate_dtype = chk_flip(rng, 0.5) ? io_dtype : RSSM_DTYPE_F32;
    if (kind == RSSM_KDA && s.gate == RSSM_GATE_RAW && chk_flip(rng, 0.4)) {
        d.record_gate = RSSM_RECORD_RAW_GATE;
        gate_dtype = io_dtype;
    }
    return cb_problem_make(rng, &s, &d, gate_dtype, chk_flip(rng, 0.5) ? RSSM_DTYPE_F32 : RSSM_DTYPE_BF16);
}

const char *cb_problem_text(const cb_problem *p) {
    static const char *const kinds[] = {"?", "mamba2", "gdn", "kda"}, *const gates[] = {"raw", "log", "dt"};
    static const char *const norms[] = {"none", "group", "head_silu", "head_sigmoid", "gate_silu"};
    const rssm_layer_spec *s = &p->full;
    char *text = chk_alloc(500);
    snprintf(text, 500,
             "%s Hk=%d Hv=%d dk=%d dv=%d%s conv=%d%s gate=%s%s%s qk=%d beta_scale=%g out=%s/%d io=%s "
             "gate_io=%s out_io=%s "
             "state=%s%s copy=%s/%d%d%d%d%d L=%d T=%d R=%d layers=%d slots=%d+%d",
             kinds[s->kind], s->key_heads, s->value_heads, s->d_k, s->d_v,
             s->head_map == RSSM_HEAD_MAP_MODULO ? " modulo" : "", s->conv_width,
             s->conv_linear ? " linear" : "", gates[s->gate], s->gate_lower_bound < 0.0f ? " bounded" : "",
             p->desc.record_gate == RSSM_RECORD_RAW_GATE ? " raw_records" : "", s->qk_norm,
             (double)s->beta_scale, norms[s->out_norm], s->out_norm_groups, rssm_dtype_name(p->desc.io_dtype),
             rssm_dtype_name(p->gate_dtype), rssm_dtype_name(p->out_dtype),
             rssm_dtype_name(p->desc.checkpoint_dtype), p->desc.checkpoint_rounding ? " stochastic" : "",
             rssm_dtype_name(p->desc.read_copy_dtype), p->desc.read_block_axis, p->desc.read_block, p->desc.read_scale_search,
             p->desc.read_rank, p->desc.read_diffusion, p->desc.window, p->desc.step_tokens,
             p->desc.reach, p->desc.layers, p->desc.reserved_slots,
             (int)p->desc.slots - p->desc.reserved_slots);
    return text;
}
