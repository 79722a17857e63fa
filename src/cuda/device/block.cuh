/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block of a decode or a scan: one value head of one row of the batch, or a slice of the head's rows. What it finds in
 * device memory before it can start, its working memory, and what it leaves when it has ended.
 */
#ifndef RSSM_CUDA_BLOCK_CUH
#define RSSM_CUDA_BLOCK_CUH

#include "cuda/cuda_call.h"
#include "cuda/device/numbers.cuh"
#include "cuda/device/pipeline.cuh"

/* Working memory: sections of rssm_cuda_layout. */
struct memory {
    float *key;         /* [records][width] normalised keys, oldest first */
    float *norm;        /* [records]: their inverse norms */
    float *query;       /* [tokens][width] */
    float *gram;        /* [tokens][records]: k . q, where the heads of a group share them */
    /* of one of the block's heads: */
    float *alpha;       /* [records], or [records][width] */
    float *beta;        /* [records] */
    void *value;        /* [records][slice], io format, as records hold them */
    float *walked;      /* [tokens][width]: r */
    float *coefficient; /* [tokens][records] */
    float *product;     /* [tokens]: of the decays a query has met, where r is that times the query */
    float *y;           /* [tokens][slice] */
};

static __device__ __forceinline__ memory memory_at(float *base, const rssm_cuda_layout &l) {
    return memory{base + l.key, base + l.norm, base + l.query,       base + l.gram,    base + l.alpha, base + l.beta, base + l.value,
                  base + l.walked, base + l.coefficient, base + l.product, base + l.y};
}

/* The same with the sections of the block's head i. */
static __device__ __forceinline__ memory memory_of_head(memory m, const rssm_cuda_layout &l, int i) {
    const int at = i * l.head;
    m.alpha += at;
    m.beta += at;
    m.value = (float *)m.value + at;
    m.walked += at;
    m.coefficient += at;
    m.product += at;
    m.y += at;
    return m;
}

static __device__ __forceinline__ float value_at(const memory &m, int bf16, int at) {
    return bf16 ? f32_of_bf16(((const uint16_t *)m.value)[at]) : ((const float *)m.value)[at];
}

/* A slot's parts in one layer, and the rows of its buffers in order. */
struct slot_parts {
    const rssm_cursor *cursor;
    rssm_layer_cursor *layer;
    float *checkpoint, *record_scalar;
    char *record_k, *record_v, *record_decay, *conv;
};

template <class T> static __device__ __forceinline__ T *part_at(const rssm_part *parts, int part, int64_t slot) {
    return (T *)(parts[part].base + slot * parts[part].stride);
}

static __device__ __forceinline__ slot_parts slot_at(const rssm_part *parts, int64_t slot) {
    return slot_parts{part_at<rssm_cursor>(parts, RSSM_PART_CURSOR, slot),
                      part_at<rssm_layer_cursor>(parts, RSSM_PART_LAYER_CURSOR, slot),
                      part_at<float>(parts, RSSM_PART_CHECKPOINT, slot),
                      part_at<float>(parts, RSSM_PART_RECORD_SCALAR, slot),
                      part_at<char>(parts, RSSM_PART_RECORD_K, slot),
                      part_at<char>(parts, RSSM_PART_RECORD_V, slot),
                      part_at<char>(parts, RSSM_PART_RECORD_DECAY, slot),
                      part_at<char>(parts, RSSM_PART_CONV, slot)};
}

/* Which head of which row. */
struct head_place {
    int row;          /* of the batch */
    int h, hv;        /* value head in unit order, and in the order of inputs and parts */
    int key;          /* its key head */
    int first, rows;  /* rows of the head's state in this slice */
    int slice;        /* rows of a whole slice */
    bool owner;       /* leaves what the group's heads share: keys, norms, convolution rows of q and k */
    bool first_slice; /* leaves what the head's slices share: gates */
};

/* The first of the `heads` heads of a row's unit; they share a key head. */
static __device__ __forceinline__ head_place place_of_unit(const rssm_geometry &g, int slices, int slice_rows, int heads, int row,
                                           int unit) {
    head_place p;
    const unsigned slice = (unsigned)unit % (unsigned)slices, h = (unsigned)unit / (unsigned)slices * (unsigned)heads;
    const unsigned ratio = (unsigned)g.ratio;
    p.h = (int)h;
    p.row = row;
    p.key = (int)(h / ratio);
    p.hv = g.modulo ? p.key + (int)(h % ratio) * g.key_heads : p.h;
    p.first = (int)slice * slice_rows;
    p.rows = g.d_v - p.first < slice_rows ? g.d_v - p.first : slice_rows;
    p.slice = slice_rows;
    p.first_slice = slice == 0;
    p.owner = h % ratio == 0 && slice == 0;
    return p;
}

/* A block's unit where the grid is [rows][units]. */
static __device__ __forceinline__ head_place place_of_block(const rssm_geometry &g, int slices, int slice_rows,
                                int heads) {
    return place_of_unit(g, slices, slice_rows, heads, (int)blockIdx.y, (int)blockIdx.x);
}

/* The i-th of a unit's heads, from the first. */
static __device__ __forceinline__ head_place head_at(const rssm_geometry &g, head_place p, int i) {
    p.h += i;
    p.hv += i * (g.modulo ? g.key_heads : 1);
    p.owner = p.owner && i == 0;
    return p;
}

/* Where a block's working memory lies if it does not fit a multiprocessor. */
static __device__ __forceinline__ float *spilled(float *base, int floats) {
    return base + ((int64_t)blockIdx.y * gridDim.x + blockIdx.x) * floats;
}

/* A row of the step. */
struct step_row {
    bool work, live; /* live: not padding */
    int tokens, token;
    int first;       /* map entry of the first record that the checkpoint does not hold */
    int fold;        /* records to fold */
    int history, held;
    uint64_t serial;
};

static __device__ __forceinline__ void fault(rssm_cuda_words *words, unsigned long long what) {
    atomicOr(&words->error, what);
}

/* Tokens of a row of a batch: false if they lie beyond the limits. */
static __device__ __forceinline__ bool row_tokens(const rssm_batch &b, int row, int64_t limit, int *token,
                                int *tokens) {
    int64_t begin = b.offsets != nullptr ? b.offsets[row] : (int64_t)row * b.uniform_tokens;
    int64_t end = b.offsets != nullptr ? b.offsets[row + 1] : begin + b.uniform_tokens;
    *token = (int)begin;
    *tokens = (int)(end - begin);
    return begin >= 0 && end >= begin && end <= limit;
}

/* A row of the batch and its slot's parts; no parts for padding. Every thread that asks finds the same. */
static __device__ __forceinline__ step_row locate_row(const rssm_cuda_step &c, int index, slot_parts *slot) {
    step_row row = {};
    const int64_t s = c.batch.slots[index * c.batch.slots_stride];
    const bool mine = c.batch.prefill == nullptr ? !c.prefill : (c.batch.prefill[index] != 0) == (c.prefill != 0);
    if (!row_tokens(c.batch, index, c.tokens, &row.token, &row.tokens) || row.tokens == 0 || !mine) {
        return row;
    }
    row.work = true;
    if (s >= c.reserved && s < c.slots) {
        *slot = slot_at(c.parts, s);
    }
    return row;
}

/* What begin planned for a row that has a slot. ran: for the kernels that follow, what the layer has just run. All that is
   needed is asked for before any of it is looked at. */
static __device__ __forceinline__ void plan_row(const rssm_cuda_step &c, int index, bool ran, const rssm_cursor *cursor,
                                const rssm_layer_cursor *layer, step_row *row) {
    const uint32_t state = cursor->state;
    const int step = cursor->step, pending = cursor->pending, prefill = cursor->prefill, at = cursor->row;
    const int64_t position = cursor->position, target = cursor->target, checkpoint = layer->checkpoint;
    const uint64_t serial = layer->serial;
    row->history = cursor->history;
    row->held = cursor->held;
    row->serial = cursor->serial;
    const bool whole = c.prefill || c.conventional, done = serial == row->serial;
    row->live = state == RSSM_CURSOR_READY & at == index & pending == row->tokens &
                step == (whole ? RSSM_STEP_WHOLE : RSSM_STEP_DECODE) & (prefill != 0) == (c.prefill != 0) & (ran ? done : !(whole & done));
    if (!row->live && !ran) {
        fault(c.words, RSSM_FAULT_STEP);
        return;
    }
    const int64_t ahead = target - checkpoint;
    row->first = (int)(checkpoint - (position - row->history));
    row->fold = ahead > 0 ? (int)ahead : 0;
}

static __device__ __forceinline__ step_row find_row(const rssm_cuda_step &c, int index, bool ran, slot_parts *slot) {
    step_row row = locate_row(c, index, slot);
    if (slot->cursor != nullptr) {
        plan_row(c, index, ran, slot->cursor, slot->layer, &row);
    }
    return row;
}

/* The outputs of a padding row. */
static __device__ void write_zeros(const team &w, const rssm_cuda_step &c, const head_place &p, const step_row &row) {
    for (int64_t i = w.thread; i < (int64_t)row.tokens * p.rows; i += w.threads) {
        int64_t token = row.token + i / p.rows, at = p.first + i % p.rows;
        at += token * c.out.token_stride + p.hv * c.out.head_stride;
        store_io(c.out.data, at, 0.0f, c.out_bf16);
    }
}

/* What a row's blocks moved, by formula; see docs/numerics.md. */
static __device__ void count_row(const rssm_cuda_step &c, const step_row &row) {
    const rssm_geometry &g = c.geometry;
    int64_t io = g.bf16 ? 2 : 4, state = (int64_t)g.value_heads * g.d_v * g.d_k * 4;
    int64_t decay = g.vector_decay ? (int64_t)g.value_heads * g.d_k * (g.raw_records ? io : 4) : 0;
    int64_t record = io * ((int64_t)g.key_heads * g.d_k + (int64_t)g.value_heads * g.d_v) + 4 * (int64_t)g.channels + decay;
    int64_t conv = g.conv_width > 0 ? (int64_t)g.conv_channels * io : 0;
    atomicAdd(&c.words->row_steps, 1ull);
    if (row.fold > 0 || c.conventional || c.prefill) {
        atomicAdd(&c.words->flushes, 1ull);
    }
    if (!c.prefill) {
        int64_t written = (row.fold > 0 || c.conventional ? state : 0) + (c.conventional ? 0 : record * row.tokens);
        atomicAdd(&c.words->bytes_read,
                  (unsigned long long)(state + record * (row.history - row.first) + conv * g.rows.conv_need));
        atomicAdd(&c.words->bytes_written, (unsigned long long)(written + conv * row.tokens));
    }
}

/* A unit has read the layer's cursor; the last of the row's `units` to do so moves it on. What they have yet to do is over
   before any other launch looks. One thread's work, once no other has yet to read. */
static __device__ __forceinline__ void count_unit(const rssm_cuda_step &c, const step_row &row, const slot_parts &slot, int64_t moved,
                                  unsigned int units) {
    if (atomicAdd((unsigned int *)&slot.layer->ended, 1u) + 1 == units) {
        slot.layer->ended = 0;
        slot.layer->checkpoint += moved;
        slot.layer->serial = row.serial;
        slot.layer->begun = c.prefill && c.geometry.conv_width > 0; /* until the prompt's convolution rows are in place */
        count_row(c, row);
    }
}

#endif
