/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a checkpoint holds, without running it: kinds of layers by the names of their tensors, number formats
 * and their sizes. For files of models that the engine does not know, or whose parts are missing.
 */
#ifndef RSE_SURVEY_H
#define RSE_SURVEY_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum { RSE_SURVEY_FORMATS = 48, RSE_SURVEY_LAYERS = 1024 };
/* What the names of a layer's tensors show. */
enum {
    RSE_SURVEY_RECURRENT = 1,
    RSE_SURVEY_ATTENTION = 2,
    RSE_SURVEY_LATENT = 4, /* attention over latent rows */
    RSE_SURVEY_MLP = 8,
    RSE_SURVEY_EXPERTS = 16
};

typedef struct rse_survey_format {
    const char *name; /* "BF16", "Q4_K"; static storage */
    int64_t tensors;
    int64_t bytes;
} rse_survey_format;

typedef struct rse_survey {
    bool gguf;
    char type[64]; /* model_type or general.architecture; "" if it is not said */
    int64_t tensors;
    int64_t elements; /* of packed safetensors: of their codes' bytes */
    int64_t bytes;
    int32_t formats;
    rse_survey_format format[RSE_SURVEY_FORMATS];
    int32_t layers; /* highest number of a layer, plus one */
    uint8_t layer[RSE_SURVEY_LAYERS];
    bool tokenizer;
} rse_survey;

/* path: a model's folder, a .safetensors file or a GGUF file. */
rse_status rse_survey_read(const char *path, rse_survey *survey, rse_error *err);

#endif
