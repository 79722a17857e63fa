/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Session files: continued as if nothing had been, converted between methods, windows and io formats, and
 * refused when damaged or another model's.
 */
#include "base/file.h"
#include "model_fixture.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SAVED = 45, MORE = 30 };

static char path[64]; /* of the file, one for each process that runs these tests */

static const rse_engine_options plain = {.window = 16};

/* A session in the middle of a window, saved with a tail of two ids. */
static void save_one(const char *model, rse_engine_options options) {
    golden g = golden_open(model);
    rse_engine *engine = engine_open(model, options);
    rse_session *session = session_open(engine, 21);
    prompt_row(session, engine, g.tokens, SAVED - 8, NULL);
    for (int32_t t = SAVED - 8; t < SAVED; t++) {
        decode_row(session, engine, g.tokens[t], NULL);
    }
    int32_t ids[] = {g.tokens[SAVED], g.tokens[SAVED + 1]};
    rse_session_tail tail = {ids, 2, 99};
    REFUSED(RSE_ERROR_USAGE, "pending", rse_session_save(session, &tail, path, &err));
    OK(rse_session_commit(session, RSE_ACCEPT_ALL, &err));
    OK(rse_session_save(session, &tail, path, &err));
    rse_engine_close(engine);
    rse_safetensors_close(g.files);
}

static void load_one(rse_session *session) {
    rse_session_tail tail;
    OK(rse_session_load(session, path, &tail, &err));
    assert_int_equal(rse_session_position(session), SAVED);
    assert_int_equal(tail.count, 2);
    assert_int_equal(tail.seed, 99);
    free(tail.ids);
}

/* Logits of the tokens after the saved ones, by an engine that has loaded them or run them all. */
static void continue_one(const char *model, rse_engine_options options, bool load, float *logits) {
    golden g = golden_open(model);
    rse_engine *engine = engine_open(model, options);
    int32_t vocab = vocab_of(engine);
    rse_session *session = session_open(engine, load ? 0 : 21);
    if (load) {
        prompt_row(session, engine, g.tokens + 100, 40, NULL); /* what loading replaces */
        load_one(session);
        assert_memory_equal(rse_session_ids(session), g.tokens, SAVED * sizeof(int32_t));
    } else {
        prompt_row(session, engine, g.tokens, SAVED - 8, NULL);
        for (int32_t t = SAVED - 8; t < SAVED; t++) {
            decode_row(session, engine, g.tokens[t], NULL);
        }
    }
    for (int32_t t = 0; t < MORE; t++) {
        decode_row(session, engine, g.tokens[SAVED + t], logits + (int64_t)t * vocab);
    }
    OK(rse_session_check(session, &err));
    rse_engine_close(engine);
    rse_safetensors_close(g.files);
}

static void test_continue(void **state) {
    (void)state;
    const struct {
        rse_engine_options options;
        double limit; /* 0: bit for bit */
    } readers[] = {
        {{.window = 16}, 0.0},
        {{.window = 16, .check = true}, 0.0},
        {{.window = 5}, 5e-5},
        {{.method = RSSM_METHOD_CONVENTIONAL}, 5e-5},
        {{.window = 16, .io_dtype = RSSM_DTYPE_BF16}, 0.5},
    };
    for (int32_t m = 0; m < MODELS; m++) {
        save_one(model_names[m], plain);
        size_t values = MORE * 4096;
        float *wanted = malloc(2 * values * sizeof *wanted);
        float *found = wanted + values;
        continue_one(model_names[m], plain, false, wanted);
        for (size_t r = 0; r < sizeof readers / sizeof readers[0]; r++) {
            continue_one(model_names[m], readers[r].options, true, found);
            double most = largest_difference(wanted, found, (int64_t)values);
            print_message("%s, reader %zu: within %.2g\n", model_names[m], r, most);
            assert_within(most, readers[r].limit, "logits after loading");
        }
        free(wanted);
    }
    unlink(path);
}

/* From bf16 and conventional to f32 and replay. */
static void test_widen(void **state) {
    (void)state;
    save_one("tiny-gdn", (rse_engine_options){.method = RSSM_METHOD_CONVENTIONAL, .io_dtype = RSSM_DTYPE_BF16});
    size_t values = MORE * 4096;
    float *wanted = malloc(2 * values * sizeof *wanted);
    continue_one("tiny-gdn", plain, false, wanted);
    continue_one("tiny-gdn", plain, true, wanted + values);
    assert_within(largest_difference(wanted, wanted + values, (int64_t)values), 0.5, "logits after widening");
    free(wanted);
    unlink(path);
}

static void write_bytes(const char *data, size_t size) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static void refused(rse_session *session, rse_status status, const char *word) {
    rse_session_tail tail;
    REFUSED(status, word, rse_session_load(session, path, &tail, &err));
    assert_null(tail.ids);
    assert_int_equal(rse_session_position(session), 3); /* as it was */
}

static void test_damage(void **state) {
    (void)state;
    golden g = golden_open("tiny-gdn");
    save_one("tiny-gdn", plain);
    char *data;
    size_t size;
    OK(rse_file_read(path, 1 << 26, &data, &size, &err));
    rse_engine *engine = engine_open("tiny-gdn", plain);
    rse_session *session = session_open(engine, 0);
    prompt_row(session, engine, g.tokens, 3, NULL);
    OK(rse_session_commit(session, RSE_ACCEPT_ALL, &err));
    for (size_t at = 0; at < size; at += at < 128 ? 1 : size / 61) { /* a bit anywhere, all of the header */
        data[at] ^= 0x10;
        write_bytes(data, size);
        data[at] ^= 0x10;
        refused(session, RSE_ERROR_FORMAT, "session file");
    }
    for (size_t cut = 0; cut < size; cut += cut < 90 ? 30 : size / 17) {
        write_bytes(data, cut);
        refused(session, RSE_ERROR_FORMAT, "session file");
    }
    write_bytes(data, size);
    rse_engine *other = engine_open("tiny-mamba2", plain);
    rse_session *foreign = session_open(other, 0);
    prompt_row(foreign, other, g.tokens, 3, NULL);
    OK(rse_session_commit(foreign, RSE_ACCEPT_ALL, &err));
    refused(foreign, RSE_ERROR_MISMATCH, "another model");
    unlink(path);
    refused(session, RSE_ERROR_IO, path);
    rse_session_tail tail = {0};
    REFUSED(RSE_ERROR_IO, "/nowhere/", rse_session_save(session, &tail, "/nowhere/file", &err));
    free(data);
    rse_engine_close(other);
    rse_engine_close(engine);
    rse_safetensors_close(g.files);
}

/* Too few pages for what a file holds: an empty session is left, and it works. */
static void test_no_room(void **state) {
    (void)state;
    golden g = golden_open("tiny-gdn");
    save_one("tiny-gdn", plain);
    rse_engine *engine = engine_open("tiny-gdn", (rse_engine_options){.kv_bytes = 2 * 16 * 2048});
    rse_session *session = session_open(engine, 0);
    rse_session_tail tail;
    REFUSED(RSE_ERROR_MEMORY, "page", rse_session_load(session, path, &tail, &err));
    assert_int_equal(rse_session_position(session), 0);
    prompt_row(session, engine, g.tokens, 32, NULL);
    rse_engine_close(engine);
    rse_safetensors_close(g.files);
    unlink(path);
}

/* Saves one of two sessions over the other, again and again, until it is killed. */
static void save_for_ever(rse_session *const *sessions) {
    for (uint64_t i = 0;; i++) {
        rse_error err;
        rse_session_tail tail = {.seed = i % 2};
        if (rse_session_save(sessions[i % 2], &tail, path, &err) != RSE_OK) {
            _exit(1);
        }
    }
}

/* Whatever moment a saving process is killed at, a file is there, whole. */
static void test_kill(void **state) {
    (void)state;
    golden g = golden_open("tiny-gdn");
    rse_engine *engine = engine_open("tiny-gdn", (rse_engine_options){.sessions = 3});
    rse_session *sessions[3];
    for (int32_t i = 0; i < 3; i++) {
        sessions[i] = session_open(engine, (uint64_t)i);
        prompt_row(sessions[i], engine, g.tokens, 20 + i, NULL);
        OK(rse_session_commit(sessions[i], RSE_ACCEPT_ALL, &err));
    }
    rse_session_tail tail = {0};
    OK(rse_session_save(sessions[0], &tail, path, &err));
    for (int32_t trial = 0; trial < 25; trial++) {
        pid_t child = fork();
        if (child == 0) {
            save_for_ever(sessions);
        }
        usleep(300 + 997U * (unsigned)trial);
        assert_int_equal(kill(child, SIGKILL), 0);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        OK(rse_session_load(sessions[2], path, &tail, &err));
        assert_int_equal(rse_session_position(sessions[2]), 20 + (int64_t)tail.seed);
        free(tail.ids);
        char temporary[128];
        snprintf(temporary, sizeof temporary, "%s.%ld.tmp", path, (long)child);
        (void)unlink(temporary);
    }
    rse_engine_close(engine);
    rse_safetensors_close(g.files);
    unlink(path);
}

/* A disk that is full after any number of bytes: the call says so, and the file from before is there. */
static void test_full_disk(void **state) {
    (void)state;
    golden g = golden_open("tiny-gdn");
    rse_engine *engine = engine_open("tiny-gdn", (rse_engine_options){.sessions = 2});
    rse_session *session = session_open(engine, 0), *other = session_open(engine, 1);
    rse_session_tail tail = {.seed = 5};
    prompt_row(session, engine, g.tokens, 33, NULL);
    OK(rse_session_commit(session, RSE_ACCEPT_ALL, &err));
    OK(rse_session_save(session, &tail, path, &err));
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    void (*before)(int) = signal(SIGXFSZ, SIG_IGN);
    static const rlim_t sizes[] = {0, 1, 79, 80, 4096, 100000, 1000000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct rlimit small = {sizes[i], limit.rlim_max};
        tail.seed = 6;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        REFUSED(RSE_ERROR_IO, "too large", rse_session_save(session, &tail, path, &err));
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        OK(rse_session_load(other, path, &tail, &err));
        assert_int_equal(rse_session_position(other), 33);
        assert_int_equal(tail.seed, 5);
        free(tail.ids);
        tail = (rse_session_tail){0};
    }
    signal(SIGXFSZ, before);
    rse_engine_close(engine);
    rse_safetensors_close(g.files);
    unlink(path);
}

int main(void) {
    snprintf(path, sizeof path, "/tmp/replayssm-session-%ld.bin", (long)getpid());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_continue),
        cmocka_unit_test(test_widen),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_kill),
        cmocka_unit_test(test_full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
