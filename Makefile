# SPDX-License-Identifier: Apache-2.0
# The usual commands in one place; CMake does the work, in build/.
#
#   make               build the library and the command
#   make demo          let the bundled model write, conventional and replay side by side
#   make test          all tests: optimised, under sanitizers, checks of the tree
#   make test-long     drafting over 64 prompts of 64 tokens and 200 rounds; 64-bit Arm under qemu: half an hour
#   make bench         measure the kernels
#   make study         narrow states over a long text: make study TEXT=FILE [STUDY=FOLDER]; hours
#   make deb           Debian packages, looked through by lintian and compared with the last tag
#   make install       PREFIX=/usr/local, DESTDIR=
#   make cuda-compile  compile the CUDA sources for all architectures, where there is nvcc
#   make test-gpu      the tests on a CUDA device
#   make analyse       cppcheck
#   make format-check  clang-format; make tidy: clang-tidy
#   make clean
#
# WERROR=ON turns warnings into errors, as CI does.
PREFIX ?= /usr/local
WERROR ?= OFF

.PHONY: all demo test test-long test-gpu bench study deb install analyse cuda-compile format-check tidy clean

# Tests are left out until somebody asks for them, so that building takes no test framework.
CONFIGURE = cmake --preset release -DRSSM_WERROR=$(WERROR)
BUILD = cmake --build --preset release

all: build/build.ninja
	@packaging/ensure-packages.sh --check build
	@$(BUILD)

build/build.ninja:
	@packaging/ensure-packages.sh --check build
	@$(CONFIGURE) -DRSSM_TESTS=OFF

demo:
	@packaging/ensure-packages.sh build
	@test -f build/build.ninja || $(CONFIGURE) -DRSSM_TESTS=OFF
	@$(BUILD)
	@tools/demo.sh build/bin/replayssm

test:
	@packaging/ensure-packages.sh build test
	@RSSM_WERROR=$(WERROR) tests/run.sh

test-long:
	@packaging/ensure-packages.sh build test
	@$(CONFIGURE) -DRSSM_TESTS=ON && $(BUILD) --target test_draft test_rounds
	@packaging/ensure-packages.sh cross
	@tests/check_processors.sh --arm64 build/arm64
	@RSSM_TEST_LONG=1 ctest --test-dir build -R 'test_draft|test_rounds' --output-on-failure --timeout 3600

bench: all
	@build/bin/replayssm bench kernel

analyse:
	@cppcheck --enable=warning,performance --std=c11 --quiet --inline-suppr --suppressions-list=tests/cppcheck.txt \
	    --error-exitcode=1 -I include -I src -I engine -DRSSM_BUILD_SCALAR src/*.c src/ref src/cpu/*.c engine tools bench/*.c

# Debian packages, in build/deb. CPack writes scripts that call ldconfig, beside the trigger that is enough.
deb:
	@packaging/ensure-packages.sh build deb
	@cmake -G Ninja -S . -B build/deb -DCMAKE_INSTALL_PREFIX=/usr -DRSSM_TESTS=OFF -DRSSM_CUDA=OFF >/dev/null
	@cmake --build build/deb
	@cd build/deb && cpack >/dev/null && ls *.deb && lintian --fail-on error,warning --suppress-tags maintscript-calls-ldconfig *.deb
	@packaging/abi-diff.sh build/deb/src/libreplayssm.so

study: all
	@test -n "$(TEXT)" || { echo "make study reads a long text: make study TEXT=FILE" >&2; exit 2; }
	@tools/study.sh build/bin/replayssm "$(TEXT)" $(or $(STUDY),study)

install: all
	@cmake --install build --prefix "$(PREFIX)"

# All kernels for the architecture they are measured on, one instance of each for the others.
cuda-compile:
	@packaging/ensure-packages.sh --check build
	@$(CONFIGURE) -DRSSM_CUDA=ON
	@$(BUILD) --target rssm_cuda_kernels
	@cmake -G Ninja -S . -B build/cuda-others -DRSSM_CUDA=ON -DRSSM_CUDA_ARCHITECTURES="80;100" \
	    -DRSSM_CUDA_ONE_INSTANCE=ON -DRSSM_WERROR=$(WERROR) -DRSSM_TESTS=OFF
	@cmake --build build/cuda-others --target rssm_cuda_kernels

# Needs a device; docs/gpu-tests.md holds the last record.
test-gpu:
	@$(CONFIGURE) -DRSSM_CUDA=ON -DRSSM_TESTS=ON
	@$(BUILD) --target rssm_gpu_tests
	@tests/run_gpu.sh build/bin

format-check:
	@find include src engine tools bench tests -name '*.[ch]' | LC_ALL=C sort | \
	    xargs clang-format --dry-run --Werror

tidy: all
	@find src engine tools bench -name '*.c' ! -name '*variant.c' | LC_ALL=C sort | \
	    xargs -n 8 -P 2 clang-tidy --quiet -p build

clean:
	@rm -rf build
