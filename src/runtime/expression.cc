// SPDX-License-Identifier: Apache-2.0
//
// Recursive descent into postfix code, and the stack machine that runs it.
#include "src/runtime/expression.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace batchproof {
namespace {

constexpr int kMaxNesting = 64;
constexpr std::size_t kShownText = 120;

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

// Text from a file may be anything; a message stays printable and short.
std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, kShownText)) {
    if (c >= ' ' && c <= '~') {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  if (text.size() > kShownText) out += "...";
  return out;
}

std::string show(const Expression::Value& value) {
  if (const std::int64_t* number = std::get_if<std::int64_t>(&value)) return std::to_string(*number);
  return '"' + printable(std::get<std::string>(value)) + '"';
}

tl::unexpected<Error> syntax_error(std::string_view text, std::size_t offset, const std::string& what) {
  return fail(Error::Kind::usage, fmt::format("expression \"{}\", column {}: {}", printable(text), offset + 1, what));
}

}  // namespace

// Parses whole[begin, end); columns count from the start of `whole`.
class ExpressionParser {
 public:
  ExpressionParser(std::string_view whole, std::size_t begin, std::size_t end)
      : whole_(whole), position_(begin), end_(end) {}

  Result<Expression> parse() {
    skip_blanks();
    const std::size_t first = position_;
    if (!parse_or()) return tl::unexpected<Error>(std::move(error_));
    std::size_t last = end_;
    while (last > first && is_blank(whole_[last - 1])) --last;
    if (position_ < end_) {
      return syntax_error(whole_, position_, fmt::format("unexpected \"{}\"", printable(whole_.substr(position_, 1))));
    }
    out_.text_ = std::string(whole_.substr(first, last - first));
    out_.whole_ = std::string(whole_);
    return std::move(out_);
  }

 private:
  using Op = Expression::Op;

  bool fail_at(std::size_t offset, const std::string& what) {
    error_ = syntax_error(whole_, offset, what).value();
    return false;
  }

  void skip_blanks() {
    while (position_ < end_ && is_blank(whole_[position_])) ++position_;
  }

  bool accept(std::string_view token) {
    if (end_ - position_ < token.size() || whole_.substr(position_, token.size()) != token) return false;
    position_ += token.size();
    skip_blanks();
    return true;
  }

  void emit(Op op, std::size_t offset, std::int64_t number = 0) {
    out_.code_.push_back({op, static_cast<int>(offset) + 1, number});
  }

  std::int64_t name_index(std::string_view name) {
    const auto found = std::find(out_.names_.begin(), out_.names_.end(), name);
    if (found == out_.names_.end()) {
      out_.names_.emplace_back(name);
      return static_cast<std::int64_t>(out_.names_.size()) - 1;
    }
    return found - out_.names_.begin();
  }

  bool parse_or() { return parse_logic("||", Op::or_else, &ExpressionParser::parse_and); }
  bool parse_and() { return parse_logic("&&", Op::and_then, &ExpressionParser::parse_comparison); }

  // a && b && c: every operator jumps past its own right side; the value is made 0 or 1 at the end of each.
  bool parse_logic(std::string_view token, Op op, bool (ExpressionParser::*next)()) {
    if (!(this->*next)()) return false;
    for (std::size_t offset = position_; accept(token); offset = position_) {
      const std::size_t jump = out_.code_.size();
      emit(op, offset);
      if (!(this->*next)()) return false;
      emit(Op::truth, offset);
      out_.code_[jump].number = static_cast<std::int64_t>(out_.code_.size());
    }
    return true;
  }

  bool accept_comparison(Op* op) {
    if (accept("==")) return *op = Op::equal, true;
    if (accept("!=")) return *op = Op::not_equal, true;
    if (accept("<=")) return *op = Op::less_equal, true;
    if (accept(">=")) return *op = Op::greater_equal, true;
    if (accept("<")) return *op = Op::less, true;
    if (accept(">")) return *op = Op::greater, true;
    return false;
  }

  bool parse_comparison() {
    if (!parse_sum()) return false;
    std::size_t offset = position_;
    Op op;
    if (!accept_comparison(&op)) return true;
    if (!parse_sum()) return false;
    emit(op, offset);
    offset = position_;
    if (accept_comparison(&op)) return fail_at(offset, "comparisons do not chain: join two with &&");
    return true;
  }

  bool parse_sum() {
    if (!parse_product()) return false;
    for (;;) {
      const std::size_t offset = position_;
      Op op;
      if (accept("+")) {
        op = Op::add;
      } else if (accept("-")) {
        op = Op::subtract;
      } else {
        return true;
      }
      if (!parse_product()) return false;
      emit(op, offset);
    }
  }

  bool parse_product() {
    if (!parse_unary()) return false;
    for (;;) {
      const std::size_t offset = position_;
      Op op;
      if (accept("*")) {
        op = Op::multiply;
      } else if (accept("/")) {
        op = Op::divide;
      } else if (accept("%")) {
        op = Op::modulo;
      } else {
        return true;
      }
      if (!parse_unary()) return false;
      emit(op, offset);
    }
  }

  // Every way down into a nested expression passes here, so this is where depth is counted.
  bool parse_unary() {
    if (depth_ >= kMaxNesting) {
      return fail_at(position_, fmt::format("nested deeper than {} levels", kMaxNesting));
    }
    ++depth_;
    const bool ok = parse_unary_counted();
    --depth_;
    return ok;
  }

  bool parse_unary_counted() {
    const std::size_t offset = position_;
    if (accept("-")) {
      if (!parse_unary()) return false;
      emit(Op::negate, offset);
      return true;
    }
    if (accept("!")) {
      if (!parse_unary()) return false;
      emit(Op::logic_not, offset);
      return true;
    }
    return parse_primary();
  }

  bool parse_primary() {
    const std::size_t offset = position_;
    if (position_ == end_) return fail_at(offset, "expected a number, a symbol or \"(\", found the end");
    const char c = whole_[position_];
    if (is_digit(c)) return parse_integer();
    if (is_name_start(c)) return parse_name();
    if (c == '"' || c == '\'') return parse_string(c);
    if (accept("(")) {
      if (!parse_or()) return false;
      if (!accept(")")) return fail_at(position_, fmt::format("expected \")\" for \"(\" in column {}", offset + 1));
      return true;
    }
    return fail_at(
        offset, fmt::format("expected a number, a symbol or \"(\", found \"{}\"", printable(whole_.substr(offset, 1))));
  }

  bool parse_integer() {
    const std::size_t offset = position_;
    std::int64_t value = 0;
    for (; position_ < end_ && is_digit(whole_[position_]); ++position_) {
      if (__builtin_mul_overflow(value, std::int64_t{10}, &value) ||
          __builtin_add_overflow(value, std::int64_t{whole_[position_] - '0'}, &value)) {
        return fail_at(offset, "the number does not fit in 64 bits");
      }
    }
    if (position_ < end_ && (is_name_start(whole_[position_]) || whole_[position_] == '.')) {
      return fail_at(offset, "not an integer: a number is decimal digits only");
    }
    skip_blanks();
    emit(Op::integer, offset, value);
    return true;
  }

  bool parse_string(char quote) {
    const std::size_t offset = position_++;
    const std::size_t close = whole_.substr(0, end_).find(quote, position_);
    if (close == std::string_view::npos) return fail_at(offset, "the string has no closing quote");
    const std::string_view content = whole_.substr(position_, close - position_);
    position_ = close + 1;
    skip_blanks();
    emit(Op::string, offset, name_index(content));
    return true;
  }

  bool parse_name() {
    const std::size_t offset = position_;
    while (position_ < end_ && (is_name_start(whole_[position_]) || is_digit(whole_[position_]))) ++position_;
    const std::string_view name = whole_.substr(offset, position_ - offset);
    skip_blanks();
    const bool call = position_ < end_ && whole_[position_] == '(';
    if (name != "ceil_div") {
      if (call) {
        return fail_at(offset, fmt::format("unknown function \"{}\"; there is ceil_div(a, b)", printable(name)));
      }
      emit(Op::symbol, offset, name_index(name));
      return true;
    }
    if (!accept("(")) return fail_at(position_, "expected \"(\" after ceil_div");
    if (!parse_or()) return false;
    if (!accept(",")) return fail_at(position_, "expected \",\" between the two arguments of ceil_div");
    if (!parse_or()) return false;
    if (!accept(")")) return fail_at(position_, "expected \")\" after the two arguments of ceil_div");
    emit(Op::ceil_div, offset);
    return true;
  }

  std::string_view whole_;
  std::size_t position_;
  std::size_t end_;
  int depth_ = 0;
  Expression out_;
  Error error_;
};

Result<Expression> Expression::parse(std::string_view text) { return ExpressionParser(text, 0, text.size()).parse(); }

tl::unexpected<Error> Expression::error(int column, const std::string& what, const ValueLookup& lookup) const {
  std::string values;
  for (const std::string& name : symbols()) {
    const std::optional<Value> value = lookup(name);
    if (value) values += fmt::format("{}{} = {}", values.empty() ? " (" : ", ", name, show(*value));
  }
  if (!values.empty()) values += ')';
  return fail(Error::Kind::usage,
              fmt::format("expression \"{}\", column {}: {}{}", printable(whole_), column, what, values));
}

Result<Expression::Value> Expression::evaluate_value(const ValueLookup& lookup) const {
  std::vector<Value> stack;
  for (std::size_t at = 0; at < code_.size(); ++at) {
    const Step& step = code_[at];
    if (step.op == Op::integer) {
      stack.emplace_back(step.number);
      continue;
    }
    if (step.op == Op::string) {
      stack.emplace_back(names_[step.number]);
      continue;
    }
    if (step.op == Op::symbol) {
      std::optional<Value> value = lookup(names_[step.number]);
      if (!value) return error(step.column, fmt::format("unknown symbol \"{}\"", names_[step.number]), lookup);
      stack.push_back(std::move(*value));
      continue;
    }
    const bool unary = step.op == Op::negate || step.op == Op::logic_not || step.op == Op::truth ||
                       step.op == Op::and_then || step.op == Op::or_else;
    if (unary) {
      std::int64_t* a = std::get_if<std::int64_t>(&stack.back());
      if (a == nullptr) {
        return error(step.column, fmt::format("{} is a string where a number is needed", show(stack.back())), lookup);
      }
      switch (step.op) {
        case Op::negate:
          if (__builtin_sub_overflow(std::int64_t{0}, *a, a)) return error(step.column, "overflow", lookup);
          break;
        case Op::logic_not:
          *a = *a == 0;
          break;
        case Op::truth:
          *a = *a != 0;
          break;
        case Op::and_then:
        case Op::or_else:
          if ((*a != 0) == (step.op == Op::or_else)) {
            *a = *a != 0;
            at = static_cast<std::size_t>(step.number) - 1;
          } else {
            stack.pop_back();
          }
          break;
        default:
          break;
      }
      continue;
    }
    const Value right = std::move(stack.back());
    stack.pop_back();
    const Value left = std::move(stack.back());
    stack.pop_back();
    const bool equality = step.op == Op::equal || step.op == Op::not_equal;
    if (equality && left.index() == right.index()) {
      stack.emplace_back(std::int64_t{(left == right) == (step.op == Op::equal)});
      continue;
    }
    const std::int64_t* a = std::get_if<std::int64_t>(&left);
    const std::int64_t* b = std::get_if<std::int64_t>(&right);
    if (a == nullptr || b == nullptr) {
      return error(
          step.column,
          equality ? fmt::format("cannot compare {} with {}: one is a string, one a number", show(left), show(right))
                   : fmt::format("{} is a string where a number is needed", show(a == nullptr ? left : right)),
          lookup);
    }
    std::int64_t value = 0;
    bool overflow = false;
    switch (step.op) {
      case Op::multiply:
        overflow = __builtin_mul_overflow(*a, *b, &value);
        break;
      case Op::add:
        overflow = __builtin_add_overflow(*a, *b, &value);
        break;
      case Op::subtract:
        overflow = __builtin_sub_overflow(*a, *b, &value);
        break;
      case Op::divide:
        if (*b == 0) return error(step.column, "division by zero", lookup);
        if (*b == -1) {
          overflow = __builtin_sub_overflow(std::int64_t{0}, *a, &value);
        } else if (*a % *b != 0) {
          return error(step.column, fmt::format("{} is not divisible by {}", *a, *b), lookup);
        } else {
          value = *a / *b;
        }
        break;
      case Op::modulo:
      case Op::ceil_div:
        if (*b == 0) return error(step.column, "division by zero", lookup);
        if (*b < 0) return error(step.column, fmt::format("the divisor {} is negative", *b), lookup);
        if (step.op == Op::modulo) {
          value = *a % *b + (*a % *b < 0 ? *b : 0);
        } else {
          value = *a / *b + (*a % *b > 0 ? 1 : 0);
        }
        break;
      case Op::less:
        value = *a < *b;
        break;
      case Op::less_equal:
        value = *a <= *b;
        break;
      case Op::greater:
        value = *a > *b;
        break;
      case Op::greater_equal:
        value = *a >= *b;
        break;
      default:
        return fail(Error::Kind::internal, "expression code is inconsistent");
    }
    if (overflow) return error(step.column, fmt::format("{} and {} overflow 64 bits", *a, *b), lookup);
    stack.emplace_back(value);
  }
  return std::move(stack.back());
}

Result<std::int64_t> Expression::evaluate(const Lookup& lookup) const {
  const ValueLookup values = [&lookup](std::string_view symbol) -> std::optional<Value> {
    const std::optional<std::int64_t> value = lookup(symbol);
    if (!value) return std::nullopt;
    return std::optional<Value>(std::in_place, *value);
  };
  const Result<Value> value = evaluate_value(values);
  if (!value) return tl::unexpected<Error>(value.error());
  if (const std::int64_t* number = std::get_if<std::int64_t>(&*value)) return *number;
  return error(1, fmt::format("the value {} is a string where a number is needed", show(*value)), values);
}

Result<bool> Expression::evaluate_condition(const ValueLookup& lookup) const {
  const Result<Value> value = evaluate_value(lookup);
  if (!value) return tl::unexpected<Error>(value.error());
  if (const std::int64_t* number = std::get_if<std::int64_t>(&*value)) return *number != 0;
  return error(1, fmt::format("the value {} is a string where a condition is needed", show(*value)), lookup);
}

std::vector<std::string> Expression::symbols() const {
  std::vector<std::string> found;
  for (const Step& step : code_) {
    if (step.op != Op::symbol) continue;
    const std::string& name = names_[step.number];
    if (std::find(found.begin(), found.end(), name) == found.end()) found.push_back(name);
  }
  return found;
}

bool Expression::is_single_symbol() const { return code_.size() == 1 && code_[0].op == Op::symbol; }

Result<std::vector<Expression>> parse_shape(std::string_view text) {
  std::vector<Expression> shape;
  std::size_t begin = 0;
  int depth = 0;
  char quote = '\0';
  for (std::size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    if (i < text.size()) {
      if (quote != '\0') {
        if (c == quote) quote = '\0';
        continue;
      }
      if (c == '"' || c == '\'') quote = c;
      if (c == '(') ++depth;
      if (c == ')') --depth;
      if (c != ',' || depth > 0) continue;
    }
    Result<Expression> extent = ExpressionParser(text, begin, i).parse();
    if (!extent) return tl::unexpected<Error>(std::move(extent.error()));
    shape.push_back(std::move(*extent));
    begin = i + 1;
  }
  return shape;
}

Result<std::vector<std::int64_t>> evaluate_shape(const std::vector<Expression>& shape,
                                                 const Expression::Lookup& lookup) {
  std::vector<std::int64_t> extents;
  for (const Expression& expression : shape) {
    const Result<std::int64_t> extent = expression.evaluate(lookup);
    if (!extent) return tl::unexpected<Error>(extent.error());
    if (*extent < 0) {
      return fail(Error::Kind::usage,
                  fmt::format("extent \"{}\" is {}: an extent is never negative", expression.text(), *extent));
    }
    extents.push_back(*extent);
  }
  return extents;
}

}  // namespace batchproof
