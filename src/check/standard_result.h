// SPDX-License-Identifier: Apache-2.0
//
// What the standards beside invariance found: accuracy, performance, memory. Plain data; reporters read it.
#ifndef BATCHPROOF_SRC_CHECK_STANDARD_RESULT_H_
#define BATCHPROOF_SRC_CHECK_STANDARD_RESULT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "batchproof/operator.h"
#include "src/runtime/words.h"

namespace batchproof {

// ---- accuracy ---------------------------------------------------------------------------------------------------

// Of results a against a golden g, over the elements whose golden is finite:
//   mare = max |a - g| / (|g| + 1e-7)   mere = the mean of the same   rmse = sqrt(mean (a - g)^2)
struct ErrorMeasures {
  double mare = 0.0;
  double mere = 0.0;
  double rmse = 0.0;
};

struct WorstElement {
  int rank = 0;
  std::int64_t index = 0;  // in the port's tensor on that rank, row-major
  double value = 0.0;
  double golden = 0.0;
  std::optional<double> benchmark;
};

struct PortAccuracy {
  std::string port;
  bp_dtype dtype = BP_FP32;
  Verdict verdict = Verdict::skipped;  // pass, wrong or skipped
  std::string rule;                    // what was required: "ratios to the benchmark", "equal", ...
  std::string reason;                  // what was exceeded, or why the port was not judged
  std::int64_t elements = 0;           // over all ranks
  ErrorMeasures device;
  std::optional<ErrorMeasures> benchmark;
  std::optional<ErrorMeasures> ratio;  // device to benchmark, the benchmark not below the standard's floor
  std::optional<ErrorMeasures> limit;  // of the ratio where there is one, else of `device` (rmse 0: not limited)
  std::optional<double> share;         // of the elements within the tolerance
  std::optional<WorstElement> worst;   // the element that is farthest from what is allowed
};

struct AccuracyResult {
  std::string standard;  // "default", "single_bm", ...
  Verdict verdict = Verdict::skipped;
  Verdict expected = Verdict::pass;
  std::string reason;
  std::string benchmark;  // implementation that gave the second result; empty: the standard needs none
  std::vector<PortAccuracy> ports;
};

// ---- performance ------------------------------------------------------------------------------------------------

enum class PerfMode { off, report, judge };

struct PerformanceResult {
  Verdict verdict = Verdict::skipped;  // of the cell's own threshold; skipped where it is not judged
  bool judged = false;
  std::string reason;
  std::string benchmark;
  int runs = 0;                    // of each, after one that is not counted
  double device_seconds = 0.0;     // median
  double benchmark_seconds = 0.0;  // median
  double ratio = 0.0;              // benchmark / device: above 1 is faster than the benchmark
  double mean_threshold = 0.0;     // a
  double each_threshold = 0.0;     // b
};

// The mean of the ratios of an operator's cells that have the same threshold a.
struct PerformanceMean {
  std::string op;
  std::string impl;
  double threshold = 0.0;
  double mean = 0.0;
  int cells = 0;
  bool judged = false;
  bool passed() const { return !judged || mean > threshold; }
};

// ---- memory -----------------------------------------------------------------------------------------------------

struct MemoryResult {
  Verdict verdict = Verdict::skipped;
  Verdict expected = Verdict::pass;
  std::string reason;
  std::string benchmark;
  // Bytes on the rank that needs most: the tensors of the call and its workspace.
  std::uint64_t tensor_bytes = 0;
  std::uint64_t device_workspace = 0;
  std::uint64_t benchmark_workspace = 0;
  double ratio = 0.0;  // device / benchmark, tensors included: below 1 needs less
  double threshold = 0.0;
};

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_CHECK_STANDARD_RESULT_H_
