// SPDX-License-Identifier: Apache-2.0
//
// The normal transform: accuracy against erfc in long double, symmetry, moments, and golden bits that fail where a
// compiler contracts or reorders.
#include "src/numeric/normal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "src/numeric/digest.h"
#include "src/numeric/philox.h"

namespace batchproof {
namespace {

std::vector<std::uint32_t> sample_words() {
  std::vector<std::uint32_t> words = {0, 1, 2, 3, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF};
  // Both sides of |p - 1/2| = 0.425: p = 0.075 and 0.925.
  for (std::int64_t edge : {322122547LL, 3972844748LL}) {
    for (std::int64_t step = -3; step <= 3; ++step) words.push_back(static_cast<std::uint32_t>(edge + step));
  }
  for (std::uint32_t shift = 0; shift < 32; ++shift) words.push_back(1u << shift);
  const PhiloxKey key = element_key(1, 1);
  for (std::uint64_t i = 0; i < 20000; ++i) words.push_back(element_word(key, 0, i, 0));
  return words;
}

// Error of x as the quantile of the word's probability: one Newton step, in long double.
long double quantile_error(std::uint32_t word, double x) {
  const bool lower = word < 0x80000000u;
  const long double p = ((lower ? word : ~word) + 0.5L) / 4294967296.0L;
  const long double z = lower ? x : -static_cast<long double>(x);
  const long double cdf = std::erfc(-z / std::sqrt(2.0L)) / 2.0L;
  const long double density = std::exp(-z * z / 2.0L) / std::sqrt(2.0L * 3.14159265358979323846264338327950288L);
  return (cdf - p) / density;
}

TEST(Normal, IsTheQuantileOfItsWord) {
  for (std::uint32_t word : sample_words()) {
    const double x = normal_from_word(word);
    ASSERT_TRUE(std::isfinite(x)) << word;
    ASSERT_LT(std::fabs(x), 6.4) << word;
    ASSERT_LT(std::fabs(static_cast<double>(quantile_error(word, x))), 1e-15 * std::fabs(x) + 1e-18) << word;
  }
}

TEST(Normal, ComplementIsTheNegatedValue) {
  for (std::uint32_t word : sample_words()) {
    ASSERT_EQ(std::bit_cast<std::uint64_t>(normal_from_word(~word)),
              std::bit_cast<std::uint64_t>(-normal_from_word(word)))
        << word;
  }
}

TEST(Normal, GrowsWithTheWord) {
  std::vector<std::uint32_t> words = sample_words();
  std::sort(words.begin(), words.end());
  for (std::size_t i = 1; i < words.size(); ++i) {
    ASSERT_LE(normal_from_word(words[i - 1]), normal_from_word(words[i])) << words[i];
    if (words[i] - words[i - 1] > 4) {
      ASSERT_LT(normal_from_word(words[i - 1]), normal_from_word(words[i])) << words[i];
    }
  }
}

TEST(Normal, KnownQuantiles) {
  // Tables: p = 0.975 -> 1.959964, p = 0.75 -> 0.674490, p = 0.999 -> 3.090232.
  EXPECT_NEAR(normal_from_word(static_cast<std::uint32_t>(0.975 * 0x1p32)), 1.959963985, 1e-8);
  EXPECT_NEAR(normal_from_word(0xC0000000u), 0.674489750, 1e-8);
  EXPECT_NEAR(normal_from_word(static_cast<std::uint32_t>(0.999 * 0x1p32)), 3.090232306, 1e-7);
  EXPECT_NEAR(normal_from_word(0), -6.3379, 1e-3);
}

TEST(Normal, Moments) {
  const PhiloxKey key = element_key(2, 5);
  constexpr int kCount = 400000;
  double sum[5] = {};
  for (int i = 0; i < kCount; ++i) {
    const double x = normal_from_word(element_word(key, 3, static_cast<std::uint64_t>(i), 0));
    double power = 1.0;
    for (double& s : sum) s += power, power *= x;
  }
  EXPECT_NEAR(sum[1] / kCount, 0.0, 0.008);  // five standard errors
  EXPECT_NEAR(sum[2] / kCount, 1.0, 0.012);
  EXPECT_NEAR(sum[3] / kCount, 0.0, 0.031);
  EXPECT_NEAR(sum[4] / kCount, 3.0, 0.08);
}

TEST(Normal, LogarithmIsWithinTwoUnits) {
  for (std::uint32_t word : sample_words()) {
    const double p = (std::min(word, ~word) + 0.5) * 0x1p-32;
    const long double exact = std::log(static_cast<long double>(p));
    ASSERT_LT(std::fabs(static_cast<double>((log_below_one(p) - exact) / exact)), 4.5e-16) << word;
  }
  for (double x : {0.5, 0.25, 0.7071067811865475, 0.7071067811865477, 0x1p-33, 0.9999}) {
    const long double exact = std::log(static_cast<long double>(x));
    EXPECT_LT(std::fabs(static_cast<double>((log_below_one(x) - exact) / exact)), 4.5e-16) << x;
  }
}

// The digest moves when a compiler contracts a product and a sum into an fma.
TEST(Normal, GoldenBits) {
  const struct {
    std::uint32_t word;
    std::uint64_t bits;
  } golden[] = {
      {0x00000000, 0xC0195A1198FCF3D5}, {0x00000001, 0xC018AA6C7FE07FDE}, {0x00010000, 0xC010ADA31FF6FB96},
      {0x12345678, 0xBFF77B263457D4CE}, {0x40000000, 0xBFE5956B872030BA}, {0x7FFFFFFF, 0xBDF40D931FF62707},
      {0x80000000, 0x3DF40D931FF62707}, {0x9ABCDEF0, 0x3FD0F3991578CD04}, {0xECCCCCCC, 0x3FF7085226B1FC71},
      {0xFFFFFFFF, 0x40195A1198FCF3D5},
  };
  for (const auto& g : golden) EXPECT_EQ(std::bit_cast<std::uint64_t>(normal_from_word(g.word)), g.bits) << g.word;

  Digest digest;
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const double value = normal_from_word(i * 65537u + 12345u);
    digest.update(&value, sizeof(value));
  }
  EXPECT_EQ(digest.hex(), "64b998df603905f3");
}

}  // namespace
}  // namespace batchproof
