/* SPDX-License-Identifier: Apache-2.0 */
/* A tokenizer.json of any bytes; if it is taken, a text goes through it. */
#include "target.h"
#include "text/tokenizer.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char text[] = "It was a dark night, caf\303\251 \360\237\230\200 12.";
    rse_tokenizer *tokenizer;
    rse_error err;
    if (rse_tokenizer_parse((const char *)data, size, &tokenizer, &err) != RSE_OK) {
        return 0;
    }
    rse_ids ids = {0};
    rse_text out = {0};
    if (rse_tokenizer_encode(tokenizer, text, strlen(text), RSE_ENCODE_SPECIAL | RSE_ENCODE_TEMPLATE, &ids, &err) ==
        RSE_OK) {
        rse_decoder decoder;
        rse_decoder_init(&decoder, tokenizer, true);
        for (size_t i = 0; i < ids.count; i++) {
            if (rse_decoder_push(&decoder, ids.data[i], &out, &err) != RSE_OK) {
                abort();
            }
        }
        if (rse_decoder_flush(&decoder, &out, &err) != RSE_OK) {
            abort();
        }
    }
    rse_ids_free(&ids);
    rse_text_free(&out);
    rse_tokenizer_free(tokenizer);
    return 0;
}
