// SPDX-License-Identifier: Apache-2.0
//
// The native dialect and the shared `standard` object: every field arrives, every error has its words and its place.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "src/numeric/digest.h"
#include "src/suite/load.h"
#include "src/suite/schema.h"

namespace batchproof {
namespace {

std::string error_of(const std::string& text) {
  const Result<Suite> suite = load_suite_text(text, "s");
  if (suite) return "accepted";
  EXPECT_EQ(suite.error().kind, Error::Kind::usage);
  return suite.error().message;
}

// A file whose second line is one case: `{"name": "a", "op": "o", ` takes 25 columns, `rest` begins in column 26.
std::string with(const std::string& rest) {
  return "{\"version\": 1, \"cases\": [\n{\"name\": \"a\", \"op\": \"o\", " + rest + "}]}";
}

Case case_with(const std::string& rest) {
  const Result<Suite> suite = load_suite_text(with(rest), "s");
  EXPECT_TRUE(suite.has_value()) << (suite ? "" : suite.error().message);
  return suite ? suite->cases.at(0) : Case{};
}

TEST(LoadNative, SmallestCase) {
  const std::string text = R"({"version": 1, "cases": [{"name": "a", "op": "o"}]})";
  const Result<Suite> suite = load_suite_text(text, "dir/s.json");
  ASSERT_TRUE(suite.has_value()) << suite.error().message;
  EXPECT_EQ(suite->path, "dir/s.json");
  EXPECT_EQ(suite->build_id, digest_bytes(text.data(), text.size()));
  ASSERT_EQ(suite->cases.size(), 1u);
  const Case& loaded = suite->cases[0];
  EXPECT_EQ(loaded.dialect, Dialect::native);
  EXPECT_EQ(loaded.name, "a");
  EXPECT_EQ(loaded.op, "o");
  EXPECT_EQ(loaded.position.text(), "dir/s.json:1:26");
  EXPECT_EQ(loaded.position_of("op").text(), "dir/s.json:1:46");
  EXPECT_EQ(loaded.position_of("impl").text(), "dir/s.json:1:26");
  EXPECT_EQ(loaded.mode, BP_MODE_INVARIANT);
  EXPECT_TRUE(loaded.impl.empty() && loaded.where.empty() && loaded.axes.empty() && loaded.ports.empty());
  EXPECT_FALSE(loaded.standard.acc || loaded.standard.perf || loaded.standard.mem || loaded.standard.bi);
  EXPECT_EQ(loaded.expect.cell, Verdict::pass);
  EXPECT_FALSE(loaded.timeout_s.has_value());
  EXPECT_FALSE(loaded.lists_outputs);
}

TEST(LoadNative, EveryField) {
  const Result<Suite> suite = load_suite_text(R"json({
  "$schema": "native.schema.json",
  "version": 1,
  "cases": [
    {
      "name": "mm.all_1#+-",
      "op": "matmul",
      "impl": "cpu",
      "mode": "fast",
      "axes": {"M": [8, 0], "dtype": ["bf16"], "W": [2.0]},
      "where": "M % 8 == 0",
      "attrs": {"flag": true, "count": -3, "eps": 0.5, "kind": "aiv"},
      "inputs": [
        {"name": "x1", "dtype": "bf16", "shape": ["M", 16], "recipe": "small_integer"},
        {"name": "x2", "recipe": {"kind": "uniform", "lo": -5, "hi": 5.5}},
        {"name": "x3", "recipe": {"kind": "normal", "mean": 1, "stddev": 2}},
        {"name": "x4", "recipe": {"kind": "constant", "value": -0.25}},
        {"name": "x5", "file": "data/x5.npy"},
        {"name": "x6", "file": "/abs/x6.npy"}
      ],
      "outputs": [{"name": "y", "dtype": "float32", "shape": ["W * M", "ceil_div(N, 64)"]}],
      "standard": {
        "acc": {"cv_fused_double_benchmark": {"max_re_ratio": 5, "avg_re_ratio": 1.5}},
        "perf": [1, 0.95],
        "mem": 1.1,
        "bi": {"row_positions": [3, "mid", "last"], "n_variants": 4, "relations": ["repeat", "poison"],
               "inputs": "own", "batch_sizes": [1, 7]}
      },
      "expect": {"position": "violation", "poison": "skipped", "cell": "vacuous"},
      "limits": {"timeout_s": 2.5},
      "allow_vacuous": "one rank"
    }
  ]
})json",
                                              "a/b/s.json");
  ASSERT_TRUE(suite.has_value()) << suite.error().message;
  const Case& c = suite->cases.at(0);
  EXPECT_EQ(c.name, "mm.all_1#+-");
  EXPECT_EQ(c.impl, "cpu");
  EXPECT_EQ(c.mode, BP_MODE_FAST);
  ASSERT_EQ(c.axes.size(), 3u);
  EXPECT_EQ(c.axes[0].name, "M");
  EXPECT_EQ(c.axes[0].position.text(), "a/b/s.json:10:16");
  EXPECT_EQ(c.axes[0].values, (std::vector<AxisValue>{std::int64_t{8}, std::int64_t{0}}));
  EXPECT_EQ(c.axes[1].values, (std::vector<AxisValue>{std::string("bf16")}));
  EXPECT_EQ(c.axes[2].values, (std::vector<AxisValue>{std::int64_t{2}}));  // 2.0 is an integer, as JSON Schema has it
  EXPECT_EQ(c.where, "M % 8 == 0");
  EXPECT_EQ(c.position_of("where").text(), "a/b/s.json:11:16");
  EXPECT_EQ(c.attrs.at("flag"), AttrValue(true));
  EXPECT_EQ(c.attrs.at("count"), AttrValue(std::int64_t{-3}));
  EXPECT_EQ(c.attrs.at("eps"), AttrValue(0.5));
  EXPECT_EQ(c.attrs.at("kind"), AttrValue(std::string("aiv")));
  EXPECT_EQ(c.position_of("attrs.count").text(), "a/b/s.json:12:31");
  ASSERT_EQ(c.ports.size(), 7u);
  EXPECT_EQ(c.ports[0].dtype, BP_BF16);
  EXPECT_EQ(c.ports[0].shape, (std::vector<std::string>{"M", "16"}));
  EXPECT_EQ(c.ports[0].recipe->kind, RecipeKind::small_integer);
  EXPECT_EQ(c.ports[0].position.text(), "a/b/s.json:14:9");
  EXPECT_FALSE(c.ports[1].dtype.has_value());
  EXPECT_EQ(*c.ports[1].recipe, (RecipeSpec{RecipeKind::uniform, -5.0, 5.5, ""}));
  EXPECT_EQ(*c.ports[2].recipe, (RecipeSpec{RecipeKind::normal, 1.0, 2.0, ""}));
  EXPECT_EQ(c.ports[3].recipe->kind, RecipeKind::constant);
  EXPECT_EQ(c.ports[3].recipe->lo, -0.25);
  EXPECT_EQ(c.ports[4].recipe->kind, RecipeKind::file);
  EXPECT_EQ(c.ports[4].recipe->file, "a/b/data/x5.npy");
  EXPECT_EQ(c.ports[5].recipe->file, "/abs/x6.npy");
  EXPECT_TRUE(c.lists_outputs);
  EXPECT_EQ(c.ports[6].name, "y");
  EXPECT_EQ(c.ports[6].dtype, BP_FP32);
  EXPECT_EQ(c.ports[6].shape, (std::vector<std::string>{"W * M", "ceil_div(N, 64)"}));
  EXPECT_EQ(c.standard.acc->name, "cv_fused_double_benchmark");
  EXPECT_EQ(c.standard.acc->thresholds, (std::map<std::string, double>{{"avg_re_ratio", 1.5}, {"max_re_ratio", 5.0}}));
  EXPECT_EQ(*c.standard.perf, (std::array<double, 2>{1.0, 0.95}));
  EXPECT_EQ(c.standard.mem, 1.1);
  const BiStandard& bi = *c.standard.bi;
  ASSERT_EQ(bi.row_positions.size(), 3u);
  EXPECT_EQ(bi.row_positions[0].kind, RowPosition::Kind::index);
  EXPECT_EQ(bi.row_positions[0].index, 3);
  EXPECT_EQ(bi.row_positions[1].kind, RowPosition::Kind::mid);
  EXPECT_EQ(bi.row_positions[2].kind, RowPosition::Kind::last);
  EXPECT_EQ(bi.n_variants, 4);
  EXPECT_EQ(bi.relations, std::uint32_t{BP_REPEAT | BP_POISON});
  EXPECT_EQ(bi.inputs, BiInputs::own);
  EXPECT_EQ(bi.batch_sizes, (std::vector<std::int64_t>{1, 7}));
  EXPECT_EQ(c.expect.cell, Verdict::vacuous);
  EXPECT_EQ(c.expect.relations,
            (std::map<std::uint32_t, Verdict>{{BP_POSITION, Verdict::violation}, {BP_POISON, Verdict::skipped}}));
  EXPECT_EQ(c.timeout_s, 2.5);
  EXPECT_EQ(c.allow_vacuous, "one rank");
}

TEST(LoadNative, EmptyBiTakesTheDefaults) {
  const Case c = case_with(R"("standard": {"bi": {}})");
  ASSERT_TRUE(c.standard.bi.has_value());
  ASSERT_EQ(c.standard.bi->row_positions.size(), 3u);
  EXPECT_EQ(c.standard.bi->row_positions[0].index, 0);
  EXPECT_EQ(c.standard.bi->row_positions[0].kind, RowPosition::Kind::index);
  EXPECT_EQ(c.standard.bi->row_positions[1].kind, RowPosition::Kind::mid);
  EXPECT_EQ(c.standard.bi->row_positions[2].kind, RowPosition::Kind::last);
  EXPECT_EQ(c.standard.bi->n_variants, 2);
  EXPECT_EQ(c.standard.bi->relations, kDefaultRelations);
  EXPECT_EQ(c.standard.bi->inputs, BiInputs::automatic);
  EXPECT_TRUE(c.standard.bi->batch_sizes.empty());
  EXPECT_FALSE(case_with(R"("standard": {"acc": "equal"})").standard.bi.has_value());
}

TEST(LoadNative, FormsOfExpectAndStandard) {
  EXPECT_EQ(case_with(R"("expect": "violation")").expect.cell, Verdict::violation);
  EXPECT_EQ(case_with(R"("expect": "vacuous")").expect.cell, Verdict::vacuous);
  const Case error = case_with(R"("expect": {"error": "K must be"})");
  EXPECT_EQ(error.expect.cell, Verdict::error);
  EXPECT_EQ(error.expect.error, "K must be");
  EXPECT_EQ(case_with(R"("expect": {"repeat": "violation"})").expect.cell, Verdict::pass);
  EXPECT_EQ(case_with(R"("expect": "wrong")").expect.cell, Verdict::wrong);
  const Case standards = case_with(R"("expect": {"acc": "wrong", "mem": "heavy", "position": "pass"})");
  EXPECT_EQ(standards.expect.acc, Verdict::wrong);
  EXPECT_EQ(standards.expect.mem, Verdict::heavy);
  EXPECT_FALSE(case_with(R"("expect": {"repeat": "violation"})").expect.acc.has_value());
  EXPECT_FALSE(case_with(R"("standard": {"perf": "not_key"})").standard.perf.has_value());
  const Case named = case_with(R"("standard": {"acc": "equal"})");
  EXPECT_EQ(named.standard.acc->name, "equal");
  EXPECT_TRUE(named.standard.acc->thresholds.empty());
  EXPECT_EQ(case_with(R"("standard": {"bi": {"inputs": "shared"}})").standard.bi->inputs, BiInputs::shared);
  EXPECT_EQ(case_with(R"("standard": {"bi": {"inputs": "auto"}})").standard.bi->inputs, BiInputs::automatic);
}

struct Bad {
  const char* text;
  const char* message;
};

TEST(LoadNative, ErrorsOfTheWholeFile) {
  const Bad bad[] = {
      {"5", "s:1:1: a suite must be an object (native) or a list of cases (ATK), found 5"},
      {"\"x\"", "s:1:1: a suite must be an object (native) or a list of cases (ATK), found \"x\""},
      {"{}", "s:1:1: a suite has no \"version\""},
      {R"({"version": 1})", "s:1:1: a suite has no \"cases\""},
      {R"({"version": 2, "cases": []})", "s:1:13: version must be 1, found 2"},
      {R"({"version": "1", "cases": []})", "s:1:13: version must be 1, found \"1\""},
      {R"({"version": 1, "cases": []})", "s:1:25: cases is empty; it needs at least one entry"},
      {R"({"version": 1, "cases": {}})", "s:1:25: cases must be a list, found an object"},
      {R"({"version": 1, "cases": [7]})", "s:1:26: a case must be an object, found 7"},
      {R"({"$schema": 1, "version": 1, "cases": [7]})", "s:1:13: $schema must be a string that is not empty, found 1"},
      {R"({"version": 1, "case": []})",
       "s:1:16: unknown key \"case\" in a suite; did you mean \"cases\"? Known keys: $schema, version, cases"},
      {R"({"version": 1, "cases": [{"op": "o"}]})", "s:1:26: a case has no \"name\""},
      {R"({"version": 1, "cases": [{"name": "a"}]})", "s:1:26: a case has no \"op\""},
      {R"({"version": 1, "cases": [{"name": "", "op": "o"}]})",
       "s:1:35: the name of a case must be a string that is not empty, found \"\""},
      {R"({"version": 1, "cases": [{"name": "a/b", "op": "o"}]})",
       "s:1:35: the name of a case \"a/b\" may hold only letters, digits and . _ # + - (it becomes part of the "
       "cell's id)"},
      {"{\"version\": 1, \"cases\": [{\"name\": \"a\", \"op\": \"o\"},\n {\"op\": \"p\", \"name\": \"a\"}]}",
       "s:2:22: two cases are named \"a\"; the other is at s:1:26"},
      {"{\"version\": 1, \"cases\": [{\"name\": \"a\", \"op\": \"o\", \"op\": \"p\"}]}",
       "s:1:51: duplicate key \"op\""},
  };
  for (const Bad& b : bad) EXPECT_EQ(error_of(b.text), b.message) << b.text;
}

TEST(LoadNative, ErrorsInACase) {
  const Bad bad[] = {
      {R"("axis": {})",
       "s:2:26: unknown key \"axis\" in a case; did you mean \"axes\"? Known keys: name, op, impl, mode, "
       "axes, where, attrs, inputs, outputs, standard, expect, limits, allow_vacuous, inputs_from"},
      {R"("colour": 1)",
       "s:2:26: unknown key \"colour\" in a case; known keys: name, op, impl, mode, axes, where, attrs, "
       "inputs, outputs, standard, expect, limits, allow_vacuous, inputs_from"},
      {R"("impl": 3)", "s:2:34: impl must be a string that is not empty, found 3"},
      {R"("mode": "slow")", "s:2:34: mode must be \"invariant\" or \"fast\", found \"slow\""},
      {R"("axes": [])", "s:2:34: axes must be an object, found a list"},
      {R"("axes": {"M": 8})", "s:2:40: axis \"M\" must be a list, found 8"},
      {R"("axes": {"M": []})", "s:2:40: axis \"M\" is empty; it needs at least one entry"},
      {R"("axes": {"M": [8, 8]})", "s:2:44: axis \"M\" lists this value twice"},
      {R"("axes": {"M": [-1]})",
       "s:2:41: axis \"M\" holds values that must be integers from 0 to 9007199254740992 or names, found -1"},
      {R"("axes": {"M": [1e30]})",
       "s:2:41: axis \"M\" holds values that must be integers from 0 to 9007199254740992 or names, found 1e+30"},
      {R"("axes": {"M": [99999999999999999999]})",
       "s:2:41: axis \"M\" holds values that must be integers from 0 to 9007199254740992 or names, found 1e+20"},
      {R"("axes": {"M": [1.5]})",
       "s:2:41: axis \"M\" holds values that must be integers from 0 to 9007199254740992 or names, found 1.5"},
      {R"("axes": {"M": [null]})",
       "s:2:41: axis \"M\" holds values that must be integers from 0 to 9007199254740992 or names, found null"},
      {R"("axes": {"x1": ["a,b"]})",
       "s:2:42: an axis value \"a,b\" may hold only letters, digits and . _ # + - (it becomes part of the cell's "
       "id)"},
      {R"("where": true)", "s:2:35: where must be a string that is not empty, found true"},
      {R"("attrs": {"a": null})", "s:2:41: attribute \"a\" must be true, false, a number or a string, found null"},
      {R"("attrs": {"a": [1]})", "s:2:41: attribute \"a\" must be true, false, a number or a string, found a list"},
      {R"("limits": {"timeout": 3})",
       "s:2:37: unknown key \"timeout\" in limits; did you mean \"timeout_s\"? Known keys: timeout_s"},
      {R"("limits": {"timeout_s": 0})", "s:2:50: timeout_s must be a number above 0, found 0"},
      {R"("allow_vacuous": true)", "s:2:43: allow_vacuous (the reason) must be a string that is not empty, found true"},
      {R"("allow_vacuous": "")", "s:2:43: allow_vacuous (the reason) must be a string that is not empty, found \"\""},
      {R"("expect": "error")",
       "s:2:36: expect must be \"pass\", \"violation\", \"vacuous\", \"wrong\", \"heavy\" or {\"error\": \"text\"}, "
       "found \"error\""},
      {R"("expect": {})", "s:2:36: expect is empty; name a relation, \"acc\", \"mem\", \"cell\" or \"error\""},
      {R"("expect": {"error": ""})", "s:2:46: the expected error must be a string that is not empty, found \"\""},
      {R"("expect": {"error": "x", "cell": "pass"})",
       "s:2:37: an expected error stands alone: a cell that fails has no relations"},
      {R"("expect": {"positions": "pass"})",
       "s:2:37: unknown key \"positions\" in expect; did you mean \"position\"? Known keys: error, cell, acc, mem, "
       "neighbours, "
       "repeat, "
       "position, cross_rank, batch_size, world_size, comm_mode, poison, routing, alignment, threads, processors, "
       "history, "
       "stream, graph"},
      {R"("expect": {"position": "error"})",
       "s:2:49: the expectation of a relation must be \"pass\", \"violation\", "
       "\"vacuous\" or \"skipped\", found \"error\""},
      {R"("expect": {"cell": "skipped"})",
       "s:2:45: expect must be \"pass\", \"violation\", \"vacuous\", \"wrong\", \"heavy\" or {\"error\": \"text\"}, "
       "found \"skipped\""},
  };
  for (const Bad& b : bad) EXPECT_EQ(error_of(with(b.text)), b.message) << b.text;
}

TEST(LoadNative, ErrorsInPorts) {
  const Bad bad[] = {
      {R"("inputs": {})", "s:2:36: inputs must be a list, found an object"},
      {R"("inputs": ["x"])", "s:2:37: an input must be an object, found \"x\""},
      {R"("inputs": [{}])", "s:2:37: an input has no \"name\""},
      {R"("inputs": [{"name": "x", "shapes": []}])",
       "s:2:51: unknown key \"shapes\" in an input; did you mean \"shape\"? "
       "Known keys: name, dtype, shape, recipe, file"},
      {R"("outputs": [{"name": "y", "recipe": "normal"}])",
       "s:2:52: unknown key \"recipe\" in an output; known keys: name, dtype, shape"},
      {R"("inputs": [{"name": "x", "dtype": "bf61"}])",
       "s:2:60: unknown dtype \"bf61\"; did you mean \"bf16\"? Known dtypes: fp64, fp32, bf16, fp16, e4m3, e5m2, "
       "e8m0, "
       "int8, int32, int64, uint8, int4, e2m1"},
      {R"("inputs": [{"name": "x", "shape": []}])", "s:2:60: shape is empty; it needs at least one entry"},
      {R"("inputs": [{"name": "x", "shape": [-2]}])",
       "s:2:61: an extent must be an integer from 0 or an expression over the axes, found -2"},
      {R"("inputs": [{"name": "x", "shape": [1, 2, 3, 4, 5, 6, 7]}])",
       "s:2:60: shape has 7 extents; at most 6 are supported"},
      {R"("inputs": [{"name": "x", "recipe": "nrmal"}])",
       "s:2:61: unknown recipe \"nrmal\"; did you mean \"normal\"? Known "
       "recipes: normal, wide_exponent, cancelling, small_integer, "
       "checkpoint, ID, VAR"},
      {R"("inputs": [{"name": "x", "recipe": 3}])",
       "s:2:61: recipe must be a name or an object with \"kind\", found 3"},
      {R"("inputs": [{"name": "x", "recipe": {}}])", "s:2:61: recipe has no \"kind\""},
      {R"("inputs": [{"name": "x", "recipe": {"kind": "file"}}])",
       "s:2:70: the kind of a recipe object must be \"uniform\", \"normal\" or \"constant\", found \"file\""},
      {R"("inputs": [{"name": "x", "recipe": {"kind": "uniform", "lo": 1}}])",
       "s:2:61: a uniform recipe has no \"hi\""},
      {R"("inputs": [{"name": "x", "recipe": {"kind": "uniform", "lo": 1, "hi": 1}}])",
       "s:2:96: hi must be above lo, 1 is not above 1"},
      {R"("inputs": [{"name": "x", "recipe": {"kind": "normal", "mean": 1, "stddev": 0}}])",
       "s:2:101: stddev must be a number above 0, found 0"},
      {R"("inputs": [{"name": "x", "recipe": {"kind": "constant", "value": "a"}}])",
       "s:2:91: value must be a number, found \"a\""},
      {R"("inputs": [{"name": "x", "recipe": {"kind": "constant", "value": 1, "mean": 0}}])",
       "s:2:94: unknown key \"mean\" in a constant recipe; known keys: kind, value"},
      {R"("inputs": [{"name": "x", "recipe": "ID", "file": "f"}])",
       "s:2:75: an input has either a recipe or a file, not both"},
      {R"("inputs": [{"name": "x"}], "outputs": [{"name": "x"}])", "s:2:65: port \"x\" is listed twice"},
  };
  for (const Bad& b : bad) EXPECT_EQ(error_of(with(b.text)), b.message) << b.text;
}

TEST(LoadNative, ExpressionsAreParsedWhereTheyStand) {
  EXPECT_EQ(error_of(with(R"("where": "M %")")).rfind("s:2:35: ", 0), 0u);
  EXPECT_EQ(error_of(with(R"("inputs": [{"name": "x", "shape": ["M", "K +"]}])")).rfind("s:2:66: ", 0), 0u);
}

TEST(LoadStandard, Errors) {
  const std::string known_relations =
      "neighbours, repeat, position, cross_rank, batch_size, world_size, comm_mode, poison, routing, alignment, "
      "threads, "
      "processors, history, stream, graph";
  const std::pair<const char*, std::string> bad[] = {
      {R"("standard": [])", "s:2:38: standard must be an object, found a list"},
      {R"("standard": {"bl": {}})",
       "s:2:39: unknown key \"bl\" in standard; did you mean \"bi\"? Known keys: acc, perf, mem, bi"},
      {R"("standard": {"acc": 1})",
       "s:2:46: acc must be a name or an object with one name and its thresholds, found 1"},
      {R"("standard": {"acc": {}})",
       "s:2:46: acc must be a name or an object with one name and its thresholds, found an object"},
      {R"("standard": {"acc": {"single_bm": 1}})", "s:2:60: acc \"single_bm\" must be an object, found 1"},
      {R"("standard": {"acc": {"single_bm": {"t": "5"}}})", "s:2:66: threshold \"t\" must be a number, found \"5\""},
      {R"("standard": {"acc": {"single_bm": {"t": 5}}})", "s:2:61: acc \"single_bm\" has no thresholds"},
      {R"("standard": {"acc": "single_bn"})",
       "s:2:46: unknown acc standard \"single_bn\"; did you mean \"single_bm\"? Known standards: default, "
       "mixed_tolerance_bm, single_bm, cv_fused_double_benchmark, equal, md5"},
      {R"("standard": {"acc": {"cv_fused_double_benchmark": {"max_re": 5}}})",
       "s:2:77: unknown threshold \"max_re\"; known thresholds: max_re_ratio, avg_re_ratio, "
       "root_mean_squared_ratio"},
      {R"("standard": {"acc": {"cv_fused_double_benchmark": {"max_re_ratio": 0}}})",
       "s:2:93: threshold \"max_re_ratio\" must be a number above 0, found 0"},
      {R"("expect": {"acc": "violation"})",
       "s:2:44: the expectation of acc must be \"pass\", \"wrong\" or \"skipped\", found \"violation\""},
      {R"("standard": {"perf": "key"})",
       "s:2:47: perf must be \"not_key\" or a pair [mean over cases, each case], found \"key\""},
      {R"("standard": {"perf": [1]})",
       "s:2:47: perf must be \"not_key\" or a pair [mean over cases, each case], found a list"},
      {R"("standard": {"perf": [0.9, 0]})", "s:2:53: perf[1] must be a number above 0, found 0"},
      {R"("standard": {"mem": -1})", "s:2:46: mem must be a number above 0, found -1"},
      {R"("standard": {"bi": true})", "s:2:45: standard.bi must be an object, found true"},
      {R"("standard": {"bi": {"n_variant": 2}})",
       "s:2:46: unknown key \"n_variant\" in standard.bi; did you mean "
       "\"n_variants\"? Known keys: row_positions, n_variants, relations, "
       "inputs, batch_sizes, repeats"},
      {R"("standard": {"bi": {"n_variants": 1}})",
       "s:2:60: n_variants (it counts variant A) must be an integer from 2 to 1024, found 1"},
      {R"("standard": {"bi": {"n_variants": 1e99}})",
       "s:2:60: n_variants (it counts variant A) must be an integer from 2 to 1024, found 1e+99"},
      {R"("standard": {"bi": {"row_positions": []}})", "s:2:63: row_positions is empty; it needs at least one entry"},
      {R"("standard": {"bi": {"row_positions": [0, "middle"]}})",
       "s:2:67: a row position must be an index from 0, \"mid\" or \"last\", found \"middle\""},
      {R"("standard": {"bi": {"row_positions": [-1]}})",
       "s:2:64: a row position must be an index from 0, \"mid\" or \"last\", found -1"},
      {R"("standard": {"bi": {"relations": []}})", "s:2:59: relations is empty; it needs at least one entry"},
      {R"("standard": {"bi": {"relations": ["repaet"]}})",
       "s:2:60: unknown relation \"repaet\"; did you mean \"repeat\"? Known relations: " + known_relations},
      {R"("standard": {"bi": {"relations": ["repeat", "repeat"]}})", "s:2:70: relation \"repeat\" is listed twice"},
      {R"("standard": {"bi": {"batch_sizes": [0]}})",
       "s:2:62: a batch size must be an integer from 1 to 9007199254740992, found 0"},
      {R"("standard": {"bi": {"batch_sizes": [3, 3]}})", "s:2:65: batch size 3 is listed twice"},
      {R"("standard": {"bi": {"inputs": "mine"}})",
       "s:2:56: bi.inputs must be \"auto\", \"shared\" or \"own\", found \"mine\""},
  };
  for (const auto& [text, message] : bad) EXPECT_EQ(error_of(with(text)), message) << text;
}

TEST(LoadSuite, ReadsFilesAndNamesThePath) {
  const std::string path = testing::TempDir() + "/batchproof_load_suite.json";
  std::ofstream(path) << "{\n\"version\": 3}";
  const Result<Suite> bad = load_suite(path);
  ASSERT_FALSE(bad.has_value());
  EXPECT_EQ(bad.error().message, path + ":2:12: version must be 1, found 3");
  std::ofstream(path) << with("\"impl\": \"x\"");
  const Result<Suite> good = load_suite(path);
  ASSERT_TRUE(good.has_value()) << good.error().message;
  EXPECT_EQ(good->cases[0].position.file, path);
  const Result<Suite> missing = load_suite(path + ".missing");
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().kind, Error::Kind::usage);
  EXPECT_NE(missing.error().message.find(path + ".missing"), std::string::npos);
}

TEST(SchemaText, HoldsBothDialects) {
  EXPECT_NE(schema_text("native").find("batchproof suite, native dialect"), std::string_view::npos);
  EXPECT_NE(schema_text("atk").find("batchproof suite, ATK dialect"), std::string_view::npos);
  EXPECT_EQ(schema_text("native").front(), '{');
  EXPECT_EQ(schema_text("other"), "");
}

// ---- inputs_from ----

class InputsFrom : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / fmt::format("batchproof-inputs-from-{}", getpid());
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ / "accuracy.json") << R"({"version": 1, "cases": [
      {"name": "a", "op": "matmul", "axes": {"M": [4]}, "standard": {"acc": "default"}},
      {"name": "b", "op": "matmul", "axes": {"M": [8]}, "attrs": {"flag": true}}]})";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  Result<Suite> load(const std::string& body) const {
    return load_suite_text(R"({"version": 1, "cases": [)" + body + "]}", (folder_ / "bi.json").string());
  }
  std::filesystem::path folder_;
};

TEST_F(InputsFrom, StandsForEveryCaseOfTheFileUnderItsOwnStandard) {
  const auto suite = load(R"({"name": "bi", "inputs_from": "accuracy.json", "impl": "fixed",
                              "standard": {"bi": {"n_variants": 3}}, "expect": "violation"})");
  ASSERT_TRUE(suite) << suite.error().message;
  ASSERT_EQ(suite->cases.size(), 2u);
  const Case& a = suite->cases[0];
  EXPECT_EQ(a.name, "bi.a");
  EXPECT_EQ(suite->cases[1].name, "bi.b");
  EXPECT_EQ(a.op, "matmul");
  EXPECT_EQ(a.impl, "fixed");
  EXPECT_EQ(a.axes.at(0).values, (std::vector<AxisValue>{std::int64_t{4}}));
  EXPECT_EQ(suite->cases[1].attrs.at("flag"), AttrValue(true));
  ASSERT_TRUE(a.standard.bi);
  EXPECT_EQ(a.standard.bi->n_variants, 3);
  EXPECT_FALSE(a.standard.acc);
  EXPECT_EQ(a.expect.cell, Verdict::violation);
}

TEST_F(InputsFrom, WithoutAStandardTheFileKeepsItsOwn) {
  const auto suite = load(R"({"name": "again", "inputs_from": "accuracy.json"})");
  ASSERT_TRUE(suite) << suite.error().message;
  EXPECT_TRUE(suite->cases[0].standard.acc);
}

TEST_F(InputsFrom, TheFileKeepsItsExpectationAndTheSuiteAnswersForTheFile) {
  const auto write = [&](const char* rows) {
    std::ofstream(folder_ / "control.json")
        << R"({"version": 1, "cases": [{"name": "c", "op": "matmul", "expect": "violation",
      "axes": {"M": [)"
        << rows << "]}}]}";
  };
  write("4");
  const std::string body = R"({"name": "bi", "inputs_from": "control.json"})";
  const auto suite = load(body);
  ASSERT_TRUE(suite) << suite.error().message;
  EXPECT_EQ(suite->cases.at(0).expect.cell, Verdict::violation);
  EXPECT_EQ(suite->cases.at(0).position.file, (folder_ / "bi.json").string());
  write("5");
  const auto edited = load(body);
  ASSERT_TRUE(edited) << edited.error().message;
  EXPECT_NE(edited->build_id, suite->build_id);
}

TEST_F(InputsFrom, AFileThatLeadsBackToItselfIsAnError) {
  std::ofstream(folder_ / "one.json") << R"({"version": 1, "cases": [{"name": "x", "inputs_from": "two.json"}]})";
  std::ofstream(folder_ / "two.json") << R"({"version": 1, "cases": [{"name": "y", "inputs_from": "one.json"}]})";
  const auto suite = load_suite((folder_ / "one.json").string());
  ASSERT_FALSE(suite);
  EXPECT_NE(suite.error().message.find("leads back to itself"), std::string::npos) << suite.error().message;
}

TEST_F(InputsFrom, Errors) {
  const auto missing = load(R"({"name": "x", "inputs_from": "none.json"})");
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("inputs_from: "), std::string::npos);
  EXPECT_NE(missing.error().message.find("none.json"), std::string::npos);
  const auto both = load(R"({"name": "x", "inputs_from": "accuracy.json", "axes": {"M": [1]}})");
  ASSERT_FALSE(both);
  EXPECT_NE(both.error().message.find("\"axes\" follows from inputs_from; leave it out"), std::string::npos);
}

}  // namespace
}  // namespace batchproof
