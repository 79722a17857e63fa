/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on lists of slots that lie in device memory: a few launches each, none of which the host waits for. */
#include "cuda/cuda_host.h"

enum { COPY_MOST = 3072 }; /* entries of a copy: a block keeps 16 bytes of each at once */

/* What the passes of an operation share, with the device entered. */
static rssm_status open_list(rssm_cache *cache, int64_t count, const int32_t *src, const int32_t *dst,
                             const int64_t *positions, const uint64_t *ids, void *stream, rssm_cuda_list *list) {
    if (count > cache->desc.slots) {
        return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "count is %lld; the limit is %lld, the slots of the cache",
                         (long long)count, (long long)cache->desc.slots);
    }
    *list = (rssm_cuda_list){.cache = rssm_cuda_shared(cache),
                             .count = count,
                             .src = src,
                             .dst = dst,
                             .positions = positions,
                             .ids = ids,
                             .plan = rssm_cuda_state_of(cache)->plan};
    RSSM_TRY(rssm_cuda_check_stream(cache, stream));
    RSSM_TRY(rssm_cuda_check_pointer(cache, "src", src));
    RSSM_TRY(rssm_cuda_check_pointer(cache, "slots (dst)", dst));
    RSSM_TRY(rssm_cuda_check_pointer(cache, "positions", positions));
    return rssm_cuda_check_pointer(cache, "ids", ids);
}

static rssm_status pass(rssm_cache *cache, const rssm_cuda_list *list, int which, void *stream) {
    return rssm_cuda_check(cache->context, rssm_launch_list(list, which, stream), "launching an operation on slots");
}

static rssm_cuda_copy bytes_of(const rssm_cache *cache, int32_t layer, int32_t part, int64_t bytes, const rssm_cuda_list *list) {
    return (rssm_cuda_copy){.part = cache->parts[(int64_t)layer * RSSM_PARTS + part],
                            .bytes = bytes,
                            .count = list->count,
                            .src = list->src,
                            .dst = list->dst,
                            .plan = list->plan};
}

/* ---- Reset and adopt ---------------------------------------------------------------------------------- */

static rssm_status zero_part(rssm_cache *cache, int32_t layer, int32_t part, int64_t bytes, const rssm_cuda_list *list,
                             void *stream) {
    rssm_cuda_copy call = bytes_of(cache, layer, part, bytes, list);
    return rssm_cuda_check(cache->context, rssm_launch_zero(&call, stream), "launching a reset");
}

static rssm_status start(rssm_cache *cache, const rssm_cuda_list *list, bool zero, void *stream) {
    rssm_part_info state, conv;
    rssm_part_describe(cache, RSSM_PART_CHECKPOINT, &state);
    rssm_part_describe(cache, RSSM_PART_CONV, &conv);
    RSSM_TRY(pass(cache, list, RSSM_LIST_START, stream));
    for (int32_t layer = 0; zero && layer < cache->desc.layers; layer++) {
        RSSM_TRY(zero_part(cache, layer, RSSM_PART_CHECKPOINT, state.bytes, list, stream));
        if (conv.rank > 0) { /* all rows: which of them are the context does not matter when all are zero */
            RSSM_TRY(zero_part(cache, layer, RSSM_PART_CONV, conv.bytes, list, stream));
        }
    }
    return RSSM_OK;
}

rssm_status rssm_cuda_start(rssm_cache *cache, int64_t count, const int32_t *slots, const uint64_t *ids,
                            const int64_t *positions, bool zero, void *stream) {
    rssm_cuda_scope scope;
    rssm_cuda_list list;
    RSSM_TRY(rssm_cuda_enter(cache->context, &scope));
    rssm_status status = open_list(cache, count, NULL, slots, positions, ids, stream, &list);
    status = status == RSSM_OK ? start(cache, &list, zero, stream) : status;
    rssm_cuda_leave(scope);
    return status;
}

/* ---- Folds -------------------------------------------------------------------------------------------- */

/* Folds every layer of src[i] up to plan[i], in place or into dst[i]. */
static rssm_status fold_layers(rssm_cache *cache, const rssm_cuda_list *list, bool into_dst, void *stream) {
    const rssm_cuda_state *state = rssm_cuda_state_of(cache);
    const rssm_geometry *g = &cache->geometry;
    rssm_cuda_fold call = {.geometry = *g,
                           .layout = rssm_cuda_layout_of(g, g->rows.records, 0, g->d_v, 0, 1),
                           .slices = 1,
                           .words = state->words,
                           .into_dst = into_dst};
    bool spills = rssm_cuda_spills(cache, &call.layout);
    if (spills && state->fold_jobs == 0) {
        return rssm_fail(cache->context, RSSM_ERROR_STATE, "folds of this cache need scratch; call rssm_cache_prepare()");
    }
    call.memory = spills ? state->fold_memory : NULL;
    for (int32_t layer = 0; layer < cache->desc.layers; layer++) {
        call.constants = state->constants[layer];
        memcpy(call.parts, cache->parts + (int64_t)layer * RSSM_PARTS, sizeof call.parts);
        call.parts[RSSM_PART_CURSOR] = cache->parts[RSSM_PART_CURSOR];
        for (int64_t first = 0; first < list->count; first += call.count) {
            call.count = spills && list->count - first > state->fold_jobs ? state->fold_jobs : list->count - first;
            call.src = (into_dst ? list->src : list->dst) + first;
            call.dst = list->dst + first;
            call.positions = list->plan + first;
            RSSM_CUDA_TRY(cache->context, rssm_launch_fold(&call, stream), "launching a fold");
        }
    }
    return RSSM_OK;
}

rssm_status rssm_cuda_flush(rssm_cache *cache, int64_t count, const int32_t *slots, const int64_t *positions, void *stream) {
    rssm_cuda_scope scope;
    rssm_cuda_list list;
    RSSM_TRY(rssm_cuda_enter(cache->context, &scope));
    rssm_status status = open_list(cache, count, NULL, slots, positions, NULL, stream, &list);
    status = status == RSSM_OK ? pass(cache, &list, RSSM_LIST_FLUSH, stream) : status;
    status = status == RSSM_OK ? fold_layers(cache, &list, false, stream) : status;
    status = status == RSSM_OK ? pass(cache, &list, RSSM_LIST_FLUSHED, stream) : status;
    rssm_cuda_leave(scope);
    return status;
}

rssm_status rssm_cuda_rollback(rssm_cache *cache, int64_t count, const int32_t *slots, const int64_t *positions,
                               void *stream) {
    rssm_cuda_scope scope;
    rssm_cuda_list list;
    RSSM_TRY(rssm_cuda_enter(cache->context, &scope));
    rssm_status status = open_list(cache, count, NULL, slots, positions, NULL, stream, &list);
    status = status == RSSM_OK ? pass(cache, &list, RSSM_LIST_ROLLBACK, stream) : status;
    rssm_cuda_leave(scope);
    return status;
}

/* ---- Materialise -------------------------------------------------------------------------------------- */

static rssm_status materialize(rssm_cache *cache, const rssm_cuda_list *list, void *stream) {
    const rssm_geometry *g = &cache->geometry;
    const int64_t row_bytes = (int64_t)g->conv_channels * (g->bf16 ? 2 : 4);
    RSSM_TRY(pass(cache, list, RSSM_LIST_CLAIM, stream));
    RSSM_TRY(pass(cache, list, RSSM_LIST_MATERIALIZE, stream));
    RSSM_TRY(fold_layers(cache, list, true, stream));
    for (int32_t layer = 0; g->conv_width > 0 && layer < cache->desc.layers; layer++) {
        RSSM_CUDA_TRY(cache->context, rssm_launch_conv_rows(list, layer, row_bytes, stream), "launching a copy");
    }
    return pass(cache, list, RSSM_LIST_MATERIALIZED, stream);
}

static rssm_status check_sources(rssm_cache *cache, int64_t count, const int32_t *src) {
    return count > 0 && src == NULL ? rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "src is NULL") : RSSM_OK;
}

rssm_status rssm_cuda_materialize(rssm_cache *cache, int64_t count, const int32_t *src, const int32_t *dst,
                                  const int64_t *positions, const uint64_t *ids, void *stream) {
    rssm_cuda_scope scope;
    rssm_cuda_list list;
    RSSM_TRY(check_sources(cache, count, src));
    RSSM_TRY(rssm_cuda_enter(cache->context, &scope));
    rssm_status status = open_list(cache, count, src, dst, positions, ids, stream, &list);
    status = status == RSSM_OK ? materialize(cache, &list, stream) : status;
    rssm_cuda_leave(scope);
    return status;
}

/* ---- Copy --------------------------------------------------------------------------------------------- */

static rssm_status copy_parts(rssm_cache *cache, const rssm_cuda_list *list, void *stream) {
    RSSM_TRY(pass(cache, list, RSSM_LIST_CLAIM, stream));
    RSSM_TRY(pass(cache, list, RSSM_LIST_COPY, stream));
    for (int32_t layer = 0; layer < cache->desc.layers; layer++) {
        for (int32_t part = 0; part < RSSM_PARTS; part++) {
            rssm_part_info info;
            rssm_part_describe(cache, part, &info);
            if (info.rank > 0 && (info.per_layer || layer == 0)) {
                rssm_cuda_copy call = bytes_of(cache, layer, part, info.bytes, list);
                RSSM_CUDA_TRY(cache->context, rssm_launch_copy(&call, stream), "launching a copy");
            }
        }
    }
    return pass(cache, list, RSSM_LIST_COPIED, stream);
}

rssm_status rssm_cuda_copy_slots(rssm_cache *cache, int64_t count, const int32_t *src, const int32_t *dst,
                                 const uint64_t *ids, void *stream) {
    rssm_cuda_scope scope;
    rssm_cuda_list list;
    RSSM_TRY(check_sources(cache, count, src));
    if (count > COPY_MOST) {
        return rssm_fail(cache->context, RSSM_ERROR_UNSUPPORTED, "count is %lld; the limit of a copy is %d", (long long)count,
                         COPY_MOST);
    }
    RSSM_TRY(rssm_cuda_enter(cache->context, &scope));
    rssm_status status = open_list(cache, count, src, dst, NULL, ids, stream, &list);
    status = status == RSSM_OK ? copy_parts(cache, &list, stream) : status;
    rssm_cuda_leave(scope);
    return status;
}
