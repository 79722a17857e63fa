/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Model steps in the world: one or two batches with disjoint slots, rows in any order with padding among them,
 * decode rows (chains and trees) and pieces of prompts together, any path of a step accepted, layers in any
 * order, repeated, skipped or torn.
 */
#include "gpu/on_device.h"
#include "laws/world.h"

#include <math.h>
#include <string.h>

/* ---- Drawing a batch --------------------------------------------------------------------------------------
 */

/* A begin that finds this commits tokens that some layer never saw, so it must fail the slot. */
static bool must_fail(const world *w, const world_slot *m, int32_t accepted) {
    if (m->step == WORLD_DECODE) {
        return accepted > 0 && m->ran != w->all;
    }
    return m->step == WORLD_PREFILL && m->ran != w->all && (m->ran | m->torn) != 0;
}

/* Some parts of a layer folded and others did not: the library may say that the slot is lost, or recover it. */
static bool may_fail(const world_slot *m) {
    return m->torn != 0;
}

/* A path of the slot's last step to keep; its length. */
static int32_t draw_path(world *w, const world_slot *m, int32_t *path) {
    int32_t node = chk_flip(w->rng, 0.4) ? m->pending - 1 : chk_int(w->rng, -1, m->pending - 1), n = 0;
    for (int32_t at = node; at >= 0; at = m->parents[at]) {
        n++;
    }
    for (int32_t at = node, i = n; at >= 0; at = m->parents[at]) {
        path[--i] = at;
    }
    return n;
}

static int32_t draw_accepted(world *w, const world_slot *m, int32_t *path) {
    if (m->step == WORLD_PREFILL) {
        return m->pending;
    }
    if (m->step != WORLD_DECODE) {
        return chk_int(w->rng, -3, 99); /* nothing is pending: ignored */
    }
    if (m->ran != w->all && chk_flip(w->rng, 0.7)) {
        return 0;
    }
    return draw_path(w, m, path);
}

static int32_t draw_tokens(world *w, bool prefill) {
    if (!prefill) {
        return chk_flip(w->rng, 0.1) ? 0 : chk_int(w->rng, 1, w->step_tokens);
    }
    switch (chk_int(w->rng, 0, 4)) {
    case 0:
        return 1;
    case 1:
        return w->step_tokens;
    case 2:
        return w->step_tokens + 1;
    case 3:
        return chk_int(w->rng, 0, 12);
    default:
        return chk_int(w->rng, 1, WORLD_PROMPT);
    }
}

/* Parents and kept path of a row; nonsense where nobody reads it. */
static void add_tree(world *w, world_batch *b, int32_t r) {
    int32_t *path = b->paths + r * w->step_tokens, *parents = b->parents + b->offsets[r];
    bool tree = !CB_DEVICE && chk_flip(w->rng, 0.4), read = b->owner[r] >= 0 && !b->prefill[r];
    for (int32_t t = 0; t < w->step_tokens; t++) {
        path[t] = chk_flip(w->rng, 0.5) ? INT32_MIN : INT32_MAX;
    }
    for (int32_t t = 0; t < b->offsets[r + 1] - b->offsets[r]; t++) {
        parents[t] = !read ? INT32_MAX : tree && chk_flip(w->rng, 0.6) ? chk_int(w->rng, -1, t - 1) : t - 1;
        b->trees |= read && parents[t] != t - 1;
    }
    b->accepted[r] = b->owner[r] < 0 ? chk_int(w->rng, -2, 40) : draw_accepted(w, &w->model[b->owner[r]], path);
    const world_slot *m = b->owner[r] < 0 ? NULL : &w->model[b->owner[r]];
    for (int32_t i = 0; m != NULL && m->step == WORLD_DECODE && i < b->accepted[r]; i++) {
        b->by_paths |= path[i] != i;
    }
}

static void add_row(world *w, world_batch *b, int32_t owner, int32_t uniform, bool prompts) {
    int32_t r = b->rows++;
    bool prefill = prompts && chk_flip(w->rng, 0.3);
    int32_t tokens = uniform > 0 ? uniform : draw_tokens(w, prefill);
    const int32_t padding[] = {-1, -1000, INT32_MIN, 0, WORLD_RESERVED - 1};
    b->owner[r] = owner;
    b->prefill[r] = prefill ? (uint8_t)chk_int(w->rng, 1, 255) : 0;
    b->any_prefill |= prefill;
    b->any_decode |= !prefill;
    b->offsets[r + 1] = b->offsets[r] + tokens;
    b->slots[r] = owner < 0 ? CHK_PICK(w->rng, padding) : w->slot[owner];
    add_tree(w, b, r);
}

static void spread_slots(world *w, world_batch *b) {
    int64_t stride = chk_int(w->rng, 1, 3);
    for (int32_t r = b->rows - 1; r >= 0; r--) {
        b->slots[r * stride] = b->slots[r];
        for (int64_t gap = 1; gap < stride; gap++) {
            b->slots[r * stride + gap] = INT32_MAX;
        }
    }
    b->desc.slots_stride = stride == 1 && chk_flip(w->rng, 0.5) ? 0 : stride;
}

/* A batch over `count` model slots and some padding. */
static void draw_batch(world *w, world_batch *b, const int32_t *owners, int32_t count) {
    int32_t padding = chk_flip(w->rng, 0.4) ? chk_int(w->rng, 1, 3) : 0;
    int32_t rows[WORLD_ROWS];
    int32_t n = 0;
    bool prompts = chk_flip(w->rng, 0.25);
    int32_t uniform = !prompts && chk_flip(w->rng, 0.2) ? chk_int(w->rng, 1, w->step_tokens) : 0;
    for (int32_t i = 0; i < count; i++) {
        rows[n++] = owners[i];
    }
    for (int32_t i = 0; i < padding; i++) {
        rows[n++] = -1;
    }
    chk_shuffle(w->rng, rows, n);
    b->rows = 0;
    b->offsets[0] = 0;
    b->any_prefill = b->any_decode = false;
    b->trees = chk_flip(w->rng, 0.3); /* chains may be told too */
    b->by_paths = chk_flip(w->rng, 0.3);
    for (int32_t i = 0; i < n; i++) {
        add_row(w, b, rows[i], uniform, prompts);
    }
    memset(&b->desc, 0, sizeof b->desc);
    b->desc.struct_size = sizeof b->desc;
    b->desc.rows = b->rows;
    b->desc.slots = b->slots;
    b->desc.offsets = uniform > 0 && chk_flip(w->rng, 0.8) ? NULL : b->offsets;
    b->desc.uniform_tokens = uniform;
    b->desc.prefill = b->any_prefill ? b->prefill : NULL;
    b->desc.parents = b->trees ? b->parents : NULL;
    spread_slots(w, b);
}

/* ---- begin ------------------------------------------------------------------------------------------------
 */

/* What begin does with the last step of a slot; a prompt that all layers ran is settled after it. */
static void close_model(world *w, int32_t s, int32_t accepted, const int32_t *path) {
    world_slot *m = &w->model[s];
    if (m->step == WORLD_DECODE) {
        world_commit(w, s, accepted, path);
        w->drafts_dropped += m->pending - accepted;
    }
    if (m->step == WORLD_PREFILL && m->ran == w->all) {
        world_settle(w, s);
    }
    m->step = WORLD_NO_STEP;
    m->pending = 0;
}

static void open_model(world *w, world_batch *b, int32_t r, int32_t window) {
    world_slot *m = &w->model[b->owner[r]];
    int32_t tokens = b->offsets[r + 1] - b->offsets[r];
    m->ran = m->torn = 0;
    if (tokens == 0) {
        return;
    }
    m->step = b->prefill[r] ? WORLD_PREFILL : WORLD_DECODE;
    m->pending = tokens;
    m->target = window == 1 ? m->position : world_boundary(w, m, m->position);
    for (int32_t t = 0; t < tokens; t++) {
        m->drafts[t] = world_seed(w);
        m->parents[t] = b->prefill[r] ? t - 1 : b->parents[b->offsets[r] + t];
    }
}

/* Brings the twin's scratch sequence to where pending token `node` is committed; -1: where none is. */
static void twin_to(world *w, int32_t s, int32_t node) {
    if (node < 0) {
        world_twin_copy(w, w->front[s], w->scratch);
        return;
    }
    twin_to(w, s, w->model[s].parents[node]);
    world_twin_run(w, w->scratch, 1, &w->model[s].drafts[node], NULL);
}

/* Conventional outputs of a row's tokens, each on its own path. */
static void expect_row(world *w, world_batch *b, int32_t r) {
    int32_t s = b->owner[r], tokens = b->offsets[r + 1] - b->offsets[r];
    const world_slot *m = &w->model[s];
    for (int32_t t = 0; !b->prefill[r] && t < tokens; t++) {
        double *out[WORLD_LAYERS];
        for (int32_t l = 0; l < w->layers; l++) {
            out[l] = b->twin[l] + (int64_t)(b->offsets[r] + t) * w->outputs;
        }
        if (t == 0 || m->parents[t] != t - 1) {
            twin_to(w, s, m->parents[t]);
        }
        world_twin_run(w, w->scratch, 1, &m->drafts[t], out);
    }
}

/* At most one row may fail a begin, so that it is known which one did. Returns its owner or -1. */
static int32_t settle_failures(world *w, world_batch *b, bool counts) {
    int32_t failing = -1;
    for (int32_t r = 0; r < b->rows; r++) {
        int32_t s = b->owner[r];
        const world_slot *m = s < 0 ? NULL : &w->model[s];
        if (m == NULL || !(must_fail(w, m, counts ? b->accepted[r] : 0) || may_fail(m))) {
            continue;
        }
        if (failing < 0) {
            failing = s;
            continue;
        }
        b->owner[r] = -1; /* leave this one for another time */
        b->slots[r * (b->desc.slots_stride ? b->desc.slots_stride : 1)] = -1;
    }
    for (int32_t r = 0; CB_DEVICE && failing >= 0 && r < b->rows; r++) { /* a device opens the rows that do not fail */
        if (b->owner[r] != failing) {
            b->owner[r] = -1;
            b->slots[r * (b->desc.slots_stride ? b->desc.slots_stride : 1)] = -1;
        }
    }
    return failing;
}

/* The window of the step just begun. */
static int32_t step_window(const world *w) {
    rssm_cache_info info = {.struct_size = sizeof info};
    cb_ok(w->box, rssm_cache_status(w->box->cache, &info), "status");
    if (info.window != w->window && !(info.window == 1 && w->method == RSSM_METHOD_AUTO)) {
        chk_abandon("the effective window is %d", info.window);
    }
    return info.window;
}

/* Begins a batch; false if it failed, as it had to, and nothing was opened. */
static bool begin_batch(world *w, world_batch *b) {
    bool counts = chk_flip(w->rng, 0.9), certain = false;
    for (int32_t r = 0; r < b->rows; r++) { /* no count is right for a prompt that no layer ran */
        const world_slot *m = b->owner[r] < 0 ? NULL : &w->model[b->owner[r]];
        counts = counts && !(m != NULL && m->step == WORLD_PREFILL && m->ran == 0);
    }
    int32_t failing = settle_failures(w, b, counts);
    for (int32_t r = 0; r < b->rows; r++) {
        certain |= b->owner[r] >= 0 && must_fail(w, &w->model[b->owner[r]], counts ? b->accepted[r] : 0);
    }
    rssm_status status = rssm_cache_begin(w->box->cache, &b->desc, counts ? b->accepted : NULL,
                                          b->by_paths ? b->paths : NULL, NULL);
    if (status == RSSM_ERROR_FAILED_SLOT && failing >= 0) {
        memset(&w->model[failing], 0, sizeof w->model[failing]);
        w->model[failing].state = WORLD_FAILED;
        return false;
    }
    cb_ok(w->box, status, "begin");
    if (certain) {
        chk_abandon("begin committed tokens that a layer of slot %d never ran", w->slot[failing]);
    }
    const int32_t window = step_window(w);
    for (int32_t r = 0; r < b->rows; r++) {
        if (b->owner[r] >= 0) {
            close_model(w, b->owner[r], counts ? b->accepted[r] : 0, b->paths + r * w->step_tokens);
            open_model(w, b, r, window);
        }
    }
    for (int32_t r = 0; r < b->rows; r++) {
        if (b->owner[r] >= 0) {
            world_check(w, b->owner[r]);
            expect_row(w, b, r);
        }
    }
    return true;
}

/* ---- Layers -----------------------------------------------------------------------------------------------
 */

/* An output may be off by the tolerance times the size of the sums that the token's outputs are made of. */
static void compare_outputs(world *w, const char *what, const double *exact, int32_t layer,
                            const world_batch *b, int32_t r, int32_t token) {
    double size = 0;
    for (int32_t i = 0; i < w->outputs; i++) {
        size = fmax(size, w->scale[i] + fabs(exact[i]));
        if (!isfinite(w->scale[i]) || !isfinite(exact[i]) || size > 1e30) {
            return; /* beyond f32 */
        }
    }
    for (int32_t i = 0; i < w->outputs; i++) {
        if (!(fabs(w->y[i] - exact[i]) <= w->tolerance * size)) {
            chk_fail("output against %s: %.9g, expected %.9g (sums of %.3g), element %d of token %d of %d "
                     "(%s), layer %d",
                     what, w->y[i], exact[i], size, i, token - b->offsets[r], b->offsets[r + 1] - b->offsets[r],
                     b->prefill[r] ? "prompt" : "decode", layer);
            return;
        }
    }
}

/* The same of the reference. */
static void ref_to(world *w, int32_t s, int32_t layer, int32_t node) {
    if (node < 0) {
        rssm_ref_layer_copy(w->ref_scratch[layer], w->ref_front[s][layer]);
        return;
    }
    ref_to(w, s, layer, w->model[s].parents[node]);
    rssm_layer_inputs inputs = cb_token_inputs(w->problem, world_token(w, w->model[s].drafts[node], layer));
    rssm_ref_layer_token(w->ref_scratch[layer], &inputs, 0, w->exact, NULL);
}

static void verify_row(world *w, world_batch *b, int32_t r, int32_t layer, const cb_feed *feed) {
    int32_t s = b->owner[r];
    size_t bytes = cb_feed_output_bytes(feed);
    for (int32_t i = b->offsets[r]; i < b->offsets[r + 1]; i++) {
        if (s < 0) {
            unsigned char *zero = w->again;
            cb_feed_output_bits(feed, i, zero);
            for (size_t k = 0; k < bytes; k++) {
                if (zero[k] != 0) {
                    chk_fail("output of padding row %d is not zero", r);
                    return;
                }
            }
            continue;
        }
        const int32_t t = i - b->offsets[r], parent = w->model[s].parents[t];
        if (t == 0 || parent != t - 1) {
            ref_to(w, s, layer, parent);
        }
        rssm_layer_inputs inputs = cb_token_inputs(w->problem, world_token(w, w->model[s].drafts[t], layer));
        rssm_ref_layer_token(w->ref_scratch[layer], &inputs, 0, w->exact, w->scale);
        cb_feed_output(feed, i, w->y);
        compare_outputs(w, "the reference", w->exact, layer, b, r, i);
        if (!b->prefill[r]) {
            compare_outputs(w, "conventional decoding", b->twin[layer] + (int64_t)i * w->outputs, layer, b, r,
                            i);
        }
    }
}

static rssm_status call_decode(world *w, world_batch *b, int32_t layer, const cb_feed *feed) {
    int32_t parts = chk_int(w->rng, 0, 3), order[3] = {0, 1, 2};
    if (parts == 0) {
        return rssm_cache_decode(w->box->cache, layer, &b->desc, &feed->inputs, &feed->out, NULL);
    }
    chk_shuffle(w->rng, order, parts);
    for (int32_t i = 0; i < parts; i++) {
        rssm_status status =
            rssm_cache_decode_part(w->box->cache, layer, &b->desc, &feed->inputs, &feed->out, order[i], parts);
        if (status != RSSM_OK) {
            return status;
        }
    }
    return RSSM_OK;
}

static void fill_feed(world *w, world_batch *b, int32_t layer, cb_feed *feed) {
    const chk_poison poisons[] = {CHK_NAN, CHK_HUGE, CHK_AA};
    for (int32_t r = 0; r < b->rows; r++) {
        for (int32_t i = b->offsets[r]; i < b->offsets[r + 1]; i++) {
            const void *token = b->owner[r] < 0
                                    ? w->nan_blob
                                    : world_token(w, w->model[b->owner[r]].drafts[i - b->offsets[r]], layer);
            cb_feed_set(feed, i, token);
        }
    }
    cb_feed_poison(feed, CHK_PICK(w->rng, poisons));
}

/* Outputs of the rows of one kind, dense, to see that a call for the other kind leaves them alone. */
static size_t collect(world *w, const world_batch *b, const cb_feed *feed, bool prefill, unsigned char *to) {
    size_t bytes = cb_feed_output_bytes(feed), n = 0;
    for (int32_t r = 0; r < b->rows; r++) {
        for (int32_t i = b->offsets[r]; i < b->offsets[r + 1] && (b->prefill[r] != 0) == prefill; i++) {
            cb_feed_output_bits(feed, i, to + n);
            n += bytes;
        }
    }
    (void)w;
    return n;
}

/* One kind of rows of one layer: decode or prefill. */
static void run_kind(world *w, world_batch *b, int32_t layer, cb_feed *feed, bool prefill) {
    unsigned char *before = w->again;
    size_t n = collect(w, b, feed, !prefill, before);
    rssm_status status =
        prefill ? rssm_cache_prefill(w->box->cache, layer, &b->desc, &feed->inputs, &feed->out, NULL)
                : call_decode(w, b, layer, feed);
    cb_ok(w->box, status, prefill ? "prefill" : "decode");
    unsigned char *after = before + n;
    collect(w, b, feed, !prefill, after);
    if (memcmp(before, after, n) != 0) {
        chk_fail("%s wrote to outputs of rows of the other kind", prefill ? "prefill" : "decode");
    }
    for (int32_t r = 0; r < b->rows; r++) {
        world_slot *m = b->owner[r] < 0 ? NULL : &w->model[b->owner[r]];
        if ((b->prefill[r] != 0) != prefill) {
            continue;
        }
        verify_row(w, b, r, layer, feed);
        if (m != NULL && m->step != WORLD_NO_STEP) {
            m->ran |= 1u << layer;
            if (!prefill && m->target > m->checkpoint[layer]) {
                m->checkpoint[layer] = m->target;
            }
        }
    }
}

/* A call that cannot run: refused, and nothing has happened. */
static void run_broken(world *w, world_batch *b, int32_t layer, const cb_feed *feed) {
    rssm_layer_inputs inputs = feed->inputs;
    rssm_output out = feed->out;
    if (chk_flip(w->rng, 0.5)) {
        inputs.v.data = NULL;
    } else {
        out.data = NULL;
    }
    cb_expect(w->box, rssm_cache_decode(w->box->cache, layer, &b->desc, &inputs, &out, NULL),
              RSSM_ERROR_ARGUMENT, "decode without a tensor");
}

/* The first of two parts and no more. */
static void run_torn(world *w, world_batch *b, int32_t layer, const cb_feed *feed) {
    cb_ok(w->box, rssm_cache_decode_part(w->box->cache, layer, &b->desc, &feed->inputs, &feed->out, 0, 2),
          "part of a decode");
    for (int32_t r = 0; r < b->rows; r++) {
        if (b->owner[r] >= 0 && !b->prefill[r] && w->model[b->owner[r]].step == WORLD_DECODE) {
            w->model[b->owner[r]].torn |= 1u << layer;
        }
    }
}

static void run_layer(world *w, world_batch *b, int32_t layer) {
    int32_t tokens = b->offsets[b->rows];
    cb_feed *feed = world_feed(w, tokens <= 40 ? tokens : (tokens + 99) / 100 * 100);
    fill_feed(w, b, layer, feed);
    if (b->any_decode && tokens > 0 && chk_flip(w->rng, 0.05)) {
        run_broken(w, b, layer, feed);
    }
    if (b->any_decode && chk_flip(w->rng, 0.01)) {
        CB_DEVICE ? run_broken(w, b, layer, feed) : run_torn(w, b, layer, feed); /* parts are the CPU's */
        return;
    }
    bool prefill_first = chk_flip(w->rng, 0.5);
    for (int32_t i = 0; i < 2; i++) {
        bool prefill = (i == 0) == prefill_first;
        if (prefill ? b->any_prefill : b->any_decode) {
            run_kind(w, b, layer, feed, prefill);
        }
    }
    if (b->any_decode && chk_flip(w->rng, 0.1)) { /* the same step again: the same bits */
        size_t n = collect(w, b, feed, false, w->again);
        unsigned char *first = chk_alloc(n + 1);
        memcpy(first, w->again, n);
        cb_ok(w->box, call_decode(w, b, layer, feed), "repeated decode");
        collect(w, b, feed, false, w->again);
        if (memcmp(first, w->again, n) != 0) {
            chk_fail("a repeated layer gives other outputs");
        }
    }
    cb_feed_intact(feed);
}

/* ---- A step -----------------------------------------------------------------------------------------------
 */

static void run_layers(world *w, world_batch *const *open, int32_t batches) {
    int32_t calls[2 * WORLD_LAYERS];
    int32_t n = 0;
    bool abandon = chk_flip(w->rng, 0.15);
    for (int32_t b = 0; b < batches; b++) {
        for (int32_t l = 0; l < w->layers; l++) {
            calls[n++] = b * WORLD_LAYERS + l;
        }
    }
    chk_shuffle(w->rng, calls, n);
    for (int32_t i = 0; i < n; i++) {
        if (!(abandon && chk_flip(w->rng, 0.5))) {
            run_layer(w, open[calls[i] / WORLD_LAYERS], calls[i] % WORLD_LAYERS);
        }
    }
}

void world_step(world *w) {
    int32_t owners[WORLD_SLOTS], n = 0;
    for (int32_t s = 0; s < WORLD_SLOTS; s++) {
        if (w->model[s].state == WORLD_READY) {
            owners[n++] = s;
        }
    }
    chk_shuffle(w->rng, owners, n);
    int32_t first = chk_int(w->rng, n > 0 ? 1 : 0, n);
    int32_t second = chk_flip(w->rng, 0.3) ? n - first : 0;
    world_batch *open[2];
    int32_t batches = 0;
    for (int32_t i = 0; i < (second > 0 ? 2 : 1); i++) {
        world_batch *b = &w->batch[i];
        draw_batch(w, b, owners + (i == 0 ? 0 : first), i == 0 ? first : second);
        if (begin_batch(w, b)) {
            open[batches++] = b;
        }
    }
    run_layers(w, open, batches);
    for (int32_t s = 0; s < WORLD_SLOTS; s++) {
        if (w->model[s].step != WORLD_PREFILL ||
            chk_flip(w->rng, 0.5)) { /* the others are left for begin to commit */
            world_check(w, s);
        }
    }
    w->steps++;
}
