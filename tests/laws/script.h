/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scripts: what happens to a sequence, apart from when and where it happens. The same scripts are played under
 * different schedules (alone, in batches, on other slots, by more threads, with padding and strangers among the
 * rows), and every bit they leave is compared.
 */
#ifndef RSSM_TESTS_SCRIPT_H
#define RSSM_TESTS_SCRIPT_H

#include "gpu/on_device.h"
#include "harness/cachebox.h"

enum { SCRIPT_ROUNDS = 24, SCRIPT_SEQUENCES = 5 };

typedef struct script_round {
    int32_t tokens;
    int32_t accepted; /* committed by the sequence's next round; all of a prompt's */
    bool prefill;
    uint64_t seed;
    int32_t node[RSSM_STEP_TOKENS_MAX];    /* of decode: what tells its tokens apart under the seed */
    int32_t parents[RSSM_STEP_TOKENS_MAX]; /* of decode */
    int32_t path[RSSM_STEP_TOKENS_MAX];    /* [accepted] of decode */
} script_round;

typedef struct script {
    uint64_t id;
    int64_t position;
    int32_t rounds;
    script_round round[SCRIPT_ROUNDS];
    bool nan; /* every input is NaN */
} script;

/* How scripts are played. */
typedef struct schedule {
    bool batched;       /* several sequences in a step, rows in random order, padding rows among them */
    bool poison;        /* rows that are not live are poisoned between steps */
    int32_t parts;      /* of decode; 0: one call */
    int32_t slot_shift; /* rotates which slot a sequence gets */
} schedule;

/* What a sequence left. */
typedef struct trace {
    unsigned char *outputs; /* every output of every round, layer and token, dense */
    int64_t output_bytes;
    unsigned char *file; /* export after the last commit, flushed to the boundary */
    int64_t file_bytes;
} trace;

void script_draw(chk_rng *rng, const cb_problem *problem, script *s);
/* The same committed tokens without a draft in any step. */
void script_without_drafts(const script *s, script *plain);
/* Plays scripts on a box; sequence i has slot slots[(i + shift) % count] of it. */
void script_play(chk_rng *rng, const cb_box *box, const script *scripts, int32_t count, schedule how,
                 trace *traces);
/* Compares what is comparable: files always, outputs if asked. */
bool trace_same(const char *what, const trace *a, const trace *b, bool outputs);

#endif
