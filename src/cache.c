/* SPDX-License-Identifier: Apache-2.0 */
/* Creating a cache: checking the spec, laying out the parts, and their memory. */
#include "cache.h"
#include "device_ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SCRATCH_ALIGNMENT = 64 };

/* ---- Checking ----------------------------------------------------------------------------------------- */

static rssm_status check_range(rssm_context *context, const char *name, int64_t value, int64_t least, int64_t most) {
    if (value < least || value > most) {
        return rssm_fail(context, RSSM_ERROR_ARGUMENT, "%s is %lld; the limits are %lld and %lld", name, (long long)value,
                         (long long)least, (long long)most);
    }
    return RSSM_OK;
}

static rssm_status check_float(rssm_context *context, const char *name, float value, float least, float most) {
    if (!(value >= least && value <= most)) { /* NaN too */
        return rssm_fail(context, RSSM_ERROR_ARGUMENT, "%s is %g; the limits are %g and %g", name, (double)value,
                         (double)least, (double)most);
    }
    return RSSM_OK;
}

static rssm_status check_heads(rssm_context *context, rssm_layer_spec *s) {
    RSSM_TRY(check_range(context, "key_heads", s->key_heads, 1, 65536));
    RSSM_TRY(check_range(context, "value_heads", s->value_heads, 1, 65536));
    RSSM_TRY(check_range(context, "d_k", s->d_k, 1, RSSM_HEAD_DIM_MAX));
    RSSM_TRY(check_range(context, "d_v", s->d_v, 1, RSSM_HEAD_DIM_MAX));
    RSSM_TRY(check_range(context, "head_map", s->head_map, RSSM_HEAD_MAP_BLOCKS, RSSM_HEAD_MAP_MODULO));
    if (s->value_heads % s->key_heads != 0) {
        return rssm_fail(context, RSSM_ERROR_ARGUMENT, "value_heads is %d, which is no multiple of key_heads, %d",
                         (int)s->value_heads, (int)s->key_heads);
    }
    s->total_key_heads = s->total_key_heads == 0 ? s->key_heads : s->total_key_heads;
    s->total_value_heads = s->total_value_heads == 0 ? s->value_heads : s->total_value_heads;
    RSSM_TRY(check_range(context, "first_key_head", s->first_key_head, 0, s->total_key_heads - s->key_heads));
    return check_range(context, "first_value_head", s->first_value_head, 0, s->total_value_heads - s->value_heads);
}

static rssm_status check_out_norm(rssm_context *context, rssm_layer_spec *s) {
    RSSM_TRY(check_range(context, "out_norm", s->out_norm, RSSM_OUT_NORM_NONE, RSSM_OUT_NORM_GATE_SILU));
    s->out_norm_eps = s->out_norm_eps == 0.0f ? 1e-6f : s->out_norm_eps;
    RSSM_TRY(check_float(context, "out_norm_eps", s->out_norm_eps, 0.0f, 1.0f));
    if (s->out_norm != RSSM_OUT_NORM_GROUP) {
        return check_range(context, "out_norm_groups without a group norm", s->out_norm_groups, 0, 0);
    }
    s->out_norm_groups = s->out_norm_groups == 0 ? s->key_heads : s->out_norm_groups;
    RSSM_TRY(check_range(context, "out_norm_groups", s->out_norm_groups, 1, s->value_heads));
    if (s->value_heads % s->out_norm_groups != 0 ||
        (s->out_norm_groups % s->key_heads != 0 && s->key_heads % s->out_norm_groups != 0)) {
        return rssm_fail(context, RSSM_ERROR_UNSUPPORTED,
                         "out_norm_groups is %d; it must divide the %d value heads and be a multiple or a divisor of "
                         "the %d key heads",
                         (int)s->out_norm_groups, (int)s->value_heads, (int)s->key_heads);
    }
    if (s->head_map == RSSM_HEAD_MAP_MODULO && s->key_heads > 1) {
        return rssm_fail(context, RSSM_ERROR_UNSUPPORTED,
                         "out_norm is the group norm with head_map modulo; its groups are blocks of heads");
    }
    return RSSM_OK;
}

static rssm_status check_gate(rssm_context *context, rssm_layer_spec *s) {
    RSSM_TRY(check_range(context, "gate", s->gate, RSSM_GATE_RAW, RSSM_GATE_DT));
    if (s->gate == RSSM_GATE_DT && s->kind != RSSM_MAMBA2) {
        return rssm_fail(context, RSSM_ERROR_UNSUPPORTED, "gate is RSSM_GATE_DT, which only Mamba-2 has");
    }
    RSSM_TRY(check_float(context, "gate_lower_bound", s->gate_lower_bound, s->kind == RSSM_KDA ? -1000.0f : 0.0f, 0.0f));
    float most = s->kind == RSSM_MAMBA2 ? 1e30f : 0.0f;
    RSSM_TRY(check_float(context, "dt_min", s->dt_min, 0.0f, most));
    /* an infinite upper limit, as configuration files spell "none" */
    s->dt_max = isinf(s->dt_max) && s->dt_max > 0.0f ? 0.0f : s->dt_max;
    RSSM_TRY(check_float(context, "dt_max", s->dt_max, 0.0f, most));
    if (s->dt_max > 0.0f && s->dt_max < s->dt_min) {
        return rssm_fail(context, RSSM_ERROR_ARGUMENT, "dt_max is %g, below dt_min, %g", (double)s->dt_max,
                         (double)s->dt_min);
    }
    s->beta_scale = s->beta_scale == 0.0f ? 1.0f : s->beta_scale;
    return check_float(context, "beta_scale", s->beta_scale, 0.0f, 2.0f);
}

/* Fills in the defaults of a spec and checks it. */
static rssm_status check_spec(rssm_context *context, rssm_layer_spec *s) {
    RSSM_TRY(check_range(context, "kind", s->kind, RSSM_MAMBA2, RSSM_KDA));
    RSSM_TRY(check_heads(context, s));
    if (s->conv_width != 0) {
        RSSM_TRY(check_range(context, "conv_width", s->conv_width, 2, RSSM_CONV_WIDTH_MAX));
    }
    RSSM_TRY(check_gate(context, s));
    bool delta = s->kind != RSSM_MAMBA2;
    RSSM_TRY(check_range(context, "qk_norm", s->qk_norm, RSSM_QK_NORM_DEFAULT, RSSM_QK_NORM_L2));
    if (s->qk_norm == RSSM_QK_NORM_DEFAULT) {
        s->qk_norm = delta ? RSSM_QK_NORM_L2 : RSSM_QK_NORM_NONE;
    }
    s->qk_norm_eps = s->qk_norm_eps == 0.0f ? 1e-6f : s->qk_norm_eps;
    RSSM_TRY(check_float(context, "qk_norm_eps", s->qk_norm_eps, 0.0f, 1.0f));
    if (s->q_scale == 0.0f) {
        s->q_scale = delta ? 1.0f / sqrtf((float)s->d_k) : 1.0f;
    }
    RSSM_TRY(check_float(context, "q_scale", s->q_scale, -1e6f, 1e6f));
    return check_out_norm(context, s);
}

static rssm_status check_copy(rssm_context *context, rssm_cache_desc *d) {
    const bool nvfp4 = d->read_copy_dtype == RSSM_DTYPE_NVFP4;
    if (!nvfp4 && (d->read_block_axis | d->read_block | d->read_scale_search | d->read_rank | d->read_diffusion) != 0) {
        return rssm_fail(context, RSSM_ERROR_ARGUMENT,
                         "read_copy_dtype is %s with options of nvfp4: read_block_axis %d, read_block %d, read_scale_search "
                         "%d, read_rank %d, read_diffusion %d; they must be 0",
                         rssm_dtype_name(d->read_copy_dtype), (int)d->read_block_axis, (int)d->read_block,
                         (int)d->read_scale_search, (int)d->read_rank, (int)d->read_diffusion);
    }
    d->read_block = d->read_block == 0 ? 16 : d->read_block;
    RSSM_TRY(check_range(context, "read_block_axis", d->read_block_axis, RSSM_BLOCK_KEYS, RSSM_BLOCK_VALUES));
    if (d->read_block != 16 && (d->read_block != 32 || d->read_block_axis == RSSM_BLOCK_VALUES)) {
        return rssm_fail(context, RSSM_ERROR_ARGUMENT, "read_block is %d; known are 16, and along d_k 32", (int)d->read_block);
    }
    RSSM_TRY(check_range(context, "read_scale_search", d->read_scale_search, 0, 1));
    RSSM_TRY(check_range(context, "read_rank", d->read_rank, 0, RSSM_READ_RANK_MAX));
    return check_range(context, "read_diffusion", d->read_diffusion, 0, 1);
}

static rssm_status check_formats(rssm_context *context, rssm_cache_desc *d) {
    d->io_dtype = d->io_dtype == RSSM_DTYPE_DEFAULT ? RSSM_DTYPE_F32 : d->io_dtype;
    d->checkpoint_dtype = d->checkpoint_dtype == RSSM_DTYPE_DEFAULT ? RSSM_DTYPE_F32 : d->checkpoint_dtype;
    if (d->io_dtype != RSSM_DTYPE_F32 && d->io_dtype != RSSM_DTYPE_BF16) {
        return rssm_fail(context, RSSM_ERROR_UNSUPPORTED, "io_dtype is %d (%s); built are f32 and bf16", (int)d->io_dtype,
                         rssm_dtype_name(d->io_dtype));
    }
    if (d->checkpoint_dtype < RSSM_DTYPE_F32 || d->checkpoint_dtype > RSSM_DTYPE_F8) {
        return rssm_fail(context, RSSM_ERROR_UNSUPPORTED, "checkpoint_dtype is %d (%s); built are f32, f16, bf16 and f8",
                         (int)d->checkpoint_dtype, rssm_dtype_name(d->checkpoint_dtype));
    }
    if (d->method == RSSM_METHOD_AUTO &&
        (d->checkpoint_dtype != RSSM_DTYPE_F32 || d->read_copy_dtype != RSSM_DTYPE_DEFAULT)) {
        return rssm_fail(context, RSSM_ERROR_UNSUPPORTED,
                         "method is auto with checkpoint_dtype %s and read_copy_dtype %s; auto takes f32 without a copy, "
                         "since narrow states are written once per window",
                         rssm_dtype_name(d->checkpoint_dtype), rssm_dtype_name(d->read_copy_dtype));
    }
    if (d->read_copy_dtype != RSSM_DTYPE_DEFAULT &&
        (d->read_copy_dtype < RSSM_DTYPE_F16 || d->read_copy_dtype > RSSM_DTYPE_NVFP4)) {
        return rssm_fail(context, RSSM_ERROR_UNSUPPORTED,
                         "read_copy_dtype is %d (%s); built are none, f16, bf16, f8, int8 and nvfp4", (int)d->read_copy_dtype,
                         rssm_dtype_name(d->read_copy_dtype));
    }
    RSSM_TRY(check_copy(context, d));
    bool narrow = d->checkpoint_dtype != RSSM_DTYPE_F32;
    RSSM_TRY(check_range(context, "read_copy_shared", d->read_copy_shared, 0, 1));
    if (d->read_copy_shared && (narrow || d->read_copy_dtype == RSSM_DTYPE_DEFAULT)) {
        return rssm_fail(context, RSSM_ERROR_ARGUMENT,
                         "read_copy_shared is 1 with checkpoint_dtype %s and read_copy_dtype %s; it takes an f32 checkpoint "
                         "and a copy",
                         rssm_dtype_name(d->checkpoint_dtype), rssm_dtype_name(d->read_copy_dtype));
    }
    bool rounds = narrow || (d->read_copy_shared && d->read_copy_dtype == RSSM_DTYPE_NVFP4);
    return check_range(context, rounds ? "checkpoint_rounding" : "checkpoint_rounding of an f32 checkpoint",
                       d->checkpoint_rounding, RSSM_ROUND_NEAREST, rounds ? RSSM_ROUND_STOCHASTIC : RSSM_ROUND_NEAREST);
}

static rssm_status check_desc(rssm_context *context, rssm_cache_desc *d, const rssm_layer_spec *s) {
    RSSM_TRY(check_range(context, "layers", d->layers, 1, 65536));
    RSSM_TRY(check_range(context, "first_layer", d->first_layer, 0, 1 << 30));
    RSSM_TRY(check_range(context, "slots", d->slots, 1, 1 << 30));
    RSSM_TRY(check_range(context, "reserved_slots", d->reserved_slots, 0, d->slots - 1));
    d->window = d->window == 0 ? 16 : d->window;
    d->step_tokens = d->step_tokens == 0 ? 1 : d->step_tokens;
    RSSM_TRY(check_range(context, "window", d->window, 1, RSSM_WINDOW_MAX));
    RSSM_TRY(check_range(context, "step_tokens", d->step_tokens, 1, RSSM_STEP_TOKENS_MAX));
    RSSM_TRY(check_range(context, "reach", d->reach, 0, RSSM_REACH_MAX));
    RSSM_TRY(check_range(context, "method", d->method, RSSM_METHOD_REPLAY, RSSM_METHOD_AUTO));
    if (d->method == RSSM_METHOD_CONVENTIONAL && d->step_tokens != 1) {
        return rssm_fail(context, RSSM_ERROR_ARGUMENT, "step_tokens is %d; the conventional method takes 1",
                         (int)d->step_tokens);
    }
    RSSM_TRY(check_formats(context, d));
    RSSM_TRY(check_range(context, "record_gate", d->record_gate, RSSM_RECORD_DECAY, RSSM_RECORD_RAW_GATE));
    if (d->record_gate == RSSM_RECORD_RAW_GATE && (s->kind != RSSM_KDA || s->gate != RSSM_GATE_RAW)) {
        return rssm_fail(context, RSSM_ERROR_UNSUPPORTED,
                         "record_gate is RSSM_RECORD_RAW_GATE; it needs a KDA layer with RSSM_GATE_RAW");
    }
    return RSSM_OK;
}

/* ---- Geometry ----------------------------------------------------------------------------------------- */

static rssm_formats make_formats(const rssm_cache_desc *d) {
    return (rssm_formats){.checkpoint = d->checkpoint_dtype,
                          .stochastic = d->checkpoint_rounding == RSSM_ROUND_STOCHASTIC,
                          .seed = d->seed,
                          .copy = d->read_copy_dtype,
                          .shared = d->read_copy_shared,
                          .block = d->read_block,
                          .block_values = d->read_block_axis == RSSM_BLOCK_VALUES,
                          .search = d->read_scale_search,
                          .rank = d->read_rank,
                          .diffusion = d->read_diffusion};
}

static rssm_geometry make_geometry(const rssm_cache_desc *d, const rssm_layer_spec *s) {
    rssm_geometry g = {
        .kind = s->kind,
        .key_heads = s->key_heads,
        .value_heads = s->value_heads,
        .ratio = s->value_heads / s->key_heads,
        .modulo = s->head_map == RSSM_HEAD_MAP_MODULO,
        .d_k = s->d_k,
        .d_v = s->d_v,
        .padded_k = rssm_padded(s->d_k),
        .padded_v = rssm_padded(s->d_v),
        .delta = s->kind != RSSM_MAMBA2,
        .vector_decay = s->kind == RSSM_KDA,
        .raw_records = d->record_gate == RSSM_RECORD_RAW_GATE,
        .conv_width = s->conv_width,
        .conv_silu = !s->conv_linear,
        .gate = s->gate,
        .gate_lower_bound = s->gate_lower_bound,
        .dt_min = s->dt_min,
        .dt_max = s->dt_max,
        .beta_scale = s->beta_scale,
        .l2 = s->qk_norm == RSSM_QK_NORM_L2,
        .qk_eps = s->qk_norm_eps,
        .q_scale = s->q_scale,
        .out_norm = s->out_norm,
        .out_eps = s->out_norm_eps,
        .bf16 = d->io_dtype == RSSM_DTYPE_BF16,
        .step_tokens = d->step_tokens,
        .window = d->window,
        .first_value_head = s->first_value_head,
        .formats = make_formats(d),
    };
    bool group = s->out_norm == RSSM_OUT_NORM_GROUP;
    g.units = group && s->out_norm_groups < s->key_heads ? s->out_norm_groups : s->key_heads;
    g.unit_keys = s->key_heads / g.units;
    g.unit_values = s->value_heads / g.units;
    g.unit_norms = group ? s->out_norm_groups / g.units : g.unit_values;
    int32_t context = s->conv_width > 0 ? s->conv_width - 1 : 0;
    g.rows.records = d->window - 1 + 2 * d->step_tokens;
    g.rows.conv = s->conv_width > 0 ? context + d->step_tokens + d->reach : 0;
    g.rows.conv_keep = s->conv_width > 0 ? context + d->reach : 0;
    g.rows.conv_need = context;
    g.channel_beta = g.vector_decay ? 0 : g.value_heads;
    g.channel_norm = g.channel_beta + g.value_heads;
    g.channels = g.channel_norm + (g.l2 ? g.key_heads : 0);
    g.conv_k = g.key_heads * g.d_k;
    g.conv_v = 2 * g.conv_k;
    g.conv_channels = g.conv_v + g.value_heads * g.d_v;
    rssm_layout_copy(&g);
    rssm_layout_scratch(&g);
    return g;
}

/* ---- Life --------------------------------------------------------------------------------------------- */

rssm_status rssm_cache_create(rssm_context *context, const rssm_cache_desc *desc, rssm_cache **cache) {
    if (context == NULL) {
        return RSSM_ERROR_ARGUMENT;
    }
    if (cache == NULL || desc == NULL) {
        return rssm_fail(context, RSSM_ERROR_ARGUMENT, "%s is NULL", cache == NULL ? "cache" : "desc");
    }
    *cache = NULL;
    rssm_cache_desc d;
    RSSM_TRY(rssm_copy_desc(context, "desc", &d, sizeof d, desc));
    if (d.spec == NULL) {
        return rssm_fail(context, RSSM_ERROR_ARGUMENT, "desc.spec is NULL");
    }
    rssm_layer_spec s;
    RSSM_TRY(rssm_copy_desc(context, "spec", &s, sizeof s, d.spec));
    RSSM_TRY(check_spec(context, &s));
    RSSM_TRY(check_desc(context, &d, &s));
    rssm_cache *c = calloc(1, sizeof *c);
    if (c != NULL) {
        c->parts = calloc((size_t)d.layers * RSSM_PARTS, sizeof *c->parts);
        c->constants = calloc((size_t)d.layers, sizeof *c->constants);
        c->marks = calloc((size_t)d.slots, sizeof *c->marks);
    }
    if (c == NULL || c->parts == NULL || c->constants == NULL || c->marks == NULL) {
        rssm_cache_destroy(c);
        return rssm_fail(context, RSSM_ERROR_MEMORY, "no memory for a cache of %d layers and %lld slots", (int)d.layers,
                         (long long)d.slots);
    }
    c->context = context;
    c->desc = d;
    c->spec = s;
    c->desc.spec = &c->spec;
    c->geometry = make_geometry(&d, &s);
    c->kernels = context->kernels;
    c->info.method = d.method;
    c->info.window = d.method == RSSM_METHOD_CONVENTIONAL ? 1 : d.window;
    c->info.kernel = context->ops != NULL ? context->ops->kernel_name(context, s.kind, d.io_dtype)
                                          : rssm_kernel_name(c->kernels, s.kind, &c->geometry.formats, d.io_dtype);
    for (int32_t layer = 0; layer < d.layers; layer++) {
        c->constants[layer].layer = d.first_layer + layer;
    }
    rssm_status status = context->ops != NULL ? context->ops->cache_open(c) : RSSM_OK;
    status = status == RSSM_OK ? rssm_default_weights(c) : status;
    if (status != RSSM_OK) {
        rssm_cache_destroy(c);
        return status;
    }
    rssm_log(context, RSSM_LOG_INFO, "cache: %d layers, %lld slots of %lld bytes, window %d, %s", (int)d.layers,
             (long long)d.slots, (long long)rssm_cache_slot_bytes(c), (int)d.window, c->info.kernel);
    *cache = c;
    return RSSM_OK;
}

void rssm_cache_destroy(rssm_cache *cache) {
    if (cache == NULL) {
        return;
    }
    for (int32_t i = 0; cache->constants != NULL && i < cache->desc.layers; i++) {
        free(cache->constants[i].memory);
        free(cache->constants[i].read.memory);
    }
    if (cache->device != NULL) {
        cache->context->ops->release(cache, cache->memory);
        cache->context->ops->cache_close(cache);
    } else {
        free(cache->memory);
    }
    free(cache->scratch);
    free(cache->shares);
    free(cache->marks);
    free(cache->constants);
    free(cache->parts);
    free(cache);
}

rssm_status rssm_cache_prepare(rssm_cache *cache, int32_t rows, int32_t parts) {
    RSSM_TRY(check_range(cache->context, "rows", rows, 0, 1 << 24));
    if (cache->context->ops != NULL) {
        RSSM_TRY(check_range(cache->context, "parts (tokens of a batch)", parts, 0, INT32_MAX));
        RSSM_TRY(rssm_cache_check_memory(cache));
        return cache->context->ops->prepare(cache, rows, parts);
    }
    RSSM_TRY(check_range(cache->context, "parts", parts, 0, 4096));
    if (parts > cache->scratch_parts) {
        size_t bytes = (size_t)parts * cache->geometry.scratch.total * sizeof(float);
        float *grown = aligned_alloc(SCRATCH_ALIGNMENT, (bytes + SCRATCH_ALIGNMENT - 1) & ~(size_t)(SCRATCH_ALIGNMENT - 1));
        rssm_share *shares = aligned_alloc(_Alignof(rssm_share), (size_t)parts * sizeof *shares);
        if (grown == NULL || shares == NULL) {
            free(grown);
            free(shares);
            return rssm_fail(cache->context, RSSM_ERROR_MEMORY, "no memory for the scratch of %d parts, %zu bytes",
                             (int)parts, bytes);
        }
        memset(grown, 0, bytes); /* lanes of padding are computed with and thrown away: keep them finite */
        free(cache->scratch);
        free(cache->shares);
        cache->scratch = grown;
        cache->shares = shares;
        cache->scratch_parts = parts;
    }
    return RSSM_OK;
}

/* ---- Questions ---------------------------------------------------------------------------------------- */

rssm_status rssm_cache_status(const rssm_cache *cache, rssm_cache_info *info) {
    if (info == NULL) {
        return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "info is NULL");
    }
    rssm_cache_info out = cache->info;
    out.bytes_read = cache->bytes_read;
    out.bytes_written = cache->bytes_written;
    out.flushes = cache->flushes;
    out.row_steps = cache->row_steps;
    out.overflows = cache->overflows;
    if (cache->context->ops != NULL) {
        RSSM_TRY(cache->context->ops->status(cache, &out));
    }
    return rssm_give_info(cache->context, info, &out, sizeof out);
}

/* Reads the cursor of a slot whose memory the host can read. */
static void describe_slot(const rssm_cache *cache, int32_t slot, rssm_slot_info *out) {
    rssm_cursor *cursor = rssm_cursor_at(cache, slot);
    if (cursor != NULL && cursor->state == RSSM_CURSOR_FAILED) {
        out->state = 2;
        out->position = cursor->position;
        out->id = cursor->id;
    } else if (cursor != NULL && cursor->state == RSSM_CURSOR_READY) {
        int64_t most;
        (void)!rssm_settle((rssm_cache *)cache, slot); /* a half-done step shows as pending */
        out->state = 1;
        out->position = cursor->position;
        out->id = cursor->id;
        out->pending = cursor->pending;
        rssm_checkpoint_range(cache, slot, &out->checkpoint, &most);
        out->oldest = rssm_oldest(cache, slot);
    }
}

rssm_status rssm_cache_slot(const rssm_cache *cache, int32_t slot, rssm_slot_info *info) {
    if (info == NULL) {
        return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "info is NULL");
    }
    RSSM_TRY(rssm_check_slot((rssm_cache *)cache, "slot", -1, slot, 0));
    rssm_slot_info out = {0};
    const rssm_device_ops *ops = cache->context->ops;
    if (ops == NULL) {
        describe_slot(cache, slot, &out);
    } else if (cache->parts[RSSM_PART_CURSOR].base != NULL) {
        rssm_cache *mirror;
        RSSM_TRY(ops->mirror_open((rssm_cache *)cache, slot, false, false, &mirror));
        describe_slot(mirror, slot, &out);
        rssm_status status = ops->mirror_write((rssm_cache *)cache, slot, mirror, false);
        ops->mirror_close(mirror);
        RSSM_TRY(status);
    }
    return rssm_give_info(cache->context, info, &out, sizeof out);
}
