#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Processors that this machine is not, under qemu: an x86 one without AVX, on which an instruction that leaked out of
# its variant ends the program, and one with AVX2 and no more. The command writes the same text on both. The kernels of the
# first pass a problem of the harness; AVX2's are left to real processors, as qemu reads lanes that a load masks out, which
# the harness has guard pages for.
#
# usage: check_processors.sh BUILD        skipped (77) without qemu, or where the build is for another architecture
#        check_processors.sh --arm64 DIR  cross-compiles the library into DIR and runs its tests for 64-bit Arm
set -eu
here=$(cd "$(dirname "$0")" && pwd)

arm64() {
    cmake -G Ninja -S "$here/.." -B "$1" -DCMAKE_TOOLCHAIN_FILE="$here/../cmake/arm64.cmake" -DRSSM_ENGINE=OFF \
        -DRSSM_TESTS=ON >/dev/null
    ninja -C "$1" vec_here kernel_harness kernel_formats laws
    # Whatever a processor has beyond the architecture's first version, the results are the same.
    for cpu in cortex-a53 max; do
        for test in vec_here 'kernel_harness --repeat 6' 'kernel_formats --repeat 2' 'laws --repeat 1'; do
            echo "== $cpu: $test"
            # shellcheck disable=SC2086
            qemu-aarch64-static -cpu "$cpu" "$1"/bin/$test
        done
    done
}

if [ "$1" = --arm64 ]; then
    arm64 "$2"
    exit
fi
build=$1
[ "$(uname -m)" = x86_64 ] || exit 77
command -v qemu-x86_64-static >/dev/null || exit 77
for processor in Nehalem:scalar Haswell:avx2; do
    cpu=${processor%:*} isa=${processor#*:}
    qemu-x86_64-static -cpu "$cpu" "$build"/bin/replayssm run -p 'It was' -n 3 --temp 0 --threads 1 --verbose \
        >"$build/$cpu.out" 2>"$build/$cpu.err"
    grep -q "$isa arithmetic" "$build/$cpu.err" || { echo "$cpu: $isa is not what was chosen"; exit 1; }
    grep -q "gdn_decode_${isa}_f32_f32" "$build/$cpu.err" || { echo "$cpu: $isa is not what was chosen"; exit 1; }
    head -n 1 "$build/$cpu.out" | grep -qx ' a very good' || { echo "$cpu: other text"; exit 1; }
done
qemu-x86_64-static -cpu Nehalem "$build"/bin/kernel_harness --isa scalar --problem 1
