// SPDX-License-Identifier: Apache-2.0
//
// What the operator's table and its controls share.
#ifndef BATCHPROOF_OPS_ALL_GATHER_MATMUL_ALL_GATHER_MATMUL_H_
#define BATCHPROOF_OPS_ALL_GATHER_MATMUL_ALL_GATHER_MATMUL_H_

#include <cstdint>

#include "src/kernels/cpu/gemm.h"
#include "src/runtime/error.h"

namespace batchproof {

// Defects of a kernel with two matrix paths: LOCAL for the rank's own rows, GATHER for those of the others.
enum class TwoPathDefect {
  none,
  chunk_pair,   // LOCAL sums K in chunks of 128, GATHER in chunks of 256
  other_order,  // both in chunks of 128, GATHER from the last chunk to the first
};

// `gathered` is the product for the rows of all ranks; rows [rank * m, (rank + 1) * m) are the rank's own.
Result<void> run_two_path_control(TwoPathDefect defect, const GemmCall& gathered, std::int64_t m, int rank,
                                  int threads);

}  // namespace batchproof

#endif  // BATCHPROOF_OPS_ALL_GATHER_MATMUL_ALL_GATHER_MATMUL_H_
