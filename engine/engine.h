/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine: a loaded model, and sequences that run on it. This header is all that tools (a command, a server,
 * a binding) see of it.
 *
 * An *engine* is one model with the memory its sequences share: states, buffers, keys and values. A *session*
 * is one mutable sequence. A *step* is one pass of the model over rows of different sessions: pieces of prompts
 * and tokens to be continued, together. What a step computed for a session stays pending until the session's
 * next step says how many of the tokens to keep, which is all that speculation needs: rows of several tokens,
 * logits for each, a count at the next step.
 *
 *     rse_engine_open("models/tiny-gdn", &options, &engine, &err);
 *     rse_session_open(engine, seed, &session, &err);
 *     rse_row row = {.session = session, .tokens = prompt, .count = n, .prompt = true, .outputs = 1};
 *     rse_engine_step(engine, &row, 1, logits, NULL, &err);
 *     while (...) {
 *         token = choose(logits);
 *         row = (rse_row){.session = session, .tokens = &token, .count = 1, .accepted = RSE_ACCEPT_ALL,
 *                         .outputs = 1};
 *         rse_engine_step(engine, &row, 1, logits, NULL, &err);
 *     }
 *
 * An engine and its sessions are used by one thread at a time; the work of a step is spread over the engine's
 * own threads. All functions follow base/error.h: unless stated, a call that fails changes nothing.
 */
#ifndef RSE_ENGINE_H
#define RSE_ENGINE_H

#include "base/error.h"

#include <replayssm/replayssm.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct rse_engine rse_engine;
typedef struct rse_session rse_session;

/* ---- Engine ---- */

/* Sees the residual stream entering each layer, and after the last one, with layer = the number of layers, what
 * the final norm made of it: x [tokens][hidden], in the order of the step's tokens. For the last one only the
 * tokens whose outputs were asked for. For tests and for people who study models. */
typedef void (*rse_probe_fn)(void *user, int32_t layer, int64_t tokens, int64_t hidden, const float *x);

/* A method of the engine's own, beside RSSM_METHOD_*: conventional states, one kept for each token of a step;
 * the usual way to draft, and the baseline of replay. Chains only, no session files, no check. */
enum { RSE_METHOD_SNAPSHOT = 3 };

/* Formats of the recurrent states; zeros: fp32, no read copy. The fields are those of rssm_cache_desc. */
typedef struct rse_state_options {
    int32_t checkpoint_dtype; /* 0: what the model's configuration says, or fp32 */
    int32_t checkpoint_rounding;
    int32_t read_copy_dtype;
    int32_t read_copy_shared;
    /* nvfp4: the options of rssm_cache_desc as they stand here, not the default scheme of the model's layers. That is, with
       a calibration: columns scaled, a rank-2 part, blocks of 32 along d_k, error diffusion (4.50 bits per element at 128 x
       128, 4.63 at 64 x 128); without: on Mamba-2 a rank-2 part and blocks of 32 along d_k (the same bits), on the delta
       rule a rank-1 part and blocks of 16 along d_v, scales by least squares (4.63 bits) */
    bool read_custom;
    int32_t read_block_axis, read_block, read_scale_search, read_rank, read_diffusion;
    int32_t read_calibrated; /* read it, and use it in spite of read_custom */
    uint64_t seed; /* of stochastic rounding */
    /* The calibration of nvfp4 copies: a file, "" for none, NULL for the one in the model's directory, if there is any. */
    const char *calibration;
} rse_state_options;

/* Zero in a field means its default. */
typedef struct rse_engine_options {
    int32_t threads;  /* 0: the cores this process may use */
    int32_t io_dtype; /* RSSM_DTYPE_F32 (default) or RSSM_DTYPE_BF16: activations, records, keys and values */
    int32_t method;   /* RSSM_METHOD_* or RSE_METHOD_SNAPSHOT; replay by default */
    rse_state_options state; /* other formats than fp32 are for replay, which auto then is, and conventional decoding */
    int32_t window;   /* 1 .. RSSM_WINDOW_MAX; 0: 16 */
    int32_t step_tokens;  /* most tokens of a row that is not a prompt, 1 .. RSSM_STEP_TOKENS_MAX; 0: 1 */
    int32_t reach;        /* committed tokens that rse_session_rollback() may go back in any case */
    int32_t sessions;     /* at once; 0: 1 */
    int32_t batch_tokens; /* most tokens of a step, all rows together; 0: 512 */
    int64_t kv_bytes;  /* budget of keys and values; 0: enough for all sessions at full length and for the prefix cache,
                          but no more than a quarter of the machine's memory */
    int64_t prefix_bytes; /* budget of the prefix cache: states, and pages of keys and values that it holds; 0: none */
    int32_t prefix_block; /* tokens between the states that it keeps of a prompt, a multiple of 16; 0: 256 */
    uint64_t isa_mask; /* as in rssm_context_desc */
    bool check;        /* run a conventional shadow of every state and compare: rse_engine_checked() */
    rssm_log_fn log;   /* what was chosen, in lines; NULL: silent */
    void *log_user;
    rse_probe_fn probe;
    void *probe_user;
} rse_engine_options;

/*
 * Opens a model directory in the Hugging Face layout. options NULL: all defaults. RSE_ERROR_USAGE for an option
 * outside its range, RSE_ERROR_IO, RSE_ERROR_FORMAT or RSE_ERROR_UNSUPPORTED for the directory,
 * RSE_ERROR_MEMORY. *engine is NULL after a failure.
 */
rse_status rse_engine_open(const char *directory, const rse_engine_options *options, rse_engine **engine,
                           rse_error *err);
/* Closes it, and whatever sessions are still open. NULL is fine. */
void rse_engine_close(rse_engine *engine);

/* Facts that do not change while the engine is open. */
typedef struct rse_engine_info {
    const char *model_type; /* lives as long as the engine */
    const char *isa;        /* of the arithmetic outside the recurrence: "scalar", "avx2", "avx512", "neon" */
    int32_t vocab;
    int32_t hidden;
    int32_t layers;
    int32_t layers_recurrent; /* GDN, Mamba-2 or KDA */
    int32_t layers_attention;
    int32_t layers_mlp; /* or mixtures of experts: separate layers, or what layers end with */
    int32_t mtp_blocks; /* loaded, 0 if the checkpoint has none */
    int64_t max_positions;
    float temperature; /* what the model's maker recommends for sampling; negative: nothing */
    float top_p;
    float min_p;
    int32_t top_k;
    int64_t parameters;     /* without MTP */
    int64_t parameters_mtp; /* what the MTP blocks add */
    int32_t threads;
    int32_t io_dtype;
    int32_t method; /* as asked for */
    int32_t window;
    int32_t step_tokens;
    int32_t sessions;
    int32_t batch_tokens;
    uint64_t fingerprint; /* tells models apart: configuration, names, shapes and a sample of the weights */
    /* The memory plan, bytes. */
    int64_t weight_bytes;     /* mapped from the files, and converted copies */
    rse_state_options state;
    int64_t checkpoint_bytes; /* per sequence, over all layers */
    int64_t copy_bytes;       /* per sequence: read copies */
    int64_t buffer_bytes;     /* per sequence: records */
    int64_t conv_bytes;       /* per sequence: convolution rows */
    int64_t cursor_bytes;     /* per sequence */
    int64_t kv_token_bytes;   /* per token */
    int64_t kv_bytes;         /* all pages */
    int64_t scratch_bytes;    /* of a step */
} rse_engine_info;
void rse_engine_describe(const rse_engine *engine, rse_engine_info *info);

/* "gdn", "mamba2", "kda", "attention", "mla", "mlp", "moe", or "gdn+moe" where a layer has both; NULL beyond
 * the last layer. */
const char *rse_engine_layer(const rse_engine *engine, int32_t layer);

bool rse_engine_is_end(const rse_engine *engine, int32_t token); /* an end token of the model */

/* Counters of the recurrent layers since the engine was opened; all zero for a model without them. */
typedef struct rse_engine_counters {
    int64_t bytes_read; /* states and records, by formula; rssm_cache_info says of what */
    int64_t bytes_written;
    int64_t flushes;
    int64_t overflows;  /* numbers that an f16 or bf16 checkpoint could not hold, and that are infinite now */
    int32_t window;     /* effective one of the last step; 1: conventional traffic */
    const char *kernel; /* decode variant in use; static storage */
} rse_engine_counters;
rse_status rse_engine_count(const rse_engine *engine, rse_engine_counters *counters, rse_error *err);

/* With options.check: how many flushes were compared with the shadow's states so far, all bit-identical. A step
 * that finds a difference fails with RSE_ERROR_MISMATCH. */
int64_t rse_engine_checked(const rse_engine *engine);

/* ---- Steps ---- */

enum { RSE_ACCEPT_ALL = -1 };

typedef struct rse_row {
    rse_session *session;
    const int32_t *tokens; /* [count] */
    int32_t count;         /* 0: only keeps or drops what is pending */
    int32_t accepted;      /* how many of the session's pending tokens to keep, 0 .. pending, or RSE_ACCEPT_ALL.
                              Prompts, and all tokens of the conventional method, are kept whole whatever is
                              said here, because they are in the state already */
    bool prompt;     /* a piece of a prompt: any count; otherwise count is at most step_tokens, and 1 for the
                        conventional method */
    int32_t outputs; /* of its last tokens, as many as this */
    const int32_t *parents; /* [count] or NULL for a chain: the token before each on its path, an earlier one of
                               the row; -1: it follows the kept tokens. Not for prompts */
} rse_row;

/*
 * One pass of the model. Outputs are those of the rows in their order: logits [outputs][vocab], hidden
 * [outputs][hidden size] (after the final norm); either may be NULL.
 *
 * RSE_ERROR_USAGE: a session twice, too many tokens, a token outside the vocabulary, ...; RSE_ERROR_MEMORY: no
 * pages left for keys and values; nothing has changed then. RSE_ERROR_LIBRARY, RSE_ERROR_MISMATCH: the pass
 * itself failed; the sessions of the step are broken, and can be closed or reset.
 */
rse_status rse_engine_step(rse_engine *engine, const rse_row *rows, int32_t count, float *logits, float *hidden,
                           rse_error *err);

/* ---- Sessions ---- */

/*
 * An empty sequence in a slot of its own. id spreads the sessions' flushes: equal ids, tokens and steps give
 * equal bits whatever runs beside them. RSE_ERROR_MEMORY, naming their number, when all slots are taken.
 */
rse_status rse_session_open(rse_engine *engine, uint64_t id, rse_session **session, rse_error *err);
void rse_session_close(rse_session *session); /* legal at any time; NULL is fine */
/* Back to the empty sequence; legal at any time. */
rse_status rse_session_reset(rse_session *session, uint64_t id, rse_error *err);

int64_t rse_session_position(const rse_session *session); /* tokens that are kept */
int32_t rse_session_pending(const rse_session *session);  /* tokens of its last step, not kept yet */
/* The ids of the kept tokens, then of the pending ones. Valid until the session's next step or change. */
const int32_t *rse_session_ids(const rse_session *session);

/* Makes session, whatever it was, a copy of another one of the same engine: its kept tokens and their state,
 * under an id of its own. RSE_ERROR_MEMORY if its keys and values find no room; session is empty then. */
rse_status rse_session_copy(rse_session *session, rse_session *from, uint64_t id, rse_error *err);
/*
 * Of the tokens of the last step only these stay pending, in this order: `count` of them along a path, each the
 * parent of the next, the first one following the kept tokens; path NULL: the first ones. The others are
 * dropped. RSE_ERROR_USAGE if it is no such path, or if the pending tokens can only be kept whole.
 */
rse_status rse_session_choose(rse_session *session, const int32_t *path, int32_t count, rse_error *err);
/* Keeps pending tokens without running anything: a step of no tokens. */
rse_status rse_session_commit(rse_session *session, int32_t accepted, rse_error *err);
/* Makes sure that the next tokens find room for keys and values; otherwise RSE_ERROR_MEMORY. */
rse_status rse_session_reserve(rse_session *session, int64_t tokens, rse_error *err);
/* Goes back to an earlier position and drops pending tokens. RSE_ERROR_LIBRARY if the state does not reach so
 * far back: the limit is the checkpoint, or options.reach. */
rse_status rse_session_rollback(rse_session *session, int64_t position, rse_error *err);
/* With options.check: compares the session's newest state too, flushing it. Otherwise does nothing. */
rse_status rse_session_check(rse_session *session, rse_error *err);

/*
 * Parking moves a session out of its slot and its pages into memory of its own, so that others can have them;
 * unparking brings it back, bit for bit, into any slot. Pending tokens are kept. A parked session can be asked for its
 * position and ids, unparked, reset and closed; everything else is refused. RSE_ERROR_MEMORY if no slot or too few
 * pages are free, or no memory, with nothing changed; RSE_ERROR_UNSUPPORTED for the snapshot method.
 */
rse_status rse_session_park(rse_session *session, rse_error *err);
rse_status rse_session_unpark(rse_session *session, rse_error *err);
bool rse_session_parked(const rse_session *session);

/* ---- The prefix cache ---- */

/*
 * Storing puts the session's tokens with their state, keys and values into the engine's prefix cache; pending tokens
 * are kept first. Entries that were used least recently make room; one beyond the whole budget is not stored. Without
 * options.prefix_bytes nothing happens.
 */
rse_status rse_session_store(rse_session *session, rse_error *err);
/* Makes an empty session begin with the longest entry that tokens [count] begin with; rse_session_position() tells how
 * many that are, 0 if there is none. What follows is bit for bit what follows in a session that ran these tokens in the
 * same steps, except with stochastic rounding, whose numbers are the storing session's up to there. */
rse_status rse_session_recall(rse_session *session, const int32_t *tokens, int64_t count, rse_error *err);

typedef struct rse_prefix_figures {
    int64_t entries, bytes; /* now */
    int64_t stored;         /* since the engine was opened */
    int64_t recalled;
    int64_t tokens; /* of those that were recalled */
} rse_prefix_figures;
rse_prefix_figures rse_engine_prefixes(const rse_engine *engine);

/* ---- Session files ---- */

/* What a file keeps beside the state. */
typedef struct rse_session_tail {
    int32_t *ids; /* tokens chosen but not yet run, e.g. the last one generated */
    int64_t count;
    uint64_t seed; /* of the sampler; its position is the number of ids, kept and tail together */
} rse_session_tail;

/* Writes the kept tokens and their state; pending tokens must have been kept or dropped before. The file
 * appears whole or not at all. */
rse_status rse_session_save(const rse_session *session, const rse_session_tail *tail, const char *path,
                            rse_error *err);
/*
 * Restores a session from a file of the same model. Another method, window or io format is converted. tail->ids
 * is to be freed by the caller. RSE_ERROR_FORMAT for a damaged file, RSE_ERROR_MISMATCH for another model's,
 * RSE_ERROR_MEMORY if its keys and values find no room; the session is empty then.
 */
rse_status rse_session_load(rse_session *session, const char *path, rse_session_tail *tail, rse_error *err);

#endif
