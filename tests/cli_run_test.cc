// SPDX-License-Identifier: Apache-2.0
//
// Runs of the program: verdicts and exit codes, outputs, reports, resume, reproduce commands.
#include <nlohmann/json.hpp>
#include <pugixml.hpp>
#include <regex>

#include "tests/program.h"

namespace batchproof {
namespace {

using nlohmann::json;

class CliRun : public ProgramTest {
 protected:
  static std::string one_case(const std::string& name, const std::string& more, const std::string& axes) {
    return R"({"name": ")" + name + R"(", "op": "matmul", "axes": {)" + axes + "}, " + more + "}";
  }
  static std::string suite_of(const std::vector<std::string>& cases) {
    std::string text = R"({"version": 1, "cases": [)";
    for (std::size_t i = 0; i < cases.size(); ++i) text += (i > 0 ? ",\n" : "\n") + cases[i];
    return text + "\n]}";
  }

  static constexpr const char* kAxes = R"("M": [8], "K": [512], "N": [16])";
  static constexpr const char* kBi = R"("standard": {"bi": {}})";
  static constexpr const char* kBlind = R"("standard": {"bi": {"relations": ["repeat"]}})";

  std::string good() const { return write("good.json", suite_of({one_case("good", kBi, kAxes)})); }
  // A control whose declared catch comes.
  std::string caught() const {
    return write(
        "caught.json",
        suite_of({one_case(
            "caught", R"("impl": "control-arrival-order", "expect": {"repeat": "violation"}, )" + std::string(kBlind),
            kAxes)}));
  }
  // The same, but nobody expects it.
  std::string violation() const {
    return write("violation.json",
                 suite_of({one_case("bad", R"("impl": "control-arrival-order", )" + std::string(kBlind), kAxes),
                           one_case("good", kBi, kAxes)}));
  }
};

// Counts fix the number of ranks, so each case runs on one of the three: with a shared expert, without, and the mirror.
TEST_F(CliRun, FieldCasesOfTheGroupedOperatorsRun) {
  const std::string report = path("report.json");
  const Outcome outcome = run({"check", "--ranks", "2,4,8", "--perf", "off", "--json", report,
                               std::string(BATCHPROOF_TEST_DATA) + "/atk_grouped.json"});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_EQ(last_line(outcome.out), "3 passed, 0 failed, 6 skipped");
  const json parsed = json::parse(file_text(report));
  std::map<std::string, std::vector<std::string>> ports;  // of the cells that ran
  for (const json& cell : parsed.at("cells")) {
    if (cell.at("verdict") == "skipped") continue;
    EXPECT_EQ(cell.at("relations").size(), 6u);
    for (const json& relation : cell.at("relations")) EXPECT_EQ(relation.at("verdict"), "pass") << relation;
    for (const json& port : cell.at("digests")) ports[cell.at("axes").at("W")].push_back(port.at("port"));
  }
  EXPECT_EQ(ports["8"], (std::vector<std::string>{"gmm_y", "mm_y", "permute_out"}));
  EXPECT_EQ(ports["2"], std::vector<std::string>{"gmm_y"});  // permuteOutFlag is false
  EXPECT_EQ(ports["4"], (std::vector<std::string>{"y", "mm_y"}));
}

TEST_F(CliRun, GoodCellsExitWithZeroAndTheLastLineStandsAlone) {
  const Outcome outcome = run({"check", good()});
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_EQ(last_line(outcome.out), "1 passed, 0 failed, 0 skipped");
  for (const char* relation : {"neighbours", "repeat", "position", "batch_size"}) {
    EXPECT_TRUE(contains(outcome.out, relation)) << relation;
  }
  // Piped: no colour, no progress; context on stderr only.
  for (const std::string& text : {outcome.out, outcome.err}) {
    EXPECT_EQ(text.find('\x1b'), std::string::npos);
    EXPECT_EQ(text.find('\r'), std::string::npos);
  }
  EXPECT_TRUE(contains(outcome.err, "# seed          1\n"));
  EXPECT_TRUE(contains(outcome.err, "# command line  "));
  EXPECT_TRUE(contains(outcome.err, "# communicator  threads\n"));
  EXPECT_FALSE(contains(outcome.out, "# seed"));
  for (const std::string& line : lines(outcome.err)) EXPECT_EQ(line[0], '#') << line;
}

TEST_F(CliRun, AViolationExitsWithOneAndTheCommandReproducesOnlyThatCell) {
  const Outcome outcome = run({"check", violation()});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(last_line(outcome.out), "1 passed, 1 failed, 0 skipped");
  EXPECT_TRUE(contains(outcome.out, "row bytes are not equal: matmul/control-arrival-order/bad/")) << outcome.out;
  for (const char* fact : {"bytes differing: ", "first difference: column ", "ULP distance: ", "witness: ",
                           "implementation: requested control-arrival-order, executed control-arrival-order"}) {
    EXPECT_TRUE(contains(outcome.out, fact)) << fact << "\n" << outcome.out;
  }
  std::string command;
  for (const std::string& line : lines(outcome.out)) {
    const std::size_t at = line.find("reproduce: ");
    if (at != std::string::npos) command = line.substr(at + 11);
  }
  ASSERT_FALSE(command.empty());
  const Outcome again = shell(command);
  EXPECT_EQ(again.code, 1) << command << again.err;
  EXPECT_EQ(last_line(again.out), "0 passed, 1 failed, 0 skipped") << command;
}

TEST_F(CliRun, ReproduceCarriesOverrides) {
  const Outcome outcome =
      run({"check", good(), "--impl", "control-arrival-order", "--relations", "repeat", "--seed", "7"});
  EXPECT_EQ(outcome.code, 1);
  std::smatch found;
  const std::regex pattern("reproduce: (.*)");
  ASSERT_TRUE(std::regex_search(outcome.out, found, pattern)) << outcome.out;
  for (const char* part : {"--seed 7", "--impl control-arrival-order", "--relations repeat", "--ranks 1"}) {
    EXPECT_TRUE(contains(found[1], part)) << found[1];
  }
  EXPECT_EQ(last_line(shell(found[1]).out), "0 passed, 1 failed, 0 skipped");
}

TEST_F(CliRun, ACaughtControlPassesAMissedOneFails) {
  const Outcome outcome = run({"check", caught()});
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "violation (caught)")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, "| matmul/control-arrival-order/caught |     1 |   Y    |")) << outcome.out;

  const std::string missed =
      write("missed.json",
            suite_of({one_case("missed", R"("expect": {"repeat": "violation"}, )" + std::string(kBlind), kAxes)}));
  const Outcome failed = run({"check", missed});
  EXPECT_EQ(failed.code, 1);
  EXPECT_TRUE(contains(failed.out, "a violation was expected and did not come")) << failed.out;
}

TEST_F(CliRun, EverythingSkippedIs77) {
  // ATK cases of an operator that does not exist here.
  const std::string file =
      write("atk.json", R"([{"name": "x", "aclnn_name": "NoSuchOperator", "standard": {"acc": "default", "bi": {}},
    "inputs": [{"name": "x1", "type": "tensor", "required": true, "dtype": "fp32", "shape": [4, 8], "range_values": [-1, 1]}]}])");
  const Outcome outcome = run({"check", file});
  EXPECT_EQ(outcome.code, 77) << outcome.out << outcome.err;
  EXPECT_EQ(last_line(outcome.out).rfind("0 passed, 0 failed, ", 0), 0U);
  EXPECT_TRUE(contains(outcome.out, "NoSuchOperator")) << outcome.out;
}

TEST_F(CliRun, FailFastStops) {
  const Outcome outcome = run({"check", violation(), "--fail-fast"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(last_line(outcome.out), "0 passed, 1 failed, 0 skipped");
}

TEST_F(CliRun, DetailAndAsCases) {
  const std::string file =
      write("three.json", suite_of({one_case("three", kBi, R"("M": [4, 8, 9], "K": [512], "N": [8])")}));
  const Outcome cases = run({"check", file, "--as-cases"});
  EXPECT_TRUE(contains(cases.out, "3 cells")) << cases.out;
  EXPECT_FALSE(contains(cases.out, "M=8 "));
  const Outcome cells = run({"check", file, "--detail", "cells"});
  EXPECT_TRUE(contains(cells.out, "5 relations")) << cells.out;
  const Outcome failing = run({"check", file, "--detail", "failing"});
  EXPECT_FALSE(contains(failing.out, "# matmul / ")) << failing.out;
  for (const Outcome& outcome : {cases, cells, failing})
    EXPECT_EQ(last_line(outcome.out), "3 passed, 0 failed, 0 skipped");
}

TEST_F(CliRun, FileReportsTellTheSameRun) {
  const Outcome outcome = run({"check", violation(), "--json", path("r.json"), "--junit", path("r.xml"), "--tap",
                               path("r.tap"), "--html", path("r.html")});
  EXPECT_EQ(outcome.code, 1);
  const json report = json::parse(file_text(path("r.json")), nullptr, false);
  ASSERT_TRUE(report.is_object());
  EXPECT_EQ(report["totals"], (json{{"passed", 1}, {"failed", 1}, {"skipped", 0}}));
  EXPECT_EQ(report["cells"][0]["executed"], "control-arrival-order");
  EXPECT_FALSE(report["cells"][1]["digests"].empty());
  const std::regex hex("[0-9a-f]{16}");
  for (const auto& [name, id] : report["context"]["build_ids"].items()) {
    EXPECT_TRUE(std::regex_match(id.get<std::string>(), hex)) << name;
  }
  EXPECT_TRUE(report["context"]["build_ids"].contains("program"));
  EXPECT_EQ(report["context"]["build_ids"].size(), 2U);
  pugi::xml_document junit;
  ASSERT_TRUE(junit.load_file(path("r.xml").c_str()));
  EXPECT_EQ(junit.child("testsuites").attribute("failures").as_int(), 1);
  EXPECT_TRUE(contains(file_text(path("r.tap")), "not ok 1 - matmul/control-arrival-order/bad/"));
  EXPECT_TRUE(contains(file_text(path("r.html")), "matmul/control-arrival-order/bad/"));
  EXPECT_FALSE(std::filesystem::exists(path("r.json.partial")));
}

TEST_F(CliRun, ResumeSkipsWhatWasDone) {
  const std::string file =
      write("three.json", suite_of({one_case("three", kBlind, R"("M": [4, 8, 9], "K": [512], "N": [8])")}));
  ASSERT_EQ(run({"check", file, "--json", path("all.json")}).code, 0);
  json report = json::parse(file_text(path("all.json")));
  // As if the run had been stopped after the middle cell; a mark shows that results are carried over.
  json half = report;
  half["cells"] = json::array({report["cells"][1]});
  half["cells"][0]["inputs"] = "carried over";
  write("half.json", half.dump());
  const Outcome outcome = run({"check", file, "--resume", path("half.json"), "--json", path("rest.json")});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "resumed: 1 of 3 cells were done before")) << outcome.err;
  const json rest = json::parse(file_text(path("rest.json")));
  ASSERT_EQ(rest["cells"].size(), 3U);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(rest["cells"][i]["id"], report["cells"][i]["id"]);
    EXPECT_EQ(rest["cells"][i]["digests"], report["cells"][i]["digests"]);
  }
  EXPECT_EQ(rest["cells"][1]["inputs"], "carried over");
  EXPECT_NE(rest["cells"][0]["inputs"], "carried over");

  // A journal is preferred, and its cut last line does not matter.
  json line;
  line["cell"] = half["cells"][0];
  json head;
  head["schema_version"] = 1;
  head["context"] = report["context"];
  write("stopped.json.partial", head.dump() + "\n" + line.dump() + "\n{\"cell\": {\"id\": \"matm");
  EXPECT_TRUE(contains(run({"check", file, "--resume", path("stopped.json")}).err, "resumed: 1 of 3"));
  // A loop passes both from the first round on.
  EXPECT_EQ(run({"check", file, "--resume", path("new.json"), "--json", path("new.json")}).code, 0);
  const Outcome third = run({"check", file, "--resume", path("new.json"), "--json", path("new.json")});
  EXPECT_TRUE(contains(third.err, "resumed: 3 of 3")) << third.err;
  EXPECT_EQ(last_line(third.out), "3 passed, 0 failed, 0 skipped");
}

TEST_F(CliRun, ResumeRefusesAnotherRun) {
  const std::string file = good();
  ASSERT_EQ(run({"check", file, "--json", path("r.json")}).code, 0);
  const auto refused = [&](const std::vector<std::string>& more, const std::string& why) {
    std::vector<std::string> arguments = {"check", file, "--resume", path("r.json")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << outcome.err;
    EXPECT_TRUE(contains(outcome.err, why)) << outcome.err;
  };
  refused({"--seed", "2"}, "seed 1, this run has 2");
  refused({"--relations", "repeat"}, "other overrides");
  json report = json::parse(file_text(path("r.json")));
  json other = report;
  other["context"]["build_ids"]["program"] = "0000000000000000";
  write("r.json", other.dump());
  refused({}, "program has changed");
  write("r.json", report.dump());
  write("good.json", file_text(file) + " ");
  refused({}, "good.json has changed");
  write("r.json", "nonsense");
  refused({}, "not a batchproof report");
}

TEST_F(CliRun, GithubIsSeenFromTheEnvironment) {
  const ProgramTest::Environment environment = {{"GITHUB_ACTIONS", "true"},
                                                {"GITHUB_STEP_SUMMARY", path("summary.md")}};
  const Outcome outcome = run({"check", violation()}, environment);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(contains(outcome.out, "\n::error file=")) << outcome.out;
  EXPECT_EQ(last_line(outcome.out), "1 passed, 1 failed, 0 skipped");
  EXPECT_TRUE(contains(file_text(path("summary.md")), "## batchproof: 1 passed, 1 failed, 0 skipped"));
  EXPECT_FALSE(contains(run({"check", violation()}).out, "::error"));
}

TEST_F(CliRun, RepeatIsAlsoMadeInAFreshProcess) {
  // A helper that may not answer for this time is lost: reported as environment, never as a violation.
  const Outcome outcome = run({"check", good(), "--timeout", "0.0001"});
  EXPECT_EQ(outcome.code, 3) << outcome.out << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "repeat in a fresh process: no result within 0.0001 s")) << outcome.err;
  EXPECT_EQ(last_line(outcome.out), "1 passed, 0 failed, 0 skipped");
  // A cell without repeat needs no helper.
  EXPECT_EQ(run({"check", good(), "--relations", "neighbours", "--timeout", "0.0001"}).code, 0);
}

TEST_F(CliRun, TheHelperGivesTheDigestsOfTheReport) {
  const std::string file = good();
  ASSERT_EQ(run({"check", file, "--json", path("r.json")}).code, 0);
  const json cell = json::parse(file_text(path("r.json")))["cells"][0];
  const Outcome outcome =
      shell("printf '%s\\n' '" + cell["id"].dump() + "' | " BATCHPROOF_PROGRAM " digest -- " + file);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const json line = json::parse(outcome.out, nullptr, false);
  ASSERT_TRUE(line.is_object()) << outcome.out;
  EXPECT_EQ(line[cell["id"].get<std::string>()], cell["digests"]);
}

TEST_F(CliRun, WithoutSuitesEveryOperatorIsTaken) {
  const Outcome outcome = run({"check", "--dry-run"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* op : {"matmul/", "all_gather_matmul/"}) {
    EXPECT_TRUE(contains("\n" + outcome.out, std::string("\n") + op)) << op;
  }
}

}  // namespace
}  // namespace batchproof
