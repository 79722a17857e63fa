/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The chunked scan of every instruction set against the recurrence in double, on random problems of awkward
 * shapes. The measure is the plain recurrence in float, token by token: the scan may have three times its
 * error, plus 4 ULP. Buffers end at (and begin behind) pages that cannot be touched; scratch, outputs and the
 * padding that a scan must not use hold NaN. A failure prints the seed and the problem.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include <replayssm/base.h>

#include "cpu/scan.h"

enum { HEADS_MAX = 4, TOKENS_MAX = 160, SEED = 20260 };

/* ---- Random numbers, guarded memory ---- */

static uint64_t random_state;

static uint32_t random_bits(void) {
    random_state += 0x9e3779b97f4a7c15u;
    uint64_t z = random_state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) >> 32);
}
static float uniform(float low, float high) {
    return low + (high - low) * (float)(random_bits() >> 8) * 0x1p-24f;
}
static int32_t pick(int32_t n) {
    return (int32_t)(random_bits() % (uint32_t)n);
}

/* Ends at an untouchable page; what lies between the page before it and its begin is checked when it is freed.
 */
typedef struct guarded {
    float *at;
    unsigned char *map;
    size_t length, slack;
} guarded;

static guarded guarded_new(size_t n) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = n * sizeof(float);
    size_t inner = (bytes + page - 1) / page * page;
    guarded g = {.length = inner + 2 * page, .slack = inner - bytes};
    g.map = mmap(NULL, g.length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g.map != MAP_FAILED);
    assert_int_equal(mprotect(g.map, page, PROT_NONE), 0);
    assert_int_equal(mprotect(g.map + page + inner, page, PROT_NONE), 0);
    memset(g.map + page, 0xa5, g.slack);
    g.at = (float *)(void *)(g.map + page + g.slack);
    for (size_t i = 0; i < n; i++) {
        g.at[i] = NAN;
    }
    return g;
}
static void guarded_free(guarded *g) {
    const unsigned char *canary = g->map + (size_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < g->slack; i++) {
        assert_int_equal(canary[i], 0xa5);
    }
    munmap(g->map, g->length);
}

/* ---- Problems ---- */

typedef enum regime {
    REGIME_ONE,       /* no decay */
    REGIME_SLOW,      /* 0.9 to 1 */
    REGIME_UNIFORM,   /* 0 to 1 */
    REGIME_MIXED,     /* 1, 0.99, e^-8 and 0 */
    REGIME_UNDERFLOW, /* products of a few leave the range of a float */
    REGIME_ZERO,
    REGIMES
} regime;

typedef struct problem {
    int32_t d_k, d_v, tokens, heads, delta, vector_decay;
    regime decay;
    float key_norm, beta_low, beta_high;
    guarded k, q, state[HEADS_MAX], v[HEADS_MAX], alpha[HEADS_MAX], beta[HEADS_MAX];
} problem;

typedef struct result {
    guarded state[HEADS_MAX], y[HEADS_MAX];
} result;

static float random_alpha(regime decay) {
    static const float mixed[] = {1.0f, 0.99f, 3.3546263e-4f, 0.0f};
    switch (decay) {
    case REGIME_ONE:
        return 1.0f;
    case REGIME_SLOW:
        return uniform(0.9f, 1.0f);
    case REGIME_UNIFORM:
        return uniform(0.0f, 1.0f);
    case REGIME_MIXED:
        return mixed[pick(4)];
    case REGIME_UNDERFLOW:
        return ldexpf(1.0f, -pick(100));
    default:
        return 0.0f;
    }
}

static void fill_rows(guarded *g, int32_t rows, int32_t n, float padding, float norm) {
    int32_t row = rssm_padded(n);
    *g = guarded_new((size_t)rows * (size_t)row);
    for (int32_t t = 0; t < rows; t++) {
        float *x = g->at + (ptrdiff_t)t * row;
        double square = 0;
        for (int32_t c = 0; c < row; c++) {
            x[c] = c < n ? uniform(-1, 1) : padding;
            square += c < n ? (double)x[c] * (double)x[c] : 0;
        }
        for (int32_t c = 0; c < n && norm > 0; c++) {
            x[c] *= (float)((double)norm / sqrt(square + 1e-12));
        }
    }
}

static void problem_fill(problem *p) {
    fill_rows(&p->k, p->tokens, p->d_k, 0.0f, p->key_norm);
    fill_rows(&p->q, p->tokens, p->d_k, 0.0f, 1.0f);
    for (int32_t h = 0; h < p->heads; h++) {
        p->state[h] = guarded_new((size_t)(p->d_k * p->d_v));
        for (int32_t i = 0; i < p->d_k * p->d_v; i++) {
            p->state[h].at[i] = uniform(-1, 1);
        }
        fill_rows(&p->v[h], p->tokens, p->d_v, NAN, 0.0f);
        int32_t row = p->vector_decay ? rssm_padded(p->d_k) : 1;
        p->alpha[h] = guarded_new((size_t)(p->tokens * row));
        for (int32_t i = 0; i < p->tokens * row; i++) {
            p->alpha[h].at[i] = !p->vector_decay || i % row < p->d_k ? random_alpha(p->decay) : NAN;
        }
        p->beta[h] = guarded_new((size_t)p->tokens);
        for (int32_t t = 0; t < p->tokens; t++) {
            p->beta[h].at[t] = uniform(p->beta_low, p->beta_high);
        }
    }
}

static problem problem_random(void) {
    static const int32_t dims[] = {1, 2, 7, 13, 16, 17, 24, 31, 48, 64, 80, 97, 128, 200};
    int32_t kind = pick(3);
    problem p = {.d_k = dims[pick(14)], .d_v = dims[pick(14)], .tokens = 1 + pick(64), .heads = 1 + pick(3)};
    p.delta = kind > 0;
    p.vector_decay =
        kind == 2 || pick(8) == 0; /* no layer decays a vector without the delta rule; the scan may */
    p.decay = (regime)pick(REGIMES);
    p.key_norm = 1.0f;
    p.beta_high = pick(4) ? 1.0f : 2.0f;
    problem_fill(&p);
    return p;
}

static void problem_free(problem *p) {
    guarded_free(&p->k);
    guarded_free(&p->q);
    for (int32_t h = 0; h < p->heads; h++) {
        guarded_free(&p->state[h]);
        guarded_free(&p->v[h]);
        guarded_free(&p->alpha[h]);
        guarded_free(&p->beta[h]);
    }
}
static void result_free(const problem *p, result *r) {
    for (int32_t h = 0; h < p->heads; h++) {
        guarded_free(&r->state[h]);
        guarded_free(&r->y[h]);
    }
}

static void describe(const problem *p, const char *variant) {
    print_message("%s: d_k %d d_v %d tokens %d heads %d delta %d vector %d regime %d key norm %g beta %g..%g\n",
                  variant, p->d_k, p->d_v, p->tokens, p->heads, p->delta, p->vector_decay, p->decay,
                  (double)p->key_norm, (double)p->beta_low, (double)p->beta_high);
}

/* ---- Running the scan ---- */

typedef struct variant {
    const char *name;
    rssm_scan_fn *scan;
} variant;

/* Those of this build that this machine can run. */
static int32_t variants(variant out[3]) {
    int32_t n = 0;
#define RSSM_CPU(isa, needs)                                                                                   \
    if ((rssm_isa_available() & (needs)) == (needs)) {                                                         \
        out[n++] = (variant){#isa, rssm_scan_##isa};                                                           \
    }
#include "kernels.def"
    return n;
}

/* Tokens [first, first + n) of the problem, from and to r->state. */
static void scan_piece(const problem *p, result *r, rssm_scan_fn *scan, int32_t first, int32_t n) {
    float *state[HEADS_MAX], *y[HEADS_MAX];
    const float *v[HEADS_MAX], *alpha[HEADS_MAX], *beta[HEADS_MAX];
    ptrdiff_t row_k = rssm_padded(p->d_k), row_v = rssm_padded(p->d_v);
    /* copies, so that the guards stand right behind the last token of the call */
    guarded copies[2 + 4 * HEADS_MAX];
    int32_t used = 0;
#define COPY_(source, rows, width)                                                                             \
    (copies[used] = guarded_new((size_t)(rows) * (size_t)(width)),                                             \
     memcpy(copies[used].at, (source), (size_t)(rows) * (size_t)(width) * sizeof(float)), copies[used++].at)
    rssm_scan s = {.d_k = p->d_k, .d_v = p->d_v, .tokens = n, .heads = p->heads};
    s.delta = p->delta, s.vector_decay = p->vector_decay;
    s.k = COPY_(p->k.at + first * row_k, n, row_k);
    s.q = COPY_(p->q.at + first * row_k, n, row_k);
    ptrdiff_t row_alpha = p->vector_decay ? row_k : 1;
    for (int32_t h = 0; h < p->heads; h++) {
        v[h] = COPY_(p->v[h].at + first * row_v, n, row_v);
        alpha[h] = COPY_(p->alpha[h].at + first * row_alpha, n, row_alpha);
        beta[h] = COPY_(p->beta[h].at + first, n, 1);
        y[h] = COPY_(r->y[h].at + first * row_v, n, row_v);
        state[h] = r->state[h].at;
    }
#undef COPY_
    size_t floats = rssm_scan_scratch(p->d_k, p->d_v, p->delta, p->vector_decay);
    assert_int_equal(floats % 16, 0);
    guarded scratch = guarded_new(floats);
    s.state = state, s.v = v, s.alpha = alpha, s.beta = beta, s.y = y, s.scratch = scratch.at;
    scan(&s);
    for (int32_t h = 0; h < p->heads; h++) {
        memcpy(r->y[h].at + first * row_v, y[h], (size_t)(n * row_v) * sizeof(float));
    }
    guarded_free(&scratch);
    for (int32_t i = 0; i < used; i++) {
        guarded_free(&copies[i]);
    }
}

/* In calls of 1..most tokens each (`most` for all when it is negative). */
static result scan_cut(const problem *p, rssm_scan_fn *scan, int32_t most) {
    result r = {0};
    for (int32_t h = 0; h < p->heads; h++) {
        r.state[h] = guarded_new((size_t)(p->d_k * p->d_v));
        memcpy(r.state[h].at, p->state[h].at, (size_t)(p->d_k * p->d_v) * sizeof(float));
        r.y[h] = guarded_new((size_t)(p->tokens * rssm_padded(p->d_v)));
    }
    for (int32_t t = 0; t < p->tokens;) {
        int32_t n = most < 0 ? -most : 1 + pick(most);
        n = n < p->tokens - t ? n : p->tokens - t;
        scan_piece(p, &r, scan, t, n);
        t += n;
    }
    return r;
}

/* ---- The recurrence ---- */

/* The largest errors of one result, relative to the magnitude of the terms that the value is a sum of. */
typedef struct errors {
    double y, state;
} errors;

static void worse(double *worst, double error, double magnitude) {
    double relative = error / (magnitude > 1e-30 ? magnitude : 1e-30);
    if (!(relative <= *worst)) { /* NaN is the worst */
        *worst = relative;
    }
}

/* One row of a state, in double and in float, and the magnitude of what each element was made of: a sum of
   terms that cancel is no more exact than the terms, until they have decayed. */
typedef struct row_state {
    double s[256], magnitude[256], y, y_magnitude;
    float f[256], y_f;
} row_state;

static void recur(const problem *p, int32_t h, int32_t t, int32_t i, row_state *r) {
    ptrdiff_t row_k = rssm_padded(p->d_k);
    const float *k = p->k.at + t * row_k, *q = p->q.at + t * row_k;
    const float *alpha = p->alpha[h].at + t * (p->vector_decay ? row_k : 1);
    float v = p->v[h].at[(ptrdiff_t)t * rssm_padded(p->d_v) + i], beta = p->beta[h].at[t], dot_f = 0;
    double dot = 0;
    for (int32_t c = 0; c < p->d_k; c++) {
        float a = alpha[p->vector_decay ? c : 0];
        r->s[c] *= (double)a;
        r->magnitude[c] *= (double)a;
        r->f[c] *= a;
        dot += r->s[c] * (double)k[c];
        dot_f += r->f[c] * k[c];
    }
    double u = (double)beta * ((double)v - p->delta * dot);
    float u_f = beta * (v - (float)p->delta * dot_f);
    r->y = 0, r->y_f = 0, r->y_magnitude = 0;
    for (int32_t c = 0; c < p->d_k; c++) {
        r->s[c] += u * (double)k[c];
        r->f[c] += u_f * k[c];
        double term = fmax(fabs(r->s[c]), fabs((double)beta * (double)v * (double)k[c]));
        r->magnitude[c] = fmax(r->magnitude[c], term);
        r->y += r->s[c] * (double)q[c];
        r->y_f += r->f[c] * q[c];
        r->y_magnitude += r->magnitude[c] * fabs((double)q[c]);
    }
}

/* The errors of r and, in *plain, of the float recurrence. */
static errors compare(const problem *p, const result *r, errors *plain) {
    errors e = {0, 0};
    *plain = e;
    ptrdiff_t row_v = rssm_padded(p->d_v);
    for (int32_t h = 0; h < p->heads; h++) {
        for (int32_t i = 0; i < p->d_v; i++) {
            row_state row;
            double most = 0;
            for (int32_t c = 0; c < p->d_k; c++) {
                row.f[c] = p->state[h].at[i * p->d_k + c];
                row.s[c] = (double)row.f[c];
                row.magnitude[c] = fabs(row.s[c]);
            }
            for (int32_t t = 0; t < p->tokens; t++) {
                recur(p, h, t, i, &row);
                worse(&e.y, fabs((double)r->y[h].at[t * row_v + i] - row.y), row.y_magnitude);
                worse(&plain->y, fabs((double)row.y_f - row.y), row.y_magnitude);
            }
            for (int32_t c = 0; c < p->d_k; c++) {
                most = fmax(most, row.magnitude[c]);
            }
            for (int32_t c = 0; c < p->d_k; c++) {
                worse(&e.state, fabs((double)r->state[h].at[i * p->d_k + c] - row.s[c]), most);
                worse(&plain->state, fabs((double)row.f[c] - row.s[c]), most);
            }
        }
    }
    return e;
}

static int within(const errors *e, const errors *plain) {
    const double floor = 4 * 0x1p-23;
    return e->y <= 3 * plain->y + floor && e->state <= 3 * plain->state + floor;
}

static void check_against_double(const problem *p, const variant *v, const result *r, errors *ratio) {
    errors plain, e = compare(p, r, &plain);
    if (!within(&e, &plain)) {
        describe(p, v->name);
        print_message("y %.3g, plain %.3g; state %.3g, plain %.3g\n", e.y, plain.y, e.state, plain.state);
        fail();
    }
    ratio->y = fmax(ratio->y, e.y / (plain.y + 4 * 0x1p-23));
    ratio->state = fmax(ratio->state, e.state / (plain.state + 4 * 0x1p-23));
}

static int equal_rows(const problem *p, const result *a, const result *b, int32_t head, int32_t row,
                      int32_t tokens) {
    ptrdiff_t row_v = rssm_padded(p->d_v);
    for (int32_t t = 0; t < tokens; t++) {
        if (memcmp(a->y[head].at + t * row_v + row, b->y[head].at + t * row_v + row, sizeof(float)) != 0) {
            return 0;
        }
    }
    return tokens < p->tokens || memcmp(a->state[head].at + row * p->d_k, b->state[head].at + row * p->d_k,
                                        (size_t)p->d_k * sizeof(float)) == 0;
}

/* ---- Tests ---- */

static void each_variant(void (*test)(const variant *)) {
    variant v[3];
    int32_t n = variants(v);
    for (int32_t i = 0; i < n; i++) {
        random_state = SEED;
        test(&v[i]);
    }
}

static void random_problems(const variant *v) {
    errors ratio = {0, 0};
    for (int32_t i = 0; i < 150; i++) {
        problem p = problem_random();
        result once = scan_cut(&p, v->scan, -64), again = scan_cut(&p, v->scan, -64);
        check_against_double(&p, v, &once, &ratio);
        for (int32_t h = 0; h < p.heads; h++) {
            for (int32_t row = 0; row < p.d_v; row++) {
                assert_true(equal_rows(&p, &once, &again, h, row, p.tokens));
            }
        }
        result_free(&p, &once);
        result_free(&p, &again);
        problem_free(&p);
    }
    print_message("%s: error / (float recurrence + 4 ULP) at most %.2f (y), %.2f (state)\n", v->name, ratio.y,
                  ratio.state);
}
static void test_random_problems(void **unused) {
    (void)unused;
    each_variant(random_problems);
}

/* Every count of tokens, each layer, in one call. */
static void token_counts(const variant *v) {
    errors ratio = {0, 0};
    for (int32_t n = 1; n <= 64; n++) {
        for (int32_t kind = 0; kind < 3; kind++) {
            problem p = {
                .d_k = 20, .d_v = 33, .tokens = n, .heads = 2, .delta = kind > 0, .vector_decay = kind == 2};
            p.decay = REGIME_SLOW, p.key_norm = 1, p.beta_high = 1;
            problem_fill(&p);
            result r = scan_cut(&p, v->scan, -64);
            check_against_double(&p, v, &r, &ratio);
            result_free(&p, &r);
            problem_free(&p);
        }
    }
}
static void test_token_counts(void **unused) {
    (void)unused;
    each_variant(token_counts);
}

static void cuts(const variant *v) {
    for (int32_t i = 0; i < 24; i++) {
        problem p = {.d_k = 40, .d_v = 21, .tokens = TOKENS_MAX, .heads = 2, .delta = i % 3 > 0};
        p.vector_decay = i % 3 == 2, p.decay = (regime)(i % REGIMES), p.key_norm = 1, p.beta_high = 1;
        problem_fill(&p);
        errors ratio = {0, 0};
        result whole = scan_cut(&p, v->scan, -64), pieces = scan_cut(&p, v->scan, 1 + pick(64));
        check_against_double(&p, v, &pieces, &ratio);
        for (int32_t h = 0; h < p.heads; h++) {
            double most = 1e-30, apart = 0;
            for (int32_t t = 0; t < p.tokens; t++) {
                for (int32_t row = 0; row < p.d_v; row++) {
                    ptrdiff_t at = (ptrdiff_t)t * rssm_padded(p.d_v) + row;
                    most = fmax(most, fabs((double)whole.y[h].at[at]));
                    apart = fmax(apart, fabs((double)whole.y[h].at[at] - (double)pieces.y[h].at[at]));
                }
            }
            assert_true(apart <= 1e-5 * most);
        }
        result_free(&p, &whole);
        result_free(&p, &pieces);
        problem_free(&p);
    }
}
static void test_cuts(void **unused) {
    (void)unused;
    each_variant(cuts);
}

/* Unbounded gates: every channel decays by 1, 0.99, e^-8 or 0, mixed in one window. */
static void unbounded_gates(const variant *v) {
    for (int32_t i = 0; i < 6; i++) {
        problem p = {.d_k = 128, .d_v = 24, .tokens = 64, .heads = 1, .delta = 1, .vector_decay = i % 2 == 0};
        p.decay = REGIME_MIXED, p.key_norm = 1, p.beta_high = 1;
        problem_fill(&p);
        result r = scan_cut(&p, v->scan, -64);
        errors plain, e = compare(&p, &r, &plain);
        assert_true(e.y <= 1e-5 && e.state <= 1e-5);
        result_free(&p, &r);
        problem_free(&p);
    }
}
static void test_unbounded_gates(void **unused) {
    (void)unused;
    each_variant(unbounded_gates);
}

/* Without a decay, keys of norm 4 at beta near 1 make the state grow: agreement to 1e-3 wherever the result is
 * finite. */
static void growing_state(const variant *v) {
    for (int32_t i = 0; i < 8; i++) {
        problem p = {.d_k = i % 2 ? 64 : 128, .d_v = 16, .tokens = i < 4 ? 16 : 48, .heads = 1, .delta = 1};
        p.vector_decay = i % 4 > 1, p.decay = REGIME_ONE, p.key_norm = 4, p.beta_low = 0.95f, p.beta_high = 1;
        problem_fill(&p);
        result r = scan_cut(&p, v->scan, -64);
        errors plain, e = compare(&p, &r, &plain);
        assert_true(e.y <= 1e-3 && e.state <= 1e-3);
        result_free(&p, &r);
        problem_free(&p);
    }
}
static void test_growing_state(void **unused) {
    (void)unused;
    each_variant(growing_state);
}

/* Keys that all but coincide, as in a text that repeats itself, lose no digit. */
static void parallel_keys(const variant *v) {
    errors ratio = {0, 0};
    for (int32_t i = 0; i < 6; i++) {
        problem p = {.d_k = 64, .d_v = 24, .tokens = 64, .heads = 1, .delta = 1, .vector_decay = i % 2};
        p.decay = i < 4 ? REGIME_ONE : REGIME_SLOW, p.key_norm = 1, p.beta_high = i < 2 ? 2 : 1;
        problem_fill(&p);
        for (int32_t t = 1; t < p.tokens; t++) {
            for (int32_t c = 0; c < p.d_k; c++) { /* of norm 1 to 1 % */
                p.k.at[t * p.d_k + c] = 0.99f * p.k.at[c] + 0.01f * p.k.at[t * p.d_k + c];
            }
        }
        result r = scan_cut(&p, v->scan, -64);
        check_against_double(&p, v, &r, &ratio);
        result_free(&p, &r);
        problem_free(&p);
    }
}
static void test_parallel_keys(void **unused) {
    (void)unused;
    each_variant(parallel_keys);
}

/* A NaN or an infinity in one row of a state changes no bit of any other row. */
static void poisoned_row(const variant *v) {
    for (int32_t i = 0; i < 30; i++) {
        problem p = problem_random();
        result clean = scan_cut(&p, v->scan, -64);
        int32_t head = pick(p.heads), bad = pick(p.d_v);
        p.state[head].at[bad * p.d_k + pick(p.d_k)] = i % 2 ? NAN : INFINITY;
        result r = scan_cut(&p, v->scan, -64);
        for (int32_t h = 0; h < p.heads; h++) {
            for (int32_t row = 0; row < p.d_v; row++) {
                assert_true((h == head && row == bad) || equal_rows(&p, &clean, &r, h, row, p.tokens));
            }
        }
        result_free(&p, &clean);
        result_free(&p, &r);
        problem_free(&p);
    }
}
static void test_poisoned_row(void **unused) {
    (void)unused;
    each_variant(poisoned_row);
}

/* What a token brings changes no bit of an earlier output, even when it is not a number. */
static void causality(const variant *v) {
    for (int32_t i = 0; i < 30; i++) {
        problem p = problem_random();
        result clean = scan_cut(&p, v->scan, -64);
        int32_t t = pick(p.tokens), bad = pick(p.d_v);
        p.v[0].at[(ptrdiff_t)t * rssm_padded(p.d_v) + bad] = NAN;
        p.k.at[(ptrdiff_t)t * rssm_padded(p.d_k)] += i % 2 ? INFINITY : 1.0f;
        result r = scan_cut(&p, v->scan, -64);
        for (int32_t h = 0; h < p.heads; h++) {
            for (int32_t row = 0; row < p.d_v; row++) {
                assert_true(equal_rows(&p, &clean, &r, h, row, t));
            }
        }
        result_free(&p, &clean);
        result_free(&p, &r);
        problem_free(&p);
    }
}
static void test_causality(void **unused) {
    (void)unused;
    each_variant(causality);
}

/* The bound has teeth: one slightly wrong value, decay or strength must not pass. */
static void broken(const variant *v) {
    for (int32_t i = 0; i < 6; i++) {
        problem p = {.d_k = 32, .d_v = 32, .tokens = 40, .heads = 1, .delta = 1, .vector_decay = i >= 3};
        p.decay = REGIME_SLOW, p.key_norm = 1, p.beta_low = 0.1f, p.beta_high = 1;
        problem_fill(&p);
        float *wrong = i % 3 == 0 ? p.v[0].at + 20 * 32 : i % 3 == 1 ? p.alpha[0].at + 20 : p.beta[0].at + 20;
        float right = *wrong;
        *wrong = right * 1.0005f;
        result r = scan_cut(&p, v->scan, -64);
        *wrong = right;
        errors plain, e = compare(&p, &r, &plain);
        assert_false(within(&e, &plain));
        result_free(&p, &r);
        problem_free(&p);
    }
}
static void test_broken(void **unused) {
    (void)unused;
    each_variant(broken);
}

int main(void) {
    print_message("seed %d\n", SEED);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_problems),
        cmocka_unit_test(test_token_counts),
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_unbounded_gates),
        cmocka_unit_test(test_growing_state),
        cmocka_unit_test(test_parallel_keys),
        cmocka_unit_test(test_poisoned_row),
        cmocka_unit_test(test_causality),
        cmocka_unit_test(test_broken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
