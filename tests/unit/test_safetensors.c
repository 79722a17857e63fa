/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors files and the weights on top: what is written reads back, what lies is refused, and a model gets
 * exactly the tensors it asks for.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "load/safetensors.h"
#include "load/weights.h"
#include "numbers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char directory[64];
static char path[128];

static int setup(void **state) {
    (void)state;
    snprintf(directory, sizeof directory, "/tmp/rse_test_safetensors_XXXXXX");
    if (mkdtemp(directory) == NULL) {
        return 1;
    }
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    return 0;
}

static void in_directory(char out[192], const char *name) {
    snprintf(out, 192, "%s/%s", directory, name);
}

static int teardown(void **state) {
    (void)state;
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json", "a.safetensors",
                                        "b.safetensors", "part"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        char file[192];
        in_directory(file, names[i]);
        unlink(file);
    }
    return rmdir(directory);
}

static void put_file(const char *file, const void *data, size_t size) {
    unlink(file); /* truncating would make some file systems wait for the disk at each close */
    FILE *out = fopen(file, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(data, 1, size, out), size);
    assert_int_equal(fclose(out), 0);
}

/* A file with this header and `data_size` bytes of data, the first of which are 0, 1, 2, ... */
static void put_raw(const char *file, uint64_t claimed, const char *header, size_t data_size) {
    size_t length = strlen(header);
    uint8_t *bytes = calloc(1, 8 + length + data_size);
    assert_non_null(bytes);
    for (int i = 0; i < 8; ++i) {
        bytes[i] = (uint8_t)(claimed >> (8 * i));
    }
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < data_size; ++i) {
        bytes[8 + length + i] = (uint8_t)i;
    }
    put_file(file, bytes, 8 + length + data_size);
    free(bytes);
}

static void put_header(const char *header, size_t data_size) {
    put_raw(path, strlen(header), header, data_size);
}

static void expect_refusal(const char *open, const char *named) {
    rse_error err = {0};
    rse_safetensors *files;
    rse_status status = rse_safetensors_open(open, &files, &err);
    if (status == RSE_OK || files != NULL) {
        fail_msg("accepted: %s", named);
    }
    if (strstr(err.text, named) == NULL) {
        fail_msg("\"%s\" does not say %s", err.text, named);
    }
}

/* ---- Round trip --------------------------------------------------------------------------------------- */

/* Byte i of tensor t is a function of both, whatever the pieces. */
static uint8_t pattern(size_t index, uint64_t offset) {
    return (uint8_t)(offset * 31 + offset / 251 + index * 97);
}

static rse_status fill(void *user, size_t index, uint64_t offset, void *chunk, size_t bytes, rse_error *err) {
    size_t *calls = user;
    if (*calls == 0) {
        return rse_fail(err, RSE_ERROR_USAGE, "fill is tired");
    }
    --*calls;
    for (size_t i = 0; i < bytes; ++i) {
        ((uint8_t *)chunk)[i] = pattern(index, offset + i);
    }
    return RSE_OK;
}

static void written_files_read_back(void **state) {
    (void)state;
    static const float values[3] = {1.0f, -2.5f, 3.0f};
    const rse_tensor tensors[] = {
        {.name = "odd bytes", .dtype = RSE_DTYPE_U8, .rank = 1, .shape = {13}},
        {.name = "big", .dtype = RSE_DTYPE_BF16, .rank = 2, .shape = {1500, 1000}}, /* several pieces */
        {.name = "given \"quoted\" \xc3\xa9", .dtype = RSE_DTYPE_F32, .rank = 1, .shape = {3}, .data = values},
        {.name = "scalar", .dtype = RSE_DTYPE_F64, .rank = 0},
        {.name = "empty", .dtype = RSE_DTYPE_I64, .rank = 3, .shape = {2, 0, 5}},
        {.name = "eight", .dtype = RSE_DTYPE_I16, .rank = 8, .shape = {1, 2, 1, 2, 1, 1, 3, 1}},
    };
    enum { COUNT = sizeof tensors / sizeof tensors[0] };
    rse_error err = {0};
    size_t calls = 100;
    rse_safetensors *files;
    assert_int_equal(rse_safetensors_write(path, tensors, COUNT, fill, &calls, &err), RSE_OK);
    assert_int_equal(rse_safetensors_open(directory, &files, &err), RSE_OK);
    assert_int_equal(rse_safetensors_count(files), COUNT);
    for (size_t i = 0; i < COUNT; ++i) {
        const rse_tensor *t = rse_safetensors_find(files, tensors[i].name);
        assert_non_null(t);
        assert_int_equal(t->dtype, tensors[i].dtype);
        assert_int_equal(t->rank, tensors[i].rank);
        assert_memory_equal(t->shape, tensors[i].shape, sizeof t->shape);
        assert_int_equal(t->bytes, (size_t)rse_tensor_elements(t) * rse_dtype_size(t->dtype));
        assert_int_equal((uintptr_t)t->data % rse_dtype_size(t->dtype), 0);
        for (size_t j = 0; j < t->bytes; ++j) {
            uint8_t want = tensors[i].data != NULL ? ((const uint8_t *)tensors[i].data)[j] : pattern(i, j);
            assert_int_equal(((const uint8_t *)t->data)[j], want);
        }
    }
    for (size_t i = 1; i < COUNT; ++i) {
        assert_true(strcmp(rse_safetensors_at(files, i - 1)->name, rse_safetensors_at(files, i)->name) < 0);
    }
    assert_null(rse_safetensors_find(files, "absent"));
    rse_safetensors_close(files);
    rse_safetensors_close(NULL);
    unlink(path);
}

static void bad_requests_to_write_leave_nothing(void **state) {
    (void)state;
    const rse_tensor good = {.name = "a", .dtype = RSE_DTYPE_U8, .rank = 1, .shape = {4}};
    const rse_tensor cases[][2] = {
        {good, good}, /* two of one name */
        {{.name = "__metadata__", .dtype = RSE_DTYPE_U8}, good},
        {{.name = "\xff", .dtype = RSE_DTYPE_U8}, good},
        {{.name = "b", .dtype = RSE_DTYPE_COUNT}, good},
        {{.name = "b", .dtype = RSE_DTYPE_U8, .rank = 9}, good},
        {{.name = "b", .dtype = RSE_DTYPE_U8, .rank = 1, .shape = {-1}}, good},
        {{.name = "b", .dtype = RSE_DTYPE_F32, .rank = 2, .shape = {INT64_MAX / 2, 4}}, good},
    };
    rse_error err = {0};
    size_t calls = 100;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        assert_int_equal(rse_safetensors_write(path, cases[i], 2, fill, &calls, &err), RSE_ERROR_USAGE);
    }
    assert_int_equal(rse_safetensors_write(path, &good, 1, NULL, NULL, &err), RSE_ERROR_USAGE);
    calls = 0;
    assert_int_equal(rse_safetensors_write(path, &good, 1, fill, &calls, &err), RSE_ERROR_USAGE);
    assert_string_equal(err.text, "fill is tired");
    assert_int_equal(access(path, F_OK), -1);
    char part[192];
    in_directory(part, "model.safetensors.part");
    assert_int_equal(access(part, F_OK), -1);
    assert_int_equal(rse_safetensors_write("/nonexistent/x", &good, 1, fill, &calls, &err), RSE_ERROR_IO);
}

/* ---- Lies --------------------------------------------------------------------------------------------- */

static void headers_are_not_believed(void **state) {
    (void)state;
#define A(dtype, shape, offsets)                                                                               \
    "\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define B(offsets) ",\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" offsets "}"
    static const struct {
        const char *header, *named;
    } cases[] = {
        {"{" A("F32", "[2]", "[0,8]") "", "line 1"},
        {"[]", "no JSON object"},
        {"{}", "8 bytes of data"},
        {"{\"a\":3}", "a is an integer"},
        {"{\"__metadata__\":[]}", "__metadata__"},
        {"{" A("F31", "[2]", "[0,8]") "}", "F31"},
        {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", "no dtype"},
        {"{\"a\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]}}", "no dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", "no shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", "no data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"more\":1}}", "besides"},
        {"{" A("F32", "2", "[0,8]") "}", "no shape"},
        {"{" A("F32", "[-2]", "[0,8]") "}", "not all counts"},
        {"{" A("F32", "[2.0]", "[0,8]") "}", "not all counts"},
        {"{" A("F32", "[\"2\"]", "[0,8]") "}", "not all counts"},
        {"{" A("F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]") "}", "rank 9"},
        {"{" A("F32", "[3]", "[0,8]") "}", "8 bytes of data where its shape needs 12"},
        {"{" A("F32", "[1]", "[0,8]") "}", "8 bytes of data where its shape needs 4"},
        {"{" A("F16", "[2]", "[0,8]") "}", "needs 4"},
        {"{" A("F32", "[4611686018427387904,4]", "[0,8]") "}", "overflows"},
        {"{" A("F32", "[4294967296,4294967296,0]", "[0,0]") "}", "overflows"},
        {"{" A("F32", "[2]", "[0]") "}", "no data_offsets"},
        {"{" A("F32", "[2]", "[0,8,9]") "}", "no data_offsets"},
        {"{" A("F32", "[2]", "[0,8.0]") "}", "no data_offsets"},
        {"{" A("F32", "[2]", "{}") "}", "no data_offsets"},
        {"{" A("F32", "[2]", "[8,0]") "}", "do not lie"},
        {"{" A("F32", "[2]", "[-8,0]") "}", "do not lie"},
        {"{" A("F32", "[2]", "[8,16]") "}", "do not lie"},
        {"{" A("F32", "[2]", "[9223372036854775800,9223372036854775807]") "}", "do not lie"},
        {"{" A("F32", "[2]", "[0,99999999999999999999]") "}", "line 1"},
        {"{" A("U8", "[4]", "[0,4]") "}", "8 bytes of data, its tensors use 4"},
        {"{" A("U8", "[4]", "[4,8]") "}", "hole"},
        {"{" A("U8", "[4]", "[0,4]") B("[0,4]") "}", "overlapping"},
        {"{" A("U8", "[4]", "[0,4]") B("[2,6]") "}", "overlapping"},
        {"{" A("U8", "[2]", "[0,2]") B("[4,8]") "}", "hole"},
        {"{" A("U8", "[8]", "[0,8]") "," A("U8", "[8]", "[0,8]") "}", "line 1"},
    };
#undef A
#undef B
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        put_header(cases[i].header, 8);
        expect_refusal(path, cases[i].named);
    }
    unlink(path);
}

static void lengths_are_not_believed(void **state) {
    (void)state;
    static const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
    size_t length = strlen(header);
    const uint64_t claims[] = {
        0,          length - 1,     length + 1, length + 8,        length + 9,
        UINT64_MAX, UINT64_MAX - 7, 100000001,  UINT64_C(1) << 63, UINT64_C(1) << 32 | length};
    for (size_t i = 0; i < sizeof claims / sizeof claims[0]; ++i) {
        put_raw(path, claims[i], header, 8);
        expect_refusal(path, "model.safetensors: ");
    }
    uint8_t whole[256] = {(uint8_t)length};
    memcpy(whole + 8, header, length);
    for (size_t cut = 0; cut < 8 + length + 8; ++cut) {
        put_file(path, whole, cut);
        expect_refusal(path, "model.safetensors: ");
    }
    put_file(path, whole, 8 + length + 9);
    expect_refusal(path, "9 bytes of data");
    put_file(path, whole, 8 + length + 8);
    rse_error err = {0};
    rse_safetensors *files;
    assert_int_equal(rse_safetensors_open(path, &files, &err), RSE_OK);
    rse_safetensors_close(files);
    unlink(path);
    expect_refusal(path, "No such file");
    expect_refusal(directory, "neither");
}

/* One byte of a good file changed, every place in turn: refused, or read without touching what is not there. */
static void any_flipped_byte_is_survived(void **state) {
    (void)state;
    static const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                                 "\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[8,14]}}";
    size_t length = strlen(header);
    static const uint8_t flips[] = {1, 0x10, 0x80};
    for (size_t at = 0; at < (8 + length) * sizeof flips; ++at) {
        uint8_t bytes[256] = {(uint8_t)length};
        memcpy(bytes + 8, header, length);
        bytes[at / sizeof flips] ^= flips[at % sizeof flips];
        put_file(path, bytes, 8 + length + 14);
        rse_error err = {0};
        rse_safetensors *files;
        if (rse_safetensors_open(path, &files, &err) == RSE_OK) {
            uint64_t sum = 0;
            for (size_t i = 0; i < rse_safetensors_count(files); ++i) {
                const rse_tensor *t = rse_safetensors_at(files, i);
                for (size_t j = 0; j < t->bytes; ++j) {
                    sum += ((const uint8_t *)t->data)[j];
                }
            }
            assert_int_equal(sum, 0);
        } else {
            assert_true(err.text[0] != '\0');
        }
        rse_safetensors_close(files);
    }
    unlink(path);
}

/* ---- Shards ------------------------------------------------------------------------------------------- */

static void put_index(const char *map) {
    char file[192];
    char text[512];
    in_directory(file, "model.safetensors.index.json");
    snprintf(text, sizeof text, "{\"metadata\":{},\"weight_map\":%s}", map);
    put_file(file, text, strlen(text));
}

static void shards_and_index_must_agree(void **state) {
    (void)state;
    static const struct {
        const char *map, *named;
    } cases[] = {
        {"{\"a\":\"a.safetensors\",\"b\":\"b.safetensors\",\"c\":\"b.safetensors\"}",
         "tensor c is not in b.safetensors"},
        {"{\"a\":\"a.safetensors\",\"b\":\"a.safetensors\"}", "tensor b is not in a.safetensors"},
        {"{\"a\":\"a.safetensors\",\"b\":\"missing.safetensors\"}", "No such file"},
        {"{\"a\":\"../a.safetensors\"}", "no name of a shard"},
        {"{\"a\":\"..\"}", "no name of a shard"},
        {"{\"a\":\"/etc/passwd\"}", "no name of a shard"},
        {"{\"a\":\"sub/a.safetensors\"}", "no name of a shard"},
        {"{\"a\":\"\"}", "no name of a shard"},
        {"{\"a\":7}", "no name of a shard"},
        {"[]", "weight_map"},
        {"{\"a\":", "line 1"},
    };
    char file[2][192];
    in_directory(file[0], "a.safetensors");
    in_directory(file[1], "b.safetensors");
    static const char a[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}";
    static const char b[] = "{\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}";
    put_raw(file[0], strlen(a), a, 4);
    put_raw(file[1], strlen(b), b, 4);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        put_index(cases[i].map);
        expect_refusal(directory, cases[i].named);
    }
    put_index("{\"a\":\"a.safetensors\",\"b\":\"b.safetensors\"}");
    rse_error err = {0};
    rse_safetensors *files;
    assert_int_equal(rse_safetensors_open(directory, &files, &err), RSE_OK);
    assert_int_equal(rse_safetensors_count(files), 2);
    rse_safetensors_close(files);
    put_raw(file[1], strlen(a), a, 4); /* the second shard repeats the first one's tensor */
    put_index("{\"a\":\"a.safetensors\",\"b\":\"b.safetensors\"}");
    expect_refusal(directory, "tensor a is also in");
}

/* ---- Weights ------------------------------------------------------------------------------------------ */

static void names_become_canonical(void **state) {
    (void)state;
    static const char *const pairs[][2] = {
        {"model.language_model.layers.0.w", "layers.0.w"},
        {"language_model.model.norm.weight", "norm.weight"},
        {"language_model.x", "x"},
        {"model.embed_tokens.weight", "embed_tokens.weight"},
        {"backbone.norm_f.weight", "norm_f.weight"},
        {"lm_head.weight", "lm_head.weight"},
        {"mtp.fc.weight", "mtp.fc.weight"},
        {"model.visual.blocks.0.w", "visual.blocks.0.w"},
    };
    enum { COUNT = sizeof pairs / sizeof pairs[0] };
    rse_tensor tensors[COUNT];
    for (size_t i = 0; i < COUNT; ++i) {
        tensors[i] = (rse_tensor){.name = pairs[i][0], .dtype = RSE_DTYPE_F32, .rank = 1, .shape = {2}};
    }
    rse_error err = {0};
    size_t calls = 100;
    rse_weights *w;
    assert_int_equal(rse_safetensors_write(path, tensors, COUNT, fill, &calls, &err), RSE_OK);
    assert_int_equal(rse_weights_open(directory, &w, &err), RSE_OK);
    assert_true(rse_weights_has_prefix(w, "mtp."));
    assert_false(rse_weights_has_prefix(w, "mtp.layers."));
    for (size_t i = 0; i < COUNT; ++i) {
        rse_tensor view;
        assert_true(rse_weights_has(w, pairs[i][1]));
        if (i + 1 < COUNT) {
            assert_int_equal(rse_weights_finish(w, rse_weights_vision, &err), RSE_ERROR_FORMAT);
            assert_int_equal(rse_weights_view(w, pairs[i][1], rse_shape1(2), &view, &err), RSE_OK);
            assert_string_equal(view.name, pairs[i][1]);
        }
    }
    assert_int_equal(rse_weights_finish(w, rse_weights_vision, &err), RSE_OK);
    assert_int_equal(rse_weights_finish(w, NULL, &err), RSE_ERROR_FORMAT);
    assert_string_equal(err.text,
                        "tensor model.visual.blocks.0.w does not belong to this model (1 of 8 tensors do not)");
    rse_weights_close(w);
    rse_weights_close(NULL);
    tensors[1].name = "backbone.layers.0.w";
    assert_int_equal(rse_safetensors_write(path, tensors, COUNT, fill, &calls, &err), RSE_OK);
    assert_int_equal(rse_weights_open(directory, &w, &err), RSE_ERROR_FORMAT);
    assert_non_null(strstr(err.text, "are both layers.0.w"));
    unlink(path);
}

/* F03: the layouts in which checkpoints of one family store the same tensor. */
static void F03_layouts_of_one_tensor_are_accepted(void **state) {
    (void)state;
    const rse_tensor tensors[] = {
        {.name = "conv3", .dtype = RSE_DTYPE_BF16, .rank = 3, .shape = {6, 1, 4}},
        {.name = "conv2", .dtype = RSE_DTYPE_BF16, .rank = 2, .shape = {6, 4}},
        {.name = "flat", .dtype = RSE_DTYPE_BF16, .rank = 1, .shape = {24}},
        {.name = "log", .dtype = RSE_DTYPE_F32, .rank = 4, .shape = {1, 1, 5, 1}},
        {.name = "turned", .dtype = RSE_DTYPE_BF16, .rank = 2, .shape = {4, 6}},
        {.name = "codes", .dtype = RSE_DTYPE_U8, .rank = 2, .shape = {6, 4}},
    };
    rse_error err = {0};
    size_t calls = 100;
    rse_weights *w;
    rse_tensor view;
    assert_int_equal(rse_safetensors_write(path, tensors, 6, fill, &calls, &err), RSE_OK);
    assert_int_equal(rse_weights_open(path, &w, &err), RSE_OK);
    for (size_t i = 0; i < 3; ++i) {
        assert_int_equal(rse_weights_view(w, tensors[i].name, rse_shape2(6, 4), &view, &err), RSE_OK);
        assert_int_equal(view.rank, 2);
        assert_int_equal(view.shape[0], 6);
        assert_int_equal(view.shape[1], 4);
        assert_int_equal(rse_weights_view(w, tensors[i].name, rse_shape3(6, 1, 4), &view, &err), RSE_OK);
        assert_int_equal(view.rank, 3);
    }
    assert_int_equal(rse_weights_view(w, "log", rse_shape1(5), &view, &err), RSE_OK);
    assert_int_equal(rse_weights_view(w, "turned", rse_shape2(6, 4), &view, &err), RSE_ERROR_FORMAT);
    assert_string_equal(err.text, "tensor turned has shape [4, 6], expected is [6, 4]");
    assert_int_equal(rse_weights_view(w, "flat", rse_shape2(6, 5), &view, &err), RSE_ERROR_FORMAT);
    assert_int_equal(rse_weights_view(w, "codes", rse_shape2(6, 4), &view, &err), RSE_ERROR_UNSUPPORTED);
    assert_string_equal(err.text, "tensor codes has dtype U8, supported here are F16, BF16, F32");
    assert_int_equal(rse_weights_view(w, "absent", rse_shape2(6, 4), &view, &err), RSE_ERROR_FORMAT);
    assert_string_equal(err.text, "tensor absent of shape [6, 4] is missing");
    assert_int_equal(rse_weights_finish(w, NULL, &err), RSE_ERROR_FORMAT);
    assert_non_null(strstr(err.text, "tensor codes does not belong to this model (2 of 6"));
    rse_weights_close(w);
    unlink(path);
}

/* F10: each tensor is read by its own format, whatever its neighbours have; misaligned data too. */
static void F10_mixed_formats_are_read_each_by_its_own(void **state) {
    (void)state;
    static const char header[] = "{\"pad\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                                 "\"q\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[1,5]},"
                                 "\"k\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[5,9]},"
                                 "\"v\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[9,17]}}";
    uint8_t bytes[512] = {(uint8_t)strlen(header)};
    bytes[1] = (uint8_t)(strlen(header) >> 8);
    size_t at = 8 + strlen(header) + 1;
    memcpy(bytes + 8, header, strlen(header));
    const uint16_t q[2] = {0x3fc0, 0xc000};
    const uint16_t k[2] = {0x3e00, 0xc000};
    const float v[2] = {1.5f, -2.0f};
    memcpy(bytes + at, q, 4);
    memcpy(bytes + at + 4, k, 4);
    memcpy(bytes + at + 8, v, 8);
    put_file(path, bytes, at + 16);
    rse_error err = {0};
    rse_weights *w;
    assert_int_equal(rse_weights_open(path, &w, &err), RSE_OK);
    static const char *const names[] = {"q", "k", "v"};
    for (int i = 0; i < 3; ++i) {
        float out[2];
        rse_tensor view;
        assert_int_equal(rse_weights_f32(w, names[i], rse_shape1(2), out, &err), RSE_OK);
        assert_true(out[0] == 1.5f && out[1] == -2.0f);
        assert_int_equal(rse_weights_view(w, names[i], rse_shape1(2), &view, &err), RSE_OK);
        assert_int_equal((uintptr_t)view.data % rse_dtype_size(view.dtype), 0);
        rse_convert_to_f32(view.dtype, view.data, 2, out);
        assert_true(out[0] == 1.5f && out[1] == -2.0f);
    }
    rse_weights_close(w);
    unlink(path);
}

static void bundled_models_open(void **state) {
    (void)state;
    static const struct {
        const char *name, *embedding;
    } models[] = {{"tiny-gdn", "embed_tokens.weight"}, {"tiny-mamba2", "embeddings.weight"}};
    for (int i = 0; i < 2; ++i) {
        char model[256];
        rse_error err = {0};
        rse_weights *w;
        rse_tensor view;
        snprintf(model, sizeof model, "%s/models/%s", RSSM_SOURCE_DIR, models[i].name);
        assert_int_equal(rse_weights_open(model, &w, &err), RSE_OK);
        assert_int_equal(rse_weights_view(w, models[i].embedding, rse_shape2(4096, 256), &view, &err), RSE_OK);
        assert_int_equal(view.dtype, RSE_DTYPE_BF16);
        assert_int_equal(view.bytes, 4096 * 256 * 2);
        rse_weights_close(w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_files_read_back),
        cmocka_unit_test(bad_requests_to_write_leave_nothing),
        cmocka_unit_test(headers_are_not_believed),
        cmocka_unit_test(lengths_are_not_believed),
        cmocka_unit_test(any_flipped_byte_is_survived),
        cmocka_unit_test(shards_and_index_must_agree),
        cmocka_unit_test(names_become_canonical),
        cmocka_unit_test(F03_layouts_of_one_tensor_are_accepted),
        cmocka_unit_test(F10_mixed_formats_are_read_each_by_its_own),
        cmocka_unit_test(bundled_models_open),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
