/* SPDX-License-Identifier: Apache-2.0 */
/* Versions and the names of codes. */
#include "replayssm/base.h"

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

int32_t rssm_abi_version(void) {
    return RSSM_ABI_VERSION;
}

const char *rssm_version(void) {
    return TEXT(RSSM_VERSION_MAJOR) "." TEXT(RSSM_VERSION_MINOR) "." TEXT(RSSM_VERSION_PATCH);
}

const char *rssm_status_string(rssm_status status) {
    static const char *const names[] = {
        "success",     "invalid argument", "unsupported",     "out of memory",  "illegal in this state",
        "failed slot", "corrupt data",     "mismatched data", "buffer too small", "device failure",
        "internal fault",
    };
    if (status > 0 || status < RSSM_ERROR_INTERNAL) {
        return "unknown status";
    }
    return names[-status];
}

const char *rssm_dtype_name(int32_t dtype) {
    static const char *const names[] = {"default", "f32", "f16", "bf16", "f8", "int8", "nvfp4", "u8"};
    if (dtype < 0 || dtype > RSSM_DTYPE_U8) {
        return "?";
    }
    return names[dtype];
}
