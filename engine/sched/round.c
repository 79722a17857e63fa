/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A round: the next row of every running request, drafts asked for all that generate, one step of the engine,
 * and what the step means for each request.
 */
#include "sched/round.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
    PIECE = 16, /* tokens of a chunk of the scan: pieces of whole chunks give the bits of one piece */
    WALKED = 6  /* so few tokens the kernels walk one by one: a last piece has more, or is all there is */
};

static int64_t round_up(int64_t n, int64_t unit) {
    return (n + unit - 1) / unit * unit;
}

/* Whether steps are large enough to run prompts in whole pieces only, beside sequences that generate. */
static bool whole_pieces(const rse_sched *sched) {
    return sched->info.batch_tokens >= 4 * PIECE;
}

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* What a round is made of, and what it came to. */
typedef struct work {
    int32_t rows, generating; /* the first `generating` rows have a tree in sched->drafts */
    int32_t depth;            /* drafts along a path that were asked for */
    int32_t reading;          /* requests that have not read their prompts */
    int64_t decode_budget;    /* tokens of those that generate */
    bool prompts;
    int64_t emitted, drafted, tried, right;
} work;

/* ---- Rows --------------------------------------------------------------------------------------------- */

static bool generates(const rse_request *request) {
    return request->state == RSE_RUNNING && rse_request_prompt_left(request) == 0;
}

static int32_t least(int32_t a, int64_t b) {
    return a < b ? a : (int32_t)b;
}

static int by_turn(const void *left, const void *right) {
    const rse_request *a = *(rse_request *const *)left, *b = *(rse_request *const *)right;
    if (a->turn != b->turn) {
        return a->turn < b->turn ? -1 : 1;
    }
    return a->arrival < b->arrival ? -1 : a->arrival > b->arrival; /* qsort need not keep an order */
}

/* The requests that can have a row, who was served longest ago first, in order of arrival among equals; and how the
 * step's tokens are shared. */
static void line_up(rse_sched *sched, work *r) {
    int64_t generating = 0, all = sched->info.batch_tokens;
    sched->steps++;
    sched->ordered = 0;
    for (rse_request *request = sched->first; request != NULL; request = request->next) {
        request->taking = false;
        if (rse_request_seated(request)) {
            sched->order[sched->ordered++] = request;
            generating += generates(request);
        }
    }
    if (sched->ordered == 0) {
        return;
    }
    qsort(sched->order, (size_t)sched->ordered, sizeof(*sched->order), by_turn);
    r->reading = (int32_t)(sched->ordered - generating);
    int64_t for_prompts = (all + 3) / 4;
    if (whole_pieces(sched)) { /* two pieces at least: a last one may have more than 16 tokens */
        for_prompts = round_up(for_prompts > 2 * PIECE ? for_prompts : 2 * PIECE, PIECE);
    }
    r->decode_budget = all - (r->reading > 0 ? for_prompts : 0);
    if (r->decode_budget == 0) { /* steps of one token */
        r->decode_budget = generates(sched->order[0]);
    }
}

/* Drafts that a request can use: no more than it may still generate, than the step has room for, than keep its
   state where steps of one token have it. */
static int32_t depth_of(const rse_sched *sched, const rse_request *request, int32_t wanted, int64_t tokens) {
    int32_t depth = least(wanted, request->limit - (int64_t)request->tokens.count - 1);
    depth = least(depth, (tokens - 1) / sched->speculation.width);
    if (sched->speculation.exact) {
        depth = least(depth, rse_session_room(request->session) - 1);
    }
    return depth > 0 ? depth : 0;
}

/* Trees of the requests that generate: their roots, then what the drafter adds. */
static rse_status draft(rse_sched *sched, work *r, double *seconds, rse_error *err) {
    rse_drafter *drafter = sched->speculation.drafter;
    int32_t share = least((int32_t)(sched->ordered - r->reading), r->decode_budget);
    if (drafter != NULL && share > 0) {
        bool automatic = sched->speculation.drafts == RSE_DRAFTS_AUTO;
        r->depth = automatic ? rse_count_choose(&sched->count, share) : sched->speculation.drafts;
    }
    for (int64_t i = 0; i < sched->ordered && r->generating < share; i++) {
        rse_request *request = sched->order[i];
        if (generates(request)) {
            rse_draft_row *row = &sched->drafts[r->generating];
            *row = (rse_draft_row){.session = request->session,
                                   .sampling = &request->desc.sampling,
                                   .depth = depth_of(sched, request, r->depth, r->decode_budget / share),
                                   .width = sched->speculation.width};
            row->tree.count = 1;
            row->tree.tokens[0] = request->tokens.data[request->tokens.count - 1];
            row->tree.parents[0] = -1;
            sched->row_of[r->generating++] = request;
        }
    }
    double start = seconds_now();
    rse_status status = r->depth > 0 ? drafter->propose(drafter, sched->drafts, r->generating, err) : RSE_OK;
    *seconds = seconds_now() - start;
    return status;
}

static void take_turn(rse_sched *sched, rse_request *request) {
    request->taking = true;
    request->turn = sched->steps;
}

/* A row for a tree that finds room, if need be without its drafts. */
static bool make_tree_row(rse_sched *sched, rse_request *request, rse_tree *tree, rse_row *row) {
    rse_error error = {0};
    rse_tree_check(tree, sched->info.vocab);
    if (tree->count > 1 && rse_session_reserve(request->session, tree->count, &error) != RSE_OK) {
        tree->count = 1;
    }
    if (tree->count == 1 && !rse_make_room(sched, request, 1)) {
        return false;
    }
    *row = (rse_row){.session = request->session,
                     .tokens = tree->tokens,
                     .count = tree->count,
                     .accepted = RSE_ACCEPT_ALL,
                     .outputs = tree->count,
                     .parents = tree->parents};
    take_turn(sched, request);
    return true;
}

/* How many tokens of a prompt may be run now. With a prefix cache, pieces end where a state is to be stored: at every
 * block, and before the last token. 0: less than a piece, which waits for the next step. */
static int64_t piece_of(const rse_sched *sched, const rse_request *request, int64_t budget) {
    int64_t stop = request->desc.count;
    if (sched->engine->prefixes != NULL) {
        int64_t block = sched->engine->options.prefix_block, next = request->done / block * block + block;
        stop = request->done < stop - 1 ? stop - 1 : stop;
        stop = next < stop ? next : stop;
    }
    int64_t left = stop - request->done, count = budget / PIECE * PIECE;
    if (left <= budget) {
        return left;
    }
    if (!whole_pieces(sched)) {
        return count > 0 ? count : budget;
    }
    return left - count <= WALKED && count > 0 ? count - PIECE : count;
}

/* A piece of a request's prompt. A single token that is left is run as a step of decoding, if it is all of the prompt
   or a state is stored before it: so a sequence that was cut just before it, to be saved or to be recalled, goes on bit
   for bit as if it had not been. */
static bool make_prompt_row(rse_sched *sched, rse_request *request, int64_t count, rse_row *row) {
    int64_t left = rse_request_prompt_left(request);
    bool single = left == 1 && (request->desc.count == 1 || sched->engine->prefixes != NULL);
    if (!rse_make_room(sched, request, count)) {
        return false;
    }
    *row = (rse_row){.session = request->session,
                     .tokens = request->prompt + request->done,
                     .count = (int32_t)count,
                     .accepted = RSE_ACCEPT_ALL,
                     .prompt = !single,
                     .outputs = count == left && request->desc.max_tokens > 0};
    take_turn(sched, request);
    return true;
}

/* A request may have been parked, to make room for another one, after it was lined up. */
static void collect(rse_sched *sched, work *r) {
    int64_t budget = sched->info.batch_tokens;
    int32_t kept = 0;
    for (int32_t i = 0; i < r->generating; i++) {
        sched->drafts[kept] = sched->drafts[i];
        if (rse_request_seated(sched->row_of[i]) &&
            make_tree_row(sched, sched->row_of[i], &sched->drafts[kept].tree, &sched->rows[kept])) {
            budget -= sched->rows[kept].count;
            sched->row_of[kept++] = sched->row_of[i];
        }
    }
    r->rows = r->generating = kept;
    int32_t reading = r->reading;
    for (int64_t i = 0; i < sched->ordered && budget > 0; i++) {
        rse_request *request = sched->order[i];
        if (!rse_request_seated(request) || rse_request_prompt_left(request) == 0) {
            continue;
        }
        int64_t share = round_up((budget + reading - 1) / reading, PIECE);
        int64_t count = piece_of(sched, request, share < budget ? share : budget);
        if (count == 0) { /* a little more than its share may do; the first row has room for a piece in any case */
            count = piece_of(sched, request, budget);
        }
        reading--;
        if (count > 0 && make_prompt_row(sched, request, count, &sched->rows[r->rows])) {
            budget -= sched->rows[r->rows].count;
            r->prompts = r->prompts || sched->rows[r->rows].prompt;
            sched->row_of[r->rows++] = request;
        }
    }
}

/* ---- What a step means -------------------------------------------------------------------------------- */

/* Tells the drafter which tokens of a row stay; path NULL: all. */
static rse_status tell(rse_sched *sched, const rse_row *row, int64_t first, const int32_t *path, int32_t count,
                       rse_error *err) {
    rse_drafter *drafter = sched->speculation.drafter;
    if (drafter == NULL || drafter->observe == NULL || count == 0) {
        return RSE_OK;
    }
    for (int32_t i = 0; i < count && drafter->hidden; i++) {
        sched->hidden[i] = sched->engine->hidden + (first + (path != NULL ? path[i] : i)) * sched->info.hidden;
    }
    return drafter->observe(drafter, row->session, sched->hidden, count, err);
}

/* Tokens that follow a row: those of the tree that the target chooses too, and one more. */
static rse_status take_tokens(rse_sched *sched, work *r, int32_t index, int64_t first, const float *logits,
                              rse_error *err) {
    rse_request *request = sched->row_of[index];
    const rse_row *row = &sched->rows[index];
    const rse_tree single = {.count = 1, .parents = {-1}},
                   *tree = index < r->generating ? &sched->drafts[index].tree : &single;
    int64_t position =
        rse_session_position(row->session) + (row->prompt ? rse_session_pending(row->session) : 1);
    int32_t path[RSSM_STEP_TOKENS_MAX], count;
    rse_error error = {0};
    if (rse_tree_accept(tree, logits, sched->info.vocab, position, rse_request_next, request, path, &count,
                        &error) != RSE_OK) {
        rse_request_fail(request, &error);
    }
    if (row->prompt) {
        return tell(sched, row, first, NULL, row->count, err);
    }
    r->emitted += index < r->generating ? count : 0;
    r->drafted += tree->count - 1;
    r->right += count > 0 ? count - 1 : 0;
    for (int32_t i = 0; i < tree->count - 1; i++) {
        if (count > 0 && tree->parents[i + 1] == path[count - 1]) { /* there were drafts, and none was right */
            r->tried++;
            break;
        }
    }
    if (row->count > 1) {
        RSE_TRY(rse_session_choose(row->session, path, count, err));
    }
    return tell(sched, row, first, count > 0 ? path : NULL, row->count > 1 ? count : 1, err);
}

/* Keeps the state of a prompt for others, where it is a place to go on from. */
static void store_prompt(rse_sched *sched, rse_request *request) {
    rse_error ignored; /* a cache may have no room */
    bool block = request->done % sched->engine->options.prefix_block == 0;
    if (block || rse_request_prompt_left(request) == 1) {
        (void)rse_session_store(request->session, &ignored);
    }
}

static rse_status deliver(rse_sched *sched, work *r, rse_error *err) {
    const float *logits = sched->logits;
    int64_t first = 0;
    for (int32_t i = 0; i < r->rows; i++) {
        rse_request *request = sched->row_of[i];
        const rse_row *row = &sched->rows[i];
        bool reads = rse_request_prompt_left(request) > 0;
        request->done += reads ? row->count : 0;
        if (request->state == RSE_RUNNING && row->outputs > 0) {
            RSE_TRY(take_tokens(sched, r, i, first, logits, err));
        } else { /* a callback may have ended it meanwhile: what was certain stays */
            int32_t certain = row->prompt ? row->count : 1;
            if (request->state == RSE_RUNNING && rse_request_prompt_left(request) == 0) {
                request->state = RSE_FINISH_LENGTH;
            }
            RSE_TRY(rse_session_choose(row->session, NULL, certain, err));
            RSE_TRY(tell(sched, row, first, NULL, certain, err));
        }
        if (reads) {
            store_prompt(sched, request);
        }
        logits += (int64_t)row->outputs * sched->info.vocab;
        first += row->count;
    }
    return RSE_OK;
}

/* ---- The round ---------------------------------------------------------------------------------------- */

static void say(const rse_sched *sched, const char *what) {
    const rse_count *c = &sched->count;
    char line[256];
    if (sched->speculation.log != NULL) {
        int32_t d = c->chosen > 0 ? c->chosen : 1;
        snprintf(line, sizeof line,
                 "drafting is %s: %.0f of 100 drafts by %s are right; a round with %d gives %.2f tokens and "
                 "takes %.2f times "
                 "a plain step",
                 what, 100.0 * c->right, sched->speculation.drafter->name, d, rse_count_tokens(c, d),
                 rse_count_cost(c, d));
        sched->speculation.log(sched->speculation.log_user, RSSM_LOG_INFO, line);
    }
}

/* Measurements of a round, for the figures and for the number of drafts. */
static void note(rse_sched *sched, const work *r, double seconds, double drafting,
                 const rse_engine_counters *before, const rse_engine_counters *after) {
    rse_sched_figures *figures = &sched->figures;
    for (int32_t i = r->generating; i < r->rows; i++) {
        figures->prompt_tokens += sched->rows[i].prompt ? sched->rows[i].count : 0;
        figures->decode_tokens += !sched->rows[i].prompt && !r->prompts;
    }
    figures->rounds += r->generating;
    figures->drafted += r->drafted;
    figures->accepted += r->right;
    if (r->prompts) {
        figures->prompt_seconds += seconds;
        return;
    }
    figures->decode_tokens += r->emitted;
    figures->decode_seconds += seconds;
    figures->draft_seconds += drafting;
    figures->bytes_read += after->bytes_read - before->bytes_read;
    figures->bytes_written += after->bytes_written - before->bytes_written;
    if (sched->speculation.drafter != NULL && sched->speculation.drafts == RSE_DRAFTS_AUTO &&
        r->generating == r->rows) {
        rse_count_learn(&sched->count, r->rows, r->depth, seconds, r->tried + r->right, r->right);
    }
}

/* One step of the engine. Where branches of trees find no room, nothing has changed, and it goes without
 * drafts. */
static rse_status run_step(rse_sched *sched, work *r, rse_error *err) {
    rse_status status = rse_engine_step(sched->engine, sched->rows, r->rows, sched->logits, NULL, err);
    if (status == RSE_ERROR_MEMORY && r->depth > 0) {
        for (int32_t i = 0; i < r->generating; i++) {
            sched->drafts[i].tree.count = 1;
            sched->rows[i].count = sched->rows[i].outputs = 1;
        }
        status = rse_engine_step(sched->engine, sched->rows, r->rows, sched->logits, NULL, err);
    }
    return status;
}

static rse_status fail_rows(rse_sched *sched, int32_t rows, rse_status status, const rse_error *failure,
                            rse_error *err) {
    for (int32_t i = 0; i < rows; i++) {
        rse_request_fail(sched->row_of[i], failure);
    }
    return rse_fail(err, status, "%s", failure->text);
}

rse_status rse_round_run(rse_sched *sched, rse_error *err) {
    work r = {0};
    rse_error failure = {0};
    double start = seconds_now(), drafting;
    int32_t before_choice = sched->count.chosen;
    line_up(sched, &r);
    rse_status status = draft(sched, &r, &drafting, &failure);
    if (status != RSE_OK) {
        return fail_rows(sched, r.generating, status, &failure, err);
    }
    if ((before_choice > 0) != (sched->count.chosen > 0) && rse_count_settled(&sched->count)) {
        say(sched, sched->count.chosen > 0 ? "on" : "off");
    }
    collect(sched, &r);
    if (r.rows == 0) {
        return RSE_OK;
    }
    rse_engine_counters before, after;
    RSE_TRY(rse_engine_count(sched->engine, &before, err));
    status = run_step(sched, &r, &failure);
    if (status == RSE_OK) {
        status = rse_engine_count(sched->engine, &after, &failure);
    }
    if (status == RSE_OK) {
        status = deliver(sched, &r, &failure);
    }
    if (status != RSE_OK) {
        return fail_rows(sched, r.rows, status, &failure, err);
    }
    note(sched, &r, seconds_now() - start, drafting, &before, &after);
    return RSE_OK;
}
