/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The laws, as properties of random runs. `interleave` drives every operation at random beside a model (laws a,
 * b, e, f); the others play one script under two schedules and compare bits: c (rejected drafts leave no
 * trace), d and i (batch, slots, threads, parts, tensor-parallel split; stochastic rounding is drawn too), f (rows
 * that are not live), g (NaN stays in its slot), h (the read copy changes no checkpoint), j (a flush to the
 * boundary and a step equal a step that flushes).
 */
#include "laws/laws.h"
#include "gpu/on_device.h"
#include "laws/script.h"
#include "laws/world.h"

#include <stdio.h>
#include <string.h>

/* Below 0: one thread that runs the pieces backwards. */
static const int32_t thread_counts[] = {1, 2, 3, -3};

cb_problem *laws_draw(chk_rng *rng, const setting *at, int32_t number, int32_t layers, int64_t slots,
                      int32_t reserved) {
    const int32_t windows[] = {1, 2, 3, 5, 8, 16, 16, 33, 64}, tokens[] = {1, 2, 3, 4, 6, 8, 16};
    cb_problem *drawn;
    do { /* a norm over very few channels is at the mercy of rounding */
        drawn = cb_problem_draw(rng, at->kind, at->io, 1200);
    } while (drawn->spec.d_k < 4 || drawn->spec.d_v < 3);
    rssm_layer_spec spec = drawn->spec;
    rssm_cache_desc desc = drawn->desc;
    desc.layers = layers;
    desc.slots = slots;
    desc.reserved_slots = reserved;
    desc.window = CHK_PICK(rng, windows);
    desc.step_tokens = CHK_PICK(rng, tokens);
    desc.reach = chk_flip(rng, 0.5) ? 0 : chk_int(rng, 1, 20);
    desc.method = RSSM_METHOD_REPLAY;
    desc.checkpoint_dtype = CB_DEVICE || chk_flip(rng, 0.5) ? RSSM_DTYPE_F32 : chk_int(rng, RSSM_DTYPE_F16, RSSM_DTYPE_F8);
    desc.checkpoint_rounding = desc.checkpoint_dtype == RSSM_DTYPE_F32 ? RSSM_ROUND_NEAREST : chk_int(rng, 0, 1);
    desc.read_copy_dtype = CB_DEVICE || chk_flip(rng, 0.5) ? RSSM_DTYPE_DEFAULT : chk_int(rng, RSSM_DTYPE_F16, RSSM_DTYPE_NVFP4);
    desc.seed = chk_u64(rng);
    bool raw = spec.kind == RSSM_KDA && spec.gate == RSSM_GATE_RAW && drawn->gate_dtype == at->io;
    desc.record_gate = raw && chk_flip(rng, 0.5) ? RSSM_RECORD_RAW_GATE : RSSM_RECORD_DECAY;
    cb_problem *problem = cb_problem_make(rng, &spec, &desc, drawn->gate_dtype, drawn->out_dtype);
    chk_params("problem=%d %s", number, cb_problem_text(problem));
    return problem;
}

chk_poison laws_poison(chk_rng *rng) {
    const chk_poison poisons[] = {CHK_NAN, CHK_HUGE, CHK_SIGNALLING};
    return CHK_PICK(rng, poisons);
}

/* ---- Everything at random ---------------------------------------------------------------------------------
 */

static void interleave(void *arg) {
    const setting *at = arg;
    for (int32_t i = 0; i < chk_repeat(10) && chk_ok(); i++) {
        if (!chk_wants(i)) {
            continue;
        }
        chk_rng rng = chk_rng_make(at->name, (uint64_t)i);
        cb_problem *problem = laws_draw(&rng, at, i, chk_int(&rng, 1, WORLD_LAYERS), 1, 0);
        problem->desc.checkpoint_dtype = RSSM_DTYPE_F32; /* law a; kernel_formats.c has the others */
        problem->desc.checkpoint_rounding = RSSM_ROUND_NEAREST;
        problem->desc.read_copy_dtype = RSSM_DTYPE_DEFAULT;
        world *w = world_make(&rng, problem, at->isa.mask, CHK_PICK(&rng, thread_counts), laws_poison(&rng));
        for (int32_t n = 0; n < WORLD_SLOTS; n++) {
            world_reset(w);
        }
        for (int32_t n = 0; n < 120 && chk_ok(); n++) {
            const char *what = world_act(w);
            if (!chk_ok()) {
                fprintf(stderr, "  after %d operations, the last one %s\n", n + 1, what);
            }
        }
        world_check_memory(w);
        chk_release();
    }
}

const char *world_act(world *w) {
    static const struct {
        const char *name;
        bool (*run)(world *);
        int32_t weight;
    } others[] = {{"reset", world_reset, 3},       {"flush", world_flush, 5},
                  {"rollback", world_rollback, 6}, {"materialize", world_materialize, 4},
                  {"copy", world_copy, 4},         {"export", world_export, 5},
                  {"adopt", world_adopt, 3},       {"poison", world_poison, 8}};
    int32_t roll = chk_int(w->rng, 0, 99);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        roll -= others[i].weight;
        if (roll < 0) {
            if (others[i].run(w)) {
                return others[i].name;
            }
            world_reset(w); /* no slot was fit for it */
            return "reset";
        }
    }
    world_step(w);
    return "step";
}

/* ---- Scripts under two schedules --------------------------------------------------------------------------
 */

typedef struct pair {
    cb_problem *problem;
    cb_box *a, *b;
    script scripts[SCRIPT_SEQUENCES];
    int32_t count;
    trace ta[SCRIPT_SEQUENCES], tb[SCRIPT_SEQUENCES];
} pair;

static pair *make_pair(chk_rng *rng, const setting *at, int32_t number, int32_t threads_b) {
    pair *p = chk_alloc(sizeof *p);
    p->problem = laws_draw(rng, at, number, chk_int(rng, 1, 2), 2 * SCRIPT_SEQUENCES + 1, 1);
    p->count = chk_int(rng, 2, SCRIPT_SEQUENCES);
    p->a =
        cb_box_make(rng, p->problem, cb_context(at->isa.mask, 1), RSSM_METHOD_REPLAY, 8, 4, laws_poison(rng));
    p->b = cb_box_make(rng, p->problem, cb_context(at->isa.mask, threads_b), RSSM_METHOD_REPLAY, 8, 4,
                       laws_poison(rng));
    for (int32_t i = 0; i < p->count; i++) {
        script_draw(rng, p->problem, &p->scripts[i]);
    }
    return p;
}

static void law_c_rejected_drafts(void *arg) {
    const setting *at = arg;
    for (int32_t i = 0; i < chk_repeat(6) && chk_ok(); i++) {
        if (!chk_wants(i)) {
            continue;
        }
        chk_rng rng = chk_rng_make(at->name, 1000 + (uint64_t)i);
        pair *p = make_pair(&rng, at, i, 1);
        script plain[SCRIPT_SEQUENCES];
        for (int32_t s = 0; s < p->count; s++) {
            script_without_drafts(&p->scripts[s], &plain[s]);
        }
        script_play(&rng, p->a, p->scripts, p->count, (schedule){.batched = true}, p->ta);
        script_play(&rng, p->b, plain, p->count, (schedule){.batched = true}, p->tb);
        for (int32_t s = 0; s < p->count && chk_ok(); s++) {
            trace_same("drafts rejected against never drafted", &p->ta[s], &p->tb[s], false);
        }
        chk_release();
    }
}

static void law_h_read_copy(void *arg) {
    const setting *at = arg;
    for (int32_t i = 0; i < chk_repeat(6) && chk_ok(); i++) {
        if (!chk_wants(i)) {
            continue;
        }
        chk_rng rng = chk_rng_make(at->name, 5000 + (uint64_t)i);
        pair *p = make_pair(&rng, at, i, 1);
        cb_problem other = *p->problem;
        other.desc.read_copy_dtype = other.desc.read_copy_dtype == RSSM_DTYPE_NVFP4 ? RSSM_DTYPE_DEFAULT : RSSM_DTYPE_NVFP4;
        p->b = cb_box_make(&rng, &other, cb_context(at->isa.mask, 1), RSSM_METHOD_REPLAY, 8, 4, laws_poison(&rng));
        script_play(&rng, p->a, p->scripts, p->count, (schedule){.batched = true}, p->ta);
        script_play(&rng, p->b, p->scripts, p->count, (schedule){.batched = true}, p->tb);
        for (int32_t s = 0; s < p->count && chk_ok(); s++) {
            trace_same("another read copy", &p->ta[s], &p->tb[s], false);
        }
        chk_release();
    }
}

static void law_d_batch(void *arg) {
    const setting *at = arg;
    for (int32_t i = 0; i < chk_repeat(6) && chk_ok(); i++) {
        if (!chk_wants(i)) {
            continue;
        }
        chk_rng rng = chk_rng_make(at->name, 2000 + (uint64_t)i);
        pair *p = make_pair(&rng, at, i, CHK_PICK(&rng, thread_counts));
        schedule batched = {.batched = true,
                            .parts = chk_int(&rng, 0, 4),
                            .slot_shift = chk_int(&rng, 0, 7),
                            .poison = chk_flip(&rng, 0.5)};
        script_play(&rng, p->a, p->scripts, p->count, (schedule){0}, p->ta);
        script_play(&rng, p->b, p->scripts, p->count, batched, p->tb);
        for (int32_t s = 0; s < p->count && chk_ok(); s++) {
            trace_same("alone against in a batch", &p->ta[s], &p->tb[s], true);
        }
        chk_release();
    }
}

static void law_g_nan(void *arg) {
    const setting *at = arg;
    for (int32_t i = 0; i < chk_repeat(4) && chk_ok(); i++) {
        if (!chk_wants(i)) {
            continue;
        }
        chk_rng rng = chk_rng_make(at->name, 3000 + (uint64_t)i);
        pair *p = make_pair(&rng, at, i, 1);
        int32_t sick = chk_int(&rng, 0, p->count - 1);
        script_play(&rng, p->a, p->scripts, p->count, (schedule){.batched = true}, p->ta);
        script copy[SCRIPT_SEQUENCES];
        memcpy(copy, p->scripts, sizeof copy);
        copy[sick].nan = true;
        script_play(&rng, p->b, copy, p->count, (schedule){.batched = true}, p->tb);
        for (int32_t s = 0; s < p->count && chk_ok(); s++) {
            if (s != sick) {
                trace_same("beside a sequence of NaN", &p->ta[s], &p->tb[s], true);
            }
        }
        /* the next tenant of the slot */
        script_play(&rng, p->b, p->scripts, p->count, (schedule){.batched = true}, p->tb);
        trace_same("after a sequence of NaN", &p->ta[sick], &p->tb[sick], true);
        chk_release();
    }
}

/* ---- Law j ------------------------------------------------------------------------------------------------
 */

/* A decode step of tokens that follow from a seed; its outputs, and the slot once all of it is committed. */
static void decode_all(chk_rng *rng, const cb_box *box, int32_t slot, int32_t tokens, uint64_t seed, trace *t) {
    const int32_t offsets[2] = {0, tokens}, none[2] = {0, 0};
    rssm_batch batch = {.struct_size = sizeof batch, .rows = 1, .slots = &slot, .offsets = offsets};
    cb_feed *feed = cb_feed_make(box->problem, rng, tokens);
    void *blob = chk_alloc((size_t)box->problem->token_bytes);
    int64_t bytes = (int64_t)cb_feed_output_bytes(feed), written;
    cb_ok(box, rssm_cache_begin(box->cache, &batch, NULL, NULL, NULL), "begin");
    *t = (trace){.outputs = chk_alloc((size_t)(bytes * tokens * box->problem->desc.layers))};
    for (int32_t l = 0; l < box->problem->desc.layers; l++) {
        chk_rng inputs = {seed + (uint64_t)l};
        for (int32_t i = 0; i < tokens; i++) {
            cb_token_draw(box->problem, &inputs, blob);
            cb_feed_set(feed, i, blob);
        }
        cb_ok(box, rssm_cache_decode(box->cache, l, &batch, &feed->inputs, &feed->out, NULL), "decode");
        for (int32_t i = 0; i < tokens; i++, t->output_bytes += bytes) {
            cb_feed_output_bits(feed, i, t->outputs + t->output_bytes);
        }
    }
    batch.offsets = none;
    cb_ok(box, rssm_cache_begin(box->cache, &batch, &tokens, NULL, NULL), "last begin");
    t->file_bytes = rssm_cache_export_bytes(box->cache, slot, 0);
    CHK(t->file_bytes > 0);
    t->file = chk_alloc((size_t)t->file_bytes);
    cb_ok(box, rssm_cache_export(box->cache, slot, 0, t->file, t->file_bytes, &written), "export");
}

static void flush_to_boundary(const cb_box *box, int32_t slot) {
    rssm_slot_info info = {.struct_size = sizeof info};
    int64_t window = box->problem->desc.window;
    cb_ok(box, rssm_cache_slot(box->cache, slot, &info), "slot info");
    int64_t over = ((info.position - (int64_t)(info.id % (uint64_t)window)) % window + window) % window;
    int64_t boundary = info.position - over;
    if (boundary > info.checkpoint) {
        cb_ok(box, rssm_cache_flush(box->cache, 1, &slot, &boundary, NULL), "flush");
    }
}

static void law_j_flush_then_step(void *arg) {
    const setting *at = arg;
    for (int32_t i = 0; i < chk_repeat(6) && chk_ok(); i++) {
        if (!chk_wants(i)) {
            continue;
        }
        chk_rng rng = chk_rng_make(at->name, 4000 + (uint64_t)i);
        pair *p = make_pair(&rng, at, i, 1);
        script_play(&rng, p->a, p->scripts, p->count, (schedule){.batched = true}, p->ta);
        for (int32_t s = 0; s < p->count && chk_ok(); s++) {
            int32_t slot = p->a->slots[s], other = p->a->slots[s + p->count],
                    most = p->problem->desc.step_tokens;
            trace earlier, with, without;
            uint64_t seed = chk_u64(&rng);
            int32_t tokens = chk_int(&rng, 1, most);
            for (int32_t n = chk_int(&rng, 1, 3); n > 0; n--) { /* bring some history */
                decode_all(&rng, p->a, slot, most, chk_u64(&rng), &earlier);
            }
            cb_ok(p->a, rssm_cache_copy(p->a->cache, 1, &slot, &other, NULL, NULL), "copy");
            flush_to_boundary(p->a, slot);
            decode_all(&rng, p->a, slot, tokens, seed, &with);
            decode_all(&rng, p->a, other, tokens, seed, &without);
            trace_same("flush and step against a step that flushes", &with, &without, true);
        }
        chk_release();
    }
}

/* -----------------------------------------------------------------------------------------------------------
 */

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        chk_fn *run;
    } laws[] = {{"interleave", interleave}, {"c_rejected_drafts", law_c_rejected_drafts},
                {"d_batch", law_d_batch},   {"d_split", laws_split},
                {"g_nan", law_g_nan},       {"j_flush_then_step", law_j_flush_then_step},
                {"h_read_copy", law_h_read_copy}, {"parts", laws_parts},      {"torn", laws_torn}};
    static const char *const kinds[] = {"mamba2", "gdn", "kda"};
    static setting settings[256];
    int32_t used = 0;
    const cb_isa *isas;
    chk_start(argc, argv);
    int32_t isa_count = cb_isas(&isas);
    const size_t count = sizeof laws / sizeof laws[0] - (CB_DEVICE ? 3 : 0); /* read copies and parts are the CPU's */
    for (size_t law = 0; law < count; law++) {
        for (int32_t kind = 0; kind < 3; kind++) {
            for (int32_t io = 0; io < 2; io++) {
                for (int32_t isa = 0; isa < isa_count; isa++) {
                    setting *at = &settings[used++];
                    *at = (setting){.kind = RSSM_MAMBA2 + kind,
                                    .io = io == 0 ? RSSM_DTYPE_F32 : RSSM_DTYPE_BF16,
                                    .isa = isas[isa]};
                    snprintf(at->name, sizeof at->name, "%s/%s/%s/%s", laws[law].name, kinds[kind],
                             io == 0 ? "f32" : "bf16", isas[isa].name);
                    if (chk_opts()->isa == NULL || strcmp(chk_opts()->isa, isas[isa].name) == 0) {
                        chk_case(at->name, laws[law].run, at);
                    }
                }
            }
        }
    }
    return chk_finish();
}
