/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replayssm run --chat. The conversation is in the session: a turn runs the new message alone, and nothing that
 * was said before is read again. So what a model thought stays, too, where a template would drop it.
 */
#include "base/file.h"
#include "sched/sched.h"
#include "text/chat.h"
#include "tool.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct talk {
    const settings *set;
    workspace *work;
    const speculation *drafts;
    rse_session *session;
    rse_sched *sched;
    rse_chat form;
    rse_ids last; /* chosen but not run: the end of the last answer */
    uint64_t seed;
    rse_decoder decoder;
    bool began; /* there was a turn */
} talk;

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number) {
    (void)number;
    interrupted = 1;
}

static void print(const rse_text *text) {
    if (text->length > 0) {
        fwrite(text->data, 1, text->length, stdout);
        fflush(stdout);
    }
}

static void on_token(void *user, rse_request *request, int32_t token) {
    talk *t = user;
    rse_text text = {0};
    rse_error ignored;
    if (rse_engine_is_end(t->work->engine, token)) {
        return;
    }
    if (rse_decoder_push(&t->decoder, token, &text, &ignored) != RSE_OK) {
        rse_request_abort(request);
    }
    print(&text);
    rse_text_free(&text);
}

static rse_status check(const settings *set, rse_error *err) {
    if (set->json || set->batch > 1 || set->file != NULL || set->ids != NULL || set->ignore_eos) {
        return rse_fail(
            err, RSE_ERROR_USAGE,
            "--chat is one conversation: it takes no --batch, --json, --file, --ids or --ignore-eos");
    }
    return RSE_OK;
}

/* Takes up a saved conversation, of which the last token may be the end of an answer. */
static rse_status resume(talk *t, rse_error *err) {
    rse_session_tail tail;
    RSE_TRY(rse_session_load(t->session, t->set->session, &tail, err));
    rse_status status = RSE_OK;
    for (int64_t i = 0; i < tail.count && status == RSE_OK; i++) {
        status = rse_ids_append(&t->last, tail.ids[i], err);
    }
    t->seed = t->set->seed_given ? t->seed : tail.seed;
    t->began = true;
    free(tail.ids);
    return status;
}

static rse_status open_talk(talk *t, rse_error *err) {
    const settings *set = t->set;
    if (t->work->tokenizer == NULL) {
        return rse_fail(err, RSE_ERROR_USAGE, "%s has no tokenizer, and so no conversation",
                        t->work->directory);
    }
    t->seed = set->seed;
    t->form = (rse_chat){.form = rse_chat_of(t->work->info.model_type, t->work->tokenizer),
                         .thinking = !set->no_think,
                         .tokenizer = t->work->tokenizer};
    if (t->form.form == RSE_CHAT_NONE) {
        return rse_fail(err, RSE_ERROR_UNSUPPORTED,
                        "%s: no form of conversation is known for model_type %s with this tokenizer",
                        t->work->directory, t->work->info.model_type);
    }
    RSE_TRY(rse_session_open(t->work->engine, t->seed, &t->session, err));
    RSE_TRY(rse_sched_create(t->work->engine, &t->sched, err));
    RSE_TRY(rse_sched_speculate(t->sched, &t->drafts->how, err));
    if (set->session != NULL && rse_file_exists(set->session)) {
        return resume(t, err);
    }
    return rse_chat_begin(&t->form, set->system, err);
}

/* What is to be run before the answer: the last token of the last answer, the end of its message, the new one.
 */
static rse_status next_prompt(talk *t, const char *message, rse_ids *prompt, rse_error *err) {
    for (size_t i = 0; i < t->last.count; i++) {
        RSE_TRY(rse_ids_append(prompt, t->last.data[i], err));
    }
    if (t->began) {
        bool ended = t->last.count > 0 && rse_engine_is_end(t->work->engine, t->last.data[t->last.count - 1]);
        RSE_TRY(rse_chat_end(&t->form, !ended, err));
    }
    RSE_TRY(rse_chat_turn(&t->form, message, err));
    for (size_t i = 0; i < t->form.ids.count; i++) {
        RSE_TRY(rse_ids_append(prompt, t->form.ids.data[i], err));
    }
    rse_chat_clear(&t->form);
    return RSE_OK;
}

static rse_status generate(talk *t, rse_request *request, rse_error *err) {
    int32_t running = 1;
    while (running > 0) {
        RSE_TRY(rse_sched_step(t->sched, &running, err));
        if (interrupted) {
            rse_request_abort(request);
        }
    }
    if (rse_request_state(request) == RSE_FINISH_ERROR) {
        *err = *rse_request_error(request);
        return err->status;
    }
    int64_t count;
    const int32_t *tokens = rse_request_tokens(request, &count);
    t->last.count = 0;
    return count > 0 ? rse_ids_append(&t->last, tokens[count - 1], err) : RSE_OK;
}

static rse_status answer(talk *t, const char *message, rse_error *err) {
    rse_ids prompt = {0};
    rse_request *request = NULL;
    rse_text rest = {0};
    interrupted = 0;
    rse_decoder_init(&t->decoder, t->work->tokenizer, false);
    rse_status status = next_prompt(t, message, &prompt, err);
    if (status == RSE_OK) {
        rse_request_desc desc = {.session = t->session,
                                 .prompt = prompt.data,
                                 .count = (int64_t)prompt.count,
                                 .max_tokens = t->set->count,
                                 .sampling = sampling_of(t->set, &t->work->info, t->seed),
                                 .penalties = {(float)t->set->repeat_penalty, (float)t->set->presence_penalty,
                                               (float)t->set->frequency_penalty},
                                 .token = on_token,
                                 .user = t};
        status = rse_sched_add(t->sched, &desc, &request, err);
    }
    if (status == RSE_OK) {
        status = generate(t, request, err);
    }
    if (status == RSE_OK) {
        status = rse_decoder_flush(&t->decoder, &rest, err);
        print(&rest);
        putchar('\n');
        fflush(stdout);
        t->began = true;
    }
    rse_request_free(request);
    rse_text_free(&rest);
    rse_ids_free(&prompt);
    return status;
}

/* A line without its end; false at the end of the input. */
static bool read_line(char **line, size_t *capacity) {
    if (isatty(STDIN_FILENO)) {
        fputs("> ", stdout);
        fflush(stdout);
    }
    ssize_t length = getline(line, capacity, stdin);
    while (length > 0 && ((*line)[length - 1] == '\n' || (*line)[length - 1] == '\r')) {
        (*line)[--length] = '\0';
    }
    return length >= 0;
}

static rse_status converse(talk *t, rse_error *err) {
    char *line = NULL;
    size_t capacity = 0;
    rse_status status = t->set->prompt != NULL ? answer(t, t->set->prompt, err) : RSE_OK;
    while (status == RSE_OK && read_line(&line, &capacity)) {
        status = line[0] != '\0' ? answer(t, line, err) : RSE_OK;
    }
    free(line);
    return status;
}

static rse_status conclude(talk *t, rse_error *err) {
    RSE_TRY(rse_session_commit(t->session, RSE_ACCEPT_ALL, err));
    if (t->set->session != NULL && t->began) {
        rse_session_tail tail = {.ids = t->last.data, .count = (int64_t)t->last.count, .seed = t->seed};
        RSE_TRY(rse_session_save(t->session, &tail, t->set->session, err));
    }
    if (t->set->check) {
        RSE_TRY(rse_session_check(t->session, err));
    }
    if (t->set->verbose) {
        rse_sched_figures f = rse_sched_count(t->sched);
        fprintf(stderr,
                "replayssm: %" PRId64 " tokens of prompts and %" PRId64 " generated; the session has %" PRId64
                "\n",
                f.prompt_tokens, f.decode_tokens, rse_session_position(t->session));
    }
    return RSE_OK;
}

rse_status chat(const settings *set, workspace *work, const speculation *drafts, rse_error *err) {
    talk t = {.set = set, .work = work, .drafts = drafts};
    RSE_TRY(check(set, err));
    struct sigaction action = {.sa_handler = on_interrupt}; /* ends an answer, or the wait for a line */
    sigaction(SIGINT, &action, NULL);
    rse_status status = open_talk(&t, err);
    if (status == RSE_OK) {
        status = converse(&t, err);
    }
    if (status == RSE_OK) {
        status = conclude(&t, err);
    }
    rse_sched_destroy(t.sched);
    rse_session_close(t.session);
    rse_chat_free(&t.form);
    rse_ids_free(&t.last);
    return status;
}
