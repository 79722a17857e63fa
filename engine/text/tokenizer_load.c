/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tokenizer.json part by part. Each part that may be of several types is a switch over the types known here;
 * the others are refused by their name.
 */
#include "text/tokenizer_parts.h"

#include "base/file.h"
#include "load/gguf_model.h"
#include "text/nfc.h"

#include <stdlib.h>
#include <string.h>

static const char where[] = "tokenizer.json";
enum { FILE_MAX = 1 << 29, TEMPLATE_MAX = 64 };

/* The member "type" of a part; NULL for a part that is null or absent. */
static rse_status type_of(const rse_json *part, const char *name, const char **type, rse_error *err) {
    *type = NULL;
    if (rse_json_kind(part) == RSE_JSON_NULL) {
        return RSE_OK;
    }
    *type = rse_json_string(rse_json_member(part, "type"), NULL);
    return *type != NULL ? RSE_OK : rse_fail(err, RSE_ERROR_FORMAT, "%s: a %s has no type", where, name);
}

static rse_status unknown(const char *name, const char *type, const char *known, rse_error *err) {
    return rse_fail(err, RSE_ERROR_UNSUPPORTED, "%s: %s of type %.64s is not supported; known: %s", where, name,
                    type, known);
}

typedef rse_status (*part_fn)(rse_tokenizer *t, const rse_json *part, rse_error *err);

/* Calls read for the part itself, or for each one in the list `member` of a Sequence. */
static rse_status each_part(rse_tokenizer *t, const rse_json *part, const char *name, const char *member,
                            part_fn read, rse_error *err) {
    const char *type;
    RSE_TRY(type_of(part, name, &type, err));
    if (type == NULL) {
        return RSE_OK;
    }
    if (strcmp(type, "Sequence") != 0) {
        return read(t, part, err);
    }
    const rse_json *list = NULL;
    RSE_TRY(rse_json_need(part, where, member, err));
    RSE_TRY(rse_json_get(part, where, member, RSE_JSON_ARRAY, &list, err));
    for (size_t i = 0; i < rse_json_count(list); ++i) {
        const char *inner;
        RSE_TRY(type_of(rse_json_item(list, i), name, &inner, err));
        if (inner == NULL || strcmp(inner, "Sequence") == 0) {
            return rse_fail(err, RSE_ERROR_UNSUPPORTED, "%s: a %s sequence inside a sequence is not supported",
                            where, name);
        }
        RSE_TRY(read(t, rse_json_item(list, i), err));
    }
    return RSE_OK;
}

static rse_status read_normalizer(rse_tokenizer *t, const rse_json *part, rse_error *err) {
    const char *type;
    RSE_TRY(type_of(part, "normalizer", &type, err));
    if (strcmp(type, "NFC") != 0) {
        return unknown("normalizer", type, "NFC", err);
    }
    t->nfc = true;
    return RSE_OK;
}

/* ---- Pre-tokenizer ------------------------------------------------------------------------------------ */

static rse_status read_split(rse_tokenizer *t, const rse_json *part, rse_error *err) {
    const char *behavior = "";
    bool invert = false;
    const rse_json *pattern = NULL;
    RSE_TRY(rse_json_get_string(part, where, "behavior", &behavior, err));
    RSE_TRY(rse_json_get_bool(part, where, "invert", &invert, err));
    RSE_TRY(rse_json_get(part, where, "pattern", RSE_JSON_OBJECT, &pattern, err));
    size_t length = 0;
    const char *regex = pattern != NULL ? rse_json_string(rse_json_member(pattern, "Regex"), &length) : NULL;
    if (strcmp(behavior, "Isolated") != 0 || invert || regex == NULL) {
        return rse_fail(err, RSE_ERROR_UNSUPPORTED,
                        "%s: a Split has the behavior %.32s%s and %s, supported: Isolated by a Regex", where,
                        behavior, invert ? ", inverted," : "", regex != NULL ? "a Regex" : "no Regex");
    }
    return rse_pretok_append(&t->pretok, regex, length, err);
}

static rse_status read_byte_level(rse_tokenizer *t, const rse_json *part, rse_error *err) {
    bool prefix_space = true;
    bool use_regex = true;
    RSE_TRY(rse_json_get_bool(part, where, "add_prefix_space", &prefix_space, err));
    RSE_TRY(rse_json_get_bool(part, where, "use_regex", &use_regex, err));
    if (prefix_space) {
        return rse_fail(err, RSE_ERROR_UNSUPPORTED, "%s: add_prefix_space is true, supported: false", where);
    }
    return use_regex ? rse_pretok_append(&t->pretok, rse_pretok_gpt2, strlen(rse_pretok_gpt2), err) : RSE_OK;
}

static rse_status read_pretokenizer(rse_tokenizer *t, const rse_json *part, rse_error *err) {
    const char *type;
    RSE_TRY(type_of(part, "pre_tokenizer", &type, err));
    if (strcmp(type, "Split") == 0) {
        return read_split(t, part, err);
    }
    if (strcmp(type, "ByteLevel") == 0) {
        return read_byte_level(t, part, err);
    }
    return unknown("pre_tokenizer", type, "Split, ByteLevel, Sequence", err);
}

/* Without a ByteLevel at the end the tokens would be characters, not bytes. */
static rse_status need_byte_level(const rse_json *part, const char *name, const char *member, rse_error *err) {
    const char *type;
    RSE_TRY(type_of(part, name, &type, err));
    if (type != NULL && strcmp(type, "Sequence") == 0) {
        const rse_json *list = rse_json_member(part, member);
        size_t count = rse_json_count(list);
        RSE_TRY(type_of(count > 0 ? rse_json_item(list, count - 1) : NULL, name, &type, err));
    }
    return type != NULL && strcmp(type, "ByteLevel") == 0
               ? RSE_OK
               : rse_fail(err, RSE_ERROR_UNSUPPORTED, "%s: the %s does not end with ByteLevel", where, name);
}

static rse_status read_decoder(rse_tokenizer *t, const rse_json *part, rse_error *err) {
    (void)t;
    const char *type;
    RSE_TRY(type_of(part, "decoder", &type, err));
    return strcmp(type, "ByteLevel") == 0 ? RSE_OK : unknown("decoder", type, "ByteLevel", err);
}

/* ---- Added tokens ------------------------------------------------------------------------------------- */

/* The largest id of an added token; the array is checked on the way. */
static rse_status measure_added(const rse_json *list, int32_t *largest, rse_error *err) {
    *largest = -1;
    for (size_t i = 0; i < rse_json_count(list); ++i) {
        const rse_json *item = rse_json_item(list, i);
        if (rse_json_kind(item) != RSE_JSON_OBJECT) {
            return rse_fail(err, RSE_ERROR_FORMAT, "%s: added token %zu is no object", where, i);
        }
        int64_t id = -1;
        RSE_TRY(rse_json_need(item, where, "id", err));
        RSE_TRY(rse_json_get_int(item, where, "id", 0, RSE_VOCAB_MAX - 1, &id, err));
        *largest = id > *largest ? (int32_t)id : *largest;
    }
    return RSE_OK;
}

static rse_status refuse_flags(const rse_json *item, const char *content, rse_error *err) {
    static const char *const flags[] = {"single_word", "lstrip", "rstrip"};
    for (int i = 0; i < 3; ++i) {
        bool set = false;
        RSE_TRY(rse_json_get_bool(item, where, flags[i], &set, err));
        if (set) {
            return rse_fail(err, RSE_ERROR_UNSUPPORTED, "%s: added token %.64s has %s, which is not supported",
                            where, content, flags[i]);
        }
    }
    return RSE_OK;
}

static rse_status read_added(rse_tokenizer *t, const rse_json *item, rse_error *err) {
    int64_t id = 0;
    bool special = false;
    size_t length = 0;
    const char *content = rse_json_string(rse_json_member(item, "content"), &length);
    RSE_TRY(rse_json_get_int(item, where, "id", 0, RSE_VOCAB_MAX - 1, &id, err));
    if (content == NULL || length == 0) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: the added token of id %lld has no content", where,
                        (long long)id);
    }
    RSE_TRY(refuse_flags(item, content, err));
    RSE_TRY(rse_json_get_bool(item, where, "special", &special, err));
    bool normalized = !special;
    RSE_TRY(rse_json_get_bool(item, where, "normalized", &normalized, err));
    RSE_TRY(rse_added_append(&t->names, content, length, (int32_t)id, special, err));
    t->special[id] = special;
    rse_text text = {0}; /* what the token is found by, and what it decodes to */
    rse_status status = normalized && t->nfc ? rse_nfc(content, length, &text, err)
                                             : rse_text_append(&text, content, length, err);
    if (status == RSE_OK) {
        status = rse_added_append(&t->added[normalized], text.data, text.length, (int32_t)id, special, err);
    }
    if (status == RSE_OK) {
        status = rse_vocab_add(&t->bpe.vocab, (int32_t)id, text.data, text.length, err);
    }
    rse_text_free(&text);
    return status;
}

/* Two added tokens of one content could not both be found. */
static rse_status sort_added(rse_added *added, rse_error *err) {
    rse_added_sort(added);
    for (size_t i = 1; i < added->count; ++i) {
        if (strcmp(added->tokens[i - 1].content, added->tokens[i].content) == 0) {
            return rse_fail(err, RSE_ERROR_FORMAT, "%s: added token %.64s is there twice", where,
                            added->tokens[i].content);
        }
    }
    return RSE_OK;
}

static rse_status load_added(rse_tokenizer *t, const rse_json *list, rse_error *err) {
    t->special = calloc((size_t)t->bpe.vocab.size, sizeof *t->special);
    if (t->special == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "%s: no memory for %d tokens", where, (int)t->bpe.vocab.size);
    }
    for (size_t i = 0; i < rse_json_count(list); ++i) {
        RSE_TRY(read_added(t, rse_json_item(list, i), err));
    }
    RSE_TRY(sort_added(&t->names, err));
    RSE_TRY(sort_added(&t->added[0], err));
    return sort_added(&t->added[1], err);
}

/* ---- Template ----------------------------------------------------------------------------------------- */

/* Appends the ids of {"SpecialToken": {"id": name}} as the template's special_tokens define it. */
static rse_status add_special(rse_tokenizer *t, const rse_json *table, const char *name, rse_ids *to,
                              rse_error *err) {
    const rse_json *ids = rse_json_member(rse_json_member(table, name), "ids");
    if (rse_json_kind(ids) != RSE_JSON_ARRAY) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: the template uses %.64s, which it does not define", where,
                        name);
    }
    for (size_t i = 0; i < rse_json_count(ids); ++i) {
        int64_t id = rse_json_integer(rse_json_item(ids, i));
        size_t length;
        if (rse_json_kind(rse_json_item(ids, i)) != RSE_JSON_INTEGER || id < 0 || id >= t->bpe.vocab.size ||
            rse_vocab_bytes(&t->bpe.vocab, (int32_t)id, &length) == NULL || to->count == TEMPLATE_MAX) {
            return rse_fail(err, RSE_ERROR_FORMAT,
                            "%s: the template's %.64s has an id outside the vocabulary, or too many", where,
                            name);
        }
        RSE_TRY(rse_ids_append(to, (int32_t)id, err));
    }
    return RSE_OK;
}

static rse_status read_template(rse_tokenizer *t, const rse_json *part, rse_error *err) {
    const rse_json *single = rse_json_member(part, "single");
    const rse_json *table = rse_json_member(part, "special_tokens");
    if (t->prefix.count + t->suffix.count > 0 || rse_json_kind(single) != RSE_JSON_ARRAY) {
        return rse_fail(err, RSE_ERROR_UNSUPPORTED,
                        "%s: a TemplateProcessing is the second one, or has no list \"single\"", where);
    }
    bool after = false;
    for (size_t i = 0; i < rse_json_count(single); ++i) {
        const rse_json *item = rse_json_item(single, i);
        const char *special =
            rse_json_string(rse_json_member(rse_json_member(item, "SpecialToken"), "id"), NULL);
        const char *text = rse_json_string(rse_json_member(rse_json_member(item, "Sequence"), "id"), NULL);
        if (special != NULL) {
            RSE_TRY(add_special(t, table, special, after ? &t->suffix : &t->prefix, err));
        } else if (text != NULL && strcmp(text, "A") == 0 && !after) {
            after = true;
        } else {
            return rse_fail(err, RSE_ERROR_UNSUPPORTED, "%s: part %zu of the template is not supported", where,
                            i);
        }
    }
    return after ? RSE_OK
                 : rse_fail(err, RSE_ERROR_FORMAT, "%s: the template does not contain the text", where);
}

static rse_status read_processor(rse_tokenizer *t, const rse_json *part, rse_error *err) {
    const char *type;
    RSE_TRY(type_of(part, "post_processor", &type, err));
    if (strcmp(type, "ByteLevel") == 0) {
        return RSE_OK; /* moves offsets only */
    }
    return strcmp(type, "TemplateProcessing") == 0
               ? read_template(t, part, err)
               : unknown("post_processor", type, "ByteLevel, TemplateProcessing, Sequence", err);
}

/* ---- The file ----------------------------------------------------------------------------------------- */

static rse_status load(rse_tokenizer *t, const rse_json *root, rse_error *err) {
    const rse_json *model = NULL;
    const rse_json *added = NULL;
    int32_t largest = -1;
    if (rse_json_kind(root) != RSE_JSON_OBJECT) {
        return rse_fail(err, RSE_ERROR_FORMAT, "%s: is no JSON object", where);
    }
    RSE_TRY(rse_json_need(root, where, "model", err));
    RSE_TRY(rse_json_get(root, where, "model", RSE_JSON_OBJECT, &model, err));
    RSE_TRY(rse_json_get(root, where, "added_tokens", RSE_JSON_ARRAY, &added, err));
    RSE_TRY(measure_added(added, &largest, err));
    RSE_TRY(rse_bpe_load(&t->bpe, model, largest, err));
    const rse_json *normalizer = rse_json_member(root, "normalizer");
    RSE_TRY(each_part(t, normalizer, "normalizer", "normalizers", read_normalizer, err));
    RSE_TRY(load_added(t, added, err));
    const rse_json *pretok = rse_json_member(root, "pre_tokenizer");
    RSE_TRY(need_byte_level(pretok, "pre_tokenizer", "pretokenizers", err));
    RSE_TRY(each_part(t, pretok, "pre_tokenizer", "pretokenizers", read_pretokenizer, err));
    const rse_json *decoder = rse_json_member(root, "decoder");
    RSE_TRY(need_byte_level(decoder, "decoder", "decoders", err));
    RSE_TRY(each_part(t, decoder, "decoder", "decoders", read_decoder, err));
    const rse_json *processor = rse_json_member(root, "post_processor");
    return each_part(t, processor, "post_processor", "processors", read_processor, err);
}

rse_status rse_tokenizer_parse(const char *text, size_t length, rse_tokenizer **tokenizer, rse_error *err) {
    *tokenizer = NULL;
    rse_json *root;
    RSE_TRY(rse_json_parse(text, length, where, &root, err));
    rse_tokenizer *t = calloc(1, sizeof *t);
    rse_status status =
        t != NULL ? load(t, root, err) : rse_fail(err, RSE_ERROR_MEMORY, "%s: no memory to load it", where);
    rse_json_free(root);
    if (status != RSE_OK) {
        rse_tokenizer_free(t);
        return status;
    }
    *tokenizer = t;
    return RSE_OK;
}

static rse_status load_gguf(const char *path, rse_tokenizer **tokenizer, rse_error *err) {
    rse_gguf *file;
    rse_text text = {0};
    rse_error inner = {0};
    RSE_TRY(rse_gguf_open(path, &file, err));
    rse_status status = rse_gguf_tokenizer(file, &text, &inner);
    if (status == RSE_OK) {
        status = rse_tokenizer_parse(text.data, text.length, tokenizer, &inner);
    }
    rse_text_free(&text);
    rse_gguf_close(file);
    return status == RSE_OK ? RSE_OK : rse_fail(err, status, "%s: %s", path, inner.text);
}

rse_status rse_tokenizer_load(const char *path, rse_tokenizer **tokenizer, rse_error *err) {
    *tokenizer = NULL;
    if (rse_gguf_is(path)) {
        return load_gguf(path, tokenizer, err);
    }
    char *file = rse_file_is_directory(path) ? rse_path_join(path, where) : strdup(path);
    if (file == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "%s: no memory for its name", path);
    }
    char *text = NULL;
    size_t length = 0;
    rse_status status = rse_file_read(file, FILE_MAX, &text, &length, err);
    if (status == RSE_OK) {
        status = rse_tokenizer_parse(text, length, tokenizer, err);
    }
    free(text);
    free(file);
    return status;
}

void rse_tokenizer_free(rse_tokenizer *tokenizer) {
    if (tokenizer == NULL) {
        return;
    }
    rse_bpe_free(&tokenizer->bpe);
    rse_pretok_free(&tokenizer->pretok);
    rse_added_free(&tokenizer->added[0]);
    rse_added_free(&tokenizer->added[1]);
    rse_added_free(&tokenizer->names);
    free(tokenizer->special);
    rse_ids_free(&tokenizer->prefix);
    rse_ids_free(&tokenizer->suffix);
    free(tokenizer);
}
