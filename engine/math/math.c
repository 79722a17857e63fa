/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic's front: picks the instruction set, cuts calls into tasks for the pool, and does in double
 * what is done once per token. Compiled without the flags of any instruction set.
 */
#include "math/math.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "math/math_ops.h"

struct rse_math {
    const rse_math_ops *ops;
    const char *isa;
    rse_pool *pool;
};

/* The variants of this build, the plainest first; the last one that the machine can run is taken. */
static const struct {
    uint64_t need;
    const char *name;
    const rse_math_ops *ops;
} variants[] = {
    {0, "scalar", &rse_math_ops_scalar},
#ifdef RSSM_BUILD_AVX2
    {RSSM_ISA_AVX2, "avx2", &rse_math_ops_avx2},
#endif
#ifdef RSSM_BUILD_AVX512
    {RSSM_ISA_AVX512, "avx512", &rse_math_ops_avx512},
#endif
#ifdef RSSM_BUILD_NEON
    {RSSM_ISA_NEON, "neon", &rse_math_ops_neon},
#endif
};

rse_status rse_math_create(uint64_t isa_mask, rse_pool *pool, rse_math **out, rse_error *err) {
    *out = NULL;
    rse_math *math = malloc(sizeof *math);
    if (math == NULL) {
        return rse_fail(err, RSE_ERROR_MEMORY, "no memory for %zu bytes of arithmetic tables", sizeof *math);
    }
    uint64_t isa = rssm_isa_available() & (isa_mask != 0 ? isa_mask : UINT64_MAX);
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        if ((variants[i].need & ~isa) == 0) {
            *math = (rse_math){.ops = variants[i].ops, .isa = variants[i].name, .pool = pool};
        }
    }
    *out = math;
    return RSE_OK;
}

void rse_math_destroy(rse_math *math) {
    free(math);
}

const char *rse_math_isa(const rse_math *math) {
    return math->isa;
}

rse_pool *rse_math_pool(const rse_math *math) {
    return math->pool;
}

const rse_math_ops *rse_math_table(const rse_math *math) {
    return math->ops;
}

typedef struct matmul_job {
    const rse_math_ops *ops;
    rse_matmul_args args;
} matmul_job;

static void matmul_task(void *arg, int64_t task) {
    const matmul_job *job = arg;
    job->ops->matmul(&job->args, task);
}

void rse_matmul(const rse_math *math, const rse_matrix *w, const float *bias, int64_t rows, const float *x,
                int64_t x_stride, float *y, int64_t y_stride) {
    int64_t groups = (w->rows + RSE_MATMUL_GROUP - 1) / RSE_MATMUL_GROUP;
    /* several groups share a pass over x; but every thread should have some tasks to even out their ranges */
    int64_t share = groups / (4 * rse_pool_threads(math->pool));
    share = share < 1 ? 1 : share > RSE_MATMUL_MAX_GROUPS ? RSE_MATMUL_MAX_GROUPS : share;
    matmul_job job = {math->ops, {w, bias, rows, x, x_stride, y, y_stride, share}};
    rse_pool_run(math->pool, (groups + share - 1) / share, matmul_task, &job);
}

void rse_matrix_row(const rse_math *math, const rse_matrix *w, int64_t row, float *y) {
    math->ops->expand(w, row, 0, w->cols, y);
}

/* Blocks of the packed formats: weights and bytes. Where scales lie apart, only the codes count. */
static const struct {
    int32_t dtype, weights, bytes;
} blocks[] = {
    {RSSM_DTYPE_F32, 1, 4},
    {RSSM_DTYPE_BF16, 1, 2},
    {RSSM_DTYPE_F16, 1, 2},
    {RSE_PACKED_F8, 1, 1},
    {RSE_PACKED_NVFP4, 16, 8},
    {RSE_PACKED_MXFP4, 32, 16},
    {RSE_PACKED_Q8_0, 32, 34},
    {RSE_PACKED_Q4_0, 32, 18},
    {RSE_PACKED_Q4_K, 256, 144},
    {RSE_PACKED_Q5_K, 256, 176},
    {RSE_PACKED_Q6_K, 256, 210},
    {RSE_PACKED_IQ4_NL, 32, 18},
    {RSE_PACKED_MXFP4_BLOCKS, 32, 17},
    {RSE_PACKED_NVFP4_BLOCKS, 64, 36},
};

int64_t rse_matrix_block(int32_t dtype) {
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        if (blocks[i].dtype == dtype) {
            return blocks[i].weights;
        }
    }
    return 0;
}

int64_t rse_matrix_bytes(int32_t dtype, int64_t cols) {
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        if (blocks[i].dtype == dtype) {
            return cols / blocks[i].weights * blocks[i].bytes;
        }
    }
    return 0;
}

rse_matrix rse_matrix_rows(const rse_matrix *w, int64_t first, int64_t count) {
    rse_matrix part = *w;
    part.data = (const char *)w->data + first * rse_matrix_bytes(w->dtype, w->cols);
    part.rows = count;
    if (w->dtype == RSE_PACKED_F8) {
        part.first_row += first;
    } else if (w->scales != NULL) {
        part.scales = (const char *)w->scales + first * w->scale_stride;
    }
    return part;
}

void rse_matrix_expand(const rse_matrix *w, float *y) {
    for (int64_t row = 0; row < w->rows; row++) {
        rse_math_ops_scalar.expand(w, row, 0, w->cols, y + row * w->cols);
    }
}

typedef struct row_job {
    rse_row_fn *fn;
    const rse_row_args *args;
    int64_t rows;
    int64_t tasks;
} row_job;

static void row_task(void *arg, int64_t task) {
    const row_job *job = arg;
    int64_t end = job->rows * (task + 1) / job->tasks;
    for (int64_t row = job->rows * task / job->tasks; row < end; row++) {
        job->fn(job->args, row);
    }
}

/* Rows in as many tasks as there are threads, or in one where waking the others takes longer than the work. */
static void run_rows(const rse_math *math, rse_row_fn *fn, int64_t rows, const rse_row_args *args) {
    enum { WORTH_A_THREAD = 8192 };
    int64_t tasks = rows * args->cols / WORTH_A_THREAD, most = rse_pool_threads(math->pool);
    tasks = tasks < 1 ? 1 : tasks < most ? tasks : most;
    row_job job = {fn, args, rows, tasks < rows ? tasks : rows};
    rse_pool_run(math->pool, job.tasks, row_task, &job);
}

void rse_rms_norm(const rse_math *math, int64_t rows, int64_t cols, const float *x, int64_t x_stride,
                  const float *w, float eps, float *y, int64_t y_stride) {
    rse_row_args args = {
        .cols = cols, .a = x, .a_stride = x_stride, .w = w, .eps = eps, .y = y, .y_stride = y_stride};
    run_rows(math, math->ops->rms_norm, rows, &args);
}

static void run_map(const rse_math *math, rse_row_fn *fn, int64_t rows, int64_t cols, const float *a,
                    int64_t a_stride, const float *b, int64_t b_stride, float *y, int64_t y_stride) {
    rse_row_args args = {
        .cols = cols, .a = a, .a_stride = a_stride, .b = b, .b_stride = b_stride, .y = y, .y_stride = y_stride};
    run_rows(math, fn, rows, &args);
}

void rse_silu_mul(const rse_math *math, int64_t rows, int64_t cols, const float *gate, int64_t gate_stride,
                  const float *x, int64_t x_stride, float *y, int64_t y_stride) {
    run_map(math, math->ops->silu_mul, rows, cols, gate, gate_stride, x, x_stride, y, y_stride);
}

void rse_sigmoid_mul(const rse_math *math, int64_t rows, int64_t cols, const float *gate, int64_t gate_stride,
                     const float *x, int64_t x_stride, float *y, int64_t y_stride) {
    run_map(math, math->ops->sigmoid_mul, rows, cols, gate, gate_stride, x, x_stride, y, y_stride);
}

void rse_relu2(const rse_math *math, int64_t rows, int64_t cols, const float *x, int64_t x_stride, float *y,
               int64_t y_stride) {
    run_map(math, math->ops->relu2, rows, cols, x, x_stride, NULL, 0, y, y_stride);
}

void rse_add(const rse_math *math, int64_t rows, int64_t cols, const float *a, int64_t a_stride, const float *b,
             int64_t b_stride, float *y, int64_t y_stride) {
    run_map(math, math->ops->add, rows, cols, a, a_stride, b, b_stride, y, y_stride);
}

void rse_round_bf16(const rse_math *math, int64_t rows, int64_t cols, const float *x, int64_t x_stride,
                    float *y, int64_t y_stride) {
    run_map(math, math->ops->round_bf16, rows, cols, x, x_stride, NULL, 0, y, y_stride);
}

void rse_clamp(const rse_math *math, int64_t rows, int64_t cols, const float *x, int64_t x_stride, float low,
               float high, float *y, int64_t y_stride) {
    rse_row_args args = {
        .cols = cols, .a = x, .a_stride = x_stride, .factor = low, .other = high, .y = y, .y_stride = y_stride};
    run_rows(math, math->ops->clamp, rows, &args);
}

void rse_situ_mul(const rse_math *math, int64_t rows, int64_t cols, const float *gate, int64_t gate_stride,
                  const float *x, int64_t x_stride, float beta, float up, float *y, int64_t y_stride) {
    rse_row_args args = {.cols = cols,
                         .a = gate,
                         .a_stride = gate_stride,
                         .b = x,
                         .b_stride = x_stride,
                         .factor = beta,
                         .other = up,
                         .y = y,
                         .y_stride = y_stride};
    run_rows(math, math->ops->situ_mul, rows, &args);
}

void rse_scale(const rse_math *math, int64_t rows, int64_t cols, const float *x, int64_t x_stride, float factor,
               float *y, int64_t y_stride) {
    rse_row_args args = {
        .cols = cols, .a = x, .a_stride = x_stride, .factor = factor, .y = y, .y_stride = y_stride};
    run_rows(math, math->ops->scale, rows, &args);
}

void rse_add_scaled(const rse_math *math, int64_t rows, int64_t cols, const float *x, int64_t x_stride,
                    const float *factors, const int32_t *to, float *y, int64_t y_stride) {
    rse_row_args args = {
        .cols = cols, .a = x, .a_stride = x_stride, .factors = factors, .to = to, .y = y, .y_stride = y_stride};
    run_rows(math, math->ops->add_scaled, rows, &args);
}

void rse_softmax(const rse_math *math, int64_t rows, int64_t cols, const float *x, int64_t x_stride, float *y,
                 int64_t y_stride) {
    run_map(math, math->ops->softmax, rows, cols, x, x_stride, NULL, 0, y, y_stride);
}

rse_status rse_rope_table(int32_t dims, double theta, int64_t tokens, const int64_t *positions, float *table,
                          rse_error *err) {
    if (dims < 2 || dims > RSE_ROPE_MAX_DIMS || dims % 2 != 0) {
        return rse_fail(err, RSE_ERROR_USAGE, "rotary dimensions are %d; they must be even, 2 to %d", dims,
                        RSE_ROPE_MAX_DIMS);
    }
    if (!(theta > 0.0) || isinf(theta)) {
        return rse_fail(err, RSE_ERROR_USAGE, "rope theta is %g; it must be positive and finite", theta);
    }
    int32_t half = dims / 2;
    double frequency[RSE_ROPE_MAX_DIMS / 2];
    for (int32_t i = 0; i < half; i++) {
        frequency[i] = pow(theta, -2.0 * i / dims);
    }
    for (int64_t t = 0; t < tokens; t++) {
        for (int32_t i = 0; i < half; i++) {
            double angle = (double)positions[t] * frequency[i];
            table[t * dims + i] = (float)cos(angle);
            table[t * dims + half + i] = (float)sin(angle);
        }
    }
    return RSE_OK;
}

typedef struct rope_job {
    const rse_math_ops *ops;
    rse_rope_args args;
} rope_job;

static void rope_task(void *arg, int64_t token) {
    const rope_job *job = arg;
    job->ops->rope(&job->args, token);
}

void rse_rope(const rse_math *math, int64_t tokens, int64_t heads, int32_t dims, const float *table, float *x,
              int64_t token_stride, int64_t head_stride) {
    rope_job job = {math->ops, {heads, dims, table, x, token_stride, head_stride}};
    rse_pool_run(tokens * heads * dims < 8192 ? NULL : math->pool, tokens, rope_task, &job);
}

int64_t rse_argmax(const rse_math *math, const float *x, int64_t n) {
    float max = math->ops->max(x, n);
    for (int64_t i = 0; i < n; i++) {
        if (x[i] == max) {
            return i;
        }
    }
    return 0;
}

double rse_nll(const float *logits, int64_t n, int64_t target) {
    double max = -HUGE_VAL, sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        max = (double)logits[i] > max ? (double)logits[i] : max;
    }
    for (int64_t i = 0; i < n; i++) {
        sum += exp((double)logits[i] - max);
    }
    return log(sum) + max - (double)logits[target];
}
