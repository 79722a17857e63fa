/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saved slots that are damaged, cut, lengthened, of another layer, or forged with a right checksum. Damage is
 * refused whole at every byte position; a forgery may be refused or taken, but never reads or writes where it
 * should not.
 */
#include "fieldlog/hostile.h"

#include <string.h>

#include "export.h"

static rssm_layer_spec small_spec(int32_t shape) {
    rssm_layer_spec s = fl_spec(shape);
    s.key_heads = s.value_heads = 1;
    s.d_k = 2;
    s.d_v = 3;
    s.conv_width = 2;
    return s;
}

/* A file with history, a slot to import it into that holds something else, and what that is. */
typedef struct target {
    fl *f;
    int32_t slot;
    unsigned char *file;
    void *before;
    int64_t bytes, before_bytes;
} target;

static target make_target(uint64_t isa, int32_t shape, const rssm_layer_spec *spec) {
    target t = {.f = fl_open(isa, spec, &(rssm_cache_desc){.window = 4, .step_tokens = 2})};
    const int32_t from = fl_slot(t.f, 0);
    (void)shape;
    t.slot = fl_slot(t.f, 1);
    for (int32_t i = 0; i < 2; i++) {
        const int32_t s = i == 0 ? from : t.slot;
        fl_reset(t.f, s, (uint64_t)i);
        for (int32_t n = 0; n < 5 + 2 * i; n++) {
            fl_step(t.f, s, n > 0 ? 1 : 0, (uint64_t)i, n, 1, NULL);
        }
        fl_commit(t.f, s, 1);
    }
    t.file = fl_export(t.f, from, 0, &t.bytes);
    t.before = fl_export(t.f, t.slot, 0, &t.before_bytes);
    return t;
}

static void expect_refusal(target *t, const void *bytes, int64_t n, const char *what) {
    const rssm_status status = rssm_cache_import(t->f->box->cache, t->slot, bytes, n);
    if (status != RSSM_ERROR_CORRUPT && status != RSSM_ERROR_MISMATCH) {
        chk_fail("%s: '%s'", what, rssm_status_string(status));
    }
    CHK(status == RSSM_OK || rssm_context_message(t->f->box->context)[0] != '\0');
    fl_unchanged(t->f, what, t->slot, t->before, t->before_bytes);
}

static void hostile_damaged_files(uint64_t isa) {
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        const rssm_layer_spec spec = small_spec(shape);
        target t = make_target(isa, shape, &spec);
        unsigned char *copy = chk_guard((size_t)t.bytes, 8, CHK_RIGHT);
        for (int64_t i = 0; i < t.bytes && chk_ok(); i++) {
            for (int32_t k = 0; k < 2; k++) {
                memcpy(copy, t.file, (size_t)t.bytes);
                copy[i] ^= (unsigned char)(k == 0 ? 1 << i % 8 : 0xff);
                chk_params("shape %d byte %d of %d", shape, (int)i, (int)t.bytes);
                expect_refusal(&t, copy, t.bytes, "a flipped byte");
            }
        }
        for (int64_t n = 0; n < t.bytes && chk_ok();
             n++) { /* the last readable byte lies before a guard page */
            unsigned char *cut = copy + t.bytes - n;
            memcpy(cut, t.file, (size_t)n);
            chk_params("shape %d cut to %d of %d", shape, (int)n, (int)t.bytes);
            expect_refusal(&t, cut, n, "a truncated file");
        }
        expect_refusal(&t, NULL, t.bytes, "no file");
        expect_refusal(&t, t.file, -1, "a negative size");
        expect_refusal(&t, t.file, 0, "an empty file");
        unsigned char *longer = chk_alloc((size_t)t.bytes + 8);
        memcpy(longer, t.file, (size_t)t.bytes);
        expect_refusal(&t, longer, t.bytes + 8, "a lengthened file");
        cb_ok(t.f->box, rssm_cache_import(t.f->box->cache, t.slot, t.file, t.bytes), "the file itself");
        chk_release();
    }
}

/* Every field of the spec that identifies a state. */
static void hostile_other_specs(uint64_t isa) {
    enum { VARIANTS = 9 };
    for (int32_t i = 0; i < VARIANTS; i++) {
        const rssm_layer_spec spec = small_spec(FL_GDN);
        target t = make_target(isa, FL_GDN, &spec);
        rssm_layer_spec other = spec;
        rssm_cache_desc desc = {.window = 4, .step_tokens = 2};
        other.kind = i == 0 ? RSSM_KDA : other.kind;
        other.d_k = i == 1 ? 3 : other.d_k;
        other.d_v = i == 2 ? 2 : other.d_v;
        other.value_heads = i == 3 ? 2 : other.value_heads;
        other.conv_width = i == 4 ? 3 : other.conv_width;
        other.qk_norm = i == 5 ? RSSM_QK_NORM_NONE : other.qk_norm;
        other.qk_norm_eps = i == 6 ? 1e-3f : other.qk_norm_eps;
        desc.layers = i == 7 ? 2 : 0;
        other.head_map = i == 8 ? RSSM_HEAD_MAP_MODULO : other.head_map;
        fl *f = fl_open(isa, &other, &desc);
        int64_t bytes;
        fl_reset(f, fl_slot(f, 0), 0);
        fl_step(f, fl_slot(f, 0), 0, 0, 0, 1, NULL);
        fl_commit(f, fl_slot(f, 0), 1);
        const void *file = fl_export(f, fl_slot(f, 0), 0, &bytes);
        chk_params("variant %d", i);
        expect_refusal(&t, file, bytes, "another layer's file");
        CHK(rssm_cache_import(t.f->box->cache, t.slot, file, bytes) == RSSM_ERROR_MISMATCH);
        chk_release();
    }
}

/* Header bytes changed and the checksum made to fit. */
static void hostile_forged_files(uint64_t isa) {
    static const unsigned char values[] = {0, 1, 2, 3, 5, 17, 64, 127, 128, 200, 255};
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        const rssm_layer_spec spec = small_spec(shape);
        target t = make_target(isa, shape, &spec);
        unsigned char *copy = chk_guard((size_t)t.bytes, 8, CHK_RIGHT);
        const int64_t header = (int64_t)sizeof(rssm_saved) + 8;
        for (int64_t i = 0; i < header; i++) {
            for (size_t k = 0; k < sizeof values; k++) {
                memcpy(copy, t.file, (size_t)t.bytes);
                copy[i] = values[k];
                const uint64_t sum = rssm_checksum(copy, t.bytes - 8);
                memcpy(copy + t.bytes - 8, &sum, 8);
                chk_params("shape %d header byte %d set to %d", shape, (int)i, values[k]);
                if (rssm_cache_import(t.f->box->cache, t.slot, copy, t.bytes) != RSSM_OK) {
                    fl_unchanged(t.f, "a refused forgery", t.slot, t.before, t.before_bytes);
                    continue;
                }
                const rssm_slot_info info = fl_info(t.f, t.slot); /* taken: it must be a slot like any other */
                CHK(info.state == 1 && info.position >= 0 && info.oldest <= info.position);
                CHK(info.checkpoint <= info.position && info.pending == 0);
                fl_step(t.f, t.slot, 0, 9, 0, 2, NULL);
                fl_commit(t.f, t.slot, 2);
                cb_box_intact(t.f->box);
                cb_ok(t.f->box, rssm_cache_import(t.f->box->cache, t.slot, t.before, t.before_bytes),
                      "put back");
            }
        }
        chk_guards_intact();
        chk_release();
    }
}

const fl_test fl_hostile_files[] = {{"hostile_damaged_files", hostile_damaged_files},
                                    {"hostile_other_specs", hostile_other_specs},
                                    {"hostile_forged_files", hostile_forged_files},
                                    {NULL, NULL}};
