/* SPDX-License-Identifier: Apache-2.0 */
/* Between sched.c, which keeps requests, and round.c, which runs them. */
#ifndef RSE_ROUND_H
#define RSE_ROUND_H

#include "base/buffer.h"
#include "draft/count.h"
#include "sched/internal.h"
#include "sched/sched.h"

struct rse_request {
    rse_sched *sched;
    rse_request *next; /* in order of arrival */
    rse_request_desc desc;
    int32_t *prompt;
    int64_t done; /* tokens of the prompt that were run */
    rse_ids tokens;
    int32_t state;
    rse_error error;
};

struct rse_sched {
    rse_engine *engine;
    rse_engine_info info;
    rse_request *first;
    rse_sampler *sampler;
    rse_row *rows;        /* [sessions] of the step under way */
    rse_request **row_of; /* [sessions] whose rows they are */
    float *logits;        /* [sessions][vocab], with drafts [sessions][step_tokens][vocab] */
    rse_sched_figures figures;
    rse_speculation speculation;
    rse_count count; /* of drafts, where it is chosen by measurement */
    rse_draft_row *
        drafts; /* [sessions] of the step under way, one for each row of a generating request, in their order */
    const float **hidden; /* [batch_tokens] of a row, for the drafter */
};

/* One step of all running requests; see rse_sched_step(). */
rse_status rse_round_run(rse_sched *sched, rse_error *err);

#endif
