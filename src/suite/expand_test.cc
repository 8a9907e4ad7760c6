// SPDX-License-Identifier: Apache-2.0
#include "src/suite/expand.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/suite/load.h"
#include "src/suite/test_operators.h"

namespace batchproof {
namespace {

// Line 2 is one case: its members begin in column 2.
std::string suite_of(const std::string& members) { return "{\"version\": 1, \"cases\": [\n{" + members + "}]}"; }

Result<std::vector<Cell>> expand_text(const std::string& text, const ExpandOptions& options = {}) {
  const Result<Suite> suite = load_suite_text(text, "s");
  if (!suite) return tl::unexpected<Error>(suite.error());
  return expand(*suite, options);
}

std::vector<Cell> cells_of(const std::string& text, const ExpandOptions& options = {}) {
  Result<std::vector<Cell>> cells = expand_text(text, options);
  EXPECT_TRUE(cells.has_value()) << (cells ? "" : cells.error().message);
  return cells ? std::move(*cells) : std::vector<Cell>{};
}

std::string error_of(const std::string& text, const ExpandOptions& options = {}) {
  const Result<std::vector<Cell>> cells = expand_text(text, options);
  if (cells) return "accepted";
  EXPECT_EQ(cells.error().kind, Error::Kind::usage);
  return cells.error().message;
}

std::vector<std::string> ids(const std::vector<Cell>& cells) {
  std::vector<std::string> all;
  for (const Cell& cell : cells) all.push_back(cell.id);
  return all;
}

using Ids = std::vector<std::string>;

const std::string kGatherCase = R"("name": "g", "op": "fake_gather", "axes": {"M": [4], "K": [8], "N": [2], "W": [2]})";
std::string gather(const std::string& more) { return suite_of(kGatherCase + (more.empty() ? "" : ", " + more)); }
// The same with other axes: `axes` are the members.
std::string gather_axes(const std::string& axes, const std::string& more = "") {
  return suite_of(R"("name": "g", "op": "fake_gather", "axes": {)" + axes + "}" + (more.empty() ? "" : ", " + more));
}

constexpr std::size_t kX1 = 0, kX2 = 1, kBias = 2, kX1Scale = 3, kX2Scale = 4, kY = 5, kGatherOut = 6;

TEST(Expand, PortsOfAxesThatTheCaseLeavesOutAreAbsent) {
  const auto parts = [](const std::string& axes, const std::string& more = "") {
    return suite_of(R"("name": "p", "op": "fake_parts", "axes": {"M": [6], "K": [8])" + axes + "}" + more);
  };
  const std::vector<Cell> plain = cells_of(parts(""));
  ASSERT_EQ(plain.size(), 1u);
  EXPECT_EQ(plain[0].id, "fake_parts/plain/p/K=8,M=6");
  EXPECT_EQ(plain[0].problem.axes.count("PART"), 0u);
  EXPECT_EQ(plain[0].problem.dtypes, (std::vector<bp_dtype>{BP_FP32, BP_NONE, BP_FP32, BP_NONE}));
  const std::vector<Cell> whole = cells_of(parts(R"(, "PART": [3], "L": [5], "tail": ["normal"])"));
  ASSERT_EQ(whole.size(), 1u);
  EXPECT_EQ(whole[0].problem.dtypes, (std::vector<bp_dtype>{BP_FP32, BP_FP32, BP_FP32, BP_FP32}));
  EXPECT_EQ(error_of(parts(R"(, "L": [5], "tail": ["normal"])")),
            "s:2:43: port tail of operator fake_parts has the shape (M / PART, L); the case has no axis PART");
  EXPECT_EQ(error_of(parts("", R"(, "inputs": [{"name": "tail"}])")),
            "s:2:76: port tail of operator fake_parts has the shape (M / PART, L); the case has no axis PART, L");
  EXPECT_NE(error_of(suite_of(R"("name": "p", "op": "fake_parts", "axes": {"M": [6]})")).find("the case has no axis K"),
            std::string::npos);
}

TEST(Expand, OneCell) {
  const std::vector<Cell> cells =
      cells_of(gather(R"("standard": {"bi": {"n_variants": 3}}, "expect": "vacuous", "allow_vacuous": "why",
                        "limits": {"timeout_s": 4})"));
  ASSERT_EQ(cells.size(), 1u);
  const Cell& cell = cells[0];
  EXPECT_EQ(cell.id, "fake_gather/ref/g/K=8,M=4,N=2,W=2");
  EXPECT_EQ(cell.axes,
            (std::vector<std::pair<std::string, std::string>>{{"K", "8"}, {"M", "4"}, {"N", "2"}, {"W", "2"}}));
  EXPECT_EQ(cell.op, &test_operators::kGather);
  EXPECT_EQ(cell.op_name, "fake_gather");
  EXPECT_STREQ(cell.impl->id, "ref");  // not the witness that stands first
  EXPECT_EQ(cell.problem.world, 2);
  EXPECT_EQ(cell.problem.axes, (std::map<std::string, std::int64_t>{{"K", 8}, {"M", 4}, {"N", 2}}));
  EXPECT_EQ(cell.problem.dtypes,
            (std::vector<bp_dtype>{BP_BF16, BP_BF16, BP_NONE, BP_NONE, BP_NONE, BP_BF16, BP_BF16}));
  EXPECT_EQ(cell.problem.attrs, (std::map<std::string, AttrValue>{{"transpose_x2", false},
                                                                  {"strict_limits", true},
                                                                  {"gather_index", std::int64_t{0}},
                                                                  {"epsilon", 1e-6},
                                                                  {"comm_kind", std::string("aiv")},
                                                                  {"axes_list", std::string("")}}));
  EXPECT_EQ(cell.comm_mode, BP_COMM_OFF);
  EXPECT_EQ(cell.recipes.size(), 7u);
  EXPECT_EQ(cell.recipes[kX1], RecipeSpec{});
  EXPECT_EQ(cell.standard.bi->n_variants, 3);
  EXPECT_EQ(cell.expect.cell, Verdict::vacuous);
  EXPECT_EQ(cell.allow_vacuous, "why");
  EXPECT_EQ(cell.timeout_s, 4.0);
  EXPECT_EQ(cell.case_name, "g");
  EXPECT_EQ(cell.position.text(), "s:2:1");
  EXPECT_TRUE(cell.skip_reason.empty());
}

TEST(Expand, ProductInFileOrderLastAxisFastest) {
  EXPECT_EQ(ids(cells_of(gather_axes(R"("W": [2], "N": [2, 3], "M": [4], "K": [16, 8])"))),
            (Ids{"fake_gather/ref/g/K=16,M=4,N=2,W=2", "fake_gather/ref/g/K=8,M=4,N=2,W=2",
                 "fake_gather/ref/g/K=16,M=4,N=3,W=2", "fake_gather/ref/g/K=8,M=4,N=3,W=2"}));
}

TEST(Expand, WorldSizes) {
  const std::string text = gather_axes(R"("M": [4], "K": [8], "N": [2])");
  EXPECT_EQ(ids(cells_of(text)), (Ids{"fake_gather/ref/g/K=8,M=4,N=2,W=2", "fake_gather/ref/g/K=8,M=4,N=2,W=4",
                                      "fake_gather/ref/g/K=8,M=4,N=2,W=8"}));
  ExpandOptions options;
  options.ranks = {3, 1};
  const std::vector<Cell> cells = cells_of(text, options);
  ASSERT_EQ(cells.size(), 2u);
  EXPECT_EQ(cells[0].problem.world, 3);  // refused by the operator, and the runner's business
  EXPECT_EQ(cells[1].problem.world, 1);
  EXPECT_TRUE(cells[0].skip_reason.empty());
  EXPECT_EQ(ids(cells_of(gather(""), options)), Ids{"fake_gather/ref/g/K=8,M=4,N=2,W=2"});  // the case's axis stands
  const std::string local = suite_of(R"("name": "l", "op": "fake_local", "axes": {"M": [4], "K": [8]},
                                        "inputs": [{"name": "x", "dtype": "fp32"}], "outputs": [{"name": "y", "dtype": "fp32"}])");
  const std::vector<Cell> one = cells_of(local, options);
  ASSERT_EQ(one.size(), 1u);  // an operator on one rank has no W
  EXPECT_EQ(one[0].id, "fake_local/plain/l/K=8,M=4");
  EXPECT_EQ(one[0].problem.world, 1);
}

TEST(Expand, DtypeModesAndPortDtypes) {
  const std::vector<Cell> cells = cells_of(gather_axes(
      R"("dtype": ["fp16", "bf16_fp32"], "M": [4], "K": [8], "N": [2], "W": [2])", R"("inputs": [{"name": "bias"}])"));
  ASSERT_EQ(cells.size(), 2u);
  EXPECT_EQ(cells[0].id, "fake_gather/ref/g/K=8,M=4,N=2,W=2,dtype=fp16");
  EXPECT_EQ(cells[0].problem.dtypes,
            (std::vector<bp_dtype>{BP_FP16, BP_FP16, BP_FP16, BP_NONE, BP_NONE, BP_FP16, BP_FP16}));
  EXPECT_EQ(cells[1].problem.dtypes,
            (std::vector<bp_dtype>{BP_BF16, BP_BF16, BP_FP32, BP_NONE, BP_NONE, BP_FP32, BP_BF16}));
  const std::vector<Cell> mixed = cells_of(
      gather_axes(R"("y_dtype": ["fp32", "float16"], "M": [4], "K": [8], "N": [2], "W": [2])",
                  R"("inputs": [{"name": "bias", "dtype": "fp32"}], "outputs": [{"name": "y", "dtype": "bf16"}])"));
  ASSERT_EQ(mixed.size(), 2u);
  EXPECT_EQ(mixed[0].id, "fake_gather/ref/g/K=8,M=4,N=2,W=2,y_dtype=fp32");
  EXPECT_EQ(mixed[0].problem.dtypes[kBias], BP_FP32);
  EXPECT_EQ(mixed[0].problem.dtypes[kY], BP_FP32);  // the axis goes over the entry
  EXPECT_EQ(mixed[1].problem.dtypes[kY], BP_FP16);
}

TEST(Expand, OptionalPorts) {
  const auto dtypes = [](const std::string& text) { return cells_of(text).at(0).problem.dtypes; };
  EXPECT_EQ(dtypes(gather(""))[kBias], BP_NONE);
  EXPECT_EQ(dtypes(gather(R"("inputs": [{"name": "bias"}])"))[kBias], BP_BF16);
  EXPECT_EQ(dtypes(gather(""))[kGatherOut], BP_BF16);
  EXPECT_EQ(dtypes(gather(R"("outputs": [])"))[kGatherOut], BP_NONE);
  EXPECT_EQ(dtypes(gather(R"("outputs": [])"))[kY], BP_BF16);  // not optional
  EXPECT_EQ(dtypes(gather(R"("outputs": [{"name": "gather_out"}])"))[kGatherOut], BP_BF16);
  const std::vector<Cell> bias =
      cells_of(gather_axes(R"("M": [4], "K": [8], "N": [2], "W": [2], "bias": ["none", "normal"])"));
  EXPECT_EQ(bias.at(0).problem.dtypes[kBias], BP_NONE);
  EXPECT_EQ(bias.at(1).problem.dtypes[kBias], BP_BF16);
  EXPECT_EQ(bias.at(1).id, "fake_gather/ref/g/K=8,M=4,N=2,W=2,bias=normal");
  const std::vector<Cell> out =
      cells_of(gather_axes(R"("M": [4], "K": [8], "N": [2], "W": [2], "gather_out": ["none", "present"])"));
  EXPECT_EQ(out.at(0).problem.dtypes[kGatherOut], BP_NONE);
  EXPECT_EQ(out.at(1).problem.dtypes[kGatherOut], BP_BF16);
  const std::vector<Cell> typed =
      cells_of(gather_axes(R"("M": [4], "K": [8], "N": [2], "W": [2], "bias_dtype": ["fp32"])"));
  EXPECT_EQ(typed.at(0).problem.dtypes[kBias], BP_FP32);
}

TEST(Expand, Recipes) {
  const std::vector<Cell> cells = cells_of(gather_axes(
      R"("M": [4], "K": [8], "N": [2], "W": [2], "dtype": ["fp8"], "x2_scale": ["ID", "VAR"], "x1": ["small_integer"])",
      R"("inputs": [{"name": "x1", "recipe": "normal"}, {"name": "x1_scale"},
                    {"name": "x2", "recipe": {"kind": "uniform", "lo": -5, "hi": 5}}])"));
  ASSERT_EQ(cells.size(), 2u);
  EXPECT_EQ(cells[0].recipes[kX1].kind, RecipeKind::small_integer);  // the axis goes over the entry
  EXPECT_EQ(cells[0].recipes[kX2], (RecipeSpec{RecipeKind::uniform, -5.0, 5.0, ""}));
  EXPECT_EQ(cells[0].recipes[kX1Scale].kind, RecipeKind::identity);
  EXPECT_EQ(cells[0].recipes[kX2Scale].kind, RecipeKind::identity);
  EXPECT_EQ(cells[1].recipes[kX2Scale].kind, RecipeKind::varying);
  EXPECT_EQ(cells[1].problem.dtypes[kX2Scale], BP_FP32);
  EXPECT_EQ(cells[1].recipes[kBias], RecipeSpec{});
  EXPECT_EQ(cells[1].recipes[kY], RecipeSpec{});
}

TEST(Expand, CommMode) {
  const std::vector<Cell> cells =
      cells_of(gather_axes(R"("M": [4], "K": [8], "N": [2], "W": [2], "comm_mode": ["off", "on", "strict"])"));
  ASSERT_EQ(cells.size(), 3u);
  EXPECT_EQ(cells[0].comm_mode, BP_COMM_OFF);
  EXPECT_EQ(cells[1].comm_mode, BP_COMM_ON);
  EXPECT_EQ(cells[2].comm_mode, BP_COMM_STRICT);
  EXPECT_EQ(cells[2].id, "fake_gather/ref/g/K=8,M=4,N=2,W=2,comm_mode=strict");
}

TEST(Expand, Attributes) {
  const Cell cell =
      cells_of(gather(R"("attrs": {"strict_limits": false, "gather_index": 2.0, "epsilon": 1, "comm_kind": "ccu"})"))
          .at(0);
  EXPECT_EQ(cell.problem.attrs.at("strict_limits"), AttrValue(false));
  EXPECT_EQ(cell.problem.attrs.at("gather_index"), AttrValue(std::int64_t{2}));
  EXPECT_EQ(cell.problem.attrs.at("epsilon"), AttrValue(1.0));
  EXPECT_EQ(cell.problem.attrs.at("comm_kind"), AttrValue(std::string("ccu")));
  ExpandOptions options;
  options.set = {{"strict_limits", "true"}, {"gather_index", "-7"}, {"epsilon", "2.5e-3"}, {"comm_kind", "x"}};
  const Cell set = cells_of(gather(R"("attrs": {"strict_limits": false})"), options).at(0);
  EXPECT_EQ(set.problem.attrs.at("strict_limits"), AttrValue(true));
  EXPECT_EQ(set.problem.attrs.at("gather_index"), AttrValue(std::int64_t{-7}));
  EXPECT_EQ(set.problem.attrs.at("epsilon"), AttrValue(2.5e-3));
  EXPECT_EQ(set.problem.attrs.at("comm_kind"), AttrValue(std::string("x")));
}

TEST(Expand, Implementations) {
  const auto impl = [](const std::string& more, const ExpandOptions& options = {}) {
    return std::string(cells_of(gather(more), options).at(0).impl->id);
  };
  EXPECT_EQ(impl(""), "ref");
  EXPECT_EQ(impl(R"("mode": "fast")"), "quick");  // not the control that stands before it
  EXPECT_EQ(impl(R"("impl": "control-b")"), "control-b");
  EXPECT_EQ(impl(R"("impl": "witness")"), "witness");
  ExpandOptions options;
  options.impl = "ref-wide";
  EXPECT_EQ(impl(R"("impl": "control-b", "mode": "fast")", options), "ref-wide");
  ExpandOptions fast;
  fast.mode = BP_MODE_FAST;
  EXPECT_EQ(impl("", fast), "quick");
  EXPECT_EQ(impl(R"("impl": "ref-wide")", fast), "ref-wide");
}

TEST(Expand, Where) {
  EXPECT_EQ(ids(cells_of(gather_axes(R"("W": [2, 4], "M": [3, 4, 8], "K": [8], "N": [2])",
                                     R"("where": "W * M > 12 && M % 4 == 0")"))),
            (Ids{"fake_gather/ref/g/K=8,M=8,N=2,W=2", "fake_gather/ref/g/K=8,M=4,N=2,W=4",
                 "fake_gather/ref/g/K=8,M=8,N=2,W=4"}));
  EXPECT_EQ(cells_of(gather_axes(R"("M": [4], "K": [8], "N": [2], "dtype": ["bf16", "fp16"])",
                                 R"("where": "dtype == 'fp16' && W == 4 && comm_mode == 'off'")"))
                .size(),
            1u);
  EXPECT_EQ(error_of(gather(R"("where": "M > 4")")),
            "s:2:95: case g has zero cells: no point of its axes satisfies \"M > 4\"");
  EXPECT_EQ(error_of(gather(R"("where": "Q > 4")")).rfind("s:2:95: ", 0), 0u);
}

TEST(Expand, ShapesAreChecked) {
  EXPECT_EQ(
      cells_of(
          gather(
              R"("inputs": [{"name": "x1", "shape": ["M", 8]}], "outputs": [{"name": "y", "shape": ["W * M", "N"]}])"))
          .size(),
      1u);
  EXPECT_EQ(error_of(gather(R"("inputs": [{"name": "x1", "shape": ["M", "N"]}])")),
            "s:2:97: port x1 has the shape (4, 2) in the case and (4, 8) in operator fake_gather (cell "
            "fake_gather/ref/g/K=8,M=4,N=2,W=2)");
  EXPECT_EQ(error_of(gather(R"("inputs": [{"name": "x1", "shape": [4]}])")),
            "s:2:97: port x1 has the shape (4) in the case and (4, 8) in operator fake_gather (cell "
            "fake_gather/ref/g/K=8,M=4,N=2,W=2)");
  EXPECT_EQ(error_of(gather(R"("inputs": [{"name": "x1", "shape": ["M", "Q"]}])")).rfind("s:2:97: ", 0), 0u);
}

TEST(Expand, FilterAndShard) {
  const std::string text = gather_axes(R"("W": [2, 4, 8], "M": [1, 2], "K": [8], "N": [2])");
  ExpandOptions options;
  options.filter = "W=[24]$";
  EXPECT_EQ(ids(cells_of(text, options)),
            (Ids{"fake_gather/ref/g/K=8,M=1,N=2,W=2", "fake_gather/ref/g/K=8,M=2,N=2,W=2",
                 "fake_gather/ref/g/K=8,M=1,N=2,W=4", "fake_gather/ref/g/K=8,M=2,N=2,W=4"}));
  options.shard_count = 3;
  Ids all;
  for (options.shard_index = 0; options.shard_index < 3; ++options.shard_index) {
    const Ids part = ids(cells_of(text, options));
    EXPECT_EQ(part.size(), options.shard_index == 0 ? 2u : 1u);
    all.insert(all.end(), part.begin(), part.end());
  }
  EXPECT_EQ(all, (Ids{"fake_gather/ref/g/K=8,M=1,N=2,W=2", "fake_gather/ref/g/K=8,M=2,N=2,W=4",
                      "fake_gather/ref/g/K=8,M=2,N=2,W=2", "fake_gather/ref/g/K=8,M=1,N=2,W=4"}));
  options = {};
  options.filter = "nothing";
  EXPECT_TRUE(cells_of(text, options).empty());
}

TEST(Expand, RelationsFromTheCommandLine) {
  ExpandOptions options;
  options.relations = BP_POISON;
  EXPECT_EQ(cells_of(gather(R"("standard": {"bi": {}})"), options).at(0).standard.bi->relations,
            std::uint32_t{BP_POISON});
  EXPECT_FALSE(cells_of(gather(""), options).at(0).standard.bi.has_value());
}

TEST(Expand, ACellThatTheOperatorRefusesIsStillACell) {
  EXPECT_EQ(
      cells_of(gather_axes(R"("M": [4], "K": [0], "N": [2], "W": [3])", R"("expect": {"error": "world"})")).size(), 1u);
  EXPECT_EQ(cells_of(gather_axes(R"("M": [4], "K": [0], "N": [2], "W": [3])")).size(), 1u);
}

struct Bad {
  std::string text;
  std::string message;
};

TEST(Expand, RowPositionIsAnAxisOfTheStandard) {
  const auto cells = cells_of(
      R"({"version": 1, "cases": [{"name": "g", "op": "fake_gather", "standard": {"bi": {}},
          "axes": {"M": [4], "K": [8], "N": [2], "W": [2], "row_position": [3, "mid", "last"]}}]})");
  ASSERT_EQ(cells.size(), 3u);
  EXPECT_EQ(cells[0].id, "fake_gather/ref/g/K=8,M=4,N=2,W=2,row_position=3");
  for (const Cell& cell : cells) ASSERT_EQ(cell.standard.bi->row_positions.size(), 1u);
  EXPECT_EQ(cells[0].standard.bi->row_positions[0].index, 3);
  EXPECT_EQ(cells[1].standard.bi->row_positions[0].kind, RowPosition::Kind::mid);
  EXPECT_EQ(cells[2].standard.bi->row_positions[0].kind, RowPosition::Kind::last);
}

TEST(Expand, Errors) {
  const Bad bad[] = {
      {suite_of(R"("name": "g", "op": "fake_gahter")"),
       "s:2:21: unknown operator \"fake_gahter\"; did you mean \"fake_gather\"? Known operators: fake_exchange, "
       "fake_gather, "
       "fake_local, fake_parts"},
      {suite_of(R"("name": "g", "op": "softmax")"),
       "s:2:21: unknown operator \"softmax\"; known operators: fake_exchange, fake_gather, fake_local, fake_parts"},
      {gather(R"("impl": "reff")"),
       "s:2:94: operator fake_gather has no implementation \"reff\"; did you mean \"ref\"? Known "
       "implementations: witness, control-b, ref, ref-wide, quick"},
      {gather(R"("mode": "invariant", "impl": "quick")"),
       "s:2:115: implementation quick of operator fake_gather belongs to mode fast, the case asks for invariant"},
      {suite_of(R"("name": "l", "op": "fake_local", "mode": "fast", "axes": {"M": [4], "K": [8]})"),
       "s:2:1: operator fake_local has no implementation for mode fast (it has plain)"},
      {gather(R"("attrs": {"strict": true})"),
       "s:2:96: operator fake_gather has no attribute \"strict\"; known attributes: transpose_x2, strict_limits, "
       "gather_index, epsilon, comm_kind, axes_list"},
      {gather(R"("attrs": {"strict_limits": 1})"),
       "s:2:96: attribute \"strict_limits\" of operator fake_gather must be true or false"},
      {gather(R"("attrs": {"gather_index": 1.5})"),
       "s:2:96: attribute \"gather_index\" of operator fake_gather must be an integer"},
      {gather(R"("attrs": {"epsilon": "1"})"),
       "s:2:96: attribute \"epsilon\" of operator fake_gather must be a number"},
      {gather(R"("attrs": {"comm_kind": 1})"),
       "s:2:96: attribute \"comm_kind\" of operator fake_gather must be a string"},
      {gather_axes(R"("M": [4], "K": [8], "N": [2], "k": [2])"),
       "s:2:75: operator fake_gather has no axis \"k\"; did you mean \"K\"? Known axes: M, K, N, W, dtype, comm_mode, "
       "row_position, "
       "x1, x2, "
       "bias, x1_scale, x2_scale, y, gather_out, x1_dtype, x2_dtype, bias_dtype, x1_scale_dtype, x2_scale_dtype, "
       "y_dtype, "
       "gather_out_dtype"},
      {gather_axes(R"("M": [4], "K": [8])"),
       "s:2:44: the case has no axis N (columns); operator fake_gather needs M, K, N"},
      {suite_of(R"("name": "g", "op": "fake_gather")"),
       "s:2:1: the case has no axis M (rows per rank); operator fake_gather needs M, K, N"},
      {gather_axes(R"("M": ["a"], "K": [8], "N": [2])"),
       "s:2:45: axis \"M\" of operator fake_gather holds \"a\"; it takes integers"},
      {gather_axes(R"("W": [0], "M": [4], "K": [8], "N": [2])"),
       "s:2:45: axis \"W\" of operator fake_gather holds 0; it takes numbers of ranks from 1"},
      {gather_axes(R"("dtype": ["fp32"], "M": [4], "K": [8], "N": [2])"),
       "s:2:45: axis \"dtype\" of operator fake_gather holds \"fp32\"; it takes bf16, fp16, bf16_fp32, fp8"},
      {gather_axes(R"("comm_mode": ["maybe"], "M": [4], "K": [8], "N": [2])"),
       "s:2:45: axis \"comm_mode\" of operator fake_gather holds \"maybe\"; it takes off, on and strict"},
      {gather_axes(R"("x1": ["none"], "M": [4], "K": [8], "N": [2])"),
       "s:2:45: axis \"x1\" of operator fake_gather holds \"none\"; it takes normal, wide_exponent, cancelling, "
       "small_integer, "
       "checkpoint, ID, VAR"},
      {gather_axes(R"("bias": ["file"], "M": [4], "K": [8], "N": [2])"),
       "s:2:45: axis \"bias\" of operator fake_gather holds \"file\"; it takes normal, wide_exponent, cancelling, "
       "small_integer, checkpoint, ID, VAR and none"},
      {gather_axes(R"("gather_out": ["normal"], "M": [4], "K": [8], "N": [2])"),
       "s:2:45: axis \"gather_out\" of operator fake_gather holds \"normal\"; it takes present and none"},
      {gather_axes(R"("y": ["none"], "M": [4], "K": [8], "N": [2])"),
       "s:2:45: axis \"y\" of operator fake_gather holds \"none\"; it takes present"},
      {gather_axes(R"("x1_dtype": [8], "M": [4], "K": [8], "N": [2])"),
       "s:2:45: axis \"x1_dtype\" of operator fake_gather holds 8; it takes fp64, fp32, bf16, fp16, e4m3, e5m2, e8m0, "
       "int8, "
       "int32, int64, uint8, int4, e2m1"},
      {gather(R"("inputs": [{"name": "x3"}])"),
       "s:2:97: operator fake_gather has no port \"x3\"; did you mean \"x1\"? Known ports: x1, x2, bias, x1_scale, "
       "x2_scale, y, "
       "gather_out"},
      {gather(R"("inputs": [{"name": "y", "recipe": "normal"}])"),
       "s:2:97: port y of operator fake_gather is an output and takes no recipe"},
      {gather(R"("inputs": [{"name": "x1_scale"}])"),
       "s:2:97: dtype mode bf16 of operator fake_gather has no port x1_scale; leave the port out or give its dtype"},
      {suite_of(R"("name": "l", "op": "fake_local", "axes": {"M": [4], "K": [8]}, "inputs": [{"name": "x"}])"),
       "s:2:76: operator fake_local has no dtype modes; give the dtype of port x"},
  };
  for (const Bad& b : bad) EXPECT_EQ(error_of(b.text), b.message) << b.text;
}

TEST(Expand, TooManyPoints) {
  std::string values = "0";
  for (int i = 1; i < 101; ++i) values.append(",").append(std::to_string(i));
  const std::string axes = "\"M\": [" + values + "], \"K\": [" + values + "], \"N\": [" + values + "], \"W\": [2]";
  EXPECT_EQ(error_of(gather_axes(axes)), "s:2:44: the suite has more than 1000000 points; split it");
}

TEST(Expand, OptionErrors) {
  ExpandOptions options;
  options.filter = "(";
  EXPECT_EQ(error_of(gather(""), options).rfind("filter \"(\" is not a regular expression: ", 0), 0u);
  options = {};
  options.shard_index = 3;
  options.shard_count = 3;
  EXPECT_EQ(error_of(gather(""), options), "shard 4 of 3 does not exist");
  options = {};
  options.shard_count = 0;
  EXPECT_EQ(error_of(gather(""), options), "shard 1 of 0 does not exist");
  options = {};
  options.ranks = {2, 0};
  EXPECT_EQ(error_of(gather(""), options), "0 is no number of ranks; it must be at least 1");
  options = {};
  options.impl = "control-c";
  EXPECT_EQ(error_of(gather(""), options),
            "no operator of s has an implementation \"control-c\"; did you mean \"control-b\"? "
            "Known implementations: witness, control-b, ref, ref-wide, quick");
  options = {};
  options.impl = "ref";
  options.mode = BP_MODE_FAST;
  EXPECT_EQ(error_of(gather(""), options),
            "implementation ref of operator fake_gather belongs to mode invariant, not to fast");
  options = {};
  options.set = {{"epsilom", "1"}};
  EXPECT_EQ(error_of(gather(""), options),
            "no operator of s has an attribute \"epsilom\"; did you mean \"epsilon\"? Known "
            "attributes: transpose_x2, strict_limits, gather_index, epsilon, comm_kind, axes_list");
  options.set = {{"gather_index", "1x"}};
  EXPECT_EQ(error_of(gather(""), options),
            "attribute gather_index of operator fake_gather is set to \"1x\"; it must be an integer");
  options.set = {{"strict_limits", "yes"}};
  EXPECT_EQ(error_of(gather(""), options),
            "attribute strict_limits of operator fake_gather is set to \"yes\"; it must be true or false");
}

TEST(Expand, AnImplementationThatOnlyOtherOperatorsHaveSkips) {
  const std::string text = "{\"version\": 1, \"cases\": [{" + kGatherCase + R"(}, {"name": "e", "op": "fake_exchange",
    "axes": {"M": [16], "K": [4], "N": [2], "W": [8]}}]})";
  ExpandOptions options;
  options.impl = "control-b";
  options.set = {{"strict_limits", "false"}};
  const std::vector<Cell> cells = cells_of(text, options);
  ASSERT_EQ(cells.size(), 2u);
  EXPECT_EQ(cells[0].id, "fake_gather/control-b/g/K=8,M=4,N=2,W=2");
  EXPECT_EQ(cells[1].id, "fake_exchange/control-b/e");
  EXPECT_EQ(cells[1].skip_reason, "operator fake_exchange has no implementation control-b (it has plain)");
}

// ---- ATK ----

std::string atk(const std::string& inputs, const std::string& aclnn_name = "FakeGather") {
  return "[{\"name\": \"a\", \"aclnn_name\": \"" + aclnn_name + "\", \"inputs\": [" + inputs + "]}]";
}

const std::string kAtkX1 =
    R"({"name": "x1", "type": "tensor", "dtype": "bf16", "shape": [4, 8], "range_values": [-5, 5]})";
const std::string kAtkX2 =
    R"({"name": "x2", "type": "tensor", "dtype": "bf16", "shape": [2, 8], "range_values": [-5, 5]})";

TEST(ExpandAtk, DefaultWorldsAreThoseThatTheOperatorAccepts) {
  EXPECT_EQ(ids(cells_of(atk(kAtkX1 + "," + kAtkX2))),
            (Ids{"fake_gather/ref/a/K=8,M=4,N=2,W=2,dtype=bf16", "fake_gather/ref/a/K=8,M=4,N=2,W=4,dtype=bf16",
                 "fake_gather/ref/a/K=8,M=4,N=2,W=8,dtype=bf16"}));
  const Cell cell = cells_of(atk(kAtkX1 + "," + kAtkX2)).at(0);
  EXPECT_EQ(cell.problem.attrs.at("transpose_x2"), AttrValue(true));
  EXPECT_EQ(cell.problem.attrs.at("strict_limits"), AttrValue(false));
  EXPECT_EQ(cell.recipes[kX1], (RecipeSpec{RecipeKind::uniform, -5.0, 5.0, ""}));
  EXPECT_EQ(cell.problem.dtypes[kGatherOut], BP_BF16);
  EXPECT_TRUE(cell.skip_reason.empty());
}

TEST(ExpandAtk, WorldsThatDoNotFitTheShapesAreSkipped) {
  // x (16, 20) and weight (160, 12) mean W = 8; the operator takes 8 and 16.
  const std::string inputs =
      R"({"name": "x", "type": "tensor", "dtype": "fp32", "shape": [16, 20]}, {"name": "weight", "type": "tensor", "dtype": "fp32",
          "shape": [160, 12]})";
  // Worlds that nobody asked for are left out, those of the command line are skipped with the reason.
  EXPECT_EQ(ids(cells_of(atk(inputs, "FakeExchange"))), (Ids{"fake_exchange/plain/a/K=20,M=16,N=12,W=8,dtype=fp32"}));
  ExpandOptions options;
  options.ranks = {2, 4, 8};
  const std::vector<Cell> cells = cells_of(atk(inputs, "FakeExchange"), options);
  ASSERT_EQ(cells.size(), 3u);
  EXPECT_EQ(cells[0].skip_reason,
            "2 ranks: port weight has the shape (160, 12) in the case and (40, 12) in operator fake_exchange");
  EXPECT_EQ(cells[1].skip_reason,
            "4 ranks: port weight has the shape (160, 12) in the case and (80, 12) in operator fake_exchange");
  EXPECT_EQ(cells[2].id, "fake_exchange/plain/a/K=20,M=16,N=12,W=8,dtype=fp32");
  EXPECT_EQ(cells[2].skip_reason, "");
}

TEST(ExpandAtk, RefusedWorldsAreLeftOutByDefaultAndSkippedOnRequest) {
  ExpandOptions options;
  options.ranks = {2, 3};
  const std::vector<Cell> cells = cells_of(atk(kAtkX1 + "," + kAtkX2), options);
  ASSERT_EQ(cells.size(), 2u);
  EXPECT_EQ(cells[0].skip_reason, "");
  EXPECT_EQ(cells[1].skip_reason, "world 3 is none of 1, 2, 4, 8");
  options.ranks = {3};  // no world is accepted: the operator's own error is the answer
  EXPECT_EQ(cells_of(atk(kAtkX1 + "," + kAtkX2), options).at(0).skip_reason, "");
}

TEST(ExpandAtk, ADtypeCombinationThatTheOperatorRefusesIsSkipped) {
  const std::string bias =
      R"({"name": "bias", "type": "tensor", "dtype": "fp16", "shape": [2], "range_values": [-5, 5]})";
  const std::vector<Cell> cells = cells_of(atk(kAtkX1 + "," + kAtkX2 + "," + bias));
  ASSERT_EQ(cells.size(), 3u);
  for (const Cell& cell : cells) EXPECT_EQ(cell.skip_reason, "bias must have the dtype of x1 or fp32");
}

TEST(ExpandAtk, CasesThatCannotRunKeepTheirNames) {
  const std::vector<Cell> unknown = cells_of(atk(kAtkX1, "aclnnMatmulAlltoAll"));
  ASSERT_EQ(unknown.size(), 1u);
  EXPECT_EQ(unknown[0].id, "MatmulAlltoAll/-/a");
  EXPECT_EQ(unknown[0].op, nullptr);
  EXPECT_EQ(unknown[0].op_name, "MatmulAlltoAll");
  EXPECT_EQ(unknown[0].case_name, "a");
  EXPECT_EQ(unknown[0].position.text(), "s:1:2");
  EXPECT_EQ(unknown[0].skip_reason, "operator MatmulAlltoAll is not available in this build");
  ExpandOptions options;
  options.filter = "^Matmul";
  options.impl = "anything";  // no operator of the file is there to have it
  EXPECT_EQ(cells_of(atk(kAtkX1, "aclnnMatmulAlltoAll"), options).size(), 1u);
  const std::string int8 = R"({"name": "x1", "type": "tensor", "dtype": "int8", "shape": [4, 8]})";
  const std::vector<Cell> quantised = cells_of(atk(int8 + "," + kAtkX2));
  ASSERT_EQ(quantised.size(), 1u);
  EXPECT_EQ(quantised[0].id, "fake_gather/-/a");
  EXPECT_EQ(quantised[0].op, &test_operators::kGather);
}

}  // namespace
}  // namespace batchproof
