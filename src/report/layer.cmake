# SPDX-License-Identifier: Apache-2.0
# The report's schema becomes part of the library, so that the program can print it wherever it is installed.
set(generated ${CMAKE_CURRENT_BINARY_DIR}/generated/report)
set(schema_file ${PROJECT_SOURCE_DIR}/schema/report.schema.json)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${schema_file})
file(READ ${schema_file} schema_content)
file(CONFIGURE OUTPUT ${generated}/report_schema.inc
  CONTENT "constexpr std::string_view k_report_schema = R\"schema(${schema_content})schema\";\n" @ONLY)
target_include_directories(batchproof_report PRIVATE ${generated})
