// SPDX-License-Identifier: Apache-2.0
//
// E4M3, E5M2, E2M1 and E8M0 over all codes, all halfway points and random values, against a table and plain distances.
#include "src/numeric/fp8.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "src/numeric/e8m0.h"

namespace batchproof {
namespace {

struct Format {
  const char* name;
  int exponent_bits, fraction_bits, bias;
  int largest;  // code of the largest finite value
  int nan;      // code that NaN encodes to
  float (*decode)(std::uint8_t);
  std::uint8_t (*encode)(float);
  int sign() const { return 1 << (exponent_bits + fraction_bits); }
  double value(int magnitude) const {
    const int exponent = magnitude >> fraction_bits;
    const int fraction = magnitude & ((1 << fraction_bits) - 1);
    return exponent == 0 ? std::ldexp(fraction, 1 - bias - fraction_bits)
                         : std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
  }
  // By distance over the table; ties to the even code; saturating.
  int nearest(double magnitude) const {
    int best = 0;
    for (int code = 1; code <= largest; ++code) {
      const double here = std::fabs(value(code) - magnitude), there = std::fabs(value(best) - magnitude);
      if (here < there || (here == there && code % 2 == 0)) best = code;
    }
    return best;
  }
};

const Format kFormats[] = {
    {"e4m3", 4, 3, 7, 0x7E, 0x7F, e4m3_to_float, float_to_e4m3},
    {"e5m2", 5, 2, 15, 0x7B, 0x7E, e5m2_to_float, float_to_e5m2},
    {"e2m1", 2, 1, 1, 0x7, 0x7, e2m1_to_float, float_to_e2m1},
};

TEST(Fp8, EveryFiniteCodeDecodesAndComesBack) {
  for (const Format& format : kFormats) {
    for (int magnitude = 0; magnitude <= format.largest; ++magnitude) {
      for (int sign : {0, format.sign()}) {
        const auto code = static_cast<std::uint8_t>(sign | magnitude);
        const float value = format.decode(code);
        EXPECT_EQ(value, sign != 0 ? -format.value(magnitude) : format.value(magnitude)) << format.name << ' ' << +code;
        EXPECT_EQ(std::signbit(value), sign != 0);
        EXPECT_EQ(format.encode(value), code) << format.name;
      }
    }
  }
}

TEST(Fp8, PublishedExtremes) {
  EXPECT_EQ(e4m3_to_float(0x7E), 448.0f);
  EXPECT_EQ(e4m3_to_float(0x08), 0x1p-6f);
  EXPECT_EQ(e4m3_to_float(0x01), 0x1p-9f);
  EXPECT_EQ(e5m2_to_float(0x7B), 57344.0f);
  EXPECT_EQ(e5m2_to_float(0x04), 0x1p-14f);
  EXPECT_EQ(e5m2_to_float(0x01), 0x1p-16f);
  const float e2m1[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  for (std::uint8_t code = 0; code < 8; ++code) EXPECT_EQ(e2m1_to_float(code), e2m1[code]);
}

TEST(Fp8, CodesThatAreNoNumbers) {
  EXPECT_TRUE(std::isnan(e4m3_to_float(0x7F)));
  EXPECT_TRUE(std::isnan(e4m3_to_float(0xFF)));
  EXPECT_EQ(e5m2_to_float(0x7C), INFINITY);
  EXPECT_EQ(e5m2_to_float(0xFC), -INFINITY);
  for (int code : {0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF}) {
    EXPECT_TRUE(std::isnan(e5m2_to_float(static_cast<std::uint8_t>(code)))) << code;
  }
  for (const Format& format : kFormats) {
    EXPECT_EQ(format.encode(NAN), format.nan) << format.name;
    EXPECT_EQ(format.encode(-NAN), format.nan) << format.name;
  }
}

TEST(Fp8, EveryHalfwayPointGoesToTheEvenCode) {
  for (const Format& format : kFormats) {
    for (int low = 0; low < format.largest; ++low) {
      const auto half = static_cast<float>((format.value(low) + format.value(low + 1)) / 2);
      const int even = low % 2 == 0 ? low : low + 1;
      EXPECT_EQ(format.encode(half), even) << format.name << ' ' << low;
      EXPECT_EQ(format.encode(-half), even | format.sign()) << format.name << ' ' << low;
      EXPECT_EQ(format.encode(std::nextafter(half, 0.0f)), low) << format.name << ' ' << low;
      EXPECT_EQ(format.encode(std::nextafter(half, INFINITY)), low + 1) << format.name << ' ' << low;
    }
  }
}

TEST(Fp8, SaturatesWithItsSign) {
  for (const Format& format : kFormats) {
    for (float beyond : {static_cast<float>(format.value(format.largest)) * 1.01f, 1e6f, 3e38f, INFINITY}) {
      EXPECT_EQ(format.encode(beyond), format.largest) << format.name << ' ' << beyond;
      EXPECT_EQ(format.encode(-beyond), format.largest | format.sign()) << format.name << ' ' << beyond;
    }
  }
}

TEST(Fp8, AgreesWithTheNearestOfTheTable) {
  std::mt19937 random(4);
  for (const Format& format : kFormats) {
    for (int i = 0; i < 20000; ++i) {
      const auto word = static_cast<std::uint32_t>(random());
      const std::uint32_t exponent = 100 + (word >> 8) % 48;
      const float value =
          std::bit_cast<float>((word & 0x80000000u) | exponent << 23 | (static_cast<std::uint32_t>(random()) >> 9));
      const int sign = std::signbit(value) ? format.sign() : 0;
      ASSERT_EQ(format.encode(value), sign | format.nearest(std::fabs(static_cast<double>(value))))
          << format.name << ' ' << value;
    }
    EXPECT_EQ(format.encode(0x1p-149f), 0);
    EXPECT_EQ(format.encode(-0.0f), format.sign());
  }
}

TEST(E8m0, EveryCode) {
  for (int code = 0; code < 255; ++code) {
    const float value = e8m0_to_float(static_cast<std::uint8_t>(code));
    EXPECT_EQ(static_cast<double>(value), std::ldexp(1.0, code - 127)) << code;
    EXPECT_EQ(float_to_e8m0(value), code);
  }
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
  EXPECT_EQ(e8m0_to_float(kE8m0One), 1.0f);
}

TEST(E8m0, TakesTheNearestPowerAndTheEvenCodeAtATie) {
  for (int code = 0; code < 254; ++code) {
    const auto half = static_cast<float>(std::ldexp(1.5, code - 127));
    EXPECT_EQ(float_to_e8m0(half), code % 2 == 0 ? code : code + 1) << code;
    EXPECT_EQ(float_to_e8m0(std::nextafter(half, 0.0f)), code) << code;
    EXPECT_EQ(float_to_e8m0(std::nextafter(half, INFINITY)), code + 1) << code;
  }
}

TEST(E8m0, WhatItCannotSay) {
  EXPECT_EQ(float_to_e8m0(0.0f), 0);
  EXPECT_EQ(float_to_e8m0(-0.0f), 0);
  EXPECT_EQ(float_to_e8m0(0x1p-149f), 0);
  EXPECT_EQ(float_to_e8m0(INFINITY), 254);
  EXPECT_EQ(float_to_e8m0(3.4e38f), 254);
  for (float bad : {-1.0f, -0x1p-149f, -INFINITY, NAN, -NAN}) EXPECT_EQ(float_to_e8m0(bad), 255) << bad;
}

}  // namespace
}  // namespace batchproof
