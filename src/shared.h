/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What C and CUDA sources both compile. The rules of cursors and steps are written once, as inline functions over plain
 * structs: the CPU calls them in the caller's thread, the device in the kernels that plan a step.
 */
#ifndef RSSM_SHARED_H
#define RSSM_SHARED_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define RSSM_SHARED static __host__ __device__ __forceinline__
#define RSSM_ATOMIC_U32 uint32_t
#define RSSM_ATOMIC_I64 int64_t
#else
#include <stdatomic.h>
#define RSSM_SHARED static inline
#define RSSM_ATOMIC_U32 _Atomic uint32_t
#define RSSM_ATOMIC_I64 _Atomic int64_t
#endif

/* What the code believes. A kernel checks nothing: a trap there would take the caller's context with it. */
#ifdef __CUDA_ARCH__
#define RSSM_BELIEVE(condition) ((void)0)
#else
#define RSSM_BELIEVE(condition) assert(condition)
#endif

/* Where a part of one layer lies: slot s at base + s * stride. */
typedef struct rssm_part {
    char *base;
    int64_t stride; /* bytes */
} rssm_part;

#endif
