/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rssm_cache_begin(): commits the last step of each slot and plans this one. Everything is looked at before anything
 * is changed.
 */
#include "cache.h"
#include "device_ops.h"

#include <string.h>

/* ---- Batches ------------------------------------------------------------------------------------------ */

rssm_status rssm_batch_check(rssm_cache *cache, const rssm_batch *batch, rssm_batch *copy) {
    rssm_context *context = cache->context;
    if (batch == NULL) {
        return rssm_fail(context, RSSM_ERROR_ARGUMENT, "batch is NULL");
    }
    RSSM_TRY(rssm_copy_desc(context, "batch", copy, sizeof *copy, batch));
    if (copy->rows < 0 || (copy->rows > 0 && copy->slots == NULL)) {
        return rssm_fail(context, RSSM_ERROR_ARGUMENT, "batch.rows is %d and batch.slots is %s", (int)copy->rows,
                         copy->slots == NULL ? "NULL" : "given");
    }
    if (context->ops != NULL && copy->parents != NULL) {
        return rssm_fail(context, RSSM_ERROR_UNSUPPORTED, "batch.parents is given; on a CUDA device trees of drafts are not built");
    }
    if (copy->uniform_tokens < 0) {
        return rssm_fail(context, RSSM_ERROR_ARGUMENT, "batch.uniform_tokens is %d; the least is 0",
                         (int)copy->uniform_tokens);
    }
    copy->uniform_tokens = copy->uniform_tokens == 0 ? 1 : copy->uniform_tokens;
    copy->slots_stride = copy->slots_stride == 0 ? 1 : copy->slots_stride;
    if (copy->offsets == NULL && (int64_t)copy->rows * copy->uniform_tokens > INT32_MAX) {
        return rssm_fail(context, RSSM_ERROR_ARGUMENT, "batch has %d rows of %d tokens; the limit is %d tokens",
                         (int)copy->rows, (int)copy->uniform_tokens, INT32_MAX);
    }
    const bool readable = context->ops == NULL; /* else the device looks at the contents */
    for (int32_t row = 0; readable && copy->offsets != NULL && row < copy->rows; row++) {
        if (copy->offsets[row] < 0 || copy->offsets[row + 1] < copy->offsets[row]) {
            return rssm_fail(context, RSSM_ERROR_ARGUMENT,
                             "batch.offsets of row %d are %d and %d; they must be >= 0 and must not fall", (int)row,
                             (int)copy->offsets[row], (int)copy->offsets[row + 1]);
        }
    }
    return RSSM_OK;
}

uint32_t rssm_new_mark(rssm_cache *cache) {
    if (++cache->mark == 0) {
        memset(cache->marks, 0, (size_t)cache->desc.slots * sizeof *cache->marks);
        cache->mark = 1;
    }
    return cache->mark;
}

rssm_status rssm_check_slot(rssm_cache *cache, const char *name, int64_t index, int64_t slot, uint32_t mark) {
    if (slot < cache->desc.reserved_slots || slot >= cache->desc.slots) {
        return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "%s[%lld] is slot %lld; the limits are %d and %lld", name,
                         (long long)index, (long long)slot, (int)cache->desc.reserved_slots,
                         (long long)cache->desc.slots - 1);
    }
    if (mark != 0 && cache->marks[slot] == mark) {
        return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "%s[%lld] is slot %lld, which is named twice", name,
                         (long long)index, (long long)slot);
    }
    if (mark != 0) { /* else several parts of a decode may be here at once */
        cache->marks[slot] = mark;
    }
    return RSSM_OK;
}

rssm_status rssm_check_ready(rssm_cache *cache, int64_t slot) {
    const rssm_cursor *cursor = rssm_cursor_at(cache, slot);
    if (cursor->state == RSSM_CURSOR_READY) {
        return RSSM_OK;
    }
    if (cursor->state == RSSM_CURSOR_FAILED) {
        return rssm_fail(cache->context, RSSM_ERROR_FAILED_SLOT,
                         "slot %lld has failed: a layer did not run a step; reset, import or adopt it", (long long)slot);
    }
    return rssm_fail(cache->context, RSSM_ERROR_STATE, "slot %lld was never reset, adopted, imported or copied to",
                     (long long)slot);
}

/* ---- Looking ------------------------------------------------------------------------------------------ */

static bool conventional(const rssm_cache *cache) {
    return cache->desc.method == RSSM_METHOD_CONVENTIONAL;
}

/* Parents come before their children. */
static rssm_status check_parents(rssm_cache *cache, const rssm_batch *batch, int32_t row) {
    for (int32_t t = 0; t < rssm_batch_tokens(batch, row); t++) {
        int32_t parent = rssm_batch_parent(batch, row, t);
        if (parent < -1 || parent >= t) {
            return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT,
                             "batch.parents of token %d of row %d is %d; the limits are -1 and %d", (int)t, (int)row,
                             (int)parent, (int)t - 1);
        }
    }
    return RSSM_OK;
}

static const int32_t *path_of(const rssm_cache *cache, const int32_t *paths, int32_t row) {
    return paths != NULL ? paths + (int64_t)row * cache->desc.step_tokens : NULL;
}

/* What is kept of a step is one path from the history on. */
static rssm_status check_path(rssm_cache *cache, int32_t row, int32_t slot, int32_t accepted, const int32_t *path) {
    const rssm_cursor *cursor = rssm_cursor_at(cache, slot);
    for (int32_t i = 0, last = -1; i < accepted; i++) {
        int32_t node = path != NULL ? path[i] : i;
        if (node < 0 || node >= cursor->pending) {
            return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT,
                             "paths[%d][%d] is %d; the step of slot %d had the tokens 0 to %d", (int)row, (int)i, (int)node,
                             (int)slot, (int)cursor->pending - 1);
        }
        if (cursor->parents[node] != last) {
            return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT,
                             "paths[%d]%s keeps token %d of slot %d after token %d; its parent is %d", (int)row,
                             path != NULL ? "" : " (NULL: the first tokens)", (int)node, (int)slot, (int)last,
                             (int)cursor->parents[node]);
        }
        last = node;
    }
    return RSSM_OK;
}

static rssm_status check_row(rssm_cache *cache, const rssm_batch *batch, int32_t row, const int32_t *accepted,
                             const int32_t *paths, uint32_t mark) {
    rssm_context *context = cache->context;
    int32_t slot = rssm_batch_slot(batch, row), tokens = rssm_batch_tokens(batch, row);
    if (rssm_is_padding(cache, slot)) {
        return RSSM_OK;
    }
    RSSM_TRY(rssm_check_slot(cache, "batch.slots", row, slot, mark));
    RSSM_TRY(rssm_check_ready(cache, slot));
    if (!rssm_batch_prefill(batch, row) && tokens > cache->desc.step_tokens) {
        return rssm_fail(context, RSSM_ERROR_ARGUMENT, "row %d has %d tokens; the limit (step_tokens) is %d", (int)row,
                         (int)tokens, (int)cache->desc.step_tokens);
    }
    if (!rssm_batch_prefill(batch, row)) {
        RSSM_TRY(check_parents(cache, batch, row));
    }
    const rssm_cursor *cursor = rssm_cursor_at(cache, slot);
    if (accepted == NULL || cursor->step == RSSM_STEP_NONE) {
        return RSSM_OK;
    }
    int32_t least = rssm_step_least(cursor);
    if (accepted[row] < least || accepted[row] > cursor->pending) {
        return rssm_fail(context, RSSM_ERROR_ARGUMENT, "accepted[%d] is %d for slot %d; the limits are %d and %d", (int)row,
                         (int)accepted[row], (int)slot, (int)least, (int)cursor->pending);
    }
    return cursor->step == RSSM_STEP_DECODE ? check_path(cache, row, slot, accepted[row], path_of(cache, paths, row))
                                            : RSSM_OK;
}

bool rssm_layer_torn(const rssm_cursor *cursor, const rssm_layer_cursor *lc) {
    return lc->begun && cursor->step != RSSM_STEP_NONE && lc->serial != cursor->serial &&
           (cursor->step == RSSM_STEP_WHOLE || lc->checkpoint < cursor->target);
}

rssm_progress rssm_layer_progress(const rssm_cache *cache, int64_t slot) {
    const rssm_cursor *cursor = rssm_cursor_at(cache, slot);
    rssm_progress p = {.layers = cache->desc.layers, .missing = -1};
    rssm_checkpoint_range(cache, slot, &p.least, &p.most);
    for (int32_t layer = 0; layer < cache->desc.layers; layer++) {
        const rssm_layer_cursor *lc = rssm_layer_cursor_at(cache, layer, slot);
        p.partial += rssm_layer_torn(cursor, lc);
        if (lc->serial == cursor->serial) {
            p.done++;
        } else {
            p.missing = layer;
        }
    }
    return p;
}

/* Whether the last step of a slot leaves it in order; a slot that does not is failed. */
static rssm_status check_progress(rssm_cache *cache, int32_t slot, int32_t accepted) {
    rssm_cursor *cursor = rssm_cursor_at(cache, slot);
    rssm_progress p = rssm_layer_progress(cache, slot);
    if (rssm_step_in_order(cursor, &p, accepted)) {
        return RSSM_OK;
    }
    cursor->state = RSSM_CURSOR_FAILED;
    cache->info.failed_slots++;
    return rssm_fail(cache->context, RSSM_ERROR_FAILED_SLOT,
                     "slot %d has failed: layer %d of %d did not run the step of %d tokens that follows position %lld",
                     (int)slot, (int)p.missing, (int)cache->desc.layers, (int)cursor->pending,
                     (long long)cursor->position);
}

/* ---- Doing -------------------------------------------------------------------------------------------- */

static void plan(rssm_cache *cache, const rssm_batch *batch, int32_t row, int32_t window) {
    int32_t slot = rssm_batch_slot(batch, row);
    bool prefill = rssm_batch_prefill(batch, row);
    for (int32_t layer = 0; layer < cache->desc.layers; layer++) {
        rssm_layer_cursor *lc = rssm_layer_cursor_at(cache, layer, slot);
        *lc = (rssm_layer_cursor){.checkpoint = lc->checkpoint, .serial = lc->serial};
    }
    rssm_step_request request = {.tokens = rssm_batch_tokens(batch, row),
                                 .whole = prefill || conventional(cache),
                                 .prefill = prefill,
                                 .window = window,
                                 .serial = cache->serial};
    rssm_step_plan(rssm_cursor_at(cache, slot), &request);
    rssm_cursor *cursor = rssm_cursor_at(cache, slot);
    for (int32_t t = 0; cursor->step == RSSM_STEP_DECODE && t < request.tokens; t++) {
        cursor->parents[t] = (int8_t)rssm_batch_parent(batch, row, t);
    }
}

/*
 * Where a long window pays, measured with `replayssm bench auto` (docs/performance.md). On CPUs a core reads hardly
 * faster than it reads and writes in place, so a window of 1, whose buffer stays short, is as fast or faster for
 * most shapes; what is not listed gets it.
 */
static const struct {
    int32_t kind, least_d_v, least_rows;
} long_windows[] = {
    {RSSM_MAMBA2, 80, 1},
};

/* On a CUDA device what counts is how many heads there are to hide a walk behind; the same page has the figures. */
enum { DEVICE_LONG_WINDOW_HEADS = 2048 };

int32_t rssm_effective_window(const rssm_cache *cache, int32_t rows) {
    if (cache->desc.method != RSSM_METHOD_AUTO) {
        return conventional(cache) ? 1 : cache->desc.window;
    }
    if (cache->context->ops != NULL) {
        return (int64_t)rows * cache->geometry.value_heads >= DEVICE_LONG_WINDOW_HEADS ? cache->desc.window : 1;
    }
    for (size_t i = 0; i < sizeof long_windows / sizeof *long_windows; i++) {
        if (cache->geometry.kind == long_windows[i].kind && cache->geometry.d_v >= long_windows[i].least_d_v &&
            rows >= long_windows[i].least_rows) {
            return cache->desc.window;
        }
    }
    return 1;
}

rssm_status rssm_cache_begin(rssm_cache *cache, const rssm_batch *batch, const int32_t *accepted, const int32_t *paths,
                             void *stream) {
    rssm_batch b;
    RSSM_TRY(rssm_batch_check(cache, batch, &b));
    RSSM_TRY(rssm_cache_check_memory(cache));
    if (cache->context->ops != NULL && paths != NULL) {
        return rssm_fail(cache->context, RSSM_ERROR_UNSUPPORTED, "paths is given; on a CUDA device trees of drafts are not built");
    }
    if (cache->context->ops != NULL) {
        return cache->context->ops->begin(cache, &b, accepted, stream);
    }
    uint32_t mark = rssm_new_mark(cache);
    int32_t live = 0;
    for (int32_t row = 0; row < b.rows; row++) {
        RSSM_TRY(check_row(cache, &b, row, accepted, paths, mark));
        live += !rssm_is_padding(cache, rssm_batch_slot(&b, row)) && rssm_batch_tokens(&b, row) > 0;
    }
    rssm_status failed = RSSM_OK;
    for (int32_t row = b.rows - 1; row >= 0; row--) { /* all that fail are marked; the message is of the first */
        if (!rssm_is_padding(cache, rssm_batch_slot(&b, row))) {
            rssm_status status = check_progress(cache, rssm_batch_slot(&b, row), accepted != NULL ? accepted[row] : 0);
            failed = status != RSSM_OK ? status : failed;
        }
    }
    RSSM_TRY(failed);
    cache->serial++;
    cache->info.steps++;
    cache->info.window = rssm_effective_window(cache, live);
    for (int32_t row = 0; row < b.rows; row++) {
        if (!rssm_is_padding(cache, rssm_batch_slot(&b, row))) {
            rssm_progress p = rssm_layer_progress(cache, rssm_batch_slot(&b, row));
            rssm_step_end(rssm_cursor_at(cache, rssm_batch_slot(&b, row)), &cache->geometry.rows, &p,
                          accepted != NULL ? accepted[row] : 0, path_of(cache, paths, row));
            plan(cache, &b, row, cache->info.window);
        }
    }
    return RSSM_OK;
}
