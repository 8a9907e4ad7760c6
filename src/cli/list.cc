// SPDX-License-Identifier: Apache-2.0
//
// batchproof list: the operators of this program, as text or as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "batchproof/registry.h"
#include "src/cli/exit.h"
#include "src/cli/print.h"
#include "src/cli/verbs.h"
#include "src/report/describe.h"
#include "src/runtime/words.h"

namespace batchproof::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string text_or(const char* text, const char* otherwise = "") { return text == nullptr ? otherwise : text; }

const char* kind_name(bp_port_kind kind) {
  switch (kind) {
    case BP_ROW_INPUT:
      return "row input";
    case BP_WEIGHT:
      return "weight";
    case BP_SCALE:
      return "scale";
    default:
      return "output";
  }
}

const char* distribution_name(bp_distribution distribution) {
  return distribution == BP_REPLICATED ? "replicated" : distribution == BP_PER_RANK ? "per rank" : "sharded";
}

const char* attr_type_name(bp_attr_type type) {
  switch (type) {
    case BP_ATTR_BOOL:
      return "bool";
    case BP_ATTR_INT:
      return "int";
    case BP_ATTR_FLOAT:
      return "float";
    default:
      return "string";
  }
}

std::vector<std::string> dtype_names(std::uint32_t mask) {
  std::vector<std::string> names;
  for (bp_dtype dtype = BP_FP64; dtype <= BP_E2M1; ++dtype) {
    if ((mask & BP_DTYPE_BIT(dtype)) != 0) names.emplace_back(dtype_text(dtype));
  }
  return names;
}

bool listed(const bp_implementation& impl) { return (impl.flags & BP_IMPL_WITNESS) == 0; }

Json port_json(const bp_port& port) {
  Json json;
  json["name"] = port.name;
  json["kind"] = kind_name(port.kind);
  json["shape"] = text_or(port.shape);
  json["row_axis"] = port.row_axis;
  json["dtypes"] = dtype_names(port.dtypes);
  json["distribution"] = distribution_name(port.distribution);
  json["optional"] = (port.flags & BP_PORT_OPTIONAL) != 0;
  json["scale_of"] = port.scale_of == nullptr ? Json(nullptr) : Json(port.scale_of);
  json["aliases"] = split_list(port.aliases);
  return json;
}

Json operator_json(const bp_operator& op) {
  Json json;
  json["name"] = op.name;
  json["summary"] = text_or(op.summary);
  json["aliases"] = split_list(op.aliases);
  json["rows"] = text_or(op.rows);
  json["axes"] = Json::array();
  for (std::uint32_t i = 0; i < op.axis_count; ++i) {
    json["axes"].push_back({{"name", op.axes[i].name}, {"summary", text_or(op.axes[i].summary)}});
  }
  json["attributes"] = Json::array();
  for (std::uint32_t i = 0; i < op.attr_count; ++i) {
    const bp_attr_decl& attr = op.attrs[i];
    json["attributes"].push_back({{"name", attr.name},
                                  {"type", attr_type_name(attr.type)},
                                  {"default", text_or(attr.default_value)},
                                  {"summary", text_or(attr.summary)}});
  }
  json["dtype_modes"] = Json::array();
  for (std::uint32_t i = 0; i < op.dtype_mode_count; ++i) {
    Json& mode = json["dtype_modes"].emplace_back();
    mode["name"] = op.dtype_modes[i].name;
    for (std::uint32_t port = 0; port < op.port_count; ++port) {
      const bp_dtype dtype = op.dtype_modes[i].dtypes[port];
      if (dtype != BP_NONE) mode["ports"][op.ports[port].name] = dtype_text(dtype);
    }
  }
  json["ports"] = Json::array();
  for (std::uint32_t i = 0; i < op.port_count; ++i) json["ports"].push_back(port_json(op.ports[i]));
  json["implementations"] = Json::array();
  for (std::uint32_t i = 0; i < op.implementation_count; ++i) {
    const bp_implementation& impl = op.implementations[i];
    if (!listed(impl)) continue;
    json["implementations"].push_back({{"id", impl.id},
                                       {"mode", mode_name(impl.mode)},
                                       {"peer", (impl.flags & BP_IMPL_PEER) != 0},
                                       {"summary", text_or(impl.summary)},
                                       {"defect", impl.defect == nullptr ? Json(nullptr) : Json(impl.defect)}});
  }
  return json;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

void print_operator(const bp_operator& op) {
  fmt::print("{}: {}\n", op.name, text_or(op.summary));
  const std::string aliases = joined(split_list(op.aliases));
  if (!aliases.empty()) fmt::print("  also known as  {}\n", aliases);
  std::size_t width = 10;
  for (std::uint32_t i = 0; i < op.attr_count; ++i) width = std::max(width, std::string_view(op.attrs[i].name).size());
  for (std::uint32_t i = 0; i < op.port_count; ++i) width = std::max(width, std::string_view(op.ports[i].name).size());
  for (std::uint32_t i = 0; i < op.axis_count; ++i) {
    fmt::print("  {:<14} {:<{}} {}\n", i == 0 ? "axes" : "", op.axes[i].name, width, text_or(op.axes[i].summary));
  }
  for (std::uint32_t i = 0; i < op.attr_count; ++i) {
    const bp_attr_decl& attr = op.attrs[i];
    const std::string initial = text_or(attr.default_value, "none");
    fmt::print("  {:<14} {:<{}} {} ({}, default {})\n", i == 0 ? "attributes" : "", attr.name, width,
               text_or(attr.summary), attr_type_name(attr.type), initial.empty() ? "none" : initial);
  }
  std::vector<std::string> modes;
  for (std::uint32_t i = 0; i < op.dtype_mode_count; ++i) modes.emplace_back(op.dtype_modes[i].name);
  fmt::print("  {:<14} {}\n", "dtypes", joined(modes));
  for (std::uint32_t i = 0; i < op.port_count; ++i) {
    const bp_port& port = op.ports[i];
    fmt::print("  {:<14} {:<{}} {} [{}] {}, {}{}\n", i == 0 ? "ports" : "", port.name, width, kind_name(port.kind),
               text_or(port.shape), joined(dtype_names(port.dtypes)), distribution_name(port.distribution),
               (port.flags & BP_PORT_OPTIONAL) != 0 ? ", optional" : "");
  }
  for (const bool controls : {false, true}) {
    bool first = true;
    for (std::uint32_t i = 0; i < op.implementation_count; ++i) {
      const bp_implementation& impl = op.implementations[i];
      if (!listed(impl) || (impl.defect != nullptr) != controls) continue;
      const char* title = !first ? "" : controls ? "controls" : "runs as";
      fmt::print("  {:<14} {} ({}{}): {}\n", title, impl.id, mode_name(impl.mode),
                 (impl.flags & BP_IMPL_PEER) != 0 ? ", the unfused composition" : "", text_or(impl.summary));
      if (controls) fmt::print("  {:<14}   defect: {}\n", "", impl.defect);
      first = false;
    }
  }
}

}  // namespace

int run_list(const ListFlags& flags) {
  const std::string& name = flags.name;
  std::vector<const bp_operator*> operators;
  for (const bp_operator* op : registered_operators()) {
    if (name.empty() || name == op->name) operators.push_back(op);
  }
  if (operators.empty() && !name.empty()) {
    return report_error({Error::Kind::usage, fmt::format("list {}: there is no operator of this name", name)});
  }
  if (flags.json) {
    Json document;
    document["schema_version"] = 1;
    document["operators"] = Json::array();
    for (const bp_operator* op : operators) document["operators"].push_back(operator_json(*op));
    fmt::print("{}\n", document.dump(1));
    return kExitOk;
  }
  for (std::size_t i = 0; i < operators.size(); ++i) {
    if (i > 0) fmt::print("\n");
    print_operator(*operators[i]);
  }
  return kExitOk;
}

}  // namespace batchproof::cli
