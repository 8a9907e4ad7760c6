// SPDX-License-Identifier: Apache-2.0
//
// A recipe resolved for a dtype: which words an element is drawn from and what is done to them, for host and device
// alike. What lies outside: pairs of the cancelling recipe (which column or row the words belong to) and files.
#ifndef BATCHPROOF_SRC_NUMERIC_RECIPE_PLAN_H_
#define BATCHPROOF_SRC_NUMERIC_RECIPE_PLAN_H_

#include <cmath>
#include <cstdint>

#include "batchproof/operator.h"
#include "src/numeric/encode.h"
#include "src/numeric/fp8.h"
#include "src/numeric/host_device.h"
#include "src/numeric/normal.h"
#include "src/numeric/philox.h"

namespace batchproof {

struct FillRequest;

// Independent draws for one element.
constexpr std::uint32_t kValueStream = 0;
constexpr std::uint32_t kExponentStream = 1;
constexpr std::uint32_t kVaryingStream = 2;
constexpr std::uint32_t kStreams = 3;

// Exponents of scales and of wide_exponent: 24 binades. `varying` draws one map for as many rows.
constexpr int kWideLow = -16;
constexpr int kWideSpan = 24;

struct RecipePlan {
  enum class Draw : int {
    constant,         // a
    normal,           // a + b * N(0, 1)
    uniform,          // a + b * [0, 1)
    uniform_integer,  // a + 0 .. b - 1
    small_integer,    // -4 .. 4
    e4m3,             // codes, uniform over both signs of the finite magnitudes
    e5m2,
    e2m1
  };
  Draw draw = Draw::constant;
  double a = 1.0;
  double b = 0.0;
  bool absolute = false;
  bool spread = false;  // times 2^e, e uniform in [low, low + span)
  std::int32_t low = 0;
  std::uint32_t span = 1;
  bool varying = false;      // times 2^e of the row's map
  bool significand = false;  // times [1, 2)
  // Then times magnitude, and into [lowest, highest]; infinity and NaN of a constant stay.
  double magnitude = 1.0;
  double lowest = 0.0;
  double highest = 0.0;
};

// Scales follow rules of their own.
bool is_scale(const FillRequest& request);

// For RecipeKind::file only the magnitude and the range.
RecipePlan recipe_plan(const FillRequest& request);

// ---- one element: what the host does in loops over a run, step by step ----

BATCHPROOF_HD inline double unit(std::uint32_t word) { return mul_rn(word, 0x1p-32); }

BATCHPROOF_HD inline double shifted_normal(const RecipePlan& plan, double normal) {
  return plan.a == 0.0 && plan.b == 1.0 ? normal : add_rn(plan.a, mul_rn(plan.b, normal));
}

// The draws that read one word and are no normal values.
BATCHPROOF_HD inline double drawn(const RecipePlan& plan, std::uint32_t word) {
  switch (plan.draw) {
    case RecipePlan::Draw::uniform:
      return add_rn(plan.a, mul_rn(plan.b, unit(word)));
    case RecipePlan::Draw::uniform_integer:
      return add_rn(plan.a, floor(mul_rn(plan.b, unit(word))));
    case RecipePlan::Draw::small_integer:
      return static_cast<int>(below(word, 9)) - 4;
    case RecipePlan::Draw::e4m3: {
      const std::uint32_t draw = below(word, 2 * kE4m3Nan);
      return e4m3_to_float(static_cast<std::uint8_t>(draw < kE4m3Nan ? draw : draw - kE4m3Nan + 0x80u));
    }
    case RecipePlan::Draw::e5m2: {
      const std::uint32_t draw = below(word, 2 * kE5m2Infinity);
      return e5m2_to_float(static_cast<std::uint8_t>(draw < kE5m2Infinity ? draw : draw - kE5m2Infinity + 0x80u));
    }
    case RecipePlan::Draw::e2m1:
      return e2m1_to_float(static_cast<std::uint8_t>(below(word, 16)));
    default:
      return plan.a;
  }
}

BATCHPROOF_HD inline double spread_factor(const RecipePlan& plan, std::uint32_t word) {
  return power_of_two(plan.low + static_cast<int>(below(word, plan.span)));
}

// Per run of 24 rows and column a random affine map of the row's place in the run onto the 24 exponents: any two rows
// of a run differ in every column; columns are independent. `word` is the run's.
BATCHPROOF_HD inline double varying_factor(std::uint32_t place, std::uint32_t word) {
  // The units modulo 24, which are coprime to it, a byte each.
  constexpr std::uint64_t kUnits = 0x1713'110D'0B07'0501u;
  const auto slope = static_cast<std::uint32_t>(kUnits >> (word & 7u) * 8 & 0xFFu);
  const std::uint32_t offset = below(word, kWideSpan);
  return power_of_two(kWideLow + static_cast<int>((slope * place + offset) % kWideSpan));
}

BATCHPROOF_HD inline double significand_factor(std::uint32_t word) { return add_rn(1.0, unit(word)); }

BATCHPROOF_HD inline double within(const RecipePlan& plan, double value) {
  const double scaled = mul_rn(value, plan.magnitude);
  if (plan.draw == RecipePlan::Draw::constant && (scaled != scaled || scaled - scaled != 0.0)) return scaled;
  const double capped = scaled < plan.highest ? scaled : plan.highest;
  return capped > plan.lowest ? capped : plan.lowest;
}

// The whole way from words to the value that is encoded; `exponent` and `varying` are read where the plan asks.
BATCHPROOF_HD inline double element_value(const RecipePlan& plan, std::uint32_t word, std::uint32_t exponent,
                                          std::uint32_t varying, std::uint32_t place) {
  double value =
      plan.draw == RecipePlan::Draw::normal ? shifted_normal(plan, normal_from_word(word)) : drawn(plan, word);
  if (plan.absolute) value = fabs(value);
  if (plan.spread) value = mul_rn(value, spread_factor(plan, exponent));
  if (plan.varying) value = mul_rn(value, varying_factor(place, varying));
  if (plan.significand) value = mul_rn(value, significand_factor(word));
  return within(plan, value);
}

// The code that is stored: floats of 32 bits and less by way of FP32.
BATCHPROOF_HD inline std::uint64_t element_code(bp_dtype dtype, double value) {
  const bool by_float = dtype == BP_FP32 || dtype == BP_BF16 || dtype == BP_FP16 || dtype == BP_E4M3 ||
                        dtype == BP_E5M2 || dtype == BP_E2M1;
  return encode_bits(dtype, by_float ? static_cast<double>(static_cast<float>(value)) : value);
}

}  // namespace batchproof

#endif  // BATCHPROOF_SRC_NUMERIC_RECIPE_PLAN_H_
