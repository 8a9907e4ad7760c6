// SPDX-License-Identifier: Apache-2.0
#include "src/runtime/words.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace batchproof {
namespace {

constexpr Verdict kVerdicts[] = {Verdict::skipped, Verdict::pass,      Verdict::vacuous, Verdict::slow,
                                 Verdict::heavy,   Verdict::violation, Verdict::wrong,   Verdict::error};

TEST(WordsTest, VerdictsHaveNamesAndASeverity) {
  const std::vector<std::string> names = {"skipped", "pass", "vacuous", "slow", "heavy", "violation", "wrong", "error"};
  int last = -1;
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(verdict_name(kVerdicts[i]), names[i]);
    EXPECT_EQ(verdict_from_name(names[i]), kVerdicts[i]);
    EXPECT_GT(verdict_severity(kVerdicts[i]), last) << names[i];
    last = verdict_severity(kVerdicts[i]);
  }
  EXPECT_EQ(verdict_from_name("Pass"), std::nullopt);
  EXPECT_EQ(verdict_from_name(""), std::nullopt);
  EXPECT_EQ(verdict_from_name("passed"), std::nullopt);
}

TEST(WordsTest, EveryRelationOfTheAbiHasOneName) {
  std::uint32_t mask = 0;
  std::set<std::string> names;
  for (const RelationWord& word : relations()) {
    EXPECT_EQ(mask & word.bit, 0u) << word.name;
    EXPECT_EQ(word.bit & (word.bit - 1), 0u) << word.name << " is one bit";
    mask |= word.bit;
    EXPECT_TRUE(names.insert(word.name).second) << word.name;
    EXPECT_STREQ(relation_name(word.bit), word.name);
    EXPECT_EQ(relation_from_name(word.name), word.bit);
    EXPECT_STRNE(word.changes, "");
  }
  EXPECT_EQ(mask, (BP_GRAPH << 1) - 1u) << "the bits of operator.h without a gap";
  EXPECT_STREQ(relation_name(0), "unknown");
  EXPECT_STREQ(relation_name(1u << 31), "unknown");
  EXPECT_EQ(relation_from_name("neighbors"), std::nullopt);
}

TEST(WordsTest, RelationListsAreInReportOrder) {
  EXPECT_EQ(relation_list(0), "");
  EXPECT_EQ(relation_list(BP_POISON), "poison");
  EXPECT_EQ(relation_list(BP_REPEAT | BP_NEIGHBOURS | (1u << 31)), "neighbours, repeat");
  EXPECT_EQ(relation_list(kDefaultRelations), "neighbours, repeat, position, cross_rank, batch_size");
}

TEST(WordsTest, Modes) {
  for (const bp_comm_mode mode : {BP_COMM_OFF, BP_COMM_ON, BP_COMM_STRICT}) {
    EXPECT_EQ(comm_mode_from_name(comm_mode_name(mode)), mode);
  }
  EXPECT_STREQ(comm_mode_name(BP_COMM_STRICT), "strict");
  EXPECT_EQ(comm_mode_from_name("ON"), std::nullopt);
  EXPECT_STREQ(mode_name(BP_MODE_INVARIANT), "invariant");
  EXPECT_STREQ(mode_name(BP_MODE_FAST), "fast");
}

TEST(WordsTest, SplitList) {
  using List = std::vector<std::string>;
  EXPECT_EQ(split_list(nullptr), List{});
  EXPECT_EQ(split_list(""), List{});
  EXPECT_EQ(split_list(" , ,"), List{});
  EXPECT_EQ(split_list("a"), List{"a"});
  EXPECT_EQ(split_list("a, b,c d ,\te"), (List{"a", "b", "c d", "e"}));
  EXPECT_EQ(split_list(",a,,b,"), (List{"a", "b"}));
}

}  // namespace
}  // namespace batchproof
