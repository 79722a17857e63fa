/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pre-tokenizer patterns are written for Oniguruma; PCRE2 reads most of them alike, some constructs silently
 * otherwise. The translation knows a list of constructs, rewrites those that differ, and refuses the rest.
 */
#ifndef RSE_PATTERN_H
#define RSE_PATTERN_H

#include "base/buffer.h"

/* Appends to out the pattern for PCRE2 (UTF and UCP) that splits as Oniguruma would. RSE_ERROR_UNSUPPORTED
 * names the construct and where it stands. */
rse_status rse_pattern_translate(const char *pattern, size_t length, rse_text *out, rse_error *err);

#endif
