// SPDX-License-Identifier: Apache-2.0
//
// The blocked GEMM over one region, as a template over an instruction set's vector type V. Included by gemm_plain.cc,
// gemm_avx2.cc and gemm_avx512.cc only, each of which defines V in an anonymous namespace: every instantiation is then
// local to that file and no code built for a newer processor can be linked into the plain path. For the same reason
// nothing of the standard library is called here.
//
// Order of operations for every output, whatever the tile, the path or V (Schedule, C1):
//   segment: acc = +0; acc = fma(a_k, b_k, acc) for ascending k
//   chain:   t = acc of the first segment; t = t + acc of the next; ...
//   tree:    a chain per slice, slices merged as a balanced binary tree, left + right
//   end:     y = round(t + bias), one canonical NaN
// Lanes are columns of C. Tails are padded and their surplus results dropped.
//
// V provides: F (register), kWidth, kRows (row tile), kColumns (column tile, a multiple of 8), zero, load, store,
// broadcast, fma, add, widen (kWidth elements), widen8, canonical, narrow_bf16, narrow_fp16, transpose8<keep>.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_GEMM_KERNEL_H_
#define BATCHPROOF_SRC_KERNELS_CPU_GEMM_KERNEL_H_

#include <cstdint>
#include <cstring>

#include "src/kernels/cpu/gemm_micro.h"
#include "src/kernels/cpu/gemm_pack.h"
#include "src/kernels/cpu/gemm_region.h"

namespace batchproof {
namespace {

// to = to + from, `count` floats.
template <class V>
inline void add_line(float* to, const float* from, std::int64_t count) {
  std::int64_t j = 0;
  for (; j + V::kWidth <= count; j += V::kWidth) V::store(to + j, V::add(V::load(to + j), V::load(from + j)));
  for (; j < count; ++j) to[j] = to[j] + from[j];
}

// y = round(sum + bias) with one canonical NaN. `to` may be `from`.
template <class V>
void finish_line(const float* from, const float* bias, std::int64_t count, GemmType type, void* to) {
  for (std::int64_t j = 0; j < count; j += V::kWidth) {
    const std::int64_t left = smaller(V::kWidth, count - j);
    float sum[V::kWidth] = {};
    float addend[V::kWidth] = {};
    const bool whole = left == V::kWidth;
    if (!whole) {
      for (std::int64_t i = 0; i < left; ++i) sum[i] = from[j + i];
      for (std::int64_t i = 0; bias != nullptr && i < left; ++i) addend[i] = bias[j + i];
    }
    typename V::F value = V::load(whole ? from + j : sum);
    if (bias != nullptr) value = V::add(value, V::load(whole ? bias + j : addend));
    value = V::canonical(value);
    if (type == GemmType::fp32) {
      float* out = static_cast<float*>(to) + j;
      V::store(whole ? out : sum, value);
      for (std::int64_t i = 0; !whole && i < left; ++i) out[i] = sum[i];
    } else {
      std::uint16_t* out = static_cast<std::uint16_t*>(to) + j;
      std::uint16_t narrow[V::kWidth];
      std::uint16_t* at = whole ? out : narrow;
      if (type == GemmType::bf16) {
        V::narrow_bf16(at, value);
      } else {
        V::narrow_fp16(at, value);
      }
      for (std::int64_t i = 0; !whole && i < left; ++i) out[i] = narrow[i];
    }
  }
}

// `from` and `to` point to the rectangle's first element; ldc counts elements of the output type.
template <class V>
void finish(const GemmRegion& g, std::int64_t i, std::int64_t j, std::int64_t m, std::int64_t n, const float* from,
            std::int64_t ld) {
  const std::int64_t size = g.c_type == GemmType::fp32 ? 4 : 2;
  for (std::int64_t r = 0; r < m; ++r) {
    char* to = static_cast<char*>(g.c) + ((i + r) * g.c_row + j) * size;
    finish_line<V>(from + r * ld, g.bias == nullptr ? nullptr : g.bias + j, n, g.c_type, to);
  }
}

// KB steps of k for columns [0, 2 * kWidth) of all rows: acc = (start ? +0 : acc), then fma for ascending k.
template <class V, int KB, class T>
inline void skinny_block(const T* const* b, const float* a, std::int64_t a_row, std::int64_t m, float* acc,
                         std::int64_t ld, bool start) {
  typename V::F right[KB][2];
#pragma GCC unroll 4
  for (int k = 0; k < KB; ++k) {
    right[k][0] = V::widen(b[k]);
    right[k][1] = V::widen(b[k] + V::kWidth);
  }
  for (std::int64_t r = 0; r < m; ++r, a += a_row, acc += ld) {
    typename V::F low = start ? V::zero() : V::load(acc);
    typename V::F high = start ? V::zero() : V::load(acc + V::kWidth);
#pragma GCC unroll 4
    for (int k = 0; k < KB; ++k) {
      const typename V::F left = V::broadcast(a + k);
      low = V::fma(left, right[k][0], low);
      high = V::fma(left, right[k][1], high);
    }
    V::store(acc, low);
    V::store(acc + V::kWidth, high);
  }
}

// KB rows of B over `n` columns.
template <class V, int KB, class T>
void skinny_rows(const T* b, std::int64_t b_row, std::int64_t n, const float* a, std::int64_t a_row, std::int64_t m,
                 float* acc, std::int64_t ld, bool start) {
  constexpr std::int64_t kStep = 2 * V::kWidth;
  const T* at[KB];
  std::int64_t j = 0;
  for (; j + kStep <= n; j += kStep) {
    for (int k = 0; k < KB; ++k) {
      at[k] = b + k * b_row + j;
      __builtin_prefetch(at[k] + KB * b_row);
      if constexpr (kStep * sizeof(T) > 64) __builtin_prefetch(at[k] + KB * b_row + kStep / 2);
    }
    skinny_block<V, KB>(at, a, a_row, m, acc + j, ld, start);
  }
  if (j < n) {
    T staged[KB][kStep] = {};
    for (int k = 0; k < KB; ++k) {
      for (std::int64_t i = 0; j + i < n; ++i) staged[k][i] = b[k * b_row + j + i];
      at[k] = staged[k];
    }
    skinny_block<V, KB>(at, a, a_row, m, acc + j, ld, start);
  }
}

// Segment [k0, k1) of all rows and columns [j, j + n), B in place.
template <class V, class T>
void skinny_segment(const GemmRegion& g, const T* a, const T* b, std::int64_t k0, std::int64_t k1, std::int64_t j,
                    std::int64_t n, float* c, std::int64_t ld, bool first) {
  const std::int64_t length = k1 - k0;
  float* rows = g.pack_a;
  for (std::int64_t i = 0; i < g.m; ++i) {
    const T* from = a + i * g.a_row + k0 * g.a_column;
    std::int64_t k = 0;
    for (; g.a_column == 1 && k + 8 <= length; k += 8) V::widen8(from + k, rows + i * length + k);
    for (; k < length; k += 8) {
      float staged[8];
      const std::int64_t count = smaller(8, length - k);
      widen_some<V>(from + k * g.a_column, g.a_column, count, staged);
      for (std::int64_t s = 0; s < count; ++s) rows[i * length + k + s] = staged[s];
    }
  }
  float* acc = g.pack_b;
  const std::int64_t acc_ld = (n + 2 * V::kWidth - 1) / (2 * V::kWidth) * (2 * V::kWidth);
  std::int64_t k = 0;
  for (; k + 4 <= length; k += 4) {
    skinny_rows<V, 4>(b + (k0 + k) * g.b_row + j, g.b_row, n, rows + k, length, g.m, acc, acc_ld, k == 0);
  }
  for (; k < length; ++k) {
    skinny_rows<V, 1>(b + (k0 + k) * g.b_row + j, g.b_row, n, rows + k, length, g.m, acc, acc_ld, k == 0);
  }
  for (std::int64_t i = 0; i < g.m; ++i) {
    if (first) {
      std::memcpy(c + i * ld, acc + i * acc_ld, static_cast<std::size_t>(n) * sizeof(float));
    } else {
      add_line<V>(c + i * ld, acc + i * acc_ld, n);
    }
  }
}

// A packed block of A (`m` rows) times a packed block of B (`n` columns) into c.
template <class V>
void multiply_block(const GemmRegion& g, std::int64_t length, std::int64_t m, std::int64_t n, float* c, std::int64_t ld,
                    bool first) {
  for (std::int64_t j = 0; j < n; j += V::kColumns) {
    for (std::int64_t i = 0; i < m; i += V::kRows) {
      micro_rows<V, V::kRows>(smaller(V::kRows, m - i), length, g.pack_a + i * length, g.pack_b + j * length,
                              c + i * ld + j, ld, smaller(V::kColumns, n - j), first);
    }
  }
}

// Segment [k0, k1) of rows [i, i + m) and columns [j, j + n), packed.
template <class V, class T>
void packed_segment(const GemmRegion& g, const T* a, const T* b, std::int64_t k0, std::int64_t k1, std::int64_t i,
                    std::int64_t m, std::int64_t j, std::int64_t n, float* c, std::int64_t ld, bool first, bool last) {
  const std::int64_t length = k1 - k0;
  a += i * g.a_row + k0 * g.a_column;
  b += k0 * g.b_row + j * g.b_column;
  if (m <= g.block_m) {
    // All of A stays packed; a block of B is used once, while it is in level 2.
    pack_rows<V>(a, g.a_row, g.a_column, m, length, g.pack_a);
    for (std::int64_t left = 0; left < n; left += g.panel_n) {
      const std::int64_t columns = smaller(g.panel_n, n - left);
      pack_columns<V>(b + left * g.b_column, g.b_row, g.b_column, columns, length, g.pack_b);
      multiply_block<V>(g, length, m, columns, c + left, ld, first);
      if (last) finish<V>(g, i, j + left, m, columns, c + left, ld);
    }
    return;
  }
  pack_columns<V>(b, g.b_row, g.b_column, n, length, g.pack_b);
  for (std::int64_t top = 0; top < m; top += g.block_m) {
    const std::int64_t rows = smaller(g.block_m, m - top);
    pack_rows<V>(a + top * g.a_row, g.a_row, g.a_column, rows, length, g.pack_a);
    multiply_block<V>(g, length, rows, n, c + top * ld, ld, first);
    // Here the block is still in cache.
    if (last) finish<V>(g, i + top, j, rows, n, c + top * ld, ld);
  }
}

template <class V, class T>
void run_typed(const GemmRegion& g) {
  const T* a = static_cast<const T*>(g.a);
  const T* b = static_cast<const T*>(g.b);
  const std::int64_t pass = g.skinny ? g.m : g.pass_m;
  for (std::int64_t j = 0; j < g.n; j += g.block_n) {
    const std::int64_t n = smaller(g.block_n, g.n - j);
    for (std::int64_t i = 0; i < g.m; i += pass) {
      const std::int64_t m = smaller(pass, g.m - i);
      const std::int64_t ld = g.sums == nullptr ? g.c_row : n;
      float* bottom = g.sums == nullptr ? static_cast<float*>(g.c) + i * g.c_row + j : g.sums;
      bool finished = false;
      if (g.segments == 0) {
        for (std::int64_t r = 0; r < m; ++r) std::memset(bottom + r * ld, 0, static_cast<std::size_t>(n) * 4);
      }
      std::int64_t depth = 0;  // finished subtrees on the stack; slice s + 1 in binary says which merge
      for (std::int64_t slice = 0; slice < g.slices && g.segments > 0; ++slice, ++depth) {
        float* t = bottom + depth * m * n;
        for (std::int64_t s = g.slice_begin[slice]; s < g.slice_begin[slice + 1]; ++s) {
          const bool first = s == g.slice_begin[slice];
          if (g.skinny) {
            skinny_segment<V>(g, a, b, g.bounds[s], g.bounds[s + 1], j, n, t, ld, first);
          } else {
            finished = g.slices == 1 && s + 1 == g.segments;
            packed_segment<V>(g, a, b, g.bounds[s], g.bounds[s + 1], i, m, j, n, t, ld, first, finished);
          }
        }
        for (std::int64_t count = slice + 1; count % 2 == 0; count /= 2, --depth) {
          add_line<V>(bottom + (depth - 1) * m * n, bottom + depth * m * n, m * n);
        }
      }
      if (!finished) finish<V>(g, i, j, m, n, bottom, ld);
    }
  }
}

template <class V>
void run_region(const GemmRegion& g) {
  switch (g.ab_type) {
    case GemmType::fp32:
      return run_typed<V, float>(g);
    case GemmType::bf16:
      return run_typed<V, Bf16Bits>(g);
    case GemmType::fp16:
      return run_typed<V, Fp16Bits>(g);
  }
}

}  // namespace
}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_GEMM_KERNEL_H_
