/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens and feeds: raw inputs of one position, and the views a call gets of them. */
#include <math.h>
#include <string.h>

#include "cachebox.h"
#include "numbers.h"

static int64_t dtype_bytes(int32_t dtype) {
    return dtype == RSSM_DTYPE_BF16 ? 2 : 4;
}

static void put(void *data, int32_t dtype, int64_t i, double x) {
    if (dtype == RSSM_DTYPE_BF16) {
        const uint16_t h = rssm_bf16_of_f32((float)x);
        memcpy((char *)data + 2 * i, &h, sizeof h);
    } else {
        const float f = (float)x;
        memcpy((char *)data + 4 * i, &f, sizeof f);
    }
}

/* ---- Tokens -------------------------------------------------------------------------------------------- */

/* A component of q, k, v or z: mostly of size 1, now and then something else. Kernels may take subnormal
   numbers for zero (cpu/vec.h); of those only the least is drawn, which no norm lifts above the comparison's
   floor. */
static double component(chk_rng *rng) {
    if (chk_flip(rng, 0.98)) {
        return chk_normal(rng);
    }
    static const double odd[] = {0.0, -0.0, 1e-30, -1e-37, 0x1p-149, 60.0, -60.0, 1000.0};
    return CHK_PICK(rng, odd);
}

/* Keys that are not normalised are kept short, so that the delta rule stays stable. */
static double key_size(const cb_problem *p) {
    const rssm_layer_spec *s = &p->full;
    const bool wild = s->kind != RSSM_MAMBA2 && s->qk_norm == RSSM_QK_NORM_NONE;
    return wild ? 0.5 / sqrt((double)s->d_k) : 1.0;
}

static double key_component(const cb_problem *p, chk_rng *rng) {
    const double size = key_size(p);
    return size < 1.0 ? size * chk_uniform(rng, -1.5, 1.5) : component(rng);
}

static double decay_input(const cb_problem *p, chk_rng *rng, double centre) {
    const bool extreme = chk_flip(rng, 0.03);
    if (p->full.gate == RSSM_GATE_LOG) {
        return extreme ? (chk_flip(rng, 0.5) ? 0.0 : -120.0) : -pow(10.0, chk_uniform(rng, -4.0, 0.3) + centre);
    }
    if (p->full.gate == RSSM_GATE_DT) {
        return extreme ? (chk_flip(rng, 0.5) ? 0.0 : 8.0)
                       : pow(10.0, chk_uniform(rng, -3.0, 0.0) + 0.3 * centre);
    }
    return extreme ? (chk_flip(rng, 0.5) ? 25.0 : -40.0) : centre + 1.5 * chk_normal(rng);
}

void cb_token_draw(const cb_problem *p, chk_rng *rng, void *token) {
    const rssm_layer_spec *s = &p->full;
    const int32_t io = p->desc.io_dtype;
    char *blob = token;
    const int64_t nk = (int64_t)s->key_heads * s->d_k, nv = (int64_t)s->value_heads * s->d_v;
    memset(blob, 0, (size_t)p->token_bytes);
    for (int64_t i = 0; i < nk; i++) {
        put(blob + p->q, io, i, component(rng));
        put(blob + p->k, io, i, key_component(p, rng));
    }
    for (int64_t i = 0; i < nv; i++) {
        put(blob + p->v, io, i, component(rng));
    }
    const double centre = 0.5 * chk_normal(rng); /* tokens that keep much and tokens that forget */
    for (int64_t i = 0; i < s->value_heads * p->decay_count; i++) {
        put(blob + p->decay, p->gate_dtype, i, decay_input(p, rng, centre));
    }
    for (int64_t i = 0; p->has_beta && i < s->value_heads; i++) {
        const double beta = s->gate == RSSM_GATE_LOG ? chk_uniform(rng, 0.0, chk_flip(rng, 0.1) ? 2.0 : 1.0)
                                                     : (chk_flip(rng, 0.03) ? 30.0 : 2.0) * chk_normal(rng);
        put(blob + p->beta, p->gate_dtype, i, beta);
    }
    for (int64_t i = 0; p->has_z && i < nv; i++) {
        put(blob + p->z, io, i, component(rng));
    }
}

rssm_layer_inputs cb_token_inputs(const cb_problem *p, const void *token) {
    const char *blob = token;
    rssm_layer_inputs in = {.struct_size = sizeof in, .gate_dtype = p->gate_dtype};
    in.q.data = blob + p->q;
    in.k.data = blob + p->k;
    in.v.data = blob + p->v;
    in.decay.data = blob + p->decay;
    in.beta.data = p->has_beta ? blob + p->beta : NULL;
    in.z.data = p->has_z ? blob + p->z : NULL;
    return in;
}

void cb_token_settle(const cb_problem *p, const rssm_ref_layer *before, chk_rng *rng, void *token) {
    enum { ATTEMPTS = 50 };
    const int64_t nk = (int64_t)p->full.key_heads * p->full.d_k, channels = rssm_ref_layer_channels(before);
    const rssm_layer_inputs in = cb_token_inputs(p, token);
    char *blob = token;
    for (int64_t c = 0; p->desc.io_dtype == RSSM_DTYPE_BF16 && c < channels; c++) {
        for (int32_t i = 0; i < ATTEMPTS && rssm_ref_layer_tie_margin(before, &in, 0, c) <= 1.0; i++) {
            if (c < nk) {
                put(blob + p->q, RSSM_DTYPE_BF16, c, chk_normal(rng));
            } else if (c < 2 * nk) {
                put(blob + p->k, RSSM_DTYPE_BF16, c - nk, key_size(p) * chk_uniform(rng, -1.5, 1.5));
            } else {
                put(blob + p->v, RSSM_DTYPE_BF16, c - 2 * nk, chk_normal(rng));
            }
        }
    }
}

/* ---- Feeds --------------------------------------------------------------------------------------------- */

/* One input (or the output): where its rows lie in a token's blob and in a feed. */
typedef struct field {
    int64_t offset;         /* in the blob */
    int64_t heads, d, size; /* rows of d elements of `size` bytes */
    rssm_view *view;
} field;

static int32_t list_fields(cb_feed *feed, field fields[6]) {
    const cb_problem *p = feed->problem;
    const rssm_layer_spec *s = &p->full;
    const int64_t io = dtype_bytes(p->desc.io_dtype), gate = dtype_bytes(p->gate_dtype);
    rssm_layer_inputs *in = &feed->inputs;
    int32_t n = 0;
    fields[n++] = (field){p->q, s->key_heads, s->d_k, io, &in->q};
    fields[n++] = (field){p->k, s->key_heads, s->d_k, io, &in->k};
    fields[n++] = (field){p->v, s->value_heads, s->d_v, io, &in->v};
    fields[n++] = (field){p->decay, s->value_heads, p->decay_count, gate, &in->decay};
    if (p->has_beta) {
        fields[n++] = (field){p->beta, s->value_heads, 1, gate, &in->beta};
    }
    if (p->has_z) {
        fields[n++] = (field){p->z, s->value_heads, s->d_v, io, &in->z};
    }
    return n;
}

static cb_block make_block(chk_rng *rng, size_t bytes, size_t align) {
    cb_block block = {.bytes = bytes};
    block.data = chk_guard(bytes, align, chk_int(rng, CHK_LEFT, CHK_RIGHT));
    block.expected = chk_alloc(bytes);
    chk_fill(block.data, bytes, CHK_SIGNALLING);
    memcpy(block.expected, block.data, bytes);
    return block;
}

/* Every input in a block of its own, dense, so that one element too many meets a guard page. */
static void lay_out_apart(cb_feed *feed, chk_rng *rng, const field *fields, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        const field *f = &fields[i];
        feed->in_blocks[i] =
            make_block(rng, (size_t)(feed->tokens * f->heads * f->d * f->size), (size_t)f->size);
        f->view->data = feed->in_blocks[i].data;
        if (chk_flip(rng, 0.5)) {
            f->view->token_stride = f->heads * f->d;
            f->view->head_stride = f->d;
        }
    }
    feed->in_count = n;
}

/* All inputs in one tensor of [tokens][anything], in random order, with gaps between heads and fields. */
static void lay_out_packed(cb_feed *feed, chk_rng *rng, const field *fields, int32_t n) {
    int32_t order[6] = {0, 1, 2, 3, 4, 5};
    int64_t offsets[6], at = 0;
    chk_shuffle(rng, order, n);
    for (int32_t i = 0; i < n; i++) {
        const field *f = &fields[order[i]];
        f->view->head_stride = f->d + (chk_flip(rng, 0.5) ? 0 : chk_int(rng, 1, 9));
        at += 4 * chk_int(rng, 0, 3);
        offsets[order[i]] = at;
        at += ((f->heads - 1) * f->view->head_stride + f->d) * f->size;
        at = (at + 3) & ~(int64_t)3;
    }
    const int64_t row = at + 4 * (chk_flip(rng, 0.5) ? 0 : chk_int(rng, 1, 17));
    const size_t bytes = feed->tokens ? (size_t)((feed->tokens - 1) * row + at) : 0;
    feed->in_blocks[0] = make_block(rng, bytes, 4);
    feed->in_count = 1;
    for (int32_t i = 0; i < n; i++) {
        fields[i].view->data = feed->in_blocks[0].data + offsets[i];
        fields[i].view->token_stride = row / fields[i].size;
    }
}

cb_feed *cb_feed_make(const cb_problem *problem, chk_rng *rng, int32_t tokens) {
    cb_feed *feed = chk_alloc(sizeof *feed);
    feed->problem = problem;
    feed->tokens = tokens;
    feed->inputs.struct_size = sizeof feed->inputs;
    feed->inputs.gate_dtype = problem->gate_dtype;
    field fields[6];
    const int32_t n = list_fields(feed, fields);
    if (chk_flip(rng, 0.3)) {
        lay_out_apart(feed, rng, fields, n);
    } else {
        lay_out_packed(feed, rng, fields, n);
    }
    const rssm_layer_spec *s = &problem->full;
    const int64_t size = dtype_bytes(problem->out_dtype);
    const bool dense = chk_flip(rng, 0.4);
    const int64_t head = s->d_v + (dense ? 0 : chk_int(rng, 0, 9));
    const int64_t used = (s->value_heads - 1) * head + s->d_v;
    const int64_t row = dense ? used : used + chk_int(rng, 0, 33);
    feed->out = (rssm_output){.struct_size = sizeof feed->out, .dtype = problem->out_dtype};
    feed->out.token_stride = dense && chk_flip(rng, 0.5) ? 0 : row;
    feed->out.head_stride = feed->out.token_stride ? head : 0;
    const size_t bytes = tokens ? (size_t)(((tokens - 1) * row + used) * size) : 0;
    feed->out_block = make_block(rng, bytes, (size_t)size);
    feed->out.data = feed->out_block.data;
    return feed;
}

void cb_feed_set(cb_feed *feed, int32_t index, const void *token) {
    field fields[6];
    const int32_t n = list_fields(feed, fields);
    for (int32_t i = 0; i < n; i++) {
        const field *f = &fields[i];
        const cb_block *block = &feed->in_blocks[feed->in_count == 1 ? 0 : i];
        const int64_t head_stride = f->view->head_stride ? f->view->head_stride : f->d;
        const int64_t token_stride = f->view->token_stride ? f->view->token_stride : f->heads * f->d;
        unsigned char *base = block->data + ((const unsigned char *)f->view->data - block->data);
        for (int64_t head = 0; head < f->heads; head++) {
            unsigned char *to = base + (index * token_stride + head * head_stride) * f->size;
            const size_t bytes = (size_t)(f->d * f->size);
            memcpy(to, (const char *)token + f->offset + head * f->d * f->size, bytes);
            memcpy(block->expected + (to - block->data), to, bytes);
        }
    }
}

void cb_feed_poison(cb_feed *feed, chk_poison poison) {
    chk_fill(feed->out_block.data, feed->out_block.bytes, poison);
    memcpy(feed->out_block.expected, feed->out_block.data, feed->out_block.bytes);
}

/* First byte of one head's output. */
static unsigned char *output_row(const cb_feed *feed, int32_t index, int64_t head) {
    const rssm_layer_spec *s = &feed->problem->full;
    const int64_t head_stride = feed->out.head_stride ? feed->out.head_stride : s->d_v;
    const int64_t token_stride =
        feed->out.token_stride ? feed->out.token_stride : s->value_heads * (int64_t)s->d_v;
    return feed->out_block.data +
           (index * token_stride + head * head_stride) * dtype_bytes(feed->problem->out_dtype);
}

void cb_feed_output(const cb_feed *feed, int32_t index, double *y) {
    const rssm_layer_spec *s = &feed->problem->full;
    for (int64_t head = 0; head < s->value_heads; head++) {
        for (int64_t i = 0; i < s->d_v; i++) {
            *y++ = rssm_ref_load(output_row(feed, index, head), feed->problem->out_dtype, i);
        }
    }
}

size_t cb_feed_output_bytes(const cb_feed *feed) {
    const rssm_layer_spec *s = &feed->problem->full;
    return (size_t)(s->value_heads * (int64_t)s->d_v * dtype_bytes(feed->problem->out_dtype));
}

void cb_feed_output_bits(const cb_feed *feed, int32_t index, void *dense) {
    const rssm_layer_spec *s = &feed->problem->full;
    const size_t row = (size_t)(s->d_v * dtype_bytes(feed->problem->out_dtype));
    for (int64_t head = 0; head < s->value_heads; head++) {
        memcpy((char *)dense + (size_t)head * row, output_row(feed, index, head), row);
    }
}

static bool block_intact(const cb_block *block, const char *what) {
    if (memcmp(block->data, block->expected, block->bytes) == 0) {
        return true;
    }
    size_t i = 0;
    while (block->data[i] == block->expected[i]) {
        i++;
    }
    return chk_fail("%s was written to at byte %zu of %zu", what, i, block->bytes);
}

bool cb_feed_intact(const cb_feed *feed) {
    bool ok = true;
    for (int32_t i = 0; i < feed->in_count; i++) {
        ok = block_intact(&feed->in_blocks[i], "an input tensor") && ok;
    }
    const rssm_layer_spec *s = &feed->problem->full;
    const size_t row = (size_t)(s->d_v * dtype_bytes(feed->problem->out_dtype));
    for (int32_t t = 0; t < feed->tokens; t++) { /* the output rows themselves may be anything */
        for (int64_t head = 0; head < s->value_heads; head++) {
            const unsigned char *at = output_row(feed, t, head);
            memcpy(feed->out_block.expected + (at - feed->out_block.data), at, row);
        }
    }
    return block_intact(&feed->out_block, "a gap of the output") && ok;
}
