/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses among the variants of kernels.def. Built without instruction set flags. */
#include "cpu/kernels.h"

#define RSSM_CPU(isa, needs) extern const rssm_kernels rssm_kernels_##isa;
#include "kernels.def"

const rssm_kernels *rssm_kernels_select(uint64_t isa) {
    const rssm_kernels *best = NULL;
#define RSSM_CPU(name, needs_)                                                                               \
    if ((isa & (uint64_t)(needs_)) == (uint64_t)(needs_)) {                                                  \
        best = &rssm_kernels_##name;                                                                         \
    }
#include "kernels.def"
    return best;
}

/* One table for each of kinds, formats and sets, joined by comparing; the names must outlive every cache. */
const char *rssm_kernel_name(const rssm_kernels *kernels, int32_t kind, const rssm_formats *formats, int32_t io_dtype) {
#define NAME_(set, kind_name, kind_value, text, checkpoint_value, copy_value, io_name, io_value)             \
    if (kernels == &rssm_kernels_##set && kind == (kind_value) && formats->checkpoint == (checkpoint_value) && \
        formats->copy == (copy_value) && io_dtype == (io_value)) {                                           \
        return #kind_name "_decode_" #set "_" text "_" #io_name;                                             \
    }
#define IOS_(set, name, kind, text, checkpoint, copy)                                                        \
    NAME_(set, name, kind, text, checkpoint, copy, f32, RSSM_DTYPE_F32)                                      \
    NAME_(set, name, kind, text, checkpoint, copy, bf16, RSSM_DTYPE_BF16)
#define COPIES_(set, name, kind, text, checkpoint)                                                           \
    IOS_(set, name, kind, text, checkpoint, RSSM_DTYPE_DEFAULT)                                              \
    IOS_(set, name, kind, text "_f16", checkpoint, RSSM_DTYPE_F16)                                           \
    IOS_(set, name, kind, text "_bf16", checkpoint, RSSM_DTYPE_BF16)                                         \
    IOS_(set, name, kind, text "_f8", checkpoint, RSSM_DTYPE_F8)                                             \
    IOS_(set, name, kind, text "_int8", checkpoint, RSSM_DTYPE_INT8)                                         \
    IOS_(set, name, kind, text "_nvfp4", checkpoint, RSSM_DTYPE_NVFP4)
#define FORMATS_(set, name, kind)                                                                            \
    COPIES_(set, name, kind, "f32", RSSM_DTYPE_F32)                                                          \
    COPIES_(set, name, kind, "f16", RSSM_DTYPE_F16)                                                          \
    COPIES_(set, name, kind, "bf16", RSSM_DTYPE_BF16)                                                        \
    COPIES_(set, name, kind, "f8", RSSM_DTYPE_F8)
#define KINDS_(set)                                                                                          \
    FORMATS_(set, mamba2, RSSM_MAMBA2)                                                                       \
    FORMATS_(set, gdn, RSSM_GDN)                                                                             \
    FORMATS_(set, kda, RSSM_KDA)
#define RSSM_CPU(name, needs_) KINDS_(name)
#include "kernels.def"
    return "unknown";
}
