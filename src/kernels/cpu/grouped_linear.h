// SPDX-License-Identifier: Apache-2.0
//
// One matrix product per expert over the rows that it received, the exchange of rows between ranks, and the deliberate
// defects of such products. Shared by the operators whose rows choose experts.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_GROUPED_LINEAR_H_
#define BATCHPROOF_SRC_KERNELS_CPU_GROUPED_LINEAR_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "batchproof/operator.h"
#include "src/kernels/cpu/scaled_linear.h"
#include "src/kernels/routing.h"
#include "src/runtime/error.h"

namespace batchproof {

enum class GroupedDefect {
  none,
  tile_from_load,    // the K block follows from how many rows the expert received
  k_starts_at_rank,  // the K walk of a row begins at the slice of the rank that the row belongs to
  edge_tile,         // the last tile of a rank's rows, where it is not full, takes a shorter K block
  padded_row_leak,   // a tile is filled up with the rows behind the expert's last one, which leak into it
  shared_tile,       // the K block of the shared expert follows from the number of its rows
  expert_scale       // an expert's rows are scaled by the largest magnitude among them
};

struct GroupedPlan {
  std::int64_t segment = kGemmSegment;
  GroupedDefect defect = GroupedDefect::none;
};

// y[rows of expert j] = x[rows of expert j] . w[j] for the experts of rank `owner`, rows in the order in which
// `routing` lands them. x (rows, k), w (E, k, n) or a view with k and n exchanged in storage, y (rows, n); more rows
// than the experts received may be there and are left alone. MX: x_scale (rows, ceil(k / 64), 2), w_scale (E, ceil(k /
// 64), n, 2).
struct GroupedLinear {
  Scaling scaling = Scaling::none;
  const bp_tensor* x = nullptr;
  const bp_tensor* x_scale = nullptr;
  const bp_tensor* w = nullptr;
  const bp_tensor* w_scale = nullptr;
  const bp_tensor* y = nullptr;
  const Routing* routing = nullptr;
  std::int64_t owner = 0;
};

// K block of a tile that fits the rows of an expert: long for few rows, short for many, so that both fill the same
// memory.
std::int64_t segment_of_load(std::int64_t rows);

// Fails where a tensor does not suit, before anything is computed.
Result<void> check_grouped_linear(const GroupedLinear& grouped);
Result<void> grouped_linear(const GroupedLinear& grouped, const GroupedPlan& plan,
                            const bp_implementation& implementation, int threads);
// The same in FP64 into y of FP64.
Result<void> grouped_linear_reference(const GroupedLinear& grouped);

// A tensor of `rows` rows of `line` bytes without gaps.
struct RowBuffer {
  char* data = nullptr;
  std::size_t line = 0;
  char* row(std::int64_t i) const { return data + static_cast<std::size_t>(i) * line; }
};

// Rows from their ranks to the experts' ranks and, inside each, into the order of the experts: `own` holds this rank's
// rows by expert, `landed` becomes the experts' rows. `between` is room for as many rows as `landed`.
Result<void> rows_to_experts(const bp_context* context, const Routing& routing, const char* what, const RowBuffer& own,
                             const RowBuffer& between, const RowBuffer& landed);
// The way back.
Result<void> rows_from_experts(const bp_context* context, const Routing& routing, const char* what,
                               const RowBuffer& landed, const RowBuffer& between, const RowBuffer& own);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_GROUPED_LINEAR_H_
