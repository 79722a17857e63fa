#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Documents tell the truth about the tree: code that a document quotes, in a block after a line
# <!-- from FILE -->, stands in that file word for word; links to files of the project lead somewhere; every
# option of the command that a document names exists.
#
# usage: check_documents.sh SOURCE_DIR
set -u
cd "$1" || exit 1
export LC_ALL=C
bad=$(mktemp)
trap 'rm -f "$bad"' EXIT

for document in ./*.md docs/*.md; do
    awk -v document="$document" '
        # Whether the lines of the block stand one after another in the file.
        function quoted(file,    n, line, lines, i, j) {
            n = 0
            while ((getline line < file) > 0) { lines[++n] = line }
            close(file)
            for (i = 0; i + count <= n; i++) {
                for (j = 1; j <= count && lines[i + j] == block[j]; j++) { }
                if (j > count) { return 1 }
            }
            return 0
        }
        /^<!-- from .* -->$/ { source = $3; at = FNR; next }
        /^```/ && inside {
            inside = 0
            if (!quoted(source)) { print document ":" at ": the block is not in " source }
            source = ""
            next
        }
        /^```/ && source != "" { inside = 1; count = 0; next }
        inside { block[++count] = $0 }
    ' "$document" >>"$bad"
    folder=$(dirname "$document")
    grep -oE '\]\([^)#:]+[)#]' "$document" | sed 's/^](//; s/[)#]$//' | while IFS= read -r link; do
        [ -e "$folder/$link" ] || echo "$document: links to $link, which does not exist"
    done >>"$bad"
    # files and folders named in the text, as `src/cpu/vec.h` or `tests/`
    grep -oE '`(include|src|engine|tools|bench|tests|models|docs|cmake|packaging|training)/[A-Za-z0-9_./-]*`' "$document" |
        tr -d '\140' | while IFS= read -r path; do
        [ -e "$path" ] || echo "$document: names $path, which does not exist"
    done >>"$bad"
    grep -oE '`--[a-z][a-z0-9-]*' "$document" | tr -d '\140' | sed 's/^--//' | sort -u | while IFS= read -r option; do
        grep -rqE "\"(--)?$option\"" tools bench/*.c || grep -rqE -e "--$option\b" tests/*.sh ||
            echo "$document: names the option --$option, which the command does not have"
    done >>"$bad"
done
cat "$bad"
[ ! -s "$bad" ]
