// SPDX-License-Identifier: Apache-2.0
//
// Two more mHC kernels over a Lanes type: the order of a GPU kernel with some number of threads per row (fast mode and
// controls), and the products of hc_head. Included by mhc_plain.cc, mhc_avx2.cc and mhc_avx512.cc only.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_MHC_THREADS_KERNEL_H_
#define BATCHPROOF_SRC_KERNELS_CPU_MHC_THREADS_KERNEL_H_

#include "src/kernels/cpu/mhc_kernel.h"

namespace batchproof {
namespace {

constexpr int kWarp = 32;

// Lane 0 of a butterfly over each warp, warps serially from 0. Overwrites `partial`.
inline float merge_threads(float* partial, int threads) {
  float sum = 0.0f;
  for (int warp = 0; warp < threads; warp += kWarp) {
    float* lane = partial + warp;
    for (int half = kWarp / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) lane[i] = lane[i] + lane[i + half];
    }
    sum = sum + lane[0];
  }
  return sum;
}

// Mixes [c, c + C) and, with `squares`, the square sum of one row, one split, 16 threads at a time.
template <class V, int C>
void thread_sums(const MhcThreadsArgs& g, const std::int64_t* steps, const float* values, int c, float* partial,
                 float* squares) {
  for (int thread = 0; thread < g.threads; thread += kStrands) {
    Strands<V> acc[C];
    for (int i = 0; i < C; ++i) acc[i] = Strands<V>::zero();
    Strands<V> square = Strands<V>::zero();
    for (std::int64_t n = 0; n < g.steps_per_split; ++n) {
      const std::int64_t k = steps[n] + thread;
      const Strands<V> value = Strands<V>::load(values + k);
      for (int i = 0; i < C; ++i) acc[i].fma(Strands<V>::load(g.fn + (c + i) * g.fn_row + k), value);
      if (squares != nullptr) square.fma(value, value);
    }
    for (int i = 0; i < C; ++i) acc[i].store(partial + i * g.threads + thread);
    if (squares != nullptr) square.store(squares + thread);
  }
}

template <class V>
void mhc_threads(const MhcThreadsArgs& g) {
  constexpr int kTile = 3;
  const std::int64_t step = g.pairs ? 2 : 1;
  for (std::int64_t first = 0; first < g.rows; first += step) {
    const std::int64_t rows = mhc_smaller(step, g.rows - first);
    for (std::int64_t r = 0; r < rows; ++r)
      widen_columns<V>(g.residual, g.post, g.hidden, first + r, 0, g.columns, g.values + r * g.columns);
    for (std::int64_t split = 0; split < g.splits; ++split) {
      for (int c = 0; c < kMhcMixes; c += kTile) {
        for (std::int64_t r = 0; r < rows; ++r) {
          const std::int64_t row = first + r;
          float* partial = g.partial;
          float* squares = c == 0 ? g.partial + kTile * g.threads : nullptr;
          thread_sums<V, kTile>(g, g.steps + split * g.steps_per_split, g.values + r * g.columns, c, partial, squares);
          float* sums = g.sums + (split * g.rows + row) * kMhcMixes + c;
          for (int i = 0; i < kTile; ++i) sums[i] = merge_threads(partial + i * g.threads, g.threads);
          if (squares != nullptr) g.squares[split * g.rows + row] = merge_threads(squares, g.threads);
        }
      }
    }
  }
}

// One segment of hc_head: four mixes and the square sum.
template <class V>
void head_segment(const MhcHeadArgs& g, std::int64_t row, std::int64_t begin, std::int64_t end, float (&sum)[5]) {
  Strands<V> acc[5];
  for (Strands<V>& one : acc) one = Strands<V>::zero();
  for (std::int64_t k = begin; k < end; k += kStrands) {
    const std::int64_t at = g.descending ? begin + end - kStrands - k : k;
    const std::int64_t stream = at / g.hidden;
    const std::uint16_t* from = g.residual.data + row * g.residual.row + stream * g.residual.stream;
    const Strands<V> value = Strands<V>::load_bf16(from + (at - stream * g.hidden));
    for (int c = 0; c < 4; ++c) acc[c].fma(Strands<V>::load(g.fn + c * g.fn_row + at), value);
    acc[4].fma(value, value);
  }
  for (int c = 0; c < 5; ++c) sum[c] = merged<V>(acc[c]);
}

template <class V>
void mhc_head(const MhcHeadArgs& g) {
  for (std::int64_t row = 0; row < g.rows; ++row) {
    ChainSum total[5];
    for (std::int64_t begin = 0; begin < g.columns; begin += g.segment) {
      const std::int64_t start = g.descending ? (g.columns - 1 - begin) / g.segment * g.segment : begin;
      float sum[5];
      head_segment<V>(g, row, start, mhc_smaller(start + g.segment, g.columns), sum);
      for (int c = 0; c < 5; ++c) total[c].add(sum[c]);
    }
    for (int c = 0; c < 4; ++c) g.sums[row * 4 + c] = total[c].total;
    g.squares[row] = total[4].total;
  }
}

template <class V>
constexpr MhcKernel mhc_kernel() {
  static_assert(V::kTokens <= kMhcTileRows);
  return {mhc_post<V>,         mhc_pack<V>,     mhc_product<V>, mhc_threads<V>,
          mhc_coefficients<V>, mhc_collapse<V>, mhc_head<V>,    V::kTokens};
}

}  // namespace
}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_MHC_THREADS_KERNEL_H_
