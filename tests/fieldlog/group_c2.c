/* SPDX-License-Identifier: Apache-2.0 */
/* Group (c) of the field log, continued: unequal lengths, bookkeeping, moves, life cycles. */
#include "fieldlog/field.h"

#include <string.h>

/* Prompts of 3, 17 and 40 tokens in one batch, with padding rows before, between and behind: the bits of solo
 * runs. */
static void C11_unequal_lengths(uint64_t isa) {
    static const int32_t lengths[] = {3, 17, 40};
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        for (int32_t order = 0; order < 6; order++) {
            const rssm_layer_spec spec = fl_spec(shape);
            fl *f = fl_open(isa, &spec, &(rssm_cache_desc){0}), *solo = fl_twin(f, 0, 1);
            fl_row rows[7];
            double *last = fl_outputs(f, 40);
            for (int32_t i = 0; i < 7; i++) { /* rows 0, 2, 4, 6 are padding of the longest length, or empty */
                const int32_t k = (i / 2 + order) % 3;
                rows[i] =
                    i % 2 == 0
                        ? (fl_row){.slot = -1, .tokens = order < 3 ? 40 - 13 * (i / 2) : 0, .prefill = true}
                        : (fl_row){.slot = fl_slot(f, k),
                                   .tokens = lengths[k],
                                   .prefill = true,
                                   .stream = (uint64_t)k,
                                   .y = fl_outputs(f, 40)};
                if (i % 2) {
                    fl_reset(f, fl_slot(f, k), 0);
                }
            }
            fl_go(f, rows, 7);
            for (int32_t i = 1; i < 7; i += 2) {
                const int32_t n = rows[i].tokens;
                int64_t bytes;
                fl_reset(solo, fl_slot(solo, 1), 0);
                fl_prefill(solo, fl_slot(solo, 1), rows[i].stream, 0, n, last);
                chk_params("shape %d order %d: %d tokens", shape, order, n);
                CHK(memcmp(last, rows[i].y, (size_t)(n * f->outs) * sizeof(double)) == 0);
                const void *file = fl_export(solo, fl_slot(solo, 1), 0, &bytes);
                fl_unchanged(f, "padded against solo", rows[i].slot, file, bytes);
            }
            chk_release();
        }
    }
}

/* Token count, position and reference agree for every slot after every call; layers move it together. */
static void C12_positions_agree(uint64_t isa) {
    const rssm_layer_spec spec = fl_spec(FL_GDN);
    fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.layers = 4, .step_tokens = 4});
    int64_t n[4] = {0};
    int32_t pending[4] = {0};
    for (int32_t i = 0; i < 4; i++) {
        fl_reset(f, fl_slot(f, i), (uint64_t)i);
    }
    for (int32_t round = 0; round < 60; round++) {
        fl_row rows[4];
        int32_t used = 0;
        for (int32_t i = 0; i < 4; i++) {
            if (chk_flip(&f->rng, 0.3)) {
                continue;
            }
            const bool prompt = chk_flip(&f->rng, 0.2);
            const int32_t kept = chk_int(&f->rng, 0, pending[i]), tokens = chk_int(&f->rng, 0, prompt ? 20 : 4);
            n[i] += kept;
            rows[used++] = (fl_row){.slot = fl_slot(f, i),
                                    .tokens = tokens,
                                    .prefill = prompt,
                                    .accepted = kept,
                                    .stream = (uint64_t)i,
                                    .from = n[i]};
            pending[i] = tokens;
        }
        fl_go(f, rows, used);
        for (int32_t r = 0; r < used; r++) { /* prompts are committed by their layers */
            for (int32_t i = 0; i < 4 && rows[r].prefill; i++) {
                if (rows[r].slot == fl_slot(f, i)) {
                    n[i] += pending[i];
                    pending[i] = 0;
                }
            }
        }
        for (int32_t i = 0; i < 4; i++) {
            const rssm_slot_info info = fl_info(f, fl_slot(f, i));
            chk_params("round %d slot %d", round, i);
            CHK(info.position == n[i] && info.pending == pending[i] && info.checkpoint <= n[i]);
        }
    }
}

/* Moves as an arbitrary map in one call: content ends as if all moved at once. */
static void C13_moves_at_once(uint64_t isa) {
    static const int32_t maps[][6] = {{1, 0, 2, 3, 4, 5}, {1, 2, 3, 4, 5, 0}, {0, 0, 1, 2, 3, 4},
                                      {3, 3, 3, 3, 3, 3}, {1, 2, 3, 4, 5, 5}, {5, 4, 3, 2, 1, 0},
                                      {2, 0, 1, 4, 5, 3}, {0, 1, 2, 3, 4, 5}};
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        const rssm_layer_spec spec = fl_spec(shape);
        fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.layers = 2});
        for (size_t m = 0; m < sizeof maps / sizeof maps[0]; m++) {
            int32_t src[6], dst[6], order[6] = {0, 1, 2, 3, 4, 5};
            void *file[6];
            int64_t bytes[6];
            chk_shuffle(&f->rng, order, 6);
            for (int32_t i = 0; i < 6; i++) {
                fl_reset(f, fl_slot(f, i), (uint64_t)i);
                fl_prefill(f, fl_slot(f, i), (uint64_t)i, 0, 3 + i, NULL);
                for (int32_t n = 0; n < i; n++) {
                    fl_step(f, fl_slot(f, i), n > 0 ? 1 : 0, (uint64_t)i, 3 + i + n, 1, NULL);
                }
                fl_commit(f, fl_slot(f, i), i > 0 ? 1 : 0);
                file[i] = fl_export(f, fl_slot(f, i), 0, &bytes[i]);
            }
            for (int32_t i = 0; i < 6; i++) {
                src[i] = fl_slot(f, maps[m][order[i]]);
                dst[i] = fl_slot(f, order[i]);
            }
            cb_ok(f->box, rssm_cache_copy(f->box->cache, 6, src, dst, NULL, NULL), "copy");
            for (int32_t i = 0; i < 6; i++) {
                chk_params("shape %d map %d slot %d", shape, (int)m, i);
                fl_unchanged(f, "a move", fl_slot(f, i), file[maps[m][i]], bytes[maps[m][i]]);
            }
        }
        chk_release();
    }
}

/* Window 8, every position and count: exactly one fold per crossing, with the state of exactly the multiple
 * of 8. */
static void C14_one_fold_per_crossing(uint64_t isa) {
    const rssm_layer_spec spec = fl_spec(FL_MAMBA2);
    fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.window = 8, .step_tokens = 4}), *c = fl_twin(f, 0, 1);
    const int32_t s = fl_slot(f, 0), t = fl_slot(c, 0);
    for (int32_t start = 0; start < 8; start++) {
        for (int32_t a = 0; a <= 4; a++) {
            rssm_cache_info before = {.struct_size = sizeof before}, after = before;
            fl_reset(f, s, 0);
            for (int32_t n = 0; n < 8 + start; n++) {
                fl_step(f, s, n > 0 ? 1 : 0, 3, n, 1, NULL);
            }
            fl_step(f, s, 1, 3, 8 + start, 4, NULL);
            cb_ok(f->box, rssm_cache_status(f->box->cache, &before), "status");
            fl_step(f, s, a, 3, 8 + start + a, 1,
                    NULL); /* begins before anybody looked at the last step's result */
            cb_ok(f->box, rssm_cache_status(f->box->cache, &after), "status");
            const int32_t multiple = (8 + start + a) / 8 * 8, crossed = multiple > 8 && start < 8;
            chk_params("position %d, %d kept", 8 + start, a);
            CHK(after.flushes - before.flushes == crossed);
            CHK(fl_info(f, s).checkpoint == multiple);
            fl_reset(c, t, 0);
            for (int32_t n = 0; n < multiple; n++) {
                fl_step(c, t, n > 0 ? 1 : 0, 3, n, 1, NULL);
            }
            fl_commit(c, t, 1);
            cb_ok(c->box, rssm_cache_flush(c->box->cache, 1, &t, NULL, NULL), "flush");
            CHK(memcmp(cb_box_part(f->box, 0, RSSM_PART_CHECKPOINT, s),
                       cb_box_part(c->box, 0, RSSM_PART_CHECKPOINT, t),
                       (size_t)f->elements * sizeof(float)) == 0);
        }
    }
}

/* Create, abort at each stage, fail, reset, destroy: nothing is left behind (the leak checker looks), no slot
   has two owners, exhaustion is the caller's. */
static void C15_life_cycles(uint64_t isa) {
    const rssm_layer_spec spec = fl_spec(FL_KDA);
    rssm_context *context = cb_context(isa, 1);
    for (int32_t i = 0; i < chk_repeat(2000); i++) {
        rssm_cache_desc desc = {.spec = &spec, .layers = 1, .slots = i % 7 == 0 ? 0 : 4, .step_tokens = 2};
        rssm_cache *cache = NULL;
        const int32_t slots[2] = {1, i % 5 == 0 ? 1 : 2}, stage = i % 6;
        const rssm_status made = rssm_cache_create(context, &desc, &cache);
        CHK((made == RSSM_OK) == (desc.slots > 0) && (made == RSSM_OK) == (cache != NULL));
        if (made != RSSM_OK || stage == 0) {
            rssm_cache_destroy(cache);
            continue;
        }
        CHK(rssm_cache_reset(cache, 2, slots, NULL, NULL, NULL) != RSSM_OK); /* no memory yet */
        CHK(rssm_cache_allocate(cache) == RSSM_OK);
        CHK(stage != 1 || rssm_cache_allocate(cache) == RSSM_ERROR_STATE);
        const bool twice = slots[0] == slots[1];
        const bool none = twice && !CB_DEVICE; /* a device takes one of the two */
        CHK((rssm_cache_reset(cache, 2, slots, NULL, NULL, NULL) == RSSM_OK) == !twice);
        rssm_batch batch = {.rows = 1, .slots = slots, .uniform_tokens = 2};
        const bool ready = !twice && stage > 2;
        CHK(rssm_cache_begin(cache, &batch, NULL, NULL, NULL) == (none ? RSSM_ERROR_STATE : RSSM_OK));
        CHK(!ready || rssm_cache_reset(cache, 1, slots, NULL, NULL, NULL) == RSSM_OK);
        rssm_cache_destroy(cache);
    }
    rssm_cache_destroy(NULL);
}

/* The cursor is the slot's: one step moves it once for all layers; preparing moves nothing; a forced flush of
   0, 1 and L - 1 records reads no other. */
static void C16_cursor_of_the_slot(uint64_t isa) {
    enum { L = 8 };
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        const rssm_layer_spec spec = fl_spec(shape);
        fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.layers = 4, .window = L});
        const int32_t s = fl_slot(f, 0), counts[] = {0, 1, L - 1};
        for (int32_t i = 0; i < 3; i++) {
            fl_ref ref = fl_ref_make(f);
            fl_reset(f, s, 0);
            cb_ok(f->box, rssm_cache_prepare(f->box->cache, 64, 2), "prepare");
            CHK(fl_info(f, s).position == 0);
            for (int32_t n = 0; n < L + counts[i]; n++) {
                fl_step(f, s, n > 0 ? 1 : 0, 3, n, 1, NULL);
                CHK(fl_info(f, s).position == n);
            }
            fl_commit(f, s, 1);
            cb_box_poison_dead(f->box, s, CHK_NAN);
            cb_ok(f->box, rssm_cache_flush(f->box->cache, 1, &s, NULL, NULL), "flush");
            fl_ref_run(f, &ref, 3, 0, L + counts[i], NULL);
            chk_params("shape %d: flush of %d", shape, counts[i]);
            CHK(fl_info(f, s).checkpoint == L + counts[i]);
            fl_states_near(f, "forced flush", s, &ref, 1e-5);
            fl_step(f, s, 0, 3, L + counts[i], 1, NULL); /* boundaries have not moved */
            CHK(fl_info(f, s).checkpoint == L + counts[i]);
        }
        chk_release();
    }
}

/* States transposed on the way out come back as they were, with unequal K and V; padding at every position. */
static void C17_layout_round_trip(uint64_t isa) {
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        const rssm_layer_spec spec = fl_spec(shape);
        fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.layers = 2, .step_tokens = 3});
        const int32_t s = fl_slot(f, 0), back = fl_slot(f, 1);
        int64_t bytes, plain_bytes;
        fl_reset(f, s, 3);
        for (int32_t i = 0; i < 9; i++) {
            fl_row rows[5];
            for (int32_t r = 0; r < 5; r++) {
                rows[r] = (fl_row){
                    .slot = r == i % 5 ? s : -1, .tokens = 1 + r % 3, .accepted = 1, .stream = 2, .from = i};
            }
            fl_go(f, rows, 5);
        }
        fl_commit(f, s, 1);
        const void *plain = fl_export(f, s, 0, &plain_bytes),
                   *file = fl_export(f, s, RSSM_EXPORT_STATE_KV, &bytes);
        chk_params("shape %d", shape);
        CHK(bytes == plain_bytes && memcmp(plain, file, (size_t)bytes) != 0);
        cb_ok(f->box, rssm_cache_import(f->box->cache, back, file, bytes), "import of [d_k][d_v] states");
        fl_unchanged(f, "out transposed and back", back, plain, plain_bytes);
        /* the state is in there, transposed: find its bytes as [d_k][d_v] */
        const float *state = cb_box_part(f->box, 0, RSSM_PART_CHECKPOINT, s);
        float *kv = chk_alloc((size_t)f->elements * sizeof *kv);
        for (int64_t h = 0; h < spec.value_heads; h++) {
            for (int64_t v = 0; v < spec.d_v; v++) {
                for (int64_t k = 0; k < spec.d_k; k++) {
                    kv[(h * spec.d_k + k) * spec.d_v + v] = state[(h * spec.d_v + v) * spec.d_k + k];
                }
            }
        }
        bool found = false;
        for (int64_t at = 0; at + f->elements * 4 <= bytes && !found; at += 4) {
            found = memcmp((const char *)file + at, kv, (size_t)f->elements * sizeof *kv) == 0;
        }
        CHK(found);
        chk_release();
    }
}

const fl_test fl_group_c2[] = {{"C11_unequal_lengths", C11_unequal_lengths},
                               {"C12_positions_agree", C12_positions_agree},
                               {"C13_moves_at_once", C13_moves_at_once},
                               {"C14_one_fold_per_crossing", C14_one_fold_per_crossing},
                               {"C15_life_cycles", C15_life_cycles},
                               {"C16_cursor_of_the_slot", C16_cursor_of_the_slot},
                               {"C17_layout_round_trip", C17_layout_round_trip},
                               {NULL, NULL}};
