#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Rules of the source tree that no compiler knows. Prints what breaks the rule, with file and line.
#
# usage: check_tree.sh RULE SOURCE_DIR
#
#   names      no two source files of one name, wherever they lie (public headers are always included as
#              "replayssm/x.h", so their names are taken with that folder)
#   length     files under 600 lines, kernel bodies (*.inl.h) under 900; functions under 60
#   licence    every source begins with its SPDX line
#   paths      no path of somebody's machine
#   fastmath   no option that lets a compiler change results
#   calls      src and engine never end the process or print; src has no files, threads or environment
#   text       no tabs, no white space at the end of a line, no marks of a merge, a newline at the end of a file
set -u
rule=$1
cd "$2" || exit 1

code() {
    find include src engine tools bench tests "$@" -type f \
        \( -name '*.[ch]' -o -name '*.def' -o -name '*.cu' -o -name '*.cuh' \) | LC_ALL=C sort
}
scripts() {
    find tests tools bench packaging .ci training -type f \
        \( -name '*.sh' -o -name '*.py' -o -path '.ci/run' \) 2>/dev/null | LC_ALL=C sort
}
build_files() {
    find . -path ./build -prune -o -path ./.git -prune -o -type f \
        \( -name CMakeLists.txt -o -name '*.cmake' -o -name '*.cmake.in' -o -name 'Makefile' -o -name CMakePresets.json \) \
        -print | sed 's,^\./,,' | LC_ALL=C sort
}
text_files() {
    code
    scripts
    build_files
    find docs cmake packaging -type f 2>/dev/null
    find . -maxdepth 1 -type f -name '*.md' | sed 's,^\./,,'
}

# Prints its input and fails if there is any.
none() {
    awk '{ print } END { exit NR > 0 }'
}

# Code without comments and strings, the line numbers kept, so that words in them mean nothing.
without_comments() {
    awk '
        FNR == 1 { inside = 0 }
        {
            line = $0
            out = ""
            while (line != "") {
                if (inside) {
                    at = index(line, "*/")
                    if (at == 0) { break }
                    inside = 0
                    line = substr(line, at + 2)
                } else if (match(line, /"([^"\\]|\\.)*"|\/\*|\/\/.*/)) {
                    token = substr(line, RSTART, 2)
                    out = out substr(line, 1, RSTART - 1)
                    line = substr(line, RSTART + RLENGTH)
                    if (token == "/*") { inside = 1 } else if (token != "//") { out = out "\"\"" }
                } else {
                    out = out line
                    break
                }
            }
            print FILENAME ":" FNR ": " out
        }
    ' "$@"
}

case $rule in
names)
    { code; scripts; } | awk -F / '
        { name = $NF }
        $1 == "include" { name = $(NF - 1) "/" $NF }
        $1 == "tests" && $2 == "cli" { next }
        name in first { print $0 ": " first[name] " has the same name" }
        { first[name] = $0 }
    ' | none
    ;;
length)
    # A function begins in the first column with its head, the last line of which ends with a brace, and ends with a
    # brace in the first column. tests/long_functions.txt lists those that are longer, each for a reason.
    # shellcheck disable=SC2046
    awk -v list=tests/long_functions.txt '
        function file_limit(path) { return path ~ /\.inl\.h$/ ? 900 : 600 }
        function finish() {
            if (last != "" && lines >= file_limit(last)) { print last ": " lines " lines; the limit is " file_limit(last) }
        }
        BEGIN {
            while ((getline line < list) > 0) { if (line !~ /^#/) { split(line, f, " "); listed[f[1]] = 1 } }
        }
        FNR == 1 { finish(); last = FILENAME; head = 0 }
        { lines = FNR }
        /^[A-Za-z_].*\(/ { name = $0; sub(/\(.*/, "", name); sub(/.*[ *]/, "", name); start = FNR }
        /\{$/ && head == 0 && !/^[ \t]/ && /\)[^()]*\{$/ { head = start }
        /^[ \t]+.*\) \{$/ && head == 0 && FNR - start <= 6 && start > 0 { head = start }
        /^\}/ && head > 0 {
            if (FNR - head + 1 > 60 && !(FILENAME ":" name in listed)) {
                print FILENAME ":" head ": " name " has " FNR - head + 1 " lines; the limit is 60"
            }
            head = 0
            start = 0
        }
        END { finish() }
    ' $(code) | none
    ;;
licence)
    { code; scripts; build_files | grep -v '\.json$'; } | while IFS= read -r file; do
        head -n 2 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' || echo "$file: no SPDX line"
    done | none
    ;;
paths)
    text_files | LC_ALL=C sort -u | grep -v '^tests/check_tree.sh$' |
        xargs grep -nE '(^|[^A-Za-z0-9_.$}/-])/(home|root|Users|work|workspace|mnt)/' | none
    ;;
fastmath)
    # shellcheck disable=SC2046
    {
        grep -nE -e '-(ffast-math|Ofast|funsafe-math|fassociative-math|ffinite-math|freciprocal-math|ffp-contract=(fast|on))' \
            $(build_files) /dev/null
        grep -nE 'FP_CONTRACT +ON|fast_math|optimize *\(|pragma .*float_control' $(code) /dev/null
    } | none
    ;;
calls)
    ends='(abort|exit|_exit|_Exit|quick_exit|__builtin_trap|raise|kill)'
    prints='(printf|vprintf|puts|putchar|putc|fputs|fputc|fprintf|vfprintf|perror)'
    world='(fopen|open|creat|mmap|socket|pthread_create|thrd_create|fork|getenv|setenv|signal|time|clock_gettime)'
    # shellcheck disable=SC2046
    {
        without_comments $(code | grep '^src/') | grep -E "(^|[^A-Za-z0-9_])($ends|$prints|$world) *\("
        without_comments $(code | grep '^engine/') | grep -E "(^|[^A-Za-z0-9_])($ends|$prints) *\("
    } | none
    ;;
text)
    text_files | LC_ALL=C sort -u | while IFS= read -r file; do
        case $file in
        Makefile | *.scd) ;; # whose grammars want them
        *) grep -n "$(printf '\t')" "$file" | sed "s,^,$file: tab in line ," ;;
        esac
        grep -nE ' +$' "$file" | sed "s,^,$file: white space at the end of line ,"
        grep -nE '^(<<<<<<<|>>>>>>>) ' "$file" | sed "s,^,$file: mark of a merge in line ,"
        [ -z "$(tail -c 1 "$file")" ] || echo "$file: no newline at the end"
    done | none
    ;;
*)
    echo "unknown rule '$rule'"
    exit 2
    ;;
esac
