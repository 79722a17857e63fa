/* SPDX-License-Identifier: Apache-2.0 */
#include "bench.h"
#include "commands.h"

#include <stdio.h>
#include <stdlib.h>

enum { EXIT_USAGE = 2 };

static const bench_subcommand table[] = {
    {"kernel", bench_kernel, "a recurrent layer: decode, flush, conventional, prefill"},
    {"auto", bench_auto, "when a window of 1 is faster than a long one"},
    {"spec", bench_spec, "drafting: verifying T tokens, memory, whole runs"},
    {"serve", bench_serve, "many sequences, and follow-up turns on a long history"},
    {"gemv", bench_gemv, "the engine's matrix products"},
    {"start", bench_start, "how long a model takes to its first token, and what it keeps in memory"},
    {"make-model", bench_make_model, "write a random checkpoint of a real model's shape"},
    {0},
};

int bench_exit(rse_status status, const rse_error *err) {
    if (status == RSE_OK) {
        return EXIT_SUCCESS;
    }
    fprintf(stderr, "replayssm: %s\n", err->text);
    return status == RSE_ERROR_USAGE ? EXIT_USAGE : EXIT_FAILURE;
}

int rse_bench_main(int argc, char **argv) {
    static const bench_subcommands commands = {"replayssm bench", table, ""};
    return bench_subcommand_run(&commands, EXIT_USAGE, argc, argv);
}
