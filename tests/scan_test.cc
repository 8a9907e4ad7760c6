// SPDX-License-Identifier: Apache-2.0
//
// scan as its users run it: classes, exit codes, JSON, where axes and inputs come from, errors.
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/program.h"

namespace batchproof {
namespace {

using nlohmann::json;
using Words = std::vector<std::string>;

class ScanProgram : public ProgramTest {
 protected:
  static Words scan(const std::string& op, const Words& more) {
    Words words = {"scan", op};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // The numbers behind "flips:".
  static std::string flips(const Outcome& outcome) {
    for (const std::string& line : lines(outcome.out)) {
      if (line.rfind("flips: ", 0) == 0) return line.substr(7);
    }
    return "no line of flips in:\n" + outcome.out + outcome.err;
  }
  static Outcome expect_code(const Outcome& outcome, int code) {
    EXPECT_EQ(outcome.code, code) << outcome.out << outcome.err;
    return outcome;
  }
};

// M * N * block^2 <= 2^35: with N = 256 a block of 2048 fits up to 32 rows.
const Words kThreshold = {"--set", "K=2048", "--set", "N=256", "--rows", "1..40"};

TEST_F(ScanProgram, APromiseThatIsKeptExitsWithZero) {
  const Outcome outcome = expect_code(run(scan("matmul", kThreshold)), 0);
  EXPECT_EQ(flips(outcome), "none");
  EXPECT_EQ(last_line(outcome.out), "pass: one class, as promised");
  EXPECT_TRUE(contains(outcome.out, "K = 2048  N = 256  dtype = fp32  M = 1..40")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "order 32/32  1 class     A 1..40")) << outcome.out;
  EXPECT_TRUE(contains(outcome.err, "# axes, inputs  ")) << outcome.err;
}

TEST_F(ScanProgram, APromiseThatIsBrokenExitsWithOne) {
  Words words = scan("matmul", kThreshold);
  words.insert(words.end(), {"--impl", "control-d-chunk-follows-rows", "--json", path("scan.json")});
  const Outcome outcome = expect_code(run(words), 1);
  EXPECT_EQ(flips(outcome), "33");
  EXPECT_TRUE(contains(outcome.out, "2 classes   A 1..32  B 33..40")) << outcome.out;
  EXPECT_EQ(last_line(outcome.out),
            "violation: control-d-chunk-follows-rows promises batch_size, and bytes change with M");
  const json result = json::parse(file_text(path("scan.json")), nullptr, false);
  ASSERT_TRUE(result.is_object());
  EXPECT_EQ(result["schema_version"], 1);
  EXPECT_EQ(result["op"], "matmul");
  EXPECT_EQ(result["implementation"], "control-d-chunk-follows-rows");
  EXPECT_EQ(result["axes"]["K"], "2048");
  EXPECT_EQ(result["row_axis"], "M");
  EXPECT_EQ(result["sizes"], 40);
  EXPECT_EQ(result["verdict"], "violation");
  EXPECT_EQ(result["failed"], true);
  ASSERT_EQ(result["flips"].size(), 1U);
  EXPECT_EQ(result["flips"][0]["at"], 33);
  EXPECT_EQ(result["flips"][0]["after"], 32);
  EXPECT_EQ(result["ports"][0]["port"], "y");
  EXPECT_EQ(result["ports"][0]["intervals"],
            json::parse(R"([{"first": 1, "last": 32, "class": 0}, {"first": 33, "last": 40, "class": 1}])"));
  EXPECT_EQ(result["ports"][0]["witness"]["rows_total"], 32);
  EXPECT_TRUE(result["context"]["build_ids"].contains("program"));
}

TEST_F(ScanProgram, FastModePromisesNothingAndIsNotJudged) {
  Words words = scan("matmul", kThreshold);
  words.insert(words.end(), {"--mode", "fast"});
  const Outcome outcome = expect_code(run(words), 0);
  EXPECT_NE(flips(outcome), "none");
  EXPECT_EQ(last_line(outcome.out), "not judged: cpu-fast does not promise batch_size");
}

TEST_F(ScanProgram, RowsAreRangesAndNumbers) {
  const Outcome outcome =
      expect_code(run(scan("matmul", {"--impl", "control-d-chunk-follows-rows", "--set", "K=2048", "--set", "N=256",
                                      "--rows", "40,1..3,31..32,2", "--victims", "5"})),
                  1);
  EXPECT_EQ(flips(outcome), "40");
  EXPECT_TRUE(contains(outcome.out, "M = 1..40\n6 sizes, 5 victims, ")) << outcome.out;
}

// With ordinary data a BF16 output shows no order; scan goes over to inputs that do, as check does.
TEST_F(ScanProgram, InputsAreChosenSoThatAFlipWouldShow) {
  Words words = scan("matmul", kThreshold);
  words.insert(words.end(), {"--impl", "control-d-chunk-follows-rows", "--set", "dtype=bf16"});
  const Outcome outcome = expect_code(run(words), 1);
  EXPECT_TRUE(contains(outcome.out, "inputs: cancelling: with the accuracy inputs another order moves "))
      << outcome.out;
  EXPECT_EQ(flips(outcome), "33");
}

// Sums of small integers are exact in every order: one class proves nothing.
TEST_F(ScanProgram, OneClassThatNothingCouldHaveSplitIsVacuous) {
  const std::string suite = write("exact.json", R"({"version": 1, "cases": [{"name": "exact", "op": "matmul",
    "axes": {"M": [4], "K": [2048], "N": [256]}, "inputs": [{"name": "x1", "recipe": "small_integer"},
    {"name": "x2", "recipe": "small_integer"}], "standard": {"bi": {}}}]})");
  const Outcome outcome = expect_code(
      run(scan("matmul", {"--impl", "control-d-chunk-follows-rows", "--suite", suite, "--rows", "30..34"})), 1);
  EXPECT_EQ(flips(outcome), "none");
  EXPECT_EQ(
      last_line(outcome.out).rfind("vacuous: another order (order of cpu-fp32fma-chain2) moves no victim of y", 0), 0U)
      << outcome.out;
}

// The dispatch of a public serving engine, at the row counts around each boundary and between them.
#ifdef BATCHPROOF_SANITIZED
const std::string kMhcRows = "1..20,63..66,127..130";
const std::string kMhcLast = "130";
const std::string kMhcFlips = "8 17 129";
const std::map<std::string, std::string> kMhcTail = {{"132", ""}, {"148", ""}};
#else
const std::string kMhcRows =
    "1..20,63..66,127..130,160,191..194,256..258,320..322,384..386,448..450,512..514,576..578,640..642,704..706,"
    "768..770,832..834,896..898,960,1024..1026,1152..1154,1250,1344..1346,1408..1410,1500";
const std::string kMhcLast = "1500";
const std::string kMhcFlips = "8 17 129 193 257 321 385 449 513 577 641 705 769 833 897 1025 1153";
const std::map<std::string, std::string> kMhcTail = {{"132", " 1409"}, {"148", " 1345"}};
#endif

TEST_F(ScanProgram, FusedMhcFlipsWhereTheRuleSays) {
  for (const auto& [processors, tail] : kMhcTail) {
    const Outcome outcome = expect_code(
        run(scan("mhc_fused_post_pre", {"--mode", "fast", "--set", "processors=" + processors, "--rows", kMhcRows})),
        0);
    EXPECT_EQ(flips(outcome), kMhcFlips + tail) << processors;
    EXPECT_TRUE(contains(outcome.out, "  H = 4096  processors = " + processors + "  M = 1.." + kMhcLast))
        << outcome.out;
    for (const std::string& line : lines(outcome.out)) {
      // The stored streams never flip, and could have.
      EXPECT_EQ(line.rfind("flips of residual_out", 0), std::string::npos) << line;
      if (line.rfind("residual_out ", 0) == 0) {
        EXPECT_TRUE(contains(line, "1 class     A 1.." + kMhcLast)) << line;
        EXPECT_FALSE(contains(line, "order 0/")) << line;
      }
      // comb and the merged mixes show every flip in every victim.
      for (const char* port : {"comb_mix_out", "mixes"}) {
        if (line.rfind(std::string("flips of ") + port + ":", 0) != 0) continue;
        std::string expected = std::string("flips of ") + port + ":";
        std::istringstream all(kMhcFlips + tail);
        for (std::string flip; all >> flip;) expected += " " + flip + " (32/32)";
        EXPECT_EQ(line, expected);
      }
    }
  }
}

TEST_F(ScanProgram, InvariantMhcHasOneClass) {
  const Outcome outcome = expect_code(run(scan("mhc_fused_post_pre", {"--mode", "invariant", "--rows", kMhcRows})), 0);
  EXPECT_EQ(flips(outcome), "none");
  EXPECT_EQ(last_line(outcome.out), "pass: one class, as promised");
  EXPECT_TRUE(contains(outcome.out, "mhc_fused_post_pre/cpu-bf16res-tf32fn-chain256  H = 4096  M = 1.." + kMhcLast));
}

TEST_F(ScanProgram, SuiteAndCaseGiveAxesAndInputs) {
  const std::string suite = write("two.json", R"({"version": 1, "cases": [
    {"name": "first", "op": "matmul", "axes": {"M": [4], "K": [64], "N": [8]}, "standard": {"bi": {}}},
    {"name": "second", "op": "matmul", "axes": {"M": [4], "K": [96, 128], "N": [8], "bias": ["normal"]},
     "where": "K == 128", "standard": {"bi": {}}}]})");
  EXPECT_TRUE(contains(run(scan("matmul", {"--suite", suite, "--rows", "1..3"})).out, "  K = 64  N = 8"));
  const Outcome second = expect_code(run(scan("matmul", {"--suite", suite, "--case", "second", "--rows", "1..3"})), 0);
  EXPECT_TRUE(contains(second.out, "  K = 96  N = 8  bias = normal")) << second.out;
  const Outcome missing = expect_code(run(scan("matmul", {"--suite", suite, "--case", "third"})), 2);
  EXPECT_TRUE(contains(missing.err, "two.json has no case third of it")) << missing.err;
}

TEST_F(ScanProgram, OperatorsOfAPluginRunInTheirWorker) {
  const std::string library = std::string(BATCHPROOF_PLUGIN_DIR) + "/faults.so";
  const Words axes = {"--plugin", library, "--set", "K=64", "--set", "N=4", "--rows", "1..5"};
  const Outcome good = expect_code(run(scan("faults", axes)), 0);
  EXPECT_TRUE(contains(good.out, "W = 2")) << good.out;
  Words words = scan("faults", axes);
  words.insert(words.end(), {"--impl", "null"});
  const Outcome crash = expect_code(run(words), 1);
  EXPECT_TRUE(contains(crash.err, "crashed with SIGSEGV")) << crash.err;
  const Outcome bare = expect_code(run(scan("faults", {"--plugin", library, "--set", "N=4"})), 2);
  EXPECT_TRUE(contains(bare.err, "scan faults: the axis K (")) << bare.err;
  EXPECT_TRUE(contains(bare.err, "give --set K=VALUE or --suite FILE")) << bare.err;
}

TEST_F(ScanProgram, ErrorsComeBeforeWorkAndSayWhatWouldBeRight) {
  const std::vector<std::pair<Words, std::string>> bad = {
      {{"scan"}, "operator"},
      {{"scan", "matmull"}, "there is no operator of this name; there are "},
      {{"scan", "matmul", "--rows", "5..4"}, "--rows 5..4: 5 is above 4"},
      {{"scan", "matmul", "--rows", "0..4"}, "\"0\" is not a whole number from 1"},
      {{"scan", "matmul", "--rows", "1..x"}, "\"x\" is not a whole number"},
      {{"scan", "matmul", "--rows", ","}, "row counts such as 1..1500"},
      {{"scan", "matmul", "--set", "M=4"}, "this axis counts the rows; --rows gives it"},
      {{"scan", "matmul", "--set", "K=many"}, "--set K: \"many\" is not a whole number"},
      {{"scan", "matmul", "--set", "colour=red"}, "no operator of"},
      {{"scan", "matmul", "--impl", "nonsense"}, "nonsense"},
      {{"scan", "matmul", "--mode", "slow"}, "--mode slow: modes are invariant and fast"},
      {{"scan", "matmul", "--victims", "0"}, "--victims: \"0\" is not a whole number"},
      {{"scan", "matmul", "--timeout", "-1"}, "--timeout: "},
      {{"scan", "all_gather_matmul", "--ranks", "2,4"}, "scan takes one world size"},
      {{"scan", "matmul", "--json", path("none/scan.json")}, "does not exist"},
  };
  for (const auto& [words, message] : bad) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 2) << message << "\n" << outcome.out << outcome.err;
    EXPECT_EQ(outcome.out, "") << message;
    EXPECT_TRUE(contains(outcome.err, message)) << outcome.err;
  }
  const Outcome cuda = run({"scan", "matmul", "--device", "cuda"}, {{"CUDA_VISIBLE_DEVICES", ""}});
  EXPECT_EQ(cuda.code, 3) << cuda.err;
  EXPECT_TRUE(contains(cuda.err, "no CUDA device")) << cuda.err;
  const Outcome launched = run({"scan", "matmul", "--rows", "1..2"}, {{"OMPI_COMM_WORLD_SIZE", "2"}});
  EXPECT_EQ(launched.code, 2) << launched.err;
  EXPECT_TRUE(contains(launched.err, "start it without mpirun")) << launched.err;
}

TEST_F(ScanProgram, FlagsHaveTwins) {
  const Outcome outcome = run({"scan", "matmul"}, {{"BATCHPROOF_ROWS", "1..3"}, {"BATCHPROOF_SET", "K=96;N=8"}});
  EXPECT_TRUE(contains(outcome.out, "K = 96  N = 8  dtype = fp32  M = 1..3")) << outcome.out << outcome.err;
  const Outcome help = run({"scan", "--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* flag : {"--rows", "--set", "--mode", "--impl", "--victims", "--suite", "--case", "--json", "--ranks",
                           "--plugin", "--seed", "--timeout", "--device", "--comm"}) {
    EXPECT_TRUE(contains(help.out, flag)) << flag;
  }
}

}  // namespace
}  // namespace batchproof
