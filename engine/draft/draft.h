/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drafting. A drafter guesses how sequences go on; one step of the model then verifies what it guessed. A guess
 * is a tree whose root is the one token that is certain (the last one chosen, not run yet) and whose other
 * nodes are drafts, each a possible next token after its parent. A chain is a tree without forks.
 *
 * What is right is decided by the target alone (rse_tree_accept): at each node the target's own next token is
 * chosen from its logits as if nothing had been drafted, with the random numbers that belong to that position.
 * A child that holds this token is accepted, and the walk goes on from it; otherwise the token itself is the
 * round's last. So the text is the text of plain decoding, token for token, at any temperature and whatever the
 * drafter does, and every round gives one token at least. docs/speculation.md compares this with the rule that
 * accepts by ratios of probabilities.
 *
 * A drafter chooses its drafts from its own distribution with the same filters and the same random numbers,
 * which is what makes it agree with the target at temperatures above 0 as often as it can.
 */
#ifndef RSE_DRAFT_H
#define RSE_DRAFT_H

#include "engine.h"
#include "math/sampler.h"

typedef struct rse_tree {
    int32_t count; /* nodes; node 0 is the root */
    int32_t tokens[RSSM_STEP_TOKENS_MAX];
    int32_t parents[RSSM_STEP_TOKENS_MAX]; /* parents[0] is -1; others are earlier nodes */
} rse_tree;

/* The child of a node that holds a token; -1 if there is none. */
int32_t rse_tree_child(const rse_tree *tree, int32_t node, int32_t token);
/* Adds a draft after a node; its number. The tree must have room. */
int32_t rse_tree_add(rse_tree *tree, int32_t parent, int32_t token);
/*
 * Adds the drafts that follow *node, from a drafter's logits [vocab] for `position`: what the sampler chooses
 * with the random numbers of that position, which becomes *node, and the width - 1 that it would choose next.
 * logits are used up; width is less than the vocabulary.
 */
rse_status rse_tree_grow(rse_tree *tree, rse_sampler *sampler, const rse_sampling *sampling, float *logits,
                         int64_t position, int32_t width, int32_t *node, rse_error *err);
/* Drops the first draft that is no token of the vocabulary, and all that come after it. */
void rse_tree_check(rse_tree *tree, int32_t vocab);

/* Chooses the token for a position from the target's logits there, and takes it; *more: whether to go on. */
typedef rse_status (*rse_next_fn)(void *user, const float *logits, int64_t position, int32_t *token, bool *more,
                                  rse_error *err);

/*
 * Verifies a tree: logits [tree->count][vocab] are the target's at its nodes, position is the index that the
 * token after the root will have in its sequence. Has tokens taken, one at least, until the tree holds no more of
 * them or `next` says no. path [*count] are the nodes whose next token was taken: what the session keeps. Stops with
 * the error of `next`, as where logits are no numbers; what was taken before stays.
 */
rse_status rse_tree_accept(const rse_tree *tree, const float *logits, int32_t vocab, int64_t position,
                           rse_next_fn next, void *user, int32_t *path, int32_t *count, rse_error *err);

/* One sequence to draft for. */
typedef struct rse_draft_row {
    const rse_session *session; /* with its kept tokens and those that are chosen to be */
    const rse_sampling *sampling;
    int32_t depth; /* most drafts along a path, >= 0 */
    int32_t width; /* drafts after one node, >= 1; depth * width + 1 nodes have room */
    rse_tree tree; /* holds the root; drafts are added */
} rse_draft_row;

typedef struct rse_drafter rse_drafter;
struct rse_drafter {
    const char *name;
    bool hidden; /* observe gets the target's hidden states */
    /* Adds drafts to the trees. None is a fine answer; an error ends the requests of the step. */
    rse_status (*propose)(rse_drafter *drafter, rse_draft_row *rows, int32_t count, rse_error *err);
    /* After a step: `count` tokens of it are now the last of the session's, kept or chosen. hidden[i] is the
       target's final hidden state of the ith. NULL: not interested. */
    rse_status (*observe)(rse_drafter *drafter, const rse_session *session, const float *const *hidden,
                          int32_t count, rse_error *err);
    void (*destroy)(rse_drafter *drafter);
};

/* Continues as the text did where its last few tokens stood before. For any model. */
rse_status rse_drafter_ngram(rse_drafter **drafter, rse_error *err);
/* The model's own multi-token prediction block; RSE_ERROR_UNSUPPORTED for a model without one. */
rse_status rse_drafter_mtp(rse_engine *engine, rse_drafter **drafter, rse_error *err);
/* Another, smaller model, from a directory. RSE_ERROR_MISMATCH if its vocabulary is not the engine's. */
rse_status rse_drafter_model(rse_engine *engine, const char *directory, rse_drafter **drafter, rse_error *err);
void rse_drafter_destroy(rse_drafter *drafter); /* NULL is fine */

#endif
