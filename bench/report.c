/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of `bench kernel` as a table and as lines of JSON. */
#include "kernel.h"
#include "machine.h"

void bench_table_head(FILE *out) {
    fprintf(out, "%-72s %9s %8s %17s %8s %6s %6s %6s %6s %6s %6s\n", "row", "us/step", "us/seq", "p10..p90",
            "MB/step", "GB/s", "floor", "copy", "ratio", "allow", "bytes");
}

void bench_table_row(FILE *out, const bench_row *row) {
    double bytes = row->bytes_read + row->bytes_written;
    char spread[32];
    snprintf(spread, sizeof spread, "%.1f..%.1f", 1e6 * row->step.p10, 1e6 * row->step.p90);
    if (row->operation == BENCH_PREFILL) {
        fprintf(out,
                "%-72s %9.1f %8.1f %17s %8.0f tokens/s, %.1f of %.1f Gmac/s = %.2f, per token %.2f x decode\n",
                row->id, 1e6 * row->step.p50, 1e6 * row->step.p50 / row->problem.batch, spread,
                row->problem.tokens * row->problem.batch / row->step.p50, 1e-9 * row->macs,
                1e-9 * row->peak_macs, row->of_peak, row->of_decode);
        return;
    }
    fprintf(out, "%-72s %9.1f %8.1f %17s %8.2f %6.1f %6.2f %6.2f %6.2f %6.2f %6.2f\n", row->id,
            1e6 * row->step.p50, 1e6 * row->step.p50 / row->problem.batch, spread, 1e-6 * bytes,
            1e-9 * bytes / row->step.p50, row->of_floor, row->of_copy, row->ratio, row->ratio_floors,
            row->ratio_bytes);
}

void bench_json_row(FILE *out, const bench_env *env, const bench_row *row) {
    const bench_problem *p = &row->problem;
    fprintf(out,
            "{\"id\": \"%s\", \"kernel\": \"%s\", \"operation\": \"%s\", \"shape\": \"%s\", \"kind\": \"%s\"",
            row->id, row->kernel, bench_operation_name(row->operation), p->shape->name,
            bench_kind_name(p->shape->kind));
    fprintf(out, ", \"key_heads\": %d, \"value_heads\": %d, \"d_k\": %d, \"d_v\": %d", p->shape->key_heads,
            p->shape->value_heads, p->shape->d_k, p->shape->d_v);
    fprintf(out, ", \"io\": \"%s\", \"batch\": %d, \"tokens\": %d, \"window\": %d, \"warm\": %s",
            rssm_dtype_name(p->io), p->batch, p->tokens, p->window, p->warm ? "true" : "false");
    fprintf(out, ", \"groups\": %d, \"samples\": %d, \"committed\": %g", row->groups, row->samples,
            row->committed);
    fprintf(out, ", \"us_step\": %.4g, \"us_step_p10\": %.4g, \"us_step_p90\": %.4g, \"us_sequence\": %.4g",
            1e6 * row->step.p50, 1e6 * row->step.p10, 1e6 * row->step.p90, 1e6 * row->step.p50 / p->batch);
    if (row->operation == BENCH_PREFILL) {
        fprintf(out, ", \"tokens_per_second\": %.5g, \"gmacs\": %.4g, \"peak_gmacs\": %.4g, \"of_peak\": %.4g",
                p->tokens * p->batch / row->step.p50, 1e-9 * row->macs, 1e-9 * row->peak_macs, row->of_peak);
        fprintf(out, ", \"token_over_decode\": %.4g", row->of_decode);
    } else {
        double bytes = row->bytes_read + row->bytes_written;
        fprintf(out,
                ", \"state_bytes\": %.0f, \"bytes_read\": %.0f, \"bytes_written\": %.0f, \"flushes\": %.4g",
                row->state_bytes, row->bytes_read, row->bytes_written, row->flushes);
        fprintf(out, ", \"gbs\": %.4g, \"read_gbs\": %.4g, \"update_gbs\": %.4g, \"copy_gbs\": %.4g",
                1e-9 * bytes / row->step.p50, 1e-9 * row->read, 1e-9 * row->update, 1e-9 * row->copy);
        fprintf(out, ", \"us_floor\": %.4g, \"of_floor\": %.4g, \"of_copy\": %.4g", 1e6 * row->floor,
                row->of_floor, row->of_copy);
        fprintf(out, ", \"ratio\": %.4g, \"ratio_floors\": %.4g, \"ratio_bytes\": %.4g", row->ratio,
                row->ratio_floors, row->ratio_bytes);
    }
    fputs(", ", out);
    bench_json_machine(out, env->threads);
    fprintf(out, "}\n");
    fflush(out);
}
