/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `bench serve`: what the scheduler and the prefix cache are for. Time to the first token of a follow-up turn on a long
 * history, beside that of a prompt of as many new tokens without one; and tokens per second of many sequences beside
 * those of one. Both are taken in turns.
 */
#include "base/buffer.h"
#include "commands.h"
#include "env.h"
#include "machine.h"
#include "random.h"
#include "sched/sched.h"

#include <stdlib.h>
#include <string.h>

typedef struct serve_args {
    bench_common common;
    const char *model;
    int64_t history, turn, count, turns, prefix_mib;
    bench_list batches, formats;
    int32_t method;
} serve_args;

static const bench_word methods[] = {
    {"auto", RSSM_METHOD_AUTO}, {"replay", RSSM_METHOD_REPLAY}, {"conventional", RSSM_METHOD_CONVENTIONAL}, {NULL, 0}};

#define AT(field) offsetof(serve_args, field)
static const bench_arg table[] = {
    {"history", BENCH_ARG_WHOLE, AT(history), "N", "4096", 32, 1 << 20, NULL, "tokens that the follow-up turn goes on from"},
    {"turn", BENCH_ARG_WHOLE, AT(turn), "N", "64", 2, 1 << 16, NULL, "tokens of a turn, and of the prompt beside it"},
    {"batch", BENCH_ARG_NUMBERS, AT(batches), "LIST", "1,32", 1, 4096, NULL, "sequences that decode together"},
    {"count", BENCH_ARG_WHOLE, AT(count), "N", "32", 1, 1 << 16, NULL, "tokens that each of them generates"},
    {"turns", BENCH_ARG_WHOLE, AT(turns), "N", "5", 1, 100, NULL, "times that everything is measured"},
    {"prefix-cache", BENCH_ARG_WHOLE, AT(prefix_mib), "MIB", "1024", 1, 1 << 24, NULL, "budget of the prefix cache"},
    {"method", BENCH_ARG_CHOICE, AT(method), "auto|replay|conventional", "auto", 0, 0, methods, "how state is kept"},
    {"io", BENCH_ARG_WORDS, AT(formats), "f32|bf16", "bf16", 0, 0, bench_formats, "number format; the first counts"},
    {0},
};

static const bench_args spec = {
    .name = "serve",
    .usage = "DIR",
    .about = "Runs the model in DIR through the scheduler: time to the first token of a follow-up turn on a long\n"
             "history, with the prefix cache, against a cold prompt of as many new tokens; and tokens per second of\n"
             "many sequences against those of the first number of --batch.",
    .tables = {table, bench_common_table},
    .operand = AT(model),
};

typedef struct serve_run {
    serve_args args;
    bench_env env;
    rse_engine *engine;
    rse_sched *sched;
    rse_engine_info info;
    uint64_t random;
    rse_ids history;
} serve_run;

static rse_status random_tokens(serve_run *run, int64_t count, rse_ids *ids, rse_error *err) {
    for (int64_t i = 0; i < count; i++) {
        int32_t id = (int32_t)bench_uniform(&run->random, 0.0f, (float)run->info.vocab - 1.0f);
        RSE_TRY(rse_ids_append(ids, id, err));
    }
    return RSE_OK;
}

static rse_status open_engine(serve_run *run, int32_t sessions, int64_t prefix_bytes, rse_error *err) {
    rse_engine_options options = {.threads = run->env.threads,
                                  .io_dtype = run->args.formats.at[0],
                                  .method = run->args.method,
                                  .sessions = sessions,
                                  .prefix_bytes = prefix_bytes,
                                  .isa_mask = run->env.isa_mask};
    RSE_TRY(rse_engine_open(run->args.model, &options, &run->engine, err));
    rse_engine_describe(run->engine, &run->info);
    return rse_sched_create(run->engine, &run->sched, err);
}

static void close_engine(serve_run *run) {
    rse_sched_destroy(run->sched);
    rse_engine_close(run->engine);
    run->sched = NULL;
    run->engine = NULL;
}

/* Runs one request; the seconds until its first token. Its prompt and what it generated are appended to `all`. */
static rse_status first_token(serve_run *run, const rse_ids *prompt, int64_t count, double *seconds, rse_ids *all,
                              rse_error *err) {
    rse_request_desc desc = {.prompt = prompt->data,
                             .count = (int64_t)prompt->count,
                             .max_tokens = count,
                             .ignore_end = true,
                             .sampling = RSE_SAMPLING_GREEDY};
    rse_request *request;
    double start = bench_now();
    RSE_TRY(rse_sched_add(run->sched, &desc, &request, err));
    int64_t generated = 0;
    const int32_t *tokens = NULL;
    rse_status status = RSE_OK;
    for (int32_t running = 1; running > 0 && status == RSE_OK;) {
        status = rse_sched_step(run->sched, &running, err);
        bool first = generated == 0;
        tokens = rse_request_tokens(request, &generated);
        *seconds = first ? bench_now() - start : *seconds;
    }
    if (status == RSE_OK && rse_request_state(request) == RSE_FINISH_ERROR) {
        *err = *rse_request_error(request);
        status = err->status;
    }
    for (size_t i = 0; all != NULL && i < prompt->count && status == RSE_OK; i++) {
        status = rse_ids_append(all, prompt->data[i], err);
    }
    for (int64_t i = 0; all != NULL && i < generated && status == RSE_OK; i++) {
        status = rse_ids_append(all, tokens[i], err);
    }
    rse_request_free(request);
    return status;
}

/* A prompt of new tokens, after the history or alone. */
static rse_status measure_turn(serve_run *run, bool follows, double *seconds, rse_error *err) {
    rse_ids prompt = {0};
    rse_status status = RSE_OK;
    for (size_t i = 0; follows && i < run->history.count && status == RSE_OK; i++) {
        status = rse_ids_append(&prompt, run->history.data[i], err);
    }
    status = status == RSE_OK ? random_tokens(run, run->args.turn, &prompt, err) : status;
    status = status == RSE_OK ? first_token(run, &prompt, 1, seconds, NULL, err) : status;
    rse_ids_free(&prompt);
    return status;
}

static void write_json(serve_run *run, const char *name, const char *fields) {
    if (run->env.json != NULL) {
        fprintf(run->env.json, "{\"id\": \"serve_%s_%s\", \"operation\": \"serve\", \"io\": \"%s\", %s, ",
                run->info.model_type, name, rssm_dtype_name(run->info.io_dtype), fields);
        bench_json_machine(run->env.json, run->env.threads);
        fprintf(run->env.json, "}\n");
    }
}

static rse_status follow_up(serve_run *run, rse_error *err) {
    double cold[100], follow[100], read;
    int n = (int)run->args.turns;
    rse_ids prompt = {0};
    rse_status status = random_tokens(run, run->args.history - 16, &prompt, err);
    status = status == RSE_OK ? first_token(run, &prompt, 16, &read, &run->history, err) : status;
    rse_ids_free(&prompt);
    for (int i = -1; i < n && status == RSE_OK; i++) { /* the first of each is not counted */
        status = measure_turn(run, false, &cold[i < 0 ? 0 : i], err);
        status = status == RSE_OK ? measure_turn(run, true, &follow[i < 0 ? 0 : i], err) : status;
    }
    RSE_TRY(status);
    double a = bench_quantiles_of(cold, n).p50, b = bench_quantiles_of(follow, n).p50;
    rse_prefix_figures figures = rse_engine_prefixes(run->engine);
    printf("first token: %lld new tokens alone %.1f ms, after %lld tokens %.1f ms, %.2f times; the history took %.1f ms "
           "once; %lld tokens recalled\n",
           (long long)run->args.turn, 1e3 * a, (long long)run->history.count, 1e3 * b, b / a, 1e3 * read,
           (long long)figures.tokens);
    char fields[256];
    snprintf(fields, sizeof fields,
             "\"new\": %lld, \"history\": %lld, \"cold_seconds\": %.5g, \"follow_seconds\": %.5g, \"ratio\": %.4g",
             (long long)run->args.turn, (long long)run->history.count, a, b, b / a);
    write_json(run, "follow_up", fields);
    return RSE_OK;
}

/* Tokens per second of `batch` sequences, the best of the turns. */
static rse_status decode_rate(serve_run *run, int32_t batch, double *rate, rse_error *err) {
    rse_request **requests = calloc((size_t)batch, sizeof(*requests));
    rse_ids prompt = {0};
    if (requests == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for %d requests", batch);
    }
    rse_status status = random_tokens(run, 16 + batch, &prompt, err);
    rse_sched_figures before = rse_sched_count(run->sched);
    for (int32_t i = 0; i < batch && status == RSE_OK; i++) {
        rse_request_desc desc = {.id = (uint64_t)i,
                                 .prompt = prompt.data + i,
                                 .count = 16,
                                 .max_tokens = run->args.count,
                                 .ignore_end = true,
                                 .sampling = {.temperature = 1.0f, .top_p = 1.0f, .seed = (uint64_t)i}};
        status = rse_sched_add(run->sched, &desc, &requests[i], err);
    }
    for (int32_t running = 1; running > 0 && status == RSE_OK;) {
        status = rse_sched_step(run->sched, &running, err);
    }
    rse_sched_figures after = rse_sched_count(run->sched);
    double seconds = after.decode_seconds - before.decode_seconds;
    double this_rate = seconds > 0.0 ? (double)(after.decode_tokens - before.decode_tokens) / seconds : 0.0;
    *rate = this_rate > *rate ? this_rate : *rate;
    for (int32_t i = 0; i < batch; i++) {
        rse_request_free(requests[i]);
    }
    rse_ids_free(&prompt);
    free(requests);
    return status;
}

static rse_status batches(serve_run *run, rse_error *err) {
    const bench_list *list = &run->args.batches;
    double rate[BENCH_LIST_MAX] = {0};
    for (int64_t turn = 0; turn < run->args.turns; turn++) {
        for (int32_t b = 0; b < list->count; b++) {
            RSE_TRY(decode_rate(run, list->at[b], &rate[b], err));
        }
    }
    for (int32_t b = 0; b < list->count; b++) {
        char fields[160], name[32];
        printf("%5d sequences: %10.1f tokens/s, %6.2f times those of %d\n", list->at[b], rate[b], rate[b] / rate[0],
               list->at[0]);
        snprintf(name, sizeof name, "B%d", list->at[b]);
        snprintf(fields, sizeof fields, "\"batch\": %d, \"tokens_per_second\": %.5g, \"gain\": %.4g", list->at[b],
                 rate[b], rate[b] / rate[0]);
        write_json(run, name, fields);
    }
    return RSE_OK;
}

static rse_status run_all(serve_run *run, rse_error *err) {
    int32_t most = 1;
    RSE_TRY(bench_env_open(&run->args.common, &run->env, err));
    bench_print_machine(stdout, run->env.threads);
    for (int32_t b = 0; b < run->args.batches.count; b++) {
        most = run->args.batches.at[b] > most ? run->args.batches.at[b] : most;
    }
    if (bench_env_wants(&run->env, "follow_up")) {
        RSE_TRY(open_engine(run, 1, run->args.prefix_mib << 20, err));
        RSE_TRY(follow_up(run, err));
        close_engine(run);
    }
    if (bench_env_wants(&run->env, "batch")) {
        RSE_TRY(open_engine(run, most, 0, err));
        RSE_TRY(batches(run, err));
    }
    return RSE_OK;
}

int bench_serve(int argc, char **argv) {
    serve_run run = {.random = 1};
    rse_error err = {0};
    int said = bench_args_parse(&spec, argc, argv, &run.args, sizeof run.args);
    if (said != 0) {
        return said - 1;
    }
    rse_status status = run_all(&run, &err);
    close_engine(&run);
    rse_ids_free(&run.history);
    return bench_exit(bench_env_close(&run.env, status, &err), &err);
}
