// SPDX-License-Identifier: Apache-2.0
//
// GitHub Actions: one error annotation per operator and case that failed, and a step summary in Markdown.
#ifndef BATCHPROOF_SRC_REPORT_GITHUB_H_
#define BATCHPROOF_SRC_REPORT_GITHUB_H_

#include <cstddef>
#include <ostream>
#include <string>
#include <string_view>

#include "src/report/reporter.h"

namespace batchproof {

// GitHub drops a step's summary as a whole where it is larger than 1 MiB; the margin is for what others wrote.
constexpr std::size_t kSummaryLimit = 1000000;

class GithubReporter : public Reporter {
 public:
  // `commands` is what the runner reads (stdout). `summary` may be NULL; at most `summary_limit` bytes go there.
  // File names below `workspace` are written relative to it, as annotations need.
  GithubReporter(std::ostream& commands, std::ostream* summary, std::string workspace,
                 std::size_t summary_limit = kSummaryLimit);
  void begin(const RunContext&) override {}
  void cell(const CellResult&) override {}
  void end(const RunResult& result) override;

 private:
  void annotate(const RunResult& result);
  std::string relative(const std::string& file) const;

  std::ostream& commands_;
  std::ostream* summary_;
  std::string workspace_;
  std::size_t summary_limit_;
};

// Escaping of workflow commands: % CR LF in the message, and : , too in property values.
std::string github_message(std::string_view text);
std::string github_property(std::string_view text);

// The summary, cut at a line before `limit` bytes with a note that says so.
std::string github_summary(const RunResult& result, std::size_t limit);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_REPORT_GITHUB_H_
