/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replayssm inspect: what a model is made of, and what running it takes of memory.
 */
#include "load/survey.h"
#include "tool.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const option_row inspect_options[] = {
    {"batch", 0, OPTION_WHOLE, offsetof(settings, batch), "B", "1", 1, 4096, NULL, "sequences to plan for"},
    {0},
};

static const command_spec spec = {
    .usage = "replayssm inspect [MODEL] [OPTION]...",
    .about =
        "Shows the layers and parameters of MODEL (default tiny-gdn), the bytes of state and buffer that each\n"
        "sequence takes, and the memory plan. Of a checkpoint that cannot be run: what it holds, and why not.",
    .tables = {inspect_options, options_engine},
};

/* "4-6": layers of one kind in a row. */
static void print_layers(const workspace *work) {
    printf("layers          %d: %d recurrent, %d with attention, %d with MLP", work->info.layers,
           work->info.layers_recurrent, work->info.layers_attention, work->info.layers_mlp);
    printf("; hidden size %d, vocabulary %d\n", work->info.hidden, work->info.vocab);
    int32_t first = 0;
    for (int32_t layer = 1; layer <= work->info.layers; layer++) {
        const char *kind = rse_engine_layer(work->engine, first);
        const char *next = rse_engine_layer(work->engine, layer);
        if (next != NULL && strcmp(kind, next) == 0) {
            continue;
        }
        char range[32];
        if (layer - 1 == first) {
            snprintf(range, sizeof range, "%d", first);
        } else {
            snprintf(range, sizeof range, "%d-%d", first, layer - 1);
        }
        printf("  %-14s%s\n", range, kind);
        first = layer;
    }
}

static void print_bytes(const char *label, int64_t bytes, const char *note) {
    const char *unit = "MiB";
    double scaled = (double)bytes / 1048576.0;
    if (bytes < 1048576) {
        unit = "KiB";
        scaled = (double)bytes / 1024.0;
    }
    printf("  %-14s%14" PRId64 " bytes %10.1f %s%s%s\n", label, bytes, scaled, unit,
           note[0] != '\0' ? "  " : "", note);
}

static void print_plan(const rse_engine_info *info) {
    int64_t sequence = info->checkpoint_bytes + info->copy_bytes + info->buffer_bytes + info->conv_bytes + info->cursor_bytes;
    printf("per sequence    method %s, window %d, io %s\n", method_name(info->method), info->window,
           rssm_dtype_name(info->io_dtype));
    char note[48];
    snprintf(note, sizeof note, "checkpoints, %s", rssm_dtype_name(info->state.checkpoint_dtype));
    print_bytes("state", info->checkpoint_bytes, note);
    if (info->copy_bytes > 0) {
        snprintf(note, sizeof note, "what outputs are read from, %s", rssm_dtype_name(info->state.read_copy_dtype));
        print_bytes("read copy", info->copy_bytes, note);
    }
    print_bytes("buffer", info->buffer_bytes, "records of recent tokens");
    print_bytes("convolution", info->conv_bytes, "");
    print_bytes("cursors", info->cursor_bytes, "");
    print_bytes("sum", sequence, "");
    print_bytes("keys, values", info->kv_token_bytes, "more for each token");
    printf("memory plan     %d sequence%s, %d threads\n", info->sessions, info->sessions == 1 ? "" : "s",
           info->threads);
    print_bytes("weights", info->weight_bytes, "mapped from the files, and converted copies");
    print_bytes("sequences", sequence * info->sessions, "");
    print_bytes("keys, values", info->kv_bytes, "at most; pages are touched on use");
    print_bytes("scratch", info->scratch_bytes, "of a step");
}

/* "BF16 (123 tensors, 19158368 bytes), ..." */
static void print_formats(const char *path) {
    rse_survey s;
    rse_error ignored;
    if (rse_survey_read(path, &s, &ignored) == RSE_OK) {
        printf("stored as       ");
        for (int32_t i = 0; i < s.formats; i++) {
            printf("%s%s (%" PRId64 " tensors, %" PRId64 " bytes)", i > 0 ? ", " : "", s.format[i].name,
                   s.format[i].tensors, s.format[i].bytes);
        }
        putchar('\n');
    }
}

/* What a checkpoint is that cannot be run, and why not. */
static void print_survey(const rse_survey *s, const char *path, const rse_error *why) {
    static const struct {
        int32_t shows;
        const char *name;
    } kinds[] = {{RSE_SURVEY_RECURRENT, "recurrent"},
                 {RSE_SURVEY_ATTENTION, "with attention"},
                 {RSE_SURVEY_LATENT, "with latent attention"},
                 {RSE_SURVEY_MLP, "with MLP"},
                 {RSE_SURVEY_EXPERTS, "with experts"}};
    printf("model           %s, %s\n", s->type[0] != '\0' ? s->type : "of no stated type", path);
    printf("cannot be run   %s\n", why->text);
    printf("file            %s, %" PRId64 " tensors of %" PRId64 " elements, tokenizer: %s\n",
           s->gguf ? "GGUF" : "safetensors", s->tensors, s->elements, s->tokenizer ? "yes" : "none");
    for (int32_t i = 0; i < s->formats; i++) {
        char note[48];
        snprintf(note, sizeof note, "%" PRId64 " tensors", s->format[i].tensors);
        print_bytes(s->format[i].name, s->format[i].bytes, note);
    }
    printf("layers          %d by the tensors' names", s->layers);
    const char *comma = ": ";
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        int32_t count = 0;
        for (int32_t i = 0; i < s->layers; i++) {
            count += (s->layer[i] & kinds[k].shows) != 0;
        }
        if (count > 0) {
            printf("%s%d %s", comma, count, kinds[k].name);
            comma = ", ";
        }
    }
    putchar('\n');
}

static rse_status inspect(const settings *set, workspace *work, rse_error *err) {
    rse_status status = workspace_open(set, (int32_t)set->batch, 1, work, err);
    if (status != RSE_OK) {
        rse_survey survey;
        rse_error unreadable;
        if (status != RSE_ERROR_USAGE && work->directory != NULL &&
            rse_survey_read(work->directory, &survey, &unreadable) == RSE_OK) {
            print_survey(&survey, work->directory, err);
        }
        return status;
    }
    const rse_engine_info *info = &work->info;
    rse_engine_counters counters;
    RSE_TRY(rse_engine_count(work->engine, &counters, err));
    printf("model           %s, %s\n", info->model_type, work->directory);
    printf("parameters      %" PRId64, info->parameters);
    if (info->mtp_blocks > 0) {
        printf(", and %" PRId64 " in %d block for multi-token prediction", info->parameters_mtp,
               info->mtp_blocks);
    }
    printf("\nfingerprint     %016" PRIx64 "\n", info->fingerprint);
    print_formats(work->directory);
    printf("kernel          %s; %s outside the recurrence\n", counters.kernel, info->isa);
    print_layers(work);
    print_plan(info);
    return RSE_OK;
}

int command_inspect(int argc, char **argv) {
    settings set;
    int done = options_parse(&spec, argc, argv, &set);
    if (done != 0) {
        return done - 1;
    }
    workspace work = {0};
    rse_error err = {0};
    rse_status status = inspect(&set, &work, &err);
    workspace_close(&work);
    return status == RSE_OK ? EXIT_SUCCESS : report_error(&err);
}
