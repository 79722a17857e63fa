/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decomposition and composition are utf8proc's, character by character. The step between them, the ordering of
 * combining marks, is ours: utf8proc's takes quadratic time in a long run of marks, ten seconds for 100 KB.
 */
#include "text/nfc.h"

#include "text/utf8.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

bool rse_nfc_at_sight(const char *text, size_t length) {
    for (size_t i = 0; i < length; ++i) {
        if ((uint8_t)text[i] >= 0xcc) { /* leads U+0300 and above; below nothing composes or changes places */
            return false;
        }
    }
    return true;
}

static int class_of(utf8proc_int32_t code) {
    return utf8proc_get_property(code)->combining_class;
}

/* Sorts n marks by their class, 1..255, keeping the order of equals; scratch has room for n. */
static void sort_marks(utf8proc_int32_t *marks, size_t n, utf8proc_int32_t *scratch) {
    size_t begin[257] = {0};
    for (size_t i = 0; i < n; ++i) {
        ++begin[class_of(marks[i]) + 1];
    }
    for (int i = 0; i < 256; ++i) {
        begin[i + 1] += begin[i];
    }
    for (size_t i = 0; i < n; ++i) {
        scratch[begin[class_of(marks[i])]++] = marks[i];
    }
    memcpy(marks, scratch, n * sizeof *marks);
}

static void order_marks(utf8proc_int32_t *codes, size_t count, utf8proc_int32_t *scratch) {
    for (size_t i = 0; i < count;) {
        size_t end = i;
        int last = 0;
        bool ordered = true;
        for (int class; end < count && (class = class_of(codes[end])) != 0; ++end) {
            ordered = ordered && class >= last;
            last = class;
        }
        if (!ordered) {
            sort_marks(codes + i, end - i, scratch);
        }
        i = end > i ? end : i + 1;
    }
}

/* Writes the decomposition and returns its length. Two codes per byte of text are enough: two bytes make at
 * most three codes (U+0390), three bytes four (U+1F82). */
static size_t decompose(const char *text, size_t length, utf8proc_int32_t *codes) {
    size_t count = 0;
    for (size_t i = 0; i < length;) {
        int step;
        int boundary = 0;
        uint32_t code = rse_utf8_get(text + i, &step);
        utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)code, codes + count, 2 * step,
                                                     UTF8PROC_STABLE | UTF8PROC_COMPOSE, &boundary);
        assert(n > 0 && n <= 2 * step);
        count += (size_t)n;
        i += (size_t)step;
    }
    return count;
}

static rse_status append_codes(const utf8proc_int32_t *codes, size_t count, rse_text *out, rse_error *err) {
    for (size_t i = 0; i < count; ++i) {
        char bytes[4];
        int n = rse_utf8_put((uint32_t)codes[i], bytes);
        RSE_TRY(rse_text_append(out, bytes, (size_t)n, err));
    }
    return RSE_OK;
}

rse_status rse_nfc(const char *text, size_t length, rse_text *out, rse_error *err) {
    utf8proc_int32_t *scratch = NULL;
    utf8proc_int32_t *codes = length < SIZE_MAX / 16 ? malloc((2 * length + 1) * sizeof *codes) : NULL;
    size_t count = codes != NULL ? decompose(text, length, codes) : 0;
    rse_status status = RSE_OK;
    if (codes == NULL || (scratch = malloc((count + 1) * sizeof *scratch)) == NULL) {
        status = rse_fail(err, RSE_ERROR_MEMORY, "no memory to normalise %zu bytes of text", length);
    } else {
        order_marks(codes, count, scratch);
        utf8proc_ssize_t composed =
            utf8proc_normalize_utf32(codes, (utf8proc_ssize_t)count, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        assert(composed >= 0); /* it fails on code points out of range alone */
        status = append_codes(codes, (size_t)composed, out, err);
    }
    free(codes);
    free(scratch);
    return status;
}
