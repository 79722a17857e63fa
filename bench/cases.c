/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The measurements of `bench kernel`. Each samples its rigs and, in the same rounds, sweeps over as many bytes
 * as the states have: reading, updating in place, copying.
 *
 * The floor of a step is the time that its bytes take at these bandwidths. With S the bytes of the batch's
 * states, r and u the seconds that reading and updating S takes, and f the share of the rows that write their
 * checkpoint in the step (1/L by replay with T = 1, 1 conventionally),
 *
 *     floor = (1 - f) r + f u + (records read / S) r + (records written / 2S) u
 *
 * where S is in fp32. Of a narrow checkpoint f stands for f c, c its share of the fp32 bytes, and what is read or
 * written beyond it, copies and records, counts by its bytes.
 *
 * and the ceiling of the ratio is the conventional floor, times the tokens kept per replay step, over replay's.
 */
#include "kernel.h"

#include <stdlib.h>
#include <string.h>

/* ---- Figures ------------------------------------------------------------------------------------------ */

/* Bytes relative to the fp32 states': of checkpoints that are read and written in place, and of what else is read and
   written. */
typedef struct traffic {
    double update, read, written;
} traffic;

/* What the probes of a round are, and whose traffic the floor is computed for. */
typedef struct view {
    int main, conventional, read, update, copy;
    traffic traffic, conventional_traffic;
    double committed;
    double bytes; /* read and written by a step, relative to the states' */
} view;

static double floor_of(const double *round, const view *v, const traffic *t) {
    double r = round[v->read], u = round[v->update];
    return t->update * u + t->read * r + 0.5 * t->written * u;
}

static double round_floor(const double *round, const void *user) {
    const view *v = user;
    return floor_of(round, v, &v->traffic);
}
static double round_of_floor(const double *round, const void *user) {
    const view *v = user;
    return round_floor(round, user) / round[v->main];
}
static double round_of_copy(const double *round, const void *user) {
    const view *v = user;
    return 0.5 * v->bytes * round[v->copy] / round[v->main];
}
static double round_ratio(const double *round, const void *user) {
    const view *v = user;
    return v->committed * round[v->conventional] / round[v->main];
}
static double round_ratio_floors(const double *round, const void *user) {
    const view *v = user;
    return v->committed * floor_of(round, v, &v->conventional_traffic) / floor_of(round, v, &v->traffic);
}

/* share: of the checkpoint's bytes in those of fp32. */
static traffic read_traffic(bench_row *row, const bench_count *count, double share) {
    double steps = (double)count->steps, batch = row->problem.batch;
    row->bytes_read = (double)count->bytes_read / steps;
    row->bytes_written = (double)count->bytes_written / steps;
    row->flushes = (double)count->flushes / steps;
    double update = row->flushes / batch * share;
    return (traffic){update, row->bytes_read / row->state_bytes - update,
                     row->bytes_written / row->state_bytes - update};
}

static void finish_row(const bench_series *series, view *v, bench_row *row) {
    double s = row->state_bytes;
    row->samples = series->rounds;
    row->step = bench_series_quantiles(series, v->main);
    row->read = s / bench_series_quantiles(series, v->read).p50;
    row->update = 2 * s / bench_series_quantiles(series, v->update).p50;
    row->copy = 2 * s / bench_series_quantiles(series, v->copy).p50;
    v->bytes = (row->bytes_read + row->bytes_written) / s;
    v->committed = row->committed;
    row->floor = bench_series_median(series, round_floor, v);
    row->of_floor = bench_series_median(series, round_of_floor, v);
    row->of_copy = bench_series_median(series, round_of_copy, v);
    row->ratio = bench_series_median(series, round_ratio, v);
    row->ratio_floors = bench_series_median(series, round_ratio_floors, v);
}

static void start_row(const bench_env *env, const bench_rig *rig, int32_t operation, bench_row *row) {
    const bench_problem *p = &rig->problem;
    *row = (bench_row){
        .kernel = rig->kernel, .operation = operation, .problem = *p, .groups = rig->groups, .committed = 1};
    row->state_bytes = (double)bench_shape_state(p->shape) * p->batch;
    bench_row_name(env, p, operation, row->id, sizeof row->id);
}

static double mean_accepted(const bench_problem *p) {
    return p->accept > 0 ? p->accept : 0.5 * (1 + p->tokens);
}

/* ---- Decode ------------------------------------------------------------------------------------------- */

/* What a measurement holds. */
typedef struct bench_stand {
    bench_inputs inputs;
    bench_rig replay, conventional; /* in the arenas of these names */
    bench_rig_probe replay_probe, conventional_probe;
    bench_sweep_probe sweeps[3];
} bench_stand;

static void stand_close(bench_stand *stand) {
    bench_rig_destroy(&stand->replay);
    bench_rig_destroy(&stand->conventional);
    bench_inputs_destroy(&stand->inputs);
}

/* Rigs for both methods, settled, and the probes of a series; `flush`: replay's is for steps that flush. */
static rse_status stand_open(bench_env *env, const bench_problem *p, bool flush, bench_stand *stand, view *v,
                             rse_error *err) {
    int32_t groups = bench_rig_groups(p, env->pool_bytes);
    int32_t fill = p->window < RSSM_STEP_TOKENS_MAX ? p->window : RSSM_STEP_TOKENS_MAX;
    int32_t most = flush && fill > p->tokens ? fill : p->tokens;
    bench_problem one = *p;
    one.tokens = one.accept = 1;
    bench_rig_options replay = {RSSM_METHOD_REPLAY, groups, most, flush};
    bench_rig_options conventional = {RSSM_METHOD_CONVENTIONAL, groups, 1, false};
    *stand = (bench_stand){0};
    RSE_TRY(bench_inputs_create(p->shape, p->io, (int64_t)p->batch * most, 2, 1, &stand->inputs, err));
    RSE_TRY(bench_rig_create(env->context, &stand->inputs, p, &replay, env->threads, &env->replay,
                             &stand->replay, err));
    RSE_TRY(bench_rig_create(env->context, &stand->inputs, &one, &conventional, env->threads,
                             &env->conventional, &stand->conventional, err));
    if (!flush) {
        RSE_TRY(bench_rig_settle(&stand->replay, err));
    }
    RSE_TRY(bench_rig_settle(&stand->conventional, err));
    stand->replay_probe = (bench_rig_probe){&stand->replay, flush ? bench_rig_flush : bench_rig_decode, 1};
    RSE_TRY(bench_rig_calibrate(&stand->replay_probe, err));
    int32_t steps = stand->replay_probe.steps;
    stand->conventional_probe = (bench_rig_probe){&stand->conventional, bench_rig_decode, steps};
    env->series->count = 0;
    env->floors.warm = p->warm;
    v->main = bench_series_add(env->series, bench_sample_rig, &stand->replay_probe);
    int at[3];
    for (int kind = BENCH_SWEEP_READ; kind <= BENCH_SWEEP_COPY; kind++) {
        stand->sweeps[kind] =
            (bench_sweep_probe){&env->floors, kind, steps, bench_shape_state(p->shape) * (size_t)p->batch};
        at[kind] = bench_series_add(env->series, bench_sample_sweep, &stand->sweeps[kind]);
    }
    v->conventional = bench_series_add(env->series, bench_sample_rig, &stand->conventional_probe);
    v->read = at[BENCH_SWEEP_READ];
    v->update = at[BENCH_SWEEP_UPDATE];
    v->copy = at[BENCH_SWEEP_COPY];
    return RSE_OK;
}

static rse_status measure(bench_env *env, const bench_problem *p, bool flush, bench_stand *stand,
                          bench_row rows[2], rse_error *err) {
    view v = {0};
    RSE_TRY(stand_open(env, p, flush, stand, &v, err));
    start_row(env, &stand->replay, flush ? BENCH_FLUSH : BENCH_DECODE, &rows[0]);
    start_row(env, &stand->conventional, BENCH_CONVENTIONAL, &rows[1]);
    stand->replay.count = stand->conventional.count = (bench_count){0};
    RSE_TRY(bench_env_run(env, err));
    view c = v;
    c.main = c.conventional;
    const int32_t format = p->checkpoint;
    v.traffic = read_traffic(&rows[0], &stand->replay.count,
                             format <= RSSM_DTYPE_F32 ? 1.0 : format == RSSM_DTYPE_F8 ? 0.25 : 0.5);
    c.traffic = read_traffic(&rows[1], &stand->conventional.count, 1.0);
    v.conventional_traffic = c.conventional_traffic = c.traffic;
    rows[0].committed = mean_accepted(p);
    finish_row(env->series, &v, &rows[0]);
    finish_row(env->series, &c, &rows[1]);
    for (int i = 0; i < 2; i++) {
        rows[i].ratio_bytes = rows[i].committed * (rows[1].bytes_read + rows[1].bytes_written) /
                              (rows[i].bytes_read + rows[i].bytes_written);
    }
    return RSE_OK;
}

rse_status bench_measure_decode(bench_env *env, const bench_problem *problem, bench_row rows[2],
                                rse_error *err) {
    bench_stand stand = {0};
    rse_status status = measure(env, problem, false, &stand, rows, err);
    stand_close(&stand);
    return status;
}

rse_status bench_measure_flush(bench_env *env, const bench_problem *problem, bench_row *row, rse_error *err) {
    bench_stand stand = {0};
    bench_row rows[2];
    rse_status status = measure(env, problem, true, &stand, rows, err);
    stand_close(&stand);
    *row = rows[0];
    return status;
}

/* ---- Prefill ------------------------------------------------------------------------------------------ */

/* 2 d_k d_v multiply-adds per token and head (update, output), 3 with the delta rule. */
static double multiply_adds(const bench_problem *p) {
    const bench_shape *s = p->shape;
    return (s->kind == RSSM_MAMBA2 ? 2.0 : 3.0) * s->d_k * s->d_v * s->value_heads * p->tokens * p->batch;
}

typedef struct prefill_view {
    int prefill, peak, decode;
    double macs;
    int32_t tokens;
} prefill_view;

static double round_of_peak(const double *round, const void *user) {
    const prefill_view *v = user;
    return v->macs * round[v->peak] / round[v->prefill];
}
static double round_of_decode(const double *round, const void *user) {
    const prefill_view *v = user;
    return round[v->prefill] / v->tokens / round[v->decode];
}

/* Beside it a decoded token of the same batch, its states warm as they are after the first token of a prompt.
 */
static rse_status measure_prefill(bench_env *env, const bench_problem *p, bench_stand *stand, bench_row *row,
                                  rse_error *err) {
    bench_problem one = *p;
    one.tokens = one.accept = 1;
    one.warm = true;
    int32_t groups = bench_rig_groups(p, env->pool_bytes);
    bench_rig_options prompts = {RSSM_METHOD_REPLAY, groups, 1, false};
    bench_rig_options tokens = {RSSM_METHOD_REPLAY, 1, 1, false};
    RSE_TRY(bench_inputs_create(p->shape, p->io, (int64_t)p->batch * p->tokens, 2, 1, &stand->inputs, err));
    RSE_TRY(bench_rig_create(env->context, &stand->inputs, p, &prompts, env->threads, &env->replay,
                             &stand->replay, err));
    RSE_TRY(bench_rig_create(env->context, &stand->inputs, &one, &tokens, env->threads, &env->conventional,
                             &stand->conventional, err));
    RSE_TRY(bench_rig_settle(&stand->conventional, err));
    stand->replay_probe = (bench_rig_probe){&stand->replay, bench_rig_prefill, 1};
    stand->conventional_probe = (bench_rig_probe){&stand->conventional, bench_rig_decode, 1};
    RSE_TRY(bench_rig_calibrate(&stand->replay_probe, err));
    RSE_TRY(bench_rig_calibrate(&stand->conventional_probe, err));
    env->series->count = 0;
    prefill_view v = {.macs = multiply_adds(p), .tokens = p->tokens};
    v.prefill = bench_series_add(env->series, bench_sample_rig, &stand->replay_probe);
    v.peak = bench_series_add(env->series, bench_sample_multiply_add, &env->floors);
    v.decode = bench_series_add(env->series, bench_sample_rig, &stand->conventional_probe);
    RSE_TRY(bench_env_run(env, err));
    start_row(env, &stand->replay, BENCH_PREFILL, row);
    row->samples = env->series->rounds;
    row->step = bench_series_quantiles(env->series, v.prefill);
    row->macs = v.macs / row->step.p50;
    row->peak_macs = 1 / bench_series_quantiles(env->series, v.peak).p50;
    row->of_peak = bench_series_median(env->series, round_of_peak, &v);
    row->of_decode = bench_series_median(env->series, round_of_decode, &v);
    return RSE_OK;
}

rse_status bench_measure_prefill(bench_env *env, const bench_problem *problem, bench_row *row, rse_error *err) {
    bench_stand stand = {0};
    rse_status status = measure_prefill(env, problem, &stand, row, err);
    stand_close(&stand);
    return status;
}
