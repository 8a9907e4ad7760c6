// SPDX-License-Identifier: Apache-2.0
//
// The C view of a Problem, read with the helpers that operators use.
#include "src/runtime/problem.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "batchproof/problem.h"

namespace batchproof {
namespace {

Problem example() {
  Problem problem;
  problem.world = 4;
  problem.axes = {{"M", 8}, {"K", 512}};
  problem.attrs = {{"trans", true}, {"limit", std::int64_t{-3}}, {"eps", 1e-6}, {"mode", std::string("aiv")}};
  problem.dtypes = {BP_BF16, BP_NONE, BP_FP32};
  return problem;
}

TEST(ProblemTest, TheViewSaysWhatTheProblemSays) {
  const Problem problem = example();
  const Problem::View view(problem);
  const bp_problem* c = view.get();
  EXPECT_EQ(c->struct_size, sizeof(bp_problem));
  EXPECT_EQ(c->world, 4);
  ASSERT_EQ(c->axis_count, 2u);
  EXPECT_EQ(bp_axis_value(c, "M"), 8);
  EXPECT_EQ(bp_axis_value(c, "K"), 512);
  EXPECT_EQ(bp_axis_value(c, "m"), -1);
  ASSERT_EQ(c->attr_count, 4u);
  EXPECT_EQ(bp_find_attr(c, "trans")->type, BP_ATTR_BOOL);
  EXPECT_EQ(bp_attr_int(c, "trans"), 1);
  EXPECT_EQ(bp_find_attr(c, "limit")->type, BP_ATTR_INT);
  EXPECT_EQ(bp_attr_int(c, "limit"), -3);
  EXPECT_EQ(bp_find_attr(c, "eps")->type, BP_ATTR_FLOAT);
  EXPECT_EQ(bp_find_attr(c, "eps")->f, 1e-6);
  EXPECT_EQ(bp_find_attr(c, "mode")->type, BP_ATTR_STRING);
  EXPECT_STREQ(bp_attr_string(c, "mode"), "aiv");
  EXPECT_EQ(bp_find_attr(c, "none"), nullptr);
  EXPECT_EQ(bp_attr_int(c, "none"), 0);
  EXPECT_STREQ(bp_attr_string(c, "none"), "");
  EXPECT_STREQ(bp_attr_string(c, "limit"), "");
  EXPECT_EQ(std::memcmp(c->dtypes, problem.dtypes.data(), 3 * sizeof(bp_dtype)), 0);
}

TEST(ProblemTest, AFalseFlagIsZero) {
  Problem problem = example();
  problem.attrs["trans"] = false;
  const Problem::View view(problem);
  EXPECT_EQ(bp_find_attr(view.get(), "trans")->type, BP_ATTR_BOOL);
  EXPECT_EQ(bp_attr_int(view.get(), "trans"), 0);
}

TEST(ProblemTest, ACopyIsIndependent) {
  const Problem problem = example();
  Problem copy = problem;
  copy.axes["M"] = 9;
  copy.attrs["mode"] = std::string("a mode name that is too long for a small string");
  const Problem::View original_view(problem);
  const Problem::View copy_view(copy);
  EXPECT_EQ(bp_axis_value(original_view.get(), "M"), 8);
  EXPECT_EQ(bp_axis_value(copy_view.get(), "M"), 9);
  EXPECT_STREQ(bp_attr_string(original_view.get(), "mode"), "aiv");
  EXPECT_STREQ(bp_attr_string(copy_view.get(), "mode"), "a mode name that is too long for a small string");
  EXPECT_EQ(problem.axis("M"), 8);
  EXPECT_EQ(copy.axis("M"), 9);
  EXPECT_EQ(copy.axis("N"), -1);
}

TEST(ProblemTest, AnEmptyProblemHasAView) {
  const Problem problem;
  const Problem::View view(problem);
  EXPECT_EQ(view.get()->world, 1);
  EXPECT_EQ(view.get()->axis_count, 0u);
  EXPECT_EQ(bp_axis_value(view.get(), "M"), -1);
  EXPECT_EQ(bp_find_attr(view.get(), "x"), nullptr);
}

TEST(ProblemTest, HelpersWriteWholeShortTexts) {
  char error[8];
  EXPECT_EQ(bp_fail(error, sizeof(error), BP_INVALID, "K is %d", 1234), BP_INVALID);
  EXPECT_STREQ(error, "K is 12");
  EXPECT_EQ(bp_fail(nullptr, 0, BP_REFUSED, "x"), BP_REFUSED);
  char executed[16] = "stale";
  bp_context context{};
  context.executed = executed;
  context.executed_size = sizeof(executed);
  bp_executed(&context, "cpu-fp32");
  EXPECT_STREQ(executed, "cpu-fp32");
  context.executed = nullptr;
  bp_executed(&context, "cpu-fp32");
}

}  // namespace
}  // namespace batchproof
