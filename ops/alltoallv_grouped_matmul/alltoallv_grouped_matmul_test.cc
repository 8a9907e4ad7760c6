// SPDX-License-Identifier: Apache-2.0
//
// Which rows meet which expert and where they land, the shared expert, the reference, every constraint. Invariance: the
// suites.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/grouped_test.h"

namespace batchproof {

const char* const kTestedOperator = "alltoallv_grouped_matmul";

namespace {

TEST(AlltoAllvGroupedMatmul, RowsMeetTheirExpertsInTheStatedOrder) {
  constexpr std::int64_t kM = 6, kK = 5, kN = 3, kE = 2;
  for (const int world : {1, 2, 4}) {
    const std::vector<std::int64_t> chosen = chosen_experts(world, kM, kE);
    const std::int64_t most = most_rows_of_an_owner(chosen, world, kE);
    for (const bool reference : {false, true}) {
      const auto ranks = static_cast<std::size_t>(world);
      std::vector<std::vector<float>> x(ranks), w(ranks), mm_x(ranks), mm_w(ranks);
      std::vector<Output> y(ranks), moved(ranks), mm_y(ranks);
      std::vector<std::vector<bp_tensor>> tensors(ranks);
      Problem described = grouped_problem("fp32", world, kM, kK, kN, kE, true);
      described.attrs["routing"] = as_list(chosen);
      for (std::size_t r = 0; r < ranks; ++r) {
        const int rank = static_cast<int>(r);
        x[r] = routed_rows(rows_of_rank(chosen, rank, kM), kM, kK);
        w[r] = expert_weights(rank, kE, kK, kN);
        mm_x[r] = entries(rank, kM / 2, kK);
        mm_w[r] = entries(rank + 3, kK, kN);
        tensors[r].resize(table().port_count);
        tensors[r][port("gmm_x")] = matrix(x[r], BP_FP32, kM, kK);
        tensors[r][port("gmm_weight")] = expert_tensor(w[r], kE, kK, kN);
        tensors[r][port("gmm_y")] = y[r].view(reference, most, kN);
        tensors[r][port("permute_out")] = moved[r].view(reference, most, kK);
        tensors[r][port("mm_x")] = matrix(mm_x[r], BP_FP32, kM / 2, kK);
        tensors[r][port("mm_weight")] = matrix(mm_w[r], BP_FP32, kK, kN);
        tensors[r][port("mm_y")] = mm_y[r].view(reference, kM / 2, kN);
      }
      const Result<void> done = call(described, reference, tensors);
      ASSERT_TRUE(done) << done.error().message;
      for (std::size_t r = 0; r < ranks; ++r) {
        const int rank = static_cast<int>(r);
        const std::vector<std::int64_t> landed = rows_of_owner(chosen, rank, kE);
        for (std::size_t p = 0; p < landed.size(); ++p) {
          const std::int64_t row = landed[p];
          const auto at = static_cast<std::int64_t>(p);
          for (std::int64_t k = 0; k < kK; ++k)
            ASSERT_EQ(moved[r].at(reference, at * kK + k), static_cast<double>(entry(0, row, k)));
          for (std::int64_t j = 0; j < kN; ++j)
            ASSERT_EQ(y[r].at(reference, at * kN + j),
                      static_cast<double>(routed_product(row, chosen[static_cast<std::size_t>(row)], kK, j)));
        }
        // Rows that nobody sent are left alone.
        for (std::int64_t i = static_cast<std::int64_t>(landed.size()) * kN; i < most * kN; ++i)
          ASSERT_EQ(y[r].at(reference, i), 0.0);
        for (std::int64_t i = 0; i < kM / 2; ++i) {
          for (std::int64_t j = 0; j < kN; ++j) {
            float expected = 0.0f;
            for (std::int64_t k = 0; k < kK; ++k) expected += entry(rank, i, k) * entry(rank + 3, k, j);
            ASSERT_EQ(mm_y[r].at(reference, i * kN + j), static_cast<double>(expected));
          }
        }
      }
    }
  }
}

TEST(AlltoAllvGroupedMatmul, CountsAreTheRoutingOfRowsInOrder) {
  Problem described = grouped_problem("bf16", 2, 4, 32, 8, 2, false);
  described.attrs["send_counts"] = std::string("1,0,2,1,0,4,0,0");
  described.attrs["recv_counts"] = std::string("1,0,0,4,2,1,0,0");
  EXPECT_EQ(validate(described), "accepted");
  const Problem::View view(described);
  std::vector<bp_tensor> tensors(table().port_count);
  char error[256] = "";
  ASSERT_EQ(table().infer_shapes(view.get(), tensors.data(), error, sizeof(error)), BP_OK) << error;
  EXPECT_EQ(tensors[port("gmm_x")].shape[0], 4);
  EXPECT_EQ(tensors[port("gmm_y")].shape[0], 5);  // rank 0 receives 1 + 4 rows, rank 1 3
  bp_location places[16];
  ASSERT_EQ(table().locate(view.get(), 6, places, 16), 4u);  // gmm_x, gmm_y, permute_out, the expert
  EXPECT_EQ(places[0].rank, 1);
  EXPECT_EQ(places[0].index, 2);
  EXPECT_EQ(places[1].rank, 0);
  EXPECT_EQ(places[1].index, 3);  // behind the row of expert 0 and two rows of its own expert
  EXPECT_EQ(places[3].port, port("gmm_weight"));
  EXPECT_EQ(places[3].index, 1);

  described.attrs["recv_counts"] = std::string("1,0,0,3,2,1,0,0");
  EXPECT_EQ(validate(described), "recv_counts has 3 rows between rank 1 and expert 1 of rank 0; send_counts has 4");
  described.attrs["recv_counts"] = std::string("1,0");
  EXPECT_EQ(validate(described),
            "recv_counts has 2 entries; it must have W * E = 4, or W times as many for each rank in turn");
  described.attrs["send_counts"] = std::string();
  EXPECT_EQ(validate(described), "recv_counts is there and send_counts is not; give both, or send_counts alone");
}

TEST(AlltoAllvGroupedMatmul, EveryConstraintHasItsSentence) {
  const auto with = [](const std::string& mode, bool shared, auto change) {
    Problem changed = grouped_problem(mode, 8, 8, 128, 64, 2, shared);
    changed.attrs["strict_limits"] = true;
    change(changed);
    return validate(changed);
  };
  const auto nothing = [](Problem&) {};
  for (const char* mode : {"bf16", "fp16", "mxfp8"}) {
    EXPECT_EQ(with(mode, true, nothing), "accepted") << mode;
    EXPECT_EQ(with(mode, false, nothing), "accepted") << mode;
  }
  for (const auto& [change, sentence] : common_constraints()) EXPECT_EQ(with("bf16", true, change), sentence);
  EXPECT_EQ(with("fp32", true, nothing), "gmm_x has the dtype fp32; under strict_limits it must be bf16 or fp16");
  EXPECT_EQ(with("bf16", true, [](Problem& p) { p.axes["E"] = 49; }),
            "E = 49 is outside the strict limits; it must be 1 to 48");
  EXPECT_EQ(with("mxfp8", true, [](Problem& p) { p.axes["E"] = 33; }),
            "E = 33 is outside the strict limits; it must be 1 to 32");
  EXPECT_EQ(with("mxfp8", true, [](Problem& p) { p.dtypes[port("gmm_x")] = BP_BF16; }),
            "gmm_x has the dtype bf16; it must be e4m3 or e5m2 with MX scales");
  EXPECT_EQ(with("mxfp8", true, [](Problem& p) { p.dtypes[port("mm_weight_scale")] = BP_NONE; }),
            "mm_weight_scale has the dtype none; it must be e8m0, for MX scales both products have");
  EXPECT_EQ(with("bf16", true, [](Problem& p) { p.dtypes[port("permute_out")] = BP_FP16; }),
            "permute_out has the dtype fp16; it must be that of gmm_x, bf16");
  EXPECT_EQ(
      with("bf16", true, [](Problem& p) { p.attrs["send_counts"] = std::string("1,1,1,1,1,1,1,1,0,0,0,0,0,0,0,1"); }),
      "send_counts of rank 0 has the sum 9; it must be M = 8");
}

}  // namespace
}  // namespace batchproof
