// SPDX-License-Identifier: Apache-2.0
//
// batchproof schema: prints the JSON Schema of a suite dialect or of the report.
#include "src/suite/schema.h"

#include <fmt/format.h>

#include "src/cli/exit.h"
#include "src/cli/print.h"
#include "src/cli/verbs.h"
#include "src/report/json.h"

namespace batchproof::cli {

int run_schema(const std::string& name) {
  const std::string_view text = name == "report" ? report_schema_text() : schema_text(name);
  if (text.empty()) {
    return report_error({Error::Kind::usage, fmt::format("schema {}: schemas are native, atk and report", name)});
  }
  fmt::print("{}", text);
  return kExitOk;
}

}  // namespace batchproof::cli
