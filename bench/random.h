/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers for inputs, orders and made-up weights: splitmix64 (Sebastiano Vigna), which needs one word of
 * state and no better is needed. */
#ifndef RSE_BENCH_RANDOM_H
#define RSE_BENCH_RANDOM_H

#include <stdint.h>

static inline uint64_t bench_random(uint64_t *state) {
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* In [low, high). */
static inline float bench_uniform(uint64_t *state, float low, float high) {
    return low + (high - low) * ((float)(bench_random(state) >> 40) * 0x1p-24f);
}

#endif
