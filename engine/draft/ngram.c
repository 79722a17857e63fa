/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prompt lookup: the last tokens of a sequence are looked for earlier in it, the longest run that occurs first,
 * the most recent occurrence of it; what came after it then is drafted now. Nothing is remembered between
 * rounds.
 */
#include "draft/draft.h"

#include <stdlib.h>

enum { LONGEST = 4, SHORTEST = 2 };

/* Tokens of the sequence, the root last. */
typedef struct history {
    const int32_t *ids;
    int64_t count;
    int32_t root;
} history;

static int32_t token_at(const history *h, int64_t i) {
    return i < h->count ? h->ids[i] : h->root;
}

/* Where what followed the latest earlier occurrence of the last n tokens begins; -1: there is none. */
static int64_t find(const history *h, int64_t n) {
    for (int64_t end = h->count; end >= n;
         end--) { /* an occurrence ends before `end`, the root itself is at h->count */
        int64_t same = 0;
        while (same < n && token_at(h, end - 1 - same) == token_at(h, h->count - same)) {
            same++;
        }
        if (same == n) {
            return end;
        }
    }
    return -1;
}

static rse_status propose(rse_drafter *drafter, rse_draft_row *rows, int32_t count, rse_error *err) {
    (void)drafter;
    (void)err;
    for (int32_t i = 0; i < count; i++) {
        const rse_session *session = rows[i].session;
        history h = {rse_session_ids(session), rse_session_position(session) + rse_session_pending(session),
                     rows[i].tree.tokens[0]};
        int64_t from = -1;
        for (int64_t n = LONGEST; n >= SHORTEST && from < 0; n--) {
            from = find(&h, n);
        }
        int32_t node = 0;
        for (int64_t t = from; from >= 0 && t <= h.count && t < from + rows[i].depth; t++) {
            node = rse_tree_add(&rows[i].tree, node, token_at(&h, t));
        }
    }
    return RSE_OK;
}

static void destroy(rse_drafter *drafter) {
    free(drafter);
}

rse_status rse_drafter_ngram(rse_drafter **drafter, rse_error *err) {
    *drafter = malloc(sizeof **drafter);
    if (*drafter == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for a drafter");
    }
    **drafter = (rse_drafter){.name = "ngram", .propose = propose, .destroy = destroy};
    return RSE_OK;
}
