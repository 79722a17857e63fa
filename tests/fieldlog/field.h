/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the field-log tests share: the log's shapes, sequences of tokens named by stream and position, steps
 * over any rows, and sequences followed in double. A test is called after the log's entry and runs once per
 * instruction set.
 *
 * Tokens are drawn from (stream, position) alone, so the same stretch of a stream can be fed to any slot, split
 * and batch. Slots are handed out in random order: row, stream and slot numbers differ.
 */
#ifndef RSSM_TESTS_FIELD_H
#define RSSM_TESTS_FIELD_H

#include "fieldlog/ref64.h"
#include "gpu/on_device.h"
#include "harness/cachebox.h"

/* The shapes of the log: unequal key and value widths, more heads than groups. */
enum { FL_MAMBA2, FL_GDN, FL_KDA, FL_KDA_BOUNDED, FL_KINDS };
enum { FL_ROWS = 40, FL_LAYERS = 4 };

rssm_layer_spec fl_spec(int32_t shape);

typedef struct fl fl;
/* Changes a drawn token of a stream; index is its position in the stream. */
typedef void fl_edit(fl *f, int32_t layer, uint64_t stream, int64_t index, void *token);

struct fl {
    chk_rng rng;
    uint64_t isa;
    const cb_problem *p;
    cb_box *box;
    int32_t outs;     /* outputs of a token */
    int64_t elements; /* of a layer's state */
    int32_t spare;    /* a slot that tests leave alone: states are materialised into it */
    fl_edit *edit;    /* NULL: tokens as drawn */
    void *arg;        /* the edit's */
    void *token;
    bool reuse;        /* long runs: feeds of a few tokens are made once */
    cb_feed *feeds[8]; /* by tokens */
};

/* 1, or 4 under sanitizers: the step through lists of cases that are long. */
int32_t fl_stride(void);
/* A cache of a spec on poisoned, bound memory. desc: layers 0 means 1, slots 0 means 12; one slot is spare. */
fl *fl_open(uint64_t isa, const rssm_layer_spec *spec, const rssm_cache_desc *desc);
/* The same with weights of the caller's (as many layers), and an io format for gates and outputs too. */
fl *fl_open_with(uint64_t isa, const rssm_layer_spec *spec, const rssm_cache_desc *desc, int32_t gate_dtype,
                 int32_t threads, const rssm_layer_weights *weights);
/* The same problem (weights, tokens) in another box. */
fl *fl_twin(const fl *f, int32_t method, int32_t threads);
/* Slot number i of the test, of those in random order. */
int32_t fl_slot(const fl *f, int32_t i);

/* ---- Tokens -----------------------------------------------------------------------------------------------
 */

const void *fl_token(fl *f, int32_t layer, uint64_t stream, int64_t index);
/* Element i of a field of a token (an offset of cb_problem), in the format it is stored in. */
void fl_put(const fl *f, void *token, int64_t field, int64_t i, double x);
void fl_fill(const fl *f, void *token, int64_t field, int64_t n, double x);

/* ---- Steps ------------------------------------------------------------------------------------------------
 */

typedef struct fl_row {
    int32_t slot; /* negative: padding */
    int32_t tokens;
    bool prefill;
    bool nan;         /* every input is NaN */
    int32_t accepted; /* of the slot's last step */
    uint64_t stream;
    int64_t from; /* position in the stream of the first token */
    double *y;    /* NULL, or outputs [layers][tokens][outs] */
} fl_row;

/* begin and all layers. */
void fl_go(fl *f, const fl_row *rows, int32_t n);
/* The same, with the status of begin; if it is not OK no layer runs. */
rssm_status fl_try(fl *f, const fl_row *rows, int32_t n);
void fl_reset(fl *f, int32_t slot, uint64_t id);
/* One slot: a prompt, committed; a step; a commit without a step. */
void fl_prefill(fl *f, int32_t slot, uint64_t stream, int64_t from, int32_t tokens, double *y);
void fl_step(fl *f, int32_t slot, int32_t accepted, uint64_t stream, int64_t from, int32_t tokens, double *y);
void fl_commit(fl *f, int32_t slot, int32_t accepted);
double *fl_outputs(const fl *f, int64_t tokens);

/* ---- Looking ----------------------------------------------------------------------------------------------
 */

rssm_slot_info fl_info(const fl *f, int32_t slot);
/* The full state of a layer at the slot's committed position. */
void fl_state(fl *f, int32_t slot, int32_t layer, double *state);
/* A slot as bytes; memory of the case. */
void *fl_export(fl *f, int32_t slot, uint32_t flags, int64_t *bytes);
/* The slot exports these bytes still. */
bool fl_unchanged(fl *f, const char *what, int32_t slot, const void *file, int64_t bytes);

/* A sequence in double. */
typedef struct fl_ref {
    ref64 *layer[FL_LAYERS];
} fl_ref;
fl_ref fl_ref_make(const fl *f);
void fl_ref_copy(const fl *f, fl_ref *to, const fl_ref *from);
/* Feeds tokens of a stream; y as in fl_row, or NULL. */
void fl_ref_run(fl *f, fl_ref *ref, uint64_t stream, int64_t from, int32_t tokens, double *y);

/* |got - exact| <= tolerance * |exact| over n values (2-norms), all finite; else the case fails. */
bool fl_near(const char *what, int64_t n, const double *got, const double *exact, double tolerance);
/* The slot's states against the reference's. */
bool fl_states_near(fl *f, const char *what, int32_t slot, const fl_ref *ref, double tolerance);

/* ---- Tests ------------------------------------------------------------------------------------------------
 */

typedef struct fl_test {
    const char *name;
    void (*run)(uint64_t isa);
} fl_test;
extern const fl_test fl_group_a[], fl_group_a2[], fl_group_b[], fl_group_c[], fl_group_c2[], fl_group_d[],
    fl_group_e[], fl_group_e2[], fl_drift[], fl_long[], fl_hostile[], fl_hostile_calls[], fl_hostile_files[];

#endif
