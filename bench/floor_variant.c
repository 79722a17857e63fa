/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loops of floors.h for one instruction set; compiled once per ISA with its flags.
 */
#include "cpu/vec.h"
#include "floors.h"

/*
 * One sequential stream does not reach a core's bandwidth where the prefetcher stops at every page: blocks of 8
 * pages are taken in turns, 512 bytes of each at a time.
 */
enum { LANES = 16, UNROLL = 8, PAGE = 1024, STREAMS = 8, BLOCK = STREAMS * PAGE };

/* Calls body(offset) for every 128 floats of n. */
#define SWEEP(n, body)                                                                                         \
    do {                                                                                                       \
        size_t whole_ = (n) / BLOCK * BLOCK;                                                                   \
        for (size_t block_ = 0; block_ < whole_; block_ += BLOCK) {                                            \
            for (size_t in_ = 0; in_ < PAGE; in_ += LANES * UNROLL) {                                          \
                for (size_t page_ = 0; page_ < BLOCK; page_ += PAGE) {                                         \
                    body(block_ + page_ + in_);                                                                \
                }                                                                                              \
            }                                                                                                  \
        }                                                                                                      \
        for (size_t at_ = whole_; at_ < (n); at_ += LANES * UNROLL) {                                          \
            body(at_);                                                                                         \
        }                                                                                                      \
    } while (0)

static inline void read_128(const float *x, v16 sum[UNROLL]) {
    for (int j = 0; j < UNROLL; j++) {
        sum[j] = v16_add(sum[j], v16_load(x + LANES * j));
    }
}

static float read_sweep(const float *x, size_t n) {
    v16 sum[UNROLL];
    for (int j = 0; j < UNROLL; j++) {
        sum[j] = v16_zero();
    }
#define READ(at) read_128(x + (at), sum)
    SWEEP(n, READ);
    for (int j = 1; j < UNROLL; j++) {
        sum[0] = v16_add(sum[0], sum[j]);
    }
    return v16_sum(sum[0]);
}

static inline void update_128(float *x) {
    const v16 a = v16_set1(0.5f), b = v16_set1(1.0f);
    for (int j = 0; j < UNROLL; j++) {
        v16_store(x + LANES * j, v16_fma(v16_load(x + LANES * j), a, b));
    }
}

static void update_sweep(float *x, size_t n) {
#define UPDATE(at) update_128(x + (at))
    SWEEP(n, UPDATE);
}

static inline void copy_128(float *to, const float *from) {
    for (int j = 0; j < UNROLL; j++) {
        v16_store(to + LANES * j, v16_load(from + LANES * j));
    }
}

static void copy_sweep(float *to, const float *from, size_t n) {
#define COPY(at) copy_128(to + (at), from + (at))
    SWEEP(n, COPY);
}

/* Sixteen independent chains: more than the latency of a multiply-add times the two units that do them. */
static float multiply_add(int64_t rounds) {
    const v16 a = v16_set1(0.5f), b = v16_set1(1.0f);
    v16 x0 = v16_set1(0.0f), x1 = v16_set1(0.1f), x2 = v16_set1(0.2f), x3 = v16_set1(0.3f);
    v16 x4 = v16_set1(0.4f), x5 = v16_set1(0.5f), x6 = v16_set1(0.6f), x7 = v16_set1(0.7f);
    v16 x8 = x0, x9 = x1, x10 = x2, x11 = x3, x12 = x4, x13 = x5, x14 = x6, x15 = x7;
    for (int64_t i = 0; i < rounds; i++) {
        x0 = v16_fma(x0, a, b), x1 = v16_fma(x1, a, b), x2 = v16_fma(x2, a, b), x3 = v16_fma(x3, a, b);
        x4 = v16_fma(x4, a, b), x5 = v16_fma(x5, a, b), x6 = v16_fma(x6, a, b), x7 = v16_fma(x7, a, b);
        x8 = v16_fma(x8, a, b), x9 = v16_fma(x9, a, b), x10 = v16_fma(x10, a, b), x11 = v16_fma(x11, a, b);
        x12 = v16_fma(x12, a, b), x13 = v16_fma(x13, a, b), x14 = v16_fma(x14, a, b), x15 = v16_fma(x15, a, b);
#if defined(__GNUC__) && defined(RSSM_VARIANT_AVX512)
        /* identical chains must stay sixteen */
        __asm__ volatile("" : "+v"(x0), "+v"(x1), "+v"(x2), "+v"(x3), "+v"(x4), "+v"(x5), "+v"(x6), "+v"(x7));
        __asm__ volatile(""
                         : "+v"(x8), "+v"(x9), "+v"(x10), "+v"(x11), "+v"(x12), "+v"(x13), "+v"(x14),
                           "+v"(x15));
#endif
    }
    v16 y = v16_add(v16_add(v16_add(x0, x1), v16_add(x2, x3)), v16_add(v16_add(x4, x5), v16_add(x6, x7)));
    v16 z = v16_add(v16_add(v16_add(x8, x9), v16_add(x10, x11)), v16_add(v16_add(x12, x13), v16_add(x14, x15)));
    return v16_sum(v16_add(y, z));
}

const bench_floor_ops RSSM_NAME(bench_floor_ops) = {read_sweep, update_sweep, copy_sweep, multiply_add};
