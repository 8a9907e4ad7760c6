// SPDX-License-Identifier: Apache-2.0
//
// Which columns land where, the reference, every constraint. Invariance: the suites.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/operator_test.h"

namespace batchproof {

const char* const kTestedOperator = "matmul_alltoall";

namespace {

TEST(MatmulAlltoAll, ColumnBlockDOfEverySourceLandsOnRankD) {
  constexpr std::int64_t kM = 3, kK = 10, kN = 8;
  for (const int world : {1, 2, 4}) {
    for (const bool reference : {false, true}) {
      const auto ranks = static_cast<std::size_t>(world);
      const std::int64_t width = kN / world;
      std::vector<std::vector<float>> x1, x2, bias;
      for (int r = 0; r < world; ++r) {
        x1.push_back(entries(r, kM, kK));
        x2.push_back(entries(2 * r + 1, kK, kN));
        bias.push_back(entries(r + 5, 1, kN));
      }
      std::vector<Output> y(ranks);
      std::vector<std::vector<bp_tensor>> tensors(ranks);
      for (std::size_t r = 0; r < ranks; ++r) {
        tensors[r].resize(table().port_count);
        tensors[r][port("x1")] = matrix(x1[r], BP_FP32, kM, kK);
        tensors[r][port("x2")] = matrix(x2[r], BP_FP32, kK, kN);
        tensors[r][port("bias")] = matrix(bias[r], BP_FP32, kN, 1);
        tensors[r][port("bias")].ndim = 1;
        tensors[r][port("y")] = y[r].view(reference, world * kM, width);
      }
      const Result<void> done = call(problem("fp32", world, kM, kK, kN), reference, tensors);
      ASSERT_TRUE(done) << done.error().message;
      for (std::int64_t row = 0; row < world * kM; ++row) {
        for (std::int64_t j = 0; j < kN; ++j) {
          const std::int64_t source = row / kM;
          float expected = entry(source + 5, 0, j);
          for (std::int64_t k = 0; k < kK; ++k) expected += entry(source, row % kM, k) * entry(2 * source + 1, k, j);
          ASSERT_EQ(y[static_cast<std::size_t>(j / width)].at(reference, row * width + j % width),
                    static_cast<double>(expected))
              << "world " << world << ", row " << row << ", column " << j;
        }
      }
    }
  }
}

TEST(MatmulAlltoAll, EveryConstraintHasItsSentence) {
  const auto with = [](const std::string& mode, bool strict, auto change) {
    Problem changed = problem(mode, 2, 4, 256, 64);
    changed.attrs["strict_limits"] = strict;
    changed.attrs["transpose_x2"] = true;
    change(changed);
    return validate(changed);
  };
  const auto nothing = [](Problem&) {};
  for (const char* mode : {"bf16", "fp16", "mxfp8", "fp8", "int8"}) EXPECT_EQ(with(mode, true, nothing), "accepted");
  EXPECT_EQ(with("fp32", false, nothing), "accepted");
  EXPECT_EQ(with("fp32", true, nothing), "x1 has the dtype fp32; under strict_limits it must be bf16 or fp16");
  EXPECT_EQ(with("bf16", false, [](Problem& p) { p.axes["N"] = 63; }),
            "N = 63 must be a multiple of W = 2: every rank gets N / W columns");
  EXPECT_EQ(with("bf16", true, [](Problem& p) { p.axes["K"] = 65536; }),
            "K = 65536 is outside the strict limits; it must be 1 to 65535");
  EXPECT_EQ(with("bf16", true, [](Problem& p) { p.world = 1; }),
            "W = 1 is outside the strict limits; it must be 2, 4, 8 or 16");
  EXPECT_EQ(with("bf16", true, [](Problem& p) { p.dtypes[port("y")] = BP_FP32; }),
            "y has the dtype fp32; under strict_limits it must be that of x1, bf16");
  EXPECT_EQ(with("int8", true, [](Problem& p) { p.dtypes[port("bias")] = BP_NONE; }),
            "int8 needs a bias under strict_limits; give bias");
  EXPECT_EQ(with("mxfp8", true, [](Problem& p) { p.attrs["transpose_x2"] = false; }),
            "MX scaling under strict_limits takes x2 transposed; set transpose_x2");
  EXPECT_EQ(with("int8", false, [](Problem& p) { p.axes["K"] = 131072; }),
            "K = 131072 is out of range; an INT32 accumulator holds 131071");
}

}  // namespace
}  // namespace batchproof
