// SPDX-License-Identifier: Apache-2.0
//
// What the roles of the mHC kernel for many rows (mhc_relay_sm90.cu) share: which tokens and columns a thread block
// has, and what is where in its shared memory.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_MHC_RELAY_SITE_CUH_
#define BATCHPROOF_SRC_KERNELS_CUDA_MHC_RELAY_SITE_CUH_

#include "src/kernels/cuda/mhc_relay_plan.h"
#include "src/kernels/cuda/mhc_stage.cuh"

namespace batchproof::cuda::relay {

using namespace stage;  // NOLINT(google-build-using-namespace)

constexpr int kThreads = 640;
constexpr int kPosts = 4, kSides = 4, kFinishers = 8, kMergers = 4;  // warps, the last of them product warps
constexpr int kSlots = kRelaySlots;
constexpr int kStored = kRelayStored;
constexpr int kRing = 3;                  // tokens under way to their collapse
constexpr int kChunks = 3;                // of the streams of such tokens, in shared memory
constexpr int kChunkBlocks = kFinishers;  // blocks of the reduction that a chunk has, one a finish warp
constexpr int kChunkStream = kChunkBlocks * kMhcColumns * 2;
constexpr int kSumFours = kRelaySumFloats / 4;
constexpr int kPostFloats = 20;  // of a token: post[4], comb[16]
// Named barriers: weights are there; the finish warps among themselves; the product warps among themselves, sums are
// complete and merged.
constexpr int kWeighed = 1, kNormed = 2, kSummed = 3, kMerged = 4;

template <bool kPost>
struct Plan {
  static constexpr int kProducts = kPost ? 4 : 8;          // warps
  static constexpr int kMine = kProductParts / kProducts;  // parts of one
  static constexpr int kXSlots = 2;                        // of stages that are not yet posted
  // Without post the product warps have time, and take the norm; u of two tokens is under way to them.
  static constexpr bool kProductNorms = !kPost;
  static constexpr int kNormSlots = kProductNorms ? 2 : 1;
  static constexpr int kX = kPost ? kTokens * kMhcColumns : 8;  // elements of x
};

template <bool kPost>
struct Memory {
  using P = Plan<kPost>;
  char stage[kSlots][4 * kStreamBytes];  // at a multiple of 1024
  char chunk[kChunks][4 * kChunkStream];
  std::uint16_t x[P::kXSlots][P::kX];
  float sums[kProductParts][kTokens * kMhcSumStride];
  float token_sums[kRing][kRelayBlocksMost * kRelaySumFloats];
  float post[kTokens][kPost ? kPostFloats : 4];
  uint4 u[P::kNormSlots][kRelayBlocksMost][32];  // not yet normed
  float pre[kRing][4];
  float squares[2][kRelayBlocksMost];
  std::uint16_t norm_weight[kRelayBlocksMost * kMhcColumns];
  float factors[P::kNormSlots];
  int next_stage;  // of the next token to be finished here
  std::uint64_t full[kSlots], empty[kSlots], posted[kSlots], x_full[P::kXSlots];
  std::uint64_t stored[kStored], written[kStored], said[kStored];
  std::uint64_t chunk_full[kChunks], chunk_empty[kChunks];
  std::uint64_t sums_full[kRing], sums_empty[kRing], pre_full[kRing], pre_empty[kRing];
  std::uint64_t squared[P::kNormSlots], collapsed[P::kNormSlots], normed[P::kNormSlots];
};

// A walk, and what finishing needs to know of it.
struct Share : Walk {
  int blocks;  // of the reduction: thread blocks that walk alike
  std::int64_t rows;
  __device__ int tokens(int i) const {
    return static_cast<int>(min(static_cast<std::int64_t>(kTokens), rows - row(i)));
  }
  // Tokens of the share; this thread block finishes every `blocks`-th, from its own number on.
  __device__ int tokens() const { return (stages - 1) * kTokens + tokens(stages - 1); }
};

}  // namespace batchproof::cuda::relay

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_MHC_RELAY_SITE_CUH_
