// SPDX-License-Identifier: Apache-2.0
//
// The native dialect: {"$schema": ..., "version": 1, "cases": [...]}. Everything is strict. What only the operator can
// judge (axes, attributes, ports, implementations) is checked when the case is expanded.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "src/numeric/digest.h"
#include "src/numeric/dtype.h"
#include "src/runtime/expression.h"
#include "src/suite/load.h"
#include "src/suite/read.h"

namespace batchproof {
namespace {

std::string read_id_word(Reader& reader, const JsonValue& value, std::string_view what) {
  std::string word = reader.string(value, what);
  if (reader.ok() && !is_id_word(word)) {
    reader.fail(value.position, fmt::format("{} {} may hold only letters, digits and . _ # + - (it becomes part of the "
                                            "cell's id)",
                                            what, quote(word)));
  }
  return word;
}

void read_axes(Reader& reader, const JsonValue& value, Case& out) {
  for (const JsonMember& member : reader.object_of_any_keys(value, "axes")) {
    CaseAxis axis{member.key, {}, reader.at(member.position)};
    const std::string what = fmt::format("axis {}", quote(member.key));
    for (const JsonValue& item : reader.list(member.value, what)) {
      const std::optional<std::int64_t> integer = exact_integer(item);
      if (integer && *integer >= 0 && *integer <= kMaxSuiteInteger) {
        axis.values.emplace_back(*integer);
      } else if (item.is_string() && !item.string().empty()) {
        axis.values.emplace_back(read_id_word(reader, item, "an axis value"));
      } else {
        reader.fail_type(item, what + " holds values that",
                         fmt::format("integers from 0 to {} or names", kMaxSuiteInteger));
        return;
      }
      if (std::count(axis.values.begin(), axis.values.end(), axis.values.back()) > 1) {
        reader.fail(item.position, fmt::format("{} lists this value twice", what));
      }
    }
    out.axes.push_back(std::move(axis));
  }
}

void read_attrs(Reader& reader, const JsonValue& value, Case& out) {
  for (const JsonMember& member : reader.object_of_any_keys(value, "attrs")) {
    AttrValue attr;
    switch (member.value.kind()) {
      case JsonValue::Kind::boolean:
        attr = std::get<bool>(member.value.data);
        break;
      case JsonValue::Kind::integer:
        attr = std::get<std::int64_t>(member.value.data);
        break;
      case JsonValue::Kind::number:
        attr = std::get<double>(member.value.data);
        break;
      case JsonValue::Kind::string:
        attr = member.value.string();
        break;
      default:
        reader.fail_type(member.value, fmt::format("attribute {}", quote(member.key)),
                         "true, false, a number or a string");
        return;
    }
    out.attrs[member.key] = std::move(attr);
    out.positions["attrs." + member.key] = reader.at(member.position);
  }
}

RecipeSpec read_recipe(Reader& reader, const JsonValue& value) {
  if (value.is_string()) {
    const std::optional<RecipeSpec> named = recipe_from_name(value.string());
    if (!named || named->kind == RecipeKind::file) {
      reader.fail(value.position, fmt::format("unknown recipe {}{}", quote(value.string()),
                                              suggest(value.string(), recipe_words(), "recipes")));
      return {};
    }
    return *named;
  }
  if (!value.is_object()) {
    reader.fail_type(value, "recipe", "a name or an object with \"kind\"");
    return {};
  }
  const JsonValue& kind_value = reader.require(value, "recipe", "kind");
  const std::string kind = kind_value.is_string() ? kind_value.string() : "";
  RecipeSpec spec;
  if (kind == "uniform") {
    spec.kind = RecipeKind::uniform;
    reader.object(value, "a uniform recipe", {"kind", "lo", "hi"});
    spec.lo = reader.number(reader.require(value, "a uniform recipe", "lo"), "lo");
    const JsonValue& hi = reader.require(value, "a uniform recipe", "hi");
    spec.hi = reader.number(hi, "hi");
    if (spec.hi <= spec.lo)
      reader.fail(hi.position, fmt::format("hi must be above lo, {} is not above {}", spec.hi, spec.lo));
  } else if (kind == "normal") {
    spec.kind = RecipeKind::normal;
    reader.object(value, "a normal recipe", {"kind", "mean", "stddev"});
    spec.lo = reader.number(reader.require(value, "a normal recipe", "mean"), "mean");
    spec.hi = reader.positive(reader.require(value, "a normal recipe", "stddev"), "stddev");
  } else if (kind == "constant") {
    spec.kind = RecipeKind::constant;
    reader.object(value, "a constant recipe", {"kind", "value"});
    spec.lo = reader.number(reader.require(value, "a constant recipe", "value"), "value");
  } else {
    reader.fail_type(kind_value, "the kind of a recipe object", "\"uniform\", \"normal\" or \"constant\"");
  }
  return spec;
}

std::vector<std::string> read_shape(Reader& reader, const JsonValue& value) {
  std::vector<std::string> shape;
  for (const JsonValue& item : reader.list(value, "shape")) {
    const std::optional<std::int64_t> extent = exact_integer(item);
    if (extent && *extent >= 0) {
      shape.push_back(std::to_string(*extent));
    } else if (item.is_string() && !item.string().empty()) {
      const Result<Expression> parsed = Expression::parse(item.string());
      if (!parsed) reader.fail(item.position, parsed.error().message);
      shape.push_back(item.string());
    } else {
      reader.fail_type(item, "an extent", "an integer from 0 or an expression over the axes");
    }
  }
  if (shape.size() > BP_MAX_DIMS) {
    reader.fail(value.position,
                fmt::format("shape has {} extents; at most {} are supported", shape.size(), BP_MAX_DIMS));
  }
  return shape;
}

void read_ports(Reader& reader, const JsonValue& value, std::string_view what, Case& out) {
  const bool inputs = what == "inputs";
  for (const JsonValue& item : reader.list(value, what, true)) {
    PortSpec port;
    port.position = reader.at(item.position);
    const Words keys = inputs ? Words{"name", "dtype", "shape", "recipe", "file"} : Words{"name", "dtype", "shape"};
    const std::string entry = inputs ? "an input" : "an output";
    reader.object(item, entry, keys);
    port.name = reader.string(reader.require(item, entry, "name"), "the name of " + entry);
    if (!reader.ok()) return;
    if (const JsonValue* dtype = item.find("dtype")) {
      const std::string name = reader.string(*dtype, "dtype");
      port.dtype = dtype_from_name(name);
      if (!port.dtype) {
        reader.fail(dtype->position,
                    fmt::format("unknown dtype {}{}", quote(name), suggest(name, dtype_words(), "dtypes")));
      }
    }
    if (const JsonValue* shape = item.find("shape")) port.shape = read_shape(reader, *shape);
    const JsonValue* recipe = item.find("recipe");
    const JsonValue* file = item.find("file");
    if (recipe != nullptr && file != nullptr) {
      reader.fail(file->position, "an input has either a recipe or a file, not both");
    } else if (recipe != nullptr) {
      port.recipe = read_recipe(reader, *recipe);
    } else if (file != nullptr) {
      const std::filesystem::path path = reader.string(*file, "file");
      port.recipe =
          RecipeSpec{RecipeKind::file, 0.0, 1.0, (std::filesystem::path(reader.file()).parent_path() / path).string()};
    }
    const auto same = [&](const PortSpec& other) { return other.name == port.name; };
    if (std::any_of(out.ports.begin(), out.ports.end(), same)) {
      reader.fail(item.position, fmt::format("port {} is listed twice", quote(port.name)));
    }
    out.ports.push_back(std::move(port));
  }
}

// One of `words`; `wanted` says so in the error.
Verdict read_verdict(Reader& reader, const JsonValue& value, std::string_view what, std::string_view wanted,
                     std::initializer_list<Verdict> words) {
  const std::optional<Verdict> found = value.is_string() ? verdict_from_name(value.string()) : std::nullopt;
  if (found && std::find(words.begin(), words.end(), *found) != words.end()) return *found;
  reader.fail_type(value, what, wanted);
  return Verdict::pass;
}

Verdict read_cell_verdict(Reader& reader, const JsonValue& value) {
  return read_verdict(reader, value, "expect",
                      R"("pass", "violation", "vacuous", "wrong", "heavy" or {"error": "text"})",
                      {Verdict::pass, Verdict::violation, Verdict::vacuous, Verdict::wrong, Verdict::heavy});
}

Verdict read_relation_verdict(Reader& reader, const JsonValue& value) {
  return read_verdict(reader, value, "the expectation of a relation", R"("pass", "violation", "vacuous" or "skipped")",
                      {Verdict::pass, Verdict::violation, Verdict::vacuous, Verdict::skipped});
}

Expectation read_expect(Reader& reader, const JsonValue& value) {
  Expectation expect;
  if (!value.is_object()) {
    expect.cell = read_cell_verdict(reader, value);
    return expect;
  }
  if (value.members().empty())
    reader.fail(value.position, "expect is empty; name a relation, \"acc\", \"mem\", \"cell\" or \"error\"");
  Words known = {"error", "cell", "acc", "mem"};
  for (const RelationWord& word : relations()) known.emplace_back(word.name);
  for (const JsonMember& member : reader.object(value, "expect", known)) {
    if (member.key == "error") {
      if (value.members().size() > 1) {
        reader.fail(member.position, "an expected error stands alone: a cell that fails has no relations");
      }
      expect.cell = Verdict::error;
      expect.error = reader.string(member.value, "the expected error");
    } else if (member.key == "cell") {
      expect.cell = read_cell_verdict(reader, member.value);
    } else if (member.key == "acc") {
      expect.acc = read_verdict(reader, member.value, "the expectation of acc", R"("pass", "wrong" or "skipped")",
                                {Verdict::pass, Verdict::wrong, Verdict::skipped});
    } else if (member.key == "mem") {
      expect.mem = read_verdict(reader, member.value, "the expectation of mem", R"("pass", "heavy" or "skipped")",
                                {Verdict::pass, Verdict::heavy, Verdict::skipped});
    } else if (const std::optional<std::uint32_t> bit = relation_from_name(member.key)) {
      expect.relations[*bit] = read_relation_verdict(reader, member.value);
    }
  }
  return expect;
}

Case read_case(Reader& reader, const JsonValue& value) {
  static const Words keys = {"name",   "op",      "impl",     "mode",   "axes",   "where",         "attrs",
                             "inputs", "outputs", "standard", "expect", "limits", "allow_vacuous", "inputs_from"};
  Case out;
  out.position = reader.at(value.position);
  reader.object(value, "a case", keys);
  out.name = read_id_word(reader, reader.require(value, "a case", "name"), "the name of a case");
  if (!reader.ok()) return out;
  if (value.find("inputs_from") == nullptr) out.op = reader.string(reader.require(value, "a case", "op"), "op");
  if (!reader.ok()) return out;
  for (const JsonMember& member : value.members()) {
    out.positions[member.key] = reader.at(member.value.position);
    if (member.key == "impl") {
      out.impl = reader.string(member.value, "impl");
    } else if (member.key == "mode") {
      const std::string word = member.value.is_string() ? member.value.string() : "";
      if (word != "invariant" && word != "fast") reader.fail_type(member.value, "mode", "\"invariant\" or \"fast\"");
      out.mode = word == "fast" ? BP_MODE_FAST : BP_MODE_INVARIANT;
    } else if (member.key == "axes") {
      read_axes(reader, member.value, out);
    } else if (member.key == "where") {
      out.where = reader.string(member.value, "where");
      const Result<Expression> parsed = Expression::parse(out.where);
      if (reader.ok() && !parsed) reader.fail(member.value.position, parsed.error().message);
    } else if (member.key == "attrs") {
      read_attrs(reader, member.value, out);
    } else if (member.key == "inputs" || member.key == "outputs") {
      read_ports(reader, member.value, member.key, out);
      out.lists_outputs |= member.key == "outputs";
    } else if (member.key == "standard") {
      out.standard = read_standard(reader, member.value, /*custom_acc=*/false);
    } else if (member.key == "expect") {
      out.expect = read_expect(reader, member.value);
    } else if (member.key == "limits") {
      for (const JsonMember& limit : reader.object(member.value, "limits", {"timeout_s"})) {
        if (limit.key == "timeout_s") out.timeout_s = reader.positive(limit.value, "timeout_s");
      }
    } else if (member.key == "allow_vacuous") {
      out.allow_vacuous = reader.string(member.value, "allow_vacuous (the reason)");
    }
  }
  return out;
}

// ---- inputs_from: the cases of another file under this case's standard ----

// What the other file decides.
void check_borrowing(Reader& reader, const JsonValue& value) {
  for (const JsonMember& member : value.members()) {
    for (const char* key : {"op", "axes", "where", "attrs", "inputs", "outputs"}) {
      if (member.key != key) continue;
      reader.fail(member.position, fmt::format("{} follows from inputs_from; leave it out", quote(key)));
    }
  }
}

// `outer` once per case of the file, with the operator, axes, attributes and tensors of that case.
std::vector<Case> borrowed_cases(Reader& reader, const JsonValue& from, const Case& outer, Suite& suite) {
  std::vector<Case> cases;
  const std::filesystem::path path =
      std::filesystem::path(reader.file()).parent_path() / reader.string(from, "inputs_from");
  if (!reader.ok()) return cases;
  // The files whose cases are being read: one that leads back to itself would never end.
  thread_local std::vector<std::filesystem::path> open_files;
  const std::filesystem::path whole = std::filesystem::weakly_canonical(path);
  if (std::find(open_files.begin(), open_files.end(), whole) != open_files.end()) {
    reader.fail(from.position, fmt::format("inputs_from: {} leads back to itself", path.string()));
    return cases;
  }
  open_files.push_back(whole);
  Result<Suite> other = load_suite(path.string());
  open_files.pop_back();
  if (!other) {
    reader.fail(from.position, fmt::format("inputs_from: {}", other.error().message));
    return cases;
  }
  const std::uint64_t both[] = {suite.build_id, other->build_id};
  suite.build_id = digest_bytes(both, sizeof both);
  for (Case& source : other->cases) {
    Case made = std::move(source);
    made.name = fmt::format("{}.{}", outer.name, made.name);
    if (!outer.impl.empty()) made.impl = outer.impl;
    if (outer.positions.count("mode") != 0) made.mode = outer.mode;
    if (outer.positions.count("standard") != 0) made.standard = outer.standard;
    if (outer.positions.count("expect") != 0) made.expect = outer.expect;
    if (outer.positions.count("allow_vacuous") != 0) made.allow_vacuous = outer.allow_vacuous;
    if (outer.timeout_s) made.timeout_s = outer.timeout_s;
    made.position = outer.position;  // where the cell can be selected again
    for (const auto& [key, position] : outer.positions) made.positions[key] = position;
    cases.push_back(std::move(made));
  }
  return cases;
}

}  // namespace

void load_native(Reader& reader, const JsonValue& root, Suite& suite) {
  reader.object(root, "a suite", {"$schema", "version", "cases"});
  if (const JsonValue* schema = root.find("$schema")) reader.string(*schema, "$schema");
  const JsonValue& version = reader.require(root, "a suite", "version");
  if (exact_integer(version) != 1) reader.fail_type(version, "version", "1");
  const JsonValue& cases = reader.require(root, "a suite", "cases");
  std::map<std::string, SourcePosition> seen;
  for (const JsonValue& value : reader.list(cases, "cases")) {
    Case loaded = read_case(reader, value);
    if (!reader.ok()) return;
    const auto [first, fresh] = seen.emplace(loaded.name, loaded.position);
    if (!fresh) {
      reader.fail(value.find("name")->position,
                  fmt::format("two cases are named {}; the other is at {}", quote(loaded.name), first->second.text()));
    }
    const JsonValue* from = value.find("inputs_from");
    if (from == nullptr) {
      suite.cases.push_back(std::move(loaded));
      continue;
    }
    check_borrowing(reader, value);
    for (Case& borrowed : borrowed_cases(reader, *from, loaded, suite)) suite.cases.push_back(std::move(borrowed));
  }
}

}  // namespace batchproof
