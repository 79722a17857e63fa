/* SPDX-License-Identifier: Apache-2.0 */
#include "text/stop.h"

#include <string.h>

/* Where the first stop string begins in the held text, or where the longest end begins that one may begin with. */
static size_t first_of(const rse_stop *stop, bool *found) {
    const char *text = stop->held.data;
    size_t length = stop->held.length;
    for (size_t at = 0; at < length; at++) {
        bool begins = false;
        for (int32_t i = 0; i < stop->count; i++) {
            size_t size = strlen(stop->strings[i]), left = length - at;
            bool same = memcmp(text + at, stop->strings[i], size < left ? size : left) == 0;
            *found = *found || (same && size <= left);
            begins = begins || same;
        }
        if (begins) {
            return at;
        }
    }
    return length;
}

rse_status rse_stop_push(rse_stop *stop, const char *text, size_t length, rse_text *out, bool *found,
                         rse_error *err) {
    *found = false;
    if (length == 0) {
        return RSE_OK;
    }
    RSE_TRY(rse_text_append(&stop->held, text, length, err));
    size_t certain = first_of(stop, found);
    RSE_TRY(rse_text_append(out, stop->held.data, certain, err));
    stop->held.length -= certain;
    memmove(stop->held.data, stop->held.data + certain, stop->held.length + 1);
    return RSE_OK;
}

/* Where the first stop string that is there in full begins, or the end: a longer one may have been waited for. */
static size_t first_whole(const rse_stop *stop, bool *found) {
    size_t length = stop->held.length;
    for (size_t at = 0; at < length; at++) {
        for (int32_t i = 0; i < stop->count; i++) {
            size_t size = strlen(stop->strings[i]);
            if (size <= length - at && memcmp(stop->held.data + at, stop->strings[i], size) == 0) {
                *found = true;
                return at;
            }
        }
    }
    return length;
}

rse_status rse_stop_flush(rse_stop *stop, rse_text *out, bool *found, rse_error *err) {
    *found = false;
    RSE_TRY(rse_text_append(out, stop->held.data, first_whole(stop, found), err));
    stop->held.length = 0;
    return RSE_OK;
}

void rse_stop_free(rse_stop *stop) {
    rse_text_free(&stop->held);
}
