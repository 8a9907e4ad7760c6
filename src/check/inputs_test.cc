// SPDX-License-Identifier: Apache-2.0
//
// What the harness puts into an operator's inputs.
#include "src/check/inputs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "src/check/local_host.h"
#include "src/numeric/dtype.h"

namespace batchproof {
namespace {

constexpr std::uint32_t kAll = BP_DTYPE_BIT(BP_BF16) | BP_DTYPE_BIT(BP_FP16) | BP_DTYPE_BIT(BP_E4M3) |
                               BP_DTYPE_BIT(BP_E5M2) | BP_DTYPE_BIT(BP_INT8) | BP_DTYPE_BIT(BP_INT4) |
                               BP_DTYPE_BIT(BP_E2M1);
constexpr bp_dtype kDtypes[] = {BP_BF16, BP_FP16, BP_E4M3, BP_E5M2, BP_INT8, BP_INT4, BP_E2M1};

// The reduction follows the lines of `kn`, the columns of `nk`, and two axes of `khn`.
const bp_port kPorts[] = {
    {"x", BP_ROW_INPUT, "M, K", 0, 2u, 1, "K", nullptr, BP_SHARDED, 0, kAll, 0, 0, nullptr, 0, "", 0},
    {"kn", BP_WEIGHT, "K, N", -1, 1u, 1, "K", nullptr, BP_REPLICATED, 0, kAll, 0, 0, nullptr, 0, "", 0},
    {"nk", BP_WEIGHT, "N, K", -1, 2u, 1, "K", nullptr, BP_REPLICATED, 0, kAll, 0, 0, nullptr, 0, "", 0},
    {"khn", BP_WEIGHT, "K / 4, 4, N", -1, 3u, 1, "K", nullptr, BP_REPLICATED, 0, kAll, 0, 0, nullptr, 0, "", 0},
};
const bp_axis_decl kAxes[] = {{"M", "rows"}, {"K", "reduction"}, {"N", "columns"}};

bp_status validate(const bp_problem*, char*, size_t) { return BP_OK; }

const bp_operator kProducts = [] {
  bp_operator table{};
  table.abi_version = BP_ABI_VERSION;
  table.struct_size = sizeof(bp_operator);
  table.name = "products";
  table.rows = "M";
  table.row_count_axis = "M";
  table.port_count = 4;
  table.ports = kPorts;
  table.axis_count = 3;
  table.axes = kAxes;
  table.validate = validate;
  return table;
}();

std::vector<double> values(const PortLayout& port, const Tensor& tensor) {
  std::vector<std::byte> bytes(port.bytes());
  read_all(port, tensor, bytes.data());
  std::vector<double> all;
  for (std::int64_t e = 0; e < port.elements(); ++e) all.push_back(decode_element(port.dtype, bytes.data(), e));
  return all;
}

class CancellingInputs : public testing::TestWithParam<bp_dtype> {};

// Every product that is not zero has its negative in the same sum. Products of these dtypes are exact in FP64.
TEST_P(CancellingInputs, EveryProductMeetsItsNegativeWhereverTheReductionRuns) {
  constexpr std::int64_t kM = 3, kK = 64, kN = 6;
  Problem problem;
  problem.axes = {{"M", kM}, {"K", kK}, {"N", kN}};
  problem.dtypes.assign(4, GetParam());
  LocalHost host(&kProducts);
  const auto layout = make_layout(host, problem);
  ASSERT_TRUE(layout.has_value()) << layout.error().message;
  RecipeSpec cancelling;
  cancelling.kind = RecipeKind::cancelling;
  InputBuilder builder(host, std::vector<RecipeSpec>(4, cancelling), 5, 7, false);
  Assignment rows;
  for (std::uint64_t row = 0; row < kM; ++row) rows.push_back({row, 7, 1.0, std::nullopt, std::nullopt});
  const auto run = builder.build(*layout, rows);
  ASSERT_TRUE(run.has_value()) << run.error().message;

  std::vector<std::vector<double>> tensors;
  for (std::size_t port = 0; port < 4; ++port) tensors.push_back(values(layout->ports[port], run->ranks[0][port]));
  for (std::size_t weight = 1; weight < 4; ++weight) {
    const bool by_line = weight != 2;
    for (std::int64_t m = 0; m < kM; ++m) {
      for (std::int64_t n = 0; n < kN; ++n) {
        std::vector<double> above, below;
        for (std::int64_t k = 0; k < kK; ++k) {
          const double product = tensors[0][static_cast<std::size_t>(m * kK + k)] *
                                 tensors[weight][static_cast<std::size_t>(by_line ? k * kN + n : n * kK + k)];
          if (product > 0.0) above.push_back(product);
          if (product < 0.0) below.push_back(-product);
        }
        std::sort(above.begin(), above.end());
        std::sort(below.begin(), below.end());
        EXPECT_EQ(above, below) << kPorts[weight].name << " row " << m << " column " << n;
        EXPECT_FALSE(above.empty()) << kPorts[weight].name << " row " << m << " column " << n;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CancellingInputs, testing::ValuesIn(kDtypes),
                         [](const auto& dtype) { return std::string(dtype_name(dtype.param)); });

}  // namespace
}  // namespace batchproof
