// SPDX-License-Identifier: Apache-2.0
//
// The JSON report (schema_version 1, schema/report.schema.json), its journal, and reading it back.
#ifndef BATCHPROOF_SRC_REPORT_JSON_H_
#define BATCHPROOF_SRC_REPORT_JSON_H_

#include <nlohmann/json_fwd.hpp>
#include <ostream>
#include <string>
#include <string_view>

#include "src/report/reporter.h"
#include "src/runtime/error.h"

namespace batchproof {

constexpr int kReportSchemaVersion = 1;

// Writes one JSON document at the end.
class JsonReporter : public Reporter {
 public:
  explicit JsonReporter(std::ostream& out) : out_(out) {}
  void begin(const RunContext&) override {}
  void cell(const CellResult&) override {}
  void end(const RunResult& result) override;

 private:
  std::ostream& out_;
};

// One line of JSON for the context, then one for each cell as it ends, so that a run that was stopped can be resumed.
class JsonJournal : public Reporter {
 public:
  explicit JsonJournal(std::ostream& out) : out_(out) {}
  void begin(const RunContext& context) override;
  void cell(const CellResult& result) override;
  void end(const RunResult&) override {}

 private:
  std::ostream& out_;
};

nlohmann::ordered_json to_json(const RunResult& result);
nlohmann::ordered_json context_json(const RunContext& context);

// Reads a report or a journal (the last line of a journal may be cut short). `source` names it in errors, which are
// usage errors: not JSON, another schema_version, a field missing or of another type. Unknown fields are ignored.
Result<RunResult> parse_report(std::string_view text, const std::string& source);
Result<RunResult> read_report(const std::string& path);

// JSON Schema (draft-07) of the report; schema/report.schema.json holds the same text.
std::string_view report_schema_text();

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_REPORT_JSON_H_
