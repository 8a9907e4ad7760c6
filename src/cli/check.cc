// SPDX-License-Identifier: Apache-2.0
//
// batchproof check: selects cells, runs them, reports.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "src/check/runner.h"
#include "src/check/standards.h"
#include "src/cli/command_text.h"
#include "src/cli/context.h"
#include "src/cli/exit.h"
#include "src/cli/flags.h"
#include "src/cli/fresh.h"
#include "src/cli/launch.h"
#include "src/cli/print.h"
#include "src/cli/reports.h"
#include "src/cli/resume.h"
#include "src/cli/select.h"
#include "src/cli/verbs.h"
#include "src/numeric/digest.h"
#include "src/runtime/words.h"

namespace batchproof::cli {
namespace {

constexpr std::size_t kMostCaseWidth = 40;
constexpr std::size_t kMostAxesWidth = 100;

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
  if (flags.comm == "mpi") {
    const std::vector<std::string> launcher = {"mpirun", "-n", std::to_string(std::max(cell.problem.world, 1))};
    words.insert(words.begin(), launcher.begin(), launcher.end());
  }
  return shell_join(words);
}

// Columns as wide as the names that will come, within reason. mpirun gives a rank a terminal, wherever its own output
// goes.
ConsoleOptions console_options(const Selection& selection, ConsoleOptions::Detail detail, bool under_mpirun) {
  ConsoleOptions console;
  console.detail = detail;
  console.cell_count = selection.cells.size();
  console.colour = !under_mpirun && colour_wanted(STDOUT_FILENO);
  console.progress = !under_mpirun && isatty(STDERR_FILENO) != 0;
  for (const Cell& cell : selection.cells) {
    std::size_t length = 0;
    for (const auto& [name, value] : cell.axes) length += name.size() + value.size() + 2;
    const std::string impl = cell.impl != nullptr ? cell.impl->id : "";
    auto& widths = console.table_widths.try_emplace({cell.op_name, impl}, ConsoleOptions::Widths{4, 4}).first->second;
    widths.cases = std::max(widths.cases, std::min(cell.case_name.size(), kMostCaseWidth));
    widths.axes = std::max(widths.axes, std::min(length > 0 ? length - 1 : 0, kMostAxesWidth));
  }
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
  Run(const CheckFlags& flags, const CheckOptions& options, const Selection& selection, Launch& launch,
      Reports& reports, std::map<std::string, CellResult> done)
      : flags_(flags),
        options_(options),
        selection_(selection),
        launch_(launch),
        reports_(reports),
        done_(std::move(done)) {}
  ~Run() { launch_.on_loss({}); }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

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
    if (launch_.mpi()) {
      run.host = [&](const bp_operator* table) { return launch_.host(table, options_.timeout); };
    }
    run.timeout_s = options_.timeout;
    // Times differ between processes, and with them how often a call is repeated: over MPI nothing is timed.
    run.perf = launch_.mpi() ? PerfMode::off : options_.perf;
    run.reproduce = [&](const Cell& cell) {
      return reproduce_command(program, flags_.selection, selection_.options.seed, options_.perf, cell);
    };
    run.fresh_process = [&](const std::vector<Cell>& cells) { return fresh(cells); };
    run.on_cell = [&](const CellResult& result) {
      carry_until(result.id);
      add(result);
    };
    result_.context = context;
    // A rank was lost: the reports get what there is.
    launch_.on_loss([&] {
      const std::lock_guard lock(mutex_);
      if (!ended_) reports_.end(result_);
    });
    carry_until(todo.empty() ? std::string() : todo.front().id);
    if (!todo.empty() && !stopped_) run_cells(todo, run);
    if (!stopped_) carry_until("");
    result_.means = performance_means(result_.cells);
    const std::lock_guard lock(mutex_);
    reports_.end(result_);
    ended_ = true;
    return std::move(result_);
  }

  const std::vector<Error>& errors() const { return errors_; }

 private:
  std::optional<CellDigests> fresh(const std::vector<Cell>& cells) {
    constexpr const char* kNone = "none";
    if (!launch_.speaks()) {
      const std::string text = launch_.broadcast("");
      if (text == kNone) return std::nullopt;
      return digests_from_text(text);
    }
    std::vector<std::string> suites;
    suites.reserve(selection_.suites.size());
    for (const Suite& suite : selection_.suites) suites.push_back(suite.path);
    // A fresh process is one process: its ranks are threads.
    SelectionFlags flags = flags_.selection;
    if (launch_.mpi()) flags.comm = "threads";
    Result<CellDigests> digests = digest_in_fresh_process(cells, suites, flags, options_.timeout);
    launch_.broadcast(digests ? digests_to_text(*digests) : kNone);
    if (digests) return *std::move(digests);
    errors_.push_back(digests.error());
    return std::nullopt;
  }

  void add(const CellResult& result) {
    const std::lock_guard lock(mutex_);
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
  Launch& launch_;
  Reports& reports_;
  std::map<std::string, CellResult> done_;
  std::mutex mutex_;  // of the reports and the results so far
  RunResult result_;
  std::vector<Error> errors_;
  std::size_t next_ = 0;
  bool stopped_ = false;
  bool ended_ = false;
};

// What is known before anything runs.
struct Prepared {
  CheckOptions options;
  Selection selection;
  RunContext context;
};

// Cells that the launch cannot run.
void skip_cells(const Launch& launch, Selection* selection) {
  if (!launch.mpi()) return;
  for (Cell& cell : selection->cells) {
    if (!cell.skip_reason.empty()) continue;
    const bool from_plugin = std::any_of(selection->plugins.begin(), selection->plugins.end(),
                                         [&](const auto& plugin) { return plugin->host(cell.op) != nullptr; });
    if (from_plugin) {
      cell.skip_reason = "an operator of a plug-in does not run over MPI; --comm threads runs it";
    } else if (cell.problem.world > launch.size()) {
      cell.skip_reason = fmt::format("{} ranks need {} processes, mpirun started {}", cell.problem.world,
                                     cell.problem.world, launch.size());
    }
  }
}

Result<Prepared> prepare(const CheckFlags& flags, const std::vector<std::string>& words, const Launch& launch) {
  Prepared prepared;
  auto options = parse_check(flags);
  if (!options) return tl::unexpected(options.error());
  prepared.options = *options;
  auto selection = select_cells(flags.selection);
  if (!selection) return tl::unexpected(selection.error());
  prepared.selection = *std::move(selection);
  skip_cells(launch, &prepared.selection);
  if (flags.dry_run) return prepared;
  const bool digests = flags.reports.any_file() || !flags.resume.empty() || launch.mpi();
  auto context = make_context(words, prepared.selection, digests);
  if (!context) return tl::unexpected(context.error());
  prepared.context = *std::move(context);
  if (prepared.options.perf != PerfMode::report) prepared.context.settings.emplace_back("perf", flags.perf);
  if (launch.mpi()) prepared.context.communicator = launch.communicator();
  return prepared;
}

// Equal where two processes run the same program on the same cells.
std::string identity(const Prepared& prepared) {
  std::string text = fmt::format("{} {}", prepared.context.version, prepared.context.seed);
  for (const auto& [name, id] : prepared.context.build_ids) text += " " + id;
  for (const auto& [name, value] : prepared.context.settings) text += fmt::format(" {}={}", name, value);
  for (const Cell& cell : prepared.selection.cells) text += "\n" + cell.id;
  Digest digest;
  digest.update(text.data(), text.size());
  return digest.hex();
}

// All processes of the launch go on, or all end with the exit code that this gives. One of them says why.
std::optional<int> disagreement(Launch& launch, const Result<Prepared>& prepared) {
  constexpr const char* kGood = "good ";
  const std::string own = prepared ? kGood + identity(*prepared) : std::to_string(exit_code(prepared.error()));
  const std::vector<std::string> all = launch.gather(own);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].rfind(kGood, 0) == 0) continue;
    if (launch.rank() == static_cast<int>(rank)) report_error(prepared.error());
    return std::atoi(all[rank].c_str());
  }
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    if (launch.speaks()) {
      report_error(
          {Error::Kind::environment, fmt::format("rank {} has another program or other suites than rank 0", rank)});
    }
    return kExitEnvironment;
  }
  return std::nullopt;
}

struct Opened {
  std::unique_ptr<Reports> reports;
  std::map<std::string, CellResult> done;
};

// Reports and the results of an earlier run are on rank 0. The others learn which cells are done and which of them
// failed: all that the order of the run depends on.
Result<Opened> open_reports(const CheckFlags& flags, const Prepared& prepared, Launch& launch) {
  Opened opened;
  const auto open = [&]() -> Result<void> {
    if (!flags.resume.empty()) {
      // The first round of a loop that always passes both has nothing to resume yet.
      auto loaded = load_resume(flags.resume, flags.resume == flags.reports.json, prepared.context);
      if (!loaded) return tl::unexpected(loaded.error());
      opened.done = *std::move(loaded);
    }
    auto reports =
        Reports::make(flags.reports, console_options(prepared.selection, prepared.options.detail, launch.mpi()));
    if (!reports) return tl::unexpected(reports.error());
    opened.reports = *std::move(reports);
    return {};
  };
  const std::vector<Cell>& cells = prepared.selection.cells;
  if (launch.speaks()) {
    const Result<void> done = open();
    std::string states = done ? "" : "no";
    for (const Cell& cell : cells) {
      if (!done) break;
      const auto found = opened.done.find(cell.id);
      states += found == opened.done.end() ? '-' : found->second.as_expected ? 'e' : 'u';
    }
    launch.broadcast(states);
    if (!done) return tl::unexpected(done.error());
    return opened;
  }
  const std::string states = launch.broadcast("");
  if (states.size() != cells.size() || states == "no") return fail(Error::Kind::environment, "rank 0 could not begin");
  opened.reports = Reports::silent();
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (states[i] == '-') continue;
    CellResult& result = opened.done[cells[i].id];
    result.id = cells[i].id;
    result.as_expected = states[i] == 'e';
  }
  return opened;
}

int check(const CheckFlags& flags, const std::vector<std::string>& words, Launch& launch) {
  const Result<Prepared> prepared = prepare(flags, words, launch);
  // Rank 0 alone returns the code: mpirun ends the others at the first one that is not 0.
  if (const auto code = disagreement(launch, prepared)) return launch.speaks() ? *code : kExitOk;
  if (flags.dry_run) return launch.speaks() ? print_cells(prepared->selection) : kExitOk;
  auto opened = open_reports(flags, *prepared, launch);
  // The error is rank 0's; the others end as it does.
  if (!opened) return launch.speaks() ? report_error(opened.error()) : kExitOk;

  Reports& reports = *opened->reports;
  reports.begin(prepared->context);
  for (const auto& plugin : prepared->selection.plugins) {
    for (const std::string& what : plugin->load_notes()) note(fmt::format("{}: {}", plugin->path(), what));
  }
  Run run(flags, prepared->options, prepared->selection, launch, reports, std::move(opened->done));
  const RunResult result = run.all(prepared->context, words.front());

  std::vector<Error> errors = reports.errors();
  errors.insert(errors.end(), run.errors().begin(), run.errors().end());
  for (const Error& error : errors) report_error(error);
  // Only rank 0 knows what was carried over; the launcher returns its code.
  return launch.speaks() ? exit_of(result, errors) : kExitOk;
}

}  // namespace

int run_check(const CheckFlags& flags, const std::vector<std::string>& words) {
  CheckFlags all = flags;
  if (all.selection.comm.empty() && started_by_mpirun()) all.selection.comm = "mpi";
  if (const Result<void> comm = check_comm(all.selection.comm, all.selection.device);
      !comm && comm.error().kind == Error::Kind::usage)
    return report_shared_error(comm.error());
  return in_launch(all.selection.comm, [&](Launch& launch) { return check(all, words, launch); });
}

}  // namespace batchproof::cli
