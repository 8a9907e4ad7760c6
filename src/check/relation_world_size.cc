// SPDX-License-Identifier: Apache-2.0
//
// world_size: the same logical problem on another number of ranks.
#include <fmt/format.h>

#include "src/check/relation.h"
#include "src/suite/case_plan.h"

namespace batchproof {

Result<RelationFinding> check_world_size(CellSession& session) {
  RelationFinding finding;
  const Problem& problem = session.cell().problem;
  if (!is_distributed(session.host().table())) {
    finding.skip_reason = "the operator runs on one rank";
    return finding;
  }
  int worlds_run = 0;
  for (const int world : {1, 2, 3, 4, 8, 16}) {
    if (world == problem.world) continue;
    auto other = with_world(session.host(), session.routed(problem), world);
    if (!other) continue;  // does not divide, or the operator does not accept this world
    auto layout = make_layout(session.host(), *other);
    if (!layout) return tl::unexpected(layout.error());
    if (layout->rows != session.rows()) continue;
    Variant variant = session.same();
    variant.problem = *other;
    // The number of threads stays: a split that follows it is for the relation `threads`.
    auto run = session.run(variant);
    if (!run) return tl::unexpected(run.error());
    ++worlds_run;
    for (std::int64_t row = 0; row < session.rows(); ++row)
      session.compare_row(session.base(), row, *run, row, static_cast<std::uint64_t>(row),
                          fmt::format("W = {} instead of {}", world, problem.world), &finding.comparison);
  }
  if (worlds_run == 0) finding.void_reason = "the problem divides over no other number of ranks";
  return finding;
}

}  // namespace batchproof
