// SPDX-License-Identifier: Apache-2.0
//
// exp, rsqrt and sigmoid of the library's own (C10): IEEE operations only, so the bytes do not depend on libm or on the
// instruction set. A template over a Lanes type; included by files for one instruction set only, and by device code,
// whose lanes are one float.
#ifndef BATCHPROOF_SRC_KERNELS_CPU_MHC_MATH_H_
#define BATCHPROOF_SRC_KERNELS_CPU_MHC_MATH_H_

#ifdef __CUDACC__
#define BATCHPROOF_MHC_MATH __device__ inline
#else
#define BATCHPROOF_MHC_MATH
#endif

namespace batchproof {
namespace {

// e^x within 1 ULP: x = n ln 2 + r, |r| <= ln(2) / 2; the Taylor polynomial of degree 7 for e^r (its remainder is below
// 2^-27); 2^n in two factors, so that a subnormal result is rounded once. Overflow gives infinity, underflow zero, NaN
// the canonical NaN.
template <class V>
BATCHPROOF_MHC_MATH typename V::F exp_fp32(typename V::F x) {
  using F = typename V::F;
  constexpr float kLog2E = 0x1.715476p+0f;
  constexpr float kLn2High = 0x1.62e4p-1f;    // 15 bits, so n * high is exact
  constexpr float kLn2Low = 0x1.7f7d1cp-20f;  // ln 2 - high
  constexpr float kRound = 0x1.8p+23f;        // adding it rounds to an integer
  const F clamped = V::min(V::max(x, V::all(-110.0f)), V::all(100.0f));
  const F n = V::sub(V::fma(clamped, V::all(kLog2E), V::all(kRound)), V::all(kRound));
  F r = V::fma(n, V::all(-kLn2High), clamped);
  r = V::fma(n, V::all(-kLn2Low), r);
  F p = V::all(1.0f / 5040.0f);
  p = V::fma(p, r, V::all(1.0f / 720.0f));
  p = V::fma(p, r, V::all(1.0f / 120.0f));
  p = V::fma(p, r, V::all(1.0f / 24.0f));
  p = V::fma(p, r, V::all(1.0f / 6.0f));
  p = V::fma(p, r, V::all(0.5f));
  p = V::fma(p, r, V::all(1.0f));
  p = V::fma(p, r, V::all(1.0f));
  const F half = V::sub(V::fma(n, V::all(0.5f), V::all(kRound)), V::all(kRound));
  const F scaled = V::mul(V::mul(p, V::power_of_two(half)), V::power_of_two(V::sub(n, half)));
  return V::nan_of(x, scaled);
}

template <class V>
BATCHPROOF_MHC_MATH typename V::F rsqrt_fp32(typename V::F x) {
  return V::div(V::all(1.0f), V::sqrt(x));
}

template <class V>
BATCHPROOF_MHC_MATH typename V::F sigmoid_fp32(typename V::F x) {
  return V::div(V::all(1.0f), V::add(V::all(1.0f), exp_fp32<V>(V::sub(V::zero(), x))));
}

}  // namespace
}  // namespace batchproof

#endif  // BATCHPROOF_SRC_KERNELS_CPU_MHC_MATH_H_
