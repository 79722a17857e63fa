/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/internal.h"
#include "sched/snapshot.h"

#include <stdlib.h>

static rse_status start(rse_session *session, uint64_t id, rse_error *err) {
    rse_engine *engine = session->engine;
    if (engine->cache != NULL) {
        rssm_status status = rssm_cache_reset(engine->cache, 1, &session->slot, &id, NULL, NULL);
        RSE_TRY(rse_library(engine->context, status, err));
    }
    session->id = id;
    session->stepped = 0;
    if (engine->snapshots != NULL) {
        RSE_TRY(rse_snapshots_reset(engine->snapshots, session, err));
    }
    session->life = ++engine->lives;
    session->position = 0;
    session->pending = 0;
    session->pending_prompt = false;
    session->broken = false;
    session->ids.count = 0;
    rse_kv_seq_truncate(engine->kv, &session->kv, 0);
    return rse_shadow_reset(engine->shadow, session, err);
}

rse_status rse_session_reset(rse_session *session, uint64_t id, rse_error *err) {
    if (session->slot < 0) {
        RSE_TRY(rse_session_take_slot(session, err));
        rse_session_forget_parked(session);
    }
    return start(session, id, err);
}

rse_status rse_session_open(rse_engine *engine, uint64_t id, rse_session **session, rse_error *err) {
    *session = NULL;
    rse_session *opened = calloc(1, sizeof *opened);
    if (opened == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for a session");
    }
    opened->engine = engine;
    opened->slot = -1;
    opened->next = engine->first;
    engine->first = opened;
    rse_status status = rse_session_reset(opened, id, err);
    if (status != RSE_OK) {
        rse_session_close(opened);
        return status;
    }
    *session = opened;
    return RSE_OK;
}

void rse_session_close(rse_session *session) {
    if (session == NULL) {
        return;
    }
    rse_session **at = &session->engine->first;
    while (*at != session) {
        at = &(*at)->next;
    }
    *at = session->next;
    rse_session_drop_slot(session);
    rse_session_forget_parked(session);
    rse_kv_seq_free(session->engine->kv, &session->kv);
    rse_ids_free(&session->ids);
    free(session);
}

int64_t rse_session_position(const rse_session *session) {
    return session->position;
}

int32_t rse_session_pending(const rse_session *session) {
    return session->pending;
}

int32_t rse_session_room(const rse_session *session) {
    int64_t window = session->engine->options.window, length = session->position + session->pending;
    int64_t past = (length - (int64_t)(session->id % (uint64_t)window)) % window;
    return (int32_t)(window - (past < 0 ? past + window : past));
}

const int32_t *rse_session_ids(const rse_session *session) {
    return session->ids.data;
}

/* Whether these are tokens of the last step that follow each other from the kept ones on. */
static rse_status check_path(const rse_session *session, const int32_t *path, int32_t count, rse_error *err) {
    RSE_TRY(rse_session_usable(session, err));
    if (count < 0 || count > session->pending) {
        return rse_fail(err, RSE_ERROR_USAGE, "%d tokens cannot be chosen: %d are pending", count,
                        session->pending);
    }
    if (rse_session_whole(session) && count < session->pending) {
        return rse_fail(err, RSE_ERROR_USAGE,
                        "%d tokens are chosen of %d pending ones that can only be kept whole", count,
                        session->pending);
    }
    for (int32_t i = 0, last = -1; i < count && !rse_session_whole(session); i++) {
        int32_t node = path != NULL ? path[i] : i;
        if (node < 0 || node >= session->pending || session->parents[node] != last) {
            return rse_fail(err, RSE_ERROR_USAGE,
                            "token %d of the path is %d, which does not follow token %d of the step", i, node,
                            last);
        }
        last = node;
    }
    return RSE_OK;
}

rse_status rse_session_choose(rse_session *session, const int32_t *path, int32_t count, rse_error *err) {
    RSE_TRY(check_path(session, path, count, err));
    if (rse_session_whole(session)) {
        return RSE_OK;
    }
    int32_t was = session->pending, *ids = session->ids.data + session->position;
    rse_shadow_choose(session->engine->shadow, session, was, path, count);
    for (int32_t i = 0; i < count; i++) { /* paths ascend: nothing is overwritten that is still wanted */
        int32_t node = path != NULL ? path[i] : i;
        ids[i] = ids[node];
        session->path[i] = session->path[node];
        session->parents[i] = i - 1;
        rse_kv_move(session->engine->kv, &session->kv, session->position + node, session->position + i);
    }
    session->pending = count;
    session->ids.count = (size_t)(session->position + count);
    rse_kv_seq_truncate(session->engine->kv, &session->kv, session->position + count);
    return RSE_OK;
}

rse_status rse_session_commit(rse_session *session, int32_t accepted, rse_error *err) {
    rse_row row = {.session = session, .accepted = accepted};
    return rse_engine_step(session->engine, &row, 1, NULL, NULL, err);
}

rse_status rse_session_reserve(rse_session *session, int64_t tokens, rse_error *err) {
    RSE_TRY(rse_session_usable(session, err));
    int64_t end = session->position + session->pending + tokens;
    return rse_kv_seq_reserve(session->engine->kv, &session->kv, end - tokens, end, err);
}

/* Tokens that are in the state already must be kept before anything is done with that state. */
static rse_status settle(rse_session *session, rse_error *err) {
    RSE_TRY(rse_session_usable(session, err));
    return session->pending > 0 && rse_session_whole(session) ? rse_session_commit(session, RSE_ACCEPT_ALL, err)
                                                              : RSE_OK;
}

rse_status rse_session_copy(rse_session *session, rse_session *from, uint64_t id, rse_error *err) {
    rse_engine *engine = session->engine;
    if (from->engine != engine || from == session) {
        return rse_fail(err, RSE_ERROR_USAGE, "a session can be copied from another one of its engine");
    }
    RSE_TRY(settle(from, err));
    RSE_TRY(rse_session_reset(session, id, err));
    for (int64_t i = 0; i < from->position; i++) {
        rse_status status = rse_ids_append(&session->ids, from->ids.data[i], err);
        if (status != RSE_OK) {
            session->ids.count = 0;
            return status;
        }
    }
    rse_status status = rse_kv_seq_share(engine->kv, &from->kv, from->position, &session->kv, err);
    if (status == RSE_OK && engine->cache != NULL) {
        status = rse_library(engine->context,
                             rssm_cache_copy(engine->cache, 1, &from->slot, &session->slot, &id, NULL), err);
    }
    if (status == RSE_OK && engine->snapshots != NULL) {
        status = rse_snapshots_copy(engine->snapshots, from, session, err);
    }
    if (status != RSE_OK) {
        session->ids.count = 0;
        rse_kv_seq_truncate(engine->kv, &session->kv, 0);
        return status;
    }
    session->position = from->position;
    return rse_shadow_restart(engine->shadow, session, err);
}

rse_status rse_session_rollback(rse_session *session, int64_t position, rse_error *err) {
    rse_engine *engine = session->engine;
    if (position < 0 || position > session->position) {
        return rse_fail(err, RSE_ERROR_USAGE, "position is %lld; the session keeps %lld tokens",
                        (long long)position, (long long)session->position);
    }
    RSE_TRY(settle(session, err));
    if (engine->snapshots != NULL) {
        if (position < session->position) {
            return rse_fail(err, RSE_ERROR_UNSUPPORTED,
                            "the snapshot method cannot go back to position %lld: it keeps the "
                            "states of the last step alone",
                            (long long)position);
        }
        RSE_TRY(rse_snapshots_keep(engine->snapshots, session, 0, err));
    }
    if (engine->cache != NULL) {
        rssm_status status = rssm_cache_rollback(engine->cache, 1, &session->slot, &position, NULL);
        RSE_TRY(rse_library(engine->context, status, err));
    }
    session->life = ++engine->lives;
    session->position = position;
    session->pending = 0;
    session->ids.count = (size_t)position;
    rse_kv_seq_truncate(engine->kv, &session->kv, position);
    return rse_shadow_truncate(engine->shadow, session, err);
}

rse_status rse_session_check(rse_session *session, rse_error *err) {
    RSE_TRY(settle(session, err));
    return rse_shadow_flush(session->engine->shadow, session, err);
}
