// SPDX-License-Identifier: Apache-2.0
//
// Segments, merge order, names and errors of both policies; and, at compile time, that a schedule cannot see the batch.
#include "src/schedule/schedule.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace batchproof {
namespace {

// ---- C1 at compile time: no constructor, no make() and no member carries a row count ------------------------------

// Converts to every parameter type, so that a call with it is viable wherever the number of arguments fits.
struct Anything {
  template <class T>
  operator T() const;  // NOLINT: never defined, used in unevaluated operands
};

template <std::size_t>
using Any = Anything;

template <std::size_t... I>
constexpr bool makes_from(std::index_sequence<I...>) {
  return requires { Schedule::make(Any<I>{}...); };
}
template <std::size_t... I>
constexpr bool makes_chain_with_extra(std::index_sequence<I...>) {
  return requires { Schedule::make(std::int64_t{}, ChainPolicy{}, Any<I>{}...); };
}
template <std::size_t... I>
constexpr bool makes_tree_with_extra(std::index_sequence<I...>) {
  return requires { Schedule::make(std::int64_t{}, TreePolicy{}, Any<I>{}...); };
}
template <std::size_t... I>
constexpr bool constructs_from(std::index_sequence<I...>) {
  return std::is_constructible_v<Schedule, Any<I>...>;
}
template <class T, std::size_t... I>
constexpr bool aggregate_of(std::index_sequence<I...>) {
  return requires { T{Any<I>{}...}; };
}
template <std::size_t N>
using Count = std::make_index_sequence<N>;

static_assert(makes_chain_with_extra(Count<0>{}) && makes_tree_with_extra(Count<0>{}), "the two signatures exist");
static_assert(!makes_chain_with_extra(Count<1>{}) && !makes_tree_with_extra(Count<1>{}), "no rows after the policy");
static_assert(!makes_chain_with_extra(Count<2>{}) && !makes_tree_with_extra(Count<2>{}));
static_assert(!makes_chain_with_extra(Count<3>{}) && !makes_tree_with_extra(Count<3>{}));
static_assert(!makes_chain_with_extra(Count<4>{}) && !makes_tree_with_extra(Count<4>{}));
static_assert(!makes_from(Count<0>{}) && !makes_from(Count<1>{}) && !makes_from(Count<3>{}) && !makes_from(Count<4>{}));
static_assert(!makes_from(Count<5>{}) && !makes_from(Count<6>{}) && !makes_from(Count<7>{}) && !makes_from(Count<8>{}));

// Nothing constructs a Schedule but make(), copying and moving.
static_assert(!std::is_default_constructible_v<Schedule>);
static_assert(!std::is_constructible_v<Schedule, std::int64_t>);
static_assert(!std::is_constructible_v<Schedule, std::int64_t, std::int64_t>, "no (K, rows)");
static_assert(!std::is_constructible_v<Schedule, std::int64_t, ChainPolicy>);
static_assert(!std::is_constructible_v<Schedule, std::int64_t, TreePolicy>);
static_assert(!std::is_constructible_v<Schedule, std::int64_t, ChainPolicy, std::int64_t>);
static_assert(!std::is_constructible_v<Schedule, std::int64_t, TreePolicy, std::int64_t>);
static_assert(!constructs_from(Count<2>{}) && !constructs_from(Count<3>{}) && !constructs_from(Count<4>{}));
static_assert(std::is_copy_constructible_v<Schedule> && std::is_move_constructible_v<Schedule>);
static_assert(!std::is_aggregate_v<Schedule> && !std::is_polymorphic_v<Schedule>);
static_assert(!std::is_convertible_v<std::int64_t, ChainPolicy> && !std::is_convertible_v<std::int64_t, TreePolicy>);

// A policy holds exactly what C1 names.
static_assert(aggregate_of<ChainPolicy>(Count<1>{}) && !aggregate_of<ChainPolicy>(Count<2>{}));
static_assert(aggregate_of<TreePolicy>(Count<3>{}) && !aggregate_of<TreePolicy>(Count<4>{}));

// The members, listed once more: a further one (rows, ranks, processors) makes the object larger.
struct Members {
  std::int64_t length;
  std::int64_t slices;
  std::vector<Segment> segments;
  std::vector<std::int64_t> slice_begin;
  std::string name;
};
static_assert(sizeof(Schedule) == sizeof(Members), "a new member: show that it does not depend on the batch");

// The merges take the schedule and the sums, nothing else.
static_assert(std::is_same_v<decltype(&merge_segment_sums), float (*)(const Schedule&, const std::vector<float>&)>);
static_assert(std::is_same_v<decltype(&merge_tree), float (*)(const float*, std::int64_t, std::int64_t)>);

// ---- run time ----------------------------------------------------------------------------------------------------

std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }

// Values whose sum depends on the order: spread over many binades, both signs.
std::vector<float> order_sensitive(std::int64_t count, std::uint64_t seed) {
  std::vector<float> values;
  std::uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const std::uint32_t word = static_cast<std::uint32_t>(state >> 32);
    const std::uint32_t exponent = 120 + (word >> 28);
    values.push_back(std::bit_cast<float>((word & 0x80000000u) | exponent << 23 | (word & 0x007FFFFFu)));
  }
  return values;
}

Schedule chain(std::int64_t length, std::int64_t segment) {
  return Schedule::make(length, ChainPolicy{segment}).value();
}
Schedule tree(std::int64_t length, std::int64_t slices, std::int64_t atom, std::int64_t segment) {
  return Schedule::make(length, TreePolicy{slices, atom, segment}).value();
}

TEST(Schedule, ChainCutsAtMultiplesAndKeepsAShortTail) {
  const Schedule schedule = chain(1000, 256);
  const std::vector<Segment> expected = {{0, 256}, {256, 512}, {512, 768}, {768, 1000}};
  EXPECT_EQ(schedule.segments(), expected);
  EXPECT_EQ(schedule.reduction_length(), 1000);
  EXPECT_EQ(schedule.slices(), 1);
  EXPECT_EQ(schedule.slice_begin(0), 0);
  EXPECT_EQ(schedule.slice_begin(1), 4);
  EXPECT_EQ(schedule.name(), "chain256");
}

TEST(Schedule, ChainOfOneSegmentAndExactFit) {
  EXPECT_EQ(chain(5, 256).segments(), (std::vector<Segment>{{0, 5}}));
  EXPECT_EQ(chain(256, 256).segments(), (std::vector<Segment>{{0, 256}}));
  EXPECT_EQ(chain(512, 256).segments(), (std::vector<Segment>{{0, 256}, {256, 512}}));
  EXPECT_EQ(chain(3, 1).segments(), (std::vector<Segment>{{0, 1}, {1, 2}, {2, 3}}));
  EXPECT_EQ(chain(7, INT64_MAX).segments(), (std::vector<Segment>{{0, 7}}));
  EXPECT_EQ(chain(INT64_MAX, INT64_MAX - 1).segments(),
            (std::vector<Segment>{{0, INT64_MAX - 1}, {INT64_MAX - 1, INT64_MAX}}));
}

TEST(Schedule, TreeCutsEqualSlicesWithAChainInEach) {
  const Schedule schedule = tree(320, 4, 16, 32);  // slices of 80: 32 + 32 + 16
  EXPECT_EQ(schedule.slices(), 4);
  ASSERT_EQ(schedule.segments().size(), 12u);
  for (std::int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(schedule.slice_begin(i), 3 * i);
    const std::int64_t base = 80 * i;
    EXPECT_EQ(schedule.segments()[3 * i], (Segment{base, base + 32}));
    EXPECT_EQ(schedule.segments()[3 * i + 1], (Segment{base + 32, base + 64}));
    EXPECT_EQ(schedule.segments()[3 * i + 2], (Segment{base + 64, base + 80}));
  }
  EXPECT_EQ(schedule.slice_begin(4), 12);
  EXPECT_EQ(schedule.name(), "tree4-chain32");
  EXPECT_EQ(tree(1024, 16, 1, 64).name(), "tree16-chain64");
}

TEST(Schedule, EverySegmentationIsAPartition) {
  for (std::int64_t length : {1, 2, 63, 64, 65, 129, 1000, 4096}) {
    for (std::int64_t segment : {1, 3, 64, 256, 5000}) {
      const Schedule schedule = chain(length, segment);
      std::int64_t at = 0;
      for (const Segment& s : schedule.segments()) {
        EXPECT_EQ(s.begin, at);
        EXPECT_GT(s.end, s.begin);
        EXPECT_LE(s.end - s.begin, segment);
        at = s.end;
      }
      EXPECT_EQ(at, length);
    }
  }
}

TEST(Schedule, ZeroLengthHasNoSegmentsAndSumsToPositiveZero) {
  const Schedule a = chain(0, 64);
  EXPECT_TRUE(a.segments().empty());
  EXPECT_EQ(a.slice_begin(1), 0);
  EXPECT_EQ(bits(merge_segment_sums(a, {})), 0u);
  const Schedule b = tree(0, 16, 32, 64);
  EXPECT_TRUE(b.segments().empty());
  EXPECT_EQ(b.slices(), 16);
  for (std::int64_t i = 0; i <= 16; ++i) EXPECT_EQ(b.slice_begin(i), 0);
  EXPECT_EQ(bits(merge_segment_sums(b, {})), 0u);
}

TEST(Schedule, ChainMergesSeriallyFromTheFirstSum) {
  const Schedule schedule = chain(700, 100);
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    const std::vector<float> v = order_sensitive(7, seed);
    const float expected = (((((v[0] + v[1]) + v[2]) + v[3]) + v[4]) + v[5]) + v[6];
    EXPECT_EQ(bits(merge_segment_sums(schedule, v)), bits(expected));
  }
  // t = s0, not +0 + s0: a lone -0 stays.
  EXPECT_EQ(bits(merge_segment_sums(chain(64, 64), {-0.0f})), 0x80000000u);
}

TEST(Schedule, TreeMergesNeighboursAboveTheChains) {
  const Schedule schedule = tree(128, 8, 1, 8);  // 8 slices of two segments
  int unlike_chain = 0;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    const std::vector<float> v = order_sensitive(16, seed);
    float s[8];
    for (int i = 0; i < 8; ++i) s[i] = v[2 * i] + v[2 * i + 1];
    const float expected = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
    EXPECT_EQ(bits(merge_segment_sums(schedule, v)), bits(expected));
    EXPECT_EQ(bits(merge_tree(s, 8)), bits(expected));
    if (bits(merge_segment_sums(chain(128, 8), v)) != bits(expected)) ++unlike_chain;
  }
  EXPECT_GT(unlike_chain, 25) << "the values do not tell the two orders apart";
}

TEST(Schedule, MergeTreeWalksByStride) {
  const float values[] = {1e8f, 9.0f, 1.0f, 9.0f, -1e8f, 9.0f, 3.0f, 9.0f};
  EXPECT_EQ(merge_tree(values, 4, 2), (1e8f + 1.0f) + (-1e8f + 3.0f));
  EXPECT_EQ(merge_tree(values, 1, 2), 1e8f);
  EXPECT_EQ(bits(merge_tree(values, 0)), 0u);
}

// Ranks that hold whole subtrees merge their own slices, then merge over ranks: the same float for every world.
TEST(Schedule, WorldsThatHoldWholeSubtreesGiveTheSameFloat) {
  const Schedule schedule = tree(16 * 96, 16, 16, 32);
  const std::int64_t count = static_cast<std::int64_t>(schedule.segments().size());
  int order_matters = 0;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    const std::vector<float> v = order_sensitive(count, seed);
    const float whole = merge_segment_sums(schedule, v);
    for (std::int64_t world : {1, 2, 4, 8, 16}) {
      std::vector<float> ranks;
      for (std::int64_t rank = 0; rank < world; ++rank) {
        const std::int64_t held = 16 / world;
        std::vector<float> slices;
        for (std::int64_t i = rank * held; i < (rank + 1) * held; ++i) {
          float total = v[schedule.slice_begin(i)];
          for (std::int64_t j = schedule.slice_begin(i) + 1; j < schedule.slice_begin(i + 1); ++j) total += v[j];
          slices.push_back(total);
        }
        ranks.push_back(merge_tree(slices.data(), held));
      }
      EXPECT_EQ(bits(merge_tree(ranks.data(), world)), bits(whole)) << "world " << world << " seed " << seed;
    }
    float serial = 0.0f;
    for (float value : v) serial += value;
    if (bits(serial) != bits(whole)) ++order_matters;
  }
  EXPECT_GT(order_matters, 25) << "the values are blind to the order";
}

std::string error_of(const Result<Schedule>& result) {
  EXPECT_FALSE(result.has_value());
  if (result.has_value()) return {};
  EXPECT_EQ(result.error().kind, Error::Kind::usage);
  return result.error().message;
}

TEST(Schedule, RefusesWhatItCannotCut) {
  EXPECT_EQ(error_of(Schedule::make(-1, ChainPolicy{64})), "reduction length is -1, it must be 0 or more");
  EXPECT_EQ(error_of(Schedule::make(64, ChainPolicy{0})), "segment length is 0, it must be 1 or more");
  EXPECT_EQ(error_of(Schedule::make(64, ChainPolicy{-5})), "segment length is -5, it must be 1 or more");
  EXPECT_EQ(error_of(Schedule::make(-16, TreePolicy{16, 1, 64})), "reduction length is -16, it must be 0 or more");
  EXPECT_EQ(error_of(Schedule::make(64, TreePolicy{16, 1, 0})), "segment length is 0, it must be 1 or more");
  EXPECT_EQ(error_of(Schedule::make(64, TreePolicy{16, 0, 64})), "atom is 0, it must be 1 or more");
  for (std::int64_t slices : {-4, 0, 3, 12, 15}) {
    EXPECT_NE(error_of(Schedule::make(240, TreePolicy{slices, 1, 64})).find("must be a power of two"),
              std::string::npos)
        << slices;
  }
}

TEST(Schedule, SaysWhichLengthWouldFitTheTree) {
  EXPECT_EQ(error_of(Schedule::make(1000, TreePolicy{16, 32, 64})),
            "reduction length 1000 cannot be cut into 16 equal slices of whole atoms of 32: it must be a multiple of "
            "512");
  // A multiple of the slices alone is not enough.
  EXPECT_FALSE(Schedule::make(16 * 24, TreePolicy{16, 16, 64}).has_value());
  EXPECT_TRUE(Schedule::make(16 * 32, TreePolicy{16, 16, 64}).has_value());
}

TEST(Schedule, HugeNumbersAreErrorsNotAllocations) {
  EXPECT_NE(error_of(Schedule::make(INT64_MAX, ChainPolicy{1})).find("at most"), std::string::npos);
  EXPECT_NE(error_of(Schedule::make(std::int64_t{1} << 62, TreePolicy{std::int64_t{1} << 40, 1, 64})).find("at most"),
            std::string::npos);
  EXPECT_NE(error_of(Schedule::make(64, TreePolicy{16, INT64_MAX, 64})).find("multiple of 16 * 9223372036854775807"),
            std::string::npos);
  // The largest tree that is allowed is built.
  EXPECT_EQ(tree(std::int64_t{3} << 22, std::int64_t{1} << 22, 3, 3).segments().size(), std::size_t{1} << 22);
}

}  // namespace
}  // namespace batchproof
