/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The harness against kernels that are broken on purpose: each must be found out within a few problems, and for
 * the right reason. A broken kernel is the real one with a fault before or after it, put into the cache's
 * table. The real one by itself must pass, so that what is found is the fault.
 */
#include <math.h>
#include <signal.h>
#include <string.h>

#include "driver.h"
#include "numbers.h"

static const rssm_kernels *real;

enum { PROBLEMS = 60 };

/* ---- What a kernel can reach ---------------------------------------------------------------------------- */

static int32_t head_of(const rssm_geometry *geo, int32_t unit, int32_t j) {
    const int32_t h = unit * geo->unit_values + j;
    return rssm_value_head(geo, h / geo->ratio, h % geo->ratio);
}

/* Output of the row's token t for the jth head of a unit, element i. */
static void *out_at(const rssm_call *call, const rssm_row *row, int32_t unit, int32_t t, int32_t j, int64_t i) {
    const int64_t element = (row->token + t) * call->out->token_stride +
                            head_of(call->geometry, unit, j) * call->out->head_stride + i;
    return (char *)call->out->data + element * (call->out_bf16 ? 2 : 4);
}

static float get(const rssm_call *call, const void *p) {
    return (float)rssm_ref_load(p, call->out_bf16 ? RSSM_DTYPE_BF16 : RSSM_DTYPE_F32, 0);
}

static void set(const rssm_call *call, void *p, float x) {
    if (call->out_bf16) {
        const uint16_t h = rssm_bf16_of_f32(x);
        memcpy(p, &h, sizeof h);
    } else {
        memcpy(p, &x, sizeof x);
    }
}

/* ---- Broken kernels ------------------------------------------------------------------------------------- */

#define UNIT const rssm_call *call, const rssm_row *row, int32_t unit, float *scratch

static void writes_left(UNIT) {
    real->decode_unit(call, row, unit, scratch);
    if (head_of(call->geometry, unit, 0) == 0 && row->tokens > 0 && row->token == 0) {
        set(call, out_at(call, row, unit, 0, 0, -1), 1.0f);
    }
}

static void writes_right(UNIT) {
    real->decode_unit(call, row, unit, scratch);
    const int32_t j = call->geometry->unit_values - 1, t = row->tokens - 1;
    if (head_of(call->geometry, unit, j) == call->geometry->value_heads - 1) {
        set(call, out_at(call, row, unit, t, j, call->geometry->d_v), 1.0f);
    }
}

static void writes_too_little(UNIT) {
    void *last = out_at(call, row, unit, row->tokens - 1, 0, call->geometry->d_v - 1);
    const float before = get(call, last);
    real->decode_unit(call, row, unit, scratch);
    set(call, last, before);
}

static void flips_a_sign_in_the_tail(UNIT) {
    real->decode_unit(call, row, unit, scratch);
    if (call->geometry->d_v % 16) {
        void *last = out_at(call, row, unit, row->tokens - 1, 0, call->geometry->d_v - 1);
        set(call, last, -get(call, last));
    }
}

static void depends_on_old_output(UNIT) {
    void *first = out_at(call, row, unit, 0, 0, 0);
    const float old = get(call, first);
    real->decode_unit(call, row, unit, scratch);
    set(call, first, get(call, first) + 0.0f * old);
}

static void reads_a_dead_row(UNIT) {
    float dead = 0.0f;
    if (row->cursor) {
        const rssm_geometry *geo = call->geometry;
        const int32_t r = row->cursor->row_map[geo->rows.records - 1];
        const int32_t io = geo->bf16 ? RSSM_DTYPE_BF16 : RSSM_DTYPE_F32;
        dead = (float)rssm_ref_load(row->record_k, io, (int64_t)r * geo->d_k);
    }
    real->decode_unit(call, row, unit, scratch);
    void *first = out_at(call, row, unit, 0, 0, 0);
    set(call, first, get(call, first) + 0.0f * dead);
}

static void changes_the_float_mode(UNIT) {
    real->decode_unit(call, row, unit, scratch);
    chk_set_float_mode(chk_float_mode() | 0x8000u); /* flush to zero */
}

static void folds_twice(UNIT) {
    real->decode_unit(call, row, unit, scratch);
    if (row->fold > 0) {
        real->decode_unit(call, row, unit, scratch);
    }
}

static void crashes(UNIT) {
    real->decode_unit(call, row, unit, scratch);
    raise(SIGSEGV);
}

static void takes_trees_for_chains(UNIT) {
    rssm_row chain = *row;
    chain.parents = NULL;
    real->decode_unit(call, &chain, unit, scratch);
}

static void skips_padding(UNIT) {
    if (row->cursor) {
        real->decode_unit(call, row, unit, scratch);
    }
}

/* One unit in the last place of one value, by where the row lies in the batch. */
static void depends_on_the_place(UNIT) {
    real->decode_unit(call, row, unit, scratch);
    void *first = out_at(call, row, unit, 0, 0, 0);
    if (row->cursor && row->token % 2) {
        unsigned char low;
        memcpy(&low, first, 1);
        low ^= 1;
        memcpy(first, &low, 1);
    }
}

/* One unit in the last place of one state element, when more than one record is folded. */
static void folds_inexactly(UNIT) {
    real->decode_unit(call, row, unit, scratch);
    if (row->fold > 1) {
        float *element = (float *)(void *)row->state.checkpoint +
                         (int64_t)head_of(call->geometry, unit, 0) * call->geometry->d_v * call->geometry->d_k;
        *element = rssm_f32_of_bits(rssm_bits_of_f32(*element) ^ 1u);
    }
}

static void forgets_a_record(UNIT) {
    rssm_row shorter = *row;
    if (row->fold > 1) {
        shorter.fold--;
    }
    real->decode_unit(call, &shorter, unit, scratch);
}

static void writes_behind_the_checkpoint(UNIT) {
    real->decode_unit(call, row, unit, scratch);
    if (row->cursor) {
        const rssm_geometry *geo = call->geometry;
        char *end = row->state.checkpoint + 4 * (int64_t)geo->value_heads * geo->d_v * geo->d_k;
        end[15] ^= 1;
    }
}

static void changes_an_input(UNIT) {
    real->decode_unit(call, row, unit, scratch);
    if (row->cursor) {
        const int64_t at = row->token * call->inputs->k.token_stride * (call->geometry->bf16 ? 2 : 4);
        ((char *)call->inputs->k.data)[at] ^= 1;
    }
}

/* A relative error of 2^-16 in f32, of one step in bf16: what the tolerance must not let through. */
static void errs_a_little(UNIT) {
    real->decode_unit(call, row, unit, scratch);
    const float factor = 1.0f + (call->out_bf16 ? 0x1p-8f : 0x1p-16f);
    for (int32_t j = 0; j < call->geometry->unit_values; j++) {
        for (int64_t i = 0; i < call->geometry->d_v; i++) {
            void *p = out_at(call, row, unit, row->tokens - 1, j, i);
            set(call, p, get(call, p) * factor);
        }
    }
}

static void prefills_wrongly(const rssm_call *call, const rssm_row *row, int32_t unit, float *scratch) {
    real->prefill_unit(call, row, unit, scratch);
    void *last = out_at(call, row, unit, row->tokens - 1, 0, 0);
    set(call, last, get(call, last) * 1.01f);
}

/* ---- The tools themselves -------------------------------------------------------------------------------- */

static void look_left(void *arg) {
    volatile unsigned char *p = chk_guard(100, 1, CHK_LEFT);
    (void)arg, (void)p[-1];
}
static void look_right(void *arg) {
    volatile unsigned char *p = chk_guard(100, 4, CHK_RIGHT);
    (void)arg, (void)p[100];
}
static void touch_left_slack(void *arg) {
    unsigned char *p = chk_guard(100, 4, CHK_RIGHT);
    p[-3] ^= 1;
    (void)arg, (void)chk_guards_intact();
}
static void touch_right_slack(void *arg) {
    unsigned char *p = chk_guard(100, 4, CHK_LEFT);
    p[101] ^= 1;
    (void)arg, (void)chk_guards_intact();
}
static void differ_in_one_bit(void *arg) {
    const int64_t shape[3] = {2, 3, 4};
    uint16_t a[24] = {0}, b[24] = {0};
    b[17] = 1;
    (void)arg, (void)chk_same_bits("pair", a, b, sizeof a[0], 3, shape);
}

enum { CLOSE_EXACT, CLOSE_ULPS, CLOSE_FAR, CLOSE_NAN, CLOSE_INF, CLOSE_ZERO };
static void compare_values(void *arg) {
    const double exact[2] = {1.0, 0.25}, infinite[2] = {1.0, HUGE_VAL};
    double got[2] = {1.0, 0.25};
    const int what = *(const int *)arg;
    got[1] += what == CLOSE_ULPS ? 3 * 0x1p-23 : what == CLOSE_FAR ? 0x1p-18 : 0.0;
    got[1] = what == CLOSE_NAN ? (double)NAN : what == CLOSE_ZERO ? 0.0 : got[1];
    (void)chk_close("values", 2, what == CLOSE_INF ? infinite : exact, NULL, got, 0.0, RSSM_DTYPE_F32);
}

static void expect(const char *what, chk_fn *fn, void *arg, int failures, const char *text) {
    char first[512];
    const int n = chk_expect(fn, arg, first, sizeof first);
    if (n != failures || (text && !strstr(first, text))) {
        chk_fail("%s: %d failures (%s), expected %d (%s)", what, n, first, failures, text ? text : "");
    }
}

static void tools(void *arg) {
    (void)arg;
    expect("left page", look_left, NULL, -1, NULL);
    expect("right page", look_right, NULL, -1, NULL);
    expect("left slack", touch_left_slack, NULL, 1, "wrote 3 bytes left");
    expect("right slack", touch_right_slack, NULL, 1, "wrote 1 bytes right");
    expect("bits", differ_in_one_bit, NULL, 1,
           "pair: 1 of 24 elements differ, first at [1][1][1]: 0x0 and 0x1");
    for (int what = CLOSE_EXACT; what <= CLOSE_ZERO; what++) {
        expect("close", compare_values, &what, what > CLOSE_ULPS, what > CLOSE_ULPS ? "element 1" : NULL);
    }
}

/* ---- Cases ---------------------------------------------------------------------------------------------- */

typedef struct fault {
    const char *name;
    void (*decode)(UNIT);
    void (*prefill)(const rssm_call *call, const rssm_row *row, int32_t unit, float *scratch);
    bool may_crash;
    const char *reasons[3]; /* what the first failure may say */
} fault;

static const char again[] = "the same decode again";

static const fault faults[] = {
    {"writes_left", writes_left, NULL, true, {"gap of the output", "left of a block"}},
    {"writes_right", writes_right, NULL, true, {"gap of the output", "right of a block"}},
    {"writes_too_little",
     writes_too_little,
     NULL,
     false,
     {"output of sequence", "in its output, not 0", again}},
    {"flips_a_sign_in_the_tail",
     flips_a_sign_in_the_tail,
     NULL,
     false,
     {"output of sequence", "in its output, not 0"}},
    {"depends_on_old_output", depends_on_old_output, NULL, false, {again}},
    {"reads_a_dead_row", reads_a_dead_row, NULL, false, {"output of sequence"}},
    {"changes_the_float_mode", changes_the_float_mode, NULL, false, {"floating-point mode"}},
    {"folds_twice", folds_twice, NULL, false, {"output of sequence", "checkpoint"}},
    {"errs_a_little", errs_a_little, NULL, false, {"output of sequence"}},
    {"crashes", crashes, NULL, true, {NULL}},
    {"takes_trees_for_chains", takes_trees_for_chains, NULL, false, {"output of sequence"}},
    {"skips_padding", skips_padding, NULL, false, {"in its output, not 0", again}},
    {"depends_on_the_place", depends_on_the_place, NULL, false, {"in another place", "output of sequence"}},
    {"folds_inexactly", folds_inexactly, NULL, false, {"checkpoint and conventional state"}},
    {"forgets_a_record", forgets_a_record, NULL, false, {"output of sequence", "checkpoint", again}},
    {"writes_behind_the_checkpoint",
     writes_behind_the_checkpoint,
     NULL,
     true,
     {"behind slot", "right of a block", "slot"}},
    {"changes_an_input", changes_an_input, NULL, false, {"an input tensor", "output"}},
    {"prefills_wrongly", NULL, prefills_wrongly, false, {"output of sequence"}},
};

typedef struct attempt {
    const rssm_kernels *kernels;
    int32_t problem;
} attempt;

static void run_problem(void *arg) {
    const attempt *a = arg;
    chk_rng rng = chk_rng_make("selftest", (uint64_t)a->problem);
    const int32_t kind = RSSM_MAMBA2 + a->problem % 3,
                  io = a->problem / 3 % 2 ? RSSM_DTYPE_BF16 : RSSM_DTYPE_F32;
    cb_problem *p = cb_problem_draw(&rng, kind, io, 600);
    dr_driver *driver = dr_make(&rng, p, UINT64_MAX, 48, a->kernels);
    while (dr_step(driver)) {
    }
    dr_finish(driver);
}

static bool reason_fits(const fault *f, const char *said) {
    for (size_t i = 0; i < sizeof f->reasons / sizeof f->reasons[0] && f->reasons[i]; i++) {
        if (strstr(said, f->reasons[i])) {
            return true;
        }
    }
    return false;
}

static void find_fault(void *arg) {
    const fault *f = arg;
    rssm_kernels broken = *real;
    broken.decode_unit = f->decode ? f->decode : broken.decode_unit;
    broken.prefill_unit = f->prefill ? f->prefill : broken.prefill_unit;
    const uint32_t mode = chk_float_mode();
    for (int32_t problem = 0; problem < PROBLEMS; problem++) {
        attempt a = {&broken, problem};
        char first[512];
        const int failures = chk_expect(run_problem, &a, first, sizeof first);
        chk_set_float_mode(mode);
        chk_params("problem=%d", problem);
        if (failures < 0) {
            CHK(f->may_crash);
            return;
        }
        if (failures > 0) {
            if (!reason_fits(f, first)) {
                chk_fail("found for another reason: %s", first);
            }
            return;
        }
    }
    chk_fail("not found in %d problems", PROBLEMS);
}

static void real_one_passes(void *arg) {
    (void)arg;
    for (int32_t problem = 0; problem < chk_repeat(PROBLEMS); problem++) {
        attempt a = {real, problem};
        chk_params("problem=%d", problem);
        run_problem(&a);
        chk_release();
    }
}

int main(int argc, char **argv) {
    chk_start(argc, argv);
    real = rssm_kernels_select(rssm_isa_available());
    chk_case("selftest_tools", tools, NULL);
    chk_case("selftest_real_one_passes", real_one_passes, NULL);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        char name[96] = "selftest_";
        strncat(name, faults[i].name, sizeof name - 16);
        chk_case(name, find_fault, (void *)&faults[i]);
    }
    return chk_finish();
}
