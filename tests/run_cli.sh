#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs cases of tests/cli: NAME.sh, a few lines of shell with the command on the PATH, in an empty folder of its own.
# Beside it lie NAME.stdout, NAME.stderr and NAME.exit, what it must print and its exit code; a file that is not there
# stands for nothing, and for 0. A line of an expectation may hold '*' for any text, and a line of nothing but '...'
# stands for any number of lines. --rewrite writes what was printed where it is not what was expected.
#
# usage: run_cli.sh [--rewrite] COMMAND [NAME...]          (all cases without a NAME)
#
# Cases see MODELS, the folder of the bundled models, and CASES, this one.
set -u

rewrite=no
if [ "${1:-}" = --rewrite ]; then
    rewrite=yes
    shift
fi
command=$1
shift
CASES=$(cd "$(dirname "$0")/cli" && pwd)
MODELS=$(cd "$CASES/../../models" && pwd)
export CASES MODELS LC_ALL=C NO_COLOR=1
unset RSSM_ISA RSSM_TRACE
PATH=$(cd "$(dirname "$command")" && pwd):$PATH
export PATH

# matches EXPECTED ACTUAL: both are files.
matches() {
    awk '
        # Whether text is an instance of a pattern, in which * is any text: its pieces, one after another.
        function like(text, pattern,    n, piece, i, at) {
            n = split(pattern, piece, "*")
            if (n <= 1 && index(pattern, "*") == 0) { return text == pattern }
            if (substr(text, 1, length(piece[1])) != piece[1]) { return 0 }
            text = substr(text, length(piece[1]) + 1)
            for (i = 2; i < n; i++) {
                at = index(text, piece[i])
                if (piece[i] == "") { continue }
                if (at == 0) { return 0 }
                text = substr(text, at + length(piece[i]))
            }
            return length(text) >= length(piece[n]) && substr(text, length(text) - length(piece[n]) + 1) == piece[n]
        }
        NR == FNR { expected[++n] = $0; next }
        { actual[++m] = $0 }
        END {
            # reach[j]: the expectations up to i account for the first j lines
            reach[0] = 1
            for (i = 1; i <= n; i++) {
                split("", next_reach)
                for (j = 0; j <= m; j++) {
                    if (expected[i] == "...") {
                        if ((j in reach) || (j - 1) in next_reach) { next_reach[j] = 1 }
                    } else if (j > 0 && ((j - 1) in reach) && like(actual[j], expected[i])) {
                        next_reach[j] = 1
                    }
                }
                split("", reach)
                for (j in next_reach) { reach[j] = 1 }
            }
            exit !(m in reach)
        }
    ' "$1" "$2"
}

run_case() {
    name=$1
    work=$(mktemp -d)
    mkdir "$work/in"
    (cd "$work/in" && sh -u "$CASES/$name.sh") >"$work/stdout" 2>"$work/stderr" </dev/null
    echo $? >"$work/exit"
    result=0
    for kind in stdout stderr exit; do
        expectation=$CASES/$name.$kind
        default=$work/default
        : >"$default"
        [ "$kind" = exit ] && echo 0 >"$default"
        [ -e "$expectation" ] || expectation=$default
        if [ -s "$expectation" ] || [ -s "$work/$kind" ]; then
            # an empty expectation is a file without lines, which awk would take for none
            if [ -s "$expectation" ] && matches "$expectation" "$work/$kind"; then
                continue
            fi
        else
            continue
        fi
        result=1
        if [ "$rewrite" = yes ]; then
            cp "$work/$kind" "$CASES/$name.$kind"
            echo "$name.$kind rewritten"
        else
            echo "$name: $kind differs from what is expected (-):"
            diff -u "$expectation" "$work/$kind" | tail -n +3 | head -n 60
        fi
    done
    rm -rf "$work"
    return "$result"
}

if [ $# = 0 ]; then
    for case in "$CASES"/*.sh; do
        set -- "$@" "$(basename "$case" .sh)"
    done
fi
failed=0
for name in "$@"; do
    run_case "$name" || failed=$((failed + 1))
done
echo "$# cases, $failed failed"
[ "$failed" = 0 ]
