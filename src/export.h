/* SPDX-License-Identifier: Apache-2.0 */
/* The saved form of a slot, shared by export.c and import.c; export.c has the drawing. */
#ifndef RSSM_EXPORT_H
#define RSSM_EXPORT_H

#include "cache.h"

#define RSSM_SAVED_MAGIC UINT64_C(0x544f4c534d535352) /* "RSSMSLOT" */
enum { RSSM_SAVED_VERSION = 1 };

typedef struct rssm_saved {
    uint64_t magic;
    uint32_t version;
    uint32_t flags; /* RSSM_EXPORT_* */
    int64_t bytes;  /* of everything, checksum included */
    /* identity: must be the reading cache's, or hold its heads */
    int32_t kind, key_heads, value_heads, total_key_heads, total_value_heads, first_key_head, first_value_head;
    int32_t d_k, d_v, head_map, conv_width, l2, layers;
    /* formats */
    int32_t io_dtype, checkpoint_dtype, raw_records;
    /* standing */
    int32_t window, history, held;
    float qk_norm_eps, gate_lower_bound;
    int32_t reserved;
    int64_t position;
    uint64_t id;
} rssm_saved;

/* Offsets of a layer's sections within the layer, and of the first layer within the whole. */
typedef struct rssm_sections {
    int64_t state, exponent, k, v, scalar, decay, conv, layer_bytes, first_layer, total;
} rssm_sections;

void rssm_saved_sections(const rssm_saved *saved, rssm_sections *out);
uint64_t rssm_checksum(const void *data, int64_t bytes);
/* [heads][rows][columns] -> [heads][columns][rows], elements of `width` bytes */
void rssm_transpose_states(char *to, const char *from, int64_t heads, int64_t rows, int64_t columns, int64_t width);

#endif
