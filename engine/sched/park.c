/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parking: a session gives up its slot and its pages, and later goes on in others as if nothing had been. Its state
 * goes through the library's export and import, which restore equal parameters bit for bit; its pages are copied as
 * they are.
 */
#include "sched/internal.h"

#include <stdlib.h>

rse_status rse_session_usable(const rse_session *session, rse_error *err) {
    if (session->slot < 0) {
        return rse_fail(err, RSE_ERROR_USAGE, "the session is parked at position %lld; unpark it",
                        (long long)session->position);
    }
    if (session->broken) {
        return rse_fail(err, RSE_ERROR_USAGE, "session %d is broken by a step that failed; reset it", session->slot);
    }
    return RSE_OK;
}

rse_status rse_session_take_slot(rse_session *session, rse_error *err) {
    rse_engine *engine = session->engine;
    int32_t slot = 0;
    while (slot < engine->options.sessions && engine->sessions[slot] != NULL) {
        slot++;
    }
    if (slot == engine->options.sessions) {
        return rse_fail(err, RSE_ERROR_MEMORY, "all %d sessions of the engine are in use", slot);
    }
    engine->sessions[slot] = session;
    session->slot = slot;
    return RSE_OK;
}

void rse_session_drop_slot(rse_session *session) {
    if (session->slot >= 0) {
        session->engine->sessions[session->slot] = NULL;
        session->slot = -1;
    }
}

rse_status rse_session_export(const rse_session *session, void **state, int64_t *bytes, rse_error *err) {
    const rse_engine *engine = session->engine;
    *state = NULL;
    *bytes = 0;
    if (engine->cache == NULL) {
        return RSE_OK;
    }
    int64_t need = rssm_cache_export_bytes(engine->cache, session->slot, 0);
    if (need < 0) {
        return rse_fail(err, RSE_ERROR_LIBRARY, "the state of session %d cannot be saved", session->slot);
    }
    void *memory = malloc((size_t)need + 1);
    if (memory == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for a state of %lld bytes", (long long)need);
    }
    rse_status status = rse_library(
        engine->context, rssm_cache_export(engine->cache, session->slot, 0, memory, need, bytes), err);
    if (status != RSE_OK) {
        free(memory);
        return status;
    }
    *state = memory;
    return RSE_OK;
}

rse_status rse_session_import(const rse_session *session, const void *state, int64_t bytes, rse_error *err) {
    const rse_engine *engine = session->engine;
    if (engine->cache == NULL) {
        return RSE_OK;
    }
    return rse_library(engine->context, rssm_cache_import(engine->cache, session->slot, state, bytes), err);
}

bool rse_session_parked(const rse_session *session) {
    return session->slot < 0;
}

void rse_session_forget_parked(rse_session *session) {
    free(session->parked.state);
    free(session->parked.kv);
    session->parked = (rse_parked){0};
}

rse_status rse_session_park(rse_session *session, rse_error *err) {
    rse_engine *engine = session->engine;
    RSE_TRY(rse_session_usable(session, err));
    if (engine->snapshots != NULL) {
        return rse_fail(err, RSE_ERROR_UNSUPPORTED, "sessions of the snapshot method cannot be parked");
    }
    if (session->pending > 0) {
        RSE_TRY(rse_session_commit(session, RSE_ACCEPT_ALL, err));
    }
    rse_parked parked = {0};
    int64_t bytes = rse_kv_pack_bytes(engine->kv, session->position);
    parked.kv = malloc((size_t)bytes + 1);
    if (parked.kv == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory to park %lld bytes of keys and values", (long long)bytes);
    }
    rse_status status = rse_session_export(session, &parked.state, &parked.bytes, err);
    if (status != RSE_OK) {
        free(parked.kv);
        return status;
    }
    rse_kv_pack(engine->kv, &session->kv, session->position, parked.kv);
    rse_kv_seq_truncate(engine->kv, &session->kv, 0);
    rse_session_drop_slot(session);
    session->parked = parked;
    return RSE_OK;
}

static rse_status bring_back(rse_session *session, rse_error *err) {
    rse_engine *engine = session->engine;
    RSE_TRY(rse_kv_seq_reserve(engine->kv, &session->kv, 0, session->position, err));
    RSE_TRY(rse_session_import(session, session->parked.state, session->parked.bytes, err));
    rse_kv_unpack(engine->kv, &session->kv, session->position, session->parked.kv);
    return rse_shadow_restart(engine->shadow, session, err);
}

rse_status rse_session_unpark(rse_session *session, rse_error *err) {
    if (session->slot >= 0) {
        return rse_fail(err, RSE_ERROR_USAGE, "session %d is not parked", session->slot);
    }
    RSE_TRY(rse_session_take_slot(session, err));
    rse_status status = bring_back(session, err);
    if (status != RSE_OK) {
        rse_kv_seq_truncate(session->engine->kv, &session->kv, 0);
        rse_session_drop_slot(session);
        return status;
    }
    rse_session_forget_parked(session);
    return RSE_OK;
}
