/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/sched.h"
#include "sched/round.h"

#include <stdlib.h>
#include <string.h>

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
    made->drafts = calloc(sessions, sizeof *made->drafts);
    made->hidden = calloc((size_t)made->info.batch_tokens, sizeof *made->hidden);
    made->logits = calloc(sessions, (size_t)made->info.vocab * sizeof *made->logits);
    made->speculation.width = 1;
    rse_status status = RSE_OK;
    if (made->rows == NULL || made->row_of == NULL || made->drafts == NULL || made->hidden == NULL ||
        made->logits == NULL) {
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
    free(sched->drafts);
    free(sched->hidden);
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

static int32_t count_running(const rse_sched *sched) {
    int32_t running = 0;
    for (const rse_request *request = sched->first; request != NULL; request = request->next) {
        running += request->state == RSE_RUNNING;
    }
    return running;
}

rse_status rse_sched_step(rse_sched *sched, int32_t *running, rse_error *err) {
    rse_status status = rse_round_run(sched, err);
    *running = count_running(sched);
    return status;
}

rse_sched_figures rse_sched_count(const rse_sched *sched) {
    return sched->figures;
}

static rse_status check_speculation(const rse_sched *sched, const rse_speculation *s, rse_error *err) {
    int32_t drafts = s->drafts == RSE_DRAFTS_AUTO ? 1 : s->drafts;
    if (s->drafts < RSE_DRAFTS_AUTO || s->width < 1) {
        return rse_fail(err, RSE_ERROR_USAGE, "%d drafts of width %d; at least 0 and 1 are possible", s->drafts,
                        s->width);
    }
    if ((int64_t)drafts * s->width + 1 > sched->info.step_tokens && s->drafter != NULL) {
        return rse_fail(err, RSE_ERROR_USAGE,
                        "%d drafts of width %d make steps of %lld tokens; this engine takes %d", drafts,
                        s->width, (long long)drafts * s->width + 1, sched->info.step_tokens);
    }
    if (s->width > 1 && s->drafter != NULL && sched->info.method == RSE_METHOD_SNAPSHOT) {
        return rse_fail(err, RSE_ERROR_USAGE, "drafts of width %d form trees; the snapshot method takes chains",
                        s->width);
    }
    if (s->exact && sched->info.method != RSSM_METHOD_REPLAY) {
        return rse_fail(
            err, RSE_ERROR_USAGE,
            "exact drafting needs the replay method: others write the state at positions that depend on steps");
    }
    return RSE_OK;
}

rse_status rse_sched_speculate(rse_sched *sched, const rse_speculation *speculation, rse_error *err) {
    rse_speculation s = *speculation;
    s.width = s.width == 0 ? 1 : s.width;
    RSE_TRY(check_speculation(sched, &s, err));
    size_t outputs = (size_t)sched->info.sessions * (size_t)(s.drafter != NULL ? sched->info.step_tokens : 1);
    float *logits = calloc(outputs, (size_t)sched->info.vocab * sizeof *logits);
    if (logits == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for the logits of %zu tokens", outputs);
    }
    rse_status status =
        s.drafter != NULL && s.drafter->hidden ? rse_engine_keep_hidden(sched->engine, err) : RSE_OK;
    if (status != RSE_OK) {
        free(logits);
        return status;
    }
    free(sched->logits);
    sched->logits = logits;
    sched->speculation = s;
    rse_count_start(&sched->count, s.drafter != NULL ? (sched->info.step_tokens - 1) / s.width : 0);
    return RSE_OK;
}
