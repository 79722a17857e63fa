/* SPDX-License-Identifier: Apache-2.0 */
#include "formats.h"

#include "cache.h"

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

static double e4m3(const uint8_t *code) {
    return rssm_ref_load(code, RSSM_DTYPE_F8, 0);
}

/* One row of an nvfp4 copy, as copy.inl.h lays it out. */
static void nvfp4_row(const cb_box *box, int32_t layer, int32_t slot, int64_t row, double *out) {
    const rssm_geometry *g = &box->cache->geometry;
    const rssm_formats *f = &g->formats;
    const rssm_calibration *cal = &box->cache->constants[layer].read;
    const int32_t head = (int32_t)(row / g->d_v), r = (int32_t)(row % g->d_v);
    const uint8_t *codes = (const uint8_t *)cb_box_part(box, layer, RSSM_PART_READ_COPY, slot) + head * f->copy_head +
                           r * f->copy_row;
    const uint8_t *scales = (const uint8_t *)cb_box_part(box, layer, RSSM_PART_READ_SCALE, slot) + head * f->scale_head;
    float tail[1 + 2 * RSSM_READ_RANK_MAX];
    memcpy(tail, scales + f->scale_tail, (size_t)(1 + 2 * f->rank) * sizeof *tail);
    static const double numbers[] = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};
    for (int32_t c = 0; c < g->d_k; c++) {
        const uint8_t byte = codes[c / 32 * 16 + c % 16], code = c % 32 < 16 ? byte & 15 : byte >> 4;
        const uint8_t *s = scales + (f->block_values ? r / 16 * f->blocks + c : r * f->blocks + c / f->block);
        double x = numbers[code & 7] * e4m3(s) * (double)tail[0] * (code & 8 ? -1.0 : 1.0);
        for (int32_t i = 0; i < f->rank; i++) {
            const uint8_t *a = scales + f->scale_factors + i * (g->padded_v + g->padded_k), *b = a + g->padded_v;
            x += e4m3(a + r) * (double)tail[1 + 2 * i] * e4m3(b + c) * (double)tail[2 + 2 * i];
        }
        out[c] = x / (cal->scale != NULL ? (double)cal->scale[head * g->padded_k + c] : 1.0);
    }
}

static void copied_row(const cb_box *box, int32_t layer, int32_t slot, int64_t row, double *out) {
    const rssm_formats *f = &box->cache->geometry.formats;
    const int32_t d_k = box->problem->full.d_k;
    const void *codes = cb_box_part(box, layer, RSSM_PART_READ_COPY, slot),
               *scales = cb_box_part(box, layer, RSSM_PART_READ_SCALE, slot);
    if (f->copy == RSSM_DTYPE_NVFP4) {
        nvfp4_row(box, layer, slot, row, out);
        return;
    }
    double scale = f->copy == RSSM_DTYPE_INT8 ? rssm_ref_load(scales, RSSM_DTYPE_F32, row) : 1.0;
    if (f->copy == RSSM_DTYPE_F8) {
        const int32_t e = ((const uint8_t *)scales)[row];
        scale = e == 0 ? 0.0 : e == 255 ? (double)NAN : ldexp(1.0, e - 127);
    }
    for (int32_t c = 0; c < d_k; c++) {
        out[c] = scale * rssm_ref_load(codes, f->copy, row * d_k + c);
    }
}

void formats_readable(const cb_box *box, int32_t layer, int32_t slot, double *state) {
    const rssm_layer_spec *s = &box->problem->full;
    for (int64_t row = 0; row < (int64_t)s->value_heads * s->d_v; row++) {
        if (box->problem->desc.read_copy_dtype == RSSM_DTYPE_DEFAULT) {
            formats_stored_row(box, layer, slot, row, state + row * s->d_k);
        } else {
            copied_row(box, layer, slot, row, state + row * s->d_k);
        }
    }
}

/* What the plain nvfp4 format makes of a head: blocks along d_k, or along d_v of 16 rows of a column. */
static void plain_nvfp4(const rssm_formats *f, int32_t d_v, int32_t d_k, const float *x, double *out) {
    float largest = 0.0f, column[16];
    double rounded[16];
    for (int32_t i = 0; i < d_v * d_k; i++) {
        largest = isfinite(x[i]) ? fmaxf(largest, fabsf(x[i])) : largest;
    }
    for (int32_t i = 0; i < d_v && !f->block_values; i++) {
        for (int32_t c = 0; c < d_k; c += f->block) {
            rssm_ref_nvfp4_block(d_k - c < f->block ? d_k - c : f->block, x + i * d_k + c, largest, out + i * d_k + c);
        }
    }
    for (int32_t i = 0; i < d_v && f->block_values; i += 16) {
        const int32_t n = d_v - i < 16 ? d_v - i : 16;
        for (int32_t c = 0; c < d_k; c++) {
            for (int32_t j = 0; j < n; j++) {
                column[j] = x[(i + j) * d_k + c];
            }
            rssm_ref_nvfp4_block(n, column, largest, rounded);
            for (int32_t j = 0; j < n; j++) {
                out[(i + j) * d_k + c] = rounded[j];
            }
        }
    }
}

/* A head of the checkpoint, and what its copy should and does hold. */
typedef struct head_copy {
    float *x;
    double *stored, *expected, *got;
} head_copy;

static void read_head(const cb_box *box, int32_t layer, int32_t slot, int32_t head, const head_copy *h) {
    const rssm_layer_spec *s = &box->problem->full;
    const rssm_formats *f = &box->cache->geometry.formats;
    for (int32_t i = 0; i < s->d_v; i++) {
        const int64_t row = (int64_t)head * s->d_v + i;
        formats_stored_row(box, layer, slot, row, h->stored);
        copied_row(box, layer, slot, row, h->got + i * s->d_k);
        for (int32_t c = 0; c < s->d_k; c++) {
            h->x[i * s->d_k + c] = (float)h->stored[c];
        }
        if (f->copy == RSSM_DTYPE_INT8) {
            rssm_ref_int8_row(s->d_k, h->x + i * s->d_k, h->expected + i * s->d_k);
        } else if (f->copy != RSSM_DTYPE_NVFP4) {
            rssm_ref_state_row(f->copy, s->d_k, h->x + i * s->d_k, NULL, h->expected + i * s->d_k);
        }
    }
    if (f->copy == RSSM_DTYPE_NVFP4) {
        plain_nvfp4(f, s->d_v, s->d_k, h->x, h->expected);
    }
}

bool formats_check_copy(const cb_box *box, int32_t layer, int32_t slot) {
    const rssm_layer_spec *s = &box->problem->full;
    const rssm_formats *f = &box->cache->geometry.formats;
    const size_t n = (size_t)s->d_v * (size_t)s->d_k;
    const bool calibrated = box->cache->constants[layer].read.scale != NULL;
    const head_copy h = {chk_alloc(n * sizeof(float)), chk_alloc((size_t)s->d_k * sizeof(double)),
                         chk_alloc(n * sizeof(double)), chk_alloc(n * sizeof(double))};
    for (int32_t head = 0; head < s->value_heads && f->copy != RSSM_DTYPE_DEFAULT; head++) {
        double plain = 0.0, error = 0.0, size = 0.0;
        bool numbers = true;
        read_head(box, layer, slot, head, &h);
        for (size_t i = 0; i < n; i++) {
            const double x = (double)h.x[i];
            const bool same = h.got[i] == h.expected[i] || (isnan(h.got[i]) && isnan(h.expected[i]));
            if (!same && f->search + f->rank + f->diffusion == 0 && !calibrated) {
                return chk_fail("read copy, layer %d, head %d, element %d: %.9g is stored as %.9g, not %.9g", layer, head,
                                (int)i, x, h.got[i], h.expected[i]);
            }
            numbers = numbers && isfinite(x) && isfinite(h.got[i]);
            plain += (h.expected[i] - x) * (h.expected[i] - x);
            error += (h.got[i] - x) * (h.got[i] - x);
            size += x * x;
        }
        /* what is left of the largest after a rank-1 part may sit badly in its blocks: a small head proves nothing */
        if (numbers && !calibrated && n >= 512 && error > 1.1 * plain + 1e-12 * size) {
            return chk_fail("read copy, layer %d, head %d: square error %g, the plain format's is %g, of %g", layer, head,
                            error, plain, size);
        }
    }
    return true;
}

void formats_calibrate(chk_rng *rng, const cb_box *box) {
    enum { DIRECTIONS = 3 };
    const rssm_layer_spec *s = &box->problem->full;
    const size_t columns = (size_t)s->value_heads * (size_t)s->d_k;
    float *scale = chk_alloc(columns * sizeof *scale), *weight = chk_alloc(columns * sizeof *weight),
          *v = chk_alloc(columns * DIRECTIONS * sizeof *v);
    for (int32_t layer = 0; layer < box->problem->desc.layers; layer++) {
        for (size_t i = 0; i < columns; i++) {
            scale[i] = (float)exp(chk_normal(rng));
            weight[i] = (float)exp(chk_normal(rng));
        }
        for (size_t i = 0; i < columns * DIRECTIONS; i++) {
            v[i] = (float)(0.5 * chk_normal(rng));
        }
        rssm_read_calibration c = {.struct_size = sizeof c, .column_scale = scale, .column_weight = weight};
        c.directions = v;
        c.directions_count = DIRECTIONS;
        cb_ok(box, rssm_cache_set_read_calibration(box->cache, layer, &c), "calibration");
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
    cb_box *other = cb_box_make(rng, p, box->context, RSSM_METHOD_REPLAY, 1, 1, CHK_NAN);
    if (box->cache->constants[0].read.scale != NULL) {
        formats_calibrate(&(chk_rng){1}, other);
    }
    return other;
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
    cb_ok(box, rssm_cache_adopt(box->cache, 1, &copied, &info.id, &info.checkpoint, NULL), "adopt");
    same_state("a copy made again", box, slot, box, copied);
    cb_ok(box, rssm_cache_copy(box->cache, 1, &slot, &copied, NULL, NULL), "copy");
    /* materialised out of place, and flushed in place: the same rounding, as sequence and position are the same */
    cb_ok(box, rssm_cache_materialize(box->cache, 1, &slot, &made, NULL, &info.id, NULL), "materialize");
    cb_ok(box, rssm_cache_flush(box->cache, 1, &copied, NULL, NULL), "flush");
    same_state("materialised against flushed", box, made, box, copied);
}
