/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `bench gemv`: the engine's matrix products, y = W x for M rows of x, on weights that rotate through a pool
 * larger than the caches. Beside each, in the same rounds, a read of as many bytes and the multiply-add loop:
 * with few rows the first is the limit, with many the second.
 */
#include "commands.h"
#include "env.h"
#include "machine.h"
#include "math/math.h"
#include "numbers.h"
#include "random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct gemv_shape {
    const char *name;
    int64_t rows, cols;
} gemv_shape;

static const gemv_shape shapes[] = {
    {"qwen3.5-0.8b-mlp-up", 3584, 1024},  {"qwen3.5-4b-mlp-up", 9216, 2560},
    {"qwen3.5-4b-mlp-down", 2560, 9216},  {"qwen3.5-4b-qkv", 8192, 2560},
    {"nemotron-4b-in-proj", 17504, 3136}, {"nemotron-4b-out-proj", 3136, 7680},
};

typedef struct gemv_args {
    bench_common common;
    bench_list rows, dtypes;
} gemv_args;

#define AT(field) offsetof(gemv_args, field)
static const bench_arg table[] = {
    {"rows", BENCH_ARG_NUMBERS, AT(rows), "LIST", "1,16,128,512", 1, 4096, NULL, "rows of x: 1 is a GEMV"},
    {"weights", BENCH_ARG_WORDS, AT(dtypes), "f32,bf16", "bf16,f32", 0, 0, bench_formats, "number format of W"},
    {0},
};

static const bench_args spec = {
    .name = "gemv",
    .usage = "",
    .about =
        "Times the engine's matrix products against the memory's read bandwidth and the multiply-add peak,\n"
        "both measured in the same rounds. Results are checked before: against sums in double, and the rows\n"
        "of a product of many against the product of one, bit for bit.",
    .tables = {table, bench_common_table},
};

typedef struct gemv_run {
    gemv_args args;
    bench_env env;
    rse_math *math;
    bench_arena weights;
} gemv_run;

/* One product, of the next matrix of the pool. */
typedef struct gemv_probe {
    const rse_math *math;
    rse_matrix w; /* the first */
    size_t bytes; /* of a matrix */
    int64_t copies, next, m;
    int32_t steps;
    float *x, *y; /* [m][cols], [m][rows] */
} gemv_probe;

static rse_status sample(void *user, double *seconds, rse_error *err) {
    gemv_probe *p = user;
    (void)err;
    double start = bench_clock();
    for (int32_t i = 0; i < p->steps; i++) {
        rse_matrix w = p->w;
        w.data = (const unsigned char *)p->w.data + p->bytes * (size_t)p->next;
        rse_matmul(p->math, &w, NULL, p->m, p->x, w.cols, p->y, w.rows);
        p->next = (p->next + 1) % p->copies;
    }
    *seconds = (bench_clock() - start) / p->steps;
    return RSE_OK;
}

static float weight_at(const rse_matrix *w, int64_t row, int64_t col) {
    int64_t at = row * w->cols + col;
    return w->dtype == RSSM_DTYPE_BF16 ? rssm_f32_of_bf16(((const uint16_t *)w->data)[at])
                                       : ((const float *)w->data)[at];
}

/* Every output of a few against double, and every row against the product of that row alone. */
static rse_status verify(gemv_probe *p, const char *id, rse_error *err) {
    const rse_matrix *w = &p->w;
    rse_matmul(p->math, w, NULL, p->m, p->x, w->cols, p->y, w->rows);
    for (int64_t o = 0; o < w->rows; o += 97) {
        double sum = 0, size = 0;
        int64_t m = o % p->m;
        for (int64_t i = 0; i < w->cols; i++) {
            double term = (double)weight_at(w, o, i) * (double)p->x[m * w->cols + i];
            sum += term;
            size += fabs(term);
        }
        double difference = fabs(sum - (double)p->y[m * w->rows + o]);
        if (!(difference <= 1e-6 * size)) {
            return rse_fail(err, RSE_ERROR_MISMATCH, "%s: output %lld is off by %g; the limit is %g", id,
                            (long long)o, difference, 1e-6 * size);
        }
    }
    float *alone = malloc((size_t)w->rows * sizeof *alone);
    if (alone == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for %lld outputs", (long long)w->rows);
    }
    bool same = true;
    for (int64_t m = 0; m < p->m && same; m += p->m / 3 + 1) {
        rse_matmul(p->math, w, NULL, 1, p->x + m * w->cols, w->cols, alone, w->rows);
        same = memcmp(alone, p->y + m * w->rows, (size_t)w->rows * sizeof *alone) == 0;
    }
    free(alone);
    return same ? RSE_OK : rse_fail(err, RSE_ERROR_MISMATCH, "%s: a row depends on the number of rows", id);
}

/* Fills the pool with copies of one random matrix. */
static rse_status make_weights(gemv_run *run, const gemv_shape *shape, int32_t dtype, gemv_probe *p,
                               rse_error *err) {
    size_t element = dtype == RSSM_DTYPE_BF16 ? sizeof(uint16_t) : sizeof(float);
    size_t n = (size_t)(shape->rows * shape->cols);
    p->bytes = (n * element + 4095) / 4096 * 4096;
    p->copies = (int64_t)((run->env.pool_bytes) / p->bytes) + 2;
    RSE_TRY(bench_arena_reserve(&run->weights, p->bytes * (size_t)p->copies, err));
    p->w = (rse_matrix){
        .data = run->weights.base, .rows = shape->rows, .cols = shape->cols, .dtype = dtype, .factor = 1.0f};
    uint64_t random = 1;
    for (size_t i = 0; i < n; i++) {
        float x = bench_uniform(&random, -1, 1);
        if (dtype == RSSM_DTYPE_BF16) {
            ((uint16_t *)(void *)run->weights.base)[i] = rssm_bf16_of_f32(x);
        } else {
            ((float *)(void *)run->weights.base)[i] = x;
        }
    }
    for (int64_t copy = 1; copy < p->copies; copy++) {
        memcpy(run->weights.base + p->bytes * (size_t)copy, run->weights.base, p->bytes);
    }
    return RSE_OK;
}

static void report(gemv_run *run, const gemv_probe *p, const char *id) {
    const bench_series *series = run->env.series;
    bench_quantiles time = bench_series_quantiles(series, 0);
    double bytes = (double)p->bytes, macs = (double)(p->w.rows * p->w.cols * p->m);
    double read = bytes / bench_series_quantiles(series, 1).p50,
           peak = 1 / bench_series_quantiles(series, 2).p50;
    double of_read = bench_series_median_ratio(series, 1, 0);
    double of_peak = macs * bench_series_median_ratio(series, 2, 0);
    printf("%-52s %10.1f %8.1f %8.2f %8.1f %8.2f\n", id, 1e6 * time.p50, 1e-9 * bytes / time.p50, of_read,
           1e-9 * macs / time.p50, of_peak);
    fflush(stdout);
    if (run->env.json != NULL) {
        fprintf(run->env.json,
                "{\"id\": \"%s\", \"operation\": \"gemv\", \"rows\": %lld, \"cols\": %lld, \"batch\": %lld", id,
                (long long)p->w.rows, (long long)p->w.cols, (long long)p->m);
        fprintf(run->env.json,
                ", \"samples\": %d, \"us_step\": %.4g, \"us_step_p10\": %.4g, \"us_step_p90\": %.4g",
                series->rounds, 1e6 * time.p50, 1e6 * time.p10, 1e6 * time.p90);
        fprintf(run->env.json, ", \"gbs\": %.4g, \"read_gbs\": %.4g, \"of_read\": %.4g",
                1e-9 * bytes / time.p50, 1e-9 * read, of_read);
        fprintf(run->env.json, ", \"gmacs\": %.4g, \"peak_gmacs\": %.4g, \"of_peak\": %.4g, ",
                1e-9 * macs / time.p50, 1e-9 * peak, of_peak);
        bench_json_machine(run->env.json, run->env.threads);
        fprintf(run->env.json, "}\n");
        fflush(run->env.json);
    }
}

static rse_status measure(gemv_run *run, gemv_probe *p, const char *id, rse_error *err) {
    bench_sweep_probe sweep = {&run->env.floors, BENCH_SWEEP_READ, 1, p->bytes};
    double seconds;
    RSE_TRY(verify(p, id, err));
    p->steps = 1;
    RSE_TRY(sample(p, &seconds, err));
    p->steps = sweep.steps = 1 + (int32_t)(BENCH_SAMPLE_SECONDS / seconds);
    run->env.series->count = 0;
    bench_series_add(run->env.series, sample, p);
    bench_series_add(run->env.series, bench_sample_sweep, &sweep);
    bench_series_add(run->env.series, bench_sample_multiply_add, &run->env.floors);
    RSE_TRY(bench_env_run(&run->env, err));
    report(run, p, id);
    return RSE_OK;
}

/* All of the wanted row counts on one matrix, which is made when the first is wanted. */
static rse_status run_matrix(gemv_run *run, const gemv_shape *shape, int32_t dtype, rse_error *err) {
    gemv_probe p = {.math = run->math};
    rse_status status = RSE_OK;
    for (int32_t i = 0; i < run->args.rows.count && status == RSE_OK; i++) {
        char id[128];
        p.m = run->args.rows.at[i];
        snprintf(id, sizeof id, "gemv_%s_%s/%s/M%lld", rse_math_isa(run->math), rssm_dtype_name(dtype),
                 shape->name, (long long)p.m);
        if (!bench_env_wants(&run->env, id)) {
            continue;
        }
        if (p.copies == 0) {
            RSE_TRY(make_weights(run, shape, dtype, &p, err));
        }
        size_t n = (size_t)(p.m * shape->cols);
        p.x = aligned_alloc(64, (n * sizeof *p.x + 63) / 64 * 64);
        p.y = aligned_alloc(64, ((size_t)(p.m * shape->rows) * sizeof *p.y + 63) / 64 * 64);
        uint64_t random = 2;
        for (size_t j = 0; p.x != NULL && j < n; j++) {
            p.x[j] = bench_uniform(&random, -1, 1);
        }
        status = p.x != NULL && p.y != NULL ? measure(run, &p, id, err)
                                            : rse_fail(err, RSE_ERROR_MEMORY, "%s: no memory for vectors", id);
        free(p.x);
        free(p.y);
    }
    return status;
}

static rse_status run_all(gemv_run *run, rse_error *err) {
    const gemv_args *args = &run->args;
    RSE_TRY(bench_env_open(&args->common, &run->env, err));
    RSE_TRY(rse_math_create(run->env.isa_mask, run->env.pool, &run->math, err));
    bench_print_machine(stdout, run->env.threads);
    printf("%-52s %10s %8s %8s %8s %8s\n", "row", "us", "GB/s", "of read", "Gmac/s", "of peak");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int32_t d = 0; d < args->dtypes.count; d++) {
            RSE_TRY(run_matrix(run, &shapes[i], args->dtypes.at[d], err));
        }
    }
    return RSE_OK;
}

int bench_gemv(int argc, char **argv) {
    gemv_run run = {0};
    rse_error err = {0};
    int said = bench_args_parse(&spec, argc, argv, &run.args, sizeof run.args);
    if (said != 0) {
        return said - 1;
    }
    rse_status status = run_all(&run, &err);
    rse_math_destroy(run.math);
    bench_arena_free(&run.weights);
    return bench_exit(bench_env_close(&run.env, status, &err), &err);
}
