// SPDX-License-Identifier: Apache-2.0
//
// Which tiles, clusters and stages the matrix product runs with. A plan may follow the batch and the device: it changes
// time, never bytes (C1). Where the segments lie is not part of it. Host code without CUDA, so that it is tested
// everywhere.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_GEMM_PLAN_H_
#define BATCHPROOF_SRC_KERNELS_CUDA_GEMM_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "src/kernels/cuda/gemm_params.h"
#include "src/runtime/error.h"
#include "src/schedule/schedule.h"

namespace batchproof::cuda {

// The chain schedule of BF16 and FP16: as few equal segments as keep each within this length, a constant (C1). One
// segment needs one accumulator set, so that many rows have the widest tiles; and a few rows need no more: their tiles
// are eight columns wide where it takes that to keep every processor busy (bench/records/README.md).
constexpr std::int64_t kCudaGemmSegment = 8192;
Result<Schedule> cuda_gemm_schedule(std::int64_t k);
constexpr std::int64_t kCudaTreeSegment = 2048;  // of the chain inside a slice of the tree

struct GemmDevice {
  int processors = 132;
  int block_shared_bytes = 232448;      // dynamic shared memory that a block may have
  int processor_shared_bytes = 233472;  // of one processor; a block costs 1024 more than it asks for
  // Clusters of 1..8 blocks that run at once where a processor holds one block; processors lie in groups, and a cluster
  // does not cross them, so this is less than processors / size. The numbers of an H200.
  int clusters[9] = {0, 132, 66, 39, 30, 22, 17, 15, 15};
};

struct GemmShape {
  std::int64_t m = 0, n = 0;
  KAxis axis;
  bool weight_mn = false;
};

struct GemmPlan {
  GemmTile tile;
  int cluster_n = 1;
  int cluster_k = 1;
  int step = 64;   // columns of y per block: at most the tile's, fewer to spread few tiles evenly
  int blocks = 1;  // of one processor
  int stages = 0;
  int extra_sums = 0;
  int raster = 8;
  int deep = 1;              // blocks of 64 columns of K in a stage
  int prefetch = 0;          // stages of the weight that go into the L2 before the prior kernel has ended
  std::string name() const;  // "128x144 by rows n1k1 b1s6x1": rows x columns, clusters, blocks, stages, deep
};

// The schedule as kernels walk it. Fails where segments are not whole steps of 16 columns, or the axis is too long.
Result<KAxis> kernel_axis(const Schedule& schedule);

// Every tile that is compiled for a way of storing the weight.
const std::vector<GemmTile>& gemm_tiles(bool weight_mn);

// wgmma's N in all of them, ascending: what the proof of the tensor-core rules must cover.
std::vector<int> gemm_widths();

// Fills in the stages and buffers of a plan whose other members are given; false where it does not fit the device.
bool complete_gemm_plan(GemmPlan* plan, const GemmShape& shape, const GemmDevice& device);

// Every plan that fits the device, for benchmarks and for tests that compare their bytes; never empty.
std::vector<GemmPlan> gemm_plans(const GemmShape& shape, const GemmDevice& device);

// Microseconds that the model of gemm_plan.cc expects.
double gemm_plan_cost(const GemmPlan& plan, const GemmShape& shape, const GemmDevice& device);

// The cheapest by that model of the plans that measurement has left in the running.
GemmPlan choose_gemm_plan(const GemmShape& shape, const GemmDevice& device);

}  // namespace batchproof::cuda

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_GEMM_PLAN_H_
