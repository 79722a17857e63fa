/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the CPU kernels are given, and their table. A kernel works on one *unit*: one row of the batch and the key heads
 * that share an output norm group (most often one key head), with all value heads that use them. Units are
 * independent of each other, so they may run in any order and on any thread, and a unit's result depends on nothing
 * but its own row.
 */
#ifndef RSSM_CPU_KERNELS_H
#define RSSM_CPU_KERNELS_H

#include "cpu/scan.h"
#include "cursor.h"

/* Where things lie in the scratch of a unit, in floats. T stands for RSSM_SCAN_TOKENS, W for rows.records. */
typedef struct rssm_layout {
    size_t q;            /* [T][padded_k] queries */
    size_t key;          /* [T][padded_k] keys of the step's tokens; prefill: normalised */
    size_t v;            /* [ratio][T][padded_v] */
    size_t y;            /* [unit_values][T][padded_v] */
    size_t alpha, beta;  /* [T][ratio padded] gates of the step's tokens */
    size_t head_alpha;   /* [ratio][T], or [ratio][T][padded_k] for a vector decay: the scan's */
    size_t head_beta;    /* [ratio][T] */
    size_t window_key;   /* [W][padded_k] normalised keys of the window's records */
    size_t window_alpha; /* [W] or [W][padded_k], one head's */
    size_t window_beta;  /* [W], one head's */
    size_t r;            /* [step_tokens][padded_k] walked-back queries */
    size_t c;            /* [step_tokens][W] coefficients of the records' values */
    size_t gram;         /* [step_tokens][W] products of queries and keys */
    size_t context;      /* convolution rows of one head */
    size_t scan;         /* rssm_scan_scratch() */
    size_t total;
} rssm_layout;

/* A layer spec with its defaults filled in and its derived sizes worked out. */
typedef struct rssm_geometry {
    int32_t kind;
    int32_t key_heads, value_heads;
    int32_t ratio; /* value heads of a key head */
    int32_t modulo;
    int32_t d_k, d_v, padded_k, padded_v;
    int32_t delta;        /* 1: delta rule, 0: Mamba-2 */
    int32_t vector_decay; /* alpha per key channel */
    int32_t raw_records;  /* vector-decay records hold the raw gate */
    int32_t conv_width, conv_silu;
    int32_t gate;
    float gate_lower_bound, dt_min, dt_max, beta_scale;
    int32_t l2;
    float qk_eps, q_scale;
    int32_t out_norm;
    int32_t units;          /* per row */
    int32_t unit_keys;      /* key heads of a unit */
    int32_t unit_values;    /* value heads of a unit */
    int32_t unit_norms;     /* norm groups of a unit */
    float out_eps;
    int32_t bf16;           /* io format: 0 f32, 1 bf16 */
    rssm_rows rows;
    int32_t step_tokens;
    /* channels of the scalar records */
    int32_t channel_decay, channel_beta, channel_norm, channels;
    /* elements of a convolution row: q | k | v */
    int32_t conv_k, conv_v, conv_channels;
    rssm_layout scratch;
} rssm_geometry;

/* One layer's constants, the library's own copy. Per-head values are in unit order (value head i of key head g at
   g * ratio + i), convolution weights tap by tap: [width][channels]. */
typedef struct rssm_constants {
    float *memory; /* one block for all */
    const float *conv_weight;
    const float *conv_bias;
    const float *A;       /* [value_heads] */
    const float *dt_bias; /* [value_heads], vector decay [value_heads][padded_k] */
    const float *D;       /* [value_heads] */
    const float *out_norm; /* [value_heads][padded_v], repeated per head for the head norms */
    int32_t ready;
} rssm_constants;

/* One row of a step on one layer: pointers to its slot's parts, and what begin planned. */
typedef struct rssm_row {
    const rssm_cursor *cursor;
    rssm_layer_cursor *layer;
    float *checkpoint;
    void *record_k, *record_v, *record_decay;
    float *record_scalar;
    void *conv;
    int32_t first;  /* map entry of the first record that the checkpoint does not hold */
    int32_t fold;   /* records to fold into it, counted from there; includes the new token for the conventional method */
    int32_t tokens; /* of this row in this step */
    int32_t token;  /* index of its first token in the inputs */
    const int8_t *parents; /* [tokens] of a tree: the token before each on its path, -1 the history's last; NULL: a chain */
    /* The unit that comes next, of this or another row, so that its state can be asked for early; NULL: none. */
    const float *ahead;  /* checkpoint of its row */
    int32_t ahead_unit;
} rssm_row;

/* One call of decode or prefill. */
typedef struct rssm_call {
    const rssm_geometry *geometry;
    const rssm_constants *constants;
    const rssm_layer_inputs *inputs; /* strides filled in */
    const rssm_output *out;          /* strides filled in */
    int32_t gate_bf16, out_bf16;
} rssm_call;

/* Folds records [first, first + count) of a row's map into a checkpoint, which may be another slot's. */
typedef struct rssm_fold {
    const rssm_geometry *geometry;
    const rssm_constants *constants;
    const rssm_row *row;
    float *checkpoint;
    int32_t count;
} rssm_fold;

typedef struct rssm_kernels {
    const char *isa;
    uint64_t needs;
    /* scratch: geometry.scratch.total floats, 64-byte aligned */
    void (*decode_unit)(const rssm_call *call, const rssm_row *row, int32_t unit, float *scratch);
    void (*prefill_unit)(const rssm_call *call, const rssm_row *row, int32_t unit, float *scratch);
    void (*fold_unit)(const rssm_fold *fold, int32_t unit, float *scratch);
} rssm_kernels;

/* The newest variant that these RSSM_ISA_* bits allow. */
const rssm_kernels *rssm_kernels_select(uint64_t isa);
/* The value head i of key head g. */
static inline int32_t rssm_value_head(const rssm_geometry *geo, int32_t g, int32_t i) {
    return geo->modulo ? g + i * geo->key_heads : g * geo->ratio + i;
}

/* Lays out the scratch of a geometry whose other fields are set. */
void rssm_layout_scratch(rssm_geometry *geometry);
/* "gdn_decode_avx512_f32_bf16"; static storage. */
const char *rssm_kernel_name(const rssm_kernels *kernels, int32_t kind, int32_t io_dtype);

#endif
