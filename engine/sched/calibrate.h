/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of a model's reads before it runs: per recurrent layer and head a scale for each column of the state,
 * what an error in it costs, and the few directions in which errors cost most. Found once from some text, kept in a
 * small safetensors file, used by nvfp4 read copies.
 *
 * From M, the mean of r r^T over the walked-back queries r, and s, the columns' root mean squares: the scale of column c
 * is M_cc^(1/4) s_c^(-1/2), which makes the expected error of the output least when the columns of a block share one
 * step; the weight is M_cc; the directions are the leading eigenvectors of M between scaled columns.
 */
#ifndef RSE_CALIBRATE_H
#define RSE_CALIBRATE_H

#include "engine.h"

#define RSE_CALIBRATION_NAME "calibration.safetensors" /* in a model's directory */

typedef struct rse_calibration rse_calibration;

/*
 * Finds the calibration that the options name, or the one in the model's directory. *calibration is NULL where there is
 * none, or no use for one. RSE_ERROR_IO, RSE_ERROR_FORMAT for the file; RSE_ERROR_MISMATCH for another model's.
 */
rse_status rse_calibration_find(const rse_engine *engine, const char *directory, rse_calibration **calibration,
                                rse_error *err);
void rse_calibration_close(rse_calibration *calibration); /* NULL is fine */

/* How the states of a cache are stored: the options as they are, or the scheme that suits its layers. */
void rse_calibration_scheme(bool calibrated, const rse_state_options *state, rssm_cache_desc *desc);
/* Hands the calibration of recurrent layers first, first + 1, ... to the layers of a cache that was made with this state,
   if there is any and it is for it. */
rse_status rse_calibration_apply(const rse_engine *engine, const rse_state_options *state, rssm_cache *cache, int32_t first,
                                 int32_t layers, rse_error *err);

typedef struct rse_calibrator rse_calibrator;

/* From now on the engine's decode steps, of one session each, are watched. Its states are f32 without a read copy. */
rse_status rse_calibrator_open(rse_engine *engine, rse_calibrator **calibrator, rse_error *err);
/* Writes what was found. RSE_ERROR_USAGE if nothing was read. */
rse_status rse_calibrator_write(const rse_calibrator *calibrator, const char *path, rse_error *err);
/* Before the engine is closed. NULL is fine. */
void rse_calibrator_close(rse_calibrator *calibrator);

#endif
