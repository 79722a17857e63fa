/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool of threads for parallel loops. The loop's indices are cut into one contiguous range per thread, always
 * the same way, so that what index i touches stays in the cache of one core from loop to loop. The calling
 * thread works too. Threads wait by spinning for some tens of microseconds, the distance between two loops of a
 * model step, and sleep after that.
 */
#ifndef RSE_POOL_H
#define RSE_POOL_H

#include <stdint.h>

#include <replayssm/base.h>

#include "base/error.h"

typedef struct rse_pool rse_pool;

enum { RSE_POOL_MAX_THREADS = 1024 };

/* The cores this process may run on (its affinity mask); at least 1. */
int32_t rse_pool_usable_cores(void);

/*
 * threads: how many threads work on a loop, the caller's included; 0 means rse_pool_usable_cores().
 * RSE_ERROR_USAGE outside 0..RSE_POOL_MAX_THREADS, RSE_ERROR_MEMORY if threads cannot be started; *pool is NULL
 * then.
 */
rse_status rse_pool_create(int32_t threads, rse_pool **pool, rse_error *err);

/* No loop may be running. NULL is fine. */
void rse_pool_destroy(rse_pool *pool);

/* Threads of a loop, the caller's included; 1 for NULL. */
int32_t rse_pool_threads(const rse_pool *pool);

/*
 * Runs task(arg, i) for every i in [0, n) and returns when all are done: an rssm_parallel_fn whose user pointer
 * is the rse_pool. Index i belongs to thread i * threads / n. A NULL pool, and a pool that is already running a
 * loop (a task of it, or another thread, calls), run the loop in the calling thread.
 */
void rse_pool_run(void *pool, int64_t n, rssm_task_fn task, void *arg);

#endif
