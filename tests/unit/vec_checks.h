/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks of one header of the vector vocabulary, for the instruction set that the including file selects.
 * Functions are compared with libm in double, conversions with the scalar ones, and memory operations run
 * between guards.
 */
#ifndef VEC_CHECKS_H
#define VEC_CHECKS_H

#include "cpu/vec.h"

/* |got - true value| in units of the last place of the true value. */
static double ulps(float got, double exact) {
    int exponent;
    if (exact == 0.0) {
        return got == 0.0f ? 0.0 : HUGE_VAL;
    }
    (void)frexp(exact, &exponent);
    exponent = exponent < -125 ? -125 : exponent;
    return fabs((double)got - exact) / ldexp(1.0, exponent - 24);
}

static double exact_softplus(double x) {
    return x > 0.0 ? x + log1p(exp(-x)) : log1p(exp(x));
}
static double exact_sigmoid(double x) {
    return 1.0 / (1.0 + exp(-x));
}
static double exact_silu(double x) {
    return x / (1.0 + exp(-x));
}

/* The largest error over every `step`-th f32 between low and high in magnitude, of the given sign. Beyond 87.3
   the exponential of a negative number is subnormal and has fewer digits to give. */
static double worst(v16 (*f)(v16), double (*exact)(double), float sign, float low, float high, uint32_t step) {
    double error = 0.0;
    float x[16], y[16];
    int n = 0;
    for (uint32_t u = rssm_bits_of_f32(low); u <= rssm_bits_of_f32(high); u += step) {
        x[n++] = sign * rssm_f32_of_bits(u);
        if (n == 16) {
            v16_store(y, f(v16_load(x)));
            for (int i = 0; i < 16; i++) {
                double e = exact((double)x[i]);
                if (fabs(e) >= 0x1p-126) { /* normal results */
                    error = fmax(error, ulps(y[i], e));
                }
            }
            n = 0;
        }
    }
    return error;
}

static v16 call_exp(v16 x) {
    return v16_exp(x);
}
static v16 call_softplus(v16 x) {
    return v16_softplus(x);
}
static v16 call_sigmoid(v16 x) {
    return v16_sigmoid(x);
}
static v16 call_silu(v16 x) {
    return v16_silu(x);
}

static void check_functions(void **state) {
    (void)state;
    static const struct {
        const char *name;
        v16 (*f)(v16);
        double (*exact)(double);
        double most; /* ULP; silu is a sigmoid and one product */
    } functions[] = {
        {"exp", call_exp, exp, 3.0},
        {"softplus", call_softplus, exact_softplus, 3.0},
        {"sigmoid", call_sigmoid, exact_sigmoid, 3.0},
        {"silu", call_silu, exact_silu, 3.5},
    };
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        double above = worst(functions[i].f, functions[i].exact, 1.0f, 1e-30f, 88.7f, 6007);
        double below = worst(functions[i].f, functions[i].exact, -1.0f, 1e-30f, 87.3f, 6007);
        if (above > functions[i].most || below > functions[i].most) {
            fail_msg("%s: %.2f ULP for positive, %.2f for negative values; at most %.1f", functions[i].name,
                     above, below, functions[i].most);
        }
    }
}

static float one(v16 (*f)(v16), float x) {
    float y[16];
    v16_store(y, f(v16_set1(x)));
    return y[5];
}

static void check_function_edges(void **state) {
    (void)state;
    assert_true(one(call_exp, 0.0f) == 1.0f && one(call_exp, -0.0f) == 1.0f);
    assert_true(one(call_exp, 89.0f) == INFINITY && one(call_exp, INFINITY) == INFINITY);
    assert_true(one(call_exp, -INFINITY) == 0.0f && one(call_exp, -104.0f) == 0.0f);
    assert_true(fabs((double)one(call_exp, -100.0f) - exp(-100.0)) <= 0x1p-149); /* subnormal */
    assert_true(isnan(one(call_exp, NAN)));
    assert_true(one(call_softplus, -INFINITY) == 0.0f && one(call_softplus, INFINITY) == INFINITY);
    assert_true(one(call_softplus, 50.0f) == 50.0f && isnan(one(call_softplus, NAN)));
    assert_true(one(call_sigmoid, -INFINITY) == 0.0f && one(call_sigmoid, INFINITY) == 1.0f);
    assert_true(one(call_sigmoid, 0.0f) == 0.5f && isnan(one(call_sigmoid, NAN)));
    assert_true(one(call_silu, -INFINITY) == 0.0f && one(call_silu, INFINITY) == INFINITY);
    assert_true(one(call_silu, 0.0f) == 0.0f && isnan(one(call_silu, NAN)));
}

static uint16_t store_one_bf16(float x) {
    uint16_t h[16];
    v16_store_bf16(h, v16_set1(x));
    return h[9];
}

/* All codes survive the round trip; around every rounding boundary the vector agrees with the scalar code, and
   the scalar code with the definition: nearest, ties to even. */
static void check_bf16(void **state) {
    (void)state;
    for (uint32_t code = 0; code < 0x10000u; code += 16) {
        uint16_t h[16], back[16];
        float x[16];
        for (uint32_t i = 0; i < 16; i++) {
            h[i] = (uint16_t)(code + i);
        }
        v16_store(x, v16_load_bf16(h));
        v16_store_bf16(back, v16_load_bf16(h));
        for (int i = 0; i < 16; i++) {
            assert_int_equal(rssm_bits_of_f32(x[i]), (uint32_t)h[i] << 16);
            uint16_t expected = isnan(x[i]) ? (uint16_t)(h[i] | 0x40u) : h[i];
            assert_int_equal(back[i], expected);
            assert_int_equal(rssm_bf16_of_f32(x[i]), expected);
        }
    }
    for (uint32_t code = 0; code < 0x10000u; code += 3) {
        uint32_t base = code << 16;
        static const uint32_t offsets[] = {0x0001, 0x7fff, 0x8000, 0x8001, 0xffff};
        for (int i = 0; i < 5; i++) {
            float x = rssm_f32_of_bits(base + offsets[i]);
            uint16_t got = store_one_bf16(x);
            assert_int_equal(got, rssm_bf16_of_f32(x));
            if (!isnan(x)) {
                uint32_t up = offsets[i] > 0x8000 || (offsets[i] == 0x8000 && (code & 1) != 0);
                assert_int_equal(got, code + up);
            } else {
                assert_true(isnan(rssm_f32_of_bf16(got)));
            }
        }
    }
}

/* Vector decoders against the scalar ones: all codes, from memory that ends behind the last lane asked for. */
static void check_decoders(void **state) {
    (void)state;
    for (uint32_t first = 0; first < 0x10000u; first += 16) {
        uint16_t half[16];
        uint8_t byte[16];
        float f16[16], e4m3[16], i8[16], low[16], high[16], part[16];
        for (uint32_t i = 0; i < 16; i++) {
            half[i] = (uint16_t)(first + i);
            byte[i] = (uint8_t)(first + i);
        }
        const int n = (int)(first / 16 % 17);
        v16_store(f16, v16_load_f16(half));
        v16_store(e4m3, v16_load_e4m3_256th(byte));
        v16_store(i8, v16_load_i8((const int8_t *)byte));
        v16_store(low, v16_load_e2m1(byte, 0));
        v16_store(high, v16_load_e2m1(byte, 1));
        v16_store(part, v16_load_f16_n(half, n));
        for (int i = 0; i < 16; i++) {
            const float code = (byte[i] & 0x7f) == 0x7f ? (byte[i] & 0x80 ? -480.0f : 480.0f) : rssm_f32_of_e4m3(byte[i]);
            assert_int_equal(rssm_bits_of_f32(f16[i]), rssm_bits_of_f32(rssm_f32_of_f16(half[i])));
            assert_int_equal(rssm_bits_of_f32(e4m3[i] * 256.0f), rssm_bits_of_f32(code));
            assert_true(i8[i] == (float)(int8_t)byte[i]);
            assert_int_equal(rssm_bits_of_f32(low[i]), rssm_bits_of_f32(rssm_f32_of_e2m1(byte[i] & 15u)));
            assert_int_equal(rssm_bits_of_f32(high[i]), rssm_bits_of_f32(rssm_f32_of_e2m1(byte[i] >> 4)));
            assert_int_equal(rssm_bits_of_f32(part[i]), i < n ? rssm_bits_of_f32(f16[i]) : 0);
        }
        v16_store(part, v16_load_e4m3_256th_n(byte, n));
        v16_store(f16, v16_load_i8_n((const int8_t *)byte, n));
        for (int i = 0; i < 16; i++) {
            assert_true(part[i] == (i < n ? e4m3[i] : 0.0f) && f16[i] == (i < n ? i8[i] : 0.0f));
        }
    }
}

/* Vector encoders against the scalar ones, around every number of f16 and around what lies half-way to the next. */
static void check_encoders(void **state) {
    (void)state;
    for (uint32_t code = 0; code < 0x10000u; code++) {
        const uint32_t here = rssm_bits_of_f32(rssm_f32_of_f16((uint16_t)code)), middle = here + 0x1000u;
        const uint32_t bits[] = {here, here + 1, here - 1, middle, middle + 1, middle - 1, here ^ 0x80000000u, code << 16};
        float x[16], round[16];
        uint16_t half[16];
        int8_t byte[16];
        const int n = (int)(code % 17);
        for (int i = 0; i < 16; i++) {
            x[i] = rssm_f32_of_bits(bits[i % 8]);
            round[i] = (float)((int32_t)((code + 7u * (uint32_t)i) % 509u) - 254) * 0.5f;
            half[i] = 0x1234;
            byte[i] = 99;
        }
        v16_store_f16_n(half, v16_load(x), n);
        v16_store_i8_n(byte, v16_load(round), n);
        for (int i = 0; i < 16; i++) {
            assert_int_equal(half[i], i < n ? rssm_f16_of_f32(x[i]) : 0x1234);
            assert_int_equal(byte[i], i < n ? (int)nearbyintf(round[i]) : 99);
        }
        v16_store_f16(half, v16_load(x));
        assert_int_equal(half[15], rssm_f16_of_f32(x[15]));
    }
}

static uint32_t next_random(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static void check_sums(void **state) {
    (void)state;
    uint32_t seed = 1;
    for (int trial = 0; trial < 2000; trial++) {
        float rows[16][16], together[16], eight[17] = {[8] = 7.0f}, tree[16];
        v16 p[16];
        for (int i = 0; i < 16; i++) {
            for (int j = 0; j < 16; j++) {
                rows[i][j] =
                    ldexpf((float)next_random(&seed) - 8388608.0f, (int)(next_random(&seed) % 40) - 40);
            }
            p[i] = v16_load(rows[i]);
        }
        v16_store(together, v16_sum16(p));
        v16_store8(eight, v16_sum8(p + trial % 9));
        assert_true(eight[8] == 7.0f);
        for (int i = 0; i < 16; i++) {
            memcpy(tree, rows[i], sizeof tree);
            for (int half = 8; half > 0; half /= 2) {
                for (int j = 0; j < half; j++) {
                    tree[j] += tree[j + half];
                }
            }
            assert_true(together[i] == tree[0]);
            assert_true(i < trial % 9 || i >= trial % 9 + 8 || eight[i - trial % 9] == tree[0]);
            assert_true(v16_sum(p[i]) == tree[0]);
        }
    }
}

/* The first n lanes are read and written, the others read as zero and stay what they were. */
static void check_partial(void **state) {
    (void)state;
    float x[48], y[48];
    uint16_t hx[48], hy[48];
    for (int n = 0; n <= 16; n++) {
        for (int i = 0; i < 48; i++) {
            x[i] = i >= 16 && i < 16 + n ? (float)(i + 1) : NAN;
            hx[i] = rssm_bf16_of_f32(x[i]);
        }
        memset(y, 0xa5, sizeof y);
        memset(hy, 0xa5, sizeof hy);
        float lanes[16], half_lanes[16];
        v16_store(lanes, v16_load_n(x + 16, n));
        v16_store(half_lanes, v16_load_bf16_n(hx + 16, n));
        for (int i = 0; i < 16; i++) {
            assert_true(lanes[i] == (i < n ? (float)(i + 17) : 0.0f));
            assert_true(half_lanes[i] == lanes[i]);
        }
        v16_store_n(y + 16, v16_set1(2.0f), n);
        v16_store_bf16_n(hy + 16, v16_set1(2.0f), n);
        for (int i = 0; i < 48; i++) {
            int written = i >= 16 && i < 16 + n;
            assert_int_equal(rssm_bits_of_f32(y[i]), written ? rssm_bits_of_f32(2.0f) : 0xa5a5a5a5u);
            assert_int_equal(hy[i], written ? 0x4000 : 0xa5a5);
        }
    }
}

static void check_lanes(void **state) {
    (void)state;
    static const float values[16] = {0.0f,  -0.0f,  1.0f,  -1.0f,  0.5f,     1.5f,      2.5f,   -2.5f,
                                     3.25f, -7.75f, 1e10f, 1e-40f, INFINITY, -INFINITY, 100.0f, -3.0f};
    static const float others[16] = {1.0f, 2.0f, -3.0f, -1.0f, 0.25f, 9.0f, -2.5f,   4.0f,
                                     3.0f, 8.0f, 1e10f, 1.0f,  1.0f,  1.0f, -100.0f, 0.125f};
    v16 a = v16_load(values), b = v16_load(others);
    float sum[16], difference[16], product[16], quotient[16], largest[16], smallest[16], rounded[16],
        chosen[16];
    float root[16], magnitude[16], negated[16];
    v16_store(sum, v16_add(a, b));
    v16_store(difference, v16_sub(a, b));
    v16_store(product, v16_mul(a, b));
    v16_store(quotient, v16_div(a, b));
    v16_store(largest, v16_max(a, b));
    v16_store(smallest, v16_min(a, b));
    v16_store(rounded, v16_round(a));
    v16_store(chosen, v16_select(v16_lt(a, b), a, b));
    v16_store(root, v16_sqrt(v16_abs(a)));
    v16_store(magnitude, v16_abs(a));
    v16_store(negated, v16_neg(a));
    for (int i = 0; i < 16; i++) {
        float x = values[i], y = others[i];
        assert_true(sum[i] == x + y && difference[i] == x - y && product[i] == x * y && quotient[i] == x / y);
        assert_true(largest[i] == (x > y ? x : y) && smallest[i] == (x < y ? x : y) &&
                    chosen[i] == (x < y ? x : y));
        assert_true(rounded[i] == rintf(x) && root[i] == sqrtf(fabsf(x)));
        assert_int_equal(rssm_bits_of_f32(magnitude[i]), rssm_bits_of_f32(x) & 0x7fffffffu);
        assert_int_equal(rssm_bits_of_f32(negated[i]), rssm_bits_of_f32(x) ^ 0x80000000u);
    }
    float nan_first[16], nan_second[16]; /* of NaN and a number, max and min return the second operand */
    v16_store(nan_first, v16_max(v16_set1(NAN), v16_set1(1.0f)));
    v16_store(nan_second, v16_min(v16_set1(1.0f), v16_set1(NAN)));
    assert_true(nan_first[0] == 1.0f && isnan(nan_second[0]));
}

#define VEC_CHECKS                                                                                             \
    cmocka_unit_test(check_functions), cmocka_unit_test(check_function_edges), cmocka_unit_test(check_bf16),   \
        cmocka_unit_test(check_encoders),                                                                      \
        cmocka_unit_test(check_decoders), cmocka_unit_test(check_sums), cmocka_unit_test(check_partial), cmocka_unit_test(check_lanes)

#endif
