#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compares the interface of a library with that of the last tag, and says what has changed. Without a tag there is
# nothing to compare with, and a line says so.
#
# usage: abi-diff.sh LIBRARY
set -eu
library=$1
root=$(cd "$(dirname "$0")/.." && pwd)
tag=$(git -C "$root" describe --tags --abbrev=0 2>/dev/null) || {
    echo "abidiff: there is no tag yet, so there is nothing to compare the interface with"
    exit 0
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git -C "$root" archive "$tag" | tar -x -C "$work"
cmake -G Ninja -S "$work" -B "$work/build" -DRSSM_TESTS=OFF -DRSSM_ENGINE=OFF -DRSSM_CUDA=OFF >/dev/null
ninja -C "$work/build" replayssm >/dev/null
abidiff --headers-dir1 "$work/include" --headers-dir2 "$root/include" "$work/build/src/libreplayssm.so" "$library"
