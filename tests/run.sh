#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make test: every test three ways. The optimised build runs all of them; the build with the address and undefined
# behaviour sanitizers all but the checks of the tree and of the release build; the build with the thread sanitizer
# those that use threads. Each stage says how long it took. Closes with one line, "N passed, M failed", and with
# exit code 1 if anything failed.
set -u
cd "$(dirname "$0")/.."

cores=$(nproc)
summary=()
passed=0
failed=0
skipped=0

# Not detect_stack_use_after_return: gcc 12 then misaligns 64-byte vectors on the stack (its bug 110027).
export ASAN_OPTIONS=strict_string_checks=1:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1

# count STAGE PASSED FAILED SKIPPED SINCE
count() {
    passed=$((passed + $2))
    failed=$((failed + $3))
    skipped=$((skipped + $4))
    summary+=("$(printf '%-22s %4d passed %4d failed %4d skipped %6d s' "$1" "$2" "$3" "$4" $((SECONDS - $5)))")
}

# build PRESET OPTION... -- TARGET...; a build that fails counts as one failed test.
build() {
    local preset=$1 since=$SECONDS options=()
    shift
    while [ "${1:---}" != -- ]; do
        options+=("$1")
        shift
    done
    shift $(($# > 0))
    echo "== $preset: build"
    if cmake --preset "$preset" -DRSSM_TESTS=ON -DRSSM_WERROR="${RSSM_WERROR:-OFF}" "${options[@]}" >"$log" 2>&1 &&
        cmake --build --preset "$preset" ${1+--target "$@"} >"$log" 2>&1; then
        grep -A 5 'warning:' "$log"
        count "$preset: build" 0 0 0 "$since"
        return 0
    fi
    tail -n 100 "$log"
    count "$preset: build" 0 1 0 "$since"
    return 1
}

# An attribute of the first element of the report that ctest wrote; 0 if it wrote none.
attribute() {
    local value
    value=$(cat "$report" 2>/dev/null | tr '\n\t' '  ' | sed -n "s/.*<testsuite[^>]* $1=\"\([0-9]*\)\".*/\1/p")
    echo "${value:-0}"
}

# run PRESET DIRECTORY WRAPPER... -- CTEST-OPTION...
run() {
    local preset=$1 directory=$2 since=$SECONDS wrapper=() total bad result
    shift 2
    while [ "$1" != -- ]; do
        wrapper+=("$1")
        shift
    done
    shift
    echo "== $preset: tests"
    rm -f "$report"
    "${wrapper[@]}" ctest --test-dir "$directory" --output-on-failure --no-tests=error --timeout 900 -j "$cores" \
        --output-junit "$report" "$@"
    result=$?
    total=$(attribute tests)
    bad=$(attribute failures)
    local left_out=$(($(attribute skipped) + $(attribute disabled)))
    if [ $result != 0 ] && [ "$bad" = 0 ]; then
        bad=1
    fi
    total=$((total > bad + left_out ? total : bad + left_out))
    count "$preset: tests" $((total - bad - left_out)) "$bad" "$left_out" "$since"
}

mkdir -p build
log=$PWD/build/test-build.log
report=$PWD/build/test-report.xml
rm -f build/test-count

if build release --; then
    run release build --
fi
if build asan --; then
    run asan build/asan --
fi
# A thread sanitizer may find its shadow taken under full address space randomisation.
fixed=()
if setarch "$(uname -m)" -R true 2>/dev/null; then
    fixed=(setarch "$(uname -m)" -R)
fi
threaded='^test_.*(pool|sched)'
if build tsan -- rssm_threaded_tests; then
    run tsan build/tsan "${fixed[@]}" -- -R "$threaded"
fi

echo "== summary"
printf '%s\n' "${summary[@]}"
printf '%-22s %48d s\n' "all stages" "$SECONDS"
echo
line="$passed passed, $failed failed"
if [ "$skipped" != 0 ]; then
    line="$line, $skipped skipped"
fi
echo "$line" | tee build/test-count
[ "$failed" = 0 ]
