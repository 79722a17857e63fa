/* SPDX-License-Identifier: Apache-2.0 */
/* Group (a) of the field log: wrong numbers, NaN, overflow. */
#include "fieldlog/field.h"

#include <math.h>
#include <string.h>

/* A prompt one token past a checkpoint goes through another kernel shape. */
static void A02_one_token_tail(uint64_t isa) {
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        const rssm_layer_spec spec = fl_spec(shape);
        fl *f = fl_open(isa, &spec, &(rssm_cache_desc){0});
        double *hit = fl_outputs(f, 64), *cold = fl_outputs(f, 200);
        const int32_t saved = fl_slot(f, 0), fresh = fl_slot(f, 1), work = fl_slot(f, 2);
        fl_reset(f, saved, 1);
        for (int32_t n = 1; n <= 200; n += n % 64 < 2 || n % 64 > 61 ? 1 : 5 * fl_stride()) {
            const int32_t tail = (n - 1) % 64 + 1, head = n - tail;
            while (fl_info(f, saved).position < head) {
                fl_prefill(f, saved, 7, fl_info(f, saved).position, 64, NULL);
            }
            cb_ok(f->box, rssm_cache_copy(f->box->cache, 1, &saved, &work, NULL, NULL), "copy");
            fl_reset(f, fresh, 1);
            fl_prefill(f, work, 7, head, tail, hit);
            fl_prefill(f, fresh, 7, 0, n, cold);
            chk_params("shape %d, %d tokens", shape, n);
            fl_near("a hit against a cold prompt", f->outs, hit + (tail - 1) * f->outs,
                    cold + (n - 1) * f->outs, 1e-5);
        }
        chk_release();
    }
}

/* B and C of group g are the constant g + 1. */
static void constant_groups(fl *f, int32_t layer, uint64_t stream, int64_t index, void *token) {
    (void)layer, (void)stream, (void)index;
    const int32_t n = f->p->spec.d_k;
    for (int32_t i = 0; i < f->p->spec.key_heads * n; i++) {
        fl_put(f, token, f->p->q, i, i / n + 1);
        fl_put(f, token, f->p->k, i, i / n + 1);
    }
}

static void A03_groups_in_blocks(uint64_t isa) {
    static const int32_t groups[] = {1, 2, 4, 8};
    for (int32_t i = 0; i < 4; i++) {
        rssm_layer_spec spec = fl_spec(FL_MAMBA2);
        spec.key_heads = groups[i];
        spec.conv_width = 0;
        fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.step_tokens = 4});
        fl_ref ref = fl_ref_make(f);
        double *y = fl_outputs(f, 20), *exact = fl_outputs(f, 20);
        f->edit = constant_groups;
        fl_reset(f, fl_slot(f, 0), 1);
        chk_params("%d groups", groups[i]);
        fl_prefill(f, fl_slot(f, 0), 1, 0, 20, y);
        fl_ref_run(f, &ref, 1, 0, 20, exact);
        fl_near("prompt", 20 * f->outs, y, exact, 1e-5);
        for (int32_t n = 20; n < 60; n += 4) {
            fl_step(f, fl_slot(f, 0), 4, 1, n, 4, y);
            fl_ref_run(f, &ref, 1, n, 4, exact);
            fl_near("step", 4 * f->outs, y, exact, 1e-5);
        }
        chk_release();
    }
}

/* The second of the groups that heads fall into has values a hundred times the others'. */
static void one_loud_group(fl *f, int32_t layer, uint64_t stream, int64_t index, void *token) {
    (void)layer, (void)stream, (void)index;
    const int32_t all = f->p->spec.value_heads * f->p->spec.d_v, groups = *(const int32_t *)f->arg;
    for (int32_t i = 0; i < all; i++) {
        fl_put(f, token, f->p->v, i, (i / (all / groups) == 1 ? 100 : 1) * sin(1.0 + i + (double)index));
    }
}

static void A04_norm_per_group(uint64_t isa) {
    static const int32_t counts[] = {1, 2, 4};
    for (int32_t i = 0; i < 3; i++) {
        int32_t groups = counts[i];
        rssm_layer_spec spec = fl_spec(FL_MAMBA2), plain = spec;
        spec.out_norm = RSSM_OUT_NORM_GROUP;
        spec.out_norm_groups = groups;
        fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.step_tokens = 4});
        plain.out_norm = RSSM_OUT_NORM_NONE;
        fl *bare = fl_open_with(isa, &plain, &(rssm_cache_desc){.step_tokens = 4}, 0, 1, f->p->weights);
        double *y = fl_outputs(f, 4), *raw = fl_outputs(f, 4);
        f->edit = bare->edit = one_loud_group;
        f->arg = bare->arg = &groups;
        fl_reset(f, fl_slot(f, 0), 1);
        fl_reset(bare, fl_slot(bare, 0), 1);
        fl_step(f, fl_slot(f, 0), 0, 1, 0, 4, y);
        fl_step(bare, fl_slot(bare, 0), 0, 1, 0, 4, raw);
        const int32_t n = f->outs / groups;
        for (int32_t t = 0; t < 4; t++) { /* by hand: gate, then the norm over each group, then the weight */
            const float *z = (const float *)(const void *)((const char *)fl_token(f, 0, 1, t) + f->p->z);
            const float *w = f->p->weights[0].out_norm;
            for (int32_t first = 0; first < f->outs; first += n) {
                double *u = raw + t * f->outs + first, sum = 0;
                for (int32_t c = 0; c < n; c++) {
                    u[c] *= (double)z[first + c] / (1 + exp(-(double)z[first + c]));
                    sum += u[c] * u[c];
                }
                for (int32_t c = 0; c < n; c++) {
                    u[c] *= (w != NULL ? (double)w[first + c] : 1) / sqrt(sum / n + 1e-6);
                }
                chk_params("%d groups, token %d, group %d", groups, t, first / n);
                fl_near("group norm", n, y + t * f->outs + first, u, 1e-5);
            }
        }
        chk_release();
    }
}

/* Key, value and query are 1, so that a token from zero leaves dt itself; decay is its raw form. */
static void ones(fl *f, int32_t layer, uint64_t stream, int64_t index, void *token) {
    (void)layer, (void)stream, (void)index;
    const rssm_layer_spec *s = &f->p->spec;
    fl_fill(f, token, f->p->q, s->key_heads * s->d_k, 1);
    fl_fill(f, token, f->p->k, s->key_heads * s->d_k, 1);
    fl_fill(f, token, f->p->v, s->value_heads * s->d_v, 1);
    fl_fill(f, token, f->p->decay, s->value_heads, *(const double *)f->arg);
}

static void A05_dt_limits(uint64_t isa) {
    static const float A_log[8] = {0};
    static const struct {
        float min, max;
        double raw, dt;
    } cases[] = {{0, INFINITY, -11.5129204, 1e-5}, /* time_step_limit (0, inf): no clamp */
                 {0, 0.05f, 0.541324854, 0.05},    /* softplus 1 */
                 {0, 0, -11.5129204, 1e-5},        /* no limit given: none invented */
                 {0, 0, 5.0, 5.00671535},
                 {0.001f, 0.1f, -11.5129204, 0.001}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rssm_layer_spec spec = fl_spec(FL_MAMBA2);
        double raw = cases[i].raw;
        const rssm_layer_weights w = {.struct_size = sizeof w, .A_log = A_log};
        spec.conv_width = 0;
        spec.dt_min = cases[i].min;
        spec.dt_max = cases[i].max;
        fl *f = fl_open_with(isa, &spec, &(rssm_cache_desc){0}, 0, 1, &w);
        double *state = chk_alloc((size_t)f->elements * sizeof *state);
        f->edit = ones;
        f->arg = &raw;
        for (int32_t prefill = 0; prefill < 2; prefill++) {
            fl_reset(f, fl_slot(f, 0), 1);
            fl_go(f, &(fl_row){.slot = fl_slot(f, 0), .tokens = 1, .prefill = prefill == 1}, 1);
            fl_commit(f, fl_slot(f, 0), 1);
            fl_state(f, fl_slot(f, 0), 0, state);
            chk_params("limits %g %g, raw %g, prefill %d", (double)cases[i].min, (double)cases[i].max, raw,
                       prefill);
            for (int64_t e = 0; e < f->elements; e++) {
                fl_near("dt", 1, &state[e], &cases[i].dt, 1e-5);
            }
        }
        chk_release();
    }
}

static void wild_gates(fl *f, int32_t layer, uint64_t stream, int64_t index, void *token) {
    static const double gates[] = {0, -0.01, -8, -1000};
    chk_rng rng = {stream * 1000003u + (uint64_t)index * 31u + (uint64_t)layer};
    for (int32_t i = 0; i < f->p->spec.value_heads * f->p->spec.d_k; i++) {
        fl_put(f, token, f->p->decay, i, gates[chk_int(&rng, 0, 3)]);
    }
}

/* A cumulative gate over a tile leaves the range of exp: windows 1..16 on a full buffer, and a prompt. */
static void A07_kda_gates_beyond_exp(uint64_t isa) {
    for (int32_t tokens = 1; tokens <= 16; tokens++) {
        rssm_layer_spec spec = fl_spec(FL_KDA);
        spec.gate = RSSM_GATE_LOG;
        fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.step_tokens = 16});
        fl_ref ref = fl_ref_make(f);
        double *y = fl_outputs(f, 90), *exact = fl_outputs(f, 90);
        const int32_t s = fl_slot(f, 0);
        f->edit = wild_gates;
        fl_reset(f, s, 0);
        chk_params("%d tokens", tokens);
        fl_prefill(f, s, 3, 0, 74 + tokens, y);
        fl_ref_run(f, &ref, 3, 0, 74 + tokens, exact);
        fl_near("prompt", (74 + tokens) * f->outs, y, exact, 1e-5);
        int64_t n = 74 + tokens;
        while (n % 16 != 15) { /* fill the buffer */
            fl_step(f, s, 1, 3, n, 1, y);
            fl_ref_run(f, &ref, 3, n++, 1, exact);
            fl_near("step", f->outs, y, exact, 1e-5);
        }
        fl_step(f, s, 1, 3, n, tokens, y);
        fl_ref_run(f, &ref, 3, n, tokens, exact);
        fl_near("window", tokens * f->outs, y, exact, 1e-5);
        fl_commit(f, s, tokens);
        fl_states_near(f, "state", s, &ref, 1e-5);
        chk_release();
    }
}

/* Stream 1: all 0; stream 2: half of the tokens forget everything. beta is 1/2, given ready or raw. */
static void gate_of_stream(fl *f, int32_t layer, uint64_t stream, int64_t index, void *token) {
    const int32_t heads = f->p->spec.value_heads;
    const bool ready = f->p->spec.gate == RSSM_GATE_LOG;
    (void)layer;
    fl_fill(f, token, f->p->beta, heads, ready ? 0.5 : 0.0);
    for (int32_t h = 0; h < heads; h++) {
        const bool forget = stream == 2 && (index * 7 + h) % 4 < 2;
        fl_put(f, token, f->p->decay, h, !ready ? 3.0 : forget ? -(double)INFINITY : 0.0);
    }
}

static void against_zero_gates(fl *f, uint64_t stream) {
    fl_ref ref = fl_ref_make(f);
    double *y = fl_outputs(f, 40), *exact = fl_outputs(f, 40);
    fl_reset(f, fl_slot(f, 0), 0);
    chk_params("stream %d", (int)stream);
    fl_prefill(f, fl_slot(f, 0), stream, 0, 40, y);
    fl_ref_run(f, &ref, stream, 0, 40, exact);
    fl_near("prompt", 40 * f->outs, y, exact, 1e-6);
    for (int64_t n = 40; n < 120; n += 8) {
        fl_step(f, fl_slot(f, 0), 8, stream, n, 8, y);
        fl_ref_run(f, &ref, stream, n, 8, exact);
        fl_near("window", 8 * f->outs, y, exact, 1e-6);
    }
}

/* A gate of exactly 0 is no gate: the bits of a layer whose A is 0, and the ungated rule to rounding. */
static void A08_gate_exactly_zero(uint64_t isa) {
    static const float zero[4] = {0};
    rssm_layer_spec spec = fl_spec(FL_GDN), ungated = spec;
    const rssm_cache_desc desc = {.step_tokens = 8};
    spec.gate = RSSM_GATE_LOG;
    spec.conv_width = ungated.conv_width = 0;
    const rssm_layer_weights w = {.struct_size = sizeof w}, none = {.struct_size = sizeof none, .A = zero};
    fl *f = fl_open_with(isa, &spec, &desc, 0, 1, &w), *u = fl_open_with(isa, &ungated, &desc, 0, 1, &none);
    fl *pair[2] = {f, u};
    double *state[2];
    f->edit = u->edit = gate_of_stream;
    against_zero_gates(f, 1);
    against_zero_gates(f, 2);
    for (int32_t i = 0; i < 2; i++) {
        const int32_t s = fl_slot(pair[i], 1);
        fl_reset(pair[i], s, 0);
        for (int32_t n = 0; n < 50; n++) {
            fl_step(pair[i], s, 1, 1, n, 1, NULL);
        }
        state[i] = chk_alloc((size_t)f->elements * sizeof(double));
        fl_state(pair[i], s, 0, state[i]);
    }
    CHK(memcmp(state[0], state[1], (size_t)f->elements * sizeof(double)) == 0);
}

/* Keys of norm 4 with beta near 1, unnormalised: agreement, or a refusal; never silent NaN. */
static void long_keys(fl *f, int32_t layer, uint64_t stream, int64_t index, void *token) {
    const rssm_layer_spec *s = &f->p->spec;
    chk_rng rng = {stream * 77u + (uint64_t)index * 131u + (uint64_t)layer};
    for (int32_t g = 0; g < s->key_heads; g++) {
        double k[16], sum = 0;
        for (int32_t c = 0; c < 16; c++) {
            k[c] = chk_normal(&rng);
            sum += k[c] * k[c];
        }
        for (int32_t c = 0; c < 16; c++) {
            fl_put(f, token, f->p->k, g * 16 + c, 4 * k[c] / sqrt(sum));
        }
    }
    fl_fill(f, token, f->p->beta, s->value_heads, 0.99);
}

static void A09_long_keys(uint64_t isa) {
    for (int32_t shape = FL_GDN; shape <= FL_KDA; shape++) {
        rssm_layer_spec spec = fl_spec(shape);
        spec.conv_width = 0;
        spec.qk_norm = RSSM_QK_NORM_NONE;
        spec.gate = RSSM_GATE_LOG;
        const rssm_layer_weights w = {.struct_size = sizeof w};
        fl *f = fl_open_with(isa, &spec, &(rssm_cache_desc){.step_tokens = 16}, 0, 1, &w);
        fl_ref ref = fl_ref_make(f);
        double *y = fl_outputs(f, 16), *exact = fl_outputs(f, 16);
        f->edit = long_keys;
        for (uint64_t stream = 0; stream < 20; stream++) {
            fl_ref start = fl_ref_make(f);
            fl_ref_copy(f, &ref, &start);
            fl_ref_run(f, &ref, stream, 0, 16, exact);
            chk_params("shape %d stream %d", shape, (int)stream);
            fl_reset(f, fl_slot(f, 0), 0);
            fl_step(f, fl_slot(f, 0), 0, stream, 0, 16, y);
            fl_near("window", 16 * f->outs, y, exact, 1e-3);
            fl_commit(f, fl_slot(f, 0), 16);
            fl_states_near(f, "state of the window", fl_slot(f, 0), &ref, 1e-3);
            fl_reset(f, fl_slot(f, 1), 0);
            fl_prefill(f, fl_slot(f, 1), stream, 0, 16, y);
            fl_near("prompt", 16 * f->outs, y, exact, 1e-3);
            fl_states_near(f, "state of the prompt", fl_slot(f, 1), &ref, 1e-3);
        }
        chk_release();
    }
}

/* 40 tokens in every split: prompt and prompt, prompt and single steps, prompt and windows. */
static void A11_split_anywhere(uint64_t isa) {
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        const rssm_layer_spec spec = fl_spec(shape);
        fl *f = fl_open(isa, &spec, &(rssm_cache_desc){.step_tokens = 5});
        fl_ref ref = fl_ref_make(f);
        double *exact = fl_outputs(f, 40), *y = fl_outputs(f, 40);
        fl_ref_run(f, &ref, 4, 0, 40, exact);
        for (int32_t i = 1; i < 40; i += fl_stride()) {
            for (int32_t way = 0; way < 3; way++) {
                const int32_t s = fl_slot(f, way);
                int32_t last = 0;
                chk_params("shape %d split at %d way %d", shape, i, way);
                fl_reset(f, s, (uint64_t)i);
                fl_prefill(f, s, 4, 0, i, y);
                if (way == 0) {
                    fl_prefill(f, s, 4, i, 40 - i, y + i * f->outs);
                }
                for (int32_t n = i, t = way == 1 ? 1 : 5; way > 0 && n < 40; n += last) {
                    const int32_t tokens = t < 40 - n ? t : 40 - n;
                    fl_step(f, s, last, 4, n, tokens, y + n * f->outs);
                    last = tokens;
                }
                fl_commit(f, s, last);
                fl_near("outputs", 40 * f->outs, y, exact, 1e-5);
                fl_states_near(f, "state", s, &ref, 1e-5);
            }
        }
        chk_release();
    }
}

/* A packed batch of prompts of unequal length, each with a start state: bit for bit what each gives alone. */
static void packed_prompts(uint64_t isa, const int32_t *lengths, int32_t n, int32_t threads) {
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        const rssm_layer_spec spec = fl_spec(shape);
        fl *f = fl_open_with(isa, &spec, &(rssm_cache_desc){.slots = 40}, 0, threads, NULL),
           *solo = fl_twin(f, 0, 1);
        fl_row rows[FL_ROWS];
        for (int32_t i = 0; i < n; i++) {
            const int32_t a = fl_slot(f, i), b = fl_slot(solo, n - 1 - i);
            fl_reset(f, a, 1);
            fl_reset(solo, b, 1);
            fl_prefill(f, a, 50 + (uint64_t)i, 0, 9, NULL);
            fl_prefill(solo, b, 50 + (uint64_t)i, 0, 9, NULL);
            rows[i] = (fl_row){.slot = a,
                               .tokens = lengths[i],
                               .prefill = true,
                               .stream = 50 + (uint64_t)i,
                               .from = 9,
                               .y = fl_outputs(f, lengths[i])};
        }
        fl_go(f, rows, n);
        for (int32_t i = 0; i < n; i++) {
            double *y = fl_outputs(f, lengths[i]);
            int64_t bytes;
            fl_commit(f, rows[i].slot, lengths[i]);
            fl_prefill(solo, fl_slot(solo, n - 1 - i), 50 + (uint64_t)i, 9, lengths[i], y);
            chk_params("shape %d, prompt %d of %d tokens", shape, i, lengths[i]);
            CHK(memcmp(y, rows[i].y, (size_t)(lengths[i] * f->outs) * sizeof *y) == 0);
            const void *file = fl_export(solo, fl_slot(solo, n - 1 - i), 0, &bytes);
            fl_unchanged(f, "packed against alone", rows[i].slot, file, bytes);
            if (i == 1) {
                fl_ref ref = fl_ref_make(f);
                fl_ref_run(f, &ref, 51, 0, 9 + lengths[i], NULL);
                fl_states_near(f, "packed against the reference", rows[i].slot, &ref, 1e-5);
            }
        }
        chk_release();
    }
}

static void A12_packed_prompts(uint64_t isa) {
    static const int32_t lengths[] = {1, 63, 64, 65, 130, 7};
    packed_prompts(isa, lengths, 6, 1);
    packed_prompts(isa, lengths, 6, 3);
    for (int32_t i = 0; i < 6; i++) {
        packed_prompts(isa, &lengths[i], 1, 1);
    }
}

static void A13_chunk_sizes(uint64_t isa) {
    static const int32_t pieces[] = {1024, 1, 7, 16, 64, 100};
    const int32_t total = 1024 / fl_stride();
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        const rssm_layer_spec spec = fl_spec(shape);
        fl *f = fl_open(isa, &spec, &(rssm_cache_desc){0});
        double *y = fl_outputs(f, total), *last[6], *state[6];
        for (int32_t i = 0; i < 6; i++) {
            const int32_t s = fl_slot(f, i);
            fl_reset(f, s, 2);
            for (int32_t n = 0; n < total; n += pieces[i]) {
                const int32_t tokens = pieces[i] < total - n ? pieces[i] : total - n;
                fl_prefill(f, s, 6, n, tokens, y + n * f->outs);
            }
            last[i] = chk_alloc((size_t)f->outs * sizeof *y);
            memcpy(last[i], y + (total - 1) * f->outs, (size_t)f->outs * sizeof *y);
            state[i] = chk_alloc((size_t)f->elements * sizeof *y);
            fl_state(f, s, 0, state[i]);
            for (int32_t k = 0; k < i; k++) {
                chk_params("shape %d pieces of %d and of %d", shape, pieces[i], pieces[k]);
                fl_near("last output", f->outs, last[i], last[k], 1e-5);
                fl_near("state", f->elements, state[i], state[k], 1e-5);
            }
        }
        chk_release();
    }
}

/* Strided views of one packed buffer with poisoned gaps (a feed's layout is drawn anew for each step), thread
   counts 1, 2 and 3 (one dispatch of parts), and the portable code: all agree. */
static void A14_strides_and_paths(uint64_t isa) {
    for (int32_t shape = 0; shape < FL_KINDS; shape++) {
        const rssm_layer_spec spec = fl_spec(shape);
        fl *paths[4];
        double *first = NULL;
        for (int32_t i = 0; i < 4; i++) {
            paths[i] = i == 0 ? fl_open(RSSM_ISA_NONE, &spec, &(rssm_cache_desc){.step_tokens = 4})
                              : fl_open_with(isa, &spec, &(rssm_cache_desc){.step_tokens = 4}, 0, i, NULL);
            fl *f = paths[i];
            double *y = fl_outputs(f, 60);
            fl_reset(f, fl_slot(f, 0), 3);
            chk_u64(&f->rng); /* another layout of the inputs for each */
            for (int32_t k = 0; k < i; k++) {
                chk_u64(&f->rng);
            }
            fl_prefill(f, fl_slot(f, 0), 8, 0, 20, y);
            for (int32_t n = 20; n < 60; n += 4) {
                fl_step(f, fl_slot(f, 0), 4, 8, n, 4, y + n * f->outs);
            }
            chk_params("shape %d path %d", shape, i);
            first = first == NULL ? y : first;
            fl_near("paths", 60 * f->outs, y, first, 1e-6);
        }
        chk_release();
    }
}

const fl_test fl_group_a[] = {{"A02_one_token_tail", A02_one_token_tail},
                              {"A03_groups_in_blocks", A03_groups_in_blocks},
                              {"A04_norm_per_group", A04_norm_per_group},
                              {"A05_dt_limits", A05_dt_limits},
                              {"A07_kda_gates_beyond_exp", A07_kda_gates_beyond_exp},
                              {"A08_gate_exactly_zero", A08_gate_exactly_zero},
                              {"A09_long_keys", A09_long_keys},
                              {"A11_split_anywhere", A11_split_anywhere},
                              {"A12_packed_prompts", A12_packed_prompts},
                              {"A13_chunk_sizes", A13_chunk_sizes},
                              {"A14_strides_and_paths", A14_strides_and_paths},
                              {NULL, NULL}};
