/* SPDX-License-Identifier: Apache-2.0 */
#include "arena.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

static const size_t huge = (size_t)2 << 20;

rse_status bench_arena_reserve(bench_arena *arena, size_t bytes, rse_error *err) {
    if (arena->bytes >= bytes) {
        return RSE_OK;
    }
    bench_arena_free(arena);
    size_t rounded = (bytes + huge - 1) / huge * huge;
    void *mapping = mmap(NULL, rounded + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for %zu MiB of benchmark buffers", rounded >> 20);
    }
    uintptr_t start = ((uintptr_t)mapping + huge - 1) / huge * huge;
    *arena = (bench_arena){(unsigned char *)start, rounded, mapping, rounded + huge};
#ifdef MADV_HUGEPAGE
    (void)madvise(arena->base, rounded, MADV_HUGEPAGE); /* a wish: without it all is slower alike */
#endif
    memset(arena->base, 0, rounded);
    return RSE_OK;
}

void bench_arena_free(bench_arena *arena) {
    if (arena->mapping != NULL) {
        munmap(arena->mapping, arena->mapped);
    }
    *arena = (bench_arena){0};
}
