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
