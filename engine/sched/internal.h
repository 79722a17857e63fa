/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files behind engine.h share: the engine, the session, and the shadow of --check.
 *
 * Slot i of the cache belongs to engine->sessions[i]. A session has a slot unless it is parked. The
 * engine mirrors the library's protocol: a step leaves `pending` tokens, which the next rssm_cache_begin()
 * keeps or drops. Tokens of prompts and of the conventional method are in the state already; they are pending
 * only until that begin has seen that all layers ran.
 */
#ifndef RSE_SCHED_INTERNAL_H
#define RSE_SCHED_INTERNAL_H

#include "base/buffer.h"
#include "engine.h"
#include "math/kvcache.h"
#include "model/forward.h"
#include "model/model.h"

typedef struct rse_shadow rse_shadow;
typedef struct rse_snapshots rse_snapshots;
typedef struct rse_prefixes rse_prefixes;

/* Arrays of a step, [options.sessions] or [options.batch_tokens]. */
typedef struct rse_step_arrays {
    int32_t *slots;
    int32_t *offsets; /* [sessions + 1] */
    uint8_t *prefill;
    int32_t *accepted;
    rse_attention_row *kv_rows;
    int32_t *ids;
    int64_t *positions;
    int32_t *outputs;
    int32_t *parents;               /* [batch_tokens] */
    int32_t *paths;                 /* [sessions][step_tokens] */
    rse_attention_row *attend;      /* [batch_tokens + sessions] */
    rse_attention_branch *branches; /* [batch_tokens] */
    int32_t branch_count;           /* of the step under way */
} rse_step_arrays;

struct rse_engine {
    rse_engine_options options; /* defaults filled in */
    rse_model *model;
    struct rse_calibration *calibration; /* of its nvfp4 copies, or NULL */
    rse_pool *pool;
    rse_math *math;
    rssm_context *context;
    int32_t first_layer;      /* of the model's layers, the first that is recurrent */
    rssm_cache *cache;        /* NULL for a model without recurrent layers, and with snapshots */
    rse_snapshots *snapshots; /* of the method of that name */
    rse_kv_pool *kv;
    rse_forward *forward;
    rse_shadow *shadow;     /* NULL without options.check */
    rse_prefixes *prefixes; /* NULL without options.prefix_bytes */
    rse_session **sessions; /* [options.sessions]; NULL: the slot is free */
    rse_session *first;     /* of all that are open, parked ones too */
    uint64_t lives;         /* sequences that sessions have held so far */
    float *hidden;          /* [batch_tokens][hidden size] of the last step's tokens, if they are kept */
    rse_step_arrays arrays;
};

/* What a parked session is made of, beside its ids. */
typedef struct rse_parked {
    void *state; /* as the library exports it; NULL for a model without recurrent layers */
    int64_t bytes;
    void *kv; /* packed pages */
} rse_parked;

struct rse_session {
    rse_engine *engine;
    rse_session *next;
    int32_t slot; /* -1: parked */
    rse_parked parked;
    uint64_t id;
    uint64_t life; /* tells apart the sequences that sessions have held; new whenever one is cut or replaced */
    int64_t position;                      /* tokens kept */
    int32_t pending;                       /* tokens of the last step, in the library's sense */
    int32_t stepped;                       /* tokens of the last step */
    bool pending_prompt;                   /* they are of a prompt */
    int32_t path[RSSM_STEP_TOKENS_MAX];    /* which tokens of the step they are; of a decode step */
    int32_t parents[RSSM_STEP_TOKENS_MAX]; /* of the pending tokens, by their own order */
    bool broken;                           /* a step failed half-way */
    rse_ids ids;                           /* [position + pending] */
    rse_kv_seq kv;
};

/* The library's cache for a model, without memory: `slots` of them, and the options' window and so on. state NULL:
 * fp32. */
rse_status rse_cache_create(const rse_engine *engine, int32_t method, const rse_state_options *state,
                            rssm_cache **cache, rse_error *err);
/* Hands the constants of the model's mixers to a cache. */
rse_status rse_cache_weights(const rse_engine *engine, rssm_cache *cache, rse_error *err);

/* RSE_ERROR_USAGE for a session that is parked or broken. */
rse_status rse_session_usable(const rse_session *session, rse_error *err);
/* A free slot for a session without one, whose state is then to be written; RSE_ERROR_MEMORY if there is none. */
rse_status rse_session_take_slot(rse_session *session, rse_error *err);
void rse_session_drop_slot(rse_session *session);
/* The state of the kept tokens in memory that the caller frees; NULL for a model without recurrent layers. */
rse_status rse_session_export(const rse_session *session, void **state, int64_t *bytes, rse_error *err);
rse_status rse_session_import(const rse_session *session, const void *state, int64_t bytes, rse_error *err);
void rse_session_forget_parked(rse_session *session);

/* From now on steps keep the final hidden states of all their tokens in engine->hidden. */
rse_status rse_engine_keep_hidden(rse_engine *engine, rse_error *err);
/* How many tokens a path of the session's next step may have so that its state is not flushed sooner than in
   steps of one token: up to the next flush boundary. */
int32_t rse_session_room(const rse_session *session);
/* Whether the pending tokens are in the state already, and can only be kept all together. */
bool rse_session_whole(const rse_session *session);
/* How many of its pending tokens a session keeps if a row says so. */
int32_t rse_session_keeps(const rse_session *session, int32_t accepted);
/* Bookkeeping for tokens that a begin has kept. */
void rse_session_kept(rse_session *session, int32_t kept);

/*
 * The shadow: for every session a conventional state, fed with the inputs of kept tokens up to the position of
 * the checkpoint, and compared with the checkpoint, bit for bit, each time that has moved. Functions do nothing
 * for a NULL shadow.
 */
rse_status rse_shadow_create(rse_engine *engine, rse_shadow **shadow, rse_error *err);
void rse_shadow_destroy(rse_shadow *shadow);
int64_t rse_shadow_compared(const rse_shadow *shadow);
/* The session's state was set to zero. */
rse_status rse_shadow_reset(rse_shadow *shadow, const rse_session *session, rse_error *err);
/* The session's state was written by other means than decoding: take it over. */
rse_status rse_shadow_restart(rse_shadow *shadow, const rse_session *session, rse_error *err);
/* Of the `was` pending tokens of the session these stay, in this order. */
void rse_shadow_choose(rse_shadow *shadow, const rse_session *session, int32_t was, const int32_t *path,
                       int32_t count);
/* The session has `position` kept tokens now, after dropping some. */
rse_status rse_shadow_truncate(rse_shadow *shadow, const rse_session *session, rse_error *err);
/* Before rssm_cache_begin(): keeps what the rows accept where that is needed to follow prompts. */
rse_status rse_shadow_before(rse_shadow *shadow, const rse_row *rows, int32_t count, rse_error *err);
/* An rse_inputs_fn whose user is the shadow; the step's rows were given to rse_shadow_watch(). */
void rse_shadow_inputs(void *shadow, int32_t mixer, const void *packed);
void rse_shadow_watch(rse_shadow *shadow, const rse_row *rows, int32_t count);
/* After a pass: compares the checkpoints that have moved. */
rse_status rse_shadow_after(rse_shadow *shadow, const rse_row *rows, int32_t count, rse_error *err);
/* Compares the state of all kept tokens, flushing it. */
rse_status rse_shadow_flush(rse_shadow *shadow, const rse_session *session, rse_error *err);
/* The checkpoint of a layer and slot in the engine's own cache, f32, for tests that damage it. */
float *rse_shadow_checkpoint(rse_shadow *shadow, int32_t mixer, int32_t slot);

#endif
