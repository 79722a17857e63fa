/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The multi-token prediction block as a drafter. At position i it takes the target's hidden state
 * h_i and the token at i + 1, and predicts the token at i + 2:
 *
 *     x = fc [ norm_e(embedding of the token) ; norm_h(h_i) ]
 *     x = attention block, MLP block;  out = norm(x);  logits = the target's output matrix times out
 *
 * Its attention has keys and values of its own, one position for each pair. A pair is run when the token after
 * it is known: pairs of a prompt with the prompt, those of kept tokens when drafts are next asked for. Further
 * drafts are made by feeding `out` back as the hidden state; their keys and values are cut off again.
 *
 * The block is run as a model of two blocks that is given its residual stream (rse_step.x).
 *
 * A sequence that came to be by other means than steps that this drafter saw (a file, a copy, a rollback) is
 * taken up where it stands: its attention then begins at that position.
 */
#include "draft/draft.h"
#include "sched/internal.h"

#include <stdlib.h>
#include <string.h>

enum { QUEUE_MAX = 64 }; /* hidden states that may wait: a prompt's do not pile up */

/* What the drafter holds of the sequence in a slot. */
typedef struct track {
    uint64_t life; /* of the session's sequence */
    int64_t base;  /* position of the first pair */
    int64_t done;  /* pairs that were run */
    rse_kv_seq kv;
    float *waiting; /* [queued][hidden] hidden states of pairs that were not */
    int64_t queued, capacity;
    int32_t tree_node; /* of the round: the last draft */
} track;

typedef struct mtp {
    rse_drafter base;
    rse_engine *engine;
    rse_model model; /* the target's, its blocks replaced */
    rse_kv_pool *pool;
    rse_forward *forward;
    rse_sampler *sampler;
    track *tracks; /* [sessions] */
    int32_t limit; /* most pairs of a pass */
    /* of a pass */
    int32_t *ids, *outputs;
    int64_t *positions;
    rse_attention_row *rows;
    float *x, *pair, *out, *logits; /* [limit][hidden], [limit][2 hidden], [limit][hidden], [sessions][vocab] */
} mtp;

/* ---- Tracks ------------------------------------------------------------------------------------------- */

static int64_t length(const rse_session *session) {
    return session->position + session->pending;
}

static track *track_of(mtp *m, const rse_session *session) {
    return &m->tracks[session->slot];
}

static void start_track(mtp *m, track *t, const rse_session *session, int64_t position) {
    rse_kv_seq_truncate(m->pool, &t->kv, 0);
    t->life = session->life;
    t->base = position;
    t->done = 0;
    t->queued = 0;
}

static bool follows(const track *t, const rse_session *session, int64_t position) {
    return t->life == session->life && t->base + t->done + t->queued == position;
}

static rse_status queue(mtp *m, track *t, const float *const *hidden, int32_t count, rse_error *err) {
    int64_t size = m->model.config.hidden;
    if (t->queued + count > t->capacity) {
        int64_t capacity = t->queued + count + 32;
        float *grown = realloc(t->waiting, (size_t)(capacity * size) * sizeof *grown);
        if (grown == NULL) {
            return rse_fail(err, RSE_ERROR_MEMORY, "no memory for %lld hidden states", (long long)capacity);
        }
        t->waiting = grown;
        t->capacity = capacity;
    }
    for (int32_t i = 0; i < count; i++) {
        memcpy(t->waiting + t->queued++ * size, hidden[i], (size_t)size * sizeof(float));
    }
    return RSE_OK;
}

static void unqueue(mtp *m, track *t, int64_t count) {
    int64_t size = m->model.config.hidden;
    t->done += count;
    t->queued -= count;
    memmove(t->waiting, t->waiting + count * size, (size_t)(t->queued * size) * sizeof(float));
}

/* ---- A pass ------------------------------------------------------------------------------------------- */

/* x = fc [ norm_e(embedding) ; norm_h(hidden) ] for pairs whose ids and hidden states (in m->x) are set. */
static void mix(mtp *m, int64_t pairs) {
    const rse_model *target = m->engine->model;
    const rse_mtp *weights = target->mtp;
    int64_t size = m->model.config.hidden;
    bool bf16 = m->engine->options.io_dtype == RSSM_DTYPE_BF16;
    const rse_math *math = m->engine->math;
    float eps = m->model.config.norm_eps;
    for (int64_t i = 0; i < pairs; i++) {
        rse_matrix_row(math, &target->embedding, m->ids[i], m->pair + 2 * i * size);
    }
    rse_rms_norm(math, pairs, size, m->pair, 2 * size, weights->norm_embedding, eps, m->pair, 2 * size);
    rse_rms_norm(math, pairs, size, m->x, size, weights->norm_hidden, eps, m->pair + size, 2 * size);
    if (bf16) {
        rse_round_bf16(math, pairs, 2 * size, m->pair, 2 * size, m->pair, 2 * size);
    }
    rse_matmul(math, &weights->fc.w, weights->fc.bias, pairs, m->pair, 2 * size, m->x, size);
}

/* Runs pairs: rows, ids, positions and hidden states are set. Outputs of the last pair of each row: logits, and
 * m->out. */
static rse_status pass(mtp *m, int32_t rows, int64_t pairs, int32_t outputs, rse_error *err) {
    mix(m, pairs);
    rse_step step = {.batch = {.struct_size = sizeof step.batch, .rows = rows},
                     .tokens = pairs,
                     .x = m->x,
                     .positions = m->positions,
                     .kv_rows = m->rows,
                     .attend = m->rows,
                     .attends = rows,
                     .outputs = outputs,
                     .output_tokens = m->outputs};
    return rse_forward_run(m->forward, &step, outputs > 0 ? m->logits : NULL, outputs > 0 ? m->out : NULL, err);
}

/* Puts `count` pairs of a track into the pass, from its next one on. The token of the last pair may be the
 * root. */
static rse_status add_pairs(mtp *m, track *t, const rse_session *session, int32_t root, int64_t count,
                            int32_t row, int64_t *pairs, rse_error *err) {
    int64_t size = m->model.config.hidden;
    RSE_TRY(rse_kv_seq_reserve(m->pool, &t->kv, t->done, t->done + count, err));
    m->rows[row] = (rse_attention_row){&t->kv, t->done, count, *pairs};
    memcpy(m->x + *pairs * size, t->waiting, (size_t)(count * size) * sizeof(float));
    for (int64_t i = 0; i < count; i++) {
        int64_t next = t->base + t->done + i + 1;
        m->ids[*pairs] = next < length(session) ? session->ids.data[next] : root;
        m->positions[(*pairs)++] = t->base + t->done + i;
    }
    return RSE_OK;
}

/* Runs pairs that wait until `left` are left. */
static rse_status catch_up(mtp *m, track *t, const rse_session *session, int64_t left, rse_error *err) {
    while (t->queued > left) {
        int64_t count = t->queued - left < m->limit ? t->queued - left : m->limit, pairs = 0;
        RSE_TRY(add_pairs(m, t, session, 0, count, 0, &pairs, err));
        RSE_TRY(pass(m, 1, pairs, 0, err));
        unqueue(m, t, count);
    }
    return RSE_OK;
}

/* ---- Drafting ----------------------------------------------------------------------------------------- */

static rse_status observe(rse_drafter *drafter, const rse_session *session, const float *const *hidden,
                          int32_t count, rse_error *err) {
    mtp *m = (mtp *)drafter;
    track *t = track_of(m, session);
    if (!follows(t, session, length(session) - count)) {
        start_track(m, t, session, length(session) - count);
    }
    RSE_TRY(queue(m, t, hidden, count, err));
    return t->queued > QUEUE_MAX ? catch_up(m, t, session, 1, err) : RSE_OK;
}

/* The rows that can be drafted for, whose waiting pairs are in the pass. */
static rse_status first_pass(mtp *m, rse_draft_row *rows, int32_t count, int32_t *active, int32_t *live,
                             rse_error *err) {
    int64_t pairs = 0;
    *live = 0;
    for (int32_t i = 0; i < count; i++) {
        const rse_session *session = rows[i].session;
        track *t = track_of(m, session);
        t->tree_node = 0;
        if (rows[i].depth < 1 || !follows(t, session, length(session)) || t->queued == 0) {
            continue;
        }
        rse_error room = {0}; /* no pages for its keys and values: nothing is drafted */
        if (pairs + t->queued > m->limit ||
            add_pairs(m, t, session, rows[i].tree.tokens[0], t->queued, *live, &pairs, &room) != RSE_OK) {
            continue;
        }
        m->outputs[*live] = (int32_t)pairs - 1;
        active[(*live)++] = i;
    }
    return *live > 0 ? pass(m, *live, pairs, *live, err) : RSE_OK;
}

/* Feeds the drafts of depth `depth` back; rows that have enough of them drop out. */
static rse_status next_pass(mtp *m, rse_draft_row *rows, int32_t depth, int32_t *active, int32_t *live,
                            rse_error *err) {
    int64_t size = m->model.config.hidden;
    int32_t kept = 0;
    for (int32_t j = 0; j < *live; j++) {
        const rse_draft_row *row = &rows[active[j]];
        track *t = track_of(m, row->session);
        rse_error room = {0};
        if (row->depth <= depth || rse_kv_seq_reserve(m->pool, &t->kv, t->done, t->done + depth, &room) != RSE_OK) {
            continue;
        }
        memcpy(m->x + kept * size, m->out + j * size, (size_t)size * sizeof(float));
        m->rows[kept] = (rse_attention_row){&t->kv, t->done + depth - 1, 1, kept};
        m->ids[kept] = row->tree.tokens[t->tree_node];
        m->positions[kept] = t->base + t->done + depth - 1;
        m->outputs[kept] = kept;
        active[kept++] = active[j];
    }
    *live = kept;
    return kept > 0 ? pass(m, kept, kept, kept, err) : RSE_OK;
}

static rse_status propose(rse_drafter *drafter, rse_draft_row *rows, int32_t count, rse_error *err) {
    mtp *m = (mtp *)drafter;
    int64_t vocab = m->model.config.vocab;
    int32_t *active = m->outputs + m->limit, live, started;
    for (int32_t i = 0; i < count; i++) {
        if (rows[i].depth > 0) {
            RSE_TRY(catch_up(m, track_of(m, rows[i].session), rows[i].session, RSSM_STEP_TOKENS_MAX, err));
        }
    }
    RSE_TRY(first_pass(m, rows, count, active, &live, err));
    started = live;
    for (int32_t j = 0; j < live; j++) {
        track *t = track_of(m, rows[active[j]].session);
        unqueue(m, t, t->queued);
    }
    for (int32_t depth = 1; live > 0; depth++) {
        for (int32_t j = 0; j < live; j++) {
            rse_draft_row *row = &rows[active[j]];
            RSE_TRY(rse_tree_grow(&row->tree, m->sampler, row->sampling, m->logits + j * vocab,
                                  length(row->session) + depth, row->width,
                                  &track_of(m, row->session)->tree_node, err));
        }
        RSE_TRY(next_pass(m, rows, depth, active, &live, err));
    }
    for (int32_t i = 0; started > 0 && i < count;
         i++) { /* pairs of drafts are of no use once they were verified */
        track *t = track_of(m, rows[i].session);
        rse_kv_seq_truncate(m->pool, &t->kv, t->done);
    }
    return RSE_OK;
}

/* ---- Making ------------------------------------------------------------------------------------------- */

static void destroy(rse_drafter *drafter) {
    mtp *m = (mtp *)drafter;
    for (int32_t i = 0; m->tracks != NULL && i < m->engine->options.sessions; i++) {
        free(m->tracks[i].kv.pages);
        free(m->tracks[i].waiting);
    }
    rse_forward_destroy(m->forward);
    rse_kv_pool_destroy(m->pool);
    rse_sampler_destroy(m->sampler);
    void *arrays[] = {m->tracks, m->ids, m->outputs, m->positions, m->rows, m->x, m->pair, m->out, m->logits};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        free(arrays[i]);
    }
    free(m);
}

static rse_status make_arrays(mtp *m, rse_error *err) {
    size_t sessions = (size_t)m->engine->options.sessions, limit = (size_t)m->limit;
    size_t size = (size_t)m->model.config.hidden;
    m->tracks = calloc(sessions, sizeof *m->tracks);
    m->ids = calloc(limit, sizeof *m->ids);
    m->outputs = calloc(limit + sessions, sizeof *m->outputs);
    m->positions = calloc(limit, sizeof *m->positions);
    m->rows = calloc(limit, sizeof *m->rows);
    m->x = calloc(limit * size, sizeof *m->x);
    m->pair = calloc(2 * limit * size, sizeof *m->pair);
    m->out = calloc(limit * size, sizeof *m->out);
    m->logits = calloc(sessions * (size_t)m->model.config.vocab, sizeof *m->logits);
    bool all = m->tracks != NULL && m->ids != NULL && m->outputs != NULL && m->positions != NULL &&
               m->rows != NULL && m->x != NULL && m->pair != NULL && m->out != NULL && m->logits != NULL;
    return all ? RSE_OK : rse_fail(err, RSE_ERROR_MEMORY, "no memory for the prediction block's passes");
}

static rse_status make(mtp *m, rse_error *err) {
    const rse_engine *engine = m->engine;
    const rse_config_attention *shape = &engine->model->config.attention;
    const rse_kv_desc *kv = rse_kv_pool_desc(engine->kv);
    m->model = *engine->model;
    m->model.blocks = 2;
    m->model.block = engine->model->mtp->block;
    m->model.norm = engine->model->mtp->norm;
    m->model.recurrent = 0;
    m->model.attention = 1;
    m->limit = (RSSM_STEP_TOKENS_MAX + 1) * engine->options.sessions;
    rse_kv_desc pages = {.layers = 1,
                         .kv_heads = shape->kv_heads,
                         .head_dim = shape->head_dim,
                         .dtype = engine->options.io_dtype,
                         .pages = kv->pages + engine->options.sessions};
    RSE_TRY(rse_kv_pool_create(&pages, &m->pool, err));
    RSE_TRY(rse_sampler_create(engine->model->config.vocab, &m->sampler, err));
    rse_forward_desc forward = {.model = &m->model,
                                .math = engine->math,
                                .context = engine->context,
                                .kv = m->pool,
                                .io_dtype = engine->options.io_dtype,
                                .tokens = m->limit};
    RSE_TRY(rse_forward_create(&forward, &m->forward, err));
    return make_arrays(m, err);
}

rse_status rse_drafter_mtp(rse_engine *engine, rse_drafter **drafter, rse_error *err) {
    *drafter = NULL;
    if (engine->model->mtp == NULL) {
        return rse_fail(err, RSE_ERROR_UNSUPPORTED, "the model (%s) has no block for multi-token prediction",
                        engine->model->config.model_type);
    }
    mtp *m = calloc(1, sizeof *m);
    if (m == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for a drafter");
    }
    m->engine = engine;
    m->base = (rse_drafter){
        .name = "mtp", .hidden = true, .propose = propose, .observe = observe, .destroy = destroy};
    rse_status status = make(m, err);
    if (status != RSE_OK) {
        destroy(&m->base);
        return status;
    }
    *drafter = &m->base;
    return RSE_OK;
}
