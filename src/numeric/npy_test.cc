// SPDX-License-Identifier: Apache-2.0
//
// The .npy reader on good files of every type and version, and on files that are wrong in each way we know.
#include "src/numeric/npy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace batchproof {
namespace {

std::string npy(const std::string& header, const std::string& data, int major = 1) {
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(major);
  bytes += '\0';
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  return bytes + header + data;
}

std::string header(const std::string& descr, const std::string& shape, const std::string& fortran = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape + ", }          \n";
}

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <class T>
void expect_values(const std::string& descr, const std::vector<T>& values) {
  for (int major : {1, 2, 3}) {
    const auto array = NpyArray::parse(npy(header(descr, "(2, 3)"), raw(values), major), "a.npy");
    ASSERT_TRUE(array.has_value()) << descr << ": " << array.error().message;
    EXPECT_EQ(array->rows(), 2);
    EXPECT_EQ(array->columns(), 3);
    EXPECT_EQ(array->shape(), (std::vector<std::int64_t>{2, 3}));
    EXPECT_EQ(array->kind(), descr[1]);
    EXPECT_EQ(array->item_bytes(), static_cast<int>(sizeof(T)));
    for (std::int64_t i = 0; i < 6; ++i) {
      EXPECT_EQ(array->value(i), static_cast<double>(values[i])) << descr << ' ' << i;
      std::uint64_t bits = 0;
      std::memcpy(&bits, &values[i], sizeof(T));
      EXPECT_EQ(array->bits(i), bits) << descr << ' ' << i;
    }
  }
}

TEST(Npy, ReadsEveryTypeInEveryVersion) {
  expect_values<float>("<f4", {1.5f, -2.25f, 0.0f, 1e30f, -1e-30f, 7.0f});
  expect_values<double>("<f8", {1.5, -2.25, 0.0, 1e300, -1e-300, 7.0});
  expect_values<std::int8_t>("|i1", {1, -1, 127, -128, 0, 5});
  expect_values<std::int8_t>("<i1", {1, -1, 127, -128, 0, 5});
  expect_values<std::uint8_t>("|u1", {1, 255, 127, 128, 0, 5});
  expect_values<std::int16_t>("<i2", {1, -1, 32767, -32768, 0, 5});
  expect_values<std::uint16_t>("<u2", {1, 65535, 32767, 32768, 0, 5});
  expect_values<std::int32_t>("<i4", {1, -1, INT32_MAX, INT32_MIN, 0, 5});
  expect_values<std::int64_t>("<i8", {1, -1, 1LL << 53, -(1LL << 53), 0, 5});
}

TEST(Npy, ReadsHalfPrecision) {
  const std::vector<std::uint16_t> halves = {0x3C00, 0xC000, 0x0001, 0x7BFF, 0x7C00, 0x8000};
  const auto array = NpyArray::parse(npy(header("<f2", "(6,)"), raw(halves)), "a.npy");
  ASSERT_TRUE(array.has_value());
  EXPECT_EQ(array->rows(), 1) << "a vector is one row";
  EXPECT_EQ(array->columns(), 6);
  const double expected[] = {1.0, -2.0, 0x1p-24, 65504.0, INFINITY, -0.0};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(array->value(i), expected[i]);
  EXPECT_TRUE(std::signbit(array->value(5)));
}

TEST(Npy, ShapesAndSpellings) {
  const std::string data = raw<float>({1, 2, 3, 4, 5, 6, 7, 8});
  const auto shape = [&](const std::string& text) { return NpyArray::parse(npy(header("<f4", text), data), "a"); };
  EXPECT_EQ(shape("(2, 2, 2)")->rows(), 2);
  EXPECT_EQ(shape("(2, 2, 2)")->columns(), 4);
  EXPECT_EQ(shape("(8,)")->columns(), 8);
  EXPECT_EQ(shape("(4,2,)")->rows(), 4);
  const auto scalar = NpyArray::parse(npy(header("<f4", "()"), raw<float>({3.0f})), "a");
  ASSERT_TRUE(scalar.has_value());
  EXPECT_EQ(scalar->rows(), 1);
  EXPECT_EQ(scalar->columns(), 1);
  EXPECT_EQ(scalar->value(0), 3.0);
  const auto other_order = NpyArray::parse(npy("{\"shape\":(2,4),\"descr\":\"<f4\",\"fortran_order\":False}", data),
                                           "double quotes, other order");
  ASSERT_TRUE(other_order.has_value()) << other_order.error().message;
  EXPECT_EQ(other_order->columns(), 4);
}

TEST(Npy, KnowsWhichDtypeItStoresAsIs) {
  const auto stores = [](const char* descr, bp_dtype dtype) {
    const std::string data(static_cast<std::size_t>(descr[2] - '0'), '\0');
    return NpyArray::parse(npy(header(descr, "(1,)"), data), "a")->stores(dtype);
  };
  EXPECT_TRUE(stores("<f4", BP_FP32));
  EXPECT_TRUE(stores("<f2", BP_FP16));
  EXPECT_TRUE(stores("<f8", BP_FP64));
  EXPECT_TRUE(stores("<u2", BP_BF16));
  EXPECT_TRUE(stores("|u1", BP_E4M3));
  EXPECT_TRUE(stores("|u1", BP_E5M2));
  EXPECT_TRUE(stores("|u1", BP_E8M0));
  EXPECT_TRUE(stores("|i1", BP_INT8));
  EXPECT_FALSE(stores("<f2", BP_BF16)) << "numbers, to be rounded";
  EXPECT_FALSE(stores("<f4", BP_BF16));
  EXPECT_FALSE(stores("<u2", BP_FP16));
  EXPECT_FALSE(stores("|u1", BP_INT8));
}

void expect_error(const std::string& bytes, const std::string& part) {
  const auto array = NpyArray::parse(bytes, "dir/x.npy");
  ASSERT_FALSE(array.has_value()) << part;
  EXPECT_EQ(array.error().kind, Error::Kind::usage);
  EXPECT_EQ(array.error().message.rfind("dir/x.npy: ", 0), 0u) << array.error().message;
  EXPECT_NE(array.error().message.find(part), std::string::npos) << array.error().message << " lacks: " << part;
}

TEST(Npy, RefusesWhatIsNotWhole) {
  const std::string good = npy(header("<f4", "(2, 2)"), raw<float>({1, 2, 3, 4}));
  ASSERT_TRUE(NpyArray::parse(good, "a").has_value());
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(NpyArray::parse(good.substr(0, size), "a").has_value()) << size;
  }
  expect_error("", "too few");
  expect_error(good.substr(0, 30), "truncated: the header has");
  expect_error(good.substr(0, good.size() - 1), "truncated: shape (2, 2) of '<f4' needs more than the 15 bytes");
  expect_error(good + "xyz", "3 bytes follow the 16 bytes");
  expect_error(npy(header("<f4", "()"), ""), "truncated");
}

TEST(Npy, RefusesForeignFormats) {
  expect_error("PK\x03\x04 an archive", "does not begin with");
  expect_error(npy(header("<f4", "(1,)"), "abcd", 4), "version 4.0");
  expect_error(npy(header("<f4", "(1,)"), "abcd", 0), "version 0.0");
  expect_error(npy(header(">f4", "(1,)"), "abcd"), "dtype '>f4'; little-endian");
  expect_error(npy(header("<c8", "(1,)"), "abcdefgh"), "dtype '<c8'");
  expect_error(npy(header("<f3", "(1,)"), "abc"), "dtype '<f3'");
  expect_error(npy(header("|f4", "(1,)"), "abcd"), "dtype '|f4'");
  expect_error(npy(header("|O", "(1,)"), "abcd"), "dtype '|O'");
  expect_error(npy(header("|b1", "(1,)"), "a"), "dtype '|b1'");
  expect_error(npy(header("<f4", "(1,)", "True"), "abcd"), "Fortran order; save the array in C order");
  expect_error(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }\n", "abcd"), "record dtype");
}

TEST(Npy, RefusesBadHeaders) {
  const auto bad = [](const std::string& text, const std::string& part) { expect_error(npy(text, "abcd"), part); };
  bad("", "'{' expected");
  bad("[]", "'{' expected");
  bad("{'descr': '<f4'", "',' expected");
  bad("{'descr': '<f4", "without its closing quote");
  bad("{'descr': '<f4', 'shape': (1,), }", "no 'fortran_order'");
  bad("{'fortran_order': False, 'shape': (1,), }", "no 'descr'");
  bad("{'descr': '<f4', 'fortran_order': False}", "no 'shape'");
  bad("{'descr': '<f4', 'fortran_order': 0, 'shape': (1,), }", "True or False expected");
  bad("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", "'descr' appears twice");
  bad("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}", "unknown key 'more'");
  bad("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", "an extent");
  bad("{'descr': '<f4', 'fortran_order': False, 'shape': (1 2), }", "',' expected");
  bad("{'descr': '<f4', 'fortran_order': False, 'shape': 1, }", "'(' expected");
  bad("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } x", "text after the dictionary");
  bad("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", "beyond 64 bits");
  bad("{" + std::string(5000, '{'), "quoted string expected");
  std::string many = "(";
  for (int i = 0; i < 33; ++i) many += "1,";
  bad(header("<f4", many + ")"), "more than 32 axes");
}

TEST(Npy, RefusesHugeNumbersWithoutAllocating) {
  expect_error(npy(header("<f8", "(9223372036854775807, 9223372036854775807)"), "abcd"), "truncated: shape");
  expect_error(npy(header("<f4", "(4294967296, 4294967296, 4294967296)"), "abcd"), "truncated: shape");
  expect_error(npy(header("<f4", "(0, 4)"), "abcd"), "holds no element");
  std::string huge = npy("", "abcd", 2);
  std::memcpy(huge.data() + 8, "\xFF\xFF\xFF\xFF", 4);
  expect_error(huge, "a header of 4294967295 bytes");
}

TEST(Npy, MutatedFilesNeverCrash) {
  const std::string good = npy(header("<f4", "(2, 2)"), raw<float>({1, 2, 3, 4}));
  std::mt19937 random(8);
  int read = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = good;
    for (unsigned edits = 1 + static_cast<unsigned>(random() % 3); edits > 0; --edits) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 3) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, 1 + random() % 3);
          break;
        default:
          bytes.insert(at, 1, static_cast<char>(random()));
      }
      if (bytes.empty()) break;
    }
    const auto array = NpyArray::parse(bytes, "m");
    if (!array.has_value()) continue;
    ++read;
    double sum = 0.0;
    for (std::int64_t e = 0; e < array->rows() * array->columns(); ++e) sum += array->value(e);
    EXPECT_FALSE(std::isnan(sum) && array->kind() != 'f');
  }
  EXPECT_GT(read, 100) << "some edits touch only values";
  EXPECT_LT(read, 15000);
}

TEST(Npy, ReadsFilesAndNamesThoseItCannot) {
  const std::string path = testing::TempDir() + "batchproof_npy_test.npy";
  {
    std::ofstream file(path, std::ios::binary);
    file << npy(header("<f4", "(70000, 2)"), std::string(70000 * 2 * 4, '\0'));
  }
  const auto array = NpyArray::read(path);
  ASSERT_TRUE(array.has_value()) << array.error().message;
  EXPECT_EQ(array->rows(), 70000);
  std::remove(path.c_str());
  const auto missing = NpyArray::read(path);
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().kind, Error::Kind::usage);
  EXPECT_NE(missing.error().message.find(path + ": cannot be opened: No such file"), std::string::npos)
      << missing.error().message;
  EXPECT_FALSE(NpyArray::read(testing::TempDir()).has_value()) << "a folder";
}

}  // namespace
}  // namespace batchproof
