# SPDX-License-Identifier: Apache-2.0
# Options and the compile flags that the contracts rest on (C10).

option(BATCHPROOF_TESTS "Build the tests" ON)
option(BATCHPROOF_BENCHMARKS "Build the benchmarks (Google Benchmark, OpenBLAS as the peer)" ON)
set(BATCHPROOF_TEST_FOLDERS "" CACHE STRING "Build the tests of these folders only (numeric;comm;matmul;program;...)")
set(BATCHPROOF_SANITIZE "" CACHE STRING "Sanitizers for every target: address,undefined or thread")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 99)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

add_library(batchproof_flags INTERFACE)
target_include_directories(batchproof_flags INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
# -ffp-contract=off: GCC's default fuses a*b+c where the target has FMA, so bytes would depend on -march.
target_compile_options(batchproof_flags INTERFACE
  -ffp-contract=off -fno-fast-math -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor -Woverloaded-virtual>)
if(BATCHPROOF_SANITIZE)
  target_compile_options(batchproof_flags INTERFACE -fsanitize=${BATCHPROOF_SANITIZE} -fno-omit-frame-pointer)
  # GCC sees uninitialised values in the standard library where sanitizers change its inlining.
  target_compile_options(batchproof_flags INTERFACE -Wno-maybe-uninitialized)
  # Test sources are not always instrumented and cannot ask the compiler.
  target_compile_definitions(batchproof_flags INTERFACE BATCHPROOF_SANITIZED)
  target_link_options(batchproof_flags INTERFACE -fsanitize=${BATCHPROOF_SANITIZE})
  if(BATCHPROOF_SANITIZE MATCHES "undefined")
    target_compile_options(batchproof_flags INTERFACE -fno-sanitize-recover=undefined)
  endif()
endif()
