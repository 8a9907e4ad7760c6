// SPDX-License-Identifier: Apache-2.0
//
// Batch-invariant matrix product on the CPU: C(m, n) = A(m, k) . B(k, n) + bias(n).
//
// The bytes of C[i, j] are a function of row i of A, column j of B, bias[j], the dtypes and the Schedule. Instruction
// set, threads, m, n, tiles, strides and the position of the row change time only (C1, C10). See gemm_kernel.h for the
// order of operations.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_GEMM_H_
#define BATCHPROOF_SRC_KERNELS_CPU_GEMM_H_

#include <cstdint>
#include <optional>

#include "batchproof/operator.h"
#include "src/runtime/cpu.h"
#include "src/runtime/error.h"
#include "src/schedule/schedule.h"

namespace batchproof {

// FP32, BF16 or FP16. Strides in elements; B transposed in storage is B with row_stride 1.
struct GemmInput {
  const void* data = nullptr;
  bp_dtype dtype = BP_FP32;
  std::int64_t row_stride = 0;
  std::int64_t column_stride = 1;
};

// FP32, BF16 or FP16; columns are contiguous. Must not overlap an input.
struct GemmOutput {
  void* data = nullptr;
  bp_dtype dtype = BP_FP32;
  std::int64_t row_stride = 0;
};

// `dtype` BP_NONE: no bias.
struct GemmBias {
  const void* data = nullptr;
  bp_dtype dtype = BP_NONE;
  std::int64_t stride = 1;
};

struct GemmCall {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  GemmInput a;
  GemmInput b;  // dtype of a
  GemmBias bias;
  GemmOutput c;
};

struct GemmOptions {
  int threads = 1;
  std::optional<Isa> isa;  // nothing: selected_isa()
};

// y = round(sum + float(bias)): sum is the FP32 result of the schedule, the addition is one FP32 addition, `round` is
// to nearest even into the dtype of C. A NaN is stored as 0x7FC00000, 0x7FC0 or 0x7E00. k = 0 gives +0 (plus bias); m =
// 0 or n = 0 does nothing. Fails, with nothing written, where a dtype or extent is not supported, the schedule is for
// another length, or the instruction set is missing.
Result<void> gemm(const GemmCall& call, const Schedule& schedule, const GemmOptions& options = {});

// Segment length of the library's chain schedule for FP32, BF16 and FP16, chosen by measurement (gemm_bench.cc).
constexpr std::int64_t kGemmSegment = 256;

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_GEMM_H_
