// SPDX-License-Identifier: Apache-2.0
//
// FP16 over every bit pattern, every halfway point, and against the compiler's own type where there is one.
#include "src/numeric/fp16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>

namespace batchproof {
namespace {

double value_of(std::uint16_t bits) {
  const int exponent = bits >> 10 & 0x1F;
  const int fraction = bits & 0x3FF;
  const double magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

bool is_nan_pattern(std::uint16_t bits) { return (bits & 0x7FFF) > 0x7C00; }

// Rounds |value| to a multiple of the unit of its binade by the C library, in double.
std::uint16_t by_scaling(float value) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude >= 65520.0) return sign | 0x7C00;
  int exponent = magnitude == 0.0 ? -24 : std::ilogb(magnitude) - 10;
  if (exponent < -24) exponent = -24;
  const auto units = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(magnitude, -exponent)));
  // units of 2^exponent: 1024..2048 in a normal binade, fewer in the lowest one. The carry enters the exponent.
  return static_cast<std::uint16_t>(sign | ((static_cast<std::uint32_t>(exponent + 24) << 10) + units));
}

TEST(Fp16, EveryPatternDecodesAndComesBack) {
  for (std::uint32_t i = 0; i <= 0xFFFF; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    const float value = fp16_to_float(bits);
    if (is_nan_pattern(bits)) {
      EXPECT_TRUE(std::isnan(value)) << i;
      EXPECT_EQ(float_to_fp16(value), 0x7E00) << i;
      continue;
    }
    if ((bits & 0x7FFF) == 0x7C00) {
      EXPECT_EQ(value, (bits & 0x8000) != 0 ? -INFINITY : INFINITY);
    } else {
      ASSERT_EQ(value, value_of(bits)) << i;
      ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << i;
    }
    ASSERT_EQ(float_to_fp16(value), bits) << i;
  }
}

TEST(Fp16, EveryHalfwayPointGoesToTheEvenPattern) {
  for (std::uint32_t i = 0; i < 0x7C00; ++i) {
    const auto low = static_cast<std::uint16_t>(i);
    const auto high = static_cast<std::uint16_t>(i + 1);
    const auto even = i % 2 == 0 ? low : high;
    const double above = high == 0x7C00 ? 65536.0 : value_of(high);
    const auto half = static_cast<float>((value_of(low) + above) / 2);
    ASSERT_EQ(static_cast<double>(half), (value_of(low) + above) / 2) << i;
    ASSERT_EQ(float_to_fp16(half), even) << i;
    ASSERT_EQ(float_to_fp16(-half), even | 0x8000) << i;
    ASSERT_EQ(float_to_fp16(std::nextafter(half, 0.0f)), low) << i;
    ASSERT_EQ(float_to_fp16(std::nextafter(half, INFINITY)), high) << i;
  }
}

// Random FP32 patterns, most of them in and around the range of FP16.
float random_float(std::mt19937* random) {
  const auto word = static_cast<std::uint32_t>((*random)());
  if (word % 8 == 0) return std::bit_cast<float>(static_cast<std::uint32_t>((*random)()));
  const std::uint32_t exponent = 98 + (word >> 8) % 48;
  return std::bit_cast<float>((word & 0x80000000u) | exponent << 23 | (static_cast<std::uint32_t>((*random)()) >> 9));
}

TEST(Fp16, AgreesWithRoundingInDouble) {
  std::mt19937 random(2);
  for (int i = 0; i < 300000; ++i) {
    const float value = random_float(&random);
    if (std::isnan(value)) {
      ASSERT_EQ(float_to_fp16(value), kFp16Nan);
    } else {
      ASSERT_EQ(float_to_fp16(value), by_scaling(value)) << value;
    }
  }
}

#ifdef __FLT16_MANT_DIG__
TEST(Fp16, AgreesWithTheCompilersType) {
  std::mt19937 random(3);
  for (int i = 0; i < 1000000; ++i) {
    const float value = random_float(&random);
    if (std::isnan(value)) continue;
    ASSERT_EQ(float_to_fp16(value), std::bit_cast<std::uint16_t>(static_cast<_Float16>(value))) << value;
  }
  for (std::uint32_t i = 0; i <= 0xFFFF; ++i) {
    const auto bits = static_cast<std::uint16_t>(i);
    if (is_nan_pattern(bits)) continue;
    const auto value = static_cast<float>(std::bit_cast<_Float16>(bits));
    ASSERT_EQ(std::bit_cast<std::uint32_t>(fp16_to_float(bits)), std::bit_cast<std::uint32_t>(value)) << i;
  }
}
#endif

TEST(Fp16, EveryNanBecomesTheOneNan) {
  for (std::uint32_t payload : {0x1u, 0x1FFFu, 0x2000u, 0x400000u, 0x7FFFFFu}) {
    EXPECT_EQ(float_to_fp16(std::bit_cast<float>(0x7F800000u | payload)), 0x7E00);
    EXPECT_EQ(float_to_fp16(std::bit_cast<float>(0xFF800000u | payload)), 0x7E00);
  }
}

TEST(Fp16, LimitsOfTheRange) {
  EXPECT_EQ(fp16_to_float(kFp16Max), 65504.0f);
  EXPECT_EQ(float_to_fp16(65519.996f), kFp16Max);
  EXPECT_EQ(float_to_fp16(65520.0f), 0x7C00);
  EXPECT_EQ(float_to_fp16(0x1p-25f), 0x0000) << "half of the smallest subnormal goes to the even zero";
  EXPECT_EQ(float_to_fp16(std::nextafter(0x1p-25f, 1.0f)), 0x0001);
  EXPECT_EQ(float_to_fp16(-0x1p-149f), 0x8000);
  EXPECT_EQ(float_to_fp16(0x1.ffcp-15f), 0x03FF + 1) << "the largest subnormals round up into the normals";
}

}  // namespace
}  // namespace batchproof
