/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a tokenizer consists of: filled by tokenizer_load.c, used by tokenizer.c.
 */
#ifndef RSE_TOKENIZER_PARTS_H
#define RSE_TOKENIZER_PARTS_H

#include "text/added.h"
#include "text/bpe.h"
#include "text/pretok.h"
#include "text/tokenizer.h"

struct rse_tokenizer {
    rse_bpe bpe;
    rse_pretok pretok;
    bool nfc;
    /* Two passes: tokens to be found in the text as it is, and in the normalised text between those. */
    rse_added added[2];
    rse_added names; /* all of them by their contents as the file has them */
    bool *special;   /* [bpe.vocab.size] */
    rse_ids prefix;  /* what the template puts before a text, and after it */
    rse_ids suffix;
};

#endif
