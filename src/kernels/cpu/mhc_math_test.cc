// SPDX-License-Identifier: Apache-2.0
#include "src/kernels/cpu/mhc_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "src/kernels/cpu/lanes_plain.h"
#include "src/kernels/cpu/strands.h"

namespace batchproof {
namespace {

float exp_of(float x) {
  float out[PlainLanes::kWidth];
  PlainLanes::store(out, exp_fp32<PlainLanes>(PlainLanes::all(x)));
  return out[0];
}

// Distance in units of the last place of the true value.
double ulp_error(float actual, double exact) {
  const float near = static_cast<float>(exact);
  if (std::isinf(near) || near == 0.0f) return actual == near ? 0.0 : 1e9;
  int exponent;
  std::frexp(exact, &exponent);
  return std::fabs(static_cast<double>(actual) - exact) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

TEST(ExpTest, WithinOneUlpOverTheWholeRange) {
  double worst = 0;
  for (int i = 0; i <= 400000; ++i) {
    const float x = -104.0f + 193.0f * static_cast<float>(i) / 400000.0f;
    worst = std::max(worst, ulp_error(exp_of(x), std::exp(static_cast<double>(x))));
  }
  EXPECT_LT(worst, 1.0);
  EXPECT_GT(worst, 0.5);  // it is no correctly rounded exp, and does not pretend to be
}

TEST(ExpTest, Ends) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exp_of(0.0f), 1.0f);
  EXPECT_EQ(exp_of(-0.0f), 1.0f);
  EXPECT_EQ(exp_of(88.73f), infinity);
  EXPECT_LT(exp_of(88.72f), infinity);
  EXPECT_EQ(exp_of(1e30f), infinity);
  EXPECT_EQ(exp_of(infinity), infinity);
  EXPECT_EQ(exp_of(-infinity), 0.0f);
  EXPECT_EQ(exp_of(-104.5f), 0.0f);
  EXPECT_EQ(exp_of(-103.0f), 0x1p-149f);  // subnormals are kept
  const float nan = exp_of(std::nanf("1"));
  EXPECT_EQ(cast_bits<std::uint32_t>(nan), 0x7FC00000u);
}

TEST(SigmoidTest, MeetsItsLimits) {
  const auto sigmoid = [](float x) {
    float out[PlainLanes::kWidth];
    PlainLanes::store(out, sigmoid_fp32<PlainLanes>(PlainLanes::all(x)));
    return out[0];
  };
  EXPECT_EQ(sigmoid(0.0f), 0.5f);
  EXPECT_EQ(sigmoid(200.0f), 1.0f);
  EXPECT_EQ(sigmoid(-200.0f), 0.0f);
  for (float x = -20.0f; x < 20.0f; x += 0.37f)
    EXPECT_NEAR(sigmoid(x), 1.0 / (1.0 + std::exp(-static_cast<double>(x))), 2e-7) << x;
}

TEST(StrandsTest, MergeAsAFixedTree) {
  float strand[16];
  for (int i = 0; i < 16; ++i) strand[i] = std::ldexp(1.0f, 2 * i);
  // ((s0 + s8) + (s4 + s12)) + ...
  float expected[16];
  std::copy(strand, strand + 16, expected);
  for (int half = 8; half > 0; half /= 2) {
    for (int j = 0; j < half; ++j) expected[j] += expected[j + half];
  }
  EXPECT_EQ(merge_strands(strand), expected[0]);
  ChainSum chain;
  chain.add(-0.0f);  // the first segment is taken as it is
  EXPECT_TRUE(std::signbit(chain.total));
  chain.add(1.0f);
  EXPECT_EQ(chain.total, 1.0f);
}

}  // namespace
}  // namespace batchproof
