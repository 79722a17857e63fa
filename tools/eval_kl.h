/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of eval kl share: a configuration of the states, and what its predictions were like. */
#ifndef REPLAYSSM_EVAL_KL_H
#define REPLAYSSM_EVAL_KL_H

#include "sched/control.h"
#include "tool.h"

/* Buckets of positions: 0-1K, 1K-2K, 2K-4K, ... */
enum { BUCKETS = 16, BUCKET_FIRST = 1024, STEP = 16 };

typedef struct sum {
    double kl, nll;
    int64_t tokens, same;
    double output_error, output_size; /* squares, of the hidden states after the final norm */
    double state_error, state_size;   /* of the recurrent states, at some positions */
} sum;

typedef struct subject {
    char name[64];
    rse_engine_options options;
    int32_t control; /* reads see an fp32 state with noise of the size of the copy's error */
    rse_engine *engine;
    rse_session *session;
    rse_control *noise;
    int32_t step; /* tokens of a step */
    sum all, bucket[BUCKETS];
} subject;

/* Reads "NAME=KEY:VALUE,...". */
rse_status subject_parse(subject *s, const char *text, rse_error *err);

/* Writes a field of a CSV file, between quotes where it needs them. */
void csv_put(FILE *file, const char *text);
/* Subject 0 is what the others are compared with. */
rse_status subjects_print(const subject *subjects, int32_t count, rse_error *err);
rse_status subjects_write_csv(const subject *subjects, int32_t count, const char *path, rse_error *err);

#endif
