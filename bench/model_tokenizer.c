/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tokenizer of a made-up model: an existing tokenizer.json, and filler tokens up to the model's vocabulary,
 * so that every id the model may choose has a text.
 */
#include "base/json.h"
#include "model_shapes.h"

#include <stdio.h>
#include <string.h>

static const char where[] = "tokenizer.json";

static rse_status see_id(int64_t id, int64_t *highest, rse_error *err) {
    if (id < 0 || id > INT32_MAX) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: a token has the id %lld", where, (long long)id);
    }
    *highest = id > *highest ? id : *highest;
    return RSE_OK;
}

static rse_status see_token(void *user, const char *key, const rse_json *value, rse_error *err) {
    (void)key;
    return see_id(rse_json_integer(value), user, err);
}

static rse_status find_highest(const rse_json *root, int64_t *highest, rse_error *err) {
    const rse_json *model = NULL, *vocab = NULL, *added = NULL;
    *highest = -1;
    RSE_TRY(rse_json_need(root, where, "model", err));
    RSE_TRY(rse_json_get(root, where, "model", RSE_JSON_OBJECT, &model, err));
    RSE_TRY(rse_json_need(model, where, "vocab", err));
    RSE_TRY(rse_json_get(model, where, "vocab", RSE_JSON_OBJECT, &vocab, err));
    RSE_TRY(rse_json_get(root, where, "added_tokens", RSE_JSON_ARRAY, &added, err));
    RSE_TRY(rse_json_each(vocab, see_token, highest, err));
    for (size_t i = 0; i < rse_json_count(added); i++) {
        RSE_TRY(see_id(rse_json_integer(rse_json_member(rse_json_item(added, i), "id")), highest, err));
    }
    return RSE_OK;
}

/* Behind the brace that opens the object of the key "vocab"; NULL if it does not look so. */
static const char *vocab_start(const char *text) {
    for (const char *at = text; (at = strstr(at, "\"vocab\"")) != NULL; at++) {
        const char *colon = at + strlen("\"vocab\"");
        colon += strspn(colon, " \t\r\n");
        const char *brace = colon + (*colon == ':');
        brace += strspn(brace, " \t\r\n");
        if (*colon == ':' && *brace == '{') {
            return brace + 1;
        }
    }
    return NULL;
}

rse_status bench_tokenizer_widen(const char *text, size_t length, int32_t vocab, rse_text *out,
                                 rse_error *err) {
    rse_json *root;
    int64_t highest;
    RSE_TRY(rse_json_parse(text, length, where, &root, err));
    rse_status status = find_highest(root, &highest, err);
    rse_json_free(root);
    RSE_TRY(status);
    const char *start = vocab_start(text);
    if (start == NULL || highest >= vocab) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: its highest id is %lld; the vocabulary of this shape is %d",
                        where, (long long)highest, (int)vocab);
    }
    RSE_TRY(rse_text_append(out, text, (size_t)(start - text), err));
    for (int64_t id = highest + 1; id < vocab; id++) {
        char entry[64]; /* an empty vocabulary would need no last comma, but is none */
        int n = snprintf(entry, sizeof entry, "\"<%lld>\":%lld,", (long long)id, (long long)id);
        RSE_TRY(rse_text_append(out, entry, (size_t)n, err));
    }
    return rse_text_append(out, start, length - (size_t)(start - text), err);
}
