/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the field-log tests: one per entry of the log that concerns a layer, a cache or a batch, named by its
 * ID, once per instruction set; then the slow regimes and hostile input.
 */
#include "fieldlog/field.h"

#include <stdio.h>
#include <string.h>

typedef struct run {
    const fl_test *test;
    uint64_t isa;
    char name[80];
} run;

static void run_test(void *arg) {
    const run *r = arg;
    r->test->run(r->isa);
}

int main(int argc, char **argv) {
    static const fl_test *const groups[] = {fl_group_a,       fl_group_a2,     fl_group_b, fl_group_c,
                                            fl_group_c2,      fl_group_d,      fl_group_e, fl_group_e2, fl_drift, fl_long, fl_hostile,
                                            fl_hostile_calls, fl_hostile_files};
    static run runs[512];
    int32_t used = 0;
    const cb_isa *isas;
    chk_start(argc, argv);
    const int32_t count = cb_isas(&isas);
    for (size_t g = 0; g < sizeof groups / sizeof groups[0]; g++) {
        if (CB_DEVICE && (groups[g] == fl_hostile || groups[g] == fl_hostile_calls || groups[g] == fl_group_e2 ||
                          groups[g] == fl_long)) {
            continue; /* refusals of the host, the device's are in gpu/; formats that it has not */
        }
        for (const fl_test *t = groups[g]; t->name != NULL; t++) {
            if (CB_DEVICE && strstr(t->name, "tree") != NULL) {
                continue; /* none on a device */
            }
            for (int32_t i = 0; i < count; i++) {
                run *r = &runs[used++];
                r->test = t;
                r->isa = isas[i].mask;
                snprintf(r->name, sizeof r->name, "%s/%s", t->name, isas[i].name);
                if (chk_opts()->isa == NULL || strcmp(chk_opts()->isa, isas[i].name) == 0) {
                    chk_case(r->name, run_test, r);
                }
            }
        }
    }
    return chk_finish();
}
