/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding a model, opening it, and reading the text or ids that it is to work on.
 */
#include "base/file.h"
#include "load/gguf_model.h"
#include "tool.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_MODEL "tiny-gdn"

enum { INPUT_LIMIT = 1 << 28, PATH_SIZE = 4096, BATCH_TOKENS = 512 };

int report_error(const rse_error *err) {
    fprintf(stderr, "replayssm: %s\n", err->text);
    return err->status == RSE_ERROR_USAGE ? EXIT_USAGE : EXIT_FAILURE;
}

/* Models that come with the command lie at a fixed place relative to it; in a build folder that is a link. */
static char *bundled_model(const char *name) {
    static const char from_bin[] = "/" REPLAYSSM_MODELS_FROM_BIN;
    char path[PATH_SIZE];
    ssize_t length = readlink("/proc/self/exe", path, PATH_SIZE - sizeof from_bin);
    path[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(path, '/');
    strcpy(slash != NULL ? slash : path, from_bin);
    char *found = rse_path_join(path, name), *resolved = found != NULL ? realpath(found, NULL) : NULL;
    if (resolved != NULL) { /* without the way up from the command and down again */
        free(found);
        found = resolved;
    }
    return found;
}

char *workspace_find(const char *name) {
    if (name == NULL) {
        return bundled_model(DEFAULT_MODEL);
    }
    if (name[0] != '\0' && strchr(name, '/') == NULL && !rse_file_exists(name)) {
        char *found = bundled_model(name);
        if (found == NULL || rse_file_is_directory(found)) {
            return found;
        }
        free(found);
    }
    return strdup(name);
}

void workspace_log(void *user, int32_t level, const char *text) {
    (void)user;
    (void)level;
    fprintf(stderr, "replayssm: %s\n", text);
}

static rse_status open_tokenizer(workspace *work, rse_error *err) {
    if (!rse_file_is_directory(work->directory)) {
        rse_gguf *file;
        RSE_TRY(rse_gguf_open(work->directory, &file, err));
        bool has = rse_gguf_has_tokenizer(file);
        rse_gguf_close(file);
        return has ? rse_tokenizer_load(work->directory, &work->tokenizer, err) : RSE_OK;
    }
    char *path = rse_path_join(work->directory, "tokenizer.json");
    if (path == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for a path");
    }
    bool there = rse_file_exists(path);
    free(path);
    return there ? rse_tokenizer_load(work->directory, &work->tokenizer, err) : RSE_OK;
}

rse_status workspace_open(const settings *set, int32_t sessions, int32_t step_tokens, workspace *work,
                          rse_error *err) {
    *work = (workspace){.directory = workspace_find(set->model)};
    if (work->directory == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for a path");
    }
    if (!rse_file_is_directory(work->directory) && !rse_gguf_is(work->directory)) {
        return rse_fail(err, RSE_ERROR_IO, "%s: %s", work->directory,
                        rse_file_exists(work->directory) ? "no directory, and no GGUF file"
                                                         : "no such directory or GGUF file, and no bundled model");
    }
    if (set->rounding == RSSM_ROUND_STOCHASTIC && set->checkpoint <= RSSM_DTYPE_F32) {
        return rse_fail(err, RSE_ERROR_USAGE, "--rounding is stochastic, and --checkpoint f32 is not rounded");
    }
    rse_engine_options options = {
        .threads = (int32_t)set->threads,
        .io_dtype = set->io,
        .method = set->method,
        .window = (int32_t)set->window,
        .state = {.checkpoint_dtype = set->checkpoint,
                  .checkpoint_rounding = set->rounding,
                  .read_copy_dtype = set->read_copy,
                  .seed = set->seed,
                  .calibration = set->calibration},
        .sessions = sessions,
        .step_tokens = step_tokens,
        .batch_tokens = set->step_budget > 0                 ? (int32_t)set->step_budget
                        : sessions * step_tokens > BATCH_TOKENS ? sessions * step_tokens
                                                                : BATCH_TOKENS,
        .kv_bytes = set->kv_memory << 20,
        .prefix_bytes = set->prefix_cache << 20,
        .check = set->check,
        .log = set->verbose ? workspace_log : NULL,
    };
    if (set->verbose) {
        fprintf(stderr, "replayssm: model %s\n", work->directory);
    }
    RSE_TRY(rse_engine_open(work->directory, &options, &work->engine, err));
    rse_engine_describe(work->engine, &work->info);
    return open_tokenizer(work, err);
}

/* What a narrow checkpoint could not hold is said once, at the end. */
static void report_overflows(const workspace *work) {
    rse_engine_counters counters;
    rse_error ignored = {0};
    if (work->engine != NULL && rse_engine_count(work->engine, &counters, &ignored) == RSE_OK && counters.overflows > 0) {
        fprintf(stderr, "replayssm: %" PRId64 " numbers of the states were beyond the checkpoint's format, and are infinite\n",
                counters.overflows);
    }
}

void workspace_close(workspace *work) {
    report_overflows(work);
    rse_tokenizer_free(work->tokenizer);
    rse_engine_close(work->engine);
    free(work->directory);
    *work = (workspace){0};
}

int workspace_run(const command_spec *spec, int argc, char **argv,
                  rse_status (*work)(settings *, workspace *, rse_ids *, rse_error *)) {
    settings set;
    int done = options_parse(spec, argc, argv, &set);
    if (done != 0) {
        return done - 1;
    }
    workspace place = {0};
    rse_ids ids = {0};
    rse_error err = {0};
    rse_status status = work(&set, &place, &ids, &err);
    rse_ids_free(&ids);
    workspace_close(&place);
    return status == RSE_OK ? EXIT_SUCCESS : report_error(&err);
}

static rse_status parse_ids(const char *path, char *text, size_t size, int32_t vocab, rse_ids *ids,
                            rse_error *err) {
    if (strlen(text) != size) {
        return rse_fail(err, RSE_ERROR_USAGE, "%s: byte %zu is 0, which is no white space", path, strlen(text));
    }
    char *rest = NULL;
    int64_t index = 0;
    for (char *word = strtok_r(text, " \t\r\n\v\f", &rest); word != NULL;
         word = strtok_r(NULL, " \t\r\n\v\f", &rest), index++) {
        char *end = NULL;
        errno = 0;
        long long value = strtoll(word, &end, 10);
        if (*end != '\0') {
            return rse_fail(err, RSE_ERROR_USAGE, "%s: word %" PRId64 " is '%.32s', which is no token id", path,
                            index, word);
        }
        if (errno != 0 || value < 0 || value >= vocab) {
            return rse_fail(err, RSE_ERROR_USAGE, "%s: token %" PRId64 " is %.32s; the vocabulary has %d", path,
                            index, word, vocab);
        }
        RSE_TRY(rse_ids_append(ids, (int32_t)value, err));
    }
    return RSE_OK;
}

static rse_status encode(const workspace *work, const char *text, size_t length, rse_ids *ids, rse_error *err) {
    if (work->tokenizer == NULL) {
        return rse_fail(err, RSE_ERROR_USAGE, "%s has no tokenizer, so only --ids can be read",
                        work->directory);
    }
    return rse_tokenizer_encode(work->tokenizer, text, length, RSE_ENCODE_SPECIAL | RSE_ENCODE_TEMPLATE, ids,
                                err);
}

rse_status read_input(const workspace *work, const settings *set, rse_ids *ids, bool *given, rse_error *err) {
    int sources = (set->prompt != NULL) + (set->file != NULL) + (set->ids != NULL);
    *given = sources > 0;
    if (sources == 0) {
        return RSE_OK;
    }
    if (sources > 1) {
        return rse_fail(err, RSE_ERROR_USAGE, "only one of --prompt, --file and --ids can be read");
    }
    size_t before = ids->count;
    if (set->prompt != NULL) {
        RSE_TRY(encode(work, set->prompt, strlen(set->prompt), ids, err));
    } else {
        const char *path = set->file != NULL ? set->file : set->ids;
        char *text = NULL;
        size_t size = 0;
        RSE_TRY(rse_file_read(path, INPUT_LIMIT, &text, &size, err));
        rse_status status = set->file != NULL ? encode(work, text, size, ids, err)
                                              : parse_ids(path, text, size, work->info.vocab, ids, err);
        free(text);
        RSE_TRY(status);
    }
    if (ids->count == before) {
        return rse_fail(err, RSE_ERROR_USAGE, "the prompt is empty; it needs at least 1 token");
    }
    for (size_t i = before; i < ids->count; i++) {
        if (ids->data[i] >= work->info.vocab) {
            return rse_fail(
                err, RSE_ERROR_USAGE,
                "the tokenizer gives token %d, but the model's vocabulary has %d: they do not belong together",
                ids->data[i], work->info.vocab);
        }
    }
    return RSE_OK;
}

rse_sampling sampling_of(const settings *set, const rse_engine_info *info, uint64_t seed) {
    bool temp = options_given(set, offsetof(settings, temp)) || info->temperature < 0.0f;
    bool top_k = options_given(set, offsetof(settings, top_k)) || info->top_k < 0;
    bool top_p = options_given(set, offsetof(settings, top_p)) || info->top_p < 0.0f;
    bool min_p = options_given(set, offsetof(settings, min_p)) || info->min_p < 0.0f;
    return (rse_sampling){.temperature = temp ? (float)set->temp : info->temperature,
                          .top_k = top_k ? (int32_t)set->top_k : info->top_k,
                          .top_p = top_p ? (float)set->top_p : info->top_p,
                          .min_p = min_p ? (float)set->min_p : info->min_p,
                          .seed = seed};
}
