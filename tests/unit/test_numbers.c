/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Number formats against their definitions: every code of every format, both neighbours of every rounding boundary, and
 * the probabilities of stochastic rounding over all 65536 random values. The expectation is computed from the format's
 * parameters in double, never from the code under test. Then Philox against Random123.
 */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <Random123/philox.h>

#include "numbers.h"
#include "philox.h"

typedef struct format {
    const char *name;
    int mantissa, bias;
    uint32_t codes;    /* without sign, NaN and infinity: 0 .. codes - 1 */
    uint32_t infinity; /* code, or 0: none */
    uint32_t sign;     /* bit */
    double (*decode)(uint32_t code);
    uint32_t (*nearest)(float x);
    uint32_t (*stochastic)(float x, uint32_t random);
} format;

#define FORMAT_FUNCTIONS(name, type)                                                                           \
    static double name##_decode(uint32_t c) { return (double)rssm_f32_of_##name((type)c); }                    \
    static uint32_t name##_nearest(float x) { return rssm_##name##_of_f32(x); }                                \
    static uint32_t name##_stochastic(float x, uint32_t r) { return rssm_##name##_stochastic(x, r); }
FORMAT_FUNCTIONS(f16, uint16_t)
FORMAT_FUNCTIONS(bf16, uint16_t)
FORMAT_FUNCTIONS(e5m2, uint8_t)
FORMAT_FUNCTIONS(e4m3, uint8_t)
FORMAT_FUNCTIONS(e2m1, uint32_t)

#define ROW(name) name##_decode, name##_nearest, name##_stochastic
static const format formats[] = {
    {"f16", 10, 15, 0x7c00, 0x7c00, 0x8000, ROW(f16)},  {"bf16", 7, 127, 0x7f80, 0x7f80, 0x8000, ROW(bf16)},
    {"e5m2", 2, 15, 0x7c, 0x7c, 0x80, ROW(e5m2)},       {"e4m3", 3, 7, 0x7f, 0, 0x80, ROW(e4m3)},
    {"e2m1", 1, 1, 8, 0, 8, ROW(e2m1)},
};
enum { FORMATS = sizeof formats / sizeof formats[0] };

/* The number that a code without sign stands for, by definition; also of the code beyond the last. */
static double value_of(const format *f, uint32_t code) {
    const int exponent = (int)(code >> f->mantissa), fraction = (int)(code & ((1u << f->mantissa) - 1));
    return exponent == 0 ? ldexp(fraction, 1 - f->bias - f->mantissa)
                         : ldexp((1 << f->mantissa) + fraction, exponent - f->bias - f->mantissa);
}

static void codes_decode(void **state) {
    (void)state;
    for (int i = 0; i < FORMATS; i++) {
        const format *f = &formats[i];
        for (uint32_t c = 0; c < f->codes; c++) {
            assert_true(f->decode(c) == value_of(f, c));
            assert_true(f->decode(c | f->sign) == -value_of(f, c) && signbit(f->decode(c | f->sign)));
            assert_int_equal(f->nearest((float)f->decode(c)), c);
            assert_int_equal(f->nearest((float)f->decode(c | f->sign)), c | f->sign);
        }
        if (f->infinity) {
            assert_true(f->decode(f->infinity) == HUGE_VAL && f->decode(f->infinity | f->sign) == -HUGE_VAL);
            assert_int_equal(f->nearest(HUGE_VALF), f->infinity);
            assert_int_equal(f->nearest(-HUGE_VALF), f->infinity | f->sign);
            for (uint32_t c = f->infinity + 1; c < f->sign; c++) {
                assert_true(isnan(f->decode(c)));
            }
        }
        if (f->sign != 8) {
            assert_true(isnan(f->decode(f->nearest(NAN))));
            assert_true(isnan(f->decode(f->stochastic(NAN, 0xffff))));
        }
    }
    assert_true(isnan(e4m3_decode(0x7f)) && isnan(e4m3_decode(0xff)));
    assert_true(isnan(e4m3_decode(e4m3_nearest(HUGE_VALF))));
    assert_int_equal(e4m3_nearest(FLT_MAX), 0x7e);
    assert_int_equal(e2m1_nearest(-1e30f), 15);
}

/* What `c` becomes when rounding leaves the format. */
static uint32_t limit(const format *f, uint32_t c) {
    return c < f->codes ? c : f->infinity ? f->infinity : f->codes - 1;
}

/* The numbers on either side of every boundary between two codes, and the boundary itself. */
static void boundaries_round_to_nearest(void **state) {
    (void)state;
    for (int i = 0; i < FORMATS; i++) {
        const format *f = &formats[i];
        for (uint32_t c = 0; c < f->codes; c++) {
            const double middle = 0.5 * (value_of(f, c) + value_of(f, c + 1));
            const float at = (float)middle;
            assert_true((double)at == middle || f->bias == 127); /* bf16's lowest may be no f32 */
            if ((double)at != middle) {
                continue;
            }
            const uint32_t even = limit(f, c % 2 == 0 ? c : c + 1);
            assert_int_equal(f->nearest(at), even);
            assert_int_equal(f->nearest(-at), even | f->sign);
            assert_int_equal(f->nearest(nextafterf(at, 0.0f)), c);
            assert_int_equal(f->nearest(nextafterf(at, HUGE_VALF)), limit(f, c + 1));
        }
    }
}

/* Over all random values, the share that goes up is the distance from the number below, within half of 2^-16; the
   mean of the results is then the number. Numbers of the format never move. */
static void stochastic_rounding_is_unbiased(void **state) {
    (void)state;
    for (int i = 0; i < FORMATS; i++) {
        const format *f = &formats[i];
        uint32_t seed = 12345;
        for (int n = 0; n < 150; n++) {
            seed = seed * 1664525u + 1013904223u;
            const uint32_t c = n < 40 ? (uint32_t)n % (f->codes - 1) : (seed >> 8) % (f->codes - 1);
            const double low = value_of(f, c), high = value_of(f, c + 1);
            seed = seed * 1664525u + 1013904223u;
            const float x = n % 5 == 0 ? (float)low : (float)(low + (high - low) * (seed >> 8) / 16777216.0);
            int64_t up = 0;
            for (uint32_t r = 0; r < 65536; r++) {
                const uint32_t got = f->stochastic(r % 2 ? x : -x, r);
                assert_int_equal((got & f->sign) != 0, r % 2 == 0);
                assert_true((got & ~f->sign) - c <= 1);
                up += (got & ~f->sign) == c + 1;
            }
            const double expected = ((double)x - low) / (high - low) * 65536.0;
            assert_true(fabs((double)up - expected) <= 0.5 + 1e-9);
            assert_true((double)x != low || up == 0);
        }
        assert_int_equal(f->stochastic(FLT_MAX, 0xffff), limit(f, f->codes));
    }
}

static void scales(void **state) {
    (void)state;
    for (uint32_t c = 1; c < 255; c++) {
        assert_true((double)rssm_f32_of_e8m0((uint8_t)c) == ldexp(1.0, (int)c - 127));
        if (c < 254) {
            assert_true(rssm_f32_of_e8m0((uint8_t)c) * rssm_row_factor((uint8_t)c) == 1.0f);
        }
    }
    assert_true(rssm_f32_of_e8m0(0) == 0.0f && isnan(rssm_f32_of_e8m0(255)));
    static const float largest[] = {1.0f, 1.999f, 448.0f, 3e38f, 0x1p-100f, 0.00123f};
    for (size_t i = 0; i < sizeof largest / sizeof largest[0]; i++) {
        const uint8_t code = rssm_row_exponent(largest[i], 0);
        const float scaled = largest[i] * rssm_row_factor(code);
        assert_true(scaled >= 128.0f && scaled < 256.0f);
    }
    assert_int_equal(rssm_row_exponent(0.0f, 0), 0);
    assert_int_equal(rssm_row_exponent(0x1p-101f, 0), 0);
    assert_int_equal(rssm_row_exponent(1.0f, 1), 255);
    assert_true(rssm_row_factor(0) == 0.0f && rssm_row_factor(255) == 0.0f);
}

static void philox_is_random123(void **state) {
    (void)state;
    uint32_t n = 1;
    for (int i = 0; i < 1000; i++) {
        philox4x32_ctr_t c;
        philox4x32_key_t k;
        rssm_philox mine;
        for (int j = 0; j < 4; j++) {
            n = n * 1664525u + 1013904223u;
            c.v[j] = mine.x[j] = i == 0 ? 0 : i == 1 ? UINT32_MAX : n;
        }
        k.v[0] = i == 0 ? 0 : i == 1 ? UINT32_MAX : n ^ 0x55555555u;
        k.v[1] = i == 0 ? 0 : i == 1 ? UINT32_MAX : n * 7;
        const philox4x32_ctr_t expected = philox4x32_R(7, c, k);
        mine = rssm_philox_draw(mine, k.v[0], k.v[1]);
        assert_memory_equal(mine.x, expected.v, sizeof mine.x);
    }
}

/* Every argument of the key matters, and elements of one flush do not repeat each other. */
static void streams_are_keyed(void **state) {
    (void)state;
    const rssm_stream base = rssm_stream_make(7, 3, 5, 11, 160);
    const rssm_stream others[] = {rssm_stream_make(8, 3, 5, 11, 160),  rssm_stream_make(7, 4, 5, 11, 160),
                                  rssm_stream_make(7, 3, 6, 11, 160),  rssm_stream_make(7, 3, 5, 12, 160),
                                  rssm_stream_make(7, 3, 5, 11, 176),  rssm_stream_make(7, 5, 3, 11, 160),
                                  rssm_stream_make(7 + (UINT64_C(1) << 32), 3, 5, 11, 160),
                                  rssm_stream_make(7, 3, 5, 11 + (UINT64_C(1) << 32), 160),
                                  rssm_stream_make(7, 3, 5, 11, 160 + (INT64_C(1) << 40))};
    double mean = 0;
    int same = 0;
    for (uint32_t row = 0; row < 64; row++) {
        for (uint32_t column = 0; column < 256; column++) {
            const uint32_t bits = rssm_stream_bits(base, row, column);
            assert_true(bits < 65536);
            mean += bits;
            same += bits == rssm_stream_bits(base, row, (column + 16) & 255);
            same += bits == rssm_stream_bits(base, row + 1, column);
            for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
                same += bits == rssm_stream_bits(others[i], row, column);
            }
        }
    }
    assert_true(fabs(mean / (64 * 256) - 32767.5) < 600.0); /* 4 deviations */
    assert_true(same < 30);                                 /* 2.75 by chance */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_decode),          cmocka_unit_test(boundaries_round_to_nearest),
        cmocka_unit_test(stochastic_rounding_is_unbiased), cmocka_unit_test(scales),
        cmocka_unit_test(philox_is_random123),   cmocka_unit_test(streams_are_keyed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
