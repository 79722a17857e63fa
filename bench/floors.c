/* SPDX-License-Identifier: Apache-2.0 */
#include "floors.h"
#include "measure.h"

extern const bench_floor_ops bench_floor_ops_scalar;
#ifdef RSSM_BUILD_AVX2
extern const bench_floor_ops bench_floor_ops_avx2;
#endif
#ifdef RSSM_BUILD_NEON
extern const bench_floor_ops bench_floor_ops_neon;
#endif
#ifdef RSSM_BUILD_AVX512
extern const bench_floor_ops bench_floor_ops_avx512;
#endif

enum { STEP = 4096 }; /* sweeps start and are cut at multiples of this many bytes */

static size_t round_up(size_t bytes) {
    return (bytes + STEP - 1) / STEP * STEP;
}

rse_status bench_floors_create(rse_pool *pool, size_t bytes, bench_floors *floors, rse_error *err) {
    *floors = (bench_floors){.pool = pool, .ops = &bench_floor_ops_scalar, .bytes = round_up(bytes)};
#ifdef RSSM_BUILD_AVX2
    if ((rssm_isa_available() & RSSM_ISA_AVX2) != 0) {
        floors->ops = &bench_floor_ops_avx2;
    }
#endif
#ifdef RSSM_BUILD_NEON
    floors->ops = &bench_floor_ops_neon;
#endif
#ifdef RSSM_BUILD_AVX512
    if ((rssm_isa_available() & RSSM_ISA_AVX512) != 0) {
        floors->ops = &bench_floor_ops_avx512;
    }
#endif
    return bench_arena_reserve(&floors->arena, floors->bytes, err);
}

void bench_floors_destroy(bench_floors *floors) {
    bench_arena_free(&floors->arena);
}

typedef struct sweep {
    bench_floors *floors;
    int kind;
    int64_t pieces;
    size_t bytes; /* of this sweep, a multiple of STEP */
} sweep;

static void run_range(bench_floors *floors, int kind, size_t at, size_t bytes) {
    float *x = (float *)(void *)(floors->arena.base + at);
    size_t n = bytes / sizeof *x;
    if (kind == BENCH_SWEEP_READ) {
        volatile float sink = floors->ops->read(x, n);
        (void)sink;
    } else if (kind == BENCH_SWEEP_UPDATE) {
        floors->ops->update(x, n);
    } else { /* to the other half of the buffer */
        size_t to = (at + floors->bytes / 2 / STEP * STEP) % floors->bytes;
        size_t first = to + bytes > floors->bytes ? floors->bytes - to : bytes;
        floors->ops->copy((float *)(void *)(floors->arena.base + to), x, first / sizeof *x);
        floors->ops->copy((float *)(void *)floors->arena.base, x + first / sizeof *x,
                          (bytes - first) / sizeof *x);
    }
}

static void run_piece(void *arg, int64_t index) {
    const sweep *s = arg;
    size_t steps = s->bytes / STEP;
    size_t from = steps * (size_t)index / (size_t)s->pieces * STEP;
    size_t to = steps * (size_t)(index + 1) / (size_t)s->pieces * STEP;
    while (from < to) { /* the buffer's end may lie in between */
        size_t at = (s->floors->at + from) % s->floors->bytes, room = s->floors->bytes - at;
        size_t bytes = to - from < room ? to - from : room;
        run_range(s->floors, s->kind, at, bytes);
        from += bytes;
    }
}

double bench_floors_sweep(bench_floors *floors, int kind, size_t bytes) {
    sweep s = {floors, kind, rse_pool_threads(floors->pool), round_up(bytes)};
    double start = bench_clock();
    rse_pool_run(floors->pool, s.pieces, run_piece, &s);
    double seconds = bench_clock() - start;
    if (!floors->warm) {
        floors->at = (floors->at + s.bytes) % floors->bytes;
    }
    return seconds * (double)bytes / (double)s.bytes;
}

typedef struct multiply {
    bench_floors *floors;
    int64_t rounds;
} multiply;

static void run_multiply(void *arg, int64_t index) {
    multiply *m = arg;
    (void)index;
    volatile float sink = m->floors->ops->multiply_add(m->rounds);
    (void)sink;
}

double bench_floors_multiply_add(bench_floors *floors) {
    multiply m = {floors, floors->rounds > 0 ? floors->rounds : 1000};
    int32_t threads = rse_pool_threads(floors->pool);
    for (;;) {
        double start = bench_clock();
        rse_pool_run(floors->pool, threads, run_multiply, &m);
        double seconds = bench_clock() - start;
        if (seconds >= BENCH_SAMPLE_SECONDS || floors->rounds > 0) {
            floors->rounds = m.rounds;
            return (double)m.rounds * BENCH_FLOOR_MACS * threads / seconds;
        }
        m.rounds *= 2;
    }
}

rse_status bench_sample_sweep(void *sweep_probe, double *seconds, rse_error *err) {
    bench_sweep_probe *p = sweep_probe;
    (void)err;
    *seconds = bench_floors_sweep(p->floors, p->kind, p->bytes * (size_t)p->steps) / p->steps;
    return RSE_OK;
}

rse_status bench_sample_multiply_add(void *floors, double *seconds, rse_error *err) {
    (void)err;
    *seconds = 1 / bench_floors_multiply_add(floors);
    return RSE_OK;
}
