/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of the engine share: the bundled models and their goldens, engines opened with few words, and
 * rows run with one call. A failure of a helper fails the test with the engine's sentence.
 */
#ifndef RSE_MODEL_FIXTURE_H
#define RSE_MODEL_FIXTURE_H

#include "engine.h"
#include "load/safetensors.h"
#include "math/math.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MODEL_DIR(name) RSSM_SOURCE_DIR "/models/" name
enum { MODELS = 3 };
static const char *const model_names[MODELS] = {"tiny-gdn", "tiny-mamba2", "tiny-kda"};

static inline void ok(rse_status status, const rse_error *err) {
    if (status != RSE_OK) {
        fail_msg("%s", err->text);
    }
}
#define OK(call)                                                                                               \
    do {                                                                                                       \
        rse_error err = {0};                                                                                   \
        ok(call, &err);                                                                                        \
    } while (0)

/* The call must fail with this status and a sentence that holds every word given. */
#define REFUSED(wanted, word, call)                                                                            \
    do {                                                                                                       \
        rse_error err = {0};                                                                                   \
        rse_status status_ = (call);                                                                           \
        if (status_ != (wanted) || strstr(err.text, (word)) == NULL) {                                         \
            fail_msg("status %d, '%s'; expected %d, '%s'", status_, err.text, (wanted), (word));               \
        }                                                                                                      \
    } while (0)

/* ---- Goldens ---- */

typedef struct golden {
    rse_safetensors *files;
    const int32_t *tokens; /* [4096] */
    const float *nll;      /* [4095] */
    const int32_t *greedy; /* [256]: 64 of the prompt, 192 that follow */
    const float *logits;   /* [rows][vocab] */
    const int32_t *at;     /* [rows] their positions */
    int32_t rows;
} golden;

static inline const void *golden_data(const golden *g, const char *name) {
    const rse_tensor *tensor = rse_safetensors_find(g->files, name);
    return tensor != NULL ? tensor->data : NULL;
}

static inline golden golden_open(const char *model) {
    golden g = {0};
    char path[512];
    snprintf(path, sizeof path, RSSM_SOURCE_DIR "/tests/golden/%s.safetensors", model);
    OK(rse_safetensors_open(path, &g.files, &err));
    g.tokens = golden_data(&g, "tokens");
    g.nll = golden_data(&g, "nll_4095");
    g.greedy = golden_data(&g, "greedy_from_64");
    g.logits = golden_data(&g, "logits");
    g.at = golden_data(&g, "logits_at");
    g.rows = (int32_t)rse_safetensors_find(g.files, "logits_at")->shape[0];
    return g;
}

/* ---- Engines ---- */

static inline rse_engine *engine_open(const char *model, rse_engine_options options) {
    char path[512];
    snprintf(path, sizeof path, MODEL_DIR("%s"), model);
    rse_engine *engine = NULL;
    options.threads = options.threads != 0 ? options.threads : 1;
    OK(rse_engine_open(path, &options, &engine, &err));
    return engine;
}

static inline rse_session *session_open(rse_engine *engine, uint64_t id) {
    rse_session *session = NULL;
    OK(rse_session_open(engine, id, &session, &err));
    return session;
}

/* The nodes of a tree from its root to `node`; how many. */
static inline int32_t path_to(const int32_t *parents, int32_t node, int32_t *path) {
    int32_t n = 0;
    for (int32_t at = node; at >= 0; at = parents[at]) {
        n++;
    }
    for (int32_t at = node, i = n; at >= 0; at = parents[at]) {
        path[--i] = at;
    }
    return n;
}

static inline int32_t vocab_of(const rse_engine *engine) {
    rse_engine_info info;
    rse_engine_describe(engine, &info);
    return info.vocab;
}

/* One row in a step of its own; logits of its last `outputs` tokens. */
static inline void run_row(rse_session *session, rse_engine *engine, const int32_t *tokens, int32_t count,
                           bool prompt, int32_t accepted, int32_t outputs, float *logits) {
    rse_row row = {session, tokens, count, accepted, prompt, outputs, NULL};
    OK(rse_engine_step(engine, &row, 1, logits, NULL, &err));
}

static inline void prompt_row(rse_session *session, rse_engine *engine, const int32_t *tokens, int32_t count,
                              float *logits) {
    run_row(session, engine, tokens, count, true, RSE_ACCEPT_ALL, logits != NULL, logits);
}

static inline void decode_row(rse_session *session, rse_engine *engine, int32_t token, float *logits) {
    run_row(session, engine, &token, 1, false, RSE_ACCEPT_ALL, logits != NULL, logits);
}

static inline int32_t argmax(const float *x, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++) {
        best = x[i] > x[best] ? i : best;
    }
    return best;
}

static inline double largest_difference(const float *a, const float *b, int64_t n) {
    double most = 0.0;
    for (int64_t i = 0; i < n; i++) {
        double difference = fabs((double)a[i] - (double)b[i]);
        most = difference > most || isnan(difference) ? difference : most;
    }
    return most;
}

/* cmocka's own comparison knows no tolerance, and says nothing of NaN. */
static inline void assert_within(double value, double limit, const char *what) {
    if (!(value <= limit)) {
        fail_msg("%s: %g, but %g is the most", what, value, limit);
    }
}

/* ---- Model directories made for a test ---- */

/* A copy of a bundled model's directory under /tmp, made of links except for config.json, in which `from` is
 * replaced by `to`. The caller removes it with variant_remove(). */
static inline void variant_make(const char *model, const char *from, const char *to, char path[64]) {
    char command[2048];
    strcpy(path, "/tmp/replayssm-variant-XXXXXX");
    assert_non_null(mkdtemp(path));
    snprintf(command, sizeof command,
             "ln -s " MODEL_DIR("%s") "/* %s/ && rm %s/config.json && sed 's/%s/%s/' " MODEL_DIR(
                 "%s") "/config.json > %s/config.json",
             model, path, path, from, to, model, path);
    assert_int_equal(system(command), 0);
}

static inline void variant_remove(const char *path) {
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", path);
    assert_int_equal(system(command), 0);
}

#endif
