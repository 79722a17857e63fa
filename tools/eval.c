/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replayssm eval nll: the mean negative log-likelihood of a text, as one JSON object.
 */
#include "tool.h"
#include "math/math.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const option_row eval_options[] = {
    {"decode", 0, OPTION_FLAG, offsetof(settings, decode), NULL, NULL, 0, 0, NULL,
     "run the text as decoding does, a token at a time, instead of as\n"
     "one long prompt"},
    {0},
};

static const command_spec spec = {
    .usage = "replayssm eval nll [MODEL] {--file FILE | --ids FILE} [OPTION]...",
    .about = "Prints how well MODEL (default tiny-gdn) predicts each token of a text from those before it:\n"
             "{\"tokens\": number scored, \"nll\": mean in nats, \"ppl\": its exponential}.",
    .tables = {options_input, eval_options, options_engine},
};

enum { PIECE_TOKENS = 256, LOGITS_BYTES = 1 << 26 };

typedef struct score {
    double sum;
    int64_t tokens;
} score;

/* Runs tokens [0, count - 1) and scores what they say about tokens [1, count). */
static rse_status score_ids(const workspace *work, const settings *set, rse_session *session,
                            const rse_ids *ids, float *logits, int64_t piece, score *result, rse_error *err) {
    int64_t last = (int64_t)ids->count - 1;
    progress bar = {0};
    for (int64_t at = 0; at < last; at += piece) {
        rse_row row = {
            .session = session,
            .tokens = ids->data + at,
            .count = (int32_t)(last - at < piece ? last - at : piece),
            .accepted = RSE_ACCEPT_ALL,
            .prompt = !set->decode,
        };
        row.outputs = row.count;
        RSE_TRY(rse_engine_step(work->engine, &row, 1, logits, NULL, err));
        for (int32_t i = 0; i < row.count; i++) {
            result->sum +=
                rse_nll(logits + (int64_t)i * work->info.vocab, work->info.vocab, ids->data[at + i + 1]);
        }
        result->tokens += row.count;
        progress_show(&bar, "scoring", result->tokens, last);
    }
    progress_clear(&bar);
    return rse_session_check(session, err);
}

static void print_score(const workspace *work, const settings *set, const score *result) {
    double mean = result->sum / (double)result->tokens;
    json_t *object = json_object();
    json_object_set_new(object, "tokens", json_integer(result->tokens));
    json_object_set_new(object, "nll", isfinite(mean) ? json_real(mean) : json_null());
    json_object_set_new(object, "ppl", isfinite(exp(mean)) ? json_real(exp(mean)) : json_null());
    json_object_set_new(object, "method", json_string(method_name(work->info.method)));
    json_object_set_new(object, "window", json_integer(work->info.window));
    json_object_set_new(object, "io", json_string(rssm_dtype_name(work->info.io_dtype)));
    if (set->check) {
        json_object_set_new(object, "flushes_compared", json_integer(rse_engine_checked(work->engine)));
        json_object_set_new(object, "identical", json_true());
    }
    json_dumpf(object, stdout, JSON_REAL_PRECISION(12));
    putchar('\n');
    json_decref(object);
}

static rse_status eval_nll(settings *set, workspace *work, rse_ids *ids, rse_error *err) {
    RSE_TRY(workspace_open(set, 1, 1, work, err));
    bool given;
    RSE_TRY(read_input(work, set, ids, &given, err));
    if (!given) {
        return rse_fail(err, RSE_ERROR_USAGE, "there is nothing to score: give --file FILE or --ids FILE");
    }
    if (ids->count < 2) {
        return rse_fail(err, RSE_ERROR_USAGE, "the text has 1 token; scoring needs at least 2");
    }
    int64_t row_bytes = (int64_t)work->info.vocab * (int64_t)sizeof(float);
    int64_t piece = LOGITS_BYTES / row_bytes < PIECE_TOKENS ? LOGITS_BYTES / row_bytes : PIECE_TOKENS;
    if (set->decode || piece < 1) {
        piece = 1;
    }
    float *logits = malloc((size_t)(piece * row_bytes));
    if (logits == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for the logits of %lld tokens", (long long)piece);
    }
    score result = {0};
    rse_session *session;
    rse_status status = rse_session_open(work->engine, 0, &session, err);
    if (status == RSE_OK) {
        status = score_ids(work, set, session, ids, logits, piece, &result, err);
        rse_session_close(session);
    }
    free(logits);
    if (status == RSE_OK) {
        print_score(work, set, &result);
    }
    return status;
}

int command_eval(int argc, char **argv) {
    bool help = argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
    if (!help) {
        if (argc > 1 && strcmp(argv[1], "kl") == 0) {
            return eval_kl(argc - 1, argv + 1);
        }
        if (argc > 1 && strcmp(argv[1], "calibrate") == 0) {
            return eval_calibrate(argc - 1, argv + 1);
        }
        if (argc > 1 && strcmp(argv[1], "drift") == 0) {
            return eval_drift(argc - 1, argv + 1);
        }
        if (argc < 2 || strcmp(argv[1], "nll") != 0) {
            fprintf(stderr, "replayssm: eval does: nll, kl, drift, calibrate%s%s\nSee 'replayssm eval nll --help'.\n",
                    argc < 2 ? "" : "; it does not know ", argc < 2 ? "" : argv[1]);
            return EXIT_USAGE;
        }
        argc--;
        argv++;
    }
    return workspace_run(&spec, argc, argv, eval_nll);
}
