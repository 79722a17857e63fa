/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Causal softmax attention over the paged cache of keys and values, query heads sharing key heads in groups. A
 * token's output depends on its query and the keys and values up to its position, bit for bit: not on the other
 * tokens of the call, on where the prompt was cut, or on threads.
 */
#ifndef RSE_ATTENTION_H
#define RSE_ATTENTION_H

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
