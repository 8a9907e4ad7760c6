// SPDX-License-Identifier: Apache-2.0
//
// What each recipe means for each dtype.
#include "src/numeric/recipe_plan.h"

#include <algorithm>
#include <cmath>

#include "src/numeric/dtype.h"
#include "src/numeric/recipe.h"

namespace batchproof {
namespace {

using Draw = RecipePlan::Draw;

// FP16: |normal| < 6.4, so 2048 products of two values below 6.4 * 2^-1 sum to less than 21,000.
constexpr int kWideLowFp16 = -12;
constexpr int kWideSpanFp16 = 12;
constexpr int kScaleLow = -2;
constexpr int kScaleSpan = 4;
constexpr int kCancellingScaleLow = -8;
constexpr int kCancellingScaleSpan = 16;
constexpr double kOutsideReductionDeviation = 0x1p-10;
constexpr double kCheckpointDeviation = 0.02;

void spread(RecipePlan* plan, int low, int span) {
  plan->spread = true;
  plan->low = low;
  plan->span = static_cast<std::uint32_t>(span);
}

void normal(RecipePlan* plan, double mean, double deviation) {
  plan->draw = Draw::normal;
  plan->a = mean;
  plan->b = deviation;
}

// cancelling: N(0, 1) times 2^e. An exponent that is spread makes the low bits of most products fall off an FP32 sum,
// also where the product of two short significands would fit: without it the sums of BF16 are often exact up to K =
// 256, and those of FP8 far beyond.
void spread_cancelling(RecipePlan* plan, bp_dtype dtype) {
  switch (dtype) {
    case BP_E4M3:
      return spread(plan, -8, 15);
    case BP_E5M2:
      return spread(plan, -14, 21);
    case BP_E2M1:
    case BP_INT4:
      return spread(plan, 1, 1);
    case BP_INT8:
    case BP_UINT8:
    case BP_INT32:
    case BP_INT64:
      return spread(plan, 4, 1);
    default:
      return spread(plan, -4, 10);
  }
}

// A parameter of a recipe, made harmless: NaN becomes 0, and sums and products with it stay numbers.
double finite_parameter(double value) { return std::isnan(value) ? 0.0 : std::clamp(value, -1e300, 1e300); }

void uniform(RecipePlan* plan, bp_dtype dtype, double lo, double hi) {
  if (is_integer(dtype)) {
    const double low = lowest_value(dtype), end = largest_value(dtype) + 1.0;
    plan->draw = Draw::uniform_integer;
    plan->a = std::ceil(std::clamp(lo, low, end - 1.0));
    plan->b = std::max(1.0, std::ceil(std::clamp(hi, low, end)) - plan->a);
    return;
  }
  const double largest = dtype == BP_FP64 ? 1e300 : largest_value(dtype);
  plan->draw = Draw::uniform;
  plan->a = std::clamp(lo, -largest, largest);
  plan->b = std::clamp(hi, -largest, largest) - plan->a;
}

void wide(RecipePlan* plan, bp_dtype dtype) {
  switch (dtype) {
    case BP_E4M3:
      plan->draw = Draw::e4m3;
      return;
    case BP_E5M2:
      plan->draw = Draw::e5m2;
      return;
    case BP_E2M1:
      plan->draw = Draw::e2m1;
      return;
    case BP_INT4:
    case BP_INT8:
    case BP_UINT8:
      plan->draw = Draw::uniform_integer;
      plan->a = lowest_value(dtype);
      plan->b = dtype == BP_INT4 ? 16 : 256;
      return;
    default:
      break;
  }
  normal(plan, 0.0, 1.0);
  const bool fp16 = dtype == BP_FP16;
  spread(plan, fp16 ? kWideLowFp16 : is_integer(dtype) ? 0 : kWideLow, fp16 ? kWideSpanFp16 : kWideSpan);
}

void of_elements(RecipePlan* plan, const FillRequest& request, double lo, double hi) {
  switch (request.spec.kind) {
    case RecipeKind::normal:
      return normal(plan, lo, hi);
    case RecipeKind::checkpoint:
      return normal(plan, 0.0, kCheckpointDeviation);
    case RecipeKind::wide_exponent:
      return wide(plan, request.dtype);
    case RecipeKind::small_integer:
      plan->draw = Draw::small_integer;
      return;
    case RecipeKind::cancelling:
      if (request.pairs == nullptr && !request.reduction_input) return normal(plan, 0.0, kOutsideReductionDeviation);
      normal(plan, 0.0, 1.0);
      return spread_cancelling(plan, request.dtype);
    default:
      return;
  }
}

// 2^e, e uniform in [low, low + span), times a significand where the dtype has one.
void powers(RecipePlan* plan, bp_dtype dtype, int low, int span) {
  spread(plan, low, span);
  plan->significand = dtype != BP_E8M0;
}

void of_scales(RecipePlan* plan, const FillRequest& request, double lo, double hi) {
  switch (request.spec.kind) {
    case RecipeKind::normal:
      if (lo == 0.0 && hi == 1.0) return powers(plan, request.dtype, kScaleLow, kScaleSpan);
      normal(plan, lo, hi);
      plan->absolute = true;
      return;
    case RecipeKind::checkpoint:
      return powers(plan, request.dtype, kScaleLow, kScaleSpan);
    case RecipeKind::cancelling:
      return powers(plan, request.dtype, kCancellingScaleLow, kCancellingScaleSpan);
    case RecipeKind::wide_exponent:
      plan->varying = true;
      plan->significand = request.dtype != BP_E8M0;
      return;
    default:
      return;
  }
}

}  // namespace

bool is_scale(const FillRequest& request) { return request.scale || request.dtype == BP_E8M0; }

RecipePlan recipe_plan(const FillRequest& request) {
  RecipePlan plan;
  const double lo = finite_parameter(request.spec.lo), hi = finite_parameter(request.spec.hi);
  switch (request.spec.kind) {
    case RecipeKind::uniform:
      uniform(&plan, request.dtype, lo, hi);
      break;
    case RecipeKind::constant:
      plan.a = request.spec.lo;
      break;
    case RecipeKind::varying:
      plan.varying = true;
      break;
    default:
      if (is_scale(request))
        of_scales(&plan, request, lo, hi);
      else
        of_elements(&plan, request, lo, hi);
  }
  plan.magnitude = is_scale(request) ? 1.0 : finite_parameter(request.magnitude);
  plan.highest = largest_value(request.dtype);
  plan.lowest = lowest_value(request.dtype);
  // -128 has no partner in INT8.
  if (request.spec.kind == RecipeKind::cancelling) plan.lowest = std::max(plan.lowest, -plan.highest);
  return plan;
}

}  // namespace batchproof
