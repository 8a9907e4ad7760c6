// SPDX-License-Identifier: Apache-2.0
//
// The file recipe: which captured row an identity has, and how its elements reach the dtype.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "src/numeric/dtype.h"
#include "src/numeric/npy.h"
#include "src/numeric/recipe.h"

namespace batchproof {
namespace {

template <class T>
NpyArray captured(const std::string& descr, std::int64_t rows, const std::vector<T>& values) {
  const std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}, {})}}", descr, rows,
                                         values.size() / static_cast<std::size_t>(rows));
  std::string bytes = std::string("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(header.size());
  bytes += '\0';
  bytes += header;
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  auto array = NpyArray::parse(bytes, "test");
  EXPECT_TRUE(array.has_value()) << array.error().message;
  return *std::move(array);
}

FillRequest request(const NpyArray& array, bp_dtype dtype, std::int64_t count) {
  FillRequest r;
  r.spec = {RecipeKind::file, 0.0, 1.0, "test"};
  r.dtype = dtype;
  r.seed = r.base_seed = 1;
  r.count = count;
  r.captured = &array;
  return r;
}

std::vector<unsigned char> bytes_of(const FillRequest& r) {
  std::vector<unsigned char> bytes(dtype_bytes(r.dtype, r.count));
  fill(r, bytes.data());
  return bytes;
}

std::vector<double> values_of(const FillRequest& r) {
  const std::vector<unsigned char> bytes = bytes_of(r);
  std::vector<double> values;
  for (std::int64_t i = 0; i < r.count; ++i) values.push_back(decode_element(r.dtype, bytes.data(), i));
  return values;
}

NpyArray numbered(std::int64_t rows, std::int64_t columns) {
  std::vector<float> values;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) values.push_back(static_cast<float>(row * 100 + column));
  }
  return captured("<f4", rows, values);
}

TEST(FileRecipe, TheBaseSeedTakesTheRowsInOrder) {
  const NpyArray array = numbered(5, 3);
  FillRequest r = request(array, BP_FP32, 3);
  for (std::uint64_t row : {0, 1, 4, 5, 12}) {
    r.row = row;
    const double first = static_cast<double>(row % 5) * 100;
    EXPECT_EQ(values_of(r), (std::vector<double>{first, first + 1, first + 2})) << row;
  }
}

TEST(FileRecipe, AnotherSeedTakesAnotherRow) {
  for (std::int64_t rows : {2, 3, 7}) {
    const NpyArray array = numbered(rows, 2);
    FillRequest r = request(array, BP_FP32, 2);
    std::set<double> seen;
    for (std::uint64_t seed = 2; seed < 60; ++seed) {
      for (std::uint64_t row = 0; row < 9; ++row) {
        r.seed = seed;
        r.row = row;
        const double first = values_of(r)[0];
        EXPECT_NE(first, static_cast<double>(row % static_cast<std::uint64_t>(rows)) * 100) << seed << ' ' << row;
        r.name = 77;
        EXPECT_EQ(values_of(r)[0], first) << "codes and scales come from one row";
        if (row == 0) seen.insert(first);
      }
    }
    EXPECT_EQ(seen.size(), static_cast<std::size_t>(rows - 1));
  }
  const NpyArray one = numbered(1, 2);
  FillRequest r = request(one, BP_FP32, 2);
  r.seed = 9;
  EXPECT_EQ(values_of(r), (std::vector<double>{0, 1})) << "there is no other row";
}

TEST(FileRecipe, WindowsAndWrapping) {
  const NpyArray array = numbered(2, 4);
  FillRequest r = request(array, BP_FP32, 3);
  r.row = 1;
  r.column = 2;
  EXPECT_EQ(values_of(r), (std::vector<double>{102, 103, 100}));
}

TEST(FileRecipe, RoundsOnceAndSaturates) {
  const std::vector<double> values = {1.0 + 0x1p-8 + 0x1p-40, 1e300, -1e300, 70000.0, INFINITY, -INFINITY, NAN, -0.0};
  const NpyArray array = captured("<f8", 1, values);
  const std::vector<double> bf16 = values_of(request(array, BP_BF16, 8));
  EXPECT_EQ(bf16[0], 1.0078125);
  EXPECT_EQ(bf16[1], largest_value(BP_BF16));
  EXPECT_EQ(bf16[2], lowest_value(BP_BF16));
  EXPECT_EQ(bf16[4], INFINITY) << "a captured infinity stays";
  EXPECT_EQ(bf16[5], -INFINITY);
  EXPECT_TRUE(std::isnan(bf16[6]));
  EXPECT_TRUE(std::signbit(bf16[7]));
  EXPECT_EQ(values_of(request(array, BP_FP16, 8))[3], 65504.0);
  EXPECT_EQ(values_of(request(array, BP_INT8, 8))[3], 127.0);
  FillRequest r = request(array, BP_FP32, 8);
  r.magnitude = 4.0;
  EXPECT_EQ(values_of(r)[3], 280000.0);
  EXPECT_EQ(values_of(r)[1], largest_value(BP_FP32));
}

TEST(FileRecipe, EqualTypesKeepTheirBytes) {
  const std::vector<float> values = {0x1p-149f, -0.0f, 3.4e38f, INFINITY, 1.1f};
  const NpyArray array = captured("<f4", 1, values);
  const std::vector<unsigned char> bytes = bytes_of(request(array, BP_FP32, 5));
  EXPECT_EQ(std::memcmp(bytes.data(), values.data(), bytes.size()), 0);
  const NpyArray nan = captured<std::uint32_t>("<i4", 1, {0xFFFFFFFFu});
  EXPECT_EQ(values_of(request(nan, BP_INT32, 1))[0], -1.0);
}

TEST(FileRecipe, CodesOfDtypesThatNumpyLacks) {
  const NpyArray bf16 = captured<std::uint16_t>("<u2", 1, {0x3F80, 0xFF80, 0xFFFF, 0x0001});
  EXPECT_EQ(bytes_of(request(bf16, BP_BF16, 4)), (std::vector<unsigned char>{0x80, 0x3F, 0x80, 0xFF, 0xC0, 0x7F, 1, 0}))
      << "NaN becomes the canonical one";
  EXPECT_EQ(values_of(request(bf16, BP_FP32, 4))[0], 16256.0) << "read as FP32, u2 are numbers";

  const NpyArray bytes = captured<std::uint8_t>("|u1", 1, {0x38, 0x7F, 0xFF, 0x80});
  EXPECT_EQ(bytes_of(request(bytes, BP_E4M3, 4)), (std::vector<unsigned char>{0x38, 0x7F, 0x7F, 0x80}));
  EXPECT_EQ(bytes_of(request(bytes, BP_E8M0, 4)), (std::vector<unsigned char>{0x38, 0x7F, 0xFF, 0x80}));
  EXPECT_EQ(bytes_of(request(bytes, BP_E2M1, 4)), (std::vector<unsigned char>{0xF8, 0x0F})) << "low nibbles, packed";
  FillRequest r = request(bytes, BP_E4M3, 1);
  r.magnitude = 2.0;
  EXPECT_EQ(values_of(r)[0], 2.0) << "a code is scaled as the value it stands for";
  r.magnitude = 1e6;
  EXPECT_EQ(values_of(r)[0], 448.0);
}

TEST(FileRecipe, ScalesIgnoreMagnitudeAndPairByBlock) {
  std::vector<float> values;
  for (int i = 0; i < 16; ++i) values.push_back(static_cast<float>(i + 1));
  const NpyArray array = captured("<f4", 1, values);
  const CancellingPairs pairs(2, 512, 32);
  FillRequest r = request(array, BP_FP32, 16);
  r.scale = true;
  r.magnitude = 1000.0;
  r.pairs = &pairs;
  const std::vector<double> scales = values_of(r);
  for (std::int64_t block = 0; block < 16; ++block) {
    EXPECT_EQ(scales[block], static_cast<double>(pairs.canonical_block(block) + 1));
  }
}

TEST(FileRecipe, WithoutAFileEveryElementIsNan) {
  const NpyArray array = numbered(1, 1);
  FillRequest r = request(array, BP_FP32, 5);
  r.captured = nullptr;
  for (double value : values_of(r)) EXPECT_TRUE(std::isnan(value));
}

}  // namespace
}  // namespace batchproof
