// SPDX-License-Identifier: Apache-2.0
//
// The accuracy standards of the field, as formulas over arrays: mixed tolerance, single benchmark, double benchmark,
// equality. docs/suites.md states each rule and where it comes from.
#ifndef BATCHPROOF_SRC_CHECK_ACCURACY_H_
#define BATCHPROOF_SRC_CHECK_ACCURACY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/check/standard_result.h"
#include "src/suite/suite.h"

namespace batchproof {

// One output port of one call, all ranks one behind the other, each row-major and without gaps.
struct PortSample {
  std::string port;
  bp_dtype dtype = BP_FP32;
  bool order_exact = false;              // the port moves data: it must equal the golden under every standard
  std::int64_t count = 0;                // elements over all ranks
  std::int64_t count_per_rank = 0;       // equal on all ranks
  const std::byte* device = nullptr;     // stored as dtype
  const std::byte* benchmark = nullptr;  // the same; NULL: there is no second result
  bool benchmark_is_peer = false;        // it is the unfused composition, not merely another implementation
  const double* golden = nullptr;
};

// Whether the standard compares with a second result.
bool needs_benchmark(const AccStandard& standard);
// Whether it does so where the operator flags its unfused composition.
bool takes_peer(const AccStandard& standard);

// Verdict pass, wrong, or skipped where the standard has no rule for the dtype; with the numbers.
PortAccuracy judge_port(const AccStandard& standard, const PortSample& sample);

// The measures of `values` over the elements whose golden is finite; 0 where there are none. A value that is not finite
// makes them infinite.
ErrorMeasures error_measures(bp_dtype dtype, const std::byte* values, const double* golden, std::int64_t count);

// The distance between the elements of a floating dtype around `value` (of subnormals where it is small). Nothing for
// dtypes without a rule in the mixed tolerance.
std::optional<double> ulp_of(bp_dtype dtype, double value);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_CHECK_ACCURACY_H_
