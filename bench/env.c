/* SPDX-License-Identifier: Apache-2.0 */
#include "env.h"

#include <fnmatch.h>
#include <stdlib.h>

enum { ISA_AUTO, ISA_SCALAR, ISA_AVX2, ISA_AVX512, ISA_NEON };
static const bench_word isas[] = {
    {"auto", ISA_AUTO}, {"scalar", ISA_SCALAR}, {"avx2", ISA_AVX2}, {"avx512", ISA_AVX512}, {"neon", ISA_NEON}, {NULL, 0}};
const bench_word bench_checkpoints[] = {
    {"f32", RSSM_DTYPE_F32}, {"f16", RSSM_DTYPE_F16}, {"bf16", RSSM_DTYPE_BF16}, {"f8", RSSM_DTYPE_F8}, {NULL, 0}};
const bench_word bench_roundings[] = {
    {"nearest", RSSM_ROUND_NEAREST}, {"stochastic", RSSM_ROUND_STOCHASTIC}, {NULL, 0}};
const bench_word bench_copies[] = {{"none", RSSM_DTYPE_DEFAULT}, {"f16", RSSM_DTYPE_F16},   {"bf16", RSSM_DTYPE_BF16},
                                   {"f8", RSSM_DTYPE_F8},        {"int8", RSSM_DTYPE_INT8}, {"nvfp4", RSSM_DTYPE_NVFP4},
                                   {NULL, 0}};
const bench_word bench_formats[] = {{"f32", RSSM_DTYPE_F32}, {"bf16", RSSM_DTYPE_BF16}, {NULL, 0}};

#define AT(field) offsetof(bench_common, field)
const bench_arg bench_common_table[] = {
    {"pool-mib", BENCH_ARG_WHOLE, AT(pool_mib), "N", "512", 1, 1 << 20, NULL,
     "memory in rotation, for each of what is compared; to be cold, several\n"
     "times the last-level cache that this process has to itself"},
    {"threads", BENCH_ARG_WHOLE, AT(threads), "N", "0", 0, RSE_POOL_MAX_THREADS, NULL,
     "threads; 0: one for each usable core"},
    {"cpu-time", BENCH_ARG_FLAG, AT(cpu_time), NULL, NULL, 0, 0, NULL,
     "one thread, and only the time it is on a core: for busy machines"},
    {"isa", BENCH_ARG_CHOICE, AT(isa), "auto|scalar|avx2|avx512|neon", "auto", 0, 0, isas,
     "instruction set of the kernels"},
    {"samples", BENCH_ARG_WHOLE, AT(samples), "N", "30", 1, BENCH_SAMPLES_MAX, NULL,
     "samples of each row, at least"},
    {"sample-seconds", BENCH_ARG_REAL, AT(sample_seconds), "N", "0", 0, 1e4, NULL,
     "go on taking samples of a row for this time"},
    {"only", BENCH_ARG_TEXT, AT(only), "PATTERN", NULL, 0, 0, NULL,
     "rows whose name contains this; * and ? stand for anything"},
    {"json", BENCH_ARG_TEXT, AT(json), "FILE", NULL, 0, 0, NULL, "append one JSON object per row"},
    {0},
};

rse_status bench_env_open(const bench_common *common, bench_env *env, rse_error *err) {
    static const uint64_t masks[] = {0, RSSM_ISA_NONE, RSSM_ISA_AVX2, RSSM_ISA_AVX512 | RSSM_ISA_AVX512_BF16,
                                     RSSM_ISA_NEON};
    *env = (bench_env){
        .common = common, .isa_mask = masks[common->isa], .pool_bytes = (size_t)common->pool_mib << 20};
    if (common->cpu_time) {
        bench_use_cpu_time();
    }
    RSE_TRY(rse_pool_create(common->cpu_time ? 1 : (int32_t)common->threads, &env->pool, err));
    env->threads = rse_pool_threads(env->pool);
    rssm_context_desc desc = {.struct_size = sizeof desc,
                              .isa_mask = env->isa_mask,
                              .threads = env->threads,
                              .parallel = rse_pool_run,
                              .parallel_user = env->pool};
    RSE_TRY(bench_library(NULL, rssm_context_create(&desc, &env->context), err));
    if (common->json != NULL && (env->json = fopen(common->json, "a")) == NULL) {
        return rse_fail(err, RSE_ERROR_IO, "%s cannot be opened for writing", common->json);
    }
    env->series = calloc(1, sizeof *env->series);
    if (env->series == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for samples");
    }
    return bench_floors_create(env->pool, env->pool_bytes, &env->floors, err);
}

rse_status bench_env_close(bench_env *env, rse_status status, rse_error *err) {
    if (env->json != NULL && fclose(env->json) != 0 && status == RSE_OK) {
        status = rse_fail(err, RSE_ERROR_IO, "%s could not be written", env->common->json);
    }
    bench_floors_destroy(&env->floors);
    bench_arena_free(&env->replay);
    bench_arena_free(&env->conventional);
    free(env->series);
    rssm_context_destroy(env->context);
    rse_pool_destroy(env->pool);
    return status;
}

bool bench_env_wants(const bench_env *env, const char *name) {
    char pattern[256];
    snprintf(pattern, sizeof pattern, "*%s*", env->common->only != NULL ? env->common->only : "");
    return fnmatch(pattern, name, 0) == 0;
}

rse_status bench_env_run(bench_env *env, rse_error *err) {
    return bench_series_run(env->series, (int)env->common->samples, env->common->sample_seconds, err);
}
