// SPDX-License-Identifier: Apache-2.0
//
// Reads a JSON report or a journal back.
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>

#include "src/report/describe.h"
#include "src/report/json.h"
#include "src/runtime/file.h"
#include "src/runtime/words.h"

namespace batchproof {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kLargestReport = std::size_t{4} << 30;

// Thrown and caught in this file only; nlohmann/json reports a missing or mistyped field the same way.
struct Malformed {
  std::string message;
};

double number(const Json& json) {
  if (json.is_number()) return json.get<double>();
  const std::string text = json.get<std::string>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  throw Malformed{fmt::format("\"{}\" is not a number, \"nan\", \"inf\" or \"-inf\"", text)};
}

Verdict verdict(const Json& json) {
  const std::string text = json.get<std::string>();
  const std::optional<Verdict> word = verdict_from_name(text);
  if (!word) throw Malformed{fmt::format("\"{}\" is not a verdict", text)};
  return *word;
}

bp_dtype dtype(const Json& json) {
  const std::string text = json.get<std::string>();
  for (bp_dtype value = BP_FP64; value <= BP_E2M1; ++value) {
    if (text == dtype_text(value)) return value;
  }
  throw Malformed{fmt::format("\"{}\" is not a dtype", text)};
}

std::vector<std::pair<std::string, std::string>> pairs(const Json& json) {
  std::vector<std::pair<std::string, std::string>> list;
  for (const auto& [name, value] : json.items()) list.emplace_back(name, value.get<std::string>());
  return list;
}

Mismatch mismatch(const Json& json) {
  Mismatch first;
  json.at("port").get_to(first.port);
  json.at("variant").get_to(first.variant);
  json.at("row").get_to(first.row);
  json.at("rank_a").get_to(first.rank_a);
  json.at("rank_b").get_to(first.rank_b);
  json.at("index_a").get_to(first.index_a);
  json.at("index_b").get_to(first.index_b);
  json.at("column").get_to(first.column);
  json.at("byte").get_to(first.byte);
  first.dtype = dtype(json.at("dtype"));
  json.at("bytes_a").get_to(first.bytes_a);
  json.at("bytes_b").get_to(first.bytes_b);
  first.value_a = number(json.at("value_a"));
  first.value_b = number(json.at("value_b"));
  if (!json.at("ulp").is_null()) first.ulp = json.at("ulp").get<std::uint64_t>();
  json.at("max_ulp").get_to(first.max_ulp);
  json.at("rows_differing").get_to(first.rows_differing);
  return first;
}

Witness witness(const Json& json) {
  Witness result;
  const std::string kind = json.at("kind").get<std::string>();
  if (kind == "order") {
    result.kind = Witness::Kind::order;
  } else if (kind == "leak") {
    result.kind = Witness::Kind::leak;
  } else if (kind != "none") {
    throw Malformed{fmt::format("\"{}\" is not a kind of witness", kind)};
  }
  json.at("rows_moved").get_to(result.rows_moved);
  json.at("rows_total").get_to(result.rows_total);
  json.at("how").get_to(result.how);
  json.at("port").get_to(result.port);
  return result;
}

RelationResult relation(const Json& json) {
  RelationResult result;
  const std::string name = json.at("relation").get<std::string>();
  const std::optional<std::uint32_t> bit = relation_from_name(name);
  if (!bit) throw Malformed{fmt::format("\"{}\" is not a relation", name)};
  result.relation = *bit;
  result.verdict = verdict(json.at("verdict"));
  result.expected = verdict(json.at("expected"));
  result.excused = json.value("excused", false);
  json.at("reason").get_to(result.reason);
  json.at("runs").get_to(result.runs);
  json.at("bytes_compared").get_to(result.bytes_compared);
  json.at("bytes_differing").get_to(result.bytes_differing);
  result.witness = witness(json.at("witness"));
  if (!json.at("first").is_null()) result.first = mismatch(json.at("first"));
  return result;
}

std::optional<ErrorMeasures> measures(const Json& json) {
  if (json.is_null()) return std::nullopt;
  return ErrorMeasures{number(json.at("mare")), number(json.at("mere")), number(json.at("rmse"))};
}

PortAccuracy accuracy_port(const Json& json) {
  PortAccuracy port;
  json.at("port").get_to(port.port);
  port.dtype = dtype(json.at("dtype"));
  port.verdict = verdict(json.at("verdict"));
  json.at("rule").get_to(port.rule);
  json.at("reason").get_to(port.reason);
  json.at("elements").get_to(port.elements);
  port.device = measures(json.at("device")).value_or(ErrorMeasures{});
  port.benchmark = measures(json.at("benchmark"));
  port.ratio = measures(json.at("ratio"));
  port.limit = measures(json.at("limit"));
  if (!json.at("share").is_null()) port.share = number(json.at("share"));
  if (const Json& worst = json.at("worst"); !worst.is_null()) {
    port.worst = WorstElement{worst.at("rank").get<int>(), worst.at("index").get<std::int64_t>(),
                              number(worst.at("value")), number(worst.at("golden")), std::nullopt};
    if (!worst.at("benchmark").is_null()) port.worst->benchmark = number(worst.at("benchmark"));
  }
  return port;
}

AccuracyResult accuracy(const Json& json) {
  AccuracyResult result;
  json.at("standard").get_to(result.standard);
  result.verdict = verdict(json.at("verdict"));
  result.expected = verdict(json.at("expected"));
  json.at("reason").get_to(result.reason);
  json.at("benchmark").get_to(result.benchmark);
  for (const Json& port : json.at("ports")) result.ports.push_back(accuracy_port(port));
  return result;
}

PerformanceResult performance(const Json& json) {
  PerformanceResult result;
  result.verdict = verdict(json.at("verdict"));
  json.at("judged").get_to(result.judged);
  json.at("reason").get_to(result.reason);
  json.at("benchmark").get_to(result.benchmark);
  json.at("runs").get_to(result.runs);
  result.device_seconds = number(json.at("device_seconds"));
  result.benchmark_seconds = number(json.at("benchmark_seconds"));
  result.ratio = number(json.at("ratio"));
  result.mean_threshold = number(json.at("mean_threshold"));
  result.each_threshold = number(json.at("each_threshold"));
  return result;
}

MemoryResult memory(const Json& json) {
  MemoryResult result;
  result.verdict = verdict(json.at("verdict"));
  result.expected = verdict(json.at("expected"));
  json.at("reason").get_to(result.reason);
  json.at("benchmark").get_to(result.benchmark);
  json.at("tensor_bytes").get_to(result.tensor_bytes);
  json.at("device_workspace").get_to(result.device_workspace);
  json.at("benchmark_workspace").get_to(result.benchmark_workspace);
  result.ratio = number(json.at("ratio"));
  result.threshold = number(json.at("threshold"));
  return result;
}

PerformanceMean performance_mean(const Json& json) {
  PerformanceMean mean;
  json.at("op").get_to(mean.op);
  json.at("impl").get_to(mean.impl);
  mean.threshold = number(json.at("threshold"));
  mean.mean = number(json.at("mean"));
  json.at("cells").get_to(mean.cells);
  json.at("judged").get_to(mean.judged);
  return mean;
}

// Fields that were added within the schema_version: an older report does not have them.
bool has(const Json& json, const char* name) { return json.contains(name) && !json.at(name).is_null(); }

CellResult cell(const Json& json) {
  CellResult result;
  json.at("id").get_to(result.id);
  json.at("op").get_to(result.op);
  json.at("impl").get_to(result.impl);
  json.at("executed").get_to(result.executed);
  json.at("case").get_to(result.case_name);
  result.axes = pairs(json.at("axes"));
  const Json& position = json.at("position");
  position.at("file").get_to(result.position.file);
  position.at("line").get_to(result.position.line);
  position.at("column").get_to(result.position.column);
  json.at("is_control").get_to(result.is_control);
  json.at("defect").get_to(result.defect);
  result.verdict = verdict(json.at("verdict"));
  result.expected = verdict(json.at("expected"));
  json.at("as_expected").get_to(result.as_expected);
  json.at("reason").get_to(result.reason);
  json.at("inputs").get_to(result.inputs);
  for (const Json& entry : json.at("relations")) result.relations.push_back(relation(entry));
  for (const Json& entry : json.at("digests")) {
    result.digests.push_back({entry.at("port").get<std::string>(), entry.at("digest").get<std::string>()});
  }
  if (has(json, "accuracy")) result.accuracy = accuracy(json.at("accuracy"));
  if (has(json, "performance")) result.performance = performance(json.at("performance"));
  if (has(json, "memory")) result.memory = memory(json.at("memory"));
  json.at("reproduce").get_to(result.reproduce);
  result.seconds = number(json.at("seconds"));
  return result;
}

RunContext context(const Json& json) {
  RunContext result;
  json.at("version").get_to(result.version);
  json.at("build").get_to(result.build);
  json.at("command_line").get_to(result.command_line);
  json.at("device").get_to(result.device);
  json.at("communicator").get_to(result.communicator);
  json.at("seed").get_to(result.seed);
  json.at("date").get_to(result.date);
  result.build_ids = pairs(json.at("build_ids"));
  result.settings = pairs(json.at("settings"));
  return result;
}

void check_version(const Json& json) {
  const int version = json.at("schema_version").get<int>();
  if (version != kReportSchemaVersion) {
    throw Malformed{fmt::format("schema_version is {}, this program reads {}", version, kReportSchemaVersion)};
  }
}

RunResult whole_report(const Json& json) {
  check_version(json);
  RunResult result;
  result.context = context(json.at("context"));
  for (const Json& entry : json.at("cells")) result.cells.push_back(cell(entry));
  if (has(json, "performance_means")) {
    for (const Json& entry : json.at("performance_means")) result.means.push_back(performance_mean(entry));
  }
  return result;
}

// Every line but the last must be whole; the last may have been cut when the run was stopped.
RunResult journal(std::string_view text) {
  RunResult result;
  bool first = true;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) break;
    const Json line = Json::parse(text.substr(0, end));
    text.remove_prefix(end + 1);
    if (first) {
      check_version(line);
      result.context = context(line.at("context"));
      first = false;
    } else {
      result.cells.push_back(cell(line.at("cell")));
    }
  }
  if (first) throw Malformed{"it holds no whole line"};
  return result;
}

// A journal's first line is a whole document without cells; a report is one document over many lines.
bool is_journal(std::string_view text) {
  const std::string_view first = text.substr(0, text.find('\n'));
  const Json line = Json::parse(first, nullptr, /*allow_exceptions=*/false);
  return !line.is_discarded() && line.is_object() && line.contains("context") && !line.contains("cells");
}

}  // namespace

Result<RunResult> parse_report(std::string_view text, const std::string& source) {
  try {
    return is_journal(text) ? journal(text) : whole_report(Json::parse(text));
  } catch (const Malformed& malformed) {
    return fail(Error::Kind::usage, fmt::format("{}: not a batchproof report: {}", source, malformed.message));
  } catch (const Json::exception& exception) {
    return fail(Error::Kind::usage, fmt::format("{}: not a batchproof report: {}", source, exception.what()));
  }
}

Result<RunResult> read_report(const std::string& path) {
  const Result<std::string> text = read_file(path, kLargestReport);
  if (!text) return tl::unexpected(text.error());
  return parse_report(*text, path);
}

}  // namespace batchproof
