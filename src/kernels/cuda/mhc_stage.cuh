// SPDX-License-Identifier: Apache-2.0
//
// A stage: one block of the reduction of a few tokens, four streams, in shared memory as the copy engine lays it out
// (map_streams in mhc.cu.cc): rows of 128 bytes are 64 columns of a stream; four of them are a token's, tokens lie
// behind one another within a stream. 16 bytes of a row are swizzled with the row's number.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_MHC_STAGE_CUH_
#define BATCHPROOF_SRC_KERNELS_CUDA_MHC_STAGE_CUH_

#include "src/kernels/cuda/mhc_cluster_site.cuh"
#include "src/kernels/cuda/mhc_product_plan.h"

namespace batchproof::cuda::stage {

constexpr int kTokens = kStageTokens, kTiles = kTokens / kMhcTokens;
constexpr int kStreamBytes = kTokens * 4 * 128;  // from a stream to the next

// Stages that are asked for before the weights are in registers; more of them would be in the weights' way.
constexpr int kEarly = 2;

// What a thread block has: a block of the reduction (blockIdx.x) and a share of the stages (blockIdx.y), one after the
// other.
struct Walk {
  int block;
  int first, stages;  // of the first stage's place among all
  __device__ std::int64_t row(int i) const { return static_cast<std::int64_t>(first + i) * kTokens; }
};
__device__ __forceinline__ Walk walk_of(std::int64_t rows) {
  const std::int64_t all = (rows + kTokens - 1) / kTokens;
  Walk w;
  w.block = static_cast<int>(blockIdx.x);
  w.first = static_cast<int>(all * blockIdx.y / gridDim.y);
  w.stages = static_cast<int>(all * (blockIdx.y + 1) / gridDim.y) - w.first;
  return w;
}

// A thread block's memory, at a multiple of 1024 as the swizzle needs it: kAlignment more bytes are asked for.
constexpr int kAlignment = 1024;
template <class Memory>
__device__ __forceinline__ Memory& aligned(char* memory) {
  return *reinterpret_cast<Memory*>(memory + (kAlignment - shared_address(memory) % kAlignment) % kAlignment);
}

// Where eight columns of a token are: those from 64 * group + 8 * eight on.
__device__ __forceinline__ int offset_of(int stream, int token, int group, int eight) {
  return stream * kStreamBytes + (token * 4 + group) * 128 + (eight ^ (token % 2 * 4 + group)) * 16;
}

// A part's weights as the tensor core takes them.
using PartWeights = std::uint32_t[8][3][4];

// On their way from memory: loads that the compiler leaves where they are.
struct RawPart {
  MhcWeights piece[4][3];

  __device__ __forceinline__ void ask(const MhcLaunch& g, int block, int part, int lane) {
    const float* const from = g.fn + lane / 4 * g.fn_row + static_cast<std::int64_t>(part / 2) * g.hidden +
                              block * kMhcColumns + part % 2 * 128 + lane % 4 * 8;
    const int left = g.hidden - (block * kMhcColumns + part % 2 * 128 + lane % 4 * 8);
#pragma unroll
    for (int p = 0; p < 4; ++p) {
#pragma unroll
      for (int j = 0; j < 3; ++j) {
        piece[p][j].low = piece[p][j].high = make_float4(0, 0, 0, 0);
        if (p * 32 < left) {
          piece[p][j].low = load_now(from + 8 * j * g.fn_row + p * 32);
          piece[p][j].high = load_now(from + 8 * j * g.fn_row + p * 32 + 4);
        }
      }
    }
  }
  __device__ __forceinline__ void split(PartWeights& a) const {
#pragma unroll
    for (int p = 0; p < 4; ++p) {
#pragma unroll
      for (int j = 0; j < 3; ++j) split_weights(piece[p][j], a[2 * p][j], a[2 * p + 1][j]);
    }
  }

 private:
  static __device__ __forceinline__ float4 load_now(const float* at) {
    float4 v;
    asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(at));
    return v;
  }
};

// The sums of a part and eight tokens of the stage.
__device__ __forceinline__ MhcSums<3> multiply_tile(const PartWeights& a, const char* at, int part, int tile,
                                                    int lane) {
  const int token = lane / 4, q = lane % 4;
  const char* const from = at + tile * kMhcTokens * 512;
  uint4 v0 = *reinterpret_cast<const uint4*>(from + offset_of(part / 2, token, part % 2 * 2, q));
  uint4 v1 = *reinterpret_cast<const uint4*>(from + offset_of(part / 2, token, part % 2 * 2, 4 + q));
  uint4 v2 = *reinterpret_cast<const uint4*>(from + offset_of(part / 2, token, part % 2 * 2 + 1, q));
  uint4 v3 = *reinterpret_cast<const uint4*>(from + offset_of(part / 2, token, part % 2 * 2 + 1, 4 + q));
  MhcSums<3> sums;
  sums.clear();
  sums.add(a[0], v0.x, v0.y);
  sums.add(a[1], v0.z, v0.w);
  sums.add(a[2], v1.x, v1.y);
  sums.add(a[3], v1.z, v1.w);
  sums.add(a[4], v2.x, v2.y);
  sums.add(a[5], v2.z, v2.w);
  sums.add(a[6], v3.x, v3.y);
  sums.add(a[7], v3.z, v3.w);
  return sums;
}

}  // namespace batchproof::cuda::stage

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_MHC_STAGE_CUH_
