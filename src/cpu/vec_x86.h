/* SPDX-License-Identifier: Apache-2.0 */
/* What the vector vocabularies of x86 have in common; vec.h says what each operation means. */
#ifndef RSSM_VEC_X86_H
#define RSSM_VEC_X86_H

#include <immintrin.h>

static inline unsigned v16_flush_subnormals(void) {
    unsigned mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040u); /* results (FTZ) and operands (DAZ) */
    return mode;
}
static inline void v16_restore_subnormals(unsigned mode) {
    _mm_setcsr(mode);
}

static inline __attribute__((always_inline)) void v16_prefetch(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }

#endif
