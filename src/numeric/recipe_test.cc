// SPDX-License-Identifier: Apache-2.0
//
// Recipes: names, identity of elements whatever window is asked for, and what each kind promises of its values.
#include "src/numeric/recipe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "src/numeric/dtype.h"
#include "src/numeric/normal.h"
#include "src/numeric/philox.h"

namespace batchproof {
namespace {

FillRequest request(RecipeKind kind, bp_dtype dtype, std::int64_t count) {
  FillRequest r;
  r.spec.kind = kind;
  r.dtype = dtype;
  r.seed = 1;
  r.name = name_hash("x1");
  r.count = count;
  return r;
}

std::vector<unsigned char> bytes_of(const FillRequest& r) {
  std::vector<unsigned char> bytes(dtype_bytes(r.dtype, r.count), 0xA5);
  fill(r, bytes.data());
  return bytes;
}

std::vector<double> values_of(const FillRequest& r) {
  const std::vector<unsigned char> bytes = bytes_of(r);
  std::vector<double> values;
  for (std::int64_t i = 0; i < r.count; ++i) values.push_back(decode_element(r.dtype, bytes.data(), i));
  return values;
}

const RecipeKind kGenerated[] = {RecipeKind::normal,        RecipeKind::uniform,    RecipeKind::constant,
                                 RecipeKind::wide_exponent, RecipeKind::cancelling, RecipeKind::small_integer,
                                 RecipeKind::identity,      RecipeKind::varying,    RecipeKind::checkpoint};

TEST(Recipe, NamesComeBack) {
  ASSERT_EQ(recipe_names().size(), 12u);
  for (const std::string& name : recipe_names()) {
    const auto spec = recipe_from_name(name);
    ASSERT_TRUE(spec.has_value()) << name;
    EXPECT_EQ(recipe_from_name(recipe_name(*spec)), spec) << name;
    if (name != "ID" && name != "VAR") {
      EXPECT_EQ(recipe_name(*spec), name);
    }
  }
  EXPECT_EQ(recipe_from_name("ID")->kind, RecipeKind::identity);
  EXPECT_EQ(recipe_from_name("VAR")->kind, RecipeKind::varying);
  EXPECT_EQ(recipe_from_name("wide_exponent")->kind, RecipeKind::wide_exponent);
}

TEST(Recipe, NamesWithParameters) {
  EXPECT_EQ(*recipe_from_name("normal(0.5, 2)"), (RecipeSpec{RecipeKind::normal, 0.5, 2.0, ""}));
  EXPECT_EQ(*recipe_from_name("uniform(-1,1)"), (RecipeSpec{RecipeKind::uniform, -1.0, 1.0, ""}));
  EXPECT_EQ(*recipe_from_name("constant(-3e-2)"), (RecipeSpec{RecipeKind::constant, -0.03, 1.0, ""}));
  EXPECT_EQ(*recipe_from_name("file(a (1).npy)"), (RecipeSpec{RecipeKind::file, 0.0, 1.0, "a (1).npy"}));
  for (const char* name : {"normal(0,0.02)", "uniform(-5,5)", "constant(0.1)", "file(x.npy)"}) {
    EXPECT_EQ(recipe_name(*recipe_from_name(name)), name);
  }
  for (const char* name :
       {"", "Normal", "id", "normal(", "normal()", "normal(1)", "normal(1,2", "normal(1,2,3)", "normal(1,x)",
        "uniform(1 2)", "constant()", "constant(1,2)", "identity(1)", "file()", "(1)", "normal)", "varying "}) {
    EXPECT_FALSE(recipe_from_name(name).has_value()) << name;
  }
}

TEST(Recipe, NameHashIsStable) {
  EXPECT_EQ(name_hash(""), 0x2D06800538D394C2u);
  EXPECT_NE(name_hash("x1"), name_hash("x2"));
  EXPECT_EQ(name_hash("x1"), name_hash(std::string("x1")));
}

// C3, written out: which word an element has, and what is made of it.
TEST(Recipe, ElementsAreTheDocumentedFunctionOfTheirIdentity) {
  FillRequest r = request(RecipeKind::normal, BP_FP64, 37);
  r.seed = 42;
  r.row = 0x100000005u;
  r.column = 6;
  const std::uint64_t key64 = mix64(42, 0) ^ name_hash("x1");
  const PhiloxKey key = {{static_cast<std::uint32_t>(key64), static_cast<std::uint32_t>(key64 >> 32)}};
  const std::vector<double> normal = values_of(r);
  r.spec.kind = RecipeKind::small_integer;
  const std::vector<double> integer = values_of(r);
  r.spec = {RecipeKind::uniform, -3.0, 5.0, ""};
  const std::vector<double> uniform = values_of(r);
  for (std::uint32_t i = 0; i < 37; ++i) {
    const std::uint32_t column = 6 + i;
    const std::uint32_t word = philox4x32({{column / 4, 0, 5, 1}}, key).word[column % 4];
    EXPECT_EQ(normal[i], normal_from_word(word)) << i;
    EXPECT_EQ(integer[i], static_cast<double>(std::uint64_t{word} * 9 >> 32) - 4.0) << i;
    EXPECT_EQ(uniform[i], -3.0 + 8.0 * (word * 0x1p-32)) << i;
  }
}

// The same (seed, name, row, column) gives the same bytes from whatever window, with pairs and without.
TEST(Recipe, WindowsCutTheSameRow) {
  std::mt19937 random(9);
  constexpr std::int64_t kLength = 704;
  const CancellingPairs elements(5, kLength, 32), odd(6, kLength - 3);
  for (RecipeKind kind : kGenerated) {
    for (bp_dtype dtype : all_dtypes()) {
      for (int setup = 0; setup < 6; ++setup) {
        FillRequest r = request(kind, dtype, kLength);
        r.row = 3 + static_cast<std::uint64_t>(setup);
        r.scale = setup == 1 || setup == 3;
        r.pairs = setup == 2 || setup == 3 ? &elements : setup >= 4 ? &odd : nullptr;
        r.negate_along_column = setup == 4;
        r.negate_along_row = setup == 5;
        r.magnitude = setup == 0 ? 3.0 : 1.0;
        const std::vector<unsigned char> whole = bytes_of(r);
        for (int window = 0; window < 12; ++window) {
          FillRequest part = r;
          part.column = random() % kLength;
          part.count = 1 + random() % (window < 6 ? 9 : kLength);
          part.count = std::min(part.count, kLength - part.column);
          if (dtype_bits(dtype) == 4) {
            part.column &= ~std::int64_t{1};
            part.count = std::max<std::int64_t>(2, part.count & ~std::int64_t{1});
          }
          const std::vector<unsigned char> cut = bytes_of(part);
          ASSERT_EQ(std::memcmp(cut.data(), whole.data() + dtype_bytes(dtype, part.column), cut.size()), 0)
              << recipe_name(r.spec) << ' ' << dtype_name(dtype) << " setup " << setup << " column " << part.column
              << " count " << part.count;
        }
      }
    }
  }
}

TEST(Recipe, SeedNameAndRowEachChangeTheContent) {
  for (RecipeKind kind : kGenerated) {
    if (kind == RecipeKind::constant || kind == RecipeKind::identity) continue;
    for (bp_dtype dtype : {BP_FP32, BP_BF16, BP_FP16, BP_E4M3, BP_E8M0}) {
      if (dtype == BP_E8M0 && kind == RecipeKind::small_integer) continue;  // exact scales are 1
      FillRequest r = request(kind, dtype, 128);
      r.reduction_input = true;
      const std::vector<unsigned char> base = bytes_of(r);
      FillRequest other = r;
      other.seed = 2;
      EXPECT_NE(bytes_of(other), base) << recipe_name(r.spec) << dtype_name(dtype);
      other = r;
      other.name = name_hash("x2");
      EXPECT_NE(bytes_of(other), base) << recipe_name(r.spec) << dtype_name(dtype);
      other = r;
      other.row = 1;
      EXPECT_NE(bytes_of(other), base) << recipe_name(r.spec) << dtype_name(dtype);
      EXPECT_EQ(bytes_of(r), base);
    }
  }
}

TEST(Recipe, NeverMakesNanOrInfinity) {
  for (RecipeKind kind : kGenerated) {
    for (bp_dtype dtype : all_dtypes()) {
      for (double magnitude : {1.0, 1e4, 1e-4, 1e300, static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
        for (bool scale : {false, true}) {
          FillRequest r = request(kind, dtype, 512);
          r.magnitude = magnitude;
          r.scale = scale;
          r.reduction_input = true;
          for (double value : values_of(r)) {
            ASSERT_TRUE(std::isfinite(value)) << recipe_name(r.spec) << ' ' << dtype_name(dtype) << ' ' << magnitude;
          }
        }
      }
    }
  }
  for (double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY), -static_cast<double>(INFINITY), 1e308}) {
    for (RecipeKind kind : {RecipeKind::normal, RecipeKind::uniform}) {
      for (bp_dtype dtype : all_dtypes()) {
        FillRequest r = request(kind, dtype, 64);
        r.spec.lo = bad;
        r.spec.hi = -bad;
        for (double value : values_of(r)) ASSERT_TRUE(std::isfinite(value)) << dtype_name(dtype) << ' ' << bad;
      }
    }
  }
}

TEST(Recipe, MagnitudeMultipliesBeforeRoundingAndSaturates) {
  FillRequest r = request(RecipeKind::normal, BP_FP64, 400);
  const std::vector<double> base = values_of(r);
  for (bp_dtype dtype : {BP_FP32, BP_BF16, BP_FP16, BP_E4M3, BP_INT8}) {
    r.dtype = dtype;
    int saturated = 0;
    for (double magnitude : {1e-4, 1e-2, 3.0, 1e4, 1e6}) {
      r.magnitude = magnitude;
      const std::vector<double> values = values_of(r);
      for (std::size_t i = 0; i < base.size(); ++i) {
        const double exact = std::clamp(base[i] * magnitude, lowest_value(dtype), largest_value(dtype));
        std::uint64_t bits = 0;
        encode_element(dtype, dtype == BP_INT8 ? exact : static_cast<float>(exact), &bits, 0);
        ASSERT_EQ(values[i], decode_element(dtype, &bits, 0)) << dtype_name(dtype) << ' ' << magnitude << ' ' << i;
        if (std::fabs(values[i]) == largest_value(dtype)) ++saturated;
      }
    }
    EXPECT_EQ(saturated > 0, dtype_bits(dtype) <= 8 || dtype == BP_FP16) << dtype_name(dtype);
  }
  r.dtype = BP_FP32;
  r.scale = true;
  r.magnitude = 1.0;
  const std::vector<double> scales = values_of(r);
  r.magnitude = 1000.0;
  EXPECT_EQ(values_of(r), scales) << "scales ignore it";
}

TEST(Recipe, NormalAndUniformHaveTheirMoments) {
  FillRequest r = request(RecipeKind::normal, BP_FP32, 100000);
  r.spec.lo = 3.0;
  r.spec.hi = 0.5;
  double sum = 0.0, squares = 0.0;
  for (double value : values_of(r)) sum += value, squares += (value - 3.0) * (value - 3.0);
  EXPECT_NEAR(sum / 1e5, 3.0, 0.01);
  EXPECT_NEAR(squares / 1e5, 0.25, 0.006);
  r.spec = {RecipeKind::uniform, -2.0, 6.0, ""};
  sum = 0.0;
  double low = 9.0, high = -9.0;
  for (double value : values_of(r)) sum += value, low = std::min(low, value), high = std::max(high, value);
  EXPECT_NEAR(sum / 1e5, 2.0, 0.04);
  EXPECT_GE(low, -2.0);
  EXPECT_LT(low, -1.99);
  EXPECT_LT(high, 6.0);
  EXPECT_GT(high, 5.99);
}

TEST(Recipe, UniformOverIntegersTakesEachOne) {
  FillRequest r = request(RecipeKind::uniform, BP_INT8, 20000);
  const auto distinct = [&](double lo, double hi) {
    r.spec.lo = lo;
    r.spec.hi = hi;
    const std::vector<double> values = values_of(r);
    return std::set<double>(values.begin(), values.end());
  };
  EXPECT_EQ(distinct(-2, 3), (std::set<double>{-2, -1, 0, 1, 2}));
  EXPECT_EQ(distinct(-0.5, 2.5), (std::set<double>{0, 1, 2}));
  EXPECT_EQ(distinct(4, 4), (std::set<double>{4}));
  const std::set<double> all = distinct(-1000, 1000);
  EXPECT_EQ(all.size(), 256u);
  EXPECT_EQ(*all.begin(), -128.0);
}

TEST(Recipe, ConstantIsWrittenAsItIs) {
  FillRequest r = request(RecipeKind::constant, BP_BF16, 3);
  r.spec.lo = -1.5;
  EXPECT_EQ(values_of(r), (std::vector<double>{-1.5, -1.5, -1.5}));
  r.spec.lo = 1e39;
  EXPECT_EQ(values_of(r)[0], largest_value(BP_BF16)) << "finite values saturate";
  r.spec.lo = -INFINITY;
  EXPECT_EQ(values_of(r)[2], -INFINITY);
  r.spec.lo = NAN;
  EXPECT_EQ(bytes_of(r), (std::vector<unsigned char>{0xC0, 0x7F, 0xC0, 0x7F, 0xC0, 0x7F}));
}

TEST(Recipe, SmallIntegersAreAllOfMinusFourToFour) {
  for (bp_dtype dtype : {BP_FP32, BP_BF16, BP_FP16, BP_E4M3, BP_INT8, BP_INT4}) {
    const std::vector<double> values = values_of(request(RecipeKind::small_integer, dtype, 2000));
    EXPECT_EQ(std::set<double>(values.begin(), values.end()), (std::set<double>{-4, -3, -2, -1, 0, 1, 2, 3, 4}))
        << dtype_name(dtype);
  }
}

TEST(Recipe, WideExponentSpansItsBinades) {
  for (bp_dtype dtype : {BP_FP32, BP_BF16, BP_FP16}) {
    const bool fp16 = dtype == BP_FP16;
    double largest = 0.0, squares = 0.0;
    int low = 0, high = 0;
    const std::vector<double> values = values_of(request(RecipeKind::wide_exponent, dtype, 60000));
    for (double value : values) {
      largest = std::max(largest, std::fabs(value));
      if (std::fabs(value) < (fp16 ? 0x1p-11 : 0x1p-15)) ++low;
      if (std::fabs(value) > (fp16 ? 0x1p-1 : 0x1p7)) ++high;
      squares += value * value;
    }
    EXPECT_GT(low, 60000 / 24 / 2) << dtype_name(dtype);
    EXPECT_GT(high, 60000 / 24 / 5) << dtype_name(dtype);
    EXPECT_LT(largest, 6.4 * (fp16 ? 0x1p-1 : 0x1p7)) << dtype_name(dtype);
    // The worst sum of 2048 products of FP16 inputs stays finite in FP16.
    if (fp16) {
      EXPECT_LT(2048 * largest * largest, 65504.0);
      EXPECT_LT(2048 * (6.4 * 0x1p-1) * (6.4 * 0x1p-1), 65504.0);
    }
    EXPECT_GT(squares, 0.0);
  }
}

TEST(Recipe, WideExponentTakesEveryFiniteCode) {
  const std::pair<bp_dtype, std::size_t> expected[] = {{BP_E4M3, 254},  {BP_E5M2, 248}, {BP_INT8, 256},
                                                       {BP_UINT8, 256}, {BP_INT4, 16},  {BP_E2M1, 16}};
  for (const auto& [dtype, count] : expected) {
    const FillRequest r = request(RecipeKind::wide_exponent, dtype, 20000);
    const std::vector<unsigned char> bytes = bytes_of(r);
    std::set<std::uint64_t> codes;
    for (std::int64_t i = 0; i < r.count; ++i) {
      codes.insert(load_bits(dtype, bytes.data(), i));
      ASSERT_TRUE(std::isfinite(decode_element(dtype, bytes.data(), i)));
    }
    EXPECT_EQ(codes.size(), count) << dtype_name(dtype);
  }
}

TEST(Recipe, IdentityIsOne) {
  for (bp_dtype dtype : all_dtypes()) {
    for (bool scale : {false, true}) {
      FillRequest r = request(RecipeKind::identity, dtype, 40);
      r.scale = scale;
      for (double value : values_of(r)) EXPECT_EQ(value, 1.0) << dtype_name(dtype);
    }
  }
  EXPECT_EQ(bytes_of(request(RecipeKind::identity, BP_E8M0, 1))[0], 127);
}

TEST(Recipe, VaryingSpansTwentyFourBinadesAndDiffersPerRow) {
  for (bp_dtype dtype : {BP_E8M0, BP_FP32}) {
    std::vector<std::vector<double>> rows;
    std::set<double> all;
    for (std::uint64_t row = 0; row < 48; ++row) {
      FillRequest r = request(RecipeKind::varying, dtype, 16);
      r.scale = true;
      r.row = row;
      rows.push_back(values_of(r));
      for (double value : rows.back()) {
        int exponent = 0;
        ASSERT_EQ(std::frexp(value, &exponent), 0.5) << "a power of two";
        ASSERT_GE(exponent - 1, -16);
        ASSERT_LT(exponent - 1, 8);
        all.insert(value);
      }
      EXPECT_GT(std::set<double>(rows.back().begin(), rows.back().end()).size(), 5u) << "row " << row;
    }
    EXPECT_EQ(all.size(), 24u);
    for (std::size_t a = 0; a < 24; ++a) {
      for (std::size_t b = a + 1; b < 24; ++b) {
        for (std::size_t column = 0; column < 16; ++column) {
          ASSERT_NE(rows[a][column], rows[b][column]) << a << ' ' << b << ' ' << column;
        }
      }
    }
    // No other shift of the address reads the same scales: rows are no copies of each other.
    EXPECT_EQ(std::set<std::vector<double>>(rows.begin(), rows.end()).size(), 48u);
  }
}

TEST(Recipe, ScalesArePositive) {
  for (RecipeKind kind : kGenerated) {
    if (kind == RecipeKind::constant || kind == RecipeKind::uniform) continue;
    for (bp_dtype dtype : {BP_E8M0, BP_FP32}) {
      FillRequest r = request(kind, dtype, 500);
      r.scale = true;
      for (double value : values_of(r)) ASSERT_GT(value, 0.0) << recipe_name(r.spec);
    }
  }
  FillRequest r = request(RecipeKind::wide_exponent, BP_FP32, 5000);
  r.scale = true;
  const std::vector<double> values = values_of(r);
  EXPECT_LT(*std::min_element(values.begin(), values.end()), 0x1p-14);
  EXPECT_GT(*std::max_element(values.begin(), values.end()), 0x1p6);
  EXPECT_LT(*std::max_element(values.begin(), values.end()), 0x1p8);
  r.spec = {RecipeKind::normal, 100.0, 0.5, ""};
  for (double value : values_of(r)) EXPECT_NEAR(value, 100.0, 3.3) << "parameters are kept";
}

TEST(Recipe, CheckpointHasTheMagnitudeOfTrainedWeights) {
  double squares = 0.0;
  for (double value : values_of(request(RecipeKind::checkpoint, BP_FP32, 50000))) squares += value * value;
  EXPECT_NEAR(std::sqrt(squares / 50000), 0.02, 0.0005);
}

TEST(Recipe, NothingIsWrittenWhereNothingIsAsked) {
  unsigned char guard = 0xA5;
  FillRequest r = request(RecipeKind::normal, BP_FP32, 0);
  fill(r, &guard);
  r.count = -5;
  fill(r, &guard);
  r.count = 1;
  r.dtype = BP_NONE;
  fill(r, &guard);
  fill_poison(Poison::nan, BP_FP32, 0, &guard);
  EXPECT_EQ(guard, 0xA5);
}

TEST(Recipe, RowsEndWhereTheyShould) {
  for (bp_dtype dtype : all_dtypes()) {
    for (std::int64_t count : {1, 2, 31, 32, 33, 255, 256, 257, 1000}) {
      if (dtype_bits(dtype) == 4 && count % 2 != 0) continue;
      FillRequest r = request(RecipeKind::normal, dtype, count);
      std::vector<unsigned char> bytes(dtype_bytes(dtype, count) + 8, 0xA5);
      fill(r, bytes.data());
      for (std::size_t i = bytes.size() - 8; i < bytes.size(); ++i) ASSERT_EQ(bytes[i], 0xA5) << dtype_name(dtype);
    }
  }
}

TEST(Poison, WritesTheWorstOfEachDtype) {
  const auto bits = [](Poison poison, bp_dtype dtype) {
    unsigned char bytes[24] = {};
    fill_poison(poison, dtype, 2, bytes);
    EXPECT_EQ(load_bits(dtype, bytes, 0), load_bits(dtype, bytes, 1));
    EXPECT_EQ(bytes[dtype_bytes(dtype, 2)], 0) << "no byte more";
    return load_bits(dtype, bytes, 0);
  };
  EXPECT_EQ(bits(Poison::nan, BP_FP64), 0x7FF8000000000000u);
  EXPECT_EQ(bits(Poison::nan, BP_FP32), 0x7FC00000u);
  EXPECT_EQ(bits(Poison::nan, BP_BF16), 0x7FC0u);
  EXPECT_EQ(bits(Poison::nan, BP_FP16), 0x7E00u);
  EXPECT_EQ(bits(Poison::nan, BP_E4M3), 0x7Fu);
  EXPECT_EQ(bits(Poison::nan, BP_E5M2), 0x7Eu);
  EXPECT_EQ(bits(Poison::nan, BP_E8M0), 0xFFu);
  EXPECT_EQ(bits(Poison::nan, BP_INT8), 0x7Fu) << "no NaN: the largest code";
  EXPECT_EQ(bits(Poison::nan, BP_INT32), 0x7FFFFFFFu);
  EXPECT_EQ(bits(Poison::nan, BP_INT64), 0x7FFFFFFFFFFFFFFFu);
  EXPECT_EQ(bits(Poison::nan, BP_UINT8), 0xFFu);
  EXPECT_EQ(bits(Poison::nan, BP_INT4), 0x7u);
  EXPECT_EQ(bits(Poison::nan, BP_E2M1), 0x7u);
  EXPECT_EQ(bits(Poison::infinity, BP_FP32), 0x7F800000u);
  EXPECT_EQ(bits(Poison::infinity, BP_BF16), 0x7F80u);
  EXPECT_EQ(bits(Poison::infinity, BP_FP16), 0x7C00u);
  EXPECT_EQ(bits(Poison::infinity, BP_E5M2), 0x7Cu);
  EXPECT_EQ(bits(Poison::infinity, BP_E4M3), 0x7Eu) << "no infinity: 448";
  EXPECT_EQ(bits(Poison::infinity, BP_E8M0), 0xFEu);
  for (bp_dtype dtype : all_dtypes()) EXPECT_EQ(bits(Poison::huge, dtype), largest_bits(dtype)) << dtype_name(dtype);
}

}  // namespace
}  // namespace batchproof
