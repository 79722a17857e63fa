/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A second reference: the layers token by token in double, written from the formulas of docs and papers and
 * sharing no code with the library or with its own reference (src/ref), so that a mistake there does not hide
 * itself.
 */
#ifndef RSSM_TESTS_REF64_H
#define RSSM_TESTS_REF64_H

#include "harness/cachebox.h"

typedef struct ref64 {
    const cb_problem *problem;
    int32_t layer;
    int64_t tokens;  /* taken so far */
    double *state;   /* [value_heads][d_v][d_k] */
    double *context; /* [conv_width - 1][q channels | k channels | v channels], oldest first */
} ref64;

/* Zero state, memory of the case. */
ref64 *ref64_make(const cb_problem *problem, int32_t layer);
void ref64_copy(ref64 *to, const ref64 *from);
/* One token, given as a blob of cachebox.h; y [value_heads][d_v] or NULL. */
void ref64_token(ref64 *r, const void *token, double *y);
/* Elements of a state. */
int64_t ref64_elements(const cb_problem *problem);

#endif
