/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The buffer bound and the flush rule, for every window and every step size. A cache of one head with one
 * channel is driven at random; every record and every convolution row is a number that stands for its position.
 * After each call: both row maps are permutations, live rows are where they were put and hold what was put
 * there, rows in use stay within L - 1 + 2 T_max, and the checkpoint stands at b(n) or where a forced flush, a
 * prompt or an import left it. A directed run shows that the bound is reached, so no smaller buffer would do.
 */
#include <stdio.h>
#include <string.h>

#include "cache.h"
#include "harness/check.h"

enum { SLOTS = 2, LAYERS = 2, SPAN = 4096, PROMPT = 70 };

typedef struct sequence {
    uint64_t id;
    int64_t position, checkpoint[LAYERS];
    int64_t start;   /* before it nothing is known */
    int32_t pending; /* of a decode step */
    bool ran[LAYERS];
    float tag[SPAN];   /* by position mod SPAN, pending ones included */
    uint8_t row[SPAN]; /* the record row a position was given */
} sequence;

typedef struct rig {
    chk_rng *rng;
    rssm_context *context;
    rssm_cache *cache, *other; /* other: another window and step size, to export to */
    int32_t window, most, width, reach, most_used;
    float next;
    sequence s[SLOTS];
} rig;

static void ok(const rig *r, rssm_status status, const char *what) {
    if (status != RSSM_OK) {
        chk_abandon("%s: %s", what, rssm_context_message(r->context));
    }
}

static int64_t boundary(int64_t n, uint64_t id, int64_t window) {
    int64_t b = n;
    while (((b - (int64_t)(id % (uint64_t)window)) % window + window) % window != 0) {
        b--;
    }
    return b;
}

static void destroy_cache(void *cache) {
    rssm_cache_destroy(cache);
}
static void destroy_context(void *context) {
    rssm_context_destroy(context);
}

static rssm_cache *make_cache(rig *r, int32_t window, int32_t most, int32_t reach) {
    static const float taps[RSSM_CONV_WIDTH_MAX] = {1.0f, 0, 0, 0, 0};
    const float *last = taps;
    float *weights = chk_alloc(sizeof taps);
    rssm_cache *cache;
    rssm_layer_spec spec = {.struct_size = sizeof spec,
                            .kind = RSSM_MAMBA2,
                            .key_heads = 1,
                            .value_heads = 1,
                            .d_k = 1,
                            .d_v = 1,
                            .conv_width = r->width,
                            .conv_linear = 1,
                            .gate = RSSM_GATE_LOG};
    rssm_cache_desc desc = {.struct_size = sizeof desc,
                            .spec = &spec,
                            .layers = LAYERS,
                            .slots = SLOTS,
                            .window = window,
                            .step_tokens = most,
                            .reach = reach};
    ok(r, rssm_cache_create(r->context, &desc, &cache), "create");
    chk_defer(destroy_cache, cache);
    ok(r, rssm_cache_allocate(cache), "allocate");
    if (r->width > 0) { /* what goes in comes out */
        weights[r->width - 1] = *last;
        rssm_layer_weights w = {
            .struct_size = sizeof w, .conv_q = weights, .conv_k = weights, .conv_v = weights};
        for (int32_t l = 0; l < LAYERS; l++) {
            ok(r, rssm_cache_set_weights(cache, l, &w), "weights");
        }
    }
    return cache;
}

/* ---- Looking ----------------------------------------------------------------------------------------------
 */

static void check_permutation(const uint8_t *map, int32_t n, const char *what) {
    bool seen[256] = {false};
    for (int32_t i = 0; i < n; i++) {
        if (map[i] >= n || seen[map[i]]) {
            chk_abandon("%s maps entry %d to row %d, which is %s", what, i, map[i],
                        map[i] >= n ? "outside" : "taken");
        }
        seen[map[i]] = true;
    }
}

/* Records of [oldest checkpoint, end) are where they were put, and hold what was put there. */
static void check_records(const rig *r, int32_t slot, int64_t end) {
    const sequence *s = &r->s[slot];
    const rssm_cursor *cursor = rssm_cursor_at(r->cache, slot);
    for (int32_t l = 0; l < LAYERS; l++) {
        const float *v = rssm_part_at(r->cache, l, RSSM_PART_RECORD_V, slot);
        for (int64_t p = s->checkpoint[l]; p < end; p++) {
            uint8_t row = cursor->row_map[p - rssm_cursor_base(cursor)];
            if (row != s->row[p % SPAN]) {
                chk_abandon("the record of position %d moved from row %d to %d", (int)p, s->row[p % SPAN], row);
            }
            if ((p < s->position || s->ran[l]) && v[row] != s->tag[p % SPAN]) {
                chk_abandon(
                    "the record of position %d in row %d of layer %d was overwritten (position %d, %d pending)",
                    (int)p, row, l, (int)s->position, s->pending);
            }
        }
    }
}

static void check_context(const rig *r, int32_t slot) {
    const sequence *s = &r->s[slot];
    const rssm_cursor *cursor = rssm_cursor_at(r->cache, slot);
    if (r->width == 0) {
        return;
    }
    check_permutation(cursor->conv_map, r->cache->geometry.rows.conv, "the convolution map");
    if (cursor->held < r->width - 1) {
        chk_abandon("%d convolution rows are held, %d are needed", cursor->held, r->width - 1);
    }
    for (int32_t l = 0; l < LAYERS; l++) {
        const float *rows = rssm_part_at(r->cache, l, RSSM_PART_CONV, slot);
        for (int32_t i = 0; i < cursor->held; i++) {
            int64_t p = s->position - cursor->held + i;
            float expected = p >= s->start ? s->tag[p % SPAN] : 0;
            if (rows[cursor->conv_map[i] * 3 + 2] != expected) {
                chk_abandon("the convolution row of position %d is not its input", (int)p);
            }
        }
    }
}

static void check_slot(rig *r, int32_t slot) {
    const sequence *s = &r->s[slot];
    const rssm_cursor *cursor = rssm_cursor_at(r->cache, slot);
    int32_t rows = r->cache->geometry.rows.records;
    int64_t most = s->checkpoint[0] > s->checkpoint[1] ? s->checkpoint[0] : s->checkpoint[1];
    int64_t least = s->checkpoint[0] + s->checkpoint[1] - most;
    rssm_slot_info info = {.struct_size = sizeof info};
    CHK(rows == r->window - 1 + 2 * r->most);
    check_permutation(cursor->row_map, rows, "the record map");
    int32_t used = cursor->history + cursor->pending;
    r->most_used = used > r->most_used ? used : r->most_used;
    if (used > rows) {
        chk_abandon("%d rows are in use, the buffer has %d", used, rows);
    }
    check_records(r, slot, s->position + s->pending);
    check_context(r, slot);
    ok(r, rssm_cache_slot(r->cache, slot, &info), "slot info");
    if (info.position != s->position || info.checkpoint != least || info.oldest < most ||
        info.pending != s->pending) {
        chk_abandon("slot %d: position %d checkpoint %d oldest %d pending %d, expected %d %d >=%d %d", slot,
                    (int)info.position, (int)info.checkpoint, (int)info.oldest, info.pending, (int)s->position,
                    (int)least, (int)most, s->pending);
    }
}

/* ---- Doing ------------------------------------------------------------------------------------------------
 */

static void feed(rig *r, rssm_cache *cache, int32_t layer, const rssm_batch *batch, const float *tags,
                 bool prefill) {
    static const float ones[PROMPT] = {1}, logs[PROMPT] = {0};
    static float out[PROMPT];
    rssm_layer_inputs in = {.struct_size = sizeof in,
                            .q = {.data = ones, .token_stride = 0},
                            .k = {.data = tags},
                            .v = {.data = tags},
                            .decay = {.data = logs},
                            .beta = {.data = logs}};
    rssm_output o = {.struct_size = sizeof o, .data = out};
    ok(r,
       prefill ? rssm_cache_prefill(cache, layer, batch, &in, &o, NULL)
               : rssm_cache_decode(cache, layer, batch, &in, &o, NULL),
       "layer");
}

static void commit(rig *r, sequence *s, int32_t count) {
    (void)r;
    s->position += count;
    s->pending = 0;
}

/* A step of `tokens`; `run` says which layers run it. */
static void step(rig *r, int32_t slot, int32_t tokens, int32_t accepted, const bool *run) {
    sequence *s = &r->s[slot];
    int32_t offsets[2] = {0, tokens};
    float tags[PROMPT];
    rssm_batch batch = {.struct_size = sizeof batch, .rows = 1, .slots = &slot, .offsets = offsets};
    ok(r, rssm_cache_begin(r->cache, &batch, &accepted, NULL, NULL), "begin");
    commit(r, s, s->pending > 0 ? accepted : 0);
    const rssm_cursor *cursor = rssm_cursor_at(r->cache, slot);
    for (int32_t t = 0; t < tokens; t++) {
        int64_t p = s->position + t;
        tags[t] = s->tag[p % SPAN] = r->next++;
        s->row[p % SPAN] = cursor->row_map[p - rssm_cursor_base(cursor)];
    }
    s->pending = tokens;
    s->ran[0] = s->ran[1] = false;
    check_slot(r, slot);
    int64_t target = boundary(s->position, s->id, r->window);
    for (int32_t l = 0; l < LAYERS && tokens > 0; l++) {
        if (run[l]) {
            feed(r, r->cache, l, &batch, tags, false);
            s->ran[l] = true;
            s->checkpoint[l] = target > s->checkpoint[l] ? target : s->checkpoint[l];
        }
    }
    check_slot(r, slot);
}

static void prompt(rig *r, int32_t slot, int32_t tokens) {
    sequence *s = &r->s[slot];
    int32_t offsets[2] = {0, tokens}, none[2] = {0, 0}, accepted = 0;
    uint8_t prefill = 1;
    float tags[PROMPT];
    rssm_batch batch = {
        .struct_size = sizeof batch, .rows = 1, .slots = &slot, .offsets = offsets, .prefill = &prefill};
    bool all = s->pending > 0 && s->ran[0] && s->ran[1];
    accepted = all ? chk_int(r->rng, 0, s->pending) : 0;
    ok(r, rssm_cache_begin(r->cache, &batch, &accepted, NULL, NULL), "begin a prompt");
    commit(r, s, accepted);
    for (int32_t t = 0; t < tokens; t++) {
        tags[t] = s->tag[(s->position + t) % SPAN] = r->next++;
    }
    for (int32_t l = 0; l < LAYERS; l++) {
        feed(r, r->cache, l, &batch, tags, true);
        s->checkpoint[l] = s->position + tokens;
    }
    commit(r, s, tokens);
    batch.offsets = none;
    ok(r, rssm_cache_begin(r->cache, &batch, NULL, NULL, NULL), "commit a prompt");
    check_slot(r, slot);
}

static void random_step(rig *r, int32_t slot) {
    const sequence *s = &r->s[slot];
    bool all = s->pending > 0 && s->ran[0] && s->ran[1], run[LAYERS];
    int32_t accepted = !all ? 0 : chk_flip(r->rng, 0.5) ? s->pending : chk_int(r->rng, 0, s->pending);
    int32_t tokens = chk_flip(r->rng, 0.5) ? r->most : chk_int(r->rng, 0, r->most);
    bool abandon = chk_flip(r->rng, 0.1);
    for (int32_t l = 0; l < LAYERS; l++) {
        run[l] = !(abandon && chk_flip(r->rng, 0.5));
    }
    step(r, slot, tokens, accepted, run);
}

static void random_flush(rig *r, int32_t slot) {
    sequence *s = &r->s[slot];
    int64_t most = s->checkpoint[0] > s->checkpoint[1] ? s->checkpoint[0] : s->checkpoint[1];
    int64_t to = most + chk_int(r->rng, 0, (int32_t)(s->position - most));
    ok(r, rssm_cache_flush(r->cache, 1, &slot, &to, NULL), "flush");
    s->checkpoint[0] = s->checkpoint[1] = to;
    check_slot(r, slot);
}

static void random_rollback(rig *r, int32_t slot) {
    sequence *s = &r->s[slot];
    rssm_slot_info info = {.struct_size = sizeof info};
    ok(r, rssm_cache_slot(r->cache, slot, &info), "slot info");
    int64_t to = info.oldest + chk_int(r->rng, 0, (int32_t)(s->position - info.oldest));
    ok(r, rssm_cache_rollback(r->cache, 1, &slot, &to, NULL), "rollback");
    s->position = to;
    s->pending = 0;
    check_slot(r, slot);
}

/* Out to a cache with another window and back, or straight into this one. */
static void random_import(rig *r, int32_t slot) {
    sequence *s = &r->s[slot];
    static unsigned char file[1 << 16];
    int64_t bytes;
    rssm_slot_info info = {.struct_size = sizeof info};
    ok(r, rssm_cache_export(r->cache, slot, 0, file, sizeof file, &bytes), "export");
    if (chk_flip(r->rng, 0.5)) {
        ok(r, rssm_cache_import(r->other, slot, file, bytes), "import with another window");
        ok(r, rssm_cache_export(r->other, slot, 0, file, sizeof file, &bytes), "export with another window");
    }
    ok(r, rssm_cache_import(r->cache, slot, file, bytes), "import");
    ok(r, rssm_cache_slot(r->cache, slot, &info), "slot info");
    CHK(info.position == s->position && info.id == s->id && info.pending == 0);
    s->pending = 0;
    const rssm_cursor *cursor = rssm_cursor_at(r->cache, slot);
    if (cursor->history > r->window - 1 + r->most) {
        chk_abandon("an import left %d records of history, window %d, T_max %d", cursor->history, r->window,
                    r->most);
    }
    for (int32_t l = 0; l < LAYERS; l++) {
        int64_t now = rssm_layer_cursor_at(r->cache, l, slot)->checkpoint;
        CHK(now >= s->checkpoint[l] && now <= s->position);
        s->checkpoint[l] = now;
    }
    for (int64_t p = rssm_cursor_base(cursor); p < s->position; p++) {
        s->row[p % SPAN] = cursor->row_map[p - rssm_cursor_base(cursor)];
    }
    check_slot(r, slot);
}

static void random_reset(rig *r, int32_t slot) {
    sequence *s = &r->s[slot];
    memset(s, 0, sizeof *s);
    s->id = chk_u64(r->rng);
    s->start = s->position = s->checkpoint[0] = s->checkpoint[1] = chk_int(r->rng, 0, 100);
    ok(r, rssm_cache_reset(r->cache, 1, &slot, &s->id, &s->position, NULL), "reset");
    check_slot(r, slot);
}

static void act(rig *r) {
    int32_t slot = chk_int(r->rng, 0, SLOTS - 1), roll = chk_int(r->rng, 0, 99);
    if (roll < 80) {
        random_step(r, slot);
    } else if (roll < 85) {
        random_flush(r, slot);
    } else if (roll < 90) {
        random_rollback(r, slot);
    } else if (roll < 95) {
        random_import(r, slot);
    } else if (roll < 99) {
        prompt(r, slot, chk_int(r->rng, 1, PROMPT));
    } else {
        random_reset(r, slot);
    }
}

/* The most that a buffer can be asked for: a window less one, a whole step committed, a whole step drafted. */
static void reach_the_bound(rig *r) {
    static const bool all[LAYERS] = {true, true};
    sequence *s = &r->s[0];
    const int32_t bound = r->window - 1 + 2 * r->most;
    random_reset(r, 0);
    int64_t aligned =
        boundary(s->position + r->window, s->id, r->window); /* the first boundary that is folded to */
    while (s->position + s->pending < aligned + r->window - 1) {
        step(r, 0, 1, s->pending, all);
    }
    step(r, 0, r->most, s->pending, all); /* drafts after L - 1 records */
    step(r, 0, r->most, r->most, all);    /* all committed, and as many drafts again */
    if (r->most_used != bound) {
        chk_fail("at most %d rows were in use, the bound is %d", r->most_used, bound);
    }
}

static void one_pair(rig *r, uint64_t number) {
    chk_rng rng = chk_rng_make("bounds", number);
    memset(r->s, 0, sizeof r->s);
    r->rng = &rng;
    r->most_used = 0;
    r->next = 1.0f;
    r->width = chk_flip(&rng, 0.3) ? 0 : chk_int(&rng, 2, RSSM_CONV_WIDTH_MAX);
    r->reach = chk_flip(&rng, 0.5) ? 0 : chk_int(&rng, 1, RSSM_REACH_MAX);
    rssm_status status = rssm_context_create(NULL, &r->context);
    CHK(status == RSSM_OK);
    chk_defer(destroy_context, r->context);
    chk_params("window %d T_max %d conv %d reach %d", r->window, r->most, r->width, r->reach);
    r->cache = make_cache(r, r->window, r->most, r->reach);
    r->other = make_cache(r, chk_int(&rng, 1, RSSM_WINDOW_MAX), chk_int(&rng, 1, RSSM_STEP_TOKENS_MAX),
                          chk_int(&rng, 0, RSSM_REACH_MAX));
    reach_the_bound(r);
    random_reset(r, 1);
    for (int32_t n = 0; n < chk_repeat(300) && chk_ok(); n++) {
        act(r);
    }
    chk_release();
}

/* Every step size for one window. */
static void window_case(void *arg) {
    int32_t window = *(const int32_t *)arg;
    for (int32_t most = 1; most <= RSSM_STEP_TOKENS_MAX && chk_ok(); most++) {
        rig *r = chk_alloc(sizeof *r);
        r->window = window;
        r->most = most;
        one_pair(r, (uint64_t)(window * 100 + most));
    }
}

/* b(n) for every window: at most n, less than a window behind it, on the phase's grid, and it never falls. */
static void rule_case(void *arg) {
    (void)arg;
    chk_rng rng = chk_rng_make("rule", 0);
    for (int32_t window = 1; window <= RSSM_WINDOW_MAX; window++) {
        const uint64_t ids[] = {
            0, 1, (uint64_t)window - 1, (uint64_t)window, UINT64_MAX, chk_u64(&rng), chk_u64(&rng)};
        for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
            int64_t starts[] = {0, chk_int(&rng, 0, 1 << 30), INT64_C(1) << 61};
            for (size_t k = 0; k < 3; k++) {
                int64_t last = INT64_MIN;
                for (int64_t n = starts[k]; n < starts[k] + 2 * window + 1; n++) {
                    int64_t b = rssm_boundary(n, ids[i], window);
                    CHK(b == boundary(n, ids[i], window));
                    CHK(b <= n && n - b < window && b >= last);
                    last = b;
                }
            }
        }
    }
}

/* What drafting costs in memory: a sequence and layer with T_max 4, window 16 and bf16 inputs, over the fp32
   state and the w - 1 convolution rows of the conventional method. */
static void memory_case(void *arg) {
    static const struct {
        rssm_layer_spec spec;
        double most;
    } shapes[] = {
        {{.kind = RSSM_MAMBA2, .key_heads = 8, .value_heads = 96, .d_k = 128, .d_v = 80}, 1.15},
        {{.kind = RSSM_MAMBA2, .key_heads = 8, .value_heads = 128, .d_k = 128, .d_v = 64}, 1.15},
        {{.kind = RSSM_GDN, .key_heads = 16, .value_heads = 32, .d_k = 128, .d_v = 128}, 1.2},
        {{.kind = RSSM_GDN, .key_heads = 16, .value_heads = 64, .d_k = 128, .d_v = 128}, 1.2},
        {{.kind = RSSM_KDA, .key_heads = 32, .value_heads = 32, .d_k = 128, .d_v = 128}, 1.35},
        {{.kind = RSSM_KDA, .key_heads = 12, .value_heads = 12, .d_k = 128, .d_v = 128}, 1.35},
    };
    (void)arg;
    rssm_context *context = NULL;
    CHK(rssm_context_create(NULL, &context) == RSSM_OK);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        rssm_layer_spec spec = shapes[i].spec;
        spec.conv_width = 4;
        rssm_cache_desc desc = {.spec = &spec, .layers = 1, .slots = 1, .window = 16, .step_tokens = 4};
        desc.io_dtype = RSSM_DTYPE_BF16;
        desc.record_gate = spec.kind == RSSM_KDA ? RSSM_RECORD_RAW_GATE : RSSM_RECORD_DECAY;
        rssm_cache *cache = NULL;
        if (rssm_cache_create(context, &desc, &cache) != RSSM_OK) {
            chk_abandon("create: %s", rssm_context_message(context));
        }
        int64_t values = (int64_t)spec.value_heads * spec.d_v;
        int64_t channels = 2 * (int64_t)spec.key_heads * spec.d_k + values;
        double ratio =
            (double)rssm_cache_slot_bytes(cache) / (double)(4 * values * spec.d_k + 3 * 2 * channels);
        if (!(ratio > 1.0 && ratio <= shapes[i].most)) {
            chk_fail("shape %zu takes %.3f times the conventional state; %.2f is the most", i, ratio,
                     shapes[i].most);
        }
        rssm_cache_destroy(cache);
    }
    rssm_context_destroy(context);
}

int main(int argc, char **argv) {
    static int32_t windows[RSSM_WINDOW_MAX];
    static char names[RSSM_WINDOW_MAX][32];
    chk_start(argc, argv);
    chk_case("rule", rule_case, NULL);
    chk_case("memory", memory_case, NULL);
    for (int32_t i = 0; i < RSSM_WINDOW_MAX; i++) {
        windows[i] = i + 1;
        snprintf(names[i], sizeof names[i], "window_%d", i + 1);
        chk_case(names[i], window_case, &windows[i]);
    }
    return chk_finish();
}
