/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The oracle: every formula of the library in double precision, one function per operation, written to be read
 * beside the equations. Nothing here is shared with the kernels, and nothing here is fast. Tests compare the
 * kernels with it; it is documentation for everybody else.
 *
 * Where a formula takes inputs of the layer, they are the numbers the caller handed in. The only roundings are
 * those the library promises (cache.h): q, k and v are rounded to the io format after convolution and
 * activation, before any method uses them. Norms, gates and y are never rounded here; y is what would be stored
 * if the output format were exact.
 *
 * S is [d_v][d_k], d_k contiguous. A decay is always a vector of d_k factors; the scalar decay of Mamba-2 and
 * GDN is a vector of equal ones.
 */
#ifndef RSSM_REF_H
#define RSSM_REF_H

#include <stdbool.h>
#include <stdint.h>

#include "replayssm/cache.h"

/* ---- Numbers ------------------------------------------------------------------------------------------ */

/* Element i of an array of f32, f16, bf16, f8 (E4M3) or int8; without any scale. */
double rssm_ref_load(const void *data, int32_t dtype, int64_t i);
/* x rounded to f32, f16, bf16 or f8 (nearest, ties to even), as a double. Rounded once, whatever the format. */
double rssm_ref_round(double x, int32_t dtype);
/* Up with the probability that is the distance from the number below in multiples of 2^-16: if that distance and the 16
   random bits make 1 together. */
double rssm_ref_round_stochastic(double x, int32_t dtype, uint32_t random);
/* The power of two that brings a row's largest magnitude into [128, 256); 0 if that is below 2^-100, NaN if an element
   is infinite or NaN. */
double rssm_ref_row_scale(int32_t n, const float *x);
/* A row of the state as a checkpoint of this format holds it; f8 by way of the row's scale. random [n]: 16 bits each;
   NULL: nearest. */
void rssm_ref_state_row(int32_t dtype, int32_t n, const float *x, const uint32_t *random, double *rounded);
/* The same as an int8 read copy holds it: nearest multiples of largest / 127, the quotients taken in fp32. */
void rssm_ref_int8_row(int32_t n, const float *x, double *rounded);
/* A block as the plain nvfp4 copy holds it: g s e2m1, g = largest of the head / 2688, s = E4M3(largest of the block / 6 g),
   the quotients taken in fp32. */
void rssm_ref_nvfp4_block(int32_t n, const float *x, float head_largest, double *rounded);

double rssm_ref_sigmoid(double x);
double rssm_ref_softplus(double x); /* log(1 + e^x) */
double rssm_ref_silu(double x);     /* x sigmoid(x) */

/* ---- Around the recurrence ---------------------------------------------------------------------------- */

/* One channel of the causal convolution: bias + sum_i taps[i] window[i], window oldest first, then silu. */
double rssm_ref_convolve(int32_t width, const float *taps, double bias, const double *window, bool silu);

/* 1 / sqrt(sum x^2 + eps). */
double rssm_ref_inverse_norm(int32_t n, const double *x, double eps);

/*
 * alpha [d_k] and *beta of one value head, from what the layer got: decay [1], or [d_k] for KDA, and beta
 * (unused where it follows from decay). spec must be resolved.
 */
void rssm_ref_gates(const rssm_layer_spec *spec, const rssm_layer_weights *weights, int32_t value_head,
                    const double *decay, double beta_input, double *alpha, double *beta);

/*
 * What happens to y [value_heads][d_v] before it is stored: spec->out_norm with gate z of the same shape. spec
 * must be resolved. weight as in rssm_layer_weights, or NULL for ones. scale, or NULL, is the size of y's
 * rounding errors up to a factor; it becomes that of the result.
 */
void rssm_ref_out_norm(const rssm_layer_spec *spec, const float *weight, const double *z, double *y,
                       double *scale);

/* ---- The recurrence, one value head -------------------------------------------------------------------- */

/* S = S diag(alpha) (I - delta beta k k^T) + beta v k^T. */
void rssm_ref_update(int32_t d_k, int32_t d_v, bool delta, double *S, const double *k, const double *v,
                     const double *alpha, double beta);
/* y = S q. */
void rssm_ref_read(int32_t d_k, int32_t d_v, const double *S, const double *q, double *y);

typedef struct rssm_ref_record {
    const double *k;     /* [d_k] */
    const double *v;     /* [d_v] */
    const double *alpha; /* [d_k] */
    double beta;
} rssm_ref_record;

/*
 * The output-only evaluation: y of the newest of n records (oldest first) over a checkpoint S, by walking the
 * query back through the records. S is only read. scratch holds d_k doubles. parents, or NULL for a chain: of a
 * tree of records, the one before each on its path, -1 for none; the walk then goes through the last record's
 * ancestors.
 */
void rssm_ref_walk(int32_t d_k, int32_t d_v, bool delta, const double *S, int32_t n,
                   const rssm_ref_record *records, const int32_t *parents, const double *q, double *y,
                   double *scratch);

/* ---- A whole layer of one sequence ---------------------------------------------------------------------- */

/* The spec with every default filled in (base.h: zero stands for the default). */
rssm_layer_spec rssm_ref_resolve(const rssm_layer_spec *spec);
/* Which key head a value head uses. */
int32_t rssm_ref_key_head(const rssm_layer_spec *spec, int32_t value_head);

/* State and convolution context of one layer of one sequence. */
typedef struct rssm_ref_layer rssm_ref_layer;

/* A layer at position 0 with zero state. weights (and the arrays in it) must outlive it. NULL: out of memory.
 */
rssm_ref_layer *rssm_ref_layer_create(const rssm_layer_spec *spec, const rssm_layer_weights *weights,
                                      int32_t io_dtype);
void rssm_ref_layer_destroy(rssm_ref_layer *layer);
/* dst becomes src; both of the same spec. This is how a test keeps a sequence to return to. */
void rssm_ref_layer_copy(rssm_ref_layer *dst, const rssm_ref_layer *src);
/* Zero state and context. */
void rssm_ref_layer_reset(rssm_ref_layer *layer);
/*
 * Feeds token `token` of the inputs. y [value_heads][d_v]. scale, or NULL, of the same shape: what the rounding
 * errors of y are proportional to, from the sums that y and the state are made of.
 */
void rssm_ref_layer_token(rssm_ref_layer *layer, const rssm_layer_inputs *inputs, int64_t token, double *y,
                          double *scale);
/* [value_heads][d_v][d_k], valid until the layer's next call; writable, for states that come from elsewhere. */
double *rssm_ref_layer_state(rssm_ref_layer *layer);
/* [conv_width - 1][q channels | k channels | v channels], before the convolution, oldest first; NULL without
 * one. */
double *rssm_ref_layer_context(rssm_ref_layer *layer);
/* Channels of the convolution, q | k | v; 0 without one. */
int64_t rssm_ref_layer_channels(const rssm_ref_layer *layer);
/*
 * How far a channel of that token, after convolution, is from a number where rounding to bf16 changes its
 * answer, in multiples of the error that a careful f32 evaluation may make. Above 1: every correct evaluation
 * rounds alike. The layer is left as it is.
 */
double rssm_ref_layer_tie_margin(const rssm_ref_layer *layer, const rssm_layer_inputs *inputs, int64_t token,
                                 int64_t channel);

#endif
