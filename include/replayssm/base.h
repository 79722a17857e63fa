/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file base.h
 * What every part of the library shares: version, result codes, number formats, and the context.
 *
 * Conventions that hold for the whole API
 *  - Integers have a fixed width and enumerations are int32_t constants, so that every struct can be
 *    described to ctypes, cffi or TVM-FFI without a C compiler.
 *  - Descriptor structs are plain and valid when zeroed; zero in a field means its stated default. The first
 *    field, struct_size, is sizeof the struct as the caller was compiled (0 stands for the size of version
 *    0.1); fields are only ever appended.
 *  - The caller owns every tensor it passes. The library owns the handles it creates and the memory it was
 *    asked to allocate. Nothing passed to a call is kept after the call unless its text says so.
 *  - A function that fails changes nothing, unless its text says so, and leaves a sentence in the context that
 *    names the argument, its value and the limit.
 *  - A context, with the caches made in it, is used by one thread at a time. The exception is
 *    rssm_cache_decode_part(), which is there to be called from several threads at once.
 */
#ifndef REPLAYSSM_BASE_H
#define REPLAYSSM_BASE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RSSM_VERSION_MAJOR 0
#define RSSM_VERSION_MINOR 1
#define RSSM_VERSION_PATCH 0
/** Raised whenever a struct or the meaning of a call changes in a way that an old caller would notice. */
#define RSSM_ABI_VERSION 1

#if defined(_WIN32)
#define RSSM_API
#define RSSM_CHECKED
#else
#define RSSM_API __attribute__((visibility("default")))
#define RSSM_CHECKED __attribute__((warn_unused_result))
#endif

/** The ABI version of the library that is linked; compare with RSSM_ABI_VERSION. */
RSSM_API int32_t rssm_abi_version(void);
/** "0.1.0". Static storage. */
RSSM_API const char *rssm_version(void);

/* ---- Result codes ------------------------------------------------------------------------------------- */

/** Result of a call. Zero is success; the negative values are fixed for ever. */
typedef int32_t rssm_status;
enum {
    RSSM_OK = 0,
    RSSM_ERROR_ARGUMENT = -1,    /**< an argument is out of its stated range */
    RSSM_ERROR_UNSUPPORTED = -2, /**< a legal request that this build, device or shape cannot do */
    RSSM_ERROR_MEMORY = -3,      /**< memory could not be had */
    RSSM_ERROR_STATE = -4,       /**< the call is not legal now: no step open, slot not ready, memory not bound */
    RSSM_ERROR_FAILED_SLOT = -5, /**< a layer did not run a step that was committed; reset, import or adopt the slot */
    RSSM_ERROR_CORRUPT = -6,     /**< saved bytes are damaged or not ours */
    RSSM_ERROR_MISMATCH = -7,    /**< saved bytes belong to another layer spec */
    RSSM_ERROR_BUFFER = -8,      /**< the buffer handed in is too small */
    RSSM_ERROR_DEVICE = -9,      /**< the device or its driver reported a failure */
    RSSM_ERROR_INTERNAL = -10    /**< a fault of the library; please report it */
};
/** A few words for a status, e.g. "invalid argument". Static storage; unknown codes give "unknown status". */
RSSM_API const char *rssm_status_string(rssm_status status);

/* ---- Number formats ----------------------------------------------------------------------------------- */

/** Number formats of checkpoints, read copies, records, inputs and outputs. */
enum {
    RSSM_DTYPE_DEFAULT = 0, /**< the default of the field it stands in; as a read copy: none */
    RSSM_DTYPE_F32 = 1,
    RSSM_DTYPE_F16 = 2,
    RSSM_DTYPE_BF16 = 3,
    RSSM_DTYPE_F8 = 4,    /**< E4M3, one power-of-two scale per row of d_k */
    RSSM_DTYPE_INT8 = 5,  /**< one fp32 scale per row of d_k */
    RSSM_DTYPE_NVFP4 = 6, /**< E2M1 in blocks of 16 with E4M3 scales and one fp32 scale per slot and head */
    RSSM_DTYPE_U8 = 7     /**< opaque bytes, in layout queries */
};
/** "f32", "bf16", ...; "?" for an unknown value. Static storage. */
RSSM_API const char *rssm_dtype_name(int32_t dtype);

/* ---- Context ------------------------------------------------------------------------------------------ */

enum { RSSM_DEVICE_CPU = 0, RSSM_DEVICE_CUDA = 1 };

/** Instruction sets a CPU context may use, as bits: AVX2 with FMA and F16C; AVX-512 F, BW, DQ and VL. The portable code
 *  is always there. */
enum { RSSM_ISA_AVX2 = 1, RSSM_ISA_AVX512 = 2, RSSM_ISA_AVX512_BF16 = 4, RSSM_ISA_NEON = 8 };

enum { RSSM_LOG_ERROR = 0, RSSM_LOG_WARNING = 1, RSSM_LOG_INFO = 2, RSSM_LOG_DEBUG = 3 };

/** One piece of parallel work: called once for each index in [0, n), in any order, from any thread. */
typedef void (*rssm_task_fn)(void *arg, int64_t index);
/** Runs task(arg, i) for every i in [0, n) and returns when all are done. */
typedef void (*rssm_parallel_fn)(void *user, int64_t n, rssm_task_fn task, void *arg);
/** Receives one line of text without a newline. */
typedef void (*rssm_log_fn)(void *user, int32_t level, const char *text);

typedef struct rssm_context_desc {
    uint64_t struct_size;
    int32_t device;       /**< RSSM_DEVICE_*; CPU by default */
    int32_t device_index; /**< which device of that kind */
    uint64_t isa_mask;    /**< RSSM_ISA_* that may be used; 0: all that the machine has. UINT64_MAX also means all;
                               to have the portable code alone pass RSSM_ISA_NONE */
    int32_t threads;      /**< how many pieces parallel should be given to work on at once; 0: 1 */
    int32_t reserved;     /**< zero */
    rssm_parallel_fn parallel; /**< NULL: run in the calling thread. The library starts no threads */
    void *parallel_user;
    rssm_log_fn log; /**< NULL: silent */
    void *log_user;
} rssm_context_desc;

/** isa_mask for the portable code alone. */
#define RSSM_ISA_NONE (UINT64_C(1) << 63)

typedef struct rssm_context rssm_context;

/**
 * Creates a context. desc NULL means all defaults. The callbacks and their user pointers must outlive it.
 * @return RSSM_ERROR_ARGUMENT for an unknown device or a negative count, RSSM_ERROR_UNSUPPORTED for a device
 *         this build does not have, RSSM_ERROR_MEMORY. *context is NULL after a failure.
 */
RSSM_API RSSM_CHECKED rssm_status rssm_context_create(const rssm_context_desc *desc, rssm_context **context);
/** Destroys a context; its caches must be gone before. NULL is fine. */
RSSM_API void rssm_context_destroy(rssm_context *context);
/** The sentence left by the last failed call on this context or its caches; "" if none. Valid until the next
 *  call. For a NULL context: the sentence of the last failed rssm_context_create() of this thread. */
RSSM_API const char *rssm_context_message(const rssm_context *context);
/** The RSSM_ISA_* bits this context uses: what the machine has and the mask allows. */
RSSM_API uint64_t rssm_context_isa(const rssm_context *context);
/** The RSSM_ISA_* bits the machine and its operating system have. */
RSSM_API uint64_t rssm_isa_available(void);

#ifdef __cplusplus
}
#endif
#endif
