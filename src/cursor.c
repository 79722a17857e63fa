/* SPDX-License-Identifier: Apache-2.0 */
#include "cursor.h"

#include <assert.h>
#include <string.h>

int64_t rssm_boundary(int64_t n, uint64_t id, int32_t window) {
    int64_t phase = (int64_t)(id % (uint64_t)window);
    int64_t past = (n - phase) % window;
    return n - (past < 0 ? past + window : past);
}

int32_t rssm_boundaries(int64_t from, int64_t to, uint64_t id, int32_t window) {
    int32_t count = 0;
    for (int64_t at = from; at < to; at = rssm_next_boundary(at, id, window)) {
        count++;
    }
    return count;
}

static void identity(uint8_t *map, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        map[i] = (uint8_t)i;
    }
}

/* Moves the first k of n entries to the end. */
static void rotate(uint8_t *map, int32_t n, int32_t k) {
    uint8_t moved[RSSM_CONV_ROWS_MAX + RSSM_ROWS_MAX];
    memcpy(moved, map, (size_t)k);
    memmove(map, map + k, (size_t)(n - k));
    memcpy(map + n - k, moved, (size_t)k);
}

void rssm_cursor_start(rssm_cursor *cursor, const rssm_rows *rows, uint64_t id, int64_t position) {
    memset(cursor, 0, sizeof *cursor);
    cursor->state = RSSM_CURSOR_READY;
    cursor->position = position;
    cursor->target = position;
    cursor->id = id;
    cursor->held = rows->conv_need;
    identity(cursor->row_map, rows->records);
    identity(cursor->conv_map, rows->conv);
}

void rssm_cursor_retire(rssm_cursor *cursor, const rssm_rows *rows, int64_t position) {
    int64_t count = position - rssm_cursor_base(cursor);
    if (count <= 0) {
        return;
    }
    assert(count <= cursor->history);
    rotate(cursor->row_map, rows->records, (int32_t)count);
    cursor->history -= (int32_t)count;
}

/* Lets go of convolution rows beyond those worth keeping. */
static void trim_conv(rssm_cursor *cursor, const rssm_rows *rows) {
    int32_t excess = cursor->held - rows->conv_keep;
    if (excess > 0) {
        rotate(cursor->conv_map, rows->conv, excess);
        cursor->held -= excess;
    }
}

static void close_step(rssm_cursor *cursor) {
    cursor->step = RSSM_STEP_NONE;
    cursor->pending = 0;
    cursor->prefill = 0;
}

/* Moves the entries that a path names to the front. Paths ascend, so no entry that is still to be moved has
 * moved. */
static void pull(uint8_t *map, const int32_t *path, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        uint8_t row = map[path[i]];
        memmove(map + i + 1, map + i, (size_t)(path[i] - i));
        map[i] = row;
    }
}

void rssm_cursor_commit(rssm_cursor *cursor, const rssm_rows *rows, int32_t count, const int32_t *path) {
    assert(cursor->step == RSSM_STEP_DECODE ? count <= cursor->pending : count == 0);
    if (path != NULL) {
        pull(cursor->row_map + cursor->history, path, count);
        pull(cursor->conv_map + cursor->held, path, rows->conv > 0 ? count : 0);
    }
    cursor->position += count;
    cursor->history += count;
    assert(cursor->history <= rows->records);
    if (rows->conv > 0) {
        cursor->held += count;
        trim_conv(cursor, rows);
    }
    close_step(cursor);
}

int32_t rssm_cursor_conv_after(const rssm_cursor *cursor, const rssm_rows *rows, int64_t tokens) {
    int64_t available = cursor->held + tokens;
    return available < rows->conv_keep ? (int32_t)available : rows->conv_keep;
}

void rssm_cursor_commit_whole(rssm_cursor *cursor, const rssm_rows *rows) {
    if (rows->conv > 0 && cursor->prefill) {
        cursor->held = rssm_cursor_conv_after(cursor, rows, cursor->pending);
        identity(cursor->conv_map, rows->conv);
    } else if (rows->conv > 0) {
        cursor->held += cursor->pending;
        trim_conv(cursor, rows);
    }
    rssm_cursor_retire(cursor, rows, cursor->position);
    cursor->position += cursor->pending;
    close_step(cursor);
}

void rssm_cursor_open(rssm_cursor *cursor, int32_t step, int32_t tokens, int64_t target, uint64_t serial) {
    cursor->step = step;
    cursor->pending = tokens;
    cursor->target = target;
    cursor->serial = serial;
    for (int32_t t = 0; t < RSSM_STEP_TOKENS_MAX; t++) {
        cursor->parents[t] = (int8_t)(t - 1);
    }
}

bool rssm_cursor_chain(const rssm_cursor *cursor) {
    for (int32_t t = 0; cursor->step == RSSM_STEP_DECODE && t < cursor->pending; t++) {
        if (cursor->parents[t] != t - 1) {
            return false;
        }
    }
    return true;
}

void rssm_cursor_rollback(rssm_cursor *cursor, int64_t position) {
    int32_t count = (int32_t)(cursor->position - position);
    assert(count >= 0 && count <= cursor->history);
    cursor->position = position;
    cursor->history -= count;
    cursor->held = cursor->held > count ? cursor->held - count : 0;
    close_step(cursor);
}
