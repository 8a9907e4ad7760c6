// SPDX-License-Identifier: Apache-2.0
#include "src/suite/case_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <utility>

#include "batchproof/registry.h"
#include "src/numeric/dtype.h"
#include "src/suite/read.h"

namespace batchproof {
namespace {

using Role = PlannedAxis::Role;

constexpr std::string_view kDtypeSuffix = "_dtype";

const bp_operator* find_operator(std::string_view name) {
  for (const bp_operator* op : registered_operators()) {
    if (name == op->name) return op;
  }
  return nullptr;
}

const bp_implementation* find_implementation(const bp_operator& op, std::string_view id) {
  for (std::uint32_t i = 0; i < op.implementation_count; ++i) {
    if (id == op.implementations[i].id) return &op.implementations[i];
  }
  return nullptr;
}

const bp_attr_decl* find_attr(const bp_operator& op, std::string_view name) {
  for (std::uint32_t i = 0; i < op.attr_count; ++i) {
    if (name == op.attrs[i].name) return &op.attrs[i];
  }
  return nullptr;
}

std::optional<std::uint32_t> find_port(const bp_operator& op, std::string_view name) {
  for (std::uint32_t i = 0; i < op.port_count; ++i) {
    if (name == op.ports[i].name) return i;
  }
  return std::nullopt;
}

template <class T>
Words names_of(const T* table, std::uint32_t count) {
  Words names;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (std::find(names.begin(), names.end(), table[i].name) == names.end()) names.emplace_back(table[i].name);
  }
  return names;
}

// Controls and witnesses included: they may be asked for by id.
Words implementation_ids(const bp_operator& op) {
  Words ids;
  for (std::uint32_t i = 0; i < op.implementation_count; ++i) ids.emplace_back(op.implementations[i].id);
  return ids;
}

bool same_name(const bp_operator& op, std::uint32_t a, std::uint32_t b) {
  return std::string_view(op.ports[a].name) == op.ports[b].name;
}

std::string show(const AxisValue& value) {
  if (const std::int64_t* integer = std::get_if<std::int64_t>(&value)) return std::to_string(*integer);
  return quote(std::get<std::string>(value));
}

// ---- attributes ----

const char* attr_type_name(bp_attr_type type) {
  switch (type) {
    case BP_ATTR_BOOL:
      return "true or false";
    case BP_ATTR_INT:
      return "an integer";
    case BP_ATTR_FLOAT:
      return "a number";
    default:
      return "a string";
  }
}

template <class T>
std::optional<AttrValue> parse_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return AttrValue(value);
}

std::optional<AttrValue> attr_from_text(bp_attr_type type, std::string_view text) {
  if (type == BP_ATTR_BOOL) {
    if (text == "true" || text == "1") return AttrValue(true);
    if (text == "false" || text == "0") return AttrValue(false);
    return std::nullopt;
  }
  if (type == BP_ATTR_INT) return parse_number<std::int64_t>(text);
  if (type == BP_ATTR_FLOAT) return parse_number<double>(text);
  return AttrValue(std::string(text));
}

// What a suite file says, as the declared type.
std::optional<AttrValue> attr_from_value(bp_attr_type type, const AttrValue& value) {
  const bool* b = std::get_if<bool>(&value);
  const std::int64_t* i = std::get_if<std::int64_t>(&value);
  const double* f = std::get_if<double>(&value);
  switch (type) {
    case BP_ATTR_BOOL:
      if (b != nullptr) return value;
      return std::nullopt;
    case BP_ATTR_INT:
      if (i != nullptr) return value;
      if (f != nullptr && *f == std::floor(*f) && std::fabs(*f) <= static_cast<double>(kMaxSuiteInteger)) {
        return AttrValue(static_cast<std::int64_t>(*f));
      }
      return std::nullopt;
    case BP_ATTR_FLOAT:
      if (i != nullptr) return AttrValue(static_cast<double>(*i));
      if (f != nullptr) return value;
      return std::nullopt;
    default:
      if (std::holds_alternative<std::string>(value)) return value;
      return std::nullopt;
  }
}

Result<void> resolve_attrs(const Case& loaded, const ExpandOptions& options, CasePlan& plan) {
  const bp_operator& op = *plan.op;
  for (std::uint32_t i = 0; i < op.attr_count; ++i) {
    const bp_attr_decl& decl = op.attrs[i];
    const std::optional<AttrValue> value =
        attr_from_text(decl.type, decl.default_value != nullptr ? decl.default_value : "");
    if (!value) {
      return fail(Error::Kind::usage,
                  fmt::format("operator {} declares the attribute {} with the default \"{}\", which "
                              "is not {}",
                              op.name, decl.name, decl.default_value != nullptr ? decl.default_value : "",
                              attr_type_name(decl.type)));
    }
    plan.attrs[decl.name] = *value;
  }
  for (const auto& [name, written] : loaded.attrs) {
    const SourcePosition& position = loaded.position_of("attrs." + name);
    const bp_attr_decl* decl = find_attr(op, name);
    if (decl == nullptr) {
      return fail_at(position, fmt::format("operator {} has no attribute {}{}", op.name, quote(name),
                                           suggest(name, names_of(op.attrs, op.attr_count), "attributes")));
    }
    const std::optional<AttrValue> value = attr_from_value(decl->type, written);
    if (!value) {
      return fail_at(position, fmt::format("attribute {} of operator {} must be {}", quote(name), op.name,
                                           attr_type_name(decl->type)));
    }
    plan.attrs[name] = *value;
  }
  for (const auto& [name, text] : options.set) {
    const bp_attr_decl* decl = find_attr(op, name);
    if (decl == nullptr) continue;  // another operator of the suite has it: expand checks
    const std::optional<AttrValue> value = attr_from_text(decl->type, text);
    if (!value) {
      return fail(Error::Kind::usage, fmt::format("attribute {} of operator {} is set to {}; it must be {}", name,
                                                  op.name, quote(text), attr_type_name(decl->type)));
    }
    plan.attrs[name] = *value;
  }
  return {};
}

// ---- implementation ----

// An operator with memory of its own has its own device; --device does not choose between its implementations.
bool wants_cuda(const bp_operator& op, const ExpandOptions& options) { return options.on_cuda && op.alloc == nullptr; }

Result<void> resolve_implementation(const Case& loaded, const ExpandOptions& options, CasePlan& plan) {
  const bp_operator& op = *plan.op;
  const std::string known = join_words(implementation_ids(op));
  if (!options.impl.empty()) {
    plan.impl = find_implementation(op, options.impl);
    if (plan.impl == nullptr) {
      plan.skip_reason = fmt::format("operator {} has no implementation {} (it has {})", op.name, options.impl, known);
    } else if (options.mode && plan.impl->mode != *options.mode) {
      return fail(Error::Kind::usage,
                  fmt::format("implementation {} of operator {} belongs to mode {}, not to {}", options.impl, op.name,
                              mode_name(plan.impl->mode), mode_name(*options.mode)));
    }
    return {};
  }
  if (!loaded.impl.empty()) {
    plan.impl = find_implementation(op, loaded.impl);
    if (plan.impl == nullptr) {
      return fail_at(loaded.position_of("impl"),
                     fmt::format("operator {} has no implementation {}{}", op.name, quote(loaded.impl),
                                 suggest(loaded.impl, implementation_ids(op), "implementations")));
    }
    if (loaded.positions.count("mode") != 0 && plan.impl->mode != loaded.mode) {
      return fail_at(loaded.position_of("impl"),
                     fmt::format("implementation {} of operator {} belongs to mode {}, the case asks for {}",
                                 loaded.impl, op.name, mode_name(plan.impl->mode), mode_name(loaded.mode)));
    }
    return {};
  }
  const bp_mode mode = options.mode.value_or(loaded.mode);
  for (std::uint32_t i = 0; i < op.implementation_count && plan.impl == nullptr; ++i) {
    const bp_implementation& impl = op.implementations[i];
    const bool by_id_alone = (impl.flags & (BP_IMPL_WITNESS | BP_IMPL_PEER)) != 0;
    if (impl.mode == mode && impl.defect == nullptr && !by_id_alone &&
        ((impl.flags & BP_IMPL_CUDA) != 0) == wants_cuda(op, options))
      plan.impl = &impl;
  }
  if (plan.impl == nullptr) {
    plan.skip_reason = fmt::format("operator {} has no implementation for mode {}{} (it has {})", op.name,
                                   mode_name(mode), wants_cuda(op, options) ? " on a CUDA device" : "", known);
    if (!options.mode && !wants_cuda(op, options)) return fail_at(loaded.position, plan.skip_reason);
  }
  return {};
}

// A case that names an implementation for the other side than --device asks for does not run, and says so.
void skip_other_device(const ExpandOptions& options, CasePlan& plan) {
  if (plan.impl == nullptr || !plan.skip_reason.empty()) return;
  const bool on_cuda = (plan.impl->flags & BP_IMPL_CUDA) != 0;
  if (on_cuda == wants_cuda(*plan.op, options)) return;
  plan.skip_reason = on_cuda ? fmt::format("{} runs on a CUDA device; choose one with --device cuda", plan.impl->id)
                             : fmt::format("{} runs on the CPU, not on a CUDA device", plan.impl->id);
}

// ---- axes ----

// The names that an axis of this operator may have.
Words axis_words(const bp_operator& op) {
  Words words = names_of(op.axes, op.axis_count);
  for (const char* special : {"W", "dtype", "comm_mode", "row_position"}) {
    if (std::find(words.begin(), words.end(), special) == words.end()) words.emplace_back(special);
  }
  const Words ports = names_of(op.ports, op.port_count);
  words.insert(words.end(), ports.begin(), ports.end());
  for (const std::string& port : ports) words.push_back(port + "_dtype");
  return words;
}

std::optional<PlannedAxis> axis_role(const bp_operator& op, const CaseAxis& axis) {
  if (axis.name == "W") return PlannedAxis{Role::world, 0, axis};
  if (axis.name == "dtype") return PlannedAxis{Role::dtype_mode, 0, axis};
  if (axis.name == "comm_mode") return PlannedAxis{Role::comm_mode, 0, axis};
  if (axis.name == "row_position") return PlannedAxis{Role::row_position, 0, axis};
  const Words declared = names_of(op.axes, op.axis_count);
  if (std::find(declared.begin(), declared.end(), axis.name) != declared.end())
    return PlannedAxis{Role::extent, 0, axis};
  if (const auto port = find_port(op, axis.name)) return PlannedAxis{Role::port, *port, axis};
  const std::string_view name = axis.name;
  if (name.size() > kDtypeSuffix.size() && name.substr(name.size() - kDtypeSuffix.size()) == kDtypeSuffix) {
    if (const auto port = find_port(op, name.substr(0, name.size() - kDtypeSuffix.size()))) {
      return PlannedAxis{Role::port_dtype, *port, axis};
    }
  }
  return std::nullopt;
}

// Empty where the value suits the axis, else what would.
std::string unsuitable(const bp_operator& op, const PlannedAxis& planned, const AxisValue& value) {
  const std::int64_t* integer = std::get_if<std::int64_t>(&value);
  const std::string word = integer == nullptr ? std::get<std::string>(value) : "";
  switch (planned.role) {
    case Role::extent:
      return integer != nullptr ? "" : "integers";
    case Role::world:
      return integer != nullptr && *integer >= 1 && *integer <= INT32_MAX ? "" : "numbers of ranks from 1";
    case Role::comm_mode:
      return comm_mode_from_name(word) ? "" : "off, on and strict";
    case Role::row_position:
      return row_position_from(value) ? "" : "indices from 0, mid and last";
    case Role::dtype_mode: {
      const Words modes = names_of(op.dtype_modes, op.dtype_mode_count);
      return std::find(modes.begin(), modes.end(), word) != modes.end() ? "" : join_words(modes);
    }
    case Role::port_dtype:
      return dtype_from_name(word) ? "" : join_words(dtype_words());
    case Role::port: {
      const bp_port& port = op.ports[planned.port];
      const bool optional = (port.flags & BP_PORT_OPTIONAL) != 0;
      if (word == "none" && optional) return "";
      if (port.kind == BP_OUTPUT) return word == "present" ? "" : optional ? "present and none" : "present";
      const std::optional<RecipeSpec> recipe = recipe_from_name(word);
      if (recipe && recipe->kind != RecipeKind::file) return "";
      return join_words(recipe_words()) + (optional ? " and none" : "");
    }
  }
  return "";
}

Result<void> resolve_axes(const Case& loaded, const ExpandOptions& options, CasePlan& plan) {
  const bp_operator& op = *plan.op;
  bool has_world = false;
  for (const CaseAxis& axis : loaded.axes) {
    const std::optional<PlannedAxis> planned = axis_role(op, axis);
    if (!planned) {
      return fail_at(axis.position, fmt::format("operator {} has no axis {}{}", op.name, quote(axis.name),
                                                suggest(axis.name, axis_words(op), "axes")));
    }
    for (const AxisValue& value : axis.values) {
      const std::string wanted = unsuitable(op, *planned, value);
      if (!wanted.empty()) {
        return fail_at(axis.position, fmt::format("axis {} of operator {} holds {}; it takes {}", quote(axis.name),
                                                  op.name, show(value), wanted));
      }
    }
    has_world |= planned->role == Role::world;
    plan.axes.push_back(*planned);
  }
  for (std::uint32_t a = 0; a < op.axis_count; ++a) {
    const std::string_view name = op.axes[a].name;
    const auto given = [&](const CaseAxis& axis) { return axis.name == name; };
    if (name == "W" || std::any_of(loaded.axes.begin(), loaded.axes.end(), given)) continue;
    if (is_optional_axis(op, op.axes[a].name)) continue;
    return fail_at(loaded.position_of("axes"), fmt::format("the case has no axis {} ({}); operator {} needs {}", name,
                                                           op.axes[a].summary != nullptr ? op.axes[a].summary : "",
                                                           op.name, join_words(names_of(op.axes, op.axis_count))));
  }
  if (!has_world && is_distributed(op)) {
    CaseAxis world{"W", {}, loaded.position};
    for (const int ranks : options.ranks.empty() ? std::vector<int>{2, 4, 8} : options.ranks) {
      world.values.emplace_back(std::int64_t{ranks});
    }
    plan.axes.insert(plan.axes.begin(), PlannedAxis{Role::world, 0, std::move(world)});
  }
  return {};
}

// ---- ports ----

Result<void> resolve_ports(const Case& loaded, CasePlan& plan) {
  const bp_operator& op = *plan.op;
  plan.ports.resize(op.port_count);
  plan.shapes.resize(op.port_count);
  for (const PortSpec& spec : loaded.ports) {
    const std::optional<std::uint32_t> port = find_port(op, spec.name);
    if (!port) {
      return fail_at(spec.position, fmt::format("operator {} has no port {}{}", op.name, quote(spec.name),
                                                suggest(spec.name, names_of(op.ports, op.port_count), "ports")));
    }
    const bool is_output = op.ports[*port].kind == BP_OUTPUT;
    if (is_output && spec.recipe) {
      return fail_at(spec.position,
                     fmt::format("port {} of operator {} is an output and takes no recipe", spec.name, op.name));
    }
    // Alternative forms share the name: which one it is follows from the dtype mode of a cell.
    for (std::uint32_t i = *port; i < op.port_count; ++i) {
      if (!same_name(op, i, *port)) continue;
      plan.ports[i] = &spec;
      for (const std::string& extent : spec.shape) {
        Result<Expression> parsed = Expression::parse(extent);
        if (!parsed) return fail_at(spec.position, parsed.error().message);
        plan.shapes[i].push_back(std::move(*parsed));
      }
    }
  }
  return {};
}

// What `names` gives for each operator that the suite names, each word once.
template <class Names>
Words gather(const Suite& suite, Names names) {
  Words all;
  std::set<std::string> operators;
  for (const Case& loaded : suite.cases) {
    if (!operators.insert(loaded.op).second) continue;
    const bp_operator* op = find_operator(loaded.op);
    if (op == nullptr) continue;
    for (const std::string& name : names(*op)) {
      if (std::find(all.begin(), all.end(), name) == all.end()) all.push_back(name);
    }
  }
  return all;
}

}  // namespace

tl::unexpected<Error> fail_at(const SourcePosition& position, const std::string& message) {
  return fail(Error::Kind::usage, position.text() + ": " + message);
}

namespace {

Words axes_of(const bp_operator& op, const bp_port& port) {
  Words used;
  const Words declared = names_of(op.axes, op.axis_count);
  const Result<std::vector<Expression>> shape = parse_shape(port.shape);
  if (!shape) return used;
  for (const Expression& extent : *shape) {
    for (const std::string& symbol : extent.symbols()) {
      const bool is_axis = symbol != "W" && std::find(declared.begin(), declared.end(), symbol) != declared.end();
      if (is_axis && std::find(used.begin(), used.end(), symbol) == used.end()) used.push_back(symbol);
    }
  }
  return used;
}

}  // namespace

bool is_optional_axis(const bp_operator& op, const char* axis) {
  if (op.row_count_axis != nullptr && std::string_view(op.row_count_axis) == axis) return false;
  bool used = false;
  for (std::uint32_t i = 0; i < op.port_count; ++i) {
    const Words axes = axes_of(op, op.ports[i]);
    if (std::find(axes.begin(), axes.end(), axis) == axes.end()) continue;
    if ((op.ports[i].flags & BP_PORT_OPTIONAL) == 0) return false;
    used = true;
  }
  return used;
}

std::vector<std::string> missing_axes(const bp_operator& op, const bp_port& port, const Problem& problem) {
  Words missing;
  for (const std::string& axis : axes_of(op, port)) {
    if (problem.axes.count(axis) == 0) missing.push_back(axis);
  }
  return missing;
}

std::optional<RowPosition> row_position_from(const AxisValue& value) {
  if (const std::int64_t* index = std::get_if<std::int64_t>(&value)) {
    if (*index < 0) return std::nullopt;
    return RowPosition{RowPosition::Kind::index, *index};
  }
  const std::string& word = std::get<std::string>(value);
  if (word == "mid") return RowPosition{RowPosition::Kind::mid, 0};
  if (word == "last") return RowPosition{RowPosition::Kind::last, 0};
  return std::nullopt;
}

bool is_distributed(const bp_operator& op) {
  const auto uses_world = [](const char* text) {
    const Result<std::vector<Expression>> shape = parse_shape(text != nullptr ? text : "");
    return shape && std::any_of(shape->begin(), shape->end(), [](const Expression& extent) {
             const Words symbols = extent.symbols();
             return std::find(symbols.begin(), symbols.end(), "W") != symbols.end();
           });
  };
  if (uses_world(op.rows)) return true;
  return std::any_of(op.ports, op.ports + op.port_count,
                     [&](const bp_port& port) { return port.distribution == BP_SHARDED || uses_world(port.shape); });
}

Result<CasePlan> plan_case(const Case& loaded, const ExpandOptions& options) {
  CasePlan plan;
  plan.op = find_operator(loaded.op);
  if (plan.op == nullptr) {
    Words known;
    for (const bp_operator* op : registered_operators()) known.emplace_back(op->name);
    return fail_at(loaded.position_of("op"),
                   fmt::format("unknown operator {}{}", quote(loaded.op), suggest(loaded.op, known, "operators")));
  }
  if (const Result<void> done = resolve_implementation(loaded, options, plan); !done)
    return tl::unexpected(done.error());
  skip_other_device(options, plan);
  if (const Result<void> done = resolve_attrs(loaded, options, plan); !done) return tl::unexpected(done.error());
  if (const Result<void> done = resolve_axes(loaded, options, plan); !done) return tl::unexpected(done.error());
  if (const Result<void> done = resolve_ports(loaded, plan); !done) return tl::unexpected(done.error());
  if (!loaded.where.empty()) {
    Result<Expression> where = Expression::parse(loaded.where);
    if (!where) return fail_at(loaded.position_of("where"), where.error().message);
    plan.where = std::move(*where);
  }
  return plan;
}

std::vector<std::uint32_t> forms_of(const bp_operator& op, std::uint32_t port) {
  std::vector<std::uint32_t> forms;
  for (std::uint32_t i = 0; i < op.port_count; ++i) {
    if (std::string_view(op.ports[i].name) == op.ports[port].name) forms.push_back(i);
  }
  return forms;
}

std::vector<std::string> suite_implementations(const Suite& suite) {
  return gather(suite, [](const bp_operator& op) { return implementation_ids(op); });
}

std::vector<std::string> suite_attributes(const Suite& suite) {
  return gather(suite, [](const bp_operator& op) { return names_of(op.attrs, op.attr_count); });
}

}  // namespace batchproof
