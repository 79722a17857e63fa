/* SPDX-License-Identifier: Apache-2.0 */
/* `replayssm bench kernel --device cuda` as a program that needs nothing but the library, for machines with a device. */
#include "device.h"

#include <replayssm/replayssm.h>

static const bench_word formats[] = {{"f32", RSSM_DTYPE_F32}, {"bf16", RSSM_DTYPE_BF16}, {0}};

#define AT(field) offsetof(bench_device_options, field)
static const bench_arg table[] = {
    {.name = "batch", .kind = BENCH_ARG_NUMBERS, .at = AT(batches), .value = "LIST", .fallback = "1,8,32,128,256,512",
     .low = 1, .high = 65535, .help = "sequences in a step"},
    {.name = "tokens", .kind = BENCH_ARG_NUMBERS, .at = AT(tokens), .value = "LIST", .fallback = "1", .low = 1,
     .high = RSSM_STEP_TOKENS_MAX, .help = "tokens of a row; between 1 and all of them are kept"},
    {.name = "io", .kind = BENCH_ARG_WORDS, .at = AT(formats), .value = "f32,bf16", .fallback = "bf16", .words = formats,
     .help = "formats of inputs and records"},
    {.name = "window", .kind = BENCH_ARG_WHOLE, .at = AT(window), .value = "L", .fallback = "16", .low = 1,
     .high = RSSM_WINDOW_MAX, .help = "flush period"},
    {.name = "only", .kind = BENCH_ARG_TEXT, .at = AT(only), .value = "MODEL", .help = "models whose name begins so"},
    {.name = "together", .kind = BENCH_ARG_FLAG, .at = AT(together), .help = "all sequences flush in the same step"},
    {0},
};

int main(int argc, char **argv) {
    static const bench_args spec = {.name = "kernel", .usage = "", .about = "Kernels on a CUDA device.", .tables = {table, NULL}};
    bench_device_options options;
    int said = bench_args_parse(&spec, argc, argv, &options, sizeof options);
    return said != 0 ? said - 1 : bench_device_kernels(&options);
}
