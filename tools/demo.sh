#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# The demonstration behind `make demo`: the bundled model writes the same text twice, decoding conventionally and
# with ReplaySSM, then once more with every flushed state compared with the conventional one.
#
#     tools/demo.sh build/bin/replayssm
set -eu

command=${1:?"usage: $0 PATH-OF-replayssm"}
prompt=${DEMO_PROMPT:-"The captain looked out over the grey water, and said"}
tokens=${DEMO_TOKENS:-160}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

write() { # METHOD [OPTION]...
    method=$1
    shift
    "$command" run -p "$prompt" -n "$tokens" --temp 0.8 --seed 20 --method "$method" "$@" > "$work/$method"
    sed '$d' "$work/$method" | fold -s -w 54 > "$work/$method.text"
    tail -n 1 "$work/$method" > "$work/$method.line"
}

figure() { # METHOD PATTERN: the number that the pattern's group matches in the line of figures
    sed -n "s/.*$2.*/\\1/p" "$work/$1.line"
}

row() { # LABEL FORMAT CONVENTIONAL REPLAY: and by how much replay is better
    awk -v label="$1" -v format="$2" -v a="$3" -v b="$4" 'BEGIN {
        ratio = label ~ /bytes/ ? a / b : b / a
        printf "%-28s" format "    " format "    %8.2f\n", label, a, b, ratio
    }'
}

echo "Prompt: $prompt"
echo
write conventional
write replay
{
    echo "conventional"
    echo
    cat "$work/conventional.text"
} > "$work/left"
{
    echo "replay"
    echo
    cat "$work/replay.text"
} > "$work/right"
pr -m -t -w 114 "$work/left" "$work/right" | expand
echo
read_a=$(figure conventional 'token: \([0-9]*\) read')
read_b=$(figure replay 'token: \([0-9]*\) read')
written_a=$(figure conventional 'read, \([0-9]*\) written')
written_b=$(figure replay 'read, \([0-9]*\) written')
printf '%-28s%14s    %14s    %8s\n' '' conventional replay ratio
row 'tokens/s' '%14.1f' "$(figure conventional ' \([0-9.]*\) tokens\/s; prompt')" \
    "$(figure replay ' \([0-9.]*\) tokens\/s; prompt')"
row 'state bytes read per token' '%14.0f' "$read_a" "$read_b"
row 'state bytes written' '%14.0f' "$written_a" "$written_b"
row 'state bytes, both' '%14.0f' $((read_a + written_a)) $((read_b + written_b))
if cmp -s "$work/conventional.text" "$work/replay.text"; then
    echo "The two texts are equal."
else
    echo "The texts differ: outputs agree to rounding only, and one draw fell on the other side of it."
fi
echo
echo "Once more with --check, a conventional state beside each replayed one:"
write replay --check
sed -n 's/.*; \([0-9]* flushes compared, .*\)/\1./p' "$work/replay.line"
echo
echo "What to expect where: on two cores writing is nearly free, so the two run at about one speed; the gain comes with"
echo "larger batches, on GPUs, with drafts that are verified, and with states that are read in low precision."
