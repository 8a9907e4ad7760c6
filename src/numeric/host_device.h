// SPDX-License-Identifier: Apache-2.0
//
// What lets a numeric header compile for host and device and give the same bits on both: a function qualifier, bit
// casts, and double arithmetic that no compiler may contract into an fma.
#ifndef BATCHPROOF_SRC_NUMERIC_HOST_DEVICE_H_
#define BATCHPROOF_SRC_NUMERIC_HOST_DEVICE_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define BATCHPROOF_HD __host__ __device__
#else
#define BATCHPROOF_HD
#endif

namespace batchproof {

template <class To, class From>
BATCHPROOF_HD inline To cast_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

// Each is one IEEE operation rounded to nearest even. The host relies on -ffp-contract=off (C10); the golden values of
// normal_test.cc fail without it.
#ifdef __CUDA_ARCH__
__device__ inline double add_rn(double a, double b) { return __dadd_rn(a, b); }
__device__ inline double sub_rn(double a, double b) { return __dsub_rn(a, b); }
__device__ inline double mul_rn(double a, double b) { return __dmul_rn(a, b); }
__device__ inline double div_rn(double a, double b) { return __ddiv_rn(a, b); }
__device__ inline double sqrt_rn(double a) { return __dsqrt_rn(a); }
#else
BATCHPROOF_HD inline double add_rn(double a, double b) { return a + b; }
BATCHPROOF_HD inline double sub_rn(double a, double b) { return a - b; }
BATCHPROOF_HD inline double mul_rn(double a, double b) { return a * b; }
BATCHPROOF_HD inline double div_rn(double a, double b) { return a / b; }
BATCHPROOF_HD inline double sqrt_rn(double a) { return std::sqrt(a); }
#endif

// 2^exponent for exponents of normal doubles, -1022..1023.
BATCHPROOF_HD inline double power_of_two(int exponent) {
  return cast_bits<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_NUMERIC_HOST_DEVICE_H_
