/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GGUF files, version 3, by memory map: metadata and tensors, of one file or of all parts of a split one
 * ("name-00001-of-00003.gguf", opened by its first part). A file is a claim of whoever made it: counts, lengths
 * and offsets are checked against its size before they are used.
 *
 * Little-endian machines only, as nearly all such files.
 */
#ifndef RSE_GGUF_H
#define RSE_GGUF_H

#include "load/safetensors.h"

typedef struct rse_gguf rse_gguf;

/* Types of metadata, by the format's numbers. */
enum {
    RSE_GGUF_U8,
    RSE_GGUF_I8,
    RSE_GGUF_U16,
    RSE_GGUF_I16,
    RSE_GGUF_U32,
    RSE_GGUF_I32,
    RSE_GGUF_F32,
    RSE_GGUF_BOOL,
    RSE_GGUF_STRING,
    RSE_GGUF_ARRAY,
    RSE_GGUF_U64,
    RSE_GGUF_I64,
    RSE_GGUF_F64,
    RSE_GGUF_TYPES
};

/* A scalar, or an array of `count` scalars: type is that of an item. Bytes are the file's. */
typedef struct rse_gguf_value {
    const char *key;
    int32_t type;
    bool array;
    uint64_t count; /* 1 for a scalar */
    const uint8_t *data;
    size_t bytes;
} rse_gguf_value;

/* A string in the file; not NUL-terminated. */
typedef struct rse_gguf_string {
    const char *text;
    size_t length;
} rse_gguf_string;

/* Whether a path names such a file: a regular file that begins as they do. */
bool rse_gguf_is(const char *path);

/* *file is NULL after a failure. */
rse_status rse_gguf_open(const char *path, rse_gguf **file, rse_error *err);
void rse_gguf_close(rse_gguf *file); /* NULL is fine */

/* Tensors in the order of the file; shape is row-major, [outputs][inputs]. dtype is RSE_DTYPE_COUNT for a type
 * that this engine does not compute with, of which rse_gguf_type_name() gives the name. */
size_t rse_gguf_count(const rse_gguf *file);
const rse_tensor *rse_gguf_at(const rse_gguf *file, size_t index);
const rse_tensor *rse_gguf_find(const rse_gguf *file, const char *name);
const char *rse_gguf_type_name(const rse_gguf *file, size_t index); /* "Q2_K" */

size_t rse_gguf_keys(const rse_gguf *file);
const rse_gguf_value *rse_gguf_value_at(const rse_gguf *file, size_t index);
/* NULL if there is none. */
const rse_gguf_value *rse_gguf_get(const rse_gguf *file, const char *key);
/* Item `index` of numbers or booleans as a number; 0 beyond the end. */
double rse_gguf_number(const rse_gguf_value *value, uint64_t index);
/* The string at *at of a value of strings, and *at moves on; start at 0. Lengths were checked at opening. */
rse_gguf_string rse_gguf_next(const rse_gguf_value *value, size_t *at);

#endif
