/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the machine can do: plain sweeps over memory and a loop of multiply-adds in registers, with the widest
 * vectors it has and all threads of the pool. Sweeps go round a large buffer, so that every one finds its bytes
 * out of cache; with `warm` they stay at its start.
 */
#ifndef RSE_BENCH_FLOORS_H
#define RSE_BENCH_FLOORS_H

#include "arena.h"
#include "base/pool.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct bench_floors {
    rse_pool *pool; /* borrowed */
    const struct bench_floor_ops *ops;
    bench_arena arena;
    size_t bytes; /* of the buffer, a multiple of 4 KiB */
    size_t at;    /* where the next sweep starts */
    bool warm;
    int64_t rounds; /* of multiply-adds that last a sample; found when first needed */
} bench_floors;

/* One instruction set's loops; n is in floats and a multiple of 128. */
typedef struct bench_floor_ops {
    float (*read)(const float *x, size_t n);
    void (*update)(float *x, size_t n); /* x = x / 2 + 1 */
    void (*copy)(float *to, const float *from, size_t n);
    float (*multiply_add)(int64_t rounds); /* rounds x BENCH_FLOOR_MACS multiply-adds */
} bench_floor_ops;
enum { BENCH_FLOOR_MACS = 16 * 16 };

rse_status bench_floors_create(rse_pool *pool, size_t bytes, bench_floors *floors, rse_error *err);
void bench_floors_destroy(bench_floors *floors);

enum { BENCH_SWEEP_READ, BENCH_SWEEP_UPDATE, BENCH_SWEEP_COPY };
/* Seconds to read, to update in place, or to copy `bytes` bytes (a copy moves 2 bytes for each of them). */
double bench_floors_sweep(bench_floors *floors, int kind, size_t bytes);
/* Multiply-adds per second of all threads. */
double bench_floors_multiply_add(bench_floors *floors);

/* Probes of a series (measure.h). */
typedef struct bench_sweep_probe {
    bench_floors *floors;
    int kind;
    int32_t steps; /* of a sample; the sample is the time of one */
    size_t bytes;  /* of a step */
} bench_sweep_probe;
rse_status bench_sample_sweep(void *sweep_probe, double *seconds, rse_error *err);
/* user: a bench_floors. Seconds of one multiply-add per thread, divided by the number of threads. */
rse_status bench_sample_multiply_add(void *floors, double *seconds, rse_error *err);

#endif
