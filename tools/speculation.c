/* SPDX-License-Identifier: Apache-2.0 */
/* How the command drafts: from its options to a drafter. */
#include "base/file.h"
#include "tool.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENIZER_LIMIT = 1 << 28, AUTO_DRAFTS = 7 };

#define MODEL_PREFIX "model:"

static bool drafts_nothing(const settings *set) {
    return strcmp(set->speculate, "none") == 0;
}

/* "auto", or a whole number. */
static rse_status read_draft(const settings *set, int32_t *drafts, rse_error *err) {
    char *end;
    long value = strtol(set->draft, &end, 10);
    if (strcmp(set->draft, "auto") == 0) {
        *drafts = RSE_DRAFTS_AUTO;
        return RSE_OK;
    }
    if (end == set->draft || *end != '\0' || value < 0 || value >= RSSM_STEP_TOKENS_MAX) {
        return rse_fail(err, RSE_ERROR_USAGE, "--draft is '%s'; it must be auto or a whole number from 0 to %d",
                        set->draft, RSSM_STEP_TOKENS_MAX - 1);
    }
    *drafts = (int32_t)value;
    return RSE_OK;
}

static rse_status check_kind(const settings *set, rse_error *err) {
    static const char *const kinds[] = {"none", "ngram", "mtp"};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(set->speculate, kinds[i]) == 0) {
            return RSE_OK;
        }
    }
    if (strncmp(set->speculate, MODEL_PREFIX, strlen(MODEL_PREFIX)) == 0 &&
        set->speculate[strlen(MODEL_PREFIX)] != '\0') {
        return RSE_OK;
    }
    return rse_fail(err, RSE_ERROR_USAGE, "--speculate is '%s'; this build knows: ngram|mtp|model:MODEL|none",
                    set->speculate);
}

rse_status speculation_plan(settings *set, speculation *drafts, rse_error *err) {
    *drafts = (speculation){.step_tokens = 1};
    RSE_TRY(check_kind(set, err));
    RSE_TRY(read_draft(set, &drafts->how.drafts, err));
    drafts->how.width = (int32_t)set->tree;
    drafts->how.exact = set->exact;
    drafts->how.log = set->verbose ? workspace_log : NULL;
    if (set->exact && set->method == RSSM_METHOD_AUTO) {
        set->method = RSSM_METHOD_REPLAY;
    }
    if (drafts_nothing(set)) {
        bool draft = options_given(set, offsetof(settings, draft)), tree = options_given(set, offsetof(settings, tree));
        return draft || tree ? rse_fail(err, RSE_ERROR_USAGE, "--%s has no effect without --speculate",
                                        draft ? "draft" : "tree")
                             : RSE_OK;
    }
    if (set->method == RSSM_METHOD_CONVENTIONAL) {
        return rse_fail(
            err, RSE_ERROR_USAGE,
            "--method conventional takes one token a step; --speculate needs replay, auto or snapshot");
    }
    int64_t most = (RSSM_STEP_TOKENS_MAX - 1) / set->tree;
    int64_t depth = drafts->how.drafts != RSE_DRAFTS_AUTO ? drafts->how.drafts
                    : most < AUTO_DRAFTS                  ? most
                                                          : AUTO_DRAFTS;
    if (depth > most) {
        return rse_fail(err, RSE_ERROR_USAGE,
                        "--draft %" PRId64 " with --tree %" PRId64 " needs steps of %" PRId64
                        " tokens; the limit is %d",
                        depth, set->tree, depth * set->tree + 1, RSSM_STEP_TOKENS_MAX);
    }
    drafts->step_tokens = (int32_t)(depth * set->tree) + 1;
    return RSE_OK;
}

/* Two models whose tokenizers differ have different ids for the same text. */
static rse_status check_tokenizer(const workspace *work, const char *directory, rse_error *err) {
    const char *directories[2] = {work->directory, directory};
    char *text[2] = {NULL, NULL};
    size_t size[2] = {0, 0};
    rse_status status = RSE_OK;
    for (int i = 0; i < 2 && status == RSE_OK; i++) {
        char *path = rse_path_join(directories[i], "tokenizer.json");
        if (path == NULL) {
            status = rse_fail(err, RSE_ERROR_MEMORY, "no memory for a path");
        } else if (rse_file_exists(path)) {
            status = rse_file_read(path, TOKENIZER_LIMIT, &text[i], &size[i], err);
        }
        free(path);
    }
    if (status == RSE_OK && text[0] != NULL && text[1] != NULL &&
        (size[0] != size[1] || memcmp(text[0], text[1], size[0]) != 0)) {
        status = rse_fail(err, RSE_ERROR_MISMATCH,
                          "%s has another tokenizer than %s, so its drafts would mean other text", directory,
                          work->directory);
    }
    free(text[0]);
    free(text[1]);
    return status;
}

static rse_status open_model(const settings *set, const workspace *work, speculation *drafts, rse_error *err) {
    char *directory = workspace_find(set->speculate + strlen(MODEL_PREFIX));
    if (directory == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for a path");
    }
    rse_status status = RSE_OK;
    if (!rse_file_is_directory(directory)) {
        status = rse_fail(err, RSE_ERROR_IO, "%s: no such directory, and no bundled model", directory);
    }
    if (status == RSE_OK) {
        status = check_tokenizer(work, directory, err);
    }
    if (status == RSE_OK) {
        status = rse_drafter_model(work->engine, directory, &drafts->how.drafter, err);
    }
    free(directory);
    return status;
}

rse_status speculation_open(const settings *set, const workspace *work, speculation *drafts, rse_error *err) {
    if (drafts_nothing(set)) {
        return RSE_OK;
    }
    if (strcmp(set->speculate, "ngram") == 0) {
        return rse_drafter_ngram(&drafts->how.drafter, err);
    }
    if (strcmp(set->speculate, "mtp") == 0) {
        if (work->info.mtp_blocks == 0) {
            return rse_fail(err, RSE_ERROR_USAGE, "--speculate is mtp; %s (%s) has no block for multi-token prediction",
                            work->directory, work->info.model_type);
        }
        return rse_drafter_mtp(work->engine, &drafts->how.drafter, err);
    }
    return open_model(set, work, drafts, err);
}

void speculation_close(speculation *drafts) {
    rse_drafter_destroy(drafts->how.drafter);
    drafts->how.drafter = NULL;
}
