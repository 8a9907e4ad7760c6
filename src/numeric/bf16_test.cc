// SPDX-License-Identifier: Apache-2.0
//
// BF16 over every bit pattern, every halfway point, and against a second formulation through double.
#include "src/numeric/bf16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

namespace batchproof {
namespace {

// Value of a finite pattern from its fields, without shifting bits into a float.
double value_of(std::uint16_t bits) {
  const int exponent = bits >> 7 & 0xFF;
  const int fraction = bits & 0x7F;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -133) : std::ldexp(128 + fraction, exponent - 134);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

bool is_nan_pattern(std::uint16_t bits) { return (bits & 0x7FFF) > 0x7F80; }

// Nearest finite pattern or infinity, by distance in double; the even pattern at a tie.
std::uint16_t nearest(float value) {
  const double magnitude = std::fabs(static_cast<double>(value));
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  std::uint16_t low = 0, high = 0x7F80;  // 0x7F80 stands for 2^128 when distances are taken
  while (high - low > 1) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (value_of(middle) <= magnitude ? low : high) = middle;
  }
  if (std::isinf(value)) return sign | 0x7F80;
  const double above = high == 0x7F80 ? 0x1p128 : value_of(high);
  const double down = magnitude - value_of(low), up = above - magnitude;
  if (down < up) return sign | low;
  if (up < down) return sign | high;
  return sign | (low % 2 == 0 ? low : high);
}

TEST(Bf16, EveryPatternDecodesAndComesBack) {
  for (std::uint32_t i = 0; i <= 0xFFFF; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float value = bf16_to_float(bits);
    if (is_nan_pattern(bits)) {
      EXPECT_TRUE(std::isnan(value)) << i;
      EXPECT_EQ(float_to_bf16(value), 0x7FC0) << i;
      continue;
    }
    if ((bits & 0x7FFF) == 0x7F80) {
      EXPECT_EQ(value, (bits & 0x8000) != 0 ? -INFINITY : INFINITY);
    } else {
      ASSERT_EQ(value, value_of(bits)) << i;
      ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << i;
    }
    ASSERT_EQ(float_to_bf16(value), bits) << i;
  }
}

TEST(Bf16, EveryHalfwayPointGoesToTheEvenPattern) {
  for (std::uint32_t i = 0; i < 0x7F80; ++i) {
    const auto low = static_cast<std::uint16_t>(i);
    const auto high = static_cast<std::uint16_t>(i + 1);
    const auto even = i % 2 == 0 ? low : high;
    const double above = high == 0x7F80 ? 0x1p128 : value_of(high);
    const double middle = (value_of(low) + above) / 2;
    const auto half = static_cast<float>(middle);
    ASSERT_EQ(static_cast<double>(half), middle) << i;
    ASSERT_EQ(float_to_bf16(half), even) << i;
    ASSERT_EQ(float_to_bf16(-half), even | 0x8000) << i;
    ASSERT_EQ(float_to_bf16(std::nextafter(half, 0.0f)), low) << i;
    ASSERT_EQ(float_to_bf16(std::nextafter(half, INFINITY)), high) << i;
  }
}

TEST(Bf16, AgreesWithDistancesInDouble) {
  std::mt19937 random(1);
  for (int i = 0; i < 300000; ++i) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isnan(value)) {
      ASSERT_EQ(float_to_bf16(value), kBf16Nan);
    } else {
      ASSERT_EQ(float_to_bf16(value), nearest(value)) << value;
    }
  }
}

TEST(Bf16, EveryNanBecomesTheOneNan) {
  for (std::uint32_t payload : {0x1u, 0x7FFFu, 0x8000u, 0x400000u, 0x7FFFFFu}) {
    EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x7F800000u | payload)), 0x7FC0);
    EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0xFF800000u | payload)), 0x7FC0);
  }
}

TEST(Bf16, LargestValues) {
  EXPECT_EQ(static_cast<double>(bf16_to_float(kBf16Max)), 255 * 0x1p120);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7F80) << "rounds up to infinity";
  EXPECT_EQ(float_to_bf16(-std::numeric_limits<float>::max()), 0xFF80);
}

}  // namespace
}  // namespace batchproof
