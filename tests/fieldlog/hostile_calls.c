/* SPDX-License-Identifier: Apache-2.0 */
/* Hostile input, continued: steps, operations on slots, questions. */
#include "fieldlog/hostile.h"

#include <stdint.h>
#include <string.h>

static void hostile_begin(uint64_t isa) {
    watched w = watch_make(isa, FL_MAMBA2);
    rssm_cache *c = w.f->box->cache;
    int32_t slots[3] = {w.slot[0], w.slot[1], -1}, offsets[4] = {0, 1, 2, 3};
    const int32_t many[3] = {2, 0, 0}, negative[3] = {-1, 0, 0};
    const rssm_batch good = {.rows = 3, .slots = slots, .offsets = offsets};
    rssm_batch b = good;
    watch_refused(&w, rssm_cache_begin(c, NULL, NULL, NULL, NULL), RSSM_ERROR_ARGUMENT, "batch");
    b.rows = -1;
    watch_refused(&w, rssm_cache_begin(c, &b, NULL, NULL, NULL), RSSM_ERROR_ARGUMENT, "rows");
    b = good;
    b.slots = NULL;
    watch_refused(&w, rssm_cache_begin(c, &b, NULL, NULL, NULL), RSSM_ERROR_ARGUMENT, "slots");
    b = good;
    slots[2] = 8;
    watch_refused(&w, rssm_cache_begin(c, &b, NULL, NULL, NULL), RSSM_ERROR_ARGUMENT, "8");
    slots[2] = INT32_MAX;
    watch_refused(&w, rssm_cache_begin(c, &b, NULL, NULL, NULL), RSSM_ERROR_ARGUMENT, "slot");
    slots[2] = w.slot[0];
    watch_refused(&w, rssm_cache_begin(c, &b, NULL, NULL, NULL), RSSM_ERROR_ARGUMENT, "twice");
    slots[2] = w.empty;
    watch_refused(&w, rssm_cache_begin(c, &b, NULL, NULL, NULL), RSSM_ERROR_STATE, "never");
    slots[2] = -1;
    offsets[1] = 4;
    offsets[2] = 4;
    watch_refused(&w, rssm_cache_begin(c, &b, NULL, NULL, NULL), RSSM_ERROR_ARGUMENT, "offsets");
    offsets[3] = 5;
    watch_refused(&w, rssm_cache_begin(c, &b, NULL, NULL, NULL), RSSM_ERROR_ARGUMENT, "4 tokens");
    offsets[0] = -1;
    watch_refused(&w, rssm_cache_begin(c, &b, NULL, NULL, NULL), RSSM_ERROR_ARGUMENT, "offsets");
    b.offsets = NULL;
    b.uniform_tokens = 4;
    watch_refused(&w, rssm_cache_begin(c, &b, NULL, NULL, NULL), RSSM_ERROR_ARGUMENT, "4 tokens");
    b.uniform_tokens = -1;
    watch_refused(&w, rssm_cache_begin(c, &b, NULL, NULL, NULL), RSSM_ERROR_ARGUMENT, "uniform_tokens");
    b.uniform_tokens = INT32_MAX;
    watch_refused(&w, rssm_cache_begin(c, &b, NULL, NULL, NULL), RSSM_ERROR_ARGUMENT, "tokens");
    b.uniform_tokens = 1;
    watch_refused(&w, rssm_cache_begin(c, &b, many, NULL, NULL), RSSM_ERROR_ARGUMENT, "accepted");
    watch_refused(&w, rssm_cache_begin(c, &b, negative, NULL, NULL), RSSM_ERROR_ARGUMENT, "accepted");
}

/* Parents that are no tree in order, paths that are none, batches that say something else to the layers. */
static void hostile_trees(uint64_t isa) {
    static const int32_t wrong[][3] = {{0, 0, 1},  {-2, 0, 1}, {-1, 1, 0},
                                       {-1, 2, 0}, {-1, 0, 2}, {INT32_MIN, 0, 1}};
    watched w = watch_make(isa, FL_KDA);
    rssm_cache *c = w.f->box->cache;
    rssm_batch b = {.rows = 1, .slots = &w.slot[1], .uniform_tokens = 3};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        b.parents = wrong[i];
        watch_refused(&w, rssm_cache_begin(c, &b, NULL, NULL, NULL), RSSM_ERROR_ARGUMENT, "parents");
    }
    b.parents = NULL; /* slot 1 has a chain of two pending */
    const int32_t paths[][3] = {{1, 0, 0}, {0, 0, 0}, {0, 2, 0}, {-1, 0, 0}, {0, -1, 0}, {0, INT32_MAX, 0}},
                  two = 2;
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        watch_refused(&w, rssm_cache_begin(c, &b, &two, paths[i], NULL), RSSM_ERROR_ARGUMENT, "paths");
    }
    fl *f = fl_twin(w.f, RSSM_METHOD_REPLAY, 1);
    const int32_t slot = fl_slot(f, 0), fork[3] = {-1, 0, 0}, other[3] = {-1, 0, 1}, path[3] = {0, 2, -9};
    c = f->box->cache;
    fl_reset(f, slot, 5);
    b = (rssm_batch){.rows = 1, .slots = &slot, .uniform_tokens = 3, .parents = fork};
    cb_feed *feed = cb_feed_make(f->p, &f->rng, 3);
    for (int32_t t = 0; t < 3; t++) {
        cb_feed_set(feed, t, fl_token(f, 0, 1, t));
    }
    cb_ok(f->box, rssm_cache_begin(c, &b, NULL, NULL, NULL), "begin");
    b.parents = other;
    cb_expect(f->box, rssm_cache_decode(c, 0, &b, &feed->inputs, &feed->out, NULL), RSSM_ERROR_STATE,
              "other parents");
    b.parents = NULL;
    cb_expect(f->box, rssm_cache_decode(c, 0, &b, &feed->inputs, &feed->out, NULL), RSSM_ERROR_STATE,
              "no parents");
    b.parents = fork;
    for (int32_t l = 0; l < f->p->desc.layers; l++) {
        cb_ok(f->box, rssm_cache_decode(c, l, &b, &feed->inputs, &feed->out, NULL), "decode");
    }
    const int32_t three = 3, one = 1;
    cb_expect(f->box, rssm_cache_begin(c, &b, &three, NULL, NULL), RSSM_ERROR_ARGUMENT,
              "a tree kept as a chain");
    cb_expect(f->box, rssm_cache_begin(c, &b, &three, other, NULL), RSSM_ERROR_ARGUMENT,
              "a path longer than the tree");
    CHK(fl_info(f, slot).pending == 3 && fl_info(f, slot).position == 0);
    cb_ok(f->box, rssm_cache_begin(c, &b, &two, path, NULL), "begin that keeps a path");
    CHK(fl_info(f, slot).position == two);
    b.parents = NULL;
    cb_expect(f->box, rssm_cache_begin(c, &b, &one, NULL, NULL), RSSM_ERROR_FAILED_SLOT,
              "a step that no layer ran");
    CHK(fl_info(f, slot).state == 2 && fl_info(f, slot).position == two && fl_info(f, slot).id == 5);
}

/* A begin that finds several slots without their step fails each of them, not the first alone. */
static void hostile_failures(uint64_t isa) {
    const rssm_layer_spec spec = fl_spec(FL_GDN);
    fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.layers = 2});
    const int32_t slots[3] = {fl_slot(f, 0), fl_slot(f, 1), fl_slot(f, 2)}, ones[3] = {1, 1, 1};
    const rssm_batch b = {.rows = 3, .slots = slots, .uniform_tokens = 1};
    for (int32_t i = 0; i < 3; i++) {
        fl_reset(f, slots[i], 7 + (uint64_t)i);
    }
    cb_ok(f->box, rssm_cache_begin(f->box->cache, &b, NULL, NULL, NULL), "begin");
    cb_expect(f->box, rssm_cache_begin(f->box->cache, &b, ones, NULL, NULL), RSSM_ERROR_FAILED_SLOT, "slot");
    for (int32_t i = 0; i < 3; i++) {
        CHK(fl_info(f, slots[i]).state == 2 && fl_info(f, slots[i]).id == 7 + (uint64_t)i);
    }
}

/* Structs too short to say how long they are. */
static void hostile_sizes(uint64_t isa) {
    watched w = watch_make(isa, FL_GDN);
    rssm_cache *c = w.f->box->cache;
    const int32_t slot = w.slot[1];
    for (uint64_t size = 1; size < 8; size++) {
        rssm_context *context = NULL;
        CHK(rssm_context_create(&(rssm_context_desc){.struct_size = size}, &context) == RSSM_ERROR_ARGUMENT);
        const rssm_batch batch = {.struct_size = size, .rows = 1, .slots = &slot, .uniform_tokens = 1};
        watch_refused(&w, rssm_cache_begin(c, &batch, NULL, NULL, NULL), RSSM_ERROR_ARGUMENT, "batch.struct_size");
        rssm_slot_info info = {.struct_size = size};
        watch_refused(&w, rssm_cache_slot(c, slot, &info), RSSM_ERROR_ARGUMENT, "info.struct_size");
        rssm_cache *made = NULL;
        const rssm_layer_spec spec = {.struct_size = size};
        watch_refused(&w, rssm_cache_create(w.f->box->context, &(rssm_cache_desc){.spec = &spec}, &made),
                      RSSM_ERROR_ARGUMENT, "spec.struct_size");
    }
}

/* Calls of a layer that the open step does not know, or without a tensor. */
static void hostile_decode(uint64_t isa) {
    watched w = watch_make(isa, FL_GDN);
    rssm_cache *c = w.f->box->cache;
    const int32_t slot = w.slot[1], two = 2;
    const rssm_batch good = {.rows = 1, .slots = &slot, .uniform_tokens = two};
    cb_feed *feed = cb_feed_make(w.f->p, &w.f->rng, 3);
    for (int32_t t = 0; t < 3; t++) {
        cb_feed_set(feed, t, fl_token(w.f, 0, 1, 9 + t));
    }
    const rssm_layer_inputs in = feed->inputs;
    const rssm_output out = feed->out;
#define REFUSE(layer, batch, inputs, output, status, word)                                                     \
    watch_refused(&w, rssm_cache_decode(c, layer, batch, inputs, output, NULL), status, word)
    REFUSE(-1, &good, &in, &out, RSSM_ERROR_ARGUMENT, "layer");
    REFUSE(2, &good, &in, &out, RSSM_ERROR_ARGUMENT, "layer");
    REFUSE(0, NULL, &in, &out, RSSM_ERROR_ARGUMENT, "batch");
    REFUSE(0, &good, NULL, &out, RSSM_ERROR_ARGUMENT, "inputs");
    REFUSE(0, &good, &in, NULL, RSSM_ERROR_ARGUMENT, "out");
    const size_t views[] = {offsetof(rssm_layer_inputs, q), offsetof(rssm_layer_inputs, k),
                            offsetof(rssm_layer_inputs, v), offsetof(rssm_layer_inputs, decay),
                            offsetof(rssm_layer_inputs, beta)};
    static const char *const names[] = {"q", "k", "v", "decay", "beta"};
    for (int32_t i = 0; i < 5; i++) {
        rssm_layer_inputs bad = in;
        memset((char *)&bad + views[i], 0, sizeof(void *));
        REFUSE(0, &good, &bad, &out, RSSM_ERROR_ARGUMENT, names[i]);
    }
    rssm_layer_inputs bad = in;
    bad.gate_dtype = 77;
    REFUSE(0, &good, &bad, &out, RSSM_ERROR_UNSUPPORTED, "gate_dtype");
    rssm_output wrong = out;
    wrong.dtype = RSSM_DTYPE_F16;
    REFUSE(0, &good, &in, &wrong, RSSM_ERROR_UNSUPPORTED, "dtype");
    wrong = out;
    wrong.data = NULL;
    REFUSE(0, &good, &in, &wrong, RSSM_ERROR_ARGUMENT, "out");
    rssm_batch b = good;
    b.uniform_tokens = 3; /* begin planned 2 */
    REFUSE(0, &b, &in, &out, RSSM_ERROR_STATE, "begin");
    b = good;
    b.slots = &w.empty;
    REFUSE(0, &b, &in, &out, RSSM_ERROR_STATE, "never");
    const uint8_t prompt = 1;
    b = good;
    b.prefill = &prompt; /* the open step is no prompt */
    watch_refused(&w, rssm_cache_prefill(c, 0, &b, &in, &out, NULL), RSSM_ERROR_STATE, "begin");
#undef REFUSE
    const int32_t parts[][2] = {{0, 0}, {2, 2}, {-1, 2}, {0, -1}, {0, 4097}};
    for (int32_t i = 0; i < 5; i++) {
        watch_refused(&w, rssm_cache_decode_part(c, 0, &good, &in, &out, parts[i][0], parts[i][1]),
                      RSSM_ERROR_ARGUMENT, "part");
    }
    cb_feed_intact(feed);
}

/* A slot that no step has been opened for. */
static void hostile_no_begin(uint64_t isa) {
    watched w = watch_make(isa, FL_KDA_BOUNDED);
    const int32_t s = w.empty;
    cb_feed *feed = cb_feed_make(w.f->p, &w.f->rng, 1);
    const rssm_batch batch = {.rows = 1, .slots = &s};
    fl_reset(w.f, s, 0);
    watch_refused(&w, rssm_cache_decode(w.f->box->cache, 0, &batch, &feed->inputs, &feed->out, NULL),
                  RSSM_ERROR_STATE, "begin");
    CHK(fl_info(w.f, s).position == 0 && fl_info(w.f, s).pending == 0);
}

static void hostile_slots(uint64_t isa) {
    watched w = watch_make(isa, FL_GDN);
    rssm_cache *c = w.f->box->cache;
    const int32_t lists[][2] = {{w.slot[0], 8}, {w.slot[0], -1}, {w.slot[0], 0}, {w.slot[0], INT32_MIN}};
    const int32_t twice[2] = {w.slot[0], w.slot[0]}, one[1] = {w.slot[0]}, none[1] = {w.empty};
    const int64_t below[1] = {-2}, huge[1] = {INT64_MAX}, ahead[1] = {w.info[0].position + 1};
    const int64_t behind[1] = {w.info[0].oldest - 1};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        watch_refused(&w, rssm_cache_reset(c, 2, lists[i], NULL, NULL, NULL), RSSM_ERROR_ARGUMENT, "slots");
        watch_refused(&w, rssm_cache_adopt(c, 2, lists[i], NULL, NULL, NULL), RSSM_ERROR_ARGUMENT, "slots");
        watch_refused(&w, rssm_cache_flush(c, 2, lists[i], NULL, NULL), RSSM_ERROR_ARGUMENT, "slots");
        watch_refused(&w, rssm_cache_rollback(c, 2, lists[i], NULL, NULL), RSSM_ERROR_ARGUMENT, "slots");
        watch_refused(&w, rssm_cache_copy(c, 1, one, lists[i] + 1, NULL, NULL), RSSM_ERROR_ARGUMENT, "dst");
        watch_refused(&w, rssm_cache_copy(c, 1, lists[i] + 1, none, NULL, NULL), RSSM_ERROR_ARGUMENT, "src");
        watch_refused(&w, rssm_cache_materialize(c, 1, one, lists[i] + 1, NULL, NULL, NULL),
                      RSSM_ERROR_ARGUMENT, "dst");
        watch_refused(&w, rssm_cache_materialize(c, 1, lists[i] + 1, none, NULL, NULL, NULL),
                      RSSM_ERROR_ARGUMENT, "src");
        watch_refused(&w, rssm_cache_import(c, lists[i][1], w.file[0], w.bytes[0]), RSSM_ERROR_ARGUMENT,
                      "slot");
        rssm_slot_info info = {.struct_size = sizeof info};
        watch_refused(&w, rssm_cache_slot(c, lists[i][1], &info), RSSM_ERROR_ARGUMENT, "slot");
        CHK(rssm_cache_export_bytes(c, lists[i][1], 0) == -1);
    }
    watch_refused(&w, rssm_cache_reset(c, 2, twice, NULL, NULL, NULL), RSSM_ERROR_ARGUMENT, "twice");
    watch_refused(&w, rssm_cache_flush(c, 2, twice, NULL, NULL), RSSM_ERROR_ARGUMENT, "twice");
    watch_refused(&w, rssm_cache_copy(c, 2, one, twice, NULL, NULL), RSSM_ERROR_ARGUMENT, "twice");
    watch_refused(&w, rssm_cache_materialize(c, 1, one, one, NULL, NULL, NULL), RSSM_ERROR_ARGUMENT, "dst");
    watch_refused(&w, rssm_cache_reset(c, -1, one, NULL, NULL, NULL), RSSM_ERROR_ARGUMENT, "count");
    watch_refused(&w, rssm_cache_reset(c, 1, NULL, NULL, NULL, NULL), RSSM_ERROR_ARGUMENT, "slots");
    watch_refused(&w, rssm_cache_flush(c, 1, NULL, NULL, NULL), RSSM_ERROR_ARGUMENT, "slots");
    watch_refused(&w, rssm_cache_copy(c, 1, NULL, none, NULL, NULL), RSSM_ERROR_ARGUMENT, "src");
    watch_refused(&w, rssm_cache_materialize(c, 1, NULL, none, NULL, NULL, NULL), RSSM_ERROR_ARGUMENT, "src");
    watch_refused(&w, rssm_cache_copy(c, -3, one, none, NULL, NULL), RSSM_ERROR_ARGUMENT, "count");
    watch_refused(&w, rssm_cache_reset(c, 1, one, NULL, below, NULL), RSSM_ERROR_ARGUMENT, "positions");
    watch_refused(&w, rssm_cache_reset(c, 1, one, NULL, huge, NULL), RSSM_ERROR_ARGUMENT, "positions");
    watch_refused(&w, rssm_cache_adopt(c, 1, one, NULL, below, NULL), RSSM_ERROR_ARGUMENT, "positions");
    watch_refused(&w, rssm_cache_flush(c, 1, one, ahead, NULL), RSSM_ERROR_ARGUMENT, "positions");
    watch_refused(&w, rssm_cache_flush(c, 1, one, below, NULL), RSSM_ERROR_ARGUMENT, "positions");
    watch_refused(&w, rssm_cache_rollback(c, 1, one, behind, NULL), RSSM_ERROR_ARGUMENT, "positions");
    watch_refused(&w, rssm_cache_rollback(c, 1, one, ahead, NULL), RSSM_ERROR_ARGUMENT, "positions");
    watch_refused(&w, rssm_cache_materialize(c, 1, one, none, behind, NULL, NULL), RSSM_ERROR_ARGUMENT,
                  "positions");
    watch_refused(&w, rssm_cache_flush(c, 1, none, NULL, NULL), RSSM_ERROR_STATE, "never");
    watch_refused(&w, rssm_cache_rollback(c, 1, none, NULL, NULL), RSSM_ERROR_STATE, "never");
    watch_refused(&w, rssm_cache_copy(c, 1, none, one, NULL, NULL), RSSM_ERROR_STATE, "never");
    watch_refused(&w, rssm_cache_materialize(c, 1, none, one, NULL, NULL, NULL), RSSM_ERROR_STATE, "never");
    cb_ok(w.f->box, rssm_cache_reset(c, 0, NULL, NULL, NULL, NULL), "reset of nothing");
    CHK(fl_info(w.f, w.empty).state == 0);
}

static void hostile_questions(uint64_t isa) {
    watched w = watch_make(isa, FL_MAMBA2);
    rssm_cache *c = w.f->box->cache;
    unsigned char *file = chk_alloc((size_t)w.bytes[0]);
    int64_t written = 7;
    watch_refused(&w, rssm_cache_slot(c, w.slot[0], NULL), RSSM_ERROR_ARGUMENT, "info");
    watch_refused(&w, rssm_cache_status(c, NULL), RSSM_ERROR_ARGUMENT, "info");
    watch_refused(&w, rssm_cache_export(c, w.slot[0], 4, file, w.bytes[0], &written), RSSM_ERROR_ARGUMENT,
                  "flags");
    watch_refused(&w, rssm_cache_export(c, w.slot[0], 0, file, w.bytes[0] - 1, &written), RSSM_ERROR_BUFFER,
                  "capacity");
    watch_refused(&w, rssm_cache_export(c, w.slot[0], 0, file, -1, &written), RSSM_ERROR_BUFFER, "capacity");
    watch_refused(&w, rssm_cache_export(c, w.slot[0], 0, NULL, w.bytes[0], &written), RSSM_ERROR_BUFFER,
                  "buffer");
    watch_refused(&w, rssm_cache_export(c, w.empty, 0, file, w.bytes[0], &written), RSSM_ERROR_STATE, "never");
    CHK(written == 7 && rssm_cache_export_bytes(c, w.empty, 0) == -1);
    for (int64_t i = 0; i < w.bytes[0]; i++) {
        CHK(file[i] == 0);
    }
    rssm_slot_info old = {.struct_size = 16,
                          .checkpoint = 77}; /* an older caller's struct is not written beyond */
    cb_ok(w.f->box, rssm_cache_slot(c, w.slot[0], &old), "slot info");
    CHK(old.position == w.info[0].position && old.checkpoint == 77);
}

const fl_test fl_hostile_calls[] = {{"hostile_begin", hostile_begin},
                                    {"hostile_trees", hostile_trees},
                                    {"hostile_decode", hostile_decode},
                                    {"hostile_failures", hostile_failures},
                                    {"hostile_sizes", hostile_sizes},
                                    {"hostile_no_begin", hostile_no_begin},
                                    {"hostile_slots", hostile_slots},
                                    {"hostile_questions", hostile_questions},
                                    {NULL, NULL}};
