/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a GGUF file says, in the words of the makers' own files: its metadata as config.json, its tokenizer as
 * tokenizer.json, its tensors by the names that families are built with. Everything behind reads one kind of
 * model. What llama.cpp's converter changed is undone or noted in the configuration: decay rates are stored as
 * -exp(A_log) ("...A" instead of "...A_log"), norms of the (1 + w) form have their 1, value heads of Qwen3.5
 * are tiled, the prediction block counts as a block.
 */
#ifndef RSE_GGUF_MODEL_H
#define RSE_GGUF_MODEL_H

#include "base/buffer.h"
#include "load/gguf.h"
#include "load/hfconfig.h"

/* Reads the metadata. RSE_ERROR_UNSUPPORTED names an architecture that is not known. */
rse_status rse_gguf_config(const rse_gguf *file, rse_config *config, rse_error *err);
/* Appends the canonical name of a tensor; one that no family has keeps its name. */
rse_status rse_gguf_canonical(const rse_gguf *file, const char *name, rse_text *out, rse_error *err);
/* Appends the tokenizer as the text of a tokenizer.json. */
rse_status rse_gguf_tokenizer(const rse_gguf *file, rse_text *out, rse_error *err);
/* Whether there is one. */
bool rse_gguf_has_tokenizer(const rse_gguf *file);

/* The string of a key, NUL-terminated in text [size], cut if it is longer; "" if there is none. */
void rse_gguf_text(const rse_gguf *file, const char *key, char *text, size_t size);
/* Blocks of the model itself, without those that predict ahead. */
int32_t rse_gguf_layers(const rse_gguf *file);

#endif
