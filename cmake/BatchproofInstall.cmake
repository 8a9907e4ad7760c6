# SPDX-License-Identifier: Apache-2.0
# What is installed, and the packages made of it. Everything is found relative to where it lies, so that a prefix can be
# moved as a whole.
if(BATCHPROOF_SANITIZE)
  return()
endif()
include(GNUInstallDirs)
if(NOT BATCHPROOF_HAVE_CUDA)
  set(BATCHPROOF_HAVE_CUDA OFF)  # written into the package
endif()
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/batchproof)
set(share_dir ${CMAKE_INSTALL_DATADIR}/batchproof)

# Two archives of objects that are built anyway. The operators are an archive of their own because it must be linked
# whole: nothing refers to a registration.
set(layer_objects "")
foreach(target ${BATCHPROOF_LIBRARIES} ${BATCHPROOF_DEVICE_TARGETS})
  if(TARGET ${target})
    list(APPEND layer_objects $<TARGET_OBJECTS:${target}>)
  endif()
endforeach()
set(operator_objects "")
foreach(target ${BATCHPROOF_OPERATOR_TARGETS})
  list(APPEND operator_objects $<TARGET_OBJECTS:${target}>)
endforeach()
add_library(batchproof_checker STATIC ${layer_objects})
set_target_properties(batchproof_checker PROPERTIES LINKER_LANGUAGE CXX EXPORT_NAME checker)
target_link_libraries(batchproof_checker INTERFACE fmt::fmt pugixml::pugixml Threads::Threads xxhash ${CMAKE_DL_LIBS}
  $<$<BOOL:${BATCHPROOF_HAVE_CUDA}>:CUDA::cudart_static>)
target_compile_features(batchproof_checker INTERFACE cxx_std_20)
add_library(batchproof_operator_objects STATIC ${operator_objects})
set_target_properties(batchproof_operator_objects PROPERTIES LINKER_LANGUAGE CXX EXPORT_NAME operator_objects)

# batchproof::plugin: the headers. batchproof::operators: the tables of the built-in operators, linked in.
add_library(batchproof_headers INTERFACE)
set_target_properties(batchproof_headers PROPERTIES EXPORT_NAME plugin)
target_include_directories(batchproof_headers INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
add_library(batchproof_linked_operators INTERFACE)
set_target_properties(batchproof_linked_operators PROPERTIES EXPORT_NAME operators)
target_link_libraries(batchproof_linked_operators INTERFACE batchproof_headers
  "$<BUILD_INTERFACE:$<LINK_LIBRARY:WHOLE_ARCHIVE,batchproof_operator_objects>>"
  "$<INSTALL_INTERFACE:$<LINK_LIBRARY:WHOLE_ARCHIVE,batchproof::operator_objects>>" batchproof_checker)
add_library(batchproof::plugin ALIAS batchproof_headers)
add_library(batchproof::operators ALIAS batchproof_linked_operators)

install(TARGETS batchproof batchproof_checker batchproof_operator_objects batchproof_headers batchproof_linked_operators
  EXPORT batchproof)
install(EXPORT batchproof NAMESPACE batchproof:: FILE BatchproofTargets.cmake DESTINATION ${package_dir})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/batchproof DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h")

# Every operator's suites, with the files that they name.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/ops/ DESTINATION ${share_dir}/ops
  FILES_MATCHING PATTERN ci.json PATTERN more.json PATTERN controls.json PATTERN full.json PATTERN cuda.json
  PATTERN cuda_controls.json PATTERN "*.npy")
install(DIRECTORY ${PROJECT_SOURCE_DIR}/schema DESTINATION ${share_dir} FILES_MATCHING PATTERN "*.schema.json")
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md")
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/BatchproofConfig.cmake.in
  ${PROJECT_BINARY_DIR}/package/batchproof-config.cmake INSTALL_DESTINATION ${package_dir}
  NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/batchproof-config-version.cmake
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/package/batchproof-config.cmake
  ${PROJECT_BINARY_DIR}/package/batchproof-config-version.cmake ${PROJECT_SOURCE_DIR}/cmake/BatchproofAddSuite.cmake
  DESTINATION ${package_dir})

set(pc_cuda_libs "")
if(BATCHPROOF_HAVE_CUDA)
  set(pc_cuda_libs " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt")
endif()

# pkg-config. The prefix is found from where the .pc file lies.
file(RELATIVE_PATH pc_to_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
foreach(pc batchproof batchproof-operators)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/${pc}.pc.in ${PROJECT_BINARY_DIR}/package/${pc}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/package/${pc}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME batchproof)
set(CPACK_PACKAGE_VENDOR batchproof)
# A package's maintainer is who builds it; Debian's tools take name and address from these two variables.
set(contact "unattended build <root@localhost>")
if(NOT "$ENV{DEBEMAIL}" STREQUAL "")
  set(contact "$ENV{DEBFULLNAME} <$ENV{DEBEMAIL}>")
endif()
set(BATCHPROOF_PACKAGE_CONTACT "${contact}" CACHE STRING "Maintainer of the packages that cpack makes: Name <address>")
set(CPACK_PACKAGE_CONTACT "${BATCHPROOF_PACKAGE_CONTACT}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION devel)
# Who links batchproof::operators needs these; a plug-in does not.
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libfmt-dev, libpugixml-dev, libxxhash-dev, cmake (>= 3.24)")
find_program(BATCHPROOF_SHLIBDEPS dpkg-shlibdeps)
if(BATCHPROOF_SHLIBDEPS)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
endif()
include(CPack)
