/* SPDX-License-Identifier: Apache-2.0 */
/* What happens between steps in the world: every operation on slots, legal and refused, with the model beside
 * it. */
#include "laws/world.h"

#include <string.h>

#include "cursor.h"
#include "gpu/on_device.h"

/* A prompt that some layers took into their checkpoints and others did not leaves a slot of no use until begin
   fails it; so do parts of a decode. */
static bool settled(const world_slot *m) {
    return m->torn == 0 && !(m->step == WORLD_PREFILL && m->ran != 0);
}

/* Ready slots that are fit for an operation, shuffled. Returns their number. */
static int32_t draw_ready(world *w, int32_t *slots) {
    int32_t n = 0;
    for (int32_t s = 0; s < WORLD_SLOTS; s++) {
        world_settle(w, s);
        if (w->model[s].state == WORLD_READY && settled(&w->model[s])) {
            slots[n++] = s;
        }
    }
    chk_shuffle(w->rng, slots, n);
    return n;
}

static uint64_t draw_id(world *w) {
    return chk_flip(w->rng, 0.5) ? chk_u64(w->rng) : (uint64_t)chk_int(w->rng, 0, 200);
}

static int64_t draw_between(world *w, int64_t low, int64_t high) {
    return low + chk_int(w->rng, 0, (int32_t)(high - low));
}

bool world_reset(world *w) {
    int32_t slots[WORLD_SLOTS], order[WORLD_SLOTS];
    uint64_t ids[WORLD_SLOTS];
    int64_t positions[WORLD_SLOTS];
    int32_t n = chk_int(w->rng, 1, 2);
    bool with_ids = chk_flip(w->rng, 0.8), with_positions = chk_flip(w->rng, 0.7);
    for (int32_t s = 0; s < WORLD_SLOTS; s++) {
        order[s] = s;
    }
    chk_shuffle(w->rng, order, WORLD_SLOTS);
    for (int32_t i = 0; i < n; i++) {
        slots[i] = w->slot[order[i]];
        ids[i] = draw_id(w);
        positions[i] = chk_flip(w->rng, 0.5) ? 0 : chk_int(w->rng, 0, 1000000);
    }
    cb_ok(w->box,
          rssm_cache_reset(w->box->cache, n, slots, with_ids ? ids : NULL, with_positions ? positions : NULL,
                           NULL),
          "reset");
    for (int32_t i = 0; i < n; i++) {
        world_model_reset(w, order[i], with_ids ? ids[i] : 0, with_positions ? positions[i] : 0);
        world_check(w, order[i]);
    }
    return true;
}

bool world_flush(world *w) {
    int32_t ready[WORLD_SLOTS], slots[WORLD_SLOTS];
    int64_t positions[WORLD_SLOTS];
    int32_t n = draw_ready(w, ready);
    if (n == 0) {
        return false;
    }
    n = chk_int(w->rng, 1, n);
    bool all = chk_flip(w->rng, 0.2);
    for (int32_t i = 0; i < n; i++) {
        const world_slot *m = &w->model[ready[i]];
        slots[i] = w->slot[ready[i]];
        positions[i] = chk_flip(w->rng, 0.2) ? -1 : draw_between(w, world_max(w, m), m->position);
    }
    cb_ok(w->box, rssm_cache_flush(w->box->cache, n, slots, all ? NULL : positions, NULL), "flush");
    for (int32_t i = 0; i < n; i++) {
        world_slot *m = &w->model[ready[i]];
        int64_t to = all || positions[i] < 0 ? m->position : positions[i];
        for (int32_t l = 0; l < w->layers; l++) {
            m->checkpoint[l] = m->checkpoint[l] > to ? m->checkpoint[l] : to;
        }
        world_check(w, ready[i]);
    }
    return true;
}

/* Whatever slot_info says can be reached, rollback agrees; a refusal changes nothing. */
bool world_rollback(world *w) {
    int32_t ready[WORLD_SLOTS];
    if (draw_ready(w, ready) == 0) {
        return false;
    }
    int32_t s = ready[0];
    world_slot *m = &w->model[s];
    int64_t oldest = world_oldest(w, m);
    int64_t to = draw_between(w, oldest < 3 ? 0 : oldest - 3, m->position + 1);
    size_t bytes;
    void *before = cb_box_snapshot(w->box, w->slot[s], &bytes);
    rssm_status status = rssm_cache_rollback(w->box->cache, 1, &w->slot[s], &to, NULL);
    if (to < oldest || to > m->position) {
        size_t now;
        cb_expect(w->box, status, RSSM_ERROR_ARGUMENT, "rollback beyond the reach");
        void *after = cb_box_snapshot(w->box, w->slot[s], &now);
        CHK(bytes == now && (CB_DEVICE || memcmp(before, after, bytes) == 0)); /* a device marks the call */
    } else {
        cb_ok(w->box, status, "rollback");
        m->position = to;
        m->step = WORLD_NO_STEP;
        m->pending = 0;
        m->torn = 0;
        world_check(w, s);
        world_rebuild_front(w, s);
    }
    return true;
}

bool world_materialize(world *w) {
    int32_t ready[WORLD_SLOTS], src[WORLD_SLOTS], dst[WORLD_SLOTS], to[WORLD_SLOTS], n = 0;
    int64_t positions[WORLD_SLOTS];
    uint64_t ids[WORLD_SLOTS];
    int32_t sources = draw_ready(w, ready);
    bool is_source[WORLD_SLOTS] = {false}, with_ids = chk_flip(w->rng, 0.7);
    if (sources < 1) {
        return false;
    }
    sources = chk_int(w->rng, 1, sources < 3 ? sources : 3);
    for (int32_t i = 0; i < sources; i++) {
        is_source[ready[i]] = true;
    }
    for (int32_t s = 0; s < WORLD_SLOTS; s++) {
        if (!is_source[s] && chk_flip(w->rng, 0.6)) {
            int32_t from = ready[chk_int(w->rng, 0, sources - 1)];
            src[n] = from;
            to[n] = s;
            ids[n] = draw_id(w);
            positions[n++] = chk_flip(w->rng, 0.3)
                                 ? -1
                                 : draw_between(w, world_oldest(w, &w->model[from]), w->model[from].position);
        }
    }
    int32_t src_slots[WORLD_SLOTS];
    for (int32_t i = 0; i < n; i++) {
        src_slots[i] = w->slot[src[i]];
        dst[i] = w->slot[to[i]];
    }
    if (n == 0) {
        return false;
    }
    size_t bytes, now;
    void *before = cb_box_snapshot(w->box, src_slots[0], &bytes);
    cb_ok(w->box,
          rssm_cache_materialize(w->box->cache, n, src_slots, dst, positions, with_ids ? ids : NULL, NULL),
          "materialize");
    void *after = cb_box_snapshot(w->box, src_slots[0], &now);
    if (memcmp(before, after, bytes) != 0) {
        chk_fail("materialize changed its source");
    }
    for (int32_t i = 0; i < n; i++) {
        world_slot *m = &w->model[to[i]];
        const world_slot *from = &w->model[src[i]];
        int64_t at = positions[i] < 0 ? from->position : positions[i];
        world_model_copy(w, to[i], from, src[i], at);
        m->id = with_ids ? ids[i] : 0;
        m->floor = at;
        for (int32_t l = 0; l < w->layers; l++) {
            m->checkpoint[l] = at;
        }
        world_check(w, to[i]);
    }
    return true;
}

/* The same copies in the model: twins all at once, references by way of the fronts, which are rebuilt anyway.
 */
static void copy_models(world *w, int32_t count, const int32_t *src, const int32_t *dst) {
    world_slot old[WORLD_SLOTS];
    int32_t from[WORLD_SLOTS] = {0}, to[WORLD_SLOTS] = {0};
    memcpy(old, w->model, sizeof old);
    for (int32_t i = 0; i < count; i++) {
        from[i] = w->shadow[src[i]];
        to[i] = w->shadow[dst[i]];
    }
    cb_ok(w->twin, rssm_cache_copy(w->twin->cache, count, from, to, NULL, NULL), "twin copies");
    for (int32_t i = 0; i < count; i++) {
        world_ref_copy(w, w->ref_base[src[i]], w->ref_front[dst[i]]);
    }
    for (int32_t i = 0; i < count; i++) {
        world_ref_copy(w, w->ref_front[dst[i]], w->ref_base[dst[i]]);
        if (src[i] == dst[i]) { /* nothing moves, and what is pending stays so */
            world_rebuild_front(w, dst[i]);
        } else {
            world_model_copy(w, dst[i], &old[src[i]], dst[i], old[src[i]].position);
        }
    }
}

/* Copies as an arbitrary map: chains, swaps, cycles, forks of one source, in one call. */
bool world_copy(world *w) {
    int32_t ready[WORLD_SLOTS], dst_index[WORLD_SLOTS], src_index[WORLD_SLOTS] = {0};
    int32_t src[WORLD_SLOTS], dst[WORLD_SLOTS];
    uint64_t ids[WORLD_SLOTS];
    int32_t n = draw_ready(w, ready);
    bool with_ids = chk_flip(w->rng, 0.5);
    if (n == 0) {
        return false;
    }
    for (int32_t s = 0; s < WORLD_SLOTS; s++) {
        dst_index[s] = s;
    }
    chk_shuffle(w->rng, dst_index, WORLD_SLOTS);
    int32_t count = chk_int(w->rng, 1, WORLD_SLOTS);
    for (int32_t i = 0; i < count; i++) {
        src_index[i] = ready[chk_int(w->rng, 0, n - 1)];
        src[i] = w->slot[src_index[i]];
        dst[i] = w->slot[dst_index[i]];
        ids[i] = draw_id(w);
    }
    cb_ok(w->box, rssm_cache_copy(w->box->cache, count, src, dst, with_ids ? ids : NULL, NULL), "copy");
    copy_models(w, count, src_index, dst_index);
    for (int32_t i = 0; i < count; i++) {
        if (with_ids) {
            w->model[dst_index[i]].id = ids[i];
        }
        world_check(w, dst_index[i]);
    }
    return true;
}

/* ---- Export and import ------------------------------------------------------------------------------------
 */

static void *export_slot(world *w, cb_box *box, int32_t slot, uint32_t flags, int64_t *bytes) {
    int64_t written = -1;
    *bytes = rssm_cache_export_bytes(box->cache, slot, flags);
    if (*bytes <= 0) {
        chk_abandon("slot %d cannot be exported", slot);
    }
    void *file = chk_alloc((size_t)*bytes + 1);
    cb_expect(box, rssm_cache_export(box->cache, slot, flags, file, *bytes - 1, &written), RSSM_ERROR_BUFFER,
              "export into a buffer one byte too small");
    cb_ok(box, rssm_cache_export(box->cache, slot, flags, file, *bytes, &written), "export");
    CHK(written == *bytes);
    (void)w;
    return file;
}

/* An import may fold up to the cache's own boundary or, with equal parameters, keep the checkpoint where it
 * was. */
static void model_import(world *w, int32_t d, const world_slot *from, int32_t from_index, int64_t checkpoint,
                         bool exact) {
    rssm_slot_info info = {.struct_size = sizeof info};
    world_model_copy(w, d, from, from_index, from->position);
    world_slot *m = &w->model[d];
    cb_ok(w->box, rssm_cache_slot(w->box->cache, w->slot[d], &info), "slot info");
    int64_t boundary = world_boundary(w, m, m->position);
    for (int32_t l = 0; l < w->layers; l++) {
        int64_t had = m->checkpoint[l] > checkpoint ? m->checkpoint[l] : checkpoint;
        m->checkpoint[l] = exact || had > info.checkpoint ? had : info.checkpoint;
    }
    if (!exact && info.checkpoint != boundary && info.checkpoint != checkpoint &&
        info.checkpoint != world_min(w, from)) {
        chk_fail("the checkpoint of an imported slot stands at %lld, boundary %lld", (long long)info.checkpoint,
                 (long long)boundary);
    }
    m->floor = info.oldest > m->floor ? info.oldest : m->floor; /* a cache with less reach kept less */
}

static void through_conventional(world *w, int32_t s, const void *file, int64_t bytes) {
    const rssm_layer_spec *spec = &w->problem->full;
    int64_t shape[3] = {spec->value_heads, spec->d_v, spec->d_k};
    cb_ok(w->twin, rssm_cache_import(w->twin->cache, w->scratch, file, bytes),
          "import by the conventional method");
    cb_ok(w->twin, rssm_cache_flush(w->twin->cache, 1, &w->scratch, NULL, NULL),
          "flush by the conventional method");
    for (int32_t l = 0; l < w->layers; l++) {
        chk_same_bits("state imported by the conventional method",
                      cb_box_part(w->twin, l, RSSM_PART_CHECKPOINT, w->scratch),
                      cb_box_part(w->twin, l, RSSM_PART_CHECKPOINT, w->front[s]), sizeof(float), 3, shape);
    }
}

/* Into a cache with another window, where the sequence is compared, and back. */
static void through_other(world *w, int32_t s, int32_t d, const void *file, int64_t bytes) {
    const rssm_layer_spec *spec = &w->problem->full;
    const world_slot *m = &w->model[s];
    const world_slot copy = *m;
    int64_t shape[3] = {spec->value_heads, spec->d_v, spec->d_k}, size;
    int64_t window = w->other->problem->desc.window, phase = (int64_t)(m->id % (uint64_t)window);
    int64_t boundary = m->position - ((m->position - phase) % window + window) % window;
    int32_t slot = CHK_PICK(w->rng, ((int32_t[]){w->other->slots[0], w->other->slots[1]}));
    rssm_slot_info info = {.struct_size = sizeof info};
    cb_ok(w->other, rssm_cache_import(w->other->cache, slot, file, bytes), "import with another window");
    cb_ok(w->other, rssm_cache_slot(w->other->cache, slot, &info), "slot info");
    bool same = window == w->window && m->position - m->base < window + w->other->problem->desc.step_tokens;
    int64_t expected = boundary > world_min(w, m) && !same ? boundary : world_min(w, m);
    if (info.position != m->position || info.checkpoint != expected || info.id != m->id || info.pending != 0) {
        chk_abandon("imported with window %d: position %lld checkpoint %lld, expected %lld %lld", (int)window,
                    (long long)info.position, (long long)info.checkpoint, (long long)m->position,
                    (long long)expected);
    }
    world_twin_copy(w, w->shadow[s], w->scratch);
    world_twin_run(w, w->scratch, (int32_t)(info.checkpoint - m->base), m->tokens, NULL);
    for (int32_t l = 0; l < w->layers; l++) {
        if (m->checkpoint[l] <= info.checkpoint) {
            chk_same_bits("checkpoint imported with another window",
                          cb_box_part(w->other, l, RSSM_PART_CHECKPOINT, slot),
                          cb_box_part(w->twin, l, RSSM_PART_CHECKPOINT, w->scratch), sizeof(float), 3, shape);
        }
    }
    void *back = export_slot(w, w->other, slot, chk_flip(w->rng, 0.5) ? RSSM_EXPORT_STATE_KV : 0, &size);
    cb_ok(w->box, rssm_cache_import(w->box->cache, w->slot[d], back, size), "import from another window");
    model_import(w, d, &copy, s, info.checkpoint, false);
    world_check(w, d);
}

bool world_export(world *w) {
    int32_t ready[WORLD_SLOTS];
    if (draw_ready(w, ready) == 0) {
        return false;
    }
    int32_t s = ready[0], d = chk_int(w->rng, 0, WORLD_SLOTS - 1);
    const uint32_t choices[] = {0, 0, RSSM_EXPORT_STATE_KV, RSSM_EXPORT_CHECKPOINT_ONLY,
                                RSSM_EXPORT_CHECKPOINT_ONLY | RSSM_EXPORT_STATE_KV};
    uint32_t flags = CHK_PICK(w->rng, choices);
    size_t size, now;
    void *before = cb_box_snapshot(w->box, w->slot[s], &size);
    int64_t bytes, again;
    void *file = export_slot(w, w->box, w->slot[s], flags, &bytes);
    void *after = cb_box_snapshot(w->box, w->slot[s], &now);
    if (memcmp(before, after, size) != 0) {
        chk_fail("export changed its slot");
    }
    if (chk_flip(w->rng, 0.3)) {
        through_conventional(w, s, file, bytes);
    }
    if (!(flags & RSSM_EXPORT_CHECKPOINT_ONLY) && chk_flip(w->rng, 0.4)) {
        through_other(w, s, d, file, bytes);
        return true;
    }
    cb_ok(w->box, rssm_cache_import(w->box->cache, w->slot[d], file, bytes), "import");
    const world_slot from = w->model[s];
    bool folded = (flags & RSSM_EXPORT_CHECKPOINT_ONLY) != 0;
    model_import(w, d, &from, s, folded ? from.position : world_min(w, &from), true);
    world_check(w, d);
    void *second = export_slot(w, w->box, w->slot[d], flags, &again);
    if (again != bytes || memcmp(file, second, (size_t)bytes) != 0) {
        chk_fail("an imported slot exports other bytes (flags %u)", flags);
    }
    return true;
}

/* ---- Adopt ------------------------------------------------------------------------------------------------
 */

static void write_context(world *w, int32_t layer, int32_t slot, rssm_ref_layer *ref) {
    const double *context = rssm_ref_layer_context(ref);
    rssm_part_info info;
    cb_ok(w->box, rssm_cache_layout(w->box->cache, RSSM_PART_CONV, &info), "layout");
    int64_t n = (w->problem->full.conv_width - 1) * info.shape[1];
    void *rows = cb_box_part(w->box, layer, RSSM_PART_CONV, slot);
    for (int64_t i = 0; context != NULL && i < n; i++) {
        float x = (float)context[i];
        if (info.dtype == RSSM_DTYPE_BF16) { /* exact: these are inputs */
            uint32_t bits;
            memcpy(&bits, &x, sizeof bits);
            ((uint16_t *)rows)[i] = (uint16_t)(bits >> 16);
        } else {
            ((float *)rows)[i] = x;
        }
    }
}

/* Somebody else computed the state of a sequence: its conventional state is written into a slot and adopted. */
bool world_adopt(world *w) {
    int32_t ready[WORLD_SLOTS];
    if (draw_ready(w, ready) == 0) {
        return false;
    }
    int32_t s = ready[0], d = chk_int(w->rng, 0, WORLD_SLOTS - 1);
    world_slot from = w->model[s];
    uint64_t id = draw_id(w);
    int64_t bytes = cb_box_part_bytes(w->box, RSSM_PART_CHECKPOINT);
    for (int32_t l = 0; l < w->layers; l++) {
        for (int32_t part = RSSM_PART_RECORD_K; part < RSSM_PARTS;
             part++) { /* whoever wrote it left the rest alone */
            void *memory = cb_box_part(w->box, l, part, w->slot[d]);
            if (memory != NULL) {
                chk_fill(memory, (size_t)cb_box_part_bytes(w->box, part), CHK_NAN);
            }
        }
        memcpy(cb_box_part(w->box, l, RSSM_PART_CHECKPOINT, w->slot[d]),
               cb_box_part(w->twin, l, RSSM_PART_CHECKPOINT, w->front[s]), (size_t)bytes);
        write_context(w, l, w->slot[d], w->ref_front[s][l]);
    }
    cb_ok(w->box, rssm_cache_adopt(w->box->cache, 1, &w->slot[d], &id, &from.position, NULL), "adopt");
    world_model_copy(w, d, &from, s, from.position);
    world_slot *m = &w->model[d];
    m->id = id;
    m->floor = m->position;
    for (int32_t l = 0; l < w->layers; l++) {
        m->checkpoint[l] = m->position;
    }
    world_check(w, d);
    return true;
}

/* ---- Rows that are not live -------------------------------------------------------------------------------
 */

/* Poisons entries [from, rows) of a map in a part whose rows are `bytes` apart, `heads` times. */
static void poison_rows(void *memory, int64_t heads, int32_t rows, int64_t row_bytes, const uint8_t *map,
                        int32_t from, chk_poison poison) {
    for (int64_t h = 0; memory != NULL && h < heads; h++) {
        for (int32_t i = from; i < rows; i++) {
            chk_fill((unsigned char *)memory + (h * rows + map[i]) * row_bytes, (size_t)row_bytes, poison);
        }
    }
}

static void poison_part(const cb_box *box, int32_t slot, int32_t part, const uint8_t *map, int32_t from,
                        chk_poison poison) {
    rssm_part_info info;
    cb_ok(box, rssm_cache_layout(box->cache, part, &info), "layout");
    if (info.rank < 2) {
        return;
    }
    bool scalars = part == RSSM_PART_RECORD_SCALAR; /* [channels][rows] */
    int64_t rows = scalars ? info.shape[1] : info.shape[info.rank - 2];
    int64_t heads = scalars || info.rank == 3 ? info.shape[0] : 1;
    int64_t width = scalars ? 1 : info.shape[info.rank - 1];
    int64_t bytes = width * (info.dtype == RSSM_DTYPE_BF16 ? 2 : 4);
    for (int32_t l = 0; l < box->problem->desc.layers; l++) {
        poison_rows(cb_box_part(box, l, part, slot), heads, (int32_t)rows, bytes, map, from, poison);
    }
}

void world_poison_slot(const cb_box *box, int32_t slot, chk_poison poison) {
    rssm_slot_info info = {.struct_size = sizeof info};
    cb_ok(box, rssm_cache_slot(box->cache, slot, &info),
          "slot info"); /* a prompt's rows lie where they belong now */
    const rssm_cursor *cursor = cb_box_part(box, 0, RSSM_PART_CURSOR, slot);
    for (int32_t part = RSSM_PART_RECORD_K; part <= RSSM_PART_RECORD_DECAY; part++) {
        poison_part(box, slot, part, cursor->row_map, cursor->history + cursor->pending, poison);
    }
    poison_part(box, slot, RSSM_PART_CONV, cursor->conv_map, cursor->held + cursor->pending, poison);
}

bool world_poison(world *w) {
    const chk_poison poisons[] = {CHK_NAN, CHK_HUGE};
    for (int32_t s = 0; s < WORLD_SLOTS; s++) {
        if (w->model[s].state == WORLD_READY && settled(&w->model[s])) {
            world_poison_slot(w->box, w->slot[s], CHK_PICK(w->rng, poisons));
        }
    }
    return true;
}
