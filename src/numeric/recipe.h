// SPDX-License-Identifier: Apache-2.0
//
// Inputs from identity (C3): an element is a pure function of (seed, hash of the tensor's name, logical row, global
// column). Where the row sits, how many rows there are and how many ranks hold them do not enter.
#ifndef BATCHPROOF_SRC_NUMERIC_RECIPE_H_
#define BATCHPROOF_SRC_NUMERIC_RECIPE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "batchproof/operator.h"

namespace batchproof {

enum class RecipeKind {
  normal,         // N(mean, stddev)
  uniform,        // [lo, hi) before rounding to the dtype; integer dtypes: the integers of [lo, hi)
  constant,       // lo, infinity and NaN included
  wide_exponent,  // floats: normal times 2^e, e over 24 binades (FP16: 12); FP8, E2M1, INT8, INT4: every finite code
  cancelling,     // partner positions along the reduction axis: row inputs equal, weights negated
  small_integer,  // integers in [-4, 4]: every partial sum is exact, on purpose
  identity,       // scales: 1 ("ID")
  varying,        // scales: powers of two over 24 binades along rows, blocks and columns ("VAR")
  checkpoint,     // N(0, 0.02), the magnitude of weights in a trained checkpoint; lo and hi do not enter
  file            // a captured tensor (.npy)
};

class NpyArray;  // npy.h

struct RecipeSpec {
  RecipeKind kind = RecipeKind::normal;
  double lo = 0.0;   // uniform: low; constant: the value; normal: mean
  double hi = 1.0;   // uniform: high; normal: standard deviation
  std::string file;  // file: path of the .npy

  bool operator==(const RecipeSpec&) const = default;
};

// The recipe of a name: "normal", "wide_exponent", ..., "ID" and "VAR" for identity and varying, and the three with
// parameters as "normal(0,2)", "uniform(-1,1)", "constant(3)"; "file(PATH)". Nothing where there is none.
std::optional<RecipeSpec> recipe_from_name(std::string_view name);
// Every plain name, for messages and schemas.
const std::vector<std::string>& recipe_names();
// The name that gives this spec back; parameters only where they are not the defaults.
std::string recipe_name(const RecipeSpec& spec);

// Stable 64-bit hash of a tensor's name (XXH3).
std::uint64_t name_hash(std::string_view name);

// The involution of the cancelling recipe: a seeded random pairing of 0..length-1. One index has no partner where the
// length is odd. For block scales (block > 1) whole blocks are partners, position inside the block kept; a short last
// block has no partner, nor has one of the whole blocks where their number is odd. Blocks longer than 32 are summed by
// themselves before they are scaled: two blocks in equal order would cancel exactly and show nothing, so their lanes
// are permuted against each other, and a block without a partner is paired inside itself.
class CancellingPairs {
 public:
  CancellingPairs(std::uint64_t seed, std::int64_t length, std::int64_t block = 1);
  std::int64_t length() const { return static_cast<std::int64_t>(partner_.size()); }
  std::int64_t block() const { return block_; }
  // Lower member of k's pair: the identity that both members share.
  std::int64_t canonical(std::int64_t k) const { return partner_[k] < k ? partner_[k] : k; }
  // Whether k is the upper member: its weight is negated.
  bool negated(std::int64_t k) const { return partner_[k] < k; }
  bool unpaired(std::int64_t k) const { return partner_[k] == k; }
  // As canonical, for the scale of block b; a block beyond the length (padding) is its own.
  std::int64_t canonical_block(std::int64_t b) const {
    return b * block_ < length() ? canonical(b * block_) / block_ : b;
  }

 private:
  static constexpr std::int64_t kLongestExactBlock = 32;
  void join(std::int64_t a, std::int64_t b);
  void pair_inside(std::uint64_t seed, std::int64_t begin, std::int64_t count);

  std::vector<std::int64_t> partner_;
  std::int64_t block_;
};

// What one run of elements is and where it goes.
struct FillRequest {
  RecipeSpec spec;
  bp_dtype dtype = BP_FP32;
  std::uint64_t seed = 0;
  std::uint64_t name = 0;   // name_hash of the port
  std::uint64_t row = 0;    // identity of the row; for weights: index along the first axis
  std::int64_t column = 0;  // global column of the first element
  std::int64_t count = 0;   // elements
  double magnitude = 1.0;   // multiplies the value before rounding to dtype; saturates; scales ignore it
  bool scale = false;       // the element is a scale (E8M0 or FP32)
  // Not owned. Columns (row inputs) or the row (negate_along_row) run along the reduction axis. A scale's index counts
  // blocks of pairs->block(); scales of partner blocks are equal under every recipe, so pass it for them as well.
  const CancellingPairs* pairs = nullptr;
  bool negate_along_row = false;     // weight whose ROW index is the reduction index: sign and identity from pairs(row)
  bool negate_along_column = false;  // weight whose COLUMN index is the reduction index
  // cancelling without pairs: whether the caller pairs by itself. A tensor that is neither (a bias, a residual) is
  // added to the sum, so it stays as small as what cancelling leaves.
  bool reduction_input = false;
  // file only; not owned, at least one element. Row identity r has captured row r mod rows under base_seed; any other
  // seed gives it another captured row, chosen by hash, where there are at least two. Columns beyond the captured ones
  // start over. Values are rounded to dtype once; captured infinities and NaNs stay. u2 read as BF16, u1 read as FP8,
  // E8M0 or E2M1 are codes, not numbers. NULL: every element is NaN.
  const NpyArray* captured = nullptr;
  std::uint64_t base_seed = 0;
};

// Writes `count` contiguous elements of dtype to `out`. INT4 and E2M1 are written packed; `column` and `count` even.
//
// A value is computed in FP64, multiplied by magnitude, clamped to the finite range of dtype, rounded to FP32 and then
// to dtype (FP64 and integers: once). No recipe but constant and file makes an infinity or a NaN.
//
// Under cancelling, row inputs and weights are N(0, 1) times 2^e, e uniform in [-4, 6) (E4M3: [-8, 7), E5M2: [-14, 7);
// integers: 4; INT4 and E2M1: 1): the exact sum over a pair is zero, most products lose low bits in an FP32 sum, and
// partial sums stay below the FP16 limit up to K = 2048. INT8, INT4 and E2M1 without varying scales sum exactly in FP32
// whatever the order. A weight without a partner is zero. Tensors outside the reduction are N(0, 2^-10).
//
// Scales are positive. identity and small_integer: 1. varying and E8M0 under wide_exponent: 2^e, e in [-16, 8); rows of
// one run of 24 differ in every column. FP32 under wide_exponent: a significand in [1, 2) times that. normal,
// checkpoint: 2^e, e in [-2, 2); cancelling: e in [-8, 8); FP32: a significand times that. uniform, constant, file: as
// they say.
void fill(const FillRequest& request, void* out);

// What poison writes over neighbours, padding, workspace and stale outputs.
enum class Poison { nan, infinity, huge };

// `count` contiguous elements of `dtype`. A dtype without NaN or infinity gets its largest code instead.
void fill_poison(Poison poison, bp_dtype dtype, std::int64_t count, void* out);

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_NUMERIC_RECIPE_H_
