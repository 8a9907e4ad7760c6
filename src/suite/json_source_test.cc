// SPDX-License-Identifier: Apache-2.0
//
// Every message and every position here was written down by counting characters in the text, not by running the code.
#include "src/suite/json_source.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace batchproof {
namespace {

std::string error_of(std::string_view text) {
  const Result<JsonValue> parsed = parse_json(text, "f");
  if (parsed) return "accepted";
  EXPECT_EQ(parsed.error().kind, Error::Kind::usage);
  return parsed.error().message;
}

JsonValue parse(std::string_view text) {
  Result<JsonValue> parsed = parse_json(text, "f");
  EXPECT_TRUE(parsed.has_value()) << (parsed ? "" : parsed.error().message);
  return parsed ? std::move(*parsed) : JsonValue{};
}

std::string place(const JsonPosition& position) {
  return std::to_string(position.line) + ":" + std::to_string(position.column);
}

TEST(JsonSource, KeepsKindsValuesAndKeyOrder) {
  const JsonValue root = parse(R"({"z": null, "a": true, "m": [1, -2, 3.5, 1e2, "t"], "o": {}})");
  ASSERT_EQ(root.members().size(), 4u);
  EXPECT_EQ(root.members()[0].key, "z");
  EXPECT_EQ(root.members()[1].key, "a");
  EXPECT_EQ(root.members()[2].key, "m");
  EXPECT_EQ(root.find("z")->kind(), JsonValue::Kind::null);
  EXPECT_EQ(root.find("a")->kind(), JsonValue::Kind::boolean);
  EXPECT_EQ(root.find("o")->kind(), JsonValue::Kind::object);
  EXPECT_EQ(root.find("nothing"), nullptr);
  const JsonValue::Items& items = root.find("m")->items();
  EXPECT_EQ(std::get<std::int64_t>(items[0].data), 1);
  EXPECT_EQ(std::get<std::int64_t>(items[1].data), -2);
  EXPECT_EQ(std::get<double>(items[2].data), 3.5);
  EXPECT_EQ(items[3].kind(), JsonValue::Kind::number);
  EXPECT_EQ(items[3].as_double(), 100.0);
  EXPECT_EQ(items[1].as_double(), -2.0);
  EXPECT_EQ(items[4].string(), "t");
}

TEST(JsonSource, IntegersStayExactUpToInt64) {
  const JsonValue root =
      parse("[9223372036854775807, -9223372036854775808, 9223372036854775808, -9223372036854775809]");
  EXPECT_EQ(std::get<std::int64_t>(root.items()[0].data), INT64_MAX);
  EXPECT_EQ(std::get<std::int64_t>(root.items()[1].data), INT64_MIN);
  EXPECT_EQ(root.items()[2].kind(), JsonValue::Kind::number);
  EXPECT_EQ(root.items()[2].as_double(), 9223372036854775808.0);
  EXPECT_EQ(root.items()[3].kind(), JsonValue::Kind::number);
}

TEST(JsonSource, PositionsOfKeysAndValues) {
  const JsonValue root = parse("{\n  \"a\" : 12,\n  \"b\": [\"x\", {\"c\":\ttrue}],\n\n\"d\":null}");
  EXPECT_EQ(place(root.position), "1:1");
  const JsonValue::Members& members = root.members();
  EXPECT_EQ(place(members[0].position), "2:3");
  EXPECT_EQ(place(members[0].value.position), "2:9");
  EXPECT_EQ(place(members[1].position), "3:3");
  EXPECT_EQ(place(members[1].value.position), "3:8");
  const JsonValue::Items& items = members[1].value.items();
  EXPECT_EQ(place(items[0].position), "3:9");
  EXPECT_EQ(place(items[1].position), "3:14");
  EXPECT_EQ(place(items[1].members()[0].position), "3:15");
  EXPECT_EQ(place(items[1].members()[0].value.position), "3:20");
  EXPECT_EQ(place(members[2].position), "5:1");
  EXPECT_EQ(place(members[2].value.position), "5:5");
}

TEST(JsonSource, PositionsBehindEscapesAndStructureInsideStrings) {
  // The string holds an escaped quote, an escaped backslash before its end, and , : [ ] { } that are no structure.
  const JsonValue root = parse(R"(["a\",:[]{}\\", "\u0041\n\ud83d\ude00", 7])");
  EXPECT_EQ(root.items()[0].string(), "a\",:[]{}\\");
  EXPECT_EQ(place(root.items()[1].position), "1:17");
  EXPECT_EQ(root.items()[1].string(), "A\n\xF0\x9F\x98\x80");
  EXPECT_EQ(place(root.items()[2].position), "1:41");
}

TEST(JsonSource, ColumnsCountCharactersNotBytes) {
  // One two-byte, one three-byte and one four-byte character in a key.
  const JsonValue root = parse("{\"\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80\": [1]}");
  EXPECT_EQ(root.members()[0].key, "\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80");
  EXPECT_EQ(place(root.members()[0].value.position), "1:9");
}

TEST(JsonSource, LinesEndAtLfAlsoBehindCr) {
  const JsonValue root = parse("[\r\n  1,\r\n  2\r\n]\r\n");
  EXPECT_EQ(place(root.items()[0].position), "2:3");
  EXPECT_EQ(place(root.items()[1].position), "3:3");
}

TEST(JsonSource, ScalarsAreDocuments) {
  EXPECT_EQ(parse(" 5 ").as_double(), 5.0);
  EXPECT_EQ(parse("\"x\"").string(), "x");
  EXPECT_EQ(parse("null").kind(), JsonValue::Kind::null);
}

TEST(JsonSource, EmptyFiles) {
  EXPECT_EQ(error_of(""), "f:1:1: the file is empty");
  EXPECT_EQ(error_of(" \n\t\r\n "), "f:1:1: the file is empty");
}

TEST(JsonSource, ByteOrderMark) {
  EXPECT_EQ(error_of("\xEF\xBB\xBF{}"), "f:1:1: the file begins with a byte order mark; remove it");
}

TEST(JsonSource, NotUtf8) {
  EXPECT_EQ(error_of("[\n \"a\xFF\"]"), "f:2:4: byte 0xff is not UTF-8");
  EXPECT_EQ(error_of("\x89PNG"), "f:1:1: byte 0x89 is not UTF-8");
  EXPECT_EQ(error_of("[\"\xC0\xAF\"]"), "f:1:3: byte 0xc0 is not UTF-8");          // overlong
  EXPECT_EQ(error_of("[\"\xED\xA0\x80\"]"), "f:1:3: byte 0xed is not UTF-8");      // surrogate
  EXPECT_EQ(error_of("[\"\xF4\x90\x80\x80\"]"), "f:1:3: byte 0xf4 is not UTF-8");  // above U+10FFFF
  EXPECT_EQ(error_of("[\"\xE2\x82"), "f:1:3: byte 0xe2 is not UTF-8");             // cut off
}

TEST(JsonSource, ZeroBytesAndBinary) {
  EXPECT_EQ(error_of(std::string_view("\0", 1)), "f:1:1: expected a value, found byte 0x00");
  EXPECT_EQ(error_of(std::string_view("[1]\0[2]", 7)), "f:1:4: expected the end of the file, found byte 0x00");
  EXPECT_EQ(error_of(std::string_view("[1\0]", 4)), "f:1:3: expected ',' or ']', found byte 0x00");
  EXPECT_EQ(error_of("\x7F"
                     "ELF"),
            "f:1:1: expected a value, found byte 0x7f");
}

TEST(JsonSource, DuplicateKeys) {
  EXPECT_EQ(error_of("{\"a\": 1,\n \"b\": 2,\n \"a\": 3}"), "f:3:2: duplicate key \"a\"");
  EXPECT_EQ(error_of(R"({"a": 1, "\u0061": 2})"), "f:1:10: duplicate key \"a\"");
  EXPECT_EQ(error_of(R"({"x\ny": 1, "x\ny": 2})"), "f:1:13: duplicate key \"x\\x0ay\"");
  EXPECT_EQ(error_of(R"([{"a": 1}, {"a": 2}, {"b": {"a": 1}}])"), "accepted");
}

TEST(JsonSource, Truncation) {
  EXPECT_EQ(error_of("{"), "f:1:2: the file ends where a key or '}' is due");
  EXPECT_EQ(error_of("["), "f:1:2: the file ends where a value or ']' is due");
  EXPECT_EQ(error_of("{\"a\""), "f:1:5: the file ends where ':' is due");
  EXPECT_EQ(error_of("{\"a\":"), "f:1:6: the file ends where a value is due");
  EXPECT_EQ(error_of("{\"a\":1"), "f:1:7: the file ends where ',' or '}' is due");
  EXPECT_EQ(error_of("{\"a\":1,\n"), "f:2:1: the file ends where a key is due");
  EXPECT_EQ(error_of("[1,"), "f:1:4: the file ends where a value is due");
  EXPECT_EQ(error_of("[[1]"), "f:1:5: the file ends where ',' or ']' is due");
  EXPECT_EQ(error_of("[\"abc"), "f:1:6: the file ends inside a string");
  EXPECT_EQ(error_of("[\"abc\\"), "f:1:7: the file ends inside a string");
  EXPECT_EQ(error_of("[tru"), "f:1:2: expected a value or ']', found 'tru'");
}

TEST(JsonSource, Structure) {
  EXPECT_EQ(error_of("[1 2]"), "f:1:4: expected ',' or ']', found '2'");
  EXPECT_EQ(error_of("[1,,2]"), "f:1:4: expected a value, found ','");
  EXPECT_EQ(error_of("[,1]"), "f:1:2: expected a value or ']', found ','");
  EXPECT_EQ(error_of("[1,]"), "f:1:4: expected a value, found ']'");
  EXPECT_EQ(error_of("{\"a\":1,}"), "f:1:8: expected a key, found '}'");
  EXPECT_EQ(error_of("{\"a\" 1}"), "f:1:6: expected ':', found '1'");
  EXPECT_EQ(error_of("{\"a\"::1}"), "f:1:6: expected a value, found ':'");
  EXPECT_EQ(error_of("{a:1}"), "f:1:2: expected a key or '}', found 'a'");
  EXPECT_EQ(error_of("{'a':1}"), "f:1:2: expected a key or '}', found '''");
  EXPECT_EQ(error_of("[1}"), "f:1:3: expected ',' or ']', found '}'");
  EXPECT_EQ(error_of("{}\n{}"), "f:2:1: expected the end of the file, found '{'");
  EXPECT_EQ(error_of("[] x"), "f:1:4: expected the end of the file, found 'x'");
  EXPECT_EQ(error_of("[1] // note"), "f:1:5: expected the end of the file, found '/'");
  EXPECT_EQ(error_of("[\xE2\x82\xAC]"), "f:1:2: expected a value or ']', found '\xE2\x82\xAC'");
}

TEST(JsonSource, Numbers) {
  EXPECT_EQ(error_of("[NaN]"), "f:1:2: expected a value or ']', found 'NaN'; JSON has no NaN and no infinity");
  EXPECT_EQ(error_of("[1, Infinity]"), "f:1:5: expected a value, found 'Infinity'; JSON has no NaN and no infinity");
  EXPECT_EQ(error_of("[-Infinity]"), "f:1:2: '-Infinity' is not a JSON number");
  EXPECT_EQ(error_of("[1e999]"), "f:1:2: the number 1e999 is too large");
  EXPECT_EQ(error_of("{\"a\": -1e400}"), "f:1:7: the number -1e400 is too large");
  EXPECT_EQ(error_of("[1.]"), "f:1:2: '1.' is not a JSON number");
  EXPECT_EQ(error_of("[-]"), "f:1:2: '-' is not a JSON number");
  EXPECT_EQ(error_of("[01]"), "f:1:3: expected ',' or ']', found '1'");
  EXPECT_EQ(error_of("[+1]"), "f:1:2: expected a value or ']', found '+1'");
  EXPECT_EQ(error_of(fmt::format("[{:9>400}]", "")), fmt::format("f:1:2: the number {:9>40}... is too large", ""));
  EXPECT_EQ(error_of("[nullx]"), "f:1:6: expected ',' or ']', found 'x'");
  EXPECT_EQ(error_of("[false1]"), "f:1:7: expected ',' or ']', found '1'");
  EXPECT_EQ(error_of("[1.5.2]"), "f:1:5: expected ',' or ']', found '.2'");
  EXPECT_EQ(error_of("[-12.5e+3x]"), "f:1:10: expected ',' or ']', found 'x'");
  EXPECT_EQ(error_of("[0x10]"), "f:1:3: expected ',' or ']', found 'x10'");
}

TEST(JsonSource, Strings) {
  EXPECT_EQ(error_of("[\"a\tb\"]"), "f:1:4: a control character (0x09) inside a string must be escaped");
  EXPECT_EQ(error_of("{\"a\nb\": 1}"), "f:1:4: a control character (0x0a) inside a string must be escaped");
  EXPECT_EQ(error_of(R"(["a\qb"])"), R"(f:1:4: not an escape; strings know \" \\ \/ \b \f \n \r \t and \uXXXX)");
  EXPECT_EQ(error_of(R"([1, "\u12g4"])"), R"(f:1:6: \u needs four hexadecimal digits)");
  EXPECT_EQ(error_of(R"(["\ud800x"])"), R"(f:1:3: half of a surrogate pair; write both halves: \ud83d\ude00)");
  EXPECT_EQ(error_of(R"(["\udc00"])"), R"(f:1:3: half of a surrogate pair; write both halves: \ud83d\ude00)");
}

TEST(JsonSource, Depth) {
  EXPECT_EQ(error_of(std::string(64, '[') + std::string(64, ']')), "accepted");
  EXPECT_EQ(error_of(std::string(65, '[') + std::string(65, ']')), "f:1:65: nested deeper than 64 levels");
  std::string objects;
  for (int i = 0; i < 65; ++i) objects += "{\"a\":";
  EXPECT_EQ(error_of(objects), "f:1:321: nested deeper than 64 levels");
  EXPECT_EQ(error_of(std::string(1 << 20, '[')), "f:1:65: nested deeper than 64 levels");
}

TEST(JsonSource, Size) {
  const std::string big(kMaxJsonBytes + 1, ' ');
  EXPECT_EQ(error_of(big), "f:1:1: the file has 67108865 bytes; at most 67108864 are read");
  std::string many = "[0";
  for (std::size_t i = 1; i < kMaxJsonValues + 1; ++i) many += ",0";
  EXPECT_EQ(error_of(many + "]"), "f:1:8388610: more than 4194304 values");
}

TEST(JsonSource, QuoteKeepsMessagesPrintable) {
  EXPECT_EQ(quote("plain"), "\"plain\"");
  EXPECT_EQ(quote(std::string_view("a\x1B[31m\0", 7)), "\"a\\x1b[31m\\x00\"");
  // Cut between characters, not inside one.
  EXPECT_EQ(quote(fmt::format("{:x>79}\xE2\x82\xAC tail", "")), fmt::format("\"{:x>79}...\"", ""));
}

}  // namespace
}  // namespace batchproof
