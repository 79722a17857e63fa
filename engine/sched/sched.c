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
    made->penalized = calloc((size_t)made->info.vocab, sizeof *made->penalized);
    made->hidden = calloc((size_t)made->info.batch_tokens, sizeof *made->hidden);
    made->logits = calloc(sessions, (size_t)made->info.vocab * sizeof *made->logits);
    made->speculation.width = 1;
    rse_status status = RSE_OK;
    if (made->rows == NULL || made->row_of == NULL || made->drafts == NULL || made->hidden == NULL ||
        made->logits == NULL || made->penalized == NULL) {
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
    free(sched->order);
    free(sched->penalized);
    free(sched->hidden);
    free(sched->logits);
    free(sched);
}

static int64_t length_of(const rse_session *session) {
    return session != NULL ? rse_session_position(session) + rse_session_pending(session) : 0;
}

static rse_status check_session(const rse_sched *sched, const rse_session *session, rse_error *err) {
    for (const rse_request *other = sched->first; session != NULL && other != NULL; other = other->next) {
        if (other->state == RSE_RUNNING && other->session == session) {
            return rse_fail(err, RSE_ERROR_USAGE, "the session has a running request already");
        }
    }
    return session == NULL || rse_session_parked(session) ? RSE_OK : rse_session_usable(session, err);
}

/* The prompt, and a token after it, must fit the model and the pool. */
static rse_status check_length(const rse_sched *sched, const rse_request_desc *desc, rse_error *err) {
    int64_t start = length_of(desc->session), more = desc->max_tokens > 0;
    if (start + desc->count + more > sched->info.max_positions) {
        return rse_fail(err, RSE_ERROR_USAGE,
                        "%lld tokens of the session and %lld of the prompt leave nothing to generate: the model's limit "
                        "is %lld",
                        (long long)start, (long long)desc->count, (long long)sched->info.max_positions);
    }
    int64_t pages = rse_kv_pages_of(start + desc->count), all = rse_kv_pool_desc(sched->engine->kv)->pages;
    if (pages > all) {
        return rse_fail(err, RSE_ERROR_USAGE,
                        "%lld tokens of the session and %lld of the prompt take %lld pages of keys and values; there are "
                        "%lld",
                        (long long)start, (long long)desc->count, (long long)pages, (long long)all);
    }
    return RSE_OK;
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
    const int32_t most = sched->info.vocab < RSE_LOGPROBS_MAX ? sched->info.vocab : RSE_LOGPROBS_MAX;
    if (desc->logprobs < 0 || desc->logprobs > most) {
        return rse_fail(err, RSE_ERROR_USAGE, "logprobs is %d; it must be 0 to %d", desc->logprobs, most);
    }
    RSE_TRY(check_session(sched, desc->session, err));
    RSE_TRY(check_length(sched, desc, err));
    RSE_TRY(rse_penalties_check(&desc->penalties, err));
    return rse_sampling_check(&desc->sampling, err);
}

static rse_status make_request(rse_sched *sched, const rse_request_desc *desc, rse_request **request,
                               rse_error *err) {
    rse_request *made = calloc(1, sizeof *made);
    int32_t *prompt = malloc((size_t)desc->count * sizeof *prompt);
    if (made == NULL || prompt == NULL) {
        free(made);
        free(prompt);
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for a prompt of %lld tokens", (long long)desc->count);
    }
    memcpy(prompt, desc->prompt, (size_t)desc->count * sizeof *prompt);
    made->sched = sched;
    made->desc = *desc;
    made->session = desc->session;
    made->owned = desc->session == NULL;
    made->prompt = prompt;
    int64_t room = sched->info.max_positions - length_of(desc->session) - desc->count;
    made->limit = desc->max_tokens < room ? desc->max_tokens : room;
    *request = made;
    return RSE_OK;
}

rse_status rse_sched_add(rse_sched *sched, const rse_request_desc *desc, rse_request **request,
                         rse_error *err) {
    *request = NULL;
    RSE_TRY(check_request(sched, desc, err));
    if (sched->requests == sched->order_room) {
        int64_t room = 2 * sched->order_room + 16;
        rse_request **grown = realloc(sched->order, (size_t)room * sizeof(*grown));
        if (grown == NULL) {
            return rse_fail(err, RSE_ERROR_MEMORY, "no memory for %lld requests", (long long)room);
        }
        sched->order = grown;
        sched->order_room = room;
    }
    rse_request *added = NULL;
    RSE_TRY(make_request(sched, desc, &added, err));
    rse_request **last = &sched->first;
    while (*last != NULL) {
        last = &(*last)->next;
    }
    *last = added;
    added->arrival = sched->arrivals++;
    sched->requests++;
    *request = added;
    return RSE_OK;
}

static int32_t count_running(const rse_sched *sched) {
    int32_t running = 0;
    for (const rse_request *request = sched->first; request != NULL; request = request->next) {
        running += request->state == RSE_RUNNING;
    }
    return running;
}

rse_status rse_sched_step(rse_sched *sched, int32_t *running, rse_error *err) {
    sched->stepping = true;
    rse_release(sched);
    rse_admit(sched);
    rse_status status = rse_round_run(sched, err);
    rse_release(sched);
    sched->stepping = false;
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
