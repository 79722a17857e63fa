/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights of one model as its builder asks for them: by canonical name and expected shape, each taken once,
 * and at the end nothing may be left over. A missing tensor, another shape, another number format and an
 * unexpected tensor are errors that name the tensor, what was found and what was expected.
 *
 * Canonical names: in GGUF files what load/gguf_model.h makes of them; otherwise the first of the prefixes
 * "model.language_model.", "language_model.model.", "language_model.", "model.", "backbone." is dropped, so
 * that "model.layers.0.norm.weight" and "backbone.layers.0.norm.weight" are both "layers.0.norm.weight".
 * "lm_head.weight" and "mtp.*" stay.
 */
#ifndef RSE_WEIGHTS_H
#define RSE_WEIGHTS_H

#include "load/safetensors.h"

#include <stdbool.h>

/* An expected shape: rse_shape2(rows, columns). */
typedef struct rse_shape {
    int32_t rank; /* 1..3 */
    int64_t size[3];
} rse_shape;

static inline rse_shape rse_shape1(int64_t a) {
    return (rse_shape){1, {a, 1, 1}};
}
static inline rse_shape rse_shape2(int64_t a, int64_t b) {
    return (rse_shape){2, {a, b, 1}};
}
static inline rse_shape rse_shape3(int64_t a, int64_t b, int64_t c) {
    return (rse_shape){3, {a, b, c}};
}

typedef struct rse_weights rse_weights;

/* path as for rse_safetensors_open(), or a GGUF file. Two tensors with one canonical name are an error. */
rse_status rse_weights_open(const char *path, rse_weights **weights, rse_error *err);
/* Views end here. NULL is fine. */
void rse_weights_close(rse_weights *weights);

bool rse_weights_has(const rse_weights *weights, const char *name);
/* Whether any canonical name starts so, e.g. "mtp.". */
bool rse_weights_has_prefix(const rse_weights *weights, const char *prefix);

/*
 * Takes a tensor in its stored format, F32, BF16 or F16, and fills the view: name is the canonical one, rank
 * and shape are the expected ones, data is aligned to the element and lives as long as the weights do.
 * Axes of length 1 do not count ([C, 1, 4] is [C, 4]), and a flat tensor with as many elements is the
 * row-major matrix. A view may be taken again (tied embeddings).
 */
rse_status rse_weights_view(rse_weights *weights, const char *name, rse_shape shape, rse_tensor *view,
                            rse_error *err);
/* The same for any of the dtypes in a mask of 1 << RSE_DTYPE_*. */
rse_status rse_weights_take(rse_weights *weights, const char *name, rse_shape shape, uint64_t dtypes,
                            rse_tensor *view, rse_error *err);
/* What a matrix may be stored in: plain formats, and blocks with their scales. */
#define RSE_DTYPES_PLAIN (1ull << RSE_DTYPE_F32 | 1ull << RSE_DTYPE_BF16 | 1ull << RSE_DTYPE_F16)
#define RSE_DTYPES_MATRIX (RSE_DTYPES_PLAIN | ((1ull << RSE_DTYPE_COUNT) - (1ull << RSE_DTYPE_Q8_0)))
/* A tensor without taking it; NULL if there is none. */
const rse_tensor *rse_weights_peek(const rse_weights *weights, const char *name);
/* Counts a tensor as taken, if there is one. */
void rse_weights_skip(rse_weights *weights, const char *name);
/* Counts all tensors as taken of which the canonical name has this part in it. */
void rse_weights_skip_part(rse_weights *weights, const char *part);
/* Takes a tensor as f32: out has as many elements as the shape. */
rse_status rse_weights_f32(rse_weights *weights, const char *name, rse_shape shape, float *out, rse_error *err);

/* Prefixes of canonical names that belong to the vision parts of multimodal files; ends with NULL. */
extern const char *const rse_weights_vision[];

/* All taken? An untaken tensor is RSE_ERROR_FORMAT, naming the first and their number, unless its canonical
 * name starts with one of the prefixes in ignored (ends with NULL; NULL alone is fine). */
rse_status rse_weights_finish(const rse_weights *weights, const char *const *ignored, rse_error *err);

/* Elements [0, n) of F32, BF16 or F16 data as f32. Any alignment. */
void rse_convert_to_f32(int32_t dtype, const void *data, int64_t n, float *out);

#endif
