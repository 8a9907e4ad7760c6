// SPDX-License-Identifier: Apache-2.0
#include "src/report/json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "src/report/sample_run.h"

namespace batchproof {
namespace {

std::string render(const RunResult& run) {
  std::ostringstream out;
  JsonReporter reporter(out);
  sample::feed(reporter, run);
  return out.str();
}

std::string render_journal(const RunResult& run) {
  std::ostringstream out;
  JsonJournal journal(out);
  sample::feed(journal, run);
  return out.str();
}

TEST(Json, Golden) { sample::expect_golden("report.json.golden", render(sample::run())); }
TEST(Json, GoldenJournal) { sample::expect_golden("journal.golden", render_journal(sample::run())); }

TEST(Json, ReadsBackTheSame) {
  RunResult run = sample::run();
  run.cells.erase(run.cells.begin() + 5);  // its name is not UTF-8 and cannot come back
  const Result<RunResult> back = parse_report(render(run), "test");
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(to_json(*back), to_json(run));
  EXPECT_TRUE(std::isnan(back->cells[1].relations[2].first->value_a));
  EXPECT_TRUE(std::isinf(back->cells[1].relations[2].first->value_b));
  EXPECT_FALSE(back->cells[1].relations[2].first->ulp.has_value());
}

TEST(Json, LargeNumbersAreExact) {
  RunResult run = sample::run();
  run.context.seed = 18446744073709551615ULL;
  run.cells[1].relations[1].first->max_ulp = 18446744073709551614ULL;
  const Result<RunResult> back = parse_report(render(run), "test");
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->context.seed, 18446744073709551615ULL);
  EXPECT_EQ(back->cells[1].relations[1].first->max_ulp, 18446744073709551614ULL);
}

TEST(Json, NastyNamesAreValidJson) {
  const nlohmann::json json = nlohmann::json::parse(render(sample::run()));
  EXPECT_EQ(json["schema_version"], 1);
  EXPECT_EQ(json["cells"].size(), 15U);
  EXPECT_NE(json["cells"][5]["case"].get<std::string>().find("<name> & \"q\", 100% #1\n"), std::string::npos);
}

TEST(Json, StandardsComeBack) {
  RunResult run = sample::run();
  run.cells.erase(run.cells.begin() + 5);
  const Result<RunResult> back = parse_report(render(run), "test");
  ASSERT_TRUE(back) << back.error().message;
  const CellResult& all = back->cells[8];
  EXPECT_EQ(all.accuracy->ports.size(), 2U);
  EXPECT_EQ(all.accuracy->ports[0].ratio->mere, 0.8);
  EXPECT_EQ(all.performance->runs, 7);
  EXPECT_EQ(all.memory->tensor_bytes, 1000U);
  EXPECT_TRUE(std::isnan(back->cells[9].accuracy->ports[0].worst->value));
  EXPECT_TRUE(back->cells[9].relations[1].excused);
  ASSERT_EQ(back->means.size(), 1U);
  EXPECT_EQ(back->failed(), run.failed());
}

TEST(Json, UnknownFieldsAreIgnored) {
  nlohmann::ordered_json json = to_json(sample::run());
  json["later"] = 1;
  json["cells"][0]["later"] = {1, 2};
  json["cells"][1]["relations"][1]["first"]["later"] = "x";
  const Result<RunResult> back = parse_report(json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), "t");
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->cells.size(), 15U);
}

TEST(Json, JournalSurvivesACutAnywhere) {
  RunResult run = sample::run();
  run.cells.erase(run.cells.begin() + 5);
  const std::string whole = render_journal(run);
  std::size_t complete = 0;
  for (std::size_t length = 0; length <= whole.size(); ++length) {
    if (length > 0 && whole[length - 1] == '\n') ++complete;
    const Result<RunResult> back = parse_report(std::string_view(whole).substr(0, length), "journal");
    if (complete == 0) {
      EXPECT_FALSE(back) << length;
    } else {
      ASSERT_TRUE(back) << length << ": " << back.error().message;
      ASSERT_EQ(back->cells.size(), complete - 1) << length;
    }
  }
  EXPECT_EQ(complete, run.cells.size() + 1);
}

TEST(Json, MalformedReportsAreUsageErrorsThatNameTheFile) {
  const std::string good = render(sample::run());
  const std::vector<std::string> bad = {"",
                                        "[]",
                                        "{}",
                                        "null",
                                        "{\"schema_version\": 1}",
                                        good.substr(0, good.size() / 2),
                                        "\177ELF",
                                        "{\"schema_version\": 2, \"context\": {}, \"cells\": []}",
                                        std::string(100000, '[')};
  for (const std::string& text : bad) {
    const Result<RunResult> back = parse_report(text, "some.json");
    ASSERT_FALSE(back) << text.substr(0, 40);
    EXPECT_EQ(back.error().kind, Error::Kind::usage);
    EXPECT_EQ(back.error().message.rfind("some.json: ", 0), 0U) << back.error().message;
  }
  EXPECT_FALSE(read_report("/nonexistent/report.json"));
  EXPECT_FALSE(read_report("/tmp"));
}

TEST(Json, EveryRequiredFieldIsRequired) {
  RunResult run = sample::run();
  run.cells = {run.cells[1], run.cells[9], run.cells[11]};  // two mismatches; every standard
  const nlohmann::ordered_json good = to_json(run);
  const nlohmann::json schema = nlohmann::json::parse(report_schema_text());
  const auto without = [&](const nlohmann::json::json_pointer& object, const std::string& key) {
    nlohmann::ordered_json json = good;
    json[nlohmann::ordered_json::json_pointer(object.to_string())].erase(key);
    return parse_report(json.dump(), "test").has_value();
  };
  const std::vector<std::pair<std::string, std::string>> objects = {{"", ""},
                                                                    {"/context", "context"},
                                                                    {"/cells/0", "cell"},
                                                                    {"/cells/0/relations/1", "relation"},
                                                                    {"/cells/0/relations/1/first", "mismatch"},
                                                                    {"/cells/1/accuracy", "accuracy"},
                                                                    {"/cells/1/accuracy/ports/0", "port_accuracy"},
                                                                    {"/cells/1/accuracy/ports/0/device", "measures"},
                                                                    {"/cells/1/performance", "performance"},
                                                                    {"/cells/2/memory", "memory"}};
  for (const auto& [where, definition] : objects) {
    const nlohmann::json& part = definition.empty() ? schema : schema["definitions"][definition];
    const nlohmann::ordered_json& object = good[nlohmann::ordered_json::json_pointer(where)];
    // The schema names exactly the fields that are written.
    EXPECT_EQ(part["required"].size(), object.size()) << where;
    for (const auto& key : part["required"]) {
      EXPECT_TRUE(object.contains(key.get<std::string>())) << where << " " << key;
      EXPECT_TRUE(part["properties"].contains(key.get<std::string>())) << where << " " << key;
      // Recomputed from the cells, or added within the schema_version: older reports do not have them.
      const bool may_miss =
          std::set<std::string>{"totals", "excused", "accuracy", "performance", "memory", "performance_means"}.count(
              key) != 0;
      EXPECT_EQ(without(nlohmann::json::json_pointer(where), key), may_miss) << where << " " << key;
    }
  }
}

TEST(Json, SchemaFileIsWhatTheProgramPrints) {
  EXPECT_EQ(sample::read_file(sample::source_root() / "schema" / "report.schema.json"), report_schema_text());
}

}  // namespace
}  // namespace batchproof
