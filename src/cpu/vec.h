/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The vector vocabulary. Every CPU kernel is one body written on these operations; a new instruction set is one
 * more header that provides them. The vector always has 16 float lanes, whatever the registers are (an AVX2
 * header uses two, a NEON header four), so that every variant sums in the same order.
 *
 *   v16                    16 floats                     m16   a mask of 16 lanes
 *   zero set1 load store   load_n store_n touch only the first n lanes (0..16); the others read as zero
 *   store8                 the first 8 lanes, by a store that later loads of its parts need not wait for
 *   load_bf16[_n] store_bf16[_n]                         store rounds to nearest even and keeps NaN
 *   load_f16[_n] load_i8[_n]                             exact
 *   store_f16[_n]          rounds to nearest even, beyond the format to infinity; NaN stays, quiet
 *   store_i8_n             rounds to nearest even; of -128 .. 127
 *   load_e4m3_256th[_n]    E4M3 / 256; the NaN codes read as +-480 / 256, which no number has
 *   load_e2m1(p, high)     of 16 bytes, the E2M1 codes in their low (0) or high (1) halves
 *   add sub mul div fma(a,b,c)=a*b+c max min sqrt abs neg
 *   round                  to the nearest integer, ties to even
 *   ldexp(x, n)            x * 2^n for integral n, subnormal results and overflow included
 *   lt(a,b) first(n) -> m16                              the first n lanes; n from 0 to 16
 *   select(m,a,b)          a where m is set
 *   sum                    over the lanes by the fixed tree: lanes 8 apart, then 4, 2, 1
 *   sum16(p)               lane i of the result is sum(p[i]), bit for bit; sum8(p) of 8, in the first 8 lanes
 *   transpose(to, from)    to[j][i] = from[i][j] for a block of 16 x 16 floats; row strides in floats
 *   flush_subnormals       from here on subnormal numbers may count as zero; returns what restore_subnormals takes back.
 *                          Decaying numbers run through that range on their way to zero, where some processors take
 *                          a hundred times as long; nothing depends on them
 *   V16_UNROLL             1 where code of its own for the usual dimensions pays
 *   prefetch               a hint that the line is wanted in the second-level cache
 *
 * fma is one rounding where the instruction set has it and two in the portable header: results of one variant
 * are reproducible, results of different variants agree to rounding.
 */
#ifndef RSSM_VEC_H
#define RSSM_VEC_H

#if defined(RSSM_VARIANT_AVX512)
#include "vec_avx512.h"
#define RSSM_VARIANT avx512
#elif defined(RSSM_VARIANT_AVX2)
#include "vec_avx2.h"
#define RSSM_VARIANT avx2
#elif defined(RSSM_VARIANT_NEON)
#include "vec_neon.h"
#define RSSM_VARIANT neon
#else
#include "vec_scalar.h"
#define RSSM_VARIANT scalar
#endif

/* Bodies that must be inlined for their constant arguments to count. Sanitizers would take minutes over the result,
   and look for other things than speed. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RSSM_INLINE static inline
#else
#define RSSM_INLINE static inline __attribute__((always_inline))
#endif

/* Before a loop whose trip count is a constant of at most 16 and whose arrays are registers. */
#if V16_UNROLL
#define RSSM_UNROLL _Pragma("GCC unroll 16")
#else
#define RSSM_UNROLL
#endif

/* Before a loop over 16 lanes in plain C: kept as a loop it becomes vector code, unrolled it does not. */
#define RSSM_LANES _Pragma("GCC unroll 1")

#define RSSM_CONCAT3_(a, b, c) a##b##c
#define RSSM_CONCAT3(a, b, c) RSSM_CONCAT3_(a, b, c)
/* The name of a function of this variant: RSSM_NAME(rssm_decode) -> rssm_decode_avx512. */
#define RSSM_NAME(base) RSSM_CONCAT3(base, _, RSSM_VARIANT)

#include "vec_math.h"

#endif
