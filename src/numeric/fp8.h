// SPDX-License-Identifier: Apache-2.0
//
// The two 8-bit formats of OCP "8-bit Floating Point Specification (OFP8)" 1.0, and E2M1 of OCP "Microscaling Formats
// (MX)" 1.0.
//   E4M3: bias 7, no infinity, one NaN magnitude S.1111.111, largest finite 448.
//   E5M2: bias 15, IEEE-like infinities and NaNs, largest finite 57344.
//   E2M1: bias 1, no infinity, no NaN, largest finite 6.
// Encoding is the saturating mode: round to nearest, ties to even; whatever rounds beyond the largest finite value, and
// infinity itself, gives the largest finite value with its sign. NaN gives one canonical code.
#ifndef BATCHPROOF_SRC_NUMERIC_FP8_H_
#define BATCHPROOF_SRC_NUMERIC_FP8_H_

#include <cstdint>

#include "src/numeric/host_device.h"

namespace batchproof {

constexpr std::uint8_t kE4m3Nan = 0x7F;
constexpr std::uint8_t kE4m3Max = 0x7E;  // 448
constexpr std::uint8_t kE5m2Nan = 0x7E;  // the quiet NaN with an empty payload
constexpr std::uint8_t kE5m2Max = 0x7B;  // 57344
constexpr std::uint8_t kE5m2Infinity = 0x7C;
constexpr std::uint8_t kE2m1Max = 0x7;  // 6

// A format with `Fraction` fraction bits, exponent bias `Bias` and largest finite magnitude code `Max`.
template <int Fraction, int Bias, int Max>
struct SmallFloat {
  // Value of a magnitude code (no sign bit), read as if every exponent were an ordinary one.
  BATCHPROOF_HD static float decode(std::uint32_t magnitude) {
    const int exponent = static_cast<int>(magnitude >> Fraction);
    const std::uint32_t fraction = magnitude & ((1u << Fraction) - 1u);
    const std::uint32_t significand = exponent == 0 ? fraction : fraction | 1u << Fraction;
    const int scale = (exponent == 0 ? 1 : exponent) - Bias - Fraction;
    return static_cast<float>(significand) * cast_bits<float>(static_cast<std::uint32_t>(scale + 127) << 23);
  }

  // Magnitude code of |value|, from the bits of an FP32 without its sign; not a NaN. Saturates.
  BATCHPROOF_HD static std::uint32_t encode(std::uint32_t bits) {
    if (bits >= 0x7F800000u) return Max;
    const int exponent = static_cast<int>(bits >> 23) - 127;
    if (exponent < -Bias - Fraction) return 0;  // below half of the smallest subnormal; FP32 subnormals as well
    const std::uint32_t significand = (bits & 0x7FFFFFu) | 0x800000u;
    const int smallest = 1 - Bias;  // exponent of the smallest normal
    const int drop = 23 - Fraction + (exponent < smallest ? smallest - exponent : 0);
    const std::uint32_t quotient = significand >> drop;
    const std::uint32_t rest = significand & ((1u << drop) - 1u);
    const std::uint32_t half = 1u << (drop - 1);
    const std::uint32_t rounded = quotient + (rest > half || (rest == half && (quotient & 1u) != 0) ? 1u : 0u);
    // A carry out of the fraction moves into the exponent by itself.
    const std::uint32_t base = exponent < smallest ? 0u : static_cast<std::uint32_t>(exponent + Bias - 1) << Fraction;
    const std::uint32_t code = base + rounded;
    return code > Max ? Max : code;
  }
};

using E4m3Format = SmallFloat<3, 7, kE4m3Max>;
using E5m2Format = SmallFloat<2, 15, kE5m2Max>;
using E2m1Format = SmallFloat<1, 1, kE2m1Max>;

BATCHPROOF_HD inline float with_sign(float magnitude, bool negative) {
  return cast_bits<float>(cast_bits<std::uint32_t>(magnitude) | (negative ? 0x80000000u : 0u));
}

BATCHPROOF_HD inline float e4m3_to_float(std::uint8_t code) {
  if ((code & 0x7Fu) == kE4m3Nan) return cast_bits<float>(0x7FC00000u);
  return with_sign(E4m3Format::decode(code & 0x7Fu), (code & 0x80u) != 0);
}

BATCHPROOF_HD inline std::uint8_t float_to_e4m3(float value) {
  const std::uint32_t bits = cast_bits<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return kE4m3Nan;
  return static_cast<std::uint8_t>((bits >> 24 & 0x80u) | E4m3Format::encode(bits & 0x7FFFFFFFu));
}

BATCHPROOF_HD inline float e5m2_to_float(std::uint8_t code) {
  const std::uint32_t magnitude = code & 0x7Fu;
  if (magnitude > kE5m2Infinity) return cast_bits<float>(0x7FC00000u);
  const float value = magnitude == kE5m2Infinity ? cast_bits<float>(0x7F800000u) : E5m2Format::decode(magnitude);
  return with_sign(value, (code & 0x80u) != 0);
}

BATCHPROOF_HD inline std::uint8_t float_to_e5m2(float value) {
  const std::uint32_t bits = cast_bits<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return kE5m2Nan;
  return static_cast<std::uint8_t>((bits >> 24 & 0x80u) | E5m2Format::encode(bits & 0x7FFFFFFFu));
}

// The low four bits of `code`.
BATCHPROOF_HD inline float e2m1_to_float(std::uint8_t code) {
  return with_sign(E2m1Format::decode(code & 0x7u), (code & 0x8u) != 0);
}

// The format has no NaN: a NaN gives +6, the largest code.
BATCHPROOF_HD inline std::uint8_t float_to_e2m1(float value) {
  const std::uint32_t bits = cast_bits<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return kE2m1Max;
  return static_cast<std::uint8_t>((bits >> 28 & 0x8u) | E2m1Format::encode(bits & 0x7FFFFFFFu));
}

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_NUMERIC_FP8_H_
