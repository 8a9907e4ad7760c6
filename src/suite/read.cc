// SPDX-License-Identifier: Apache-2.0
#include "src/suite/read.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/numeric/dtype.h"

namespace batchproof {
namespace {

const JsonValue kNull;
const JsonValue::Items kNoItems;
const JsonValue::Members kNoMembers;

std::string lower_case(std::string_view word) {
  std::string lower(word);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return lower;
}

// The value itself where it is short, else its kind.
std::string show(const JsonValue& value) {
  switch (value.kind()) {
    case JsonValue::Kind::boolean:
      return std::get<bool>(value.data) ? "true" : "false";
    case JsonValue::Kind::integer:
      return std::to_string(std::get<std::int64_t>(value.data));
    case JsonValue::Kind::number:
      return fmt::format("{}", std::get<double>(value.data));
    case JsonValue::Kind::string:
      return quote(value.string());
    default:
      break;
  }
  return json_kind_name(value.kind());
}

}  // namespace

std::string join_words(const Words& words) { return fmt::format("{}", fmt::join(words, ", ")); }

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, substitute});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

std::string suggest(std::string_view word, const Words& known, std::string_view plural) {
  std::string best;
  // A word of up to five letters may be one edit off, a longer one two. A very long one is no slip of the finger.
  std::size_t limit = word.size() <= 5 ? 1 : 2;
  if (word.size() <= 64) {
    for (const std::string& candidate : known) {
      const std::size_t distance = lower_case(word) == lower_case(candidate) ? 0 : edit_distance(word, candidate);
      if (distance > limit || (distance == limit && !best.empty())) continue;
      best = candidate;
      limit = distance;
    }
  }
  if (known.empty()) return fmt::format("; there are no {}", plural);
  if (best.empty()) return fmt::format("; known {}: {}", plural, join_words(known));
  return fmt::format("; did you mean \"{}\"? Known {}: {}", best, plural, join_words(known));
}

Words dtype_words() {
  Words words;
  for (const bp_dtype dtype : all_dtypes()) words.emplace_back(dtype_name(dtype));
  return words;
}

Words recipe_words() { return {"normal", "wide_exponent", "cancelling", "small_integer", "checkpoint", "ID", "VAR"}; }

bool is_id_word(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("._#+-").find(c) != std::string_view::npos;
  });
}

std::optional<std::int64_t> exact_integer(const JsonValue& value) {
  if (value.is_integer()) return std::get<std::int64_t>(value.data);
  if (!value.is_number()) return std::nullopt;
  const double number = value.as_double();
  if (number != std::floor(number) || std::fabs(number) > static_cast<double>(kMaxSuiteInteger)) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

void Reader::fail(const JsonPosition& position, const std::string& message) {
  if (!error_) error_ = Error{Error::Kind::usage, at(position).text() + ": " + message};
}

void Reader::fail_type(const JsonValue& value, std::string_view what, std::string_view wanted) {
  fail(value.position, fmt::format("{} must be {}, found {}", what, wanted, show(value)));
}

std::string Reader::string(const JsonValue& value, std::string_view what) {
  if (!value.is_string() || value.string().empty()) {
    fail_type(value, what, "a string that is not empty");
    return {};
  }
  return value.string();
}

std::int64_t Reader::integer(const JsonValue& value, std::string_view what, std::int64_t lo, std::int64_t hi) {
  const std::optional<std::int64_t> exact = exact_integer(value);
  if (!exact || *exact < lo || *exact > hi) {
    fail_type(value, what, fmt::format("an integer from {} to {}", lo, hi));
    return lo;
  }
  return *exact;
}

double Reader::number(const JsonValue& value, std::string_view what) {
  if (value.is_number()) return value.as_double();
  fail_type(value, what, "a number");
  return 0.0;
}

double Reader::positive(const JsonValue& value, std::string_view what) {
  if (value.is_number() && value.as_double() > 0.0) return value.as_double();
  fail_type(value, what, "a number above 0");
  return 1.0;
}

bool Reader::boolean(const JsonValue& value, std::string_view what) {
  if (const bool* b = std::get_if<bool>(&value.data)) return *b;
  fail_type(value, what, "true or false");
  return false;
}

const JsonValue::Items& Reader::list(const JsonValue& value, std::string_view what, bool may_be_empty) {
  if (!value.is_array()) {
    fail_type(value, what, "a list");
    return kNoItems;
  }
  if (value.items().empty() && !may_be_empty) {
    fail(value.position, fmt::format("{} is empty; it needs at least one entry", what));
  }
  return value.items();
}

const JsonValue::Members& Reader::object_of_any_keys(const JsonValue& value, std::string_view what) {
  if (value.is_object()) return value.members();
  fail_type(value, what, "an object");
  return kNoMembers;
}

const JsonValue::Members& Reader::object(const JsonValue& value, std::string_view what, const Words& known) {
  const JsonValue::Members& members = object_of_any_keys(value, what);
  for (const JsonMember& member : members) {
    if (std::find(known.begin(), known.end(), member.key) != known.end()) continue;
    fail(member.position,
         fmt::format("unknown key {} in {}{}", quote(member.key), what, suggest(member.key, known, "keys")));
    break;
  }
  return members;
}

const JsonValue& Reader::require(const JsonValue& object, std::string_view what, std::string_view key) {
  const JsonValue* found = object.is_object() ? object.find(key) : nullptr;
  if (found != nullptr) return *found;
  fail(object.position, fmt::format("{} has no \"{}\"", what, key));
  return kNull;
}

}  // namespace batchproof
