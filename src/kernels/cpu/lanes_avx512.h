// SPDX-License-Identifier: Apache-2.0
//
// Lanes for AVX-512 (F, VL, BW, DQ); lanes_plain.h says what each function means. Included by *_avx512.cc only.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_LANES_AVX512_H_
#define BATCHPROOF_SRC_KERNELS_CPU_LANES_AVX512_H_

// GCC 12's own AVX-512 header initialises a register with itself and warns about that.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <immintrin.h>

#include <cstdint>

namespace batchproof {
namespace {

struct Avx512Lanes {
  static constexpr int kWidth = 16;
  static constexpr int kTokens = 12;  // 12 rows * (16 + 8 columns) = 24 registers, 2 of weights, 2 broadcasts
  using F = __m512;

  static F zero() { return _mm512_setzero_ps(); }
  static F all(float value) { return _mm512_set1_ps(value); }
  static F load(const float* at) { return _mm512_loadu_ps(at); }
  static void store(float* at, F value) { _mm512_storeu_ps(at, value); }
  static F load_bf16(const std::uint16_t* at) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static void store_bf16(std::uint16_t* at, F value) {
    // The canonical NaN has no low bits, so the carry cannot reach its exponent.
    const __m512i bits = _mm512_castps_si512(nan_of(value, value));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
  }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F sqrt(F a) { return _mm512_sqrt_ps(a); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F nan_of(F probe, F value) {
    const __mmask16 nan = _mm512_cmp_ps_mask(probe, probe, _CMP_UNORD_Q);
    return _mm512_mask_blend_ps(nan, value, _mm512_castsi512_ps(_mm512_set1_epi32(0x7FC00000)));
  }
  static F power_of_two(F n) {
    const __m512i exponent = _mm512_add_epi32(_mm512_cvttps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23));
  }

  struct C24 {
    __m512 low;
    __m256 high;
  };
  static C24 zero24() { return {_mm512_setzero_ps(), _mm256_setzero_ps()}; }
  static C24 load24(const float* at) { return {_mm512_loadu_ps(at), _mm256_loadu_ps(at + 16)}; }
  static void store24(float* at, const C24& value) {
    _mm512_storeu_ps(at, value.low);
    _mm256_storeu_ps(at + 16, value.high);
  }
  static void fma24(const float* scalar, const C24& weights, C24* acc) {
    const __m512 left = _mm512_set1_ps(*scalar);
    acc->low = _mm512_fmadd_ps(left, weights.low, acc->low);
    acc->high = _mm256_fmadd_ps(_mm512_castps512_ps256(left), weights.high, acc->high);
  }
  static C24 add24(const C24& a, const C24& b) { return {_mm512_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
};

}  // namespace
}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_LANES_AVX512_H_
