/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Entries are found by the hash of their whole blocks: a prompt is hashed block by block, and each hash leads to the
 * entries with these blocks and less than one more. Tokens are compared in full, so that a hash that two sequences
 * share costs time and nothing else.
 */
#include "sched/prefix.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { BUCKETS = 1024 };

typedef struct entry {
    struct entry *newer, *older; /* in order of use */
    struct entry *chain;         /* of its bucket */
    uint64_t key;                /* of its whole blocks */
    int32_t *ids;                /* [count] */
    int64_t count;
    void *state; /* as the library exports it; NULL for a model without recurrent layers */
    int64_t state_bytes;
    rse_kv_seq kv;
} entry;

struct rse_prefixes {
    rse_engine *engine;
    int64_t budget;
    int32_t block;
    entry *bucket[BUCKETS];
    entry *newest, *oldest;
    int32_t *holds; /* [pages] entries that hold a page */
    rse_prefix_figures figures;
};

/* ---- Entries ------------------------------------------------------------------------------------------ */

static uint64_t next_key(const rse_prefixes *p, uint64_t key, const int32_t *ids) {
    return XXH3_64bits_withSeed(ids, (size_t)p->block * sizeof *ids, key);
}

static uint64_t key_of(const rse_prefixes *p, const int32_t *ids, int64_t count) {
    uint64_t key = 0;
    for (int64_t at = 0; at + p->block <= count; at += p->block) {
        key = next_key(p, key, ids + at);
    }
    return key;
}

static void unlink_use(rse_prefixes *p, entry *e) {
    *(e->newer != NULL ? &e->newer->older : &p->newest) = e->older;
    *(e->older != NULL ? &e->older->newer : &p->oldest) = e->newer;
}

static void link_newest(rse_prefixes *p, entry *e) {
    e->newer = NULL;
    e->older = p->newest;
    *(p->newest != NULL ? &p->newest->newer : &p->oldest) = e;
    p->newest = e;
}

static int64_t own_bytes(const entry *e) {
    return (int64_t)sizeof *e + e->count * (int64_t)sizeof *e->ids + e->state_bytes;
}

/* Adds or takes away what an entry costs; pages that several entries hold cost once. */
static void account(rse_prefixes *p, const entry *e, int32_t sign) {
    int64_t page_bytes = rse_kv_page_bytes(rse_kv_pool_desc(p->engine->kv));
    p->figures.entries += sign;
    p->figures.bytes += sign * own_bytes(e);
    for (int64_t i = 0; i < e->kv.count; i++) {
        int32_t *holds = &p->holds[e->kv.pages[i]];
        bool costs = *holds == (sign > 0 ? 0 : 1);
        *holds += sign;
        p->figures.bytes += costs ? sign * page_bytes : 0;
    }
}

static void free_entry(rse_prefixes *p, entry *e) {
    rse_kv_seq_free(p->engine->kv, &e->kv);
    free(e->ids);
    free(e->state);
    free(e);
}

static void drop(rse_prefixes *p, entry *e) {
    entry **at = &p->bucket[e->key % BUCKETS];
    while (*at != e) {
        at = &(*at)->chain;
    }
    *at = e->chain;
    unlink_use(p, e);
    account(p, e, -1);
    free_entry(p, e);
}

/* The longest entry, of `most` tokens at most, that ids begin with. */
static entry *find(const rse_prefixes *p, const int32_t *ids, int64_t most) {
    entry *best = NULL;
    int64_t least = 0;
    uint64_t key = 0;
    for (int64_t at = 0; at <= most; at += p->block) {
        for (entry *e = p->bucket[key % BUCKETS]; e != NULL; e = e->chain) {
            if (e->key == key && e->count <= most && e->count > least &&
                memcmp(e->ids, ids, (size_t)e->count * sizeof *ids) == 0) {
                best = e;
                least = e->count;
            }
        }
        key = at + p->block <= most ? next_key(p, key, ids + at) : key;
    }
    return best;
}

/* ---- The cache ---------------------------------------------------------------------------------------- */

rse_status rse_prefixes_create(rse_engine *engine, int64_t budget, int32_t block, rse_prefixes **prefixes,
                               rse_error *err) {
    *prefixes = NULL;
    rse_prefixes *p = calloc(1, sizeof *p);
    int32_t *holds = calloc((size_t)rse_kv_pool_desc(engine->kv)->pages + 1, sizeof *holds);
    if (p == NULL || holds == NULL) {
        free(p);
        free(holds);
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for a prefix cache");
    }
    *p = (rse_prefixes){.engine = engine, .budget = budget, .block = block, .holds = holds};
    *prefixes = p;
    return RSE_OK;
}

void rse_prefixes_destroy(rse_prefixes *p) {
    if (p == NULL) {
        return;
    }
    while (p->oldest != NULL) {
        drop(p, p->oldest);
    }
    free(p->holds);
    free(p);
}

/* Whether the pool would have more free pages without this entry. */
static bool frees(const rse_prefixes *p, const entry *e) {
    for (int64_t i = 0; i < e->kv.count; i++) {
        if (rse_kv_page_holders(p->engine->kv, e->kv.pages[i]) == 1) {
            return true;
        }
    }
    return false;
}

void rse_prefixes_reclaim(rse_prefixes *p, int64_t pages) {
    while (p != NULL && rse_kv_pool_free_pages(p->engine->kv) < pages) {
        entry *e = p->oldest;
        while (e != NULL && !frees(p, e)) {
            e = e->newer;
        }
        if (e == NULL) {
            return;
        }
        drop(p, e);
    }
}

/* The longest entry of `most` tokens at most that ids begin with, marked as used; NULL: there is none. */
static entry *use(rse_prefixes *p, const int32_t *ids, int64_t most) {
    entry *e = find(p, ids, most);
    if (e != NULL) {
        unlink_use(p, e);
        link_newest(p, e);
    }
    return e;
}

int64_t rse_prefixes_match(rse_prefixes *p, const int32_t *tokens, int64_t count) {
    const entry *e = p != NULL ? use(p, tokens, count) : NULL;
    return e != NULL ? e->count : 0;
}

rse_prefix_figures rse_engine_prefixes(const rse_engine *engine) {
    return engine->prefixes != NULL ? engine->prefixes->figures : (rse_prefix_figures){0};
}

/* ---- Storing ------------------------------------------------------------------------------------------ */

static rse_status make_entry(rse_prefixes *p, const rse_session *session, entry **made, rse_error *err) {
    *made = NULL;
    entry *e = calloc(1, sizeof *e);
    int32_t *ids = malloc((size_t)session->position * sizeof *ids);
    if (e == NULL || ids == NULL) {
        free(e);
        free(ids);
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory to keep a prefix of %lld tokens",
                        (long long)session->position);
    }
    memcpy(ids, session->ids.data, (size_t)session->position * sizeof *ids);
    e->ids = ids;
    e->count = session->position;
    e->key = key_of(p, ids, e->count);
    rse_status status = rse_session_export(session, &e->state, &e->state_bytes, err);
    if (status == RSE_OK) {
        status = rse_kv_seq_share(p->engine->kv, &session->kv, e->count, &e->kv, err);
    }
    if (status != RSE_OK) {
        free_entry(p, e);
        return status;
    }
    *made = e;
    return RSE_OK;
}

/* Bytes of an entry for the session if it had all its pages alone. */
static int64_t bytes_for(const rse_prefixes *p, const rse_session *session) {
    int64_t state = p->engine->cache != NULL ? rssm_cache_export_bytes(p->engine->cache, session->slot, 0) : 0;
    return (int64_t)sizeof(entry) + session->position * (int64_t)sizeof(int32_t) + state +
           rse_kv_pack_bytes(p->engine->kv, session->position);
}

rse_status rse_session_store(rse_session *session, rse_error *err) {
    rse_prefixes *p = session->engine->prefixes;
    RSE_TRY(rse_session_usable(session, err));
    int64_t length = session->position + session->pending;
    if (p == NULL || length == 0) {
        return RSE_OK;
    }
    const entry *same = use(p, session->ids.data, length);
    if (same != NULL && same->count == length) {
        return RSE_OK;
    }
    if (session->pending > 0) {
        RSE_TRY(rse_session_commit(session, RSE_ACCEPT_ALL, err));
    }
    int64_t bytes = bytes_for(p, session);
    if (bytes > p->budget) {
        return RSE_OK;
    }
    while (p->figures.bytes > p->budget - bytes) {
        drop(p, p->oldest);
    }
    entry *e;
    RSE_TRY(make_entry(p, session, &e, err));
    e->chain = p->bucket[e->key % BUCKETS];
    p->bucket[e->key % BUCKETS] = e;
    link_newest(p, e);
    account(p, e, 1);
    p->figures.stored++;
    return RSE_OK;
}

/* ---- Recalling ---------------------------------------------------------------------------------------- */

/* Makes an empty session what an entry holds, under the session's own id. */
static rse_status restore(rse_session *session, const entry *e, rse_error *err) {
    rse_engine *engine = session->engine;
    for (int64_t i = 0; i < e->count; i++) {
        RSE_TRY(rse_ids_append(&session->ids, e->ids[i], err));
    }
    RSE_TRY(rse_kv_seq_share(engine->kv, &e->kv, e->count, &session->kv, err));
    RSE_TRY(rse_session_import(session, e->state, e->state_bytes, err));
    if (engine->cache != NULL) {
        rssm_status status = rssm_cache_copy(engine->cache, 1, &session->slot, &session->slot, &session->id, NULL);
        RSE_TRY(rse_library(engine->context, status, err));
    }
    session->position = e->count;
    session->life = ++engine->lives;
    return rse_shadow_restart(engine->shadow, session, err);
}

rse_status rse_session_recall(rse_session *session, const int32_t *tokens, int64_t count, rse_error *err) {
    rse_prefixes *p = session->engine->prefixes;
    RSE_TRY(rse_session_usable(session, err));
    if (session->position + session->pending > 0) {
        return rse_fail(err, RSE_ERROR_USAGE, "the session has %lld tokens; only an empty one can begin with others",
                        (long long)(session->position + session->pending));
    }
    entry *e = p != NULL ? use(p, tokens, count) : NULL;
    if (e == NULL) {
        return RSE_OK;
    }
    rse_status status = restore(session, e, err);
    if (status != RSE_OK) { /* an empty session is left, not half of one */
        rse_error ignored;
        session->broken = rse_session_reset(session, session->id, &ignored) != RSE_OK;
        return status;
    }
    p->figures.recalled++;
    p->figures.tokens += e->count;
    return RSE_OK;
}
