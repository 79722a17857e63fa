/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The residual around blocks. Most models add each block's result to one stream. GLM-5.3-Flash carries several
 * streams: a block reads a weighted sum of them, its result goes to each with a weight of its own, and the
 * streams are mixed by a matrix that Sinkhorn iterations have made nearly doubly stochastic. Kimi-K3 keeps what
 * the stream was every few layers in a bank, lets it start anew, and gives each block a mix of bank and stream
 * to read.
 */
#include "model/forward_parts.h"

#include <math.h>
#include <string.h>

typedef struct residual_job {
    rse_forward *f;
    const rse_block *block; /* NULL at the end */
    int64_t tokens;
} residual_job;

static void each_token(rse_forward *f, int64_t tokens, const rse_block *block, rssm_task_fn task) {
    residual_job job = {f, block, tokens};
    rse_pool_run(rse_math_pool(f->desc.math), tokens, task, &job);
}

static float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

/* ---- Streams ------------------------------------------------------------------------------------------ */

static int64_t mix_values(const rse_config *config) {
    return (2 + (int64_t)config->streams) * config->streams;
}

void rse_residual_measure(const rse_config *config, rse_scratch *scratch) {
    if (config->residual == RSE_RESIDUAL_STREAMS) {
        scratch->streams = (int64_t)config->streams * config->hidden;
        scratch->mix = mix_values(config);
    } else if (config->residual == RSE_RESIDUAL_BANK) {
        int64_t entries = (config->layers + config->bank_layers - 1) / config->bank_layers;
        scratch->streams = entries * config->hidden;
        scratch->mix = entries + 1;
        scratch->mixed = config->hidden;
    }
}

static void divide_rows(float *m, int32_t size, int64_t row, int64_t step, float eps) {
    for (int32_t i = 0; i < size; i++) {
        float sum = eps;
        for (int32_t j = 0; j < size; j++) {
            sum += m[i * row + j * step];
        }
        for (int32_t j = 0; j < size; j++) {
            m[i * row + j * step] /= sum;
        }
    }
}

/* softmax over rows, then columns and rows divided by their sums in turn */
static void to_stochastic(float *m, const rse_config *config) {
    int32_t size = config->streams;
    for (int32_t i = 0; i < size; i++) {
        float max = -INFINITY, sum = 0.0f;
        for (int32_t j = 0; j < size; j++) {
            max = m[i * size + j] > max ? m[i * size + j] : max;
        }
        for (int32_t j = 0; j < size; j++) {
            m[i * size + j] = expf(m[i * size + j] - max);
            sum += m[i * size + j];
        }
        for (int32_t j = 0; j < size; j++) {
            m[i * size + j] = m[i * size + j] / sum + config->stream_eps;
        }
    }
    divide_rows(m, size, 1, size, config->stream_eps);
    for (int32_t i = 1; i < config->stream_iterations; i++) {
        divide_rows(m, size, size, 1, config->stream_eps);
        divide_rows(m, size, 1, size, config->stream_eps);
    }
}

/* From the products of fn with the streams as they are: their common norm is applied to the products. */
static void read_streams(void *arg, int64_t token) {
    const residual_job *job = arg;
    rse_forward *f = job->f;
    const rse_config *config = &f->desc.model->config;
    const rse_residual *r = &job->block->residual;
    int64_t hidden = config->hidden;
    int32_t count = config->streams;
    const float *x = f->streams + token * count * hidden;
    float *mix = f->mix + token * mix_values(config);
    float *to = f->x + token * hidden;
    double squares = 0.0;
    for (int64_t i = 0; i < count * hidden; i++) {
        squares += (double)x[i] * (double)x[i];
    }
    float norm = 1.0f / sqrtf((float)(squares / (double)(count * hidden)) + config->norm_eps);
    for (int32_t i = 0; i < mix_values(config); i++) {
        mix[i] = mix[i] * norm * r->scale[i < count ? 0 : i < 2 * count ? 1 : 2] + r->base[i];
    }
    for (int32_t i = 0; i < count; i++) {
        mix[i] = sigmoid(mix[i]) + config->stream_eps;
        mix[count + i] = 2.0f * sigmoid(mix[count + i]);
    }
    to_stochastic(mix + 2 * count, config);
    for (int64_t i = 0; i < hidden; i++) {
        float sum = 0.0f;
        for (int32_t s = 0; s < count; s++) {
            sum += mix[s] * x[s * hidden + i];
        }
        to[i] = sum;
    }
}

static void write_streams(void *arg, int64_t token) {
    const residual_job *job = arg;
    rse_forward *f = job->f;
    const rse_config *config = &f->desc.model->config;
    int64_t hidden = config->hidden;
    int32_t count = config->streams;
    float *x = f->streams + token * count * hidden;
    const float *given = f->mix + token * mix_values(config) + count, *mixed = given + count;
    const float *delta = f->delta + token * hidden;
    for (int64_t i = 0; i < hidden; i++) {
        float old[RSE_STREAMS_MAX];
        for (int32_t s = 0; s < count; s++) {
            old[s] = x[s * hidden + i];
        }
        for (int32_t d = 0; d < count; d++) {
            float sum = given[d] * delta[i];
            for (int32_t s = 0; s < count; s++) {
                sum += mixed[s * count + d] * old[s];
            }
            x[d * hidden + i] = sum;
        }
    }
}

/* ---- Bank --------------------------------------------------------------------------------------------- */

/* mixed = the candidates, which are the bank's entries and then the stream, weighted by a softmax of their
 * scores.
 */
static void mix_bank(const rse_forward *f, int64_t tokens, int64_t token, const float *score, float *mixed) {
    const rse_config *config = &f->desc.model->config;
    int64_t hidden = config->hidden;
    float *weight = f->mix + token * (f->entries + 1);
    float max = -INFINITY, sum = 0.0f;
    for (int32_t c = 0; c <= f->entries; c++) {
        const float *x = (c < f->entries ? f->streams + c * tokens * hidden : f->x) + token * hidden;
        double squares = 0.0, product = 0.0;
        for (int64_t i = 0; i < hidden; i++) {
            squares += (double)x[i] * (double)x[i];
            product += (double)x[i] * (double)score[i];
        }
        weight[c] = (float)(product / sqrt(squares / (double)hidden + (double)config->norm_eps));
        max = weight[c] > max ? weight[c] : max;
    }
    for (int32_t c = 0; c <= f->entries; c++) {
        weight[c] = expf(weight[c] - max);
        sum += weight[c];
    }
    memset(mixed, 0, (size_t)hidden * sizeof *mixed);
    for (int32_t c = 0; c <= f->entries; c++) {
        const float *x = (c < f->entries ? f->streams + c * tokens * hidden : f->x) + token * hidden;
        for (int64_t i = 0; i < hidden; i++) {
            mixed[i] += weight[c] / sum * x[i];
        }
    }
}

static void read_bank(void *arg, int64_t token) {
    const residual_job *job = arg;
    rse_forward *f = job->f;
    const float *score = job->block != NULL ? job->block->residual.score : f->desc.model->output_score;
    mix_bank(f, job->tokens, token, score, f->mixed + token * f->desc.model->config.hidden);
}

/* ---- All of them -------------------------------------------------------------------------------------- */

void rse_residual_start(rse_forward *f, int64_t tokens) {
    const rse_config *config = &f->desc.model->config;
    int64_t hidden = config->hidden;
    f->entries = 0;
    f->anew = false;
    for (int64_t t = 0; config->residual == RSE_RESIDUAL_STREAMS && t < tokens; t++) {
        for (int32_t s = 0; s < config->streams; s++) {
            memcpy(f->streams + (t * config->streams + s) * hidden, f->x + t * hidden,
                   (size_t)hidden * sizeof *f->x);
        }
    }
}

void rse_residual_enter(rse_forward *f, int64_t tokens, const rse_block *block) {
    const rse_config *config = &f->desc.model->config;
    int64_t hidden = config->hidden;
    f->entry = f->x;
    if (config->residual == RSE_RESIDUAL_STREAMS) {
        int64_t wide = config->streams * hidden;
        rse_matmul(f->desc.math, &block->residual.fn.w, NULL, tokens, f->streams, wide, f->mix,
                   mix_values(config));
        each_token(f, tokens, block, read_streams);
        rse_forward_store(f, tokens, hidden, f->x, hidden);
    } else if (config->residual == RSE_RESIDUAL_BANK) {
        bool mixer = block->kind == RSE_BLOCK_MIXER || block->kind == RSE_BLOCK_MLA;
        if (f->entries > 0) {
            each_token(f, tokens, block, read_bank);
            rse_forward_store(f, tokens, hidden, f->mixed, hidden);
            f->entry = f->mixed;
        }
        f->anew = mixer && block->layer % config->bank_layers == 0;
        if (f->anew) {
            memcpy(f->streams + f->entries++ * tokens * hidden, f->x, (size_t)(tokens * hidden) * sizeof *f->x);
        }
    }
}

void rse_residual_leave(rse_forward *f, int64_t tokens, const rse_block *block) {
    const rse_config *config = &f->desc.model->config;
    int64_t hidden = config->hidden;
    if (config->residual == RSE_RESIDUAL_STREAMS) {
        int64_t wide = config->streams * hidden;
        each_token(f, tokens, block, write_streams);
        rse_forward_store(f, tokens, wide, f->streams, wide);
        return;
    }
    if (f->anew) {
        memcpy(f->x, f->delta, (size_t)(tokens * hidden) * sizeof *f->x);
        f->anew = false;
        return;
    }
    rse_add(f->desc.math, tokens, hidden, f->x, hidden, f->delta, hidden, f->x, hidden);
    rse_forward_store(f, tokens, hidden, f->x, hidden);
}

void rse_residual_finish(rse_forward *f, int64_t tokens) {
    const rse_config *config = &f->desc.model->config;
    int64_t hidden = config->hidden;
    if (config->residual == RSE_RESIDUAL_BANK && f->entries > 0) {
        each_token(f, tokens, NULL, read_bank);
        memcpy(f->x, f->mixed, (size_t)(tokens * hidden) * sizeof *f->x);
    }
    for (int64_t t = 0; config->residual == RSE_RESIDUAL_STREAMS && t < tokens; t++) {
        for (int64_t i = 0; i < hidden; i++) {
            float sum = 0.0f;
            for (int32_t s = 0; s < config->streams; s++) {
                sum += f->streams[(t * config->streams + s) * hidden + i];
            }
            f->x[t * hidden + i] = sum / (float)config->streams;
        }
    }
}
