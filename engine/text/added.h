/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Added tokens in a text: the leftmost match, and of those that begin there the longest.
 */
#ifndef RSE_ADDED_H
#define RSE_ADDED_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct rse_added_token {
    char *content; /* owned, NUL-terminated */
    size_t length; /* > 0 */
    int32_t id;
    bool special;
} rse_added_token;

/* Valid when zeroed; freed by rse_added_free(). */
typedef struct rse_added {
    rse_added_token *tokens;
    size_t count;
    bool first[256]; /* whether any content begins with this byte */
} rse_added;

/* Takes a copy of the content. Call rse_added_sort() after the last one. */
rse_status rse_added_append(rse_added *added, const char *content, size_t length, int32_t id, bool special,
                            rse_error *err);
void rse_added_sort(rse_added *added);
void rse_added_free(rse_added *added);

/* The first match at or after `from`, its start in *begin; NULL if there is none. A special token found while
 * `special` is false is passed over: its text is plain. */
const rse_added_token *rse_added_next(const rse_added *added, const char *text, size_t length, size_t from,
                                      bool special, size_t *begin);

#endif
