/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A second model of the same vocabulary as a drafter: an engine of its own, with a session beside each of the
 * target's. Certain tokens are fed to it as they become known; drafts are never committed: for each further one
 * the drafts before it are run again as one step, whose state is read once however many they are, and dropped.
 */
#include "draft/draft.h"
#include "sched/internal.h"

#include <stdlib.h>

typedef struct track {
    rse_session *session;                /* of the second engine */
    uint64_t life;                       /* of the target's sequence that it follows */
    int64_t fed;                         /* tokens of that sequence that it has, kept or pending */
    int32_t tree_node;                   /* of the round: the last draft */
    int32_t chain[RSSM_STEP_TOKENS_MAX]; /* of the round: the first drafts at each depth */
} track;

typedef struct second {
    rse_drafter base;
    rse_engine *target, *engine;
    rse_sampler *sampler;
    track *tracks; /* [sessions of the target] */
    rse_row *rows; /* [sessions] of a step */
    int32_t *ids;  /* [sessions][T_max] of certain tokens */
    int32_t *active;
    float *logits; /* [sessions][vocab] */
} second;

static int64_t length(const rse_session *session) {
    return session->position + session->pending;
}

/* Feeds all but the last few certain tokens as a prompt. */
static rse_status feed_prompt(second *s, track *t, const rse_session *session, rse_error *err) {
    while (length(session) + 1 - t->fed > RSSM_STEP_TOKENS_MAX) {
        int64_t left = length(session) - t->fed;
        int32_t count =
            (int32_t)(left < s->engine->options.batch_tokens ? left : s->engine->options.batch_tokens);
        rse_row row = {.session = t->session,
                       .tokens = session->ids.data + t->fed,
                       .count = count,
                       .accepted = RSE_ACCEPT_ALL,
                       .prompt = true};
        RSE_TRY(rse_engine_step(s->engine, &row, 1, NULL, NULL, err));
        t->fed += count;
    }
    return RSE_OK;
}

/* The row that brings the certain tokens that the second model lacks; the root is the last of them. */
static rse_status certain_row(second *s, rse_draft_row *draft, int32_t index, rse_row *row, rse_error *err) {
    const rse_session *session = draft->session;
    track *t = &s->tracks[session->slot];
    if (t->session == NULL) {
        RSE_TRY(rse_session_open(s->engine, session->id, &t->session, err));
    }
    if (t->life != session->life || t->fed > length(session)) {
        RSE_TRY(rse_session_reset(t->session, session->id, err));
        t->life = session->life;
        t->fed = 0;
    }
    RSE_TRY(feed_prompt(s, t, session, err));
    int32_t *ids = s->ids + (int64_t)index * RSSM_STEP_TOKENS_MAX, count = 0;
    while (t->fed <= length(session)) {
        ids[count++] = t->fed < length(session) ? session->ids.data[t->fed] : draft->tree.tokens[0];
        t->fed++;
    }
    t->tree_node = 0;
    *row = (rse_row){
        .session = t->session, .tokens = ids, .count = count, .accepted = RSE_ACCEPT_ALL, .outputs = 1};
    return RSE_OK;
}

/* Rows that have room for a root and as many drafts in the second model. */
static rse_status first_rows(second *s, rse_draft_row *rows, int32_t count, int32_t *live, rse_error *err) {
    *live = 0;
    for (int32_t i = 0; i < count; i++) {
        if (rows[i].depth > 0 &&
            length(rows[i].session) + rows[i].depth < s->engine->model->config.max_positions) {
            RSE_TRY(certain_row(s, &rows[i], *live, &s->rows[*live], err));
            s->active[(*live)++] = i;
        }
    }
    return RSE_OK;
}

/* The drafts so far, to be run again for one more; rows that have enough of them drop out. */
static rse_status next_rows(second *s, rse_draft_row *rows, int32_t depth, int32_t *live, rse_error *err) {
    int32_t kept = 0;
    for (int32_t j = 0; j < *live; j++) {
        const rse_draft_row *draft = &rows[s->active[j]];
        track *t = &s->tracks[draft->session->slot];
        t->chain[depth - 1] = draft->tree.tokens[t->tree_node];
        if (depth > 1) {
            RSE_TRY(rse_session_choose(t->session, NULL, 0, err));
        }
        if (draft->depth > depth) {
            s->rows[kept] = (rse_row){.session = t->session,
                                      .tokens = t->chain,
                                      .count = depth,
                                      .accepted = RSE_ACCEPT_ALL,
                                      .outputs = 1};
            s->active[kept++] = s->active[j];
        }
    }
    *live = kept;
    return RSE_OK;
}

static rse_status propose(rse_drafter *drafter, rse_draft_row *rows, int32_t count, rse_error *err) {
    second *s = (second *)drafter;
    int32_t vocab = s->engine->model->config.vocab, live;
    RSE_TRY(first_rows(s, rows, count, &live, err));
    for (int32_t depth = 1; live > 0; depth++) {
        RSE_TRY(rse_engine_step(s->engine, s->rows, live, s->logits, NULL, err));
        for (int32_t j = 0; j < live; j++) {
            rse_draft_row *row = &rows[s->active[j]];
            RSE_TRY(rse_tree_grow(&row->tree, s->sampler, row->sampling, s->logits + (int64_t)j * vocab,
                                  length(row->session) + depth, row->width,
                                  &s->tracks[row->session->slot].tree_node, err));
        }
        RSE_TRY(next_rows(s, rows, depth, &live, err));
    }
    return RSE_OK;
}

static void destroy(rse_drafter *drafter) {
    second *s = (second *)drafter;
    rse_engine_close(s->engine); /* and its sessions */
    rse_sampler_destroy(s->sampler);
    free(s->tracks);
    free(s->rows);
    free(s->ids);
    free(s->active);
    free(s->logits);
    free(s);
}

static rse_status make(second *s, const char *directory, rse_error *err) {
    const rse_engine_options *target = &s->target->options;
    int32_t needed = target->sessions * RSSM_STEP_TOKENS_MAX, vocab = s->target->model->config.vocab;
    rse_engine_options options = {.threads = target->threads,
                                  .io_dtype = target->io_dtype,
                                  .window = target->window,
                                  .step_tokens = RSSM_STEP_TOKENS_MAX,
                                  .sessions = target->sessions,
                                  .batch_tokens = needed > target->batch_tokens ? needed : target->batch_tokens,
                                  .isa_mask = target->isa_mask};
    RSE_TRY(rse_engine_open(directory, &options, &s->engine, err));
    if (s->engine->model->config.vocab != vocab) {
        return rse_fail(err, RSE_ERROR_MISMATCH,
                        "%s has a vocabulary of %d tokens; the model to draft for has %d", directory,
                        s->engine->model->config.vocab, vocab);
    }
    size_t sessions = (size_t)target->sessions;
    s->tracks = calloc(sessions, sizeof *s->tracks);
    s->rows = calloc(sessions, sizeof *s->rows);
    s->ids = calloc(sessions * RSSM_STEP_TOKENS_MAX, sizeof *s->ids);
    s->active = calloc(sessions, sizeof *s->active);
    s->logits = calloc(sessions * (size_t)vocab, sizeof *s->logits);
    if (s->tracks == NULL || s->rows == NULL || s->ids == NULL || s->active == NULL || s->logits == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for a drafter");
    }
    return rse_sampler_create(vocab, &s->sampler, err);
}

rse_status rse_drafter_model(rse_engine *engine, const char *directory, rse_drafter **drafter, rse_error *err) {
    *drafter = NULL;
    second *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for a drafter");
    }
    s->target = engine;
    s->base = (rse_drafter){.name = "model", .propose = propose, .destroy = destroy};
    rse_status status = make(s, directory, err);
    if (status != RSE_OK) {
        destroy(&s->base);
        return status;
    }
    *drafter = &s->base;
    return RSE_OK;
}
