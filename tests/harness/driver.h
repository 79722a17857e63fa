/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the same token streams through several caches and the reference, one model step after another, and
 * compares.
 *
 *   plain        replay by the portable code, outputs in f32 whatever the problem says: its error sets the
 * tolerance tested       replay by the code under test other        the same code in another place: other
 * slots, rows in another order, two batches instead of one, parts of decode run out of order or from threads;
 * must equal `tested` bit for bit conventional the code under test by the conventional method, fed the
 * committed tokens only: after every flush its checkpoint must equal that of `tested` bit for bit
 *
 * Steps are random: rows with 0..T_max tokens, chains and trees, prefill rows, padding, any number of accepted
 * tokens. Before each step the rows of the buffers that hold nothing committed are filled with signalling NaN.
 */
#ifndef RSSM_TESTS_DRIVER_H
#define RSSM_TESTS_DRIVER_H

#include "cachebox.h"
#include "gpu/on_device.h"
#include "cache.h"

enum { DR_SEQUENCES = 3, DR_PADDING = 2, DR_ROWS = DR_SEQUENCES + DR_PADDING, DR_GROUPS = 2 };
enum { DR_PLAIN, DR_TESTED, DR_OTHER, DR_LANES };

/* One token of one sequence: inputs and exact outputs of every layer. */
typedef struct dr_token {
    unsigned char *blobs;  /* [layers][token_bytes] */
    double *exact, *scale; /* [layers][outputs] */
} dr_token;

typedef struct dr_sequence {
    int64_t start, position; /* of the sequence's begin, committed */
    dr_token **tokens;       /* [capacity], by position - start; committed ones and then the pending */
    int32_t capacity, pending;
    int32_t parents[RSSM_STEP_TOKENS_MAX]; /* of the pending tokens of a decode step */
    bool prefill;                          /* the pending step is a piece of a prompt */
    rssm_ref_layer **now,
        **ahead;    /* [layers], at the committed position and after the last pending token's path */
    int64_t shadow; /* position of the conventional cache */
    bool resync;    /* the conventional cache must be started from the checkpoint that prefill leaves */
} dr_sequence;

/* What a step does with a row, in canonical order: the sequences' rows, then padding. */
typedef struct dr_row {
    int32_t sequence; /* -1: padding */
    int32_t tokens, accepted;
    bool prefill;
    int32_t first;                      /* index of its first token among the step's */
    int32_t path[RSSM_STEP_TOKENS_MAX]; /* the accepted tokens of the last step */
} dr_row;

typedef struct dr_lane {
    const cb_problem *problem; /* the plain lane's stores f32, so that its error is that of the arithmetic */
    size_t output_bytes;       /* of a token */
    cb_box *box;
    int32_t slots[DR_SEQUENCES];
    chk_rng rng;     /* of layouts and orders */
    int32_t parts;   /* 0: rssm_cache_decode() */
    bool threads;    /* parts run from threads of their own */
    cb_feed **feeds; /* [DR_GROUPS][feed_limit], by number of tokens, made on first use */
    int32_t feed_limit;
    unsigned char *outputs; /* [layers][tokens][output bytes] of the last step, canonical order */
    const char *name;
} dr_lane;

typedef struct dr_driver {
    const cb_problem *problem;
    chk_rng rng;
    dr_sequence sequences[DR_SEQUENCES];
    dr_lane lanes[DR_LANES];
    cb_box *conventional;
    int32_t conventional_slots[DR_SEQUENCES];
    cb_feed *conventional_feed;
    dr_row rows[DR_ROWS]; /* of the step at hand */
    int32_t row_count, token_count, token_limit;
    int64_t outputs;      /* value_heads d_v */
    double *got;          /* [outputs] */
    unsigned char *bytes; /* [2][output bytes of a token] */
    double plain;         /* relative error of the plain lane so far */
    int64_t flushes;      /* checkpoints compared */
} dr_driver;

/* Caches and sequences for a problem; isa: the code under test; tokens: what each sequence may take in all.
   kernels, or NULL: replaces the kernel table of every cache but the plain one, and no threads are used. */
dr_driver *dr_make(chk_rng *rng, const cb_problem *problem, uint64_t isa, int32_t tokens,
                   const rssm_kernels *kernels);
/* One model step through all lanes, compared. False once the sequences have had their tokens or a check failed.
 */
bool dr_step(dr_driver *driver);
/* Guard pages, gaps and reserved slots, after the last step. */
void dr_finish(dr_driver *driver);

/* Between the files of the driver. */
void dr_commit(dr_driver *driver, dr_sequence *sequence, int32_t accepted, const int32_t *path);
void dr_draw_tokens(dr_driver *driver, dr_sequence *sequence, int32_t count);
void dr_run_lane(dr_driver *driver, dr_lane *lane);
void dr_compare_exact(dr_driver *driver, const dr_lane *lane);
void dr_compare_bits(dr_driver *driver, const dr_lane *a, const dr_lane *b);
void dr_catch_up(dr_driver *driver, int32_t sequence);

#endif
