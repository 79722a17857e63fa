/* SPDX-License-Identifier: Apache-2.0 */
/* Group (e) of the field log: precision and quantised states. What a narrow checkpoint holds code for code is
 * tested in tests/kernels/kernel_formats.c. */
#include "fieldlog/field.h"

#include <math.h>
#include <string.h>

static const struct {
    int32_t checkpoint, rounding;
} states[] = {{RSSM_DTYPE_F32, 0},  {RSSM_DTYPE_F16, 0}, {RSSM_DTYPE_F16, 1}, {RSSM_DTYPE_BF16, 0},
              {RSSM_DTYPE_BF16, 1}, {RSSM_DTYPE_F8, 0},  {RSSM_DTYPE_F8, 1}};
static const int32_t copies[] = {RSSM_DTYPE_DEFAULT, RSSM_DTYPE_F16,  RSSM_DTYPE_BF16,
                                 RSSM_DTYPE_F8,      RSSM_DTYPE_INT8, RSSM_DTYPE_NVFP4};
enum { STATES = sizeof states / sizeof states[0], COPIES = sizeof copies / sizeof copies[0] };

static rssm_cache_desc formats(int32_t state, int32_t copy, int32_t window) {
    return (rssm_cache_desc){.window = window,
                             .checkpoint_dtype = states[state].checkpoint,
                             .checkpoint_rounding = states[state].rounding,
                             .read_copy_dtype = copies[copy],
                             .seed = 99};
}

/* Twenty turns with save and load between them: the error does not grow from the first ones to the last. */
static void E02_turns(uint64_t isa) {
    enum { TURNS = 20, TOKENS = 24, SOME = 6 };
    for (int32_t copy = 0; copy < COPIES; copy += COPIES - 1) {
        const rssm_layer_spec spec = fl_spec(FL_GDN);
        const rssm_cache_desc desc = formats(2, copy, 8);
        fl *f = fl_open(isa, &spec, &desc);
        fl_ref ref = fl_ref_make(f);
        const int32_t slot = fl_slot(f, 0);
        double *y = fl_outputs(f, 1), *exact = fl_outputs(f, 1), first = 0.0, last = 0.0;
        fl_reset(f, slot, 3);
        for (int32_t turn = 0; turn < TURNS; turn++) {
            double error = 0.0, size = 0.0;
            for (int32_t t = 0; t < TOKENS; t++) {
                fl_step(f, slot, t > 0, 1, turn * TOKENS + t, 1, y);
                fl_ref_run(f, &ref, 1, turn * TOKENS + t, 1, exact);
                for (int32_t i = 0; i < f->outs; i++) {
                    error += (y[i] - exact[i]) * (y[i] - exact[i]);
                    size += exact[i] * exact[i];
                }
            }
            fl_commit(f, slot, 1);
            int64_t bytes;
            void *file = fl_export(f, slot, 0, &bytes);
            cb_ok(f->box, rssm_cache_import(f->box->cache, slot, file, bytes), "import");
            first += turn < SOME ? sqrt(error / size) / SOME : 0.0;
            last += turn >= TURNS - SOME ? sqrt(error / size) / SOME : 0.0;
        }
        if (!(last <= 1.5 * first + 1e-5) || !(last < 0.2)) {
            chk_fail("copy %s: error %g in the first turns, %g in the last", rssm_dtype_name(copies[copy]), first, last);
        }
        chk_release();
    }
}

/* The same request draws the same in any slot and beside anybody, and no two flushes or sequences draw alike. */
static void E09_draws(uint64_t isa) {
    const rssm_layer_spec spec = fl_spec(FL_KDA);
    const rssm_cache_desc desc = formats(2, 0, 4);
    fl *f = fl_open(isa, &spec, &desc);
    const int32_t a = fl_slot(f, 0), b = fl_slot(f, 1), c = fl_slot(f, 2);
    fl_reset(f, a, 7);
    fl_reset(f, b, 7);
    fl_reset(f, c, 11); /* another sequence, of the same flush phase */
    for (int32_t t = 0; t < 14; t++) {
        const fl_row rows[] = {{.slot = b, .tokens = 1, .accepted = t > 0, .stream = 1, .from = t},
                               {.slot = c, .tokens = 1, .accepted = t > 0, .stream = 1, .from = t}};
        fl_go(f, rows, 2);
        fl_step(f, a, t > 0, 1, t, 1, NULL);
    }
    const size_t bytes = (size_t)cb_box_part_bytes(f->box, RSSM_PART_CHECKPOINT);
    const void *first = cb_box_part(f->box, 0, RSSM_PART_CHECKPOINT, a);
    CHK(memcmp(first, cb_box_part(f->box, 0, RSSM_PART_CHECKPOINT, b), bytes) == 0);
    CHK(memcmp(first, cb_box_part(f->box, 0, RSSM_PART_CHECKPOINT, c), bytes) != 0);
}

/* Whatever creation accepts runs three windows, with every layer kind. */
static void E10_combinations(uint64_t isa) {
    enum { L = 4 };
    for (int32_t i = 0; i < FL_KINDS * STATES * COPIES; i += fl_stride()) {
        const rssm_layer_spec spec = fl_spec(i % FL_KINDS);
        const rssm_cache_desc desc = formats(i / FL_KINDS % STATES, i / FL_KINDS / STATES, L);
        fl *f = fl_open(isa, &spec, &desc);
        fl_ref ref = fl_ref_make(f);
        const int32_t slot = fl_slot(f, 0);
        double *y = fl_outputs(f, 3 * L), *exact = fl_outputs(f, 3 * L);
        fl_reset(f, slot, 0);
        for (int32_t t = 0; t < 3 * L; t++) {
            fl_step(f, slot, t > 0, 1, t, 1, y + t * f->outs);
            fl_ref_run(f, &ref, 1, t, 1, exact + t * f->outs);
        }
        fl_near("a combination of formats", 3 * L * f->outs, y, exact, 0.3);
        chk_release();
    }
}

/* Rounded once per flush, not once per token, and counted. */
static void E11_once_per_flush(uint64_t isa) {
    const rssm_layer_spec spec = fl_spec(FL_GDN);
    const rssm_cache_desc desc = formats(1, 0, 16);
    fl *f = fl_open(isa, &spec, &desc);
    const int32_t slot = fl_slot(f, 0);
    rssm_cache_info info = {.struct_size = sizeof info};
    fl_reset(f, slot, 0);
    for (int32_t t = 0; t < 65; t++) {
        fl_step(f, slot, t > 0, 1, t, 1, NULL);
    }
    cb_ok(f->box, rssm_cache_status(f->box->cache, &info), "status");
    CHK(info.flushes == 4 && info.overflows == 0);
}

/* A layer whose outputs are S q and no more, so that rows of the state can be told apart. */
static rssm_layer_spec bare(void) {
    return (rssm_layer_spec){.struct_size = sizeof(rssm_layer_spec),
                             .kind = RSSM_MAMBA2,
                             .key_heads = 1,
                             .value_heads = 2,
                             .d_k = 40,
                             .d_v = 21,
                             .gate = RSSM_GATE_LOG};
}

/* NaN and infinity stay visible where they are, in every format; zero, subnormal and huge states are read as numbers. */
static void E10_special_states(uint64_t isa) {
    static const float specials[] = {NAN, INFINITY, 0.0f, 1e-40f, 1e34f};
    const rssm_layer_spec spec = bare();
    for (int32_t i = 0; i < COPIES * 5; i++) {
        if (specials[i % 5] > 1e5f && isfinite(specials[i % 5]) && copies[i / 5] == RSSM_DTYPE_F16) {
            continue; /* beyond the format */
        }
        const rssm_cache_desc desc = formats(0, i / 5, 4);
        fl *f = fl_open(isa, &spec, &desc);
        const int32_t slot = fl_slot(f, 0);
        const int64_t zero = 0;
        float *S = cb_box_part(f->box, 0, RSSM_PART_CHECKPOINT, slot);
        double *y = fl_outputs(f, 1);
        for (int64_t c = 0; c < f->elements; c++) {
            S[c] = i % 5 < 2 ? (float)(c % 7) - 3.0f : specials[i % 5];
        }
        if (i % 5 < 2) {
            S[3 * spec.d_k + 17] = specials[i % 5]; /* head 0, row 3 */
        }
        cb_ok(f->box, rssm_cache_adopt(f->box->cache, 1, &slot, NULL, &zero, NULL), "adopt");
        fl_step(f, slot, 0, 1, 0, 1, y);
        for (int32_t row = 0; row < f->outs; row++) {
            const bool special = i % 5 < 2 && row == 3;
            if (isfinite(y[row]) == special) {
                chk_fail("copy %s, state with %g: output %d is %g", rssm_dtype_name(desc.read_copy_dtype),
                         (double)specials[i % 5], row, y[row]);
            }
        }
        chk_release();
    }
}

/* Values beyond f16 become infinite at the flush, which is reported. */
static void E10_overflow(uint64_t isa) {
    const rssm_layer_spec spec = bare();
    const rssm_cache_desc narrow = formats(1, 0, 4), plain = formats(0, 0, 4);
    fl *from = fl_open(isa, &spec, &plain), *f = fl_open(isa, &spec, &narrow);
    const int32_t a = fl_slot(from, 0), b = fl_slot(f, 0);
    const int64_t zero = 0;
    float *S = cb_box_part(from->box, 0, RSSM_PART_CHECKPOINT, a);
    memset(S, 0, (size_t)from->elements * sizeof *S);
    S[5] = 70000.0f;
    S[6] = -65519.0f; /* rounds to the largest */
    S[7] = INFINITY;  /* is infinite already */
    cb_ok(from->box, rssm_cache_adopt(from->box->cache, 1, &a, NULL, &zero, NULL), "adopt");
    int64_t bytes;
    void *file = fl_export(from, a, 0, &bytes);
    cb_ok(f->box, rssm_cache_import(f->box->cache, b, file, bytes), "import");
    const uint16_t *got = cb_box_part(f->box, 0, RSSM_PART_CHECKPOINT, b);
    rssm_cache_info info = {.struct_size = sizeof info};
    cb_ok(f->box, rssm_cache_status(f->box->cache, &info), "status");
    CHK(got[5] == 0x7c00 && got[6] == 0xfbff && got[7] == 0x7c00 && info.overflows == 1);
}

const fl_test fl_group_e[] = {{"E02_turns", E02_turns},
                              {"E09_draws", E09_draws},
                              {"E10_combinations", E10_combinations},
                              {"E10_special_states", E10_special_states},
                              {"E10_overflow", E10_overflow},
                              {"E11_once_per_flush", E11_once_per_flush},
                              {NULL, NULL}};
