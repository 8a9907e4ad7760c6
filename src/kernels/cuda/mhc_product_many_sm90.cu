// SPDX-License-Identifier: Apache-2.0
//
// The product of mhc_pre for many tokens: bound by the memory that the streams come from.
//
// A thread block has one block of the reduction, whose split weights stay in the registers of eight warps, a part each,
// and walks its share of the tokens in stages of 16 that one copy of four dimensions brings. It writes the block's
// sums, an eighteenth of what it reads.
//
//   product warps (8)   one part each of a stage's tokens: sums to shared memory
//   copy warp           streams, kStages ahead
//   merge warps (3)     a stage's parts in order, to global memory
#include <cuda.h>

#include "src/kernels/cuda/mhc_stage.cuh"

namespace batchproof::cuda {
namespace {

using namespace stage;  // NOLINT(google-build-using-namespace)

constexpr int kProducts = kProductParts, kMergers = 3;
constexpr int kThreads = 32 * (kProducts + 1 + kMergers);
constexpr int kStages = 6;  // in shared memory
constexpr int kPartFloats = kTokens * kMhcSumStride;
constexpr int kSumBuffers = 2;
constexpr int kSumFours = kMhcSumStride / 4;
constexpr int kSummed = 1, kWeighed = kSummed + kSumBuffers;  // named barriers: a buffer's sums, the weights are there
constexpr int kWeighers = 32 * (kProducts + 1);

struct Memory {
  char stage[kStages][4 * kStreamBytes];  // at a multiple of 1024
  float sums[kSumBuffers][kProductParts][kPartFloats];
  std::uint64_t full[kStages], empty[kStages];
  std::uint64_t merged[kSumBuffers];
};

__device__ __forceinline__ void multiply_part(const MhcLaunch& g, const Walk& w, Memory& m, int part, int lane) {
  PartWeights a;
  {
    RawPart raw;
    raw.ask(g, w.block, part, lane);
    raw.split(a);
  }
  named_arrive(kWeighed, kWeighers);
  cluster::Turn slot, buffer;
  uint4 v[kTiles][4];
  const auto take_stage = [&] {
    barrier_wait(shared_address(&m.full[slot.at]), slot.parity);
#pragma unroll
    for (int piece = 0; piece < 4; ++piece) {
      const char* const at =
          m.stage[slot.at] + offset_of(part / 2, lane / 4, part % 2 * 2 + piece / 2, piece % 2 * 4 + lane % 4);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) v[t][piece] = *reinterpret_cast<const uint4*>(at + t * kMhcTokens * 512);
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
    const int done = slot.at;
    slot.next(kStages);
    if (i + 1 < w.stages) take_stage();  // on its way while the sums are stored
    if (i >= kSumBuffers) barrier_wait(shared_address(&m.merged[buffer.at]), buffer.parity ^ 1);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) sums[t].store(m.sums[buffer.at][part] + t * kMhcTokens * kMhcSumStride, lane);
    named_arrive(kSummed + buffer.at, 32 * (kProducts + kMergers));
    // Not before the sums are stored: an arrival orders nothing before the copy engine's writes, and it does overtake
    // loads that are still under way. The sums are what waits for this stage's.
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&m.empty[done]));
  }
}

// A warp calls it, one lane of it works.
__device__ __forceinline__ void bring_stages(const Walk& w, Memory& m, const CUtensorMap* streams) {
  const bool chosen = cluster::one_lane();
  const auto bring = [&](int i, int slot) {
    const std::uint32_t full = shared_address(&m.full[slot]);
    barrier_expect_bytes(full, 4 * kStreamBytes);
    tensor_load(shared_address(m.stage[slot]), streams, 0, w.block * 4, static_cast<int>(w.row(i)), 0, full,
                kEvictFirst);
  };
  for (int i = 0; chosen && i < min(kEarly, w.stages); ++i) bring(i, i);
  __syncwarp();
  named_sync(kWeighed, kWeighers);
  if (!chosen) return;
  cluster::Turn slot{kEarly, 0};
  for (int i = kEarly; i < w.stages; ++i, slot.next(kStages)) {
    // The first time round nobody has given a slot back: its barrier is in the phase before.
    barrier_wait(shared_address(&m.empty[slot.at]), slot.parity ^ 1);
    bring(i, slot.at);
  }
}

__device__ __forceinline__ void merge_stages(const MhcLaunch& g, const Walk& w, Memory& m, int warp, int lane) {
  cluster::Turn buffer;
  for (int i = 0; i < w.stages; ++i, buffer.next(kSumBuffers)) {
    named_sync(kSummed + buffer.at, 32 * (kProducts + kMergers));
    float4* const to = reinterpret_cast<float4*>(g.partial + w.block * g.partial_step + w.row(i) * g.partial_row);
    for (int k = warp * 32 + lane; k < kTokens * kSumFours; k += 32 * kMergers) {
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

__global__ void __launch_bounds__(kThreads, 1)
    mhc_product_many_kernel(const __grid_constant__ MhcLaunch g, const __grid_constant__ CUtensorMap streams) {
  extern __shared__ __align__(1024) char memory[];
  auto& m = aligned<Memory>(memory);
  const int warp = warp_index(), lane = threadIdx.x % 32;
  const Walk w = walk_of(g.rows);
  if (warp == kProducts) {
    if (lane < kStages) {
      barrier_init(shared_address(&m.full[lane]), 1);
      barrier_init(shared_address(&m.empty[lane]), kProducts);
    }
    if (lane < kSumBuffers) barrier_init(shared_address(&m.merged[lane]), 32 * kMergers);
    barrier_init_fence();
    if (lane == 0) tensor_map_prefetch(&streams);
  }
  __syncthreads();
  let_next_grid_start();
  wait_for_prior_grid();
  if (warp < kProducts) {
    registers_raise<208>();
    multiply_part(g, w, m, warp, lane);
  } else {
    registers_lower<80>();
    if (warp == kProducts) {
      bring_stages(w, m, &streams);
    } else {
      merge_stages(g, w, m, warp - kProducts - 1, lane);
    }
  }
}

}  // namespace

cudaError_t launch_mhc_product_many(const MhcLaunch& g, const CUtensorMap& streams, const MhcProductPlan& plan,
                                    bool dependent, cudaStream_t stream) {
  constexpr int kBytes = sizeof(Memory) + kAlignment;
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
  return cudaLaunchKernelEx(&config, mhc_product_many_kernel, g, streams);
}

}  // namespace batchproof::cuda
