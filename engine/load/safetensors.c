/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading. A file is eight bytes of header length, a JSON header, and the data of all tensors without gaps. The
 * header is a claim of whoever made the file: no pointer is formed before its range is known to lie inside.
 * Tensors of all shards end up in one array sorted by name; lookup is a binary search, which no choice of
 * names can make slow, and equal neighbours show duplicates.
 */
#include "load/safetensors.h"

#include "base/file.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

enum { HEADER_MAX = 100000000, INDEX_MAX = 100000000, SHARDS_MAX = 4096 };

static const struct {
    const char *name;
    size_t size;
} dtypes[RSE_DTYPE_COUNT] = {
    [RSE_DTYPE_BOOL] = {"BOOL", 1},       [RSE_DTYPE_U8] = {"U8", 1},
    [RSE_DTYPE_I8] = {"I8", 1},           [RSE_DTYPE_F8_E4M3] = {"F8_E4M3", 1},
    [RSE_DTYPE_F8_E5M2] = {"F8_E5M2", 1}, [RSE_DTYPE_F8_E8M0] = {"F8_E8M0", 1},
    [RSE_DTYPE_U16] = {"U16", 2},         [RSE_DTYPE_I16] = {"I16", 2},
    [RSE_DTYPE_F16] = {"F16", 2},         [RSE_DTYPE_BF16] = {"BF16", 2},
    [RSE_DTYPE_U32] = {"U32", 4},         [RSE_DTYPE_I32] = {"I32", 4},
    [RSE_DTYPE_F32] = {"F32", 4},         [RSE_DTYPE_U64] = {"U64", 8},
    [RSE_DTYPE_I64] = {"I64", 8},         [RSE_DTYPE_F64] = {"F64", 8},
    [RSE_DTYPE_Q8_0] = {"Q8_0", 0},       [RSE_DTYPE_Q4_0] = {"Q4_0", 0},
    [RSE_DTYPE_Q4_K] = {"Q4_K", 0},       [RSE_DTYPE_Q5_K] = {"Q5_K", 0},
    [RSE_DTYPE_Q6_K] = {"Q6_K", 0},       [RSE_DTYPE_IQ4_NL] = {"IQ4_NL", 0},
    [RSE_DTYPE_MXFP4] = {"MXFP4", 0},     [RSE_DTYPE_NVFP4] = {"NVFP4", 0},
};

const char *rse_dtype_name(int32_t dtype) {
    return dtype >= 0 && dtype < RSE_DTYPE_COUNT ? dtypes[dtype].name : "?";
}

size_t rse_dtype_size(int32_t dtype) {
    return dtype >= 0 && dtype < RSE_DTYPE_COUNT ? dtypes[dtype].size : 0;
}

int64_t rse_tensor_elements(const rse_tensor *tensor) {
    int64_t n = 1;
    for (int32_t i = 0; i < tensor->rank; ++i) {
        n *= tensor->shape[i];
    }
    return n;
}

bool rse_tensor_measure(const rse_tensor *tensor, size_t *bytes) {
    int64_t n = (int64_t)rse_dtype_size(tensor->dtype);
    bool legal = n > 0 && tensor->rank >= 0 && tensor->rank <= RSE_TENSOR_RANK;
    for (int32_t i = 0; legal && i < tensor->rank; ++i) {
        legal = tensor->shape[i] >= 0 && !__builtin_mul_overflow(n, tensor->shape[i], &n);
    }
    *bytes = legal ? (size_t)n : 0;
    return legal;
}

typedef struct shard {
    char *name; /* as the index spells it; the path of a single file */
    char *path;
    rse_mapping mapping;
    size_t first; /* its tensors while the files are being opened: [first, first + count) */
    size_t count;
} shard;

typedef struct entry {
    rse_tensor tensor; /* owns its name */
    size_t shard;
} entry;

struct rse_safetensors {
    shard *shards;
    size_t shard_count;
    entry *entries;
    size_t count;
    size_t capacity;
};

/* ---- One header --------------------------------------------------------------------------------------- */

typedef struct header {
    rse_safetensors *files;
    size_t shard;
    const char *path;
    const uint8_t *data; /* of the tensors */
    size_t data_size;
} header;

static rse_status bad_tensor(const header *h, const char *name, rse_error *err, const char *what) {
    return rse_fail(err, RSE_ERROR_FORMAT, "%s: tensor %.160s %s", h->path, name, what);
}

static rse_status read_dtype(const header *h, const char *name, const rse_json *value, rse_tensor *tensor,
                             rse_error *err) {
    const char *text = rse_json_string(value, NULL);
    if (text == NULL) {
        return bad_tensor(h, name, err, "has no dtype");
    }
    for (tensor->dtype = 0; tensor->dtype < RSE_DTYPE_Q8_0; ++tensor->dtype) {
        if (strcmp(text, dtypes[tensor->dtype].name) == 0) {
            return RSE_OK;
        }
    }
    return rse_fail(err, RSE_ERROR_UNSUPPORTED, "%s: tensor %.160s has the unknown dtype %.32s", h->path, name,
                    text);
}

static rse_status read_shape(const header *h, const char *name, const rse_json *value, rse_tensor *tensor,
                             rse_error *err) {
    if (rse_json_kind(value) != RSE_JSON_ARRAY) {
        return bad_tensor(h, name, err, "has no shape");
    }
    size_t rank = rse_json_count(value);
    if (rank > RSE_TENSOR_RANK) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: tensor %.160s has rank %zu, at most %d is allowed", h->path,
                        name, rank, RSE_TENSOR_RANK);
    }
    tensor->rank = (int32_t)rank;
    for (size_t i = 0; i < rank; ++i) {
        const rse_json *item = rse_json_item(value, i);
        tensor->shape[i] = rse_json_integer(item);
        if (rse_json_kind(item) != RSE_JSON_INTEGER || tensor->shape[i] < 0) {
            return bad_tensor(h, name, err, "has a shape that is not all counts");
        }
    }
    return RSE_OK;
}

/* Sets data and bytes once the claimed range is inside the file and as large as the shape says. */
static rse_status read_offsets(const header *h, const char *name, const rse_json *value, rse_tensor *tensor,
                               rse_error *err) {
    const rse_json *low = rse_json_item(value, 0);
    const rse_json *high = rse_json_item(value, 1);
    if (rse_json_count(value) != 2 || rse_json_kind(low) != RSE_JSON_INTEGER ||
        rse_json_kind(high) != RSE_JSON_INTEGER) {
        return bad_tensor(h, name, err, "has no data_offsets [begin, end]");
    }
    int64_t begin = rse_json_integer(low);
    int64_t end = rse_json_integer(high);
    if (begin < 0 || end < begin || (uint64_t)end > h->data_size) {
        return rse_fail(
            err, RSE_ERROR_FORMAT,
            "%s: tensor %.160s has data_offsets [%lld, %lld] that do not lie in its %zu bytes of data", h->path,
            name, (long long)begin, (long long)end, h->data_size);
    }
    if (!rse_tensor_measure(tensor, &tensor->bytes)) {
        return bad_tensor(h, name, err, "has a shape whose size overflows");
    }
    if ((uint64_t)(end - begin) != tensor->bytes) {
        return rse_fail(err, RSE_ERROR_FORMAT,
                        "%s: tensor %.160s has %lld bytes of data where its shape needs %zu", h->path, name,
                        (long long)(end - begin), tensor->bytes);
    }
    tensor->data = h->data + begin;
    return RSE_OK;
}

static rse_status add_entry(rse_safetensors *files, const entry *added, rse_error *err) {
    if (files->count == files->capacity) {
        size_t capacity = files->capacity == 0 ? 256 : 2 * files->capacity;
        entry *entries = realloc(files->entries, capacity * sizeof *entries);
        if (entries == NULL) {
            return rse_fail(err, RSE_ERROR_MEMORY, "no memory for %zu tensors", capacity);
        }
        files->entries = entries;
        files->capacity = capacity;
    }
    files->entries[files->count++] = *added;
    return RSE_OK;
}

static rse_status read_tensor(void *user, const char *name, const rse_json *value, rse_error *err) {
    const header *h = user;
    if (rse_json_kind(value) != RSE_JSON_OBJECT) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: %.160s is %s, not an object", h->path, name,
                        rse_json_kind_name(rse_json_kind(value)));
    }
    if (strcmp(name, "__metadata__") == 0) {
        return RSE_OK;
    }
    entry e = {.shard = h->shard};
    RSE_TRY(read_dtype(h, name, rse_json_member(value, "dtype"), &e.tensor, err));
    RSE_TRY(read_shape(h, name, rse_json_member(value, "shape"), &e.tensor, err));
    RSE_TRY(read_offsets(h, name, rse_json_member(value, "data_offsets"), &e.tensor, err));
    if (rse_json_count(value) != 3) {
        return bad_tensor(h, name, err, "has members besides dtype, shape and data_offsets");
    }
    char *copy = strdup(name);
    if (copy == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "%s: no memory for a tensor name", h->path);
    }
    e.tensor.name = copy;
    rse_status status = add_entry(h->files, &e, err);
    if (status != RSE_OK) {
        free(copy);
    }
    return status;
}

static int by_position(const void *left, const void *right) {
    const rse_tensor *a = &((const entry *)left)->tensor;
    const rse_tensor *b = &((const entry *)right)->tensor;
    if (a->data != b->data) {
        return (const uint8_t *)a->data < (const uint8_t *)b->data ? -1 : 1;
    }
    return (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

/* The format wants the data covered once, without a gap: anything else hides bytes or shares them. */
static rse_status check_cover(const header *h, const shard *file, rse_error *err) {
    entry *entries = file->count > 0 ? h->files->entries + file->first : NULL;
    if (entries != NULL) {
        qsort(entries, file->count, sizeof *entries, by_position);
    }
    size_t covered = 0;
    for (size_t i = 0; i < file->count; ++i) {
        const rse_tensor *t = &entries[i].tensor;
        size_t begin = (size_t)((const uint8_t *)t->data - h->data);
        if (begin != covered) {
            return rse_fail(
                err, RSE_ERROR_FORMAT, "%s: tensor %.160s begins at byte %zu of the data, %s byte %zu", h->path,
                t->name, begin,
                begin < covered ? "overlapping its neighbour that ends at" : "leaving a hole from", covered);
        }
        covered += t->bytes;
    }
    if (covered != h->data_size) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: has %zu bytes of data, its tensors use %zu", h->path,
                        h->data_size, covered);
    }
    return RSE_OK;
}

static rse_status read_header(rse_safetensors *files, size_t index, rse_error *err) {
    shard *file = &files->shards[index];
    RSE_TRY(rse_file_map(file->path, &file->mapping, err));
    const uint8_t *bytes = file->mapping.data;
    size_t size = file->mapping.size;
    if (size < 8) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: has %zu bytes, too few for a safetensors file", file->path,
                        size);
    }
    uint64_t length = 0;
    for (int i = 7; i >= 0; --i) {
        length = length << 8 | bytes[i];
    }
    if (length > HEADER_MAX || length > size - 8) {
        return rse_fail(err, RSE_ERROR_FORMAT,
                        "%s: claims a header of %llu bytes, the file has %zu and %d are allowed", file->path,
                        (unsigned long long)length, size - 8, HEADER_MAX);
    }
    header h = {files, index, file->path, bytes + 8 + length, size - 8 - (size_t)length};
    rse_json *root;
    RSE_TRY(rse_json_parse((const char *)bytes + 8, (size_t)length, file->path, &root, err));
    file->first = files->count;
    rse_status status = rse_json_kind(root) == RSE_JSON_OBJECT
                            ? rse_json_each(root, read_tensor, &h, err)
                            : rse_fail(err, RSE_ERROR_FORMAT, "%s: its header is no JSON object", file->path);
    rse_json_free(root);
    file->count = files->count - file->first;
    return status == RSE_OK ? check_cover(&h, file, err) : status;
}

/* ---- Files of a model --------------------------------------------------------------------------------- */

/* Takes ownership of path, which may be NULL for want of memory. */
static rse_status add_shard(rse_safetensors *files, const char *name, char *path, rse_error *err) {
    char *copy = strdup(name);
    shard *shards = realloc(files->shards, (files->shard_count + 1) * sizeof *shards);
    files->shards = shards != NULL ? shards : files->shards;
    if (copy == NULL || path == NULL || shards == NULL) {
        free(copy);
        free(path);
        return rse_fail(err, RSE_ERROR_MEMORY, "%s: no memory for its name", name);
    }
    shards[files->shard_count++] = (shard){.name = copy, .path = path};
    return RSE_OK;
}

typedef struct index_reader {
    rse_safetensors *files;
    const char *directory;
    const char *path; /* of the index */
} index_reader;

static size_t find_shard(const rse_safetensors *files, const char *name) {
    size_t i = files->shard_count;
    while (i > 0 && strcmp(files->shards[i - 1].name, name) != 0) {
        --i;
    }
    return i > 0 ? i - 1 : SIZE_MAX;
}

static rse_status index_shard(void *user, const char *name, const rse_json *value, rse_error *err) {
    index_reader *reader = user;
    const char *file = rse_json_string(value, NULL);
    if (file == NULL || file[0] == '\0' || file[0] == '.' || strchr(file, '/') != NULL ||
        strchr(file, '\\') != NULL) {
        return rse_fail(err, RSE_ERROR_FORMAT,
                        "%s: tensor %.160s lies in \"%.160s\", which is no name of a shard beside it",
                        reader->path, name, file != NULL ? file : "");
    }
    if (find_shard(reader->files, file) != SIZE_MAX) {
        return RSE_OK;
    }
    if (reader->files->shard_count == SHARDS_MAX) {
        return rse_fail(err, RSE_ERROR_UNSUPPORTED, "%s: names more than %d shards", reader->path, SHARDS_MAX);
    }
    return add_shard(reader->files, file, rse_path_join(reader->directory, file), err);
}

static int by_name(const void *left, const void *right) {
    return strcmp(((const entry *)left)->tensor.name, ((const entry *)right)->tensor.name);
}

static const entry *find_entry(const rse_safetensors *files, const char *name) {
    entry key = {.tensor = {.name = name}};
    return files->count == 0 ? NULL : bsearch(&key, files->entries, files->count, sizeof key, by_name);
}

static rse_status index_tensor(void *user, const char *name, const rse_json *value, rse_error *err) {
    index_reader *reader = user;
    const entry *e = find_entry(reader->files, name);
    const char *file = rse_json_string(value, NULL);
    if (e == NULL || e->shard != find_shard(reader->files, file)) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: tensor %.160s is not in %s", reader->path, name, file);
    }
    return RSE_OK;
}

/* Opens every shard and sorts the tensors of all by name. */
static rse_status read_shards(rse_safetensors *files, rse_error *err) {
    for (size_t i = 0; i < files->shard_count; ++i) {
        RSE_TRY(read_header(files, i, err));
    }
    if (files->count > 0) {
        qsort(files->entries, files->count, sizeof *files->entries, by_name);
    }
    for (size_t i = 1; i < files->count; ++i) {
        const entry *a = &files->entries[i - 1];
        const entry *b = &files->entries[i];
        if (strcmp(a->tensor.name, b->tensor.name) == 0) {
            return rse_fail(err, RSE_ERROR_FORMAT, "%s: tensor %.160s is also in %s",
                            files->shards[b->shard].path, b->tensor.name, files->shards[a->shard].path);
        }
    }
    return RSE_OK;
}

static rse_status open_weight_map(rse_safetensors *files, const char *directory, const char *path,
                                  const rse_json *root, rse_error *err) {
    index_reader reader = {files, directory, path};
    const rse_json *map = rse_json_member(root, "weight_map");
    if (rse_json_kind(map) != RSE_JSON_OBJECT) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: has no object weight_map", path);
    }
    RSE_TRY(rse_json_each(map, index_shard, &reader, err));
    RSE_TRY(read_shards(files, err));
    return rse_json_each(map, index_tensor, &reader, err);
}

static rse_status open_index(rse_safetensors *files, const char *directory, const char *path, rse_error *err) {
    char *text;
    size_t length;
    RSE_TRY(rse_file_read(path, INDEX_MAX, &text, &length, err));
    rse_json *root;
    rse_status status = rse_json_parse(text, length, path, &root, err);
    if (status == RSE_OK) {
        status = open_weight_map(files, directory, path, root, err);
    }
    rse_json_free(root);
    free(text);
    return status;
}

static rse_status open_file(rse_safetensors *files, const char *path, rse_error *err) {
    RSE_TRY(add_shard(files, path, strdup(path), err));
    return read_shards(files, err);
}

/* As transformers does, the single file comes before the index. */
static rse_status open_directory(rse_safetensors *files, const char *directory, rse_error *err) {
    char *single = rse_path_join(directory, "model.safetensors");
    char *index = rse_path_join(directory, "model.safetensors.index.json");
    rse_status status;
    if (single == NULL || index == NULL) {
        status = rse_fail(err, RSE_ERROR_MEMORY, "%s: no memory for its name", directory);
    } else if (rse_file_exists(single)) {
        status = open_file(files, single, err);
    } else if (rse_file_exists(index)) {
        status = open_index(files, directory, index, err);
    } else {
        status = rse_fail(err, RSE_ERROR_IO,
                          "%s: has neither model.safetensors nor model.safetensors.index.json", directory);
    }
    free(single);
    free(index);
    return status;
}

rse_status rse_safetensors_open(const char *path, rse_safetensors **files, rse_error *err) {
    *files = NULL;
    rse_safetensors *opened = calloc(1, sizeof *opened);
    if (opened == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "%s: no memory to open it", path);
    }
    rse_status status =
        rse_file_is_directory(path) ? open_directory(opened, path, err) : open_file(opened, path, err);
    if (status != RSE_OK) {
        rse_safetensors_close(opened);
        return status;
    }
    *files = opened;
    return RSE_OK;
}

void rse_safetensors_close(rse_safetensors *files) {
    if (files == NULL) {
        return;
    }
    for (size_t i = 0; i < files->count; ++i) {
        free((char *)(uintptr_t)files->entries[i].tensor.name);
    }
    for (size_t i = 0; i < files->shard_count; ++i) {
        rse_file_unmap(&files->shards[i].mapping);
        free(files->shards[i].name);
        free(files->shards[i].path);
    }
    free(files->entries);
    free(files->shards);
    free(files);
}

size_t rse_safetensors_count(const rse_safetensors *files) {
    return files->count;
}

const rse_tensor *rse_safetensors_at(const rse_safetensors *files, size_t index) {
    return &files->entries[index].tensor;
}

const rse_tensor *rse_safetensors_find(const rse_safetensors *files, const char *name) {
    const entry *e = find_entry(files, name);
    return e != NULL ? &e->tensor : NULL;
}
