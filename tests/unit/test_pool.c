/* SPDX-License-Identifier: Apache-2.0 */
/* The thread pool: every index once, always on the same thread, nested and concurrent use, start and stop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "base/pool.h"

static rse_pool *pool_of(int32_t threads) {
    rse_pool *pool;
    rse_error err;
    assert_int_equal(rse_pool_create(threads, &pool, &err), RSE_OK);
    assert_non_null(pool);
    return pool;
}

enum { MOST = 1000 };

typedef struct tally {
    rse_pool *pool;
    int64_t n;
    atomic_int count[MOST];
    pthread_t thread[MOST];
    int64_t plain; /* written by the last index only, read after the loop */
} tally;

static void count_task(void *arg, int64_t i) {
    tally *t = arg;
    atomic_fetch_add(&t->count[i], 1);
    t->thread[i] = pthread_self();
    if (i == t->n - 1) {
        t->plain++;
    }
}

/* Every index runs once, on the thread that i * threads / n says; the last index's plain write is seen after.
 */
static void test_ranges(void **state) {
    (void)state;
    static tally t;
    for (int32_t threads = 1; threads <= 5; threads++) {
        rse_pool *pool = pool_of(threads);
        assert_int_equal(rse_pool_threads(pool), threads);
        for (int64_t n = 0; n < 40; n = n < 20 ? n + 1 : n + 7) {
            memset(&t, 0, sizeof t);
            t.n = n;
            rse_pool_run(pool, n, count_task, &t);
            for (int64_t i = 0; i < n; i++) {
                assert_int_equal(atomic_load(&t.count[i]), 1);
            }
            assert_int_equal(t.plain, n > 0);
            for (int64_t i = 1; i < n; i++) {
                int same = pthread_equal(t.thread[i], t.thread[i - 1]) != 0;
                assert_int_equal(same, i * threads / n == (i - 1) * threads / n);
            }
            if (n > 0) {
                assert_true(pthread_equal(t.thread[0], pthread_self()));
            }
        }
        rse_pool_destroy(pool);
    }
}

static void test_same_thread_every_time(void **state) {
    (void)state;
    static tally a, b;
    rse_pool *pool = pool_of(3);
    a.n = b.n = 100;
    rse_pool_run(pool, 100, count_task, &a);
    rse_pool_run(pool, 100, count_task, &b);
    for (int i = 0; i < 100; i++) {
        assert_true(pthread_equal(a.thread[i], b.thread[i]));
    }
    rse_pool_destroy(pool);
}

static void sum_task(void *arg, int64_t i) {
    atomic_fetch_add((atomic_llong *)arg, i);
}

/* Thousands of loops of a few indices; with pauses in between, so that helpers fall asleep and are woken. */
static void test_many_small_loops(void **state) {
    (void)state;
    for (int32_t threads = 1; threads <= 3; threads++) {
        rse_pool *pool = pool_of(threads);
        atomic_llong sum = 0;
        long long expected = 0;
        for (int i = 0; i < 3000; i++) {
            int64_t n = i % 7;
            rse_pool_run(pool, n, sum_task, &sum);
            expected += n * (n - 1) / 2;
            assert_int_equal(atomic_load(&sum), expected);
            if (i % 300 == 0) {
                nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
            }
        }
        rse_pool_destroy(pool);
    }
}

typedef struct nest {
    rse_pool *pool;
    atomic_llong sum;
} nest;

static void nested_task(void *arg, int64_t i) {
    nest *n = arg;
    (void)i;
    rse_pool_run(n->pool, 10, sum_task, &n->sum);
}

static void test_nested(void **state) {
    (void)state;
    for (int32_t threads = 1; threads <= 3; threads++) {
        nest n = {.pool = pool_of(threads)};
        for (int i = 0; i < 100; i++) {
            rse_pool_run(n.pool, 8, nested_task, &n);
        }
        assert_int_equal(atomic_load(&n.sum), 100 * 8 * 45);
        rse_pool_destroy(n.pool);
    }
}

static void *outsider(void *arg) {
    nest *n = arg;
    for (int i = 0; i < 300; i++) {
        rse_pool_run(n->pool, 10, sum_task, &n->sum);
    }
    return NULL;
}

/* Two threads run loops on one pool: the one that finds it busy works alone. */
static void test_two_callers(void **state) {
    (void)state;
    nest n = {.pool = pool_of(3)};
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, outsider, &n), 0);
    outsider(&n);
    pthread_join(other, NULL);
    assert_int_equal(atomic_load(&n.sum), 2 * 300 * 45);
    rse_pool_destroy(n.pool);
}

static void test_null_and_limits(void **state) {
    (void)state;
    atomic_llong sum = 0;
    rse_pool_run(NULL, 5, sum_task, &sum);
    assert_int_equal(atomic_load(&sum), 10);
    assert_int_equal(rse_pool_threads(NULL), 1);
    rse_pool_destroy(NULL);
    rse_pool *pool = (rse_pool *)&sum;
    rse_error err = {0};
    assert_int_equal(rse_pool_create(-1, &pool, &err), RSE_ERROR_USAGE);
    assert_null(pool);
    assert_non_null(strstr(err.text, "-1"));
    assert_int_equal(rse_pool_create(RSE_POOL_MAX_THREADS + 1, &pool, &err), RSE_ERROR_USAGE);
    assert_non_null(strstr(err.text, "1024"));
    assert_true(rse_pool_usable_cores() >= 1);
    pool = pool_of(0);
    assert_int_equal(rse_pool_threads(pool), rse_pool_usable_cores());
    rse_pool_destroy(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges),           cmocka_unit_test(test_same_thread_every_time),
        cmocka_unit_test(test_many_small_loops), cmocka_unit_test(test_nested),
        cmocka_unit_test(test_two_callers),      cmocka_unit_test(test_null_and_limits),
    };
    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
