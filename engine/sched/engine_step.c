/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step: check every row, find room for keys and values, let the library keep or drop what is pending and open
 * the step, run the pass. Until rssm_cache_begin() has succeeded nothing has changed.
 */
#include "sched/internal.h"
#include "sched/snapshot.h"

#include <stdlib.h>
#include <string.h>

bool rse_session_whole(const rse_session *session) {
    const rse_engine *engine = session->engine;
    return session->pending_prompt || engine->options.method == RSSM_METHOD_CONVENTIONAL ||
           (engine->snapshots != NULL && session->stepped == 1);
}

int32_t rse_session_keeps(const rse_session *session, int32_t accepted) {
    bool all = rse_session_whole(session) || accepted == RSE_ACCEPT_ALL || accepted > session->pending;
    return all ? session->pending : accepted;
}

void rse_session_kept(rse_session *session, int32_t kept) {
    session->position += kept;
    session->pending = 0;
    session->pending_prompt = false;
    session->ids.count = (size_t)session->position;
}

static rse_status check_tokens(const rse_engine *engine, const rse_row *row, rse_error *err) {
    int32_t vocab = engine->model->config.vocab;
    for (int32_t i = 0; i < row->count; i++) {
        if (row->tokens[i] < 0 || row->tokens[i] >= vocab) {
            return rse_fail(err, RSE_ERROR_USAGE, "token %d of the row is %d; the vocabulary has %d", i,
                            row->tokens[i], vocab);
        }
    }
    return RSE_OK;
}

static int32_t parent_of(const rse_row *row, int32_t t) {
    return row->parents != NULL ? row->parents[t] : t - 1;
}

/* How many leading tokens of a row follow each other. */
static int32_t chain_of(const rse_row *row) {
    int32_t t = 0;
    while (t < row->count && parent_of(row, t) == t - 1) {
        t++;
    }
    return t;
}

static rse_status check_parents(const rse_row *row, rse_error *err) {
    if (row->prompt && row->parents != NULL) {
        return rse_fail(err, RSE_ERROR_USAGE, "the row is of a prompt and has parents; only drafts form trees");
    }
    if (row->session->engine->snapshots != NULL && !row->prompt && chain_of(row) < row->count) {
        return rse_fail(err, RSE_ERROR_USAGE, "the row is a tree; the snapshot method takes chains");
    }
    for (int32_t i = 0; row->parents != NULL && i < row->count; i++) {
        if (row->parents[i] < -1 || row->parents[i] >= i) {
            return rse_fail(err, RSE_ERROR_USAGE,
                            "parent of token %d of the row is %d; between -1 and %d are possible", i,
                            row->parents[i], i - 1);
        }
    }
    return RSE_OK;
}

static rse_status check_row(const rse_engine *engine, const rse_row *row, rse_error *err) {
    const rse_session *session = row->session;
    if (session == NULL || session->engine != engine) {
        return rse_fail(err, RSE_ERROR_USAGE, "the row's session is not one of this engine");
    }
    RSE_TRY(rse_session_usable(session, err));
    if (row->count < 0) {
        return rse_fail(err, RSE_ERROR_USAGE, "the row has %d tokens; 0 is the least", row->count);
    }
    if (row->count > 0 && row->tokens == NULL) {
        return rse_fail(err, RSE_ERROR_USAGE, "the row has %d tokens and no array of them", row->count);
    }
    int32_t most = engine->options.step_tokens;
    if (!row->prompt && row->count > most) {
        return rse_fail(err, RSE_ERROR_USAGE, "the row has %d tokens; this engine takes %d", row->count, most);
    }
    if (row->accepted != RSE_ACCEPT_ALL && (row->accepted < 0 || row->accepted > session->pending)) {
        return rse_fail(err, RSE_ERROR_USAGE, "accepted is %d; %d tokens are pending", row->accepted,
                        session->pending);
    }
    if (row->outputs < 0 || row->outputs > row->count) {
        return rse_fail(err, RSE_ERROR_USAGE, "outputs is %d; the row has %d tokens", row->outputs, row->count);
    }
    int64_t end = session->position + rse_session_keeps(session, row->accepted) + row->count;
    if (end > engine->model->config.max_positions) {
        return rse_fail(err, RSE_ERROR_USAGE, "the sequence would have %lld tokens; the model takes %d",
                        (long long)end, engine->model->config.max_positions);
    }
    RSE_TRY(check_parents(row, err));
    return check_tokens(engine, row, err);
}

static rse_status check_rows(const rse_engine *engine, const rse_row *rows, int32_t count, rse_error *err) {
    if (count < 1 || count > engine->options.sessions) {
        return rse_fail(err, RSE_ERROR_USAGE, "the step has %d rows; between 1 and %d are possible", count,
                        engine->options.sessions);
    }
    int64_t tokens = 0;
    for (int32_t i = 0; i < count; i++) {
        RSE_TRY(check_row(engine, &rows[i], err));
        tokens += rows[i].count;
        for (int32_t j = 0; j < i; j++) {
            if (rows[j].session == rows[i].session) {
                return rse_fail(err, RSE_ERROR_USAGE, "rows %d and %d are of the same session", j, i);
            }
        }
    }
    if (tokens > engine->options.batch_tokens) {
        return rse_fail(err, RSE_ERROR_USAGE, "the step has %lld tokens; this engine takes %d",
                        (long long)tokens, engine->options.batch_tokens);
    }
    return RSE_OK;
}

static rse_status ids_room(rse_ids *ids, int64_t count, rse_error *err) {
    if ((size_t)count <= ids->capacity) {
        return RSE_OK;
    }
    size_t capacity = (size_t)count + (size_t)count / 2 + 64;
    int32_t *grown = realloc(ids->data, capacity * sizeof *grown);
    if (grown == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for %zu token ids", capacity);
    }
    ids->data = grown;
    ids->capacity = capacity;
    return RSE_OK;
}

/* Gives back pages beyond what each session holds now. */
static void trim_rows(rse_engine *engine, const rse_row *rows, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        rse_session *session = rows[i].session;
        rse_kv_seq_truncate(engine->kv, &session->kv, session->position + session->pending);
    }
}

static void close_branches(rse_engine *engine) {
    rse_step_arrays *a = &engine->arrays;
    for (int32_t i = 0; i < a->branch_count; i++) {
        rse_kv_branch_close(engine->kv, a->branches[i].start, &a->branches[i].seq);
    }
    a->branch_count = 0;
}

/* Branches for the tokens of a row that are not on its leading chain. */
static rse_status open_branches(rse_engine *engine, const rse_row *row, rse_error *err) {
    rse_session *session = row->session;
    int64_t start = session->position + rse_session_keeps(session, row->accepted);
    for (int32_t t = row->prompt ? row->count : chain_of(row); t < row->count; t++) {
        rse_attention_branch *branch = &engine->arrays.branches[engine->arrays.branch_count];
        branch->trunk = &session->kv;
        branch->start = start;
        branch->depth = 0;
        for (int32_t at = t; at >= 0; at = parent_of(row, at)) {
            branch->depth++;
        }
        for (int32_t at = t, i = branch->depth; at >= 0; at = parent_of(row, at)) {
            branch->path[--i] = at;
        }
        RSE_TRY(rse_kv_branch_open(engine->kv, &session->kv, start, branch->depth, &branch->seq, err));
        engine->arrays.branch_count++;
    }
    return RSE_OK;
}

static rse_status reserve_rows(rse_engine *engine, const rse_row *rows, int32_t count, rse_error *err) {
    engine->arrays.branch_count = 0;
    for (int32_t i = 0; i < count; i++) {
        rse_session *session = rows[i].session;
        int64_t end = session->position + rse_session_keeps(session, rows[i].accepted) + rows[i].count;
        rse_status status = ids_room(&session->ids, end, err);
        if (status == RSE_OK) {
            status = rse_kv_seq_reserve(engine->kv, &session->kv, end - rows[i].count, end, err);
        }
        if (status == RSE_OK) {
            status = open_branches(engine, &rows[i], err);
        }
        if (status != RSE_OK) {
            close_branches(engine);
            trim_rows(engine, rows, i + 1);
            return status;
        }
    }
    return RSE_OK;
}

/* Attention of a row: the leading chain as one piece, then the branches from *branch on. */
static void plan_attention(rse_engine *engine, const rse_row *row, const rse_attention_row *whole,
                           int32_t *branch, rse_step *step) {
    rse_step_arrays *a = &engine->arrays;
    int32_t chain = row->prompt ? row->count : chain_of(row);
    a->attend[step->attends] = *whole;
    a->attend[step->attends++].tokens = chain;
    for (int32_t t = chain; t < row->count; t++) {
        const rse_attention_branch *b = &a->branches[(*branch)++];
        a->attend[step->attends++] = (rse_attention_row){&b->seq, b->start + b->depth - 1, 1, whole->first + t};
        a->positions[whole->first + t] = b->start + b->depth - 1;
    }
}

/* Fills the arrays of the engine and of the step. Positions are those after the commit. */
static void plan(rse_engine *engine, const rse_row *rows, int32_t count, rse_step *step) {
    rse_step_arrays *a = &engine->arrays;
    int32_t tokens = 0;
    int32_t outputs = 0;
    int32_t branch = 0;
    *step = (rse_step){0};
    for (int32_t i = 0; i < count; i++) {
        const rse_row *row = &rows[i];
        rse_session *session = row->session;
        a->slots[i] = session->slot;
        a->offsets[i] = tokens;
        a->prefill[i] = row->prompt && row->count > 0;
        a->accepted[i] = rse_session_keeps(session, row->accepted);
        memcpy(a->paths + (int64_t)i * engine->options.step_tokens, session->path,
               (size_t)engine->options.step_tokens * sizeof *a->paths);
        int64_t start = session->position + a->accepted[i];
        a->kv_rows[i] = (rse_attention_row){&session->kv, start, row->count, tokens};
        step->decodes = step->decodes || (!row->prompt && row->count > 0);
        step->prompts = step->prompts || a->prefill[i] != 0;
        for (int32_t t = 0; t < row->count; t++) {
            a->ids[tokens] = row->tokens[t];
            a->positions[tokens] = start + t;
            a->parents[tokens] = parent_of(row, t);
            if (t >= row->count - row->outputs) {
                a->outputs[outputs++] = tokens;
            }
            tokens++;
        }
        plan_attention(engine, row, &a->kv_rows[i], &branch, step);
    }
    a->offsets[count] = tokens;
    step->batch = (rssm_batch){
        .struct_size = sizeof step->batch,
        .rows = count,
        .slots = a->slots,
        .offsets = a->offsets,
        .parents = branch > 0 ? a->parents : NULL,
        .prefill = a->prefill,
    };
    step->tokens = tokens;
    step->ids = a->ids;
    step->positions = a->positions;
    step->kv_rows = a->kv_rows;
    step->attend = a->attend;
    step->branches = a->branches;
    step->branch_count = branch;
    step->outputs = outputs;
    step->output_tokens = a->outputs;
    step->hidden = engine->hidden;
}

static rse_status begin(rse_engine *engine, const rse_step *step, const rse_row *rows, rse_error *err) {
    for (int32_t i = 0; engine->snapshots != NULL && i < step->batch.rows; i++) {
        RSE_TRY(rse_snapshots_keep(engine->snapshots, rows[i].session, engine->arrays.accepted[i], err));
    }
    if (engine->cache == NULL) {
        return RSE_OK;
    }
    rssm_status status =
        rssm_cache_begin(engine->cache, &step->batch, engine->arrays.accepted, engine->arrays.paths, NULL);
    return rse_library(engine->context, status, err);
}

static rse_status pass(rse_engine *engine, rse_step *step, const rse_row *rows, int32_t count, float *logits,
                       float *hidden, rse_error *err) {
    if (step->tokens == 0) {
        return RSE_OK;
    }
    if (engine->shadow != NULL) {
        rse_shadow_watch(engine->shadow, rows, count);
        step->inputs = rse_shadow_inputs;
        step->inputs_user = engine->shadow;
    }
    RSE_TRY(rse_forward_run(engine->forward, step, logits, hidden, err));
    return rse_shadow_after(engine->shadow, rows, count, err);
}

/* The kept tokens are kept, and the new ones are pending. */
static rse_status advance(rse_engine *engine, const rse_row *rows, int32_t count, rse_error *err) {
    for (int32_t i = 0; i < count; i++) {
        rse_session *session = rows[i].session;
        int32_t dropped = session->pending - engine->arrays.accepted[i];
        rse_session_kept(session, engine->arrays.accepted[i]);
        if (dropped > 0) {
            RSE_TRY(rse_shadow_truncate(engine->shadow, session, err));
        }
        for (int32_t t = 0; t < rows[i].count; t++) {
            session->ids.data[session->ids.count++] = rows[i].tokens[t];
        }
        session->pending = rows[i].count;
        for (int32_t t = 0; !rows[i].prompt && t < rows[i].count; t++) {
            session->path[t] = t;
            session->parents[t] = parent_of(&rows[i], t);
        }
        session->pending_prompt = rows[i].prompt && rows[i].count > 0;
        session->stepped = rows[i].count;
    }
    trim_rows(engine, rows, count);
    return RSE_OK;
}

rse_status rse_engine_step(rse_engine *engine, const rse_row *rows, int32_t count, float *logits, float *hidden,
                           rse_error *err) {
    RSE_TRY(check_rows(engine, rows, count, err));
    RSE_TRY(reserve_rows(engine, rows, count, err));
    rse_step step;
    rse_status status = rse_shadow_before(engine->shadow, rows, count, err);
    if (status == RSE_OK) {
        plan(engine, rows, count, &step);
        status = begin(engine, &step, rows, err);
    }
    if (status != RSE_OK) {
        close_branches(engine);
        trim_rows(engine, rows, count);
        return status;
    }
    status = advance(engine, rows, count, err);
    if (status == RSE_OK) {
        status = pass(engine, &step, rows, count, logits, hidden, err);
    }
    close_branches(engine);
    for (int32_t i = 0; status != RSE_OK && i < count; i++) {
        rows[i].session->broken = true;
    }
    return status;
}
