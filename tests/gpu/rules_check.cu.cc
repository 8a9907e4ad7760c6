// SPDX-License-Identifier: Apache-2.0
//
// Runs the proof of the tensor-core rules, prints a table of rule by type and writes JSON.
//
//   rules_check [FILE.json]
#include <fmt/format.h>

#include <chrono>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "src/kernels/cuda/tensor_core_rules.h"
#include "tests/gpu/case.h"

int main(int argc, char** argv) {
  using namespace batchproof;
  using namespace batchproof::cuda;
  const auto start = std::chrono::steady_clock::now();
  gpu::must(tensor_core_rules_hold(BP_BF16));
  gpu::must(tensor_core_rules_hold(BP_FP16));
  const auto probed = std::chrono::steady_clock::now();
  const RuleReport report = gpu::must(prove_tensor_core_rules());
  nlohmann::ordered_json json;
  const DeviceInfo device = gpu::must(current_device());
  json["device"] = device.name;
  json["driver"] = device.driver;
  json["runtime"] = device.runtime;
  json["probe_ms"] = std::chrono::duration<double, std::milli>(probed - start).count();
  // rule -> type -> "differing/total" summed over inputs, and per input in the JSON.
  std::vector<std::string> order;
  std::map<std::string, std::map<std::string, std::pair<std::int64_t, std::int64_t>>> table;
  int wrong = 0;
  for (const RuleResult& r : report.results) {
    json["results"].push_back({{"type", r.type},
                               {"inputs", r.inputs},
                               {"rule", r.rule},
                               {"differing", r.differing},
                               {"total", r.total},
                               {"expected", r.recorded_only    ? "recorded"
                                            : r.expected_equal ? "equal"
                                                               : "differ"}});
    if (table.find(r.rule) == table.end()) order.push_back(r.rule);
    auto& cell = table[r.rule][r.type];
    cell.first += r.differing;
    cell.second += r.total;
    if (!r.recorded_only && (r.differing == 0) != r.expected_equal) {
      ++wrong;
      fmt::print("FAIL {} {}: {}: {} of {} differ, expected {}\n", r.type, r.inputs, r.rule, r.differing, r.total,
                 r.expected_equal ? "none" : "some");
    }
  }
  json["notes"] = report.notes;
  json["holds"] = report.holds();
  fmt::print("{:44}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}\n", "outputs that differ from wgmma n=64 ss", "bf16", "fp16",
             "tf32", "e4m3", "e5m2", "s8");
  for (const std::string& rule : order) {
    fmt::print("{:44}", rule);
    for (const char* type : {"bf16", "fp16", "tf32", "e4m3", "e5m2", "s8"}) {
      const auto found = table[rule].find(type);
      fmt::print("{:>10}", found == table[rule].end() ? "-"
                           : found->second.first == 0
                               ? "0"
                               : fmt::format("{:.2f}%", 100.0 * static_cast<double>(found->second.first) /
                                                            static_cast<double>(found->second.second)));
    }
    fmt::print("\n");
  }
  for (const std::string& note : report.notes) fmt::print("{}\n", note);
  fmt::print("probe of two dtypes: {:.1f} ms; {} results, {} not as expected\n", json["probe_ms"].get<double>(),
             report.results.size(), wrong);
  if (argc > 1) std::ofstream(argv[1]) << json.dump(1) << "\n";
  return report.holds() ? 0 : 1;
}
