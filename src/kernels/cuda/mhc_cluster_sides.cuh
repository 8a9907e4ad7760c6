// SPDX-License-Identifier: Apache-2.0
//
// The side warps of the mHC cluster kernel: what brings tiles in, what stores the streams, and the owners of tokens.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_MHC_CLUSTER_SIDES_CUH_
#define BATCHPROOF_SRC_KERNELS_CUDA_MHC_CLUSTER_SIDES_CUH_

#include "src/kernels/cuda/mhc_cluster_site.cuh"

namespace batchproof::cuda::cluster {

// ---- tiles in, the norm's sums out ------------------------------------------------------------------------------

template <bool kPost, int kStreams, int kMixTiles, int kLocal>
__device__ __forceinline__ void bring_tiles(const Site& o, int lane) {
  const MhcLaunch& g = o.g;
  const int first_column = o.first_block * kMhcColumns;
  const std::uint32_t bytes = o.row_bytes();
  const bool norm = g.norm_weight != nullptr;
  // A lane's coefficient of row 0: post, comb, carried.
  const float* source = nullptr;
  std::int64_t source_row = 0;
  if (kPost && lane < 20) {
    const int first = lane < 4 ? lane : lane / 4 - 1, second = lane < 4 ? 0 : lane % 4;
    const MhcDeviceMatrix& m = lane < 4 ? g.post_in : g.comb_in;
    source = m.data + first * m.first + second * m.second;
    source_row = m.row;
  }
  if (g.delayed && g.carried.data != nullptr && lane >= 20 && lane < kCoefficients) {
    source = g.carried.data + (lane - 20) * g.carried.first;
    source_row = g.carried.row;
  }
  int place = 0;  // of the next tile's coefficients
  const auto bring = [&](int tile, int slot) {
    const int tokens = o.tokens(tile);
    if (one_lane()) {
      barrier_expect_bytes(o.full(slot), static_cast<std::uint32_t>(tokens * kStreams) * bytes);
      const std::uint16_t* from = g.residual + o.row(tile) * g.residual_row + first_column;
      std::uint32_t to = shared_address(slot_of<kStreams, kLocal>(o, slot));
      const std::uint16_t* x = kPost ? g.x + o.row(tile) * g.x_row + first_column : nullptr;
#pragma unroll 2
      for (int i = 0; i < tokens; ++i) {
#pragma unroll
        for (int j = 0; j < kStreams; ++j)
          copy_in(to + j * kLocal * 512, from + j * g.residual_stream, bytes, o.full(slot));
        if constexpr (kPost) {
          prefetch_row(x, bytes);
          x += g.x_row;
        }
        from += g.residual_row;
        to += mhc_token_bytes(kStreams, kLocal);
      }
    }
    if (kPost || g.delayed) {
      if (source != nullptr) {
        const float* from = source + o.row(tile) * source_row;
        std::uint32_t to =
            o.at + static_cast<std::uint32_t>(o.l.coefficients + (place * kMhcTokens * kCoefficients + lane) * 4);
        for (int i = 0; i < tokens; ++i, from += source_row, to += kCoefficients * 4) copy_in_4(to, from);
      }
      copies_arrive(o.full(slot));
      if (++place == o.s.ring) place = 0;
    }
  };
  for (int i = 0; i < min(o.s.slots, o.tiles); ++i) bring(i, i);
  for (int i = lane; i < min(o.s.ring, o.tiles); i += 32) {
    barrier_expect_bytes(o.pre(i), static_cast<std::uint32_t>(o.tokens(i) * 16));
    if (norm) barrier_expect_bytes(o.norm(i), static_cast<std::uint32_t>(g.blocks * kMhcTokens * 4));
  }
  cluster_wait();
  Turn slot, turn, before;  // before: the turn of the tile before
  for (int i = 0; i < o.tiles; ++i) {
    barrier_wait(o.collapsed(slot.at), slot.parity);
    if (lane == 0) {
      if (i + o.s.ring < o.tiles)
        barrier_expect_bytes(o.pre(turn.at), static_cast<std::uint32_t>(o.tokens(i + o.s.ring) * 16));
      // Every row warp that has collapsed this tile has done with the norm of the one before.
      if (norm && i > 0 && i - 1 + o.s.ring < o.tiles)
        barrier_expect_bytes(o.norm(before.at), static_cast<std::uint32_t>(g.blocks * kMhcTokens * 4));
    }
    if (norm) {
      const char* const from = o.shared + o.l.norm_out + slot.at * kLocal * kMhcTokens * 4;
      const std::uint32_t to =
          o.at + static_cast<std::uint32_t>(o.l.norm_in + (turn.at * g.blocks + o.first_block) * kMhcTokens * 4);
      const int fours = o.local * kMhcTokens / 4;
      for (int k = lane; k < o.s.cluster * fours; k += 32)
        send(cluster_address(to + k % fours * 16, k / fours), cluster_address(o.norm(turn.at), k / fours),
             reinterpret_cast<const float4*>(from)[k % fours]);
      __syncwarp();
    }
    if (i + o.s.slots < o.tiles) bring(i + o.s.slots, slot.at);
    before = turn;
    slot.next(o.s.slots);
    turn.next(o.s.ring);
  }
}

// ---- streams out ------------------------------------------------------------------------------------------------

// By the copy engine, which spreads in time what would be bursts of stores of all row warps.
template <bool kPost, int kStreams, int kLocal>
__device__ __forceinline__ void store_streams(const Site& o) {
  const MhcLaunch& g = o.g;
  Turn slot;
  for (int i = 0; i < o.tiles; ++i, slot.next(o.s.slots)) {
    barrier_wait(kPost ? o.posted(slot.at) : o.full(slot.at), slot.parity);
    if (one_lane()) {
      const int tokens = o.tokens(i);
      std::uint16_t* to = g.residual_out + o.row(i) * g.residual_out_row + o.first_block * kMhcColumns;
      std::uint32_t from = shared_address(slot_of<kStreams, kLocal>(o, slot.at));
#pragma unroll 2
      for (int t = 0; t < tokens; ++t) {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          copy_to_global(to + j * g.residual_out_stream, from + (kStreams == 4 ? j : 0) * kLocal * 512, o.row_bytes());
        to += g.residual_out_row;
        from += mhc_token_bytes(kStreams, kLocal);
      }
      bulk_commit();
      bulk_wait_read<0>();
      barrier_arrive(o.collapsed(slot.at));
    }
    __syncwarp();
  }
}

// ---- owned tokens -----------------------------------------------------------------------------------------------

template <int kMixTiles>
__device__ __forceinline__ void own_tokens(const Site& o, int warp, int lane) {
  const MhcLaunch& g = o.g;
  constexpr int kMixes = kMixTiles == 3 ? 24 : 4;
  const float scale = mix_scale(g, kMixes, lane), base = mix_base(g, kMixes, lane);
  const int owned = o.owned(), ring = o.s.ring, barriers = o.s.owned_barriers;
  for (int i = warp * 32 + lane; i < min(barriers, owned); i += kMhcOwnerWarps * 32)
    barrier_expect_bytes(o.sums(i), static_cast<std::uint32_t>(g.blocks * kSumBytes<kMixTiles>));
  if (warp == kMhcOwnerWarps - 1 && g.norm_weight != nullptr) {
    for (int b = 0; b < o.local; ++b) {
      const int h = (o.first_block + b) * kMhcColumns + lane * 8;
      reinterpret_cast<uint4*>(o.shared + o.l.norm_weight + b * 512)[lane] =
          h < g.hidden ? load_columns(g.norm_weight + h, true) : make_uint4(0, 0, 0, 0);
    }
    barrier_arrive(o.norm_weight());
  }
  cluster_wait();
  for (int first = warp * kMhcBatch; first < owned; first += kMhcOwnerWarps * kMhcBatch) {
    MhcComb comb;
    std::int64_t mine = -1;  // the token of this lane's four
#pragma unroll 1
    // The first time round once for nothing, with whatever the places hold: the code comes into the instruction cache
    // while there is nothing else to do.
    for (int t = first < kMhcOwnerWarps * kMhcBatch ? -1 : 0; t < kMhcBatch && first + t < owned; ++t) {
      const bool real = t >= 0;
      const int turn = first + max(t, 0), place = turn % o.s.owned_most;
      const int nth = turn * o.s.cluster + o.rank;  // of the cluster's tokens
      const int tile = nth / kMhcTokens, token = nth % kMhcTokens;
      const std::int64_t row = o.row(tile) + token;
      if (real) barrier_wait(o.sums(turn % barriers), static_cast<std::uint32_t>(turn / barriers & 1));
      const float sum = merge_blocks(o.exchange(place) + min(lane, kMhcSquare), g.blocks, kMhcSumStride, false);
      __syncwarp();
      if (real && lane == 0 && turn + barriers < owned)
        barrier_expect_bytes(o.sums(turn % barriers), static_cast<std::uint32_t>(g.blocks * kSumBytes<kMixTiles>));
      const float value = coefficients(g, row, sum, kMixes, lane, scale, base, real);
      float4 pre;
      pre.x = __shfl_sync(kAllLanes, value, 0);
      pre.y = __shfl_sync(kAllLanes, value, 1);
      pre.z = __shfl_sync(kAllLanes, value, 2);
      pre.w = __shfl_sync(kAllLanes, value, 3);
      if (real && lane < o.s.cluster)
        send(
            cluster_address(o.at + static_cast<std::uint32_t>(o.l.pre + (tile % ring * kMhcTokens + token) * 16), lane),
            cluster_address(o.pre(tile % ring), lane), pre);
      if (real && g.delayed && lane < 4) store_fp32(g.pre_out, row, lane, 0, value);
      if constexpr (kMixTiles == 3) {
        comb.take(comb_exponential(value), lane / 4 == t);
        if (lane / 4 == t) mine = row;
      }
    }
    if constexpr (kMixTiles == 3) {
      sinkhorn(g, comb);
      if (mine >= 0) {
#pragma unroll
        for (int k = 0; k < 4; ++k) store_fp32(g.comb_out, mine, lane % 4, k, comb.row[k]);
      }
    }
  }
}

}  // namespace batchproof::cuda::cluster

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_MHC_CLUSTER_SIDES_CUH_
