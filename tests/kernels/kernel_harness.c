/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every variant of kernels.def on random problems. A case is a variant, named as the library names it
 * (gdn_decode_avx512_f32_bf16); a problem is a layer spec, a cache and a stream of model steps drawn from the
 * seed, the case's name and the problem's number, so that a failing one can be run alone. What is checked is
 * written at tests/harness/driver.h.
 *
 *     kernel_harness --list | --only 'kda*' | --isa avx512 | --seed 7 | --repeat 1000 | --problem 42
 */
#include <string.h>

#include "cpu/kernels.h"
#include "driver.h"
#include "gpu/on_device.h"

typedef struct variant {
    const char *name;
    const char *isa;
    uint64_t mask;
    int32_t kind, io_dtype;
} variant;

enum { PROBLEMS = CB_DEVICE ? 60 : 160 };

/* Most problems are small; a few have the head sizes of models. Bigger ones get shorter streams. */
static int32_t draw_size(chk_rng *rng, int64_t *cost) {
    static const int64_t costs[] = {600, 600, 600, 600, 600, 2500, 2500, 2500, 9000};
    *cost = chk_flip(rng, 0.01) ? 135000 : chk_flip(rng, 0.03) ? 40000 : CHK_PICK(rng, costs);
    return *cost > 9000 ? 12 : *cost > 2500 ? 24 : *cost > 600 ? 40 : 64;
}

static void run_problem(const variant *v, int32_t problem) {
    chk_rng rng = chk_rng_make(v->name, (uint64_t)problem);
    int64_t cost;
    const int32_t tokens = draw_size(&rng, &cost);
    cb_problem *p = cb_problem_draw(&rng, v->kind, v->io_dtype, cost);
    chk_params("problem=%d %s", problem, cb_problem_text(p));
    dr_driver *driver = dr_make(&rng, p, v->mask, tokens, NULL);
    rssm_cache_info info = {.struct_size = sizeof info};
    cb_ok(driver->lanes[DR_TESTED].box, rssm_cache_status(driver->lanes[DR_TESTED].box->cache, &info),
          "status");
    if (!CB_DEVICE && strcmp(info.kernel, v->name) != 0) {
        chk_abandon("the cache runs %s", info.kernel);
    }
    while (dr_step(driver)) {
    }
    dr_finish(driver);
}

static void run_variant(void *arg) {
    const variant *v = arg;
    for (int32_t problem = 0; problem < chk_repeat(PROBLEMS) && chk_ok(); problem++) {
        if (chk_wants(problem)) {
            run_problem(v, problem);
            chk_release();
        }
    }
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int32_t value;
    } kinds[] =
        {
#define RSSM_KIND(name, kind) {#name, kind},
#include "kernels.def"
        },
      formats[] = {
#define RSSM_IO(name, dtype) {#name, dtype},
#include "kernels.def"
      };
    chk_start(argc, argv);
    const cb_isa *isas;
    const int32_t isa_count = cb_isas(&isas);
    for (int32_t i = 0; i < isa_count; i++) {
        const rssm_kernels *kernels = rssm_kernels_select(isas[i].mask == RSSM_ISA_NONE || CB_DEVICE ? 0 : isas[i].mask);
        if (chk_opts()->isa && strcmp(chk_opts()->isa, isas[i].name) != 0) {
            continue;
        }
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
                variant v = {.isa = isas[i].name, .mask = isas[i].mask};
                v.kind = kinds[k].value;
                v.io_dtype = formats[f].value;
                v.name = rssm_kernel_name(kernels, v.kind, &(rssm_formats){.checkpoint = RSSM_DTYPE_F32}, v.io_dtype);
                chk_case(v.name, run_variant, &v);
            }
        }
    }
    return chk_finish();
}
