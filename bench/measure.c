/* SPDX-License-Identifier: Apache-2.0 */
#include "measure.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static clockid_t sample_clock = CLOCK_MONOTONIC;

static double read_clock(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

double bench_now(void) {
    return read_clock(CLOCK_MONOTONIC);
}

double bench_clock(void) {
    return read_clock(sample_clock);
}

void bench_use_cpu_time(void) {
    sample_clock = CLOCK_THREAD_CPUTIME_ID;
}

int bench_series_add(bench_series *series, bench_sample_fn sample, void *user) {
    assert(series->count < BENCH_PROBES);
    int probe = series->count++;
    series->probes[probe] = (bench_probe){sample, user, series->memory[probe]};
    return probe;
}

rse_status bench_series_run(bench_series *series, int least, double seconds, rse_error *err) {
    double end = bench_now() + seconds, unused;
    for (int i = 0; i < series->count; i++) {
        RSE_TRY(series->probes[i].sample(series->probes[i].user, &unused, err));
    }
    series->rounds = 0;
    while (series->rounds < BENCH_SAMPLES_MAX && (series->rounds < least || bench_now() < end)) {
        for (int i = 0; i < series->count; i++) {
            bench_probe *probe = &series->probes[i];
            RSE_TRY(probe->sample(probe->user, &probe->seconds[series->rounds], err));
        }
        series->rounds++;
    }
    return RSE_OK;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Between the two nearest ranks. */
static double rank(const double *sorted, int count, double fraction) {
    double at = fraction * (count - 1);
    int low = (int)at, high = low + 1 < count ? low + 1 : low;
    return sorted[low] + (at - low) * (sorted[high] - sorted[low]);
}

bench_quantiles bench_quantiles_of(const double *values, int count) {
    assert(count >= 1 && count <= BENCH_SAMPLES_MAX);
    double sorted[BENCH_SAMPLES_MAX];
    memcpy(sorted, values, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, ascending);
    return (bench_quantiles){rank(sorted, count, 0.1), rank(sorted, count, 0.5), rank(sorted, count, 0.9)};
}

bench_quantiles bench_series_quantiles(const bench_series *series, int probe) {
    return bench_quantiles_of(series->probes[probe].seconds, series->rounds);
}

double bench_series_median(const bench_series *series, bench_round_fn value, const void *user) {
    double values[BENCH_SAMPLES_MAX], round[BENCH_PROBES];
    for (int r = 0; r < series->rounds; r++) {
        for (int i = 0; i < series->count; i++) {
            round[i] = series->probes[i].seconds[r];
        }
        values[r] = value(round, user);
    }
    return bench_quantiles_of(values, series->rounds).p50;
}

static double round_ratio(const double *seconds, const void *user) {
    const int *probes = user;
    return seconds[probes[0]] / seconds[probes[1]];
}

double bench_series_median_ratio(const bench_series *series, int above, int below) {
    const int probes[2] = {above, below};
    return bench_series_median(series, round_ratio, probes);
}
