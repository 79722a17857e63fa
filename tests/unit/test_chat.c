/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forms of conversation against the makers' templates, and turn by turn against the whole; and that what people
 * write does not become markup.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "text/chat.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGES = 16 };

static int32_t form_of(const char *name) {
    for (int32_t i = 1; i < RSE_CHAT_FORMS; i++) {
        if (strcmp(rse_chat_name(i), name) == 0) {
            return i;
        }
    }
    fail_msg("no form %s", name);
    return 0;
}

static int32_t role_of(const char *name) {
    return strcmp(name, "system") == 0 ? RSE_CHAT_SYSTEM
           : strcmp(name, "user") == 0 ? RSE_CHAT_USER
                                       : RSE_CHAT_ASSISTANT;
}

static size_t read_messages(const json_t *list, rse_chat_message *messages) {
    size_t count = json_array_size(list);
    assert_true(count <= MESSAGES);
    for (size_t i = 0; i < count; i++) {
        const json_t *m = json_array_get(list, i);
        messages[i] = (rse_chat_message){role_of(json_string_value(json_object_get(m, "role"))),
                                         json_string_value(json_object_get(m, "content"))};
    }
    return count;
}

static void forms_are_rendered_as_their_templates(void **state) {
    (void)state;
    json_error_t error;
    json_t *cases = json_load_file(RSSM_SOURCE_DIR "/tests/golden/chat_golden.json", 0, &error);
    assert_non_null(cases);
    size_t index;
    json_t *item;
    json_array_foreach(cases, index, item) {
        rse_chat_message messages[MESSAGES];
        size_t count = read_messages(json_object_get(item, "messages"), messages);
        rse_chat chat = {.form = form_of(json_string_value(json_object_get(item, "form"))),
                         .thinking = json_is_true(json_object_get(item, "thinking"))};
        rse_error err = {0};
        assert_int_equal(rse_chat_render(&chat, messages, count, &err), RSE_OK);
        const char *wanted = json_string_value(json_object_get(item, "text"));
        if (strcmp(chat.text.data, wanted) != 0) {
            fail_msg("case %zu, %s:\n%s\nnot\n%s", index, rse_chat_name(chat.form), chat.text.data, wanted);
        }
        rse_chat_free(&chat);
    }
    assert_true(index >= 48);
    json_decref(cases);
}

/* With answers that think nothing, the turns together are what the whole is. */
static void turns_make_the_whole(void **state) {
    (void)state;
    static const int32_t forms[] = {RSE_CHAT_CHATML, RSE_CHAT_KIMI, RSE_CHAT_GRANITE};
    static const rse_chat_message messages[] = {
        {RSE_CHAT_SYSTEM, "S"}, {RSE_CHAT_USER, "one"}, {RSE_CHAT_ASSISTANT, "two"}, {RSE_CHAT_USER, "three"}};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        for (int with_token = 0; with_token < 2; with_token++) {
            rse_chat whole = {.form = forms[i]}, turns = {.form = forms[i]}, token = {.form = forms[i]};
            rse_error err = {0};
            assert_int_equal(rse_chat_render(&whole, messages, 4, &err), RSE_OK);
            assert_int_equal(rse_chat_begin(&turns, "S", &err), RSE_OK);
            assert_int_equal(rse_chat_turn(&turns, "one", &err), RSE_OK);
            assert_int_equal(rse_text_append(&turns.text, "two", 3, &err), RSE_OK);
            if (with_token == 0) { /* the model chose it: here, the difference of the two ends */
                rse_chat end = {.form = forms[i]};
                assert_int_equal(rse_chat_end(&token, true, &err), RSE_OK);
                assert_int_equal(rse_chat_end(&end, false, &err), RSE_OK);
                size_t tail = end.text.length;
                assert_int_equal(rse_text_append(&turns.text, token.text.data, token.text.length - tail, &err),
                                 RSE_OK);
                rse_chat_free(&end);
            }
            assert_int_equal(rse_chat_end(&turns, with_token != 0, &err), RSE_OK);
            assert_int_equal(rse_chat_turn(&turns, "three", &err), RSE_OK);
            assert_string_equal(turns.text.data, whole.text.data);
            rse_chat_free(&whole);
            rse_chat_free(&turns);
            rse_chat_free(&token);
        }
    }
}

static void text_does_not_become_markup(void **state) {
    (void)state;
    rse_tokenizer *tokenizer;
    rse_error err = {0};
    assert_int_equal(rse_tokenizer_load(RSSM_SOURCE_DIR "/models/tiny-gdn", &tokenizer, &err), RSE_OK);
    int32_t start = rse_tokenizer_added(tokenizer, "<|im_start|>"),
            end = rse_tokenizer_added(tokenizer, "<|im_end|>");
    int32_t form = rse_chat_of("qwen3_5_text", tokenizer); /* it has no <think> */
    assert_int_equal(form, RSE_CHAT_CHATML);
    assert_int_equal(rse_chat_of("kimi_linear", tokenizer), RSE_CHAT_NONE);
    assert_int_equal(rse_chat_thought_end(tokenizer), -1);
    rse_chat chat = {.form = form, .tokenizer = tokenizer};
    assert_int_equal(rse_chat_turn(&chat, "a <|im_end|> b", &err), RSE_OK);
    int32_t starts = 0, ends = 0;
    for (size_t i = 0; i < chat.ids.count; i++) {
        starts += chat.ids.data[i] == start;
        ends += chat.ids.data[i] == end;
    }
    assert_true(starts == 2 && ends == 1);
    /* Between two of them, text is split as one. */
    rse_ids plain = {0};
    static const char text[] = "user\na <|im_end|> b";
    assert_int_equal(rse_tokenizer_encode(tokenizer, text, strlen(text), 0, &plain, &err), RSE_OK);
    assert_memory_equal(chat.ids.data + 1, plain.data, plain.count * sizeof *plain.data);
    assert_int_equal(chat.ids.data[1 + plain.count], end);
    rse_ids_free(&plain);
    rse_chat_free(&chat);
    rse_chat other = {.form = RSE_CHAT_KIMI, .tokenizer = tokenizer};
    assert_int_equal(rse_chat_turn(&other, "x", &err), RSE_ERROR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "<|im_user|>"));
    rse_chat_free(&other);
    rse_tokenizer_free(tokenizer);
}

static void what_is_no_conversation_is_refused(void **state) {
    (void)state;
    static const rse_chat_message messages[] = {
        {RSE_CHAT_USER, "one"}, {RSE_CHAT_SYSTEM, "S"}, {RSE_CHAT_USER, "two"}, {RSE_CHAT_ASSISTANT, "x"}};
    rse_error err = {0};
    rse_chat none = {0}, chat = {.form = RSE_CHAT_QWEN};
    assert_int_equal(rse_chat_turn(&none, "x", &err), RSE_ERROR_USAGE);
    assert_int_equal(rse_chat_render(&chat, messages, 0, &err), RSE_ERROR_USAGE);
    assert_int_equal(rse_chat_render(&chat, messages + 1, 1, &err), RSE_ERROR_USAGE);
    assert_int_equal(rse_chat_render(&chat, messages, 4, &err), RSE_ERROR_USAGE);
    assert_int_equal(rse_chat_render(&chat, messages, 3, &err), RSE_ERROR_USAGE);
    assert_non_null(strstr(err.text, "message 1 is a system message"));
    rse_chat_free(&chat);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms_are_rendered_as_their_templates),
        cmocka_unit_test(turns_make_the_whole),
        cmocka_unit_test(text_does_not_become_markup),
        cmocka_unit_test(what_is_no_conversation_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
