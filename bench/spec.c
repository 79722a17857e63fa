/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `bench spec`: what drafting costs. For each shape and number of tokens T it times, in turns, one conventional
 * step, a replay step that verifies T tokens, and what keeping a state per draft costs at least: T conventional
 * steps on the same sequences, without the copies. Beside the times stand the bytes of state, buffers and
 * convolution that a sequence needs either way. With --model, whole runs: tokens per second with and without
 * drafts, over the batch.
 */
#include "spec.h"
#include "kernel.h"
#include "machine.h"

#include <stdio.h>

static const bench_word methods[] = {
    {"auto", RSSM_METHOD_AUTO}, {"replay", RSSM_METHOD_REPLAY}, {"snapshot", RSE_METHOD_SNAPSHOT}, {NULL, 0}};

#define AT(field) offsetof(spec_args, field)
static const bench_arg table[] = {
    {"batch", BENCH_ARG_NUMBERS, AT(batches), "LIST", "16", 1, 4096, NULL, "sequences of a step"},
    {"tokens", BENCH_ARG_NUMBERS, AT(tokens), "LIST", "1,2,4,8", 1, RSSM_STEP_TOKENS_MAX, NULL,
     "tokens of a step: the certain one and the drafts"},
    {"accept", BENCH_ARG_WHOLE, AT(accept), "N", "0", 0, RSSM_STEP_TOKENS_MAX, NULL,
     "tokens kept of each step; 0: uniform over 1..T"},
    {"io", BENCH_ARG_WORDS, AT(formats), "f32,bf16", "bf16", 0, 0, bench_formats,
     "formats of inputs and records"},
    {"window", BENCH_ARG_WHOLE, AT(window), "L", "16", 1, RSSM_WINDOW_MAX, NULL, "tokens from flush to flush"},
    {"model", BENCH_ARG_TEXT, AT(model), "DIR", NULL, 0, 0, NULL,
     "run this model too, instead of layers alone"},
    {"method", BENCH_ARG_CHOICE, AT(method), "auto|replay|snapshot", "auto", 0, 0, methods,
     "how state is kept, with --model"},
    {"draft", BENCH_ARG_WHOLE, AT(drafts), "D", "3", 1, RSSM_STEP_TOKENS_MAX - 1, NULL,
     "drafts of a round, with --model"},
    {"count", BENCH_ARG_WHOLE, AT(count), "N", "128", 2, 1 << 20, NULL,
     "tokens of each sequence, with --model"},
    {"temp", BENCH_ARG_REAL, AT(temperature), "T", "0", 0, 100, NULL, "temperature, with --model"},
    {0},
};

static const bench_args spec = {
    .name = "spec",
    .usage = "",
    .about =
        "Times verifying T tokens against one conventional step and against T of them, which is the least that "
        "a\n"
        "state per draft costs, and counts the memory of either; with --model, runs with and without drafts.",
    .tables = {table, bench_common_table},
};

/* ---- Memory ------------------------------------------------------------------------------------------- */

/* Bytes of a slot of one layer with a convolution of width 4. */
static rse_status slot_bytes(const bench_env *env, const bench_problem *p, int32_t method, int64_t *bytes,
                             rse_error *err) {
    rssm_layer_spec layer = {.struct_size = sizeof layer,
                             .kind = p->shape->kind,
                             .key_heads = p->shape->key_heads,
                             .value_heads = p->shape->value_heads,
                             .d_k = p->shape->d_k,
                             .d_v = p->shape->d_v,
                             .conv_width = 4};
    bool replay = method == RSSM_METHOD_REPLAY;
    rssm_cache_desc desc = {.struct_size = sizeof desc,
                            .spec = &layer,
                            .layers = 1,
                            .slots = 1,
                            .window = replay ? p->window : 1,
                            .step_tokens = replay ? p->tokens : 1,
                            .method = method,
                            .io_dtype = p->io,
                            .record_gate = replay && p->shape->kind == RSSM_KDA ? RSSM_RECORD_RAW_GATE : 0};
    rssm_cache *cache;
    RSE_TRY(bench_library(env->context, rssm_cache_create(env->context, &desc, &cache), err));
    *bytes = 0;
    for (int32_t part = 0; part < RSSM_PARTS;
         part++) { /* the conventional state is checkpoint and convolution alone */
        rssm_part_info info = {0};
        (void)!rssm_cache_layout(cache, part, &info);
        bool needed = replay || part == RSSM_PART_CHECKPOINT;
        int64_t rows = info.rank > 0 && part == RSSM_PART_CONV && !replay ? info.bytes / info.shape[0] * 3 : 0;
        *bytes += needed && info.rank > 0 ? info.bytes : rows;
    }
    rssm_cache_destroy(cache);
    return RSE_OK;
}

/* ---- Time --------------------------------------------------------------------------------------------- */

typedef struct stand {
    bench_inputs inputs;
    bench_rig replay, plain, repeated;
    bench_arena arena; /* of the third rig */
    bench_rig_probe probes[3];
} stand;

/* `steps` times T conventional steps on one group after another: the state comes back from where the last one
 * left it. */
static rse_status repeat_decode(bench_rig *rig, int32_t steps, double *seconds, rse_error *err) {
    *seconds = 0;
    for (int32_t i = 0; i < steps; i++) {
        int32_t group = rig->group;
        for (int32_t t = 0; t < rig->problem.tokens; t++) {
            rig->group = group;
            RSE_TRY(bench_rig_step(rig, 1, NULL, seconds, err));
        }
    }
    return RSE_OK;
}

static rse_status make_rig(bench_env *env, stand *s, const bench_problem *p, int32_t method, bench_arena *arena,
                           bench_rig *rig, rse_error *err) {
    bench_problem problem = *p;
    bench_rig_options options = {method, bench_rig_groups(p, env->pool_bytes), 0, false};
    problem.window = method == RSSM_METHOD_CONVENTIONAL ? 1 : p->window;
    RSE_TRY(bench_rig_create(env->context, &s->inputs, &problem, &options, env->threads, arena, rig, err));
    return bench_rig_settle(rig, err);
}

static rse_status measure(bench_env *env, const bench_problem *p, stand *s, spec_row *row, rse_error *err) {
    RSE_TRY(bench_inputs_create(p->shape, p->io, (int64_t)p->batch * p->tokens, 2, 1, &s->inputs, err));
    RSE_TRY(make_rig(env, s, p, RSSM_METHOD_CONVENTIONAL, &env->conventional, &s->plain, err));
    RSE_TRY(make_rig(env, s, p, RSSM_METHOD_REPLAY, &env->replay, &s->replay, err));
    RSE_TRY(make_rig(env, s, p, RSSM_METHOD_CONVENTIONAL, &s->arena, &s->repeated, err));
    s->probes[0] = (bench_rig_probe){&s->plain, bench_rig_decode, 1};
    s->probes[1] = (bench_rig_probe){&s->replay, bench_rig_decode, 1};
    s->probes[2] = (bench_rig_probe){&s->repeated, repeat_decode, 1};
    env->series->count = 0;
    for (int i = 0; i < 3; i++) {
        RSE_TRY(bench_rig_calibrate(&s->probes[i], err));
        bench_series_add(env->series, bench_sample_rig, &s->probes[i]);
    }
    RSE_TRY(bench_env_run(env, err));
    for (int i = 0; i < 3; i++) {
        row->seconds[i] = bench_series_quantiles(env->series, i).p50;
    }
    row->cost = bench_series_median_ratio(env->series, 1, 0);
    row->snapshot = bench_series_median_ratio(env->series, 2, 0);
    return RSE_OK;
}

static void print_row(const bench_env *env, const bench_problem *p, const spec_row *row) {
    printf("%-20s %-7s %-5s %5d %3d %10.1f %10.1f %7.2f %9.2f %10lld %7.2f %9.2f\n", p->shape->name,
           bench_kind_name(p->shape->kind), rssm_dtype_name(p->io), (int)p->batch, (int)p->tokens,
           1e6 * row->seconds[0], 1e6 * row->seconds[1], row->cost, row->snapshot, (long long)row->bytes,
           row->memory, (double)p->tokens);
    fflush(stdout);
    if (env->json != NULL) {
        fprintf(env->json,
                "{\"id\": \"spec_%s_%s_B%d_T%d\", \"operation\": \"spec\", \"shape\": \"%s\", \"kind\": \"%s\"",
                p->shape->name, rssm_dtype_name(p->io), (int)p->batch, (int)p->tokens, p->shape->name,
                bench_kind_name(p->shape->kind));
        fprintf(env->json, ", \"io\": \"%s\", \"batch\": %d, \"tokens\": %d, \"window\": %d",
                rssm_dtype_name(p->io), (int)p->batch, (int)p->tokens, (int)p->window);
        fprintf(env->json,
                ", \"us_conventional\": %.4g, \"us_step\": %.4g, \"cost\": %.4g, \"cost_snapshot\": %.4g",
                1e6 * row->seconds[0], 1e6 * row->seconds[1], row->cost, row->snapshot);
        fprintf(env->json, ", \"bytes\": %lld, \"memory\": %.4g, ", (long long)row->bytes, row->memory);
        bench_json_machine(env->json, env->threads);
        fprintf(env->json, "}\n");
        fflush(env->json);
    }
}

static rse_status run_row(bench_env *env, const bench_problem *p, rse_error *err) {
    stand s = {0};
    spec_row row = {0};
    int64_t conventional = 0;
    RSE_TRY(slot_bytes(env, p, RSSM_METHOD_REPLAY, &row.bytes, err));
    RSE_TRY(slot_bytes(env, p, RSSM_METHOD_CONVENTIONAL, &conventional, err));
    row.memory = (double)row.bytes / (double)conventional;
    rse_status status = bench_verify_decode(env, p, err);
    status = status == RSE_OK ? measure(env, p, &s, &row, err) : status;
    bench_rig_destroy(&s.replay);
    bench_rig_destroy(&s.plain);
    bench_rig_destroy(&s.repeated);
    bench_arena_free(&s.arena);
    bench_inputs_destroy(&s.inputs);
    if (status == RSE_OK) {
        print_row(env, p, &row);
    }
    return status;
}

static rse_status run_shape(spec_run *run, const bench_shape *shape, rse_error *err) {
    const spec_args *args = &run->args;
    for (int32_t f = 0; f < args->formats.count; f++) {
        for (int32_t b = 0; b < args->batches.count; b++) {
            for (int32_t t = 0; t < args->tokens.count; t++) {
                int32_t tokens = args->tokens.at[t];
                bench_problem p = {.shape = shape,
                                   .io = args->formats.at[f],
                                   .batch = args->batches.at[b],
                                   .tokens = tokens,
                                   .window = (int32_t)args->window,
                                   .accept = args->accept < tokens ? (int32_t)args->accept : tokens};
                RSE_TRY(run_row(&run->env, &p, err));
            }
        }
    }
    return RSE_OK;
}

static rse_status run_all(spec_run *run, rse_error *err) {
    RSE_TRY(bench_env_open(&run->args.common, &run->env, err));
    bench_print_machine(stdout, run->env.threads);
    if (run->args.model != NULL) {
        return bench_spec_model(run, err);
    }
    printf("%-20s %-7s %-5s %5s %3s %10s %10s %7s %9s %10s %7s %9s\n", "shape", "kind", "io", "batch", "T",
           "us, conv.", "us, T", "cost", "snapshot", "bytes", "memory", "snapshot");
    for (size_t i = 0; i < bench_shape_count; i++) {
        if (bench_env_wants(&run->env, bench_shapes[i].name)) {
            RSE_TRY(run_shape(run, &bench_shapes[i], err));
        }
    }
    return RSE_OK;
}

int bench_spec(int argc, char **argv) {
    spec_run run = {0};
    rse_error err = {0};
    int said = bench_args_parse(&spec, argc, argv, &run.args, sizeof run.args);
    if (said != 0) {
        return said - 1;
    }
    return bench_exit(bench_env_close(&run.env, run_all(&run, &err), &err), &err);
}
