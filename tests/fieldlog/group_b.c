/* SPDX-License-Identifier: Apache-2.0 */
/* Group (b) of the field log, what concerns the cache: rollback and drafts, as chains. */
#include "fieldlog/field.h"

#include <stdio.h>
#include <string.h>

/* A slot beside its reference: what is committed, and the stream it comes from. */
typedef struct follow {
    fl *f;
    fl_ref ref, scratch;
    int32_t slot, pending;
    uint64_t stream;
    int64_t n; /* committed; drafts continue the stream */
    double *y, *exact;
} follow;

static follow follow_start(fl *f, int32_t slot, uint64_t stream, int32_t prompt) {
    follow w = {.f = f, .slot = slot, .stream = stream, .ref = fl_ref_make(f), .scratch = fl_ref_make(f)};
    w.y = fl_outputs(f, 200);
    w.exact = fl_outputs(f, 200);
    fl_reset(f, slot, stream);
    if (prompt > 0) {
        fl_prefill(f, slot, stream, 0, prompt, w.y);
        fl_ref_run(f, &w.ref, stream, 0, prompt, w.exact);
        fl_near("prompt", (int64_t)prompt * f->outs, w.y, w.exact, 1e-5);
    }
    w.n = prompt;
    return w;
}

/* Keeps `accepted` of the last step, then runs `tokens` more and compares their outputs. */
static void follow_step(follow *w, int32_t accepted, int32_t tokens) {
    fl_ref_run(w->f, &w->ref, w->stream, w->n, accepted, NULL);
    w->n += accepted;
    fl_ref_copy(w->f, &w->scratch, &w->ref);
    fl_ref_run(w->f, &w->scratch, w->stream, w->n, tokens, w->exact);
    fl_step(w->f, w->slot, accepted, w->stream, w->n, tokens, w->y);
    fl_near("outputs", (int64_t)tokens * w->f->outs * w->f->p->desc.layers, w->y, w->exact, 1e-5);
    w->pending = tokens;
}

static void follow_commit(follow *w, int32_t accepted) {
    fl_ref_run(w->f, &w->ref, w->stream, w->n, accepted, NULL);
    w->n += accepted;
    w->pending = 0;
    fl_commit(w->f, w->slot, accepted);
    CHK(fl_info(w->f, w->slot).position == w->n);
}

/* Back to position `to`; the reference starts again from its beginning. */
static void follow_back(follow *w, int64_t to) {
    cb_ok(w->f->box, rssm_cache_rollback(w->f->box->cache, 1, &w->slot, &to, NULL), "rollback");
    fl_ref zero = fl_ref_make(w->f);
    fl_ref_copy(w->f, &w->ref, &zero);
    fl_ref_run(w->f, &w->ref, w->stream, 0, (int32_t)to, NULL);
    w->n = to;
    w->pending = 0;
}

/* A rejection is over when it is over: single steps after it, and one rollback after the other. */
static void B03_after_a_rejection(uint64_t isa) {
    static const int32_t back[] = {3, 1, 0, 3};
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        const rssm_layer_spec spec = fl_spec(shape);
        fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.window = 64, .step_tokens = 4, .reach = 3});
        for (int32_t a = 0; a < 4; a++) {
            follow w = follow_start(f, fl_slot(f, 0), (uint64_t)a, 10);
            chk_params("shape %d keeping %d", shape, a);
            follow_step(&w, 0, 4);
            follow_step(&w, a, 1);
            for (int32_t i = 0; i < 20; i++) {
                follow_step(&w, 1, 1);
            }
            for (int32_t i = 0; i < 4; i++) {
                follow_step(&w, 1, 4);
                follow_commit(&w, 4);
                follow_back(&w, w.n - back[i]);
                follow_step(&w, 0, 1);
                fl_states_near(f, "state", w.slot, &w.ref, 1e-5);
            }
        }
        chk_release();
    }
}

/* A window of 4, then 2 single steps, then back 1..6: right, or refused and nothing changed. */
static void B05_back_over_steps(uint64_t isa) {
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        for (int32_t reach = 0; reach <= 8; reach += 4) {
            for (int32_t back = 1; back <= 6; back++) {
                const rssm_layer_spec spec = fl_spec(shape);
                fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.window = 32, .step_tokens = 4, .reach = reach});
                follow w = follow_start(f, fl_slot(f, 0), 3, 9);
                int64_t bytes;
                chk_params("shape %d reach %d back %d", shape, reach, back);
                follow_step(&w, 0, 4);
                follow_step(&w, 4, 1);
                follow_step(&w, 1, 1);
                follow_commit(&w, 1);
                const void *before = fl_export(f, w.slot, 0, &bytes);
                const int64_t to = w.n - back;
                if (to >= fl_info(f, w.slot).oldest) {
                    follow_back(&w, to);
                } else {
                    cb_expect(f->box, rssm_cache_rollback(f->box->cache, 1, &w.slot, &to, NULL),
                              RSSM_ERROR_ARGUMENT, "rollback beyond the reach");
                    fl_unchanged(f, "refused rollback", w.slot, before, bytes);
                }
                CHK(back > reach || fl_info(f, w.slot).position == to);
                fl_states_near(f, "state", w.slot, &w.ref, 1e-5);
                follow_step(&w, 0, 3);
                chk_release();
            }
        }
    }
}

/* The short convolution rolls back too: windows shorter and longer than it, every count. */
static void B06_convolution_rolls_back(uint64_t isa) {
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        for (int32_t width = 2; width <= RSSM_CONV_WIDTH_MAX; width++) {
            rssm_layer_spec spec = fl_spec(shape);
            spec.conv_width = width;
            fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.step_tokens = 6});
            for (int32_t t = 1; t <= 6; t += fl_stride()) {
                for (int32_t a = 0; a <= t; a++) {
                    follow w = follow_start(f, fl_slot(f, a), (uint64_t)(t * 10 + a), 5);
                    chk_params("shape %d width %d: %d of %d", shape, width, a, t);
                    follow_step(&w, 0, t);
                    follow_step(&w, a, 1);
                }
            }
            chk_release();
        }
    }
}

/* History and accepted tokens that land on a boundary, beside one, and on the second. */
static void B09_onto_a_boundary(uint64_t isa) {
    enum { L = 8 };
    static const int32_t sums[] = {L - 1, L, L + 1, 2 * L};
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        const rssm_layer_spec spec = fl_spec(shape);
        fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.window = L, .step_tokens = 16});
        for (int32_t i = 0; i < 4; i++) {
            for (int32_t a = 0; a <= 16 && a <= sums[i]; a += fl_stride()) {
                const int32_t h = sums[i] - a;
                if (h >= L) {
                    continue; /* no such history: a step would have folded it */
                }
                follow w = follow_start(f, fl_slot(f, 0), 0, L);
                chk_params("shape %d: %d records and %d more", shape, h, a);
                for (int32_t k = 0; k < h; k++) {
                    follow_step(&w, k > 0 ? 1 : 0, 1);
                }
                follow_step(&w, h > 0 ? 1 : 0, 16);
                follow_step(&w, a, 2);
                CHK(fl_info(f, w.slot).checkpoint == w.n / L * L);
                fl_states_near(f, "state", w.slot, &w.ref, 1e-5);
                follow_step(&w, 2, 1);
            }
        }
        chk_release();
    }
}

static void B10_every_number_of_drafts(uint64_t isa) {
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        for (int32_t most = 1; most <= RSSM_STEP_TOKENS_MAX; most += shape == 0 ? 1 : 3) {
            const rssm_layer_spec spec = fl_spec(shape);
            fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.step_tokens = most});
            follow w = follow_start(f, fl_slot(f, 0), 1, 4);
            int32_t last = 0;
            char limit[16];
            chk_params("shape %d T_max %d", shape, most);
            for (int32_t t = 1; t <= most; t++) {
                follow_step(&w, last, t);
                last = t % 3 == 0 ? t - 1 : t;
            }
            const fl_row row = {.slot = w.slot, .tokens = most + 1, .stream = 1, .from = w.n};
            cb_expect(f->box, fl_try(f, &row, 1), RSSM_ERROR_ARGUMENT, "a token too many");
            snprintf(limit, sizeof limit, "%d", most);
            (void)CHK(CB_DEVICE || strstr(rssm_context_message(f->box->context), limit) != NULL);
            follow_step(&w, last, 1);
            chk_release();
        }
    }
    const rssm_layer_spec spec = fl_spec(FL_GDN);
    rssm_context *context = cb_context(isa, 1);
    rssm_cache *cache;
    rssm_cache_desc desc = {.spec = &spec, .layers = 1, .slots = 1, .step_tokens = RSSM_STEP_TOKENS_MAX + 1};
    CHK(rssm_cache_create(context, &desc, &cache) == RSSM_ERROR_ARGUMENT && cache == NULL);
    CHK(strstr(rssm_context_message(context), "16") != NULL);
}

/* Five slots in one call with different counts, against solo runs, bit for bit. */
static void B12_unequal_rows(uint64_t isa) {
    static const int32_t tokens[] = {1, 4, 2, 4, 3};
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        const rssm_layer_spec spec = fl_spec(shape);
        fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.step_tokens = 4}), *solo = fl_twin(f, 0, 1);
        int64_t n[5] = {0};
        double *y[5], *alone = fl_outputs(f, 4);
        chk_rng rng = chk_rng_make("B12", (uint64_t)shape);
        int32_t last[5] = {0};
        for (int32_t i = 0; i < 5; i++) {
            y[i] = fl_outputs(f, 4);
            fl_reset(f, fl_slot(f, i), (uint64_t)i);
            fl_reset(solo, fl_slot(solo, 4 - i), (uint64_t)i);
        }
        for (int32_t round = 0; round < 100 / fl_stride() && chk_ok(); round++) {
            fl_row rows[5];
            chk_params("shape %d round %d", shape, round);
            for (int32_t i = 0; i < 5; i++) {
                rows[i] = (fl_row){.slot = fl_slot(f, i),
                                   .tokens = tokens[i],
                                   .accepted = last[i],
                                   .stream = (uint64_t)i,
                                   .from = n[i] + last[i],
                                   .y = y[i]};
                n[i] += last[i];
            }
            fl_go(f, rows, 5);
            for (int32_t i = 0; i < 5; i++) {
                fl_step(solo, fl_slot(solo, 4 - i), last[i], (uint64_t)i, n[i], tokens[i], alone);
                CHK(memcmp(alone, y[i], (size_t)(tokens[i] * f->outs) * sizeof *alone) == 0);
                last[i] = chk_int(&rng, 0, tokens[i]);
            }
        }
        for (int32_t i = 0; i < 5; i++) {
            int64_t bytes;
            const void *file = fl_export(solo, fl_slot(solo, 4 - i), 0, &bytes);
            fl_unchanged(f, "a batch against alone", fl_slot(f, i), file, bytes);
        }
        chk_release();
    }
}

/* The rest of a prompt and drafts in one step, no draft kept: the state is the prompt's. */
static void B16_prompt_end_and_drafts(uint64_t isa) {
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        const rssm_layer_spec spec = fl_spec(shape);
        fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.step_tokens = 7});
        follow w = follow_start(f, fl_slot(f, 0), 2, 20);
        chk_params("shape %d", shape);
        follow_step(&w, 0, 7);
        follow_commit(&w, 3);
        fl_states_near(f, "state", w.slot, &w.ref, 1e-5);
        follow_step(&w, 0, 4);
        chk_release();
    }
}

/* A row of one token padded to the window with anything, beside full rows: as if it had been alone. */
static void B17_placeholder_drafts(uint64_t isa) {
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        const rssm_layer_spec spec = fl_spec(shape);
        fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.step_tokens = 4}), *plain = fl_twin(f, 0, 1);
        double *y = fl_outputs(f, 4), *alone = fl_outputs(f, 4);
        int64_t bytes;
        const int32_t s = fl_slot(f, 0), full = fl_slot(f, 1), p = fl_slot(plain, 3);
        fl_reset(f, s, 1);
        fl_reset(f, full, 2);
        fl_reset(plain, p, 1);
        for (int32_t round = 0; round < 30; round++) { /* the drafts are another stream's tokens */
            const fl_row rows[2] = {
                {.slot = full, .tokens = 4, .accepted = 4, .stream = 8, .from = 4 * round},
                {.slot = s, .tokens = 4, .accepted = 1, .stream = 70 + (uint64_t)round, .from = 0, .y = y}};
            chk_params("shape %d round %d", shape, round);
            fl_go(f, rows, 2);
            fl_step(plain, p, 1, 70 + (uint64_t)round, 0, 1, alone);
            fl_near("the one real token", f->outs, y, alone, 1e-6);
        }
        fl_go(f, &(fl_row){.slot = s, .tokens = 4, .accepted = 1, .nan = true},
              1); /* placeholders may be NaN */
        fl_commit(f, s, 0);
        fl_commit(plain, p, 1);
        const void *file = fl_export(plain, p, 0, &bytes);
        fl_unchanged(f, "padded to the window against plain", s, file, bytes);
        chk_release();
    }
}

/* Rows that keep nothing, and steps that are thrown away, between live rows. */
static void B18_nothing_accepted(uint64_t isa) {
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        const rssm_layer_spec spec = fl_spec(shape);
        fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.window = 64, .step_tokens = 4});
        follow w[3];
        int64_t bytes;
        for (int32_t i = 0; i < 3; i++) {
            w[i] = follow_start(f, fl_slot(f, i), (uint64_t)i, 3);
        }
        const void *file = fl_export(f, w[1].slot, 0, &bytes);
        for (int32_t round = 0; round < 10; round++) {
            chk_params("shape %d round %d", shape, round);
            fl_row rows[3];
            for (int32_t i = 0; i < 3; i++) {
                const int32_t kept = round > 0 && i != 1 ? 4 : 0;
                fl_ref_run(f, &w[i].ref, w[i].stream, w[i].n, kept, NULL);
                w[i].n += kept;
                rows[i] = (fl_row){.slot = w[i].slot,
                                   .tokens = 4,
                                   .accepted = kept,
                                   .stream = w[i].stream,
                                   .from = w[i].n + (i == 1 ? 50 * round : 0),
                                   .y = w[i].y,
                                   .nan = i == 1 && round % 2};
            }
            fl_go(f, rows, 3);
            fl_unchanged(f, "a row that keeps nothing", w[1].slot, file, bytes);
        }
        for (int32_t i = 0; i < 3; i++) {
            follow_commit(&w[i], i == 1 ? 0 : 4);
            fl_states_near(f, "state", w[i].slot, &w[i].ref, 1e-5);
        }
        chk_release();
    }
}

/* One past the reach: a status, the reach in the sentence, nothing changed. */
static void B20_one_past_the_reach(uint64_t isa) {
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        for (int32_t prompt = 0; prompt < 2; prompt++) {
            const rssm_layer_spec spec = fl_spec(shape);
            fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.step_tokens = 2, .reach = 5});
            follow w = follow_start(f, fl_slot(f, 0), 16, prompt * 7);
            char reach[32];
            int64_t bytes;
            for (int32_t i = 0; i < 9; i++) {
                follow_step(&w, i > 0 ? 1 : 0, 2);
            }
            follow_commit(&w, 1);
            const rssm_slot_info info = fl_info(f, w.slot);
            const int64_t beyond = info.oldest - 1, ahead = w.n + 1;
            const void *file = fl_export(f, w.slot, 0, &bytes);
            chk_params("shape %d prompt %d", shape, prompt);
            cb_expect(f->box, rssm_cache_rollback(f->box->cache, 1, &w.slot, &beyond, NULL),
                      RSSM_ERROR_ARGUMENT, "rollback one past the reach");
            snprintf(reach, sizeof reach, "%lld", (long long)info.oldest);
            (void)CHK(CB_DEVICE || strstr(rssm_context_message(f->box->context), reach) != NULL);
            cb_expect(f->box, rssm_cache_rollback(f->box->cache, 1, &w.slot, &ahead, NULL), RSSM_ERROR_ARGUMENT,
                      "rollback forwards");
            fl_unchanged(f, "refused rollback", w.slot, file, bytes);
            follow_back(&w, info.oldest);
            follow_step(&w, 0, 2);
            chk_release();
        }
    }
}

/* What slot_info says can be reached and what rollback does agree, in every state that 6 random operations
 * reach. */
static void B21_reach_is_what_it_says(uint64_t isa) {
    const rssm_layer_spec spec = fl_spec(FL_KDA);
    for (int32_t run = 0; run < chk_repeat(60); run++) {
        chk_rng rng = chk_rng_make("B21", (uint64_t)run);
        fl *f = fl_open(
            isa, &spec,
            &(rssm_cache_desc){.window = chk_int(&rng, 1, 12), .step_tokens = 4, .reach = chk_int(&rng, 0, 6)});
        const int32_t s = fl_slot(f, 0), copy = fl_slot(f, 1);
        int32_t pending = 0;
        fl_reset(f, s, (uint64_t)run);
        for (int32_t op = 0; op < 6; op++) {
            const int64_t n = fl_info(f, s).position;
            const int32_t kept = pending > 0 ? chk_int(&rng, 0, pending) : 0;
            switch (chk_int(&rng, 0, 3)) {
            case 0:
                fl_go(f,
                      &(fl_row){
                          .slot = s, .tokens = 9, .prefill = true, .accepted = kept, .stream = 1, .from = n},
                      1);
                fl_commit(f, s, 9);
                pending = 0;
                break;
            case 1:
                cb_ok(f->box, rssm_cache_flush(f->box->cache, 1, &s, NULL, NULL), "flush");
                break;
            default:
                pending = chk_int(&rng, 1, 4);
                fl_step(f, s, kept, 1, n, pending, NULL);
            }
            const rssm_slot_info info = fl_info(f, s);
            for (int64_t to = info.position + 1; to >= 0 && to + 4 > info.oldest; to--) {
                cb_ok(f->box, rssm_cache_copy(f->box->cache, 1, &s, &copy, NULL, NULL), "copy");
                const bool can = to >= info.oldest && to <= info.position;
                const rssm_status status = rssm_cache_rollback(f->box->cache, 1, &copy, &to, NULL);
                chk_params("run %d operation %d: %d of %d to %d", run, op, (int)to, (int)info.oldest,
                           (int)info.position);
                CHK(can == (status == RSSM_OK));
                CHK(fl_info(f, copy).position == (can ? to : info.position));
            }
        }
        chk_release();
    }
}

/* One step on one slot with tokens `node` of a stream, and the outputs' bits. */
static void tree_step(fl *f, int32_t slot, int32_t tokens, const int32_t *parents, const int32_t *node,
                      unsigned char *bits) {
    const rssm_batch batch = {
        .struct_size = sizeof batch, .rows = 1, .slots = &slot, .uniform_tokens = tokens, .parents = parents};
    cb_feed *feed = cb_feed_make(f->p, &f->rng, tokens);
    const size_t bytes = cb_feed_output_bytes(feed);
    cb_ok(f->box, rssm_cache_begin(f->box->cache, &batch, NULL, NULL, NULL), "begin");
    for (int32_t l = 0; l < f->p->desc.layers; l++) {
        for (int32_t t = 0; t < tokens; t++) {
            cb_feed_set(feed, t, fl_token(f, l, 77, node[t]));
        }
        cb_ok(f->box, rssm_cache_decode(f->box->cache, l, &batch, &feed->inputs, &feed->out, NULL), "decode");
        for (int32_t t = 0; t < tokens; t++, bits += bytes) {
            cb_feed_output_bits(feed, t, bits);
        }
    }
}

static void keep_path(fl *f, int32_t slot, int32_t accepted, const int32_t *path) {
    const int32_t none[2] = {0, 0};
    const rssm_batch batch = {.struct_size = sizeof batch, .rows = 1, .slots = &slot, .offsets = none};
    cb_ok(f->box, rssm_cache_begin(f->box->cache, &batch, &accepted, path, NULL), "commit");
}

enum { TREE = 7 };

/* Every node of a tree gives what a chain of its path gives, and keeping its path leaves what that leaves: the
   same bits. So does a chain whose parents are told. */
static void B23_tree_is_no_chain(uint64_t isa) {
    static const int32_t trees[3][TREE] = {
        {-1, 0, 0, 1, 1, 2, 4}, {-1, -1, -1, 0, 2, 4, 4}, {-1, 0, 1, 2, 3, 4, 5}};
    static const int32_t names[TREE] = {0, 1, 2, 3, 4, 5, 6};
    for (int32_t i = 0; i < 3 * FL_KINDS; i++) {
        const int32_t *parents = trees[i / FL_KINDS];
        const rssm_layer_spec spec = fl_spec(i % FL_KINDS);
        fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.window = 8, .step_tokens = TREE, .layers = 2});
        const int32_t tree = fl_slot(f, 0), fork = fl_slot(f, 1), start = fl_slot(f, 2);
        const size_t bytes = (size_t)f->outs * sizeof(float);
        unsigned char *all = chk_alloc(2 * TREE * bytes), *one = chk_alloc(2 * TREE * bytes);
        follow w = follow_start(f, start, 1, 5);
        follow_step(&w, 0, 4);
        follow_commit(&w, 4);
        for (int32_t node = 0; node < TREE; node++) {
            int32_t path[TREE], n = 0;
            for (int32_t at = node; at >= 0; at = parents[at]) {
                memmove(path + 1, path, (size_t)n++ * sizeof *path);
                path[0] = at;
            }
            chk_params("shape %d tree %d node %d", i % FL_KINDS, i / FL_KINDS, node);
            cb_ok(f->box,
                  rssm_cache_copy(f->box->cache, 2, (int32_t[]){start, start}, (int32_t[]){tree, fork}, NULL,
                                  NULL),
                  "copy");
            tree_step(f, tree, TREE, parents, names, all);
            tree_step(f, fork, n, NULL, path, one);
            for (int32_t l = 0; l < 2; l++) {
                CHK(memcmp(all + (size_t)(l * TREE + node) * bytes, one + (size_t)(l * n + n - 1) * bytes,
                           bytes) == 0);
            }
            keep_path(f, tree, n, path);
            keep_path(f, fork, n, NULL);
            int64_t size;
            const void *file = fl_export(f, fork, 0, &size);
            fl_unchanged(f, "what a path leaves", tree, file, size);
        }
        chk_release();
    }
}

/* One computation of sizes: the parts add up, a pool of exactly that works, a byte less is refused by name. */
static void B25_sizes_agree(uint64_t isa) {
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        for (int32_t most = 1; most <= 9; most++) {
            const rssm_layer_spec spec = fl_spec(shape);
            fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.step_tokens = most, .layers = 3});
            int64_t total = 0;
            for (int32_t part = 0; part < RSSM_PARTS; part++) {
                rssm_part_info info;
                cb_ok(f->box, rssm_cache_layout(f->box->cache, part, &info), "layout");
                total += info.bytes * (info.per_layer ? 3 : 1);
                if (info.rank == 0) {
                    continue;
                }
                void *memory = chk_guard((size_t)info.bytes * 12, 16, CHK_RIGHT);
                cb_expect(f->box, rssm_cache_bind(f->box->cache, 0, part, memory, info.bytes - 16),
                          RSSM_ERROR_ARGUMENT, "a stride below the part's size");
                CHK(strstr(rssm_context_message(f->box->context), info.name) != NULL);
            }
            chk_params("shape %d T_max %d", shape, most);
            CHK(total == rssm_cache_slot_bytes(f->box->cache));
            fl_reset(f, fl_slot(f, 0), 1); /* the old memory is still bound */
            fl_step(f, fl_slot(f, 0), 0, 1, 0, most, NULL);
            chk_release();
        }
    }
}

const fl_test fl_group_b[] = {{"B03_after_a_rejection", B03_after_a_rejection},
                              {"B05_back_over_steps", B05_back_over_steps},
                              {"B06_convolution_rolls_back", B06_convolution_rolls_back},
                              {"B09_onto_a_boundary", B09_onto_a_boundary},
                              {"B10_every_number_of_drafts", B10_every_number_of_drafts},
                              {"B12_unequal_rows", B12_unequal_rows},
                              {"B16_prompt_end_and_drafts", B16_prompt_end_and_drafts},
                              {"B17_placeholder_drafts", B17_placeholder_drafts},
                              {"B18_nothing_accepted", B18_nothing_accepted},
                              {"B20_one_past_the_reach", B20_one_past_the_reach},
                              {"B21_reach_is_what_it_says", B21_reach_is_what_it_says},
                              {"B23_tree_is_no_chain", B23_tree_is_no_chain},
                              {"B25_sizes_agree", B25_sizes_agree},
                              {NULL, NULL}};
