/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tokenizer against the Hugging Face library (tests/golden/tokenizer_golden.json), against itself (round
 * trips, streams), and against files it must refuse.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "text/pattern.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define MODEL RSSM_SOURCE_DIR "/models/tiny-gdn"

static rse_tokenizer *bundled;
static json_t *source; /* the tokenizer.json of the bundled model */

static int setup(void **state) {
    (void)state;
    rse_error err = {0};
    json_error_t error;
    source = json_load_file(MODEL "/tokenizer.json", 0, &error);
    return rse_tokenizer_load(MODEL, &bundled, &err) != RSE_OK || source == NULL;
}

static int teardown(void **state) {
    (void)state;
    rse_tokenizer_free(bundled);
    json_decref(source);
    return 0;
}

static rse_status parse(const json_t *json, rse_tokenizer **tokenizer, rse_error *err) {
    char *text = json_dumps(json, JSON_COMPACT);
    assert_non_null(text);
    rse_status status = rse_tokenizer_parse(text, strlen(text), tokenizer, err);
    free(text);
    return status;
}

/* ---- Goldens ------------------------------------------------------------------------------------------ */

static void check_ids(const rse_tokenizer *t, const char *name, const json_t *text, uint32_t flags,
                      const json_t *want) {
    rse_error err = {0};
    rse_ids ids = {0};
    const char *bytes = json_string_value(text);
    rse_status status = rse_tokenizer_encode(t, bytes, json_string_length(text), flags, &ids, &err);
    if (status != RSE_OK) {
        fail_msg("%s, \"%s\": %s", name, bytes, err.text);
    }
    if (ids.count != json_array_size(want)) {
        fail_msg("%s, \"%s\": %zu ids, expected %zu", name, bytes, ids.count, json_array_size(want));
    }
    for (size_t i = 0; i < ids.count; ++i) {
        if (ids.data[i] != json_integer_value(json_array_get(want, i))) {
            fail_msg("%s, \"%s\": id %zu is %d, expected %d", name, bytes, i, (int)ids.data[i],
                     (int)json_integer_value(json_array_get(want, i)));
        }
    }
    rse_ids_free(&ids);
}

/* Each push must by itself give valid UTF-8, and the joined stream the expected text (G10). */
static void check_stream(const rse_tokenizer *t, const char *name, const json_t *ids, const char *want,
                         size_t length) {
    rse_error err = {0};
    rse_decoder decoder;
    rse_text out = {0};
    rse_decoder_init(&decoder, t, true);
    for (size_t i = 0; i <= json_array_size(ids); ++i) {
        size_t before = out.length;
        int32_t id = (int32_t)json_integer_value(json_array_get(ids, i));
        assert_int_equal(i < json_array_size(ids) ? rse_decoder_push(&decoder, id, &out, &err)
                                                  : rse_decoder_flush(&decoder, &out, &err),
                         RSE_OK);
        if (out.length > before) {
            assert_int_equal(rse_utf8_check(out.data + before, out.length - before), out.length - before);
        }
    }
    if (out.length != length || (length > 0 && memcmp(out.data, want, length) != 0)) {
        fail_msg("%s: decoded \"%s\", expected \"%s\"", name, out.data, want);
    }
    rse_text_free(&out);
}

static void check_case(const rse_tokenizer *t, const char *name, const json_t *item) {
    const json_t *text = json_object_get(item, "text");
    const json_t *ids = json_object_get(item, "ids");
    const json_t *plain = json_object_get(item, "plain");
    const json_t *templated = json_object_get(item, "templated");
    const json_t *decoded = json_object_get(item, "decoded");
    check_ids(t, name, text, RSE_ENCODE_SPECIAL, ids);
    check_ids(t, name, text, 0, plain != NULL ? plain : ids);
    check_ids(t, name, text, RSE_ENCODE_SPECIAL | RSE_ENCODE_TEMPLATE, templated != NULL ? templated : ids);
    decoded = decoded != NULL ? decoded : text;
    check_stream(t, name, ids, json_string_value(decoded), json_string_length(decoded));
}

/* F07: the ids are those of the family's own tokenizer, pre-tokenizers of six families. */
static void F07_ids_equal_the_reference(void **state) {
    (void)state;
    json_error_t error;
    json_t *golden =
        json_load_file(RSSM_SOURCE_DIR "/tests/golden/tokenizer_golden.json", JSON_ALLOW_NUL, &error);
    assert_non_null(golden);
    size_t i;
    json_t *variant;
    json_array_foreach(json_object_get(golden, "variants"), i, variant) {
        json_t *patched = json_copy(source);
        json_t *model = json_copy(json_object_get(source, "model"));
        json_object_update(patched, json_object_get(variant, "set"));
        json_object_update(model, json_object_get(variant, "model"));
        json_object_set_new(patched, "model", model);
        rse_tokenizer *t;
        rse_error err = {0};
        const char *name = json_string_value(json_object_get(variant, "name"));
        if (parse(patched, &t, &err) != RSE_OK) {
            fail_msg("%s: %s", name, err.text);
        }
        size_t j;
        json_t *item;
        json_array_foreach(json_object_get(variant, "cases"), j, item) {
            check_case(t, name, item);
        }
        rse_tokenizer_free(t);
        json_decref(patched);
    }
    json_decref(golden);
}

/* ---- Round trips and streams -------------------------------------------------------------------------- */

static void every_byte_is_a_token_and_comes_back(void **state) {
    (void)state;
    bool seen[256] = {false};
    for (int32_t id = 0; id < rse_tokenizer_size(bundled); ++id) {
        size_t length = 0;
        const char *bytes = rse_tokenizer_bytes(bundled, id, &length);
        if (bytes != NULL && length == 1) {
            seen[(uint8_t)bytes[0]] = true;
        }
    }
    for (int byte = 0; byte < 256; ++byte) {
        assert_true(seen[byte]);
    }
}

static void any_code_point_comes_back(void **state) {
    (void)state;
    rse_error err = {0};
    rse_ids ids = {0};
    rse_text out = {0};
    for (uint32_t code = 1; code <= 0x10ffff; code += code < 0x3000 ? 1 : 97) {
        if ((code >= 0xd800 && code < 0xe000) || (code >= 0x300 && code < 0x3000)) {
            continue; /* no surrogates; and nothing that NFC might rewrite, which the goldens cover */
        }
        char text[4];
        int n = rse_utf8_put(code, text);
        int read;
        assert_int_equal(rse_utf8_get(text, &read), code);
        assert_int_equal(read, n);
        ids.count = 0;
        assert_int_equal(rse_tokenizer_encode(bundled, text, (size_t)n, 0, &ids, &err), RSE_OK);
        rse_decoder decoder;
        rse_decoder_init(&decoder, bundled, false);
        out.length = 0;
        for (size_t i = 0; i < ids.count; ++i) {
            assert_int_equal(rse_decoder_push(&decoder, ids.data[i], &out, &err), RSE_OK);
        }
        assert_int_equal(rse_decoder_flush(&decoder, &out, &err), RSE_OK);
        if (code < 0x300) {
            assert_int_equal(out.length, n);
            assert_memory_equal(out.data, text, (size_t)n);
        }
    }
    rse_ids_free(&ids);
    rse_text_free(&out);
}

static int32_t byte_token(int byte) {
    for (int32_t id = 0; id < rse_tokenizer_size(bundled); ++id) {
        size_t length = 0;
        const char *bytes = rse_tokenizer_bytes(bundled, id, &length);
        if (bytes != NULL && length == 1 && (uint8_t)bytes[0] == byte) {
            return id;
        }
    }
    return -1;
}

/* Feeds single bytes as tokens and returns what the stream made of them. */
static void stream_bytes(const char *bytes, size_t length, const char *want) {
    rse_error err = {0};
    rse_decoder decoder;
    rse_text out = {0};
    rse_decoder_init(&decoder, bundled, false);
    for (size_t i = 0; i < length; ++i) {
        assert_int_equal(rse_decoder_push(&decoder, byte_token((uint8_t)bytes[i]), &out, &err), RSE_OK);
    }
    assert_int_equal(rse_decoder_flush(&decoder, &out, &err), RSE_OK);
    assert_string_equal(out.data, want);
    rse_text_free(&out);
}

/* G10: characters split over tokens are held back, never shown as U+FFFD; what cannot complete is one U+FFFD
 * per maximal subpart. */
static void G10_a_stream_is_valid_utf8(void **state) {
    (void)state;
    stream_bytes("\xf0\x9f\x98\x80!", 5, "\xf0\x9f\x98\x80!");
    stream_bytes("\xe4\xbd", 2, "\xef\xbf\xbd");
    stream_bytes("\xe4\xbd"
                 "a",
                 3,
                 "\xef\xbf\xbd"
                 "a");
    stream_bytes("\xff\xc0\x80", 3, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    stream_bytes("\xed\xa0\x80", 3, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    stream_bytes("\xf0\x9f\xf0\x9f\x98\x80", 6, "\xef\xbf\xbd\xf0\x9f\x98\x80");
    stream_bytes("\xf4\x90\x80\x80", 4, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
}

static void special_tokens_are_dropped_unless_shown(void **state) {
    (void)state;
    for (int show = 0; show < 2; ++show) {
        rse_error err = {0};
        rse_decoder decoder;
        rse_text out = {0};
        rse_decoder_init(&decoder, bundled, show);
        assert_int_equal(rse_decoder_push(&decoder, rse_tokenizer_added(bundled, "<|im_end|>"), &out, &err),
                         RSE_OK);
        assert_int_equal(rse_decoder_push(&decoder, byte_token('x'), &out, &err), RSE_OK);
        assert_string_equal(out.data, show ? "<|im_end|>x" : "x");
        rse_text_free(&out);
    }
}

static void ids_outside_the_vocabulary_are_named(void **state) {
    (void)state;
    rse_decoder decoder;
    rse_text out = {0};
    rse_decoder_init(&decoder, bundled, false);
    const int32_t ids[] = {-1, 4096, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < 4; ++i) {
        rse_error err = {0};
        char want[32];
        snprintf(want, sizeof want, "token id %d ", (int)ids[i]);
        assert_int_equal(rse_decoder_push(&decoder, ids[i], &out, &err), RSE_ERROR_USAGE);
        assert_non_null(strstr(err.text, want));
        assert_false(rse_tokenizer_is_special(bundled, ids[i]));
    }
    assert_int_equal(out.length, 0);
    assert_int_equal(rse_tokenizer_added(bundled, "nothing"), -1);
}

static void invalid_utf8_is_refused_with_its_offset(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t length, offset;
    } cases[] = {{"ab\xff", 3, 2},
                 {"\xc3", 1, 0},
                 {"x\xed\xa0\x80", 4, 1},
                 {"\xc0\x80", 2, 0},
                 {"\xf4\x90\x80\x80", 4, 0},
                 {"ok\xe2\x82", 4, 2},
                 {"\x80", 1, 0},
                 {"\xf8\x88\x80\x80\x80", 5, 0}};
    rse_ids ids = {0};
    rse_error err = {0};
    assert_int_equal(rse_ids_append(&ids, 7, &err), RSE_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        char want[32];
        snprintf(want, sizeof want, "at byte %zu ", cases[i].offset);
        assert_int_equal(rse_tokenizer_encode(bundled, cases[i].text, cases[i].length, 0, &ids, &err),
                         RSE_ERROR_USAGE);
        assert_non_null(strstr(err.text, want));
        assert_int_equal(ids.count, 1);
    }
    rse_ids_free(&ids);
}

static void a_long_word_takes_no_quadratic_time(void **state) {
    (void)state;
    enum { N = 1 << 18 };
    char *text = malloc(N);
    assert_non_null(text);
    for (int kind = 0; kind < 4; ++kind) {
        rse_error err = {0};
        rse_ids ids = {0};
        for (size_t i = 0; i < N; ++i) {
            text[i] = kind == 0   ? "aab"[i * 7 % 3]
                      : kind == 1 ? ' '
                      : kind == 2 ? '<'
                                  : "\xcc\x81\xcc\xa3"[i % 4]; /* marks that NFC has to sort */
        }
        assert_int_equal(rse_tokenizer_encode(bundled, text, N, RSE_ENCODE_SPECIAL, &ids, &err), RSE_OK);
        size_t bytes = 0;
        for (size_t i = 0; i < ids.count; ++i) {
            size_t length = 0;
            assert_non_null(rse_tokenizer_bytes(bundled, ids.data[i], &length));
            bytes += length;
        }
        assert_int_equal(bytes, N);
        rse_ids_free(&ids);
    }
    free(text);
}

/* ---- Patterns ----------------------------------------------------------------------------------------- */

static void patterns_are_translated(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"\\s+(?!\\S)", "\\p{wspace}+(?!\\P{wspace})"},
        {"[^\\s\\p{L}]", "[^\\p{wspace}\\p{L}]"},
        {"\\p{Han}\\P{Lu}\\p{^N}", "\\p{sc:Han}\\P{Lu}\\p{^N}"},
        {"[\\p{L}&&[^\\p{Han}]]+", "(?:(?![\\p{sc:Han}])[\\p{L}])+"},
        {"[\\u4e00-\\x{9fa5}]{1,3}", "[\\x{4e00}-\\x{9fa5}]{1,3}"},
        {"(?i:'s|'t)?+[-a]", "(?i:'s|'t)?+[-a]"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; ++i) {
        rse_error err = {0};
        rse_text out = {0};
        assert_int_equal(rse_pattern_translate(pairs[i][0], strlen(pairs[i][0]), &out, &err), RSE_OK);
        assert_string_equal(out.data, pairs[i][1]);
        rse_text_free(&out);
    }
}

static void patterns_that_read_differently_are_refused(void **state) {
    (void)state;
    static const char *const patterns[] = {
        "\\w+",        "\\b",        "^a",
        "a$",          "\\h",        "\\v",
        "(?<name>a)",  "(?m:a)",     "(*UTF)",
        "[a&&b]",      "[^a&&[^b]]", "[a[b]]",
        "[[:alpha:]]", "a{,3}",      "a{2}+",
        "{",           "\\1",        "\\pL",
        "\\p{L",       "\\p{}",      "\\u12",
        "\\x41",       "[a",         "\\",
        "\\K",         "\\Qa\\E",    "\\p{Alphabetic}",
        "[a&&[^b]",    "\\x{}",      "(?P<n>)",
        "\\X",         "[a&&[^b]c]", "(?(1)a|b)",
        "a)",          "(a",         "[]a]",
    };
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; ++i) {
        json_t *patched = json_copy(source);
        json_object_set_new(patched, "pre_tokenizer",
                            json_pack("{s:s,s:[{s:s,s:{s:s},s:s},{s:s,s:b,s:b}]}", "type", "Sequence",
                                      "pretokenizers", "type", "Split", "pattern", "Regex", patterns[i],
                                      "behavior", "Isolated", "type", "ByteLevel", "add_prefix_space", 0,
                                      "use_regex", 0));
        rse_tokenizer *t;
        rse_error err = {0};
        rse_status status = parse(patched, &t, &err);
        if (status != RSE_ERROR_UNSUPPORTED) {
            fail_msg("pattern %s: status %d", patterns[i], (int)status);
        }
        assert_non_null(strstr(err.text, "pattern"));
        assert_null(t);
        json_decref(patched);
    }
}

/* ---- Files that must be refused ----------------------------------------------------------------------- */

/* Replaces one member, at the top ("normalizer") or in the model ("model.vocab"), by a JSON text. */
static json_t *with(const char *path, const char *text) {
    json_error_t error;
    json_t *patched = json_deep_copy(source);
    json_t *value = json_loads(text, JSON_DECODE_ANY, &error);
    assert_non_null(value);
    if (strncmp(path, "model.", 6) == 0) {
        json_object_set_new(json_object_get(patched, "model"), path + 6, value);
    } else {
        json_object_set_new(patched, path, value);
    }
    return patched;
}

#define TOKEN "{\"id\":4096,\"content\":\"<x>\",\"special\":true"
static const struct {
    const char *path, *text, *named;
} refused[] = {
    {"normalizer", "{\"type\":\"NFKC\"}", "NFKC"},
    {"normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Lowercase\"}]}",
     "Lowercase"},
    {"normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Sequence\"}]}", "sequence inside"},
    {"normalizer", "{}", "no type"},
    {"pre_tokenizer", "null", "ByteLevel"},
    {"pre_tokenizer", "{\"type\":\"Whitespace\"}", "ByteLevel"},
    {"pre_tokenizer",
     "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\"},{\"type\":\"ByteLevel\"}]}", "Digits"},
    {"pre_tokenizer", "{\"type\":\"Sequence\",\"pretokenizers\":[]}", "ByteLevel"},
    {"pre_tokenizer", "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", "add_prefix_space"},
    {"pre_tokenizer",
     "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},"
     "\"behavior\":\"Removed\"},"
     "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}]}",
     "Removed"},
    {"pre_tokenizer",
     "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"String\":\" "
     "\"},\"behavior\":\"Isolated\"},"
     "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}]}",
     "Regex"},
    {"post_processor", "{\"type\":\"BertProcessing\"}", "BertProcessing"},
    {"post_processor", "{\"type\":\"TemplateProcessing\",\"single\":[],\"special_tokens\":{}}",
     "does not contain the text"},
    {"post_processor",
     "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},{\"Sequence\":{"
     "\"id\":\"A\"}}],"
     "\"special_tokens\":{}}",
     "<s>"},
    {"post_processor",
     "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},{\"Sequence\":{"
     "\"id\":\"A\"}}],"
     "\"special_tokens\":{\"<s>\":{\"ids\":[5000]}}}",
     "outside the vocabulary"},
    {"decoder", "null", "decoder"},
    {"decoder", "{\"type\":\"WordPiece\"}", "decoder"},
    {"model.type", "\"Unigram\"", "Unigram"},
    {"model.dropout", "0.1", "dropout"},
    {"model.continuing_subword_prefix", "\"##\"", "##"},
    {"model.vocab", "[]", "vocab"},
    {"model.vocab", "null", "vocab"},
    {"model.vocab", "{\"a\":0}", "0x00"},
    {"model.vocab", "{\"a\":-1}", "a is not in"},
    {"model.vocab", "{\"a\":99999999}", "a is not in"},
    {"model.vocab", "{\"a\":1.5}", "a is not in"},
    {"model.vocab", "{\"a\":3,\"b\":3}", "id 3"},
    {"model.merges", "{}", "merges"},
    {"model.merges", "[\"a\"]", "merge 0"},
    {"model.merges", "[\"a b c\"]", "merge 0"},
    {"model.merges", "[[\"t\",\"h\"],[\"a\"]]", "merge 1"},
    {"model.merges", "[[\"t\",\"h\"],[\"a\",7]]", "merge 1"},
    {"model.merges", "[\"q zzz\"]", "not in the vocabulary"},
    {"model.merges", "[\"\\u4e2d a\"]", "no byte"},
    {"added_tokens", "{}", "added_tokens"},
    {"added_tokens", "[3]", "added token 0"},
    {"added_tokens", "[{\"content\":\"<x>\"}]", "id is missing"},
    {"added_tokens", "[{\"id\":4096,\"content\":\"\"}]", "4096"},
    {"added_tokens", "[{\"id\":4096}]", "4096"},
    {"added_tokens", "[" TOKEN ",\"lstrip\":true}]", "lstrip"},
    {"added_tokens", "[" TOKEN ",\"rstrip\":true}]", "rstrip"},
    {"added_tokens", "[" TOKEN ",\"single_word\":true}]", "single_word"},
    {"added_tokens", "[" TOKEN "}," TOKEN "}]", "twice"},
    {"added_tokens", "[{\"id\":77,\"content\":\"<x>\"}]", "77"},
    {"added_tokens", "[{\"id\":16777216,\"content\":\"<x>\"}]", "16777216"},
};
#undef TOKEN

/* F07: no part of the file is skipped because it is not known. */
static void F07_unknown_parts_are_refused_by_name(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; ++i) {
        json_t *patched = with(refused[i].path, refused[i].text);
        rse_tokenizer *t;
        rse_error err = {0};
        rse_status status = parse(patched, &t, &err);
        if (status != RSE_ERROR_UNSUPPORTED && status != RSE_ERROR_FORMAT) {
            fail_msg("%s = %s: status %d", refused[i].path, refused[i].text, (int)status);
        }
        if (strstr(err.text, refused[i].named) == NULL) {
            fail_msg("%s = %s: \"%s\" does not say %s", refused[i].path, refused[i].text, err.text,
                     refused[i].named);
        }
        assert_null(t);
        json_decref(patched);
    }
}

static void merges_as_strings_and_as_pairs_are_equal(void **state) {
    (void)state;
    json_t *patched = json_deep_copy(source);
    json_t *merges = json_object_get(json_object_get(patched, "model"), "merges");
    for (size_t i = 0; i < json_array_size(merges); ++i) {
        const json_t *pair = json_array_get(merges, i);
        json_array_set_new(merges, i,
                           json_sprintf("%s %s", json_string_value(json_array_get(pair, 0)),
                                        json_string_value(json_array_get(pair, 1))));
    }
    rse_tokenizer *t;
    rse_error err = {0};
    assert_int_equal(parse(patched, &t, &err), RSE_OK);
    static const char text[] = "The merges of a file may be strings or pairs; the ids are the same.";
    rse_ids a = {0};
    rse_ids b = {0};
    assert_int_equal(rse_tokenizer_encode(bundled, text, strlen(text), 0, &a, &err), RSE_OK);
    assert_int_equal(rse_tokenizer_encode(t, text, strlen(text), 0, &b, &err), RSE_OK);
    assert_int_equal(a.count, b.count);
    assert_memory_equal(a.data, b.data, a.count * sizeof *a.data);
    rse_ids_free(&a);
    rse_ids_free(&b);
    rse_tokenizer_free(t);
    json_decref(patched);
}

static void damaged_files_are_refused(void **state) {
    (void)state;
    char *text = json_dumps(source, JSON_COMPACT);
    size_t length = strlen(text);
    rse_tokenizer *t;
    rse_error err = {0};
    for (size_t cut = 0; cut < length; cut += 1 + length / 23) {
        assert_int_equal(rse_tokenizer_parse(text, cut, &t, &err), RSE_ERROR_FORMAT);
        assert_null(t);
    }
    free(text);
    assert_int_equal(rse_tokenizer_load("/nonexistent/tokenizer.json", &t, &err), RSE_ERROR_IO);
    assert_int_equal(rse_tokenizer_load(RSSM_SOURCE_DIR "/tests", &t, &err), RSE_ERROR_IO);
    assert_int_equal(rse_tokenizer_parse("[]", 2, &t, &err), RSE_ERROR_FORMAT);
    rse_tokenizer_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(F07_ids_equal_the_reference),
        cmocka_unit_test(every_byte_is_a_token_and_comes_back),
        cmocka_unit_test(any_code_point_comes_back),
        cmocka_unit_test(G10_a_stream_is_valid_utf8),
        cmocka_unit_test(special_tokens_are_dropped_unless_shown),
        cmocka_unit_test(ids_outside_the_vocabulary_are_named),
        cmocka_unit_test(invalid_utf8_is_refused_with_its_offset),
        cmocka_unit_test(a_long_word_takes_no_quadratic_time),
        cmocka_unit_test(patterns_are_translated),
        cmocka_unit_test(patterns_that_read_differently_are_refused),
        cmocka_unit_test(F07_unknown_parts_are_refused_by_name),
        cmocka_unit_test(merges_as_strings_and_as_pairs_are_equal),
        cmocka_unit_test(damaged_files_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
