// SPDX-License-Identifier: Apache-2.0
//
// cross_rank: a logical slot that several ranks compute has the same bytes on all of them (weights are equal on all
// ranks in every invariance run).
#include <fmt/format.h>

#include "src/check/relation.h"
#include "src/suite/case_plan.h"

namespace batchproof {

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
  if (finding.comparison.bytes_compared == 0) {
    if (world == 1) {
      finding.void_reason = "one rank: no slot exists twice";
    } else {
      finding.skip_reason = "no slot exists on several ranks";
    }
  }
  return finding;
}

}  // namespace batchproof
