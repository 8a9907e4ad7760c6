// SPDX-License-Identifier: Apache-2.0
//
// The sums against a plain scalar statement of the two orders.
#include "src/comm/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "src/numeric/dtype.h"

namespace batchproof {
namespace {

using Bytes = std::vector<unsigned char>;

constexpr bp_dtype kFloating[] = {BP_FP64, BP_FP32, BP_BF16, BP_FP16};

// Values whose exponents spread over 20 binades, so that another order gives another sum; every 16th is special.
Bytes random_values(bp_dtype dtype, std::size_t count, std::mt19937* random, bool special) {
  Bytes bytes(dtype_bytes(dtype, static_cast<std::int64_t>(count)));
  const double specials[] = {0.0,
                             -0.0,
                             std::numeric_limits<double>::infinity(),
                             -std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN(),
                             3e-41};
  for (std::size_t i = 0; i < count; ++i) {
    const auto index = static_cast<std::int64_t>(i);
    if (is_integer(dtype)) {
      store_bits(dtype, (std::uint64_t{(*random)()} << 32) | (*random)(), bytes.data(), index);
    } else if (special && i % 16 == 0) {
      encode_element(dtype, specials[(*random)() % 6], bytes.data(), index);
    } else {
      const double mantissa = 1.0 + static_cast<double>((*random)()) / 4294967296.0;
      const int exponent = static_cast<int>((*random)() % 20) - 10;
      encode_element(dtype, std::ldexp((*random)() % 2 == 0 ? mantissa : -mantissa, exponent), bytes.data(), index);
    }
  }
  return bytes;
}

template <class Sum>
Sum tree_sum(const std::vector<Sum>& values, std::size_t begin, std::size_t end) {
  if (end - begin == 1) return values[begin];
  const std::size_t middle = begin + (end - begin) / 2;
  return tree_sum(values, begin, middle) + tree_sum(values, middle, end);
}

template <class Sum>
Sum plain_sum(const std::vector<Sum>& values, bp_reduce_order order) {
  if (order == BP_REDUCE_TREE) return tree_sum(values, 0, values.size());
  volatile Sum sum = 0;
  for (const Sum value : values) sum = sum + value;
  return sum;
}

void plain_reduce(bp_dtype dtype, bp_reduce_order order, const std::vector<Bytes>& sources, std::int64_t index,
                  void* out) {
  std::vector<float> floats;
  std::vector<double> doubles;
  std::uint64_t integer = 0;
  for (const Bytes& source : sources) {
    doubles.push_back(decode_element(dtype, source.data(), index));
    floats.push_back(static_cast<float>(doubles.back()));
    integer += load_bits(dtype, source.data(), index);
  }
  if (is_integer(dtype)) {
    store_bits(dtype, integer, out, index);
  } else if (dtype == BP_FP64) {
    encode_element(dtype, plain_sum(doubles, order), out, index);
  } else {
    encode_element(dtype, plain_sum(floats, order), out, index);
  }
}

std::vector<const void*> pointers(const std::vector<Bytes>& sources, std::size_t offset = 0) {
  std::vector<const void*> list;
  for (const Bytes& source : sources) list.push_back(source.data() + offset);
  return list;
}

bool power_of_two(int world) { return (world & (world - 1)) == 0; }

TEST(ReduceTest, EveryDtypeAndOrderAgainstThePlainSum) {
  std::mt19937 random(7);
  for (const bp_dtype dtype : {BP_FP64, BP_FP32, BP_BF16, BP_FP16, BP_INT32, BP_INT64}) {
    for (const bp_reduce_order order : {BP_REDUCE_RANK_ORDER, BP_REDUCE_TREE}) {
      for (const int world : {1, 2, 3, 4, 5, 7, 8, 16, 64}) {
        if (order == BP_REDUCE_TREE && !power_of_two(world)) continue;
        for (const std::size_t count :
             {std::size_t{0}, std::size_t{1}, std::size_t{255}, std::size_t{256}, std::size_t{257}, std::size_t{700}}) {
          std::vector<Bytes> sources;
          for (int q = 0; q < world; ++q) sources.push_back(random_values(dtype, count, &random, true));
          Bytes sums(sources[0].size() + 1, 0xee);
          Bytes expected = sums;
          reduce(dtype, order, pointers(sources), count, sums.data());
          for (std::size_t i = 0; i < count; ++i) {
            plain_reduce(dtype, order, sources, static_cast<std::int64_t>(i), expected.data());
          }
          ASSERT_EQ(sums, expected) << dtype_name(dtype) << " order " << order << " world " << world << " count "
                                    << count;
        }
      }
    }
  }
}

// The tests above could not fail if order did not matter: with addends that cancel over the ranks it does, for 16-bit
// dtypes as well, whose ordinary sums are exact in FP32 more often than not.
TEST(ReduceTest, TheTwoOrdersAndTheReversedRanksMoveBytes) {
  std::mt19937 random(8);
  for (const bp_dtype dtype : kFloating) {
    std::vector<Bytes> sources;
    for (int q = 0; q < 8; ++q) sources.push_back(random_values(dtype, 4000, &random, false));
    for (std::int64_t i = 0; i < 4000; ++i) {
      for (std::size_t q = 0; q < 8; ++q) {
        const double value = decode_element(dtype, sources[q % 4].data(), i);
        const int spread = static_cast<int>(q % 4) * (dtype == BP_FP64 ? 16 : 5) - 12;
        encode_element(dtype, std::ldexp(q < 4 ? value : -value, q < 4 ? spread : 0), sources[q].data(), i);
      }
    }
    Bytes chain(sources[0].size()), tree(chain), reversed(chain);
    reduce(dtype, BP_REDUCE_RANK_ORDER, pointers(sources), 4000, chain.data());
    reduce(dtype, BP_REDUCE_TREE, pointers(sources), 4000, tree.data());
    std::reverse(sources.begin(), sources.end());
    reduce(dtype, BP_REDUCE_RANK_ORDER, pointers(sources), 4000, reversed.data());
    EXPECT_NE(chain, tree) << dtype_name(dtype);
    EXPECT_NE(chain, reversed) << dtype_name(dtype);
  }
}

TEST(ReduceTest, AnElementDependsNeitherOnCountNorOnIndexNorOnAlignment) {
  std::mt19937 random(9);
  for (const bp_dtype dtype : {BP_FP64, BP_FP32, BP_BF16, BP_FP16, BP_INT32, BP_INT64}) {
    for (const bp_reduce_order order : {BP_REDUCE_RANK_ORDER, BP_REDUCE_TREE}) {
      constexpr std::size_t kCount = 600;
      std::vector<Bytes> sources;
      for (int q = 0; q < 4; ++q) sources.push_back(random_values(dtype, kCount, &random, true));
      const std::size_t element = sources[0].size() / kCount;
      Bytes whole(sources[0].size());
      reduce(dtype, order, pointers(sources), kCount, whole.data());
      for (const std::size_t begin : {std::size_t{1}, std::size_t{31}, std::size_t{255}, std::size_t{599}}) {
        Bytes part(whole.size() - begin * element);
        reduce(dtype, order, pointers(sources, begin * element), kCount - begin, part.data());
        ASSERT_EQ(std::memcmp(part.data(), whole.data() + begin * element, part.size()), 0) << dtype_name(dtype);
      }
      std::vector<Bytes> shifted;  // every address odd
      for (const Bytes& source : sources) {
        shifted.emplace_back(1, 0);
        shifted.back().insert(shifted.back().end(), source.begin(), source.end());
      }
      Bytes odd(whole.size() + 1);
      reduce(dtype, order, pointers(shifted, 1), kCount, odd.data() + 1);
      ASSERT_EQ(std::memcmp(odd.data() + 1, whole.data(), whole.size()), 0) << dtype_name(dtype);
    }
  }
}

TEST(ReduceTest, TheResultMayReplaceASource) {
  std::mt19937 random(10);
  for (std::size_t target = 0; target < 4; ++target) {
    std::vector<Bytes> sources;
    for (int q = 0; q < 4; ++q) sources.push_back(random_values(BP_BF16, 777, &random, false));
    Bytes sums(sources[0].size());
    reduce(BP_BF16, BP_REDUCE_TREE, pointers(sources), 777, sums.data());
    reduce(BP_BF16, BP_REDUCE_TREE, pointers(sources), 777, sources[target].data());
    EXPECT_EQ(sources[target], sums);
  }
}

// FP32 accumulation of BF16 and one rounding: 1 + 2^-8 + 2^-8 is 1 + 2^-7, though BF16 steps would stay at 1.
TEST(ReduceTest, OneRoundingAtTheEnd) {
  std::vector<Bytes> sources(3, Bytes(2));
  encode_element(BP_BF16, 1.0, sources[0].data(), 0);
  encode_element(BP_BF16, 0x1p-8, sources[1].data(), 0);
  encode_element(BP_BF16, 0x1p-8, sources[2].data(), 0);
  Bytes sum(2);
  reduce(BP_BF16, BP_REDUCE_RANK_ORDER, pointers(sources), 1, sum.data());
  EXPECT_EQ(decode_element(BP_BF16, sum.data(), 0), 1.0 + 0x1p-7);
}

TEST(ReduceTest, ZerosNansAndOverflow) {
  for (const bp_dtype dtype : kFloating) {
    std::vector<Bytes> sources(2, Bytes(dtype_bytes(dtype, 3)));
    for (Bytes& source : sources) {
      encode_element(dtype, -0.0, source.data(), 0);
      store_bits(dtype, *canonical_nan_bits(dtype) | 1 | (std::uint64_t{1} << (dtype_bits(dtype) - 1)), source.data(),
                 1);  // a negative NaN with a payload
    }
    encode_element(dtype, std::numeric_limits<double>::infinity(), sources[0].data(), 2);
    encode_element(dtype, -std::numeric_limits<double>::infinity(), sources[1].data(), 2);
    Bytes sums(sources[0].size());
    for (const bp_reduce_order order : {BP_REDUCE_RANK_ORDER, BP_REDUCE_TREE}) {
      reduce(dtype, order, pointers(sources), 3, sums.data());
      const std::uint64_t minus_zero = std::uint64_t{1} << (dtype_bits(dtype) - 1);
      EXPECT_EQ(load_bits(dtype, sums.data(), 0), order == BP_REDUCE_TREE ? minus_zero : 0u) << dtype_name(dtype);
      EXPECT_EQ(load_bits(dtype, sums.data(), 1), *canonical_nan_bits(dtype)) << dtype_name(dtype);
      EXPECT_EQ(load_bits(dtype, sums.data(), 2), *canonical_nan_bits(dtype)) << dtype_name(dtype);
    }
  }
  std::vector<Bytes> sources(2, Bytes(4));
  for (Bytes& source : sources) store_bits(BP_INT32, 0x7fffffff, source.data(), 0);
  Bytes sum(4);
  reduce(BP_INT32, BP_REDUCE_RANK_ORDER, pointers(sources), 1, sum.data());
  EXPECT_EQ(load_bits(BP_INT32, sum.data(), 0), 0xfffffffeu);
}

TEST(ReduceTest, WhatCannotBeReduced) {
  EXPECT_EQ(reduce_error(BP_BF16, BP_REDUCE_RANK_ORDER, 3), "");
  EXPECT_EQ(reduce_error(BP_BF16, BP_REDUCE_TREE, 8), "");
  EXPECT_EQ(reduce_error(BP_BF16, BP_REDUCE_TREE, 1024), "");
  EXPECT_NE(reduce_error(BP_BF16, BP_REDUCE_TREE, 3), "");
  EXPECT_NE(reduce_error(BP_BF16, BP_REDUCE_TREE, 2048), "");
  EXPECT_NE(reduce_error(BP_BF16, 2, 4), "");
  EXPECT_NE(reduce_error(99, BP_REDUCE_RANK_ORDER, 2), "");
  for (const bp_dtype dtype : {BP_NONE, BP_E4M3, BP_E5M2, BP_E8M0, BP_INT8, BP_UINT8, BP_INT4, BP_E2M1}) {
    EXPECT_NE(reduce_error(dtype, BP_REDUCE_RANK_ORDER, 2), "") << dtype;
  }
}

}  // namespace
}  // namespace batchproof
