/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Large blocks of memory on huge pages, kept from one measurement to the next so that no page fault is timed.
 */
#ifndef RSE_BENCH_ARENA_H
#define RSE_BENCH_ARENA_H

#include "base/error.h"

#include <stddef.h>

/* Valid when zeroed. */
typedef struct bench_arena {
    unsigned char *base; /* aligned to 2 MiB */
    size_t bytes;
    void *mapping;
    size_t mapped;
} bench_arena;

/* Makes the arena at least this large; what was in it is lost if it has to grow. Its pages exist afterwards.
 * RSE_ERROR_MEMORY leaves it empty. */
rse_status bench_arena_reserve(bench_arena *arena, size_t bytes, rse_error *err);
void bench_arena_free(bench_arena *arena);

#endif
