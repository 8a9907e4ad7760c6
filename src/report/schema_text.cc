// SPDX-License-Identifier: Apache-2.0
//
// The report's JSON Schema as the program prints it.
#include "src/report/json.h"

namespace batchproof {
namespace {

#include "report_schema.inc"

}  // namespace

std::string_view report_schema_text() { return k_report_schema; }

}  // namespace batchproof
