/* SPDX-License-Identifier: Apache-2.0 */
/* Between sched.c, which keeps requests, request.c, which is one of them, admit.c, which finds room for them, and
 * round.c, which runs them. */
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
    rse_session *session; /* NULL: none yet, or no longer */
    bool owned;           /* the scheduler opens and closes it */
    int32_t *prompt;
    int64_t done;     /* tokens of the prompt that were run, or recalled */
    int64_t recalled; /* of those */
    int64_t limit;    /* tokens to generate at most, by max_tokens and by the model */
    int64_t arrival;  /* its number among all that were added */
    int64_t turn;     /* number of the last step that it had a row in */
    bool taking;      /* it has a row in the step under way */
    rse_ids tokens;
    rse_token_counts counts;     /* with penalties, once the first token is chosen */
    rse_token_logprob *logprobs; /* [tokens][1 + desc.logprobs] */
    int64_t logprobs_room;       /* tokens */
    int32_t state;
    rse_error error;
};

struct rse_sched {
    rse_engine *engine;
    rse_engine_info info;
    rse_request *first;
    int64_t requests;      /* in the list */
    int64_t arrivals;      /* ever */
    rse_request **order;   /* [order_room] of a step: those that can run, served longest ago first */
    int64_t order_room, ordered;
    int64_t steps;
    bool stepping; /* a step is under way */
    rse_sampler *sampler;
    rse_row *rows;        /* [sessions] of the step under way */
    rse_request **row_of; /* [sessions] whose rows they are */
    float *logits;        /* [sessions][vocab], with drafts [sessions][step_tokens][vocab] */
    float *penalized;     /* [vocab] */
    rse_sched_figures figures;
    rse_speculation speculation;
    rse_count count; /* of drafts, where it is chosen by measurement */
    rse_draft_row *
        drafts; /* [sessions] of the step under way, one for each row of a generating request, in their order */
    const float **hidden; /* [batch_tokens] of a row, for the drafter */
};

/* Chooses and takes a request's next token; an rse_next_fn whose user is the request. */
rse_status rse_request_next(void *request, const float *logits, int64_t position, int32_t *token, bool *more,
                            rse_error *err);
bool rse_request_seated(const rse_request *request); /* running, in a slot */
void rse_request_fail(rse_request *request, const rse_error *error);

/* Gives sessions to requests that wait, in order of arrival, as far as there is room. */
void rse_admit(rse_sched *sched);
/* Finds room for the next tokens of a request that is to have a row, if need be by parking others. False: it has to
 * wait, or has failed. */
bool rse_make_room(rse_sched *sched, rse_request *request, int64_t tokens);
/* Lets go of the sessions of requests that have ended. */
void rse_release(rse_sched *sched);

/* One step of all running requests; see rse_sched_step(). */
rse_status rse_round_run(rse_sched *sched, rse_error *err);

#endif
