/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON as the loaders need it: parse a text of given length, then ask for members by name and get either the
 * value or a sentence that names the file, the key, what was found and what is allowed. Only json.c knows
 * which parser is behind it.
 *
 * Beyond RFC 8259 a bare Infinity, -Infinity or NaN is accepted where a value may stand (old Nemotron configs
 * have one); it reads as a number, as does the object {"__float__": "Infinity"} that transformers 5 writes.
 * Duplicate keys, invalid UTF-8, NUL in strings and nesting beyond RSE_JSON_DEPTH are errors.
 *
 * Every value belongs to its document: it lives until rse_json_free() of the root. `where` is the name of the
 * file in messages and is not kept.
 */
#ifndef RSE_JSON_H
#define RSE_JSON_H

#include "base/buffer.h"
#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RSE_JSON_DEPTH = 64 };

/* NUMBER is any number written with a point or exponent, and the infinities and NaN. */
enum {
    RSE_JSON_NULL,
    RSE_JSON_BOOL,
    RSE_JSON_INTEGER,
    RSE_JSON_NUMBER,
    RSE_JSON_STRING,
    RSE_JSON_ARRAY,
    RSE_JSON_OBJECT
};

typedef struct rse_json rse_json;

/* RSE_ERROR_FORMAT with line and column for a text that is no JSON. *root is NULL after a failure. */
rse_status rse_json_parse(const char *text, size_t length, const char *where, rse_json **root, rse_error *err);
/* Frees a whole document. NULL is fine. */
void rse_json_free(rse_json *root);

int32_t rse_json_kind(const rse_json *value); /* RSE_JSON_*; NULL pointer: RSE_JSON_NULL */
const char *rse_json_kind_name(int32_t kind); /* "an integer", "a string", ... */

/* ---- Values. The result is only meaningful for the kind; NULL, 0, false otherwise. ---- */
bool rse_json_bool(const rse_json *value);
int64_t rse_json_integer(const rse_json *value);
double rse_json_number(const rse_json *value);                      /* integers too */
const char *rse_json_string(const rse_json *value, size_t *length); /* NUL-terminated; length may be NULL */
size_t rse_json_count(const rse_json *value); /* items of an array, members of an object */
const rse_json *rse_json_item(const rse_json *array, size_t index);       /* NULL beyond the end */
const rse_json *rse_json_member(const rse_json *object, const char *key); /* NULL if absent */

/* Calls visit for every member in the order of the file; stops at its first failure and returns that. */
typedef rse_status (*rse_json_visit_fn)(void *user, const char *key, const rse_json *value, rse_error *err);
rse_status rse_json_each(const rse_json *object, rse_json_visit_fn visit, void *user, rse_error *err);

/*
 * ---- Members with checks. An absent or null member leaves *out as it is: set the default before the call.
 * "need" makes absence an error. Another kind, or a value outside [low, high], is RSE_ERROR_FORMAT.
 */
rse_status rse_json_get_int(const rse_json *object, const char *where, const char *key, int64_t low,
                            int64_t high, int64_t *out, rse_error *err);
rse_status rse_json_get_number(const rse_json *object, const char *where, const char *key, double low,
                               double high, double *out, rse_error *err); /* NaN is outside every range */
rse_status rse_json_get_bool(const rse_json *object, const char *where, const char *key, bool *out,
                             rse_error *err);
rse_status rse_json_get_string(const rse_json *object, const char *where, const char *key, const char **out,
                               rse_error *err);
/* kind is RSE_JSON_ARRAY or RSE_JSON_OBJECT. */
rse_status rse_json_get(const rse_json *object, const char *where, const char *key, int32_t kind,
                        const rse_json **out, rse_error *err);
/* RSE_ERROR_FORMAT if the member is absent or null. */
rse_status rse_json_need(const rse_json *object, const char *where, const char *key, rse_error *err);

/* For writers: appends text in quotes, with all that JSON asks to be escaped. The text must be valid UTF-8. */
rse_status rse_json_quote(const char *text, size_t length, rse_text *out, rse_error *err);

#endif
