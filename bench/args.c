/* SPDX-License-Identifier: Apache-2.0 */
#include "args.h"

#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ARGS = 40, FIRST_LONG = 256, HELP_COLUMN = 26, EXIT_USAGE = 2 };

static int mistake(const bench_args *spec, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int mistake(const bench_args *spec, const char *format, ...) {
    va_list args;
    fputs("replayssm: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\nSee 'replayssm bench %s --help'.\n", spec->name);
    return EXIT_USAGE + 1;
}

static int set_number(const bench_args *spec, const bench_arg *arg, const char *text, double *value) {
    char *end = NULL;
    errno = 0;
    *value = strtod(text, &end);
    bool whole = arg->kind != BENCH_ARG_REAL;
    if (end == text || *end != '\0' || errno != 0 || !(*value >= arg->low && *value <= arg->high) ||
        (whole && *value != (double)(int64_t)*value)) {
        return mistake(spec, "--%s is '%s'; it must be a %s from %.15g to %.15g", arg->name, text,
                       whole ? "whole number" : "number", arg->low, arg->high);
    }
    return 0;
}

static int set_word(const bench_args *spec, const bench_arg *arg, const char *text, int32_t *value) {
    for (const bench_word *word = arg->words; word->word != NULL; word++) {
        if (strcmp(word->word, text) == 0) {
            *value = word->value;
            return 0;
        }
    }
    return mistake(spec, "--%s has '%s'; known are %s", arg->name, text, arg->value);
}

static int set_list(const bench_args *spec, const bench_arg *arg, const char *text, bench_list *list) {
    char copy[512];
    if (strlen(text) >= sizeof copy) {
        return mistake(spec, "--%s is %zu characters long; the limit is %zu", arg->name, strlen(text),
                       sizeof copy - 1);
    }
    strcpy(copy, text);
    list->count = 0;
    for (char *rest = copy, *item; (item = strtok_r(rest, ",", &rest)) != NULL;) {
        if (list->count == BENCH_LIST_MAX) {
            return mistake(spec, "--%s has more than %d items", arg->name, BENCH_LIST_MAX);
        }
        int failed;
        if (arg->kind == BENCH_ARG_WORDS) {
            failed = set_word(spec, arg, item, &list->at[list->count]);
        } else {
            double value;
            failed = set_number(spec, arg, item, &value);
            list->at[list->count] = failed ? 0 : (int32_t)value;
        }
        if (failed) {
            return failed;
        }
        list->count++;
    }
    return list->count > 0 ? 0 : mistake(spec, "--%s is empty", arg->name);
}

static int set_arg(const bench_args *spec, const bench_arg *arg, const char *text, void *out) {
    void *at = (char *)out + arg->at;
    double number = 0;
    int failed = 0;
    switch (arg->kind) {
    case BENCH_ARG_FLAG:
        *(bool *)at = true;
        break;
    case BENCH_ARG_TEXT:
        *(const char **)at = text;
        break;
    case BENCH_ARG_WHOLE:
        failed = set_number(spec, arg, text, &number);
        *(int64_t *)at = (int64_t)number;
        break;
    case BENCH_ARG_REAL:
        failed = set_number(spec, arg, text, &number);
        *(double *)at = number;
        break;
    case BENCH_ARG_CHOICE:
        failed = set_word(spec, arg, text, at);
        break;
    case BENCH_ARG_NUMBERS:
    case BENCH_ARG_WORDS:
        failed = set_list(spec, arg, text, at);
        break;
    }
    return failed;
}

static void print_arg(const bench_arg *arg) {
    char head[96];
    snprintf(head, sizeof head, "  --%s %s", arg->name, arg->value != NULL ? arg->value : "");
    printf("%-*s", HELP_COLUMN, head);
    if (strlen(head) >= HELP_COLUMN) {
        printf("\n%*s", HELP_COLUMN, "");
    }
    for (const char *at = arg->help; *at != '\0'; at++) {
        putchar(*at);
        if (*at == '\n') {
            printf("%*s", HELP_COLUMN, "");
        }
    }
    if (arg->fallback != NULL) {
        printf(" (default %s)", arg->fallback);
    }
    putchar('\n');
}

/* The rows of both tables in one array, and what getopt_long() wants to know: row i has code FIRST_LONG + i. */
typedef struct parser {
    const bench_arg *rows[MAX_ARGS];
    struct option longs[MAX_ARGS + 2];
    int count;
} parser;

static void prepare(parser *p, const bench_args *spec) {
    *p = (parser){0};
    for (int table = 0; table < 2; table++) {
        for (const bench_arg *arg = spec->tables[table]; arg != NULL && arg->name != NULL; arg++) {
            int has_value = arg->kind == BENCH_ARG_FLAG ? no_argument : required_argument;
            assert(p->count < MAX_ARGS);
            p->longs[p->count] = (struct option){arg->name, has_value, NULL, FIRST_LONG + p->count};
            p->rows[p->count++] = arg;
        }
    }
    p->longs[p->count] = (struct option){"help", no_argument, NULL, 'h'};
}

static void print_help(const bench_args *spec, const parser *p) {
    printf("usage: replayssm bench %s [OPTION]...%s%s\n\n%s\n\n", spec->name, spec->usage[0] != '\0' ? " " : "",
           spec->usage, spec->about);
    for (int i = 0; i < p->count; i++) {
        print_arg(p->rows[i]);
    }
    printf("  %-*s%s\n", HELP_COLUMN - 2, "--help", "this text");
}

static int parse_words(const bench_args *spec, const parser *p, int argc, char **argv, void *out) {
    int code;
    opterr = 0;
    optind = 1;
    while ((code = getopt_long(argc, argv, ":h", p->longs, NULL)) != -1) {
        if (code == 'h') {
            print_help(spec, p);
            return EXIT_SUCCESS + 1;
        }
        if (code == '?') {
            return mistake(spec, "unknown option '%s'", argv[optind - 1]);
        }
        const bench_arg *arg = p->rows[(code == ':' ? optopt : code) - FIRST_LONG];
        if (code == ':') {
            return mistake(spec, "--%s needs a value: %s", arg->name, arg->value);
        }
        int failed = set_arg(spec, arg, optarg, out);
        if (failed) {
            return failed;
        }
    }
    bool operand = spec->usage[0] != '\0';
    if (argc - optind > operand) {
        return mistake(spec, "'%s' is one word too many", argv[optind + operand]);
    }
    if (operand && optind == argc) {
        return mistake(spec, "%s is missing", spec->usage);
    }
    if (operand) {
        *(const char **)(void *)((char *)out + spec->operand) = argv[optind];
    }
    return 0;
}

int bench_args_parse(const bench_args *spec, int argc, char **argv, void *out, size_t size) {
    parser p;
    prepare(&p, spec);
    memset(out, 0, size);
    for (int i = 0; i < p.count; i++) {
        int failed = p.rows[i]->fallback != NULL ? set_arg(spec, p.rows[i], p.rows[i]->fallback, out) : 0;
        if (failed) {
            return failed;
        }
    }
    return parse_words(spec, &p, argc, argv, out);
}
