/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences and steps of the driver: what happens, in terms of the reference. driver_lanes.c does it to the
 * caches. */
#include "driver.h"

#include <string.h>

/* ---- Making -------------------------------------------------------------------------------------------- */

static void destroy_ref(void *layer) {
    rssm_ref_layer_destroy(layer);
}

static rssm_ref_layer **make_refs(const cb_problem *p) {
    rssm_ref_layer **refs = chk_alloc((size_t)p->desc.layers * sizeof(*refs));
    for (int32_t layer = 0; layer < p->desc.layers; layer++) {
        refs[layer] = rssm_ref_layer_create(&p->spec, &p->weights[layer], p->desc.io_dtype);
        if (!refs[layer]) {
            chk_abandon("no memory for a reference layer");
        }
        chk_defer(destroy_ref, refs[layer]);
    }
    return refs;
}

static void make_lane(dr_driver *d, int32_t which, rssm_context *context, const rssm_kernels *kernels) {
    static const char *const names[DR_LANES] = {"plain", "tested", "other"};
    static const chk_poison poisons[DR_LANES] = {CHK_NAN, CHK_SIGNALLING, CHK_HUGE};
    dr_lane *lane = &d->lanes[which];
    lane->name = names[which];
    lane->rng = (chk_rng){chk_u64(&d->rng)};
    if (which == DR_OTHER) {
        lane->parts = chk_flip(&lane->rng, 0.7) ? chk_int(&lane->rng, 1, 5) : 0;
        lane->threads = chk_flip(&lane->rng, 0.3) && !kernels; /* crashes are caught in the main thread only */
    }
    cb_problem *p = chk_alloc(sizeof *p);
    *p = *d->problem;
    p->out_dtype = which == DR_PLAIN ? RSSM_DTYPE_F32 : p->out_dtype;
    lane->problem = p;
    lane->output_bytes = (size_t)d->outputs * (p->out_dtype == RSSM_DTYPE_BF16 ? 2 : 4);
    lane->box = cb_box_make(&lane->rng, p, context, RSSM_METHOD_REPLAY, DR_ROWS, 5, poisons[which]);
    if (kernels) {
        lane->box->cache->kernels = kernels;
    }
    memcpy(lane->slots, lane->box->slots, sizeof lane->slots);
    lane->feed_limit = d->token_limit + 1;
    lane->feeds = chk_alloc((size_t)(DR_GROUPS * lane->feed_limit) * sizeof(*lane->feeds));
    lane->outputs = chk_alloc((size_t)(p->desc.layers * d->token_limit) * lane->output_bytes);
}

static void reset_everywhere(dr_driver *d) {
    uint64_t ids[DR_SEQUENCES];
    int64_t positions[DR_SEQUENCES];
    for (int32_t i = 0; i < DR_SEQUENCES; i++) {
        ids[i] = chk_flip(&d->rng, 0.5) ? chk_u64(&d->rng) : (uint64_t)chk_int(&d->rng, 0, 70);
        positions[i] = chk_flip(&d->rng, 0.5) ? 0 : chk_int(&d->rng, 1, 200);
        positions[i] += chk_flip(&d->rng, 0.1) ? INT64_C(1) << 40 : 0;
        d->sequences[i].start = d->sequences[i].position = d->sequences[i].shadow = positions[i];
    }
    for (int32_t i = 0; i < DR_LANES; i++) {
        const dr_lane *lane = &d->lanes[i];
        cb_ok(lane->box, rssm_cache_reset(lane->box->cache, DR_SEQUENCES, lane->slots, ids, positions, NULL),
              "reset");
    }
    cb_ok(d->conventional,
          rssm_cache_reset(d->conventional->cache, DR_SEQUENCES, d->conventional_slots, ids, positions, NULL),
          "reset");
}

dr_driver *dr_make(chk_rng *rng, const cb_problem *problem, uint64_t isa, int32_t tokens,
                   const rssm_kernels *kernels) {
    dr_driver *d = chk_alloc(sizeof *d);
    d->problem = problem;
    d->rng = (chk_rng){chk_u64(rng)};
    d->outputs = (int64_t)problem->full.value_heads * problem->full.d_v;
    d->token_limit = DR_SEQUENCES * (tokens > RSSM_STEP_TOKENS_MAX ? tokens : RSSM_STEP_TOKENS_MAX) +
                     DR_PADDING * RSSM_STEP_TOKENS_MAX;
    d->got = chk_alloc((size_t)d->outputs * sizeof *d->got);
    d->bytes = chk_alloc(2 * (size_t)d->outputs * sizeof(float));
    for (int32_t i = 0; i < DR_SEQUENCES; i++) {
        dr_sequence *s = &d->sequences[i];
        s->capacity = tokens;
        s->tokens = chk_alloc((size_t)tokens * sizeof(*s->tokens));
        s->now = make_refs(problem);
        s->ahead = make_refs(problem);
    }
    static const int32_t threads[] = {1, 1, 1, -3, 3};
    rssm_context *tested = cb_context(isa, 1),
                 *other = cb_context(isa, kernels ? 1 : CHK_PICK(&d->rng, threads));
    make_lane(d, DR_PLAIN, cb_context(RSSM_ISA_NONE, 1), NULL);
    make_lane(d, DR_TESTED, tested, kernels);
    make_lane(d, DR_OTHER, other, kernels);
    d->conventional = cb_box_make(&d->rng, problem, tested, RSSM_METHOD_CONVENTIONAL, 1, 1, CHK_AA);
    if (kernels) {
        d->conventional->cache->kernels = kernels;
    }
    memcpy(d->conventional_slots, d->conventional->slots, sizeof d->conventional_slots);
    d->conventional_feed = cb_feed_make(problem, &d->rng, 1);
    reset_everywhere(d);
    return d;
}

/* ---- Sequences ----------------------------------------------------------------------------------------- */

static dr_token *make_token(const dr_driver *d) {
    const size_t layers = (size_t)d->problem->desc.layers, values = layers * (size_t)d->outputs;
    dr_token *token = chk_alloc(sizeof *token);
    token->blobs = chk_alloc(layers * (size_t)d->problem->token_bytes);
    token->exact = chk_alloc(2 * values * sizeof(double));
    token->scale = token->exact + values;
    return token;
}

static void run_ref(const dr_driver *d, rssm_ref_layer *const *refs, dr_token *token) {
    for (int32_t layer = 0; layer < d->problem->desc.layers; layer++) {
        const rssm_layer_inputs in =
            cb_token_inputs(d->problem, token->blobs + layer * d->problem->token_bytes);
        rssm_ref_layer_token(refs[layer], &in, 0, token->exact + layer * d->outputs,
                             token->scale + layer * d->outputs);
    }
}

/* Brings the references ahead to where pending token `node` is committed; -1: where none is. */
static void go_ahead(const dr_driver *d, dr_sequence *s, int32_t node) {
    if (node < 0) {
        for (int32_t layer = 0; layer < d->problem->desc.layers; layer++) {
            rssm_ref_layer_copy(s->ahead[layer], s->now[layer]);
        }
        return;
    }
    go_ahead(d, s, s->parents[node]);
    run_ref(d, s->ahead, s->tokens[s->position - s->start + node]);
}

/* Parents of a step's tokens: a chain, or any tree. */
static void draw_parents(dr_driver *d, dr_sequence *s, int32_t count) {
    const bool tree = !CB_DEVICE && !s->prefill && chk_flip(&d->rng, 0.4);
    for (int32_t i = 0; i < count && !s->prefill; i++) {
        s->parents[i] = tree && chk_flip(&d->rng, 0.7) ? chk_int(&d->rng, -1, i - 1) : i - 1;
    }
}

void dr_draw_tokens(dr_driver *d, dr_sequence *s, int32_t count) {
    const cb_problem *p = d->problem;
    draw_parents(d, s, count);
    go_ahead(d, s, -1);
    for (int32_t i = 0; i < count; i++) {
        dr_token *token = make_token(d);
        if (!s->prefill && s->parents[i] != i - 1) {
            go_ahead(d, s, s->parents[i]);
        }
        for (int32_t layer = 0; layer < p->desc.layers; layer++) {
            void *blob = token->blobs + layer * p->token_bytes;
            cb_token_draw(p, &d->rng, blob);
            cb_token_settle(p, s->ahead[layer], &d->rng, blob);
        }
        run_ref(d, s->ahead, token);
        s->tokens[s->position - s->start + i] = token;
    }
    s->pending = count;
}

void dr_commit(dr_driver *d, dr_sequence *s, int32_t accepted, const int32_t *path) {
    dr_token *kept[RSSM_STEP_TOKENS_MAX], **pending = s->tokens + (s->position - s->start);
    const bool last = s->prefill || (accepted > 0 && path[accepted - 1] == s->pending - 1);
    for (int32_t i = 0; i < accepted && !s->prefill; i++) {
        kept[i] = pending[path[i]];
    }
    memcpy(pending, kept, s->prefill ? 0 : (size_t)accepted * sizeof(*kept));
    if (last) {
        rssm_ref_layer **now = s->now;
        s->now = s->ahead;
        s->ahead = now;
    } else {
        for (int32_t i = 0; i < accepted; i++) {
            run_ref(d, s->now, pending[i]);
        }
    }
    s->position += accepted;
    s->resync = s->prefill;
    s->pending = 0;
    s->prefill = false;
}

/* ---- Steps --------------------------------------------------------------------------------------------- */

static int32_t tokens_left(const dr_sequence *s) {
    return s->capacity - (int32_t)(s->position - s->start);
}

static int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* How many tokens a decode row brings: often one, often all that may be, sometimes none. */
static int32_t draw_count(dr_driver *d) {
    const int32_t most = d->problem->desc.step_tokens;
    if (chk_flip(&d->rng, 0.08)) {
        return 0;
    }
    return chk_flip(&d->rng, 0.4) ? most : chk_int(&d->rng, 1, most);
}

static void add_row(dr_driver *d, dr_row row) {
    row.first = d->token_count;
    d->token_count += row.tokens;
    d->rows[d->row_count++] = row;
}

/* What the sequence keeps of its last step: a path to one of its tokens, often to the last, or nothing. */
static void draw_path(dr_driver *d, const dr_sequence *s, dr_row *row) {
    const bool last = s->prefill || chk_flip(&d->rng, 0.6);
    int32_t node = last ? s->pending - 1 : chk_int(&d->rng, -1, s->pending - 1), depth = 0;
    row->accepted = s->prefill ? s->pending : 0;
    for (int32_t at = node; at >= 0 && !s->prefill; at = s->parents[at]) {
        row->accepted++;
    }
    for (int32_t at = node; at >= 0 && !s->prefill; at = s->parents[at]) {
        row->path[row->accepted - ++depth] = at;
    }
}

/* Decides what the step does; commits and draws tokens in terms of the reference. */
static void plan_step(dr_driver *d) {
    d->row_count = d->token_count = 0;
    for (int32_t i = 0; i < DR_SEQUENCES; i++) {
        dr_sequence *s = &d->sequences[i];
        s->resync = false;
        if (chk_flip(&d->rng, 0.15)) {
            continue; /* not in this batch: what is pending stays so */
        }
        dr_row row = {.sequence = i};
        draw_path(d, s, &row);
        dr_commit(d, s, row.accepted, row.path);
        const bool fresh = s->position == s->start;
        row.prefill = chk_flip(&d->rng, fresh ? 0.4 : 0.04);
        row.tokens = row.prefill ? chk_int(&d->rng, 1, 2 * RSSM_STEP_TOKENS_MAX) : draw_count(d);
        row.tokens = least(row.tokens, tokens_left(s));
        row.prefill = row.prefill && row.tokens > 0;
        s->prefill = row.prefill;
        dr_draw_tokens(d, s, row.tokens);
        add_row(d, row);
    }
    for (int32_t i = chk_int(&d->rng, 0, DR_PADDING); i > 0; i--) {
        const bool prefill = chk_flip(&d->rng, 0.2);
        add_row(d, (dr_row){.sequence = -1, .tokens = draw_count(d), .prefill = prefill});
    }
}

bool dr_step(dr_driver *d) {
    int32_t left = 0;
    for (int32_t i = 0; i < DR_SEQUENCES; i++) {
        left += tokens_left(&d->sequences[i]);
    }
    if (left == 0 || !chk_ok()) {
        return false;
    }
    plan_step(d);
    for (int32_t i = 0; i < DR_LANES; i++) {
        dr_run_lane(d, &d->lanes[i]);
        dr_compare_exact(d, &d->lanes[i]);
        if (!chk_ok()) {
            return false;
        }
    }
    dr_compare_bits(d, &d->lanes[DR_TESTED], &d->lanes[DR_OTHER]);
    for (int32_t i = 0; i < d->row_count; i++) {
        if (d->rows[i].sequence >= 0) {
            dr_catch_up(d, d->rows[i].sequence);
        }
    }
    return true;
}

void dr_finish(dr_driver *d) {
    for (int32_t i = 0; i < DR_LANES; i++) {
        cb_box_intact(d->lanes[i].box);
    }
    cb_box_intact(d->conventional);
    chk_guards_intact();
}
