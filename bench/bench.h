/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The benchmarks behind `replayssm bench`: everything that is timed is checked first, and reported beside what
 * the machine could do in the same minute. And programs whose first word says what to do, as bench and the whole command
 * are.
 */
#ifndef RSE_BENCH_H
#define RSE_BENCH_H

/* argv[0] is "bench", argv[1] the subcommand. Returns the exit code: 0, 1 for a failure, 2 for wrong usage. */
int rse_bench_main(int argc, char **argv);

typedef struct bench_subcommand {
    const char *name; /* NULL ends a table */
    int (*run)(int argc, char **argv);
    const char *help;
} bench_subcommand;

typedef struct bench_subcommands {
    const char *program; /* "replayssm bench" */
    const bench_subcommand *table;
    const char *closing; /* more for the last line of the usage, or "" */
} bench_subcommands;

/* Runs the subcommand argv[1], with argv + 1, and returns its exit code. --help, -h and help print the usage; without a
 * word it goes to stderr and the code is `mistake`, as for an unknown word. */
int bench_subcommand_run(const bench_subcommands *commands, int mistake, int argc, char **argv);

#endif
