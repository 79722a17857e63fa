/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers, comparison of results, and the floating-point mode. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "replayssm/base.h"

/* splitmix64 (Steele, Lea and Flood 2014): any two states give unrelated sequences. */
uint64_t chk_u64(chk_rng *rng) {
    uint64_t z = (rng->state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

chk_rng chk_rng_make(const char *name, uint64_t number) {
    chk_rng rng = {chk_opts()->seed};
    for (const char *c = name; *c; c++) {
        rng.state = chk_u64(&rng) ^ (unsigned char)*c;
    }
    rng.state = chk_u64(&rng) ^ number;
    chk_u64(&rng);
    return rng;
}

int32_t chk_int(chk_rng *rng, int32_t low, int32_t high) {
    return (int32_t)(low + (int64_t)(chk_u64(rng) % ((uint64_t)((int64_t)high - low) + 1)));
}

double chk_uniform(chk_rng *rng, double low, double high) {
    return low + (high - low) * (double)(chk_u64(rng) >> 11) * 0x1p-53;
}

/* The sum of four uniform numbers is normal enough, and cheap. */
double chk_normal(chk_rng *rng) {
    const uint64_t bits = chk_u64(rng);
    const double sum = (double)((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
    return (sum * 0x1p-16 - 2.0 + 0x1p-15) * 1.7320508075688772;
}

bool chk_flip(chk_rng *rng, double probability) {
    return chk_uniform(rng, 0.0, 1.0) < probability;
}

void chk_shuffle(chk_rng *rng, int32_t *a, int32_t n) {
    for (int32_t i = n - 1; i > 0; i--) {
        const int32_t j = chk_int(rng, 0, i), t = a[i];
        a[i] = a[j];
        a[j] = t;
    }
}

/* "[2][0][17]" */
static void coordinates(char *text, size_t bytes, int32_t rank, const int64_t *shape, int64_t index) {
    int64_t at[8];
    for (int32_t i = rank - 1; i >= 0; i--) {
        at[i] = index % shape[i];
        index /= shape[i];
    }
    size_t used = 0;
    text[0] = '\0';
    for (int32_t i = 0; i < rank && used < bytes; i++) {
        used += (size_t)snprintf(text + used, bytes - used, "[%lld]", (long long)at[i]);
    }
}

bool chk_same_bits(const char *what, const void *a, const void *b, size_t element_bytes, int32_t rank,
                   const int64_t *shape) {
    int64_t count = 1, different = 0, first = -1;
    for (int32_t i = 0; i < rank; i++) {
        count *= shape[i];
    }
    const unsigned char *p = a, *q = b;
    for (int64_t i = 0; i < count; i++) {
        const size_t at = (size_t)i * element_bytes;
        if (memcmp(p + at, q + at, element_bytes) != 0) {
            first = different++ ? first : i;
        }
    }
    if (!different) {
        return true;
    }
    char where[128];
    coordinates(where, sizeof where, rank, shape, first);
    uint64_t x = 0, y = 0;
    const size_t shown = element_bytes < sizeof x ? element_bytes : sizeof x;
    memcpy(&x, p + (size_t)first * element_bytes, shown);
    memcpy(&y, q + (size_t)first * element_bytes, shown);
    return chk_fail("%s: %lld of %lld elements differ, first at %s: 0x%llx and 0x%llx", what,
                    (long long)different, (long long)count, where, (unsigned long long)x,
                    (unsigned long long)y);
}

double chk_ulp(double x, int32_t dtype) {
    const int bits = dtype == RSSM_DTYPE_BF16 ? 8 : 24, low = dtype == RSSM_DTYPE_BF16 ? -133 : -149;
    int exponent = low;
    if (x != 0.0 && isfinite(x)) {
        frexp(x, &exponent);
        exponent -= bits;
    }
    return ldexp(1.0, exponent > low ? exponent : low);
}

/* Products on the way to a row this small may be subnormal, which counts as zero: up to 2^-126 each, times what
   values, norms and gates of 1e3 make of it. What is below counts as this. */
static const double least_magnitude = 1e-22;

/* Where few values were compared, the plain path may have been right by luck. */
static const double least_plain = 0x1p-22;

static double row_magnitude(int32_t n, const double *exact, const double *scale) {
    double magnitude = least_magnitude;
    for (int32_t i = 0; i < n; i++) {
        if (isfinite(exact[i])) {
            magnitude = fmax(magnitude, fabs(exact[i]));
        }
        if (scale && isfinite(scale[i])) {
            magnitude = fmax(magnitude, scale[i]);
        }
    }
    return magnitude;
}

double chk_plain_error(double so_far, int32_t n, const double *exact, const double *scale, const double *got) {
    const double magnitude = row_magnitude(n, exact, scale);
    for (int32_t i = 0; i < n; i++) {
        if (isfinite(exact[i]) && isfinite(got[i])) {
            so_far = fmax(so_far, fabs(got[i] - exact[i]) / magnitude);
        }
    }
    return so_far;
}

bool chk_close(const char *what, int32_t n, const double *exact, const double *scale, const double *got,
               double plain, int32_t stored_dtype) {
    const double magnitude = row_magnitude(n, exact, scale), relative = fmax(plain, least_plain);
    for (int32_t i = 0; i < n; i++) {
        double allowed = 3.0 * relative * magnitude + 4.0 * chk_ulp(magnitude, RSSM_DTYPE_F32);
        if (stored_dtype == RSSM_DTYPE_BF16) {
            allowed += 0.5 * chk_ulp(exact[i], RSSM_DTYPE_BF16);
        }
        const bool same_kind =
            isfinite(exact[i]) ? isfinite(got[i]) : (isnan(exact[i]) ? isnan(got[i]) : exact[i] == got[i]);
        if (!same_kind || (isfinite(exact[i]) && !(fabs(got[i] - exact[i]) <= allowed))) {
            return chk_fail("%s: element %d is %.9g, exactly %.9g; error %.3g, allowed %.3g", what, i, got[i],
                            exact[i], fabs(got[i] - exact[i]), allowed);
        }
    }
    return true;
}

uint32_t chk_float_mode(void) {
#if defined(__x86_64__) && defined(__SSE__)
    return __builtin_ia32_stmxcsr() & ~0x3fu;
#elif defined(__aarch64__)
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return (uint32_t)mode;
#else
    return 0;
#endif
}

void chk_set_float_mode(uint32_t mode) {
#if defined(__x86_64__) && defined(__SSE__)
    __builtin_ia32_ldmxcsr(mode);
#elif defined(__aarch64__)
    const uint64_t wide = mode;
    __asm__ volatile("msr fpcr, %0" : : "r"(wide));
#else
    (void)mode;
#endif
}
