/* SPDX-License-Identifier: Apache-2.0 */
/* A program, or a part of one, whose first word says what to do. */
#ifndef RSE_SUBCOMMAND_H
#define RSE_SUBCOMMAND_H

typedef struct rse_subcommand {
    const char *name; /* NULL ends a table */
    int (*run)(int argc, char **argv);
    const char *help;
} rse_subcommand;

typedef struct rse_subcommands {
    const char *program; /* "replayssm bench" */
    const rse_subcommand *table;
    const char *closing; /* a last line of the usage, or "" */
} rse_subcommands;

/* Runs the subcommand argv[1], with argv + 1, and returns its exit code. --help, -h and help print the usage; without a
 * word it goes to stderr and the code is `mistake`, as for an unknown word. */
int rse_subcommand_run(const rse_subcommands *commands, int mistake, int argc, char **argv);

#endif
