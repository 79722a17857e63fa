/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scheduler: requests to continue sequences, run together. Requests may come and go between any two steps, and
 * there may be any number of them.
 *
 * A step of the scheduler is one step of the engine, of batch_tokens tokens at most: the next token, with its drafts,
 * of every request that is generating, and pieces of the prompts of those that are not yet. Who was served longest ago
 * comes first. While prompts wait they get a quarter of the tokens at least, in equal shares; pieces are multiples of
 * 16 tokens, where a share has as many, so that the bits of a prompt's state do not depend on what ran beside it.
 *
 * A request without a session of its own waits, in order of arrival, until one is free and its prompt finds room for
 * keys and values. Where a request that runs finds none, the prefix cache gives up entries first; then the youngest
 * other request is parked in memory, to go on later, bit for bit, before any that came after it. The oldest one is never
 * parked, so there is always one that gets on. A request that finds no room with nothing else to park ends with an
 * error of its own.
 *
 * With a prefix cache, sessions are stored at every block of a prompt, at its end and where the request ends, and
 * requests that the scheduler opens a session for begin with the longest such prefix.
 */
#ifndef RSE_SCHED_H
#define RSE_SCHED_H

#include "draft/draft.h"
#include "engine.h"
#include "math/penalty.h"
#include "math/sampler.h"

typedef struct rse_sched rse_sched;
typedef struct rse_request rse_request;

enum {
    RSE_RUNNING = 0,
    RSE_FINISH_END,    /* the model chose an end token, which is the last of the tokens */
    RSE_FINISH_LENGTH, /* max_tokens were generated */
    RSE_FINISH_ABORT,
    RSE_FINISH_ERROR,  /* rse_request_error() */
    RSE_FINISH_STOP,   /* rse_request_stop() */
    RSE_FINISH_CONTEXT /* the sequence is as long as the model takes, its last token included */
};

/* Called for every generated token, from within rse_sched_step(); it may abort and stop requests. */
typedef void (*rse_token_fn)(void *user, rse_request *request, int32_t token);

enum { RSE_LOGPROBS_MAX = 20 };

typedef struct rse_request_desc {
    rse_session *session;  /* the request's alone while it runs; not closed by the scheduler. NULL: the scheduler opens
                              one when there is room, and closes it when the request ends */
    uint64_t id;           /* of the session that the scheduler opens */
    const int32_t *prompt; /* [count], count >= 1; copied */
    int64_t count;
    int64_t max_tokens; /* >= 0 */
    bool ignore_end;    /* end tokens are tokens like any other */
    rse_sampling sampling;
    rse_penalties penalties;
    int32_t logprobs; /* 0: none; otherwise those of each token and of so many of the likeliest, RSE_LOGPROBS_MAX at
                         most */
    rse_token_fn token; /* or NULL */
    void *user;
} rse_request_desc;

rse_status rse_sched_create(rse_engine *engine, rse_sched **sched, rse_error *err);
enum { RSE_DRAFTS_AUTO = -1 };

/* How a scheduler drafts. */
typedef struct rse_speculation {
    rse_drafter *drafter; /* must outlive the scheduler; NULL: nothing is drafted */
    int32_t drafts;       /* along a path, 0 .. (step_tokens - 1) / width; RSE_DRAFTS_AUTO: as many as pay, by
                             measurement */
    int32_t width;        /* drafts after one node; 0: 1 */
    bool exact; /* no path of a round crosses a flush boundary: logits are those of steps of one token, bit for
                   bit */
    rssm_log_fn log; /* when auto switches drafting off or on, and why; NULL: silent */
    void *log_user;
} rse_speculation;

/* To be set before the first step. RSE_ERROR_USAGE for more drafts than the engine's step_tokens have room for,
 * or for exact with another method than replay. */
rse_status rse_sched_speculate(rse_sched *sched, const rse_speculation *speculation, rse_error *err);
/* Requests are freed with it; their sessions stay. NULL is fine. */
void rse_sched_destroy(rse_sched *sched);

/* RSE_ERROR_USAGE for an empty prompt, a token outside the vocabulary, a prompt that leaves the model no position to
 * generate at or the pool of keys and values no page, a session that another running request has, a sampling that makes
 * no sense. The request lives until rse_request_free(). */
rse_status rse_sched_add(rse_sched *sched, const rse_request_desc *desc, rse_request **request, rse_error *err);
/* Ends a request where it stands; a finished one stays what it is. Between steps the session of the caller is free
 * at once. */
void rse_request_abort(rse_request *request);
void rse_request_stop(rse_request *request); /* the same, because of what it has generated */
void rse_request_free(rse_request *request); /* aborts a running one; NULL is fine */

int32_t rse_request_state(const rse_request *request);          /* RSE_RUNNING or RSE_FINISH_* */
bool rse_request_waiting(const rse_request *request);      /* running, but without a slot: queued or parked */
const rse_error *rse_request_error(const rse_request *request); /* of RSE_FINISH_ERROR */
int64_t rse_request_prompt_left(const rse_request *request);    /* tokens of the prompt still to be run */
int64_t rse_request_recalled(const rse_request *request); /* tokens of the prompt that the prefix cache had */
/* The generated tokens. Of a finished request the last one has not been run: the session's tokens, kept and
 * pending, end just before it. Valid until the next step. */
const int32_t *rse_request_tokens(const rse_request *request, int64_t *count);
/* Of the generated token `index`: [1 + logprobs], its own first. Only with desc.logprobs; valid until the next step. */
const rse_token_logprob *rse_request_logprobs(const rse_request *request, int64_t index);

/*
 * One step of all running requests; *running is how many still are after it, 0 if there was nothing to do. A
 * request that finds no room for keys and values, or whose logits are no numbers, ends with an error of its
 * own. A failing engine ends all that took part, and its status is returned.
 */
rse_status rse_sched_step(rse_sched *sched, int32_t *running, rse_error *err);

/* What was done since the scheduler was made. A step with a piece of a prompt counts as prompt time, and tokens
 * that others generated in it are not in the figures of decoding. */
typedef struct rse_sched_figures {
    int64_t prompt_tokens;
    double prompt_seconds;
    int64_t decode_tokens; /* generated */
    double decode_seconds;
    int64_t bytes_read; /* of states and records, by steps of decoding */
    int64_t bytes_written;
    int64_t rounds;       /* rows that were no prompts */
    int64_t drafted;      /* drafts in them */
    int64_t accepted;     /* drafts that were right */
    double draft_seconds; /* of decode_seconds: the drafter's */
    int64_t parked;       /* times that a request had to give way */
} rse_sched_figures;
rse_sched_figures rse_sched_count(const rse_sched *sched);

#endif
