/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels timed on a CUDA device: replay and conventional of the same shape and batch in one run, beside the bandwidth of
 * a large copy in the same minute.
 */
#ifndef RSE_BENCH_DEVICE_H
#define RSE_BENCH_DEVICE_H

#include "../args.h"

typedef struct bench_device_options {
    bench_list batches, tokens, formats; /* formats: RSSM_DTYPE_* of inputs and records */
    int64_t window;
    const char *only; /* a model's name or the beginning of one; NULL: all */
    bool together;    /* all sequences flush in the same step */
} bench_device_options;

/* Returns the exit code. */
int bench_device_kernels(const bench_device_options *options);

#endif
