/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contents are sorted by their bytes, a prefix before what continues it. Walking along the text narrows the
 * range of contents that agree with it so far; the one that ends at a position is the first of its range.
 */
#include "text/added.h"

#include <stdlib.h>
#include <string.h>

rse_status rse_added_append(rse_added *added, const char *content, size_t length, int32_t id, bool special,
                            rse_error *err) {
    rse_added_token *tokens = realloc(added->tokens, (added->count + 1) * sizeof *tokens);
    char *copy = malloc(length + 1);
    added->tokens = tokens != NULL ? tokens : added->tokens;
    if (tokens == NULL || copy == NULL) {
        free(copy);
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for %zu added tokens", added->count + 1);
    }
    memcpy(copy, content, length);
    copy[length] = '\0';
    tokens[added->count++] = (rse_added_token){copy, length, id, special};
    added->first[(uint8_t)content[0]] = true;
    return RSE_OK;
}

static int by_content(const void *left, const void *right) {
    const rse_added_token *a = left;
    const rse_added_token *b = right;
    return strcmp(a->content, b->content); /* compares as unsigned bytes */
}

void rse_added_sort(rse_added *added) {
    if (added->count > 0) {
        qsort(added->tokens, added->count, sizeof *added->tokens, by_content);
    }
}

void rse_added_free(rse_added *added) {
    for (size_t i = 0; i < added->count; ++i) {
        free(added->tokens[i].content);
    }
    free(added->tokens);
    *added = (rse_added){0};
}

/* The first of tokens [low, high) whose byte at `depth` is at least `byte`; all agree before depth. */
static size_t lower(const rse_added *added, size_t low, size_t high, size_t depth, unsigned byte) {
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((uint8_t)added->tokens[middle].content[depth] < byte) { /* the closing NUL is below every byte */
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The longest content that begins the text, or NULL. */
static const rse_added_token *match(const rse_added *added, const char *text, size_t length) {
    const rse_added_token *longest = NULL;
    size_t low = 0;
    size_t high = added->count;
    for (size_t depth = 0; depth < length && text[depth] != '\0' && low < high; ++depth) {
        unsigned byte = (uint8_t)text[depth];
        low = lower(added, low, high, depth, byte);
        high = lower(added, low, high, depth, byte + 1);
        if (low < high && added->tokens[low].length == depth + 1) {
            longest = &added->tokens[low];
        }
    }
    return longest;
}

const rse_added_token *rse_added_next(const rse_added *added, const char *text, size_t length, size_t from,
                                      bool special, size_t *begin) {
    for (size_t i = from; i < length;) {
        const rse_added_token *token =
            added->first[(uint8_t)text[i]] ? match(added, text + i, length - i) : NULL;
        if (token != NULL && (special || !token->special)) {
            *begin = i;
            return token;
        }
        i += token != NULL ? token->length : 1;
    }
    return NULL;
}
