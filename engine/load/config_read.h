/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the readers of config.json, one per family, are written with. Each helper checks the range of what it
 * reads and fails with a sentence that names the key, its value and the limit. Internal to engine/load.
 */
#ifndef RSE_CONFIG_READ_H
#define RSE_CONFIG_READ_H

#include "base/json.h"
#include "load/hfconfig.h"

/* Limits that keep every product of two sizes far from the end of int32 or, where it can be larger, of int64.
 */
enum { RSE_VOCABULARY_MAX = 1 << 24, RSE_WIDTH_MAX = 1 << 20, RSE_HEADS_MAX = 4096, RSE_HEAD_DIM_MAX = 1024 };

/* The name that messages give to the source of the configuration. */
#define RSE_CONFIG_WHERE "config.json"

typedef struct rse_source {
    const rse_json *root;
    const rse_json *text; /* text_config, llm_config, or the root */
} rse_source;

/* A count in [1, high] that must be there; `other` is a second spelling of the key or NULL. */
rse_status rse_read_count(const rse_source *s, const char *key, const char *other, int64_t high, int32_t *out,
                          rse_error *err);
/* The same, of which *out is the default. */
rse_status rse_read_count_or(const rse_source *s, const char *key, const char *other, int64_t low, int64_t high,
                             int32_t *out, rse_error *err);
rse_status rse_read_multiple(const char *what, int32_t value, const char *of, int32_t divisor, rse_error *err);
/* An activation by any of its names; `allowed` is a mask of 1 << RSE_ACT_*. Absent: *out stays. */
rse_status rse_read_act(const rse_source *s, const char *key, int allowed, int32_t *out, rse_error *err);
/* A number in [low, high]; absent: *out stays. */
rse_status rse_read_real(const rse_source *s, const char *key, double low, double high, float *out,
                         rse_error *err);
/* A feature this engine does not have must be off. */
rse_status rse_read_off(const rse_source *s, const char *key, rse_error *err);
/* Adds the eos_token_id of an object, a number or a list, to what is known already. */
rse_status rse_read_end_tokens(const rse_json *object, const char *file, rse_config *config, rse_error *err);

/* Layers by letter (M * - E) or by word; RSE_LAYER_RECURRENT becomes the family's kind `recurrent`. */
rse_status rse_read_layer(rse_config *config, const char *key, int32_t kind, const char *name,
                          int32_t recurrent, rse_error *err);
rse_status rse_read_layer_list(rse_config *config, const char *key, const rse_json *list, int32_t recurrent,
                               rse_error *err);
rse_status rse_read_layer_pattern(rse_config *config, const char *key, const char *pattern, int32_t recurrent,
                                  rse_error *err);

rse_status rse_read_common(const rse_source *s, rse_config *config, rse_error *err);
rse_status rse_read_heads(const rse_source *s, rse_config_attention *a, rse_error *err);
/* The first of several spellings that is there (the list ends with NULL); its value must lie in (0, 0.1]. */
rse_status rse_read_eps(const rse_source *s, const char *const *keys, float *out, rse_error *err);
/* Rotary keys from rope_parameters (transformers 5) or from the object itself (before). */
rse_status rse_read_rope(const rse_source *s, double factor, rse_config_attention *a, rse_error *err);
rse_status rse_read_conv(const rse_source *s, const char *key, rse_config_ssm *ssm, rse_error *err);
rse_status rse_read_mtp(const rse_source *s, const char *key, rse_config *config, rse_error *err);
/* Number, use and width of experts; `used` is num_experts_per_tok. moe->experts says that there are any. */
rse_status rse_read_experts(const rse_source *s, const char *experts, const char *used, const char *width,
                            rse_config_moe *moe, rse_error *err);
/* Routing within groups of experts must be off: one group. */
rse_status rse_read_one_group(const rse_source *s, const char *key, rse_error *err);

/* Sizes of attention over latent rows, without rotation. */
rse_status rse_read_latent(const rse_source *s, rse_config_attention *a, rse_error *err);
/* mlp_layer_types, or experts from layer first_k_dense_replace on (`dense` is its default). */
rse_status rse_read_ffn_layers(const rse_source *s, int32_t dense, rse_config *config, rse_error *err);

/* ---- The families' readers, config_<family>.c ---- */

rse_status rse_read_qwen3_5(const rse_source *s, rse_config *config, rse_error *err);
rse_status rse_read_nemotron_h(const rse_source *s, rse_config *config, rse_error *err);
rse_status rse_read_mamba2(const rse_source *s, rse_config *config, rse_error *err);
rse_status rse_read_granite(const rse_source *s, rse_config *config, rse_error *err);
rse_status rse_read_glm5_next(const rse_source *s, rse_config *config, rse_error *err);
rse_status rse_read_kimi_linear(const rse_source *s, rse_config *config, rse_error *err);

#endif
