/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts for every instruction set, and caches on memory that shows where they wrote. */
#include "cachebox.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "cursor.h"
#include "gpu/on_device.h"

/* ---- Contexts ------------------------------------------------------------------------------------------ */

int32_t cb_isas(const cb_isa **list) {
    static cb_isa isas[8];
    int32_t n = 0;
    if (CB_DEVICE) {
        isas[n++] = (cb_isa){"cuda", ON_DEVICE_MASK};
        *list = isas;
        return n;
    }
    const uint64_t have = rssm_isa_available();
#define RSSM_CPU(isa, needs)                                                                                   \
    if ((have & (uint64_t)(needs)) == (uint64_t)(needs)) {                                                     \
        isas[n++] = (cb_isa){#isa, (needs) ? (uint64_t)(needs) : RSSM_ISA_NONE};                               \
    }
#include "kernels.def"
    *list = isas;
    return n;
}

enum { MAX_THREADS = 8 };

typedef struct work {
    rssm_task_fn task;
    void *arg;
    int64_t n;
    _Atomic int64_t next;
} work;

static void *take_work(void *arg) {
    work *w = arg;
    for (int64_t i = atomic_fetch_add(&w->next, 1); i < w->n; i = atomic_fetch_add(&w->next, 1)) {
        w->task(w->arg, i);
    }
    return NULL;
}

static void run_in_threads(void *user, int64_t n, rssm_task_fn task, void *arg) {
    const int32_t threads = *(const int32_t *)user;
    work w = {.task = task, .arg = arg, .n = n};
    pthread_t others[MAX_THREADS];
    int32_t started = 0;
    while (started + 1 < threads && started < MAX_THREADS &&
           pthread_create(&others[started], NULL, take_work, &w) == 0) {
        started++;
    }
    take_work(&w);
    while (started > 0) {
        pthread_join(others[--started], NULL);
    }
}

static void run_backwards(void *user, int64_t n, rssm_task_fn task, void *arg) {
    (void)user;
    while (n > 0) {
        task(arg, --n);
    }
}

static void destroy_context(void *context) {
    rssm_context_destroy(context);
}

rssm_context *cb_context(uint64_t isa_mask, int32_t threads) {
    int32_t *user = chk_alloc(sizeof *user);
    *user = threads;
    rssm_context_desc desc = {.struct_size = sizeof desc, .isa_mask = isa_mask, .parallel_user = user};
    desc.threads = threads > 1 ? threads : threads < 0 ? -threads : 1;
    desc.parallel = threads > 1 ? run_in_threads : threads < 0 ? run_backwards : NULL;
    rssm_context *context;
    const rssm_status status = rssm_context_create(&desc, &context);
    if (status != RSSM_OK) {
        chk_abandon("rssm_context_create: %s: %s", rssm_status_string(status), rssm_context_message(NULL));
    }
    chk_defer(destroy_context, context);
    return context;
}

/* ---- Boxes --------------------------------------------------------------------------------------------- */

void cb_ok(const cb_box *box, rssm_status status, const char *what) {
    if (status != RSSM_OK) {
        chk_abandon("%s: %s: %s", what, rssm_status_string(status), rssm_context_message(box->context));
    }
}

bool cb_expect(const cb_box *box, rssm_status status, rssm_status expected, const char *what) {
    if (status != expected) {
        return chk_fail("%s gives '%s', not '%s': %s", what, rssm_status_string(status),
                        rssm_status_string(expected), rssm_context_message(box->context));
    }
    if (status != RSSM_OK && rssm_context_message(box->context)[0] == '\0') {
        return chk_fail("%s: no sentence with '%s'", what, rssm_status_string(status));
    }
    return true;
}

static rssm_part_info layout(const cb_box *box, int32_t part) {
    rssm_part_info info = {0};
    cb_ok(box, rssm_cache_layout(box->cache, part, &info), "rssm_cache_layout");
    return info;
}

static int64_t round_up(int64_t n) {
    return (n + 15) & ~(int64_t)15;
}

/* Maps one block for all slots: contents poisoned, gaps marked. */
static cb_pool *map_block(cb_box *box, chk_rng *rng, int64_t bytes, chk_poison poison) {
    const int64_t slots = box->problem->desc.slots;
    cb_pool *block = &box->blocks[box->block_count++];
    block->bytes = bytes;
    block->stride = round_up(bytes) + 16 * (chk_flip(rng, 0.3) ? 0 : chk_int(rng, 1, 7));
    const size_t total = (size_t)((slots - 1) * block->stride + bytes);
    block->base = chk_guard(total, 16, chk_int(rng, CHK_LEFT, CHK_RIGHT));
    chk_canary(block->base, total);
    for (int64_t s = 0; s < slots; s++) {
        chk_fill(block->base + s * block->stride, (size_t)bytes, poison);
    }
    return block;
}

static void bind(cb_box *box, int32_t layer, int32_t part, cb_pool pool) {
    *(part == RSSM_PART_CURSOR ? &box->cursor : &box->pools[layer * RSSM_PARTS + part]) = pool;
    cb_ok(box, rssm_cache_bind(box->cache, layer, part, pool.base, pool.stride), "rssm_cache_bind");
}

/* Calls once per part and layer that the cache has, in the order of a page. */
static void for_each_part(cb_box *box, void (*fn)(cb_box *, int32_t layer, const rssm_part_info *, void *),
                          void *arg) {
    for (int32_t layer = 0; layer < box->problem->desc.layers; layer++) {
        for (int32_t part = 0; part < RSSM_PARTS; part++) {
            const rssm_part_info info = layout(box, part);
            if (info.rank > 0 && (info.per_layer || layer == 0)) {
                fn(box, layer, &info, arg);
            }
        }
    }
}

typedef struct binding {
    chk_rng *rng;
    chk_poison poison;
    cb_pool *page; /* NULL: pools of their own */
    int64_t at;    /* bytes of the page taken so far */
} binding;

static void measure_part(cb_box *box, int32_t layer, const rssm_part_info *info, void *arg) {
    (void)box, (void)layer;
    ((binding *)arg)->at += round_up(info->bytes);
}

static void bind_part(cb_box *box, int32_t layer, const rssm_part_info *info, void *arg) {
    binding *b = arg;
    if (!b->page) {
        bind(box, layer, info->part, *map_block(box, b->rng, info->bytes, b->poison));
        return;
    }
    bind(box, layer, info->part, (cb_pool){b->page->base + b->at, b->page->stride, info->bytes});
    b->at += round_up(info->bytes);
}

static void bind_memory(cb_box *box, chk_rng *rng, chk_poison poison) {
    binding b = {.rng = rng, .poison = poison};
    if (chk_flip(rng, 0.3)) { /* one page per slot */
        for_each_part(box, measure_part, &b);
        b.page = map_block(box, rng, b.at, poison);
        b.at = 0;
    }
    for_each_part(box, bind_part, &b);
}

static void destroy_cache(void *cache) {
    rssm_cache_destroy(cache);
}

cb_box *cb_box_make(chk_rng *rng, const cb_problem *problem, rssm_context *context, int32_t method,
                    int32_t rows, int32_t parts, chk_poison poison) {
    const int32_t layers = problem->desc.layers;
    cb_box *box = chk_alloc(sizeof *box);
    box->problem = problem;
    box->context = context;
    box->pools = chk_alloc((size_t)layers * RSSM_PARTS * sizeof *box->pools);
    box->blocks = chk_alloc(((size_t)layers * RSSM_PARTS + 1) * sizeof *box->blocks);
    rssm_cache_desc desc = problem->desc;
    desc.spec = &problem->spec;
    desc.method = method;
    desc.step_tokens = method == RSSM_METHOD_CONVENTIONAL ? 1 : desc.step_tokens;
    cb_ok(box, rssm_cache_create(context, &desc, &box->cache), "rssm_cache_create");
    chk_defer(destroy_cache, box->cache);
    bind_memory(box, rng, poison);
    for (int32_t layer = 0; layer < layers; layer++) {
        cb_ok(box, rssm_cache_set_weights(box->cache, layer, &problem->weights[layer]),
              "rssm_cache_set_weights");
    }
    cb_ok(box, rssm_cache_prepare(box->cache, rows, parts), "rssm_cache_prepare");
    box->slot_count = (int32_t)desc.slots - desc.reserved_slots;
    box->slots = chk_alloc((size_t)box->slot_count * sizeof *box->slots);
    for (int32_t i = 0; i < box->slot_count; i++) {
        box->slots[i] = desc.reserved_slots + i;
    }
    chk_shuffle(rng, box->slots, box->slot_count);
    return box;
}

static const cb_pool *pool_of(const cb_box *box, int32_t layer, int32_t part) {
    return part == RSSM_PART_CURSOR ? &box->cursor : &box->pools[layer * RSSM_PARTS + part];
}

void *cb_box_part(const cb_box *box, int32_t layer, int32_t part, int32_t slot) {
    const cb_pool *pool = pool_of(box, layer, part);
    return pool->base ? pool->base + slot * pool->stride : NULL;
}

int64_t cb_box_part_bytes(const cb_box *box, int32_t part) {
    return pool_of(box, 0, part)->bytes;
}

size_t cb_checkpoint_width(const cb_problem *problem) {
    const int32_t dtype = problem->desc.checkpoint_dtype;
    return dtype <= RSSM_DTYPE_F32 ? 4 : dtype == RSSM_DTYPE_F8 ? 1 : 2;
}

bool cb_box_intact(const cb_box *box) {
    for (int32_t i = 0; i < box->block_count; i++) {
        const cb_pool *block = &box->blocks[i];
        for (int64_t s = 0; s + 1 < box->problem->desc.slots; s++) {
            const unsigned char *gap = block->base + s * block->stride + block->bytes;
            size_t at;
            if (!chk_canary_intact(gap, (size_t)(block->stride - block->bytes), &at)) {
                return chk_fail("wrote %zu bytes behind slot %d of block %d", at, (int)s, i);
            }
        }
    }
    return true;
}

void *cb_box_snapshot(const cb_box *box, int32_t slot, size_t *bytes) {
    const int32_t layers = box->problem->desc.layers;
    size_t total = (size_t)box->cursor.bytes;
    for (int32_t i = 0; i < layers * RSSM_PARTS; i++) {
        total += (size_t)box->pools[i].bytes;
    }
    unsigned char *copy = chk_alloc(total);
    memcpy(copy, cb_box_part(box, 0, RSSM_PART_CURSOR, slot), (size_t)box->cursor.bytes);
    size_t at = (size_t)box->cursor.bytes;
    for (int32_t i = 0; i < layers * RSSM_PARTS; i++) {
        const cb_pool *pool = &box->pools[i];
        if (pool->base) {
            memcpy(copy + at, pool->base + slot * pool->stride, (size_t)pool->bytes);
            at += (size_t)pool->bytes;
        }
    }
    *bytes = total;
    return copy;
}

/* Row r of every head (or channel) of a part of shape [heads][rows][d], or [channels][rows]. */
static void poison_row(const cb_box *box, const rssm_part_info *info, int32_t layer, int32_t slot, int32_t r,
                       chk_poison poison) {
    const int64_t size = info->dtype == RSSM_DTYPE_BF16 ? 2 : 4;
    const int64_t row = (info->rank == 3 ? info->shape[2] : 1) * size;
    unsigned char *base = cb_box_part(box, layer, info->part, slot);
    for (int64_t head = 0; head < info->shape[0]; head++) {
        chk_fill(base + (head * info->shape[1] + r) * row, (size_t)row, poison);
    }
}

void cb_box_poison_dead(const cb_box *box, int32_t slot, chk_poison poison) {
    static const int32_t records[] = {RSSM_PART_RECORD_K, RSSM_PART_RECORD_V, RSSM_PART_RECORD_SCALAR,
                                      RSSM_PART_RECORD_DECAY};
    const rssm_cursor *cursor = cb_box_part(box, 0, RSSM_PART_CURSOR, slot);
    const int32_t layers = box->problem->desc.layers;
    for (size_t i = 0; i < sizeof records / sizeof records[0]; i++) {
        const rssm_part_info info = layout(box, records[i]);
        for (int32_t layer = 0; info.rank > 0 && layer < layers; layer++) {
            for (int32_t j = cursor->history; j < info.shape[1]; j++) {
                poison_row(box, &info, layer, slot, cursor->row_map[j], poison);
            }
        }
    }
    const rssm_part_info conv = layout(box, RSSM_PART_CONV);
    for (int32_t layer = 0; conv.rank > 0 && layer < layers; layer++) {
        const size_t row = (size_t)conv.shape[1] * (conv.dtype == RSSM_DTYPE_BF16 ? 2 : 4);
        unsigned char *base = cb_box_part(box, layer, RSSM_PART_CONV, slot);
        for (int32_t j = cursor->held; j < conv.shape[0]; j++) {
            chk_fill(base + cursor->conv_map[j] * row, row, poison);
        }
    }
}
