/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void usage(const bench_subcommands *commands, FILE *out) {
    fprintf(out, "usage: %s COMMAND [OPTION]...\n\n", commands->program);
    for (const bench_subcommand *row = commands->table; row->name != NULL; row++) {
        fprintf(out, "  %-12s%s\n", row->name, row->help);
    }
    fprintf(out, "\n'%s COMMAND --help' explains one%s.\n", commands->program, commands->closing);
}

int bench_subcommand_run(const bench_subcommands *commands, int mistake, int argc, char **argv) {
    if (argc < 2) {
        usage(commands, stderr);
        return mistake;
    }
    const char *word = argv[1];
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) {
        usage(commands, stdout);
        return EXIT_SUCCESS;
    }
    for (const bench_subcommand *row = commands->table; row->name != NULL; row++) {
        if (strcmp(word, row->name) == 0) {
            return row->run(argc - 1, argv + 1);
        }
    }
    fprintf(stderr, "replayssm: unknown command '%s'\nSee '%s --help'.\n", word, commands->program);
    return mistake;
}
