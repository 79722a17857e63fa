/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the numeric tests share: cases that are counted and named, random numbers from a printed seed, memory
 * that ends at a page nobody may touch, poison, and the comparison rule. A case is a function that runs under a
 * crash handler; everything it allocates here is released when it ends.
 *
 *     int main(int argc, char **argv) {
 *         chk_start(argc, argv);
 *         chk_case("name", function, argument);
 *         return chk_finish();          // prints "N passed, M failed"
 *     }
 *
 * Options every such program understands: --seed N, --repeat N, --only PATTERN (glob or substring of case
 * names),
 * --isa NAME, --problem K (the K-th random problem of a case alone), --list, --verbose. A failed check prints
 * one line: case, parameters, seed, message, command to rerun.
 */
#ifndef RSSM_TESTS_CHECK_H
#define RSSM_TESTS_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- Cases -------------------------------------------------------------------------------------------- */

typedef struct chk_options {
    uint64_t seed;
    int32_t repeat;   /* how many problems a case should try; 0: the case's own default */
    const char *only; /* NULL: all */
    const char *isa;  /* NULL: all */
    int32_t problem;  /* -1: all */
    bool list;
    bool verbose;
} chk_options;

void chk_start(int argc, char **argv); /* exits with 2 on a bad option */
const chk_options *chk_opts(void);
/* The count a case should use: --repeat, or `normal`, cut down under sanitizers. */
int32_t chk_repeat(int32_t normal);
/* False for the problems that --problem leaves out. */
bool chk_wants(int32_t problem);

typedef void chk_fn(void *arg);
/* Runs one case (or lists it, or skips it because of --only) and counts it. */
void chk_case(const char *name, chk_fn *fn, void *arg);
/* Prints the counts; the exit status for main. */
int chk_finish(void);

/* Parameters of the problem at hand, printed with every failure until the next call. printf-like. */
void chk_params(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Records a failure of the running case; the case goes on. Always returns false. */
bool chk_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* True if nothing failed since the case began. */
bool chk_ok(void);
/* Ends the running case at once, as failed. */
void chk_abandon(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
/* chk_fail with the condition's text; for plain conditions. */
#define CHK(condition) ((condition) ? true : chk_fail("%s:%d: %s", __FILE__, __LINE__, #condition))

/*
 * Collects the failures of one function instead of counting them: for the tests of the tests. Crashes are
 * caught. Returns the number of failures, or -1 after a crash; the text of the first is copied to `first`.
 */
int chk_expect(chk_fn *fn, void *arg, char *first, size_t first_bytes);

/* ---- Random numbers ------------------------------------------------------------------------------------ */

typedef struct chk_rng {
    uint64_t state;
} chk_rng;

/* A generator that depends on --seed, the name and the number alone, so that one problem can be run by itself.
 */
chk_rng chk_rng_make(const char *name, uint64_t number);
uint64_t chk_u64(chk_rng *rng);
int32_t chk_int(chk_rng *rng, int32_t low, int32_t high); /* both included */
double chk_uniform(chk_rng *rng, double low, double high);
double chk_normal(chk_rng *rng); /* mean 0, deviation 1, within 3.5 */
bool chk_flip(chk_rng *rng, double probability);
void chk_shuffle(chk_rng *rng, int32_t *a, int32_t n);
#define CHK_PICK(rng, array) ((array)[chk_int((rng), 0, (int32_t)(sizeof(array) / sizeof((array)[0])) - 1)])

/* ---- Memory -------------------------------------------------------------------------------------------- */

/* Zeroed memory of the running case. Never NULL: a case that runs out of memory is abandoned. */
void *chk_alloc(size_t bytes);
/* Calls fn(arg) when the case's memory is released, last registered first. */
void chk_defer(void (*fn)(void *), void *arg);
/* Releases the memory of the running case now; for cases that try many problems. */
void chk_release(void);

enum { CHK_LEFT = 0, CHK_RIGHT = 1 };
/*
 * Memory of the case between two pages that must not be touched: its first byte (CHK_LEFT) or its last
 * (CHK_RIGHT) lies against one of them. With CHK_RIGHT `align` (a power of two) moves it left as needed; the
 * slack on either side, up to the page, holds a canary that chk_guards_intact() looks at. The contents are
 * 0xAA.
 */
void *chk_guard(size_t bytes, size_t align, int side);
/* Checks the slack of every guarded allocation of the case; a write there fails it. */
bool chk_guards_intact(void);

/* Fill patterns that mean the same in f32 and bf16. */
typedef enum chk_poison { CHK_NAN, CHK_SIGNALLING, CHK_HUGE, CHK_AA } chk_poison;
void chk_fill(void *data, size_t bytes, chk_poison poison);
/* Fills a gap with bytes that depend on the address; check says whether they are still there. */
void chk_canary(void *data, size_t bytes);
bool chk_canary_intact(const void *data, size_t bytes, size_t *first_bad);

/* ---- Comparison ---------------------------------------------------------------------------------------- */

/* Bit for bit; the failure names the first differing element as coordinates in shape [rank], last one
 * contiguous. */
bool chk_same_bits(const char *what, const void *a, const void *b, size_t element_bytes, int32_t rank,
                   const int64_t *shape);

/* The distance between neighbouring numbers of an RSSM_DTYPE_* (f32 or bf16) at magnitude x. */
double chk_ulp(double x, int32_t dtype);

/*
 * The tolerance rule. For a row of n values: |got - exact| may be 3 times what the plain C path of the same
 * storage precision makes, plus 4 ULP (f32) of the row's magnitude, plus half an ULP of the stored format where
 * that is narrower. The magnitude is the largest of |exact| and of `scale` (the size of the sums the values are
 * made of; NULL: |exact| alone), and rows below 1e-22 count as that, since products on the way to them
 * may be subnormal. `plain` is the plain path's error relative to that magnitude, largest over its rows
 * (chk_plain_error()), and at least 2^-22. NaN and infinities must be where the exact values have them.
 */
double chk_plain_error(double so_far, int32_t n, const double *exact, const double *scale, const double *got);
bool chk_close(const char *what, int32_t n, const double *exact, const double *scale, const double *got,
               double plain, int32_t stored_dtype);

/* The floating-point control and status word with the sticky exception flags masked off; 0 where there is none.
 */
uint32_t chk_float_mode(void);
void chk_set_float_mode(uint32_t mode);

#endif
