/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys and values of attention layers, in pages of RSE_KV_PAGE tokens. A pool owns the memory of all layers; a
 * sequence owns a list of pages, the same page numbers in every layer. Position p of a sequence lives in its
 * page p / RSE_KV_PAGE. Rolling back is cutting the list; what a page held beyond the sequence's end is never
 * read. Sequences with a common beginning may hold the same pages; one that goes on within such a page gets a copy of
 * its own first.
 *
 * Within a page, keys are [kv head][head_dim][RSE_KV_PAGE] and values [kv head][RSE_KV_PAGE][head_dim]: both
 * halves of attention then run over lanes without a sum across them. Element type f32 or bf16.
 *
 * A pool and its sequences are used by one thread at a time (attention spreads over threads inside).
 */
#ifndef RSE_KVCACHE_H
#define RSE_KVCACHE_H

#include <stdint.h>

#include "base/error.h"

enum { RSE_KV_PAGE = 16 };

typedef struct rse_kv_desc {
    int32_t layers;   /* attention layers; 0 is legal: a pool without memory, whose pages cost nothing */
    int32_t kv_heads; /* >= 1 */
    int32_t head_dim; /* >= 1 */
    int32_t dtype;    /* RSSM_DTYPE_F32 or RSSM_DTYPE_BF16 */
    int64_t pages;    /* how many pages there are in all; at most INT32_MAX */
} rse_kv_desc;

typedef struct rse_kv_pool rse_kv_pool;

/* A sequence's pages, in order of position. Zeroed: empty. The array is owned by the sequence. */
typedef struct rse_kv_seq {
    int32_t *pages;
    int64_t count;    /* pages held; positions below count * RSE_KV_PAGE can be stored */
    int64_t capacity; /* of the array */
} rse_kv_seq;

/* RSE_ERROR_USAGE for a field outside its range, RSE_ERROR_MEMORY; *pool is NULL then. Memory is touched on
 * use. */
rse_status rse_kv_pool_create(const rse_kv_desc *desc, rse_kv_pool **pool, rse_error *err);
/* Sequences need not be freed pagewise before, but their arrays do: rse_kv_seq_free(). NULL is fine. */
void rse_kv_pool_destroy(rse_kv_pool *pool);
const rse_kv_desc *rse_kv_pool_desc(const rse_kv_pool *pool);
int64_t rse_kv_pool_free_pages(const rse_kv_pool *pool);
/* Bytes of one page over all layers, keys and values. */
int64_t rse_kv_page_bytes(const rse_kv_desc *desc);
/* Elements of one kv head's keys (or values) in a page of one layer. */
int64_t rse_kv_head_elements(const rse_kv_desc *desc);
/* Pages that hold `tokens` positions. */
int64_t rse_kv_pages_of(int64_t tokens);

/*
 * Takes pages until positions start .. tokens - 1 can be written: those that are missing, and copies of those from
 * start on that other sequences hold too. RSE_ERROR_MEMORY, naming the pages asked for and left, when the pool is
 * exhausted; nothing has changed then.
 */
rse_status rse_kv_seq_reserve(rse_kv_pool *pool, rse_kv_seq *seq, int64_t start, int64_t tokens, rse_error *err);
/* How many pages that would take. */
int64_t rse_kv_seq_wants(const rse_kv_pool *pool, const rse_kv_seq *seq, int64_t start, int64_t tokens);
/* How many sequences hold a page. */
int32_t rse_kv_page_holders(const rse_kv_pool *pool, int32_t page);
/* Gives back the pages that hold no position below tokens. No effect if there are none. */
void rse_kv_seq_truncate(rse_kv_pool *pool, rse_kv_seq *seq, int64_t tokens);
/* Gives back everything and leaves seq zeroed. */
void rse_kv_seq_free(rse_kv_pool *pool, rse_kv_seq *seq);
/* Makes dst, an empty sequence, hold the pages of src's first `tokens` positions (src must hold them) with it. A page
 * goes back to the pool when the last sequence that holds it drops it. */
rse_status rse_kv_seq_share(rse_kv_pool *pool, const rse_kv_seq *src, int64_t tokens, rse_kv_seq *dst,
                            rse_error *err);

/* The first `tokens` positions of a sequence in memory outside the pool, as they are, and back into pages that were
 * reserved. */
int64_t rse_kv_pack_bytes(const rse_kv_pool *pool, int64_t tokens);
void rse_kv_pack(const rse_kv_pool *pool, const rse_kv_seq *seq, int64_t tokens, void *packed);
void rse_kv_unpack(rse_kv_pool *pool, const rse_kv_seq *seq, int64_t tokens, const void *packed);

/*
 * Reads or writes `tokens` positions from `start` of one layer; they must be reserved. k and v are f32
 * [tokens][kv_heads][head_dim], strides in elements from token to token. Writing rounds to the pool's type.
 */
void rse_kv_read(const rse_kv_pool *pool, const rse_kv_seq *seq, int32_t layer, int64_t start, int64_t tokens,
                 float *k, int64_t k_stride, float *v, int64_t v_stride);
void rse_kv_write(rse_kv_pool *pool, const rse_kv_seq *seq, int32_t layer, int64_t start, int64_t tokens,
                  const float *k, int64_t k_stride, const float *v, int64_t v_stride);

/* Copies one position's keys and values to another position, in all layers. Both must be reserved. */
void rse_kv_move(rse_kv_pool *pool, const rse_kv_seq *seq, int64_t from, int64_t to);

/*
 * A branch sees the first `start` positions of a trunk and `tokens` of its own after them: a path through a
 * tree of tokens, laid out as if it had been a chain. Whole pages before `start` are the trunk's; the others
 * are copies, whose contents are made layer by layer: the trunk's part of the first one, then its positions
 * start + path[i]. Opening takes pages, or gives RSE_ERROR_MEMORY with nothing changed. The array of a closed
 * branch is kept for the next opening; rse_kv_seq_free() drops it.
 */
rse_status rse_kv_branch_open(rse_kv_pool *pool, const rse_kv_seq *trunk, int64_t start, int64_t tokens,
                              rse_kv_seq *branch, rse_error *err);
void rse_kv_branch_fill(rse_kv_pool *pool, const rse_kv_seq *trunk, int32_t layer, int64_t start,
                        const int32_t *path, int64_t tokens, const rse_kv_seq *branch);
void rse_kv_branch_close(rse_kv_pool *pool, int64_t start, rse_kv_seq *branch);

/* The keys and the values of one page of one layer, in the pool's type and the order described above. */
void *rse_kv_keys(const rse_kv_pool *pool, int32_t layer, int32_t page);
void *rse_kv_values(const rse_kv_pool *pool, int32_t layer, int32_t page);

#endif
