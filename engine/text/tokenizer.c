/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encoding goes down a ladder: added tokens cut the text, what lies between is normalised, cut again by the
 * added tokens that want normalised text, cut by each pattern in turn, and each last piece is merged. Decoding
 * is a table look-up and a three-byte memory.
 */
#include "text/tokenizer.h"

#include "text/nfc.h"
#include "text/tokenizer_parts.h"
#include "text/utf8.h"

#include <string.h>

int32_t rse_tokenizer_size(const rse_tokenizer *tokenizer) {
    return tokenizer->bpe.vocab.size;
}

const char *rse_tokenizer_bytes(const rse_tokenizer *tokenizer, int32_t id, size_t *length) {
    return rse_vocab_bytes(&tokenizer->bpe.vocab, id, length);
}

int32_t rse_tokenizer_added(const rse_tokenizer *tokenizer, const char *content) {
    for (size_t i = 0; i < tokenizer->names.count; ++i) {
        if (strcmp(tokenizer->names.tokens[i].content, content) == 0) {
            return tokenizer->names.tokens[i].id;
        }
    }
    return -1;
}

bool rse_tokenizer_is_special(const rse_tokenizer *tokenizer, int32_t id) {
    return id >= 0 && id < tokenizer->bpe.vocab.size && tokenizer->special[id];
}

/* ---- Encoding ----------------------------------------------------------------------------------------- */

typedef struct encoder {
    const rse_tokenizer *t;
    bool special;
    rse_pretok_work pretok;
    rse_bpe_work bpe;
    rse_ids *ids;
} encoder;

static rse_status split_by_pattern(encoder *e, const char *text, size_t length, int level, rse_error *err) {
    if (level == e->t->pretok.count) {
        return rse_bpe_encode(&e->t->bpe, &e->bpe, text, length, e->ids, err);
    }
    size_t done = 0; /* everything before is encoded */
    size_t from = 0; /* where to look for the next match */
    while (done < length) {
        size_t begin;
        size_t end;
        RSE_TRY(rse_pretok_next(&e->t->pretok, level, &e->pretok, text, length, from, &begin, &end, err));
        RSE_TRY(split_by_pattern(e, text + done, begin - done, level + 1, err));
        RSE_TRY(split_by_pattern(e, text + begin, end - begin, level + 1, err));
        done = from = end;
        if (begin == end && end < length) { /* an empty match cuts; the next one begins a character later */
            from += (size_t)rse_utf8_step((const uint8_t *)text + end, length - end);
        }
    }
    return RSE_OK;
}

static rse_status split_by_added(encoder *e, const char *text, size_t length, int pass, rse_error *err);

static rse_status normalise(encoder *e, const char *text, size_t length, rse_error *err) {
    if (!e->t->nfc || rse_nfc_at_sight(text, length)) {
        return split_by_added(e, text, length, 1, err);
    }
    rse_text composed = {0};
    rse_status status = rse_nfc(text, length, &composed, err);
    if (status == RSE_OK) {
        status = split_by_added(e, composed.data, composed.length, 1, err);
    }
    rse_text_free(&composed);
    return status;
}

static rse_status split_by_added(encoder *e, const char *text, size_t length, int pass, rse_error *err) {
    for (size_t done = 0; done < length;) {
        size_t begin = length;
        const rse_added_token *token =
            rse_added_next(&e->t->added[pass], text, length, done, e->special, &begin);
        if (begin > done) {
            RSE_TRY(pass == 0 ? normalise(e, text + done, begin - done, err)
                              : split_by_pattern(e, text + done, begin - done, 0, err));
        }
        if (token != NULL) {
            RSE_TRY(rse_ids_append(e->ids, token->id, err));
        }
        done = begin + (token != NULL ? token->length : 0);
    }
    return RSE_OK;
}

static rse_status append_all(rse_ids *ids, const rse_ids *more, rse_error *err) {
    for (size_t i = 0; i < more->count; ++i) {
        RSE_TRY(rse_ids_append(ids, more->data[i], err));
    }
    return RSE_OK;
}

static rse_status encode(encoder *e, const char *text, size_t length, bool template, rse_error *err) {
    if (template) {
        RSE_TRY(append_all(e->ids, &e->t->prefix, err));
    }
    RSE_TRY(split_by_added(e, text, length, 0, err));
    return template ? append_all(e->ids, &e->t->suffix, err) : RSE_OK;
}

rse_status rse_tokenizer_encode(const rse_tokenizer *tokenizer, const char *text, size_t length, uint32_t flags,
                                rse_ids *ids, rse_error *err) {
    size_t valid = rse_utf8_check(text, length);
    if (valid != length) {
        return rse_fail(err, RSE_ERROR_USAGE, "the text is not UTF-8 at byte %zu (0x%02x)", valid,
                        (unsigned)(uint8_t)text[valid]);
    }
    size_t count = ids->count;
    encoder e = {.t = tokenizer, .special = (flags & RSE_ENCODE_SPECIAL) != 0, .ids = ids};
    RSE_TRY(rse_pretok_work_init(&e.pretok, err));
    rse_status status = encode(&e, text, length, (flags & RSE_ENCODE_TEMPLATE) != 0, err);
    rse_pretok_work_free(&e.pretok);
    rse_bpe_work_free(&e.bpe);
    ids->count = status == RSE_OK ? ids->count : count;
    return status;
}

/* ---- Decoding ----------------------------------------------------------------------------------------- */

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

void rse_decoder_init(rse_decoder *decoder, const rse_tokenizer *tokenizer, bool show_special) {
    *decoder = (rse_decoder){.tokenizer = tokenizer, .show_special = show_special};
}

/* One more byte: what it completes goes out, what it proves impossible is replaced, the rest is held. */
static rse_status push_byte(rse_decoder *d, uint8_t byte, rse_text *out, rse_error *err) {
    d->held[d->held_count++] = byte;
    while (d->held_count > 0) {
        int n = rse_utf8_step(d->held, d->held_count);
        if (n == 0) {
            break;
        }
        int used = n > 0 ? n : -n;
        RSE_TRY(n > 0 ? rse_text_append(out, d->held, (size_t)n, err)
                      : rse_text_append(out, replacement, 3, err));
        d->held_count = (uint8_t)(d->held_count - used);
        memmove(d->held, d->held + used, d->held_count);
    }
    return RSE_OK;
}

rse_status rse_decoder_push(rse_decoder *decoder, int32_t id, rse_text *out, rse_error *err) {
    size_t length = 0;
    const char *bytes = rse_tokenizer_bytes(decoder->tokenizer, id, &length);
    if (bytes == NULL) {
        return rse_fail(err, RSE_ERROR_USAGE, "token id %d is not in the vocabulary of %d ids", (int)id,
                        (int)rse_tokenizer_size(decoder->tokenizer));
    }
    if (rse_tokenizer_is_special(decoder->tokenizer, id) && !decoder->show_special) {
        return RSE_OK;
    }
    for (size_t i = 0; i < length; ++i) {
        RSE_TRY(push_byte(decoder, (uint8_t)bytes[i], out, err));
    }
    return RSE_OK;
}

rse_status rse_decoder_flush(rse_decoder *decoder, rse_text *out, rse_error *err) {
    if (decoder->held_count > 0) {
        RSE_TRY(rse_text_append(out, replacement, 3, err));
        decoder->held_count = 0;
    }
    return RSE_OK;
}
