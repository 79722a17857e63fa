/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replayssm eval calibrate: reads a text with fp32 states and writes what nvfp4 read copies can know beforehand of the
 * reads. Steps of 16 tokens begin at the flush boundaries, as in decoding.
 */
#include "sched/calibrate.h"
#include "tool.h"

#include <stdlib.h>

static const option_row calibrate_options[] = {
    {"out", 'o', OPTION_TEXT, offsetof(settings, out), "FILE", NULL, 0, 0, NULL,
     "write the calibration there; beside the model's weights, as\n"
     "calibration.safetensors, it is found by itself"},
    {"tokens", 0, OPTION_WHOLE, offsetof(settings, tokens), "N", "16384", 1, INT32_MAX, NULL,
     "of the text, from its beginning"},
    {"window", 0, OPTION_WHOLE, offsetof(settings, window), "L", "16", 1, RSSM_WINDOW_MAX, NULL,
     "tokens from one write of the state to the next, 1 to 64"},
    {"threads", 0, OPTION_WHOLE, offsetof(settings, threads), "N", "0", 0, 1024, NULL,
     "threads; 0: one for each usable core"},
    {"help", 'h', OPTION_FLAG, offsetof(settings, help), NULL, NULL, 0, 0, NULL, "this text"},
    {0},
};

static const command_spec spec = {
    .usage = "replayssm eval calibrate [MODEL] {--file FILE | --ids FILE} -o FILE [OPTION]...",
    .about = "Reads a text with MODEL (default tiny-gdn) and fp32 states, and writes which columns of the states its\n"
             "outputs depend on: what --read-copy nvfp4 needs for its better schemes. Any text of some thousand\n"
             "tokens that resembles what the model will read is good.",
    .tables = {options_input, calibrate_options},
};

static rse_status read_text(const settings *set, workspace *work, const rse_ids *ids, rse_error *err) {
    const int64_t tokens = (int64_t)ids->count < set->tokens ? (int64_t)ids->count : set->tokens;
    const int32_t step = work->info.step_tokens;
    rse_session *session;
    progress bar = {0};
    RSE_TRY(rse_session_open(work->engine, 0, &session, err));
    rse_status status = RSE_OK;
    for (int64_t at = 0; at < tokens && status == RSE_OK; at += step) {
        const rse_row row = {.session = session,
                             .tokens = ids->data + at,
                             .count = (int32_t)(tokens - at < step ? tokens - at : step),
                             .accepted = RSE_ACCEPT_ALL};
        status = rse_engine_step(work->engine, &row, 1, NULL, NULL, err);
        progress_show(&bar, "reading", at + row.count, tokens);
    }
    progress_clear(&bar);
    rse_session_close(session);
    return status;
}

static rse_status calibrate(settings *set, workspace *work, rse_ids *ids, rse_error *err) {
    if (set->out == NULL || set->out[0] == '\0') {
        return rse_fail(err, RSE_ERROR_USAGE, "there is nowhere to write to: give -o FILE");
    }
    set->method = RSSM_METHOD_REPLAY;
    set->checkpoint = RSSM_DTYPE_F32;
    const int32_t most = set->window < RSSM_STEP_TOKENS_MAX ? (int32_t)set->window : RSSM_STEP_TOKENS_MAX;
    int32_t step = most;
    while (set->window % step != 0) { /* steps do not cross flush boundaries */
        step--;
    }
    RSE_TRY(workspace_open(set, 1, step, work, err));
    bool given;
    RSE_TRY(read_input(work, set, ids, &given, err));
    if (!given) {
        return rse_fail(err, RSE_ERROR_USAGE, "there is nothing to read: give --file FILE or --ids FILE");
    }
    rse_calibrator *calibrator;
    RSE_TRY(rse_calibrator_open(work->engine, &calibrator, err));
    rse_status status = read_text(set, work, ids, err);
    if (status == RSE_OK) {
        status = rse_calibrator_write(calibrator, set->out, err);
    }
    rse_calibrator_close(calibrator);
    return status;
}

int eval_calibrate(int argc, char **argv) {
    return workspace_run(&spec, argc, argv, calibrate);
}
