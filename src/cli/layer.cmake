# SPDX-License-Identifier: Apache-2.0
# The revision that reports name as the build. Known at configure time only; CI configures for each revision.
execute_process(COMMAND git rev-parse --short=12 HEAD
  WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
  OUTPUT_VARIABLE revision OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE revision_missing)
if(revision_missing OR NOT revision MATCHES "^[0-9a-f]+$")
  set(revision unknown)
endif()
# On one file, so that a new revision rebuilds no other.
set_source_files_properties(${PROJECT_SOURCE_DIR}/src/cli/context.cc PROPERTIES
  COMPILE_DEFINITIONS "BATCHPROOF_BUILD=\"${revision}\"")
# The templates of `new` become part of the program, so that it can write them wherever it is installed. They are the
# files of examples/plugin as they stand.
set(generated ${CMAKE_CURRENT_BINARY_DIR}/generated/cli)
set(template_table "constexpr Template kTemplates[] = {\n")
foreach(language c c++)
  file(GLOB template_files CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/plugin/${language}/*)
  foreach(template_file ${template_files})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${template_file})
    get_filename_component(template_name ${template_file} NAME)
    file(READ ${template_file} template_content)
    string(APPEND template_table "    {\"${language}\", \"${template_name}\", R\"template(${template_content})template\"},\n")
  endforeach()
endforeach()
string(APPEND template_table "};\n")
file(CONFIGURE OUTPUT ${generated}/new_templates.inc CONTENT "${template_table}" @ONLY)
set_property(SOURCE ${PROJECT_SOURCE_DIR}/src/cli/new.cc APPEND PROPERTY INCLUDE_DIRECTORIES ${generated})
if(TARGET batchproof_mpi)
  target_link_libraries(${name} PRIVATE batchproof_mpi)
  set_property(SOURCE ${PROJECT_SOURCE_DIR}/src/cli/launch.cc APPEND PROPERTY
    COMPILE_DEFINITIONS BATCHPROOF_HAVE_MPI)
endif()
