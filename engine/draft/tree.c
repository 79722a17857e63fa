/* SPDX-License-Identifier: Apache-2.0 */
#include "draft/draft.h"

#include <math.h>

int32_t rse_tree_child(const rse_tree *tree, int32_t node, int32_t token) {
    for (int32_t i = node + 1; i < tree->count; i++) {
        if (tree->parents[i] == node && tree->tokens[i] == token) {
            return i;
        }
    }
    return -1;
}

int32_t rse_tree_add(rse_tree *tree, int32_t parent, int32_t token) {
    tree->tokens[tree->count] = token;
    tree->parents[tree->count] = parent;
    return tree->count++;
}

rse_status rse_tree_grow(rse_tree *tree, rse_sampler *sampler, const rse_sampling *sampling, float *logits,
                         int64_t position, int32_t width, int32_t *node, rse_error *err) {
    int32_t parent = *node;
    for (int32_t i = 0; i < width; i++) { /* without the winner, the race has its second, and so on */
        int32_t token;
        RSE_TRY(rse_sampler_next(sampler, sampling, logits, position, &token, err));
        int32_t draft = rse_tree_add(tree, parent, token);
        *node = i == 0 ? draft : *node;
        logits[token] = -INFINITY;
    }
    return RSE_OK;
}

void rse_tree_check(rse_tree *tree, int32_t vocab) {
    for (int32_t i = 1; i < tree->count; i++) {
        if (tree->tokens[i] < 0 || tree->tokens[i] >= vocab) {
            tree->count = i;
        }
    }
}

rse_status rse_tree_accept(const rse_tree *tree, const float *logits, int32_t vocab, int64_t position,
                           rse_next_fn next, void *user, int32_t *path, int32_t *count, rse_error *err) {
    *count = 0;
    for (int32_t node = 0; node >= 0;) {
        int32_t token;
        bool more;
        RSE_TRY(next(user, logits + (int64_t)node * vocab, position + *count, &token, &more, err));
        path[(*count)++] = node;
        node = more ? rse_tree_child(tree, node, token) : -1;
    }
    return RSE_OK;
}

void rse_drafter_destroy(rse_drafter *drafter) {
    if (drafter != NULL) {
        drafter->destroy(drafter);
    }
}
