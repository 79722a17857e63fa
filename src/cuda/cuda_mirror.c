/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One slot in host memory, for export, import and questions, which are the CPU's code. A mirror is a cache whose every
 * slot is the one it holds. Folds, whose bits are the device's own, go back there.
 */
#include "cuda/cuda_host.h"

#include <stdlib.h>

void rssm_cuda_mirror_close(rssm_cache *mirror) {
    free(mirror->memory);
    free(mirror->parts);
    free(mirror);
}

static bool mirrored(const rssm_cache *cache, int32_t layer, int32_t part, bool states, rssm_part_info *info) {
    rssm_part_describe(cache, part, info);
    return info->rank > 0 && (info->per_layer || layer == 0) &&
           (states || part == RSSM_PART_CURSOR || part == RSSM_PART_LAYER_CURSOR);
}

/* Copies all parts of the slot that the mirror has. */
static int transfer(const rssm_cache *cache, int64_t slot, const rssm_cache *mirror, bool states, bool to_device) {
    int error = (int)cudaDeviceSynchronize();
    for (int64_t i = 0; error == 0 && i < (int64_t)cache->desc.layers * RSSM_PARTS; i++) {
        rssm_part_info info;
        rssm_part_describe(cache, (int32_t)(i % RSSM_PARTS), &info);
        char *here = mirror->parts[i].base, *there = cache->parts[i].base + slot * cache->parts[i].stride;
        const bool wanted = states || info.part == RSSM_PART_CURSOR || info.part == RSSM_PART_LAYER_CURSOR;
        if (here != NULL && wanted) { /* parts may lie in memory of the host that the device reads */
            error = (int)cudaMemcpy(to_device ? there : here, to_device ? here : there, (size_t)info.bytes, cudaMemcpyDefault);
        }
    }
    return error;
}

rssm_status rssm_cuda_mirror_open(rssm_cache *cache, int64_t slot, bool states, bool fresh, rssm_cache **out) {
    const int32_t layers = cache->desc.layers;
    rssm_cache *mirror = calloc(1, sizeof *mirror);
    rssm_part *parts = calloc((size_t)layers * RSSM_PARTS, sizeof *parts);
    char *memory = calloc((size_t)rssm_cache_slot_bytes(cache), 1), *at = memory;
    if (mirror == NULL || parts == NULL || memory == NULL) {
        free(mirror);
        free(parts);
        free(memory);
        return rssm_fail(cache->context, RSSM_ERROR_MEMORY, "no memory for a slot of %lld bytes",
                         (long long)rssm_cache_slot_bytes(cache));
    }
    *mirror = *cache;
    mirror->parts = parts;
    mirror->memory = memory;
    for (int32_t layer = 0; layer < layers; layer++) {
        for (int32_t part = 0; part < RSSM_PARTS; part++) {
            rssm_part_info info;
            if (mirrored(cache, layer, part, states, &info)) {
                parts[(int64_t)layer * RSSM_PARTS + part] = (rssm_part){at, 0};
                at += info.bytes;
            }
        }
    }
    rssm_cuda_scope scope;
    rssm_status status = rssm_cuda_enter(cache->context, &scope);
    if (status == RSSM_OK) {
        status = rssm_cuda_check(cache->context, fresh ? 0 : transfer(cache, slot, mirror, states, false), "reading a slot");
        rssm_cuda_leave(scope);
    }
    if (status != RSSM_OK) {
        rssm_cuda_mirror_close(mirror);
        return status;
    }
    *out = mirror;
    return RSSM_OK;
}

rssm_status rssm_cuda_mirror_write(rssm_cache *cache, int64_t slot, const rssm_cache *mirror, bool states) {
    rssm_cuda_scope scope;
    RSSM_TRY(rssm_cuda_enter(cache->context, &scope));
    int error = transfer(cache, slot, mirror, states, true);
    rssm_cuda_leave(scope);
    return rssm_cuda_check(cache->context, error, "writing a slot");
}

/* ---- Folds -------------------------------------------------------------------------------------------- */

/* What a fold of one job needs on the device, in one block. */
typedef struct upload {
    rssm_cursor cursor;
    rssm_layer_cursor layer;
    int64_t position;
    int32_t slot, unused;
} upload;

/* A part of host memory and its place in the block. */
typedef struct piece {
    int32_t part;
    const void *from;
    int64_t bytes, at;
} piece;

static int run_fold(rssm_cache *cache, const rssm_fold *fold, const piece *pieces, int32_t count, int64_t bytes) {
    const rssm_geometry *g = fold->geometry;
    char *block = NULL;
    const size_t state_bytes = (size_t)pieces[1].bytes;
    int error = (int)cudaMalloc((void **)&block, (size_t)bytes);
    const upload *there = (const upload *)(const void *)block;
    rssm_cuda_fold call = {.geometry = *g,
                           .constants = rssm_cuda_state_of(cache)->constants[fold->constants - cache->constants],
                           .layout = rssm_cuda_layout_of(g, g->rows.records, 0, g->d_v, 0, 1),
                           .slices = 1,
                           .count = 1,
                           .src = &there->slot,
                           .dst = &there->slot,
                           .positions = &there->position,
                           .words = rssm_cuda_state_of(cache)->words};
    for (int32_t i = 0; i < count && error == 0; i++) {
        call.parts[pieces[i].part] = (rssm_part){block + pieces[i].at, 0};
        error = (int)cudaMemcpy(block + pieces[i].at, pieces[i].from, (size_t)pieces[i].bytes, cudaMemcpyDefault);
    }
    call.parts[RSSM_PART_LAYER_CURSOR] = (rssm_part){block + offsetof(upload, layer), 0};
    if (rssm_cuda_spills(cache, &call.layout)) {
        call.memory = (float *)(void *)(block + bytes) - (int64_t)g->value_heads * call.layout.total;
    }
    error = error == 0 ? rssm_launch_fold(&call, NULL) : error;
    error = error == 0 ? (int)cudaMemcpy(fold->state->checkpoint, block + pieces[1].at, state_bytes, cudaMemcpyDefault) : error;
    (void)cudaFree(block);
    return error;
}

rssm_status rssm_cuda_fold_host(rssm_cache *cache, const rssm_fold *fold) {
    const rssm_geometry *g = fold->geometry;
    const rssm_row *row = fold->row;
    const int64_t n = g->rows.records, io = g->bf16 ? 2 : 4;
    upload head = {.cursor = *row->cursor, .position = rssm_cursor_base(row->cursor) + row->first + fold->count};
    head.layer.checkpoint = rssm_cursor_base(row->cursor) + row->first;
    piece pieces[] = {
        {RSSM_PART_CURSOR, &head, sizeof head, 0},
        {RSSM_PART_CHECKPOINT, fold->state->checkpoint, (int64_t)g->value_heads * g->d_v * g->d_k * 4, 0},
        {RSSM_PART_RECORD_K, row->record_k, g->key_heads * n * g->d_k * io, 0},
        {RSSM_PART_RECORD_V, row->record_v, g->value_heads * n * g->d_v * io, 0},
        {RSSM_PART_RECORD_SCALAR, row->record_scalar, g->channels * n * 4, 0},
        {RSSM_PART_RECORD_DECAY, row->record_decay, g->value_heads * n * g->d_k * (g->raw_records ? io : 4), 0},
    };
    const int32_t count = g->vector_decay ? 6 : 5;
    const rssm_cuda_layout layout = rssm_cuda_layout_of(g, g->rows.records, 0, g->d_v, 0, 1);
    int64_t bytes = 0;
    for (int32_t i = 0; i < count; i++) {
        pieces[i].at = bytes;
        bytes += (pieces[i].bytes + 15) / 16 * 16;
    }
    bytes += rssm_cuda_spills(cache, &layout) ? (int64_t)g->value_heads * layout.total * 4 : 0;
    rssm_cuda_scope scope;
    RSSM_TRY(rssm_cuda_enter(cache->context, &scope));
    int error = run_fold(cache, fold, pieces, count, bytes);
    rssm_cuda_leave(scope);
    return rssm_cuda_check(cache->context, error, "folding on the device");
}
