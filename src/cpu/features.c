/* SPDX-License-Identifier: Apache-2.0 */
/* What the processor has and the operating system saves. Built without instruction set flags. */
#include "replayssm/base.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>

/* XCR0: which register files the operating system saves and restores. */
static uint64_t saved_registers(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

uint64_t rssm_isa_available(void) {
    enum { FMA = 1 << 12, F16C = 1 << 29, OSXSAVE = 1 << 27, AVX2 = 1 << 5 };
    enum { AVX512F = 1 << 16, AVX512DQ = 1 << 17, AVX512BW = 1 << 30, AVX512_BF16 = 1 << 5 };
    const uint32_t avx512vl = UINT32_C(1) << 31;
    const uint64_t ymm = 0x6, zmm = 0xe6;
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & OSXSAVE) == 0 || (c & FMA) == 0 || (c & F16C) == 0) {
        return 0;
    }
    uint64_t saved = saved_registers();
    if ((saved & ymm) != ymm || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || (b & AVX2) == 0) {
        return 0;
    }
    uint64_t isa = RSSM_ISA_AVX2;
    const uint32_t needed = (uint32_t)(AVX512F | AVX512DQ | AVX512BW) | avx512vl;
    if ((saved & zmm) == zmm && (b & needed) == needed) {
        isa |= RSSM_ISA_AVX512;
        if (__get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & AVX512_BF16) != 0) {
            isa |= RSSM_ISA_AVX512_BF16;
        }
    }
    return isa;
}
#elif defined(__aarch64__)
uint64_t rssm_isa_available(void) {
    return RSSM_ISA_NEON; /* part of the architecture */
}
#else
uint64_t rssm_isa_available(void) {
    return 0;
}
#endif
