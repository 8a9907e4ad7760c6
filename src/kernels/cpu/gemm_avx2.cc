// SPDX-License-Identifier: Apache-2.0
//
// The GEMM kernel for AVX2 with FMA and F16C: tiles of 6 rows by 16 columns, 12 accumulators of 8 lanes.
#include "src/kernels/cpu/gemm_lanes8.h"

namespace batchproof {
namespace {

struct Avx2 {
  using F = __m256;
  static constexpr int kWidth = 8;
  static constexpr int kRows = 6;
  static constexpr int kColumns = 16;

  static F zero() { return _mm256_setzero_ps(); }
  static F load(const float* at) { return _mm256_loadu_ps(at); }
  static void store(float* at, F value) { _mm256_storeu_ps(at, value); }
  static F broadcast(const float* at) { return _mm256_broadcast_ss(at); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }

  template <class T>
  static F widen(const T* at) {
    return lanes8(at);
  }
  template <class T>
  static void widen8(const T* at, float* out) {
    _mm256_storeu_ps(out, lanes8(at));
  }
  template <int keep>
  static void transpose8(const float* const* from, float* to, std::int64_t ld) {
    transpose8_lanes<keep>(from, to, ld);
  }

  static F nan_mask(F value) { return _mm256_cmp_ps(value, value, _CMP_UNORD_Q); }
  static F canonical(F value) {
    return _mm256_blendv_ps(value, _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000)), nan_mask(value));
  }
  // Round to nearest even. The canonical NaN has no low bits, so the carry cannot reach its exponent.
  static void narrow_bf16(std::uint16_t* at, F value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd);
    const __m256i high = _mm256_srli_epi32(rounded, 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm256_castsi256_si128(packed));
  }
  static void narrow_fp16(std::uint16_t* at, F value) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
  }
};

}  // namespace

const GemmKernel kGemmAvx2 = {run_region<Avx2>, Avx2::kRows, Avx2::kColumns};

}  // namespace batchproof
