/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors of safetensors files, by memory map: one file, or a model directory with model.safetensors or with
 * model.safetensors.index.json and its shards. Everything in a header is checked before it is believed:
 * lengths, order, gaps and overlaps of the data, sizes against shape and format, names across shards, index
 * against shards. And a writer, which streams, so that a checkpoint of any size can be made in little memory.
 *
 * Little-endian machines only, as the format.
 */
#ifndef RSE_SAFETENSORS_H
#define RSE_SAFETENSORS_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    RSE_DTYPE_BOOL,
    RSE_DTYPE_U8,
    RSE_DTYPE_I8,
    RSE_DTYPE_F8_E4M3,
    RSE_DTYPE_F8_E5M2,
    RSE_DTYPE_F8_E8M0,
    RSE_DTYPE_U16,
    RSE_DTYPE_I16,
    RSE_DTYPE_F16,
    RSE_DTYPE_BF16,
    RSE_DTYPE_U32,
    RSE_DTYPE_I32,
    RSE_DTYPE_F32,
    RSE_DTYPE_U64,
    RSE_DTYPE_I64,
    RSE_DTYPE_F64,
    /* Blocks of several weights with their scales, in GGUF files only; their size is not that of an element. */
    RSE_DTYPE_Q8_0,
    RSE_DTYPE_Q4_0,
    RSE_DTYPE_Q4_K,
    RSE_DTYPE_Q5_K,
    RSE_DTYPE_Q6_K,
    RSE_DTYPE_IQ4_NL,
    RSE_DTYPE_MXFP4,
    RSE_DTYPE_NVFP4,
    RSE_DTYPE_COUNT
};
/* The format's own spelling, "BF16"; "?" for an unknown value. Static storage. */
const char *rse_dtype_name(int32_t dtype);
/* Bytes of one element; 0 for an unknown value and for blocks. */
size_t rse_dtype_size(int32_t dtype);

enum { RSE_TENSOR_RANK = 8 };

/* Elements are row-major. name and data belong to the file they came from. data is aligned only as the file
 * aligns it, which may be less than the element. */
typedef struct rse_tensor {
    const char *name;
    int32_t dtype; /* RSE_DTYPE_* */
    int32_t rank;  /* 0 .. RSE_TENSOR_RANK; 0 is a scalar */
    int64_t shape[RSE_TENSOR_RANK];
    const void *data;
    size_t bytes;
} rse_tensor;

/* Elements of a tensor: the product of its shape. */
int64_t rse_tensor_elements(const rse_tensor *tensor);
/* Bytes that dtype, rank and shape ask for; false if one of them is not legal or the product overflows. */
bool rse_tensor_measure(const rse_tensor *tensor, size_t *bytes);

typedef struct rse_safetensors rse_safetensors;

/* path: a .safetensors file or a model directory. *files is NULL after a failure. */
rse_status rse_safetensors_open(const char *path, rse_safetensors **files, rse_error *err);
void rse_safetensors_close(rse_safetensors *files); /* NULL is fine */

size_t rse_safetensors_count(const rse_safetensors *files);
/* Tensors in the order of their names. index < count. */
const rse_tensor *rse_safetensors_at(const rse_safetensors *files, size_t index);
/* NULL if there is none of this name. */
const rse_tensor *rse_safetensors_find(const rse_safetensors *files, const char *name);

/* Writes `bytes` bytes of tensor `index` from byte `offset` on into chunk. Called in order, in pieces of at
 * most 1 MiB that start at multiples of 1 MiB. */
typedef rse_status (*rse_tensor_fill_fn)(void *user, size_t index, uint64_t offset, void *chunk, size_t bytes,
                                         rse_error *err);

/*
 * Writes one file, of which nothing is left if it fails. From each tensor name, dtype, rank and shape are used
 * (bytes is ignored), and data if it is not NULL; otherwise fill supplies the data. Inside the file, tensors of
 * larger elements come first, so that all are aligned.
 */
rse_status rse_safetensors_write(const char *path, const rse_tensor *tensors, size_t count,
                                 rse_tensor_fill_fn fill, void *user, rse_error *err);

#endif
