# SPDX-License-Identifier: Apache-2.0
# CUDA. The CPU build is the same with and without it.
#
#   BATCHPROOF_CUDA  AUTO  where nvcc is found      ON  an error where it is not      OFF  never
#
# Suffixes: *.cu device code; *.cu.cc host code that needs CUDA's headers. Of the device code, files that use
# instructions of sm_90a alone are listed below; everything else is compiled for sm_80 and later as well.

set(BATCHPROOF_CUDA AUTO CACHE STRING "CUDA kernels: AUTO, ON or OFF")
set_property(CACHE BATCHPROOF_CUDA PROPERTY STRINGS AUTO ON OFF)
set(BATCHPROOF_HAVE_CUDA OFF)

if(BATCHPROOF_CUDA)
  find_program(BATCHPROOF_NVCC nvcc HINTS ENV CUDACXX PATHS /usr/local/cuda/bin)
  if(BATCHPROOF_NVCC)
    set(CMAKE_CUDA_ARCHITECTURES OFF)  # written out per target
    if(NOT CMAKE_CUDA_COMPILER)
      set(CMAKE_CUDA_COMPILER ${BATCHPROOF_NVCC})
    endif()
    if(CCACHE_PROGRAM AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
    endif()
    enable_language(CUDA)
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake before 3.26 does not know that nvcc 12 takes C++20
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    find_package(CUDAToolkit REQUIRED)
    set(BATCHPROOF_HAVE_CUDA ON)
    message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER_VERSION}, sm_90a and a portable path for sm_80 and later")
  elseif(BATCHPROOF_CUDA STREQUAL "AUTO")
    message(STATUS "CUDA: no nvcc, the CPU build goes on without device code")
  else()
    message(FATAL_ERROR "BATCHPROOF_CUDA is ON but nvcc was not found: set CUDACXX or PATH, or use AUTO or OFF")
  endif()
endif()

# C10: subnormals kept, IEEE division and square root; fma is written where it is meant, so contraction is off.
set(BATCHPROOF_CUDA_OPTIONS -ftz=false -prec-div=true -prec-sqrt=true --fmad=false
  "-Xcompiler=-ffp-contract=off,-Wall,-Wextra")
if(BATCHPROOF_HAVE_CUDA)
  target_compile_definitions(batchproof_flags INTERFACE BATCHPROOF_HAVE_CUDA)
endif()

# Object libraries of the *.cu below a folder, <name>_sm90 and <name>_portable; their names go into the variable <result>.
function(batchproof_device_code name folder result)
  set(made "")
  if(BATCHPROOF_HAVE_CUDA)
    file(GLOB_RECURSE portable CONFIGURE_DEPENDS ${folder}/*.cu)
    set(sm90 ${portable})
    list(FILTER sm90 INCLUDE REGEX "(_sm90[^/]*|tensor_core_products)\\.cu$")
    list(REMOVE_ITEM portable ${sm90} "")
    set(sm90_architectures "-gencode=arch=compute_90a,code=sm_90a")
    set(portable_architectures
      "-gencode=arch=compute_80,code=[sm_80,compute_80];-gencode=arch=compute_90a,code=sm_90a")
    foreach(kind sm90 portable)
      if(${kind})
        set(target ${name}_${kind})
        add_library(${target} OBJECT ${${kind}})
        target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
        target_link_libraries(${target} PRIVATE tl::expected)
        target_compile_options(${target} PRIVATE ${BATCHPROOF_CUDA_OPTIONS} ${${kind}_architectures})
        set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES OFF POSITION_INDEPENDENT_CODE ON)
        list(APPEND made ${target})
      endif()
    endforeach()
  endif()
  set(${result} ${made} PARENT_SCOPE)
endfunction()

# The device programs of tests/gpu, in the build folder's gpu/. They run where a device is; everywhere they compile.
function(batchproof_gpu_programs)
  if(NOT BATCHPROOF_HAVE_CUDA OR NOT BATCHPROOF_TESTS)
    return()
  endif()
  file(GLOB programs CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/gpu/*.cu.cc)
  if(NOT EXISTS ${CUDAToolkit_INCLUDE_DIRS}/cublasLt.h)
    message(STATUS "CUDA: no cublasLt.h, the benchmark beside it is left out")
    list(FILTER programs EXCLUDE REGEX "matmul_bench")
  endif()
  set(targets "")
  foreach(source ${programs})
    get_filename_component(stem ${source} NAME)
    string(REGEX REPLACE "\\.cu\\.cc$" "" stem ${stem})
    add_executable(${stem} ${source})
    target_link_libraries(${stem} PRIVATE ${BATCHPROOF_LIBRARIES} ${CMAKE_DL_LIBS})
    # Carried to a device machine, a program finds its libraries beside itself.
    set_target_properties(${stem} PROPERTIES BUILD_RPATH "$ORIGIN" RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/gpu)
    list(APPEND targets ${stem})
  endforeach()
  add_custom_target(gpu_programs DEPENDS ${targets})
endfunction()
