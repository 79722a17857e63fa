/* SPDX-License-Identifier: Apache-2.0 */
/* Between the two halves of `bench spec`: layers alone, and whole models. */
#ifndef RSE_BENCH_SPEC_H
#define RSE_BENCH_SPEC_H

#include "commands.h"
#include "engine.h"
#include "env.h"

typedef struct spec_args {
    bench_common common;
    bench_list batches, tokens, formats;
    int64_t window, accept, drafts, count;
    double temperature;
    int32_t method;
    const char *model;
} spec_args;

typedef struct spec_run {
    spec_args args;
    bench_env env;
} spec_run;

typedef struct spec_row {
    double seconds[3];     /* of a conventional step, a step that verifies T tokens, T conventional steps */
    double cost, snapshot; /* the second and the third over the first */
    int64_t bytes;         /* of a sequence and layer by replay, convolution included */
    double memory;         /* over the conventional state and convolution */
} spec_row;

/* Runs args.model with and without drafts. */
rse_status bench_spec_model(spec_run *run, rse_error *err);

#endif
