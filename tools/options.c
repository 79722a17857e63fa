/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"
#include "tool.h"

#include <replayssm/replayssm.h>

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_OPTIONS = 64, FIRST_LONG = 256, HELP_COLUMN = 26 };

static const option_choice methods[] = {{"auto", RSSM_METHOD_AUTO},
                                        {"replay", RSSM_METHOD_REPLAY},
                                        {"conventional", RSSM_METHOD_CONVENTIONAL},
                                        {"snapshot", RSE_METHOD_SNAPSHOT},
                                        {NULL, 0}};
static const option_choice devices[] = {{"cpu", RSSM_DEVICE_CPU}, {NULL, 0}};
static const option_choice formats[] = {{"f32", RSSM_DTYPE_F32}, {"bf16", RSSM_DTYPE_BF16}, {NULL, 0}};

static const option_choice checkpoints[] = {{"f32", RSSM_DTYPE_F32},
                                            {"f16", RSSM_DTYPE_F16},
                                            {"bf16", RSSM_DTYPE_BF16},
                                            {"f8", RSSM_DTYPE_F8},
                                            {NULL, 0}};
static const option_choice roundings[] = {
    {"nearest", RSSM_ROUND_NEAREST}, {"stochastic", RSSM_ROUND_STOCHASTIC}, {NULL, 0}};
static const option_choice copies[] = {{"none", RSSM_DTYPE_DEFAULT}, {"f16", RSSM_DTYPE_F16},
                                       {"bf16", RSSM_DTYPE_BF16},    {"f8", RSSM_DTYPE_F8},
                                       {"int8", RSSM_DTYPE_INT8},    {"nvfp4", RSSM_DTYPE_NVFP4},
                                       {NULL, 0}};

#define AT(field) offsetof(settings, field)

const option_row options_engine[] = {
    {"method", 0, OPTION_CHOICE, AT(method), "auto|replay|conventional|snapshot", "auto", 0, 0, methods,
     "how recurrent state is kept; snapshot: a state per draft"},
    {"window", 0, OPTION_WHOLE, AT(window), "L", "16", 1, RSSM_WINDOW_MAX, NULL,
     "tokens from one write of the state to the next, 1 to 64"},
    {"device", 0, OPTION_CHOICE, AT(device), "cpu", "cpu", 0, 0, devices, "where to run"},
    {"io", 0, OPTION_CHOICE, AT(io), "f32|bf16", "f32", 0, 0, formats,
     "number format of activations, buffers, keys and values"},
    {"checkpoint", 0, OPTION_CHOICE, AT(checkpoint), "f32|f16|bf16|f8", NULL, 0, 0, checkpoints,
     "number format of the state that the recurrence continues from\n"
     "(default what the model's configuration says, or else f32)"},
    {"rounding", 0, OPTION_CHOICE, AT(rounding), "nearest|stochastic", "nearest", 0, 0, roundings,
     "of a checkpoint narrower than f32"},
    {"read-copy", 0, OPTION_CHOICE, AT(read_copy), "none|f16|bf16|f8|int8|nvfp4", "none", 0, 0, copies,
     "number format of a copy of the state that outputs are read from"},
    {"calibration", 0, OPTION_TEXT, AT(calibration), "FILE", NULL, 0, 0, NULL,
     "of nvfp4 copies, as eval calibrate writes it; '' for none (default:\n"
     "the one beside the model's weights, if there is any)"},
    {"threads", 0, OPTION_WHOLE, AT(threads), "N", "0", 0, 1024, NULL, "threads; 0: one for each usable core"},
    {"check", 0, OPTION_FLAG, AT(check), NULL, NULL, 0, 0, NULL,
     "compare every flushed state, bit for bit, with one that was\n"
     "updated conventionally; exit 1 at the first difference"},
    {"verbose", 'v', OPTION_FLAG, AT(verbose), NULL, NULL, 0, 0, NULL, "say on stderr what was chosen"},
    {"help", 'h', OPTION_FLAG, AT(help), NULL, NULL, 0, 0, NULL, "this text"},
    {0},
};

const option_row options_input[] = {
    {"file", 'f', OPTION_TEXT, AT(file), "FILE", NULL, 0, 0, NULL, "read the text from a file"},
    {"ids", 0, OPTION_TEXT, AT(ids), "FILE", NULL, 0, 0, NULL, "read token ids, separated by white space"},
    {0},
};

const char *method_name(int32_t method) {
    for (const option_choice *choice = methods; choice->word != NULL; choice++) {
        if (choice->value == method) {
            return choice->word;
        }
    }
    return "?";
}

static int mistake(const command_spec *spec, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int mistake(const command_spec *spec, const char *format, ...) {
    va_list args;
    fputs("replayssm: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    int name = (int)strcspn(spec->usage, "[");
    while (name > 0 && spec->usage[name - 1] == ' ') {
        name--;
    }
    fprintf(stderr, "\nSee '%.*s --help'.\n", name, spec->usage);
    return EXIT_USAGE;
}

static int number_range(const command_spec *spec, const option_row *row, const char *text) {
    if (row->kind == OPTION_SEED) {
        return mistake(spec, "--%s is '%s'; it must be a whole number from 0 to %" PRId64, row->name, text,
                       INT64_MAX);
    }
    if (isinf(row->high)) {
        return mistake(spec, "--%s is '%s'; it must be a number of at least %g", row->name, text, row->low);
    }
    return mistake(spec, "--%s is '%s'; it must be a %s from %.15g to %.15g", row->name, text,
                   row->kind == OPTION_REAL ? "number" : "whole number", row->low, row->high);
}

static int set_number(const command_spec *spec, const option_row *row, const char *text, void *at) {
    char *end = NULL;
    errno = 0;
    if (row->kind == OPTION_REAL) {
        double value = strtod(text, &end);
        if (end == text || *end != '\0' || !(value >= row->low && value <= row->high)) {
            return number_range(spec, row, text);
        }
        *(double *)at = value;
        return 0;
    }
    if (row->kind == OPTION_SEED) {
        uint64_t value = strtoull(text, &end, 10);
        if (end == text || *end != '\0' || value > INT64_MAX || strchr(text, '-') != NULL) {
            return number_range(spec, row, text);
        }
        *(uint64_t *)at = value;
        return 0;
    }
    long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 ||
        !((double)value >= row->low && (double)value <= row->high)) {
        return number_range(spec, row, text);
    }
    *(int64_t *)at = value;
    return 0;
}

static int set_choice(const command_spec *spec, const option_row *row, const char *text, void *at) {
    for (const option_choice *choice = row->choices; choice->word != NULL; choice++) {
        if (strcmp(choice->word, text) == 0) {
            *(int32_t *)at = choice->value;
            return 0;
        }
    }
    return mistake(spec, "--%s is '%s'; this build knows: %s", row->name, text, row->value);
}

static int set_option(const command_spec *spec, const option_row *row, const char *text, settings *out) {
    void *at = (char *)out + row->at;
    switch (row->kind) {
    case OPTION_FLAG:
        *(bool *)at = true;
        return 0;
    case OPTION_TEXT:
        *(const char **)at = text;
        return 0;
    case OPTION_TEXTS: {
        text_list *list = at;
        if (list->count == TEXT_LIST_MAX) {
            return mistake(spec, "--%s is given more than %d times", row->name, TEXT_LIST_MAX);
        }
        list->at[list->count++] = text;
        return 0;
    }
    case OPTION_CHOICE:
        return set_choice(spec, row, text, at);
    case OPTION_WHOLE:
    case OPTION_SEED:
    case OPTION_REAL:
        break;
    }
    return set_number(spec, row, text, at);
}

static void print_help(const command_spec *spec, const option_row *const *rows, int count) {
    printf("usage: %s\n\n%s\n\n", spec->usage, spec->about);
    for (int i = 0; i < count; i++) {
        const option_row *row = rows[i];
        char head[96];
        char letter[8] = "    ";
        if (row->letter != 0) {
            snprintf(letter, sizeof letter, "-%c, ", row->letter);
        }
        snprintf(head, sizeof head, "  %s--%s %s", letter, row->name, row->value != NULL ? row->value : "");
        printf("%-*s", HELP_COLUMN, head);
        if (strlen(head) >= HELP_COLUMN) {
            printf("\n%*s", HELP_COLUMN, "");
        }
        for (const char *at = row->help; *at != '\0'; at++) {
            putchar(*at);
            if (*at == '\n') {
                printf("%*s", HELP_COLUMN, "");
            }
        }
        if (row->fallback != NULL) {
            printf(" (default %s)", row->fallback);
        }
        putchar('\n');
    }
}

/* The rows of all tables, and what getopt_long() wants to know of them. */
typedef struct parser {
    const option_row *rows[MAX_OPTIONS];
    struct option longs[MAX_OPTIONS + 1];
    char shorts[2 * MAX_OPTIONS + 2];
    int count;
} parser;

static void prepare(parser *p, const command_spec *spec) {
    size_t letters = 0;
    *p = (parser){0};
    p->shorts[letters++] = ':'; /* a missing value is told from an unknown option */
    for (int table = 0; table < OPTION_TABLES && spec->tables[table] != NULL; table++) {
        for (const option_row *row = spec->tables[table]; row->name != NULL; row++) {
            bool flag = row->kind == OPTION_FLAG;
            p->longs[p->count] =
                (struct option){row->name, flag ? no_argument : required_argument, NULL, FIRST_LONG + p->count};
            p->rows[p->count++] = row;
            if (row->letter != 0) {
                p->shorts[letters++] = row->letter;
                if (!flag) {
                    p->shorts[letters++] = ':';
                }
            }
        }
    }
}

static const option_row *find(const parser *p, int code) {
    for (int i = 0; i < p->count; i++) {
        if (code == FIRST_LONG + i || (p->rows[i]->letter != 0 && code == p->rows[i]->letter)) {
            return p->rows[i];
        }
    }
    return NULL;
}

static int parse_words(const parser *p, const command_spec *spec, int argc, char **argv, settings *out) {
    int code;
    opterr = 0;
    optind = 1;
    while ((code = getopt_long(argc, argv, p->shorts, p->longs, NULL)) != -1) {
        const option_row *row = find(p, code == ':' ? optopt : code);
        if (code == '?' || row == NULL) {
            return mistake(spec, "unknown option '%s'", argv[optind - 1]);
        }
        if (code == ':') {
            return mistake(spec, "--%s needs a value: %s", row->name, row->value);
        }
        int failed = set_option(spec, row, optarg, out);
        if (failed != 0) {
            return failed;
        }
        out->seed_given = out->seed_given || row->kind == OPTION_SEED;
        if (out->given_count < SETTINGS_GIVEN) {
            out->given[out->given_count++] = row->at;
        }
    }
    if (argc - optind > 1) {
        return mistake(spec, "'%s' is one word too many; the model is '%s'", argv[optind + 1], argv[optind]);
    }
    out->model = optind < argc ? argv[optind] : NULL;
    return 0;
}

bool options_given(const settings *set, size_t at) {
    for (int32_t i = 0; i < set->given_count; i++) {
        if (set->given[i] == at) {
            return true;
        }
    }
    return false;
}

int options_parse(const command_spec *spec, int argc, char **argv, settings *out) {
    parser p;
    prepare(&p, spec);
    *out = (settings){0};
    for (int i = 0; i < p.count; i++) {
        if (p.rows[i]->fallback != NULL) {
            (void)set_option(spec, p.rows[i], p.rows[i]->fallback, out);
        }
    }
    int failed = parse_words(&p, spec, argc, argv, out);
    if (failed != 0) {
        return failed + 1;
    }
    if (out->help) {
        print_help(spec, p.rows, p.count);
        return EXIT_SUCCESS + 1;
    }
    return 0;
}
