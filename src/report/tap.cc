// SPDX-License-Identifier: Apache-2.0
//
// The TAP report.
#include "src/report/tap.h"

#include <fmt/format.h>
#include <fmt/ostream.h>

#include <nlohmann/json.hpp>

#include "src/report/describe_standards.h"
#include "src/runtime/words.h"

namespace batchproof {
namespace {

// A hash would start a directive and a backslash escapes it.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : one_line(text)) {
    if (c == '#' || c == '\\') result += '\\';
    result += c;
  }
  return result;
}

// A JSON string is a YAML double-quoted scalar.
std::string yaml(const std::string& text) { return nlohmann::json(one_line(text)).dump(); }

void yaml_list(std::ostream& out, const char* indent, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) fmt::print(out, "{}- {}\n", indent, yaml(line));
}

}  // namespace

void TapReporter::begin(const RunContext& context) {
  out_ << "TAP version 14\n";
  fmt::print(out_, "# batchproof {} (build {}), {}, {}, seed {}\n", context.version, context.build,
             one_line(context.device), one_line(context.communicator), context.seed);
  out_.flush();
}

void TapReporter::cell(const CellResult& result) {
  ++count_;
  const char* word = result.as_expected ? "ok" : "not ok";
  fmt::print(out_, "{} {} - {}", word, count_, escaped(result.id));
  if (result.as_expected && result.verdict == Verdict::skipped) {
    fmt::print(out_, " # SKIP {}", one_line(result.reason));
  }
  out_ << '\n';
  if (!result.as_expected) {
    const std::vector<Failure> list = failures(result);
    out_ << "  ---\n";
    fmt::print(out_, "  message: {}\n", yaml(list.front().headline));
    fmt::print(out_, "  severity: {}\n", result.verdict == Verdict::error ? "error" : "fail");
    fmt::print(out_, "  verdict: {}\n  expected: {}\n", verdict_name(result.verdict), verdict_name(result.expected));
    if (!result.position.file.empty()) {
      fmt::print(out_, "  at:\n    file: {}\n    line: {}\n    column: {}\n", yaml(result.position.file),
                 result.position.line, result.position.column);
    }
    const auto is_standard = [&](const Failure& failure) { return !relation_from_name(failure.what); };
    if (list.front().what.empty()) {
      out_ << "  facts:\n";
      yaml_list(out_, "    ", list.front().facts);
    } else {
      for (const bool standards : {false, true}) {
        bool first = true;
        for (const Failure& failure : list) {
          if (is_standard(failure) != standards) continue;
          if (first) out_ << (standards ? "  standards:\n" : "  relations:\n");
          first = false;
          fmt::print(out_, "    - {}: {}\n      verdict: {}\n      facts:\n", standards ? "standard" : "relation",
                     failure.what, verdict_name(failure.verdict));
          yaml_list(out_, "        ", failure.facts);
        }
      }
    }
    out_ << "  ...\n";
  }
  out_.flush();
}

void TapReporter::end(const RunResult& result) {
  for (const PerformanceMean& mean : result.means) {
    if (!mean.judged) continue;
    ++count_;
    fmt::print(out_, "{} {} - {}\n", mean.passed() ? "ok" : "not ok", count_, escaped(mean_text(mean)));
  }
  fmt::print(out_, "1..{}\n", count_);
  out_.flush();
}

}  // namespace batchproof
