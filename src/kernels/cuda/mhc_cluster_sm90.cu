// SPDX-License-Identifier: Apache-2.0
//
// An mHC operator as one launch that reads each token's streams once (sm_90a).
//
// A cluster works on tiles of eight tokens; each of its thread blocks has one or two blocks of the reduction, 256
// columns of every stream, and keeps several tiles in shared memory, each from its copy in to its collapse. The split
// weights of those columns stay on chip for the whole launch: a block's in the registers of four warps, a second one's
// in shared memory. What crosses between thread blocks is small: a token's 25 partial sums per block go to the token's
// owner, its four coefficients come back to all, the norm's partial sums go to all. They are sent by asynchronous
// copies that count their bytes at a barrier of the receiver; nobody waits for anything that was not sent to him.
//
//   product warps (4)  a tile's sums, from all eight tokens at once; to the owners
//   side warp (1)      tiles in as slots become free; the norm's sums to all
//   side warp (1)      posted streams to residual_out
//   side warps (2)     owned tokens: merge, coefficients to all; Sinkhorn for up to four tokens at once, a lane each
//   row warps (8)      one token of every tile each: post of tile i, norm of tile i - lag - 1, collapse of tile i - lag
//
// Rows are aligned and the order is the usual one; the portable kernels serve the rest, with the same bytes.
//
// What may be overwritten when: a tile's sums leave a thread block only after all its row warps have collapsed the tile
// that had the slot before, `slots` tiles ago. So coefficients of `slots` tiles may be under way, norm sums of one more
// (a tile's norm follows its collapse by one tile), and as many owned tokens as those tiles have.
#include "src/kernels/cuda/mhc_steps.cuh"
#include "src/kernels/cuda/ptx.h"

namespace batchproof::cuda {
namespace {

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
// A load that the compiler does not replace by a value that it has.
__device__ inline uint4 load_again(std::uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
  return v;
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

// ---- product ----------------------------------------------------------------------------------------------------

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

template <int kMixTiles>
__device__ inline void load_step(const char* from, std::uint32_t (&a)[kMixTiles][4]) {
#pragma unroll
  for (int j = 0; j < kMixTiles; ++j) {
    const uint4 four = *reinterpret_cast<const uint4*>(from + j * 512);
    a[j][0] = four.x, a[j][1] = four.y, a[j][2] = four.z, a[j][3] = four.w;
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

// ---- rows -------------------------------------------------------------------------------------------------------

template <bool kPost, int kStreams, int kMixTiles, int kLocal>
__device__ __forceinline__ void walk_rows(const Site& o, int token, int lane) {
  const MhcLaunch& g = o.g;
  const bool norm = g.norm_weight != nullptr;
  const int slots = o.s.slots, ring = o.s.ring, lag = o.s.lag;
  const int column = o.first_block * kMhcColumns + lane * 8;
  const int limit = min(g.hidden, (o.first_block + o.local) * kMhcColumns);  // of this thread block's columns
  const int mine = o.tiles_of(token);
  const std::int64_t first_row = o.row(0) + token, step = o.row_step();

  const float* const coefficients_at =
      reinterpret_cast<const float*>(o.shared + o.l.coefficients) + token * kCoefficients;
  constexpr int kPlace = kMhcTokens * kCoefficients;
  uint4 x[kPost ? kLocal : 1];  // of the next tile, on its way
  const std::uint16_t* next_x = kPost ? g.x + first_row * g.x_row + column : nullptr;
  const auto fetch = [&] {
    if constexpr (kPost) {
#pragma unroll
      for (int b = 0; b < kLocal; ++b)
        if (column + b * kMhcColumns < limit) x[b] = load_once(next_x + b * kMhcColumns);
      next_x += step * g.x_row;
    }
  };
  if (mine > 0) fetch();
  if (kStreams == 4 && token >= kMhcProductWarps)
    split_part<kMixTiles, 2>(o, 0, 2 * (token - kMhcProductWarps) + 1, lane);
  barrier_arrive(o.weights());
  cluster_wait();

  // Where the thread block's columns do not fill its blocks, those behind them are zero.
  const bool ragged = (o.first_block + kLocal) * kMhcColumns > limit;
  char* const slots_at = slot_of<kStreams, kLocal>(o, 0) + token * mhc_token_bytes(kStreams, kLocal);
  constexpr int kSlotBytes = kMhcTokens * mhc_token_bytes(kStreams, kLocal);
  std::uint16_t* out = g.out + first_row * g.out_row + column;
  uint4 u[kLocal];
  Turn post_slot, post_turn, collapse_slot, pre_turn, norm_turn;
  const int end = o.tiles + lag + (norm ? 1 : 0);
  for (int i = 0; i < end; ++i) {
    if (i < o.tiles) {
      MhcColumns<kStreams, kPost> columns[kLocal];
      if constexpr (kPost) {
#pragma unroll
        for (int b = 0; b < kLocal; ++b) columns[b].x = x[b];
      }
      const float* const coefficient = coefficients_at + post_turn.at * kPlace;
      post_turn.next(ring);
      barrier_wait(o.full(post_slot.at), post_slot.parity);
      char* const at = slots_at + post_slot.at * kSlotBytes;
      if constexpr (kPost) {
        if (i < mine) {
#pragma unroll
          for (int b = 0; b < kLocal; ++b) {
#pragma unroll
            for (int k = 0; k < kStreams; ++k)
              columns[b].stream[k] = *reinterpret_cast<const uint4*>(at + (k * kLocal + b) * 512 + lane * 16);
          }
          float k[20];
          load_post(coefficient, k);
#pragma unroll
          for (int b = 0; b < kLocal; ++b) apply_post(columns[b], k, false);
          bool odd = false;
#pragma unroll
          for (int b = 0; b < kLocal; ++b) odd = odd || not_finite<kStreams>(columns[b].stream);
          if (odd) {
#pragma unroll
            for (int b = 0; b < kLocal; ++b) canonical_columns<kStreams>(columns[b].stream);
          }
          if (ragged) {  // coefficients may be infinite: 0 * inf is not 0
#pragma unroll
            for (int b = 0; b < kLocal; ++b) {
#pragma unroll
              for (int j = 0; j < kStreams; ++j)
                if (column + b * kMhcColumns >= limit) columns[b].stream[j] = make_uint4(0, 0, 0, 0);
            }
          }
#pragma unroll
          for (int b = 0; b < kLocal; ++b) {
#pragma unroll
            for (int k = 0; k < kStreams; ++k)
              *reinterpret_cast<uint4*>(at + (k * kLocal + b) * 512 + lane * 16) = columns[b].stream[k];
          }
        }
        fence_async_proxy();  // the copy engine stores them
        named_arrive(kPosted + post_slot.at, kPostedThreads);
        __syncwarp();
        if (lane == 0) barrier_arrive(o.posted(post_slot.at));
        if (i + 1 < mine) fetch();
      }
      if (kLocal > 1 && i == 0 && o.local > 1) {  // the second block's weights
        barrier_wait(o.taken(), 0);
        if (token < 2 * kStreams) split_part<kMixTiles, 2>(o, 1, token, lane);
        barrier_arrive(o.weights());
      }
      post_slot.next(slots);
    }

    const int done = i - lag - 1;
    if (norm && done >= 0) {
      if (done == 0) barrier_wait(o.norm_weight(), 0);
      barrier_wait(o.norm(norm_turn.at), norm_turn.parity);
      if (done < mine) {
        uint4 weight[kLocal];
#pragma unroll
        for (int b = 0; b < kLocal; ++b)
          weight[b] = reinterpret_cast<const uint4*>(o.shared + o.l.norm_weight + b * 512)[lane];
        const float* const from =
            reinterpret_cast<const float*>(o.shared + o.l.norm_in) + norm_turn.at * g.blocks * kMhcTokens + token;
        norm_columns<kLocal>(u, norm_factor(g, merge_blocks(from, g.blocks, kMhcTokens, false)), weight);
#pragma unroll
        for (int b = 0; b < kLocal; ++b) {
          if (column + b * kMhcColumns < limit) store_columns(out + b * kMhcColumns, u[b], true);
        }
        out += step * g.out_row;
      }
      norm_turn.next(ring);
    }

    const int now = i - lag;
    if (now >= 0 && now < o.tiles) {
      barrier_wait(o.pre(pre_turn.at), pre_turn.parity);
      if (now < mine) {
        // Where nothing is carried yet these are anything, and not used.
        const float4 pre = *reinterpret_cast<const float4*>(
            g.delayed ? coefficients_at + pre_turn.at * kPlace + 20
                      : reinterpret_cast<const float*>(o.shared + o.l.pre) + (pre_turn.at * kMhcTokens + token) * 4);
        const char* const at = slots_at + collapse_slot.at * kSlotBytes + lane * 16;
        uint4 stream[kLocal][kStreams];
#pragma unroll
        for (int b = 0; b < kLocal; ++b) {
#pragma unroll
          for (int k = 0; k < kStreams; ++k)
            stream[b][k] = *reinterpret_cast<const uint4*>(at + (k * kLocal + b) * 512);
        }
        const float k[4] = {pre.x, pre.y, pre.z, pre.w};
        float square[kLocal];
        const auto again = [&](int b, uint4(&to)[kStreams]) {
#pragma unroll
          for (int j = 0; j < kStreams; ++j) to[j] = load_again(shared_address(at + (j * kLocal + b) * 512));
        };
        collapse_blocks<kStreams, kLocal>(g, stream, again, first_row + now * step, column, limit, k, true, u, square);
        if (norm) {
          float* const to =
              reinterpret_cast<float*>(o.shared + o.l.norm_out) + collapse_slot.at * kLocal * kMhcTokens + token;
#pragma unroll
          for (int b = 0; b < kLocal; ++b)
            if (lane == 0) to[b * kMhcTokens] = square[b];
        } else {
#pragma unroll
          for (int b = 0; b < kLocal; ++b) {
            if (column + b * kMhcColumns < limit) store_columns(out + b * kMhcColumns, u[b], true);
          }
          out += step * g.out_row;
        }
      }
      fence_async_proxy();  // the copy engine overwrites the streams
      __syncwarp();
      if (lane == 0) barrier_arrive(o.collapsed(collapse_slot.at));
      collapse_slot.next(slots);
      pre_turn.next(ring);
    }
  }
}

// ---- the kernel -------------------------------------------------------------------------------------------------

template <bool kPost, int kStreams, int kMixTiles, int kLocal>
__global__ void __launch_bounds__(kMhcClusterThreads, 1)
    mhc_cluster_kernel(const __grid_constant__ MhcLaunch g, const __grid_constant__ MhcShape s,
                       const __grid_constant__ MhcLayout l) {
  extern __shared__ __align__(128) char shared[];
  const int warp = warp_index(), lane = threadIdx.x % 32;
  const int rank = static_cast<int>(cluster_rank());
  const int share = g.blocks / s.cluster, surplus = g.blocks % s.cluster;
  const int first_tile = static_cast<int>(blockIdx.x) / s.cluster;
  const Site o{g,
               s,
               l,
               shared,
               shared_address(shared),
               rank,
               rank * share + min(rank, surplus),
               share + (rank < surplus ? 1 : 0),
               first_tile,
               (s.tiles - first_tile + s.clusters - 1) / s.clusters};

  prefetch_first<kStreams, kMixTiles, kLocal>(o);
  const bool stores = (kPost || kStreams == 1) && g.residual_out != nullptr;
  if (lane == 0) init_barriers(o, warp, kPost || g.delayed, stores);
  if (g.hidden % kMhcColumns != 0) {  // columns beyond the end stay zero
    for (int i = threadIdx.x; i < (l.parts - l.slots) / 16; i += kMhcClusterThreads)
      reinterpret_cast<uint4*>(shared + l.slots)[i] = make_uint4(0, 0, 0, 0);
    fence_async_proxy();
  }
  __syncwarp();
  cluster_arrive();
  let_next_grid_start();
  __syncthreads();
  wait_for_prior_grid();

  // Registers where they are needed: 65,536 in all.
  if (warp < kMhcProductWarps) {
    registers_raise<240>();
    multiply<kPost, kStreams, kMixTiles, kLocal>(o, warp, lane);
  } else if (warp < kMhcProductWarps + kMhcSideWarps) {
    registers_lower<48>();
    if (warp == kMhcProductWarps) {
      bring_tiles<kPost, kStreams, kMixTiles, kLocal>(o, lane);
    } else if (warp == kMhcProductWarps + 1) {
      cluster_wait();
      if (stores) store_streams<kPost, kStreams, kLocal>(o);
    } else {
      own_tokens<kMixTiles>(o, warp - kMhcProductWarps - 2, lane);
    }
  } else {
    registers_lower<112>();
    walk_rows<kPost, kStreams, kMixTiles, kLocal>(o, warp - kMhcProductWarps - kMhcSideWarps, lane);
  }
}

using Kernel = void (*)(MhcLaunch, MhcShape, MhcLayout);

template <bool kPost, int kStreams, int kMixTiles>
Kernel kernel_for(const MhcShape& s) {
  return s.local_blocks == 1 ? mhc_cluster_kernel<kPost, kStreams, kMixTiles, 1>
                             : mhc_cluster_kernel<kPost, kStreams, kMixTiles, 2>;
}

Kernel kernel_of(MhcKernelForm form, const MhcShape& s) {
  switch (form) {
    case MhcKernelForm::pre:
      return kernel_for<false, 4, 3>(s);
    case MhcKernelForm::broadcast:
      return kernel_for<false, 1, 3>(s);
    case MhcKernelForm::fused:
      return kernel_for<true, 4, 3>(s);
    case MhcKernelForm::head:
      return kernel_for<false, 4, 1>(s);
  }
  return nullptr;
}

struct Configured {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attribute[2]{};
  cudaError_t status = cudaSuccess;
};

void configure(MhcKernelForm form, const MhcShape& s, int blocks, bool dependent, cudaStream_t stream, Configured* c) {
  const auto kernel = reinterpret_cast<const void*>(kernel_of(form, s));
  const int bytes = mhc_layout(form, s, blocks).total;
  c->status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (c->status == cudaSuccess && s.cluster > 8)
    c->status = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  c->config.gridDim = dim3(static_cast<unsigned>((s.clusters > 0 ? s.clusters : 1) * s.cluster));
  c->config.blockDim = dim3(kMhcClusterThreads);
  c->config.dynamicSmemBytes = static_cast<std::size_t>(bytes);
  c->config.stream = stream;
  c->attribute[0].id = cudaLaunchAttributeClusterDimension;
  c->attribute[0].val.clusterDim.x = static_cast<unsigned>(s.cluster);
  c->attribute[0].val.clusterDim.y = c->attribute[0].val.clusterDim.z = 1;
  c->attribute[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  c->attribute[1].val.programmaticStreamSerializationAllowed = 1;
  c->config.attrs = c->attribute;
  c->config.numAttrs = dependent ? 2 : 1;
}

}  // namespace

cudaError_t mhc_cluster_capacity(MhcKernelForm form, const MhcShape& shape, int blocks, int* clusters) {
  Configured c;
  *clusters = 0;
  configure(form, shape, blocks, false, nullptr, &c);
  if (c.status != cudaSuccess) return c.status;
  return cudaOccupancyMaxActiveClusters(clusters, kernel_of(form, shape), &c.config);
}

cudaError_t launch_mhc_cluster(MhcKernelForm form, const MhcLaunch& launch, const MhcShape& shape, bool dependent,
                               cudaStream_t stream) {
  Configured c;
  configure(form, shape, launch.blocks, dependent, stream, &c);
  if (c.status != cudaSuccess) return c.status;
  return cudaLaunchKernelEx(&c.config, kernel_of(form, shape), launch, shape, mhc_layout(form, shape, launch.blocks));
}

}  // namespace batchproof::cuda
