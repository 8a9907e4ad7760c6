// SPDX-License-Identifier: Apache-2.0
//
// The mHC operators without clusters (sm_80 and later): a kernel for the partial sums, one for the rest. The steps are
// those of mhc_steps.cuh, so the bytes are those of the cluster kernel on the same generation of tensor cores.
#include "src/kernels/cuda/mhc_steps.cuh"

namespace batchproof::cuda {
namespace {

constexpr int kTile = 16;  // tokens of a product's thread block
constexpr int kWarps = kMhcWarps;

__device__ inline float* partial_of(const MhcLaunch& g, std::int64_t token, int part) {
  return g.partial + (token * g.parts + part) * kMhcSumStride;
}

// post[4], comb[16] of one token.
__device__ inline float post_coefficient(const MhcLaunch& g, std::int64_t token, int c) {
  return c < 4 ? load_fp32(g.post_in, token, c, 0) : load_fp32(g.comb_in, token, (c - 4) / 4, (c - 4) % 4);
}

// blockIdx.y: the block of the reduction; tiles of 16 tokens over blockIdx.x.
template <bool kPost, int kStreams, int kMixTiles>
__global__ void __launch_bounds__(kMhcThreads) mhc_product_kernel(const MhcLaunch g) {
  constexpr int kTokenBytes = kStreams * 512 + 64;
  __shared__ __align__(16) char tile[kTile * kTokenBytes];
  __shared__ __align__(16) float parts[8 * kTile * kMhcSumStride];
  float* const coefficient = parts;  // read before the parts are written
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, block = static_cast<int>(blockIdx.y);
  for (std::int64_t start = static_cast<std::int64_t>(blockIdx.x) * kTile; start < g.rows;
       start += static_cast<std::int64_t>(gridDim.x) * kTile) {
    const int tokens = static_cast<int>(min(static_cast<std::int64_t>(kTile), g.rows - start));
    if constexpr (kPost) {
      for (int i = threadIdx.x; i < tokens * 20; i += kMhcThreads)
        coefficient[i] = post_coefficient(g, start + i / 20, i % 20);
    }
    __syncthreads();
    for (int token = warp; token < tokens; token += kWarps) {
      MhcColumns<kStreams, kPost> columns;
      columns.load(g, start + token, block, lane, g.wide);
      const float square = make_block<kStreams, kPost>(g, columns, start + token, block, lane, coefficient + token * 20,
                                                       tile + token * kTokenBytes, g.wide, g.reversed);
      if (lane == 0) partial_of(g, start + token, block)[kMhcSquare] = square;
    }
    MhcPart<kMixTiles, 1> weights;
    weights.load(g, kMixTiles == 3 ? 24 : 4, block, warp % (2 * kStreams), lane, g.wide);
    __syncthreads();
    product_block<kStreams, kMixTiles, 2>(
        g, block, weights, tile, kTokenBytes, 512, tokens, parts, g.wide, g.reversed, [] { __syncthreads(); },
        [&](int token, int mix, float sum) { partial_of(g, start + token, block)[mix] = sum; }, [] {});
    __syncthreads();
  }
}

// Everything behind the partial sums; a thread block per token. kStreams 1: the streams are x.
template <int kStreams, int kMixTiles>
__global__ void __launch_bounds__(kMhcThreads)
    mhc_finish_kernel(const MhcLaunch g, const std::uint16_t* streams, std::int64_t row, std::int64_t stream_step) {
  constexpr int kMixes = kMixTiles == 3 ? 24 : 4;
  extern __shared__ float squares[];  // [blocks]
  __shared__ float pre[4];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (std::int64_t token = blockIdx.x; token < g.rows; token += gridDim.x) {
    float value = 0.0f;
    if (warp == 0) {
      const float sum =
          merge_blocks(partial_of(g, token, 0) + min(lane, kMhcSquare), g.parts, kMhcSumStride, g.reversed);
      value = coefficients(g, token, sum, kMixes, lane);
      if (lane < 4) {
        pre[lane] = g.delayed ? carried_coefficient(g, token, lane) : value;
        if (g.delayed) store_fp32(g.pre_out, token, lane, 0, value);
      }
    }
    __syncthreads();
    if (kMixTiles == 3 && warp == 0) sinkhorn(g, token, value);
    for (int block = warp; block < g.blocks; block += kWarps) {
      const int h = block * kMhcColumns + lane * 8;
      uint4 columns[kStreams];
#pragma unroll
      for (int i = 0; i < kStreams; ++i) {
        columns[i] =
            h < g.hidden ? load_columns(streams + token * row + i * stream_step + h, g.wide) : make_uint4(0, 0, 0, 0);
      }
      float square;
      const uint4 u = collapse_block<kStreams>(g, columns, token, block, lane, pre, &square, g.wide);
      if (lane == 0 && g.norm_weight != nullptr) squares[block] = square;
      if (h < g.hidden) store_columns(g.out + token * g.out_row + h, u, g.wide);
    }
    __syncthreads();
    if (g.norm_weight != nullptr) {
      const float factor = norm_factor(g, merge_blocks(squares, g.blocks, 1, g.reversed));
      for (int block = warp; block < g.blocks; block += kWarps) {
        const int h = block * kMhcColumns + lane * 8;
        if (h >= g.hidden) continue;
        std::uint16_t* const at = g.out + token * g.out_row + h;  // this lane stored it
        uint4 u;
        if (g.wide) {
          u = *reinterpret_cast<const uint4*>(at);
        } else {
          u = load_columns(at, false);
        }
        store_columns(at, normed(u, factor, load_columns(g.norm_weight + h, g.wide)), g.wide);
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
    make_block<4, true>(g, columns, token, block, lane, coefficient, nullptr, g.wide, g.reversed);
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
  const std::int64_t most = 8 * static_cast<std::int64_t>(processors);
  const auto blocks = static_cast<unsigned>(g.rows < most ? g.rows : most);
  const bool post = g.x != nullptr;
  mhc_finish_kernel<kStreams, kMixTiles><<<blocks, kMhcThreads, static_cast<std::size_t>(g.blocks) * 4, stream>>>(
      g, post ? g.residual_out : g.residual, post ? g.residual_out_row : g.residual_row,
      post ? g.residual_out_stream : g.residual_stream);
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
