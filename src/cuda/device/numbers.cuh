/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions and activations on the device, operation for operation those of cpu/vec_math.h's names. */
#ifndef RSSM_CUDA_NUMBERS_CUH
#define RSSM_CUDA_NUMBERS_CUH

#include <stdint.h>

static __device__ __forceinline__ float f32_of_bf16(uint16_t h) {
    return __uint_as_float((uint32_t)h << 16);
}

/* Nearest, ties to even; infinity stays, NaN stays a quiet NaN. */
static __device__ __forceinline__ uint16_t bf16_of_f32(float x) {
    uint32_t u = __float_as_uint(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((u >> 16) | 0x40u);
    }
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static __device__ __forceinline__ float load_io(const void *p, int64_t i, int bf16) {
    return bf16 ? f32_of_bf16(__ldg((const uint16_t *)p + i)) : __ldg((const float *)p + i);
}

static __device__ __forceinline__ void store_io(void *p, int64_t i, float x, int bf16) {
    if (bf16) {
        ((uint16_t *)p)[i] = bf16_of_f32(x);
    } else {
        ((float *)p)[i] = x;
    }
}

static __device__ __forceinline__ float round_io(float x, int bf16) {
    return bf16 ? f32_of_bf16(bf16_of_f32(x)) : x;
}

/* 1 / (1 + e^-x), by way of e^-|x| so that nothing overflows. */
static __device__ __forceinline__ float sigmoid(float x) {
    float e = expf(-fabsf(x)), s = 1.0f / (1.0f + e);
    return x < 0.0f ? e * s : s;
}

/* x sigmoid(x); x = -inf would be -inf * 0. */
static __device__ __forceinline__ float silu(float x) {
    return x < -200.0f ? 0.0f : x * sigmoid(x);
}

static __device__ __forceinline__ float softplus(float x) {
    return (x < 0.0f ? 0.0f : x) + log1pf(expf(-fabsf(x)));
}

/* Sum over a warp by the fixed tree: lanes 16 apart, then 8, 4, 2, 1. Every lane gets it. */
static __device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) {
        x += __shfl_xor_sync(0xffffffffu, x, apart);
    }
    return x;
}

#endif
