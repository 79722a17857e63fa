/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The vector vocabulary on AVX2, where the machine has it. The instruction set is switched on for the checks
 * alone, so that main can look at the machine first.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include <replayssm/base.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define RSSM_VARIANT_AVX2
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))),                \
                             apply_to = function)
#include "vec_checks.h"
#pragma clang attribute pop
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#include "vec_checks.h"
#pragma GCC pop_options
#endif
#endif

int main(void) {
#if defined(__x86_64__)
    if ((rssm_isa_available() & RSSM_ISA_AVX2) != 0) {
        const struct CMUnitTest tests[] = {VEC_CHECKS};
        return cmocka_run_group_tests_name("vec avx2", tests, NULL, NULL);
    }
#endif
    printf("vec avx2: this machine has no AVX2, nothing to check\n");
    return 0;
}
