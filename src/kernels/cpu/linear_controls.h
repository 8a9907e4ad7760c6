// SPDX-License-Identifier: Apache-2.0
//
// Deliberately variant matrix products: each carries one defect as it is met in the field, so that a check can prove
// that it catches it. What each computes is right within rounding.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_LINEAR_CONTROLS_H_
#define BATCHPROOF_SRC_KERNELS_CPU_LINEAR_CONTROLS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "batchproof/operator.h"
#include "src/kernels/cpu/gemm.h"
#include "src/runtime/error.h"

namespace batchproof {

enum class LinearDefect {
  none,
  thread_split,          // K is cut into as many segments as there are threads
  chunk_follows_rows,    // the K block shrinks as the batch grows: chunk_of_rows
  stale_memo,            // the plan that fast mode stored for a shape is reused by invariant mode once
  zero_nan_leak,         // 0 * (an element of the next row) is added: an unmasked tail
  stale_workspace_leak,  // 0 * (workspace that nothing wrote) is added
  arrival_order,         // segment sums merge in an order that changes from call to call
  promotion_interval,    // FP8 partial sums join the FP32 sum every 128 up to 16 rows, every 512 above
  batch_scale            // rows are scaled by the largest magnitude in the whole batch
};

struct LinearControlCall {
  GemmCall call;
  int threads = 1;
  int rank = 0;
  bp_mode mode = BP_MODE_INVARIANT;
  const float* stale = nullptr;  // n floats of workspace, not written by the caller; stale_workspace_leak only
};

Result<void> run_linear_control(LinearDefect defect, const LinearControlCall& control);

// K block of a tiling that keeps the on-chip buffers full: the largest power of two from 128 to 2048 with
// rows * columns * block^2 <= 2^35. It shrinks as the batch grows: for K = 2048 first at rows * columns > 8192.
std::int64_t chunk_of_rows(std::int64_t rows, std::int64_t columns);

// Segments of `segment` whose sums merge in `order` (a permutation of the segments): t = s[order[0]]; t = t +
// s[order[1]]; ...
Result<void> gemm_in_order(const GemmCall& call, std::int64_t segment, const std::vector<std::int64_t>& order,
                           int threads);

// Segments of `segment` in ascending order; `change` gets the (m, n) sums of each before they are added.
Result<void> gemm_with_parts(const GemmCall& call, std::int64_t segment, int threads,
                             const std::function<void(float* part)>& change);

// Number of segments of `segment` in k.
inline std::int64_t segment_count(std::int64_t k, std::int64_t segment) { return (k + segment - 1) / segment; }

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_LINEAR_CONTROLS_H_
