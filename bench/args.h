/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options of the benchmarks. Each subcommand has one table, which drives parsing, defaults and --help alike.
 */
#ifndef RSE_BENCH_ARGS_H
#define RSE_BENCH_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BENCH_LIST_MAX = 32 };
/* Numbers, or values of words, in the order given. */
typedef struct bench_list {
    int32_t count;
    int32_t at[BENCH_LIST_MAX];
} bench_list;

typedef struct bench_word {
    const char *word; /* NULL ends an array */
    int32_t value;
} bench_word;

typedef enum bench_arg_kind {
    BENCH_ARG_FLAG,    /* bool */
    BENCH_ARG_WHOLE,   /* int64_t */
    BENCH_ARG_REAL,    /* double */
    BENCH_ARG_TEXT,    /* const char * */
    BENCH_ARG_CHOICE,  /* int32_t */
    BENCH_ARG_NUMBERS, /* bench_list */
    BENCH_ARG_WORDS    /* bench_list */
} bench_arg_kind;

typedef struct bench_arg {
    const char *name; /* without the dashes; NULL ends a table */
    bench_arg_kind kind;
    size_t at;            /* offset in the subcommand's struct */
    const char *value;    /* what --help calls its value; NULL for flags */
    const char *fallback; /* the default, as one would type it; NULL: zero */
    double low, high;     /* of numbers, inclusive */
    const bench_word *words;
    const char *help; /* lines after the first are indented by --help */
} bench_arg;

typedef struct bench_args {
    const char *name;  /* "kernel" */
    const char *usage; /* what follows the options, "DIR", or "" */
    const char *about;
    const bench_arg *tables[2]; /* the subcommand's own, and one it shares or NULL */
    size_t operand; /* offset of the const char * that takes the one operand; used if usage is not empty */
} bench_args;

/* 0: parsed into *out (all of whose fields the table sets, or which are zeroed before). Otherwise all was said
 * and the result is the exit code plus 1. argv[0] is the subcommand. */
int bench_args_parse(const bench_args *spec, int argc, char **argv, void *out, size_t size);

#endif
