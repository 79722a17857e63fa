/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of the laws' program: what a case runs on. */
#ifndef RSSM_TESTS_LAWS_H
#define RSSM_TESTS_LAWS_H

#include "harness/cachebox.h"

typedef struct setting {
    int32_t kind, io;
    cb_isa isa;
    char name[64];
} setting;

/* A small problem of the setting, with the sizes that the laws are about drawn wide. number: of --problem. */
cb_problem *laws_draw(chk_rng *rng, const setting *at, int32_t number, int32_t layers, int64_t slots,
                      int32_t reserved);
chk_poison laws_poison(chk_rng *rng);
/* Law d, a layer split over two ranks; a case over a setting. */
void laws_split(void *arg);
/* Decode in parts: interleaved over batches, and left half-done; cases over a setting. */
void laws_parts(void *arg);
void laws_torn(void *arg);

#endif
