/* SPDX-License-Identifier: Apache-2.0 */
/* Group (a) of the field log, continued: memory layouts, odd lengths, extreme weights; and one entry of group
 * (e). */
#include "fieldlog/field.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

/* A part of a cache in memory of the test's own, with any stride. */
static void bind_all(fl *f, int64_t padding, chk_poison poison) {
    rssm_cache *cache = f->box->cache;
    const int64_t slots = f->p->desc.slots;
    for (int32_t part = 0; part < RSSM_PARTS; part++) {
        rssm_part_info info;
        cb_ok(f->box, rssm_cache_layout(cache, part, &info), "layout");
        for (int32_t l = 0; info.rank > 0 && l < (info.per_layer ? f->p->desc.layers : 1); l++) {
            const int64_t stride = info.bytes + padding;
            unsigned char *base = chk_guard((size_t)((slots - 1) * stride + info.bytes), 16, CHK_RIGHT);
            chk_fill(base, (size_t)((slots - 1) * stride + info.bytes), poison);
            const cb_pool *old =
                part == RSSM_PART_CURSOR ? &f->box->cursor : &f->box->pools[l * RSSM_PARTS + part];
            for (int64_t s = 0; s < slots; s++) { /* moving the contents is the caller's business */
                memcpy(base + s * stride, old->base + s * old->stride, (size_t)info.bytes);
            }
            cb_ok(f->box, rssm_cache_bind(cache, l, part, base, stride), "bind");
            *(part == RSSM_PART_CURSOR ? &f->box->cursor : &f->box->pools[l * RSSM_PARTS + part]) =
                (cb_pool){base, stride, info.bytes};
        }
    }
}

/* Pages with odd padding between slots; the same handle with one stride, then another. */
static void A15_slot_strides(uint64_t isa) {
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        const rssm_layer_spec spec = fl_spec(shape);
        fl *dense = fl_open(isa, &spec, &(rssm_cache_desc){.step_tokens = 4, .layers = 2}),
           *moved = fl_twin(dense, 0, 1);
        fl *both[2] = {dense, moved};
        double *y[2] = {fl_outputs(dense, 80), fl_outputs(dense, 80)};
        int64_t bytes;
        bind_all(dense, 0, CHK_NAN);
        for (int32_t i = 0; i < 2; i++) {
            fl *f = both[i];
            int32_t n = 0;
            fl_reset(f, fl_slot(f, 0), 3);
            for (int32_t step = 0; step < 20; step++, n += 4) {
                if (i == 1 && step % 5 == 0) {
                    bind_all(f, 16 * (step + 1), step % 2 ? CHK_NAN : CHK_HUGE);
                }
                fl_step(f, fl_slot(f, 0), 4, 2, n, 4, y[i] + (int64_t)n * f->outs * 2);
            }
            fl_commit(f, fl_slot(f, 0), 4);
        }
        chk_params("shape %d", shape);
        CHK(memcmp(y[0], y[1], (size_t)(80 * 2 * dense->outs) * sizeof(double)) == 0);
        const void *file = fl_export(dense, fl_slot(dense, 0), 0, &bytes);
        fl_unchanged(moved, "another stride", fl_slot(moved, 0), file, bytes);
        chk_guards_intact();
        chk_release();
    }
}

/* The convolution's window stays in its rows (every pool ends at a guard page), and A_log = 0 means exp(-dt).
 */
static void A16_convolution_widths(uint64_t isa) {
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        for (int32_t width = 2; width <= RSSM_CONV_WIDTH_MAX; width++) {
            rssm_layer_spec spec = fl_spec(shape);
            spec.conv_width = width;
            fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.step_tokens = 6, .reach = width - 2});
            fl_ref ref = fl_ref_make(f);
            double *y = fl_outputs(f, 60), *exact = fl_outputs(f, 60);
            int32_t n = 3, last = 0;
            chk_params("shape %d width %d", shape, width);
            fl_reset(f, fl_slot(f, 0), 3);
            fl_prefill(f, fl_slot(f, 0), 5, 0, 3, y);
            while (n + 6 <= 60) {
                const int32_t t = 1 + n % 6;
                fl_step(f, fl_slot(f, 0), last, 5, n, t, y + n * f->outs);
                n += t;
                last = t;
            }
            fl_ref_run(f, &ref, 5, 0, n, exact);
            fl_near("outputs", n * f->outs, y, exact, 1e-5);
            cb_box_intact(f->box);
            chk_guards_intact();
            chk_release();
        }
    }
}

static void unit_dt(fl *f, int32_t layer, uint64_t stream, int64_t index, void *token) {
    const rssm_layer_spec *s = &f->p->spec;
    (void)layer, (void)stream;
    fl_fill(f, token, f->p->q, s->key_heads * s->d_k, 1);
    fl_fill(f, token, f->p->k, s->key_heads * s->d_k, index == 0 ? 1 : 0);
    fl_fill(f, token, f->p->v, s->value_heads * s->d_v, index == 0 ? 1 : 0);
    fl_fill(f, token, f->p->decay, s->value_heads * f->p->decay_count, 0.5);
}

/* One token that writes and one that only decays: what is left over is alpha. */
static double decay_left(uint64_t isa, int32_t shape, float A_log, float dt_bias) {
    static float logs[8], biases[64];
    rssm_layer_spec spec = fl_spec(shape);
    spec.conv_width = 0;
    for (int32_t i = 0; i < 64; i++) {
        logs[i % 8] = i % 8 == 1 ? A_log : 0.0f; /* head 1 is the odd one; the others have A = -1 */
        biases[i] = i / (shape == FL_KDA ? 16 : 1) == 1 ? dt_bias : 0.0f;
    }
    const rssm_layer_weights w = {.struct_size = sizeof w, .A_log = logs, .dt_bias = biases};
    fl *f = fl_open_with(isa, &spec, &(rssm_cache_desc){0}, 0, 1, &w);
    double *before = chk_alloc((size_t)f->elements * sizeof(double)),
           *after = chk_alloc((size_t)f->elements * sizeof(double));
    const int64_t head = spec.d_v * spec.d_k;
    f->edit = unit_dt;
    fl_reset(f, fl_slot(f, 0), 0);
    fl_step(f, fl_slot(f, 0), 0, 0, 0, 1, NULL);
    fl_commit(f, fl_slot(f, 0), 1);
    fl_state(f, fl_slot(f, 0), 0, before);
    fl_step(f, fl_slot(f, 0), 0, 0, 1, 1, NULL);
    fl_commit(f, fl_slot(f, 0), 1);
    fl_state(f, fl_slot(f, 0), 0, after);
    const double expected = before[0] * exp(-log1p(exp(0.5))); /* head 0: A = -1 */
    chk_params("shape %d A_log %g dt_bias %g", shape, (double)A_log, (double)dt_bias);
    fl_near("decay of A_log = 0", 1, &after[0], &expected, 1e-5);
    for (int64_t i = 0; i < f->elements; i++) {
        CHK(isfinite(after[i]));
    }
    const double left = after[head] / before[head];
    chk_release();
    return left;
}

static void A19_extreme_A_log(uint64_t isa) {
    static const int32_t shapes[] = {FL_MAMBA2, FL_GDN, FL_KDA};
    for (int32_t i = 0; i < 3; i++) {
        CHK(decay_left(isa, shapes[i], -INFINITY, 0) == 1);
        CHK(decay_left(isa, shapes[i], 88, 100) == 0);
        CHK(decay_left(isa, shapes[i], 88, 0) == 0);
        const double alpha = decay_left(isa, shapes[i], 0, 0), exact = exp(-log1p(exp(0.5)));
        fl_near("A_log = 0", 1, &alpha, &exact, 1e-5);
    }
}

/* One long prompt, many of one token, and one of none in the middle, from start states. */
static void A17_one_long_many_short(uint64_t isa) {
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        const rssm_layer_spec spec = fl_spec(shape);
        fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.slots = 40}), *solo = fl_twin(f, 0, 1);
        fl_row rows[33];
        const int32_t length = 4096 / fl_stride();
        double *y = fl_outputs(f, 1);
        alarm(20);
        for (int32_t i = 0; i < 33; i++) {
            const uint64_t stream = 100 + (uint64_t)i;
            fl_reset(f, fl_slot(f, i), 0);
            if (i != 5) { /* a start state; of zeros in one */
                fl_prefill(f, fl_slot(f, i), stream, 0, 5, NULL);
            }
            rows[i] = (fl_row){.slot = fl_slot(f, i),
                               .tokens = i == 0    ? length
                                         : i == 16 ? 0
                                                   : 1,
                               .prefill = true,
                               .stream = stream,
                               .from = 5,
                               .y = fl_outputs(f, i == 0 ? length : 1)};
        }
        fl_go(f, rows, 33);
        alarm(0);
        for (int32_t i = 1; i < 33; i++) {
            fl_reset(solo, fl_slot(solo, 0), 0);
            if (i != 5) {
                fl_prefill(solo, fl_slot(solo, 0), 100 + (uint64_t)i, 0, 5, NULL);
            }
            fl_prefill(solo, fl_slot(solo, 0), 100 + (uint64_t)i, 5, 1, y);
            chk_params("shape %d row %d", shape, i);
            CHK(i == 16 || memcmp(y, rows[i].y, (size_t)f->outs * sizeof *y) == 0);
        }
        CHK(fl_info(f, rows[16].slot).position == 5);
        CHK(fl_info(f, rows[0].slot).position == length + 5);
        chk_release();
    }
}

static void half_beta(fl *f, int32_t layer, uint64_t stream, int64_t index, void *token) {
    const rssm_layer_spec *s = &f->p->spec;
    (void)layer, (void)stream, (void)index;
    fl_fill(f, token, f->p->q, s->key_heads * s->d_k, 1);
    fl_fill(f, token, f->p->k, s->key_heads * s->d_k, 1);
    fl_fill(f, token, f->p->v, s->value_heads * s->d_v, 1);
    fl_fill(f, token, f->p->beta, s->value_heads, 0.5);
}

/* sigmoid(beta) stays fp32 with bf16 io, in a prompt, a step, a window and a flush alike. */
static void E03_beta_not_rounded(uint64_t isa) {
    for (int32_t shape = FL_GDN; shape <= FL_KDA_BOUNDED; shape++) {
        rssm_layer_spec spec = fl_spec(shape);
        spec.conv_width = 0;
        spec.d_k = 1; /* a normalised key of one channel is 1 */
        fl *f = fl_open_with(isa, &spec, &(rssm_cache_desc){.step_tokens = 3, .io_dtype = RSSM_DTYPE_BF16},
                             RSSM_DTYPE_BF16, 1, NULL);
        const double beta = 1 / (1 + exp(-0.5));
        f->edit = half_beta;
        for (int32_t way = 0; way < 4; way++) {
            const int32_t s = fl_slot(f, way);
            double *state = chk_alloc((size_t)f->elements * sizeof *state);
            chk_params("shape %d way %d", shape, way);
            fl_reset(f, s, 0);
            fl_go(f, &(fl_row){.slot = s, .tokens = way == 2 ? 3 : 1, .prefill = way == 0}, 1);
            fl_commit(f, s, 1);
            if (way == 3) {
                cb_ok(f->box, rssm_cache_flush(f->box->cache, 1, &s, NULL, NULL), "flush");
            }
            fl_state(f, s, 0, state);
            for (int64_t i = 0; i < f->elements; i++) {
                fl_near("beta", 1, &state[i], &beta, 1e-6);
            }
        }
        chk_release();
    }
}

const fl_test fl_group_a2[] = {{"A15_slot_strides", A15_slot_strides},
                               {"A16_convolution_widths", A16_convolution_widths},
                               {"A17_one_long_many_short", A17_one_long_many_short},
                               {"A19_extreme_A_log", A19_extreme_A_log},
                               {"E03_beta_not_rounded", E03_beta_not_rounded},
                               {NULL, NULL}};
