#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Which part of the project may include which: include <- src <- engine <- tools, and the benchmarks, which may see all.
# From src the engine takes the vector vocabulary (cpu/vec*.h) and numbers.h, which are inline functions and nothing
# else; the command takes bench/bench.h. src itself takes standard headers only, and src/cuda those of the CUDA runtime. Prints each include that breaks this.
#
# usage: check_includes.sh SOURCE_DIR
set -eu
cd "$1"

find include src engine tools bench -name '*.[ch]' -o -name '*.def' -o -name '*.cu' -o -name '*.cuh' | LC_ALL=C sort >"${TMPDIR:-/tmp}/sources.$$"
trap 'rm -f "${TMPDIR:-/tmp}/sources.$$"' EXIT
# shellcheck disable=SC2046
awk '
    function exists(path) { return path in known }
    # Removes the a/../ of a path.
    function normal(path) {
        while (match(path, /[^\/]+\/\.\.\//)) {
            path = substr(path, 1, RSTART - 1) substr(path, RSTART + RLENGTH)
        }
        return path
    }
    # The file of the project that an include line of `from` means, or "".
    function resolve(from, name,    dir, i, n, roots) {
        dir = from
        sub(/[^\/]*$/, "", dir)
        if (exists(normal(dir name))) { return normal(dir name) }
        n = split("include/ engine/ src/ bench/ tools/", roots, " ")
        for (i = 1; i <= n; i++) {
            if (exists(roots[i] name)) { return roots[i] name }
        }
        return ""
    }
    function layer(path) { sub(/\/.*/, "", path); return path }
    function allowed(from, to,    a, b) {
        a = layer(from)
        b = layer(to)
        if (a == b || b == "include" || a == "bench") { return 1 }
        if (a == "engine") { return to ~ /^src\/(cpu\/vec[a-z0-9_]*\.h|numbers\.h)$/ }
        if (a == "tools") { return b == "engine" || to == "bench/bench.h" }
        return 0
    }
    function wrong(text) { print FILENAME ":" FNR ": " text; bad++ }
    BEGIN {
        for (i = 1; i < ARGC; i++) { known[ARGV[i]] = 1 }
        split("assert errno fenv float inttypes limits math stdalign stdarg stdatomic stdbool stddef stdint " \
              "stdio stdlib string cpuid immintrin xmmintrin arm_neon", names, " ")
        for (i in names) { standard[names[i] ".h"] = 1 }
        split("cuda_runtime_api cuda_pipeline", names, " ") # in src/cuda alone
        for (i in names) { device[names[i] ".h"] = 1 }
        generated["bench_revision.h"] = 1 # by bench/revision.cmake, into the build folder
    }
    /^[ \t]*#[ \t]*include[ \t]*"/ {
        name = $0
        sub(/^[^"]*"/, "", name)
        sub(/".*/, "", name)
        count++
        if (name in generated) { next }
        to = resolve(FILENAME, name)
        if (to == "") {
            wrong("\"" name "\" is no file of the project")
        } else if (!allowed(FILENAME, to)) {
            wrong(layer(FILENAME) " may not include " to)
        }
    }
    /^[ \t]*#[ \t]*include[ \t]*</ {
        name = $0
        sub(/^[^<]*</, "", name)
        sub(/>.*/, "", name)
        if (name ~ /^replayssm\//) {
            if (!exists("include/" name)) { wrong("<" name "> is no public header") }
        } else if ((layer(FILENAME) == "src" || layer(FILENAME) == "include") && !(name in standard) &&
                   !(FILENAME ~ /^src\/cuda\// && name in device)) {
            wrong(layer(FILENAME) " may not include <" name ">")
        }
        count++
    }
    END {
        print count + 0 " includes of " ARGC - 1 " files looked at, " bad + 0 " of them wrong"
        exit bad > 0 || count == 0
    }
' $(cat "${TMPDIR:-/tmp}/sources.$$")
