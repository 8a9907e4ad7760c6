// SPDX-License-Identifier: Apache-2.0
//
// Operators of a shared library, through the program: --plugin, its errors, and what a faulty one costs.
#include <nlohmann/json.hpp>

#include "tests/program.h"

namespace batchproof {
namespace {

std::string plugin(const std::string& stem) { return std::string(BATCHPROOF_PLUGIN_DIR) + "/" + stem + ".so"; }

class PluginCli : public ProgramTest {
 protected:
  std::string suite(const std::string& op, const std::vector<std::string>& implementations) const {
    nlohmann::json cases = nlohmann::json::array();
    for (std::size_t i = 0; i < implementations.size(); ++i) {
      cases.push_back({{"name", "case" + std::to_string(i)},
                       {"op", op},
                       {"impl", implementations[i]},
                       {"axes", {{"W", {2}}, {"M", {3}}, {"K", {64}}, {"N", {4}}}},
                       {"standard", {{"bi", nlohmann::json::object()}}}});
    }
    return write("suite.json", nlohmann::json{{"version", 1}, {"cases", cases}}.dump());
  }
};

TEST_F(PluginCli, AnHonestOperatorPasses) {
  const Outcome outcome =
      run({"check", suite("faults", {"good"}), "--plugin", plugin("faults"), "--json", path("report.json")});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_EQ(last_line(outcome.out), "1 passed, 0 failed, 0 skipped");
  const auto report = nlohmann::json::parse(file_text(path("report.json")));
  EXPECT_TRUE(contains(report.dump(), "faults.so"));  // its build id (C7)
}

TEST_F(PluginCli, AFaultyOneCostsItsCellAndTheOthersAreJudged) {
  const Outcome outcome = run({"check", suite("faults", {"null", "good", "hang", "good", "after-output", "good"}),
                               "--plugin", plugin("faults"), "--timeout", "0.5"});
  EXPECT_EQ(outcome.code, 1) << outcome.out << outcome.err;
  EXPECT_EQ(last_line(outcome.out), "3 passed, 3 failed, 0 skipped");
  const std::string all = outcome.out + outcome.err;
  EXPECT_TRUE(contains(all, "faults crashed with SIGSEGV in run on rank ")) << all;
  EXPECT_TRUE(contains(all, "faults did not return from run within 0.5 s")) << all;
  EXPECT_TRUE(contains(all, "faults wrote outside y on rank 0: 1 byte behind its end")) << all;
}

TEST_F(PluginCli, TheLimitOfACaseGoesBeforeTheRuns) {
  const std::string file = write("limits.json", R"({"version": 1, "cases": [
    {"name": "slow", "op": "faults", "impl": "hang", "axes": {"W": [1], "M": [3], "K": [64], "N": [4]},
     "limits": {"timeout_s": 0.5}, "standard": {"bi": {"relations": ["neighbours"]}},
     "expect": {"error": "did not return from run within 0.5 s"}}]})");
  const Outcome outcome = run({"check", file, "--plugin", plugin("faults"), "--timeout", "3600"});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_EQ(last_line(outcome.out), "1 passed, 0 failed, 0 skipped");
}

TEST_F(PluginCli, RepeatFailsWhereTheFreshProcessHasNoResult) {
  // The fresh process is the first to run; this process gets its base run.
  const Outcome outcome =
      run({"check", suite("faults", {"first-process"}), "--plugin", plugin("faults"), "--relations", "repeat"},
          {{"FAULTS_MARK", path("mark")}});
  EXPECT_EQ(outcome.code, 1) << outcome.out << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "in a fresh process the base run failed: ")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "no process ran before this one")) << outcome.out;
}

TEST_F(PluginCli, SeveralPluginsAtOnce) {
  const std::string file = write("both.json", R"({"version": 1, "cases": [
    {"name": "a", "op": "faults", "axes": {"W": [2], "M": [3], "K": [64], "N": [4]}, "standard": {"bi": {}}},
    {"name": "b", "op": "ranks", "axes": {"W": [2], "M": [3], "K": [64], "N": [4]}, "standard": {"bi": {}}},
    {"name": "c", "op": "matmul", "axes": {"M": [4], "K": [512], "N": [8]}, "standard": {"bi": {}}}]})");
  const Outcome outcome = run({"check", file, "--plugin", plugin("faults"), "--plugin", plugin("ranks")});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_EQ(last_line(outcome.out), "3 passed, 0 failed, 0 skipped");
}

TEST_F(PluginCli, LoadNotesAreContext) {
  const Outcome outcome = run({"check", suite("fast_math", {"good"}), "--plugin", plugin("fast_math")});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "fast_math.so: sets flush-to-zero when loaded")) << outcome.err;
}

TEST_F(PluginCli, BadPluginsAreUsageErrors) {
  const std::string file = suite("faults", {"good"});
  for (const auto& [stem, message] : std::vector<std::pair<std::string, std::string>>{
           {"too_new", "newer than 1, which this program knows"},
           {"no_symbol", "exports no batchproof_operators"},
           {"bad_port", "operator bad_port: port w: row_axis 5 is outside"},
           {"crash_on_load", "licence server not found"}}) {
    const Outcome outcome = run({"check", file, "--plugin", plugin(stem)});
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(lines(outcome.err).size(), 1u) << outcome.err;
    EXPECT_TRUE(contains(outcome.err, message)) << outcome.err;
  }
  EXPECT_EQ(run({"check", file, "--plugin", plugin("faults"), "--plugin", plugin("faults")}).code, 2);
}

TEST_F(PluginCli, TheWorkerVerbIsHiddenAndUselessAlone) {
  EXPECT_FALSE(contains(run({"--help"}).out, "\n  worker "));
  EXPECT_EQ(run({"worker"}).code, 2);
  EXPECT_EQ(run({"worker", "0", "0", "4096", "0", "1"}).code, 2);
}

}  // namespace
}  // namespace batchproof
