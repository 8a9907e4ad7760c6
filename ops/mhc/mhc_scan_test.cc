// SPDX-License-Identifier: Apache-2.0
//
// The flips of the default dispatch, computed from its rules, and the same flips found by running it at the sizes
// around every boundary; and invariant mode without any.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "ops/mhc/mhc_case.h"
#include "src/check/scan.h"
#include "src/kernels/cpu/mhc_plan.h"

namespace batchproof::mhc {
namespace {

using Flips = std::vector<std::int64_t>;

MhcDispatch dispatch(const std::string& op, std::int64_t hidden, std::int64_t processors, bool fallback = false) {
  MhcDispatch d;
  d.hidden = hidden;
  d.columns = op.find("broadcast") != std::string::npos ? hidden : 4 * hidden;
  d.processors = processors;
  d.fused = op.find("fused") != std::string::npos;
  d.fallback = fallback;
  return d;
}

// ---- the formula --------------------------------------------------------------------------------------------------

TEST(FlipTableTest, PreAt132And148Processors) {
  EXPECT_EQ(expected_flips(dispatch("mhc_pre", 4096, 132), 1, 8448),
            (Flips{129, 193, 257, 321,  385,  449,  513,  577,  641,  705,
                   769, 833, 897, 1025, 1153, 1409, 1665, 2113, 2817, 4225}));
  EXPECT_EQ(expected_flips(dispatch("mhc_pre", 4096, 148), 1, 8448),
            (Flips{129, 193, 257,  321,  385,  449,  513,  577,  641,  705, 769,
                   833, 897, 1025, 1153, 1345, 1537, 1857, 2369, 3137, 4737}));
  for (const std::int64_t hidden : {5120, 7168}) {
    for (const std::int64_t processors : {132, 148}) {
      const Flips flips = expected_flips(dispatch("mhc_pre", hidden, processors), 1, 8448);
      Flips same = expected_flips(dispatch("mhc_pre", 4096, processors), 1, 8448);
      same.insert(same.begin(), 65);
      EXPECT_EQ(flips, same) << hidden << " " << processors;
    }
  }
}

TEST(FlipTableTest, FusedAddsTheSmallKernel) {
  for (const std::int64_t hidden : {4096, 5120, 7168}) {
    for (const std::int64_t processors : {132, 148}) {
      Flips flips = expected_flips(dispatch("mhc_pre", hidden, processors), 1, 8448);
      // 7168 and 5120 have four splits on both sides of 8.
      const Flips small = hidden == 4096 ? Flips{8, 17} : Flips{17};
      flips.insert(flips.begin(), small.begin(), small.end());
      EXPECT_EQ(expected_flips(dispatch("mhc_fused_post_pre", hidden, processors), 1, 8448), flips);
    }
  }
}

TEST(FlipTableTest, Broadcast) {
  const auto first = [](std::int64_t hidden, std::int64_t processors) {
    return expected_flips(dispatch("mhc_pre_broadcast", hidden, processors), 1, 8448).at(0);
  };
  EXPECT_EQ(first(4096, 132), 513);
  EXPECT_EQ(first(5120, 132), 385);
  EXPECT_EQ(first(7168, 132), 257);
  EXPECT_EQ(first(4096, 148), 577);
  EXPECT_EQ(first(5120, 148), 449);
  EXPECT_EQ(first(7168, 148), 321);
}

TEST(FlipTableTest, FallbackFlipsAt128AndNotAt1024) {
  EXPECT_EQ(expected_flips(dispatch("mhc_pre", 4096, 132, true), 1, 8448), (Flips{128}));
  EXPECT_EQ(expected_flips(dispatch("mhc_fused_post_pre", 4096, 132, true), 1, 8448), (Flips{8, 17, 128}));
  // 4 * 1152 is no multiple of 1024: 512 threads on both sides.
  EXPECT_EQ(expected_flips(dispatch("mhc_pre", 1152, 132, true), 1, 8448), (Flips{}));
}

TEST(FlipTableTest, SplitsOfThePublishedTable) {
  EXPECT_EQ(occupancy_splits(132, 16384, 1), 64);
  EXPECT_EQ(occupancy_splits(132, 16384, 129), 44);
  EXPECT_EQ(occupancy_splits(148, 16384, 129), 49);
  EXPECT_EQ(occupancy_splits(132, 28672, 64), 112);
  EXPECT_EQ(occupancy_splits(132, 28672, 65), 66);
  EXPECT_EQ(occupancy_splits(132, 20480, 64), 80);
  EXPECT_EQ(occupancy_splits(132, 4096, 512), 16);
  EXPECT_EQ(occupancy_splits(132, 16384, 8448), 1);
  std::set<std::int64_t> distinct;
  for (std::int64_t rows = 1; rows <= 8448; ++rows) distinct.insert(occupancy_splits(132, 28672, rows));
  EXPECT_EQ(distinct.size(), 22u);
}

TEST(FlipTableTest, SplitsHoldWholeBlocksTheFirstOnesLonger) {
  MhcPath path;
  path.kind = MhcPath::Kind::splits;
  path.splits = 44;
  const auto bounds = product_bounds(path, 16384);
  ASSERT_EQ(bounds.size(), 45u);
  for (std::size_t s = 0; s < 44; ++s) EXPECT_EQ(bounds[s + 1] - bounds[s], s < 256 % 44 ? 6 * 64 : 5 * 64) << s;
  EXPECT_EQ(bounds.back(), 16384);
}

// ---- what runs ----------------------------------------------------------------------------------------------------

Cell cell_of(const std::string& op, const std::string& implementation, std::int64_t hidden, std::int64_t processors) {
  Cell cell;
  cell.op = find_table(op);
  cell.impl = find_implementation(*cell.op, implementation);
  cell.problem = default_problem(*cell.op, 1, hidden);
  cell.problem.attrs["processors"] = processors;
  cell.recipes.resize(cell.op->port_count);
  for (std::uint32_t i = 0; i < cell.op->port_count; ++i) {
    const std::string port = cell.op->ports[i].name;
    if (port == "fn" || port == "fn_broadcast") cell.recipes[i].kind = RecipeKind::checkpoint;
    if (port == "hc_scale") cell.recipes[i] = RecipeSpec{RecipeKind::constant, 0.25, 0, ""};
    if (port == "hc_base") cell.recipes[i] = RecipeSpec{RecipeKind::normal, 0, 0.1, ""};
  }
  return cell;
}

Flips flips_of(const std::vector<ScanFlip>& flips) {
  Flips list;
  for (const ScanFlip& flip : flips) list.push_back(flip.at);
  return list;
}

// Sizes around every boundary of the rule, and some between.
std::vector<std::int64_t> sizes_around(const Flips& flips, std::int64_t last) {
  std::set<std::int64_t> sizes = {1, 2, 7, 9, 16, 18, 33, 64, 66, 127, 128, last};
  for (const std::int64_t flip : flips) {
    if (flip > last) break;
    sizes.insert({flip - 1, flip});
  }
  return {sizes.begin(), sizes.end()};
}

struct Shape {
  const char* op;
  const char* implementation;
  std::int64_t hidden;
  std::int64_t processors;
  std::int64_t last;
};

std::string name_of(const testing::TestParamInfo<Shape>& info) {
  std::string name = std::string(info.param.op) + "_" + info.param.implementation + "_" +
                     std::to_string(info.param.hidden) + "_" + std::to_string(info.param.processors);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// Sanitizers see no more in a large batch than in a small one.
#ifdef BATCHPROOF_SANITIZED
constexpr std::int64_t kMostRows = 130;
#else
constexpr std::int64_t kMostRows = 8448;
#endif

class ExecutedFlipTest : public testing::TestWithParam<Shape> {};

TEST_P(ExecutedFlipTest, EqualTheRule) {
  Shape shape = GetParam();
  shape.last = std::min(shape.last, kMostRows);
  const bool fallback = std::string(shape.implementation) == "cpu-fast-fallback";
  const Flips expected = expected_flips(dispatch(shape.op, shape.hidden, shape.processors, fallback), 1, shape.last);
  const Cell cell = cell_of(shape.op, shape.implementation, shape.hidden, shape.processors);
  ASSERT_NE(cell.impl, nullptr);
  LocalHost host(cell.op);
  ScanOptions options;
  options.sizes = sizes_around(expected, shape.last);
  if (fallback && kMostRows > 1024) options.sizes.insert(options.sizes.end(), {1023, 1024, 1025});
  const auto result = scan_rows(cell, host, options);
  ASSERT_TRUE(result.has_value()) << result.error().message;
  EXPECT_EQ(flips_of(result->flips), expected);
  EXPECT_EQ(result->places_total, 0);
  for (const ScanPort& port : result->ports) {
    if (port.port == "residual_out") {
      EXPECT_TRUE(port.flips.empty());
    }
    // The merged sums show every flip, in nearly every victim.
    if (port.port == "mixes") {
      EXPECT_EQ(flips_of(port.flips), expected);
      for (const ScanFlip& flip : port.flips) EXPECT_GE(flip.victims, 30) << flip.at;
    }
    if (port.port.find("comb_mix") == 0) {
      EXPECT_EQ(flips_of(port.flips), expected);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Shapes, ExecutedFlipTest,
                         testing::Values(
                             // The whole table, once per processor count.
                             Shape{"mhc_pre", "cpu-fast-occupancy", 4096, 132, 4225},
                             Shape{"mhc_pre", "cpu-fast-occupancy", 4096, 148, 4737},
                             Shape{"mhc_pre", "cpu-fast-occupancy", 5120, 132, 200},
                             Shape{"mhc_pre", "cpu-fast-occupancy", 7168, 148, 200},
                             Shape{"mhc_pre", "cpu-fast-fallback", 1024, 132, 200},
                             Shape{"mhc_fused_post_pre", "cpu-fast-occupancy", 4096, 132, 1409},
                             Shape{"mhc_fused_post_pre", "cpu-fast-occupancy", 5120, 148, 130},
                             Shape{"mhc_fused_post_pre", "cpu-fast-occupancy", 7168, 132, 130},
                             Shape{"mhc_fused_post_pre", "cpu-fast-fallback", 2048, 132, 200},
                             Shape{"mhc_pre_broadcast", "cpu-fast-occupancy", 4096, 132, 4225},
                             Shape{"mhc_pre_broadcast", "cpu-fast-occupancy", 4096, 148, 640},
                             Shape{"mhc_pre_broadcast", "cpu-fast-occupancy", 5120, 132, 450},
                             Shape{"mhc_pre_broadcast", "cpu-fast-occupancy", 7168, 148, 450}),
                         name_of);

TEST(InvariantScanTest, OneClass) {
  const std::pair<const char*, const char*> implementations[] = {
      {"mhc_pre", "cpu-tf32fn-chain256"},
      {"mhc_pre", "cpu-tf32fn-split32"},
      {"mhc_pre", "cpu-fp32fma-threads512"},
      {"mhc_pre_broadcast", "cpu-tf32fn-chain256"},
      {"mhc_fused_post_pre", "cpu-bf16res-tf32fn-chain256"},
      {"mhc_fused_post_pre", "cpu-fp32res-fp32fma-chain256"},
      {"mhc_post", "cpu-fp32fma-streams"},
      {"hc_head", "cpu-fp32fma-strand16-chain256"},
  };
  for (const auto& [op, implementation] : implementations) {
    const Cell cell = cell_of(op, implementation, 1024, 132);
    LocalHost host(cell.op);
    ScanOptions options;
    options.sizes = {1,  2,  3,  4,  5,  7,  8,   9,   12,  13,  15,   16,   17,
                     31, 32, 33, 63, 64, 65, 127, 128, 129, 513, 1023, 1024, 1025};
    while (options.sizes.back() > kMostRows) options.sizes.pop_back();
    const auto result = scan_rows(cell, host, options);
    ASSERT_TRUE(result.has_value()) << op << ": " << result.error().message;
    EXPECT_TRUE(result->one_class()) << op << " " << implementation;
  }
}

// The pair loop of the fallback product begins at 1024 rows and is neutral; the defect that it once had is not.
TEST(ControlScanTest, OddRowsAreSeenFrom1024On) {
  const Cell cell = cell_of("mhc_pre", "control-odd-rows", 256, 132);
  LocalHost host(cell.op);
  ScanOptions options;
  options.sizes = {1022, 1023, 1024, 1025};
  const auto result = scan_rows(cell, host, options);
  ASSERT_TRUE(result.has_value()) << result.error().message;
  EXPECT_EQ(flips_of(result->flips), Flips{1024});
  EXPECT_EQ(result->flips[0].victims, 16);  // every second one
  EXPECT_GT(result->places_total, 0);
  EXPECT_EQ(result->places[0].size, 1024);
}

}  // namespace
}  // namespace batchproof::mhc
