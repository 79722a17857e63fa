/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Caches under suspicion. A cb_problem is a layer spec with weights, shapes and formats; a cb_box is a cache of
 * it on bound memory, every part of every layer in a pool of its own between guard pages, with odd slot
 * strides, canaries in the gaps, poison in what is not yet written, and slots handed out in random order. A
 * token is the raw inputs of one layer at one position as one dense blob, so that the same token can be fed to
 * any method, batch or layout, and to the reference. A cb_feed lays tokens out for a call: strided views of one
 * packed tensor with poisoned gaps, outputs between canaries. All of it lives until the case's memory is
 * released (check.h).
 */
#ifndef RSSM_TESTS_CACHEBOX_H
#define RSSM_TESTS_CACHEBOX_H

#include "check.h"
#include "ref/ref.h"
#include "replayssm/replayssm.h"

/* ---- Problems ------------------------------------------------------------------------------------------ */

typedef struct cb_problem {
    rssm_layer_spec spec; /* as handed to the library: zeros stand for defaults */
    rssm_layer_spec full; /* the same, resolved */
    rssm_cache_desc desc; /* desc.spec is set by cb_box_make() */
    int32_t gate_dtype;   /* of decay and beta */
    int32_t out_dtype;
    bool has_beta; /* the layer takes a beta input */
    bool has_z;
    rssm_layer_weights *weights; /* [desc.layers] */
    /* Offsets into a token's blob, bytes; q, k, v, z in io format, decay and beta in gate format, all dense. */
    int64_t q, k, v, decay, beta, z, token_bytes;
    int64_t decay_count; /* decay values per value head: 1 or d_k */
} cb_problem;

/* A random problem of a layer kind (RSSM_MAMBA2, ...) and io format: awkward and model shapes, all gate forms,
   norms, convolution widths, head maps; window, T_max, reach, a few slots and 1 or 2 layers. cost bounds
   value_heads d_k d_v. */
cb_problem *cb_problem_draw(chk_rng *rng, int32_t kind, int32_t io_dtype, int64_t cost);
/* A given one: the fields of spec and desc are taken as they are, weights are drawn. gate and out dtype 0: io.
 */
cb_problem *cb_problem_make(chk_rng *rng, const rssm_layer_spec *spec, const rssm_cache_desc *desc,
                            int32_t gate_dtype, int32_t out_dtype);
/* The parameter string for chk_params(). Memory of the case. */
const char *cb_problem_text(const cb_problem *problem);

/* ---- Instruction sets and contexts --------------------------------------------------------------------- */

typedef struct cb_isa {
    const char *name; /* "scalar", "avx512": as in kernel names */
    uint64_t mask;    /* for rssm_context_desc */
} cb_isa;
/* The instruction sets this machine can run, the portable one first. Returns their number (at most 8). */
int32_t cb_isas(const cb_isa **list);
/* A context for a mask, with `threads` (a parallel-for over real threads if above 1; if negative, one thread
   that takes the pieces last to first). Memory of the case. */
rssm_context *cb_context(uint64_t isa_mask, int32_t threads);

/* ---- Boxes --------------------------------------------------------------------------------------------- */

/* Slot s lies at base + s stride and takes `bytes` there; the gap up to the next one holds a canary. */
typedef struct cb_pool {
    unsigned char *base; /* NULL: the cache has no such part */
    int64_t stride, bytes;
} cb_pool;

typedef struct cb_box {
    const cb_problem *problem;
    rssm_context *context;
    rssm_cache *cache;
    cb_pool cursor;
    cb_pool *pools;  /* [layers][RSSM_PARTS] */
    cb_pool *blocks; /* what was mapped: a pool for each of the above, or one for pages that hold all parts */
    int32_t block_count;
    int32_t *slots; /* usable slots, permuted */
    int32_t slot_count;
} cb_box;

/* A cache on its own bound memory, weights set, prepared for `rows` rows and `parts` parts. method
   RSSM_METHOD_* replaces desc.method (conventional: T_max 1). The memory is filled with `poison` before the
   library sees it. */
cb_box *cb_box_make(chk_rng *rng, const cb_problem *problem, rssm_context *context, int32_t method,
                    int32_t rows, int32_t parts, chk_poison poison);
/* Memory of a part of a slot; NULL if there is no such part. The cursor's layer is ignored. */
void *cb_box_part(const cb_box *box, int32_t layer, int32_t part, int32_t slot);
int64_t cb_box_part_bytes(const cb_box *box, int32_t part);
/* Bytes of an element of the checkpoint. */
size_t cb_checkpoint_width(const cb_problem *problem);
/* Gaps between slots and around pools are as they were; else the case fails. */
bool cb_box_intact(const cb_box *box);
/* Poisons the rows of the slot's record and convolution buffers that hold no committed token. */
void cb_box_poison_dead(const cb_box *box, int32_t slot, chk_poison poison);
/* All bytes of a slot, every part and layer, in a dense copy (memory of the case), to compare with later. */
void *cb_box_snapshot(const cb_box *box, int32_t slot, size_t *bytes);
/* Calls through to the library that abandon the case with the context's message unless the result is OK. */
void cb_ok(const cb_box *box, rssm_status status, const char *what);
/* Fails the case unless the status is the expected one and (for errors) left a sentence. */
bool cb_expect(const cb_box *box, rssm_status status, rssm_status expected, const char *what);

/* ---- Tokens -------------------------------------------------------------------------------------------- */

/* Raw inputs of one layer at one position. Decays near 0 and near 1 both occur, some values are extreme. */
void cb_token_draw(const cb_problem *problem, chk_rng *rng, void *token);
/* Redraws the channels whose rounding to the io format after the convolution is too close to call in f32, given
   the sequence so far. With f32 io or without convolution nothing happens. */
void cb_token_settle(const cb_problem *problem, const rssm_ref_layer *before, chk_rng *rng, void *token);
/* The blob as inputs of one token (index 0), for the reference. */
rssm_layer_inputs cb_token_inputs(const cb_problem *problem, const void *token);

/* ---- Feeds --------------------------------------------------------------------------------------------- */

/* Guarded memory, and what should be in it. */
typedef struct cb_block {
    unsigned char *data, *expected;
    size_t bytes;
} cb_block;

typedef struct cb_feed {
    const cb_problem *problem;
    int32_t tokens;
    rssm_layer_inputs inputs;
    rssm_output out;
    cb_block in_blocks[6]; /* one packed tensor, or one for each input */
    int32_t in_count;
    cb_block out_block;
} cb_feed;

/* Room for `tokens` tokens (0 is fine) in a layout drawn from rng, inputs NaN, output poisoned. */
cb_feed *cb_feed_make(const cb_problem *problem, chk_rng *rng, int32_t tokens);
void cb_feed_set(cb_feed *feed, int32_t index, const void *token);
/* Poisons the output again, for another call. */
void cb_feed_poison(cb_feed *feed, chk_poison poison);
/* Output of a token as doubles, [value_heads][d_v]; and as stored, dense, in out_dtype. */
void cb_feed_output(const cb_feed *feed, int32_t index, double *y);
void cb_feed_output_bits(const cb_feed *feed, int32_t index, void *dense);
/* Bytes of one token's output in out_dtype. */
size_t cb_feed_output_bytes(const cb_feed *feed);
/* Inputs and all gaps unchanged; else the case fails. */
bool cb_feed_intact(const cb_feed *feed);

#endif
