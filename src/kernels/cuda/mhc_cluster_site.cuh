// SPDX-License-Identifier: Apache-2.0
//
// What the roles of the mHC cluster kernel (mhc_cluster_sm90.cu) share: the instructions by which they pass things on,
// and where a thread block's barriers and buffers are.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_MHC_CLUSTER_SITE_CUH_
#define BATCHPROOF_SRC_KERNELS_CUDA_MHC_CLUSTER_SITE_CUH_

#include "src/kernels/cuda/mhc_steps.cuh"
#include "src/kernels/cuda/ptx.h"

namespace batchproof::cuda::cluster {

constexpr int kProductThreads = 32 * kMhcProductWarps;
constexpr int kPostedThreads = kProductThreads + 32 * kMhcRowWarps;
// Named barriers: among the product's warps, the parts are complete; from the row warps to the product's, a slot's
// streams are posted.
constexpr int kMerged = 1, kPosted = 2;
constexpr int kCoefficients = 24;  // of a token: post[4], comb[16], carried[4]

// ---- one instruction each ---------------------------------------------------------------------------------------

// A store to a thread block's shared memory; its barrier counts the bytes.
__device__ inline void send(std::uint32_t address, std::uint32_t barrier, float4 v) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
      "r"(__float_as_uint(v.x)), "r"(__float_as_uint(v.y)), "r"(__float_as_uint(v.z)), "r"(__float_as_uint(v.w)),
      "r"(barrier)
      : "memory");
}
// `bytes` of global memory, by the copy engine.
__device__ inline void copy_in(std::uint32_t to, const void* from, std::uint32_t bytes, std::uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
__device__ inline void copy_in(std::uint32_t to, const void* from, std::uint32_t bytes, std::uint32_t barrier,
                               std::uint64_t hint) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(hint)
      : "memory");
}

__device__ inline void copy_to_global(void* to, std::uint32_t from, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}
// Into the L2 alone: nobody reads an old value through it, so it may run ahead of the grid before this one.
__device__ inline void prefetch_line(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at) : "memory"); }
__device__ inline void prefetch_row(const void* from, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
// Read once by this thread block: no line of the L1 for it.
__device__ inline uint4 load_once(const std::uint16_t* at) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
}
// One lane of the warp, in a way that tells the compiler that there is only one: its copies need no loop over lanes.
__device__ inline bool one_lane() {
  std::uint32_t mine;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xFFFFFFFF;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(mine));
  return mine != 0;
}
// Four bytes, asynchronously.
__device__ inline void copy_in_4(std::uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
// This thread arrives at the barrier once its copies of four bytes have come.
__device__ inline void copies_arrive(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

// Bytes of a token's sums of one block of the reduction that are sent: mixes, and four floats with the square sum.
template <int kMixTiles>
constexpr int kSumBytes = kMixTiles == 3 ? 112 : 32;
__device__ inline float4 add_fours(float4 a, float4 b) {
  return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
}

// ---- what every warp of a thread block knows --------------------------------------------------------------------

// A place in a ring and the phase of its barrier.
struct Turn {
  int at = 0;
  std::uint32_t parity = 0;
  __device__ void next(int size) {
    if (++at == size) at = 0, parity ^= 1;
  }
};

struct Site {
  const MhcLaunch& g;
  const MhcShape& s;
  const MhcLayout& l;
  char* shared;
  std::uint32_t at;  // of `shared`
  int rank, first_block, local;
  int first_tile, tiles;  // of this cluster

  __device__ std::uint32_t barrier(int i) const { return at + static_cast<std::uint32_t>(l.barriers + i * 8); }
  __device__ std::uint32_t full(int slot) const { return barrier(slot); }
  __device__ std::uint32_t collapsed(int slot) const { return barrier(s.slots + slot); }
  __device__ std::uint32_t posted(int slot) const { return barrier(2 * s.slots + slot); }
  __device__ std::uint32_t pre(int turn) const { return barrier(3 * s.slots + turn); }
  __device__ std::uint32_t norm(int turn) const { return barrier(3 * s.slots + s.ring + turn); }
  __device__ std::uint32_t weights() const { return barrier(3 * s.slots + 2 * s.ring); }
  __device__ std::uint32_t norm_weight() const { return barrier(3 * s.slots + 2 * s.ring + 1); }
  __device__ std::uint32_t taken() const { return barrier(3 * s.slots + 2 * s.ring + 2); }
  __device__ std::uint32_t sums(int turn) const { return barrier(3 * s.slots + 2 * s.ring + 3 + turn); }

  __device__ std::int64_t row(int tile) const {
    return (static_cast<std::int64_t>(tile) * s.clusters + first_tile) * kMhcTokens;
  }
  __device__ int tokens(int tile) const {
    return static_cast<int>(min(static_cast<std::int64_t>(kMhcTokens), g.rows - row(tile)));
  }
  // Tiles that have a token of this place: all, but for the last one.
  __device__ int tiles_of(int token) const { return token < tokens(tiles - 1) ? tiles : tiles - 1; }
  __device__ std::int64_t row_step() const { return static_cast<std::int64_t>(s.clusters) * kMhcTokens; }
  // Bytes of a stream's columns that this thread block has.
  __device__ std::uint32_t row_bytes() const {
    return static_cast<std::uint32_t>(min(local * 512, (g.hidden - first_block * kMhcColumns) * 2));
  }
  // Tokens that this thread block owns: of all tokens of its cluster in turn, every cluster-th.
  __device__ int owned() const {
    const int all = (tiles - 1) * kMhcTokens + tokens(tiles - 1);
    return all > rank ? (all - rank + s.cluster - 1) / s.cluster : 0;
  }
  __device__ float* exchange(int place) const {
    return reinterpret_cast<float*>(shared + l.exchange) + place * g.blocks * kMhcSumStride;
  }
};

template <int kStreams, int kLocal>
__device__ inline char* slot_of(const Site& o, int slot) {
  return o.shared + o.l.slots + slot * kMhcTokens * mhc_token_bytes(kStreams, kLocal);
}

// One warp's share of the barriers that this launch needs, by one lane.
//   coefficients: they come with the tiles    stores: the streams are stored
__device__ inline void init_barriers(const Site& o, int warp, bool coefficients, bool stores) {
  constexpr int kWarps = kMhcClusterThreads / 32;
  static_assert(kMhcSlotsMost < kWarps);
  if (warp < min(o.s.slots, o.tiles)) {
    barrier_init(o.full(warp), coefficients ? 33 : 1);
    barrier_init(o.collapsed(warp), kMhcRowWarps + (stores ? 1 : 0));
    barrier_init(o.posted(warp), kMhcRowWarps);
  }
  if (warp < min(o.s.ring, o.tiles)) {
    barrier_init(o.pre(warp), 1);
    barrier_init(o.norm(warp), 1);
  }
#pragma unroll 1
  for (int i = warp; i < min(o.s.owned_barriers, o.owned()); i += kWarps) barrier_init(o.sums(i), 1);
  if (warp == kWarps - 1) barrier_init(o.weights(), 32 * kMhcRowWarps);
  if (warp == kWarps - 2) barrier_init(o.taken(), kProductThreads);
  if (warp == kWarps - 3) barrier_init(o.norm_weight(), 32);
  barrier_init_fence();
}

// The lines of the weights and of the first tile, while everything else is made ready. 128 bytes each.
template <int kStreams, int kMixTiles, int kLocal>
__device__ inline void prefetch_first(const Site& o) {
  const MhcLaunch& g = o.g;
  constexpr int kMixes = kMixTiles == 3 ? 24 : 4;
  constexpr int kWeightLines = kLocal * 8, kTileLines = kLocal * 4;  // of a row and a stream
  const int column = o.first_block * kMhcColumns, limit = min(g.hidden, column + o.local * kMhcColumns);
#pragma unroll 1
  for (int i = threadIdx.x; i < kMixes * kStreams * kWeightLines; i += kMhcClusterThreads) {
    const int h = column + i % kWeightLines * 32, stream = i / kWeightLines % kStreams;
    if (h < limit)
      prefetch_line(g.fn + i / (kWeightLines * kStreams) * g.fn_row + static_cast<std::int64_t>(stream) * g.hidden + h);
  }
  for (int i = threadIdx.x; i < kMhcTokens * kStreams * kTileLines; i += kMhcClusterThreads) {
    const int h = column + i % kTileLines * 64, stream = i / kTileLines % kStreams, token = i / (kTileLines * kStreams);
    if (h < limit && token < o.tokens(0))
      prefetch_line(g.residual + (o.row(0) + token) * g.residual_row + stream * g.residual_stream + h);
  }
}

}  // namespace batchproof::cuda::cluster

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_MHC_CLUSTER_SITE_CUH_
