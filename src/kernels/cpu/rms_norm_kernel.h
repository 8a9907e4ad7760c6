// SPDX-License-Identifier: Apache-2.0
//
// RMSNorm over a block of rows as a template over a Lanes type. Included by rms_norm_plain.cc, rms_norm_avx2.cc and
// rms_norm_avx512.cc only; see mhc_kernel.h for why nothing of the standard library is called. A row may have a tail of
// fewer than 16 columns: it is padded with zeros, which add nothing to a square sum.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_RMS_NORM_KERNEL_H_
#define BATCHPROOF_SRC_KERNELS_CPU_RMS_NORM_KERNEL_H_

#include <cstdint>
#include <cstring>

#include "src/kernels/cpu/mhc_math.h"
#include "src/kernels/cpu/rms_norm_region.h"
#include "src/kernels/cpu/strands.h"

namespace batchproof {
namespace {

template <class V>
inline typename V::F rms_load(const float* at) {
  return V::load(at);
}
template <class V>
inline typename V::F rms_load(const std::uint16_t* at) {
  return V::load_bf16(at);
}
template <class V>
inline void rms_store(float* at, typename V::F value) {
  V::store(at, V::nan_of(value, value));
}
template <class V>
inline void rms_store(std::uint16_t* at, typename V::F value) {
  V::store_bf16(at, value);
}

// 16 columns from k; beyond `columns` zero.
template <class V, class T>
inline Strands<V> group(const T* x, std::int64_t k, std::int64_t columns) {
  T padded[kStrands] = {};
  const T* from = x + k;
  if (k + kStrands > columns) {
    std::memcpy(padded, from, static_cast<std::size_t>(columns - k) * sizeof(T));
    from = padded;
  }
  Strands<V> out;
  for (int i = 0; i < Strands<V>::kParts; ++i) out.part[i] = rms_load<V>(from + i * V::kWidth);
  return out;
}

template <class V, class T>
float square_sum(const RmsNormRegion& g, const T* x) {
  ChainSum total;
  for (std::int64_t begin = 0; begin < g.columns; begin += g.segment) {
    const std::int64_t start = g.descending ? (g.columns - 1 - begin) / g.segment * g.segment : begin;
    const std::int64_t end = start + g.segment < g.columns ? start + g.segment : g.columns;
    Strands<V> acc = Strands<V>::zero();
    if (!g.descending) {
      for (std::int64_t k = start; k < end; k += kStrands) {
        const Strands<V> value = group<V>(x, k, g.columns);
        acc.fma(value, value);
      }
    } else {
      for (std::int64_t k = start + (end - 1 - start) / kStrands * kStrands; k >= start; k -= kStrands) {
        const Strands<V> value = group<V>(x, k, g.columns);
        acc.fma(value, value);
      }
    }
    total.add(merged<V>(acc));
  }
  return total.total;
}

// A GPU block's order: groups of 16 threads, then butterflies.
template <class V, class T>
float block_square_sum(const RmsNormRegion& g, const T* x) {
  float sum = 0.0f;
  for (int warp = 0; warp < g.threads; warp += 32) {
    float lane[32];
    for (int half = 0; half < 32; half += kStrands) {
      Strands<V> acc = Strands<V>::zero();
      for (std::int64_t k = warp + half; k < g.columns; k += g.threads) {
        const Strands<V> value = group<V>(x, k, g.columns);
        acc.fma(value, value);
      }
      acc.store(lane + half);
    }
    for (int half = 16; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) lane[i] = lane[i] + lane[i + half];
    }
    sum = sum + lane[0];
  }
  return sum;
}

template <class V, class T>
void scale_row(const RmsNormRegion& g, const T* x, typename V::F scale, T* y) {
  const T* weight = static_cast<const T*>(g.weight);
  std::int64_t k = 0;
  for (; k + V::kWidth <= g.columns; k += V::kWidth) {
    typename V::F value = V::mul(rms_load<V>(x + k), scale);
    if (weight != nullptr) value = V::mul(value, rms_load<V>(weight + k));
    rms_store<V>(y + k, value);
  }
  if (k == g.columns) return;
  const auto bytes = static_cast<std::size_t>(g.columns - k) * sizeof(T);
  T in[V::kWidth] = {}, w[V::kWidth] = {}, out[V::kWidth];
  std::memcpy(in, x + k, bytes);
  typename V::F value = V::mul(rms_load<V>(in), scale);
  if (weight != nullptr) {
    std::memcpy(w, weight + k, bytes);
    value = V::mul(value, rms_load<V>(w));
  }
  rms_store<V>(out, value);
  std::memcpy(y + k, out, bytes);
}

template <class V, class T>
void rms_rows(const RmsNormRegion& g) {
  for (std::int64_t row = 0; row < g.rows; ++row) {
    const T* x = static_cast<const T*>(g.x) + row * g.x_row;
    const float squares = g.threads > 0 ? block_square_sum<V>(g, x) : square_sum<V>(g, x);
    const typename V::F mean = V::div(V::all(squares), V::all(static_cast<float>(g.columns)));
    scale_row<V>(g, x, rsqrt_fp32<V>(V::add(mean, V::all(g.eps))), static_cast<T*>(g.y) + row * g.y_row);
  }
}

template <class V>
void rms_norm_region(const RmsNormRegion& g) {
  if (g.bf16) {
    rms_rows<V, std::uint16_t>(g);
  } else {
    rms_rows<V, float>(g);
  }
}

}  // namespace
}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_RMS_NORM_KERNEL_H_
