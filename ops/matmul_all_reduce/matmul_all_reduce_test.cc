// SPDX-License-Identifier: Apache-2.0
//
// bias and x3 count once per rank; low-bit communication is refused in invariant mode; every constraint. The order of
// sums over ranks is tested with matmul_reduce_scatter and by the suites (relation world_size).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/operator_test.h"

namespace batchproof {

const char* const kTestedOperator = "matmul_all_reduce";

namespace {

Problem without_bias(int world) {
  Problem out = problem("bf16", world, 16, 512, 8);
  out.dtypes[port("bias")] = out.dtypes[port("x3")] = BP_NONE;
  return out;
}

// K = 16 ones: a rank's product is 16, with bias 1 and x3 2 it is 19, W times that on every rank.
TEST(MatmulAllReduce, BiasAndX3CountOncePerRank) {
  std::vector<float> x1(2 * 16, 1.0f), x2(16 * 3, 1.0f), bias(3, 1.0f), x3(2 * 3, 2.0f);
  bp_tensor row = matrix(bias, BP_FP32, 1, 3);
  row.ndim = 1;
  row.shape[0] = 3;
  row.stride[0] = 1;
  for (const char* id : {"cpu-fp32_tree-tree16-chain256", "cpu-vendor_order-chain256"}) {
    for (const int world : {1, 2, 4}) {
      std::vector<std::vector<float>> y(static_cast<std::size_t>(world), std::vector<float>(2 * 3, -1.0f));
      std::vector<std::vector<bp_tensor>> tensors;
      for (std::vector<float>& own : y) {
        std::vector<bp_tensor> all(table().port_count);
        all[port("x1")] = matrix(x1, BP_FP32, 2, 16);
        all[port("x2")] = matrix(x2, BP_FP32, 16, 3);
        all[port("bias")] = row;
        all[port("x3")] = matrix(x3, BP_FP32, 2, 3);
        all[port("y")] = matrix(own, BP_FP32, 2, 3);
        tensors.push_back(all);
      }
      const Result<void> done = call(problem("fp32", world, 2, 16, 3), false, tensors, &implementation(id));
      ASSERT_TRUE(done) << done.error().message;
      for (const std::vector<float>& own : y)
        EXPECT_EQ(own, std::vector<float>(2 * 3, 19.0f * static_cast<float>(world))) << id << " on " << world;
    }
  }
}

TEST(MatmulAllReduce, LowBitCommunicationPromisesNothingAboutNeighbours) {
  const Problem described = without_bias(2);
  const Problem::View view(described);
  const bp_device cpu = {sizeof(bp_device), BP_MEMORY_HOST, 0, 0, "cpu"};
  const bp_implementation& chosen = implementation("cpu-fp8comm-tile16");
  EXPECT_EQ(chosen.mode, BP_MODE_FAST);
  EXPECT_EQ(table().promises(&chosen, view.get(), &cpu) & (BP_NEIGHBOURS | BP_BATCH_SIZE | BP_POISON), 0u);
  char error[256] = "";
  bp_context context = {};
  context.world = 2;
  context.mode = BP_MODE_INVARIANT;
  context.problem = view.get();
  context.implementation = &chosen;
  context.error = error;
  context.error_size = sizeof(error);
  EXPECT_EQ(table().run(&context, nullptr), BP_REFUSED);
  EXPECT_NE(std::string(error).find("cpu-fp8comm-tile16 is not batch invariant"), std::string::npos);
}

TEST(MatmulAllReduce, EveryConstraintHasItsSentence) {
  const auto with = [](auto change) {
    Problem changed = without_bias(4);
    change(changed);
    return validate(changed);
  };
  EXPECT_EQ(with([](Problem&) {}), "accepted");
  EXPECT_EQ(with([](Problem& p) { p.dtypes[3] = BP_FP32; }), "x3 has the dtype fp32; it must be that of y, bf16");
  EXPECT_EQ(with([](Problem& p) { p.axes["K"] = 0; }), "K = 0 is out of range; it must be 1 to 2147483647");
  EXPECT_EQ(with([](Problem& p) { p.attrs["reduce_op"] = std::string("max"); }),
            "reduce_op max is not supported; it must be sum");
  EXPECT_EQ(with([](Problem& p) { p.dtypes[1] = BP_FP16; }), "x2 has the dtype fp16; it must be that of x1, bf16");
  const auto strict = [&](auto change) {
    return with([&](Problem& p) {
      p.attrs["strict_limits"] = true;
      change(p);
    });
  };
  EXPECT_EQ(strict([](Problem&) {}), "accepted");
  EXPECT_EQ(strict([](Problem& p) { p.axes["K"] = 65536; }),
            "K = 65536 is outside the strict limits; it must be 1 to 65535");
  EXPECT_EQ(strict([](Problem& p) { p.dtypes[4] = BP_FP32; }),
            "y has the dtype fp32; under strict_limits it must be that of x1, bf16");
  EXPECT_EQ(strict([](Problem& p) { p.attrs["block_size"] = std::int64_t{1}; }),
            "block_size = 1; under strict_limits it must be 0");
  EXPECT_EQ(strict([](Problem& p) { p.attrs["comm_turn"] = std::int64_t{1}; }),
            "comm_turn = 1; under strict_limits it must be 0");
}

}  // namespace
}  // namespace batchproof
