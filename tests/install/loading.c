/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading the library, and using it, leaves the caller's floating-point environment alone: rounding mode,
 * exception masks, and the bits that flush subnormal numbers to zero, which objects linked with fast-math
 * switch on as they are loaded.
 *
 * usage: loading LIBRARY
 */
#include <replayssm/replayssm.h>

#include <dlfcn.h>
#include <float.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

/* Control bits only: the sticky exception flags may change. */
static uint32_t float_control(void) {
#if defined(__x86_64__)
    return _mm_getcsr() & 0xffc0u;
#elif defined(__aarch64__)
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    return (uint32_t)fpcr;
#else
    volatile float least = FLT_MIN;
    return least / 2.0f > 0.0f;
#endif
}

/* Functions out of data pointers, the way POSIX says it works. */
#define LOOK_UP(function)                                                                                      \
    do {                                                                                                       \
        void *symbol = dlsym(library, "rssm_" #function);                                                      \
        if (symbol == NULL) {                                                                                  \
            printf("no rssm_%s\n", #function);                                                                 \
            return 1;                                                                                          \
        }                                                                                                      \
        memcpy(&function, &symbol, sizeof symbol);                                                             \
    } while (0)

int main(int argc, char **argv) {
    uint32_t before = float_control();
    void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (library == NULL) {
        printf("%s\n", argc == 2 ? dlerror() : "usage: loading LIBRARY");
        return 1;
    }
    uint32_t loaded = float_control();

    int32_t (*abi_version)(void);
    rssm_status (*context_create)(const rssm_context_desc *, rssm_context **);
    void (*context_destroy)(rssm_context *);
    LOOK_UP(abi_version);
    LOOK_UP(context_create);
    LOOK_UP(context_destroy);
    rssm_context *context;
    if (abi_version() != RSSM_ABI_VERSION || context_create(NULL, &context) != RSSM_OK) {
        printf("the library does not work\n");
        return 1;
    }
    context_destroy(context);
    uint32_t used = float_control();
    printf("floating-point control: %08x before, %08x loaded, %08x used\n", (unsigned)before, (unsigned)loaded,
           (unsigned)used);
    return before != loaded || before != used;
}
