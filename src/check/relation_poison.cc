// SPDX-License-Identifier: Apache-2.0
//
// poison: the target row keeps its content; every other row, the workspace and the outputs before the call become NaN,
// infinity or the largest code.
#include <fmt/format.h>

#include <algorithm>

#include "src/check/relation.h"

namespace batchproof {
namespace {

struct Filling {
  Poison poison;
  const char* name;
  std::uint8_t stale;  // byte pattern of workspace and stale outputs
};

// 0xFF is NaN in every float dtype, 0x7F and 0x7B are NaN or huge, so that a stale element never looks harmless.
constexpr Filling kFillings[] = {
    {Poison::nan, "NaN", 0xFF}, {Poison::infinity, "Inf", 0x7F}, {Poison::huge, "huge values", 0x7B}};

}  // namespace

Result<RelationFinding> check_poison(CellSession& session) {
  RelationFinding finding;
  if (session.rows() < 2) {
    finding.void_reason = fmt::format("{} logical row: there is no neighbour to poison", session.rows());
    return finding;
  }
  const auto targets = session.targets();
  if (!targets) return tl::unexpected(targets.error());
  for (const std::int64_t target : *targets) {
    for (const Filling& filling : kFillings) {
      Variant variant = session.same();
      for (std::size_t row = 0; row < variant.rows.size(); ++row) {
        if (static_cast<std::int64_t>(row) != target) variant.rows[row].poison = filling.poison;
      }
      variant.workspace_fill = filling.stale;
      variant.placement.fill = filling.stale;
      variant.placement.padding = 8;
      auto poisoned = session.run(variant);
      if (!poisoned) return tl::unexpected(poisoned.error());
      session.compare_row(session.base(), target, *poisoned, target, static_cast<std::uint64_t>(target),
                          fmt::format("the other rows, padding, workspace and stale outputs are {}", filling.name),
                          &finding.comparison);
      for (const PortLayout* port : session.base().layout.outputs()) {
        const CellSession::Moved moved = session.rows_moved(*poisoned, *port, target);
        auto [slot, fresh] = finding.leak.try_emplace(port->index);
        Witness& witness = slot->second;
        if (!fresh && !(moved < witness)) continue;
        witness.kind = Witness::Kind::leak;
        witness.rows_moved = moved.rows;
        witness.rows_total = moved.total;
        witness.how = "neighbours poisoned";
        witness.port = port->port->name;
      }
    }
  }
  return finding;
}

}  // namespace batchproof
