// SPDX-License-Identifier: Apache-2.0
#include "src/report/scan_json.h"

#include <nlohmann/json.hpp>

#include "src/report/describe.h"
#include "src/report/json.h"
#include "src/report/scan_text.h"

namespace batchproof {
namespace {

using Json = nlohmann::ordered_json;

Json flips_json(const std::vector<ScanFlip>& flips) {
  Json list = Json::array();
  for (const ScanFlip& flip : flips)
    list.push_back({{"at", flip.at}, {"after", flip.after}, {"victims", flip.victims}});
  return list;
}

Json port_json(const ScanPort& port) {
  Json json;
  json["port"] = port.port;
  json["classes"] = port.classes;
  json["witness"] = {{"kind", witness_kind_name(port.witness.kind)},
                     {"rows_moved", port.witness.rows_moved},
                     {"rows_total", port.witness.rows_total},
                     {"how", port.witness.how}};
  json["intervals"] = Json::array();
  for (const ScanInterval& interval : port.intervals)
    json["intervals"].push_back({{"first", interval.first}, {"last", interval.last}, {"class", interval.bit_class}});
  json["flips"] = flips_json(port.flips);
  return json;
}

}  // namespace

std::string scan_json(const ScanResult& result, const RunContext& context) {
  const std::string sentence = scan_verdict(result);
  Json json;
  json["schema_version"] = kScanSchemaVersion;
  json["context"] = context_json(context);
  json["op"] = result.op;
  json["implementation"] = result.implementation;
  json["axes"] = Json::object();
  for (const auto& [name, value] : result.axes) json["axes"][name] = value;
  json["row_axis"] = result.axis;
  json["first"] = result.first;
  json["last"] = result.last;
  json["sizes"] = result.sizes;
  json["refused"] = result.refused;
  json["victims"] = result.victims;
  json["calls"] = result.calls;
  json["inputs"] = result.inputs;
  json["promised"] = result.promised;
  json["verdict"] = sentence.substr(0, sentence.find(':'));
  json["failed"] = result.failed();
  json["flips"] = flips_json(result.flips);
  json["ports"] = Json::array();
  for (const ScanPort& port : result.ports) json["ports"].push_back(port_json(port));
  json["places_total"] = result.places_total;
  json["places"] = Json::array();
  for (const ScanPlace& place : result.places)
    json["places"].push_back(
        {{"port", place.port}, {"size", place.size}, {"row", place.row}, {"victim", place.victim}});
  json["seconds"] = result.seconds;
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace batchproof
