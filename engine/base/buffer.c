/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Growth by doubling, in one function for both kinds of array.
 */
#include "base/buffer.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Makes room for `wanted` items of `size` bytes. Returns the array, moved or not; NULL if there is no memory.
 */
static void *grow(void *data, size_t *capacity, size_t wanted, size_t size, rse_error *err) {
    if (data != NULL && wanted <= *capacity) {
        return data;
    }
    size_t room = *capacity < 64 ? 64 : *capacity;
    while (room < wanted && room <= SIZE_MAX / 2) {
        room *= 2;
    }
    size_t bytes;
    void *moved = room < wanted || __builtin_mul_overflow(room, size, &bytes) ? NULL : realloc(data, bytes);
    if (moved == NULL) {
        rse_fail(err, RSE_ERROR_MEMORY, "no memory for %zu items of %zu bytes", wanted, size);
        return NULL;
    }
    *capacity = room;
    return moved;
}

static rse_status reserve(rse_text *text, size_t more, rse_error *err) {
    size_t wanted;
    if (__builtin_add_overflow(text->length, more, &wanted) || wanted == SIZE_MAX) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for %zu bytes more", more);
    }
    char *data = grow(text->data, &text->capacity, wanted + 1, 1, err);
    if (data == NULL) {
        return RSE_ERROR_MEMORY;
    }
    text->data = data;
    return RSE_OK;
}

rse_status rse_text_append(rse_text *text, const void *bytes, size_t length, rse_error *err) {
    RSE_TRY(reserve(text, length, err));
    if (length > 0) {
        memcpy(text->data + text->length, bytes, length);
    }
    text->length += length;
    text->data[text->length] = '\0';
    return RSE_OK;
}

rse_status rse_text_print(rse_text *text, rse_error *err, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (length < 0) {
        return rse_fail(err, RSE_ERROR_USAGE, "a value cannot be printed");
    }
    RSE_TRY(reserve(text, (size_t)length, err));
    va_start(args, format);
    vsnprintf(text->data + text->length, (size_t)length + 1, format, args);
    va_end(args);
    text->length += (size_t)length;
    return RSE_OK;
}

void rse_text_free(rse_text *text) {
    free(text->data);
    *text = (rse_text){0};
}

rse_status rse_ids_append(rse_ids *ids, int32_t id, rse_error *err) {
    int32_t *data = grow(ids->data, &ids->capacity, ids->count + 1, sizeof *data, err);
    if (data == NULL) {
        return RSE_ERROR_MEMORY;
    }
    ids->data = data;
    ids->data[ids->count++] = id;
    return RSE_OK;
}

void rse_ids_free(rse_ids *ids) {
    free(ids->data);
    *ids = (rse_ids){0};
}
