/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading. One pass over the head of a file checks and indexes it: metadata, then the tensors' names, shapes,
 * types and offsets; then every tensor's range is checked against the size of the file.
 */
#include "load/gguf.h"

#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS_MAX = 1 << 16, TENSORS_MAX = 1 << 20, NAME_MAX_BYTES = 1 << 10, RANK_MAX = 4, PARTS_MAX = 1024 };

/* Types of tensors by the format's numbers: weights of a block and its bytes. */
static const struct {
    int32_t number;
    const char *name;
    int32_t weights, bytes;
    int32_t dtype;
} types[] = {
    {0, "F32", 1, 4, RSE_DTYPE_F32},
    {1, "F16", 1, 2, RSE_DTYPE_F16},
    {2, "Q4_0", 32, 18, RSE_DTYPE_Q4_0},
    {3, "Q4_1", 32, 20, RSE_DTYPE_COUNT},
    {6, "Q5_0", 32, 22, RSE_DTYPE_COUNT},
    {7, "Q5_1", 32, 24, RSE_DTYPE_COUNT},
    {8, "Q8_0", 32, 34, RSE_DTYPE_Q8_0},
    {9, "Q8_1", 32, 36, RSE_DTYPE_COUNT},
    {10, "Q2_K", 256, 84, RSE_DTYPE_COUNT},
    {11, "Q3_K", 256, 110, RSE_DTYPE_COUNT},
    {12, "Q4_K", 256, 144, RSE_DTYPE_Q4_K},
    {13, "Q5_K", 256, 176, RSE_DTYPE_Q5_K},
    {14, "Q6_K", 256, 210, RSE_DTYPE_Q6_K},
    {15, "Q8_K", 256, 292, RSE_DTYPE_COUNT},
    {16, "IQ2_XXS", 256, 66, RSE_DTYPE_COUNT},
    {17, "IQ2_XS", 256, 74, RSE_DTYPE_COUNT},
    {18, "IQ3_XXS", 256, 98, RSE_DTYPE_COUNT},
    {19, "IQ1_S", 256, 50, RSE_DTYPE_COUNT},
    {20, "IQ4_NL", 32, 18, RSE_DTYPE_IQ4_NL},
    {21, "IQ3_S", 256, 110, RSE_DTYPE_COUNT},
    {22, "IQ2_S", 256, 82, RSE_DTYPE_COUNT},
    {23, "IQ4_XS", 256, 136, RSE_DTYPE_COUNT},
    {24, "I8", 1, 1, RSE_DTYPE_I8},
    {25, "I16", 1, 2, RSE_DTYPE_I16},
    {26, "I32", 1, 4, RSE_DTYPE_I32},
    {27, "I64", 1, 8, RSE_DTYPE_I64},
    {28, "F64", 1, 8, RSE_DTYPE_F64},
    {29, "IQ1_M", 256, 56, RSE_DTYPE_COUNT},
    {30, "BF16", 1, 2, RSE_DTYPE_BF16},
    {34, "TQ1_0", 256, 54, RSE_DTYPE_COUNT},
    {35, "TQ2_0", 256, 66, RSE_DTYPE_COUNT},
    {39, "MXFP4", 32, 17, RSE_DTYPE_MXFP4},
    {40, "NVFP4", 64, 36, RSE_DTYPE_NVFP4},
};
enum { TYPES = sizeof types / sizeof types[0] };

typedef struct entry {
    rse_tensor tensor; /* owns its name */
    int32_t type;      /* index into types */
    uint64_t offset;   /* in the data of its part */
} entry;

struct rse_gguf {
    char *path;
    rse_mapping *parts; /* [part_count] */
    size_t part_count;
    rse_gguf_value *values; /* of the first part; own their keys */
    size_t value_count;
    entry *entries;
    size_t entry_count;
    size_t *sorted; /* indices of entries by name */
};

static const size_t value_sizes[RSE_GGUF_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

/* ---- A part's head ------------------------------------------------------------------------------------ */

typedef struct cursor {
    const char *path;
    const uint8_t *data;
    size_t size;
    size_t at;
    rse_error *err;
} cursor;

static rse_status bad(const cursor *c, const char *what) {
    return rse_fail(c->err, RSE_ERROR_FORMAT, "%s: %s at byte %zu of %zu", c->path, what, c->at, c->size);
}

static rse_status skip(cursor *c, uint64_t bytes, const char *what) {
    if (bytes > c->size - c->at) {
        return rse_fail(c->err, RSE_ERROR_FORMAT, "%s: %s of %llu bytes at byte %zu goes beyond the end, %zu",
                        c->path, what, (unsigned long long)bytes, c->at, c->size);
    }
    c->at += (size_t)bytes;
    return RSE_OK;
}

static rse_status take(cursor *c, void *out, size_t bytes, const char *what) {
    const uint8_t *from = c->data + c->at;
    RSE_TRY(skip(c, bytes, what));
    memcpy(out, from, bytes);
    return RSE_OK;
}

/* A string's length and place; the cursor stands behind it. */
static rse_status take_string(cursor *c, rse_gguf_string *s, const char *what) {
    uint64_t length = 0;
    RSE_TRY(take(c, &length, sizeof length, what));
    s->text = (const char *)c->data + c->at;
    RSE_TRY(skip(c, length, what));
    s->length = (size_t)length;
    return RSE_OK;
}

/* A name: short, without NUL, copied. */
static rse_status take_name(cursor *c, char **name, const char *what) {
    rse_gguf_string s;
    RSE_TRY(take_string(c, &s, what));
    if (s.length == 0 || s.length > NAME_MAX_BYTES || memchr(s.text, '\0', s.length) != NULL) {
        return bad(c, "a name that is empty, longer than 1024 bytes or has a NUL");
    }
    *name = strndup(s.text, s.length);
    return *name != NULL ? RSE_OK : rse_fail(c->err, RSE_ERROR_MEMORY, "%s: no memory for a name", c->path);
}

static rse_status take_value(cursor *c, rse_gguf_value *value) {
    uint32_t type = 0;
    uint64_t bytes = 0;
    RSE_TRY(take_name(c, (char **)&value->key, "a key"));
    RSE_TRY(take(c, &type, sizeof type, "a value's type"));
    value->count = 1;
    if (type == RSE_GGUF_ARRAY) {
        value->array = true;
        RSE_TRY(take(c, &type, sizeof type, "an array's type"));
        RSE_TRY(take(c, &value->count, sizeof value->count, "an array's length"));
    }
    if (type >= RSE_GGUF_TYPES || type == RSE_GGUF_ARRAY) {
        return rse_fail(c->err, RSE_ERROR_FORMAT, "%s: key %.64s has values of the unknown type %u", c->path,
                        value->key, (unsigned)type);
    }
    value->type = (int32_t)type;
    value->data = c->data + c->at;
    size_t start = c->at;
    if (type == RSE_GGUF_STRING) {
        for (uint64_t i = 0; i < value->count; ++i) { /* each takes at least the 8 bytes of its length */
            rse_gguf_string s;
            RSE_TRY(take_string(c, &s, "a string"));
        }
    } else {
        if (__builtin_mul_overflow(value->count, value_sizes[type], &bytes)) {
            return bad(c, "an array's length beyond all sizes");
        }
        RSE_TRY(skip(c, bytes, "a value"));
    }
    value->bytes = c->at - start;
    return RSE_OK;
}

static rse_status measure(cursor *c, entry *e) {
    rse_tensor *t = &e->tensor;
    int64_t elements = 1;
    for (int32_t i = 0; i < t->rank; ++i) {
        if (t->shape[i] < 0 || __builtin_mul_overflow(elements, t->shape[i], &elements)) {
            return rse_fail(c->err, RSE_ERROR_FORMAT, "%s: the shape of tensor %.128s is beyond all sizes",
                            c->path, t->name);
        }
    }
    int64_t weights = types[e->type].weights;
    int64_t bytes;
    if (t->rank == 0 || t->shape[t->rank - 1] % weights != 0) {
        return rse_fail(c->err, RSE_ERROR_FORMAT, "%s: tensor %.128s has rows of %lld, not a multiple of %lld",
                        c->path, t->name, t->rank == 0 ? 0LL : (long long)t->shape[t->rank - 1],
                        (long long)weights);
    }
    if (__builtin_mul_overflow(elements / weights, (int64_t)types[e->type].bytes, &bytes)) {
        return rse_fail(c->err, RSE_ERROR_FORMAT, "%s: the size of tensor %.128s is beyond all sizes", c->path,
                        t->name);
    }
    t->bytes = (size_t)bytes;
    return RSE_OK;
}

static rse_status take_tensor(cursor *c, entry *e) {
    uint32_t rank = 0;
    uint32_t type = 0;
    char *name = NULL;
    RSE_TRY(take_name(c, &name, "a tensor's name"));
    e->tensor.name = name;
    RSE_TRY(take(c, &rank, sizeof rank, "a tensor's rank"));
    if (rank > RANK_MAX) {
        return rse_fail(c->err, RSE_ERROR_FORMAT, "%s: tensor %.128s has %u dimensions; 4 is the most", c->path,
                        name, (unsigned)rank);
    }
    e->tensor.rank = (int32_t)rank;
    for (uint32_t i = 0; i < rank; ++i) { /* the file has the contiguous one first */
        RSE_TRY(take(c, &e->tensor.shape[rank - 1 - i], sizeof(int64_t), "a dimension"));
    }
    RSE_TRY(take(c, &type, sizeof type, "a tensor's type"));
    RSE_TRY(take(c, &e->offset, sizeof e->offset, "a tensor's offset"));
    for (e->type = 0; e->type < TYPES && types[e->type].number != (int32_t)type; ++e->type) {
    }
    if (e->type == TYPES) {
        return rse_fail(c->err, RSE_ERROR_UNSUPPORTED, "%s: tensor %.128s has the unknown type %u", c->path,
                        name, (unsigned)type);
    }
    e->tensor.dtype = types[e->type].dtype;
    return measure(c, e);
}

/* Values of a part that is not the first are read and forgotten, but for the alignment. */
static rse_status take_values(rse_gguf *file, cursor *c, uint64_t count, bool keep, uint64_t *alignment) {
    for (uint64_t i = 0; i < count; ++i) {
        rse_gguf_value value = {0};
        rse_status status = take_value(c, &value);
        if (status == RSE_OK && strcmp(value.key, "general.alignment") == 0 && value.type == RSE_GGUF_U32 &&
            !value.array) {
            *alignment = (uint64_t)rse_gguf_number(&value, 0);
        }
        if (status == RSE_OK && keep) {
            file->values[file->value_count++] = value;
            continue;
        }
        free((char *)value.key);
        RSE_TRY(status);
    }
    return RSE_OK;
}

/* Tensors [first, entry_count) get their data, or do not lie in the part. */
static rse_status place(rse_gguf *file, size_t first, cursor *c, uint64_t alignment) {
    if (alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > 1 << 20) {
        return rse_fail(c->err, RSE_ERROR_FORMAT,
                        "%s: general.alignment is %llu, not a power of two up to 2^20", c->path,
                        (unsigned long long)alignment);
    }
    uint64_t base = (c->at + alignment - 1) / alignment * alignment;
    for (size_t i = first; i < file->entry_count; ++i) {
        entry *e = &file->entries[i];
        if (base > c->size || e->offset > c->size - base || e->tensor.bytes > c->size - base - e->offset ||
            e->offset % alignment != 0) {
            return rse_fail(
                c->err, RSE_ERROR_FORMAT,
                "%s: tensor %.128s of %zu bytes at offset %llu does not lie in the file's data of %llu "
                "bytes, aligned to %llu",
                c->path, e->tensor.name, e->tensor.bytes, (unsigned long long)e->offset,
                (unsigned long long)(base < c->size ? c->size - base : 0), (unsigned long long)alignment);
        }
        e->tensor.data = c->data + base + e->offset;
    }
    return RSE_OK;
}

static rse_status grow(rse_gguf *file, uint64_t tensors, uint64_t values, bool keep, rse_error *err) {
    entry *entries = realloc(file->entries, (file->entry_count + tensors + 1) * sizeof *entries);
    if (entries != NULL) {
        file->entries = entries;
        memset(entries + file->entry_count, 0, tensors * sizeof *entries);
    }
    if (keep) {
        file->values = calloc(values + 1, sizeof *file->values);
    }
    return entries != NULL && (!keep || file->values != NULL)
               ? RSE_OK
               : rse_fail(err, RSE_ERROR_MEMORY, "%s: no memory for %llu tensors", file->path,
                          (unsigned long long)tensors);
}

static rse_status read_part(rse_gguf *file, const char *path, size_t index, rse_error *err) {
    rse_mapping *part = &file->parts[index];
    RSE_TRY(rse_file_map(path, part, err));
    cursor c = {path, part->data, part->size, 0, err};
    char magic[4] = "";
    uint32_t version = 0;
    uint64_t tensors = 0;
    uint64_t values = 0;
    uint64_t alignment = 32;
    RSE_TRY(take(&c, magic, sizeof magic, "the magic"));
    RSE_TRY(take(&c, &version, sizeof version, "the version"));
    if (memcmp(magic, "GGUF", 4) != 0) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: is no GGUF file", path);
    }
    if (version != 3) {
        return rse_fail(err, RSE_ERROR_UNSUPPORTED, "%s: is of version %u, supported: 3", path,
                        (unsigned)version);
    }
    RSE_TRY(take(&c, &tensors, sizeof tensors, "the number of tensors"));
    RSE_TRY(take(&c, &values, sizeof values, "the number of keys"));
    /* A tensor takes at least 24 bytes of the head, a key 13. */
    if (tensors > TENSORS_MAX || values > KEYS_MAX || tensors > c.size / 24 || values > c.size / 13) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: claims %llu tensors and %llu keys in %zu bytes", path,
                        (unsigned long long)tensors, (unsigned long long)values, c.size);
    }
    RSE_TRY(grow(file, tensors, values, index == 0, err));
    RSE_TRY(take_values(file, &c, values, index == 0, &alignment));
    size_t first = file->entry_count;
    for (uint64_t i = 0; i < tensors; ++i) {
        RSE_TRY(take_tensor(&c, &file->entries[file->entry_count++]));
    }
    return place(file, first, &c, alignment);
}

/* ---- The whole ---------------------------------------------------------------------------------------- */

static _Thread_local const entry *sorting; /* qsort gives its comparison no context */

static int by_name(const void *left, const void *right) {
    return strcmp(sorting[*(const size_t *)left].tensor.name, sorting[*(const size_t *)right].tensor.name);
}

static rse_status sort_names(rse_gguf *file, rse_error *err) {
    file->sorted = malloc((file->entry_count + 1) * sizeof *file->sorted);
    if (file->sorted == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "%s: no memory for %zu tensors", file->path, file->entry_count);
    }
    for (size_t i = 0; i < file->entry_count; ++i) {
        file->sorted[i] = i;
    }
    sorting = file->entries;
    qsort(file->sorted, file->entry_count, sizeof *file->sorted, by_name);
    for (size_t i = 1; i < file->entry_count; ++i) {
        const char *name = file->entries[file->sorted[i]].tensor.name;
        if (strcmp(file->entries[file->sorted[i - 1]].tensor.name, name) == 0) {
            return rse_fail(err, RSE_ERROR_FORMAT, "%s: there are two tensors %.128s", file->path, name);
        }
    }
    return RSE_OK;
}

/* The path of part `index` of `count`: the first one's, "-00001-of-00003.gguf", with its number exchanged. */
static rse_status part_path(const rse_gguf *file, size_t index, size_t count, char **path, rse_error *err) {
    char first[64], wanted[64];
    snprintf(first, sizeof first, "-%05d-of-%05zu.gguf", 1, count);
    snprintf(wanted, sizeof wanted, "-%05zu-of-%05zu.gguf", index + 1, count);
    size_t length = strlen(file->path), tail = strlen(first);
    if (length < tail || strcmp(file->path + length - tail, first) != 0) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: is one of %zu parts, but its name does not end with %s",
                        file->path, count, first);
    }
    *path = strdup(file->path);
    if (*path == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "%s: no memory for its name", file->path);
    }
    memcpy(*path + length - tail, wanted, tail);
    return RSE_OK;
}

static rse_status read_parts(rse_gguf *file, rse_error *err) {
    file->parts = calloc(PARTS_MAX, sizeof *file->parts);
    if (file->parts == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "%s: no memory to open it", file->path);
    }
    file->part_count = 1;
    RSE_TRY(read_part(file, file->path, 0, err));
    const rse_gguf_value *split = rse_gguf_get(file, "split.count");
    double count = split != NULL ? rse_gguf_number(split, 0) : 0;
    if (count > PARTS_MAX || count < 0) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: split.count is %g, not in 0..%d", file->path, count,
                        PARTS_MAX);
    }
    for (size_t i = 1; i < (size_t)count; ++i) {
        char *path = NULL;
        RSE_TRY(part_path(file, i, (size_t)count, &path, err));
        file->part_count = i + 1;
        rse_status status = read_part(file, path, i, err);
        free(path);
        RSE_TRY(status);
    }
    const rse_gguf_value *total = rse_gguf_get(file, "split.tensors.count");
    if (count > 1 && total != NULL && rse_gguf_number(total, 0) != (double)file->entry_count) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: split.tensors.count is %g, but the parts hold %zu",
                        file->path, rse_gguf_number(total, 0), file->entry_count);
    }
    return sort_names(file, err);
}

bool rse_gguf_is(const char *path) {
    rse_mapping mapping;
    if (rse_file_is_directory(path) || rse_file_map(path, &mapping, NULL) != RSE_OK) {
        return false;
    }
    bool is = mapping.size >= 4 && memcmp(mapping.data, "GGUF", 4) == 0;
    rse_file_unmap(&mapping);
    return is;
}

rse_status rse_gguf_open(const char *path, rse_gguf **out, rse_error *err) {
    *out = NULL;
    rse_gguf *file = calloc(1, sizeof *file);
    if (file == NULL || (file->path = strdup(path)) == NULL) {
        free(file);
        return rse_fail(err, RSE_ERROR_MEMORY, "%s: no memory to open it", path);
    }
    rse_status status = read_parts(file, err);
    if (status != RSE_OK) {
        rse_gguf_close(file);
        return status;
    }
    *out = file;
    return RSE_OK;
}

void rse_gguf_close(rse_gguf *file) {
    if (file == NULL) {
        return;
    }
    for (size_t i = 0; i < file->entry_count; ++i) {
        free((char *)file->entries[i].tensor.name);
    }
    for (size_t i = 0; i < file->value_count; ++i) {
        free((char *)file->values[i].key);
    }
    for (size_t i = 0; i < file->part_count; ++i) {
        rse_file_unmap(&file->parts[i]);
    }
    free(file->entries);
    free(file->values);
    free(file->parts);
    free(file->sorted);
    free(file->path);
    free(file);
}

/* ---- Questions ---------------------------------------------------------------------------------------- */

size_t rse_gguf_count(const rse_gguf *file) {
    return file->entry_count;
}

const rse_tensor *rse_gguf_at(const rse_gguf *file, size_t index) {
    return &file->entries[index].tensor;
}

const rse_tensor *rse_gguf_find(const rse_gguf *file, const char *name) {
    size_t low = 0;
    for (size_t high = file->entry_count; low < high;) {
        size_t middle = low + (high - low) / 2;
        const rse_tensor *t = &file->entries[file->sorted[middle]].tensor;
        int order = strcmp(name, t->name);
        if (order == 0) {
            return t;
        }
        if (order < 0) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return NULL;
}

const char *rse_gguf_type_name(const rse_gguf *file, size_t index) {
    return types[file->entries[index].type].name;
}

size_t rse_gguf_keys(const rse_gguf *file) {
    return file->value_count;
}

const rse_gguf_value *rse_gguf_value_at(const rse_gguf *file, size_t index) {
    return &file->values[index];
}

const rse_gguf_value *rse_gguf_get(const rse_gguf *file, const char *key) {
    for (size_t i = 0; i < file->value_count; ++i) {
        if (strcmp(file->values[i].key, key) == 0) {
            return &file->values[i];
        }
    }
    return NULL;
}

#define NUMBER_CASE(kind, type)                                                                                \
    case kind: {                                                                                               \
        type x;                                                                                                \
        memcpy(&x, value->data + index * sizeof x, sizeof x);                                                  \
        return (double)x;                                                                                      \
    }

double rse_gguf_number(const rse_gguf_value *value, uint64_t index) {
    if (index >= value->count) {
        return 0.0;
    }
    switch (value->type) {
        NUMBER_CASE(RSE_GGUF_U8, uint8_t)
        NUMBER_CASE(RSE_GGUF_I8, int8_t)
        NUMBER_CASE(RSE_GGUF_U16, uint16_t)
        NUMBER_CASE(RSE_GGUF_I16, int16_t)
        NUMBER_CASE(RSE_GGUF_U32, uint32_t)
        NUMBER_CASE(RSE_GGUF_I32, int32_t)
        NUMBER_CASE(RSE_GGUF_F32, float)
        NUMBER_CASE(RSE_GGUF_BOOL, uint8_t)
        NUMBER_CASE(RSE_GGUF_U64, uint64_t)
        NUMBER_CASE(RSE_GGUF_I64, int64_t)
        NUMBER_CASE(RSE_GGUF_F64, double)
    default:
        return 0.0;
    }
}

rse_gguf_string rse_gguf_next(const rse_gguf_value *value, size_t *at) {
    uint64_t length;
    if (value->type != RSE_GGUF_STRING || *at >= value->bytes) {
        return (rse_gguf_string){"", 0};
    }
    memcpy(&length, value->data + *at, sizeof length);
    rse_gguf_string s = {(const char *)value->data + *at + sizeof length, (size_t)length};
    *at += sizeof length + (size_t)length;
    return s;
}
