# SPDX-License-Identifier: Apache-2.0
# Whether the CUDA sources are compiled in: RSSM_CUDA is AUTO (where there is nvcc), ON or OFF. Sanitizer builds go
# without them, as the device's runtime and a sanitizer's do not share a process well.
set(RSSM_CUDA AUTO CACHE STRING "compile the CUDA sources in: AUTO, ON, OFF")
set(RSSM_CUDA_ARCHITECTURES 90a CACHE STRING "architectures to compile for, e.g. 80;90a;100")
option(RSSM_CUDA_ONE_INSTANCE "compile one instance of each kernel template only, to see that an architecture compiles" OFF)
set(RSSM_HAVE_CUDA OFF)
if(NOT RSSM_CUDA STREQUAL "OFF" AND NOT RSSM_SANITIZE)
  find_program(RSSM_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
  if(RSSM_NVCC)
    get_filename_component(RSSM_CUDA_ROOT "${RSSM_NVCC}" REALPATH)
    get_filename_component(RSSM_CUDA_ROOT "${RSSM_CUDA_ROOT}/../.." ABSOLUTE)
    find_library(RSSM_CUDART cudart_static HINTS ${RSSM_CUDA_ROOT} PATH_SUFFIXES lib64 lib targets/x86_64-linux/lib
      targets/sbsa-linux/lib)
    find_path(RSSM_CUDA_INCLUDE cuda_runtime_api.h HINTS ${RSSM_CUDA_ROOT} PATH_SUFFIXES include
      targets/x86_64-linux/include targets/sbsa-linux/include)
  endif()
  if(RSSM_NVCC AND RSSM_CUDART AND RSSM_CUDA_INCLUDE)
    set(RSSM_HAVE_CUDA ON)
    get_filename_component(RSSM_CUDA_LIBS "${RSSM_CUDART}" DIRECTORY)
    set(RSSM_CUDA_LIBS " -L${RSSM_CUDA_LIBS} -lcudart_static -ldl -lrt -lpthread") # for pkg-config
  elseif(RSSM_CUDA STREQUAL "ON")
    message(FATAL_ERROR "RSSM_CUDA is ON, and nvcc with its static runtime was not found")
  endif()
endif()

# No contraction and no fast-math, as everywhere; exact division and roots are nvcc's defaults.
set(RSSM_NVCC_FLAGS -std=c++17 -O3 --fmad=false -Xcompiler -fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics)
if(RSSM_WERROR)
  list(APPEND RSSM_NVCC_FLAGS -Werror all-warnings)
endif()
if(RSSM_CUDA_ONE_INSTANCE)
  list(APPEND RSSM_NVCC_FLAGS -DRSSM_CUDA_ONE_INSTANCE)
endif()

# Appends the objects of .cu files to a list.
function(rssm_cuda_objects out)
  set(gencode)
  foreach(architecture ${RSSM_CUDA_ARCHITECTURES})
    list(APPEND gencode -gencode arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  set(objects ${${out}})
  foreach(source ${ARGN})
    get_filename_component(name ${source} NAME_WE)
    set(object ${CMAKE_CURRENT_BINARY_DIR}/cuda_${name}.o)
    add_custom_command(OUTPUT ${object}
      COMMAND ${RSSM_NVCC} ${RSSM_NVCC_FLAGS} ${gencode} -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR}/src
              -MD -MF ${object}.d -c ${source} -o ${object}
      DEPENDS ${source} DEPFILE ${object}.d COMMENT "Building CUDA object ${name}" VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  set(${out} ${objects} PARENT_SCOPE)
endfunction()
