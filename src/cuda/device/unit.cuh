/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A unit of a decode step: one or more value heads of a row that share a key head, or a slice of one. What has to be done
 * before the state is needed, and what is done to each tile of it. The conventional method is the same code with the new
 * tokens among the records to fold and nothing to walk.
 */
#ifndef RSSM_CUDA_UNIT_CUH
#define RSSM_CUDA_UNIT_CUH

#include "cuda/device/head.cuh"

/* Records to fold into a unit's state, and tokens to read it for. */
struct unit_work {
    int fold, tokens;
};

static __device__ __forceinline__ unit_work work_of(const rssm_cuda_step &c, const step_row &row) {
    return unit_work{row.fold + (c.conventional ? row.tokens : 0), row.tokens};
}

/* Appends the step's records, gathers those that the checkpoint does not hold, walks the queries back through them and
   sums what the values add to the outputs. The team meets at its end. */
template <class S, bool DELTA, bool VECTOR, int THREADS>
static __device__ __forceinline__ void prepare_unit(const team &w, const rssm_cuda_step &c, const step_row &row, const slot_parts &slot,
                                    const head_place &p, const uint8_t *record_map, const uint8_t *conv_map,
                                const memory &m) {
    const rssm_cuda_layout &l = c.layout;
    const rssm_geometry &g = c.geometry;
    const bool scalar = !DELTA && !VECTOR, walks = !c.conventional;
    const int n = row.history - row.first, fold = row.fold + (c.conventional ? row.tokens : 0);
    const uint8_t *map = record_map + row.first;
    const stretch s = {row.token, 0, row.tokens, row.held, record_map + row.history, conv_map, walks, true};
    const seen_records seen = {fold, walks ? n : -1 - RSSM_STEP_TOKENS_MAX, n};
    const tile_place at = place_of<THREADS>(w.thread, g.d_k, p.rows);
    gather_keys<S>(w, g, slot, p, map, n, l.width, m);
    for (int i = 0; i < c.heads; i++) {
        gather_head<S, VECTOR>(w, g, c.constants, slot, head_at(g, p, i), map, n, l.width, memory_of_head(m, l, i));
    }
    __pipeline_commit();
    take_keys<(S::BLOCKS + 3) / 4>(w, c, slot, p, s, n, m);
    take_heads(w, c, slot, p, s, n, c.heads, m);
    __pipeline_wait_prior(0);
    w.sync();
    scale_keys<S>(w, g, n, l.width, m);
    w.sync();
    if (walks && scalar) {
        gram_products<S>(w, l, m, at, row.tokens, fold, n);
        w.sync();
        walk_scalar(w, l, m, c.heads, row.tokens, fold, n);
        w.sync();
    } else if (walks) {
        walk_vector<S, DELTA, VECTOR>(w, l, m, at, c.heads, row.tokens, fold, n);
        w.sync();
    }
    sum_values(w, c, p, m, row.tokens, c.heads, seen);
    w.sync();
}

/* Folds a tile, stores it if it has changed, and reads it for the step's tokens. m: of its head; state: the slice's. */
template <class S, bool DELTA, bool VECTOR>
static __device__ __forceinline__ void evaluate_tile(tile<S> &x, const tile_place &at, const rssm_cuda_step &c, const unit_work &work, float *state,
                                     int first, const memory &m) {
    const rssm_cuda_layout &l = c.layout;
    const bool scalar = !DELTA && !VECTOR, walks = !c.conventional;
    const float *queries = walks && !scalar ? m.walked : m.query;
    for (int j = 0; j < work.fold; j++) {
        apply_record<S, DELTA, VECTOR>(x, at, l, m, c.geometry.bf16, first, j);
    }
    if (work.fold > 0) {
        store_tile<S>(x, at, state, first);
    }
    for (int t = 0; t < work.tokens; t++) {
        columns<S> query;
        load_columns<S>(query, at, queries + t * l.width);
        read_tile<S>(x, at, query, walks && scalar ? m.product[t] : 1.0f, first, m.y + t * l.slice);
    }
}

#endif
