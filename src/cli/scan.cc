// SPDX-License-Identifier: Apache-2.0
//
// batchproof scan: every row count at which the bytes of a row change. Axes and inputs come from a case of a suite, so
// that a scan looks at what check checks.
#include "src/check/scan.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "batchproof/registry.h"
#include "src/check/local_host.h"
#include "src/cli/context.h"
#include "src/cli/exit.h"
#include "src/cli/launch.h"
#include "src/cli/print.h"
#include "src/cli/verbs.h"
#include "src/report/scan_json.h"
#include "src/report/scan_text.h"
#include "src/runtime/file.h"
#include "src/runtime/words.h"
#include "src/suite/load.h"

namespace batchproof::cli {
namespace {

constexpr std::uint64_t kMostVictims = 4096;

tl::unexpected<Error> refuse(std::string message) { return fail(Error::Kind::usage, std::move(message)); }

Result<const bp_operator*> find_operator(const std::string& name) {
  std::string known;
  for (const bp_operator* op : registered_operators()) {
    if (name == op->name) return op;
    for (const std::string& alias : split_list(op->aliases)) {
      if (name == alias) return op;
    }
    known += (known.empty() ? "" : ", ") + std::string(op->name);
  }
  return refuse(fmt::format("scan {}: there is no operator of this name; there are {}", name, known));
}

// The case that gives axes and inputs: --case, else the operator's first that expects to pass; of --suite, else of any
// operator's ci.json. A case without ports and axes where nothing was asked for and there is none.
Result<Case> find_case(const ScanFlags& flags, const bp_operator& op, Selection* selection) {
  std::vector<std::string> paths;
  if (!flags.suite.empty()) {
    paths.push_back(flags.suite);
  } else {
    for (const std::string& path : discover_suites()) {
      if (std::filesystem::path(path).filename() == "ci.json") paths.push_back(path);
    }
  }
  for (const std::string& path : paths) {
    auto suite = load_suite(path);
    if (!suite) return tl::unexpected(suite.error());
    for (const Case& one : suite->cases) {
      if (one.op != op.name || !one.skip_reason.empty()) continue;
      const bool plain = one.impl.empty() && one.expect.cell == Verdict::pass && one.expect.relations.empty();
      if (flags.case_name.empty() ? !plain : one.name != flags.case_name) continue;
      Case found = one;
      selection->suites.push_back(*std::move(suite));
      return found;
    }
  }
  if (!flags.suite.empty() || !flags.case_name.empty()) {
    return refuse(fmt::format("scan {}: {} has no case {}of it", op.name,
                              flags.suite.empty() ? "no operator's ci.json" : flags.suite,
                              flags.case_name.empty() ? "" : flags.case_name + " "));
  }
  Case bare;
  bare.name = "scan";
  bare.op = op.name;
  return bare;
}

bool is_axis(const bp_operator& op, const std::string& name) {
  if (name == "dtype" || name == "W" || name == "comm_mode") return true;
  return std::any_of(op.axes, op.axes + op.axis_count, [&](const bp_axis_decl& axis) { return name == axis.name; });
}

void set_axis(Case* one, const std::string& name, AxisValue value) {
  for (CaseAxis& axis : one->axes) {
    if (axis.name != name) continue;
    axis.values = {std::move(value)};
    return;
  }
  one->axes.push_back({name, {std::move(value)}, one->position});
}

// The case with one value per axis: the first it has, or what --set says. Attributes stay in `set`.
Result<void> pin_axes(const bp_operator& op, std::int64_t rows, std::map<std::string, std::string>* set, Case* one) {
  for (CaseAxis& axis : one->axes) axis.values.resize(1);
  for (auto at = set->begin(); at != set->end();) {
    if (!is_axis(op, at->first)) {
      ++at;
      continue;
    }
    if (at->first == op.row_count_axis)
      return refuse(fmt::format("--set {}: this axis counts the rows; --rows gives it", at->first));
    if (at->first == "dtype" || at->first == "comm_mode") {
      set_axis(one, at->first, at->second);
    } else {
      const auto value = parse_whole(at->second, "--set " + at->first, 0, std::uint64_t{1} << 40);
      if (!value) return tl::unexpected(value.error());
      set_axis(one, at->first, static_cast<std::int64_t>(*value));
    }
    at = set->erase(at);
  }
  set_axis(one, op.row_count_axis, rows);
  for (std::uint32_t i = 0; i < op.axis_count; ++i) {
    const std::string name = op.axes[i].name;
    const bool given =
        std::any_of(one->axes.begin(), one->axes.end(), [&](const CaseAxis& a) { return a.name == name; });
    if (given || name == "W") continue;
    return refuse(fmt::format("scan {}: the axis {} ({}) has no value; give --set {}=VALUE or --suite FILE", op.name,
                              name, op.axes[i].summary, name));
  }
  one->where.clear();
  return {};
}

// Checks every flag; fills plug-ins, suites and options of the selection.
Result<Cell> find_cell(const ScanFlags& flags, std::int64_t rows, Selection* selection) {
  auto options = parse_selection(flags.selection);
  if (!options) return tl::unexpected(options.error());
  selection->options = *std::move(options);
  for (const std::string& path : flags.selection.plugins) {
    auto plugin = open_plugin(path);
    if (!plugin) return tl::unexpected(plugin.error());
    selection->plugins.push_back(*std::move(plugin));
  }
  const auto op = find_operator(flags.op);
  if (!op) return tl::unexpected(op.error());
  if ((*op)->row_count_axis == nullptr)
    return refuse(fmt::format("scan {}: it has no axis that counts rows", flags.op));
  auto one = find_case(flags, **op, selection);
  if (!one) return tl::unexpected(one.error());
  ExpandOptions expand_options = selection->options.expand;
  if (auto pinned = pin_axes(**op, rows, &expand_options.set, &*one); !pinned) return tl::unexpected(pinned.error());
  if (expand_options.mode && expand_options.impl.empty()) {
    // The mode asks for its default implementation, whatever the case names.
    one->impl.clear();
    one->positions.erase("mode");
  }
  if (expand_options.ranks.size() > 1) return refuse("--ranks: scan takes one world size");
  if (expand_options.ranks.empty()) expand_options.ranks = {2};
  Suite suite;
  suite.path = selection->suites.empty() ? "the command line" : selection->suites.front().path;
  suite.cases.push_back(*std::move(one));
  auto cells = expand(suite, expand_options);
  if (!cells) return tl::unexpected(cells.error());
  if (cells->empty() || !cells->front().skip_reason.empty())
    return refuse(fmt::format("scan {}: {}", flags.op, cells->empty() ? "no cell" : cells->front().skip_reason));
  Cell cell = std::move(cells->front());
  for (const auto& [name, value] : expand_options.set) cell.axes.emplace_back(name, value);
  return cell;
}

void note_context(const RunContext& context, const Selection& selection) {
  note(fmt::format("batchproof {} (build {})", context.version, context.build));
  note(fmt::format("date          {}", context.date));
  note(fmt::format("command line  {}", context.command_line));
  note(fmt::format("device        {}", context.device));
  note(fmt::format("seed          {}", context.seed));
  for (const Suite& suite : selection.suites) note(fmt::format("axes, inputs  {}", suite.path));
}

}  // namespace

int run_scan(const ScanFlags& flags, const std::vector<std::string>& words) {
  if (started_by_mpirun()) {
    return report_error(
        Error{Error::Kind::usage, "scan runs its ranks as threads of one process; start it without mpirun"});
  }
  const auto rows = parse_rows(flags.rows);
  if (!rows) return report_error(rows.error());
  ScanOptions options;
  options.sizes = *rows;
  if (!flags.victims.empty()) {
    const auto victims = parse_whole(flags.victims, "--victims", 1, kMostVictims);
    if (!victims) return report_error(victims.error());
    options.victims = static_cast<std::int64_t>(*victims);
  }
  const auto timeout = parse_timeout(flags.timeout);
  if (!timeout) return report_error(timeout.error());
  if (!flags.json.empty()) {
    if (auto writable = check_writable("--json", flags.json); !writable) return report_error(writable.error());
  }
  Selection selection;
  const auto cell = find_cell(flags, rows->front(), &selection);
  if (!cell) return report_error(cell.error());
  options.seed = selection.options.seed;
  const auto context = make_context(words, selection, !flags.json.empty());
  if (!context) return report_error(context.error());
  note_context(*context, selection);

  LocalHost local(cell->op, RankHooks{}, selection.options.device);
  OperatorHost* host = &local;
  if (const auto hosts = plugin_hosts(selection)) {
    if (OperatorHost* outside = hosts(cell->op)) host = outside;
  }
  host->begin_cell(cell->timeout_s ? cell->timeout_s : std::optional<double>(*timeout));
  const bool progress = isatty(STDERR_FILENO) != 0;
  if (progress) {
    options.progress = [](std::int64_t done, std::int64_t total) {
      fmt::print(stderr, "\r\x1b[K[{}/{}]", done, total);
      if (done == total) fmt::print(stderr, "\r\x1b[K");
    };
  }
  const auto result = scan_rows(*cell, *host, options);
  if (!result) {
    if (progress) fmt::print(stderr, "\r\x1b[K");
    return report_error(result.error());
  }
  fmt::print("{}", format_scan(*result));
  if (!flags.json.empty()) {
    if (auto written = write_file(flags.json, scan_json(*result, *context)); !written)
      return report_error(written.error());
  }
  return result->failed() ? kExitFailed : kExitOk;
}

}  // namespace batchproof::cli
