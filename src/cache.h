/* SPDX-License-Identifier: Apache-2.0 */
/* The cache from inside: its geometry, the memory of its parts, its counters. */
#ifndef RSSM_CACHE_H
#define RSSM_CACHE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "context.h"
#include "cpu/kernels.h"
#include "replayssm/cache.h"
#include "step_rules.h"

/* Units of a call that one of its pieces starts with; pieces that are done take from the others' shares. */
typedef struct rssm_share {
    _Alignas(64) _Atomic int64_t next;
    int64_t end;
} rssm_share;

struct rssm_cache {
    rssm_context *context;
    rssm_cache_desc desc; /* defaults filled in; desc.spec points at spec */
    rssm_layer_spec spec; /* defaults filled in */
    rssm_geometry geometry;
    const rssm_kernels *kernels;
    rssm_part *parts;         /* [layers][RSSM_PARTS]; the cursor in layer 0 */
    rssm_constants *constants; /* [layers], of the host */
    char *memory;             /* of rssm_cache_allocate(), else NULL */
    uint32_t *marks;          /* [slots]: the call that last named the slot, to find doubles */
    uint32_t mark;
    bool sealed; /* parts have been checked against each other since they last changed */

    float *scratch;     /* [parts] of geometry.scratch.total floats */
    rssm_share *shares; /* [parts] of the running call */
    int32_t scratch_parts;
    uint64_t serial; /* of the last step */

    void *device; /* what the context's device keeps for this cache */

    rssm_cache_info info;
    _Atomic int64_t bytes_read, bytes_written, flushes, row_steps, overflows;
};

/* Shape and size of a part; rank 0: the cache has none. */
void rssm_part_describe(const rssm_cache *cache, int32_t part, rssm_part_info *info);

static inline void *rssm_part_at(const rssm_cache *cache, int32_t layer, int32_t part, int64_t slot) {
    const rssm_part *p = &cache->parts[(int64_t)layer * RSSM_PARTS + part];
    return p->base == NULL ? NULL : p->base + slot * p->stride;
}
static inline rssm_cursor *rssm_cursor_at(const rssm_cache *cache, int64_t slot) {
    return rssm_part_at(cache, 0, RSSM_PART_CURSOR, slot);
}
static inline rssm_layer_cursor *rssm_layer_cursor_at(const rssm_cache *cache, int32_t layer, int64_t slot) {
    return rssm_part_at(cache, layer, RSSM_PART_LAYER_CURSOR, slot);
}

/* All parts bound, and no two overlapping. */
rssm_status rssm_cache_check_memory(rssm_cache *cache);
/* Slot in [reserved, slots); not named before in the call that `mark` stands for (0: do not check). */
rssm_status rssm_check_slot(rssm_cache *cache, const char *name, int64_t index, int64_t slot, uint32_t mark);
/* A fresh mark for a call that must name each slot once. */
uint32_t rssm_new_mark(rssm_cache *cache);
rssm_status rssm_check_ready(rssm_cache *cache, int64_t slot);

/* Commits a whole step (prefill, conventional) that every layer has run, and checks that the slot is ready and that no
   layer has gone ahead of it. */
rssm_status rssm_settle(rssm_cache *cache, int64_t slot);
/* Scratch for folds, and weights where the records need them. */
rssm_status rssm_prepare_folds(rssm_cache *cache, bool raw_records);

/* A row of layer `layer` for `slot`, without a step: all history from the layer's checkpoint on. */
rssm_row rssm_row_of(rssm_cache *cache, int32_t layer, int64_t slot);
/* Least and most advanced checkpoint among the layers of a slot. */
void rssm_checkpoint_range(const rssm_cache *cache, int64_t slot, int64_t *least, int64_t *most);
/* Some parts of a layer have folded the open step's history into its checkpoint and others have not. Parts that had
   nothing to fold changed no checkpoint and lose nothing. */
bool rssm_layer_torn(const rssm_cursor *cursor, const rssm_layer_cursor *lc);
/* How far the layers got with the slot's last step. */
rssm_progress rssm_layer_progress(const rssm_cache *cache, int64_t slot);
/* Oldest position that rollback and materialise reach. */
int64_t rssm_oldest(const rssm_cache *cache, int64_t slot);
/* Bytes of an element. */
static inline int64_t rssm_dtype_bytes(int32_t dtype) {
    return dtype == RSSM_DTYPE_F32 ? 4 : dtype == RSSM_DTYPE_F16 || dtype == RSSM_DTYPE_BF16 ? 2 : 1;
}
/* A layer's state of a slot, to be written for a position. */
rssm_state rssm_state_of(rssm_cache *cache, int32_t layer, int64_t slot, uint64_t id, int64_t position);
/* Whether a part holds the state: checkpoint, read copy and their scales. */
static inline bool rssm_part_is_state(int32_t part) {
    return part == RSSM_PART_CHECKPOINT || part == RSSM_PART_CHECKPOINT_SCALE || part == RSSM_PART_READ_COPY ||
           part == RSSM_PART_READ_SCALE;
}
/* Folds a layer's records up to a position into a state that holds the layer's checkpoint: its own, or a copy. */
rssm_status rssm_fold_layer(rssm_cache *cache, int32_t layer, int64_t slot, int64_t position, const rssm_state *state);
/* Makes the read copy of a layer's checkpoint, if the cache has one. */
void rssm_build_copy(rssm_cache *cache, const rssm_geometry *geometry, int32_t layer, const rssm_state *state,
                     float *scratch);
/* How many flushes bring a checkpoint from one position to another: one; one per boundary if it is narrow. */
int32_t rssm_roundings(const rssm_cache *cache, uint64_t id, int64_t from, int64_t to);
/* Folds all units of a job, here or on the device. */
rssm_status rssm_fold_units(rssm_cache *cache, const rssm_fold *fold, float *scratch);
/* The inputs and outputs of a layer call with their defaults filled in. */
rssm_status rssm_check_tensors(rssm_cache *cache, int32_t layer, rssm_layer_inputs *inputs, rssm_output *out);
/* Default constants for the layers of a spec that needs no weights. */
rssm_status rssm_default_weights(rssm_cache *cache);
/* The window of a step with this many live rows. */
int32_t rssm_effective_window(const rssm_cache *cache, int32_t rows);

/* A batch with its defaults filled in and its arrays checked. */
rssm_status rssm_batch_check(rssm_cache *cache, const rssm_batch *batch, rssm_batch *copy);
static inline int32_t rssm_batch_slot(const rssm_batch *batch, int32_t row) {
    return batch->slots[row * batch->slots_stride];
}
static inline int32_t rssm_batch_token(const rssm_batch *batch, int32_t row) {
    return batch->offsets != NULL ? batch->offsets[row] : row * batch->uniform_tokens;
}
static inline int32_t rssm_batch_tokens(const rssm_batch *batch, int32_t row) {
    return rssm_batch_token(batch, row + 1) - rssm_batch_token(batch, row);
}
/* The token before a row's token t on its path, counted within the row; -1: the history's last. */
static inline int32_t rssm_batch_parent(const rssm_batch *batch, int32_t row, int32_t t) {
    return batch->parents != NULL ? batch->parents[rssm_batch_token(batch, row) + t] : t - 1;
}
static inline bool rssm_batch_prefill(const rssm_batch *batch, int32_t row) {
    return batch->prefill != NULL && batch->prefill[row] != 0;
}
/* A row that names no slot: its outputs become zero. */
static inline bool rssm_is_padding(const rssm_cache *cache, int32_t slot) {
    return slot < cache->desc.reserved_slots;
}

#endif
