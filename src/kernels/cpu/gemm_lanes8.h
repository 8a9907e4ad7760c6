// SPDX-License-Identifier: Apache-2.0
//
// Eight-lane helpers for packing, shared by the AVX2 and the AVX-512 kernel. Anonymous namespace on purpose: see
// gemm_kernel.h.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_GEMM_LANES8_H_
#define BATCHPROOF_SRC_KERNELS_CPU_GEMM_LANES8_H_

#include <immintrin.h>

#include "src/kernels/cpu/gemm_kernel.h"

namespace batchproof {
namespace {

inline __m256 lanes8(const float* from) { return _mm256_loadu_ps(from); }

inline __m256 lanes8(const Bf16Bits* from) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

inline __m256 lanes8(const Fp16Bits* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

// to[k * ld + i] = from[i][k] for i < keep, k < 8; keep is 4, 6 or 8.
template <int keep>
inline void transpose8_lanes(const float* const* from, float* to, std::int64_t ld) {
  __m256 low[8];
  __m256 out[8];
  for (int i = 0; i < 8; ++i) low[i] = _mm256_loadu_ps(from[i]);
  // Pairs, then fours inside each 128-bit half, then the halves.
  for (int i = 0; i < 8; i += 2) {
    out[i] = _mm256_unpacklo_ps(low[i], low[i + 1]);
    out[i + 1] = _mm256_unpackhi_ps(low[i], low[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    low[i] = _mm256_shuffle_ps(out[i], out[i + 2], 0x44);
    low[i + 1] = _mm256_shuffle_ps(out[i], out[i + 2], 0xEE);
    low[i + 2] = _mm256_shuffle_ps(out[i + 1], out[i + 3], 0x44);
    low[i + 3] = _mm256_shuffle_ps(out[i + 1], out[i + 3], 0xEE);
  }
  for (int i = 0; i < 4; ++i) {
    out[i] = _mm256_permute2f128_ps(low[i], low[i + 4], 0x20);
    out[i + 4] = _mm256_permute2f128_ps(low[i], low[i + 4], 0x31);
  }
  for (int k = 0; k < 8; ++k) {
    float* at = to + k * ld;
    if constexpr (keep == 8) {
      _mm256_storeu_ps(at, out[k]);
    } else {
      _mm_storeu_ps(at, _mm256_castps256_ps128(out[k]));
      if constexpr (keep == 6) {
        _mm_storel_pi(reinterpret_cast<__m64*>(at + 4), _mm256_extractf128_ps(out[k], 1));
      }
    }
  }
}

}  // namespace
}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_GEMM_LANES8_H_
