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
#include "philox.h"

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
    size_t tile;         /* [16][padded_k] rows of a narrow checkpoint, while they are folded and rounded */
    size_t head;         /* nvfp4: [padded_v][padded_k] a head while it is encoded */
    size_t special;      /* nvfp4: a byte for each of its elements */
    size_t tile_scale;   /* nvfp4: [padded_k][16] */
    size_t tile_codes;   /* nvfp4: [padded_k][16] */
    size_t scales;       /* nvfp4: a head's block scales as fp32, while it is read */
    size_t plain;        /* [unit_values][d_v][d_k] a unit's narrow checkpoint during prefill */
    size_t total;
} rssm_layout;

/* The formats of a layer's state. */
typedef struct rssm_formats {
    int32_t checkpoint; /* RSSM_DTYPE_F32, _F16, _BF16 or _F8 */
    int32_t stochastic;
    uint64_t seed;
    int32_t copy; /* RSSM_DTYPE_*; RSSM_DTYPE_DEFAULT: none */
    int32_t shared; /* the recurrence continues from the copy: the f32 checkpoint takes its values; stochastic is its */
    /* nvfp4 */
    int32_t block;        /* columns of a block along d_k: 16 or 32 */
    int32_t block_values; /* blocks lie along d_v instead, 16 rows */
    int32_t blocks;       /* scales of a row, along d_v of 16 rows */
    int32_t search, rank, diffusion;
    /* bytes: a row of codes, a head of codes, a head of nvfp4 scales; offsets of its fp32 scales and of its factors */
    int64_t copy_row, copy_head, scale_head, scale_tail, scale_factors;
} rssm_formats;

enum { RSSM_DIRECTIONS_MAX = 8 };

/* What is known beforehand of a layer's reads; NULL: nothing. [value_heads][padded_k], or with directions in between. */
typedef struct rssm_calibration {
    float *memory;
    const float *scale, *inverse; /* of columns, and 1 / scale */
    const float *weight;          /* what an error of a scaled column costs */
    const float *spread, *pull;   /* error diffusion, see copy.inl.h */
    int32_t directions;
} rssm_calibration;

/* One layer's state of one slot, in these formats. Memory of zero bytes is the zero state in all of them. */
typedef struct rssm_state {
    char *checkpoint;   /* [value_heads][d_v][d_k] */
    uint8_t *exponent;  /* f8: [value_heads][d_v], E8M0 */
    char *copy;         /* the read copy's codes, or NULL: none */
    char *copy_scale;   /* f8: as exponent; int8: f32 [value_heads][d_v]; nvfp4: per head block scales, fp32 scales, factors */
    /* the sequence, and the position that a fold or a scan brings the state to */
    uint64_t id;
    int64_t position;
    RSSM_ATOMIC_I64 *overflows; /* counts finite elements that became infinite */
} rssm_state;

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
    int32_t window;
    int32_t first_value_head; /* global number of value head 0 */
    rssm_formats formats;
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
    rssm_calibration read;
    rssm_read_statistics watched; /* second_moment NULL: nobody watches */
    int32_t layer; /* its global number */
    int32_t ready;
} rssm_constants;

/* One row of a step on one layer: pointers to its slot's parts, and what begin planned. */
typedef struct rssm_row {
    const rssm_cursor *cursor;
    rssm_layer_cursor *layer;
    rssm_state state;
    void *record_k, *record_v, *record_decay;
    float *record_scalar;
    void *conv;
    int32_t first;  /* map entry of the first record that the checkpoint does not hold */
    int32_t fold;   /* records to fold into it, counted from there; includes the new token for the conventional method */
    int32_t tokens; /* of this row in this step */
    int32_t token;  /* index of its first token in the inputs */
    const int8_t *parents; /* [tokens] of a tree: the token before each on its path, -1 the history's last; NULL: a chain */
    /* The unit that comes next, of this or another row, so that its state can be asked for early; NULL: none. */
    const char *ahead;   /* what its row's reads come from: the copy, or else the checkpoint */
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

/* Folds records [first, first + count) of a row's map into a state, which may be another slot's. */
typedef struct rssm_fold {
    const rssm_geometry *geometry;
    const rssm_constants *constants;
    const rssm_row *row;
    const rssm_state *state;
    int32_t count;
} rssm_fold;

/* Moves a unit's states between a checkpoint and fp32: [value_heads][d_v][d_k], of which only the unit's heads are
   touched. Storing rounds. */
typedef struct rssm_move {
    const rssm_geometry *geometry;
    const rssm_constants *constants;
    const rssm_state *state;
    float *plain;
} rssm_move;

typedef struct rssm_kernels {
    const char *isa;
    uint64_t needs;
    /* scratch: geometry.scratch.total floats, 64-byte aligned */
    void (*decode_unit)(const rssm_call *call, const rssm_row *row, int32_t unit, float *scratch);
    void (*prefill_unit)(const rssm_call *call, const rssm_row *row, int32_t unit, float *scratch);
    void (*fold_unit)(const rssm_fold *fold, int32_t unit, float *scratch);
    void (*load_unit)(const rssm_move *move, int32_t unit, float *scratch);
    void (*store_unit)(const rssm_move *move, int32_t unit, float *scratch);
    void (*copy_unit)(const rssm_move *move, int32_t unit, float *scratch); /* makes the read copy */
} rssm_kernels;

/* The newest variant that these RSSM_ISA_* bits allow. */
const rssm_kernels *rssm_kernels_select(uint64_t isa);
/* The value head i of key head g. */
static inline int32_t rssm_value_head(const rssm_geometry *geo, int32_t g, int32_t i) {
    return geo->modulo ? g + i * geo->key_heads : g * geo->ratio + i;
}

/* Fills in the sizes of the read copy. */
void rssm_layout_copy(rssm_geometry *geometry);
/* Lays out the scratch of a geometry whose other fields are set. */
void rssm_layout_scratch(rssm_geometry *geometry);
/* "gdn_decode_avx512_f32_bf16"; static storage. */
const char *rssm_kernel_name(const rssm_kernels *kernels, int32_t kind, const rssm_formats *formats, int32_t io_dtype);

#endif
