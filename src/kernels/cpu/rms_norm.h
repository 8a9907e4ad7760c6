// SPDX-License-Identifier: Apache-2.0
//
// RMSNorm on the CPU: y[t, h] = x[t, h] / sqrt(mean_h(x[t, h]^2) + eps) * w[h].
//
// The bytes of a row are a function of the row, w, eps and the order; instruction set, threads, strides and the number
// of rows change time only. Order: squares in 16 strands (strands.h) over segments of kRmsSegment columns that merge
// serially; r = 1 / sqrt(sum / H + eps); y = round((x * r) * w), FP32, rounded once.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_RMS_NORM_H_
#define BATCHPROOF_SRC_KERNELS_CPU_RMS_NORM_H_

#include <cstdint>
#include <optional>

#include "batchproof/operator.h"
#include "src/runtime/cpu.h"
#include "src/runtime/error.h"

namespace batchproof {

constexpr std::int64_t kRmsSegment = 256;

struct RmsNormOrder {
  std::int64_t segment = kRmsSegment;  // columns, a multiple of 16
  bool descending = false;             // the witness: groups of 16 columns and segments from the last to the first
  // Not 0: a GPU block of that many threads per row; thread i adds columns i, i + threads, ..., warps merge as a
  // butterfly, then serially. A multiple of 32.
  int threads = 0;
};

// BF16 or FP32, all three alike; columns are contiguous. `weight` null: ones.
struct RmsNormCall {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  bp_dtype dtype = BP_BF16;
  const void* x = nullptr;
  std::int64_t x_row = 0;  // strides in elements
  const void* weight = nullptr;
  void* y = nullptr;
  std::int64_t y_row = 0;
  float eps = 1e-6f;
  RmsNormOrder order;
  int threads = 1;
  std::optional<Isa> isa;  // nothing: selected_isa()
};

// One canonical NaN is stored. rows = 0 does nothing. Fails, with nothing written, where columns or dtype are not
// supported or the instruction set is missing.
Result<void> rms_norm(const RmsNormCall& call);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_RMS_NORM_H_
