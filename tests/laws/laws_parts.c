/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decode in parts: the parts of several open batches in any order give the bits of whole calls, and a layer
 * that is left half-done can be completed or lost, but is never taken for whole.
 */
#include "laws/laws.h"

#include <pthread.h>
#include <string.h>

enum { SEQUENCES = 2, PARTS_MAX = 4 };

/* Two boxes with the same sequences: `whole` runs one batch in one call, `parted` a batch for each in parts. */
typedef struct parting {
    chk_rng *rng;
    const cb_problem *problem;
    cb_box *whole, *parted;
    int32_t tokens[SEQUENCES], accepted[SEQUENCES];
    cb_feed *feed[SEQUENCES], *both;
    uint64_t seed;
} parting;

static parting make_parting(chk_rng *rng, const setting *at, int32_t number) {
    parting p = {.rng = rng, .problem = laws_draw(rng, at, number, 2, 6, 0)};
    cb_box **boxes[2] = {&p.whole, &p.parted};
    const uint64_t ids[SEQUENCES] = {3, 4};
    for (int32_t b = 0; b < 2; b++) {
        *boxes[b] = cb_box_make(rng, p.problem, cb_context(at->isa.mask, 1), RSSM_METHOD_REPLAY, 4, PARTS_MAX,
                                laws_poison(rng));
        cb_ok(*boxes[b], rssm_cache_reset((*boxes[b])->cache, SEQUENCES, (*boxes[b])->slots, ids, NULL, NULL),
              "reset");
    }
    return p;
}

static void fill(const parting *p, cb_feed *feed, int32_t first, int32_t sequence, int32_t layer) {
    void *token = chk_alloc((size_t)p->problem->token_bytes);
    chk_rng rng = {p->seed + (uint64_t)(sequence * 16 + layer)};
    for (int32_t t = 0; t < p->tokens[sequence]; t++) {
        cb_token_draw(p->problem, &rng, token);
        cb_feed_set(feed, first + t, token);
    }
}

static rssm_batch batch_of(const int32_t *slot, int32_t tokens) {
    return (rssm_batch){.struct_size = sizeof(rssm_batch), .rows = 1, .slots = slot, .uniform_tokens = tokens};
}

/* Begins the same step on both boxes: one batch there, one for each sequence here. */
static void begin(parting *p, rssm_batch *batch, int32_t *offsets, rssm_batch *batches) {
    p->seed = chk_u64(p->rng);
    for (int32_t s = 0; s < SEQUENCES; s++) {
        p->tokens[s] = chk_int(p->rng, 1, p->problem->desc.step_tokens);
        offsets[s + 1] = offsets[s] + p->tokens[s];
        p->feed[s] = cb_feed_make(p->problem, p->rng, p->tokens[s]);
        batches[s] = batch_of(&p->parted->slots[s], p->tokens[s]);
        cb_ok(p->parted, rssm_cache_begin(p->parted->cache, &batches[s], &p->accepted[s], NULL, NULL), "begin");
    }
    p->both = cb_feed_make(p->problem, p->rng, offsets[SEQUENCES]);
    *batch = (rssm_batch){
        .struct_size = sizeof *batch, .rows = SEQUENCES, .slots = p->whole->slots, .offsets = offsets};
    cb_ok(p->whole, rssm_cache_begin(p->whole->cache, batch, p->accepted, NULL, NULL), "begin");
    for (int32_t s = 0; s < SEQUENCES; s++) {
        p->accepted[s] = chk_int(p->rng, 0, p->tokens[s]);
    }
}

/* Outputs and checkpoints of a layer, sequence by sequence. */
static void compare(const parting *p, const int32_t *offsets, int32_t layer) {
    const size_t bytes = cb_feed_output_bytes(p->both);
    const rssm_layer_spec *spec = &p->problem->full;
    const int64_t shape[3] = {spec->value_heads, spec->d_v, spec->d_k};
    void *a = chk_alloc(bytes), *b = chk_alloc(bytes);
    for (int32_t s = 0; s < SEQUENCES; s++) {
        for (int32_t t = 0; t < p->tokens[s]; t++) {
            cb_feed_output_bits(p->both, offsets[s] + t, a);
            cb_feed_output_bits(p->feed[s], t, b);
            CHK(memcmp(a, b, bytes) == 0);
        }
        chk_same_bits("checkpoint of a decode in parts",
                      cb_box_part(p->whole, layer, RSSM_PART_CHECKPOINT, p->whole->slots[s]),
                      cb_box_part(p->parted, layer, RSSM_PART_CHECKPOINT, p->parted->slots[s]),
                      cb_checkpoint_width(p->problem), 3, shape);
    }
}

/* One part of one batch. */
typedef struct part_call {
    const parting *p;
    const rssm_batch *batch;
    int32_t sequence, layer, part, parts;
    rssm_status status;
} part_call;

static void *run_part(void *arg) {
    part_call *c = arg;
    const cb_feed *feed = c->p->feed[c->sequence];
    c->status = rssm_cache_decode_part(c->p->parted->cache, c->layer, c->batch, &feed->inputs, &feed->out,
                                       c->part, c->parts);
    return NULL;
}

/* The parts of one batch at once, each on a thread: part numbers are what keeps their scratch apart. */
static void run_at_once(part_call *calls, int32_t n) {
    pthread_t threads[PARTS_MAX];
    int32_t started = 0;
    while (started < n && pthread_create(&threads[started], NULL, run_part, &calls[started]) == 0) {
        started++;
    }
    for (int32_t i = started; i < n; i++) {
        run_part(&calls[i]);
    }
    while (started > 0) {
        pthread_join(threads[--started], NULL);
    }
}

static void parts_in_any_order(parting *p, const rssm_batch *batches, int32_t layer) {
    part_call calls[SEQUENCES][PARTS_MAX];
    int32_t parts[SEQUENCES], order[SEQUENCES * PARTS_MAX], n = 0;
    const bool threads = chk_flip(p->rng, 0.5);
    for (int32_t s = 0; s < SEQUENCES; s++) {
        parts[s] = chk_int(p->rng, 1, PARTS_MAX);
        fill(p, p->feed[s], 0, s, layer);
        for (int32_t i = 0; i < parts[s]; i++) {
            calls[s][i] = (part_call){p, &batches[s], s, layer, i, parts[s], RSSM_OK};
            order[n++] = s * PARTS_MAX + i;
        }
    }
    chk_shuffle(p->rng, order, n);
    for (int32_t i = 0; !threads && i < n; i++) {
        run_part(&calls[order[i] / PARTS_MAX][order[i] % PARTS_MAX]);
    }
    for (int32_t s = 0; s < SEQUENCES; s++) {
        if (threads) {
            run_at_once(calls[s], parts[s]);
        }
        for (int32_t i = 0; i < parts[s]; i++) {
            cb_ok(p->parted, calls[s][i].status, "part of a decode");
        }
    }
}

static void run_whole(parting *p, const rssm_batch *batch, const int32_t *offsets, int32_t layer) {
    for (int32_t s = 0; s < SEQUENCES; s++) {
        fill(p, p->both, offsets[s], s, layer);
    }
    cb_ok(p->whole, rssm_cache_decode(p->whole->cache, layer, batch, &p->both->inputs, &p->both->out, NULL),
          "decode");
}

void laws_parts(void *arg) {
    const setting *at = arg;
    for (int32_t i = 0; i < chk_repeat(4) && chk_ok(); i++) {
        if (!chk_wants(i)) {
            continue;
        }
        chk_rng rng = chk_rng_make(at->name, 6000 + (uint64_t)i);
        parting p = make_parting(&rng, at, i);
        for (int32_t n = 0; n < 20 && chk_ok(); n++) {
            rssm_batch batch, batches[SEQUENCES];
            int32_t offsets[SEQUENCES + 1] = {0};
            begin(&p, &batch, offsets, batches);
            for (int32_t layer = 0; layer < 2; layer++) {
                run_whole(&p, &batch, offsets, layer);
                parts_in_any_order(&p, batches, layer);
                compare(&p, offsets, layer);
            }
        }
        chk_release();
    }
}

/* ---- Torn layers ------------------------------------------------------------------------------------------
 */

static void refused(const parting *p, rssm_status status, const char *what) {
    cb_expect(p->parted, status, RSSM_ERROR_STATE, what);
}

/* Layer 0 of sequence 0 has run one of two parts, and there was something to fold. */
static void nothing_works_but_the_rest(parting *p, const rssm_batch *batch) {
    const cb_box *box = p->parted;
    const int32_t slot = box->slots[0], other = box->slots[4];
    unsigned char file[16];
    size_t bytes, now;
    const void *before = cb_box_snapshot(box, slot, &bytes);
    refused(p, rssm_cache_flush(box->cache, 1, &slot, NULL, NULL), "flush of a torn slot");
    refused(p, rssm_cache_rollback(box->cache, 1, &slot, NULL, NULL), "rollback of a torn slot");
    refused(p, rssm_cache_copy(box->cache, 1, &slot, &other, NULL, NULL), "copy of a torn slot");
    refused(p, rssm_cache_materialize(box->cache, 1, &slot, &other, NULL, NULL, NULL),
            "materialize of a torn slot");
    refused(p, rssm_cache_export(box->cache, slot, 0, file, sizeof file, NULL), "export of a torn slot");
    refused(p, rssm_cache_decode(box->cache, 0, batch, &p->feed[0]->inputs, &p->feed[0]->out, NULL),
            "whole decode of a torn layer");
    CHK(rssm_cache_export_bytes(box->cache, slot, 0) == -1);
    const void *after = cb_box_snapshot(box, slot, &now);
    CHK(bytes == now && memcmp(before, after, bytes) == 0);
}

/* Whether the open step folds on sequence 0. */
static bool folds(const parting *p) {
    rssm_slot_info info = {.struct_size = sizeof info};
    cb_ok(p->parted, rssm_cache_slot(p->parted->cache, p->parted->slots[0], &info), "slot info");
    const int64_t window = p->problem->desc.window, n = info.position;
    const int64_t boundary = n - ((n - (int64_t)(info.id % (uint64_t)window)) % window + window) % window;
    return boundary > info.checkpoint;
}

/* Layer 0 with sequence 0 torn in between. Returns false if it was left so. */
static bool tear(parting *p, const rssm_batch *batches) {
    const cb_feed *feed = p->feed[0];
    rssm_cache *cache = p->parted->cache;
    fill(p, p->feed[0], 0, 0, 0);
    cb_ok(p->parted, rssm_cache_decode_part(cache, 0, &batches[0], &feed->inputs, &feed->out, 1, 2),
          "part of a decode");
    nothing_works_but_the_rest(p, &batches[0]);
    if (chk_flip(p->rng, 0.2)) {
        return false;
    }
    cb_ok(p->parted, rssm_cache_decode_part(cache, 0, &batches[0], &feed->inputs, &feed->out, 0, 2),
          "the other part");
    fill(p, p->feed[1], 0, 1, 0);
    cb_ok(p->parted, rssm_cache_decode(cache, 0, &batches[1], &p->feed[1]->inputs, &p->feed[1]->out, NULL),
          "decode");
    return true;
}

/* A torn slot is lost at the next begin, and lives again after a reset. */
static void lost_until_reset(const parting *p) {
    const cb_box *box = p->parted;
    const rssm_batch next = batch_of(&box->slots[0], 1);
    rssm_slot_info info = {.struct_size = sizeof info};
    cb_expect(box, rssm_cache_begin(box->cache, &next, NULL, NULL, NULL), RSSM_ERROR_FAILED_SLOT,
              "begin after a torn layer");
    cb_ok(box, rssm_cache_slot(box->cache, box->slots[0], &info), "slot info");
    CHK(info.state == 2);
    cb_expect(box, rssm_cache_begin(box->cache, &next, NULL, NULL, NULL), RSSM_ERROR_FAILED_SLOT,
              "begin once more");
    cb_ok(box, rssm_cache_reset(box->cache, 1, &box->slots[0], NULL, NULL, NULL), "reset");
    cb_ok(box, rssm_cache_begin(box->cache, &next, NULL, NULL, NULL), "begin after a reset");
}

void laws_torn(void *arg) {
    const setting *at = arg;
    for (int32_t i = 0; i < chk_repeat(4) && chk_ok(); i++) {
        if (!chk_wants(i)) {
            continue;
        }
        chk_rng rng = chk_rng_make(at->name, 7000 + (uint64_t)i);
        parting p = make_parting(&rng, at, i);
        bool complete = true;
        for (int32_t n = 0; n < 200 && complete && chk_ok(); n++) {
            rssm_batch batch, batches[SEQUENCES];
            int32_t offsets[SEQUENCES + 1] = {0};
            begin(&p, &batch, offsets, batches);
            for (int32_t layer = 0; layer < 2 && complete; layer++) {
                run_whole(&p, &batch, offsets, layer);
                if (layer == 0 && folds(&p)) {
                    complete = tear(&p, batches);
                } else {
                    parts_in_any_order(&p, batches, layer);
                }
                if (complete) {
                    compare(&p, offsets, layer);
                }
            }
        }
        if (!complete) {
            lost_until_reset(&p);
        }
        chk_release();
    }
}
