// SPDX-License-Identifier: Apache-2.0
//
// Which rows and columns meet, dynamic scales, the reference, every constraint. Invariance: the suites.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/numeric/bf16.h"
#include "tests/operator_test.h"

namespace batchproof {

const char* const kTestedOperator = "alltoall_matmul";

namespace {

TEST(AlltoAllMatmul, RowsOfThisRankMeetTheirSlicesInRankOrder) {
  constexpr std::int64_t kM = 8, kK = 5, kN = 3;
  for (const int world : {1, 2, 4}) {
    for (const bool reference : {false, true}) {
      const auto ranks = static_cast<std::size_t>(world);
      const std::int64_t own = kM / world;
      const std::int64_t whole = world * kK;
      std::vector<std::vector<float>> x1, x2;
      for (int r = 0; r < world; ++r) {
        x1.push_back(entries(r, kM, kK));
        x2.push_back(entries(r + 4, whole, kN));
      }
      std::vector<Output> y(ranks), moved(ranks);
      std::vector<std::vector<bp_tensor>> tensors(ranks);
      for (std::size_t r = 0; r < ranks; ++r) {
        tensors[r].resize(table().port_count);
        tensors[r][port("x1")] = matrix(x1[r], BP_FP32, kM, kK);
        tensors[r][port("x2")] = matrix(x2[r], BP_FP32, whole, kN);
        tensors[r][port("y")] = y[r].view(reference, own, kN);
        tensors[r][port("all2all_out")] = moved[r].view(reference, own, whole);
      }
      Problem described = problem("fp32", world, kM, kK, kN);
      described.dtypes[port("bias")] = BP_NONE;
      const Result<void> done = call(described, reference, tensors);
      ASSERT_TRUE(done) << done.error().message;
      for (std::int64_t row = 0; row < kM; ++row) {
        const auto r = static_cast<std::size_t>(row / own);
        for (std::int64_t k = 0; k < whole; ++k)
          ASSERT_EQ(moved[r].at(reference, row % own * whole + k), static_cast<double>(entry(k / kK, row, k % kK)));
        for (std::int64_t j = 0; j < kN; ++j) {
          float expected = 0.0f;
          for (std::int64_t k = 0; k < whole; ++k)
            expected += entry(k / kK, row, k % kK) * entry(static_cast<std::int64_t>(r) + 4, k, j);
          ASSERT_EQ(y[r].at(reference, row % own * kN + j), static_cast<double>(expected));
        }
      }
    }
  }
}

// Two rows of very different size on one rank: each has its own scale, so both keep their codes.
TEST(AlltoAllMatmul, DynamicScalesBelongToTheirRow) {
  Problem described = problem("int8_dynamic", 1, 2, 4, 1);
  described.dtypes[port("y")] = BP_FP32;
  described.dtypes[port("bias")] = BP_NONE;
  std::vector<std::uint16_t> x1;
  for (const float value : {127.0f, -64.0f, 32.0f, 0.0f, 1.27e-4f, -0.64e-4f, 0.32e-4f, 0.0f})
    x1.push_back(float_to_bf16(value));
  std::vector<std::int8_t> x2 = {1, 1, 1, 1};
  std::vector<float> scale = {1.0f}, y(2);
  std::vector<std::uint16_t> out(8);
  std::vector<std::vector<bp_tensor>> tensors(1);
  tensors[0].resize(table().port_count);
  tensors[0][port("x1")] = matrix(x1, BP_BF16, 2, 4);
  tensors[0][port("x2")] = matrix(x2, BP_INT8, 4, 1);
  tensors[0][port("x2_scale")] = matrix(scale, BP_FP32, 1, 1);
  tensors[0][port("y")] = matrix(y, BP_FP32, 2, 1);
  tensors[0][port("all2all_out")] = matrix(out, BP_BF16, 2, 4);
  const Result<void> done = call(described, false, tensors);
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(y[0], 95.0f);  // 127 - 64 + 32 under the scale 1
  EXPECT_NEAR(y[1], 0.95e-4f, 0.02e-4f);
  EXPECT_EQ(out, x1);
}

TEST(AlltoAllMatmul, EveryConstraintHasItsSentence) {
  const auto with = [](const std::string& mode, bool strict, auto change) {
    Problem changed = problem(mode, 2, 4, 128, 64);
    changed.attrs["strict_limits"] = strict;
    changed.attrs["transpose_x2"] = true;
    change(changed);
    return validate(changed);
  };
  const auto nothing = [](Problem&) {};
  for (const char* mode : {"bf16", "fp16", "mxfp8", "fp8_dynamic", "int8_dynamic"})
    EXPECT_EQ(with(mode, true, nothing), "accepted") << mode;
  EXPECT_EQ(with("fp32", true, nothing), "x1 has the dtype fp32; under strict_limits it must be bf16 or fp16");
  EXPECT_EQ(with("bf16", false, [](Problem& p) { p.axes["M"] = 5; }),
            "M = 5 must be a multiple of W = 2: every rank keeps M / W rows");
  EXPECT_EQ(with("bf16", true, [](Problem& p) { p.axes["K"] = 32768; }),
            "W * K = 65536 is outside the strict limits; it must be 1 to 65535");
  EXPECT_EQ(with("mxfp8", false, [](Problem& p) { p.axes["K"] = 96; }),
            "K = 96 must be a multiple of 64: scales may not cross ranks");
  EXPECT_EQ(with("bf16", false, [](Problem& p) { p.dtypes[port("all2all_out")] = BP_FP32; }),
            "all2all_out has the dtype fp32; it must be that of x1, bf16");
  EXPECT_EQ(with("fp8_dynamic", false, [](Problem& p) { p.dtypes[port("x1")] = BP_FP32; }),
            "x1 has the dtype fp32; with dynamic scales it must be bf16 or fp16");
  EXPECT_EQ(with("fp16", true, [](Problem& p) { p.dtypes[port("bias")] = BP_FP32; }),
            "bias has the dtype fp32; under strict_limits it must be fp16 with fp16");
}

}  // namespace
}  // namespace batchproof
