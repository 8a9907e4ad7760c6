// SPDX-License-Identifier: Apache-2.0
//
// How the mHC cluster kernel is cut: which thread block has which tokens and columns, and where in shared memory things
// lie. Read by host and device code. A shape changes time only.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_MHC_SHAPE_H_
#define BATCHPROOF_SRC_KERNELS_CUDA_MHC_SHAPE_H_

#include <cstdint>
#include <functional>
#include <optional>

#include "src/numeric/host_device.h"

namespace batchproof::cuda {

constexpr int kMhcColumns = 256;  // columns of every stream in one block of the reduction
constexpr int kMhcThreads = 256;  // of a thread block
constexpr int kMhcWarps = kMhcThreads / 32;
constexpr int kMhcSumStride = 28;   // floats between the partial sums of two tokens: 24 mixes, the square sum, padding
constexpr int kMhcSquare = 24;      // where the square sum is among them
constexpr int kMhcTokenGroup = 8;   // tokens of one tensor-core instruction
constexpr int kMhcFewTokens = 16;   // most of a tile of the kernel for few tokens
constexpr int kMhcMostTokens = 32;  // most of any tile
constexpr int kMhcTurns = kMhcMostTokens / kMhcWarps;  // most tokens of one warp
constexpr int kMhcClusterMost = 16;                    // thread blocks of a cluster

enum class MhcKernelForm { pre, broadcast, fused, head };

struct MhcShape {
  int cluster;      // thread blocks that share a tile
  int tile_tokens;  // a multiple of kMhcTokenGroup
  int tiles;
  int clusters;      // that run at once; each takes every clusters-th tile
  int local_blocks;  // most blocks of the reduction that one thread block holds
  bool few;          // the kernel for few tokens, one thread block per processor
};

// mbarriers of the kernel.
enum { kMhcSums = 0, kMhcPre = 1, kMhcSquares = 2, kMhcBarriers = 3 };

// Bytes of a token's streams in shared memory. 64: the columns of two tokens in different banks.
BATCHPROOF_HD constexpr int mhc_token_bytes(int streams, int local) { return streams * local * 512 + 64; }

// Offsets into shared memory, in bytes; each starts where the one before it ends.
struct MhcLayout {
  int x, parts, outbox, places, exchange, pre, carried, block_squares, squares, comb, coefficients, barriers, total;
};

BATCHPROOF_HD inline MhcLayout mhc_layout(int streams, bool post, const MhcShape& s, int blocks) {
  const int owned = (s.tile_tokens + s.cluster - 1) / s.cluster;
  MhcLayout l;
  l.x = s.tile_tokens * mhc_token_bytes(streams, s.local_blocks);
  l.parts = l.x + (post ? s.local_blocks * s.tile_tokens * 512 : 0);
  l.outbox = l.parts + kMhcWarps * 16 * kMhcSumStride * 4;
  l.places = l.outbox + owned * s.cluster * kMhcSumStride * 4;
  l.exchange = l.places + s.tile_tokens * 4;
  l.pre = l.exchange + owned * blocks * kMhcSumStride * 4;
  l.carried = l.pre + s.tile_tokens * 16;
  l.block_squares = l.carried + s.tile_tokens * 16;
  l.squares = l.block_squares + s.local_blocks * s.tile_tokens * 4;
  l.comb = l.squares + kMhcWarps * kMhcTurns * blocks * 4;
  l.coefficients = l.comb + owned * 64;
  l.barriers = l.coefficients + (post ? s.tile_tokens * 80 : 0);
  l.total = l.barriers + kMhcBarriers * 8;
  return l;
}

// Bytes of dynamic shared memory.
int mhc_cluster_shared(MhcKernelForm form, const MhcShape& shape, int blocks);

struct MhcShapeRequest {
  MhcKernelForm form = MhcKernelForm::pre;
  std::int64_t rows = 0;
  int blocks = 0;                                          // of the reduction
  int processors = 0;                                      // to use at most; 0: all
  int block_shared_bytes = 0, processor_shared_bytes = 0;  // of the device
  // For measurements; 0: chosen.
  int tile_tokens = 0, cluster = 0;
  bool one_per_processor = false;
  // Clusters of the shape that the device holds at once; 0: it cannot run it.
  std::function<int(const MhcShape&)> capacity;
};

// Nothing where no shape fits the device.
std::optional<MhcShape> choose_mhc_shape(const MhcShapeRequest& request);

// Whether the two launches without clusters were measured to be faster (bench/records/README.md).
bool mhc_two_launches_pay(MhcKernelForm form, std::int64_t rows, int blocks);

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_MHC_SHAPE_H_
