/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The prefix cache: sequences that sessions have run, with the state after them and their keys and values, for
 * sessions that begin with the same tokens. States are exports in memory; keys and values are pages that entries and
 * sessions hold together, and of which a session gets its own copy when it goes on within one. What is kept is bounded
 * by a budget, and what was used least recently goes first.
 *
 * A state can be taken up only where it was saved, in the middle of no entry. So the scheduler stores at block
 * boundaries of prompts, at their ends and where requests end.
 */
#ifndef RSE_PREFIX_H
#define RSE_PREFIX_H

#include "sched/internal.h"

rse_status rse_prefixes_create(rse_engine *engine, int64_t budget, int32_t block, rse_prefixes **prefixes,
                               rse_error *err);
void rse_prefixes_destroy(rse_prefixes *prefixes); /* NULL is fine */
/* How many tokens a session could begin with, of tokens [count]; this entry is now the last to be dropped. */
int64_t rse_prefixes_match(rse_prefixes *prefixes, const int32_t *tokens, int64_t count);
/* Drops entries, the least recently used first, whose pages nobody else holds, until the pool has `pages` free ones or
 * no such entry is left. NULL is fine. */
void rse_prefixes_reclaim(rse_prefixes *prefixes, int64_t pages);

#endif
