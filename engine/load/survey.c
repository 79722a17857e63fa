/* SPDX-License-Identifier: Apache-2.0 */
#include "load/survey.h"

#include "base/file.h"
#include "base/json.h"
#include "load/gguf_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Words in names of tensors; the first one that is there decides. */
static const struct {
    const char *word;
    int32_t shows;
} words[] = {
    {"A_log", RSE_SURVEY_RECURRENT},   {"ssm_a", RSE_SURVEY_RECURRENT},  {"conv1d", RSE_SURVEY_RECURRENT},
    {"kv_a_proj", RSE_SURVEY_LATENT},  {"attn_kv_a", RSE_SURVEY_LATENT}, {"experts.", RSE_SURVEY_EXPERTS},
    {"_exps.", RSE_SURVEY_EXPERTS},    {"k_norm", RSE_SURVEY_ATTENTION}, {"k_proj", RSE_SURVEY_ATTENTION},
    {"attn_k.", RSE_SURVEY_ATTENTION}, {"down_proj", RSE_SURVEY_MLP},    {"ffn_down.", RSE_SURVEY_MLP},
    {"output_linear", RSE_SURVEY_MLP},
};

static void add_layer(rse_survey *survey, const char *name) {
    const char *at = strstr(name, "layers.");
    at = at != NULL ? at + strlen("layers.") : strncmp(name, "blk.", 4) == 0 ? name + 4 : NULL;
    char *end;
    long layer = at != NULL ? strtol(at, &end, 10) : -1;
    if (layer < 0 || layer >= RSE_SURVEY_LAYERS || end == at || strncmp(name, "mtp.", 4) == 0 ||
        strstr(name, "visual") != NULL || strstr(name, "vision") != NULL) {
        return;
    }
    survey->layers = layer >= survey->layers ? (int32_t)layer + 1 : survey->layers;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; ++i) {
        if (strstr(end, words[i].word) != NULL) {
            survey->layer[layer] |= (uint8_t)words[i].shows;
            return;
        }
    }
}

static void add_tensor(rse_survey *survey, const rse_tensor *tensor, const char *format) {
    int32_t f = 0;
    while (f < survey->formats && strcmp(survey->format[f].name, format) != 0) {
        ++f;
    }
    if (f == survey->formats && f < RSE_SURVEY_FORMATS) {
        survey->format[survey->formats++].name = format;
    }
    if (f < RSE_SURVEY_FORMATS) {
        survey->format[f].tensors++;
        survey->format[f].bytes += (int64_t)tensor->bytes;
    }
    survey->tensors++;
    survey->elements += rse_tensor_elements(tensor);
    survey->bytes += (int64_t)tensor->bytes;
    add_layer(survey, tensor->name);
}

/* KDA keeps q, k and v beside its decay: what is recurrent is no attention. */
static void settle(rse_survey *survey) {
    for (int32_t i = 0; i < survey->layers; ++i) {
        uint8_t *layer = &survey->layer[i];
        if (*layer & (RSE_SURVEY_RECURRENT | RSE_SURVEY_LATENT)) {
            *layer &= (uint8_t)~RSE_SURVEY_ATTENTION;
        }
        if (*layer & RSE_SURVEY_EXPERTS) {
            *layer &= (uint8_t)~RSE_SURVEY_MLP;
        }
    }
}

/* model_type of config.json, of the text part if there is one. A folder without one has no type. */
static rse_status read_type(const char *directory, rse_survey *survey, rse_error *err) {
    char *path = rse_path_join(directory, "config.json");
    char *text = NULL;
    size_t length = 0;
    rse_json *root = NULL;
    rse_error ignored;
    if (path == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for a path");
    }
    if (rse_file_read(path, 1 << 24, &text, &length, &ignored) == RSE_OK &&
        rse_json_parse(text, length, path, &root, &ignored) == RSE_OK) {
        const rse_json *part = rse_json_member(root, "text_config");
        const char *type = rse_json_string(rse_json_member(part, "model_type"), NULL);
        type = type != NULL ? type : rse_json_string(rse_json_member(root, "model_type"), NULL);
        snprintf(survey->type, sizeof survey->type, "%s", type != NULL ? type : "");
        rse_json_free(root);
    }
    free(text);
    free(path);
    return RSE_OK;
}

static rse_status read_gguf(const char *path, rse_survey *survey, rse_error *err) {
    rse_gguf *file;
    RSE_TRY(rse_gguf_open(path, &file, err));
    survey->gguf = true;
    rse_gguf_text(file, "general.architecture", survey->type, sizeof survey->type);
    survey->tokenizer = rse_gguf_has_tokenizer(file);
    for (size_t i = 0; i < rse_gguf_count(file); ++i) {
        add_tensor(survey, rse_gguf_at(file, i), rse_gguf_type_name(file, i));
    }
    rse_gguf_close(file);
    return RSE_OK;
}

static rse_status read_safetensors(const char *path, rse_survey *survey, rse_error *err) {
    rse_safetensors *files;
    RSE_TRY(rse_safetensors_open(path, &files, err));
    for (size_t i = 0; i < rse_safetensors_count(files); ++i) {
        const rse_tensor *tensor = rse_safetensors_at(files, i);
        add_tensor(survey, tensor, rse_dtype_name(tensor->dtype));
    }
    rse_safetensors_close(files);
    if (!rse_file_is_directory(path)) {
        return RSE_OK;
    }
    char *tokenizer = rse_path_join(path, "tokenizer.json");
    survey->tokenizer = tokenizer != NULL && rse_file_exists(tokenizer);
    free(tokenizer);
    return read_type(path, survey, err);
}

rse_status rse_survey_read(const char *path, rse_survey *survey, rse_error *err) {
    *survey = (rse_survey){0};
    RSE_TRY(rse_gguf_is(path) ? read_gguf(path, survey, err) : read_safetensors(path, survey, err));
    settle(survey);
    return RSE_OK;
}
