/* SPDX-License-Identifier: Apache-2.0 */
/* Group (d) of the field log, what concerns the cache: forks, saved sequences, trimming; and the slow regimes.
 */
#include "fieldlog/field.h"

#include <math.h>
#include <string.h>

/* A slot with `records` committed records beyond its checkpoint, of stream 1. */
static int32_t with_history(fl *f, int32_t slot, fl_ref *ref, int32_t records) {
    const int32_t window = f->p->desc.window;
    *ref = fl_ref_make(f);
    fl_reset(f, slot, 0);
    fl_prefill(f, slot, 1, 0, window, NULL);
    for (int32_t n = 0; n < records; n++) {
        fl_step(f, slot, n > 0 ? 1 : 0, 1, window + n, 1, NULL);
    }
    fl_commit(f, slot, records > 0 ? 1 : 0);
    fl_ref_run(f, ref, 1, 0, window + records, NULL);
    return window + records;
}

/* Goes on with another stream and compares. */
static void goes_on(fl *f, int32_t slot, const fl_ref *from, uint64_t stream, const char *what) {
    fl_ref ref = fl_ref_make(f);
    double *y = fl_outputs(f, 4), *exact = fl_outputs(f, 4);
    int32_t last = 0;
    fl_ref_copy(f, &ref, from);
    for (int32_t n = 0; n < 24; n += 4) {
        fl_step(f, slot, last, stream, n, 4, y);
        fl_ref_run(f, &ref, stream, n, 4, exact);
        fl_near(what, 4 * f->outs, y, exact, 1e-5);
        last = 4;
    }
    fl_commit(f, slot, last);
    fl_states_near(f, what, slot, &ref, 1e-5);
}

/* Donate or fork a slot with any number of records: parent and child both go on right. */
static void D01_fork_with_records(uint64_t isa) {
    enum { L = 8 };
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        const rssm_layer_spec spec = fl_spec(shape);
        for (int32_t w = 0; w < L; w++) {
            fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.window = L, .step_tokens = 4});
            const int32_t parent = fl_slot(f, 0), child = fl_slot(f, 1), whole = fl_slot(f, 2);
            const uint64_t id = 5;
            fl_ref ref;
            with_history(f, parent, &ref, w);
            chk_params("shape %d with %d records", shape, w);
            cb_ok(f->box, rssm_cache_copy(f->box->cache, 1, &parent, &child, &id, NULL), "fork");
            cb_ok(f->box, rssm_cache_materialize(f->box->cache, 1, &parent, &whole, NULL, &id, NULL),
                  "materialize");
            CHK(fl_info(f, child).id == 5 && fl_info(f, parent).id == 0);
            goes_on(f, child, &ref, 30, "child");
            goes_on(f, parent, &ref, 31, "parent");
            goes_on(f, whole, &ref, 32, "materialised child");
            chk_release();
        }
    }
}

/* A fork of a fork; a fork inside an uncommitted window takes the committed part only. */
static void D03_fork_of_a_fork(uint64_t isa) {
    enum { L = 8 };
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        const rssm_layer_spec spec = fl_spec(shape);
        for (int32_t w = 0; w < L; w++) {
            fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.window = L, .step_tokens = 4});
            const int32_t a = fl_slot(f, 0), b = fl_slot(f, 1), c = fl_slot(f, 2);
            fl_ref ref;
            const int32_t n = with_history(f, a, &ref, w);
            chk_params("shape %d with %d records", shape, w);
            fl_step(f, a, 0, 50, 0, 3, NULL);
            cb_ok(f->box, rssm_cache_copy(f->box->cache, 1, &a, &b, NULL, NULL), "fork inside a window");
            cb_ok(f->box, rssm_cache_copy(f->box->cache, 1, &b, &c, NULL, NULL), "fork of the fork");
            CHK(fl_info(f, b).position == n && fl_info(f, b).pending == 0);
            CHK(fl_info(f, a).position == n && fl_info(f, a).pending == 3);
            goes_on(f, b, &ref, 51, "fork");
            goes_on(f, c, &ref, 52, "fork of the fork");
            fl_commit(f, a, 2);
            fl_ref_run(f, &ref, 50, 0, 2, NULL);
            goes_on(f, a, &ref, 53, "parent");
            chk_release();
        }
    }
}

/* Save, another context and cache, load: the next steps give the same bits; another window gives the same
 * numbers. */
static void D11_save_and_load(uint64_t isa) {
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        const rssm_layer_spec spec = fl_spec(shape);
        fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.window = 16, .step_tokens = 4, .layers = 2}),
           *g = fl_twin(f, 0, 1);
        fl *other = fl_open_with(isa, &spec, &(rssm_cache_desc){.window = 5, .step_tokens = 2, .layers = 2}, 0,
                                 1, f->p->weights);
        for (int32_t w = 0; w < 16; w += 3) {
            fl_ref ref;
            double *y[3];
            fl *caches[3] = {f, g, other};
            int64_t bytes;
            with_history(f, fl_slot(f, 0), &ref, w);
            const void *file = fl_export(f, fl_slot(f, 0), 0, &bytes);
            for (int32_t i = 0; i < 3; i++) {
                const int32_t s = fl_slot(caches[i], i);
                y[i] = fl_outputs(f, 2);
                cb_ok(caches[i]->box, rssm_cache_import(caches[i]->box->cache, s, file, bytes), "import");
                fl_step(caches[i], s, 0, 77, 0, 2, y[i]);
            }
            chk_params("shape %d with %d records", shape, w);
            CHK(memcmp(y[0], y[1], (size_t)(4 * f->outs) * sizeof(double)) == 0);
            fl_near("another window", 4 * f->outs, y[2], y[0], 1e-5);
        }
        chk_release();
    }
}

/* The same prompt again after an answer: the same answer. */
static void D13_regenerate(uint64_t isa) {
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        const rssm_layer_spec spec = fl_spec(shape);
        fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.step_tokens = 4});
        const int32_t turn = fl_slot(f, 0), s = fl_slot(f, 1);
        double *y[3];
        fl_reset(f, turn, 4);
        fl_prefill(f, turn, 1, 0, 37, NULL);
        for (int32_t i = 0; i < 3; i++) { /* i = 1: another answer in between */
            y[i] = fl_outputs(f, 40);
            cb_ok(f->box, rssm_cache_copy(f->box->cache, 1, &turn, &s, NULL, NULL), "copy");
            for (int32_t n = 0; n < 40; n += 4) {
                fl_step(f, s, n > 0 ? 4 : 0, i == 1 ? 2 : 1, 37 + n, 4, y[i] + n * f->outs);
            }
        }
        chk_params("shape %d", shape);
        CHK(memcmp(y[0], y[2], (size_t)(40 * f->outs) * sizeof(double)) == 0);
        CHK(memcmp(y[0], y[1], (size_t)(40 * f->outs) * sizeof(double)) != 0);
        chk_release();
    }
}

/* Trim by any n: state, convolution and position together, or refused. */
static void D15_trim(uint64_t isa) {
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        for (int32_t trim = 0; trim <= 20; trim += fl_stride()) {
            const rssm_layer_spec spec = fl_spec(shape);
            fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.window = 16, .step_tokens = 4, .reach = 9});
            fl_ref ref;
            const int32_t s = fl_slot(f, 0), n = with_history(f, s, &ref, 12);
            const int64_t to = n - trim, oldest = fl_info(f, s).oldest;
            const rssm_status status = rssm_cache_rollback(f->box->cache, 1, &s, &to, NULL);
            chk_params("shape %d trim %d", shape, trim);
            CHK((status == RSSM_OK) == (to >= oldest) && (trim > 9 || status == RSSM_OK));
            fl_ref cold = fl_ref_make(f);
            fl_ref_run(f, &cold, 1, 0, (int32_t)(status == RSSM_OK ? to : n), NULL);
            CHK(fl_info(f, s).position == (status == RSSM_OK ? to : n));
            goes_on(f, s, &cold, 40, "after a trim");
            chk_release();
        }
    }
}

/* Four children of one parent in one batch with different tokens: each as if alone, the parent's bytes
 * unchanged. */
static void D17_four_children(uint64_t isa) {
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        const rssm_layer_spec spec = fl_spec(shape);
        fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.step_tokens = 4});
        const int32_t parent = fl_slot(f, 0);
        int32_t src[4], dst[4];
        fl_ref ref, child[4];
        double *y[4], *exact = fl_outputs(f, 4);
        size_t size, now;
        with_history(f, parent, &ref, 11);
        for (int32_t i = 0; i < 4; i++) {
            src[i] = parent;
            dst[i] = fl_slot(f, 4 - i);
            y[i] = fl_outputs(f, 4);
            child[i] = fl_ref_make(f);
            fl_ref_copy(f, &child[i], &ref);
        }
        const void *before = cb_box_snapshot(f->box, parent, &size);
        cb_ok(f->box, rssm_cache_copy(f->box->cache, 4, src, dst, (uint64_t[]){9, 8, 7, 6}, NULL), "fork");
        for (int32_t round = 0; round < 8; round++) {
            fl_row rows[4];
            for (int32_t i = 0; i < 4; i++) {
                rows[i] = (fl_row){.slot = dst[i],
                                   .tokens = 4,
                                   .accepted = round > 0 ? 4 : 0,
                                   .stream = 60 + (uint64_t)i,
                                   .from = 4 * round,
                                   .y = y[i]};
            }
            fl_go(f, rows, 4);
            for (int32_t i = 0; i < 4; i++) {
                chk_params("shape %d round %d child %d", shape, round, i);
                fl_ref_run(f, &child[i], 60 + (uint64_t)i, 4 * round, 4, exact);
                fl_near("child", 4 * f->outs, y[i], exact, 1e-5);
            }
        }
        const void *after = cb_box_snapshot(f->box, parent, &now);
        CHK(size == now && memcmp(before, after, size) == 0);
        chk_release();
    }
}

/* A hit lands in a slot whose rings hold somebody else's rows, or poison. */
static void D19_poisoned_rings(uint64_t isa) {
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        const rssm_layer_spec spec = fl_spec(shape);
        for (int32_t way = 0; way < 3; way++) {
            fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.step_tokens = 4});
            const int32_t saved = fl_slot(f, 0), s = fl_slot(f, 1);
            fl_ref ref;
            int64_t bytes;
            with_history(f, saved, &ref, 5);
            for (int32_t part = RSSM_PART_CHECKPOINT; part < RSSM_PARTS; part++) {
                void *memory = cb_box_part(f->box, 0, part, s);
                if (memory != NULL) {
                    chk_fill(memory, (size_t)cb_box_part_bytes(f->box, part), way == 1 ? CHK_HUGE : CHK_NAN);
                }
            }
            const void *file = fl_export(f, saved, way == 2 ? RSSM_EXPORT_CHECKPOINT_ONLY : 0, &bytes);
            const rssm_status status = way == 0 ? rssm_cache_copy(f->box->cache, 1, &saved, &s, NULL, NULL)
                                                : rssm_cache_import(f->box->cache, s, file, bytes);
            cb_ok(f->box, status, "hit");
            chk_params("shape %d way %d", shape, way);
            goes_on(f, s, &ref, 90, "a hit on a poisoned slot");
            chk_release();
        }
    }
}

/* ---- The slow regimes -------------------------------------------------------------------------------------
 */

static void slow_token(fl *f, int32_t layer, uint64_t stream, int64_t index, void *token) {
    const rssm_layer_spec *s = &f->p->spec;
    chk_rng rng = {stream * 7919u + (uint64_t)index * 104729u + (uint64_t)layer};
    const double g = stream == 0   ? -1e-5
                     : stream == 1 ? -5e-3
                                   : 0,
                 beta = stream == 0   ? 1e-5
                        : stream == 1 ? 0.5
                                      : 0.002;
    const double mean = stream == 0 ? 1 : 0;
    for (int32_t i = 0; i < s->key_heads * s->d_k; i++) {
        fl_put(f, token, f->p->q, i, mean + chk_normal(&rng));
        fl_put(f, token, f->p->k, i, mean + chk_normal(&rng));
    }
    for (int32_t i = 0; i < s->value_heads * s->d_v; i++) {
        fl_put(f, token, f->p->v, i, mean + chk_normal(&rng));
    }
    fl_fill(f, token, f->p->decay, s->value_heads, g);
    fl_fill(f, token, f->p->beta, s->value_heads, beta);
}

/* 8,192 committed tokens with drafts of every length rejected on the way. */
static void slow(uint64_t isa, int32_t shape, uint64_t stream, double bound) {
    rssm_layer_spec spec = fl_spec(shape);
    spec.gate = RSSM_GATE_LOG;
    spec.conv_width = 0;
    const rssm_layer_weights none = {.struct_size = sizeof none};
    fl *f = fl_open_with(isa, &spec, &(rssm_cache_desc){.step_tokens = 4}, 0, 1, &none);
    fl_ref ref = fl_ref_make(f);
    const int32_t s = fl_slot(f, 0), total = 8192 / fl_stride();
    int32_t n = 0, last = 0;
    f->edit = slow_token;
    f->reuse = true;
    fl_reset(f, s, 11);
    while (n + last < total) {
        n += last;
        const int32_t left = total - n, t = 1 + n % 4 < left ? 1 + n % 4 : left;
        fl_step(f, s, last, stream, n, t, NULL);
        last = n % 7 == 3 && t > 1 ? t - 1 : t;
    }
    fl_commit(f, s, last);
    fl_ref_run(f, &ref, stream, 0, total, NULL);
    chk_params("regime %d", (int)stream);
    fl_states_near(f, "state after 8192 tokens", s, &ref, bound);
}

static void drift_mamba2_slow_decay(uint64_t isa) {
    slow(isa, FL_MAMBA2, 0, 2e-4);
}
static void drift_gdn_moderate(uint64_t isa) {
    slow(isa, FL_GDN, 1, 1e-5);
}
static void drift_gdn_no_decay(uint64_t isa) {
    slow(isa, FL_GDN, 2, 1e-5);
}

const fl_test fl_group_d[] = {{"D01_fork_with_records", D01_fork_with_records},
                              {"D03_fork_of_a_fork", D03_fork_of_a_fork},
                              {"D11_save_and_load", D11_save_and_load},
                              {"D13_regenerate", D13_regenerate},
                              {"D15_trim", D15_trim},
                              {"D17_four_children", D17_four_children},
                              {"D19_poisoned_rings", D19_poisoned_rings},
                              {NULL, NULL}};
const fl_test fl_drift[] = {{"drift_mamba2_slow_decay", drift_mamba2_slow_decay},
                            {"drift_gdn_moderate", drift_gdn_moderate},
                            {"drift_gdn_no_decay", drift_gdn_no_decay},
                            {NULL, NULL}};
