// SPDX-License-Identifier: Apache-2.0
//
// The GEMM kernel for AVX-512 (F, VL, BW, DQ): tiles of 14 rows by 32 columns, 28 accumulators of 16 lanes.

// GCC 12's own AVX-512 header initialises a register with itself and warns about that.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "src/kernels/cpu/gemm_lanes8.h"

namespace batchproof {
namespace {

struct Avx512 {
  using F = __m512;
  static constexpr int kWidth = 16;
  static constexpr int kRows = 14;
  static constexpr int kColumns = 32;

  static F zero() { return _mm512_setzero_ps(); }
  static F load(const float* at) { return _mm512_loadu_ps(at); }
  static void store(float* at, F value) { _mm512_storeu_ps(at, value); }
  static F broadcast(const float* at) { return _mm512_set1_ps(*at); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }

  static F widen(const float* at) { return _mm512_loadu_ps(at); }
  static F widen(const Bf16Bits* at) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static F widen(const Fp16Bits* at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  }
  template <class T>
  static void widen8(const T* at, float* out) {
    _mm256_storeu_ps(out, lanes8(at));
  }
  template <int keep>
  static void transpose8(const float* const* from, float* to, std::int64_t ld) {
    transpose8_lanes<keep>(from, to, ld);
  }

  static F canonical(F value) {
    const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    return _mm512_mask_blend_ps(nan, value, _mm512_castsi512_ps(_mm512_set1_epi32(0x7FC00000)));
  }
  // Round to nearest even. The canonical NaN has no low bits, so the carry cannot reach its exponent.
  static void narrow_bf16(std::uint16_t* at, F value) {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
  }
  static void narrow_fp16(std::uint16_t* at, F value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  }
};

}  // namespace

const GemmKernel kGemmAvx512 = {run_region<Avx512>, Avx512::kRows, Avx512::kColumns};

}  // namespace batchproof
