/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many drafts a round should have, from what rounds cost and how many of their drafts were right. With a
 * the share of drafts that are right where the one before was, d drafts give 1 + a + ... + a^d tokens on
 * average; a round of d costs c0 + d c1 seconds. The count with the most tokens per second is taken, 0 if that
 * is it; then a round with drafts is tried again from time to time, since texts change.
 */
#ifndef RSE_COUNT_H
#define RSE_COUNT_H

#include <stdbool.h>
#include <stdint.h>

typedef struct rse_count {
    int32_t most;        /* drafts a round may have */
    int32_t rows;        /* of the rounds that were measured; other numbers of rows start anew */
    double plain, slope; /* seconds: of a round without drafts, and what each draft adds; 0: unknown */
    double right;        /* the share a; below 0: unknown */
    int64_t rounds;      /* since the start, or since rows changed */
    int32_t chosen;      /* of the last choice */
} rse_count;

/* most >= 1. */
void rse_count_start(rse_count *count, int32_t most);
/* Drafts for the next round of `rows` sequences. */
int32_t rse_count_choose(rse_count *count, int32_t rows);
/* A round took so many seconds: drafts for each row along a path; of `tried` drafts that followed right ones
   (or the root), over all rows, `right` were right. */
void rse_count_learn(rse_count *count, int32_t rows, int32_t drafts, double seconds, int64_t tried,
                     int64_t right);
/* Whether the choice follows from measurements. */
bool rse_count_settled(const rse_count *count);
/* Tokens that a round of d drafts gives on average, and its seconds in units of a round without drafts. */
double rse_count_tokens(const rse_count *count, int32_t drafts);
double rse_count_cost(const rse_count *count, int32_t drafts);

#endif
