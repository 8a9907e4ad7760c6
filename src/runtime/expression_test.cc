// SPDX-License-Identifier: Apache-2.0
#include "src/runtime/expression.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <string>

namespace batchproof {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

std::optional<std::int64_t> numbers(std::string_view symbol) {
  static const std::map<std::string, std::int64_t, std::less<>> values = {
      {"M", 5}, {"K", 128}, {"N", 96}, {"W", 4}, {"zero", 0}, {"_x9", 7}, {"neg", -7}, {"big", kMax}};
  const auto found = values.find(symbol);
  return found == values.end() ? std::nullopt : std::optional(found->second);
}

std::optional<Expression::Value> mixed(std::string_view symbol) {
  if (symbol == "dtype") return Expression::Value(std::string("bf16"));
  if (symbol == "other") return Expression::Value(std::string("fp16"));
  const auto number = numbers(symbol);
  if (!number) return std::nullopt;
  return Expression::Value(*number);
}

// The error text of parsing, or of evaluating what parses; empty where both work.
std::string error_of(const std::string& text) {
  const auto expression = Expression::parse(text);
  if (!expression) return expression.error().message;
  const auto value = expression->evaluate(numbers);
  return value ? "" : value.error().message;
}

std::int64_t value_of(const std::string& text) {
  const auto expression = Expression::parse(text);
  if (!expression) {
    ADD_FAILURE() << expression.error().message;
    return -999;
  }
  const auto value = expression->evaluate(numbers);
  if (!value) {
    ADD_FAILURE() << value.error().message;
    return -999;
  }
  return *value;
}

bool holds(const std::string& text) {
  const auto expression = Expression::parse(text);
  if (!expression) {
    ADD_FAILURE() << expression.error().message;
    return false;
  }
  const auto value = expression->evaluate_condition(mixed);
  if (!value) {
    ADD_FAILURE() << value.error().message;
    return false;
  }
  return *value;
}

TEST(ExpressionTest, Arithmetic) {
  const std::map<std::string, std::int64_t> cases = {
      {"0", 0},
      {"42", 42},
      {"9223372036854775807", kMax},
      {"M", 5},
      {"_x9", 7},
      {" W * M ", 20},
      {"2+3*4", 14},
      {"(2+3)*4", 20},
      {"20-3-2", 15},
      {"K/8/4", 4},
      {"K/(8/4)", 64},
      {"K*N/N", 128},
      {"ceil_div(K, 64)", 2},
      {"ceil_div(K+1,64)", 3},
      {"ceil_div(0, 64)", 0},
      {"ceil_div(neg, 2)", -3},
      {"ceil_div(ceil_div(K, 5), ceil_div(M, 2)) * 2", 18},
      {"-M + 7", 2},
      {"- -M", 5},
      {"3 - -2", 5},
      {"-(2 - 9) * 2", 14},
      {"M % 3", 2},
      {"neg % 5", 3},
      {"-9223372036854775807 - 1", std::numeric_limits<std::int64_t>::min()},
      {"\tM\n", 5},
  };
  for (const auto& [text, value] : cases) EXPECT_EQ(value_of(text), value) << text;
}

TEST(ExpressionTest, Conditions) {
  const std::map<std::string, bool> cases = {
      {"K % 128 == 0", true},
      {"M % 128 == 0", false},
      {"M % 128 == 0 || K % 128 == 0", true},
      {"M == 5 && K != 128", false},
      {"M<5", false},
      {"M<=5", true},
      {"M>4", true},
      {"M>=6", false},
      {"!(M == 5)", false},
      {"!zero", true},
      {"!!M", true},
      {"M", true},
      {"zero", false},
      {"dtype == \"bf16\"", true},
      {"dtype == 'fp16'", false},
      {"dtype != \"fp16\"", true},
      {"dtype != other && 'bf16' == dtype", true},
      {"dtype == \"bf16\" && M * 2 == 10", true},
      {"0 || 0 && 1", false},
      {"1 || 0 && 0", true},
      {"1 || 1 && 0 || 0", true},
      {"(1 || 1) && 0", false},
      {"M + 1 == 2 * 3", true},
  };
  for (const auto& [text, value] : cases) EXPECT_EQ(holds(text), value) << text;
}

TEST(ExpressionTest, ATruthValueIsZeroOrOne) {
  EXPECT_EQ(value_of("M && K"), 1);
  EXPECT_EQ(value_of("M || zero"), 1);
  EXPECT_EQ(value_of("zero || K"), 1);
  EXPECT_EQ(value_of("zero && K"), 0);
  EXPECT_EQ(value_of("(M && K) + (M || K) + !zero"), 3);
  EXPECT_EQ(value_of("M && K && N"), 1);
  EXPECT_EQ(value_of("zero || zero || N"), 1);
}

TEST(ExpressionTest, TheRightSideIsNotEvaluatedWhereItDoesNotDecide) {
  EXPECT_FALSE(holds("M % 2 == 0 && M / 2 > 1"));
  EXPECT_TRUE(holds("M % 2 == 1 || M / 2 > 1"));
  EXPECT_FALSE(holds("zero && missing"));
  EXPECT_TRUE(holds("zero || 1 || missing"));
  EXPECT_NE(error_of("M && missing"), "");
}

TEST(ExpressionTest, ErrorsNameExpressionColumnAndValues) {
  EXPECT_EQ(error_of("K / 3"), "expression \"K / 3\", column 3: 128 is not divisible by 3 (K = 128)");
  EXPECT_EQ(error_of("K / zero"), "expression \"K / zero\", column 3: division by zero (K = 128, zero = 0)");
  EXPECT_EQ(error_of("K % zero"), "expression \"K % zero\", column 3: division by zero (K = 128, zero = 0)");
  EXPECT_EQ(error_of("ceil_div(K, zero)"),
            "expression \"ceil_div(K, zero)\", column 1: division by zero (K = 128, zero = 0)");
  EXPECT_EQ(error_of("ceil_div(K, neg)"),
            "expression \"ceil_div(K, neg)\", column 1: the divisor -7 is negative (K = 128, neg = -7)");
  EXPECT_EQ(error_of("M + missing"), "expression \"M + missing\", column 5: unknown symbol \"missing\" (M = 5)");
  EXPECT_EQ(error_of("big * 2"),
            "expression \"big * 2\", column 5: 9223372036854775807 and 2 overflow 64 bits (big = "
            "9223372036854775807)");
  EXPECT_NE(error_of("big + 1").find("column 5"), std::string::npos);
  EXPECT_NE(error_of("0 - big - 2").find("column 9"), std::string::npos);
  EXPECT_NE(error_of("-(0 - big - 1)").find("overflow"), std::string::npos);
  EXPECT_NE(error_of("(0 - big - 1) / (0 - 1)").find("overflow"), std::string::npos);
  EXPECT_EQ(error_of("'a'"), "expression \"'a'\", column 1: the value \"a\" is a string where a number is needed");
}

TEST(ExpressionTest, SyntaxErrorsPointAtTheColumn) {
  const std::map<std::string, int> cases = {
      {"", 1},
      {"   ", 4},
      {"M +", 4},
      {"M N", 3},
      {"M)", 2},
      {"(M", 3},
      {"M, K", 2},
      {"* M", 1},
      {"M ** 2", 4},
      {"M $", 3},
      {"99999999999999999999", 1},
      {"12ab", 1},
      {"1.5", 1},
      {"foo(M)", 1},
      {"ceil_div", 9},
      {"ceil_div(M)", 11},
      {"ceil_div(M,)", 12},
      {"ceil_div(M, 2", 14},
      {"ceil_div(M, 2, 3)", 14},
      {"M == 5 == 1", 8},
      {"1 < M < 9", 7},
      {"M & K", 3},
      {"M | K", 3},
      {"M = 5", 3},
      {"'bf16", 1},
      {"\"bf16", 1},
      {"M'", 2},
      {"()", 2},
  };
  for (const auto& [text, column] : cases) {
    const auto expression = Expression::parse(text);
    ASSERT_FALSE(expression) << text;
    EXPECT_EQ(expression.error().kind, Error::Kind::usage);
    const std::string where = "column " + std::to_string(column) + ":";
    EXPECT_NE(expression.error().message.find(where), std::string::npos) << expression.error().message;
  }
}

TEST(ExpressionTest, StringsDoNotMixWithNumbers) {
  for (const std::string text : {"dtype == 1", "dtype < other", "dtype + 1", "-dtype", "!dtype", "dtype && 1",
                                 "1 && dtype", "ceil_div(dtype, 2)", "dtype"}) {
    const auto expression = Expression::parse(text);
    ASSERT_TRUE(expression) << text;
    const auto value = expression->evaluate_condition(mixed);
    ASSERT_FALSE(value) << text;
    EXPECT_NE(value.error().message.find("string"), std::string::npos) << value.error().message;
  }
}

TEST(ExpressionTest, NestingIsLimitedAndLengthIsNot) {
  const auto nested = [](int levels) { return std::string(levels, '(') + "M" + std::string(levels, ')'); };
  EXPECT_EQ(value_of(nested(63)), 5);
  EXPECT_NE(error_of(nested(64)).find("nested deeper than 64"), std::string::npos);
  EXPECT_NE(error_of(std::string(100000, '(')).find("nested deeper"), std::string::npos);
  EXPECT_NE(error_of(std::string(100000, '-') + "1").find("nested deeper"), std::string::npos);
  EXPECT_NE(error_of(std::string(100000, '!') + "1").find("nested deeper"), std::string::npos);
  std::string sum = "0";
  for (int i = 0; i < 100000; ++i) sum += "+1";
  EXPECT_EQ(value_of(sum), 100000);
  std::string any = "zero";
  for (int i = 0; i < 20000; ++i) any += "||zero";
  EXPECT_EQ(value_of(any), 0);
}

TEST(ExpressionTest, MessagesStayPrintableAndShort) {
  const std::string message = error_of(std::string("M\x01\xff\0", 4) + std::string(100000, 'x'));
  EXPECT_LT(message.size(), 400u);
  EXPECT_NE(message.find("M\\x01\\xff\\x00xxx"), std::string::npos) << message;
}

TEST(ExpressionTest, SymbolsAndText) {
  const auto expression = Expression::parse("  ceil_div(K, W) + K * M + 'text' == M ");
  ASSERT_TRUE(expression);
  EXPECT_EQ(expression->symbols(), (std::vector<std::string>{"K", "W", "M"}));
  EXPECT_EQ(expression->text(), "ceil_div(K, W) + K * M + 'text' == M");
  EXPECT_FALSE(expression->is_single_symbol());
  EXPECT_TRUE(Expression::parse(" K ")->is_single_symbol());
  EXPECT_TRUE(Expression::parse("(K)")->is_single_symbol());
  EXPECT_FALSE(Expression::parse("-K")->is_single_symbol());
  EXPECT_FALSE(Expression::parse("1")->is_single_symbol());
  EXPECT_FALSE(Expression::parse("'K'")->is_single_symbol());
  // A string literal of the same spelling is not a use of the symbol.
  EXPECT_TRUE(Expression::parse("'K' == 'K'")->symbols().empty());
}

TEST(ExpressionTest, Shapes) {
  const auto shape = parse_shape("M, ceil_div(K, 64) , 2");
  ASSERT_TRUE(shape) << shape.error().message;
  ASSERT_EQ(shape->size(), 3u);
  EXPECT_EQ((*shape)[0].text(), "M");
  EXPECT_EQ((*shape)[1].text(), "ceil_div(K, 64)");
  EXPECT_EQ((*shape)[2].text(), "2");
  const auto extents = evaluate_shape(*shape, numbers);
  ASSERT_TRUE(extents);
  EXPECT_EQ(*extents, (std::vector<std::int64_t>{5, 2, 2}));
  EXPECT_EQ(parse_shape("ceil_div(ceil_div(K, 2), 3)")->size(), 1u);
}

TEST(ExpressionTest, ShapeErrors) {
  for (const std::string text : {"", " ", "M,", ",M", "M,,K", "M, K)", "(M, K", "M; K"}) {
    EXPECT_FALSE(parse_shape(text)) << text;
  }
  // The column counts from the start of the shape, at parsing and at evaluation.
  EXPECT_NE(parse_shape("M, K +").error().message.find("column 7"), std::string::npos);
  const auto divided = evaluate_shape(*parse_shape("M, K / 3"), numbers);
  ASSERT_FALSE(divided);
  EXPECT_EQ(divided.error().message, "expression \"M, K / 3\", column 6: 128 is not divisible by 3 (K = 128)");
  const auto negative = evaluate_shape(*parse_shape("M, M - K"), numbers);
  ASSERT_FALSE(negative);
  EXPECT_EQ(negative.error().message, "extent \"M - K\" is -123: an extent is never negative");
}

// Random text never crashes, and what parses evaluates to the same twice.
TEST(ExpressionTest, MutatedTextNeverCrashes) {
  const std::string seed_text = "ceil_div(K + 2 * M, 64) % 7 == 0 && dtype == \"bf16\" || !(W - -3 >= N / 2), M";
  const std::string alphabet = "()+-*/%=!<>&|,'\" \t09MKx_\x80";
  std::mt19937 random(1);
  int parsed = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = seed_text.substr(random() % seed_text.size(), random() % seed_text.size());
    for (unsigned edits = random() % 4; edits > 0 && !text.empty(); --edits) {
      text[random() % text.size()] = alphabet[random() % alphabet.size()];
    }
    static_cast<void>(parse_shape(text));
    const auto expression = Expression::parse(text);
    if (!expression) continue;
    ++parsed;
    const auto first = expression->evaluate_value(mixed);
    const auto second = expression->evaluate_value(mixed);
    ASSERT_EQ(first.has_value(), second.has_value());
    if (first) {
      ASSERT_EQ(*first, *second) << text;
    }
  }
  EXPECT_GT(parsed, 100);
}

}  // namespace
}  // namespace batchproof
