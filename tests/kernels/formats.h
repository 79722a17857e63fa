/* SPDX-License-Identifier: Apache-2.0 */
/* What narrow states must hold and what they do hold, by way of the reference. */
#ifndef RSSM_TESTS_FORMATS_H
#define RSSM_TESTS_FORMATS_H

#include "cachebox.h"
#include "cursor.h"

/* Row `row` of all heads ([value_heads][d_v]) of a checkpoint, from its fp32 state at a position. */
void formats_expect_row(const cb_problem *problem, int32_t layer, int64_t row, uint64_t id, int64_t position,
                        const float *plain, double *expected);
/* The same as it is stored. */
void formats_stored_row(const cb_box *box, int32_t layer, int32_t slot, int64_t row, double *stored);
/* The state that reads see, [value_heads][d_v][d_k]. */
void formats_readable(const cb_box *box, int32_t layer, int32_t slot, double *state);
/* The read copy is what the reference makes of the stored checkpoint. nvfp4 with options: no worse than the plain format. */
bool formats_check_copy(const cb_box *box, int32_t layer, int32_t slot);
/* A random calibration for an nvfp4 copy, on all layers. */
void formats_calibrate(chk_rng *rng, const cb_box *box);
/* Exports, imports, copies and materialises a slot: equal parameters keep every bit, others round once. */
void formats_check_moves(chk_rng *rng, const cb_box *box, int32_t slot);

#endif
