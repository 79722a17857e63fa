/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model as the engine runs it: the embedding, a list of residual blocks, the final norm, the output matrix.
 *
 *     x = embedding[token];  for each block: x = x + block(norm(x));  logits = output norm(x)
 *
 * A block is a recurrent mixer, attention, an MLP, or a mixture of experts. A family is one function that fills
 * this struct from the tensors of a checkpoint: it decides which blocks there are and which tensors they are
 * made of, and nothing else of the engine knows about families.
 *
 * Matrices are views into the mapped files; vectors (norms, convolutions, decays) are converted to f32. Both
 * live as long as the model, which is immutable once loaded.
 */
#ifndef RSE_MODEL_H
#define RSE_MODEL_H

#include "load/hfconfig.h"
#include "load/weights.h"
#include "math/math.h"

#include <replayssm/replayssm.h>

typedef struct rse_linear {
    rse_matrix w;
    const float *bias; /* [w.rows] or NULL */
} rse_linear;

enum { RSE_BLOCK_MIXER, RSE_BLOCK_ATTENTION, RSE_BLOCK_MLP, RSE_BLOCK_MLA, RSE_BLOCK_MOE };
enum { RSE_MIXER_INPUTS = 6 };

/* Columns from .. from + count - 1 of a projection's result go to column `to` of the packed row. */
typedef struct rse_segment {
    int32_t from, to, count;
} rse_segment;

/* w x, or w (low x). The result stands at column `to` of the packed row, or is spread over it by segments. */
typedef struct rse_projection {
    rse_linear low; /* w.data is NULL: none */
    rse_linear w;
    int64_t to;
    const rse_segment *segment; /* [segments] or NULL */
    int32_t segments;
} rse_projection;

/* All recurrent kinds alike: projections whose results stand side by side in one packed row of `width` values,
 * from which the library takes its inputs, and the output projection. */
typedef struct rse_mixer {
    int32_t index; /* among the recurrent layers */
    int32_t inputs;
    rse_projection in[RSE_MIXER_INPUTS];
    int64_t width;
    int64_t q, k, v, z, decay, beta; /* first column of each; beta is -1 for Mamba-2 */
    rssm_layer_weights constants;
    rse_linear out;
} rse_mixer;

typedef struct rse_attn {
    int32_t index;                /* among the attention layers */
    rse_linear q, k, v, out;      /* q holds [query | gate] per head where the model has an output gate */
    const float *q_norm, *k_norm; /* [head_dim], or NULL */
} rse_attn;

/*
 * Attention over latent rows, in the absorbed form: what is kept of a token is one row [latent | shared], key
 * and value of all heads at once (the values' own part is the latent). A head's query goes through the
 * transposed key half of kv_b before, its result through the value half after, so that no key of a head ever
 * exists: (W_k^T q) c = q (W_k c).
 */
typedef struct rse_mla {
    int32_t index;         /* among the attention layers */
    rse_linear q_low;      /* w.data is NULL: queries are projected directly */
    const float *q_norm;   /* [q_latent], with q_low */
    rse_linear q;          /* per head [nope | shared] */
    rse_linear kv;         /* [latent | shared] */
    const float *kv_norm;  /* [latent] */
    rse_matrix key_t;      /* [heads * latent][nope]: per head the transposed key half of kv_b */
    const rse_matrix *val; /* [heads] matrices [v_dim][latent] */
    rse_linear gate;       /* [heads * v_dim][hidden]; w.data is NULL: none */
    rse_linear out;
} rse_mla;

typedef struct rse_mlp {
    rse_linear gate; /* w.data is NULL for the form without a gate, down(relu(up x)^2) */
    rse_linear up, down;
} rse_mlp;

typedef struct rse_moe {
    rse_linear router;       /* [experts][hidden], without rounding to the io format */
    const float *correction; /* [experts] or NULL */
    rse_mlp *expert;         /* [experts] */
    rse_linear latent_in;    /* w.data is NULL: experts work on the hidden size */
    rse_linear latent_out;
    const float *latent_norm; /* [latent] on the experts' sum, or NULL */
    rse_mlp shared;           /* up.w.data is NULL: none */
    rse_linear shared_gate;   /* [1][hidden]; w.data is NULL: none */
} rse_moe;

/* How a block reads from the residual and adds to it, where it does not simply add. Streams: `fn` [(2 + S) S][S
 * hidden] of all S streams, with `base` [(2 + S) S] and `scale` [3], gives the weights of the streams in what
 * the block reads, of its result in each of them, and of the streams in each other. Bank: `score` [hidden]
 * weighs candidates. */
typedef struct rse_residual {
    rse_linear fn;
    const float *base;
    const float *scale;
    const float *score;
} rse_residual;

typedef struct rse_block {
    int32_t kind;      /* RSE_BLOCK_* */
    int32_t layer;     /* layer of the configuration that it belongs to */
    const float *norm; /* [hidden] */
    rse_residual residual;
    union {
        rse_mixer mixer;
        rse_attn attn;
        rse_mla mla;
        rse_mlp mlp;
        rse_moe moe;
    };
} rse_block;

/* The multi-token prediction block: x = fc [norm_e(embedding of the next token) ; norm_h(hidden)], two
 * blocks, the norm, and the model's own output matrix. */
typedef struct rse_mtp {
    const float *norm_embedding; /* [hidden] */
    const float *norm_hidden;    /* [hidden] */
    rse_linear fc;               /* [hidden][2 hidden] */
    rse_block block[2];          /* attention (index 0 of a pool of its own), MLP or experts */
    const float *norm;           /* [hidden] */
} rse_mtp;

typedef struct rse_model {
    rse_config config;
    rssm_layer_spec spec; /* of the recurrent layers; kind is 0 if there are none */
    int32_t recurrent;    /* layers of each kind */
    int32_t attention;
    int32_t blocks;
    rse_block *block; /* [blocks] */
    rse_matrix embedding;
    const float *norm;
    const float *output_score; /* [hidden], of a bank: weighs candidates for the output; or NULL */
    rse_linear output;
    rse_mtp *mtp; /* NULL if the checkpoint has none */
    int64_t parameters;
    int64_t parameters_mtp;
    int64_t weight_bytes;
    uint64_t fingerprint;
    rse_weights *weights;
    void **owned; /* converted vectors */
    int64_t owned_count;
} rse_model;

/* Reads config.json and the tensors of a directory. Every tensor the family asks for must be there in its
 * shape, and no other. *model is NULL after a failure. */
rse_status rse_model_open(const char *directory, rse_model **model, rse_error *err);
void rse_model_close(rse_model *model); /* NULL is fine */

#endif
