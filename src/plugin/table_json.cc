// SPDX-License-Identifier: Apache-2.0
#include <deque>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/plugin/table.h"

namespace batchproof {
namespace {

using Json = nlohmann::json;

Json text(const char* value) { return value == nullptr ? Json(nullptr) : Json(value); }

template <class T, class Convert>
Json array(const T* data, std::uint32_t count, const Convert& convert) {
  Json list = Json::array();
  for (std::uint32_t i = 0; i < count; ++i) list.push_back(convert(data[i]));
  return list;
}

Json port_to_json(const bp_port& port) {
  return Json{{"name", port.name},
              {"kind", port.kind},
              {"shape", port.shape},
              {"row_axis", port.row_axis},
              {"row_block", port.row_block},
              {"reduction_axes", port.reduction_axes},
              {"reduction_block", port.reduction_block},
              {"reduction_group", text(port.reduction_group)},
              {"scale_of", text(port.scale_of)},
              {"distribution", port.distribution},
              {"sharded_axis", port.sharded_axis},
              {"dtypes", port.dtypes},
              {"order_exact_dtypes", port.order_exact_dtypes},
              {"flags", port.flags},
              {"transposed_by", text(port.transposed_by)},
              {"transposed_axes", port.transposed_axes},
              {"aliases", text(port.aliases)}};
}

}  // namespace

Json table_to_json(const bp_operator& table) {
  Json json;
  json["name"] = table.name;
  json["summary"] = text(table.summary);
  json["rows"] = table.rows;
  json["row_count_axis"] = table.row_count_axis;
  json["aliases"] = text(table.aliases);
  json["ignored_attrs"] = text(table.ignored_attrs);
  json["flags"] = table.flags;
  json["ports"] = array(table.ports, table.port_count, port_to_json);
  json["axes"] = array(table.axes, table.axis_count, [](const bp_axis_decl& axis) {
    return Json{{"name", axis.name}, {"summary", text(axis.summary)}};
  });
  json["attrs"] = array(table.attrs, table.attr_count, [](const bp_attr_decl& attr) {
    return Json{{"name", attr.name},
                {"type", attr.type},
                {"default_value", attr.default_value},
                {"summary", text(attr.summary)}};
  });
  json["dtype_modes"] = array(table.dtype_modes, table.dtype_mode_count, [&](const bp_dtype_mode& mode) {
    return Json{{"name", mode.name}, {"dtypes", std::vector<bp_dtype>(mode.dtypes, mode.dtypes + table.port_count)}};
  });
  json["implementations"] = array(table.implementations, table.implementation_count, [](const bp_implementation& one) {
    return Json{{"id", one.id},     {"summary", text(one.summary)}, {"defect", text(one.defect)},
                {"mode", one.mode}, {"flags", one.flags},           {"order_witness", text(one.order_witness)}};
  });
  json["thresholds"] = std::vector<std::int64_t>(table.thresholds, table.thresholds + table.threshold_count);
  json["has_reference"] = table.reference != nullptr;
  json["has_locate"] = table.locate != nullptr;
  json["has_own_memory"] = table.alloc != nullptr;
  return json;
}

struct OwnedTable::State {
  bp_operator table{};
  TableFunctions functions;
  std::deque<std::string> strings;  // keeps its addresses
  std::deque<std::vector<bp_dtype>> mode_dtypes;
  std::vector<bp_port> ports;
  std::vector<bp_axis_decl> axes;
  std::vector<bp_attr_decl> attrs;
  std::vector<bp_dtype_mode> dtype_modes;
  std::vector<bp_implementation> implementations;
  std::vector<std::int64_t> thresholds;

  const char* keep(const Json& value) {
    return value.is_null() ? nullptr : strings.emplace_back(value.get<std::string>()).c_str();
  }
  // A summary that nobody wrote is an empty one: readers need not ask.
  const char* keep_text(const Json& value) {
    const char* kept = keep(value);
    return kept == nullptr ? "" : kept;
  }

  bp_port port(const Json& json) {
    bp_port port{};
    port.name = keep(json.at("name"));
    port.kind = json.at("kind").get<bp_port_kind>();
    port.shape = keep(json.at("shape"));
    port.row_axis = json.at("row_axis").get<std::int32_t>();
    port.row_block = json.at("row_block").get<std::int32_t>();
    port.reduction_axes = json.at("reduction_axes").get<std::uint32_t>();
    port.reduction_block = json.at("reduction_block").get<std::int32_t>();
    port.reduction_group = keep(json.at("reduction_group"));
    port.scale_of = keep(json.at("scale_of"));
    port.distribution = json.at("distribution").get<bp_distribution>();
    port.sharded_axis = json.at("sharded_axis").get<std::int32_t>();
    port.dtypes = json.at("dtypes").get<std::uint32_t>();
    port.order_exact_dtypes = json.at("order_exact_dtypes").get<std::uint32_t>();
    port.flags = json.at("flags").get<std::uint32_t>();
    port.transposed_by = keep(json.at("transposed_by"));
    port.transposed_axes = json.at("transposed_axes").get<std::uint32_t>();
    port.aliases = keep_text(json.at("aliases"));
    return port;
  }

  void read(const Json& json) {
    for (const Json& each : json.at("ports")) ports.push_back(port(each));
    for (const Json& each : json.at("axes")) axes.push_back({keep(each.at("name")), keep_text(each.at("summary"))});
    for (const Json& each : json.at("attrs"))
      attrs.push_back({keep(each.at("name")), each.at("type").get<bp_attr_type>(), keep(each.at("default_value")),
                       keep_text(each.at("summary"))});
    for (const Json& each : json.at("dtype_modes")) {
      mode_dtypes.push_back(each.at("dtypes").get<std::vector<bp_dtype>>());
      mode_dtypes.back().resize(ports.size(), BP_NONE);
      dtype_modes.push_back({keep(each.at("name")), mode_dtypes.back().data()});
    }
    for (const Json& each : json.at("implementations"))
      implementations.push_back({keep(each.at("id")), keep_text(each.at("summary")), keep(each.at("defect")),
                                 each.at("mode").get<bp_mode>(), each.at("flags").get<std::uint32_t>(),
                                 keep(each.at("order_witness")), nullptr});
    thresholds = json.at("thresholds").get<std::vector<std::int64_t>>();
    functions.reference = json.at("has_reference").get<bool>();
    functions.locate = json.at("has_locate").get<bool>();
    functions.own_memory = json.at("has_own_memory").get<bool>();

    table.abi_version = BP_ABI_VERSION;
    table.struct_size = sizeof(bp_operator);
    table.name = keep(json.at("name"));
    table.summary = keep_text(json.at("summary"));
    table.rows = keep(json.at("rows"));
    table.row_count_axis = keep(json.at("row_count_axis"));
    table.aliases = keep_text(json.at("aliases"));
    table.ignored_attrs = keep_text(json.at("ignored_attrs"));
    table.flags = json.at("flags").get<std::uint32_t>();
    table.port_count = static_cast<std::uint32_t>(ports.size());
    table.ports = ports.data();
    table.axis_count = static_cast<std::uint32_t>(axes.size());
    table.axes = axes.data();
    table.attr_count = static_cast<std::uint32_t>(attrs.size());
    table.attrs = attrs.data();
    table.dtype_mode_count = static_cast<std::uint32_t>(dtype_modes.size());
    table.dtype_modes = dtype_modes.data();
    table.implementation_count = static_cast<std::uint32_t>(implementations.size());
    table.implementations = implementations.data();
    table.threshold_count = static_cast<std::uint32_t>(thresholds.size());
    table.thresholds = thresholds.data();
  }
};

OwnedTable::OwnedTable() : state_(std::make_unique<State>()) {}
OwnedTable::~OwnedTable() = default;
const bp_operator& OwnedTable::table() const { return state_->table; }
const TableFunctions& OwnedTable::functions() const { return state_->functions; }

Result<std::unique_ptr<OwnedTable>> OwnedTable::from_json(const Json& message) {
  std::unique_ptr<OwnedTable> owned(new OwnedTable);
  try {
    owned->state_->read(message);
  } catch (const Json::exception& exception) {
    return fail(Error::Kind::operation, std::string("the worker sent a damaged table: ") + exception.what());
  }
  // The worker checked it, but the worker has a stranger's code in it.
  bp_operator with_functions = owned->table();
  with_functions.run = [](const bp_context*, const bp_tensor*) -> bp_status { return BP_INTERNAL; };
  with_functions.promises = [](const bp_implementation*, const bp_problem*, const bp_device*) -> std::uint32_t {
    return 0;
  };
  if (auto checked = check_table(with_functions); !checked) return tl::unexpected(checked.error());
  return owned;
}

}  // namespace batchproof
