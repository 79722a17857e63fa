/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stop strings: text that ends a generation where it first occurs, and is not part of it. Text is passed on as it
 * comes, except for an end that may yet turn out to begin a stop string.
 */
#ifndef RSE_STOP_H
#define RSE_STOP_H

#include "base/buffer.h"

#include <stdbool.h>

typedef struct rse_stop {
    const char *const *strings; /* [count], none of them empty; not owned */
    int32_t count;              /* 0: everything passes */
    rse_text held;
} rse_stop;

/* Appends to `out` what of the text so far is certain to come before any stop string. *found: one has occurred, and
 * all that comes before it is in `out`; nothing is to be pushed after that. */
rse_status rse_stop_push(rse_stop *stop, const char *text, size_t length, rse_text *out, bool *found,
                         rse_error *err);
/* Appends what was held back, for the text has ended. *found: a stop string was in it, behind the beginning of a longer
 * one that did not come; what comes before it is in `out`. */
rse_status rse_stop_flush(rse_stop *stop, rse_text *out, bool *found, rse_error *err);
void rse_stop_free(rse_stop *stop);

#endif
