/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is rewritten, and why:
 *   \s, \S        by the property White_Space; PCRE2's own \s also takes U+180E
 *   \p{Han}       \p{sc:Han}: without it PCRE2 matches scripts by extension, and U+3002 would be Han
 *   [A&&[^B]]     (?:(?![B])[A]): PCRE2 reads && as two ampersands
 *   \uHHHH        \x{HHHH}
 * Everything that is not on the list below is refused: a pattern that splits a little differently makes a
 * model quietly worse.
 */
#include "text/pattern.h"

#include <stdbool.h>
#include <string.h>

typedef struct reader {
    const char *pattern;
    size_t length;
    size_t at;
    rse_text *out;
    rse_error *err;
} reader;

static rse_status refuse(const reader *r, size_t at, const char *what) {
    return rse_fail(r->err, RSE_ERROR_UNSUPPORTED,
                    "the pre-tokenizer pattern has %s at byte %zu, which is not supported", what, at);
}

static rse_status put(reader *r, const char *text, size_t length) {
    return rse_text_append(r->out, text, length, r->err);
}

/* The byte `ahead` of the current one; NUL beyond the end (a NUL inside is never special). */
static char peek(const reader *r, size_t ahead) {
    return r->at + ahead < r->length ? r->pattern[r->at + ahead] : '\0';
}

static bool starts(const reader *r, const char *text) {
    size_t n = strlen(text);
    return n <= r->length - r->at && memcmp(r->pattern + r->at, text, n) == 0;
}

static bool is_hex(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static bool is_word(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_category(const char *name, size_t length) {
    static const char *const categories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc",
                                             "Me", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps",
                                             "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So",
                                             "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Cn", "Co"};
    for (size_t i = 0; i < sizeof categories / sizeof categories[0]; ++i) {
        if (strlen(categories[i]) == length && memcmp(categories[i], name, length) == 0) {
            return true;
        }
    }
    return false;
}

/* \p{Name}, \P{Name}, \p{^Name}: a general category, else a script. */
static rse_status property(reader *r) {
    size_t begin = r->at + 3;
    bool negated = peek(r, 3) == '^';
    size_t name = begin + negated;
    size_t end = name;
    while (end < r->length && is_word(r->pattern[end])) {
        ++end;
    }
    if (peek(r, 2) != '{' || end == name || end == r->length || r->pattern[end] != '}') {
        return refuse(r, r->at, "a property other than \\p{Name}");
    }
    bool category = is_category(r->pattern + name, end - name);
    RSE_TRY(rse_text_print(r->out, r->err, "\\%c{%s%s%.*s}", peek(r, 1), negated ? "^" : "",
                           category ? "" : "sc:", (int)(end - name), r->pattern + name));
    r->at = end + 1;
    return RSE_OK;
}

static rse_status hexadecimal(reader *r) {
    size_t digits = 0;
    if (peek(r, 1) == 'u') {
        while (digits < 4 && is_hex(peek(r, 2 + digits))) {
            ++digits;
        }
        if (digits == 4) {
            RSE_TRY(rse_text_print(r->out, r->err, "\\x{%.4s}", r->pattern + r->at + 2));
            r->at += 6;
            return RSE_OK;
        }
    } else if (peek(r, 2) == '{') {
        while (is_hex(peek(r, 3 + digits))) {
            ++digits;
        }
        if (digits > 0 && peek(r, 3 + digits) == '}') {
            RSE_TRY(put(r, r->pattern + r->at, 4 + digits));
            r->at += 4 + digits;
            return RSE_OK;
        }
    }
    return refuse(r, r->at, "a code point other than \\uHHHH or \\x{H...}");
}

/* At a backslash, inside a class or outside: both have the same escapes here. */
static rse_status escape(reader *r) {
    char c = peek(r, 1);
    if (c == 'p' || c == 'P') {
        return property(r);
    }
    if (c == 'u' || c == 'x') {
        return hexadecimal(r);
    }
    if (c == 's' || c == 'S') {
        r->at += 2;
        return put(r, c == 's' ? "\\p{wspace}" : "\\P{wspace}", 10);
    }
    bool plain = c != '\0' && strchr("rntfdD", c) != NULL;
    if (!plain && (c <= ' ' || c > '~' || is_word(c))) {
        char what[] = "the escape \\?";
        what[sizeof what - 2] = c > ' ' && c <= '~' ? c : '?';
        return refuse(r, r->at, what);
    }
    RSE_TRY(put(r, r->pattern + r->at, 2));
    r->at += 2;
    return RSE_OK;
}

/* The members of a class up to its bracket or to &&, which stay unread. */
static rse_status class_members(reader *r) {
    size_t begin = r->at;
    while (r->at < r->length && !(peek(r, 0) == ']' && r->at > begin) && !starts(r, "&&")) {
        char c = peek(r, 0);
        if (c == '\\') {
            RSE_TRY(escape(r));
        } else if (c == '[' || c == ']') {
            return refuse(r, r->at, "an unescaped bracket in a class");
        } else {
            RSE_TRY(put(r, &r->pattern[r->at++], 1));
        }
    }
    return r->at < r->length ? RSE_OK : refuse(r, begin, "a class without an end");
}

/* At "&&" of [A&&[^B]], of which "[A" is out, from byte `open` of it on. */
static rse_status class_difference(reader *r, size_t open) {
    if (!starts(r, "&&[^") || r->out->data[open + 1] == '^') {
        return refuse(r, r->at, "&& in a class other than as [A&&[^B]]");
    }
    r->at += 4;
    rse_text members = {0};
    rse_status status = rse_text_append(&members, r->out->data + open, r->out->length - open, r->err);
    r->out->length = open;
    if (status == RSE_OK) {
        status = put(r, "(?:(?![", 7);
    }
    if (status == RSE_OK) {
        status = class_members(r);
    }
    if (status == RSE_OK && !starts(r, "]]")) {
        status = refuse(r, r->at, "&& in a class other than as [A&&[^B]]");
    }
    if (status == RSE_OK) {
        r->at += 2;
        status = rse_text_print(r->out, r->err, "])%s])", members.data);
    }
    rse_text_free(&members);
    return status;
}

static rse_status class(reader *r) {
    size_t open = r->out->length;
    RSE_TRY(put(r, &r->pattern[r->at++], 1));
    if (peek(r, 0) == '^') {
        RSE_TRY(put(r, &r->pattern[r->at++], 1));
    }
    RSE_TRY(class_members(r));
    if (starts(r, "&&")) {
        return class_difference(r, open);
    }
    return put(r, &r->pattern[r->at++], 1);
}

static rse_status group(reader *r) {
    static const char *const known[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    if (peek(r, 1) == '*') {
        return refuse(r, r->at, "(*");
    }
    if (peek(r, 1) != '?') {
        return put(r, &r->pattern[r->at++], 1);
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; ++i) {
        if (starts(r, known[i])) {
            RSE_TRY(put(r, known[i], strlen(known[i])));
            r->at += strlen(known[i]);
            return RSE_OK;
        }
    }
    return refuse(r, r->at, "an unknown kind of group");
}

/* {n}, {n,} or {n,m}; another brace, {,m}, and a + after it mean different things to the two engines. */
static rse_status repeat(reader *r) {
    size_t n = 1;
    size_t digits = 0;
    while (peek(r, n) >= '0' && peek(r, n) <= '9') {
        ++n;
        ++digits;
    }
    if (peek(r, n) == ',') {
        do {
            ++n;
        } while (peek(r, n) >= '0' && peek(r, n) <= '9');
    }
    if (digits == 0 || peek(r, n) != '}' || peek(r, n + 1) == '+') {
        return refuse(r, r->at, "a brace other than {n}, {n,} or {n,m}");
    }
    RSE_TRY(put(r, r->pattern + r->at, n + 1));
    r->at += n + 1;
    return RSE_OK;
}

rse_status rse_pattern_translate(const char *pattern, size_t length, rse_text *out, rse_error *err) {
    reader r = {pattern, length, 0, out, err};
    while (r.at < length) {
        switch (pattern[r.at]) {
        case '\\':
            RSE_TRY(escape(&r));
            break;
        case '[':
            RSE_TRY(class(&r));
            break;
        case '(':
            RSE_TRY(group(&r));
            break;
        case '{':
            RSE_TRY(repeat(&r));
            break;
        case '^':
        case '$':
            return refuse(&r, r.at, "an anchor");
        default:
            RSE_TRY(put(&r, &pattern[r.at++], 1));
        }
    }
    return RSE_OK;
}
