/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The benchmarks behind `replayssm bench`: everything that is timed is checked first, and reported beside what
 * the machine could do in the same minute.
 */
#ifndef RSE_BENCH_H
#define RSE_BENCH_H

/* argv[0] is "bench", argv[1] the subcommand. Returns the exit code: 0, 1 for a failure, 2 for wrong usage. */
int rse_bench_main(int argc, char **argv);

#endif
