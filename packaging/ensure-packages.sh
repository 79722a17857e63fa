#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Sees to it that the packages of the given lists (build, test) are there on a Debian or Ubuntu machine. Missing ones
# are installed where that needs no password; otherwise, and with --check, the line that installs them is printed and
# the result is 1. Elsewhere the packages cannot be looked up, and CMake says what it misses.
#
# usage: ensure-packages.sh [--check] LIST...
set -eu
here=$(dirname "$0")

install=yes
if [ "${1:-}" = --check ]; then
    install=no
    shift
fi
command -v dpkg >/dev/null 2>&1 || exit 0

installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

missing=
for list in "$@"; do
    for package in $(grep -v '^#' "$here/packages-$list.txt"); do
        # pkgconf is the pkg-config of newer releases
        if ! installed "$package" && ! { [ "$package" = pkg-config ] && installed pkgconf; }; then
            missing="$missing $package"
        fi
    done
done
[ -n "$missing" ] || exit 0

root=
if [ "$(id -u)" != 0 ]; then
    if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        root="sudo -n"
    else
        install=no
    fi
fi
if [ "$install" = no ]; then
    echo "Packages are missing. As root, run this and try again:"
    echo
    echo "    apt-get update && apt-get install -y$missing"
    echo
    exit 1
fi

echo "Installing$missing"
# $root and $missing are lists of words.
# shellcheck disable=SC2086
$root env DEBIAN_FRONTEND=noninteractive sh -c 'apt-get update -q && apt-get install -y -q --no-install-recommends "$@"' \
    sh $missing
