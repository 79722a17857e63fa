/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The timing core. What is to be compared is sampled in turns, one sample of each probe per round, so that a
 * slow phase of the machine meets all of them alike; results are medians and percentiles of samples, and ratios
 * are medians of the ratios within a round.
 */
#ifndef RSE_BENCH_MEASURE_H
#define RSE_BENCH_MEASURE_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* Seconds of the monotonic clock. */
double bench_now(void);
/* Seconds of the clock that samples are taken with: bench_now(), or, after bench_use_cpu_time(), the time that
 * the calling thread has spent on a core, which a busy machine disturbs less and which is right for one thread
 * only. */
double bench_clock(void);
void bench_use_cpu_time(void);

/* Takes one sample: sets *seconds, of whatever unit of work the probe stands for. */
typedef rse_status (*bench_sample_fn)(void *user, double *seconds, rse_error *err);

typedef struct bench_probe {
    bench_sample_fn sample;
    void *user;
    double *seconds; /* [samples taken], owned by the series */
} bench_probe;

enum { BENCH_PROBES = 8, BENCH_SAMPLES_MIN = 30, BENCH_SAMPLES_MAX = 1000 };
/* A sample should last this long, so that the clock and a thread's wake-up do not matter. */
#define BENCH_SAMPLE_SECONDS 2e-3

typedef struct bench_series {
    bench_probe probes[BENCH_PROBES];
    int count;
    int rounds; /* done */
    double memory[BENCH_PROBES][BENCH_SAMPLES_MAX];
} bench_series;

/* Adds a probe to an empty or growing series and returns its index. */
int bench_series_add(bench_series *series, bench_sample_fn sample, void *user);

/* Runs one round unrecorded, then rounds until `seconds` are over, but at least `least` and at most
 * BENCH_SAMPLES_MAX of them. */
rse_status bench_series_run(bench_series *series, int least, double seconds, rse_error *err);

typedef struct bench_quantiles {
    double p10, p50, p90;
} bench_quantiles;

/* Of values [count]; count >= 1. */
bench_quantiles bench_quantiles_of(const double *values, int count);
bench_quantiles bench_series_quantiles(const bench_series *series, int probe);

/* Value of one round, from the seconds of its probes. */
typedef double (*bench_round_fn)(const double *seconds, const void *user);
/* The median over the rounds of what a function makes of each. */
double bench_series_median(const bench_series *series, bench_round_fn value, const void *user);
/* The median of seconds[above] / seconds[below]. */
double bench_series_median_ratio(const bench_series *series, int above, int below);

#endif
