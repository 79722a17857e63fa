# SPDX-License-Identifier: Apache-2.0
# bench spec: a row for each T, the memory that a sequence takes, whole runs, and JSON of all of it.
replayssm bench spec --only tiny-gdn --tokens 1,4 --batch 2 --samples 1 --pool-mib 1 --json rows | tail -n +3 |
    sed -E 's/ +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ +([0-9]+ +[0-9.]+ +[0-9.]+)$/ \1/; s/  +/ /g'
replayssm bench spec --model "$MODELS/tiny-gdn" --batch 2 --count 8 --samples 1 --pool-mib 1 --json rows | tail -n +3 |
    sed -E 's/ +/ /g; s/ [0-9.]+ [0-9.]+ [0-9.]+ ([0-9]+)$/ \1/'
grep -oE '"id": "[^"]*"' rows
