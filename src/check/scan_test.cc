// SPDX-License-Identifier: Apache-2.0
//
// scan against small operators whose flips are known.
#include "src/check/scan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "batchproof/problem.h"
#include "src/check/local_host.h"

namespace batchproof {
namespace {

// y(M) = x(M, K) . w(K), K ascending; which rows take the other order is what an implementation differs in.
struct Way {
  bool (*descending)(std::int64_t rows, std::int64_t row, int rank);
  bool writes_behind = false;
  bool leaves_last = false;  // does not write the last row
};
const Way kHonest{[](std::int64_t, std::int64_t, int) { return false; }};
const Way kByBatch{[](std::int64_t rows, std::int64_t, int) { return rows > 4; }};
const Way kComesBack{[](std::int64_t rows, std::int64_t, int) { return rows > 40 && rows < 45; }};
const Way kOddRows{[](std::int64_t, std::int64_t row, int) { return row % 2 == 1; }};
const Way kLastRow{[](std::int64_t rows, std::int64_t row, int) { return rows > 8 && row == rows - 1; }};
const Way kByRank{[](std::int64_t, std::int64_t, int rank) { return rank == 1; }};
const Way kWritesBehind{kHonest.descending, true, false};
const Way kLeavesLast{kHonest.descending, false, true};

const bp_implementation kImplementations[] = {
    {"honest", "", nullptr, BP_MODE_INVARIANT, 0, nullptr, &kHonest},
    {"by-batch", "", nullptr, BP_MODE_FAST, 0, nullptr, &kByBatch},
    {"comes-back", "", nullptr, BP_MODE_FAST, 0, nullptr, &kComesBack},
    {"odd-rows", "", nullptr, BP_MODE_FAST, 0, nullptr, &kOddRows},
    {"last-row", "", nullptr, BP_MODE_FAST, 0, nullptr, &kLastRow},
    {"by-rank", "", nullptr, BP_MODE_FAST, 0, nullptr, &kByRank},
    {"writes-behind", "", nullptr, BP_MODE_FAST, 0, nullptr, &kWritesBehind},
    {"leaves-last", "", nullptr, BP_MODE_FAST, 0, nullptr, &kLeavesLast},
};

constexpr std::uint32_t kFp32 = BP_DTYPE_BIT(BP_FP32);
const bp_port kPorts[] = {
    {"x", BP_ROW_INPUT, "M, K", 0, 2u, 1, "K", nullptr, BP_SHARDED, 0, kFp32, 0, 0, nullptr, 0, "", 0},
    {"w", BP_WEIGHT, "K", -1, 1u, 1, "K", nullptr, BP_REPLICATED, 0, kFp32, 0, 0, nullptr, 0, "", 0},
    {"y", BP_OUTPUT, "M", 0, 0, 1, nullptr, nullptr, BP_SHARDED, 0, kFp32, 0, 0, nullptr, 0, "", 0},
    {"first", BP_OUTPUT, "M", 0, 0, 1, nullptr, nullptr, BP_SHARDED, 0, kFp32, kFp32, 0, nullptr, 0, "", 0},
};
const bp_axis_decl kAxes[] = {{"M", "rows per rank"}, {"K", "reduction"}};
const bp_dtype kModeDtypes[] = {BP_FP32, BP_FP32, BP_FP32, BP_FP32};
const bp_dtype_mode kModes[] = {{"fp32", kModeDtypes}};

bp_status validate(const bp_problem* problem, char* error, size_t size) {
  if (bp_axis_value(problem, "M") % 7 == 6) return bp_fail(error, size, BP_INVALID, "M %% 7 must not be 6");
  return BP_OK;
}

bp_status run(const bp_context* context, const bp_tensor* tensors) {
  const Way& way = *static_cast<const Way*>(context->implementation->data);
  const std::int64_t m = bp_axis_value(context->problem, "M");
  const std::int64_t k = bp_axis_value(context->problem, "K");
  if (validate(context->problem, context->error, context->error_size) != BP_OK) return BP_INVALID;
  const auto* x = static_cast<const float*>(tensors[0].data);
  const auto* w = static_cast<const float*>(tensors[1].data);
  auto* y = static_cast<float*>(tensors[2].data);
  for (std::int64_t i = 0; i < m; ++i) {
    float sum = 0.0f;
    const bool descending = way.descending(m, i, context->rank);
    for (std::int64_t step = 0; step < k; ++step) {
      const std::int64_t kk = descending ? k - 1 - step : step;
      sum = std::fma(x[i * tensors[0].stride[0] + kk], w[kk], sum);
    }
    if (!(way.leaves_last && i == m - 1)) y[i] = sum;
    static_cast<float*>(tensors[3].data)[i] = x[i * tensors[0].stride[0]];
  }
  if (way.writes_behind) y[m] = 1.0f;
  bp_executed(context, context->implementation->id);
  return BP_OK;
}

uint32_t promises(const bp_implementation*, const bp_problem*, const bp_device*) { return ~0u; }

const bp_operator kDot = [] {
  bp_operator table{};
  table.abi_version = BP_ABI_VERSION;
  table.struct_size = sizeof(bp_operator);
  table.name = "dot";
  table.rows = "W * M";
  table.row_count_axis = "M";
  table.flags = BP_OP_THREAD_SAFE;
  table.port_count = 4;
  table.ports = kPorts;
  table.axis_count = 2;
  table.axes = kAxes;
  table.dtype_mode_count = 1;
  table.dtype_modes = kModes;
  table.implementation_count = static_cast<std::uint32_t>(std::size(kImplementations));
  table.implementations = kImplementations;
  table.validate = validate;
  table.run = run;
  table.promises = promises;
  return table;
}();

// The output `first` holds the even rows alone.
size_t locate_even_rows(const bp_problem* problem, std::int64_t row, bp_location* places, size_t capacity) {
  const std::int64_t rows = bp_axis_value(problem, "M");
  size_t count = 0;
  for (const std::uint32_t port : {0u, 2u, 3u}) {
    if (port == 3 && row % 2 == 1) continue;
    if (count < capacity) places[count] = {port, static_cast<std::int32_t>(row / rows), row % rows};
    ++count;
  }
  return count;
}

const bp_operator kHalf = [] {
  bp_operator table = kDot;
  table.name = "half";
  table.locate = locate_even_rows;
  return table;
}();

Cell make_cell(const std::string& implementation, int world = 1) {
  Cell cell;
  cell.op = &kDot;
  cell.impl = find_implementation(kDot, implementation);
  cell.problem.world = world;
  cell.problem.axes = {{"M", 3}, {"K", 300}};
  cell.problem.dtypes = {BP_FP32, BP_FP32, BP_FP32, BP_FP32};
  cell.recipes.resize(4);
  return cell;
}

Result<ScanResult> scan(const Cell& cell, std::int64_t first, std::int64_t last, std::vector<std::int64_t> sizes = {}) {
  LocalHost host(cell.op);
  ScanOptions options;
  options.first = first;
  options.last = last;
  options.sizes = std::move(sizes);
  return scan_rows(cell, host, options);
}

std::vector<std::int64_t> at(const std::vector<ScanFlip>& flips) {
  std::vector<std::int64_t> list;
  for (const ScanFlip& flip : flips) list.push_back(flip.at);
  return list;
}

// Few rows show few victims in such an output, many rows show more: that moves no byte.
TEST(ScanTest, ARowNeedNotBeInEveryOutput) {
  for (const char* implementation : {"honest", "by-batch"}) {
    Cell cell = make_cell(implementation, 2);
    cell.op = &kHalf;
    const auto result = scan(cell, 1, 40);
    ASSERT_TRUE(result.has_value()) << result.error().message;
    ASSERT_EQ(result->ports.size(), 2u);
    EXPECT_EQ(result->ports[0].classes, std::string(implementation) == "honest" ? 1 : 2);
    EXPECT_EQ(result->ports[1].classes, 1);
  }
}

TEST(ScanTest, TheCellsOwnSizeMayBeRefused) {
  Cell cell = make_cell("honest", 2);
  cell.problem.axes["M"] = 6;
  const auto result = scan(cell, 1, 20);
  ASSERT_TRUE(result.has_value()) << result.error().message;
  EXPECT_TRUE(result->one_class());
}

TEST(ScanTest, HonestOperatorHasOneClass) {
  const auto result = scan(make_cell("honest"), 1, 90);
  ASSERT_TRUE(result.has_value()) << result.error().message;
  EXPECT_TRUE(result->one_class());
  EXPECT_EQ(result->refused.size(), 13u);  // 6, 13, ..., 90
  EXPECT_EQ(result->sizes, 77);
  ASSERT_EQ(result->ports.size(), 2u);
  ASSERT_EQ(result->ports[0].intervals.size(), 1u);
  EXPECT_EQ(result->ports[0].intervals[0].first, 1);
  EXPECT_EQ(result->ports[0].intervals[0].last, 89);
  EXPECT_EQ(result->ports[0].classes, 1);
  // Below 32 rows every victim is run all the same.
  std::int64_t calls = 0;
  for (std::int64_t size = 1; size <= 90; ++size) {
    if (size % 7 != 6) calls += size < 32 ? (32 + size - 1) / size : 1;
  }
  EXPECT_EQ(result->calls, calls);
}

TEST(ScanTest, ThresholdIsAFlipOfTheOutputThatItMoves) {
  const auto result = scan(make_cell("by-batch"), 1, 40);
  ASSERT_TRUE(result.has_value()) << result.error().message;
  EXPECT_EQ(at(result->flips), std::vector<std::int64_t>{5});
  EXPECT_EQ(at(result->ports[0].flips), std::vector<std::int64_t>{5});
  EXPECT_EQ(result->ports[0].port, "y");
  EXPECT_EQ(result->ports[0].classes, 2);
  EXPECT_GT(result->flips[0].victims, 16);
  EXPECT_EQ(result->flips[0].after, 4);
  EXPECT_TRUE(result->ports[1].flips.empty());
  EXPECT_EQ(result->places_total, 0);
  EXPECT_TRUE(result->failed());  // it promises everything
}

TEST(ScanTest, AClassThatComesBackKeepsItsNumber) {
  const auto result = scan(make_cell("comes-back"), 30, 60);
  ASSERT_TRUE(result.has_value()) << result.error().message;
  EXPECT_EQ(at(result->flips), (std::vector<std::int64_t>{42, 45}));  // 41 is refused
  ASSERT_EQ(result->ports[0].intervals.size(), 3u);
  EXPECT_EQ(result->ports[0].intervals[2].bit_class, result->ports[0].intervals[0].bit_class);
  EXPECT_EQ(result->ports[0].classes, 2);
  EXPECT_EQ(result->ports[0].intervals[1].first, 42);
  EXPECT_EQ(result->ports[0].intervals[1].last, 44);
}

TEST(ScanTest, GivenSizesOnly) {
  const auto result = scan(make_cell("comes-back"), 1, 1, {32, 40, 44, 59});
  ASSERT_TRUE(result.has_value()) << result.error().message;
  EXPECT_EQ(result->sizes, 4);
  EXPECT_EQ(at(result->flips), (std::vector<std::int64_t>{44, 59}));
  EXPECT_EQ(result->flips[0].after, 40);
}

TEST(ScanTest, CopiesShowWhatThePositionMoves) {
  const auto odd = scan(make_cell("odd-rows"), 60, 70);
  ASSERT_TRUE(odd.has_value()) << odd.error().message;
  EXPECT_GT(odd->places_total, 0);
  EXPECT_LE(odd->places.size(), kScanPlaces);
  EXPECT_EQ(odd->places[0].port, "y");
  EXPECT_NE(odd->places[0].row % 2, odd->places[0].victim % 2);
  EXPECT_FALSE(odd->one_class());
  const auto last = scan(make_cell("last-row"), 60, 61);
  ASSERT_TRUE(last.has_value()) << last.error().message;
  EXPECT_EQ(last->places_total, 2);
  EXPECT_EQ(last->places[0].row, 59);
}

TEST(ScanTest, RowsOverRanksAreScannedToo) {
  const auto honest = scan(make_cell("honest", 2), 1, 24);
  ASSERT_TRUE(honest.has_value()) << honest.error().message;
  EXPECT_TRUE(honest->one_class());
  const auto by_rank = scan(make_cell("by-rank", 2), 30, 34);
  ASSERT_TRUE(by_rank.has_value()) << by_rank.error().message;
  EXPECT_GT(by_rank->places_total, 0);
}

TEST(ScanTest, WritesThatAreMissingOrTooManyAreSeen) {
  const auto behind = scan(make_cell("writes-behind"), 40, 41);
  ASSERT_FALSE(behind.has_value());
  EXPECT_NE(behind.error().message.find("wrote outside y"), std::string::npos) << behind.error().message;
  // What an earlier call left must not pass for a result: the row holds another pattern each time.
  const auto missing = scan(make_cell("leaves-last"), 70, 71);
  ASSERT_TRUE(missing.has_value()) << missing.error().message;
  EXPECT_GT(missing->places_total, 0);
}

TEST(ScanTest, EveryOutputShowsThatItCouldHaveFlipped) {
  const auto honest = scan(make_cell("honest"), 1, 40);
  ASSERT_TRUE(honest.has_value()) << honest.error().message;
  EXPECT_TRUE(honest->promised);
  EXPECT_EQ(honest->inputs, "accuracy inputs");
  EXPECT_EQ(honest->ports[0].witness.kind, Witness::Kind::order);
  EXPECT_GT(honest->ports[0].witness.rows_moved, 16);
  EXPECT_EQ(honest->ports[0].witness.rows_total, 32);  // the victims
  // A copy of the input: no order can move it, but other inputs do.
  EXPECT_EQ(honest->ports[1].witness.kind, Witness::Kind::leak);
  EXPECT_EQ(honest->ports[1].witness.rows_moved, 32);
  EXPECT_EQ(honest->blind(), nullptr);
  EXPECT_FALSE(honest->failed());
  // Sums of small integers are exact in every order, so the variant one shows nothing.
  Cell exact = make_cell("by-batch");
  exact.recipes[0].kind = exact.recipes[1].kind = RecipeKind::small_integer;
  const auto blind = scan(exact, 1, 40);
  ASSERT_TRUE(blind.has_value()) << blind.error().message;
  EXPECT_TRUE(blind->one_class());
  ASSERT_NE(blind->blind(), nullptr);
  EXPECT_EQ(blind->blind()->port, "y");
  EXPECT_TRUE(blind->failed());
  // Fewer sizes than victims: the largest one is the witness's.
  const auto few = scan(make_cell("honest"), 1, 5);
  ASSERT_TRUE(few.has_value()) << few.error().message;
  EXPECT_EQ(few->ports[0].witness.rows_total, 5);
}

TEST(ScanTest, ARangeThatIsNoneIsAnError) {
  EXPECT_FALSE(scan(make_cell("honest"), 5, 4).has_value());
  EXPECT_FALSE(scan(make_cell("honest"), 0, 4).has_value());
  EXPECT_FALSE(scan(make_cell("honest"), 1, 1, {4, 3}).has_value());
  const auto refused = scan(make_cell("honest"), 6, 6);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("M % 7 must not be 6"), std::string::npos) << refused.error().message;
}

}  // namespace
}  // namespace batchproof
