/* SPDX-License-Identifier: Apache-2.0 */
#include "context.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/kernels.h"
#include "device_ops.h"

/* Where a failed rssm_context_create(), which has no context, leaves its sentence. */
static _Thread_local char create_message[256];

rssm_status rssm_fail(rssm_context *context, rssm_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(context->message, sizeof context->message, format, args);
    va_end(args);
    rssm_log(context, RSSM_LOG_DEBUG, "%s: %s", rssm_status_string(status), context->message);
    return status;
}

void rssm_log(const rssm_context *context, int32_t level, const char *format, ...) {
    if (context->desc.log == NULL) {
        return;
    }
    char line[640];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    context->desc.log(context->desc.log_user, level, line);
}

void rssm_parallel(const rssm_context *context, int64_t n, rssm_task_fn task, void *arg) {
    if (context->desc.parallel != NULL && n > 1) {
        context->desc.parallel(context->desc.parallel_user, n, task, arg);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        task(arg, i);
    }
}

__attribute__((format(printf, 2, 3))) static rssm_status create_failed(rssm_status status, const char *format,
                                                                       ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(create_message, sizeof create_message, format, args);
    va_end(args);
    return status;
}

/* How much of a struct of `size` bytes a caller has that says `given`; 0: it cannot even say so. */
static size_t known_size(uint64_t given, size_t size) {
    return given == 0 || given > size ? size : given >= sizeof given ? (size_t)given : 0;
}

static rssm_status bad_size(const rssm_context *context, const char *name, uint64_t given) {
    return rssm_fail((rssm_context *)context, RSSM_ERROR_ARGUMENT,
                     "%s.struct_size is %llu; it must be 0 or the size of the struct, which is at least %zu", name,
                     (unsigned long long)given, sizeof given);
}

rssm_status rssm_copy_desc(const rssm_context *context, const char *name, void *to, size_t size, const void *from) {
    memset(to, 0, size);
    uint64_t given = 0;
    if (from != NULL) {
        memcpy(&given, from, sizeof given);
        size_t known = known_size(given, size);
        memcpy(to, from, known);
        return known > 0 ? RSSM_OK : bad_size(context, name, given);
    }
    return RSSM_OK;
}

rssm_status rssm_give_info(const rssm_context *context, void *info, void *out, size_t size) {
    uint64_t given;
    memcpy(&given, info, sizeof given);
    uint64_t known = known_size(given, size);
    if (known == 0) {
        return bad_size(context, "info", given);
    }
    memcpy(out, &known, sizeof known);
    memcpy(info, out, (size_t)known);
    return RSSM_OK;
}

rssm_status rssm_context_create(const rssm_context_desc *desc, rssm_context **context) {
    if (context == NULL) {
        return create_failed(RSSM_ERROR_ARGUMENT, "context is NULL");
    }
    *context = NULL;
    rssm_context_desc d;
    if (desc != NULL && desc->struct_size != 0 && known_size(desc->struct_size, sizeof d) == 0) {
        return create_failed(RSSM_ERROR_ARGUMENT,
                             "desc.struct_size is %llu; it must be 0 or the size of the struct, which is at least %zu",
                             (unsigned long long)desc->struct_size, sizeof desc->struct_size);
    }
    (void)!rssm_copy_desc(NULL, "desc", &d, sizeof d, desc);
#ifndef RSSM_BUILD_CUDA
    if (d.device == RSSM_DEVICE_CUDA) {
        return create_failed(RSSM_ERROR_UNSUPPORTED, "device is CUDA, which this build does not have");
    }
#endif
    if (d.device != RSSM_DEVICE_CPU && d.device != RSSM_DEVICE_CUDA) {
        return create_failed(RSSM_ERROR_ARGUMENT, "device is %d; known are 0 (CPU) and 1 (CUDA)", (int)d.device);
    }
    if (d.device == RSSM_DEVICE_CPU && d.device_index != 0) {
        return create_failed(RSSM_ERROR_ARGUMENT, "device_index is %d; the CPU has only 0", (int)d.device_index);
    }
    if (d.threads < 0 || d.threads > 4096) {
        return create_failed(RSSM_ERROR_ARGUMENT, "threads is %d; the limits are 0 and 4096", (int)d.threads);
    }
    rssm_context *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return create_failed(RSSM_ERROR_MEMORY, "no memory for a context of %zu bytes", sizeof *c);
    }
    if (d.threads == 0) {
        d.threads = 1;
    }
    c->desc = d;
    c->isa = rssm_isa_available() & (d.isa_mask == 0 ? UINT64_MAX : d.isa_mask);
    c->kernels = rssm_kernels_select(c->isa);
#ifdef RSSM_BUILD_CUDA
    rssm_status status = d.device == RSSM_DEVICE_CUDA ? rssm_cuda_open(c, create_message, sizeof create_message) : RSSM_OK;
    if (status != RSSM_OK) {
        free(c);
        return status;
    }
#endif
    rssm_log(c, RSSM_LOG_INFO, "replayssm %s, cpu kernels %s", rssm_version(), c->kernels->isa);
    *context = c;
    return RSSM_OK;
}

void rssm_context_destroy(rssm_context *context) {
    if (context != NULL && context->ops != NULL) {
        context->ops->close(context);
    }
    free(context);
}

const char *rssm_context_message(const rssm_context *context) {
    return context == NULL ? create_message : context->message;
}

uint64_t rssm_context_isa(const rssm_context *context) {
    return context->isa;
}
