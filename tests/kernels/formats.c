/* SPDX-License-Identifier: Apache-2.0 */
#include "formats.h"

#include <math.h>
#include <string.h>

#include "philox.h"

/* ---- Checkpoints --------------------------------------------------------------------------------------- */

void formats_expect_row(const cb_problem *p, int32_t layer, int64_t row, uint64_t id, int64_t position,
                        const float *plain, double *expected) {
    const rssm_layer_spec *s = &p->full;
    const int32_t head = (int32_t)(row / s->d_v);
    uint32_t random[RSSM_HEAD_DIM_MAX];
    const rssm_stream stream =
        rssm_stream_make(p->desc.seed, (uint32_t)(p->desc.first_layer + layer),
                         (uint32_t)(s->first_value_head + head), id, position);
    for (int32_t c = 0; c < s->d_k; c++) {
        random[c] = rssm_stream_bits(stream, (uint32_t)(row % s->d_v), (uint32_t)c);
    }
    rssm_ref_state_row(p->desc.checkpoint_dtype, s->d_k, plain,
                       p->desc.checkpoint_rounding == RSSM_ROUND_STOCHASTIC ? random : NULL, expected);
}

void formats_stored_row(const cb_box *box, int32_t layer, int32_t slot, int64_t row, double *stored) {
    const int32_t dtype = box->problem->desc.checkpoint_dtype, d_k = box->problem->full.d_k;
    const void *codes = cb_box_part(box, layer, RSSM_PART_CHECKPOINT, slot);
    double scale = 1.0;
    if (dtype == RSSM_DTYPE_F8) {
        const int32_t e = ((const uint8_t *)cb_box_part(box, layer, RSSM_PART_CHECKPOINT_SCALE, slot))[row];
        scale = e == 0 ? 0.0 : e == 255 ? (double)NAN : ldexp(1.0, e - 127);
    }
    for (int32_t c = 0; c < d_k; c++) {
        stored[c] = scale * rssm_ref_load(codes, dtype, row * d_k + c);
    }
}

/* ---- What is read --------------------------------------------------------------------------------------- */

void formats_readable(const cb_box *box, int32_t layer, int32_t slot, double *state) {
    const rssm_layer_spec *s = &box->problem->full;
    for (int64_t row = 0; row < (int64_t)s->value_heads * s->d_v; row++) {
        formats_stored_row(box, layer, slot, row, state + row * s->d_k);
    }
}

/* ---- Moves ----------------------------------------------------------------------------------------------- */

static void *export_slot(const cb_box *box, int32_t slot, uint32_t flags, int64_t *bytes) {
    *bytes = rssm_cache_export_bytes(box->cache, slot, flags);
    if (*bytes < 0) {
        chk_abandon("the slot cannot be exported");
    }
    void *file = chk_guard((size_t)*bytes, 8, CHK_RIGHT);
    cb_ok(box, rssm_cache_export(box->cache, slot, flags, file, *bytes, bytes), "export");
    return file;
}

static void same_state(const char *what, const cb_box *a, int32_t slot_a, const cb_box *b, int32_t slot_b) {
    static const int32_t parts[] = {RSSM_PART_CHECKPOINT, RSSM_PART_CHECKPOINT_SCALE, RSSM_PART_READ_COPY,
                                    RSSM_PART_READ_SCALE};
    for (int32_t layer = 0; layer < a->problem->desc.layers; layer++) {
        for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
            const void *x = cb_box_part(a, layer, parts[i], slot_a), *y = cb_box_part(b, layer, parts[i], slot_b);
            rssm_part_info info;
            cb_ok(a, rssm_cache_layout(a->cache, parts[i], &info), "layout");
            int64_t elements = info.rank > 0;
            for (int32_t r = 0; r < info.rank; r++) {
                elements *= info.shape[r];
            }
            if (x != NULL) {
                const int64_t shape[1] = {elements};
                chk_same_bits(what, x, y, (size_t)(info.dtype == RSSM_DTYPE_F32 ? 4 : info.dtype <= RSSM_DTYPE_BF16 ? 2 : 1),
                              1, shape);
            }
        }
    }
}

static cb_box *other_box(chk_rng *rng, const cb_box *box, int32_t checkpoint, int32_t rounding) {
    cb_problem *p = chk_alloc(sizeof *p);
    *p = *box->problem;
    p->desc.checkpoint_dtype = checkpoint;
    p->desc.checkpoint_rounding = rounding;
    return cb_box_make(rng, p, box->context, RSSM_METHOD_REPLAY, 1, 1, CHK_NAN);
}

/* Through fp32 and back, by nearest: what was stored is a number of the format, and stays it. */
static void check_detour(chk_rng *rng, const cb_box *box, int32_t slot) {
    const rssm_cache_desc *d = &box->problem->desc;
    cb_box *plain = other_box(rng, box, RSSM_DTYPE_F32, RSSM_ROUND_NEAREST);
    cb_box *back = other_box(rng, box, d->checkpoint_dtype, RSSM_ROUND_NEAREST);
    int64_t bytes;
    void *file = export_slot(box, slot, 0, &bytes);
    cb_ok(plain, rssm_cache_import(plain->cache, plain->slots[0], file, bytes), "import as fp32");
    const rssm_layer_spec *s = &box->problem->full;
    double *row = chk_alloc((size_t)s->d_k * sizeof *row);
    for (int32_t layer = 0; layer < d->layers && chk_ok(); layer++) {
        const float *got = cb_box_part(plain, layer, RSSM_PART_CHECKPOINT, plain->slots[0]);
        for (int64_t r = 0; r < (int64_t)s->value_heads * s->d_v && chk_ok(); r++) {
            formats_stored_row(box, layer, slot, r, row);
            for (int32_t c = 0; c < s->d_k; c++, got++) {
                if ((double)*got != row[c] && !(isnan(*got) && isnan(row[c]))) {
                    chk_fail("imported as %g, stored as %g", (double)*got, row[c]);
                    return;
                }
            }
        }
    }
    file = export_slot(plain, plain->slots[0], 0, &bytes);
    cb_ok(back, rssm_cache_import(back->cache, back->slots[0], file, bytes), "import from fp32");
    if (d->checkpoint_dtype != RSSM_DTYPE_F8) { /* a row's scale may come out smaller by 2 */
        same_state("after a detour through fp32", box, slot, back, back->slots[0]);
    }
}

void formats_check_moves(chk_rng *rng, const cb_box *box, int32_t slot) {
    if (!chk_ok()) {
        return;
    }
    const rssm_cache_desc *d = &box->problem->desc;
    cb_box *other = other_box(rng, box, d->checkpoint_dtype, d->checkpoint_rounding);
    const int32_t to = other->slots[0];
    for (uint32_t flags = 0; flags <= RSSM_EXPORT_STATE_KV; flags += RSSM_EXPORT_STATE_KV) {
        int64_t bytes, again;
        const void *file = export_slot(box, slot, flags, &bytes);
        cb_ok(other, rssm_cache_import(other->cache, to, file, bytes), "import");
        same_state("imported", box, slot, other, to);
        const void *second = export_slot(other, to, flags, &again);
        CHK(again == bytes && memcmp(file, second, (size_t)bytes) == 0);
    }
    check_detour(rng, box, slot);
    const int32_t copied = box->slots[1], made = box->slots[2];
    rssm_slot_info info = {.struct_size = sizeof info};
    cb_ok(box, rssm_cache_slot(box->cache, slot, &info), "slot");
    cb_ok(box, rssm_cache_copy(box->cache, 1, &slot, &copied, NULL, NULL), "copy");
    same_state("copied", box, slot, box, copied);
    /* materialised out of place, and flushed in place: the same rounding, as sequence and position are the same */
    cb_ok(box, rssm_cache_materialize(box->cache, 1, &slot, &made, NULL, &info.id, NULL), "materialize");
    cb_ok(box, rssm_cache_flush(box->cache, 1, &copied, NULL, NULL), "flush");
    same_state("materialised against flushed", box, made, box, copied);
}
