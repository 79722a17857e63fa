/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recurrence of one value head, forwards; and the output of the newest token without a forward step, by
 * walking its query back through the records. With r the query seen from before record j,
 *
 *     S_j r = S_{j-1} diag(alpha) (r - delta beta k (k . r)) + beta v (k . r)
 *
 * so each record adds beta (k . r) v to y and turns r into alpha (.) (r - delta beta (k . r) k); what is left
 * of r meets the checkpoint. Both are the same sum in another order.
 */
#include <string.h>

#include "ref/ref.h"

static double dot(int32_t n, const double *a, const double *b) {
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

void rssm_ref_update(int32_t d_k, int32_t d_v, bool delta, double *S, const double *k, const double *v,
                     const double *alpha, double beta) {
    for (int32_t row = 0; row < d_v; row++) {
        double *s = S + (int64_t)row * d_k;
        for (int32_t c = 0; c < d_k; c++) {
            s[c] *= alpha[c];
        }
        const double held = delta ? dot(d_k, s, k) : 0.0; /* what the state holds at k already */
        for (int32_t c = 0; c < d_k; c++) {
            s[c] += beta * (v[row] - held) * k[c];
        }
    }
}

void rssm_ref_read(int32_t d_k, int32_t d_v, const double *S, const double *q, double *y) {
    for (int32_t row = 0; row < d_v; row++) {
        y[row] = dot(d_k, S + (int64_t)row * d_k, q);
    }
}

void rssm_ref_walk(int32_t d_k, int32_t d_v, bool delta, const double *S, int32_t n,
                   const rssm_ref_record *records, const int32_t *parents, const double *q, double *y,
                   double *scratch) {
    double *r = scratch;
    memcpy(r, q, (size_t)d_k * sizeof *r);
    memset(y, 0, (size_t)d_v * sizeof *y);
    for (int32_t j = n - 1; j >= 0; j = parents ? parents[j] : j - 1) {
        const rssm_ref_record *record = &records[j];
        const double c = record->beta * dot(d_k, record->k, r);
        for (int32_t row = 0; row < d_v; row++) {
            y[row] += c * record->v[row];
        }
        for (int32_t i = 0; i < d_k; i++) {
            r[i] = record->alpha[i] * (r[i] - (delta ? c * record->k[i] : 0.0));
        }
    }
    for (int32_t row = 0; row < d_v; row++) {
        y[row] += dot(d_k, S + (int64_t)row * d_k, r);
    }
}
