// SPDX-License-Identifier: Apache-2.0
//
// The same bytes for any number of ranks, and which order does not keep them; the fused operator against matmul with
// the tree policy; the reference; every constraint.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "batchproof/operator.h"
#include "batchproof/registry.h"
#include "src/check/runner.h"
#include "src/comm/thread_world.h"
#include "src/kernels/cpu/reduced_linear.h"
#include "src/numeric/dtype.h"
#include "src/runtime/problem.h"
#include "src/suite/expand.h"
#include "src/suite/load.h"
#include "tests/operator_test.h"

namespace batchproof {

const char* const kTestedOperator = "matmul_reduce_scatter";

namespace {

// Digest of y for each world; K per rank follows from 2048.
std::map<int, std::string> digests(const std::string& impl, const std::string& dtype, const std::string& y) {
  std::map<int, std::string> found;
  for (const int world : {1, 2, 4, 8, 16}) {
    const std::string text = fmt::format(
        R"({{"version": 1, "cases": [{{"name": "w", "op": "matmul_reduce_scatter", "impl": "{}", "axes": {{"W": [{}],
            "M": [16], "K": [{}], "N": [24], "dtype": ["{}"], "y_dtype": ["{}"]}},
            "standard": {{"bi": {{"inputs": "own"}}}}}}]}})",
        impl, world, 2048 / world, dtype, y);
    const auto suite = load_suite_text(text, "w.json");
    EXPECT_TRUE(suite) << suite.error().message;
    const auto cells = expand(*suite, {});
    EXPECT_TRUE(cells) << cells.error().message;
    RunOptions options;
    options.seed = 7;
    const auto all = digest_cells(*cells, options);
    if (all.size() != 1u) continue;
    found[world] = all.begin()->second.value().at(0).digest;
  }
  return found;
}

std::size_t classes(const std::map<int, std::string>& found) {
  std::set<std::string> different;
  for (const auto& [world, digest] : found) different.insert(digest);
  return different.size();
}

// One line of the table that this test prints: the class of each world, letters in the order of appearance.
void print_classes(const std::string& id, const std::string& dtype, const std::string& y,
                   const std::map<int, std::string>& found) {
  std::map<std::string, char> letters;
  std::string line = fmt::format("{:<32} {:<9} {:<5}", id, dtype, y);
  for (const auto& [world, digest] : found) {
    const auto letter = letters.emplace(digest, static_cast<char>('A' + letters.size())).first->second;
    line += fmt::format("  W={}: {}", world, letter);
  }
  fmt::print("{}\n", line);
}

TEST(MatmulReduceScatter, TreeHasOneBitClassOverWorldsAndVendorOrderSeveral) {
  for (const char* dtype : {"fp32", "bf16", "fp16", "mxfp8", "fp8", "fp8_block", "int8"}) {
    for (const char* y : {"fp32", "bf16"}) {
      if (std::string(dtype) == "fp16" && std::string(y) == "bf16") continue;
      if (std::string(dtype) == "fp32" && std::string(y) == "bf16") continue;
      const auto tree = digests("cpu-fp32_tree-tree16-chain256", dtype, y);
      ASSERT_EQ(tree.size(), 5u) << dtype << " " << y;
      EXPECT_EQ(classes(tree), 1u) << dtype << " " << y;
      print_classes("cpu-fp32_tree-tree16-chain256", dtype, y, tree);
    }
  }
  for (const char* dtype : {"fp32", "bf16", "mxfp8"}) {
    const auto vendor = digests("cpu-vendor_order-chain256", dtype, "fp32");
    ASSERT_EQ(vendor.size(), 5u);
    EXPECT_GT(classes(vendor), 1u) << dtype;
    print_classes("cpu-vendor_order-chain256", dtype, "fp32", vendor);
  }
}

// One rank holds all slices: the node is matmul's with the tree policy; further ranks only cut the tree.
TEST(MatmulReduceScatter, PartialIsMatmulWithTheTreePolicy) {
  constexpr std::int64_t kM = 3, kK = 1024, kN = 20;
  std::vector<float> x(kM * kK), w(kK * kN);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i * 2654435761u) % 1000) * 1e-3f - 0.5f;
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>((i * 40503u) % 997) * 1e-3f - 0.5f;
  const auto view = [](float* data, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
    bp_tensor tensor = {};
    tensor.data = data;
    tensor.dtype = BP_FP32;
    tensor.ndim = 2;
    tensor.shape[0] = rows;
    tensor.shape[1] = columns;
    tensor.stride[0] = stride;
    tensor.stride[1] = 1;
    return tensor;
  };
  std::vector<float> whole(kM * kN), fused(kM * kN);
  const bp_tensor all_x = view(x.data(), kM, kK, kK), all_w = view(w.data(), kK, kN, kN);
  const bp_tensor y = view(whole.data(), kM, kN, kN);
  ASSERT_TRUE(
      scaled_linear({Scaling::none, &all_x, &all_w, nullptr, nullptr, nullptr, &y}, {kGemmSegment, 16}, 1,
                    [](const GemmCall& call, const LinearSchedule& order) { return run_scheduled(call, order, 1); }));
  for (const int world : {1, 2, 4, 8, 16}) {
    std::vector<std::vector<float>> nodes;
    const std::int64_t k = kK / world;
    for (int rank = 0; rank < world; ++rank) {
      const bp_tensor part_x = view(x.data() + rank * k, kM, k, kK), part_w = view(w.data() + rank * k * kN, k, kN, kN);
      nodes.emplace_back(kM * kN);
      ASSERT_TRUE(tree_partial({Scaling::none, &part_x, &part_w}, world, kGemmSegment, 1, nodes.back().data()));
    }
    for (std::size_t width = nodes.size(); width > 1; width /= 2) {
      for (std::size_t i = 0; i < width / 2; ++i) {
        for (std::size_t e = 0; e < fused.size(); ++e) nodes[i][e] = nodes[2 * i][e] + nodes[2 * i + 1][e];
      }
    }
    EXPECT_EQ(nodes[0], whole) << world;
  }
}

TEST(MatmulReduceScatter, WhatDoesNotFitTheTreeSaysWhy) {
  EXPECT_EQ(tree_error(Scaling::none, 16, 4), "");
  EXPECT_EQ(tree_error(Scaling::none, 16, 3),
            "W = 3 does not divide the 16 slices of the tree; it must be 1, 2, 4, 8 or 16");
  EXPECT_EQ(tree_error(Scaling::none, 5, 4), "K_total = 20 is no multiple of 16: 16 slices of whole elements");
  EXPECT_EQ(tree_error(Scaling::block, 512, 2),
            "K_total = 1024 is no multiple of 2048: 16 slices of whole scale blocks of 128");
}

TEST(MatmulReduceScatter, EveryConstraintHasItsSentence) {
  const auto with = [](auto change) {
    Problem changed = problem("bf16", 4, 16, 512, 8);
    changed.dtypes[2] = BP_NONE;
    change(changed);
    return validate(changed);
  };
  EXPECT_EQ(with([](Problem&) {}), "accepted");
  EXPECT_EQ(with([](Problem& p) { p.axes["M"] = 18; }),
            "M = 18 must be a multiple of W = 4: every rank keeps M / W rows");
  EXPECT_EQ(with([](Problem& p) { p.axes["K"] = 0; }), "K = 0 is out of range; it must be 1 to 2147483647");
  EXPECT_EQ(with([](Problem& p) { p.attrs["reduce_op"] = std::string("max"); }),
            "reduce_op max is not supported; it must be sum");
  EXPECT_EQ(with([](Problem& p) { p.dtypes[1] = BP_FP16; }), "x2 has the dtype fp16; it must be that of x1, bf16");
  EXPECT_EQ(with([](Problem& p) {
              p.dtypes[0] = p.dtypes[1] = BP_E4M3;
              p.dtypes[7] = p.dtypes[11] = BP_E8M0;
              p.attrs["group_size"] = std::int64_t{549764202624};
            }),
            "group_size = 549764202624 does not suit these scales; it must be 0 or 4295032864");
  const auto strict = [&](auto change) {
    return with([&](Problem& p) {
      p.attrs["strict_limits"] = true;
      change(p);
    });
  };
  EXPECT_EQ(strict([](Problem&) {}), "accepted");
  EXPECT_EQ(strict([](Problem& p) { p.axes["K"] = 128; }),
            "K = 128 is outside the strict limits; it must be 256 to 65534");
  EXPECT_EQ(strict([](Problem& p) {
              p.world = 3;
              p.axes["M"] = 18;
            }),
            "W = 3 is outside the strict limits; it must be 2, 4, 8, 16, 32 or 64");
  EXPECT_EQ(strict([](Problem& p) { p.dtypes[3] = BP_FP32; }),
            "y has the dtype fp32; under strict_limits it must be that of x1, bf16");
  EXPECT_EQ(strict([](Problem& p) { p.attrs["comm_turn"] = std::int64_t{1}; }),
            "comm_turn = 1; under strict_limits it must be 0");
}

}  // namespace
}  // namespace batchproof
