/* SPDX-License-Identifier: Apache-2.0 */
#include "fieldlog/field.h"

#include <math.h>
#include <string.h>

#include "numbers.h"

rssm_layer_spec fl_spec(int32_t shape) {
    rssm_layer_spec s = {.struct_size = sizeof s, .kind = RSSM_MAMBA2, .conv_width = 4, .d_k = 16};
    if (shape == FL_MAMBA2) {
        s.key_heads = 4;
        s.value_heads = 8;
        s.d_v = 6;
        return s;
    }
    s.kind = shape == FL_GDN ? RSSM_GDN : RSSM_KDA;
    s.key_heads = 2;
    s.value_heads = shape == FL_GDN ? 4 : 2;
    s.d_v = 24;
    s.gate_lower_bound = shape == FL_KDA_BOUNDED ? -5.0f : 0.0f;
    return s;
}

int32_t fl_stride(void) {
    return chk_repeat(12) == 12 ? 1 : 4;
}

static fl *finish(fl *f, uint64_t isa, int32_t method, int32_t threads) {
    f->isa = isa;
    f->box = cb_box_make(&f->rng, f->p, cb_context(isa, threads), method, FL_ROWS, 4, CHK_NAN);
    f->outs = f->p->spec.value_heads * f->p->spec.d_v;
    f->elements = ref64_elements(f->p);
    f->spare = f->box->slots[f->box->slot_count - 1];
    f->token = chk_alloc((size_t)f->p->token_bytes);
    return f;
}

fl *fl_open_with(uint64_t isa, const rssm_layer_spec *spec, const rssm_cache_desc *desc, int32_t gate_dtype,
                 int32_t threads, const rssm_layer_weights *weights) {
    fl *f = chk_alloc(sizeof *f);
    rssm_cache_desc d = *desc;
    d.layers = d.layers != 0 ? d.layers : 1;
    d.slots = d.slots != 0 ? d.slots : 12;
    f->rng = chk_rng_make("fieldlog", (uint64_t)(spec->kind * 1000 + d.window * 20 + d.step_tokens));
    cb_problem *p = cb_problem_make(&f->rng, spec, &d, gate_dtype, d.io_dtype);
    for (int32_t l = 0; weights != NULL && l < d.layers; l++) {
        p->weights[l] = weights[l];
    }
    f->p = p;
    return finish(f, isa, d.method, threads);
}

fl *fl_open(uint64_t isa, const rssm_layer_spec *spec, const rssm_cache_desc *desc) {
    return fl_open_with(isa, spec, desc, 0, 1, NULL);
}

fl *fl_twin(const fl *f, int32_t method, int32_t threads) {
    fl *t = chk_alloc(sizeof *t);
    t->rng = f->rng;
    t->p = f->p;
    t->edit = f->edit;
    t->arg = f->arg;
    return finish(t, f->isa, method, threads);
}

int32_t fl_slot(const fl *f, int32_t i) {
    return f->box->slots[i];
}

/* ---- Tokens -----------------------------------------------------------------------------------------------
 */

const void *fl_token(fl *f, int32_t layer, uint64_t stream, int64_t index) {
    chk_rng rng = {(stream << 40) + ((uint64_t)index << 4) + (uint64_t)layer + 0x5bd1e995u};
    chk_u64(&rng);
    cb_token_draw(f->p, &rng, f->token);
    if (f->edit != NULL) {
        f->edit(f, layer, stream, index, f->token);
    }
    return f->token;
}

void fl_put(const fl *f, void *token, int64_t field, int64_t i, double x) {
    const bool gate = field == f->p->decay || (f->p->has_beta && field == f->p->beta);
    const float narrow = (float)x;
    if ((gate ? f->p->gate_dtype : f->p->desc.io_dtype) == RSSM_DTYPE_BF16) {
        const uint16_t h = rssm_bf16_of_f32(narrow);
        memcpy((unsigned char *)token + field + 2 * i, &h, sizeof h);
    } else {
        memcpy((unsigned char *)token + field + 4 * i, &narrow, sizeof narrow);
    }
}

void fl_fill(const fl *f, void *token, int64_t field, int64_t n, double x) {
    for (int64_t i = 0; i < n; i++) {
        fl_put(f, token, field, i, x);
    }
}

/* ---- Steps ------------------------------------------------------------------------------------------------
 */

static void fill_rows(fl *f, int32_t layer, const fl_row *rows, int32_t n, const int32_t *offsets,
                      cb_feed *feed) {
    for (int32_t r = 0; r < n; r++) {
        for (int32_t t = 0; t < rows[r].tokens; t++) {
            if (rows[r].nan || rows[r].slot < f->p->desc.reserved_slots) {
                chk_fill(f->token, (size_t)f->p->token_bytes, CHK_NAN);
                cb_feed_set(feed, offsets[r] + t, f->token);
            } else {
                cb_feed_set(feed, offsets[r] + t, fl_token(f, layer, rows[r].stream, rows[r].from + t));
            }
        }
    }
}

static void take_outputs(fl *f, int32_t layer, const fl_row *rows, int32_t n, const int32_t *offsets,
                         const cb_feed *feed) {
    double *y = chk_alloc((size_t)f->outs * sizeof *y);
    for (int32_t r = 0; r < n; r++) {
        for (int32_t t = 0; t < rows[r].tokens; t++) {
            cb_feed_output(feed, offsets[r] + t, y);
            if (rows[r].y != NULL) {
                memcpy(rows[r].y + ((int64_t)layer * rows[r].tokens + t) * f->outs, y,
                       (size_t)f->outs * sizeof *y);
            }
            for (int32_t i = 0; rows[r].slot < f->p->desc.reserved_slots && i < f->outs; i++) {
                CHK(y[i] == 0);
            }
        }
    }
}

static cb_feed *make_feed(fl *f, int32_t tokens) {
    if (!f->reuse || tokens >= 8) {
        return cb_feed_make(f->p, &f->rng, tokens);
    }
    if (f->feeds[tokens] == NULL) {
        f->feeds[tokens] = cb_feed_make(f->p, &f->rng, tokens);
    }
    return f->feeds[tokens];
}

rssm_status fl_try(fl *f, const fl_row *rows, int32_t n) {
    int32_t slots[FL_ROWS], offsets[FL_ROWS + 1] = {0}, accepted[FL_ROWS];
    uint8_t prefill[FL_ROWS];
    bool prompts = false;
    for (int32_t r = 0; r < n; r++) {
        slots[r] = rows[r].slot;
        offsets[r + 1] = offsets[r] + rows[r].tokens;
        accepted[r] = rows[r].accepted;
        prefill[r] = rows[r].prefill;
        prompts |= rows[r].prefill;
    }
    rssm_batch batch = {.struct_size = sizeof batch,
                        .rows = n,
                        .slots = slots,
                        .offsets = offsets,
                        .prefill = prompts ? prefill : NULL};
    rssm_status status = rssm_cache_begin(f->box->cache, &batch, accepted, NULL, NULL);
    for (int32_t l = 0; status == RSSM_OK && l < f->p->desc.layers && offsets[n] > 0; l++) {
        cb_feed *feed = make_feed(f, offsets[n]);
        fill_rows(f, l, rows, n, offsets, feed);
        cb_ok(f->box, rssm_cache_decode(f->box->cache, l, &batch, &feed->inputs, &feed->out, NULL), "decode");
        if (prompts) {
            cb_ok(f->box, rssm_cache_prefill(f->box->cache, l, &batch, &feed->inputs, &feed->out, NULL),
                  "prefill");
        }
        take_outputs(f, l, rows, n, offsets, feed);
        cb_feed_intact(feed);
    }
    return status;
}

void fl_go(fl *f, const fl_row *rows, int32_t n) {
    cb_ok(f->box, fl_try(f, rows, n), "begin");
}

void fl_reset(fl *f, int32_t slot, uint64_t id) {
    cb_ok(f->box, rssm_cache_reset(f->box->cache, 1, &slot, &id, NULL, NULL), "reset");
}

void fl_commit(fl *f, int32_t slot, int32_t accepted) {
    fl_go(f, &(fl_row){.slot = slot, .accepted = accepted}, 1);
}

void fl_prefill(fl *f, int32_t slot, uint64_t stream, int64_t from, int32_t tokens, double *y) {
    fl_go(f, &(fl_row){.slot = slot, .tokens = tokens, .prefill = true, .stream = stream, .from = from, .y = y},
          1);
    fl_commit(f, slot, tokens);
}

void fl_step(fl *f, int32_t slot, int32_t accepted, uint64_t stream, int64_t from, int32_t tokens, double *y) {
    fl_go(
        f,
        &(fl_row){.slot = slot, .tokens = tokens, .accepted = accepted, .stream = stream, .from = from, .y = y},
        1);
}

double *fl_outputs(const fl *f, int64_t tokens) {
    return chk_alloc((size_t)(tokens * f->outs * f->p->desc.layers) * sizeof(double));
}

/* ---- Looking ----------------------------------------------------------------------------------------------
 */

rssm_slot_info fl_info(const fl *f, int32_t slot) {
    rssm_slot_info info = {.struct_size = sizeof info};
    cb_ok(f->box, rssm_cache_slot(f->box->cache, slot, &info), "slot info");
    return info;
}

void fl_state(fl *f, int32_t slot, int32_t layer, double *state) {
    cb_ok(f->box, rssm_cache_materialize(f->box->cache, 1, &slot, &f->spare, NULL, NULL, NULL), "materialize");
    const float *x = cb_box_part(f->box, layer, RSSM_PART_CHECKPOINT, f->spare);
    for (int64_t i = 0; i < f->elements; i++) {
        state[i] = (double)x[i];
    }
}

void *fl_export(fl *f, int32_t slot, uint32_t flags, int64_t *bytes) {
    int64_t written = -1;
    *bytes = rssm_cache_export_bytes(f->box->cache, slot, flags);
    if (*bytes <= 0) {
        chk_abandon("slot %d cannot be exported: %s", slot, rssm_context_message(f->box->context));
    }
    void *file = chk_guard((size_t)*bytes, 8, CHK_RIGHT);
    cb_ok(f->box, rssm_cache_export(f->box->cache, slot, flags, file, *bytes, &written), "export");
    CHK(written == *bytes);
    return file;
}

bool fl_unchanged(fl *f, const char *what, int32_t slot, const void *file, int64_t bytes) {
    int64_t now;
    const void *again = fl_export(f, slot, 0, &now);
    if (now != bytes || memcmp(file, again, (size_t)bytes) != 0) {
        return chk_fail("%s: slot %d has changed", what, slot);
    }
    return true;
}

fl_ref fl_ref_make(const fl *f) {
    fl_ref ref;
    for (int32_t l = 0; l < f->p->desc.layers; l++) {
        ref.layer[l] = ref64_make(f->p, l);
    }
    return ref;
}

void fl_ref_copy(const fl *f, fl_ref *to, const fl_ref *from) {
    for (int32_t l = 0; l < f->p->desc.layers; l++) {
        ref64_copy(to->layer[l], from->layer[l]);
    }
}

void fl_ref_run(fl *f, fl_ref *ref, uint64_t stream, int64_t from, int32_t tokens, double *y) {
    for (int32_t l = 0; l < f->p->desc.layers; l++) {
        for (int32_t t = 0; t < tokens; t++) {
            ref64_token(ref->layer[l], fl_token(f, l, stream, from + t),
                        y == NULL ? NULL : y + ((int64_t)l * tokens + t) * f->outs);
        }
    }
}

bool fl_near(const char *what, int64_t n, const double *got, const double *exact, double tolerance) {
    double error = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(got[i])) {
            return chk_fail("%s: element %lld is %g, expected %g", what, (long long)i, got[i], exact[i]);
        }
        error += (got[i] - exact[i]) * (got[i] - exact[i]);
        size += exact[i] * exact[i];
    }
    if (!(sqrt(error) <= tolerance * sqrt(size))) {
        return chk_fail("%s: relative error %.3g, limit %.3g", what, sqrt(error / size), tolerance);
    }
    return true;
}

bool fl_states_near(fl *f, const char *what, int32_t slot, const fl_ref *ref, double tolerance) {
    double *state = chk_alloc((size_t)f->elements * sizeof *state);
    bool same = true;
    for (int32_t l = 0; l < f->p->desc.layers; l++) {
        fl_state(f, slot, l, state);
        same = fl_near(what, f->elements, state, ref->layer[l]->state, tolerance) && same;
    }
    return same;
}
