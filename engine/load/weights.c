/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Canonical names are pointers into the tensors' own names, behind the prefix; slots sorted by them make lookup
 * a binary search and show when two tensors of a checkpoint would be one.
 */
#include "load/weights.h"

#include "load/gguf_model.h"

#include "numbers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const prefixes[] = {"model.language_model.", "language_model.model.", "language_model.",
                                       "model.", "backbone."};

const char *const rse_weights_vision[] = {"visual.",       "vision_tower.",          "vision_model.",
                                          "mm_projector.", "multi_modal_projector.", NULL};

typedef struct slot {
    const char *name; /* canonical */
    const rse_tensor *tensor;
    void *aligned; /* a copy of the data where the file does not align it; NULL otherwise */
    bool taken;
} slot;

struct rse_weights {
    rse_safetensors *files; /* or */
    rse_gguf *gguf;
    rse_tensor *renamed; /* [count] of gguf: copies under canonical names, which they own */
    slot *slots;
    size_t count;
};

static const char *canonical(const char *name) {
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; ++i) {
        size_t n = strlen(prefixes[i]);
        if (strncmp(name, prefixes[i], n) == 0) {
            return name + n;
        }
    }
    return name;
}

static int by_name(const void *left, const void *right) {
    return strcmp(((const slot *)left)->name, ((const slot *)right)->name);
}

/* A copy of a GGUF file's tensor under its canonical name. Norms over groups are flat there as elsewhere. */
static rse_status rename_tensor(rse_weights *w, size_t index, const char *path, rse_error *err) {
    rse_tensor *t = &w->renamed[index];
    *t = *rse_gguf_at(w->gguf, index);
    const char *own = t->name;
    t->name = NULL;
    if (t->dtype == RSE_DTYPE_COUNT) {
        return rse_fail(err, RSE_ERROR_UNSUPPORTED, "%s: tensor %.160s has type %s, which is not supported",
                        path, own, rse_gguf_type_name(w->gguf, index));
    }
    rse_text name = {0};
    rse_status status = rse_gguf_canonical(w->gguf, own, &name, err);
    t->name = name.data;
    const char *last = name.data != NULL ? strstr(name.data, "norm.weight") : NULL;
    if (last != NULL && t->rank == 2) {
        t->shape[0] *= t->shape[1];
        t->rank = 1;
    }
    return status;
}

static rse_status index_slots(rse_weights *w, const char *path, rse_error *err) {
    w->count = w->gguf != NULL ? rse_gguf_count(w->gguf) : rse_safetensors_count(w->files);
    w->slots = calloc(w->count + 1, sizeof *w->slots);
    w->renamed = w->gguf != NULL ? calloc(w->count + 1, sizeof *w->renamed) : NULL;
    if (w->slots == NULL || (w->gguf != NULL && w->renamed == NULL)) {
        return rse_fail(err, RSE_ERROR_MEMORY, "%s: no memory for %zu tensors", path, w->count);
    }
    for (size_t i = 0; i < w->count; ++i) {
        if (w->gguf != NULL) {
            RSE_TRY(rename_tensor(w, i, path, err));
            w->slots[i] = (slot){.name = w->renamed[i].name, .tensor = &w->renamed[i]};
        } else {
            const rse_tensor *tensor = rse_safetensors_at(w->files, i);
            w->slots[i] = (slot){.name = canonical(tensor->name), .tensor = tensor};
        }
    }
    qsort(w->slots, w->count, sizeof *w->slots, by_name);
    for (size_t i = 1; i < w->count; ++i) {
        const slot *a = &w->slots[i - 1];
        const slot *b = &w->slots[i];
        if (strcmp(a->name, b->name) == 0) {
            return rse_fail(err, RSE_ERROR_FORMAT, "%s: tensors %.160s and %.160s are both %s", path,
                            a->tensor->name, b->tensor->name, a->name);
        }
    }
    return RSE_OK;
}

rse_status rse_weights_open(const char *path, rse_weights **weights, rse_error *err) {
    *weights = NULL;
    rse_weights *w = calloc(1, sizeof *w);
    if (w == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "%s: no memory to open it", path);
    }
    rse_status status =
        rse_gguf_is(path) ? rse_gguf_open(path, &w->gguf, err) : rse_safetensors_open(path, &w->files, err);
    if (status == RSE_OK) {
        status = index_slots(w, path, err);
    }
    if (status != RSE_OK) {
        rse_weights_close(w);
        return status;
    }
    *weights = w;
    return RSE_OK;
}

void rse_weights_close(rse_weights *weights) {
    if (weights == NULL) {
        return;
    }
    for (size_t i = 0; weights->slots != NULL && i < weights->count; ++i) {
        free(weights->slots[i].aligned);
    }
    for (size_t i = 0; weights->renamed != NULL && i < weights->count; ++i) {
        free((char *)weights->renamed[i].name);
    }
    free(weights->renamed);
    free(weights->slots);
    rse_gguf_close(weights->gguf);
    rse_safetensors_close(weights->files);
    free(weights);
}

static slot *find(const rse_weights *weights, const char *name) {
    slot key = {.name = name};
    return bsearch(&key, weights->slots, weights->count, sizeof key, by_name);
}

bool rse_weights_has(const rse_weights *weights, const char *name) {
    return find(weights, name) != NULL;
}

bool rse_weights_has_prefix(const rse_weights *weights, const char *prefix) {
    for (size_t i = 0; i < weights->count; ++i) {
        if (strncmp(weights->slots[i].name, prefix, strlen(prefix)) == 0) {
            return true;
        }
    }
    return false;
}

/* ---- Shapes ------------------------------------------------------------------------------------------- */

/* Copies the axes that are not of length 1 and returns their number. */
static int32_t squeeze(const int64_t *size, int32_t rank, int64_t out[RSE_TENSOR_RANK]) {
    int32_t n = 0;
    for (int32_t i = 0; i < rank; ++i) {
        if (size[i] != 1) {
            out[n++] = size[i];
        }
    }
    return n;
}

static bool shape_fits(const rse_tensor *tensor, const rse_shape *shape) {
    int64_t found[RSE_TENSOR_RANK];
    int64_t wanted[RSE_TENSOR_RANK];
    int32_t found_rank = squeeze(tensor->shape, tensor->rank, found);
    int32_t wanted_rank = squeeze(shape->size, shape->rank, wanted);
    if (found_rank == 1) {
        return found[0] == shape->size[0] * shape->size[1] * shape->size[2];
    }
    return found_rank == wanted_rank && memcmp(found, wanted, (size_t)found_rank * sizeof found[0]) == 0;
}

/* "[1024, 1, 4]" */
static void print_shape(const int64_t *size, int32_t rank, char text[200]) {
    size_t n = (size_t)snprintf(text, 200, "[");
    for (int32_t i = 0; i < rank; ++i) {
        n += (size_t)snprintf(text + n, 200 - n, "%s%lld", i > 0 ? ", " : "", (long long)size[i]);
    }
    snprintf(text + n, 200 - n, "]");
}

/* ---- Taking ------------------------------------------------------------------------------------------- */

/* "F32, BF16" */
static void print_dtypes(uint64_t dtypes, char text[160]) {
    size_t n = 0;
    for (int32_t i = 0; i < RSE_DTYPE_COUNT; ++i) {
        if (dtypes >> i & 1) {
            n += (size_t)snprintf(text + n, 160 - n, "%s%s", n > 0 ? ", " : "", rse_dtype_name(i));
        }
    }
}

static rse_status take(rse_weights *weights, const char *name, const rse_shape *shape, uint64_t dtypes,
                       slot **out, rse_error *err) {
    slot *s = find(weights, name);
    char wanted[200];
    char found[200];
    print_shape(shape->size, shape->rank, wanted);
    if (s == NULL) {
        return rse_fail(err, RSE_ERROR_FORMAT, "tensor %.160s of shape %s is missing", name, wanted);
    }
    const rse_tensor *t = s->tensor;
    if (!shape_fits(t, shape)) {
        print_shape(t->shape, t->rank, found);
        return rse_fail(err, RSE_ERROR_FORMAT, "tensor %.160s has shape %s, expected is %s", t->name, found,
                        wanted);
    }
    if ((dtypes >> t->dtype & 1) == 0) {
        print_dtypes(dtypes, wanted);
        return rse_fail(err, RSE_ERROR_UNSUPPORTED, "tensor %.160s has dtype %s, supported here are %s",
                        t->name, rse_dtype_name(t->dtype), wanted);
    }
    *out = s;
    return RSE_OK;
}

const rse_tensor *rse_weights_peek(const rse_weights *weights, const char *name) {
    const slot *s = find(weights, name);
    return s != NULL ? s->tensor : NULL;
}

void rse_weights_skip(rse_weights *weights, const char *name) {
    slot *s = find(weights, name);
    if (s != NULL) {
        s->taken = true;
    }
}

void rse_weights_skip_part(rse_weights *weights, const char *part) {
    for (size_t i = 0; i < weights->count; ++i) {
        weights->slots[i].taken = weights->slots[i].taken || strstr(weights->slots[i].name, part) != NULL;
    }
}

rse_status rse_weights_view(rse_weights *weights, const char *name, rse_shape shape, rse_tensor *view,
                            rse_error *err) {
    return rse_weights_take(weights, name, shape, RSE_DTYPES_PLAIN, view, err);
}

rse_status rse_weights_take(rse_weights *weights, const char *name, rse_shape shape, uint64_t dtypes,
                            rse_tensor *view, rse_error *err) {
    slot *s;
    RSE_TRY(take(weights, name, &shape, dtypes, &s, err));
    const rse_tensor *t = s->tensor;
    if (t->dtype < RSE_DTYPE_Q8_0 && (uintptr_t)t->data % rse_dtype_size(t->dtype) != 0 && s->aligned == NULL) {
        s->aligned = malloc(t->bytes);
        if (s->aligned == NULL) {
            return rse_fail(err, RSE_ERROR_MEMORY, "tensor %.160s: no memory for %zu bytes", t->name, t->bytes);
        }
        memcpy(s->aligned, t->data, t->bytes);
    }
    *view = (rse_tensor){.name = s->name,
                         .dtype = t->dtype,
                         .rank = shape.rank,
                         .data = s->aligned != NULL ? s->aligned : t->data,
                         .bytes = t->bytes};
    memcpy(view->shape, shape.size, sizeof shape.size);
    s->taken = true;
    return RSE_OK;
}

rse_status rse_weights_f32(rse_weights *weights, const char *name, rse_shape shape, float *out,
                           rse_error *err) {
    slot *s;
    RSE_TRY(take(weights, name, &shape, RSE_DTYPES_PLAIN, &s, err));
    rse_convert_to_f32(s->tensor->dtype, s->tensor->data, rse_tensor_elements(s->tensor), out);
    s->taken = true;
    return RSE_OK;
}

static bool has_prefix_of(const char *name, const char *const *list) {
    for (; list != NULL && *list != NULL; ++list) {
        if (strncmp(name, *list, strlen(*list)) == 0) {
            return true;
        }
    }
    return false;
}

rse_status rse_weights_finish(const rse_weights *weights, const char *const *ignored, rse_error *err) {
    const slot *first = NULL;
    size_t extra = 0;
    for (size_t i = 0; i < weights->count; ++i) {
        const slot *s = &weights->slots[i];
        if (!s->taken && !has_prefix_of(s->name, ignored)) {
            first = first != NULL ? first : s;
            ++extra;
        }
    }
    if (first == NULL) {
        return RSE_OK;
    }
    return rse_fail(err, RSE_ERROR_FORMAT,
                    "tensor %.160s does not belong to this model (%zu of %zu tensors do not)",
                    first->tensor->name, extra, weights->count);
}

void rse_convert_to_f32(int32_t dtype, const void *data, int64_t n, float *out) {
    if (dtype == RSE_DTYPE_F32) {
        if (n > 0) {
            memcpy(out, data, (size_t)n * sizeof *out);
        }
        return;
    }
    for (int64_t i = 0; i < n; ++i) {
        uint16_t half;
        memcpy(&half, (const uint8_t *)data + 2 * i, sizeof half);
        out[i] = dtype == RSE_DTYPE_BF16 ? rssm_f32_of_bf16(half) : rssm_f32_of_f16(half);
    }
}
