// SPDX-License-Identifier: Apache-2.0
//
// Names of recipes, the pairing of the cancelling recipe, and poison. The elements: recipe_fill.cc.
#include "src/numeric/recipe.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <charconv>
#include <cstring>
#include <numeric>
#include <utility>

#include "src/numeric/dtype.h"
#include "src/numeric/seed.h"

namespace batchproof {
namespace {

struct RecipeWord {
  RecipeKind kind;
  const char* name;
  int parameters;  // numbers in parentheses: at most this many, all or none
};

constexpr RecipeWord kWords[] = {
    {RecipeKind::normal, "normal", 2},         {RecipeKind::uniform, "uniform", 2},
    {RecipeKind::constant, "constant", 1},     {RecipeKind::wide_exponent, "wide_exponent", 0},
    {RecipeKind::cancelling, "cancelling", 0}, {RecipeKind::small_integer, "small_integer", 0},
    {RecipeKind::identity, "identity", 0},     {RecipeKind::varying, "varying", 0},
    {RecipeKind::checkpoint, "checkpoint", 0}, {RecipeKind::file, "file", 0},
};

bool parse_number(std::string_view text, double* value) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

}  // namespace

const std::vector<std::string>& recipe_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const RecipeWord& word : kWords) list.emplace_back(word.name);
    list.emplace_back("ID");
    list.emplace_back("VAR");
    return list;
  }();
  return names;
}

std::optional<RecipeSpec> recipe_from_name(std::string_view name) {
  RecipeSpec spec;
  if (name == "ID") {
    spec.kind = RecipeKind::identity;
    return spec;
  }
  if (name == "VAR") {
    spec.kind = RecipeKind::varying;
    return spec;
  }
  const std::size_t open = name.find('(');
  const std::string_view plain = name.substr(0, open);
  for (const RecipeWord& word : kWords) {
    if (plain != word.name) continue;
    spec.kind = word.kind;
    if (open == std::string_view::npos) return spec;
    if (name.back() != ')') return std::nullopt;
    const std::string_view inside = name.substr(open + 1, name.size() - open - 2);
    if (word.kind == RecipeKind::file) {
      if (inside.empty()) return std::nullopt;
      spec.file = inside;
      return spec;
    }
    if (word.parameters == 1 && parse_number(inside, &spec.lo)) return spec;
    const std::size_t comma = inside.find(',');
    if (word.parameters == 2 && comma != std::string_view::npos && parse_number(inside.substr(0, comma), &spec.lo) &&
        parse_number(inside.substr(comma + 1), &spec.hi)) {
      return spec;
    }
    return std::nullopt;
  }
  return std::nullopt;
}

std::string recipe_name(const RecipeSpec& spec) {
  for (const RecipeWord& word : kWords) {
    if (word.kind != spec.kind) continue;
    if (word.kind == RecipeKind::file && !spec.file.empty()) return fmt::format("file({})", spec.file);
    if (word.parameters == 1 && spec.lo != 0.0) return fmt::format("{}({})", word.name, spec.lo);
    if (word.parameters == 2 && (spec.lo != 0.0 || spec.hi != 1.0)) {
      return fmt::format("{}({},{})", word.name, spec.lo, spec.hi);
    }
    return word.name;
  }
  return "unknown";
}

std::uint64_t name_hash(std::string_view name) { return XXH3_64bits(name.data(), name.size()); }

namespace {

// 0 .. count-1 in a seeded random order (Fisher-Yates).
std::vector<std::int64_t> shuffled(std::uint64_t seed, std::int64_t count) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[mix64(seed, i) % i]);
  return order;
}

}  // namespace

CancellingPairs::CancellingPairs(std::uint64_t seed, std::int64_t length, std::int64_t block)
    : block_(block < 1 ? 1 : block) {
  if (length <= 0) return;
  partner_.resize(static_cast<std::size_t>(length));
  std::iota(partner_.begin(), partner_.end(), std::int64_t{0});
  // Shuffle the whole blocks, then take neighbours of the shuffled order as partners.
  const std::vector<std::int64_t> order = shuffled(seed, length / block_);
  const bool lanes_move = block_ > kLongestExactBlock;
  for (std::size_t i = 0; i + 1 < order.size(); i += 2) {
    const std::vector<std::int64_t> lanes = lanes_move ? shuffled(mix64(seed, i), block_) : std::vector<std::int64_t>{};
    for (std::int64_t lane = 0; lane < block_; ++lane)
      join(order[i] * block_ + lane,
           order[i + 1] * block_ + (lanes_move ? lanes[static_cast<std::size_t>(lane)] : lane));
  }
  if (!lanes_move) return;
  if (order.size() % 2 == 1) pair_inside(seed, order.back() * block_, block_);
  pair_inside(seed, length / block_ * block_, length % block_);
}

void CancellingPairs::join(std::int64_t a, std::int64_t b) {
  partner_[static_cast<std::size_t>(a)] = b;
  partner_[static_cast<std::size_t>(b)] = a;
}

void CancellingPairs::pair_inside(std::uint64_t seed, std::int64_t begin, std::int64_t count) {
  const std::vector<std::int64_t> order = shuffled(mix64(seed, static_cast<std::uint64_t>(begin)), count);
  for (std::size_t i = 0; i + 1 < order.size(); i += 2) join(begin + order[i], begin + order[i + 1]);
}

void fill_poison(Poison poison, bp_dtype dtype, std::int64_t count, void* out) {
  if (count <= 0 || dtype_bits(dtype) == 0) return;
  std::uint64_t bits = largest_bits(dtype);
  if (poison == Poison::nan) bits = canonical_nan_bits(dtype).value_or(bits);
  if (poison == Poison::infinity) bits = infinity_bits(dtype).value_or(bits);
  if (dtype_bits(dtype) == 4) bits |= bits << 4;
  if (dtype_bits(dtype) <= 8) {
    std::memset(out, static_cast<int>(bits), dtype_bytes(dtype, count));
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) store_bits(dtype, bits, out, i);
}

}  // namespace batchproof
