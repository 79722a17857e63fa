/* SPDX-License-Identifier: Apache-2.0 */
/* What a decode, a scan and a fold do to a head's state with what lies in working memory. */
#ifndef RSSM_CUDA_HEAD_CUH
#define RSSM_CUDA_HEAD_CUH

#include "cuda/device/output.cuh"
#include "cuda/device/tile.cuh"
#include "cuda/device/tokens.cuh"
#include "cuda/device/walk.cuh"

/* Columns of record j, and the values it holds for the thread's rows. */
template <class S, bool DELTA, bool VECTOR>
static __device__ __forceinline__ void apply_record(tile<S> &x, const tile_place &at, const rssm_cuda_layout &l, const memory &m, int first,
                                    int j) {
    columns<S> key, decay = {};
    float value[S::ROWS];
    load_columns<S>(key, at, m.key + j * l.width);
    if (VECTOR) {
        load_columns<S>(decay, at, m.alpha + j * l.width);
    }
#pragma unroll
    for (int r = 0; r < S::ROWS; r++) {
        int row = first + at.group + r * at.groups;
        value[r] = row < at.rows ? m.value[j * l.slice + row] : 0.0f;
    }
    update_tile<S, DELTA, VECTOR>(x, key, decay, VECTOR ? 0.0f : m.alpha[j], m.beta[j], value);
}

/* The rows of a slot's buffers in the order of its cursor, in shared memory. */
struct slot_maps {
    uint8_t record[RSSM_ROWS_MAX + 1];
    uint8_t conv[RSSM_CONV_ROWS_MAX + 4];
};

static __device__ __forceinline__ void load_maps(slot_maps &maps, const rssm_cursor *cursor, const rssm_rows &rows) {
    for (int i = threadIdx.x; i < rows.records; i += blockDim.x) {
        maps.record[i] = cursor->row_map[i];
    }
    for (int i = threadIdx.x; i < rows.conv; i += blockDim.x) {
        maps.conv[i] = cursor->conv_map[i];
    }
}

/* The variants: how many blocks of columns, and how many rows a thread holds. */
typedef tile_shape<4, 4, true> shape_128;
typedef tile_shape<2, 8, true> shape_64;
typedef tile_shape<8, 2, false> shape_any;

#endif
