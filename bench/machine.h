/* SPDX-License-Identifier: Apache-2.0 */
/* What a figure belongs to: machine, compiler, flags, revision, date. */
#ifndef RSE_BENCH_MACHINE_H
#define RSE_BENCH_MACHINE_H

#include <stdint.h>
#include <stdio.h>

/* "threads": ..., "machine": ..., ... "date": ...: members of a JSON object, without its braces. */
void bench_json_machine(FILE *out, int32_t threads);
/* One line for people. */
void bench_print_machine(FILE *out, int32_t threads);

#endif
