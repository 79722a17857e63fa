/* SPDX-License-Identifier: Apache-2.0 */
/* Cases, options, failures and crashes; check.h is the manual. The memory and the numbers are in files beside
 * it. */
#include "check.h"

#include <errno.h>
#include <fnmatch.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check_internal.h"

enum { PRINTED_PER_CASE = 3 };

/* What is running: a case, or a function under chk_expect(). */
typedef struct run {
    const char *name;
    char params[512];
    int failures;
    char *first; /* chk_expect: the first failure goes here and nothing is printed */
    size_t first_bytes;
    bool captured;
    sigjmp_buf back;
} run;

static chk_options options = {.seed = 1, .problem = -1};
static const char *program = "test";
static int passed, failed;
static run *current;
static pthread_t main_thread;

static uint64_t number_of(const char *option, const char *text) {
    char *end;
    errno = 0;
    const uint64_t value = text ? strtoull(text, &end, 0) : 0;
    if (!text || errno || end == text || *end) {
        fprintf(stderr, "%s: %s needs a number, not '%s'\n", program, option, text ? text : "");
        exit(2);
    }
    return value;
}

static void say(const char *text) {
    if (write(2, text, strlen(text)) < 0) {
        _exit(3);
    }
}

static void on_crash(int signal_number) {
    if (!current || !pthread_equal(pthread_self(), main_thread)) { /* nowhere to go back to */
        say("FAIL ");
        say(current ? current->name : program);
        say(" [");
        say(current ? current->params : "");
        say("]: crashed in a thread of its own\n");
        _exit(1);
    }
    siglongjmp(current->back, signal_number);
}

void chk_start(int argc, char **argv) {
    program = argv[0];
    main_thread = pthread_self();
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(name, "--list") == 0) {
            options.list = true;
            continue;
        }
        if (strcmp(name, "--verbose") == 0) {
            options.verbose = true;
            continue;
        }
        if (strcmp(name, "--seed") == 0) {
            options.seed = number_of(name, value);
        } else if (strcmp(name, "--repeat") == 0) {
            options.repeat = (int32_t)number_of(name, value);
        } else if (strcmp(name, "--problem") == 0) {
            options.problem = (int32_t)number_of(name, value);
        } else if (strcmp(name, "--only") == 0 && value) {
            options.only = value;
        } else if (strcmp(name, "--isa") == 0 && value) {
            options.isa = value;
        } else {
            fprintf(stderr, "%s: unknown option or missing value: %s\n", program, name);
            exit(2);
        }
        i++;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!options.list) {
        printf("%s --seed %llu\n", program, (unsigned long long)options.seed);
    }
    struct sigaction action = {.sa_handler = on_crash, .sa_flags = SA_NODEFER};
    const int crashes[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    for (size_t i = 0; i < sizeof crashes / sizeof crashes[0]; i++) {
        sigaction(crashes[i], &action, NULL);
    }
}

const chk_options *chk_opts(void) {
    return &options;
}

int32_t chk_repeat(int32_t normal) {
    if (options.repeat > 0) {
        return options.repeat;
    }
    if (options.problem >= normal) {
        return options.problem + 1;
    }
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return options.problem >= 0 ? normal : (normal + 11) / 12;
#else
    return normal;
#endif
}

bool chk_wants(int32_t problem) {
    return options.problem < 0 || options.problem == problem;
}

static bool wanted(const char *name) {
    return !options.only || strstr(name, options.only) || fnmatch(options.only, name, 0) == 0;
}

/* Runs fn with crashes caught. Returns the signal number, 0, or -1 after chk_abandon(). */
static int run_caught(run *r, chk_fn *fn, void *arg) {
    run *outer = current;
    current = r;
    const int crash = sigsetjmp(r->back, 1);
    if (crash == 0) {
        fn(arg);
    }
    current = outer;
    return crash;
}

void chk_case(const char *name, chk_fn *fn, void *arg) {
    if (!wanted(name)) {
        return;
    }
    if (options.list) {
        printf("%s\n", name);
        return;
    }
    run *r = calloc(1, sizeof *r);
    if (!r) {
        fprintf(stderr, "%s: out of memory\n", program);
        exit(1);
    }
    r->name = name;
    const int crash = run_caught(r, fn, arg);
    if (crash > 0) { /* whatever was half done may hold a lock: its memory is left alone */
        current = r;
        chk_fail("crashed with signal %d (%s)", crash, strsignal(crash));
        current = NULL;
        chk_memory_forget();
    } else {
        chk_release();
    }
    if (r->failures > PRINTED_PER_CASE) {
        printf("FAIL %s: %d more failures\n", name, r->failures - PRINTED_PER_CASE);
    }
    if (options.verbose) {
        printf("%s %s\n", r->failures ? "not ok" : "ok", name);
    }
    *(r->failures ? &failed : &passed) += 1;
    free(r);
}

int chk_finish(void) {
    if (options.list) {
        return 0;
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed ? 1 : 0;
}

void chk_params(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(current->params, sizeof current->params, format, list);
    va_end(list);
}

static void __attribute__((format(printf, 1, 0))) report(const char *format, va_list list) {
    char text[512];
    vsnprintf(text, sizeof text, format, list);
    run *r = current;
    r->failures++;
    if (r->captured) {
        if (r->failures == 1 && r->first_bytes) {
            snprintf(r->first, r->first_bytes, "%s", text);
        }
        return;
    }
    if (r->failures > PRINTED_PER_CASE) {
        return;
    }
    printf("FAIL %s [%s]: %s; rerun: %s --seed %llu --only '%s'", r->name, r->params, text, program,
           (unsigned long long)options.seed, r->name);
    if (options.isa) {
        printf(" --isa %s", options.isa);
    }
    const char *problem = strstr(r->params, "problem=");
    if (problem) {
        printf(" --problem %d", atoi(problem + strlen("problem=")));
    }
    printf("\n");
}

bool chk_fail(const char *format, ...) {
    va_list list;
    va_start(list, format);
    report(format, list);
    va_end(list);
    return false;
}

bool chk_ok(void) {
    return current->failures == 0;
}

void chk_abandon(const char *format, ...) {
    va_list list;
    va_start(list, format);
    report(format, list);
    va_end(list);
    siglongjmp(current->back, -1);
}

int chk_expect(chk_fn *fn, void *arg, char *first, size_t first_bytes) {
    run *r = calloc(1, sizeof *r);
    if (!r) {
        chk_abandon("out of memory");
    }
    r->name = current->name;
    r->captured = true;
    r->first = first;
    r->first_bytes = first_bytes;
    if (first_bytes) {
        first[0] = '\0';
    }
    void *outer = chk_memory_push();
    const int crash = run_caught(r, fn, arg);
    chk_release();
    chk_memory_pop(outer);
    const int result = crash > 0 ? -1 : r->failures;
    free(r);
    return result;
}
