/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every argument of every public call out of its range: a status, a sentence that names the argument, and
 * nothing changed. Two slots with history and a pending step watch for the last part.
 */
#include "fieldlog/hostile.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* ---- Watching ---------------------------------------------------------------------------------------------
 */

watched watch_make(uint64_t isa, int32_t shape) {
    const rssm_layer_spec spec = fl_spec(shape);
    watched w = {.f = fl_open(isa, &spec,
                              &(rssm_cache_desc){
                                  .layers = 2, .slots = 8, .reserved_slots = 1, .step_tokens = 3, .reach = 2})};
    for (int32_t i = 0; i < WATCHED; i++) {
        w.slot[i] = fl_slot(w.f, i);
        fl_reset(w.f, w.slot[i], 4 + (uint64_t)i);
        fl_prefill(w.f, w.slot[i], (uint64_t)i, 0, 6, NULL);
        fl_step(w.f, w.slot[i], 0, (uint64_t)i, 6, 3, NULL);
        fl_step(w.f, w.slot[i], 3, (uint64_t)i, 9, i + 1, NULL);
        w.file[i] = fl_export(w.f, w.slot[i], 0, &w.bytes[i]);
        w.info[i] = fl_info(w.f, w.slot[i]);
    }
    w.empty = fl_slot(w.f, WATCHED);
    return w;
}

void watch_refused(watched *w, rssm_status got, rssm_status expected, const char *word) {
    char message[512] = "";
    strncpy(message, rssm_context_message(w->f->box->context), sizeof message - 1);
    chk_params("refusing %s", word);
    if (got != expected) {
        chk_fail("gives '%s', expected '%s': %s", rssm_status_string(got), rssm_status_string(expected),
                 message);
    } else if (strstr(message, word) == NULL) {
        chk_fail("the sentence does not say '%s': %s", word, message);
    }
    for (int32_t i = 0; i < WATCHED; i++) {
        const rssm_slot_info info = fl_info(w->f, w->slot[i]);
        if (memcmp(&info, &w->info[i], sizeof info) != 0) {
            chk_fail("slot %d stands elsewhere", w->slot[i]);
        }
        fl_unchanged(w->f, "a refused call", w->slot[i], w->file[i], w->bytes[i]);
    }
}

/* ---- Creating ---------------------------------------------------------------------------------------------
 */

static void refuse_context(rssm_context_desc desc, rssm_status expected) {
    rssm_context *context = (rssm_context *)(void *)&desc;
    CHK(rssm_context_create(&desc, &context) == expected);
    CHK(context == NULL);
    CHK(rssm_context_message(NULL)[0] != '\0');
}

/* A device that no machine has: refused whether the build knows CUDA and the machine has a device or not. */
static void refuse_cuda(void) {
    rssm_context_desc desc = {.device = RSSM_DEVICE_CUDA, .device_index = 1 << 20};
    rssm_context *context = (rssm_context *)(void *)&desc;
    const rssm_status status = rssm_context_create(&desc, &context);
    CHK(status == RSSM_ERROR_UNSUPPORTED || status == RSSM_ERROR_DEVICE || status == RSSM_ERROR_ARGUMENT);
    CHK(context == NULL && rssm_context_message(NULL)[0] != '\0');
}

static void hostile_context(uint64_t isa) {
    rssm_context *context;
    (void)isa;
    refuse_context((rssm_context_desc){.device = 99}, RSSM_ERROR_ARGUMENT);
    refuse_context((rssm_context_desc){.device = -1}, RSSM_ERROR_ARGUMENT);
    refuse_context((rssm_context_desc){.threads = -1}, RSSM_ERROR_ARGUMENT);
    refuse_cuda();
    CHK(rssm_context_create(NULL, NULL) == RSSM_ERROR_ARGUMENT);
    CHK(rssm_context_create(NULL, &context) == RSSM_OK && rssm_context_message(context)[0] == '\0');
    rssm_context_destroy(context);
    rssm_context_destroy(NULL);
    CHK(strcmp(rssm_status_string(-77), "unknown status") == 0 && strcmp(rssm_dtype_name(-1), "?") == 0);
}

static void refuse_create(rssm_context *context, rssm_layer_spec spec, rssm_cache_desc desc, const char *word) {
    rssm_cache *cache = (rssm_cache *)(void *)&spec;
    desc.spec = &spec;
    desc.layers = desc.layers != 0 ? desc.layers : 1;
    desc.slots = desc.slots != 0 ? desc.slots : 1;
    const rssm_status status = rssm_cache_create(context, &desc, &cache);
    chk_params("creating with a wrong %s", word);
    if (status != RSSM_ERROR_ARGUMENT && status != RSSM_ERROR_UNSUPPORTED) {
        chk_fail("gives '%s'", rssm_status_string(status));
    } else if (cache != NULL || strstr(rssm_context_message(context), word) == NULL) {
        chk_fail("cache %p, sentence: %s", (void *)cache, rssm_context_message(context));
    }
    if (status == RSSM_OK) {
        rssm_cache_destroy(cache);
    }
}

static void hostile_spec(uint64_t isa) {
    rssm_context *context = cb_context(isa, 1);
#define SPEC(shape, field, value, word)                                                                        \
    do {                                                                                                       \
        rssm_layer_spec s = fl_spec(shape);                                                                    \
        s.field = value;                                                                                       \
        refuse_create(context, s, (rssm_cache_desc){0}, word);                                                 \
    } while (0)
    SPEC(FL_GDN, kind, 0, "kind");
    SPEC(FL_GDN, kind, 4, "kind");
    SPEC(FL_GDN, key_heads, 0, "key_heads");
    SPEC(FL_GDN, key_heads, -2, "key_heads");
    SPEC(FL_GDN, key_heads, 3, "key_heads");
    SPEC(FL_GDN, value_heads, 0, "value_heads");
    SPEC(FL_GDN, value_heads, 5, "value_heads");
    SPEC(FL_GDN, d_k, 0, "d_k");
    SPEC(FL_GDN, d_k, RSSM_HEAD_DIM_MAX + 1, "d_k");
    SPEC(FL_GDN, d_v, -1, "d_v");
    SPEC(FL_GDN, d_v, RSSM_HEAD_DIM_MAX + 1, "d_v");
    SPEC(FL_GDN, head_map, 2, "head_map");
    SPEC(FL_GDN, total_key_heads, 1, "key_head");
    SPEC(FL_GDN, first_key_head, 1, "first_key_head");
    SPEC(FL_GDN, first_value_head, -1, "first_value_head");
    SPEC(FL_GDN, conv_width, 1, "conv_width");
    SPEC(FL_GDN, conv_width, RSSM_CONV_WIDTH_MAX + 1, "conv_width");
    SPEC(FL_GDN, gate, 3, "gate");
    SPEC(FL_GDN, gate, RSSM_GATE_DT, "gate");
    SPEC(FL_KDA, gate_lower_bound, 1.0f, "gate_lower_bound");
    SPEC(FL_KDA, gate_lower_bound, NAN, "gate_lower_bound");
    SPEC(FL_GDN, gate_lower_bound, -5.0f, "gate_lower_bound");
    SPEC(FL_MAMBA2, dt_min, -0.1f, "dt_min");
    SPEC(FL_MAMBA2, dt_max, -0.1f, "dt_max");
    SPEC(FL_MAMBA2, dt_max, NAN, "dt_max");
    SPEC(FL_GDN, dt_max, 0.1f, "dt_max");
    SPEC(FL_GDN, beta_scale, 3.0f, "beta_scale");
    SPEC(FL_GDN, beta_scale, -1.0f, "beta_scale");
    SPEC(FL_GDN, qk_norm, 3, "qk_norm");
    SPEC(FL_GDN, qk_norm_eps, -1e-6f, "qk_norm_eps");
    SPEC(FL_GDN, q_scale, INFINITY, "q_scale");
    SPEC(FL_GDN, out_norm, 5, "out_norm");
    SPEC(FL_GDN, out_norm_groups, 2, "out_norm_groups");
    SPEC(FL_GDN, out_norm_eps, NAN, "out_norm_eps");
#undef SPEC
    rssm_layer_spec group = fl_spec(FL_MAMBA2);
    group.out_norm = RSSM_OUT_NORM_GROUP;
    group.out_norm_groups = 3;
    refuse_create(context, group, (rssm_cache_desc){0}, "out_norm_groups");
}

static void hostile_desc(uint64_t isa) {
    rssm_context *context = cb_context(isa, 1);
    const rssm_layer_spec spec = fl_spec(FL_GDN);
    const struct {
        rssm_cache_desc desc;
        const char *word;
    } cases[] = {{{.layers = -1}, "layers"},
                 {{.first_layer = -1}, "first_layer"},
                 {{.slots = -1}, "slots"},
                 {{.slots = INT64_MAX}, "slots"},
                 {{.slots = 3, .reserved_slots = 3}, "reserved_slots"},
                 {{.reserved_slots = -1}, "reserved_slots"},
                 {{.window = RSSM_WINDOW_MAX + 1}, "window"},
                 {{.window = -1}, "window"},
                 {{.step_tokens = RSSM_STEP_TOKENS_MAX + 1}, "step_tokens"},
                 {{.step_tokens = -1}, "step_tokens"},
                 {{.reach = RSSM_REACH_MAX + 1}, "reach"},
                 {{.reach = -1}, "reach"},
                 {{.method = 3}, "method"},
                 {{.method = RSSM_METHOD_CONVENTIONAL, .step_tokens = 2}, "step_tokens"},
                 {{.io_dtype = RSSM_DTYPE_F16}, "io_dtype"},
                 {{.io_dtype = 99}, "io_dtype"},
                 {{.checkpoint_dtype = RSSM_DTYPE_INT8}, "checkpoint_dtype"},
                 {{.checkpoint_dtype = RSSM_DTYPE_F16, .checkpoint_rounding = 2}, "checkpoint_rounding"},
                 {{.checkpoint_dtype = RSSM_DTYPE_F16, .method = RSSM_METHOD_AUTO}, "checkpoint_dtype"},
                 {{.checkpoint_dtype = -3}, "checkpoint_dtype"},
                 {{.checkpoint_rounding = RSSM_ROUND_STOCHASTIC}, "checkpoint_rounding"},
                 {{.read_copy_dtype = RSSM_DTYPE_F32}, "read_copy_dtype"},
                 {{.read_copy_dtype = RSSM_DTYPE_U8}, "read_copy_dtype"},
                 {{.read_copy_dtype = RSSM_DTYPE_F16, .method = RSSM_METHOD_AUTO}, "read_copy_dtype"},
                 {{.read_copy_dtype = RSSM_DTYPE_INT8, .read_rank = 1}, "read_rank"},
                 {{.read_copy_dtype = RSSM_DTYPE_NVFP4, .read_rank = RSSM_READ_RANK_MAX + 1}, "read_rank"},
                 {{.read_copy_dtype = RSSM_DTYPE_NVFP4, .read_block = 24}, "read_block"},
                 {{.read_copy_dtype = RSSM_DTYPE_NVFP4, .read_block = 32, .read_block_axis = 1}, "read_block"},
                 {{.read_copy_dtype = RSSM_DTYPE_NVFP4, .read_block_axis = 2}, "read_block_axis"},
                 {{.read_copy_dtype = RSSM_DTYPE_NVFP4, .read_scale_search = 2}, "read_scale_search"},
                 {{.read_copy_dtype = RSSM_DTYPE_NVFP4, .read_diffusion = -1}, "read_diffusion"},
                 {{.record_gate = RSSM_RECORD_RAW_GATE}, "record_gate"},
                 {{.record_gate = 2}, "record_gate"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        refuse_create(context, spec, cases[i].desc, cases[i].word);
    }
    rssm_cache *cache = NULL;
    rssm_cache_desc desc = {.spec = &spec, .layers = 1, .slots = 1};
    CHK(rssm_cache_create(context, &desc, NULL) == RSSM_ERROR_ARGUMENT);
    CHK(rssm_cache_create(context, NULL, &cache) == RSSM_ERROR_ARGUMENT);
    CHK(rssm_cache_create(NULL, &desc, &cache) == RSSM_ERROR_ARGUMENT);
    desc.spec = NULL;
    CHK(rssm_cache_create(context, &desc, &cache) == RSSM_ERROR_ARGUMENT);
}

/* ---- Memory -----------------------------------------------------------------------------------------------
 */

static void hostile_bind(uint64_t isa) {
    watched w = watch_make(isa, FL_KDA);
    rssm_cache *c = w.f->box->cache;
    rssm_part_info info, conv;
    unsigned char *memory = chk_guard(1 << 20, 64, CHK_LEFT);
    watch_refused(&w, rssm_cache_layout(c, -1, &info), RSSM_ERROR_ARGUMENT, "part");
    watch_refused(&w, rssm_cache_layout(c, RSSM_PARTS, &info), RSSM_ERROR_ARGUMENT, "part");
    watch_refused(&w, rssm_cache_layout(c, 0, NULL), RSSM_ERROR_ARGUMENT, "info");
    cb_ok(w.f->box, rssm_cache_layout(c, RSSM_PART_CHECKPOINT, &info), "layout");
    cb_ok(w.f->box, rssm_cache_layout(c, RSSM_PART_CONV, &conv), "layout");
    const int64_t stride = info.bytes;
    watch_refused(&w, rssm_cache_bind(c, 2, RSSM_PART_CHECKPOINT, memory, stride), RSSM_ERROR_ARGUMENT,
                  "layer");
    watch_refused(&w, rssm_cache_bind(c, -1, RSSM_PART_CHECKPOINT, memory, stride), RSSM_ERROR_ARGUMENT,
                  "layer");
    watch_refused(&w, rssm_cache_bind(c, 1, RSSM_PART_CURSOR, memory, 4096), RSSM_ERROR_ARGUMENT, "layer");
    watch_refused(&w, rssm_cache_bind(c, 0, RSSM_PARTS, memory, stride), RSSM_ERROR_ARGUMENT, "part");
    watch_refused(&w, rssm_cache_bind(c, 0, RSSM_PART_READ_COPY, memory, stride), RSSM_ERROR_ARGUMENT,
                  "read_copy");
    watch_refused(&w, rssm_cache_bind(c, 0, RSSM_PART_CHECKPOINT, memory + 8, stride), RSSM_ERROR_ARGUMENT,
                  "checkpoint");
    watch_refused(&w, rssm_cache_bind(c, 0, RSSM_PART_CHECKPOINT, memory, stride + 8), RSSM_ERROR_ARGUMENT,
                  "slot_stride");
    watch_refused(&w, rssm_cache_bind(c, 0, RSSM_PART_CHECKPOINT, memory, stride - 16), RSSM_ERROR_ARGUMENT,
                  "slot_stride");
    watch_refused(&w, rssm_cache_bind(c, 0, RSSM_PART_CHECKPOINT, memory, -stride), RSSM_ERROR_ARGUMENT,
                  "slot_stride");
}

/* Memory that was bound badly is found at the first use, and works again once it is bound well. */
static void hostile_overlaps(uint64_t isa) {
    watched w = watch_make(isa, FL_GDN);
    rssm_cache *c = w.f->box->cache;
    const cb_pool *state = &w.f->box->pools[RSSM_PART_CHECKPOINT], *k = &w.f->box->pools[RSSM_PART_RECORD_K];
    rssm_batch batch = {.rows = 1, .slots = &w.slot[0]};
    const struct {
        unsigned char *base;
        int64_t stride;
    } bad[] = {{state->base, state->stride},             /* on top of another part */
               {state->base + 16, state->stride},        /* half into it */
               {state->base + 16, state->stride + 1024}, /* interleaved with another stride */
               {NULL, 0}};                               /* unbound */
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        rssm_status status = rssm_cache_bind(c, 0, RSSM_PART_RECORD_K, bad[i].base, bad[i].stride);
        if (status == RSSM_OK) {
            status = rssm_cache_begin(c, &batch, NULL, NULL, NULL);
        }
        chk_params("bad memory %d", (int)i);
        CHK(status == (bad[i].base == NULL ? RSSM_ERROR_STATE : RSSM_ERROR_ARGUMENT));
        CHK(rssm_context_message(w.f->box->context)[0] != '\0');
        CHK(rssm_cache_export_bytes(c, w.slot[0], 0) == -1);
        CHK(rssm_cache_reset(c, 1, &w.slot[0], NULL, NULL, NULL) != RSSM_OK);
        CHK(rssm_cache_flush(c, 1, &w.slot[0], NULL, NULL) != RSSM_OK);
        CHK(rssm_cache_import(c, w.slot[0], w.file[0], w.bytes[0]) != RSSM_OK);
        cb_ok(w.f->box, rssm_cache_bind(c, 0, RSSM_PART_RECORD_K, k->base, k->stride), "bind");
        for (int32_t s = 0; s < WATCHED; s++) {
            fl_unchanged(w.f, "badly bound memory", w.slot[s], w.file[s], w.bytes[s]);
        }
    }
}

static void hostile_weights(uint64_t isa) {
    watched w = watch_make(isa, FL_KDA);
    rssm_cache *c = w.f->box->cache;
    const rssm_layer_weights good = w.f->p->weights[0];
    const float positive[2] = {-1, 0.5f};
    rssm_layer_weights bad = good;
    watch_refused(&w, rssm_cache_set_weights(c, 2, &good), RSSM_ERROR_ARGUMENT, "layer");
    watch_refused(&w, rssm_cache_set_weights(c, -1, &good), RSSM_ERROR_ARGUMENT, "layer");
    watch_refused(&w, rssm_cache_set_weights(c, 0, NULL), RSSM_ERROR_ARGUMENT, "weights");
    bad.conv_q = NULL;
    watch_refused(&w, rssm_cache_set_weights(c, 0, &bad), RSSM_ERROR_ARGUMENT, "conv_q");
    bad = good;
    bad.conv_v = NULL;
    watch_refused(&w, rssm_cache_set_weights(c, 0, &bad), RSSM_ERROR_ARGUMENT, "conv_v");
    bad = good;
    bad.A_log = bad.A = NULL;
    watch_refused(&w, rssm_cache_set_weights(c, 0, &bad), RSSM_ERROR_ARGUMENT, "A");
    bad.A = positive;
    watch_refused(&w, rssm_cache_set_weights(c, 0, &bad), RSSM_ERROR_ARGUMENT, "A");
    watch_refused(&w, rssm_cache_prepare(c, -1, 1), RSSM_ERROR_ARGUMENT, "rows");
    watch_refused(&w, rssm_cache_prepare(c, 1, -1), RSSM_ERROR_ARGUMENT, "parts");
}

/* A cache whose layer was never given its weights. */
static void hostile_no_weights(uint64_t isa) {
    const rssm_layer_spec spec = fl_spec(FL_GDN);
    const rssm_cache_desc desc = {.spec = &spec, .layers = 1, .slots = 1};
    rssm_context *context = cb_context(isa, 1);
    rssm_cache *c;
    const int32_t slot = 0;
    float data[96] = {0};
    const rssm_batch batch = {.rows = 1, .slots = &slot};
    const rssm_view view = {.data = data};
    const rssm_layer_inputs in = {.q = view, .k = view, .v = view, .decay = view, .beta = view};
    const rssm_output out = {.data = data};
    CHK(rssm_cache_create(context, &desc, &c) == RSSM_OK && rssm_cache_allocate(c) == RSSM_OK);
    CHK(rssm_cache_reset(c, 1, &slot, NULL, NULL, NULL) == RSSM_OK);
    CHK(rssm_cache_begin(c, &batch, NULL, NULL, NULL) == RSSM_OK);
    CHK(rssm_cache_decode(c, 0, &batch, &in, &out, NULL) == RSSM_ERROR_STATE);
    CHK(strstr(rssm_context_message(context), "weights") != NULL);
    rssm_cache_destroy(c);
}

const fl_test fl_hostile[] = {{"hostile_context", hostile_context},
                              {"hostile_spec", hostile_spec},
                              {"hostile_desc", hostile_desc},
                              {"hostile_bind", hostile_bind},
                              {"hostile_overlaps", hostile_overlaps},
                              {"hostile_weights", hostile_weights},
                              {"hostile_no_weights", hostile_no_weights},
                              {NULL, NULL}};
