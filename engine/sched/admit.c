/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Room for requests: slots and pages for those that wait, pages for those that run.
 */
#include "sched/prefix.h"
#include "sched/round.h"

static int32_t count_seated(const rse_sched *sched) {
    int32_t count = 0;
    for (const rse_request *request = sched->first; request != NULL; request = request->next) {
        count += rse_request_seated(request);
    }
    return count;
}

/* ---- Waiting requests --------------------------------------------------------------------------------- */

/* Whether pages are free, or can be, for all of the prompt and a token after it, and for one more page of each that
 * runs, lest one that is let in be parked at once. */
static bool has_pages(rse_sched *sched, const rse_request *request) {
    int64_t position = request->session != NULL ? rse_session_position(request->session) : 0;
    int64_t pages = rse_kv_pages_of(position + rse_request_prompt_left(request) + 1);
    if (request->session == NULL) {
        pages -= rse_prefixes_match(sched->engine->prefixes, request->prompt, request->desc.count - 1) / RSE_KV_PAGE;
    }
    int32_t running = count_seated(sched);
    rse_kv_pool *kv = sched->engine->kv;
    if (running == 0) { /* nothing to wait for: if it is too much after all, it is told so when it runs */
        rse_prefixes_reclaim(sched->engine->prefixes, pages);
        return true;
    }
    rse_prefixes_reclaim(sched->engine->prefixes, pages + running);
    return rse_kv_pool_free_pages(kv) >= pages + running;
}

/* A session for a request: a new one, which begins with what the prefix cache has, or its own from where it was
 * parked. */
static rse_status seat(rse_request *request, rse_error *err) {
    if (request->session != NULL) {
        return rse_session_unpark(request->session, err);
    }
    RSE_TRY(rse_session_open(request->sched->engine, request->desc.id, &request->session, err));
    RSE_TRY(rse_session_recall(request->session, request->prompt, request->desc.count - 1, err));
    request->recalled = request->done = rse_session_position(request->session);
    return RSE_OK;
}

static bool has_slot(const rse_sched *sched) {
    for (int32_t i = 0; i < sched->info.sessions; i++) {
        if (sched->engine->sessions[i] == NULL) {
            return true;
        }
    }
    return false;
}

/* How many tokens of a new request's prompt a running one will have stored when it has read its own. */
static int64_t will_have(const rse_sched *sched, const rse_request *other, const rse_request *request) {
    int64_t most = other->desc.count < request->desc.count ? other->desc.count : request->desc.count, same = 0;
    while (same < most && other->prompt[same] == request->prompt[same]) {
        same++;
    }
    bool whole = same >= other->desc.count - 1 && request->desc.count >= other->desc.count;
    int64_t block = sched->engine->options.prefix_block;
    return whole ? other->desc.count - 1 : same / block * block;
}

/* Whether a request that is reading its prompt reads what this one can then recall. */
static bool awaits_prefix(const rse_sched *sched, const rse_request *request) {
    rse_prefixes *prefixes = sched->engine->prefixes;
    if (prefixes == NULL || request->session != NULL) {
        return false;
    }
    int64_t have = rse_prefixes_match(prefixes, request->prompt, request->desc.count - 1);
    for (const rse_request *other = sched->first; other != NULL; other = other->next) {
        if (rse_request_seated(other) && other->owned && rse_request_prompt_left(other) > 0) {
            int64_t will = will_have(sched, other, request);
            if (will > have && will > other->done) {
                return true;
            }
        }
    }
    return false;
}

void rse_admit(rse_sched *sched) {
    for (rse_request *request = sched->first; request != NULL; request = request->next) {
        if (!rse_request_waiting(request)) {
            continue;
        }
        const bool others = count_seated(sched) > 0;
        if (!has_slot(sched) && others) {
            return;
        }
        if (awaits_prefix(sched, request)) {
            continue;
        }
        if (!has_pages(sched, request) && others) {
            return; /* nobody else overtakes */
        }
        rse_error error = {0};
        if (seat(request, &error) != RSE_OK) {
            rse_request_fail(request, &error);
        }
    }
}

/* ---- Running requests --------------------------------------------------------------------------------- */

/* The youngest request after this one that can give way: it has no row in the step yet. */
static rse_request *youngest_after(const rse_request *request) {
    rse_request *youngest = NULL;
    for (rse_request *other = request->next; other != NULL; other = other->next) {
        youngest = rse_request_seated(other) && !other->taking ? other : youngest;
    }
    return youngest;
}

static bool park(rse_request *request) {
    rse_error ignored;
    bool parked = rse_session_park(request->session, &ignored) == RSE_OK;
    request->sched->figures.parked += parked;
    return parked;
}

bool rse_make_room(rse_sched *sched, rse_request *request, int64_t tokens) {
    rse_error error = {0};
    rse_session *session = request->session;
    int64_t end = rse_session_position(session) + rse_session_pending(session) + tokens;
    while (rse_session_reserve(session, tokens, &error) != RSE_OK) {
        int64_t wants = rse_kv_seq_wants(sched->engine->kv, &session->kv, end - tokens, end);
        int64_t free = rse_kv_pool_free_pages(sched->engine->kv);
        rse_prefixes_reclaim(sched->engine->prefixes, wants);
        if (rse_kv_pool_free_pages(sched->engine->kv) > free) {
            continue;
        }
        rse_request *other = youngest_after(request);
        if (other != NULL && park(other)) {
            continue;
        }
        bool others = count_seated(sched) > 1;
        bool waits = false;
        for (const rse_request *r = sched->first; r != NULL; r = r->next) {
            waits = waits || r->taking;
        }
        if (!waits && !(others && park(request))) {
            rse_request_fail(request, &error);
        }
        return false;
    }
    return true;
}

/* ---- Ended requests ----------------------------------------------------------------------------------- */

static void release(rse_request *request) {
    rse_session *session = request->session;
    rse_error error = {0};
    if (!rse_session_parked(session) && request->state != RSE_FINISH_ERROR) {
        (void)rse_session_store(session, &error); /* a cache may have no room */
        if (request->owned && rse_session_check(session, &error) == RSE_ERROR_MISMATCH) {
            rse_request_fail(request, &error);
        }
    }
    if (request->owned) {
        rse_session_close(session);
    }
    request->session = NULL;
}

void rse_release(rse_sched *sched) {
    for (rse_request *request = sched->first; request != NULL; request = request->next) {
        if (request->state != RSE_RUNNING && request->session != NULL) {
            release(request);
        }
    }
}
