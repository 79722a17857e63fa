/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The subcommands, and what they share: finding and opening a model, reading what is to be run, failing.
 */
#ifndef REPLAYSSM_TOOL_H
#define REPLAYSSM_TOOL_H

#include "base/buffer.h"
#include "engine.h"
#include "math/sampler.h"
#include "options.h"
#include "sched/sched.h"
#include "text/tokenizer.h"

#include <stdio.h>

enum { EXIT_USAGE = 2 }; /* beside EXIT_SUCCESS and EXIT_FAILURE */

/* argv[0] is the subcommand. They return the exit code. */
int command_run(int argc, char **argv);
int command_eval(int argc, char **argv);
int eval_kl(int argc, char **argv); /* eval.c calls these */
int eval_calibrate(int argc, char **argv);
int eval_drift(int argc, char **argv);
int command_inspect(int argc, char **argv);

/* Prints the sentence and returns the exit code that belongs to its status. */
int report_error(const rse_error *err);

/* An opened model with its tokenizer; the latter is NULL where the directory has none. */
typedef struct workspace {
    char *directory;
    rse_engine *engine;
    rse_engine_info info;
    rse_tokenizer *tokenizer;
} workspace;

/* The directory of a model given by path or bundled name, to be freed; NULL: no memory. */
char *workspace_find(const char *name);
/* Opens what settings name. The caller closes it, after a failure too. */
rse_status workspace_open(const settings *set, int32_t sessions, int32_t step_tokens, workspace *work,
                          rse_error *err);
void workspace_close(workspace *work);
/* A command that is one piece of work on a model and a text: its words, the work, and what is to be freed. */
int workspace_run(const command_spec *spec, int argc, char **argv,
                  rse_status (*work)(settings *, workspace *, rse_ids *, rse_error *));
/* An rssm_log_fn to stderr. */
void workspace_log(void *user, int32_t level, const char *text);

/* What --speculate, --draft, --tree and --exact come to. */
typedef struct speculation {
    rse_speculation how;
    int32_t step_tokens; /* that the engine needs */
} speculation;
/* Reads the settings, before the engine is opened; --exact turns the method auto into replay. */
rse_status speculation_plan(settings *set, speculation *drafts, rse_error *err);
/* Makes the drafter. It is to be closed before the workspace. */
rse_status speculation_open(const settings *set, const workspace *work, speculation *drafts, rse_error *err);
void speculation_close(speculation *drafts);

/* Appends the ids of settings' prompt, file or ids to ids. *given: whether there was any of them; more than
 * one, an empty text and an id outside the vocabulary are RSE_ERROR_USAGE. */
rse_status read_input(const workspace *work, const settings *set, rse_ids *ids, bool *given, rse_error *err);

/* How to sample: as the command line says, where it is silent as the model's maker recommends, and otherwise by
 * the defaults of the options. */
rse_sampling sampling_of(const settings *set, const rse_engine_info *info, uint64_t seed);

/* run --chat: lines from stdin, answers to stdout, until the end of the input. */
rse_status chat(const settings *set, workspace *work, const speculation *drafts, rse_error *err);

/* A bar on stderr, on terminals only and not for work that is done at once. Zeroed: not begun. */
typedef struct progress {
    const char *label;
    double began;
    bool shown;
} progress;
void progress_show(progress *bar, const char *label, int64_t done, int64_t total);
void progress_clear(progress *bar);

#endif
