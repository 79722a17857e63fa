/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every allocation and every file operation made to fail once: the call says so in one sentence, nothing leaks, what was
 * there before is there still, and the same done again without the fault succeeds with the same result.
 */
#include "faults.h"
#include "model_fixture.h"
#include "sched/prefix.h"
#include "sched/sched.h"
#include "text/tokenizer.h"

#include <dirent.h>
#include <unistd.h>

enum { VOCAB = 139, MOST = 300 }; /* faults of a scenario in a usual run; all of them with RSSM_TEST_LONG */

#define FAMILY_DIR(name) RSSM_SOURCE_DIR "/tests/golden/families/" name
#define GGUF_TOKENIZER RSSM_SOURCE_DIR "/tests/golden/tokenizer.gguf"

/* Does something from start to end, and gives back all it took. */
typedef rse_status (*scenario)(rse_error *err);

static int32_t prompt[64];
static char folder[64];

static void strike(const char *name, scenario run) {
    rse_error err = {0};
    fault_arm(-1);
    ok(run(&err), &err);
    int64_t calls = fault_disarm(), failed = 0, harmless = 0;
    int64_t stride = getenv("RSSM_TEST_LONG") != NULL ? 1 : (calls + MOST - 1) / MOST;
    for (int64_t i = 0; i < calls; i += stride) {
        int64_t live = fault_live();
        err = (rse_error){0};
        fault_arm(i);
        rse_status status = run(&err);
        (void)fault_disarm();
        assert_non_null(fault_struck());
        if (fault_live() != live) {
            fail_msg("%s: after call %lld, %s, had failed: %lld allocations are left ('%s')", name, (long long)i,
                     fault_struck(), (long long)(fault_live() - live), err.text);
        }
        if (status != RSE_OK && strlen(err.text) < 10) {
            fail_msg("%s: call %lld, %s, failed: status %d, and '%s' is no sentence", name, (long long)i, fault_struck(),
                     status, err.text);
        }
        failed += status != RSE_OK;
        harmless += status == RSE_OK;
    }
    err = (rse_error){0};
    ok(run(&err), &err);
    print_message("%s: %lld calls, %lld of them made to fail: %lld failures, %lld without consequence\n", name,
                  (long long)calls, (long long)(failed + harmless), (long long)failed, (long long)harmless);
    assert_true(failed > harmless);
}

/* ---- Opening ------------------------------------------------------------------------------------------ */

static rse_status open_folder(rse_error *err) {
    rse_engine *engine;
    RSE_TRY(rse_engine_open(FAMILY_DIR("qwen3_next"), &(rse_engine_options){.threads = 2, .prefix_bytes = 1 << 20},
                            &engine, err));
    rse_engine_close(engine);
    return RSE_OK;
}

static rse_status open_gguf(rse_error *err) {
    rse_engine *engine;
    RSE_TRY(rse_engine_open(FAMILY_DIR("mamba2") "/model.gguf", &(rse_engine_options){.threads = 1, .check = true},
                            &engine, err));
    rse_engine_close(engine);
    return RSE_OK;
}

static rse_status open_tokenizer(rse_error *err) {
    rse_tokenizer *tokenizer;
    rse_ids ids = {0};
    RSE_TRY(rse_tokenizer_load(GGUF_TOKENIZER, &tokenizer, err));
    rse_status status = rse_tokenizer_encode(tokenizer, "It was a dark night", 19, RSE_ENCODE_TEMPLATE, &ids, err);
    rse_ids_free(&ids);
    rse_tokenizer_free(tokenizer);
    return status;
}

static void opening(void **state) {
    (void)state;
    strike("a model's folder", open_folder);
    strike("a GGUF file", open_gguf);
    strike("a tokenizer", open_tokenizer);
}

/* ---- Sessions ----------------------------------------------------------------------------------------- */

static rse_engine *engine;
static float expected[VOCAB];
static bool known;

static rse_status step(rse_session *session, const int32_t *tokens, int32_t count, bool is_prompt, float *logits,
                       rse_error *err) {
    rse_row row = {.session = session,
                   .tokens = tokens,
                   .count = count,
                   .accepted = RSE_ACCEPT_ALL,
                   .prompt = is_prompt,
                   .outputs = logits != NULL};
    return rse_engine_step(engine, &row, 1, logits, NULL, err);
}

/* The last step of a scenario: whatever way a session came here, its logits are these. */
static rse_status last_step(rse_session *session, rse_error *err) {
    float logits[VOCAB];
    RSE_TRY(step(session, prompt + 40, 1, false, logits, err));
    if (!known) {
        memcpy(expected, logits, sizeof expected);
        known = true;
    }
    assert_memory_equal(logits, expected, sizeof expected);
    return RSE_OK;
}

static rse_status feed(rse_session *session, rse_error *err) {
    RSE_TRY(step(session, prompt, 32, true, NULL, err));
    for (int32_t i = 32; i < 40; i++) {
        RSE_TRY(step(session, prompt + i, 1, false, NULL, err));
    }
    return rse_session_commit(session, RSE_ACCEPT_ALL, err);
}

/* A call that failed has changed nothing: done again, it succeeds. */
static rse_status again(rse_status (*call)(rse_session *, rse_error *), rse_session *session, rse_error *err) {
    rse_status status = call(session, err);
    if (status != RSE_OK) {
        rse_error none = {0};
        ok(call(session, &none), &none);
    }
    return status;
}

static rse_status park(rse_session *session, rse_error *err) {
    return rse_session_park(session, err);
}
static rse_status unpark(rse_session *session, rse_error *err) {
    return rse_session_unpark(session, err);
}

static rse_status parking(rse_error *err) {
    rse_session *session;
    RSE_TRY(rse_session_open(engine, 3, &session, err));
    rse_status status = feed(session, err);
    if (status == RSE_OK) {
        status = again(park, session, err);
        rse_status second = again(unpark, session, status == RSE_OK ? err : NULL);
        rse_error none = {0};
        if (status != RSE_OK) { /* the one fault has struck */
            ok(last_step(session, &none), &none);
        } else {
            status = second == RSE_OK ? last_step(session, err) : second;
        }
    }
    rse_session_close(session);
    return status;
}

static rse_status prefixes(rse_error *err) {
    rse_session *from, *to = NULL;
    RSE_TRY(rse_session_open(engine, 3, &from, err));
    rse_status status = rse_session_open(engine, 3, &to, err);
    status = status == RSE_OK ? feed(from, err) : status;
    status = status == RSE_OK ? rse_session_store(from, err) : status;
    status = status == RSE_OK ? rse_session_recall(to, prompt, 60, err) : status;
    status = status == RSE_OK ? last_step(to, err) : status;
    status = status == RSE_OK ? rse_session_copy(to, from, 3, err) : status;
    status = status == RSE_OK ? last_step(to, err) : status;
    rse_session_close(from);
    rse_session_close(to);
    rse_prefixes_reclaim(engine->prefixes, 1 << 20);
    return status;
}

/* One file at most is in the folder, whole: the one before, or the one after. */
static void check_folder(void) {
    DIR *open_folder_ = opendir(folder);
    int32_t files = 0;
    for (const struct dirent *entry; (entry = readdir(open_folder_)) != NULL;) {
        if (entry->d_name[0] != '.') {
            assert_string_equal(entry->d_name, "saved");
            files++;
        }
    }
    closedir(open_folder_);
    assert_int_equal(files, 1);
}

static rse_status saving(rse_error *err) {
    char path[80];
    rse_session *session;
    rse_session_tail tail = {.seed = 7};
    snprintf(path, sizeof path, "%s/saved", folder);
    RSE_TRY(rse_session_open(engine, 3, &session, err));
    rse_status status = feed(session, err);
    if (status == RSE_OK) {
        status = rse_session_save(session, &tail, path, err);
    }
    rse_status loaded = RSE_OK;
    if (status == RSE_OK) {
        loaded = rse_session_load(session, path, &tail, err);
        free(tail.ids);
    }
    if (status == RSE_OK && loaded != RSE_OK) { /* what it was, or, once the file was believed, empty and fit for use */
        rse_error none = {0};
        assert_true(rse_session_position(session) == 40 || rse_session_position(session) == 0);
        if (rse_session_position(session) == 0) {
            ok(feed(session, &none), &none);
        }
        ok(last_step(session, &none), &none);
    } else if (status == RSE_OK) {
        status = last_step(session, err);
    }
    if (known) {
        check_folder();
    }
    rse_session_close(session);
    return status == RSE_OK ? loaded : status;
}

static void sessions(void **state) {
    (void)state;
    OK(rse_engine_open(FAMILY_DIR("qwen3_next"),
                       &(rse_engine_options){.threads = 1, .sessions = 2, .prefix_bytes = 1 << 20}, &engine, &err));
    strcpy(folder, "/tmp/replayssm-faults-XXXXXX");
    assert_non_null(mkdtemp(folder));
    strike("parking", parking);
    strike("the prefix cache", prefixes);
    strike("a session file", saving);
    rse_engine_close(engine);
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

/* ---- The scheduler ------------------------------------------------------------------------------------ */

static rse_status run_requests(rse_sched *sched, rse_error *err) {
    rse_request *requests[3] = {NULL};
    rse_status status = RSE_OK;
    for (int32_t i = 0; i < 3 && status == RSE_OK; i++) {
        rse_request_desc desc = {.prompt = prompt + i,
                                 .count = 20 + 4 * i,
                                 .max_tokens = 12,
                                 .ignore_end = true,
                                 .logprobs = 2,
                                 .penalties = {.presence = 0.5f},
                                 .sampling = {.temperature = 1.0f, .top_p = 1.0f}};
        status = rse_sched_add(sched, &desc, &requests[i], err);
    }
    for (int32_t running = 1; running > 0 && status == RSE_OK;) {
        status = rse_sched_step(sched, &running, err);
    }
    for (int32_t i = 0; i < 3 && status == RSE_OK; i++) { /* a fault may end one request with an error of its own */
        if (rse_request_state(requests[i]) == RSE_FINISH_ERROR) {
            *err = *rse_request_error(requests[i]);
            status = err->status;
        } else {
            assert_int_equal(rse_request_state(requests[i]), RSE_FINISH_LENGTH);
        }
    }
    return status;
}

static rse_status scheduling(rse_error *err) {
    rse_sched *sched = NULL;
    rse_drafter *drafter = NULL;
    rse_status status = rse_drafter_ngram(&drafter, err);
    status = status == RSE_OK ? rse_sched_create(engine, &sched, err) : status;
    rse_speculation how = {.drafter = drafter, .drafts = 3};
    status = status == RSE_OK ? rse_sched_speculate(sched, &how, err) : status;
    status = status == RSE_OK ? run_requests(sched, err) : status;
    rse_sched_destroy(sched);
    rse_drafter_destroy(drafter);
    rse_prefixes_reclaim(engine->prefixes, 1 << 20);
    return status;
}

static void scheduler(void **state) {
    (void)state;
    rse_kv_desc kv = {.layers = 1, .kv_heads = 2, .head_dim = 16, .dtype = RSSM_DTYPE_F32};
    OK(rse_engine_open(FAMILY_DIR("qwen3_next"),
                       &(rse_engine_options){.threads = 1,
                                             .sessions = 2,
                                             .step_tokens = 4,
                                             .prefix_bytes = 1 << 20,
                                             .kv_bytes = 6 * rse_kv_page_bytes(&kv)},
                       &engine, &err));
    strike("three requests on two slots and six pages", scheduling);
    assert_int_equal(rse_kv_pool_free_pages(engine->kv), 6);
    rse_engine_close(engine);
}

int main(void) {
    for (int32_t i = 0; i < 64; i++) {
        prompt[i] = 5 * i % VOCAB;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening),
        cmocka_unit_test(sessions),
        cmocka_unit_test(scheduler),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
