/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a cache's memory: their shapes, and where they lie. */
#include "cache.h"
#include "device_ops.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 16 };

static int64_t round_up(int64_t n) {
    return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void set_shape(rssm_part_info *info, int32_t dtype, int32_t rank, int64_t a, int64_t b, int64_t c) {
    info->dtype = dtype;
    info->rank = rank;
    info->shape[0] = a;
    info->shape[1] = b;
    info->shape[2] = c;
}

/* Of the read copy and its scales. */
static void set_copy_shape(rssm_part_info *info, const rssm_geometry *g, int32_t part) {
    const rssm_formats *f = &g->formats;
    const bool codes = part == RSSM_PART_READ_COPY;
    if (f->copy == RSSM_DTYPE_NVFP4) {
        set_shape(info, RSSM_DTYPE_U8, 2, g->value_heads, codes ? f->copy_head : f->scale_head, 0);
    } else if (codes && f->copy != RSSM_DTYPE_DEFAULT) {
        set_shape(info, f->copy, 3, g->value_heads, g->d_v, g->d_k);
    } else if (f->copy == RSSM_DTYPE_F8 || f->copy == RSSM_DTYPE_INT8) {
        set_shape(info, f->copy == RSSM_DTYPE_F8 ? RSSM_DTYPE_U8 : RSSM_DTYPE_F32, 2, g->value_heads, g->d_v, 0);
    }
}

void rssm_part_describe(const rssm_cache *cache, int32_t part, rssm_part_info *info) {
    static const char *const names[RSSM_PARTS] = {"cursor",   "layer_cursor",  "checkpoint",   "record_k",
                                                  "record_v", "record_scalar", "record_decay", "conv",
                                                  "read_copy", "read_scale",   "checkpoint_scale"};
    const rssm_geometry *g = &cache->geometry;
    const int32_t io = cache->desc.io_dtype, rows = g->rows.records;
    memset(info, 0, sizeof *info);
    info->part = part;
    info->name = names[part];
    info->per_layer = part != RSSM_PART_CURSOR;
    info->alignment = ALIGNMENT;
    switch (part) {
    case RSSM_PART_CURSOR:
        set_shape(info, RSSM_DTYPE_U8, 1, round_up((int64_t)sizeof(rssm_cursor)), 0, 0);
        break;
    case RSSM_PART_LAYER_CURSOR:
        set_shape(info, RSSM_DTYPE_U8, 1, round_up((int64_t)sizeof(rssm_layer_cursor)), 0, 0);
        break;
    case RSSM_PART_CHECKPOINT:
        set_shape(info, g->formats.checkpoint, 3, g->value_heads, g->d_v, g->d_k);
        break;
    case RSSM_PART_CHECKPOINT_SCALE:
        if (g->formats.checkpoint == RSSM_DTYPE_F8) {
            set_shape(info, RSSM_DTYPE_U8, 2, g->value_heads, g->d_v, 0);
        }
        break;
    case RSSM_PART_RECORD_K:
        set_shape(info, io, 3, g->key_heads, rows, g->d_k);
        break;
    case RSSM_PART_RECORD_V:
        set_shape(info, io, 3, g->value_heads, rows, g->d_v);
        break;
    case RSSM_PART_RECORD_SCALAR:
        set_shape(info, RSSM_DTYPE_F32, 2, g->channels, rows, 0);
        break;
    case RSSM_PART_RECORD_DECAY:
        if (g->vector_decay) {
            set_shape(info, g->raw_records ? io : RSSM_DTYPE_F32, 3, g->value_heads, rows, g->d_k);
        }
        break;
    case RSSM_PART_CONV:
        if (g->rows.conv > 0) {
            set_shape(info, io, 2, g->rows.conv, g->conv_channels, 0);
        }
        break;
    default:
        set_copy_shape(info, g, part);
    }
    int64_t elements = info->rank > 0;
    for (int32_t i = 0; i < info->rank; i++) {
        elements *= info->shape[i];
    }
    info->bytes = round_up(elements * rssm_dtype_bytes(info->dtype));
}

rssm_status rssm_cache_layout(const rssm_cache *cache, int32_t part, rssm_part_info *info) {
    if (part < 0 || part >= RSSM_PARTS || info == NULL) {
        return rssm_fail(cache->context, RSSM_ERROR_ARGUMENT, "part is %d, info is %s; parts are 0 to %d", (int)part,
                         info == NULL ? "NULL" : "given", RSSM_PARTS - 1);
    }
    rssm_part_describe(cache, part, info);
    return RSSM_OK;
}

int64_t rssm_cache_slot_bytes(const rssm_cache *cache) {
    int64_t total = 0;
    for (int32_t part = 0; part < RSSM_PARTS; part++) {
        rssm_part_info info;
        rssm_part_describe(cache, part, &info);
        total += info.bytes * (info.per_layer ? cache->desc.layers : 1);
    }
    return total;
}

rssm_status rssm_cache_allocate(rssm_cache *cache) {
    int64_t slots = cache->desc.slots, total;
    if (cache->memory != NULL) {
        return rssm_fail(cache->context, RSSM_ERROR_STATE, "the cache has allocated its memory already");
    }
    if (__builtin_mul_overflow(rssm_cache_slot_bytes(cache), slots, &total)) {
        return rssm_fail(cache->context, RSSM_ERROR_MEMORY, "%lld slots of %lld bytes are beyond 64 bits",
                         (long long)slots, (long long)rssm_cache_slot_bytes(cache));
    }
    const rssm_device_ops *ops = cache->context->ops;
    if (ops != NULL) {
        RSSM_TRY(ops->allocate(cache, total + 64, &cache->memory));
    } else {
        RSSM_TRY(rssm_cache_prepare(cache, 64, cache->context->desc.threads));
        cache->memory = calloc((size_t)total + 64, 1);
    }
    if (cache->memory == NULL) {
        return rssm_fail(cache->context, RSSM_ERROR_MEMORY, "no memory for %lld slots of %lld bytes", (long long)slots,
                         (long long)rssm_cache_slot_bytes(cache));
    }
    char *at = cache->memory + (64 - (uintptr_t)cache->memory % 64) % 64;
    for (int32_t layer = 0; layer < cache->desc.layers; layer++) {
        for (int32_t part = 0; part < RSSM_PARTS; part++) {
            rssm_part_info info;
            rssm_part_describe(cache, part, &info);
            if (info.rank == 0 || (!info.per_layer && layer > 0)) {
                continue;
            }
            cache->parts[(int64_t)layer * RSSM_PARTS + part] = (rssm_part){at, info.bytes};
            at += info.bytes * slots;
        }
    }
    cache->sealed = ops == NULL;
    return ops != NULL ? rssm_cache_prepare(cache, 64, 0) : RSSM_OK;
}

rssm_status rssm_cache_bind(rssm_cache *cache, int32_t layer, int32_t part, void *base, int64_t slot_stride) {
    rssm_context *context = cache->context;
    rssm_part_info info;
    RSSM_TRY(rssm_cache_layout(cache, part, &info));
    int32_t layers = info.per_layer ? cache->desc.layers : 1;
    if (layer < 0 || layer >= layers) {
        return rssm_fail(context, RSSM_ERROR_ARGUMENT, "layer of part %s is %d; the limits are 0 and %d", info.name,
                         (int)layer, (int)layers - 1);
    }
    if (info.rank == 0) {
        return rssm_fail(context, RSSM_ERROR_ARGUMENT, "part %s does not exist in this cache", info.name);
    }
    if ((uintptr_t)base % ALIGNMENT != 0 || slot_stride % ALIGNMENT != 0) {
        return rssm_fail(context, RSSM_ERROR_ARGUMENT, "part %s: base %p and slot_stride %lld must be multiples of %d",
                         info.name, base, (long long)slot_stride, ALIGNMENT);
    }
    if (base != NULL && slot_stride < info.bytes) {
        return rssm_fail(context, RSSM_ERROR_ARGUMENT, "part %s: slot_stride is %lld, below the %lld bytes of a slot",
                         info.name, (long long)slot_stride, (long long)info.bytes);
    }
    cache->parts[(int64_t)layer * RSSM_PARTS + part] = (rssm_part){base, base == NULL ? 0 : slot_stride};
    cache->sealed = false;
    return RSSM_OK;
}

/* ---- Checking what was bound -------------------------------------------------------------------------- */

typedef struct range {
    char *base;
    int64_t stride, bytes;
    int32_t layer, part;
} range;

static int by_base(const void *a, const void *b) {
    const range *x = a, *y = b;
    return (x->base > y->base) - (x->base < y->base);
}

/* Two parts whose address ranges intersect lie in common pages: they must have one stride and stay apart within it. */
static bool overlap(const range *a, const range *b, int64_t slots) {
    int64_t distance = b->base - a->base; /* >= 0 */
    if (distance >= a->stride * (slots - 1) + a->bytes) {
        return false;
    }
    if (a->stride != b->stride) {
        return true;
    }
    int64_t within = distance % a->stride;
    return within < a->bytes || within + b->bytes > a->stride;
}

rssm_status rssm_cache_check_memory(rssm_cache *cache) {
    if (cache->sealed) {
        return RSSM_OK;
    }
    int32_t count = 0, layers = cache->desc.layers;
    rssm_status status = RSSM_OK;
    range *ranges = malloc((size_t)layers * RSSM_PARTS * sizeof *ranges);
    if (ranges == NULL) {
        return rssm_fail(cache->context, RSSM_ERROR_MEMORY, "no memory to check %d layers", (int)layers);
    }
    for (int32_t layer = 0; layer < layers && status == RSSM_OK; layer++) {
        for (int32_t part = 0; part < RSSM_PARTS; part++) {
            rssm_part_info info;
            rssm_part_describe(cache, part, &info);
            if (info.rank == 0 || (!info.per_layer && layer > 0)) {
                continue;
            }
            const rssm_part *p = &cache->parts[(int64_t)layer * RSSM_PARTS + part];
            if (p->base == NULL) {
                status = rssm_fail(cache->context, RSSM_ERROR_STATE, "part %s of layer %d is bound to no memory",
                                   info.name, (int)layer);
                break;
            }
            ranges[count++] = (range){p->base, p->stride, info.bytes, layer, part};
        }
    }
    qsort(ranges, (size_t)count, sizeof *ranges, by_base);
    for (int32_t i = 0; i < count && status == RSSM_OK; i++) {
        for (int32_t j = i + 1; j < count; j++) {
            if (ranges[j].base - ranges[i].base >= ranges[i].stride * cache->desc.slots) {
                break; /* sorted: the rest lies beyond too */
            }
            if (overlap(&ranges[i], &ranges[j], cache->desc.slots)) {
                status = rssm_fail(cache->context, RSSM_ERROR_ARGUMENT,
                                   "part %d of layer %d and part %d of layer %d overlap, or interleave with unlike slot "
                                   "strides %lld and %lld",
                                   (int)ranges[i].part, (int)ranges[i].layer, (int)ranges[j].part, (int)ranges[j].layer,
                                   (long long)ranges[i].stride, (long long)ranges[j].stride);
                break;
            }
        }
    }
    free(ranges);
    if (status == RSSM_OK && cache->context->ops != NULL) {
        status = cache->context->ops->seal(cache);
    }
    cache->sealed = status == RSSM_OK;
    return status;
}
