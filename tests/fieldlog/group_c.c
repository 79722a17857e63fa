/* SPDX-License-Identifier: Apache-2.0 */
/* Group (c) of the field log: slots, cursors, padding, batching. */
#include "fieldlog/field.h"

#include <string.h>

/* A step of one token for each of `n` slots, in that order; slots < 0 are padding. */
static void one_each(fl *f, const int32_t *slots, int32_t n, int64_t position) {
    fl_row rows[FL_ROWS];
    for (int32_t i = 0; i < n; i++) {
        rows[i] = (fl_row){.slot = slots[i],
                           .tokens = 1,
                           .accepted = 1,
                           .stream = (uint64_t)(slots[i] + 1000),
                           .from = position};
    }
    fl_go(f, rows, n);
}

static void expect_same(fl *a, int32_t slot_a, fl *b, int32_t slot_b, const char *what) {
    int64_t bytes;
    const void *file = fl_export(b, slot_b, 0, &bytes);
    fl_unchanged(a, what, slot_a, file, bytes);
}

/* Index buffers longer than the batch with stale entries behind, one column of a wider table. */
static void C01_stale_indices(uint64_t isa) {
    static const int32_t sizes[] = {8, 1, 3, 8, 5};
    const rssm_layer_spec spec = fl_spec(FL_GDN);
    fl *f = fl_open(isa, &spec, &(rssm_cache_desc){0});
    int32_t table[3 * 12];
    int64_t bytes, expected[12] = {0};
    fl_reset(f, 0, 0); /* slot 0 is live and never scheduled */
    fl_step(f, 0, 0, 3, 0, 1, NULL);
    const void *zero = fl_export(f, 0, 0, &bytes);
    for (int32_t s = 1; s < 11; s++) {
        fl_reset(f, s, (uint64_t)s);
    }
    for (int32_t i = 0; i < 36; i++) {
        table[i] = i % 3 == 1 ? 1 + (i / 3) % 10 : 0;
    }
    for (int32_t step = 0; step < 5; step++) {
        const int32_t n = sizes[step];
        rssm_batch batch = {.struct_size = sizeof batch, .rows = n, .slots = table + 1, .slots_stride = 3};
        const int32_t accepted[8] = {1, 1, 1, 1, 1, 1, 1, 1};
        cb_feed *feed = cb_feed_make(f->p, &f->rng, n);
        for (int32_t i = 0; i < n; i++) {
            cb_feed_set(feed, i, fl_token(f, 0, (uint64_t)table[3 * i + 1], step));
        }
        cb_ok(f->box, rssm_cache_begin(f->box->cache, &batch, accepted, NULL, NULL), "begin");
        cb_ok(f->box, rssm_cache_decode(f->box->cache, 0, &batch, &feed->inputs, &feed->out, NULL), "decode");
        cb_feed_intact(feed);
        for (int32_t s = 1; s < 11; s++) {
            const rssm_slot_info info = fl_info(f, s);
            expected[s] += s <= n;
            CHK(info.position + info.pending == expected[s]);
        }
        fl_unchanged(f, "the slot nobody named", 0, zero, bytes);
    }
}

/* Padding rows in any position while slot 0 is live: as without them; their outputs are zero (fl_go looks). */
static void C02_padding_beside_slot_0(uint64_t isa) {
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        const rssm_layer_spec spec = fl_spec(shape);
        fl *f = fl_open(isa, &spec, &(rssm_cache_desc){0}), *plain = fl_twin(f, 0, 1);
        int64_t bytes;
        const int32_t only[3] = {-1, -1, -7}, solo = 0;
        fl_reset(f, 0, 0);
        fl_reset(plain, 0, 0);
        for (int32_t n = 0; n < 40; n++) {
            int32_t rows[4] = {-1, -1, -1, -1};
            rows[n % 4] = 0;
            chk_params("shape %d position %d", shape, n);
            one_each(f, rows, 4, n);
            one_each(plain, &solo, 1, n);
        }
        expect_same(f, 0, plain, 0, "with padding against without");
        const void *file = fl_export(f, 0, 0, &bytes);
        one_each(f, only, 3, 0);
        fl_unchanged(f, "a batch of padding", 0, file, bytes);
        chk_release();
    }
}

/* Eight slots, three scheduled, padded to 4 and 8 rows; with reserved slots as the padding, too. */
static void C03_parked_slots(uint64_t isa) {
    for (int32_t reserved = 0; reserved < 2; reserved++) {
        const rssm_layer_spec spec = fl_spec(FL_KDA);
        fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.slots = 10, .reserved_slots = reserved});
        void *before[8];
        int64_t bytes[8];
        size_t size, now;
        const void *null_slot = cb_box_snapshot(f->box, 0, &size);
        for (int32_t i = 0; i < 8; i++) {
            fl_reset(f, fl_slot(f, i), (uint64_t)i);
            fl_prefill(f, fl_slot(f, i), (uint64_t)i, 0, 10 + i, NULL);
            fl_step(f, fl_slot(f, i), 0, (uint64_t)i, 10, 1, NULL);
            fl_commit(f, fl_slot(f, i), 1);
            before[i] = fl_export(f, fl_slot(f, i), 0, &bytes[i]);
        }
        for (int32_t round = 0; round < 100; round++) {
            int32_t slots[8];
            for (int32_t i = 0; i < 8; i++) {
                slots[i] = i < 3 ? fl_slot(f, (i + round) % 3) : reserved ? 0 : -1;
            }
            one_each(f, slots, round % 2 ? 4 : 8, round);
        }
        for (int32_t i = 3; i < 8; i++) {
            chk_params("parked slot %d, %d reserved", i, reserved);
            fl_unchanged(f, "a parked slot", fl_slot(f, i), before[i], bytes[i]);
        }
        const void *after = cb_box_snapshot(f->box, 0, &now);
        CHK(reserved == 0 || memcmp(null_slot, after, size) == 0);
        chk_release();
    }
}

/* Dummy steps and preparation touch no state, also after slots were given to others. */
static void C04_dummy_steps(uint64_t isa) {
    const rssm_layer_spec spec = fl_spec(FL_MAMBA2);
    fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.layers = 3, .step_tokens = 4});
    int64_t bytes[5];
    void *file[5];
    for (int32_t i = 0; i < 5; i++) {
        fl_reset(f, fl_slot(f, i), 1);
        fl_prefill(f, fl_slot(f, i), (uint64_t)i, 0, 9, NULL);
    }
    for (int32_t i = 0; i < 3; i++) { /* freed and given again */
        fl_reset(f, fl_slot(f, i), 8 + (uint64_t)i);
        fl_step(f, fl_slot(f, i), 0, 20 + (uint64_t)i, 0, 3, NULL);
    }
    for (int32_t i = 0; i < 5; i++) {
        file[i] = fl_export(f, fl_slot(f, i), 0, &bytes[i]);
    }
    cb_ok(f->box, rssm_cache_prepare(f->box->cache, 16, 3), "prepare");
    fl_row dummy[6] = {{.slot = -1, .tokens = 4}, {.slot = -2, .tokens = 0}, {.slot = -1, .tokens = 1}};
    dummy[3] = (fl_row){.slot = -1, .tokens = 30, .prefill = true};
    fl_go(f, dummy, 4);
    for (int32_t i = 0; i < 5; i++) {
        fl_unchanged(f, "a dummy step", fl_slot(f, i), file[i], bytes[i]);
        CHK(fl_info(f, fl_slot(f, i)).pending == (i < 3 ? 3 : 0)); /* what is pending stays so, too */
    }
}

/* A slot full of poison or of another tenant's state: a new request equals a fresh one, for every way to begin.
 */
static void C06_old_tenants(uint64_t isa) {
    enum { L = 8 };
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        const rssm_layer_spec spec = fl_spec(shape);
        fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.window = L, .step_tokens = 4}),
           *fresh = fl_twin(f, 0, 1);
        const int32_t s = fl_slot(f, 2);
        for (int32_t length = 1; length <= L + 1; length++) {
            for (int32_t way = 0; way < 2; way++) {
                const int32_t t = fl_slot(fresh, 5);
                fl *both[2] = {f, fresh};
                const int32_t slots[2] = {s, t};
                chk_params("shape %d length %d way %d", shape, length, way);
                for (int32_t part = RSSM_PART_CHECKPOINT; part < RSSM_PARTS; part++) {
                    void *memory = cb_box_part(f->box, 0, part, s);
                    if (memory != NULL) {
                        chk_fill(memory, (size_t)cb_box_part_bytes(f->box, part),
                                 length % 2 ? CHK_NAN : CHK_HUGE);
                    }
                }
                for (int32_t i = 0; i < 2; i++) {
                    fl_reset(both[i], slots[i], 3);
                    for (int32_t n = 0; way == 1 && n < length; n++) {
                        fl_step(both[i], slots[i], 1, 5, n, 1, NULL);
                    }
                    if (way == 0) {
                        fl_prefill(both[i], slots[i], 5, 0, length, NULL);
                    }
                    fl_commit(both[i], slots[i], 1);
                }
                expect_same(f, s, fresh, t, "a used slot against a fresh one");
            }
        }
        double *y[3];
        for (int32_t i = 0; i < 3; i++) { /* A, B, A on one slot */
            y[i] = fl_outputs(f, 20);
            fl_reset(f, s, 1);
            fl_prefill(f, s, i == 1 ? 60 : 61, 0, 17, NULL);
            fl_step(f, s, 0, i == 1 ? 60 : 61, 17, 3, y[i]);
        }
        CHK(memcmp(y[0], y[2], (size_t)(3 * f->outs) * sizeof(double)) == 0);
        CHK(memcmp(y[0], y[1], (size_t)(3 * f->outs) * sizeof(double)) != 0);
        chk_release();
    }
}

/* Preempted inside the buffer, at a flush, inside an uncommitted window; resumed by re-prefill and by restore.
 */
static void C07_preemption(uint64_t isa) {
    static const int32_t stops[] = {3, 7, 8, 9, 13, 16};
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        const rssm_layer_spec spec = fl_spec(shape);
        fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.window = 8, .step_tokens = 4});
        for (size_t i = 0; i < 2 * sizeof stops / sizeof stops[0]; i++) {
            const int32_t stop = stops[i / 2], s = fl_slot(f, 0), open = i % 2 ? 3 : 0;
            double *straight = fl_outputs(f, 2), *restored = fl_outputs(f, 2), *again = fl_outputs(f, 2);
            int64_t bytes;
            chk_params("shape %d: stop at %d with %d pending", shape, stop, open);
            fl_reset(f, s, 0);
            for (int32_t n = 0; n < stop; n++) {
                fl_step(f, s, n > 0 ? 1 : 0, 2, n, 1, NULL);
            }
            fl_commit(f, s, 1);
            if (open > 0) {
                fl_step(f, s, 0, 2, stop, open, NULL); /* drafts that are lost with the slot */
            }
            const void *file = fl_export(f, s, 0, &bytes);
            fl_reset(f, s, 99); /* another request has the slot */
            fl_prefill(f, s, 88, 0, 11, NULL);
            const int32_t back = fl_slot(f, 1), cold = fl_slot(f, 2), plain = fl_slot(f, 3);
            cb_ok(f->box, rssm_cache_import(f->box->cache, back, file, bytes), "import");
            fl_reset(f, cold, 0);
            fl_prefill(f, cold, 2, 0, stop, NULL);
            fl_reset(f, plain, 0);
            for (int32_t n = 0; n < stop; n++) {
                fl_step(f, plain, n > 0 ? 1 : 0, 2, n, 1, NULL);
            }
            fl_step(f, plain, 1, 2, stop, 2, straight);
            fl_step(f, back, 0, 2, stop, 2, restored);
            fl_step(f, cold, 0, 2, stop, 2, again);
            CHK(memcmp(straight, restored, (size_t)(2 * f->outs) * sizeof(double)) == 0);
            fl_near("re-prefill", 2 * f->outs, again, straight, 1e-5);
        }
        chk_release();
    }
}

/* Row, stream and slot numbers are three permutations; every sequence follows its own reference. */
static void C08_row_is_not_slot(uint64_t isa) {
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        const rssm_layer_spec spec = fl_spec(shape);
        fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.step_tokens = 3});
        fl_ref ref[6];
        double *y[6], *exact = fl_outputs(f, 3);
        int32_t order[6] = {0, 1, 2, 3, 4, 5};
        for (int32_t i = 0; i < 6; i++) {
            ref[i] = fl_ref_make(f);
            y[i] = fl_outputs(f, 3);
            fl_reset(f, fl_slot(f, i), 100 - (uint64_t)i);
        }
        for (int32_t round = 0; round < 12; round++) {
            fl_row rows[6];
            chk_shuffle(&f->rng, order, 6);
            for (int32_t r = 0; r < 6; r++) {
                rows[r] = (fl_row){.slot = fl_slot(f, order[r]),
                                   .tokens = 3,
                                   .accepted = 3,
                                   .stream = (uint64_t)(order[r] * 5 % 6),
                                   .from = 3 * round,
                                   .y = y[order[r]]};
            }
            fl_go(f, rows, 6);
            for (int32_t i = 0; i < 6; i++) {
                chk_params("shape %d round %d sequence %d", shape, round, i);
                fl_ref_run(f, &ref[i], (uint64_t)(i * 5 % 6), 3 * round, 3, exact);
                fl_near("outputs", 3 * f->outs, y[i], exact, 1e-5);
            }
        }
        chk_release();
    }
}

/* K sequences that arrive and finish at random, against solo runs. */
static void C10_concurrent_sequences(uint64_t isa) {
    static const int32_t counts[] = {2, 3, 4, 8};
    for (int32_t c = 0; c < 4; c++) {
        const int32_t count = counts[c];
        const rssm_layer_spec spec = fl_spec(c % FL_KINDS);
        fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.layers = 2}), *solo = fl_twin(f, 0, 1);
        int32_t n[8] = {0}, length[8], start[8];
        for (int32_t i = 0; i < count; i++) {
            length[i] = chk_int(&f->rng, 5, 40);
            start[i] = chk_int(&f->rng, 0, 20);
        }
        for (int32_t time = 0; time < 60; time++) {
            fl_row rows[8];
            int32_t used = 0;
            for (int32_t i = count - 1; i >= 0; i--) {
                if (time == start[i]) {
                    fl_reset(f, fl_slot(f, i), (uint64_t)i);
                }
                if (time < start[i] || n[i] >= length[i]) {
                    continue;
                }
                const int32_t prompt = n[i] == 0 ? 4 : 1;
                rows[used++] = (fl_row){.slot = fl_slot(f, i),
                                        .tokens = prompt,
                                        .prefill = n[i] == 0,
                                        .accepted = n[i] == 4 ? 4 : 1,
                                        .stream = (uint64_t)i,
                                        .from = n[i]};
                n[i] += prompt;
            }
            fl_go(f, rows, used);
        }
        for (int32_t i = 0; i < count; i++) {
            fl_commit(f, fl_slot(f, i), 1);
            fl_reset(solo, fl_slot(solo, 0), (uint64_t)i);
            fl_prefill(solo, fl_slot(solo, 0), (uint64_t)i, 0, 4, NULL);
            for (int32_t k = 4; k < n[i]; k++) {
                fl_step(solo, fl_slot(solo, 0), 1, (uint64_t)i, k, 1, NULL);
            }
            fl_commit(solo, fl_slot(solo, 0), 1);
            chk_params("%d sequences, number %d", count, i);
            expect_same(f, fl_slot(f, i), solo, fl_slot(solo, 0), "among others against alone");
        }
        chk_release();
    }
}

const fl_test fl_group_c[] = {{"C01_stale_indices", C01_stale_indices},
                              {"C02_padding_beside_slot_0", C02_padding_beside_slot_0},
                              {"C03_parked_slots", C03_parked_slots},
                              {"C04_dummy_steps", C04_dummy_steps},
                              {"C06_old_tenants", C06_old_tenants},
                              {"C07_preemption", C07_preemption},
                              {"C08_row_is_not_slot", C08_row_is_not_slot},
                              {"C10_concurrent_sequences", C10_concurrent_sequences},
                              {NULL, NULL}};
