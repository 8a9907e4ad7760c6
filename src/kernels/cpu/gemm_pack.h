// SPDX-License-Identifier: Apache-2.0
//
// Packing of A and B for gemm_kernel.h, 16-bit inputs widened to FP32 on the way (exact). See there for V and for why
// everything is in an anonymous namespace.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_GEMM_PACK_H_
#define BATCHPROOF_SRC_KERNELS_CPU_GEMM_PACK_H_

#include <cstdint>

namespace batchproof {
namespace {

// Distinct types for the two 16-bit formats, so that loads can be overloaded.
struct Bf16Bits {
  std::uint16_t bits;
};
struct Fp16Bits {
  std::uint16_t bits;
};

// How many rows of B ahead of their use are fetched where B is not contiguous.
constexpr std::int64_t kPrefetchRows = 12;

inline std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// Up to 8 consecutive elements at `step`, widened to FP32; the rest of out[8] becomes zero.
template <class V, class T>
inline void widen_some(const T* from, std::int64_t step, std::int64_t count, float* out) {
  T staged[8] = {};
  for (std::int64_t i = 0; i < count; ++i) staged[i] = from[i * step];
  V::widen8(staged, out);
}

// Writes the lines `line[0..7]` (each `length` elements at `step`) transposed: to[k * ld + i] = line[i][k], i < keep.
template <class V, int keep, class T>
inline void interleave(const T* const* line, std::int64_t step, std::int64_t length, float* to, std::int64_t ld) {
  std::int64_t k = 0;
  if constexpr (sizeof(T) == sizeof(float)) {
    if (step == 1) {
      for (; k + 8 <= length; k += 8) {
        const float* at[8];
        for (int i = 0; i < 8; ++i) at[i] = line[i] + k;
        V::template transpose8<keep>(at, to + k * ld, ld);
      }
    }
  }
  for (; k < length; k += 8) {
    const std::int64_t count = smaller(8, length - k);
    float staged[8][8];
    const float* at[8];
    for (int i = 0; i < 8; ++i) {
      if (step == 1 && count == 8) {
        V::widen8(line[i] + k, staged[i]);
      } else {
        widen_some<V>(line[i] + k * step, step, count, staged[i]);
      }
      at[i] = staged[i];
    }
    if (count == 8) {
      V::template transpose8<keep>(at, to + k * ld, ld);
    } else {
      for (std::int64_t j = 0; j < count; ++j) {
        for (int i = 0; i < keep; ++i) to[(k + j) * ld + i] = staged[i][j];
      }
    }
  }
}

// Packs rows [0, m) of A over k in [0, length) into panels [k][kRows]; rows past m are zero.
template <class V, class T>
void pack_rows(const T* a, std::int64_t row, std::int64_t column, std::int64_t m, std::int64_t length, float* to) {
  for (std::int64_t i = 0; i < m; i += V::kRows) {
    const std::int64_t rows = smaller(V::kRows, m - i);
    const T* line[8];
    // A row past the end repeats the last one: its results are dropped.
    for (int r = 0; r < 8; ++r) line[r] = a + (i + smaller(r, rows - 1)) * row;
    interleave<V, (V::kRows < 8 ? V::kRows : 8)>(line, column, length, to, V::kRows);
    if constexpr (V::kRows > 8) {
      for (int r = 0; r < 8; ++r) line[r] = a + (i + smaller(8 + r, rows - 1)) * row;
      interleave<V, V::kRows - 8>(line, column, length, to + 8, V::kRows);
    }
    to += V::kRows * length;
  }
}

// One k of one panel of `columns` <= kColumns columns; columns past the end repeat the last one.
template <class V, class T>
inline void pack_panel_row(const T* from, std::int64_t columns, float* to) {
  if (columns == V::kColumns) {
    for (std::int64_t c = 0; c < V::kColumns; c += V::kWidth) V::store(to + c, V::widen(from + c));
    return;
  }
  T staged[V::kColumns];
  for (std::int64_t c = 0; c < V::kColumns; ++c) staged[c] = from[smaller(c, columns - 1)];
  for (std::int64_t c = 0; c < V::kColumns; c += V::kWidth) V::store(to + c, V::widen(staged + c));
}

// Packs columns [0, n) of B over k in [0, length) into panels [k][kColumns].
template <class V, class T>
void pack_columns(const T* b, std::int64_t row, std::int64_t column, std::int64_t n, std::int64_t length, float* to) {
  const std::int64_t panel = V::kColumns * length;
  if (column == 1) {
    // Several panels at a time: rows of B often lie a multiple of 4 KiB apart, where few lines stay in cache.
    constexpr std::int64_t kGroup = 128;
    for (std::int64_t j = 0; j < n; j += kGroup) {
      const std::int64_t end = smaller(j + kGroup, n);
      for (std::int64_t k = 0; k < length; ++k) {
        // A hint past the end of B is harmless.
        const T* ahead = b + (k + kPrefetchRows) * row;
        for (std::int64_t c = j; c < end; c += V::kColumns) {
          __builtin_prefetch(ahead + c);
          if constexpr (V::kColumns * sizeof(T) > 64) __builtin_prefetch(ahead + c + V::kColumns / 2);
          pack_panel_row<V>(b + k * row + c, smaller(V::kColumns, end - c),
                            to + c / V::kColumns * panel + k * V::kColumns);
        }
      }
    }
    return;
  }
  for (std::int64_t j = 0; j < n; j += V::kColumns, to += panel) {
    const std::int64_t columns = smaller(V::kColumns, n - j);
    for (std::int64_t c = 0; c < V::kColumns; c += 8) {
      const T* line[8];
      for (int i = 0; i < 8; ++i) line[i] = b + (j + smaller(c + i, columns - 1)) * column;
      interleave<V, 8>(line, row, length, to + c, V::kColumns);
    }
  }
}

}  // namespace
}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_GEMM_PACK_H_
