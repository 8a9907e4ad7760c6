// SPDX-License-Identifier: Apache-2.0
//
// Fast mode of the mHC operators, after the default dispatch of a public serving engine (ops/mhc/README.md): partial
// sums over splits of whole K blocks whose number follows processors and tokens, and a small FP32 kernel for few
// tokens. Not batch invariant: baseline and control. mhc_portable.cu does the rest.
#include "src/kernels/cuda/mhc_steps.cuh"

namespace batchproof::cuda {
namespace {

constexpr int kWarps = kMhcThreads / 32;
constexpr int kBlockColumns = 64;  // of a K block
constexpr int kTile = 64;          // tokens of a thread block

// Split s has K blocks / splits of them, the first ones one more.
__device__ inline int split_begin(int columns, int splits, int s) {
  const int blocks = (columns + kBlockColumns - 1) / kBlockColumns;
  return min(columns, (s * (blocks / splits) + min(s, blocks % splits)) * kBlockColumns);
}

// Tiles of 64 tokens over blockIdx.x, a warp per eight tokens; splits over blockIdx.y.
template <bool kBroadcast>
__global__ void __launch_bounds__(kMhcThreads)
    mhc_split_kernel(const MhcLaunch g, const std::uint16_t* streams, std::int64_t row, std::int64_t stream_step) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, q = lane % 4;
  const int columns = kBroadcast ? g.hidden : 4 * g.hidden;
  const int begin = split_begin(columns, g.parts, blockIdx.y), end = split_begin(columns, g.parts, blockIdx.y + 1);
  for (std::int64_t start = static_cast<std::int64_t>(blockIdx.x) * kTile + warp * 8; start < g.rows;
       start += static_cast<std::int64_t>(gridDim.x) * kTile) {
    const std::int64_t token = min(start + r, g.rows - 1);
    float sum[3][4] = {}, square = 0.0f;
    for (int k = begin; k < end; k += 32) {
      const int at = k + q * 8, stream = kBroadcast ? 0 : at / g.hidden, h = at - stream * g.hidden;
      const bool inside = at < end;
      const uint4 b =
          inside ? load_columns(streams + token * row + stream * stream_step + h, g.wide) : make_uint4(0, 0, 0, 0);
      if constexpr (kBroadcast) {  // the four streams are the embedding
        const uint4 columns_of[1] = {b};
        if (inside && start + r < g.rows && g.residual_out != nullptr)
          write_streams<1>(g, columns_of, token, h, g.wide);
      }
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        square = __fmaf_rn(bf16_low(word_of(b, w)), bf16_low(word_of(b, w)), square);
        square = __fmaf_rn(bf16_high(word_of(b, w)), bf16_high(word_of(b, w)), square);
      }
#pragma unroll
      for (int j = 0; j < 3; ++j) {
        MhcWeights weights;
        weights.load(g, 8 * j + r, at, inside, g.wide);
        std::uint32_t a[2][4];
        split_weights(weights, a[0], a[1]);
        mma_bf16(sum[j], a[0], b.x, b.y);
        mma_bf16(sum[j], a[1], b.z, b.w);
      }
    }
    square = __fadd_rn(square, __shfl_xor_sync(kAllLanes, square, 2));
    square = __fadd_rn(square, __shfl_xor_sync(kAllLanes, square, 1));
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const std::int64_t to = start + q * 2 + e;
      if (to >= g.rows) continue;
      float* const partial = g.partial + (to * g.parts + blockIdx.y) * kMhcSumStride;
#pragma unroll
      for (int j = 0; j < 3; ++j) partial[8 * j + r] = __fadd_rn(sum[j][e], sum[j][2 + e]);
    }
    if (q == 0 && start + r < g.rows)
      g.partial[((start + r) * g.parts + blockIdx.y) * kMhcSumStride + kMhcSquare] = square;
  }
}

// One token and one split of h in every stream per thread block: post unrounded, products and squares of it in FP32.
__global__ void __launch_bounds__(kMhcThreads) mhc_small_kernel(const MhcLaunch g) {
  __shared__ float sums[kWarps][kMhcSumStride];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const std::int64_t token = blockIdx.x;
  const int length = g.hidden / g.parts, begin = blockIdx.y * length;
  float k[20], sum[25] = {};
  for (int i = 0; i < 20; ++i)
    k[i] = i < 4 ? load_fp32(g.post_in, token, i, 0) : load_fp32(g.comb_in, token, (i - 4) / 4, (i - 4) % 4);
  for (int h = begin + threadIdx.x; h < begin + length; h += kMhcThreads) {
    const float x = bf16_low(g.x[token * g.x_row + h]);
    float in[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) in[i] = bf16_low(g.residual[token * g.residual_row + i * g.residual_stream + h]);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float o = __fmul_rn(k[j], x);
#pragma unroll
      for (int i = 0; i < 4; ++i) o = __fmaf_rn(k[4 + 4 * i + j], in[i], o);
      g.residual_out[token * g.residual_out_row + j * g.residual_out_stream + h] = bf16_code(o);
#pragma unroll
      for (int c = 0; c < 24; ++c)
        sum[c] = __fmaf_rn(g.fn[c * g.fn_row + static_cast<std::int64_t>(j) * g.hidden + h], o, sum[c]);
      sum[24] = __fmaf_rn(o, o, sum[24]);
    }
  }
  butterflies(sum);
#pragma unroll
  for (int c = 0; c < 25; ++c) {
    if (lane == 0) sums[warp][c] = sum[c];
  }
  __syncthreads();
  if (threadIdx.x < 25) {
    float total = sums[0][threadIdx.x];
    for (int w = 1; w < kWarps; ++w) total = __fadd_rn(total, sums[w][threadIdx.x]);
    g.partial[(token * g.parts + blockIdx.y) * kMhcSumStride + threadIdx.x] = total;
  }
}

}  // namespace

cudaError_t launch_mhc_split(MhcKernelForm form, const MhcLaunch& g, cudaStream_t stream) {
  const std::int64_t tiles = (g.rows + kTile - 1) / kTile;
  const dim3 grid(static_cast<unsigned>(tiles < 65535 ? tiles : 65535), static_cast<unsigned>(g.parts));
  if (form == MhcKernelForm::broadcast) {
    mhc_split_kernel<true><<<grid, kMhcThreads, 0, stream>>>(g, g.residual, g.residual_row, g.residual_stream);
  } else if (form == MhcKernelForm::fused) {
    mhc_split_kernel<false>
        <<<grid, kMhcThreads, 0, stream>>>(g, g.residual_out, g.residual_out_row, g.residual_out_stream);
  } else {
    mhc_split_kernel<false><<<grid, kMhcThreads, 0, stream>>>(g, g.residual, g.residual_row, g.residual_stream);
  }
  return cudaGetLastError();
}

cudaError_t launch_mhc_small(const MhcLaunch& g, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(g.rows), static_cast<unsigned>(g.parts));
  mhc_small_kernel<<<grid, kMhcThreads, 0, stream>>>(g);
  return cudaGetLastError();
}

}  // namespace batchproof::cuda
