/* SPDX-License-Identifier: Apache-2.0 */
/* The scratch of a unit. One layout serves decode, prefill and folds: the parts that only one of them uses are small. */
#include "cpu/kernels.h"

#include <stdbool.h>

static size_t take(size_t *total, size_t floats) {
    size_t at = *total;
    *total += (floats + 15) & ~(size_t)15;
    return at;
}

static int64_t up(int64_t n, int64_t to) {
    return (n + to - 1) / to * to;
}

void rssm_layout_copy(rssm_geometry *geo) {
    rssm_formats *f = &geo->formats;
    const bool nvfp4 = f->copy == RSSM_DTYPE_NVFP4, half = f->copy == RSSM_DTYPE_F16 || f->copy == RSSM_DTYPE_BF16;
    f->copy_row = nvfp4 ? up(geo->d_k, 32) / 2 : (int64_t)geo->d_k * (half ? 2 : 1);
    f->copy_head = geo->d_v * f->copy_row;
    f->blocks = f->block_values ? geo->padded_k : (int32_t)up(geo->d_k, f->block) / f->block;
    f->scale_tail = up((int64_t)f->blocks * (f->block_values ? geo->padded_v / 16 : geo->d_v), 4);
    f->scale_factors = f->scale_tail + 4 * (1 + 2 * (int64_t)f->rank);
    f->scale_head = up(f->scale_factors + (int64_t)f->rank * (geo->padded_v + geo->padded_k), 4);
}

void rssm_layout_scratch(rssm_geometry *geo) {
    rssm_layout *s = &geo->scratch;
    const size_t tokens = RSSM_SCAN_TOKENS, window = (size_t)geo->rows.records, step = (size_t)geo->step_tokens;
    const size_t k = (size_t)geo->padded_k, v = (size_t)geo->padded_v;
    const size_t ratio = (size_t)geo->ratio, per_alpha = geo->vector_decay ? k : 1;
    const size_t ratio_padded = (size_t)rssm_padded(geo->ratio);
    size_t total = 0;
    s->q = take(&total, tokens * k);
    s->key = take(&total, tokens * k);
    s->v = take(&total, ratio * tokens * v);
    s->y = take(&total, (size_t)geo->unit_values * tokens * v);
    s->alpha = take(&total, tokens * ratio_padded);
    s->beta = take(&total, tokens * ratio_padded);
    s->head_alpha = take(&total, ratio * tokens * per_alpha);
    s->head_beta = take(&total, ratio * tokens);
    s->window_key = take(&total, window * k);
    s->window_alpha = take(&total, window * per_alpha);
    s->window_beta = take(&total, window);
    s->r = take(&total, step * k);
    s->c = take(&total, step * window);
    s->gram = take(&total, step * window);
    s->context = take(&total, (size_t)geo->rows.conv_keep * (k > v ? k : v));
    s->scan = take(&total, rssm_scan_scratch(geo->d_k, geo->d_v, geo->delta, geo->vector_decay));
    if (geo->formats.checkpoint != RSSM_DTYPE_F32 || geo->formats.copy != RSSM_DTYPE_DEFAULT) {
        s->tile = take(&total, 16 * k);
    }
    if (geo->formats.copy == RSSM_DTYPE_NVFP4) {
        s->head = take(&total, v * k);
        s->special = take(&total, v * k / 4);
        s->tile_scale = take(&total, 16 * k);
        s->tile_codes = take(&total, 16 * k);
        s->scales = take(&total, v * k / 16);
    }
    if (geo->formats.checkpoint != RSSM_DTYPE_F32) {
        s->plain = take(&total, (size_t)geo->unit_values * (size_t)geo->d_v * (size_t)geo->d_k);
    }
    s->total = total;
}
