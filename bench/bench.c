/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"
#include "commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_USAGE = 2 };

typedef struct subcommand {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} subcommand;

static const subcommand subcommands[] = {
    {"kernel", bench_kernel, "a recurrent layer: decode, flush, conventional, prefill"},
    {"auto", bench_auto, "when a window of 1 is faster than a long one"},
    {"spec", bench_spec, "drafting: verifying T tokens, memory, whole runs"},
    {"gemv", bench_gemv, "the engine's matrix products"},
    {"make-model", bench_make_model, "write a random checkpoint of a real model's shape"},

};

int bench_exit(rse_status status, const rse_error *err) {
    if (status == RSE_OK) {
        return EXIT_SUCCESS;
    }
    fprintf(stderr, "replayssm: %s\n", err->text);
    return status == RSE_ERROR_USAGE ? EXIT_USAGE : EXIT_FAILURE;
}

static void usage(FILE *out) {
    fputs("usage: replayssm bench COMMAND [OPTION]...\n\n", out);
    for (size_t i = 0; i < sizeof subcommands / sizeof *subcommands; i++) {
        fprintf(out, "  %-12s%s\n", subcommands[i].name, subcommands[i].help);
    }
    fputs("\n'replayssm bench COMMAND --help' explains one.\n", out);
}

int rse_bench_main(int argc, char **argv) {
    if (argc < 2) {
        usage(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        usage(stdout);
        return EXIT_SUCCESS;
    }
    for (size_t i = 0; i < sizeof subcommands / sizeof *subcommands; i++) {
        if (strcmp(argv[1], subcommands[i].name) == 0) {
            return subcommands[i].run(argc - 1, argv + 1);
        }
    }
    fprintf(stderr, "replayssm: bench has no '%s'\nSee 'replayssm bench --help'.\n", argv[1]);
    return EXIT_USAGE;
}
