// SPDX-License-Identifier: Apache-2.0
//
// E8M0, the scale of OCP "Microscaling Formats (MX)" 1.0: code v means 2^(v - 127); 255 is NaN. No sign, no zero.
#ifndef BATCHPROOF_SRC_NUMERIC_E8M0_H_
#define BATCHPROOF_SRC_NUMERIC_E8M0_H_

#include <cstdint>

#include "src/numeric/host_device.h"

namespace batchproof {

constexpr std::uint8_t kE8m0Nan = 0xFF;
constexpr std::uint8_t kE8m0Max = 0xFE;  // 2^127
constexpr std::uint8_t kE8m0One = 0x7F;

// Exact: 2^-127 is a subnormal FP32.
BATCHPROOF_HD inline float e8m0_to_float(std::uint8_t code) {
  if (code == kE8m0Nan) return cast_bits<float>(0x7FC00000u);
  if (code == 0) return cast_bits<float>(0x00400000u);
  return cast_bits<float>(static_cast<std::uint32_t>(code) << 23);
}

// The nearest power of two; a tie (1.5 * 2^e) takes the even code. Too small (zero included) gives code 0, too large
// (infinity included) gives 254. NaN and negative values give NaN: the format cannot say them.
BATCHPROOF_HD inline std::uint8_t float_to_e8m0(float value) {
  const std::uint32_t bits = cast_bits<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return kE8m0Nan;
  if (bits > 0x80000000u) return kE8m0Nan;
  if (bits >= 0x7F000000u) return bits == 0x80000000u ? std::uint8_t{0} : kE8m0Max;  // 2^127 and above; -0
  const std::uint32_t exponent = bits >> 23;
  if (exponent == 0) {
    // Subnormal: code 0 is 2^-127, code 1 is 2^-126; the tie at 1.5 * 2^-127 takes 0.
    return bits > 0x00600000u ? 1 : 0;
  }
  const std::uint32_t fraction = bits & 0x7FFFFFu;
  const bool up = fraction > 0x400000u || (fraction == 0x400000u && (exponent & 1u) != 0);
  return static_cast<std::uint8_t>(exponent + (up ? 1u : 0u));
}

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_NUMERIC_E8M0_H_
