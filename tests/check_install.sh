#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs into an empty folder and uses what lies there, as another project would: a ten-line consumer and the
# paged-pool example through the CMake package and through pkg-config, shared and static, and the command with its
# default model, from a prefix that is not the one it was installed for.
#
# usage: check_install.sh SOURCE_DIR BUILD_DIR C_COMPILER
set -eu
source=$1
build=$2
cc=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LC_ALL=C

say() {
    echo "-- $*"
}

say install
DESTDIR=$work/stage cmake --install "$build" --prefix /opt/replayssm >"$work/log"
mv "$work/stage/opt/replayssm" "$work/moved"
prefix=$work/moved
(cd "$prefix" && find . -type f -o -type l) | LC_ALL=C sort >"$work/files"
if grep -vE '^\./(bin/replayssm|include/replayssm/[a-z0-9_]+\.h|lib[a-z0-9_/-]*/libreplayssm\.(a|so[.0-9]*)|lib[a-z0-9_/-]*/cmake/replayssm/[a-z-]+\.cmake|lib[a-z0-9_/-]*/pkgconfig/replayssm\.pc|share/bash-completion/completions/replayssm|share/man/man1/replayssm\.1\.gz|share/replayssm/models/(README.md|tiny-[a-z0-9]+/[a-zA-Z0-9._-]+))$' \
    "$work/files"; then
    echo "should not be installed"
    exit 1
fi
libdir=$(dirname "$(find "$prefix" -name libreplayssm.a)")
export LD_LIBRARY_PATH="$libdir"

say CMake package
cp -r "$source/tests/install" "$work/elsewhere"
cmake -G Ninja -S "$work/elsewhere/consumer" -B "$work/cmake" -DCMAKE_C_COMPILER="$cc" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_PREFIX_PATH="$prefix" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
cmake --build "$work/cmake" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$work/cmake/consumer"
"$work/cmake/paged_pool"

say pkg-config
export PKG_CONFIG_PATH="$libdir/pkgconfig"
# Flags are lists of words.
# shellcheck disable=SC2046
"$cc" -std=c11 "$source/tests/install/consumer/consumer.c" $(pkg-config --cflags --libs replayssm) -o "$work/shared"
"$work/shared"
# shellcheck disable=SC2046
"$cc" -std=c11 "$source/tests/install/consumer/consumer.c" $(pkg-config --cflags replayssm) "$libdir/libreplayssm.a" \
    $(pkg-config --static --libs replayssm | sed 's/-lreplayssm//') -o "$work/static"
env -u LD_LIBRARY_PATH "$work/static"
[ "$(pkg-config --modversion replayssm)" = "$("$prefix/bin/replayssm" --version | sed 's/replayssm //')" ]

say command
cd "$work"
env -u LD_LIBRARY_PATH "$prefix/bin/replayssm" run -p 'It was a dark night' -n 8 --temp 0 --verbose >out 2>err ||
    { cat out err; exit 1; }
grep -q "$prefix/share/replayssm/models/tiny-gdn" err || { echo "not the installed model:"; cat err; exit 1; }
grep -q 'It was a dark night' out || [ -s out ] || { echo "no text"; exit 1; }
echo "installed and used"
