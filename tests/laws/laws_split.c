/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Law d for a tensor-parallel split: a cache with half of the heads, and half of every weight and input, gives
 * the bits that the whole cache gives for those heads. An output norm whose groups would straddle the ranks is
 * another function, and left out.
 */
#include "laws/laws.h"

#include <string.h>

enum { WHOLE = 0, RANKS = 2, CACHES = 1 + RANKS };

/* The whole layer, and each rank's half of it. */
typedef struct split {
    chk_rng *rng;
    cb_problem *problem[CACHES];
    cb_box *box[CACHES];
    unsigned char *outputs[CACHES];
    int64_t output_bytes[CACHES]; /* of a token */
    void *token, *half;
} split;

/* The rows of one rank of a tensor [heads][per_head]. */
static const float *slice(const float *all, int64_t heads, int64_t per_head, int32_t rank) {
    return all == NULL ? NULL : all + rank * (heads / RANKS) * per_head;
}

static void slice_weights(const cb_problem *whole, cb_problem *half, int32_t layer, int32_t rank) {
    const rssm_layer_weights *w = &whole->weights[layer];
    rssm_layer_weights *h = &half->weights[layer];
    const rssm_layer_spec *s = &whole->full;
    const int64_t keys = s->key_heads, values = s->value_heads;
    const bool group = s->out_norm == RSSM_OUT_NORM_GROUP;
    h->conv_q = slice(w->conv_q, keys, s->d_k * s->conv_width, rank);
    h->conv_k = slice(w->conv_k, keys, s->d_k * s->conv_width, rank);
    h->conv_v = slice(w->conv_v, values, s->d_v * s->conv_width, rank);
    h->conv_bias_q = slice(w->conv_bias_q, keys, s->d_k, rank);
    h->conv_bias_k = slice(w->conv_bias_k, keys, s->d_k, rank);
    h->conv_bias_v = slice(w->conv_bias_v, values, s->d_v, rank);
    h->A_log = slice(w->A_log, values, 1, rank);
    h->A = slice(w->A, values, 1, rank);
    h->dt_bias = slice(w->dt_bias, values, s->kind == RSSM_KDA ? s->d_k : 1, rank);
    h->D = slice(w->D, values, 1, rank);
    h->out_norm = group ? slice(w->out_norm, values, s->d_v, rank) : w->out_norm;
}

static cb_problem *rank_of(chk_rng *rng, const cb_problem *whole, int32_t rank) {
    rssm_layer_spec spec = whole->spec;
    spec.total_key_heads = spec.key_heads;
    spec.total_value_heads = spec.value_heads;
    spec.key_heads /= RANKS;
    spec.value_heads /= RANKS;
    spec.first_key_head = rank * spec.key_heads;
    spec.first_value_head = rank * spec.value_heads;
    spec.out_norm_groups = spec.out_norm == RSSM_OUT_NORM_GROUP ? whole->full.out_norm_groups / RANKS : 0;
    cb_problem *half = cb_problem_make(rng, &spec, &whole->desc, whole->gate_dtype, whole->out_dtype);
    for (int32_t layer = 0; layer < whole->desc.layers; layer++) {
        slice_weights(whole, half, layer, rank);
    }
    return half;
}

static void copy_half(void *to, int64_t to_at, const void *from, int64_t from_at, int64_t bytes, int32_t rank) {
    memcpy((unsigned char *)to + to_at, (const unsigned char *)from + from_at + rank * bytes, (size_t)bytes);
}

static void slice_token(const cb_problem *whole, const cb_problem *half, int32_t rank, const void *token,
                        void *out) {
    const int64_t io = whole->desc.io_dtype == RSSM_DTYPE_BF16 ? 2 : 4,
                  gate = whole->gate_dtype == RSSM_DTYPE_BF16 ? 2 : 4;
    const rssm_layer_spec *s = &half->spec;
    copy_half(out, half->q, token, whole->q, s->key_heads * s->d_k * io, rank);
    copy_half(out, half->k, token, whole->k, s->key_heads * s->d_k * io, rank);
    copy_half(out, half->v, token, whole->v, s->value_heads * s->d_v * io, rank);
    copy_half(out, half->decay, token, whole->decay, s->value_heads * whole->decay_count * gate, rank);
    if (whole->has_beta) {
        copy_half(out, half->beta, token, whole->beta, s->value_heads * gate, rank);
    }
    if (whole->has_z) {
        copy_half(out, half->z, token, whole->z, s->value_heads * s->d_v * io, rank);
    }
}

/* The step on one of the caches; tokens follow from the seed. */
static void run_cache(split *sp, int32_t b, const int32_t *offsets, uint8_t prefill, int32_t accepted,
                      uint64_t seed) {
    const cb_problem *problem = sp->problem[b];
    const cb_box *box = sp->box[b];
    const int32_t tokens = offsets[1];
    rssm_batch batch = {.struct_size = sizeof batch,
                        .rows = 1,
                        .slots = &box->slots[0],
                        .offsets = offsets,
                        .prefill = &prefill};
    cb_feed *feed = cb_feed_make(problem, sp->rng, tokens);
    chk_rng inputs = {seed};
    for (int32_t i = 0; i < tokens; i++) {
        cb_token_draw(sp->problem[WHOLE], &inputs, sp->token);
        if (b != WHOLE) {
            slice_token(sp->problem[WHOLE], problem, b - 1, sp->token, sp->half);
        }
        cb_feed_set(feed, i, b == WHOLE ? sp->token : sp->half);
    }
    cb_ok(box, rssm_cache_begin(box->cache, &batch, &accepted, NULL, NULL), "begin");
    cb_ok(box,
          prefill ? rssm_cache_prefill(box->cache, 0, &batch, &feed->inputs, &feed->out, NULL)
                  : rssm_cache_decode(box->cache, 0, &batch, &feed->inputs, &feed->out, NULL),
          prefill ? "prefill" : "decode");
    sp->output_bytes[b] = (int64_t)cb_feed_output_bytes(feed);
    sp->outputs[b] = chk_alloc((size_t)(sp->output_bytes[b] * tokens));
    for (int32_t i = 0; i < tokens; i++) {
        cb_feed_output_bits(feed, i, sp->outputs[b] + sp->output_bytes[b] * i);
    }
}

static void compare_outputs(const split *sp, int32_t tokens) {
    for (int32_t i = 0; i < tokens; i++) {
        const unsigned char *whole = sp->outputs[WHOLE] + sp->output_bytes[WHOLE] * i;
        for (int32_t rank = 0; rank < RANKS; rank++) {
            const int64_t bytes = sp->output_bytes[1 + rank];
            CHK(memcmp(whole + rank * bytes, sp->outputs[1 + rank] + bytes * i, (size_t)bytes) == 0);
        }
    }
}

static void compare_states(const split *sp) {
    const unsigned char *whole = cb_box_part(sp->box[WHOLE], 0, RSSM_PART_CHECKPOINT, sp->box[WHOLE]->slots[0]);
    const rssm_layer_spec *s = &sp->problem[1]->spec;
    const size_t bytes = (size_t)(s->value_heads * s->d_v * s->d_k) * cb_checkpoint_width(sp->problem[WHOLE]);
    for (int32_t rank = 0; rank < RANKS; rank++) {
        const cb_box *box = sp->box[1 + rank];
        CHK(memcmp(whole + (size_t)rank * bytes, cb_box_part(box, 0, RSSM_PART_CHECKPOINT, box->slots[0]),
                   bytes) == 0);
    }
}

static void run_split(split *sp) {
    int32_t accepted = 0, offsets[2] = {0, 0};
    const uint64_t id = 5;
    for (int32_t b = 0; b < CACHES; b++) {
        cb_ok(sp->box[b], rssm_cache_reset(sp->box[b]->cache, 1, &sp->box[b]->slots[0], &id, NULL, NULL),
              "reset");
    }
    for (int32_t n = 0; n < 12 && chk_ok(); n++) {
        const uint8_t prefill = n == 0 || chk_flip(sp->rng, 0.1);
        const uint64_t seed = chk_u64(sp->rng);
        offsets[1] =
            prefill ? chk_int(sp->rng, 1, 40) : chk_int(sp->rng, 1, sp->problem[WHOLE]->desc.step_tokens);
        for (int32_t b = 0; b < CACHES; b++) {
            run_cache(sp, b, offsets, prefill, accepted, seed);
        }
        compare_outputs(sp, offsets[1]);
        compare_states(sp);
        accepted = prefill ? offsets[1] : chk_int(sp->rng, 0, offsets[1]);
    }
}

static bool can_split(const rssm_layer_spec *s) {
    const bool straddles = s->out_norm == RSSM_OUT_NORM_GROUP && s->out_norm_groups % RANKS != 0;
    return s->key_heads % RANKS == 0 && s->head_map == RSSM_HEAD_MAP_BLOCKS && !straddles;
}

void laws_split(void *arg) {
    const setting *at = arg;
    int32_t done = 0;
    for (int32_t i = 0; i < 400 && done < chk_repeat(6) && chk_ok(); i++) {
        chk_rng rng = chk_rng_make(at->name, 5000 + (uint64_t)i);
        split sp = {.rng = &rng};
        sp.problem[WHOLE] = laws_draw(&rng, at, i, 1, 4, 0);
        if (can_split(&sp.problem[WHOLE]->full)) {
            rssm_context *context = cb_context(at->isa.mask, 1);
            sp.token = chk_alloc((size_t)sp.problem[WHOLE]->token_bytes);
            sp.half = chk_alloc((size_t)sp.problem[WHOLE]->token_bytes);
            for (int32_t b = 0; b < CACHES; b++) {
                sp.problem[b] = b == WHOLE ? sp.problem[WHOLE] : rank_of(&rng, sp.problem[WHOLE], b - 1);
                sp.box[b] =
                    cb_box_make(&rng, sp.problem[b], context, RSSM_METHOD_REPLAY, 1, 1, laws_poison(&rng));
            }
            run_split(&sp);
            done++;
        }
        chk_release();
    }
    CHK(done > 0);
}
