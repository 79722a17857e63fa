/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exp, log1p and the activations built from them, on the vector vocabulary. Within 3 ULP of the true value over
 * the range of normal results (tests/unit/test_vec.c measures it); NaN goes in and comes out.
 */
#ifndef RSSM_VEC_MATH_H
#define RSSM_VEC_MATH_H

/* exp by x = n ln2 + r, |r| <= ln2/2, and a polynomial for e^r. The last bits of n ln2 are subtracted apart. */
static inline v16 v16_exp(v16 x) {
    /* outside this range the result is 0 or infinity anyway; NaN passes because it is the second operand */
    v16 t = v16_max(v16_set1(-110.0f), v16_min(v16_set1(100.0f), x));
    v16 n = v16_round(v16_mul(t, v16_set1(0x1.715476p+0f)));
    v16 r = v16_fma(n, v16_set1(-0x1.62ep-1f), t);
    r = v16_fma(n, v16_set1(-0x1.0bfbe8p-15f), r);
    v16 p = v16_set1(0x1.a01a02p-13f); /* 1/7! */
    p = v16_fma(p, r, v16_set1(0x1.6c16c2p-10f));
    p = v16_fma(p, r, v16_set1(0x1.111112p-7f));
    p = v16_fma(p, r, v16_set1(0x1.555556p-5f));
    p = v16_fma(p, r, v16_set1(0x1.555556p-3f));
    p = v16_fma(p, r, v16_set1(0.5f));
    p = v16_fma(v16_mul(p, r), r, r);
    return v16_ldexp(v16_add(v16_set1(1.0f), p), n);
}

/* log(1 + u) for 0 <= u <= 1 as 2 atanh(u / (2 + u)), a series in z^2 <= 1/9: good for tiny u too. */
static inline v16 v16_log1p_unit(v16 u) {
    v16 z = v16_div(u, v16_add(v16_set1(2.0f), u));
    v16 w = v16_mul(z, z);
    v16 p = v16_set1(1.0f / 17.0f);
    p = v16_fma(p, w, v16_set1(1.0f / 15.0f));
    p = v16_fma(p, w, v16_set1(1.0f / 13.0f));
    p = v16_fma(p, w, v16_set1(1.0f / 11.0f));
    p = v16_fma(p, w, v16_set1(1.0f / 9.0f));
    p = v16_fma(p, w, v16_set1(1.0f / 7.0f));
    p = v16_fma(p, w, v16_set1(1.0f / 5.0f));
    p = v16_fma(p, w, v16_set1(1.0f / 3.0f));
    p = v16_mul(p, w);
    v16 twice = v16_add(z, z);
    return v16_fma(twice, p, twice);
}

/* 1 / (1 + e^-x), by way of e^-|x| so that nothing overflows. */
static inline v16 v16_sigmoid(v16 x) {
    v16 e = v16_exp(v16_neg(v16_abs(x)));
    v16 one = v16_set1(1.0f);
    v16 s = v16_div(one, v16_add(one, e));
    return v16_select(v16_lt(x, v16_zero()), v16_mul(e, s), s);
}

static inline v16 v16_silu(v16 x) {
    /* x * sigmoid(x) with x = -inf would be -inf * 0 */
    v16 s = v16_sigmoid(x);
    return v16_select(v16_lt(x, v16_set1(-200.0f)), v16_zero(), v16_mul(x, s));
}

/* log(1 + e^x). Beyond 20, where frameworks return x, the difference is below half an ULP of x. */
static inline v16 v16_softplus(v16 x) {
    v16 tail = v16_log1p_unit(v16_exp(v16_neg(v16_abs(x))));
    return v16_add(v16_select(v16_lt(x, v16_zero()), v16_zero(), x), tail);
}

#endif
