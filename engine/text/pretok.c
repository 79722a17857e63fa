/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matching by PCRE2 with its compiler. Limits on steps and memory bound what a pattern from a file can cost; a
 * match that outgrows the stack of compiled code is done again by the interpreter, which has the heap.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pretok.h"

#include "text/pattern.h"

#include <pcre2.h>
#include <string.h>

enum { MATCH_LIMIT = 200000000, HEAP_LIMIT_KIB = 1 << 20, STACK_START = 1 << 15, STACK_MAX = 1 << 20 };

const char rse_pretok_gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static rse_status compile(const rse_text *pattern, pcre2_code **code, rse_error *err) {
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (context == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory to compile the pre-tokenizer pattern");
    }
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    int number;
    PCRE2_SIZE offset;
    *code = pcre2_compile((PCRE2_SPTR)pattern->data, pattern->length, PCRE2_UTF | PCRE2_UCP, &number, &offset,
                          context);
    pcre2_compile_context_free(context);
    if (*code == NULL) {
        PCRE2_UCHAR what[160];
        pcre2_get_error_message(number, what, sizeof what);
        return rse_fail(err, RSE_ERROR_UNSUPPORTED,
                        "the pre-tokenizer pattern, as translated, fails at byte %zu: %s", (size_t)offset,
                        (const char *)what);
    }
    pcre2_jit_compile(*code, PCRE2_JIT_COMPLETE); /* without it matching is slower, not different */
    return RSE_OK;
}

rse_status rse_pretok_append(rse_pretok *pretok, const char *pattern, size_t length, rse_error *err) {
    if (pretok->count == RSE_PRETOK_PATTERNS) {
        return rse_fail(err, RSE_ERROR_UNSUPPORTED, "the pre-tokenizer has more than %d patterns",
                        RSE_PRETOK_PATTERNS);
    }
    rse_text translated = {0};
    rse_status status = rse_text_append(&translated, "", 0, err);
    if (status == RSE_OK) {
        status = rse_pattern_translate(pattern, length, &translated, err);
    }
    if (status == RSE_OK) {
        status = compile(&translated, &pretok->patterns[pretok->count], err);
    }
    pretok->count += status == RSE_OK;
    rse_text_free(&translated);
    return status;
}

void rse_pretok_free(rse_pretok *pretok) {
    for (int32_t i = 0; i < pretok->count; ++i) {
        pcre2_code_free(pretok->patterns[i]);
    }
    *pretok = (rse_pretok){0};
}

rse_status rse_pretok_work_init(rse_pretok_work *work, rse_error *err) {
    *work = (rse_pretok_work){pcre2_match_data_create(1, NULL), pcre2_match_context_create(NULL),
                              pcre2_jit_stack_create(STACK_START, STACK_MAX, NULL)};
    if (work->match == NULL || work->context == NULL) {
        rse_pretok_work_free(work);
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory to split a text");
    }
    pcre2_set_match_limit(work->context, MATCH_LIMIT);
    pcre2_set_heap_limit(work->context, HEAP_LIMIT_KIB);
    if (work->stack != NULL) { /* NULL where PCRE2 has no compiler */
        pcre2_jit_stack_assign(work->context, NULL, work->stack);
    }
    return RSE_OK;
}

void rse_pretok_work_free(rse_pretok_work *work) {
    pcre2_match_data_free(work->match);
    pcre2_match_context_free(work->context);
    pcre2_jit_stack_free(work->stack);
    *work = (rse_pretok_work){0};
}

rse_status rse_pretok_next(const rse_pretok *pretok, int32_t index, rse_pretok_work *work, const char *text,
                           size_t length, size_t from, size_t *begin, size_t *end, rse_error *err) {
    const pcre2_code *code = pretok->patterns[index];
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int found = pcre2_match(code, subject, length, from, PCRE2_NO_UTF_CHECK, work->match, work->context);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
        uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT;
        found = pcre2_match(code, subject, length, from, options, work->match, work->context);
    }
    if (found == PCRE2_ERROR_NOMATCH) {
        *begin = *end = length;
        return RSE_OK;
    }
    if (found < 0) {
        PCRE2_UCHAR what[160];
        pcre2_get_error_message(found, what, sizeof what);
        return rse_fail(err, RSE_ERROR_UNSUPPORTED,
                        "the pre-tokenizer pattern fails on this text from byte %zu on: %s", from,
                        (const char *)what);
    }
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(work->match);
    *begin = range[0];
    *end = range[1];
    return RSE_OK;
}
