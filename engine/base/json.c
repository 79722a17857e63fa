/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wrapper over jansson. A rse_json is a json_t under another name, so that no caller depends on the parser.
 * jansson knows no infinities; a pass over the text before it writes the bare words as transformers 5 does, and
 * the same pass bounds the nesting.
 */
#include "base/json.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const json_t *json_of(const rse_json *value) {
    return (const json_t *)(const void *)value;
}

static const rse_json *value_of(const json_t *json) {
    return (const rse_json *)(const void *)json;
}

/* ---- Bare words --------------------------------------------------------------------------------------- */

static const struct {
    const char *word;
    const char *json;
    double value;
} words[] = {{"Infinity", "{\"__float__\":\"Infinity\"}", HUGE_VAL},
             {"-Infinity", "{\"__float__\":\"-Infinity\"}", -HUGE_VAL},
             {"NaN", "{\"__float__\":\"NaN\"}", (double)NAN}};
enum { WORDS = sizeof words / sizeof words[0] };

static bool is_word_byte(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/* Which bare word starts here, or -1. */
static int word_at(const char *text, size_t left) {
    for (int i = 0; i < WORDS; ++i) {
        size_t n = strlen(words[i].word);
        if (n <= left && memcmp(text, words[i].word, n) == 0 && (n == left || !is_word_byte(text[n]))) {
            return i;
        }
    }
    return -1;
}

typedef struct scan {
    size_t in;   /* bytes read */
    size_t out;  /* bytes that the rewritten text has for them */
    int depth;   /* largest nesting met */
    bool edited; /* whether there was any bare word */
} scan;

/* Rewrites text into out (NULL: only counts), up to the byte of the rewritten text at `stop`. */
static scan rewrite(const char *text, size_t length, size_t stop, char *out) {
    scan s = {0};
    int depth = 0;
    bool quoted = false;
    while (s.in < length && s.out < stop && depth <= RSE_JSON_DEPTH) {
        const char *piece = text + s.in;
        size_t piece_length = 1;
        size_t used = 1;
        char c = *piece;
        if (quoted) {
            used = piece_length = (c == '\\' && s.in + 1 < length) ? 2 : 1;
            quoted = c != '"';
        } else if (c == '"') {
            quoted = true;
        } else if (c == '[' || c == '{') {
            ++depth;
            s.depth = depth > s.depth ? depth : s.depth;
        } else if (c == ']' || c == '}') {
            --depth;
        } else if (c == 'I' || c == 'N' || c == '-') {
            int word = word_at(piece, length - s.in);
            if (word >= 0) {
                piece = words[word].json;
                piece_length = strlen(piece);
                used = strlen(words[word].word);
                s.edited = true;
            }
        }
        if (out != NULL) {
            memcpy(out + s.out, piece, piece_length);
        }
        s.in += used;
        s.out += piece_length;
    }
    return s;
}

static rse_status fail_at(const char *text, size_t offset, const char *where, const char *what,
                          rse_error *err) {
    size_t line = 1;
    size_t column = 1;
    for (size_t i = 0; i < offset; ++i) {
        column = text[i] == '\n' ? 1 : column + 1;
        line += text[i] == '\n';
    }
    return rse_fail(err, RSE_ERROR_FORMAT, "%s: line %zu, column %zu: %s", where, line, column, what);
}

rse_status rse_json_parse(const char *text, size_t length, const char *where, rse_json **root, rse_error *err) {
    *root = NULL;
    scan s = rewrite(text, length, SIZE_MAX, NULL);
    if (s.depth > RSE_JSON_DEPTH) {
        char what[64];
        snprintf(what, sizeof what, "nested deeper than %d levels", RSE_JSON_DEPTH);
        return fail_at(text, s.in, where, what, err);
    }
    char *copy = NULL;
    if (s.edited) {
        copy = malloc(s.out);
        if (copy == NULL) {
            return rse_fail(err, RSE_ERROR_MEMORY, "%s: no memory for %zu bytes", where, s.out);
        }
        rewrite(text, length, SIZE_MAX, copy);
    }
    json_error_t error;
    json_t *json =
        json_loadb(copy != NULL ? copy : text, s.out, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    free(copy);
    if (json == NULL) {
        size_t position = error.position > 0 ? (size_t)error.position : 0;
        return fail_at(text, rewrite(text, length, position, NULL).in, where, error.text, err);
    }
    *root = (rse_json *)(void *)json;
    return RSE_OK;
}

void rse_json_free(rse_json *root) {
    json_decref((json_t *)(void *)root);
}

/* ---- Values ------------------------------------------------------------------------------------------- */

/* Which of the words an object {"__float__": WORD} stands for, or -1. */
static int float_word(const json_t *json) {
    const char *text =
        json_object_size(json) == 1 ? json_string_value(json_object_get(json, "__float__")) : NULL;
    for (int i = 0; text != NULL && i < WORDS; ++i) {
        if (strcmp(text, words[i].word) == 0) {
            return i;
        }
    }
    return -1;
}

int32_t rse_json_kind(const rse_json *value) {
    const json_t *json = json_of(value);
    if (json == NULL) {
        return RSE_JSON_NULL;
    }
    switch (json_typeof(json)) {
    case JSON_TRUE:
    case JSON_FALSE:
        return RSE_JSON_BOOL;
    case JSON_INTEGER:
        return RSE_JSON_INTEGER;
    case JSON_REAL:
        return RSE_JSON_NUMBER;
    case JSON_STRING:
        return RSE_JSON_STRING;
    case JSON_ARRAY:
        return RSE_JSON_ARRAY;
    case JSON_OBJECT:
        return float_word(json) >= 0 ? RSE_JSON_NUMBER : RSE_JSON_OBJECT;
    default:
        return RSE_JSON_NULL;
    }
}

const char *rse_json_kind_name(int32_t kind) {
    static const char *const names[] = {"null",     "true or false", "an integer", "a number",
                                        "a string", "an array",      "an object"};
    return kind >= 0 && kind <= RSE_JSON_OBJECT ? names[kind] : "?";
}

bool rse_json_bool(const rse_json *value) {
    return json_is_true(json_of(value));
}

int64_t rse_json_integer(const rse_json *value) {
    return json_integer_value(json_of(value));
}

double rse_json_number(const rse_json *value) {
    int word = float_word(json_of(value));
    return word >= 0 ? words[word].value : json_number_value(json_of(value));
}

const char *rse_json_string(const rse_json *value, size_t *length) {
    if (length != NULL) {
        *length = json_string_length(json_of(value));
    }
    return json_string_value(json_of(value));
}

size_t rse_json_count(const rse_json *value) {
    return json_is_array(json_of(value)) ? json_array_size(json_of(value)) : json_object_size(json_of(value));
}

const rse_json *rse_json_item(const rse_json *array, size_t index) {
    return value_of(json_array_get(json_of(array), index));
}

const rse_json *rse_json_member(const rse_json *object, const char *key) {
    return value_of(json_object_get(json_of(object), key));
}

rse_status rse_json_each(const rse_json *object, rse_json_visit_fn visit, void *user, rse_error *err) {
    json_t *json =
        (json_t *)(uintptr_t)object; /* jansson iterates over a non-const object without changing it */
    for (void *it = json_object_iter(json); it != NULL; it = json_object_iter_next(json, it)) {
        RSE_TRY(visit(user, json_object_iter_key(it), value_of(json_object_iter_value(it)), err));
    }
    return RSE_OK;
}

/* ---- Members with checks ------------------------------------------------------------------------------ */

/* The member, or NULL with RSE_OK if it is absent or null, or an error if it is of another kind. */
static rse_status member_of_kind(const rse_json *object, const char *where, const char *key, int32_t kind,
                                 const rse_json **out, rse_error *err) {
    const rse_json *value = rse_json_member(object, key);
    int32_t found = rse_json_kind(value);
    *out = found == RSE_JSON_NULL ? NULL : value;
    bool fits =
        found == RSE_JSON_NULL || found == kind || (kind == RSE_JSON_NUMBER && found == RSE_JSON_INTEGER);
    return fits ? RSE_OK
                : rse_fail(err, RSE_ERROR_FORMAT, "%s: %s is %s, not %s", where, key, rse_json_kind_name(found),
                           rse_json_kind_name(kind));
}

rse_status rse_json_get_int(const rse_json *object, const char *where, const char *key, int64_t low,
                            int64_t high, int64_t *out, rse_error *err) {
    const rse_json *value;
    RSE_TRY(member_of_kind(object, where, key, RSE_JSON_INTEGER, &value, err));
    if (value == NULL) {
        return RSE_OK;
    }
    int64_t number = rse_json_integer(value);
    if (number < low || number > high) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: %s is %lld, not in %lld..%lld", where, key,
                        (long long)number, (long long)low, (long long)high);
    }
    *out = number;
    return RSE_OK;
}

rse_status rse_json_get_number(const rse_json *object, const char *where, const char *key, double low,
                               double high, double *out, rse_error *err) {
    const rse_json *value;
    RSE_TRY(member_of_kind(object, where, key, RSE_JSON_NUMBER, &value, err));
    if (value == NULL) {
        return RSE_OK;
    }
    double number = rse_json_number(value);
    if (!(number >= low && number <= high)) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: %s is %g, not in %g..%g", where, key, number, low, high);
    }
    *out = number;
    return RSE_OK;
}

rse_status rse_json_get_bool(const rse_json *object, const char *where, const char *key, bool *out,
                             rse_error *err) {
    const rse_json *value;
    RSE_TRY(member_of_kind(object, where, key, RSE_JSON_BOOL, &value, err));
    *out = value != NULL ? rse_json_bool(value) : *out;
    return RSE_OK;
}

rse_status rse_json_get_string(const rse_json *object, const char *where, const char *key, const char **out,
                               rse_error *err) {
    const rse_json *value;
    RSE_TRY(member_of_kind(object, where, key, RSE_JSON_STRING, &value, err));
    *out = value != NULL ? rse_json_string(value, NULL) : *out;
    return RSE_OK;
}

rse_status rse_json_get(const rse_json *object, const char *where, const char *key, int32_t kind,
                        const rse_json **out, rse_error *err) {
    const rse_json *value;
    RSE_TRY(member_of_kind(object, where, key, kind, &value, err));
    *out = value != NULL ? value : *out;
    return RSE_OK;
}

rse_status rse_json_need(const rse_json *object, const char *where, const char *key, rse_error *err) {
    if (rse_json_kind(rse_json_member(object, key)) == RSE_JSON_NULL) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: %s is missing", where, key);
    }
    return RSE_OK;
}

/* ---- Writing ------------------------------------------------------------------------------------------ */

rse_status rse_json_quote(const char *text, size_t length, rse_text *out, rse_error *err) {
    RSE_TRY(rse_text_append(out, "\"", 1, err));
    size_t plain = 0; /* where the bytes begin that are not yet out and need no escape */
    for (size_t i = 0; i < length; ++i) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != 0x7f && c != '"' && c != '\\') {
            continue;
        }
        RSE_TRY(rse_text_append(out, text + plain, i - plain, err));
        plain = i + 1;
        if (c == '"' || c == '\\') {
            RSE_TRY(rse_text_print(out, err, "\\%c", c));
        } else if (c == '\n') {
            RSE_TRY(rse_text_append(out, "\\n", 2, err));
        } else {
            RSE_TRY(rse_text_print(out, err, "\\u%04x", (unsigned)c));
        }
    }
    RSE_TRY(rse_text_append(out, text + plain, length - plain, err));
    return rse_text_append(out, "\"", 1, err);
}
