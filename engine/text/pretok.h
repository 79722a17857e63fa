/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pre-tokenizer: a list of patterns, each of which splits the pieces that the ones before it left. A match
 * is a piece, and so is what lies between two matches.
 */
#ifndef RSE_PRETOK_H
#define RSE_PRETOK_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

enum { RSE_PRETOK_PATTERNS = 8 };

/* The split that a ByteLevel pre-tokenizer does by itself if it says use_regex. */
extern const char rse_pretok_gpt2[];

/* Valid when zeroed; freed by rse_pretok_free(). Immutable after the last append. */
typedef struct rse_pretok {
    struct pcre2_real_code_8 *patterns[RSE_PRETOK_PATTERNS];
    int32_t count;
} rse_pretok;

/* Working memory of one encoder; freed by rse_pretok_work_free(). */
typedef struct rse_pretok_work {
    struct pcre2_real_match_data_8 *match;
    struct pcre2_real_match_context_8 *context;
    struct pcre2_real_jit_stack_8 *stack;
} rse_pretok_work;

rse_status rse_pretok_append(rse_pretok *pretok, const char *pattern, size_t length, rse_error *err);
void rse_pretok_free(rse_pretok *pretok);

rse_status rse_pretok_work_init(rse_pretok_work *work, rse_error *err);
void rse_pretok_work_free(rse_pretok_work *work);

/* The first match of pattern `index` at or after `from` in valid UTF-8: [*begin, *end), which may be empty.
 * No match is [length, length). */
rse_status rse_pretok_next(const rse_pretok *pretok, int32_t index, rse_pretok_work *work, const char *text,
                           size_t length, size_t from, size_t *begin, size_t *end, rse_error *err);

#endif
