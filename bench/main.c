/* SPDX-License-Identifier: Apache-2.0 */
/* The benchmarks as a program of their own, for use without the engine's models and tools. */
#include "bench.h"

int main(int argc, char **argv) {
    return rse_bench_main(argc, argv);
}
