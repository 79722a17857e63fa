/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the scan needs of an instruction set beyond the vector vocabulary:
 *
 *   scan_transpose         to[j][i] = from[i][j] for a block of 16 x 16 floats; row strides in floats
 *   scan_flush_subnormals  from here on subnormal numbers may count as zero; returns what scan_restore takes
 * back
 *
 * Products of decays run through the subnormal range on their way to zero, where some processors take a hundred
 * times as long. Nothing of the result depends on them.
 */
#ifndef RSSM_SCAN_OPS_H
#define RSSM_SCAN_OPS_H

#include <stddef.h>

#include "cpu/vec.h"

#if defined(RSSM_VARIANT_AVX512)

static inline void scan_transpose(float *to, ptrdiff_t to_stride, const float *from, ptrdiff_t from_stride) {
    for (int j = 0; j < 16; j += 4) {
        __m512 x[4]; /* x[i]: columns j..j+3 of rows i, i+4, i+8, i+12 */
        for (int i = 0; i < 4; i++) {
            const float *p = from + i * from_stride + j;
            x[i] = _mm512_castps128_ps512(_mm_loadu_ps(p));
            x[i] = _mm512_insertf32x4(x[i], _mm_loadu_ps(p + 4 * from_stride), 1);
            x[i] = _mm512_insertf32x4(x[i], _mm_loadu_ps(p + 8 * from_stride), 2);
            x[i] = _mm512_insertf32x4(x[i], _mm_loadu_ps(p + 12 * from_stride), 3);
        }
        __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(x[0], x[1]));
        __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(x[0], x[1]));
        __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(x[2], x[3]));
        __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(x[2], x[3]));
        float *out = to + j * to_stride;
        v16_store(out, _mm512_castpd_ps(_mm512_unpacklo_pd(a, c)));
        v16_store(out + to_stride, _mm512_castpd_ps(_mm512_unpackhi_pd(a, c)));
        v16_store(out + 2 * to_stride, _mm512_castpd_ps(_mm512_unpacklo_pd(b, d)));
        v16_store(out + 3 * to_stride, _mm512_castpd_ps(_mm512_unpackhi_pd(b, d)));
    }
}

static inline unsigned scan_flush_subnormals(void) {
    unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040u); /* results (FTZ) and operands (DAZ) */
    return mode;
}
static inline void scan_restore(unsigned mode) {
    _mm_setcsr(mode);
}

#else

static inline void scan_transpose(float *to, ptrdiff_t to_stride, const float *from, ptrdiff_t from_stride) {
    for (int j = 0; j < 16; j++) {
        for (int i = 0; i < 16; i++) {
            to[j * to_stride + i] = from[i * from_stride + j];
        }
    }
}

static inline unsigned scan_flush_subnormals(void) {
    return 0;
}
static inline void scan_restore(unsigned mode) {
    (void)mode;
}

#endif
#endif
