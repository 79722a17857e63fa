/* SPDX-License-Identifier: Apache-2.0 */
/* Model steps on the device: scratch, and what the launches of begin and of a layer are given. */
#include "cuda/cuda_host.h"

enum {
    MOST_HEADS = 8,
    LEAST_BLOCKS = 1600, /* three times what an H200 runs at once */
    LEAST_THREADS = 384, /* on a multiprocessor */
    STATIC_BYTES = 1400, /* of a block of decode.cu besides its working memory */
    GOOD_BUFFERS = 4,    /* of a block of decode_stream.cu */
    STREAMS = -1         /* threads of a layout whose stages are not in it */
};

/* ---- Working memory ----------------------------------------------------------------------------------- */

static int32_t take(int32_t *total, int32_t floats) {
    int32_t at = *total;
    *total += (floats + 3) & ~3;
    return at;
}

static bool exact(const rssm_geometry *g) {
    return (g->d_k == 128 || g->d_k == 64) && g->d_v % 16 == 0;
}

rssm_cuda_layout rssm_cuda_layout_of(const rssm_geometry *g, int32_t records, int32_t tokens, int32_t slice, int32_t threads,
                                     int32_t heads) {
    rssm_cuda_layout l = {.width = (g->d_k + 31) / 32 * 32, .records = records, .tokens = tokens, .slice = slice};
    l.key = take(&l.total, records * l.width);
    l.norm = take(&l.total, g->l2 ? records : 0);
    l.query = take(&l.total, tokens * l.width);
    l.gram = take(&l.total, threads != 0 && !g->delta ? tokens * records : 0);
    l.state = take(&l.total, exact(g) && threads > 0 ? threads * RSSM_CUDA_STAGES * RSSM_CUDA_TILE_BYTES / 4 : 0);
    const int32_t first = l.total;
    l.alpha = take(&l.total, g->vector_decay ? records * l.width : records);
    l.beta = take(&l.total, records);
    l.value = take(&l.total, g->bf16 ? (records * slice + 1) / 2 : records * slice);
    l.walked = take(&l.total, threads != 0 && g->delta ? tokens * l.width : 0);
    l.coefficient = take(&l.total, tokens * records);
    l.product = take(&l.total, tokens);
    l.y = take(&l.total, tokens * slice);
    l.head = l.total - first;
    l.total += (heads - 1) * l.head;
    return l;
}

int32_t rssm_cuda_scan_slice(const rssm_geometry *g, bool spills) {
    int32_t rows = spills || !exact(g) ? 64 : g->d_k == 128 ? 128 : 256; /* what 256 threads hold in registers */
    return g->d_v < rows ? g->d_v : rows;
}

bool rssm_cuda_spills(const rssm_cache *cache, const rssm_cuda_layout *layout) {
    return layout->total * (int64_t)sizeof(float) > rssm_cuda_of(cache)->shared_bytes;
}

/* Blocks of a decode that a multiprocessor's shared memory holds at once. */
static int32_t resident(const rssm_cache *cache, const rssm_cuda_layout *l) {
    const int32_t own = l->total * (int32_t)sizeof(float) + STATIC_BYTES;
    return (rssm_cuda_of(cache)->shared_bytes + STATIC_BYTES) / own;
}

/* Heads that a block of a decode takes, and its layout: as many of a key head's as leave blocks enough to fill the device,
   and room for enough of them at once on a multiprocessor. Threads: small blocks, except where many tokens need so much
   memory that large ones are what fills it. */
static void shape_blocks(const rssm_cache *cache, rssm_cuda_step *step) {
    const rssm_geometry *g = &cache->geometry;
    const int32_t tokens = g->step_tokens;
    step->threads = tokens > 2 ? 256 : 128;
    step->heads = 1;
    step->layout = rssm_cuda_layout_of(g, g->rows.records, tokens, g->d_v, step->threads, 1);
    for (int32_t n = 2; n <= MOST_HEADS && n <= g->ratio; n++) {
        rssm_cuda_layout l = rssm_cuda_layout_of(g, g->rows.records, tokens, g->d_v, step->threads, n);
        const bool fills = (int64_t)step->batch.rows * g->value_heads / n >= LEAST_BLOCKS;
        if (g->ratio % n == 0 && fills && resident(cache, &l) * step->threads >= LEAST_THREADS) {
            step->heads = n;
            step->layout = l;
        }
    }
}

/* Tokens of a step that decode_stream.cu serves faster than decode.cu, by kind; measured on an H200 at 128 to 512 rows. */
static const struct {
    int32_t from, to;
} streamed[] = {[RSSM_MAMBA2] = {1, 4}, [RSSM_GDN] = {1, 2}, [RSSM_KDA] = {5, RSSM_STEP_TOKENS_MAX}};

/* For decode_stream.cu: a unit takes as many of a key head's heads as leave each block units enough, and room for some of
   them. Without the delta rule preparing is mostly what its heads share, so one head of several is too few. */
static void shape_stream(const rssm_cache *cache, rssm_cuda_step *step) {
    const rssm_geometry *g = &cache->geometry;
    const rssm_cuda *cuda = rssm_cuda_of(cache);
    const int32_t bytes = cuda->shared_bytes - RSSM_STREAM_STAGES * RSSM_STREAM_STAGE_BYTES;
    for (int32_t n = g->delta || g->ratio == 1 ? 1 : 2; n <= MOST_HEADS && n <= g->ratio; n++) {
        const rssm_cuda_layout l = rssm_cuda_layout_of(g, g->rows.records, g->step_tokens, g->d_v, STREAMS, n);
        const int32_t buffers = bytes / (l.total * (int32_t)sizeof(float));
        const int64_t units = (int64_t)step->batch.rows * g->value_heads / n;
        const int32_t least = n == 1 ? RSSM_STREAM_BUFFERS_LEAST : GOOD_BUFFERS;
        if (g->ratio % n == 0 && units >= (int64_t)cuda->stream_units * cuda->processors && buffers >= least) {
            step->streams = cuda->processors;
            step->buffers = buffers < RSSM_STREAM_BUFFERS_MAX ? buffers : RSSM_STREAM_BUFFERS_MAX;
            step->heads = n;
            step->layout = l;
        }
    }
}

static void shape_decode(const rssm_cache *cache, bool may_stream, rssm_cuda_step *step) {
    const rssm_geometry *g = &cache->geometry;
    shape_blocks(cache, step);
    const bool conventional = cache->desc.method == RSSM_METHOD_CONVENTIONAL;
    if (may_stream && exact(g) &&
        (conventional || (g->step_tokens >= streamed[g->kind].from && g->step_tokens <= streamed[g->kind].to))) {
        shape_stream(cache, step);
    }
}

/* A step's working memory and slices. A prompt runs as a scan. */
static void shape_step(const rssm_cache *cache, bool prefill, bool may_stream, rssm_cuda_step *step) {
    const rssm_geometry *g = &cache->geometry;
    int32_t slice = g->d_v;
    if (!prefill) {
        shape_decode(cache, may_stream, step);
    } else {
        const int32_t tokens = RSSM_CUDA_SCAN_TOKENS, records = g->rows.records > tokens ? g->rows.records : tokens;
        slice = rssm_cuda_scan_slice(g, false);
        step->heads = 1;
        step->layout = rssm_cuda_layout_of(g, records, tokens, slice, 0, 1);
        if (rssm_cuda_spills(cache, &step->layout)) {
            slice = rssm_cuda_scan_slice(g, true);
            step->layout = rssm_cuda_layout_of(g, records, tokens, slice, 0, 1);
        }
    }
    step->slices = (g->d_v + slice - 1) / slice;
}

/* Blocks of the launch share a norm, so that it takes a launch of its own. */
static bool shares_norm(const rssm_geometry *g, int32_t slices) {
    return g->out_norm == RSSM_OUT_NORM_GROUP || (slices > 1 && g->out_norm != RSSM_OUT_NORM_NONE);
}

static rssm_status grow(rssm_cache *cache, float **memory, int64_t floats, const char *what) {
    float *grown = NULL;
    if (floats == 0) {
        return RSSM_OK;
    }
    RSSM_CUDA_TRY(cache->context, cudaMalloc((void **)&grown, (size_t)floats * sizeof *grown), what);
    (void)cudaFree(*memory);
    *memory = grown;
    return RSSM_OK;
}

static rssm_status prepare(rssm_cache *cache, int32_t rows, int64_t tokens) {
    const rssm_geometry *g = &cache->geometry;
    rssm_cuda_state *state = rssm_cuda_state_of(cache);
    int64_t floats = 0, y = 0;
    for (int32_t prefill = 0; prefill < 2; prefill++) {
        rssm_cuda_step step = {.batch = {.rows = rows}};
        shape_step(cache, prefill != 0, false, &step);
        int64_t need = (int64_t)rows * g->value_heads * step.slices * step.layout.total;
        floats = rssm_cuda_spills(cache, &step.layout) && need > floats ? need : floats;
        y = shares_norm(g, step.slices) ? tokens * g->value_heads * g->d_v : y;
    }
    RSSM_CUDA_TRY(cache->context, cudaDeviceSynchronize(), "waiting for the device"); /* steps may use the old scratch */
    RSSM_TRY(grow(cache, &state->memory, floats, "scratch"));
    RSSM_TRY(grow(cache, &state->y, y, "scratch"));
    rssm_cuda_layout fold = rssm_cuda_layout_of(g, g->rows.records, 0, g->d_v, 0, 1);
    if (rssm_cuda_spills(cache, &fold)) {
        RSSM_TRY(grow(cache, &state->fold_memory, (int64_t)rows * g->value_heads * fold.total, "scratch"));
        state->fold_jobs = rows;
    }
    state->rows = rows;
    state->tokens = tokens;
    return RSSM_OK;
}

rssm_status rssm_cuda_prepare(rssm_cache *cache, int32_t rows, int32_t tokens) {
    rssm_cuda_state *state = rssm_cuda_state_of(cache);
    const int64_t least = (int64_t)rows * cache->geometry.step_tokens;
    const int64_t wanted = tokens > least ? tokens : least;
    rssm_cuda_scope scope;
    rows = rows > state->rows ? rows : state->rows;
    if (rows == state->rows && wanted <= state->tokens) {
        return RSSM_OK;
    }
    RSSM_TRY(rssm_cuda_enter(cache->context, &scope));
    rssm_status status = prepare(cache, rows, wanted > state->tokens ? wanted : state->tokens);
    rssm_cuda_leave(scope);
    return status;
}

/* ---- Checking ----------------------------------------------------------------------------------------- */

static rssm_status check_batch(rssm_cache *cache, const rssm_batch *b, void *stream) {
    const rssm_cuda_state *state = rssm_cuda_state_of(cache);
    if (b->rows > state->rows) {
        return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "batch.rows is %d; the limit is %d, as prepared (see "
                         "rssm_cache_prepare())", (int)b->rows, (int)state->rows);
    }
    if (b->offsets == NULL && (int64_t)b->rows * b->uniform_tokens > state->tokens) {
        return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "batch has %lld tokens; the limit is %lld, as prepared (see "
                         "rssm_cache_prepare())", (long long)b->rows * b->uniform_tokens, (long long)state->tokens);
    }
    RSSM_TRY(rssm_cuda_check_stream(cache, stream));
    RSSM_TRY(rssm_cuda_check_pointer(cache, "batch.slots", b->slots));
    RSSM_TRY(rssm_cuda_check_pointer(cache, "batch.offsets", b->offsets));
    return rssm_cuda_check_pointer(cache, "batch.prefill", b->prefill);
}

static rssm_status check_tensors(rssm_cache *cache, const rssm_layer_inputs *in, const rssm_output *out) {
    RSSM_TRY(rssm_cuda_check_pointer(cache, "inputs.q", in->q.data));
    RSSM_TRY(rssm_cuda_check_pointer(cache, "inputs.k", in->k.data));
    RSSM_TRY(rssm_cuda_check_pointer(cache, "inputs.v", in->v.data));
    RSSM_TRY(rssm_cuda_check_pointer(cache, "inputs.decay", in->decay.data));
    RSSM_TRY(rssm_cuda_check_pointer(cache, "inputs.beta", in->beta.data));
    RSSM_TRY(rssm_cuda_check_pointer(cache, "inputs.z", in->z.data));
    return rssm_cuda_check_pointer(cache, "out.data", out->data);
}

/* ---- Launching ---------------------------------------------------------------------------------------- */

rssm_status rssm_cuda_begin_step(rssm_cache *cache, const rssm_batch *batch, const int32_t *accepted, void *stream) {
    rssm_cuda_scope scope;
    RSSM_TRY(rssm_cuda_enter(cache->context, &scope));
    rssm_status status = check_batch(cache, batch, stream);
    status = status == RSSM_OK ? rssm_cuda_check_pointer(cache, "accepted", accepted) : status;
    if (status == RSSM_OK) {
        cache->info.window = rssm_effective_window(cache, batch->rows);
        rssm_cuda_begin call = {.cache = rssm_cuda_shared(cache),
                                .batch = *batch,
                                .accepted = accepted,
                                .tokens = rssm_cuda_state_of(cache)->tokens,
                                .step_tokens = cache->desc.step_tokens,
                                .window = cache->info.window,
                                .conventional = cache->desc.method == RSSM_METHOD_CONVENTIONAL};
        status = rssm_cuda_check(cache->context, rssm_launch_begin(&call, stream), "launching begin");
    }
    rssm_cuda_leave(scope);
    return status;
}

rssm_status rssm_cuda_layer(rssm_cache *cache, int32_t layer, const rssm_batch *batch, const rssm_layer_inputs *inputs,
                            const rssm_output *out, bool prefill, void *stream) {
    const rssm_cuda_state *state = rssm_cuda_state_of(cache);
    const bool conventional = cache->desc.method == RSSM_METHOD_CONVENTIONAL && !prefill;
    rssm_cuda_scope scope;
    RSSM_TRY(rssm_cuda_enter(cache->context, &scope));
    rssm_status status = check_batch(cache, batch, stream);
    status = status == RSSM_OK ? check_tensors(cache, inputs, out) : status;
    if (status == RSSM_OK) {
        rssm_cuda_step step = {.geometry = cache->geometry,
                               .constants = state->constants[layer],
                               .words = state->words,
                               .batch = *batch,
                               .inputs = *inputs,
                               .out = *out,
                               .slots = cache->desc.slots,
                               .tokens = state->tokens,
                               .reserved = cache->desc.reserved_slots,
                               .gate_bf16 = inputs->gate_dtype == RSSM_DTYPE_BF16,
                               .out_bf16 = out->dtype == RSSM_DTYPE_BF16,
                               .prefill = prefill,
                               .conventional = conventional};
        memcpy(step.parts, cache->parts + (int64_t)layer * RSSM_PARTS, sizeof step.parts);
        step.parts[RSSM_PART_CURSOR] = cache->parts[RSSM_PART_CURSOR];
        shape_step(cache, prefill, true, &step);
        step.memory = step.streams == 0 && rssm_cuda_spills(cache, &step.layout) ? state->memory : NULL;
        step.y = shares_norm(&cache->geometry, step.slices) ? state->y : NULL;
        int error = prefill ? rssm_launch_scan(&step, stream) : rssm_launch_decode(&step, stream);
        status = rssm_cuda_check(cache->context, error, "launching a layer");
    }
    rssm_cuda_leave(scope);
    return status;
}
