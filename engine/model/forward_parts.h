/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of a pass share: its scratch, and the steps that all blocks are made of. forward.c runs the
 * pass, experts.c and latent_attention.c the blocks of their kind.
 */
#ifndef RSE_FORWARD_PARTS_H
#define RSE_FORWARD_PARTS_H

#include "model/forward.h"

struct rse_forward {
    rse_forward_desc desc;
    bool bf16;
    int64_t bytes;
    float *memory;
    /* Rows of one token each, in memory. */
    float *x;       /* [hidden] residual stream */
    float *normed;  /* [hidden] */
    float *delta;   /* [hidden] what a block adds */
    float *streams; /* [streams][hidden], or the bank of earlier streams [entries][hidden] */
    float *mix; /* weights of a block's streams: [streams] of what it reads, [streams] of its result, [streams]
                   [streams] of the streams in each other */
    const float *entry; /* [hidden] what the block reads: x, or a mix in given memory */
    float *mixed;       /* [hidden] */
    int32_t entries;    /* of the bank, in this pass */
    bool anew;          /* the stream starts anew with this block's result */
    float *wide;        /* mixer: packed row; attention: queries; MLP: gate, or up where there is none */
    float *inner;       /* mixer: y; attention: its result; MLP: up */
    float *keys;        /* [kv heads][head_dim] */
    float *values;      /* the same */
    float *rope;        /* [rotary] */
    float *low;         /* mixer: low-rank or fused projection; MLA: low-rank query; experts: latent row */
    float *score;       /* experts: router's scores */
    float *gathered;    /* experts: rows of the tokens that use one; MLA: queries of a head group */
    float *given;       /* experts: what it makes of them; MLA: queries against latent rows */
    float *route;       /* experts: which are used by which tokens */
    uint16_t *packed;   /* mixer: packed row in bf16, with bf16 io */
};

/* Rounds where a bf16 model would store a tensor. */
void rse_forward_store(const rse_forward *f, int64_t rows, int64_t cols, float *x, int64_t stride);
/* y = w x + bias, stored. */
void rse_forward_linear(const rse_forward *f, const rse_linear *w, int64_t tokens, const float *x,
                        int64_t x_stride, float *y, int64_t y_stride);
/* Puts the step's keys and values [tokens][stride] into the cache of an attention layer, and into the branches of
 * its trees. */
void rse_forward_keep(const rse_forward *f, const rse_step *step, int32_t layer, int64_t stride,
                      const float *keys, const float *values);
/* y [tokens][hidden or latent] = the MLP of x, both dense; uses f->wide and f->inner. */
void rse_forward_mlp(const rse_forward *f, int64_t tokens, const rse_mlp *mlp, const float *x, float *y);

/* Values per token of every scratch array. */
typedef struct rse_scratch {
    int64_t hidden, wide, inner, keys, rope, packed, low, score, gathered, given, route, streams, mix, mixed;
} rse_scratch;

/* What a block of experts or of latent attention needs of scratch: raises the widths. */
void rse_experts_measure(const rse_config *config, rse_scratch *scratch);
void rse_latent_measure(const rse_config *config, rse_scratch *scratch);
/* f->delta = what the block makes of f->normed. */
void rse_experts_run(rse_forward *f, int64_t tokens, const rse_moe *moe);
void rse_latent_run(rse_forward *f, const rse_step *step, const rse_mla *mla);

/* The residual around blocks, residual.c: after the embedding in f->x; what a block reads, to f->entry; its
 * f->delta added; and f->x as the final norm reads it. */
void rse_residual_measure(const rse_config *config, rse_scratch *scratch);
void rse_residual_start(rse_forward *f, int64_t tokens);
void rse_residual_enter(rse_forward *f, int64_t tokens, const rse_block *block);
void rse_residual_leave(rse_forward *f, int64_t tokens, const rse_block *block);
void rse_residual_finish(rse_forward *f, int64_t tokens);

static inline int64_t rse_larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

#endif
