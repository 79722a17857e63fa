/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ends or bends a generation: stop strings however the text is cut, penalties against sums made by hand, logprobs
 * against a softmax, the end of the context.
 */
#include "math/penalty.h"
#include "model_fixture.h"
#include "sched/sched.h"
#include "text/stop.h"

/* Pushes a text in pieces of `step` bytes; what passes, and whether a stop string was found. */
static bool passes(const char *text, size_t step, const char *const *strings, int32_t count, rse_text *out) {
    rse_stop stop = {.strings = strings, .count = count};
    bool found = false;
    out->length = 0;
    for (size_t at = 0; at < strlen(text) && !found; at += step) {
        size_t left = strlen(text) - at;
        OK(rse_stop_push(&stop, text + at, left < step ? left : step, out, &found, &err));
    }
    if (!found) {
        OK(rse_stop_flush(&stop, out, &found, &err));
    }
    rse_stop_free(&stop);
    return found;
}

static void stop_strings(void **state) {
    (void)state;
    static const char *const strings[] = {"aab", "</s>", "abc"};
    static const struct {
        const char *text, *passes;
        bool found;
    } cases[] = {{"xaaab tail", "xa", true},      {"no stop </s", "no stop </s", false},
                 {"a</s></s>", "a", true},        {"abab", "abab", false},
                 {"aaabc", "a", true},            {"\303\244 abc", "\303\244 ", true},
                 {"aabc is aab first", "", true}, {"", "", false}};
    rse_text out = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (size_t step = 1; step < 8; step++) {
            assert_int_equal(passes(cases[i].text, step, strings, 3, &out), cases[i].found);
            assert_int_equal(out.length, strlen(cases[i].passes));
            assert_memory_equal(out.data != NULL ? out.data : "", cases[i].passes, out.length);
        }
    }
    static const char *const nested[] = {"one two three", "two"}; /* the longer one is waited for */
    for (size_t step = 1; step < 8; step++) {
        assert_true(passes("one two th", step, nested, 2, &out));
        assert_string_equal(out.data, "one ");
        assert_true(passes("a one two three", step, nested, 2, &out));
        assert_string_equal(out.data, "a ");
    }
    assert_false(passes("aab", 1, NULL, 0, &out));
    assert_string_equal(out.data, "aab");
    rse_text_free(&out);
    rse_stop stop = {.strings = strings, .count = 3}; /* text comes as soon as it is certain */
    bool found;
    OK(rse_stop_push(&stop, "hello aa", 8, &out, &found, &err));
    assert_string_equal(out.data, "hello ");
    OK(rse_stop_push(&stop, "c", 1, &out, &found, &err));
    assert_string_equal(out.data, "hello aac");
    rse_stop_free(&stop);
    rse_text_free(&out);
}

static void penalties(void **state) {
    (void)state;
    const rse_penalties p = {.repetition = 2.0f, .presence = 0.5f, .frequency = 0.25f};
    rse_token_counts counts = {0};
    for (int32_t i = 0; i < 1000; i++) { /* tokens 0 .. 99 of the prompt, ten times each */
        OK(rse_token_counts_add(&counts, i % 100, false, &err));
    }
    for (int32_t i = 0; i < 30; i++) { /* 90 .. 119 generated once, 90 .. 92 twice */
        OK(rse_token_counts_add(&counts, 90 + i, true, &err));
    }
    for (int32_t i = 0; i < 3; i++) {
        OK(rse_token_counts_add(&counts, 90 + i, true, &err));
    }
    float logits[200];
    for (int32_t i = 0; i < 200; i++) {
        logits[i] = i % 2 == 0 ? 4.0f : -4.0f;
    }
    rse_penalize(&p, &counts, logits);
    for (int32_t i = 0; i < 200; i++) {
        float expected = i >= 120 ? (i % 2 == 0 ? 4.0f : -4.0f) : i % 2 == 0 ? 2.0f : -8.0f;
        expected -= i >= 90 && i < 120 ? 0.5f + 0.25f * (i < 93 ? 2.0f : 1.0f) : 0.0f;
        assert_true(logits[i] == expected);
    }
    rse_token_counts_free(&counts);
    assert_false(rse_penalties_any(&(rse_penalties){0}) || rse_penalties_any(&(rse_penalties){.repetition = 1.0f}));
    assert_true(rse_penalties_any(&p));
    REFUSED(RSE_ERROR_USAGE, "frequency penalty is -3", rse_penalties_check(&(rse_penalties){.frequency = -3.0f}, &err));
    REFUSED(RSE_ERROR_USAGE, "repetition penalty is 11",
            rse_penalties_check(&(rse_penalties){.repetition = 11.0f}, &err));
    REFUSED(RSE_ERROR_USAGE, "nan", rse_penalties_check(&(rse_penalties){.presence = NAN}, &err));
}

static rse_request *run(rse_engine *engine, rse_sched *sched, rse_request_desc desc) {
    rse_request *request;
    desc.session = session_open(engine, 0);
    OK(rse_sched_add(sched, &desc, &request, &err));
    for (int32_t running = 1; running > 0;) {
        OK(rse_sched_step(sched, &running, &err));
    }
    return request;
}

/* A presence that nothing outweighs never repeats a token; logprobs are those of the model, not of the penalties. */
static void in_requests(void **state) {
    (void)state;
    golden g = golden_open("tiny-gdn");
    rse_engine *engine = engine_open("tiny-gdn", (rse_engine_options){.sessions = 2});
    rse_sched *sched;
    OK(rse_sched_create(engine, &sched, &err));
    rse_request_desc desc = {.prompt = g.greedy,
                             .count = 64,
                             .max_tokens = 60,
                             .ignore_end = true,
                             .logprobs = 3,
                             .sampling = RSE_SAMPLING_GREEDY};
    const rse_request *plain = run(engine, sched, desc);
    desc.penalties = (rse_penalties){.repetition = 10.0f, .presence = 2.0f};
    const rse_request *bent = run(engine, sched, desc);
    int64_t count, repeated[2] = {0};
    for (int32_t r = 0; r < 2; r++) {
        const int32_t *tokens = rse_request_tokens(r == 0 ? plain : bent, &count);
        for (int64_t i = 0; i < count; i++) {
            const rse_token_logprob *list = rse_request_logprobs(r == 0 ? plain : bent, i);
            assert_int_equal(list[0].id, tokens[i]);
            assert_true(list[1].logprob >= list[2].logprob && list[2].logprob >= list[3].logprob);
            assert_true(list[0].logprob <= list[1].logprob && list[1].logprob < 0.0f);
            assert_true(r == 1 || (list[0].id == list[1].id && list[0].logprob == list[1].logprob));
            for (int64_t j = 0; j < i; j++) {
                repeated[r] += tokens[i] == tokens[j];
            }
        }
    }
    assert_true(repeated[1] < repeated[0]);
    assert_memory_equal(rse_request_tokens(plain, &count), g.greedy + 64, 60 * sizeof(int32_t));
    rse_sched_destroy(sched);
    rse_engine_close(engine);
    rse_safetensors_close(g.files);
}

static void logprobs(void **state) {
    (void)state;
    enum { VOCAB = 50 };
    float logits[VOCAB];
    double total = 0.0;
    for (int32_t i = 0; i < VOCAB; i++) {
        logits[i] = 3.0f * sinf((float)(7 * i));
        total += exp((double)logits[i]);
    }
    logits[9] = logits[30] = 5.0f;
    total += 2.0 * exp(5.0) - exp(3.0 * sin(63.0)) - exp(3.0 * sin(210.0));
    rse_sampler *sampler;
    OK(rse_sampler_create(VOCAB, &sampler, &err));
    rse_token_logprob list[4];
    rse_sampler_logprobs(sampler, logits, 17, 3, list);
    assert_int_equal(list[0].id, 17);
    assert_int_equal(list[1].id, 9); /* equal ones by id */
    assert_int_equal(list[2].id, 30);
    for (int32_t i = 0; i < 4; i++) {
        assert_within(fabs((double)list[i].logprob - ((double)logits[list[i].id] - log(total))), 1e-5, "logprob");
    }
    rse_sampler_destroy(sampler);
}

/* A model of 512 positions: generation ends where they do, with drafts too. */
static void D14_the_context_ends(void **state) {
    (void)state;
    rse_engine *engine = NULL;
    OK(rse_engine_open(RSSM_SOURCE_DIR "/tests/golden/families/qwen3_next",
                       &(rse_engine_options){.threads = 1, .step_tokens = 4}, &engine, &err));
    rse_drafter *drafter;
    OK(rse_drafter_ngram(&drafter, &err));
    int32_t prompt[513];
    for (int32_t i = 0; i < 513; i++) {
        prompt[i] = i * 7 % 139;
    }
    for (int32_t drafts = 0; drafts < 2; drafts++) {
        rse_sched *sched;
        OK(rse_sched_create(engine, &sched, &err));
        OK(rse_sched_speculate(
            sched, &(rse_speculation){.drafter = drafts > 0 ? drafter : NULL, .drafts = drafts > 0 ? 3 : 0}, &err));
        rse_request_desc desc = {
            .prompt = prompt, .count = 500, .max_tokens = 100, .ignore_end = true, .sampling = RSE_SAMPLING_GREEDY};
        rse_request *request;
        OK(rse_sched_add(sched, &desc, &request, &err));
        for (int32_t running = 1; running > 0;) {
            OK(rse_sched_step(sched, &running, &err));
        }
        int64_t count;
        (void)rse_request_tokens(request, &count);
        assert_int_equal(rse_request_state(request), RSE_FINISH_CONTEXT);
        assert_int_equal(count, 12);
        desc.count = 512;
        REFUSED(RSE_ERROR_USAGE, "512 of the prompt leave nothing to generate: the model's limit is 512",
                rse_sched_add(sched, &desc, &request, &err));
        rse_sched_destroy(sched);
    }
    rse_drafter_destroy(drafter);
    rse_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stop_strings), cmocka_unit_test(penalties),        cmocka_unit_test(logprobs),
        cmocka_unit_test(in_requests),  cmocka_unit_test(D14_the_context_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
