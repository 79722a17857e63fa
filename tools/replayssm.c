/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The replayssm command: looks up the subcommand.
 */
#include "tool.h"

#include <stdlib.h>
#include <string.h>

typedef struct subcommand {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} subcommand;

static const subcommand subcommands[] = {
    {"run", command_run, "let a model continue a text"},
    {"eval", command_eval, "measure how well a model predicts a text"},
#ifdef REPLAYSSM_HAVE_BENCH
    {"bench", rse_bench_main, "measure speed, or make a model of a real shape"},
#endif
    {"inspect", command_inspect, "show a model's layers and what it takes of memory"},
};

static void usage(FILE *out) {
    fputs("usage: replayssm COMMAND [OPTION]...\n\n", out);
    for (size_t i = 0; i < sizeof subcommands / sizeof subcommands[0]; i++) {
        fprintf(out, "  %-10s%s\n", subcommands[i].name, subcommands[i].help);
    }
    fputs("\n'replayssm COMMAND --help' explains one; 'replayssm --version' tells the version.\n", out);
}

/* A full disk or a closed pipe must not look like success. */
static int finish(int code) {
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fputs("replayssm: writing to stdout failed\n", stderr);
        return code == EXIT_SUCCESS ? EXIT_FAILURE : code;
    }
    return code;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        usage(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        usage(stdout);
        return finish(EXIT_SUCCESS);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("replayssm %s\n", rssm_version());
        return finish(EXIT_SUCCESS);
    }
    for (size_t i = 0; i < sizeof subcommands / sizeof subcommands[0]; i++) {
        if (strcmp(argv[1], subcommands[i].name) == 0) {
            return finish(subcommands[i].run(argc - 1, argv + 1));
        }
    }
    fprintf(stderr, "replayssm: unknown command '%s'\nSee 'replayssm --help'.\n", argv[1]);
    return EXIT_USAGE;
}
