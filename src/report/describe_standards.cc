// SPDX-License-Identifier: Apache-2.0
#include "src/report/describe_standards.h"

#include <fmt/format.h>

#include <cmath>

namespace batchproof {
namespace {

std::string seconds_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.3g} us", seconds * 1e6);
  if (seconds < 1.0) return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.3g} s", seconds);
}

std::string measure_text(const char* name, double value, const double* ratio, const double* limit) {
  std::string text = fmt::format("{} {:.3g}", name, value);
  if (ratio != nullptr) text += fmt::format(" (ratio {:.3g}", *ratio);
  if (limit != nullptr)
    text += fmt::format("{}{} {:.3g}", ratio != nullptr ? ", " : " (", ratio != nullptr ? "at most" : "below", *limit);
  if (ratio != nullptr || limit != nullptr) text += ")";
  return text;
}

// A limit of 0 is none.
const double* limit_of(const std::optional<ErrorMeasures>& limit, double ErrorMeasures::* field) {
  return limit && (*limit).*field > 0.0 ? &((*limit).*field) : nullptr;
}

// `reason`: what was said above already.
void add_port(const PortAccuracy& port, const std::string& reason, std::vector<std::string>* facts) {
  std::string line = fmt::format("{} ({}, {} element{}): {}", one_line(port.port), dtype_text(port.dtype),
                                 port.elements, port.elements == 1 ? "" : "s", verdict_name(port.verdict));
  const bool exact = port.share && *port.share == 1.0 && port.device.mare == 0.0;
  if (exact) {
    line += ", exact";
  } else if (port.elements > 0 && port.verdict != Verdict::skipped) {
    const auto measure = [&](const char* name, double ErrorMeasures::* field) {
      line += ", " + measure_text(name, port.device.*field, port.ratio ? &((*port.ratio).*field) : nullptr,
                                  limit_of(port.limit, field));
    };
    if (port.share)
      line += fmt::format(
          ", {} hold",
          percent_text(static_cast<std::uint64_t>(std::llround(*port.share * static_cast<double>(port.elements))),
                       static_cast<std::uint64_t>(port.elements)));
    measure("MARE", &ErrorMeasures::mare);
    measure("MERE", &ErrorMeasures::mere);
    measure("RMSE", &ErrorMeasures::rmse);
  }
  if (!port.rule.empty() && !port.limit) line += "; required: " + one_line(port.rule);  // the limits say it
  facts->push_back(line);
  if (!port.reason.empty() && port.port + ": " + port.reason != reason)
    facts->push_back(fmt::format("  {}", one_line(port.reason)));
  if (port.verdict != Verdict::wrong || !port.worst) return;
  const WorstElement& worst = *port.worst;
  std::string text = fmt::format("  worst: rank {}, element {}: {}, golden {}", worst.rank, worst.index,
                                 element_text(worst.value, port.dtype), number_text(worst.golden));
  if (worst.benchmark) text += ", benchmark " + element_text(*worst.benchmark, port.dtype);
  facts->push_back(text);
}

StandardView accuracy_view(const AccuracyResult& accuracy) {
  StandardView view;
  view.name = "acc";
  view.verdict = accuracy.verdict;
  view.expected = accuracy.expected;
  view.reason = one_line(accuracy.reason);
  view.facts.push_back(
      fmt::format("standard: {}{}", one_line(accuracy.standard),
                  accuracy.benchmark.empty() ? std::string() : ", benchmark " + one_line(accuracy.benchmark)));
  for (const PortAccuracy& port : accuracy.ports) add_port(port, accuracy.reason, &view.facts);
  return view;
}

StandardView performance_view(const PerformanceResult& performance) {
  StandardView view;
  view.name = "perf";
  view.verdict = performance.verdict;
  view.reported = !performance.judged && performance.runs > 0;
  view.reason = one_line(performance.reason);
  if (performance.runs > 0)
    view.facts.push_back(
        fmt::format("{:.3g} times the speed of {}: {} against {}, medians of {}; asked for: each above "
                    "{:.3g}, their mean above {:.3g}",
                    performance.ratio, one_line(performance.benchmark), seconds_text(performance.device_seconds),
                    seconds_text(performance.benchmark_seconds), performance.runs, performance.each_threshold,
                    performance.mean_threshold));
  return view;
}

StandardView memory_view(const MemoryResult& memory) {
  StandardView view;
  view.name = "mem";
  view.verdict = memory.verdict;
  view.expected = memory.expected;
  view.reason = one_line(memory.reason);
  if (!memory.benchmark.empty())
    view.facts.push_back(
        fmt::format("{:.3g} times the memory of {} (at most {:.3g}): workspace {} against {} bytes, "
                    "tensors {} bytes, on the rank that needs most",
                    memory.ratio, one_line(memory.benchmark), memory.threshold, memory.device_workspace,
                    memory.benchmark_workspace, memory.tensor_bytes));
  return view;
}

const char* headline_of(const StandardView& view) {
  switch (view.verdict) {
    case Verdict::wrong:
      return "the result is wrong";
    case Verdict::slow:
      return "slower than the standard allows";
    case Verdict::heavy:
      return "needs more memory than the standard allows";
    case Verdict::error:
      return "the standard could not be judged";
    default:
      return "not what was expected";
  }
}

Failure failure_of(const CellResult& cell, const StandardView& view, Outcome what) {
  Failure failure;
  failure.what = view.name;
  failure.verdict = view.verdict;
  failure.outcome = what;
  const std::string where = fmt::format("{} standard {}", one_line(cell.id), view.name);
  if (what == Outcome::missed) {
    failure.headline = fmt::format("{}{}: {}", cell.is_control ? "control missed, " : "",
                                   "a wrong result was expected and did not come", where);
    if (view.expected == Verdict::heavy) failure.headline = "too much memory was expected and was not needed: " + where;
  } else if (what == Outcome::unexpected) {
    failure.headline = fmt::format("control declared accurate, but {}: {}", headline_of(view), where);
  } else {
    failure.headline = fmt::format("{}: {}", headline_of(view), where);
  }
  if (view.expected != Verdict::pass)
    failure.facts.push_back(fmt::format("expected: {}; got: {}", verdict_name(view.expected), verdict_word(view)));
  if (!view.reason.empty()) failure.facts.push_back("reason: " + view.reason);
  failure.facts.insert(failure.facts.end(), view.facts.begin(), view.facts.end());
  add_implementation(cell, &failure.facts);
  failure.facts.push_back("inputs: accuracy inputs, each rank with weights of its own");
  add_origin(cell, &failure.facts);
  return failure;
}

}  // namespace

std::vector<StandardView> standard_views(const CellResult& cell) {
  std::vector<StandardView> views;
  if (cell.accuracy) views.push_back(accuracy_view(*cell.accuracy));
  if (cell.performance) views.push_back(performance_view(*cell.performance));
  if (cell.memory) views.push_back(memory_view(*cell.memory));
  return views;
}

Outcome outcome(const CellResult& cell, const StandardView& view) {
  const bool failed = view.verdict == Verdict::wrong || view.verdict == Verdict::slow || view.verdict == Verdict::heavy;
  if (view.verdict == view.expected) {
    if (view.verdict == Verdict::pass) return cell.is_control ? Outcome::clear : Outcome::good;
    if (view.verdict == Verdict::skipped) return Outcome::skipped;
    return cell.is_control ? Outcome::caught : Outcome::expected;
  }
  if (view.verdict == Verdict::error) return Outcome::bad;
  if (view.expected != Verdict::pass && view.expected != Verdict::skipped) return Outcome::missed;
  if (view.verdict == Verdict::skipped) return Outcome::skipped;
  return cell.is_control && failed ? Outcome::unexpected : Outcome::bad;
}

const char* verdict_word(const StandardView& view) { return view.reported ? "reported" : verdict_name(view.verdict); }

std::vector<Failure> failures(const CellResult& cell) {
  std::vector<Failure> list;
  if (cell.as_expected) return list;
  for (const RelationResult* relation : failing_relations(cell))
    list.push_back({relation_name(relation->relation), relation->verdict, outcome(cell, *relation),
                    failure_headline(cell, *relation), failure_facts(cell, *relation)});
  for (const StandardView& view : standard_views(cell)) {
    const Outcome what = outcome(cell, view);
    if (is_failure(what)) list.push_back(failure_of(cell, view, what));
  }
  if (list.empty()) {
    const bool missed = cell.is_control && cell.expected == Verdict::violation && cell.verdict != Verdict::error;
    list.push_back({"", cell.verdict, missed ? Outcome::missed : Outcome::bad, cell_failure_headline(cell),
                    cell_failure_facts(cell)});
  }
  return list;
}

std::string mean_text(const PerformanceMean& mean) {
  return fmt::format("mean of perf over {} cell{} of {}/{}: {:.3g}, {} above {:.3g}", mean.cells,
                     mean.cells == 1 ? "" : "s", one_line(mean.op), one_line(mean.impl), mean.mean,
                     mean.judged ? "must be" : "asked for:", mean.threshold);
}

}  // namespace batchproof
