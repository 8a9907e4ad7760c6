// SPDX-License-Identifier: Apache-2.0
//
// What a launch of the matrix product hands to the kernel, and the arithmetic that host and device share: where the
// segments lie and which of them a block of a cluster walks. Plain data; no CUDA header.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_GEMM_PARAMS_H_
#define BATCHPROOF_SRC_KERNELS_CUDA_GEMM_PARAMS_H_

#include <cstdint>

#include "src/numeric/host_device.h"

namespace batchproof::cuda {

constexpr int kBlockK = 64;  // columns of K of one block in shared memory: 128 bytes, the width of the swizzle

// Dtypes of bias and output inside a kernel.
enum class Store : int { none, fp32, bf16, fp16 };

// The schedule in the form that a kernel walks: `slices` equal slices, each a chain of segments of `segment` columns,
// the last of a slice may be short. Follows from the Schedule alone (C1).
struct KAxis {
  std::int32_t length = 0;
  std::int32_t slices = 1;
  std::int32_t slice = 0;    // columns of a slice
  std::int32_t segment = 0;  // columns of a segment
  std::int32_t per_slice = 0;

  BATCHPROOF_HD std::int32_t segments() const { return slices * per_slice; }
  // No cut and no end lies inside a block of 64 columns.
  bool whole_blocks() const {
    return length % kBlockK == 0 && (segments() <= 1 || segment % kBlockK == 0) &&
           (slices <= 1 || slice % kBlockK == 0);
  }
  BATCHPROOF_HD std::int32_t begin(std::int32_t s) const { return s / per_slice * slice + s % per_slice * segment; }
  BATCHPROOF_HD std::int32_t end(std::int32_t s) const {
    const std::int32_t slice_end = (s / per_slice + 1) * slice;
    const std::int32_t full = begin(s) + segment;
    return full < slice_end ? full : slice_end;
  }
  // First segment of part `part` of `parts`; whole slices where there are several.
  BATCHPROOF_HD std::int32_t part_begin(std::int32_t part, std::int32_t parts) const {
    if (slices > 1) return slices * part / parts * per_slice;
    return static_cast<std::int32_t>(static_cast<std::int64_t>(segments()) * part / parts);
  }
};

struct GemmParams {
  KAxis axis;
  void* y = nullptr;
  std::int64_t y_stride = 0;  // elements between rows of y
  const void* bias = nullptr;
  std::int64_t bias_stride = 1;
  Store bias_type = Store::none;
  Store y_type = Store::fp32;
  std::int32_t m = 0;  // rows (tokens)
  std::int32_t n = 0;  // columns of y
  std::int32_t vector_store = 0;

  // Which block does what; these follow the batch and change time only.
  std::int32_t tiles_m = 0;    // tiles of rows
  std::int32_t groups_n = 0;   // groups of cluster_n tiles of columns
  std::int32_t cluster_n = 1;  // neighbouring tiles of columns that share the rows' tile by multicast
  std::int32_t cluster_k = 1;  // parts of the reduction axis, merged inside the cluster
  std::int32_t clusters = 0;   // in the grid
  std::int32_t stages = 0;
  std::int32_t deep = 1;          // blocks of 64 columns of K in a stage
  std::int32_t whole_blocks = 0;  // K and its cuts are multiples of 64: a copy may take several blocks
  std::int32_t bulk_store = 0;    // the copy engine stores the tile
  std::int32_t prefetch = 0;      // stages of the weight that go into the L2 before the prior kernel has ended
  std::int32_t raster = 1;        // groups that neighbours in time walk together
  std::int32_t extra_sums = 0;    // buffers of segment sums beside the stages
  std::int32_t keep_weights = 0;
  std::int32_t step = 64;          // columns of y that a block's tile really covers; a multiple of 8
  std::int32_t x_rows = 0;         // rows of x that a stage receives; fewer than the tile's where y has fewer
  std::int32_t weights_ready = 0;  // the weight was complete before the prior kernel of the stream began
};

// Shared memory of one block, offsets from a 1024-byte boundary.
struct GemmLayout {
  std::int32_t stage_bytes, sum_bytes, sums, staging, barriers, sources, total;
};

constexpr std::int32_t kMostMergedRows = 128;  // wider tiles walk all of K in one block
constexpr std::int32_t kMaxSources = 64;       // segment sums that one merge may read

// A tile as kernels are compiled for it.
struct GemmTile {
  int n = 0;       // wgmma's N
  int groups = 0;  // consumer warpgroups, 64 on wgmma's other side each; 1 to 3
  bool tree = false;
  bool one = false;      // one accumulator set: for a reduction of one segment
  bool by_rows = false;  // rows of y are the 64-row side and columns its N; else the other way round
  constexpr bool operator==(const GemmTile&) const = default;

  BATCHPROOF_HD constexpr int rows() const { return by_rows ? 64 * groups : n; }
  // Of y, at most: where columns are the 64-row side, a block may cover any multiple of eight up to it.
  BATCHPROOF_HD constexpr int columns() const { return by_rows ? n : 64 * groups; }
  // Accumulators of a thread that live at once.
  BATCHPROOF_HD constexpr int live_registers() const { return n / 2 * (one ? 1 : 2 + (tree ? 4 : 0)); }
  // Whether consumers need more registers than an even share: then the producer is a warpgroup that gives some up.
  BATCHPROOF_HD constexpr bool moves_registers() const {
    return (groups == 2 && live_registers() > 120) || (groups == 3 && live_registers() > 72);
  }
  // Blocks of one kernel that share a processor at least: two where their registers allow it.
  BATCHPROOF_HD constexpr int blocks_per_sm() const {
    return live_registers() <= (groups == 1 ? 120 : groups == 2 ? 32 : 0) ? 2 : 1;
  }
  // The copy engine stores tiles of so many rows.
  BATCHPROOF_HD constexpr bool stores_bulk() const { return by_rows || n >= 64; }
  // Columns of y that one bulk store takes: a divisor of the warpgroup's, 128 bytes at most.
  BATCHPROOF_HD constexpr int bulk_columns() const { return !by_rows || n % 64 == 0 ? 64 : n % 48 == 0 ? 48 : 56; }
  // A warpgroup's 64 x n outputs of 16 bits; or two buffers of 32 rows of 144 bytes. A multiple of 1024.
  BATCHPROOF_HD constexpr int staging_bytes() const { return n * 128 > 9216 ? n * 128 : 9216; }
};

// step: columns of y. A tensor-core read of 64 rows of an operand runs past a stage that holds fewer; what lies there
// belongs to outputs that nobody stores, and the staging area keeps the last such read inside.
BATCHPROOF_HD constexpr GemmLayout gemm_layout(const GemmTile& tile, std::int32_t step, std::int32_t deep,
                                               std::int32_t stages, std::int32_t extra_sums) {
  GemmLayout l{};
  l.stage_bytes = (step + tile.rows()) * kBlockK * 2 * deep;
  l.sum_bytes = tile.n * 64 * tile.groups * 4;
  l.sums = stages * l.stage_bytes;
  l.staging = l.sums + extra_sums * l.sum_bytes;
  l.barriers = l.staging + tile.groups * tile.staging_bytes();
  l.sources = l.barriers + stages * 16;
  l.total = l.sources + kMaxSources * 4;
  return l;
}

// Where a block that walks `count` segments keeps segment sum `b`: the last two lie over the stages, which are idle by
// then, earlier ones in buffers of their own.
BATCHPROOF_HD constexpr std::int32_t sum_offset(const GemmLayout& l, std::int32_t b, std::int32_t count) {
  const std::int32_t own = count > 2 ? count - 2 : 0;
  return b < own ? l.sums + b * l.sum_bytes : (b - own) * l.sum_bytes;
}

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_GEMM_PARAMS_H_
