/* SPDX-License-Identifier: Apache-2.0 */
/* `bench spec --model`: tokens per second of whole runs, plain and drafted, one run after the other in turns.
 */
#include "spec.h"
#include "machine.h"
#include "sched/sched.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLAIN, NGRAM, MTP, AUTO_MTP, KINDS, TURNS = 3 };
static const char *const names[KINDS] = {"plain", "ngram", "mtp", "mtp, auto"};

static const char prompt[] =
    "It was late in the evening when the captain came back to the house, and the old man was still "
    "sitting by the fire, with the letter in his hand.";

typedef struct outcome {
    double rate, tokens_per_round;
    bool there; /* the model can be run so */
} outcome;

static rse_status open_drafter(rse_engine *engine, int32_t kind, rse_drafter **drafter, rse_error *err) {
    *drafter = NULL;
    return kind == PLAIN   ? RSE_OK
           : kind == NGRAM ? rse_drafter_ngram(drafter, err)
                           : rse_drafter_mtp(engine, drafter, err);
}

static rse_status run_requests(const spec_run *run, rse_engine *engine, rse_sched *sched, const rse_ids *ids,
                               int32_t batch, rse_error *err) {
    rse_session **sessions = calloc((size_t)batch, sizeof *sessions);
    rse_request **requests = calloc((size_t)batch, sizeof *requests);
    rse_status status =
        sessions != NULL && requests != NULL ? RSE_OK : rse_fail(err, RSE_ERROR_MEMORY, "no memory");
    for (int32_t i = 0; i < batch && status == RSE_OK; i++) {
        status = rse_session_open(engine, (uint64_t)i, &sessions[i], err);
        rse_request_desc desc = {
            .session = sessions[i],
            .prompt = ids->data,
            .count = (int64_t)ids->count - i % 8, /* texts differ, greedy ones too */
            .max_tokens = run->args.count,
            .ignore_end = true,
            .sampling = {.temperature = (float)run->args.temperature, .top_p = 1.0f, .seed = (uint64_t)i}};
        status = status == RSE_OK ? rse_sched_add(sched, &desc, &requests[i], err) : status;
    }
    for (int32_t running = 1; running > 0 && status == RSE_OK;) {
        status = rse_sched_step(sched, &running, err);
    }
    for (int32_t i = 0; i < batch && sessions != NULL && requests != NULL; i++) {
        rse_request_free(requests[i]);
        rse_session_close(sessions[i]);
    }
    free(sessions);
    free(requests);
    return status;
}

static rse_status run_once(const spec_run *run, rse_engine *engine, const rse_ids *ids, int32_t batch,
                           int32_t kind, outcome *out, rse_error *err) {
    rse_drafter *drafter;
    rse_sched *sched = NULL;
    RSE_TRY(open_drafter(engine, kind, &drafter, err));
    rse_speculation how = {.drafter = drafter,
                           .drafts = kind == AUTO_MTP ? RSE_DRAFTS_AUTO : (int32_t)run->args.drafts};
    rse_status status = rse_sched_create(engine, &sched, err);
    status = status == RSE_OK ? rse_sched_speculate(sched, &how, err) : status;
    status = status == RSE_OK ? run_requests(run, engine, sched, ids, batch, err) : status;
    if (status == RSE_OK) {
        rse_sched_figures f = rse_sched_count(sched);
        double rate = (double)f.decode_tokens / f.decode_seconds;
        out->rate = rate > out->rate ? rate : out->rate; /* the best of its turns */
        out->tokens_per_round = (double)(f.rounds + f.accepted) / (double)f.rounds;
        out->there = true;
    }
    rse_sched_destroy(sched);
    rse_drafter_destroy(drafter);
    return status;
}

static void print_outcome(const spec_run *run, const rse_engine_info *info, int32_t batch, int32_t kind,
                          const outcome *o, double plain) {
    static const char *const methods[] = {"replay", "conventional", "auto", "snapshot"};
    int64_t bytes = info->checkpoint_bytes + info->buffer_bytes + info->conv_bytes + info->cursor_bytes;
    printf("%-16s %-10s %5d %10.1f %8.2f %8.2f %10lld\n", info->model_type, names[kind], (int)batch, o->rate,
           o->rate / plain, o->tokens_per_round, (long long)bytes);
    fflush(stdout);
    if (run->env.json != NULL) {
        fprintf(
            run->env.json,
            "{\"id\": \"spec_model_%s_%s_%s_t%g_B%d\", \"operation\": \"spec_model\", \"shape\": \"%s, %s\"",
            info->model_type, names[kind], methods[info->method], run->args.temperature, (int)batch,
            names[kind], methods[info->method]);
        fprintf(
            run->env.json,
            ", \"io\": \"%s\", \"batch\": %d, \"drafts\": %d, \"temperature\": %g, \"tokens_per_second\": %.5g",
            rssm_dtype_name(info->io_dtype), (int)batch, (int)run->args.drafts, run->args.temperature, o->rate);
        fprintf(run->env.json, ", \"gain\": %.4g, \"tokens_per_round\": %.4g, \"bytes\": %lld, ",
                o->rate / plain, o->tokens_per_round, (long long)bytes);
        bench_json_machine(run->env.json, run->env.threads);
        fprintf(run->env.json, "}\n");
        fflush(run->env.json);
    }
}

static rse_status run_batch(spec_run *run, const rse_ids *ids, int32_t batch, rse_error *err) {
    outcome outcomes[KINDS] = {{0}};
    int32_t step = (int32_t)run->args.drafts + 1;
    rse_engine_options options = {.threads = run->env.threads,
                                  .io_dtype = run->args.formats.at[0],
                                  .method = run->args.method,
                                  .window = (int32_t)run->args.window,
                                  .sessions = batch,
                                  .step_tokens = step,
                                  .isa_mask = run->env.isa_mask,
                                  .batch_tokens = batch * step > 512 ? batch * step : 512};
    rse_engine *engine;
    rse_engine_info info;
    RSE_TRY(rse_engine_open(run->args.model, &options, &engine, err));
    rse_engine_describe(engine, &info);
    rse_status status = RSE_OK;
    for (int32_t turn = 0; turn < TURNS && status == RSE_OK; turn++) {
        for (int32_t kind = PLAIN; kind < KINDS && status == RSE_OK; kind++) {
            if (kind < MTP || info.mtp_blocks > 0) {
                status = run_once(run, engine, ids, batch, kind, &outcomes[kind], err);
            }
        }
    }
    for (int32_t kind = PLAIN; kind < KINDS && status == RSE_OK; kind++) {
        if (outcomes[kind].there) {
            print_outcome(run, &info, batch, kind, &outcomes[kind], outcomes[PLAIN].rate);
        }
    }
    rse_engine_close(engine);
    return status;
}

rse_status bench_spec_model(spec_run *run, rse_error *err) {
    rse_tokenizer *tokenizer;
    rse_ids ids = {0};
    RSE_TRY(rse_tokenizer_load(run->args.model, &tokenizer, err));
    rse_status status = rse_tokenizer_encode(tokenizer, prompt, strlen(prompt), RSE_ENCODE_TEMPLATE, &ids, err);
    printf("%-16s %-10s %5s %10s %8s %8s %10s\n", "model", "drafts", "batch", "tokens/s", "gain", "a round",
           "bytes");
    for (int32_t b = 0; b < run->args.batches.count && status == RSE_OK; b++) {
        status = run_batch(run, &ids, run->args.batches.at[b], err);
    }
    rse_ids_free(&ids);
    rse_tokenizer_free(tokenizer);
    return status;
}
