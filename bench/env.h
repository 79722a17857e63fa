/* SPDX-License-Identifier: Apache-2.0 */
/* What all measurements of a run share: options, threads, the library's context, memory, floors, samples. */
#ifndef RSE_BENCH_ENV_H
#define RSE_BENCH_ENV_H

#include "args.h"
#include "floors.h"
#include "measure.h"
#include "rig.h"

#include <stdio.h>

/* The options that all measuring subcommands have; first in their own structs. */
typedef struct bench_common {
    int64_t pool_mib, threads, samples;
    double sample_seconds;
    int32_t isa;
    bool cpu_time;
    const char *only, *json;
} bench_common;
extern const bench_arg bench_common_table[];
extern const bench_word bench_formats[]; /* f32, bf16 */
extern const bench_word bench_checkpoints[], bench_roundings[], bench_copies[]; /* formats of the state */

typedef struct bench_env {
    const bench_common *common; /* borrowed */
    rse_pool *pool;
    int32_t threads;
    uint64_t isa_mask;
    rssm_context *context;
    bench_arena replay, conventional; /* memory of one rig each */
    bench_floors floors;
    bench_series *series; /* empty it before use: count = 0 */
    size_t pool_bytes;    /* of states in rotation */
    FILE *json;           /* lines are appended; NULL: not wanted */
} bench_env;

/* To be closed after a failure too. */
rse_status bench_env_open(const bench_common *common, bench_env *env, rse_error *err);
/* Returns status, or the failure to write the JSON lines. */
rse_status bench_env_close(bench_env *env, rse_status status, rse_error *err);
/* Whether --only asks for what has this name. */
bool bench_env_wants(const bench_env *env, const char *name);
/* Runs the series as the options say. */
rse_status bench_env_run(bench_env *env, rse_error *err);

#endif
