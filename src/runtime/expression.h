// SPDX-License-Identifier: Apache-2.0
//
// Symbolic extents and conditions: "ceil_div(K, 64)", "W * M", "M % 128 == 0 && dtype == \"bf16\"".
#ifndef BATCHPROOF_SRC_RUNTIME_EXPRESSION_H_
#define BATCHPROOF_SRC_RUNTIME_EXPRESSION_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "src/runtime/error.h"

namespace batchproof {

// An expression over integers, symbols ([A-Za-z_][A-Za-z0-9_]*), string literals ("x" or 'x', without escapes),
// unary - and !, binary * / %, + -, == != < <= > >= (not chained), &&, ||, parentheses and ceil_div(a, b). From the
// tightest to the loosest, as in C; && and || evaluate their right side only where it decides. A truth value is the
// integer 0 or 1. Arithmetic is exact: `/` must divide without remainder, overflow is an error, `%` and ceil_div need a
// positive divisor (the result of `%` is never negative). Strings know == and != against strings, nothing else.
//
// Errors are of kind usage and name the expression, the column (1-based, in the text given to parse) and the values.
class Expression {
 public:
  using Value = std::variant<std::int64_t, std::string>;
  using Lookup = std::function<std::optional<std::int64_t>(std::string_view symbol)>;
  using ValueLookup = std::function<std::optional<Value>(std::string_view symbol)>;

  static Result<Expression> parse(std::string_view text);

  // The value over integer symbols. A symbol that `lookup` does not know is an error; so is a string as the result.
  Result<std::int64_t> evaluate(const Lookup& lookup) const;
  // The value over symbols that may be strings.
  Result<Value> evaluate_value(const ValueLookup& lookup) const;
  // Whether a condition holds: the value, which must be an integer, is not zero.
  Result<bool> evaluate_condition(const ValueLookup& lookup) const;

  // The symbols in order of first appearance, each once.
  std::vector<std::string> symbols() const;
  // The source without surrounding blanks.
  const std::string& text() const { return text_; }
  // Whether the expression is one symbol and nothing else ("M", also "(M)").
  bool is_single_symbol() const;

 private:
  friend class ExpressionParser;

  enum class Op : std::uint8_t {
    integer,    // push `number`
    string,     // push names_[number]
    symbol,     // push the value of names_[number]
    negate,     // unary
    logic_not,  // unary
    truth,      // unary: to 0 or 1
    multiply,
    divide,
    modulo,
    add,
    subtract,
    ceil_div,
    equal,
    not_equal,
    less,
    less_equal,
    greater,
    greater_equal,
    and_then,  // top is zero: leave 0 and jump to `number`; else pop
    or_else    // top is not zero: leave 1 and jump to `number`; else pop
  };
  // Postfix code, so that evaluation needs no recursion however long the text is.
  struct Step {
    Op op;
    int column;  // 1-based
    std::int64_t number;
  };

  Expression() = default;
  tl::unexpected<Error> error(int column, const std::string& what, const ValueLookup& lookup) const;

  std::string text_;
  std::string whole_;  // what parse was given, for messages
  std::vector<Step> code_;
  std::vector<std::string> names_;
};

// A shape: expressions at top-level commas, "M, ceil_div(K, 64), 2". Rank 0 ("") is an error.
Result<std::vector<Expression>> parse_shape(std::string_view text);

// The extents of a shape; a negative extent is an error.
Result<std::vector<std::int64_t>> evaluate_shape(const std::vector<Expression>& shape,
                                                 const Expression::Lookup& lookup);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_RUNTIME_EXPRESSION_H_
