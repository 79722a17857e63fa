/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of the state in registers: the inline update that conventional decoding and the fold share, and the read.
 *
 * Eight neighbouring lanes hold a row. Lane l of the eight holds the columns 32 i + 4 l + e, e = 0..3, i = 0, 1, ...: a
 * load of 16 bytes per lane, 128 in a row. A warp holds four rows at once, a thread ROWS of its group's, `groups` apart.
 *
 * Order of operations, the same wherever a state element is updated or read:
 *   x = alpha x;  dot = S' k;  u = beta (v - delta dot);  x = u k + x (one rounding)
 *   dot: per lane four sums, e = 0..3, over its columns in the order of i, by fused multiply-add from zero; then
 *   (s0 + s1) + (s2 + s3); then the lanes of the eight 4 apart, 2 apart, 1 apart.
 * It depends on d_k alone, so that a fold, a conventional step and a materialised copy agree to the last bit.
 */
#ifndef RSSM_CUDA_TILE_CUH
#define RSSM_CUDA_TILE_CUH

#include <cuda_pipeline.h>

#include "cuda/device/numbers.cuh"

/* BLOCKS blocks of 32 columns; EXACT: d_k is 32 BLOCKS and d_v a multiple of 16, else the number of blocks in use is
   `blocks` and columns end at d_k. */
template <int BLOCKS_, int ROWS_, bool EXACT_> struct tile_shape {
    static constexpr int BLOCKS = BLOCKS_, ROWS = ROWS_;
    static constexpr bool EXACT = EXACT_;
};

template <class S> struct tile {
    float x[S::ROWS][S::BLOCKS][4];
};

/* What a thread of a team holds of a head: rows first + r * groups, r < ROWS, of those below `rows`. */
struct tile_place {
    int lane;   /* of the eight */
    int group, groups;
    int d_k, blocks;
    int rows;   /* of the slice */
};

template <int THREADS> static __device__ __forceinline__ tile_place place_of(int thread, int d_k, int rows) {
    return tile_place{thread & 7, thread >> 3, THREADS / 8, d_k, (d_k + 31) / 32, rows}; /* constants fold */
}

template <class S> static __device__ __forceinline__ void load_tile(tile<S> &t, const tile_place &p, const float *state, int first) {
#pragma unroll
    for (int r = 0; r < S::ROWS; r++) {
        int row = first + p.group + r * p.groups;
#pragma unroll
        for (int i = 0; i < S::BLOCKS; i++) {
            float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            int column = 32 * i + 4 * p.lane;
            const float *from = state + row * (S::EXACT ? 32 * S::BLOCKS : p.d_k) + column;
            if (S::EXACT && row < p.rows) {
                v = __ldcs((const float4 *)from);
            } else if (!S::EXACT && row < p.rows && i < p.blocks) {
                v.x = column < p.d_k ? from[0] : 0.0f;
                v.y = column + 1 < p.d_k ? from[1] : 0.0f;
                v.z = column + 2 < p.d_k ? from[2] : 0.0f;
                v.w = column + 3 < p.d_k ? from[3] : 0.0f;
            }
            t.x[r][i][0] = v.x;
            t.x[r][i][1] = v.y;
            t.x[r][i][2] = v.z;
            t.x[r][i][3] = v.w;
        }
    }
}

template <class S> static __device__ __forceinline__ void store_tile(const tile<S> &t, const tile_place &p, float *state, int first) {
#pragma unroll
    for (int r = 0; r < S::ROWS; r++) {
        int row = first + p.group + r * p.groups;
        if (row >= p.rows) {
            continue;
        }
#pragma unroll
        for (int i = 0; i < S::BLOCKS; i++) {
            int column = 32 * i + 4 * p.lane;
            float *to = state + row * (S::EXACT ? 32 * S::BLOCKS : p.d_k) + column;
            if constexpr (S::EXACT) {
                __stcs((float4 *)to, make_float4(t.x[r][i][0], t.x[r][i][1], t.x[r][i][2], t.x[r][i][3]));
            } else {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    if (i < p.blocks && column + e < p.d_k) {
                        to[e] = t.x[r][i][e];
                    }
                }
            }
        }
    }
}

/* The same by asynchronous copies to a stage in shared memory. Each thread fetches what it will read itself, so that it
   waits for nobody. Thread by thread: [ROWS][BLOCKS] vectors, the team's threads side by side. */
template <class S> static __device__ __forceinline__ void fetch_tile(const tile_place &p, const float *state, int first, float *stage) {
    const int thread = 8 * p.group + p.lane;
    const float *from = state + (first + p.group) * (32 * S::BLOCKS) + 4 * p.lane;
    float4 *to = (float4 *)stage + thread;
#pragma unroll
    for (int r = 0; r < S::ROWS; r++) {
        if (first + p.group + r * p.groups < p.rows) {
#pragma unroll
            for (int i = 0; i < S::BLOCKS; i++) {
                __pipeline_memcpy_async(to + (r * S::BLOCKS + i) * (8 * p.groups), from + r * p.groups * (32 * S::BLOCKS) + 32 * i, 16);
            }
        }
    }
}

template <class S> static __device__ __forceinline__ void take_fetched(tile<S> &t, const tile_place &p, int first, const float *stage) {
    const int thread = 8 * p.group + p.lane;
    const float4 *from = (const float4 *)stage + thread;
#pragma unroll
    for (int r = 0; r < S::ROWS; r++) {
        const bool there = first + p.group + r * p.groups < p.rows;
#pragma unroll
        for (int i = 0; i < S::BLOCKS; i++) {
            const float4 v = there ? from[(r * S::BLOCKS + i) * (8 * p.groups)] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            t.x[r][i][0] = v.x;
            t.x[r][i][1] = v.y;
            t.x[r][i][2] = v.z;
            t.x[r][i][3] = v.w;
        }
    }
}

/* The same from rows in shared memory, of which the first is the tile's. Rows that are not there hold what the stage held
   before: nothing comes of them. */
template <class S> static __device__ __forceinline__ void take_tile(tile<S> &t, const tile_place &p, const float *stage) {
    stage += p.group * (32 * S::BLOCKS) + 4 * p.lane;
#pragma unroll
    for (int r = 0; r < S::ROWS; r++) {
#pragma unroll
        for (int i = 0; i < S::BLOCKS; i++) {
            const float4 v = *(const float4 *)(stage + r * p.groups * (32 * S::BLOCKS) + 32 * i);
            t.x[r][i][0] = v.x;
            t.x[r][i][1] = v.y;
            t.x[r][i][2] = v.z;
            t.x[r][i][3] = v.w;
        }
    }
}

/* A lane's columns of a key, a query or a vector decay in working memory; rows there are padded to whole blocks. */
template <class S> struct columns {
    float x[S::BLOCKS][4];
};

template <class S> static __device__ __forceinline__ void load_columns(columns<S> &c, const tile_place &p, const float *row) {
#pragma unroll
    for (int i = 0; i < S::BLOCKS; i++) {
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (S::EXACT || i < p.blocks) {
            v = *(const float4 *)(row + 32 * i + 4 * p.lane);
        }
        c.x[i][0] = v.x;
        c.x[i][1] = v.y;
        c.x[i][2] = v.z;
        c.x[i][3] = v.w;
    }
}

template <class S> static __device__ __forceinline__ void store_columns(const columns<S> &c, const tile_place &p, float *row) {
#pragma unroll
    for (int i = 0; i < S::BLOCKS; i++) {
        if (S::EXACT || i < p.blocks) {
            *(float4 *)(row + 32 * i + 4 * p.lane) = make_float4(c.x[i][0], c.x[i][1], c.x[i][2], c.x[i][3]);
        }
    }
}

/* Sums over the eight lanes of every group. */
static __device__ __forceinline__ float group_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 4);
    x += __shfl_xor_sync(0xffffffffu, x, 2);
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x;
}

template <class S> static __device__ __forceinline__ float dot_lane(const float (&x)[S::BLOCKS][4], const columns<S> &c) {
    float s[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < S::BLOCKS; i++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[e] = __fmaf_rn(x[i][e], c.x[i][e], s[e]);
        }
    }
    return __fadd_rn(__fadd_rn(s[0], s[1]), __fadd_rn(s[2], s[3]));
}

/* Sums over the eight lanes of a group for several rows at once: lanes 4 apart exchange rows, so that each pair of rows
   takes the shuffles of one. The same tree as group_sum(); lanes 0..3 end up with the even row, 4..7 with the odd one. */
static __device__ __forceinline__ float pair_sum(float even, float odd, int lane) {
    const bool upper = (lane & 4) != 0;
    const float mine = upper ? odd : even, other = upper ? even : odd;
    float x = mine + __shfl_xor_sync(0xffffffffu, other, 4);
    x += __shfl_xor_sync(0xffffffffu, x, 2);
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x;
}

/* The update. value[r]: of the thread's rows; alpha: one number or the columns of a vector. */
template <class S, bool DELTA, bool VECTOR>
static __device__ __forceinline__ void update_tile(tile<S> &t, const tile_place &p, const columns<S> &key, const columns<S> &decay, float alpha, float beta,
                                   const float (&value)[S::ROWS]) {
    float u[S::ROWS];
#pragma unroll
    for (int r = 0; r < S::ROWS; r++) {
#pragma unroll
        for (int i = 0; i < S::BLOCKS; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                t.x[r][i][e] = __fmul_rn(VECTOR ? decay.x[i][e] : alpha, t.x[r][i][e]);
            }
        }
        u[r] = DELTA ? dot_lane<S>(t.x[r], key) : 0.0f;
    }
    if (DELTA) {
#pragma unroll
        for (int r = 0; r < S::ROWS; r += 2) {
            const float mine = pair_sum(u[r], u[r + 1], p.lane), other = __shfl_xor_sync(0xffffffffu, mine, 4);
            u[r] = (p.lane & 4) != 0 ? other : mine;
            u[r + 1] = (p.lane & 4) != 0 ? mine : other;
        }
    }
#pragma unroll
    for (int r = 0; r < S::ROWS; r++) {
        u[r] = __fmul_rn(beta, DELTA ? __fsub_rn(value[r], u[r]) : value[r]);
#pragma unroll
        for (int i = 0; i < S::BLOCKS; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                t.x[r][i][e] = __fmaf_rn(u[r], key.x[i][e], t.x[r][i][e]);
            }
        }
    }
}

/* y[row] += product (row . query) for the thread's rows; y belongs to the slice. */
template <class S>
static __device__ __forceinline__ void read_tile(const tile<S> &t, const tile_place &p, const columns<S> &query,
                                float product, int first, float *y) {
#pragma unroll
    for (int r = 0; r < S::ROWS; r += 2) {
        const float dot = pair_sum(dot_lane<S>(t.x[r], query), dot_lane<S>(t.x[r + 1], query), p.lane);
        const int row = first + p.group + (r + (p.lane >> 2)) * p.groups;
        if ((p.lane & 3) == 0 && row < p.rows) {
            y[row] = __fadd_rn(y[row], __fmul_rn(product, dot));
        }
    }
}

#endif
