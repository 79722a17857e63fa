/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A slot as bytes. Layout, native byte order, every section padded to 8 bytes:
 *
 *   header            what the slot is (identity), where it stands, what follows
 *   int64 [layers]    position of each layer's checkpoint
 *   per layer         state   [value_heads][d_v][d_k], or [d_k][d_v] with RSSM_EXPORT_STATE_KV, in the header's
 *                     checkpoint_dtype
 *                     f8: exponents [value_heads][d_v]
 *                     k [key_heads][history][d_k], v [value_heads][history][d_v], io format, oldest record first
 *                     scalars f32 [channels][history]; KDA's decay [value_heads][history][d_k]
 *                     convolution rows [held][channels], oldest first
 *   uint64            checksum of all before: FNV-1a over 64-bit words
 *
 * History starts at the least advanced layer's checkpoint. Heads carry global numbers, so a rank of a tensor parallel
 * group can take its heads out of what a single rank saved.
 */
#include "export.h"

#include "device_ops.h"

#include <stdlib.h>
#include <string.h>

uint64_t rssm_checksum(const void *data, int64_t bytes) {
    const char *p = data;
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int64_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t word;
        memcpy(&word, p + i, sizeof word);
        hash = (hash ^ word) * UINT64_C(0x100000001b3);
        hash ^= hash >> 32; /* the product moves bits upwards only */
    }
    return hash;
}

static int64_t padded(int64_t bytes) {
    return (bytes + 7) & ~(int64_t)7;
}

static int64_t io_width(const rssm_saved *s) {
    return s->io_dtype == RSSM_DTYPE_BF16 ? 2 : 4;
}

void rssm_saved_sections(const rssm_saved *s, rssm_sections *out) {
    const int64_t keys = s->key_heads, values = s->value_heads, n = s->history, io = io_width(s);
    const bool vector = s->kind == RSSM_KDA;
    const int64_t channels = (vector ? 0 : values) + values + (s->l2 ? keys : 0);
    int64_t at = 0;
    out->state = at;
    at += padded(values * s->d_v * s->d_k * rssm_dtype_bytes(s->checkpoint_dtype));
    out->exponent = at;
    at += s->checkpoint_dtype == RSSM_DTYPE_F8 ? padded(values * s->d_v) : 0;
    out->k = at;
    at += padded(keys * n * s->d_k * io);
    out->v = at;
    at += padded(values * n * s->d_v * io);
    out->scalar = at;
    at += padded(channels * n * 4);
    out->decay = at;
    at += vector ? padded(values * n * s->d_k * (s->raw_records ? io : 4)) : 0;
    out->conv = at;
    at += s->conv_width > 0 ? padded(s->held * (2 * keys * s->d_k + values * s->d_v) * io) : 0;
    out->layer_bytes = at;
    out->first_layer = (int64_t)sizeof(rssm_saved) + padded(8 * (int64_t)s->layers);
    out->total = out->first_layer + s->layers * at + 8;
}

/* ---- Saving ------------------------------------------------------------------------------------------- */

static rssm_saved describe(const rssm_cache *cache, int64_t slot, uint32_t flags) {
    const rssm_geometry *g = &cache->geometry;
    const rssm_layer_spec *spec = &cache->spec;
    const rssm_cursor *cursor = rssm_cursor_at(cache, slot);
    bool fold = (flags & RSSM_EXPORT_CHECKPOINT_ONLY) != 0;
    rssm_saved s = {.magic = RSSM_SAVED_MAGIC,
                    .version = RSSM_SAVED_VERSION,
                    .flags = flags,
                    .kind = spec->kind,
                    .key_heads = spec->key_heads,
                    .value_heads = spec->value_heads,
                    .total_key_heads = spec->total_key_heads,
                    .total_value_heads = spec->total_value_heads,
                    .first_key_head = spec->first_key_head,
                    .first_value_head = spec->first_value_head,
                    .d_k = spec->d_k,
                    .d_v = spec->d_v,
                    .head_map = spec->head_map,
                    .conv_width = spec->conv_width,
                    .l2 = g->l2,
                    .layers = cache->desc.layers,
                    .io_dtype = cache->desc.io_dtype,
                    .checkpoint_dtype = cache->desc.checkpoint_dtype,
                    .raw_records = g->raw_records,
                    .window = cache->desc.window,
                    .history = fold ? 0 : cursor->history,
                    .held = fold ? g->rows.conv_need : cursor->held,
                    .qk_norm_eps = spec->qk_norm_eps,
                    .gate_lower_bound = spec->gate_lower_bound,
                    .position = cursor->position,
                    .id = cursor->id};
    rssm_sections sections;
    rssm_saved_sections(&s, &sections);
    s.bytes = sections.total;
    return s;
}

/* [heads][rows of the cache][row_bytes] -> [heads][n][row_bytes], in the map's order. */
static void gather_rows(char *to, const char *from, int64_t heads, int64_t rows, int64_t row_bytes, const uint8_t *map,
                        int64_t n) {
    for (int64_t h = 0; h < heads; h++) {
        for (int64_t j = 0; j < n; j++) {
            memcpy(to + (h * n + j) * row_bytes, from + (h * rows + map[j]) * row_bytes, (size_t)row_bytes);
        }
    }
}

void rssm_transpose_states(char *to, const char *from, int64_t heads, int64_t rows, int64_t columns, int64_t width) {
    for (int64_t h = 0; h < heads; h++) {
        for (int64_t r = 0; r < rows; r++) {
            for (int64_t c = 0; c < columns; c++) {
                memcpy(to + ((h * columns + c) * rows + r) * width, from + ((h * rows + r) * columns + c) * width,
                       (size_t)width);
            }
        }
    }
}

/* The checkpoint, or with RSSM_EXPORT_CHECKPOINT_ONLY what a flush would leave of it, made in `aside`. */
static rssm_status save_state(rssm_cache *cache, int32_t layer, int64_t slot, const rssm_saved *s, const rssm_sections *at,
                       char *aside, char *to) {
    const rssm_geometry *g = &cache->geometry;
    const int64_t width = rssm_dtype_bytes(s->checkpoint_dtype), rows = (int64_t)g->value_heads * g->d_v;
    rssm_state state = rssm_state_of(cache, layer, slot, s->id, s->position);
    if (s->flags & RSSM_EXPORT_CHECKPOINT_ONLY) {
        memcpy(aside, state.checkpoint, (size_t)(rows * g->d_k * width));
        state.checkpoint = aside;
        state.copy = NULL; /* what reads see is not saved */
        if (state.exponent != NULL) {
            state.exponent = memcpy(aside + rows * g->d_k * width, state.exponent, (size_t)rows);
        }
        int64_t flushes = cache->flushes;
        RSSM_TRY(rssm_fold_layer(cache, layer, slot, s->position, &state));
        cache->flushes = flushes; /* a fold of a copy is none of the slot's flushes */
    }
    if (s->flags & RSSM_EXPORT_STATE_KV) {
        rssm_transpose_states(to + at->state, state.checkpoint, g->value_heads, g->d_v, g->d_k, width);
    } else {
        memcpy(to + at->state, state.checkpoint, (size_t)(rows * g->d_k * width));
    }
    if (state.exponent != NULL) {
        memcpy(to + at->exponent, state.exponent, (size_t)rows);
    }
    return RSSM_OK;
}

static rssm_status save_layer(rssm_cache *cache, int32_t layer, int64_t slot, const rssm_saved *s, const rssm_sections *at,
                       char *aside, char *to) {
    const rssm_geometry *g = &cache->geometry;
    const rssm_cursor *cursor = rssm_cursor_at(cache, slot);
    const int64_t rows = g->rows.records, n = s->history, io = io_width(s);
    RSSM_TRY(save_state(cache, layer, slot, s, at, aside, to));
    gather_rows(to + at->k, rssm_part_at(cache, layer, RSSM_PART_RECORD_K, slot), g->key_heads, rows, g->d_k * io,
                cursor->row_map, n);
    gather_rows(to + at->v, rssm_part_at(cache, layer, RSSM_PART_RECORD_V, slot), g->value_heads, rows, g->d_v * io,
                cursor->row_map, n);
    gather_rows(to + at->scalar, rssm_part_at(cache, layer, RSSM_PART_RECORD_SCALAR, slot), g->channels, rows, 4,
                cursor->row_map, n);
    if (g->vector_decay) {
        gather_rows(to + at->decay, rssm_part_at(cache, layer, RSSM_PART_RECORD_DECAY, slot), g->value_heads, rows,
                    g->d_k * (g->raw_records ? io : 4), cursor->row_map, n);
    }
    if (g->conv_width > 0) {
        gather_rows(to + at->conv, rssm_part_at(cache, layer, RSSM_PART_CONV, slot), 1, g->rows.conv,
                    g->conv_channels * io, cursor->conv_map + (cursor->held - s->held), s->held);
    }
    return RSSM_OK;
}

static int64_t saved_bytes(rssm_cache *cache, int32_t slot, uint32_t flags) {
    return rssm_settle(cache, slot) == RSSM_OK ? describe(cache, slot, flags).bytes : -1;
}

int64_t rssm_cache_export_bytes(const rssm_cache *cache, int32_t slot, uint32_t flags) {
    rssm_cache *mutable_cache = (rssm_cache *)cache, *mirror;
    const rssm_device_ops *ops = cache->context->ops;
    if (rssm_check_slot(mutable_cache, "slot", 0, slot, 0) != RSSM_OK ||
        rssm_cache_check_memory(mutable_cache) != RSSM_OK) {
        return -1;
    }
    if (ops == NULL) {
        return saved_bytes(mutable_cache, slot, flags);
    }
    if (ops->mirror_open(mutable_cache, slot, false, false, &mirror) != RSSM_OK) {
        return -1;
    }
    int64_t bytes = saved_bytes(mirror, slot, flags);
    bytes = ops->mirror_write(mutable_cache, slot, mirror, false) == RSSM_OK ? bytes : -1;
    ops->mirror_close(mirror);
    return bytes;
}

static rssm_status export_slot(rssm_cache *cache, int32_t slot, uint32_t flags, void *buffer, int64_t capacity,
                               int64_t *written) {
    RSSM_TRY(rssm_settle(cache, slot));
    RSSM_TRY(rssm_prepare_folds(cache, cache->geometry.raw_records));
    if ((flags & ~(uint32_t)(RSSM_EXPORT_CHECKPOINT_ONLY | RSSM_EXPORT_STATE_KV)) != 0) {
        return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "flags is 0x%x; known are 1 and 2", (unsigned)flags);
    }
    rssm_saved s = describe(cache, slot, flags);
    if (buffer == NULL || capacity < s.bytes) {
        return rssm_fail(cache->context, RSSM_ERROR_BUFFER, "buffer is %s with a capacity of %lld; slot %d takes %lld bytes",
                         buffer == NULL ? "NULL" : "given", (long long)capacity, (int)slot, (long long)s.bytes);
    }
    const rssm_geometry *g = &cache->geometry;
    char *aside = malloc((size_t)g->value_heads * (size_t)g->d_v * ((size_t)g->d_k * sizeof(float) + 1));
    if (aside == NULL) {
        return rssm_fail(cache->context, RSSM_ERROR_MEMORY, "no memory for a copy of one layer's state");
    }
    rssm_status status = RSSM_OK;
    rssm_sections at;
    rssm_saved_sections(&s, &at);
    char *to = buffer;
    memset(to, 0, (size_t)s.bytes); /* padding too is part of the checksum */
    memcpy(to, &s, sizeof s);
    for (int32_t layer = 0; layer < s.layers; layer++) {
        int64_t checkpoint = s.history == 0 ? s.position : rssm_layer_cursor_at(cache, layer, slot)->checkpoint;
        memcpy(to + sizeof s + 8 * (size_t)layer, &checkpoint, 8);
        status = status == RSSM_OK
                     ? save_layer(cache, layer, slot, &s, &at, aside, to + at.first_layer + layer * at.layer_bytes)
                     : status;
    }
    free(aside);
    RSSM_TRY(status);
    uint64_t sum = rssm_checksum(buffer, s.bytes - 8);
    memcpy(to + s.bytes - 8, &sum, 8);
    if (written != NULL) {
        *written = s.bytes;
    }
    return RSSM_OK;
}

rssm_status rssm_cache_export(rssm_cache *cache, int32_t slot, uint32_t flags, void *buffer, int64_t capacity,
                              int64_t *written) {
    const rssm_device_ops *ops = cache->context->ops;
    rssm_cache *mirror;
    RSSM_TRY(rssm_check_slot(cache, "slot", 0, slot, 0));
    RSSM_TRY(rssm_cache_check_memory(cache));
    if (ops == NULL) {
        return export_slot(cache, slot, flags, buffer, capacity, written);
    }
    RSSM_TRY(ops->mirror_open(cache, slot, true, false, &mirror));
    rssm_status status = export_slot(mirror, slot, flags, buffer, capacity, written);
    rssm_status settled = ops->mirror_write(cache, slot, mirror, false);
    status = status == RSSM_OK ? settled : status;
    ops->mirror_close(mirror);
    return status;
}
