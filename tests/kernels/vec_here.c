/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checks of the vector vocabulary without cmocka, for cross-compiled builds: of the portable header, and on 64-bit
 * Arm of NEON's.
 */
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define fail_msg(...)                                                                                          \
    do {                                                                                                       \
        fprintf(stderr, __VA_ARGS__);                                                                          \
        fprintf(stderr, "\n%s:%d\n", __FILE__, __LINE__);                                                      \
        exit(EXIT_FAILURE);                                                                                    \
    } while (0)
#define assert_true(condition)                                                                                 \
    do {                                                                                                       \
        if (!(condition)) {                                                                                    \
            fail_msg("%s", #condition);                                                                        \
        }                                                                                                      \
    } while (0)
#define assert_int_equal(a, b) assert_true((uint64_t)(a) == (uint64_t)(b))
#define cmocka_unit_test(f) f

#if defined(__aarch64__)
#define RSSM_VARIANT_NEON
#endif
#include "unit/vec_checks.h"

int main(void) {
    void (*const checks[])(void **) = {VEC_CHECKS};
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        checks[i](NULL);
    }
    printf("%zu passed\n", sizeof checks / sizeof checks[0]);
    return EXIT_SUCCESS;
}
