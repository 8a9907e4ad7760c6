# SPDX-License-Identifier: Apache-2.0
# Ranks as processes of an MPI launch: src/*/*.mpi.cc, built where Open MPI is. Optional; without it `--comm mpi` says so.
option(BATCHPROOF_MPI "Build the MPI communicator where Open MPI is found" ON)

# A sanitizer would report what Open MPI itself leaks and races.
if(BATCHPROOF_MPI AND NOT BATCHPROOF_SANITIZE)
  find_package(MPI QUIET COMPONENTS C)
  if(NOT MPI_C_FOUND)
    message(STATUS "No MPI found (Debian: libopenmpi-dev): --comm mpi is not built")
  endif()
endif()
if(MPI_C_FOUND)
  file(GLOB mpi_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*/*.mpi.cc)
  add_library(batchproof_mpi STATIC ${mpi_sources})
  # The C interface: MPI's own C++ bindings are not wanted.
  target_compile_definitions(batchproof_mpi PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  target_link_libraries(batchproof_mpi PUBLIC ${BATCHPROOF_LIBRARIES} PRIVATE MPI::MPI_C)
endif()
