/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `bench start`: how long a model takes from opening its files to the first token, and what it keeps in memory then,
 * beside the sum that it may: the weights as stored, a twentieth of them, and 200 MB.
 */
#include "args.h"
#include "bench.h"
#include "commands.h"
#include "engine.h"
#include "machine.h"
#include "measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double share = 1.05, allowance = 200e6;

typedef struct start_args {
    const char *model, *json;
    int64_t threads, repeats;
} start_args;

#define AT(field) offsetof(start_args, field)
static const bench_arg table[] = {
    {"threads", BENCH_ARG_WHOLE, AT(threads), "N", "0", 0, 1024, NULL, "threads; 0: one for each usable core"},
    {"repeats", BENCH_ARG_WHOLE, AT(repeats), "N", "5", 1, 1000, NULL,
     "starts that are timed, after one that is not"},
    {"json", BENCH_ARG_TEXT, AT(json), "FILE", NULL, 0, 0, NULL, "append the figures to FILE as a line of JSON"},
    {0},
};

static const bench_args spec = {
    .name = "start",
    .usage = "MODEL",
    .about = "Times how a model starts while its files are in memory: from opening them to a running engine, and to\n"
             "its first token; and measures the memory that it takes then, files that are mapped included.",
    .tables = {table, NULL},
    .operand = AT(model),
};

/* Of this process; 0 where the system does not say. */
static double resident_bytes(void) {
    char line[256];
    double kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "VmRSS:", 6) == 0) {
            kib = strtod(line + 6, NULL);
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return 1024 * kib;
}

typedef struct start_figures {
    double open, token; /* seconds since the files were opened */
    double resident;    /* bytes */
    double weights;
} start_figures;

static rse_status first_token(rse_engine *engine, rse_error *err) {
    rse_engine_info info;
    rse_session *session;
    const int32_t token = 0;
    rse_engine_describe(engine, &info);
    float *logits = malloc((size_t)info.vocab * sizeof *logits);
    if (logits == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for %d logits", info.vocab);
    }
    rse_status status = rse_session_open(engine, 0, &session, err);
    if (status == RSE_OK) {
        rse_row row = {.session = session, .tokens = &token, .count = 1, .accepted = RSE_ACCEPT_ALL, .outputs = 1};
        status = rse_engine_step(engine, &row, 1, logits, NULL, err);
        rse_session_close(session);
    }
    free(logits);
    return status;
}

static rse_status start_once(const start_args *args, start_figures *f, rse_error *err) {
    rse_engine_options options = {.threads = (int32_t)args->threads};
    rse_engine_info info;
    rse_engine *engine;
    double began = bench_clock();
    RSE_TRY(rse_engine_open(args->model, &options, &engine, err));
    f->open = bench_clock() - began;
    rse_status status = first_token(engine, err);
    f->token = bench_clock() - began;
    f->resident = resident_bytes();
    rse_engine_describe(engine, &info);
    f->weights = (double)info.weight_bytes;
    rse_engine_close(engine);
    return status;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static rse_status report(const start_args *args, const start_figures *f, rse_error *err) {
    double allowed = share * f->weights + allowance;
    printf("%-32s %10s %10s %12s %12s %12s\n", "model", "open, s", "token, s", "weights, MB", "resident, MB",
           "allowed, MB");
    printf("%-32s %10.3f %10.3f %12.1f %12.1f %12.1f\n", args->model, f->open, f->token, 1e-6 * f->weights,
           1e-6 * f->resident, 1e-6 * allowed);
    if (args->json != NULL) {
        FILE *file = fopen(args->json, "a");
        if (file == NULL) {
            return rse_fail(err, RSE_ERROR_IO, "%s: cannot be written", args->json);
        }
        fprintf(file,
                "{\"operation\": \"start\", \"starts\": %lld, \"open_s\": %.4g, \"token_s\": %.4g, "
                "\"weight_bytes\": %.0f, \"resident_bytes\": %.0f, \"allowed_bytes\": %.0f, ",
                (long long)args->repeats, f->open, f->token, f->weights, f->resident, allowed);
        bench_json_machine(file, (int32_t)args->threads);
        fprintf(file, "}\n");
        bool failed = ferror(file) != 0;
        failed = fclose(file) != 0 || failed;
        if (failed) {
            return rse_fail(err, RSE_ERROR_IO, "%s: cannot be written", args->json);
        }
    }
    return f->resident <= allowed ? RSE_OK
                                  : rse_fail(err, RSE_ERROR_MISMATCH, "%s takes %.0f bytes; the limit is %.0f",
                                             args->model, f->resident, allowed);
}

static rse_status run(const start_args *args, rse_error *err) {
    size_t n = (size_t)args->repeats;
    double *times = malloc(2 * n * sizeof *times);
    start_figures f;
    rse_status status = times != NULL ? start_once(args, &f, err)
                                      : rse_fail(err, RSE_ERROR_MEMORY, "no memory for %zu times", 2 * n);
    for (size_t i = 0; i < n && status == RSE_OK; i++) {
        status = start_once(args, &f, err);
        times[i] = f.open;
        times[n + i] = f.token;
    }
    if (status == RSE_OK) {
        qsort(times, n, sizeof *times, compare);
        qsort(times + n, n, sizeof *times, compare);
        f.open = times[n / 2];
        f.token = times[n + n / 2];
        status = report(args, &f, err);
    }
    free(times);
    return status;
}

int bench_start(int argc, char **argv) {
    start_args args = {0};
    rse_error err = {0};
    int said = bench_args_parse(&spec, argc, argv, &args, sizeof args);
    if (said != 0) {
        return said - 1;
    }
    return bench_exit(run(&args, &err), &err);
}
