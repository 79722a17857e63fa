/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cursor of a slot: where the sequence stands, and which buffer row holds which token. Host arithmetic only; no
 * state is touched here.
 *
 * Both row maps are permutations. In the record map the first `history` entries are the rows of the committed records
 * that some layer's checkpoint does not hold yet, oldest first; the next `pending` are those of the open step; the rest
 * are free:
 *
 *      row_map:   [ history, oldest .. newest | pending | free ........ ]
 *      position of entry i:   position - history + i
 *
 * Appending takes the first free entries, committing moves the border between pending and history (after moving the
 * entries of the path that stays to the front, if the step was a tree), rejecting does nothing, and retiring folded records rotates them to the end of the free entries. So nothing is ever copied, and a
 * step's appends never take a row that the same step still reads: rows that a step folds are retired only by the
 * next one. Two steps' worth of tokens beyond a window is therefore exactly enough: when a step begins, history is at
 * most L - 1 + T_max (a window's remainder and the tokens just committed), and it appends at most T_max.
 *
 * The convolution map is the same over rows of inputs before the convolution: `held` committed ones, of which the last
 * w - 1 are the context of the next token; missing context at the start of a sequence is held as zero rows.
 */
#ifndef RSSM_CURSOR_H
#define RSSM_CURSOR_H

#include <stdbool.h>
#include <stdint.h>

#include "replayssm/cache.h"

enum {
    RSSM_ROWS_MAX = RSSM_WINDOW_MAX - 1 + 2 * RSSM_STEP_TOKENS_MAX,
    RSSM_CONV_ROWS_MAX = RSSM_CONV_WIDTH_MAX - 1 + RSSM_STEP_TOKENS_MAX + RSSM_REACH_MAX
};

/* Values of rssm_cursor.state that no poisoned or zeroed memory holds by accident. */
enum { RSSM_CURSOR_READY = 0x52535359, RSSM_CURSOR_FAILED = 0x5253534e };

/* What the open step does to a slot. */
enum {
    RSSM_STEP_NONE = 0,
    RSSM_STEP_DECODE = 1, /* appends `pending` records; the next begin says how many stay */
    RSSM_STEP_WHOLE = 2   /* the layers move their checkpoints over all `pending` tokens: prefill, conventional */
};

/* Sizes that all cursors of a cache share. */
typedef struct rssm_rows {
    int32_t records;   /* rows of a record buffer: L - 1 + 2 T_max */
    int32_t conv;      /* rows of a convolution buffer: w - 1 + T_max + R; 0: no convolution */
    int32_t conv_keep; /* committed ones worth keeping: w - 1 + R */
    int32_t conv_need; /* w - 1 */
} rssm_rows;

typedef struct rssm_cursor {
    uint32_t state;    /* RSSM_CURSOR_*; anything else: never started */
    int32_t step;      /* RSSM_STEP_* */
    int64_t position;  /* committed tokens, n */
    int64_t target;    /* the checkpoint boundary that the open step folds up to */
    uint64_t id;       /* sequence id */
    uint64_t serial;   /* of the step that last had this slot in its batch */
    int32_t pending;   /* tokens of the open step */
    int32_t history;   /* committed records in the map */
    int32_t held;      /* committed convolution rows in the map */
    int32_t prefill;   /* the open step is a piece of a prompt */
    uint8_t row_map[RSSM_ROWS_MAX + 1];
    uint8_t conv_map[RSSM_CONV_ROWS_MAX + 4];
    int8_t parents[RSSM_STEP_TOKENS_MAX]; /* of a decode step's tokens: the token before on the path; -1: history */
} rssm_cursor;

/* What a layer remembers of a slot. */
typedef struct rssm_layer_cursor {
    int64_t checkpoint; /* position of this layer's checkpoint */
    uint64_t serial;    /* the last step that this layer ran */
    _Atomic uint32_t begun; /* some part of the open step has begun, and not all have ended */
    _Atomic uint32_t ended; /* how many have */
    uint64_t unused;
} rssm_layer_cursor;

/* b(n): the last flush boundary at or before n, of the sequence with this id. Positions are >= 0; the boundaries of a
   phase reach below zero, where no position is. */
int64_t rssm_boundary(int64_t n, uint64_t id, int32_t window);

/* The first boundary after n. A narrow checkpoint is rounded at each one that it passes, so that what it holds at a
   boundary does not depend on how many tokens the steps before committed. */
static inline int64_t rssm_next_boundary(int64_t n, uint64_t id, int32_t window) {
    return rssm_boundary(n, id, window) + window;
}
/* How often a checkpoint is rounded on its way. */
int32_t rssm_boundaries(int64_t from, int64_t to, uint64_t id, int32_t window);

/* A ready slot at a position, with no history and w - 1 convolution rows in rows 0..w-2. */
void rssm_cursor_start(rssm_cursor *cursor, const rssm_rows *rows, uint64_t id, int64_t position);
/* Position of the oldest record in the map. */
static inline int64_t rssm_cursor_base(const rssm_cursor *cursor) {
    return cursor->position - cursor->history;
}
/* Forgets the records before `position`; every layer's checkpoint must have reached it. */
void rssm_cursor_retire(rssm_cursor *cursor, const rssm_rows *rows, int64_t position);
/* Ends a decode step, keeping `count` of its tokens: those of a path, ascending, or the first ones (NULL). */
void rssm_cursor_commit(rssm_cursor *cursor, const rssm_rows *rows, int32_t count, const int32_t *path);
/* Ends a step whose layers took all tokens into their checkpoints; a prompt's convolution rows lie in rows 0, 1, ... */
void rssm_cursor_commit_whole(rssm_cursor *cursor, const rssm_rows *rows);
/* Opens a step of `tokens`: their rows are the map's entries from `history` and `held` on. A decode step is a chain
   until its parents are set. */
void rssm_cursor_open(rssm_cursor *cursor, int32_t step, int32_t tokens, int64_t target, uint64_t serial);
/* Whether each of the open decode step's tokens follows the one before. */
bool rssm_cursor_chain(const rssm_cursor *cursor);
/* Back to a committed position >= base; drops pending tokens. */
void rssm_cursor_rollback(rssm_cursor *cursor, int64_t position);
/* Convolution rows that a prompt of `tokens` leaves, oldest first in rows 0, 1, ... */
int32_t rssm_cursor_conv_after(const rssm_cursor *cursor, const rssm_rows *rows, int64_t tokens);

#endif
