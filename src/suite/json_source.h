// SPDX-License-Identifier: Apache-2.0
//
// JSON text as a tree that knows where everything is written: keys keep their order, every key and value has its line
// and column. Strict (RFC 8259): duplicate keys, a byte order mark, NaN, comments and trailing content are errors.
#ifndef BATCHPROOF_SRC_SUITE_JSON_SOURCE_H_
#define BATCHPROOF_SRC_SUITE_JSON_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "src/runtime/error.h"

namespace batchproof {

constexpr int kMaxJsonDepth = 64;                             // arrays and objects inside each other
constexpr std::size_t kMaxJsonBytes = std::size_t{64} << 20;  // of a file
constexpr std::size_t kMaxJsonValues = std::size_t{4} << 20;  // bounds the memory that a hostile file can ask for

// Lines and columns are 1-based. A column counts Unicode characters; a line ends at LF.
struct JsonPosition {
  int line = 1;
  int column = 1;
};

struct JsonMember;

struct JsonValue {
  using Items = std::vector<JsonValue>;
  using Members = std::vector<JsonMember>;
  // The order of the alternatives is the order of Kind.
  enum class Kind { null, boolean, integer, number, string, array, object };
  std::variant<std::monostate, bool, std::int64_t, double, std::string, Items, Members> data;
  JsonPosition position;  // of the value's first character

  Kind kind() const { return static_cast<Kind>(data.index()); }
  bool is_integer() const { return kind() == Kind::integer; }
  bool is_number() const { return kind() == Kind::integer || kind() == Kind::number; }
  bool is_string() const { return kind() == Kind::string; }
  bool is_array() const { return kind() == Kind::array; }
  bool is_object() const { return kind() == Kind::object; }
  // The number as a double, of an integer too.
  double as_double() const;
  const std::string& string() const { return std::get<std::string>(data); }
  const Items& items() const { return std::get<Items>(data); }
  const Members& members() const { return std::get<Members>(data); }
  // The value of a key of this object, or nullptr.
  const JsonValue* find(std::string_view key) const;
};

struct JsonMember {
  std::string key;
  JsonPosition position;  // of the key's opening quote
  JsonValue value;
};

// "a string", "an integer", ... for messages.
const char* json_kind_name(JsonValue::Kind kind);

// The text in double quotes for a message: control characters as \xNN, long text cut.
std::string quote(std::string_view text);

// Parses UTF-8 text. `name` is what messages call it. Integers that fit in 64 bits with sign stay integers; other
// numbers are doubles, and a number beyond the range of a double is an error. Errors are of kind usage and read
// "name:line:column: message".
Result<JsonValue> parse_json(std::string_view text, const std::string& name);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_SUITE_JSON_SOURCE_H_
