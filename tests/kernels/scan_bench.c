/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times the chunked scan against the multiply-add peak of the core, both in one run and interleaved, best of
 * many. Compiled with the flags of the instruction set it measures. Useful multiply-adds are those of the plain
 * recurrence: 2 d_k d_v per token and head for Mamba-2, 3 d_k d_v for the delta rule.
 *
 *     scan_bench [repetitions]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cpu/scan.h"
#include "cpu/vec.h"

typedef struct bench_case {
    const char *name;
    int32_t d_k, d_v, heads, delta, vector_decay;
} bench_case;

typedef struct bench {
    rssm_scan scan;
    float *k, *q; /* [RSSM_SCAN_TOKENS][padded d_k]; every call of a prompt reads these, as a caller's scratch
                     is hot */
    float **state, **v, **alpha, **beta, **y;
} bench;

enum { PROMPT = 512 };

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static float *floats(size_t n) {
    float *p = aligned_alloc(64, (n * sizeof(float) + 127) / 64 * 64);
    if (!p) {
        exit(2);
    }
    memset(p, 0, n * sizeof(float));
    return p;
}

static float uniform(void) {
    return (float)rand() / (float)RAND_MAX;
}

static float *filled(size_t n, float low, float high) {
    float *p = floats(n);
    for (size_t i = 0; i < n; i++) {
        p[i] = low + (high - low) * uniform();
    }
    return p;
}

/* Billions of fused multiply-adds per second, 16 independent chains. */
static double peak(void) {
    enum { CHAINS = 16, STEPS = 10000 };
    v16 a[CHAINS], x = v16_set1(0.999f), z = v16_set1(1e-3f);
    for (int i = 0; i < CHAINS; i++) {
        a[i] = v16_set1((float)i);
    }
    double start = seconds();
    for (int s = 0; s < STEPS; s++) {
        for (int i = 0; i < CHAINS; i++) {
            a[i] = v16_fma(a[i], x, z);
        }
    }
    double time = seconds() - start;
    static volatile float sink;
    for (int i = 0; i < CHAINS; i++) {
        sink += v16_sum(a[i]);
    }
    return 16.0 * CHAINS * STEPS / time * 1e-9;
}

static bench prepare(const bench_case *c) {
    size_t row_k = (size_t)rssm_padded(c->d_k), row_v = (size_t)rssm_padded(c->d_v);
    size_t heads = (size_t)c->heads;
    bench b = {.k = filled(RSSM_SCAN_TOKENS * row_k, -1, 1),
               .q = filled(RSSM_SCAN_TOKENS * row_k, -0.1f, 0.1f)};
    for (int32_t t = 0; t < RSSM_SCAN_TOKENS; t++) {
        double norm = 0;
        for (int32_t i = 0; i < c->d_k; i++) {
            norm += (double)(b.k[(size_t)t * row_k + (size_t)i] * b.k[(size_t)t * row_k + (size_t)i]);
        }
        for (int32_t i = 0; i < c->d_k; i++) {
            b.k[(size_t)t * row_k + (size_t)i] /= (float)sqrt(norm);
        }
    }
    float ***lists[] = {&b.state, &b.v, &b.alpha, &b.beta, &b.y};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        *lists[i] = calloc(heads, sizeof(float *));
    }
    for (size_t h = 0; h < heads; h++) {
        b.state[h] = filled((size_t)(c->d_k * c->d_v), -1, 1);
        b.v[h] = filled(RSSM_SCAN_TOKENS * row_v, -1, 1);
        b.alpha[h] = filled(RSSM_SCAN_TOKENS * (c->vector_decay ? row_k : 1), 0.9f, 1);
        b.beta[h] = filled(RSSM_SCAN_TOKENS, 0, 1);
        b.y[h] = floats(RSSM_SCAN_TOKENS * row_v);
    }
    b.scan = (rssm_scan){.d_k = c->d_k, .d_v = c->d_v, .heads = c->heads, .delta = c->delta};
    b.scan.vector_decay = c->vector_decay;
    b.scan.scratch = floats(rssm_scan_scratch(c->d_k, c->d_v, c->delta, c->vector_decay));
    return b;
}

/* The whole prompt in calls of `tokens`; lowers best[] of each call. The calls are far shorter than a time
   slice, so the minimum of each is free of other processes. */
static void run(bench *b, int32_t tokens, double best[PROMPT]) {
    enum { MAX_HEADS = 64 };
    const float *v[MAX_HEADS], *alpha[MAX_HEADS], *beta[MAX_HEADS];
    float *y[MAX_HEADS];
    rssm_scan scan = b->scan;
    ptrdiff_t row_k = rssm_padded(scan.d_k), row_v = rssm_padded(scan.d_v);
    scan.state = b->state;
    scan.v = v, scan.alpha = alpha, scan.beta = beta, scan.y = y;
    for (int32_t i = 0; i < PROMPT / tokens; i++) {
        int32_t t = i * tokens % RSSM_SCAN_TOKENS;
        t = t + tokens > RSSM_SCAN_TOKENS ? 0 : t;
        scan.tokens = tokens;
        scan.k = b->k + t * row_k;
        scan.q = b->q + t * row_k;
        for (int32_t h = 0; h < scan.heads; h++) {
            v[h] = b->v[h] + t * row_v;
            alpha[h] = b->alpha[h] + t * (scan.vector_decay ? row_k : 1);
            beta[h] = b->beta[h] + t;
            y[h] = b->y[h] + t * row_v;
        }
        double start = seconds();
        RSSM_NAME(rssm_scan)(&scan);
        best[i] = fmin(best[i], seconds() - start);
    }
}

static void measure(const bench_case *c, int32_t repetitions) {
    static const int32_t cuts[] = {64, 32, 16, 8, 6, 5, 4, 3, 2, 1};
    bench b = prepare(c);
    printf("%-8s d_k %3d d_v %3d heads %2d:", c->name, c->d_k, c->d_v, c->heads);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        double each[PROMPT], best = 0, top = 0;
        for (int32_t j = 0; j < PROMPT; j++) {
            each[j] = 1.0;
        }
        for (int32_t r = 0; r < (i ? repetitions / 3 + 1 : repetitions); r++) {
            top = fmax(top, peak());
            run(&b, cuts[i], each);
        }
        for (int32_t j = 0; j < PROMPT / cuts[i]; j++) {
            best += each[j];
        }
        double useful = (c->delta ? 3.0 : 2.0) * c->d_k * c->d_v * c->heads * (PROMPT / cuts[i] * cuts[i]);
        double rate = useful / best * 1e-9;
        if (i == 0) {
            printf(" %.1f GFLOP/s, %.1f %% of %.1f; per call of", 2 * rate, 100 * rate / top, 2 * top);
        }
        printf(" %d: %.2f", cuts[i], 1e6 * best / PROMPT / c->heads);
    }
    printf(" us/token/head\n");
}

int main(int argc, char **argv) {
    static const bench_case cases[] = {
        {"gdn", 128, 128, 2, 1, 0},    {"gdn", 128, 128, 4, 1, 0},    {"kda", 128, 128, 1, 1, 1},
        {"mamba2", 128, 80, 12, 0, 0}, {"mamba2", 128, 64, 16, 0, 0}, {"gdn", 64, 64, 2, 1, 0},
        {"mamba2", 16, 64, 4, 0, 0},   {"kda", 200, 100, 1, 1, 1},
    };
    int32_t repetitions = argc > 1 ? atoi(argv[1]) : 30;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        measure(&cases[i], repetitions);
    }
    return 0;
}
