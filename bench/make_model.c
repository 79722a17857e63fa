/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `bench make-model`: a checkpoint of a real model's shape with random weights, in the Hugging Face layout, so
 * that speed and memory can be measured without downloading anything. Values are a pure function of seed,
 * tensor and position, and are streamed: no tensor is ever held in memory.
 */
#include "commands.h"
#include "args.h"
#include "base/file.h"
#include "model_shapes.h"
#include "numbers.h"
#include "random.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_SIZE = 4096, TOKENIZER_MAX = 1 << 28 };

typedef struct make_args {
    const char *shape, *directory, *tokenizer;
    int64_t seed, shard_mib;
} make_args;

#define AT(field) offsetof(make_args, field)
static const bench_arg table[] = {
    {"shape", BENCH_ARG_TEXT, AT(shape), "NAME", "qwen3.5-0.8b", 0, 0, NULL,
     "qwen3.5-0.8b, nemotron-3-nano-4b, tiny-qwen3.5, tiny-nemotron-3"},
    {"seed", BENCH_ARG_WHOLE, AT(seed), "N", "0", 0, 1e15, NULL, "other weights for another number"},
    {"shard-mib", BENCH_ARG_WHOLE, AT(shard_mib), "N", "1024", 1, 1 << 20, NULL,
     "largest file, but for one tensor"},
    {"tokenizer", BENCH_ARG_TEXT, AT(tokenizer), "FILE", NULL, 0, 0, NULL,
     "tokenizer.json to widen to the vocabulary; the bundled model's by default"},
    {0},
};

static const bench_args spec = {
    .name = "make-model",
    .usage = "DIR",
    .about =
        "Writes a checkpoint with random bf16 weights of a real model's shape to DIR, which is made if it is\n"
        "not there. Its text is noise; its speed is the model's.",
    .tables = {table, NULL},
    .operand = AT(directory),
};

typedef struct maker {
    make_args args;
    rse_config config;
    bench_tensors tensors;
    rse_tensor *views;         /* [tensors] as the writer wants them */
    const bench_tensor *shard; /* the first of the file being written */
    size_t first;              /* its index */
} maker;

/* ---- Values ------------------------------------------------------------------------------------------- */

static float draw(const bench_tensor *t, uint64_t *random) {
    float u;
    switch (t->draw) {
    case BENCH_DRAW_CONSTANT:
        return t->scale;
    case BENCH_DRAW_A_LOG:
        return logf(bench_uniform(random, 1, 16));
    case BENCH_DRAW_DT_BIAS:
        u = expf(bench_uniform(random, logf(0.001f), logf(0.1f)));
        return u + logf(-expm1f(-u));
    default:
        return bench_uniform(random, -t->scale, t->scale);
    }
}

static rse_status fill(void *user, size_t index, uint64_t offset, void *chunk, size_t bytes, rse_error *err) {
    const maker *m = user;
    const bench_tensor *t = m->shard + index;
    /* each piece of each tensor has a stream of its own */
    uint64_t random = (uint64_t)m->args.seed;
    random = bench_random(&random) + m->first + index;
    random = bench_random(&random) + offset;
    (void)err;
    if (t->dtype == RSE_DTYPE_BF16) {
        uint16_t *to = chunk;
        for (size_t i = 0; i < bytes / sizeof *to; i++) {
            to[i] = rssm_bf16_of_f32(draw(t, &random));
        }
    } else {
        float *to = chunk;
        for (size_t i = 0; i < bytes / sizeof *to; i++) {
            to[i] = draw(t, &random);
        }
    }
    return RSE_OK;
}

/* ---- Files -------------------------------------------------------------------------------------------- */

static rse_status write_file(const char *directory, const char *name, const void *data, size_t size,
                             rse_error *err) {
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "wb");
    bool whole = file != NULL && fwrite(data, 1, size, file) == size;
    whole = file != NULL && fclose(file) == 0 && whole;
    return whole ? RSE_OK : rse_fail(err, RSE_ERROR_IO, "%s: %s", path, strerror(errno));
}

/* The bundled model's, beside an installed command or in the source tree. */
static rse_status write_tokenizer(const maker *m, rse_error *err) {
    char path[PATH_SIZE] = BENCH_TOKENIZER;
    char self[PATH_SIZE - 64];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(self, '/');
    if (slash != NULL) {
        char installed[PATH_SIZE];
        *slash = '\0';
        snprintf(installed, sizeof installed, "%s/../share/replayssm/models/tiny-gdn/tokenizer.json", self);
        if (rse_file_exists(installed)) {
            memcpy(path, installed, sizeof path);
        }
    }
    char *text;
    size_t size;
    RSE_TRY(
        rse_file_read(m->args.tokenizer != NULL ? m->args.tokenizer : path, TOKENIZER_MAX, &text, &size, err));
    rse_text wide = {0};
    rse_status status = bench_tokenizer_widen(text, size, m->config.vocab, &wide, err);
    status = status == RSE_OK ? write_file(m->args.directory, "tokenizer.json", wide.data, wide.length, err)
                              : status;
    rse_text_free(&wide);
    free(text);
    return status;
}

static rse_status make_directory(const char *directory, rse_error *err) {
    char *config = rse_path_join(directory, "config.json");
    bool taken = config != NULL && rse_file_exists(config);
    free(config);
    if (taken) {
        return rse_fail(err, RSE_ERROR_USAGE, "%s holds a model already", directory);
    }
    if (strlen(directory) > PATH_SIZE - 64) {
        return rse_fail(err, RSE_ERROR_USAGE, "the directory's name has %zu bytes; the limit is %d",
                        strlen(directory), PATH_SIZE - 64);
    }
    if (mkdir(directory, 0777) != 0 && !rse_file_is_directory(directory)) {
        return rse_fail(err, RSE_ERROR_IO, "%s: %s", directory, strerror(errno));
    }
    return RSE_OK;
}

/* ---- Shards ------------------------------------------------------------------------------------------- */

/* Tensors from `first` on that fit one file; at least one. */
static size_t shard_end(const maker *m, size_t first) {
    size_t limit = (size_t)m->args.shard_mib << 20, bytes = 0, end = first;
    while (end < m->tensors.count && (end == first || bytes + m->views[end].bytes <= limit)) {
        bytes += m->views[end++].bytes;
    }
    return end;
}

static int count_shards(const maker *m) {
    int shards = 0;
    for (size_t first = 0; first < m->tensors.count; first = shard_end(m, first)) {
        shards++;
    }
    return shards;
}

static rse_status write_shard(maker *m, const char *name, size_t first, size_t end, rse_error *err) {
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "%s/%s", m->args.directory, name);
    m->shard = m->tensors.at + first;
    m->first = first;
    printf("%s/%s\n", m->args.directory, name);
    fflush(stdout);
    return rse_safetensors_write(path, m->views + first, end - first, fill, m, err);
}

static rse_status write_shards(maker *m, rse_error *err) {
    int shards = count_shards(m), shard = 0;
    size_t total = 0;
    rse_text index = {0};
    rse_status status = RSE_OK;
    char name[64] = "model.safetensors";
    for (size_t first = 0, end; first < m->tensors.count && status == RSE_OK; first = end) {
        end = shard_end(m, first);
        if (shards > 1) {
            snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", ++shard, shards);
        }
        for (size_t i = first; i < end && status == RSE_OK; i++) {
            total += m->views[i].bytes;
            status =
                rse_text_print(&index, err, "%s\n    \"%s\": \"%s\"", i > 0 ? "," : "", m->views[i].name, name);
        }
        status = status == RSE_OK ? write_shard(m, name, first, end, err) : status;
    }
    if (status == RSE_OK && shards > 1) {
        rse_text whole = {0};
        status = rse_text_print(&whole, err,
                                "{\n  \"metadata\": {\"total_size\": %zu},\n  \"weight_map\": {%s\n  }\n}\n",
                                total, index.data);
        status = status == RSE_OK ? write_file(m->args.directory, "model.safetensors.index.json", whole.data,
                                               whole.length, err)
                                  : status;
        rse_text_free(&whole);
    }
    rse_text_free(&index);
    return status;
}

static rse_status plan(maker *m, const bench_model *model, rse_error *err) {
    RSE_TRY(rse_config_parse(model->config, strlen(model->config), NULL, 0, &m->config, err));
    RSE_TRY(bench_tensors_list(&m->config, &m->tensors, err));
    m->views = calloc(m->tensors.count, sizeof *m->views);
    if (m->views == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for %zu tensors", m->tensors.count);
    }
    for (size_t i = 0; i < m->tensors.count; i++) {
        const bench_tensor *t = &m->tensors.at[i];
        rse_tensor *view = &m->views[i];
        *view = (rse_tensor){.name = t->name, .dtype = t->dtype, .rank = t->rank};
        memcpy(view->shape, t->shape, sizeof t->shape);
        view->bytes = (size_t)rse_tensor_elements(view) * rse_dtype_size(t->dtype);
    }
    return RSE_OK;
}

static rse_status make(maker *m, rse_error *err) {
    const bench_model *model = bench_model_find(m->args.shape);
    if (model == NULL) {
        return rse_fail(err, RSE_ERROR_USAGE, "--shape is '%s'; known are %s", m->args.shape, table[0].help);
    }
    RSE_TRY(plan(m, model, err));
    RSE_TRY(make_directory(m->args.directory, err));
    RSE_TRY(write_tokenizer(m, err));
    RSE_TRY(write_shards(m, err));
    /* last, so that a directory with a config holds a whole model */
    return write_file(m->args.directory, "config.json", model->config, strlen(model->config), err);
}

int bench_make_model(int argc, char **argv) {
    maker m = {0};
    rse_error err = {0};
    int said = bench_args_parse(&spec, argc, argv, &m.args, sizeof m.args);
    if (said != 0) {
        return said - 1;
    }
    rse_status status = make(&m, &err);
    bench_tensors_free(&m.tensors);
    free(m.views);
    return bench_exit(status, &err);
}
