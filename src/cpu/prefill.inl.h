/* SPDX-License-Identifier: Apache-2.0 */
/* A unit of prefill: fold the history, then scan the prompt's tokens in pieces of RSSM_SCAN_TOKENS. A narrow checkpoint
   is f32 in scratch during the scan, and rounded once at its end. */
#ifndef RSSM_PREFILL_INL_H
#define RSSM_PREFILL_INL_H

#include "cpu/decode.inl.h"

/* Gates of a span in the scan's order: per head [n], a vector decay [n][padded_k]. */
static void span_gates(const span *s, int32_t g, float *scratch) {
    const rssm_geometry *geo = s->call->geometry;
    float *alpha = scratch + geo->scratch.alpha, *beta = scratch + geo->scratch.beta;
    float *head_alpha = scratch + geo->scratch.head_alpha, *head_beta = scratch + geo->scratch.head_beta;
    for (int32_t t = 0; t < s->n; t++) {
        token_gates(s, g, t, alpha, beta);
        for (int32_t i = 0; i < geo->ratio; i++) {
            int64_t at = (int64_t)i * RSSM_SCAN_TOKENS + t;
            head_beta[at] = beta[i];
            if (!geo->vector_decay) {
                head_alpha[at] = alpha[i];
                continue;
            }
            const void *decay = view_at(&s->call->inputs->decay, s->row->token + s->offset + t, rssm_value_head(geo, g, i),
                                        s->call->gate_bf16);
            decay_vector(geo, s->call->constants, g * geo->ratio + i, decay, s->call->gate_bf16,
                         head_alpha + at * geo->padded_k);
        }
    }
}

enum { WANTED_MAX = 64 };

/* A head's rows of a view over the tokens of a span. */
static rssm_wanted wanted_rows(const span *s, const rssm_view *view, int32_t head, int32_t d, int bf16) {
    return (rssm_wanted){view_at(view, s->row->token + s->offset, head, bf16), view->token_stride * io_bytes(bf16),
                         d * io_bytes(bf16), s->n};
}

/* What follows the scan of key head g: its outputs and their gates, then the inputs of the key head after it. Returns how
   many lists; with very many heads the first ones. */
static int32_t list_wanted(const span *s, int32_t g, const span *next, int32_t next_g, rssm_wanted *list) {
    const rssm_geometry *geo = s->call->geometry;
    const rssm_layer_inputs *in = s->call->inputs;
    const rssm_view out = {s->call->out->data, s->call->out->token_stride, s->call->out->head_stride};
    int32_t count = 0;
    for (int32_t i = 0; i < geo->ratio && count + 2 <= WANTED_MAX; i++) {
        const int32_t hv = rssm_value_head(geo, g, i);
        if (geo->out_norm != RSSM_OUT_NORM_NONE) {
            list[count++] = wanted_rows(s, &in->z, hv, geo->d_v, geo->bf16);
        }
        list[count++] = wanted_rows(s, &out, hv, geo->d_v, s->call->out_bf16);
    }
    if (next != NULL && count + 2 <= WANTED_MAX) {
        list[count++] = wanted_rows(next, &in->k, next_g, geo->d_k, geo->bf16);
        list[count++] = wanted_rows(next, &in->q, next_g, geo->d_k, geo->bf16);
    }
    for (int32_t i = 0; next != NULL && i < geo->ratio && count < WANTED_MAX; i++) {
        list[count++] = wanted_rows(next, &in->v, rssm_value_head(geo, next_g, i), geo->d_v, geo->bf16);
    }
    return count;
}

/* One key head of a span; its states lie in the checkpoint, or f32 one after another in `plain`. next: the span of key
   head next_g, which is the next one; NULL: none. */
static void prefill_group(const span *s, int32_t g, const span *next, int32_t next_g, float *plain, float *scratch,
                          float *y) {
    const rssm_geometry *geo = s->call->geometry;
    const size_t per_alpha = geo->vector_decay ? (size_t)geo->padded_k : 1;
    const int64_t head_ld = (int64_t)RSSM_SCAN_TOKENS * geo->padded_v;
    float *key = scratch + geo->scratch.key;
    rssm_wanted wanted[WANTED_MAX];
    const int32_t wanted_count = list_wanted(s, g, next, next_g, wanted);
    head_values(s, tensor_k(s->call, g), key);
    for (int32_t t = 0; t < s->n && geo->l2; t++) {
        float *x = key + (int64_t)t * geo->padded_k;
        scale_padded(x, inverse_norm(geo, x), geo->padded_k);
    }
    head_queries(s, g, scratch + geo->scratch.q);
    span_gates(s, g, scratch);
    for (int32_t first = 0; first < geo->ratio; first += 16) {
        float *state[16], *out[16];
        const float *v[16], *alpha[16], *beta[16];
        int32_t heads = geo->ratio - first < 16 ? geo->ratio - first : 16;
        for (int32_t i = 0; i < heads; i++) {
            int32_t hv = rssm_value_head(geo, g, first + i);
            float *values = scratch + geo->scratch.v + (first + i) * head_ld;
            head_values(s, tensor_v(s->call, hv), values);
            state[i] = plain != NULL ? plain + (int64_t)(first + i) * geo->d_v * geo->d_k
                                     : (float *)(void *)checkpoint_row(geo, &s->row->state, hv, 0);
            out[i] = y + (first + i) * head_ld;
            v[i] = values;
            alpha[i] = scratch + geo->scratch.head_alpha + (size_t)(first + i) * RSSM_SCAN_TOKENS * per_alpha;
            beta[i] = scratch + geo->scratch.head_beta + (size_t)(first + i) * RSSM_SCAN_TOKENS;
        }
        rssm_scan scan = {.d_k = geo->d_k,
                          .d_v = geo->d_v,
                          .tokens = s->n,
                          .heads = heads,
                          .delta = geo->delta,
                          .vector_decay = geo->vector_decay,
                          .k = key,
                          .q = scratch + geo->scratch.q,
                          .state = state,
                          .v = v,
                          .alpha = alpha,
                          .beta = beta,
                          .y = out,
                          .scratch = scratch + geo->scratch.scan,
                          .wanted = wanted,
                          .wanted_count = first == 0 ? wanted_count : 0};
        RSSM_NAME(rssm_scan)(&scan);
        for (int32_t i = 0; i < heads; i++) {
            add_skip(geo, s->call->constants, g * geo->ratio + first + i, s->n, v[i], out[i]);
        }
    }
}

/* Leaves the last inputs of one head as convolution rows 0, 1, ..., oldest first. The rows they come from may be the
   rows they go to, so they pass through scratch. */
static void leave_conv(const span *s, tensor x, float *scratch) {
    const rssm_geometry *geo = s->call->geometry;
    const size_t bytes = (size_t)(x.d * io_bytes(geo->bf16));
    char *held = (char *)(scratch + geo->scratch.context);
    int32_t keep = rssm_cursor_conv_after(s->row->cursor, &geo->rows, s->row->tokens);
    for (int32_t i = 0; i < keep; i++) {
        memcpy(held + (size_t)i * bytes, tap(s, &x, s->row->tokens - keep + i), bytes);
    }
    for (int32_t i = 0; i < keep; i++) {
        char *to = (char *)s->row->conv + ((int64_t)i * geo->conv_channels + x.channel) * io_bytes(geo->bf16);
        memcpy(to, held + (size_t)i * bytes, bytes);
    }
}

static void prefill_unit(const rssm_call *call, const rssm_row *row, int32_t unit, float *scratch) {
    const rssm_geometry *geo = call->geometry;
    if (row->cursor == NULL) {
        write_zeros(&(span){call, row, 0, row->tokens}, unit);
        return;
    }
    const int64_t head = (int64_t)geo->d_v * geo->d_k;
    float *y = scratch + geo->scratch.y, *plain = NULL;
    if (row->fold > 0) {
        rssm_state before = row->state;
        before.position -= row->tokens;
        fold_unit(&(rssm_fold){geo, call->constants, row, &before, row->fold}, unit, scratch);
    }
    if (geo->formats.checkpoint != RSSM_DTYPE_F32) {
        plain = scratch + geo->scratch.plain;
        for (int32_t j = 0; j < geo->unit_values; j++) {
            load_rows(geo, &row->state, input_head(geo, unit_head(geo, unit, j)), 0, geo->d_v, plain + j * head, geo->d_k);
        }
    }
    for (int32_t offset = 0; offset < row->tokens; offset += RSSM_SCAN_TOKENS) {
        int32_t n = row->tokens - offset < RSSM_SCAN_TOKENS ? row->tokens - offset : RSSM_SCAN_TOKENS;
        const int32_t left = row->tokens - offset - n;
        span s = {call, row, offset, n};
        span after = {call, row, offset + n, left < RSSM_SCAN_TOKENS ? left : RSSM_SCAN_TOKENS};
        for (int32_t i = 0; i < geo->unit_keys; i++) {
            const int32_t first = unit * geo->unit_keys;
            const span *next = i + 1 < geo->unit_keys ? &s : left > 0 ? &after : NULL;
            const int32_t next_g = first + (i + 1) % geo->unit_keys;
            prefill_group(&s, first + i, next, next_g, plain == NULL ? NULL : plain + i * geo->ratio * head, scratch,
                          y + (int64_t)i * geo->ratio * RSSM_SCAN_TOKENS * geo->padded_v);
        }
        write_outputs(&s, unit, y);
    }
    for (int32_t j = 0; plain != NULL && j < geo->unit_values; j++) {
        const int32_t hv = input_head(geo, unit_head(geo, unit, j));
        const rssm_stream stream = head_stream(geo, call->constants, &row->state, hv, row->state.position);
        store_rows(geo, &stream, &row->state, hv, 0, geo->d_v, plain + j * head, geo->d_k);
    }
    copy_unit(&(rssm_move){geo, call->constants, &row->state, NULL}, unit, scratch);
    span whole = {call, row, 0, row->tokens};
    for (int32_t key = 0; key < geo->unit_keys && geo->conv_width > 0; key++) {
        int32_t g = unit * geo->unit_keys + key;
        leave_conv(&whole, tensor_q(call, g), scratch);
        leave_conv(&whole, tensor_k(call, g), scratch);
        for (int32_t i = 0; i < geo->ratio; i++) {
            leave_conv(&whole, tensor_v(call, rssm_value_head(geo, g, i)), scratch);
        }
    }
}

#endif
