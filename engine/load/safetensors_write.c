/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing. All offsets follow from the shapes, so the header goes out first and the data streams after it
 * through one buffer. The file gets its name when it is complete.
 */
#include "load/safetensors.h"

#include "base/json.h"
#include "text/utf8.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK = 1 << 20 };

typedef struct plan {
    const rse_tensor *tensors;
    size_t count;
    size_t *order; /* [count] tensors as they lie in the file */
    size_t *bytes; /* [count] by tensor */
    rse_tensor_fill_fn fill;
    void *user;
} plan;

/* ---- Plan --------------------------------------------------------------------------------------------- */

static int by_name(const void *left, const void *right) {
    return strcmp((*(const rse_tensor *const *)left)->name, (*(const rse_tensor *const *)right)->name);
}

static rse_status check_names(const rse_tensor *tensors, size_t count, rse_error *err) {
    const rse_tensor **sorted = malloc((count + 1) * sizeof *sorted);
    if (sorted == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for %zu tensors", count);
    }
    for (size_t i = 0; i < count; ++i) {
        sorted[i] = &tensors[i];
    }
    qsort(sorted, count, sizeof *sorted, by_name);
    rse_status status = RSE_OK;
    for (size_t i = 0; i < count && status == RSE_OK; ++i) {
        const char *name = sorted[i]->name;
        if (strcmp(name, "__metadata__") == 0 || rse_utf8_check(name, strlen(name)) != strlen(name)) {
            status = rse_fail(err, RSE_ERROR_USAGE, "\"%.160s\" cannot be the name of a tensor", name);
        } else if (i > 0 && strcmp(sorted[i - 1]->name, name) == 0) {
            status = rse_fail(err, RSE_ERROR_USAGE, "two tensors have the name %.160s", name);
        }
    }
    free(sorted);
    return status;
}

/* Larger elements first, otherwise as given: data begins at a multiple of 8, so every tensor is aligned. */
static rse_status make_plan(plan *p, rse_error *err) {
    RSE_TRY(check_names(p->tensors, p->count, err));
    p->order = malloc((p->count + 1) * sizeof *p->order);
    p->bytes = malloc((p->count + 1) * sizeof *p->bytes);
    if (p->order == NULL || p->bytes == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for %zu tensors", p->count);
    }
    size_t total = 0;
    for (size_t i = 0; i < p->count; ++i) {
        const rse_tensor *t = &p->tensors[i];
        if (!rse_tensor_measure(t, &p->bytes[i]) || __builtin_add_overflow(total, p->bytes[i], &total)) {
            return rse_fail(err, RSE_ERROR_USAGE,
                            "tensor %.160s has dtype %s and rank %d, or a shape, that cannot be written",
                            t->name, rse_dtype_name(t->dtype), (int)t->rank);
        }
        if (t->data == NULL && p->fill == NULL && p->bytes[i] > 0) {
            return rse_fail(err, RSE_ERROR_USAGE, "tensor %.160s has no data", t->name);
        }
    }
    size_t n = 0;
    for (size_t size = 8; size > 0; size /= 2) {
        for (size_t i = 0; i < p->count; ++i) {
            if (rse_dtype_size(p->tensors[i].dtype) == size) {
                p->order[n++] = i;
            }
        }
    }
    return RSE_OK;
}

/* ---- Output ------------------------------------------------------------------------------------------- */

static rse_status print_entry(rse_text *header, const rse_tensor *t, size_t begin, size_t bytes,
                              rse_error *err) {
    RSE_TRY(rse_text_append(header, ",", 1, err));
    RSE_TRY(rse_json_quote(t->name, strlen(t->name), header, err));
    RSE_TRY(rse_text_print(header, err, ":{\"dtype\":\"%s\",\"shape\":[", rse_dtype_name(t->dtype)));
    for (int32_t i = 0; i < t->rank; ++i) {
        RSE_TRY(rse_text_print(header, err, "%s%lld", i > 0 ? "," : "", (long long)t->shape[i]));
    }
    return rse_text_print(header, err, "],\"data_offsets\":[%zu,%zu]}", begin, begin + bytes);
}

/* The length of the header in eight bytes, then the header, padded with blanks to a multiple of eight. */
static rse_status print_header(const plan *p, rse_text *header, rse_error *err) {
    uint8_t prefix[8] = {0};
    RSE_TRY(rse_text_append(header, prefix, sizeof prefix, err));
    RSE_TRY(rse_text_print(header, err, "{\"__metadata__\":{\"format\":\"pt\"}"));
    size_t begin = 0;
    for (size_t i = 0; i < p->count; ++i) {
        size_t index = p->order[i];
        RSE_TRY(print_entry(header, &p->tensors[index], begin, p->bytes[index], err));
        begin += p->bytes[index];
    }
    RSE_TRY(rse_text_append(header, "}", 1, err));
    while (header->length % 8 != 0) {
        RSE_TRY(rse_text_append(header, " ", 1, err));
    }
    for (int i = 0; i < 8; ++i) {
        header->data[i] = (char)((uint64_t)(header->length - 8) >> (8 * i) & 0xffu);
    }
    return RSE_OK;
}

static rse_status put(FILE *file, const char *path, const void *data, size_t bytes, rse_error *err) {
    if (bytes > 0 && fwrite(data, 1, bytes, file) != bytes) {
        return rse_fail(err, RSE_ERROR_IO, "%s: cannot write: %s", path, strerror(errno));
    }
    return RSE_OK;
}

static rse_status put_tensor(const plan *p, size_t index, FILE *file, const char *path, void *chunk,
                             rse_error *err) {
    const rse_tensor *t = &p->tensors[index];
    size_t bytes = p->bytes[index];
    if (t->data != NULL) {
        return put(file, path, t->data, bytes, err);
    }
    for (size_t done = 0; done < bytes; done += CHUNK) {
        size_t n = bytes - done < CHUNK ? bytes - done : CHUNK;
        RSE_TRY(p->fill(p->user, index, done, chunk, n, err));
        RSE_TRY(put(file, path, chunk, n, err));
    }
    return RSE_OK;
}

static rse_status put_all(const plan *p, FILE *file, const char *path, rse_error *err) {
    rse_text header = {0};
    void *chunk = malloc(CHUNK);
    rse_status status = chunk != NULL ? print_header(p, &header, err)
                                      : rse_fail(err, RSE_ERROR_MEMORY, "%s: no memory to write it", path);
    if (status == RSE_OK) {
        status = put(file, path, header.data, header.length, err);
    }
    for (size_t i = 0; i < p->count && status == RSE_OK; ++i) {
        status = put_tensor(p, p->order[i], file, path, chunk, err);
    }
    free(chunk);
    rse_text_free(&header);
    return status;
}

static rse_status write_file(const plan *p, const char *path, const char *part, rse_error *err) {
    FILE *file = fopen(part, "wb");
    if (file == NULL) {
        return rse_fail(err, RSE_ERROR_IO, "%s: cannot create: %s", part, strerror(errno));
    }
    rse_status status = put_all(p, file, part, err);
    if (fclose(file) != 0 && status == RSE_OK) {
        status = rse_fail(err, RSE_ERROR_IO, "%s: cannot write: %s", part, strerror(errno));
    }
    if (status == RSE_OK && rename(part, path) != 0) {
        status = rse_fail(err, RSE_ERROR_IO, "%s: cannot rename to %s: %s", part, path, strerror(errno));
    }
    if (status != RSE_OK) {
        unlink(part);
    }
    return status;
}

rse_status rse_safetensors_write(const char *path, const rse_tensor *tensors, size_t count,
                                 rse_tensor_fill_fn fill, void *user, rse_error *err) {
    plan p = {.tensors = tensors, .count = count, .fill = fill, .user = user};
    rse_text part = {0};
    struct stat there;
    if (lstat(path, &there) == 0 && !S_ISREG(there.st_mode)) { /* the rename would take its place */
        return rse_fail(err, RSE_ERROR_IO, "%s: is a folder, device, pipe or link; a file is written", path);
    }
    rse_status status = make_plan(&p, err);
    if (status == RSE_OK) {
        status = rse_text_print(&part, err, "%s.part", path);
    }
    if (status == RSE_OK) {
        status = write_file(&p, path, part.data, err);
    }
    rse_text_free(&part);
    free(p.order);
    free(p.bytes);
    return status;
}
