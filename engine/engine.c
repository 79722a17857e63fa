/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening and describing an engine: options are checked before anything is read, the model is loaded, and the
 * memory that sessions share is made.
 */
#include "engine.h"
#include "sched/calibrate.h"
#include "sched/internal.h"
#include "sched/prefix.h"
#include "sched/snapshot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEFAULT_WINDOW = 16, DEFAULT_BATCH_TOKENS = 512, DEFAULT_BLOCK = 256, MAX_BLOCK = 1 << 16, MAX_SESSIONS = 1 << 20, MAX_BATCH_TOKENS = 1 << 16 };

static rse_status in_range(const char *name, int64_t value, int64_t low, int64_t high, rse_error *err) {
    if (value >= low && value <= high) {
        return RSE_OK;
    }
    return rse_fail(err, RSE_ERROR_USAGE, "%s is %lld; it must be between %lld and %lld", name,
                    (long long)value, (long long)low, (long long)high);
}

static void set_default(int32_t *field, int32_t value) {
    if (*field == 0) {
        *field = value;
    }
}

/* What state formats do not go with. */
static rse_status check_state(rse_engine_options *options, rse_error *err) {
    const rse_state_options *state = &options->state;
    const bool narrow = state->checkpoint_dtype > RSSM_DTYPE_F32;
    if (!narrow && state->read_copy_dtype == RSSM_DTYPE_DEFAULT) {
        return RSE_OK;
    }
    if (options->check && (narrow || state->read_copy_shared != 0)) {
        return rse_fail(err, RSE_ERROR_USAGE,
                        "check compares states with conventional ones bit for bit, which an f32 checkpoint has; it is %s",
                        narrow ? rssm_dtype_name(state->checkpoint_dtype) : "shared with the read copy");
    }
    if (options->method == RSSM_METHOD_AUTO) {
        options->method = RSSM_METHOD_REPLAY;
    }
    return RSE_OK;
}

static rse_status check_block(const rse_engine_options *options, rse_error *err) {
    RSE_TRY(in_range("prefix_block", options->prefix_block, RSE_KV_PAGE, MAX_BLOCK, err));
    if (options->prefix_block % RSE_KV_PAGE != 0) {
        return rse_fail(err, RSE_ERROR_USAGE, "prefix_block is %d; it must be a multiple of %d", options->prefix_block,
                        RSE_KV_PAGE);
    }
    if (options->prefix_bytes > 0 && options->method == RSE_METHOD_SNAPSHOT) {
        return rse_fail(err, RSE_ERROR_USAGE, "prefix_bytes is %lld; the snapshot method has no prefix cache",
                        (long long)options->prefix_bytes);
    }
    return RSE_OK;
}

static rse_status resolve(const rse_engine_options *given, rse_engine_options *options, rse_error *err) {
    *options = given != NULL ? *given : (rse_engine_options){0};
    set_default(&options->io_dtype, RSSM_DTYPE_F32);
    set_default(&options->window, DEFAULT_WINDOW);
    set_default(&options->step_tokens, 1);
    set_default(&options->sessions, 1);
    set_default(&options->batch_tokens, DEFAULT_BATCH_TOKENS);
    set_default(&options->prefix_block, DEFAULT_BLOCK);
    RSE_TRY(in_range("threads", options->threads, 0, RSE_POOL_MAX_THREADS, err));
    RSE_TRY(in_range("method", options->method, RSSM_METHOD_REPLAY, RSE_METHOD_SNAPSHOT, err));
    RSE_TRY(in_range("window", options->window, 1, RSSM_WINDOW_MAX, err));
    RSE_TRY(in_range("step_tokens", options->step_tokens, 1, RSSM_STEP_TOKENS_MAX, err));
    RSE_TRY(in_range("reach", options->reach, 0, RSSM_REACH_MAX, err));
    RSE_TRY(in_range("sessions", options->sessions, 1, MAX_SESSIONS, err));
    RSE_TRY(in_range("batch_tokens", options->batch_tokens, 1, MAX_BATCH_TOKENS, err));
    RSE_TRY(in_range("kv_bytes", options->kv_bytes, 0, INT64_MAX, err));
    RSE_TRY(in_range("prefix_bytes", options->prefix_bytes, 0, INT64_MAX, err));
    RSE_TRY(check_block(options, err));
    if (options->io_dtype != RSSM_DTYPE_F32 && options->io_dtype != RSSM_DTYPE_BF16) {
        return rse_fail(err, RSE_ERROR_USAGE, "io format is %s; it must be f32 or bf16",
                        rssm_dtype_name(options->io_dtype));
    }
    if (options->method == RSSM_METHOD_CONVENTIONAL && options->step_tokens > 1) {
        return rse_fail(err, RSE_ERROR_USAGE, "step_tokens is %d; the conventional method takes 1",
                        options->step_tokens);
    }
    if (options->method == RSE_METHOD_SNAPSHOT && options->check) {
        return rse_fail(err, RSE_ERROR_USAGE,
                        "check compares flushed states, which the snapshot method does not have");
    }
    return check_state(options, err);
}

rse_status rse_cache_create(const rse_engine *engine, int32_t method, const rse_state_options *state,
                            rssm_cache **cache, rse_error *err) {
    const rse_engine_options *options = &engine->options;
    const rse_model *model = engine->model;
    rssm_cache_desc desc = {
        .struct_size = sizeof desc,
        .spec = &model->spec,
        .layers = model->recurrent,
        .first_layer = engine->first_layer,
        .slots = options->sessions,
        .window = options->window,
        .step_tokens = method == RSSM_METHOD_CONVENTIONAL ? 1 : options->step_tokens,
        .reach = options->reach,
        .method = method,
        .io_dtype = options->io_dtype,
    };
    if (state != NULL) {
        rse_calibration_scheme(engine->calibration != NULL, state, &desc);
    }
    return rse_library(engine->context, rssm_cache_create(engine->context, &desc, cache), err);
}

rse_status rse_cache_weights(const rse_engine *engine, rssm_cache *cache, rse_error *err) {
    const rse_model *model = engine->model;
    for (int32_t i = 0; i < model->blocks; i++) {
        const rse_block *block = &model->block[i];
        if (block->kind == RSE_BLOCK_MIXER) {
            rssm_status status = rssm_cache_set_weights(cache, block->mixer.index, &block->mixer.constants);
            RSE_TRY(rse_library(engine->context, status, err));
        }
    }
    return RSE_OK;
}

static rse_status make_cache(rse_engine *engine, rse_error *err) {
    const rse_engine_options *options = &engine->options;
    rssm_context_desc desc = {
        .struct_size = sizeof desc,
        .isa_mask = options->isa_mask,
        .threads = rse_pool_threads(engine->pool),
        .parallel = rse_pool_run,
        .parallel_user = engine->pool,
        .log = options->log,
        .log_user = options->log_user,
    };
    RSE_TRY(rse_library(NULL, rssm_context_create(&desc, &engine->context), err));
    if (engine->model->recurrent == 0) {
        return RSE_OK;
    }
    for (int32_t i = engine->model->blocks - 1; i >= 0; i--) {
        engine->first_layer = engine->model->block[i].kind == RSE_BLOCK_MIXER ? engine->model->block[i].layer : engine->first_layer;
    }
    if (options->method == RSE_METHOD_SNAPSHOT) {
        return rse_snapshots_create(engine, &engine->snapshots, err);
    }
    RSE_TRY(rse_cache_create(engine, options->method, &options->state, &engine->cache, err));
    RSE_TRY(rse_library(engine->context, rssm_cache_allocate(engine->cache), err));
    RSE_TRY(rse_library(engine->context,
                        rssm_cache_prepare(engine->cache, options->sessions, rse_pool_threads(engine->pool)),
                        err));
    RSE_TRY(rse_calibration_apply(engine, &options->state, engine->cache, 0, engine->model->recurrent, err));
    return rse_cache_weights(engine, engine->cache, err);
}

static rse_status make_kv(rse_engine *engine, rse_error *err) {
    const rse_config *config = &engine->model->config;
    rse_kv_desc desc = {
        .layers = engine->model->attention,
        .kv_heads = engine->model->attention > 0 ? config->attention.kv_heads : 1,
        .head_dim = engine->model->attention > 0 ? config->attention.head_dim : 1,
        .dtype = engine->options.io_dtype,
    };
    int64_t page = rse_kv_page_bytes(&desc);
    int64_t full = engine->options.sessions * rse_kv_pages_of(config->max_positions);
    if (engine->options.step_tokens > 1) { /* branches of trees: at most two pages for a token of a step */
        full += 2 * (int64_t)engine->options.sessions * engine->options.step_tokens;
    }
    if (page > 0) { /* what the prefix cache may hold beside them */
        full += engine->options.prefix_bytes / page;
    }
    desc.pages = full < INT32_MAX ? full : INT32_MAX;
    int64_t budget = engine->options.kv_bytes;
    if (budget == 0) {
        budget = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) / 4;
    }
    if (page > 0 && desc.pages > budget / page) {
        desc.pages = budget / page;
    }
    if (desc.pages < 1) {
        return rse_fail(err, RSE_ERROR_USAGE, "kv_bytes is %lld; one page of %d tokens takes %lld",
                        (long long)budget, RSE_KV_PAGE, (long long)page);
    }
    return rse_kv_pool_create(&desc, &engine->kv, err);
}

static rse_status make_arrays(rse_engine *engine, rse_error *err) {
    size_t rows = (size_t)engine->options.sessions;
    size_t tokens = (size_t)engine->options.batch_tokens;
    rse_step_arrays *a = &engine->arrays;
    engine->sessions = calloc(rows, sizeof *engine->sessions);
    a->slots = calloc(rows, sizeof *a->slots);
    a->offsets = calloc(rows + 1, sizeof *a->offsets);
    a->prefill = calloc(rows, sizeof *a->prefill);
    a->accepted = calloc(rows, sizeof *a->accepted);
    a->kv_rows = calloc(rows, sizeof *a->kv_rows);
    a->ids = calloc(tokens, sizeof *a->ids);
    a->positions = calloc(tokens, sizeof *a->positions);
    a->outputs = calloc(tokens, sizeof *a->outputs);
    a->parents = calloc(tokens, sizeof *a->parents);
    a->paths = calloc(rows * (size_t)engine->options.step_tokens, sizeof *a->paths);
    a->attend = calloc(rows + tokens, sizeof *a->attend);
    a->branches = calloc(tokens, sizeof *a->branches);
    bool all = engine->sessions != NULL && a->slots != NULL && a->offsets != NULL && a->prefill != NULL &&
               a->accepted != NULL && a->kv_rows != NULL && a->ids != NULL && a->positions != NULL &&
               a->outputs != NULL && a->parents != NULL && a->paths != NULL && a->attend != NULL &&
               a->branches != NULL;
    return all ? RSE_OK : rse_fail(err, RSE_ERROR_MEMORY, "no memory for %zu sessions", rows);
}

static rse_status make_forward(rse_engine *engine, rse_error *err) {
    rse_forward_desc desc = {
        .model = engine->model,
        .math = engine->math,
        .context = engine->context,
        .cache = engine->cache,
        .recurrence = engine->snapshots != NULL ? rse_snapshots_run : NULL,
        .recurrence_user = engine->snapshots,
        .kv = engine->kv,
        .io_dtype = engine->options.io_dtype,
        .tokens = engine->options.batch_tokens,
        .probe = engine->options.probe,
        .probe_user = engine->options.probe_user,
    };
    return rse_forward_create(&desc, &engine->forward, err);
}

static void report(const rse_engine *engine) {
    static const char *const methods[] = {"replay", "conventional", "auto", "snapshot"};
    if (engine->options.log == NULL) {
        return;
    }
    rse_engine_info info;
    rse_engine_describe(engine, &info);
    char line[256];
    snprintf(line, sizeof line, "%s: %lld parameters, %d layers, %d recurrent, %d with attention",
             info.model_type, (long long)info.parameters, info.layers, info.layers_recurrent,
             info.layers_attention);
    engine->options.log(engine->options.log_user, RSSM_LOG_INFO, line);
    snprintf(line, sizeof line, "method %s, window %d, io %s, %d threads, %s arithmetic", methods[info.method],
             info.window, rssm_dtype_name(info.io_dtype), info.threads, info.isa);
    engine->options.log(engine->options.log_user, RSSM_LOG_INFO, line);
    snprintf(
        line, sizeof line,
        "bytes: weights %lld; per sequence state %lld, buffer %lld, convolution %lld; keys and values %lld per "
        "token, %lld in all",
        (long long)info.weight_bytes, (long long)info.checkpoint_bytes, (long long)info.buffer_bytes,
        (long long)info.conv_bytes, (long long)info.kv_token_bytes, (long long)info.kv_bytes);
    engine->options.log(engine->options.log_user, RSSM_LOG_INFO, line);
}

/* The format of the states: what the options say, or else the model's configuration, or else fp32. */
static rse_status resolve_state(rse_engine *engine, rse_error *err) {
    rse_state_options *state = &engine->options.state;
    set_default(&state->checkpoint_dtype, engine->model->config.state_dtype);
    set_default(&state->checkpoint_dtype, RSSM_DTYPE_F32);
    return check_state(&engine->options, err);
}

static rse_status open_parts(rse_engine *engine, const char *directory, rse_error *err) {
    RSE_TRY(rse_model_open(directory, &engine->model, err));
    RSE_TRY(resolve_state(engine, err));
    RSE_TRY(rse_calibration_find(engine, directory, &engine->calibration, err));
    RSE_TRY(rse_pool_create(engine->options.threads, &engine->pool, err));
    RSE_TRY(rse_math_create(engine->options.isa_mask, engine->pool, &engine->math, err));
    RSE_TRY(make_cache(engine, err));
    RSE_TRY(make_kv(engine, err));
    RSE_TRY(make_arrays(engine, err));
    RSE_TRY(make_forward(engine, err));
    if (engine->options.check && engine->cache != NULL) {
        RSE_TRY(rse_shadow_create(engine, &engine->shadow, err));
    }
    if (engine->options.prefix_bytes > 0) {
        RSE_TRY(rse_prefixes_create(engine, engine->options.prefix_bytes, engine->options.prefix_block,
                                    &engine->prefixes, err));
    }
    report(engine);
    return RSE_OK;
}

rse_status rse_engine_open(const char *directory, const rse_engine_options *options, rse_engine **engine,
                           rse_error *err) {
    *engine = NULL;
    rse_engine_options resolved;
    RSE_TRY(resolve(options, &resolved, err));
    rse_engine *opened = calloc(1, sizeof *opened);
    if (opened == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for an engine");
    }
    opened->options = resolved;
    rse_status status = open_parts(opened, directory, err);
    if (status != RSE_OK) {
        rse_engine_close(opened);
        return status;
    }
    *engine = opened;
    return RSE_OK;
}

void rse_engine_close(rse_engine *engine) {
    if (engine == NULL) {
        return;
    }
    while (engine->first != NULL) {
        rse_session_close(engine->first);
    }
    free(engine->sessions);
    rse_prefixes_destroy(engine->prefixes);
    rse_step_arrays *a = &engine->arrays;
    for (int32_t i = 0; a->branches != NULL && i < engine->options.batch_tokens; i++) {
        rse_kv_seq_free(engine->kv, &a->branches[i].seq);
    }
    void *arrays[] = {a->slots,     a->offsets, a->prefill, a->accepted, a->kv_rows, a->ids,
                      a->positions, a->outputs, a->parents, a->paths,    a->attend,  a->branches};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        free(arrays[i]);
    }
    free(engine->hidden);
    rse_shadow_destroy(engine->shadow);
    rse_forward_destroy(engine->forward);
    rse_kv_pool_destroy(engine->kv);
    rssm_cache_destroy(engine->cache);
    rse_snapshots_destroy(engine->snapshots);
    rssm_context_destroy(engine->context);
    rse_math_destroy(engine->math);
    rse_pool_destroy(engine->pool);
    rse_calibration_close(engine->calibration);
    rse_model_close(engine->model);
    free(engine);
}

rse_status rse_engine_keep_hidden(rse_engine *engine, rse_error *err) {
    size_t values = (size_t)engine->options.batch_tokens * (size_t)engine->model->config.hidden;
    if (engine->hidden == NULL) {
        engine->hidden = malloc(values * sizeof *engine->hidden);
    }
    return engine->hidden != NULL ? RSE_OK
                                  : rse_fail(err, RSE_ERROR_MEMORY, "no memory for %zu hidden values", values);
}

/* Bytes per sequence of parts [first, last] over all layers. */
static int64_t part_bytes(const rse_engine *engine, int32_t first, int32_t last) {
    int64_t bytes = 0;
    for (int32_t part = first; engine->snapshots != NULL && part <= last; part++) {
        bytes += rse_snapshots_bytes(engine->snapshots, part);
    }
    for (int32_t part = first; engine->cache != NULL && part <= last; part++) {
        rssm_part_info info = {0};
        if (rssm_cache_layout(engine->cache, part, &info) == RSSM_OK && info.rank > 0) {
            bytes += info.bytes * (info.per_layer != 0 ? engine->model->recurrent : 1);
        }
    }
    return bytes;
}

void rse_engine_describe(const rse_engine *engine, rse_engine_info *info) {
    const rse_model *model = engine->model;
    const rse_engine_options *options = &engine->options;
    const rse_kv_desc *kv = rse_kv_pool_desc(engine->kv);
    *info = (rse_engine_info){
        .model_type = model->config.model_type,
        .isa = rse_math_isa(engine->math),
        .vocab = model->config.vocab,
        .hidden = model->config.hidden,
        .layers = model->config.layers,
        .layers_recurrent = model->recurrent,
        .layers_attention = model->attention,
        .layers_mlp = model->blocks - model->recurrent - model->attention,
        .mtp_blocks = model->mtp != NULL ? 1 : 0,
        .max_positions = model->config.max_positions,
        .temperature = model->config.temperature,
        .top_p = model->config.top_p,
        .min_p = model->config.min_p,
        .top_k = model->config.top_k,
        .parameters = model->parameters,
        .parameters_mtp = model->parameters_mtp,
        .threads = rse_pool_threads(engine->pool),
        .io_dtype = options->io_dtype,
        .method = options->method,
        .window = options->window,
        .step_tokens = options->step_tokens,
        .sessions = options->sessions,
        .batch_tokens = options->batch_tokens,
        .fingerprint = model->fingerprint,
        .weight_bytes = model->weight_bytes,
        .state = engine->options.state,
        .checkpoint_bytes = part_bytes(engine, RSSM_PART_CHECKPOINT, RSSM_PART_CHECKPOINT) +
                            part_bytes(engine, RSSM_PART_CHECKPOINT_SCALE, RSSM_PART_CHECKPOINT_SCALE),
        .copy_bytes = part_bytes(engine, RSSM_PART_READ_COPY, RSSM_PART_READ_SCALE),
        .buffer_bytes = part_bytes(engine, RSSM_PART_RECORD_K, RSSM_PART_RECORD_DECAY),
        .conv_bytes = part_bytes(engine, RSSM_PART_CONV, RSSM_PART_CONV),
        .cursor_bytes = part_bytes(engine, RSSM_PART_CURSOR, RSSM_PART_LAYER_CURSOR),
        .kv_token_bytes = rse_kv_page_bytes(kv) / RSE_KV_PAGE,
        .kv_bytes = rse_kv_page_bytes(kv) * kv->pages,
        .scratch_bytes = rse_forward_bytes(engine->forward),
    };
}

const char *rse_engine_layer(const rse_engine *engine, int32_t layer) {
    const rse_model *model = engine->model;
    if (layer < 0 || layer >= model->config.layers) {
        return NULL;
    }
    static const char *const pairs[][2] = {
        [RSE_LAYER_GDN] = {"gdn+mlp", "gdn+moe"},
        [RSE_LAYER_MAMBA2] = {"mamba2+mlp", "mamba2+moe"},
        [RSE_LAYER_ATTENTION] = {"attention+mlp", "attention+moe"},
        [RSE_LAYER_KDA] = {"kda+mlp", "kda+moe"},
        [RSE_LAYER_MLA] = {"mla+mlp", "mla+moe"},
    };
    int32_t kind = model->config.layer[layer];
    int32_t ffn = model->config.ffn[layer];
    return ffn != 0 ? pairs[kind][ffn == RSE_LAYER_MOE] : rse_layer_name(kind);
}

bool rse_engine_is_end(const rse_engine *engine, int32_t token) {
    return rse_config_is_eos(&engine->model->config, token);
}

rse_status rse_engine_count(const rse_engine *engine, rse_engine_counters *counters, rse_error *err) {
    if (engine->snapshots != NULL) {
        return rse_snapshots_count(engine->snapshots, counters, err);
    }
    *counters = (rse_engine_counters){.window = engine->options.window, .kernel = "none"};
    if (engine->cache == NULL) {
        return RSE_OK;
    }
    rssm_cache_info info = {.struct_size = sizeof info};
    RSE_TRY(rse_library(engine->context, rssm_cache_status(engine->cache, &info), err));
    *counters =
        (rse_engine_counters){info.bytes_read, info.bytes_written, info.flushes, info.overflows, info.window, info.kernel};
    return RSE_OK;
}

int64_t rse_engine_checked(const rse_engine *engine) {
    return rse_shadow_compared(engine->shadow);
}
