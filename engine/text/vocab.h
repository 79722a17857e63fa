/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The vocabulary of a byte-level model: id to bytes, and bytes to id for the tokens that merges make. In
 * tokenizer.json a token is spelled with one printable character per byte (GPT-2's table); here it is bytes.
 */
#ifndef RSE_VOCAB_H
#define RSE_VOCAB_H

#include "base/buffer.h"
#include "base/json.h"

#include <stdbool.h>

enum { RSE_VOCAB_MAX = 1 << 24 };

typedef struct rse_piece {
    uint32_t offset; /* into bytes; UINT32_MAX: the id is unused */
    uint32_t length;
} rse_piece;

/* Valid when zeroed; freed by rse_vocab_free(). */
typedef struct rse_vocab {
    rse_piece *pieces; /* [size] by id */
    int32_t size;
    rse_text bytes;
    int32_t *table; /* ids of byte-level tokens by hash of their bytes, -1 where free */
    size_t mask;
    int32_t byte_ids[256];
} rse_vocab;

/* Reads the object model.vocab. ids of tokens beyond it, up to largest, may be added afterwards. */
rse_status rse_vocab_load(rse_vocab *vocab, const rse_json *object, int32_t largest, rse_error *err);
void rse_vocab_free(rse_vocab *vocab);
/* Sets the bytes of an id; an id that has other bytes already is RSE_ERROR_FORMAT. */
rse_status rse_vocab_add(rse_vocab *vocab, int32_t id, const char *bytes, size_t length, rse_error *err);

/* NULL for an id outside the vocabulary. */
const char *rse_vocab_bytes(const rse_vocab *vocab, int32_t id, size_t *length);
/* -1 if no byte-level token has these bytes. */
int32_t rse_vocab_find(const rse_vocab *vocab, const char *bytes, size_t length);

/* Turns a token as tokenizer.json spells it into bytes: out has room for `length`. Returns their number, or
 * SIZE_MAX if a character stands for no byte. */
size_t rse_vocab_unspell(const char *spelled, size_t length, char *out);

#endif
