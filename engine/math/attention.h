/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Causal softmax attention over the paged cache of keys and values, query heads sharing key heads in groups. A
 * token's output depends on its query and the keys and values up to its position, bit for bit: not on the other
 * tokens of the call, on where the prompt was cut, or on threads.
 */
#ifndef RSE_ATTENTION_H
#define RSE_ATTENTION_H

#include <replayssm/replayssm.h>
#include <stdint.h>

#include "math/kvcache.h"
#include "math/math.h"

/* One sequence's new tokens in a ragged batch. */
typedef struct rse_attention_row {
    const rse_kv_seq *seq; /* start + tokens positions reserved, and written by rse_kv_write() before */
    int64_t start;         /* position of the first new token */
    int64_t tokens;        /* >= 0 */
    int64_t first;         /* index of the first new token in q and out */
} rse_attention_row;

/* A token of a tree that does not follow its neighbour: attention sees its path as a sequence of its own. */
typedef struct rse_attention_branch {
    rse_kv_seq seq;          /* rse_kv_branch_open() */
    const rse_kv_seq *trunk; /* where the step's keys and values were written, token t at start + t */
    int64_t start;
    int32_t depth; /* tokens of the path */
    int32_t path[RSSM_STEP_TOKENS_MAX];
} rse_attention_branch;

typedef struct rse_attention_args {
    const rse_kv_pool *pool;
    int32_t layer; /* of the pool */
    int32_t heads; /* query heads, a multiple of the pool's kv_heads; head h reads kv head h / group */
    float scale;   /* of the products q k; 1/sqrt(head_dim) for all models so far */
    int64_t row_count;
    const rse_attention_row *rows; /* [row_count] */
    const float *q;                /* head h of token t at q + t * q_stride + h * q_head_stride */
    int64_t q_stride;
    int64_t q_head_stride;
    float *out; /* [token][heads][head_dim], out_stride from token to token; not q */
    int64_t out_stride;
} rse_attention_args;

void rse_attention(const rse_math *math, const rse_attention_args *args);

#endif
