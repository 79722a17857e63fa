/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tokenizer of a GGUF file as a tokenizer.json: tokens, merges, and the pre-tokenizer that its name stands
 * for. Tokens that llama.cpp calls control or user-defined are written as text there; the others are spelled
 * with a character per byte, as in tokenizer.json.
 */
#include "load/gguf_model.h"

#include "base/json.h"

#include <string.h>

#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LEAD "[^\\r\\n\\p{L}\\p{N}]?"
#define SPACES "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define LOWER "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define NO_HAN "&&[^\\p{Han}]]"

/* What llama.cpp's names of pre-tokenizers stand for. NULL: the split of GPT-2. */
static const char qwen2[] = CONTRACTION "|" LEAD "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES;
static const char qwen35[] =
    CONTRACTION "|" LEAD "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" SPACES;
static const char llama3[] = CONTRACTION "|" LEAD "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES;
static const char tekken[] = LEAD "[" UPPER "]*[" LOWER "]+|" LEAD "[" UPPER "]+[" LOWER
                                  "]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" SPACES;
static const char kimi[] =
    "[\\p{Han}]+|" LEAD "[" UPPER NO_HAN "*[" LOWER NO_HAN "+" CONTRACTION "?|" LEAD "[" UPPER NO_HAN
    "+[" LOWER NO_HAN "*" CONTRACTION "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES;

static const struct {
    const char *name;
    const char *pattern;
    bool nfc;
} splits[] = {
    {"qwen35", qwen35, true},       {"qwen2", qwen2, true},    {"llama-bpe", llama3, false},
    {"llama3", llama3, false},      {"dbrx", llama3, false},   {"glm4", llama3, false},
    {"chatglm-bpe", llama3, false}, {"tekken", tekken, false}, {"pixtral", tekken, false},
    {"kimi-k2", kimi, false},       {"gpt-2", NULL, false},
};
enum { SPLITS = sizeof splits / sizeof splits[0] };
enum { TOKEN_CONTROL = 3, TOKEN_USER_DEFINED = 4 };

bool rse_gguf_has_tokenizer(const rse_gguf *file) {
    return rse_gguf_get(file, "tokenizer.ggml.tokens") != NULL;
}

static const rse_gguf_value *strings(const rse_gguf *file, const char *key) {
    const rse_gguf_value *value = rse_gguf_get(file, key);
    return value != NULL && value->array && value->type == RSE_GGUF_STRING ? value : NULL;
}

static bool is_added(const rse_gguf_value *types, uint64_t id) {
    double type = types != NULL ? rse_gguf_number(types, id) : 0;
    return type == TOKEN_CONTROL || type == TOKEN_USER_DEFINED;
}

/* Tokens of one kind: members "text":id of the vocabulary, or objects of the list of added ones. */
static rse_status print_tokens(const rse_gguf_value *tokens, const rse_gguf_value *types, bool added,
                               rse_text *out, rse_error *err) {
    size_t at = 0;
    const char *comma = "";
    for (uint64_t id = 0; id < tokens->count; ++id) {
        rse_gguf_string s = rse_gguf_next(tokens, &at);
        if (is_added(types, id) != added) {
            continue;
        }
        RSE_TRY(rse_text_print(out, err, added ? "%s{\"id\":%llu,\"content\":" : "%s", comma,
                               (unsigned long long)id));
        RSE_TRY(rse_json_quote(s.text, s.length, out, err));
        bool special = added && rse_gguf_number(types, id) == TOKEN_CONTROL;
        RSE_TRY(added
                    ? rse_text_print(out, err,
                                     ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":"
                                     "false,\"special\":%s}",
                                     special ? "true" : "false")
                    : rse_text_print(out, err, ":%llu", (unsigned long long)id));
        comma = ",";
    }
    return RSE_OK;
}

static rse_status print_merges(const rse_gguf_value *merges, rse_text *out, rse_error *err) {
    size_t at = 0;
    for (uint64_t i = 0; i < merges->count; ++i) {
        rse_gguf_string s = rse_gguf_next(merges, &at);
        RSE_TRY(rse_text_append(out, ",", i > 0, err));
        RSE_TRY(rse_json_quote(s.text, s.length, out, err));
    }
    return RSE_OK;
}

static rse_status print_split(const char *pattern, rse_text *out, rse_error *err) {
    if (pattern == NULL) {
        return rse_text_print(out, err,
                              "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}");
    }
    RSE_TRY(rse_text_print(
        out, err, "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":"));
    RSE_TRY(rse_json_quote(pattern, strlen(pattern), out, err));
    return rse_text_print(out, err,
                          "},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_"
                          "space\":false,\"use_regex\":false}]}");
}

/* The text's own beginning token, where the file asks for one. */
static rse_status print_template(const rse_gguf *file, const rse_gguf_value *tokens, rse_text *out,
                                 rse_error *err) {
    const rse_gguf_value *add = rse_gguf_get(file, "tokenizer.ggml.add_bos_token");
    const rse_gguf_value *bos = rse_gguf_get(file, "tokenizer.ggml.bos_token_id");
    if (add == NULL || rse_gguf_number(add, 0) == 0 || bos == NULL) {
        return RSE_OK;
    }
    double id = rse_gguf_number(bos, 0);
    if (!(id >= 0 && id < (double)tokens->count)) {
        return rse_fail(err, RSE_ERROR_FORMAT, "tokenizer.ggml.bos_token_id is %g; there are %llu tokens", id,
                        (unsigned long long)tokens->count);
    }
    rse_gguf_string s = {"", 0};
    size_t at = 0;
    for (uint64_t i = 0; i <= (uint64_t)id; ++i) {
        s = rse_gguf_next(tokens, &at);
    }
    RSE_TRY(rse_text_print(
        out, err,
        ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":"));
    RSE_TRY(rse_json_quote(s.text, s.length, out, err));
    RSE_TRY(rse_text_print(
        out, err,
        ",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{"));
    RSE_TRY(rse_json_quote(s.text, s.length, out, err));
    RSE_TRY(rse_text_print(out, err, ":{\"id\":"));
    RSE_TRY(rse_json_quote(s.text, s.length, out, err));
    RSE_TRY(rse_text_print(out, err, ",\"ids\":[%.0f],\"tokens\":[", id));
    RSE_TRY(rse_json_quote(s.text, s.length, out, err));
    return rse_text_print(out, err, "]}}}");
}

static rse_status print_all(const rse_gguf *file, size_t split, rse_text *out, rse_error *err) {
    const rse_gguf_value *tokens = strings(file, "tokenizer.ggml.tokens");
    const rse_gguf_value *merges = strings(file, "tokenizer.ggml.merges");
    const rse_gguf_value *types = rse_gguf_get(file, "tokenizer.ggml.token_type");
    if (tokens == NULL || merges == NULL || tokens->count > 1u << 24) {
        return rse_fail(err, RSE_ERROR_FORMAT,
                        "tokenizer.ggml.tokens or tokenizer.ggml.merges is no list of strings");
    }
    if (types != NULL && (!types->array || types->count != tokens->count || types->type == RSE_GGUF_STRING)) {
        return rse_fail(err, RSE_ERROR_FORMAT, "tokenizer.ggml.token_type has %llu items for %llu tokens",
                        (unsigned long long)types->count, (unsigned long long)tokens->count);
    }
    bool whole = splits[split].pattern == llama3; /* its vocabularies hold words that merges do not reach */
    RSE_TRY(rse_text_print(out, err, "{\"added_tokens\":["));
    RSE_TRY(print_tokens(tokens, types, true, out, err));
    RSE_TRY(rse_text_print(
        out, err, "],\"normalizer\":%s,\"pre_tokenizer\":", splits[split].nfc ? "{\"type\":\"NFC\"}" : "null"));
    RSE_TRY(print_split(splits[split].pattern, out, err));
    RSE_TRY(print_template(file, tokens, out, err));
    RSE_TRY(rse_text_print(out, err,
                           ",\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"ignore_"
                           "merges\":%s,\"vocab\":{",
                           whole ? "true" : "false"));
    RSE_TRY(print_tokens(tokens, types, false, out, err));
    RSE_TRY(rse_text_print(out, err, "},\"merges\":["));
    RSE_TRY(print_merges(merges, out, err));
    return rse_text_print(out, err, "]}}");
}

rse_status rse_gguf_tokenizer(const rse_gguf *file, rse_text *out, rse_error *err) {
    char model[64], name[64];
    char known[160] = "";
    rse_gguf_text(file, "tokenizer.ggml.model", model, sizeof model);
    rse_gguf_text(file, "tokenizer.ggml.pre", name, sizeof name);
    if (strcmp(model, "gpt2") != 0) {
        return rse_fail(err, RSE_ERROR_UNSUPPORTED, "tokenizer.ggml.model is %.64s; known: gpt2", model);
    }
    for (size_t i = 0; i < SPLITS; ++i) {
        if (strcmp(name, splits[i].name) == 0) {
            return print_all(file, i, out, err);
        }
        strncat(known, i > 0 ? ", " : "", sizeof known - strlen(known) - 1);
        strncat(known, splits[i].name, sizeof known - strlen(known) - 1);
    }
    return rse_fail(err, RSE_ERROR_UNSUPPORTED, "tokenizer.ggml.pre is %.64s; known: %s",
                    name[0] != '\0' ? name : "missing", known);
}
