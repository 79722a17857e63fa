/* SPDX-License-Identifier: Apache-2.0 */
#include "machine.h"
#include "bench_revision.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

/* The processor's name as Linux tells it, without what would have to be escaped in JSON. */
static void read_machine(char *name, size_t size) {
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    snprintf(name, size, "unknown");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon != NULL) {
            snprintf(name, size, "%s", colon + 1 + strspn(colon + 1, " "));
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    for (char *at = name; *at != '\0'; at++) {
        *at = *at == '"' || *at == '\\' || (unsigned char)*at < ' ' ? ' ' : *at;
    }
    for (size_t n = strlen(name); n > 0 && name[n - 1] == ' '; n--) {
        name[n - 1] = '\0';
    }
}

static const char *compiler(void) {
#if defined(__clang__)
    return "clang " __clang_version__;
#elif defined(__GNUC__)
    return "gcc " __VERSION__;
#else
    return "unknown";
#endif
}

static long cores(void) {
    return sysconf(_SC_NPROCESSORS_ONLN);
}

static long last_level_mib(void) {
#ifdef _SC_LEVEL3_CACHE_SIZE
    return sysconf(_SC_LEVEL3_CACHE_SIZE) >> 20;
#else
    return 0;
#endif
}

void bench_json_machine(FILE *out, int32_t threads) {
    char name[128], date[32] = "";
    read_machine(name, sizeof name);
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc) != NULL) {
        strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    }
    fprintf(out, "\"threads\": %d, \"machine\": \"%s\", \"cores\": %ld, \"llc_mib\": %ld", (int)threads, name,
            cores(), last_level_mib());
    fprintf(out, ", \"compiler\": \"%s\", \"flags\": \"%s\", \"revision\": \"%s\", \"date\": \"%s\"",
            compiler(), BENCH_FLAGS, BENCH_REVISION, date);
}

void bench_print_machine(FILE *out, int32_t threads) {
    char name[128];
    read_machine(name, sizeof name);
    fprintf(out, "%s, %ld cores, last-level cache %ld MiB, %d threads; %s, %s, revision %s\n", name, cores(),
            last_level_mib(), (int)threads, compiler(), BENCH_FLAGS, BENCH_REVISION);
}
