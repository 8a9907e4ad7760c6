// SPDX-License-Identifier: Apache-2.0
//
// Tests only: accuracy, performance and memory of the sample run's cells.
#ifndef BATCHPROOF_SRC_REPORT_SAMPLE_STANDARDS_H_
#define BATCHPROOF_SRC_REPORT_SAMPLE_STANDARDS_H_

#include <cstdint>
#include <limits>

#include "src/check/result.h"

namespace batchproof::sample {

inline PortAccuracy port_accuracy(Verdict verdict) {
  PortAccuracy port;
  port.port = "y";
  port.dtype = BP_BF16;
  port.verdict = verdict;
  port.rule = "errors at most so many times the benchmark's";
  port.elements = 768;
  port.device = {0.00390625, 0.001, 0.03125};
  port.benchmark = ErrorMeasures{0.00390625, 0.00125, 0.03125};
  port.ratio = ErrorMeasures{1.0, 0.8, 1.0};
  port.limit = ErrorMeasures{10.0, 2.0, 2.0};
  port.worst = WorstElement{1, 17, 1.5, 1.49609375, 1.5};
  if (verdict == Verdict::wrong) {
    port.device = {0.5, 0.125, 2.0};
    port.ratio = ErrorMeasures{128.0, 32.0, 64.0};
    port.reason = "the MARE ratio 128 is not at most 10, the MERE ratio 32 is not at most 2";
    port.worst->value = std::numeric_limits<double>::quiet_NaN();
  }
  return port;
}

inline AccuracyResult accuracy(Verdict verdict, Verdict expected = Verdict::pass) {
  AccuracyResult result;
  result.standard = "cv_fused_double_benchmark";
  result.verdict = verdict;
  result.expected = expected;
  result.benchmark = "cpu-unfused";
  result.ports = {port_accuracy(verdict)};
  PortAccuracy moved;
  moved.port = "gather_out";
  moved.dtype = BP_BF16;
  moved.verdict = Verdict::pass;
  moved.rule = "equal to the golden: the port moves data";
  moved.elements = 4096;
  moved.share = 1.0;
  result.ports.push_back(moved);
  if (verdict == Verdict::wrong) result.reason = "y: " + result.ports[0].reason;
  return result;
}

inline PerformanceResult performance(double ratio, bool judged) {
  PerformanceResult result;
  result.judged = judged;
  result.benchmark = "cpu-unfused";
  result.runs = 7;
  result.device_seconds = 0.000125;
  result.benchmark_seconds = result.device_seconds * ratio;
  result.ratio = ratio;
  result.mean_threshold = 1.0;
  result.each_threshold = 0.95;
  if (judged) result.verdict = ratio > result.each_threshold ? Verdict::pass : Verdict::slow;
  if (result.verdict == Verdict::slow) result.reason = "0.5 times the speed of cpu-unfused, it must be above 0.95";
  return result;
}

inline MemoryResult memory(double ratio) {
  MemoryResult result;
  result.benchmark = "cpu-unfused";
  result.tensor_bytes = 1000;
  result.benchmark_workspace = 1000;
  result.device_workspace = static_cast<std::uint64_t>(2000.0 * ratio) - 1000;
  result.ratio = ratio;
  result.threshold = 1.1;
  result.verdict = ratio > 1.1 ? Verdict::heavy : Verdict::pass;
  if (result.verdict == Verdict::heavy) result.reason = "1.5 times the memory of cpu-unfused, at most 1.1 is allowed";
  return result;
}

}  // namespace batchproof::sample

#endif  // BATCHPROOF_SRC_REPORT_SAMPLE_STANDARDS_H_
