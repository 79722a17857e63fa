/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drafting the usual way, as the baseline of replay: conventional states, of which one is kept for each token
 * of a step, and one copied back where the last of them are not kept. It is built on conventional caches of the
 * library, one for each layer, because a layer has to take a step's tokens one after another before the next
 * layer starts.
 *
 * A session's slot s is slot s of every cache; what its state was before token t of its last step is in slot
 * sessions + s * T_max + t. Steps of one token keep nothing.
 */
#ifndef RSE_SNAPSHOT_H
#define RSE_SNAPSHOT_H

#include "sched/internal.h"

rse_status rse_snapshots_create(const rse_engine *engine, rse_snapshots **snapshots, rse_error *err);
void rse_snapshots_destroy(rse_snapshots *snapshots); /* NULL is fine */

/* The session's state is zero. */
rse_status rse_snapshots_reset(rse_snapshots *snapshots, const rse_session *session, rse_error *err);
/* The session's state becomes that after the first `count` tokens of its last step. */
rse_status rse_snapshots_keep(rse_snapshots *snapshots, const rse_session *session, int32_t count,
                              rse_error *err);
/* The state of `to` becomes that of `from` without the tokens of its last step. */
rse_status rse_snapshots_copy(rse_snapshots *snapshots, const rse_session *from, const rse_session *to,
                              rse_error *err);
/* One layer of a step; an rse_recurrence_fn whose user is the snapshots. */
rssm_status rse_snapshots_run(void *snapshots, const rse_step *step, int32_t mixer,
                              const rssm_layer_inputs *inputs, const rssm_output *out);

/* The cache of one recurrent layer, in which a session has its own slot. */
rssm_cache *rse_snapshots_cache(const rse_snapshots *snapshots, int32_t layer);
/* Bytes of a part of the caches per sequence, all states counted. */
int64_t rse_snapshots_bytes(const rse_snapshots *snapshots, int32_t part);
rse_status rse_snapshots_count(const rse_snapshots *snapshots, rse_engine_counters *counters, rse_error *err);

#endif
