/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file replayssm.h
 * libreplayssm: decoding of state-space and delta-rule layers (Mamba-2, Gated DeltaNet, Kimi Delta Attention) with
 * ReplaySSM.
 *
 * Such a layer keeps a fixed-size state per sequence. Conventional decoding reads and writes all of it for every
 * token. Here the state is a *checkpoint* plus a short *buffer* of the inputs of recent tokens (*records*). A step
 * computes its outputs from both; the checkpoint is written once per *window* of L tokens; drafts are rolled back by
 * moving a pointer, and T of them are verified with one read of the checkpoint. Records are the layer's inputs bit
 * for bit, so after each flush the checkpoint equals, bit for bit, the state that conventional decoding has there.
 *
 * A complete use, in order of need:
 * @code
 *     rssm_context *ctx;
 *     rssm_context_create(NULL, &ctx);
 *
 *     rssm_layer_spec spec = {.struct_size = sizeof spec, .kind = RSSM_GDN, .key_heads = 16, .value_heads = 32,
 *                             .d_k = 128, .d_v = 128, .conv_width = 4, .out_norm = RSSM_OUT_NORM_HEAD_SILU};
 *     rssm_cache_desc desc = {.struct_size = sizeof desc, .spec = &spec, .layers = 24, .slots = 64};
 *     rssm_cache *cache;
 *     rssm_cache_create(ctx, &desc, &cache);
 *     rssm_cache_allocate(cache);                      // or rssm_cache_bind() each part into a page pool
 *     for (int l = 0; l < 24; l++) rssm_cache_set_weights(cache, l, &weights[l]);
 *
 *     rssm_cache_reset(cache, 1, &slot, &sequence_id, NULL, NULL);
 *
 *     // the prompt: a step with a prefill row
 *     rssm_batch prompt = {.struct_size = sizeof prompt, .rows = 1, .slots = &slot, .offsets = (int32_t[]){0, n},
 *                          .prefill = (uint8_t[]){1}};
 *     rssm_cache_begin(cache, &prompt, NULL, NULL, NULL);
 *     for each layer: rssm_cache_prefill(cache, l, &prompt, &inputs, &out, NULL);
 *
 *     // decoding: commit the last step and plan the next in one call, then every layer
 *     rssm_batch step = {.struct_size = sizeof step, .rows = 1, .slots = &slot};
 *     int32_t accepted = 1;
 *     rssm_cache_begin(cache, &step, &accepted, NULL, NULL);
 *     for each layer: rssm_cache_decode(cache, l, &step, &inputs, &out, NULL);
 * @endcode
 *
 * Drafts are a step of T tokens; `accepted` of the next begin says how many of them stay.
 */
#ifndef REPLAYSSM_REPLAYSSM_H
#define REPLAYSSM_REPLAYSSM_H

#include "replayssm/base.h"
#include "replayssm/cache.h"

#endif
