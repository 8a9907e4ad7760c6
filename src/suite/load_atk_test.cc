// SPDX-License-Identifier: Apache-2.0
//
// The ATK dialect: what is read, what is inferred, what is skipped and what is refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "src/suite/atk.h"
#include "src/suite/load.h"
#include "src/suite/test_operators.h"

namespace batchproof {
namespace {

Result<Suite> load(const std::string& text) { return load_suite_text(text, "s"); }

std::string error_of(const std::string& text) {
  const Result<Suite> suite = load(text);
  if (suite) return "accepted";
  EXPECT_EQ(suite.error().kind, Error::Kind::usage);
  return suite.error().message;
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& range = "[-5, 5]") {
  return fmt::format(R"({{"name": "{}", "type": "tensor", "dtype": "{}", "shape": {}, "range_values": {}}})", name,
                     dtype, shape, range);
}

std::string attr(const std::string& name, const std::string& value) {
  return fmt::format(R"({{"name": "{}", "type": "attr", "shape": null, "range_values": {}}})", name, value);
}

// A file of one case with one input per line, the first on line 2.
std::string gather(const std::vector<std::string>& inputs, const std::string& aclnn_name = "FakeGather") {
  return fmt::format("[{{\"name\": \"g\", \"aclnn_name\": \"{}\", \"inputs\": [\n{}]}}]", aclnn_name,
                     fmt::join(inputs, ",\n"));
}

const std::string kX1 = tensor("x1", "bf16", "[12, 640]");
const std::string kX2 = tensor("x2", "bf16", "[640, 24]");

Case bind(const std::vector<std::string>& inputs, const std::string& aclnn_name = "FakeGather") {
  const Result<Suite> suite = load(gather(inputs, aclnn_name));
  EXPECT_TRUE(suite.has_value()) << (suite ? "" : suite.error().message);
  return suite ? suite->cases.at(0) : Case{};
}

std::string axes_of(const Case& c) {
  std::string text;
  for (const CaseAxis& axis : c.axes) {
    EXPECT_EQ(axis.values.size(), 1u);
    const AxisValue& value = axis.values[0];
    text +=
        fmt::format("{}{}={}", text.empty() ? "" : " ", axis.name,
                    value.index() == 0 ? std::to_string(std::get<std::int64_t>(value)) : std::get<std::string>(value));
  }
  return text;
}

const PortSpec* port(const Case& c, const std::string& name) {
  for (const PortSpec& spec : c.ports) {
    if (spec.name == name) return &spec;
  }
  return nullptr;
}

bool transposed(const Case& c) { return std::get<bool>(c.attrs.at("transpose_x2")); }

TEST(PortWord, CamelCaseBecomesSnakeCase) {
  EXPECT_EQ(port_word("x1"), "x1");
  EXPECT_EQ(port_word("x1Scale"), "x1_scale");
  EXPECT_EQ(port_word("x1ScaleOptional"), "x1_scale");
  EXPECT_EQ(port_word("biasOptional"), "bias");
  EXPECT_EQ(port_word("transposeX2"), "transpose_x2");
  EXPECT_EQ(port_word("isFormatNz"), "is_format_nz");
  EXPECT_EQ(port_word("useInt64"), "use_int64");
  EXPECT_EQ(port_word("alltoAllAxesOptional"), "allto_all_axes");
  EXPECT_EQ(port_word("world_size"), "world_size");
  EXPECT_EQ(port_word("NZFormat"), "nz_format");
  EXPECT_EQ(port_word("Optional"), "optional");
}

TEST(LoadAtk, InfersAxesDtypesAndPorts) {
  const Result<Suite> suite = load(gather({kX1, kX2}));
  ASSERT_TRUE(suite.has_value()) << suite.error().message;
  const Case& c = suite->cases.at(0);
  EXPECT_EQ(c.dialect, Dialect::atk);
  EXPECT_EQ(c.name, "g");
  EXPECT_EQ(c.op, "fake_gather");
  EXPECT_EQ(c.position.text(), "s:1:2");
  EXPECT_EQ(c.position_of("op").text(), "s:1:30");
  EXPECT_EQ(axes_of(c), "dtype=bf16 M=12 K=640 N=24");
  ASSERT_EQ(c.ports.size(), 2u);
  EXPECT_EQ(c.ports[0].name, "x1");
  EXPECT_EQ(c.ports[0].dtype, BP_BF16);
  EXPECT_EQ(c.ports[0].shape, (std::vector<std::string>{"12", "640"}));
  EXPECT_EQ(*c.ports[0].recipe, (RecipeSpec{RecipeKind::uniform, -5.0, 5.0, ""}));
  EXPECT_EQ(c.ports[0].position.text(), "s:2:1");
  EXPECT_EQ(c.ports[1].shape, (std::vector<std::string>{"640", "24"}));
  EXPECT_FALSE(transposed(c));
  EXPECT_EQ(c.attrs.at("strict_limits"), AttrValue(false));  // field shapes may be below the documented limits
  EXPECT_FALSE(c.lists_outputs);
  EXPECT_TRUE(c.skip_reason.empty());
  EXPECT_FALSE(c.standard.bi.has_value());
}

TEST(LoadAtk, KnowsOperatorsByAnyNameWithAndWithoutPrefix) {
  for (const char* name : {"FakeGather", "aclnnFakeGather", "FakeGatherV2", "aclnnFakeGatherV2", "fake_gather"}) {
    EXPECT_EQ(bind({kX1, kX2}, name).op, "fake_gather") << name;
  }
}

TEST(LoadAtk, UnknownOperatorsAreSkippedByName) {
  const Case c = bind({tensor("anything", "fp9", "[1, 2, 3]"), attr("what", "3")}, "aclnnMatmulAlltoAll");
  EXPECT_EQ(c.op, "MatmulAlltoAll");
  EXPECT_EQ(c.skip_reason, "operator MatmulAlltoAll is not available in this build");
  EXPECT_EQ(c.name, "g");
  EXPECT_TRUE(c.axes.empty());
}

TEST(LoadAtk, NamesBecomeUniqueAndFitCellIds) {
  const auto one = [&](const std::string& name) {
    return fmt::format(R"({{"name": "{}", "aclnn_name": "Nothing", "inputs": [{}]}})", name, kX1);
  };
  const Result<Suite> suite =
      load(fmt::format("[{},{},{},{},{}]", one("mm"), one("mm#2"), one("mm"), one("mm"), one("a/b,c d")));
  ASSERT_TRUE(suite.has_value()) << suite.error().message;
  std::vector<std::string> names;
  for (const Case& c : suite->cases) names.push_back(c.name);
  EXPECT_EQ(names, (std::vector<std::string>{"mm", "mm#2", "mm#3", "mm#4", "a_b_c_d"}));
}

TEST(LoadAtk, BookKeepingIsIgnored) {
  EXPECT_EQ(
      error_of(R"([{"id": 3, "api_type": "f", "uuid": null, "save_name": [1], "outputs": [], "strategy": {"a": 1},
    "name": "g", "aclnn_name": "FakeGather", "inputs": [)" +
               kX1 + "," + R"({"name": "x2", "type": "tensor", "required": true, "dtype": "bf16", "shape": [640, 24],
    "range_values": null, "backward": true, "align_32B": null, "outlier_values": null, "format": "ND"}]}])"),
      "accepted");
}

TEST(LoadAtk, StandardIsRead) {
  const Result<Suite> suite =
      load(R"([{"name": "g", "aclnn_name": "N", "inputs": [)" + kX1 +
           R"(], "standard": {"acc": "cv", "perf": [0.95, 0.95], "mem": 1.1, "bi": {"n_variants": 3}}}])");
  ASSERT_TRUE(suite.has_value()) << suite.error().message;
  // A comparer that somebody registered for himself.
  EXPECT_EQ(suite->cases[0].standard.acc->name, "cv");
  EXPECT_EQ(suite->cases[0].standard.mem, 1.1);
  EXPECT_EQ(suite->cases[0].standard.bi->n_variants, 3);
  EXPECT_EQ(error_of(R"([{"name": "g", "aclnn_name": "N", "inputs": [1], "standard": {"bi": {"n_variant": 3}}}])"),
            "s:1:70: unknown key \"n_variant\" in standard.bi; did you mean \"n_variants\"? Known keys: row_positions, "
            "n_variants, relations, inputs, batch_sizes, repeats");
}

// ---- orientation ----

TEST(LoadAtk, TheShapeDecidesTheOrientation) {
  const std::string stored_nk = tensor("x2", "bf16", "[24, 640]");
  Case c = bind({kX1, stored_nk});
  EXPECT_EQ(axes_of(c), "dtype=bf16 M=12 K=640 N=24");
  EXPECT_TRUE(transposed(c));
  EXPECT_EQ(port(c, "x2")->shape, (std::vector<std::string>{"640", "24"}));  // logical, not as stored
  c = bind({kX1, stored_nk, attr("transposeX2", "false")});
  EXPECT_TRUE(transposed(c));
  c = bind({kX1, kX2, attr("transposeX2", "true")});
  EXPECT_FALSE(transposed(c));
  // The order of the inputs does not matter.
  EXPECT_EQ(axes_of(bind({stored_nk, kX1})), "dtype=bf16 M=12 K=640 N=24");
}

TEST(LoadAtk, TheAttributeDecidesForASquare) {
  const std::string x1 = tensor("x1", "bf16", "[3, 32]");
  const std::string square = tensor("x2", "bf16", "[32, 32]");
  EXPECT_FALSE(transposed(bind({x1, square})));
  EXPECT_FALSE(transposed(bind({x1, square, attr("transposeX2", "false")})));
  EXPECT_TRUE(transposed(bind({x1, square, attr("transposeX2", "true")})));
  EXPECT_TRUE(transposed(bind({x1, square, attr("transposeX2", "[true]")})));
  EXPECT_TRUE(transposed(bind({x1, square, attr("transposeWeight", "1")})));  // by the port's alias
}

TEST(LoadAtk, CompoundExtentsDecideWhatTheyCan) {
  const std::string x = tensor("x", "fp32", "[16, 20]");
  // (W * K, N) = (40, 12) fits W = 2; as (12, 40) it would need 20 W = 12.
  Case c = bind({x, tensor("weight", "fp32", "[40, 12]")}, "FakeExchange");
  EXPECT_EQ(axes_of(c), "dtype=fp32 M=16 K=20 N=12");
  EXPECT_EQ(c.attrs.at("transpose_weight"), AttrValue(false));
  c = bind({x, tensor("weight", "fp32", "[12, 40]")}, "FakeExchange");
  EXPECT_EQ(axes_of(c), "dtype=fp32 M=16 K=20 N=12");
  EXPECT_EQ(c.attrs.at("transpose_weight"), AttrValue(true));
  EXPECT_EQ(
      error_of(gather({x, tensor("weight", "fp32", "[30, 12]")}, "FakeExchange")),
      "s:3:1: tensor \"weight\" of shape (30, 12) does not fit input weight (W * K, N) of operator fake_exchange with "
      "K = 20, M = 16");
}

TEST(LoadAtk, AnInputThatCannotBeTransposed) {
  EXPECT_EQ(bind({kX1, kX2, attr("transposeX1", "false")}).skip_reason, "");
  EXPECT_EQ(bind({kX1, kX2, attr("transposeX1", "true")}).skip_reason,
            "operator fake_gather does not take x1 transposed");
}

// ---- optional inputs ----

TEST(LoadAtk, BiasIsThereWhereItFits) {
  const std::string bias = tensor("biasOptional", "bf16", "[24]");
  EXPECT_EQ(port(bind({kX1, kX2, bias}), "bias")->dtype, BP_BF16);
  EXPECT_EQ(port(bind({kX1, kX2, bias}), "bias")->shape, std::vector<std::string>{"24"});
  EXPECT_NE(port(bind({kX1, kX2, bias, attr("hasBias", "true")}), "bias"), nullptr);
  EXPECT_EQ(port(bind({kX1, kX2, bias, attr("hasBias", "false")}), "bias"), nullptr);
  EXPECT_EQ(port(bind({kX1, kX2, tensor("bias", "fp16", "[1]", "[0]")}), "bias"), nullptr);
  EXPECT_EQ(port(bind({kX1, kX2, tensor("bias", "fp16", "null")}), "bias"), nullptr);
  EXPECT_EQ(port(bind({kX1, kX2}), "bias"), nullptr);
}

// Dropping it would test another call than the case's.
TEST(LoadAtk, AnOptionalTensorThatFitsNowhereIsAnError) {
  EXPECT_EQ(error_of(gather({kX1, kX2, tensor("bias", "bf16", "[7]")})),
            "s:4:1: tensor \"bias\" of shape (7) does not fit input bias (N) of operator fake_gather with K = 640, M = "
            "12, N = 24");
  EXPECT_EQ(port(bind({kX1, kX2, tensor("bias", "bf16", "[7]"), attr("hasBias", "false")}), "bias"), nullptr);
}

TEST(LoadAtk, AnAxisInACompoundExtentIsSolved) {
  const std::string x = tensor("x", "fp32", "[12, 8]");
  const Case c = bind({x, tensor("tail", "fp32", "[4, 5]")}, "FakeParts");
  EXPECT_EQ(axes_of(c), "dtype=fp32 M=12 K=8 PART=3 L=5");
  EXPECT_NE(port(c, "tail"), nullptr);
  EXPECT_EQ(
      error_of(gather({x, tensor("tail", "fp32", "[5, 5]")}, "FakeParts")),
      "s:3:1: tensor \"tail\" of shape (5, 5) does not fit input tail (M / PART, L) of operator fake_parts with K "
      "= 8, M = 12");
}

TEST(LoadAtk, AxesOfAbsentTensorsAreLeftOut) {
  const std::string x = tensor("x", "fp32", "[12, 8]");
  EXPECT_EQ(axes_of(bind({x}, "FakeParts")), "dtype=fp32 M=12 K=8");
  EXPECT_EQ(axes_of(bind({x, tensor("tail", "fp32", "[1]", "0")}, "FakeParts")), "dtype=fp32 M=12 K=8");
}

TEST(LoadAtk, AnOutputFlagSaysWhetherTheOutputIsThere) {
  const std::string x = tensor("x", "fp32", "[12, 8]");
  EXPECT_EQ(port(bind({x, attr("tailYFlag", "true")}, "FakeParts"), "tail_y"), nullptr);  // as it is by default
  const Case c = bind({x, attr("tailYFlag", "false")}, "FakeParts");
  ASSERT_NE(port(c, "tail_y"), nullptr);
  EXPECT_EQ(port(c, "tail_y")->dtype, bp_dtype{BP_NONE});
  EXPECT_EQ(error_of(gather({x, attr("yFlag", "true")}, "FakeParts")).find("s:3:1: attribute \"yFlag\" means nothing"),
            0u);  // y is always there
}

TEST(LoadAtk, ListsOfATextAttributeAreJoined) {
  const std::string x = tensor("x", "fp32", "[12, 8]");
  const auto counts = [&](const std::string& entry) {
    return std::get<std::string>(bind({x, entry}, "FakeParts").attrs.at("counts"));
  };
  EXPECT_EQ(counts(fmt::format("[{}]", attr("counts", "4"))), "4");
  EXPECT_EQ(counts(fmt::format("[{}, {}]", attr("counts", "4"), attr("counts", "0"))), "4,0");
  EXPECT_EQ(counts(attr("counts", "[4, 0, 8]")), "4,0,8");
  EXPECT_EQ(error_of(gather({x, attr("counts", "[4, 0.5]")}, "FakeParts")),
            "s:3:71: an entry of list \"counts\" must be an integer or a string");
}

TEST(LoadAtk, ABiasThatIsWantedMustFit) {
  EXPECT_EQ(error_of(gather({kX1, kX2, tensor("bias", "bf16", "[7]"), attr("hasBias", "true")})),
            "s:4:1: tensor \"bias\" of shape (7) does not fit input bias (N) of operator fake_gather with K = 640, M = "
            "12, N = "
            "24");
  EXPECT_EQ(error_of(gather({kX1, kX2, tensor("bias", "bf16", "null"), attr("hasBias", "true")})),
            "s:4:1: tensor \"bias\" is wanted, and its shape is null");
}

TEST(LoadAtk, APlaceholderOfOneZeroIsNoBiasEvenWhereOneColumnFits) {
  const std::string x2 = tensor("x2", "bf16", "[640, 1]");
  EXPECT_EQ(port(bind({kX1, x2, tensor("bias", "fp16", "[1]", "[0]")}), "bias"), nullptr);
  EXPECT_EQ(port(bind({kX1, x2, tensor("bias", "fp16", "[1]", "0")}), "bias"), nullptr);
  EXPECT_NE(port(bind({kX1, x2, tensor("bias", "bf16", "[1]", "[-5, 5]")}), "bias"), nullptr);
  EXPECT_NE(port(bind({kX1, x2, tensor("bias", "bf16", "[1]", "0"), attr("hasBias", "true")}), "bias"), nullptr);
}

TEST(LoadAtk, ScalesOnlyOfQuantisedInputs) {
  const std::vector<std::string> scales = {tensor("x1Scale", "fp32", "[12, 1]"),
                                           tensor("weightScale", "fp32", "[1, 24]")};
  Case c = bind({kX1, kX2, scales[0], scales[1]});
  EXPECT_EQ(port(c, "x1_scale"), nullptr);
  EXPECT_EQ(port(c, "x2_scale"), nullptr);
  const std::string q1 = tensor("x1", "float8_e4m3fn", "[12, 640]");
  const std::string q2 = tensor("x2", "float8_e4m3fn", "[640, 24]");
  c = bind({q1, q2, scales[0], scales[1]});
  EXPECT_EQ(axes_of(c), "dtype=fp8 M=12 K=640 N=24");
  EXPECT_NE(port(c, "x1_scale"), nullptr);
  EXPECT_NE(port(c, "x2_scale"), nullptr);
  c = bind({q1, q2, scales[0], scales[1], attr("useX1Scale", "false")});
  // The mode has a scale by default: the case must say that it has none.
  ASSERT_NE(port(c, "x1_scale"), nullptr);
  EXPECT_EQ(port(c, "x1_scale")->dtype, bp_dtype{BP_NONE});
  EXPECT_NE(port(c, "x2_scale"), nullptr);
}

TEST(LoadAtk, TensorsThatNoInputClaims) {
  EXPECT_EQ(bind({kX1, kX2, tensor("table", "fp32", "[1]", R"(["-inf", "inf"])")}).ports.size(), 2u);
  EXPECT_EQ(bind({kX1, kX2, tensor("group", "fp32", "[5, 5]")}).ports.size(), 2u);  // listed in ignored_attrs
  EXPECT_EQ(
      error_of(gather({kX1, kX2, tensor("table", "fp32", "[24]")})),
      "s:4:1: tensor \"table\" is no input of operator fake_gather; known inputs: x1, x2, bias, x1_scale, x2_scale");
  EXPECT_EQ(error_of(gather({kX1, kX2, tensor("x1Scales", "fp32", "[24]")})),
            "s:4:1: tensor \"x1Scales\" is no input of operator fake_gather; did you mean \"x1_scale\"? Known inputs: "
            "x1, x2, "
            "bias, x1_scale, x2_scale");
}

TEST(LoadAtk, ScalesWithoutAPortMeanNothingUntilSomethingIsQuantised) {
  const std::string scale = tensor("quantScale", "fp32", "[24]");
  EXPECT_EQ(bind({kX1, kX2, scale, attr("useQuantScale", "true")}).ports.size(), 2u);
  const std::string q1 = tensor("x1", "e4m3", "[12, 640]");
  const std::string q2 = tensor("x2", "e4m3", "[640, 24]");
  EXPECT_EQ(error_of(gather({q1, q2, scale})),
            "s:4:1: operator fake_gather has no input \"quantScale\" that would scale x1 of dtype e4m3");
  const Case c = bind({q1, q2, tensor("quantScale", "fp32", "[1]")});
  ASSERT_EQ(c.ports.size(), 4u);
  EXPECT_EQ(port(c, "x1_scale")->dtype, bp_dtype{BP_NONE});
  EXPECT_EQ(port(c, "x2_scale")->dtype, bp_dtype{BP_NONE});
}

// ---- attributes ----

TEST(LoadAtk, DeclaredAttributesTakeTheirType) {
  const Case c = bind({kX1, kX2, attr("gatherIndex", "1"), attr("epsilon", "1"), attr("commKind", "\"ccu\""),
                       attr("strictLimits", "true"),
                       R"([{"name": "axesListOptional", "type": "attrs", "range_values": -1},
                           {"name": "axesListOptional", "type": "attrs", "range_values": -2}])"});
  EXPECT_EQ(c.attrs.at("gather_index"), AttrValue(std::int64_t{1}));
  EXPECT_EQ(c.attrs.at("epsilon"), AttrValue(1.0));
  EXPECT_EQ(c.attrs.at("comm_kind"), AttrValue(std::string("ccu")));
  EXPECT_EQ(c.attrs.at("axes_list"), AttrValue(std::string("-1,-2")));
  EXPECT_EQ(c.attrs.at("strict_limits"), AttrValue(true));
  EXPECT_EQ(c.position_of("attrs.gather_index").text(), "s:4:1");
}

TEST(LoadAtk, MeaninglessAttributesAreIgnored) {
  const Case c = bind({kX1, kX2, attr("group", "[-7, 7]"), attr("commTurn", "0"), attr("useInt64", "true"),
                       attr("world_size", R"(["-inf", "inf"])")});
  EXPECT_EQ(c.attrs.size(), 2u);  // strict_limits and transpose_x2
}

TEST(LoadAtk, OutputDtype) {
  Case c = bind({kX1, kX2, attr("outputDtype", "\"bfloat16\"")});
  ASSERT_NE(port(c, "y"), nullptr);
  EXPECT_EQ(port(c, "y")->dtype, BP_BF16);
  EXPECT_EQ(port(c, "y")->position.text(), "s:4:1");
  EXPECT_EQ(axes_of(c), "dtype=bf16 M=12 K=640 N=24");
  c = bind({kX1, kX2, attr("outputDtype", "\"torch.float32\"")});
  EXPECT_EQ(axes_of(c), "dtype=bf16_fp32 M=12 K=640 N=24");  // the mode that agrees with the output, too
  EXPECT_EQ(bind({kX1, kX2, attr("outputDtype", "\"int8\"")}).skip_reason,
            "operator fake_gather does not give int8 for y (it gives fp32, bf16, fp16)");
  EXPECT_EQ(bind({kX1, kX2, attr("outputDtype", "\"hifloat8\"")}).skip_reason,
            "output dtype hifloat8 is not available in this build");
  EXPECT_EQ(
      error_of(gather({kX1, kX2, attr("outputDtype", "3")})),
      "s:4:72: \"outputDtype\" must name a dtype; known dtypes: fp64, fp32, bf16, fp16, e4m3, e5m2, e8m0, int8, int32, "
      "int64, uint8, int4, e2m1");
}

TEST(LoadAtk, AttributeErrors) {
  const std::pair<std::string, std::string> bad[] = {
      {attr("hasBias", "3"), "s:4:68: attribute \"hasBias\" must be true or false"},
      {attr("hasBias", "null"), "s:4:68: attribute \"hasBias\" must be true or false"},
      {attr("transposeX2", "\"yes\""), "s:4:72: attribute \"transposeX2\" must be true or false"},
      {attr("gatherIndex", "0.5"), "s:4:72: attribute \"gatherIndex\" of operator fake_gather must be an integer"},
      {attr("epsilon", "true"), "s:4:68: attribute \"epsilon\" of operator fake_gather must be a number"},
      {attr("commKind", "7"), "s:4:69: attribute \"commKind\" of operator fake_gather must be a string"},
      {attr("gatherIndxe", "0"),
       "s:4:1: attribute \"gatherIndxe\" means nothing to operator fake_gather; did you mean \"gather_index\"? Known "
       "attributes: transpose_x2, strict_limits, gather_index, epsilon, comm_kind, axes_list, group, commTurn, "
       "useInt64, "
       "output_dtype, has_<input>, use_<input>, transpose_<input>, world_size"},
      {attr("hasNothing", "true"),
       "s:4:1: attribute \"hasNothing\" means nothing to operator fake_gather; known attributes: transpose_x2, "
       "strict_limits, gather_index, epsilon, comm_kind, axes_list, group, commTurn, useInt64, output_dtype, "
       "has_<input>, "
       "use_<input>, transpose_<input>, world_size"},
  };
  for (const auto& [input, message] : bad) EXPECT_EQ(error_of(gather({kX1, kX2, input})), message) << input;
}

// ---- dtypes ----

TEST(LoadAtk, DtypesThatTheOperatorLacksAreSkipped) {
  EXPECT_EQ(bind({tensor("x1", "int8", "[12, 640]"), tensor("x2", "int8", "[640, 24]")}).skip_reason,
            "operator fake_gather does not take int8 for x1 (it takes fp32, bf16, fp16, e4m3)");
  EXPECT_EQ(bind({tensor("x1", "fp32", "[12, 640]"), tensor("x2", "fp32", "[640, 24]")}).skip_reason,
            "operator fake_gather has no dtype mode with x1 fp32, x2 fp32 (it has bf16, fp16, bf16_fp32, fp8)");
  EXPECT_EQ(bind({kX1, tensor("x2", "fp16", "[640, 24]")}).skip_reason,
            "operator fake_gather has no dtype mode with x1 bf16, x2 fp16 (it has bf16, fp16, bf16_fp32, fp8)");
  EXPECT_EQ(bind({kX1, tensor("x2", "hifloat8", "[640, 24]")}).skip_reason,
            "dtype hifloat8 of x2 is not available in this build");
  EXPECT_EQ(error_of(gather({kX1, tensor("x2", "bf61", "[640, 24]")})),
            "s:3:1: unknown dtype \"bf61\" of tensor \"x2\"; did you mean \"bf16\"? Known dtypes: fp64, fp32, bf16, "
            "fp16, e4m3, "
            "e5m2, e8m0, int8, int32, int64, uint8, int4, e2m1");
}

TEST(LoadAtk, ADtypeOfAnAbsentInputDoesNotMatter) {
  EXPECT_EQ(bind({kX1, kX2, tensor("bias", "hifloat8", "[1]", "[0]")}).skip_reason, "");
  EXPECT_EQ(axes_of(bind({kX1, kX2, tensor("bias", "fp32", "[24]")})), "dtype=bf16_fp32 M=12 K=640 N=24");
}

// ---- range_values ----

RecipeSpec recipe(const std::string& range) {
  const Case c = bind({tensor("x1", "bf16", "[12, 640]", range), kX2});
  return c.ports.empty() || !c.ports[0].recipe ? RecipeSpec{} : *c.ports[0].recipe;
}

TEST(LoadAtk, RangeValues) {
  EXPECT_EQ(recipe("[-0.3, 0.3]"), (RecipeSpec{RecipeKind::uniform, -0.3, 0.3, ""}));
  EXPECT_EQ(recipe("[0]"), (RecipeSpec{RecipeKind::constant, 0.0, 1.0, ""}));
  EXPECT_EQ(recipe("2.5"), (RecipeSpec{RecipeKind::constant, 2.5, 1.0, ""}));
  EXPECT_EQ(recipe("[3, 3]"), (RecipeSpec{RecipeKind::constant, 3.0, 1.0, ""}));
  EXPECT_EQ(recipe(R"({"name": "nd", "mean": [-5.0, 5.0], "std": [1.0, 25.0]})"),
            (RecipeSpec{RecipeKind::normal, 0.0, 13.0, ""}));
  EXPECT_EQ(recipe(R"({"name": "nd", "mean": 1, "std": 2})"), (RecipeSpec{RecipeKind::normal, 1.0, 2.0, ""}));
  EXPECT_EQ(recipe(R"({"name": "nd", "mean": 1, "std": 0})"), (RecipeSpec{RecipeKind::constant, 1.0, 1.0, ""}));
  EXPECT_EQ(recipe(R"(["-inf", "inf"])").kind, RecipeKind::wide_exponent);
  EXPECT_EQ(recipe(R"([0, "inf"])").kind, RecipeKind::wide_exponent);
  EXPECT_EQ(recipe(R"("inf")"), (RecipeSpec{RecipeKind::constant, std::numeric_limits<double>::infinity(), 1.0, ""}));
  EXPECT_FALSE(bind({tensor("x1", "bf16", "[12, 640]", "null"), kX2}).ports[0].recipe.has_value());
}

TEST(LoadAtk, RangeErrors) {
  const std::string what =
      ": range_values of tensor \"x1\" must be a number, a pair [low, high] with low not above high, or {\"name\": "
      "\"nd\", "
      "\"mean\": ..., \"std\": ...}";
  for (const char* range : {"[5, -5]", "[1, 2, 3]", "\"big\"", "true", "[\"a\", 1]"}) {
    EXPECT_EQ(error_of(gather({tensor("x1", "bf16", "[12, 640]", range), kX2})), "s:2:87" + what) << range;
  }
  EXPECT_EQ(error_of(gather({tensor("x1", "bf16", "[12, 640]", R"({"name": "nd", "mean": 0, "std": -1})"), kX2})),
            "s:2:120: a standard deviation must not be negative");
}

// ---- structure ----

TEST(LoadAtk, StructureErrors) {
  const std::pair<std::string, std::string> bad[] = {
      {"[]", "s:1:1: a suite is empty; it needs at least one entry"},
      {"[1]", "s:1:2: a case must be an object, found 1"},
      {"[{}]", "s:1:2: a case has no \"name\""},
      {R"([{"name": "g"}])", "s:1:2: a case has no \"aclnn_name\""},
      {R"([{"name": "g", "aclnn_name": "F"}])", "s:1:2: a case has no \"inputs\""},
      {R"([{"name": 5, "aclnn_name": "F", "inputs": []}])",
       "s:1:11: the name of a case must be a string that is not empty, found 5"},
      {R"([{"name": "g", "aclnn_name": null, "inputs": []}])",
       "s:1:30: aclnn_name must be a string that is not empty, found null"},
      {R"([{"name": "g", "aclnn_name": "F", "inputs": []}])", "s:1:45: inputs is empty; it needs at least one entry"},
      {R"([{"name": "g", "aclnn_name": "F", "standrad": {}, "inputs": []}])",
       "s:1:35: unknown key \"standrad\" in a case; did you mean \"standard\"?"},
      {R"([{"name": "g", "aclnn_name": "F", "inputs": [5]}])", "s:1:46: an input must be an object, found 5"},
      {R"([{"name": "g", "aclnn_name": "F", "inputs": [[]]}])",
       "s:1:46: a nested list of inputs is empty; it needs at least one entry"},
      {R"([{"name": "g", "aclnn_name": "F", "inputs": [[[]]]}])", "s:1:47: an input must be an object, found a list"},
      {gather({R"({"type": "attr"})"}), "s:2:1: an input has no \"name\""},
      {gather({R"({"name": "a"})"}), "s:2:1: an input has no \"type\""},
      {gather({R"({"name": "a", "type": "tensr"})"}),
       "s:2:23: the type of an input must be one of tensor, tensors, tensor_list, attr, attrs, attr_list, attr_tuple, "
       "scalar, "
       "scalars, scalar_list, found \"tensr\""},
      {gather({R"({"name": "a", "type": "attr", "range_value": 1})"}),
       "s:2:31: unknown key \"range_value\" in an input; did you mean \"range_values\"?"},
      {gather({R"({"name": "a", "type": "attr", "dtype": 1})"}),
       "s:2:40: dtype must be a string that is not empty, found 1"},
      {gather({R"({"name": "a", "type": "tensor", "shape": 4})"}), "s:2:42: shape must be a list, found 4"},
      {gather({R"({"name": "a", "type": "tensor", "shape": [1, -4]})"}),
       "s:2:46: an extent must be an integer from 0 to 9007199254740992, found -4"},
      {gather({R"({"name": "a", "type": "attr", "range_values": []})"}),
       "s:2:47: range_values is empty; it needs at least one entry"},
      {gather({R"({"name": "a", "type": "attr", "range_values": [[1]]})"}),
       "s:2:48: an entry of range_values must be a number, a string, true or false, found a list"},
      {gather({R"({"name": "a", "type": "attr", "range_values": {"name": "ud", "mean": 1, "std": 1}})"}),
       "s:2:56: the name of a distribution must be \"nd\" (normal), found \"ud\""},
      {gather({R"({"name": "a", "type": "attr", "range_values": {"name": "nd", "mean": 1}})"}),
       "s:2:47: a distribution has no \"std\""},
      {gather({R"({"name": "a", "type": "attr", "range_values": {"name": "nd", "mean": [1], "std": 1}})"}),
       "s:2:70: mean must be a number or a pair of numbers, found a list"},
      {gather({R"([{"name": "a", "type": "attr"}, {"name": "b", "type": "attr"}])"}),
       "s:2:33: a nested list holds one input: \"b\" stands in the list of \"a\""},
      {gather({kX1, kX1}), "s:3:1: input \"x1\" is listed twice"},
      {gather({kX1, kX2, tensor("weight", "bf16", "[640, 24]")}),
       "s:4:1: tensors \"x2\" and \"weight\" are the same input x2 of operator fake_gather"},
      {gather({kX1, "[" + kX2 + "," + kX2 + "]"}),
       "s:3:1: input \"x2\" is a list of 2 tensors; operator fake_gather takes one"},
  };
  for (const auto& [text, message] : bad) EXPECT_EQ(error_of(text), message) << text;
}

TEST(LoadAtk, ShapesThatDoNotFit) {
  EXPECT_EQ(error_of(gather({kX1})), "s:1:2: operator fake_gather needs the input x2");
  EXPECT_EQ(error_of(gather({kX1, tensor("x2", "bf16", "null")})),
            "s:3:1: operator fake_gather needs the input x2, and its shape is null");
  EXPECT_EQ(error_of(gather({kX1, tensor("x2", "bf16", "[641, 24]")})),
            "s:3:1: tensor \"x2\" of shape (641, 24) does not fit input x2 (K, N) of operator fake_gather with K = "
            "640, M = 12");
  // Another number of axes is another layout of the field, not a slip.
  EXPECT_EQ(bind({tensor("x1", "bf16", "[2, 6, 640]"), kX2}).skip_reason,
            "tensor \"x1\" of shape (2, 6, 640) does not fit input x1 (M, K) of operator fake_gather");
}

}  // namespace
}  // namespace batchproof
