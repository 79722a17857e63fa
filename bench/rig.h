/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One cache of one layer, set up to be timed. Its slots, in a permuted order, are cut into groups of the
 * batch's size; steps take one group after another, so that a step finds its states where the caches have
 * forgotten them (one group: warm). Sequences differ in flush phase by their place in that order, so that every
 * run of L rows holds each phase once.
 */
#ifndef RSE_BENCH_RIG_H
#define RSE_BENCH_RIG_H

#include "arena.h"
#include "base/pool.h"
#include "shapes.h"

#include <stdbool.h>

typedef struct bench_problem {
    const bench_shape *shape;
    int32_t io; /* RSSM_DTYPE_F32 or _BF16 */
    int32_t checkpoint, rounding, copy; /* formats of replay's state; the conventional one's is f32 */
    int32_t batch;
    int32_t tokens; /* T */
    int32_t window; /* L */
    int32_t accept; /* tokens kept of each step; 0: uniform over 1..T */
    bool warm;
} bench_problem;

/* Layer inputs of `sets` steps, in memory of their own; ready values (RSSM_GATE_LOG), decays near 1. */
typedef struct bench_inputs {
    const bench_shape *shape;
    int32_t io;
    int64_t tokens; /* of a set */
    int32_t sets;
    bench_arena arena;
    void *q, *k, *v; /* [sets][tokens][heads][d] */
    float *decay, *beta;
} bench_inputs;

rse_status bench_inputs_create(const bench_shape *shape, int32_t io, int64_t tokens, int32_t sets,
                               uint64_t seed, bench_inputs *inputs, rse_error *err);
void bench_inputs_destroy(bench_inputs *inputs);
/* Inputs of a set from its token `first` on; tokens of the view are `every` apart. */
rssm_layer_inputs bench_inputs_view(const bench_inputs *inputs, int32_t set, int64_t first, int64_t every);

/* What the timed steps did, by the library's counters. */
typedef struct bench_count {
    int64_t steps, flushes, bytes_read, bytes_written;
} bench_count;

typedef struct bench_rig {
    rssm_context *context; /* borrowed, as are inputs */
    const bench_inputs *inputs;
    bench_problem problem;
    rssm_cache *cache;
    const char *kernel; /* by rssm_cache_status() */
    int32_t method;
    int32_t groups;
    const unsigned char *checkpoints; /* of slot s at s * checkpoint_stride */
    size_t checkpoint_stride;
    int32_t *slots;    /* [groups][batch] */
    int32_t *accepted; /* [batch] */
    float *out;        /* [batch][tokens][value_heads][d_v] of the last step */
    uint64_t random;
    int32_t group; /* of the next step */
    int32_t set;
    bench_count count; /* zeroed by whoever wants to count from then on */
} bench_rig;

typedef struct bench_rig_options {
    int32_t method;
    int32_t groups;
    int32_t step_tokens; /* T_max of the cache; 0: the problem's T */
    bool together;       /* all sequences in one phase: they flush in the same step */
} bench_rig_options;

/* Memory of the cache comes from the arena, which must outlive the rig and serves one rig at a time. */
rse_status bench_rig_create(rssm_context *context, const bench_inputs *inputs, const bench_problem *problem,
                            const bench_rig_options *options, int32_t threads, bench_arena *arena,
                            bench_rig *rig, rse_error *err);
void bench_rig_destroy(bench_rig *rig);

/* One step of the next group, `tokens` a row, after keeping `accepted` of its last one (NULL: none). Adds the
 * time it took to *seconds. */
rse_status bench_rig_step(bench_rig *rig, int32_t tokens, const int32_t *accepted, double *seconds,
                          rse_error *err);
/* Sets rig->accepted as the problem says. */
const int32_t *bench_rig_accept(bench_rig *rig);

/* `steps` steps as the problem says; *seconds for all of them. */
rse_status bench_rig_decode(bench_rig *rig, int32_t steps, double *seconds, rse_error *err);
/* Decodes until every slot has the history that it has in the long run. */
rse_status bench_rig_settle(bench_rig *rig, rse_error *err);
/* `steps` steps that flush a whole window in every row; only those are timed. The rig is of one phase, its
 * T_max at least min(L, RSSM_STEP_TOKENS_MAX), and it is used for this alone. */
rse_status bench_rig_flush(bench_rig *rig, int32_t steps, double *seconds, rse_error *err);
/* `steps` prompt pieces of problem.tokens tokens a row, each of the next group. */
rse_status bench_rig_prefill(bench_rig *rig, int32_t steps, double *seconds, rse_error *err);

/* A probe of a series (measure.h): the time of one step, from samples of `steps` of them. */
typedef struct bench_rig_probe {
    bench_rig *rig;
    rse_status (*run)(bench_rig *rig, int32_t steps, double *seconds, rse_error *err);
    int32_t steps;
} bench_rig_probe;
rse_status bench_sample_rig(void *rig_probe, double *seconds, rse_error *err);
/* Sets probe->steps: whole windows in rows, and long enough to be timed well. */
rse_status bench_rig_calibrate(bench_rig_probe *probe, rse_error *err);
/* Groups that a pool of this size makes; 1 for a warm problem, else at least 2. */
int32_t bench_rig_groups(const bench_problem *problem, size_t pool_bytes);

/* Passes a failure of the library on. */
rse_status bench_library(const rssm_context *context, rssm_status status, rse_error *err);

#endif
