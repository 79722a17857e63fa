/* SPDX-License-Identifier: Apache-2.0 */
/* The context, and how functions of the library fail. */
#ifndef RSSM_CONTEXT_H
#define RSSM_CONTEXT_H

#include "replayssm/base.h"

struct rssm_kernels;
struct rssm_device_ops;

struct rssm_context {
    rssm_context_desc desc; /* with defaults filled in */
    uint64_t isa;
    const struct rssm_kernels *kernels; /* the newest variant that isa allows */
    const struct rssm_device_ops *ops; /* NULL: the CPU */
    void *device;                      /* of ops */
    char message[512];
};

/* Leaves a sentence in the context and returns status. */
rssm_status rssm_fail(rssm_context *context, rssm_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* One line to the log callback, if there is one. */
void rssm_log(const rssm_context *context, int32_t level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Runs task over [0, n) by the caller's parallel-for, or here. */
void rssm_parallel(const rssm_context *context, int64_t n, rssm_task_fn task, void *arg);

/* A caller's descriptor, of any size that has its struct_size, as this version knows it: what it lacks is zero. NULL gives
   zeros. `name` is that of the argument. */
rssm_status rssm_copy_desc(const rssm_context *context, const char *name, void *to, size_t size, const void *from);
/* The other way: as much of an answer as the caller's struct has room for; out begins with a struct_size, too. */
rssm_status rssm_give_info(const rssm_context *context, void *info, void *out, size_t size);

#define RSSM_TRY(call)                                                                                       \
    do {                                                                                                     \
        rssm_status rssm_try_ = (call);                                                                      \
        if (rssm_try_ != RSSM_OK) {                                                                          \
            return rssm_try_;                                                                                \
        }                                                                                                    \
    } while (0)

#endif
