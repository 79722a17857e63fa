/* SPDX-License-Identifier: Apache-2.0 */
#include "math/penalty.h"

#include <stdlib.h>

typedef struct rse_token_count {
    int32_t id;
    int32_t seen; /* 0: the entry is free */
    int32_t generated;
} token_count;

static rse_status in_range(const char *name, float value, double low, double high, rse_error *err) {
    if ((double)value >= low && (double)value <= high) {
        return RSE_OK;
    }
    return rse_fail(err, RSE_ERROR_USAGE, "%s is %g; it must be %g to %g", name, (double)value, low, high);
}

rse_status rse_penalties_check(const rse_penalties *p, rse_error *err) {
    if (p->repetition != 0.0f && !(p->repetition > 0.0f && p->repetition <= 10.0f)) {
        return rse_fail(err, RSE_ERROR_USAGE, "repetition penalty is %g; it must be above 0 and at most 10",
                        (double)p->repetition);
    }
    RSE_TRY(in_range("presence penalty", p->presence, -2.0, 2.0, err));
    return in_range("frequency penalty", p->frequency, -2.0, 2.0, err);
}

bool rse_penalties_any(const rse_penalties *p) {
    return (p->repetition != 0.0f && p->repetition != 1.0f) || p->presence != 0.0f || p->frequency != 0.0f;
}

/* The entry of a token, or the free one where it belongs. */
static token_count *entry_of(token_count *table, int64_t capacity, int32_t id) {
    int64_t at = (int64_t)((uint32_t)id * UINT32_C(2654435761)) & (capacity - 1);
    while (table[at].seen > 0 && table[at].id != id) {
        at = (at + 1) & (capacity - 1);
    }
    return &table[at];
}

static rse_status grow(rse_token_counts *counts, rse_error *err) {
    int64_t capacity = counts->capacity > 0 ? 2 * counts->capacity : 256;
    token_count *table = calloc((size_t)capacity, sizeof *table);
    if (table == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory to count %lld tokens", (long long)capacity);
    }
    for (int64_t i = 0; i < counts->capacity; i++) {
        if (counts->table[i].seen > 0) {
            *entry_of(table, capacity, counts->table[i].id) = counts->table[i];
        }
    }
    free(counts->table);
    counts->table = table;
    counts->capacity = capacity;
    return RSE_OK;
}

rse_status rse_token_counts_add(rse_token_counts *counts, int32_t id, bool generated, rse_error *err) {
    if (2 * counts->used >= counts->capacity) {
        RSE_TRY(grow(counts, err));
    }
    token_count *count = entry_of(counts->table, counts->capacity, id);
    counts->used += count->seen == 0;
    count->id = id;
    count->seen++;
    count->generated += generated;
    return RSE_OK;
}

void rse_token_counts_free(rse_token_counts *counts) {
    free(counts->table);
    *counts = (rse_token_counts){0};
}

void rse_penalize(const rse_penalties *p, const rse_token_counts *counts, float *logits) {
    float repetition = p->repetition != 0.0f ? p->repetition : 1.0f;
    for (int64_t i = 0; i < counts->capacity; i++) {
        const token_count *count = &counts->table[i];
        if (count->seen == 0) {
            continue;
        }
        float *logit = &logits[count->id];
        *logit = *logit > 0.0f ? *logit / repetition : *logit * repetition;
        if (count->generated > 0) {
            *logit -= p->presence + p->frequency * (float)count->generated;
        }
    }
}
