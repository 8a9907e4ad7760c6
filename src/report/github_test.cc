// SPDX-License-Identifier: Apache-2.0
#include "src/report/github.h"

#include <sstream>

#include "src/report/sample_run.h"

namespace batchproof {
namespace {

std::string annotations(const RunResult& run, const std::string& workspace = "") {
  std::ostringstream commands;
  GithubReporter reporter(commands, nullptr, workspace);
  sample::feed(reporter, run);
  return commands.str();
}

TEST(Github, GoldenAnnotations) { sample::expect_golden("github.golden", annotations(sample::run())); }
TEST(Github, GoldenSummary) {
  sample::expect_golden("github_summary.golden", github_summary(sample::run(), kSummaryLimit));
}

TEST(Github, Escaping) {
  EXPECT_EQ(github_message("50%\r\na:b,c"), "50%25%0D%0Aa:b,c");
  EXPECT_EQ(github_property("50%\r\na:b,c"), "50%25%0D%0Aa%3Ab%2Cc");
}

TEST(Github, OneAnnotationPerOperatorAndCase) {
  RunResult run = sample::run();
  for (int i = 0; i < 50; ++i) run.cells.push_back(run.cells[1]);
  std::istringstream lines(annotations(run));
  int count = 0;
  bool counted = false;
  for (std::string line; std::getline(lines, line); ++count) {
    // The mean of a performance stands in no file.
    const bool mean = line.find("mean of perf") != std::string::npos;
    EXPECT_EQ(line.rfind(
                  mean ? "::error title=all_gather_matmul / mean of perf::" : "::error file=ops/all_gather_matmul/", 0),
              0U)
        << line;
    counted = counted || line.find("and 50 more cells") != std::string::npos;
  }
  EXPECT_EQ(count, 7);
  EXPECT_TRUE(counted);
}

TEST(Github, FilesAreRelativeToTheWorkspace) {
  RunResult run = sample::run();
  run.cells[1].position.file = "/home/runner/repo/suites/a.json";
  EXPECT_NE(annotations(run, "/home/runner/repo").find("file=suites/a.json,line=20,"), std::string::npos);
  EXPECT_NE(annotations(run, "/home/runner/re").find("file=/home/runner/repo/suites/a.json,"), std::string::npos);
}

TEST(Github, NothingToAnnotateInAGoodRun) {
  RunResult run = sample::run();
  run.cells.resize(1);
  run.means[0].judged = false;
  EXPECT_EQ(annotations(run), "");
}

TEST(Github, SummaryIsCutBelowTheLimitWithANote) {
  RunResult run = sample::run();
  for (int i = 0; i < 3000; ++i) {
    run.cells.push_back(run.cells[1]);
    run.cells.back().case_name = "case" + std::to_string(i);
  }
  std::ostringstream commands;
  std::ostringstream summary;
  GithubReporter reporter(commands, &summary, "");
  sample::feed(reporter, run);
  const std::string text = summary.str();
  EXPECT_LE(text.size(), kSummaryLimit);
  EXPECT_GT(text.size(), kSummaryLimit - 10000);
  EXPECT_NE(text.find("(cut here: "), std::string::npos);
  // Every code block is closed, or the note would be inside one.
  std::size_t fences = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) fences += line.rfind("```", 0) == 0;
  EXPECT_EQ(fences % 2, 0U);
  EXPECT_EQ(github_summary(run, 10), "");
}

}  // namespace
}  // namespace batchproof
