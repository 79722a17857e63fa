/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The chunked scan of prefill for one group of heads: up to RSSM_SCAN_TOKENS tokens that share k and q. Everything
 * around the recurrence (convolution, gates, norms) is done by the caller. See scan.inl.h for the method.
 */
#ifndef RSSM_CPU_SCAN_H
#define RSSM_CPU_SCAN_H

#include <stddef.h>
#include <stdint.h>

enum { RSSM_SCAN_TOKENS = 64 };

/* Row lengths in scratch are padded to whole vectors, the padding of k and q being zero. */
static inline int32_t rssm_padded(int32_t n) {
    return (n + 15) & ~15;
}

/* Memory that will be wanted after a scan: n rows of `bytes`, `stride` bytes apart. */
typedef struct rssm_wanted {
    const void *at;
    int64_t stride;
    int32_t bytes, n;
} rssm_wanted;

typedef struct rssm_scan {
    int32_t d_k, d_v;
    int32_t tokens;       /* 1..RSSM_SCAN_TOKENS */
    int32_t heads;        /* value heads of this group */
    int32_t delta;        /* 1: delta rule, 0: Mamba-2 */
    int32_t vector_decay; /* alpha per key channel */
    const float *k;       /* [tokens][padded d_k], normalised */
    const float *q;       /* [tokens][padded d_k], normalised and scaled */
    float *const *state;       /* [heads] -> [d_v][d_k], read and written; rows lie d_k apart, unpadded */
    const float *const *v;     /* [heads] -> [tokens][padded d_v] */
    const float *const *alpha; /* [heads] -> [tokens], or [tokens][padded d_k] for a vector decay; in [0, 1] */
    const float *const *beta;  /* [heads] -> [tokens] */
    float *const *y;           /* [heads] -> [tokens][padded d_v]: S_t q_t for every token; padding is undefined */
    float *scratch;            /* rssm_scan_scratch() floats, 64-byte aligned */
    const rssm_wanted *wanted; /* [wanted_count]: asked for little by little while the scan computes */
    int32_t wanted_count;
} rssm_scan;

/* Floats of scratch that a scan of these dimensions needs. */
size_t rssm_scan_scratch(int32_t d_k, int32_t d_v, int32_t delta, int32_t vector_decay);

typedef void rssm_scan_fn(const rssm_scan *scan);
rssm_scan_fn rssm_scan_scalar, rssm_scan_avx2, rssm_scan_avx512, rssm_scan_neon;

#endif
