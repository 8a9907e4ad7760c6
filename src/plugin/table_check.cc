// SPDX-License-Identifier: Apache-2.0
//
// Every rule here has a consequence in the checker: what passes can be read without looking twice.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "src/numeric/dtype.h"
#include "src/plugin/table.h"
#include "src/runtime/expression.h"
#include "src/runtime/words.h"

namespace batchproof {
namespace {

constexpr std::uint32_t kMaxEntries = 4096;  // of any array; a larger count is a table that was not filled in

bool is_letter(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// What may stand in a cell id.
bool is_word(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return is_letter(c) || is_digit(c) || std::string_view("._#+-").find(c) != std::string_view::npos;
  });
}

// What may stand in an expression.
bool is_symbol(std::string_view name) {
  return !name.empty() && !is_digit(name[0]) &&
         std::all_of(name.begin(), name.end(), [](char c) { return is_letter(c) || is_digit(c) || c == '_'; });
}

// Reports hold this text: printable, in UTF-8. Lead bytes say how many bytes follow; what they make up is not looked
// at.
bool is_text(const char* text) {
  for (std::size_t i = 0; text[i] != '\0';) {
    const auto byte = static_cast<unsigned char>(text[i++]);
    if (byte < 0x20 || byte == 0x7F) return false;
    if (byte < 0x80) continue;
    const int follow = byte >= 0xC2 && byte <= 0xDF   ? 1
                       : (byte & 0xF0) == 0xE0        ? 2
                       : byte >= 0xF0 && byte <= 0xF4 ? 3
                                                      : 0;
    if (follow == 0) return false;
    for (int k = 0; k < follow; ++k) {
      if ((static_cast<unsigned char>(text[i++]) & 0xC0) != 0x80) return false;
    }
  }
  return true;
}

std::string shown(const char* text) { return text == nullptr ? "NULL" : fmt::format("\"{}\"", text); }

class TableCheck {
 public:
  explicit TableCheck(const bp_operator& table) : table_(table) {}

  std::string run() {
    if (!version()) return error_;
    head() && axes() && attrs() && ports() && references() && rows() && dtype_modes() && implementations() &&
        functions();
    return error_;
  }

 private:
  bool wrong(std::string text) {
    error_ = std::move(text);
    return false;
  }
  template <class... Args>
  bool wrong_field(const std::string& field, fmt::format_string<Args...> format, Args&&... args) {
    return wrong(fmt::format("operator {}: {}: {}", name_, field, fmt::format(format, std::forward<Args>(args)...)));
  }

  bool version() {
    if (table_.abi_version > BP_ABI_VERSION)
      return wrong(
          fmt::format("abi_version is {}, newer than {}, which this program knows; update batchproof, or build the "
                      "operator against its operator.h",
                      table_.abi_version, BP_ABI_VERSION));
    if (table_.abi_version < BP_ABI_VERSION)
      return wrong(
          fmt::format("abi_version is {}, too old: this program serves {}; build the operator against its "
                      "operator.h (abi_version = BP_ABI_VERSION)",
                      table_.abi_version, BP_ABI_VERSION));
    if (table_.struct_size < sizeof(bp_operator))
      return wrong(
          fmt::format("struct_size is {}, too small: a table of version {} has {} bytes "
                      "(struct_size = sizeof(bp_operator))",
                      table_.struct_size, table_.abi_version, sizeof(bp_operator)));
    return true;
  }

  template <class T>
  bool array(const char* field, const T* data, std::uint32_t count) {
    if (count > kMaxEntries) return wrong_field(field, "{} entries cannot be right; at most {}", count, kMaxEntries);
    if (count > 0 && data == nullptr) return wrong_field(field, "is NULL but its count is {}", count);
    return true;
  }

  bool optional_text(const std::string& field, const char* text) {
    if (text != nullptr && !is_text(text)) return wrong_field(field, "is not printable UTF-8 text on one line");
    return true;
  }

  // A name that is unique among `seen`.
  bool unique(const std::string& field, const char* name, std::set<std::string>* seen, bool symbol) {
    if (name == nullptr || !(symbol ? is_symbol(name) : is_word(name)))
      return wrong_field(
          field, "{} is no name; {}", shown(name != nullptr && is_text(name) ? name : nullptr),
          symbol ? "letters, digits and _ make one, a digit not first" : "letters, digits and . _ # + - make one");
    if (!seen->insert(name).second) return wrong_field(field, "the name {} is there twice", shown(name));
    return true;
  }

  bool head() {
    if (table_.name == nullptr || !is_word(table_.name))
      return wrong(fmt::format("the operator's name is {}; letters, digits and . _ # + - make one",
                               shown(table_.name != nullptr && is_text(table_.name) ? table_.name : nullptr)));
    name_ = table_.name;
    constexpr std::uint32_t kKnown = BP_OP_THREAD_SAFE | BP_OP_GRAPH_SAFE;
    if ((table_.flags & ~kKnown) != 0)
      return wrong_field("flags", "{:#x} has bits that version {} does not know", table_.flags, BP_ABI_VERSION);
    return optional_text("summary", table_.summary) && optional_text("aliases", table_.aliases) &&
           optional_text("ignored_attrs", table_.ignored_attrs) && array("ports", table_.ports, table_.port_count) &&
           array("axes", table_.axes, table_.axis_count) && array("attrs", table_.attrs, table_.attr_count) &&
           array("dtype_modes", table_.dtype_modes, table_.dtype_mode_count) &&
           array("implementations", table_.implementations, table_.implementation_count) &&
           array("thresholds", table_.thresholds, table_.threshold_count);
  }

  bool axes() {
    for (std::uint32_t i = 0; i < table_.axis_count; ++i) {
      const bp_axis_decl& axis = table_.axes[i];
      const std::string field = fmt::format("axes[{}].name", i);
      if (!unique(field, axis.name, &axes_, true)) return false;
      const std::string_view name = axis.name;
      if (name == "W" || name == "dtype" || name == "comm_mode")
        return wrong_field(field, "{} is an axis of every operator; take another name", shown(axis.name));
      if (!optional_text(fmt::format("axis {}: summary", axis.name), axis.summary)) return false;
    }
    return true;
  }

  bool attrs() {
    for (std::uint32_t i = 0; i < table_.attr_count; ++i) {
      const bp_attr_decl& attr = table_.attrs[i];
      if (!unique(fmt::format("attrs[{}].name", i), attr.name, &attrs_, true)) return false;
      const std::string field = fmt::format("attr {}", attr.name);
      const char* value = attr.default_value;
      if (value == nullptr || !is_text(value)) return wrong_field(field, "default_value is NULL or not printable text");
      if (!optional_text(field + ": summary", attr.summary)) return false;
      const char* end = value + std::char_traits<char>::length(value);
      std::int64_t integer = 0;
      double number = 0.0;
      switch (attr.type) {
        case BP_ATTR_BOOL:
          if (std::string_view(value) != "true" && std::string_view(value) != "false")
            return wrong_field(field, "default_value {} is no BOOL; \"true\" or \"false\"", shown(value));
          break;
        case BP_ATTR_INT:
          if (const auto [at, code] = std::from_chars(value, end, integer); code != std::errc() || at != end)
            return wrong_field(field, "default_value {} is no INT; \"0\", \"-3\"", shown(value));
          break;
        case BP_ATTR_FLOAT:
          if (const auto [at, code] = std::from_chars(value, end, number); code != std::errc() || at != end)
            return wrong_field(field, "default_value {} is no FLOAT; \"1e-6\", \"0.5\"", shown(value));
          break;
        case BP_ATTR_STRING:
          break;
        default:
          return wrong_field(field, "type {} is unknown; BP_ATTR_BOOL, _INT, _FLOAT or _STRING", attr.type);
      }
    }
    return true;
  }

  // Parses an expression's symbols against the axes.
  bool symbols(const std::string& field, const Expression& expression) {
    for (const std::string& symbol : expression.symbols()) {
      if (symbol != "W" && axes_.count(symbol) == 0)
        return wrong_field(field, "{} uses {}, which is no axis; axes are {}", shown(expression.text().c_str()), symbol,
                           axes_.empty() ? "W alone" : fmt::format("W, {}", fmt::join(axes_, ", ")));
    }
    return true;
  }

  bool ports() {
    if (table_.port_count == 0) return wrong_field("port_count", "is 0; an operator has at least an output");
    bool row_output = false;
    for (std::uint32_t i = 0; i < table_.port_count; ++i) {
      const bp_port& port = table_.ports[i];
      if (!port_name(i) || !check_port(fmt::format("port {}", port.name), port)) return false;
      row_output = row_output || (port.kind == BP_OUTPUT && port.row_axis >= 0);
    }
    if (!row_output) return wrong_field("ports", "no output has a row_axis, so there is no row to compare");
    return true;
  }

  // Unique, or an alternative form of an earlier port.
  bool port_name(std::uint32_t i) {
    const bp_port& port = table_.ports[i];
    const std::string field = fmt::format("ports[{}].name", i);
    const bool known = port.name != nullptr && ports_.count(port.name) != 0;
    if (!known) return unique(field, port.name, &ports_, true);
    for (std::uint32_t j = 0; j < i; ++j) {
      const bp_port& other = table_.ports[j];
      if (std::string_view(other.name) != port.name) continue;
      if (other.kind != port.kind || (port.flags & other.flags & BP_PORT_OPTIONAL) == 0)
        return wrong_field(field, "the name {} is there twice; alternative forms are optional and of one kind",
                           shown(port.name));
      for (std::uint32_t m = 0; m < table_.dtype_mode_count; ++m) {
        const bp_dtype* dtypes = table_.dtype_modes[m].dtypes;
        if (dtypes == nullptr || dtypes[i] == BP_NONE || dtypes[j] == BP_NONE) continue;
        return wrong_field(field, "the name {} is there twice, and dtype mode {} has both forms", shown(port.name), m);
      }
    }
    return true;
  }

  bool check_port(const std::string& field, const bp_port& port) {
    if (port.kind < BP_ROW_INPUT || port.kind > BP_OUTPUT)
      return wrong_field(field, "kind {} is unknown; BP_ROW_INPUT, BP_WEIGHT, BP_SCALE or BP_OUTPUT", port.kind);
    if (port.shape == nullptr || !is_text(port.shape)) return wrong_field(field, "shape is NULL or not printable text");
    const auto shape = parse_shape(port.shape);
    if (!shape) return wrong_field(field, "shape: {}", shape.error().message);
    for (const Expression& extent : *shape) {
      if (!symbols(field + ": shape", extent)) return false;
    }
    const int ndim = static_cast<int>(shape->size());
    if (ndim > BP_MAX_DIMS) return wrong_field(field, "shape has {} axes; at most {}", ndim, BP_MAX_DIMS);
    if (port.row_axis < -1 || port.row_axis >= ndim)
      return wrong_field(field, "row_axis {} is outside; shape {} has axes 0 to {}, and -1 means none", port.row_axis,
                         shown(port.shape), ndim - 1);
    if (port.row_block < 0 || (port.row_block > 1 && (port.kind != BP_SCALE || port.row_axis < 0)))
      return wrong_field(field, "row_block {} is for a BP_SCALE with a row_axis; it is 0 elsewhere", port.row_block);
    if (port.kind == BP_ROW_INPUT && port.row_axis < 0)
      return wrong_field(field, "a BP_ROW_INPUT carries rows, so its row_axis cannot be -1");
    if (port.kind == BP_WEIGHT && port.row_axis >= 0)
      return wrong_field(field, "a BP_WEIGHT is shared by all rows, so its row_axis must be -1");
    return check_reduction(field, port, ndim) && check_storage(field, port, ndim);
  }

  bool check_reduction(const std::string& field, const bp_port& port, int ndim) {
    if ((port.reduction_axes >> ndim) != 0)
      return wrong_field(field, "reduction_axes {:#x} has a bit beyond the last axis, {}", port.reduction_axes,
                         ndim - 1);
    if (port.row_axis >= 0 && (port.reduction_axes >> port.row_axis & 1u) != 0)
      return wrong_field(field, "axis {} is the row axis and a reduction axis; one of the two", port.row_axis);
    if (port.reduction_axes != 0 && port.reduction_block < 1)
      return wrong_field(field, "reduction_block {} must be at least 1", port.reduction_block);
    if (port.reduction_axes != 0 && port.reduction_group == nullptr)
      return wrong_field(field, "has reduction_axes but no reduction_group; name the group, such as \"K\"");
    if (port.reduction_group != nullptr && !is_word(port.reduction_group))
      return wrong_field(field, "reduction_group {} is no name",
                         shown(is_text(port.reduction_group) ? port.reduction_group : nullptr));
    if (port.kind == BP_SCALE && port.scale_of == nullptr)
      return wrong_field(field, "a BP_SCALE must say which port it scales (scale_of)");
    if (port.kind != BP_SCALE && port.scale_of != nullptr)
      return wrong_field(field, "scale_of is set but the kind is not BP_SCALE");
    return true;
  }

  bool check_storage(const std::string& field, const bp_port& port, int ndim) {
    if (port.distribution < BP_REPLICATED || port.distribution > BP_SHARDED)
      return wrong_field(field, "distribution {} is unknown; BP_REPLICATED, BP_PER_RANK or BP_SHARDED",
                         port.distribution);
    if (port.distribution == BP_SHARDED && (port.sharded_axis < 0 || port.sharded_axis >= ndim))
      return wrong_field(field, "sharded_axis {} is outside; shape {} has axes 0 to {}", port.sharded_axis,
                         shown(port.shape), ndim - 1);
    std::uint32_t known = 0;
    for (const bp_dtype dtype : all_dtypes()) known |= BP_DTYPE_BIT(dtype);
    if (port.dtypes == 0 || (port.dtypes & ~known) != 0)
      return wrong_field(field, "dtypes {:#x} must be a mask of BP_DTYPE_BIT(BP_FP32), ...", port.dtypes);
    if ((port.order_exact_dtypes & ~port.dtypes) != 0)
      return wrong_field(field, "order_exact_dtypes {:#x} is not part of dtypes {:#x}", port.order_exact_dtypes,
                         port.dtypes);
    constexpr std::uint32_t kKnown = BP_PORT_OPTIONAL | BP_PORT_PADDED;
    if ((port.flags & ~kKnown) != 0)
      return wrong_field(field, "flags {:#x} has bits that version {} does not know", port.flags, BP_ABI_VERSION);
    if (port.transposed_by == nullptr && port.transposed_axes != 0)
      return wrong_field(field, "transposed_axes is set but transposed_by is NULL");
    if (port.transposed_by != nullptr) {
      const bool declared = std::any_of(table_.attrs, table_.attrs + table_.attr_count, [&](const bp_attr_decl& attr) {
        return attr.type == BP_ATTR_BOOL && std::string_view(attr.name) == port.transposed_by;
      });
      if (!declared)
        return wrong_field(field, "transposed_by {} is no BOOL attribute of the operator",
                           shown(is_text(port.transposed_by) ? port.transposed_by : nullptr));
      if (__builtin_popcount(port.transposed_axes) != 2 || (port.transposed_axes >> ndim) != 0)
        return wrong_field(field, "transposed_axes {:#x} must have exactly two bits, of axes 0 to {}",
                           port.transposed_axes, ndim - 1);
    }
    return optional_text(field + ": aliases", port.aliases);
  }

  bool references() {
    for (std::uint32_t i = 0; i < table_.port_count; ++i) {
      const bp_port& port = table_.ports[i];
      if (port.scale_of == nullptr) continue;
      const std::string field = fmt::format("port {}", port.name);
      if (ports_.count(port.scale_of) == 0)
        return wrong_field(field, "scale_of names {}, which is no port; ports are {}",
                           shown(is_text(port.scale_of) ? port.scale_of : nullptr), fmt::join(ports_, ", "));
      for (std::uint32_t j = 0; j < table_.port_count; ++j) {
        if (std::string_view(table_.ports[j].name) != port.scale_of) continue;
        if (table_.ports[j].kind == BP_SCALE)
          return wrong_field(field, "scale_of names {}, which is a scale itself", shown(port.scale_of));
      }
    }
    return true;
  }

  bool rows() {
    if (table_.rows == nullptr || !is_text(table_.rows))
      return wrong_field("rows", "is NULL or not printable text; an expression such as \"W * M\"");
    const auto rows = Expression::parse(table_.rows);
    if (!rows) return wrong_field("rows", "{}", rows.error().message);
    if (!symbols("rows", *rows)) return false;
    if (table_.row_count_axis == nullptr || axes_.count(table_.row_count_axis) == 0)
      return wrong_field(
          "row_count_axis", "{} is no axis; axes are {}",
          shown(table_.row_count_axis != nullptr && is_text(table_.row_count_axis) ? table_.row_count_axis : nullptr),
          fmt::join(axes_, ", "));
    for (std::uint32_t i = 0; i < table_.threshold_count; ++i) {
      if (table_.thresholds[i] < 1)
        return wrong_field("thresholds", "entry {} is {}; row counts are at least 1", i, table_.thresholds[i]);
    }
    return true;
  }

  bool dtype_modes() {
    std::set<std::string> seen;
    for (std::uint32_t i = 0; i < table_.dtype_mode_count; ++i) {
      const bp_dtype_mode& mode = table_.dtype_modes[i];
      if (!unique(fmt::format("dtype_modes[{}].name", i), mode.name, &seen, false)) return false;
      const std::string field = fmt::format("dtype mode {}", mode.name);
      if (mode.dtypes == nullptr) return wrong_field(field, "dtypes is NULL; one entry per port");
      for (std::uint32_t p = 0; p < table_.port_count; ++p) {
        const bp_port& port = table_.ports[p];
        const bp_dtype dtype = mode.dtypes[p];
        if (dtype == BP_NONE) {
          if ((port.flags & BP_PORT_OPTIONAL) == 0)
            return wrong_field(field, "port {} is not optional, so its dtype cannot be BP_NONE", port.name);
          continue;
        }
        if (dtype_bits(dtype) == 0 || (port.dtypes & BP_DTYPE_BIT(dtype)) == 0)
          return wrong_field(field, "dtype {} of port {} is not among the port's dtypes",
                             dtype_bits(dtype) == 0 ? fmt::format("{}", dtype) : dtype_name(dtype), port.name);
      }
    }
    return true;
  }

  bool implementations() {
    if (table_.implementation_count == 0) return wrong_field("implementation_count", "is 0; at least one is needed");
    std::set<std::string> ids;
    for (std::uint32_t i = 0; i < table_.implementation_count; ++i) {
      const bp_implementation& one = table_.implementations[i];
      if (!unique(fmt::format("implementations[{}].id", i), one.id, &ids, false)) return false;
      const std::string field = fmt::format("implementation {}", one.id);
      if (one.mode != BP_MODE_INVARIANT && one.mode != BP_MODE_FAST)
        return wrong_field(field, "mode {} is unknown; BP_MODE_INVARIANT or BP_MODE_FAST", one.mode);
      if ((one.flags & ~static_cast<std::uint32_t>(BP_IMPL_WITNESS | BP_IMPL_PEER)) != 0)
        return wrong_field(field, "flags {:#x} has bits that version {} does not know", one.flags, BP_ABI_VERSION);
      if ((one.flags & BP_IMPL_PEER) != 0 && ((one.flags & BP_IMPL_WITNESS) != 0 || one.defect != nullptr))
        return wrong_field(field, "is a peer; a peer is neither a witness nor a control");
      if (!optional_text(field + ": summary", one.summary) || !optional_text(field + ": defect", one.defect))
        return false;
    }
    for (std::uint32_t i = 0; i < table_.implementation_count; ++i) {
      const bp_implementation& one = table_.implementations[i];
      if (one.order_witness == nullptr) continue;
      const std::string field = fmt::format("implementation {}", one.id);
      if (ids.count(one.order_witness) == 0)
        return wrong_field(field, "order_witness names {}, which is no implementation of this operator",
                           shown(is_text(one.order_witness) ? one.order_witness : nullptr));
      if (std::string_view(one.order_witness) == one.id)
        return wrong_field(field, "order_witness names the implementation itself; another order is needed");
    }
    return true;
  }

  bool functions() {
    if (table_.run == nullptr) return wrong_field("run", "is NULL; it is required");
    if (table_.promises == nullptr)
      return wrong_field("promises", "is NULL; it is required (return the relations that hold, such as BP_REPEAT)");
    const int own = (table_.alloc != nullptr) + (table_.release != nullptr) + (table_.copy != nullptr) +
                    (table_.synchronise != nullptr);
    if (own != 0 && own != 4)
      return wrong_field("alloc, release, copy, synchronise", "{} of the four are set; all four or none", own);
    return true;
  }

  const bp_operator& table_;
  std::string name_;
  std::string error_;
  std::set<std::string> axes_;
  std::set<std::string> attrs_;
  std::set<std::string> ports_;
};

}  // namespace

Result<void> check_table(const bp_operator& table) {
  std::string error = TableCheck(table).run();
  if (!error.empty()) return fail(Error::Kind::usage, std::move(error));
  return {};
}

}  // namespace batchproof
