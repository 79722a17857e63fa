#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every public header alone, as C11 and as C++17, twice included, with no warning. Where the machine has no C++
# compiler the result is 77: skipped.
#
# usage: check_headers.sh SOURCE_DIR C_COMPILER
set -eu
include=$1/include
cc=$2
cxx=$(command -v c++ || command -v g++ || command -v clang++ || true)
if [ -z "$cxx" ]; then
    echo "no C++ compiler here"
    exit 77
fi

bad=0
warnings="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wundef -Werror"
for header in "$include"/replayssm/*.h; do
    name=replayssm/$(basename "$header")
    for language in c:c11 c++:c++17; do
        compiler=$cc
        [ "${language%%:*}" = c ] || compiler=$cxx
        # shellcheck disable=SC2086
        if ! printf '#include <%s>\n#include <%s>\nint main(void) { return rssm_abi_version() == 0; }\n' "$name" "$name" |
            "$compiler" -x "${language%%:*}" -std="${language#*:}" $warnings -I "$include" -fsyntax-only -; then
            echo "$name does not stand alone as ${language#*:}"
            bad=1
        fi
    done
done
exit "$bad"
