/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte-pair encoding of one pre-token: start from its bytes, and as long as two neighbours have a merge, apply
 * the one of lowest rank (the leftmost of equals).
 */
#ifndef RSE_BPE_H
#define RSE_BPE_H

#include "text/vocab.h"

typedef struct rse_merge {
    int32_t left, right; /* ids; left is -1 where the table is free */
    int32_t rank;
    int32_t id; /* of the pair */
} rse_merge;

/* Valid when zeroed; freed by rse_bpe_free(). */
typedef struct rse_bpe {
    rse_vocab vocab;
    rse_merge *merges;
    size_t mask;
    bool ignore_merges; /* a pre-token that is a token is taken whole */
} rse_bpe;

/* Working memory of one encoder; valid when zeroed; freed by rse_bpe_work_free(). */
typedef struct rse_bpe_work {
    struct rse_symbol *symbols;
    struct rse_candidate *heap;
    size_t capacity; /* bytes of a pre-token it is good for */
} rse_bpe_work;

/* Reads the object "model" of tokenizer.json; largest as for rse_vocab_load(). */
rse_status rse_bpe_load(rse_bpe *bpe, const rse_json *model, int32_t largest, rse_error *err);
void rse_bpe_free(rse_bpe *bpe);
/* Appends the ids of a pre-token. O(n log n). */
rse_status rse_bpe_encode(const rse_bpe *bpe, rse_bpe_work *work, const char *bytes, size_t length,
                          rse_ids *ids, rse_error *err);
void rse_bpe_work_free(rse_bpe_work *work);

#endif
