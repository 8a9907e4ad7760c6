// SPDX-License-Identifier: Apache-2.0
//
// FP16 (IEEE binary16: 1 sign, 5 exponent, 10 fraction bits), and the canonical NaN of FP32.
#ifndef BATCHPROOF_SRC_NUMERIC_FP16_H_
#define BATCHPROOF_SRC_NUMERIC_FP16_H_

#include <cstdint>

#include "src/numeric/host_device.h"

namespace batchproof {

constexpr std::uint16_t kFp16Nan = 0x7E00;  // the one NaN that conversions store (C4)
constexpr std::uint16_t kFp16Max = 0x7BFF;  // largest finite: 65504
constexpr std::uint32_t kFp32Nan = 0x7FC00000;
constexpr std::uint32_t kFp32Max = 0x7F7FFFFF;

// Exact. A NaN gives a NaN with the payload moved up and the sign kept.
BATCHPROOF_HD inline float fp16_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t magnitude = bits & 0x7FFFu;
  if (magnitude >= 0x7C00u) return cast_bits<float>(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
  if (magnitude >= 0x0400u) return cast_bits<float>(sign | ((magnitude << 13) + (112u << 23)));
  // Subnormal: an integer times 2^-24, exact in FP32.
  const float value = static_cast<float>(magnitude) * 5.9604644775390625e-8f;
  return cast_bits<float>(sign | cast_bits<std::uint32_t>(value));
}

// Rounds to nearest, ties to even; overflow gives infinity, every NaN gives kFp16Nan, subnormals are kept.
BATCHPROOF_HD inline std::uint16_t float_to_fp16(float value) {
  const std::uint32_t bits = cast_bits<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  std::uint32_t result;
  if (magnitude >= 0x38800000u) {  // 2^-14 and above: normal, infinity or NaN
    if (magnitude > 0x7F800000u) return kFp16Nan;
    if (magnitude >= 0x477FF000u) return static_cast<std::uint16_t>(sign | 0x7C00u);  // 65520 and above
    result = (magnitude - (112u << 23) + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  } else if (magnitude > 0x33000000u) {  // above 2^-25, half of the smallest subnormal
    const std::uint32_t significand = (magnitude & 0x7FFFFFu) | 0x800000u;
    const std::uint32_t shift = 126u - (magnitude >> 23);  // 14..24: the result counts units of 2^-24
    const std::uint32_t half = 1u << (shift - 1);
    const std::uint32_t quotient = significand >> shift;
    const std::uint32_t rest = significand & ((1u << shift) - 1u);
    result = quotient + (rest > half || (rest == half && (quotient & 1u) != 0) ? 1u : 0u);
  } else {
    result = 0;
  }
  return static_cast<std::uint16_t>(sign | result);
}

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_NUMERIC_FP16_H_
