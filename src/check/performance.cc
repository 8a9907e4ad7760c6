// SPDX-License-Identifier: Apache-2.0
//
// Times an implementation against its benchmark: calls in turn, so that both see the same state of the machine; the
// median of each. Shapes of a few microseconds are noise, which is why nothing is judged unless --perf judge asks.
#include <fmt/format.h>

#include <algorithm>

#include "src/check/standards.h"

namespace batchproof {
namespace {

constexpr int kRuns = 7;
constexpr int kFewRuns = 3;
constexpr double kLongCall = 0.5;  // seconds of both warm-up calls from which kFewRuns do

double median(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

}  // namespace

Result<PerformanceResult> measure_performance(StandardSession& session, const Benchmark& benchmark, PerfMode perf) {
  const Cell& cell = session.cell();
  PerformanceResult result;
  result.mean_threshold = (*cell.standard.perf)[0];
  result.each_threshold = (*cell.standard.perf)[1];
  result.judged = perf == PerfMode::judge;
  if (benchmark.implementation == nullptr) {
    result.reason = benchmark.missing;
    return result;
  }
  result.benchmark = benchmark.implementation->id;
  auto device_tensors = session.outputs(/*golden=*/false);
  if (!device_tensors) return tl::unexpected(device_tensors.error());
  auto benchmark_tensors = session.outputs(/*golden=*/false);
  if (!benchmark_tensors) return tl::unexpected(benchmark_tensors.error());

  std::vector<double> device;
  std::vector<double> second;
  double warm_up = 0.0;
  for (int i = -1; i < (warm_up > kLongCall ? kFewRuns : kRuns); ++i) {
    const auto own = session.call(*cell.impl, *device_tensors);
    if (!own) return tl::unexpected(own.error());
    const auto other = session.call(*benchmark.implementation, *benchmark_tensors);
    if (!other) {
      result.verdict = result.judged ? Verdict::error : Verdict::skipped;
      result.reason = fmt::format("the benchmark failed: {}", other.error().message);
      return result;
    }
    if (i < 0) {
      warm_up = own->seconds + other->seconds;
      continue;
    }
    device.push_back(own->seconds);
    second.push_back(other->seconds);
  }
  result.runs = static_cast<int>(device.size());
  result.device_seconds = median(device);
  result.benchmark_seconds = median(second);
  result.ratio = result.device_seconds > 0.0 ? result.benchmark_seconds / result.device_seconds : 0.0;
  if (!result.judged) return result;
  result.verdict = result.ratio > result.each_threshold ? Verdict::pass : Verdict::slow;
  if (result.verdict == Verdict::slow)
    result.reason = fmt::format("{:.3g} times the speed of {}, it must be above {:.3g}", result.ratio, result.benchmark,
                                result.each_threshold);
  return result;
}

std::vector<PerformanceMean> performance_means(const std::vector<CellResult>& cells) {
  std::vector<PerformanceMean> means;
  for (const CellResult& cell : cells) {
    if (!cell.performance || cell.performance->runs == 0) continue;
    const PerformanceResult& one = *cell.performance;
    auto group = std::find_if(means.begin(), means.end(), [&](const PerformanceMean& mean) {
      return mean.op == cell.op && mean.impl == cell.impl && mean.threshold == one.mean_threshold;
    });
    if (group == means.end()) {
      means.push_back({cell.op, cell.impl, one.mean_threshold, 0.0, 0, one.judged});
      group = means.end() - 1;
    }
    group->mean += one.ratio;  // the sum, for now
    ++group->cells;
  }
  for (PerformanceMean& mean : means) mean.mean /= mean.cells;
  return means;
}

}  // namespace batchproof
