/* SPDX-License-Identifier: Apache-2.0 */
/* Folds into a checkpoint of any format, and what every writer of a checkpoint does: its read copy follows. */
#ifndef RSSM_FOLD_INL_H
#define RSSM_FOLD_INL_H

#include "cpu/copy.inl.h"

/* ---- Folding ------------------------------------------------------------------------------------------ */

RSSM_INLINE void fold_tiles(const rssm_geometry *geo, const rssm_stream *stream, const rssm_state *state, int32_t hv,
                            const window *w, int nb, int vector_decay, float *rows) {
    tile t;
    ahead nothing = {0};
    for (int32_t first = 0; first < geo->d_v; first += 16) {
        t.lanes = geo->d_v - first < 16 ? geo->d_v - first : 16;
        for (int32_t i = 0; i < t.lanes; i++) {
            t.index[i] = first + i;
            t.row[i] = rows + (int64_t)i * geo->padded_k;
        }
        load_rows(geo, state, hv, first, t.lanes, rows, geo->padded_k);
        if (w->delta) {
            fold_delta(&t, nb, 16, vector_decay, w, &nothing);
        } else {
            fold_plain(&t, nb, 16, vector_decay, w, &nothing);
        }
        store_rows(geo, stream, state, hv, first, t.lanes, rows, geo->padded_k);
    }
}

/* The records of w from `skip` on. */
static window window_after(window w, int32_t skip) {
    w.n -= skip;
    w.key += (int64_t)skip * w.padded_k;
    w.alpha += (int64_t)skip * (w.vector_decay ? w.padded_k : 1);
    w.beta += skip;
    w.value += skip;
    return w;
}

/* The records of w up to the next boundary, w's being those before state->position; w goes on behind them. */
static window next_piece(const rssm_geometry *geo, const rssm_state *state, window *w) {
    const int64_t from = state->position - w->n, to = rssm_next_boundary(from, state->id, geo->window);
    window piece = *w;
    piece.n = to < state->position ? (int32_t)(to - from) : w->n;
    *w = window_after(*w, piece.n);
    return piece;
}

/* Folds the records of w, those before state->position, into a head's checkpoint. */
static void fold_checkpoint(const rssm_geometry *geo, const rssm_constants *constants, const rssm_state *state, int32_t hv,
                      const window *w, float *scratch) {
    if (geo->formats.checkpoint == RSSM_DTYPE_F32) {
        ahead nothing = {0};
        run_head(&(head_job){.state = (float *)(void *)checkpoint_row(geo, state, hv, 0),
                             .d_k = geo->d_k,
                             .d_v = geo->d_v,
                             .fold = w,
                             .next = &nothing});
        return;
    }
    float *rows = scratch + geo->scratch.tile;
    for (window rest = *w; rest.n > 0;) {
        const window piece = next_piece(geo, state, &rest);
        const rssm_stream stream = head_stream(geo, constants, state, hv, state->position - rest.n);
        if (V16_UNROLL && geo->padded_k == 128 && !w->vector_decay) {
            fold_tiles(geo, &stream, state, hv, &piece, 8, 0, rows);
        } else if (V16_UNROLL && geo->padded_k == 128) {
            fold_tiles(geo, &stream, state, hv, &piece, 8, 1, rows);
        } else {
            fold_tiles(geo, &stream, state, hv, &piece, geo->padded_k / 16, w->vector_decay, rows);
        }
    }
}

static void fold_head(const rssm_geometry *geo, const rssm_constants *constants, const rssm_state *state, int32_t hv,
                      const window *w, float *scratch) {
    fold_checkpoint(geo, constants, state, hv, w, scratch);
    build_copy(geo, constants, state, hv, scratch);
}

/* ---- Units -------------------------------------------------------------------------------------------- */

static void load_unit(const rssm_move *move, int32_t unit, float *scratch) {
    const rssm_geometry *geo = move->geometry;
    (void)scratch;
    for (int32_t j = 0; j < geo->unit_values; j++) {
        const int32_t hv = input_head(geo, unit_head(geo, unit, j));
        load_rows(geo, move->state, hv, 0, geo->d_v, move->plain + (int64_t)hv * geo->d_v * geo->d_k, geo->d_k);
    }
}

static void store_unit(const rssm_move *move, int32_t unit, float *scratch) {
    const rssm_geometry *geo = move->geometry;
    for (int32_t j = 0; j < geo->unit_values; j++) {
        const int32_t hv = input_head(geo, unit_head(geo, unit, j));
        const rssm_stream stream = head_stream(geo, move->constants, move->state, hv, move->state->position);
        store_rows(geo, &stream, move->state, hv, 0, geo->d_v, move->plain + (int64_t)hv * geo->d_v * geo->d_k, geo->d_k);
        build_copy(geo, move->constants, move->state, hv, scratch);
    }
}

#endif
