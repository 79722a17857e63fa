/* SPDX-License-Identifier: Apache-2.0 */
/* The vector vocabulary in plain C. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>

#include "vec_checks.h"

int main(void) {
    const struct CMUnitTest tests[] = {VEC_CHECKS};
    return cmocka_run_group_tests_name("vec scalar", tests, NULL, NULL);
}
