// SPDX-License-Identifier: Apache-2.0
//
// The row warps of the mHC cluster kernel: post, collapse and norm of one token of every tile each.
#ifndef BATCHPROOF_SRC_KERNELS_CUDA_MHC_CLUSTER_ROWS_CUH_
#define BATCHPROOF_SRC_KERNELS_CUDA_MHC_CLUSTER_ROWS_CUH_

#include "src/kernels/cuda/mhc_cluster_product.cuh"

namespace batchproof::cuda::cluster {

// That of a block, where which one is not known when this is compiled.
template <int kLocal>
__device__ inline uint4 of_block(const uint4 (&of)[kLocal], int b) {
  return kLocal == 1 || b == 0 ? of[0] : of[kLocal - 1];
}

// Behind post, loops over a thread block's blocks are loops: the code of a tile has to stay in the instruction cache,
// beside that of the other roles. Without it the code is short, and two blocks at once hide one another's latency.
template <bool kPost, int kStreams, int kMixTiles, int kLocal>
__device__ __forceinline__ void walk_rows(const Site& o, int token, int lane) {
  const MhcLaunch& g = o.g;
  constexpr int kAtOnce = kPost ? 1 : kLocal;
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
      const float* const coefficient = coefficients_at + post_turn.at * kPlace;
      post_turn.next(ring);
      barrier_wait(o.full(post_slot.at), post_slot.parity);
      char* const at = slots_at + post_slot.at * kSlotBytes + lane * 16;
      if constexpr (kPost) {
        if (i < mine) {
          float k[20];
          load_post(coefficient, k);
#pragma unroll 1
          for (int b = 0; b < kLocal; ++b) {
            MhcColumns<kStreams, true> columns;
            columns.x = of_block<kLocal>(x, b);
#pragma unroll
            for (int j = 0; j < kStreams; ++j)
              columns.stream[j] = *reinterpret_cast<const uint4*>(at + (j * kLocal + b) * 512);
            apply_post(columns, k, false);
            if (not_finite<kStreams>(columns.stream)) canonical_columns<kStreams>(columns.stream);
            if (ragged && column + b * kMhcColumns >= limit) {  // coefficients may be infinite: 0 * inf is not 0
#pragma unroll
              for (int j = 0; j < kStreams; ++j) columns.stream[j] = make_uint4(0, 0, 0, 0);
            }
#pragma unroll
            for (int j = 0; j < kStreams; ++j)
              *reinterpret_cast<uint4*>(at + (j * kLocal + b) * 512) = columns.stream[j];
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
        const float* const from =
            reinterpret_cast<const float*>(o.shared + o.l.norm_in) + norm_turn.at * g.blocks * kMhcTokens + token;
        const float factor = norm_factor(g, merge_blocks(from, g.blocks, kMhcTokens, false));
#pragma unroll kAtOnce
        for (int b = 0; b < kLocal; ++b) {
          const uint4 weight = reinterpret_cast<const uint4*>(o.shared + o.l.norm_weight + b * 512)[lane];
          const uint4 normed = norm_columns(of_block<kLocal>(u, b), factor, weight);
          if (column + b * kMhcColumns < limit) store_columns(out + b * kMhcColumns, normed, true);
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
        const float k[4] = {pre.x, pre.y, pre.z, pre.w};
        float square[kLocal];
#pragma unroll kAtOnce
        for (int b = 0; b < kLocal; ++b) {
          uint4 stream[kStreams];
#pragma unroll
          for (int j = 0; j < kStreams; ++j) stream[j] = *reinterpret_cast<const uint4*>(at + (j * kLocal + b) * 512);
          float sum;
          const uint4 block = collapse_block<kStreams>(g, stream, first_row + now * step, column + b * kMhcColumns,
                                                       limit, k, true, &sum);
          if (!norm && column + b * kMhcColumns < limit) store_columns(out + b * kMhcColumns, block, true);
#pragma unroll
          for (int c = 0; c < kLocal; ++c) {
            if (b == c) u[c] = block, square[c] = sum;
          }
        }
        if (norm) {
          butterflies(square);
          float* const to =
              reinterpret_cast<float*>(o.shared + o.l.norm_out) + collapse_slot.at * kLocal * kMhcTokens + token;
#pragma unroll
          for (int b = 0; b < kLocal; ++b)
            if (lane == 0) to[b * kMhcTokens] = square[b];
        } else {
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

}  // namespace batchproof::cuda::cluster

#endif  // BATCHPROOF_SRC_KERNELS_CUDA_MHC_CLUSTER_ROWS_CUH_
