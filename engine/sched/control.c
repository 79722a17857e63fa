/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/control.h"
#include "sched/calibrate.h"
#include "sched/internal.h"
#include "sched/snapshot.h"

#include <stdlib.h>
#include <string.h>

struct rse_control {
    rse_engine *engine;
    rssm_cache *quantiser; /* one slot; its checkpoints are `rounded` */
    int64_t values;        /* of a layer's state */
    float *exact, *noisy, *rounded; /* [layers][values], one block */
    uint64_t seed;
};

static rse_status bind(const rse_engine *engine, rssm_cache *cache, float *states, int64_t values, int32_t layers,
                       rse_error *err) {
    for (int32_t i = 0; i < layers; i++) {
        rssm_status status = rssm_cache_bind(cache, i, RSSM_PART_CHECKPOINT, states + i * values,
                                             values * (int64_t)sizeof *states);
        RSE_TRY(rse_library(engine->context, status, err));
    }
    return RSE_OK;
}

static int64_t state_values(const rse_model *model) {
    return (int64_t)model->spec.value_heads * model->spec.d_v * model->spec.d_k;
}

/* A cache of the model's layers with one slot, for one purpose; `first` and `layers` say which layers. */
static rse_status make_cache(const rse_engine *engine, const rse_state_options *state, int32_t window, int32_t first,
                             int32_t layers, rssm_cache **cache, rse_error *err) {
    const rse_model *model = engine->model;
    rssm_cache_desc desc = {.struct_size = sizeof desc,
                            .spec = &model->spec,
                            .layers = layers,
                            .first_layer = first,
                            .slots = 1,
                            .window = window,
                            .step_tokens = 1,
                            .io_dtype = engine->options.io_dtype};
    rse_calibration_scheme(engine->calibration != NULL, state, &desc);
    RSE_TRY(rse_library(engine->context, rssm_cache_create(engine->context, &desc, cache), err));
    return rse_library(engine->context, rssm_cache_allocate(*cache), err);
}

/* ---- The control ---------------------------------------------------------------------------------------- */

static rse_status make(rse_control *c, const rse_state_options *scheme, rse_error *err) {
    rse_engine *engine = c->engine;
    const int32_t layers = engine->model->recurrent;
    const int64_t total = layers * c->values;
    rse_state_options shared = *scheme;
    shared.read_copy_shared = 1;
    c->exact = calloc((size_t)total * 3, sizeof *c->exact);
    if (c->exact == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for the states of a control");
    }
    c->noisy = c->exact + total;
    c->rounded = c->noisy + total;
    RSE_TRY(make_cache(engine, &shared, 1, 0, layers, &c->quantiser, err));
    RSE_TRY(rse_calibration_apply(engine, &shared, c->quantiser, 0, layers, err));
    RSE_TRY(bind(engine, c->quantiser, c->rounded, c->values, layers, err));
    return bind(engine, engine->cache, c->exact, c->values, layers, err);
}

rse_status rse_control_create(rse_engine *engine, const rse_state_options *scheme, rse_control **control, rse_error *err) {
    const rse_state_options *state = &engine->options.state;
    *control = NULL;
    if (engine->cache == NULL || engine->options.method != RSSM_METHOD_REPLAY ||
        state->checkpoint_dtype != RSSM_DTYPE_F32 || state->read_copy_dtype != RSSM_DTYPE_DEFAULT ||
        scheme->read_copy_dtype == RSSM_DTYPE_DEFAULT) {
        return rse_fail(err, RSE_ERROR_USAGE, "a control is for the method replay and f32 states, with a copy's errors as noise");
    }
    rse_control *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for a control");
    }
    *c = (rse_control){.engine = engine, .values = state_values(engine->model), .seed = scheme->seed};
    rse_status status = make(c, scheme, err);
    if (status != RSE_OK) {
        rse_control_destroy(c);
        return status;
    }
    *control = c;
    return RSE_OK;
}

void rse_control_destroy(rse_control *c) {
    if (c == NULL) {
        return;
    }
    for (int32_t i = 0; i < c->engine->model->recurrent; i++) { /* nothing may point into memory that goes */
        rssm_status unbound = rssm_cache_bind(c->engine->cache, i, RSSM_PART_CHECKPOINT, NULL, 0);
        (void)unbound;
    }
    rssm_cache_destroy(c->quantiser);
    free(c->exact);
    free(c);
}

/* 64 random bits for each number. */
static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* noisy = exact + error of the rounded state, with random signs. */
static void make_noise(rse_control *c, int64_t position) {
    const int64_t total = c->engine->model->recurrent * c->values;
    const uint64_t key = mix(c->seed ^ mix((uint64_t)position));
    uint64_t bits = 0;
    for (int64_t i = 0; i < total; i++) {
        bits = i % 64 == 0 ? mix(key + (uint64_t)i) : bits >> 1;
        const float error = c->rounded[i] - c->exact[i];
        c->noisy[i] = c->exact[i] + ((bits & 1) != 0 ? error : -error);
    }
}

rse_status rse_control_before(rse_control *c, rse_session *session, rse_error *err) {
    rse_engine *engine = c->engine;
    const int32_t layers = engine->model->recurrent, slot = session->slot, first = 0;
    RSE_TRY(rse_session_commit(session, RSE_ACCEPT_ALL, err));
    const int64_t position = session->position, L = engine->options.window;
    if ((position - (int64_t)(session->id % (uint64_t)L)) % L != 0) {
        return RSE_OK;
    }
    RSE_TRY(bind(engine, engine->cache, c->exact, c->values, layers, err));
    RSE_TRY(rse_library(engine->context, rssm_cache_flush(engine->cache, 1, &slot, NULL, NULL), err));
    memcpy(c->rounded, c->exact, (size_t)(layers * c->values) * sizeof *c->exact);
    rssm_status status = rssm_cache_adopt(c->quantiser, 1, &first, &session->id, &position, NULL);
    RSE_TRY(rse_library(engine->context, status, err));
    make_noise(c, position);
    return bind(engine, engine->cache, c->noisy, c->values, layers, err);
}

/* ---- States in any format ------------------------------------------------------------------------------- */

/* Writes the states of `layers` layers of a cache's slot, by way of a file and a reader that keeps no history. */
static rse_status read_cache(const rse_engine *engine, rssm_cache *cache, int32_t slot, int32_t first, int32_t layers,
                             float *states, rse_error *err) {
    const rse_state_options plain = {.checkpoint_dtype = RSSM_DTYPE_F32};
    const int64_t bytes = rssm_cache_export_bytes(cache, slot, 0);
    int64_t written;
    rssm_cache *reader = NULL;
    void *file = bytes > 0 ? malloc((size_t)bytes) : NULL;
    if (file == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for a state of %lld bytes", (long long)bytes);
    }
    rse_status status = rse_library(engine->context, rssm_cache_export(cache, slot, 0, file, bytes, &written), err);
    if (status == RSE_OK) {
        status = make_cache(engine, &plain, 1, first, layers, &reader, err);
    }
    if (status == RSE_OK) {
        status = bind(engine, reader, states, state_values(engine->model), layers, err);
    }
    for (int32_t i = 0; i < engine->model->blocks && status == RSE_OK; i++) {
        const rse_block *block = &engine->model->block[i];
        if (block->kind == RSE_BLOCK_MIXER && block->mixer.index >= first && block->mixer.index < first + layers) {
            rssm_status set = rssm_cache_set_weights(reader, block->mixer.index - first, &block->mixer.constants);
            status = rse_library(engine->context, set, err);
        }
    }
    if (status == RSE_OK) {
        status = rse_library(engine->context, rssm_cache_import(reader, 0, file, bytes), err);
    }
    rssm_cache_destroy(reader);
    free(file);
    return status;
}

rse_status rse_states_read(rse_engine *engine, rse_session *session, rse_control *control, float *states, int64_t *count,
                           rse_error *err) {
    const int64_t values = state_values(engine->model);
    *count = engine->model->recurrent * values;
    if (states == NULL) {
        return RSE_OK;
    }
    RSE_TRY(rse_session_commit(session, RSE_ACCEPT_ALL, err));
    if (control != NULL) { /* at a boundary the state is at hand; between them it is behind the history */
        memcpy(states, control->exact, (size_t)*count * sizeof *states);
        return RSE_OK;
    }
    for (int32_t i = 0; engine->snapshots != NULL && i < engine->model->recurrent; i++) {
        rssm_cache *cache = rse_snapshots_cache(engine->snapshots, i);
        RSE_TRY(read_cache(engine, cache, session->slot, i, 1, states + i * values, err));
    }
    return engine->snapshots != NULL ? RSE_OK
                                     : read_cache(engine, engine->cache, session->slot, 0, engine->model->recurrent, states, err);
}
