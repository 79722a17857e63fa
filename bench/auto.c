/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `bench auto`: what the table behind RSSM_METHOD_AUTO is made from. For each shape and batch it times, in
 * turns, replay with a window of 1 (which folds every token at once: conventional traffic) and with a window of
 * L.
 */
#include "commands.h"
#include "kernel.h"
#include "machine.h"

#include <stdio.h>

typedef struct auto_args {
    bench_common common;
    bench_list batches, tokens, formats;
    int64_t window, accept;
    bool warm;
} auto_args;

#define AT(field) offsetof(auto_args, field)
static const bench_arg table[] = {
    {"batch", BENCH_ARG_NUMBERS, AT(batches), "LIST", "1,2,4,8,16,32,64", 1, 4096, NULL, "sequences of a step"},
    {"tokens", BENCH_ARG_NUMBERS, AT(tokens), "LIST", "1,2,4", 1, RSSM_STEP_TOKENS_MAX, NULL,
     "tokens of a step"},
    {"accept", BENCH_ARG_WHOLE, AT(accept), "N", "0", 0, RSSM_STEP_TOKENS_MAX, NULL,
     "tokens kept of each step; 0: uniform over 1..T"},
    {"io", BENCH_ARG_WORDS, AT(formats), "f32,bf16", "f32,bf16", 0, 0, bench_formats,
     "formats of inputs and records"},
    {"window", BENCH_ARG_WHOLE, AT(window), "L", "16", 2, RSSM_WINDOW_MAX, NULL, "the long window"},
    {"warm", BENCH_ARG_FLAG, AT(warm), NULL, NULL, 0, 0, NULL,
     "the same states each step, not a rotating pool"},
    {0},
};

static const bench_args spec = {
    .name = "auto",
    .usage = "",
    .about =
        "Times replay with a window of 1 against a long window, and says from which batch on the long one\n"
        "is faster: the measured table of the method auto.",
    .tables = {table, bench_common_table},
};

typedef struct auto_run {
    auto_args args;
    bench_env env;
} auto_run;

/* Seconds of a step with either window, and the median ratio short / long. */
typedef struct auto_row {
    double seconds[2], gain;
} auto_row;

typedef struct auto_stand {
    bench_inputs inputs;
    bench_rig rigs[2]; /* window 1, window L */
    bench_rig_probe probes[2];
} auto_stand;

static rse_status measure(bench_env *env, const bench_problem *p, auto_stand *stand, auto_row *row,
                          rse_error *err) {
    bench_rig_options options = {RSSM_METHOD_REPLAY, bench_rig_groups(p, env->pool_bytes), 0, false};
    bench_arena *arenas[2] = {&env->conventional, &env->replay};
    RSE_TRY(bench_inputs_create(p->shape, p->io, (int64_t)p->batch * p->tokens, 2, 1, &stand->inputs, err));
    for (int i = 0; i < 2; i++) {
        bench_problem problem = *p;
        problem.window = i == 0 ? 1 : p->window;
        RSE_TRY(bench_rig_create(env->context, &stand->inputs, &problem, &options, env->threads, arenas[i],
                                 &stand->rigs[i], err));
        RSE_TRY(bench_rig_settle(&stand->rigs[i], err));
        stand->probes[i] = (bench_rig_probe){&stand->rigs[i], bench_rig_decode, 1};
    }
    RSE_TRY(bench_rig_calibrate(&stand->probes[1], err));
    stand->probes[0].steps = stand->probes[1].steps;
    env->series->count = 0;
    for (int i = 0; i < 2; i++) {
        bench_series_add(env->series, bench_sample_rig, &stand->probes[i]);
    }
    RSE_TRY(bench_env_run(env, err));
    for (int i = 0; i < 2; i++) {
        row->seconds[i] = bench_series_quantiles(env->series, i).p50;
    }
    row->gain = bench_series_median_ratio(env->series, 0, 1);
    return RSE_OK;
}

static rse_status run_row(auto_run *run, const bench_problem *p, auto_row *row, rse_error *err) {
    auto_stand stand = {0};
    rse_status status = bench_verify_decode(&run->env, p, err);
    status = status == RSE_OK ? measure(&run->env, p, &stand, row, err) : status;
    bench_rig_destroy(&stand.rigs[0]);
    bench_rig_destroy(&stand.rigs[1]);
    bench_inputs_destroy(&stand.inputs);
    if (status != RSE_OK) {
        return status;
    }
    printf("%-20s %-7s %-5s %5d %3d %10.1f %10.1f %8.3f\n", p->shape->name, bench_kind_name(p->shape->kind),
           rssm_dtype_name(p->io), (int)p->batch, (int)p->tokens, 1e6 * row->seconds[0], 1e6 * row->seconds[1],
           row->gain);
    fflush(stdout);
    if (run->env.json != NULL) {
        fprintf(run->env.json, "{\"operation\": \"auto\", \"shape\": \"%s\", \"kind\": \"%s\", \"io\": \"%s\"",
                p->shape->name, bench_kind_name(p->shape->kind), rssm_dtype_name(p->io));
        fprintf(run->env.json, ", \"batch\": %d, \"tokens\": %d, \"window\": %d, \"warm\": %s", (int)p->batch,
                (int)p->tokens, (int)p->window, p->warm ? "true" : "false");
        fprintf(run->env.json, ", \"us_window_1\": %.4g, \"us_window\": %.4g, \"gain\": %.4g, ",
                1e6 * row->seconds[0], 1e6 * row->seconds[1], row->gain);
        bench_json_machine(run->env.json, run->env.threads);
        fprintf(run->env.json, "}\n");
        fflush(run->env.json);
    }
    return RSE_OK;
}

/* Every batch of one shape, format and T, and where the long window begins to win for good. */
static rse_status run_batches(auto_run *run, bench_problem p, rse_error *err) {
    int32_t crossover = -1;
    for (int32_t b = 0; b < run->args.batches.count; b++) {
        auto_row row;
        p.batch = run->args.batches.at[b];
        RSE_TRY(run_row(run, &p, &row, err));
        if (row.gain <= 1) {
            crossover = -1;
        } else if (crossover < 0) {
            crossover = p.batch;
        }
    }
    printf("%s, %s, T = %d: ", p.shape->name, rssm_dtype_name(p.io), (int)p.tokens);
    if (crossover < 0) {
        printf("a window of 1 is faster at the largest batch\n");
    } else {
        printf("a window of %d is faster from batch %d on\n", (int)p.window, (int)crossover);
    }
    return RSE_OK;
}

static rse_status run_shape(auto_run *run, const bench_shape *shape, rse_error *err) {
    const auto_args *args = &run->args;
    for (int32_t f = 0; f < args->formats.count; f++) {
        for (int32_t t = 0; t < args->tokens.count; t++) {
            int32_t tokens = args->tokens.at[t];
            bench_problem p = {.shape = shape,
                               .io = args->formats.at[f],
                               .tokens = tokens,
                               .window = (int32_t)args->window,
                               .accept = args->accept < tokens ? (int32_t)args->accept : tokens,
                               .warm = args->warm};
            RSE_TRY(run_batches(run, p, err));
        }
    }
    return RSE_OK;
}

static rse_status run_all(auto_run *run, rse_error *err) {
    const auto_args *args = &run->args;
    RSE_TRY(bench_env_open(&args->common, &run->env, err));
    bench_print_machine(stdout, run->env.threads);
    printf("%-20s %-7s %-5s %5s %3s %10s %10s %8s\n", "shape", "kind", "io", "batch", "T", "us, L = 1", "us, L",
           "gain");
    for (size_t i = 0; i < bench_shape_count; i++) {
        if (bench_env_wants(&run->env, bench_shapes[i].name)) {
            RSE_TRY(run_shape(run, &bench_shapes[i], err));
        }
    }
    return RSE_OK;
}

int bench_auto(int argc, char **argv) {
    auto_run run = {0};
    rse_error err = {0};
    int said = bench_args_parse(&spec, argc, argv, &run.args, sizeof run.args);
    if (said != 0) {
        return said - 1;
    }
    return bench_exit(bench_env_close(&run.env, run_all(&run, &err), &err), &err);
}
