/* SPDX-License-Identifier: Apache-2.0 */
/* Playing scripts: every schedule goes through one loop, a schedule only decides which sequences take the next
 * step. */
#include "laws/script.h"

#include <string.h>

#include "laws/world.h"

enum { PADDING = 3, ROWS = SCRIPT_SEQUENCES + PADDING, SCRIPT_TOKENS_MAX = 40 }; /* of a row */

/* A chain or a tree, and a path to one of its tokens. */
static void draw_tree(chk_rng *rng, script_round *r) {
    const bool tree = !CB_DEVICE && chk_flip(rng, 0.4);
    int32_t node = chk_flip(rng, 0.4) ? r->tokens - 1 : chk_int(rng, -1, r->tokens - 1);
    for (int32_t t = 0; t < r->tokens; t++) {
        r->node[t] = t;
        r->parents[t] = tree && chk_flip(rng, 0.6) ? chk_int(rng, -1, t - 1) : t - 1;
    }
    r->accepted = 0;
    for (int32_t at = node; at >= 0; at = r->parents[at]) {
        r->accepted++;
    }
    for (int32_t at = node, i = r->accepted; at >= 0; at = r->parents[at]) {
        r->path[--i] = at;
    }
}

void script_draw(chk_rng *rng, const cb_problem *problem, script *s) {
    int32_t most = problem->desc.step_tokens;
    memset(s, 0, sizeof *s);
    s->id = chk_u64(rng);
    s->position = chk_flip(rng, 0.5) ? 0 : chk_int(rng, 0, 100);
    s->rounds = chk_int(rng, SCRIPT_ROUNDS / 2, SCRIPT_ROUNDS);
    for (int32_t i = 0; i < s->rounds; i++) {
        script_round *r = &s->round[i];
        const int32_t lengths[] = {1, most, most + 1, chk_int(rng, 1, 40)};
        r->seed = chk_u64(rng);
        r->prefill = chk_flip(rng, i == 0 ? 0.5 : 0.08);
        r->tokens = r->prefill ? CHK_PICK(rng, lengths) : chk_int(rng, 1, most);
        r->accepted = r->tokens;
        if (!r->prefill) {
            draw_tree(rng, r);
        }
    }
}

void script_without_drafts(const script *s, script *plain) {
    *plain = *s;
    plain->rounds = 0;
    for (int32_t i = 0; i < s->rounds; i++) {
        if (s->round[i].accepted > 0) {
            script_round *r = &plain->round[plain->rounds++];
            *r = s->round[i];
            r->tokens = r->accepted;
            for (int32_t t = 0; t < r->tokens && !r->prefill; t++) {
                r->node[t] = s->round[i].path[t];
                r->parents[t] = t - 1;
                r->path[t] = t;
            }
        }
    }
}

/* One play of some scripts. */
typedef struct player {
    chk_rng *rng;
    const cb_box *box;
    const cb_problem *problem;
    const script *scripts;
    int32_t count;
    schedule how;
    trace *traces;
    int32_t next[SCRIPT_SEQUENCES]; /* round */
    int32_t slot[SCRIPT_SEQUENCES];
    void *blob, *nan_blob;
    /* the step at hand */
    int32_t rows, owner[ROWS], slots[ROWS], offsets[ROWS + 1], accepted[ROWS];
    uint8_t prefill[ROWS];
    int32_t paths[ROWS * RSSM_STEP_TOKENS_MAX], *parents; /* [tokens] */
} player;

static const script_round *round_of(const player *p, int32_t i) {
    return p->next[i] < p->scripts[i].rounds ? &p->scripts[i].round[p->next[i]] : NULL;
}

static void add_row(player *p, int32_t owner) {
    const int32_t padding[] = {-1, INT32_MIN, 0};
    int32_t r = p->rows++;
    const script_round *round = owner < 0 ? NULL : round_of(p, owner);
    int32_t tokens = owner < 0       ? chk_int(p->rng, 0, p->problem->desc.step_tokens)
                     : round == NULL ? 0
                                     : round->tokens;
    p->owner[r] = owner;
    p->slots[r] = owner < 0 ? CHK_PICK(p->rng, padding) : p->slot[owner];
    p->prefill[r] = round != NULL ? round->prefill : owner < 0 && chk_flip(p->rng, 0.3);
    p->offsets[r + 1] = p->offsets[r] + tokens;
    const script_round *last =
        owner < 0 || p->next[owner] == 0 ? NULL : &p->scripts[owner].round[p->next[owner] - 1];
    int32_t most = p->problem->desc.step_tokens;
    p->accepted[r] = last == NULL ? 0 : last->accepted;
    for (int32_t i = 0; last != NULL && !last->prefill && i < most; i++) {
        p->paths[r * most + i] = last->path[i];
    }
    for (int32_t t = 0; round != NULL && !round->prefill && t < tokens; t++) {
        p->parents[p->offsets[r] + t] = round->parents[t];
    }
}

/* Rows of the next step: sequences with rounds left; at the end of each, a row of no tokens that commits. */
static void draw_rows(player *p) {
    int32_t order[ROWS], n = 0;
    for (int32_t i = 0; i < p->count; i++) {
        bool left = p->next[i] <= p->scripts[i].rounds;
        if (left && (p->how.batched ? chk_flip(p->rng, 0.7) : n == 0)) {
            order[n++] = i;
        }
    }
    for (int32_t i = 0; p->how.batched && i < PADDING; i++) {
        if (chk_flip(p->rng, 0.3)) {
            order[n++] = -1;
        }
    }
    chk_shuffle(p->rng, order, n);
    p->rows = 0;
    p->offsets[0] = 0;
    for (int32_t i = 0; i < n; i++) {
        add_row(p, order[i]);
    }
}

static void fill(player *p, int32_t layer, cb_feed *feed) {
    for (int32_t r = 0; r < p->rows; r++) {
        for (int32_t i = p->offsets[r]; i < p->offsets[r + 1]; i++) {
            int32_t owner = p->owner[r];
            if (owner < 0 || p->scripts[owner].nan) {
                cb_feed_set(feed, i, p->nan_blob);
                continue;
            }
            const script_round *round = round_of(p, owner);
            int32_t t = i - p->offsets[r];
            uint64_t token = (uint64_t)(round->prefill ? t : round->node[t]) * 8 + (uint64_t)layer;
            chk_rng rng = {round->seed + 0x9e3779b97f4a7c15u * (token + 1)};
            cb_token_draw(p->problem, &rng, p->blob);
            cb_feed_set(feed, i, p->blob);
        }
    }
}

static void record(player *p, const cb_feed *feed) {
    size_t bytes = cb_feed_output_bytes(feed);
    unsigned char *zero = chk_alloc(bytes);
    for (int32_t r = 0; r < p->rows; r++) {
        for (int32_t i = p->offsets[r]; i < p->offsets[r + 1]; i++) {
            if (p->owner[r] >= 0) {
                trace *t = &p->traces[p->owner[r]];
                cb_feed_output_bits(feed, i, t->outputs + t->output_bytes);
                t->output_bytes += (int64_t)bytes;
                continue;
            }
            cb_feed_output_bits(feed, i, zero);
            for (size_t k = 0; k < bytes; k++) {
                CHK(zero[k] == 0);
            }
        }
    }
}

static void run_layer(player *p, const rssm_batch *batch, int32_t layer) {
    rssm_cache *cache = p->box->cache;
    cb_feed *feed = cb_feed_make(p->problem, p->rng, p->offsets[p->rows]);
    fill(p, layer, feed);
    for (int32_t part = 0; part < p->how.parts; part++) {
        cb_ok(p->box,
              rssm_cache_decode_part(cache, layer, batch, &feed->inputs, &feed->out, p->how.parts - 1 - part,
                                     p->how.parts),
              "part of a decode");
    }
    if (p->how.parts == 0) {
        cb_ok(p->box, rssm_cache_decode(cache, layer, batch, &feed->inputs, &feed->out, NULL), "decode");
    }
    cb_ok(p->box, rssm_cache_prefill(cache, layer, batch, &feed->inputs, &feed->out, NULL), "prefill");
    record(p, feed);
    cb_feed_intact(feed);
}

static void step(player *p) {
    rssm_batch batch = {.struct_size = sizeof batch,
                        .rows = p->rows,
                        .slots = p->slots,
                        .offsets = p->offsets,
                        .parents = p->parents,
                        .prefill = p->prefill};
    cb_ok(p->box, rssm_cache_begin(p->box->cache, &batch, p->accepted, p->paths, NULL), "begin");
    for (int32_t l = 0; l < p->problem->desc.layers; l++) {
        run_layer(p, &batch, l);
    }
    for (int32_t r = 0; r < p->rows; r++) {
        if (p->owner[r] >= 0) {
            p->next[p->owner[r]]++;
            if (p->how.poison) {
                world_poison_slot(p->box, p->slots[r], CHK_NAN);
            }
        }
    }
}

/* The slot as bytes, its checkpoint at the boundary: a step with drafts may have flushed later than one
 * without. */
static void export(player *p, int32_t i) {
    trace *t = &p->traces[i];
    rssm_cache *cache = p->box->cache;
    rssm_slot_info info = {.struct_size = sizeof info};
    int64_t window = p->problem->desc.window, written = 0;
    cb_ok(p->box, rssm_cache_slot(cache, p->slot[i], &info), "slot info");
    int64_t phase = (int64_t)(info.id % (uint64_t)window);
    int64_t boundary = info.position - ((info.position - phase) % window + window) % window;
    if (boundary > info.checkpoint) {
        cb_ok(p->box, rssm_cache_flush(cache, 1, &p->slot[i], &boundary, NULL), "flush");
    }
    t->file_bytes = rssm_cache_export_bytes(cache, p->slot[i], 0);
    if (t->file_bytes <= 0) {
        chk_abandon("slot %d cannot be exported", p->slot[i]);
    }
    t->file = chk_alloc((size_t)t->file_bytes);
    cb_ok(p->box, rssm_cache_export(cache, p->slot[i], 0, t->file, t->file_bytes, &written), "export");
}

static bool rounds_left(const player *p) {
    for (int32_t i = 0; i < p->count; i++) {
        if (p->next[i] <= p->scripts[i].rounds) {
            return true;
        }
    }
    return false;
}

void script_play(chk_rng *rng, const cb_box *box, const script *scripts, int32_t count, schedule how,
                 trace *traces) {
    player p = {.rng = rng,
                .box = box,
                .problem = box->problem,
                .scripts = scripts,
                .count = count,
                .how = how,
                .traces = traces};
    size_t token = (size_t)p.problem->token_bytes,
           output = sizeof(float) * (size_t)(p.problem->spec.value_heads) * (size_t)p.problem->spec.d_v;
    p.blob = chk_alloc(token);
    p.parents = chk_alloc(sizeof(*p.parents) * ROWS * SCRIPT_TOKENS_MAX);
    p.nan_blob = chk_alloc(token);
    chk_fill(p.nan_blob, token, CHK_NAN);
    for (int32_t i = 0; i < count; i++) {
        size_t tokens = 0;
        p.slot[i] = box->slots[(i + how.slot_shift) % box->slot_count];
        for (int32_t r = 0; r < scripts[i].rounds; r++) {
            tokens += (size_t)scripts[i].round[r].tokens;
        }
        traces[i] = (trace){.outputs = chk_alloc(output * tokens * (size_t)p.problem->desc.layers + 1)};
        cb_ok(box, rssm_cache_reset(box->cache, 1, &p.slot[i], &scripts[i].id, &scripts[i].position, NULL),
              "reset");
    }
    while (rounds_left(&p) && chk_ok()) {
        draw_rows(&p);
        step(&p);
    }
    for (int32_t i = 0; i < count && chk_ok(); i++) {
        export(&p, i);
    }
    cb_box_intact(box);
}

static int64_t first_difference(const unsigned char *a, const unsigned char *b, int64_t n) {
    int64_t i = 0;
    while (i < n && a[i] == b[i]) {
        i++;
    }
    return i;
}

bool trace_same(const char *what, const trace *a, const trace *b, bool outputs) {
    int64_t least = a->output_bytes < b->output_bytes ? a->output_bytes : b->output_bytes;
    int64_t at = outputs ? first_difference(a->outputs, b->outputs, least) : least;
    if (outputs && (a->output_bytes != b->output_bytes || at < least)) {
        return chk_fail("%s: outputs of %lld and %lld bytes differ from byte %lld on", what,
                        (long long)a->output_bytes, (long long)b->output_bytes, (long long)at);
    }
    least = a->file_bytes < b->file_bytes ? a->file_bytes : b->file_bytes;
    at = first_difference(a->file, b->file, least);
    if (a->file_bytes != b->file_bytes || at < least) {
        return chk_fail("%s: exports of %lld and %lld bytes differ from byte %lld on", what,
                        (long long)a->file_bytes, (long long)b->file_bytes, (long long)at);
    }
    return true;
}
