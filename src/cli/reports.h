// SPDX-License-Identifier: Apache-2.0
//
// The reports that a run was asked for: the console, files, and GitHub where its environment is seen.
#ifndef BATCHPROOF_SRC_CLI_REPORTS_H_
#define BATCHPROOF_SRC_CLI_REPORTS_H_

#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "src/report/console.h"
#include "src/report/reporter.h"
#include "src/runtime/error.h"

namespace batchproof::cli {

struct ReportFlags {
  std::string json, junit, html, tap;  // paths; empty: not wanted
  bool any_file() const { return !json.empty() || !junit.empty() || !html.empty() || !tap.empty(); }
};

// Fans the calls of a run out to every report. File reports are built in memory and replace their file at the end, the
// JSON report keeps a journal beside it until then.
class Reports : public Reporter {
 public:
  // Errors (usage): a path that cannot be written, found before any work.
  static Result<std::unique_ptr<Reports>> make(const ReportFlags& flags, const ConsoleOptions& console);
  // No report at all, for ranks that do not speak.
  static std::unique_ptr<Reports> silent();

  void begin(const RunContext& context) override;
  void cell(const CellResult& result) override;
  void end(const RunResult& result) override;  // the console last: its last line is the run's last line

  // What could not be written, after end().
  const std::vector<Error>& errors() const { return errors_; }

 private:
  struct File {
    std::string path;
    std::unique_ptr<std::ostringstream> text;
    std::unique_ptr<Reporter> reporter;
  };
  Reports() = default;
  void add_github();

  std::vector<File> files_;
  std::vector<std::unique_ptr<Reporter>> live_;  // GitHub, then the console
  std::string journal_path_;
  std::ofstream journal_;
  std::unique_ptr<Reporter> journal_reporter_;
  std::unique_ptr<std::ofstream> step_summary_;
  std::vector<Error> errors_;
};

// Whether a report can be written to `path`; asked before work, so that an hour's run does not end without its report.
Result<void> check_writable(const std::string& flag, const std::string& path);

// Whether the stream is a terminal that wants colour: NO_COLOR is not set, TERM is not dumb.
bool colour_wanted(int descriptor);

}  // namespace batchproof::cli

#endif  // BATCHPROOF_SRC_CLI_REPORTS_H_
