/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations of eval kl, and formats that do not go together, in their words. */
#include "eval_kl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct word {
    const char *text;
    int32_t value;
} word;

typedef struct key {
    const char *name;
    size_t at; /* offset of an int32_t in subject */
    const word *words; /* NULL: a whole number up to `most` */
    int32_t least, most;
    bool custom; /* one of the nvfp4 options */
} key;

static const word checkpoints[] = {
    {"f32", RSSM_DTYPE_F32}, {"f16", RSSM_DTYPE_F16}, {"bf16", RSSM_DTYPE_BF16}, {"f8", RSSM_DTYPE_F8}, {NULL, 0}};
static const word roundings[] = {
    {"nearest", RSSM_ROUND_NEAREST}, {"stochastic", RSSM_ROUND_STOCHASTIC}, {NULL, 0}};
static const word copies[] = {{"none", RSSM_DTYPE_DEFAULT}, {"f16", RSSM_DTYPE_F16},   {"bf16", RSSM_DTYPE_BF16},
                              {"f8", RSSM_DTYPE_F8},        {"int8", RSSM_DTYPE_INT8}, {"nvfp4", RSSM_DTYPE_NVFP4},
                              {NULL, 0}};
static const word methods[] = {
    {"replay", RSSM_METHOD_REPLAY}, {"conventional", RSSM_METHOD_CONVENTIONAL}, {NULL, 0}};
static const word axes[] = {{"dk", RSSM_BLOCK_KEYS}, {"dv", RSSM_BLOCK_VALUES}, {NULL, 0}};

#define AT(field) offsetof(subject, options.field)
static const key keys[] = {
    {"checkpoint", AT(state.checkpoint_dtype), checkpoints, 0, 0, false},
    {"rounding", AT(state.checkpoint_rounding), roundings, 0, 0, false},
    {"read", AT(state.read_copy_dtype), copies, 0, 0, false},
    {"window", AT(window), NULL, 1, RSSM_WINDOW_MAX, false},
    {"method", AT(method), methods, 0, 0, false},
    {"axis", AT(state.read_block_axis), axes, 0, 0, true},
    {"block", AT(state.read_block), NULL, 16, 32, true},
    {"search", AT(state.read_scale_search), NULL, 0, 1, true},
    {"rank", AT(state.read_rank), NULL, 0, RSSM_READ_RANK_MAX, true},
    {"diffusion", AT(state.read_diffusion), NULL, 0, 1, true},
    {"calibrated", AT(state.read_calibrated), NULL, 0, 1, true},
    {"shared", AT(state.read_copy_shared), NULL, 0, 1, false},
    {"control", offsetof(subject, control), NULL, 0, 1, false},
};
enum { KEYS = sizeof keys / sizeof keys[0] };

static rse_status set_value(const subject *s, const key *k, const char *value, void *at, rse_error *err) {
    char *end = NULL;
    long number = strtol(value, &end, 10);
    for (const word *w = k->words; w != NULL && w->text != NULL; w++) {
        if (strcmp(w->text, value) == 0) {
            *(int32_t *)at = w->value;
            return RSE_OK;
        }
    }
    if (k->words == NULL && end != value && *end == '\0' && number >= k->least && number <= k->most) {
        *(int32_t *)at = (int32_t)number;
        return RSE_OK;
    }
    char known[128] = "";
    size_t n = 0;
    for (const word *w = k->words; w != NULL && w->text != NULL; w++) {
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", n > 0 ? ", " : "", w->text);
    }
    if (k->words == NULL) {
        snprintf(known, sizeof known, "whole numbers from %d to %d", k->least, k->most);
    }
    return rse_fail(err, RSE_ERROR_USAGE, "configuration %s: %s is '%s'; known are %s", s->name, k->name, value, known);
}

static rse_status set_key(subject *s, char *item, rse_error *err) {
    char *value = strchr(item, ':');
    if (value != NULL) {
        *value++ = '\0';
    }
    for (size_t i = 0; value != NULL && i < KEYS; i++) {
        if (strcmp(keys[i].name, item) == 0) {
            s->options.state.read_custom = s->options.state.read_custom || keys[i].custom;
            return set_value(s, &keys[i], value, (char *)s + keys[i].at, err);
        }
    }
    if (value != NULL && strcmp(item, "seed") == 0) {
        char *end = NULL;
        errno = 0;
        s->options.state.seed = strtoull(value, &end, 10);
        if (*value < '0' || *value > '9' || *end != '\0' || errno != 0) {
            return rse_fail(err, RSE_ERROR_USAGE, "configuration %s: seed is '%s'; it must be a whole number from 0 to 2^64 - 1",
                            s->name, value);
        }
        return RSE_OK;
    }
    return rse_fail(err, RSE_ERROR_USAGE,
                    "configuration %s has '%s'%s; known keys are checkpoint, rounding, read, window, method, seed, shared, "
                    "control, axis, block, search, rank, diffusion and calibrated, each with a value after a colon",
                    s->name, item, value == NULL ? " without a value" : "");
}

/* Formats that do not go together, in the words of the configuration. */
static rse_status check_state(const subject *s, rse_error *err) {
    const rse_state_options *state = &s->options.state;
    const bool narrow = state->checkpoint_dtype > RSSM_DTYPE_F32, copy = state->read_copy_dtype != RSSM_DTYPE_DEFAULT;
    if ((state->read_copy_shared || s->control) && (narrow || !copy || state->read_copy_shared == s->control)) {
        return rse_fail(err, RSE_ERROR_USAGE,
                        "configuration %s: shared is %d and control %d; either takes an f32 checkpoint and a read copy, and "
                        "excludes the other",
                        s->name, (int)state->read_copy_shared, (int)s->control);
    }
    if (s->control && s->options.method != RSSM_METHOD_REPLAY) {
        return rse_fail(err, RSE_ERROR_USAGE, "configuration %s: a control is for the method replay", s->name);
    }
    if (state->checkpoint_rounding == RSSM_ROUND_STOCHASTIC && !narrow &&
        !(state->read_copy_shared && state->read_copy_dtype == RSSM_DTYPE_NVFP4)) {
        return rse_fail(err, RSE_ERROR_USAGE, "configuration %s: rounding is stochastic, and a checkpoint in f32 is not rounded",
                        s->name);
    }
    if (state->read_custom && state->read_copy_dtype != RSSM_DTYPE_NVFP4) {
        return rse_fail(err, RSE_ERROR_USAGE, "configuration %s: axis, block, search, rank, diffusion and calibrated are for read:nvfp4",
                        s->name);
    }
    if (state->read_block != 0 && state->read_block != 16 &&
        !(state->read_block == 32 && state->read_block_axis == RSSM_BLOCK_KEYS)) {
        return rse_fail(err, RSE_ERROR_USAGE, "configuration %s: block is %d; known are 16, and along dk 32", s->name,
                        (int)state->read_block);
    }
    return RSE_OK;
}

rse_status subject_parse(subject *s, const char *text, rse_error *err) {
    char copy[256], *rest = NULL;
    const char *equals = strchr(text, '=');
    if (equals == NULL || equals == text || (size_t)(equals - text) >= sizeof s->name || strlen(equals) >= sizeof copy) {
        return rse_fail(err, RSE_ERROR_USAGE, "--config is '%.80s'; it must be a name, '=' and keys with values", text);
    }
    snprintf(s->name, sizeof s->name, "%.*s", (int)(equals - text), text);
    snprintf(copy, sizeof copy, "%s", equals + 1);
    for (char *item = strtok_r(copy, ",", &rest); item != NULL; item = strtok_r(NULL, ",", &rest)) {
        RSE_TRY(set_key(s, item, err));
    }
    return check_state(s, err);
}
