// SPDX-License-Identifier: Apache-2.0
//
// The ATK dialect: a bare list of cases in the field's form. Book-keeping keys are ignored where the field puts them,
// at case level and in entries of `inputs`; a key that looks like a slip of a known one is an error all the same.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "batchproof/registry.h"
#include "src/suite/atk.h"

namespace batchproof {
namespace {

constexpr std::string_view kPrefix = "aclnn";

const Words kTensorTypes = {"tensor", "tensors", "tensor_list"};
const Words kAttributeTypes = {"attr", "attrs", "attr_list", "attr_tuple", "scalar", "scalars", "scalar_list"};

bool contains(const Words& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string_view without_prefix(std::string_view name) {
  if (name.substr(0, kPrefix.size()) == kPrefix && name.size() > kPrefix.size()) name.remove_prefix(kPrefix.size());
  return name;
}

// "standrad" would be a check that silently does not run.
void refuse_slips(Reader& reader, const JsonValue& object, std::string_view what, const Words& known) {
  for (const JsonMember& member : object.members()) {
    if (member.key.size() > 32 || contains(known, member.key)) continue;
    for (const std::string& word : known) {
      if (edit_distance(member.key, word) == 1) {
        reader.fail(member.position,
                    fmt::format("unknown key {} in {}; did you mean \"{}\"?", quote(member.key), what, word));
      }
    }
  }
}

bool is_range_scalar(const JsonValue& value) {
  return value.is_number() || value.is_string() || value.kind() == JsonValue::Kind::boolean;
}

// A mean or a standard deviation: a number, or a pair that it is drawn from.
void check_moment(Reader& reader, const JsonValue& value, std::string_view what) {
  if (value.is_number()) return;
  if (value.is_array() && value.items().size() == 2 && value.items()[0].is_number() && value.items()[1].is_number())
    return;
  reader.fail_type(value, what, "a number or a pair of numbers");
}

void check_range(Reader& reader, const JsonValue& value) {
  if (value.kind() == JsonValue::Kind::null || is_range_scalar(value)) return;
  if (value.is_array()) {
    for (const JsonValue& item : reader.list(value, "range_values")) {
      if (!is_range_scalar(item))
        reader.fail_type(item, "an entry of range_values", "a number, a string, true or false");
    }
    return;
  }
  const std::string what = "a distribution";
  reader.object(value, what, {"name", "mean", "std"});
  const JsonValue& name = reader.require(value, what, "name");
  if (!name.is_string() || name.string() != "nd")
    reader.fail_type(name, "the name of a distribution", "\"nd\" (normal)");
  check_moment(reader, reader.require(value, what, "mean"), "mean");
  check_moment(reader, reader.require(value, what, "std"), "std");
}

AtkItem read_item(Reader& reader, const JsonValue& value, AtkEntry& entry) {
  static const Words known = {"name",         "type",     "required",  "dtype",         "shape",
                              "range_values", "backward", "align_32B", "outlier_values"};
  AtkItem item;
  item.position = value.position;
  reader.object_of_any_keys(value, "an input");
  if (!reader.ok()) return item;
  refuse_slips(reader, value, "an input", known);
  const std::string name = reader.string(reader.require(value, "an input", "name"), "the name of an input");
  const JsonValue& type_value = reader.require(value, "an input", "type");
  const std::string type = type_value.is_string() ? type_value.string() : "";
  const bool is_tensor = contains(kTensorTypes, type);
  if (!is_tensor && !contains(kAttributeTypes, type)) {
    reader.fail_type(type_value, "the type of an input",
                     fmt::format("one of {}, {}", join_words(kTensorTypes), join_words(kAttributeTypes)));
  }
  if (entry.items.empty()) {
    entry.name = name;
    entry.is_tensor = is_tensor;
  } else if (name != entry.name || is_tensor != entry.is_tensor) {
    reader.fail(value.position, fmt::format("a nested list holds one input: {} stands in the list of {}", quote(name),
                                            quote(entry.name)));
  }
  if (const JsonValue* dtype = value.find("dtype"); dtype != nullptr && dtype->kind() != JsonValue::Kind::null) {
    item.dtype = reader.string(*dtype, "dtype");
  }
  if (const JsonValue* shape = value.find("shape"); shape != nullptr && shape->kind() != JsonValue::Kind::null) {
    item.shape.emplace();
    for (const JsonValue& extent : reader.list(*shape, "shape", true)) {
      item.shape->push_back(reader.integer(extent, "an extent"));
    }
  }
  if (const JsonValue* range = value.find("range_values")) {
    check_range(reader, *range);
    item.range = range;
  }
  return item;
}

std::vector<AtkEntry> read_entries(Reader& reader, const JsonValue& value) {
  std::vector<AtkEntry> entries;
  std::set<std::string> names;
  for (const JsonValue& element : reader.list(value, "inputs")) {
    AtkEntry entry;
    entry.position = element.position;
    entry.is_list = element.is_array();
    if (entry.is_list) {
      for (const JsonValue& item : reader.list(element, "a nested list of inputs")) {
        entry.items.push_back(read_item(reader, item, entry));
      }
    } else {
      entry.items.push_back(read_item(reader, element, entry));
    }
    if (!reader.ok()) return entries;
    if (!names.insert(entry.name).second) {
      reader.fail(entry.position, fmt::format("input {} is listed twice", quote(entry.name)));
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

const bp_operator* find_operator(std::string_view aclnn_name) {
  for (const bp_operator* op : registered_operators()) {
    if (aclnn_name == op->name) return op;
    for (const std::string& alias : split_list(op->aliases)) {
      if (without_prefix(alias) == aclnn_name) return op;
    }
  }
  return nullptr;
}

// Names that can stand in a cell id and that no other case of the file has: "mm", "mm#2".
class UniqueNames {
 public:
  std::string take(const std::string& written) {
    std::string name;
    for (const char c : written) name += is_id_word(std::string_view(&c, 1)) ? c : '_';
    std::string candidate = name;
    int& last = last_[name];
    while (!used_.insert(candidate).second) candidate = fmt::format("{}#{}", name, last = std::max(last, 1) + 1);
    return candidate;
  }

 private:
  std::set<std::string> used_;
  std::map<std::string, int> last_;  // the last number given to a name
};

}  // namespace

void load_atk(Reader& reader, const JsonValue& root, Suite& suite) {
  static const Words known = {"name", "aclnn_name", "standard", "inputs", "outputs", "id"};
  UniqueNames names;
  for (const JsonValue& value : reader.list(root, "a suite")) {
    Case loaded;
    loaded.position = reader.at(value.position);
    reader.object_of_any_keys(value, "a case");
    if (!reader.ok()) return;
    refuse_slips(reader, value, "a case", known);
    const std::string name = reader.string(reader.require(value, "a case", "name"), "the name of a case");
    const JsonValue& aclnn_value = reader.require(value, "a case", "aclnn_name");
    const std::string aclnn_name = reader.string(aclnn_value, "aclnn_name");
    if (const JsonValue* standard = value.find("standard"))
      loaded.standard = read_standard(reader, *standard, /*custom_acc=*/true);
    const std::vector<AtkEntry> entries = read_entries(reader, reader.require(value, "a case", "inputs"));
    if (!reader.ok()) return;

    loaded.name = names.take(name);
    loaded.op = without_prefix(aclnn_name);
    for (const JsonMember& member : value.members()) loaded.positions[member.key] = reader.at(member.value.position);
    loaded.positions["op"] = reader.at(aclnn_value.position);
    if (const bp_operator* op = find_operator(loaded.op)) {
      loaded.op = op->name;
      bind_atk_case(reader, *op, entries, loaded);
    } else {
      loaded.skip_reason = fmt::format("operator {} is not available in this build", loaded.op);
    }
    if (!reader.ok()) return;
    suite.cases.push_back(std::move(loaded));
  }
}

}  // namespace batchproof
