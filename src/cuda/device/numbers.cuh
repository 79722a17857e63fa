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

/* Elements at .. at + 3 of a row, of which `left` exist; the others are zero. One load where the address allows it. */
static __device__ __forceinline__ float4 load4(const void *p, int64_t at, int left, int bf16) {
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (bf16) {
        const uint16_t *from = (const uint16_t *)p + at;
        if (left >= 4 && ((uintptr_t)from & 7) == 0) {
            uint2 h = __ldg((const uint2 *)from);
            return make_float4(__uint_as_float(h.x << 16), __uint_as_float(h.x & 0xffff0000u), __uint_as_float(h.y << 16),
                               __uint_as_float(h.y & 0xffff0000u));
        }
    } else {
        const float *from = (const float *)p + at;
        if (left >= 4 && ((uintptr_t)from & 15) == 0) {
            return __ldg((const float4 *)from);
        }
    }
    x.x = left > 0 ? load_io(p, at, bf16) : 0.0f;
    x.y = left > 1 ? load_io(p, at + 1, bf16) : 0.0f;
    x.z = left > 2 ? load_io(p, at + 2, bf16) : 0.0f;
    x.w = left > 3 ? load_io(p, at + 3, bf16) : 0.0f;
    return x;
}

/* The same where the address is known to allow one load. */
static __device__ __forceinline__ float4 load4_whole(const void *p, int64_t at, int bf16) {
    if (bf16) {
        uint2 h = __ldg((const uint2 *)((const uint16_t *)p + at));
        return make_float4(__uint_as_float(h.x << 16), __uint_as_float(h.x & 0xffff0000u), __uint_as_float(h.y << 16),
                           __uint_as_float(h.y & 0xffff0000u));
    }
    return __ldg((const float4 *)((const float *)p + at));
}

/* Four elements of a row in working memory, of which `left` exist. */
static __device__ __forceinline__ float4 held4(const void *p, int at, int left, int bf16) {
    if (bf16) {
        const uint16_t *from = (const uint16_t *)p + at;
        if (left >= 4 && ((uintptr_t)from & 7) == 0) {
            const uint2 h = *(const uint2 *)from;
            return make_float4(__uint_as_float(h.x << 16), __uint_as_float(h.x & 0xffff0000u), __uint_as_float(h.y << 16),
                               __uint_as_float(h.y & 0xffff0000u));
        }
        return make_float4(left > 0 ? f32_of_bf16(from[0]) : 0.0f, left > 1 ? f32_of_bf16(from[1]) : 0.0f,
                           left > 2 ? f32_of_bf16(from[2]) : 0.0f, left > 3 ? f32_of_bf16(from[3]) : 0.0f);
    }
    const float *from = (const float *)p + at;
    if (left >= 4 && ((uintptr_t)from & 15) == 0) {
        return *(const float4 *)from;
    }
    return make_float4(left > 0 ? from[0] : 0.0f, left > 1 ? from[1] : 0.0f, left > 2 ? from[2] : 0.0f, left > 3 ? from[3] : 0.0f);
}

static __device__ __forceinline__ void store4(void *p, int64_t at, int left, float4 x, int bf16) {
    if (bf16) {
        uint16_t *to = (uint16_t *)p + at;
        if (left >= 4 && ((uintptr_t)to & 7) == 0) {
            *(uint2 *)to = make_uint2(bf16_of_f32(x.x) | (uint32_t)bf16_of_f32(x.y) << 16,
                                      bf16_of_f32(x.z) | (uint32_t)bf16_of_f32(x.w) << 16);
            return;
        }
    } else {
        float *to = (float *)p + at;
        if (left >= 4 && ((uintptr_t)to & 15) == 0) {
            *(float4 *)to = x;
            return;
        }
    }
    if (left > 0) {
        store_io(p, at, x.x, bf16);
    }
    if (left > 1) {
        store_io(p, at + 1, x.y, bf16);
    }
    if (left > 2) {
        store_io(p, at + 2, x.z, bf16);
    }
    if (left > 3) {
        store_io(p, at + 3, x.w, bf16);
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

static __device__ __forceinline__ float4 scale4(float4 x, float factor) {
    return make_float4(__fmul_rn(x.x, factor), __fmul_rn(x.y, factor), __fmul_rn(x.z, factor), __fmul_rn(x.w, factor));
}

static __device__ __forceinline__ float4 fma4(float4 a, float4 b, float4 c) {
    return make_float4(__fmaf_rn(a.x, b.x, c.x), __fmaf_rn(a.y, b.y, c.y), __fmaf_rn(a.z, b.z, c.z), __fmaf_rn(a.w, b.w, c.w));
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
