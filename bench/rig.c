/* SPDX-License-Identifier: Apache-2.0 */
#include "rig.h"
#include "measure.h"
#include "random.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY(call) RSE_TRY(bench_library(rig->context, (call), err))

rse_status bench_library(const rssm_context *context, rssm_status status, rse_error *err) {
    if (status == RSSM_OK) {
        return RSE_OK;
    }
    return rse_fail(err, RSE_ERROR_LIBRARY, "%s: %s", rssm_status_string(status),
                    rssm_context_message(context));
}

/* ---- Memory of a cache -------------------------------------------------------------------------------- */

static size_t round_up(size_t bytes, size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

/* Lays the parts one after another, each with all slots; base NULL only measures. */
static rse_status bind_parts(bench_rig *rig, int64_t slots, unsigned char *base, size_t *bytes,
                             rse_error *err) {
    size_t at = 0;
    for (int32_t part = 0; part < RSSM_PARTS; part++) {
        rssm_part_info info;
        LIBRARY(rssm_cache_layout(rig->cache, part, &info));
        if (info.rank == 0) {
            continue;
        }
        size_t stride = round_up((size_t)info.bytes, 64);
        if (base != NULL) {
            LIBRARY(rssm_cache_bind(rig->cache, 0, part, base + at, (int64_t)stride));
        }
        if (part == RSSM_PART_CHECKPOINT && base != NULL) {
            rig->checkpoints = base + at;
            rig->checkpoint_stride = stride;
        }
        at = round_up(at + stride * (size_t)slots, 4096);
    }
    *bytes = at;
    return RSE_OK;
}

static rssm_layer_spec spec_of(const bench_shape *shape) {
    return (rssm_layer_spec){.struct_size = sizeof(rssm_layer_spec),
                             .kind = shape->kind,
                             .key_heads = shape->key_heads,
                             .value_heads = shape->value_heads,
                             .d_k = shape->d_k,
                             .d_v = shape->d_v,
                             .gate = RSSM_GATE_LOG};
}

static rse_status make_cache(bench_rig *rig, const bench_rig_options *options, int32_t threads,
                             bench_arena *arena, rse_error *err) {
    const bench_problem *p = &rig->problem;
    rssm_layer_spec spec = spec_of(p->shape);
    int64_t slots = (int64_t)rig->groups * p->batch;
    bool conventional = options->method == RSSM_METHOD_CONVENTIONAL;
    rssm_cache_desc desc = {.struct_size = sizeof desc,
                            .spec = &spec,
                            .layers = 1,
                            .slots = slots,
                            .window = p->window,
                            .step_tokens = conventional ? 1 : options->step_tokens,
                            .method = options->method,
                            .io_dtype = p->io};
    if (!conventional) {
        desc.checkpoint_dtype = p->checkpoint;
        desc.checkpoint_rounding = p->rounding;
        desc.read_copy_dtype = p->copy;
    }
    LIBRARY(rssm_cache_create(rig->context, &desc, &rig->cache));
    rssm_cache_info info = {.struct_size = sizeof info};
    LIBRARY(rssm_cache_status(rig->cache, &info));
    rig->kernel = info.kernel;
    size_t bytes;
    RSE_TRY(bind_parts(rig, slots, NULL, &bytes, err));
    RSE_TRY(bench_arena_reserve(arena, bytes, err));
    RSE_TRY(bind_parts(rig, slots, arena->base, &bytes, err));
    LIBRARY(rssm_cache_prepare(rig->cache, p->batch, threads));
    return RSE_OK;
}

/* A random order of the slots, and their sequences started. */
static rse_status start_slots(bench_rig *rig, bool together, rse_error *err) {
    int64_t n = (int64_t)rig->groups * rig->problem.batch;
    uint64_t *ids = malloc((size_t)n * sizeof *ids);
    if (ids == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for %lld slots", (long long)n);
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t j = (int64_t)(bench_random(&rig->random) % (uint64_t)(i + 1));
        rig->slots[i] = rig->slots[j];
        rig->slots[j] = (int32_t)i;
        ids[i] = together ? 0 : (uint64_t)i;
    }
    rse_status status =
        bench_library(rig->context, rssm_cache_reset(rig->cache, n, rig->slots, ids, NULL, NULL), err);
    free(ids);
    return status;
}

rse_status bench_rig_create(rssm_context *context, const bench_inputs *inputs, const bench_problem *problem,
                            const bench_rig_options *options, int32_t threads, bench_arena *arena,
                            bench_rig *rig, rse_error *err) {
    bench_rig_options o = *options;
    o.step_tokens = o.step_tokens == 0 ? problem->tokens : o.step_tokens;
    *rig = (bench_rig){.context = context,
                       .inputs = inputs,
                       .problem = *problem,
                       .method = o.method,
                       .groups = o.groups,
                       .random = 1};
    size_t batch = (size_t)problem->batch;
    size_t row = (size_t)problem->shape->value_heads * (size_t)problem->shape->d_v;
    rig->slots = malloc((size_t)o.groups * batch * sizeof *rig->slots);
    rig->accepted = malloc(batch * sizeof *rig->accepted);
    rig->out = malloc((size_t)inputs->tokens * row * sizeof *rig->out);
    if (rig->slots == NULL || rig->accepted == NULL || rig->out == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for a batch of %d", (int)problem->batch);
    }
    RSE_TRY(make_cache(rig, &o, threads, arena, err));
    return start_slots(rig, o.together, err);
}

void bench_rig_destroy(bench_rig *rig) {
    rssm_cache_destroy(rig->cache);
    free(rig->slots);
    free(rig->accepted);
    free(rig->out);
    *rig = (bench_rig){0};
}

static rse_status add_counters(bench_rig *rig, int64_t sign, rse_error *err) {
    rssm_cache_info info = {.struct_size = sizeof info};
    LIBRARY(rssm_cache_status(rig->cache, &info));
    rig->count.steps += sign * info.steps;
    rig->count.flushes += sign * info.flushes;
    rig->count.bytes_read += sign * info.bytes_read;
    rig->count.bytes_written += sign * info.bytes_written;
    return RSE_OK;
}

/* ---- Steps -------------------------------------------------------------------------------------------- */

static void next_step(bench_rig *rig) {
    rig->group = (rig->group + 1) % rig->groups;
    rig->set = (rig->set + 1) % rig->inputs->sets;
}

rse_status bench_rig_step(bench_rig *rig, int32_t tokens, const int32_t *accepted, double *seconds,
                          rse_error *err) {
    const bench_problem *p = &rig->problem;
    rssm_batch batch = {.struct_size = sizeof batch,
                        .rows = p->batch,
                        .uniform_tokens = tokens,
                        .slots = rig->slots + (int64_t)rig->group * p->batch};
    assert((int64_t)tokens * p->batch <= rig->inputs->tokens);
    rssm_layer_inputs inputs = bench_inputs_view(rig->inputs, rig->set, 0, 1);
    rssm_output out = {.struct_size = sizeof out, .data = rig->out, .dtype = RSSM_DTYPE_F32};
    double start = bench_clock();
    LIBRARY(rssm_cache_begin(rig->cache, &batch, accepted, NULL, NULL));
    LIBRARY(rssm_cache_decode(rig->cache, 0, &batch, &inputs, &out, NULL));
    *seconds += bench_clock() - start;
    next_step(rig);
    return RSE_OK;
}

const int32_t *bench_rig_accept(bench_rig *rig) {
    const bench_problem *p = &rig->problem;
    for (int32_t i = 0; i < p->batch; i++) {
        rig->accepted[i] =
            p->accept > 0 ? p->accept : 1 + (int32_t)(bench_random(&rig->random) % (uint64_t)p->tokens);
    }
    return rig->accepted;
}

rse_status bench_rig_decode(bench_rig *rig, int32_t steps, double *seconds, rse_error *err) {
    bool conventional = rig->method == RSSM_METHOD_CONVENTIONAL;
    *seconds = 0;
    RSE_TRY(add_counters(rig, -1, err));
    for (int32_t i = 0; i < steps; i++) {
        const int32_t *accepted = conventional ? NULL : bench_rig_accept(rig);
        RSE_TRY(bench_rig_step(rig, conventional ? 1 : rig->problem.tokens, accepted, seconds, err));
    }
    return add_counters(rig, 1, err);
}

rse_status bench_rig_settle(bench_rig *rig, rse_error *err) {
    double unused;
    int32_t passes = rig->method == RSSM_METHOD_CONVENTIONAL ? 1 : rig->problem.window;
    return bench_rig_decode(rig, passes * rig->groups, &unused, err);
}

/* Fills the buffers of all groups with a window of records, in as few steps as may be; the last stays pending.
 */
static rse_status fill_window(bench_rig *rig, int32_t *last, rse_error *err) {
    double unused = 0;
    int32_t left = rig->problem.window;
    *last = 0; /* what a flushing step left pending is dropped */
    while (left > 0) {
        int32_t tokens = left < RSSM_STEP_TOKENS_MAX ? left : RSSM_STEP_TOKENS_MAX;
        for (int32_t i = 0; i < rig->problem.batch; i++) {
            rig->accepted[i] = *last;
        }
        for (int32_t g = 0; g < rig->groups; g++) {
            RSE_TRY(bench_rig_step(rig, tokens, rig->accepted, &unused, err));
        }
        left -= tokens;
        *last = tokens;
    }
    for (int32_t i = 0; i < rig->problem.batch; i++) {
        rig->accepted[i] = *last;
    }
    return RSE_OK;
}

rse_status bench_rig_flush(bench_rig *rig, int32_t steps, double *seconds, rse_error *err) {
    *seconds = 0;
    for (int32_t i = 0; i < steps; i++) {
        int32_t last;
        if (rig->group == 0) {
            RSE_TRY(fill_window(rig, &last, err));
        }
        RSE_TRY(add_counters(rig, -1, err));
        RSE_TRY(bench_rig_step(rig, rig->problem.tokens, rig->accepted, seconds, err));
        RSE_TRY(add_counters(rig, 1, err));
    }
    return RSE_OK;
}

static rse_status prefill(bench_rig *rig, double *seconds, rse_error *err) {
    const bench_problem *p = &rig->problem;
    uint8_t flags[64];
    assert(p->batch <= (int32_t)sizeof flags);
    memset(flags, 1, sizeof flags);
    rssm_batch batch = {.struct_size = sizeof batch,
                        .rows = p->batch,
                        .uniform_tokens = p->tokens,
                        .slots = rig->slots + (int64_t)rig->group * p->batch,
                        .prefill = flags};
    rssm_layer_inputs inputs = bench_inputs_view(rig->inputs, rig->set, 0, 1);
    rssm_output out = {.struct_size = sizeof out, .data = rig->out, .dtype = RSSM_DTYPE_F32};
    double start = bench_clock();
    LIBRARY(rssm_cache_begin(rig->cache, &batch, NULL, NULL, NULL));
    LIBRARY(rssm_cache_prefill(rig->cache, 0, &batch, &inputs, &out, NULL));
    *seconds += bench_clock() - start;
    next_step(rig);
    return RSE_OK;
}

rse_status bench_rig_prefill(bench_rig *rig, int32_t steps, double *seconds, rse_error *err) {
    *seconds = 0;
    for (int32_t i = 0; i < steps; i++) {
        RSE_TRY(prefill(rig, seconds, err));
    }
    return RSE_OK;
}

/* ---- Probes ------------------------------------------------------------------------------------------- */

rse_status bench_sample_rig(void *rig_probe, double *seconds, rse_error *err) {
    bench_rig_probe *p = rig_probe;
    RSE_TRY(p->run(p->rig, p->steps, seconds, err));
    *seconds /= p->steps;
    return RSE_OK;
}

/* Steps whose rows hold each flush phase equally often: groups hold neighbouring phases, and if they are as
 * many as a multiple of this, blocks of this many groups do. A single group needs a whole window instead. */
static int32_t phase_unit(const bench_problem *p) {
    if (p->warm) {
        return p->batch % p->window == 0 ? 1 : p->window;
    }
    int32_t divisor = p->window;
    while (p->window % divisor != 0 || p->batch % divisor != 0) {
        divisor--;
    }
    return p->window / divisor;
}

rse_status bench_rig_calibrate(bench_rig_probe *probe, rse_error *err) {
    int32_t unit = probe->run == bench_rig_decode ? phase_unit(&probe->rig->problem) : 1;
    double seconds;
    RSE_TRY(probe->run(probe->rig, unit, &seconds, err));
    RSE_TRY(probe->run(probe->rig, unit, &seconds, err));
    double units = BENCH_SAMPLE_SECONDS / (seconds + 1e-6) + 1;
    probe->steps = unit * (int32_t)units;
    return RSE_OK;
}

int32_t bench_rig_groups(const bench_problem *problem, size_t pool_bytes) {
    size_t batch = bench_shape_state(problem->shape) * (size_t)problem->batch;
    size_t groups = (pool_bytes + batch - 1) / batch, unit = (size_t)phase_unit(problem);
    groups = groups < 2 ? 2 : groups;
    return problem->warm ? 1 : (int32_t)((groups + unit - 1) / unit * unit);
}
