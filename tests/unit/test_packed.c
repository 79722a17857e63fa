/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed weights: every format expands to the values of an independent decoder, on every instruction set, and a
 * product with packed weights has the bits of one with the expanded ones, for any number of rows and any slice.
 */
#include "load/safetensors.h"
#include "math/math.h"
#include "model_fixture.h"

enum { ROWS = 3, COLS = 512, MOST_X = 50 };

typedef struct format {
    const char *name;
    int32_t dtype;
    int64_t scale_stride;
} format;

static const format formats[] = {
    {"Q8_0", RSE_PACKED_Q8_0, 0},
    {"Q4_0", RSE_PACKED_Q4_0, 0},
    {"Q4_K", RSE_PACKED_Q4_K, 0},
    {"Q5_K", RSE_PACKED_Q5_K, 0},
    {"Q6_K", RSE_PACKED_Q6_K, 0},
    {"IQ4_NL", RSE_PACKED_IQ4_NL, 0},
    {"MXFP4", RSE_PACKED_MXFP4_BLOCKS, 0},
    {"NVFP4", RSE_PACKED_NVFP4_BLOCKS, 0},
    {"PAIRS16", RSE_PACKED_NVFP4, 32},
    {"PAIRS32", RSE_PACKED_MXFP4, 16},
    {"F8", RSE_PACKED_F8, 5},
};
enum { FORMATS = sizeof formats / sizeof formats[0] };

static const void *find(const rse_safetensors *files, const char *name, const char *part) {
    char full[64];
    snprintf(full, sizeof full, "%s.%s", name, part);
    const rse_tensor *t = rse_safetensors_find(files, full);
    return t != NULL ? t->data : NULL;
}

static rse_matrix matrix_of(const rse_safetensors *files, const format *f) {
    return (rse_matrix){.data = find(files, f->name, "codes"),
                        .rows = ROWS,
                        .cols = COLS,
                        .dtype = f->dtype,
                        .factor = f->dtype == RSE_PACKED_NVFP4 ? 0.03125f : 1.0f,
                        .scales = find(files, f->name, "scales"),
                        .scale_stride = f->scale_stride,
                        .scale_rows = 2,
                        .scale_cols = 120};
}

static bool same_value(float a, float b) {
    return a == b || (isnan(a) && isnan(b));
}

static void check_format(const rse_safetensors *files, const format *f, const rse_math *math) {
    rse_matrix w = matrix_of(files, f);
    const float *wanted = find(files, f->name, "values");
    static float values[ROWS * COLS], whole[ROWS * COLS];
    assert_true(COLS % rse_matrix_block(f->dtype) == 0);
    rse_matrix_expand(&w, whole);
    for (int32_t row = 0; row < ROWS; row++) {
        rse_matrix_row(math, &w, row, values + row * COLS);
    }
    for (int32_t i = 0; i < ROWS * COLS; i++) {
        if (!same_value(values[i], wanted[i]) || !same_value(whole[i], wanted[i])) {
            fail_msg("%s: weight %d is %g, not %g", f->name, i, (double)values[i], (double)wanted[i]);
        }
        values[i] = isnan(values[i]) ? 0.0f : values[i];
    }
    if (f->dtype == RSE_PACKED_F8) { /* codes of NaN among the weights */
        return;
    }
    static float x[MOST_X * COLS];
    for (int32_t i = 0; i < MOST_X * COLS; i++) {
        x[i] = sinf((float)i);
    }
    rse_matrix plain = {.data = values, .rows = ROWS, .cols = COLS, .dtype = RSSM_DTYPE_F32, .factor = 1.0f};
    static const int32_t counts[] = {1, 5, MOST_X};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        float a[MOST_X * ROWS], b[MOST_X * ROWS];
        rse_matmul(math, &w, NULL, counts[i], x, COLS, a, ROWS);
        rse_matmul(math, &plain, NULL, counts[i], x, COLS, b, ROWS);
        assert_memory_equal(a, b, (size_t)(counts[i] * ROWS) * sizeof *a);
        rse_matrix slice = rse_matrix_rows(&w, 1, 2);
        rse_matmul(math, &slice, NULL, counts[i], x, COLS, b, ROWS);
        for (int32_t m = 0; m < counts[i]; m++) {
            assert_memory_equal(a + m * ROWS + 1, b + m * ROWS, 2 * sizeof *a);
        }
    }
}

static void test_formats(void **state) {
    (void)state;
    rse_safetensors *files;
    OK(rse_safetensors_open(RSSM_SOURCE_DIR "/tests/golden/packed.safetensors", &files, &err));
    static const uint64_t masks[] = {RSSM_ISA_NONE, 0};
    for (size_t m = 0; m < 2; m++) {
        rse_math *math;
        OK(rse_math_create(masks[m], NULL, &math, &err));
        for (size_t i = 0; i < FORMATS; i++) {
            check_format(files, &formats[i], math);
        }
        rse_math_destroy(math);
    }
    rse_safetensors_close(files);
}

/* Slices of FP8 keep their place in the grid of scales. */
static void test_f8_slice(void **state) {
    (void)state;
    rse_safetensors *files;
    OK(rse_safetensors_open(RSSM_SOURCE_DIR "/tests/golden/packed.safetensors", &files, &err));
    const format *f8 = &formats[FORMATS - 1];
    rse_matrix w = matrix_of(files, f8);
    const float *wanted = find(files, f8->name, "values");
    rse_matrix slice = rse_matrix_rows(&w, 2, 1);
    float values[COLS];
    rse_matrix_expand(&slice, values);
    for (int32_t i = 0; i < COLS; i++) {
        assert_true(same_value(values[i], wanted[2 * COLS + i]));
    }
    rse_safetensors_close(files);
}

static void test_sizes(void **state) {
    (void)state;
    assert_int_equal(rse_matrix_bytes(RSE_PACKED_Q4_K, 512), 288);
    assert_int_equal(rse_matrix_bytes(RSE_PACKED_NVFP4, 512), 256);
    assert_int_equal(rse_matrix_bytes(RSSM_DTYPE_F16, 7), 14);
    assert_int_equal(rse_matrix_block(99), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_f8_slice),
        cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
