/* SPDX-License-Identifier: Apache-2.0 */
#include "sched/snapshot.h"
#include "sched/calibrate.h"

#include <stdlib.h>

struct rse_snapshots {
    const rse_engine *engine;
    rssm_cache **caches; /* [recurrent layers] */
    int32_t *stepped;    /* [sessions] tokens of the last step, if states before them are kept */
    /* of a layer's call: rows between those that run, which are declared prompts of nobody, so that nothing is
     * theirs */
    int32_t *slots, *offsets, *from, *to; /* [2 sessions + 1], [2 sessions + 2], [sessions], [sessions] */
    uint8_t *prefill;
};

static int32_t kept_slot(const rse_snapshots *s, int32_t slot, int32_t token) {
    return s->engine->options.sessions + slot * s->engine->options.step_tokens + token;
}

/* ---- Making ------------------------------------------------------------------------------------------- */

static rse_status make_cache(rse_snapshots *s, const rse_block *block, rse_error *err) {
    const rse_engine *engine = s->engine;
    const rse_engine_options *options = &engine->options;
    int64_t kept = options->step_tokens > 1 ? (int64_t)options->sessions * options->step_tokens : 0;
    rssm_cache_desc desc = {.struct_size = sizeof desc,
                            .spec = &engine->model->spec,
                            .layers = 1,
                            .first_layer = engine->first_layer + block->mixer.index, /* numbered as in one cache for all */
                            .slots = options->sessions + kept,
                            .window = 1,
                            .step_tokens = 1,
                            .method = RSSM_METHOD_CONVENTIONAL,
                            .io_dtype = options->io_dtype};
    rse_calibration_scheme(engine->calibration != NULL, &options->state, &desc);
    rssm_cache **cache = &s->caches[block->mixer.index];
    RSE_TRY(rse_library(engine->context, rssm_cache_create(engine->context, &desc, cache), err));
    RSE_TRY(rse_library(engine->context, rssm_cache_allocate(*cache), err));
    rssm_status status = rssm_cache_prepare(*cache, 2 * options->sessions + 1, rse_pool_threads(engine->pool));
    RSE_TRY(rse_library(engine->context, status, err));
    RSE_TRY(rse_calibration_apply(engine, &options->state, *cache, block->mixer.index, 1, err));
    return rse_library(engine->context, rssm_cache_set_weights(*cache, 0, &block->mixer.constants), err);
}

static rse_status make(rse_snapshots *s, rse_error *err) {
    const rse_model *model = s->engine->model;
    size_t sessions = (size_t)s->engine->options.sessions;
    s->caches = calloc((size_t)model->recurrent, sizeof(*s->caches));
    s->stepped = calloc(sessions, sizeof *s->stepped);
    s->slots = calloc(2 * sessions + 1, sizeof *s->slots);
    s->offsets = calloc(2 * sessions + 2, sizeof *s->offsets);
    s->prefill = calloc(2 * sessions + 1, sizeof *s->prefill);
    s->from = calloc(sessions, sizeof *s->from);
    s->to = calloc(sessions, sizeof *s->to);
    if (s->caches == NULL || s->stepped == NULL || s->slots == NULL || s->offsets == NULL ||
        s->prefill == NULL || s->from == NULL || s->to == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for the states of %zu sessions", sessions);
    }
    for (int32_t i = 0; i < model->blocks; i++) {
        if (model->block[i].kind == RSE_BLOCK_MIXER) {
            RSE_TRY(make_cache(s, &model->block[i], err));
        }
    }
    return RSE_OK;
}

rse_status rse_snapshots_create(const rse_engine *engine, rse_snapshots **snapshots, rse_error *err) {
    *snapshots = NULL;
    rse_snapshots *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for states");
    }
    made->engine = engine;
    rse_status status = make(made, err);
    if (status != RSE_OK) {
        rse_snapshots_destroy(made);
        return status;
    }
    *snapshots = made;
    return RSE_OK;
}

void rse_snapshots_destroy(rse_snapshots *s) {
    if (s == NULL) {
        return;
    }
    for (int32_t i = 0; s->caches != NULL && i < s->engine->model->recurrent; i++) {
        rssm_cache_destroy(s->caches[i]);
    }
    free(s->caches);
    free(s->stepped);
    free(s->slots);
    free(s->offsets);
    free(s->prefill);
    free(s->from);
    free(s->to);
    free(s);
}

/* ---- Between steps ------------------------------------------------------------------------------------ */

static rse_status copy_slots(const rse_snapshots *s, int32_t from, int32_t to, const uint64_t *id,
                             rse_error *err) {
    for (int32_t i = 0; from != to && i < s->engine->model->recurrent; i++) {
        RSE_TRY(rse_library(s->engine->context, rssm_cache_copy(s->caches[i], 1, &from, &to, id, NULL), err));
    }
    return RSE_OK;
}

rse_status rse_snapshots_reset(rse_snapshots *s, const rse_session *session, rse_error *err) {
    s->stepped[session->slot] = 0;
    for (int32_t i = 0; i < s->engine->model->recurrent; i++) {
        rssm_status status = rssm_cache_reset(s->caches[i], 1, &session->slot, &session->id, NULL, NULL);
        RSE_TRY(rse_library(s->engine->context, status, err));
    }
    return RSE_OK;
}

rse_status rse_snapshots_keep(rse_snapshots *s, const rse_session *session, int32_t count, rse_error *err) {
    int32_t stepped = s->stepped[session->slot];
    s->stepped[session->slot] = 0;
    return count < stepped ? copy_slots(s, kept_slot(s, session->slot, count), session->slot, NULL, err)
                           : RSE_OK;
}

rse_status rse_snapshots_copy(rse_snapshots *s, const rse_session *from, const rse_session *to,
                              rse_error *err) {
    bool pending = s->stepped[from->slot] > 0;
    s->stepped[to->slot] = 0;
    return copy_slots(s, pending ? kept_slot(s, from->slot, 0) : from->slot, to->slot, &to->id, err);
}

/* ---- Steps -------------------------------------------------------------------------------------------- */

/* A row of the call, and one before it for the tokens that are not its. */
static void add_row(rse_snapshots *s, rssm_batch *batch, int32_t slot, bool prompt, int32_t first,
                    int32_t tokens) {
    if (first > s->offsets[batch->rows]) {
        s->slots[batch->rows] = -1;
        s->prefill[batch->rows] = !prompt; /* of the other kind: its outputs are left alone */
        s->offsets[++batch->rows] = first;
    }
    s->slots[batch->rows] = slot;
    s->prefill[batch->rows] = prompt;
    s->offsets[++batch->rows] = first + tokens;
}

static rssm_batch empty_batch(rse_snapshots *s) {
    s->offsets[0] = 0;
    return (rssm_batch){
        .struct_size = sizeof(rssm_batch), .slots = s->slots, .offsets = s->offsets, .prefill = s->prefill};
}

static int32_t tokens_of(const rse_step *step, int32_t row, bool prompt) {
    bool mine = (step->batch.prefill[row] != 0) == prompt;
    return mine ? step->batch.offsets[row + 1] - step->batch.offsets[row] : 0;
}

static rssm_status run_prompts(rse_snapshots *s, rssm_cache *cache, const rse_step *step,
                               const rssm_layer_inputs *inputs, const rssm_output *out) {
    rssm_batch batch = empty_batch(s);
    for (int32_t row = 0; row < step->batch.rows; row++) {
        int32_t tokens = tokens_of(step, row, true);
        if (tokens > 0) {
            add_row(s, &batch, step->batch.slots[row], true, step->batch.offsets[row], tokens);
        }
    }
    if (batch.rows == 0) {
        return RSSM_OK;
    }
    rssm_status status = rssm_cache_begin(cache, &batch, NULL, NULL, NULL);
    return status == RSSM_OK ? rssm_cache_prefill(cache, 0, &batch, inputs, out, NULL) : status;
}

/* Token t of every row that has it, after the states before it were kept. */
static rssm_status run_token(rse_snapshots *s, rssm_cache *cache, const rse_step *step, int32_t t,
                             const rssm_layer_inputs *inputs, const rssm_output *out, bool *any) {
    rssm_batch batch = empty_batch(s);
    int32_t kept = 0;
    for (int32_t row = 0; row < step->batch.rows; row++) {
        int32_t tokens = tokens_of(step, row, false), slot = step->batch.slots[row];
        if (t >= tokens) {
            continue;
        }
        if (tokens > 1) {
            s->from[kept] = slot;
            s->to[kept++] = kept_slot(s, slot, t);
        }
        s->stepped[slot] = tokens > 1 ? tokens : 0;
        add_row(s, &batch, slot, false, step->batch.offsets[row] + t, 1);
    }
    *any = batch.rows > 0;
    rssm_status status = kept > 0 ? rssm_cache_copy(cache, kept, s->from, s->to, NULL, NULL) : RSSM_OK;
    if (status == RSSM_OK && *any) {
        status = rssm_cache_begin(cache, &batch, NULL, NULL, NULL);
    }
    return status == RSSM_OK && *any ? rssm_cache_decode(cache, 0, &batch, inputs, out, NULL) : status;
}

rssm_status rse_snapshots_run(void *user, const rse_step *step, int32_t mixer, const rssm_layer_inputs *inputs,
                              const rssm_output *out) {
    rse_snapshots *s = user;
    rssm_status status = run_prompts(s, s->caches[mixer], step, inputs, out);
    bool any = true;
    for (int32_t t = 0; any && status == RSSM_OK; t++) {
        status = run_token(s, s->caches[mixer], step, t, inputs, out, &any);
    }
    return status;
}

/* ---- Questions ---------------------------------------------------------------------------------------- */

rssm_cache *rse_snapshots_cache(const rse_snapshots *s, int32_t layer) {
    return s->caches[layer];
}

int64_t rse_snapshots_bytes(const rse_snapshots *s, int32_t part) {
    rssm_part_info info = {0};
    int32_t tokens = s->engine->options.step_tokens;
    if (rssm_cache_layout(s->caches[0], part, &info) != RSSM_OK || info.rank == 0) {
        return 0;
    }
    return info.bytes * s->engine->model->recurrent * (tokens > 1 ? tokens + 1 : 1);
}

rse_status rse_snapshots_count(const rse_snapshots *s, rse_engine_counters *counters, rse_error *err) {
    *counters = (rse_engine_counters){.window = 1, .kernel = "none"};
    for (int32_t i = 0; i < s->engine->model->recurrent; i++) {
        rssm_cache_info info = {.struct_size = sizeof info};
        RSE_TRY(rse_library(s->engine->context, rssm_cache_status(s->caches[i], &info), err));
        counters->bytes_read += info.bytes_read;
        counters->bytes_written += info.bytes_written;
        counters->flushes += info.flushes;
        counters->overflows += info.overflows;
        counters->kernel = info.kernel;
    }
    return RSE_OK;
}
