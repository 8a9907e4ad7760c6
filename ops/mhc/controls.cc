// SPDX-License-Identifier: Apache-2.0
//
// Defects that public implementations of these operators had, rebuilt on purpose. The README's table says which
// relation must catch which.
#include "ops/mhc/controls.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>
#include <vector>

#include "src/numeric/bf16.h"
#include "src/numeric/divide.h"
#include "src/numeric/fp16.h"

namespace batchproof::mhc {
namespace {

using Defect = Recipe::Defect;

// The row loop of a two-rows-per-block kernel unrolled with its accumulator outside: the second row of a pair starts
// from the sum of the first.
void sum_odd_rows(const MhcSums& sums) {
  for (std::int64_t row = sums.begin + 1; row < sums.end; row += 2) {
    const std::int64_t r = row - sums.begin;
    for (std::int64_t c = 0; c < kMhcMixes; ++c)
      sums.sums[r * kMhcMixes + c] = sums.sums[r * kMhcMixes + c] + sums.sums[(r - 1) * kMhcMixes + c];
    sums.squares[r] = sums.squares[r] + sums.squares[r - 1];
  }
}

float value_at(const MhcSums& sums, std::int64_t hidden, std::int64_t r, std::int64_t k) {
  return bf16_to_float(sums.residual.data[r * sums.residual.row + k / hidden * sums.residual.stream + k % hidden]);
}

// Squares in FP16: infinite beyond |x| = 255.9.
void square_in_fp16(const MhcSums& sums, std::int64_t hidden, std::int64_t columns) {
  for (std::int64_t r = 0; r < sums.end - sums.begin; ++r) {
    float total = 0.0f;
    for (std::int64_t k = 0; k < columns; ++k) {
      const float value = value_at(sums, hidden, r, k);
      total = total + fp16_to_float(float_to_fp16(value * value));
    }
    sums.squares[r] = total;
  }
}

// Segment sums of the squares added in the order in which their blocks happen to arrive: here another one every call.
void square_as_they_arrive(const MhcSums& sums, std::int64_t hidden, std::int64_t columns, std::uint64_t call) {
  const std::int64_t segments = ceil_div(columns, kMhcSegment);
  std::vector<float> segment(static_cast<std::size_t>(segments));
  for (std::int64_t r = 0; r < sums.end - sums.begin; ++r) {
    for (std::int64_t s = 0; s < segments; ++s) {
      float total = 0.0f;
      for (std::int64_t k = s * kMhcSegment; k < std::min((s + 1) * kMhcSegment, columns); ++k) {
        const float value = value_at(sums, hidden, r, k);
        total = std::fma(value, value, total);
      }
      segment[static_cast<std::size_t>(s)] = total;
    }
    float total = 0.0f;
    for (std::int64_t i = 0; i < segments; ++i)
      total = total + segment[(static_cast<std::uint64_t>(i) + call) % static_cast<std::uint64_t>(segments)];
    sums.squares[r] = total;
  }
}

}  // namespace

void apply_defect(const Recipe& recipe, MhcCall* call) {
  const std::int64_t hidden = call->hidden;
  const std::int64_t columns = call->broadcast ? hidden : kMhcStreams * hidden;
  switch (recipe.defect) {
    case Defect::odd_rows:
      if (call->rows >= kMhcFallbackPairs) call->change_sums = sum_odd_rows;
      return;
    case Defect::fp16_squares:
      if (call->rows > kMhcSmallRows)
        call->change_sums = [=](const MhcSums& sums) { square_in_fp16(sums, hidden, columns); };
      return;
    case Defect::arrival_squares: {
      static std::atomic<std::uint64_t> calls{0};
      const std::uint64_t number = calls.fetch_add(1);
      call->change_sums = [=](const MhcSums& sums) { square_as_they_arrive(sums, hidden, columns, number); };
      return;
    }
    case Defect::one_eps:
      call->rms_eps = call->pre_eps;
      return;
    case Defect::comb_transposed:
      std::swap(call->post.comb.first, call->post.comb.second);
      return;
    default:
      return;
  }
}

}  // namespace batchproof::mhc
