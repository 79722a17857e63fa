/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control of quality studies: an fp32 recurrence whose outputs are read, after each flush, from its state with
 * fresh noise of exactly the size of a read copy's error: the error of every element with a random sign. What such
 * noise does to a model at some length is the model's own sensitivity; a copy whose errors do no worse has no other
 * fault than its size.
 *
 * The engine's checkpoints lie in memory of the control, in two sets: what the recurrence continues from, and what is
 * read. Between steps the cache is bound to either as need be. One session; the copy's errors come from a second cache,
 * whose copy is shared, so that adopting a state leaves its quantised values in the checkpoint.
 */
#ifndef RSE_CONTROL_H
#define RSE_CONTROL_H

#include "engine.h"

typedef struct rse_control rse_control;

/* The engine has fp32 states without a read copy and the method replay; scheme says what copy's errors are taken. */
rse_status rse_control_create(rse_engine *engine, const rse_state_options *scheme, rse_control **control, rse_error *err);
/* Before the engine is closed, which is of no more use then. NULL is fine. */
void rse_control_destroy(rse_control *control);
/* Keeps the session's pending tokens, and at a flush boundary makes new noise. To be called before each step. */
rse_status rse_control_before(rse_control *control, rse_session *session, rse_error *err);

/* The state of all recurrent layers after the kept tokens, as fp32: [layers][value_heads][d_v][d_k], whatever formats and
 * method the engine has. control: the engine's, or NULL. states NULL asks for the number of values alone. */
rse_status rse_states_read(rse_engine *engine, rse_session *session, rse_control *control, float *states, int64_t *count,
                           rse_error *err);

#endif
