/* SPDX-License-Identifier: Apache-2.0 */
/* Checks before anything is timed: both methods on the same inputs, on a few sequences. */
#include "kernel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_MAX = 3 };
/* Of the largest output; replay sums in another order than the conventional method, and narrow states are rounded. What
   exactly they must hold is for the tests: here a kernel that does something else altogether is to be found. */
static double tolerance_of(const bench_problem *p) {
    static const double of[] = {[RSSM_DTYPE_F16] = 2e-3,  [RSSM_DTYPE_BF16] = 2e-2, [RSSM_DTYPE_F8] = 0.2,
                                [RSSM_DTYPE_INT8] = 0.05, [RSSM_DTYPE_NVFP4] = 0.5};
    const double checkpoint = p->checkpoint <= RSSM_DTYPE_F32 ? 2e-5 : of[p->checkpoint];
    const double copy = p->copy == RSSM_DTYPE_DEFAULT ? 0.0 : of[p->copy];
    return checkpoint > copy ? checkpoint : copy;
}

typedef struct check {
    bench_env *env;
    bench_problem problem;
    bench_inputs inputs;
    bench_rig replay, conventional;
    double worst, largest; /* difference, and magnitude, of outputs so far */
} check;

static void compare(check *c, const float *a, const float *b, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        double difference = fabs((double)a[i] - (double)b[i]), size = fabs((double)b[i]);
        c->worst = difference <= c->worst ? c->worst : difference; /* NaN gets through */
        c->largest = size > c->largest ? size : c->largest;
    }
}

static rse_status judge(const check *c, const char *what, rse_error *err) {
    const double tolerance = tolerance_of(&c->problem);
    if (c->worst <= tolerance * c->largest && isfinite(c->largest)) {
        return RSE_OK;
    }
    char id[192];
    bench_row_name(c->env, &c->problem, BENCH_DECODE, id, sizeof id);
    return rse_fail(err, RSE_ERROR_MISMATCH, "%s: %s differ by %g; the limit is %g of their largest, %g", id,
                    what, c->worst, tolerance, c->largest);
}

static rse_status open_check(check *c, bench_env *env, const bench_problem *p, int32_t tokens, rse_error *err) {
    *c = (check){.env = env, .problem = *p};
    c->problem.batch = p->batch < ROWS_MAX ? p->batch : ROWS_MAX;
    c->problem.tokens = tokens;
    bench_rig_options replay = {RSSM_METHOD_REPLAY, 1, tokens > RSSM_STEP_TOKENS_MAX ? 1 : tokens, false};
    bench_rig_options conventional = {RSSM_METHOD_CONVENTIONAL, 1, 1, false};
    RSE_TRY(bench_inputs_create(p->shape, p->io, (int64_t)c->problem.batch * tokens, 5, 7, &c->inputs, err));
    RSE_TRY(bench_rig_create(env->context, &c->inputs, &c->problem, &replay, env->threads, &env->replay,
                             &c->replay, err));
    return bench_rig_create(env->context, &c->inputs, &c->problem, &conventional, env->threads,
                            &env->conventional, &c->conventional, err);
}

static void close_check(check *c) {
    bench_rig_destroy(&c->replay);
    bench_rig_destroy(&c->conventional);
    bench_inputs_destroy(&c->inputs);
}

/* Token `token` of each row's step that keeps more than `token` tokens, conventionally; outputs against
 * replay's. */
static rse_status follow(check *c, int32_t set, int32_t token, const int32_t *accepted, const float *expected,
                         rse_error *err) {
    bench_rig *rig = &c->conventional;
    const bench_shape *shape = c->problem.shape;
    int64_t width = (int64_t)shape->value_heads * shape->d_v;
    int32_t slots[ROWS_MAX];
    for (int32_t row = 0; row < c->problem.batch; row++) {
        slots[row] = token < accepted[row] ? rig->slots[row] : -1; /* padding */
    }
    rssm_batch batch = {.struct_size = sizeof batch, .rows = c->problem.batch, .slots = slots};
    rssm_layer_inputs inputs = bench_inputs_view(&c->inputs, set, token, c->problem.tokens);
    rssm_output out = {.struct_size = sizeof out, .data = rig->out, .dtype = RSSM_DTYPE_F32};
    RSE_TRY(bench_library(rig->context, rssm_cache_begin(rig->cache, &batch, NULL, NULL, NULL), err));
    RSE_TRY(bench_library(rig->context, rssm_cache_decode(rig->cache, 0, &batch, &inputs, &out, NULL), err));
    for (int32_t row = 0; row < c->problem.batch; row++) {
        if (slots[row] >= 0) {
            compare(c, expected + ((int64_t)row * c->problem.tokens + token) * width, rig->out + row * width,
                    width);
        }
    }
    return RSE_OK;
}

static rse_status follow_step(check *c, int32_t set, const int32_t *accepted, rse_error *err) {
    int32_t most = 0;
    for (int32_t row = 0; row < c->problem.batch; row++) {
        most = accepted[row] > most ? accepted[row] : most;
    }
    for (int32_t token = 0; token < most; token++) {
        RSE_TRY(follow(c, set, token, accepted, c->replay.out, err));
    }
    return RSE_OK;
}

static const float *state_at(const bench_rig *rig, int32_t row) {
    return (const float *)(const void *)(rig->checkpoints + (size_t)rig->slots[row] * rig->checkpoint_stride);
}

/* Keeps replay's last step and folds all history, then compares states: bit by bit, or to the tolerance. */
static rse_status compare_states(check *c, const int32_t *accepted, bool exact, rse_error *err) {
    bench_rig *rig = &c->replay;
    const int32_t none[ROWS_MAX + 1] = {0};
    rssm_batch batch = {
        .struct_size = sizeof batch, .rows = c->problem.batch, .slots = rig->slots, .offsets = none};
    RSE_TRY(bench_library(rig->context, rssm_cache_begin(rig->cache, &batch, accepted, NULL, NULL), err));
    RSE_TRY(bench_library(rig->context, rssm_cache_flush(rig->cache, c->problem.batch, rig->slots, NULL, NULL),
                          err));
    size_t bytes = bench_shape_state(c->problem.shape);
    c->worst = c->largest = 0;
    for (int32_t row = 0; row < c->problem.batch && c->problem.checkpoint <= RSSM_DTYPE_F32; row++) {
        const float *a = state_at(rig, row), *b = state_at(&c->conventional, row);
        if (exact && memcmp(a, b, bytes) != 0) {
            char id[192];
            bench_row_name(c->env, &c->problem, BENCH_DECODE, id, sizeof id);
            return rse_fail(err, RSE_ERROR_MISMATCH, "%s: a flushed checkpoint is not the conventional state",
                            id);
        }
        compare(c, a, b, (int64_t)(bytes / sizeof *a));
    }
    return judge(c, "states", err);
}

static rse_status check_decode(check *c, rse_error *err) {
    double unused = 0;
    const int32_t *accepted = NULL;
    for (int32_t step = 0; step < 2 * c->problem.window + 3; step++) {
        int32_t set = c->replay.set;
        RSE_TRY(bench_rig_step(&c->replay, c->problem.tokens, accepted, &unused, err));
        accepted = bench_rig_accept(&c->replay);
        RSE_TRY(follow_step(c, set, accepted, err));
    }
    RSE_TRY(judge(c, "outputs", err));
    return compare_states(c, accepted, true, err);
}

rse_status bench_verify_decode(bench_env *env, const bench_problem *problem, rse_error *err) {
    check c;
    rse_status status = open_check(&c, env, problem, problem->tokens, err);
    status = status == RSE_OK ? check_decode(&c, err) : status;
    close_check(&c);
    return status;
}

static rse_status check_prefill(check *c, rse_error *err) {
    int32_t all[ROWS_MAX];
    double unused;
    for (int32_t row = 0; row < ROWS_MAX; row++) {
        all[row] = c->problem.tokens;
    }
    for (int piece = 0; piece < 2; piece++) {
        int32_t set = c->replay.set;
        RSE_TRY(bench_rig_prefill(&c->replay, 1, &unused, err));
        RSE_TRY(follow_step(c, set, all, err));
    }
    RSE_TRY(judge(c, "outputs", err));
    return compare_states(c, NULL, false, err);
}

rse_status bench_verify_prefill(bench_env *env, const bench_problem *problem, rse_error *err) {
    enum { TOKENS_MAX = 100 }; /* more than one chunk of the scan, with a remainder */
    check c;
    rse_status status =
        open_check(&c, env, problem, problem->tokens < TOKENS_MAX ? problem->tokens : TOKENS_MAX, err);
    status = status == RSE_OK ? check_prefill(&c, err) : status;
    close_check(&c);
    return status;
}
