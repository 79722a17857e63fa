/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixtures of experts from their tensors, in any of the layouts that files use: all experts of a layer in one
 * tensor, gate and up fused or not, or a matrix for each expert.
 */
#include "model/family.h"


/* The names with the usual ones where none is given. */
static rse_moe_names complete(const rse_moe_names *given) {
    rse_moe_names names = *given;
    const struct {
        const char **name, *usual;
    } usual[] = {{&names.router, "gate"},
                 {&names.gate, "gate_proj"},
                 {&names.up, "up_proj"},
                 {&names.down, "down_proj"},
                 {&names.fused, "experts.gate_up_proj"},
                 {&names.stacked_down, "experts.down_proj"},
                 {&names.shared, "shared_experts"}};
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++) {
        *usual[i].name = *usual[i].name != NULL ? *usual[i].name : usual[i].usual;
    }
    return names;
}

/* Rows of a tensor that holds all experts. */
static rse_linear slice(const rse_matrix *all, int64_t first, int64_t rows) {
    return (rse_linear){.w = rse_matrix_rows(all, first, rows)};
}

/* Factors of the experts, "<name>.scale" [experts], where a file of llama.cpp has them. */
static rse_status scale_experts(rse_builder *builder, const char *at, const char *part, rse_moe *moe,
                                rse_error *err) {
    int32_t experts = builder->model->config.moe.experts;
    const float *factors;
    if (!rse_build_has(builder, "%s.experts.%s_proj.scale", at, part)) {
        return RSE_OK;
    }
    RSE_TRY(
        rse_build_vector(builder, rse_shape1(experts), &factors, err, "%s.experts.%s_proj.scale", at, part));
    *builder->parameters -= experts;
    for (int32_t e = 0; e < experts; e++) {
        rse_mlp *mlp = &moe->expert[e];
        rse_linear *linear = part[0] == 'g' ? &mlp->gate : part[0] == 'u' ? &mlp->up : &mlp->down;
        if (linear->w.dtype < RSE_PACKED_F8) {
            return rse_fail(err, RSE_ERROR_FORMAT,
                            "%s.experts.%s_proj.scale belongs to a matrix that is not packed", at, part);
        }
        linear->w.factor = factors[e];
    }
    return RSE_OK;
}

/* Gate and up projections from stacked tensors. *done is false if the file has none. */
static rse_status take_stacked(rse_builder *builder, rse_moe *moe, int64_t cols, bool gated, const char *at,
                               const char *fused, bool *done, rse_error *err) {
    const rse_config_moe *shape = &builder->model->config.moe;
    int64_t width = shape->width;
    rse_matrix up;
    rse_matrix gate = {0};
    bool both = gated && rse_build_has(builder, "%s.%s", at, fused);
    *done = both || rse_build_has(builder, "%s.experts.up_proj", at);
    if (!*done) {
        return RSE_OK;
    }
    if (both) {
        RSE_TRY(rse_build_matrix(builder, rse_shape3(shape->experts, 2 * width, cols), &up, err, "%s.%s", at,
                                 fused));
    } else {
        rse_shape one = rse_shape3(shape->experts, width, cols);
        RSE_TRY(rse_build_matrix(builder, one, &up, err, "%s.experts.up_proj", at));
        if (gated) {
            RSE_TRY(rse_build_matrix(builder, one, &gate, err, "%s.experts.gate_proj", at));
        }
    }
    for (int32_t e = 0; e < shape->experts; e++) {
        rse_mlp *mlp = &moe->expert[e];
        mlp->up = slice(&up, both ? (2 * e + 1) * width : e * width, width);
        if (gated) {
            mlp->gate = both ? slice(&up, 2 * e * width, width) : slice(&gate, e * width, width);
        }
    }
    return RSE_OK;
}

static rse_status take_experts(rse_builder *builder, const rse_moe_names *names, rse_moe *moe, int64_t cols,
                               const char *at, rse_error *err) {
    const rse_config_moe *shape = &builder->model->config.moe;
    bool stacked;
    bool gated = builder->model->config.mlp_act != RSE_ACT_RELU2;
    RSE_TRY(take_stacked(builder, moe, cols, gated, at, names->fused, &stacked, err));
    for (int32_t e = 0; !stacked && e < shape->experts; e++) {
        rse_mlp *mlp = &moe->expert[e];
        if (gated) {
            RSE_TRY(rse_build_linear(builder, shape->width, cols, false, &mlp->gate, err, "%s.experts.%d.%s",
                                     at, e, names->gate));
        }
        RSE_TRY(rse_build_linear(builder, shape->width, cols, false, &mlp->up, err, "%s.experts.%d.%s", at, e,
                                 names->up));
    }
    if (!rse_build_has(builder, "%s.%s", at, names->stacked_down)) {
        for (int32_t e = 0; e < shape->experts; e++) {
            RSE_TRY(rse_build_linear(builder, cols, shape->width, false, &moe->expert[e].down, err,
                                     "%s.experts.%d.%s", at, e, names->down));
        }
        return RSE_OK;
    }
    rse_matrix down;
    RSE_TRY(rse_build_matrix(builder, rse_shape3(shape->experts, cols, shape->width), &down, err, "%s.%s", at,
                             names->stacked_down));
    for (int32_t e = 0; e < shape->experts; e++) {
        moe->expert[e].down = slice(&down, e * cols, cols);
    }
    RSE_TRY(scale_experts(builder, at, "gate", moe, err));
    RSE_TRY(scale_experts(builder, at, "up", moe, err));
    return scale_experts(builder, at, "down", moe, err);
}

rse_status rse_build_moe(rse_builder *builder, const rse_moe_names *given, rse_moe *moe, rse_error *err,
                         const char *stem, ...) {
    char at[RSE_NAME_SIZE];
    RSE_FORMAT_NAME(at, stem);
    const rse_config *config = &builder->model->config;
    const rse_config_moe *shape = &config->moe;
    int64_t hidden = config->hidden;
    int64_t cols = shape->latent > 0 ? shape->latent : hidden;
    const rse_moe_names names = complete(given);
    void *experts;
    RSE_TRY(rse_build_own(builder, (size_t)shape->experts * sizeof *moe->expert, &experts, err));
    moe->expert = experts;
    RSE_TRY(rse_build_linear(builder, shape->experts, hidden, false, &moe->router, err, "%s.%s", at,
                             names.router));
    if (shape->correction) {
        RSE_TRY(rse_build_vector(builder, rse_shape1(shape->experts), &moe->correction, err, "%s.%s", at,
                                 "gate.e_score_correction_bias"));
    }
    if (shape->latent > 0) {
        RSE_TRY(rse_build_linear(builder, cols, hidden, false, &moe->latent_in, err, "%s.%s", at,
                                 names.latent_in));
        RSE_TRY(rse_build_linear(builder, hidden, cols, false, &moe->latent_out, err, "%s.%s", at,
                                 names.latent_out));
    }
    if (shape->latent > 0 && shape->latent_norm) {
        RSE_TRY(rse_build_norm(builder, cols, &moe->latent_norm, err, "%s.%s", at, names.latent_norm));
    }
    RSE_TRY(take_experts(builder, &names, moe, cols, at, err));
    if (shape->shared_width > 0 && names.shared[0] != '\0') {
        RSE_TRY(rse_build_mlp(builder, shape->shared_width, config->mlp_act != RSE_ACT_RELU2, &moe->shared, err,
                              "%s.%s", at, names.shared));
    }
    return shape->shared_gate && shape->shared_width > 0
               ? rse_build_linear(builder, 1, hidden, false, &moe->shared_gate, err, "%s.shared_expert_gate",
                                  at)
               : RSE_OK;
}
