// SPDX-License-Identifier: Apache-2.0
//
// BF16 (1 sign, 8 exponent, 7 fraction bits): the upper half of an FP32.
#ifndef BATCHPROOF_SRC_NUMERIC_BF16_H_
#define BATCHPROOF_SRC_NUMERIC_BF16_H_

#include <cstdint>

#include "src/numeric/host_device.h"

namespace batchproof {

constexpr std::uint16_t kBf16Nan = 0x7FC0;  // the one NaN that conversions store (C4)
constexpr std::uint16_t kBf16Max = 0x7F7F;  // largest finite: (2 - 2^-7) * 2^127

// Exact; a NaN keeps its payload.
BATCHPROOF_HD inline float bf16_to_float(std::uint16_t bits) {
  return cast_bits<float>(static_cast<std::uint32_t>(bits) << 16);
}

// Rounds to nearest, ties to even; overflow gives infinity, every NaN gives kBf16Nan, subnormals are kept.
BATCHPROOF_HD inline std::uint16_t float_to_bf16(float value) {
  const std::uint32_t bits = cast_bits<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<std::uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? kBf16Nan : rounded);
}

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_NUMERIC_BF16_H_
