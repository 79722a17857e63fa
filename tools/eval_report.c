/* SPDX-License-Identifier: Apache-2.0 */
/* What eval kl found, as JSON and CSV. */
#include "eval_kl.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

/* Relative error in the mean square; 0 where nothing was looked at. */
static double relative(double error, double size) {
    return size > 0.0 && isfinite(error) ? sqrt(error / size) : 0.0;
}

static json_t *json_sum(const sum *s) {
    const double n = (double)s->tokens;
    json_t *object = json_object();
    json_object_set_new(object, "tokens", json_integer(s->tokens));
    json_object_set_new(object, "kl", isfinite(s->kl / n) ? json_real(s->kl / n) : json_null());
    json_object_set_new(object, "top1", json_real((double)s->same / n));
    json_object_set_new(object, "output_error", json_real(relative(s->output_error, s->output_size)));
    json_object_set_new(object, "state_error", json_real(relative(s->state_error, s->state_size)));
    json_object_set_new(object, "nll", isfinite(s->nll / n) ? json_real(s->nll / n) : json_null());
    return object;
}

static int64_t bucket_first(int32_t b) {
    return b == 0 ? 0 : (int64_t)BUCKET_FIRST << (b - 1);
}

rse_status subjects_print(const subject *subjects, int32_t count, rse_error *err) {
    json_t *list = json_array();
    for (int32_t i = 1; i < count; i++) {
        const subject *s = &subjects[i];
        rse_engine_counters counters;
        RSE_TRY(rse_engine_count(s->engine, &counters, err));
        json_t *object = json_sum(&s->all), *buckets = json_array();
        for (int32_t b = 0; b < BUCKETS && s->bucket[b].tokens > 0; b++) {
            json_t *bucket = json_sum(&s->bucket[b]);
            json_object_set_new(bucket, "first", json_integer(bucket_first(b)));
            json_array_append_new(buckets, bucket);
        }
        json_object_set_new(object, "name", json_string(s->name));
        json_object_set_new(object, "kernel", json_string(counters.kernel));
        json_object_set_new(object, "flushes", json_integer(counters.flushes));
        json_object_set_new(object, "buckets", buckets);
        json_array_append_new(list, object);
    }
    json_t *all = json_object();
    json_object_set_new(all, "configs", list);
    json_dumpf(all, stdout, JSON_REAL_PRECISION(6) | JSON_INDENT(1));
    json_decref(all);
    putchar('\n');
    return RSE_OK;
}

/* A field of a CSV file, between quotes where it needs them. */
void csv_put(FILE *file, const char *text) {
    const bool plain = strpbrk(text, ",\"\r\n") == NULL;
    if (!plain) {
        putc('"', file);
    }
    for (; *text != '\0'; text++) {
        if (*text == '"') {
            putc('"', file);
        }
        putc(*text, file);
    }
    if (!plain) {
        putc('"', file);
    }
}

rse_status subjects_write_csv(const subject *subjects, int32_t count, const char *path, rse_error *err) {
    FILE *file = fopen(path, "w");
    if (file == NULL) {
        return rse_fail(err, RSE_ERROR_IO, "%s: cannot be written", path);
    }
    fputs("name,first,tokens,kl,top1,output_error,state_error\n", file);
    for (int32_t i = 1; i < count; i++) {
        for (int32_t b = 0; b < BUCKETS && subjects[i].bucket[b].tokens > 0; b++) {
            const sum *s = &subjects[i].bucket[b];
            csv_put(file, subjects[i].name);
            fprintf(file, ",%lld,%lld,%.6g,%.6g,%.6g,%.6g\n", (long long)bucket_first(b), (long long)s->tokens,
                    s->kl / (double)s->tokens, (double)s->same / (double)s->tokens,
                    relative(s->output_error, s->output_size), relative(s->state_error, s->state_size));
        }
    }
    bool failed = ferror(file) != 0;
    failed = fclose(file) != 0 || failed;
    return !failed ? RSE_OK : rse_fail(err, RSE_ERROR_IO, "%s: cannot be written", path);
}
