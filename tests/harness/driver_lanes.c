/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's steps done to caches, and the comparisons. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "driver.h"

/* The rows of a step that one batch carries, in the order of that batch. */
typedef struct group {
    dr_lane *lane;
    cb_feed *feed;
    rssm_batch batch;
    int32_t rows[DR_ROWS]; /* canonical row of each */
    int32_t slots[3 * DR_ROWS], offsets[DR_ROWS + 1], accepted[DR_ROWS];
    uint8_t prefill[DR_ROWS];
    int32_t parents[DR_ROWS * 2 * RSSM_STEP_TOKENS_MAX], paths[DR_ROWS * RSSM_STEP_TOKENS_MAX];
    bool by_paths; /* paths are handed in */
} group;

static int32_t padding_slot(const dr_driver *d, chk_rng *rng) {
    const int32_t reserved = d->problem->desc.reserved_slots;
    return reserved > 0 && chk_flip(rng, 0.5) ? chk_int(rng, 0, reserved - 1) : -chk_int(rng, 1, 1000);
}

/* Parents and paths of row i of the group. Those of chains need not be told; what nobody reads is nonsense.
   Returns whether the row has to tell any. */
static bool add_tree(const dr_driver *d, group *g, int32_t i) {
    const dr_row *row = &d->rows[g->rows[i]];
    const dr_sequence *s = row->sequence >= 0 && !row->prefill ? &d->sequences[row->sequence] : NULL;
    bool tree = false;
    for (int32_t t = 0; t < row->tokens; t++) {
        g->parents[g->offsets[i] + t] = s != NULL ? s->parents[t] : INT32_MAX;
        tree = tree || (s != NULL && s->parents[t] != t - 1);
    }
    for (int32_t t = 0; t < d->problem->desc.step_tokens; t++) {
        g->paths[i * d->problem->desc.step_tokens + t] = t < row->accepted ? row->path[t] : INT32_MIN;
        g->by_paths = g->by_paths || (t < row->accepted && row->path[t] != t);
    }
    return tree;
}

/* order: canonical rows. */
static void make_group(dr_driver *d, dr_lane *lane, int32_t number, const int32_t *order, int32_t rows,
                       group *g) {
    memset(g, 0, sizeof *g);
    g->lane = lane;
    const int32_t stride = chk_int(&lane->rng, 1, 3);
    bool trees = chk_flip(&lane->rng, 0.5);
    g->by_paths = chk_flip(&lane->rng, 0.5);
    for (int32_t i = 0; i < rows; i++) {
        const dr_row *row = &d->rows[order[i]];
        g->rows[i] = order[i];
        g->slots[i * stride] = row->sequence >= 0 ? lane->slots[row->sequence] : padding_slot(d, &lane->rng);
        g->offsets[i + 1] = g->offsets[i] + row->tokens;
        g->accepted[i] = row->accepted;
        g->prefill[i] = row->prefill;
        trees = add_tree(d, g, i) || trees;
    }
    const int32_t tokens = g->offsets[rows];
    cb_feed **feed = &lane->feeds[number * lane->feed_limit + tokens];
    if (!*feed) {
        *feed = cb_feed_make(lane->problem, &lane->rng, tokens);
    }
    g->feed = *feed;
    g->batch =
        (rssm_batch){.struct_size = sizeof g->batch, .rows = rows, .slots = g->slots, .slots_stride = stride};
    g->batch.offsets = g->offsets;
    g->batch.prefill = g->prefill;
    g->batch.parents = trees ? g->parents : NULL;
}

/* Fills the feed with one layer's inputs; padding rows keep what was there. */
static void fill_feed(dr_driver *d, group *g, int32_t layer) {
    const int64_t bytes = d->problem->token_bytes;
    for (int32_t i = 0; i < g->batch.rows; i++) {
        const dr_row *row = &d->rows[g->rows[i]];
        for (int32_t t = 0; row->sequence >= 0 && t < row->tokens; t++) {
            const dr_sequence *s = &d->sequences[row->sequence];
            const dr_token *token = s->tokens[s->position - s->start + t];
            cb_feed_set(g->feed, g->offsets[i] + t, token->blobs + layer * bytes);
        }
    }
}

/* ---- Calls ---------------------------------------------------------------------------------------------- */

typedef struct part_call {
    const group *g;
    int32_t layer, part, parts;
    rssm_status status;
} part_call;

static void *run_part(void *arg) {
    part_call *c = arg;
    c->status = rssm_cache_decode_part(c->g->lane->box->cache, c->layer, &c->g->batch, &c->g->feed->inputs,
                                       &c->g->feed->out, c->part, c->parts);
    return NULL;
}

enum { PARTS_MAX = 5 };

static void decode_in_parts(const group *g, int32_t layer) {
    dr_lane *lane = g->lane;
    part_call calls[PARTS_MAX];
    int32_t order[PARTS_MAX] = {0, 1, 2, 3, 4};
    chk_shuffle(&lane->rng, order, lane->parts);
    pthread_t threads[PARTS_MAX];
    for (int32_t i = 0; i < lane->parts; i++) {
        calls[i] = (part_call){g, layer, order[i], lane->parts, RSSM_OK};
        if (lane->threads) {
            if (pthread_create(&threads[i], NULL, run_part, &calls[i]) != 0) {
                chk_abandon("pthread_create failed");
            }
        } else {
            run_part(&calls[i]);
        }
    }
    for (int32_t i = 0; i < lane->parts; i++) {
        if (lane->threads) {
            pthread_join(threads[i], NULL);
        }
        cb_ok(lane->box, calls[i].status, "decode_part");
    }
}

static void run_decode(const group *g, int32_t layer) {
    const cb_box *box = g->lane->box;
    if (g->lane->parts > 0) {
        decode_in_parts(g, layer);
    } else {
        cb_ok(box, rssm_cache_decode(box->cache, layer, &g->batch, &g->feed->inputs, &g->feed->out, NULL),
              "decode");
    }
}

static void run_prefill(const group *g, int32_t layer) {
    const cb_box *box = g->lane->box;
    cb_ok(box, rssm_cache_prefill(box->cache, layer, &g->batch, &g->feed->inputs, &g->feed->out, NULL),
          "prefill");
}

/* Rows of the other kind must still hold the poison. */
static void check_untouched(dr_driver *d, const group *g, bool prefill) {
    const size_t bytes = g->lane->output_bytes;
    unsigned char *expected = d->bytes, *got = expected + bytes;
    chk_fill(expected, bytes, CHK_AA);
    for (int32_t i = 0; i < g->batch.rows; i++) {
        for (int32_t t = g->offsets[i]; g->prefill[i] == prefill && t < g->offsets[i + 1]; t++) {
            cb_feed_output_bits(g->feed, t, got);
            if (memcmp(expected, got, bytes) != 0) {
                chk_fail("%s wrote to the output of a row that is not its own", prefill ? "decode" : "prefill");
                return;
            }
        }
    }
}

/* Outputs of the group to the lane's dense buffer; on a repeat, compares with what is there. */
static void collect(dr_driver *d, const group *g, int32_t layer, bool repeat) {
    const size_t bytes = g->lane->output_bytes;
    for (int32_t i = 0; i < g->batch.rows; i++) {
        const dr_row *row = &d->rows[g->rows[i]];
        for (int32_t t = 0; t < row->tokens; t++) {
            const size_t at = (size_t)(layer * d->token_limit + row->first + t) * bytes;
            if (!repeat) {
                cb_feed_output_bits(g->feed, g->offsets[i] + t, g->lane->outputs + at);
            } else if (!row->prefill) {
                const int64_t shape[2] = {d->problem->full.value_heads, d->problem->full.d_v};
                cb_feed_output_bits(g->feed, g->offsets[i] + t, d->bytes);
                chk_same_bits("the same decode again", g->lane->outputs + at, d->bytes,
                              bytes / (size_t)d->outputs, 2, shape);
            }
        }
    }
}

static bool has_prefill(const group *g) {
    return memchr(g->prefill, 1, (size_t)g->batch.rows) != NULL;
}

static void run_layer(dr_driver *d, group *g, int32_t layer) {
    fill_feed(d, g, layer);
    cb_feed_poison(g->feed, CHK_AA);
    const uint32_t mode = chk_float_mode();
    if (has_prefill(g) && chk_flip(&g->lane->rng, 0.5)) {
        run_prefill(g, layer);
        check_untouched(d, g, false);
        run_decode(g, layer);
    } else {
        run_decode(g, layer);
        check_untouched(d, g, true);
        if (has_prefill(g)) {
            run_prefill(g, layer);
        }
    }
    collect(d, g, layer, false);
    if (chk_flip(&g->lane->rng, 0.25)) {
        cb_feed_poison(g->feed, CHK_NAN);
        run_decode(g, layer);
        collect(d, g, layer, true);
    }
    if (chk_float_mode() != mode) {
        chk_fail("the floating-point mode was 0x%x and is 0x%x", mode, chk_float_mode());
        chk_set_float_mode(mode);
    }
    cb_feed_intact(g->feed);
}

/* The conventional cache takes over the checkpoint that a prompt's last piece left. */
static void resync(dr_driver *d, int32_t sequence) {
    const cb_box *from = d->lanes[DR_TESTED].box, *to = d->conventional;
    const int32_t slot = d->lanes[DR_TESTED].slots[sequence];
    const int64_t capacity = rssm_cache_export_bytes(from->cache, slot, 0);
    int64_t written = 0;
    void *buffer = chk_guard((size_t)(capacity > 0 ? capacity : 0), 1, CHK_RIGHT);
    cb_ok(from, rssm_cache_export(from->cache, slot, 0, buffer, capacity, &written), "export");
    cb_ok(to, rssm_cache_import(to->cache, d->conventional_slots[sequence], buffer, written), "import");
    d->sequences[sequence].shadow = d->sequences[sequence].position;
}

static void open_group(dr_driver *d, group *g) {
    dr_lane *lane = g->lane;
    cb_ok(lane->box,
          rssm_cache_begin(lane->box->cache, &g->batch, g->accepted, g->by_paths ? g->paths : NULL, NULL),
          "begin");
    for (int32_t i = 0; i < g->batch.rows; i++) {
        const dr_row *row = &d->rows[g->rows[i]];
        if (row->sequence < 0) {
            continue;
        }
        if (lane == &d->lanes[DR_TESTED] && d->sequences[row->sequence].resync) {
            resync(d, row->sequence);
        }
        cb_box_poison_dead(lane->box, lane->slots[row->sequence], CHK_SIGNALLING);
    }
}

void dr_run_lane(dr_driver *d, dr_lane *lane) {
    int32_t order[DR_ROWS], groups = 1, split = d->row_count;
    for (int32_t i = 0; i < d->row_count; i++) {
        order[i] = i;
    }
    if (lane == &d->lanes[DR_OTHER]) {
        chk_shuffle(&lane->rng, order, d->row_count);
        if (chk_flip(&lane->rng, 0.3)) {
            groups = 2;
            split = chk_int(&lane->rng, 0, d->row_count);
        }
    }
    group *g = chk_alloc(2 * sizeof *g);
    make_group(d, lane, 0, order, split, &g[0]);
    make_group(d, lane, 1, order + split, d->row_count - split, &g[1]);
    for (int32_t i = 0; i < groups; i++) {
        open_group(d, &g[i]);
    }
    for (int32_t layer = 0; layer < d->problem->desc.layers; layer++) {
        for (int32_t i = 0; i < groups; i++) {
            run_layer(d, &g[i], layer);
        }
    }
}

/* ---- Comparisons ---------------------------------------------------------------------------------------- */

static void compare_token(dr_driver *d, const dr_lane *lane, const dr_row *row, int32_t t, int32_t layer) {
    const rssm_layer_spec *s = &d->problem->full;
    const unsigned char *stored =
        lane->outputs + (size_t)(layer * d->token_limit + row->first + t) * lane->output_bytes;
    for (int64_t i = 0; i < d->outputs; i++) {
        d->got[i] = rssm_ref_load(stored, lane->problem->out_dtype, i);
        if (row->sequence < 0 && (d->got[i] != 0.0 || stored[0] != 0)) {
            chk_fail("%s: padding row has %g in its output, not 0", lane->name, d->got[i]);
            return;
        }
    }
    if (row->sequence < 0) {
        return;
    }
    const dr_sequence *q = &d->sequences[row->sequence];
    const dr_token *token = q->tokens[q->position - q->start + t];
    for (int32_t head = 0; head < s->value_heads; head++) {
        const int64_t at = (int64_t)head * s->d_v, in_layer = layer * d->outputs + at;
        const double *exact = token->exact + in_layer, *scale = token->scale + in_layer, *got = d->got + at;
        if (lane == &d->lanes[DR_PLAIN]) {
            d->plain = chk_plain_error(d->plain, s->d_v, exact, scale, got);
            continue;
        }
        char what[128];
        snprintf(what, sizeof what, "%s: output of sequence %d, token %d of %d, layer %d, head %d", lane->name,
                 row->sequence, t, row->tokens, layer, head);
        if (!chk_close(what, s->d_v, exact, scale, got, d->plain, lane->problem->out_dtype)) {
            return;
        }
    }
}

void dr_compare_exact(dr_driver *d, const dr_lane *lane) {
    for (int32_t layer = 0; layer < d->problem->desc.layers; layer++) {
        for (int32_t i = 0; i < d->row_count; i++) {
            for (int32_t t = 0; t < d->rows[i].tokens; t++) {
                compare_token(d, lane, &d->rows[i], t, layer);
            }
        }
    }
    if (lane == &d->lanes[DR_PLAIN] && d->plain > 0x1p-7) {
        chk_fail("the plain path is off by %g of the size of its sums", d->plain);
    }
}

void dr_compare_bits(dr_driver *d, const dr_lane *a, const dr_lane *b) {
    const size_t element = a->output_bytes / (size_t)d->outputs;
    for (int32_t layer = 0; layer < d->problem->desc.layers; layer++) {
        const int64_t shape[3] = {d->token_count, d->problem->full.value_heads, d->problem->full.d_v};
        const size_t at = (size_t)(layer * d->token_limit) * a->output_bytes;
        if (!chk_same_bits("the same step in another place", a->outputs + at, b->outputs + at, element, 3,
                           shape)) {
            return;
        }
    }
}

/* One committed token through the conventional cache. */
static void feed_conventional(dr_driver *d, int32_t sequence) {
    dr_sequence *s = &d->sequences[sequence];
    const cb_box *box = d->conventional;
    const dr_token *token = s->tokens[s->shadow - s->start];
    cb_feed *feed = d->conventional_feed;
    const rssm_batch batch = {
        .struct_size = sizeof batch, .rows = 1, .slots = &d->conventional_slots[sequence]};
    cb_ok(box, rssm_cache_begin(box->cache, &batch, NULL, NULL, NULL), "begin, conventional");
    cb_box_poison_dead(box, d->conventional_slots[sequence], CHK_SIGNALLING);
    for (int32_t layer = 0; layer < d->problem->desc.layers; layer++) {
        cb_feed_set(feed, 0, token->blobs + layer * d->problem->token_bytes);
        cb_feed_poison(feed, CHK_AA);
        cb_ok(box, rssm_cache_decode(box->cache, layer, &batch, &feed->inputs, &feed->out, NULL),
              "conventional");
        cb_feed_output(feed, 0, d->got);
        for (int32_t head = 0; head < d->problem->full.value_heads; head++) {
            const int64_t at = (int64_t)head * d->problem->full.d_v, in_layer = layer * d->outputs + at;
            chk_close("conventional output", d->problem->full.d_v, token->exact + in_layer,
                      token->scale + in_layer, d->got + at, d->plain, d->problem->out_dtype);
        }
        cb_feed_intact(feed);
    }
    s->shadow++;
}

void dr_catch_up(dr_driver *d, int32_t sequence) {
    dr_sequence *s = &d->sequences[sequence];
    const dr_lane *lane = &d->lanes[DR_TESTED];
    const rssm_layer_spec *spec = &d->problem->full;
    rssm_slot_info info = {.struct_size = sizeof info};
    cb_ok(lane->box, rssm_cache_slot(lane->box->cache, lane->slots[sequence], &info), "slot");
    const int64_t position =
        s->position + (s->prefill ? s->pending : 0); /* a prompt is committed by its layers */
    if (info.position != position || info.position + info.pending != s->position + s->pending) {
        chk_fail("slot says position %lld and %d pending, not %lld and %d", (long long)info.position,
                 info.pending, (long long)position, (int)(s->position + s->pending - position));
        return;
    }
    if (s->prefill || info.checkpoint <= s->shadow) {
        return; /* a prompt's checkpoint is compared to tolerance only, by its outputs and what follows */
    }
    while (s->shadow < info.checkpoint && chk_ok()) {
        feed_conventional(d, sequence);
    }
    for (int32_t layer = 0; layer < d->problem->desc.layers && chk_ok(); layer++) {
        const int64_t shape[3] = {spec->value_heads, spec->d_v, spec->d_k};
        const void *a = cb_box_part(lane->box, layer, RSSM_PART_CHECKPOINT, lane->slots[sequence]);
        const void *b =
            cb_box_part(d->conventional, layer, RSSM_PART_CHECKPOINT, d->conventional_slots[sequence]);
        chk_same_bits("checkpoint and conventional state", a, b, sizeof(float), 3, shape);
    }
    d->flushes++;
}
