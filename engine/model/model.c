/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading a model: the table of families, and the fingerprint, which is a hash over the configuration's numbers
 * and, for every tensor taken, its name, shape and a few samples.
 */
#include "model/model.h"
#include "model/family.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static const rse_family *const families[] = {&rse_family_qwen3_5,     &rse_family_nemotron_h,
                                             &rse_family_mamba2,      &rse_family_granite_hybrid,
                                             &rse_family_kimi_linear, &rse_family_glm5_next};

/* The numbers of the configuration that change what the weights compute. */
static void hash_config(XXH3_state_t *hash, const rse_config *config) {
    const rse_config_ssm *ssm = &config->ssm;
    const rse_config_attention *attention = &config->attention;
    const rse_config_moe *moe = &config->moe;
    int32_t whole[] = {config->family, config->vocab,       config->hidden,     config->layers,  ssm->gate_act,
                       config->tied,   attention->rotary,   attention->q_heads, config->mlp_act, ssm->d_k,
                       ssm->key_heads, ssm->tiled,          attention->nope,    moe->used,       moe->sigmoid,
                       moe->normalise, attention->kv_latent};
    float real[] = {config->norm_eps,
                    (float)attention->rope_theta,
                    ssm->dt_min,
                    ssm->dt_max,
                    attention->scale,
                    moe->scale,
                    config->embedding_scale,
                    config->residual_scale,
                    config->logit_divisor,
                    config->act_limit,
                    config->act_limit_up,
                    ssm->gate_lower_bound};
    (void)XXH3_64bits_update(hash, whole, sizeof whole);
    (void)XXH3_64bits_update(hash, real, sizeof real);
    (void)XXH3_64bits_update(hash, config->layer, (size_t)config->layers * sizeof config->layer[0]);
}

static rse_status build(rse_model *model, XXH3_state_t *hash, rse_error *err) {
    const rse_family *family = NULL;
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        if (families[i]->family == model->config.family) {
            family = families[i];
        }
    }
    if (family == NULL) {
        return rse_fail(err, RSE_ERROR_UNSUPPORTED, "model_type \"%s\" is known but cannot be run",
                        model->config.model_type);
    }
    model->block = calloc(2 * (size_t)model->config.layers, sizeof *model->block);
    if (model->block == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for %d layers", model->config.layers);
    }
    if (XXH3_64bits_reset(hash) != XXH_OK) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for a hash");
    }
    hash_config(hash, &model->config);
    rse_builder builder = {.model = model, .hash = hash, .parameters = &model->parameters};
    RSE_TRY(family->build(&builder, err));
    RSE_TRY(rse_weights_finish(model->weights, family->ignored, err));
    model->fingerprint = XXH3_64bits_digest(hash);
    return RSE_OK;
}

rse_status rse_model_open(const char *directory, rse_model **model, rse_error *err) {
    *model = NULL;
    rse_model *opened = calloc(1, sizeof *opened);
    XXH3_state_t *hash = XXH3_createState();
    rse_status status =
        opened != NULL && hash != NULL
            ? RSE_OK
            : rse_fail(err, RSE_ERROR_MEMORY, "no memory for a model of %zu bytes", sizeof *opened);
    if (status == RSE_OK) {
        status = rse_config_load(directory, &opened->config, err);
    }
    if (status == RSE_OK) {
        status = rse_weights_open(directory, &opened->weights, err);
    }
    if (status == RSE_OK) {
        status = build(opened, hash, err);
    }
    (void)XXH3_freeState(hash);
    if (status != RSE_OK) {
        rse_model_close(opened);
        return status;
    }
    *model = opened;
    return RSE_OK;
}

void rse_model_close(rse_model *model) {
    if (model == NULL) {
        return;
    }
    for (int64_t i = 0; i < model->owned_count; i++) {
        free(model->owned[i]);
    }
    free(model->owned);
    free(model->block);
    rse_weights_close(model->weights);
    free(model);
}
