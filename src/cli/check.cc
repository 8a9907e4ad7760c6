// SPDX-License-Identifier: Apache-2.0
//
// batchproof check: selects cells, runs them, reports.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>

#include "src/check/runner.h"
#include "src/check/standards.h"
#include "src/cli/command_text.h"
#include "src/cli/context.h"
#include "src/cli/exit.h"
#include "src/cli/flags.h"
#include "src/cli/fresh.h"
#include "src/cli/print.h"
#include "src/cli/reports.h"
#include "src/cli/resume.h"
#include "src/cli/select.h"
#include "src/cli/verbs.h"
#include "src/runtime/words.h"

namespace batchproof::cli {
namespace {

constexpr std::size_t kMostCaseWidth = 24;
constexpr std::size_t kMostAxesWidth = 44;

struct CheckOptions {
  ConsoleOptions::Detail detail = ConsoleOptions::Detail::automatic;
  double timeout = kDefaultTimeout;
  PerfMode perf = PerfMode::report;
};

Result<CheckOptions> parse_check(const CheckFlags& flags) {
  CheckOptions options;
  using Detail = ConsoleOptions::Detail;
  if (flags.detail == "all") {
    options.detail = Detail::all;
  } else if (flags.detail == "cells") {
    options.detail = Detail::cells;
  } else if (flags.detail == "failing") {
    options.detail = Detail::failing;
  } else if (!flags.detail.empty() && flags.detail != "auto") {
    return fail(Error::Kind::usage, fmt::format("--detail {}: levels are auto, all, cells and failing", flags.detail));
  }
  if (flags.as_cases) options.detail = Detail::cases;
  if (flags.perf == "judge") {
    options.perf = PerfMode::judge;
  } else if (flags.perf == "off") {
    options.perf = PerfMode::off;
  } else if (!flags.perf.empty() && flags.perf != "report") {
    return fail(Error::Kind::usage, fmt::format("--perf {}: choices are report, judge and off", flags.perf));
  }
  const Result<double> timeout = parse_timeout(flags.timeout);
  if (!timeout) return tl::unexpected(timeout.error());
  options.timeout = *timeout;
  return options;
}

int print_cells(const Selection& selection) {
  for (const Cell& cell : selection.cells) fmt::print("{}\n", cell.id);
  fmt::print("{} cells\n", selection.cells.size());
  return kExitOk;
}

std::string reproduce_command(const std::string& program, const SelectionFlags& flags, std::uint64_t seed,
                              PerfMode perf, const Cell& cell) {
  std::vector<std::string> words = {program,
                                    "check",
                                    cell.position.file,
                                    "--ranks",
                                    std::to_string(std::max(cell.problem.world, 1)),
                                    "--filter",
                                    fmt::format("^{}$", regex_escape(cell.id)),
                                    "--seed",
                                    std::to_string(seed)};
  for (const std::string& word : override_words(flags)) words.push_back(word);
  if (perf == PerfMode::judge) words.insert(words.end(), {"--perf", "judge"});
  return shell_join(words);
}

// Columns as wide as the names that will come, within reason.
ConsoleOptions console_options(const Selection& selection, ConsoleOptions::Detail detail) {
  ConsoleOptions console;
  console.detail = detail;
  console.cell_count = selection.cells.size();
  console.colour = colour_wanted(STDOUT_FILENO);
  console.progress = isatty(STDERR_FILENO) != 0;
  std::size_t names = 4;
  std::size_t axes = 4;
  for (const Cell& cell : selection.cells) {
    names = std::max(names, cell.case_name.size());
    std::size_t length = 0;
    for (const auto& [name, value] : cell.axes) length += name.size() + value.size() + 2;
    axes = std::max(axes, length > 0 ? length - 1 : 0);
  }
  console.case_width = std::min(names, kMostCaseWidth);
  console.axes_width = std::min(axes, kMostAxesWidth);
  return console;
}

// Usage goes first; it never gets here. Then what failed, then the environment.
int exit_of(const RunResult& result, const std::vector<Error>& errors) {
  if (result.failed() > 0) return kExitFailed;
  if (!errors.empty()) return kExitEnvironment;
  if (result.passed() == 0 && result.skipped() > 0) return kExitSkipped;
  return kExitOk;
}

// Runs the cells that an earlier run has not done and reports all of them in the order of the selection.
class Run {
 public:
  Run(const CheckFlags& flags, const CheckOptions& options, const Selection& selection, Reports& reports,
      std::map<std::string, CellResult> done)
      : flags_(flags), options_(options), selection_(selection), reports_(reports), done_(std::move(done)) {}

  RunResult all(const RunContext& context, const std::string& program) {
    std::vector<Cell> todo;
    for (const Cell& cell : selection_.cells) {
      if (done_.count(cell.id) == 0) todo.push_back(cell);
    }
    if (todo.size() < selection_.cells.size()) {
      note(fmt::format("resumed: {} of {} cells were done before", selection_.cells.size() - todo.size(),
                       selection_.cells.size()));
    }
    RunOptions run;
    run.seed = selection_.options.seed;
    run.relations = selection_.options.expand.relations;
    run.fail_fast = flags_.fail_fast;
    run.host = plugin_hosts(selection_);
    run.device = selection_.options.device;
    run.timeout_s = options_.timeout;
    run.perf = options_.perf;
    run.reproduce = [&](const Cell& cell) {
      return reproduce_command(program, flags_.selection, selection_.options.seed, options_.perf, cell);
    };
    run.fresh_process = [&](const std::vector<Cell>& cells) { return fresh(cells); };
    run.on_cell = [&](const CellResult& result) {
      carry_until(result.id);
      add(result);
    };
    result_.context = context;
    carry_until(todo.empty() ? std::string() : todo.front().id);
    if (!todo.empty() && !stopped_) run_cells(todo, run);
    if (!stopped_) carry_until("");
    result_.means = performance_means(result_.cells);
    return std::move(result_);
  }

  const std::vector<Error>& errors() const { return errors_; }

 private:
  std::optional<CellDigests> fresh(const std::vector<Cell>& cells) {
    std::vector<std::string> suites;
    for (const Suite& suite : selection_.suites) suites.push_back(suite.path);
    Result<CellDigests> digests = digest_in_fresh_process(cells, suites, flags_.selection, options_.timeout);
    if (digests) return *std::move(digests);
    errors_.push_back(digests.error());
    return std::nullopt;
  }

  void add(const CellResult& result) {
    reports_.cell(result);
    result_.cells.push_back(result);
    ++next_;
    stopped_ = flags_.fail_fast && !result.as_expected;
  }

  // Reports the results of the earlier run that come before the cell `id`.
  void carry_until(const std::string& id) {
    while (!stopped_ && next_ < selection_.cells.size() && selection_.cells[next_].id != id) {
      const auto found = done_.find(selection_.cells[next_].id);
      if (found == done_.end()) return;
      add(found->second);
    }
  }

  const CheckFlags& flags_;
  const CheckOptions& options_;
  const Selection& selection_;
  Reports& reports_;
  std::map<std::string, CellResult> done_;
  RunResult result_;
  std::vector<Error> errors_;
  std::size_t next_ = 0;
  bool stopped_ = false;
};

}  // namespace

int run_check(const CheckFlags& flags, const std::vector<std::string>& words) {
  const Result<CheckOptions> options = parse_check(flags);
  if (!options) return report_error(options.error());
  const Result<Selection> selection = select_cells(flags.selection);
  if (!selection) return report_error(selection.error());
  if (flags.dry_run) return print_cells(*selection);

  const bool digests = flags.reports.any_file() || !flags.resume.empty();
  Result<RunContext> context = make_context(words, *selection, digests);
  if (!context) return report_error(context.error());
  if (options->perf != PerfMode::report) context->settings.emplace_back("perf", flags.perf);
  std::map<std::string, CellResult> done;
  if (!flags.resume.empty()) {
    // The first round of a loop that always passes both has nothing to resume yet.
    auto loaded = load_resume(flags.resume, flags.resume == flags.reports.json, *context);
    if (!loaded) return report_error(loaded.error());
    done = *std::move(loaded);
  }
  auto reports = Reports::make(flags.reports, console_options(*selection, options->detail));
  if (!reports) return report_error(reports.error());

  (*reports)->begin(*context);
  for (const auto& plugin : selection->plugins) {
    for (const std::string& what : plugin->load_notes()) note(fmt::format("{}: {}", plugin->path(), what));
  }
  Run run(flags, *options, *selection, **reports, std::move(done));
  const RunResult result = run.all(*context, words.front());
  (*reports)->end(result);

  std::vector<Error> errors = (*reports)->errors();
  errors.insert(errors.end(), run.errors().begin(), run.errors().end());
  for (const Error& error : errors) report_error(error);
  return exit_of(result, errors);
}

}  // namespace batchproof::cli
