/* SPDX-License-Identifier: Apache-2.0 */
/* The model: twin and reference sequences, and the comparison of a slot with what it must be. */
#include "laws/world.h"

#include <math.h>
#include <string.h>

uint64_t world_seed(world *w) {
    return chk_u64(w->rng);
}

const void *world_token(world *w, uint64_t seed, int32_t layer) {
    chk_rng rng = {seed + 0x9e3779b97f4a7c15u * (uint64_t)(layer + 1)};
    cb_token_draw(w->problem, &rng, w->blob);
    return w->blob;
}

int64_t world_boundary(const world *w, const world_slot *m, int64_t n) {
    int64_t phase = (int64_t)(m->id % (uint64_t)w->window);
    int64_t over = ((n - phase) % w->window + w->window) % w->window;
    return n - over;
}

int64_t world_min(const world *w, const world_slot *m) {
    int64_t least = m->checkpoint[0];
    for (int32_t l = 1; l < w->layers; l++) {
        least = m->checkpoint[l] < least ? m->checkpoint[l] : least;
    }
    return least;
}

int64_t world_max(const world *w, const world_slot *m) {
    int64_t most = m->checkpoint[0];
    for (int32_t l = 1; l < w->layers; l++) {
        most = m->checkpoint[l] > most ? m->checkpoint[l] : most;
    }
    return most;
}

int64_t world_oldest(const world *w, const world_slot *m) {
    int64_t checkpoint = world_max(w, m);
    return w->problem->full.conv_width > 0 && m->floor > checkpoint ? m->floor : checkpoint;
}

/* ---- Twin and reference -----------------------------------------------------------------------------------
 */

void world_twin_copy(world *w, int32_t from, int32_t to) {
    cb_ok(w->twin, rssm_cache_copy(w->twin->cache, 1, &from, &to, NULL, NULL), "twin copy");
}

/* A row without tokens commits what the slot's layers have done, so that it can be copied. */
static void settle_twin(world *w, int32_t twin_slot) {
    const int32_t none[2] = {0, 0};
    rssm_batch batch = {.struct_size = sizeof batch, .rows = 1, .slots = &twin_slot, .offsets = none};
    cb_ok(w->twin, rssm_cache_begin(w->twin->cache, &batch, NULL, NULL, NULL), "twin begin");
}

void world_twin_run(world *w, int32_t twin_slot, int32_t n, const uint64_t *seeds, double *const *out) {
    rssm_batch batch = {.struct_size = sizeof batch, .rows = 1, .slots = &twin_slot};
    for (int32_t t = 0; t < n; t++) {
        cb_ok(w->twin, rssm_cache_begin(w->twin->cache, &batch, NULL, NULL, NULL), "twin begin");
        for (int32_t l = 0; l < w->layers; l++) {
            cb_feed_set(w->twin_feed, 0, world_token(w, seeds[t], l));
            cb_ok(w->twin,
                  rssm_cache_decode(w->twin->cache, l, &batch, &w->twin_feed->inputs, &w->twin_feed->out, NULL),
                  "twin decode");
            if (out != NULL) {
                cb_feed_output(w->twin_feed, 0, out[l] + (int64_t)t * w->outputs);
            }
        }
    }
    settle_twin(w, twin_slot);
}

void world_ref_copy(world *w, rssm_ref_layer *const *from, rssm_ref_layer *const *to) {
    for (int32_t l = 0; l < w->layers; l++) {
        rssm_ref_layer_copy(to[l], from[l]);
    }
}

void world_ref_run(world *w, rssm_ref_layer *const *ref, int32_t n, const uint64_t *seeds) {
    for (int32_t l = 0; l < w->layers; l++) {
        for (int32_t t = 0; t < n; t++) {
            rssm_layer_inputs inputs = cb_token_inputs(w->problem, world_token(w, seeds[t], l));
            rssm_ref_layer_token(ref[l], &inputs, 0, w->exact, NULL);
        }
    }
}

/* Of a checkpoint; the part may be padded. */
static int64_t elements(const world *w) {
    const rssm_layer_spec *spec = &w->problem->full;
    return (int64_t)spec->value_heads * spec->d_v * spec->d_k;
}

/* The reference's state becomes what a checkpoint in memory holds. */
static void reload_ref(world *w, rssm_ref_layer *ref, const float *checkpoint) {
    int64_t n = elements(w);
    double *state = rssm_ref_layer_state(ref);
    for (int64_t i = 0; i < n; i++) {
        state[i] = (double)checkpoint[i];
    }
}

/* ---- The model's own operations ---------------------------------------------------------------------------
 */

void world_rebuild_front(world *w, int32_t s) {
    world_slot *m = &w->model[s];
    int32_t n = (int32_t)(m->position - m->base);
    world_twin_copy(w, w->shadow[s], w->front[s]);
    world_twin_run(w, w->front[s], n, m->tokens, NULL);
    world_ref_copy(w, w->ref_base[s], w->ref_front[s]);
    world_ref_run(w, w->ref_front[s], n, m->tokens);
}

void world_commit(world *w, int32_t s, int32_t a, const int32_t *path) {
    world_slot *m = &w->model[s];
    for (int32_t i = 0; i < a; i++) { /* ascending: nothing is overwritten that is still wanted */
        m->drafts[i] = m->drafts[path[i]];
    }
    int32_t n = (int32_t)(m->position - m->base);
    if (n + a > WORLD_HISTORY) {
        chk_abandon("the model's history of %d tokens is full: the checkpoint stays behind", n);
    }
    world_twin_run(w, w->front[s], a, m->drafts, NULL);
    world_ref_run(w, w->ref_front[s], a, m->drafts);
    memcpy(m->tokens + n, m->drafts, (size_t)a * sizeof *m->drafts);
    m->position += a;
    if (m->floor < m->position - w->reach) {
        m->floor = m->position - w->reach;
    }
}

void world_model_reset(world *w, int32_t s, uint64_t id, int64_t position) {
    world_slot *m = &w->model[s];
    int32_t pair[2] = {w->shadow[s], w->front[s]};
    int64_t positions[2] = {position, position};
    memset(m, 0, sizeof *m);
    m->state = WORLD_READY;
    m->id = id;
    m->base = m->position = m->floor = position;
    for (int32_t l = 0; l < w->layers; l++) {
        m->checkpoint[l] = position;
        rssm_ref_layer_reset(w->ref_base[s][l]);
        rssm_ref_layer_reset(w->ref_front[s][l]);
    }
    cb_ok(w->twin, rssm_cache_reset(w->twin->cache, 2, pair, NULL, positions, NULL), "twin reset");
}

void world_model_copy(world *w, int32_t s, const world_slot *from, int32_t from_index, int64_t position) {
    world_slot *m = &w->model[s];
    if (from_index != s) {
        world_twin_copy(w, w->shadow[from_index], w->shadow[s]);
        world_ref_copy(w, w->ref_base[from_index], w->ref_base[s]);
    }
    world_slot copy = *from;
    copy.position = position;
    copy.step = WORLD_NO_STEP;
    copy.pending = 0;
    copy.torn = 0;
    *m = copy;
    world_rebuild_front(w, s);
}

void world_restart_shadow(world *w, int32_t s) {
    world_slot *m = &w->model[s];
    int64_t bytes = rssm_cache_export_bytes(w->box->cache, w->slot[s], 0), written = -1;
    if (bytes <= 0) {
        chk_abandon("slot %d of %d tokens cannot be exported", w->slot[s], (int)m->position);
    }
    unsigned char *file = chk_guard((size_t)bytes, 16, CHK_RIGHT);
    cb_ok(w->box, rssm_cache_export(w->box->cache, w->slot[s], 0, file, bytes, &written), "export");
    CHK(written == bytes);
    cb_ok(w->twin, rssm_cache_import(w->twin->cache, w->shadow[s], file, bytes), "twin import");
    m->base = m->position;
    for (int32_t l = 0; l < w->layers; l++) {
        reload_ref(w, w->ref_front[s][l], cb_box_part(w->box, l, RSSM_PART_CHECKPOINT, w->slot[s]));
    }
    world_ref_copy(w, w->ref_front[s], w->ref_base[s]);
    world_twin_copy(w, w->shadow[s], w->front[s]);
}

/* The reference's state after a prompt against what prefill left. */
static void check_prefilled(world *w, int32_t s) {
    int64_t n = elements(w);
    for (int32_t l = 0; l < w->layers; l++) {
        const float *got = cb_box_part(w->box, l, RSSM_PART_CHECKPOINT, w->slot[s]);
        const double *exact = rssm_ref_layer_state(w->ref_front[s][l]);
        double error = 0, size = 0;
        for (int64_t i = 0; i < n; i++) {
            double d = (double)got[i] - exact[i];
            error += d * d;
            size += exact[i] * exact[i];
        }
        if (isfinite(size) && size < 1e60 && !(sqrt(error) <= w->tolerance * sqrt(size) + 1e-30)) {
            chk_fail("state after a prompt of %d tokens: relative error %g, layer %d", w->model[s].pending,
                     sqrt(error / size), l);
        }
    }
}

void world_settle(world *w, int32_t s) {
    world_slot *m = &w->model[s];
    if (m->step != WORLD_PREFILL || m->ran != w->all) {
        return;
    }
    world_ref_run(w, w->ref_front[s], m->pending, m->drafts);
    check_prefilled(w, s);
    m->position += m->pending;
    m->floor = m->floor > m->position - w->reach ? m->floor : m->position - w->reach;
    for (int32_t l = 0; l < w->layers; l++) {
        m->checkpoint[l] = m->position;
    }
    m->step = WORLD_NO_STEP;
    m->pending = 0;
    world_restart_shadow(w, s);
}

/* ---- Comparison -------------------------------------------------------------------------------------------
 */

/* The shadow follows the least advanced checkpoint. */
static void advance_shadow(world *w, int32_t s) {
    world_slot *m = &w->model[s];
    int32_t n = (int32_t)(world_min(w, m) - m->base);
    int32_t left = (int32_t)(m->position - m->base) - n;
    if (n <= 0 || left < 0) {
        return;
    }
    world_twin_run(w, w->shadow[s], n, m->tokens, NULL);
    world_ref_run(w, w->ref_base[s], n, m->tokens);
    memmove(m->tokens, m->tokens + n, (size_t)left * sizeof *m->tokens);
    m->base += n;
    for (int32_t l = 0; l < w->layers; l++) {
        reload_ref(w, w->ref_base[s][l], cb_box_part(w->twin, l, RSSM_PART_CHECKPOINT, w->shadow[s]));
    }
    world_ref_copy(w, w->ref_base[s], w->ref_front[s]);
    world_ref_run(w, w->ref_front[s], left, m->tokens);
    w->flushes_seen++;
}

static void check_checkpoints(world *w, int32_t s) {
    const world_slot *m = &w->model[s];
    const rssm_layer_spec *spec = &w->problem->full;
    int64_t shape[3] = {spec->value_heads, spec->d_v, spec->d_k};
    for (int32_t l = 0; l < w->layers; l++) {
        if (m->checkpoint[l] == m->base && !(m->torn >> l & 1u)) {
            chk_same_bits("checkpoint against conventional decoding",
                          cb_box_part(w->box, l, RSSM_PART_CHECKPOINT, w->slot[s]),
                          cb_box_part(w->twin, l, RSSM_PART_CHECKPOINT, w->shadow[s]), sizeof(float), 3, shape);
        }
    }
}

void world_check(world *w, int32_t s) {
    const world_slot *m = &w->model[s];
    rssm_slot_info info = {.struct_size = sizeof info};
    world_settle(w, s);
    cb_ok(w->box, rssm_cache_slot(w->box->cache, w->slot[s], &info), "slot info");
    if (info.state != m->state) {
        chk_abandon("slot %d is in state %d, expected %d", w->slot[s], info.state, m->state);
    }
    if (m->state != WORLD_READY) {
        return;
    }
    if (m->step == WORLD_PREFILL && m->ran != 0) {
        CHK(info.position == m->position && info.pending == m->pending);
        return; /* some layers stand beyond the committed position and others do not */
    }
    if (info.position != m->position || info.checkpoint != world_min(w, m) ||
        info.oldest != world_oldest(w, m) || info.id != m->id || info.pending != m->pending) {
        chk_abandon(
            "slot %d: position %lld checkpoint %lld oldest %lld id %llu pending %d; expected %lld %lld %lld "
            "%llu %d",
            w->slot[s], (long long)info.position, (long long)info.checkpoint, (long long)info.oldest,
            (unsigned long long)info.id, info.pending, (long long)m->position, (long long)world_min(w, m),
            (long long)world_oldest(w, m), (unsigned long long)m->id, m->pending);
    }
    advance_shadow(w, s);
    check_checkpoints(w, s);
}

void world_check_memory(world *w) {
    cb_box_intact(w->box);
    cb_box_intact(w->other);
    chk_guards_intact();
}

/* ---- Making -----------------------------------------------------------------------------------------------
 */

/* The same layers as a cache of other sizes. */
static cb_problem *variant(const cb_problem *problem, int64_t slots, int32_t reserved) {
    cb_problem *v = chk_alloc(sizeof *v);
    *v = *problem;
    v->desc.slots = slots;
    v->desc.reserved_slots = reserved;
    return v;
}

static void make_refs(world *w) {
    const cb_problem *p = w->problem;
    for (int32_t l = 0; l < w->layers; l++) {
        w->ref_scratch[l] = rssm_ref_layer_create(&p->spec, &p->weights[l], p->desc.io_dtype);
        for (int32_t s = 0; s < WORLD_SLOTS; s++) {
            w->ref_base[s][l] = rssm_ref_layer_create(&p->spec, &p->weights[l], p->desc.io_dtype);
            w->ref_front[s][l] = rssm_ref_layer_create(&p->spec, &p->weights[l], p->desc.io_dtype);
        }
    }
}

static void drop_refs(void *arg) {
    world *w = arg;
    for (int32_t l = 0; l < w->layers; l++) {
        rssm_ref_layer_destroy(w->ref_scratch[l]);
        for (int32_t s = 0; s < WORLD_SLOTS; s++) {
            rssm_ref_layer_destroy(w->ref_base[s][l]);
            rssm_ref_layer_destroy(w->ref_front[s][l]);
        }
    }
}

/* A window, T_max and reach unlike the world's. */
static cb_box *make_other(world *w, rssm_context *context, chk_poison poison) {
    cb_problem *p = variant(w->problem, 3, 0);
    p->desc.window = chk_int(w->rng, 1, RSSM_WINDOW_MAX);
    p->desc.step_tokens = chk_int(w->rng, 1, RSSM_STEP_TOKENS_MAX);
    p->desc.reach = chk_int(w->rng, 0, 5);
    return cb_box_make(w->rng, p, context, RSSM_METHOD_REPLAY, 3, 1, poison);
}

world *world_make(chk_rng *rng, const cb_problem *problem, uint64_t isa, int32_t threads, chk_poison poison) {
    world *w = chk_alloc(sizeof *w);
    rssm_context *context = cb_context(isa, threads);
    w->rng = rng;
    w->problem = variant(problem, WORLD_SLOTS + WORLD_RESERVED, WORLD_RESERVED);
    w->layers = problem->desc.layers;
    w->window = problem->desc.window;
    w->step_tokens = problem->desc.step_tokens;
    w->reach = problem->desc.reach;
    w->outputs = problem->spec.value_heads * problem->spec.d_v;
    w->all = (1u << w->layers) - 1u;
    bool wide = problem->desc.io_dtype == RSSM_DTYPE_F32 && problem->out_dtype == RSSM_DTYPE_F32;
    w->tolerance = wide ? 1e-4 : 4e-2;
    w->method = chk_flip(rng, 0.2) ? RSSM_METHOD_AUTO : RSSM_METHOD_REPLAY;
    w->box = cb_box_make(rng, w->problem, context, w->method, WORLD_ROWS, 3, poison);
    w->twin = cb_box_make(rng, variant(problem, 2 * WORLD_SLOTS + 1, 0), context, RSSM_METHOD_CONVENTIONAL, 1,
                          1, poison);
    w->other = make_other(w, context, poison);
    for (int32_t s = 0; s < WORLD_SLOTS; s++) {
        w->slot[s] = w->box->slots[s];
        w->shadow[s] = w->twin->slots[2 * s];
        w->front[s] = w->twin->slots[2 * s + 1];
    }
    w->scratch = w->twin->slots[2 * WORLD_SLOTS];
    w->twin_feed = cb_feed_make(w->problem, rng, 1);
    w->blob = chk_alloc((size_t)problem->token_bytes);
    w->nan_blob = chk_alloc((size_t)problem->token_bytes);
    chk_fill(w->nan_blob, (size_t)problem->token_bytes, CHK_NAN);
    w->again = chk_alloc(2 * cb_feed_output_bytes(w->twin_feed) * WORLD_ROWS * WORLD_PROMPT);
    w->y = chk_alloc(sizeof(double) * (size_t)w->outputs);
    w->exact = chk_alloc(sizeof(double) * (size_t)w->outputs);
    w->scale = chk_alloc(sizeof(double) * (size_t)w->outputs);
    make_refs(w);
    chk_defer(drop_refs, w);
    for (int32_t b = 0; b < 2; b++) {
        for (int32_t l = 0; l < w->layers; l++) {
            w->batch[b].twin[l] = chk_alloc(sizeof(double) * (size_t)w->outputs * WORLD_ROWS * WORLD_PROMPT);
        }
    }
    return w;
}

cb_feed *world_feed(world *w, int32_t tokens) {
    if (w->feeds[tokens] == NULL) {
        w->feeds[tokens] = cb_feed_make(w->problem, w->rng, tokens);
    }
    return w->feeds[tokens];
}
