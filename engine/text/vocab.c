/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One text holds the bytes of all tokens; a hash table with linear probing leads from bytes to ids.
 */
#include "text/vocab.h"

#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static const char where[] = "tokenizer.json";

static bool is_plain_byte(uint32_t code) {
    return (code >= 0x21 && code <= 0x7e) || (code >= 0xa1 && code <= 0xff && code != 0xad);
}

/* The byte a character stands for, or -1: printable Latin-1 stands for itself, and the n-th of the other bytes
 * is spelled U+0100 + n. */
static int byte_of(uint32_t code) {
    if (code < 0x100) {
        return is_plain_byte(code) ? (int)code : -1;
    }
    uint32_t left = code - 0x100;
    for (uint32_t byte = 0; byte < 0x100; ++byte) {
        if (!is_plain_byte(byte) && left-- == 0) {
            return (int)byte;
        }
    }
    return -1;
}

size_t rse_vocab_unspell(const char *spelled, size_t length, char *out) {
    size_t n = 0;
    for (size_t i = 0; i < length;) {
        int step;
        int byte = byte_of(rse_utf8_get(spelled + i, &step));
        if (byte < 0) {
            return SIZE_MAX;
        }
        out[n++] = (char)byte;
        i += (size_t)step;
    }
    return n;
}

const char *rse_vocab_bytes(const rse_vocab *vocab, int32_t id, size_t *length) {
    if (id < 0 || id >= vocab->size || vocab->pieces[id].offset == UINT32_MAX) {
        return NULL;
    }
    *length = vocab->pieces[id].length;
    return vocab->bytes.data + vocab->pieces[id].offset;
}

/* The place in the table where these bytes are, or where they would go. */
static size_t place(const rse_vocab *vocab, const char *bytes, size_t length) {
    size_t i = (size_t)XXH3_64bits(bytes, length) & vocab->mask;
    for (; vocab->table[i] >= 0; i = (i + 1) & vocab->mask) {
        size_t found_length = 0;
        const char *found = rse_vocab_bytes(vocab, vocab->table[i], &found_length);
        if (found_length == length && memcmp(found, bytes, length) == 0) {
            break;
        }
    }
    return i;
}

int32_t rse_vocab_find(const rse_vocab *vocab, const char *bytes, size_t length) {
    return vocab->table[place(vocab, bytes, length)];
}

rse_status rse_vocab_add(rse_vocab *vocab, int32_t id, const char *bytes, size_t length, rse_error *err) {
    rse_piece *piece = &vocab->pieces[id];
    if (piece->offset != UINT32_MAX) {
        bool same = piece->length == length && memcmp(vocab->bytes.data + piece->offset, bytes, length) == 0;
        return same ? RSE_OK : rse_fail(err, RSE_ERROR_FORMAT, "%s: two tokens have the id %d", where, (int)id);
    }
    if (length > UINT32_MAX - 1 - vocab->bytes.length) {
        return rse_fail(err, RSE_ERROR_UNSUPPORTED, "%s: its tokens have more than 4 GiB of text", where);
    }
    rse_piece added = {(uint32_t)vocab->bytes.length, (uint32_t)length};
    RSE_TRY(rse_text_append(&vocab->bytes, bytes, length, err));
    *piece = added;
    return RSE_OK;
}

typedef struct loader {
    rse_vocab *vocab;
    int64_t largest;
    char *scratch; /* bytes of one token */
    size_t longest;
} loader;

static rse_status measure(void *user, const char *key, const rse_json *value, rse_error *err) {
    loader *l = user;
    int64_t id = rse_json_integer(value);
    if (rse_json_kind(value) != RSE_JSON_INTEGER || id < 0 || id >= RSE_VOCAB_MAX) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: the id of token %.100s is not in 0..%d", where, key,
                        RSE_VOCAB_MAX - 1);
    }
    size_t length = strlen(key);
    l->largest = id > l->largest ? id : l->largest;
    l->longest = length > l->longest ? length : l->longest;
    return RSE_OK;
}

/* A token with a character outside the table cannot come from merges: it is kept for decoding, as it is. */
static rse_status add_spelled(void *user, const char *key, const rse_json *value, rse_error *err) {
    loader *l = user;
    rse_vocab *vocab = l->vocab;
    int32_t id = (int32_t)rse_json_integer(value);
    if (vocab->pieces[id].offset != UINT32_MAX) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: token %.100s has the id %d of another token", where, key,
                        (int)id);
    }
    size_t length = strlen(key);
    size_t n = rse_vocab_unspell(key, length, l->scratch);
    if (n == SIZE_MAX) {
        return rse_vocab_add(vocab, id, key, length, err);
    }
    RSE_TRY(rse_vocab_add(vocab, id, l->scratch, n, err));
    vocab->table[place(vocab, l->scratch, n)] = id;
    return RSE_OK;
}

static rse_status make_room(loader *l, size_t count, rse_error *err) {
    rse_vocab *vocab = l->vocab;
    size_t slots = 1024;
    while (slots < 2 * count) {
        slots *= 2;
    }
    vocab->size = (int32_t)l->largest + 1;
    vocab->mask = slots - 1;
    vocab->pieces = malloc((size_t)vocab->size * sizeof *vocab->pieces);
    vocab->table = malloc(slots * sizeof *vocab->table);
    l->scratch = malloc(l->longest + 1);
    if (vocab->pieces == NULL || vocab->table == NULL || l->scratch == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "%s: no memory for %zu tokens", where, count);
    }
    memset(vocab->pieces, 0xff, (size_t)vocab->size * sizeof *vocab->pieces);
    memset(vocab->table, 0xff, slots * sizeof *vocab->table);
    return RSE_OK;
}

rse_status rse_vocab_load(rse_vocab *vocab, const rse_json *object, int32_t largest, rse_error *err) {
    loader l = {.vocab = vocab, .largest = largest};
    RSE_TRY(rse_json_each(object, measure, &l, err));
    rse_status status = make_room(&l, rse_json_count(object), err);
    if (status == RSE_OK) {
        status = rse_json_each(object, add_spelled, &l, err);
    }
    free(l.scratch);
    RSE_TRY(status);
    for (int byte = 0; byte < 256; ++byte) {
        char bytes[1] = {(char)byte};
        vocab->byte_ids[byte] = rse_vocab_find(vocab, bytes, 1);
        if (vocab->byte_ids[byte] < 0) {
            return rse_fail(err, RSE_ERROR_UNSUPPORTED,
                            "%s: no token stands for the byte 0x%02x, so this is no byte-level vocabulary",
                            where, (unsigned)byte);
        }
    }
    return RSE_OK;
}

void rse_vocab_free(rse_vocab *vocab) {
    free(vocab->pieces);
    free(vocab->table);
    rse_text_free(&vocab->bytes);
    *vocab = (rse_vocab){0};
}
