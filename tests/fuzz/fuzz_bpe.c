/* SPDX-License-Identifier: Apache-2.0 */
/* A text of any bytes through a real tokenizer and back: refused if it is no UTF-8; otherwise decoding gives its
 * normal form, which encodes to the same ids, and plain ASCII comes back as it was. */
#include "target.h"
#include "text/tokenizer.h"

#include <string.h>

static void decode(const rse_tokenizer *tokenizer, const rse_ids *ids, rse_text *out) {
    rse_decoder decoder;
    rse_error err;
    rse_decoder_init(&decoder, tokenizer, true);
    for (size_t i = 0; i < ids->count; i++) {
        if (rse_decoder_push(&decoder, ids->data[i], out, &err) != RSE_OK) {
            abort();
        }
    }
    if (rse_decoder_flush(&decoder, out, &err) != RSE_OK) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static rse_tokenizer *tokenizer;
    rse_error err;
    if (tokenizer == NULL &&
        rse_tokenizer_load(RSSM_SOURCE_DIR "/models/tiny-gdn/tokenizer.json", &tokenizer, &err) != RSE_OK) {
        abort();
    }
    const char *text = (const char *)data;
    rse_ids ids = {0}, again = {0};
    rse_text out = {0};
    if (rse_tokenizer_encode(tokenizer, text, size, RSE_ENCODE_SPECIAL, &ids, &err) == RSE_OK) {
        bool ascii = true;
        for (size_t i = 0; i < size; i++) {
            ascii = ascii && data[i] < 0x80;
        }
        decode(tokenizer, &ids, &out);
        if (ascii && (out.length != size || memcmp(size > 0 ? out.data : "", text, size) != 0)) {
            abort();
        }
        if (rse_tokenizer_encode(tokenizer, out.data != NULL ? out.data : "", out.length, RSE_ENCODE_SPECIAL, &again,
                                 &err) != RSE_OK ||
            again.count != ids.count || memcmp(again.data, ids.data, ids.count * sizeof *ids.data) != 0) {
            abort();
        }
    } else if (ids.count != 0) {
        abort();
    }
    rse_ids_free(&ids);
    rse_ids_free(&again);
    rse_text_free(&out);
    return 0;
}
