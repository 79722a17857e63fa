/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sampler. Filters need the largest few of many logits, never a sorted vocabulary: the k largest are found
 * by one pass with a heap of k. Top-p alone does not know its k; it tries a few hundred, then eight times as
 * many, until their share suffices.
 */
#include "math/sampler.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <Random123/philox.h>

struct rse_sampler {
    int64_t vocab;
    rse_token_prob *list; /* [vocab]; prob holds the logit until weights are made */
    double *weight;       /* [vocab], of the list's entries */
};

rse_status rse_sampling_check(const rse_sampling *s, rse_error *err) {
    if (!(s->temperature >= 0.0f && s->temperature <= 100.0f)) {
        return rse_fail(err, RSE_ERROR_USAGE, "temperature is %g; it must be 0 (greedy) to 100",
                        (double)s->temperature);
    }
    if (s->top_k < 0) {
        return rse_fail(err, RSE_ERROR_USAGE, "top-k is %d; it must be at least 0 (all)", s->top_k);
    }
    if (!(s->top_p > 0.0f && s->top_p <= 1.0f)) {
        return rse_fail(err, RSE_ERROR_USAGE, "top-p is %g; it must be above 0 and at most 1",
                        (double)s->top_p);
    }
    if (!(s->min_p >= 0.0f && s->min_p <= 1.0f)) {
        return rse_fail(err, RSE_ERROR_USAGE, "min-p is %g; it must be 0 to 1", (double)s->min_p);
    }
    return RSE_OK;
}

rse_status rse_sampler_create(int64_t vocab, rse_sampler **out, rse_error *err) {
    *out = NULL;
    if (vocab < 1 || vocab > INT32_MAX) {
        return rse_fail(err, RSE_ERROR_USAGE, "the vocabulary has %lld tokens; it must have 1 to %d",
                        (long long)vocab, INT32_MAX);
    }
    rse_sampler *s = calloc(1, sizeof *s);
    rse_token_prob *list = malloc((size_t)vocab * sizeof *list);
    double *weight = malloc((size_t)vocab * sizeof *weight);
    if (s == NULL || list == NULL || weight == NULL) {
        free(s);
        free(list);
        free(weight);
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory to sample from %lld tokens", (long long)vocab);
    }
    *s = (rse_sampler){.vocab = vocab, .list = list, .weight = weight};
    *out = s;
    return RSE_OK;
}

void rse_sampler_destroy(rse_sampler *sampler) {
    if (sampler != NULL) {
        free(sampler->list);
        free(sampler->weight);
        free(sampler);
    }
}

/* a comes after b in the order of logits, largest first, equal ones by id. */
static bool after(rse_token_prob a, rse_token_prob b) {
    return a.prob < b.prob || (!(b.prob < a.prob) && a.id > b.id);
}

/* Restores the heap of n entries, the one that comes last on top, below entry i. */
static void sift_down(rse_token_prob *heap, int64_t n, int64_t i) {
    rse_token_prob moved = heap[i];
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && after(heap[child + 1], heap[child])) {
            child++;
        }
        if (!after(heap[child], moved)) {
            break;
        }
        heap[i] = heap[child];
    }
    heap[i] = moved;
}

/* The first k logits in order, k <= vocab, into the list. */
static void select_top(rse_sampler *s, const float *logits, int64_t k) {
    rse_token_prob *heap = s->list;
    for (int64_t i = 0; i < k; i++) {
        heap[i] = (rse_token_prob){(int32_t)i, logits[i]};
    }
    for (int64_t i = k / 2; i-- > 0;) {
        sift_down(heap, k, i);
    }
    for (int64_t i = k; i < s->vocab; i++) {
        if (logits[i] > heap[0].prob) { /* an equal one has a higher id than all before */
            heap[0] = (rse_token_prob){(int32_t)i, logits[i]};
            sift_down(heap, k, 0);
        }
    }
    for (int64_t n = k; n > 1; n--) { /* the last in order goes to the end */
        rse_token_prob last = heap[0];
        heap[0] = heap[n - 1];
        heap[n - 1] = last;
        sift_down(heap, n - 1, 0);
    }
}

/* The weight of a logit against the largest one: proportional to its probability, 1 for the largest. */
static double weight_of(const rse_sampling *sampling, float logit, float max) {
    return exp(((double)logit - (double)max) / (double)sampling->temperature);
}

static double weigh_list(rse_sampler *s, const rse_sampling *sampling, int64_t n, float max) {
    double total = 0.0;
    for (int64_t i = 0; i < n; i++) {
        s->weight[i] = weight_of(sampling, s->list[i].prob, max);
        total += s->weight[i];
    }
    return total;
}

/* How many of the list's first n entries, largest first, reach a share top_p of total; n + 1 if all do not. */
static int64_t count_top_p(const rse_sampler *s, double top_p, double total, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        sum += s->weight[i];
        if (sum >= top_p * total) {
            return i + 1;
        }
    }
    return n + 1;
}

/* Fills the list and its weights with what top-k and top-p leave; returns how many. */
static int64_t filter_top(rse_sampler *s, const rse_sampling *sampling, const float *logits, float max) {
    bool by_k = sampling->top_k > 0 && sampling->top_k < s->vocab, by_p = sampling->top_p < 1.0f;
    double top_p = (double)sampling->top_p;
    if (by_k) {
        select_top(s, logits, sampling->top_k);
        double total = weigh_list(s, sampling, sampling->top_k, max);
        int64_t n = by_p ? count_top_p(s, top_p, total, sampling->top_k) : sampling->top_k;
        return n < sampling->top_k ? n : sampling->top_k;
    }
    for (int64_t i = 0; i < s->vocab; i++) {
        s->list[i] = (rse_token_prob){(int32_t)i, logits[i]};
    }
    double total = weigh_list(s, sampling, s->vocab, max);
    for (int64_t k = 256; by_p; k *= 8) {
        k = k < s->vocab ? k : s->vocab;
        select_top(s, logits, k);
        weigh_list(s, sampling, k, max);
        int64_t n = count_top_p(s, top_p, total, k);
        if (n <= k || k == s->vocab) { /* sums in two orders may differ in the last bit */
            return n < k ? n : k;
        }
    }
    return s->vocab;
}

/* Keeps the entries of at least min_p, and those that are not nothing, and normalises them. */
static int64_t finish_list(rse_sampler *s, const rse_sampling *sampling, int64_t n) {
    int64_t kept = 0;
    double total = 0.0;
    for (int64_t i = 0; i < n; i++) {
        if (s->weight[i] >= (double)sampling->min_p && s->weight[i] > 0.0) { /* the largest weight is 1 */
            s->list[kept].id = s->list[i].id;
            s->weight[kept++] = s->weight[i];
            total += s->weight[i];
        }
    }
    n = kept;
    kept = 0;
    for (int64_t i = 0; i < n; i++) {
        float prob = (float)(s->weight[i] / total);
        if (prob > 0.0f) {
            s->list[kept++] = (rse_token_prob){s->list[i].id, prob};
        }
    }
    return kept;
}

rse_status rse_sampler_distribution(rse_sampler *s, const rse_sampling *sampling, const float *logits,
                                    const rse_token_prob **list, int64_t *count, rse_error *err) {
    RSE_TRY(rse_sampling_check(sampling, err));
    int64_t best = 0;
    for (int64_t i = 0; i < s->vocab; i++) {
        if (!(logits[i] < INFINITY)) {
            return rse_fail(err, RSE_ERROR_LIBRARY, "the logit of token %lld is %g; it must be below infinity",
                            (long long)i, (double)logits[i]);
        }
        best = logits[i] > logits[best] ? i : best;
    }
    if (!(logits[best] > -INFINITY)) {
        return rse_fail(err, RSE_ERROR_LIBRARY, "the logits of all %lld tokens are -infinity",
                        (long long)s->vocab);
    }
    if (sampling->temperature > 0.0f) {
        *count = finish_list(s, sampling, filter_top(s, sampling, logits, logits[best]));
    } else {
        s->list[0] = (rse_token_prob){(int32_t)best, 1.0f};
        *count = 1;
    }
    *list = s->list;
    return RSE_OK;
}

void rse_sampler_logprobs(rse_sampler *s, const float *logits, int32_t id, int32_t top, rse_token_logprob *list) {
    float max = logits[0];
    for (int64_t i = 1; i < s->vocab; i++) {
        max = logits[i] > max ? logits[i] : max;
    }
    double total = 0.0;
    for (int64_t i = 0; i < s->vocab; i++) {
        total += exp((double)logits[i] - (double)max);
    }
    double log_total = (double)max + log(total);
    list[0] = (rse_token_logprob){id, (float)((double)logits[id] - log_total)};
    if (top > 0) {
        select_top(s, logits, top);
    }
    for (int32_t i = 0; i < top; i++) {
        list[1 + i] = (rse_token_logprob){s->list[i].id, (float)((double)s->list[i].prob - log_total)};
    }
}

/* A block of the generator: the numbers of two neighbouring tokens. */
static philox4x32_ctr_t numbers_of(uint64_t seed, int64_t position, int32_t pair) {
    philox4x32_key_t key = {{(uint32_t)seed, (uint32_t)(seed >> 32)}};
    philox4x32_ctr_t counter = {{(uint32_t)position, (uint32_t)((uint64_t)position >> 32), (uint32_t)pair, 0}};
    return philox4x32(counter, key);
}

/* A number in (0, 1) for a token, from the block of its pair. */
static double uniform_of(const philox4x32_ctr_t *block, int32_t id) {
    uint64_t bits = (uint64_t)block->v[2 * (id % 2)] << 32 | block->v[2 * (id % 2) + 1];
    return ((double)(bits >> 11) + 0.5) * 0x1p-53;
}

double rse_sampling_number(uint64_t seed, int64_t position, int32_t id) {
    philox4x32_ctr_t block = numbers_of(seed, position, id / 2);
    return -log(uniform_of(&block, id));
}

int32_t rse_sampling_pick(const rse_token_prob *list, int64_t count, uint64_t seed, int64_t position) {
    philox4x32_ctr_t block = {{0}};
    int32_t pair = -1, chosen = list[0].id;
    double least = HUGE_VAL;
    for (int64_t i = 0; i < count; i++) {
        if (list[i].id / 2 != pair) {
            pair = list[i].id / 2;
            block = numbers_of(seed, position, pair);
        }
        double u = uniform_of(&block, list[i].id), prob = (double)list[i].prob;
        if (1.0 - u <
            least * prob) { /* -log u is no less than 1 - u: most tokens are out without a logarithm */
            double time = -log(u) / prob;
            chosen = time < least ? list[i].id : chosen;
            least = time < least ? time : least;
        }
    }
    return chosen;
}

rse_status rse_sampler_next(rse_sampler *sampler, const rse_sampling *sampling, const float *logits,
                            int64_t position, int32_t *id, rse_error *err) {
    const rse_token_prob *list;
    int64_t count;
    RSE_TRY(rse_sampler_distribution(sampler, sampling, logits, &list, &count, err));
    *id = rse_sampling_pick(list, count, sampling->seed, position);
    return RSE_OK;
}
