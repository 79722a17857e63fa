/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The paged cache of keys and values: one block of memory, a stack of free page numbers, and the copies between
 * rows of activations and pages.
 */
#include "math/kvcache.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <replayssm/base.h>

#include "numbers.h"

struct rse_kv_pool {
    rse_kv_desc desc;
    char *memory;       /* [layers][pages][keys, values] */
    int64_t head_elems; /* of one kv head's keys (or values) in a page */
    int64_t half_bytes; /* of all keys (or values) of a page in one layer */
    int32_t *free;      /* stack of page numbers */
    int32_t *holders;   /* [pages] sequences that have a page */
    int64_t free_count;
};

int64_t rse_kv_head_elements(const rse_kv_desc *desc) {
    return ((int64_t)desc->head_dim + 15) / 16 * 16 * RSE_KV_PAGE;
}

static int64_t element_bytes(const rse_kv_desc *desc) {
    return desc->dtype == RSSM_DTYPE_BF16 ? 2 : 4;
}

int64_t rse_kv_page_bytes(const rse_kv_desc *desc) {
    return 2 * (int64_t)desc->layers * desc->kv_heads * rse_kv_head_elements(desc) * element_bytes(desc);
}

int64_t rse_kv_pages_of(int64_t tokens) {
    return (tokens + RSE_KV_PAGE - 1) / RSE_KV_PAGE;
}

static rse_status check_desc(const rse_kv_desc *desc, rse_error *err) {
    enum { MOST = 65536 }; /* keeps every product of sizes within 64 bits */
    if (desc->layers < 0 || desc->layers > MOST) {
        return rse_fail(err, RSE_ERROR_USAGE, "attention layers are %d; they must be 0 to %d", desc->layers,
                        MOST);
    }
    if (desc->kv_heads < 1 || desc->kv_heads > MOST) {
        return rse_fail(err, RSE_ERROR_USAGE, "key heads are %d; they must be 1 to %d", desc->kv_heads, MOST);
    }
    if (desc->head_dim < 1 || desc->head_dim > MOST) {
        return rse_fail(err, RSE_ERROR_USAGE, "head_dim is %d; it must be 1 to %d", desc->head_dim, MOST);
    }
    if (desc->dtype != RSSM_DTYPE_F32 && desc->dtype != RSSM_DTYPE_BF16) {
        return rse_fail(err, RSE_ERROR_USAGE, "the key and value cache's type is %s; it must be f32 or bf16",
                        rssm_dtype_name(desc->dtype));
    }
    if (desc->pages < 0 || desc->pages > INT32_MAX) {
        return rse_fail(err, RSE_ERROR_USAGE, "pages are %lld; they must be 0 to %d", (long long)desc->pages,
                        INT32_MAX);
    }
    return RSE_OK;
}

rse_status rse_kv_pool_create(const rse_kv_desc *desc, rse_kv_pool **out, rse_error *err) {
    *out = NULL;
    RSE_TRY(check_desc(desc, err));
    int64_t bytes;
    if (__builtin_mul_overflow(rse_kv_page_bytes(desc), desc->pages, &bytes)) {
        return rse_fail(err, RSE_ERROR_MEMORY, "%lld pages of %lld bytes of keys and values exceed 64 bits",
                        (long long)desc->pages, (long long)rse_kv_page_bytes(desc));
    }
    rse_kv_pool *pool = calloc(1, sizeof *pool);
    int32_t *stack = malloc(((size_t)desc->pages + 1) * sizeof *stack);
    int32_t *holders = calloc((size_t)desc->pages + 1, sizeof *holders);
    char *memory = aligned_alloc(64, bytes > 0 ? (size_t)bytes : 64); /* a page's bytes are a multiple of 64 */
    if (pool == NULL || stack == NULL || holders == NULL || memory == NULL) {
        free(pool);
        free(stack);
        free(holders);
        free(memory);
        return rse_fail(err, RSE_ERROR_MEMORY,
                        "no memory for %lld bytes of keys and values (%lld pages of %d tokens)",
                        (long long)bytes, (long long)desc->pages, RSE_KV_PAGE);
    }
    pool->desc = *desc;
    pool->memory = memory;
    pool->head_elems = rse_kv_head_elements(desc);
    pool->half_bytes = desc->kv_heads * pool->head_elems * element_bytes(desc);
    pool->free = stack;
    pool->holders = holders;
    pool->free_count = desc->pages;
    for (int64_t i = 0; i < desc->pages; i++) {
        stack[i] = (int32_t)(desc->pages - 1 - i); /* low numbers come off the stack first */
    }
    *out = pool;
    return RSE_OK;
}

void rse_kv_pool_destroy(rse_kv_pool *pool) {
    if (pool != NULL) {
        free(pool->memory);
        free(pool->free);
        free(pool->holders);
        free(pool);
    }
}

const rse_kv_desc *rse_kv_pool_desc(const rse_kv_pool *pool) {
    return &pool->desc;
}

int64_t rse_kv_pool_free_pages(const rse_kv_pool *pool) {
    return pool->free_count;
}

void *rse_kv_keys(const rse_kv_pool *pool, int32_t layer, int32_t page) {
    return pool->memory + (layer * pool->desc.pages + page) * 2 * pool->half_bytes;
}

void *rse_kv_values(const rse_kv_pool *pool, int32_t layer, int32_t page) {
    return (char *)rse_kv_keys(pool, layer, page) + pool->half_bytes;
}

int32_t rse_kv_page_holders(const rse_kv_pool *pool, int32_t page) {
    return pool->holders[page];
}

static rse_status list_room(rse_kv_seq *seq, int64_t count, rse_error *err) {
    if (count <= seq->capacity) {
        return RSE_OK;
    }
    int64_t capacity = 2 * seq->capacity > count ? 2 * seq->capacity : count;
    int32_t *pages = realloc(seq->pages, (size_t)capacity * sizeof *pages);
    if (pages == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for a list of %lld pages", (long long)capacity);
    }
    seq->pages = pages;
    seq->capacity = capacity;
    return RSE_OK;
}

static int32_t take_page(rse_kv_pool *pool) {
    int32_t page = pool->free[--pool->free_count];
    pool->holders[page] = 1;
    return page;
}

static void drop_page(rse_kv_pool *pool, int32_t page) {
    if (--pool->holders[page] == 0) {
        pool->free[pool->free_count++] = page;
    }
}

static void copy_page(rse_kv_pool *pool, int32_t from, int32_t to) {
    for (int32_t layer = 0; layer < pool->desc.layers; layer++) {
        memcpy(rse_kv_keys(pool, layer, to), rse_kv_keys(pool, layer, from), 2 * (size_t)pool->half_bytes);
    }
}

static int64_t at_least_0(int64_t n) {
    return n > 0 ? n : 0;
}

int64_t rse_kv_seq_wants(const rse_kv_pool *pool, const rse_kv_seq *seq, int64_t start, int64_t tokens) {
    int64_t wants = at_least_0(rse_kv_pages_of(tokens) - seq->count);
    for (int64_t i = start / RSE_KV_PAGE; i < seq->count && i * RSE_KV_PAGE < tokens; i++) {
        wants += pool->holders[seq->pages[i]] > 1;
    }
    return wants;
}

rse_status rse_kv_seq_reserve(rse_kv_pool *pool, rse_kv_seq *seq, int64_t start, int64_t tokens, rse_error *err) {
    int64_t wants = rse_kv_seq_wants(pool, seq, start, tokens);
    if (wants == 0) {
        return RSE_OK;
    }
    if (wants > pool->free_count) {
        return rse_fail(err, RSE_ERROR_MEMORY,
                        "%lld pages of keys and values are needed for %lld tokens; %lld are free", (long long)wants,
                        (long long)tokens, (long long)pool->free_count);
    }
    RSE_TRY(list_room(seq, rse_kv_pages_of(tokens), err));
    for (int64_t i = start / RSE_KV_PAGE; i < seq->count && i * RSE_KV_PAGE < tokens; i++) {
        int32_t shared = seq->pages[i];
        if (pool->holders[shared] > 1) { /* others read it: what is written from here on is for this sequence alone */
            seq->pages[i] = take_page(pool);
            copy_page(pool, shared, seq->pages[i]);
            drop_page(pool, shared);
        }
    }
    while (seq->count < rse_kv_pages_of(tokens)) {
        seq->pages[seq->count++] = take_page(pool);
    }
    return RSE_OK;
}

void rse_kv_seq_truncate(rse_kv_pool *pool, rse_kv_seq *seq, int64_t tokens) {
    int64_t keep = rse_kv_pages_of(tokens);
    while (seq->count > keep) {
        drop_page(pool, seq->pages[--seq->count]);
    }
}

void rse_kv_seq_free(rse_kv_pool *pool, rse_kv_seq *seq) {
    rse_kv_seq_truncate(pool, seq, 0);
    free(seq->pages);
    *seq = (rse_kv_seq){0};
}

rse_status rse_kv_seq_share(rse_kv_pool *pool, const rse_kv_seq *src, int64_t tokens, rse_kv_seq *dst,
                            rse_error *err) {
    RSE_TRY(list_room(dst, rse_kv_pages_of(tokens), err));
    for (dst->count = 0; dst->count < rse_kv_pages_of(tokens); dst->count++) {
        int32_t page = src->pages[dst->count];
        pool->holders[page]++;
        dst->pages[dst->count] = page;
    }
    return RSE_OK;
}

int64_t rse_kv_pack_bytes(const rse_kv_pool *pool, int64_t tokens) {
    return rse_kv_pages_of(tokens) * rse_kv_page_bytes(&pool->desc);
}

/* Both ways between pages and memory. */
static void move_pages(const rse_kv_pool *pool, const rse_kv_seq *seq, int64_t tokens, char *packed, bool pack) {
    size_t bytes = 2 * (size_t)pool->half_bytes;
    for (int64_t i = 0; i < rse_kv_pages_of(tokens); i++) {
        for (int32_t layer = 0; layer < pool->desc.layers; layer++, packed += bytes) {
            void *page = rse_kv_keys(pool, layer, seq->pages[i]);
            memcpy(pack ? packed : page, pack ? page : packed, bytes);
        }
    }
}

void rse_kv_pack(const rse_kv_pool *pool, const rse_kv_seq *seq, int64_t tokens, void *packed) {
    move_pages(pool, seq, tokens, packed, true);
}

void rse_kv_unpack(rse_kv_pool *pool, const rse_kv_seq *seq, int64_t tokens, const void *packed) {
    move_pages(pool, seq, tokens, (char *)(uintptr_t)packed, false);
}

static void put(void *base, int64_t i, float x, bool bf16) {
    if (bf16) {
        ((uint16_t *)base)[i] = rssm_bf16_of_f32(x);
    } else {
        ((float *)base)[i] = x;
    }
}

static float get(const void *base, int64_t i, bool bf16) {
    return bf16 ? rssm_f32_of_bf16(((const uint16_t *)base)[i]) : ((const float *)base)[i];
}

/* Where value d of a head is in its page: keys have the tokens innermost, values sixteen dimensions. */
static int64_t key_at(const rse_kv_pool *pool, int64_t head, int64_t slot, int64_t d) {
    return head * pool->head_elems + d * RSE_KV_PAGE + slot;
}

static int64_t value_at(const rse_kv_pool *pool, int64_t head, int64_t slot, int64_t d) {
    return head * pool->head_elems + (d / 16 * RSE_KV_PAGE + slot) * 16 + d % 16;
}

void rse_kv_write(rse_kv_pool *pool, const rse_kv_seq *seq, int32_t layer, int64_t start, int64_t tokens,
                  const float *k, int64_t k_stride, const float *v, int64_t v_stride) {
    int64_t heads = pool->desc.kv_heads, dim = pool->desc.head_dim;
    bool bf16 = pool->desc.dtype == RSSM_DTYPE_BF16;
    for (int64_t t = 0; t < tokens; t++) {
        int64_t slot = (start + t) % RSE_KV_PAGE;
        int32_t page = seq->pages[(start + t) / RSE_KV_PAGE];
        void *keys = rse_kv_keys(pool, layer, page), *values = rse_kv_values(pool, layer, page);
        for (int64_t h = 0; h < heads; h++) {
            for (int64_t d = 0; d < dim; d++) {
                put(keys, key_at(pool, h, slot, d), k[t * k_stride + h * dim + d], bf16);
                put(values, value_at(pool, h, slot, d), v[t * v_stride + h * dim + d], bf16);
            }
        }
    }
}

void rse_kv_read(const rse_kv_pool *pool, const rse_kv_seq *seq, int32_t layer, int64_t start, int64_t tokens,
                 float *k, int64_t k_stride, float *v, int64_t v_stride) {
    int64_t heads = pool->desc.kv_heads, dim = pool->desc.head_dim;
    bool bf16 = pool->desc.dtype == RSSM_DTYPE_BF16;
    for (int64_t t = 0; t < tokens; t++) {
        int64_t slot = (start + t) % RSE_KV_PAGE;
        int32_t page = seq->pages[(start + t) / RSE_KV_PAGE];
        const void *keys = rse_kv_keys(pool, layer, page), *values = rse_kv_values(pool, layer, page);
        for (int64_t h = 0; h < heads; h++) {
            for (int64_t d = 0; d < dim; d++) {
                k[t * k_stride + h * dim + d] = get(keys, key_at(pool, h, slot, d), bf16);
                v[t * v_stride + h * dim + d] = get(values, value_at(pool, h, slot, d), bf16);
            }
        }
    }
}

/* ---- Trees -------------------------------------------------------------------------------------------- */

/* One layer's keys and values of a position, to another page and place. */
static void copy_position(rse_kv_pool *pool, int32_t layer, int32_t from_page, int64_t from, int32_t to_page,
                          int64_t to) {
    int64_t heads = pool->desc.kv_heads, dim = pool->desc.head_dim, size = element_bytes(&pool->desc);
    const char *keys = rse_kv_keys(pool, layer, from_page), *values = rse_kv_values(pool, layer, from_page);
    char *to_keys = rse_kv_keys(pool, layer, to_page), *to_values = rse_kv_values(pool, layer, to_page);
    for (int64_t h = 0; h < heads; h++) {
        for (int64_t d = 0; d < dim; d++) {
            memcpy(to_keys + key_at(pool, h, to, d) * size, keys + key_at(pool, h, from, d) * size,
                   (size_t)size);
            memcpy(to_values + value_at(pool, h, to, d) * size, values + value_at(pool, h, from, d) * size,
                   (size_t)size);
        }
    }
}

void rse_kv_move(rse_kv_pool *pool, const rse_kv_seq *seq, int64_t from, int64_t to) {
    for (int32_t layer = 0; layer < pool->desc.layers && from != to; layer++) {
        copy_position(pool, layer, seq->pages[from / RSE_KV_PAGE], from % RSE_KV_PAGE,
                      seq->pages[to / RSE_KV_PAGE], to % RSE_KV_PAGE);
    }
}

rse_status rse_kv_branch_open(rse_kv_pool *pool, const rse_kv_seq *trunk, int64_t start, int64_t tokens,
                              rse_kv_seq *branch, rse_error *err) {
    int64_t shared = start / RSE_KV_PAGE;
    RSE_TRY(list_room(branch, shared, err));
    for (int64_t i = 0; i < shared; i++) {
        branch->pages[i] = trunk->pages[i];
    }
    branch->count = shared;
    rse_status status = rse_kv_seq_reserve(pool, branch, shared * RSE_KV_PAGE, start + tokens, err);
    branch->count = status == RSE_OK ? branch->count : 0;
    return status;
}

void rse_kv_branch_fill(rse_kv_pool *pool, const rse_kv_seq *trunk, int32_t layer, int64_t start,
                        const int32_t *path, int64_t tokens, const rse_kv_seq *branch) {
    int64_t page = start / RSE_KV_PAGE;
    if (start % RSE_KV_PAGE != 0) {
        memcpy(rse_kv_keys(pool, layer, branch->pages[page]), rse_kv_keys(pool, layer, trunk->pages[page]),
               2 * (size_t)pool->half_bytes);
    }
    for (int64_t i = 0; i < tokens; i++) {
        int64_t from = start + path[i], to = start + i;
        copy_position(pool, layer, trunk->pages[from / RSE_KV_PAGE], from % RSE_KV_PAGE,
                      branch->pages[to / RSE_KV_PAGE], to % RSE_KV_PAGE);
    }
}

void rse_kv_branch_close(rse_kv_pool *pool, int64_t start, rse_kv_seq *branch) {
    if (branch->count > 0) {
        rse_kv_seq_truncate(pool, branch, start / RSE_KV_PAGE * RSE_KV_PAGE);
    }
    branch->count = 0;
}
