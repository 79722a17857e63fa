/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file cache.h
 * The layer spec, the cache, and the operations on it. replayssm.h is the place to start reading.
 *
 * The recurrence, per value head, state S [d_v][d_k] with d_k contiguous:
 *
 *     S_t = S_{t-1} diag(alpha_t) (I - delta beta_t k_t k_t^T) + beta_t v_t k_t^T        y_t = S_t q_t (+ D v_t)
 *
 *     Mamba-2             k = B, v = x, q = C         alpha = exp(dt A)      beta = dt          delta = 0
 *     Gated DeltaNet      k, q L2-normalised          alpha = exp(g)         beta = sigmoid(b)  delta = 1
 *     Kimi Delta Attn.    as Gated DeltaNet           alpha a vector [d_k]   beta = sigmoid(b)  delta = 1
 *
 * (Dao and Gu 2024, arXiv 2405.21060; Yang et al. 2024, arXiv 2412.06464; Kimi Team 2025, arXiv 2510.26692.)
 */
#ifndef REPLAYSSM_CACHE_H
#define REPLAYSSM_CACHE_H

#include "replayssm/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Limits of this version. */
#define RSSM_WINDOW_MAX 64     /**< largest window L */
#define RSSM_STEP_TOKENS_MAX 16 /**< largest T_max */
#define RSSM_HEAD_DIM_MAX 256  /**< largest d_k and d_v */
#define RSSM_CONV_WIDTH_MAX 5
#define RSSM_REACH_MAX 128

/* ---- Layer spec --------------------------------------------------------------------------------------- */

enum { RSSM_MAMBA2 = 1, RSSM_GDN = 2, RSSM_KDA = 3 };

/** Which key head value head h uses: h / (value_heads / key_heads), or h mod key_heads (GGUF's Qwen3.5). */
enum { RSSM_HEAD_MAP_BLOCKS = 0, RSSM_HEAD_MAP_MODULO = 1 };

/** What the decay and beta inputs of a layer hold. */
enum {
    /** Raw projections. Mamba-2: decay = dt, dt' = clamp(softplus(dt + dt_bias), dt_min, dt_max), alpha =
        exp(dt' A), beta = dt'. GDN: decay = a, alpha = exp(A softplus(a + dt_bias)). KDA: the same per key channel
        with dt_bias [value_heads][d_k], or, with gate_lower_bound b < 0, alpha = exp(b sigmoid(-A (f + dt_bias))).
        GDN and KDA: beta = beta_scale sigmoid(b), in fp32. A = -exp(A_log). */
    RSSM_GATE_RAW = 0,
    /** Ready: decay = log alpha, beta = beta. */
    RSSM_GATE_LOG = 1,
    /** Mamba-2: decay = dt' with bias and softplus done; alpha = exp(dt' A), beta = dt'. */
    RSSM_GATE_DT = 2
};

/** Normalisation of k and q. L2: x / sqrt(sum x^2 + eps), eps inside the root. */
enum { RSSM_QK_NORM_DEFAULT = 0, RSSM_QK_NORM_NONE = 1, RSSM_QK_NORM_L2 = 2 };

/** What happens to y before it is stored; z is the output gate input. */
enum {
    RSSM_OUT_NORM_NONE = 0,
    RSSM_OUT_NORM_GROUP = 1,        /**< u = y silu(z); RMS norm over groups of heads; times weight [heads d_v] */
    RSSM_OUT_NORM_HEAD_SILU = 2,    /**< RMS norm per head, times weight [d_v], times silu(z) */
    RSSM_OUT_NORM_HEAD_SIGMOID = 3, /**< RMS norm per head, times weight [d_v], times sigmoid(z) */
    RSSM_OUT_NORM_GATE_SILU = 4     /**< no norm: y silu(z) */
};

/** One kind of recurrent layer. All layers of a cache share one spec. */
typedef struct rssm_layer_spec {
    uint64_t struct_size;
    int32_t kind;        /**< RSSM_MAMBA2, RSSM_GDN or RSSM_KDA */
    int32_t key_heads;   /**< heads of k and q on this rank (Mamba-2: groups of B and C) */
    int32_t value_heads; /**< heads of v on this rank; a multiple of key_heads */
    int32_t d_k;         /**< 1..RSSM_HEAD_DIM_MAX */
    int32_t d_v;         /**< 1..RSSM_HEAD_DIM_MAX */
    int32_t head_map;    /**< RSSM_HEAD_MAP_* */
    /* Tensor parallel facts; 0 means that this rank has all heads. Saved bytes use global heads. */
    int32_t total_key_heads;
    int32_t total_value_heads;
    int32_t first_key_head;
    int32_t first_value_head;
    int32_t conv_width;        /**< 0: the caller does the convolution; else 2..RSSM_CONV_WIDTH_MAX */
    int32_t conv_linear;       /**< nonzero: no silu after the convolution */
    int32_t gate;              /**< RSSM_GATE_* */
    float gate_lower_bound;    /**< KDA's bounded gate, e.g. -5; 0: the softplus gate */
    float dt_min;              /**< Mamba-2 clamp of dt after softplus (time_step_limit); 0: none */
    float dt_max;              /**< 0: none */
    float beta_scale;          /**< 0: 1; 2 allows negative eigenvalues */
    int32_t qk_norm;           /**< RSSM_QK_NORM_*; default: none for Mamba-2, L2 for the others */
    float qk_norm_eps;         /**< 0: 1e-6 */
    float q_scale;             /**< factor on q after the norm; 0: 1 for Mamba-2, 1/sqrt(d_k) for the others */
    int32_t out_norm;          /**< RSSM_OUT_NORM_* */
    int32_t out_norm_groups;   /**< RSSM_OUT_NORM_GROUP: groups on this rank; 0: key_heads */
    float out_norm_eps;        /**< 0: 1e-6 */
} rssm_layer_spec;

/* ---- Cache -------------------------------------------------------------------------------------------- */

enum {
    RSSM_METHOD_REPLAY = 0,       /**< checkpoint and buffer; the checkpoint is written once per window */
    RSSM_METHOD_CONVENTIONAL = 1, /**< reads and writes the state at every token; the baseline. T_max is 1 */
    RSSM_METHOD_AUTO = 2          /**< replay, with an effective window of 1 or L per step from a measured table */
};

/** Nearest, or unbiased stochastic rounding of the checkpoint (formats narrower than f32). */
enum { RSSM_ROUND_NEAREST = 0, RSSM_ROUND_STOCHASTIC = 1 };

/** What a KDA record keeps of its decay: alpha in fp32, or the raw gate input in the io format (half the size,
    exact, one exponential per channel and read; needs RSSM_GATE_RAW with gates in the io format). */
enum { RSSM_RECORD_DECAY = 0, RSSM_RECORD_RAW_GATE = 1 };

typedef struct rssm_cache_desc {
    uint64_t struct_size;
    const rssm_layer_spec *spec; /**< copied */
    int32_t layers;              /**< layers of this spec, >= 1 */
    int32_t first_layer;         /**< index of the first one in the model, for messages and random numbers */
    int64_t slots;               /**< sequences the cache has room for, reserved ones included */
    int32_t reserved_slots;      /**< the lowest slots, never touched; rows that name them are padding */
    int32_t window;              /**< L, 1..RSSM_WINDOW_MAX; 0: 16 */
    int32_t step_tokens;         /**< T_max, 1..RSSM_STEP_TOKENS_MAX; 0: 1 */
    int32_t reach;               /**< committed tokens that rollback may go back over convolution rows, beyond
                                      those it can anyway; 0..RSSM_REACH_MAX */
    int32_t method;              /**< RSSM_METHOD_* */
    int32_t io_dtype;            /**< format of q, k, v and of the records: f32 (default) or bf16 */
    int32_t checkpoint_dtype;    /**< f32 (default), f16, bf16 or f8: rounded once per flush, from fp32. A narrow format
                                      loses slow decay: a change below half a unit in the last place, rounded to nearest,
                                      leaves no trace; docs/quality.md has figures. For bf16 and f8 nearest is legal and
                                      not advised */
    int32_t checkpoint_rounding; /**< RSSM_ROUND_*; f32 takes no rounding */
    int32_t read_copy_dtype;     /**< what outputs are read from: none (default: the checkpoint itself), f16, bf16, f8, int8
                                      or nvfp4. Made from the stored checkpoint by whoever writes that, never saved; it
                                      changes no bit of the recurrence */
    int32_t record_gate;         /**< RSSM_RECORD_* */
    uint64_t seed;               /**< of stochastic rounding */
    /* How an nvfp4 read copy is made. Zeros: the plain format, 4.5 bits per element */
    int32_t read_block_axis;   /**< RSSM_BLOCK_* */
    int32_t read_block;        /**< elements of a block along d_k: 16 (default) or 32; along d_v 16 */
    int32_t read_scale_search; /**< 1: block scales by least squares, weighted with a calibration; 0: from the largest */
    int32_t read_rank;         /**< 0..RSSM_READ_RANK_MAX: rank of the part that is kept apart in E4M3 factors,
                                    8 / d_k + 8 / d_v bits per element each */
    int32_t read_diffusion;    /**< 1: errors of a row's columns make up for each other; needs a calibration with directions
                                    (without one nothing changes) */
    int32_t read_copy_shared;  /**< 1: the recurrence too continues from the read copy, as if that were all there is: the
                                    f32 checkpoint takes the copy's values at each flush, and checkpoint_rounding is how
                                    nvfp4 codes are rounded. The bad baseline of docs/quality.md, for studies alone */
} rssm_cache_desc;

/** An nvfp4 block is a stretch of a row (along d_k) or of a column (along d_v). */
enum { RSSM_BLOCK_KEYS = 0, RSSM_BLOCK_VALUES = 1 };
#define RSSM_READ_RANK_MAX 4

typedef struct rssm_cache rssm_cache;

/**
 * Describes a cache; no memory of any size is taken until rssm_cache_allocate() or rssm_cache_bind().
 * The context must outlive the cache.
 */
RSSM_API RSSM_CHECKED rssm_status rssm_cache_create(rssm_context *context, const rssm_cache_desc *desc,
                                                    rssm_cache **cache);
/** Frees the cache and what it allocated; bound memory stays the caller's. NULL is fine. */
RSSM_API void rssm_cache_destroy(rssm_cache *cache);

/** Parts of the memory of a cache. Every part but the cursor exists once per layer. */
enum {
    RSSM_PART_CURSOR = 0,       /**< one per slot, shared by the layers: position, row maps */
    RSSM_PART_LAYER_CURSOR = 1, /**< checkpoint's position and last step of this layer */
    RSSM_PART_CHECKPOINT = 2,   /**< [value_heads][d_v][d_k], checkpoint format; all bytes zero: the zero state */
    RSSM_PART_RECORD_K = 3,     /**< [key_heads][rows][d_k], io format */
    RSSM_PART_RECORD_V = 4,     /**< [value_heads][rows][d_v], io format */
    RSSM_PART_RECORD_SCALAR = 5, /**< fp32 [channels][rows]: decay per value head (scalar decay), beta per value head,
                                      inverse norm per key head (L2 norm) */
    RSSM_PART_RECORD_DECAY = 6, /**< KDA: [value_heads][rows][d_k], fp32 alpha or the raw gate in io format */
    RSSM_PART_CONV = 7,         /**< [rows][q channels | k channels | v channels], before the convolution, io format */
    RSSM_PART_READ_COPY = 8,    /**< codes of the read copy */
    RSSM_PART_READ_SCALE = 9,   /**< its scales */
    RSSM_PART_CHECKPOINT_SCALE = 10, /**< f8: [value_heads][d_v], E8M0; rows of 0 are zero, of 255 NaN */
    RSSM_PARTS = 11
};

typedef struct rssm_part_info {
    int32_t part;      /**< RSSM_PART_* */
    int32_t dtype;     /**< RSSM_DTYPE_*; U8: opaque */
    int32_t rank;      /**< dimensions of shape in use; 0: this cache has no such part */
    int32_t per_layer; /**< 1, or 0 for the cursor */
    int64_t shape[4];  /**< per slot, last dimension contiguous */
    int64_t bytes;     /**< per slot (and layer) */
    int64_t alignment; /**< of base pointer and slot stride: 16 */
    const char *name;  /**< "checkpoint", ...; static storage */
} rssm_part_info;

/** Describes a part; any part number in [0, RSSM_PARTS) is legal. In their numeric order the parts can be laid
 *  one after another into a page of a slot. */
RSSM_API RSSM_CHECKED rssm_status rssm_cache_layout(const rssm_cache *cache, int32_t part, rssm_part_info *info);
/** Bytes that a slot takes over all layers and parts. */
RSSM_API int64_t rssm_cache_slot_bytes(const rssm_cache *cache);
/** Allocates all parts in memory of the cache's own, zero pages that the system maps on first use. */
RSSM_API RSSM_CHECKED rssm_status rssm_cache_allocate(rssm_cache *cache);
/**
 * Binds one part of one layer (layer is 0 for the cursor) to the caller's memory: slot s lies at base + s *
 * slot_stride, bytes. Parts of one page share a stride; ranges that intersect with unlike strides, or parts that
 * overlap, are refused by the first call that needs the memory. Binding again moves the part (the contents are the caller's business); base NULL unbinds.
 */
RSSM_API RSSM_CHECKED rssm_status rssm_cache_bind(rssm_cache *cache, int32_t layer, int32_t part, void *base,
                                                  int64_t slot_stride);

/** Constant tensors of a layer, fp32; NULL where the spec needs none. Copied by rssm_cache_set_weights(). */
typedef struct rssm_layer_weights {
    uint64_t struct_size;
    const float *conv_q;      /**< [key_heads d_k][conv_width], last tap on the newest input */
    const float *conv_k;      /**< the same */
    const float *conv_v;      /**< [value_heads d_v][conv_width] */
    const float *conv_bias_q; /**< [key_heads d_k] or NULL */
    const float *conv_bias_k; /**< the same */
    const float *conv_bias_v; /**< [value_heads d_v] or NULL */
    const float *A_log;       /**< [value_heads]; A = -exp(A_log). NULL with the bounded gate: factor 1 */
    const float *A;           /**< [value_heads], <= 0: used where A_log is NULL (files that store A) */
    const float *dt_bias;     /**< [value_heads], KDA [value_heads][d_k]; NULL: 0 */
    const float *D;           /**< [value_heads] or NULL */
    const float *out_norm;    /**< [value_heads d_v] (group) or [d_v] (head); NULL: 1 */
} rssm_layer_weights;

/** Copies the constants of one layer. Needed before the layer's first step, except where the spec needs none. */
RSSM_API RSSM_CHECKED rssm_status rssm_cache_set_weights(rssm_cache *cache, int32_t layer,
                                                         const rssm_layer_weights *weights);

/** What is known beforehand of the queries that read a layer's states, for nvfp4 copies; arrays [value_heads][d_k].
 *  M is the mean of r r^T over walked-back queries r: e^T M e is what an error e of a row costs. */
typedef struct rssm_read_calibration {
    uint64_t struct_size;
    const float *column_scale;  /**< what columns are multiplied by before they are rounded, > 0; NULL: 1 */
    const float *column_weight; /**< the diagonal of M; NULL: all columns weigh the same once they are scaled */
    const float *directions;    /**< [value_heads][directions_count][d_k], vectors v with M ~ diagonal + sum v v^T */
    int32_t directions_count;   /**< 0..8 */
    int32_t reserved;           /**< zero */
} rssm_read_calibration;

/** Copies the calibration of one layer; NULL takes it away. The copies that exist are not made again: call it before
 *  the first slot is started, or adopt the slots afterwards. */
RSSM_API RSSM_CHECKED rssm_status rssm_cache_set_read_calibration(rssm_cache *cache, int32_t layer,
                                                                  const rssm_read_calibration *calibration);

/** Sums over the reads of a layer, from which a calibration is made. The caller's arrays, to be zeroed by the caller. */
typedef struct rssm_read_statistics {
    uint64_t struct_size;
    double *second_moment;  /**< [value_heads][d_k][d_k] sum of r r^T over walked-back queries r; NULL: watch no more */
    double *column_squares; /**< [value_heads][d_k] sum of the squares of the checkpoint's columns, once per step */
    int64_t *reads;         /**< [value_heads] how many queries */
    int64_t *states;        /**< [value_heads] how many checkpoints: column_squares has d_v terms for each */
} rssm_read_statistics;

/** From now on each rssm_cache_decode() of this layer adds to these arrays, which must outlive that. For steps of one row,
 *  on an f32 checkpoint without a read copy, on the CPU; NULL watches no more. */
RSSM_API RSSM_CHECKED rssm_status rssm_cache_watch_reads(rssm_cache *cache, int32_t layer,
                                                         const rssm_read_statistics *statistics);

/**
 * Reserves scratch for steps of up to `rows` rows and `parts` concurrent rssm_cache_decode_part() calls. A later
 * step within these bounds allocates nothing. Called by rssm_cache_allocate() for the context's threads.
 *
 * CUDA: `parts` is the most tokens of a batch, prompts included (0: rows * step_tokens); larger batches are refused.
 * Call it once the parts are bound, and before a step is captured in a graph.
 */
RSSM_API RSSM_CHECKED rssm_status rssm_cache_prepare(rssm_cache *cache, int32_t rows, int32_t parts);

/* ---- A model step ------------------------------------------------------------------------------------- */

/**
 * The rows of a model step. Arrays belong to the caller and are read during the calls they are passed to.
 *
 * CUDA: every array here and in the calls below (slots, offsets, prefill, counts, ids, positions, src, dst), like every
 * tensor, lies in memory that the device reads; the contents are looked at when the stream gets there. So a captured
 * step may be replayed with other contents, and bad values cannot be refused by a status: the row becomes padding, its
 * slot stays as it was, and a bit is set in rssm_cache_info.error (RSSM_FAULT_*). Calls on one cache must be ordered, by
 * one stream or by events. Export, import, slot and status wait for the device. Trees of drafts, checkpoints other than
 * f32 and read copies are refused.
 */
typedef struct rssm_batch {
    uint64_t struct_size;
    int32_t rows;
    int32_t uniform_tokens;   /**< tokens of every row where offsets is NULL; 0: 1 */
    const int32_t *slots;     /**< [rows]; negative or reserved: padding, its outputs become zero */
    int64_t slots_stride;     /**< elements between slots; 0: 1 */
    const int32_t *offsets;   /**< [rows + 1] first token of each row, or NULL. Rows of 0 tokens commit the last step
                                   and plan nothing */
    const int32_t *parents;   /**< [tokens] or NULL for chains. Trees of drafts: of every token the one before it on its
                                   path, counted within its row and smaller than its own number; -1: it follows the
                                   committed tokens. A token sees its ancestors only, the convolution too. Not read for
                                   prefill and padding rows. The decode calls of the step get the same parents */
    const uint8_t *prefill;   /**< [rows] nonzero: the row is a piece of a prompt, of any length; NULL: none */
} rssm_batch;

/**
 * Opens a model step: commits the last one, then plans this one for every layer. Keyed by slot: rows may come in
 * any order, and batches with disjoint slots may be open at once.
 *
 * accepted [rows], or NULL to drop what is pending: how many tokens of the slot's last step to keep, 0..T. Where
 * nothing is pending it is ignored. Prefill and conventional steps are committed by the layers that ran them (the next
 * call that names the slot finds them done), and dropped if no layer did; a count, if given, must be the step's
 * (conventional: 1). paths [rows][step_tokens] (T_max entries a row, of which the first accepted[row] are read): which
 * tokens of the slot's last step to keep, numbered within it, a path that starts after the committed tokens and on
 * which each is the parent of the next. NULL: the first accepted[row] ones, which must be such a path.
 *
 * stream: the CUDA stream of the call; ignored on the CPU, here and everywhere.
 *
 * @return RSSM_ERROR_ARGUMENT: slot out of range or twice in the batch, more tokens than T_max, a parent that is not an
 *         earlier token, a count outside the step, tokens to keep that are no path of it; nothing is changed. RSSM_ERROR_FAILED_SLOT: some layer never ran the step that is to be committed;
 *         that slot is failed until reset, imported or adopted, nothing else is changed.
 */
RSSM_API RSSM_CHECKED rssm_status rssm_cache_begin(rssm_cache *cache, const rssm_batch *batch,
                                                   const int32_t *accepted, const int32_t *paths,
                                                   void *stream);

/** A tensor [tokens][heads][d] (decay, beta: [tokens][heads], KDA's decay [tokens][heads][d_k]); strides in
 *  elements, 0: dense. The last dimension is contiguous. Views into one packed tensor are fine. */
typedef struct rssm_view {
    const void *data;
    int64_t token_stride;
    int64_t head_stride;
} rssm_view;

/** Inputs of one layer for all tokens of a batch; raw projections (with conv_width) or ready values. */
typedef struct rssm_layer_inputs {
    uint64_t struct_size;
    rssm_view q;        /**< [tokens][key_heads][d_k], io format */
    rssm_view k;        /**< [tokens][key_heads][d_k], io format */
    rssm_view v;        /**< [tokens][value_heads][d_v], io format */
    rssm_view decay;    /**< see RSSM_GATE_*; gate format */
    rssm_view beta;     /**< GDN, KDA, RSSM_GATE_LOG; gate format */
    rssm_view z;        /**< output gate [tokens][value_heads][d_v], io format; only with an out_norm */
    int32_t gate_dtype; /**< f32 or bf16; default: the io format */
    int32_t reserved;   /**< zero */
} rssm_layer_inputs;

typedef struct rssm_output {
    uint64_t struct_size;
    void *data; /**< [tokens][value_heads][d_v]; rows of other kinds and gaps are left alone */
    int64_t token_stride; /**< elements; 0: dense */
    int64_t head_stride;
    int32_t dtype;    /**< f32 or bf16; default: the io format */
    int32_t reserved; /**< zero */
} rssm_output;

/**
 * One layer of the open step, for the batch's rows that are not prefill: folds what begin planned, appends the new
 * records, and evaluates y for every token. Running it again in the same step repeats it and folds nothing twice.
 */
RSSM_API RSSM_CHECKED rssm_status rssm_cache_decode(rssm_cache *cache, int32_t layer, const rssm_batch *batch,
                                                    const rssm_layer_inputs *inputs, const rssm_output *out,
                                                    void *stream);
/**
 * Part `part` of `parts` of the same call, for callers with threads of their own: all parts must be run, in any order
 * or at once; the last to finish marks the layer as done. parts is at most what was prepared.
 */
RSSM_API RSSM_CHECKED rssm_status rssm_cache_decode_part(rssm_cache *cache, int32_t layer, const rssm_batch *batch,
                                                         const rssm_layer_inputs *inputs, const rssm_output *out,
                                                         int32_t part, int32_t parts);
/** One layer of the open step, for the batch's prefill rows: a chunked scan from and to the slots' checkpoints,
 *  folding existing history first. */
RSSM_API RSSM_CHECKED rssm_status rssm_cache_prefill(rssm_cache *cache, int32_t layer, const rssm_batch *batch,
                                                     const rssm_layer_inputs *inputs, const rssm_output *out,
                                                     void *stream);

/* ---- Between steps ------------------------------------------------------------------------------------ */

/**
 * Starts sequences: state and convolution context zero at the given positions. Legal at any time, pending tokens or
 * not. slots [count], no slot twice; ids [count] (any number that tells sequences apart; it sets the flush phase id
 * mod L and keys the random numbers) or NULL for 0; positions [count] or NULL for 0.
 */
RSSM_API RSSM_CHECKED rssm_status rssm_cache_reset(rssm_cache *cache, int64_t count, const int32_t *slots,
                                                   const uint64_t *ids, const int64_t *positions, void *stream);
/**
 * Takes over slots whose checkpoint, and convolution rows 0..conv_width-2 oldest first, the caller has just written
 * for the given positions: history and pending tokens are dropped, the read copy is rebuilt.
 */
RSSM_API RSSM_CHECKED rssm_status rssm_cache_adopt(rssm_cache *cache, int64_t count, const int32_t *slots,
                                                   const uint64_t *ids, const int64_t *positions, void *stream);
/** Folds committed history up to each position (that of the most advanced layer's checkpoint .. committed; -1: the
 *  committed one) into the checkpoint now. Pending tokens stay pending; flush boundaries do not move. positions NULL: all -1. */
RSSM_API RSSM_CHECKED rssm_status rssm_cache_flush(rssm_cache *cache, int64_t count, const int32_t *slots,
                                                   const int64_t *positions, void *stream);
/** Goes back to the given committed positions and drops pending tokens; a pointer move. Refused below
 *  rssm_slot_info.oldest, with nothing changed. */
RSSM_API RSSM_CHECKED rssm_status rssm_cache_rollback(rssm_cache *cache, int64_t count, const int32_t *slots,
                                                      const int64_t *positions, void *stream);
/**
 * Writes the full state of each src slot at a position (oldest..committed; -1 or NULL: the committed one) into the
 * dst slot as a fresh checkpoint without history; the source is untouched. ids as in reset. No dst may be a src.
 */
RSSM_API RSSM_CHECKED rssm_status rssm_cache_materialize(rssm_cache *cache, int64_t count, const int32_t *src,
                                                         const int32_t *dst, const int64_t *positions,
                                                         const uint64_t *ids, void *stream);
/** Copies slots, committed tokens only, as if all at once: chains, swaps and cycles are fine, no dst twice. ids NULL
 *  keeps the sources'. */
RSSM_API RSSM_CHECKED rssm_status rssm_cache_copy(rssm_cache *cache, int64_t count, const int32_t *src,
                                                  const int32_t *dst, const uint64_t *ids, void *stream);

enum {
    RSSM_EXPORT_CHECKPOINT_ONLY = 1, /**< fold everything (out of place) and save no history */
    RSSM_EXPORT_STATE_KV = 2         /**< store states transposed, [d_k][d_v]; import reads either */
};
/** Bytes that rssm_cache_export() would write now for this slot; -1 for a slot that cannot be exported. */
RSSM_API int64_t rssm_cache_export_bytes(const rssm_cache *cache, int32_t slot, uint32_t flags);
/** Saves a slot, committed tokens only: versioned, checksummed, self-describing, in native byte order. */
RSSM_API RSSM_CHECKED rssm_status rssm_cache_export(rssm_cache *cache, int32_t slot, uint32_t flags, void *buffer,
                                                    int64_t capacity, int64_t *written);
/**
 * Restores a slot. Equal parameters restore bit for bit. Another window folds the saved history up to its own
 * boundary; another io or checkpoint format rounds once, to nearest. A damaged buffer or another layer spec is
 * refused whole.
 */
RSSM_API RSSM_CHECKED rssm_status rssm_cache_import(rssm_cache *cache, int32_t slot, const void *buffer,
                                                    int64_t bytes);

/* ---- Questions ---------------------------------------------------------------------------------------- */

typedef struct rssm_slot_info {
    uint64_t struct_size;
    int64_t position;   /**< committed tokens */
    int64_t checkpoint; /**< position of the (least advanced) checkpoint */
    int64_t oldest;     /**< oldest position that rollback and materialise reach */
    uint64_t id;
    int32_t pending;    /**< tokens of the open or last step that are not committed */
    int32_t state;      /**< 0: never started; 1: ready; 2: failed, of which only position and id are told beside this */
} rssm_slot_info;
/** Reads a slot's cursor. */
RSSM_API RSSM_CHECKED rssm_status rssm_cache_slot(const rssm_cache *cache, int32_t slot, rssm_slot_info *info);

/** Bits of rssm_cache_info.error: what was wrong with values in device memory, where no call can refuse them. The rows
 *  concerned became padding, the slots stayed as they were. */
enum {
    RSSM_FAULT_SLOT = 1,      /**< out of range, never started, or failed before */
    RSSM_FAULT_TWICE = 2,     /**< a slot named twice in a call; one of the two rows was taken */
    RSSM_FAULT_TOKENS = 4,    /**< offsets fall, or a row has more tokens than T_max or than the batch may have */
    RSSM_FAULT_ACCEPTED = 8,  /**< a count outside the step */
    RSSM_FAULT_STEP = 16,     /**< a layer call for a row that begin did not open, or that the layer has run already */
    RSSM_FAULT_FAILED = 32,   /**< a slot failed: a layer did not run a step that was committed */
    RSSM_FAULT_POSITION = 64  /**< a position out of reach */
};

/** Counters since creation, over all layers. */
typedef struct rssm_cache_info {
    uint64_t struct_size;
    int64_t steps;         /**< rssm_cache_begin() calls */
    int64_t row_steps;     /**< live rows over all layers */
    int64_t flushes;       /**< checkpoints written by steps, forced flushes and prefill, counted per slot and layer */
    int64_t bytes_read;    /**< state and records read by decode, by formula: checkpoint bytes per row and layer, and
                                the bytes of each record once */
    int64_t bytes_written; /**< checkpoints written and records appended */
    int64_t failed_slots;  /**< slots that were failed */
    uint64_t error;        /**< RSSM_FAULT_* found on the device since this was last asked; 0: none */
    int32_t method;        /**< RSSM_METHOD_* asked for */
    int32_t window;        /**< effective window of the last step */
    const char *kernel;    /**< name of the decode variant, e.g. "gdn_decode_avx512_f32_f32"; static storage */
    int64_t overflows;     /**< elements of the state that were finite and became infinite in an f16 or bf16 checkpoint */
} rssm_cache_info;
RSSM_API RSSM_CHECKED rssm_status rssm_cache_status(const rssm_cache *cache, rssm_cache_info *info);

#ifdef __cplusplus
}
#endif
#endif
