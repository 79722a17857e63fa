#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The tests on a CUDA device: run_gpu.sh BIN_DIR [--sanitize]. With --sanitize, compute-sanitizer's tools look at a few
# small cases of each. Closes with one line, "N passed, M failed".
set -u
bin=$1
passed=0
failed=0

# check NAME COMMAND...
check() {
    local name=$1
    shift
    if "$@" >"$log" 2>&1; then
        passed=$((passed + 1))
        printf 'ok    %-28s %s\n' "$name" "$(tail -n 1 "$log")"
    else
        failed=$((failed + 1))
        printf 'FAIL  %s\n' "$name"
        head -n 20 "$log"
        tail -n 3 "$log"
    fi
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if [ "${2:-}" = --sanitize ]; then
    for tool in memcheck racecheck initcheck synccheck; do
        check "calls $tool" compute-sanitizer --tool $tool --report-api-errors no --error-exitcode 9 "$bin/gpu_calls"
        check "kernels $tool" compute-sanitizer --tool $tool --error-exitcode 9 "$bin/gpu_kernels" --repeat 1
    done
else
    for test in kernels laws fieldlog calls; do
        check $test "$bin/gpu_$test"
    done
fi
echo "$passed passed, $failed failed"
[ $failed = 0 ]
