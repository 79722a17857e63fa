/* SPDX-License-Identifier: Apache-2.0 */
#include "tool.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { BAR_WIDTH = 30 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* https://no-color.org: any value but the empty one means no colour. */
static bool coloured(void) {
    const char *no = getenv("NO_COLOR");
    return no == NULL || no[0] == '\0';
}

void progress_show(progress *bar, const char *label, int64_t done, int64_t total) {
    if (!isatty(STDERR_FILENO) || total <= 0) {
        return;
    }
    if (bar->label == NULL) {
        *bar = (progress){.label = label, .began = now()};
    }
    if (now() - bar->began < 0.3) {
        return;
    }
    int filled = (int)(BAR_WIDTH * done / total);
    fprintf(stderr, "\r%s %s[", bar->label, coloured() ? "\x1b[2m" : "");
    for (int i = 0; i < BAR_WIDTH; i++) {
        fputc(i < filled ? '#' : '.', stderr);
    }
    fprintf(stderr, "]%s %3d%%", coloured() ? "\x1b[0m" : "", (int)(100 * done / total));
    fflush(stderr);
    bar->shown = true;
}

void progress_clear(progress *bar) {
    if (bar->shown) {
        fputs("\r\x1b[K", stderr);
    }
    *bar = (progress){0};
}
