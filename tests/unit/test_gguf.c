/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GGUF: the families' checkpoints as llama.cpp writes them give the logits of the same goldens; the tokenizer
 * of a file is the one it was made from; split files are one; and files that lie are refused.
 */
#include "base/file.h"
#include "load/gguf_model.h"
#include "model/model.h"
#include "model_fixture.h"
#include "text/tokenizer.h"

#include <unistd.h>

enum { LENGTH = 130 };
static const double limit = 2e-4;

static const char *const families[] = {"qwen3_5_moe", "qwen3_next",  "nemotron_h_moe", "nemotron_h_latent",
                                       "mamba2",      "granite_moe", "granite_dense",  "kimi_linear"};
enum { FAMILIES = sizeof families / sizeof families[0] };

static void path_of(const char *family, const char *file, char path[512]) {
    snprintf(path, 512, RSSM_SOURCE_DIR "/tests/golden/families/%s/%s", family, file);
}

static double logits_of(const char *family, const char *model, rse_engine_options options, bool prompt) {
    char path[512];
    rse_safetensors *expected;
    rse_engine *engine;
    path_of(family, "golden.safetensors", path);
    OK(rse_safetensors_open(path, &expected, &err));
    options.threads = 1;
    OK(rse_engine_open(model, &options, &engine, &err));
    const int32_t *tokens = rse_safetensors_find(expected, "tokens")->data;
    const rse_tensor *at = rse_safetensors_find(expected, "logits_at");
    const float *wanted = rse_safetensors_find(expected, "logits")->data;
    int32_t vocab = vocab_of(engine);
    float *logits = malloc((size_t)LENGTH * (size_t)vocab * sizeof *logits);
    rse_session *session = session_open(engine, 0);
    for (int32_t i = 0; i < LENGTH; i += prompt ? LENGTH : 1) {
        int32_t count = prompt ? LENGTH : 1;
        run_row(session, engine, tokens + i, count, prompt, RSE_ACCEPT_ALL, count, logits + (int64_t)i * vocab);
    }
    double most = 0.0;
    for (int64_t i = 0; i < at->shape[0]; i++) {
        int64_t row = ((const int32_t *)at->data)[i];
        double difference = largest_difference(logits + row * vocab, wanted + i * vocab, vocab);
        most = difference > most || isnan(difference) ? difference : most;
    }
    free(logits);
    rse_engine_close(engine);
    rse_safetensors_close(expected);
    return most;
}

static void test_goldens(void **state) {
    (void)state;
    for (int32_t i = 0; i < FAMILIES; i++) {
        char path[512];
        path_of(families[i], "model.gguf", path);
        double prompt = logits_of(families[i], path, (rse_engine_options){0}, true);
        double replay = logits_of(families[i], path, (rse_engine_options){.check = true}, false);
        print_message("%s: logits within %.2g, decoded %.2g\n", families[i], prompt, replay);
        assert_within(prompt, limit, "logits");
        assert_within(replay, limit, "decoded logits");
    }
}

static void test_tokenizer(void **state) {
    (void)state;
    static const char *const texts[] = {"The whale's teeth; we'll see.", "caf\xc3\xa9 1234\n\n  x",
                                        "<|im_start|>user\nHi<|im_end|>", "e\xcc\x81 \xe4\xbd\xa0\xe5\xa5\xbd"};
    rse_tokenizer *a, *b;
    OK(rse_tokenizer_load(MODEL_DIR("tiny-gdn"), &a, &err));
    OK(rse_tokenizer_load(RSSM_SOURCE_DIR "/tests/golden/tokenizer.gguf", &b, &err));
    assert_int_equal(rse_tokenizer_size(a), rse_tokenizer_size(b));
    assert_true(rse_tokenizer_is_special(b, 2));
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        rse_ids x = {0}, y = {0};
        OK(rse_tokenizer_encode(a, texts[i], strlen(texts[i]), RSE_ENCODE_SPECIAL, &x, &err));
        OK(rse_tokenizer_encode(b, texts[i], strlen(texts[i]), RSE_ENCODE_SPECIAL, &y, &err));
        assert_int_equal(x.count, y.count);
        assert_memory_equal(x.data, y.data, x.count * sizeof *x.data);
        rse_ids_free(&x);
        rse_ids_free(&y);
    }
    rse_tokenizer_free(a);
    rse_tokenizer_free(b);
}

/* ---- Files made here ---- */

typedef struct image {
    uint8_t data[4096];
    size_t size;
} image;

static void put(image *g, const void *bytes, size_t size) {
    assert_true(g->size + size <= sizeof g->data);
    memcpy(g->data + g->size, bytes, size);
    g->size += size;
}
static void put32(image *g, uint32_t x) {
    put(g, &x, sizeof x);
}
static void put64(image *g, uint64_t x) {
    put(g, &x, sizeof x);
}
static void put_string(image *g, const char *text) {
    put64(g, strlen(text));
    put(g, text, strlen(text));
}

static void put_head(image *g, uint64_t tensors, uint64_t keys) {
    *g = (image){0};
    put(g, "GGUF", 4);
    put32(g, 3);
    put64(g, tensors);
    put64(g, keys);
}

static void put_key32(image *g, const char *key, uint32_t type, uint32_t value) {
    put_string(g, key);
    put32(g, type);
    put32(g, value);
}

/* A tensor [2][32] of a type, at an offset. */
static void put_tensor(image *g, const char *name, uint32_t type, uint64_t offset) {
    put_string(g, name);
    put32(g, 2);
    put64(g, 32);
    put64(g, 2);
    put32(g, type);
    put64(g, offset);
}

static void put_data(image *g, size_t bytes) {
    g->size = (g->size + 31) / 32 * 32 + bytes;
    assert_true(g->size <= sizeof g->data);
}

/* Writes the image to a file in a directory of its own; removed by image_remove(). */
static void image_write(const image *g, const char *name, char directory[64], char path[128]) {
    if (directory[0] == '\0') {
        strcpy(directory, "/tmp/replayssm-gguf-XXXXXX");
        assert_non_null(mkdtemp(directory));
    }
    snprintf(path, 128, "%s/%s", directory, name);
    unlink(path); /* writing over a file waits for the disk on some systems */
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(g->data, 1, g->size, file), g->size);
    fclose(file);
}

static void image_remove(const char *directory) {
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", directory);
    assert_int_equal(system(command), 0);
}

static void image_good(image *g) {
    put_head(g, 2, 2);
    put_key32(g, "general.alignment", RSE_GGUF_U32, 32);
    put_key32(g, "a.block_count", RSE_GGUF_U32, 7);
    put_tensor(g, "first", 8, 0); /* Q8_0: 68 bytes */
    put_tensor(g, "second", 0, 96);
    put_data(g, 96 + 256);
}

static void test_reading(void **state) {
    (void)state;
    image g;
    char directory[64] = "", path[128];
    rse_gguf *file;
    image_good(&g);
    image_write(&g, "good.gguf", directory, path);
    assert_true(rse_gguf_is(path));
    assert_false(rse_gguf_is(directory));
    OK(rse_gguf_open(path, &file, &err));
    assert_int_equal(rse_gguf_count(file), 2);
    const rse_tensor *t = rse_gguf_find(file, "first");
    assert_true(t->dtype == RSE_DTYPE_Q8_0 && t->rank == 2 && t->shape[0] == 2 && t->shape[1] == 32 &&
                t->bytes == 68);
    assert_true(rse_gguf_number(rse_gguf_get(file, "a.block_count"), 0) == 7.0);
    assert_null(rse_gguf_get(file, "b"));
    assert_null(rse_gguf_find(file, "third"));
    rse_gguf_close(file);
    /* Any shorter file is refused. */
    for (size_t size = 0; size < g.size; size++) {
        image cut = g;
        rse_error err = {0};
        cut.size = size;
        image_write(&cut, "cut.gguf", directory, path);
        if (rse_gguf_open(path, &file, &err) == RSE_OK || err.text[0] == '\0') {
            fail_msg("%zu of %zu bytes are taken", size, g.size);
        }
    }
    /* So is, or does no harm, any other byte in the head. */
    for (size_t at = 0; at < g.size - 352; at++) {
        static const uint8_t others[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
        for (size_t i = 0; i < sizeof others; i++) {
            image changed = g;
            changed.data[at] = others[i];
            image_write(&changed, "changed.gguf", directory, path);
            rse_error err = {0};
            if (rse_gguf_open(path, &file, &err) == RSE_OK) {
                rse_gguf_close(file);
            }
        }
    }
    image_remove(directory);
}

static void refused(const image *g, rse_status status, const char *word) {
    char directory[64] = "", path[128];
    rse_gguf *file;
    image_write(g, "bad.gguf", directory, path);
    REFUSED(status, word, rse_gguf_open(path, &file, &err));
    assert_null(file);
    image_remove(directory);
}

static void test_lies(void **state) {
    (void)state;
    image g;
    put_head(&g, UINT64_MAX, 0);
    refused(&g, RSE_ERROR_FORMAT, "claims 18446744073709551615 tensors");
    put_head(&g, 0, 70000);
    refused(&g, RSE_ERROR_FORMAT, "70000 keys");
    put_head(&g, 0, 1);
    put64(&g, UINT64_MAX - 8);
    put(&g, g.data, 32);
    refused(&g, RSE_ERROR_FORMAT, "beyond the end");
    put_head(&g, 0, 1);
    put_string(&g, "key");
    put32(&g, RSE_GGUF_ARRAY);
    put32(&g, RSE_GGUF_U64);
    put64(&g, UINT64_MAX / 4);
    refused(&g, RSE_ERROR_FORMAT, "beyond all sizes");
    put_head(&g, 0, 1);
    put_string(&g, "key");
    put32(&g, RSE_GGUF_ARRAY);
    put32(&g, RSE_GGUF_ARRAY);
    put64(&g, 1);
    refused(&g, RSE_ERROR_FORMAT, "key key has values of the unknown type 9");
    put_head(&g, 1, 0);
    put_tensor(&g, "weights", 99, 0);
    refused(&g, RSE_ERROR_UNSUPPORTED, "tensor weights has the unknown type 99");
    put_head(&g, 1, 0);
    put_tensor(&g, "weights", 12, 0);
    refused(&g, RSE_ERROR_FORMAT, "tensor weights has rows of 32, not a multiple of 256");
    put_head(&g, 1, 0);
    put_tensor(&g, "weights", 0, 64);
    put_data(&g, 256);
    refused(&g, RSE_ERROR_FORMAT, "tensor weights of 256 bytes at offset 64");
    put_head(&g, 1, 0);
    put_tensor(&g, "weights", 0, 8);
    put_data(&g, 512);
    refused(&g, RSE_ERROR_FORMAT, "aligned to 32");
    put_head(&g, 2, 0);
    put_tensor(&g, "weights", 0, 0);
    put_tensor(&g, "weights", 0, 0);
    put_data(&g, 256);
    refused(&g, RSE_ERROR_FORMAT, "two tensors weights");
    put_head(&g, 0, 1);
    put_key32(&g, "general.alignment", RSE_GGUF_U32, 24);
    refused(&g, RSE_ERROR_FORMAT, "general.alignment is 24");
    put_head(&g, 0, 0);
    g.data[4] = 2;
    refused(&g, RSE_ERROR_UNSUPPORTED, "version 2");
}

static void test_split(void **state) {
    (void)state;
    image g;
    char directory[64] = "", first[128], second[128];
    rse_gguf *file;
    put_head(&g, 1, 2);
    put_key32(&g, "split.count", RSE_GGUF_U32, 2);
    put_key32(&g, "split.tensors.count", RSE_GGUF_I32, 2);
    put_tensor(&g, "one", 0, 0);
    put_data(&g, 256);
    image_write(&g, "m-00001-of-00002.gguf", directory, first);
    REFUSED(RSE_ERROR_IO, "m-00002-of-00002.gguf", rse_gguf_open(first, &file, &err));
    put_head(&g, 1, 0);
    put_tensor(&g, "two", 0, 0);
    put_data(&g, 256);
    g.data[g.size - 1] = 42;
    image_write(&g, "m-00002-of-00002.gguf", directory, second);
    OK(rse_gguf_open(first, &file, &err));
    assert_int_equal(rse_gguf_count(file), 2);
    assert_int_equal(((const uint8_t *)rse_gguf_find(file, "two")->data)[255], 42);
    rse_gguf_close(file);
    put_head(&g, 0, 0);
    image_write(&g, "m-00002-of-00002.gguf", directory, second);
    REFUSED(RSE_ERROR_FORMAT, "split.tensors.count is 2, but the parts hold 1",
            rse_gguf_open(first, &file, &err));
    put_head(&g, 0, 1);
    put_key32(&g, "split.count", RSE_GGUF_U32, 2);
    image_write(&g, "renamed.gguf", directory, second);
    REFUSED(RSE_ERROR_FORMAT, "does not end with", rse_gguf_open(second, &file, &err));
    image_remove(directory);
}

/* ---- Models ---- */

static void test_wrong_models(void **state) {
    (void)state;
    image g;
    char directory[64] = "", path[128];
    rse_engine *engine;
    put_head(&g, 0, 0);
    image_write(&g, "none.gguf", directory, path);
    REFUSED(RSE_ERROR_UNSUPPORTED, "general.architecture is missing",
            rse_engine_open(path, NULL, &engine, &err));
    put_head(&g, 0, 1);
    put_string(&g, "general.architecture");
    put32(&g, RSE_GGUF_STRING);
    put_string(&g, "llama");
    image_write(&g, "llama.gguf", directory, path);
    REFUSED(RSE_ERROR_UNSUPPORTED, "general.architecture is llama; known: qwen35",
            rse_engine_open(path, NULL, &engine, &err));
    g.data[g.size - 5] = 'm';
    put_head(&g, 0, 1);
    put_string(&g, "general.architecture");
    put32(&g, RSE_GGUF_STRING);
    put_string(&g, "mamba2");
    image_write(&g, "empty.gguf", directory, path);
    REFUSED(RSE_ERROR_FORMAT, "token_embd.weight is missing", rse_engine_open(path, NULL, &engine, &err));
    rse_tokenizer *tokenizer;
    REFUSED(RSE_ERROR_UNSUPPORTED, "tokenizer.ggml.model", rse_tokenizer_load(path, &tokenizer, &err));
    image_remove(directory);
}

/* What tests without a model cannot see: names of the prediction block, and of tables for one architecture. */
static void test_names(void **state) {
    (void)state;
    static const char *const names[][2] = {
        {"blk.2.nextn.eh_proj.weight", "mtp.fc.weight"},
        {"blk.2.nextn.shared_head_norm.weight", "mtp.norm.weight"},
        {"blk.2.attn_q.weight", "mtp.layers.0.self_attn.q_proj.weight"},
        {"blk.1.ssm_a", "layers.1.linear_attn.A"},
        {"blk.1.ffn_up_exps.weight", "layers.1.mlp.experts.up_proj"},
        {"blk.1.ffn_up.scale", "layers.1.mlp.up_proj.scale"},
        {"blk.x.ffn_up.weight", "blk.x.ffn_up.weight"},
        {"blk.0.novel.weight", "blk.0.novel.weight"},
    };
    image g;
    char directory[64] = "", path[128];
    rse_gguf *file;
    put_head(&g, 0, 3);
    put_string(&g, "general.architecture");
    put32(&g, RSE_GGUF_STRING);
    put_string(&g, "qwen35");
    put_key32(&g, "qwen35.block_count", RSE_GGUF_U32, 3);
    put_key32(&g, "qwen35.nextn_predict_layers", RSE_GGUF_U32, 1);
    image_write(&g, "names.gguf", directory, path);
    OK(rse_gguf_open(path, &file, &err));
    assert_int_equal(rse_gguf_layers(file), 2);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        rse_text text = {0};
        OK(rse_gguf_canonical(file, names[i][0], &text, &err));
        assert_string_equal(text.data, names[i][1]);
        rse_text_free(&text);
    }
    rse_gguf_close(file);
    image_remove(directory);
}

/* Every tensor's name changed in place: refused, with the name that is missing or the one that is too much. */
static void test_renamed_tensors(void **state) {
    (void)state;
    for (int32_t i = 0; i < FAMILIES; i++) {
        char path[512], copy[] = "/tmp/replayssm-renamed-XXXXXX";
        rse_gguf *file;
        rse_mapping map;
        path_of(families[i], "model.gguf", path);
        OK(rse_gguf_open(path, &file, &err));
        OK(rse_file_map(path, &map, &err));
        int fd = mkstemp(copy);
        assert_int_equal(write(fd, map.data, map.size), (ssize_t)map.size);
        for (size_t t = 0; t < rse_gguf_count(file); t++) {
            const char *name = rse_gguf_at(file, t)->name;
            size_t length = strlen(name), at = 0;
            uint64_t wanted = length;
            while (memcmp(map.data + at, &wanted, 8) != 0 || memcmp(map.data + at + 8, name, length) != 0) {
                at++;
            }
            assert_int_equal(pwrite(fd, "X", 1, (off_t)(at + 8)), 1);
            rse_model *model;
            rse_error err = {0};
            if (rse_model_open(copy, &model, &err) == RSE_OK) {
                fail_msg("%s without %s is taken", families[i], name);
            }
            assert_int_equal(pwrite(fd, map.data + at + 8, 1, (off_t)(at + 8)), 1);
        }
        close(fd);
        unlink(copy);
        rse_file_unmap(&map);
        rse_gguf_close(file);
    }
}

/* A number of the metadata that cannot be: the sentence names the file and the key as it stands there. */
static void test_wrong_numbers(void **state) {
    (void)state;
    static const struct {
        const char *family, *key, *says;
    } cases[] = {{"mamba2", "mamba2.ssm.conv_kernel", "mamba2.ssm.conv_kernel is 77"},
                 {"kimi_linear", "kimi-linear.attention.kv_lora_rank", "kimi-linear.attention.kv_lora_rank"},
                 {"qwen3_5_moe", "qwen35moe.ssm.group_count", "qwen35moe.ssm.group_count"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char path[512], copy[] = "/tmp/replayssm-numbers-XXXXXX";
        rse_mapping map;
        path_of(cases[i].family, "model.gguf", path);
        OK(rse_file_map(path, &map, &err));
        int fd = mkstemp(copy);
        assert_int_equal(write(fd, map.data, map.size), (ssize_t)map.size);
        size_t at = 0, length = strlen(cases[i].key);
        while (at + length < map.size && memcmp((const char *)map.data + at, cases[i].key, length) != 0) {
            at++;
        }
        assert_true(at + length < map.size);
        uint32_t wrong = i == 0 ? 77 : UINT32_MAX;
        off_t value = (off_t)(at + length + 4); /* behind the type */
        assert_int_equal(pwrite(fd, &wrong, 4, value), 4);
        rse_model *model;
        rse_error err = {0};
        rse_status status = rse_model_open(copy, &model, &err);
        if (status == RSE_OK || strstr(err.text, cases[i].says) == NULL || strstr(err.text, copy) == NULL ||
            strstr(err.text, "config.json") != NULL) {
            fail_msg("%s: status %d, '%s'", cases[i].key, status, err.text);
        }
        close(fd);
        unlink(copy);
        rse_file_unmap(&map);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),         cmocka_unit_test(test_tokenizer),
        cmocka_unit_test(test_reading),         cmocka_unit_test(test_lies),
        cmocka_unit_test(test_split),           cmocka_unit_test(test_wrong_models),
        cmocka_unit_test(test_renamed_tensors), cmocka_unit_test(test_names),
        cmocka_unit_test(test_wrong_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
