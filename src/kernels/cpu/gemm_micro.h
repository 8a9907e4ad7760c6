// SPDX-License-Identifier: Apache-2.0
//
// The register tile of gemm_kernel.h: R rows by V::kColumns columns of C over one segment.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_GEMM_MICRO_H_
#define BATCHPROOF_SRC_KERNELS_CPU_GEMM_MICRO_H_

#include <cstdint>

namespace batchproof {
namespace {

// c[0..R)[0..columns) = (first ? 0 : c) + sum over k of packed a * packed b; the sum starts from +0.
template <class V, int R>
void micro(std::int64_t length, const float* a, const float* b, float* c, std::int64_t ld, std::int64_t columns,
           bool first) {
  constexpr int kVectors = V::kColumns / V::kWidth;
  // C is used at the end only; by then it has come from wherever it was.
  for (int r = 0; r < R; ++r) {
    __builtin_prefetch(c + r * ld, 1);
    __builtin_prefetch(c + r * ld + V::kColumns - 1, 1);
  }
  typename V::F acc[R][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) acc[r][v] = V::zero();
  }
  for (std::int64_t k = 0; k < length; ++k) {
    typename V::F right[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) right[v] = V::load(b + v * V::kWidth);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const typename V::F left = V::broadcast(a + r);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) acc[r][v] = V::fma(left, right[v], acc[r][v]);
    }
    a += V::kRows;
    b += V::kColumns;
  }
  if (columns == V::kColumns) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        float* at = c + r * ld + v * V::kWidth;
        V::store(at, first ? acc[r][v] : V::add(V::load(at), acc[r][v]));
      }
    }
    return;
  }
  float staged[R][V::kColumns];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) V::store(staged[r] + v * V::kWidth, acc[r][v]);
  }
  for (int r = 0; r < R; ++r) {
    for (std::int64_t j = 0; j < columns; ++j) {
      float* at = c + r * ld + j;
      *at = first ? staged[r][j] : *at + staged[r][j];
    }
  }
}

template <class V, int R>
void micro_rows(std::int64_t rows, std::int64_t length, const float* a, const float* b, float* c, std::int64_t ld,
                std::int64_t columns, bool first) {
  if (rows == R) return micro<V, R>(length, a, b, c, ld, columns, first);
  if constexpr (R > 1) micro_rows<V, R - 1>(rows, length, a, b, c, ld, columns, first);
}

}  // namespace
}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_GEMM_MICRO_H_
