/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cursor of a slot: where the sequence stands, and which buffer row holds which token. Arithmetic only; no state is
 * touched here, and nothing but the cursor. Compiled for the CPU and for the device.
 *
 * Both row maps are permutations. In the record map the first `history` entries are the rows of the committed records
 * that some layer's checkpoint does not hold yet, oldest first; the next `pending` are those of the open step; the rest
 * are free:
 *
 *      row_map:   [ history, oldest .. newest | pending | free ........ ]
 *      position of entry i:   position - history + i
 *
 * Appending takes the first free entries, committing moves the border between pending and history (after moving the
 * entries of the path that stays to the front, if the step was a tree), rejecting does nothing, and retiring folded
 * records rotates them to the end of the free entries. So nothing is ever copied, and a step's appends never take a row that the same step still reads: rows that a step folds are retired only by the
 * next one. Two steps' worth of tokens beyond a window is therefore exactly enough: when a step begins, history is at
 * most L - 1 + T_max (a window's remainder and the tokens just committed), and it appends at most T_max.
 *
 * The convolution map is the same over rows of inputs before the convolution: `held` committed ones, of which the last
 * w - 1 are the context of the next token; missing context at the start of a sequence is held as zero rows.
 */
#ifndef RSSM_CURSOR_H
#define RSSM_CURSOR_H

#include "replayssm/cache.h"
#include "shared.h"

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
    /* Used on devices: */
    int32_t row;       /* of the batch that opened the step; -1: that row was refused */
    uint32_t mark;     /* the call that last changed the slot, to find slots named twice */
    uint8_t row_map[RSSM_ROWS_MAX + 1];
    uint8_t conv_map[RSSM_CONV_ROWS_MAX + 4];
    int8_t parents[RSSM_STEP_TOKENS_MAX]; /* of a decode step's tokens: the token before on the path; -1: history */
} rssm_cursor;

/* What a layer remembers of a slot. */
typedef struct rssm_layer_cursor {
    int64_t checkpoint; /* position of this layer's checkpoint */
    uint64_t serial;    /* the last step that this layer ran */
    RSSM_ATOMIC_U32 begun; /* some part of the open step has begun, and not all have ended */
    RSSM_ATOMIC_U32 ended; /* how many have */
    uint64_t unused;
} rssm_layer_cursor;

/* b(n): the last flush boundary at or before n, of the sequence with this id. Positions are >= 0; the boundaries of a
   phase reach below zero, where no position is. */
RSSM_SHARED int64_t rssm_boundary(int64_t n, uint64_t id, int32_t window) {
    int64_t phase = (int64_t)(id % (uint64_t)window);
    int64_t past = (n - phase) % window;
    return n - (past < 0 ? past + window : past);
}

RSSM_SHARED void rssm_map_identity(uint8_t *map, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        map[i] = (uint8_t)i;
    }
}

/* Moves the first k of n entries to the end. */
RSSM_SHARED void rssm_map_rotate(uint8_t *map, int32_t n, int32_t k) {
    uint8_t moved[RSSM_CONV_ROWS_MAX + RSSM_ROWS_MAX];
    memcpy(moved, map, (size_t)k);
    for (int32_t i = k; i < n; i++) {
        map[i - k] = map[i];
    }
    memcpy(map + n - k, moved, (size_t)k);
}

/* The first boundary after n. A narrow checkpoint is rounded at each one that it passes, so that what it holds at a
   boundary does not depend on how many tokens the steps before committed. */
RSSM_SHARED int64_t rssm_next_boundary(int64_t n, uint64_t id, int32_t window) {
    return rssm_boundary(n, id, window) + window;
}
/* How often a checkpoint is rounded on its way. */
RSSM_SHARED int32_t rssm_boundaries(int64_t from, int64_t to, uint64_t id, int32_t window) {
    int32_t count = 0;
    for (int64_t at = from; at < to; at = rssm_next_boundary(at, id, window)) {
        count++;
    }
    return count;
}

/* A ready slot at a position, with no history and w - 1 convolution rows in rows 0..w-2. */
RSSM_SHARED void rssm_cursor_start(rssm_cursor *cursor, const rssm_rows *rows, uint64_t id, int64_t position) {
    memset(cursor, 0, sizeof *cursor);
    cursor->state = RSSM_CURSOR_READY;
    cursor->position = position;
    cursor->target = position;
    cursor->id = id;
    cursor->held = rows->conv_need;
    rssm_map_identity(cursor->row_map, rows->records);
    rssm_map_identity(cursor->conv_map, rows->conv);
}

/* Position of the oldest record in the map. */
RSSM_SHARED int64_t rssm_cursor_base(const rssm_cursor *cursor) {
    return cursor->position - cursor->history;
}

/* Forgets the records before `position`; every layer's checkpoint must have reached it. */
RSSM_SHARED void rssm_cursor_retire(rssm_cursor *cursor, const rssm_rows *rows, int64_t position) {
    int64_t count = position - rssm_cursor_base(cursor);
    if (count <= 0) {
        return;
    }
    RSSM_BELIEVE(count <= cursor->history);
    count = count < cursor->history ? count : cursor->history;
    rssm_map_rotate(cursor->row_map, rows->records, (int32_t)count);
    cursor->history -= (int32_t)count;
}

/* Lets go of convolution rows beyond those worth keeping. */
RSSM_SHARED void rssm_cursor_trim_conv(rssm_cursor *cursor, const rssm_rows *rows) {
    int32_t excess = cursor->held - rows->conv_keep;
    if (excess > 0) {
        rssm_map_rotate(cursor->conv_map, rows->conv, excess);
        cursor->held -= excess;
    }
}

RSSM_SHARED void rssm_cursor_close_step(rssm_cursor *cursor) {
    cursor->step = RSSM_STEP_NONE;
    cursor->pending = 0;
    cursor->prefill = 0;
}

/* Moves the entries that a path names to the front. Paths ascend, so no entry that is still to be moved has moved. */
RSSM_SHARED void rssm_map_pull(uint8_t *map, const int32_t *path, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        uint8_t row = map[path[i]];
        for (int32_t j = path[i]; j > i; j--) {
            map[j] = map[j - 1];
        }
        map[i] = row;
    }
}

/* Ends a decode step, keeping `count` of its tokens: those of a path, ascending, or the first ones (NULL). */
RSSM_SHARED void rssm_cursor_commit(rssm_cursor *cursor, const rssm_rows *rows, int32_t count, const int32_t *path) {
    RSSM_BELIEVE(cursor->step == RSSM_STEP_DECODE ? count <= cursor->pending : count == 0);
    if (path != NULL) {
        rssm_map_pull(cursor->row_map + cursor->history, path, count);
        rssm_map_pull(cursor->conv_map + cursor->held, path, rows->conv > 0 ? count : 0);
    }
    cursor->position += count;
    cursor->history += count;
    RSSM_BELIEVE(cursor->history <= rows->records);
    if (rows->conv > 0) {
        cursor->held += count;
        rssm_cursor_trim_conv(cursor, rows);
    }
    rssm_cursor_close_step(cursor);
}

/* Convolution rows that a prompt of `tokens` leaves, oldest first in rows 0, 1, ... */
RSSM_SHARED int32_t rssm_cursor_conv_after(const rssm_cursor *cursor, const rssm_rows *rows, int64_t tokens) {
    int64_t available = cursor->held + tokens;
    return available < rows->conv_keep ? (int32_t)available : rows->conv_keep;
}

/* Ends a step whose layers took all tokens into their checkpoints; a prompt's convolution rows lie in rows 0, 1, ... */
RSSM_SHARED void rssm_cursor_commit_whole(rssm_cursor *cursor, const rssm_rows *rows) {
    if (rows->conv > 0 && cursor->prefill) {
        cursor->held = rssm_cursor_conv_after(cursor, rows, cursor->pending);
        rssm_map_identity(cursor->conv_map, rows->conv);
    } else if (rows->conv > 0) {
        cursor->held += cursor->pending;
        rssm_cursor_trim_conv(cursor, rows);
    }
    rssm_cursor_retire(cursor, rows, cursor->position);
    cursor->position += cursor->pending;
    rssm_cursor_close_step(cursor);
}

/* Opens a step of `tokens`: their rows are the map's entries from `history` and `held` on. A decode step is a chain
   until its parents are set. */
RSSM_SHARED void rssm_cursor_open(rssm_cursor *cursor, int32_t step, int32_t tokens, int64_t target, uint64_t serial) {
    cursor->step = step;
    cursor->pending = tokens;
    cursor->target = target;
    cursor->serial = serial;
    for (int32_t t = 0; t < RSSM_STEP_TOKENS_MAX; t++) {
        cursor->parents[t] = (int8_t)(t - 1);
    }
}

/* Whether each of the open decode step's tokens follows the one before. */
RSSM_SHARED bool rssm_cursor_chain(const rssm_cursor *cursor) {
    for (int32_t t = 0; cursor->step == RSSM_STEP_DECODE && t < cursor->pending; t++) {
        if (cursor->parents[t] != t - 1) {
            return false;
        }
    }
    return true;
}

/* Back to a committed position >= base; drops pending tokens. */
RSSM_SHARED void rssm_cursor_rollback(rssm_cursor *cursor, int64_t position) {
    int32_t count = (int32_t)(cursor->position - position);
    RSSM_BELIEVE(count >= 0 && count <= cursor->history);
    cursor->position = position;
    cursor->history -= count;
    cursor->held = cursor->held > count ? cursor->held - count : 0;
    rssm_cursor_close_step(cursor);
}

#endif
