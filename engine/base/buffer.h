/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Growing arrays of bytes and of token ids. Valid when zeroed; freed by rse_text_free() and rse_ids_free(),
 * which leave them empty. Functions return RSE_ERROR_MEMORY with the array unchanged.
 */
#ifndef RSE_BUFFER_H
#define RSE_BUFFER_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

typedef struct rse_text {
    char *data; /* NUL-terminated once something was appended; NULL before */
    size_t length;
    size_t capacity;
} rse_text;

typedef struct rse_ids {
    int32_t *data;
    size_t count;
    size_t capacity;
} rse_ids;

rse_status rse_text_append(rse_text *text, const void *bytes, size_t length, rse_error *err);
/* Appends what printf would write; no limit on the length. */
rse_status rse_text_print(rse_text *text, rse_error *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void rse_text_free(rse_text *text);
rse_status rse_ids_append(rse_ids *ids, int32_t id, rse_error *err);
void rse_ids_free(rse_ids *ids);

#endif
