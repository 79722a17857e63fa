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
static __device__ __forceinline__ void apply_record(tile<S> &x, const tile_place &at, const rssm_cuda_layout &l, const memory &m, int bf16,
                                    int first, int j) {
    columns<S> key, decay = {};
    float value[S::ROWS];
    load_columns<S>(key, at, m.key + j * l.width);
    if (VECTOR) {
        load_columns<S>(decay, at, m.alpha + j * l.width);
    }
#pragma unroll
    for (int r = 0; r < S::ROWS; r++) {
        const int row = first + at.group + r * at.groups;
        value[r] = (S::EXACT || row < at.rows) ? value_at(m, bf16, j * l.slice + row) : 0.0f;
    }
    update_tile<S, DELTA, VECTOR>(x, at, key, decay, VECTOR ? 0.0f : m.alpha[j], m.beta[j], value);
}

/* The rows of a slot's buffers in the order of its cursor, in shared memory. */
struct slot_maps {
    uint8_t record[RSSM_ROWS_MAX + 1];
    uint8_t conv[RSSM_CONV_ROWS_MAX + 4];
};

static __device__ __forceinline__ void load_maps(const team &w, slot_maps &maps, const rssm_cursor *cursor,
                                const rssm_rows &rows) {
    for (int i = w.thread; i < rows.records; i += w.threads) {
        maps.record[i] = cursor->row_map[i];
    }
    for (int i = w.thread; i < rows.conv; i += w.threads) {
        maps.conv[i] = cursor->conv_map[i];
    }
}

/* Where a block's working memory begins: exact shapes know that it is shared, and so does the compiler. */
template <class S> static __device__ __forceinline__ float *memory_base(float *spill, int floats, float4 *shared) {
    if constexpr (S::EXACT) {
        return (float *)shared;
    } else {
        return spill != nullptr ? spilled(spill, floats) : (float *)shared;
    }
}

/* Shapes: blocks of columns, and how many rows a thread holds at a time. */
typedef tile_shape<4, 2, true> stream_128; /* decode */
typedef tile_shape<2, 4, true> stream_64;
typedef tile_shape<4, 4, true> shape_128; /* folds, scans, decode_stream.cu */
typedef tile_shape<2, 8, true> shape_64;
typedef tile_shape<8, 2, false> shape_any;

/* Which of them: 2 for d_k = 128, 1 for 64, 0 for any other, and for working memory outside of the multiprocessor, where
   asynchronous copies cannot go. All give the same bits. */
static inline int variant_of(const rssm_geometry &g, const float *memory) {
    return memory != nullptr || g.d_v % 16 != 0 ? 0 : g.d_k == 128 ? 2 : g.d_k == 64 ? 1 : 0;
}

/* The instances of a kernel template, by shape and kind: Mamba-2, GDN, KDA. */
#ifdef RSSM_CUDA_ONE_INSTANCE
#define RSSM_KERNEL_TABLE(kernel, exact_64, exact_128)                                                                 \
    {{nullptr, nullptr, nullptr}, {nullptr, nullptr, nullptr}, {nullptr, kernel<exact_128, true, false>, nullptr}}
#else
#define RSSM_KERNEL_TABLE(kernel, exact_64, exact_128)                                                                 \
    {{kernel<shape_any, false, false>, kernel<shape_any, true, false>, kernel<shape_any, true, true>},                 \
     {kernel<exact_64, false, false>, kernel<exact_64, true, false>, kernel<exact_64, true, true>},                    \
     {kernel<exact_128, false, false>, kernel<exact_128, true, false>, kernel<exact_128, true, true>}}
#endif

/* Loads `count` instances and allows them the device's shared memory. */
template <class K> static int load_table(const K *table, int count, int shared_bytes) {
    for (int i = 0; i < count; i++) {
        const void *kernel = (const void *)table[i];
        cudaError_t error = kernel == nullptr
                                ? cudaSuccess
                                : cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
        if (error != cudaSuccess) {
            return (int)error;
        }
    }
    return 0;
}

#endif
