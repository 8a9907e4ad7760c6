// SPDX-License-Identifier: Apache-2.0
//
// cross_rank: a logical slot that several ranks compute has the same bytes on all of them (weights are equal on all
// ranks in every invariance run). Where no slot exists on several ranks, the same rows sit in the slots of every rank;
// where rows choose experts, the copies of a row choose experts of different ranks that have equal weights.
#include <fmt/format.h>

#include "src/check/relation.h"
#include "src/suite/case_plan.h"

namespace batchproof {
namespace {

// Rank r holds the rows 0 to rows / W - 1 of the base run, each of which meets the expert that is r ranks on from its
// own.
Variant rows_on_every_rank(const CellSession& session) {
  const int world = session.cell().problem.world;
  const std::int64_t own = session.rows() / world;
  const std::int64_t experts = session.base().layout.experts();
  Variant variant = session.same();
  variant.equal_experts = experts > 0;
  for (std::int64_t position = 0; position < session.rows(); ++position) {
    RowIdentity& row = variant.rows[static_cast<std::size_t>(position)];
    row = session.identity(static_cast<std::uint64_t>(position % own));
    const std::int64_t shift = position / own * (experts / world);
    if (experts > 0 && row.expert.value_or(-1) >= 0) row.expert = (*row.expert + shift) % experts;
  }
  return variant;
}

}  // namespace

Result<RelationFinding> check_cross_rank(CellSession& session) {
  RelationFinding finding;
  const int world = session.cell().problem.world;
  if (!is_distributed(session.host().table())) {
    finding.skip_reason = "the operator runs on one rank";
    return finding;
  }
  for (std::int64_t row = 0; row < session.rows(); ++row)
    session.compare_copies(session.base(), row, static_cast<std::uint64_t>(row), "the same slot on another rank",
                           &finding.comparison);
  if (finding.comparison.bytes_compared > 0) return finding;
  if (world == 1) {
    finding.void_reason = "one rank: no slot exists twice";
    return finding;
  }
  if (session.rows() % world != 0 || session.rows() == 0) {
    finding.skip_reason = fmt::format("{} rows cannot sit on each of {} ranks alike", session.rows(), world);
    return finding;
  }
  auto copies = session.run(rows_on_every_rank(session));
  if (!copies) return tl::unexpected(copies.error());
  const std::int64_t own = session.rows() / world;
  for (std::int64_t position = own; position < session.rows(); ++position)
    session.compare_row(*copies, position % own, *copies, position, static_cast<std::uint64_t>(position % own),
                        "the same row in a slot of another rank", &finding.comparison);
  return finding;
}

}  // namespace batchproof
