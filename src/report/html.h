// SPDX-License-Identifier: Apache-2.0
//
// One self-contained HTML file that opens from disk: a heat map of cells and relations with the details of each.
#ifndef BATCHPROOF_SRC_REPORT_HTML_H_
#define BATCHPROOF_SRC_REPORT_HTML_H_

#include <ostream>
#include <string>
#include <string_view>

#include "src/report/reporter.h"

namespace batchproof {

// Writes the page at the end. It loads nothing from elsewhere; the run stands in it as the JSON report.
class HtmlReporter : public Reporter {
 public:
  explicit HtmlReporter(std::ostream& out) : out_(out) {}
  void begin(const RunContext&) override {}
  void cell(const CellResult&) override {}
  void end(const RunResult& result) override;

 private:
  std::ostream& out_;
};

// JSON text that may stand inside a <script> element: no "<", so neither </script> nor <!-- can end or nest it.
std::string script_safe(std::string_view json);

// The page around the data: markup with style, and the script.
std::string_view html_head();
std::string_view html_style();
std::string_view html_script();

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_REPORT_HTML_H_
