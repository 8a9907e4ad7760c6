// SPDX-License-Identifier: Apache-2.0
//
// The roles of the mHC kernel for many rows that take a stage from its streams to its sums.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_MHC_RELAY_SUMS_CUH_
#define BATCHPROOF_SRC_KERNELS_CUDA_MHC_RELAY_SUMS_CUH_

#include "src/kernels/cuda/mhc_relay_finish.cuh"

namespace batchproof::cuda::relay {

// A warp calls it, one lane of it works. The instructions that the copy engine takes are a warp's, not a lane's: where
// other lanes went on beside the one that issues them, what they hold would be issued too.
//
// Without post a slot is free when it is multiplied; with post when it is stored as well.
template <bool kPost>
__device__ __forceinline__ void bring_stages(const Share& w, Memory<kPost>& m, const MhcRelayMaps& maps, int ahead) {
  using P = Plan<kPost>;
  const bool chosen = cluster::one_lane();
  const auto bring_streams = [&](int i, int slot) {
    const std::uint32_t full = shared_address(&m.full[slot]);
    barrier_expect_bytes(full, 4 * kStreamBytes);
    // Without post these lines are read again, by whoever finishes the token.
    tensor_load(shared_address(m.stage[slot]), &maps.streams, 0, w.block * 4, static_cast<int>(w.row(i)), 0, full,
                kPost ? kEvictFirst : kEvictNormal);
  };
  const auto bring_x = [&](int i, int slot) {
    const std::uint32_t full = shared_address(&m.x_full[slot]);
    barrier_expect_bytes(full, kTokens * kMhcColumns * 2);
    tensor_load(shared_address(m.x[slot]), &maps.x, w.block * kMhcColumns, static_cast<int>(w.row(i)), 0, full,
                kEvictFirst);
  };
  static_assert(P::kXSlots == kEarly);
  if (chosen) {
    for (int i = 0; i < min(kEarly, w.stages); ++i) {
      bring_streams(i, i);
      if (kPost) bring_x(i, i);
    }
  }
  __syncwarp();
  named_sync(kWeighed, 32 * (P::kProducts + 1));
  if (!chosen) return;
  for (int i = kEarly; i < min(kSlots, w.stages); ++i) bring_streams(i, i);
  cluster::Turn slot, x, written;
  for (int i = 0; i < w.stages; ++i, slot.next(kSlots), x.next(P::kXSlots), written.next(kStored)) {
    if constexpr (kPost) {
      barrier_wait(shared_address(&m.posted[slot.at]), slot.parity);
      if (i + P::kXSlots < w.stages) bring_x(i + P::kXSlots, x.at);
      tensor_store(&maps.streams_out, 0, w.block * 4, static_cast<int>(w.row(i)), 0, shared_address(m.stage[slot.at]));
      bulk_commit();
      bulk_wait_read<0>();
    }
    if (i + kSlots < w.stages) {
      barrier_wait(shared_address(&m.empty[slot.at]), slot.parity);
      // Not further ahead than the L2 holds.
      while (atomicAdd(&m.next_stage, 0) + ahead <= i + kSlots) __nanosleep(40);
      bring_streams(i + kSlots, slot.at);
    }
    if constexpr (kPost) {
      bulk_wait<0>();
      barrier_wait(shared_address(&m.said[written.at]), written.parity ^ 1);  // of the stage that had this turn before
      barrier_arrive(shared_address(&m.written[written.at]));
    }
  }
}

// A warp has every fourth token of a stage; lane c < 20 brings coefficient c of them, a stage ahead.
__device__ __forceinline__ void post_stages(const MhcLaunch& g, const Share& w, Memory<true>& m, int warp, int lane) {
  using P = Plan<true>;
  constexpr int kMine = kTokens / kPosts;
  const bool inside = w.block * kMhcColumns + lane * 8 < g.hidden;
  const int first = lane < 4 ? lane : lane / 4 - 1, second = lane < 4 ? 0 : lane % 4;
  const MhcDeviceMatrix& from = lane < 4 ? g.post_in : g.comb_in;
  const float* const source = from.data + first * from.first + second * from.second;
  float next[kMine];
  const auto bring = [&](int i) {
#pragma unroll
    for (int e = 0; e < kMine; ++e) {
      const std::int64_t row = w.row(i) + e * kPosts + warp;
      next[e] = lane < kPostFloats && row < w.rows ? __ldg(source + row * from.row) : 0.0f;
    }
  };
  bring(0);
  cluster::Turn slot, x;
  for (int i = 0; i < w.stages; ++i, slot.next(kSlots), x.next(P::kXSlots)) {
    __syncwarp();  // the stage before is read
#pragma unroll
    for (int e = 0; e < kMine; ++e)
      if (lane < kPostFloats) m.post[e * kPosts + warp][lane] = next[e];
    __syncwarp();
    if (i + 1 < w.stages) bring(i + 1);
    barrier_wait(shared_address(&m.full[slot.at]), slot.parity);
    barrier_wait(shared_address(&m.x_full[x.at]), x.parity);
#pragma unroll 1
    for (int t = warp; t < kTokens; t += kPosts) {
      MhcColumns<4, true> columns;
      columns.x = reinterpret_cast<const uint4*>(m.x[x.at] + t * kMhcColumns)[lane];
      char* const at = m.stage[slot.at] + offset_of(0, t, lane / 8, lane % 8);
#pragma unroll
      for (int j = 0; j < 4; ++j) columns.stream[j] = *reinterpret_cast<const uint4*>(at + j * kStreamBytes);
      float k[kPostFloats];
      load_post(m.post[t], k);
      apply_post(columns, k, false);
      if (not_finite<4>(columns.stream)) canonical_columns<4>(columns.stream);
#pragma unroll
      for (int j = 0; j < 4; ++j)  // coefficients may be infinite: 0 * inf is not 0
        *reinterpret_cast<uint4*>(at + j * kStreamBytes) = inside ? columns.stream[j] : make_uint4(0, 0, 0, 0);
    }
    fence_async_proxy();  // the copy engine stores them
    barrier_arrive(shared_address(&m.posted[slot.at]));
  }
}

// A stage's parts merge, to memory: four sums of a token a thread.
template <bool kPost>
__device__ __forceinline__ void merge_stage(const MhcLaunch& g, const Share& w, const Memory<kPost>& m, int i, int k) {
  static_assert(kMergers * 32 == kTokens * kSumFours);
  const int t = k / kSumFours, four = k % kSumFours;
  const float* const from = m.sums[0] + t * kMhcSumStride + min(four * 4, kMhcSquare);
  float4 total = *reinterpret_cast<const float4*>(from);
#pragma unroll
  for (int p = 1; p < kProductParts; ++p)
    total = cluster::add_fours(total, *reinterpret_cast<const float4*>(from + p * kTokens * kMhcSumStride));
  if (four * 4 >= kMhcSquare) total.y = total.z = total.w = 0.0f;  // padding
  const std::int64_t row = w.row(i) + t;
  if (row < w.rows)
    *reinterpret_cast<float4*>(g.partial + (row * w.blocks + w.block) * kRelaySumFloats + four * 4) = total;
}

template <bool kPost>
__device__ __forceinline__ void multiply_stages(const MhcLaunch& g, const Share& w, Memory<kPost>& m, int warp,
                                                int lane) {
  using P = Plan<kPost>;
  PartWeights a[P::kMine];
  {
    RawPart raw[P::kMine];
#pragma unroll
    for (int p = 0; p < P::kMine; ++p) raw[p].ask(g, w.block, warp * P::kMine + p, lane);
#pragma unroll
    for (int p = 0; p < P::kMine; ++p) raw[p].split(a[p]);
  }
  named_arrive(kWeighed, 32 * (P::kProducts + 1));
  cluster::Turn slot, stored, u;
  int next = P::kProductNorms && g.norm_weight != nullptr ? w.block : w.tokens();  // token to be normed
  const auto norm_next = [&] {
    norm_token<kPost>(g, w, m, next, u.at, m.factors[u.at], warp, lane);
    barrier_arrive(shared_address(&m.normed[u.at]));
    u.next(P::kNormSlots);
    next += w.blocks;
  };
  for (int i = 0; i < w.stages; ++i, slot.next(kSlots), stored.next(kStored)) {
    barrier_wait(shared_address(kPost ? &m.posted[slot.at] : &m.full[slot.at]), slot.parity);
#pragma unroll
    for (int p = 0; p < P::kMine; ++p) {
      const int part = warp * P::kMine + p;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const MhcSums<3> sums = multiply_tile(a[p], m.stage[slot.at], part, t, lane);
        if (p == 0 && t == 0 && i > 0) named_sync(kMerged, 32 * P::kProducts);
        sums.store(m.sums[part] + t * kMhcTokens * kMhcSumStride, lane);
      }
    }
    // Not before the sums are stored: an arrival overtakes loads from shared memory that are still under way.
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&m.empty[slot.at]));
    named_sync(kSummed, 32 * P::kProducts);
    // Four warps merge, of eight the one half and the other in turn.
    if (warp / kMergers == i % (P::kProducts / kMergers)) {
      barrier_wait(shared_address(&m.said[stored.at]), stored.parity ^ 1);
      merge_stage<kPost>(g, w, m, i, warp % kMergers * 32 + lane);
      __syncwarp();
      if (lane == 0) barrier_arrive(shared_address(&m.stored[stored.at]));
    }
    if constexpr (P::kProductNorms) {
      while (next < w.tokens() && barrier_test(shared_address(&m.collapsed[u.at]), u.parity)) norm_next();
    }
  }
  if constexpr (P::kProductNorms) {
    while (next < w.tokens()) {
      barrier_wait(shared_address(&m.collapsed[u.at]), u.parity);
      norm_next();
    }
  }
}

// Says of every stage that its sums, and its streams where they are written, are there. One lane.
template <bool kPost>
__device__ __forceinline__ void say_complete(const Share& w, Memory<kPost>& m, std::uint32_t* complete) {
  cluster::Turn turn;
  for (int i = 0; i < w.stages; ++i, turn.next(kStored)) {
    barrier_wait(shared_address(&m.stored[turn.at]), turn.parity);
    if constexpr (kPost) barrier_wait(shared_address(&m.written[turn.at]), turn.parity);
    fence_async_proxy_global();
    add_release(complete + w.first + i, 1);
    barrier_arrive(shared_address(&m.said[turn.at]));
  }
}

}  // namespace batchproof::cuda::relay

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_MHC_RELAY_SUMS_CUH_
