// SPDX-License-Identifier: Apache-2.0
//
// Outcomes and wording.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "src/report/control_table.h"
#include "src/report/describe_standards.h"
#include "src/report/sample_run.h"

namespace batchproof {
namespace {

CellResult make_cell(bool control, bool as_expected) {
  CellResult cell;
  cell.is_control = control;
  cell.as_expected = as_expected;
  return cell;
}

TEST(Outcome, EveryCombinationThatMatters) {
  const auto of = [](bool control, bool as_expected, Verdict verdict, Verdict expected) {
    return outcome(make_cell(control, as_expected), sample::relation(BP_POSITION, verdict, expected));
  };
  EXPECT_EQ(of(false, true, Verdict::pass, Verdict::pass), Outcome::good);
  EXPECT_EQ(of(false, false, Verdict::violation, Verdict::pass), Outcome::bad);
  EXPECT_EQ(of(false, false, Verdict::vacuous, Verdict::pass), Outcome::bad);
  EXPECT_EQ(of(false, true, Verdict::vacuous, Verdict::pass), Outcome::allowed);
  EXPECT_EQ(of(false, true, Verdict::vacuous, Verdict::vacuous), Outcome::expected);
  EXPECT_EQ(of(false, true, Verdict::violation, Verdict::violation), Outcome::expected);
  EXPECT_EQ(of(false, false, Verdict::skipped, Verdict::pass), Outcome::skipped);
  EXPECT_EQ(of(false, false, Verdict::pass, Verdict::violation), Outcome::missed);
  EXPECT_EQ(of(true, true, Verdict::violation, Verdict::violation), Outcome::caught);
  EXPECT_EQ(of(true, true, Verdict::pass, Verdict::pass), Outcome::clear);
  EXPECT_EQ(of(true, false, Verdict::pass, Verdict::violation), Outcome::missed);
  EXPECT_EQ(of(true, false, Verdict::vacuous, Verdict::violation), Outcome::missed);
  EXPECT_EQ(of(true, false, Verdict::skipped, Verdict::violation), Outcome::missed);
  EXPECT_EQ(of(true, false, Verdict::violation, Verdict::pass), Outcome::unexpected);
  EXPECT_EQ(of(true, false, Verdict::error, Verdict::violation), Outcome::bad);
}

TEST(Text, ElementsReadBack) {
  EXPECT_EQ(element_text(static_cast<double>(1.1F), BP_FP32), "1.1");
  EXPECT_EQ(element_text(static_cast<double>(std::nextafter(1.1F, 2.0F)), BP_FP32), "1.1000001");
  EXPECT_EQ(element_text(0.1, BP_FP64), "0.1");
  EXPECT_EQ(element_text(-0.0, BP_FP32), "-0");
  EXPECT_EQ(element_text(-7.0, BP_INT32), "-7");
  EXPECT_EQ(element_text(std::numeric_limits<double>::quiet_NaN(), BP_BF16), "nan");
  EXPECT_EQ(element_text(-std::numeric_limits<double>::infinity(), BP_FP32), "-inf");
}

TEST(Text, PercentNeverRoundsToTheEnds) {
  EXPECT_EQ(percent_text(0, 10), "0.0%");
  EXPECT_EQ(percent_text(10, 10), "100.0%");
  EXPECT_EQ(percent_text(1, 1000000), "<0.1%");
  EXPECT_EQ(percent_text(999999, 1000000), ">99.9%");
  EXPECT_EQ(percent_text(37, 6144), "0.6%");
  EXPECT_EQ(percent_text(0, 0), "-");
}

TEST(Text, OneLineKeepsUtf8AndEscapesTheRest) {
  EXPECT_EQ(one_line("plain"), "plain");
  EXPECT_EQ(one_line("a\nb\rc\td"), "a\\nb\\rc\\td");
  EXPECT_EQ(one_line("caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"), "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(one_line("\xff"), "\\xff");
  EXPECT_EQ(one_line("\xc3"), "\\xc3");
  EXPECT_EQ(one_line("\xc0\xaf"), "\\xc0\\xaf");                    // overlong
  EXPECT_EQ(one_line("\xe0\x80\xaf"), "\\xe0\\x80\\xaf");           // overlong
  EXPECT_EQ(one_line("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // surrogate
  EXPECT_EQ(one_line("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // beyond U+10FFFF
  EXPECT_EQ(one_line("\xef\xbf\xbe"), "\\xef\\xbf\\xbe");           // U+FFFE: XML forbids it
  EXPECT_EQ(one_line("\x1b[31m"), "\\x1b[31m");
}

TEST(Failure, OnlyRelationsToBlame) {
  const RunResult run = sample::run();
  EXPECT_TRUE(failing_relations(run.cells[0]).empty());
  ASSERT_EQ(failing_relations(run.cells[1]).size(), 2U);
  EXPECT_EQ(failing_relations(run.cells[1])[0]->relation, static_cast<std::uint32_t>(BP_POSITION));
  EXPECT_TRUE(failing_relations(run.cells[5]).empty());  // an error of the whole cell
  EXPECT_EQ(failing_relations(run.cells[8]).size(), 2U);
}

TEST(ControlTable, WorstMarkOverCellsWins) {
  RunResult run = sample::run();
  ControlTable table = control_table(run);
  ASSERT_EQ(table.rows.size(), 3U);
  const std::vector<std::string> columns = {"neighbours", "repeat", "cross_rank", "acc"};
  EXPECT_EQ(table.columns, columns);
  EXPECT_EQ(std::string(table.rows[0].marks.begin(), table.rows[0].marks.end()), "- Y ");
  EXPECT_EQ(std::string(table.rows[1].marks.begin(), table.rows[1].marks.end()), " m! ");
  EXPECT_EQ(std::string(table.rows[2].marks.begin(), table.rows[2].marks.end()), "  YY");

  // A second cell of the first control where the declared catch does not come.
  CellResult again = run.cells[7];
  again.as_expected = false;
  again.relations = {sample::relation(BP_CROSS_RANK, Verdict::vacuous, Verdict::violation)};
  run.cells.push_back(again);
  table = control_table(run);
  ASSERT_EQ(table.rows.size(), 3U);
  EXPECT_EQ(table.rows[0].cells, 2);
  EXPECT_EQ(std::string(table.rows[0].marks.begin(), table.rows[0].marks.end()), "- m ");
}

TEST(DescribeStandards, AFailureOfAStandardIsNotOneOfARelation) {
  const RunResult run = sample::run();
  const std::vector<Failure> wrong = failures(run.cells[10]);
  ASSERT_EQ(wrong.size(), 1U);  // the vacuous relation is allowed
  EXPECT_EQ(wrong[0].what, "acc");
  EXPECT_EQ(wrong[0].headline.rfind("the result is wrong: ", 0), 0U) << wrong[0].headline;
  const std::vector<Failure> below = failures(run.cells[11]);
  ASSERT_EQ(below.size(), 2U);
  EXPECT_EQ(below[0].headline.rfind("slower than the standard allows: ", 0), 0U);
  EXPECT_EQ(below[1].headline.rfind("needs more memory than the standard allows: ", 0), 0U);
  EXPECT_TRUE(failures(run.cells[9]).empty());
  const std::vector<Failure> variant = failures(run.cells[1]);
  ASSERT_EQ(variant.size(), 2U);
  EXPECT_EQ(variant[0].headline.rfind("row bytes are not equal: ", 0), 0U);
  ASSERT_EQ(failures(run.cells[5]).size(), 1U);
  EXPECT_EQ(failures(run.cells[5])[0].what, "");
}

TEST(DescribeStandards, WhatAControlOwesIsTold) {
  RunResult run = sample::run();
  CellResult control = run.cells[13];
  EXPECT_EQ(outcome(control, standard_views(control)[0]), Outcome::caught);
  control.as_expected = false;
  control.accuracy->verdict = Verdict::pass;
  EXPECT_EQ(outcome(control, standard_views(control)[0]), Outcome::missed);
  EXPECT_EQ(failures(control)[0].headline.rfind("control missed, a wrong result was expected and did not come: ", 0),
            0U);
  control.accuracy->verdict = Verdict::wrong;
  control.accuracy->expected = Verdict::pass;
  EXPECT_EQ(outcome(control, standard_views(control)[0]), Outcome::unexpected);
}

TEST(DescribeStandards, WhatIsOnlyMeasuredIsReported) {
  const RunResult run = sample::run();
  const std::vector<StandardView> views = standard_views(run.cells[9]);
  ASSERT_EQ(views.size(), 3U);
  EXPECT_STREQ(verdict_word(views[1]), "reported");
  EXPECT_EQ(outcome(run.cells[9], views[1]), Outcome::skipped);
  EXPECT_EQ(mean_text(run.means[0]),
            "mean of perf over 2 cells of all_gather_matmul/cpu-fp32fma-chain256: 0.875, must be above 1");
}

}  // namespace
}  // namespace batchproof
