// SPDX-License-Identifier: Apache-2.0
//
// Proof on the device of what the CUDA kernels rest on: which choices (instruction width, operand role, operand source,
// instruction family, row place, order inside a step) move no byte of a tensor-core product, and which do.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_TENSOR_CORE_RULES_H_
#define BATCHPROOF_SRC_KERNELS_CUDA_TENSOR_CORE_RULES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "batchproof/operator.h"
#include "src/runtime/error.h"

namespace batchproof::cuda {

struct RuleResult {
  std::string type;    // "bf16", "fp16", "tf32", "e4m3", "e5m2", "s8"
  std::string inputs;  // "normal", "wide_exponent", "cancelling", "subnormal", "special", "signed_zero"
  std::string rule;    // "wgmma n=8 ss", "swapped n=64", "mma.sync, whole step", ...
  std::int64_t differing = 0;
  std::int64_t total = 0;
  bool expected_equal = true;  // false: a witness, which must differ where inputs can show it
  bool recorded_only = false;  // reported, not judged
};

struct RuleReport {
  std::vector<RuleResult> results;
  // What a product with a NaN input, and one of infinity and zero, are stored as, per type in the order of `type`.
  std::vector<std::string> notes;
  bool holds() const;  // every judged rule came out as expected
};

// All types, inputs and rules; some seconds. Needs sm_90a.
Result<RuleReport> prove_tensor_core_rules();

// Whether the rules that a kernel of this input dtype needs hold on the current device: same bytes for every wgmma
// width of a plan, those that divide 128 swapped as well, and mma.sync. Memoised per device and dtype; a few
// milliseconds at the first call, which must not be inside a stream capture. Error of kind operation that names the
// failing rule where one does not hold. Where the device could not be asked (out of memory), the error says so and is
// not memoised.
Result<void> tensor_core_rules_hold(bp_dtype dtype);

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_TENSOR_CORE_RULES_H_
