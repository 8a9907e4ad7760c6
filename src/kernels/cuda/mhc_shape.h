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

constexpr int kMhcColumns = 256;     // columns of every stream in one block of the reduction
constexpr int kMhcTokens = 8;        // of a tile: those of one tensor-core instruction
constexpr int kStageTokens = 16;     // of a stage (mhc_stage.cuh)
constexpr int kMhcSquare = 24;       // where the square sum is among them
constexpr int kMhcSumStride = 28;    // floats of a token's partial sums: 24 mixes, the square sum, padding
constexpr int kMhcClusterMost = 16;  // thread blocks of a cluster
constexpr int kMhcLocalMost = 2;     // blocks of the reduction of one thread block
constexpr int kMhcSlotsMost = 4;

// Warps of a thread block of the cluster kernel, by what they do.
constexpr int kMhcProductWarps = 4;
constexpr int kMhcOwnerWarps = 2;
constexpr int kMhcSideWarps = 2 + kMhcOwnerWarps;  // besides: tiles in and the norm's sums out; streams to residual_out
constexpr int kMhcBatch = 4;                       // owned tokens that a warp takes at a time
constexpr int kMhcRowWarps = kMhcTokens;
constexpr int kMhcClusterThreads = 32 * (kMhcProductWarps + kMhcSideWarps + kMhcRowWarps);

enum class MhcKernelForm { pre, broadcast, fused, head };

struct MhcShape {
  int cluster;  // thread blocks that share a tile of kMhcTokens tokens
  int tiles;
  int clusters;      // that run at once; each takes every clusters-th tile
  int local_blocks;  // most blocks of the reduction that one thread block holds
  int slots;         // tiles in shared memory at once
  int lag;           // tiles between a tile's post and its collapse, less than slots
  // What follows from these.
  int owned_most;      // tokens whose sums an owner may have to hold at once
  int owned_barriers;  // for their sums
  int ring;            // tiles whose coefficients and norm sums may be under way
};

// Bytes of a token's streams in shared memory. 64: the columns of two tokens in different banks.
BATCHPROOF_HD constexpr int mhc_token_bytes(int streams, int local) { return streams * local * 512 + 64; }
// Bytes of the split weights of one block of the reduction: parts of eight steps, a step 16 bytes a lane and eight
// rows.
constexpr int mhc_weight_bytes(int streams, int mix_tiles) { return 2 * streams * 8 * mix_tiles * 512; }

// Offsets into shared memory, in bytes; each starts where the one before it ends.
struct MhcLayout {
  int slots;              // streams of the tiles; before them the split weights of one local block
  int parts;              // sums of the product's parts, twice
  int exchange;           // what arrives for owned tokens: every block's row
  int pre;                // what arrives for every token of a tile
  int norm_out, norm_in;  // sums of u^2 per block: of this thread block, of all
  int coefficients;       // of a tile's tokens: post, comb, carried
  int norm_weight;
  int barriers, total;
};

// total: bytes of dynamic shared memory.
MhcLayout mhc_layout(MhcKernelForm form, const MhcShape& shape, int blocks);

struct MhcShapeRequest {
  MhcKernelForm form = MhcKernelForm::pre;
  std::int64_t rows = 0;
  int blocks = 0;              // of the reduction
  int processors = 0;          // to use at most; 0: all
  int block_shared_bytes = 0;  // of the device
  // For measurements; 0: chosen.
  int cluster = 0, slots = 0, lag = 0;
  // Clusters of the shape that the device holds at once; 0: it cannot run it.
  std::function<int(const MhcShape&)> capacity;
};

// Nothing where no shape fits the device, or where one thread block would be all of a cluster.
std::optional<MhcShape> choose_mhc_shape(const MhcShapeRequest& request);

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_MHC_SHAPE_H_
