/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mixture of experts over the tokens of a step. The router works in f32 whatever the io format: near-ties of
 * its scores decide which weights a token meets. Experts run grouped, one pass of each over the tokens that use
 * it, so that its weights are read once per step. A token's result is the sum over its experts in the order of
 * their numbers, whoever else is in the step.
 */
#include "model/forward_parts.h"

#include <math.h>
#include <string.h>

void rse_experts_measure(const rse_config *config, rse_scratch *scratch) {
    const rse_config_moe *moe = &config->moe;
    int64_t width = rse_larger(moe->width, moe->shared_width);
    int64_t row = moe->latent > 0 ? moe->latent : config->hidden;
    scratch->wide = rse_larger(scratch->wide, width);
    scratch->inner = rse_larger(scratch->inner, width);
    scratch->low = rse_larger(scratch->low, 2 * (int64_t)moe->latent);
    scratch->score = rse_larger(scratch->score, moe->experts);
    scratch->gathered = rse_larger(scratch->gathered, row);
    scratch->given = rse_larger(scratch->given, rse_larger(row, config->hidden));
    scratch->route = rse_larger(scratch->route, 4 * (int64_t)moe->used);
}

/* ---- Who uses what ---- */

/* Each token's experts in ascending order, and the weights of their results: both [tokens][used]. Then the same
 * by expert: `to` holds the tokens of expert 0, of expert 1, ..., `factor` their weights. */
typedef struct routes {
    const rse_config_moe *shape;
    const float *correction; /* [experts] or NULL */
    float *score;            /* [tokens][experts] */
    int32_t *choice;
    float *weight;
    int32_t *to;
    float *factor;
} routes;

static float rank_of(const routes *r, const float *score, int32_t expert) {
    return r->correction != NULL ? score[expert] + r->correction[expert] : score[expert];
}

/* Whether expert a ranks before b: the larger value, NaN last, the lower number among equals. */
static bool before(const routes *r, const float *score, int32_t a, int32_t b) {
    float x = rank_of(r, score, a), y = rank_of(r, score, b);
    if (isnan(x) || isnan(y)) {
        return isnan(x) == isnan(y) ? a < b : isnan(y);
    }
    return x > y || (x == y && a < b);
}

static void choose(const routes *r, const float *score, int32_t *choice) {
    int32_t used = r->shape->used;
    int32_t count = 0;
    for (int32_t e = 0; e < r->shape->experts; e++) {
        if (count == used && !before(r, score, e, choice[used - 1])) {
            continue;
        }
        int32_t at = count < used ? count++ : used - 1;
        for (; at > 0 && before(r, score, e, choice[at - 1]); at--) {
            choice[at] = choice[at - 1];
        }
        choice[at] = e;
    }
    for (int32_t i = 1; i < used; i++) {
        int32_t e = choice[i];
        int32_t at = i;
        for (; at > 0 && choice[at - 1] > e; at--) {
            choice[at] = choice[at - 1];
        }
        choice[at] = e;
    }
}

static void to_scores(const rse_config_moe *shape, float *x) {
    float max = -INFINITY;
    float sum = 0.0f;
    for (int32_t e = 0; e < shape->experts; e++) {
        max = x[e] > max ? x[e] : max;
    }
    for (int32_t e = 0; e < shape->experts; e++) {
        x[e] = shape->sigmoid ? 1.0f / (1.0f + expf(-x[e])) : expf(x[e] - max);
        sum += x[e];
    }
    for (int32_t e = 0; !shape->sigmoid && e < shape->experts; e++) {
        x[e] /= sum;
    }
}

static void route_token(void *arg, int64_t token) {
    const routes *r = arg;
    const rse_config_moe *shape = r->shape;
    float *score = r->score + token * shape->experts;
    int32_t *choice = r->choice + token * shape->used;
    float *weight = r->weight + token * shape->used;
    to_scores(shape, score);
    choose(r, score, choice);
    float sum = 0.0f;
    for (int32_t i = 0; i < shape->used; i++) {
        weight[i] = score[choice[i]];
        sum += weight[i];
    }
    for (int32_t i = 0; i < shape->used; i++) {
        weight[i] *= shape->normalise ? shape->scale / (sum + 1e-20f) : shape->scale;
    }
}

/* start [experts + 1]: where each expert's tokens begin in `to`. */
static void sort_by_expert(const routes *r, int64_t tokens, int32_t *start) {
    const rse_config_moe *shape = r->shape;
    memset(start, 0, (size_t)(shape->experts + 1) * sizeof *start);
    for (int64_t i = 0; i < tokens * shape->used; i++) {
        start[r->choice[i] + 1]++;
    }
    for (int32_t e = 0; e < shape->experts; e++) {
        start[e + 1] += start[e];
    }
    int32_t next[RSE_EXPERTS_MAX];
    memcpy(next, start, (size_t)shape->experts * sizeof *start);
    for (int64_t i = 0; i < tokens * shape->used; i++) {
        int32_t at = next[r->choice[i]]++;
        r->to[at] = (int32_t)(i / shape->used);
        r->factor[at] = r->weight[i];
    }
}

/* ---- The block ---- */

/* y [tokens][cols] = the weighted sum of the experts' results for x. */
static void run_experts(rse_forward *f, int64_t tokens, const rse_moe *moe, const routes *r, int64_t cols,
                        const float *x, float *y) {
    int32_t start[RSE_EXPERTS_MAX + 1];
    sort_by_expert(r, tokens, start);
    memset(y, 0, (size_t)(tokens * cols) * sizeof *y);
    for (int32_t e = 0; e < r->shape->experts; e++) {
        int64_t count = start[e + 1] - start[e];
        const int32_t *to = r->to + start[e];
        if (count == 0) {
            continue;
        }
        for (int64_t i = 0; i < count; i++) {
            memcpy(f->gathered + i * cols, x + to[i] * cols, (size_t)cols * sizeof *x);
        }
        rse_forward_mlp(f, count, &moe->expert[e], f->gathered, f->given);
        rse_add_scaled(f->desc.math, count, cols, f->given, cols, r->factor + start[e], to, y, cols);
    }
    rse_forward_store(f, tokens, cols, y, cols);
}

/* delta += the shared expert, through its gate where it has one. */
static void add_shared(rse_forward *f, int64_t tokens, const rse_moe *moe, int64_t hidden) {
    const rse_math *math = f->desc.math;
    rse_forward_mlp(f, tokens, &moe->shared, f->normed, f->given);
    if (moe->shared_gate.w.data == NULL) {
        rse_add(math, tokens, hidden, f->delta, hidden, f->given, hidden, f->delta, hidden);
    } else {
        rse_forward_linear(f, &moe->shared_gate, tokens, f->normed, hidden, f->score, 1);
        for (int64_t t = 0; t < tokens; t++) {
            f->score[t] = 1.0f / (1.0f + expf(-f->score[t]));
        }
        rse_add_scaled(math, tokens, hidden, f->given, hidden, f->score, NULL, f->delta, hidden);
    }
    rse_forward_store(f, tokens, hidden, f->delta, hidden);
}

void rse_experts_run(rse_forward *f, int64_t tokens, const rse_moe *moe) {
    const rse_config *config = &f->desc.model->config;
    const rse_config_moe *shape = &config->moe;
    const rse_math *math = f->desc.math;
    int64_t hidden = config->hidden;
    int64_t uses = tokens * shape->used;
    float *arrays = f->route;
    routes r = {.shape = shape,
                .correction = moe->correction,
                .score = f->score,
                .choice = (int32_t *)arrays,
                .weight = arrays + uses,
                .to = (int32_t *)(arrays + 2 * uses),
                .factor = arrays + 3 * uses};
    rse_matmul(math, &moe->router.w, NULL, tokens, f->normed, hidden, f->score, shape->experts);
    rse_pool_run(rse_math_pool(math), tokens, route_token, &r);
    if (moe->latent_in.w.data == NULL) {
        run_experts(f, tokens, moe, &r, hidden, f->normed, f->delta);
    } else {
        float *sum = f->low + tokens * shape->latent;
        rse_forward_linear(f, &moe->latent_in, tokens, f->normed, hidden, f->low, shape->latent);
        run_experts(f, tokens, moe, &r, shape->latent, f->low, sum);
        if (moe->latent_norm != NULL) {
            rse_rms_norm(math, tokens, shape->latent, sum, shape->latent, moe->latent_norm, config->norm_eps,
                         sum, shape->latent);
            rse_forward_store(f, tokens, shape->latent, sum, shape->latent);
        }
        rse_forward_linear(f, &moe->latent_out, tokens, sum, shape->latent, f->delta, hidden);
    }
    if (moe->shared.up.w.data != NULL) {
        add_shared(f, tokens, moe, hidden);
    }
}
