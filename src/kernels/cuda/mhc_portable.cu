// SPDX-License-Identifier: Apache-2.0
//
// The mHC operators without clusters (sm_80 and later): a kernel for the partial sums, one for the rest. The steps are
// those of mhc_steps.cuh, so the bytes are those of the cluster kernel on the same generation of tensor cores.
#include "src/kernels/cuda/mhc_steps.cuh"
#include "src/kernels/cuda/ptx.h"

namespace batchproof::cuda {
namespace {

constexpr int kTile = 16;  // tokens of a product's thread block
constexpr int kWarps = kMhcThreads / 32;
// Of the kernel behind the product.
constexpr int kFinishThreads = 32 * (kWarps + 1);
constexpr int kEach = 2;   // blocks of the reduction that a warp has at a time
constexpr int kBatch = 8;  // tokens that a thread block has at a time, most
static_assert(kBatch <= kWarps);

__device__ inline float* partial_of(const MhcLaunch& g, std::int64_t token, int part) {
  return g.partial + token * g.partial_row + part * g.partial_step;
}

// post[4], comb[16] of one token.
__device__ inline float post_coefficient(const MhcLaunch& g, std::int64_t token, int c) {
  return c < 4 ? load_fp32(g.post_in, token, c, 0) : load_fp32(g.comb_in, token, (c - 4) / 4, (c - 4) % 4);
}

// blockIdx.y: the block of the reduction; tiles of 16 tokens over blockIdx.x. A warp has a part and, where there are
// fewer parts than warps, some of the groups of eight tokens.
template <bool kPost, int kStreams, int kMixTiles>
__global__ void __launch_bounds__(kMhcThreads, 2) mhc_product_kernel(const MhcLaunch g) {
  constexpr int kTokenBytes = kStreams * 512 + 64;
  constexpr int kMixes = kMixTiles == 3 ? 24 : 4;
  constexpr int kParts = 2 * kStreams, kGroups = kTile / kMhcTokens;
  constexpr int kShare = kWarps / kParts, kMine = (kGroups + kShare - 1) / kShare;
  __shared__ __align__(16) char tile[kTile * kTokenBytes];
  __shared__ __align__(16) float parts[kParts * kTile * kMhcSumStride];
  float* const coefficient = parts;  // read before the parts are written
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, block = static_cast<int>(blockIdx.y);
  const int part = warp % kParts, share = warp / kParts;
  for (std::int64_t start = static_cast<std::int64_t>(blockIdx.x) * kTile; start < g.rows;
       start += static_cast<std::int64_t>(gridDim.x) * kTile) {
    const int tokens = static_cast<int>(min(static_cast<std::int64_t>(kTile), g.rows - start));
    if constexpr (kPost) {
      for (int i = threadIdx.x; i < tokens * 20; i += kMhcThreads)
        coefficient[i] = post_coefficient(g, start + i / 20, i % 20);
      __syncthreads();
    }
    for (int token = warp; token < tokens; token += kWarps) {
      MhcColumns<kStreams, kPost> columns;
      columns.load(g, start + token, block, lane, g.wide);
      make_block<kStreams, kPost>(g, columns, start + token, block, lane, coefficient + token * 20, g.wide, g.reversed);
#pragma unroll
      for (int i = 0; i < kStreams; ++i)
        *reinterpret_cast<uint4*>(tile + token * kTokenBytes + i * 512 + lane * 16) = columns.stream[i];
    }
    MhcWeights weights[kMixTiles];
    load_piece<kMixTiles>(g, kMixes, block, part, 0, lane, g.wide, weights);
    __syncthreads();

    MhcSums<kMixTiles> sums[kMine];
#pragma unroll
    for (int i = 0; i < kMine; ++i) sums[i].clear();
#pragma unroll
    for (int piece = 0; piece < 4; ++piece) {
      std::uint32_t a[2][kMixTiles][4];
#pragma unroll
      for (int j = 0; j < kMixTiles; ++j) split_weights(weights[j], a[0][j], a[1][j]);
      // The next piece is on its way while this one is multiplied.
      if (piece < 3) load_piece<kMixTiles>(g, kMixes, block, part, piece + 1, lane, g.wide, weights);
#pragma unroll
      for (int i = 0; i < kMine; ++i) {
        if (share + i * kShare >= kGroups) continue;
        const int token = (share + i * kShare) * kMhcTokens + lane / 4;
        const uint4 b = *reinterpret_cast<const uint4*>(tile + token * kTokenBytes + part / 2 * 512 + part % 2 * 256 +
                                                        piece * 64 + lane % 4 * 16);
        sums[i].add(a[0], b.x, b.y);
        sums[i].add(a[1], b.z, b.w);
      }
    }
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const int group = share + i * kShare;
      if (group < kGroups) sums[i].store(parts + (part * kTile + group * kMhcTokens) * kMhcSumStride, lane);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < tokens * (kMixes + 1); i += kMhcThreads) {
      const int token = i / (kMixes + 1), mix = i % (kMixes + 1), at = mix < kMixes ? mix : kMhcSquare;
      partial_of(g, start + token, block)[at] =
          merge_parts<kParts>(parts + token * kMhcSumStride + at, kTile * kMhcSumStride, g.reversed);
    }
    __syncthreads();
  }
}

// A token's partial sums of one mix.
__device__ inline float merge_partials(const MhcLaunch& g, const float* from) {
  if (g.group == 1) return merge_blocks(from, g.parts, g.partial_step, g.reversed);
  float total = 0.0f;
  for (int first = 0; first < g.parts; first += g.group) {
    const float sum = merge_blocks(from + first * g.partial_step, g.group, g.partial_step, false);
    total = first == 0 ? sum : __fadd_rn(total, sum);
  }
  return total;
}

// Everything behind the partial sums, for batches of up to eight tokens: first a warp a token for the coefficients,
// then all warps but the last for one token after the other, and the last one for Sinkhorn of all of them. kStreams 1:
// the streams are x. The blocks of the reduction go round the warps, kEach a turn. kTurns: of a token, all of whose u
// stay in registers; 0: any number, u goes to memory and comes back.
template <int kStreams, int kMixTiles, int kTurns>
__global__ void __launch_bounds__(kFinishThreads, 2)
    mhc_finish_kernel(const MhcLaunch g, const std::uint16_t* streams, std::int64_t row, std::int64_t stream_step,
                      int batch) {
  constexpr int kMixes = kMixTiles == 3 ? 24 : 4;
  extern __shared__ float squares[];  // [2][blocks]: a token's while the one before is read
  __shared__ float pre[kBatch][4], exponentials[kBatch][16];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool norm = g.norm_weight != nullptr;
  constexpr int kTurnBlocks = kWarps * kEach, kUnrolled = kTurns > 0 ? kTurns : 1;
  const int turns = kTurns > 0 ? kTurns : (g.blocks + kTurnBlocks - 1) / kTurnBlocks;
  for (std::int64_t start = static_cast<std::int64_t>(blockIdx.x) * batch; start < g.rows;
       start += static_cast<std::int64_t>(gridDim.x) * batch) {
    const int tokens = static_cast<int>(min(static_cast<std::int64_t>(batch), g.rows - start));
    if (warp < tokens) {
      const std::int64_t token = start + warp;
      const float sum = merge_partials(g, partial_of(g, token, 0) + min(lane, kMhcSquare));
      const float value =
          coefficients(g, token, sum, kMixes, lane, mix_scale(g, kMixes, lane), mix_base(g, kMixes, lane));
      if (lane < 4) {
        pre[warp][lane] = g.delayed ? carried_coefficient(g, token, lane) : value;
        if (g.delayed) store_fp32(g.pre_out, token, lane, 0, value);
      }
      if constexpr (kMixTiles == 3) {
        const float exponential = comb_exponential(value);
        if (lane >= 8 && lane < 24) exponentials[warp][lane - 8] = exponential;
      }
    }
    __syncthreads();
    if (warp == kWarps) {
      if constexpr (kMixTiles == 3) {
        MhcComb c;
        const int mine = lane / 4, j = lane % 4;
        if (mine < tokens) {
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            c.row[k] = exponentials[mine][4 * j + k];
            c.column[k] = exponentials[mine][4 * k + j];
          }
        }
        __syncwarp();
        sinkhorn(g, c);
        if (mine < tokens) {
#pragma unroll
          for (int k = 0; k < 4; ++k) store_fp32(g.comb_out, start + mine, j, k, c.row[k]);
        }
      }
    } else {
      uint4 columns[kEach][kStreams];  // of the next turn, on their way
      const auto load = [&](int t, int first) {
#pragma unroll
        for (int e = 0; e < kEach; ++e) {
          const int h = (first + e * kWarps) * kMhcColumns + lane * 8;
#pragma unroll
          for (int i = 0; i < kStreams; ++i) {
            columns[e][i] = h < g.hidden ? load_columns(streams + (start + t) * row + i * stream_step + h, g.wide)
                                         : make_uint4(0, 0, 0, 0);
          }
        }
      };
      load(0, warp);
      for (int t = 0; t < tokens; ++t) {
        const std::int64_t token = start + t;
        const float k[4] = {pre[t][0], pre[t][1], pre[t][2], pre[t][3]};
        float* const square = squares + t % 2 * g.blocks;
        std::uint16_t* const out = g.out + token * g.out_row;
        uint4 u[kUnrolled][kEach];
#pragma unroll kUnrolled
        for (int turn = 0; turn < turns; ++turn) {
          uint4(&mine)[kEach] = u[kTurns > 0 ? turn : 0];
          const int first = turn * kTurnBlocks + warp;
          float sums[kEach];
#pragma unroll
          for (int e = 0; e < kEach; ++e) {
            const int h = (first + e * kWarps) * kMhcColumns + lane * 8;
            mine[e] = collapse_block<kStreams>(g, columns[e], token, h, g.hidden, k, g.wide, &sums[e]);
            if (h < g.hidden && (!norm || kTurns == 0)) store_columns(out + h, mine[e], g.wide);
          }
          if (turn + 1 < turns) {
            load(t, first + kTurnBlocks);
          } else if (t + 1 < tokens) {
            load(t + 1, warp);
          }
          if (norm) {
            butterflies(sums);
#pragma unroll
            for (int e = 0; e < kEach; ++e)
              if (lane == 0 && first + e * kWarps < g.blocks) square[first + e * kWarps] = sums[e];
          }
        }
        if (!norm) continue;
        named_sync(1, 32 * kWarps);
        const float factor = norm_factor(g, merge_blocks(square, g.blocks, 1, g.reversed));
#pragma unroll kUnrolled
        for (int turn = 0; turn < turns; ++turn) {
#pragma unroll
          for (int e = 0; e < kEach; ++e) {
            const int h = ((turn * kEach + e) * kWarps + warp) * kMhcColumns + lane * 8;
            if (h >= g.hidden) continue;
            // What was stored, this lane stored.
            uint4 v = u[kTurns > 0 ? turn : 0][e];
            if (kTurns == 0) v = g.wide ? *reinterpret_cast<const uint4*>(out + h) : load_columns(out + h, false);
            store_columns(out + h, norm_columns(v, factor, load_columns(g.norm_weight + h, g.wide)), g.wide);
          }
        }
      }
    }
    __syncthreads();
  }
}

// A warp per token and 256 columns.
__global__ void __launch_bounds__(kMhcThreads) mhc_post_kernel(const MhcLaunch g) {
  const int lane = threadIdx.x % 32;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kWarps;
  const std::int64_t units = g.rows * g.blocks;
  for (std::int64_t unit = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; unit < units;
       unit += step) {
    const std::int64_t token = unit / g.blocks;
    const int block = static_cast<int>(unit % g.blocks);
    MhcColumns<4, true> columns;
    columns.load(g, token, block, lane, g.wide);
    const float mine = lane < 20 ? post_coefficient(g, token, lane) : 0.0f;
    __align__(16) float coefficient[20];
#pragma unroll
    for (int i = 0; i < 20; ++i) coefficient[i] = __shfl_sync(kAllLanes, mine, i);
    make_block<4, true>(g, columns, token, block, lane, coefficient, g.wide, g.reversed);
  }
}

__global__ void reciprocal_kernel(unsigned long long* differing) {
  const std::uint32_t significand = blockIdx.x * blockDim.x + threadIdx.x;
  for (const std::uint32_t exponent :
       {1u + 127 - 100, 127u - 60, 127u - 20, 126u, 127u, 128u, 129u, 127u + 60, 127u + 99}) {
    const float v = __uint_as_float(exponent << 23 | significand);
    if (__float_as_uint(reciprocal<true>(v)) != __float_as_uint(__frcp_rn(v))) atomicAdd(differing, 1ull);
  }
}

template <bool kPost, int kStreams, int kMixTiles>
cudaError_t product(const MhcLaunch& g, int processors, cudaStream_t stream) {
  const std::int64_t tiles = (g.rows + kTile - 1) / kTile;
  const std::int64_t most = 4 * static_cast<std::int64_t>(processors) / g.blocks + 1;
  const dim3 grid(static_cast<unsigned>(tiles < most ? tiles : most), static_cast<unsigned>(g.blocks));
  mhc_product_kernel<kPost, kStreams, kMixTiles><<<grid, kMhcThreads, 0, stream>>>(g);
  return cudaGetLastError();
}

template <int kStreams, int kMixTiles>
cudaError_t finish(const MhcLaunch& g, int processors, cudaStream_t stream) {
  // Batches where there are tokens for two thread blocks on every processor.
  const std::int64_t share = g.rows / (2 * static_cast<std::int64_t>(processors));
  const int batch = static_cast<int>(share < 1 ? 1 : share > kBatch ? kBatch : share);
  const std::int64_t batches = (g.rows + batch - 1) / batch, most = 8 * static_cast<std::int64_t>(processors);
  const bool post = g.x != nullptr;
  const int turns = (g.blocks + kWarps * kEach - 1) / (kWarps * kEach);
  const auto kernel = turns == 1   ? mhc_finish_kernel<kStreams, kMixTiles, 1>
                      : turns == 2 ? mhc_finish_kernel<kStreams, kMixTiles, 2>
                                   : mhc_finish_kernel<kStreams, kMixTiles, 0>;
  kernel<<<static_cast<unsigned>(batches < most ? batches : most), kFinishThreads,
           2 * static_cast<std::size_t>(g.blocks) * sizeof(float), stream>>>(
      g, post ? g.residual_out : g.residual, post ? g.residual_out_row : g.residual_row,
      post ? g.residual_out_stream : g.residual_stream, batch);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_mhc_product(MhcKernelForm form, const MhcLaunch& g, int processors, cudaStream_t stream) {
  switch (form) {
    case MhcKernelForm::pre:
      return product<false, 4, 3>(g, processors, stream);
    case MhcKernelForm::broadcast:
      return product<false, 1, 3>(g, processors, stream);
    case MhcKernelForm::fused:
      return product<true, 4, 3>(g, processors, stream);
    case MhcKernelForm::head:
      return product<false, 4, 1>(g, processors, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t launch_mhc_finish(MhcKernelForm form, const MhcLaunch& g, int processors, cudaStream_t stream) {
  if (form == MhcKernelForm::broadcast) return finish<1, 3>(g, processors, stream);
  return form == MhcKernelForm::head ? finish<4, 1>(g, processors, stream) : finish<4, 3>(g, processors, stream);
}

cudaError_t launch_mhc_reciprocals(unsigned long long* differing, cudaStream_t stream) {
  reciprocal_kernel<<<1 << 15, 256, 0, stream>>>(differing);
  return cudaGetLastError();
}

cudaError_t launch_mhc_post(const MhcLaunch& g, int processors, cudaStream_t stream) {
  const std::int64_t units = (g.rows * g.blocks + kWarps - 1) / kWarps,
                     most = 8 * static_cast<std::int64_t>(processors);
  mhc_post_kernel<<<static_cast<unsigned>(units < most ? units : most), kMhcThreads, 0, stream>>>(g);
  return cudaGetLastError();
}

}  // namespace batchproof::cuda
