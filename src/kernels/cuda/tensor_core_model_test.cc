// SPDX-License-Identifier: Apache-2.0
//
// The CPU model of a tensor-core step on sums that can be done by hand.
#include "src/kernels/cuda/tensor_core_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "src/numeric/bf16.h"

namespace batchproof::cuda {
namespace {

float dot(const std::vector<float>& a, const std::vector<float>& b, int group, StepModel model) {
  std::vector<std::uint16_t> x, y;
  for (const float v : a) x.push_back(float_to_bf16(v));
  for (const float v : b) y.push_back(float_to_bf16(v));
  return model_dot(ModelType::bf16, x.data(), y.data(), static_cast<int>(x.size()), group, model);
}

TEST(TensorCoreModel, ExactSumsAreExact) {
  EXPECT_EQ(dot({1, 2, 3, 4}, {5, 6, 7, 8}, 4, {25, 23}), 70.0f);
  EXPECT_EQ(dot({1, -2, 3, -4}, {5, 6, 7, 8}, 2, {25, 23}), -18.0f);
  EXPECT_EQ(dot({}, {}, 16, {25, 23}), 0.0f);
}

TEST(TensorCoreModel, CutsBelowTheLargestExponent) {
  // 1 and 2^-26: with 25 fraction bits the second falls off, with 26 it is kept and cancels nothing but itself.
  const float tiny = std::ldexp(1.0f, -26);
  EXPECT_EQ(dot({1, tiny, -1}, {1, 1, 1}, 3, {25, 23}), 0.0f);
  EXPECT_EQ(dot({1, tiny, -1}, {1, 1, 1}, 3, {26, 23}), tiny);
  // Toward zero on both sides.
  EXPECT_EQ(dot({1, -tiny, -1}, {1, 1, 1}, 3, {25, 23}), 0.0f);
}

TEST(TensorCoreModel, ResultIsCutTowardZero) {
  // 1 + 3 * 2^-25 has 25 fraction bits: FP32 nearest would keep 1 + 2^-23, cutting keeps 1.
  const float small = std::ldexp(3.0f, -25);
  EXPECT_EQ(dot({1, small}, {1, 1}, 2, {25, 23}), 1.0f);
  EXPECT_EQ(dot({-1, -small}, {1, 1}, 2, {25, 23}), -1.0f);
  // 13 fraction bits of the result.
  EXPECT_EQ(dot({1, std::ldexp(1.0f, -14)}, {1, 1}, 2, {25, 13}), 1.0f);
}

TEST(TensorCoreModel, GroupingMovesBitsAndOrderInsideAGroupDoesNot) {
  const float tiny = std::ldexp(1.0f, -26);
  const std::vector<float> ones(4, 1.0f);
  EXPECT_EQ(dot({1, tiny, -1, 0}, ones, 4, {25, 23}), dot({tiny, 0, 1, -1}, ones, 4, {25, 23}));
  // In steps of two, 1 - 1 is gone before the small term comes.
  EXPECT_EQ(dot({1, -1, tiny, 0}, ones, 2, {25, 23}), tiny);
  EXPECT_EQ(dot({1, -1, tiny, 0}, ones, 4, {25, 23}), 0.0f);
}

TEST(TensorCoreModel, SubnormalsAndLimits) {
  const float least = std::ldexp(1.0f, -133);  // the least subnormal of BF16
  EXPECT_EQ(dot({least}, {1}, 1, {25, 23}), least);
  EXPECT_EQ(dot({-least}, {1}, 1, {25, 23}), -least);
  const float vanished = dot({-least}, {std::ldexp(1.0f, -100)}, 1, {25, 23});
  EXPECT_EQ(vanished, 0.0f);
  EXPECT_FALSE(std::signbit(vanished));
  const float large = std::ldexp(1.0f, 127);
  EXPECT_TRUE(std::isinf(dot({large, large}, {1, 1}, 2, {25, 23})));
}

}  // namespace
}  // namespace batchproof::cuda
