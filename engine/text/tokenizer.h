/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokenizer.json of byte-level BPE models: added tokens, NFC, pre-tokenizer by regular expression, merges,
 * template. Parts of the file that this reader does not know are refused by name: a tokenizer that is almost
 * right makes a model that is quietly worse.
 *
 * A loaded tokenizer is immutable; any number of threads may use it.
 */
#ifndef RSE_TOKENIZER_H
#define RSE_TOKENIZER_H

#include "base/error.h"
#include "base/buffer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct rse_tokenizer rse_tokenizer;

/* path: tokenizer.json, the directory that holds it, or a GGUF file. *tokenizer is NULL after a failure. */
rse_status rse_tokenizer_load(const char *path, rse_tokenizer **tokenizer, rse_error *err);
/* The same from a text in memory. */
rse_status rse_tokenizer_parse(const char *text, size_t length, rse_tokenizer **tokenizer, rse_error *err);
void rse_tokenizer_free(rse_tokenizer *tokenizer); /* NULL is fine */

/* The largest id plus one; ids in between may be unused. At most 2^24. */
int32_t rse_tokenizer_size(const rse_tokenizer *tokenizer);
/* The bytes an id stands for (not NUL-terminated) and their number; NULL for an id outside the vocabulary. */
const char *rse_tokenizer_bytes(const rse_tokenizer *tokenizer, int32_t id, size_t *length);
/* The id of the added token with this content, e.g. "<|im_end|>"; -1 if there is none. */
int32_t rse_tokenizer_added(const rse_tokenizer *tokenizer, const char *content);
bool rse_tokenizer_is_special(const rse_tokenizer *tokenizer, int32_t id);

enum {
    RSE_ENCODE_SPECIAL = 1, /* special tokens written in the text become their ids; else they are plain text */
    RSE_ENCODE_TEMPLATE = 2 /* what the post-processor adds around a text, e.g. a BOS */
};

/* Appends the ids of a text to ids. Invalid UTF-8 is RSE_ERROR_USAGE with the byte's offset; after a failure
 * ids are as before. */
rse_status rse_tokenizer_encode(const rse_tokenizer *tokenizer, const char *text, size_t length, uint32_t flags,
                                rse_ids *ids, rse_error *err);

/*
 * Turns a stream of ids into text of which every piece is valid UTF-8: bytes of an unfinished character are
 * held back until it is complete; bytes that can never complete become U+FFFD. The pieces of a stream joined
 * are what decoding all ids at once gives. Plain data: may be copied and needs no freeing.
 */
typedef struct rse_decoder {
    const rse_tokenizer *tokenizer;
    bool show_special; /* special tokens appear as their text; by default they are dropped */
    uint8_t held_count;
    uint8_t held[4];
} rse_decoder;

void rse_decoder_init(rse_decoder *decoder, const rse_tokenizer *tokenizer, bool show_special);
/* Appends what id completes. An id outside the vocabulary is RSE_ERROR_USAGE. */
rse_status rse_decoder_push(rse_decoder *decoder, int32_t id, rse_text *out, rse_error *err);
/* The end: an unfinished character becomes one U+FFFD. */
rse_status rse_decoder_flush(rse_decoder *decoder, rse_text *out, rse_error *err);

#endif
