// SPDX-License-Identifier: Apache-2.0
//
// A launch judges as threads do: the same verdicts and digests, one table, and errors that are said once.
#include <fmt/format.h>

#include <map>

#include "tests/mpi/mpi_launch.h"

namespace batchproof {
namespace {

using nlohmann::json;

class MpiVerdict : public MpiTest {
 protected:
  // Operators that between them call all_gather, reduce_scatter, all_reduce and all_to_all, in both orders of
  // summation; a control that is caught and one that only ranks can catch; worlds of part of the launch and of all of
  // it.
  std::string suite() const {
    return write("suite.json", R"({"version": 1, "cases": [
  {"name": "gather", "op": "all_gather_matmul", "axes": {"W": [2, 8], "M": [3], "K": [64], "N": [16], "dtype": ["bf16"]},
   "standard": {"bi": {"relations": ["repeat", "neighbours", "position", "cross_rank"]}, "acc": "default"}},
  {"name": "scatter", "op": "matmul_reduce_scatter", "axes": {"W": [4], "M": [8], "K": [256], "N": [16], "dtype": ["bf16"]},
   "standard": {"bi": {"relations": ["neighbours", "position", "comm_mode"]}}},
  {"name": "reduce", "op": "matmul_all_reduce", "axes": {"W": [8], "M": [8], "K": [256], "N": [16], "dtype": ["bf16"]},
   "standard": {"bi": {"relations": ["repeat", "neighbours", "cross_rank", "poison", "world_size"]}}},
  {"name": "exchange", "op": "alltoall_matmul", "axes": {"W": [2, 4], "M": [8], "K": [64], "N": [16], "dtype": ["fp32"]},
   "standard": {"bi": {"relations": ["neighbours", "position", "threads"]}}},
  {"name": "rotated", "op": "matmul_all_reduce", "impl": "control-e-rotated-ranks",
   "axes": {"W": [4], "M": [16], "K": [256], "N": [16], "dtype": ["bf16"]},
   "standard": {"bi": {"relations": ["neighbours", "position"], "inputs": "shared"}},
   "expect": {"neighbours": "pass", "position": "violation"}}
]})");
  }

  static std::map<std::string, json> cells_of(const json& report) {
    std::map<std::string, json> cells;
    for (const json& cell : report.value("cells", json::array())) cells[cell["id"]] = cell;
    return cells;
  }
  // One line per cell, as a list that cmp could compare.
  static std::string digests_of(const json& report) {
    std::string list;
    for (const auto& [id, cell] : cells_of(report)) list += id + " " + cell["digests"].dump() + "\n";
    return list;
  }
  static std::string verdicts_of(const json& report) {
    std::string list;
    for (const auto& [id, cell] : cells_of(report)) {
      list += id + " " + cell["verdict"].dump() + " " + cell["inputs"].dump() + "\n";
      for (const json& relation : cell["relations"]) {
        for (const char* key : {"relation", "verdict", "first"}) list += fmt::format(" {}", relation[key].dump());
        // Over MPI no world may be larger than the launch, so there are fewer of them to compare.
        if (relation["relation"] != "world_size") {
          for (const char* key : {"bytes_compared", "bytes_differing", "witness"})
            list += fmt::format(" {}", relation[key].dump());
        }
        list += "\n";
      }
    }
    return list;
  }
};

TEST_F(MpiVerdict, VerdictsAndDigestsAreThoseOfThreads) {
  const Outcome processes = launch(8, {"check", suite(), "--json", path("mpi.json")});
  const Outcome threads = run({"check", suite(), "--json", path("threads.json")});
  ASSERT_EQ(threads.code, 0) << threads.out << threads.err;
  EXPECT_EQ(processes.code, 0) << processes.out << processes.err;
  const json over_mpi = report_of(path("mpi.json"));
  const json in_process = report_of(path("threads.json"));
  ASSERT_EQ(cells_of(in_process).size(), 7u);
  EXPECT_EQ(digests_of(over_mpi), digests_of(in_process));
  EXPECT_EQ(verdicts_of(over_mpi), verdicts_of(in_process));
  // What is compared is there and tells cells apart.
  std::map<std::string, int> digests;
  for (const auto& [id, cell] : cells_of(in_process)) ++digests[cell["digests"].dump()];
  EXPECT_EQ(digests.size(), 7u) << digests_of(in_process);
  EXPECT_NE(verdicts_of(in_process).find("\"violation\""), std::string::npos);
  EXPECT_TRUE(contains(over_mpi["context"]["communicator"].get<std::string>(), "mpi: 8 processes"));
  EXPECT_EQ(in_process["context"]["communicator"], "threads");

  // Rank 0 alone speaks: the console is that of the thread run, once.
  EXPECT_EQ(last_line(processes.out), "7 passed, 0 failed, 0 skipped");
  for (const std::string& line :
       {std::string("# matmul_all_reduce / "), std::string("7 passed, 0 failed, 0 skipped")}) {
    EXPECT_GE(count(threads.out, line), 1) << line;
    EXPECT_EQ(count(processes.out, line), count(threads.out, line)) << line << "\n" << processes.out;
  }
  EXPECT_EQ(lines(processes.out).size(), lines(threads.out).size()) << processes.out;
  EXPECT_EQ(processes.out.find('\x1b'), std::string::npos) << "colour, and this is no terminal";
  EXPECT_EQ(count(processes.err, "# communicator  mpi: 8 processes"), 1) << processes.err;
  EXPECT_EQ(count(processes.err, "# seed "), 1) << processes.err;
}

TEST_F(MpiVerdict, CellsOfMoreRanksThanTheLaunchAreSkippedWithTheReason) {
  const std::string file = write("worlds.json", R"({"version": 1, "cases": [
  {"name": "worlds", "op": "all_gather_matmul", "axes": {"W": [2, 3, 4, 8], "M": [2], "K": [64], "N": [8], "dtype": ["bf16"]},
   "standard": {"bi": {"relations": ["position", "cross_rank"]}}}
]})");
  const Outcome outcome = launch(3, {"check", file, "--json", path("r.json")});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_EQ(last_line(outcome.out), "2 passed, 0 failed, 2 skipped");
  const auto cells = cells_of(report_of(path("r.json")));
  ASSERT_EQ(cells.size(), 4u);
  std::map<std::string, std::string> digests;
  for (const auto& [id, cell] : cells) {
    const std::string world = cell["axes"]["W"];
    const bool fits = std::stoi(world) <= 3;
    EXPECT_EQ(cell["verdict"], fits ? "pass" : "skipped") << id;
    EXPECT_EQ(cell["reason"], fits ? "" : fmt::format("{0} ranks need {0} processes, mpirun started 3", world)) << id;
    EXPECT_EQ(cell["digests"].empty(), !fits) << id;
  }
  // Nothing but such cells: 77.
  const Outcome none = launch(2, {"check", file, "--filter", "W=8"});
  EXPECT_EQ(none.code, 77) << none.out << none.err;
  EXPECT_TRUE(contains(none.out, "8 ranks need 8 processes, mpirun started 2")) << none.out;
}

TEST_F(MpiVerdict, AWrongArgumentIsOneErrorAndExitCode2) {
  const std::string file = suite();
  const std::vector<std::vector<std::string>> wrong = {
      {"check", file, "--no-such-flag"},    {"chek", file},
      {"check", file, "--comm", "pigeons"}, {"check", file, "--timeout", "soon"},
      {"check", path("missing.json")},
  };
  for (const auto& words : wrong) {
    const Outcome outcome = launch(3, words);
    EXPECT_EQ(outcome.code, 2) << words.back() << outcome.err;
    EXPECT_EQ(count(outcome.err, "batchproof: error: "), 1) << words.back() << "\n" << outcome.err;
    EXPECT_EQ(count(outcome.err, "batchproof: error: rank"), 0) << "an error of all is rank 0's\n" << outcome.err;
    EXPECT_EQ(outcome.out.find("passed"), std::string::npos) << outcome.out;
  }
  // Whichever rank comes first. Here rank 0 comes a second after the others have found it.
  std::vector<std::string> late = mpirun_words(1);
  for (const char* word : {"sh", "-c", "sleep 1; exec \"$0\" chek", BATCHPROOF_PROGRAM}) late.emplace_back(word);
  for (const char* word : {":", "-n", "2", BATCHPROOF_PROGRAM, "chek"}) late.emplace_back(word);
  const Outcome outcome = spawn(BATCHPROOF_MPIRUN, late, {});
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_EQ(count(outcome.err, "batchproof: error: there is no verb"), 1) << outcome.err;
  EXPECT_EQ(count(outcome.err, "batchproof: error: rank"), 0) << outcome.err;
  // The report of an earlier run stays as it was.
  write("r.json", "earlier");
  EXPECT_EQ(launch(2, {"check", file, "--json", path("r.json"), "--seed", "-1"}).code, 2);
  EXPECT_EQ(file_text(path("r.json")), "earlier");
}

// Commands of two kinds in one launch: what only rank 1 finds wrong is said by rank 1, under its name.
TEST_F(MpiVerdict, AnErrorOfOneRankNamesIt) {
  const std::string file = suite();
  std::vector<std::string> words = with_program(mpirun_words(1), {"check", file, "--json", path("r.json")});
  for (const char* word : {":", "-n", "1", BATCHPROOF_PROGRAM, "check"}) words.emplace_back(word);
  std::vector<std::string> missing = words;
  missing.push_back(path("missing.json"));
  const Outcome outcome = spawn(BATCHPROOF_MPIRUN, missing, {});
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_EQ(count(outcome.err, "batchproof: error: "), 1) << outcome.err;
  EXPECT_EQ(count(outcome.err, "batchproof: error: rank 1: "), 1) << outcome.err;
  EXPECT_EQ(outcome.out.find("passed"), std::string::npos) << outcome.out;
  EXPECT_FALSE(std::filesystem::exists(path("r.json")));

  // Before the ranks know of each other too.
  std::vector<std::string> unknown = words;
  unknown.insert(unknown.end(), {file, "--no-such-flag"});
  const Outcome alone = spawn(BATCHPROOF_MPIRUN, unknown, {});
  EXPECT_EQ(alone.code, 2) << alone.err;
  EXPECT_EQ(count(alone.err, "batchproof: error: rank 1: "), 1) << alone.err;
  EXPECT_EQ(alone.out.find("passed"), std::string::npos) << alone.out;

  std::vector<std::string> different = words;
  different.push_back(file);
  different.insert(different.end(), {"--seed", "7"});
  const Outcome other = spawn(BATCHPROOF_MPIRUN, different, {});
  EXPECT_EQ(other.code, 3) << other.err;
  EXPECT_EQ(count(other.err, "batchproof: error: "), 1) << other.err;
  EXPECT_TRUE(contains(other.err, "batchproof: error: rank 1 has another program or other suites")) << other.err;
}

}  // namespace
}  // namespace batchproof
