// SPDX-License-Identifier: Apache-2.0
//
// Which products come back to which row, the reference, every constraint. Invariance: the suites.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/grouped_test.h"

namespace batchproof {

const char* const kTestedOperator = "grouped_matmul_alltoallv";

namespace {

TEST(GroupedMatmulAlltoAllv, ProductsComeBackInTheOrderOfTheExperts) {
  constexpr std::int64_t kM = 6, kK = 5, kN = 3, kE = 2;
  for (const int world : {1, 2, 4}) {
    const std::vector<std::int64_t> chosen = chosen_experts(world, kM, kE);
    const std::int64_t most = most_rows_of_an_owner(chosen, world, kE);
    for (const bool reference : {false, true}) {
      const auto ranks = static_cast<std::size_t>(world);
      std::vector<std::vector<float>> x(ranks), w(ranks);
      std::vector<Output> y(ranks);
      std::vector<std::vector<bp_tensor>> tensors(ranks);
      Problem described = grouped_problem("fp32", world, kM, kK, kN, kE, false);
      described.attrs["routing"] = as_list(chosen);
      for (std::size_t r = 0; r < ranks; ++r) {
        const int rank = static_cast<int>(r);
        x[r] = routed_rows(rows_of_owner(chosen, rank, kE), most, kK);
        w[r] = expert_weights(rank, kE, kK, kN);
        tensors[r].resize(table().port_count);
        tensors[r][port("gmm_x")] = matrix(x[r], BP_FP32, most, kK);
        tensors[r][port("gmm_weight")] = expert_tensor(w[r], kE, kK, kN);
        tensors[r][port("y")] = y[r].view(reference, kM, kN);
      }
      const Result<void> done = call(described, reference, tensors);
      ASSERT_TRUE(done) << done.error().message;
      for (std::size_t r = 0; r < ranks; ++r) {
        const std::vector<std::int64_t> rows = rows_of_rank(chosen, static_cast<int>(r), kM);
        for (std::size_t p = 0; p < rows.size(); ++p) {
          const std::int64_t expert = chosen[static_cast<std::size_t>(rows[p])];
          for (std::int64_t j = 0; j < kN; ++j) {
            const float expected = expert < 0 ? 0.0f : routed_product(rows[p], expert, kK, j);
            ASSERT_EQ(y[r].at(reference, static_cast<std::int64_t>(p) * kN + j), static_cast<double>(expected));
          }
        }
      }
    }
  }
}

TEST(GroupedMatmulAlltoAllv, ReceivedCountsAreThoseOfTheRowsOwnRank) {
  Problem described = grouped_problem("bf16", 2, 4, 32, 8, 2, false);
  described.attrs["recv_counts"] = std::string("1,0,2,1,0,4,0,0");
  described.attrs["send_counts"] = std::string("1,0,0,4,2,1,0,0");
  EXPECT_EQ(validate(described), "accepted");
  described.attrs["send_counts"] = std::string("1,0,0,3,2,1,0,0");
  EXPECT_EQ(validate(described), "send_counts has 3 rows between rank 1 and expert 1 of rank 0; recv_counts has 4");
  described.attrs["recv_counts"] = std::string();
  EXPECT_EQ(validate(described), "send_counts is there and recv_counts is not; give both, or recv_counts alone");
}

TEST(GroupedMatmulAlltoAllv, EveryConstraintHasItsSentence) {
  const auto with = [](const std::string& mode, auto change) {
    Problem changed = grouped_problem(mode, 8, 8, 128, 64, 2, true);
    changed.attrs["strict_limits"] = true;
    change(changed);
    return validate(changed);
  };
  const auto nothing = [](Problem&) {};
  for (const char* mode : {"bf16", "fp16", "mxfp8"}) EXPECT_EQ(with(mode, nothing), "accepted") << mode;
  for (const auto& [change, sentence] : common_constraints()) EXPECT_EQ(with("bf16", change), sentence);
  EXPECT_EQ(with("bf16", [](Problem& p) { p.axes["E"] = 33; }),
            "E = 33 is outside the strict limits; it must be 1 to 32");
  EXPECT_EQ(with("bf16", [](Problem& p) { p.dtypes[port("y")] = BP_FP16; }),
            "y has the dtype fp16; it must be bf16 or fp32");
}

}  // namespace
}  // namespace batchproof
