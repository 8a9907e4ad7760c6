// SPDX-License-Identifier: Apache-2.0
//
// mhc_pre and fused post and pre for many tokens, as one launch that hands tokens over in the L2 (sm_90a).
//
// A thread block has one block of the reduction, whose split weights stay in registers, and walks a share of the
// tokens in stages of 16: post where the form has it, the streams to residual_out, the block's sums to memory. Thread
// blocks of a share walk alike, so a stage is complete a few microseconds after its streams were read or written, while
// they still are in the L2. Of the tokens of a complete stage each thread block of the share finishes some: merge,
// coefficients, collapse, norm, all columns of a token at once.
//
//   product warps    4 or, without post, 8: a stage's sums, by part; parts merge, to memory
//   post warps (4)   of a stage's tokens each a fourth
//   finish warps (8) collapse and norm of one token after the other
//   side warp        streams in, a few stages ahead of the tokens that are finished; posted streams out
//   side warp        says that a stage is complete here
//   side warp        waits until a token's stage is complete everywhere, then brings its sums and streams
//   side warp        merges a token's sums: coefficients; Sinkhorn for up to eight tokens at once
//
// Without post the norm is the product warps', which have time for it.
//
// Thread blocks of a share wait for one another: the launch is a cooperative one, and each has a processor of its own.
// None waits for one that waits for it: a stage is complete when all have multiplied it, and a thread block reads a
// stage when the one `ahead` before it is finished, which is at least one more than it has in shared memory. Rows are
// aligned and the order is the usual one.
#include <cuda.h>

#include "src/kernels/cuda/mhc_relay_finish.cuh"
#include "src/kernels/cuda/mhc_relay_sums.cuh"

namespace batchproof::cuda {
namespace {

using namespace relay;  // NOLINT(google-build-using-namespace)

template <bool kPost>
__global__ void __launch_bounds__(kThreads, 1)
    mhc_relay_kernel(const __grid_constant__ MhcLaunch g, const __grid_constant__ MhcRelayMaps maps,
                     std::uint32_t* complete, int ahead) {
  using P = Plan<kPost>;
  extern __shared__ __align__(1024) char memory[];
  auto& m = aligned<Memory<kPost>>(memory);
  const int warp = warp_index(), lane = threadIdx.x % 32;
  Share w;
  w.blocks = static_cast<int>(gridDim.x);
  w.rows = g.rows;
  static_cast<Walk&>(w) = walk_of(g.rows);
  if (threadIdx.x == 0) {
    const auto init = [](std::uint64_t* barriers, int count, std::uint32_t arrivals) {
      for (int i = 0; i < count; ++i) barrier_init(shared_address(barriers + i), arrivals);
    };
    init(m.full, kSlots, 1);
    init(m.empty, kSlots, P::kProducts);
    init(m.posted, kSlots, 32 * kPosts);
    init(m.x_full, P::kXSlots, 1);
    init(m.stored, kStored, kMergers);
    init(m.written, kStored, 1);
    init(m.said, kStored, 1);
    init(m.chunk_full, kChunks, 1);
    init(m.chunk_empty, kChunks, 32 * kFinishers);
    init(m.sums_full, kRing, 1);
    init(m.sums_empty, kRing, 32);
    init(m.pre_full, kRing, 32);
    init(m.pre_empty, kRing, 32 * kFinishers);
    init(m.squared, P::kNormSlots, 32 * kFinishers);
    init(m.collapsed, P::kNormSlots, 32 * (kFinishers + 1));
    init(m.normed, P::kNormSlots, 32 * P::kProducts);
    m.next_stage = w.block < w.tokens() ? w.block / kTokens : w.stages;
    barrier_init_fence();
    tensor_map_prefetch(&maps.streams);
  }
  __syncthreads();
  const std::uint16_t* const streams = kPost ? g.residual_out : g.residual;
  const std::int64_t streams_row = kPost ? g.residual_out_row : g.residual_row,
                     streams_step = kPost ? g.residual_out_stream : g.residual_stream;
  // Registers where they are needed: 61,440 in all.
  constexpr int kFirstSide = P::kProducts, kFirstFinisher = kFirstSide + kSides,
                kFirstPost = kFirstFinisher + kFinishers;
  if (warp < kFirstSide) {
    if constexpr (kPost) {
      registers_raise<240>();
    } else {
      registers_raise<160>();
    }
    multiply_stages<kPost>(g, w, m, warp, lane);
  } else if (warp < kFirstFinisher) {
    registers_lower<48>();
    switch (warp - kFirstSide) {
      case 0:
        bring_stages<kPost>(w, m, maps, ahead);
        break;
      case 1:
        if (cluster::one_lane()) say_complete<kPost>(w, m, complete);
        break;
      case 2:
        if (cluster::one_lane()) bring_tokens<kPost>(g, w, m, streams, streams_row, streams_step, complete);
        break;
      default:
        own_tokens<kPost>(g, w, m, lane);
    }
  } else if (warp < kFirstPost) {
    registers_lower<56>();
    if (!g.delayed && g.mean == nullptr) {
      finish_tokens<kPost, true>(g, w, m, warp - kFirstFinisher, lane);
    } else {
      finish_tokens<kPost, false>(g, w, m, warp - kFirstFinisher, lane);
    }
  } else if constexpr (kPost) {
    registers_lower<80>();
    post_stages(g, w, m, warp - kFirstPost, lane);
  }
}

template <bool kPost>
cudaError_t launch(const MhcLaunch& g, const MhcRelayMaps& maps, const MhcRelayPlan& plan, std::uint32_t* complete,
                   cudaStream_t stream) {
  constexpr int kBytes = sizeof(Memory<kPost>) + kAlignment;
  static_assert(kBytes <= 232448);
  const auto kernel = mhc_relay_kernel<kPost>;
  if (const cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
      status != cudaSuccess)
    return status;
  const std::int64_t stages = (g.rows + kTokens - 1) / kTokens;
  if (const cudaError_t status =
          cudaMemsetAsync(complete, 0, static_cast<std::size_t>(stages) * sizeof(*complete), stream);
      status != cudaSuccess)
    return status;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(g.blocks), static_cast<unsigned>(plan.shares));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, g, maps, complete, plan.ahead);
}

}  // namespace

cudaError_t launch_mhc_relay(MhcKernelForm form, const MhcLaunch& g, const MhcRelayMaps& maps, const MhcRelayPlan& plan,
                             std::uint32_t* complete, cudaStream_t stream) {
  if (form == MhcKernelForm::pre) return launch<false>(g, maps, plan, complete, stream);
  if (form == MhcKernelForm::fused) return launch<true>(g, maps, plan, complete, stream);
  return cudaErrorInvalidValue;
}

}  // namespace batchproof::cuda
