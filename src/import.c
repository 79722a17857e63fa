/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a saved slot. Everything is checked before anything is written: first the frame and the checksum, then the
 * identity, then that the numbers agree with each other, since a checksum only proves that nothing was changed.
 */
#include "export.h"

#include "device_ops.h"

#include <stdlib.h>
#include <string.h>

#include "numbers.h"

/* ---- Checking ----------------------------------------------------------------------------------------- */

static rssm_status check_frame(rssm_cache *cache, const void *buffer, int64_t bytes, rssm_saved *s) {
    rssm_context *context = cache->context;
    if (buffer == NULL || bytes < (int64_t)sizeof *s + 8) {
        return rssm_fail(context, RSSM_ERROR_CORRUPT, "the saved slot has %lld bytes; the least is %zu", (long long)bytes,
                         sizeof *s + 8);
    }
    memcpy(s, buffer, sizeof *s);
    if (s->magic != RSSM_SAVED_MAGIC) {
        return rssm_fail(context, RSSM_ERROR_CORRUPT, "the bytes are no saved slot: they begin with 0x%016llx",
                         (unsigned long long)s->magic);
    }
    if (s->version != RSSM_SAVED_VERSION) {
        return rssm_fail(context, RSSM_ERROR_CORRUPT, "the saved slot has version %u; known is %d", (unsigned)s->version,
                         RSSM_SAVED_VERSION);
    }
    if (s->bytes != bytes || bytes % 8 != 0) {
        return rssm_fail(context, RSSM_ERROR_CORRUPT, "the saved slot says %lld bytes and has %lld", (long long)s->bytes,
                         (long long)bytes);
    }
    uint64_t sum;
    memcpy(&sum, (const char *)buffer + bytes - 8, 8);
    if (sum != rssm_checksum(buffer, bytes - 8)) {
        return rssm_fail(context, RSSM_ERROR_CORRUPT, "the saved slot is damaged: its checksum does not match");
    }
    return RSSM_OK;
}

static rssm_status check_equal(rssm_cache *cache, const char *name, int64_t saved, int64_t own) {
    if (saved != own) {
        return rssm_fail(cache->context, RSSM_ERROR_MISMATCH, "the saved slot has %s %lld; this cache has %lld", name,
                         (long long)saved, (long long)own);
    }
    return RSSM_OK;
}

static rssm_status check_heads_held(rssm_cache *cache, const char *name, int64_t saved_first, int64_t saved_heads,
                                    int64_t first, int64_t heads) {
    if (first < saved_first || first + heads > saved_first + saved_heads) {
        return rssm_fail(cache->context, RSSM_ERROR_MISMATCH,
                         "the saved slot has %s heads %lld to %lld; this cache needs %lld to %lld", name,
                         (long long)saved_first, (long long)(saved_first + saved_heads - 1), (long long)first,
                         (long long)(first + heads - 1));
    }
    return RSSM_OK;
}

static rssm_status check_identity(rssm_cache *cache, const rssm_saved *s) {
    const rssm_layer_spec *spec = &cache->spec;
    RSSM_TRY(check_equal(cache, "kind", s->kind, spec->kind));
    RSSM_TRY(check_equal(cache, "layers", s->layers, cache->desc.layers));
    RSSM_TRY(check_equal(cache, "d_k", s->d_k, spec->d_k));
    RSSM_TRY(check_equal(cache, "d_v", s->d_v, spec->d_v));
    RSSM_TRY(check_equal(cache, "total_key_heads", s->total_key_heads, spec->total_key_heads));
    RSSM_TRY(check_equal(cache, "total_value_heads", s->total_value_heads, spec->total_value_heads));
    RSSM_TRY(check_equal(cache, "head_map", s->head_map, spec->head_map));
    RSSM_TRY(check_equal(cache, "conv_width", s->conv_width, spec->conv_width));
    RSSM_TRY(check_equal(cache, "L2 norm", s->l2, cache->geometry.l2));
    if (s->qk_norm_eps != spec->qk_norm_eps || s->gate_lower_bound != spec->gate_lower_bound) {
        return rssm_fail(cache->context, RSSM_ERROR_MISMATCH,
                         "the saved slot has qk_norm_eps %g and gate_lower_bound %g; this cache has %g and %g",
                         (double)s->qk_norm_eps, (double)s->gate_lower_bound, (double)spec->qk_norm_eps,
                         (double)spec->gate_lower_bound);
    }
    RSSM_TRY(check_heads_held(cache, "key", s->first_key_head, s->key_heads, spec->first_key_head, spec->key_heads));
    return check_heads_held(cache, "value", s->first_value_head, s->value_heads, spec->first_value_head,
                            spec->value_heads);
}

static rssm_status check_standing(rssm_cache *cache, const rssm_saved *s, const char *buffer) {
    const int32_t need = cache->geometry.rows.conv_need;
    bool sound = s->history >= 0 && s->history <= RSSM_ROWS_MAX && s->held >= need && s->held <= RSSM_CONV_ROWS_MAX &&
                 s->position >= s->history && s->position <= INT64_MAX / 2 && s->raw_records >= 0 &&
                 s->raw_records <= (s->kind == RSSM_KDA ? 1 : 0) && s->checkpoint_dtype >= RSSM_DTYPE_F32 &&
                 s->checkpoint_dtype <= RSSM_DTYPE_F8 &&
                 (s->io_dtype == RSSM_DTYPE_F32 || s->io_dtype == RSSM_DTYPE_BF16) && s->flags <= 3 &&
                 s->key_heads > 0 && s->key_heads <= s->total_key_heads && s->value_heads > 0 &&
                 s->value_heads <= s->total_value_heads && s->window >= 1 && s->window <= RSSM_WINDOW_MAX;
    rssm_sections at;
    if (sound) {
        rssm_saved_sections(s, &at);
        sound = at.total == s->bytes;
    }
    for (int32_t layer = 0; sound && layer < s->layers; layer++) {
        int64_t checkpoint;
        memcpy(&checkpoint, buffer + sizeof *s + 8 * (size_t)layer, 8);
        sound = checkpoint >= s->position - s->history && checkpoint <= s->position;
    }
    if (!sound) {
        return rssm_fail(cache->context, RSSM_ERROR_CORRUPT, "the saved slot contradicts itself: %d records and %d "
                         "convolution rows at position %lld in %lld bytes", (int)s->history, (int)s->held,
                         (long long)s->position, (long long)s->bytes);
    }
    return RSSM_OK;
}

/* ---- Reading ------------------------------------------------------------------------------------------ */

/* What an import works with; the saved records of one layer, this cache's heads only, in the saved formats. */
typedef struct reader {
    rssm_cache *cache;
    rssm_saved saved;
    rssm_sections at;
    const char *buffer;
    int32_t slot;
    int64_t fold_to;        /* every layer's checkpoint goes at least here */
    rssm_geometry geometry; /* the cache's, but with the saved formats and a row for every saved record */
    rssm_cursor cursor;     /* map of those rows */
    float *scratch;
    char *k, *v, *scalar, *decay; /* one block, owned by k */
    char *codes, *exponent;       /* the state as it was saved, owned by codes */
    float *plain;                 /* the same in fp32, behind them */
} reader;

static int32_t width_of(int32_t dtype) {
    return (int32_t)rssm_dtype_bytes(dtype);
}

static void convert(void *to, int32_t to_dtype, const void *from, int32_t from_dtype, int64_t n) {
    if (to_dtype == from_dtype) {
        memcpy(to, from, (size_t)(n * width_of(to_dtype)));
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        if (to_dtype == RSSM_DTYPE_F32) {
            ((float *)to)[i] = rssm_f32_of_bf16(((const uint16_t *)from)[i]);
        } else {
            ((uint16_t *)to)[i] = rssm_bf16_of_f32(((const float *)from)[i]);
        }
    }
}

static rssm_status open_reader(reader *r) {
    rssm_cache *cache = r->cache;
    const rssm_saved *s = &r->saved;
    rssm_geometry *g = &r->geometry;
    *g = cache->geometry;
    g->bf16 = s->io_dtype == RSSM_DTYPE_BF16;
    g->raw_records = s->raw_records;
    g->rows.records = s->history > 0 ? s->history : 1;
    rssm_layout_scratch(g);
    for (int32_t i = 0; i < s->history; i++) {
        r->cursor.row_map[i] = (uint8_t)i;
    }
    r->cursor.position = s->position;
    r->cursor.history = s->history;
    int64_t n = g->rows.records, io = width_of(s->io_dtype);
    int64_t k = n * g->key_heads * g->d_k * io, v = n * g->value_heads * g->d_v * io, scalar = n * g->channels * 4;
    int64_t decay = n * g->value_heads * g->d_k * 4;
    r->k = malloc((size_t)(k + v + scalar + decay) + 64);
    int64_t rows = (int64_t)g->value_heads * g->d_v, code_bytes = rows * g->d_k * width_of(s->checkpoint_dtype);
    r->codes = malloc((size_t)(code_bytes + rows + 64 + rows * g->d_k * 4));
    r->scratch = aligned_alloc(64, (g->scratch.total * sizeof(float) + 63) & ~(size_t)63);
    if (r->k == NULL || r->scratch == NULL || r->codes == NULL) {
        return rssm_fail(cache->context, RSSM_ERROR_MEMORY, "no memory to read %lld bytes of state and records",
                         (long long)(5 * rows * g->d_k + k + v + scalar + decay));
    }
    r->exponent = r->codes + code_bytes;
    r->plain = (float *)(void *)(r->codes + (code_bytes + rows + 63) / 64 * 64);
    memset(r->scratch, 0, g->scratch.total * sizeof(float));
    r->v = r->k + (k + 15) / 16 * 16;
    r->scalar = r->v + (v + 15) / 16 * 16;
    r->decay = r->scalar + (scalar + 15) / 16 * 16;
    return RSSM_OK;
}

/* Takes the cache's heads of one layer's records out of the buffer. */
static void read_records(reader *r, const char *layer) {
    const rssm_geometry *g = &r->geometry;
    const rssm_saved *s = &r->saved;
    const int64_t n = s->history, io = width_of(s->io_dtype);
    const int64_t key0 = r->cache->spec.first_key_head - s->first_key_head;
    const int64_t value0 = r->cache->spec.first_value_head - s->first_value_head;
    memcpy(r->k, layer + r->at.k + key0 * n * g->d_k * io, (size_t)(g->key_heads * n * g->d_k * io));
    memcpy(r->v, layer + r->at.v + value0 * n * g->d_v * io, (size_t)(g->value_heads * n * g->d_v * io));
    const char *scalar = layer + r->at.scalar;
    const int64_t head_bytes = n * 4, saved_beta = g->vector_decay ? 0 : s->value_heads;
    if (!g->vector_decay) {
        memcpy(r->scalar + g->channel_decay * head_bytes, scalar + value0 * head_bytes,
               (size_t)(g->value_heads * head_bytes));
    } else {
        int64_t width = s->raw_records ? io : 4;
        memcpy(r->decay, layer + r->at.decay + value0 * n * g->d_k * width, (size_t)(g->value_heads * n * g->d_k * width));
    }
    memcpy(r->scalar + g->channel_beta * head_bytes, scalar + (saved_beta + value0) * head_bytes,
           (size_t)(g->value_heads * head_bytes));
    if (g->l2) {
        memcpy(r->scalar + g->channel_norm * head_bytes, scalar + (saved_beta + s->value_heads + key0) * head_bytes,
               (size_t)(g->key_heads * head_bytes));
    }
}

/* Writes the records from `first` on into rows 0, 1, ... of the slot. */
static void write_records(reader *r, int32_t layer, int64_t first) {
    const rssm_cache *cache = r->cache;
    const rssm_geometry *g = &cache->geometry;
    const rssm_saved *s = &r->saved;
    const int64_t n = s->history, rows = g->rows.records, from_io = width_of(s->io_dtype);
    const int32_t io = cache->desc.io_dtype, to_io = width_of(io);
    char *k = rssm_part_at(cache, layer, RSSM_PART_RECORD_K, r->slot);
    char *v = rssm_part_at(cache, layer, RSSM_PART_RECORD_V, r->slot);
    float *scalar = rssm_part_at(cache, layer, RSSM_PART_RECORD_SCALAR, r->slot);
    char *decay = rssm_part_at(cache, layer, RSSM_PART_RECORD_DECAY, r->slot);
    const int32_t from_decay = s->raw_records ? s->io_dtype : RSSM_DTYPE_F32;
    const int32_t to_decay = g->raw_records ? io : RSSM_DTYPE_F32;
    for (int64_t j = first; j < n; j++) {
        int64_t row = j - first;
        for (int64_t h = 0; h < g->key_heads; h++) {
            convert(k + (h * rows + row) * g->d_k * to_io, io, r->k + (h * n + j) * g->d_k * from_io, s->io_dtype, g->d_k);
        }
        for (int64_t h = 0; h < g->value_heads; h++) {
            convert(v + (h * rows + row) * g->d_v * to_io, io, r->v + (h * n + j) * g->d_v * from_io, s->io_dtype, g->d_v);
            if (g->vector_decay) {
                convert(decay + (h * rows + row) * g->d_k * width_of(to_decay), to_decay,
                        r->decay + (h * n + j) * g->d_k * width_of(from_decay), from_decay, g->d_k);
            }
        }
        for (int64_t c = 0; c < g->channels; c++) {
            scalar[c * rows + row] = ((const float *)r->scalar)[c * n + j];
        }
    }
}

static void read_conv(reader *r, int32_t layer, const char *from, int32_t held) {
    const rssm_cache *cache = r->cache;
    const rssm_geometry *g = &cache->geometry;
    const rssm_saved *s = &r->saved;
    const int32_t io = cache->desc.io_dtype;
    const int64_t key0 = cache->spec.first_key_head - s->first_key_head;
    const int64_t value0 = cache->spec.first_value_head - s->first_value_head;
    const int64_t saved_keys = (int64_t)s->key_heads * g->d_k, keys = (int64_t)g->key_heads * g->d_k;
    const int64_t saved_row = 2 * saved_keys + (int64_t)s->value_heads * g->d_v;
    char *to = rssm_part_at(cache, layer, RSSM_PART_CONV, r->slot);
    for (int32_t i = 0; i < held; i++) {
        const char *row = from + (int64_t)(s->held - held + i) * saved_row * width_of(s->io_dtype);
        char *out = to + (int64_t)i * g->conv_channels * width_of(io);
        const int64_t segments[3][3] = {{key0 * g->d_k, 0, keys},
                                        {saved_keys + key0 * g->d_k, g->conv_k, keys},
                                        {2 * saved_keys + value0 * g->d_v, g->conv_v, (int64_t)g->value_heads * g->d_v}};
        for (int32_t t = 0; t < 3; t++) {
            convert(out + segments[t][1] * width_of(io), io, row + segments[t][0] * width_of(s->io_dtype), s->io_dtype,
                    segments[t][2]);
        }
    }
}

/* The cache's heads of a saved state, as codes. */
static void read_state(reader *r, const char *layer) {
    const rssm_geometry *g = &r->geometry;
    const int64_t width = width_of(r->saved.checkpoint_dtype), head = (int64_t)g->d_v * g->d_k * width;
    const int64_t value0 = r->cache->spec.first_value_head - r->saved.first_value_head;
    const char *from = layer + r->at.state + value0 * head;
    if (r->saved.flags & RSSM_EXPORT_STATE_KV) {
        rssm_transpose_states(r->codes, from, g->value_heads, g->d_k, g->d_v, width);
    } else {
        memcpy(r->codes, from, (size_t)(g->value_heads * head));
    }
    if (r->saved.checkpoint_dtype == RSSM_DTYPE_F8) {
        memcpy(r->exponent, layer + r->at.exponent + value0 * g->d_v, (size_t)g->value_heads * (size_t)g->d_v);
    }
}

/* From codes to the slot's checkpoint: as they are, or by way of fp32 and rounded to nearest. */
static void place_state(reader *r, int32_t layer, const rssm_state *own) {
    const rssm_cache *cache = r->cache;
    const rssm_constants *constants = &cache->constants[layer];
    const int64_t rows = (int64_t)r->geometry.value_heads * r->geometry.d_v;
    if (r->saved.checkpoint_dtype == cache->desc.checkpoint_dtype) {
        memcpy(own->checkpoint, r->codes, (size_t)(rows * r->geometry.d_k * width_of(r->saved.checkpoint_dtype)));
        if (own->exponent != NULL) {
            memcpy(own->exponent, r->exponent, (size_t)rows);
        }
        return;
    }
    rssm_geometry from = r->geometry, to = r->geometry;
    from.formats.checkpoint = r->saved.checkpoint_dtype;
    to.formats.stochastic = 0;
    rssm_state codes = {.checkpoint = r->codes, .exponent = (uint8_t *)r->exponent};
    for (int32_t unit = 0; unit < r->geometry.units; unit++) {
        cache->kernels->load_unit(&(rssm_move){&from, constants, &codes, r->plain}, unit, r->scratch);
        cache->kernels->store_unit(&(rssm_move){&to, constants, own, r->plain}, unit, r->scratch);
    }
}

/* Folds `count` saved records into the slot's checkpoint. */
static rssm_status fold_records(reader *r, int32_t layer, const rssm_state *own, int32_t first, int32_t count) {
    rssm_row row = {.cursor = &r->cursor,
                    .record_k = r->k,
                    .record_v = r->v,
                    .record_decay = r->decay,
                    .record_scalar = (float *)(void *)r->scalar,
                    .first = first};
    rssm_fold fold = {&r->geometry, &r->cache->constants[layer], &row, own, count};
    return rssm_fold_units(r->cache, &fold, r->scratch);
}

/* One layer: state, the fold into it, the records left, the convolution rows. */
static rssm_status read_layer(reader *r, int32_t layer, int32_t held) {
    rssm_cache *cache = r->cache;
    const rssm_saved *s = &r->saved;
    const char *from = r->buffer + r->at.first_layer + layer * r->at.layer_bytes;
    int64_t checkpoint, base = s->position - s->history;
    memcpy(&checkpoint, r->buffer + sizeof *s + 8 * (size_t)layer, 8);
    read_state(r, from);
    read_records(r, from);
    const int32_t first = (int32_t)(checkpoint - base);
    const int32_t count = r->fold_to > checkpoint ? (int32_t)(r->fold_to - checkpoint) : 0;
    checkpoint += count;
    rssm_state own = rssm_state_of(cache, layer, r->slot, s->id, checkpoint);
    place_state(r, layer, &own);
    if (count > 0) {
        RSSM_TRY(fold_records(r, layer, &own, first, count));
    } else {
        rssm_build_copy(cache, &r->geometry, layer, &own, r->scratch);
    }
    write_records(r, layer, r->fold_to > base ? r->fold_to - base : 0);
    if (r->geometry.conv_width > 0) {
        read_conv(r, layer, from + r->at.conv, held);
    }
    *rssm_layer_cursor_at(cache, layer, r->slot) = (rssm_layer_cursor){.checkpoint = checkpoint};
    return RSSM_OK;
}

/* Saved history that this cache would not have itself is folded: another window's, another record format's. */
static int64_t fold_target(const rssm_cache *cache, const rssm_saved *s) {
    const rssm_geometry *g = &cache->geometry;
    int64_t base = s->position - s->history;
    if (g->raw_records != s->raw_records) {
        return s->position;
    }
    bool fits = s->history <= cache->desc.window - 1 + cache->desc.step_tokens;
    int64_t boundary = rssm_boundary(s->position, s->id, cache->desc.window);
    return (s->window != cache->desc.window || !fits) && boundary > base ? boundary : base;
}

static rssm_status import_slot(rssm_cache *cache, int32_t slot, const void *buffer, int64_t bytes) {
    reader r = {.cache = cache, .buffer = buffer, .slot = slot};
    RSSM_TRY(check_frame(cache, buffer, bytes, &r.saved));
    RSSM_TRY(check_identity(cache, &r.saved));
    RSSM_TRY(check_standing(cache, &r.saved, buffer));
    RSSM_TRY(rssm_prepare_folds(cache, cache->geometry.raw_records || r.saved.raw_records));
    rssm_saved_sections(&r.saved, &r.at);
    r.fold_to = fold_target(cache, &r.saved);
    rssm_status status = open_reader(&r);
    if (status == RSSM_OK) {
        const rssm_rows *rows = &cache->geometry.rows;
        int32_t held = r.saved.held < rows->conv_keep ? r.saved.held : rows->conv_keep;
        for (int32_t layer = 0; layer < cache->desc.layers && status == RSSM_OK; layer++) {
            status = read_layer(&r, layer, held);
        }
        rssm_cursor *cursor = rssm_cursor_at(cache, slot);
        rssm_cursor_start(cursor, rows, r.saved.id, r.saved.position);
        cursor->history = (int32_t)(r.saved.position - r.fold_to);
        cursor->held = rows->conv > 0 ? held : 0;
    }
    free(r.k);
    free(r.codes);
    free(r.scratch);
    return status;
}

rssm_status rssm_cache_import(rssm_cache *cache, int32_t slot, const void *buffer, int64_t bytes) {
    const rssm_device_ops *ops = cache->context->ops;
    rssm_cache *mirror;
    RSSM_TRY(rssm_check_slot(cache, "slot", 0, slot, 0));
    RSSM_TRY(rssm_cache_check_memory(cache));
    if (ops == NULL) {
        return import_slot(cache, slot, buffer, bytes);
    }
    RSSM_TRY(ops->mirror_open(cache, slot, true, true, &mirror));
    rssm_status status = import_slot(mirror, slot, buffer, bytes);
    status = status == RSSM_OK ? ops->mirror_write(cache, slot, mirror, true) : status;
    ops->mirror_close(mirror);
    return status;
}
