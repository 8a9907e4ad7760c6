// SPDX-License-Identifier: Apache-2.0
#include "src/report/scan_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/report/describe.h"

namespace batchproof {
namespace {

std::string range(std::int64_t first, std::int64_t last) {
  return first == last ? fmt::format("{}", first) : fmt::format("{}..{}", first, last);
}

std::string plural(std::int64_t count, const char* one, const char* many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

}  // namespace

std::string scan_class_name(int bit_class) {
  const std::string letter(1, static_cast<char>('A' + bit_class % 26));
  return bit_class < 26 ? letter : letter + std::to_string(bit_class / 26);
}

std::string scan_verdict(const ScanResult& result) {
  const ScanPort* blind = result.blind();
  if (result.promised && !result.one_class())
    return fmt::format("violation: {} promises batch_size, and bytes change with {}", result.implementation,
                       result.axis);
  if (blind != nullptr)
    return fmt::format("vacuous: another order ({}) moves no victim of {}, so one class of it means nothing",
                       blind->witness.how, blind->port);
  if (!result.promised) return fmt::format("not judged: {} does not promise batch_size", result.implementation);
  return "pass: one class, as promised";
}

std::string format_scan(const ScanResult& result) {
  std::size_t width = 0;
  std::size_t witness_width = 0;
  for (const ScanPort& port : result.ports) {
    width = std::max(width, port.port.size());
    witness_width = std::max(witness_width, witness_text(port.witness).size());
  }
  std::string out = fmt::format("{}/{}", result.op, result.implementation);
  for (const auto& [name, value] : result.axes) out += fmt::format("  {} = {}", name, value);
  out += fmt::format("  {} = {}\n{}, {}, {}, {:.1f} s; inputs: {}\n", result.axis, range(result.first, result.last),
                     plural(result.sizes, "size", "sizes"), plural(result.victims, "victim", "victims"),
                     plural(result.calls, "call", "calls"), result.seconds, result.inputs);
  for (const ScanPort& port : result.ports) {
    out += fmt::format("{:<{}}  {:<{}}  {:<10}", port.port, width, witness_text(port.witness), witness_width,
                       plural(port.classes, "class", "classes"));
    for (const ScanInterval& interval : port.intervals)
      out += fmt::format("  {} {}", scan_class_name(interval.bit_class), range(interval.first, interval.last));
    out += '\n';
  }
  for (const ScanPort& port : result.ports) {
    if (port.flips.empty()) continue;
    out += fmt::format("flips of {}:", port.port);
    for (const ScanFlip& flip : port.flips) out += fmt::format(" {} ({}/{})", flip.at, flip.victims, result.victims);
    out += '\n';
  }
  out += "flips:";
  for (const ScanFlip& flip : result.flips) out += fmt::format(" {}", flip.at);
  out += result.flips.empty() ? " none\n" : "\n";
  if (!result.refused.empty())
    out +=
        fmt::format("not accepted by the operator: {}, the first is {}\n",
                    plural(static_cast<std::int64_t>(result.refused.size()), "size", "sizes"), result.refused.front());
  if (result.places_total > 0) {
    out += fmt::format("position matters: {}\n", plural(result.places_total, "copy differs", "copies differ"));
    for (const ScanPlace& place : result.places)
      out += fmt::format("  {} at {} = {}: row {} holds the same input as row {}\n", place.port, result.axis,
                         place.size, place.row, place.victim);
  }
  out += scan_verdict(result) + '\n';
  return out;
}

}  // namespace batchproof
