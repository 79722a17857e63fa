/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/sched.h"
#include "base/buffer.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct rse_request {
    rse_sched *sched;
    rse_request *next; /* in order of arrival */
    rse_request_desc desc;
    int32_t *prompt;
    int64_t done; /* tokens of the prompt that were run */
    rse_ids tokens;
    int32_t state;
    rse_error error;
};

struct rse_sched {
    rse_engine *engine;
    rse_engine_info info;
    rse_request *first;
    rse_sampler *sampler;
    rse_row *rows;        /* [sessions] of the step under way */
    rse_request **row_of; /* [sessions] whose rows they are */
    float *logits;        /* [sessions][vocab] */
    rse_sched_figures figures;
};

rse_status rse_sched_create(rse_engine *engine, rse_sched **sched, rse_error *err) {
    *sched = NULL;
    rse_sched *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for a scheduler");
    }
    made->engine = engine;
    rse_engine_describe(engine, &made->info);
    size_t sessions = (size_t)made->info.sessions;
    made->rows = calloc(sessions, sizeof *made->rows);
    made->row_of = calloc(sessions, sizeof *made->row_of);
    made->logits = calloc(sessions, (size_t)made->info.vocab * sizeof *made->logits);
    rse_status status = RSE_OK;
    if (made->rows == NULL || made->row_of == NULL || made->logits == NULL) {
        status = rse_fail(err, RSE_ERROR_MEMORY, "no memory for the logits of %zu sessions", sessions);
    } else {
        status = rse_sampler_create(made->info.vocab, &made->sampler, err);
    }
    if (status != RSE_OK) {
        rse_sched_destroy(made);
        return status;
    }
    *sched = made;
    return RSE_OK;
}

void rse_sched_destroy(rse_sched *sched) {
    if (sched == NULL) {
        return;
    }
    while (sched->first != NULL) {
        rse_request_free(sched->first);
    }
    rse_sampler_destroy(sched->sampler);
    free(sched->rows);
    free(sched->row_of);
    free(sched->logits);
    free(sched);
}

static rse_status check_request(const rse_sched *sched, const rse_request_desc *desc, rse_error *err) {
    if (desc->count < 1) {
        return rse_fail(err, RSE_ERROR_USAGE, "the prompt is empty; it needs at least 1 token");
    }
    for (int64_t i = 0; i < desc->count; i++) {
        if (desc->prompt[i] < 0 || desc->prompt[i] >= sched->info.vocab) {
            return rse_fail(err, RSE_ERROR_USAGE, "token %lld of the prompt is %d; the vocabulary has %d",
                            (long long)i, desc->prompt[i], sched->info.vocab);
        }
    }
    if (desc->max_tokens < 0) {
        return rse_fail(err, RSE_ERROR_USAGE, "max_tokens is %lld; it must be at least 0",
                        (long long)desc->max_tokens);
    }
    for (const rse_request *other = sched->first; other != NULL; other = other->next) {
        if (other->state == RSE_RUNNING && other->desc.session == desc->session) {
            return rse_fail(err, RSE_ERROR_USAGE, "the session has a running request already");
        }
    }
    int64_t start = rse_session_position(desc->session) + rse_session_pending(desc->session);
    if (start + desc->count + desc->max_tokens > sched->info.max_positions) {
        return rse_fail(
            err, RSE_ERROR_USAGE,
            "%lld tokens of the session, %lld of the prompt and %lld to generate pass the model's limit "
            "of %lld",
            (long long)start, (long long)desc->count, (long long)desc->max_tokens,
            (long long)sched->info.max_positions);
    }
    return rse_sampling_check(&desc->sampling, err);
}

rse_status rse_sched_add(rse_sched *sched, const rse_request_desc *desc, rse_request **request,
                         rse_error *err) {
    *request = NULL;
    RSE_TRY(check_request(sched, desc, err));
    rse_request *added = calloc(1, sizeof *added);
    int32_t *prompt = malloc((size_t)desc->count * sizeof *prompt);
    if (added == NULL || prompt == NULL) {
        free(added);
        free(prompt);
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for a prompt of %lld tokens", (long long)desc->count);
    }
    memcpy(prompt, desc->prompt, (size_t)desc->count * sizeof *prompt);
    added->sched = sched;
    added->desc = *desc;
    added->prompt = prompt;
    rse_request **last = &sched->first;
    while (*last != NULL) {
        last = &(*last)->next;
    }
    *last = added;
    *request = added;
    return RSE_OK;
}

void rse_request_abort(rse_request *request) {
    if (request->state == RSE_RUNNING) {
        request->state = RSE_FINISH_ABORT;
    }
}

void rse_request_free(rse_request *request) {
    if (request == NULL) {
        return;
    }
    rse_request **at = &request->sched->first;
    while (*at != request) {
        at = &(*at)->next;
    }
    *at = request->next;
    rse_ids_free(&request->tokens);
    free(request->prompt);
    free(request);
}

int32_t rse_request_state(const rse_request *request) {
    return request->state;
}

const rse_error *rse_request_error(const rse_request *request) {
    return &request->error;
}

int64_t rse_request_prompt_left(const rse_request *request) {
    return request->desc.count - request->done;
}

const int32_t *rse_request_tokens(const rse_request *request, int64_t *count) {
    *count = (int64_t)request->tokens.count;
    return request->tokens.data;
}

static void fail_request(rse_request *request, const rse_error *error) {
    request->state = RSE_FINISH_ERROR;
    request->error = *error;
}

/* The request's row of the next step, with at most `budget` tokens of its prompt. False: it has none. A prompt
 * of one token is run as a step of decoding: so a sequence that was cut just before it, say to be saved, goes
 * on bit for bit as if it had not been. */
static bool make_row(rse_request *request, int64_t budget, rse_row *row) {
    int64_t left = rse_request_prompt_left(request);
    *row = (rse_row){.session = request->desc.session, .accepted = RSE_ACCEPT_ALL};
    if (left > 0) {
        row->prompt = request->desc.count > 1;
        row->tokens = request->prompt + request->done;
        row->count = (int32_t)(left < budget ? left : budget);
        row->outputs = row->count == left && request->desc.max_tokens > 0;
    } else {
        row->tokens = &request->tokens.data[request->tokens.count - 1];
        row->count = 1;
        row->outputs = 1;
    }
    if (row->count == 0) {
        return false;
    }
    rse_error error = {0};
    if (rse_session_reserve(row->session, row->count, &error) != RSE_OK) {
        fail_request(request, &error);
        return false;
    }
    return true;
}

/* Generating requests come first, so that prompts only get what they leave of the step. */
static int32_t collect(rse_sched *sched, bool *prompts) {
    int64_t budget = sched->info.batch_tokens;
    int32_t rows = 0;
    *prompts = false;
    for (int32_t turn = 0; turn < 2; turn++) {
        for (rse_request *request = sched->first; request != NULL; request = request->next) {
            bool prompt = rse_request_prompt_left(request) > 0;
            if (request->state != RSE_RUNNING || prompt != (turn == 1) || budget == 0) {
                continue;
            }
            if (make_row(request, budget, &sched->rows[rows])) {
                budget -= sched->rows[rows].count;
                *prompts = *prompts || sched->rows[rows].prompt;
                sched->row_of[rows++] = request;
            }
        }
    }
    return rows;
}

static void take_token(rse_request *request, const float *logits) {
    rse_sched *sched = request->sched;
    const rse_request_desc *desc = &request->desc;
    int64_t position = rse_session_position(desc->session) + rse_session_pending(desc->session);
    int32_t token = 0;
    rse_error error = {0};
    rse_status status = rse_sampler_next(sched->sampler, &desc->sampling, logits, position, &token, &error);
    if (status == RSE_OK) {
        status = rse_ids_append(&request->tokens, token, &error);
    }
    if (status != RSE_OK) {
        fail_request(request, &error);
        return;
    }
    if (!desc->ignore_end && rse_engine_is_end(sched->engine, token)) {
        request->state = RSE_FINISH_END;
    } else if ((int64_t)request->tokens.count == desc->max_tokens) {
        request->state = RSE_FINISH_LENGTH;
    }
    if (desc->token != NULL) {
        desc->token(desc->user, request, token);
    }
}

/* What the step means for each of its requests. */
static void deliver(rse_sched *sched, int32_t rows) {
    const float *logits = sched->logits;
    for (int32_t i = 0; i < rows; i++) {
        rse_request *request = sched->row_of[i];
        const rse_row *row = &sched->rows[i];
        if (rse_request_prompt_left(request) > 0) {
            request->done += row->count;
        }
        if (request->state == RSE_RUNNING) { /* a callback may have ended it meanwhile */
            if (row->outputs > 0) {
                take_token(request, logits);
            } else if (rse_request_prompt_left(request) == 0) {
                request->state = RSE_FINISH_LENGTH;
            }
        }
        logits += (int64_t)row->outputs * sched->info.vocab;
    }
}

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void note_step(rse_sched *sched, int32_t rows, bool prompts, double seconds,
                      const rse_engine_counters *before, const rse_engine_counters *after) {
    rse_sched_figures *figures = &sched->figures;
    for (int32_t i = 0; i < rows; i++) {
        if (sched->rows[i].prompt) {
            figures->prompt_tokens += sched->rows[i].count;
        } else if (!prompts) {
            figures->decode_tokens += sched->rows[i].count;
        }
    }
    if (prompts) {
        figures->prompt_seconds += seconds;
        return;
    }
    figures->decode_seconds += seconds;
    figures->bytes_read += after->bytes_read - before->bytes_read;
    figures->bytes_written += after->bytes_written - before->bytes_written;
}

static int32_t count_running(const rse_sched *sched) {
    int32_t running = 0;
    for (const rse_request *request = sched->first; request != NULL; request = request->next) {
        running += request->state == RSE_RUNNING;
    }
    return running;
}

rse_status rse_sched_step(rse_sched *sched, int32_t *running, rse_error *err) {
    bool prompts;
    int32_t rows = collect(sched, &prompts);
    if (rows > 0) {
        rse_engine_counters before;
        rse_engine_counters after;
        double start = seconds_now();
        RSE_TRY(rse_engine_count(sched->engine, &before, err));
        rse_error failure = {0};
        rse_status status = rse_engine_step(sched->engine, sched->rows, rows, sched->logits, NULL, &failure);
        if (status != RSE_OK) {
            for (int32_t i = 0; i < rows; i++) {
                fail_request(sched->row_of[i], &failure);
            }
            *running = count_running(sched);
            return rse_fail(err, status, "%s", failure.text);
        }
        RSE_TRY(rse_engine_count(sched->engine, &after, err));
        deliver(sched, rows);
        note_step(sched, rows, prompts, seconds_now() - start, &before, &after);
    }
    *running = count_running(sched);
    return RSE_OK;
}

rse_sched_figures rse_sched_count(const rse_sched *sched) {
    return sched->figures;
}
