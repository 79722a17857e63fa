/* SPDX-License-Identifier: Apache-2.0 */
/* The shapes of recurrent layers that benchmarks run on. */
#ifndef RSE_BENCH_SHAPES_H
#define RSE_BENCH_SHAPES_H

#include <replayssm/replayssm.h>
#include <stddef.h>

typedef struct bench_shape {
    const char *name;  /* of the model */
    int32_t kind;      /* RSSM_MAMBA2, RSSM_GDN, RSSM_KDA */
    int32_t key_heads; /* Mamba-2: groups */
    int32_t value_heads;
    int32_t d_k; /* Mamba-2: the state dimension N */
    int32_t d_v; /* Mamba-2: the head dimension P */
} bench_shape;

extern const bench_shape bench_shapes[];
extern const size_t bench_shape_count;

/* "mamba2", "gdn", "kda" */
const char *bench_kind_name(int32_t kind);
/* Bytes of one sequence's fp32 state. */
size_t bench_shape_state(const bench_shape *shape);

#endif
