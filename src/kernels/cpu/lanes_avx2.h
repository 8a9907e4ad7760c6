// SPDX-License-Identifier: Apache-2.0
//
// Lanes for AVX2 with FMA; lanes_plain.h says what each function means. Included by *_avx2.cc only.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_LANES_AVX2_H_
#define BATCHPROOF_SRC_KERNELS_CPU_LANES_AVX2_H_

#include <immintrin.h>

#include <cstdint>

namespace batchproof {
namespace {

struct Avx2Lanes {
  static constexpr int kWidth = 8;
  static constexpr int kTokens = 4;  // 4 rows * 3 registers of columns + 3 of weights + 1
  using F = __m256;

  static F zero() { return _mm256_setzero_ps(); }
  static F all(float value) { return _mm256_set1_ps(value); }
  static F load(const float* at) { return _mm256_loadu_ps(at); }
  static void store(float* at, F value) { _mm256_storeu_ps(at, value); }
  static F load_bf16(const std::uint16_t* at) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static void store_bf16(std::uint16_t* at, F value) {
    // The canonical NaN has no low bits, so the carry cannot reach its exponent.
    const __m256i bits = _mm256_castps_si256(nan_of(value, value));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
    const __m256i high = _mm256_srli_epi32(rounded, 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm256_castsi256_si128(packed));
  }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F sqrt(F a) { return _mm256_sqrt_ps(a); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F min(F a, F b) { return _mm256_min_ps(a, b); }
  static F nan_of(F probe, F value) {
    return _mm256_blendv_ps(value, _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000)),
                            _mm256_cmp_ps(probe, probe, _CMP_UNORD_Q));
  }
  static F power_of_two(F n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvttps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
  }

  struct C24 {
    __m256 part[3];
  };
  static C24 zero24() { return {{zero(), zero(), zero()}}; }
  static C24 load24(const float* at) { return {{load(at), load(at + 8), load(at + 16)}}; }
  static void store24(float* at, const C24& value) {
    store(at, value.part[0]);
    store(at + 8, value.part[1]);
    store(at + 16, value.part[2]);
  }
  static void fma24(const float* scalar, const C24& weights, C24* acc) {
    const __m256 left = _mm256_broadcast_ss(scalar);
    acc->part[0] = _mm256_fmadd_ps(left, weights.part[0], acc->part[0]);
    acc->part[1] = _mm256_fmadd_ps(left, weights.part[1], acc->part[1]);
    acc->part[2] = _mm256_fmadd_ps(left, weights.part[2], acc->part[2]);
  }
  static C24 add24(const C24& a, const C24& b) {
    return {{add(a.part[0], b.part[0]), add(a.part[1], b.part[1]), add(a.part[2], b.part[2])}};
  }
};

}  // namespace
}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_LANES_AVX2_H_
