// SPDX-License-Identifier: Apache-2.0
//
// Sizes, names, extremes, and decoding and encoding of every dtype.
#include "src/numeric/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>

#include "src/numeric/bf16.h"
#include "src/numeric/encode.h"
#include "src/numeric/fp16.h"

namespace batchproof {
namespace {

std::uint64_t encode(bp_dtype dtype, double value) {
  std::uint64_t bits = 0;
  encode_element(dtype, value, &bits, 0);
  return bits;
}

double decode(bp_dtype dtype, std::uint64_t bits) { return decode_element(dtype, &bits, 0); }

TEST(Dtype, SizesNamesAndKinds) {
  const struct {
    bp_dtype dtype;
    const char* name;
    int bits;
    bool integer, floating, quantised;
  } expected[] = {
      {BP_FP64, "fp64", 64, false, true, false},   {BP_FP32, "fp32", 32, false, true, false},
      {BP_BF16, "bf16", 16, false, true, false},   {BP_FP16, "fp16", 16, false, true, false},
      {BP_E4M3, "e4m3", 8, false, true, true},     {BP_E5M2, "e5m2", 8, false, true, true},
      {BP_E8M0, "e8m0", 8, false, false, false},   {BP_INT8, "int8", 8, true, false, true},
      {BP_INT32, "int32", 32, true, false, false}, {BP_INT64, "int64", 64, true, false, false},
      {BP_UINT8, "uint8", 8, true, false, false},  {BP_INT4, "int4", 4, true, false, true},
      {BP_E2M1, "e2m1", 4, false, true, true},
  };
  ASSERT_EQ(all_dtypes().size(), std::size(expected));
  for (std::size_t i = 0; i < std::size(expected); ++i) {
    const auto& e = expected[i];
    EXPECT_EQ(all_dtypes()[i], e.dtype);
    EXPECT_STREQ(dtype_name(e.dtype), e.name);
    EXPECT_EQ(dtype_bits(e.dtype), e.bits);
    EXPECT_EQ(is_integer(e.dtype), e.integer) << e.name;
    EXPECT_EQ(is_floating(e.dtype), e.floating) << e.name;
    EXPECT_EQ(is_quantised(e.dtype), e.quantised) << e.name;
    EXPECT_EQ(dtype_from_name(e.name), e.dtype);
    EXPECT_EQ(dtype_bytes(e.dtype, 6), static_cast<std::size_t>(6 * e.bits / 8));
  }
  EXPECT_EQ(dtype_bytes(BP_INT4, 7), 4u);
  EXPECT_EQ(dtype_bytes(BP_FP32, 0), 0u);
  EXPECT_EQ(dtype_bytes(BP_FP32, -3), 0u);
}

TEST(Dtype, NumbersThatAreNoDtype) {
  EXPECT_EQ(dtype_bits(BP_NONE), 0);
  EXPECT_STREQ(dtype_name(BP_NONE), "none");
  for (bp_dtype dtype : {-1, 14, 1000, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(dtype_bits(dtype), 0) << dtype;
    EXPECT_STREQ(dtype_name(dtype), "unknown") << dtype;
    EXPECT_FALSE(canonical_nan_bits(dtype).has_value()) << dtype;
  }
}

TEST(Dtype, NamesThatCaseFilesWrite) {
  const std::pair<const char*, bp_dtype> names[] = {
      {"float16", BP_FP16},        {"bfloat16", BP_BF16},    {"float32", BP_FP32},  {"fp8_e4m3", BP_E4M3},
      {"float8_e4m3fn", BP_E4M3},  {"float8_e5m2", BP_E5M2}, {"FLOAT16", BP_FP16},  {"BF16", BP_BF16},
      {"float8_e8m0fnu", BP_E8M0}, {"fp8_e8m0", BP_E8M0},    {"int64_t", BP_INT64}, {"int", BP_INT32},
      {"half", BP_FP16},           {"double", BP_FP64},      {"float", BP_FP32},    {"float4_e2m1fn_x2", BP_E2M1},
  };
  for (const auto& [name, dtype] : names) EXPECT_EQ(dtype_from_name(name), dtype) << name;
  for (const char* name : {"hif8", "none", "", "fp", "fp322", "bool", "string"}) {
    EXPECT_EQ(dtype_from_name(name), std::nullopt) << name;
  }
}

TEST(Dtype, ExtremesAreWhatTheyDecodeTo) {
  EXPECT_EQ(largest_value(BP_FP64), std::numeric_limits<double>::max());
  EXPECT_EQ(largest_value(BP_FP32), std::numeric_limits<float>::max());
  EXPECT_EQ(largest_value(BP_BF16), 255 * 0x1p120);
  EXPECT_EQ(largest_value(BP_FP16), 65504.0);
  EXPECT_EQ(largest_value(BP_E4M3), 448.0);
  EXPECT_EQ(largest_value(BP_E5M2), 57344.0);
  EXPECT_EQ(largest_value(BP_E8M0), 0x1p127);
  EXPECT_EQ(largest_value(BP_INT8), 127.0);
  EXPECT_EQ(largest_value(BP_INT32), 2147483647.0);
  EXPECT_EQ(largest_value(BP_UINT8), 255.0);
  EXPECT_EQ(largest_value(BP_INT4), 7.0);
  EXPECT_EQ(largest_value(BP_E2M1), 6.0);
  for (bp_dtype dtype : all_dtypes()) {
    EXPECT_EQ(decode(dtype, encode(dtype, lowest_value(dtype))), lowest_value(dtype)) << dtype_name(dtype);
    if (is_floating(dtype)) {
      EXPECT_EQ(lowest_value(dtype), -largest_value(dtype)) << dtype_name(dtype);
    }
    if (const auto nan = canonical_nan_bits(dtype)) {
      EXPECT_TRUE(std::isnan(decode(dtype, *nan))) << dtype_name(dtype);
      EXPECT_EQ(encode(dtype, NAN), *nan) << dtype_name(dtype);
      EXPECT_EQ(encode(dtype, -NAN), *nan) << dtype_name(dtype);
    }
    if (const auto infinity = infinity_bits(dtype)) {
      EXPECT_EQ(decode(dtype, *infinity), INFINITY) << dtype_name(dtype);
    }
  }
  EXPECT_EQ(canonical_nan_bits(BP_FP32), 0x7FC00000u);
  EXPECT_EQ(canonical_nan_bits(BP_BF16), 0x7FC0u);
  EXPECT_EQ(canonical_nan_bits(BP_FP16), 0x7E00u);
  EXPECT_EQ(canonical_nan_bits(BP_FP64), 0x7FF8000000000000u);
  for (bp_dtype dtype : {BP_INT8, BP_INT4, BP_INT32, BP_INT64, BP_UINT8, BP_E2M1, BP_NONE}) {
    EXPECT_FALSE(canonical_nan_bits(dtype).has_value());
  }
  for (bp_dtype dtype : {BP_E4M3, BP_E8M0, BP_INT8, BP_E2M1}) EXPECT_FALSE(infinity_bits(dtype).has_value());
}

// Every pattern of the narrow dtypes that is not a NaN comes back from its own value.
TEST(Dtype, EveryNarrowPatternRoundTrips) {
  for (bp_dtype dtype : all_dtypes()) {
    if (dtype_bits(dtype) > 16) continue;
    for (std::uint64_t bits = 0; bits < std::uint64_t{1} << dtype_bits(dtype); ++bits) {
      const double value = decode(dtype, bits);
      if (std::isnan(value) || (dtype == BP_E5M2 && std::isinf(value))) continue;
      ASSERT_EQ(encode(dtype, value), bits) << dtype_name(dtype);
    }
  }
  EXPECT_EQ(encode(BP_E5M2, INFINITY), 0x7Bu) << "FP8 saturates";
}

TEST(Dtype, IntegersRoundToEvenAndSaturate) {
  EXPECT_EQ(decode(BP_INT8, encode(BP_INT8, 2.5)), 2.0);
  EXPECT_EQ(decode(BP_INT8, encode(BP_INT8, 3.5)), 4.0);
  EXPECT_EQ(decode(BP_INT8, encode(BP_INT8, -2.5)), -2.0);
  EXPECT_EQ(decode(BP_INT8, encode(BP_INT8, -3.5)), -4.0);
  EXPECT_EQ(decode(BP_INT8, encode(BP_INT8, -0.5)), 0.0);
  EXPECT_EQ(decode(BP_INT8, encode(BP_INT8, 0.50001)), 1.0);
  for (bp_dtype dtype : {BP_INT4, BP_INT8, BP_UINT8, BP_INT32}) {
    EXPECT_EQ(decode(dtype, encode(dtype, 1e30)), largest_value(dtype)) << dtype_name(dtype);
    EXPECT_EQ(decode(dtype, encode(dtype, INFINITY)), largest_value(dtype)) << dtype_name(dtype);
    EXPECT_EQ(decode(dtype, encode(dtype, -1e30)), lowest_value(dtype)) << dtype_name(dtype);
    EXPECT_EQ(decode(dtype, encode(dtype, NAN)), 0.0) << dtype_name(dtype);
  }
  EXPECT_EQ(encode(BP_INT64, 1e30), static_cast<std::uint64_t>(INT64_MAX));
  EXPECT_EQ(encode(BP_INT64, -1e30), static_cast<std::uint64_t>(INT64_MIN));
  EXPECT_EQ(encode(BP_INT64, -3.0), static_cast<std::uint64_t>(-3));
  EXPECT_EQ(encode(BP_INT64, 4503599627370497.0), 4503599627370497u);
}

// One rounding, not two: just above a halfway point of BF16 and FP16 by less than FP32 can hold.
TEST(Dtype, RoundsOnce) {
  const double bf16_half = 1.0 + 0x1p-8;
  EXPECT_EQ(encode(BP_BF16, bf16_half), 0x3F80u);
  EXPECT_EQ(encode(BP_BF16, bf16_half + 0x1p-40), 0x3F81u);
  EXPECT_EQ(encode(BP_BF16, -bf16_half - 0x1p-40), 0xBF81u);
  EXPECT_EQ(encode(BP_BF16, bf16_half - 0x1p-40), 0x3F80u);
  const double fp16_half = 1.0 + 0x1p-11;
  EXPECT_EQ(encode(BP_FP16, fp16_half), 0x3C00u);
  EXPECT_EQ(encode(BP_FP16, fp16_half + 0x1p-40), 0x3C01u);
  EXPECT_EQ(encode(BP_FP16, 3 * 0x1p-25), 0x0002u) << "a tie between subnormals";
  EXPECT_EQ(encode(BP_FP16, 3 * 0x1p-25 - 0x1p-60), 0x0001u);
  EXPECT_EQ(encode(BP_E4M3, 1.0625 + 0x1p-40), 0x39u);
  EXPECT_EQ(encode(BP_FP16, 65520.0 - 0x1p-30), 0x7BFFu);
  EXPECT_EQ(encode(BP_FP16, 65520.0), 0x7C00u);
  EXPECT_EQ(encode(BP_BF16, 1e300), 0x7F80u);
  EXPECT_EQ(encode(BP_BF16, 5e-324), 0x0000u);
  EXPECT_EQ(encode(BP_BF16, -5e-324), 0x8000u);
}

TEST(Dtype, NarrowToOddKeepsExactValues) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 100000; ++i) {
    const double value = std::bit_cast<double>((random() & 0x800FFFFFFFFFFFFFu) | (1023 - 160 + random() % 300) << 52);
    const float odd = round_to_odd(value);
    const auto bits = std::bit_cast<std::uint32_t>(odd);
    if (static_cast<double>(odd) == value) continue;
    ASSERT_EQ(bits & 1u, 1u) << value;
    // A neighbour in FP32: the value lies between odd and the next float on its side.
    const float next = std::nextafter(odd, static_cast<double>(odd) < value ? INFINITY : -INFINITY);
    if (std::isfinite(next)) {
      ASSERT_LT(std::min<double>(odd, next), value);
      ASSERT_GT(std::max<double>(odd, next), value);
    }
  }
  EXPECT_EQ(round_to_odd(1.5), 1.5f);
  EXPECT_EQ(round_to_odd(INFINITY), INFINITY);
}

TEST(Dtype, PackedElementsLeaveTheirNeighbour) {
  unsigned char bytes[2] = {0, 0};
  encode_element(BP_INT4, -8, bytes, 0);
  encode_element(BP_INT4, 7, bytes, 1);
  encode_element(BP_INT4, -1, bytes, 2);
  EXPECT_EQ(bytes[0], 0x78) << "low nibble first";
  EXPECT_EQ(bytes[1], 0x0F);
  encode_element(BP_INT4, 3, bytes, 0);
  EXPECT_EQ(bytes[0], 0x73);
  EXPECT_EQ(decode_element(BP_INT4, bytes, 0), 3.0);
  EXPECT_EQ(decode_element(BP_INT4, bytes, 1), 7.0);
  EXPECT_EQ(decode_element(BP_INT4, bytes, 2), -1.0);
  encode_element(BP_E2M1, -6.0, bytes, 3);
  EXPECT_EQ(bytes[1], 0xFF);
  EXPECT_EQ(decode_element(BP_E2M1, bytes, 3), -6.0);
}

TEST(Dtype, ElementsAreIndexed) {
  for (bp_dtype dtype : all_dtypes()) {
    unsigned char bytes[9 * 8] = {};
    for (int i = 0; i < 9; ++i) encode_element(dtype, i % 5, bytes, i);
    for (int i = 0; i < 9; ++i) {
      const double expected = dtype == BP_E8M0 ? decode(dtype, encode(dtype, i % 5)) : i % 5;
      EXPECT_EQ(decode_element(dtype, bytes, i), expected) << dtype_name(dtype) << ' ' << i;
    }
  }
}

}  // namespace
}  // namespace batchproof
