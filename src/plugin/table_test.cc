// SPDX-License-Identifier: Apache-2.0
//
// check_table: a correct table passes, and each field that can be wrong is refused by name. Tables survive the trip to
// another process.
#include "src/plugin/table.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace batchproof {
namespace {

// y = scaled product; every kind of port, attribute and reference occurs.
struct Sample {
  std::vector<bp_port> ports = {
      {"x", BP_ROW_INPUT, "M, K", 0, 2u, 1, "K", nullptr, BP_SHARDED, 0, BP_DTYPE_BIT(BP_E4M3), 0, BP_PORT_PADDED,
       nullptr, 0, "x1, input", 0},
      {"w", BP_WEIGHT, "K, N", -1, 1u, 1, "K", nullptr, BP_PER_RANK, 0, BP_DTYPE_BIT(BP_E4M3), 0, 0, "transpose_w", 3u,
       nullptr, 0},
      {"x_scale", BP_SCALE, "M, ceil_div(K, 32)", 0, 2u, 32, "K", "x", BP_SHARDED, 0, BP_DTYPE_BIT(BP_E8M0), 0,
       BP_PORT_OPTIONAL, nullptr, 0, nullptr, 0},
      {"y", BP_OUTPUT, "W * M, N", 0, 0, 1, nullptr, nullptr, BP_REPLICATED, 0,
       BP_DTYPE_BIT(BP_FP32) | BP_DTYPE_BIT(BP_INT32), BP_DTYPE_BIT(BP_INT32), 0, nullptr, 0, nullptr, 0},
  };
  std::vector<bp_axis_decl> axes = {{"M", "rows per rank"}, {"K", nullptr}, {"N", "columns"}};
  std::vector<bp_attr_decl> attrs = {{"transpose_w", BP_ATTR_BOOL, "false", "w is stored as (N, K)"},
                                     {"groups", BP_ATTR_INT, "-3", nullptr},
                                     {"epsilon", BP_ATTR_FLOAT, "1e-6", nullptr},
                                     {"path", BP_ATTR_STRING, "", nullptr}};
  std::vector<bp_dtype> dtypes = {BP_E4M3, BP_E4M3, BP_NONE, BP_FP32};
  std::vector<bp_dtype_mode> modes = {{"fp8", dtypes.data()}};
  std::vector<bp_implementation> implementations = {
      {"chain256", "K ascending", nullptr, BP_MODE_INVARIANT, 0, "chain128", nullptr},
      {"chain128", nullptr, nullptr, BP_MODE_INVARIANT, BP_IMPL_WITNESS, nullptr, nullptr},
      {"free", nullptr, "order from M \xC3\xA4", BP_MODE_FAST, 0, nullptr, nullptr}};
  std::vector<std::int64_t> thresholds = {16, 128};
  bp_operator table{};

  Sample() { refresh(); }
  void refresh() {
    table.abi_version = BP_ABI_VERSION;
    table.struct_size = sizeof(bp_operator);
    table.name = "scaled_matmul";
    table.summary = "a product";
    table.rows = "W * M";
    table.row_count_axis = "M";
    table.aliases = "ScaledMatmul";
    table.flags = BP_OP_THREAD_SAFE;
    table.port_count = static_cast<std::uint32_t>(ports.size());
    table.ports = ports.data();
    table.axis_count = static_cast<std::uint32_t>(axes.size());
    table.axes = axes.data();
    table.attr_count = static_cast<std::uint32_t>(attrs.size());
    table.attrs = attrs.data();
    table.dtype_mode_count = static_cast<std::uint32_t>(modes.size());
    table.dtype_modes = modes.data();
    table.implementation_count = static_cast<std::uint32_t>(implementations.size());
    table.implementations = implementations.data();
    table.threshold_count = static_cast<std::uint32_t>(thresholds.size());
    table.thresholds = thresholds.data();
    table.run = [](const bp_context*, const bp_tensor*) -> bp_status { return BP_OK; };
    table.promises = [](const bp_implementation*, const bp_problem*, const bp_device*) -> std::uint32_t { return 0; };
  }
};

TEST(CheckTableTest, ACorrectTablePasses) {
  const Sample sample;
  const auto checked = check_table(sample.table);
  EXPECT_TRUE(checked.has_value()) << checked.error().message;
}

struct Mistake {
  const char* message;  // what the refusal must say
  std::function<void(Sample&)> make;
};

TEST(CheckTableTest, EachMistakeIsRefusedByName) {
  const Mistake mistakes[] = {
      {"abi_version is 2, newer than 1", [](Sample& s) { s.table.abi_version = BP_ABI_VERSION + 1; }},
      {"abi_version is 0, too old", [](Sample& s) { s.table.abi_version = 0; }},
      {"struct_size is 8, too small", [](Sample& s) { s.table.struct_size = 8; }},
      {"name is NULL", [](Sample& s) { s.table.name = nullptr; }},
      {"name is \"two words\"", [](Sample& s) { s.table.name = "two words"; }},
      {"operator scaled_matmul: summary: is not printable", [](Sample& s) { s.table.summary = "a\nb"; }},
      {"summary: is not printable", [](Sample& s) { s.table.summary = "\xC3("; }},
      {"flags: 0x80", [](Sample& s) { s.table.flags = 0x80; }},
      {"ports: is NULL but its count is 4", [](Sample& s) { s.table.ports = nullptr; }},
      {"ports: 4000000000 entries cannot be right", [](Sample& s) { s.table.port_count = 4000000000u; }},
      {"port_count: is 0", [](Sample& s) { s.table.port_count = 0; }},
      {"axes[1].name: the name \"M\" is there twice", [](Sample& s) { s.axes[1].name = "M"; }},
      {"axes[1].name: \"2K\" is no name", [](Sample& s) { s.axes[1].name = "2K"; }},
      {"axes[1].name: NULL is no name", [](Sample& s) { s.axes[1].name = nullptr; }},
      {"axes[2].name: \"W\" is an axis of every operator", [](Sample& s) { s.axes[2].name = "W"; }},
      {"attr transpose_w: default_value \"no\" is no BOOL", [](Sample& s) { s.attrs[0].default_value = "no"; }},
      {"attr groups: default_value \"3.5\" is no INT", [](Sample& s) { s.attrs[1].default_value = "3.5"; }},
      {"attr epsilon: default_value \"tiny\" is no FLOAT", [](Sample& s) { s.attrs[2].default_value = "tiny"; }},
      {"attr path: default_value is NULL", [](Sample& s) { s.attrs[3].default_value = nullptr; }},
      {"attr path: type 9 is unknown", [](Sample& s) { s.attrs[3].type = 9; }},
      {"ports[1].name: the name \"x\" is there twice", [](Sample& s) { s.ports[1].name = "x"; }},
      {"ports[2].name: the name \"x\" is there twice; alternative forms are optional and of one kind",
       [](Sample& s) { s.ports[2].name = "x"; }},
      {"port x: row_block 128 is for a BP_SCALE with a row_axis", [](Sample& s) { s.ports[0].row_block = 128; }},
      {"port x: kind 0 is unknown", [](Sample& s) { s.ports[0].kind = 0; }},
      {"port x: shape is NULL", [](Sample& s) { s.ports[0].shape = nullptr; }},
      {"port x: shape:", [](Sample& s) { s.ports[0].shape = "M, (K"; }},
      {"port x: shape: \"Q\" uses Q, which is no axis; axes are W, K, M, N",
       [](Sample& s) { s.ports[0].shape = "M, Q"; }},
      {"port x: shape has 7 axes; at most 6", [](Sample& s) { s.ports[0].shape = "M, K, 1, 1, 1, 1, 1"; }},
      {"port x: row_axis 2 is outside; shape \"M, K\" has axes 0 to 1", [](Sample& s) { s.ports[0].row_axis = 2; }},
      {"port x: row_axis -2 is outside", [](Sample& s) { s.ports[0].row_axis = -2; }},
      {"port x: a BP_ROW_INPUT carries rows", [](Sample& s) { s.ports[0].row_axis = -1; }},
      {"port w: a BP_WEIGHT is shared by all rows", [](Sample& s) { s.ports[1].row_axis = 1; }},
      {"port x: reduction_axes 0x4 has a bit beyond", [](Sample& s) { s.ports[0].reduction_axes = 4u; }},
      {"port x: axis 0 is the row axis and a reduction axis", [](Sample& s) { s.ports[0].reduction_axes = 1u; }},
      {"port x: reduction_block 0 must be at least 1", [](Sample& s) { s.ports[0].reduction_block = 0; }},
      {"port x: has reduction_axes but no reduction_group", [](Sample& s) { s.ports[0].reduction_group = nullptr; }},
      {"port x_scale: a BP_SCALE must say which port", [](Sample& s) { s.ports[2].scale_of = nullptr; }},
      {"port x_scale: scale_of names \"v\", which is no port; ports are w, x, x_scale, y",
       [](Sample& s) { s.ports[2].scale_of = "v"; }},
      {"port x_scale: scale_of names \"x_scale\", which is a scale itself",
       [](Sample& s) { s.ports[2].scale_of = "x_scale"; }},
      {"port w: scale_of is set but the kind is not BP_SCALE", [](Sample& s) { s.ports[1].scale_of = "x"; }},
      {"port w: distribution 5 is unknown", [](Sample& s) { s.ports[1].distribution = 5; }},
      {"port x: sharded_axis 2 is outside", [](Sample& s) { s.ports[0].sharded_axis = 2; }},
      {"port x: dtypes 0x0 must be a mask", [](Sample& s) { s.ports[0].dtypes = 0; }},
      {"port y: order_exact_dtypes 0x8 is not part", [](Sample& s) { s.ports[3].order_exact_dtypes = 8u; }},
      {"port x: flags 0x100", [](Sample& s) { s.ports[0].flags = 0x100u; }},
      {"port w: transposed_by \"groups\" is no BOOL attribute", [](Sample& s) { s.ports[1].transposed_by = "groups"; }},
      {"port w: transposed_axes 0x1 must have exactly two bits", [](Sample& s) { s.ports[1].transposed_axes = 1u; }},
      {"port x: transposed_axes is set but transposed_by is NULL", [](Sample& s) { s.ports[0].transposed_axes = 3u; }},
      {"ports: no output has a row_axis", [](Sample& s) { s.ports[3].row_axis = -1; }},
      {"rows: is NULL", [](Sample& s) { s.table.rows = nullptr; }},
      {"rows: \"W * L\" uses L, which is no axis", [](Sample& s) { s.table.rows = "W * L"; }},
      {"row_count_axis: \"L\" is no axis", [](Sample& s) { s.table.row_count_axis = "L"; }},
      {"thresholds: entry 1 is 0", [](Sample& s) { s.thresholds[1] = 0; }},
      {"dtype mode fp8: dtypes is NULL", [](Sample& s) { s.modes[0].dtypes = nullptr; }},
      {"dtype mode fp8: port x is not optional", [](Sample& s) { s.dtypes[0] = BP_NONE; }},
      {"dtype mode fp8: dtype fp32 of port x is not among", [](Sample& s) { s.dtypes[0] = BP_FP32; }},
      {"dtype mode fp8: dtype 77 of port x is not among", [](Sample& s) { s.dtypes[0] = 77; }},
      {"implementation_count: is 0", [](Sample& s) { s.table.implementation_count = 0; }},
      {"implementations[1].id: the name \"chain256\" is there twice",
       [](Sample& s) { s.implementations[1].id = "chain256"; }},
      {"implementations[0].id: \"a b\" is no name", [](Sample& s) { s.implementations[0].id = "a b"; }},
      {"implementation free: mode 4 is unknown", [](Sample& s) { s.implementations[2].mode = 4; }},
      {"implementation chain256: flags 0x4 has bits", [](Sample& s) { s.implementations[0].flags = 4; }},
      {"implementation chain128: is a peer; a peer is neither a witness nor a control",
       [](Sample& s) { s.implementations[1].flags |= BP_IMPL_PEER; }},
      {"implementation free: is a peer; a peer is neither a witness nor a control",
       [](Sample& s) { s.implementations[2].flags = BP_IMPL_PEER; }},
      {"implementation chain256: order_witness names \"chain64\"",
       [](Sample& s) { s.implementations[0].order_witness = "chain64"; }},
      {"implementation chain256: order_witness names the implementation itself",
       [](Sample& s) { s.implementations[0].order_witness = "chain256"; }},
      {"run: is NULL", [](Sample& s) { s.table.run = nullptr; }},
      {"promises: is NULL", [](Sample& s) { s.table.promises = nullptr; }},
      {"alloc, release, copy, synchronise: 1 of the four are set",
       [](Sample& s) { s.table.synchronise = [](std::int32_t) -> bp_status { return BP_OK; }; }},
  };
  for (const Mistake& mistake : mistakes) {
    Sample sample;
    mistake.make(sample);
    const auto checked = check_table(sample.table);
    ASSERT_FALSE(checked.has_value()) << mistake.message;
    EXPECT_EQ(checked.error().kind, Error::Kind::usage);
    EXPECT_NE(checked.error().message.find(mistake.message), std::string::npos)
        << "wanted: " << mistake.message << "\ngot: " << checked.error().message;
  }
}

TEST(CheckTableTest, OldVersionsAreReadNoFurtherThanTheirHead) {
  // Only version and size are there; anything else that is read would be outside.
  const auto head = std::make_unique<std::uint32_t[]>(2);
  head[0] = BP_ABI_VERSION;
  head[1] = 8;
  const auto checked = check_table(*reinterpret_cast<const bp_operator*>(head.get()));
  ASSERT_FALSE(checked.has_value());
  EXPECT_NE(checked.error().message.find("struct_size is 8"), std::string::npos);
}

TEST(OwnedTableTest, KeepsTheDataAndNoFunction) {
  Sample sample;
  sample.table.locate = [](const bp_problem*, std::int64_t, bp_location*, std::size_t) -> std::size_t { return 0; };
  const nlohmann::json sent = nlohmann::json::from_cbor(nlohmann::json::to_cbor(table_to_json(sample.table)));
  const auto owned = OwnedTable::from_json(sent);
  ASSERT_TRUE(owned.has_value()) << owned.error().message;
  const bp_operator& table = (*owned)->table();
  EXPECT_STREQ(table.name, "scaled_matmul");
  EXPECT_STREQ(table.ignored_attrs, "");
  EXPECT_STREQ(table.ports[2].scale_of, "x");
  EXPECT_EQ(table.ports[1].scale_of, nullptr);
  EXPECT_EQ(table.ports[2].reduction_block, 32);
  EXPECT_EQ(table.ports[1].transposed_axes, 3u);
  EXPECT_STREQ(table.ports[0].aliases, "x1, input");
  EXPECT_EQ(table.ports[3].dtypes, sample.ports[3].dtypes);
  EXPECT_EQ(table.ports[3].order_exact_dtypes, sample.ports[3].order_exact_dtypes);
  EXPECT_STREQ(table.axes[1].summary, "");
  EXPECT_EQ(table.attrs[2].type, BP_ATTR_FLOAT);
  EXPECT_STREQ(table.attrs[2].default_value, "1e-6");
  EXPECT_EQ(table.dtype_modes[0].dtypes[3], BP_FP32);
  EXPECT_EQ(table.implementations[0].defect, nullptr);
  EXPECT_STREQ(table.implementations[2].defect, "order from M \xC3\xA4");
  EXPECT_STREQ(table.implementations[0].order_witness, "chain128");
  EXPECT_EQ(table.implementations[1].flags, static_cast<std::uint32_t>(BP_IMPL_WITNESS));
  EXPECT_EQ(table.thresholds[1], 128);
  EXPECT_EQ(table.run, nullptr);
  EXPECT_EQ(table.promises, nullptr);
  EXPECT_EQ(table.locate, nullptr);
  EXPECT_TRUE((*owned)->functions().locate);
  EXPECT_FALSE((*owned)->functions().reference);
  EXPECT_FALSE((*owned)->functions().own_memory);
}

TEST(OwnedTableTest, DamagedMessagesAreRefused) {
  const Sample sample;
  const nlohmann::json good = table_to_json(sample.table);
  for (const auto& [key, value] : good.items()) {
    nlohmann::json without = good;
    without.erase(key);
    EXPECT_FALSE(OwnedTable::from_json(without).has_value()) << key;
    nlohmann::json other = good;
    other[key] = nlohmann::json::array({1.5, "x"});
    EXPECT_FALSE(OwnedTable::from_json(other).has_value()) << key;
  }
  nlohmann::json outside = good;
  outside["ports"][0]["row_axis"] = 9;
  EXPECT_FALSE(OwnedTable::from_json(outside).has_value());
}

}  // namespace
}  // namespace batchproof
