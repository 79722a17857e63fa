/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The random numbers of stochastic rounding: Philox 4x32 with 7 rounds (Salmon et al. 2011, "Parallel random numbers: as
 * easy as 1, 2, 3"), a pure function of a counter and a key, for C and CUDA alike. tests/unit/test_numbers.c compares it
 * with Random123.
 *
 * Law (i): the 16 bits that an element is rounded with are a function of (seed, global layer, global head, sequence
 * id, position, row, column) and nothing else. Sequence and position go through the generator once, layer and head
 * a second time; what comes out is the key of that head's elements at that flush. One call then serves 8 columns of a
 * row that lie 16 apart, so that 16 lanes of a vector do 128 neighbouring columns.
 */
#ifndef RSSM_PHILOX_H
#define RSSM_PHILOX_H

#include "numbers.h"

typedef struct rssm_philox {
    uint32_t x[4];
} rssm_philox;

RSSM_BOTH rssm_philox rssm_philox_draw(rssm_philox c, uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 7; round++) {
        const uint64_t a = (uint64_t)0xd2511f53u * c.x[0], b = (uint64_t)0xcd9e8d57u * c.x[2];
        const rssm_philox next = {{(uint32_t)(b >> 32) ^ c.x[1] ^ key0, (uint32_t)b,
                                   (uint32_t)(a >> 32) ^ c.x[3] ^ key1, (uint32_t)a}};
        c = next;
        key0 += 0x9e3779b9u;
        key1 += 0xbb67ae85u;
    }
    return c;
}

/* What one flush of one head is rounded with. */
typedef struct rssm_stream {
    uint32_t key0, key1, tag0, tag1;
} rssm_stream;

RSSM_BOTH rssm_stream rssm_stream_make(uint64_t seed, uint32_t layer, uint32_t head, uint64_t id, int64_t position) {
    rssm_philox c = {{(uint32_t)id, (uint32_t)(id >> 32), (uint32_t)(uint64_t)position,
                      (uint32_t)((uint64_t)position >> 32)}};
    c = rssm_philox_draw(c, (uint32_t)seed, (uint32_t)(seed >> 32));
    const rssm_philox where = {{layer, head, c.x[0], c.x[1]}};
    c = rssm_philox_draw(where, c.x[2], c.x[3]);
    const rssm_stream s = {c.x[0], c.x[1], c.x[2], c.x[3]};
    return s;
}

/* The call that serves columns `lane`, lane + 16, ... of the `group`th 128 columns of a row. */
RSSM_BOTH rssm_philox rssm_stream_call(rssm_stream s, uint32_t row, uint32_t group, uint32_t lane) {
    const rssm_philox c = {{(row << 8) | (group << 4) | lane, 0, s.tag0, s.tag1}};
    return rssm_philox_draw(c, s.key0, s.key1);
}

/* The 16 bits of one element. */
RSSM_BOTH uint32_t rssm_stream_bits(rssm_stream s, uint32_t row, uint32_t column) {
    const uint32_t block = (column >> 4) & 7u;
    const rssm_philox c = rssm_stream_call(s, row, column >> 7, column & 15u);
    return (c.x[block >> 1] >> (16 * (block & 1u))) & 0xffffu;
}

#endif
