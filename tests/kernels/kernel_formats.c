/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Narrow states, every instruction set, layer kind and format: a sequence in random steps beside a conventional fp32 cache
 * (the twin) and the reference. After every flush the stored state must be, code for code, the rounding of what
 * the twin has at that position; the twin then goes on from the rounded state, so each rounding is checked by itself and
 * there is one per flush. The outputs must be those of the double reference over what is stored.
 *
 *     kernel_formats --list | --only 'kda*' | --seed 7 | --repeat 100 | --problem 42
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "formats.h"

enum { PROBLEMS = 7, TOKENS = 60 };

typedef struct variant {
    char name[64];
    uint64_t mask;
    int32_t kind, io_dtype, checkpoint, rounding;
} variant;

/* A sequence and what it must be. */
typedef struct run {
    const cb_problem *problem;
    chk_rng *rng;
    cb_box *box, *twin;
    int32_t slot, twin_slot;
    uint64_t id;
    int64_t position, checkpoint;                 /* committed; of the checkpoint */
    unsigned char *tokens[TOKENS + RSSM_ROWS_MAX]; /* [layers][token_bytes] each, from the checkpoint on */
    int32_t pending, prompt; /* tokens of the last step: a decode step's, or a prompt's, which are in position already */
    rssm_ref_layer **base, **work; /* [layers]: at the checkpoint; for outputs */
    cb_feed *twin_feed;
    double *exact, *scale, *got;
    int64_t flushes, outputs;
} run;

static void destroy_ref(void *layer) {
    rssm_ref_layer_destroy(layer);
}

static rssm_ref_layer **make_refs(const cb_problem *p) {
    rssm_ref_layer **refs = chk_alloc((size_t)p->desc.layers * sizeof(*refs));
    for (int32_t l = 0; l < p->desc.layers; l++) {
        refs[l] = rssm_ref_layer_create(&p->spec, &p->weights[l], p->desc.io_dtype);
        chk_defer(destroy_ref, refs[l]);
    }
    return refs;
}

static void ref_token(run *r, rssm_ref_layer **refs, int32_t layer, const void *token) {
    const rssm_layer_inputs in =
        cb_token_inputs(r->problem, (const char *)token + layer * r->problem->token_bytes);
    rssm_ref_layer_token(refs[layer], &in, 0, r->exact, r->scale);
}

static int32_t history(const run *r) {
    return (int32_t)(r->position - r->checkpoint);
}

/* Forgets the oldest n tokens. */
static void drop_tokens(run *r, int32_t n) {
    memmove(r->tokens, r->tokens + n, sizeof r->tokens - (size_t)n * sizeof r->tokens[0]);
    r->checkpoint += n;
}

/* The twin and the base references take the next n tokens. */
static void advance_base(run *r, int32_t n) {
    const rssm_batch batch = {.struct_size = sizeof batch, .rows = 1, .slots = &r->twin_slot};
    for (int32_t t = 0; t < n; t++) {
        cb_ok(r->twin, rssm_cache_begin(r->twin->cache, &batch, NULL, NULL, NULL), "twin begin");
        for (int32_t l = 0; l < r->problem->desc.layers; l++) {
            cb_feed_set(r->twin_feed, 0, r->tokens[t] + l * r->problem->token_bytes);
            cb_ok(r->twin,
                  rssm_cache_decode(r->twin->cache, l, &batch, &r->twin_feed->inputs, &r->twin_feed->out, NULL),
                  "twin decode");
            ref_token(r, r->base, l, r->tokens[t]);
        }
    }
}

/* The twin and the references go on from their state as the checkpoint holds it. */
static void round_base(run *r) {
    const rssm_layer_spec *s = &r->problem->full;
    for (int32_t l = 0; l < r->problem->desc.layers; l++) {
        float *plain = cb_box_part(r->twin, l, RSSM_PART_CHECKPOINT, r->twin_slot);
        double *state = rssm_ref_layer_state(r->base[l]);
        for (int64_t row = 0; row < (int64_t)s->value_heads * s->d_v; row++, plain += s->d_k, state += s->d_k) {
            formats_expect_row(r->problem, l, row, r->id, r->checkpoint, plain, state);
            for (int32_t c = 0; c < s->d_k; c++) {
                plain[c] = (float)state[c];
            }
        }
    }
}

/* What is stored must be that state. After a prompt it is the state instead. */
static void check_checkpoint(run *r, bool exact) {
    const rssm_layer_spec *s = &r->problem->full;
    double *stored = chk_alloc((size_t)s->d_k * sizeof *stored);
    for (int32_t l = 0; l < r->problem->desc.layers; l++) {
        float *plain = cb_box_part(r->twin, l, RSSM_PART_CHECKPOINT, r->twin_slot);
        double *state = rssm_ref_layer_state(r->base[l]);
        for (int64_t row = 0; row < (int64_t)s->value_heads * s->d_v; row++, plain += s->d_k, state += s->d_k) {
            formats_stored_row(r->box, l, r->slot, row, stored);
            for (int32_t c = 0; c < s->d_k; c++) {
                const bool same = state[c] == stored[c] || (isnan(state[c]) && isnan(stored[c]));
                if (exact && !same) {
                    chk_fail("checkpoint at %lld, layer %d, row %d, column %d is %.9g, not %.9g",
                             (long long)r->checkpoint, l, (int)row, c, stored[c], state[c]);
                    return;
                }
                state[c] = stored[c];
                plain[c] = (float)stored[c];
            }
        }
    }
}

/* Committed history goes into the checkpoint, boundary by boundary. */
static void fold_unseen(run *r, int64_t to) {
    while (r->checkpoint < to) {
        const int64_t boundary = rssm_boundary(r->checkpoint, r->id, r->problem->desc.window) + r->problem->desc.window;
        const int32_t n = (int32_t)((boundary < to ? boundary : to) - r->checkpoint);
        advance_base(r, n);
        drop_tokens(r, n);
        round_base(r);
        r->flushes++;
    }
}

static void expect_fold(run *r, int64_t to) {
    fold_unseen(r, to);
    check_checkpoint(r, true);
}

/* Outputs of the step's tokens over what the cache reads. A state that overflowed its format has infinities, and what
   becomes of those depends on decays that are 0 in fp32 alone: nothing is compared then. */
static void check_outputs(run *r, const cb_feed *feed, int32_t layer, int32_t tokens, bool prefill) {
    const rssm_layer_spec *s = &r->problem->full;
    rssm_ref_layer_copy(r->work[layer], r->base[layer]);
    double *state = rssm_ref_layer_state(r->work[layer]);
    if (!prefill) {
        formats_readable(r->box, layer, r->slot, state);
    }
    for (int64_t i = 0; i < (int64_t)s->value_heads * s->d_v * s->d_k; i++) {
        if (!isfinite(state[i])) {
            return;
        }
    }
    r->outputs++;
    for (int32_t t = 0; t < history(r); t++) {
        ref_token(r, r->work, layer, r->tokens[t]);
    }
    for (int32_t t = 0; t < tokens && chk_ok(); t++) {
        ref_token(r, r->work, layer, r->tokens[history(r) + t]);
        cb_feed_output(feed, t, r->got);
        for (int32_t h = 0; h < s->value_heads; h++) {
            char what[96];
            snprintf(what, sizeof what, "%soutput of token %d of %d at %lld, layer %d, head %d",
                     prefill ? "prefill " : "", t, tokens, (long long)r->position, layer, h);
            chk_close(what, s->d_v, r->exact + h * s->d_v, r->scale + h * s->d_v, r->got + h * s->d_v,
                      prefill ? 2e-5 : 4e-6, r->problem->out_dtype);
        }
    }
}

static void draw_tokens(run *r, int32_t tokens) {
    const cb_problem *p = r->problem;
    for (int32_t l = 0; l < p->desc.layers; l++) {
        rssm_ref_layer_copy(r->work[l], r->base[l]);
        for (int32_t t = 0; t < history(r); t++) {
            ref_token(r, r->work, l, r->tokens[t]);
        }
    }
    for (int32_t t = 0; t < tokens; t++) {
        unsigned char *token = r->tokens[history(r) + t] = chk_alloc((size_t)(p->desc.layers * p->token_bytes));
        for (int32_t l = 0; l < p->desc.layers; l++) {
            cb_token_draw(p, r->rng, token + l * p->token_bytes);
            cb_token_settle(p, r->work[l], r->rng, token + l * p->token_bytes);
            ref_token(r, r->work, l, token);
        }
    }
}

static void step(run *r, int32_t tokens, bool prefill) {
    const cb_problem *p = r->problem;
    const int32_t accepted = chk_flip(r->rng, 0.5) ? r->pending : chk_int(r->rng, 0, r->pending);
    const int32_t offsets[2] = {0, tokens};
    const uint8_t flag = prefill;
    const rssm_batch batch = {
        .struct_size = sizeof batch, .rows = 1, .slots = &r->slot, .offsets = offsets, .prefill = &flag};
    const int32_t count = r->prompt > 0 ? r->prompt : accepted;
    r->position += accepted;
    cb_ok(r->box, rssm_cache_begin(r->box->cache, &batch, &count, NULL, NULL), "begin");
    const int64_t boundary = rssm_boundary(r->position, r->id, p->desc.window);
    draw_tokens(r, tokens);
    cb_feed *feeds[4];
    for (int32_t l = 0; l < p->desc.layers; l++) {
        feeds[l] = cb_feed_make(p, r->rng, tokens);
        for (int32_t t = 0; t < tokens; t++) {
            cb_feed_set(feeds[l], t, r->tokens[history(r) + t] + l * p->token_bytes);
        }
        cb_ok(r->box,
              prefill ? rssm_cache_prefill(r->box->cache, l, &batch, &feeds[l]->inputs, &feeds[l]->out, NULL)
                      : rssm_cache_decode(r->box->cache, l, &batch, &feeds[l]->inputs, &feeds[l]->out, NULL),
              "layer");
    }
    /* a prompt folds all history first, and what its checkpoint was then is gone: only the references know */
    if (prefill) {
        fold_unseen(r, r->position);
    } else if (boundary > r->checkpoint) {
        expect_fold(r, boundary);
    }
    for (int32_t l = 0; l < p->desc.layers && chk_ok(); l++) {
        formats_check_copy(r->box, l, r->slot);
        check_outputs(r, feeds[l], l, tokens, prefill);
    }
    r->pending = prefill ? 0 : tokens;
    r->prompt = prefill ? tokens : 0;
    if (prefill) { /* a scan's state is the twin's to tolerance only, so the twin starts again from it */
        advance_base(r, tokens);
        r->position += tokens;
        drop_tokens(r, tokens);
        check_checkpoint(r, false);
        r->flushes++;
    }
}

static void force_flush(run *r) {
    const int64_t to = r->checkpoint + chk_int(r->rng, 0, history(r));
    cb_ok(r->box, rssm_cache_flush(r->box->cache, 1, &r->slot, &to, NULL), "flush");
    expect_fold(r, to);
}

static run *make_run(chk_rng *rng, const variant *v, const cb_problem *p) {
    run *r = chk_alloc(sizeof *r);
    cb_problem *plain = chk_alloc(sizeof *plain);
    *plain = *p;
    plain->desc.checkpoint_dtype = RSSM_DTYPE_F32;
    plain->desc.checkpoint_rounding = RSSM_ROUND_NEAREST;
    plain->desc.read_copy_dtype = RSSM_DTYPE_DEFAULT;
    plain->desc.read_block_axis = plain->desc.read_block = plain->desc.read_scale_search = 0;
    plain->desc.read_rank = plain->desc.read_diffusion = 0;
    rssm_context *context = cb_context(v->mask, 1);
    r->problem = p;
    r->rng = rng;
    r->box = cb_box_make(rng, p, context, RSSM_METHOD_REPLAY, 1, 1, CHK_SIGNALLING);
    r->twin = cb_box_make(rng, plain, context, RSSM_METHOD_CONVENTIONAL, 1, 1, CHK_SIGNALLING);
    r->slot = r->box->slots[0];
    r->twin_slot = r->twin->slots[0];
    r->id = chk_flip(rng, 0.5) ? chk_u64(rng) : (uint64_t)chk_int(rng, 0, 99);
    r->position = r->checkpoint = chk_flip(rng, 0.5) ? 0 : (INT64_C(1) << 33) + chk_int(rng, 0, 99);
    r->base = make_refs(p);
    r->work = make_refs(p);
    r->twin_feed = cb_feed_make(p, rng, 1);
    const size_t outputs = (size_t)p->full.value_heads * (size_t)p->full.d_v;
    r->exact = chk_alloc(3 * outputs * sizeof(double));
    r->scale = r->exact + outputs;
    r->got = r->scale + outputs;
    cb_ok(r->box, rssm_cache_reset(r->box->cache, 1, &r->slot, &r->id, &r->position, NULL), "reset");
    cb_ok(r->twin, rssm_cache_reset(r->twin->cache, 1, &r->twin_slot, &r->id, &r->position, NULL), "reset");
    return r;
}

/* Every problem in turn has another kind of copy; nvfp4 comes twice, plain and with options. */
static void draw_copy(chk_rng *rng, int32_t number, rssm_cache_desc *d) {
    static const int32_t copies[] = {RSSM_DTYPE_DEFAULT, RSSM_DTYPE_NVFP4, RSSM_DTYPE_F8,  RSSM_DTYPE_INT8,
                                     RSSM_DTYPE_F16,     RSSM_DTYPE_NVFP4, RSSM_DTYPE_BF16};
    d->read_copy_dtype = copies[number % 7];
    if (d->read_copy_dtype == RSSM_DTYPE_NVFP4) {
        d->read_block_axis = chk_int(rng, 0, 1);
        d->read_block = d->read_block_axis == RSSM_BLOCK_KEYS && chk_flip(rng, 0.4) ? 32 : 16;
        const bool options = number % 7 == 5;
        d->read_scale_search = options ? chk_int(rng, 0, 1) : 0;
        d->read_rank = options ? chk_int(rng, 0, 2) : 0;
        d->read_diffusion = options ? chk_int(rng, 0, 1) : 0;
    }
}

static void run_problem(const variant *v, int32_t number) {
    chk_rng rng = chk_rng_make(v->name, (uint64_t)number);
    cb_problem *drawn = cb_problem_draw(&rng, v->kind, v->io_dtype, number % 7 == 5 ? 20000 : 1500);
    drawn->desc.checkpoint_dtype = v->checkpoint;
    drawn->desc.checkpoint_rounding = v->rounding;
    drawn->desc.seed = chk_u64(&rng);
    drawn->desc.first_layer = chk_int(&rng, 0, 5);
    draw_copy(&rng, number, &drawn->desc);
    chk_params("problem=%d %s", number, cb_problem_text(drawn));
    run *r = make_run(&rng, v, drawn);
    if (drawn->desc.read_diffusion || (drawn->desc.read_copy_dtype == RSSM_DTYPE_NVFP4 && chk_flip(&rng, 0.3))) {
        formats_calibrate(&(chk_rng){1}, r->box);
    }
    for (int32_t n = 0; n < 30 && chk_ok(); n++) {
        const int32_t roll = chk_int(&rng, 0, 99);
        if (roll < 8) {
            step(r, chk_int(&rng, 1, 20), true);
        } else if (roll < 14) {
            force_flush(r);
        } else {
            step(r, chk_int(&rng, 1, drawn->desc.step_tokens), false);
        }
    }
    rssm_cache_info info = {.struct_size = sizeof info};
    cb_ok(r->box, rssm_cache_status(r->box->cache, &info), "status");
    if (chk_ok() && v->checkpoint != RSSM_DTYPE_F32 && info.flushes != r->flushes * drawn->desc.layers) {
        chk_fail("%lld roundings were counted and %lld flushes made", (long long)info.flushes,
                 (long long)(r->flushes * drawn->desc.layers));
    }
    CHK(r->outputs > 0);
    formats_check_moves(&rng, r->box, r->slot);
    cb_box_intact(r->box);
    chk_guards_intact();
}

static void run_variant(void *arg) {
    const variant *v = arg;
    for (int32_t number = 0; number < chk_repeat(PROBLEMS) && chk_ok(); number++) {
        if (chk_wants(number)) {
            run_problem(v, number);
            chk_release();
        }
    }
}

int main(int argc, char **argv) {
    static const char *const kinds[] = {"mamba2", "gdn", "kda"};
    static const struct {
        int32_t checkpoint, rounding;
    } formats[] = {{RSSM_DTYPE_F32, 0},  {RSSM_DTYPE_F16, 0}, {RSSM_DTYPE_F16, 1}, {RSSM_DTYPE_BF16, 0},
                   {RSSM_DTYPE_BF16, 1}, {RSSM_DTYPE_F8, 0},  {RSSM_DTYPE_F8, 1}};
    enum { FORMATS = sizeof formats / sizeof formats[0] };
    chk_start(argc, argv);
    const cb_isa *isas;
    const int32_t isa_count = cb_isas(&isas);
    for (int32_t i = 0; i < isa_count * 3 * FORMATS; i++) {
        const cb_isa *isa = &isas[i / (3 * FORMATS)];
        variant v = {.mask = isa->mask, .kind = RSSM_MAMBA2 + i / FORMATS % 3};
        v.checkpoint = formats[i % FORMATS].checkpoint;
        v.rounding = formats[i % FORMATS].rounding;
        v.io_dtype = i % 2 ? RSSM_DTYPE_F32 : RSSM_DTYPE_BF16;
        snprintf(v.name, sizeof v.name, "%s/%s/%s/%s", kinds[i / FORMATS % 3], rssm_dtype_name(v.checkpoint),
                 v.rounding ? "stochastic" : "nearest", isa->name);
        if (chk_opts()->isa == NULL || strcmp(chk_opts()->isa, isa->name) == 0) {
            chk_case(v.name, run_variant, &v);
        }
    }
    return chk_finish();
}
