#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The shared library exports the functions that the headers declare with RSSM_API, and no other symbol; it needs libc
# and libm and no other library; it calls nothing that ends the process, prints, opens files or starts threads
# (an assertion that fails may); and it has no code that runs when it is loaded.
#
# A library with the static CUDA runtime inside has that one's calls and constructors, which this cannot tell from its
# own: CUDA says so, and then only the exported and the needed are looked at.
#
# usage: check_symbols.sh SOURCE_DIR LIBRARY [CUDA]
set -eu
source=$1
library=$2
export LC_ALL=C
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0

grep -hv '^#' "$source"/include/replayssm/*.h | tr '\n' ' ' | grep -oE 'RSSM_API [^;]*;' |
    sed -E 's/\(.*//; s/.*[ *]//' | sort -u >"$work/declared"
nm -D --defined-only "$library" | awk '{ print $NF }' | sort -u >"$work/exported"
if ! diff "$work/declared" "$work/exported" >"$work/difference"; then
    echo "Declared (<) and exported (>) functions differ:"
    cat "$work/difference"
    bad=1
fi
[ -s "$work/declared" ] || { echo "no RSSM_API function found"; bad=1; }

for needed in $(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
    case $needed in
    libc.so.* | libm.so.* | ld-linux*) ;;
    *) echo "the library needs $needed"; bad=1 ;;
    esac
done

if [ "${3:-}" = CUDA ]; then
    echo "$(wc -l <"$work/exported") exported functions, with the CUDA runtime inside"
    exit "$bad"
fi

nm -D --undefined-only "$library" | awk '{ sub(/@.*/, "", $NF); print $NF }' | sort -u >"$work/undefined"
if grep -xE '(abort|_?_?exit|quick_exit|raise|kill|signal|_*(v?f?printf|puts|putchar|fputs|perror)(_chk)?|fopen(64)?|open(64)?|mmap(64)?|socket|pthread_create|thrd_create|fork|(secure_)?getenv|setenv)' \
    "$work/undefined"; then
    echo "are called by the library, which must not"
    bad=1
fi

# Constructors besides the compiler's own frame_dummy would lie in .init_array beyond one pointer.
size=$(readelf -SW "$library" | awk '{ for (i = 1; i < NF; i++) if ($i == ".init_array") print $(i + 4) }')
if [ -n "$size" ] && [ "$((0x$size))" -gt 8 ]; then
    echo "the library has constructors: .init_array is 0x$size bytes"
    bad=1
fi

echo "$(wc -l <"$work/exported") exported functions"
exit "$bad"
