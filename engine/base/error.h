/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How engine functions fail: they return an rse_status and fill the error that is their last argument with one
 * sentence naming the thing, its value and the limit. The first failure wins; callers pass it on unchanged.
 */
#ifndef RSE_ERROR_H
#define RSE_ERROR_H

#include <stdint.h>

typedef int32_t rse_status;
enum {
    RSE_OK = 0,
    RSE_ERROR_USAGE = -1,       /* the caller asked for something outside its limits */
    RSE_ERROR_IO = -2,          /* a file could not be read or written */
    RSE_ERROR_FORMAT = -3,      /* a file is damaged, or not what its name says */
    RSE_ERROR_UNSUPPORTED = -4, /* a legal file or request that this version cannot do */
    RSE_ERROR_MEMORY = -5,
    RSE_ERROR_LIBRARY = -6, /* a call of libreplayssm failed; the sentence is the library's */
    RSE_ERROR_MISMATCH = -7 /* two things that belong together do not: session and model, --check */
};

typedef struct rse_error {
    rse_status status;
    char text[512];
} rse_error;

/* Sets the error and returns its status. err may be NULL. Text beyond the buffer is cut. */
rse_status rse_fail(rse_error *err, rse_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));

#define RSE_TRY(call)                                                                                        \
    do {                                                                                                     \
        rse_status rse_try_ = (call);                                                                        \
        if (rse_try_ != RSE_OK) {                                                                            \
            return rse_try_;                                                                                 \
        }                                                                                                    \
    } while (0)

#endif
