// SPDX-License-Identifier: Apache-2.0
//
// The small grammars of the ATK dialect: names, range_values, and concrete shapes against symbolic ones.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "src/suite/atk.h"

namespace batchproof {
namespace {

constexpr std::int64_t kLargestWorld = 64;
constexpr std::string_view kWorld = "W";
constexpr std::string_view kOptionalSuffix = "Optional";

// "inf", "-inf", "nan" and numbers.
std::optional<double> bound(const JsonValue& value) {
  if (value.is_number()) return value.as_double();
  if (!value.is_string()) return std::nullopt;
  std::string word = value.string();
  std::transform(word.begin(), word.end(), word.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
  if (word == "inf" || word == "+inf") return std::numeric_limits<double>::infinity();
  if (word == "-inf") return -std::numeric_limits<double>::infinity();
  if (word == "nan") return std::numeric_limits<double>::quiet_NaN();
  return std::nullopt;
}

double midpoint(const JsonValue& value) {
  if (value.is_number()) return value.as_double();
  return 0.5 * value.items()[0].as_double() + 0.5 * value.items()[1].as_double();
}

// Whether `extent` can be the value of a compound expression for some world size, given the bindings.
bool can_be(const Expression& expression, std::int64_t extent, const AxisBindings& bindings) {
  for (std::int64_t world = 1; world <= kLargestWorld; ++world) {
    bool unbound = false;
    const auto value = expression.evaluate([&](std::string_view symbol) -> std::optional<std::int64_t> {
      if (symbol == kWorld) return world;
      const auto found = bindings.find(symbol);
      if (found != bindings.end()) return found->second;
      unbound = true;
      return std::nullopt;
    });
    if (unbound || (value && *value == extent)) return true;
  }
  return false;
}

// Where a compound extent has one axis that nothing has bound ("M / TOPK" with M known), the least value that fits.
// False where none does.
bool solve_axis(const Expression& expression, std::int64_t extent, AxisBindings& bindings) {
  constexpr std::int64_t kLargestSolution = 65536;
  std::string unknown;
  for (const std::string& symbol : expression.symbols()) {
    if (bindings.count(symbol) != 0) continue;
    if (symbol == kWorld || !unknown.empty()) return true;  // can_be judges what is left open
    unknown = symbol;
  }
  if (unknown.empty()) return true;
  for (std::int64_t tried = 1; tried <= kLargestSolution; ++tried) {
    const auto value = expression.evaluate([&](std::string_view symbol) -> std::optional<std::int64_t> {
      if (symbol == unknown) return tried;
      return bindings.find(symbol)->second;
    });
    if (!value || *value != extent) continue;
    bindings.emplace(unknown, tried);
    return true;
  }
  return false;
}

}  // namespace

std::string port_word(std::string_view name) {
  if (name.size() > kOptionalSuffix.size() && name.substr(name.size() - kOptionalSuffix.size()) == kOptionalSuffix) {
    name.remove_suffix(kOptionalSuffix.size());
  }
  const auto upper = [](char c) { return c >= 'A' && c <= 'Z'; };
  std::string word;
  for (std::size_t i = 0; i < name.size(); ++i) {
    const bool after_lower = i > 0 && !upper(name[i - 1]) && name[i - 1] != '_';
    const bool before_lower =
        i > 0 && name[i - 1] != '_' && i + 1 < name.size() && name[i + 1] >= 'a' && name[i + 1] <= 'z';
    if (upper(name[i]) && (after_lower || before_lower)) word += '_';
    word += upper(name[i]) ? static_cast<char>(name[i] - 'A' + 'a') : name[i];
  }
  return word;
}

RecipeSpec read_atk_range(Reader& reader, const AtkItem& item, const std::string& name) {
  RecipeSpec spec;
  if (item.range == nullptr || item.range->kind() == JsonValue::Kind::null) return spec;
  const JsonValue& range = *item.range;
  const auto constant = [&](double value) { return RecipeSpec{RecipeKind::constant, value, 1.0, ""}; };
  if (range.is_object()) {
    const JsonValue& std_value = *range.find("std");
    spec.lo = midpoint(*range.find("mean"));
    spec.hi = midpoint(std_value);
    if (spec.hi < 0.0) reader.fail(std_value.position, "a standard deviation must not be negative");
    return spec.hi == 0.0 ? constant(spec.lo) : spec;
  }
  if (!range.is_array()) {
    if (const std::optional<double> value = bound(range)) return constant(*value);
  } else if (range.items().size() <= 2) {
    const std::optional<double> lo = bound(range.items().front());
    const std::optional<double> hi = bound(range.items().back());
    if (lo && hi && range.items().size() == 1) return constant(*lo);
    if (lo && hi && (std::isinf(*lo) || std::isinf(*hi))) return RecipeSpec{RecipeKind::wide_exponent, 0.0, 1.0, ""};
    if (lo && hi && *lo == *hi) return constant(*lo);
    if (lo && hi && *lo < *hi) return RecipeSpec{RecipeKind::uniform, *lo, *hi, ""};
  }
  reader.fail(range.position, fmt::format("range_values of tensor {} must be a number, a pair [low, high] with low not "
                                          "above high, or {{\"name\": \"nd\", \"mean\": ..., \"std\": ...}}",
                                          quote(name)));
  return spec;
}

bool unify_shape(const std::vector<Expression>& symbolic, const std::vector<std::int64_t>& shape,
                 AxisBindings& bindings) {
  if (symbolic.size() != shape.size()) return false;
  const auto is_axis = [](const Expression& extent) {
    return extent.is_single_symbol() && extent.symbols().front() != kWorld;
  };
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (!is_axis(symbolic[d])) continue;
    if (bindings.emplace(symbolic[d].symbols().front(), shape[d]).first->second != shape[d]) return false;
  }
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (!is_axis(symbolic[d]) && !solve_axis(symbolic[d], shape[d], bindings)) return false;
  }
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (!is_axis(symbolic[d]) && !can_be(symbolic[d], shape[d], bindings)) return false;
  }
  return true;
}

void swap_two_axes(std::uint32_t mask, std::vector<std::int64_t>& shape) {
  std::vector<std::size_t> axes;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if ((mask >> d & 1u) != 0) axes.push_back(d);
  }
  if (axes.size() == 2) std::swap(shape[axes[0]], shape[axes[1]]);
}

}  // namespace batchproof
