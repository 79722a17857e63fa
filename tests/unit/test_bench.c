/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The benchmarks: their statistics, options and checks, rows and JSON on tiny problems, and models of made-up
 * weights that the engine accepts.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "args.h"
#include "bench.h"
#include "engine.h"
#include "kernel.h"
#include "model_shapes.h"
#include "text/tokenizer.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Statistics --------------------------------------------------------------------------------------- */

static void quantiles(void **state) {
    (void)state;
    const double one = 3, eleven[] = {10, 0, 9, 1, 8, 2, 7, 3, 6, 4, 5};
    bench_quantiles q = bench_quantiles_of(&one, 1);
    assert_true(q.p10 == 3 && q.p50 == 3 && q.p90 == 3);
    q = bench_quantiles_of(eleven, 11);
    assert_true(q.p10 == 1 && q.p50 == 5 && q.p90 == 9);
    q = bench_quantiles_of(eleven, 2);
    assert_true(fabs(q.p50 - 5) < 1e-12);
}

typedef struct turns {
    char order[64];
    size_t n;
} turns;

static rse_status sample_a(void *user, double *seconds, rse_error *err) {
    turns *t = user;
    (void)err;
    t->order[t->n++] = 'a';
    *seconds = (double)t->n;
    return RSE_OK;
}
static rse_status sample_b(void *user, double *seconds, rse_error *err) {
    RSE_TRY(sample_a(user, seconds, err));
    *seconds *= 2;
    return ((turns *)user)->n > 60 ? rse_fail(err, RSE_ERROR_LIBRARY, "enough") : RSE_OK;
}

static void samples_are_taken_in_turns(void **state) {
    (void)state;
    bench_series *series = calloc(1, sizeof *series);
    turns t = {0};
    rse_error err = {0};
    bench_series_add(series, sample_a, &t);
    bench_series_add(series, sample_b, &t);
    assert_int_equal(bench_series_run(series, 5, 0, &err), RSE_OK);
    assert_int_equal(series->rounds, 5);
    assert_int_equal(t.n, 12); /* one round goes unrecorded */
    assert_true(series->probes[0].seconds[0] == 3 && series->probes[1].seconds[0] == 8);
    assert_true(bench_series_median_ratio(series, 1, 0) > 2);
    assert_int_equal(bench_series_run(series, 100, 0, &err), RSE_ERROR_LIBRARY);
    free(series);
}

/* ---- Options ------------------------------------------------------------------------------------------ */

static int bench(const char *line) {
    char copy[1024], *argv[64] = {"bench"};
    int argc = 1;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *rest = copy, *word; (word = strtok_r(rest, " ", &rest)) != NULL;) {
        argv[argc++] = word;
    }
    return rse_bench_main(argc, argv);
}

static void wrong_usage_is_2(void **state) {
    (void)state;
    static const char *const lines[] = {"",
                                        "nothing",
                                        "kernel --batch 0",
                                        "kernel --batch 1,x",
                                        "kernel --batch ,",
                                        "kernel --window 65",
                                        "kernel --window 1.5",
                                        "kernel --tokens 17",
                                        "kernel --io f64",
                                        "kernel --isa mmx",
                                        "kernel --json",
                                        "kernel --unheard-of",
                                        "kernel word",
                                        "gemv --rows 0",
                                        "make-model",
                                        "make-model a b",
                                        "make-model --shape gpt-2 directory"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        assert_int_equal(bench(lines[i]), 2);
    }
    assert_int_equal(bench("kernel --help"), 0);
    assert_int_equal(bench("--help"), 0);
}

/* ---- Rows --------------------------------------------------------------------------------------------- */

typedef struct fixture {
    char directory[64];
    bench_common common;
    bench_env env;
} fixture;

static int setup(void **state) {
    fixture *f = calloc(1, sizeof *f);
    rse_error err = {0};
    strcpy(f->directory, "/tmp/rssm-bench-XXXXXX");
    f->common = (bench_common){.pool_mib = 1, .threads = 2, .samples = 3};
    *state = f;
    return mkdtemp(f->directory) == NULL || bench_env_open(&f->common, &f->env, &err) != RSE_OK;
}

static int teardown(void **state) {
    fixture *f = *state;
    char command[128];
    (void)bench_env_close(&f->env, RSE_OK, NULL);
    snprintf(command, sizeof command, "rm -r %s", f->directory);
    int failed = system(command);
    free(f);
    return failed;
}

static const bench_shape *shape_of(int32_t kind) {
    for (size_t i = bench_shape_count; i-- > 0;) {
        if (bench_shapes[i].kind == kind) {
            return &bench_shapes[i]; /* the tiny ones are the last */
        }
    }
    return NULL;
}

static void problems_verify_and_rows_add_up(void **state) {
    fixture *f = *state;
    rse_error err = {0};
    for (int32_t kind = RSSM_MAMBA2; kind <= RSSM_KDA; kind++) {
        for (int32_t tokens = 1; tokens <= 4; tokens += 3) {
            bench_problem p = {.shape = shape_of(kind),
                               .io = tokens == 1 ? RSSM_DTYPE_F32 : RSSM_DTYPE_BF16,
                               .batch = 3,
                               .tokens = tokens,
                               .window = 8};
            bench_row rows[2];
            assert_int_equal(bench_verify_decode(&f->env, &p, &err), RSE_OK);
            assert_int_equal(bench_measure_decode(&f->env, &p, rows, &err), RSE_OK);
            assert_true(rows[0].step.p10 > 0 && rows[0].step.p10 <= rows[0].step.p50 &&
                        rows[0].step.p50 <= rows[0].step.p90);
            /* conventional: every state is read and written in every step, and nothing else is counted */
            assert_true(rows[1].bytes_read >= rows[1].state_bytes && rows[1].flushes == 3);
            if (tokens == 1) { /* a sample holds every phase once */
                assert_true(fabs(rows[0].flushes - 3.0 / 8) < 1e-9);
            }
            assert_true(rows[0].ratio_bytes > 1 && rows[0].ratio_floors > 0 && rows[0].of_floor > 0);
            assert_non_null(strstr(rows[0].id, bench_kind_name(kind)));
        }
    }
}

static void flush_rows_flush_all(void **state) {
    fixture *f = *state;
    rse_error err = {0};
    for (int32_t window = 4; window <= 20; window += 16) { /* 20: filled in two steps */
        bench_problem p = {
            .shape = shape_of(RSSM_GDN), .io = RSSM_DTYPE_F32, .batch = 2, .tokens = 1, .window = window};
        bench_row row;
        assert_int_equal(bench_measure_flush(&f->env, &p, &row, &err), RSE_OK);
        assert_true(row.flushes == 2);
    }
}

static void prefill_rows(void **state) {
    fixture *f = *state;
    rse_error err = {0};
    for (int32_t kind = RSSM_MAMBA2; kind <= RSSM_KDA; kind++) {
        bench_problem p = {
            .shape = shape_of(kind), .io = RSSM_DTYPE_F32, .batch = 2, .tokens = 70, .window = 16};
        bench_row row;
        assert_int_equal(bench_verify_prefill(&f->env, &p, &err), RSE_OK);
        assert_int_equal(bench_measure_prefill(&f->env, &p, &row, &err), RSE_OK);
        assert_true(row.macs > 0 && row.peak_macs > 0 && row.of_decode > 0);
    }
}

static size_t count_lines(const char *path, const char *key) {
    char line[4096];
    size_t n = 0;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        json_t *row = json_loads(line, 0, NULL);
        assert_non_null(row);
        assert_true(json_is_string(json_object_get(row, "revision")));
        assert_true(key == NULL || json_is_number(json_object_get(row, key)));
        json_decref(row);
        n++;
    }
    fclose(file);
    return n;
}

static void json_lines_and_resume(void **state) {
    fixture *f = *state;
    char line[512], path[96];
    snprintf(path, sizeof path, "%s/rows.json", f->directory);
    snprintf(line, sizeof line,
             "kernel --only /tiny-gdn/ --batch 1,2 --tokens 1 --io f32 --caches cold --ops decode,conventional "
             "--samples 2 --pool-mib 1 --json %s --resume %s",
             path, path);
    assert_int_equal(bench(line), 0);
    assert_int_equal(count_lines(path, "of_floor"), 4);
    assert_int_equal(bench(line), 0); /* everything is there already */
    assert_int_equal(count_lines(path, "us_step"), 4);
    snprintf(line, sizeof line, "kernel --json %s/none/rows.json", f->directory);
    assert_int_equal(bench(line), 1);
}

/* ---- Models ------------------------------------------------------------------------------------------- */

static void made_models_run(void **state) {
    fixture *f = *state;
    static const char *const shapes[] = {"tiny-qwen3.5", "tiny-nemotron-3"};
    for (size_t i = 0; i < 2; i++) {
        char line[256], path[128];
        rse_error err = {0};
        rse_engine *engine;
        rse_session *session;
        rse_engine_info info;
        rse_tokenizer *tokenizer;
        snprintf(path, sizeof path, "%s/%s", f->directory, shapes[i]);
        snprintf(line, sizeof line, "make-model --shape %s --shard-mib 1 %s", shapes[i], path);
        assert_int_equal(bench(line), 0);
        assert_int_equal(bench(line), 2); /* a model is there */
        assert_int_equal(rse_engine_open(path, NULL, &engine, &err), RSE_OK);
        assert_int_equal(rse_tokenizer_load(path, &tokenizer, &err), RSE_OK);
        rse_engine_describe(engine, &info);
        assert_int_equal(rse_session_open(engine, 0, &session, &err), RSE_OK);
        const int32_t tokens[] = {1, 2, 3, info.vocab - 1};
        float *logits = malloc((size_t)info.vocab * sizeof *logits);
        rse_row row = {.session = session, .tokens = tokens, .count = 4, .prompt = true, .outputs = 1};
        assert_int_equal(rse_engine_step(engine, &row, 1, logits, NULL, &err), RSE_OK);
        for (int32_t id = 0; id < info.vocab; id++) {
            assert_true(isfinite(logits[id]) && fabsf(logits[id]) < 100);
        }
        free(logits);
        rse_tokenizer_free(tokenizer);
        rse_engine_close(engine);
    }
}

/* Shapes too large to be written here: their tensors have the known numbers of parameters. */
static void large_shapes_have_their_size(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double parameters;
    } known[] = {{"qwen3.5-0.8b", 0.77e9}, {"nemotron-3-nano-4b", 3.97e9}};
    for (size_t i = 0; i < 2; i++) {
        const bench_model *model = bench_model_find(known[i].name);
        rse_config config;
        bench_tensors tensors;
        rse_error err = {0};
        assert_int_equal(rse_config_parse(model->config, strlen(model->config), NULL, 0, &config, &err),
                         RSE_OK);
        assert_int_equal(bench_tensors_list(&config, &tensors, &err), RSE_OK);
        double parameters = 0;
        for (size_t j = 0; j < tensors.count; j++) {
            double n = 1;
            for (int32_t axis = 0; axis < tensors.at[j].rank; axis++) {
                n *= (double)tensors.at[j].shape[axis];
            }
            parameters += n;
        }
        assert_true(fabs(parameters / known[i].parameters - 1) < 0.02);
        bench_tensors_free(&tensors);
    }
    assert_null(bench_model_find("gpt-2"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantiles),
        cmocka_unit_test(samples_are_taken_in_turns),
        cmocka_unit_test(wrong_usage_is_2),
        cmocka_unit_test_setup_teardown(problems_verify_and_rows_add_up, setup, teardown),
        cmocka_unit_test_setup_teardown(flush_rows_flush_all, setup, teardown),
        cmocka_unit_test_setup_teardown(prefill_rows, setup, teardown),
        cmocka_unit_test_setup_teardown(json_lines_and_resume, setup, teardown),
        cmocka_unit_test_setup_teardown(made_models_run, setup, teardown),
        cmocka_unit_test(large_shapes_have_their_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
