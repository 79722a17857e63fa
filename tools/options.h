/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options of the command. Each subcommand has a table, and shares others; a table drives parsing, the defaults
 * and --help, so that the three cannot disagree.
 */
#ifndef REPLAYSSM_OPTIONS_H
#define REPLAYSSM_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SETTINGS_GIVEN = 96 };

/* The values of an option that may be given more than once. */
enum { TEXT_LIST_MAX = 16 };
typedef struct text_list {
    int32_t count;
    const char *at[TEXT_LIST_MAX];
} text_list;

/* Everything that any subcommand can be told. */
typedef struct settings {
    const char *model; /* as given, or NULL */
    /* how to run */
    int32_t method; /* RSSM_METHOD_* */
    int64_t window;
    int32_t device;
    int32_t io; /* RSSM_DTYPE_* */
    int32_t checkpoint, rounding, read_copy; /* RSSM_DTYPE_*, RSSM_ROUND_*, RSSM_DTYPE_* */
    const char *calibration;
    int64_t threads;
    bool check;
    bool verbose;
    bool help;
    /* what to read */
    const char *prompt;
    const char *file;
    const char *ids;
    /* run */
    int64_t count;
    bool ignore_eos;
    double temp;
    int64_t top_k;
    double top_p;
    double min_p;
    uint64_t seed;
    bool seed_given;
    int64_t batch;
    const char *session;
    bool json;
    const char *speculate;
    const char *draft;
    int64_t tree;
    bool exact;
    bool chat;
    bool no_think;
    const char *system;
    text_list stop;
    double repeat_penalty, presence_penalty, frequency_penalty;
    int64_t logprobs;
    int64_t slots;
    int64_t step_budget;
    int64_t kv_memory;    /* MiB */
    int64_t prefix_cache; /* MiB */
    /* eval */
    bool decode;
    int64_t tokens;
    text_list configs;
    const char *csv;
    const char *out;
    /* offsets of what was given, in the order of the command line */
    size_t given[SETTINGS_GIVEN];
    int32_t given_count;
} settings;

typedef enum option_kind {
    OPTION_FLAG,
    OPTION_WHOLE,
    OPTION_SEED,
    OPTION_REAL,
    OPTION_TEXT,
    OPTION_TEXTS,
    OPTION_CHOICE
} option_kind;

typedef struct option_choice {
    const char *word;
    int32_t value;
} option_choice;

typedef struct option_row {
    const char *name; /* without the dashes; NULL ends a table */
    char letter;      /* or 0 */
    option_kind kind;
    size_t at; /* offset in settings: bool, int64_t, uint64_t, double, const char *, text_list or int32_t by kind */
    const char *value;            /* what --help calls its value; NULL for flags */
    const char *fallback;         /* the default, as one would type it; NULL: none */
    double low, high;             /* of numbers, inclusive */
    const option_choice *choices; /* ends with a NULL word */
    const char *help;
} option_row;

enum { OPTION_TABLES = 7 };

typedef struct command_spec {
    const char *usage;                       /* "replayssm run [MODEL] ..." */
    const char *about;                       /* a few lines */
    const option_row *tables[OPTION_TABLES]; /* ends with NULL */
} command_spec;

extern const option_row options_engine[]; /* --method ... --verbose --help */
extern const option_row options_input[];  /* --file --ids */

/* Whether the option at this offset was on the command line, so that its value is no default. */
bool options_given(const settings *set, size_t at);

/* The one word that says how a value of settings.method or .io is spelt. */
const char *method_name(int32_t method);

/*
 * Parses argv[1..]. 0: done, the remaining word, if any, is settings->model. Otherwise everything was said, on
 * stdout for --help and on stderr for a mistake, and the result is the exit code plus 1.
 */
int options_parse(const command_spec *spec, int argc, char **argv, settings *out);

#endif
