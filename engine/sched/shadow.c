/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The proof behind --check. Beside the engine's cache stands a second one of the conventional method, with a
 * slot per session. The inputs that the engine's layers get are kept until their tokens are kept or dropped;
 * when a step has moved a checkpoint from position c to b, the conventional state is advanced from c to b with
 * the inputs of just those tokens, one at a time, and the two must be the same bits in every layer.
 *
 * The shadow is started by export and import whenever a state came to be by other means than decoding: after a
 * prompt, after loading a session. From there on it needs no reloading: it goes on from the state that was just
 * found equal to the checkpoint.
 *
 * Both caches have their checkpoints in memory that belongs to the shadow, which is how they can be compared.
 */
#include "sched/internal.h"

#include <stdlib.h>
#include <string.h>

/* The shadow of one session: state at `position`, and the inputs of the tokens from there on. */
typedef struct follower {
    int64_t position;
    int64_t tokens; /* queued, kept and pending */
    char *queue;    /* [capacity] tokens, each with the packed rows of all mixers */
} follower;

struct rse_shadow {
    rse_engine *engine;
    rssm_cache *cache;
    float *checkpoints[2]; /* of the engine's cache and of this one: [layers][slots][value_heads][d_v][d_k] */
    int64_t state_bytes;   /* of one layer and slot */
    int64_t capacity;      /* tokens of a queue */
    int64_t token_bytes;   /* of a queue, all mixers */
    int64_t *mixer_at;     /* [recurrent layers] byte offset of a mixer's row in a token of a queue */
    const rse_mixer **mixer;
    follower *followers; /* [sessions] */
    float *out;          /* what the conventional layers put out; nobody reads it */
    const rse_row *rows; /* of the step under way */
    int32_t row_count;
    int64_t compared;
};

static int64_t io_bytes(const rse_engine *engine) {
    return engine->options.io_dtype == RSSM_DTYPE_BF16 ? 2 : 4;
}

float *rse_shadow_checkpoint(rse_shadow *shadow, int32_t mixer, int32_t slot) {
    int64_t index = (int64_t)mixer * shadow->engine->options.sessions + slot;
    return shadow->checkpoints[0] + index * shadow->state_bytes / (int64_t)sizeof(float);
}

/* Moves the checkpoints of a cache into memory of the shadow. */
static rse_status bind(rse_shadow *shadow, rssm_cache *cache, float **memory, rse_error *err) {
    rse_engine *engine = shadow->engine;
    rssm_part_info info = {0};
    RSE_TRY(rse_library(engine->context, rssm_cache_layout(cache, RSSM_PART_CHECKPOINT, &info), err));
    shadow->state_bytes = info.bytes;
    size_t layer_bytes = (size_t)info.bytes * (size_t)engine->options.sessions;
    *memory = calloc((size_t)engine->model->recurrent, layer_bytes);
    if (*memory == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for the states of --check: %d layers of %zu bytes",
                        engine->model->recurrent, layer_bytes);
    }
    for (int32_t layer = 0; layer < engine->model->recurrent; layer++) {
        rssm_status status = rssm_cache_bind(cache, layer, RSSM_PART_CHECKPOINT,
                                             (char *)*memory + (size_t)layer * layer_bytes, info.bytes);
        RSE_TRY(rse_library(engine->context, status, err));
    }
    return RSE_OK;
}

/* Where each mixer's row stands in a token of a queue. */
static rse_status lay_out(rse_shadow *shadow, rse_error *err) {
    const rse_model *model = shadow->engine->model;
    const rse_engine_options *options = &shadow->engine->options;
    size_t layers = (size_t)model->recurrent;
    shadow->mixer_at = calloc(layers, sizeof *shadow->mixer_at);
    shadow->mixer = calloc(layers, sizeof *shadow->mixer);
    shadow->followers = calloc((size_t)options->sessions, sizeof *shadow->followers);
    shadow->out = calloc((size_t)model->spec.value_heads * (size_t)model->spec.d_v, sizeof *shadow->out);
    if (shadow->mixer_at == NULL || shadow->mixer == NULL || shadow->followers == NULL || shadow->out == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for --check");
    }
    for (int32_t i = 0; i < model->blocks; i++) {
        if (model->block[i].kind == RSE_BLOCK_MIXER) {
            const rse_mixer *mixer = &model->block[i].mixer;
            shadow->mixer[mixer->index] = mixer;
            shadow->mixer_at[mixer->index] = shadow->token_bytes;
            shadow->token_bytes += (mixer->width * io_bytes(shadow->engine) + 15) / 16 * 16;
        }
    }
    shadow->capacity = options->window + 2 * options->step_tokens;
    return RSE_OK;
}

static rse_status build(rse_shadow *shadow, rse_error *err) {
    rse_engine *engine = shadow->engine;
    RSE_TRY(lay_out(shadow, err));
    RSE_TRY(bind(shadow, engine->cache, &shadow->checkpoints[0], err));
    RSE_TRY(rse_cache_create(engine, RSSM_METHOD_CONVENTIONAL, NULL, &shadow->cache, err));
    RSE_TRY(rse_library(engine->context, rssm_cache_allocate(shadow->cache), err));
    RSE_TRY(bind(shadow, shadow->cache, &shadow->checkpoints[1], err));
    return rse_cache_weights(engine, shadow->cache, err);
}

rse_status rse_shadow_create(rse_engine *engine, rse_shadow **shadow, rse_error *err) {
    *shadow = NULL;
    rse_shadow *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for --check");
    }
    made->engine = engine;
    rse_status status = build(made, err);
    if (status != RSE_OK) {
        rse_shadow_destroy(made);
        return status;
    }
    *shadow = made;
    return RSE_OK;
}

void rse_shadow_destroy(rse_shadow *shadow) {
    if (shadow == NULL) {
        return;
    }
    for (int32_t i = 0; shadow->followers != NULL && i < shadow->engine->options.sessions; i++) {
        free(shadow->followers[i].queue);
    }
    rssm_cache_destroy(shadow->cache);
    free(shadow->followers);
    free(shadow->mixer_at);
    free(shadow->mixer);
    free(shadow->out);
    free(shadow->checkpoints[0]);
    free(shadow->checkpoints[1]);
    free(shadow);
}

int64_t rse_shadow_compared(const rse_shadow *shadow) {
    return shadow != NULL ? shadow->compared : 0;
}

rse_status rse_shadow_reset(rse_shadow *shadow, const rse_session *session, rse_error *err) {
    if (shadow == NULL) {
        return RSE_OK;
    }
    follower *f = &shadow->followers[session->slot];
    f->position = 0;
    f->tokens = 0;
    rssm_status status = rssm_cache_reset(shadow->cache, 1, &session->slot, &session->id, NULL, NULL);
    return rse_library(shadow->engine->context, status, err);
}

rse_status rse_shadow_restart(rse_shadow *shadow, const rse_session *session, rse_error *err) {
    if (shadow == NULL) {
        return RSE_OK;
    }
    const rse_engine *engine = shadow->engine;
    int64_t bytes = rssm_cache_export_bytes(engine->cache, session->slot, 0);
    void *state = bytes >= 0 ? malloc((size_t)bytes) : NULL;
    if (state == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for a state of %lld bytes", (long long)bytes);
    }
    int64_t written = 0;
    rssm_status status = rssm_cache_export(engine->cache, session->slot, 0, state, bytes, &written);
    if (status == RSSM_OK) {
        status = rssm_cache_import(shadow->cache, session->slot, state, written);
    }
    free(state);
    RSE_TRY(rse_library(engine->context, status, err));
    follower *f = &shadow->followers[session->slot];
    f->position = session->position;
    f->tokens = 0;
    return RSE_OK;
}

void rse_shadow_choose(rse_shadow *shadow, const rse_session *session, int32_t was, const int32_t *path,
                       int32_t count) {
    if (shadow == NULL) {
        return;
    }
    follower *f = &shadow->followers[session->slot];
    char *pending = f->queue + (f->tokens - was) * shadow->token_bytes;
    for (int32_t i = 0; i < count; i++) {
        int32_t node = path != NULL ? path[i] : i;
        memmove(pending + i * shadow->token_bytes, pending + node * shadow->token_bytes,
                (size_t)shadow->token_bytes);
    }
    f->tokens += count - was;
}

rse_status rse_shadow_truncate(rse_shadow *shadow, const rse_session *session, rse_error *err) {
    if (shadow == NULL) {
        return RSE_OK;
    }
    follower *f = &shadow->followers[session->slot];
    if (session->position < f->position) { /* it was started beyond the checkpoint */
        return rse_shadow_restart(shadow, session, err);
    }
    if (f->tokens > session->position - f->position) {
        f->tokens = session->position - f->position;
    }
    return RSE_OK;
}

/* One conventional token from the head of the queue. */
static rse_status feed(rse_shadow *shadow, int32_t slot, const char *token, rse_error *err) {
    const rse_engine *engine = shadow->engine;
    rssm_batch batch = {.struct_size = sizeof batch, .rows = 1, .slots = &slot};
    int32_t accepted = 1;
    rssm_status status = rssm_cache_begin(shadow->cache, &batch, &accepted, NULL, NULL);
    rssm_output out = {.struct_size = sizeof out, .data = shadow->out, .dtype = RSSM_DTYPE_F32};
    for (int32_t i = 0; status == RSSM_OK && i < engine->model->recurrent; i++) {
        rssm_layer_inputs inputs =
            rse_mixer_inputs(shadow->mixer[i], token + shadow->mixer_at[i], engine->options.io_dtype);
        status = rssm_cache_decode(shadow->cache, i, &batch, &inputs, &out, NULL);
    }
    return rse_library(engine->context, status, err);
}

static rse_status compare(rse_shadow *shadow, int32_t slot, int64_t position, rse_error *err) {
    int64_t values = shadow->state_bytes / (int64_t)sizeof(float);
    for (int32_t layer = 0; layer < shadow->engine->model->recurrent; layer++) {
        int64_t at = ((int64_t)layer * shadow->engine->options.sessions + slot) * values;
        const uint32_t *stored = (const uint32_t *)(shadow->checkpoints[0] + at);
        const uint32_t *expected = (const uint32_t *)(shadow->checkpoints[1] + at);
        int64_t different = 0;
        for (int64_t i = 0; i < values; i++) {
            different += stored[i] != expected[i];
        }
        if (different > 0) {
            return rse_fail(
                err, RSE_ERROR_MISMATCH,
                "check: recurrent layer %d of session %d at position %lld: %lld of %lld values of the "
                "checkpoint differ from the conventional state",
                layer, slot, (long long)position, (long long)different, (long long)values);
        }
        shadow->compared++;
    }
    return RSE_OK;
}

/* Follows a session's checkpoint and compares, if it has moved. */
static rse_status follow(rse_shadow *shadow, const rse_session *session, rse_error *err) {
    follower *f = &shadow->followers[session->slot];
    rssm_slot_info info = {.struct_size = sizeof info};
    RSE_TRY(rse_library(shadow->engine->context, rssm_cache_slot(shadow->engine->cache, session->slot, &info),
                        err));
    int64_t steps = info.checkpoint - f->position;
    if (steps <= 0) {
        return RSE_OK;
    }
    if (steps > f->tokens) {
        return rse_fail(err, RSE_ERROR_MISMATCH,
                        "check: the checkpoint of session %d is at %lld, but inputs are known up to %lld",
                        session->slot, (long long)info.checkpoint, (long long)(f->position + f->tokens));
    }
    for (int64_t i = 0; i < steps; i++) {
        RSE_TRY(feed(shadow, session->slot, f->queue + i * shadow->token_bytes, err));
    }
    f->tokens -= steps;
    f->position = info.checkpoint;
    memmove(f->queue, f->queue + steps * shadow->token_bytes, (size_t)(f->tokens * shadow->token_bytes));
    return compare(shadow, session->slot, f->position, err);
}

rse_status rse_shadow_flush(rse_shadow *shadow, const rse_session *session, rse_error *err) {
    if (shadow == NULL) {
        return RSE_OK;
    }
    rssm_status status = rssm_cache_flush(shadow->engine->cache, 1, &session->slot, NULL, NULL);
    RSE_TRY(rse_library(shadow->engine->context, status, err));
    return follow(shadow, session, err);
}

/* Lets the library keep what a row accepts, without planning anything. */
static rse_status commit(rse_shadow *shadow, rse_session *session, int32_t accepted, rse_error *err) {
    int32_t kept = rse_session_keeps(session, accepted);
    rssm_batch batch = {
        .struct_size = sizeof batch, .rows = 1, .slots = &session->slot, .offsets = (const int32_t[]){0, 0}};
    rssm_status status = rssm_cache_begin(shadow->engine->cache, &batch, &kept, session->path, NULL);
    RSE_TRY(rse_library(shadow->engine->context, status, err));
    rse_session_kept(session, kept);
    return RSE_OK;
}

/* A prompt folds history and goes on from there in one go, so what it folds is compared first; and after a
 * prompt the shadow starts anew, once the library has taken the prompt as kept. */
rse_status rse_shadow_before(rse_shadow *shadow, const rse_row *rows, int32_t count, rse_error *err) {
    for (int32_t i = 0; shadow != NULL && i < count; i++) {
        rse_session *session = rows[i].session;
        follower *f = &shadow->followers[session->slot];
        if (f->queue == NULL) {
            f->queue = malloc((size_t)(shadow->capacity * shadow->token_bytes));
            if (f->queue == NULL) {
                return rse_fail(err, RSE_ERROR_MEMORY, "no memory for the inputs that --check keeps");
            }
        }
        if (session->pending_prompt) {
            RSE_TRY(commit(shadow, session, rows[i].accepted, err));
            RSE_TRY(rse_shadow_restart(shadow, session, err));
        } else if (rows[i].prompt) {
            RSE_TRY(commit(shadow, session, rows[i].accepted, err));
            RSE_TRY(rse_shadow_truncate(shadow, session, err));
            RSE_TRY(rse_shadow_flush(shadow, session, err));
        }
    }
    return RSE_OK;
}

void rse_shadow_watch(rse_shadow *shadow, const rse_row *rows, int32_t count) {
    shadow->rows = rows;
    shadow->row_count = count;
}

/* Appends the packed rows of decoded tokens to their sessions' queues; the last mixer completes the tokens. */
void rse_shadow_inputs(void *user, int32_t mixer, const void *packed) {
    rse_shadow *shadow = user;
    int64_t bytes = shadow->mixer[mixer]->width * io_bytes(shadow->engine);
    const char *next = packed;
    for (int32_t i = 0; i < shadow->row_count; i++) {
        const rse_row *row = &shadow->rows[i];
        follower *f = &shadow->followers[row->session->slot];
        for (int32_t t = 0; t < row->count; t++, next += bytes) {
            if (!row->prompt) {
                memcpy(f->queue + (f->tokens + t) * shadow->token_bytes + shadow->mixer_at[mixer], next,
                       (size_t)bytes);
            }
        }
        if (!row->prompt && mixer + 1 == shadow->engine->model->recurrent) {
            f->tokens += row->count;
        }
    }
}

rse_status rse_shadow_after(rse_shadow *shadow, const rse_row *rows, int32_t count, rse_error *err) {
    for (int32_t i = 0; shadow != NULL && i < count; i++) {
        if (!rows[i].prompt && rows[i].count > 0) {
            RSE_TRY(follow(shadow, rows[i].session, err));
        }
    }
    return RSE_OK;
}
