/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replayssm run: one or several sequences from one prompt, streamed as they come, then a line of figures; or
 * all of it as one JSON object.
 */
#include "base/file.h"
#include "sched/sched.h"
#include "text/stop.h"
#include "tool.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AT(field) offsetof(settings, field)

static const option_row run_options[] = {
    {"prompt", 'p', OPTION_TEXT, AT(prompt), "TEXT", NULL, 0, 0, NULL, "the text to continue"},
    {0},
};
static const option_row sampling_options[] = {
    {"count", 'n', OPTION_WHOLE, AT(count), "N", "256", 0, 1e9, NULL, "tokens to generate at most"},
    {"ignore-eos", 0, OPTION_FLAG, AT(ignore_eos), NULL, NULL, 0, 0, NULL, "go on after the model's end token"},
    {"temp", 0, OPTION_REAL, AT(temp), "T", "0.8", 0, 100, NULL,
     "temperature; 0: always the likeliest token; this and\nthe next three by default as the model recommends, "
     "if it does"},
    {"top-k", 0, OPTION_WHOLE, AT(top_k), "K", "0", 0, INT32_MAX, NULL, "of the K likeliest tokens; 0: all"},
    {"top-p", 0, OPTION_REAL, AT(top_p), "P", "1", 1e-6, 1, NULL, "of the likeliest that sum to P; 1: all"},
    {"min-p", 0, OPTION_REAL, AT(min_p), "P", "0", 0, 1, NULL,
     "of those P times as likely as the likeliest; 0: all"},
    {"seed", 0, OPTION_SEED, AT(seed), "S", "0", 0, 0, NULL, "of the random numbers"},
    {"batch", 0, OPTION_WHOLE, AT(batch), "B", "1", 1, 4096, NULL, "sequences, with seeds S, S+1, ..."},
    {"session", 0, OPTION_TEXT, AT(session), "FILE", NULL, 0, 0, NULL,
     "continue the sequence in FILE, if it exists, and save it there"},
    {"chat", 0, OPTION_FLAG, AT(chat), NULL, NULL, 0, 0, NULL,
     "converse: each line of the input is a message, until it ends"},
    {"system", 0, OPTION_TEXT, AT(system), "TEXT", NULL, 0, 0, NULL, "the system message of a conversation"},
    {"no-think", 0, OPTION_FLAG, AT(no_think), NULL, NULL, 0, 0, NULL,
     "answers without thoughts, in models that have them"},
    {"json", 0, OPTION_FLAG, AT(json), NULL, NULL, 0, 0, NULL, "print one JSON object instead"},
    {0},
};

static const option_row shaping_options[] = {
    {"stop", 0, OPTION_TEXTS, AT(stop), "TEXT", NULL, 0, 0, NULL,
     "end where TEXT would come, without it; can be given 16 times"},
    {"repeat-penalty", 0, OPTION_REAL, AT(repeat_penalty), "R", "1", 0.01, 10, NULL,
     "divides what speaks for tokens that are in the text, prompt included; 1: none"},
    {"presence-penalty", 0, OPTION_REAL, AT(presence_penalty), "P", "0", -2, 2, NULL,
     "taken off the logits of tokens that were generated"},
    {"frequency-penalty", 0, OPTION_REAL, AT(frequency_penalty), "F", "0", -2, 2, NULL,
     "taken off them for each time that they were"},
    {"logprobs", 0, OPTION_WHOLE, AT(logprobs), "K", "0", 0, RSE_LOGPROBS_MAX, NULL,
     "with --json: logprobs of each token and of the K likeliest; 0: none"},
    {"slots", 0, OPTION_WHOLE, AT(slots), "N", "0", 0, 4096, NULL, "sequences at once, of the batch; 0: all"},
    {"step-budget", 0, OPTION_WHOLE, AT(step_budget), "N", "0", 0, 65536, NULL,
     "tokens of a step, of all sequences together; 0: 512, or one of each"},
    {"kv-memory", 0, OPTION_WHOLE, AT(kv_memory), "MIB", "0", 0, 1 << 24, NULL,
     "for keys and values; 0: for all sequences, up to a quarter of the memory"},
    {"prefix-cache", 0, OPTION_WHOLE, AT(prefix_cache), "MIB", "256", 0, 1 << 24, NULL,
     "for beginnings that sequences of a batch have in common; 0: each reads its own"},
    {0},
};

static const option_row draft_options[] = {
    {"speculate", 0, OPTION_TEXT, AT(speculate), "KIND", "none", 0, 0, NULL,
     "draft tokens and verify several in a step, to the same text:\n"
     "ngram (as the text went on before), mtp (the model's own\n"
     "block), model:MODEL (a smaller one), none"},
    {"draft", 0, OPTION_TEXT, AT(draft), "D|auto", "auto", 0, 0, NULL,
     "drafts along a path, 0 to 15; auto: as many as pay, by measurement"},
    {"tree", 0, OPTION_WHOLE, AT(tree), "K", "1", 1, 15, NULL,
     "drafts after each token: above 1 they form a tree"},
    {"exact", 0, OPTION_FLAG, AT(exact), NULL, NULL, 0, 0, NULL,
     "end steps at flush boundaries, so that logits too are those\n"
     "of plain decoding, bit for bit; auto then means replay"},
    {0},
};

static const command_spec spec = {
    .usage = "replayssm run [MODEL] [-p TEXT | --file FILE | --ids FILE] [OPTION]...",
    .about = "Lets MODEL, a directory or the name of a bundled model (default tiny-gdn), continue a text.",
    .tables = {run_options, options_input, sampling_options, shaping_options, draft_options, options_engine},
};

/* One of the sequences of a run. */
typedef struct stream {
    rse_session *session; /* of the one sequence; those of a batch are the scheduler's */
    rse_request *request;
    uint64_t seed;
    rse_decoder decoder;
    rse_stop stop;
    bool stopped; /* a stop string was in what was held back at the end */
    bool print; /* as it comes */
    rse_text fresh; /* decoded, not looked through for stop strings */
    rse_text text;
} stream;

typedef struct run_state {
    const settings *set;
    workspace work;
    speculation drafts;
    rse_ids prompt;
    rse_sched *sched;
    stream *streams; /* [set->batch] */
} run_state;

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number) {
    (void)number;
    interrupted = 1;
}

static void print_text(stream *s, size_t from) {
    if (s->print && s->text.length > from) {
        fwrite(s->text.data + from, 1, s->text.length - from, stdout);
        fflush(stdout);
    }
}

/* Passes on what was decoded, up to a stop string. */
static rse_status pass_on(stream *s, bool *found, rse_error *err) {
    size_t before = s->text.length;
    rse_status status = rse_stop_push(&s->stop, s->fresh.data, s->fresh.length, &s->text, found, err);
    s->fresh.length = 0;
    print_text(s, before);
    return status;
}

static void on_token(void *user, rse_request *request, int32_t token) {
    stream *s = user;
    rse_error ignored;
    bool found = false;
    if (s->decoder.tokenizer != NULL && (rse_decoder_push(&s->decoder, token, &s->fresh, &ignored) != RSE_OK ||
                                         pass_on(s, &found, &ignored) != RSE_OK)) {
        rse_request_abort(request); /* no memory for text */
    }
    if (found) {
        rse_request_stop(request);
    }
}

/* What the decoder and the search for stop strings still hold, of a text that has ended otherwise. */
static rse_status end_text(stream *s, rse_error *err) {
    bool found = rse_request_state(s->request) == RSE_FINISH_STOP;
    if (found) {
        return RSE_OK;
    }
    RSE_TRY(rse_decoder_flush(&s->decoder, &s->fresh, err));
    RSE_TRY(pass_on(s, &found, err));
    size_t before = s->text.length;
    RSE_TRY(found ? RSE_OK : rse_stop_flush(&s->stop, &s->text, &found, err));
    s->stopped = found;
    print_text(s, before);
    return RSE_OK;
}

/* Opens the sessions; a saved one brings the tokens that its prompt starts with. */
static rse_status open_streams(run_state *run, rse_error *err) {
    const settings *set = run->set;
    run->streams = calloc((size_t)set->batch, sizeof *run->streams);
    if (run->streams == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for %" PRId64 " sequences", set->batch);
    }
    for (int64_t i = 0; i < set->batch; i++) {
        stream *s = &run->streams[i];
        s->seed = set->seed + (uint64_t)i;
        s->print = set->batch == 1 && !set->json;
        rse_decoder_init(&s->decoder, run->work.tokenizer, false);
        s->stop = (rse_stop){.strings = set->stop.at, .count = set->stop.count};
        if (set->batch == 1) {
            RSE_TRY(rse_session_open(run->work.engine, s->seed, &s->session, err));
        }
    }
    if (set->session == NULL || !rse_file_exists(set->session)) {
        return RSE_OK;
    }
    rse_session_tail tail;
    RSE_TRY(rse_session_load(run->streams[0].session, set->session, &tail, err));
    rse_status status = RSE_OK;
    for (int64_t i = 0; i < tail.count && status == RSE_OK; i++) {
        status = rse_ids_append(&run->prompt, tail.ids[i], err);
    }
    if (!set->seed_given) {
        run->streams[0].seed = tail.seed;
    }
    free(tail.ids);
    return status;
}

static rse_status start(run_state *run, rse_error *err) {
    const settings *set = run->set;
    RSE_TRY(open_streams(run, err));
    bool given;
    RSE_TRY(read_input(&run->work, set, &run->prompt, &given, err));
    if (run->prompt.count == 0) {
        return rse_fail(err, RSE_ERROR_USAGE,
                        "there is nothing to continue: give -p TEXT, --file FILE or --ids FILE");
    }
    RSE_TRY(rse_sched_create(run->work.engine, &run->sched, err));
    RSE_TRY(rse_sched_speculate(run->sched, &run->drafts.how, err));
    for (int64_t i = 0; i < set->batch; i++) {
        stream *s = &run->streams[i];
        rse_request_desc desc = {
            .session = s->session,
            .id = s->seed,
            .prompt = run->prompt.data,
            .count = (int64_t)run->prompt.count,
            .max_tokens = set->count,
            .ignore_end = set->ignore_eos,
            .sampling = sampling_of(set, &run->work.info, s->seed),
            .penalties = {(float)set->repeat_penalty, (float)set->presence_penalty, (float)set->frequency_penalty},
            .logprobs = (int32_t)set->logprobs,
            .token = on_token,
            .user = s,
        };
        RSE_TRY(rse_sched_add(run->sched, &desc, &s->request, err));
    }
    return RSE_OK;
}

static rse_status generate(run_state *run, rse_error *err) {
    int64_t total = (int64_t)run->prompt.count * run->set->batch;
    progress bar = {0};
    int32_t running = 1;
    while (running > 0) {
        RSE_TRY(rse_sched_step(run->sched, &running, err));
        int64_t left = 0;
        for (int64_t i = 0; i < run->set->batch; i++) {
            left += rse_request_prompt_left(run->streams[i].request);
        }
        if (left > 0) {
            progress_show(&bar, "prompt", total - left, total);
        } else {
            progress_clear(&bar);
        }
        for (int64_t i = 0; interrupted && i < run->set->batch; i++) {
            rse_request_abort(run->streams[i].request);
        }
    }
    for (int64_t i = 0; i < run->set->batch; i++) {
        stream *s = &run->streams[i];
        if (rse_request_state(s->request) == RSE_FINISH_ERROR) {
            *err = *rse_request_error(s->request);
            return err->status;
        }
        RSE_TRY(end_text(s, err));
    }
    return RSE_OK;
}

/* The checks and the saving that come after the last token of a session of ours. */
static rse_status conclude(run_state *run, rse_error *err) {
    const stream *s = &run->streams[0];
    if (s->session == NULL) {
        return RSE_OK;
    }
    RSE_TRY(rse_session_commit(s->session, RSE_ACCEPT_ALL, err));
    if (run->set->check) { /* before the file that is there already is written over */
        RSE_TRY(rse_session_check(s->session, err));
    }
    if (run->set->session == NULL) {
        return RSE_OK;
    }
    int64_t count;
    const int32_t *tokens = rse_request_tokens(s->request, &count);
    int32_t last = count > 0 ? tokens[count - 1] : 0;
    rse_session_tail tail = {.ids = &last, .count = count > 0, .seed = s->seed};
    return rse_session_save(s->session, &tail, run->set->session, err);
}

static double rate(int64_t tokens, double seconds) {
    return seconds > 0.0 ? (double)tokens / seconds : 0.0;
}

static double per_token(int64_t bytes, const rse_sched_figures *figures) {
    return figures->decode_tokens > 0 ? (double)bytes / (double)figures->decode_tokens : 0.0;
}

static double tokens_per_round(const rse_sched_figures *figures) {
    return figures->rounds > 0 ? (double)(figures->rounds + figures->accepted) / (double)figures->rounds : 0.0;
}

static const char *finish_name(int32_t state) {
    static const char *const names[] = {"running", "end", "length", "abort", "error", "stop", "context"};
    return names[state];
}

static void print_figures(const run_state *run, bool identical) {
    rse_sched_figures f = rse_sched_count(run->sched);
    const rse_engine_info *info = &run->work.info;
    int64_t generated = 0;
    for (int64_t i = 0; i < run->set->batch; i++) {
        int64_t count;
        (void)rse_request_tokens(run->streams[i].request, &count);
        generated += count;
    }
    printf("%" PRId64 " tokens, %.1f tokens/s; prompt %" PRId64 " tokens, %.1f tokens/s; %s, window %d, %s; "
           "state bytes per token: %.0f read, %.0f written",
           generated, rate(f.decode_tokens, f.decode_seconds), f.prompt_tokens,
           rate(f.prompt_tokens, f.prompt_seconds), method_name(info->method), info->window,
           rssm_dtype_name(info->io_dtype), per_token(f.bytes_read, &f), per_token(f.bytes_written, &f));
    rse_prefix_figures prefixes = rse_engine_prefixes(run->work.engine);
    if (prefixes.tokens > 0) {
        printf("; %" PRId64 " tokens of prompts from the prefix cache", prefixes.tokens);
    }
    if (f.parked > 0) {
        printf("; parked %" PRId64 " times", f.parked);
    }
    if (run->drafts.how.drafter != NULL) {
        printf("; drafts by %s: %.2f tokens a round, %" PRId64 " of %" PRId64 " right",
               run->drafts.how.drafter->name, tokens_per_round(&f), f.accepted, f.drafted);
    }
    if (run->set->check) {
        printf("; %" PRId64 " flushes compared, %s", rse_engine_checked(run->work.engine),
               identical ? "all bit-identical" : "one differs");
    }
    putchar('\n');
}

static void print_text_form(run_state *run, bool identical) {
    for (int64_t i = 0; i < run->set->batch; i++) {
        stream *s = &run->streams[i];
        if (run->set->batch > 1) {
            printf("--- seed %" PRIu64 "\n", s->seed);
            s->print = true;
            print_text(s, 0);
        }
        if (run->work.tokenizer == NULL) {
            int64_t count;
            const int32_t *tokens = rse_request_tokens(s->request, &count);
            for (int64_t t = 0; t < count; t++) {
                printf("%s%d", t > 0 ? " " : "", tokens[t]);
            }
        }
        putchar('\n');
    }
    print_figures(run, identical);
}

static void append_ids(json_t *list, const int32_t *ids, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        json_array_append_new(list, json_integer(ids[i]));
    }
}

/* All ids of a sequence: what its session has run, and the last one chosen; of a batch, whose sessions are gone, the
 * prompt and what was generated. */
static json_t *json_ids(const run_state *run, const stream *s) {
    json_t *list = json_array();
    int64_t count;
    const int32_t *tokens = rse_request_tokens(s->request, &count);
    if (s->session == NULL) {
        append_ids(list, run->prompt.data, (int64_t)run->prompt.count);
        append_ids(list, tokens, count);
        return list;
    }
    append_ids(list, rse_session_ids(s->session),
               rse_session_position(s->session) + rse_session_pending(s->session));
    append_ids(list, tokens + (count > 0 ? count - 1 : 0), count > 0);
    return list;
}

static json_t *json_logprob(const rse_token_logprob *of) {
    json_t *logprob = isfinite(of->logprob) ? json_real((double)of->logprob) : json_null(); /* JSON has no infinity */
    return json_pack("{s:i, s:o}", "id", (int)of->id, "logprob", logprob);
}

static json_t *json_logprobs(const stream *s, int32_t top) {
    json_t *list = json_array();
    int64_t count;
    (void)rse_request_tokens(s->request, &count);
    for (int64_t i = 0; i < count; i++) {
        const rse_token_logprob *of = rse_request_logprobs(s->request, i);
        json_t *item = json_logprob(of), *likeliest = json_array();
        for (int32_t k = 0; k < top; k++) {
            json_array_append_new(likeliest, json_logprob(&of[1 + k]));
        }
        json_object_set_new(item, "top", likeliest);
        json_array_append_new(list, item);
    }
    return list;
}

static json_t *json_text(const stream *s) {
    return json_stringn(s->text.data != NULL ? s->text.data : "", s->text.length);
}

static void describe_stream(json_t *object, const run_state *run, const stream *s) {
    json_object_set_new(object, "ids", json_ids(run, s));
    json_object_set_new(object, "text", json_text(s));
    const int32_t state = s->stopped ? RSE_FINISH_STOP : rse_request_state(s->request);
    json_object_set_new(object, "finish", json_string(finish_name(state)));
    if (run->set->logprobs > 0) {
        json_object_set_new(object, "logprobs", json_logprobs(s, (int32_t)run->set->logprobs));
    }
}

static void describe_streams(json_t *object, const run_state *run) {
    describe_stream(object, run, &run->streams[0]);
    if (run->set->batch == 1) {
        return;
    }
    json_t *list = json_array();
    for (int64_t i = 0; i < run->set->batch; i++) {
        const stream *s = &run->streams[i];
        json_t *item = json_object();
        json_object_set_new(item, "seed", json_integer((json_int_t)s->seed));
        describe_stream(item, run, s);
        json_array_append_new(list, item);
    }
    json_object_set_new(object, "sequences", list);
}

static void print_json(const run_state *run, bool identical) {
    rse_sched_figures f = rse_sched_count(run->sched);
    const rse_engine_info *info = &run->work.info;
    json_t *object = json_object();
    describe_streams(object, run);
    json_object_set_new(object, "tokens_per_second", json_real(rate(f.decode_tokens, f.decode_seconds)));
    json_object_set_new(object, "prompt_tokens_per_second", json_real(rate(f.prompt_tokens, f.prompt_seconds)));
    json_object_set_new(object, "prompt_tokens_recalled", json_integer(rse_engine_prefixes(run->work.engine).tokens));
    json_object_set_new(object, "parked", json_integer(f.parked));
    json_object_set_new(object, "method", json_string(method_name(info->method)));
    json_object_set_new(object, "window", json_integer(info->window));
    json_object_set_new(object, "io", json_string(rssm_dtype_name(info->io_dtype)));
    json_object_set_new(object, "threads", json_integer(info->threads));
    json_object_set_new(object, "state_bytes_read_per_token", json_real(per_token(f.bytes_read, &f)));
    json_object_set_new(object, "state_bytes_written_per_token", json_real(per_token(f.bytes_written, &f)));
    if (run->drafts.how.drafter != NULL) {
        json_object_set_new(object, "speculate", json_string(run->drafts.how.drafter->name));
        json_object_set_new(object, "rounds", json_integer(f.rounds));
        json_object_set_new(object, "drafted", json_integer(f.drafted));
        json_object_set_new(object, "accepted", json_integer(f.accepted));
        json_object_set_new(object, "tokens_per_round", json_real(tokens_per_round(&f)));
        json_object_set_new(object, "rounds_per_second",
                            json_real(rate(f.decode_tokens, f.decode_seconds) / tokens_per_round(&f)));
    }
    if (run->set->check) {
        json_object_set_new(object, "flushes_compared", json_integer(rse_engine_checked(run->work.engine)));
        json_object_set_new(object, "identical", json_boolean(identical));
    }
    json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(12));
    putchar('\n');
    json_decref(object);
}

/* Before anything is generated: a result that cannot be kept would be lost. */
static rse_status check_session_path(const char *path, rse_error *err) {
    if (path == NULL) {
        return RSE_OK;
    }
    const char *slash = strrchr(path, '/');
    char *folder = slash == NULL ? strdup(".") : strndup(path, slash == path ? 1 : (size_t)(slash - path));
    bool writable = folder != NULL && path[0] != '\0' && access(folder, W_OK | X_OK) == 0;
    int why = errno;
    free(folder);
    if (path[0] == '\0' || rse_file_is_directory(path)) {
        return rse_fail(err, RSE_ERROR_USAGE, "--session is '%s'; it must be the path of a file", path);
    }
    return writable ? RSE_OK
                    : rse_fail(err, RSE_ERROR_IO, "--session is '%s', whose folder cannot be written to: %s", path,
                               strerror(why));
}

/* Options that would do nothing are mistakes. */
static rse_status check_effects(const settings *set, rse_error *err) {
    static const struct {
        size_t at;
        const char *name, *without;
    } rows[] = {{AT(logprobs), "logprobs", "json"}, {AT(system), "system", "chat"}, {AT(no_think), "no-think", "chat"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bool there = rows[i].at == AT(logprobs) ? set->json : set->chat;
        if (options_given(set, rows[i].at) && !there) {
            return rse_fail(err, RSE_ERROR_USAGE, "--%s has no effect without --%s", rows[i].name, rows[i].without);
        }
    }
    if (set->chat && set->stop.count > 0) {
        return rse_fail(err, RSE_ERROR_USAGE, "--chat is not for --stop: an answer ends with the model's own end");
    }
    for (int32_t i = 0; i < set->stop.count; i++) {
        if (set->stop.at[i][0] == '\0') {
            return rse_fail(err, RSE_ERROR_USAGE, "--stop is empty; it must have at least 1 character");
        }
    }
    return RSE_OK;
}

static rse_status run_all(run_state *run, rse_error *err) {
    const settings *set = run->set;
    if (set->session != NULL && set->batch > 1) {
        return rse_fail(err, RSE_ERROR_USAGE, "--session keeps one sequence; --batch is %" PRId64, set->batch);
    }
    if (set->session != NULL && set->method == RSE_METHOD_SNAPSHOT) {
        return rse_fail(err, RSE_ERROR_USAGE, "--session is not for --method snapshot, which has no session files");
    }
    RSE_TRY(check_session_path(set->session, err));
    RSE_TRY(check_effects(set, err));
    settings resolved = *set;
    int64_t slots = set->slots > 0 && set->slots < set->batch ? set->slots : set->batch;
    if (set->batch == 1 || set->method == RSE_METHOD_SNAPSHOT) { /* nothing in common, or nothing to take up */
        resolved.prefix_cache = 0;
    }
    RSE_TRY(speculation_plan(&resolved, &run->drafts, err));
    RSE_TRY(workspace_open(&resolved, (int32_t)slots, run->drafts.step_tokens, &run->work, err));
    if (set->stop.count > 0 && run->work.tokenizer == NULL) {
        return rse_fail(err, RSE_ERROR_USAGE, "--stop is '%s'; %s has no tokenizer, and so no text", set->stop.at[0],
                        run->work.directory);
    }
    RSE_TRY(speculation_open(&resolved, &run->work, &run->drafts, err));
    if (set->chat) {
        return chat(set, &run->work, &run->drafts, err);
    }
    RSE_TRY(start(run, err));
    rse_status status = generate(run, err);
    if (status == RSE_OK) {
        status = conclude(run, err);
    }
    bool identical = status != RSE_ERROR_MISMATCH;
    if (status == RSE_OK || !identical) { /* a difference that --check found is a result, too */
        if (set->json) {
            print_json(run, identical);
        } else {
            print_text_form(run, identical);
        }
    }
    return status;
}

int command_run(int argc, char **argv) {
    settings set;
    int done = options_parse(&spec, argc, argv, &set);
    if (done != 0) {
        return done - 1;
    }
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &action, NULL); /* the first one ends the run in order, the second one at once */
    run_state run = {.set = &set};
    rse_error err = {0};
    rse_status status = run_all(&run, &err);
    int code = status == RSE_OK ? EXIT_SUCCESS : report_error(&err);
    rse_sched_destroy(run.sched);
    for (int64_t i = 0; run.streams != NULL && i < set.batch; i++) {
        rse_session_close(run.streams[i].session);
        rse_stop_free(&run.streams[i].stop);
        rse_text_free(&run.streams[i].fresh);
        rse_text_free(&run.streams[i].text);
    }
    free(run.streams);
    rse_ids_free(&run.prompt);
    speculation_close(&run.drafts);
    workspace_close(&run.work);
    return code;
}
