// SPDX-License-Identifier: Apache-2.0
//
// A launch that loses a rank ends: with exit code 3, in time, with the results so far. The run is never near its end
// when a rank is taken away, and nothing here waits for a time to pass.
#include <fmt/format.h>

#include <regex>

#include "tests/mpi/mpi_launch.h"

namespace batchproof {
namespace {

constexpr int kRanks = 4;
constexpr int kCells = 450;
constexpr int kOfMpirun = -1;  // whatever code mpirun has for it, but not 0

class MpiLoss : public MpiTest {
 protected:
  void SetUp() override {
    MpiTest::SetUp();
    std::string sizes;
    for (int m = 1; m <= kCells; ++m) sizes += fmt::format("{}{}", m == 1 ? "" : ", ", m);
    suite_ = write("suite.json", R"({"version": 1, "cases": [{"name": "long", "op": "all_gather_matmul",
  "axes": {"W": [4], "M": [)" + sizes +
                                     R"(], "K": [32], "N": [8], "dtype": ["fp32"]},
  "standard": {"bi": {"relations": ["position"]}}}]})");
    report_ = path("r.json");
  }

  void TearDown() override {
    end_all();
    if (launcher_ > 0) wait_for(launcher_);
    MpiTest::TearDown();
  }

  // Whatever a failed test has left.
  void end_all() const {
    if (launcher_ > 0) kill(launcher_, SIGKILL);
    for (const RankProcesses& rank : ranks_) {
      for (const pid_t pid : {rank.guard, rank.worker}) {
        if (pid > 0 && alive(pid)) kill(pid, SIGKILL);
      }
    }
  }

  // A run of which some cells are done. Each rank's processes are in `ranks_`.
  void begin(const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"check", suite_, "--json", report_};
    words.insert(words.end(), more.begin(), more.end());
    launcher_ = start_launch(kRanks, words);
    ASSERT_GT(launcher_, 0);
    ASSERT_TRUE(eventually([&] { return done_in_journal() >= 2; })) << "no cell was ever done";
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks_.push_back(rank_of(launcher_, rank));
      ASSERT_GT(ranks_.back().worker, 0) << rank;
    }
  }

  int done_in_journal() const { return count(file_text(report_ + ".partial"), "\n{\"cell\":"); }

  // The run ends with `code` and leaves no process behind.
  Outcome expect_end(int code) {
    EXPECT_TRUE(eventually([&] { return has_ended(launcher_); })) << "the run goes on";
    if (HasFailure()) end_all();
    const Outcome outcome = wait_for(launcher_);
    launcher_ = -1;
    if (code == kOfMpirun) {
      EXPECT_NE(outcome.code, 0) << outcome.err;
    } else {
      EXPECT_EQ(outcome.code, code) << outcome.err;
    }
    for (const RankProcesses& rank : ranks_) {
      for (const pid_t pid : {rank.guard, rank.worker})
        EXPECT_TRUE(eventually([&] { return !alive(pid); })) << "a process stays behind";
    }
    if (!HasFailure()) ranks_.clear();
    return outcome;
  }

  // Cells in the report, all as they should be.
  void expect_cells(const json& cells) const {
    EXPECT_GE(cells.size(), 2u);
    EXPECT_LT(cells.size(), static_cast<std::size_t>(kCells)) << "the run was not cut short";
    for (const json& cell : cells) {
      EXPECT_EQ(cell["verdict"], "pass") << cell["id"];
      EXPECT_FALSE(cell["digests"].empty()) << cell["id"];
    }
  }

  // Rank 0 writes what there is, maybe a moment after mpirun has ended. mpirun may lose the end of the table then, but
  // there are no two.
  void expect_report(const Outcome& outcome) const {
    ASSERT_TRUE(eventually([&] { return std::filesystem::exists(report_); }));
    const json report = report_of(report_);
    ASSERT_TRUE(report.is_object());
    expect_cells(report["cells"]);
    EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(report_ + ".partial"); }));
    EXPECT_EQ(count(outcome.out, "# all_gather_matmul / "), 1) << outcome.out;
    EXPECT_LE(count(outcome.out, " passed, "), 1) << outcome.out;
  }

  // Nothing of what was done is done again, and nothing is left out.
  void expect_resumes(std::size_t cells) const {
    const Outcome rest = run({"check", suite_, "--resume", report_, "--json", path("all.json")});
    EXPECT_EQ(rest.code, 0) << rest.err;
    EXPECT_TRUE(contains(rest.err, fmt::format("resumed: {} of {} cells were done before", cells, kCells))) << rest.err;
    EXPECT_EQ(last_line(rest.out), fmt::format("{} passed, 0 failed, 0 skipped", kCells));
  }

  std::string suite_, report_;
  pid_t launcher_ = -1;
  std::vector<RankProcesses> ranks_;
};

// A rank that waits for the one that hangs may itself be missed by who reports: both are named then.
bool names_late_rank(const std::string& text, int rank) {
  const std::regex sentence("ranks? ([0-9, ]*) did not come to ");
  for (std::sregex_iterator it(text.begin(), text.end(), sentence), end; it != end; ++it) {
    const std::string ranks = ", " + (*it)[1].str() + ",";
    if (ranks.find(fmt::format(", {},", rank)) != std::string::npos) return true;
  }
  return false;
}

TEST_F(MpiLoss, AKilledRankEndsTheRunAndItsResultsStay) {
  ASSERT_NO_FATAL_FAILURE(begin());
  kill(ranks_[2].worker, SIGKILL);
  const Outcome outcome = expect_end(3);
  EXPECT_EQ(count(outcome.err, "batchproof: error: rank 2: the process was ended by signal 9 (Killed)"), 1)
      << outcome.err;
  expect_report(outcome);
  expect_resumes(report_of(report_)["cells"].size());
}

// Who could have written the report is gone: the journal has the cells.
TEST_F(MpiLoss, AKilledRank0LeavesTheJournal) {
  ASSERT_NO_FATAL_FAILURE(begin());
  kill(ranks_[0].worker, SIGKILL);
  const Outcome outcome = expect_end(3);
  EXPECT_TRUE(contains(outcome.err, "the process was ended by signal 9 (Killed)")) << outcome.err;
  EXPECT_FALSE(std::filesystem::exists(report_));
  const int done = done_in_journal();
  EXPECT_GE(done, 2);
  EXPECT_LT(done, kCells);
  expect_resumes(static_cast<std::size_t>(done));
}

TEST_F(MpiLoss, ARankThatHangsIsNamedAfterTheTimeLimit) {
  ASSERT_NO_FATAL_FAILURE(begin({"--timeout", "2"}));
  kill(ranks_[3].worker, SIGSTOP);
  const Outcome outcome = expect_end(3);
  EXPECT_TRUE(names_late_rank(outcome.err, 3)) << outcome.err;
  EXPECT_EQ(count(outcome.err, " within 2 s (--timeout)"), 1) << outcome.err;
  expect_report(outcome);
}

// The others see it, and rank 0 goes on for as long as it takes to write.
TEST_F(MpiLoss, ARank0ThatHangsEndsTheRunToo) {
  ASSERT_NO_FATAL_FAILURE(begin({"--timeout", "2"}));
  kill(ranks_[0].worker, SIGSTOP);
  const Outcome outcome = expect_end(3);
  EXPECT_TRUE(names_late_rank(outcome.err, 0)) << outcome.err;
  // mpirun gives rank 0 a second from its signal on. Where the machine is so busy that this is too short, the journal
  // has what was done.
  if (eventually([&] { return std::filesystem::exists(report_); })) {
    expect_report(outcome);
  } else {
    EXPECT_GE(done_in_journal(), 2);
  }
}

// The last two: mpirun has its own code for it, and may be gone before rank 0 has written.
TEST_F(MpiLoss, AKilledGuardEndsTheRunAndItsResultsStay) {
  ASSERT_NO_FATAL_FAILURE(begin());
  kill(ranks_[1].guard, SIGKILL);
  expect_report(expect_end(kOfMpirun));
}

TEST_F(MpiLoss, ARunThatIsToldToEndKeepsItsResults) {
  ASSERT_NO_FATAL_FAILURE(begin());
  kill(launcher_, SIGTERM);
  expect_report(expect_end(kOfMpirun));
}

}  // namespace
}  // namespace batchproof
