// SPDX-License-Identifier: Apache-2.0
//
// The roles of the mHC kernel for many rows that take a token from its sums to its outputs.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_MHC_RELAY_FINISH_CUH_
#define BATCHPROOF_SRC_KERNELS_CUDA_MHC_RELAY_FINISH_CUH_

#include "src/kernels/cuda/mhc_relay_site.cuh"

namespace batchproof::cuda::relay {

// A token's factor, of its blocks' sums of u^2 in turn; beyond the last block they are -0, which changes nothing.
__device__ __forceinline__ float merge_squares(const MhcLaunch& g, const float* from, int blocks) {
  const auto* const squares = reinterpret_cast<const float4*>(from);
  float4 four = squares[0];
  float total = __fadd_rn(__fadd_rn(__fadd_rn(four.x, four.y), four.z), four.w);
#pragma unroll 2
  for (int b = 4; b < blocks; b += 4) {
    four = squares[b / 4];
    total = __fadd_rn(__fadd_rn(__fadd_rn(__fadd_rn(total, four.x), four.y), four.z), four.w);
  }
  return norm_factor(g, total);
}

// Every eighth block of a token's u, from this warp's own on.
template <bool kPost>
__device__ __forceinline__ void norm_token(const MhcLaunch& g, const Share& w, Memory<kPost>& m, int n, int slot,
                                           float factor, int warp, int lane) {
  static_assert(kChunkBlocks == 8);
  const int column = warp * kMhcColumns + lane * 8;
  std::uint16_t* out = g.out + (w.row(0) + n) * g.out_row + column;
  constexpr int kStep = kChunkBlocks * kMhcColumns;
#pragma unroll 1
  for (int h = column; h < g.hidden; h += kStep, out += kStep) {
    const uint4 weight = *reinterpret_cast<const uint4*>(m.norm_weight + h);
    store_columns(out, norm_columns(m.u[slot][0][h / 8], factor, weight), true);
  }
}

// One lane.
template <bool kPost>
__device__ __forceinline__ void bring_tokens(const MhcLaunch& g, const Share& w, Memory<kPost>& m,
                                             const std::uint16_t* streams, std::int64_t streams_row,
                                             std::int64_t streams_step, const std::uint32_t* complete) {
  using P = Plan<kPost>;
  const auto sum_bytes = static_cast<std::uint32_t>(w.blocks * kRelaySumFloats * 4);
  const int tokens = w.tokens();
  int known = -1;  // the last stage that is known to be complete
  cluster::Turn token, chunk;
  for (int n = w.block; n < tokens; n += w.blocks, token.next(kRing)) {
    if (n / kTokens > known) {
      known = n / kTokens;
      // To acquire empties the L1: once is enough.
      const std::uint32_t* const counter = complete + w.first + known;
      while (load_relaxed(counter) < static_cast<std::uint32_t>(w.blocks)) __nanosleep(20);
      while (load_acquire(counter) < static_cast<std::uint32_t>(w.blocks)) {
      }
      fence_async_proxy_global();  // what was written is read by the copy engine
    }
    const std::int64_t row = w.row(0) + n;
    const std::uint32_t sums_full = shared_address(&m.sums_full[token.at]);
    // The first time round nobody has given it back: its barrier is in the phase before.
    barrier_wait(shared_address(&m.sums_empty[token.at]), token.parity ^ 1);
    barrier_expect_bytes(sums_full, sum_bytes);
    cluster::copy_in(shared_address(m.token_sums[token.at]), g.partial + row * w.blocks * kRelaySumFloats, sum_bytes,
                     sums_full);
    const std::uint16_t* from = streams + row * streams_row;
    for (int h = 0; h < g.hidden; h += kChunkBlocks * kMhcColumns, from += kChunkBlocks * kMhcColumns) {
      barrier_wait(shared_address(&m.chunk_empty[chunk.at]), chunk.parity ^ 1);
      const std::uint32_t full = shared_address(&m.chunk_full[chunk.at]);
      const auto bytes = static_cast<std::uint32_t>(min(kChunkStream, (g.hidden - h) * 2));
      barrier_expect_bytes(full, 4 * bytes);
#pragma unroll
      for (int j = 0; j < 4; ++j)
        cluster::copy_in(shared_address(m.chunk[chunk.at] + j * kChunkStream), from + j * streams_step, bytes, full,
                         kEvictFirst);
      chunk.next(kChunks);
    }
    const int next = n + w.blocks;
    atomicExch(&m.next_stage, next < tokens ? next / kTokens : w.stages);
  }
}

template <bool kPost>
__device__ __forceinline__ void own_tokens(const MhcLaunch& g, const Share& w, Memory<kPost>& m, int lane) {
  const float scale = mix_scale(g, 24, lane), base = mix_base(g, 24, lane);
  const int tokens = w.tokens();
  cluster::Turn token;
  int held = 0;  // tokens whose Sinkhorn is to come
  std::int64_t mine = -1;
  MhcComb comb;
  for (int n = w.block; n < tokens; n += w.blocks, token.next(kRing)) {
    const std::int64_t row = w.row(0) + n;
    float pre = g.delayed && lane < 4 ? carried_coefficient(g, row, lane) : 0.0f;
    barrier_wait(shared_address(&m.sums_full[token.at]), token.parity);
    const float sum = merge_blocks(m.token_sums[token.at] + min(lane, kMhcSquare), w.blocks, kRelaySumFloats, false);
    const float value = coefficients(g, row, sum, 24, lane, scale, base);
    barrier_arrive(shared_address(&m.sums_empty[token.at]));
    if (!g.delayed) pre = value;
    if (g.delayed && lane < 4) store_fp32(g.pre_out, row, lane, 0, value);
    barrier_wait(shared_address(&m.pre_empty[token.at]), token.parity ^ 1);
    if (lane < 4) m.pre[token.at][lane] = pre;
    barrier_arrive(shared_address(&m.pre_full[token.at]));
    comb.take(comb_exponential(value), lane / 4 == held);
    if (lane / 4 == held) mine = row;
    if (++held < kMhcTokens && n + w.blocks < tokens) continue;
    sinkhorn(g, comb);
    if (mine >= 0) {
#pragma unroll
      for (int k = 0; k < 4; ++k) store_fp32(g.comb_out, mine, lane % 4, k, comb.row[k]);
    }
    comb = MhcComb{};
    mine = -1;
    held = 0;
  }
}

// kPlain: neither the delayed form nor a mean.
template <bool kPost, bool kPlain>
__device__ __forceinline__ void finish_tokens(const MhcLaunch& g, const Share& w, Memory<kPost>& m, int warp,
                                              int lane) {
  using P = Plan<kPost>;
  const bool norm = g.norm_weight != nullptr;
  const int tokens = w.tokens();
  for (int h = warp * kMhcColumns + lane * 8; norm && h < g.hidden; h += kChunkBlocks * kMhcColumns)
    *reinterpret_cast<uint4*>(m.norm_weight + h) = load_columns(g.norm_weight + h, true);
  cluster::Turn token, chunk, slot;  // slot: of u, of squares
  int turn = 0;                      // whose it is to make the factor
  // Loops over chunks are loops, whose code stays in the instruction cache; so u is indexed, in shared memory.
  for (int n = w.block; n < tokens; n += w.blocks, token.next(kRing), slot.next(2)) {
    const int u_at = P::kProductNorms ? slot.at : 0;
    if (P::kProductNorms && norm) barrier_wait(shared_address(&m.normed[slot.at % P::kNormSlots]), slot.parity ^ 1);
    barrier_wait(shared_address(&m.pre_full[token.at]), token.parity);
    const float4 pre = *reinterpret_cast<const float4*>(m.pre[token.at]);
    const float k[4] = {pre.x, pre.y, pre.z, pre.w};
#pragma unroll 1
    for (int block = warp; block - warp < w.blocks; block += kChunkBlocks) {
      barrier_wait(shared_address(&m.chunk_full[chunk.at]), chunk.parity);
      float square[1] = {-0.0f};  // of a block beyond the end: added, it changes nothing
      if (block < w.blocks) {
        const int h = block * kMhcColumns + lane * 8;
        const bool inside = h < g.hidden;
        const char* const from = m.chunk[chunk.at] + (warp * 32 + lane) * 16;
        uint4 stream[4], u;
#pragma unroll
        for (int j = 0; j < 4; ++j)
          stream[j] = inside ? *reinterpret_cast<const uint4*>(from + j * kChunkStream) : make_uint4(0, 0, 0, 0);
        if constexpr (kPlain) {
          u = collapse_columns<4>(stream, k, square);
          if (square[0] != square[0]) u = canonical_of(u);
        } else {
          u = collapse_block<4>(g, stream, w.row(0) + n, h, g.hidden, k, true, square);
        }
        // What is stored waits for all that was loaded; the chunk is given back behind it.
        if (norm) {
          m.u[u_at][block][lane] = u;
          butterflies(square);
        } else if (inside) {
          store_columns(g.out + (w.row(0) + n) * g.out_row + h, u, true);
        }
      }
      if (lane == 0 && block < kRelayBlocksMost) m.squares[slot.at][block] = square[0];
      barrier_arrive(shared_address(&m.chunk_empty[chunk.at]));
      chunk.next(kChunks);
    }
    barrier_arrive(shared_address(&m.pre_empty[token.at]));
    if (!norm) continue;
    if constexpr (P::kProductNorms) {
      barrier_arrive(shared_address(&m.squared[slot.at]));
      barrier_arrive(shared_address(&m.collapsed[slot.at]));
      if (turn == warp) {
        barrier_wait(shared_address(&m.squared[slot.at]), slot.parity);
        const float factor = merge_squares(g, m.squares[slot.at], w.blocks);
        if (lane == 0) m.factors[slot.at] = factor;
        barrier_arrive(shared_address(&m.collapsed[slot.at]));
      }
      turn = (turn + 1) % kFinishers;
    } else {
      named_sync(kNormed, 32 * kFinishers);
      norm_token<kPost>(g, w, m, n, 0, merge_squares(g, m.squares[slot.at], w.blocks), warp, lane);
    }
  }
}

}  // namespace batchproof::cuda::relay

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_MHC_RELAY_FINISH_CUH_
