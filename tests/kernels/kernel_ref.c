/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The oracle against itself and against arithmetic done in another way: identities of the recurrence, values
 * worked out by hand, and a whole layer put together from the single formulas. It must be right before anything
 * is compared with it.
 */
#include <math.h>
#include <string.h>

#include "cachebox.h"
#include "numbers.h"

enum { DIM = 24, RECORDS = 96 };

typedef struct sequence {
    int32_t d_k, d_v, n;
    double k[RECORDS][DIM], v[RECORDS][DIM], alpha[RECORDS][DIM], S[DIM * DIM], q[DIM];
    rssm_ref_record records[RECORDS];
} sequence;

/* Unit keys, decays in [low, 1], beta in [0, 2]. */
static void draw_sequence(chk_rng *rng, sequence *s, double low, bool vector) {
    *s = (sequence){.d_k = chk_int(rng, 1, DIM), .d_v = chk_int(rng, 1, DIM), .n = chk_int(rng, 0, RECORDS)};
    for (int32_t j = 0; j < s->n; j++) {
        const double decay = chk_uniform(rng, low, 1.0);
        for (int32_t i = 0; i < s->d_k; i++) {
            s->k[j][i] = chk_normal(rng);
            s->alpha[j][i] = vector ? chk_uniform(rng, low, 1.0) : decay;
        }
        const double inverse = rssm_ref_inverse_norm(s->d_k, s->k[j], 0.0);
        for (int32_t i = 0; i < s->d_k; i++) {
            s->k[j][i] *= inverse;
        }
        for (int32_t i = 0; i < s->d_v; i++) {
            s->v[j][i] = chk_normal(rng);
        }
        s->records[j] = (rssm_ref_record){s->k[j], s->v[j], s->alpha[j], chk_uniform(rng, 0.0, 2.0)};
    }
    for (int32_t i = 0; i < s->d_k * s->d_v; i++) {
        s->S[i] = chk_normal(rng);
    }
    for (int32_t i = 0; i < s->d_k; i++) {
        s->q[i] = chk_normal(rng);
    }
}

static void step(const sequence *s, bool delta, double *S, int32_t j) {
    const rssm_ref_record *r = &s->records[j];
    rssm_ref_update(s->d_k, s->d_v, delta, S, r->k, r->v, r->alpha, r->beta);
}

static bool near_rows(const char *what, int32_t n, const double *a, const double *b, double tolerance) {
    double size = 1.0;
    for (int32_t i = 0; i < n; i++) {
        size = fmax(size, fabs(a[i]));
    }
    for (int32_t i = 0; i < n; i++) {
        if (!(fabs(a[i] - b[i]) <= tolerance * size)) {
            return chk_fail("%s: element %d is %.17g and %.17g", what, i, a[i], b[i]);
        }
    }
    return true;
}

/* Walking the query back gives what stepping the state forwards gives. */
static void walk_equals_recurrence(void *arg) {
    (void)arg;
    for (int32_t problem = 0; problem < chk_repeat(400); problem++) {
        chk_rng rng = chk_rng_make("walk", (uint64_t)problem);
        const bool delta = chk_flip(&rng, 0.6), vector = chk_flip(&rng, 0.5);
        sequence s;
        draw_sequence(&rng, &s, chk_flip(&rng, 0.5) ? 0.0 : 0.9, vector);
        chk_params("problem=%d delta=%d vector=%d n=%d dk=%d dv=%d", problem, delta, vector, s.n, s.d_k, s.d_v);
        double walked[DIM], read[DIM], scratch[DIM], S[DIM * DIM];
        rssm_ref_walk(s.d_k, s.d_v, delta, s.S, s.n, s.records, NULL, s.q, walked, scratch);
        memcpy(S, s.S, sizeof S);
        for (int32_t j = 0; j < s.n; j++) {
            step(&s, delta, S, j);
        }
        rssm_ref_read(s.d_k, s.d_v, S, s.q, read);
        near_rows("walk", s.d_v, read, walked, 1e-11);
    }
}

/* In a tree of records each one's walk gives what stepping forwards along its own path gives. */
static void tree_walk_equals_paths(void *arg) {
    (void)arg;
    for (int32_t problem = 0; problem < chk_repeat(100); problem++) {
        chk_rng rng = chk_rng_make("tree", (uint64_t)problem);
        const bool delta = chk_flip(&rng, 0.6);
        sequence s;
        draw_sequence(&rng, &s, 0.5, chk_flip(&rng, 0.5));
        chk_params("problem=%d delta=%d n=%d dk=%d dv=%d", problem, delta, s.n, s.d_k, s.d_v);
        int32_t parents[RECORDS];
        for (int32_t j = 0; j < s.n; j++) {
            parents[j] = chk_int(&rng, -1, j - 1);
        }
        for (int32_t node = 0; node < s.n; node++) {
            double walked[DIM], read[DIM], scratch[DIM], S[DIM * DIM];
            int32_t path[RECORDS], depth = 0;
            rssm_ref_walk(s.d_k, s.d_v, delta, s.S, node + 1, s.records, parents, s.q, walked, scratch);
            for (int32_t j = node; j >= 0; j = parents[j]) {
                path[depth++] = j;
            }
            memcpy(S, s.S, sizeof S);
            while (depth > 0) {
                step(&s, delta, S, path[--depth]);
            }
            rssm_ref_read(s.d_k, s.d_v, S, s.q, read);
            near_rows("walk in a tree", s.d_v, read, walked, 1e-11);
        }
    }
}

/* The update against the matrices it is written with. */
static void update_equals_matrices(void *arg) {
    (void)arg;
    for (int32_t problem = 0; problem < chk_repeat(100); problem++) {
        chk_rng rng = chk_rng_make("matrices", (uint64_t)problem);
        sequence s;
        do {
            draw_sequence(&rng, &s, 0.0, true);
        } while (s.n == 0);
        const bool delta = problem % 2;
        const rssm_ref_record *r = &s.records[0];
        double S[DIM * DIM], expected[DIM * DIM];
        for (int32_t row = 0; row < s.d_v; row++) {
            for (int32_t c = 0; c < s.d_k; c++) {
                double sum = r->beta * r->v[row] * r->k[c];
                for (int32_t m = 0; m < s.d_k; m++) { /* (S diag(alpha)) (I - delta beta k k^T) */
                    const double factor = (m == c) - (delta ? r->beta * r->k[m] * r->k[c] : 0.0);
                    sum += s.S[row * s.d_k + m] * r->alpha[m] * factor;
                }
                expected[row * s.d_k + c] = sum;
            }
        }
        memcpy(S, s.S, sizeof S);
        step(&s, delta, S, 0);
        chk_params("problem=%d delta=%d", problem, delta);
        near_rows("update", s.d_v * s.d_k, expected, S, 1e-12);
    }
}

/* With alpha 1 the gated delta rule is the plain one: after an update with beta 1 and a unit key, S k = v. And
   what is written twice is held once. */
static void delta_rule_holds(void *arg) {
    (void)arg;
    for (int32_t problem = 0; problem < chk_repeat(50); problem++) {
        chk_rng rng = chk_rng_make("delta", (uint64_t)problem);
        sequence s;
        do {
            draw_sequence(&rng, &s, 1.0, false);
        } while (s.n == 0);
        s.records[0].beta = 1.0;
        double S[DIM * DIM], once[DIM * DIM], held[DIM];
        memcpy(S, s.S, sizeof S);
        step(&s, true, S, 0);
        rssm_ref_read(s.d_k, s.d_v, S, s.k[0], held);
        near_rows("held value", s.d_v, s.v[0], held, 1e-12);
        memcpy(once, S, sizeof S);
        step(&s, true, S, 0);
        near_rows("second write", s.d_v * s.d_k, once, S, 1e-12);
    }
}

/* Extremes: alpha 0 forgets all, beta 0 leaves the decayed state, no records is the checkpoint itself. */
static void extremes(void *arg) {
    (void)arg;
    chk_rng rng = chk_rng_make("extremes", 0);
    sequence s;
    do {
        draw_sequence(&rng, &s, 0.0, false);
    } while (s.n < 2);
    double S[DIM * DIM] = {0}, y[DIM], expected[DIM], scratch[DIM];
    memset(s.alpha[1], 0, sizeof s.alpha[1]);
    memcpy(S, s.S, sizeof S);
    step(&s, true, S, 1);
    for (int32_t row = 0; row < s.d_v; row++) {
        expected[row] = s.records[1].beta * s.v[1][row] * s.k[1][0];
        y[row] = S[row * s.d_k];
    }
    near_rows("alpha 0", s.d_v, expected, y, 1e-14);
    s.records[0].beta = 0.0;
    memcpy(S, s.S, sizeof S);
    step(&s, true, S, 0);
    CHK(fabs(S[0] - s.S[0] * s.alpha[0][0]) < 1e-15);
    rssm_ref_walk(s.d_k, s.d_v, true, s.S, 0, NULL, NULL, s.q, y, scratch);
    rssm_ref_read(s.d_k, s.d_v, s.S, s.q, expected);
    near_rows("no records", s.d_v, expected, y, 0.0);
}

/* Rounding to formats: every bf16 is its own rounding; halves go to even; the ends of the range. */
static void rounding(void *arg) {
    (void)arg;
    for (uint32_t h = 0; h < 0x7f80; h++) {
        const float low = rssm_f32_of_bf16((uint16_t)h), high = rssm_f32_of_bf16((uint16_t)(h + 1));
        const double x = (double)low, next = h + 1 == 0x7f80 ? 0x1p128 : (double)high,
                     middle = 0.5 * (x + next);
        const double even = h % 2 == 0 ? x : h + 1 == 0x7f80 ? HUGE_VAL : next;
        if (rssm_ref_round(x, RSSM_DTYPE_BF16) != x || rssm_ref_round(-middle, RSSM_DTYPE_BF16) != -even ||
            rssm_ref_round(middle * (1 + 1e-14), RSSM_DTYPE_BF16) != (h + 1 == 0x7f80 ? HUGE_VAL : next)) {
            chk_fail("bf16 0x%04x rounds wrongly", h);
        }
        const uint16_t half = (uint16_t)h;
        CHK(rssm_ref_load(&half, RSSM_DTYPE_BF16, 0) == x);
    }
    chk_rng rng = chk_rng_make("rounding", 0);
    for (int32_t i = 0; i < 20000; i++) { /* against the compiler's conversion, subnormals included */
        const double x = ldexp(chk_uniform(&rng, -2.0, 2.0), chk_int(&rng, -152, 128));
        CHK(rssm_ref_round(x, RSSM_DTYPE_F32) == (double)(float)x);
        const float f = (float)x;
        CHK(rssm_ref_round((double)f, RSSM_DTYPE_BF16) == (double)rssm_f32_of_bf16(rssm_bf16_of_f32(f)));
    }
    CHK(isnan(rssm_ref_round((double)NAN, RSSM_DTYPE_F32)));
}

static void functions(void *arg) {
    (void)arg;
    CHK(rssm_ref_sigmoid(0.0) == 0.5);
    CHK(rssm_ref_sigmoid(-800.0) == 0.0 && rssm_ref_sigmoid(800.0) == 1.0);
    CHK(fabs(rssm_ref_softplus(0.0) - log(2.0)) < 1e-16);
    CHK(rssm_ref_softplus(800.0) == 800.0 && rssm_ref_softplus(-800.0) == 0.0);
    CHK(fabs(rssm_ref_softplus(-20.0) - exp(-20.0)) < 1e-17);
    CHK(rssm_ref_silu(-HUGE_VAL) == 0.0 && rssm_ref_silu(0.0) == 0.0);
    CHK(fabs(rssm_ref_silu(1.0) - 0.7310585786300049) < 1e-15);
    const double x[2] = {3.0, 4.0}, taps_in[3] = {1.0, 2.0, 3.0};
    const float taps[3] = {0.5f, -1.0f, 2.0f};
    CHK(fabs(rssm_ref_inverse_norm(2, x, 0.0) - 0.2) < 1e-16);
    CHK(rssm_ref_convolve(3, taps, 0.25, taps_in, false) == 4.75);
    CHK(rssm_ref_convolve(3, taps, 0.25, taps_in, true) == rssm_ref_silu(4.75));
}

/* The gate forms say the same thing in three ways. */
static void gate_forms(void *arg) {
    (void)arg;
    const float A_log[1] = {0.5f}, A[1] = {-(float)1.6487212707001282}, bias[1] = {0.25f};
    const rssm_layer_weights weights = {.A_log = A_log, .dt_bias = bias}, direct = {.A = A, .dt_bias = bias};
    rssm_layer_spec s = {.kind = RSSM_MAMBA2, .key_heads = 1, .value_heads = 1, .d_k = 2, .d_v = 1};
    s = rssm_ref_resolve(&s);
    double alpha[2], beta, other[2], other_beta, decay = 0.7;
    rssm_ref_gates(&s, &weights, 0, &decay, 0.0, alpha, &beta);
    const double dt = log1p(exp(0.95));
    CHK(fabs(beta - dt) < 1e-15 && fabs(alpha[1] - exp(-exp(0.5) * dt)) < 1e-15);
    rssm_ref_gates(&s, &direct, 0, &decay, 0.0, other, &other_beta);
    CHK(fabs(other[0] - alpha[0]) < 1e-7);
    s.gate = RSSM_GATE_DT;
    rssm_ref_gates(&s, &weights, 0, &dt, 0.0, other, &other_beta);
    CHK(other[0] == alpha[0] && other_beta == beta);
    s.gate = RSSM_GATE_LOG;
    const double log_alpha = log(alpha[0]);
    rssm_ref_gates(&s, &weights, 0, &log_alpha, 0.375, other, &other_beta);
    CHK(fabs(other[0] - alpha[0]) < 1e-15 && other_beta == 0.375);
    s.gate = RSSM_GATE_RAW;
    s.dt_min = 0.001f;
    s.dt_max = 0.1f;
    rssm_ref_gates(&s, &weights, 0, &decay, 0.0, other, &other_beta);
    CHK(other_beta == (double)0.1f);
    decay = -30.0;
    rssm_ref_gates(&s, &weights, 0, &decay, 0.0, other, &other_beta);
    CHK(other_beta == (double)0.001f);
    s = (rssm_layer_spec){
        .kind = RSSM_KDA, .key_heads = 1, .value_heads = 1, .d_k = 2, .d_v = 1, .beta_scale = 2.0f};
    s.gate_lower_bound = -5.0f;
    s = rssm_ref_resolve(&s);
    const float biases[2] = {0.25f, -0.5f};
    const double f[2] = {0.7, 1.0};
    const rssm_layer_weights bounded = {.A_log = A_log, .dt_bias = biases};
    rssm_ref_gates(&s, &bounded, 0, f, 0.0, alpha, &beta);
    CHK(fabs(alpha[0] - exp(-5.0 / (1.0 + exp(-exp(0.5) * 0.95)))) < 1e-15);
    CHK(fabs(alpha[1] - exp(-5.0 / (1.0 + exp(-exp(0.5) * 0.5)))) < 1e-15 && beta == 1.0);
}

static void out_norms(void *arg) {
    (void)arg;
    rssm_layer_spec s = {.kind = RSSM_GDN, .key_heads = 2, .value_heads = 2, .d_k = 1, .d_v = 2};
    s.out_norm = RSSM_OUT_NORM_GROUP;
    s.out_norm_groups = 1;
    s = rssm_ref_resolve(&s);
    const double z[4] = {1.0, -1.0, 0.5, 2.0}, y[4] = {3.0, -2.0, 1.0, 0.5};
    const float weight[4] = {1.0f, 2.0f, 0.5f, -1.0f};
    double u[4], expected[4], squares = 0.0;
    for (int32_t i = 0; i < 4; i++) {
        expected[i] = y[i] * rssm_ref_silu(z[i]);
        squares += expected[i] * expected[i];
    }
    for (int32_t i = 0; i < 4; i++) {
        expected[i] *= (double)weight[i] / sqrt(squares / 4.0 + (double)1e-6f);
    }
    memcpy(u, y, sizeof u);
    rssm_ref_out_norm(&s, weight, z, u, NULL);
    near_rows("group", 4, expected, u, 1e-15);
    for (int32_t form = RSSM_OUT_NORM_HEAD_SILU; form <= RSSM_OUT_NORM_HEAD_SIGMOID; form++) {
        s.out_norm = form;
        for (int32_t i = 0; i < 4; i++) {
            const double *head = y + i / 2 * 2;
            const double rms = sqrt((head[0] * head[0] + head[1] * head[1]) / 2.0 + (double)1e-6f);
            const double gate = form == RSSM_OUT_NORM_HEAD_SILU ? rssm_ref_silu(z[i]) : rssm_ref_sigmoid(z[i]);
            expected[i] = y[i] / rms * (double)weight[i % 2] * gate;
        }
        memcpy(u, y, sizeof u);
        rssm_ref_out_norm(&s, weight, z, u, NULL);
        near_rows("head", 4, expected, u, 1e-15);
    }
}

/* ---- The whole layer ------------------------------------------------------------------------------------ */

/* Convolution from the start of the sequence: taps over a window of raw values, zeros before the first. */
static double convolved(const cb_problem *p, const void *const *tokens, int32_t t, int64_t offset,
                        int64_t channel, const float *taps, const float *bias) {
    const int32_t width = p->full.conv_width, io = p->desc.io_dtype;
    if (width == 0) {
        return rssm_ref_load((const char *)tokens[t] + offset, io, channel);
    }
    double sum = bias ? (double)bias[channel] : 0.0;
    for (int32_t i = 0; i < width && i <= t; i++) {
        const double x = rssm_ref_load((const char *)tokens[t - i] + offset, io, channel);
        sum += (double)taps[channel * width + width - 1 - i] * x;
    }
    return rssm_ref_round(p->full.conv_linear ? sum : rssm_ref_silu(sum), io);
}

enum { LAYER_TOKENS = 9 };

/* y of one head at the last of n tokens, put together from the formulas by walking back from a zero state. */
static void head_by_walk(const cb_problem *p, const void *const *tokens, int32_t n, int32_t head, double *y) {
    const rssm_layer_spec *s = &p->full;
    const rssm_layer_weights *w = &p->weights[0];
    rssm_ref_record records[LAYER_TOKENS];
    const int32_t key =
        s->head_map == RSSM_HEAD_MAP_MODULO ? head % s->key_heads : head / (s->value_heads / s->key_heads);
    double *q = chk_alloc((size_t)s->d_k * sizeof *q), *scratch = chk_alloc((size_t)s->d_k * sizeof *q);
    double *zero = chk_alloc((size_t)s->d_k * (size_t)s->d_v * sizeof *zero), *last = NULL;
    for (int32_t t = 0; t < n; t++) {
        double *k = chk_alloc((size_t)s->d_k * sizeof *k), *v = chk_alloc((size_t)s->d_v * sizeof *v);
        double *alpha = chk_alloc((size_t)s->d_k * sizeof *alpha), *f = chk_alloc((size_t)s->d_k * sizeof *f),
               beta;
        for (int32_t i = 0; i < s->d_k; i++) {
            const int64_t channel = (int64_t)key * s->d_k + i;
            k[i] = convolved(p, tokens, t, p->k, channel, w->conv_k, w->conv_bias_k);
            q[i] = convolved(p, tokens, t, p->q, channel, w->conv_q, w->conv_bias_q);
        }
        for (int32_t i = 0; i < s->d_v; i++) {
            v[i] = convolved(p, tokens, t, p->v, (int64_t)head * s->d_v + i, w->conv_v, w->conv_bias_v);
        }
        const bool l2 = s->qk_norm == RSSM_QK_NORM_L2;
        const double nk = l2 ? rssm_ref_inverse_norm(s->d_k, k, (double)s->qk_norm_eps) : 1.0;
        const double nq = l2 ? rssm_ref_inverse_norm(s->d_k, q, (double)s->qk_norm_eps) : 1.0;
        for (int32_t i = 0; i < s->d_k; i++) {
            k[i] *= nk;
            q[i] *= nq * (double)s->q_scale;
        }
        for (int64_t i = 0; i < p->decay_count; i++) {
            f[i] = rssm_ref_load((const char *)tokens[t] + p->decay, p->gate_dtype, head * p->decay_count + i);
        }
        const double b =
            p->has_beta ? rssm_ref_load((const char *)tokens[t] + p->beta, p->gate_dtype, head) : 0.0;
        rssm_ref_gates(s, w, head, f, b, alpha, &beta);
        records[t] = (rssm_ref_record){k, v, alpha, beta};
        last = v;
    }
    rssm_ref_walk(s->d_k, s->d_v, s->kind != RSSM_MAMBA2, zero, n, records, NULL, q, y, scratch);
    for (int32_t i = 0; w->D && i < s->d_v; i++) {
        y[i] += (double)w->D[head] * last[i];
    }
}

static void layer_equals_formulas(void *arg) {
    (void)arg;
    for (int32_t problem = 0; problem < chk_repeat(240); problem++) {
        if (!chk_wants(problem)) {
            continue;
        }
        chk_rng rng = chk_rng_make("layer", (uint64_t)problem);
        const int32_t io = problem / 3 % 2 ? RSSM_DTYPE_BF16 : RSSM_DTYPE_F32;
        cb_problem *p = cb_problem_draw(&rng, RSSM_MAMBA2 + problem % 3, io, 1500);
        chk_params("problem=%d %s", problem, cb_problem_text(p));
        rssm_ref_layer *layer = rssm_ref_layer_create(&p->spec, &p->weights[0], io);
        rssm_ref_layer *saved = rssm_ref_layer_create(&p->spec, &p->weights[0], io);
        const size_t outputs = (size_t)p->full.value_heads * (size_t)p->full.d_v;
        double *y = chk_alloc(outputs * sizeof *y), *again = chk_alloc(outputs * sizeof *y);
        double *expected = chk_alloc(outputs * sizeof *y), *z = chk_alloc(outputs * sizeof *y);
        const void *tokens[LAYER_TOKENS];
        for (int32_t t = 0; t < LAYER_TOKENS; t++) {
            void *token = chk_alloc((size_t)p->token_bytes);
            cb_token_draw(p, &rng, token);
            cb_token_settle(p, layer, &rng, token);
            tokens[t] = token;
            const rssm_layer_inputs in = cb_token_inputs(p, token);
            rssm_ref_layer_copy(saved, layer);
            rssm_ref_layer_token(layer, &in, 0, y, NULL);
            rssm_ref_layer_token(saved, &in, 0, again, NULL); /* a copy goes on like the original */
            near_rows("copy", (int32_t)outputs, y, again, 0.0);
        }
        for (int32_t head = 0; head < p->full.value_heads; head++) {
            head_by_walk(p, tokens, LAYER_TOKENS, head, expected + head * p->full.d_v);
        }
        for (size_t i = 0; p->has_z && i < outputs; i++) {
            z[i] = rssm_ref_load((const char *)tokens[LAYER_TOKENS - 1] + p->z, io, (int64_t)i);
        }
        rssm_ref_out_norm(&p->full, p->weights[0].out_norm, z, expected, NULL);
        near_rows("layer", (int32_t)outputs, expected, y, 1e-9);
        rssm_ref_layer_destroy(layer);
        rssm_ref_layer_destroy(saved);
        chk_release();
    }
}

int main(int argc, char **argv) {
    chk_start(argc, argv);
    chk_case("ref_rounding", rounding, NULL);
    chk_case("ref_functions", functions, NULL);
    chk_case("ref_gate_forms", gate_forms, NULL);
    chk_case("ref_out_norms", out_norms, NULL);
    chk_case("ref_update_equals_matrices", update_equals_matrices, NULL);
    chk_case("ref_delta_rule_holds", delta_rule_holds, NULL);
    chk_case("ref_extremes", extremes, NULL);
    chk_case("ref_walk_equals_recurrence", walk_equals_recurrence, NULL);
    chk_case("ref_tree_walk_equals_paths", tree_walk_equals_paths, NULL);
    chk_case("ref_layer_equals_formulas", layer_equals_formulas, NULL);
    return chk_finish();
}
