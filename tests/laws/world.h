/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model of a cache beside the cache: what every slot must hold after any interleaving of operations, kept in
 * the simplest form that can be compared with. Per slot the model has the committed tokens beyond the least
 * advanced checkpoint (a token is a seed; its inputs follow from it), and three sequences of a *twin*, a
 * conventional cache of the same layers: the *shadow* stands where that checkpoint stands and must equal it bit
 * for bit, the *front* stands at the committed position, and a scratch sequence runs drafts to know their
 * outputs. The double-precision reference is kept in the same two places; at every flush it is reloaded from
 * the checkpoint, so that rounding does not pile up.
 *
 * Prefill agrees with conventional decoding to rounding only, so a slot's shadow starts again from the state
 * that prefill left.
 */
#ifndef RSSM_TESTS_WORLD_H
#define RSSM_TESTS_WORLD_H

#include "harness/cachebox.h"

enum {
    WORLD_SLOTS = 5, /* sequences the operations play with */
    WORLD_RESERVED = 2,
    WORLD_LAYERS = 3,
    WORLD_ROWS = WORLD_SLOTS + 4, /* rows of a batch, padding included */
    WORLD_PROMPT = 150,           /* longest prompt piece */
    WORLD_HISTORY = RSSM_WINDOW_MAX + 2 * RSSM_STEP_TOKENS_MAX
};

enum { WORLD_EMPTY = 0, WORLD_READY = 1, WORLD_FAILED = 2 }; /* as rssm_slot_info.state */
enum { WORLD_NO_STEP = 0, WORLD_DECODE = 1, WORLD_PREFILL = 2 };

typedef struct world_slot {
    int32_t state;
    uint64_t id;
    int64_t base;     /* position of the shadow; tokens[0] follows it */
    int64_t position; /* committed */
    int64_t floor;    /* oldest position whose convolution context is kept */
    int64_t checkpoint[WORLD_LAYERS];
    uint64_t tokens[WORLD_HISTORY];
    /* the open or last step */
    int32_t step;
    int32_t pending;
    int64_t target;
    uint32_t ran;  /* layers that ran it */
    uint32_t torn; /* layers of which some parts ran */
    uint64_t drafts[WORLD_PROMPT];
    int32_t parents[WORLD_PROMPT]; /* of the drafts: the token before each, -1: the committed ones */
} world_slot;

typedef struct world_batch {
    int32_t rows;
    int32_t slots[3 * WORLD_ROWS]; /* with stride */
    int32_t offsets[WORLD_ROWS + 1];
    uint8_t prefill[WORLD_ROWS];
    int32_t accepted[WORLD_ROWS];
    int32_t paths[WORLD_ROWS * RSSM_STEP_TOKENS_MAX]; /* [rows][step_tokens] */
    int32_t parents[WORLD_ROWS * WORLD_PROMPT];       /* [tokens] */
    bool trees, by_paths;                             /* parents and paths have to be told */
    int32_t owner[WORLD_ROWS];                        /* model slot of a row; -1: padding */
    bool any_prefill, any_decode;
    rssm_batch desc;
    double *twin[WORLD_LAYERS]; /* conventional outputs [tokens][value_heads][d_v] */
} world_batch;

typedef struct world {
    chk_rng *rng;
    const cb_problem *problem;
    cb_box *box, *twin;
    cb_box *other; /* another window, T_max and reach, for exports and imports */
    int32_t layers, window, step_tokens, reach;
    int32_t method;  /* replay, or auto: then a step's window is 1 or the cache's */
    int32_t outputs; /* value_heads * d_v */
    uint32_t all;    /* mask of all layers */
    double tolerance;
    int32_t slot[WORLD_SLOTS];                                /* of the box */
    int32_t shadow[WORLD_SLOTS], front[WORLD_SLOTS], scratch; /* of the twin */
    world_slot model[WORLD_SLOTS];
    rssm_ref_layer *ref_base[WORLD_SLOTS][WORLD_LAYERS], *ref_front[WORLD_SLOTS][WORLD_LAYERS];
    rssm_ref_layer *ref_scratch[WORLD_LAYERS];
    cb_feed *feeds[WORLD_ROWS * WORLD_PROMPT + 101]; /* by number of tokens, made on first use */
    cb_feed *twin_feed;
    void *blob, *nan_blob, *again;
    double *y, *exact, *scale;
    uint64_t next_seed;
    world_batch batch[2];
    int64_t steps, flushes_seen, drafts_dropped;
} world;

/* A world for a problem: poisoned bound memory, every slot empty. threads: of the context. */
world *world_make(chk_rng *rng, const cb_problem *problem, uint64_t isa, int32_t threads, chk_poison poison);
/* One random operation, checked. Returns its name. */
const char *world_act(world *w);
/* Everything the library says of a slot against the model, and checkpoints against the shadow. */
void world_check(world *w, int32_t s);
/* Guard pages, gaps, reserved slots. */
void world_check_memory(world *w);

/* ---- For the operations (ops.c) ---------------------------------------------------------------------------
 */

const void *world_token(world *w, uint64_t seed, int32_t layer);
uint64_t world_seed(world *w);
/* Position of the boundary at or before n. */
int64_t world_boundary(const world *w, const world_slot *m, int64_t n);
int64_t world_min(const world *w, const world_slot *m);
int64_t world_max(const world *w, const world_slot *m);
int64_t world_oldest(const world *w, const world_slot *m);
/* Runs n tokens through a twin sequence; outputs of layer l to out[l] (NULL: dropped), dense. */
void world_twin_run(world *w, int32_t twin_slot, int32_t n, const uint64_t *seeds, double *const *out);
void world_twin_copy(world *w, int32_t from, int32_t to);
void world_ref_copy(world *w, rssm_ref_layer *const *from, rssm_ref_layer *const *to);
void world_ref_run(world *w, rssm_ref_layer *const *ref, int32_t n, const uint64_t *seeds);
/* Brings the front to the model's position from the base; after anything but a commit. */
void world_rebuild_front(world *w, int32_t s);
/* Commits a path of a tokens of the model's pending decode step. */
void world_commit(world *w, int32_t s, int32_t a, const int32_t *path);
/* The slot was just prefilled, adopted or imported to its position: takes its checkpoint as the start of the
 * shadow. */
void world_restart_shadow(world *w, int32_t s);
/* Commits a prompt that every layer ran, as the library does when it is next asked about the slot. */
void world_settle(world *w, int32_t s);
/* A fresh slot with zero state. */
void world_model_reset(world *w, int32_t s, uint64_t id, int64_t position);
/* The model of slot s becomes that of slot `from`, up to a position and without pending tokens. */
void world_model_copy(world *w, int32_t s, const world_slot *from, int32_t from_index, int64_t position);
/* A feed of `tokens` tokens. */
cb_feed *world_feed(world *w, int32_t tokens);

/* Steps (steps.c). */
void world_step(world *w);
/* Other operations (ops.c); each returns false if no slot was fit for it. */
bool world_reset(world *w);
bool world_flush(world *w);
bool world_rollback(world *w);
bool world_materialize(world *w);
bool world_copy(world *w);
bool world_export(world *w);
bool world_adopt(world *w);
bool world_poison(world *w);
/* Fills what no live token of a ready slot owns: rows of records and convolution inputs beyond the committed
   and pending ones. */
void world_poison_slot(const cb_box *box, int32_t slot, chk_poison poison);

#endif
