// SPDX-License-Identifier: Apache-2.0
//
// neighbours: the target row keeps its content, every other row gets another seed and another magnitude. Each target
// has runs of its own: it must see all the others change.
#include <fmt/format.h>

#include <algorithm>

#include "src/check/relation.h"
#include "src/numeric/seed.h"

namespace batchproof {
namespace {

// Magnitudes 1e-4 to 1e4, by row, so that a scale taken over the batch moves in both directions.
double neighbour_magnitude(std::uint64_t seed, std::uint64_t row) {
  constexpr double kMagnitudes[] = {1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3, 1e4};
  return kMagnitudes[mix64(seed, row) % std::size(kMagnitudes)];
}

}  // namespace

Result<RelationFinding> check_neighbours(CellSession& session) {
  RelationFinding finding;
  if (session.rows() < 2) {
    finding.void_reason = fmt::format("{} logical row: there is no neighbour to change", session.rows());
    return finding;
  }
  const auto targets = session.targets();
  if (!targets) return tl::unexpected(targets.error());
  const int variants = session.cell().standard.bi ? session.cell().standard.bi->n_variants : 2;
  for (const std::int64_t target : *targets) {
    for (int v = 1; v < variants; ++v) {
      Variant variant = session.same();
      const std::uint64_t seed = session.variant_seed(v);
      for (std::size_t row = 0; row < variant.rows.size(); ++row) {
        if (static_cast<std::int64_t>(row) == target) continue;
        variant.rows[row].seed = seed;
        variant.rows[row].magnitude = neighbour_magnitude(seed, row);
      }
      auto changed = session.run(variant);
      if (!changed) return tl::unexpected(changed.error());
      session.compare_row(session.base(), target, *changed, target, static_cast<std::uint64_t>(target),
                          fmt::format("the other rows from seed {}, magnitudes 1e-4 to 1e4", seed),
                          &finding.comparison);
      for (const PortLayout* port : session.base().layout.outputs()) {
        const CellSession::Moved moved = session.rows_moved(*changed, *port, target);
        auto [slot, fresh] = finding.leak.try_emplace(port->index);
        Witness& witness = slot->second;
        if (fresh || moved < witness) {
          witness.kind = Witness::Kind::leak;
          witness.rows_moved = moved.rows;
          witness.rows_total = moved.total;
          witness.how = "neighbours re-seeded";
          witness.port = port->port->name;
        }
      }
    }
  }
  return finding;
}

}  // namespace batchproof
