/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversations in the forms that models were trained on. A form is rendered as the maker's template does it,
 * without tools and images: markup are the special tokens of the tokenizer, what people wrote is plain text
 * that never becomes one.
 *
 * A conversation is either rendered as a whole, or piece by piece in front of a session that keeps what was
 * said: rse_chat_begin(), then for each turn rse_chat_turn() before the answer is generated. Templates drop
 * what a model thought in earlier turns; a session keeps it, since it keeps the state that came of it.
 */
#ifndef RSE_CHAT_H
#define RSE_CHAT_H

#include "text/tokenizer.h"

enum {
    RSE_CHAT_NONE,
    RSE_CHAT_QWEN,     /* ChatML; thoughts between <think> and </think> */
    RSE_CHAT_CHATML,   /* ChatML without thoughts */
    RSE_CHAT_NEMOTRON, /* ChatML with a system message always; thoughts */
    RSE_CHAT_KIMI,
    RSE_CHAT_GRANITE,
    RSE_CHAT_FORMS
};

/* The form of a model by its model_type, if the tokenizer has the form's tokens; RSE_CHAT_NONE otherwise. */
int32_t rse_chat_of(const char *model_type, const rse_tokenizer *tokenizer);
const char *rse_chat_name(int32_t form); /* "qwen", ...; "none" */
/* Whether the form knows thoughts. */
bool rse_chat_thinks(int32_t form);

enum { RSE_CHAT_SYSTEM, RSE_CHAT_USER, RSE_CHAT_ASSISTANT };
typedef struct rse_chat_message {
    int32_t role;
    const char *text; /* UTF-8, NUL-terminated */
} rse_chat_message;

/* A conversation that is being rendered: into text or, with a tokenizer, into ids. Zeroed but for `form`,
 * `thinking` and `tokenizer` to begin with. Text pieces are collected in `pending` between special tokens, so
 * that they are split as one. */
typedef struct rse_chat {
    int32_t form;
    bool thinking; /* of the answers to come */
    const rse_tokenizer *tokenizer;
    rse_text text; /* without a tokenizer */
    rse_ids ids;   /* with one */
    rse_text pending;
} rse_chat;

/* What comes before the first turn. system may be NULL. */
rse_status rse_chat_begin(rse_chat *chat, const char *system, rse_error *err);
/* A user's message and the beginning of the answer. */
rse_status rse_chat_turn(rse_chat *chat, const char *user, rse_error *err);
/* After an answer: what stands between its end token, which the model has chosen itself, and the next message;
 * or with the end token, if generation ended in another way. */
rse_status rse_chat_end(rse_chat *chat, bool with_token, rse_error *err);
/* A whole conversation of which the last message is a user's, ready for the answer. RSE_ERROR_USAGE otherwise.
 */
rse_status rse_chat_render(rse_chat *chat, const rse_chat_message *messages, size_t count, rse_error *err);
/* Empties text and ids for what comes next. */
void rse_chat_clear(rse_chat *chat);
void rse_chat_free(rse_chat *chat);

/* Where the thoughts of an answer end: the token id of "</think>", -1 if the tokenizer has none. */
int32_t rse_chat_thought_end(const rse_tokenizer *tokenizer);

#endif
