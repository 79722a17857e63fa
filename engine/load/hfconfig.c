/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of model types, and what is done for all of them. What families share is read by config_read.c,
 * what they do not by config_<family>.c.
 */
#include "load/config_read.h"

#include "base/file.h"
#include "load/gguf_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char where[] = RSE_CONFIG_WHERE;

enum { FILE_MAX = 1 << 24 };

/* ---- The table ---------------------------------------------------------------------------------------- */

static const struct family {
    const char *model_type;
    int32_t family;
    rse_status (*read)(const rse_source *s, rse_config *config, rse_error *err);
} families[] = {
    {"qwen3_5", RSE_FAMILY_QWEN35, rse_read_qwen3_5},
    {"qwen3_5_text", RSE_FAMILY_QWEN35, rse_read_qwen3_5},
    {"qwen3_5_moe", RSE_FAMILY_QWEN35, rse_read_qwen3_5},
    {"qwen3_5_moe_text", RSE_FAMILY_QWEN35, rse_read_qwen3_5},
    {"qwen3_next", RSE_FAMILY_QWEN35, rse_read_qwen3_5},
    {"nemotron_h", RSE_FAMILY_NEMOTRON_H, rse_read_nemotron_h},
    {"mamba2", RSE_FAMILY_MAMBA2, rse_read_mamba2},
    {"granitemoehybrid", RSE_FAMILY_GRANITE_HYBRID, rse_read_granite},
    {"kimi_linear", RSE_FAMILY_KIMI_LINEAR, rse_read_kimi_linear},
    {"kimi_k3", RSE_FAMILY_KIMI_LINEAR, rse_read_kimi_linear},
    {"glm5_next", RSE_FAMILY_GLM5_NEXT, rse_read_glm5_next},
    {"glm5_next_text", RSE_FAMILY_GLM5_NEXT, rse_read_glm5_next},
};
enum { FAMILIES = sizeof families / sizeof families[0] };

static rse_status find_family(const rse_source *s, rse_config *config, const struct family **out,
                              rse_error *err) {
    const char *type = NULL;
    RSE_TRY(rse_json_get_string(s->root, where, "model_type", &type, err));
    RSE_TRY(rse_json_get_string(s->text, where, "model_type", &type, err));
    char known[256] = "";
    for (int i = 0; i < FAMILIES; ++i) {
        if (type != NULL && strcmp(type, families[i].model_type) == 0) {
            snprintf(config->model_type, sizeof config->model_type, "%s", type);
            *out = &families[i];
            return RSE_OK;
        }
        size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s%s", n > 0 ? ", " : "", families[i].model_type);
    }
    return type == NULL ? rse_fail(err, RSE_ERROR_FORMAT, "%s: model_type is missing; known: %s", where, known)
                        : rse_fail(err, RSE_ERROR_UNSUPPORTED,
                                   "%s: model_type %.64s is not supported; known: %s", where, type, known);
}

/* Which tensors are packed, and how, is read from the tensors; here only methods that cannot be are refused,
 * and the size of FP8's blocks is read. */
static rse_status read_quantization(const rse_json *object, rse_config *config, rse_error *err) {
    static const char *const known[] = {"fp8", "modelopt", "compressed-tensors", "mxfp4", "nvfp4"};
    const rse_json *quantization = NULL;
    const rse_json *block = NULL;
    const char *method = NULL;
    RSE_TRY(rse_json_get(object, where, "quantization_config", RSE_JSON_OBJECT, &quantization, err));
    if (quantization == NULL) {
        return RSE_OK;
    }
    RSE_TRY(rse_json_get_string(quantization, where, "quant_method", &method, err));
    bool found = false;
    for (size_t i = 0; method != NULL && i < sizeof known / sizeof known[0]; ++i) {
        found = found || strcmp(method, known[i]) == 0;
    }
    if (!found) {
        return rse_fail(err, RSE_ERROR_UNSUPPORTED,
                        "%s: quant_method of quantization_config is %.32s; known: fp8, modelopt, "
                        "compressed-tensors, mxfp4, nvfp4",
                        where, method != NULL ? method : "missing");
    }
    RSE_TRY(rse_json_get(quantization, where, "weight_block_size", RSE_JSON_ARRAY, &block, err));
    for (size_t i = 0; block != NULL && i < 2; ++i) {
        const rse_json *item = rse_json_item(block, i);
        int64_t size = rse_json_integer(item);
        if (rse_json_count(block) != 2 || rse_json_kind(item) != RSE_JSON_INTEGER || size < 1 ||
            size > RSE_WIDTH_MAX) {
            return rse_fail(err, RSE_ERROR_FORMAT, "%s: weight_block_size is not two sizes in 1..%d", where,
                            RSE_WIDTH_MAX);
        }
        config->scale_block[i] = (int32_t)size;
    }
    return RSE_OK;
}

static rse_status read_root(const rse_json *root, rse_config *config, rse_error *err) {
    if (rse_json_kind(root) != RSE_JSON_OBJECT) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: is no JSON object", where);
    }
    rse_source s = {root, root};
    RSE_TRY(rse_json_get(root, where, "llm_config", RSE_JSON_OBJECT, &s.text, err));
    RSE_TRY(rse_json_get(root, where, "text_config", RSE_JSON_OBJECT, &s.text, err));
    const struct family *family = NULL;
    RSE_TRY(find_family(&s, config, &family, err));
    RSE_TRY(read_quantization(root, config, err));
    RSE_TRY(read_quantization(s.text, config, err));
    config->family = family->family;
    RSE_TRY(rse_read_common(&s, config, err));
    return family->read(&s, config, err);
}

/* End tokens, and how to sample where the maker samples at all. */
static rse_status read_generation(const rse_json *root, const char *file, rse_config *config, rse_error *err) {
    double temperature = -1;
    double top_p = -1;
    double min_p = -1;
    int64_t top_k = -1;
    bool samples = true;
    RSE_TRY(rse_read_end_tokens(root, file, config, err));
    RSE_TRY(rse_json_get_bool(root, file, "do_sample", &samples, err));
    RSE_TRY(rse_json_get_number(root, file, "temperature", 0, 100, &temperature, err));
    RSE_TRY(rse_json_get_number(root, file, "top_p", 1e-6, 1, &top_p, err));
    RSE_TRY(rse_json_get_number(root, file, "min_p", 0, 1, &min_p, err));
    RSE_TRY(rse_json_get_int(root, file, "top_k", 0, INT32_MAX, &top_k, err));
    if (samples) {
        config->temperature = (float)temperature;
        config->top_p = (float)top_p;
        config->min_p = (float)min_p;
        config->top_k = (int32_t)top_k;
    }
    return RSE_OK;
}

static rse_status add_generation(const char *text, size_t length, rse_config *config, rse_error *err) {
    static const char file[] = "generation_config.json";
    rse_json *root;
    RSE_TRY(rse_json_parse(text, length, file, &root, err));
    rse_status status = rse_json_kind(root) == RSE_JSON_OBJECT
                            ? read_generation(root, file, config, err)
                            : rse_fail(err, RSE_ERROR_FORMAT, "%s: is no JSON object", file);
    rse_json_free(root);
    return status;
}

rse_status rse_config_parse(const char *text, size_t length, const char *generation, size_t generation_length,
                            rse_config *config, rse_error *err) {
    *config = (rse_config){.bos = -1,
                           .embedding_scale = 1.0f,
                           .residual_scale = 1.0f,
                           .logit_divisor = 1.0f,
                           .temperature = -1.0f,
                           .top_p = -1.0f,
                           .min_p = -1.0f,
                           .top_k = -1,
                           .scale_block = {128, 128}};
    rse_json *root;
    RSE_TRY(rse_json_parse(text, length, where, &root, err));
    rse_status status = read_root(root, config, err);
    rse_json_free(root);
    return status == RSE_OK && generation != NULL ? add_generation(generation, generation_length, config, err)
                                                  : status;
}

static rse_status load_gguf(const char *path, rse_config *config, rse_error *err) {
    rse_gguf *file;
    rse_error inner = {0};
    RSE_TRY(rse_gguf_open(path, &file, err));
    rse_status status = rse_gguf_config(file, config, &inner);
    rse_gguf_close(file);
    return status == RSE_OK ? RSE_OK : rse_fail(err, status, "%s: %s", path, inner.text);
}

rse_status rse_config_load(const char *directory, rse_config *config, rse_error *err) {
    if (rse_gguf_is(directory)) {
        return load_gguf(directory, config, err);
    }
    char *path = rse_path_join(directory, where);
    char *generation_path = rse_path_join(directory, "generation_config.json");
    char *text = NULL;
    char *generation = NULL;
    size_t length = 0;
    size_t generation_length = 0;
    rse_status status = path == NULL || generation_path == NULL
                            ? rse_fail(err, RSE_ERROR_MEMORY, "%s: no memory for its name", directory)
                            : rse_file_read(path, FILE_MAX, &text, &length, err);
    if (status == RSE_OK && rse_file_exists(generation_path)) {
        status = rse_file_read(generation_path, FILE_MAX, &generation, &generation_length, err);
    }
    if (status == RSE_OK) {
        status = rse_config_parse(text, length, generation, generation_length, config, err);
    }
    free(path);
    free(generation_path);
    free(text);
    free(generation);
    return status;
}

int32_t rse_config_count(const rse_config *config, int32_t kind) {
    int32_t n = 0;
    for (int32_t i = 0; i < config->layers; ++i) {
        n += config->layer[i] == kind;
    }
    return n;
}

bool rse_config_is_eos(const rse_config *config, int32_t id) {
    for (int32_t i = 0; i < config->eos_count; ++i) {
        if (config->eos[i] == id) {
            return true;
        }
    }
    return false;
}

const char *rse_layer_name(int32_t kind) {
    static const char *const names[] = {"?", "gdn", "mamba2", "attention", "mlp", "kda", "mla", "moe"};
    return kind >= 0 && kind <= RSE_LAYER_MOE ? names[kind] : "?";
}
