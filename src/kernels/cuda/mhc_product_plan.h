// SPDX-License-Identifier: Apache-2.0
//
// How the product of mhc_pre alone is cut (mhc_product_few_sm90.cu, mhc_product_many_sm90.cu). Read by host and device
// code. A plan changes time and which sums are left to be merged, never the bytes of merged ones.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_MHC_PRODUCT_PLAN_H_
#define BATCHPROOF_SRC_KERNELS_CUDA_MHC_PRODUCT_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <optional>

#include "src/kernels/cuda/mhc_shape.h"

namespace batchproof::cuda {

constexpr int kProductParts = 8;  // of a block of the reduction: 128 columns of a stream each

constexpr int kFewWarps = 4;
constexpr std::int64_t kFewRowsMost = 1024;  // beyond, sums of every part would be many bytes

struct MhcProductPlan {
  // A thread block has one part of the reduction and `tokens` tokens, and writes the part's sums. Else it has one block
  // of the reduction and one of `shares` shares of the tokens, and writes the block's sums.
  bool few;
  int tokens;
  int shares;

  // Sums of a token that are left to be merged, in groups: first those of a group in turn, then the groups.
  constexpr int partials(int blocks) const { return few ? kProductParts * blocks : blocks; }
  constexpr int group() const { return few ? kProductParts : 1; }
};

// Sums of rows that any plan leaves at most.
constexpr std::int64_t mhc_product_sums(std::int64_t rows, std::int64_t blocks) {
  return std::max(rows, kProductParts * std::min(rows, kFewRowsMost)) * blocks;
}

struct MhcProductRequest {
  std::int64_t rows = 0;
  int blocks = 0;      // of the reduction
  int processors = 0;  // of the device
  // For measurements; 0: chosen.
  int few_tokens = 0, many_shares = 0;
};

// Nothing where what was asked for is no plan: few_tokens is 32 or a multiple of 64, and is for up to kFewRowsMost
// rows.
std::optional<MhcProductPlan> choose_mhc_product(const MhcProductRequest& request);

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_MHC_PRODUCT_PLAN_H_
