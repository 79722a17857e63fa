/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shapes of whole models, and the tensors that a checkpoint of each holds: names, shapes, formats, and what
 * their values are drawn from.
 */
#ifndef RSE_BENCH_MODEL_SHAPES_H
#define RSE_BENCH_MODEL_SHAPES_H

#include "base/buffer.h"
#include "load/hfconfig.h"
#include "load/safetensors.h"

typedef struct bench_model {
    const char *name;
    const char *config; /* the text of config.json */
} bench_model;

extern const bench_model bench_models[]; /* ends with a NULL name */
/* NULL if there is none of this name. */
const bench_model *bench_model_find(const char *name);

/* How values are drawn. */
enum {
    BENCH_DRAW_UNIFORM,  /* over (-scale, scale) */
    BENCH_DRAW_CONSTANT, /* scale */
    BENCH_DRAW_A_LOG,    /* log of uniform over (1, 16) */
    BENCH_DRAW_DT_BIAS   /* inverse softplus of a time step log-uniform over (0.001, 0.1) */
};

typedef struct bench_tensor {
    char name[96];
    int32_t dtype; /* RSE_DTYPE_BF16 or _F32 */
    int32_t rank;
    int64_t shape[3];
    int32_t draw;
    float scale;
} bench_tensor;

typedef struct bench_tensors {
    bench_tensor *at;
    size_t count, capacity;
    bool no_memory;
} bench_tensors;

/* All tensors of a model with this configuration, in the order of its layers. To be freed after a failure too.
 */
rse_status bench_tensors_list(const rse_config *config, bench_tensors *tensors, rse_error *err);
void bench_tensors_free(bench_tensors *tensors);

/* Appends to out the text of a tokenizer.json with filler tokens for the ids that it lacks below vocab. */
rse_status bench_tokenizer_widen(const char *text, size_t length, int32_t vocab, rse_text *out, rse_error *err);

#endif
