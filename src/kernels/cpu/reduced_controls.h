// SPDX-License-Identifier: Apache-2.0
//
// Sums of partial products over ranks: the collectives of the invariant orders, the deliberately variant orders, the
// reference, and what each promises.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_REDUCED_CONTROLS_H_
#define BATCHPROOF_SRC_KERNELS_CPU_REDUCED_CONTROLS_H_

#include <cstdint>

#include "batchproof/operator.h"
#include "src/kernels/cpu/reduced_linear.h"
#include "src/runtime/error.h"

namespace batchproof {

enum class ReduceOrder {
  tree,      // FP32 partial sums, balanced tree over ranks
  vendor,    // partial sums rounded to the dtype of y, added in rank order in FP32, one rounding
  rotated,   // control: row i starts at rank (i / 4) mod W, every addition rounds to the dtype of y
  reversed,  // as rotated with the ranks descending: another order of ranks and nothing else
  by_world,  // control: W <= 2 adds in the dtype of y, a larger W adds FP32 partial sums in rank order
  low_bit    // partial sums travel as FP8 codes under one scale per 16 rows: the rows of a tile share it
};

// Rows of the sum that this rank writes into its y.
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

// send: rows of all ranks; recv: this rank's `count` elements.
Result<void> reduce_scatter_rows(const bp_context* context, const void* send, void* recv, std::int64_t count,
                                 bp_dtype dtype, bp_reduce_order order);
Result<void> all_reduce_rows(const bp_context* context, const void* send, void* recv, std::int64_t count,
                             bp_dtype dtype, bp_reduce_order order);

// rotated, reversed, by_world, low_bit: gathers every rank's partial product and sums rows `rows` into y. `addend` (m,
// n) of y's dtype joins each partial product; null: none.
Result<void> run_reduced_control(ReduceOrder order, const bp_context* context, const ScaledLinear& linear,
                                 const RowRange& rows, const bp_tensor& y, const bp_tensor* addend = nullptr);

// FP64 sum over ranks of rows `rows` into y of FP64.
Result<void> reduced_reference(const bp_context* context, const ScaledLinear& linear, const RowRange& rows,
                               const bp_tensor& y, const bp_tensor* addend = nullptr);

// Relations that an order promises: none where the problem does not fit it. The tree keeps its bytes over worlds unless
// a bias (or another addend) is counted once per rank.
uint32_t reduced_promises(ReduceOrder order, const bp_implementation* implementation, const bp_problem* problem,
                          const bp_device* device, const ReducedPorts& ports, bool has_addend = false);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_REDUCED_CONTROLS_H_
