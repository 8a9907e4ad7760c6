// SPDX-License-Identifier: Apache-2.0
//
// nlohmann's SAX parser decides what is valid; a cursor walks the same text in step with its events and knows where
// each token begins. The parser reports an event only after it has accepted the token, so the cursor may be simple.
#include "src/suite/json_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

namespace batchproof {
namespace {

constexpr std::size_t kShownText = 40;

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0u) == 0x80u; }
bool is_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '.' ||
         c == '+' || c == '-';
}

// Length of the UTF-8 sequence at `offset`, 0 where there is none (Unicode 15, table 3-7: no surrogates, no overlong
// forms, nothing above U+10FFFF).
std::size_t utf8_length(std::string_view text, std::size_t offset) {
  const auto byte = [&](std::size_t i) -> unsigned {
    return offset + i < text.size() ? static_cast<unsigned char>(text[offset + i]) : 0u;
  };
  const auto in = [](unsigned value, unsigned lo, unsigned hi) { return value >= lo && value <= hi; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (in(first, 0xC2, 0xDF)) return in(byte(1), 0x80, 0xBF) ? 2 : 0;
  if (in(first, 0xE0, 0xEF)) {
    const unsigned lo = first == 0xE0 ? 0xA0 : 0x80;
    const unsigned hi = first == 0xED ? 0x9F : 0xBF;
    return in(byte(1), lo, hi) && in(byte(2), 0x80, 0xBF) ? 3 : 0;
  }
  if (in(first, 0xF0, 0xF4)) {
    const unsigned lo = first == 0xF0 ? 0x90 : 0x80;
    const unsigned hi = first == 0xF4 ? 0x8F : 0xBF;
    return in(byte(1), lo, hi) && in(byte(2), 0x80, 0xBF) && in(byte(3), 0x80, 0xBF) ? 4 : 0;
  }
  return 0;
}

std::size_t first_invalid_utf8(std::string_view text) {
  std::size_t offset = 0;
  while (offset < text.size()) {
    const std::size_t length = utf8_length(text, offset);
    if (length == 0) return offset;
    offset += length;
  }
  return std::string_view::npos;
}

// Length of the JSON number that begins at `offset`: the longest prefix that the grammar takes, 0 where there is none.
std::size_t number_length(std::string_view text, std::size_t offset) {
  std::size_t i = offset;
  const auto at = [&](char c) { return i < text.size() && text[i] == c; };
  const auto digits = [&] {
    const std::size_t begin = i;
    while (i < text.size() && text[i] >= '0' && text[i] <= '9') ++i;
    return i > begin;
  };
  if (at('-')) ++i;
  if (at('0')) {
    ++i;
  } else if (!digits()) {
    return 0;
  }
  std::size_t end = i;
  if (at('.')) {
    ++i;
    if (!digits()) return end - offset;
    end = i;
  }
  if (at('e') || at('E')) {
    ++i;
    if (at('+') || at('-')) ++i;
    if (digits()) end = i;
  }
  return end - offset;
}

// Walks forward through the text and keeps line and column.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  std::size_t offset() const { return offset_; }
  const JsonPosition& position() const { return position_; }
  bool at_end() const { return offset_ >= text_.size(); }
  char peek() const { return text_[offset_]; }

  void advance_to(std::size_t offset) {
    for (; offset_ < offset && !at_end(); ++offset_) {
      if (text_[offset_] == '\n') {
        ++position_.line;
        position_.column = 1;
      } else if (!is_continuation(text_[offset_])) {
        ++position_.column;
      }
    }
  }

  void skip_blanks() {
    while (!at_end() && is_blank(peek())) advance_to(offset_ + 1);
  }

  // To the first character of the next token that is neither `,` nor `:`, and then behind that token.
  JsonPosition take_token() {
    while (!at_end() && (is_blank(peek()) || peek() == ',' || peek() == ':')) advance_to(offset_ + 1);
    const JsonPosition start = position_;
    if (at_end()) return start;
    std::size_t end = offset_ + 1;
    if (peek() == '"') {
      while (end < text_.size() && text_[end] != '"') end += text_[end] == '\\' ? 2 : 1;
      ++end;
    } else if (peek() == 't' || peek() == 'n') {
      end = offset_ + 4;  // true, null
    } else if (peek() == 'f') {
      end = offset_ + 5;  // false
    } else {
      end = offset_ + std::max<std::size_t>(1, number_length(text_, offset_));
    }
    advance_to(std::min(end, text_.size()));
    return start;
  }

 private:
  std::string_view text_;
  std::size_t offset_ = 0;
  JsonPosition position_;
};

// What is wrong inside the string that begins at text[start], and where.
std::pair<std::size_t, std::string> string_fault(std::string_view text, std::size_t start) {
  const auto hex = [&](std::size_t at) -> std::optional<unsigned> {
    unsigned value = 0;
    for (std::size_t i = at; i < at + 4; ++i) {
      const char c = i < text.size() ? text[i] : ' ';
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return std::nullopt;
      value = value * 16 + static_cast<unsigned>(digit);
    }
    return value;
  };
  std::size_t i = start + 1;
  while (i < text.size() && text[i] != '"') {
    if (static_cast<unsigned char>(text[i]) < 0x20) {
      return {i, fmt::format("a control character (0x{:02x}) inside a string must be escaped",
                             static_cast<unsigned char>(text[i]))};
    }
    if (text[i] != '\\') {
      ++i;
      continue;
    }
    if (i + 1 >= text.size()) break;
    if (text[i + 1] != 'u') {
      if (std::string_view("\"\\/bfnrt").find(text[i + 1]) == std::string_view::npos) {
        return {i, R"(not an escape; strings know \" \\ \/ \b \f \n \r \t and \uXXXX)"};
      }
      i += 2;
      continue;
    }
    const std::optional<unsigned> code = hex(i + 2);
    if (!code) return {i, R"(\u needs four hexadecimal digits)"};
    const bool high = *code >= 0xD800 && *code <= 0xDBFF;
    const std::optional<unsigned> next =
        high && i + 7 < text.size() && text[i + 6] == '\\' && text[i + 7] == 'u' ? hex(i + 8) : std::nullopt;
    if ((*code >= 0xDC00 && *code <= 0xDFFF) || (high && (!next || *next < 0xDC00 || *next > 0xDFFF))) {
      return {i, R"(half of a surrogate pair; write both halves: \ud83d\ude00)"};
    }
    i += high ? 12 : 6;
  }
  return {text.size(), "the file ends inside a string"};
}

class TreeBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  TreeBuilder(std::string_view text, const std::string& name) : text_(text), name_(name), cursor_(text) {}

  bool null() override { return value(std::monostate{}); }
  bool boolean(bool v) override { return value(v); }
  bool number_integer(number_integer_t v) override { return value(std::int64_t{v}); }
  bool number_unsigned(number_unsigned_t v) override {
    if (v > static_cast<number_unsigned_t>(INT64_MAX)) return value(static_cast<double>(v));
    return value(static_cast<std::int64_t>(v));
  }
  bool number_float(number_float_t v, const string_t&) override { return value(double{v}); }
  bool string(string_t& v) override { return value(std::move(v)); }
  bool binary(binary_t&) override { return false; }  // JSON text has none

  bool start_object(std::size_t) override { return open(JsonValue::Members{}); }
  bool start_array(std::size_t) override { return open(JsonValue::Items{}); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& v) override {
    const JsonPosition position = cursor_.take_token();
    Frame& frame = stack_.back();
    if (!frame.keys.insert(v).second) return fault(position, "duplicate key " + quote(v));
    frame.pending_key = std::move(v);
    frame.pending_position = position;
    state_ = State::colon;
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
    syntax_fault();
    return false;
  }

  // Call after the parser has accepted the text: it takes a zero byte for the end of input.
  Result<JsonValue> finish(bool accepted) {
    if (accepted && error_.empty()) {
      cursor_.skip_blanks();
      if (cursor_.at_end()) return std::move(root_);
      state_ = State::done;
      syntax_fault();
    }
    return fail(Error::Kind::usage, error_);
  }

 private:
  // What may come next.
  enum class State { value, value_or_close, key_or_close, colon, comma_or_close, done };

  struct Frame {
    JsonValue value;
    bool is_object = false;
    std::unordered_set<std::string> keys;
    std::string pending_key;
    JsonPosition pending_position;
  };

  bool fault(const JsonPosition& position, const std::string& message) {
    if (error_.empty()) error_ = fmt::format("{}:{}:{}: {}", name_, position.line, position.column, message);
    return false;
  }

  template <class T>
  bool value(T&& data) {
    JsonValue value;
    value.position = cursor_.take_token();
    value.data = std::forward<T>(data);
    return add(std::move(value));
  }

  template <class T>
  bool open(T&& data) {
    Frame frame;
    frame.value.position = cursor_.take_token();
    if (static_cast<int>(stack_.size()) >= kMaxJsonDepth) {
      return fault(frame.value.position, fmt::format("nested deeper than {} levels", kMaxJsonDepth));
    }
    frame.value.data = std::forward<T>(data);
    frame.is_object = frame.value.is_object();
    state_ = frame.is_object ? State::key_or_close : State::value_or_close;
    stack_.push_back(std::move(frame));
    return true;
  }

  bool close() {
    cursor_.take_token();
    JsonValue value = std::move(stack_.back().value);
    stack_.pop_back();
    return add(std::move(value));
  }

  bool add(JsonValue value) {
    if (++count_ > kMaxJsonValues) return fault(value.position, fmt::format("more than {} values", kMaxJsonValues));
    if (stack_.empty()) {
      root_ = std::move(value);
      state_ = State::done;
      return true;
    }
    Frame& frame = stack_.back();
    if (frame.is_object) {
      std::get<JsonValue::Members>(frame.value.data)
          .push_back(JsonMember{std::move(frame.pending_key), frame.pending_position, std::move(value)});
    } else {
      std::get<JsonValue::Items>(frame.value.data).push_back(std::move(value));
    }
    state_ = State::comma_or_close;
    return true;
  }

  // Says what the parser stumbled over: the token behind the last event, judged by what may come there.
  void syntax_fault() {
    cursor_.skip_blanks();
    const char* close = !stack_.empty() && stack_.back().is_object ? "'}'" : "']'";
    std::string expected;
    switch (state_) {
      case State::value:
        expected = "a value";
        break;
      case State::value_or_close:
        expected = "a value or ']'";
        break;
      case State::key_or_close:
        expected = "a key or '}'";
        break;
      case State::done:
        expected = "the end of the file";
        break;
      case State::colon:
        expected = "':'";
        if (!cursor_.at_end() && cursor_.peek() == ':') {
          step_over_separator();
          expected = "a value";
        }
        break;
      case State::comma_or_close:
        expected = fmt::format("',' or {}", close);
        if (!cursor_.at_end() && cursor_.peek() == ',') {
          step_over_separator();
          expected = stack_.back().is_object ? "a key" : "a value";
        }
        break;
    }
    const bool value_due = expected == "a value" || expected == "a value or ']'";
    const bool string_due = value_due || expected == "a key" || expected == "a key or '}'";
    if (cursor_.at_end()) {
      fault(cursor_.position(), fmt::format("the file ends where {} is due", expected));
      return;
    }
    const std::size_t start = cursor_.offset();
    if (string_due && cursor_.peek() == '"') {
      const auto [at, what] = string_fault(text_, start);
      cursor_.advance_to(at);
      fault(cursor_.position(), what);
      return;
    }
    std::size_t end = start;
    while (end < text_.size() && is_word(text_[end])) ++end;
    std::string word(text_.substr(start, std::min(end - start, kShownText)));
    if (end - start > kShownText) word += "...";
    std::string message = fmt::format("expected {}, found {}", expected, found(start, word));
    if (value_due && !word.empty()) {
      const char first = word[0];
      if (first == '-' || (first >= '0' && first <= '9')) {
        // A number that the grammar takes whole was refused for its size.
        message = number_length(text_, start) == end - start ? fmt::format("the number {} is too large", word)
                                                             : fmt::format("'{}' is not a JSON number", word);
      } else if (word.find("NaN") == 0 || word.find("nan") == 0 || word.find("Inf") == 0 || word.find("inf") == 0) {
        message += "; JSON has no NaN and no infinity";
      }
    }
    fault(cursor_.position(), message);
  }

  void step_over_separator() {
    cursor_.advance_to(cursor_.offset() + 1);
    cursor_.skip_blanks();
  }

  std::string found(std::size_t offset, const std::string& word) const {
    if (!word.empty()) return '\'' + word + '\'';
    const auto byte = static_cast<unsigned char>(text_[offset]);
    if (byte < 0x20 || byte == 0x7F) return fmt::format("byte 0x{:02x}", byte);
    return '\'' + std::string(text_.substr(offset, std::max<std::size_t>(1, utf8_length(text_, offset)))) + '\'';
  }

  std::string_view text_;
  const std::string& name_;
  Cursor cursor_;
  State state_ = State::value;
  std::vector<Frame> stack_;
  std::size_t count_ = 0;
  JsonValue root_;
  std::string error_;
};

}  // namespace

double JsonValue::as_double() const {
  return is_integer() ? static_cast<double>(std::get<std::int64_t>(data)) : std::get<double>(data);
}

const JsonValue* JsonValue::find(std::string_view key) const {
  for (const JsonMember& member : members()) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

const char* json_kind_name(JsonValue::Kind kind) {
  switch (kind) {
    case JsonValue::Kind::null:
      return "null";
    case JsonValue::Kind::boolean:
      return "a boolean";
    case JsonValue::Kind::integer:
      return "an integer";
    case JsonValue::Kind::number:
      return "a number";
    case JsonValue::Kind::string:
      return "a string";
    case JsonValue::Kind::array:
      return "a list";
    case JsonValue::Kind::object:
      return "an object";
  }
  return "a value";
}

std::string quote(std::string_view text) {
  std::string out = "\"";
  std::size_t end = std::min(text.size(), kShownText * 2);
  while (end < text.size() && end > 0 && is_continuation(text[end])) --end;
  for (const char c : text.substr(0, end)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + (end < text.size() ? "...\"" : "\"");
}

Result<JsonValue> parse_json(std::string_view text, const std::string& name) {
  const auto refuse = [&](std::size_t offset, const std::string& message) {
    Cursor cursor(text);
    cursor.advance_to(offset);
    return fail(Error::Kind::usage,
                fmt::format("{}:{}:{}: {}", name, cursor.position().line, cursor.position().column, message));
  };
  if (text.size() > kMaxJsonBytes) {
    return refuse(0, fmt::format("the file has {} bytes; at most {} are read", text.size(), kMaxJsonBytes));
  }
  if (text.substr(0, 3) == "\xEF\xBB\xBF") return refuse(0, "the file begins with a byte order mark; remove it");
  if (std::all_of(text.begin(), text.end(), is_blank)) return refuse(0, "the file is empty");
  if (const std::size_t bad = first_invalid_utf8(text); bad != std::string_view::npos) {
    return refuse(bad, fmt::format("byte 0x{:02x} is not UTF-8", static_cast<unsigned char>(text[bad])));
  }
  TreeBuilder builder(text, name);
  const bool accepted = nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  return builder.finish(accepted);
}

}  // namespace batchproof
