/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The JSON wrapper and the file functions under it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static rse_json *parse(const char *text) {
    rse_error err = {0};
    rse_json *root;
    if (rse_json_parse(text, strlen(text), "x.json", &root, &err) != RSE_OK) {
        fail_msg("%s", err.text);
    }
    return root;
}

static void values_have_kinds(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int32_t kind;
    } cases[] = {{"null", RSE_JSON_NULL},
                 {"true", RSE_JSON_BOOL},
                 {"-7", RSE_JSON_INTEGER},
                 {"1e3", RSE_JSON_NUMBER},
                 {"\"\"", RSE_JSON_STRING},
                 {"[]", RSE_JSON_ARRAY},
                 {"{}", RSE_JSON_OBJECT},
                 {"Infinity", RSE_JSON_NUMBER},
                 {"{\"__float__\":\"NaN\"}", RSE_JSON_NUMBER},
                 {"{\"__float__\":\"x\"}", RSE_JSON_OBJECT}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        rse_json *root = parse(cases[i].text);
        assert_int_equal(rse_json_kind(root), cases[i].kind);
        rse_json_free(root);
    }
    assert_int_equal(rse_json_kind(NULL), RSE_JSON_NULL);
    assert_string_equal(rse_json_kind_name(RSE_JSON_INTEGER), "an integer");
    rse_json_free(NULL);
}

static void infinities_are_numbers_in_every_spelling(void **state) {
    (void)state;
    rse_json *root =
        parse("{\"a\": [0.0, Infinity], \"b\":-Infinity,\"c\":NaN , \"d\": {\"__float__\": \"Infinity\"},"
              "\"e\": \"Infinity, \\\"NaN\", \"f\": [Infinity,-Infinity]}");
    assert_true(rse_json_number(rse_json_item(rse_json_member(root, "a"), 1)) == HUGE_VAL);
    assert_true(rse_json_number(rse_json_member(root, "b")) == -HUGE_VAL);
    assert_true(isnan(rse_json_number(rse_json_member(root, "c"))));
    assert_true(rse_json_number(rse_json_member(root, "d")) == HUGE_VAL);
    assert_string_equal(rse_json_string(rse_json_member(root, "e"), NULL), "Infinity, \"NaN");
    assert_true(rse_json_number(rse_json_item(rse_json_member(root, "f"), 1)) == -HUGE_VAL);
    rse_json_free(root);
}

static void errors_have_line_and_column(void **state) {
    (void)state;
    static const struct {
        const char *text, *named;
    } cases[] = {{"", "line 1, column 1"},
                 {"{\n  \"a\": 1,\n  \"a\": 2}", "line 3"},
                 {"{\"a\": Infinity, \"b\": }", "line 1, column 2"},
                 {"[1,]", "line 1"},
                 {"{\"a\":Infinit}", "line 1"},
                 {"{\"a\":Infinityx}", "line 1"},
                 {"{} {}", "line 1"},
                 {"\"\xff\"", "line 1"},
                 {"{\"a\\u0000b\":1}", "line 1"},
                 {"\"abc\\", "line 1"},
                 {"99999999999999999999999", "line 1"},
                 {"1e999", "line 1"},
                 {"[01]", "line 1"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        rse_error err = {0};
        rse_json *root;
        assert_int_equal(rse_json_parse(cases[i].text, strlen(cases[i].text), "x.json", &root, &err),
                         RSE_ERROR_FORMAT);
        assert_null(root);
        if (strstr(err.text, "x.json: ") == NULL || strstr(err.text, cases[i].named) == NULL) {
            fail_msg("%s: %s", cases[i].text, err.text);
        }
    }
}

static void nesting_is_bounded(void **state) {
    (void)state;
    enum { DEEP = 100000 };
    char *text = malloc(2 * DEEP);
    assert_non_null(text);
    memset(text, '[', DEEP);
    memset(text + DEEP, ']', DEEP);
    rse_error err = {0};
    rse_json *root;
    assert_int_equal(rse_json_parse(text, 2 * DEEP, "x.json", &root, &err), RSE_ERROR_FORMAT);
    assert_non_null(strstr(err.text, "deeper than 64"));
    const char *fits = text + DEEP - RSE_JSON_DEPTH;
    assert_int_equal(rse_json_parse(fits, 2 * RSE_JSON_DEPTH, "x.json", &root, &err), RSE_OK);
    rse_json_free(root);
    free(text);
}

static void the_length_bounds_the_text(void **state) {
    (void)state;
    static const char text[] = "[1, 2] garbage";
    rse_error err = {0};
    rse_json *root;
    assert_int_equal(rse_json_parse(text, 6, "x.json", &root, &err), RSE_OK);
    assert_int_equal(rse_json_count(root), 2);
    assert_null(rse_json_item(root, 2));
    rse_json_free(root);
    for (size_t n = 0; n < 6; ++n) {
        assert_int_equal(rse_json_parse(text, n, "x.json", &root, &err), RSE_ERROR_FORMAT);
    }
}

static void members_are_checked(void **state) {
    (void)state;
    rse_json *root = parse("{\"i\": 5, \"r\": 0.5, \"b\": true, \"s\": \"x\", \"a\": [1], \"n\": null}");
    rse_error err = {0};
    int64_t i = -1;
    double r = -1;
    bool b = false;
    const char *s = "default";
    const rse_json *a = NULL;
    assert_int_equal(rse_json_get_int(root, "f", "i", 0, 9, &i, &err), RSE_OK);
    assert_int_equal(i, 5);
    assert_int_equal(rse_json_get_int(root, "f", "i", 6, 9, &i, &err), RSE_ERROR_FORMAT);
    assert_string_equal(err.text, "f: i is 5, not in 6..9");
    assert_int_equal(rse_json_get_int(root, "f", "r", 0, 9, &i, &err), RSE_ERROR_FORMAT);
    assert_string_equal(err.text, "f: r is a number, not an integer");
    assert_int_equal(rse_json_get_number(root, "f", "r", 0, 1, &r, &err), RSE_OK);
    assert_true(r == 0.5);
    assert_int_equal(rse_json_get_number(root, "f", "i", 0, 9, &r, &err), RSE_OK);
    assert_true(r == 5);
    assert_int_equal(rse_json_get_number(root, "f", "s", 0, 9, &r, &err), RSE_ERROR_FORMAT);
    assert_int_equal(rse_json_get_bool(root, "f", "b", &b, &err), RSE_OK);
    assert_true(b);
    assert_int_equal(rse_json_get_bool(root, "f", "i", &b, &err), RSE_ERROR_FORMAT);
    assert_int_equal(rse_json_get_string(root, "f", "n", &s, &err), RSE_OK);
    assert_string_equal(s, "default");
    assert_int_equal(rse_json_get(root, "f", "a", RSE_JSON_ARRAY, &a, &err), RSE_OK);
    assert_int_equal(rse_json_count(a), 1);
    assert_int_equal(rse_json_get(root, "f", "a", RSE_JSON_OBJECT, &a, &err), RSE_ERROR_FORMAT);
    assert_int_equal(rse_json_need(root, "f", "i", &err), RSE_OK);
    assert_int_equal(rse_json_need(root, "f", "n", &err), RSE_ERROR_FORMAT);
    assert_int_equal(rse_json_need(root, "f", "absent", &err), RSE_ERROR_FORMAT);
    assert_string_equal(err.text, "f: absent is missing");
    rse_json_free(root);
}

static rse_status collect(void *user, const char *key, const rse_json *value, rse_error *err) {
    rse_text *keys = user;
    if (rse_json_integer(value) == 3) {
        return rse_fail(err, RSE_ERROR_USAGE, "three");
    }
    return rse_text_append(keys, key, strlen(key), err);
}

static void members_come_in_the_order_of_the_file(void **state) {
    (void)state;
    rse_json *root = parse("{\"z\": 1, \"b\": 2, \"a\": 5, \"q\": 3, \"r\": 4}");
    rse_error err = {0};
    rse_text keys = {0};
    assert_int_equal(rse_json_each(root, collect, &keys, &err), RSE_ERROR_USAGE);
    assert_string_equal(keys.data, "zba");
    rse_text_free(&keys);
    rse_json_free(root);
}

static void quoted_text_reads_back(void **state) {
    (void)state;
    char text[128];
    for (int i = 0; i < 127; ++i) {
        text[i] = (char)(i + 1);
    }
    rse_error err = {0};
    rse_text out = {0};
    assert_int_equal(rse_json_quote(text, 127, &out, &err), RSE_OK);
    assert_int_equal(rse_json_quote("\xe2\x82\xac", 3, &out, &err), RSE_OK);
    assert_string_equal(out.data + out.length - 5, "\"\xe2\x82\xac\"");
    rse_json *root;
    assert_int_equal(rse_json_parse(out.data, out.length - 5, "x", &root, &err), RSE_OK);
    size_t length = 0;
    const char *back = rse_json_string(root, &length);
    assert_int_equal(length, 127);
    assert_memory_equal(back, text, 127);
    rse_json_free(root);
    rse_text_free(&out);
}

static void files_are_read_up_to_a_limit(void **state) {
    (void)state;
    char path[] = "/tmp/rse_test_json_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    rse_error err = {0};
    rse_mapping map;
    char *data;
    size_t size;
    assert_int_equal(rse_file_map(path, &map, &err), RSE_OK); /* empty */
    assert_int_equal(map.size, 0);
    rse_file_unmap(&map);
    assert_int_equal(rse_file_read(path, 0, &data, &size, &err), RSE_OK);
    assert_string_equal(data, "");
    free(data);
    assert_int_equal(write(fd, "hello", 5), 5);
    close(fd);
    assert_int_equal(rse_file_read(path, 5, &data, &size, &err), RSE_OK);
    assert_string_equal(data, "hello");
    free(data);
    assert_int_equal(rse_file_read(path, 4, &data, &size, &err), RSE_ERROR_FORMAT);
    assert_null(data);
    assert_int_equal(rse_file_map(path, &map, &err), RSE_OK);
    assert_memory_equal(map.data, "hello", 5);
    rse_file_unmap(&map);
    assert_null(map.data);
    unlink(path);
    assert_int_equal(rse_file_map(path, &map, &err), RSE_ERROR_IO);
    assert_non_null(strstr(err.text, "No such file"));
    assert_int_equal(rse_file_map("/tmp", &map, &err), RSE_ERROR_IO);
    assert_non_null(strstr(err.text, "directory"));
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(rse_file_read(path, 4, &data, &size, &err), RSE_ERROR_IO);
    unlink(path);
}

static void paths_are_joined(void **state) {
    (void)state;
    static const char *const cases[][3] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"/", "b", "/b"}, {"", "b", "b"}};
    for (size_t i = 0; i < 4; ++i) {
        char *path = rse_path_join(cases[i][0], cases[i][1]);
        assert_string_equal(path, cases[i][2]);
        free(path);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_have_kinds),
        cmocka_unit_test(infinities_are_numbers_in_every_spelling),
        cmocka_unit_test(errors_have_line_and_column),
        cmocka_unit_test(nesting_is_bounded),
        cmocka_unit_test(the_length_bounds_the_text),
        cmocka_unit_test(members_are_checked),
        cmocka_unit_test(members_come_in_the_order_of_the_file),
        cmocka_unit_test(quoted_text_reads_back),
        cmocka_unit_test(files_are_read_up_to_a_limit),
        cmocka_unit_test(paths_are_joined),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
