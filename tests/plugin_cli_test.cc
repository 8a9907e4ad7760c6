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

// ---- standards beside invariance: through a worker process ----

// One case with all four standards.
std::string standards_case(const std::string& name, const std::string& extra) {
  return R"({"name": ")" + name + R"(", "op": "standards", "impl": ")" + name +
         R"(", "axes": {"W": [2], "M": [3], "K": [64], "N": [4]},
      "standard": {"acc": "cv_fused_double_benchmark", "perf": [0.9, 0.5], "mem": 1.1, "bi": {}})" +
         extra + "}";
}

TEST_F(PluginCli, AccuracyPerformanceAndMemoryStandBesideInvariance) {
  const std::string file = write("s.json", R"({"version": 1, "cases": [)" + standards_case("good", "") + "," +
                                               standards_case("off", R"(, "expect": {"acc": "wrong"})") + "]}");
  const Outcome outcome = run({"check", file, "--plugin", plugin("standards"), "--perf", "judge", "--json",
                               path("report.json"), "--junit", path("junit.xml")});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_EQ(last_line(outcome.out), "2 passed, 0 failed, 0 skipped");
  const auto report = nlohmann::json::parse(file_text(path("report.json")));
  const auto& good = report["cells"][0];
  EXPECT_EQ(good["verdict"], "pass");
  EXPECT_EQ(good["relations"].size(), 5u);
  EXPECT_EQ(good["accuracy"]["benchmark"], "unfused");
  EXPECT_EQ(good["accuracy"]["ports"][0]["elements"], 2 * 6 * 4);
  EXPECT_GE(good["performance"]["benchmark_seconds"], 0.004);
  EXPECT_EQ(good["performance"]["verdict"], "pass");
  EXPECT_EQ(good["memory"]["ratio"], 1.0);
  EXPECT_EQ(good["memory"]["device_workspace"], 4 * 6 * 64);
  const auto& off = report["cells"][1];
  EXPECT_EQ(off["verdict"], "wrong");
  EXPECT_EQ(off["as_expected"], true);
  for (const auto& relation : off["relations"]) EXPECT_EQ(relation["verdict"], "pass");
  EXPECT_EQ(report["context"]["settings"]["perf"], "judge");
  ASSERT_EQ(report["performance_means"].size(), 2u);
}

TEST_F(PluginCli, AMissedStandardFailsWithItsOwnWords) {
  const std::string file =
      write("s.json", R"({"version": 1, "cases": [)" + standards_case("off", "") + "," +
                          standards_case("sluggish", "") + "," + standards_case("greedy", "") + "]}");
  const Outcome judged = run({"check", file, "--plugin", plugin("standards"), "--perf", "judge", "--relations",
                              "repeat", "--junit", path("junit.xml")});
  EXPECT_EQ(judged.code, 1) << judged.out << judged.err;
  // Three cells, and the mean over the sluggish one.
  EXPECT_EQ(last_line(judged.out), "0 passed, 4 failed, 0 skipped");
  for (const char* text : {"the result is wrong: standards/off/off/",
                           "slower than the standard allows: ", "needs more memory than the standard allows: ",
                           "mean of perf over 1 cell of "
                           "standards/sluggish: ",
                           "--perf judge"})
    EXPECT_TRUE(contains(judged.out, text)) << text << "\n" << judged.out;
  EXPECT_FALSE(contains(judged.out, "row bytes are not equal"));
  const std::string junit = file_text(path("junit.xml"));
  for (const char* type : {"type=\"unexpected\"", "type=\"slow\"", "type=\"heavy\""})
    EXPECT_TRUE(contains(junit, type)) << type << "\n" << junit;

  // Without the word, performance is reported and judged by nobody.
  const Outcome reported = run({"check", file, "--plugin", plugin("standards"), "--relations", "repeat"});
  EXPECT_EQ(last_line(reported.out), "1 passed, 2 failed, 0 skipped");
  EXPECT_TRUE(contains(reported.out, "reported"));
  const Outcome off = run({"check", file, "--plugin", plugin("standards"), "--relations", "repeat", "--perf", "off"});
  EXPECT_FALSE(contains(off.out, " perf ")) << off.out;
}

TEST_F(PluginCli, AnotherPerfIsAnotherRun) {
  const std::string file = write("s.json", R"({"version": 1, "cases": [)" + standards_case("good", "") + "]}");
  const std::vector<std::string> first = {"check",       file,     "--plugin", plugin("standards"),
                                          "--relations", "repeat", "--json",   path("r.json")};
  ASSERT_EQ(run(first).code, 0);
  std::vector<std::string> second = first;
  second.insert(second.end(), {"--resume", path("r.json")});
  EXPECT_EQ(run(second).code, 0);
  second.insert(second.end(), {"--perf", "judge"});
  const Outcome refused = run(second);
  EXPECT_EQ(refused.code, 2) << refused.err;
  EXPECT_TRUE(contains(refused.err, "perf=judge")) << refused.err;
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
