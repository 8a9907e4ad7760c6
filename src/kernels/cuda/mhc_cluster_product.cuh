// SPDX-License-Identifier: Apache-2.0
//
// The product warps of the mHC cluster kernel.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_MHC_CLUSTER_PRODUCT_CUH_
#define BATCHPROOF_SRC_KERNELS_CUDA_MHC_CLUSTER_PRODUCT_CUH_

#include "src/kernels/cuda/mhc_cluster_site.cuh"

namespace batchproof::cuda::cluster {

// Weights of one local block, split, as the tensor core takes them: a part's eight steps, of every step and eight rows
// 16 bytes a lane.
template <int kMixTiles>
__device__ inline char* weights_of(const Site& o, int part, int step, int lane) {
  return o.shared + (part * 8 + step) * kMixTiles * 512 + lane * 16;
}

// One part; kPieces of its four pieces at a time.
template <int kMixTiles, int kPieces>
__device__ __forceinline__ void split_part(const Site& o, int local, int part, int lane) {
  constexpr int kMixes = kMixTiles == 3 ? 24 : 4;
#pragma unroll 1
  for (int first_piece = 0; first_piece < 4; first_piece += kPieces) {
    MhcWeights raw[kPieces][kMixTiles];
#pragma unroll
    for (int p = 0; p < kPieces; ++p)
      load_piece<kMixTiles>(o.g, kMixes, o.first_block + local, part, first_piece + p, lane, true, raw[p]);
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
#pragma unroll
      for (int j = 0; j < kMixTiles; ++j) {
        std::uint32_t first[4], second[4];
        split_weights(raw[p][j], first, second);
        char* const to = weights_of<kMixTiles>(o, part, (first_piece + p) * 2, lane) + j * 512;
        *reinterpret_cast<uint4*>(to) = make_uint4(first[0], first[1], first[2], first[3]);
        *reinterpret_cast<uint4*>(to + kMixTiles * 512) = make_uint4(second[0], second[1], second[2], second[3]);
      }
    }
  }
}

template <bool kPost, int kStreams, int kMixTiles, int kLocal>
__device__ __forceinline__ void multiply(const Site& o, int warp, int lane) {
  const MhcLaunch& g = o.g;
  constexpr int kMixes = kMixTiles == 3 ? 24 : 4;
  constexpr int kParts = 2 * kStreams;
  constexpr int kMine = kStreams == 4 ? 2 : 1;  // parts of a warp
  constexpr int kFours = kMixes / 4 + 1;        // of a token's sums, the last with the square sum
  constexpr int kPartFloats = kMhcTokens * kMhcSumStride;
  const int thread = warp * 32 + lane;
  const bool active = warp * kMine < kParts;

  // The first block's weights go to registers by way of shared memory, which makes the code short; row warps help.
  if (active) split_part<kMixTiles, 4>(o, 0, warp * kMine, lane);
  __syncwarp();
  cluster_wait();

  float* const parts = reinterpret_cast<float*>(o.shared + o.l.parts);
  // What this thread merges and sends: four sums of a token and a block, to the token's owner.
  constexpr int kItems = kMhcTokens * kFours;
  static_assert(kLocal * kItems <= kProductThreads);
  const int block = thread / kItems, token = thread % kItems / kFours;
  const int column = thread % kFours < kFours - 1 ? thread % kFours * 4 : kMhcSquare;
  int owner = token % o.s.cluster, place = token / o.s.cluster % o.s.owned_most,
      turn = token / o.s.cluster % o.s.owned_barriers;
  const int merged = block < o.local ? o.tiles_of(token) : 0;

  std::uint32_t a[kMine][8][kMixTiles][4];
  barrier_wait(o.weights(), 0);
  if (active) {
#pragma unroll
    for (int m = 0; m < kMine; ++m) {
#pragma unroll
      for (int step = 0; step < 8; ++step)
        load_step<kMixTiles>(weights_of<kMixTiles>(o, warp * kMine + m, step, lane), a[m][step]);
    }
  }
  if constexpr (kLocal > 1) barrier_arrive(o.taken());

  Turn slot, buffer;
  for (int i = 0; i < o.tiles; ++i, slot.next(o.s.slots), buffer.next(2)) {
    if constexpr (kPost) {
      named_sync(kPosted + slot.at, kPostedThreads);
    } else {
      barrier_wait(o.full(slot.at), slot.parity);
      if constexpr (kLocal > 1) named_sync(kMerged, kProductThreads);  // the parts of the tile before are merged
    }
    float* const to = parts + (kLocal > 1 ? 0 : buffer.at * kParts * kPartFloats);
    const char* const columns = slot_of<kStreams, kLocal>(o, slot.at) + lane / 4 * mhc_token_bytes(kStreams, kLocal) +
                                (kStreams == 4 ? warp * kLocal * 512 : warp * 256) + lane % 4 * 16;
    // A part at a time: what it takes from shared memory is on its way ahead of its use, and registers are few.
    if (active) {
#pragma unroll
      for (int m = 0; m < kMine; ++m) {
        uint4 v[4];
#pragma unroll
        for (int p = 0; p < 4; ++p) v[p] = *reinterpret_cast<const uint4*>(columns + m * 256 + p * 64);
        MhcSums<kMixTiles> sums;
        sums.clear();
#pragma unroll
        for (int p = 0; p < 4; ++p) {
          sums.add(a[m][2 * p], v[p].x, v[p].y);
          sums.add(a[m][2 * p + 1], v[p].z, v[p].w);
        }
        sums.store(to + (warp * kMine + m) * kPartFloats, lane);
      }
    }
    if (kLocal > 1 && o.local > 1 && active) {
      if (i == 0) barrier_wait(o.weights(), 1);
#pragma unroll
      for (int m = 0; m < kMine; ++m) {
        std::uint32_t w[2][kMixTiles][4];
        load_step<kMixTiles>(weights_of<kMixTiles>(o, warp * kMine + m, 0, lane), w[0]);
        uint4 v = *reinterpret_cast<const uint4*>(columns + 512 + m * 256);
        MhcSums<kMixTiles> sums;
        sums.clear();
#pragma unroll
        for (int step = 0; step < 8; ++step) {
          uint4 next = v;
          if (step < 7)
            load_step<kMixTiles>(weights_of<kMixTiles>(o, warp * kMine + m, step + 1, lane), w[(step + 1) % 2]);
          if (step % 2 == 1 && step < 7)
            next = *reinterpret_cast<const uint4*>(columns + 512 + m * 256 + (step + 1) / 2 * 64);
          sums.add(w[step % 2], step % 2 == 0 ? v.x : v.z, step % 2 == 0 ? v.y : v.w);
          v = next;
        }
        sums.store(to + (kParts + warp * kMine + m) * kPartFloats, lane);
      }
    }
    // One block: who stores into a buffer has passed the barrier of the other one, so all have merged its last sums.
    named_sync(kMerged, kProductThreads);
    if (i < merged) {
      const float* const from = to + block * kParts * kPartFloats + token * kMhcSumStride + column;
      float4 total = *reinterpret_cast<const float4*>(from);
#pragma unroll
      for (int p = 1; p < kParts; ++p)
        total = add_fours(total, *reinterpret_cast<const float4*>(from + p * kPartFloats));
      const std::uint32_t home =
          o.at + static_cast<std::uint32_t>(o.l.exchange +
                                            ((place * g.blocks + o.first_block + block) * kMhcSumStride + column) * 4);
      send(cluster_address(home, owner), cluster_address(o.sums(turn), owner), total);
    }
    for (owner += kMhcTokens; owner >= o.s.cluster; owner -= o.s.cluster) {
      if (++place == o.s.owned_most) place = 0;
      if (++turn == o.s.owned_barriers) turn = 0;
    }
  }
}

}  // namespace batchproof::cuda::cluster

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_MHC_CLUSTER_PRODUCT_CUH_
