// SPDX-License-Identifier: Apache-2.0
//
// Binds an ATK case to an operator: which tensor is which port, which ports are there, what the axes are. The case
// holds concrete shapes and no world size, so axes are found by unifying shapes with the ports' symbolic shapes.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "src/numeric/dtype.h"
#include "src/runtime/expression.h"
#include "src/suite/atk.h"
#include "src/suite/case_plan.h"

namespace batchproof {
namespace {

constexpr std::string_view kWorld = "W";

// dtypes that field files name and that nothing here can store: a reason to skip, not an error.
const Words kForeignDtypes = {"hifloat8",  "hif8",       "hifloat32", "fp4_e1m2", "complex32",
                              "complex64", "complex128", "int16",     "uint16",   "uint32",
                              "uint64",    "uint1",      "qint8",     "quint8",   "bool"};

std::string dtype_list(std::uint32_t mask) {
  Words names;
  for (const bp_dtype dtype : all_dtypes()) {
    if ((mask & BP_DTYPE_BIT(dtype)) != 0) names.emplace_back(dtype_name(dtype));
  }
  return join_words(names);
}

bool is_placeholder(const AtkItem& item) {
  return !item.shape || item.shape->empty() || (item.shape->size() == 1 && item.shape->front() <= 1);
}

bool names_scale(std::string_view word) {
  for (const std::string_view suffix : {"_scale", "_offset"}) {
    if (word.size() > suffix.size() && word.substr(word.size() - suffix.size()) == suffix) return true;
  }
  return false;
}

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("({})", fmt::join(shape, ", ")); }

class Binder {
 public:
  Binder(Reader& reader, const bp_operator& op, const std::vector<AtkEntry>& entries, Case& out)
      : reader_(reader),
        op_(op),
        entries_(entries),
        out_(out),
        tensors_(op.port_count),
        present_(op.port_count),
        wanted_(op.port_count) {}

  void run() {
    for (const AtkEntry& entry : entries_) {
      if (entry.is_tensor) claim(entry);
    }
    for (const AtkEntry& entry : entries_) {
      if (!entry.is_tensor) read_attribute(entry);
    }
    if (done()) return;
    for (std::uint32_t i = 0; i < op_.port_count; ++i) {
      if (required(i)) parse_dtype(i);
    }
    if (done()) return;
    check_loose_scale();
    if (done()) return;
    // Fixed orientations first: they bind the axes that decide the others.
    for (const bool transposable : {false, true}) {
      for (std::uint32_t i = 0; i < op_.port_count; ++i) {
        if (required(i) && (op_.ports[i].transposed_by != nullptr) == transposable) unify_required(i);
      }
    }
    if (done()) return;
    for (const bool transposable : {false, true}) {
      for (std::uint32_t i = 0; i < op_.port_count; ++i) {
        if (input(i) && !required(i) && (op_.ports[i].transposed_by != nullptr) == transposable) unify_optional(i);
      }
    }
    for (std::uint32_t i = 0; i < op_.port_count && !done(); ++i) {
      if (!input(i) || required(i) || tensors_[i] == nullptr || wanted_[i] == false || any_form_present(i)) continue;
      // A scale of what is not quantised means nothing; neither does a placeholder that nobody asks for.
      if (op_.ports[i].kind == BP_SCALE && !scales_quantised(op_.ports[i])) continue;
      if (wanted_[i] == true || !is_placeholder(tensors_[i]->items.front())) refuse_optional(i);
    }
    if (done()) return;
    choose_dtypes();
    write_axes();
    if (done()) return;
    write_ports();
  }

 private:
  using Shape = std::vector<std::int64_t>;

  bool done() const { return !reader_.ok() || !out_.skip_reason.empty(); }
  void skip(const std::string& reason) {
    if (out_.skip_reason.empty()) out_.skip_reason = reason;
  }
  bool input(std::uint32_t i) const { return op_.ports[i].kind != BP_OUTPUT; }
  bool required(std::uint32_t i) const { return input(i) && (op_.ports[i].flags & BP_PORT_OPTIONAL) == 0; }

  // The input port that `word` (as written) names, by name or alias.
  std::optional<std::uint32_t> find_port(std::string_view word) const {
    const std::string snake = port_word(word);
    for (std::uint32_t i = 0; i < op_.port_count; ++i) {
      if (input(i) && snake == op_.ports[i].name) return i;
    }
    for (std::uint32_t i = 0; i < op_.port_count; ++i) {
      for (const std::string& alias : split_list(op_.ports[i].aliases)) {
        if (input(i) && (alias == word || port_word(alias) == snake)) return i;
      }
    }
    return std::nullopt;
  }

  bool ignored(const std::string& name) const {
    const Words words = split_list(op_.ignored_attrs);
    return std::any_of(words.begin(), words.end(),
                       [&](const std::string& word) { return word == name || port_word(word) == port_word(name); });
  }

  void claim(const AtkEntry& entry) {
    const std::optional<std::uint32_t> port = find_port(entry.name);
    if (!port) {
      if (names_scale(port_word(entry.name))) {
        loose_scale_ = loose_scale_ != nullptr ? loose_scale_ : &entry;
        return;
      }
      if (ignored(entry.name) || std::all_of(entry.items.begin(), entry.items.end(), is_placeholder)) return;
      Words known;
      for (std::uint32_t i = 0; i < op_.port_count; ++i) {
        if (input(i)) known.emplace_back(op_.ports[i].name);
      }
      reader_.fail(entry.position, fmt::format("tensor {} is no input of operator {}{}", quote(entry.name), op_.name,
                                               suggest(port_word(entry.name), known, "inputs")));
      return;
    }
    if (entry.items.size() != 1) {
      reader_.fail(entry.position, fmt::format("input {} is a list of {} tensors; operator {} takes one",
                                               quote(entry.name), entry.items.size(), op_.name));
      return;
    }
    const std::vector<std::uint32_t> forms = forms_of(op_, *port);
    if (tensors_[*port] != nullptr) {
      reader_.fail(entry.position,
                   fmt::format("tensors {} and {} are the same input {} of operator {}", quote(tensors_[*port]->name),
                               quote(entry.name), op_.ports[*port].name, op_.name));
      return;
    }
    for (const std::uint32_t form : forms) tensors_[form] = &entry;
  }

  bool any_form_present(std::uint32_t port) const {
    const std::vector<std::uint32_t> forms = forms_of(op_, port);
    return std::any_of(forms.begin(), forms.end(), [&](std::uint32_t form) { return present_[form]; });
  }

  // Whether the tensor's dtype, and the dtypes that are known so far, leave this one of several forms possible.
  bool form_is_possible(std::uint32_t i) const {
    if (forms_of(op_, i).size() == 1) return true;
    const std::optional<bp_dtype> own = dtype_from_name(tensors_[i]->items.front().dtype);
    if (own && (op_.ports[i].dtypes & BP_DTYPE_BIT(*own)) == 0) return false;
    return std::any_of(op_.dtype_modes, op_.dtype_modes + op_.dtype_mode_count,
                       [&](const bp_dtype_mode& mode) { return mode.dtypes[i] != BP_NONE && mode_score(mode) >= 0; });
  }

  // How many of the known dtypes the mode has; -1 where it has another one for a required input. The 8-bit floats stand
  // for each other.
  int mode_score(const bp_dtype_mode& mode) const {
    const auto is_fp8 = [](bp_dtype dtype) { return dtype == BP_E4M3 || dtype == BP_E5M2; };
    int score = 0;
    for (const auto& [i, dtype] : dtypes_) {
      if (mode.dtypes[i] == dtype) {
        ++score;
      } else if (required(i) && !(is_fp8(mode.dtypes[i]) && is_fp8(dtype))) {
        return -1;
      }
    }
    return score;
  }

  void read_attribute(const AtkEntry& entry) {
    const std::string word = port_word(entry.name);
    for (std::uint32_t i = 0; i < op_.attr_count; ++i) {
      if (word == op_.attrs[i].name) {
        read_declared(entry, op_.attrs[i]);
        return;
      }
    }
    // The world size of a case file is not meant: it comes from outside.
    if (ignored(entry.name) || word == "world_size") return;
    if (word == "output_dtype") {
      read_output_dtype(entry);
      return;
    }
    if (read_output_flag(entry, word)) return;
    for (const std::string_view prefix : {"has_", "use_", "transpose_"}) {
      if (word.rfind(prefix, 0) != 0) continue;
      const std::optional<std::uint32_t> port = find_port(word.substr(prefix.size()));
      if (!port && prefix != "transpose_" && names_scale(word)) return;
      if (!port) continue;
      const bool value = flag(entry);
      if (prefix != "transpose_") {
        for (const std::uint32_t form : forms_of(op_, *port)) wanted_[form] = value;
      } else if (op_.ports[*port].transposed_by != nullptr) {
        set_attr(op_.ports[*port].transposed_by, value, entry.position);
      } else if (value) {
        skip(fmt::format("operator {} does not take {} transposed", op_.name, op_.ports[*port].name));
      }
      return;
    }
    Words known;
    for (std::uint32_t i = 0; i < op_.attr_count; ++i) known.emplace_back(op_.attrs[i].name);
    for (const std::string& name : split_list(op_.ignored_attrs)) known.push_back(name);
    for (const char* name : {"output_dtype", "has_<input>", "use_<input>", "transpose_<input>", "world_size"}) {
      known.emplace_back(name);
    }
    reader_.fail(entry.position, fmt::format("attribute {} means nothing to operator {}{}", quote(entry.name), op_.name,
                                             suggest(word, known, "attributes")));
  }

  // "permute_out_flag": whether the optional output permute_out is there.
  bool read_output_flag(const AtkEntry& entry, const std::string& word) {
    constexpr std::string_view kSuffix = "_flag";
    if (word.size() <= kSuffix.size() || word.substr(word.size() - kSuffix.size()) != kSuffix) return false;
    const std::string name = word.substr(0, word.size() - kSuffix.size());
    for (std::uint32_t i = 0; i < op_.port_count; ++i) {
      if (input(i) || name != op_.ports[i].name || (op_.ports[i].flags & BP_PORT_OPTIONAL) == 0) continue;
      wanted_[i] = flag(entry);
      return true;
    }
    return false;
  }

  // The value of an attribute; null where there is none.
  const JsonValue* scalar(const AtkEntry& entry) const {
    const JsonValue* range = entry.items.size() == 1 ? entry.items.front().range : nullptr;
    if (range != nullptr && range->is_array() && range->items().size() == 1) range = &range->items().front();
    return range;
  }

  bool flag(const AtkEntry& entry) {
    const JsonValue* value = scalar(entry);
    if (value != nullptr) {
      if (const bool* b = std::get_if<bool>(&value->data)) return *b;
      const std::optional<std::int64_t> integer = exact_integer(*value);
      if (integer == 0 || integer == 1) return integer == 1;
    }
    reader_.fail(value != nullptr ? value->position : entry.position,
                 fmt::format("attribute {} must be true or false", quote(entry.name)));
    return false;
  }

  void set_attr(const std::string& name, AttrValue value, const JsonPosition& position) {
    out_.attrs[name] = std::move(value);
    out_.positions["attrs." + name] = reader_.at(position);
  }

  void read_declared(const AtkEntry& entry, const bp_attr_decl& decl) {
    const JsonValue* value = scalar(entry);
    if (decl.type == BP_ATTR_BOOL) {
      set_attr(decl.name, flag(entry), entry.position);
      return;
    }
    const JsonValue* range = entry.items.front().range;
    const bool is_array = range != nullptr && range->is_array() && range->items().size() != 1;
    if (decl.type == BP_ATTR_STRING && (entry.is_list || is_array)) {
      set_attr(decl.name, joined(entry), entry.position);
      return;
    }
    const char* wanted = decl.type == BP_ATTR_INT ? "an integer" : decl.type == BP_ATTR_FLOAT ? "a number" : "a string";
    if (value != nullptr && decl.type == BP_ATTR_INT && exact_integer(*value)) {
      set_attr(decl.name, *exact_integer(*value), entry.position);
    } else if (value != nullptr && decl.type == BP_ATTR_FLOAT && value->is_number()) {
      set_attr(decl.name, value->as_double(), entry.position);
    } else if (value != nullptr && decl.type == BP_ATTR_STRING && value->is_string()) {
      set_attr(decl.name, value->string(), entry.position);
    } else {
      reader_.fail(value != nullptr ? value->position : entry.position,
                   fmt::format("attribute {} of operator {} must be {}", quote(entry.name), op_.name, wanted));
    }
  }

  // A nested list, or a list of values, for a text attribute: "-1,-2".
  std::string joined(const AtkEntry& entry) {
    Words parts;
    const auto add = [&](const JsonValue* value, const JsonPosition& position) {
      const std::optional<std::int64_t> integer = value != nullptr ? exact_integer(*value) : std::nullopt;
      if (integer) {
        parts.push_back(std::to_string(*integer));
      } else if (value != nullptr && value->is_string()) {
        parts.push_back(value->string());
      } else {
        reader_.fail(position, fmt::format("an entry of list {} must be an integer or a string", quote(entry.name)));
      }
    };
    for (const AtkItem& item : entry.items) {
      if (item.range == nullptr || !item.range->is_array()) {
        add(item.range, item.position);
        continue;
      }
      for (const JsonValue& value : item.range->items()) add(&value, value.position);
    }
    return fmt::format("{}", fmt::join(parts, ","));
  }

  void read_output_dtype(const AtkEntry& entry) {
    const JsonValue* value = scalar(entry);
    std::string name = value != nullptr && value->is_string() ? value->string() : "";
    if (name.rfind("torch.", 0) == 0) name.erase(0, 6);
    output_dtype_ = dtype_from_name(name);
    output_position_ = entry.position;
    if (output_dtype_) return;
    if (std::find(kForeignDtypes.begin(), kForeignDtypes.end(), name) != kForeignDtypes.end()) {
      skip(fmt::format("output dtype {} is not available in this build", name));
      return;
    }
    reader_.fail(value != nullptr ? value->position : entry.position,
                 fmt::format("{} must name a dtype{}", quote(entry.name), suggest(name, dtype_words(), "dtypes")));
  }

  void parse_dtype(std::uint32_t i) {
    const bp_port& port = op_.ports[i];
    const AtkEntry* entry = tensors_[i];
    if (entry == nullptr || !entry->items.front().shape) {
      reader_.fail(entry != nullptr ? entry->position : JsonPosition{out_.position.line, out_.position.column},
                   fmt::format("operator {} needs the input {}{}", op_.name, port.name,
                               entry != nullptr ? ", and its shape is null" : ""));
      return;
    }
    const std::string& name = entry->items.front().dtype;
    if (name.empty()) return;
    const std::optional<bp_dtype> dtype = dtype_from_name(name);
    if (dtype && (port.dtypes & BP_DTYPE_BIT(*dtype)) != 0) {
      dtypes_[i] = *dtype;
    } else if (dtype) {
      skip(fmt::format("operator {} does not take {} for {} (it takes {})", op_.name, dtype_name(*dtype), port.name,
                       dtype_list(port.dtypes)));
    } else if (std::find(kForeignDtypes.begin(), kForeignDtypes.end(), name) != kForeignDtypes.end()) {
      skip(fmt::format("dtype {} of {} is not available in this build", name, port.name));
    } else {
      reader_.fail(entry->position, fmt::format("unknown dtype {} of tensor {}{}", quote(name), quote(entry->name),
                                                suggest(name, dtype_words(), "dtypes")));
    }
  }

  // Binds the axes of port i. False where no orientation of its tensor fits; then nothing changes.
  bool unify_port(std::uint32_t i) {
    const bp_port& port = op_.ports[i];
    const Result<std::vector<Expression>> symbolic = parse_shape(port.shape);
    if (!symbolic) {
      reader_.fail(tensors_[i]->position,
                   fmt::format("operator {}, port {}: {}", op_.name, port.name, symbolic.error().message));
      return true;
    }
    const Shape& stored = *tensors_[i]->items.front().shape;
    Shape swapped = stored;
    if (port.transposed_by != nullptr) swap_two_axes(port.transposed_axes, swapped);
    AxisBindings plain_bindings = bindings_;
    AxisBindings swapped_bindings = bindings_;
    bool plain = unify_shape(*symbolic, stored, plain_bindings);
    bool transposed = port.transposed_by != nullptr && unify_shape(*symbolic, swapped, swapped_bindings);
    if (port.transposed_by != nullptr) {
      const auto decided = orientation_.find(port.transposed_by);
      if (decided != orientation_.end()) {
        plain = plain && !decided->second;
        transposed = transposed && decided->second;
      } else if (plain && transposed) {
        transposed = written_orientation(port.transposed_by);
        plain = !transposed;
      }
    }
    if (!plain && !transposed) return false;
    bindings_ = plain ? plain_bindings : swapped_bindings;
    logical_[i] = plain ? stored : swapped;
    if (port.transposed_by != nullptr) orientation_[port.transposed_by] = transposed;
    return true;
  }

  // What the case says, else the operator's default.
  bool written_orientation(const std::string& attr) const {
    const auto found = out_.attrs.find(attr);
    if (found != out_.attrs.end() && std::holds_alternative<bool>(found->second)) return std::get<bool>(found->second);
    for (std::uint32_t i = 0; i < op_.attr_count; ++i) {
      if (attr == op_.attrs[i].name) return std::string_view(op_.attrs[i].default_value) == "true";
    }
    return false;
  }

  std::string mismatch(std::uint32_t i) const {
    Words bound_axes;
    for (const auto& [name, value] : bindings_) bound_axes.push_back(fmt::format("{} = {}", name, value));
    return fmt::format("tensor {} of shape {} does not fit input {} ({}) of operator {}{}{}", quote(tensors_[i]->name),
                       shape_text(*tensors_[i]->items.front().shape), op_.ports[i].name, op_.ports[i].shape, op_.name,
                       bound_axes.empty() ? "" : " with ", join_words(bound_axes));
  }

  // Another number of axes is another layout of the field, such as a blocked or a batched one.
  void refuse_shape(std::uint32_t i) {
    const std::optional<Shape>& shape = tensors_[i]->items.front().shape;
    const std::vector<std::uint32_t> forms = forms_of(op_, i);
    const bool same_axes = std::any_of(forms.begin(), forms.end(), [&](std::uint32_t form) {
      const Result<std::vector<Expression>> symbolic = parse_shape(op_.ports[form].shape);
      return symbolic && shape && symbolic->size() == shape->size();
    });
    if (same_axes || wanted_[i] == true) {
      reader_.fail(tensors_[i]->position, mismatch(i));
    } else {
      skip(mismatch(i));
    }
  }

  // No form of an optional input takes its tensor: by dtype, or else by shape.
  void refuse_optional(std::uint32_t i) {
    const std::vector<std::uint32_t> forms = forms_of(op_, i);
    if (!tensors_[i]->items.front().shape) return refuse_null_shape(i);
    if (std::none_of(forms.begin(), forms.end(), [&](auto form) { return form_is_possible(form); })) parse_dtype(i);
    if (!done()) refuse_shape(i);
  }

  void refuse_null_shape(std::uint32_t i) {
    reader_.fail(tensors_[i]->position,
                 fmt::format("tensor {} is wanted, and its shape is null", quote(tensors_[i]->name)));
  }

  void unify_required(std::uint32_t i) {
    if (done()) return;
    present_[i] = unify_port(i);
    if (!present_[i]) refuse_shape(i);
  }

  void unify_optional(std::uint32_t i) {
    if (done() || tensors_[i] == nullptr || wanted_[i] == false) return;
    const bp_port& port = op_.ports[i];
    const AtkItem& item = tensors_[i]->items.front();
    if (port.kind == BP_SCALE && !scales_quantised(port)) return;
    if (any_form_present(i) || !form_is_possible(i)) return;
    const bool wanted = wanted_[i] == true;
    if (!wanted && is_placeholder(item) && (!item.shape || is_zero(item, tensors_[i]->name))) return;
    if (item.shape && unify_port(i)) {
      present_[i] = true;
      parse_dtype(i);
    } else if (wanted && !item.shape) {
      refuse_null_shape(i);
    }
  }

  // A tensor of one zero is a place holder even where its shape fits.
  bool is_zero(const AtkItem& item, const std::string& name) {
    const RecipeSpec spec = read_atk_range(reader_, item, name);
    return spec.kind == RecipeKind::constant && spec.lo == 0.0;
  }

  bool scales_quantised(const bp_port& port) const {
    for (std::uint32_t i = 0; i < op_.port_count; ++i) {
      if (port.scale_of == nullptr || std::string_view(port.scale_of) != op_.ports[i].name) continue;
      const auto found = dtypes_.find(i);
      return found != dtypes_.end() && is_quantised(found->second);
    }
    return false;
  }

  // A scale that the operator has no port for means nothing as long as nothing is quantised.
  void check_loose_scale() {
    if (loose_scale_ == nullptr || is_placeholder(loose_scale_->items.front()) || ignored(loose_scale_->name)) return;
    for (const auto& [i, dtype] : dtypes_) {
      if (!is_quantised(dtype)) continue;
      reader_.fail(loose_scale_->position,
                   fmt::format("operator {} has no input {} that would scale {} of dtype {}", op_.name,
                               quote(loose_scale_->name), op_.ports[i].name, dtype_name(dtype)));
      return;
    }
  }

  std::optional<std::uint32_t> first_output() const {
    for (std::uint32_t i = 0; i < op_.port_count; ++i) {
      if (!input(i)) return i;
    }
    return std::nullopt;
  }

  // The dtype mode that has the required inputs' dtypes; of several, the one that agrees with most of the rest.
  void choose_dtypes() {
    const std::optional<std::uint32_t> output = first_output();
    if (output_dtype_ && output) {
      if ((op_.ports[*output].dtypes & BP_DTYPE_BIT(*output_dtype_)) == 0) {
        skip(fmt::format("operator {} does not give {} for {} (it gives {})", op_.name, dtype_name(*output_dtype_),
                         op_.ports[*output].name, dtype_list(op_.ports[*output].dtypes)));
        return;
      }
      dtypes_[*output] = *output_dtype_;
    }
    if (op_.dtype_mode_count == 0) return;
    const bp_dtype_mode* best = nullptr;
    int best_score = -1;
    for (std::uint32_t m = 0; m < op_.dtype_mode_count; ++m) {
      const bp_dtype_mode& mode = op_.dtype_modes[m];
      const int score = mode_score(mode);
      if (score > best_score) {
        best_score = score;
        best = &mode;
      }
    }
    Words given;
    for (const auto& [i, dtype] : dtypes_) given.push_back(fmt::format("{} {}", op_.ports[i].name, dtype_name(dtype)));
    if (best == nullptr) {
      Words modes;
      for (std::uint32_t m = 0; m < op_.dtype_mode_count; ++m) modes.emplace_back(op_.dtype_modes[m].name);
      skip(fmt::format("operator {} has no dtype mode with {} (it has {})", op_.name, join_words(given),
                       join_words(modes)));
      return;
    }
    mode_ = best;
    out_.axes.push_back({"dtype", {std::string(best->name)}, out_.position});
  }

  void write_axes() {
    for (std::uint32_t a = 0; a < op_.axis_count && !done(); ++a) {
      const char* name = op_.axes[a].name;
      if (name == kWorld) continue;
      const auto found = bindings_.find(name);
      if (found == bindings_.end() && is_optional_axis(op_, name)) continue;
      if (found == bindings_.end()) {
        reader_.fail(
            JsonPosition{out_.position.line, out_.position.column},
            fmt::format("axis {} of operator {} does not follow from the shapes of the inputs", name, op_.name));
        return;
      }
      out_.axes.push_back({name, {found->second}, out_.position});
    }
    for (const auto& [attr, transposed] : orientation_) {
      if (out_.attrs.count(attr) == 0) out_.positions["attrs." + attr] = out_.position;
      out_.attrs[attr] = transposed;
    }
  }

  void write_ports() {
    for (std::uint32_t i = 0; i < op_.port_count; ++i) {
      PortSpec spec;
      spec.name = op_.ports[i].name;
      const auto dtype = dtypes_.find(i);
      if (dtype != dtypes_.end()) spec.dtype = dtype->second;
      if (present_[i]) {
        spec.position = reader_.at(tensors_[i]->position);
        for (const std::int64_t extent : logical_[i]) spec.shape.push_back(std::to_string(extent));
        const AtkItem& item = tensors_[i]->items.front();
        if (item.range != nullptr && item.range->kind() != JsonValue::Kind::null) {
          spec.recipe = read_atk_range(reader_, item, tensors_[i]->name);
        }
        out_.ports.push_back(std::move(spec));
      } else if (!input(i) && wanted_[i] == false) {  // NOLINT(bugprone-branch-clone)
        spec.position = out_.position;
        spec.dtype = BP_NONE;
        out_.ports.push_back(std::move(spec));
      } else if (!input(i) && spec.dtype) {
        spec.position = reader_.at(output_position_);
        out_.ports.push_back(std::move(spec));
      } else if (op_.ports[i].kind == BP_SCALE && mode_ != nullptr && mode_->dtypes[i] != BP_NONE &&
                 !any_form_present(i)) {
        // The mode would have this scale by default; the case has none.
        spec.position = out_.position;
        spec.dtype = BP_NONE;
        out_.ports.push_back(std::move(spec));
      }
    }
  }

  Reader& reader_;
  const bp_operator& op_;
  const std::vector<AtkEntry>& entries_;
  Case& out_;
  std::vector<const AtkEntry*> tensors_;      // one per port; nullptr: the case has no tensor for it
  const AtkEntry* loose_scale_ = nullptr;     // the first scale that no port claims
  std::vector<bool> present_;                 // one per port
  std::vector<std::optional<bool>> wanted_;   // has_<port> and use_<port>
  std::map<std::uint32_t, bp_dtype> dtypes_;  // per port, where the case says it
  const bp_dtype_mode* mode_ = nullptr;       // what choose_dtypes chose
  std::optional<bp_dtype> output_dtype_;
  JsonPosition output_position_;
  AxisBindings bindings_;                    // axis -> extent
  std::map<std::uint32_t, Shape> logical_;   // per present port, not transposed
  std::map<std::string, bool> orientation_;  // transposed_by attribute -> transposed
};

}  // namespace

void bind_atk_case(Reader& reader, const bp_operator& op, const std::vector<AtkEntry>& entries, Case& out) {
  for (std::uint32_t i = 0; i < op.attr_count; ++i) {
    // Field shapes may lie far below the documented limits.
    if (std::string_view(op.attrs[i].name) == "strict_limits") out.attrs["strict_limits"] = false;
  }
  Binder(reader, op, entries, out).run();
}

}  // namespace batchproof
