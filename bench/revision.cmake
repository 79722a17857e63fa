# SPDX-License-Identifier: Apache-2.0
# Writes HEADER with the git revision of SOURCE ("unknown" outside a checkout) and the compiler's FLAGS.
set(REVISION unknown)
find_package(Git QUIET)
if(GIT_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${SOURCE} describe --always --dirty --abbrev=12 --exclude=*
    OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    set(REVISION ${described})
  endif()
endif()
set(text "#define BENCH_REVISION \"${REVISION}\"\n#define BENCH_FLAGS \"${FLAGS}\"\n")
set(old "")
if(EXISTS ${HEADER})
  file(READ ${HEADER} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${HEADER} "${text}")
endif()
