/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a step of one slot is ended and the next one planned: the rules that the CPU and the device share. Both look at
 * the slot first (rssm_step_least(), rssm_step_in_order()) and then change it (rssm_step_end(), rssm_step_plan()).
 */
#ifndef RSSM_STEP_RULES_H
#define RSSM_STEP_RULES_H

#include "cursor.h"

/* How far the layers got with the last step of a slot, and where their checkpoints stand. */
typedef struct rssm_progress {
    int32_t layers;
    int32_t done;    /* layers that ran it */
    int32_t partial; /* layers that ran some parts of it */
    int32_t missing; /* a layer that did not run it */
    int64_t least, most; /* advanced checkpoint */
} rssm_progress;

/* The fewest tokens that may be kept of the open step; the most is what is pending. */
RSSM_SHARED int32_t rssm_step_least(const rssm_cursor *cursor) {
    return cursor->step == RSSM_STEP_WHOLE ? cursor->pending : 0;
}

/* Whether the open step, of which `accepted` tokens are to be kept, leaves the slot in order. */
RSSM_SHARED bool rssm_step_in_order(const rssm_cursor *cursor, const rssm_progress *p, int32_t accepted) {
    bool nothing_lost = p->partial == 0 && (cursor->step == RSSM_STEP_DECODE ? accepted == 0 : p->done == 0);
    return cursor->step == RSSM_STEP_NONE || p->done == p->layers || nothing_lost;
}

/* Ends the open step, keeping `accepted` tokens of it (those of a path, or NULL: the first), and lets go of the records
   that every layer has folded. */
RSSM_SHARED void rssm_step_end(rssm_cursor *cursor, const rssm_rows *rows, const rssm_progress *p, int32_t accepted,
                               const int32_t *path) {
    if (cursor->step == RSSM_STEP_WHOLE && p->done > 0) {
        rssm_cursor_commit_whole(cursor, rows);
    } else {
        rssm_cursor_commit(cursor, rows, cursor->step == RSSM_STEP_DECODE ? accepted : 0, path);
    }
    rssm_cursor_retire(cursor, rows, p->least);
}

/* What a batch asks of a row. */
typedef struct rssm_step_request {
    int32_t tokens;
    bool whole;     /* the layers move their checkpoints over all tokens: prefill, conventional */
    bool prefill;
    int32_t window; /* effective */
    uint64_t serial;
} rssm_step_request;

RSSM_SHARED void rssm_step_plan(rssm_cursor *cursor, const rssm_step_request *r) {
    if (r->tokens == 0) {
        rssm_cursor_open(cursor, RSSM_STEP_NONE, 0, rssm_cursor_base(cursor), r->serial);
        return;
    }
    int64_t target = r->whole ? cursor->position : rssm_boundary(cursor->position, cursor->id, r->window);
    rssm_cursor_open(cursor, r->whole ? RSSM_STEP_WHOLE : RSSM_STEP_DECODE, r->tokens, target, r->serial);
    cursor->prefill = r->prefill;
}

/* Commits a whole step (prefill, conventional) that every layer has run, outside a step. False: some layers have taken
   the open step into their checkpoints and others have not. */
RSSM_SHARED bool rssm_step_settle(rssm_cursor *cursor, const rssm_rows *rows, const rssm_progress *p) {
    if (cursor->step == RSSM_STEP_WHOLE && p->least == cursor->position + cursor->pending) {
        rssm_cursor_commit_whole(cursor, rows);
    }
    if (p->most > cursor->position || p->partial > 0) {
        return false;
    }
    rssm_cursor_retire(cursor, rows, p->least);
    return true;
}

/* Oldest position that rollback and materialise reach. */
RSSM_SHARED int64_t rssm_step_oldest(const rssm_cursor *cursor, const rssm_rows *rows, int64_t most) {
    int64_t conv = cursor->position - (cursor->held - rows->conv_need);
    return rows->conv == 0 || most > conv ? most : conv;
}

#endif
