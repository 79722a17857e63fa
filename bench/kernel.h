/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `bench kernel`: what a layer of each shape takes for decode by replay, decode by the conventional method, a
 * step that flushes, and prefill. kernel.c enumerates, cases.c measures, verify.c checks, report.c prints.
 */
#ifndef RSE_BENCH_KERNEL_H
#define RSE_BENCH_KERNEL_H

#include "env.h"

#include <stdio.h>

enum { BENCH_DECODE, BENCH_CONVENTIONAL, BENCH_FLUSH, BENCH_PREFILL, BENCH_OPERATIONS };
/* "decode", "conventional", ... */
const char *bench_operation_name(int32_t operation);

/* One row of the table. Times in seconds; a step is one call for the whole batch. */
typedef struct bench_row {
    const char *kernel; /* the library's name of the decode kernel in use, e.g. "gdn_decode_avx512_f32_f32" */
    char id[192];       /* "gdn_decode_avx512_f32_f32/qwen3.5-4b/B16/T1/L16/cold" */
    int32_t operation;
    bench_problem problem;
    int32_t groups;
    int32_t samples;
    bench_quantiles step;
    double committed;                 /* tokens kept per sequence and step, on average */
    double state_bytes;               /* of the batch */
    double bytes_read, bytes_written; /* per step, by the library's formula */
    double flushes;                   /* per step, rows */
    double read, update,
        copy;            /* bandwidths of this measurement's sweeps, bytes/s; update and copy count both ways */
    double floor;        /* seconds the bytes take at those bandwidths */
    double of_floor;     /* floor / time, median of rounds */
    double of_copy;      /* (bytes read + written) / copy bandwidth / time */
    double ratio;        /* conventional time / this one's, per committed token */
    double ratio_bytes;  /* ceiling of that ratio by bytes */
    double ratio_floors; /* ceiling by the bandwidths measured beside */
    /* prefill */
    double macs, peak_macs; /* multiply-adds per second: by the formula; of the register loop */
    double of_peak;         /* macs / peak_macs */
    double of_decode;       /* time per token over that of a decoded token of the same batch, warm */
} bench_row;

/* Measures decode by replay and, beside it, conventionally; rows[1] is the conventional one. */
rse_status bench_measure_decode(bench_env *env, const bench_problem *problem, bench_row rows[2],
                                rse_error *err);
rse_status bench_measure_flush(bench_env *env, const bench_problem *problem, bench_row *row, rse_error *err);
/* problem.tokens are those of the prompt. */
rse_status bench_measure_prefill(bench_env *env, const bench_problem *problem, bench_row *row, rse_error *err);

/*
 * Runs two windows of steps by both methods on the same inputs; RSE_ERROR_MISMATCH if outputs differ by more
 * than rounding, or the checkpoints, flushed to the same position, by one bit.
 */
rse_status bench_verify_decode(bench_env *env, const bench_problem *problem, rse_error *err);
/* Prefill against conventional decoding of the same tokens: outputs and states. */
rse_status bench_verify_prefill(bench_env *env, const bench_problem *problem, rse_error *err);

void bench_row_name(const bench_env *env, const bench_problem *problem, int32_t operation, char *id,
                    size_t size);
void bench_table_head(FILE *out);
void bench_table_row(FILE *out, const bench_row *row);
/* One line of JSON. */
void bench_json_row(FILE *out, const bench_env *env, const bench_row *row);

#endif
