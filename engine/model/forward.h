/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One pass of a model over the tokens of a step: rows of several sequences, pieces of prompts and decoded
 * tokens together. Matrix products run over all tokens of the step; recurrent layers go through the library,
 * attention through the paged cache.
 *
 * Activations are f32 throughout. With bf16 io they are rounded to bf16 wherever a bf16 model stores a tensor:
 * the embedding, every norm, projection, rotation, attention and activation product, and the residual stream
 * after each addition. Logits stay f32.
 */
#ifndef RSE_FORWARD_H
#define RSE_FORWARD_H

#include "engine.h"
#include "math/attention.h"
#include "model/model.h"

/* Turns the status of a library call into an engine's, with the library's sentence. */
rse_status rse_library(const rssm_context *context, rssm_status status, rse_error *err);

/* What the library gets of a mixer's packed rows: [tokens][mixer->width] in the io format. */
rssm_layer_inputs rse_mixer_inputs(const rse_mixer *mixer, const void *packed, int32_t io_dtype);

/* Sees a mixer's packed rows before the library does. */
typedef void (*rse_inputs_fn)(void *user, int32_t mixer, const void *packed);

typedef struct rse_step rse_step;

/* Runs a recurrent layer of a step in the library's stead. */
typedef rssm_status (*rse_recurrence_fn)(void *user, const rse_step *step, int32_t mixer,
                                         const rssm_layer_inputs *inputs, const rssm_output *out);

/* One step. Arrays are the caller's. */
struct rse_step {
    rssm_batch batch; /* rows, slots, offsets, prefill */
    bool decodes;     /* whether any row is no prompt, and any one is */
    bool prompts;
    int64_t tokens;
    const int32_t *ids; /* [tokens] */
    const float
        *x; /* [tokens][hidden size] the residual stream to start with, or NULL: the embeddings of ids */
    const int64_t *positions;         /* [tokens] */
    const rse_attention_row *kv_rows; /* [batch.rows], positions reserved */
    const rse_attention_row
        *attend; /* [attends] what attention runs over: those rows, or pieces of them, and branches */
    int32_t attends;
    const rse_attention_branch *branches; /* [branch_count] filled before attention, layer by layer */
    int32_t branch_count;
    int64_t outputs;
    const int32_t *output_tokens; /* [outputs], ascending */
    float *hidden;                /* [tokens][hidden size] what the final norm makes of every token, or NULL */
    rse_inputs_fn inputs;         /* or NULL */
    void *inputs_user;
};

/* The scratch of a pass and what it works on; all are borrowed. */
typedef struct rse_forward rse_forward;

typedef struct rse_forward_desc {
    const rse_model *model;
    const rse_math *math;
    rssm_context *context;
    rssm_cache *cache;            /* NULL for a model without recurrent layers, and where recurrence is given */
    rse_recurrence_fn recurrence; /* or NULL */
    void *recurrence_user;
    rse_kv_pool *kv;
    int32_t io_dtype;
    int64_t tokens; /* most tokens of a step */
    rse_probe_fn probe;
    void *probe_user;
} rse_forward_desc;

rse_status rse_forward_create(const rse_forward_desc *desc, rse_forward **forward, rse_error *err);
void rse_forward_destroy(rse_forward *forward); /* NULL is fine */
int64_t rse_forward_bytes(const rse_forward *forward);

/* Runs a step that rssm_cache_begin() has opened. logits [outputs][vocab] and hidden [outputs][hidden] may be
 * NULL. */
rse_status rse_forward_run(rse_forward *forward, const rse_step *step, float *logits, float *hidden,
                           rse_error *err);

#endif
