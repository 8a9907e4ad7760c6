// SPDX-License-Identifier: Apache-2.0
//
// The product of mhc_pre for few tokens: a thread block has one part of the reduction, 128 columns of a stream, and
// writes the part's sums of its tokens. Weights come in once, split, to shared memory; tokens come from global memory
// as the tensor core takes them, so nothing waits but for its own loads.
#include "src/kernels/cuda/mhc_cluster_site.cuh"
#include "src/kernels/cuda/mhc_product_plan.h"

namespace batchproof::cuda {
namespace {

constexpr int kThreads = 32 * kFewWarps;
constexpr int kSumFours = kMhcSumStride / 4;

// kTiles: of eight tokens, of a warp at a time.
template <int kTiles>
__global__ void __launch_bounds__(kThreads, 4)
    mhc_product_few_kernel(const __grid_constant__ MhcLaunch g, int tokens, bool early) {
  __shared__ __align__(16) char weights[8 * 3 * 512];                             // of eight steps
  __shared__ __align__(16) float staging[kFewWarps][kMhcTokens * kMhcSumStride];  // sums on their way
  constexpr int kRound = kTiles * kFewWarps * kMhcTokens;
  const int warp = warp_index(), lane = threadIdx.x % 32;
  const int block = static_cast<int>(blockIdx.x) / kProductParts, part = static_cast<int>(blockIdx.x) % kProductParts;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.y) * tokens;
  const int rounds = static_cast<int>((min(static_cast<std::int64_t>(tokens), g.rows - first) + kRound - 1) / kRound);
  if (early) {  // to the L2 while the grid before this one ends: lines of 128 bytes
    const std::int64_t stream = part / 2;
    const int column = block * kMhcColumns + part % 2 * 128;
    for (int i = threadIdx.x; i < 24 * 4; i += kThreads) {
      const int h = column + i % 4 * 32;
      if (h < g.hidden) cluster::prefetch_line(g.fn + i / 4 * g.fn_row + stream * g.hidden + h);
    }
    for (int i = threadIdx.x; i < 2 * kRound; i += kThreads) {
      const int h = column + i % 2 * 64;
      if (h < g.hidden && first + i / 2 < g.rows)
        cluster::prefetch_line(g.residual + (first + i / 2) * g.residual_row + stream * g.residual_stream + h);
    }
  }
  let_next_grid_start();
  wait_for_prior_grid();

  MhcWeights raw[3];
  load_piece<3>(g, 24, block, part, warp, lane, true, raw);
  // A lane has column group lane % 4 of token lane / 4; pieces are 32 columns.
  const int h = block * kMhcColumns + part % 2 * 128 + lane % 4 * 8;
  std::int64_t token = first + warp * kMhcTokens + lane / 4;
  const std::uint16_t* at = g.residual + token * g.residual_row + part / 2 * g.residual_stream + h;
  const auto load = [&](int t, int piece) {
    const bool inside = token + t * kFewWarps * kMhcTokens < g.rows && h + piece * 32 < g.hidden;
    return inside ? cluster::load_once(at + t * kFewWarps * kMhcTokens * g.residual_row + piece * 32)
                  : make_uint4(0, 0, 0, 0);
  };
  uint4 v[kTiles][4];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int piece = 0; piece < 4; ++piece) v[t][piece] = load(t, piece);
  }
#pragma unroll
  for (int j = 0; j < 3; ++j) {
    std::uint32_t a[2][4];
    split_weights(raw[j], a[0], a[1]);
#pragma unroll
    for (int step = 0; step < 2; ++step)
      *reinterpret_cast<uint4*>(weights + ((warp * 2 + step) * 3 + j) * 512 + lane * 16) =
          make_uint4(a[step][0], a[step][1], a[step][2], a[step][3]);
  }
  __syncthreads();

  for (int round = 0; round < rounds; ++round) {
    MhcSums<3> sums[kTiles];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) sums[t].clear();
    const std::int64_t start = first + round * kRound + warp * kMhcTokens;
    token += kRound;
    at += kRound * g.residual_row;
#pragma unroll
    for (int piece = 0; piece < 4; ++piece) {
      std::uint32_t a[2][3][4];
#pragma unroll
      for (int step = 0; step < 2; ++step) load_step<3>(weights + (piece * 2 + step) * 3 * 512 + lane * 16, a[step]);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        sums[t].add(a[0], v[t][piece].x, v[t][piece].y);
        sums[t].add(a[1], v[t][piece].z, v[t][piece].w);
        if (round + 1 < rounds) v[t][piece] = load(t, piece);  // the next round's
      }
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const std::int64_t row = start + t * kFewWarps * kMhcTokens;
      __syncwarp();
      sums[t].store(staging[warp], lane);
      __syncwarp();
      float4* const to = reinterpret_cast<float4*>(g.partial + blockIdx.x * g.partial_step + row * g.partial_row);
      for (int i = lane; i < kMhcTokens * kSumFours; i += 32) {
        float4 four = reinterpret_cast<const float4*>(staging[warp])[i];
        if (i % kSumFours == kSumFours - 1) four.y = four.z = four.w = 0.0f;  // padding
        if (row + i / kSumFours < g.rows) to[i] = four;
      }
    }
  }
}

}  // namespace

cudaError_t launch_mhc_product_few(const MhcLaunch& g, const MhcProductPlan& plan, bool dependent,
                                   cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(kProductParts * g.blocks),
                        static_cast<unsigned>((g.rows + plan.tokens - 1) / plan.tokens));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = dependent ? 1 : 0;
  const auto kernel = plan.tokens > kFewWarps * kMhcTokens && g.rows > kFewWarps * kMhcTokens
                          ? mhc_product_few_kernel<2>
                          : mhc_product_few_kernel<1>;
  // With more rows these reads are in the way of the grid that still runs (bench/records/README.md).
  const bool early = dependent && g.rows <= kFewWarps * kMhcTokens;
  return cudaLaunchKernelEx(&config, kernel, g, plan.tokens, early);
}

}  // namespace batchproof::cuda
