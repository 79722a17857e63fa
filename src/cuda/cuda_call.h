/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the host hands to the kernels, and the functions that launch them. Everything a kernel reads besides these
 * structs lies in device memory: slots, offsets, counts, cursors. So a captured launch is right when it is replayed
 * with other contents, and nothing here depends on them.
 */
#ifndef RSSM_CUDA_CALL_H
#define RSSM_CUDA_CALL_H

#include "cpu/kernels.h"
#include "replayssm/cache.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Tokens that a scan (prefill, conventional) takes at a time. */
enum { RSSM_CUDA_SCAN_TOKENS = 16 };
/* Tiles of the state in flight in a block of decode.cu, and what a thread holds of one, in exact shapes. */
enum { RSSM_CUDA_STAGES = 2, RSSM_CUDA_TILE_BYTES = 128 };
/* Of a block of decode_stream.cu: warps that evaluate, stages, each for a tile, and units' working memory. */
enum {
    RSSM_STREAM_WARPS = 8,
    RSSM_STREAM_STAGE_BYTES = 8192,
    RSSM_STREAM_STAGES = RSSM_STREAM_WARPS,
    RSSM_STREAM_BUFFERS_LEAST = 3,
    RSSM_STREAM_BUFFERS_MAX = 8
};

/* One per cache, in device memory. */
typedef struct rssm_cuda_words {
    unsigned long long serial; /* of the last begin or operation on slots */
    unsigned long long error;  /* RSSM_FAULT_* seen since it was last asked for */
    unsigned long long steps, row_steps, flushes, bytes_read, bytes_written, failed_slots;
    unsigned int ticket; /* blocks of the running begin that have ended */
    unsigned int left;   /* blocks of the running decode that have */
    unsigned int unit;   /* of the running decode, handed out besides each block's first */
    unsigned int unused;
} rssm_cuda_words;

/* What all kernels of a cache share. */
typedef struct rssm_cuda_cache {
    rssm_rows rows;
    int32_t layers;
    int32_t reserved; /* slots */
    int64_t slots;
    const rssm_part *parts; /* [layers][RSSM_PARTS] in device memory */
    rssm_cuda_words *words;
} rssm_cuda_cache;

typedef struct rssm_cuda_begin {
    rssm_cuda_cache cache;
    rssm_batch batch; /* its arrays lie in device memory */
    const int32_t *accepted;
    int64_t tokens; /* at most these in the batch */
    int32_t step_tokens, window, conventional;
} rssm_cuda_begin;

/* Sections of a block's working memory, in floats. */
typedef struct rssm_cuda_layout {
    int32_t width;      /* of a key row: d_k, padded to the columns of the lanes */
    int32_t records;    /* rows of the window */
    int32_t tokens;     /* most tokens at a time */
    int32_t slice;      /* rows of the state that a block works on */
    int32_t key, norm, query, gram, state;
    int32_t head; /* from a section of one of the unit's heads to that of the next; of the first head: */
    int32_t alpha, beta, value, walked, coefficient, product, y;
    int32_t total;
} rssm_cuda_layout;

/* One layer of a step. */
typedef struct rssm_cuda_step {
    rssm_geometry geometry;
    rssm_constants constants; /* pointers to device memory */
    rssm_part parts[RSSM_PARTS];
    rssm_cuda_words *words;
    rssm_batch batch;
    rssm_layer_inputs inputs; /* strides filled in */
    rssm_output out;
    rssm_cuda_layout layout;
    int64_t slots, tokens; /* limits */
    int32_t reserved;
    int32_t gate_bf16, out_bf16;
    int32_t prefill, conventional;
    int32_t slices;  /* blocks that share a head */
    int32_t heads;   /* of a unit, of one key head; 1 where slices is more */
    int32_t threads; /* of a block of decode.cu: 128 or 256 */
    int32_t streams; /* decode_stream.cu does it, with so many blocks */
    int32_t buffers; /* of each of them */
    float *memory;   /* working memory of the blocks where it does not fit a multiprocessor, else NULL */
    float *y;        /* [tokens][value_heads][d_v]: outputs before the norm, where blocks share a norm, else NULL */
} rssm_cuda_step;

/* A fold outside a step. Job (i, layer): records [first, first + count) of a slot's map into a checkpoint. */
typedef struct rssm_cuda_fold {
    rssm_geometry geometry;
    rssm_constants constants; /* of the layer */
    rssm_part parts[RSSM_PARTS];
    rssm_cuda_layout layout;
    int32_t slices;
    float *memory;
    /* jobs: */
    int64_t count;
    const int32_t *src, *dst;   /* slots */
    const int64_t *positions;   /* fold up to these; < 0: nothing to do */
    rssm_cuda_words *words;
    int32_t into_dst;           /* dst is another slot: its checkpoint is written whole */
    int32_t unused;
} rssm_cuda_fold;

/* An operation on a list of slots. */
typedef struct rssm_cuda_list {
    rssm_cuda_cache cache;
    int64_t count;
    const int32_t *src, *dst; /* dst: the slots that change */
    const int64_t *positions;
    const uint64_t *ids;
    int64_t *plan; /* [count] positions found by the first pass, -1: refused */
} rssm_cuda_list;

/* Bytes [0, bytes) of a part of slots dst[i] become those of src[i], as if all at once. */
typedef struct rssm_cuda_copy {
    rssm_part part;
    int64_t bytes; /* a multiple of 16 */
    int64_t count;
    const int32_t *src, *dst;
    const int64_t *plan;
} rssm_cuda_copy;

/* Each returns a cudaError_t. */
int rssm_launch_begin(const rssm_cuda_begin *call, void *stream);
int rssm_launch_decode(const rssm_cuda_step *call, void *stream);
int rssm_launch_decode_stream(const rssm_cuda_step *call, void *stream); /* the same where streams is not 0 */
int rssm_launch_scan(const rssm_cuda_step *call, void *stream);
int rssm_launch_fold(const rssm_cuda_fold *call, void *stream);
/* Passes over lists. */
enum {
    RSSM_LIST_START,       /* reset, adopt: cursors of dst */
    RSSM_LIST_FLUSH,       /* plan[i] = where to fold dst[i] to */
    RSSM_LIST_FLUSHED,     /* checkpoints of dst[i] stand at plan[i] */
    RSSM_LIST_ROLLBACK,
    RSSM_LIST_CLAIM,       /* plan[i] = 0 if dst[i] may be written, once */
    RSSM_LIST_MATERIALIZE, /* plan[i] = position of src[i] to write; no src may be claimed */
    RSSM_LIST_MATERIALIZED, /* cursors of dst */
    RSSM_LIST_COPY,        /* plan[i] = 0 if src[i] can be copied */
    RSSM_LIST_COPIED       /* cursors of dst, copied before */
};
int rssm_launch_list(const rssm_cuda_list *call, int pass, void *stream);
/* Zeros `bytes` of a part of slots dst[i] whose plan is not negative. */
int rssm_launch_zero(const rssm_cuda_copy *call, void *stream);
int rssm_launch_copy(const rssm_cuda_copy *call, void *stream);
/* The convolution rows of src[i] at plan[i] as rows 0, 1, ... of dst[i], in one layer. */
int rssm_launch_conv_rows(const rssm_cuda_list *call, int32_t layer, int64_t row_bytes, void *stream);

#ifdef __cplusplus
}
#endif
#endif
