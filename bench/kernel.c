/* SPDX-License-Identifier: Apache-2.0 */
/* `bench kernel`: options, and the rows in order. */
#include "kernel.h"
#include "commands.h"
#include "machine.h"

#include "base/file.h"

#include <stdlib.h>
#include <string.h>

static const bench_word operations[] = {{"decode", BENCH_DECODE},
                                        {"conventional", BENCH_CONVENTIONAL},
                                        {"flush", BENCH_FLUSH},
                                        {"prefill", BENCH_PREFILL},
                                        {NULL, 0}};
static const bench_word temperatures[] = {{"cold", 0}, {"warm", 1}, {NULL, 0}};

/* A prompt is work enough for all threads; more sequences only make the run longer. */
enum { PREFILL_BATCH_MAX = 4, RESUME_BYTES_MAX = 1 << 28 };

typedef struct kernel_args {
    bench_common common;
    bench_list operations, batches, tokens, prompts, formats, temperatures;
    int64_t window, accept;
    int32_t checkpoint, rounding, copy;
    double seconds;
    const char *resume;
    bool quick, list;
} kernel_args;

#define AT(field) offsetof(kernel_args, field)
static const bench_arg table[] = {
    {"ops", BENCH_ARG_WORDS, AT(operations), "decode,conventional,flush,prefill",
     "decode,conventional,flush,prefill", 0, 0, operations, "what to measure"},
    {"batch", BENCH_ARG_NUMBERS, AT(batches), "LIST", "1,4,16,32,64", 1, 4096, NULL, "sequences of a step"},
    {"tokens", BENCH_ARG_NUMBERS, AT(tokens), "LIST", "1,2,4,8", 1, RSSM_STEP_TOKENS_MAX, NULL,
     "tokens of a sequence in a step: a certain one and drafts"},
    {"accept", BENCH_ARG_WHOLE, AT(accept), "N", "0", 0, RSSM_STEP_TOKENS_MAX, NULL,
     "tokens kept of each step; 0: uniform over 1..T"},
    {"io", BENCH_ARG_WORDS, AT(formats), "f32,bf16", "f32,bf16", 0, 0, bench_formats,
     "formats of inputs and records"},
    {"checkpoint", BENCH_ARG_CHOICE, AT(checkpoint), "f32,f16,bf16,f8", "f32", 0, 0, bench_checkpoints,
     "format of replay's checkpoint; the conventional state is f32"},
    {"rounding", BENCH_ARG_CHOICE, AT(rounding), "nearest,stochastic", "nearest", 0, 0, bench_roundings,
     "of a checkpoint narrower than f32"},
    {"read-copy", BENCH_ARG_CHOICE, AT(copy), "none,f16,bf16,f8,int8,nvfp4", "none", 0, 0, bench_copies,
     "format of the copy that outputs are read from"},
    {"caches", BENCH_ARG_WORDS, AT(temperatures), "cold,warm", "cold,warm", 0, 0, temperatures,
     "cold: states rotate through a pool; warm: the same states each step"},
    {"window", BENCH_ARG_WHOLE, AT(window), "L", "16", 1, RSSM_WINDOW_MAX, NULL, "tokens from flush to flush"},
    {"prompt", BENCH_ARG_NUMBERS, AT(prompts), "LIST", "512", 1, 8192, NULL,
     "tokens of a sequence in a prefill, which is measured cold and up to batch 4"},
    {"seconds", BENCH_ARG_REAL, AT(seconds), "N", "0", 0, 1e6, NULL,
     "start no row after this time; 0: no limit"},
    {"resume", BENCH_ARG_TEXT, AT(resume), "FILE", NULL, 0, 0, NULL, "leave out rows that are in FILE"},
    {"quick", BENCH_ARG_FLAG, AT(quick), NULL, NULL, 0, 0, NULL,
     "batches 1 and 16, tokens 1 and 4, f32, cold, one shape of each kind"},
    {"list", BENCH_ARG_FLAG, AT(list), NULL, NULL, 0, 0, NULL, "print the names of the rows, measure nothing"},
    {0},
};

static const bench_args spec = {
    .name = "kernel",
    .usage = "",
    .about =
        "Times one recurrent layer of known models. Every row is checked before it is timed. Samples of the\n"
        "kernel, of the conventional one and of plain sweeps over as much memory (read; update in place;\n"
        "copy) are taken in turns; figures are medians. Columns:\n"
        "\n"
        "  us/step, us/seq  a call for the whole batch; the same per sequence\n"
        "  MB/step, GB/s    bytes that the method must move, by formula; over the time\n"
        "  floor            share of the speed that the sweeps allow: (1-f) r + f u for states of S bytes,\n"
        "                   r and u the seconds of reading and of updating S, f the share of rows that\n"
        "                   write a checkpoint (narrow states: all by their bytes); what else is read costs\n"
        "                   r/S a byte, what else is written u/2S\n"
        "  copy             the same bytes at the speed of the copy, over the time\n"
        "  ratio            time of the conventional kernel over this one's, per kept token\n"
        "  allow, bytes     ceiling of that ratio: by the two floors; by bytes",
    .tables = {table, bench_common_table},
};

const char *bench_operation_name(int32_t operation) {
    return operations[operation].word;
}

/* ---- Rows --------------------------------------------------------------------------------------------- */

/* The library's name of the decode kernel, with the operation's in place of "decode". */
void bench_row_name(const bench_env *env, const bench_problem *p, int32_t operation, char *id, size_t size) {
    const uint64_t set = rssm_context_isa(env->context);
    const char *isa = (set & RSSM_ISA_AVX512) != 0 ? "avx512" : (set & RSSM_ISA_AVX2) != 0 ? "avx2"
                      : (set & RSSM_ISA_NEON) != 0 ? "neon" : "scalar";
    const bool plain = operation == BENCH_CONVENTIONAL, copy = !plain && p->copy != RSSM_DTYPE_DEFAULT;
    int n = snprintf(id, size, "%s_%s_%s_%s%s%s_%s/%s/B%d/T%d", bench_kind_name(p->shape->kind),
                     bench_operation_name(operation), isa, rssm_dtype_name(plain || p->checkpoint == RSSM_DTYPE_DEFAULT ? RSSM_DTYPE_F32 : p->checkpoint),
                     copy ? "_" : "", copy ? rssm_dtype_name(p->copy) : "", rssm_dtype_name(p->io), p->shape->name,
                     (int)p->batch, (int)p->tokens);
    if (operation == BENCH_DECODE || operation == BENCH_FLUSH) {
        n += snprintf(id + n, size - (size_t)n, "/L%d", (int)p->window);
    }
    snprintf(id + n, size - (size_t)n, "/%s", p->warm ? "warm" : "cold");
}

typedef struct kernel_run {
    kernel_args args;
    bench_env env;
    char *done; /* the text of --resume's file */
    double end;
    bool out_of_time;
} kernel_run;

static bool has(const bench_list *list, int32_t value) {
    for (int32_t i = 0; i < list->count; i++) {
        if (list->at[i] == value) {
            return true;
        }
    }
    return false;
}

static bool wanted(const kernel_run *run, const bench_problem *p, int32_t operation) {
    char id[192], key[224];
    if (!has(&run->args.operations, operation)) {
        return false;
    }
    bench_row_name(&run->env, p, operation, id, sizeof id);
    snprintf(key, sizeof key, "\"id\": \"%s\"", id);
    return bench_env_wants(&run->env, id) && (run->done == NULL || strstr(run->done, key) == NULL);
}

static void emit(kernel_run *run, const bench_row *row) {
    bench_table_row(stdout, row);
    fflush(stdout);
    if (run->env.json != NULL) {
        bench_json_row(run->env.json, &run->env, row);
    }
}

static bool list_row(const kernel_run *run, const bench_problem *p, int32_t operation) {
    char id[192];
    if (run->args.list) {
        bench_row_name(&run->env, p, operation, id, sizeof id);
        puts(id);
    }
    return run->args.list;
}

/* Decode and, for one token, the conventional row that is measured beside it anyway. */
static rse_status run_decode(kernel_run *run, const bench_problem *p, rse_error *err) {
    bool decode = wanted(run, p, BENCH_DECODE);
    bool conventional = p->tokens == 1 && wanted(run, p, BENCH_CONVENTIONAL);
    if (run->args.list) {
        (void)(decode && list_row(run, p, BENCH_DECODE));
        (void)(conventional && list_row(run, p, BENCH_CONVENTIONAL));
    } else if (decode || conventional) {
        bench_row rows[2];
        RSE_TRY(bench_verify_decode(&run->env, p, err));
        RSE_TRY(bench_measure_decode(&run->env, p, rows, err));
        if (decode) {
            emit(run, &rows[0]);
        }
        if (conventional) {
            emit(run, &rows[1]);
        }
    }
    return RSE_OK;
}

static rse_status run_flush(kernel_run *run, const bench_problem *p, rse_error *err) {
    if (!wanted(run, p, BENCH_FLUSH) || list_row(run, p, BENCH_FLUSH)) {
        return RSE_OK;
    }
    bench_row row;
    RSE_TRY(bench_verify_decode(&run->env, p, err));
    RSE_TRY(bench_measure_flush(&run->env, p, &row, err));
    emit(run, &row);
    return RSE_OK;
}

static rse_status run_prefill(kernel_run *run, const bench_problem *p, rse_error *err) {
    if (!wanted(run, p, BENCH_PREFILL) || list_row(run, p, BENCH_PREFILL)) {
        return RSE_OK;
    }
    bench_row row;
    RSE_TRY(bench_verify_prefill(&run->env, p, err));
    RSE_TRY(bench_measure_prefill(&run->env, p, &row, err));
    emit(run, &row);
    return RSE_OK;
}

static rse_status run_batch(kernel_run *run, bench_problem p, rse_error *err) {
    for (int32_t t = 0; t < run->args.tokens.count; t++) {
        p.tokens = run->args.tokens.at[t];
        p.accept = (int32_t)run->args.accept < p.tokens ? (int32_t)run->args.accept : p.tokens;
        run->out_of_time = run->out_of_time || bench_now() > run->end;
        if (run->out_of_time) {
            return RSE_OK;
        }
        RSE_TRY(run_decode(run, &p, err));
        RSE_TRY(run_flush(run, &p, err));
    }
    for (int32_t t = 0;
         t < run->args.prompts.count && !run->out_of_time && p.batch <= PREFILL_BATCH_MAX && !p.warm; t++) {
        p.tokens = run->args.prompts.at[t];
        RSE_TRY(run_prefill(run, &p, err));
    }
    return RSE_OK;
}

static rse_status run_shape(kernel_run *run, const bench_shape *shape, rse_error *err) {
    const kernel_args *args = &run->args;
    bench_problem p = {.shape = shape,
                       .window = (int32_t)args->window,
                       .checkpoint = args->checkpoint,
                       .rounding = args->rounding,
                       .copy = args->copy};
    for (int32_t i = 0; i < args->formats.count; i++) {
        p.io = args->formats.at[i];
        for (int32_t t = 0; t < args->temperatures.count; t++) {
            p.warm = args->temperatures.at[t] != 0;
            for (int32_t b = 0; b < args->batches.count; b++) {
                p.batch = args->batches.at[b];
                RSE_TRY(run_batch(run, p, err));
            }
        }
    }
    return RSE_OK;
}

/* ---- The run ------------------------------------------------------------------------------------------ */

static void make_quick(kernel_args *args) {
    args->batches = (bench_list){2, {1, 16}};
    args->tokens = (bench_list){2, {1, 4}};
    args->formats = (bench_list){1, {RSSM_DTYPE_F32}};
    args->temperatures = (bench_list){1, {0}};
}

static rse_status run_all(kernel_run *run, rse_error *err) {
    const kernel_args *args = &run->args;
    size_t size;
    RSE_TRY(bench_env_open(&args->common, &run->env, err));
    if (args->resume != NULL && rse_file_exists(args->resume)) {
        RSE_TRY(rse_file_read(args->resume, RESUME_BYTES_MAX, &run->done, &size, err));
    }
    run->end = args->seconds > 0 ? bench_now() + args->seconds : 1e300;
    if (!args->list) {
        bench_print_machine(stdout, run->env.threads);
        bench_table_head(stdout);
    }
    int32_t kind = 0;
    for (size_t i = 0; i < bench_shape_count; i++) {
        if (!args->quick || bench_shapes[i].kind != kind) {
            RSE_TRY(run_shape(run, &bench_shapes[i], err));
        }
        kind = bench_shapes[i].kind;
    }
    return RSE_OK;
}

int bench_kernel(int argc, char **argv) {
    kernel_run run = {0};
    rse_error err = {0};
    int said = bench_args_parse(&spec, argc, argv, &run.args, sizeof run.args);
    if (said != 0) {
        return said - 1;
    }
    if (run.args.quick) {
        make_quick(&run.args);
    }
    rse_status status = bench_env_close(&run.env, run_all(&run, &err), &err);
    free(run.done);
    if (status == RSE_OK && run.out_of_time) {
        printf("The time given by --seconds is over; --resume leaves out what was measured.\n");
    }
    return bench_exit(status, &err);
}
