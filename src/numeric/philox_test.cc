// SPDX-License-Identifier: Apache-2.0
//
// Philox against its published known-answer vectors, and the layout of key and counter.
#include "src/numeric/philox.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>

namespace batchproof {
namespace {

void expect_block(PhiloxBlock counter, PhiloxKey key, PhiloxBlock expected) {
  const PhiloxBlock block = philox4x32(counter, key);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(block.word[i], expected.word[i]) << i;
}

// Known-answer vectors of the Random123 distribution for philox4x32-10.
TEST(Philox, KnownAnswers) {
  expect_block({{0, 0, 0, 0}}, {{0, 0}}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  expect_block({{~0u, ~0u, ~0u, ~0u}}, {{~0u, ~0u}}, {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  expect_block({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, {{0xa4093822, 0x299f31d0}},
               {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

TEST(Philox, LayoutOfKeyAndCounter) {
  const std::uint64_t seed = 7, name = 0x0123456789ABCDEFu;
  const PhiloxKey key = element_key(seed, name);
  const std::uint64_t mixed = mix64(seed, 0) ^ name;
  EXPECT_EQ(key.word[0], static_cast<std::uint32_t>(mixed));
  EXPECT_EQ(key.word[1], static_cast<std::uint32_t>(mixed >> 32));

  const PhiloxBlock counter = element_counter(0xAABBCCDD00112233u, 0x1234567890ABCDEFu, 5);
  EXPECT_EQ(counter.word[0], 0x90ABCDEFu);
  EXPECT_EQ(counter.word[1], 0x12345678u | 5u << 29);
  EXPECT_EQ(counter.word[2], 0x00112233u);
  EXPECT_EQ(counter.word[3], 0xAABBCCDDu);

  for (std::uint64_t column : {0ull, 1ull, 6ull, 1000003ull, 1ull << 40}) {
    const PhiloxBlock plain = philox4x32(
        {{static_cast<std::uint32_t>(column / 4), static_cast<std::uint32_t>(column / 4 >> 32) | 2u << 29, 9, 0}}, key);
    EXPECT_EQ(element_word(key, 9, column, 2), plain.word[column % 4]) << column;
  }
}

// SplitMix64 seeded with 1234567 gives this sequence (its widely published test values).
TEST(Seed, MixIsSplitMix64) {
  EXPECT_EQ(mix64(1234567, 0), 6457827717110365317u);
  EXPECT_EQ(mix64(1234567, 1), 3203168211198807973u);
  EXPECT_EQ(mix64(1234567, 2), 9817491932198370423u);
}

TEST(Philox, NeighbouringIdentitiesShareNoWord) {
  std::set<std::uint32_t> words;
  std::size_t drawn = 0;
  for (std::uint64_t seed : {0, 1, 2}) {
    for (std::uint64_t name : {11, 12}) {
      for (std::uint64_t row = 0; row < 8; ++row) {
        for (std::uint64_t column = 0; column < 16; ++column) {
          for (std::uint32_t stream : {0u, 1u}) {
            words.insert(element_word(element_key(seed, name), row, column, stream));
            ++drawn;
          }
        }
      }
    }
  }
  // 1536 draws of 2^32 values collide about 0.0003 times.
  EXPECT_EQ(words.size(), drawn);
}

TEST(Philox, BelowCoversItsRangeEvenly) {
  std::map<std::uint32_t, int> counts;
  const PhiloxKey key = element_key(3, 4);
  for (std::uint64_t column = 0; column < 24000; ++column) ++counts[below(element_word(key, 0, column, 0), 24)];
  ASSERT_EQ(counts.size(), 24u);
  for (const auto& [value, count] : counts) {
    EXPECT_LT(value, 24u);
    EXPECT_NEAR(count, 1000, 160) << value;  // five standard deviations
  }
  EXPECT_EQ(below(0, 24), 0u);
  EXPECT_EQ(below(~0u, 24), 23u);
}

}  // namespace
}  // namespace batchproof
