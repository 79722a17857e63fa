/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands of `replayssm bench`; each returns the exit code. argv[0] is its name. */
#ifndef RSE_BENCH_COMMANDS_H
#define RSE_BENCH_COMMANDS_H

#include "base/error.h"

int bench_kernel(int argc, char **argv);
int bench_auto(int argc, char **argv);
int bench_gemv(int argc, char **argv);
int bench_spec(int argc, char **argv);
int bench_serve(int argc, char **argv);
int bench_start(int argc, char **argv);
int bench_make_model(int argc, char **argv);

/* The exit code of a status; says the sentence of a failure. Wrong usage is 2, other failures are 1. */
int bench_exit(rse_status status, const rse_error *err);

#endif
