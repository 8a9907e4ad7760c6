// SPDX-License-Identifier: Apache-2.0
//
// Reading a parsed suite file: typed values, strict keys, messages that say where, what and what would be right.
// Private to src/suite; both dialects use it.
#ifndef BATCHPROOF_SRC_SUITE_READ_H_
#define BATCHPROOF_SRC_SUITE_READ_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/suite/json_source.h"
#include "src/suite/suite.h"

namespace batchproof {

// The largest integer that a suite may hold: every JSON reader keeps it exactly.
constexpr std::int64_t kMaxSuiteInteger = std::int64_t{1} << 53;

using Words = std::vector<std::string>;

// "a, b, c".
std::string join_words(const Words& words);

// Edit distance with insertions, deletions, substitutions and swaps of neighbours.
std::size_t edit_distance(std::string_view a, std::string_view b);

// `; did you mean "acc"? Known relations: acc, bi` or, where nothing is near, `; known relations: acc, bi`.
std::string suggest(std::string_view word, const Words& known, std::string_view plural);

// What messages list as known.
Words dtype_words();
Words recipe_words();

// Whether `name` can be part of a cell id: letters, digits and . _ # + -, at least one.
bool is_id_word(std::string_view name);

// One file while it is read. The first error is kept and every later call is harmless, so a caller reads on and asks
// once at the end. `what` names the value in messages: "n_variants".
class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  const std::string& file() const { return file_; }
  bool ok() const { return !error_; }
  const std::optional<Error>& error() const { return error_; }
  SourcePosition at(const JsonPosition& position) const { return {file_, position.line, position.column}; }
  void fail(const JsonPosition& position, const std::string& message);
  void fail_type(const JsonValue& value, std::string_view what, std::string_view wanted);

  // A string of at least one character.
  std::string string(const JsonValue& value, std::string_view what);
  // An integer in [lo, hi]. A number without fraction (2.0) is one.
  std::int64_t integer(const JsonValue& value, std::string_view what, std::int64_t lo = 0,
                       std::int64_t hi = kMaxSuiteInteger);
  double number(const JsonValue& value, std::string_view what);
  double positive(const JsonValue& value, std::string_view what);
  bool boolean(const JsonValue& value, std::string_view what);
  const JsonValue::Items& list(const JsonValue& value, std::string_view what, bool may_be_empty = false);
  // An object that has no key but the known ones.
  const JsonValue::Members& object(const JsonValue& value, std::string_view what, const Words& known);
  const JsonValue::Members& object_of_any_keys(const JsonValue& value, std::string_view what);
  // The member, which must be there.
  const JsonValue& require(const JsonValue& object, std::string_view what, std::string_view key);

 private:
  std::string file_;
  std::optional<Error> error_;
};

// The value of an integer, or of a number without fraction that an int64 holds.
std::optional<std::int64_t> exact_integer(const JsonValue& value);

// standard.cc: the `standard` object, the same in both dialects but for `custom_acc`: an acc may have a name that this
// program does not know.
Standard read_standard(Reader& reader, const JsonValue& value, bool custom_acc);

// load_native.cc and load_atk.cc: the whole document. Errors are in the reader.
void load_native(Reader& reader, const JsonValue& root, Suite& suite);
void load_atk(Reader& reader, const JsonValue& root, Suite& suite);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_SUITE_READ_H_
