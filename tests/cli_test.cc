// SPDX-License-Identifier: Apache-2.0
//
// The command line: verbs, flags, environment twins, selection, exit codes. Nothing here runs a cell for long.
#include <nlohmann/json.hpp>
#include <set>

#include "tests/program.h"

namespace batchproof {
namespace {

class Cli : public ProgramTest {
 protected:
  // 6 cells.
  std::string suite(const std::string& name = "suite.json") const {
    return write(name, R"({"version": 1, "cases": [
  {"name": "a", "op": "matmul", "axes": {"M": [2, 4], "K": [512], "N": [8, 16]}, "standard": {"bi": {}}},
  {"name": "b", "op": "matmul", "axes": {"M": [3, 5], "K": [512], "N": [8]}, "standard": {"bi": {}}}]})");
  }
};

TEST_F(Cli, HelpAndVersion) {
  for (const auto& arguments : std::vector<std::vector<std::string>>{{}, {"--help"}, {"-h"}}) {
    const Outcome help = run(arguments);
    EXPECT_EQ(help.code, 0);
    for (const char* verb : {"check", "list", "doctor", "schema", "scan", "certify"}) {
      EXPECT_TRUE(contains(help.out, verb)) << verb;
    }
    EXPECT_FALSE(contains(help.out, "\n  digest "));
    EXPECT_EQ(help.err, "");
  }
  const Outcome version = run({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_EQ(version.out.rfind("batchproof ", 0), 0U);
  EXPECT_EQ(lines(version.out).size(), 1U);
  const Outcome check = run({"check", "--help"});
  EXPECT_EQ(check.code, 0);
  for (const char* flag :
       {"--device",    "--comm",      "--ranks", "--plugin",  "--mode",    "--impl",  "--set", "--filter",
        "--shard",     "--relations", "--seed",  "--json",    "--junit",   "--html",  "--tap", "--resume",
        "--fail-fast", "--as-cases",  "--perf",  "--timeout", "--dry-run", "--detail"}) {
    EXPECT_TRUE(contains(check.out, flag)) << flag;
  }
}

TEST_F(Cli, UnknownVerbSuggestsTheNearest) {
  const Outcome typo = run({"chek"});
  EXPECT_EQ(typo.code, 2);
  EXPECT_EQ(typo.out, "");
  EXPECT_TRUE(contains(typo.err, "there is no verb \"chek\"; did you mean check?")) << typo.err;
  EXPECT_TRUE(contains(run({"docter"}).err, "did you mean doctor?"));
  EXPECT_TRUE(contains(run({"skan"}).err, "did you mean scan?"));
  EXPECT_FALSE(contains(run({"xyzzyxyzzy"}).err, "did you mean"));
}

TEST_F(Cli, VerbsNotBuiltYetSaySo) {
  for (const char* verb : {"explain", "bench", "merge", "compare", "shrink", "certify", "verify"}) {
    const Outcome outcome = run({verb, "matmul", "--whatever"});
    EXPECT_EQ(outcome.code, 2) << verb;
    EXPECT_TRUE(contains(outcome.err, std::string(verb) + " is not built yet")) << outcome.err;
  }
}

TEST_F(Cli, BadFlagsAreUsageErrorsThatNameTheFlag) {
  const std::string file = suite();
  const std::vector<std::pair<std::vector<std::string>, std::string>> bad = {
      {{"--nonsense"}, "--nonsense"},
      {{"--ranks", "2,x"}, "--ranks: \"x\""},
      {{"--ranks", "0"}, "--ranks: \"0\""},
      {{"--ranks", "2,2"}, "listed twice"},
      {{"--ranks", ","}, "--ranks"},
      {{"--seed", "-1"}, "--seed: \"-1\""},
      {{"--seed", "18446744073709551616"}, "--seed"},
      {{"--seed", "1x"}, "--seed"},
      {{"--shard", "0/2"}, "--shard: \"0\""},
      {{"--shard", "3/2"}, "--shard: \"3\""},
      {{"--shard", "1"}, "--shard 1: i/n is needed"},
      {{"--shard", "1/0"}, "--shard"},
      {{"--mode", "quick"}, "--mode quick: modes are invariant and fast"},
      {{"--device", "tpu"}, "--device tpu"},
      {{"--device", "cuda:x"}, "--device cuda:x: devices are"},
      {{"--comm", "carrier-pigeon"}, "--comm carrier-pigeon"},
      {{"--relations", "neighbors"}, "\"neighbors\" is not a relation; relations are neighbours"},
      {{"--set", "K"}, "--set K: NAME=VALUE"},
      {{"--set", "a=1", "--set", "a=2"}, "a is set twice"},
      {{"--filter", "("}, "--filter (: not a regular expression"},
      {{"--perf", "maybe"}, "--perf maybe"},
      {{"--timeout", "0"}, "--timeout"},
      {{"--timeout", "nan"}, "--timeout"},
      {{"--detail", "none"}, "--detail none"},
      {{"--plugin", "./my_op.so"}, "./my_op.so"},
      {{"--impl", "no-such"}, "no-such"},
      {{"--json", path("no/such/folder.json")}, "does not exist"},
      {{"--json", "/tmp"}, "this is a folder"},
      {{"--json", path("same"), "--tap", path("same")}, "another report goes to the same file"},
      {{"--resume", path("missing.json")}, "missing.json"},
      {{"--json"}, "--json"},
      {{"--device", "cuda", "--comm", "threads"}, "ranks on a CUDA device are virtual"},
  };
  for (const auto& [flags, message] : bad) {
    std::vector<std::string> arguments = {"check", file};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << flags[0] << ": " << outcome.err;
    EXPECT_EQ(outcome.out, "") << flags[0];
    EXPECT_TRUE(contains(outcome.err, message)) << flags[0] << ": " << outcome.err;
  }
}

TEST_F(Cli, MissingEnvironmentIsThree) {
  const std::string file = suite();
  const std::vector<std::pair<std::vector<std::string>, std::string>> missing = {
      {{"--device", "cuda"}, "no CUDA device"},  {{"--device", "cuda:1"}, "no CUDA device"},
      {{"--comm", "mpi"}, "--comm mpi: "},       {{"--comm", "nccl"}, "no NCCL support"},
      {{"--comm", "virtual"}, "no CUDA device"},
  };
  for (const auto& [flags, message] : missing) {
    const Outcome outcome = run({"check", file, flags[0], flags[1]}, {{"CUDA_VISIBLE_DEVICES", ""}});
    EXPECT_EQ(outcome.code, 3) << flags[1];
    EXPECT_TRUE(contains(outcome.err, message)) << outcome.err;
  }
  // Usage goes before environment.
  EXPECT_EQ(run({"check", file, "--device", "cuda", "--seed", "x"}).code, 2);
  EXPECT_EQ(run({"check", file, "--dry-run"}, {{"BATCHPROOF_DEVICE", "cuda"}, {"CUDA_VISIBLE_DEVICES", ""}}).code, 3);
}

TEST_F(Cli, BadSuitesAreUsageErrors) {
  const Outcome missing = run({"check", path("missing.json")});
  EXPECT_EQ(missing.code, 2);
  EXPECT_TRUE(contains(missing.err, "missing.json")) << missing.err;
  const Outcome unknown = run({"check", write("bad.json", "{\"version\": 1,\n \"cases\": [], \"nonsense\": 1}")});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_TRUE(contains(unknown.err, "bad.json:2:")) << unknown.err;
  EXPECT_EQ(run({"check", suite(), write("empty.json", "")}).code, 2);
}

TEST_F(Cli, DryRunPrintsIdsAndTheirCount) {
  const Outcome outcome = run({"check", suite(), "--dry-run"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const std::vector<std::string> printed = lines(outcome.out);
  ASSERT_EQ(printed.size(), 7U);
  EXPECT_EQ(printed.back(), "6 cells");
  const std::set<std::string> ids(printed.begin(), printed.end() - 1);
  EXPECT_EQ(ids.size(), 6U);
  for (const std::string& id : ids) EXPECT_EQ(id.rfind("matmul/cpu-fp32fma-chain256/", 0), 0U) << id;
}

TEST_F(Cli, SeveralSuitesAndTwins) {
  const std::string first = suite();
  const std::string second = write("other.json", R"({"version": 1, "cases": [{"name": "c", "op": "matmul",
        "axes": {"M": [2], "K": [512], "N": [8]}, "standard": {"bi": {}}}]})");
  EXPECT_EQ(last_line(run({"check", first, second, "--dry-run"}).out), "7 cells");
  const Outcome twice = run({"check", first, first, "--dry-run"});
  EXPECT_EQ(twice.code, 2);
  EXPECT_TRUE(contains(twice.err, "is also at")) << twice.err;
}

TEST_F(Cli, FilterSelectsByRegularExpression) {
  const std::string file = suite();
  EXPECT_EQ(last_line(run({"check", file, "--dry-run", "--filter", "/a/"}).out), "4 cells");
  EXPECT_EQ(last_line(run({"check", file, "--dry-run", "--filter", "M=[35]"}).out), "2 cells");
  const Outcome nothing = run({"check", file, "--filter", "no such cell"});
  EXPECT_EQ(nothing.code, 2);
  EXPECT_TRUE(contains(nothing.err, "nothing selected")) << nothing.err;
  // Also where a shard is asked for: the filter is to blame, not the shard.
  EXPECT_EQ(run({"check", file, "--filter", "no such cell", "--shard", "1/3"}).code, 2);
}

TEST_F(Cli, ShardsPartitionTheSelection) {
  const std::string file = suite();
  const std::vector<std::string> all = lines(run({"check", file, "--dry-run"}).out);
  for (const int count : {1, 2, 4, 9}) {
    std::multiset<std::string> together;
    std::size_t smallest = 100;
    std::size_t largest = 0;
    for (int shard = 1; shard <= count; ++shard) {
      const Outcome outcome =
          run({"check", file, "--dry-run", "--shard", std::to_string(shard) + "/" + std::to_string(count)});
      EXPECT_EQ(outcome.code, 0);
      const std::vector<std::string> part = lines(outcome.out);
      together.insert(part.begin(), part.end() - 1);
      smallest = std::min(smallest, part.size() - 1);
      largest = std::max(largest, part.size() - 1);
    }
    EXPECT_EQ(together, std::multiset<std::string>(all.begin(), all.end() - 1)) << count;
    EXPECT_LE(largest - smallest, 1U);
  }
}

TEST_F(Cli, AnEmptyShardIsFine) {
  const Outcome outcome = run({"check", suite(), "--shard", "9/9"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(last_line(outcome.out), "0 passed, 0 failed, 0 skipped");
}

TEST_F(Cli, EnvironmentTwinsAndTheFlagWins) {
  const std::string file = suite();
  EXPECT_EQ(last_line(run({"check", file}, {{"BATCHPROOF_DRY_RUN", "1"}, {"BATCHPROOF_FILTER", "/a/"}}).out),
            "4 cells");
  EXPECT_EQ(last_line(run({"check", file, "--dry-run", "--filter", "/b/"}, {{"BATCHPROOF_FILTER", "/a/"}}).out),
            "2 cells");
  EXPECT_EQ(last_line(run({"check", file, "--dry-run"}, {{"BATCHPROOF_SHARD", "1/2"}}).out), "3 cells");
  EXPECT_EQ(run({"check", file, "--dry-run"}, {{"BATCHPROOF_SEED", "x"}}).code, 2);
  EXPECT_EQ(run({"check", file, "--dry-run", "--seed", "1"}, {{"BATCHPROOF_SEED", "x"}}).code, 0);
  EXPECT_TRUE(contains(run({"check", file, "--dry-run"}, {{"BATCHPROOF_IMPL", "cpu-fp32fma-tree16-chain256"}}).out,
                       "matmul/cpu-fp32fma-tree16-chain256/a/"));
  EXPECT_TRUE(contains(run({"check", file, "--dry-run"}, {{"BATCHPROOF_MODE", "fast"}}).out, "matmul/cpu-fast/a/"));
  EXPECT_EQ(run({"check", file, "--dry-run"}, {{"BATCHPROOF_SET", "transpose_x2=true;transpose_x2=false"}}).code, 2);
  EXPECT_EQ(run({"check", file, "--dry-run"}, {{"BATCHPROOF_FAIL_FAST", "perhaps"}}).code, 2);
}

TEST_F(Cli, Schemas) {
  for (const char* name : {"native", "atk", "report"}) {
    const Outcome outcome = run({"schema", name});
    EXPECT_EQ(outcome.code, 0);
    const nlohmann::json schema = nlohmann::json::parse(outcome.out, nullptr, false);
    ASSERT_TRUE(schema.is_object()) << name;
    EXPECT_EQ(schema["$schema"], "http://json-schema.org/draft-07/schema#");
  }
  EXPECT_EQ(run({"schema"}).out, run({"schema", "native"}).out);
  EXPECT_EQ(run({"schema", "nonsense"}).code, 2);
}

TEST_F(Cli, ListShowsImplementationsAndControls) {
  const Outcome text = run({"list", "matmul"});
  EXPECT_EQ(text.code, 0);
  EXPECT_TRUE(contains(text.out, "cpu-fp32fma-chain256 (invariant)")) << text.out;
  EXPECT_TRUE(contains(text.out, "defect: ")) << text.out;
  EXPECT_EQ(run({"list", "nonsense"}).code, 2);

  const nlohmann::json json = nlohmann::json::parse(run({"list", "--json"}).out, nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["schema_version"], 1);
  ASSERT_GE(json["operators"].size(), 2U);
  for (const nlohmann::json& op : json["operators"]) {
    EXPECT_FALSE(op["name"].get<std::string>().empty());
    EXPECT_GE(op["ports"].size(), 2U);
    EXPECT_GE(op["implementations"].size(), 1U);
    EXPECT_GE(op["dtype_modes"].size(), 1U);
  }
}

TEST_F(Cli, DoctorTellsWhatIsThereAndWhatIsNot) {
  const Outcome outcome = run({"doctor"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* part : {"version", "instruction sets", "plain", "CUDA                 ", "GNU libc",
                           "floating point       round to nearest", "what the tests of this version validate"}) {
    EXPECT_TRUE(contains(outcome.out, part)) << part << "\n" << outcome.out;
  }
  EXPECT_TRUE(contains(run({"doctor"}, {{"BATCHPROOF_ISA", "plain"}}).out, "chosen               plain"));
  EXPECT_EQ(run({"doctor"}, {{"BATCHPROOF_ISA", "nonsense"}}).code, 2);
}

}  // namespace
}  // namespace batchproof
