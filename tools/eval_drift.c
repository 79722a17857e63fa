/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replayssm eval drift: recurrent layers alone, with inputs under which errors do not die out: what a format of the
 * state loses after thousands of tokens, against the recurrence in double. Plain long runs do not tell formats apart,
 * since with the decay of most heads a layer forgets its errors as it forgets everything else.
 */
#include "eval_kl.h"
#include "sched/calibrate.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 2, LEAST = 64, POINTS = 20, TAIL = 16, REGIMES = 5, CONFIGS = 16 };

static const option_row drift_options[] = {
    {"tokens", 0, OPTION_WHOLE, offsetof(settings, tokens), "N", "8192", LEAST, 1 << 24, NULL, "to feed"},
    {"config", 0, OPTION_TEXTS, offsetof(settings, configs), "NAME=KEY:VALUE,...", NULL, 0, 0, NULL,
     "a configuration as in eval kl, up to 16 times, without control and\n"
     "calibration (default: the checkpoints, copies and bad baselines)"},
    {"csv", 0, OPTION_TEXT, offsetof(settings, csv), "FILE", NULL, 0, 0, NULL,
     "write the figures there too: regime, name, tokens, state_error,\n"
     "output_error"},
    {"help", 'h', OPTION_FLAG, offsetof(settings, help), NULL, NULL, 0, 0, NULL, "this text"},
    {0},
};

static const command_spec spec = {
    .usage = "replayssm eval drift [OPTION]...",
    .about = "Prints, as one JSON object, the relative errors of state and outputs of recurrent layers in slow\n"
             "regimes, after 64, 128, 256, ... tokens: Mamba-2, Gated DeltaNet and KDA with hardly any decay, and\n"
             "Mamba-2 with a strong one.",
    .tables = {drift_options},
};

/* Inputs are normal with a mean; KDA's log decays reach from 0 to g over the channels. */
typedef struct regime {
    const char *name;
    int32_t kind, d_v;
    double g, beta, mean;
} regime;

static const regime regimes[REGIMES] = {{"mamba2, decay 0.1", RSSM_MAMBA2, 64, -0.1, 0.1, 0.0},
                                        {"mamba2, decay 1e-5, mean 1", RSSM_MAMBA2, 64, -1e-5, 1e-5, 1.0},
                                        {"gdn, g -5e-3, beta 0.5", RSSM_GDN, 128, -5e-3, 0.5, 0.0},
                                        {"gdn, no decay, beta 0.002", RSSM_GDN, 128, 0.0, 0.002, 0.0},
                                        {"kda, g 0 to -1e-3, beta 0.01", RSSM_KDA, 128, -1e-3, 0.01, 0.0}};
enum { D_K = 128, D_V_MAX = 128 };

static const char *const defaults[] = {"f32=window:16",
                                       "f16=checkpoint:f16",
                                       "f16+sr=checkpoint:f16,rounding:stochastic",
                                       "bf16=checkpoint:bf16",
                                       "bf16+sr=checkpoint:bf16,rounding:stochastic",
                                       "f8=checkpoint:f8",
                                       "f8+sr=checkpoint:f8,rounding:stochastic",
                                       "read int8=read:int8",
                                       "read nvfp4=read:nvfp4",
                                       "f16+sr read nvfp4=checkpoint:f16,rounding:stochastic,read:nvfp4",
                                       "shared nvfp4=read:nvfp4,block:16,shared:1",
                                       "shared nvfp4+sr=read:nvfp4,block:16,shared:1,rounding:stochastic",
                                       "f16 per token=checkpoint:f16,method:conventional",
                                       "bf16 per token=checkpoint:bf16,method:conventional",
                                       "nvfp4 per token=read:nvfp4,block:16,shared:1,method:conventional"};

/* One token's inputs, of one key head. */
typedef struct token {
    float q[D_K], k[D_K], v[HEADS * D_V_MAX], decay[HEADS * D_K], beta[HEADS];
} token;

typedef struct figure {
    double state, output_error, output_size;
} figure;

/* A layer in one configuration, and its reader: a plain cache that takes over its state. */
typedef struct layer {
    subject how;
    rssm_cache *cache, *reader;
    _Alignas(64) float state[HEADS * D_V_MAX * D_K];
    figure at[POINTS];
} layer;

typedef struct drift {
    rssm_context *context;
    const regime *regime;
    int32_t points;
    layer *layers; /* [CONFIGS] */
    int32_t count;
    double exact[HEADS][D_V_MAX][D_K];
} drift;

/* ---- Inputs and the recurrence in double ----------------------------------------------------------------- */

static double uniform(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return ((double)(*seed >> 11) + 0.5) * 0x1p-53;
}

static double normal(uint64_t *seed) {
    const double radius = sqrt(-2.0 * log(uniform(seed)));
    return radius * cos(6.283185307179586 * uniform(seed));
}

static void draw(const regime *r, uint64_t *seed, token *t) {
    for (int32_t c = 0; c < D_K; c++) {
        t->q[c] = (float)(r->mean + normal(seed));
        t->k[c] = (float)(r->mean + normal(seed));
    }
    for (int32_t i = 0; i < HEADS * r->d_v; i++) {
        t->v[i] = (float)(r->mean + normal(seed));
    }
    for (int32_t h = 0; h < HEADS; h++) {
        t->beta[h] = (float)r->beta;
        const int32_t channels = r->kind == RSSM_KDA ? D_K : 1;
        for (int32_t c = 0; c < channels; c++) {
            t->decay[h * channels + c] = (float)(channels > 1 ? r->g * c / (channels - 1) : r->g);
        }
    }
}

/* S = S diag(alpha) (I - delta beta k k^T) + beta v k^T, y = S q, with normalised k and q where the rule is delta's. */
static void advance(drift *d, const token *t, double *y) {
    const regime *r = d->regime;
    const bool delta = r->kind != RSSM_MAMBA2;
    double k_norm = 1e-6, q_norm = 1e-6;
    for (int32_t c = 0; c < D_K; c++) {
        k_norm += (double)t->k[c] * (double)t->k[c];
        q_norm += (double)t->q[c] * (double)t->q[c];
    }
    const double k_scale = delta ? 1.0 / sqrt(k_norm) : 1.0, q_scale = delta ? 1.0 / sqrt(q_norm * D_K) : 1.0;
    for (int32_t h = 0; h < HEADS; h++) {
        double alpha[D_K];
        for (int32_t c = 0; c < D_K; c++) {
            alpha[c] = exp((double)t->decay[r->kind == RSSM_KDA ? h * D_K + c : h]);
        }
        for (int32_t i = 0; i < r->d_v; i++) {
            double *S = d->exact[h][i], dot = 0.0, out = 0.0;
            for (int32_t c = 0; c < D_K; c++) {
                S[c] *= alpha[c];
                dot += S[c] * (double)t->k[c];
            }
            const double u = (double)t->beta[h] * ((double)t->v[h * r->d_v + i] - (delta ? dot * k_scale : 0.0)) * k_scale;
            for (int32_t c = 0; c < D_K; c++) {
                S[c] += u * (double)t->k[c];
                out += S[c] * (double)t->q[c];
            }
            y[h * r->d_v + i] = out * q_scale;
        }
    }
}

/* ---- The library's layers -------------------------------------------------------------------------------- */

static rse_status lib(const drift *d, rssm_status status, rse_error *err) {
    return status == RSSM_OK ? RSE_OK : rse_fail(err, RSE_ERROR_LIBRARY, "%s", rssm_context_message(d->context));
}

static rse_status open_cache(const drift *d, const rse_engine_options *how, int32_t window, rssm_cache **cache,
                             rse_error *err) {
    const rssm_layer_spec layer_spec = {.struct_size = sizeof layer_spec,
                                        .kind = d->regime->kind,
                                        .key_heads = 1,
                                        .value_heads = HEADS,
                                        .d_k = D_K,
                                        .d_v = d->regime->d_v,
                                        .gate = RSSM_GATE_LOG};
    rssm_cache_desc desc = {.struct_size = sizeof desc,
                            .spec = &layer_spec,
                            .layers = 1,
                            .slots = 1,
                            .window = window,
                            .method = how->method};
    rse_calibration_scheme(false, &how->state, &desc);
    RSE_TRY(lib(d, rssm_cache_create(d->context, &desc, cache), err));
    return lib(d, rssm_cache_allocate(*cache), err);
}

static rse_status open_layer(const drift *d, layer *l, const char *config, rse_error *err) {
    const rse_engine_options plain = {.state = {.checkpoint_dtype = RSSM_DTYPE_F32}};
    const int32_t slot = 0;
    RSE_TRY(subject_parse(&l->how, config, err));
    if (l->how.control || l->how.options.state.read_calibrated) {
        return rse_fail(err, RSE_ERROR_USAGE, "configuration %s: a lone layer has no control and no calibration", l->how.name);
    }
    RSE_TRY(open_cache(d, &l->how.options, l->how.options.window, &l->cache, err));
    RSE_TRY(open_cache(d, &plain, 1, &l->reader, err));
    RSE_TRY(lib(d, rssm_cache_bind(l->reader, 0, RSSM_PART_CHECKPOINT, l->state, sizeof l->state), err));
    return lib(d, rssm_cache_reset(l->cache, 1, &slot, NULL, NULL, NULL), err);
}

static void close_layer(layer *l) {
    rssm_cache_destroy(l->cache);
    rssm_cache_destroy(l->reader);
    *l = (layer){0};
}

static rse_status feed(const drift *d, layer *l, const token *t, float *y, rse_error *err) {
    const int32_t slot = 0, kept = 1;
    const rssm_batch batch = {.struct_size = sizeof batch, .rows = 1, .slots = &slot};
    const rssm_layer_inputs inputs = {.struct_size = sizeof inputs,
                                      .q = {.data = t->q},
                                      .k = {.data = t->k},
                                      .v = {.data = t->v},
                                      .decay = {.data = t->decay},
                                      .beta = {.data = t->beta}};
    const rssm_output out = {.struct_size = sizeof out, .data = y};
    RSE_TRY(lib(d, rssm_cache_begin(l->cache, &batch, &kept, NULL, NULL), err));
    return lib(d, rssm_cache_decode(l->cache, 0, &batch, &inputs, &out, NULL), err);
}

/* The state with all its records, as fp32. */
static rse_status read_state(const drift *d, layer *l, rse_error *err) {
    const int32_t slot = 0, kept = 1, none[2] = {0, 0};
    const rssm_batch batch = {.struct_size = sizeof batch, .rows = 1, .slots = &slot, .offsets = none};
    RSE_TRY(lib(d, rssm_cache_begin(l->cache, &batch, &kept, NULL, NULL), err));
    const int64_t bytes = rssm_cache_export_bytes(l->cache, 0, 0);
    void *file = malloc((size_t)(bytes > 0 ? bytes : 1));
    int64_t written;
    if (file == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for a state of %lld bytes", (long long)bytes);
    }
    rssm_status status = rssm_cache_export(l->cache, 0, 0, file, bytes, &written);
    status = status == RSSM_OK ? rssm_cache_import(l->reader, 0, file, bytes) : status;
    free(file);
    return lib(d, status, err);
}

/* ---- Measuring ------------------------------------------------------------------------------------------- */

static double state_error(const drift *d, const layer *l) {
    double error = 0.0, size = 0.0;
    for (int64_t i = 0; i < (int64_t)HEADS * d->regime->d_v * D_K; i++) {
        const double x = d->exact[i / D_K / d->regime->d_v][i / D_K % d->regime->d_v][i % D_K], e = (double)l->state[i] - x;
        error += e * e;
        size += x * x;
    }
    return sqrt(error / size);
}

static rse_status run_regime(drift *d, int64_t tokens, rse_error *err) {
    static token t;
    static double y[HEADS * D_V_MAX];
    static float got[HEADS * D_V_MAX];
    uint64_t seed = 1;
    int32_t point = 0;
    memset(d->exact, 0, sizeof d->exact);
    for (int64_t n = 1; n <= tokens; n++) {
        const int64_t next = (int64_t)LEAST << point;
        draw(d->regime, &seed, &t);
        advance(d, &t, y);
        for (int32_t i = 0; i < d->count; i++) {
            figure *f = &d->layers[i].at[point];
            RSE_TRY(feed(d, &d->layers[i], &t, got, err));
            for (int32_t c = 0; c < HEADS * d->regime->d_v && n > next - TAIL; c++) {
                const double e = (double)got[c] - y[c];
                f->output_error += e * e;
                f->output_size += y[c] * y[c];
            }
            RSE_TRY(n == next ? read_state(d, &d->layers[i], err) : RSE_OK);
            f->state = n == next ? state_error(d, &d->layers[i]) : 0.0;
        }
        point += n == next;
    }
    d->points = point;
    return RSE_OK;
}

static json_t *number(double x) {
    return isfinite(x) ? json_real(x) : json_null();
}

static void report(const drift *d, json_t *list, FILE *csv) {
    for (int32_t i = 0; i < d->count; i++) {
        json_t *object = json_object(), *points = json_array();
        json_object_set_new(object, "regime", json_string(d->regime->name));
        json_object_set_new(object, "name", json_string(d->layers[i].how.name));
        for (int32_t p = 0; p < d->points; p++) {
            const figure *f = &d->layers[i].at[p];
            const double output = sqrt(f->output_error / f->output_size);
            json_t *point = json_object();
            json_object_set_new(point, "tokens", json_integer((json_int_t)LEAST << p));
            json_object_set_new(point, "state_error", number(f->state));
            json_object_set_new(point, "output_error", number(output));
            json_array_append_new(points, point);
            if (csv != NULL) {
                csv_put(csv, d->regime->name);
                putc(',', csv);
                csv_put(csv, d->layers[i].how.name);
                fprintf(csv, ",%lld,%.6g,%.6g\n", (long long)LEAST << p, f->state, output);
            }
        }
        json_object_set_new(object, "points", points);
        json_array_append_new(list, object);
    }
}

static rse_status measure(drift *d, const settings *set, json_t *list, FILE *csv, rse_error *err) {
    const int32_t given = set->configs.count, known = (int32_t)(sizeof defaults / sizeof defaults[0]);
    progress bar = {0};
    d->count = given > 0 ? given : known;
    for (int32_t r = 0; r < REGIMES; r++) {
        d->regime = &regimes[r];
        for (int32_t i = 0; i < d->count; i++) {
            RSE_TRY(open_layer(d, &d->layers[i], given > 0 ? set->configs.at[i] : defaults[i], err));
        }
        RSE_TRY(run_regime(d, set->tokens, err));
        report(d, list, csv);
        for (int32_t i = 0; i < d->count; i++) {
            close_layer(&d->layers[i]);
        }
        progress_show(&bar, "drifting", r + 1, REGIMES);
    }
    progress_clear(&bar);
    return RSE_OK;
}

static rse_status run_all(const settings *set, json_t *list, rse_error *err) {
    static layer layers[CONFIGS];
    FILE *csv = set->csv != NULL ? fopen(set->csv, "w") : NULL;
    drift *d = calloc(1, sizeof *d);
    rse_status status = RSE_OK;
    if (set->csv != NULL && csv == NULL) {
        status = rse_fail(err, RSE_ERROR_IO, "%s: cannot be written", set->csv);
    } else if (d == NULL ||
               rssm_context_create(&(rssm_context_desc){.struct_size = sizeof(rssm_context_desc), .threads = 1}, &d->context) !=
                   RSSM_OK) {
        status = rse_fail(err, RSE_ERROR_MEMORY, "no memory for the layers");
    }
    if (status == RSE_OK) {
        if (csv != NULL) {
            fputs("regime,name,tokens,state_error,output_error\n", csv);
        }
        d->layers = layers;
        status = measure(d, set, list, csv, err);
    }
    for (int32_t i = 0; i < CONFIGS; i++) {
        close_layer(&layers[i]);
    }
    if (d != NULL) {
        rssm_context_destroy(d->context);
        free(d);
    }
    bool failed = csv != NULL && ferror(csv) != 0;
    failed = (csv != NULL && fclose(csv) != 0) || failed;
    if (failed && status == RSE_OK) {
        status = rse_fail(err, RSE_ERROR_IO, "%s: cannot be written", set->csv);
    }
    return status;
}

int eval_drift(int argc, char **argv) {
    settings set;
    int done = options_parse(&spec, argc, argv, &set);
    if (done != 0) {
        return done - 1;
    }
    rse_error err = {0};
    json_t *all = json_object(), *list = json_array();
    json_object_set_new(all, "runs", list);
    rse_status status = set.model != NULL ? rse_fail(&err, RSE_ERROR_USAGE, "'%s' is a model, and drift needs none", set.model)
                                          : run_all(&set, list, &err);
    if (status == RSE_OK) {
        json_dumpf(all, stdout, JSON_REAL_PRECISION(6) | JSON_INDENT(1));
        putchar('\n');
    }
    json_decref(all);
    return status == RSE_OK ? EXIT_SUCCESS : report_error(&err);
}
