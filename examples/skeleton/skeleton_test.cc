// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "batchproof/registry.h"
#include "src/check/local_host.h"

namespace batchproof {
namespace {

const bp_operator* skeleton() {
  for (const bp_operator* table : registered_operators()) {
    if (std::strcmp(table->name, "skeleton") == 0) return table;
  }
  return nullptr;
}

// The plain statement of the sum, byte for byte.
TEST(SkeletonTest, EqualsTheStatedOrder) {
  ASSERT_NE(skeleton(), nullptr);
  LocalHost host(skeleton());
  Problem problem;
  problem.axes = {{"M", 2}, {"K", 5}};
  problem.dtypes = {BP_FP32, BP_FP32, BP_FP32};
  std::vector<float> x = {1, 0x1p-24f, -1, 3, 0.1f, 7, 0x1p-30f, -7, 2, 0.3f};
  std::vector<float> w = {1, 1, 1, 0x1p-20f, 3};
  std::vector<float> y(2, -1.0f);
  auto tensors = *host.shapes(problem);
  const std::pair<void*, std::int64_t> data[] = {{x.data(), 5}, {w.data(), 1}, {y.data(), 1}};
  for (std::size_t port = 0; port < 3; ++port) {
    tensors[port].data = data[port].first;
    tensors[port].stride[0] = data[port].second;
    tensors[port].stride[1] = 1;
  }
  RunRequest request;
  request.implementation = default_implementation(*skeleton(), BP_MODE_INVARIANT);
  request.problem = &problem;
  request.tensors = {tensors};
  const auto outcome = host.run(request);
  ASSERT_TRUE(outcome.has_value()) << outcome.error().message;
  EXPECT_EQ(outcome->executed, "cpu-fp32fma-ascending");
  for (std::size_t i = 0; i < 2; ++i) {
    float sum = 0.0f;
    for (std::size_t k = 0; k < 5; ++k) sum = std::fma(x[i * 5 + k], w[k], sum);
    EXPECT_EQ(std::memcmp(&sum, &y[i], sizeof sum), 0);
  }
}

}  // namespace
}  // namespace batchproof
