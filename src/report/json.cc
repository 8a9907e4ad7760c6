// SPDX-License-Identifier: Apache-2.0
//
// Writes the JSON report.
#include "src/report/json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "src/report/describe.h"
#include "src/runtime/words.h"

namespace batchproof {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no NaN and no infinity: these become the strings "nan", "inf" and "-inf".
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(number_text(value)); }

Json pairs(const std::vector<std::pair<std::string, std::string>>& list) {
  Json object = Json::object();
  for (const auto& [name, value] : list) object[name] = value;
  return object;
}

Json mismatch(const Mismatch& first) {
  Json json;
  json["port"] = first.port;
  json["variant"] = first.variant;
  json["row"] = first.row;
  json["rank_a"] = first.rank_a;
  json["rank_b"] = first.rank_b;
  json["index_a"] = first.index_a;
  json["index_b"] = first.index_b;
  json["column"] = first.column;
  json["byte"] = first.byte;
  json["dtype"] = dtype_text(first.dtype);
  json["bytes_a"] = first.bytes_a;
  json["bytes_b"] = first.bytes_b;
  json["value_a"] = number(first.value_a);
  json["value_b"] = number(first.value_b);
  json["ulp"] = first.ulp ? Json(*first.ulp) : Json(nullptr);
  json["max_ulp"] = first.max_ulp;
  json["rows_differing"] = first.rows_differing;
  return json;
}

Json relation_json(const RelationResult& relation) {
  Json json;
  json["relation"] = relation_name(relation.relation);
  json["verdict"] = verdict_name(relation.verdict);
  json["expected"] = verdict_name(relation.expected);
  json["excused"] = relation.excused;
  json["reason"] = relation.reason;
  json["runs"] = relation.runs;
  json["bytes_compared"] = relation.bytes_compared;
  json["bytes_differing"] = relation.bytes_differing;
  Json& witness = json["witness"];
  witness["kind"] = witness_kind_name(relation.witness.kind);
  witness["rows_moved"] = relation.witness.rows_moved;
  witness["rows_total"] = relation.witness.rows_total;
  witness["how"] = relation.witness.how;
  witness["port"] = relation.witness.port;
  json["first"] = relation.first ? mismatch(*relation.first) : Json(nullptr);
  return json;
}

Json measures(const ErrorMeasures& values) {
  return {{"mare", number(values.mare)}, {"mere", number(values.mere)}, {"rmse", number(values.rmse)}};
}
Json measures(const std::optional<ErrorMeasures>& values) { return values ? measures(*values) : Json(nullptr); }

Json port_json(const PortAccuracy& port) {
  Json json;
  json["port"] = port.port;
  json["dtype"] = dtype_text(port.dtype);
  json["verdict"] = verdict_name(port.verdict);
  json["rule"] = port.rule;
  json["reason"] = port.reason;
  json["elements"] = port.elements;
  json["device"] = measures(port.device);
  json["benchmark"] = measures(port.benchmark);
  json["ratio"] = measures(port.ratio);
  json["limit"] = measures(port.limit);
  json["share"] = port.share ? number(*port.share) : Json(nullptr);
  json["worst"] = nullptr;
  if (port.worst) {
    const WorstElement& worst = *port.worst;
    json["worst"] = {{"rank", worst.rank},
                     {"index", worst.index},
                     {"value", number(worst.value)},
                     {"golden", number(worst.golden)},
                     {"benchmark", worst.benchmark ? number(*worst.benchmark) : Json(nullptr)}};
  }
  return json;
}

Json accuracy_json(const AccuracyResult& accuracy) {
  Json json;
  json["standard"] = accuracy.standard;
  json["verdict"] = verdict_name(accuracy.verdict);
  json["expected"] = verdict_name(accuracy.expected);
  json["reason"] = accuracy.reason;
  json["benchmark"] = accuracy.benchmark;
  json["ports"] = Json::array();
  for (const PortAccuracy& port : accuracy.ports) json["ports"].push_back(port_json(port));
  return json;
}

Json performance_json(const PerformanceResult& performance) {
  Json json;
  json["verdict"] = verdict_name(performance.verdict);
  json["judged"] = performance.judged;
  json["reason"] = performance.reason;
  json["benchmark"] = performance.benchmark;
  json["runs"] = performance.runs;
  json["device_seconds"] = number(performance.device_seconds);
  json["benchmark_seconds"] = number(performance.benchmark_seconds);
  json["ratio"] = number(performance.ratio);
  json["mean_threshold"] = number(performance.mean_threshold);
  json["each_threshold"] = number(performance.each_threshold);
  return json;
}

Json memory_json(const MemoryResult& memory) {
  Json json;
  json["verdict"] = verdict_name(memory.verdict);
  json["expected"] = verdict_name(memory.expected);
  json["reason"] = memory.reason;
  json["benchmark"] = memory.benchmark;
  json["tensor_bytes"] = memory.tensor_bytes;
  json["device_workspace"] = memory.device_workspace;
  json["benchmark_workspace"] = memory.benchmark_workspace;
  json["ratio"] = number(memory.ratio);
  json["threshold"] = number(memory.threshold);
  return json;
}

Json mean_json(const PerformanceMean& mean) {
  return {{"op", mean.op},
          {"impl", mean.impl},
          {"threshold", number(mean.threshold)},
          {"mean", number(mean.mean)},
          {"cells", mean.cells},
          {"judged", mean.judged},
          {"passed", mean.passed()}};
}

Json cell_json(const CellResult& cell) {
  Json json;
  json["id"] = cell.id;
  json["op"] = cell.op;
  json["impl"] = cell.impl;
  json["executed"] = cell.executed;
  json["case"] = cell.case_name;
  json["axes"] = pairs(cell.axes);
  json["position"] = {{"file", cell.position.file}, {"line", cell.position.line}, {"column", cell.position.column}};
  json["is_control"] = cell.is_control;
  json["defect"] = cell.defect;
  json["verdict"] = verdict_name(cell.verdict);
  json["expected"] = verdict_name(cell.expected);
  json["as_expected"] = cell.as_expected;
  json["reason"] = cell.reason;
  json["inputs"] = cell.inputs;
  json["relations"] = Json::array();
  for (const RelationResult& relation : cell.relations) json["relations"].push_back(relation_json(relation));
  json["digests"] = Json::array();
  for (const PortDigest& digest : cell.digests) {
    json["digests"].push_back({{"port", digest.port}, {"digest", digest.digest}});
  }
  json["accuracy"] = cell.accuracy ? accuracy_json(*cell.accuracy) : Json(nullptr);
  json["performance"] = cell.performance ? performance_json(*cell.performance) : Json(nullptr);
  json["memory"] = cell.memory ? memory_json(*cell.memory) : Json(nullptr);
  json["reproduce"] = cell.reproduce;
  json["seconds"] = number(cell.seconds);
  return json;
}

// Names come from files and may hold any bytes; those that are not UTF-8 become U+FFFD instead of an exception.
std::string dump(const Json& json, int indent) { return json.dump(indent, ' ', false, Json::error_handler_t::replace); }

}  // namespace

nlohmann::ordered_json context_json(const RunContext& context) {
  Json json;
  json["version"] = context.version;
  json["build"] = context.build;
  json["command_line"] = context.command_line;
  json["device"] = context.device;
  json["communicator"] = context.communicator;
  json["seed"] = context.seed;
  json["date"] = context.date;
  json["build_ids"] = pairs(context.build_ids);
  json["settings"] = pairs(context.settings);
  return json;
}

nlohmann::ordered_json to_json(const RunResult& result) {
  Json json;
  json["schema_version"] = kReportSchemaVersion;
  json["context"] = context_json(result.context);
  json["cells"] = Json::array();
  for (const CellResult& cell : result.cells) json["cells"].push_back(cell_json(cell));
  json["performance_means"] = Json::array();
  for (const PerformanceMean& mean : result.means) json["performance_means"].push_back(mean_json(mean));
  json["totals"] = {{"passed", result.passed()}, {"failed", result.failed()}, {"skipped", result.skipped()}};
  return json;
}

void JsonReporter::end(const RunResult& result) { out_ << dump(to_json(result), 1) << '\n' << std::flush; }

void JsonJournal::begin(const RunContext& context) {
  Json line;
  line["schema_version"] = kReportSchemaVersion;
  line["context"] = context_json(context);
  out_ << dump(line, -1) << '\n' << std::flush;
}

void JsonJournal::cell(const CellResult& result) {
  Json line;
  line["cell"] = cell_json(result);
  out_ << dump(line, -1) << '\n' << std::flush;
}

}  // namespace batchproof
