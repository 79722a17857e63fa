/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The replayssm command: looks up the subcommand.
 */
#include "bench.h"
#include "tool.h"

#include <stdlib.h>
#include <string.h>

static const bench_subcommand table[] = {
    {"run", command_run, "let a model continue a text"},
    {"eval", command_eval, "measure how well a model predicts a text"},
    {"bench", rse_bench_main, "measure speed, or make a model of a real shape"},
    {"inspect", command_inspect, "show a model's layers and what it takes of memory"},
    {0},
};

/* A full disk or a closed pipe must not look like success. */
static int finish(int code) {
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fputs("replayssm: writing to stdout failed\n", stderr);
        return code == EXIT_SUCCESS ? EXIT_FAILURE : code;
    }
    return code;
}

int main(int argc, char **argv) {
    static const bench_subcommands commands = {"replayssm", table, "; 'replayssm --version' tells the version"};
    if (argc > 1 && strcmp(argv[1], "--version") == 0) {
        printf("replayssm %s\n", rssm_version());
        return finish(EXIT_SUCCESS);
    }
    return finish(bench_subcommand_run(&commands, EXIT_USAGE, argc, argv));
}
