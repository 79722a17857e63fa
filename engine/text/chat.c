/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A form is a row: how a message of each role opens and closes, and how an answer begins. What forms do not
 * have in common (trimming, system messages, thoughts of earlier turns) is told by flags of the row.
 */
#include "text/chat.h"

#include <string.h>

/* Markup is written with special tokens between \1 and \2. */
#define S(name) "\1" name "\2"

typedef struct form_row {
    const char *name;
    const char *open[3]; /* by role */
    const char *close;   /* of every message; the part in \1 \2 is the end token */
    const char *think;   /* after the opening of an answer, with thoughts to come */
    const char *no_think;
    const char *old_thought;   /* in the place of an earlier answer's thoughts */
    const char *after_thought; /* characters that are dropped before the rest of an earlier answer */
    const char *system;        /* where there is no system message; NULL: none */
    bool trim;                 /* white space around every message */
    const char *types[4];      /* model_type */
    const char *needs[3];      /* tokens that the tokenizer must have */
} form_row;

#define CHATML_OPEN                                                                                            \
    { S("<|im_start|>") "system\n", S("<|im_start|>") "user\n", S("<|im_start|>") "assistant\n" }
#define CHATML_CLOSE S("<|im_end|>") "\n"

static const form_row forms[RSE_CHAT_FORMS] = {
    [RSE_CHAT_NONE] = {.name = "none"},
    [RSE_CHAT_QWEN] = {.name = "qwen",
                       .open = CHATML_OPEN,
                       .close = CHATML_CLOSE,
                       .think = S("<think>") "\n",
                       .no_think = S("<think>") "\n\n" S("</think>") "\n\n",
                       .old_thought = "",
                       .after_thought = "\n",
                       .trim = true,
                       .types = {"qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"},
                       .needs = {"<|im_start|>", "<|im_end|>", "<think>"}},
    [RSE_CHAT_CHATML] = {.name = "chatml",
                         .open = CHATML_OPEN,
                         .close = CHATML_CLOSE,
                         .types = {"qwen3_next", "qwen3_5", "qwen3_5_text", "nemotron_h"},
                         .needs = {"<|im_start|>", "<|im_end|>"}},
    [RSE_CHAT_NEMOTRON] = {.name = "nemotron",
                           .open = CHATML_OPEN,
                           .close = CHATML_CLOSE,
                           .think = S("<think>") "\n",
                           .no_think = S("<think>") S("</think>"),
                           .old_thought = S("<think>") S("</think>"),
                           .after_thought = "",
                           .system = "",
                           .types = {"nemotron_h"},
                           .needs = {"<|im_start|>", "<|im_end|>", "<think>"}},
    [RSE_CHAT_KIMI] = {.name = "kimi",
                       .open = {S("<|im_system|>") "system" S("<|im_middle|>"),
                                S("<|im_user|>") "user" S("<|im_middle|>"),
                                S("<|im_assistant|>") "assistant" S("<|im_middle|>")},
                       .close = S("<|im_end|>"),
                       .system = "You are a helpful assistant",
                       .types = {"kimi_linear"},
                       .needs = {"<|im_user|>", "<|im_middle|>", "<|im_end|>"}},
    [RSE_CHAT_GRANITE] =
        {.name = "granite",
         .open = {S("<|start_of_role|>") "system" S("<|end_of_role|>"),
                  S("<|start_of_role|>") "user" S("<|end_of_role|>"),
                  S("<|start_of_role|>") "assistant" S("<|end_of_role|>")},
         .close = S("<|end_of_text|>") "\n",
         .system = "You are a helpful assistant. Please ensure responses are professional, accurate, "
                   "and safe.",
         .types = {"granitemoehybrid"},
         .needs = {"<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"}},
};

/* More particular forms come first. */
static const int32_t order[] = {RSE_CHAT_QWEN, RSE_CHAT_NEMOTRON, RSE_CHAT_KIMI, RSE_CHAT_GRANITE,
                                RSE_CHAT_CHATML};

static bool fits(const form_row *form, const char *model_type, const rse_tokenizer *tokenizer) {
    bool type = false;
    for (size_t i = 0; i < 4 && form->types[i] != NULL; ++i) {
        type = type || strcmp(form->types[i], model_type) == 0;
    }
    for (size_t i = 0; i < 3 && form->needs[i] != NULL; ++i) {
        type = type && rse_tokenizer_added(tokenizer, form->needs[i]) >= 0;
    }
    return type;
}

int32_t rse_chat_of(const char *model_type, const rse_tokenizer *tokenizer) {
    for (size_t i = 0; tokenizer != NULL && i < sizeof order / sizeof order[0]; ++i) {
        if (fits(&forms[order[i]], model_type, tokenizer)) {
            return order[i];
        }
    }
    return RSE_CHAT_NONE;
}

const char *rse_chat_name(int32_t form) {
    return form > 0 && form < RSE_CHAT_FORMS ? forms[form].name : forms[0].name;
}

bool rse_chat_thinks(int32_t form) {
    return form > 0 && form < RSE_CHAT_FORMS && forms[form].think != NULL;
}

int32_t rse_chat_thought_end(const rse_tokenizer *tokenizer) {
    return rse_tokenizer_added(tokenizer, "</think>");
}

/* ---- Pieces ------------------------------------------------------------------------------------------- */

static rse_status put_text(rse_chat *chat, const char *text, size_t length, rse_error *err) {
    return rse_text_append(chat->tokenizer != NULL ? &chat->pending : &chat->text, text, length, err);
}

/* Plain text up to here becomes ids. */
static rse_status settle(rse_chat *chat, rse_error *err) {
    if (chat->pending.length == 0) {
        return RSE_OK;
    }
    RSE_TRY(
        rse_tokenizer_encode(chat->tokenizer, chat->pending.data, chat->pending.length, 0, &chat->ids, err));
    chat->pending.length = 0;
    return RSE_OK;
}

static rse_status put_special(rse_chat *chat, const char *name, size_t length, rse_error *err) {
    if (chat->tokenizer == NULL) {
        return rse_text_append(&chat->text, name, length, err);
    }
    char token[64] = "";
    memcpy(token, name, length < sizeof token ? length : sizeof token - 1);
    int32_t id = rse_tokenizer_added(chat->tokenizer, token);
    if (id < 0) {
        return rse_fail(err, RSE_ERROR_UNSUPPORTED, "the tokenizer has no token %s, which the %s form needs",
                        token, forms[chat->form].name);
    }
    RSE_TRY(settle(chat, err));
    return rse_ids_append(&chat->ids, id, err);
}

static rse_status put_markup(rse_chat *chat, const char *markup, rse_error *err) {
    while (*markup != '\0') {
        size_t plain = strcspn(markup, "\1");
        RSE_TRY(put_text(chat, markup, plain, err));
        markup += plain;
        if (*markup == '\1') {
            size_t length = strcspn(markup + 1, "\2");
            RSE_TRY(put_special(chat, markup + 1, length, err));
            markup += length + 2;
        }
    }
    return RSE_OK;
}

static const char white_space[] = " \t\n\v\f\r";

/* Text without the characters of `left` at its start and those of `right` at its end. */
static rse_status put_content(rse_chat *chat, const char *text, const char *left, const char *right,
                              rse_error *err) {
    text += strspn(text, left);
    size_t length = strlen(text);
    while (length > 0 && strchr(right, text[length - 1]) != NULL) {
        --length;
    }
    return put_text(chat, text, length, err);
}

static rse_status put_message(rse_chat *chat, int32_t role, const char *text, rse_error *err) {
    const form_row *form = &forms[chat->form];
    RSE_TRY(put_markup(chat, form->open[role], err));
    const char *dropped = form->trim ? white_space : "";
    RSE_TRY(put_content(chat, text, dropped, dropped, err));
    return put_markup(chat, form->close, err);
}

/* An earlier answer: without its thoughts, in forms that have any. */
static rse_status put_answer(rse_chat *chat, const char *text, rse_error *err) {
    const form_row *form = &forms[chat->form];
    if (form->think == NULL) {
        return put_message(chat, RSE_CHAT_ASSISTANT, text, err);
    }
    const char *thought = strstr(text, "</think>");
    for (const char *next = thought; next != NULL; next = strstr(next + 1, "</think>")) {
        thought = next;
    }
    RSE_TRY(put_markup(chat, form->open[RSE_CHAT_ASSISTANT], err));
    RSE_TRY(put_markup(chat, form->old_thought, err));
    const char *left = thought != NULL ? form->after_thought : form->trim ? white_space : "";
    RSE_TRY(put_content(chat, thought != NULL ? thought + strlen("</think>") : text, left, white_space, err));
    return put_markup(chat, form->close, err);
}

/* ---- Conversations ------------------------------------------------------------------------------------ */

static rse_status begin_answer(rse_chat *chat, rse_error *err) {
    const form_row *form = &forms[chat->form];
    RSE_TRY(put_markup(chat, form->open[RSE_CHAT_ASSISTANT], err));
    if (form->think != NULL) {
        RSE_TRY(put_markup(chat, chat->thinking ? form->think : form->no_think, err));
    }
    return chat->tokenizer != NULL ? settle(chat, err) : RSE_OK;
}

static rse_status need_form(const rse_chat *chat, rse_error *err) {
    return chat->form > 0 && chat->form < RSE_CHAT_FORMS
               ? RSE_OK
               : rse_fail(err, RSE_ERROR_USAGE, "the model has no form of conversation that is known here");
}

rse_status rse_chat_begin(rse_chat *chat, const char *system, rse_error *err) {
    RSE_TRY(need_form(chat, err));
    system = system != NULL ? system : forms[chat->form].system;
    return system != NULL ? put_message(chat, RSE_CHAT_SYSTEM, system, err) : RSE_OK;
}

rse_status rse_chat_turn(rse_chat *chat, const char *user, rse_error *err) {
    RSE_TRY(need_form(chat, err));
    RSE_TRY(put_message(chat, RSE_CHAT_USER, user, err));
    return begin_answer(chat, err);
}

rse_status rse_chat_end(rse_chat *chat, bool with_token, rse_error *err) {
    RSE_TRY(need_form(chat, err));
    const char *close = forms[chat->form].close;
    return put_markup(chat, with_token ? close : strchr(close, '\2') + 1, err);
}

rse_status rse_chat_render(rse_chat *chat, const rse_chat_message *messages, size_t count, rse_error *err) {
    RSE_TRY(need_form(chat, err));
    size_t first = count > 0 && messages[0].role == RSE_CHAT_SYSTEM;
    if (count <= first || messages[count - 1].role != RSE_CHAT_USER) {
        return rse_fail(err, RSE_ERROR_USAGE, "the conversation of %zu messages does not end with a user's",
                        count);
    }
    RSE_TRY(rse_chat_begin(chat, first > 0 ? messages[0].text : NULL, err));
    for (size_t i = first; i < count - 1; ++i) {
        if (messages[i].role == RSE_CHAT_SYSTEM) {
            return rse_fail(err, RSE_ERROR_USAGE,
                            "message %zu is a system message, which can only be the first", i);
        }
        RSE_TRY(messages[i].role == RSE_CHAT_ASSISTANT
                    ? put_answer(chat, messages[i].text, err)
                    : put_message(chat, RSE_CHAT_USER, messages[i].text, err));
    }
    return rse_chat_turn(chat, messages[count - 1].text, err);
}

void rse_chat_clear(rse_chat *chat) {
    chat->text.length = 0;
    chat->ids.count = 0;
}

void rse_chat_free(rse_chat *chat) {
    rse_text_free(&chat->text);
    rse_text_free(&chat->pending);
    rse_ids_free(&chat->ids);
}
