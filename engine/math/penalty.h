/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Penalties for tokens that a sequence has already, taken off the logits before any other filter. Of a token that
 * occurs anywhere in the sequence, prompt included, a positive logit is divided by `repetition` and a negative one
 * multiplied with it; from a token that was generated n times, presence + n frequency is subtracted.
 */
#ifndef RSE_PENALTY_H
#define RSE_PENALTY_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* Zeros: none. */
typedef struct rse_penalties {
    float repetition; /* above 0, at most 10; 1, or 0: none */
    float presence;   /* -2 .. 2 */
    float frequency;  /* -2 .. 2 */
} rse_penalties;

/* RSE_ERROR_USAGE with a sentence naming the first field out of range. */
rse_status rse_penalties_check(const rse_penalties *penalties, rse_error *err);
bool rse_penalties_any(const rse_penalties *penalties);

/* How often a sequence has each of its tokens. Zeroed: empty. */
typedef struct rse_token_counts {
    struct rse_token_count *table; /* open addressing */
    int64_t capacity;              /* a power of two, or 0 */
    int64_t used;
} rse_token_counts;

/* Counts one more of a token; RSE_ERROR_MEMORY with nothing changed. */
rse_status rse_token_counts_add(rse_token_counts *counts, int32_t id, bool generated, rse_error *err);
void rse_token_counts_free(rse_token_counts *counts);

void rse_penalize(const rse_penalties *penalties, const rse_token_counts *counts, float *logits);

#endif
