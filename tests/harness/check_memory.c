/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a case: plain blocks, guarded blocks between inaccessible pages, things to be called on release;
 * and the fill patterns. One list, newest first, is released in that order.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "check_internal.h"
#include "gpu/on_device.h"

/* Pages that a test may touch, between two that it may not. On a device there are no such pages: they hold a canary. */
static unsigned char *map_pages(size_t inner, size_t page) {
#ifdef RSSM_TEST_CUDA
    return on_device_map(inner + 2 * page);
#else
    unsigned char *map =
        mmap(NULL, inner + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) {
        return NULL;
    }
    mprotect(map, page, PROT_NONE);
    mprotect(map + page + inner, page, PROT_NONE);
    return map;
#endif
}

static void unmap_pages(unsigned char *map, size_t bytes) {
#ifdef RSSM_TEST_CUDA
    on_device_unmap(map, bytes);
#else
    munmap(map, bytes);
#endif
}

typedef struct item {
    _Alignas(16) struct item *next; /* so that what follows an item is aligned as malloc's memory is */
    void (*fn)(void *);             /* deferred call, or NULL */
    void *arg;
    unsigned char *map; /* guarded block: the mapping, its size, and the caller's part of it */
    size_t map_bytes;
    unsigned char *data;
    size_t bytes;
} item;

static item *items;
static item *forgotten; /* keeps lost memory reachable, so that leak checkers stay quiet about it */

static item *new_item(size_t extra) {
    item *it = calloc(1, sizeof *it + extra);
    if (!it) {
        chk_abandon("the test ran out of memory (%zu bytes)", extra);
    }
    it->next = items;
    items = it;
    return it;
}

void *chk_alloc(size_t bytes) {
    return new_item(bytes + 1) + 1;
}

void chk_defer(void (*fn)(void *), void *arg) {
    item *it = new_item(0);
    it->fn = fn;
    it->arg = arg;
}

void chk_release(void) {
    while (items) {
        item *it = items;
        items = it->next;
        if (it->fn) {
            it->fn(it->arg);
        }
        if (it->map) {
            unmap_pages(it->map, it->map_bytes);
        }
        free(it);
    }
}

void *chk_memory_push(void) {
    item *outer = items;
    items = NULL;
    return outer;
}

void chk_memory_pop(void *outer) {
    items = outer;
}

void chk_memory_forget(void) {
    item **end = &items;
    while (*end) {
        end = &(*end)->next;
    }
    *end = forgotten;
    forgotten = items;
    items = NULL;
}

void *chk_guard(size_t bytes, size_t align, int side) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t inner = (bytes + page - 1) / page * page + (bytes == 0 ? page : 0);
    unsigned char *map = map_pages(inner, page);
    if (map == NULL) {
        chk_abandon("the test could not map %zu bytes", inner);
    }
    const size_t margin = CB_DEVICE ? page : 0;
    item *it = new_item(0);
    it->map = map;
    it->map_bytes = inner + 2 * page;
    it->bytes = bytes;
    it->data = map + page;
    if (side == CHK_RIGHT) {
        it->data += (inner - bytes) & ~(align - 1);
    }
    unsigned char *begin = map + page - margin, *end = map + page + inner + margin;
    chk_canary(begin, (size_t)(it->data - begin));
    chk_canary(it->data + bytes, (size_t)(end - (it->data + bytes)));
    chk_fill(it->data, bytes, CHK_AA);
    return it->data;
}

bool chk_guards_intact(void) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    bool ok = true;
    for (const item *it = items; it; it = it->next) {
        if (!it->map) {
            continue;
        }
        const size_t guard = CB_DEVICE ? 0 : page;
        const unsigned char *begin = it->map + guard, *end = it->map + it->map_bytes - guard;
        size_t at;
        if (!chk_canary_intact(begin, (size_t)(it->data - begin), &at)) {
            ok = chk_fail("wrote %zu bytes left of a block", (size_t)(it->data - begin) - at);
        }
        if (!chk_canary_intact(it->data + it->bytes, (size_t)(end - it->data) - it->bytes, &at)) {
            ok = chk_fail("wrote %zu bytes right of a block", at);
        }
    }
    return ok;
}

void chk_fill(void *data, size_t bytes, chk_poison poison) {
    static const unsigned char patterns[][2] = {
        [CHK_NAN] = {0xc0, 0x7f},        /* bf16 and (twice) f32: a quiet NaN */
        [CHK_SIGNALLING] = {0xa0, 0x7f}, /* a signalling one */
        [CHK_HUGE] = {0x61, 0x7f},       /* 3e38 */
        [CHK_AA] = {0xaa, 0xaa},
    };
    uint64_t pattern =
        (uint64_t)(patterns[poison][0] | patterns[poison][1] << 8) * UINT64_C(0x0001000100010001);
    unsigned char *p = data;
    size_t i = 0;
    for (; i + sizeof pattern <= bytes; i += sizeof pattern) {
        memcpy(p + i, &pattern, sizeof pattern);
    }
    memcpy(p + i, &pattern, bytes - i);
}

static unsigned char canary_byte(uintptr_t address) {
    return (unsigned char)(0x5bu ^ (address * 37u) ^ (address >> 8));
}

void chk_canary(void *data, size_t bytes) {
    unsigned char *p = data;
    for (size_t i = 0; i < bytes; i++) {
        p[i] = canary_byte((uintptr_t)(p + i));
    }
}

bool chk_canary_intact(const void *data, size_t bytes, size_t *first_bad) {
    const unsigned char *p = data;
    for (size_t i = 0; i < bytes; i++) {
        if (p[i] != canary_byte((uintptr_t)(p + i))) {
            if (first_bad) {
                *first_bad = i;
            }
            return false;
        }
    }
    return true;
}
