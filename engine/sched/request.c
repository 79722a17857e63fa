/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request: the choice of its next token, what it has generated, how it ends.
 */
#include "sched/round.h"

#include <stdlib.h>
#include <string.h>

/* ---- Tokens ------------------------------------------------------------------------------------------- */

/* At its first choice a request's session holds the prompt, and whatever came before it. */
static rse_status count_prompt(rse_request *request, rse_error *err) {
    const rse_session *session = request->session;
    int64_t count = rse_session_position(session) + rse_session_pending(session);
    for (int64_t i = 0; i < count; i++) {
        RSE_TRY(rse_token_counts_add(&request->counts, rse_session_ids(session)[i], false, err));
    }
    return RSE_OK;
}

/* The token that the request's penalties, filters and random numbers choose. */
static rse_status choose(rse_request *request, const float *logits, int64_t position, int32_t *token,
                         rse_error *err) {
    rse_sched *sched = request->sched;
    const float *from = logits;
    if (rse_penalties_any(&request->desc.penalties)) {
        if (request->counts.used == 0) {
            RSE_TRY(count_prompt(request, err));
        }
        memcpy(sched->penalized, logits, (size_t)sched->info.vocab * sizeof *logits);
        rse_penalize(&request->desc.penalties, &request->counts, sched->penalized);
        from = sched->penalized;
    }
    RSE_TRY(rse_sampler_next(sched->sampler, &request->desc.sampling, from, position, token, err));
    return rse_penalties_any(&request->desc.penalties)
               ? rse_token_counts_add(&request->counts, *token, true, err)
               : RSE_OK;
}

static rse_status note_logprobs(rse_request *request, const float *logits, int32_t token, rse_error *err) {
    int64_t width = 1 + (int64_t)request->desc.logprobs, count = (int64_t)request->tokens.count;
    if (request->desc.logprobs == 0) {
        return RSE_OK;
    }
    if (count == request->logprobs_room) {
        int64_t room = 2 * count + 64;
        rse_token_logprob *grown = realloc(request->logprobs, (size_t)(room * width) * sizeof *grown);
        if (grown == NULL) {
            return rse_fail(err, RSE_ERROR_MEMORY, "no memory for the logprobs of %lld tokens", (long long)room);
        }
        request->logprobs = grown;
        request->logprobs_room = room;
    }
    rse_sampler_logprobs(request->sched->sampler, logits, token, request->desc.logprobs,
                         request->logprobs + count * width);
    return RSE_OK;
}

rse_status rse_request_next(void *user, const float *logits, int64_t position, int32_t *token, bool *more,
                            rse_error *err) {
    rse_request *request = user;
    const rse_request_desc *desc = &request->desc;
    RSE_TRY(choose(request, logits, position, token, err));
    RSE_TRY(note_logprobs(request, logits, *token, err));
    RSE_TRY(rse_ids_append(&request->tokens, *token, err));
    int64_t count = (int64_t)request->tokens.count;
    if (!desc->ignore_end && rse_engine_is_end(request->sched->engine, *token)) {
        request->state = RSE_FINISH_END;
    } else if (count == request->limit) {
        request->state = count == desc->max_tokens ? RSE_FINISH_LENGTH : RSE_FINISH_CONTEXT;
    }
    if (desc->token != NULL) {
        desc->token(desc->user, request, *token);
    }
    *more = request->state == RSE_RUNNING;
    return RSE_OK;
}

/* ---- Ends --------------------------------------------------------------------------------------------- */

void rse_request_fail(rse_request *request, const rse_error *error) {
    request->state = RSE_FINISH_ERROR;
    request->error = *error;
}

/* Between steps the caller may do what it likes with its session once the request has ended. */
static void end(rse_request *request, int32_t state) {
    if (request->state == RSE_RUNNING) {
        request->state = state;
    }
    if (!request->sched->stepping && !request->owned) {
        request->session = NULL;
    }
}

void rse_request_abort(rse_request *request) {
    end(request, RSE_FINISH_ABORT);
}

void rse_request_stop(rse_request *request) {
    end(request, RSE_FINISH_STOP);
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
    request->sched->requests--;
    if (request->owned) {
        rse_session_close(request->session);
    }
    rse_token_counts_free(&request->counts);
    rse_ids_free(&request->tokens);
    free(request->logprobs);
    free(request->prompt);
    free(request);
}

/* ---- Questions ---------------------------------------------------------------------------------------- */

int32_t rse_request_state(const rse_request *request) {
    return request->state;
}

bool rse_request_waiting(const rse_request *request) {
    return request->state == RSE_RUNNING && (request->session == NULL || rse_session_parked(request->session));
}

bool rse_request_seated(const rse_request *request) {
    return request->state == RSE_RUNNING && !rse_request_waiting(request);
}

const rse_error *rse_request_error(const rse_request *request) {
    return &request->error;
}

int64_t rse_request_prompt_left(const rse_request *request) {
    return request->desc.count - request->done;
}

int64_t rse_request_recalled(const rse_request *request) {
    return request->recalled;
}

const int32_t *rse_request_tokens(const rse_request *request, int64_t *count) {
    *count = (int64_t)request->tokens.count;
    return request->tokens.data;
}

const rse_token_logprob *rse_request_logprobs(const rse_request *request, int64_t index) {
    return request->logprobs + index * (1 + (int64_t)request->desc.logprobs);
}
