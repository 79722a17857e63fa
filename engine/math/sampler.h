/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From logits to the next token. The filters run in the order of Hugging Face: temperature, top-k, top-p,
 * min-p, each on what the one before left, and what remains is normalised. Equal logits are ordered by id,
 * lowest first. Logits are turned into probabilities in double, in this file alone, so that equal logits give
 * equal text on every ISA.
 *
 * The choice is a race: at every position each token of the vocabulary has a random number of its own,
 * exponentially distributed, and the one whose number divided by its probability is least is chosen. It wins
 * with its probability. Two distributions that are alike choose alike under the same numbers, which is what
 * drafting lives on (draft/draft.h); the ends of stretches laid side by side would drift apart with every token
 * that comes before.
 *
 * Random numbers are Philox4x32-10 with the seed as key, position and token as counter: the token at a position
 * is a pure function of seed, position and logits, whatever was drawn before or beside it.
 */
#ifndef RSE_SAMPLER_H
#define RSE_SAMPLER_H

#include <stdint.h>

#include "base/error.h"

typedef struct rse_sampling {
    float temperature; /* 0: greedy; otherwise logits are divided by it. 0 .. 100 */
    int32_t top_k;     /* the k largest; 0: all */
    float top_p; /* the fewest largest whose probabilities reach top_p, at least one; 0 < top_p <= 1, 1: all */
    float min_p; /* those of at least min_p times the largest probability; 0 <= min_p <= 1, 0: all */
    uint64_t seed;
} rse_sampling;

/* Greedy: temperature 0, no filter, seed 0. */
#define RSE_SAMPLING_GREEDY ((rse_sampling){.temperature = 0.0f, .top_p = 1.0f})

/* RSE_ERROR_USAGE with a sentence naming the first field out of range. */
rse_status rse_sampling_check(const rse_sampling *sampling, rse_error *err);

typedef struct rse_token_prob {
    int32_t id;
    float prob; /* > 0 */
} rse_token_prob;

typedef struct rse_sampler rse_sampler;

/* Working memory for logits [vocab]; any number of sessions may share one, one at a time. vocab >= 1. */
rse_status rse_sampler_create(int64_t vocab, rse_sampler **sampler, rse_error *err);
void rse_sampler_destroy(rse_sampler *sampler);

/*
 * The distribution that the filters leave of logits [vocab]: *list, owned by the sampler and valid until its
 * next call, has *count entries, probabilities that sum to 1; the largest first if top_k or top_p took part, in
 * order of id otherwise. Greedy gives one entry. RSE_ERROR_USAGE if sampling fails its check, RSE_ERROR_LIBRARY
 * if a logit is NaN or +infinity, or all are -infinity (-infinity alone means: never).
 */
rse_status rse_sampler_distribution(rse_sampler *sampler, const rse_sampling *sampling, const float *logits,
                                    const rse_token_prob **list, int64_t *count, rse_error *err);

typedef struct rse_token_logprob {
    int32_t id;
    float logprob; /* natural; of the distribution that the logits stand for, before temperature and filters */
} rse_token_logprob;

/* list [1 + top]: of the token `id`, then of the `top` likeliest, the largest first; 0 <= top <= vocab. Logits as in
 * rse_sampler_distribution(), which must have taken them. */
void rse_sampler_logprobs(rse_sampler *sampler, const float *logits, int32_t id, int32_t top,
                          rse_token_logprob *list);

/* The random number of a token at a position, > 0, exponentially distributed with mean 1. */
double rse_sampling_number(uint64_t seed, int64_t position, int32_t id);

/* The entry that wins the race at a position. count >= 1. */
int32_t rse_sampling_pick(const rse_token_prob *list, int64_t count, uint64_t seed, int64_t position);

/* Distribution and pick: the token for `position`, the index the new token will have in its sequence. */
rse_status rse_sampler_next(rse_sampler *sampler, const rse_sampling *sampling, const float *logits,
                            int64_t position, int32_t *id, rse_error *err);

#endif
