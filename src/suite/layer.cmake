# SPDX-License-Identifier: Apache-2.0
# The suite schemas become part of the library, so that the program can print them wherever it is installed.
set(generated ${CMAKE_CURRENT_BINARY_DIR}/generated/suite)
set(schema_definitions "")
foreach(dialect native atk)
  set(schema_file ${PROJECT_SOURCE_DIR}/schema/${dialect}.schema.json)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${schema_file})
  file(READ ${schema_file} schema_content)
  string(APPEND schema_definitions
    "constexpr std::string_view k_${dialect}_schema = R\"schema(${schema_content})schema\";\n")
endforeach()
file(CONFIGURE OUTPUT ${generated}/suite_schemas.inc CONTENT "${schema_definitions}" @ONLY)
target_include_directories(batchproof_suite PRIVATE ${generated})
