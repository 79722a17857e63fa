/* SPDX-License-Identifier: Apache-2.0 */
/* One layer of the open step: checks the call, hands its units to the kernels, and marks the layer as done. */
#include "cache.h"
#include "device_ops.h"

#include <string.h>

typedef struct layer_call {
    rssm_cache *cache;
    int32_t layer;
    bool prefill; /* which rows of the batch this call is for */
    rssm_batch batch;
    rssm_layer_inputs inputs;
    rssm_output out;
    rssm_call call;
    int64_t units; /* rows x units of a row */
    int64_t pieces;
    rssm_share *shares; /* [sharers] */
    int64_t sharers;
    int64_t chunk; /* units taken at a time */
} layer_call;

/* ---- Checking ----------------------------------------------------------------------------------------- */

static void fill_strides(rssm_view *view, int64_t heads, int64_t d) {
    view->head_stride = view->head_stride == 0 ? d : view->head_stride;
    view->token_stride = view->token_stride == 0 ? heads * d : view->token_stride;
}

static rssm_status check_dtype(rssm_cache *cache, const char *name, int32_t *dtype) {
    *dtype = *dtype == RSSM_DTYPE_DEFAULT ? cache->desc.io_dtype : *dtype;
    if (*dtype != RSSM_DTYPE_F32 && *dtype != RSSM_DTYPE_BF16) {
        return rssm_fail(cache->context, RSSM_ERROR_UNSUPPORTED, "%s is %d (%s); known are f32 and bf16", name,
                         (int)*dtype, rssm_dtype_name(*dtype));
    }
    return RSSM_OK;
}

rssm_status rssm_check_tensors(rssm_cache *cache, int32_t layer, rssm_layer_inputs *in, rssm_output *out) {
    const rssm_geometry *g = &cache->geometry;
    bool needs_beta = g->delta || g->gate == RSSM_GATE_LOG, needs_z = g->out_norm != RSSM_OUT_NORM_NONE;
    const struct {
        const char *name;
        const void *data;
        bool needed;
    } tensors[] = {{"q", in->q.data, true},         {"k", in->k.data, true},          {"v", in->v.data, true},
                   {"decay", in->decay.data, true}, {"beta", in->beta.data, needs_beta}, {"z", in->z.data, needs_z},
                   {"out", out->data, true}};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        if (tensors[i].needed && tensors[i].data == NULL) {
            return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "%s of layer %d is NULL, and the spec needs it",
                             tensors[i].name, (int)layer);
        }
    }
    RSSM_TRY(check_dtype(cache, "inputs.gate_dtype", &in->gate_dtype));
    RSSM_TRY(check_dtype(cache, "out.dtype", &out->dtype));
    if (g->raw_records && in->gate_dtype != cache->desc.io_dtype) {
        return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT,
                         "inputs.gate_dtype is %s; raw-gate records keep the gate in the io format, %s",
                         rssm_dtype_name(in->gate_dtype), rssm_dtype_name(cache->desc.io_dtype));
    }
    fill_strides(&in->q, g->key_heads, g->d_k);
    fill_strides(&in->k, g->key_heads, g->d_k);
    fill_strides(&in->v, g->value_heads, g->d_v);
    fill_strides(&in->z, g->value_heads, g->d_v);
    fill_strides(&in->decay, g->value_heads, g->vector_decay ? g->d_k : 1);
    fill_strides(&in->beta, g->value_heads, 1);
    if (!needs_beta) {
        in->beta.data = NULL;
    }
    out->head_stride = out->head_stride == 0 ? g->d_v : out->head_stride;
    out->token_stride = out->token_stride == 0 ? (int64_t)g->value_heads * g->d_v : out->token_stride;
    return RSSM_OK;
}

/* The rows of this call are those that begin opened for it. */
static rssm_status check_rows(layer_call *c, bool whole_call) {
    rssm_cache *cache = c->cache;
    for (int32_t row = 0; row < c->batch.rows; row++) {
        int32_t slot = rssm_batch_slot(&c->batch, row), tokens = rssm_batch_tokens(&c->batch, row);
        if (rssm_is_padding(cache, slot) || rssm_batch_prefill(&c->batch, row) != c->prefill || tokens == 0) {
            continue;
        }
        RSSM_TRY(rssm_check_slot(cache, "batch.slots", row, slot, 0));
        RSSM_TRY(rssm_check_ready(cache, slot));
        const rssm_cursor *cursor = rssm_cursor_at(cache, slot);
        if (cursor->step == RSSM_STEP_NONE || cursor->pending != tokens || (cursor->prefill != 0) != c->prefill) {
            return rssm_fail(cache->context, RSSM_ERROR_STATE,
                             "row %d brings %d %s tokens to slot %d, but the open step planned %d%s; call "
                             "rssm_cache_begin() with this batch",
                             (int)row, (int)tokens, c->prefill ? "prefill" : "decode", (int)slot, (int)cursor->pending,
                             cursor->prefill ? " of prefill" : "");
        }
        for (int32_t t = 0; cursor->step == RSSM_STEP_DECODE && t < tokens; t++) {
            if (rssm_batch_parent(&c->batch, row, t) != cursor->parents[t]) {
                return rssm_fail(cache->context, RSSM_ERROR_STATE,
                                 "batch.parents of token %d of row %d is %d, but the open step of slot %d planned %d", (int)t,
                                 (int)row, (int)rssm_batch_parent(&c->batch, row, t), (int)slot, (int)cursor->parents[t]);
            }
        }
        const rssm_layer_cursor *lc = rssm_layer_cursor_at(cache, c->layer, slot);
        if (cursor->step == RSSM_STEP_WHOLE && lc->serial == cursor->serial) {
            return rssm_fail(cache->context, RSSM_ERROR_STATE,
                             "layer %d has run this step of slot %d already, and its checkpoint has moved", (int)c->layer,
                             (int)slot);
        }
        if (whole_call && rssm_layer_torn(cursor, lc)) {
            return rssm_fail(cache->context, RSSM_ERROR_STATE,
                             "layer %d has run some parts of this step of slot %d, and they have folded: run the others",
                             (int)c->layer, (int)slot);
        }
    }
    return RSSM_OK;
}

static rssm_status prepare_call(layer_call *c, rssm_cache *cache, int32_t layer, const rssm_batch *batch,
                                const rssm_layer_inputs *inputs, const rssm_output *out, bool prefill,
                                bool whole_call) {
    c->cache = cache;
    c->layer = layer;
    c->prefill = prefill;
    if (layer < 0 || layer >= cache->desc.layers) {
        return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "layer is %d; the limits are 0 and %d", (int)layer,
                         (int)cache->desc.layers - 1);
    }
    if (inputs == NULL || out == NULL) {
        return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "%s is NULL", inputs == NULL ? "inputs" : "out");
    }
    if (!cache->constants[layer].ready) {
        return rssm_fail(cache->context, RSSM_ERROR_STATE, "layer %d has no weights; call rssm_cache_set_weights()",
                         (int)layer);
    }
    RSSM_TRY(rssm_batch_check(cache, batch, &c->batch));
    if (cache->constants[layer].watched.second_moment != NULL && c->batch.rows > 1) {
        return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "batch.rows is %d; reads of layer %d are watched, in steps of 1 row",
                         (int)c->batch.rows, (int)layer);
    }
    RSSM_TRY(rssm_cache_check_memory(cache));
    RSSM_TRY(rssm_copy_desc(cache->context, "inputs", &c->inputs, sizeof c->inputs, inputs));
    RSSM_TRY(rssm_copy_desc(cache->context, "out", &c->out, sizeof c->out, out));
    RSSM_TRY(rssm_check_tensors(cache, layer, &c->inputs, &c->out));
    if (cache->context->ops == NULL) { /* else the cursors lie on the device */
        RSSM_TRY(check_rows(c, whole_call));
    }
    c->call = (rssm_call){.geometry = &cache->geometry,
                          .constants = &cache->constants[layer],
                          .inputs = &c->inputs,
                          .out = &c->out,
                          .gate_bf16 = c->inputs.gate_dtype == RSSM_DTYPE_BF16,
                          .out_bf16 = c->out.dtype == RSSM_DTYPE_BF16};
    c->units = (int64_t)c->batch.rows * cache->geometry.units;
    return RSSM_OK;
}

/* ---- Running ------------------------------------------------------------------------------------------ */

rssm_state rssm_state_of(rssm_cache *cache, int32_t layer, int64_t slot, uint64_t id, int64_t position) {
    return (rssm_state){.checkpoint = rssm_part_at(cache, layer, RSSM_PART_CHECKPOINT, slot),
                        .exponent = rssm_part_at(cache, layer, RSSM_PART_CHECKPOINT_SCALE, slot),
                        .copy = rssm_part_at(cache, layer, RSSM_PART_READ_COPY, slot),
                        .copy_scale = rssm_part_at(cache, layer, RSSM_PART_READ_SCALE, slot),
                        .id = id,
                        .position = position,
                        .overflows = &cache->overflows};
}

rssm_row rssm_row_of(rssm_cache *cache, int32_t layer, int64_t slot) {
    const rssm_cursor *cursor = rssm_cursor_at(cache, slot);
    rssm_layer_cursor *lc = rssm_layer_cursor_at(cache, layer, slot);
    return (rssm_row){.cursor = cursor,
                      .layer = lc,
                      .state = rssm_state_of(cache, layer, slot, cursor->id, lc->checkpoint),
                      .record_k = rssm_part_at(cache, layer, RSSM_PART_RECORD_K, slot),
                      .record_v = rssm_part_at(cache, layer, RSSM_PART_RECORD_V, slot),
                      .record_decay = rssm_part_at(cache, layer, RSSM_PART_RECORD_DECAY, slot),
                      .record_scalar = rssm_part_at(cache, layer, RSSM_PART_RECORD_SCALAR, slot),
                      .conv = rssm_part_at(cache, layer, RSSM_PART_CONV, slot),
                      .first = (int32_t)(lc->checkpoint - rssm_cursor_base(cursor))};
}

/* Row of the batch as the kernels see it; false: the call has nothing to do for it. */
static bool make_row(const layer_call *c, int32_t index, rssm_row *row) {
    rssm_cache *cache = c->cache;
    int32_t slot = rssm_batch_slot(&c->batch, index), tokens = rssm_batch_tokens(&c->batch, index);
    if (tokens == 0 || rssm_batch_prefill(&c->batch, index) != c->prefill) {
        return false;
    }
    if (rssm_is_padding(cache, slot)) {
        *row = (rssm_row){.tokens = tokens, .token = rssm_batch_token(&c->batch, index)};
        return true;
    }
    *row = rssm_row_of(cache, c->layer, slot);
    row->tokens = tokens;
    row->token = rssm_batch_token(&c->batch, index);
    row->parents = rssm_cursor_chain(row->cursor) ? NULL : row->cursor->parents;
    int64_t ahead = row->cursor->target - row->layer->checkpoint;
    row->fold = ahead > 0 ? (int32_t)ahead : 0;
    if (cache->desc.method == RSSM_METHOD_CONVENTIONAL && !c->prefill) {
        row->fold += tokens; /* committed by being folded */
    }
    row->state.position = c->prefill ? row->cursor->position + tokens : row->layer->checkpoint + row->fold;
    return true;
}

static void for_live_rows(const layer_call *c, void (*fn)(const layer_call *, const rssm_row *)) {
    for (int32_t index = 0; index < c->batch.rows; index++) {
        rssm_row row;
        if (make_row(c, index, &row) && row.cursor != NULL) {
            fn(c, &row);
        }
    }
}

/* ---- Asking for the next unit's small things ---------------------------------------------------------- */

/* Forced inline: gcc 12 takes a function that only prefetches for one without effect, and drops its calls. */
static inline __attribute__((always_inline)) void fetch(const void *p, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) {
        __builtin_prefetch((const char *)p + at, 0, 2);
    }
}

/* Records are small and scattered: waiting for them would cost more than their bytes. */
static inline __attribute__((always_inline)) void fetch_records(const rssm_geometry *g, const rssm_row *row, int32_t key, int32_t hv, bool first_of_key) {
    const int64_t rows = g->rows.records, io = g->bf16 ? 2 : 4;
    for (int32_t j = row->first; j < row->cursor->history; j++) {
        int64_t r = row->cursor->row_map[j];
        fetch((const char *)row->record_v + (hv * rows + r) * g->d_v * io, g->d_v * io);
        if (first_of_key) {
            fetch((const char *)row->record_k + (key * rows + r) * g->d_k * io, g->d_k * io);
        }
        if (g->vector_decay) {
            int64_t width = g->raw_records ? io : 4;
            fetch((const char *)row->record_decay + (hv * rows + r) * g->d_k * width, g->d_k * width);
        }
    }
    fetch(row->record_scalar + (g->channel_beta + hv) * rows, rows * 4);
    if (!g->vector_decay) {
        fetch(row->record_scalar + (g->channel_decay + hv) * rows, rows * 4);
    }
    if (g->l2 && first_of_key) {
        fetch(row->record_scalar + (g->channel_norm + key) * rows, rows * 4);
    }
}

/* The convolution's context of `d` channels from `channel` on, newest rows. */
static inline __attribute__((always_inline)) void fetch_conv(const rssm_geometry *g, const rssm_row *row, int32_t channel, int32_t d) {
    const int64_t io = g->bf16 ? 2 : 4;
    for (int32_t i = 1; i < g->conv_width; i++) {
        int64_t r = row->cursor->conv_map[row->cursor->held - i];
        fetch((const char *)row->conv + (r * g->conv_channels + channel) * io, d * io);
    }
}

static inline __attribute__((always_inline)) void fetch_view(const rssm_view *view, int64_t token, int64_t head, int64_t d, int bf16) {
    if (view->data != NULL) {
        fetch((const char *)view->data + (token * view->token_stride + head * view->head_stride) * (bf16 ? 2 : 4),
              d * (bf16 ? 2 : 4));
    }
}

/* The first token's inputs of a head; those of a step's other tokens follow in most layouts. */
static inline __attribute__((always_inline)) void fetch_inputs(const layer_call *c, const rssm_row *row, int32_t key, int32_t hv, bool first_of_key) {
    const rssm_geometry *g = c->call.geometry;
    const rssm_layer_inputs *in = &c->inputs;
    if (first_of_key) {
        fetch_view(&in->q, row->token, key, g->d_k, g->bf16);
        fetch_view(&in->k, row->token, key, g->d_k, g->bf16);
    }
    fetch_view(&in->v, row->token, hv, g->d_v, g->bf16);
    fetch_view(&in->z, row->token, hv, g->d_v, g->bf16);
    fetch_view(&in->decay, row->token, hv, g->vector_decay ? g->d_k : 1, c->call.gate_bf16);
    fetch_view(&in->beta, row->token, hv, 1, c->call.gate_bf16);
}

/* What a unit reads besides its state. Called one unit ahead. */
static inline __attribute__((always_inline)) void fetch_unit(const layer_call *c, const rssm_row *row, int32_t unit) {
    const rssm_geometry *g = c->call.geometry;
    for (int32_t i = 0; row->cursor != NULL && i < g->unit_values; i++) {
        int32_t h = unit * g->unit_values + i, key = h / g->ratio;
        fetch_records(g, row, key, rssm_value_head(g, key, h % g->ratio), h % g->ratio == 0);
        fetch_conv(g, row, g->conv_v + rssm_value_head(g, key, h % g->ratio) * g->d_v, g->d_v);
        if (h % g->ratio == 0) {
            fetch_conv(g, row, key * g->d_k, g->d_k);
            fetch_conv(g, row, g->conv_k + key * g->d_k, g->d_k);
        }
        fetch_inputs(c, row, key, rssm_value_head(g, key, h % g->ratio), h % g->ratio == 0);
    }
}

/* Units are dealt to the pieces in equal shares, in order, so that a thread keeps its part of a small batch in its
   caches. Rows that fold take several times as long as others, so a piece that is done goes on with the others' shares. */
static void deal_units(layer_call *c, int64_t pieces) {
    c->pieces = pieces;
    c->sharers = pieces;
    c->shares = c->cache->shares;
    for (int64_t i = 0; i < pieces; i++) {
        atomic_store_explicit(&c->shares[i].next, c->units * i / pieces, memory_order_relaxed);
        c->shares[i].end = c->units * (i + 1) / pieces;
        c->chunk = 1 + c->units / (16 * pieces);
    }
}

/* A stretch of units being worked on, and the row of the unit `at`. */
typedef struct stretch {
    int64_t at, end;
    rssm_row row;
    bool live; /* the call has something to do for the row */
} stretch;

static bool take_units(const layer_call *c, int64_t piece, stretch *s) {
    for (int64_t i = 0; i < c->sharers; i++) {
        rssm_share *share = &c->shares[(piece + i) % c->sharers];
        int64_t at = atomic_fetch_add_explicit(&share->next, c->chunk, memory_order_relaxed);
        if (at < share->end) {
            s->at = at;
            s->end = at + c->chunk < share->end ? at + c->chunk : share->end;
            s->live = make_row(c, (int32_t)(at / c->cache->geometry.units), &s->row);
            return true;
        }
    }
    return false;
}

/* Goes on to the next unit, in this stretch or another. Units are numbered row by row. */
static bool next_unit(const layer_call *c, int64_t piece, stretch *s) {
    if (++s->at == s->end) {
        return take_units(c, piece, s);
    }
    if (s->at % c->cache->geometry.units == 0) {
        s->live = make_row(c, (int32_t)(s->at / c->cache->geometry.units), &s->row);
    }
    return true;
}

static void run_piece(void *arg, int64_t piece) {
    const layer_call *c = arg;
    const rssm_cache *cache = c->cache;
    const int32_t units = cache->geometry.units;
    float *scratch = cache->scratch + piece * (int64_t)cache->geometry.scratch.total;
    stretch now, next;
    bool more = take_units(c, piece, &now);
    while (more) {
        next = now;
        more = next_unit(c, piece, &next);
        int32_t unit = (int32_t)(now.at % units);
        if (now.live && c->prefill) {
            cache->kernels->prefill_unit(&c->call, &now.row, unit, scratch);
        } else if (now.live) {
            now.row.ahead = NULL;
            if (more && next.live) {
                now.row.ahead_unit = (int32_t)(next.at % units);
                now.row.ahead = next.row.state.copy != NULL ? next.row.state.copy : next.row.state.checkpoint;
                fetch_unit(c, &next.row, now.row.ahead_unit);
            }
            cache->kernels->decode_unit(&c->call, &now.row, unit, scratch);
        }
        now = next;
    }
}

/* ---- Marking ------------------------------------------------------------------------------------------ */

static int64_t conv_bytes(const rssm_geometry *g, int64_t rows) {
    return g->conv_width > 0 ? rows * g->conv_channels * (g->bf16 ? 2 : 4) : 0;
}

static int64_t record_bytes(const rssm_geometry *g, int64_t n) {
    int64_t io = g->bf16 ? 2 : 4, keys = (int64_t)g->key_heads * g->d_k, values = (int64_t)g->value_heads * g->d_v;
    int64_t decay = g->vector_decay ? (int64_t)g->value_heads * g->d_k * (g->raw_records ? io : 4) : 0;
    return n * (io * (keys + values) + 4 * (int64_t)g->channels + decay);
}

static int64_t checkpoint_bytes(const rssm_geometry *g) {
    int64_t rows = (int64_t)g->value_heads * g->d_v;
    return rows * g->d_k * rssm_dtype_bytes(g->formats.checkpoint) + (g->formats.checkpoint == RSSM_DTYPE_F8 ? rows : 0);
}

/* Of the read copy, 0 without one. */
static int64_t copy_bytes(const rssm_geometry *g) {
    const rssm_formats *f = &g->formats;
    const int64_t heads = g->value_heads, rows = heads * g->d_v;
    const int64_t scales = f->copy == RSSM_DTYPE_NVFP4 ? heads * f->scale_head
                           : f->copy == RSSM_DTYPE_F8  ? rows
                           : f->copy == RSSM_DTYPE_INT8 ? 4 * rows
                                                        : 0;
    return f->copy == RSSM_DTYPE_DEFAULT ? 0 : heads * f->copy_head + scales;
}

/* Counts what the method had to move for one row of a decode step; see docs/numerics.md for the formula. */
static void count_row(rssm_cache *cache, const rssm_row *row) {
    const rssm_geometry *g = &cache->geometry;
    int64_t state = checkpoint_bytes(g), copy = copy_bytes(g), read = row->fold > 0 || copy == 0 ? state : copy;
    int64_t history = row->cursor->history - row->first;
    bool conventional = cache->desc.method == RSSM_METHOD_CONVENTIONAL;
    cache->row_steps++;
    cache->flushes += rssm_roundings(cache, row->cursor->id, row->state.position - row->fold, row->state.position);
    cache->bytes_read += read + record_bytes(g, history) + conv_bytes(g, g->rows.conv_need);
    cache->bytes_written += (row->fold > 0 ? state + copy : 0) + (conventional ? 0 : record_bytes(g, row->tokens)) +
                            conv_bytes(g, row->tokens);
}

/* Every unit of a row has run: the layer's checkpoint stands where the step put it. */
static void mark_done(const layer_call *c, const rssm_row *row) {
    rssm_cache *cache = c->cache;
    if (c->prefill) {
        cache->row_steps++;
        cache->flushes++;
        if (cache->geometry.formats.checkpoint != RSSM_DTYPE_F32) { /* of the history, before the scan */
            cache->flushes += rssm_roundings(cache, row->cursor->id, row->layer->checkpoint, row->cursor->position);
        }
        row->layer->checkpoint = row->cursor->position + row->tokens;
    } else {
        count_row(cache, row);
        row->layer->checkpoint += row->fold;
    }
    row->layer->serial = row->cursor->serial;
    row->layer->begun = 0;
    row->layer->ended = 0;
}

static rssm_status run_layer(rssm_cache *cache, int32_t layer, const rssm_batch *batch, const rssm_layer_inputs *inputs,
                             const rssm_output *out, bool prefill, void *stream) {
    layer_call c;
    RSSM_TRY(prepare_call(&c, cache, layer, batch, inputs, out, prefill, true));
    if (cache->context->ops != NULL) {
        return cache->context->ops->layer(cache, layer, &c.batch, &c.inputs, &c.out, prefill, stream);
    }
    int32_t threads = cache->context->desc.threads;
    RSSM_TRY(rssm_cache_prepare(cache, c.batch.rows, threads));
    deal_units(&c, c.units < threads ? c.units : threads);
    rssm_parallel(cache->context, c.pieces, run_piece, &c);
    for_live_rows(&c, mark_done);
    return RSSM_OK;
}

rssm_status rssm_cache_decode(rssm_cache *cache, int32_t layer, const rssm_batch *batch, const rssm_layer_inputs *inputs,
                              const rssm_output *out, void *stream) {
    return run_layer(cache, layer, batch, inputs, out, false, stream);
}

rssm_status rssm_cache_prefill(rssm_cache *cache, int32_t layer, const rssm_batch *batch,
                               const rssm_layer_inputs *inputs, const rssm_output *out, void *stream) {
    return run_layer(cache, layer, batch, inputs, out, true, stream);
}

/* Slots that some part has worked on cannot be given up half-folded: begin looks at this mark. */
static void mark_begun(const layer_call *c, const rssm_row *row) {
    (void)c;
    row->layer->begun = 1;
}

/* Counted by row, so that the parts of several open batches do not mix. */
static void mark_ended(const layer_call *c, const rssm_row *row) {
    if ((int64_t)atomic_fetch_add(&row->layer->ended, 1) + 1 == c->pieces) {
        mark_done(c, row);
    }
}

rssm_status rssm_cache_decode_part(rssm_cache *cache, int32_t layer, const rssm_batch *batch,
                                   const rssm_layer_inputs *inputs, const rssm_output *out, int32_t part, int32_t parts) {
    layer_call c;
    if (cache->context->ops != NULL) {
        return rssm_fail(cache->context, RSSM_ERROR_UNSUPPORTED, "parts of a layer are for the CPU; the device is CUDA");
    }
    RSSM_TRY(prepare_call(&c, cache, layer, batch, inputs, out, false, false));
    if (parts < 1 || parts > cache->scratch_parts || part < 0 || part >= parts) {
        return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT,
                         "part is %d of %d; parts goes to %d (see rssm_cache_prepare()), part to parts - 1", (int)part,
                         (int)parts, (int)cache->scratch_parts);
    }
    /* A part has its share and no other: which parts run at once is the caller's business. */
    rssm_share own = {.next = c.units * part / parts, .end = c.units * (part + 1) / parts};
    c.pieces = parts;
    c.shares = &own;
    c.sharers = 1;
    c.chunk = c.units;
    for_live_rows(&c, mark_begun);
    run_piece(&c, part);
    for_live_rows(&c, mark_ended);
    return RSSM_OK;
}
