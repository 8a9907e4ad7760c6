// SPDX-License-Identifier: Apache-2.0
//
// The GitHub Actions report.
#include "src/report/github.h"

#include <fmt/format.h>
#include <fmt/ostream.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "src/report/control_table.h"
#include "src/report/describe_standards.h"
#include "src/runtime/words.h"

namespace batchproof {
namespace {

std::string escaped(std::string_view text, bool property) {
  std::string result;
  for (const char c : text) {
    if (c == '%') {
      result += "%25";
    } else if (c == '\r') {
      result += "%0D";
    } else if (c == '\n') {
      result += "%0A";
    } else if (property && c == ':') {
      result += "%3A";
    } else if (property && c == ',') {
      result += "%2C";
    } else {
      result += c;
    }
  }
  return result;
}

// Inside a table cell: no pipe, no HTML, no emphasis by accident.
std::string markdown(std::string_view text) {
  std::string result;
  for (const char c : one_line(text)) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '|':
      case '\\':
      case '`':
      case '*':
      case '_':
      case '[':
      case ']':
      case '~':
        result += '\\';
        result += c;
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string headline(const CellResult& cell) { return failures(cell).front().headline; }

// A code block cannot be closed from inside: the fence is longer than any run of back-ticks in the text.
std::string fenced(const std::string& text) {
  std::size_t longest = 2;
  std::size_t run = 0;
  for (const char c : text) {
    run = c == '`' ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  const std::string fence(longest + 1, '`');
  return fence + "\n" + text + fence + "\n";
}

struct FailedCase {
  std::string op, case_name;
  std::vector<const CellResult*> cells;
};

std::vector<FailedCase> failed_cases(const RunResult& result) {
  std::vector<FailedCase> cases;
  for (const CellResult& cell : result.cells) {
    if (cell.as_expected) continue;
    auto found = std::find_if(cases.begin(), cases.end(), [&](const FailedCase& other) {
      return other.op == cell.op && other.case_name == cell.case_name;
    });
    if (found == cases.end()) {
      cases.push_back({cell.op, cell.case_name, {}});
      found = cases.end() - 1;
    }
    found->cells.push_back(&cell);
  }
  return cases;
}

std::string failure_section(const FailedCase& failed) {
  const CellResult& cell = *failed.cells.front();
  std::string text = fmt::format("### {} / {}: {} cell{} failed\n\n", markdown(failed.op), markdown(failed.case_name),
                                 failed.cells.size(), failed.cells.size() == 1 ? "" : "s");
  std::string block;
  for (const Failure& failure : failures(cell)) {
    block += failure.headline + '\n';
    for (const std::string& fact : failure.facts) block += "  " + fact + '\n';
  }
  return text + fenced(block) + '\n';
}

std::string operator_table(const RunResult& result) {
  struct Totals {
    int passed = 0, failed = 0, skipped = 0;
  };
  std::vector<std::pair<std::string, Totals>> operators;
  for (const CellResult& cell : result.cells) {
    auto found =
        std::find_if(operators.begin(), operators.end(), [&](const auto& other) { return other.first == cell.op; });
    if (found == operators.end()) {
      operators.push_back({cell.op, {}});
      found = operators.end() - 1;
    }
    Totals& totals = found->second;
    (!cell.as_expected ? totals.failed : cell.verdict == Verdict::skipped ? totals.skipped : totals.passed)++;
  }
  std::string text = "| operator | passed | failed | skipped |\n|:--|--:|--:|--:|\n";
  for (const auto& [op, totals] : operators) {
    text += fmt::format("| {} | {} | {} | {} |\n", markdown(op), totals.passed, totals.failed, totals.skipped);
  }
  return text + '\n';
}

std::string controls_section(const RunResult& result) {
  const ControlTable table = control_table(result);
  if (table.rows.empty()) return "";
  std::string text =
      "### Controls\n\nY caught, - not caught (both as declared), m missed, ! caught though declared clear, v vacuous, "
      "e error\n\n| control | cells |";
  for (const std::string& column : table.columns) text += fmt::format(" {} |", markdown(column));
  text += "\n|:--|--:|";
  for (std::size_t i = 0; i < table.columns.size(); ++i) text += ":-:|";
  text += '\n';
  for (const ControlRow& row : table.rows) {
    text +=
        fmt::format("| {} / {} / {} | {} |", markdown(row.op), markdown(row.impl), markdown(row.case_name), row.cells);
    for (const char mark : row.marks) text += fmt::format(" {} |", mark);
    text += '\n';
  }
  return text + '\n';
}

}  // namespace

std::string github_message(std::string_view text) { return escaped(text, false); }
std::string github_property(std::string_view text) { return escaped(text, true); }

std::string github_summary(const RunResult& result, std::size_t limit) {
  const RunContext& context = result.context;
  std::vector<std::string> sections;
  sections.push_back(fmt::format("## batchproof: {} passed, {} failed, {} skipped\n\n", result.passed(),
                                 result.failed(), result.skipped()));
  sections.push_back(fmt::format("version {} (build {}), {}, communicator {}, seed {}, {}\n\n",
                                 markdown(context.version), markdown(context.build), markdown(context.device),
                                 markdown(context.communicator), context.seed, markdown(context.date)));
  sections.push_back(operator_table(result));
  sections.push_back(controls_section(result));
  for (const PerformanceMean& mean : result.means)
    sections.push_back(fmt::format("{}{}\n\n", mean.passed() ? "" : "FAIL: ", markdown(mean_text(mean))));
  for (const FailedCase& failed : failed_cases(result)) sections.push_back(failure_section(failed));

  const std::string note = "\n(cut here: a step summary holds at most 1 MiB; the JSON report has everything)\n";
  std::string text;
  for (const std::string& section : sections) {
    // Whole sections only: half a code block would swallow the note.
    if (text.size() + section.size() + note.size() > limit) {
      if (text.size() + note.size() <= limit) text += note;
      break;
    }
    text += section;
  }
  return text;
}

GithubReporter::GithubReporter(std::ostream& commands, std::ostream* summary, std::string workspace,
                               std::size_t summary_limit)
    : commands_(commands), summary_(summary), workspace_(std::move(workspace)), summary_limit_(summary_limit) {}

std::string GithubReporter::relative(const std::string& file) const {
  const std::string folder = workspace_.empty() || workspace_.back() == '/' ? workspace_ : workspace_ + "/";
  return !folder.empty() && file.rfind(folder, 0) == 0 ? file.substr(folder.size()) : file;
}

void GithubReporter::annotate(const RunResult& result) {
  for (const FailedCase& failed : failed_cases(result)) {
    const CellResult& cell = *failed.cells.front();
    std::string message = headline(cell);
    if (failed.cells.size() > 1) message += fmt::format("\nand {} more cells of this case", failed.cells.size() - 1);
    if (!cell.reproduce.empty()) message += "\nreproduce: " + one_line(cell.reproduce);
    std::string properties;
    if (!cell.position.file.empty()) {
      properties = fmt::format("file={},line={},", github_property(relative(cell.position.file)),
                               std::max(cell.position.line, 1));
    }
    properties += fmt::format("title={}", github_property(one_line(failed.op + " / " + failed.case_name)));
    fmt::print(commands_, "::error {}::{}\n", properties, github_message(message));
  }
  for (const PerformanceMean& mean : result.means) {
    if (mean.passed()) continue;
    fmt::print(commands_, "::error title={}::{}\n", github_property(one_line(mean.op + " / mean of perf")),
               github_message(mean_text(mean)));
  }
  commands_.flush();
}

void GithubReporter::end(const RunResult& result) {
  annotate(result);
  if (summary_ != nullptr) *summary_ << github_summary(result, summary_limit_) << std::flush;
}

}  // namespace batchproof
