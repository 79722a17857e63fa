/* SPDX-License-Identifier: Apache-2.0 */
#include "draft/count.h"

/* Rounds that alternate between none and some drafts before anything is believed; how often each is looked at
 * later. */
enum { WARM_UP = 12, LOOK_AGAIN = 48, TRIAL = 3 };

static const double fresh = 0.15;       /* weight of the newest round */
static const double fresh_draft = 0.02; /* weight of a draft */

/* A first measurement is the least of several: rounds that begin something take longer. */
static void learn(const rse_count *count, double *seconds, double value) {
    if (*seconds > 0.0 && count->rounds > WARM_UP) {
        *seconds += fresh * (value - *seconds);
    } else if (*seconds <= 0.0 || value < *seconds) {
        *seconds = value;
    }
}

static void blend(double *mean, double value, double weight, bool known) {
    *mean = known ? *mean + weight * (value - *mean) : value;
}

void rse_count_start(rse_count *count, int32_t most) {
    *count = (rse_count){.most = most, .right = -1.0};
}

double rse_count_tokens(const rse_count *count, int32_t drafts) {
    double tokens = 1.0, reached = 1.0;
    for (int32_t i = 0; i < drafts; i++) {
        reached *= count->right;
        tokens += reached;
    }
    return tokens;
}

double rse_count_cost(const rse_count *count, int32_t drafts) {
    return (count->plain + count->slope * drafts) / count->plain;
}

bool rse_count_settled(const rse_count *count) {
    return count->rounds > WARM_UP && count->plain > 0.0 && count->slope > 0.0 && count->right >= 0.0;
}

static int32_t best(const rse_count *count) {
    int32_t chosen = 0;
    double most = 1.0;
    for (int32_t d = 1; d <= count->most; d++) {
        double gain = rse_count_tokens(count, d) / rse_count_cost(count, d);
        if (gain > most) {
            most = gain;
            chosen = d;
        }
    }
    return chosen;
}

int32_t rse_count_choose(rse_count *count, int32_t rows) {
    if (rows != count->rows) { /* another batch, another cost */
        count->rows = rows;
        count->rounds = 0;
        count->plain = count->slope = 0.0;
    }
    int32_t trial = count->most < TRIAL ? count->most : TRIAL;
    int64_t round = count->rounds++;
    if (!rse_count_settled(count)) {
        count->chosen = round % 2 == 0 ? 0 : trial;
        return count->chosen;
    }
    int32_t usual = best(count);
    count->chosen = usual;
    if (round % LOOK_AGAIN == 0) {
        return usual == 0 ? trial : 0;
    }
    return usual;
}

void rse_count_learn(rse_count *count, int32_t rows, int32_t drafts, double seconds, int64_t tried,
                     int64_t right) {
    if (rows == count->rows && drafts == 0) {
        learn(count, &count->plain, seconds);
    } else if (rows == count->rows && count->plain > 0.0) {
        double slope = (seconds - count->plain) / drafts;
        learn(count, &count->slope, slope > 1e-9 ? slope : 1e-9);
    }
    if (tried > 0) {
        double weight = fresh_draft * (double)tried;
        blend(&count->right, (double)right / (double)tried, weight < 0.5 ? weight : 0.5, count->right >= 0.0);
    }
}
