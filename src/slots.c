/* SPDX-License-Identifier: Apache-2.0 */
/* What can be done to slots between steps: reset, adopt, flush, rollback, materialise, copy. */
#include "cache.h"
#include "device_ops.h"

#include <stdlib.h>
#include <string.h>

/* ---- Questions about a slot --------------------------------------------------------------------------- */

void rssm_checkpoint_range(const rssm_cache *cache, int64_t slot, int64_t *least, int64_t *most) {
    *least = INT64_MAX;
    *most = INT64_MIN;
    for (int32_t layer = 0; layer < cache->desc.layers; layer++) {
        int64_t at = rssm_layer_cursor_at(cache, layer, slot)->checkpoint;
        *least = at < *least ? at : *least;
        *most = at > *most ? at : *most;
    }
}

int64_t rssm_oldest(const rssm_cache *cache, int64_t slot) {
    const rssm_cursor *cursor = rssm_cursor_at(cache, slot);
    int64_t least, most;
    rssm_checkpoint_range(cache, slot, &least, &most);
    return rssm_step_oldest(cursor, &cache->geometry.rows, most);
}

static rssm_status check_list(rssm_cache *cache, int64_t count, const int32_t *slots, const char *name) {
    if (count < 0 || (count > 0 && slots == NULL)) {
        return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "count is %lld and %s is %s", (long long)count, name,
                         slots == NULL ? "NULL" : "given");
    }
    RSSM_TRY(rssm_cache_check_memory(cache));
    if (cache->context->ops != NULL) {
        return RSSM_OK; /* the device looks at the contents */
    }
    uint32_t mark = rssm_new_mark(cache);
    for (int64_t i = 0; i < count; i++) {
        RSSM_TRY(rssm_check_slot(cache, name, i, slots[i], mark));
    }
    return RSSM_OK;
}

/* positions[i], or the committed one for -1 and NULL, within what the slot reaches. */
static rssm_status check_position(rssm_cache *cache, int64_t i, int64_t slot, const int64_t *positions, int64_t oldest,
                                  int64_t *position) {
    const rssm_cursor *cursor = rssm_cursor_at(cache, slot);
    *position = positions == NULL || positions[i] == -1 ? cursor->position : positions[i];
    if (*position < oldest || *position > cursor->position) {
        return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "positions[%lld] is %lld; slot %lld reaches %lld to %lld",
                         (long long)i, (long long)*position, (long long)slot, (long long)oldest,
                         (long long)cursor->position);
    }
    return RSSM_OK;
}

/* ---- Reset and adopt ---------------------------------------------------------------------------------- */

static void start_slot(rssm_cache *cache, int64_t slot, uint64_t id, int64_t position) {
    rssm_cursor_start(rssm_cursor_at(cache, slot), &cache->geometry.rows, id, position);
    for (int32_t layer = 0; layer < cache->desc.layers; layer++) {
        *rssm_layer_cursor_at(cache, layer, slot) = (rssm_layer_cursor){.checkpoint = position};
    }
}

static rssm_status check_start(rssm_cache *cache, int64_t count, const int32_t *slots, const int64_t *positions) {
    RSSM_TRY(check_list(cache, count, slots, "slots"));
    for (int64_t i = 0; i < count && positions != NULL && cache->context->ops == NULL; i++) {
        if (positions[i] < 0 || positions[i] > INT64_MAX / 2) {
            return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "positions[%lld] is %lld; the limits are 0 and 2^62",
                             (long long)i, (long long)positions[i]);
        }
    }
    return RSSM_OK;
}

rssm_status rssm_cache_reset(rssm_cache *cache, int64_t count, const int32_t *slots, const uint64_t *ids,
                             const int64_t *positions, void *stream) {
    RSSM_TRY(check_start(cache, count, slots, positions));
    if (cache->context->ops != NULL) {
        return cache->context->ops->start(cache, count, slots, ids, positions, true, stream);
    }
    const rssm_geometry *g = &cache->geometry;
    size_t context = (size_t)g->rows.conv_need * (size_t)g->conv_channels * (g->bf16 ? 2 : 4);
    for (int64_t i = 0; i < count; i++) {
        start_slot(cache, slots[i], ids != NULL ? ids[i] : 0, positions != NULL ? positions[i] : 0);
        for (int32_t layer = 0; layer < cache->desc.layers; layer++) {
            for (int32_t part = 0; part < RSSM_PARTS; part++) {
                rssm_part_info info;
                rssm_part_describe(cache, part, &info);
                if (info.rank > 0 && rssm_part_is_state(part)) {
                    memset(rssm_part_at(cache, layer, part, slots[i]), 0, (size_t)info.bytes);
                }
            }
            if (context > 0) {
                memset(rssm_part_at(cache, layer, RSSM_PART_CONV, slots[i]), 0, context);
            }
        }
    }
    return RSSM_OK;
}

rssm_status rssm_cache_adopt(rssm_cache *cache, int64_t count, const int32_t *slots, const uint64_t *ids,
                             const int64_t *positions, void *stream) {
    RSSM_TRY(check_start(cache, count, slots, positions));
    if (cache->context->ops != NULL) {
        return cache->context->ops->start(cache, count, slots, ids, positions, false, stream);
    }
    RSSM_TRY(rssm_cache_prepare(cache, 0, cache->context->desc.threads));
    for (int64_t i = 0; i < count; i++) {
        start_slot(cache, slots[i], ids != NULL ? ids[i] : 0, positions != NULL ? positions[i] : 0);
        for (int32_t layer = 0; layer < cache->desc.layers; layer++) {
            rssm_state state = rssm_state_of(cache, layer, slots[i], 0, 0);
            rssm_build_copy(cache, &cache->geometry, layer, &state, cache->scratch);
        }
    }
    return RSSM_OK;
}

void rssm_build_copy(rssm_cache *cache, const rssm_geometry *geometry, int32_t layer, const rssm_state *state,
                     float *scratch) {
    rssm_move move = {geometry, &cache->constants[layer], state, NULL};
    for (int32_t unit = 0; state->copy != NULL && unit < geometry->units; unit++) {
        cache->kernels->copy_unit(&move, unit, scratch);
    }
}

/* ---- Folds -------------------------------------------------------------------------------------------- */

typedef struct fold_job {
    const rssm_cache *cache;
    rssm_fold fold;
    int64_t pieces;
} fold_job;

static void fold_piece(void *arg, int64_t piece) {
    const fold_job *job = arg;
    const rssm_cache *cache = job->cache;
    int64_t units = cache->geometry.units;
    for (int64_t u = units * piece / job->pieces; u < units * (piece + 1) / job->pieces; u++) {
        cache->kernels->fold_unit(&job->fold, (int32_t)u,
                                  cache->scratch + piece * (int64_t)cache->geometry.scratch.total);
    }
}

rssm_status rssm_fold_units(rssm_cache *cache, const rssm_fold *fold, float *scratch) {
    if (cache->context->ops != NULL) {
        return cache->context->ops->fold(cache, fold);
    }
    for (int32_t unit = 0; unit < fold->geometry->units; unit++) {
        cache->kernels->fold_unit(fold, unit, scratch);
    }
    return RSSM_OK;
}

int32_t rssm_roundings(const rssm_cache *cache, uint64_t id, int64_t from, int64_t to) {
    bool narrow = cache->geometry.formats.checkpoint != RSSM_DTYPE_F32;
    return narrow ? rssm_boundaries(from, to, id, cache->geometry.window) : from < to;
}

rssm_status rssm_fold_layer(rssm_cache *cache, int32_t layer, int64_t slot, int64_t position, const rssm_state *state) {
    rssm_row row = rssm_row_of(cache, layer, slot);
    int64_t count = position - row.layer->checkpoint;
    if (count <= 0) {
        return RSSM_OK;
    }
    fold_job job = {.cache = cache,
                    .fold = {&cache->geometry, &cache->constants[layer], &row, state, (int32_t)count},
                    .pieces = cache->geometry.units < cache->scratch_parts ? cache->geometry.units : cache->scratch_parts};
    cache->flushes += rssm_roundings(cache, state->id, row.layer->checkpoint, position);
    if (cache->context->ops != NULL) {
        return cache->context->ops->fold(cache, &job.fold);
    }
    rssm_parallel(cache->context, job.pieces, fold_piece, &job);
    return RSSM_OK;
}

/* Folding needs scratch, and raw-gate records need the layers' weights. */
rssm_status rssm_prepare_folds(rssm_cache *cache, bool raw_records) {
    for (int32_t layer = 0; layer < cache->desc.layers; layer++) {
        if (raw_records && !cache->constants[layer].ready) {
            return rssm_fail(cache->context, RSSM_ERROR_STATE, "layer %d has no weights, which raw-gate records need",
                             (int)layer);
        }
    }
    return cache->context->ops != NULL ? RSSM_OK : rssm_cache_prepare(cache, 0, cache->context->desc.threads);
}

rssm_status rssm_cache_flush(rssm_cache *cache, int64_t count, const int32_t *slots, const int64_t *positions,
                             void *stream) {
    RSSM_TRY(check_list(cache, count, slots, "slots"));
    RSSM_TRY(rssm_prepare_folds(cache, cache->geometry.raw_records));
    if (cache->context->ops != NULL) {
        return cache->context->ops->flush(cache, count, slots, positions, stream);
    }
    int64_t position;
    for (int64_t i = 0; i < count; i++) {
        int64_t least, most;
        RSSM_TRY(rssm_settle(cache, slots[i]));
        rssm_checkpoint_range(cache, slots[i], &least, &most);
        RSSM_TRY(check_position(cache, i, slots[i], positions, most, &position));
    }
    for (int64_t i = 0; i < count; i++) {
        (void)check_position(cache, i, slots[i], positions, INT64_MIN, &position);
        for (int32_t layer = 0; layer < cache->desc.layers; layer++) {
            rssm_layer_cursor *lc = rssm_layer_cursor_at(cache, layer, slots[i]);
            rssm_state state = rssm_state_of(cache, layer, slots[i], rssm_cursor_at(cache, slots[i])->id, position);
            RSSM_TRY(rssm_fold_layer(cache, layer, slots[i], position, &state));
            lc->checkpoint = position > lc->checkpoint ? position : lc->checkpoint;
        }
        rssm_cursor_retire(rssm_cursor_at(cache, slots[i]), &cache->geometry.rows, position);
    }
    return RSSM_OK;
}

/* ---- Rollback ----------------------------------------------------------------------------------------- */

/* A prefill or conventional step that some layers but not all ran has moved their checkpoints: the slot is of no use
   until begin fails it. */
rssm_status rssm_settle(rssm_cache *cache, int64_t slot) {
    rssm_cursor *cursor = rssm_cursor_at(cache, slot);
    RSSM_TRY(rssm_check_ready(cache, slot));
    rssm_progress p = rssm_layer_progress(cache, slot);
    if (!rssm_step_settle(cursor, &cache->geometry.rows, &p)) {
        return rssm_fail(cache->context, RSSM_ERROR_STATE,
                         "slot %lld has an open step of %d tokens that some layers, or parts of one, have taken into "
                         "their checkpoints and others have not",
                         (long long)slot, (int)cursor->pending);
    }
    return RSSM_OK;
}

rssm_status rssm_cache_rollback(rssm_cache *cache, int64_t count, const int32_t *slots, const int64_t *positions,
                                void *stream) {
    RSSM_TRY(check_list(cache, count, slots, "slots"));
    if (cache->context->ops != NULL) {
        return cache->context->ops->rollback(cache, count, slots, positions, stream);
    }
    int64_t position;
    for (int64_t i = 0; i < count; i++) {
        RSSM_TRY(rssm_settle(cache, slots[i]));
        RSSM_TRY(check_position(cache, i, slots[i], positions, rssm_oldest(cache, slots[i]), &position));
    }
    for (int64_t i = 0; i < count; i++) {
        (void)check_position(cache, i, slots[i], positions, INT64_MIN, &position);
        rssm_cursor_rollback(rssm_cursor_at(cache, slots[i]), position);
    }
    return RSSM_OK;
}

/* ---- Materialise -------------------------------------------------------------------------------------- */

static rssm_status materialize_layer(rssm_cache *cache, int32_t layer, int64_t src, int64_t dst, int64_t position,
                              uint64_t id) {
    const rssm_geometry *g = &cache->geometry;
    for (int32_t part = 0; part < RSSM_PARTS; part++) {
        rssm_part_info info;
        rssm_part_describe(cache, part, &info);
        if (info.rank > 0 && rssm_part_is_state(part)) {
            memcpy(rssm_part_at(cache, layer, part, dst), rssm_part_at(cache, layer, part, src), (size_t)info.bytes);
        }
    }
    rssm_state state = rssm_state_of(cache, layer, dst, id, position);
    RSSM_TRY(rssm_fold_layer(cache, layer, src, position, &state));
    const rssm_cursor *cursor = rssm_cursor_at(cache, src);
    size_t row_bytes = (size_t)g->conv_channels * (g->bf16 ? 2 : 4);
    int32_t oldest = cursor->held - (int32_t)(cursor->position - position) - g->rows.conv_need;
    for (int32_t i = 0; i < g->rows.conv_need; i++) {
        const char *from = rssm_part_at(cache, layer, RSSM_PART_CONV, src);
        char *to = rssm_part_at(cache, layer, RSSM_PART_CONV, dst);
        memcpy(to + (size_t)i * row_bytes, from + (size_t)cursor->conv_map[oldest + i] * row_bytes, row_bytes);
    }
    return RSSM_OK;
}

rssm_status rssm_cache_materialize(rssm_cache *cache, int64_t count, const int32_t *src, const int32_t *dst,
                                   const int64_t *positions, const uint64_t *ids, void *stream) {
    RSSM_TRY(check_list(cache, count, dst, "dst"));
    RSSM_TRY(rssm_prepare_folds(cache, cache->geometry.raw_records));
    if (cache->context->ops != NULL) {
        return cache->context->ops->materialize(cache, count, src, dst, positions, ids, stream);
    }
    uint32_t dst_mark = cache->mark;
    int64_t position;
    for (int64_t i = 0; i < count; i++) {
        if (src == NULL) {
            return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "src is NULL");
        }
        RSSM_TRY(rssm_check_slot(cache, "src", i, src[i], 0));
        if (cache->marks[src[i]] == dst_mark) {
            return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "src[%lld] is slot %d, which is also a dst",
                             (long long)i, (int)src[i]);
        }
        RSSM_TRY(rssm_settle(cache, src[i]));
        RSSM_TRY(check_position(cache, i, src[i], positions, rssm_oldest(cache, src[i]), &position));
    }
    for (int64_t i = 0; i < count; i++) {
        (void)check_position(cache, i, src[i], positions, INT64_MIN, &position);
        for (int32_t layer = 0; layer < cache->desc.layers; layer++) {
            RSSM_TRY(materialize_layer(cache, layer, src[i], dst[i], position, ids != NULL ? ids[i] : 0));
        }
        start_slot(cache, dst[i], ids != NULL ? ids[i] : 0, position);
    }
    return RSSM_OK;
}

/* ---- Copy --------------------------------------------------------------------------------------------- */

/* One part of one layer, as if all at once: sources that are also destinations are kept aside first. `aside` holds
   `count` slots' worth of the part, of which only those are used. */
static void copy_part(const rssm_cache *cache, int32_t layer, int32_t part, int64_t bytes, int64_t count,
                      const int32_t *src, const int32_t *dst, uint32_t dst_mark, char *aside) {
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++) {
        if (cache->marks[src[i]] == dst_mark) {
            memcpy(aside + kept++ * bytes, rssm_part_at(cache, layer, part, src[i]), (size_t)bytes);
        }
    }
    kept = 0;
    for (int64_t i = 0; i < count; i++) {
        bool was_kept = cache->marks[src[i]] == dst_mark;
        const char *from = was_kept ? aside + kept++ * bytes : rssm_part_at(cache, layer, part, src[i]);
        memmove(rssm_part_at(cache, layer, part, dst[i]), from, (size_t)bytes);
    }
}

rssm_status rssm_cache_copy(rssm_cache *cache, int64_t count, const int32_t *src, const int32_t *dst,
                            const uint64_t *ids, void *stream) {
    RSSM_TRY(check_list(cache, count, dst, "dst"));
    if (cache->context->ops != NULL) {
        return cache->context->ops->copy(cache, count, src, dst, ids, stream);
    }
    uint32_t dst_mark = cache->mark;
    int64_t both = 0, largest = 0;
    for (int64_t i = 0; i < count; i++) {
        if (src == NULL) {
            return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "src is NULL");
        }
        RSSM_TRY(rssm_check_slot(cache, "src", i, src[i], 0));
        RSSM_TRY(rssm_settle(cache, src[i]));
        both += cache->marks[src[i]] == dst_mark;
    }
    for (int32_t part = 0; part < RSSM_PARTS; part++) {
        rssm_part_info info;
        rssm_part_describe(cache, part, &info);
        largest = info.bytes > largest ? info.bytes : largest;
    }
    char *aside = both > 0 ? malloc((size_t)(both * largest)) : NULL;
    if (both > 0 && aside == NULL) {
        return rssm_fail(cache->context, RSSM_ERROR_MEMORY, "no memory to keep %lld slots of %lld bytes aside",
                         (long long)both, (long long)largest);
    }
    for (int32_t layer = 0; layer < cache->desc.layers; layer++) {
        for (int32_t part = 0; part < RSSM_PARTS; part++) {
            rssm_part_info info;
            rssm_part_describe(cache, part, &info);
            if (info.rank > 0 && (info.per_layer || layer == 0)) {
                copy_part(cache, layer, part, info.bytes, count, src, dst, dst_mark, aside);
            }
        }
    }
    for (int64_t i = 0; i < count; i++) {
        rssm_cursor *cursor = rssm_cursor_at(cache, dst[i]);
        if (dst[i] != src[i]) {
            rssm_cursor_commit(cursor, &cache->geometry.rows, 0, NULL); /* pending tokens stay behind */
        }
        cursor->id = ids != NULL ? ids[i] : cursor->id;
    }
    free(aside);
    return RSSM_OK;
}
