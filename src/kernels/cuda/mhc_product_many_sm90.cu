// SPDX-License-Identifier: Apache-2.0
//
// The product of mhc_pre for many tokens: bound by the memory that the streams come from.
//
// A thread block has one block of the reduction, whose split weights stay in the registers of eight warps, a part each,
// and walks its share of the tokens in stages of 16 that one copy of four dimensions brings. It writes the block's
// sums, an eighteenth of what it reads.
//
//   product warps (8)   one part each of a stage's tokens: sums to shared memory
//   copy warp           the weights, then streams, kManyStages ahead
//   merge warps (3)     a stage's parts in order, to global memory
#include <cuda.h>

#include "src/kernels/cuda/mhc_cluster_site.cuh"
#include "src/kernels/cuda/mhc_product_plan.h"

namespace batchproof::cuda {
namespace {

constexpr int kProducts = kProductParts, kMergers = 3;
constexpr int kThreads = 32 * (kProducts + 1 + kMergers);
constexpr int kTiles = kManyTokens / kMhcTokens;
constexpr int kPartFloats = kManyTokens * kMhcSumStride;
constexpr int kSumBuffers = 2;
constexpr int kSumFours = kMhcSumStride / 4;
constexpr int kSummed = 1;  // named barriers: a buffer's sums are there
// The weights come as FP32 to the first stages, before any streams do.
constexpr int kWeightBytes = 24 * 4 * kMhcColumns * 4;
constexpr int kWeightStages = kWeightBytes / kManyStageBytes;
// Two stages that do not wait for the weights: a product warp takes the next one before it gives theirs back.
static_assert(kWeightBytes % kManyStageBytes == 0 && kManyStages - kWeightStages >= 2);

struct Memory {
  char stage[kManyStages][kManyStageBytes];  // at a multiple of 1024
  float sums[kSumBuffers][kProductParts][kPartFloats];
  std::uint64_t full[kManyStages], empty[kManyStages];
  std::uint64_t merged[kSumBuffers];
};

// Stages of 16 tokens, one after the other.
struct Walk {
  int block;
  int first, stages;  // of the first stage's place among all
  __device__ std::int64_t row(int i) const { return static_cast<std::int64_t>(first + i) * kManyTokens; }
};

// A part's weights, as the tensor core takes them. Rows of 128 bytes are 32 columns, 24 of them a group's; 16 bytes of
// a row are swizzled with the row's number.
__device__ __forceinline__ void take_part(const char* weights, int part, int lane, std::uint32_t (&a)[8][3][4]) {
  const int r = lane / 4, q = lane % 4;
#pragma unroll
  for (int piece = 0; piece < 4; ++piece) {
    const char* const group = weights + (part * 4 + piece) * 24 * 128;
#pragma unroll
    for (int j = 0; j < 3; ++j) {
      const char* const row = group + (8 * j + r) * 128;
      MhcWeights raw;
      raw.low = *reinterpret_cast<const float4*>(row + ((2 * q) ^ r) * 16);
      raw.high = *reinterpret_cast<const float4*>(row + ((2 * q + 1) ^ r) * 16);
      split_weights(raw, a[2 * piece][j], a[2 * piece + 1][j]);
    }
  }
}

__device__ __forceinline__ void multiply_part(const Walk& w, Memory& m, int part, int lane) {
  std::uint32_t a[8][3][4];
  barrier_wait(shared_address(&m.full[0]), 0);
  take_part(m.stage[0], part, lane, a);
  // Rows of 128 bytes are 64 columns of a stream; four of them are a token's, swizzled alike.
  const int token = lane / 4, q = lane % 4, swizzle = token % 2 * 4 + part % 2 * 2;
  const int from = ((part / 2 * kManyTokens + token) * 4 + part % 2 * 2) * 128;
  cluster::Turn stage{kWeightStages, 0}, buffer;
  uint4 v[kTiles][4];
  const auto take_stage = [&] {
    barrier_wait(shared_address(&m.full[stage.at]), stage.parity);
    const char* const at = m.stage[stage.at] + from;
#pragma unroll
    for (int piece = 0; piece < 4; ++piece) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
        v[t][piece] = *reinterpret_cast<const uint4*>(at + t * kMhcTokens * 512 + piece / 2 * 128 +
                                                      ((piece % 2 * 4 + q) ^ (swizzle + piece / 2)) * 16);
    }
  };
  take_stage();
  for (int i = 0; i < w.stages; ++i, buffer.next(kSumBuffers)) {
    MhcSums<3> sums[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) sums[t].clear();
#pragma unroll
    for (int piece = 0; piece < 4; ++piece) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        sums[t].add(a[2 * piece], v[t][piece].x, v[t][piece].y);
        sums[t].add(a[2 * piece + 1], v[t][piece].z, v[t][piece].w);
      }
    }
    const int done = stage.at;
    stage.next(kManyStages);
    if (i + 1 < w.stages) take_stage();  // on its way while the sums are stored
    if (i >= kSumBuffers) barrier_wait(shared_address(&m.merged[buffer.at]), buffer.parity ^ 1);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) sums[t].store(m.sums[buffer.at][part] + t * kMhcTokens * kMhcSumStride, lane);
    named_arrive(kSummed + buffer.at, 32 * (kProducts + kMergers));
    // Not before the sums are stored: an arrival orders nothing before the copy engine's writes, and it does overtake
    // loads that are still under way. The sums are what waits for this stage's.
    __syncwarp();
    if (lane == 0) {
      barrier_arrive(shared_address(&m.empty[done]));
      for (int k = 0; i == 0 && k < kWeightStages; ++k) barrier_arrive(shared_address(&m.empty[k]));
    }
  }
}

__device__ __forceinline__ void bring_stages(const Walk& w, Memory& m, const CUtensorMap* weights,
                                             const CUtensorMap* streams) {
  if (!cluster::one_lane()) return;
  barrier_expect_bytes(shared_address(&m.full[0]), kWeightBytes);
  tensor_load(shared_address(m.stage[0]), weights, 0, 0, w.block * 8, 0, shared_address(&m.full[0]), kEvictLast);
  for (int k = 1; k < kWeightStages; ++k) barrier_arrive(shared_address(&m.full[k]));
  cluster::Turn stage{kWeightStages, 0};
  for (int i = 0; i < w.stages; ++i, stage.next(kManyStages)) {
    if (i + kWeightStages >= kManyStages) barrier_wait(shared_address(&m.empty[stage.at]), stage.parity ^ 1);
    const std::uint32_t full = shared_address(&m.full[stage.at]);
    barrier_expect_bytes(full, kManyStageBytes);
    tensor_load(shared_address(m.stage[stage.at]), streams, 0, w.block * 4, static_cast<int>(w.row(i)), 0, full,
                kEvictFirst);
  }
}

__device__ __forceinline__ void merge_stages(const MhcLaunch& g, const Walk& w, Memory& m, int warp, int lane) {
  cluster::Turn buffer;
  for (int i = 0; i < w.stages; ++i, buffer.next(kSumBuffers)) {
    named_sync(kSummed + buffer.at, 32 * (kProducts + kMergers));
    float4* const to = reinterpret_cast<float4*>(g.partial + w.block * g.partial_step + w.row(i) * g.partial_row);
    for (int k = warp * 32 + lane; k < kManyTokens * kSumFours; k += 32 * kMergers) {
      float4 total = reinterpret_cast<const float4*>(m.sums[buffer.at][0])[k];
#pragma unroll
      for (int p = 1; p < kProductParts; ++p)
        total = cluster::add_fours(total, reinterpret_cast<const float4*>(m.sums[buffer.at][p])[k]);
      if (k % kSumFours == kSumFours - 1) total.y = total.z = total.w = 0.0f;  // padding
      if (w.row(i) + k / kSumFours < g.rows) to[k] = total;
    }
    barrier_arrive(shared_address(&m.merged[buffer.at]));
  }
}

// blockIdx.x: the block of the reduction; shares of the stages over blockIdx.y.
__global__ void __launch_bounds__(kThreads, 1)
    mhc_product_many_kernel(const __grid_constant__ MhcLaunch g, const __grid_constant__ CUtensorMap weights,
                            const __grid_constant__ CUtensorMap streams) {
  extern __shared__ __align__(1024) char memory[];
  Memory& m = *reinterpret_cast<Memory*>(memory + (1024 - shared_address(memory) % 1024) % 1024);
  const int warp = warp_index(), lane = threadIdx.x % 32;
  const std::int64_t all = (g.rows + kManyTokens - 1) / kManyTokens;
  Walk w;
  w.block = static_cast<int>(blockIdx.x);
  w.first = static_cast<int>(all * blockIdx.y / gridDim.y);
  w.stages = static_cast<int>(all * (blockIdx.y + 1) / gridDim.y) - w.first;
  if (warp == kProducts) {
    if (lane < kManyStages) {
      barrier_init(shared_address(&m.full[lane]), 1);
      barrier_init(shared_address(&m.empty[lane]), kProducts);
    }
    if (lane < kSumBuffers) barrier_init(shared_address(&m.merged[lane]), 32 * kMergers);
    barrier_init_fence();
    if (lane == 0) {
      tensor_map_prefetch(&weights);
      tensor_map_prefetch(&streams);
    }
  }
  __syncthreads();
  let_next_grid_start();
  wait_for_prior_grid();
  if (warp < kProducts) {
    registers_raise<208>();
    multiply_part(w, m, warp, lane);
  } else {
    registers_lower<80>();
    if (warp == kProducts) {
      bring_stages(w, m, &weights, &streams);
    } else {
      merge_stages(g, w, m, warp - kProducts - 1, lane);
    }
  }
}

}  // namespace

cudaError_t launch_mhc_product_many(const MhcLaunch& g, const CUtensorMap& weights, const CUtensorMap& streams,
                                    const MhcProductPlan& plan, bool dependent, cudaStream_t stream) {
  constexpr int kBytes = sizeof(Memory) + 1024;
  if (const cudaError_t status =
          cudaFuncSetAttribute(mhc_product_many_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
      status != cudaSuccess)
    return status;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(g.blocks), static_cast<unsigned>(plan.shares));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = dependent ? 1 : 0;
  return cudaLaunchKernelEx(&config, mhc_product_many_kernel, g, weights, streams);
}

}  // namespace batchproof::cuda
