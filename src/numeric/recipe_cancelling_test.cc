// SPDX-License-Identifier: Apache-2.0
//
// The cancelling recipe: pairs, exact sums of zero, and that what is left moves with the order of summation where
// ordinary inputs do not (C5: the simulated numbers of the design, reproduced).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "src/numeric/bf16.h"
#include "src/numeric/dtype.h"
#include "src/numeric/fp16.h"
#include "src/numeric/recipe.h"

namespace batchproof {
namespace {

constexpr std::int64_t kRows = 96;

std::vector<double> values_of(const FillRequest& r) {
  std::vector<unsigned char> bytes(dtype_bytes(r.dtype, r.count));
  fill(r, bytes.data());
  std::vector<double> values;
  for (std::int64_t i = 0; i < r.count; ++i) values.push_back(decode_element(r.dtype, bytes.data(), i));
  return values;
}

FillRequest row_input(RecipeKind kind, bp_dtype dtype, std::int64_t length, const CancellingPairs* pairs) {
  FillRequest r;
  r.spec.kind = kind;
  r.dtype = dtype;
  r.seed = 1;
  r.name = name_hash("x1");
  r.count = length;
  r.pairs = pairs;
  return r;
}

// A weight column of K entries: stored (N, K), or column `n` of a weight stored (K, N).
std::vector<double> weight(RecipeKind kind, bp_dtype dtype, std::int64_t length, const CancellingPairs* pairs,
                           bool stored_kn, std::int64_t n) {
  FillRequest r = row_input(kind, dtype, length, pairs);
  r.name = name_hash("x2");
  if (!stored_kn) {
    r.row = static_cast<std::uint64_t>(n);
    r.negate_along_column = true;
    return values_of(r);
  }
  r.negate_along_row = true;
  r.column = n;
  r.count = 1;
  std::vector<double> column;
  for (std::int64_t k = 0; k < length; ++k) {
    r.row = static_cast<std::uint64_t>(k);
    column.push_back(values_of(r)[0]);
  }
  return column;
}

float dot(const std::vector<double>& x, const std::vector<double>& w, const std::vector<std::int64_t>& order) {
  float sum = 0.0f;
  for (std::int64_t k : order) sum = std::fma(static_cast<float>(x[k]), static_cast<float>(w[k]), sum);
  return sum;
}

std::vector<std::int64_t> ascending(std::int64_t length) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(length));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  return order;
}

std::vector<std::int64_t> permuted(std::int64_t length, std::int64_t block, unsigned seed) {
  std::vector<std::int64_t> blocks = ascending(length / block);
  std::mt19937 random(seed);
  std::shuffle(blocks.begin(), blocks.end(), random);
  std::vector<std::int64_t> order;
  for (std::int64_t b : blocks) {
    for (std::int64_t lane = 0; lane < block; ++lane) order.push_back(b * block + lane);
  }
  return order;
}

TEST(CancellingPairs, IsAnInvolutionWithoutFixedPoints) {
  for (std::int64_t length : {2, 4, 128, 1000, 2048}) {
    const CancellingPairs pairs(3, length);
    ASSERT_EQ(pairs.length(), length);
    std::vector<int> members(static_cast<std::size_t>(length), 0);
    std::int64_t negated = 0;
    for (std::int64_t k = 0; k < length; ++k) {
      EXPECT_FALSE(pairs.unpaired(k));
      EXPECT_LE(pairs.canonical(k), k);
      EXPECT_EQ(pairs.canonical(pairs.canonical(k)), pairs.canonical(k));
      EXPECT_EQ(pairs.negated(k), pairs.canonical(k) != k);
      ++members[pairs.canonical(k)];
      negated += pairs.negated(k) ? 1 : 0;
    }
    EXPECT_EQ(negated, length / 2);
    for (int count : members) EXPECT_TRUE(count == 0 || count == 2);
  }
}

TEST(CancellingPairs, OddLengthsLeaveOneAndEdgesWork) {
  const CancellingPairs odd(3, 101);
  int unpaired = 0;
  for (std::int64_t k = 0; k < 101; ++k) unpaired += odd.unpaired(k) ? 1 : 0;
  EXPECT_EQ(unpaired, 1);
  EXPECT_EQ(CancellingPairs(3, 0).length(), 0);
  EXPECT_EQ(CancellingPairs(3, -4).length(), 0);
  EXPECT_TRUE(CancellingPairs(3, 1).unpaired(0));
}

TEST(CancellingPairs, DependsOnTheSeedAndMovesPartnersApart) {
  const CancellingPairs a(1, 512), again(1, 512), b(2, 512);
  int same = 0;
  std::int64_t distance = 0;
  for (std::int64_t k = 0; k < 512; ++k) {
    EXPECT_EQ(a.canonical(k), again.canonical(k));
    same += a.canonical(k) == b.canonical(k) && a.negated(k) && b.negated(k) ? 1 : 0;
    distance += k - a.canonical(k);
  }
  EXPECT_LT(same, 20);
  EXPECT_GT(distance / 256, 100) << "partners are a third of the length apart on average";
}

TEST(CancellingPairs, BlocksStayWhole) {
  const CancellingPairs pairs(4, 32 * 9 + 7, 32);  // nine whole blocks and a short one
  EXPECT_EQ(pairs.block(), 32);
  int unpaired_blocks = 0;
  for (std::int64_t block = 0; block < 10; ++block) {
    const std::int64_t begin = block * 32, end = std::min(begin + 32, pairs.length());
    for (std::int64_t k = begin; k < end; ++k) {
      EXPECT_EQ(pairs.canonical(k) - pairs.canonical(begin), k - begin);
      EXPECT_EQ(pairs.unpaired(k), pairs.unpaired(begin));
    }
    EXPECT_EQ(pairs.canonical_block(block), pairs.canonical(begin) / 32);
    unpaired_blocks += pairs.unpaired(begin) ? 1 : 0;
  }
  EXPECT_TRUE(pairs.unpaired(9 * 32)) << "the short block";
  EXPECT_EQ(unpaired_blocks, 2);
  EXPECT_EQ(pairs.canonical_block(10), 10) << "padding of a scale";
  EXPECT_EQ(pairs.canonical_block(11), 11);
}

TEST(Cancelling, PartnersShareInputsAndNegateWeights) {
  for (bp_dtype dtype : all_dtypes()) {
    if (dtype == BP_UINT8 || dtype == BP_E8M0) continue;  // no sign
    const CancellingPairs pairs(5, 402), odd(5, 401);
    for (const CancellingPairs* p : {&pairs, &odd}) {
      if (dtype_bits(dtype) == 4 && p->length() % 2 != 0) continue;
      const std::int64_t length = p->length();
      const std::vector<double> x = values_of(row_input(RecipeKind::cancelling, dtype, length, p));
      const std::vector<double> nk = weight(RecipeKind::cancelling, dtype, length, p, false, 3);
      int nonzero = 0;
      for (std::int64_t k = 0; k < length; ++k) {
        const std::int64_t c = p->canonical(k);
        EXPECT_EQ(x[k], x[c]) << dtype_name(dtype);
        if (p->unpaired(k)) {
          EXPECT_EQ(nk[k], 0.0);
          EXPECT_FALSE(std::signbit(nk[k]));
        } else {
          EXPECT_EQ(nk[k], p->negated(k) ? -nk[c] : nk[c]) << dtype_name(dtype);
          nonzero += nk[k] != 0.0 && x[k] != 0.0 ? 1 : 0;
        }
      }
      EXPECT_GT(nonzero, length / 2) << dtype_name(dtype);
    }
  }
}

TEST(Cancelling, WeightsStoredEitherWayCancel) {
  const CancellingPairs pairs(6, 129);
  for (bp_dtype dtype : {BP_FP32, BP_BF16, BP_FP16, BP_INT8}) {
    for (std::int64_t n : {0, 5, 63}) {
      const std::vector<double> kn = weight(RecipeKind::cancelling, dtype, 129, &pairs, true, n);
      std::int64_t positive = 0;
      for (std::int64_t k = 0; k < 129; ++k) {
        const std::int64_t c = pairs.canonical(k);
        EXPECT_EQ(kn[k], pairs.unpaired(k) ? 0.0 : pairs.negated(k) ? -kn[c] : kn[c]);
        positive += kn[k] > 0.0 ? 1 : 0;
      }
      EXPECT_NEAR(static_cast<double>(positive), 64.0, 10.0);
    }
  }
}

TEST(Cancelling, TensorsOutsideTheReductionAreSmall) {
  FillRequest bias = row_input(RecipeKind::cancelling, BP_FP32, 4000, nullptr);
  double squares = 0.0;
  for (double value : values_of(bias)) squares += value * value;
  EXPECT_NEAR(std::sqrt(squares / 4000), 0x1p-10, 0x1p-14);
  // A caller that pairs by itself says so and gets the full magnitude.
  bias.reduction_input = true;
  squares = 0.0;
  for (double value : values_of(bias)) squares += value * value;
  double mean = 0.0;  // of 4^e, e in [-4, 6)
  for (int e = -4; e < 6; ++e) mean += std::ldexp(0.1, 2 * e);
  EXPECT_NEAR(std::sqrt(squares / 4000), std::sqrt(mean), 1.5);
}

struct Moved {
  double bf16 = 0.0, fp16 = 0.0, fp32 = 0.0;  // fraction of outputs whose bytes move when K is permuted
  double bf16_rows = 0.0, fp32_rows = 0.0;    // the same for rows of kColumns outputs
  double alive = 0.0;                         // fraction of FP32 outputs that are not zero
  double largest_partial = 0.0;
};

Moved permute(RecipeKind kind, bp_dtype dtype, std::int64_t length) {
  constexpr std::int64_t kColumns = 8;
  const CancellingPairs pairs(7, length);
  const CancellingPairs* used = kind == RecipeKind::cancelling ? &pairs : nullptr;
  const std::vector<std::int64_t> straight = ascending(length), order = permuted(length, 1, 11);
  std::vector<std::vector<double>> weights;
  for (std::int64_t n = 0; n < kColumns; ++n) weights.push_back(weight(kind, dtype, length, used, false, n));
  Moved moved;
  constexpr double kOutput = 1.0 / (kRows * kColumns), kRow = 1.0 / kRows;
  for (std::int64_t row = 0; row < kRows; ++row) {
    FillRequest input = row_input(kind, dtype, length, used);
    input.row = static_cast<std::uint64_t>(row);
    const std::vector<double> x = values_of(input);
    bool bf16_row = false, fp32_row = false;
    for (const std::vector<double>& w : weights) {
      double partial = 0.0;
      for (std::int64_t k = 0; k < length; ++k) {
        if (used != nullptr && pairs.negated(k)) {
          // Products of two FP32 are exact in FP64: the exact sum over the pair is zero.
          EXPECT_EQ(x[k] * w[k] + x[pairs.canonical(k)] * w[pairs.canonical(k)], 0.0);
        }
        partial += x[k] * w[k];
        moved.largest_partial = std::max(moved.largest_partial, std::fabs(partial));
      }
      const float a = dot(x, w, straight), b = dot(x, w, order);
      moved.alive += a != 0.0f ? kOutput : 0.0;
      moved.fp32 += a != b ? kOutput : 0.0;
      moved.fp16 += float_to_fp16(a) != float_to_fp16(b) ? kOutput : 0.0;
      const bool bf16 = float_to_bf16(a) != float_to_bf16(b);
      moved.bf16 += bf16 ? kOutput : 0.0;
      bf16_row = bf16_row || bf16;
      fp32_row = fp32_row || a != b;
    }
    moved.bf16_rows += bf16_row ? kRow : 0.0;
    moved.fp32_rows += fp32_row ? kRow : 0.0;
  }
  return moved;
}

TEST(Cancelling, ResidualMovesWithTheOrderWhereOrdinaryInputsDoNot) {
  for (bp_dtype dtype : {BP_BF16, BP_FP16, BP_FP32}) {
    for (std::int64_t length : {128, 256, 512, 1024, 2048}) {
      SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " K " << length);
      const Moved cancelling = permute(RecipeKind::cancelling, dtype, length);
      EXPECT_GE(cancelling.bf16, 0.85);
      EXPECT_GE(cancelling.fp16, 0.85);
      EXPECT_GE(cancelling.fp32, 0.85);
      EXPECT_GE(cancelling.bf16_rows, 0.97);
      EXPECT_GE(cancelling.alive, 0.9) << "an FP32 sum in order of K is not the exact zero";
      EXPECT_LT(cancelling.largest_partial, 65504.0);
      EXPECT_GT(cancelling.largest_partial, 100.0);
      const Moved ordinary = permute(RecipeKind::normal, dtype, length);
      EXPECT_LE(ordinary.bf16_rows, 0.15);
      EXPECT_GE(ordinary.fp32_rows, 0.97);
    }
  }
}

// small_integer is exact on purpose: no order moves anything.
TEST(Cancelling, SmallIntegersNeverMove) {
  const Moved moved = permute(RecipeKind::small_integer, BP_BF16, 2048);
  EXPECT_EQ(moved.fp32, 0.0);
  EXPECT_GT(moved.alive, 0.9);
}

// MX: codes paired by blocks, scales of partner blocks equal under whatever recipe they have; blocks move whole.
double mx_moved(bp_dtype dtype, RecipeKind scales, std::int64_t length) {
  const CancellingPairs pairs(8, length, 32);
  const std::vector<std::int64_t> straight = ascending(length), order = permuted(length, 32, 12);
  double moved = 0.0;
  for (std::int64_t row = 0; row < kRows; ++row) {
    FillRequest codes = row_input(RecipeKind::cancelling, dtype, length, &pairs);
    codes.row = static_cast<std::uint64_t>(row);
    std::vector<double> x = values_of(codes);
    std::vector<double> w = weight(RecipeKind::cancelling, dtype, length, &pairs, false, row % 7);
    FillRequest scale = row_input(scales, BP_E8M0, length / 32, &pairs);
    scale.scale = true;
    scale.row = static_cast<std::uint64_t>(row);
    scale.name = name_hash("x1_scale");
    const std::vector<double> x_scale = values_of(scale);
    scale.name = name_hash("x2_scale");
    scale.row = static_cast<std::uint64_t>(row % 7);
    scale.negate_along_column = true;
    const std::vector<double> w_scale = values_of(scale);
    for (std::int64_t k = 0; k < length; ++k) {
      const std::int64_t c = pairs.canonical(k);
      EXPECT_EQ(x_scale[k / 32], x_scale[c / 32]);
      EXPECT_EQ(w_scale[k / 32], w_scale[c / 32]) << "never negated";
      x[k] *= x_scale[k / 32];
      w[k] *= w_scale[k / 32];
      if (pairs.negated(k)) {
        EXPECT_EQ(x[k] * w[k], -(x[c] * w[c]));
      }
    }
    moved += float_to_bf16(dot(x, w, straight)) != float_to_bf16(dot(x, w, order)) ? 1.0 / kRows : 0.0;
  }
  return moved;
}

TEST(Cancelling, BlockScaledCodesMoveWhateverTheScales) {
  for (bp_dtype dtype : {BP_E4M3, BP_E5M2}) {
    for (RecipeKind scales : {RecipeKind::varying, RecipeKind::cancelling, RecipeKind::identity}) {
      for (std::int64_t length : {256, 512, 1024}) {
        EXPECT_GE(mx_moved(dtype, scales, length), 0.75)
            << dtype_name(dtype) << ' ' << recipe_name({scales, 0.0, 1.0, ""}) << " K " << length;
      }
    }
  }
  // E2M1 has too few bits of its own: only the scales make its sums inexact.
  EXPECT_GE(mx_moved(BP_E2M1, RecipeKind::cancelling, 1024), 0.75);
  EXPECT_EQ(mx_moved(BP_E2M1, RecipeKind::identity, 1024), 0.0);
}

TEST(Cancelling, ScalesStoredAlongTheReductionPairByBlock) {
  const CancellingPairs pairs(8, 512, 32);
  FillRequest scale = row_input(RecipeKind::varying, BP_E8M0, 8, &pairs);
  scale.scale = true;
  scale.negate_along_row = true;
  std::vector<std::vector<double>> rows;
  for (std::uint64_t block = 0; block < 16; ++block) {
    scale.row = block;
    rows.push_back(values_of(scale));
  }
  for (std::int64_t block = 0; block < 16; ++block) {
    EXPECT_EQ(rows[block], rows[pairs.canonical_block(block)]);
    for (std::int64_t other = 0; other < block; ++other) {
      if (pairs.canonical_block(block) != other) {
        EXPECT_NE(rows[block], rows[other]);
      }
    }
  }
}

}  // namespace
}  // namespace batchproof
