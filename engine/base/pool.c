/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread pool. A loop is announced by raising a serial number and finished when the last helper raises
 * another; both are gates: words that a thread waits on, first spinning, then asleep on a condition variable.
 * Raising a gate costs a mutex only if somebody sleeps.
 */
#include "base/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

enum {
    SPINS = 1000, /* about 50 microseconds of pauses */
    /* Address space: tasks keep the tiles of matrix products on their stacks, and sanitizers much of their own.
     */
    STACK_BYTES = 8 << 20
};

typedef struct gate {
    _Alignas(64) atomic_uint value;
    atomic_int sleepers;
    pthread_mutex_t mutex;
    pthread_cond_t raised;
} gate;

struct rse_pool {
    gate start;                       /* serial of the announced loop */
    gate done;                        /* serial of the last finished loop */
    _Alignas(64) atomic_int working;  /* helpers still in the loop */
    _Alignas(64) atomic_flag running; /* a loop is in progress */
    int32_t threads;
    int spins;
    bool stop; /* this and the loop: written before start is raised, read after */
    int64_t n;
    rssm_task_fn task;
    void *arg;
    struct helper {
        rse_pool *pool;
        int32_t index;
        pthread_t thread;
    } * helpers; /* [threads - 1], of index 1.. */
};

static void pause_thread(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static bool gate_init(gate *g) {
    atomic_init(&g->value, 0);
    atomic_init(&g->sleepers, 0);
    if (pthread_mutex_init(&g->mutex, NULL) != 0) {
        return false;
    }
    if (pthread_cond_init(&g->raised, NULL) != 0) {
        pthread_mutex_destroy(&g->mutex);
        return false;
    }
    return true;
}

static void gate_destroy(gate *g) {
    pthread_cond_destroy(&g->raised);
    pthread_mutex_destroy(&g->mutex);
}

/* The value and the count of sleepers are both sequentially consistent: either the one who raises sees the
   sleeper, or the sleeper sees the new value before it sleeps. */
static void gate_raise(gate *g, unsigned value) {
    atomic_store(&g->value, value);
    if (atomic_load(&g->sleepers) > 0) {
        pthread_mutex_lock(&g->mutex);
        pthread_cond_broadcast(&g->raised);
        pthread_mutex_unlock(&g->mutex);
    }
}

/* Returns when the value is no longer `old`. */
static void gate_wait(gate *g, unsigned old, int spins) {
    for (int i = 0; i < spins; i++) {
        if (atomic_load_explicit(&g->value, memory_order_acquire) != old) {
            return;
        }
        pause_thread();
    }
    if (atomic_load(&g->value) != old) {
        return;
    }
    pthread_mutex_lock(&g->mutex);
    atomic_fetch_add(&g->sleepers, 1);
    while (atomic_load(&g->value) == old) {
        pthread_cond_wait(&g->raised, &g->mutex);
    }
    atomic_fetch_sub(&g->sleepers, 1);
    pthread_mutex_unlock(&g->mutex);
}

/* The first index of thread t: the smallest i with i * threads / n >= t. */
static int64_t range_begin(int64_t n, int32_t threads, int32_t t) {
    int64_t whole = n / threads, rest = n % threads;
    return whole * t + (rest * t + threads - 1) / threads;
}

static void run_range(const rse_pool *pool, int32_t t) {
    int64_t end = range_begin(pool->n, pool->threads, t + 1);
    for (int64_t i = range_begin(pool->n, pool->threads, t); i < end; i++) {
        pool->task(pool->arg, i);
    }
}

static void *helper_main(void *arg) {
    struct helper *self = arg;
    rse_pool *pool = self->pool;
    for (unsigned serial = 0;; serial++) {
        gate_wait(&pool->start, serial, pool->spins);
        if (pool->stop) {
            return NULL;
        }
        run_range(pool, self->index);
        if (atomic_fetch_sub(&pool->working, 1) == 1) {
            gate_raise(&pool->done, serial + 1);
        }
    }
}

void rse_pool_run(void *user, int64_t n, rssm_task_fn task, void *arg) {
    rse_pool *pool = user;
    if (pool == NULL || pool->threads == 1 || n <= 1 || atomic_flag_test_and_set(&pool->running)) {
        for (int64_t i = 0; i < n; i++) {
            task(arg, i);
        }
        return;
    }
    unsigned serial = atomic_load_explicit(&pool->start.value, memory_order_relaxed);
    pool->n = n;
    pool->task = task;
    pool->arg = arg;
    atomic_store(&pool->working, pool->threads - 1);
    gate_raise(&pool->start, serial + 1);
    run_range(pool, 0);
    gate_wait(&pool->done, serial, pool->spins);
    atomic_flag_clear(&pool->running);
}

int32_t rse_pool_threads(const rse_pool *pool) {
    return pool != NULL ? pool->threads : 1;
}

/* By the system call itself: the macros for glibc's cpu_set_t are GNU extensions and stop at 1,024 cores. */
int32_t rse_pool_usable_cores(void) {
    long cores = 0;
#ifdef __linux__
    unsigned long mask[128];
    long bytes = syscall(SYS_sched_getaffinity, 0, sizeof mask, mask);
    for (size_t i = 0; bytes > 0 && i < (size_t)bytes / sizeof mask[0]; i++) {
        cores += __builtin_popcountl(mask[i]);
    }
#endif
    if (cores == 0) {
        cores = sysconf(_SC_NPROCESSORS_ONLN);
    }
    return cores > 0 ? (int32_t)cores : 1;
}

/* Stops the first `started` helpers and frees the pool. */
static void pool_end(rse_pool *pool, int32_t started) {
    pool->stop = true;
    gate_raise(&pool->start, atomic_load(&pool->start.value) + 1);
    for (int32_t i = 0; i < started; i++) {
        pthread_join(pool->helpers[i].thread, NULL);
    }
    gate_destroy(&pool->start);
    gate_destroy(&pool->done);
    free(pool->helpers);
    free(pool);
}

/* Starts helpers and returns how many run. */
static int32_t start_helpers(rse_pool *pool) {
    pthread_attr_t attr;
    if (pthread_attr_init(&attr) != 0) {
        return 0;
    }
    int32_t started = 0;
    if (pthread_attr_setstacksize(&attr, STACK_BYTES) == 0) {
        for (; started < pool->threads - 1; started++) {
            struct helper *h = &pool->helpers[started];
            h->pool = pool;
            h->index = started + 1;
            if (pthread_create(&h->thread, &attr, helper_main, h) != 0) {
                break;
            }
        }
    }
    pthread_attr_destroy(&attr);
    return started;
}

rse_status rse_pool_create(int32_t threads, rse_pool **out, rse_error *err) {
    *out = NULL;
    if (threads < 0 || threads > RSE_POOL_MAX_THREADS) {
        return rse_fail(err, RSE_ERROR_USAGE, "threads is %d; it must be 0 (all usable cores) to %d", threads,
                        RSE_POOL_MAX_THREADS);
    }
    int32_t cores = rse_pool_usable_cores();
    if (threads == 0) {
        threads = cores < RSE_POOL_MAX_THREADS ? cores : RSE_POOL_MAX_THREADS;
    }
    rse_pool *pool = aligned_alloc(64, (sizeof *pool + 63) / 64 * 64);
    struct helper *helpers = calloc((size_t)threads, sizeof *helpers);
    if (pool == NULL || helpers == NULL) {
        free(pool);
        free(helpers);
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for a pool of %d threads", threads);
    }
    memset(pool, 0, sizeof *pool);
    pool->threads = threads;
    pool->helpers = helpers;
    pool->spins =
        threads <= cores ? SPINS : 0; /* with more threads than cores a spinner keeps a worker waiting */
    atomic_init(&pool->working, 0);
    atomic_flag_clear(&pool->running);
    bool gates = gate_init(&pool->start);
    if (gates && !gate_init(&pool->done)) {
        gate_destroy(&pool->start);
        gates = false;
    }
    if (!gates) {
        free(helpers);
        free(pool);
        return rse_fail(err, RSE_ERROR_MEMORY, "the locks of a pool of %d threads cannot be made", threads);
    }
    int32_t started = start_helpers(pool);
    if (started < threads - 1) {
        pool_end(pool, started);
        return rse_fail(err, RSE_ERROR_MEMORY, "thread %d of %d cannot be started", started + 2, threads);
    }
    *out = pool;
    return RSE_OK;
}

void rse_pool_destroy(rse_pool *pool) {
    if (pool != NULL) {
        pool_end(pool, pool->threads - 1);
    }
}
