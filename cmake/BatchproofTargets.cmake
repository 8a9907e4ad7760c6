# SPDX-License-Identifier: Apache-2.0
# A folder is a target; a file's suffix says what it is:
#   *_test.cc   tests (GoogleTest)          *_bench.cc   benchmarks (Google Benchmark)
#   *_avx2.cc   compiled for AVX2 + FMA     *_avx512.cc  compiled for AVX-512
#   other *.cc  the library                 testdata/*.c a shared library each, which tests load
# Files for an instruction set are compiled only where the target processor family is x86-64.

set(BATCHPROOF_LIBRARIES "" CACHE INTERNAL "")

function(batchproof_split_sources folder)
  file(GLOB_RECURSE all CONFIGURE_DEPENDS ${folder}/*.cc)
  list(FILTER all EXCLUDE REGEX "\\.cu\\.cc$")  # host code that needs CUDA: BatchproofCuda.cmake
  list(FILTER all EXCLUDE REGEX "\\.mpi\\.cc$")  # needs MPI: BatchproofMpi.cmake
  set(tests ${all})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  set(benches ${all})
  list(FILTER benches INCLUDE REGEX "_bench\\.cc$")
  set(sources ${all})
  list(FILTER sources EXCLUDE REGEX "_(test|bench)\\.cc$")
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(FILTER sources EXCLUDE REGEX "_avx(2|512)\\.cc$")
  endif()
  foreach(source ${sources})
    if(source MATCHES "_avx512\\.cc$")
      set_source_files_properties(${source} TARGET_DIRECTORY batchproof_flags PROPERTIES COMPILE_OPTIONS
        "-mavx512f;-mavx512vl;-mavx512bw;-mavx512dq;-mavx2;-mfma;-mf16c")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS
        "-mavx512f;-mavx512vl;-mavx512bw;-mavx512dq;-mavx2;-mfma;-mf16c")
    elseif(source MATCHES "_avx2\\.cc$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
    endif()
  endforeach()
  set(split_sources ${sources} PARENT_SCOPE)
  set(split_tests ${tests} PARENT_SCOPE)
  set(split_benches ${benches} PARENT_SCOPE)
endfunction()

# Whether the tests of a folder are built: all of them, unless BATCHPROOF_TEST_FOLDERS names a few.
function(batchproof_tested prefix result)
  set(${result} ${BATCHPROOF_TESTS} PARENT_SCOPE)
  if(BATCHPROOF_TEST_FOLDERS AND NOT prefix IN_LIST BATCHPROOF_TEST_FOLDERS)
    set(${result} OFF PARENT_SCOPE)
  endif()
endfunction()

# Test sources are not what is tested: GoogleTest's macros take most of a sanitizer build's time. ThreadSanitizer must
# see every access, so there they stay instrumented.
function(batchproof_test_source source)
  if(BATCHPROOF_SANITIZE MATCHES "address")
    set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "-fno-sanitize=all")
  endif()
endfunction()

# One test program per *_test.cc, named after it; CTest sees every test case.
function(batchproof_add_tests prefix libraries)
  batchproof_tested(${prefix} tested)
  if(NOT tested)
    return()
  endif()
  foreach(source ${ARGN})
    get_filename_component(stem ${source} NAME_WE)
    set(target ${prefix}_${stem})
    add_executable(${target} ${source})
    batchproof_test_source(${source})
    target_link_libraries(${target} PRIVATE ${libraries} batchproof_flags GTest::gtest GTest::gtest_main)
    gtest_discover_tests(${target} TEST_PREFIX ${prefix}/ DISCOVERY_TIMEOUT 60
      PROPERTIES LABELS ${prefix} TIMEOUT 600)
  endforeach()
endfunction()

# src/<name>/testdata/*.c: libraries that the layer's tests load as <BATCHPROOF_TESTDATA_DIR>/<stem>.so.
function(batchproof_add_testdata name folder tests)
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/testdata/*.c)
  batchproof_tested(${name} tested)
  if(NOT tested OR NOT sources)
    return()
  endif()
  set(output ${CMAKE_CURRENT_BINARY_DIR}/testdata/${name})
  foreach(source ${sources})
    get_filename_component(stem ${source} NAME_WE)
    set(module ${name}_testdata_${stem})
    add_library(${module} MODULE ${source})
    target_link_libraries(${module} PRIVATE batchproof_flags)
    set_target_properties(${module} PROPERTIES PREFIX "" SUFFIX ".so" OUTPUT_NAME ${stem}
      LIBRARY_OUTPUT_DIRECTORY ${output})
  endforeach()
  foreach(test ${tests})
    get_filename_component(stem ${test} NAME_WE)
    target_compile_definitions(${name}_${stem} PRIVATE BATCHPROOF_TESTDATA_DIR="${output}")
    target_link_libraries(${name}_${stem} PRIVATE ${CMAKE_DL_LIBS})
    foreach(source ${sources})
      get_filename_component(library ${source} NAME_WE)
      add_dependencies(${name}_${stem} ${name}_testdata_${library})
    endforeach()
  endforeach()
endfunction()

function(batchproof_add_benches prefix libraries)
  if(NOT BATCHPROOF_BENCHMARKS)
    return()
  endif()
  # The peer of the CPU kernels; a benchmark without it says so in its label.
  find_library(BATCHPROOF_OPENBLAS_LIBRARY openblas)
  foreach(source ${ARGN})
    get_filename_component(stem ${source} NAME_WE)
    add_executable(${prefix}_${stem} ${source})
    target_link_libraries(${prefix}_${stem} PRIVATE ${libraries} batchproof_flags benchmark::benchmark ${CMAKE_DL_LIBS})
    if(BATCHPROOF_OPENBLAS_LIBRARY)
      target_link_libraries(${prefix}_${stem} PRIVATE -Wl,--as-needed ${BATCHPROOF_OPENBLAS_LIBRARY} -Wl,--no-as-needed)
      target_compile_definitions(${prefix}_${stem} PRIVATE BATCHPROOF_HAVE_OPENBLAS)
    endif()
  endforeach()
endfunction()

# src/<name>: an object library that links the layers declared before it.
function(batchproof_layer name)
  set(folder ${PROJECT_SOURCE_DIR}/src/${name})
  batchproof_split_sources(${folder})
  set(lower ${BATCHPROOF_LIBRARIES})
  add_library(batchproof_${name} STATIC ${split_sources})
  target_link_libraries(batchproof_${name} PUBLIC batchproof_flags ${lower}
    fmt::fmt nlohmann_json::nlohmann_json tl::expected pugixml::pugixml Threads::Threads ${XXHASH_LIBRARY})
  set(BATCHPROOF_LIBRARIES batchproof_${name} ${lower} CACHE INTERNAL "")
  include(${folder}/layer.cmake OPTIONAL)  # what one layer needs beyond its sources
  batchproof_add_tests(${name} batchproof_${name} ${split_tests})
  batchproof_add_testdata(${name} ${folder} "${split_tests}")
  batchproof_add_benches(${name} batchproof_${name} ${split_benches})
endfunction()

# ops/<name>: object files, so that a static registration is linked although nothing refers to it.
function(batchproof_operators folder)
  set(targets "")
  file(GLOB children CONFIGURE_DEPENDS LIST_DIRECTORIES true ${folder}/*)
  foreach(child ${children})
    if(IS_DIRECTORY ${child})
      get_filename_component(name ${child} NAME)
      batchproof_split_sources(${child})
      add_library(op_${name} OBJECT ${split_sources})
      target_link_libraries(op_${name} PUBLIC ${BATCHPROOF_LIBRARIES})
      list(APPEND targets op_${name})
      batchproof_add_tests(${name} "op_${name};${BATCHPROOF_LIBRARIES}" ${split_tests})
      batchproof_add_benches(${name} "op_${name};${BATCHPROOF_LIBRARIES}" ${split_benches})
    endif()
  endforeach()
  set(BATCHPROOF_OPERATOR_TARGETS ${targets} CACHE INTERNAL "")
endfunction()

function(batchproof_program name folder)
  batchproof_split_sources(${PROJECT_SOURCE_DIR}/${folder})
  if(NOT split_sources)
    return()
  endif()
  set(objects "")
  foreach(target ${BATCHPROOF_OPERATOR_TARGETS})
    list(APPEND objects $<TARGET_OBJECTS:${target}>)
  endforeach()
  add_executable(${name} ${split_sources} ${objects})
  target_link_libraries(${name} PRIVATE ${BATCHPROOF_LIBRARIES} batchproof_flags CLI11::CLI11 ${CMAKE_DL_LIBS})
  target_compile_definitions(${name} PRIVATE BATCHPROOF_VERSION="${PROJECT_VERSION}"
    BATCHPROOF_OPS_DIR="${PROJECT_SOURCE_DIR}/ops")
  include(${PROJECT_SOURCE_DIR}/${folder}/layer.cmake OPTIONAL)
endfunction()
