/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of the hostile-input tests: a cache that is watched for changes. */
#ifndef RSSM_TESTS_HOSTILE_H
#define RSSM_TESTS_HOSTILE_H

#include "fieldlog/field.h"

enum { WATCHED = 2 };

typedef struct watched {
    fl *f;                 /* 2 layers, 8 slots of which slot 0 is reserved, T_max 3 */
    int32_t slot[WATCHED]; /* with history, and 1 and 2 tokens pending */
    int32_t empty;         /* never started */
    void *file[WATCHED];
    int64_t bytes[WATCHED];
    rssm_slot_info info[WATCHED];
} watched;

watched watch_make(uint64_t isa, int32_t shape);
/* The call gave the expected status with a sentence that holds `word`, and changed nothing. */
void watch_refused(watched *w, rssm_status got, rssm_status expected, const char *word);

#endif
